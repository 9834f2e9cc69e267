/* test_lifecycle.c: communicators from creation to destruction, many in one process, on the emulator in both
 * modes: created without blocking, split, shrunk and revoked, finalized with work in flight, destroyed in any
 * order, aborted by another thread, and used across a fork. Nothing may leak. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include "backends/backend.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/comm/use.h"
#include "tutti.h"
#include "skip.h"

#define RANKS 4
#define COUNT 3000

static int threads; /* free threads, or guarded */
static float *in[RANKS], *out[RANKS];

#define expect_ok(call)                                                                     \
  do {                                                                                      \
    const ncclResult_t ok_ = (call);                                                        \
    if (ok_ != ncclSuccess) fail_msg("%s gave %d: %s", #call, ok_, ncclGetLastError(NULL)); \
  } while (0)

static void memory_take(void) {
  for (int i = 0; i < RANKS; i++) {
    backend_ops()->device->select((uint32_t)i);
    expect_ok(ncclMemAlloc((void **)&in[i], COUNT * sizeof(float)));
    expect_ok(ncclMemAlloc((void **)&out[i], COUNT * sizeof(float)));
    for (int k = 0; k < COUNT; k++) in[i][k] = (float)(i + 1);
  }
}

static void memory_give(void) {
  for (int i = 0; i < RANKS; i++) {
    expect_ok(ncclMemFree(in[i]));
    expect_ok(ncclMemFree(out[i]));
  }
}

/* Waits until nothing is in flight. */
static void outputs_clear(void) {
  for (int i = 0; i < RANKS; i++) memset(out[i], 0, COUNT * sizeof(float));
}

static void begin(void) {
  const tutti_emu_config_t config = {.size = sizeof config, .threads = threads};
  expect_ok(tutti_emu_configure(&config));
  memory_take();
  outputs_clear();
}

/* All ranks' parts of one all-reduce, from one thread. */
static void reduce_start(const ncclComm_t *comms, int count) {
  expect_ok(ncclGroupStart());
  for (int i = 0; i < count; i++)
    if (comms[i]) expect_ok(ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, comms[i], NULL));
  expect_ok(ncclGroupEnd());
}

/* The same for calls that must be made on all ranks before any rank waits. */
static void finalize(const ncclComm_t *comms, int count) {
  expect_ok(ncclGroupStart());
  for (int i = 0; i < count; i++)
    if (comms[i]) expect_ok(ncclCommFinalize(comms[i]));
  expect_ok(ncclGroupEnd());
}

static void outputs_check(const ncclComm_t *comms, int count, float sum) {
  for (int i = 0; i < count; i++)
    for (int k = 0; comms[i] && k < COUNT; k++)
      if (out[i][k] != sum) fail_msg("rank %d element %d: %g, not %g", i, k, (double)out[i][k], (double)sum);
}

/* Waits by polling, as non-blocking communicators require. */
static ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (int tries = 0; state == ncclInProgress && tries < 20000; tries++) {
    expect_ok(ncclCommGetAsyncError(comm, &state));
    if (state == ncclInProgress) os_yield();
  }
  return state;
}

/* ---- work in flight ---- */

static void finalize_in_flight(int launches) {
  ncclComm_t comms[RANKS];
  begin();
  expect_ok(ncclCommInitAll(comms, RANKS, NULL));
  for (int i = 0; i < launches; i++) reduce_start(comms, RANKS);
  finalize(comms, RANKS);
  for (int i = 0; i < RANKS; i++) {
    if (ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, comms[i], NULL) == ncclSuccess)
      fail_msg("rank %d takes operations after its end", i);
    expect_ok(ncclCommDestroy(comms[i]));
  }
  outputs_check(comms, RANKS, 1 + 2 + 3 + 4);
  memory_give();
}

static void test_finalize_in_flight(void **state) {
  (void)state;
  finalize_in_flight(1);
  finalize_in_flight(5);
}

/* ---- any order ---- */

/* A parent, its two halves, and the parent shrunk by its last rank: three communicators per rank. */
struct family {
  ncclComm_t members[3][RANKS];
};

static void family_make(struct family *family) {
  int last = RANKS - 1;
  memset(family, 0, sizeof *family);
  expect_ok(ncclCommInitAll(family->members[0], RANKS, NULL));
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++)
    expect_ok(ncclCommSplit(family->members[0][i], i % 2, i, &family->members[1][i], NULL));
  expect_ok(ncclGroupEnd());
  expect_ok(ncclGroupStart());
  for (int i = 0; i < last; i++)
    expect_ok(
        ncclCommShrink(family->members[0][i], &last, 1, &family->members[2][i], NULL, NCCL_SHRINK_DEFAULT));
  expect_ok(ncclGroupEnd());
}

static void family_use(const struct family *family) {
  reduce_start(family->members[0], RANKS);
  reduce_start(family->members[1], RANKS);
  reduce_start(family->members[2], RANKS);
}

/* Every order of the three, a different one on each rank. */
static void test_any_order(void **state) {
  static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  (void)state;
  for (int first = 0; first < 6; first++) {
    struct family family;
    begin();
    family_make(&family);
    family_use(&family);
    for (int which = 0; which < 3; which++) finalize(family.members[which], RANKS);
    for (int turn = 0; turn < 3; turn++) {
      for (int i = 0; i < RANKS; i++) {
        const ncclComm_t comm = family.members[orders[(first + i) % 6][turn]][i];
        if (comm) expect_ok(ncclCommDestroy(comm));
      }
    }
    outputs_check(family.members[2], RANKS, 1 + 2 + 3);
    memory_give();
  }
}

/* A child still works after its parent is destroyed or aborted. */
static void test_orphans(void **state) {
  (void)state;
  for (int aborted = 0; aborted < 2; aborted++) {
    struct family family;
    begin();
    family_make(&family);
    for (int i = 0; i < RANKS; i++)
      expect_ok(aborted ? ncclCommAbort(family.members[0][i]) : ncclCommDestroy(family.members[0][i]));
    outputs_clear();
    reduce_start(family.members[2], RANKS);
    finalize(family.members[2], RANKS);
    outputs_check(family.members[2], RANKS, 1 + 2 + 3);
    for (int i = 0; i < RANKS; i++) {
      expect_ok(ncclCommDestroy(family.members[1][i]));
      if (family.members[2][i]) expect_ok(ncclCommDestroy(family.members[2][i]));
    }
    memory_give();
  }
}

/* ---- without blocking ---- */

static void test_nonblocking(void **state) {
  ncclComm_t comms[RANKS], halves[RANKS];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  (void)state;
  begin();
  config.blocking = 0;
  expect_ok(ncclGetUniqueId(&id));
  for (int i = 0; i < RANKS; i++) {
    ncclResult_t asked;
    backend_ops()->device->select((uint32_t)i);
    const ncclResult_t begun = ncclCommInitRankConfig(&comms[i], RANKS, id, i, &config);
    assert_true(begun == ncclSuccess || begun == ncclInProgress);
    expect_ok(ncclCommGetAsyncError(comms[i], &asked));
    if (i < RANKS - 1) assert_int_equal(asked, ncclInProgress);
  }
  for (int i = 0; i < RANKS; i++) assert_int_equal(settle(comms[i]), ncclSuccess);
  for (int i = 0; i < RANKS; i++) {
    const ncclResult_t begun = ncclCommSplit(comms[i], i / 2, i, &halves[i], &config);
    assert_true(begun == ncclSuccess || begun == ncclInProgress);
  }
  for (int i = 0; i < RANKS; i++) assert_int_equal(settle(comms[i]), ncclSuccess);
  for (int i = 0; i < RANKS; i++) assert_int_equal(settle(halves[i]), ncclSuccess);
  for (int i = 0; i < RANKS; i++) {
    const ncclResult_t begun = ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, halves[i], NULL);
    assert_true(begun == ncclSuccess || begun == ncclInProgress);
  }
  for (int i = 0; i < RANKS; i++) {
    const ncclResult_t begun = ncclCommFinalize(halves[i]);
    assert_true(begun == ncclSuccess || begun == ncclInProgress);
  }
  for (int i = 0; i < RANKS; i++) assert_int_equal(settle(halves[i]), ncclSuccess);
  outputs_check(halves, 2, 1 + 2);
  for (int i = 0; i < RANKS; i++) {
    expect_ok(ncclCommDestroy(halves[i]));
    expect_ok(ncclCommAbort(comms[i]));
  }
  memory_give();
}

/* ---- revoked, shrunk, aborted by another thread ---- */

/* Rank 3 does not call an operation; another thread revokes, and the others continue without it. */
static void *revoke_body(void *argument) {
  ncclComm_t *comms = (ncclComm_t *)argument;
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < RANKS && result == ncclSuccess; i++) result = ncclCommRevoke(comms[i], 0);
  return result == ncclSuccess ? NULL : argument;
}

static void test_revoke_and_shrink(void **state) {
  ncclComm_t comms[RANKS], rest[RANKS] = {NULL};
  int gone = RANKS - 1;
  os_thread thread;
  (void)state;
  begin();
  expect_ok(ncclCommInitAll(comms, RANKS, NULL));
  reduce_start(comms, gone);
  assert_true(os_thread_start(&thread, revoke_body, comms));
  os_thread_join(thread);
  assert_int_not_equal(ncclAllReduce(in[0], out[0], COUNT, ncclFloat, ncclSum, comms[0], NULL), ncclSuccess);
  expect_ok(ncclGroupStart());
  for (int i = 0; i < gone; i++)
    expect_ok(ncclCommShrink(comms[i], &gone, 1, &rest[i], NULL, NCCL_SHRINK_ABORT));
  expect_ok(ncclGroupEnd());
  outputs_clear();
  reduce_start(rest, RANKS);
  finalize(rest, RANKS);
  outputs_check(rest, RANKS, 1 + 2 + 3);
  for (int i = 0; i < RANKS; i++) {
    if (rest[i]) expect_ok(ncclCommDestroy(rest[i]));
    expect_ok(ncclCommAbort(comms[i]));
  }
  memory_give();
}

struct waiter {
  ncclComm_t comm;
  ncclResult_t result;
};

static void *finalize_body(void *argument) {
  struct waiter *waiter = (struct waiter *)argument;
  waiter->result = ncclCommFinalize(waiter->comm);
  return NULL;
}

/* A thread waits for work that cannot end; another thread aborts it. */
static void test_abort_from_another_thread(void **state) {
  ncclComm_t comms[RANKS];
  struct waiter waiter;
  os_thread thread;
  (void)state;
  if (!threads) return; /* in guarded mode a wait that cannot end is a deadlock, and reported */
  begin();
  expect_ok(ncclCommInitAll(comms, RANKS, NULL));
  reduce_start(comms, RANKS - 1);
  waiter.comm = comms[0];
  assert_true(os_thread_start(&thread, finalize_body, &waiter));
  os_sleep_ms(20);
  for (int i = RANKS - 1; i >= 0; i--) expect_ok(ncclCommAbort(comms[i]));
  os_thread_join(thread);
  assert_int_not_equal(waiter.result, ncclSuccess);
  memory_give();
}

/* A thread inside a call, and another one that aborts. */
struct caller {
  ncclComm_t comm;
  _Atomic int called, may_return, aborted;
};

static void *call_body(void *argument) {
  struct caller *caller = (struct caller *)argument;
  assert_true(use_begin(caller->comm, "ncclAllReduce", __builtin_return_address(0)));
  caller->called = 1;
  while (!caller->may_return) os_yield();
  caller->called = caller->aborted ? 0 : 2;
  use_end(caller->comm);
  return NULL;
}

static void *abort_body(void *argument) {
  struct caller *caller = (struct caller *)argument;
  expect_ok(ncclCommAbort(caller->comm));
  caller->aborted = 1;
  return NULL;
}

static void test_end_beside_a_call(void **state) {
  static struct caller caller;
  ncclComm_t comms[RANKS];
  os_thread inside, aborts;
  (void)state;
  begin();
  expect_ok(ncclCommInitAll(comms, RANKS, NULL));
  memset(&caller, 0, sizeof caller);
  caller.comm = comms[1];
  assert_true(os_thread_start(&inside, call_body, &caller));
  while (!caller.called) os_yield();
  assert_int_equal(ncclCommDestroy(comms[1]), ncclInvalidUsage);
  assert_non_null(strstr(ncclGetLastError(NULL), "rank 1 of comm"));
  assert_non_null(strstr(ncclGetLastError(NULL), "has ncclAllReduce of another thread, called at"));
  assert_non_null(strstr(ncclGetLastError(NULL), "which has not returned"));
  assert_int_equal(ncclCommFinalize(comms[1]), ncclInvalidUsage);
  assert_true(os_thread_start(&aborts, abort_body, &caller));
  while (use_check(comms[1], "ncclAllReduce", NULL) == ncclSuccess) os_yield();
  caller.may_return = 1; /* abort waits for this call's return, and other calls are refused */
  os_thread_join(inside);
  os_thread_join(aborts);
  assert_int_equal(caller.called, 2);
  for (int i = 0; i < RANKS; i++)
    if (i != 1) expect_ok(ncclCommAbort(comms[i]));
  memory_give();
}

static void *destroy_body(void *argument) {
  struct waiter *waiter = (struct waiter *)argument;
  waiter->result = ncclCommDestroy(waiter->comm);
  return NULL;
}

static void *abort_waiter_body(void *argument) {
  struct waiter *waiter = (struct waiter *)argument;
  waiter->result = ncclCommAbort(waiter->comm);
  return NULL;
}

static ncclResult_t elsewhere(void *(*body)(void *), ncclComm_t comm) {
  struct waiter waiter = {comm, ncclSuccess};
  os_thread thread;
  assert_true(os_thread_start(&thread, body, &waiter));
  os_thread_join(thread);
  return waiter.result;
}

/* Another thread ends a communicator that has a call in this thread's open group: a destroy changes nothing,
 * an abort ends the group with an error. */
static void test_end_beside_a_group(void **state) {
  ncclComm_t comms[RANKS];
  (void)state;
  begin();
  outputs_clear();
  expect_ok(ncclCommInitAll(comms, RANKS, NULL));
  for (int aborts = 0; aborts < 2; aborts++) {
    expect_ok(ncclGroupStart());
    for (int i = 0; i < RANKS; i++)
      expect_ok(ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, comms[i], NULL));
    assert_int_equal(elsewhere(aborts ? abort_waiter_body : destroy_body, comms[2]), ncclInvalidUsage);
    assert_int_equal(ncclGroupEnd(), aborts ? ncclInvalidUsage : ncclSuccess);
    if (aborts) assert_non_null(strstr(ncclGetLastError(NULL), "another thread has called ncclCommAbort"));
    for (int i = 0; i < RANKS && !aborts; i++) {
      assert_int_equal(cudaSetDevice(i), cudaSuccess);
      assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    }
    outputs_check(comms, RANKS, 1 + 2 + 3 + 4);
  }
  for (int i = 0; i < RANKS; i++) expect_ok(elsewhere(abort_waiter_body, comms[i]));
  memory_give();
}

/* ---- a rank that comes late ---- */

struct comer {
  ncclUniqueId id;
  ncclComm_t own; /* its rank of the communicator with waiting kernels */
  ncclComm_t met;
  int rank;
  unsigned late_ms;
  ncclResult_t result;
};

/* Initializes a communicator with the other thread first, and then calls the operation that kernels wait for.
 */
static void *comer_body(void *argument) {
  struct comer *comer = (struct comer *)argument;
  os_sleep_ms(comer->late_ms);
  cudaSetDevice(comer->rank);
  comer->result = ncclCommInitRank(&comer->met, 2, comer->id, comer->rank);
  if (comer->result != ncclSuccess || !comer->own) return NULL;
  comer->result =
      ncclAllReduce(in[comer->rank], out[comer->rank], COUNT, ncclFloat, ncclSum, comer->own, NULL);
  return NULL;
}

/* Kernels make no progress for longer than TUTTI_STALL_SECONDS while a rank waits in init, maybe for another
 * process: that is no deadlock. */
static void test_late_rank(void **state) {
  ncclComm_t comms[2];
  struct comer early = {.rank = 1}, late = {.rank = 0, .late_ms = 2200};
  os_thread threads_of[2];
  (void)state;
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  param_reset();
  begin();
  expect_ok(ncclCommInitAll(comms, 2, NULL));
  expect_ok(ncclGetUniqueId(&early.id));
  late.id = early.id;
  early.own = comms[1];
  assert_true(os_thread_start(&threads_of[0], comer_body, &early));
  assert_true(os_thread_start(&threads_of[1], comer_body, &late));
  assert_int_equal(cudaSetDevice(0), cudaSuccess);
  expect_ok(ncclAllReduce(in[0], out[0], COUNT, ncclFloat, ncclSum, comms[0], NULL));
  assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
  for (int i = 0; i < 2; i++) os_thread_join(threads_of[i]);
  expect_ok(early.result);
  expect_ok(late.result);
  finalize(comms, 2);
  outputs_check(comms, 2, 3);
  for (int i = 0; i < 2; i++) expect_ok(ncclCommDestroy(comms[i]));
  const ncclComm_t met[2] = {early.met, late.met};
  finalize(met, 2);
  for (int i = 0; i < 2; i++) expect_ok(ncclCommDestroy(met[i]));
  memory_give();
  unsetenv("TUTTI_STALL_SECONDS");
  param_reset();
}

/* ---- forks ---- */

/* In the child: 0, or the line that failed. */
#define CHILD(condition)               \
  do {                                 \
    if (!(condition)) return __LINE__; \
  } while (0)

static int child_body(const ncclComm_t *theirs) {
  ncclComm_t comms[2];
  ncclResult_t asked;
  CHILD(ncclAllReduce(in[0], out[0], COUNT, ncclFloat, ncclSum, theirs[0], NULL) == ncclInvalidUsage);
  CHILD(strstr(ncclGetLastError(NULL), "fork") != NULL);
  CHILD(ncclCommGetAsyncError(theirs[0], &asked) == ncclInvalidUsage);
  CHILD(ncclCommDestroy(theirs[1]) == ncclInvalidUsage);
  CHILD(ncclCommAbort(theirs[1]) == ncclInvalidUsage);
  CHILD(ncclCommInitAll(comms, 2, NULL) == ncclInvalidUsage);
  CHILD(strstr(ncclGetLastError(NULL), "forked from one that has communicators") != NULL);
  return 0;
}

static void test_fork(void **state) {
  ncclComm_t comms[RANKS];
  int status = 0;
  (void)state;
  if (threads) SKIP_FORK();
  begin();
  expect_ok(ncclCommInitAll(comms, RANKS, NULL));
  reduce_start(comms, RANKS);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(cudaSetDevice(i), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    const int line = child_body(comms);
    if (line) fprintf(stderr, "test_lifecycle.c:%d: in the child: %s\n", line, ncclGetLastError(NULL));
    _exit(line ? 1 : 0);
  }
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  outputs_clear();
  reduce_start(comms, RANKS);
  finalize(comms, RANKS);
  outputs_check(comms, RANKS, 1 + 2 + 3 + 4);
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommDestroy(comms[i]));
  memory_give();
}

/* ---- */

static int guarded(void **state) {
  (void)state;
  threads = 0;
  return 0;
}

static int free_threads(void **state) {
  (void)state;
  threads = 1;
  return 0;
}

int main(void) {
#define BOTH(test) \
  cmocka_unit_test_setup(test, guarded), { #test " (threads)", test, free_threads, NULL, NULL }
  const struct CMUnitTest tests[] = {
      BOTH(test_finalize_in_flight),
      BOTH(test_any_order),
      BOTH(test_orphans),
      BOTH(test_nonblocking),
      BOTH(test_revoke_and_shrink),
      BOTH(test_abort_from_another_thread),
      BOTH(test_end_beside_a_call),
      BOTH(test_end_beside_a_group),
      BOTH(test_late_rank),
      BOTH(test_fork),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
