/* test_match.c: wrong programs whose ranks make different calls, send what is never received, leave too
 * early, or make calls with wrong buffers, each beside its right twin, on the emulator in both modes. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "tutti.h"

enum { RANKS = 4, ODD = 2, COUNT = 1000 };

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
    good_cuda(cudaMalloc((void **)&world.in[rank], RANKS * COUNT * sizeof(float)));
    good_cuda(cudaMalloc((void **)&world.out[rank], RANKS * COUNT * sizeof(float)));
  }
}

static void world_close(bool failed) {
  for (int rank = 0; rank < RANKS; rank++) {
    good_cuda(cudaSetDevice(rank));
    if (!failed) good_cuda(cudaStreamSynchronize(world.streams[rank]));
    if (failed) good(ncclCommAbort(world.comms[rank]));
    else good(ncclCommDestroy(world.comms[rank]));
    good_cuda(cudaStreamDestroy(world.streams[rank]));
    good_cuda(cudaFree(world.in[rank]));
    good_cuda(cudaFree(world.out[rank]));
  }
}

/* ---- ranks that differ ---- */

#define ARGS world.in[rank], world.out[rank]
#define WHERE world.comms[rank], world.streams[rank]

static ncclResult_t datatype(int rank, bool odd) {
  return ncclAllReduce(ARGS, COUNT, odd ? ncclInt : ncclFloat, ncclSum, WHERE);
}

static ncclResult_t reduce_operator(int rank, bool odd) {
  return ncclReduceScatter(ARGS, 10, ncclFloat, odd ? ncclMax : ncclSum, WHERE);
}

static ncclResult_t root(int rank, bool odd) {
  return ncclBroadcast(ARGS, COUNT, ncclFloat, odd ? 1 : 0, WHERE);
}

static ncclResult_t count(int rank, bool odd) { return ncclAllGather(ARGS, odd ? 9 : 10, ncclFloat, WHERE); }

static ncclResult_t function(int rank, bool odd) {
  return odd ? ncclBroadcast(ARGS, COUNT, ncclFloat, 0, WHERE)
             : ncclReduce(ARGS, COUNT, ncclFloat, ncclSum, 0, WHERE);
}

/* The same bytes, and so the same steps. */
static ncclResult_t bytes(int rank, bool odd) {
  return odd ? ncclBroadcast(ARGS, COUNT, ncclHalf, 0, WHERE)
             : ncclBroadcast(ARGS, COUNT / 2, ncclFloat, 0, WHERE);
}

static ncclResult_t order(int rank, bool odd) {
  ncclResult_t result = ncclSuccess;
  for (int call = 0; call < 2 && result == ncclSuccess; call++)
    result = (call == 1) == odd
                 ? ncclAllReduce(ARGS, COUNT, ncclFloat, ncclSum, WHERE)
                 : ncclAllGather(world.in[rank], world.out[rank] + COUNT, 10, ncclFloat, WHERE);
  return result;
}

static ncclResult_t messages_count(int rank, bool odd) {
  return ncclAlltoAll(ARGS, odd ? 3 : 4, ncclFloat, WHERE);
}

static ncclResult_t nothing(int rank, bool odd) {
  return ncclAllReduce(ARGS, odd ? 0 : 4, ncclFloat, ncclSum, WHERE);
}

static const struct difference {
  ncclResult_t (*call)(int rank, bool odd);
  const char *one, *other;
} differences[] = {
    {datatype, "different datatypes: rank 0 called ncclAllReduce(1000 float, sum) ",
     "rank 2 called ncclAllReduce(1000 int32, sum) "},
    {reduce_operator, "different reduction operators: ", "rank 2 called ncclReduceScatter(10 float, max) "},
    {root, "different roots: ", "rank 2 called ncclBroadcast(1000 float, root 1) "},
    {count, "different counts: ", "rank 2 called ncclAllGather(9 float) "},
    {function, "different functions: rank 0 called ncclReduce(1000 float, sum, root 0) ",
     "rank 2 called ncclBroadcast(1000 float, root 0) "},
    {bytes, "different datatypes: ", "rank 2 called ncclBroadcast(1000 half, root 0) "},
    {order, "collective #0 has different functions: ", "rank 2 called ncclAllGather(10 float) "},
    {messages_count, "different counts: ", "rank 2 called ncclAlltoAll(3 float) "},
    {nothing, "different counts: ", "rank 2 called ncclAllReduce(0 float, sum) "}};

/* One rank after another makes its calls, in one group. */
static ncclResult_t all_call(const struct difference *difference, bool wrong) {
  ncclResult_t result = ncclSuccess;
  good(ncclGroupStart());
  for (int rank = 0; rank < RANKS && result == ncclSuccess; rank++)
    result = difference->call(rank, wrong && rank == ODD);
  const ncclResult_t ended = ncclGroupEnd();
  return result != ncclSuccess ? result : ended;
}

static void differ(bool threads) {
  for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
    world_open(threads);
    good(all_call(&differences[i], false));
    good(all_call(&differences[i], false));
    world_close(false);
    world_open(threads);
    assert_int_equal(all_call(&differences[i], true), ncclInvalidUsage);
    const char *said = ncclGetLastError(NULL);
    if (!strstr(said, differences[i].one) || !strstr(said, differences[i].other) ||
        !strstr(said, "test_match"))
      fail_msg("difference %zu: %s", i, said);
    for (int rank = 0; rank < RANKS; rank++) {
      ncclResult_t error = ncclSuccess;
      good(ncclCommGetAsyncError(world.comms[rank], &error));
      assert_int_equal(error, ncclInvalidUsage);
    }
    world_close(true);
  }
}

static void test_differences_guarded(void **state) {
  (void)state;
  differ(false);
}

static void test_differences_threads(void **state) {
  (void)state;
  differ(true);
}

/* Rank 2 puts two calls into one group, the others make them one by one. */
static void test_groups(void **state) {
  (void)state;
  ncclResult_t result = ncclSuccess;
  world_open(true);
  for (int rank = 0; rank < RANKS && result == ncclSuccess; rank++) {
    if (rank == ODD) good(ncclGroupStart());
    for (int call = 0; call < 2 && result == ncclSuccess; call++)
      result = ncclAllReduce(ARGS, COUNT, ncclFloat, ncclSum, WHERE);
    if (rank == ODD) assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
  }
  assert_int_equal(result, ncclInvalidUsage);
  assert_non_null(strstr(ncclGetLastError(NULL), "different places in groups (ncclGroupStart)"));
  world_close(true);
}

/* Right: AlltoAll may come before or after other collectives of its group, and each rank may multiply by its
 * own factor. */
static void test_what_may_differ(void **state) {
  (void)state;
  world_open(false);
  good(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    ncclRedOp_t scaled;
    float factor = (float)(rank + 1);
    if (rank % 2 == 1) good(ncclAlltoAll(ARGS, 10, ncclFloat, WHERE));
    good(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat, ncclScalarHostImmediate, world.comms[rank]));
    good(ncclAllReduce(world.in[rank] + COUNT, world.out[rank] + COUNT, 10, ncclFloat, scaled, WHERE));
    good(ncclRedOpDestroy(scaled, world.comms[rank]));
    if (rank % 2 == 0) good(ncclAlltoAll(ARGS, 10, ncclFloat, WHERE));
  }
  good(ncclGroupEnd());
  world_close(false);
}

/* A group that was discarded leaves nothing to be compared with. */
static void test_discarded_group(void **state) {
  (void)state;
  const int rank = 0;
  world_open(false);
  good(ncclGroupStart());
  good(ncclAllReduce(ARGS, 7, ncclFloat, ncclSum, WHERE));
  assert_int_equal(ncclBroadcast(ARGS, 7, ncclFloat, RANKS, WHERE), ncclInvalidArgument);
  assert_int_not_equal(ncclGroupEnd(), ncclSuccess);
  good(all_call(&differences[0], false));
  world_close(false);
}

/* ---- messages, and ranks that leave ---- */

static void refused_with(ncclResult_t result, const char *one, const char *other) {
  const char *said = ncclGetLastError(NULL);
  assert_int_equal(result, ncclInvalidUsage);
  if (!strstr(said, one) || !strstr(said, other) || !strstr(said, "test_match")) fail_msg("%s", said);
}

/* Rank 1 sends to rank 3. */
static ncclResult_t exchange(size_t sent, ncclDataType_t send_type, size_t received,
                             ncclDataType_t recv_type) {
  int rank = 1;
  good(ncclGroupStart());
  good(ncclSend(world.in[rank], sent, send_type, 3, WHERE));
  rank = 3;
  const ncclResult_t result = ncclRecv(world.out[rank], received, recv_type, 1, WHERE);
  const ncclResult_t ended = ncclGroupEnd();
  return result != ncclSuccess ? result : ended;
}

static void messages_differ(bool threads) {
  static const struct {
    size_t received;
    ncclDataType_t type;
    const char *one, *other;
  } cases[] = {{9, ncclFloat,
                "message #2 from rank 1 to rank 3 has different counts: rank 1 called ncclSend(10 float, to",
                "rank 3 called ncclRecv(9 float, from rank 1) "},
               {20, ncclHalf, "has different datatypes: rank 1 called ncclSend(10 float, to rank 3) ",
                "rank 3 called ncclRecv(20 half, from rank 1) "},
               {0, ncclFloat, "different counts", "ncclRecv(0 float, from rank 1) "}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    world_open(threads);
    for (int right = 0; right < 2; right++) good(exchange(10, ncclFloat, 10, ncclFloat));
    refused_with(exchange(10, ncclFloat, cases[i].received, cases[i].type), cases[i].one, cases[i].other);
    world_close(true);
  }
}

static void test_messages_guarded(void **state) {
  (void)state;
  messages_differ(false);
}

static void test_messages_threads(void **state) {
  (void)state;
  messages_differ(true);
}

/* Short messages wait in their slots, so nothing hangs. */
static void never_received(bool threads) {
  const int rank = 0;
  world_open(threads);
  good(ncclSend(world.in[rank], 8, ncclFloat, 2, WHERE));
  good_cuda(cudaSetDevice(rank));
  good_cuda(cudaStreamSynchronize(world.streams[rank]));
  good(ncclCommDestroy(world.comms[1])); /* has nothing to do with it */
  refused_with(ncclCommDestroy(world.comms[2]),
               "a message was never received: rank 0 called ncclSend(8 float, to rank 2) at ",
               "; rank 2 called ncclCommDestroy after 0 collectives at ");
  good(ncclCommAbort(world.comms[0]));
  good(ncclCommAbort(world.comms[3]));
}

static void test_never_received(void **state) {
  (void)state;
  never_received(false);
  never_received(true);
}

static void test_never_sent(void **state) {
  (void)state;
  int rank = 0;
  world_open(true);
  good(ncclSend(world.in[rank], 8, ncclFloat, 1, WHERE));
  good(ncclRecv(world.in[rank], 8, ncclFloat, 2, WHERE));
  rank = 1;
  good(ncclRecv(world.in[rank], 8, ncclFloat, 0, WHERE));
  good(ncclCommFinalize(world.comms[1]));
  refused_with(ncclCommFinalize(world.comms[2]),
               "a message was never sent: rank 0 called ncclRecv(8 float, from rank 2) at ",
               "; rank 2 called ncclCommFinalize after 0 collectives at ");
  world_close(true);
}

/* The call comes after the other rank has left. */
static void test_partner_left(void **state) {
  (void)state;
  int rank = 0;
  for (int call = 0; call < 3; call++) {
    world_open(call == 1);
    good(all_call(&differences[0], false));
    for (int i = 0; i < RANKS; i++) {
      good_cuda(cudaSetDevice(i));
      good_cuda(cudaStreamSynchronize(world.streams[i]));
    }
    good(ncclCommFinalize(world.comms[ODD]));
    refused_with(call == 0   ? ncclSend(world.in[rank], 8, ncclFloat, ODD, WHERE)
                 : call == 1 ? ncclRecv(world.in[rank], 8, ncclFloat, ODD, WHERE)
                             : datatype(rank, false),
                 "rank 0 called nccl", "; rank 2 called ncclCommFinalize after 1 collective at ");
    world_close(true);
  }
}

/* Three ranks wait in a collective that the fourth never calls. */
static void test_left_early(void **state) {
  (void)state;
  world_open(true);
  for (int rank = 0; rank < RANKS; rank++)
    if (rank != ODD) good(datatype(rank, false));
  refused_with(ncclCommDestroy(world.comms[ODD]), "collective #0 was not called by rank 2: rank 0 called ",
               "; rank 2 called ncclCommDestroy after 0 collectives at ");
  world.comms[ODD] = NULL;
  world_close(true);
}

/* Right: a rank leaves when it has made all of its calls, before others have made theirs; a rank sends before
 * and receives after its peer has left; a simulated group is not made. */
static void test_leave_in_time(void **state) {
  (void)state;
  int rank = 1;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  world_open(true);
  good(ncclGroupStart());
  good(ncclSend(world.in[rank], 8, ncclFloat, 0, WHERE));
  good(ncclRecv(world.out[rank], 8, ncclFloat, 0, WHERE));
  good(ncclAllReduce(world.in[rank], world.out[rank], 8, ncclFloat, ncclSum, WHERE));
  good(ncclGroupSimulateEnd(&info));
  rank = 3;
  good(ncclSend(world.in[rank], 8, ncclFloat, 1, WHERE));
  good_cuda(cudaSetDevice(rank));
  good_cuda(cudaStreamSynchronize(world.streams[rank]));
  good(ncclCommFinalize(world.comms[rank]));
  rank = 1;
  good(ncclRecv(world.in[rank], 8, ncclFloat, 3, WHERE));
  good(ncclSend(world.in[rank], 4, ncclFloat, 0, WHERE));
  rank = 0;
  good(ncclRecv(world.in[rank], 4, ncclFloat, 1, WHERE));
  world_close(false);
}

/* Right: rank 0 sends out of a graph that runs twice, rank 1 receives twice without one. */
static void test_messages_of_graphs(void **state) {
  (void)state;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  int rank = 0;
  world_open(true);
  good_cuda(cudaSetDevice(rank));
  good_cuda(cudaStreamBeginCapture(world.streams[rank], cudaStreamCaptureModeThreadLocal));
  good(ncclSend(world.in[rank], 8, ncclFloat, 1, WHERE));
  good_cuda(cudaStreamEndCapture(world.streams[rank], &graph));
  good_cuda(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 2; launch++) good_cuda(cudaGraphLaunch(exec, world.streams[rank]));
  rank = 1;
  for (int launch = 0; launch < 2; launch++) good(ncclRecv(world.in[rank], 8, ncclFloat, 0, WHERE));
  for (int i = 0; i < 2; i++) {
    good_cuda(cudaSetDevice(i));
    good_cuda(cudaStreamSynchronize(world.streams[i]));
  }
  good_cuda(cudaGraphExecDestroy(exec));
  good_cuda(cudaGraphDestroy(graph));
  world_close(false);
}

/* ---- buffers ---- */

static void refused(ncclResult_t result, const char *words) {
  assert_int_equal(result, ncclInvalidArgument);
  if (!strstr(ncclGetLastError(NULL), words)) fail_msg("%s", ncclGetLastError(NULL));
}

static void test_buffers(void **state) {
  (void)state;
  const int rank = 1;
  static float host[COUNT];
  float *freed, *in, *out;
  world_open(false);
  in = world.in[rank];
  out = world.out[rank];
  good_cuda(cudaSetDevice(rank));
  good_cuda(cudaMalloc((void **)&freed, 64));
  good_cuda(cudaFree(freed));
  refused(ncclAllReduce(in, out, 16 * RANKS * COUNT, ncclFloat, ncclSum, WHERE), "has 16000 bytes left");
  refused(ncclAllReduce(freed, out, 4, ncclFloat, ncclSum, WHERE), "was freed");
  refused(ncclAllReduce(freed + 1, out, 4, ncclFloat, ncclSum, WHERE), "was freed");
  refused(ncclAllReduce(host, out, 4, ncclFloat, ncclSum, WHERE), "is not memory of a device");
  refused(ncclAllReduce(world.in[0], out, 4, ncclFloat, ncclSum, WHERE), "is memory of device 0");
  refused(ncclAllReduce(in, in + 3, 4, ncclFloat, ncclSum, WHERE), "overlap");
  refused(ncclAllGather(out, out, 4, ncclFloat, WHERE), "only if sendbuff is recvbuff + rank * count");
  refused(ncclReduceScatter(in, in, 4, ncclFloat, ncclSum, WHERE), "only if recvbuff is sendbuff + rank");
  refused(ncclAlltoAll(in, in, 4, ncclFloat, WHERE), "cannot work in place");
  world_close(true);
}

/* The ways in which buffers may overlap. */
static void test_in_place(void **state) {
  (void)state;
  world_open(false);
  good(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++) {
    float *in = world.in[rank], *out = world.out[rank];
    good(ncclAllReduce(in, in, 8, ncclFloat, ncclSum, WHERE));
    good(ncclAllReduce(in + 8, in + 16, 8, ncclFloat, ncclSum, WHERE));
    good(ncclAllGather(out + 8 * rank, out, 8, ncclFloat, WHERE));
    good(ncclReduceScatter(in + 100, in + 100 + 8 * rank, 8, ncclFloat, ncclSum, WHERE));
    good(ncclGather(out + 100 + 8 * rank, out + 100, 8, ncclFloat, 3, WHERE));
    good(ncclScatter(in + 200, in + 200 + 8 * rank, 8, ncclFloat, 3, WHERE));
  }
  good(ncclGroupEnd());
  world_close(false);
}

int main(void) {
  setenv("NCCL_DEBUG", "NONE", 0);
  setenv("TUTTI_EMU", "devices=4", 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences_guarded),
                                     cmocka_unit_test(test_differences_threads),
                                     cmocka_unit_test(test_groups),
                                     cmocka_unit_test(test_what_may_differ),
                                     cmocka_unit_test(test_discarded_group),
                                     cmocka_unit_test(test_messages_guarded),
                                     cmocka_unit_test(test_messages_threads),
                                     cmocka_unit_test(test_never_received),
                                     cmocka_unit_test(test_never_sent),
                                     cmocka_unit_test(test_partner_left),
                                     cmocka_unit_test(test_left_early),
                                     cmocka_unit_test(test_leave_in_time),
                                     cmocka_unit_test(test_messages_of_graphs),
                                     cmocka_unit_test(test_buffers),
                                     cmocka_unit_test(test_in_place)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
