/* link_test.cu: the two kernels of a link's self-test (kernels/link_test.h). Both end within a bounded
 * time, whatever the link does. */
#include <cuda_runtime.h>

#define PRIM_FN static __device__ __forceinline__
#include "kernels/link_test.h"
#include "kernels/ptx.h"

#define TEST_THREADS 256
#define CYCLES_A_NS 4 /* above any GPU's clock rate: a second limit in case the timer does not advance */

static __device__ uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ value >> 27) * 0x94d049bb133111ebull;
  return value ^ value >> 31;
}

/* The word at `index`; its first half is unique for index and seed. */
static __device__ uint4 pattern_word(uint64_t seed, uint32_t index) {
  const uint64_t low = mixed(seed * 0x9e3779b97f4a7c15ull + index), high = mixed(low + 1);
  return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

/* Called by thread 0. */
static __device__ bool flag_await(const uint64_t *flag, uint64_t seed, uint64_t patience_ns) {
  const uint64_t begin_ns = prim_time_ns();
  const long long begin = clock64(), cycles = (long long)(patience_ns * CYCLES_A_NS);
  while (prim_load_posted(flag) != seed)
    if (prim_time_ns() - begin_ns > patience_ns || clock64() - begin > cycles) return false;
  return true;
}

extern "C" __global__ void __launch_bounds__(TEST_THREADS)
    tutti_link_test_send(struct link_test_buffer *buffer, uint64_t seed) {
  for (uint32_t i = threadIdx.x; i < LINK_TEST_WORDS; i += TEST_THREADS)
    *(uint4 *)buffer->words[i] = pattern_word(seed, i);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) prim_store_release(&buffer->flag, seed);
}

static __device__ void finding_write(struct link_test_finding *finding, const struct link_test_buffer *buffer,
                                     uint64_t seed, bool came, uint32_t first_wrong) {
  finding->outcome = !came                           ? LINK_TEST_SILENT
                     : first_wrong < LINK_TEST_WORDS ? LINK_TEST_WRONG
                                                     : LINK_TEST_OK;
  if (first_wrong >= LINK_TEST_WORDS) return;
  finding->offset_bytes = first_wrong * 16;
  *(uint4 *)finding->found = __ldcv((const uint4 *)buffer->words[first_wrong]);
  *(uint4 *)finding->expected = pattern_word(seed, first_wrong);
}

extern "C" __global__ void __launch_bounds__(TEST_THREADS)
    tutti_link_test_check(const struct link_test_buffer *buffer, uint64_t seed, uint64_t number,
                          uint64_t patience_ns, struct link_test_finding *finding) {
  __shared__ uint32_t first_wrong;
  __shared__ bool came;
  if (threadIdx.x == 0) {
    first_wrong = LINK_TEST_WORDS;
    came = flag_await(&buffer->flag, seed, patience_ns);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; came && i < LINK_TEST_WORDS; i += TEST_THREADS) {
    const uint4 found = __ldcv((const uint4 *)buffer->words[i]), expected = pattern_word(seed, i);
    if (found.x != expected.x || found.y != expected.y || found.z != expected.z || found.w != expected.w)
      atomicMin(&first_wrong, i);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  finding_write(finding, buffer, seed, came, first_wrong);
  __threadfence_system();
  *(volatile uint64_t *)&finding->number = number;
}

extern "C" int link_test_send(struct link_test_buffer *buffer, uint64_t seed, void *stream) {
  void *parameters[] = {&buffer, &seed};
  return cudaLaunchKernel((const void *)tutti_link_test_send, dim3(1), dim3(TEST_THREADS), parameters, 0,
                          (cudaStream_t)stream);
}

extern "C" int link_test_check(const struct link_test_buffer *buffer, uint64_t seed, uint64_t number,
                               uint64_t patience_ns, struct link_test_finding *finding, void *stream) {
  void *parameters[] = {&buffer, &seed, &number, &patience_ns, &finding};
  return cudaLaunchKernel((const void *)tutti_link_test_check, dim3(1), dim3(TEST_THREADS), parameters, 0,
                          (cudaStream_t)stream);
}

extern "C" int link_test_load(void) {
  struct cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)tutti_link_test_send);
  if (error != cudaSuccess) return error;
  return cudaFuncGetAttributes(&attributes, (const void *)tutti_link_test_check);
}
