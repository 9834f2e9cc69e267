/* test_processes.c: ranks in several processes of one host, over shared memory: every protocol and collective
 * with sizes that exercise every wait, with and without direct stores, in both modes of the emulator; a peer
 * that dies; no leaks. */
/* sanitizers: address thread */
/* runner: tsan 84 s */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/emu/block.h"
#include "base/log.h"
#include "base/os.h"
#include "processes.h"
#include "skip.h"

#define SECONDS 60

struct setting {
  const char *mode; /* text of TUTTI_EMU */
  uint32_t seeds;
  uint32_t algo_mask; /* 0: only the ring */
  uint32_t func_mask; /* 0: all that rings and messages support */
  bool heap;
};

static uint64_t mix(uint64_t seed, uint64_t number) {
  uint64_t z = seed * UINT64_C(0x9e3779b97f4a7c15) + number * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 30)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static const uint8_t types[] = {ncclInt8, ncclFloat32, ncclInt64, ncclFloat16};

static bool carried(const struct setting *setting, uint8_t func, uint8_t proto) {
  if (func == FUNC_SEND_RECV && proto == PROTO_LL128) return false;
  if (setting->func_mask == 0) return func != FUNC_ALL_TO_ALL;
  /* A switch and PAT support only Simple. */
  const uint32_t simple = 1u << ALGO_NVLS | 1u << ALGO_PAT;
  return ((setting->func_mask >> func) & 1) != 0 &&
         ((setting->algo_mask & simple) == 0 || proto == PROTO_SIMPLE);
}

static const char *run_calls(struct process *process, const struct setting *setting, uint64_t seed) {
  static const uint8_t funcs[] = {FUNC_BROADCAST,  FUNC_REDUCE,    FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER,
                                  FUNC_ALL_REDUCE, FUNC_SEND_RECV, FUNC_ALL_TO_ALL, FUNC_ALL_REDUCE};
  for (uint32_t i = 0; i < sizeof funcs; i++)
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
      const uint64_t draw = mix(seed, i * 8 + proto);
      struct process_call call = {.func = funcs[i], .proto = proto, .dtype = types[draw % sizeof types]};
      if (!carried(setting, call.func, proto)) continue;
      call.root = (uint32_t)(draw >> 8) % process_rank_count(process);
      call.count = 1 + (draw >> 16) % 300;
      const char *text = process_do(process, &call);
      if (text != NULL) return text;
    }
  return NULL;
}

/* Peers that have not closed yet share memory with this process. */
static bool mappings_go(void) {
  for (int tries = 0; tries < 2000 && process_mappings() != 0; tries++) {
    os_sleep_ms(1);
    emu_kept_sweep();
  }
  return process_mappings() == 0;
}

static const char *one_seed(struct process *process, const struct setting *setting, uint64_t seed) {
  char emu[160];
  const uint64_t draw = mix(seed, 1000);
  snprintf(emu, sizeof emu, "%s,slots=%u,chunk=%u,channels=%u,flag_bits=%u,depth=%u,lag=%u,span=%u,direct=%u",
           setting->mode, 1u << (1 + draw % 3), 16 + (unsigned)(draw >> 4) % 200,
           1 + (unsigned)(draw >> 12) % 3, 6 + (unsigned)(draw >> 16) % 3, 1 + (unsigned)(draw >> 20) % 2,
           (unsigned)(draw >> 24) % 2 * 50, 1 + (unsigned)(draw >> 28) % 8, (unsigned)seed % 2);
  process->algo_mask = setting->algo_mask;
  process->heap = setting->heap;
  const char *text = process_configure(process, emu, seed);
  if (text == NULL) text = process_open(process);
  if (text == NULL) text = run_calls(process, setting, seed);
  if (text == NULL && !process_meet(process)) text = "a process has gone";
  if (text == NULL) process_close(process);
  return text;
}

static const char *seeds_body(struct process *process, void *argument) {
  const struct setting *setting = (const struct setting *)argument;
  const uint32_t descriptors = process_descriptors();
  uint64_t live = 0; /* after the first seed: memory that a process keeps once it has used the library */
  for (uint64_t seed = 1; seed <= setting->seeds; seed++) {
    const char *text = one_seed(process, setting, seed);
    if (text != NULL) return text;
    if (seed == 1) live = os_alloc_live();
  }
  if (!mappings_go()) return "mappings are left";
  for (int tries = 0;
       tries < 1000 && os_thread_count() > THREADS_AT_REST && strstr(setting->mode, "threads") == NULL;
       tries++)
    os_sleep_ms(1);
  if (process_descriptors() != descriptors) return "descriptors are left";
  if (strstr(setting->mode, "threads") == NULL && os_alloc_live() > live) return "memory is left";
  return NULL;
}

static void seeds(uint32_t count, uint32_t ranks_each, const char *mode, uint32_t seed_count,
                  uint32_t algo_mask, uint32_t func_mask, bool heap) {
  struct setting setting = {mode, seed_count, algo_mask, func_mask, heap};
  assert_int_equal(processes_run(count, ranks_each, SECONDS, seeds_body, &setting, NULL), 0);
}

static void rings(uint32_t count, uint32_t ranks_each, const char *mode, uint32_t seed_count) {
  seeds(count, ranks_each, mode, seed_count, 0, 0, false);
}

static void test_two_guarded(void **state) {
  (void)state;
  rings(2, 1, "mode=guarded", 40);
}
static void test_two_threads(void **state) {
  (void)state;
  rings(2, 1, "mode=threads", 10);
}
static void test_four_guarded(void **state) {
  (void)state;
  rings(4, 1, "mode=guarded", 16);
}
static void test_four_threads(void **state) {
  (void)state;
  rings(4, 1, "mode=threads", 4);
}
static void test_two_of_two(void **state) {
  (void)state;
  rings(2, 2, "mode=guarded", 16);
  rings(2, 2, "mode=guarded,rule=priority", 8);
  rings(2, 2, "mode=threads", 4);
}
static void test_weak(void **state) {
  (void)state;
  rings(2, 2, "mode=guarded,weak=1", 16);
}

#define BIT(name) (1u << (name))

/* Guarded mode runs one thread at a time, which ThreadSanitizer learns little from. */
#if defined(__SANITIZE_THREAD__)
enum { GUARDED_SEEDS = 1 };
#else
enum { GUARDED_SEEDS = 4 };
#endif

static void test_other_algorithms(void **state) {
  (void)state;
  static const struct {
    uint32_t algo_mask, func_mask;
  } rows[] = {
      {BIT(ALGO_TREE), BIT(FUNC_ALL_REDUCE)},
      {BIT(ALGO_TWO_SHOT), BIT(FUNC_ALL_REDUCE)},
      {BIT(ALGO_DIRECT),
       BIT(FUNC_ALL_REDUCE) | BIT(FUNC_REDUCE_SCATTER) | BIT(FUNC_ALL_TO_ALL) | BIT(FUNC_REDUCE)},
      {BIT(ALGO_PAT), BIT(FUNC_ALL_GATHER) | BIT(FUNC_REDUCE_SCATTER)},
      {BIT(ALGO_NVLS), BIT(FUNC_ALL_REDUCE) | BIT(FUNC_ALL_GATHER) | BIT(FUNC_REDUCE_SCATTER)},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    seeds(4, 1, "mode=guarded", GUARDED_SEEDS, rows[i].algo_mask, rows[i].func_mask, false);
    seeds(2, 2, "mode=guarded", GUARDED_SEEDS, rows[i].algo_mask, rows[i].func_mask, false);
    seeds(2, 1, "mode=threads", 2, rows[i].algo_mask, rows[i].func_mask, false);
  }
}

/* The address that another process has shown last, on channel 0. */
static uint64_t address_shown(const struct process *process, uint32_t rank, uint32_t peer) {
  const struct emu_conn *conn = emu_conn_find(process->comms[rank], peer, 0, CONN_COLLECTIVE, false);
  const uint64_t *halves = conn->fifo->receiver.source.halves;
  return (halves[0] & UINT32_MAX) | halves[1] << 32;
}

static const char *inputs_body(struct process *process, void *argument) {
  const struct setting *setting = (const struct setting *)argument;
  process->algo_mask = setting->algo_mask;
  process->heap = setting->heap;
  for (uint64_t seed = 1; seed <= setting->seeds; seed++) {
    const char *text = process_configure(process, setting->mode, seed);
    if (text == NULL) text = process_open(process);
    for (uint32_t i = 0; i < 3 && text == NULL; i++) {
      const uint8_t func =
          (setting->func_mask >> FUNC_ALL_REDUCE & 1) != 0 ? FUNC_ALL_REDUCE : FUNC_REDUCE_SCATTER;
      struct process_call call = {.func = func, .proto = PROTO_SIMPLE, .dtype = ncclInt32, .count = 6000 + i};
      text = process_do(process, &call);
    }
    if (text != NULL) return text;
    const uint64_t address = address_shown(process, process->index, 1 - process->index);
    if ((address == 0) != setting->heap) return "inputs are not shown as they should be";
    if (!process_meet(process)) return "a process has gone";
    process_close(process);
  }
  return NULL;
}

/* Inputs of other processes are read in place, except where no other process can map them. */
static void test_inputs_of_others(void **state) {
  static const struct {
    uint32_t algo_mask, func_mask;
  } rows[] = {{BIT(ALGO_TWO_SHOT), BIT(FUNC_ALL_REDUCE)},
              {BIT(ALGO_DIRECT), BIT(FUNC_ALL_REDUCE)},
              {BIT(ALGO_DIRECT), BIT(FUNC_REDUCE_SCATTER)}};
  static const char *const modes[] = {"mode=guarded,chunk=4096", "mode=guarded,weak=1,chunk=4096,slots=3",
                                      "mode=threads,inputs=1"};
  (void)state;
  for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++)
    for (size_t k = 0; k < sizeof modes / sizeof modes[0]; k++) {
      struct setting setting = {modes[k], GUARDED_SEEDS, rows[i / 2].algo_mask, rows[i / 2].func_mask,
                                i % 2 == 1};
      if (k == 2 || setting.seeds > 3) setting.seeds = 3;
      assert_int_equal(processes_run(2, 1, SECONDS, inputs_body, &setting, NULL), 0);
    }
}

/* Outputs that no peer can map: no offer, the data goes through slots. */
static void test_private_memory(void **state) {
  (void)state;
  seeds(4, 1, "mode=guarded", 2, BIT(ALGO_TWO_SHOT), BIT(FUNC_ALL_REDUCE), true);
  seeds(2, 2, "mode=guarded", 2, BIT(ALGO_DIRECT), BIT(FUNC_ALL_REDUCE) | BIT(FUNC_REDUCE_SCATTER), true);
  seeds(2, 1, "mode=guarded", 4, 0, 0, true);
  seeds(2, 1, "mode=threads", 2, 0, 0, true);
}

/* ---- ranks that close immediately ---- */

/* One call; memory and communicator are freed as soon as this process is done, wherever the others are. */
static const char *hasty_round(struct process *process, uint64_t round) {
  struct process_call call = {.func = FUNC_ALL_REDUCE, .proto = PROTO_LL, .dtype = ncclInt32};
  call.count = 1 + mix(round, 0) % 3;
  call.proto = (uint8_t)(mix(round, 1) % PROTO_COUNT);
  const char *text = process_open(process);
  if (text != NULL) return text;
  if (!process_prepare(process, &call)) return "out of memory";
  if ((text = process_launch(process, &call)) != NULL) return text;
  if (process_wait(process, 0) != ncclSuccess) return "a rank cannot end";
  if ((text = process_check(process, &call)) != NULL) return text;
  process_free(process, &call);
  process_close(process);
  return NULL;
}

static const char *hasty_body(struct process *process, void *argument) {
  const char *mode = (const char *)argument;
  const uint32_t descriptors = process_descriptors();
  const char *text = process_configure(process, mode, 1);
  for (uint64_t round = 0; round < 40 && text == NULL; round++) text = hasty_round(process, round);
  if (text != NULL) return text;
  if (!mappings_go()) return "mappings are left";
  return process_descriptors() == descriptors ? NULL : "descriptors are left";
}

/* Receivers are done before their senders, which must still find the memory that they use. */
static void test_hasty(void **state) {
  static const char *const modes[] = {"mode=guarded", "mode=threads", "mode=threads,slots=2,chunk=16"};
  (void)state;
  for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
    assert_int_equal(processes_run(9, 1, SECONDS, hasty_body, (void *)(uintptr_t)modes[i], NULL), 0);
}

/* Process 1 makes the FIFO that process 0 is to send to, closes, and process 0 ends in one way or another. */
static const char *kept_body(struct process *process, void *argument) {
  const char *how = (const char *)argument;
  struct process_call call = {.func = FUNC_ALL_REDUCE, .proto = PROTO_SIMPLE, .dtype = ncclInt32, .count = 5};
  const char *text = process_configure(process, "mode=guarded", 1);
  if (text == NULL) text = process_open(process);
  if (text == NULL) text = process_do(process, &call);
  if (text != NULL) return text;
  if (process->index == 0) {
    if (!process_meet(process)) return "a process has gone"; /* the other process has closed */
    if (strcmp(how, "closes") == 0) process_close(process);
    if (strcmp(how, "dies") == 0) kill(getpid(), SIGKILL);
    return process_meet(process) ? NULL : "a process has gone";
  }
  process_close(process);
  emu_kept_sweep();
  if (process_mappings() == 0) return "the memory went while its sender was there";
  if (!process_meet(process)) return "a process has gone";
  if (process_meet(process) == (strcmp(how, "dies") == 0)) return "the other did not do as it was told";
  return mappings_go() ? NULL : "the memory did not go with its sender";
}

static void test_kept(void **state) {
  (void)state;
  assert_int_equal(processes_run(2, 1, SECONDS, kept_body, (void *)(uintptr_t) "closes", NULL), 0);
  assert_int_equal(processes_run(2, 1, SECONDS, kept_body, (void *)(uintptr_t) "ends", NULL), 0);
  assert_int_equal(processes_run(2, 1, SECONDS, kept_body, (void *)(uintptr_t) "dies", NULL), 1);
}

/* ---- a peer that dies ---- */

static void *abort_later(void *argument) {
  struct process *process = (struct process *)argument;
  os_sleep_ms(50);
  for (uint32_t rank = 0; rank < process_rank_count(process); rank++)
    if (process->comms[rank] != NULL) process->ops->device->comm_abort(process->comms[rank]);
  return NULL;
}

static void *die_later(void *argument) {
  (void)argument;
  os_sleep_ms(30);
  kill(getpid(), SIGKILL);
  return NULL;
}

/* Waits that do not end, then an abort that ends them. */
static const char *survive(struct process *process) {
  os_thread thread;
  bool said = false;
  for (int tries = 0; !said && tries < 20; tries++) { /* a busy machine takes long to report a hang */
    if (process_wait(process, 400) != ncclInProgress)
      return "a call ended without its peer, or as a deadlock";
    said = strstr(log_last_error(), "the wait goes on") != NULL;
  }
  if (!said) return "nobody said that nothing moves";
  const uint64_t begin_ns = os_time_ns();
  if (!os_thread_start(&thread, abort_later, process)) return "no thread";
  process_wait(process, 0);
  os_thread_join(thread);
  return os_time_ns() - begin_ns > UINT64_C(3000000000) ? "an abort took long" : NULL;
}

/* Process 0 is killed during a call. */
static const char *death_body(struct process *process, void *argument) {
  struct process_call call = {
      .func = FUNC_ALL_REDUCE, .proto = PROTO_SIMPLE, .dtype = ncclInt32, .count = 500};
  struct process_call last = call;
  os_thread thread;
  last.count = 8000000;
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  const char *text = process_configure(process, (const char *)argument, 1);
  if (text == NULL) text = process_open(process);
  if (text == NULL) text = process_do(process, &call);
  if (text != NULL) return text;
  if (!process_prepare(process, &last)) return "out of memory";
  if ((text = process_launch(process, &last)) != NULL) return text;
  if (process->index == 0) {
    if (!os_thread_start(&thread, die_later, NULL)) return "no thread";
    process_wait(process, 0);
    os_sleep_ms(1000);
    return "did not die";
  }
  if ((text = survive(process)) != NULL) return text;
  process_close(process);
  process_free(process, &last);
  return mappings_go() ? NULL : "mappings are left";
}

static void death(const char *emu) {
  assert_int_equal(processes_run(3, 1, SECONDS, death_body, (void *)(uintptr_t)emu, NULL), 1);
}

static void test_death_guarded(void **state) {
  (void)state;
  death("mode=guarded,slots=2,chunk=64");
}
static void test_death_threads(void **state) {
  (void)state;
  death("mode=threads,slots=2,chunk=64");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_two_guarded),
      cmocka_unit_test(test_two_threads),
      cmocka_unit_test(test_four_guarded),
      cmocka_unit_test(test_four_threads),
      cmocka_unit_test(test_two_of_two),
      cmocka_unit_test(test_weak),
      cmocka_unit_test(test_other_algorithms),
      cmocka_unit_test(test_inputs_of_others),
      cmocka_unit_test(test_private_memory),
      cmocka_unit_test(test_hasty),
      cmocka_unit_test(test_kept),
      cmocka_unit_test(test_death_guarded),
      cmocka_unit_test(test_death_threads),
  };
  alarm(300);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
