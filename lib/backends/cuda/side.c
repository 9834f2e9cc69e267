/* side.c: a copy within the device that runs beside its kernel: a copy engine moves the data, so that blocks
 * keep their outgoing bandwidth for the links. The copy has the same order as the kernel on its stream, and
 * nothing here waits. It is not used in captures, which would include the side stream. */
#include "backends/cuda/device.h"

static int side_open(struct cuda_side *side) {
  int error = 0;
  if (side->stream == NULL) error = cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking);
  if (error == 0 && side->turn == NULL) error = cudaEventCreateWithFlags(&side->turn, cudaEventDisableTiming);
  return error;
}

int cuda_side_begin(struct cuda_side *side, const struct own_copy *copy, cudaStream_t stream) {
  int error = side_open(side);
  if (error == 0) error = cudaEventRecord(side->turn, stream);
  if (error == 0) error = cudaStreamWaitEvent(side->stream, side->turn, 0);
  if (error != 0) return error;
  error = cudaMemcpyAsync(copy->to, copy->from, copy->bytes, cudaMemcpyDefault, side->stream);
  return error != 0 ? error : (int)cudaEventRecord(side->turn, side->stream);
}

int cuda_side_end(const struct cuda_side *side, cudaStream_t stream) {
  return cudaStreamWaitEvent(stream, side->turn, 0);
}

void cuda_side_close(struct cuda_side *side) {
  if (side->stream != NULL) cudaStreamDestroy(side->stream);
  if (side->turn != NULL) cudaEventDestroy(side->turn);
  side->stream = NULL;
  side->turn = NULL;
}
