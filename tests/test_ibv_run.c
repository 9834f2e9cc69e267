/* test_ibv_run.c: operations of four ranks on two emulated nodes whose proxies use the ibv network over
 * emulated verbs: plans, kernels, proxies, that network and its queue pairs in one process. By seeds; right
 * results, or an error that names the queue pair. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "backends/net.h"
#include "base/hash.h"
#include "base/param.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"
#include "tutti.h"
#include "verbs_fake.h"

enum { RANKS = 4, COUNT = 4096, ROUNDS = 3, SEEDS = 30 };

enum { SUM, ALL_TO_ALL, GATHER, BROADCAST };

struct group {
  ncclComm_t comms[RANKS];
  void *registered[2 * RANKS];
  cudaStream_t streams[RANKS];
  int *data[RANKS], *out[RANKS];
  bool offered; /* both buffers come from ncclMemAlloc */
};

static int host[COUNT * RANKS];

static bool ll; /* collectives over LL, which use the proxies' own memory */
static const char *const tiny = "devices=4,nodes=2,net=1,slots=4,chunk=256";

static void world_open(const struct fake_verbs_options *options, const char *emu) {
  uint32_t count = 0;
  tutti_emu_config_t config;
  assert_int_equal(ibv_net_ops()->finish(), ncclSuccess);
  fake_verbs_reset(options);
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.seed = options->seed;
  setenv("TUTTI_EMU", emu, 1);
  setenv("NCCL_NET", "IB", 1);
  setenv("NCCL_ALGO", emu == tiny ? "" : "Ring", 1);
  setenv("NCCL_PROTO", emu == tiny || ll ? "" : "Simple", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  param_reset();
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_int_equal(ibv_net_ops()->devices(&count), ncclSuccess);
  assert_int_equal(count, 1);
}

static void group_fill(struct group *group, int rank) {
  for (int i = 0; i < COUNT * RANKS; i++) host[i] = i * 7 + rank * 1000;
  assert_int_equal(cudaMemcpy(group->data[rank], host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
}

static void memory_alloc(const struct group *group, int **memory) {
  if (group->offered) assert_int_equal(ncclMemAlloc((void **)memory, sizeof host), ncclSuccess);
  else assert_int_equal(cudaMalloc((void **)memory, sizeof host), cudaSuccess);
}

static void memory_free(const struct group *group, int *memory) {
  if (group->offered) assert_int_equal(ncclMemFree(memory), ncclSuccess);
  else cudaFree(memory);
}

static void group_open_with(struct group *group, bool offered) {
  group->offered = offered;
  assert_int_equal(ncclCommInitAll(group->comms, RANKS, NULL), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(cudaSetDevice(rank), cudaSuccess);
    assert_int_equal(cudaStreamCreate(&group->streams[rank]), cudaSuccess);
    memory_alloc(group, &group->data[rank]);
    memory_alloc(group, &group->out[rank]);
    group_fill(group, rank);
  }
}

static void group_open(struct group *group) { group_open_with(group, false); }

static void group_close(struct group *group, bool failed) {
  for (int rank = 0; rank < RANKS; rank++) {
    if (failed) ncclCommAbort(group->comms[rank]);
    else assert_int_equal(ncclCommDestroy(group->comms[rank]), ncclSuccess);
  }
  for (int rank = 0; rank < RANKS; rank++) {
    cudaSetDevice(rank);
    cudaStreamDestroy(group->streams[rank]);
    memory_free(group, group->data[rank]);
    memory_free(group, group->out[rank]);
  }
}

static void call(struct group *group, int rank, int what) {
  int *data = group->data[rank], *out = group->out[rank];
  const ncclComm_t comm = group->comms[rank];
  const cudaStream_t stream = group->streams[rank];
  switch (what) {
    case SUM: ncclAllReduce(data, out, COUNT * RANKS, ncclInt, ncclSum, comm, stream); break;
    case ALL_TO_ALL: ncclAlltoAll(data, out, COUNT, ncclInt, comm, stream); break;
    case GATHER: ncclAllGather(data, out, COUNT, ncclInt, comm, stream); break;
    default: ncclBroadcast(data, out, COUNT * RANKS, ncclInt, 1, comm, stream);
  }
}

static void round_begin(struct group *group, int what) {
  for (int rank = 0; rank < RANKS; rank++) group_fill(group, rank);
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++) call(group, rank, what);
  assert_int_equal(ncclGroupEnd(), ncclSuccess);
}

/* True if all have ended without an error. A rank may reuse its send buffer when its own kernel has ended,
 * whatever the others do. */
static bool round_end(struct group *group) {
  bool good = true;
  for (int rank = 0; rank < RANKS; rank++) {
    ncclResult_t result = ncclSuccess;
    cudaSetDevice(rank);
    good = cudaStreamSynchronize(group->streams[rank]) == cudaSuccess && good;
    cudaMemset(group->data[rank], 0x55, sizeof host);
    cudaDeviceSynchronize(); /* another device's copy fills it next */
    good = ncclCommGetAsyncError(group->comms[rank], &result) == ncclSuccess && result == ncclSuccess && good;
  }
  return good;
}

static int wanted(int what, int rank, int i) {
  const int from = i / COUNT;
  switch (what) {
    case SUM: return RANKS * i * 7 + 1000 * (RANKS * (RANKS - 1) / 2);
    case ALL_TO_ALL: return (rank * COUNT + i % COUNT) * 7 + from * 1000;
    case GATHER: return i % COUNT * 7 + from * 1000;
    default: return i * 7 + 1000;
  }
}

static void round_check(struct group *group, int what) {
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(cudaMemcpy(host, group->out[rank], sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < COUNT * RANKS; i++) assert_int_equal(host[i], wanted(what, rank, i));
    assert_int_equal(cudaMemset(group->out[rank], 0xcc, sizeof host), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess); /* ncclMemFree does not wait for the memset */
  }
}

/* False if a fault has ended it. */
static bool run(const struct fake_verbs_options *options) {
  struct group group;
  bool good = true;
  world_open(options, tiny);
  group_open(&group);
  for (int round = 0; round < ROUNDS && good; round++) {
    round_begin(&group, round % 2);
    good = round_end(&group);
    if (good) round_check(&group, round % 2);
  }
  if (!good) {
    const char *why = ncclGetLastError(group.comms[0]);
    if (strstr(why, "Network IB") == NULL) fail_msg("seed %llu: %s", (unsigned long long)options->seed, why);
  }
  assert_true(fake_verbs_stats().notifications > 0);
  group_close(&group, !good);
  assert_int_equal(fake_verbs_stats().qps + fake_verbs_stats().memories, 0);
  return good;
}

/* ---- registered memory */

static void memory_register(struct group *group, bool on) {
  for (int rank = 0; rank < RANKS; rank++)
    for (int k = 0; k < 2; k++) {
      int *memory = k == 0 ? group->data[rank] : group->out[rank];
      void **handle = &group->registered[rank * 2 + k];
      if (on)
        assert_int_equal(ncclCommRegister(group->comms[rank], memory, sizeof host, handle), ncclSuccess);
      else assert_int_equal(ncclCommDeregister(group->comms[rank], *handle), ncclSuccess);
    }
}

static struct proxy_bytes bytes_moved(const struct group *group) {
  struct proxy_bytes sum = {0, 0, 0, 0};
  for (int rank = 0; rank < RANKS; rank++) {
    const struct proxy_bytes bytes = proxy_comm_bytes(group->comms[rank]->shared->remote->proxies[rank]);
    sum.sent_direct += bytes.sent_direct;
    sum.sent_staged += bytes.sent_staged;
    sum.received_direct += bytes.received_direct;
    sum.received_staged += bytes.received_staged;
  }
  return sum;
}

/* The program frees memory of ncclMemAlloc while its communicators continue, and allocates other memory. */
static void memory_change(struct group *group) {
  const uint32_t before = fake_verbs_stats().memories;
  for (int rank = 0; rank < RANKS; rank++) {
    memory_free(group, group->data[rank]);
    memory_free(group, group->out[rank]);
  }
  assert_true(fake_verbs_stats().memories < before);
  group->offered = false;
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(cudaSetDevice(rank), cudaSuccess);
    memory_alloc(group, &group->data[rank]);
    memory_alloc(group, &group->out[rank]);
  }
}

/* Each kind of operation with registered memory, or with memory of ncclMemAlloc, then without; data that can
 * skip the slots must skip them. */
static void registered(const char *emu, uint64_t seed, bool offered) {
  struct fake_verbs_options options = {.seed = seed, .devices = 1 + seed % 2, .ports = 1};
  struct group group;
  options.one_nic = true;
  options.delay_most = seed % 9;
  options.not_ready = seed % 20;
  options.fault = seed % 3 == 0 ? VERBS_LOSES : VERBS_SOUND;
  world_open(&options, emu);
  group_open_with(&group, offered);
  for (int round = 0; round < 2; round++) {
    for (int what = SUM; what <= BROADCAST; what++) {
      if (round == 0 && !offered) memory_register(&group, true);
      const struct proxy_bytes before = bytes_moved(&group);
      round_begin(&group, what);
      assert_true(round_end(&group));
      round_check(&group, what);
      const struct proxy_bytes after = bytes_moved(&group);
      if (round == 0 && !offered) memory_register(&group, false);
      assert_int_equal(after.sent_direct - before.sent_direct > 0, round == 0);
      assert_int_equal(after.received_direct - before.received_direct > 0, round == 0);
      if (round > 0 || what == SUM) continue;
      assert_int_equal(after.sent_staged, before.sent_staged);
      assert_int_equal(after.received_staged, before.received_staged);
    }
    if (round == 0 && offered) memory_change(&group);
  }
  group_close(&group, false);
  assert_int_equal(fake_verbs_stats().qps + fake_verbs_stats().memories, 0);
}

/* A connection that was never ready is not reconnected. */
static void never_ready_check(const struct group *group, uint64_t seed) {
  const char *why = ncclGetLastError(group->comms[0]);
  if (strstr(why, "the test of the path") == NULL && strstr(why, "no answer in") == NULL)
    fail_msg("seed %llu: %s", (unsigned long long)seed, why);
}

/* Queue pairs that fail during transfers of registered memory are reconnected: every result is right, even if
 * the other end has already received everything and is idle. */
static void test_reconnect(void **state) {
  uint32_t ended = 0;
  (void)state;
  setenv("TUTTI_IB_RECONNECT", "4", 1);
  setenv("TUTTI_PEER_TIMEOUT_SECONDS", "20", 1); /* for an end that notices nothing */
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    struct fake_verbs_options options = {.seed = seed, .devices = 1, .ports = 1};
    options.delay_most = seed % 5 * 20 + 3;
    struct group group;
    bool good = true;
    options.fault = (enum fake_verbs_fault)(VERBS_QP_FATAL + seed % 3);
    options.fault_at = 30 + hash_scramble(seed) % 100;
    world_open(&options, seed % 4 != 0 ? "devices=4,nodes=2,net=1,slots=4,chunk=32K,channels=1"
                                       : "devices=4,nodes=2,net=1,mode=threads,slots=4,chunk=32K,channels=1");
    group_open(&group);
    if (seed % 3 != 0) memory_register(&group, true);
    for (int what = SUM; what <= BROADCAST && good; what++) {
      round_begin(&group, what);
      good = round_end(&group);
      if (good) round_check(&group, what);
    }
    if (!good) never_ready_check(&group, seed);
    ended += !good;
    group_close(&group, !good);
    assert_int_equal(fake_verbs_stats().qps + fake_verbs_stats().memories, 0);
  }
  unsetenv("TUTTI_IB_RECONNECT");
  unsetenv("TUTTI_PEER_TIMEOUT_SECONDS");
  print_message("%u of %d ended by a fault\n", ended, SEEDS);
  assert_true(ended < SEEDS / 4);
}

static void test_registered(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS / 2; seed++) {
    registered(seed % 2 == 0 ? "devices=4,nodes=2,net=1,slots=4,chunk=32K,channels=1"
                             : "devices=4,nodes=2,net=1,slots=2,chunk=32K,channels=1,lag=50",
               seed, seed % 4 > 1);
    if (seed % 3 == 0)
      registered("devices=4,nodes=2,net=1,mode=threads,slots=4,chunk=32K,channels=1", seed, seed % 6 == 0);
  }
}

static void suspend_all(const struct group *group, bool resumes) {
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++)
    assert_int_equal(
        resumes ? ncclCommResume(group->comms[rank]) : ncclCommSuspend(group->comms[rank], NCCL_SUSPEND_MEM),
        ncclSuccess);
  assert_int_equal(ncclGroupEnd(), ncclSuccess);
}

/* A suspended communicator has no queue pairs, and no memory registered with NICs; what its program has
 * registered is registered with those of its new connections, and skips the slots as before. */
static void suspended(const char *emu, uint64_t seed) {
  struct fake_verbs_options options = {.seed = seed, .devices = 1, .ports = 1};
  struct group group;
  world_open(&options, emu);
  group_open(&group);
  memory_register(&group, true);
  for (int round = 0; round < 3; round++) {
    for (int what = SUM; what <= BROADCAST; what++) {
      const struct proxy_bytes before = bytes_moved(&group);
      round_begin(&group, what);
      assert_true(round_end(&group));
      round_check(&group, what);
      assert_true(bytes_moved(&group).sent_direct > before.sent_direct);
    }
    assert_true(fake_verbs_stats().qps > 0 && fake_verbs_stats().memories > 0);
    suspend_all(&group, false);
    assert_int_equal(fake_verbs_stats().qps + fake_verbs_stats().memories, 0);
    suspend_all(&group, true);
  }
  memory_register(&group, false);
  group_close(&group, false);
}

static void test_suspended(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 8; seed++)
    suspended(seed % 2 == 0 ? "devices=4,nodes=2,net=1,slots=4,chunk=32K,channels=1"
                            : "devices=4,nodes=2,net=1,mode=threads,slots=4,chunk=32K,channels=1",
              seed);
}

/* Faults while NICs read and write users' memory: right results, or an error with the reason; and nothing is
 * written after the kernel has ended. */
static void test_registered_faults(void **state) {
  uint32_t ended = 0;
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    struct fake_verbs_options options = {.seed = seed, .devices = 1, .ports = 1, .delay_most = 3};
    struct group group;
    bool good = true;
    options.fault = (enum fake_verbs_fault)(VERBS_QP_FATAL + seed % 3);
    options.fault_at = 60 + hash_scramble(seed) % 100;
    world_open(&options, "devices=4,nodes=2,net=1,slots=4,chunk=32K,channels=1");
    group_open(&group);
    memory_register(&group, true);
    for (int what = SUM; what <= BROADCAST && good; what++) {
      round_begin(&group, what);
      good = round_end(&group);
      if (good) round_check(&group, what);
    }
    if (!good) {
      const char *why = ncclGetLastError(group.comms[0]);
      if (strstr(why, "Network IB") == NULL) fail_msg("seed %llu: %s", (unsigned long long)seed, why);
    }
    ended += !good;
    group_close(&group, !good);
    assert_int_equal(fake_verbs_stats().qps + fake_verbs_stats().memories, 0);
  }
  print_message("%u of %d ended by a fault\n", ended, SEEDS);
  assert_true(ended > 0);
}

static int setup(void **state) {
  (void)state;
  verbs_replace(fake_verbs());
  return 0;
}

static int teardown(void **state) {
  (void)state;
  return ibv_net_ops()->finish() == ncclSuccess ? 0 : -1;
}

static void test_sound(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    struct fake_verbs_options options = {.seed = seed, .ports = 1, .delay_most = seed % 9};
    options.devices = 1 + seed % 2; /* ports of one NIC: always one device per process */
    options.one_nic = true;
    options.not_ready = seed % 20;
    options.fault = seed % 3 == 0 ? VERBS_LOSES : VERBS_SOUND;
    assert_true(run(&options));
  }
}

static void test_faults(void **state) {
  uint32_t ended = 0;
  (void)state;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    struct fake_verbs_options options = {.seed = seed, .devices = 1, .ports = 1, .delay_most = 3};
    options.fault = (enum fake_verbs_fault)(VERBS_QP_FATAL + seed % 4);
    options.fault_at = 100 + hash_scramble(seed) % 300;
    ended += !run(&options);
  }
  print_message("%u of %d ended by a fault\n", ended, SEEDS);
  assert_true(ended > SEEDS / 2);
}

/* Slots in device memory, by DMA-BUF: data that a network writes there is visible only after a flush. All
 * kinds of operations, with small and large slots, without faults and with reconnected queue pairs; also
 * registered memory. */
static void test_device_slots(void **state) {
  static const char *const worlds[] = {"devices=4,nodes=2,net=1,slots=4,chunk=256",
                                       "devices=4,nodes=2,net=1,slots=4,chunk=32K,channels=1",
                                       "devices=4,nodes=2,net=1,mode=threads,slots=2,chunk=4K"};
  uint32_t ended = 0;
  (void)state;
  setenv("TUTTI_NET_DEVICE_SLOTS", "1", 1);
  setenv("TUTTI_IB_RECONNECT", "4", 1);
  for (uint64_t seed = 0; seed < SEEDS / 2; seed++) {
    struct fake_verbs_options options = {.seed = seed, .ports = 1, .delay_most = seed % 9, .gpus = true};
    struct group group;
    options.devices = 1 + seed % 2;
    options.one_nic = true;
    options.fault = seed % 4 == 0 ? VERBS_LOSES : seed % 4 == 1 ? VERBS_QP_STOPS : VERBS_SOUND;
    options.fault_at = 100 + hash_scramble(seed) % 100;
    ll = seed % 2 != 0;
    world_open(&options, worlds[seed % 3]);
    group_open(&group);
    if (seed % 5 == 0) memory_register(&group, true);
    bool good = true;
    for (int what = SUM; what <= BROADCAST && good; what++) {
      round_begin(&group, what);
      good = round_end(&group);
      if (good) round_check(&group, what);
    }
    if (!good) never_ready_check(&group, seed);
    ended += !good;
    assert_true(fake_verbs_stats().flushes > 0);
    assert_int_equal(bytes_moved(&group).received_direct, 0);
    group_close(&group, !good);
    assert_int_equal(fake_verbs_stats().qps + fake_verbs_stats().memories, 0);
  }
  ll = false;
  const struct fake_verbs_options options = {.seed = 1, .devices = 1, .ports = 1, .gpus = true};
  struct group group;
  setenv("NCCL_NET_GDR_LEVEL", "LOC", 1);
  world_open(&options, worlds[0]);
  group_open(&group);
  round_begin(&group, SUM);
  assert_true(round_end(&group));
  round_check(&group, SUM);
  assert_int_equal(fake_verbs_stats().flushes, 0); /* in the host's memory */
  group_close(&group, false);
  unsetenv("NCCL_NET_GDR_LEVEL");
  unsetenv("TUTTI_NET_DEVICE_SLOTS");
  unsetenv("TUTTI_IB_RECONNECT");
  assert_true(ended < SEEDS / 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_sound, setup, teardown),
      cmocka_unit_test_setup_teardown(test_faults, setup, teardown),
      cmocka_unit_test_setup_teardown(test_registered, setup, teardown),
      cmocka_unit_test_setup_teardown(test_suspended, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reconnect, setup, teardown),
      cmocka_unit_test_setup_teardown(test_device_slots, setup, teardown),
      cmocka_unit_test_setup_teardown(test_registered_faults, setup, teardown)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
