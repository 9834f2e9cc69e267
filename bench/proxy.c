/* proxy.c: what the proxies' engine costs when nothing is to be carried, and how long a small message takes:
 * two ranks of threads mode and a network within the process. Prints the share of a core that the process
 * uses while it sleeps for SECONDS with no connection, with one that waits for its sender, with one that is
 * made and has carried messages; and the median of sends to and fro of 8 bytes, in microseconds; and how late
 * a message leaves whose kernel begins long after its launch, with the share of a core until then. Then, over
 * sockets, small all-gathers of a host that is one ahead: what each costs whoever launches it while the
 * engine is at work, and from a kernel's tail to the other's, both ways; with and without other connections.
 * From the repository's root, behind a build with its tests:
 *
 *   gcc -O2 -D_GNU_SOURCE -Ilib -Ilib/backends/emu -Ilib/backends/emu/cudart/include -Itests -o proxy_bench
 *     bench/proxy.c tests/fake_net.c build/obj/libtutti_all.a -lexpat -lnettle -pthread -ldl -lm
 *   proxy_bench SECONDS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/emu/block.h"
#include "backends/socket/socket.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/proxy/proxy.h"
#include "fake_net.h"

enum { ROUNDS = 2000, GATHER_BYTES = 512, CHANNELS = 32, LATE_ROUNDS = 50 };

static struct device_comm *comms[2];
static struct proxy_comm *proxies[2];
static struct device_net_end ends[2]; /* 0: the sender's */

static void check(ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "proxy_bench: %s: %s\n", what, log_last_error());
  exit(1);
}

static void failed(void *argument, ncclResult_t code, const char *text) {
  (void)argument;
  check(code, text);
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void idle(const char *what, double seconds) {
  usleep(200000);
  const double before = cpu_seconds();
  usleep((useconds_t)(seconds * 1e6));
  printf("%-40s %6.3f %% of a core\n", what, 100 * (cpu_seconds() - before) / seconds);
}

static struct plan_limits limits;

static void open_rank(uint32_t rank, const struct net_ops *net, uint32_t device_count) {
  const struct device_comm_config config = {1, rank, 2, rank, limits, "bench"};
  check(emu_backend()->device->comm_open(&config, &comms[rank]), "comm_open");
  const struct proxy_comm_call call = {.ops = emu_backend(),
                                       .device_comm = comms[rank],
                                       .comm_key = 9,
                                       .rank = rank,
                                       .rank_count = 2,
                                       .name = "bench",
                                       .failed = failed,
                                       .net = net,
                                       .net_device_count = device_count};
  check(proxy_comm_open(&call, &proxies[rank]), "proxy_comm_open");
}

static void close_ranks(void) {
  for (uint32_t rank = 0; rank < 2; rank++) {
    proxy_comm_close(proxies[rank]);
    emu_backend()->device->comm_close(comms[rank]);
  }
}

static struct proxy_ops *ops_of(uint32_t rank, struct work *work) {
  static const uint8_t remote[2] = {1, 1};
  struct plan_batch batch = {0, 0, 1};
  struct plan_buffers buffers = {NULL, NULL};
  struct plan plan = {.rank = rank,
                      .rank_count = 2,
                      .work_count = 1,
                      .batch_count = 1,
                      .works = work,
                      .buffers = &buffers,
                      .batches = &batch,
                      .limits = limits};
  struct proxy_ops *ops;
  work->algo = ALGO_RING;
  work->proto = PROTO_SIMPLE;
  work->element_bytes = work->chunk_steps = work->slice_steps = 1;
  work->rank = rank;
  work->rank_count = 2;
  work->part_count = work->chunk_count = work->last_chunk_count = work->count;
  work->send_peer[0] = work->recv_peer[0] = 1 - rank;
  check(proxy_ops_create(proxies[rank], &plan, remote, &ops), "proxy_ops_create");
  return ops;
}

static struct proxy_ops *message_of(uint32_t rank) {
  struct work work;
  memset(&work, 0, sizeof work);
  work.func = rank == 0 ? FUNC_SEND : FUNC_RECV;
  work.send_count = rank == 0;
  work.recv_count = rank == 1;
  work.conn_index = CONN_MESSAGE;
  work.count = 8;
  return ops_of(rank, &work);
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* Plays the kernels' part: tail at one end, head at the other. Steps of messages begin after `slots`. */
static void messages(void) {
  static double times[ROUNDS];
  struct proxy_ops *ops[2] = {message_of(0), message_of(1)};
  for (uint64_t i = 0; i < ROUNDS; i++) {
    const uint64_t begin = os_time_ns(), step = ends[0].slots + i + 1;
    proxy_ops_post(ops[0]);
    proxy_ops_post(ops[1]);
    __atomic_store_n(ends[0].tail, step, __ATOMIC_RELEASE);
    while (__atomic_load_n(ends[1].tail, __ATOMIC_ACQUIRE) != step) os_yield();
    times[i] = (double)(os_time_ns() - begin) * 1e-3;
    __atomic_store_n(ends[1].head, step, __ATOMIC_RELEASE);
    while (!proxy_comm_idle(proxies[0]) || !proxy_comm_idle(proxies[1])) os_yield();
  }
  qsort(times, ROUNDS, sizeof times[0], compare);
  printf("%-40s %6.2f us (median of %d)\n", "a message of 8 bytes, post to tail", times[ROUNDS / 2], ROUNDS);
  proxy_ops_free(ops[0]);
  proxy_ops_free(ops[1]);
}

/* A message is launched behind another kernel, which ends after `wait_ms`: from the first store of its own
 * kernel to the receiver's tail. The message before it was number `before`. */
static void late_kernel(uint32_t wait_ms, uint64_t before) {
  static double times[LATE_ROUNDS];
  struct proxy_ops *ops[2] = {message_of(0), message_of(1)};
  double waited = 0, used = 0;
  for (uint64_t i = 0; i < LATE_ROUNDS; i++) {
    const uint64_t step = ends[0].slots + before + i + 1, launched = os_time_ns();
    const double used_before = cpu_seconds();
    proxy_ops_post(ops[0]);
    proxy_ops_post(ops[1]);
    usleep(wait_ms * 1000 + (useconds_t)(i * 37 % 1000)); /* not in step with the naps */
    used += cpu_seconds() - used_before;
    const uint64_t begin = os_time_ns();
    waited += (double)(begin - launched) * 1e-9;
    __atomic_store_n(ends[0].tail, step, __ATOMIC_RELEASE);
    while (__atomic_load_n(ends[1].tail, __ATOMIC_ACQUIRE) != step) continue;
    times[i] = (double)(os_time_ns() - begin) * 1e-3;
    __atomic_store_n(ends[1].head, step, __ATOMIC_RELEASE);
    while (!proxy_comm_idle(proxies[0]) || !proxy_comm_idle(proxies[1])) os_yield();
  }
  qsort(times, LATE_ROUNDS, sizeof times[0], compare);
  printf(
      "a kernel that begins %4u ms later: %7.1f us to tail (median of %d), %7.1f us the ninth tenth; "
      "%5.2f %% of a core\n",
      wait_ms, times[LATE_ROUNDS / 2], LATE_ROUNDS, times[LATE_ROUNDS * 9 / 10], 100 * used / waited);
  proxy_ops_free(ops[0]);
  proxy_ops_free(ops[1]);
}

/* ---- all-gathers over sockets ---- */

static struct device_net_end gather_ends[2][2]; /* of channel 0, by rank; 0: the sender's */

static void gather_connect(uint32_t channel, uint32_t receiver) {
  struct device_net_end ends_made[2];
  const uint32_t sender = 1 - receiver;
  const struct device_conn_name in = {sender, channel, 0, PROTO_SIMPLE, false, false};
  const struct device_conn_name out = {receiver, channel, 0, PROTO_SIMPLE, true, false};
  struct net_handle handle;
  check(proxy_receive_open(proxies[receiver], &in, &handle), "receive_open");
  check(emu_backend()->network->conn_net(comms[receiver], &in, &ends_made[1]), "conn_net");
  check(proxy_send_open(proxies[sender], &out, &handle), "send_open");
  check(emu_backend()->network->conn_net(comms[sender], &out, &ends_made[0]), "conn_net");
  if (channel != 0) return;
  gather_ends[sender][0] = ends_made[0];
  gather_ends[receiver][1] = ends_made[1];
}

/* For both ranks, as a launch does it. */
static void gathers_launch(void) {
  static const uint32_t ring[2] = {0, 1};
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct work work;
    memset(&work, 0, sizeof work);
    work.func = FUNC_ALL_GATHER;
    work.send_count = work.recv_count = 1;
    work.ring_ranks = ring;
    work.ring_index = rank;
    work.count = GATHER_BYTES;
    struct proxy_ops *ops = ops_of(rank, &work);
    proxy_ops_post(ops);
    proxy_ops_free(ops);
  }
}

static void gathers_carry(uint64_t step) {
  for (uint32_t rank = 0; rank < 2; rank++)
    __atomic_store_n(gather_ends[rank][0].tail, step, __ATOMIC_RELEASE);
  for (uint32_t rank = 0; rank < 2; rank++)
    while (__atomic_load_n(gather_ends[rank][1].tail, __ATOMIC_ACQUIRE) < step) continue;
}

static void gathers_read(uint64_t step) {
  for (uint32_t rank = 0; rank < 2; rank++)
    __atomic_store_n(gather_ends[rank][1].head, step, __ATOMIC_RELEASE);
}

static void gathers(uint32_t channel_count) {
  static double launch_times[ROUNDS], carry_times[ROUNDS];
  for (uint32_t channel = 0; channel < channel_count; channel++)
    for (uint32_t receiver = 0; receiver < 2; receiver++) gather_connect(channel, receiver);
  gathers_launch();
  for (uint64_t i = 0; i < ROUNDS; i++) {
    const uint64_t begin = os_time_ns();
    gathers_launch(); /* the next one */
    const uint64_t launched = os_time_ns();
    gathers_carry(i + 1);
    carry_times[i] = (double)(os_time_ns() - launched) * 1e-3;
    launch_times[i] = (double)(launched - begin) * 1e-3 / 2;
    gathers_read(i + 1);
  }
  gathers_carry(ROUNDS + 1);
  gathers_read(ROUNDS + 1);
  for (uint32_t rank = 0; rank < 2; rank++)
    while (!proxy_comm_idle(proxies[rank])) os_yield();
  qsort(launch_times, ROUNDS, sizeof launch_times[0], compare);
  qsort(carry_times, ROUNDS, sizeof carry_times[0], compare);
  printf(
      "over sockets, %2u connections a rank         %6.2f us to launch, %6.2f us from tail to tail, both "
      "ways\n",
      2 * channel_count, launch_times[ROUNDS / 2], carry_times[ROUNDS / 2]);
}

static void over_sockets(uint32_t channel_count) {
  uint32_t device_count = 0;
  check(socket_net_ops()->devices(&device_count), "devices");
  for (uint32_t rank = 0; rank < 2; rank++) open_rank(rank, socket_net_ops(), device_count);
  gathers(channel_count);
  close_ranks();
}

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 3;
  const struct fake_options options = {.seed = 1};
  struct device_conn_name name = {0, 0, CONN_MESSAGE, PROTO_SIMPLE, false, false};
  struct net_handle handle;
  setenv("TUTTI_EMU", "mode=threads", 1);
  fake_net_reset(&options);
  check(emu_backend()->device->limits(&limits), "limits");
  plan_limits_reserve(&limits);
  for (uint32_t rank = 0; rank < 2; rank++) open_rank(rank, fake_net_ops(), 1);
  idle("no connection", seconds);
  check(proxy_receive_open(proxies[1], &name, &handle), "receive_open");
  check(emu_backend()->network->conn_net(comms[1], &name, &ends[1]), "conn_net");
  idle("a connection that waits for its sender", seconds);
  name.peer = 1;
  name.sends = true;
  check(proxy_send_open(proxies[0], &name, &handle), "send_open");
  check(emu_backend()->network->conn_net(comms[0], &name, &ends[0]), "conn_net");
  messages();
  late_kernel(10, ROUNDS);
  late_kernel(40, ROUNDS + LATE_ROUNDS);
  late_kernel(200, ROUNDS + 2 * LATE_ROUNDS);
  late_kernel(1000, ROUNDS + 3 * LATE_ROUNDS);
  idle("a connection without an operation", seconds);
  close_ranks();
  over_sockets(1);
  over_sockets(CHANNELS);
  return 0;
}
