/* link.cu: what a copy from one GPU to another one over NVLink reaches, without any protocol: by the copy
 * engine, and by kernels that store into the other GPU's memory or read it, with loads and stores of 16 bytes
 * or bulk copies, over 8 to 64 blocks, each alone or in clusters of 2 to 8. Each block copies one part of the
 * data.
 *
 *     nvcc -std=c++17 -O3 -arch=sm_90 -o link link.cu
 *     link           prints a line per way: us and GB/s for 16 MiB, 64 MiB, 256 MiB and 1 GiB, one GPU to the
 *                    other, then both at once
 *
 * A time is the median of seven, each of three copies in a row. */
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define NEED(call)                                                                   \
  do {                                                                               \
    const cudaError_t error_ = (call);                                               \
    if (error_ != cudaSuccess) {                                                     \
      fprintf(stderr, "link: %s: %s\n", #call, cudaGetErrorString(error_)), exit(1); \
    }                                                                                \
  } while (0)

enum { THREADS = 512, VECTORS = 8, TILE = 2048, STAGES = 4, CARRIERS = 5, ROUNDS = 7, REPEATS = 3 };
static const size_t sizes[] = {(size_t)16 << 20, (size_t)64 << 20, (size_t)256 << 20, (size_t)1 << 30};
#define BYTES_MOST sizes[3]

struct copy {
  const char *from;
  char *to;
  size_t bytes;
};

__device__ static void part_of(const struct copy *copy, size_t *begin, size_t *end) {
  const size_t part = (copy->bytes / gridDim.x + 127) / 128 * 128;
  *begin = min(copy->bytes, part * blockIdx.x);
  *end = min(copy->bytes, *begin + part);
}

__global__ static void __launch_bounds__(THREADS) copy_vectors(struct copy copy) {
  size_t begin, end;
  part_of(&copy, &begin, &end);
  const int4 *from = (const int4 *)copy.from;
  int4 *to = (int4 *)copy.to;
  for (size_t i = begin / 16 + threadIdx.x; i < end / 16; i += THREADS * VECTORS) {
    int4 values[VECTORS];
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
      if (i + k * THREADS < end / 16) values[k] = from[i + k * THREADS];
#pragma unroll
    for (int k = 0; k < VECTORS; k++)
      if (i + k * THREADS < end / 16) to[i + k * THREADS] = values[k];
  }
}

__device__ static uint32_t shared_address(const void *memory) {
  return (uint32_t)__cvta_generic_to_shared(memory);
}

/* Thread 0 of each warp carries tiles, STAGES of them at once. */
__global__ static void copy_bulk(struct copy copy) {
  __shared__ __align__(128) char tiles[CARRIERS][STAGES][TILE];
  __shared__ uint64_t barriers[CARRIERS][STAGES];
  const int carrier = threadIdx.x / 32;
  size_t begin, end, stored;
  if (threadIdx.x % 32 != 0) return;
  for (int stage = 0; stage < STAGES; stage++)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barriers[carrier][stage])));
  asm volatile("fence.mbarrier_init.release.cluster;");
  part_of(&copy, &begin, &end);
  const size_t first = begin + (size_t)carrier * TILE, stride = (size_t)CARRIERS * TILE;
  const size_t count = first < end ? (end - first + stride - 1) / stride : 0;
  stored = 0;
  for (size_t i = 0; i < count + STAGES / 2; i++) {
    if (i < count) {
      const size_t offset = first + i * stride;
      const uint32_t bytes = (uint32_t)min((size_t)TILE, end - offset), stage = i % STAGES;
      const uint32_t barrier = shared_address(&barriers[carrier][stage]);
      asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES / 2 - 1) : "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              shared_address(tiles[carrier][stage])),
          "l"(copy.from + offset), "r"(bytes), "r"(barrier)
          : "memory");
    }
    if (i < STAGES / 2) continue;
    const size_t offset = first + stored * stride;
    const uint32_t bytes = (uint32_t)min((size_t)TILE, end - offset), stage = stored % STAGES;
    const uint32_t barrier = shared_address(&barriers[carrier][stage]), parity = stored / STAGES & 1;
    uint32_t done = 0;
    while (done == 0)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(done)
                   : "r"(barrier), "r"(parity)
                   : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(copy.to + offset),
                 "r"(shared_address(tiles[carrier][stage])), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    stored += 1;
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

static cudaStream_t streams[2];
static cudaEvent_t begins[2], ends[2];
static char *sources[2], *targets[2];

/* `enqueue(device)`: one copy on that device's stream. */
template <class ENQUEUE>
static void measure(bool both, size_t bytes, ENQUEUE enqueue) {
  float times[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    for (int device = 0; device <= both; device++) {
      NEED(cudaSetDevice(device));
      NEED(cudaEventRecord(begins[device], streams[device]));
      for (int i = 0; i < REPEATS; i++) enqueue(device);
      NEED(cudaEventRecord(ends[device], streams[device]));
    }
    times[round] = 0;
    for (int device = 0; device <= both; device++) {
      float ms;
      NEED(cudaEventSynchronize(ends[device]));
      NEED(cudaEventElapsedTime(&ms, begins[device], ends[device]));
      times[round] = std::max(times[round], ms / REPEATS);
    }
  }
  std::sort(times, times + ROUNDS);
  printf(" %7.1f us %5.1f", times[ROUNDS / 2] * 1e3, bytes / times[ROUNDS / 2] / 1e6);
}

static void measure_engine(bool both) {
  printf("%-44s", both ? "copy engine, both" : "copy engine, one");
  for (size_t bytes : sizes)
    measure(both, bytes, [&](int device) {
      NEED(cudaMemcpyAsync(targets[1 - device], sources[device], bytes, cudaMemcpyDeviceToDevice,
                           streams[device]));
    });
  printf("\n");
}

static void measure_kernel(bool both, bool bulk, bool reads, int blocks, int cluster) {
  printf("%s, %s, %2d blocks, clusters of %d, %-6s", reads ? "read" : "stored", bulk ? "bulk   " : "vectors",
         blocks, cluster, both ? "both" : "one");
  for (size_t bytes : sizes)
    measure(both, bytes, [&](int device) {
      const struct copy copy = {sources[reads ? 1 - device : device], targets[reads ? device : 1 - device],
                                bytes};
      cudaLaunchAttribute attribute = {};
      cudaLaunchConfig_t config = {};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = cluster;
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
      config.gridDim = dim3(blocks);
      config.blockDim = dim3(bulk ? CARRIERS * 32 : THREADS);
      config.stream = streams[device];
      config.attrs = &attribute;
      config.numAttrs = cluster > 1;
      NEED(cudaLaunchKernelEx(&config, bulk ? copy_bulk : copy_vectors, copy));
    });
  printf("\n");
  fflush(stdout);
}

int main(void) {
  for (int device = 0; device < 2; device++) {
    NEED(cudaSetDevice(device));
    NEED(cudaDeviceEnablePeerAccess(1 - device, 0));
    NEED(cudaStreamCreateWithFlags(&streams[device], cudaStreamNonBlocking));
    NEED(cudaEventCreate(&begins[device]));
    NEED(cudaEventCreate(&ends[device]));
    NEED(cudaMalloc(&sources[device], BYTES_MOST));
    NEED(cudaMalloc(&targets[device], BYTES_MOST));
    NEED(cudaMemset(sources[device], 1 + device, BYTES_MOST));
    NEED(cudaDeviceSynchronize());
  }
  for (int both = 0; both < 2; both++) {
    measure_engine(both != 0);
    for (int blocks : {8, 16, 24, 32, 64})
      for (int cluster : {1, 2, 4, 8})
        for (int bulk = 0; bulk < 2; bulk++) measure_kernel(both != 0, bulk != 0, false, blocks, cluster);
    for (int blocks : {8, 16, 32})
      for (int bulk = 0; bulk < 2; bulk++) measure_kernel(both != 0, bulk != 0, true, blocks, 1);
  }
  return 0;
}
