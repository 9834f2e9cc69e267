/* proxy.c: what the proxies' engine costs when nothing is to be carried, and how long a small message takes:
 * two ranks of threads mode and a network within the process. Prints the share of a core that the process
 * uses while it sleeps for SECONDS with no connection, with one that waits for its sender, with one that is
 * made and has carried messages; and the median of sends to and fro of 8 bytes, in microseconds.
 * From the repository's root, behind a build with its tests:
 *
 *   gcc -O2 -D_GNU_SOURCE -Ilib -Ilib/backends/emu -Ilib/backends/emu/include -Itests -o proxy_bench
 *     bench/proxy.c tests/fake_net.c build/obj/libtutti_all.a -lexpat -lnettle -pthread -ldl -lm
 *   proxy_bench SECONDS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/emu/block.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/proxy/proxy.h"
#include "fake_net.h"

enum { ROUNDS = 2000 };

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

static void open_rank(uint32_t rank) {
  const struct device_comm_config config = {1, rank, 2, rank, limits, "bench"};
  check(emu_device_ops()->comm_open(&config, &comms[rank]), "comm_open");
  const struct proxy_comm_call call = {.ops = emu_device_ops(),
                                       .device_comm = comms[rank],
                                       .comm_key = 9,
                                       .rank = rank,
                                       .rank_count = 2,
                                       .name = "bench",
                                       .failed = failed,
                                       .net = fake_net_ops(),
                                       .net_device_count = 1};
  check(proxy_comm_open(&call, &proxies[rank]), "proxy_comm_open");
}

static struct proxy_ops *ops_of(uint32_t rank) {
  static const uint8_t remote[2] = {1, 1};
  struct work work;
  struct plan_batch batch = {0, 0, 1};
  struct plan_buffers buffers = {NULL, NULL};
  struct plan plan = {.rank = rank,
                      .rank_count = 2,
                      .work_count = 1,
                      .batch_count = 1,
                      .works = &work,
                      .buffers = &buffers,
                      .batches = &batch,
                      .limits = limits};
  struct proxy_ops *ops;
  memset(&work, 0, sizeof work);
  work.func = rank == 0 ? FUNC_SEND : FUNC_RECV;
  work.algo = ALGO_RING;
  work.proto = PROTO_SIMPLE;
  work.element_bytes = work.chunk_steps = work.slice_steps = 1;
  work.rank = rank;
  work.rank_count = 2;
  work.send_count = rank == 0;
  work.recv_count = rank == 1;
  work.conn_index = CONN_MESSAGE;
  work.count = work.part_count = work.chunk_count = 8;
  work.send_peer[0] = work.recv_peer[0] = 1 - rank;
  check(proxy_ops_create(proxies[rank], &plan, remote, &ops), "proxy_ops_create");
  return ops;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* The kernels' part is played here: tail at one end, head at the other. */
static void messages(void) {
  static double times[ROUNDS];
  struct proxy_ops *ops[2] = {ops_of(0), ops_of(1)};
  for (uint64_t i = 0; i < ROUNDS; i++) {
    const uint64_t begin = os_time_ns();
    proxy_ops_post(ops[0]);
    proxy_ops_post(ops[1]);
    __atomic_store_n(ends[0].tail, i + 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(ends[1].tail, __ATOMIC_ACQUIRE) != i + 1) os_yield();
    times[i] = (double)(os_time_ns() - begin) * 1e-3;
    __atomic_store_n(ends[1].head, i + 1, __ATOMIC_RELEASE);
    while (!proxy_comm_idle(proxies[0]) || !proxy_comm_idle(proxies[1])) os_yield();
  }
  qsort(times, ROUNDS, sizeof times[0], compare);
  printf("%-40s %6.2f us (median of %d)\n", "a message of 8 bytes, post to tail", times[ROUNDS / 2], ROUNDS);
  proxy_ops_free(ops[0]);
  proxy_ops_free(ops[1]);
}

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 3;
  const struct fake_options options = {.seed = 1};
  struct device_conn_name name = {0, 0, CONN_MESSAGE, PROTO_SIMPLE, false};
  struct net_handle handle;
  setenv("TUTTI_EMU", "mode=threads", 1);
  fake_net_reset(&options);
  check(emu_device_ops()->device_limits(&limits), "limits");
  proxy_limits(&limits);
  open_rank(0);
  open_rank(1);
  idle("no connection", seconds);
  check(proxy_receive_open(proxies[1], &name, &handle), "receive_open");
  check(emu_device_ops()->conn_net(comms[1], &name, &ends[1]), "conn_net");
  idle("a connection that waits for its sender", seconds);
  name.peer = 1;
  name.sends = true;
  check(proxy_send_open(proxies[0], &name, &handle), "send_open");
  check(emu_device_ops()->conn_net(comms[0], &name, &ends[0]), "conn_net");
  messages();
  idle("a connection without an operation", seconds);
  for (uint32_t rank = 0; rank < 2; rank++) {
    proxy_comm_close(proxies[rank]);
    emu_device_ops()->comm_close(comms[rank]);
  }
  return 0;
}
