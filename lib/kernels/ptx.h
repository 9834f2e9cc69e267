/* ptx.h: the kernels' instructions that C++ has no words for, a function each. Whoever lets the kernels run
 * elsewhere than on a GPU puts another file of this name before it (tests/simt). Knows nothing of who calls.
 */
#ifndef TUTTI_KERNELS_PTX_H
#define TUTTI_KERNELS_PTX_H

#include <stdbool.h>
#include <stdint.h>

/* ---- memory ---- */

/* All accesses to what others see are volatile assembly, whose order a compiler keeps; little of it clobbers
 * memory, so that the lane stays in registers. Loads look past the first-level cache: a peer may have written
 * there since.
 */
PRIM_FN uint64_t prim_load_word(const void *address) {
  uint64_t value;
  asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
  return value;
}

PRIM_FN ulonglong2 prim_load_pair(const void *address) {
  ulonglong2 pair;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(pair.x), "=l"(pair.y) : "l"(address));
  return pair;
}

/* The same by all lanes of a warp, at one address: one load, whose answer they all go by. */
PRIM_FN uint64_t prim_load_word_together(const void *address) { return prim_load_word(address); }
PRIM_FN ulonglong2 prim_load_pair_together(const void *address) { return prim_load_pair(address); }

/* A word of shared memory, likewise. */
PRIM_FN uint32_t prim_peek_together(const uint32_t *word) { return *(const volatile uint32_t *)word; }

/* One store of sixteen bytes, which no reader sees in part by halves. */
PRIM_FN void prim_store_pair(void *address, uint64_t low, uint64_t high) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(low), "l"(high));
}

PRIM_FN void prim_store_vector(void *address, ulonglong2 vector) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(vector.x), "l"(vector.y));
}

PRIM_FN void prim_store_word(uint64_t *address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value));
}

PRIM_FN int prim_flag(const int *address) {
  int value;
  asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

/* 0 where it is not asked for. An instruction without a branch: a compiler may wait for what a branch has
 * loaded where it ends. */
PRIM_FN uint64_t prim_load_word_if(bool asked, const void *address) {
  uint64_t value;
  asm volatile(
      "{ .reg .pred asked; setp.ne.u32 asked, %2, 0; mov.u64 %0, 0;"
      " @asked ld.volatile.global.u64 %0, [%1]; }"
      : "=&l"(value)
      : "l"(address), "r"((uint32_t)asked));
  return value;
}

PRIM_FN ulonglong2 prim_load_pair_if(bool asked, const void *address) {
  ulonglong2 pair;
  asm volatile(
      "{ .reg .pred asked; setp.ne.u32 asked, %3, 0; mov.u64 %0, 0; mov.u64 %1, 0;"
      " @asked ld.volatile.global.v2.u64 {%0, %1}, [%2]; }"
      : "=&l"(pair.x), "=&l"(pair.y)
      : "l"(address), "r"((uint32_t)asked));
  return pair;
}

PRIM_FN uint64_t prim_load_acquire(const uint64_t *address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

PRIM_FN void prim_store_release(uint64_t *address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

/* Past the first-level cache, and in the order of the program, as all loads of the kernels. */
PRIM_FN uint64_t element_load(const uint8_t *address, uint32_t bytes) {
  uint64_t element;
  switch (bytes) {
    case 1: asm volatile("ld.volatile.global.u8 %0, [%1];" : "=l"(element) : "l"(address)); break;
    case 2: asm volatile("ld.volatile.global.u16 %0, [%1];" : "=l"(element) : "l"(address)); break;
    case 4: asm volatile("ld.volatile.global.u32 %0, [%1];" : "=l"(element) : "l"(address)); break;
    default: asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(element) : "l"(address)); break;
  }
  return element;
}

PRIM_FN void element_store(uint8_t *address, uint32_t bytes, uint64_t element) {
  switch (bytes) {
    case 1: asm volatile("st.global.u8 [%0], %1;" : : "l"(address), "l"(element)); break;
    case 2: asm volatile("st.global.u16 [%0], %1;" : : "l"(address), "l"(element)); break;
    case 4: asm volatile("st.global.u32 [%0], %1;" : : "l"(address), "l"(element)); break;
    default: asm volatile("st.global.u64 [%0], %1;" : : "l"(address), "l"(element)); break;
  }
}

/* ---- words on their way into shared memory: nobody waits for them until they are asked for ---- */

PRIM_FN uint32_t prim_shared_place(const uint64_t *place) {
  return (uint32_t)__cvta_generic_to_shared(place);
}

PRIM_FN void prim_fetch_word(uint64_t *place, const uint8_t *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" : : "r"(prim_shared_place(place)), "l"(from));
}

PRIM_FN void prim_put_word(uint64_t *place, uint64_t word) {
  asm volatile("st.shared.u64 [%0], %1;" : : "r"(prim_shared_place(place)), "l"(word));
}

PRIM_FN void prim_fetch_end(void) { asm volatile("cp.async.wait_all;"); }

PRIM_FN uint64_t prim_fetched_word(const uint64_t *place) {
  uint64_t word;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(word) : "r"(prim_shared_place(place)));
  return word;
}

/* ---- time and order ---- */

PRIM_FN uint64_t prim_time_ns(void) {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

PRIM_FN void prim_fence(void) { asm volatile("fence.acq_rel.sys;"); }

PRIM_FN void prim_converge(void) { asm volatile("bar.warp.sync 0xffffffff;"); }
/* The same, and nothing is read before it that is written down behind it. */
PRIM_FN void prim_converge_reads(void) { asm volatile("bar.warp.sync 0xffffffff;" : : : "memory"); }

/* A block's barrier number `id`, a constant, of so many threads, PRIM_CONSTANT or PRIM_VARIABLE: who arrives
 * does not wait. */
#define PRIM_CONSTANT(number) "n"(number)
#define PRIM_VARIABLE(number) "r"(number)
#define PRIM_BARRIER_ARRIVE(id, threads) \
  asm volatile("barrier.cta.arrive %0, %1;" : : PRIM_CONSTANT(id), threads : "memory")
#define PRIM_BARRIER_SYNC(id, threads) \
  asm volatile("barrier.cta.sync %0, %1;" : : PRIM_CONSTANT(id), threads : "memory")

/* Programmatic dependent launch (compute capability 9.0): the stream's next kernel may begin; the one before
 * has ended. */
PRIM_FN void prim_launch_dependents(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

PRIM_FN void prim_await_dependencies(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

/* ---- pairs of small floats: the bits of kernels/types.h for every operand, NaN included ---- */

#define WORD_PAIR(function, instruction)                                    \
  PRIM_FN uint32_t function(uint32_t left, uint32_t right) {                \
    uint32_t result;                                                        \
    asm(instruction " %0, %1, %2;" : "=r"(result) : "r"(left), "r"(right)); \
    return result;                                                          \
  }
WORD_PAIR(pair_half_sum, "add.rn.f16x2")
WORD_PAIR(pair_half_prod, "mul.rn.f16x2")
WORD_PAIR(pair_half_max, "max.f16x2")
WORD_PAIR(pair_half_min, "min.f16x2")
WORD_PAIR(pair_bfloat16_max, "max.bf16x2")
WORD_PAIR(pair_bfloat16_min, "min.bf16x2")
#undef WORD_PAIR

/* Before sm_90 there is no addition, but a fused one with a factor of one rounds the same once. */
PRIM_FN uint32_t pair_bfloat16_sum(uint32_t left, uint32_t right) {
  uint32_t result;
#if __CUDA_ARCH__ >= 900
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(left), "r"(right));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(left), "r"(0x3f803f80u), "r"(right));
#endif
  return result;
}

#endif
