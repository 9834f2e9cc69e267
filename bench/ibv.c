/* ibv.c: the ibv net beside bare verbs on the same queue pair, both ends in one process that drives them in
 * turns, so that nothing waits for a core: bandwidth of a stream of messages and one-way time of a single
 * one, medians over the rounds. Bare verbs are signalled writes with eight under way; a write with an
 * immediate value whose completion the receiver sees; and a plain write until its last byte is there and it
 * is completed, which is what perftest's ib_write_lat counts.
 *
 *   ibv ROUNDS SMALLEST LARGEST
 *
 * NCCL_IB_HCA chooses the device; with two, messages go from the first to the second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/os.h"
#include "base/param.h"

enum { DEPTH = 8, ROUNDS_MAX = 101, MESSAGES = 32 };
static const struct net_ops *ops;
static struct ib_end *sender, *receiver;
static struct ib_region *from, *to;
static uint8_t *source, *target;
static bool inlines; /* NCCL_IB_USE_INLINE */

static void must(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "ibv: %s: %s\n", what, log_last_error());
  exit(1);
}

static void pair_open(uint32_t devices, size_t bytes) {
  const struct net_peer one = {1, 0, 1, "bench", NULL}, zero = {1, 1, 0, "bench", NULL};
  struct net_handle handle;
  void *listener = NULL, *send = NULL, *receive = NULL, *request = NULL;
  must(ops->listen(devices - 1, &zero, &handle, &listener) == ncclSuccess, "listen");
  must(ops->connect(0, &one, &handle, &send) == ncclSuccess, "connect");
  sender = (struct ib_end *)send;
  while (sender->phase != IB_READY || receive == NULL) {
    if (receive == NULL) must(ops->accept(listener, &receive) == ncclSuccess, "accept");
    must(ops->isend(send, source, 0, 0, NULL, &request) == ncclSuccess, "send");
  }
  receiver = (struct ib_end *)receive;
  must(ops->register_memory(send, source, bytes, NET_MEMORY_HOST, (void **)&from) == ncclSuccess, "memory");
  must(ops->register_memory(receive, target, bytes, NET_MEMORY_HOST, (void **)&to) == ncclSuccess, "memory");
}

static void *receive_post(size_t bytes) {
  void *request = NULL, *data = target, *registration = to;
  const int tag = 0;
  while (request == NULL)
    must(ops->irecv(receiver, 1, &data, &bytes, &tag, &registration, &request) == ncclSuccess, "receive");
  return request;
}

static bool is_done(void *request) {
  bool done = false;
  must(ops->test(request, &done, NULL) == ncclSuccess, "test");
  return done;
}

/* Nanoseconds of `count` messages with at most `depth` in flight. */
static uint64_t net_stream(size_t bytes, uint32_t count, uint32_t depth) {
  void *sends[MESSAGES], *receives[MESSAGES];
  uint32_t posted = 0, sent = 0, send_done = 0, received = 0;
  const uint64_t begin_ns = os_time_ns();
  while (received < count || send_done < count) {
    if (posted < count && posted < received + depth) receives[posted++] = receive_post(bytes);
    if (sent < count && sent < send_done + depth) {
      void *request = NULL;
      must(ops->isend(sender, source, bytes, 0, from, &request) == ncclSuccess, "send");
      if (request != NULL) sends[sent++] = request;
    }
    if (send_done < sent && is_done(sends[send_done])) send_done++;
    if (received < posted && is_done(receives[received])) received++;
  }
  return os_time_ns() - begin_ns;
}

static void bare_write(size_t bytes, bool notifies) {
  struct ibv_sge place = {(uint64_t)(uintptr_t)source, (uint32_t)bytes, from->memory[0]->lkey};
  struct ibv_send_wr request, *bad = NULL;
  memset(&request, 0, sizeof request);
  request.opcode = notifies ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  if (inlines && bytes <= IB_INLINE_BYTES) request.send_flags |= IBV_SEND_INLINE;
  request.sg_list = &place;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = (uint64_t)(uintptr_t)target;
  request.wr.rdma.rkey = to->memory[0]->rkey;
  must(sender->verbs->send_post(sender->qps[0].qp, &request, &bad) == 0, "bare write");
}

/* 1: one of these has completed. The net may have left completions of its own. */
static uint32_t bare_poll(struct ib_end *end, enum ibv_wc_opcode opcode) {
  struct ibv_wc completion;
  const int got = end->verbs->cq_poll(end->outlets[0].cq, 1, &completion);
  must(got == 0 || completion.status == IBV_WC_SUCCESS, "bare completion");
  return got == 1 && completion.opcode == opcode ? 1 : 0;
}

static uint64_t bare_stream(size_t bytes, uint32_t count, uint32_t depth) {
  uint32_t posted = 0, done = 0;
  const uint64_t begin_ns = os_time_ns();
  while (done < count) {
    if (posted < count && posted < done + depth) bare_write(bytes, false), posted++;
    done += bare_poll(sender, IBV_WC_RDMA_WRITE);
  }
  return os_time_ns() - begin_ns;
}

static uint64_t bare_notified(size_t bytes, uint32_t count) {
  const uint64_t begin_ns = os_time_ns();
  for (uint32_t i = 0; i < count; i++) {
    struct ibv_recv_wr request, *bad = NULL;
    uint32_t sent = 0, received = 0;
    memset(&request, 0, sizeof request);
    must(receiver->verbs->receive_post(receiver->qps[0].qp, &request, &bad) == 0, "bare receive");
    bare_write(bytes, true);
    while (sent == 0 || received == 0) {
      if (sent == 0) sent = bare_poll(sender, IBV_WC_RDMA_WRITE);
      if (received == 0) received = bare_poll(receiver, IBV_WC_RECV_RDMA_WITH_IMM);
    }
  }
  return os_time_ns() - begin_ns;
}

static uint64_t bare_written(size_t bytes, uint32_t count) {
  const uint64_t begin_ns = os_time_ns();
  for (uint32_t i = 0; i < count; i++) {
    source[bytes - 1] = (uint8_t)~source[bytes - 1];
    bare_write(bytes, false);
    while (__atomic_load_n(&target[bytes - 1], __ATOMIC_ACQUIRE) != source[bytes - 1]) {}
    while (bare_poll(sender, IBV_WC_RDMA_WRITE) == 0) {}
  }
  return os_time_ns() - begin_ns;
}

static int compare(const void *a, const void *b) {
  const uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
  return first < second ? -1 : first > second;
}

int main(int word_count, char **words) {
  uint64_t times[5][ROUNDS_MAX];
  uint32_t devices = 0;
  if (word_count != 4) return 2;
  const int rounds = atoi(words[1]);
  const size_t least = strtoul(words[2], NULL, 10), most = strtoul(words[3], NULL, 10);
  if (rounds < 1 || rounds > ROUNDS_MAX || least < 1 || most < least) return 2;
  ops = ibv_net_ops();
  inlines = param_int(PARAM_IB_USE_INLINE) != 0;
  source = (uint8_t *)os_pages_map(most);
  target = (uint8_t *)os_pages_map(most);
  must(source != NULL && target != NULL && ops->devices(&devices) == ncclSuccess && devices > 0, "devices");
  pair_open(devices, most);
  printf("%10s %12s %12s %7s %12s %12s %12s\n", "bytes", "net MB/s", "bare MB/s", "ratio", "net us",
         "notified us", "written us");
  for (size_t bytes = least; bytes <= most; bytes *= 4) {
    const uint32_t count = bytes > 1 << 20 ? MESSAGES / 4 : MESSAGES;
    for (int round = 0; round < rounds; round++) {
      times[0][round] = net_stream(bytes, count, DEPTH);
      times[1][round] = bare_stream(bytes, count, DEPTH);
      times[2][round] = net_stream(bytes, count, 1);
      times[3][round] = bare_notified(bytes, count);
      times[4][round] = bare_written(bytes, count);
    }
    for (int what = 0; what < 5; what++) qsort(times[what], (size_t)rounds, sizeof times[0][0], compare);
    const double moved = (double)bytes * count * 1000, net = (double)times[0][rounds / 2],
                 bare = (double)times[1][rounds / 2];
    printf("%10zu %12.2f %12.2f %7.2f", bytes, moved / net, moved / bare, bare / net);
    for (int what = 2; what < 5; what++) printf(" %12.1f", (double)times[what][rounds / 2] / count / 1000);
    putchar('\n');
  }
  return 0;
}
