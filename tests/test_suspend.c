/* test_suspend.c: communicators that are suspended and resumed inside one process, on the emulator in both
 * modes, on one node and on two that a network joins: what calls compute before and after, what is held
 * meanwhile, and what wrong programs are told. test_suspend_jobs.sh has processes. */
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
#define COUNT 6000 /* floats of a rank's part */
#define BYTES (RANKS * COUNT * sizeof(float))
#define CALLS 9

static int threads, nodes; /* of the emulator: free threads, or guarded; nodes joined by a network */
static float *in[RANKS], *out[RANKS];
static uint8_t *results[CALLS][RANKS]; /* what each call has written */

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

static void set(const char *name, const char *value) {
  if (value) setenv(name, value, 1);
  else unsetenv(name);
  param_reset();
}

static void begin(void) {
  tutti_emu_config_t config = {.size = sizeof config, .threads = threads};
  set("TUTTI_EMU", nodes > 1 ? "net=1,devices=4,nodes=2,slots=4,chunk=4K" : NULL);
  if (nodes == 1) config.slots = 4, config.chunk_bytes = 4096, config.device_count = RANKS;
  expect_ok(tutti_emu_configure(&config));
  for (int i = 0; i < RANKS; i++) {
    backend_ops()->device->select((uint32_t)i);
    expect_ok(ncclMemAlloc((void **)&in[i], BYTES));
    expect_ok(ncclMemAlloc((void **)&out[i], BYTES));
    for (int k = 0; k < RANKS * COUNT; k++) in[i][k] = (float)(k % 97 + 1) / (float)(i + 3);
  }
}

static void end(void) {
  for (int i = 0; i < RANKS; i++) {
    expect_ok(ncclMemFree(in[i]));
    expect_ok(ncclMemFree(out[i]));
  }
}

static void open_all(ncclComm_t *comms) {
  const int devices[RANKS] = {0, 1, 2, 3};
  expect_ok(ncclCommInitAll(comms, RANKS, devices));
}

static void destroy(ncclComm_t *comms) {
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommFinalize(comms[i]));
  expect_ok(ncclGroupEnd());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommDestroy(comms[i]));
}

static void wait_all(void) {
  for (int i = 0; i < RANKS; i++) {
    backend_ops()->device->select((uint32_t)i);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaSuccess);
  }
}

static ncclResult_t call_one(int call, int i, ncclComm_t comm) {
  const int next = (i + 1) % RANKS, before = (i + RANKS - 1) % RANKS;
  switch (call) {
    case 0: return ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, comm, NULL);
    case 1: return ncclReduce(in[i], out[i], COUNT, ncclFloat, ncclProd, 2, comm, NULL);
    case 2: return ncclBroadcast(in[i], out[i], COUNT, ncclFloat, 1, comm, NULL);
    case 3: return ncclAllGather(in[i], out[i], COUNT, ncclFloat, comm, NULL);
    case 4: return ncclReduceScatter(in[i], out[i], COUNT, ncclFloat, ncclAvg, comm, NULL);
    case 5: return ncclAlltoAll(in[i], out[i], COUNT, ncclFloat, comm, NULL);
    case 6: return ncclGather(in[i], out[i], COUNT, ncclFloat, 3, comm, NULL);
    case 7: return ncclScatter(in[i], out[i], COUNT, ncclFloat, 0, comm, NULL);
    default: break;
  }
  const ncclResult_t sent = ncclSend(in[i], 100, ncclFloat, next, comm, NULL);
  return sent == ncclSuccess ? ncclRecv(out[i], 100, ncclFloat, before, comm, NULL) : sent;
}

/* All ranks make the call, for which `bytes` of each output are kept, or compared with what was kept. */
static void call_all(int call, const ncclComm_t *comms, bool keep) {
  for (int i = 0; i < RANKS; i++) memset(out[i], 0x5a, BYTES);
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(call_one(call, i, comms[i]));
  expect_ok(ncclGroupEnd());
  wait_all();
  for (int i = 0; i < RANKS; i++) {
    if (keep) memcpy(results[call][i] = (uint8_t *)malloc(BYTES), out[i], BYTES);
    else if (memcmp(results[call][i], out[i], BYTES) != 0)
      fail_msg("call %d: rank %d has other bits than before", call, i);
  }
}

static void calls_all(const ncclComm_t *comms, bool keep) {
  for (int call = 0; call < CALLS; call++) call_all(call, comms, keep);
}

static void results_free(void) {
  for (int call = 0; call < CALLS; call++)
    for (int i = 0; i < RANKS; i++) free(results[call][i]);
}

static void expect_sums(const ncclComm_t *comms) {
  call_all(0, comms, true);
  for (int i = 0; i < RANKS; i++) {
    const float sum = in[0][5] + in[1][5] + in[2][5] + in[3][5];
    assert_true(out[i][5] > sum * 0.999f && out[i][5] < sum * 1.001f);
    free(results[0][i]);
  }
}

static void suspend_all(const ncclComm_t *comms) {
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
  expect_ok(ncclGroupEnd());
}

static void resume_all(const ncclComm_t *comms) {
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommResume(comms[i]));
  expect_ok(ncclGroupEnd());
}

struct stats {
  uint64_t suspend, suspended, persist, total;
};

static struct stats stats_of(ncclComm_t comm) {
  struct stats stats;
  expect_ok(ncclCommMemStats(comm, ncclStatGpuMemSuspend, &stats.suspend));
  expect_ok(ncclCommMemStats(comm, ncclStatGpuMemSuspended, &stats.suspended));
  expect_ok(ncclCommMemStats(comm, ncclStatGpuMemPersist, &stats.persist));
  expect_ok(ncclCommMemStats(comm, ncclStatGpuMemTotal, &stats.total));
  return stats;
}

/* ---- what is right ---- */

/* Three times; calls that are repeated are kept by caches, which must not go to connections of before. */
static void test_calls(void **state) {
  ncclComm_t comms[RANKS];
  (void)state;
  begin();
  open_all(comms);
  calls_all(comms, true);
  calls_all(comms, false);
  for (int turn = 0; turn < 3; turn++) {
    suspend_all(comms);
    resume_all(comms);
    calls_all(comms, false);
    calls_all(comms, false);
  }
  destroy(comms);
  results_free();
  end();
}

/* The bytes, and what the process holds: after the first turn every turn is like the one before. */
static void test_memory(void **state) {
  ncclComm_t comms[RANKS];
  struct stats first[RANKS];
  uint64_t live[4];
  (void)state;
  begin();
  open_all(comms);
  for (int i = 0; i < RANKS; i++) {
    first[i] = stats_of(comms[i]);
    assert_true(first[i].suspended == 0 && first[i].total == first[i].persist + first[i].suspend);
  }
  for (int turn = 0; turn < 4; turn++) {
    expect_sums(comms);
    struct stats used[RANKS];
    for (int i = 0; i < RANKS; i++) {
      used[i] = stats_of(comms[i]);
      assert_true(used[i].suspended == 0 && used[i].persist == first[i].persist);
      assert_true(used[i].total == used[i].persist + used[i].suspend);
      assert_true(used[i].suspend > 4096);
    }
    suspend_all(comms);
    for (int i = 0; i < RANKS; i++) {
      const struct stats away = stats_of(comms[i]);
      assert_true(away.suspended == 1 && away.suspend == used[i].suspend);
      assert_true(away.persist == first[i].persist && away.total == away.persist);
    }
    live[turn] = os_alloc_live();
    resume_all(comms);
    for (int i = 0; i < RANKS; i++) {
      const struct stats back = stats_of(comms[i]);
      assert_true(back.suspended == 0 && back.suspend == 0 && back.total == first[i].persist);
    }
  }
  assert_int_equal(live[3], live[1]);
  destroy(comms);
  end();
}

struct rank {
  ncclComm_t comm;
  int rank;
  const char *failed;
};

#define NEED(call) \
  if ((call) != ncclSuccess) return rank->failed = #call, NULL

static void *rank_body(void *argument) {
  struct rank *rank = (struct rank *)argument;
  const int i = rank->rank;
  backend_ops()->device->select((uint32_t)i);
  for (int turn = 0; turn < 5; turn++) {
    for (int call = 0; call < 3; call++) {
      NEED(ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, rank->comm, NULL));
      if (cudaStreamSynchronize(NULL) != cudaSuccess) return rank->failed = "synchronize", NULL;
    }
    NEED(ncclCommSuspend(rank->comm, NCCL_SUSPEND_MEM));
    NEED(ncclCommResume(rank->comm));
  }
  return NULL;
}

/* A thread for each rank, without groups. */
static void test_threads(void **state) {
  ncclComm_t comms[RANKS];
  struct rank ranks[RANKS];
  os_thread started[RANKS];
  (void)state;
  begin();
  open_all(comms);
  for (int i = 0; i < RANKS; i++) {
    ranks[i] = (struct rank){comms[i], i, NULL};
    assert_true(os_thread_start(&started[i], rank_body, &ranks[i]));
  }
  for (int i = 0; i < RANKS; i++) os_thread_join(started[i]);
  for (int i = 0; i < RANKS; i++) assert_null(ranks[i].failed);
  expect_sums(comms);
  destroy(comms);
  end();
}

/* What is not a call to other ranks is answered; what is registered stays so. */
static void test_meanwhile(void **state) {
  ncclComm_t comms[RANKS];
  ncclWindow_t windows[RANKS];
  void *handles[RANKS], *address = NULL;
  ncclResult_t state_now = ncclInternalError;
  int number = -1;
  (void)state;
  begin();
  open_all(comms);
  for (int i = 0; i < RANKS; i++) {
    backend_ops()->device->select((uint32_t)i);
    expect_ok(ncclCommRegister(comms[i], in[i], BYTES, &handles[i]));
  }
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++)
    expect_ok(ncclCommWindowRegister(comms[i], out[i], BYTES, &windows[i], NCCL_WIN_DEFAULT));
  expect_ok(ncclGroupEnd());
  calls_all(comms, true);
  suspend_all(comms);
  expect_ok(ncclCommCount(comms[1], &number));
  assert_int_equal(number, RANKS);
  expect_ok(ncclCommUserRank(comms[1], &number));
  assert_int_equal(number, 1);
  expect_ok(ncclCommCuDevice(comms[1], &number));
  expect_ok(ncclCommGetAsyncError(comms[1], &state_now));
  assert_int_equal(state_now, ncclSuccess);
  expect_ok(ncclWinGetUserPtr(comms[1], windows[1], &address));
  assert_ptr_equal(address, out[1]);
  expect_ok(ncclCommDeregister(comms[0], handles[0]));
  expect_ok(ncclCommWindowDeregister(comms[3], windows[3]));
  resume_all(comms);
  calls_all(comms, false);
  for (int i = 0; i < RANKS; i++) {
    if (i > 0) expect_ok(ncclCommDeregister(comms[i], handles[i]));
    if (i < 3) expect_ok(ncclCommWindowDeregister(comms[i], windows[i]));
  }
  destroy(comms);
  results_free();
  end();
}

/* A split's communicator has connections of its own: either goes on while the other is suspended. */
static void test_split(void **state) {
  ncclComm_t comms[RANKS], children[RANKS], other[RANKS];
  (void)state;
  begin();
  open_all(comms);
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommSplit(comms[i], 0, RANKS - i, &children[i], NULL));
  expect_ok(ncclGroupEnd());
  for (int i = 0; i < RANKS; i++) other[i] = children[i];
  expect_sums(comms);
  expect_sums(other);
  suspend_all(comms);
  expect_sums(other);
  suspend_all(other);
  resume_all(comms);
  expect_sums(comms);
  expect_refused(ncclInvalidUsage, "call ncclCommResume", call_one(0, 0, other[0]));
  expect_ok(ncclGroupStart()); /* one sleeps while the other wakes */
  for (int i = 0; i < RANKS; i++) {
    expect_ok(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
    expect_ok(ncclCommResume(other[i]));
  }
  expect_ok(ncclGroupEnd());
  expect_sums(other);
  destroy(comms);
  destroy(other);
  end();
}

/* Also one that has made no call yet, and one without blocking; the calls block all the same. */
static void test_nonblocking(void **state) {
  ncclComm_t comms[RANKS];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  (void)state;
  begin();
  config.blocking = 0;
  expect_ok(ncclGetUniqueId(&id));
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  for (int i = 0; i < RANKS; i++) {
    backend_ops()->device->select((uint32_t)i);
    const ncclResult_t begun = ncclCommInitRankConfig(&comms[i], RANKS, id, i, &config);
    assert_true(begun == ncclSuccess || begun == ncclInProgress);
  }
  const ncclResult_t ended = ncclGroupEnd();
  assert_true(ended == ncclSuccess || ended == ncclInProgress);
  for (int i = 0; i < RANKS; i++) {
    ncclResult_t now = ncclInProgress;
    while (now == ncclInProgress) {
      expect_ok(ncclCommGetAsyncError(comms[i], &now));
      if (now == ncclInProgress) os_yield();
    }
    assert_int_equal(now, ncclSuccess);
  }
  suspend_all(comms);
  resume_all(comms);
  expect_sums(comms);
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommAbort(comms[i]));
  end();
}

/* ---- ends ---- */

static void split_and_sum(ncclComm_t *comms) {
  ncclComm_t children[RANKS];
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommSplit(comms[i], 0, 0, &children[i], NULL));
  expect_ok(ncclGroupEnd());
  expect_sums(children);
  destroy(children);
}

static void test_ends(void **state) {
  uint64_t live[2] = {0, 0};
  (void)state;
  for (int turn = 0; turn < 2; turn++) {
    for (int how = 0; how < 4; how++) {
      ncclComm_t comms[RANKS];
      begin();
      open_all(comms);
      expect_sums(comms);
      suspend_all(comms);
      for (int i = 0; how == 1 && i < RANKS; i++) expect_ok(ncclCommFinalize(comms[i]));
      for (int i = 0; how == 2 && i < RANKS; i++) expect_ok(ncclCommRevoke(comms[i], NCCL_REVOKE_DEFAULT));
      if (how == 1) expect_refused(ncclInvalidArgument, "is finalized", ncclCommResume(comms[0]));
      if (how == 2) expect_refused(ncclInvalidUsage, "was revoked", ncclCommResume(comms[0]));
      if (how == 2) split_and_sum(comms); /* as from any revoked communicator */
      for (int i = 0; i < RANKS; i++)
        expect_ok(how == 3 ? ncclCommAbort(comms[i]) : ncclCommDestroy(comms[i]));
      end();
    }
    live[turn] = os_alloc_live();
  }
  assert_int_equal(live[0], live[1]);
}

/* ---- wrong programs ---- */

static void test_refused(void **state) {
  ncclComm_t comms[RANKS], child;
  ncclRedOp_t op;
  ncclUniqueId id;
  void *handle;
  float scalar = 2;
  int excluded = 3;
  (void)state;
  begin();
  open_all(comms);
  expect_refused(ncclInvalidArgument, "the communicator is NULL", ncclCommSuspend(NULL, NCCL_SUSPEND_MEM));
  expect_refused(ncclInvalidArgument, "the communicator is NULL", ncclCommResume(NULL));
  expect_refused(ncclInvalidArgument, "pass NCCL_SUSPEND_MEM", ncclCommSuspend(comms[0], 0));
  expect_refused(ncclInvalidArgument, "pass NCCL_SUSPEND_MEM", ncclCommSuspend(comms[0], 3));
  expect_refused(ncclInvalidUsage, "is not suspended; call ncclCommSuspend", ncclCommResume(comms[0]));
  suspend_all(comms);
  expect_refused(ncclInvalidUsage, "is suspended already", ncclCommSuspend(comms[0], NCCL_SUSPEND_MEM));
  for (int call = 0; call < CALLS; call++)
    expect_refused(ncclInvalidUsage, "is suspended; call ncclCommResume", call_one(call, 0, comms[0]));
  expect_refused(ncclInvalidUsage, "call ncclCommResume", ncclCommSplit(comms[0], 0, 0, &child, NULL));
  for (int flags = NCCL_SHRINK_DEFAULT; flags <= NCCL_SHRINK_ABORT; flags++)
    expect_refused(ncclInvalidUsage, "call ncclCommResume",
                   ncclCommShrink(comms[0], &excluded, 1, &child, NULL, flags));
  expect_refused(ncclInvalidUsage, "call ncclCommResume", ncclCommGetUniqueId(comms[0], &id));
  expect_refused(ncclInvalidUsage, "call ncclCommResume",
                 ncclCommGrow(comms[0], RANKS + 1, NULL, -1, &child, NULL));
  expect_refused(ncclInvalidUsage, "call ncclCommResume", ncclCommRegister(comms[0], in[0], 64, &handle));
  expect_refused(ncclInvalidUsage, "call ncclCommResume",
                 ncclCommWindowRegister(comms[0], in[0], 64, (ncclWindow_t *)&handle, NCCL_WIN_DEFAULT));
  expect_refused(ncclInvalidUsage, "call ncclCommResume",
                 ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, ncclScalarHostImmediate, comms[0]));
  resume_all(comms);
  expect_refused(ncclInvalidUsage, "is not suspended", ncclCommResume(comms[0]));
  expect_sums(comms);
  destroy(comms);
  end();
}

/* Groups: with calls of the communicator before or behind, twice, and one that fails. */
static void test_groups(void **state) {
  ncclComm_t comms[RANKS];
  (void)state;
  begin();
  open_all(comms);
  expect_sums(comms);
  expect_ok(ncclGroupStart());
  expect_ok(call_one(0, 0, comms[0]));
  expect_refused(ncclInvalidUsage, "operations in a group that is still open",
                 ncclCommSuspend(comms[0], NCCL_SUSPEND_MEM));
  assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++)
    for (int k = 0; k < 2; k++) expect_ok(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
  expect_refused(ncclInvalidUsage, "twice in one group", ncclGroupEnd());
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
  expect_refused(ncclInvalidArgument, "pass NCCL_SUSPEND_MEM", ncclCommSuspend(comms[0], 7));
  assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
  expect_sums(comms); /* nothing has happened so far */
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
  for (int i = 0; i < RANKS; i++) expect_ok(call_one(0, i, comms[i]));
  expect_refused(ncclInvalidUsage, "ncclGroupEnd: rank 0 of comm", ncclGroupEnd());
  assert_non_null(strstr(ncclGetLastError(NULL), "is suspended; call ncclCommResume"));
  resume_all(comms);
  expect_sums(comms);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  expect_ok(ncclGroupStart());
  for (int i = 0; i < RANKS; i++) expect_ok(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
  expect_ok(ncclGroupSimulateEnd(&info));
  expect_sums(comms); /* it was only simulated */
  destroy(comms);
  end();
}

/* Operations that have not ended: one rank's are enqueued and wait for the others'. */
static void test_busy(void **state) {
  ncclComm_t comms[RANKS];
  (void)state;
  begin();
  open_all(comms);
  backend_ops()->device->select(0);
  expect_ok(call_one(0, 0, comms[0]));
  expect_refused(ncclInvalidUsage, "has operations that have not ended",
                 ncclCommSuspend(comms[0], NCCL_SUSPEND_MEM));
  expect_ok(ncclGroupStart());
  for (int i = 1; i < RANKS; i++) expect_ok(call_one(0, i, comms[i]));
  expect_ok(ncclGroupEnd());
  wait_all();
  suspend_all(comms);
  resume_all(comms);
  expect_sums(comms);
  destroy(comms);
  end();
}

/* A graph that lives has kernels, and they addresses. */
static void test_graph(void **state) {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  cudaGraph_t graphs[RANKS];
  cudaGraphExec_t execs[RANKS];
  (void)state;
  begin();
  open_all(comms);
  for (int i = 0; i < RANKS; i++) {
    backend_ops()->device->select((uint32_t)i);
    assert_int_equal(cudaStreamCreate(&streams[i]), cudaSuccess);
    assert_int_equal(cudaStreamBeginCapture(streams[i], cudaStreamCaptureModeRelaxed), cudaSuccess);
    expect_ok(ncclAllReduce(in[i], out[i], COUNT, ncclFloat, ncclSum, comms[i], streams[i]));
    assert_int_equal(cudaStreamEndCapture(streams[i], &graphs[i]), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&execs[i], graphs[i], 0), cudaSuccess);
    expect_refused(ncclInvalidUsage, "destroy the graph", ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
    assert_int_equal(cudaGraphDestroy(graphs[i]), cudaSuccess);
    expect_refused(ncclInvalidUsage, "destroy the graph", ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
  }
  for (int i = 0; i < RANKS; i++) assert_int_equal(cudaGraphLaunch(execs[i], streams[i]), cudaSuccess);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(cudaStreamSynchronize(streams[i]), cudaSuccess);
    assert_int_equal(cudaGraphExecDestroy(execs[i]), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(streams[i]), cudaSuccess);
  }
  suspend_all(comms);
  resume_all(comms);
  expect_sums(comms);
  destroy(comms);
  end();
}

struct lonely {
  ncclComm_t comm, child;
  bool splits;
  ncclResult_t result;
  uint32_t called; /* atomic */
};

static void *lonely_body(void *argument) {
  struct lonely *lonely = (struct lonely *)argument;
  backend_ops()->device->select(0);
  __atomic_store_n(&lonely->called, 1, __ATOMIC_RELEASE);
  lonely->result = lonely->splits ? ncclCommSplit(lonely->comm, 0, 0, &lonely->child, NULL)
                                  : ncclCommSuspend(lonely->comm, NCCL_SUSPEND_MEM);
  return NULL;
}

/* Ranks that make another call are named, and the communicator goes on. */
static void test_contradictions(void **state) {
  ncclComm_t comms[RANKS];
  os_thread thread;
  (void)state;
  begin();
  open_all(comms);
  expect_sums(comms);
  struct lonely lonely = {comms[0], NULL, true, ncclSuccess, 0};
  assert_true(os_thread_start(&thread, lonely_body, &lonely));
  expect_ok(ncclGroupStart());
  for (int i = 1; i < RANKS; i++) expect_ok(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
  const ncclResult_t ended = ncclGroupEnd();
  os_thread_join(thread);
  assert_true(ended == ncclInvalidUsage && lonely.result == ncclInvalidUsage && lonely.child == NULL);
  assert_non_null(strstr(ncclGetLastError(NULL), " calls ncclComm"));
  assert_non_null(strstr(ncclGetLastError(NULL), "make the same calls on every rank"));
  expect_sums(comms);
  destroy(comms);
  end();
}

/* One thread makes the call for one rank alone. */
static void test_missing(void **state) {
  ncclComm_t comms[RANKS];
  (void)state;
  begin();
  open_all(comms);
  expect_sums(comms);
  set("TUTTI_INIT_TIMEOUT_SECONDS", "1");
  set("TUTTI_STALL_SECONDS", "1");
  expect_refused(ncclRemoteError, "missing: rank 0, 2-3", ncclCommSuspend(comms[1], NCCL_SUSPEND_MEM));
  set("TUTTI_INIT_TIMEOUT_SECONDS", NULL);
  set("TUTTI_STALL_SECONDS", NULL);
  expect_sums(comms);
  destroy(comms);
  end();
}

/* A rank that waits for the others is released by an abort. */
static void test_abort(void **state) {
  ncclComm_t comms[RANKS];
  os_thread thread;
  (void)state;
  begin();
  open_all(comms);
  struct lonely lonely = {comms[0], NULL, false, ncclSuccess, 0};
  assert_true(os_thread_start(&thread, lonely_body, &lonely));
  while (__atomic_load_n(&lonely.called, __ATOMIC_ACQUIRE) == 0) os_yield();
  os_sleep_ms(20);
  expect_ok(ncclCommAbort(comms[0]));
  os_thread_join(thread);
  assert_true(lonely.result != ncclSuccess);
  for (int i = 1; i < RANKS; i++) expect_ok(ncclCommAbort(comms[i]));
  end();
}

static int world(int mode, int node_count) {
  threads = mode;
  nodes = node_count;
  return 0;
}
static int guarded(void **state) { return (void)state, world(0, 1); }
static int free_threads(void **state) { return (void)state, world(1, 1); }
static int guarded_net(void **state) { return (void)state, world(0, 2); }
static int threads_net(void **state) { return (void)state, world(1, 2); }

int main(void) {
#define TWO(test) \
  {#test, test, guarded, NULL, NULL}, { #test " (threads)", test, free_threads, NULL, NULL }
#define FOUR(test)                                                  \
  TWO(test), {#test " (network)", test, guarded_net, NULL, NULL}, { \
#test " (network, threads)", test, threads_net, NULL, NULL      \
  }
  const struct CMUnitTest tests[] = {
      FOUR(test_calls),  FOUR(test_memory),     FOUR(test_threads), FOUR(test_meanwhile),
      TWO(test_split),   TWO(test_nonblocking), FOUR(test_ends),    TWO(test_refused),
      TWO(test_groups),  TWO(test_busy),        TWO(test_graph),    TWO(test_contradictions),
      TWO(test_missing), TWO(test_abort),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
