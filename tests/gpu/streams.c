/* streams.c: two ranks on one GPU that launch an operation on the same stream: the second kernel would begin
 * after the first one, which waits for it. The call is refused with a sentence, the
 * communicators can be aborted, and new ones work. */
#include <string.h>

#include "need.h"

enum { RANKS = 2, COUNT = 1000 };

static ncclComm_t comms[RANKS_MAX];
static float *data[RANKS_MAX];

static ncclResult_t sum_all(cudaStream_t stream) {
  ncclResult_t result = ncclSuccess;
  NEED(ncclGroupStart());
  for (int rank = 0; rank < RANKS && result == ncclSuccess; rank++)
    result = ncclAllReduce(data[rank], data[rank], COUNT, ncclFloat, ncclSum, comms[rank], stream);
  const ncclResult_t ended = ncclGroupEnd();
  return result != ncclSuccess ? result : ended;
}

static void refused(cudaStream_t stream, const char *what) {
  need_comms(comms, RANKS);
  const ncclResult_t result = sum_all(stream);
  if (result == ncclSuccess || strstr(ncclGetLastError(NULL), "on the same stream") == NULL) {
    fprintf(stderr, "streams: %s: result %d, \"%s\"\n", what, (int)result, ncclGetLastError(NULL));
    exit(1);
  }
  for (int rank = 0; rank < RANKS; rank++) NEED(ncclCommAbort(comms[rank]));
  NEED(cudaDeviceSynchronize());
}

int main(void) {
  cudaStream_t own;
  if (need_device_count() > 1) {
    printf("streams: ranks have a GPU each: ok\n");
    return 0;
  }
  need_shared_devices(RANKS);
  NEED(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  for (int rank = 0; rank < RANKS; rank++) NEED(cudaMalloc((void **)&data[rank], COUNT * sizeof *data[rank]));
  refused(own, "a stream of the program");
  refused(NULL, "the legacy stream");
  refused(cudaStreamPerThread, "the thread's default stream");
  for (int rank = 0; rank < RANKS; rank++) NEED(cudaFree(data[rank]));
  NEED(cudaStreamDestroy(own));
  need_fresh_start(RANKS);
  printf("streams: one stream for %d ranks is refused: ok\n", RANKS);
  return 0;
}
