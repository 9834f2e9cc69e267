/* pointers.c: NCCL_CHECK_POINTERS=1: calls whose memory or stream is wrong return ncclInvalidArgument at
 * once, with a sentence that says what is wrong, and the communicators still work. Names CUDA and NCCL alone.
 */
#include <string.h>

#include "need.h"

enum { COUNT = 1 << 19 };

static ncclComm_t comms[RANKS_MAX];
static cudaStream_t streams[RANKS_MAX];
static float *data[RANKS_MAX];

/* The call is refused, and says one of the words. */
static void refused(ncclResult_t result, const char *what, const char *word, const char *or_word) {
  const char *text = ncclGetLastError(NULL);
  if (result == ncclInvalidArgument && (strstr(text, word) || strstr(text, or_word))) return;
  fprintf(stderr, "pointers: %s: result %d, \"%s\": no \"%s\"\n", what, (int)result, text, word);
  exit(1);
}

static ncclResult_t sum(const float *in, float *out, size_t count, cudaStream_t stream) {
  return ncclAllReduce(in, out, count, ncclFloat, ncclSum, comms[0], stream);
}

static void check(int rank_count) {
  float *gone = NULL, *host = (float *)malloc(COUNT * sizeof *host);
  ncclRedOp_t op;
  need_device(0);
  refused(sum(data[0], data[0], 16 * COUNT, streams[0]), "a count of 16 times the memory", "left in its",
          "bytes");
  refused(sum(data[0] + COUNT / 2, data[0] + COUNT / 2, COUNT, streams[0]), "an end behind the memory",
          "left in its", "bytes");
  refused(sum(host, data[0], COUNT, streams[0]), "host memory", "not memory of a device", "host");
  NEED(cudaMalloc((void **)&gone, COUNT * sizeof *gone));
  NEED(cudaFree(gone));
  refused(sum(data[0], gone, COUNT, streams[0]), "freed memory", "freed", "not memory of a device");
  refused(sum(data[0], data[0] + 1, COUNT / 2, streams[0]), "overlapping memory", "overlap", "overlap");
  NEED(ncclRedOpCreatePreMulSum(&op, host, ncclFloat, ncclScalarDevice, comms[0]));
  refused(ncclAllReduce(data[0], data[0], COUNT, ncclFloat, op, comms[0], streams[0]), "a factor on the host",
          "not memory of a device", "host");
  NEED(ncclRedOpDestroy(op, comms[0]));
  if (rank_count > 1) {
    refused(sum(data[1], data[0], COUNT, streams[0]), "another device's memory", "is memory of device 1",
            "device 1");
    refused(sum(data[0], data[0], COUNT, streams[1]), "another device's stream", "belongs to device 1",
            "device 1");
  }
  free(host);
}

int main(void) {
  const int rank_count = need_ranks();
  setenv("NCCL_CHECK_POINTERS", "1", 1);
  need_comms(comms, rank_count);
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&data[rank], COUNT * sizeof *data[rank]));
  }
  check(rank_count);
  NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++)
    NEED(ncclAllReduce(data[rank], data[rank], COUNT, ncclFloat, ncclSum, comms[rank], streams[rank]));
  NEED(ncclGroupEnd());
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamSynchronize(streams[rank]));
    NEED(cudaStreamDestroy(streams[rank]));
    NEED(ncclCommDestroy(comms[rank]));
    NEED(cudaFree(data[rank]));
  }
  need_fresh_start(rank_count);
  printf("pointers: wrong memory and streams are refused on %d ranks: ok\n", rank_count);
  return 0;
}
