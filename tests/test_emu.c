/* test_emu.c: the emulator itself, driven through its table and the planner, without the API: equal seeds
 * give equal events, every operation works with the smallest settings, and every hang is reported to the
 * ranks concerned: a deadlock, a missing rank, ranks that disagree, an abort. */
/* sanitizers: address thread */
/* runner: tsan 20 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/emu/world.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "ranks.h"
#include "tutti.h"

#define CALLS_MAX 64
#define EMU_BYTES 160

static const uint8_t all_functions[] = {FUNC_ALL_REDUCE, FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER,
                                        FUNC_BROADCAST,  FUNC_REDUCE,     FUNC_SEND_RECV};
static const uint8_t all_types[] = {ncclUint8, ncclFloat16,  ncclFloat32, /* 1, 2, 4 bytes */
                                    ncclInt64, ncclBfloat16, ncclFloat64};
static const uint8_t all_protocols[] = {PROTO_LL, PROTO_LL128, PROTO_SIMPLE};
#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* ---- helpers ---- */

static struct ranks ranks; /* of the running test */

/* A failed test leaves its ranks behind: they must not make the next test's settings fail. */
static int ranks_drop(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < ranks.count; rank++) ranks.ops->device->comm_abort(ranks.comms[rank]);
  ranks_close(&ranks);
  return 0;
}

/* A fresh emulator: settings as in TUTTI_EMU, a seed, and a trace file or NULL. */
static void world_begin(const char *emu, uint64_t seed, const char *trace_path) {
  tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .trace_path = trace_path};
  setenv("TUTTI_EMU", emu, 1);
  param_reset();
  if (ranks_configure(&config) != ncclSuccess) fail_msg("%s: %s", emu, log_last_error());
}

/* Random numbers independent of the emulator's. */
static uint64_t draw_state;

static uint32_t draw_below(uint32_t bound) { return (uint32_t)(hash_draw(&draw_state) % bound); }

#define DRAW(array) (array)[draw_below(LENGTH(array))]

static void calls_draw(struct call *calls, uint32_t call_count, uint32_t rank_count, uint32_t count_below) {
  memset(calls, 0, call_count * sizeof *calls);
  for (uint32_t i = 0; i < call_count; i++) {
    calls[i].func = DRAW(all_functions);
    calls[i].proto = DRAW(all_protocols);
    calls[i].dtype = DRAW(all_types);
    calls[i].in_place = calls[i].func != FUNC_SEND_RECV && draw_below(3) == 0;
    calls[i].root = draw_below(rank_count);
    calls[i].count = draw_below(4) == 0 ? draw_below(4) : draw_below(count_below);
  }
}

/* The outcome of one run. */
struct outcome {
  uint64_t trace_hash, data_hash, events;
};

static void calls_launch(struct call *calls, uint32_t call_count) {
  for (uint32_t i = 0; i < call_count; i++) {
    assert_true(call_prepare(&ranks, &calls[i]));
    if (call_launch_all(&ranks, &calls[i]) != ncclSuccess) fail_msg("%s", log_last_error());
  }
}

static struct outcome calls_end(struct call *calls, uint32_t call_count, const char *what) {
  char text[RANKS_TEXT_BYTES];
  struct outcome outcome = {0, 1, 0};
  tutti_emu_stats_t stats = {.size = sizeof stats};
  for (uint32_t i = 0; i < call_count; i++) {
    if (!call_check(&ranks, &calls[i], text)) fail_msg("%s: %s", what, text);
    outcome.data_hash = call_hash(&ranks, &calls[i], outcome.data_hash);
    call_free(&calls[i]);
  }
  assert_int_equal(tutti_emu_stats(&stats), ncclSuccess);
  outcome.trace_hash = stats.trace_hash;
  outcome.events = stats.events;
  ranks_close(&ranks);
  return outcome;
}

/* Launches all calls, then waits for all; every result is checked. */
static struct outcome calls_run(struct call *calls, uint32_t call_count, uint32_t rank_count,
                                const char *what) {
  assert_int_equal(ranks_open(&ranks, rank_count), ncclSuccess);
  calls_launch(calls, call_count);
  if (ranks_wait(&ranks) != ncclSuccess) fail_msg("%s: %s", what, log_last_error());
  return calls_end(calls, call_count, what);
}

/* The same drawn calls for the same `drawn`, with these settings. */
static struct outcome drawn_run(const char *emu, uint64_t seed, const char *trace_path, uint64_t drawn,
                                uint32_t call_count, uint32_t count_below) {
  static struct call calls[CALLS_MAX];
  draw_state = drawn;
  const uint32_t rank_count = 2 + draw_below(3);
  calls_draw(calls, call_count, rank_count, count_below);
  world_begin(emu, seed, trace_path);
  return calls_run(calls, call_count, rank_count, emu);
}

static void one_run(const char *emu, uint8_t func, uint8_t proto, uint8_t dtype, size_t count,
                    uint32_t rank_count) {
  struct call call = {.func = func, .proto = proto, .dtype = dtype, .count = count};
  world_begin(emu, 1, NULL);
  calls_run(&call, 1, rank_count, emu);
}

static struct call all_reduce_of(uint8_t proto, size_t count) {
  const struct call call = {.func = FUNC_ALL_REDUCE, .proto = proto, .dtype = ncclFloat32, .count = count};
  return call;
}

static uint32_t occurrences(const char *text, const char *part) {
  uint32_t count = 0;
  for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) count += 1;
  return count;
}

static void assert_says(const char *part) {
  if (strstr(log_last_error(), part) == NULL) fail_msg("\"%s\" is not in: %s", part, log_last_error());
}

/* ---- determinism ---- */

static void same_seed_same_events(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 10; seed++) {
    const char *emu = "slots=3,chunk=48,channels=2,lag=30,depth=2,span=2";
    const struct outcome a = drawn_run(emu, seed, NULL, 7, 12, 200);
    const struct outcome b = drawn_run(emu, seed, NULL, 7, 12, 200);
    assert_true(a.trace_hash == b.trace_hash);
    assert_true(a.events == b.events);
  }
}

static void other_seed_other_events(void **state) {
  (void)state;
  uint64_t hashes[20];
  for (uint32_t i = 0; i < LENGTH(hashes); i++) {
    hashes[i] = drawn_run("slots=3,chunk=48,channels=2", i + 1, NULL, 7, 12, 200).trace_hash;
    for (uint32_t j = 0; j < i; j++) assert_true(hashes[i] != hashes[j]);
  }
}

static void same_seed_same_trace_file(void **state) {
  (void)state;
  char *bytes[2];
  size_t byte_counts[2];
  for (int i = 0; i < 2; i++) {
    char path[] = "test_emu.trace.XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    drawn_run("slots=3,chunk=48,channels=2,lag=30,depth=2", 5, path, 7, 12, 200);
    assert_int_equal(tutti_emu_trace_close(), ncclSuccess);
    bytes[i] = os_file_read(path, &byte_counts[i]);
    unlink(path);
    assert_non_null(bytes[i]);
  }
  assert_true(byte_counts[0] > 1000);
  assert_true(byte_counts[0] == byte_counts[1]);
  assert_memory_equal(bytes[0], bytes[1], byte_counts[0]);
  os_free(bytes[0]);
  os_free(bytes[1]);
}

/* ---- the smallest sizes ---- */

static void every_slot_count_carries_everything(void **state) {
  (void)state;
  char emu[EMU_BYTES];
  for (unsigned slots = 2; slots <= 8; slots++)
    for (unsigned depth = 1; depth <= 4; depth++)
      for (unsigned lag = 0; lag <= 100; lag += 50) {
        snprintf(emu, sizeof emu, "slots=%u,depth=%u,lag=%u,chunk=64,direct=%u", slots, depth, lag,
                 slots % 2);
        drawn_run(emu, slots + depth, NULL, slots * 100 + depth * 10 + lag, 16, 200);
      }
}

static void every_chunk_and_type(void **state) {
  (void)state;
  char emu[EMU_BYTES];
  for (unsigned chunk = 1; chunk <= 64; chunk++) {
    snprintf(emu, sizeof emu, "slots=%u,chunk=%u,channels=%u", 2 + chunk % 7, chunk, 1 + chunk % 3);
    drawn_run(emu, chunk, NULL, chunk, 8, 60);
    for (size_t i = 0; i < 4; i++)
      one_run(emu, FUNC_ALL_REDUCE, all_protocols[chunk % 3], all_types[i], 50, 3);
  }
}

static void every_channel_count_and_rule(void **state) {
  (void)state;
  static const char *const rules[] = {"random", "priority", "round_robin"};
  char emu[EMU_BYTES];
  for (unsigned channels = 1; channels <= 3; channels++)
    for (size_t rule = 0; rule < LENGTH(rules); rule++)
      for (unsigned direct = 0; direct <= 1; direct++)
        for (unsigned seed = 1; seed <= 4; seed++) {
          snprintf(emu, sizeof emu, "slots=2,chunk=4096,channels=%u,rule=%s,direct=%u", channels, rules[rule],
                   direct);
          drawn_run(emu, seed, NULL, seed * 31 + channels, 4, 20000);
        }
}

static void every_span_of_ll(void **state) {
  (void)state;
  char emu[EMU_BYTES];
  for (unsigned span = 1; span <= 64; span += span < 10 ? 1 : 9) {
    snprintf(emu, sizeof emu, "slots=2,chunk=1200,channels=1,span=%u", span);
    one_run(emu, FUNC_ALL_REDUCE, PROTO_LL, ncclFloat32, 1500, 3);
    one_run(emu, FUNC_ALL_REDUCE, PROTO_LL128, ncclUint8, 4000, 3);
    drawn_run(emu, span, NULL, span, 8, 700);
  }
}

/* Many short operations and a long one now and then: old lines must never look new when flags wrap around. */
static void wrap_run(unsigned bits, unsigned slots, uint8_t first_proto, uint8_t second_proto) {
  static struct call calls[400];
  char emu[EMU_BYTES];
  snprintf(emu, sizeof emu, "slots=%u,chunk=960,channels=1,span=1,flag_bits=%u", slots, bits);
  memset(calls, 0, sizeof calls);
  draw_state = bits * 10 + slots;
  for (uint32_t i = 0; i < LENGTH(calls); i++) {
    calls[i].func = draw_below(2) == 0 ? FUNC_ALL_GATHER : FUNC_BROADCAST;
    calls[i].proto = i % 100 < 50 ? first_proto : second_proto;
    calls[i].dtype = ncclFloat32;
    calls[i].count = draw_below(16) == 0 ? 240 : 1;
  }
  world_begin(emu, bits, NULL);
  calls_run(calls, LENGTH(calls), 2, emu);
}

/* Guarded mode runs one thread at a time, which ThreadSanitizer learns little from. */
#if defined(__SANITIZE_THREAD__)
enum { SLOTS_STRIDE = 3 };
#else
enum { SLOTS_STRIDE = 1 };
#endif

static void flags_come_around(void **state) {
  (void)state;
  for (unsigned bits = 5; bits <= 32; bits += bits < 9 ? 1 : 23)
    for (unsigned slots = 2; slots <= 8; slots += SLOTS_STRIDE) {
      wrap_run(bits, slots, PROTO_LL, PROTO_LL);
      wrap_run(bits, slots, PROTO_LL128, PROTO_LL128);
    }
}

/* The steps in which a sender clears old lines may belong to operations of another protocol. */
static void flags_come_around_between_protocols(void **state) {
  (void)state;
  for (unsigned slots = 2; slots <= 8; slots++) {
    wrap_run(5, slots, PROTO_LL, PROTO_LL128);
    wrap_run(5, slots, PROTO_LL128, PROTO_SIMPLE);
  }
}

/* All protocols share a connection's counter, which each operation rounds up to its own chunk size. */
static void protocols_take_turns(void **state) {
  (void)state;
  char emu[EMU_BYTES];
  for (unsigned seed = 1; seed <= 60; seed++) {
    snprintf(emu, sizeof emu, "slots=%u,chunk=%u,channels=1,depth=%u,lag=%u,direct=%u,flag_bits=%u",
             2 + seed % 7, 16 + seed % 3 * 24, 1 + seed % 4, seed % 3 * 50, seed % 2, 5 + seed % 3);
    drawn_run(emu, seed, NULL, seed, 40, 120);
  }
}

/* ---- deadlocks and missing ranks ---- */

static void one_slot_carries_a_chain(void **state) {
  (void)state;
  for (size_t i = 0; i < LENGTH(all_protocols); i++) {
    one_run("slots=1,chunk=16", FUNC_BROADCAST, all_protocols[i], ncclFloat32, 300, 4);
    one_run("slots=1,chunk=16", FUNC_REDUCE, all_protocols[i], ncclFloat32, 300, 4);
    one_run("slots=1,chunk=16", FUNC_SEND_RECV, all_protocols[i], ncclFloat32, 300, 4);
  }
}

/* The report has one sentence per lane, and one line with the command that repeats the run. */
static void assert_ring_report(uint32_t rank_count) {
  char lane[96];
  assert_says("deadlock");
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    snprintf(lane, sizeof lane,
             "rank %u channel 0 all_reduce #0 step 1 waits for a free slot towards rank %u", rank,
             (rank + 1) % rank_count);
    assert_says(lane);
  }
  assert_int_equal(occurrences(log_last_error(), "reproduce: TUTTI_SEED=9 TUTTI_EMU="), 1);
  assert_says("slots=1");
}

static void one_slot_stops_a_ring(void **state) {
  (void)state;
  for (size_t i = 0; i < LENGTH(all_protocols); i++) {
    struct call call = all_reduce_of(all_protocols[i], 16);
    world_begin("slots=1,chunk=64,channels=1", 9, NULL);
    assert_int_equal(ranks_open(&ranks, 3), ncclSuccess);
    calls_launch(&call, 1);
    assert_int_equal(ranks_wait(&ranks), ncclRemoteError);
    assert_ring_report(3);
    for (uint32_t rank = 0; rank < 3; rank++)
      assert_int_equal(ranks.ops->device->comm_error(ranks.comms[rank]), ncclRemoteError);
    call_free(&call);
    ranks_close(&ranks);
  }
}

/* However many lanes wait, the report has the line that repeats the run. */
static void long_report_ends_with_the_command(void **state) {
  (void)state;
  struct call call = all_reduce_of(PROTO_SIMPLE, 160000);
  world_begin("slots=1,chunk=4096,channels=8", 9, NULL);
  assert_int_equal(ranks_open(&ranks, RANKS_MAX), ncclSuccess);
  calls_launch(&call, 1);
  assert_int_equal(ranks_wait(&ranks), ncclRemoteError);
  call_free(&call);
  ranks_close(&ranks);
  assert_int_equal(occurrences(log_last_error(), "waits for a free slot"), 8 * RANKS_MAX);
  assert_says("reproduce: TUTTI_SEED=9 TUTTI_EMU=");
}

static void absent_rank_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < LENGTH(all_protocols); i++) {
    struct call call = all_reduce_of(all_protocols[i], 16);
    world_begin("slots=2,chunk=64,channels=1", 1, NULL);
    assert_int_equal(ranks_open(&ranks, 4), ncclSuccess);
    assert_true(call_prepare(&ranks, &call));
    for (uint32_t rank = 0; rank < 4; rank++)
      if (rank != 2) assert_int_equal(call_launch(&ranks, rank, &call, call.count), ncclSuccess);
    assert_int_equal(ranks_wait(&ranks), ncclRemoteError);
    assert_says("rank 2 has launched 0 of 1 kernels");
    assert_says("rank 3 channel 0 all_reduce #0");
    call_free(&call);
    ranks_close(&ranks);
  }
}

/* ---- ranks that disagree ---- */

/* "rank A has X bytes ... where rank B expects Y bytes" with X != Y. */
static void assert_both_sizes(const char *what) {
  unsigned long long found = 0, expected = 0;
  const char *text = log_last_error(), *has = strstr(text, " has "), *expects = strstr(text, " expects ");
  if (has == NULL || expects == NULL || sscanf(has, " has %llu bytes", &found) != 1 ||
      sscanf(expects, " expects %llu bytes", &expected) != 1 || found == expected)
    fail_msg("%s: no two sizes in: %s", what, text);
}

static void mismatch_run(const char *emu, uint64_t seed, uint8_t func, uint8_t proto, size_t odd_count) {
  char what[EMU_BYTES + 80];
  struct call call = {.func = func, .proto = proto, .dtype = ncclFloat32, .count = 96};
  snprintf(what, sizeof what, "%s seed %u function %u protocol %u odd count %zu", emu, (unsigned)seed, func,
           proto, odd_count);
  world_begin(emu, seed, NULL);
  assert_int_equal(ranks_open(&ranks, 3), ncclSuccess);
  assert_true(call_prepare(&ranks, &call));
  for (uint32_t rank = 0; rank < 3; rank++)
    assert_int_equal(call_launch(&ranks, rank, &call, rank == 1 ? odd_count : call.count), ncclSuccess);
  const ncclResult_t result = ranks_wait(&ranks);
  if (result != ncclInvalidUsage) fail_msg("%s: result %d: %s", what, result, log_last_error());
  assert_both_sizes(what);
  for (uint32_t rank = 0; rank < 3; rank++)
    assert_int_equal(ranks.ops->device->comm_error(ranks.comms[rank]), ncclInvalidUsage);
  call_free(&call);
  ranks_close(&ranks);
}

static void mismatched_counts_are_refused(void **state) {
  (void)state;
  static const size_t odd_counts[] = {95, 48, 60, 16};
  static const char *const emus[] = {"slots=4,chunk=256,channels=1,direct=0",
                                     "slots=4,chunk=256,channels=1,direct=1"};
  for (size_t f = 0; f < LENGTH(all_functions); f++)
    for (size_t p = 0; p < LENGTH(all_protocols); p++)
      for (unsigned i = 0; i < 32; i++)
        mismatch_run(emus[i / 4 % 2], i, all_functions[f], all_protocols[p], odd_counts[i % 4]);
}

/* ---- aborts ---- */

static void *abort_soon(void *argument) {
  (void)argument;
  os_sleep_ms(30);
  for (uint32_t rank = 0; rank < ranks.count; rank++) ranks.ops->device->comm_abort(ranks.comms[rank]);
  return NULL;
}

/* Two of three ranks wait for the third, which never calls; another thread aborts, and later launches end at
 * once. */
static void abort_run(const char *emu, uint8_t proto) {
  os_thread thread;
  struct call call = all_reduce_of(proto, 160);
  world_begin(emu, 1, NULL);
  assert_int_equal(ranks_open(&ranks, 3), ncclSuccess);
  assert_true(call_prepare(&ranks, &call));
  for (uint32_t rank = 0; rank < 2; rank++)
    for (int i = 0; i < 3; i++) assert_int_equal(call_launch(&ranks, rank, &call, call.count), ncclSuccess);
  assert_true(os_thread_start(&thread, abort_soon, NULL));
  assert_int_equal(ranks_wait(&ranks), ncclSuccess);
  os_thread_join(thread);
  assert_int_equal(call_launch(&ranks, 2, &call, call.count), ncclSuccess);
  assert_int_equal(ranks_wait(&ranks), ncclSuccess);
  call_free(&call);
  ranks_close(&ranks);
}

static void abort_ends_everything(void **state) {
  (void)state;
  setenv("TUTTI_STALL_SECONDS", "60", 1);
  for (size_t i = 0; i < LENGTH(all_protocols); i++) {
    abort_run("slots=2,chunk=64", all_protocols[i]);
    abort_run("mode=threads,slots=2,chunk=64", all_protocols[i]);
  }
  setenv("TUTTI_STALL_SECONDS", "1", 1);
}

/* ---- threads ---- */

static void threads_give_the_same_results(void **state) {
  (void)state;
  char emu[EMU_BYTES];
  for (unsigned i = 0; i < 8; i++) {
    uint64_t data_hash[2];
    for (unsigned threads = 0; threads < 2; threads++) {
      snprintf(emu, sizeof emu, "mode=%s,slots=%u,chunk=%u,channels=%u,direct=%u,depth=%u",
               threads ? "threads" : "guarded", 2 + i % 7, 64 + i * 100, 1 + i % 3, i % 2, 1 + i % 4);
      data_hash[threads] = drawn_run(emu, 1, NULL, i, 12, 3000).data_hash;
    }
    assert_true(data_hash[0] == data_hash[1]);
  }
}

static void threads_report_a_deadlock(void **state) {
  (void)state;
  struct call call = all_reduce_of(PROTO_SIMPLE, 16);
  world_begin("mode=threads,slots=1,chunk=64,channels=1", 9, NULL);
  assert_int_equal(ranks_open(&ranks, 3), ncclSuccess);
  calls_launch(&call, 1);
  assert_int_equal(ranks_wait(&ranks), ncclRemoteError);
  assert_ring_report(3);
  call_free(&call);
  ranks_close(&ranks);
}

/* One of two threads, each driving half of the ranks. */
struct driver {
  struct call *calls;
  uint32_t call_count, first_rank, end_rank;
  bool each; /* waits after each call, instead of once at the end */
  pthread_barrier_t *owned;
  ncclResult_t result;
};

static void *driver_body(void *argument) {
  struct driver *driver = (struct driver *)argument;
  for (uint32_t rank = driver->first_rank; rank < driver->end_rank; rank++)
    ranks.ops->device->comm_own(ranks.comms[rank]);
  pthread_barrier_wait(driver->owned); /* else the first could run before the other owns its ranks */
  for (uint32_t i = 0; i < driver->call_count; i++) {
    for (uint32_t rank = driver->first_rank; rank < driver->end_rank; rank++) {
      const ncclResult_t result = call_launch(&ranks, rank, &driver->calls[i], driver->calls[i].count);
      if (driver->result == ncclSuccess) driver->result = result;
    }
    if (driver->each && driver->result == ncclSuccess)
      driver->result = ranks_wait_for(&ranks, driver->first_rank, driver->end_rank);
  }
  /* For all ranks: a thread that owns ranks and does not wait stops the scheduler. */
  if (driver->result == ncclSuccess) driver->result = ranks_wait(&ranks);
  return NULL;
}

static struct outcome two_threads_run(uint64_t seed, bool each) {
  static struct call calls[CALLS_MAX];
  os_thread thread;
  draw_state = 7;
  calls_draw(calls, 12, 4, 100);
  world_begin("slots=3,chunk=48,channels=2,lag=30,depth=2", seed, NULL);
  assert_int_equal(ranks_open(&ranks, 4), ncclSuccess);
  for (uint32_t i = 0; i < 12; i++) assert_true(call_prepare(&ranks, &calls[i]));
  pthread_barrier_t owned;
  pthread_barrier_init(&owned, NULL, 2);
  struct driver drivers[2] = {{calls, 12, 0, 2, each, &owned, ncclSuccess},
                              {calls, 12, 2, 4, each, &owned, ncclSuccess}};
  assert_true(os_thread_start(&thread, driver_body, &drivers[1]));
  driver_body(&drivers[0]);
  os_thread_join(thread);
  pthread_barrier_destroy(&owned);
  if (drivers[0].result != ncclSuccess || drivers[1].result != ncclSuccess) fail_msg("%s", log_last_error());
  return calls_end(calls, 12, "two threads");
}

static void two_threads_are_deterministic(void **state) {
  (void)state;
  setenv("TUTTI_STALL_SECONDS", "60", 1); /* a busy machine keeps a thread away for more than a second */
  for (uint64_t seed = 1; seed <= 10; seed++)
    for (int each = 0; each <= 1; each++) {
      const struct outcome first = two_threads_run(seed, each);
      for (int second = 0; second < 3; second++)
        assert_true(two_threads_run(seed, each).trace_hash == first.trace_hash);
    }
  setenv("TUTTI_STALL_SECONDS", "1", 1);
}

/* ---- configuration ---- */

static void configure_refuses(void **state) {
  (void)state;
  const tutti_emu_config_t none = {.size = sizeof none};
  tutti_emu_config_t bad[12];
  for (size_t i = 0; i < LENGTH(bad); i++) bad[i] = none;
  bad[0].size = 0;
  bad[1].size = sizeof none + 1;
  bad[2].threads = 2;
  bad[3].threads = -1;
  bad[4].slots = 9;
  bad[5].depth = 5;
  bad[6].lag_percent = 101;
  bad[7].flag_bits = 33;
  bad[8].flag_bits = 4;
  bad[9].channel_count = 65;
  bad[10].device_count = 1000000;
  bad[11].chunk_bytes = UINT32_MAX;
  world_begin("slots=3", 1, NULL);
  assert_int_equal(tutti_emu_configure(NULL), ncclInvalidArgument);
  for (size_t i = 0; i < LENGTH(bad); i++) {
    if (tutti_emu_configure(&bad[i]) != ncclInvalidArgument) fail_msg("bad config %zu was taken", i);
    assert_says("tutti_emu_configure: ");
  }
  struct plan_limits limits;
  assert_int_equal(emu_backend()->device->limits(&limits), ncclSuccess);
  assert_int_equal(limits.slots, 3);
}

static void configure_refuses_while_in_use(void **state) {
  (void)state;
  const tutti_emu_config_t config = {.size = sizeof config, .slots = 5};
  world_begin("slots=3", 1, NULL);
  assert_int_equal(ranks_open(&ranks, 2), ncclSuccess);
  assert_int_equal(tutti_emu_configure(&config), ncclInvalidUsage);
  assert_int_equal(emu_backend()->device->limits(&ranks.limits), ncclSuccess);
  assert_int_equal(ranks.limits.slots, 3);
  ranks_close(&ranks);
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_int_equal(emu_backend()->device->limits(&ranks.limits), ncclSuccess);
  assert_int_equal(ranks.limits.slots, 5);
}

static void bad_settings_are_refused(void **state) {
  (void)state;
  static const char *const bad[][2] = {{"slots=0", "slots cannot be \"0\" (it takes a number from 1 to 8)"},
                                       {"slots=9", "slots cannot be \"9\""},
                                       {"slots=x", "slots cannot be \"x\""},
                                       {"slots", "slots has no value"},
                                       {"rule=best", "(it takes random, priority, round_robin)"},
                                       {"flag_bits=4", "flag_bits cannot be"},
                                       {"sloths=2", "no key sloths; did you mean slots? (the keys are"},
                                       {"weak=2", "weak cannot be"},
                                       {"mode=thread", "did you mean threads?"},
                                       {"weaken=nothings", "did you mean nothing?"}};
  for (size_t i = 0; i < LENGTH(bad); i++) {
    char emu[EMU_BYTES], fault[1024];
    tutti_emu_config_t config = {.size = sizeof config};
    snprintf(emu, sizeof emu, "chunk=64,%s,channels=3", bad[i][0]);
    setenv("TUTTI_EMU", emu, 1);
    param_reset();
    assert_int_equal(tutti_emu_configure(&config), ncclInvalidUsage);
    assert_says(bad[i][1]);
    assert_false(emu_settings_check(fault, sizeof fault));
    assert_non_null(strstr(fault, bad[i][1]));
  }
  world_begin("chunk=64,channels=3", 1, NULL); /* and right ones after them are taken */
}

static void stats_and_trace_paths_are_checked(void **state) {
  (void)state;
  tutti_emu_stats_t stats = {.size = 1};
  tutti_emu_config_t config = {.size = sizeof config, .trace_path = "/nonexistent/folder/trace"};
  world_begin("slots=3", 1, NULL);
  assert_int_equal(tutti_emu_stats(NULL), ncclInvalidArgument);
  assert_int_equal(tutti_emu_stats(&stats), ncclInvalidArgument);
  assert_int_not_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_says("/nonexistent/folder/trace");
  assert_int_equal(tutti_emu_trace_close(), ncclSuccess);
}

/* ---- memory ---- */

static void nothing_is_left_over(void **state) {
  (void)state;
  drawn_run("slots=3,chunk=48,channels=2", 1, NULL, 7, 12, 200);
  world_begin("slots=3", 1, NULL);
  const uint64_t live = os_alloc_live();
  for (int i = 0; i < 3; i++) {
    drawn_run("slots=3,chunk=48,channels=2", 1, NULL, 7, 12, 200);
    world_begin("slots=3", 1, NULL);
    assert_true(os_alloc_live() == live);
  }
}

static int group_begin(void **state) {
  (void)state;
  setenv("TUTTI_STALL_SECONDS", "1", 1); /* a sanitizer's own thread delays deadlock reports by this long */
  setenv("NCCL_DEBUG", "NONE", 1);       /* most warnings here are expected */
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(same_seed_same_events, ranks_drop),
      cmocka_unit_test_teardown(other_seed_other_events, ranks_drop),
      cmocka_unit_test_teardown(same_seed_same_trace_file, ranks_drop),
      cmocka_unit_test_teardown(every_slot_count_carries_everything, ranks_drop),
      cmocka_unit_test_teardown(every_chunk_and_type, ranks_drop),
      cmocka_unit_test_teardown(every_channel_count_and_rule, ranks_drop),
      cmocka_unit_test_teardown(every_span_of_ll, ranks_drop),
      cmocka_unit_test_teardown(flags_come_around, ranks_drop),
      cmocka_unit_test_teardown(flags_come_around_between_protocols, ranks_drop),
      cmocka_unit_test_teardown(protocols_take_turns, ranks_drop),
      cmocka_unit_test_teardown(one_slot_carries_a_chain, ranks_drop),
      cmocka_unit_test_teardown(one_slot_stops_a_ring, ranks_drop),
      cmocka_unit_test_teardown(long_report_ends_with_the_command, ranks_drop),
      cmocka_unit_test_teardown(absent_rank_is_named, ranks_drop),
      cmocka_unit_test_teardown(mismatched_counts_are_refused, ranks_drop),
      cmocka_unit_test_teardown(abort_ends_everything, ranks_drop),
      cmocka_unit_test_teardown(threads_give_the_same_results, ranks_drop),
      cmocka_unit_test_teardown(threads_report_a_deadlock, ranks_drop),
      cmocka_unit_test_teardown(two_threads_are_deterministic, ranks_drop),
      cmocka_unit_test_teardown(configure_refuses, ranks_drop),
      cmocka_unit_test_teardown(configure_refuses_while_in_use, ranks_drop),
      cmocka_unit_test_teardown(bad_settings_are_refused, ranks_drop),
      cmocka_unit_test_teardown(stats_and_trace_paths_are_checked, ranks_drop),
      cmocka_unit_test_teardown(nothing_is_left_over, ranks_drop),
  };
  return cmocka_run_group_tests(tests, group_begin, NULL);
}
