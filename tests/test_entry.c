/* test_entry.c: every entry point called wrongly: with NULL, with invalid handles, with communicators that
 * are destroyed, aborted, finalized or revoked, inside groups, and in separate threads. Each such call
 * returns an error code and sets a message that names it, nothing crashes or hangs, and afterwards a
 * communicator works as before. Runs on the emulator. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <string.h>

#include "nccl.h"
#include "tutti.h"

enum { COUNT = 1000, RANKS = 2 };

/* ---- every call that takes a communicator, with minimal arguments */

typedef ncclResult_t (*call_body)(ncclComm_t comm);
static int number;
static ncclComm_t child;
static ncclUniqueId blank;

#define CALL(name, ...) \
  static ncclResult_t call_##name(ncclComm_t comm) { return nccl##name(__VA_ARGS__); }
CALL(CommCount, comm, NULL)
CALL(CommCuDevice, comm, NULL)
CALL(CommUserRank, comm, NULL)
CALL(CommGetAsyncError, comm, NULL)
CALL(CommSplit, comm, 0, 0, NULL, NULL)
CALL(CommShrink, comm, NULL, 0, NULL, NULL, 0)
CALL(CommRevoke, comm, 77)
CALL(CommRegister, comm, NULL, 0, NULL)
CALL(CommDeregister, comm, &number)
CALL(CommWindowRegister, comm, NULL, 0, NULL, -1)
CALL(CommWindowDeregister, comm, (ncclWindow_t)(void *)&number)
CALL(WinGetUserPtr, comm, (ncclWindow_t)(void *)&number, NULL)
CALL(PutSignal, NULL, 1, ncclFloat, 0, NULL, 0, 0, 0, 0, comm, NULL)
CALL(Signal, -1, 0, 0, 0, comm, NULL)
CALL(WaitSignal, 1, NULL, comm, NULL)
CALL(CommMemStats, comm, ncclStatGpuMemTotal, NULL)
CALL(CommSuspend, comm, 0)
CALL(CommResume, comm)
CALL(AllReduce, NULL, NULL, 1, ncclFloat, ncclSum, comm, NULL)
CALL(Broadcast, NULL, NULL, 1, ncclFloat, 0, comm, NULL)
CALL(Bcast, NULL, 1, ncclFloat, 0, comm, NULL)
CALL(Reduce, NULL, NULL, 1, ncclFloat, ncclSum, 0, comm, NULL)
CALL(AllGather, NULL, NULL, 1, ncclFloat, comm, NULL)
CALL(ReduceScatter, NULL, NULL, 1, ncclFloat, ncclSum, comm, NULL)
CALL(AlltoAll, NULL, NULL, 1, ncclFloat, comm, NULL)
CALL(Gather, NULL, NULL, 1, ncclFloat, 0, comm, NULL)
CALL(Scatter, NULL, NULL, 1, ncclFloat, 0, comm, NULL)
CALL(Send, NULL, 1, ncclFloat, 0, comm, NULL)
CALL(Recv, NULL, 1, ncclFloat, 0, comm, NULL)
CALL(RedOpCreatePreMulSum, NULL, NULL, ncclFloat, ncclScalarDevice, comm)
CALL(RedOpDestroy, (ncclRedOp_t)99, comm)

#define ROW(name) \
  { "nccl" #name, call_##name }
static const struct {
  const char *name;
  call_body body;
} calls[] = {ROW(CommCount),
             ROW(CommCuDevice),
             ROW(CommUserRank),
             ROW(CommGetAsyncError),
             ROW(CommSplit),
             ROW(CommShrink),
             ROW(CommRevoke),
             ROW(CommRegister),
             ROW(CommDeregister),
             ROW(CommWindowRegister),
             ROW(CommWindowDeregister),
             ROW(WinGetUserPtr),
             ROW(PutSignal),
             ROW(Signal),
             ROW(WaitSignal),
             ROW(CommMemStats),
             ROW(CommSuspend),
             ROW(CommResume),
             ROW(AllReduce),
             ROW(Broadcast),
             ROW(Bcast),
             ROW(Reduce),
             ROW(AllGather),
             ROW(ReduceScatter),
             ROW(AlltoAll),
             ROW(Gather),
             ROW(Scatter),
             ROW(Send),
             ROW(Recv),
             ROW(RedOpCreatePreMulSum),
             ROW(RedOpDestroy)};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* The call fails, and its message names it. ncclBcast is ncclBroadcast under another name. */
static void expect_refused(const char *name, ncclResult_t result, const char *where) {
  const char *text = ncclGetLastError(NULL);
  if (result == ncclSuccess || result >= ncclNumResults) fail_msg("%s, %s: answers %d", name, where, result);
  if (!strstr(text, name) && !(strstr(name, "Bcast") && strstr(text, "ncclB")))
    fail_msg("%s, %s: says: %s", name, where, text);
}

static void expect_all_refused(ncclComm_t comm, const char *where) {
  for (int i = 0; i < CALLS; i++) expect_refused(calls[i].name, calls[i].body(comm), where);
}

/* ---- working communicators */

static ncclComm_t comms[RANKS];
static cudaStream_t streams[RANKS];
static int *data[RANKS];

static void expect_ok(ncclResult_t result) {
  if (result != ncclSuccess) fail_msg("answers %d: %s", result, ncclGetLastError(NULL));
}

static void all_open(void) {
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(cudaSetDevice(rank), 0);
    assert_int_equal(cudaStreamCreate(&streams[rank]), 0);
    assert_int_equal(cudaMalloc((void **)&data[rank], COUNT * sizeof(int)), 0);
  }
  expect_ok(ncclCommInitAll(comms, RANKS, NULL));
}

static void all_sum(void) {
  static int host[COUNT];
  for (int rank = 0; rank < RANKS; rank++) {
    for (int i = 0; i < COUNT; i++) host[i] = i + rank;
    assert_int_equal(cudaMemcpy(data[rank], host, sizeof host, cudaMemcpyHostToDevice), 0);
  }
  expect_ok(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++)
    expect_ok(ncclAllReduce(data[rank], data[rank], COUNT, ncclInt, ncclSum, comms[rank], streams[rank]));
  expect_ok(ncclGroupEnd());
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(cudaStreamSynchronize(streams[rank]), 0);
    assert_int_equal(cudaMemcpy(host, data[rank], sizeof host, cudaMemcpyDeviceToHost), 0);
    for (int i = 0; i < COUNT; i++) assert_int_equal(host[i], RANKS * i + 1);
  }
}

static void all_close(ncclResult_t (*end)(ncclComm_t comm)) {
  for (int rank = 0; rank < RANKS; rank++) {
    expect_ok(end(comms[rank]));
    assert_int_equal(cudaSetDevice(rank), 0);
    assert_int_equal(cudaFree(data[rank]), 0);
    assert_int_equal(cudaStreamDestroy(streams[rank]), 0);
  }
}

/* ---- the tests */

static void test_nothing(void **state) {
  (void)state;
  static long long foreign[512];
  expect_all_refused(NULL, "a NULL communicator");
  expect_all_refused((ncclComm_t)(void *)foreign, "a handle of zeros");
  memset(foreign, 0xff, sizeof foreign);
  expect_all_refused((ncclComm_t)(void *)foreign, "a handle of ones");
  expect_refused("ncclGetVersion", ncclGetVersion(NULL), "NULL");
  expect_refused("ncclGetUniqueId", ncclGetUniqueId(NULL), "NULL");
  expect_refused("ncclMemAlloc", ncclMemAlloc(NULL, 8), "NULL");
  assert_int_not_equal(ncclMemFree(&number), ncclSuccess);
  expect_refused("ncclCommInitRank", ncclCommInitRank(NULL, 2, blank, 0), "NULL");
  expect_refused("ncclCommInitRank", ncclCommInitRank(&child, 2, blank, 0), "an id of zeros");
  expect_refused("ncclCommInitRankScalable", ncclCommInitRankScalable(&child, 2, 0, 1, NULL, NULL), "NULL");
  expect_refused("ncclCommInitAll", ncclCommInitAll(NULL, 2, NULL), "NULL");
  expect_refused("ncclGroupEnd", ncclGroupEnd(), "no start");
  expect_refused("ncclGroupSimulateEnd", ncclGroupSimulateEnd(NULL), "no start");
  assert_non_null(ncclGetErrorString((ncclResult_t)-5));
  assert_non_null(ncclGetErrorString((ncclResult_t)12345));
  expect_ok(ncclCommDestroy(NULL));
  expect_ok(ncclCommAbort(NULL));
  expect_ok(ncclCommFinalize(NULL));
  expect_ok(ncclMemFree(NULL));
}

typedef ncclResult_t (*hidden)(const void *, const void *, const void *, const void *, const void *,
                               const void *);
#define HIDDEN(X)                 \
  X(GinInboxA2ACreateRequirement) \
  X(GinOutboxCreateRequirement)   \
  X(LLA2ACreateRequirement)       \
  X(GetLsaMultimemDevicePointer) X(GetMultimemDevicePointer)
#define DECLARE(name) ncclResult_t nccl##name(void);
HIDDEN(DECLARE)

/* Whatever a caller passes, inside a group or not: an error code, a message, and no other effect. */
static void test_not_offered(void **state) {
  (void)state;
#define TABLE(name) {"nccl" #name, (hidden)(void (*)(void))nccl##name},
  static const struct {
    const char *name;
    hidden body;
  } table[] = {HIDDEN(TABLE)};
  all_open();
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    const void *const some = comms[0];
    assert_int_equal(table[i].body(NULL, NULL, NULL, NULL, NULL, NULL), ncclInvalidUsage);
    expect_refused(table[i].name, table[i].body(some, some, some, some, some, some), "a communicator");
    expect_ok(ncclGroupStart());
    assert_int_equal(table[i].body(some, NULL, NULL, NULL, NULL, NULL), ncclInvalidUsage);
    expect_ok(ncclGroupEnd());
  }
  all_sum();
  all_close(ncclCommDestroy);
}

/* A refused call leaves the communicator unchanged, inside a group and outside. */
static void test_after_errors(void **state) {
  (void)state;
  all_open();
  expect_all_refused(comms[0], "a communicator, and nothing else");
  all_sum();
  for (int i = 0; i < CALLS; i++) {
    expect_ok(ncclGroupStart());
    expect_refused(calls[i].name, calls[i].body(comms[0]), "in a group");
    ncclGroupEnd();
  }
  assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
  all_sum();
  expect_refused("ncclAllReduce",
                 ncclAllReduce(data[0], data[0], SIZE_MAX, ncclDouble, ncclSum, comms[0], NULL),
                 "more than there is");
  expect_refused("ncclSend", ncclSend(data[0], 1, ncclInt, -1, comms[0], streams[0]), "a peer below zero");
  expect_refused("ncclRecv", ncclRecv(data[0], 1, ncclInt, RANKS, comms[0], streams[0]), "a peer too far");
  expect_refused("ncclBroadcast", ncclBroadcast(data[0], data[0], 1, ncclInt, RANKS, comms[0], streams[0]),
                 "root");
  expect_refused("ncclReduce",
                 ncclReduce(data[0], data[0], 1, (ncclDataType_t)99, ncclSum, 0, comms[0], streams[0]),
                 "type");
  expect_refused("ncclAllReduce",
                 ncclAllReduce(data[0], data[0], 1, ncclInt, (ncclRedOp_t)-1, comms[0], streams[0]),
                 "operator");
  all_sum();
  all_close(ncclCommDestroy);
}

/* Ended communicators are refused; only calls that end them and queries still work. */
static void test_wrong_order(void **state) {
  (void)state;
  void *handle = NULL;
  all_open();
  for (int rank = 0; rank < RANKS; rank++) expect_ok(ncclCommFinalize(comms[rank]));
  expect_refused("ncclAllReduce", ncclAllReduce(data[0], data[0], 1, ncclInt, ncclSum, comms[0], streams[0]),
                 "finalized");
  expect_refused("ncclCommFinalize", ncclCommFinalize(comms[0]), "finalized twice");
  expect_refused("ncclCommRegister", ncclCommRegister(comms[0], data[0], 8, &handle), "finalized");
  expect_refused("ncclCommSplit", ncclCommSplit(comms[0], 0, 0, &child, NULL), "finalized");
  all_close(ncclCommDestroy);
  all_open();
  for (int rank = 0; rank < RANKS; rank++) expect_ok(ncclCommRevoke(comms[rank], NCCL_REVOKE_DEFAULT));
  expect_refused("ncclAllReduce", ncclAllReduce(data[0], data[0], 1, ncclInt, ncclSum, comms[0], streams[0]),
                 "revoked");
  expect_refused("ncclCommRevoke", ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT), "revoked twice");
  all_close(ncclCommAbort);
}

/* A rank waits alone for the other, which never calls; its abort ends the wait, and new communicators work.
 */
static void test_abort_alone(void **state) {
  (void)state;
  all_open();
  expect_ok(ncclAllReduce(data[0], data[0], COUNT, ncclInt, ncclSum, comms[0], streams[0]));
  all_close(ncclCommAbort);
  all_open();
  all_sum();
  all_close(ncclCommDestroy);
}

static void *thread_run(void *unused) {
  (void)unused;
  for (int i = 0; i < 20; i++) {
    for (int k = 0; k < CALLS; k++) calls[k].body(NULL);
    ncclGroupStart();
    for (int k = 0; k < CALLS; k++) calls[k].body(NULL);
    ncclGroupEnd();
    ncclGetLastError(NULL);
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, thread_run, NULL), 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  all_open();
  all_sum();
  all_close(ncclCommDestroy);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_nothing),      cmocka_unit_test(test_not_offered),
                                     cmocka_unit_test(test_after_errors), cmocka_unit_test(test_wrong_order),
                                     cmocka_unit_test(test_abort_alone),  cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
