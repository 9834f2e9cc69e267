/* ibv_pair.c: see ibv_pair.h. */
#include "ibv_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/os.h"
#include "base/param.h"

const struct net_ops *pair_ops;
uint32_t pair_receiver_device;
static uint64_t blocks_before;

static struct net_peer to_one = {0x1234567890abcdefull, 0, 1, "pair", NULL, 0};
static struct net_peer to_zero = {0x1234567890abcdefull, 1, 0, "pair", NULL, 0};

void pair_set_class(uint32_t traffic_class) { to_one.traffic_class = to_zero.traffic_class = traffic_class; }

void pair_set(const char *name, const char *value) {
  if (value != NULL) setenv(name, value, 1);
  else unsetenv(name);
}

/* Continues from one test to the next, so that no two tests share a number. */
void pair_settings(const char *qps, const char *split, const char *threshold) {
  pair_set("NCCL_SOCKET_IFNAME", "lo");
  pair_set("NCCL_IB_QPS_PER_CONNECTION", qps);
  pair_set("NCCL_IB_SPLIT_DATA_ON_QPS", split);
  pair_set("NCCL_IB_ADAPTIVE_ROUTING", threshold != NULL ? "1" : NULL);
  pair_set("NCCL_IB_AR_THRESHOLD", threshold);
  pair_set("NCCL_IB_USE_INLINE", NULL);
  pair_set("NCCL_IB_HCA", NULL);
  pair_set("NCCL_IB_DISABLE", NULL);
  pair_set("NCCL_IB_GID_INDEX", NULL);
  pair_set("NCCL_IB_TC", NULL);
  pair_set("NCCL_IB_FIFO_TC", NULL);
  pair_set("NCCL_IB_ECE_ENABLE", NULL);
  pair_set("NCCL_IB_RETURN_ASYNC_EVENTS", NULL);
  pair_set("NCCL_NET_FORCE_MERGE", NULL);
  pair_set("NCCL_IB_MERGE_NICS", NULL);
  pair_set("TUTTI_IB_PATH_MS", NULL);
  pair_set("TUTTI_IB_RECONNECT", NULL);
  pair_set("NCCL_IB_RESILIENCY_PORT_FAILOVER", NULL);
  pair_set("TUTTI_IB_RETURN_MS", NULL);
  pair_set("TUTTI_IB_SILENCE_MS", NULL);
  param_reset();
}

uint32_t pair_world_open(const struct fake_verbs_options *options) {
  uint32_t count = 0;
  fake_verbs_reset(options);
  assert_int_equal(pair_ops->devices(&count), ncclSuccess);
  return count;
}

void pair_world_close(void) {
  assert_int_equal(pair_ops->finish(), ncclSuccess);
  const struct fake_verbs_stats stats = fake_verbs_stats();
  assert_int_equal(stats.contexts + stats.pds + stats.cqs + stats.qps + stats.memories, 0);
}

int pair_setup(void **state) {
  (void)state;
  pair_ops = ibv_net_ops();
  verbs_replace(fake_verbs());
  pair_settings(NULL, NULL, NULL);
  log_last_error(); /* the first call allocates a text per thread, which is kept */
  log_own_error();
  handshake_check();
  blocks_before = os_alloc_live();
  return 0;
}

int pair_teardown(void **state) {
  (void)state;
  if (os_alloc_live() == blocks_before) return 0;
  fprintf(stderr, "blocks: %llu before, %llu after\n", (unsigned long long)blocks_before,
          (unsigned long long)os_alloc_live());
  return -1;
}

/* ---- a pair of ends ---- */

/* Half of the pairs pass device memory by a descriptor (DMA-BUF). */
static void pair_register_device(struct pair *pair) {
  const uintptr_t begin = (uintptr_t)pair->received & ~(uintptr_t)4095;
  const size_t bytes = (uintptr_t)pair->received + sizeof pair->received - begin;
  if (begin % 8192 == 0)
    assert_int_equal(pair_ops->register_memory(pair->receive, (void *)begin, bytes, NET_MEMORY_CUDA,
                                               &pair->receive_memory),
                     ncclSuccess);
  else
    assert_int_equal(
        pair_ops->register_dmabuf(pair->receive, (void *)begin, bytes, 0, 4096, &pair->receive_memory),
        ncclSuccess);
}

static void pair_register(struct pair *pair) {
  assert_int_equal(pair_ops->register_memory(pair->send, pair->sent, sizeof pair->sent, NET_MEMORY_HOST,
                                             &pair->send_memory),
                   ncclSuccess);
  if (pair->device) pair_register_device(pair);
  else
    assert_int_equal(pair_ops->register_memory(pair->receive, pair->received, sizeof pair->received,
                                               NET_MEMORY_HOST, &pair->receive_memory),
                     ncclSuccess);
  assert_int_equal(pair_ops->register_memory(pair->send, pair->sent_rest, sizeof pair->sent_rest,
                                             NET_MEMORY_HOST, &pair->send_rest_memory),
                   ncclSuccess);
  assert_int_equal(pair_ops->register_memory(pair->receive, pair->received_rest, sizeof pair->received_rest,
                                             NET_MEMORY_HOST, &pair->receive_rest_memory),
                   ncclSuccess);
}

/* The results of both ends; the receiver is NULL if it was not made. */
void pair_open(struct pair *pair, ncclResult_t results[2]) {
  const uint64_t end = os_time_ns() + PAIR_SECONDS_MOST * 1000000000ull;
  uint8_t word = 0;
  const bool device = pair->device;
  memset(pair, 0, sizeof *pair);
  pair->device = device;
  results[0] = results[1] = ncclSuccess;
  assert_int_equal(pair_ops->listen(pair_receiver_device, &to_zero, &pair->handle, &pair->listener),
                   ncclSuccess);
  assert_int_equal(pair_ops->connect(0, &to_one, &pair->handle, &pair->send), ncclSuccess);
  while (((struct ib_end *)pair->send)->phase != IB_READY && results[0] == ncclSuccess) {
    void *request = NULL;
    if (pair->receive == NULL && results[1] == ncclSuccess)
      results[1] = pair_ops->accept(pair->listener, &pair->receive);
    results[0] = pair_ops->isend(pair->send, &word, 0, 0, NULL, &request);
    assert_null(request);
    if (os_time_ns() > end) fail_msg("the pair is not made");
  }
  if (pair->receive != NULL) pair_register(pair);
}

void pair_close(struct pair *pair) {
  if (pair->receive != NULL) {
    assert_int_equal(pair_ops->unregister_memory(pair->send, pair->send_memory), ncclSuccess);
    assert_int_equal(pair_ops->unregister_memory(pair->receive, pair->receive_memory), ncclSuccess);
    assert_int_equal(pair_ops->unregister_memory(pair->send, pair->send_rest_memory), ncclSuccess);
    assert_int_equal(pair_ops->unregister_memory(pair->receive, pair->receive_rest_memory), ncclSuccess);
  }
  if (pair->send != NULL) assert_int_equal(pair_ops->close_send(pair->send), ncclSuccess);
  if (pair->receive != NULL) assert_int_equal(pair_ops->close_recv(pair->receive), ncclSuccess);
  assert_int_equal(pair_ops->close_listen(pair->listener), ncclSuccess);
}

static uint8_t pattern(uint32_t message, size_t i) { return (uint8_t)(message * 31 + i * 7 + (i >> 8)); }

static size_t size_of(uint64_t seed, uint32_t message) {
  static const size_t sizes[] = {0, 1, 17, 127, 128, 129, 511, 4096, 8192, 8193, PAIR_BYTES_MOST};
  return sizes[hash_scramble(seed * 77 + message) % (sizeof sizes / sizeof sizes[0])];
}

/* ---- a stream of messages, in groups whose size is drawn from a seed ---- */

uint8_t *stream_place(uint8_t *buffer, uint32_t message) {
  return buffer + message % PAIR_DEPTH * (size_t)PAIR_BYTES_MOST;
}

static void stream_note(struct stream *stream, int side, ncclResult_t result) {
  if (result == ncclSuccess || stream->results[side] != ncclSuccess) return;
  stream->results[side] = result;
  snprintf(stream->why[side], sizeof stream->why[side], "%s", log_own_error());
}

/* Where the message is split: at different places on the two ends. */
static size_t cut_of(const struct stream *stream, uint32_t message, bool sends) {
  const uint64_t drawn = hash_scramble(stream->seed ^ (message * 2 + sends));
  const size_t bytes = size_of(stream->seed, message);
  return stream->splits && stream->group == 1 && bytes > 8 && drawn % 3 != 0 ? 1 + (drawn >> 8) % (bytes - 1)
                                                                             : 0;
}

static ncclResult_t stream_isend(struct stream *stream, uint8_t *data, size_t bytes, void **request) {
  struct pair *pair = stream->pair;
  const size_t cut = cut_of(stream, stream->sent, true);
  const struct net_part first = {data, cut, pair->send_memory};
  if (cut == 0)
    return pair_ops->isend(pair->send, data, bytes, (int)(stream->sent % stream->group), pair->send_memory,
                           request);
  memcpy(pair->sent_rest + stream->sent % PAIR_DEPTH * PAIR_BYTES_MOST, data + cut, bytes - cut);
  memset(data + cut, 0xdd, bytes - cut); /* bytes that must not be sent from there */
  return pair_ops->isend_parts(pair->send, &first,
                               pair->sent_rest + stream->sent % PAIR_DEPTH * PAIR_BYTES_MOST, bytes - cut,
                               pair->send_rest_memory, request);
}

static void stream_send(struct stream *stream) {
  struct pair *pair = stream->pair;
  if (stream->sent < PAIR_MESSAGES && stream->sent < stream->send_done + PAIR_DEPTH) {
    const size_t bytes = size_of(stream->seed, stream->sent);
    uint8_t *data = stream_place(pair->sent, stream->sent);
    for (size_t i = 0; i < bytes; i++) data[i] = pattern(stream->sent, i);
    void *request = NULL;
    stream_note(stream, 0, stream_isend(stream, data, bytes, &request));
    if (request != NULL) stream->sends[stream->sent++] = request;
  }
  bool done = true;
  while (done && stream->send_done < stream->sent) {
    stream_note(stream, 0, pair_ops->test(stream->sends[stream->send_done], &done, NULL));
    stream->send_done += done;
  }
}

static void stream_post(struct stream *stream) {
  struct pair *pair = stream->pair;
  void *data[IB_GROUP_MAX], *registrations[IB_GROUP_MAX], *request = NULL;
  size_t bytes[IB_GROUP_MAX];
  int tags[IB_GROUP_MAX];
  if (stream->posted == PAIR_MESSAGES || stream->posted + stream->group > stream->arrived + PAIR_DEPTH)
    return;
  for (uint32_t i = 0; i < stream->group; i++) {
    const uint32_t message = stream->posted + stream->group - 1 - i; /* tags restore the order */
    data[i] = stream_place(pair->received, message);
    registrations[i] = pair->receive_memory;
    bytes[i] = PAIR_BYTES_MOST;
    tags[i] = (int)(message % stream->group);
  }
  const size_t cut = cut_of(stream, stream->posted, false), whole = size_of(stream->seed, stream->posted);
  const bool tail = cut > 0 && cut % 2 != 0; /* of any size: all but its end is at the first place */
  const struct net_part first = {data[0], tail ? PAIR_BYTES_MOST : cut, pair->receive_memory};
  uint8_t *rest = pair->received_rest + stream->posted % PAIR_DEPTH * PAIR_BYTES_MOST;
  if (cut > 0)
    stream_note(
        stream, 1,
        pair_ops->irecv_parts(pair->receive, &first, tail ? NET_PARTS_TAIL : whole, rest,
                              tail ? whole - cut : PAIR_BYTES_MOST, pair->receive_rest_memory, &request));
  else
    stream_note(stream, 1,
                pair_ops->irecv(pair->receive, stream->group, data, bytes, tags, registrations, &request));
  if (request == NULL) return;
  stream->receives[stream->posted] = request;
  stream->posted += stream->group;
}

/* Makes received data visible. */
static void stream_flush(struct stream *stream) {
  void *data[IB_GROUP_MAX], *registrations[IB_GROUP_MAX];
  for (uint32_t i = 0; i < stream->group; i++) {
    data[i] = stream_place(stream->pair->received, stream->arrived + stream->group - 1 - i);
    registrations[i] = stream->pair->receive_memory;
  }
  stream_note(stream, 1,
              pair_ops->iflush(stream->pair->receive, stream->group, data, stream->sizes, registrations,
                               &stream->flush));
}

/* The next group has arrived and is visible. */
static bool stream_has_come(struct stream *stream) {
  bool done = false;
  if (stream->flush == NULL) {
    stream_note(stream, 1, pair_ops->test(stream->receives[stream->arrived], &done, stream->sizes));
    if (done && stream->pair->device) stream_flush(stream);
    if (!done || stream->results[1] != ncclSuccess) return false;
  }
  if (stream->flush == NULL) return true;
  stream_note(stream, 1, pair_ops->test(stream->flush, &done, NULL));
  if (done) stream->flush = NULL;
  return done;
}

static void message_check(const struct stream *stream, uint32_t message, size_t bytes) {
  const uint8_t *data = stream_place(stream->pair->received, message);
  const uint8_t *rest = stream->pair->received_rest + message % PAIR_DEPTH * PAIR_BYTES_MOST;
  const size_t cut = cut_of(stream, message, false);
  if (bytes != size_of(stream->seed, message))
    fail_msg("seed %llu: message %u has %zu bytes", (unsigned long long)stream->seed, message, bytes);
  for (size_t k = 0; k < bytes; k++)
    if ((cut > 0 && k >= cut ? rest[k - cut] : data[k]) != pattern(message, k))
      fail_msg("seed %llu: message %u differs at %zu", (unsigned long long)stream->seed, message, k);
}

static void stream_take(struct stream *stream) {
  while (stream->arrived < stream->posted && stream_has_come(stream)) {
    for (uint32_t i = 0; i < stream->group; i++) {
      const uint32_t message = stream->arrived + stream->group - 1 - i;
      message_check(stream, message, stream->sizes[i]);
      memset(stream_place(stream->pair->received, message), 0xee, PAIR_BYTES_MOST);
    }
    stream->arrived += stream->group;
  }
}

/* An idle end must still notice the other end, as between operations. */
ncclResult_t stream_idle(void *connection) {
  enum net_look wish;
  if (ib_reconnect_most() == 0) return ib_end_poll((struct ib_end *)connection);
  return pair_ops->look(connection, &wish);
}

void stream_turn_sender(struct stream *stream) {
  if (stream->results[0] == ncclSuccess) stream_send(stream);
  if (stream->results[0] == ncclSuccess) stream_note(stream, 0, stream_idle(stream->pair->send));
}

void stream_turn_receiver(struct stream *stream) {
  if (stream->results[1] == ncclSuccess) stream_post(stream);
  if (stream->results[1] == ncclSuccess) stream_take(stream);
  if (stream->results[1] == ncclSuccess) stream_note(stream, 1, stream_idle(stream->pair->receive));
}

bool stream_is_through(const struct stream *stream) {
  const bool received = stream->arrived == PAIR_MESSAGES || stream->results[1] != ncclSuccess;
  const bool sent = stream->send_done == PAIR_MESSAGES || stream->results[0] != ncclSuccess;
  return received && sent; /* an end with nothing left to do notices nothing */
}

void stream_run(struct stream *stream) {
  struct pair *pair = stream->pair;
  const uint64_t end = os_time_ns() + PAIR_SECONDS_MOST * 1000000000ull;
  while (!stream_is_through(stream)) {
    stream_turn_sender(stream);
    stream_turn_receiver(stream);
    for (int side = 0; side < 2; side++) {
      struct ib_end *failed = (struct ib_end *)(side == 0 ? pair->send : pair->receive);
      if (stream->results[side] == ncclSuccess) continue;
      sock_close(failed->wire.fd);
      failed->wire.fd = -1;
    }
    if (os_time_ns() > end)
      fail_msg("seed %llu: no end: %u sent, %u done, %u posted, %u arrived", (unsigned long long)stream->seed,
               stream->sent, stream->send_done, stream->posted, stream->arrived);
  }
}

void stream_begin(struct stream *stream, struct pair *pair, uint64_t seed, uint32_t group) {
  memset(stream, 0, sizeof *stream);
  stream->pair = pair;
  stream->seed = seed;
  stream->group = group;
}
