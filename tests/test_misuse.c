/* test_misuse.c: wrong uses of streams, groups, operators and registered memory that one rank alone can know,
 * each beside its right twin, on the emulator in both modes. tests/test_misuse.sh has those of a whole
 * process.
 */
/* sanitizers: address thread */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "base/param.h"
#include "tutti.h"

enum { RANKS = 2, COUNT = 1000 };

static struct world {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  float *in[RANKS], *out[RANKS];
} world;

#define good(call) assert_int_equal(call, ncclSuccess)
#define good_cuda(call) assert_int_equal(call, cudaSuccess)

static void world_open(bool threads) {
  const tutti_emu_config_t config = {.size = sizeof config, .threads = threads};
  good(tutti_emu_configure(&config));
  good(ncclCommInitAll(world.comms, RANKS, NULL));
  for (int rank = 0; rank < RANKS; rank++) {
    good_cuda(cudaSetDevice(rank));
    good_cuda(cudaStreamCreate(&world.streams[rank]));
    good_cuda(cudaMalloc((void **)&world.in[rank], COUNT * sizeof(float)));
    good_cuda(cudaMalloc((void **)&world.out[rank], COUNT * sizeof(float)));
  }
}

static void world_sync(void) {
  for (int rank = 0; rank < RANKS; rank++) {
    good_cuda(cudaSetDevice(rank));
    good_cuda(cudaStreamSynchronize(world.streams[rank]));
  }
}

static void world_close(bool failed) {
  if (!failed) world_sync();
  for (int rank = 0; rank < RANKS; rank++) {
    if (failed) good(ncclCommAbort(world.comms[rank]));
    else good(ncclCommDestroy(world.comms[rank]));
    good_cuda(cudaStreamDestroy(world.streams[rank]));
    good_cuda(cudaFree(world.in[rank]));
    good_cuda(cudaFree(world.out[rank]));
  }
}

static void refused(ncclResult_t result, ncclResult_t code, const char *words) {
  assert_int_equal(result, code);
  if (!strstr(ncclGetLastError(NULL), words)) fail_msg("%s", ncclGetLastError(NULL));
}

static ncclResult_t reduce(int rank, ncclRedOp_t op, cudaStream_t stream) {
  return ncclAllReduce(world.in[rank], world.out[rank], 8, ncclFloat, op, world.comms[rank], stream);
}

static void all_reduce(void) {
  good(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) good(reduce(rank, ncclSum, world.streams[rank]));
  good(ncclGroupEnd());
}

/* ---- streams ---- */

static void streams(bool threads) {
  cudaStream_t gone;
  world_open(threads);
  good_cuda(cudaSetDevice(0));
  good_cuda(cudaStreamCreate(&gone));
  good_cuda(cudaStreamDestroy(gone));
  refused(reduce(0, ncclSum, gone), ncclInvalidArgument, "is not a stream of this process, or was destroyed");
  refused(reduce(0, ncclSum, world.streams[1]), ncclInvalidArgument,
          "belongs to device 1, the rank is on device 0");
  good_cuda(cudaSetDevice(1)); /* right: which device is current does not matter, also for default streams */
  all_reduce();
  good(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++)
    good(reduce(rank, ncclSum, rank == 0 ? NULL : cudaStreamPerThread));
  good(ncclGroupEnd());
  for (int rank = 0; rank < RANKS; rank++) {
    good_cuda(cudaSetDevice(rank));
    good_cuda(cudaDeviceSynchronize());
  }
  world_close(false);
}

static void test_streams(void **state) {
  (void)state;
  streams(false);
  streams(true);
}

/* ---- groups ---- */

static void waits_in_groups(bool threads) {
  cudaStream_t other;
  world_open(threads);
  good_cuda(cudaSetDevice(0));
  good_cuda(cudaStreamCreate(&other));
  for (int time = 0; time < 3; time++) { /* later ones come from the call cache */
    good(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) good(reduce(rank, ncclSum, world.streams[rank]));
    good_cuda(cudaStreamSynchronize(other));
    assert_int_equal(cudaStreamSynchronize(world.streams[0]), cudaErrorNotPermitted);
    assert_non_null(strstr(ncclGetLastError(NULL), "test_misuse"));
    assert_non_null(strstr(ncclGetLastError(NULL), "2 calls since); call ncclGroupEnd before"));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorNotPermitted);
    assert_int_equal(cudaGetLastError(), cudaErrorNotPermitted);
    good(ncclGroupEnd());
    good_cuda(cudaDeviceSynchronize());
  }
  refused(ncclGroupEnd(), ncclInvalidUsage, "this thread has no open group");
  good_cuda(cudaStreamDestroy(other));
  world_close(false);
}

static void test_waits_in_groups(void **state) {
  (void)state;
  waits_in_groups(false);
  waits_in_groups(true);
}

static void *call_of_other_thread(void *argument) {
  *(ncclResult_t *)argument = reduce(0, ncclSum, world.streams[0]);
  return strstr(ncclGetLastError(NULL), "a group that another thread has open") ? argument : NULL;
}

/* Wrong while this thread's group has calls of the communicator, right behind its end. */
static void test_group_of_another_thread(void **state) {
  (void)state;
  world_open(true);
  for (int time = 0; time < 3; time++) {
    pthread_t thread;
    ncclResult_t result = ncclSuccess;
    void *said = NULL;
    good(ncclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) good(reduce(rank, ncclSum, world.streams[rank]));
    assert_int_equal(pthread_create(&thread, NULL, call_of_other_thread, &result), 0);
    assert_int_equal(pthread_join(thread, &said), 0);
    assert_int_equal(result, ncclInvalidUsage);
    assert_non_null(said);
    good(ncclGroupEnd());
    assert_int_equal(pthread_create(&thread, NULL, call_of_other_thread, &result), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    good(result);
    good(reduce(1, ncclSum, world.streams[1]));
  }
  world_close(false);
}

/* ---- operators ---- */

static void factors(const char *mode, bool differ) {
  ncclRedOp_t ops[RANKS];
  ncclResult_t result = ncclSuccess;
  setenv("NCCL_CHECK_MODE", mode, 1);
  param_reset();
  world_open(false);
  good(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    float factor = differ ? 2 + (float)rank : 2;
    good(
        ncclRedOpCreatePreMulSum(&ops[rank], &factor, ncclFloat, ncclScalarHostImmediate, world.comms[rank]));
    result = reduce(rank, ops[rank], world.streams[rank]);
    if (result != ncclSuccess) break;
  }
  const bool wrong = differ && strcmp(mode, "GLOBAL") == 0;
  if (wrong) {
    refused(result, ncclInvalidUsage, "ncclAllReduce(8 float, premultiplied sum by 2) at test_misuse");
    assert_non_null(
        strstr(ncclGetLastError(NULL), "ncclAllReduce(8 float, premultiplied sum by 3) at test_misuse"));
  } else {
    good(result);
    if (differ) assert_non_null(strstr(ncclGetLastError(NULL), "this is allowed"));
  }
  assert_int_equal(ncclGroupEnd(), wrong ? ncclInvalidUsage : ncclSuccess);
  for (int rank = 0; rank < RANKS && !wrong; rank++) good(ncclRedOpDestroy(ops[rank], world.comms[rank]));
  world_close(wrong);
  unsetenv("NCCL_CHECK_MODE");
  param_reset();
}

static void test_operators(void **state) {
  ncclRedOp_t own, foreign;
  float factor = 2;
  (void)state;
  world_open(false);
  good(ncclRedOpCreatePreMulSum(&own, &factor, ncclFloat, ncclScalarHostImmediate, world.comms[0]));
  good(ncclRedOpCreatePreMulSum(&foreign, &factor, ncclFloat, ncclScalarHostImmediate, world.comms[1]));
  refused(reduce(0, foreign, world.streams[0]), ncclInvalidArgument, "is another communicator's");
  refused(reduce(1, own, world.streams[1]), ncclInvalidArgument, "is another communicator's");
  good(ncclRedOpDestroy(own, world.comms[0]));
  refused(reduce(0, own, world.streams[0]), ncclInvalidArgument, "it was destroyed");
  refused(ncclRedOpDestroy(own, world.comms[0]), ncclInvalidArgument, "was destroyed");
  good(ncclRedOpDestroy(foreign, world.comms[1]));
  world_close(false);
  factors("DEFAULT", true);
  factors("GLOBAL", false);
  factors("GLOBAL", true);
}

/* ---- memory ---- */

static void test_registered_memory(void **state) {
  float *freed, host[4];
  void *handle;
  (void)state;
  world_open(false);
  good_cuda(cudaSetDevice(0));
  good_cuda(cudaMalloc((void **)&freed, 64));
  good_cuda(cudaFree(freed));
  const ncclComm_t comm = world.comms[0];
  refused(ncclCommRegister(comm, freed, 64, &handle), ncclInvalidArgument, "was freed");
  refused(ncclCommRegister(comm, host, 16, &handle), ncclInvalidArgument, "is not memory of a device");
  refused(ncclCommRegister(comm, world.in[1], 64, &handle), ncclInvalidArgument, "is memory of device 1");
  refused(ncclCommRegister(comm, world.in[0], 5 * COUNT, &handle), ncclInvalidArgument,
          "has 4000 bytes left");
  good(ncclCommRegister(comm, world.in[0], 4 * COUNT, &handle));
  good(ncclCommDeregister(comm, handle));
  refused(ncclCommDeregister(comm, handle), ncclInvalidUsage, "gave no handle");
  world_close(false);
}

static void test_freed_twice(void **state) {
  void *memory, *other;
  (void)state;
  world_open(false);
  good(ncclMemAlloc(&memory, 64));
  refused(ncclMemFree((char *)memory + 8), ncclInvalidArgument, "ncclMemFree of ");
  good(ncclMemFree(memory));
  refused(ncclMemFree(memory), ncclInvalidArgument, "which is freed already");
  good_cuda(cudaMalloc(&other, 64));
  refused(ncclMemFree(other), ncclInvalidArgument, "which belongs to cudaFree");
  good_cuda(cudaFree(other));
  world_close(false);
}

/* A repeated call is cached, and yet refused when its buffer has been freed since. */
static void freed_between(bool threads) {
  world_open(threads);
  for (int time = 0; time < 4; time++) all_reduce();
  for (int rank = 0; rank < RANKS; rank++)
    for (int time = 0; time < 4; time++) good(reduce(rank, ncclSum, world.streams[rank]));
  world_sync();
  float *freed = world.in[0];
  good_cuda(cudaFree(freed));
  refused(reduce(0, ncclSum, world.streams[0]), ncclInvalidArgument, "was freed");
  good(ncclGroupStart());
  refused(reduce(0, ncclSum, world.streams[0]), ncclInvalidArgument, "was freed");
  assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
  good_cuda(cudaSetDevice(0));
  good_cuda(cudaMalloc((void **)&world.in[0], COUNT * sizeof(float)));
  all_reduce();
  world_close(false);
}

static void test_freed_between(void **state) {
  (void)state;
  freed_between(false);
  freed_between(true);
}

/* ---- splits ---- */

/* One thread brings all ranks but one, and so none can come any more. */
static void test_split_without_a_rank(void **state) {
  ncclComm_t parts[RANKS];
  (void)state;
  world_open(false);
  good(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++)
    good(ncclCommSplit(world.comms[rank], 0, rank, &parts[rank], NULL));
  good(ncclGroupEnd());
  for (int rank = 0; rank < RANKS; rank++) good(ncclCommDestroy(parts[rank]));
  refused(ncclCommSplit(world.comms[0], 0, 0, &parts[0], NULL), ncclRemoteError,
          "nothing in the process can move before all 2 ranks had come; missing: rank 1");
  world_close(true);
}

int main(void) {
  setenv("NCCL_DEBUG", "NONE", 0);
  setenv("TUTTI_EMU", "devices=2", 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams),
                                     cmocka_unit_test(test_waits_in_groups),
                                     cmocka_unit_test(test_group_of_another_thread),
                                     cmocka_unit_test(test_operators),
                                     cmocka_unit_test(test_registered_memory),
                                     cmocka_unit_test(test_freed_between),
                                     cmocka_unit_test(test_split_without_a_rank),
                                     cmocka_unit_test(test_freed_twice)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
