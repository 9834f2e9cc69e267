/* test_proxy.c: the proxy between the emulator's kernels and a network that refuses, delays and splits
 * messages: all ranks are in one process, some of their links use the network. Every operation and algorithm
 * gives exact results, with small buffers, late stores, free threads and replayed graphs; equal seeds make
 * equal events; each failure is reported once, with rank, peer and operation, and nothing leaks. */
/* sanitizers: address thread */
/* runner: tsan 35 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/wake.h"
#include "core/proxy/proxy.h"
#include "core/proxy/proxy_pxn.h"
#include "schedule/transfer.h"
#include "fake_net.h"
#include "ranks.h"
#include "schedule/algo.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { WORLDS = 24 };
#else
enum { WORLDS = 120 };
#endif
/* ThreadSanitizer needs no more than what wraps around in the slots. */
#if defined(__SANITIZE_THREAD__)
enum { SHARING_BYTES = 70000, LARGE_COUNT = 120001 };
#else
enum { SHARING_BYTES = 200000, LARGE_COUNT = 300001 };
#endif
enum { CALLS_MAX = 12, EMU_BYTES = 200 };
#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

static struct {
  struct ranks ranks;
  struct proxy_comm *proxies[RANKS_MAX];
  uint8_t remote[RANKS_MAX][RANKS_MAX]; /* by rank: which peers are behind the network */
  uint32_t failures;
  ncclResult_t failure;
  char failure_text[512];
  uint32_t hooks; /* not released yet */
  uint64_t starts;
  uint64_t first_sequence;  /* of plans, as if they had been cached */
  void *streams[RANKS_MAX]; /* to launch on; NULL: the default stream */
} world;
static const struct net_ops *fake_inside; /* replaces the fake network if set */
static uint32_t net_devices = 2;
static uint8_t pair_proto = PROTO_SIMPLE; /* of calls of two ranks */
static bool via_pxn; /* the rank before the sender sends for it, as another process's PXN proxy */

static uint64_t draw_state;

static uint32_t draw_below(uint32_t bound) { return (uint32_t)(hash_draw(&draw_state) % bound); }

#define DRAW(array) (array)[draw_below(LENGTH(array))]

static void good(ncclResult_t result, const char *what) {
  if (result != ncclSuccess) fail_msg("%s: %s", what, log_last_error());
}

/* ---- the library's connecting and launching, as needed here ---- */

static ncclResult_t pxn_open(struct ranks *ranks, uint32_t sender, const struct device_conn_name *name,
                             const struct net_handle *handle) {
  const struct proxy_over over = {(sender + 1) % ranks->count, sender % net_devices};
  const struct proxy_pxn_call call = {.ops = ranks->ops,
                                      .device_comm = ranks->comms[over.rank],
                                      .comm_key = 77,
                                      .rank = sender,
                                      .over = over.rank,
                                      .rank_count = ranks->count,
                                      .comm_name = "test",
                                      .name = *name,
                                      .handle = *handle,
                                      .net = fake_net_ops(),
                                      .net_device = over.device};
  struct device_conn_handle conn_handle;
  TRY(proxy_pxn_open(&call, &conn_handle));
  TRY(ranks->ops->process->conn_import(ranks->comms[sender], name, &conn_handle));
  return proxy_send_over(world.proxies[sender], name, &over);
}

static ncclResult_t link_open(struct ranks *ranks, const struct work *work, uint32_t peer, bool sends) {
  const uint32_t conn_index = work_link_conn(work, peer, sends);
  const uint32_t sender = sends ? work->rank : peer, receiver = sends ? peer : work->rank;
  if (world.remote[work->rank][peer] == 0 || peer == work->rank)
    return ranks->ops->device->comm_connect(ranks->comms[sender], ranks->comms[receiver], work->channel_index,
                                            conn_index, work->proto);
  struct net_handle handle;
  struct device_conn_name name = {sender, work->channel_index, conn_index, work->proto, false, false};
  TRY(proxy_receive_open(world.proxies[receiver], &name, &handle));
  name.peer = receiver;
  name.sends = true;
  if (via_pxn) return pxn_open(ranks, sender, &name, &handle);
  return proxy_send_open(world.proxies[sender], &name, &handle, proxy_takes_apart(world.proxies[receiver]));
}

static void hook_start(void *argument) {
  __atomic_fetch_add(&world.starts, 1, __ATOMIC_RELAXED);
  proxy_ops_post(*(struct proxy_ops **)argument);
}

static bool hook_turn(void *argument, bool last) {
  return proxy_ops_turn(*(struct proxy_ops **)argument, last);
}

struct hook {
  struct proxy_ops *ops;
  struct launch_hook hook;
};

static void hook_drop(void *argument) {
  struct hook *hook = (struct hook *)argument;
  proxy_ops_free(hook->ops);
  free(hook);
  __atomic_fetch_sub(&world.hooks, 1, __ATOMIC_RELAXED);
}

static ncclResult_t launch(struct ranks *ranks, uint32_t rank, struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    for (uint32_t k = 0; k < work->recv_count; k++) TRY(link_open(ranks, work, work->recv_peer[k], false));
    for (uint32_t k = 0; k < work->send_count; k++) TRY(link_open(ranks, work, work->send_peer[k], true));
  }
  struct hook *hook = (struct hook *)calloc(1, sizeof *hook);
  plan->first_sequence = world.first_sequence;
  TRY(proxy_ops_create(world.proxies[rank], plan, world.remote[rank], &hook->ops));
  hook->hook = (struct launch_hook){hook_start, hook_drop, hook, hook_turn};
  plan->hook = &hook->hook;
  __atomic_fetch_add(&world.hooks, 1, __ATOMIC_RELAXED);
  const device_stream stream = world.streams[rank];
  return ranks->ops->device->launch(ranks->comms[rank], plan, &stream, 1);
}

static void failed(void *argument, ncclResult_t code, const char *text) {
  (void)argument;
  if (world.failures == 0) {
    world.failure = code;
    snprintf(world.failure_text, sizeof world.failure_text, "%s", text);
  }
  world.failures += 1;
  for (uint32_t rank = 0; rank < world.ranks.count; rank++)
    world.ranks.ops->device->comm_abort(world.ranks.comms[rank]);
}

/* ---- worlds ---- */

/* Two ranks with different draws use the network; symmetric. */
static void draw_remote(uint32_t rank_count, uint32_t percent) {
  memset(world.remote, 0, sizeof world.remote);
  for (uint32_t a = 0; a < rank_count; a++)
    for (uint32_t b = 0; b < a; b++) world.remote[a][b] = world.remote[b][a] = draw_below(100) < percent;
}

static void world_open(const char *emu, uint64_t seed, bool threads, uint32_t rank_count) {
  struct plan_limits limits;
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .threads = threads};
  setenv("TUTTI_EMU", emu, 1);
  param_reset();
  good(ranks_configure(&config), emu);
  world.failures = 0;
  world.starts = world.first_sequence = 0;
  good(emu_backend()->device->limits(&limits), emu);
  limits.direct = false;
  plan_limits_reserve(&limits);
  good(ranks_open_bare(&world.ranks, rank_count, &limits), emu);
  world.ranks.launch = launch;
  world.ranks.remote = (const uint8_t(*)[RANKS_MAX])world.remote;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    const struct proxy_comm_call call = {.ops = world.ranks.ops,
                                         .device_comm = world.ranks.comms[rank],
                                         .comm_key = 77,
                                         .rank = rank,
                                         .rank_count = rank_count,
                                         .name = "test",
                                         .failed = failed,
                                         .net = fake_inside != NULL ? fake_inside : fake_net_ops(),
                                         .net_device_count = net_devices};
    good(proxy_comm_open(&call, &world.proxies[rank]), emu);
  }
}

static bool proxies_idle(void *argument) {
  (void)argument;
  for (uint32_t rank = 0; rank < world.ranks.count; rank++)
    if (!proxy_comm_idle(world.proxies[rank])) return false;
  return true;
}

static bool kernels_ended(void *argument) {
  (void)argument;
  for (uint32_t rank = 0; rank < world.ranks.count; rank++)
    if (!world.ranks.ops->device->comm_idle(world.ranks.comms[rank])) return false;
  return true;
}

/* Waits until all kernels have ended; a hang is a failure. */
static ncclResult_t world_wait(void) {
  const ncclResult_t result = world.ranks.ops->device->wait_until(kernels_ended, NULL, 60000);
  if (result == ncclInProgress) fail_msg("nothing moves any more: %s", log_last_error());
  return result != ncclSuccess ? result : ranks_error(&world.ranks);
}

static void world_close(void) {
  for (uint32_t rank = 0; rank < world.ranks.count; rank++) {
    proxy_comm_close(world.proxies[rank]);
    world.proxies[rank] = NULL;
  }
  ranks_close(&world.ranks);
  for (int i = 0; i < 15000 && proxy_pxn_count() != 0; i++) os_sleep_ms(1);
  const struct fake_stats stats = fake_net_stats();
  assert_int_equal(stats.connections_open, 0);
  assert_int_equal(stats.listeners_open, 0);
  assert_int_equal(stats.registrations, 0);
  /* A stream's thread releases its last kernel after the kernel's end. */
  for (int i = 0; i < 15000 && __atomic_load_n(&world.hooks, __ATOMIC_RELAXED) != 0; i++) os_sleep_ms(1);
  assert_int_equal(__atomic_load_n(&world.hooks, __ATOMIC_RELAXED), 0);
}

static int world_drop(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < world.ranks.count; rank++)
    world.ranks.ops->device->comm_abort(world.ranks.comms[rank]);
  for (uint32_t rank = 0; rank < world.ranks.count; rank++) proxy_comm_close(world.proxies[rank]);
  ranks_close(&world.ranks);
  memset(&world, 0, sizeof world);
  fake_inside = NULL;
  net_devices = 2;
  via_pxn = false;
  pair_proto = PROTO_SIMPLE;
  return 0;
}

static void net_reset(uint64_t seed) {
  static const uint32_t pieces[] = {0, 0, 7, 64};
  const struct fake_options options = {
      .seed = seed, .refuse_percent = draw_below(3) * 30, .piece_bytes = DRAW(pieces)};
  fake_net_reset(&options);
}

/* Algorithms and the operations they support. */
static const struct {
  uint8_t algo, func;
} options[] = {
    {ALGO_RING, FUNC_ALL_REDUCE},   {ALGO_RING, FUNC_ALL_GATHER},   {ALGO_RING, FUNC_REDUCE_SCATTER},
    {ALGO_RING, FUNC_BROADCAST},    {ALGO_RING, FUNC_REDUCE},       {ALGO_RING, FUNC_SEND_RECV},
    {ALGO_TREE, FUNC_ALL_REDUCE},   {ALGO_PAT, FUNC_ALL_GATHER},    {ALGO_PAT, FUNC_REDUCE_SCATTER},
    {ALGO_DIRECT, FUNC_ALL_REDUCE}, {ALGO_DIRECT, FUNC_ALL_GATHER}, {ALGO_DIRECT, FUNC_REDUCE_SCATTER},
    {ALGO_DIRECT, FUNC_BROADCAST},  {ALGO_DIRECT, FUNC_REDUCE},     {ALGO_TWO_SHOT, FUNC_ALL_REDUCE},
    {ALGO_NVLS, FUNC_ALL_REDUCE},   {ALGO_NVLS, FUNC_ALL_GATHER},   {ALGO_NVLS, FUNC_REDUCE_SCATTER}};

static bool algo_has_ll(uint8_t algo) {
  const bool carried = algo == ALGO_RING || algo == ALGO_TREE || algo == ALGO_DIRECT || algo == ALGO_TWO_SHOT;
  return carried && !via_pxn;
}

static const uint8_t types[] = {ncclUint8, ncclFloat16, ncclFloat32, ncclInt64, ncclFloat64};

static void call_draw(struct call *call, uint32_t rank_count, uint32_t count_below) {
  memset(call, 0, sizeof *call);
  const uint32_t option = draw_below(LENGTH(options));
  call->func = options[option].func;
  world.ranks.algo_mask = 1u << options[option].algo;
  call->proto = draw_below(2) == 0 && algo_has_ll(options[option].algo) ? PROTO_LL : PROTO_SIMPLE;
  call->dtype = DRAW(types);
  call->in_place = call->func != FUNC_SEND_RECV && draw_below(3) == 0;
  call->root = draw_below(rank_count);
  call->skips = draw_below(rank_count - 1);
  call->count = draw_below(4) == 0 ? draw_below(4) : draw_below(count_below);
}

static void draw_emu(char emu[EMU_BYTES], bool threads) {
  static const char *const rules[] = {"random", "priority", "round_robin"};
  static const uint32_t chunks[] = {16, 40, 480, 4096};
  snprintf(emu, EMU_BYTES,
           "slots=%u,chunk=%u,channels=%u,depth=%u,lag=%u,rule=%s,direct=0,weak=%u,flag_bits=%u",
           2 + draw_below(7), DRAW(chunks), 1 + draw_below(3), 1 + draw_below(4), draw_below(3) * 40,
           DRAW(rules), threads ? 0 : draw_below(2), 5 + draw_below(3));
}

struct outcome {
  uint64_t trace_hash, data_hash, events, messages;
};

static struct outcome world_run(uint64_t seed, bool threads) {
  static struct call calls[CALLS_MAX];
  char emu[EMU_BYTES], text[RANKS_TEXT_BYTES], what[EMU_BYTES + 80];
  struct outcome outcome = {0, 1, 0, 0};
  tutti_emu_stats_t stats = {.size = sizeof stats};
  draw_state = seed;
  const uint32_t rank_count = 2 + draw_below(5);
  draw_emu(emu, threads);
  snprintf(what, sizeof what, "seed %llu, %s, %s", (unsigned long long)seed, threads ? "threads" : "guarded",
           emu);
  draw_remote(rank_count, 30 + draw_below(71));
  net_reset(seed);
  world_open(emu, seed, threads, rank_count);
  for (uint32_t i = 0; i < CALLS_MAX; i++) {
    call_draw(&calls[i], rank_count, 300);
    assert_true(call_prepare(&world.ranks, &calls[i]));
    good(call_launch_all(&world.ranks, &calls[i]), what);
  }
  good(world_wait(), what);
  good(world.ranks.ops->device->wait_until(proxies_idle, NULL, 60000), what);
  if (world.failures > 0) fail_msg("%s: %s", what, world.failure_text);
  for (uint32_t i = 0; i < CALLS_MAX; i++) {
    if (!call_check(&world.ranks, &calls[i], text)) fail_msg("%s: %s", what, text);
    outcome.data_hash = call_hash(&world.ranks, &calls[i], outcome.data_hash);
    call_free(&calls[i]);
  }
  assert_int_equal(tutti_emu_stats(&stats), ncclSuccess);
  assert_int_equal(fake_net_stats().requests, 0);
  outcome.trace_hash = stats.trace_hash;
  outcome.events = stats.events;
  outcome.messages = fake_net_stats().messages;
  world_close();
  return outcome;
}

static void every_option_comes_out_exact(void **state) {
  (void)state;
  const char *only = getenv("TUTTI_TEST_SEED");
  uint64_t messages = 0;
  if (only) world_run(strtoull(only, NULL, 0), false);
  for (uint64_t seed = 1; seed <= WORLDS && !only; seed++) messages += world_run(seed, false).messages;
  assert_true(only || messages > WORLDS * 100);
}

static void every_option_on_threads(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= WORLDS / 4; seed++) world_run(seed, true);
}

static void same_seed_same_events(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 8; seed++) {
    const struct outcome a = world_run(seed, false), b = world_run(seed, false);
    assert_true(a.trace_hash == b.trace_hash);
    assert_true(a.events == b.events);
    assert_true(a.messages == b.messages);
  }
}

static uint64_t memory_of(uint32_t rank) {
  uint64_t bytes = 0;
  good(world.ranks.ops->device->comm_memory(world.ranks.comms[rank], &bytes), "memory");
  return bytes;
}

/* More peers need no more slots: messages with the same slots take turns, also those of kernels that follow
 * each other immediately. */
static void messages_share_slots(void **state) {
  enum { PEERS = 7, TURNS = 3 * PEERS };
  static struct call calls[TURNS];
  char text[RANKS_TEXT_BYTES];
  uint64_t first_bytes = 0;
  (void)state;
  for (uint32_t threads = 0; threads <= 1; threads++) {
    draw_state = 5;
    memset(world.remote, 1, sizeof world.remote);
    net_reset(5);
    world_open("slots=8,chunk=64K,channels=1,direct=0", 5, threads != 0, PEERS + 1);
    const uint64_t set_bytes = 8ull * plan_pool_step_bytes(&world.ranks.limits);
    for (uint32_t i = 0; i < TURNS; i++) {
      calls[i] = (struct call){.func = FUNC_SEND_RECV,
                               .proto = PROTO_SIMPLE,
                               .dtype = ncclUint8,
                               .skips = i % PEERS,
                               .count = SHARING_BYTES};
      assert_true(call_prepare(&world.ranks, &calls[i]));
      good(call_launch_all(&world.ranks, &calls[i]), "launch");
      if (i == 0) first_bytes = memory_of(0);
    }
    assert_in_range(first_bytes, 2 * set_bytes, 3 * set_bytes);
    assert_in_range(memory_of(0), first_bytes, first_bytes + set_bytes);
    good(world_wait(), "wait");
    good(world.ranks.ops->device->wait_until(proxies_idle, NULL, 60000), "proxies");
    if (world.failures > 0) fail_msg("%s", world.failure_text);
    for (uint32_t i = 0; i < TURNS; i++) {
      if (!call_check(&world.ranks, &calls[i], text)) fail_msg("turn %u: %s", i, text);
      call_free(&calls[i]);
    }
    world_close();
  }
}

/* ---- failures ---- */

/* Two ranks over the network, guarded; a call that moves many slices. */
static void pair_open(struct call *call, uint8_t func, const struct fake_options *options, const char *emu) {
  memset(world.remote, 1, sizeof world.remote);
  fake_net_reset(options);
  world_open(emu, options->seed, false, 2);
  *call = (struct call){.func = func, .proto = pair_proto, .dtype = ncclUint8, .count = 1000};
  assert_true(call_prepare(&world.ranks, call));
}

static const char tiny[] = "slots=4,chunk=64,channels=1,direct=0";

static void assert_told(ncclResult_t code, const char *const *parts) {
  assert_in_range(world.failures, 1, world.ranks.count); /* once per rank */
  if (world.failure != code)
    fail_msg("%s instead of %s: %s", err_text(world.failure), err_text(code), world.failure_text);
  for (; *parts != NULL; parts++)
    if (strstr(world.failure_text, *parts) == NULL)
      fail_msg("\"%s\" is not in: %s", *parts, world.failure_text);
}
#define TOLD(code, ...) assert_told(code, (const char *const[]){__VA_ARGS__, NULL})

static void pair_end(struct call *call) {
  world_wait();
  call_free(call);
  world_close();
}

static void faults_are_named(void) {
  static const struct {
    enum fake_fault fault;
    const char *says;
  } faults[] = {
      {FAKE_LOSES, "was lost"}, {FAKE_REPEATS, "an older one was repeated"}, {FAKE_DAMAGES, "is damaged"}};
  for (uint32_t i = 0; i < LENGTH(faults); i++)
    for (uint64_t message = 1; message <= 9; message += 2) {
      struct call call;
      const struct fake_options options = {.seed = 1, .fault = faults[i].fault, .fault_message = message};
      pair_open(&call, FUNC_BROADCAST, &options, tiny);
      world.first_sequence = 30;
      good(call_launch_all(&world.ranks, &call), "launch");
      world_wait();
      TOLD(ncclRemoteError, faults[i].says, "from rank 0", "step", "Broadcast 30", "network fake");
      pair_end(&call);
    }
}

/* LL is checked as strictly: a message is compared before the kernel sees any of it. */
static void a_fault_is_named(void **state) {
  (void)state;
  faults_are_named();
  pair_proto = PROTO_LL;
  faults_are_named();
}

static void sizes_that_differ(uint8_t func) {
  static const size_t counts[][2] = {
      {1000, 900}, {900, 1000}, {1000, 20},   {20, 1000},
      {0, 40},     {40, 39},    {1024, 1088}, {1088, 1024}}; /* all slices of one are full */
  for (uint32_t i = 0; i < LENGTH(counts); i++) {
    struct call call;
    const struct fake_options options = {.seed = i};
    if (func != FUNC_SEND_RECV && counts[i][0] == 0) continue; /* zero bytes: no call to differ from */
    char sent[32], expected[40];
    pair_open(&call, func, &options, tiny);
    good(call_launch(&world.ranks, 0, &call, counts[i][0]), "launch");
    good(call_launch(&world.ranks, 1, &call, counts[i][1]), "launch");
    world_wait();
    snprintf(sent, sizeof sent, "has %zu bytes", counts[i][strstr(world.failure_text, "rank 0 has") == NULL]);
    snprintf(expected, sizeof expected, "expects %zu (",
             counts[i][strstr(world.failure_text, "rank 0 has") != NULL]);
    TOLD(ncclInvalidUsage, "rank 0", "rank 1", "do not agree on operation", sent, expected);
    pair_end(&call);
  }
}

static void sizes_that_differ_are_named(void **state) {
  (void)state;
  sizes_that_differ(FUNC_SEND_RECV);
  pair_proto = PROTO_LL;
  sizes_that_differ(FUNC_SEND_RECV);
  sizes_that_differ(FUNC_BROADCAST);
}

/* Flags wrap around after 32 LL steps. Data that an earlier step left in a slot, and that shorter or empty
 * steps have not overwritten since, is never taken for new data. */
static void no_old_line_counts(void **state) {
  enum { CALLS = 60 };
  static struct call calls[CALLS];
  char text[RANKS_TEXT_BYTES];
  (void)state;
  for (uint64_t seed = 1; seed <= WORLDS / 4; seed++) {
    draw_state = seed;
    memset(world.remote, 1, sizeof world.remote);
    net_reset(seed);
    world_open("slots=4,chunk=64,channels=1,direct=0,flag_bits=5,span=1", seed, seed % 4 == 0, 4);
    for (uint32_t i = 0; i < CALLS; i++) {
      calls[i] = (struct call){.func = seed % 3 == 0 ? FUNC_SEND_RECV : FUNC_ALL_REDUCE,
                               .proto = PROTO_LL,
                               .dtype = ncclUint8,
                               .count = draw_below(4) == 0 ? 50 + draw_below(200) : 1 + draw_below(2)};
      assert_true(call_prepare(&world.ranks, &calls[i]));
      good(call_launch_all(&world.ranks, &calls[i]), "launch");
    }
    good(world_wait(), "wait");
    if (world.failures > 0) fail_msg("%s", world.failure_text);
    for (uint32_t i = 0; i < CALLS; i++) {
      if (!call_check(&world.ranks, &calls[i], text))
        fail_msg("seed %u, call %u: %s", (unsigned)seed, i, text);
      call_free(&calls[i]);
    }
    world_close();
  }
}

/* A connection has slots only for the protocols that its plans have used. */
static void slots_come_with_their_protocol(void **state) {
  (void)state;
  static const uint8_t turns[] = {PROTO_LL, PROTO_LL, PROTO_SIMPLE, PROTO_LL};
  static struct call calls[LENGTH(turns)];
  uint64_t bytes[LENGTH(turns)];
  memset(world.remote, 1, sizeof world.remote);
  net_reset(1);
  world_open("slots=4,chunk=4K,channels=1,direct=0", 1, false, 2);
  for (uint32_t i = 0; i < LENGTH(turns); i++) {
    calls[i] = (struct call){
        .func = FUNC_ALL_REDUCE, .proto = turns[i], .dtype = ncclFloat32, .count = 10000, .in_place = i > 2};
    assert_true(call_prepare(&world.ranks, &calls[i]));
    good(call_launch_all(&world.ranks, &calls[i]), "launch");
    good(world_wait(), "wait");
    bytes[i] = memory_of(0);
  }
  for (uint32_t i = 0; i < LENGTH(turns); i++) {
    char text[RANKS_TEXT_BYTES];
    if (!call_check(&world.ranks, &calls[i], text)) fail_msg("turn %u: %s", i, text);
    call_free(&calls[i]);
  }
  assert_int_equal(bytes[1], bytes[0]);
  assert_true(bytes[2] > bytes[1]);
  assert_int_equal(bytes[3], bytes[2]);
  world_close();
}

/* Messages of both protocols alternate on each connection; also if the first one used LL. LL messages use
 * slots of their connections and none of the rank's shared sets. */
static void messages_change_their_protocol(void **state) {
  enum { PEERS = 3, TURNS = 8 * PEERS };
  static struct call calls[TURNS];
  char text[RANKS_TEXT_BYTES];
  (void)state;
  for (uint64_t seed = 1; seed <= WORLDS / 4; seed++) {
    uint64_t bytes[TURNS];
    draw_state = seed;
    memset(world.remote, 1, sizeof world.remote);
    net_reset(seed);
    world_open("slots=4,chunk=64K,channels=1,direct=0", seed, seed % 4 == 0, PEERS + 1);
    const uint64_t set_bytes = 4ull * plan_pool_step_bytes(&world.ranks.limits);
    for (uint32_t i = 0; i < TURNS; i++) {
      const uint8_t proto = i < 2 * PEERS || draw_below(2) == 0 ? PROTO_LL : PROTO_SIMPLE;
      calls[i] = (struct call){.func = FUNC_SEND_RECV,
                               .proto = proto,
                               .dtype = ncclUint8,
                               .skips = i % PEERS,
                               .count = draw_below(draw_below(2) == 0 ? 20 : 70000)};
      assert_true(call_prepare(&world.ranks, &calls[i]));
      good(call_launch_all(&world.ranks, &calls[i]), "launch");
      bytes[i] = memory_of(0);
    }
    const uint64_t ll_bytes = 4ull * plan_net_ll_bytes(&world.ranks.limits);
    assert_in_range(bytes[PEERS - 1], 2 * PEERS * ll_bytes, 2 * PEERS * (ll_bytes + 8192));
    assert_int_equal(bytes[2 * PEERS - 1], bytes[PEERS - 1]);
    assert_in_range(bytes[TURNS - 1], bytes[PEERS - 1] + 2 * set_bytes, bytes[PEERS - 1] + 3 * set_bytes);
    good(world_wait(), "wait");
    if (world.failures > 0) fail_msg("%s", world.failure_text);
    for (uint32_t i = 0; i < TURNS; i++) {
      if (!call_check(&world.ranks, &calls[i], text))
        fail_msg("seed %u, turn %u: %s", (unsigned)seed, i, text);
      call_free(&calls[i]);
    }
    world_close();
  }
}

/* The k-th call of the network fails, for every k until none does; the message names the connection. */
static void calls_fail(void) {
  uint64_t k = 1, told = 0;
  for (bool more = true; more; k += k < 40 ? 1 : 13) {
    struct call call;
    const struct fake_options options = {.seed = k, .refuse_percent = 20, .fail_call = k};
    pair_open(&call, FUNC_ALL_REDUCE, &options, tiny);
    const ncclResult_t launched = call_launch_all(&world.ranks, &call);
    world_wait();
    more = fake_net_stats().calls >= k;
    if (launched == ncclSuccess && more && world.failures > 0) {
      TOLD(ncclRemoteError, "rank ", "fake", "channel 0", "pulled");
      told += 1;
    }
    if (launched != ncclSuccess) assert_int_equal(launched, ncclRemoteError);
    pair_end(&call);
  }
  assert_true(told > 30);
}

static void every_call_may_fail(void **state) {
  (void)state;
  calls_fail();
  pair_proto = PROTO_LL;
  calls_fail();
}

/* One communicator fails, and another one of the same engine continues. */
static void others_go_on(void **state) {
  (void)state;
  struct call call;
  struct proxy_comm *other;
  const struct fake_options options = {.seed = 5, .fail_call = 60};
  pair_open(&call, FUNC_ALL_REDUCE, &options, tiny);
  const struct proxy_comm_call same = {.ops = world.ranks.ops,
                                       .device_comm = world.ranks.comms[0],
                                       .comm_key = 78,
                                       .rank_count = 2,
                                       .name = "other",
                                       .failed = failed,
                                       .net = fake_net_ops(),
                                       .net_device_count = 2};
  good(proxy_comm_open(&same, &other), "other");
  good(call_launch_all(&world.ranks, &call), "launch");
  world_wait();
  assert_true(world.failures > 0);
  assert_true(proxy_comm_idle(other));
  proxy_comm_close(other);
  pair_end(&call);
}

static void an_abort_leaves_nothing(void **state) {
  uint64_t live = 0; /* blocks: the emulator keeps some between tests */
  (void)state;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    struct call call;
    const struct fake_options options = {.seed = seed, .refuse_percent = 30};
    pair_proto = seed % 2 == 0 ? PROTO_LL : PROTO_SIMPLE;
    pair_open(&call, FUNC_ALL_REDUCE, &options, tiny);
    good(call_launch_all(&world.ranks, &call), "launch");
    for (uint64_t i = 0; i < seed % 5; i++) world.ranks.ops->device->progress();
    for (uint32_t rank = 0; rank < 2; rank++) world.ranks.ops->device->comm_abort(world.ranks.comms[rank]);
    pair_end(&call);
    if (seed <= 5) live = os_alloc_live() > live ? os_alloc_live() : live;
    assert_true(os_alloc_live() <= live);
  }
}

/* A rank that never calls: a deadlock, whose report includes the proxies. */
static void a_wait_within_the_world_is_a_deadlock(void **state) {
  (void)state;
  struct call call;
  const struct fake_options options = {.seed = 1};
  static struct net_ops inside; /* static: connections outlive a failing test */
  inside = *fake_net_ops();
  inside.in_world = true;
  fake_inside = &inside;
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  pair_open(&call, FUNC_ALL_REDUCE, &options, tiny);
  good(call_launch(&world.ranks, 0, &call, call.count), "launch");
  assert_int_equal(world_wait(), ncclRemoteError);
  assert_non_null(strstr(log_last_error(), "proxy of rank 0: connection 0 -> 1 channel 0: posted"));
  assert_non_null(strstr(log_last_error(), "waits for the other rank's data"));
  unsetenv("TUTTI_STALL_SECONDS");
  fake_inside = NULL;
  pair_end(&call);
}

/* Nothing polls in this mode: the events of kernels and other services must be enough. */
static void within_the_world_all_comes_by_wakes(void **state) {
  (void)state;
  static struct net_ops inside; /* static: connections outlive a failing test */
  inside = *fake_net_ops();
  inside.in_world = true;
  fake_inside = &inside;
  for (uint64_t seed = 1; seed <= 10; seed++) {
    struct call call;
    char text[RANKS_TEXT_BYTES];
    const struct fake_options options = {.seed = seed};
    pair_proto = seed % 4 == 1 ? PROTO_LL : PROTO_SIMPLE;
    pair_open(&call, seed % 2 ? FUNC_ALL_REDUCE : FUNC_SEND_RECV, &options,
              "slots=4,chunk=64,channels=1,direct=0,rule=priority"); /* so that the proxies have to wait */
    good(call_launch_all(&world.ranks, &call), "launch");
    good(world_wait(), "wait");
    if (!call_check(&world.ranks, &call, text)) fail_msg("%s", text);
    pair_end(&call);
  }
  fake_inside = NULL;
}

/* The emulated network is a service of the scheduler, or in threads mode progressed by every caller. */
static void over_the_emulators_network(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 24; seed++) {
    struct call call;
    char text[RANKS_TEXT_BYTES];
    uint32_t devices = 0;
    const struct fake_options unused = {.seed = seed};
    const char *emu = "slots=4,chunk=64,channels=2,direct=0,net=1,net_delay=9";
    const tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .threads = seed % 4 == 0};
    memset(world.remote, 1, sizeof world.remote);
    fake_net_reset(&unused);
    setenv("TUTTI_EMU", emu, 1);
    param_reset();
    good(ranks_configure(&config), emu);
    fake_inside = emu_net_ops();
    assert_non_null(fake_inside);
    good(fake_inside->devices(&devices), "devices");
    world_open(emu, seed, seed % 4 == 0, 3);
    call = (struct call){.func = FUNC_ALL_REDUCE, .proto = PROTO_SIMPLE, .dtype = ncclInt64, .count = 90};
    assert_true(call_prepare(&world.ranks, &call));
    good(call_launch_all(&world.ranks, &call), "launch");
    good(world_wait(), "wait");
    good(world.ranks.ops->device->wait_until(proxies_idle, NULL, 60000), "idle");
    if (!call_check(&world.ranks, &call, text)) fail_msg("%s", text);
    call_free(&call);
    world_close();
  }
  fake_inside = NULL;
}

/* ---- both ends know every message ---- */

static void iterators_compare(const struct work *sender, uint32_t send_link, const struct work *receiver,
                              uint32_t recv_link, const struct plan_limits *limits, uint64_t step) {
  struct transfer_iter sends, receives;
  struct transfer sent, received = {0};
  transfer_begin(&sends, sender, send_link, true, step, limits->step_bytes[PROTO_SIMPLE]);
  transfer_begin(&receives, receiver, recv_link, false, step, limits->step_bytes[PROTO_SIMPLE]);
  while (transfer_next(&sends, &sent)) {
    assert_true(transfer_next(&receives, &received));
    assert_true(sent.begin == received.begin && sent.end == received.end);
    assert_true(received.shared ? sent.bytes >= received.bytes : sent.bytes == received.bytes);
    assert_true(sent.agreed_bytes == received.agreed_bytes);
    assert_true(sent.announces == received.announces);
    assert_true(sent.bytes + 32 <= (sent.end - sent.begin) * limits->step_bytes[PROTO_SIMPLE]);
  }
  assert_false(transfer_next(&receives, &received));
  assert_true(sends.link.next_step == receives.link.next_step);
}

/* The work of another plan whose link is the other end of this work's link `link_index`. */
static const struct work *other_end(const struct plan *plan, const struct work *work, uint32_t peer,
                                    uint32_t *link) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *other = &plan->works[i];
    if (other->channel_index != work->channel_index || (other->flags & WORK_PART) != 0) continue;
    if ((work->flags & WORK_FUSED) == 0 && other->op_sequence != work->op_sequence) continue;
    for (*link = 0; *link < other->recv_count; *link += 1)
      if (other->recv_peer[*link] == work->rank &&
          work_link_conn(other, work->rank, false) == work_link_conn(work, peer, true))
        return other;
  }
  return NULL;
}

static uint32_t plans_compare(const struct plan *plans, uint32_t rank_count) {
  uint32_t compared = 0;
  for (uint32_t rank = 0; rank < rank_count; rank++)
    for (uint32_t i = 0; i < plans[rank].work_count; i++) {
      const struct work *work = &plans[rank].works[i];
      for (uint32_t k = 0; k < work->send_count && (work->flags & WORK_PART) == 0; k++) {
        uint32_t link = 0;
        const struct work *other = other_end(&plans[work->send_peer[k]], work, work->send_peer[k], &link);
        assert_non_null(other);
        iterators_compare(work, k, other, link, &plans[rank].limits, draw_below(9));
        compared += 1;
      }
    }
  return compared;
}

/* Every rank broadcasts its share: fused. */
static uint32_t ops_of_group(const struct call *call, uint32_t rank, uint32_t rank_count, bool fused,
                             struct plan_op *ops) {
  static uint8_t memory[2]; /* only for planning, never accessed */
  const struct plan_op op = {.func = call->func,
                             .dtype = call->dtype,
                             .op = OP_SUM,
                             .peer = call->root,
                             .count = call->count,
                             .in = memory,
                             .out = memory + 1,
                             .sequence = 7};
  ops[0] = ops[1] = op;
  for (uint32_t i = 0; fused && i < rank_count; i++) {
    ops[i] = op;
    ops[i].func = FUNC_BROADCAST;
    ops[i].peer = i;
    ops[i].count = call->count + i * 37;
    ops[i].sequence = 7 + i;
  }
  if (fused) return rank_count;
  if (call->func != FUNC_SEND_RECV) return 1;
  ops[0].func = FUNC_SEND;
  ops[0].peer = (rank + 1) % rank_count;
  ops[1].func = FUNC_RECV;
  ops[1].peer = (rank + rank_count - 1) % rank_count;
  return 2;
}

static void plan_of(struct plan_limits *limits, const struct call *call, uint32_t rank, uint32_t rank_count,
                    const struct graph *graph, bool fused, struct plan *plan) {
  struct plan_op ops[RANKS_MAX];
  struct plan_request request;
  memset(&request, 0, sizeof request);
  request.rank = rank;
  request.rank_count = rank_count;
  request.graph = graph;
  request.settings.limits = *limits;
  request.ops = ops;
  request.op_count = ops_of_group(call, rank, rank_count, fused, ops);
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request.settings.algo_mask[func] = fused ? 1u << ALGO_RING : world.ranks.algo_mask;
    request.settings.proto_mask[func] = 1u << PROTO_SIMPLE;
  }
  good(plan_build(&request, plan), "plan");
}

static void both_ends_know_every_message(void **state) {
  (void)state;
  static const size_t counts[] = {0, 1, 100, 4097, 65536, 1 << 20, 3000001};
  struct plan plans[RANKS_MAX];
  struct graph graph;
  uint32_t compared = 0;
  draw_state = 99;
  for (uint32_t turn = 0; turn < 400; turn++) {
    char emu[EMU_BYTES];
    struct call call;
    struct plan_limits limits;
    const tutti_emu_config_t config = {.size = sizeof config, .seed = 1};
    const uint32_t rank_count = 2 + draw_below(7);
    const bool production = turn % 2 == 0, fused = turn % 7 == 0;
    if (production) snprintf(emu, sizeof emu, "direct=0");
    else draw_emu(emu, false);
    setenv("TUTTI_EMU", emu, 1);
    param_reset();
    good(ranks_configure(&config), emu);
    good(emu_backend()->device->limits(&limits), emu);
    limits.direct = false;
    plan_limits_reserve(&limits);
    call_draw(&call, rank_count, 300);
    if (production) call.count = DRAW(counts);
    good(graph_flat(rank_count, &graph), emu);
    for (uint32_t rank = 0; rank < rank_count; rank++)
      plan_of(&limits, &call, rank, rank_count, &graph, fused, &plans[rank]);
    compared += plans_compare(plans, rank_count);
    for (uint32_t rank = 0; rank < rank_count; rank++) plan_free(&plans[rank]);
    graph_free(&graph);
  }
  assert_true(compared > 2000);
}

/* ---- graphs ---- */

static void good_cuda(cudaError_t error) {
  if (error != cudaSuccess) fail_msg("CUDA error %d: %s", (int)error, log_last_error());
}

static void a_graph_posts_at_every_launch(void **state) {
  (void)state;
  enum { REPLAYS = 5 };
  for (uint64_t seed = 1; seed <= 12; seed++) {
    struct call call;
    char text[RANKS_TEXT_BYTES];
    cudaGraph_t graphs[2];
    cudaGraphExec_t launches[2];
    const struct fake_options options = {.seed = seed, .refuse_percent = 20};
    memset(world.remote, 1, sizeof world.remote);
    fake_net_reset(&options);
    world_open("slots=4,chunk=64,channels=2,direct=0", seed, seed % 3 == 0, 2);
    call = (struct call){.func = FUNC_ALL_REDUCE, .proto = PROTO_SIMPLE, .dtype = ncclInt64, .count = 90};
    assert_true(call_prepare(&world.ranks, &call));
    for (uint32_t rank = 0; rank < 2; rank++) {
      good_cuda(cudaSetDevice((int)rank));
      good_cuda(cudaStreamCreate((cudaStream_t *)&world.streams[rank]));
      good_cuda(cudaStreamBeginCapture((cudaStream_t)world.streams[rank], cudaStreamCaptureModeGlobal));
      good(call_launch(&world.ranks, rank, &call, call.count), "capture");
      good_cuda(cudaStreamEndCapture((cudaStream_t)world.streams[rank], &graphs[rank]));
      good_cuda(cudaGraphInstantiate(&launches[rank], graphs[rank], 0));
    }
    for (uint32_t i = 0; i < REPLAYS; i++)
      for (uint32_t rank = 0; rank < 2; rank++)
        good_cuda(cudaGraphLaunch(launches[rank], (cudaStream_t)world.streams[rank]));
    good(world_wait(), "replay");
    good(world.ranks.ops->device->wait_until(proxies_idle, NULL, 60000), "idle");
    if (!call_check(&world.ranks, &call, text)) fail_msg("%s", text);
    assert_int_equal(__atomic_load_n(&world.starts, __ATOMIC_RELAXED), 2 * REPLAYS);
    for (uint32_t rank = 0; rank < 2; rank++) {
      good_cuda(cudaStreamSynchronize((cudaStream_t)world.streams[rank]));
      good_cuda(cudaGraphExecDestroy(launches[rank]));
      good_cuda(cudaGraphDestroy(graphs[rank]));
      good_cuda(cudaStreamDestroy((cudaStream_t)world.streams[rank]));
      world.streams[rank] = NULL;
    }
    call_free(&call);
    world_close();
  }
}

/* ---- zero-copy: free threads, over sockets ---- */

static struct net_ops parts_net;
static uint64_t parts_sent, parts_posted; /* atomic */
static enum {
  HOLD_NOTHING,
  HOLD_SENDS,
  HOLD_REQUESTS
} parts_hold; /* atomic: the operations that the network holds back */

static uint64_t count_of(const uint64_t *counter) { return __atomic_load_n(counter, __ATOMIC_RELAXED); }
static bool holds(int what) { return (int)__atomic_load_n(&parts_hold, __ATOMIC_SEQ_CST) == what; }

static ncclResult_t parts_send(void *connection, const struct net_part *first, const void *data, size_t bytes,
                               void *registration, void **request) {
  *request = NULL;
  if (holds(HOLD_SENDS)) return ncclSuccess;
  __atomic_fetch_add(&parts_sent, 1, __ATOMIC_RELAXED);
  return socket_net_ops()->isend_parts(connection, first, data, bytes, registration, request);
}

static ncclResult_t parts_receive(void *connection, const struct net_part *first, size_t whole_bytes,
                                  void *data, size_t bytes, void *registration, void **request) {
  __atomic_fetch_add(&parts_posted, 1, __ATOMIC_RELAXED);
  return socket_net_ops()->irecv_parts(connection, first, whole_bytes, data, bytes, registration, request);
}

static ncclResult_t parts_test(void *request, bool *done, size_t *bytes) {
  *done = false;
  return holds(HOLD_REQUESTS) ? ncclSuccess : socket_net_ops()->test(request, done, bytes);
}

static void parts_open(uint32_t rank_count) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  param_reset();
  parts_net = *socket_net_ops();
  parts_net.isend_parts = parts_send;
  parts_net.irecv_parts = parts_receive;
  parts_net.test = parts_test;
  parts_sent = parts_posted = 0;
  good(parts_net.devices(&net_devices), "devices");
  fake_inside = &parts_net;
  memset(world.remote, 1, sizeof world.remote);
  world_open("slots=4,chunk=64K,channels=1,direct=0", 1, true, rank_count);
}

static void parts_call(struct call *call, uint8_t func, bool in_place, size_t count) {
  *call = (struct call){
      .func = func, .proto = PROTO_SIMPLE, .dtype = ncclFloat32, .in_place = in_place, .count = count};
  assert_true(call_prepare(&world.ranks, call));
}

static void parts_end(struct call *call) {
  char text[RANKS_TEXT_BYTES];
  good(world_wait(), "wait");
  if (world.failures > 0) fail_msg("%s", world.failure_text);
  if (!call_check(&world.ranks, call, text)) fail_msg("function %u: %s", call->func, text);
  call_free(call);
}

static void large_data_skips_its_slots(void **state) {
  static const struct {
    uint8_t func;
    bool sends, zero_copy; /* at least on one rank of two */
  } funcs[] = {{FUNC_ALL_REDUCE, true, true},      {FUNC_ALL_GATHER, true, true},
               {FUNC_REDUCE_SCATTER, true, false}, {FUNC_BROADCAST, true, true},
               {FUNC_REDUCE, true, false},         {FUNC_SEND_RECV, true, true}};
  static const size_t counts[] = {40000, LARGE_COUNT, 5};
  (void)state;
  for (uint32_t rank_count = 2; rank_count <= 3; rank_count++) {
    parts_open(rank_count);
    for (uint32_t i = 0; i < LENGTH(funcs) * LENGTH(counts) * 2; i++) {
      struct call call;
      const uint32_t f = i % LENGTH(funcs);
      const size_t count = counts[i / LENGTH(funcs) % LENGTH(counts)];
      const bool in_place = i % 2 == i / LENGTH(funcs) / LENGTH(counts) && funcs[f].func != FUNC_SEND_RECV;
      const uint64_t sent = count_of(&parts_sent), posted = count_of(&parts_posted);
      parts_call(&call, funcs[f].func, in_place, count);
      good(call_launch_all(&world.ranks, &call), "launch");
      parts_end(&call);
      const bool large = count > 10000 && i >= LENGTH(funcs); /* by then connections exist */
      assert_int_equal(count_of(&parts_sent) > sent,
                       large ? funcs[f].sends : count_of(&parts_sent) > sent && count > 10000);
      assert_int_equal(count_of(&parts_posted) > posted,
                       large ? funcs[f].zero_copy : count_of(&parts_posted) > posted && count > 10000);
    }
    world_close();
  }
}

static bool rank_ended(void *argument) {
  const uint32_t rank = *(const uint32_t *)argument;
  return world.ranks.ops->device->comm_idle(world.ranks.comms[rank]);
}

static void rank_wait(uint32_t rank) {
  good(world.ranks.ops->device->wait_until(rank_ended, &rank, 60000), "a rank");
}

/* A zero-copy send must not read memory after its kernel has ended: the program may have reused it. */
static void a_kernel_that_ended_sends_no_zero_copy(void **state) {
  struct call call;
  (void)state;
  parts_open(2);
  for (uint32_t i = 0; i < 6; i++) {
    parts_call(&call, FUNC_BROADCAST, false, 16384 - i * 1000); /* the slots are large enough */
    if (i >= 2)                                                 /* by then the connection exists */
      __atomic_store_n(&parts_hold, i % 2 == 0 ? HOLD_SENDS : HOLD_REQUESTS, __ATOMIC_SEQ_CST);
    good(call_launch(&world.ranks, 0, &call, call.count), "send");
    rank_wait(0);
    memset(call.in[0], 0x77, call.count * 4);
    __atomic_store_n(&parts_hold, HOLD_NOTHING, __ATOMIC_SEQ_CST);
    good(call_launch(&world.ranks, 1, &call, call.count), "receive");
    good(world_wait(), "wait");
    parts_end(&call);
  }
  world_close();
}

/* An aborted operation receives no more data. */
static void a_kernel_that_was_aborted_gets_nothing(void **state) {
  enum { COUNT = 50000 };
  struct call call;
  static uint8_t before[COUNT * 4];
  (void)state;
  parts_open(2);
  for (uint32_t i = 0; i < 2; i++) {
    const uint64_t posted = count_of(&parts_posted);
    parts_call(&call, FUNC_BROADCAST, false, COUNT);
    good(call_launch(&world.ranks, 1, &call, COUNT), "receive");
    if (i == 0) {
      good(call_launch(&world.ranks, 0, &call, COUNT), "send");
      parts_end(&call);
      continue;
    }
    for (uint32_t k = 0; k < 15000 && count_of(&parts_posted) == posted; k++) os_sleep_ms(1);
    assert_true(count_of(&parts_posted) > posted);
    world.ranks.ops->device->comm_abort(world.ranks.comms[1]);
    rank_wait(1);
    memcpy(before, call.out[1], sizeof before);
    good(call_launch(&world.ranks, 0, &call, COUNT), "send");
    rank_wait(0);
    os_sleep_ms(50); /* time for data that must not arrive */
    assert_memory_equal(before, call.out[1], sizeof before);
    call_free(&call);
  }
  world_close();
}

/* ---- kernels that begin late ---- */

/* The shorter the cheaper, at most 4 % of a core, and never longer than what is left. */
static void naps_are_as_short_as_their_cost_allows(void **state) {
  (void)state;
  assert_int_equal(proxy_watch_nap_us(100, 1000), 20);
  for (uint64_t cost_us = 1; cost_us < 40; cost_us++)
    assert_int_equal(proxy_watch_nap_us(cost_us * 1000, 1000), 24 * cost_us);
  assert_int_equal(proxy_watch_nap_us(60000, 1000), 1000);
  assert_int_equal(proxy_watch_nap_us(60000, 100), 100);
  assert_int_equal(proxy_watch_nap_us(100, 7), 7);
}

static struct device_net_end late_ends[2]; /* by rank; the test plays the kernels */

/* A message of 8 bytes from rank 0 to rank 1. */
static struct proxy_ops *late_message(uint32_t rank) {
  const bool sends = rank == 0;
  struct work work = {.func = sends ? FUNC_SEND : FUNC_RECV,
                      .algo = ALGO_RING,
                      .proto = PROTO_SIMPLE,
                      .conn_index = CONN_MESSAGE,
                      .element_bytes = 1,
                      .chunk_steps = 1,
                      .slice_steps = 1,
                      .rank = rank,
                      .rank_count = 2,
                      .send_count = sends,
                      .recv_count = !sends,
                      .count = 8,
                      .part_count = 8,
                      .chunk_count = 8,
                      .last_chunk_count = 8};
  struct plan_batch batch = {0, 0, 1};
  struct plan_buffers buffers = {NULL, NULL, NULL};
  const struct plan plan = {.rank = rank,
                            .rank_count = 2,
                            .work_count = 1,
                            .batch_count = 1,
                            .works = &work,
                            .buffers = &buffers,
                            .batches = &batch,
                            .limits = world.ranks.limits};
  const struct device_conn_name name = {1 - rank, 0, CONN_MESSAGE, PROTO_SIMPLE, sends, false};
  struct proxy_ops *ops = NULL;
  work.send_peer[0] = work.recv_peer[0] = 1 - rank;
  good(link_open(&world.ranks, &work, 1 - rank, sends), "connect");
  good(proxy_ops_create(world.proxies[rank], &plan, world.remote[rank], &ops), "ops");
  good(world.ranks.ops->network->conn_net(world.ranks.comms[rank], &name, &late_ends[rank]), "ends");
  return ops;
}

static void looks_wait(uint64_t looks) {
  for (int i = 0; i < 15000 && proxy_watch_stats().looks < looks; i++) os_sleep_ms(1);
  assert_true(proxy_watch_stats().looks >= looks);
}

static void watched_wait(uint64_t count) {
  for (int i = 0; i < 15000 && proxy_watch_count() != count; i++) os_sleep_ms(1);
  assert_int_equal(proxy_watch_count(), count);
}

static void *late_kernel(void *argument) {
  looks_wait(*(const uint64_t *)argument);
  __atomic_store_n(late_ends[0].tail, late_ends[0].slots + 1, __ATOMIC_RELEASE);
  return NULL;
}

/* While a kernel is waited for, the engine looks, and a look finds the kernel's first store: without one this
 * test's own watch would go on for an hour. What waits for the network is not watched. */
static void kernels_that_begin_late_are_watched(void **state) {
  (void)state;
  const struct fake_options options = {.seed = 1};
  struct proxy_watch watch = {.most_us = UINT64_C(3600000000)};
  uint64_t cost_ns = 0;
  os_thread kernel;
  memset(world.remote, 1, sizeof world.remote);
  fake_net_reset(&options);
  world_open("slots=4,chunk=64K,channels=1,direct=0", 1, true, 2);
  struct proxy_ops *receive = late_message(1), *send = late_message(0);
  const struct proxy_watch_stats before = proxy_watch_stats();
  proxy_ops_post(send);
  watched_wait(1);
  uint64_t looks = before.looks + 3;
  looks_wait(looks);
  good(wake_open(&watch.wake), "wake");
  watch.waiting = proxy_watch_count();
  watch.cpu_ns = os_thread_cpu_ns();
  looks += 10;
  assert_true(os_thread_start(&kernel, late_kernel, &looks));
  proxy_watch(&watch, &cost_ns);
  os_thread_join(kernel);
  wake_close(watch.wake);
  assert_true(proxy_watch_stats().found > before.found);
  assert_true(cost_ns > 0);
  watched_wait(0); /* the network has it until the receive is posted */
  proxy_ops_post(receive);
  watched_wait(1); /* the receiver's kernel has not read it */
  __atomic_store_n(late_ends[1].head, late_ends[1].slots + 1, __ATOMIC_RELEASE);
  watched_wait(0);
  good(world.ranks.ops->device->wait_until(proxies_idle, NULL, 60000), "idle");
  proxy_ops_free(send);
  proxy_ops_free(receive);
  world_close();
}

/* ---- ranks of other processes send ---- */

static void pxn_carries_every_collective(void **state) {
  uint64_t messages = 0;
  (void)state;
  via_pxn = true;
  for (uint64_t seed = 1; seed <= WORLDS / 6; seed++) messages += world_run(seed, false).messages;
  for (uint64_t seed = 1; seed <= WORLDS / 12; seed++) world_run(seed, true);
  assert_true(messages > WORLDS * 10);
  via_pxn = false;
}

static void pxn_names_what_fails(void **state) {
  uint64_t told = 0;
  (void)state;
  via_pxn = true;
  /* Which call belongs to the PXN proxy depends on the threads' speed. */
  for (uint64_t k = 20; k < 80 || (told == 0 && k < 2000); k += 3) {
    struct call call;
    const struct fake_options options = {.seed = k, .refuse_percent = 20, .fail_call = k};
    pair_open(&call, FUNC_BROADCAST, &options, tiny);
    good(call_launch_all(&world.ranks, &call), "launch");
    world_wait();
    if (strstr(world.failure_text, "through rank 1, device 0: sending to rank 1 failed (Broadcast 0"))
      told += 1;
    TOLD(ncclRemoteError, "rank ", "fake", "channel 0", "pulled");
    pair_end(&call);
  }
  assert_true(told > 0);
  via_pxn = false;
}

/* A broadcast between two ranks went through rank 1; the next one must fail. */
static struct pxn_block *pxn_pair_open(struct call *first, struct call *second, struct device_pxn *pxn) {
  const struct device_conn_name name = {1, 0, CONN_COLLECTIVE, PROTO_SIMPLE, true, false};
  const struct fake_options options = {.seed = 3};
  via_pxn = true;
  pair_open(first, FUNC_BROADCAST, &options, tiny);
  good(call_launch_all(&world.ranks, first), "launch");
  good(world_wait(), "broadcast");
  good(world.ranks.ops->device->wait_until(proxies_idle, NULL, 60000), "broadcast");
  *second = *first;
  assert_true(call_prepare(&world.ranks, second));
  good(world.ranks.ops->network->pxn_end(world.ranks.comms[0], &name, sizeof(struct pxn_block), pxn),
       "block");
  return (struct pxn_block *)pxn->block;
}

static void pxn_pair_end(struct call *first, struct call *second) {
  world_wait();
  call_free(second);
  pair_end(first);
  via_pxn = false;
}

/* A sender in another process may describe anything. */
static void pxn_takes_no_nonsense(void **state) {
  const struct pxn_slice nonsense[] = {
      {.begin = 4, .end = 5},                                        /* too far ahead */
      {.begin = UINT64_MAX, .end = 1},                               /* repeated */
      {.begin = 0, .end = 1, .func = 200},                           /* no operation */
      {.begin = 0, .end = 5},                                        /* more than there are slots */
      {.begin = 0, .end = 0},                                        /* none */
      {.begin = 0, .end = UINT64_MAX},                               /* negative */
      {.begin = 0, .end = 1, .bytes = UINT64_MAX - 8},               /* more than a slot holds */
      {.begin = 0, .end = 1, .bytes = 64 + PLAN_RESERVED_BYTES - 8}, /* no space for the reserved bytes */
      {.begin = 0, .end = 2}                                         /* across the end of the slots */
  };
  (void)state;
  for (uint32_t i = 0; i < LENGTH(nonsense); i++) {
    struct call first, second;
    struct device_pxn pxn;
    struct pxn_block *block = pxn_pair_open(&first, &second, &pxn);
    struct pxn_slice slice = nonsense[i];
    uint64_t base = *pxn.end.head;
    if (i == LENGTH(nonsense) - 1) base += 3 - base % 4;
    slice.begin += base;
    slice.end += base;
    block->slices[block->posted % PROXY_SLICES_MAX] = slice;
    __atomic_store_n(&block->posted, block->posted + 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&block->asleep, 0, __ATOMIC_SEQ_CST);
    assert_true(share_ring(&block->bell));
    for (int k = 0; k < 15000 && __atomic_load_n(&block->failed, __ATOMIC_ACQUIRE) == 0; k++) os_sleep_ms(1);
    if (block->failed != ncclInternalError) fail_msg("nonsense %u is taken: %s", i, block->text);
    call_launch_all(&world.ranks, &second);
    pxn_pair_end(&first, &second);
  }
}

static void a_pxn_proxy_that_is_given_up_is_told(void **state) {
  struct call first, second;
  struct device_pxn pxn;
  (void)state;
  pxn_pair_open(&first, &second, &pxn);
  proxy_pxn_break(76, 1, "of another communicator");
  proxy_pxn_break(77, 0, "of another rank");
  proxy_pxn_break(77, 1, "rank 1 has enough");
  good(call_launch_all(&world.ranks, &second), "launch");
  world_wait();
  TOLD(ncclRemoteError, "through rank 1, device 0: rank 1 has enough");
  pxn_pair_end(&first, &second);
}

/* A second request finds the existing proxy; a NIC that the network lacks is refused. */
static void a_pxn_proxy_is_made_once(void **state) {
  struct call first, second;
  struct device_pxn pxn;
  (void)state;
  pxn_pair_open(&first, &second, &pxn);
  const uint32_t count = proxy_pxn_count();
  const struct device_conn_name name = {1, 0, CONN_COLLECTIVE, PROTO_SIMPLE, true, false};
  const struct net_handle handle = {{0}};
  good(pxn_open(&world.ranks, 0, &name, &handle), "again");
  assert_int_equal(proxy_pxn_count(), count);
  good(call_launch_all(&world.ranks, &second), "launch");
  good(world_wait(), "again");
  pxn_pair_end(&first, &second);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(every_option_comes_out_exact, world_drop),
      cmocka_unit_test_teardown(every_option_on_threads, world_drop),
      cmocka_unit_test_teardown(same_seed_same_events, world_drop),
      cmocka_unit_test_teardown(messages_share_slots, world_drop),
      cmocka_unit_test_teardown(a_fault_is_named, world_drop),
      cmocka_unit_test_teardown(sizes_that_differ_are_named, world_drop),
      cmocka_unit_test_teardown(no_old_line_counts, world_drop),
      cmocka_unit_test_teardown(slots_come_with_their_protocol, world_drop),
      cmocka_unit_test_teardown(messages_change_their_protocol, world_drop),
      cmocka_unit_test_teardown(every_call_may_fail, world_drop),
      cmocka_unit_test_teardown(others_go_on, world_drop),
      cmocka_unit_test_teardown(an_abort_leaves_nothing, world_drop),
      cmocka_unit_test_teardown(a_wait_within_the_world_is_a_deadlock, world_drop),
      cmocka_unit_test_teardown(within_the_world_all_comes_by_wakes, world_drop),
      cmocka_unit_test_teardown(over_the_emulators_network, world_drop),
      cmocka_unit_test(both_ends_know_every_message),
      cmocka_unit_test_teardown(a_graph_posts_at_every_launch, world_drop),
      cmocka_unit_test_teardown(large_data_skips_its_slots, world_drop),
      cmocka_unit_test_teardown(a_kernel_that_ended_sends_no_zero_copy, world_drop),
      cmocka_unit_test_teardown(a_kernel_that_was_aborted_gets_nothing, world_drop),
      cmocka_unit_test(naps_are_as_short_as_their_cost_allows),
      cmocka_unit_test_teardown(kernels_that_begin_late_are_watched, world_drop),
      cmocka_unit_test_teardown(pxn_carries_every_collective, world_drop),
      cmocka_unit_test_teardown(pxn_names_what_fails, world_drop),
      cmocka_unit_test_teardown(pxn_takes_no_nonsense, world_drop),
      cmocka_unit_test_teardown(a_pxn_proxy_that_is_given_up_is_told, world_drop),
      cmocka_unit_test_teardown(a_pxn_proxy_is_made_once, world_drop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
