/* simt_block.h: a GPU's block on a thread of the host. Each of the block's threads is a fibre; fibres take
 * turns where one waits for its warp, at a barrier, or for memory. A warp that has met goes on in the order
 * of its lanes, so that what it stores lies before what its last lane stores: LL128 asks for that. Random
 * turns (SIMT_SEED) try other descriptors. Knows nothing of kernels. */
#ifndef TUTTI_TESTS_SIMT_BLOCK_H
#define TUTTI_TESTS_SIMT_BLOCK_H

#include <cuda_runtime.h>

#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static thread_local /* a block has a thread of the host for itself */

static inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
  return {x, y, z, w};
}

struct simt_index {
  uint32_t x, y, z;
};
/* Of the fibre that runs now. */
extern thread_local simt_index threadIdx, blockIdx, blockDim;

/* Runs all threads of one block; returns when they have ended. `body` is called once a thread. */
void simt_block_run(uint32_t block, uint32_t thread_count, void (*body)(void *), void *argument);

/* Lets the other fibres go on. */
void simt_yield(void);
/* Now and then, as a seed says. */
void simt_stir(void);
/* Hands in a value and waits for the warp: all lanes' values, until its next synchronization. */
const uint64_t *simt_meet(uint64_t value);
void simt_barrier(uint32_t id, uint32_t threads, bool waits);
uint64_t simt_time_ns(void);

/* ---- CUDA's words ---- */

enum { SIMT_WARP = 32 };

static inline void __syncthreads(void) { simt_barrier(0, blockDim.x, true); }
static inline void __syncwarp(unsigned mask = ~0u) { (void)mask, (void)simt_meet(0); }

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t *values = simt_meet(predicate != 0);
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < SIMT_WARP; lane++) ballot |= (unsigned)values[lane] << lane;
  return ballot & mask;
}
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

static inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  const uint64_t *values = simt_meet(value);
  unsigned least = ~0u;
  for (unsigned lane = 0; lane < SIMT_WARP; lane++)
    if ((mask >> lane & 1) != 0 && values[lane] < least) least = (unsigned)values[lane];
  return least;
}

template <typename TYPE>
static inline TYPE __shfl_sync(unsigned mask, TYPE value, int lane) {
  uint64_t bits = 0;
  static_assert(sizeof value <= sizeof bits, "a register or two");
  memcpy(&bits, &value, sizeof value);
  (void)mask;
  bits = simt_meet(bits)[lane % SIMT_WARP];
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline void __threadfence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block(void) { __threadfence(); }
static inline void __threadfence_system(void) { __threadfence(); }

static inline unsigned long long atomicAdd(unsigned long long *address, unsigned long long value) {
  return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
}
/* Of shared memory: one thread of the host. */
static inline uint32_t atomicMin(uint32_t *address, uint32_t value) {
  const uint32_t before = *address;
  if (value < before) *address = value;
  return before;
}
static inline uint4 __ldcv(const uint4 *address) { return *(const volatile uint4 *)address, *address; }
static inline int __ffs(int value) { return __builtin_ffs(value); }
static inline long long clock64(void) { return (long long)simt_time_ns(); }

#endif
