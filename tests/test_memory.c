/* test_memory.c: allocation number k fails, for every k of some small programs that use every allocating part
 * of the API. The failing call must report that memory is exhausted: NCCL's with ncclSystemError and a
 * message, CUDA's with cudaErrorMemoryAllocation. Nothing may crash or hang, every communicator can be
 * destroyed or aborted, and no block leaks. A last run without a failure must not leak either. The check for
 * races ends instead when its memory fails, with a warning, and the program goes on.
 *
 * Allocated once per process, and therefore counted before: guarded mode's two tables of actors, the
 * settings, the text of the last error of each thread that asked, and in threads mode one block for each
 * thread that runs kernels, idle threads included. */
/* sanitizers: address thread */
/* runner: 40 s, tsan 50 s, waits */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "backends/backend.h"
#include "backends/emu/cudart/race_impl.h"
#include "base/os.h"
#include "base/param.h"
#include "core/bootstrap/bootstrap.h"
#include "tutti.h"

enum { RANKS = 3, COUNT = 50, COMPLAINTS_MAX = 5, TEXT_BYTES = 400 };
#if defined(__SANITIZE_THREAD__)
enum { STRIDE = 5 }; /* in a sanitizer build, every fifth allocation */
#else
enum { STRIDE = 1 };
#endif
enum { STEP_LIMIT = 2000 }; /* a program with more allocations than this does not end */

/* One run of a program: its objects, and the first error. */
struct life {
  ncclComm_t comms[RANKS], children[RANKS];
  cudaStream_t streams[RANKS];
  float *memory[RANKS];
  cudaEvent_t events[RANKS];
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  os_mutex lock;
  bool failed, out_of_memory, has_text; /* out_of_memory: the code says so; has_text: a message is required */
  int code;
  char call[64], text[TEXT_BYTES];
  bool abort;  /* end communicators with ncclCommAbort */
  bool racing; /* several threads: the last error may be another thread's */
};

static void note(struct life *life, const char *call, bool out_of_memory, bool has_text, int code) {
  os_mutex_lock(&life->lock);
  const bool better =
      out_of_memory && !life->out_of_memory; /* another thread's consequential error may come first */
  if (!life->failed || better) {
    snprintf(life->call, sizeof life->call, "%s", call);
    snprintf(life->text, sizeof life->text, "%s", ncclGetLastError(NULL));
    life->out_of_memory = out_of_memory;
    life->has_text = has_text && !life->racing;
    life->code = code;
  }
  life->failed = true;
  os_mutex_unlock(&life->lock);
}

static bool good(struct life *life, ncclResult_t result, const char *call) {
  if (result == ncclSuccess) return true;
  note(life, call, result == ncclSystemError, true, (int)result);
  return false;
}

static bool good_cuda(struct life *life, cudaError_t error, const char *call) {
  if (error == cudaSuccess) return true;
  note(life, call, error == cudaErrorMemoryAllocation, false, (int)error);
  return false;
}
#define NCCL(call) good(life, call, #call)
#define CUDA(call) good_cuda(life, call, #call)

/* ---- parts of programs ---- */

static float value(int rank, int index) { return (float)(rank * 10 + index); }

static bool rank_open(struct life *life, int rank) {
  if (!CUDA(cudaSetDevice(rank)) ||
      !CUDA(cudaMalloc((void **)&life->memory[rank], 2 * COUNT * sizeof(float))))
    return false;
  for (int i = 0; i < COUNT; i++) life->memory[rank][i] = value(rank, i);
  return CUDA(cudaStreamCreateWithFlags(&life->streams[rank], cudaStreamNonBlocking)) &&
         CUDA(cudaEventCreateWithFlags(&life->events[rank], cudaEventDisableTiming));
}

static bool ranks_open(struct life *life) {
  bool ok = true;
  for (int rank = 0; ok && rank < RANKS; rank++) ok = rank_open(life, rank);
  return ok;
}

static bool ranks_wait(struct life *life) {
  bool ok = true;
  for (int rank = 0; ok && rank < RANKS; rank++) ok = CUDA(cudaStreamSynchronize(life->streams[rank]));
  return ok;
}

static bool rank_sum(struct life *life, int rank, ncclComm_t comm, ncclRedOp_t op) {
  float *memory = life->memory[rank];
  return NCCL(ncclAllReduce(memory, memory + COUNT, COUNT, ncclFloat, op, comm, life->streams[rank]));
}

static bool ranks_sum(struct life *life) {
  bool ok = NCCL(ncclGroupStart());
  for (int rank = 0; ok && rank < RANKS; rank++) ok = rank_sum(life, rank, life->comms[rank], ncclSum);
  return NCCL(ncclGroupEnd()) && ok;
}

static void sums_check(const struct life *life) {
  if (life->failed) return;
  for (int rank = 0; rank < RANKS; rank++)
    for (int i = 0; i < COUNT; i++)
      assert_true(life->memory[rank][COUNT + i] == value(0, i) + value(1, i) + value(2, i));
}

static void comm_end(struct life *life, ncclComm_t *comm) {
  if (life->abort) NCCL(ncclCommAbort(*comm));
  else NCCL(ncclCommDestroy(*comm));
  *comm = NULL;
}

static void ranks_close(struct life *life) {
  if (life->exec) cudaGraphExecDestroy(life->exec);
  if (life->graph) cudaGraphDestroy(life->graph);
  for (int rank = 0; rank < RANKS; rank++) {
    if (life->children[rank]) comm_end(life, &life->children[rank]);
    if (life->comms[rank]) comm_end(life, &life->comms[rank]);
  }
  for (int rank = 0; rank < RANKS; rank++) {
    if (life->streams[rank]) cudaStreamDestroy(life->streams[rank]);
    if (life->events[rank]) cudaEventDestroy(life->events[rank]);
    cudaFree(life->memory[rank]);
  }
}

/* ---- the programs ---- */

/* All ranks made at once; all-reduces. */
static void program_sums(struct life *life) {
  if (ranks_open(life) && NCCL(ncclCommInitAll(life->comms, RANKS, NULL)) && ranks_sum(life))
    ranks_wait(life);
  sums_check(life);
}

static bool ranks_join(struct life *life) {
  ncclUniqueId id;
  bool ok = NCCL(ncclGetUniqueId(&id)) && NCCL(ncclGroupStart());
  if (!ok) return false;
  for (int rank = 0; ok && rank < RANKS; rank++)
    ok = CUDA(cudaSetDevice(rank)) && NCCL(ncclCommInitRank(&life->comms[rank], RANKS, id, rank));
  return NCCL(ncclGroupEnd()) && ok;
}

static bool ranks_split(struct life *life) {
  bool ok = NCCL(ncclGroupStart());
  for (int rank = 0; ok && rank < RANKS; rank++)
    ok = NCCL(ncclCommSplit(life->comms[rank], 0, -rank, &life->children[rank], NULL));
  return NCCL(ncclGroupEnd()) && ok;
}

/* Two messages along the ring, one to oneself, an exchange. */
static bool ranks_exchange(struct life *life) {
  bool ok = NCCL(ncclGroupStart());
  for (int rank = 0; ok && rank < RANKS; rank++) {
    float *memory = life->memory[rank];
    const cudaStream_t stream = life->streams[rank];
    const ncclComm_t comm = life->comms[rank];
    const int next = (rank + 1) % RANKS, previous = (rank + RANKS - 1) % RANKS;
    ok = NCCL(ncclSend(memory, 5, ncclFloat, next, comm, stream)) &&
         NCCL(ncclSend(memory + 5, 6, ncclFloat, next, comm, stream)) &&
         NCCL(ncclRecv(memory + COUNT, 5, ncclFloat, previous, comm, stream)) &&
         NCCL(ncclRecv(memory + COUNT + 5, 6, ncclFloat, previous, comm, stream)) &&
         NCCL(ncclSend(memory, 7, ncclFloat, rank, comm, stream)) &&
         NCCL(ncclRecv(memory + COUNT + 20, 7, ncclFloat, rank, comm, stream)) &&
         NCCL(ncclAlltoAll(memory, memory + COUNT + 30, 4, ncclFloat, comm, stream));
  }
  return NCCL(ncclGroupEnd()) && ok;
}

/* Ranks made one by one in a group; messages; a split with an all-reduce on its communicators. */
static void program_messages(struct life *life) {
  bool ok = ranks_open(life) && ranks_join(life) && ranks_exchange(life) && ranks_split(life);
  if (ok) {
    ok = NCCL(ncclGroupStart());
    for (int rank = 0; ok && rank < RANKS; rank++) ok = rank_sum(life, rank, life->children[rank], ncclSum);
    ok = NCCL(ncclGroupEnd()) && ok && ranks_wait(life);
  }
  if (ok) sums_check(life);
}

/* A rank's calls outside of the group: a registered buffer, its own operator. */
static bool rank_prepare(struct life *life, int rank, ncclRedOp_t *op, void **handle) {
  const ncclComm_t comm = life->comms[rank];
  float two = 2;
  return NCCL(ncclCommRegister(comm, life->memory[rank], 2 * COUNT * sizeof(float), handle)) &&
         NCCL(ncclRedOpCreatePreMulSum(op, &two, ncclFloat, ncclScalarHostImmediate, comm));
}

static bool rank_finish(struct life *life, int rank, ncclRedOp_t op, void *handle) {
  const ncclComm_t comm = life->comms[rank];
  return NCCL(ncclRedOpDestroy(op, comm)) && NCCL(ncclCommDeregister(comm, handle)) &&
         NCCL(ncclCommFinalize(comm));
}

static void program_tools(struct life *life) {
  ncclRedOp_t ops[RANKS];
  void *handles[RANKS];
  bool ok = ranks_open(life) && NCCL(ncclCommInitAll(life->comms, RANKS, NULL));
  for (int rank = 0; ok && rank < RANKS; rank++) ok = rank_prepare(life, rank, &ops[rank], &handles[rank]);
  if (!ok || !NCCL(ncclGroupStart())) return;
  for (int rank = 0; ok && rank < RANKS; rank++) ok = rank_sum(life, rank, life->comms[rank], ops[rank]);
  ok = NCCL(ncclGroupEnd()) && ok && ranks_wait(life);
  for (int rank = 0; ok && rank < RANKS; rank++) ok = rank_finish(life, rank, ops[rank], handles[rank]);
}

/* The other streams join the capture of the first. */
static bool graph_capture(struct life *life) {
  const cudaStream_t first = life->streams[0];
  if (!CUDA(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed))) return false;
  bool ok = CUDA(cudaEventRecord(life->events[0], first));
  for (int rank = 1; ok && rank < RANKS; rank++)
    ok = CUDA(cudaStreamWaitEvent(life->streams[rank], life->events[0], 0));
  ok = ok && ranks_sum(life);
  for (int rank = 1; ok && rank < RANKS; rank++)
    ok = CUDA(cudaEventRecord(life->events[rank], life->streams[rank])) &&
         CUDA(cudaStreamWaitEvent(first, life->events[rank], 0));
  cudaGraph_t graph = NULL;
  const cudaError_t ended = cudaStreamEndCapture(first, &graph);
  life->graph = graph;
  return ok && CUDA(ended);
}

static void program_graph(struct life *life) {
  bool ok = ranks_open(life) && NCCL(ncclCommInitAll(life->comms, RANKS, NULL)) && graph_capture(life) &&
            CUDA(cudaGraphInstantiate(&life->exec, life->graph, 0));
  for (int i = 0; ok && i < 2; i++) ok = CUDA(cudaGraphLaunch(life->exec, life->streams[0]));
  if (ok && CUDA(cudaStreamSynchronize(life->streams[0]))) sums_check(life);
}

struct member {
  struct life *life;
  int rank;
  int *finished_count; /* under the backend's lock */
  ncclUniqueId id;
  os_thread thread;
};

static void member_run(struct life *life, const struct member *member) {
  const int rank = member->rank;
  if (CUDA(cudaSetDevice(rank)) && NCCL(ncclCommInitRank(&life->comms[rank], RANKS, member->id, rank)) &&
      rank_sum(life, rank, life->comms[rank], ncclSum))
    CUDA(cudaStreamSynchronize(life->streams[rank]));
  if (life->comms[rank]) comm_end(life, &life->comms[rank]);
}

static void *member_body(void *argument) {
  struct member *member = (struct member *)argument;
  member_run(member->life, member);
  backend_ops()->device->lock();
  *member->finished_count += 1;
  backend_ops()->device->unlock();
  return NULL;
}

static bool all_finished(void *argument) { return *(const int *)argument == RANKS; }

/* One thread per rank. Which rank gets the failure depends on a race; in every case all ranks end: ranks that
 * wait for the failed one get the deadlock report. This thread waits inside the emulator, so that it does not
 * count as a thread that could still make a call. */
static void program_threads(struct life *life) {
  struct member members[RANKS];
  int finished_count = 0;
  ncclUniqueId id;
  life->racing = true;
  if (!ranks_open(life) || !NCCL(ncclGetUniqueId(&id))) return;
  for (int rank = 0; rank < RANKS; rank++) {
    members[rank].life = life;
    members[rank].rank = rank;
    members[rank].id = id;
    members[rank].finished_count = &finished_count;
    assert_true(os_thread_start(&members[rank].thread, member_body, &members[rank]));
  }
  while (backend_ops()->device->wait_until(all_finished, &finished_count, 0) != ncclSuccess) os_sleep_ms(1);
  for (int rank = 0; rank < RANKS; rank++) os_thread_join(members[rank].thread);
  sums_check(life);
}

/* ---- failing each allocation ---- */

struct setting {
  const char *protocol;
  bool free_threads;
};

static void configure(const struct setting *setting) {
  const tutti_emu_config_t config = {.size = sizeof config,
                                     .threads = setting->free_threads,
                                     .slots = 4,
                                     .chunk_bytes = 64,
                                     .channel_count = 2};
  setenv("NCCL_PROTO", setting->protocol, 1);
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  setenv("TUTTI_INIT_TIMEOUT_SECONDS", "10", 1);
  param_reset();
  ncclResult_t result = tutti_emu_configure(&config);
  for (int tries = 0; tries < 60000 && result == ncclInvalidUsage; tries++) {
    os_sleep_ms(1);
    result = tutti_emu_configure(&config);
  }
  assert_int_equal(result, ncclSuccess);
}

/* Blocks beyond those of threads, which have one each. */
static int64_t blocks_unexplained(const struct setting *setting) {
  return (int64_t)os_alloc_live() - (setting->free_threads ? (int64_t)os_thread_count() : 0);
}

/* Threads of streams end a little later, and free their blocks then. */
static int64_t blocks_left(const struct setting *setting, int64_t before) {
  for (int tries = 0; tries < 10000 && blocks_unexplained(setting) != before; tries++) os_sleep_ms(1);
  return blocks_unexplained(setting) - before;
}

static void life_run(struct life *life, void (*program)(struct life *life), uint64_t k) {
  memset(life, 0, sizeof *life);
  os_mutex_init(&life->lock);
  life->abort = k % 2;
  os_alloc_fail_at(k);
  program(life);
  ranks_close(life);
  bootstrap_forget_ids(); /* if a rank had no memory to check in, its id still waits */
  os_alloc_fail_at(0);
  os_mutex_destroy(&life->lock);
}

static uint32_t complaints, race_checks_ended;

static void complain(uint64_t k, const struct life *life, const char *what) {
  if (complaints++ >= COMPLAINTS_MAX) return;
  print_error("allocation %u fails: %s\n  %s: %d\n  %s\n", (unsigned)k, what, life->call, life->code,
              life->text);
}

/* False if the program makes fewer than k allocations. */
static bool fail_at(void (*program)(struct life *life), const struct setting *setting, uint64_t k,
                    int64_t before) {
  struct life life;
  const uint64_t tried = os_alloc_count();
  life_run(&life, program, k);
  const bool reached = os_alloc_count() - tried >= k, race_check_ended = !race_is_on();
  configure(setting); /* the check for races begins anew */
  const int64_t left = blocks_left(setting, before);
  char text[64];
  snprintf(text, sizeof text, "%d blocks are left behind", (int)left);
  if (left != 0) complain(k, &life, text);
  if (!reached && life.failed) complain(k, &life, "the program fails by itself");
  race_checks_ended += race_check_ended;
  if (reached && !life.failed && !race_check_ended) complain(k, &life, "nobody says so");
  if (reached && life.failed && !life.out_of_memory) complain(k, &life, "the code does not say so");
  if (reached && life.failed && life.has_text && !strstr(life.text, "memory"))
    complain(k, &life, "the text does not say so");
  return reached;
}

static void fail_each(void (*program)(struct life *life), const char *protocol, bool free_threads,
                      uint32_t stride) {
  const struct setting setting = {protocol, free_threads};
  struct life life;
  configure(&setting);
  const uint32_t threads = os_thread_count();
  complaints = race_checks_ended = 0;
  for (int i = 0; i < 2; i++) {
    life_run(&life, program, 0);
    if (life.failed) fail_msg("%s: %d: %s", life.call, life.code, life.text);
  }
  for (int tries = 0; tries < 15000 && os_thread_count() > threads; tries++) os_sleep_ms(1);
  configure(&setting);
  const int64_t before = blocks_unexplained(&setting);
  uint64_t k = 1;
  while (k < STEP_LIMIT && complaints < COMPLAINTS_MAX && fail_at(program, &setting, k, before))
    k += STRIDE * stride;
  assert_true(k > 20 && k < STEP_LIMIT);
  assert_true(race_checks_ended > 0 || STRIDE * stride > 1);
  assert_int_equal(complaints, 0);
}

/* ---- tests ---- */

static void test_sums_ll(void **state) {
  (void)state;
  fail_each(program_sums, "LL", false, 1);
}
static void test_sums_ll128(void **state) {
  (void)state;
  fail_each(program_sums, "LL128", false, 1);
}
static void test_sums_simple(void **state) {
  (void)state;
  fail_each(program_sums, "Simple", false, 1);
}
static void test_sums_free_threads(void **state) {
  (void)state;
  fail_each(program_sums, "LL", true, 1);
}
static void test_messages(void **state) {
  (void)state;
  fail_each(program_messages, "LL,Simple", false, 1);
}
static void test_messages_free_threads(void **state) {
  (void)state;
  fail_each(program_messages, "LL,Simple", true, 1);
}
static void test_tools(void **state) {
  (void)state;
  fail_each(program_tools, "Simple", false, 1);
}
static void test_graph(void **state) {
  (void)state;
  fail_each(program_graph, "Simple", false, 1);
}
static void test_graph_free_threads(void **state) {
  (void)state;
  fail_each(program_graph, "Simple", true, 1);
}
static void test_thread_per_rank(void **state) {
  (void)state;
  fail_each(program_threads, "Simple", false, 1);
}
/* A deadlock report takes a second here: not every allocation is tested. */
static void test_thread_per_rank_free_threads(void **state) {
  (void)state;
  fail_each(program_threads, "Simple", true, 8);
}

int main(void) {
  /* Programs with free threads come last: the threads that they leave would delay deadlock reports. */
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums_ll),
                                     cmocka_unit_test(test_sums_ll128),
                                     cmocka_unit_test(test_sums_simple),
                                     cmocka_unit_test(test_messages),
                                     cmocka_unit_test(test_tools),
                                     cmocka_unit_test(test_graph),
                                     cmocka_unit_test(test_thread_per_rank),
                                     cmocka_unit_test(test_sums_free_threads),
                                     cmocka_unit_test(test_messages_free_threads),
                                     cmocka_unit_test(test_graph_free_threads),
                                     cmocka_unit_test(test_thread_per_rank_free_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
