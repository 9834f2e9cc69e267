/* two_comms.c: two communicators over the same devices, each with its own stream per device. The second one
 * numbers its ranks in the opposite order. Sums on the first run concurrently with broadcasts on the second;
 * an event joins the streams at the end of each round. */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define CUDACHECK(call)                                                                          \
  do {                                                                                           \
    cudaError_t error_ = (call);                                                                 \
    if (error_ != cudaSuccess) {                                                                 \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)
#define NCCLCHECK(call)                                                                               \
  do {                                                                                                \
    ncclResult_t result_ = (call);                                                                    \
    if (result_ != ncclSuccess) {                                                                     \
      fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, ncclGetErrorString(result_), \
              ncclGetLastError(NULL));                                                                \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)

enum { DEVICES_MAX = 4, COUNT = 5000, ROUNDS = 5 };

struct device {
  cudaStream_t sum_stream, cast_stream;
  cudaEvent_t cast_done;
  int *sum, *cast; /* COUNT values each, both in place */
};

static struct device all[DEVICES_MAX];
static ncclComm_t sum_comms[DEVICES_MAX], cast_comms[DEVICES_MAX]; /* by rank */
static int devices;

static void device_open(int index) {
  static int host[COUNT];
  struct device *device = &all[index];
  CUDACHECK(cudaSetDevice(index));
  CUDACHECK(cudaStreamCreateWithFlags(&device->sum_stream, cudaStreamNonBlocking));
  CUDACHECK(cudaStreamCreateWithFlags(&device->cast_stream, cudaStreamNonBlocking));
  CUDACHECK(cudaEventCreateWithFlags(&device->cast_done, cudaEventDisableTiming));
  CUDACHECK(cudaMalloc((void **)&device->sum, sizeof host));
  CUDACHECK(cudaMalloc((void **)&device->cast, sizeof host));
  for (int i = 0; i < COUNT; i++) host[i] = i + index;
  CUDACHECK(cudaMemcpy(device->sum, host, sizeof host, cudaMemcpyHostToDevice));
  for (int i = 0; i < COUNT; i++) host[i] = 7 * i + index;
  CUDACHECK(cudaMemcpy(device->cast, host, sizeof host, cudaMemcpyHostToDevice));
}

/* One round: both collectives on every device, with the same calls in the same order. Rank 0 of the second
 * communicator is the last device. The next sum waits for this broadcast. */
static void round_enqueue(int root) {
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < devices; i++)
    NCCLCHECK(
        ncclAllReduce(all[i].sum, all[i].sum, COUNT, ncclInt, ncclSum, sum_comms[i], all[i].sum_stream));
  NCCLCHECK(ncclGroupEnd());
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < devices; i++)
    NCCLCHECK(ncclBcast(all[i].cast, COUNT, ncclInt, root, cast_comms[devices - 1 - i], all[i].cast_stream));
  NCCLCHECK(ncclGroupEnd());
  for (int i = 0; i < devices; i++) {
    CUDACHECK(cudaSetDevice(i));
    CUDACHECK(cudaEventRecord(all[i].cast_done, all[i].cast_stream));
    CUDACHECK(cudaStreamWaitEvent(all[i].sum_stream, all[i].cast_done, 0));
  }
}

static int device_check(int index, int factor, int offset) {
  static int sum[COUNT], cast[COUNT];
  struct device *device = &all[index];
  int wrong = 0;
  CUDACHECK(cudaSetDevice(index));
  CUDACHECK(cudaMemcpyAsync(sum, device->sum, sizeof sum, cudaMemcpyDeviceToHost, device->sum_stream));
  CUDACHECK(cudaMemcpyAsync(cast, device->cast, sizeof cast, cudaMemcpyDeviceToHost, device->sum_stream));
  CUDACHECK(cudaStreamSynchronize(device->sum_stream));
  for (int i = 0; i < COUNT; i++) wrong += (sum[i] != factor * i + offset) + (cast[i] != 7 * i + devices - 1);
  return wrong;
}

static void device_close(int index) {
  CUDACHECK(cudaSetDevice(index));
  CUDACHECK(cudaFree(all[index].sum));
  CUDACHECK(cudaFree(all[index].cast));
  CUDACHECK(cudaEventDestroy(all[index].cast_done));
  CUDACHECK(cudaStreamDestroy(all[index].sum_stream));
  CUDACHECK(cudaStreamDestroy(all[index].cast_stream));
}

int main(void) {
  int reversed[DEVICES_MAX], factor = 1, offset = 0, wrong = 0;
  CUDACHECK(cudaGetDeviceCount(&devices));
  if (devices > DEVICES_MAX) devices = DEVICES_MAX;
  for (int i = 0; i < devices; i++) reversed[i] = devices - 1 - i;
  NCCLCHECK(ncclCommInitAll(sum_comms, devices, NULL));
  NCCLCHECK(ncclCommInitAll(cast_comms, devices, reversed));
  for (int i = 0; i < devices; i++) device_open(i);
  /* After the first round every device holds devices * i + 0 + 1 + ...; each later round multiplies it. */
  for (int turn = 0; turn < ROUNDS; turn++) {
    round_enqueue(0);
    factor *= devices;
    offset = turn == 0 ? devices * (devices - 1) / 2 : offset * devices;
  }
  for (int i = 0; i < devices; i++) wrong += device_check(i, factor, offset);
  for (int i = 0; i < devices; i++) {
    device_close(i);
    NCCLCHECK(ncclCommDestroy(sum_comms[i]));
    NCCLCHECK(ncclCommDestroy(cast_comms[i]));
  }
  printf("2 communicators on %d devices, %d rounds on two streams: %d wrong\n", devices, ROUNDS, wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
