/* test_threads.c: one thread per rank on the emulator, in both modes: communicators made from unique ids,
 * every collective with its result checked, grouped messages, a split, and an abort that ends the wait of a
 * rank whose peers do not call. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "base/os.h"
#include "tutti.h"

#define RANKS 4
#define COUNT 500
#define ROUNDS 9

struct rank {
  os_thread thread;
  int rank;
  uint32_t wrong; /* elements, or calls that failed */
  ncclComm_t comm;
  const ncclUniqueId *ids; /* one per round */
  float *in, *out;         /* device memory, RANKS * COUNT elements */
};

static float value(int rank, int index) { return (float)(rank * 5000 + index); }

static void expect(struct rank *self, ncclResult_t result) {
  if (result == ncclSuccess) return;
  print_error("rank %d: %d %s\n", self->rank, result, ncclGetLastError(NULL));
  self->wrong += 1;
}

static void fill(struct rank *self) {
  for (int i = 0; i < RANKS * COUNT; i++) {
    self->in[i] = value(self->rank, i);
    self->out[i] = -1;
  }
}

/* Block `block` of the output must be `count` values of `source` from index `first` on. */
static void check_moved(struct rank *self, int block, int source, int first, int count) {
  for (int i = 0; i < count; i++) self->wrong += self->out[block * COUNT + i] != value(source, first + i);
}

static void check_sum(struct rank *self, int first) {
  for (int i = 0; i < COUNT; i++) {
    self->wrong += self->out[i] != 5000 * (0 + 1 + 2 + 3) + (float)(RANKS * (first + i));
  }
}

static void exchange_messages(struct rank *self) {
  const int next = (self->rank + 1) % RANKS, previous = (self->rank + RANKS - 1) % RANKS;
  expect(self, ncclGroupStart());
  for (int i = 0; i < 3; i++) {
    expect(self, ncclSend(self->in + 50 * i, 50, ncclFloat, next, self->comm, NULL));
    expect(self, ncclRecv(self->out + 50 * i, 50, ncclFloat, previous, self->comm, NULL));
  }
  expect(self, ncclGroupEnd());
}

static void run_round(struct rank *self, int round) {
  const float *in = self->in;
  float *out = self->out;
  ncclComm_t comm = self->comm;
  switch (round) {
    case 0: expect(self, ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, NULL)); break;
    case 1: expect(self, ncclAllGather(in, out, COUNT, ncclFloat, comm, NULL)); break;
    case 2: expect(self, ncclReduceScatter(in, out, COUNT, ncclFloat, ncclSum, comm, NULL)); break;
    case 3: expect(self, ncclBroadcast(in, out, COUNT, ncclFloat, 2, comm, NULL)); break;
    case 4: expect(self, ncclReduce(in, out, COUNT, ncclFloat, ncclMax, 1, comm, NULL)); break;
    case 5: expect(self, ncclAlltoAll(in, out, COUNT, ncclFloat, comm, NULL)); break;
    case 6: expect(self, ncclGather(in, out, COUNT, ncclFloat, 3, comm, NULL)); break;
    case 7: expect(self, ncclScatter(in, out, COUNT, ncclFloat, 3, comm, NULL)); break;
    default: exchange_messages(self); break;
  }
}

static void check_round(struct rank *self, int round) {
  const int rank = self->rank;
  switch (round) {
    case 0: check_sum(self, 0); break;
    case 2: check_sum(self, rank * COUNT); break;
    case 3: check_moved(self, 0, 2, 0, COUNT); break;
    case 4:
      if (rank == 1) check_moved(self, 0, RANKS - 1, 0, COUNT);
      break;
    case 7: check_moved(self, 0, 3, rank * COUNT, COUNT); break;
    case 8: check_moved(self, 0, (rank + RANKS - 1) % RANKS, 0, 150); break;
    default: break;
  }
  for (int source = 0; source < RANKS; source++) {
    if (round == 1 || (round == 6 && rank == 3)) check_moved(self, source, source, 0, COUNT);
    if (round == 5) check_moved(self, source, source, rank * COUNT, COUNT);
  }
}

/* Destroy waits for the rank's kernels, so received data is complete afterwards. */
static void *rounds_body(void *argument) {
  struct rank *self = (struct rank *)argument;
  backend_ops()->device->select((uint32_t)self->rank);
  for (int round = 0; round < ROUNDS; round++) {
    fill(self);
    expect(self, ncclCommInitRank(&self->comm, RANKS, self->ids[round], self->rank));
    run_round(self, round);
    expect(self, ncclCommDestroy(self->comm));
    check_round(self, round);
  }
  return NULL;
}

/* Ranks 0, 2 and 1, 3 are split into two communicators, the higher rank first. */
static void *split_body(void *argument) {
  struct rank *self = (struct rank *)argument;
  ncclComm_t half = NULL;
  int rank = -1;
  backend_ops()->device->select((uint32_t)self->rank);
  fill(self);
  expect(self, ncclCommInitRank(&self->comm, RANKS, self->ids[0], self->rank));
  expect(self, ncclCommSplit(self->comm, self->rank % 2, -self->rank, &half, NULL));
  expect(self, ncclCommUserRank(half, &rank));
  self->wrong += rank != (self->rank < 2);
  expect(self, ncclAllReduce(self->in, self->out, COUNT, ncclFloat, ncclSum, half, NULL));
  expect(self, ncclCommDestroy(half));
  expect(self, ncclCommDestroy(self->comm));
  for (int i = 0; i < COUNT; i++) {
    self->wrong += self->out[i] != value(self->rank, i) + value((self->rank + 2) % RANKS, i);
  }
  return NULL;
}

/* Only rank 0 calls; abort ends its wait. */
static void *abort_body(void *argument) {
  struct rank *self = (struct rank *)argument;
  backend_ops()->device->select((uint32_t)self->rank);
  expect(self, ncclCommInitRank(&self->comm, RANKS, self->ids[0], self->rank));
  if (self->rank == 0) {
    expect(self, ncclAllReduce(self->in, self->out, COUNT, ncclFloat, ncclSum, self->comm, NULL));
  }
  expect(self, ncclCommAbort(self->comm));
  return NULL;
}

static void run_ranks(void *(*body)(void *argument), int threads) {
  const tutti_emu_config_t config = {.size = sizeof config, .threads = threads};
  struct rank ranks[RANKS];
  ncclUniqueId ids[ROUNDS];
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  memset(ranks, 0, sizeof ranks);
  for (int i = 0; i < ROUNDS; i++) assert_int_equal(ncclGetUniqueId(&ids[i]), ncclSuccess);
  for (int i = 0; i < RANKS; i++) {
    ranks[i].rank = i;
    ranks[i].ids = ids;
    backend_ops()->device->select((uint32_t)i);
    assert_int_equal(ncclMemAlloc((void **)&ranks[i].in, RANKS * COUNT * sizeof(float)), ncclSuccess);
    assert_int_equal(ncclMemAlloc((void **)&ranks[i].out, RANKS * COUNT * sizeof(float)), ncclSuccess);
  }
  for (int i = 0; i < RANKS; i++) assert_true(os_thread_start(&ranks[i].thread, body, &ranks[i]));
  for (int i = 0; i < RANKS; i++) os_thread_join(ranks[i].thread);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(ranks[i].wrong, 0);
    assert_int_equal(ncclMemFree(ranks[i].in), ncclSuccess);
    assert_int_equal(ncclMemFree(ranks[i].out), ncclSuccess);
  }
}

static void test_rounds_guarded(void **state) {
  (void)state;
  run_ranks(rounds_body, 0);
}
static void test_rounds_threads(void **state) {
  (void)state;
  run_ranks(rounds_body, 1);
}
static void test_split_guarded(void **state) {
  (void)state;
  run_ranks(split_body, 0);
}
static void test_split_threads(void **state) {
  (void)state;
  run_ranks(split_body, 1);
}
static void test_abort_guarded(void **state) {
  (void)state;
  run_ranks(abort_body, 0);
}
static void test_abort_threads(void **state) {
  (void)state;
  run_ranks(abort_body, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_rounds_guarded), cmocka_unit_test(test_rounds_threads),
      cmocka_unit_test(test_split_guarded),  cmocka_unit_test(test_split_threads),
      cmocka_unit_test(test_abort_guarded),  cmocka_unit_test(test_abort_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
