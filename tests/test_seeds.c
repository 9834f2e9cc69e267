/* test_seeds.c: an 8-rank all-reduce with each protocol under many seeds, each with settings that make rare
 * orders common: few slots, chunks of a few bytes, short flags, several slices in flight, late moves; with
 * every second seed stores are late and out of order, and with some slots are read at their sender. Results
 * are exact; a repeated seed makes the same events.
 *
 *   test_seeds                a few seeds of each protocol, as a test
 *   test_seeds FIRST COUNT    these seeds of each protocol, one `ok` or `not ok` line each; seeds.sh runs
 * many */
/* sanitizers: address thread */
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
#include "base/param.h"
#include "tutti.h"

enum { RANKS = 8, COUNT_MAX = 400, TEXT_BYTES = 300, SEEDS = 60 };

static const char *const protocols[] = {"LL", "LL128", "Simple"};

/* One seed of one protocol. */
struct trial {
  uint64_t seed;
  uint32_t protocol;
  tutti_emu_config_t config;
  uint32_t count;        /* elements: 32-bit integers */
  uint32_t reads;        /* NCCL_P2P_READ_ENABLE */
  char environment[80];  /* TUTTI_EMU: settings without a member of the config */
  char text[TEXT_BYTES]; /* the error */
};

static uint32_t draw(uint64_t *state, uint32_t lowest, uint32_t highest) {
  return lowest + (uint32_t)(hash_draw(state) >> 32) % (highest - lowest + 1);
}

static void trial_draw(struct trial *trial, uint64_t seed, uint32_t protocol) {
  static const char *const rules[] = {"random", "priority", "round_robin"};
  uint64_t state = seed * 3 + protocol;
  memset(trial, 0, sizeof *trial);
  trial->seed = seed;
  trial->protocol = protocol;
  trial->config.size = sizeof trial->config;
  trial->config.seed = seed;
  trial->config.slots = draw(&state, 2, 8);
  trial->config.chunk_bytes = draw(&state, 1, 64);
  trial->config.channel_count = draw(&state, 1, 3);
  trial->config.depth = draw(&state, 1, 4);
  trial->config.flag_bits = draw(&state, 5, 32);
  const uint32_t lag = draw(&state, 0, 100), span = draw(&state, 1, 8), rule = draw(&state, 0, 2);
  trial->count = draw(&state, 0, 3) == 0 ? draw(&state, 100, COUNT_MAX) : draw(&state, 1, 100);
  const uint32_t weak = draw(&state, 0, 1);
  trial->reads = draw(&state, 0, 1);
  snprintf(trial->environment, sizeof trial->environment, "lag=%u,span=%u,rule=%s,weak=%u", lag, span,
           rules[rule], weak);
}

static bool trial_fail(struct trial *trial, const char *what) {
  snprintf(trial->text, sizeof trial->text, "%s: %s", what, ncclGetLastError(NULL));
  return false;
}

static uint32_t value(const struct trial *trial, uint32_t rank, uint32_t index) {
  return (uint32_t)trial->seed * 2654435761u + rank * 40503u + index * index;
}

/* Device memory: rank r's input, then its output. */
static bool memory_check(struct trial *trial, uint32_t *memory[RANKS]) {
  for (uint32_t i = 0; i < trial->count; i++) {
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) sum += value(trial, rank, i);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
      if (memory[rank][COUNT_MAX + i] == sum) continue;
      snprintf(trial->text, sizeof trial->text, "rank %u element %u is %u instead of %u", rank, i,
               memory[rank][COUNT_MAX + i], sum);
      return false;
    }
  }
  return true;
}

static bool trial_sum(struct trial *trial, ncclComm_t comms[RANKS], uint32_t *memory[RANKS]) {
  bool ok = ncclGroupStart() == ncclSuccess;
  for (uint32_t rank = 0; ok && rank < RANKS; rank++) {
    for (uint32_t i = 0; i < trial->count; i++) memory[rank][i] = value(trial, rank, i);
    ok = ncclAllReduce(memory[rank], memory[rank] + COUNT_MAX, trial->count, ncclUint32, ncclSum, comms[rank],
                       NULL) == ncclSuccess;
  }
  if (ncclGroupEnd() != ncclSuccess || !ok) return trial_fail(trial, "ncclAllReduce");
  for (int rank = 0; rank < RANKS; rank++) {
    cudaSetDevice(rank);
    if (cudaStreamSynchronize(NULL) != cudaSuccess) return trial_fail(trial, "cudaStreamSynchronize");
  }
  return memory_check(trial, memory);
}

static bool trial_run(struct trial *trial, uint32_t *memory[RANKS], uint64_t *hash) {
  ncclComm_t comms[RANKS];
  tutti_emu_stats_t stats = {.size = sizeof stats};
  setenv("TUTTI_EMU", trial->environment, 1);
  setenv("NCCL_PROTO", protocols[trial->protocol], 1);
  setenv("NCCL_P2P_READ_ENABLE", trial->reads != 0 ? "1" : "0", 1);
  param_reset();
  if (tutti_emu_configure(&trial->config) != ncclSuccess) return trial_fail(trial, "tutti_emu_configure");
  if (ncclCommInitAll(comms, RANKS, NULL) != ncclSuccess) return trial_fail(trial, "ncclCommInitAll");
  bool ok = trial_sum(trial, comms, memory);
  for (int rank = 0; rank < RANKS; rank++) {
    if (!ok) ncclCommAbort(comms[rank]);
    else if (ncclCommDestroy(comms[rank]) != ncclSuccess) ok = trial_fail(trial, "ncclCommDestroy");
  }
  tutti_emu_stats(&stats);
  *hash = stats.trace_hash;
  return ok;
}

static void trial_print(const struct trial *trial) {
  const tutti_emu_config_t *c = &trial->config;
  printf(
      "not ok - %s seed %llu, %u elements, TUTTI_EMU=slots=%u,chunk=%u,channels=%u,depth=%u,flag_bits=%u,%s "
      "NCCL_P2P_READ_ENABLE=%u: %s\n",
      protocols[trial->protocol], (unsigned long long)trial->seed, trial->count, c->slots, c->chunk_bytes,
      c->channel_count, c->depth, c->flag_bits, trial->environment, trial->reads, trial->text);
}

/* The number of failing seeds, each of which is printed. Each seed runs twice. */
static uint32_t seeds_run(uint64_t first, uint64_t count, uint32_t protocol, uint32_t *memory[RANKS]) {
  uint32_t failures = 0;
  for (uint64_t seed = first; seed < first + count; seed++) {
    struct trial trial;
    uint64_t hash = 0, second = 0;
    trial_draw(&trial, seed, protocol);
    bool ok = trial_run(&trial, memory, &hash);
    if (ok) {
      ok = trial_run(&trial, memory, &second);
      if (ok && hash != second) snprintf(trial.text, sizeof trial.text, "two runs make different moves");
      ok = ok && hash == second;
    }
    failures += !ok;
    if (!ok) trial_print(&trial);
  }
  return failures;
}

static void memory_open(uint32_t *memory[RANKS]) {
  for (int rank = 0; rank < RANKS; rank++) {
    cudaSetDevice(rank);
    if (cudaMalloc((void **)&memory[rank], 2 * COUNT_MAX * sizeof(uint32_t)) != cudaSuccess) abort();
  }
}

static void memory_close(uint32_t *memory[RANKS]) {
  for (int rank = 0; rank < RANKS; rank++) cudaFree(memory[rank]);
}

static void protocol_test(uint32_t protocol) {
  uint32_t *memory[RANKS];
  memory_open(memory);
  const uint32_t failures = seeds_run(1, SEEDS, protocol, memory);
  memory_close(memory);
  assert_int_equal(failures, 0);
}

static void test_ll(void **state) {
  (void)state;
  protocol_test(0);
}
static void test_ll128(void **state) {
  (void)state;
  protocol_test(1);
}
static void test_simple(void **state) {
  (void)state;
  protocol_test(2);
}

static int seeds_main(uint64_t first, uint64_t count) {
  uint32_t *memory[RANKS], failures = 0;
  memory_open(memory);
  for (uint32_t protocol = 0; protocol < 3; protocol++) {
    const uint32_t failed = seeds_run(first, count, protocol, memory);
    if (failed == 0)
      printf("ok - %s, seeds %llu to %llu\n", protocols[protocol], (unsigned long long)first,
             (unsigned long long)(first + count - 1));
    failures += failed;
  }
  memory_close(memory);
  return failures > 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ll), cmocka_unit_test(test_ll128),
                                     cmocka_unit_test(test_simple)};
  if (argc == 3) return seeds_main(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10));
  return cmocka_run_group_tests(tests, NULL, NULL);
}
