/* test_turns.c: a thread that does not run, as on a busy machine, is no deadlock: another process stops one
 * thread of this one with ptrace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

#include "base/os.h"
#include "base/turns.h"
#include "skip.h"

#define RANKS 2
#define COUNT 1000
#define HELD_MS 2500 /* longer than TUTTI_STALL_SECONDS */
#define TURN_NS UINT64_C(1000000)

/* A process that stops one thread of this one. */
struct tracer {
  pid_t process;
  int to[2], from[2];
};

static void send_number(int file, int number) {
  assert_int_equal(write(file, &number, sizeof number), sizeof number);
}

static int read_number(int file) {
  int number = -1;
  return read(file, &number, sizeof number) == sizeof number ? number : -1;
}

/* Reads a thread's number, stops that thread, answers 0, or -1 if that is not allowed, and lets it go after
 * HELD_MS. */
static void tracer_run(const struct tracer *tracer) {
  const int thread = read_number(tracer->to[0]);
  const bool seized = thread > 0 && ptrace(PTRACE_SEIZE, thread, NULL, NULL) == 0 &&
                      ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 &&
                      waitpid(thread, NULL, __WALL) == thread;
  send_number(tracer->from[1], seized ? 0 : -1);
  if (seized) os_sleep_ms(HELD_MS);
  ptrace(PTRACE_DETACH, thread, NULL, NULL);
  _exit(0);
}

/* Before this process has threads. */
static void tracer_start(struct tracer *tracer) {
  assert_int_equal(pipe(tracer->to), 0);
  assert_int_equal(pipe(tracer->from), 0);
  tracer->process = fork();
  assert_true(tracer->process >= 0);
  if (tracer->process == 0) tracer_run(tracer);
  prctl(PR_SET_PTRACER, tracer->process);
}

static bool tracer_hold(struct tracer *tracer, int thread) {
  send_number(tracer->to[1], thread);
  return read_number(tracer->from[0]) == 0;
}

static void tracer_end(struct tracer *tracer) {
  assert_int_equal(waitpid(tracer->process, NULL, 0), tracer->process);
  for (int i = 0; i < 2; i++) {
    close(tracer->to[i]);
    close(tracer->from[i]);
  }
}

static struct {
  ncclUniqueId id;
  ncclComm_t comms[RANKS];
  float *data[RANKS];
  _Atomic int thread, go;
} job;

static ncclResult_t rank_call(int rank) {
  cudaStream_t stream;
  if (cudaSetDevice(rank) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess) return ncclSystemError;
  const ncclResult_t result =
      ncclAllReduce(job.data[rank], job.data[rank], COUNT, ncclFloat, ncclSum, job.comms[rank], stream);
  if (result != ncclSuccess) return result;
  const bool done = cudaStreamSynchronize(stream) == cudaSuccess;
  cudaStreamDestroy(stream);
  return done ? ncclSuccess : ncclInternalError;
}

/* The thread that makes a rank drives it. */
static ncclResult_t rank_begin(int rank) {
  if (cudaSetDevice(rank) != cudaSuccess) return ncclSystemError;
  return ncclCommInitRank(&job.comms[rank], RANKS, job.id, rank);
}

/* Rank 1 calls as soon as `go` is set, and the tracer lets it. */
static void *second_rank(void *argument) {
  ncclResult_t *result = (ncclResult_t *)argument;
  *result = rank_begin(1);
  job.thread = gettid();
  while (!job.go) os_sleep_ms(1);
  if (*result == ncclSuccess) *result = rank_call(1);
  return NULL;
}

/* A thread that makes the missing call is held for longer than a hang lasts. */
static void check_held_thread(bool threads) {
  struct tracer tracer;
  struct turns turns;
  os_thread thread;
  ncclResult_t second = ncclInProgress;
  const tutti_emu_config_t config = {.size = sizeof config, .threads = threads, .device_count = RANKS};
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  tracer_start(&tracer);
  assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
  assert_int_equal(ncclGetUniqueId(&job.id), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++) {
    assert_int_equal(cudaSetDevice(rank), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&job.data[rank], COUNT * sizeof(float)), cudaSuccess);
    for (int i = 0; i < COUNT; i++) job.data[rank][i] = (float)(rank + i);
  }
  job.thread = job.go = 0;
  assert_true(os_thread_start(&thread, second_rank, &second));
  assert_int_equal(rank_begin(0), ncclSuccess);
  while (job.thread == 0) os_sleep_ms(1);
  const bool held = tracer_hold(&tracer, job.thread);
  turns_note(&turns);
  const bool passed = turns_passed(&turns, TURN_NS);
  job.go = 1;
  const ncclResult_t first = rank_call(0);
  os_thread_join(thread);
  tracer_end(&tracer);
  if (!held) SKIP("this process may not be traced");
  assert_false(passed);
  assert_int_equal(first, ncclSuccess);
  assert_int_equal(second, ncclSuccess);
  assert_null(strstr(ncclGetLastError(NULL), "no waiting call"));
  for (int i = 0; i < COUNT; i++) assert_true(job.data[0][i] == (float)(2 * i + 1));
  for (int rank = 0; rank < RANKS; rank++) {
    cudaFree(job.data[rank]);
    ncclCommDestroy(job.comms[rank]);
  }
}

static void test_held_thread(void **state) {
  (void)state;
  check_held_thread(true);
}

static void test_held_thread_guarded(void **state) {
  (void)state;
  check_held_thread(false);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_held_thread),
                                     cmocka_unit_test(test_held_thread_guarded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
