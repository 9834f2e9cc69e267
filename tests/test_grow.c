/* test_grow.c: communicators that grow inside one process, on the emulator in both modes: in one group, by
 * threads, without blocking, again and again; and what wrong programs are told. test_grow_jobs.sh has
 * processes. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "backends/backend.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "tutti.h"

#define RANKS 4
#define COUNT 3000

static int threads; /* free threads, or guarded */
static float *in[RANKS], *out[RANKS];

#define expect_ok(call)                                                                     \
  do {                                                                                      \
    const ncclResult_t ok_ = (call);                                                        \
    if (ok_ != ncclSuccess) fail_msg("%s gave %d: %s", #call, ok_, ncclGetLastError(NULL)); \
  } while (0)

/* The call fails with this code and a sentence that has these words. */
#define expect_refused(code, words, call)                                                       \
  do {                                                                                          \
    const ncclResult_t refused_ = (call);                                                       \
    if (refused_ != (code) || !strstr(ncclGetLastError(NULL), words))                           \
      fail_msg("%s gave %d, not %d: %s", #call, refused_, (int)(code), ncclGetLastError(NULL)); \
  } while (0)

static void begin(void) {
  const tutti_emu_config_t config = {.size = sizeof config, .threads = threads};
  expect_ok(tutti_emu_configure(&config));
  for (int i = 0; i < RANKS; i++) {
    backend_ops()->device->select((uint32_t)i);
    expect_ok(ncclMemAlloc((void **)&in[i], COUNT * sizeof(float)));
    expect_ok(ncclMemAlloc((void **)&out[i], COUNT * sizeof(float)));
    for (int k = 0; k < COUNT; k++) in[i][k] = (float)(1 << i);
  }
}

static void end(void) {
  for (int i = 0; i < RANKS; i++) {
    expect_ok(ncclMemFree(in[i]));
    expect_ok(ncclMemFree(out[i]));
  }
}

/* All ranks reduce, and every element of every rank is right. */
static void expect_sums(const ncclComm_t *comms, int count) {
  for (int i = 0; i < count; i++) memset(out[i], 0, COUNT * sizeof(float));
  expect_ok(ncclGroupStart());
  for (int i = 0; i < count; i++)
    expect_ok(ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, comms[i], NULL));
  expect_ok(ncclGroupEnd());
  for (int i = 0; i < count; i++) {
    backend_ops()->device->select((uint32_t)i);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
  }
  for (int i = 0; i < count; i++)
    for (int k = 0; k < COUNT; k++)
      if (out[i][k] != (float)((1 << count) - 1))
        fail_msg("rank %d of %d, element %d: %g", i, count, k, (double)out[i][k]);
}

static void destroy(ncclComm_t *comms, int count) {
  expect_ok(ncclGroupStart());
  for (int i = 0; i < count; i++) expect_ok(ncclCommFinalize(comms[i]));
  expect_ok(ncclGroupEnd());
  for (int i = 0; i < count; i++) expect_ok(ncclCommDestroy(comms[i]));
}

static ncclResult_t join(int rank, int size, const ncclUniqueId *id, ncclComm_t *comm, ncclConfig_t *config) {
  backend_ops()->device->select((uint32_t)rank);
  return ncclCommGrow(NULL, size, id, rank, comm, config);
}

/* In one group; `late`: the ranks that join call last. */
static void grow(const ncclComm_t *parents, int before, int after, int coordinator, bool late,
                 ncclComm_t *comms) {
  ncclUniqueId id;
  expect_ok(ncclCommGetUniqueId(parents[coordinator], &id));
  expect_ok(ncclGroupStart());
  for (int i = before; !late && i < after; i++) expect_ok(join(i, after, &id, &comms[i], NULL));
  for (int i = 0; i < before; i++)
    expect_ok(ncclCommGrow(parents[i], after, i == coordinator ? &id : NULL, -1, &comms[i], NULL));
  for (int i = before; late && i < after; i++) expect_ok(join(i, after, &id, &comms[i], NULL));
  expect_ok(ncclGroupEnd());
}

static void expect_ranks(const ncclComm_t *comms, int count) {
  for (int i = 0; i < count; i++) {
    int rank = -1, size = -1, device = -1;
    expect_ok(ncclCommUserRank(comms[i], &rank));
    expect_ok(ncclCommCount(comms[i], &size));
    expect_ok(ncclCommCuDevice(comms[i], &device));
    assert_int_equal(rank, i);
    assert_int_equal(size, count);
    assert_int_equal(device, i);
  }
}

/* With each coordinator, and nothing is left behind: the second round has what the first one had. */
static void test_group(void **state) {
  uint64_t live[2] = {0, 0};
  (void)state;
  for (int coordinator = 0; coordinator < 2; coordinator++) {
    ncclComm_t parents[2], comms[RANKS];
    begin();
    expect_ok(ncclCommInitAll(parents, 2, NULL));
    grow(parents, 2, RANKS, coordinator, coordinator == 1, comms);
    expect_ranks(comms, RANKS);
    expect_sums(comms, RANKS);
    expect_sums(parents, 2);
    destroy(coordinator == 0 ? parents : comms, coordinator == 0 ? 2 : RANKS);
    if (coordinator == 0) expect_sums(comms, RANKS);
    else expect_sums(parents, 2);
    destroy(coordinator == 0 ? comms : parents, coordinator == 0 ? RANKS : 2);
    end();
    live[coordinator] = os_alloc_live();
  }
  assert_int_equal(live[0], live[1]);
}

/* The grown one grows, and its parent grows a second time. */
static void test_chain(void **state) {
  ncclComm_t first[1], second[2], third[3], other[RANKS];
  (void)state;
  begin();
  expect_ok(ncclCommInitAll(first, 1, NULL));
  grow(first, 1, 2, 0, false, second);
  grow(second, 2, 3, 1, true, third);
  grow(second, 2, RANKS, 0, false, other);
  expect_ranks(third, 3);
  expect_sums(third, 3);
  expect_sums(other, RANKS);
  expect_sums(second, 2);
  destroy(second, 2);
  expect_sums(other, RANKS);
  destroy(third, 3);
  destroy(first, 1);
  destroy(other, RANKS);
  end();
}

/* Two grows of one communicator in one group: after a call the next id is that of the next grow. */
static void test_two_in_a_group(void **state) {
  ncclComm_t parents[2], three[3], four[RANKS];
  ncclUniqueId ids[2];
  (void)state;
  begin();
  expect_ok(ncclCommInitAll(parents, 2, NULL));
  expect_ok(ncclGroupStart());
  for (int i = 0; i < 2; i++) {
    if (i == 0) expect_ok(ncclCommGetUniqueId(parents[i], &ids[0]));
    expect_ok(ncclCommGrow(parents[i], 3, i == 0 ? &ids[0] : NULL, -1, &three[i], NULL));
    if (i == 0) expect_ok(ncclCommGetUniqueId(parents[i], &ids[1]));
    expect_ok(ncclCommGrow(parents[i], RANKS, i == 0 ? &ids[1] : NULL, -1, &four[i], NULL));
  }
  expect_ok(join(2, 3, &ids[0], &three[2], NULL));
  for (int i = 2; i < RANKS; i++) expect_ok(join(i, RANKS, &ids[1], &four[i], NULL));
  expect_ok(ncclGroupEnd());
  assert_memory_not_equal(&ids[0], &ids[1], sizeof ids[0]);
  expect_sums(three, 3);
  expect_sums(four, RANKS);
  destroy(three, 3);
  destroy(four, RANKS);
  destroy(parents, 2);
  end();
}

/* ---- by threads ---- */

struct rank {
  ncclComm_t parent, comm;
  ncclUniqueId *id;
  int rank;
  ncclResult_t result;
};

static void *rank_body(void *argument) {
  struct rank *rank = (struct rank *)argument;
  if (rank->parent) rank->result = ncclCommGrow(rank->parent, RANKS, rank->id, -1, &rank->comm, NULL);
  else rank->result = join(rank->rank, RANKS, rank->id, &rank->comm, NULL);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  for (int coordinator = 0; coordinator < 2; coordinator++) {
    ncclComm_t parents[2], comms[RANKS];
    struct rank ranks[RANKS];
    os_thread started[RANKS];
    ncclUniqueId id;
    begin();
    expect_ok(ncclCommInitAll(parents, 2, NULL));
    expect_ok(ncclCommGetUniqueId(parents[coordinator], &id));
    for (int i = 0; i < RANKS; i++) {
      ranks[i] =
          (struct rank){i < 2 ? parents[i] : NULL, NULL, i >= 2 || i == coordinator ? &id : NULL, i, 0};
      assert_true(os_thread_start(&started[i], rank_body, &ranks[i]));
    }
    for (int i = 0; i < RANKS; i++) os_thread_join(started[i]);
    for (int i = 0; i < RANKS; i++) {
      assert_int_equal(ranks[i].result, ncclSuccess);
      comms[i] = ranks[i].comm;
    }
    expect_ranks(comms, RANKS);
    expect_sums(comms, RANKS);
    destroy(parents, 2);
    destroy(comms, RANKS);
    end();
  }
}

/* ---- without blocking ---- */

static ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (int tries = 0; state == ncclInProgress && tries < 20000; tries++) {
    expect_ok(ncclCommGetAsyncError(comm, &state));
    if (state == ncclInProgress) os_yield();
  }
  return state;
}

/* `orphan`: the communicator that grows is destroyed meanwhile. */
static void grow_without_blocking(bool orphan) {
  ncclComm_t parents[2], comms[RANKS];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  begin();
  config.blocking = 0;
  expect_ok(ncclCommInitAll(parents, 2, NULL));
  expect_ok(ncclCommGetUniqueId(parents[1], &id));
  for (int i = 0; i < RANKS; i++) {
    const ncclResult_t begun = i < 2 ? ncclCommGrow(parents[i], RANKS, NULL, -1, &comms[i], &config)
                                     : join(i, RANKS, &id, &comms[i], &config);
    assert_true(begun == ncclSuccess || begun == ncclInProgress);
    if (i == 1 && orphan) destroy(parents, 2);
  }
  for (int i = 0; i < RANKS; i++) assert_int_equal(settle(comms[i]), ncclSuccess);
  expect_ranks(comms, RANKS);
  expect_sums(comms, RANKS);
  if (!orphan) expect_sums(parents, 2);
  if (!orphan) destroy(parents, 2);
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommAbort(comms[i]));
  end();
}

static void test_nonblocking(void **state) {
  (void)state;
  grow_without_blocking(false);
  grow_without_blocking(true);
}

/* A rank inherits the config of the communicator that grows, and one that joins has the defaults. */
static void test_config(void **state) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t parent, comms[2];
  ncclUniqueId id;
  (void)state;
  begin();
  config.blocking = 0;
  backend_ops()->device->select(0);
  expect_ok(ncclGetUniqueId(&id));
  ncclResult_t begun = ncclCommInitRankConfig(&parent, 1, id, 0, &config);
  assert_true(begun == ncclSuccess || begun == ncclInProgress);
  assert_int_equal(settle(parent), ncclSuccess);
  expect_ok(ncclCommGetUniqueId(parent, &id));
  begun = ncclCommGrow(parent, 2, &id, -1, &comms[0], NULL);
  assert_int_equal(begun, ncclInProgress);
  expect_ok(join(1, 2, &id, &comms[1], NULL));
  assert_int_equal(settle(comms[0]), ncclSuccess);
  for (int i = 0; i < 2; i++) expect_ok(ncclCommAbort(comms[i]));
  expect_ok(ncclCommAbort(parent));
  end();
}

/* NCCL_COMM_ID says where other communicators meet. */
static void test_comm_id(void **state) {
  ncclComm_t parents[1], comms[2];
  (void)state;
  begin();
  expect_ok(ncclCommInitAll(parents, 1, NULL));
  setenv("NCCL_COMM_ID", "127.0.0.1:1", 1);
  param_reset();
  grow(parents, 1, 2, 0, false, comms);
  unsetenv("NCCL_COMM_ID");
  param_reset();
  expect_sums(comms, 2);
  destroy(parents, 1);
  destroy(comms, 2);
  end();
}

/* ---- wrong programs ---- */

static void test_refused(void **state) {
  ncclComm_t parents[2], others[1], comms[RANKS], comm = NULL;
  ncclUniqueId id, plain, other;
  (void)state;
  begin();
  expect_ok(ncclCommInitAll(parents, 2, NULL));
  expect_ok(ncclCommInitAll(others, 1, NULL));
  expect_ok(ncclGetUniqueId(&plain));
  expect_ok(ncclCommGetUniqueId(others[0], &other));
  expect_refused(ncclInvalidArgument, "the communicator is NULL", ncclCommGetUniqueId(NULL, &id));
  expect_refused(ncclInvalidArgument, "uniqueId is NULL", ncclCommGetUniqueId(parents[0], NULL));
  expect_ok(ncclCommGetUniqueId(parents[0], &id));
  for (int size = -1; size <= 2; size++)
    expect_refused(ncclInvalidArgument, "2 ranks before the grow",
                   ncclCommGrow(parents[0], size, &id, -1, &comm, NULL));
  expect_refused(ncclInvalidArgument, "newcomm is NULL", ncclCommGrow(parents[0], 3, &id, -1, NULL, NULL));
  expect_refused(ncclInvalidArgument, "pass -1", ncclCommGrow(parents[1], 3, NULL, 1, &comm, NULL));
  expect_refused(ncclInvalidArgument, "not of this communicator's next grow",
                 ncclCommGrow(parents[0], 3, &plain, -1, &comm, NULL));
  expect_refused(ncclInvalidArgument, "not of this communicator's next grow",
                 ncclCommGrow(parents[0], 3, &other, -1, &comm, NULL));
  expect_refused(ncclInvalidArgument, "newcomm is NULL", join(2, 3, &id, NULL, NULL));
  expect_refused(ncclInvalidArgument, "got from ncclCommGetUniqueId", join(2, 3, NULL, &comm, NULL));
  expect_refused(ncclInvalidArgument, "is of ncclGetUniqueId", join(2, 3, &plain, &comm, NULL));
  expect_refused(ncclInvalidArgument, "2 ranks before the grow", join(1, 3, &id, &comm, NULL));
  expect_refused(ncclInvalidArgument, "2 ranks before the grow", join(3, 3, &id, &comm, NULL));
  expect_refused(ncclInvalidArgument, "2 ranks before the grow", join(-1, 3, &id, &comm, NULL));
  expect_refused(ncclInvalidArgument, "pass it to ncclCommGrow", ncclCommInitRank(&comm, 3, id, 2));
  assert_null(comm);
  grow(parents, 2, 3, 0, false, comms); /* nothing of it has used the id up */
  expect_sums(comms, 3);
  expect_refused(ncclInvalidArgument, "an earlier one", ncclCommGrow(parents[0], 3, &id, -1, &comm, NULL));
  expect_refused(ncclInvalidUsage, "get a new one with ncclCommGetUniqueId", join(2, 3, &id, &comm, NULL));
  assert_null(comm);
  expect_sums(parents, 2);
  destroy(comms, 3);
  destroy(parents, 2);
  destroy(others, 1);
  end();
}

/* Ranks that contradict each other; the communicator can grow after it. */
static void test_contradictions(void **state) {
  ncclComm_t parents[2], comms[RANKS] = {NULL};
  ncclUniqueId id;
  (void)state;
  begin();
  expect_ok(ncclCommInitAll(parents, 2, NULL));
  expect_ok(ncclCommGetUniqueId(parents[1], &id));
  expect_ok(ncclGroupStart());
  expect_ok(ncclCommGrow(parents[0], 3, NULL, -1, &comms[0], NULL));
  expect_ok(ncclCommGrow(parents[1], 4, NULL, -1, &comms[1], NULL));
  expect_refused(ncclInvalidArgument, "rank 1 says 4 ranks, rank 0 says 3", ncclGroupEnd());
  expect_refused(ncclInvalidUsage, "get a new one with ncclCommGetUniqueId",
                 join(2, 3, &id, &comms[2], NULL));
  expect_ok(ncclCommGetUniqueId(parents[1], &id));
  expect_ok(ncclGroupStart());
  expect_ok(ncclCommGrow(parents[0], RANKS, NULL, -1, &comms[0], NULL));
  expect_ok(ncclCommGrow(parents[1], RANKS, NULL, -1, &comms[1], NULL));
  expect_ok(join(2, RANKS, &id, &comms[2], NULL));
  expect_ok(join(2, RANKS, &id, &comms[3], NULL));
  expect_refused(ncclInvalidUsage, "rank 2 came twice", ncclGroupEnd());
  grow(parents, 2, RANKS, 1, false, comms);
  expect_sums(comms, RANKS);
  destroy(parents, 2);
  destroy(comms, RANKS);
  end();
}

/* A group fails before the communicator grows: that grow is over, and leaves nothing. */
static void test_failed_group(void **state) {
  uint64_t live[2] = {0, 0};
  (void)state;
  for (int i = 0; i < 2; i++) {
    ncclComm_t parents[2], comms[RANKS];
    ncclUniqueId id, next;
    begin();
    expect_ok(ncclCommInitAll(parents, 2, NULL));
    expect_ok(ncclCommGetUniqueId(parents[0], &id));
    expect_ok(ncclGroupStart());
    for (int k = 0; k < 2; k++) expect_ok(ncclCommGrow(parents[k], 3, NULL, -1, &comms[k], NULL));
    expect_refused(ncclInvalidArgument, "newcomm is NULL", join(2, 3, &id, NULL, NULL));
    assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
    expect_ok(ncclCommGetUniqueId(parents[0], &next));
    assert_memory_not_equal(&id, &next, sizeof id);
    if (i == 0) grow(parents, 2, 3, 0, false, comms);
    if (i == 0) destroy(comms, 3);
    destroy(parents, 2);
    end();
    live[i] = os_alloc_live();
  }
  assert_int_equal(live[0], live[1]);
}

/* An id that is never used ends with the communicator. */
static void test_unused(void **state) {
  uint64_t live[2] = {0, 0};
  (void)state;
  for (int i = 0; i < 2; i++) {
    ncclComm_t parents[2], comm;
    ncclUniqueId id, same;
    begin();
    expect_ok(ncclCommInitAll(parents, 2, NULL));
    expect_ok(ncclCommGetUniqueId(parents[0], &id));
    expect_ok(ncclCommGetUniqueId(parents[1], &same));
    assert_memory_equal(&id, &same, sizeof id);
    destroy(parents, 2);
    expect_refused(ncclInvalidArgument, "", ncclCommGrow(parents[0], 3, &id, -1, &comm, NULL));
    end();
    /* The thread that would have let ranks in frees what it has some time after the communicator. */
    for (int ms = 0; i == 1 && ms < 10000 && os_alloc_live() > live[0]; ms++) os_sleep_ms(1);
    live[i] = os_alloc_live();
  }
  assert_true(live[1] <= live[0]);
}

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
      BOTH(test_group),  BOTH(test_chain),        BOTH(test_two_in_a_group), BOTH(test_threads),
      BOTH(test_config), BOTH(test_comm_id),      BOTH(test_refused),        BOTH(test_contradictions),
      BOTH(test_unused), BOTH(test_failed_group), BOTH(test_nonblocking),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
