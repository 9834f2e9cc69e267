/* ptx.h (simt): replaces the GPU's ptx.h for fibres. Memory is the host's: every access to what other blocks
 * see is atomic for eight bytes, and ordered as the host's compiler orders it. */
#ifndef TUTTI_KERNELS_PTX_H
#define TUTTI_KERNELS_PTX_H

/* On a GPU all threads of a warp write a shared lane at once; here each thread has its own. */
#undef BLOCK_LANES_SHARED

/* Host memory is as near as the block's own here, and a poll takes a turn of all fibres. */
#define PRIM_CALLS_A_REMOTE_LOOK 64
#define DIRECT_REMOTE_LOOKS 64u

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---- memory ---- */

/* A GPU refuses addresses that are not multiples of an access's bytes; the host does not. */
PRIM_FN void simt_align(const void *address, uint32_t bytes) {
  if (((uintptr_t)address & (bytes - 1)) != 0) simt_misaligned(address, bytes);
}

PRIM_FN uint64_t prim_load_word(const void *address) {
  simt_stir();
  simt_align(address, 8);
  return __atomic_load_n((const uint64_t *)address, __ATOMIC_ACQUIRE);
}

PRIM_FN ulonglong2 prim_load_pair(const void *address) {
  simt_stir();
  simt_align(address, 16);
  const uint64_t *words = (const uint64_t *)address;
  ulonglong2 pair;
  pair.x = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE);
  pair.y = __atomic_load_n(&words[1], __ATOMIC_ACQUIRE);
  return pair;
}

/* Lanes would load one after another and might see different values, so the first lane loads for all. */
PRIM_FN uint64_t prim_load_word_together(const void *address) {
  return simt_meet(prim_load_word(address))[0];
}

PRIM_FN ulonglong2 prim_load_pair_together(const void *address) {
  ulonglong2 pair = prim_load_pair(address);
  pair.x = simt_meet(pair.x)[0];
  pair.y = simt_meet(pair.y)[0];
  return pair;
}

PRIM_FN uint32_t prim_peek_together(const uint32_t *word) {
  return (uint32_t)simt_meet(*(const volatile uint32_t *)word)[0];
}

/* No fibre switch between the stores of a warp's lanes: they store an LL128 line together. */
PRIM_FN void prim_store_pair(void *address, uint64_t low, uint64_t high) {
  simt_align(address, 16);
  uint64_t *words = (uint64_t *)address;
  __atomic_store_n(&words[0], low, __ATOMIC_RELEASE);
  __atomic_store_n(&words[1], high, __ATOMIC_RELEASE);
}

PRIM_FN void prim_store_vector(void *address, ulonglong2 vector) {
  prim_store_pair(address, vector.x, vector.y);
}

PRIM_FN void prim_store_word(uint64_t *address, uint64_t value) {
  simt_stir();
  simt_align(address, 8);
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

PRIM_FN int prim_flag(const int *address) { return __atomic_load_n(address, __ATOMIC_ACQUIRE); }

PRIM_FN uint64_t prim_load_word_if(bool asked, const void *address) {
  return asked ? prim_load_word(address) : 0;
}

PRIM_FN ulonglong2 prim_load_pair_if(bool asked, const void *address) {
  const ulonglong2 nothing = {0, 0};
  return asked ? prim_load_pair(address) : nothing;
}

PRIM_FN uint64_t prim_load_acquire(const uint64_t *address) {
  simt_yield();
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

PRIM_FN void prim_store_release(uint64_t *address, uint64_t value) {
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}

PRIM_FN uint64_t element_load(const uint8_t *address, uint32_t bytes) {
  simt_stir();
  simt_align(address, bytes);
  switch (bytes) {
    case 1: return __atomic_load_n(address, __ATOMIC_ACQUIRE);
    case 2: return __atomic_load_n((const uint16_t *)address, __ATOMIC_ACQUIRE);
    case 4: return __atomic_load_n((const uint32_t *)address, __ATOMIC_ACQUIRE);
    default: return __atomic_load_n((const uint64_t *)address, __ATOMIC_ACQUIRE);
  }
}

PRIM_FN void element_store(uint8_t *address, uint32_t bytes, uint64_t element) {
  simt_align(address, bytes);
  switch (bytes) {
    case 1: __atomic_store_n(address, (uint8_t)element, __ATOMIC_RELEASE); break;
    case 2: __atomic_store_n((uint16_t *)address, (uint16_t)element, __ATOMIC_RELEASE); break;
    case 4: __atomic_store_n((uint32_t *)address, (uint32_t)element, __ATOMIC_RELEASE); break;
    default: __atomic_store_n((uint64_t *)address, element, __ATOMIC_RELEASE); break;
  }
}

/* ---- asynchronous copies of words to shared memory: here they complete at once ---- */

PRIM_FN void prim_fetch_word(uint64_t *place, const uint8_t *from) { *place = element_load(from, 8); }
PRIM_FN void prim_put_word(uint64_t *place, uint64_t word) { *place = word; }
PRIM_FN void prim_fetch_end(void) {}
PRIM_FN uint64_t prim_fetched_word(const uint64_t *place) { return *place; }

/* ---- time and order ---- */

PRIM_FN uint64_t prim_time_ns(void) { return simt_time_ns(); }
PRIM_FN void prim_fence(void) {
  simt_stir();
  __threadfence_system();
}
PRIM_FN void prim_converge(void) { __syncwarp(); }
PRIM_FN void prim_converge_reads(void) { __syncwarp(); }
#define PRIM_CONSTANT(number) (number)
#define PRIM_VARIABLE(number) (number)
#define PRIM_BARRIER_ARRIVE(id, threads) simt_barrier(id, threads, false)
#define PRIM_BARRIER_SYNC(id, threads) simt_barrier(id, threads, true)

/* A stream's next kernel begins when the previous one has ended. */
PRIM_FN void prim_launch_dependents(void) {}
PRIM_FN void prim_await_dependencies(void) {}

/* ---- arithmetic: kernels/types.h unchanged ---- */

#include "kernels/types.h"
#undef PRIM_FLOAT_SUM /* arithmetic.h binds the GPU's, but types.h is already compiled */
#undef PRIM_FLOAT_PROD

#define SIMT_PAIR(function, element)                                                                 \
  PRIM_FN uint32_t function(uint32_t left, uint32_t right) {                                         \
    const uint32_t low = (uint16_t)element((uint16_t)left, (uint16_t)right);                         \
    return low | (uint32_t)(uint16_t)element((uint16_t)(left >> 16), (uint16_t)(right >> 16)) << 16; \
  }
SIMT_PAIR(pair_half_sum, type_half_sum)
SIMT_PAIR(pair_half_prod, type_half_prod)
SIMT_PAIR(pair_half_max, type_half_max)
SIMT_PAIR(pair_half_min, type_half_min)
SIMT_PAIR(pair_bfloat16_sum, type_bfloat16_sum)
SIMT_PAIR(pair_bfloat16_max, type_bfloat16_max)
SIMT_PAIR(pair_bfloat16_min, type_bfloat16_min)
#undef SIMT_PAIR

/* A GPU's fmaxf and fminf choose as types.h does. */
#define fmaxf(left, right) type_float_max(left, right)
#define fminf(left, right) type_float_min(left, right)

#endif
