/* test_inputs.c: direct collectives over Simple in which ranks read the inputs of others in place. OneShot,
 * TwoShot and reduce-scatter with 2 to 5 ranks, in place and out of place, with one element to several loops,
 * in guarded mode, with weak memory and with free threads. Results are exact and have the bits that the slots
 * give; the next operation of a rank overwrites the input of the last one. Guarded mode runs one thread at a
 * time, so that with ThreadSanitizer only a sample of it runs. */
/* sanitizers: address thread */
/* runner: tsan 30 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "ranks.h"

#if defined(__SANITIZE_THREAD__)
enum { SEEDS = 2, SIZES_STRIDE = 2, SIZES = 3, GUARDED_STRIDE = 8 };
#else
enum { SEEDS = 6, SIZES_STRIDE = 1, SIZES = 4, GUARDED_STRIDE = 1 };
#endif
enum { CALLS = 4, THREADS_FACTOR = 6000 };

struct kind {
  const char *name;
  uint8_t func, algo;
  bool in_place, shows;
};
static const struct kind kinds[] = {
    {"OneShot", FUNC_ALL_REDUCE, ALGO_DIRECT, false, true},
    {"OneShot in place", FUNC_ALL_REDUCE, ALGO_DIRECT, true, false},
    {"TwoShot", FUNC_ALL_REDUCE, ALGO_TWO_SHOT, false, true},
    {"TwoShot in place", FUNC_ALL_REDUCE, ALGO_TWO_SHOT, true, true},
    {"ReduceScatter", FUNC_REDUCE_SCATTER, ALGO_DIRECT, false, true},
    {"ReduceScatter in place", FUNC_REDUCE_SCATTER, ALGO_DIRECT, true, true},
    {"Reduce", FUNC_REDUCE, ALGO_DIRECT, false, true},
    {"Reduce in place", FUNC_REDUCE, ALGO_DIRECT, true, true},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const struct {
  const char *emu;
  int threads;
} settings[] = {
    {"slots=2,chunk=64,channels=2", 0},
    {"slots=2,chunk=48,channels=1,rule=priority", 0},
    {"slots=8,chunk=64,channels=3,depth=3,lag=40", 0},
    {"slots=3,chunk=64,channels=2,depth=4,lag=80,rule=round_robin", 0},
    {"slots=3,chunk=64,channels=2,weak=1", 0},
    {"slots=2,chunk=64,channels=1,weak=1,rule=priority", 0},
    {"slots=5,chunk=96,channels=2,direct=1,inputs=1", 0},
    {"slots=3,chunk=64,channels=2,depth=2,lag=30,inputs=2", 0},
    {"slots=2,chunk=4096,channels=2", 1},
    {"slots=8", 1},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

static const size_t counts[] = {1, 7, 48, 300};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* A sample of the guarded settings, another one of each kind and number. */
static bool setting_runs(size_t which, size_t kind, size_t number) {
  return settings[which].threads || (which + kind + number) % GUARDED_STRIDE == 0;
}

static uint32_t shown_works; /* works with WORK_SHOWS_INPUT since the count was set to 0 */

/* Connects and launches a plan as ranks.c does, and counts. */
static ncclResult_t launch_counted(struct ranks *ranks, uint32_t rank, struct plan *plan) {
  const struct device_ops *device = ranks->ops->device;
  const device_stream stream = NULL;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    shown_works += (work->flags & WORK_SHOWS_INPUT) != 0;
    for (uint32_t k = 0; k < work->send_count; k++)
      TRY(device->comm_connect(ranks->comms[rank], ranks->comms[work->send_peer[k]], work->channel_index,
                               work->conn_index, work_slots(work)));
    for (uint32_t k = 0; k < work->recv_count; k++)
      TRY(device->comm_connect(ranks->comms[work->recv_peer[k]], ranks->comms[rank], work->channel_index,
                               work->conn_index, work_slots(work)));
  }
  return device->launch(ranks->comms[rank], plan, &stream, 1);
}

static void world_open(struct ranks *ranks, uint32_t rank_count, const struct kind *kind, const char *emu,
                       int threads, uint64_t seed) {
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .threads = threads};
  setenv("TUTTI_EMU", emu, 1);
  param_reset();
  assert_int_equal(ranks_configure(&config), ncclSuccess);
  assert_int_equal(ranks_open(ranks, rank_count), ncclSuccess);
  ranks->algo_mask = 1u << kind->algo;
  ranks->launch = launch_counted;
}

static void call_begin(struct ranks *ranks, struct call *call, const struct kind *kind, size_t count) {
  memset(call, 0, sizeof *call);
  call->func = kind->func;
  call->proto = PROTO_SIMPLE;
  call->dtype = ncclFloat32;
  call->in_place = kind->in_place;
  call->count = count;
  assert_true(call_prepare(ranks, call));
}

/* Several calls, launched before the first is waited for. Returns a hash of all outputs. */
static uint64_t calls_run(uint32_t rank_count, const struct kind *kind, const char *emu, int threads,
                          size_t count, uint64_t seed) {
  struct ranks ranks;
  struct call calls[CALLS];
  char text[RANKS_TEXT_BYTES];
  uint64_t hash = 0;
  world_open(&ranks, rank_count, kind, emu, threads, seed);
  for (int i = 0; i < CALLS; i++) {
    call_begin(&ranks, &calls[i], kind, count);
    assert_int_equal(call_launch_all(&ranks, &calls[i]), ncclSuccess);
  }
  if (ranks_wait(&ranks) != ncclSuccess)
    fail_msg("%s, %u ranks, count %zu, %s, seed %llu: %s", kind->name, rank_count, count, emu,
             (unsigned long long)seed, log_last_error());
  for (int i = 0; i < CALLS; i++) {
    if (!call_check(&ranks, &calls[i], text))
      fail_msg("%s, %u ranks, %s, seed %llu: %s", kind->name, rank_count, emu, (unsigned long long)seed,
               text);
    hash = call_hash(&ranks, &calls[i], hash);
    call_free(&calls[i]);
  }
  ranks_close(&ranks);
  return hash;
}

/* Between cores, short messages use slots. */
static size_t count_of(size_t count, int threads) {
  return threads ? count * THREADS_FACTOR / 40 + 5000 : count;
}

static uint64_t setting_run(uint32_t rank_count, const struct kind *kind, size_t which, bool inputs,
                            size_t count, uint64_t seed) {
  char emu[128];
  snprintf(emu, sizeof emu, "%s%s", settings[which].emu, inputs ? "" : ",inputs=0");
  shown_works = 0;
  const uint64_t hash = calls_run(rank_count, kind, emu, settings[which].threads, count, seed);
  assert_true((shown_works > 0) == (kind->shows && inputs));
  return hash;
}

static void setting_test(uint32_t rank_count, const struct kind *kind, size_t which) {
  for (size_t i = 0; i < SIZES; i += SIZES_STRIDE) {
    const size_t count = count_of(counts[i], settings[which].threads);
    const uint64_t seed = 1 + i + which * COUNTS;
    assert_true(setting_run(rank_count, kind, which, false, count, seed) ==
                setting_run(rank_count, kind, which, true, count, seed));
  }
}

static void test_results(void **state) {
  (void)state;
  for (uint32_t rank_count = 2; rank_count <= 5; rank_count++)
    for (size_t kind = 0; kind < KINDS; kind++)
      for (size_t which = 0; which < SETTINGS; which++)
        if (setting_runs(which, kind, rank_count)) setting_test(rank_count, &kinds[kind], which);
}

/* The second call's outputs are the first one's inputs: a rank that begins it before the others have read its
 * input changes their sums. */
static void overwrite_run(uint32_t rank_count, const struct kind *kind, const char *emu, int threads,
                          uint64_t seed) {
  struct ranks ranks;
  struct call calls[2];
  char text[RANKS_TEXT_BYTES];
  const size_t count = threads ? 9000 : 60;
  world_open(&ranks, rank_count, kind, emu, threads, seed);
  call_begin(&ranks, &calls[0], kind, count);
  call_begin(&ranks, &calls[1], kind, count);
  for (uint32_t rank = 0; rank < rank_count; rank++) calls[1].out[rank] = calls[0].in[rank];
  for (int i = 0; i < 2; i++) assert_int_equal(call_launch_all(&ranks, &calls[i]), ncclSuccess);
  if (ranks_wait(&ranks) != ncclSuccess) fail_msg("%s, %s: %s", kind->name, emu, log_last_error());
  for (int i = 0; i < 2; i++)
    if (!call_check(&ranks, &calls[i], text)) fail_msg("%s, %s: %s", kind->name, emu, text);
  for (int i = 0; i < 2; i++) call_free(&calls[i]);
  ranks_close(&ranks);
}

static void test_input_is_overwritten_next(void **state) {
  (void)state;
  for (size_t kind = 0; kind < KINDS; kind++)
    for (size_t which = 0; which < SETTINGS; which++)
      for (uint64_t seed = 1; seed <= SEEDS && !kinds[kind].in_place; seed++)
        if (setting_runs(which, kind, seed))
          overwrite_run(2 + (uint32_t)seed % 4, &kinds[kind], settings[which].emu, settings[which].threads,
                        seed);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_results),
                                     cmocka_unit_test(test_input_is_overwritten_next)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
