/* launched.c: one program for every launcher. Each process is one rank; how many there are, which one this is
 * and where they meet comes from whoever started them, and no MPI is in the program:
 *
 *   tutti launch -n 4 ./launched      mpirun -n 4 ./launched      srun -n 4 ./launched
 *   torchrun --no-python --nproc-per-node 4 ./launched            ./launched (alone: one rank)
 *
 * Times an all-reduce and an all-gather at growing sizes, and checks every element on every rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

#define SIZE_LEAST 1024
#define SIZE_MOST (1 << 20)
#define ROUNDS 5

#define CHECK_CUDA(call)                                                             \
  do {                                                                               \
    cudaError_t error = (call);                                                      \
    if (error != cudaSuccess) {                                                      \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)
#define CHECK_NCCL(call)                                                                 \
  do {                                                                                   \
    ncclResult_t result = (call);                                                        \
    if (result != ncclSuccess) {                                                         \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, ncclGetErrorString(result), \
              ncclGetLastError(NULL));                                                   \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)

struct job {
  tutti_launch_t launch;
  ncclComm_t comm;
  cudaStream_t stream;
  float *in, *out, *host;
  double *numbers; /* on the device: values that ranks exchange */
};

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Small whole numbers, so that sums are exact in any order. */
static float input_value(int rank, size_t index) { return (float)((rank + 1) * (1 + (int)(index % 5))); }

/* The largest of all ranks' values. */
static double largest(struct job *job, double value) {
  CHECK_CUDA(cudaMemcpy(job->numbers, &value, sizeof value, cudaMemcpyHostToDevice));
  CHECK_NCCL(ncclAllReduce(job->numbers, job->numbers, 1, ncclDouble, ncclMax, job->comm, job->stream));
  CHECK_CUDA(cudaStreamSynchronize(job->stream));
  CHECK_CUDA(cudaMemcpy(&value, job->numbers, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

static void run_once(struct job *job, int is_gather, size_t count) {
  if (is_gather) CHECK_NCCL(ncclAllGather(job->in, job->out, count, ncclFloat, job->comm, job->stream));
  else CHECK_NCCL(ncclAllReduce(job->in, job->out, count, ncclFloat, ncclSum, job->comm, job->stream));
}

static long wrong_elements(struct job *job, int is_gather, size_t count) {
  const int ranks = job->launch.rank_count;
  const size_t total = is_gather ? count * (size_t)ranks : count;
  long wrong = 0;
  CHECK_CUDA(cudaMemcpy(job->host, job->out, total * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < total; i++) {
    float expected = is_gather ? input_value((int)(i / count), i % count)
                               : (float)(ranks * (ranks + 1) / 2) * (float)(1 + i % 5);
    wrong += job->host[i] != expected;
  }
  return wrong;
}

/* One line of the table; `bytes` is that of all parts together. */
static long run_size(struct job *job, int is_gather, size_t bytes) {
  const int ranks = job->launch.rank_count;
  const size_t count = bytes / sizeof(float) / (is_gather ? (size_t)ranks : 1);
  for (size_t i = 0; i < count; i++) job->host[i] = input_value(job->launch.rank, i);
  CHECK_CUDA(cudaMemcpy(job->in, job->host, count * sizeof(float), cudaMemcpyHostToDevice));
  run_once(job, is_gather, count);
  largest(job, 0); /* a barrier of all ranks */
  const double start = now_us();
  for (int round = 0; round < ROUNDS; round++) run_once(job, is_gather, count);
  CHECK_CUDA(cudaStreamSynchronize(job->stream));
  const double time_us = largest(job, (now_us() - start) / ROUNDS);
  const long wrong = (long)largest(job, (double)wrong_elements(job, is_gather, count));
  const double algbw = (double)bytes / time_us * 1e-3;
  const double factor = (is_gather ? 1.0 : 2.0) * (ranks - 1) / ranks;
  if (job->launch.rank == 0)
    printf("%-10s  %10zu  %10zu  %8s  %10.1f  %7.3f  %7.3f  %6ld\n", is_gather ? "all_gather" : "all_reduce",
           bytes, count, "float", time_us, algbw, algbw * factor, wrong);
  return wrong;
}

static void job_start(struct job *job) {
  ncclUniqueId id;
  memset(job, 0, sizeof *job);
  job->launch.size = sizeof job->launch;
  CHECK_NCCL(tutti_launch_read(&job->launch));
  CHECK_CUDA(cudaSetDevice(job->launch.local_rank));
  CHECK_CUDA(cudaStreamCreate(&job->stream));
  CHECK_CUDA(cudaMalloc((void **)&job->in, SIZE_MOST));
  CHECK_CUDA(cudaMalloc((void **)&job->out, SIZE_MOST));
  CHECK_CUDA(cudaMalloc((void **)&job->numbers, sizeof(double)));
  job->host = (float *)malloc(SIZE_MOST);
  if (!job->host) exit(1);
  CHECK_NCCL(tutti_launch_id(&job->launch, &id));
  CHECK_NCCL(ncclCommInitRank(&job->comm, job->launch.rank_count, id, job->launch.rank));
}

static void job_end(struct job *job) {
  CHECK_NCCL(ncclCommFinalize(job->comm));
  CHECK_NCCL(ncclCommDestroy(job->comm));
  CHECK_CUDA(cudaFree(job->in));
  CHECK_CUDA(cudaFree(job->out));
  CHECK_CUDA(cudaFree(job->numbers));
  CHECK_CUDA(cudaStreamDestroy(job->stream));
  free(job->host);
}

int main(void) {
  struct job job;
  long wrong = 0;
  job_start(&job);
  const int is_first = job.launch.rank == 0;
  if (is_first) {
    printf("# launcher %s, %d ranks, %d on this host\n", job.launch.launcher, job.launch.rank_count,
           job.launch.local_count);
    printf("# %-8s  %10s  %10s  %8s  %10s  %7s  %7s  %6s\n", "", "size (B)", "count", "type", "time (us)",
           "algbw", "busbw", "#wrong");
  }
  for (size_t bytes = SIZE_LEAST; bytes <= SIZE_MOST; bytes *= 32) {
    wrong += run_size(&job, 0, bytes);
    wrong +=
        run_size(&job, 1, bytes / (size_t)job.launch.rank_count / 16 * 16 * (size_t)job.launch.rank_count);
  }
  job_end(&job);
  if (is_first) printf("%s\n", wrong ? "WRONG" : "ok");
  return wrong ? 1 : 0;
}
