/* simt_block.h: a GPU's block on a thread of the host. Each thread of the block is a fibre; fibres switch
 * when one waits for its warp, at a barrier, or for memory. After a synchronization a warp continues in lane
 * order, so that what it stores precedes what its last lane stores, as LL128 requires. Random switches
 * (SIMT_SEED) try other orders. Knows nothing of kernels. */
#ifndef TUTTI_TESTS_SIMT_BLOCK_H
#define TUTTI_TESTS_SIMT_BLOCK_H

#include <cuda_runtime.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static thread_local /* each block has its own host thread */

static inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
  return {x, y, z, w};
}

struct simt_index {
  uint32_t x, y, z;
};
/* The indexes of the running fibre. */
extern thread_local simt_index threadIdx, blockIdx, blockDim;

#define SIMT_NO_WARP INT_MAX

struct order_launch;

/* Runs all threads of one block; returns when they have ended. `body` is called once per thread.
 * `requested_bytes`: of shared memory, besides what kernels declare. The warp `slow_warp` (negative: from the
 * last one; SIMT_NO_WARP: none) is slower than the others by far. `launch`: for order.h, or NULL. */
void simt_block_run(struct order_launch *launch, uint32_t block, uint32_t thread_count,
                    size_t requested_bytes, int slow_warp, void (*body)(void *), void *argument);

/* Lets the other fibres run. */
void simt_yield(void);
/* Yields at random, by the seed. */
void simt_stir(void);
/* True once in `one_in` times, and a number below `bound`, by the seed; without one never, and not called. */
bool simt_chance(uint32_t one_in);
uint32_t simt_draw(uint32_t bound);
/* Passes a value to the warp and waits for all lanes; returns their values, valid until the next
 * synchronization. It orders no accesses, as votes and shuffles of a GPU; simt_sync() does. */
const uint64_t *simt_meet(uint64_t value);
void simt_sync(void);
void simt_barrier(uint32_t id, uint32_t threads, bool waits);
uint64_t simt_time_ns(void);

/* ---- accesses to memory that other threads see; misaligned ones end the program ---- */

enum simt_kind {
  SIMT_WEAK,    /* plain */
  SIMT_STRONG,  /* volatile, or relaxed in the system's scope */
  SIMT_LINE,    /* a store alike, of a line or a piece of one */
  SIMT_POST,    /* a store alike, before which all that was read is in registers */
  SIMT_ACQUIRE, /* or release, in the system's scope */
  SIMT_ACQUIRE_BLOCK
};
/* Of 1, 2, 4 or 8 bytes. */
uint64_t simt_load(const void *address, uint32_t bytes, enum simt_kind kind);
void simt_store(void *address, uint32_t bytes, uint64_t value, enum simt_kind kind);
/* Eight bytes twice; `whole`: nobody sees one without the other. */
ulonglong2 simt_load_pair(const void *address, enum simt_kind kind);
void simt_store_pair(void *address, uint64_t low, uint64_t high, enum simt_kind kind, bool whole);
/* Loads by lane 0 for all lanes of the warp. */
uint64_t simt_load_together(const void *address, uint32_t bytes, enum simt_kind kind);
ulonglong2 simt_load_pair_together(const void *address, enum simt_kind kind);
/* Relaxed, in the device's scope. */
uint64_t simt_add(uint64_t *address, uint64_t value);
uint64_t simt_add_system(uint64_t *address, uint64_t value); /* other devices add, too */
/* Copies eight bytes to shared memory at the thread's next simt_fetch_end(); until then garbage is there. */
void simt_fetch(uint64_t *place, const void *from);
void simt_fetch_end(void);
/* What was loaded there has been used. */
void simt_take(const void *address, uint32_t bytes);
enum simt_scope { SIMT_BLOCK, SIMT_DEVICE, SIMT_SYSTEM };
void simt_fence(enum simt_scope scope);
/* Waits for the launch that this one overlaps. */
void simt_await_previous(void);

/* ---- bulk copies between memory and shared memory, which has addresses of 32 bits (copy_engine.cc) ----
 *
 * Errors end the program with a sentence: places outside of what the launch requests, misaligned places and
 * sizes, barriers that are not open or not fenced, phases that are expected twice, copies in flight when
 * their thread ends. */

uint32_t simt_requested_bytes(void);
uint32_t simt_requested_place(void);
uint32_t simt_shared_place(const void *shared);
/* Barriers: their words are accessed in the block's scope; they neither release nor acquire what threads do.
 */
void simt_arrivals_open(uint32_t barrier);
void simt_arrivals_fence(void);
void simt_arrivals_close(uint32_t barrier);
void simt_arrivals_expect(uint32_t barrier, uint32_t bytes);
uint32_t simt_arrivals_ended(uint32_t barrier, uint32_t parity);
void simt_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void simt_bulk_store(void *to, uint32_t from, uint32_t bytes);
void simt_bulk_group_end(void);
/* Waits for the thread's groups but the last `but`: until they are read, or stored. */
void simt_bulk_await(uint32_t but, bool only_reads);
void simt_bulk_fence(void);

/* ---- CUDA's names ---- */

enum { SIMT_WARP = 32 };

static inline void __syncthreads(void) { simt_barrier(0, blockDim.x, true); }
static inline void __syncwarp(unsigned mask = ~0u) { (void)mask, simt_sync(); }

static inline void __barrier_sync_count(unsigned id, unsigned threads) { simt_barrier(id, threads, true); }

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

static inline void __threadfence(void) { simt_fence(SIMT_DEVICE); }
static inline void __threadfence_block(void) { simt_fence(SIMT_BLOCK); }
static inline void __threadfence_system(void) { simt_fence(SIMT_SYSTEM); }

static inline unsigned long long atomicAdd(unsigned long long *address, unsigned long long value) {
  return simt_add((uint64_t *)address, value);
}
/* On shared memory, which is used by one host thread. */
static inline uint32_t atomicMin(uint32_t *address, uint32_t value) {
  const uint32_t before = *address;
  if (value < before) *address = value;
  return before;
}
static inline uint4 __ldcv(const uint4 *address) { return *(const volatile uint4 *)address, *address; }
static inline int __ffs(int value) { return __builtin_ffs(value); }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline void __nanosleep(unsigned) { simt_yield(); }
static inline long long clock64(void) { return (long long)simt_time_ns(); }

#endif
