/* ptx.h (simt): replaces the GPU's ptx.h for fibres. Memory is the host's: every access to what other blocks
 * see is atomic for eight bytes. */
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

PRIM_FN uint64_t prim_load_word(const void *address) { return simt_load(address, 8, SIMT_STRONG); }
PRIM_FN ulonglong2 prim_load_pair(const void *address) { return simt_load_pair(address, SIMT_STRONG); }

PRIM_FN uint64_t prim_load_posted(const void *address) { return simt_load(address, 8, SIMT_ACQUIRE); }
PRIM_FN ulonglong2 prim_load_pair_posted(const void *address) {
  return simt_load_pair(address, SIMT_ACQUIRE);
}

/* Lanes would load one after another and might see different values, so the first lane loads for all. */
PRIM_FN uint64_t prim_load_word_together(const void *address) {
  return simt_load_together(address, 8, SIMT_STRONG);
}
PRIM_FN uint64_t prim_load_posted_together(const void *address) {
  return simt_load_together(address, 8, SIMT_ACQUIRE);
}

PRIM_FN ulonglong2 prim_load_pair_posted_together(const void *address) {
  return simt_load_pair_together(address, SIMT_ACQUIRE);
}

PRIM_FN uint32_t prim_peek(const uint32_t *word) { return (uint32_t)simt_load(word, 4, SIMT_ACQUIRE_BLOCK); }

PRIM_FN uint32_t prim_peek_together(const uint32_t *word) {
  return (uint32_t)simt_load_together(word, 4, SIMT_ACQUIRE_BLOCK);
}

PRIM_FN void prim_post(uint32_t *word, uint32_t value) { simt_store(word, 4, value, SIMT_ACQUIRE_BLOCK); }

PRIM_FN void prim_store_pair(void *address, uint64_t low, uint64_t high) {
  simt_store_pair(address, low, high, SIMT_STRONG, false);
}

PRIM_FN void prim_store_line(void *address, uint64_t low, uint64_t high) {
  simt_store_pair(address, low, high, SIMT_LINE, false);
}

PRIM_FN void prim_store_tagged(void *address, uint64_t low, uint64_t high) {
  simt_store_pair(address, low, high, SIMT_POST, false);
}

/* No other fibre runs between the stores of a warp's lanes. */
PRIM_FN void prim_store_line_part(void *address, uint64_t low, uint64_t high) {
  simt_store_pair(address, low, high, SIMT_LINE, true);
}

PRIM_FN void prim_store_vector(void *address, ulonglong2 vector) {
  simt_store_pair(address, vector.x, vector.y, SIMT_WEAK, false);
}

PRIM_FN void prim_store_word(uint64_t *address, uint64_t value) { simt_store(address, 8, value, SIMT_POST); }

PRIM_FN void prim_took(const void *address) { simt_take(address, 16); }

PRIM_FN int prim_flag(const int *address) { return (int)simt_load(address, 4, SIMT_STRONG); }

PRIM_FN uint64_t prim_load_word_if(bool asked, const void *address) {
  return asked ? prim_load_word(address) : 0;
}

/* Of counters that an earlier kernel has saved: what it saved must come before. */
PRIM_FN ulonglong2 prim_load_pair_if(bool asked, const void *address) {
  const ulonglong2 nothing = {0, 0};
  return asked ? simt_load_pair(address, SIMT_WEAK) : nothing;
}

PRIM_FN void prim_store_release(uint64_t *address, uint64_t value) {
  simt_store(address, 8, value, SIMT_ACQUIRE);
}

PRIM_FN uint64_t element_load(const uint8_t *address, uint32_t bytes) {
  return simt_load(address, bytes, SIMT_STRONG);
}

PRIM_FN void element_store(uint8_t *address, uint32_t bytes, uint64_t element) {
  simt_store(address, bytes, element, SIMT_WEAK);
}

/* ---- asynchronous copies of words to shared memory: they are made as late as they may be ---- */

PRIM_FN void prim_fetch_word(uint64_t *place, const uint8_t *from) { simt_fetch(place, from); }
PRIM_FN void prim_put_word(uint64_t *place, uint64_t word) { *place = word; }
PRIM_FN void prim_fetch_end(void) { simt_fetch_end(); }
PRIM_FN uint64_t prim_fetched_word(const uint64_t *place) { return *place; }

/* ---- time and order ---- */

PRIM_FN uint64_t prim_time_ns(void) { return simt_time_ns(); }
PRIM_FN void prim_fence(void) {
  simt_stir();
  simt_fence(SIMT_SYSTEM);
}
PRIM_FN void prim_converge(void) { __syncwarp(); }
PRIM_FN void prim_converge_reads(void) { __syncwarp(); }
#define PRIM_CONSTANT(number) (number)
#define PRIM_VARIABLE(number) (number)
#define PRIM_BARRIER_ARRIVE(id, threads) simt_barrier(id, threads, false)
#define PRIM_BARRIER_SYNC(id, threads) simt_barrier(id, threads, true)

/* A stream's next kernel begins when the previous one has ended. */
PRIM_FN void prim_launch_dependents(void) {}
PRIM_FN void prim_await_dependencies(void) { simt_await_previous(); }

/* ---- copies by copy engines: they are made as late as they may be ---- */

PRIM_FN uint32_t prim_shared_place(const void *place) { return simt_shared_place(place); }
PRIM_FN uint32_t prim_requested_bytes(void) { return simt_requested_bytes(); }
PRIM_FN uint32_t prim_requested_place(void) { return simt_requested_place(); }
PRIM_FN void prim_arrivals_open(uint32_t barrier) { simt_arrivals_open(barrier); }
PRIM_FN void prim_arrivals_fence(void) { simt_arrivals_fence(); }
PRIM_FN void prim_arrivals_close(uint32_t barrier) { simt_arrivals_close(barrier); }
PRIM_FN void prim_arrivals_expect(uint32_t barrier, uint32_t bytes) { simt_arrivals_expect(barrier, bytes); }
PRIM_FN uint32_t prim_arrivals_ended(uint32_t barrier, uint32_t parity) {
  return simt_arrivals_ended(barrier, parity);
}
PRIM_FN void prim_bulk_load(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t barrier) {
  simt_bulk_load(to, from, bytes, barrier);
}
PRIM_FN void prim_bulk_store(uint8_t *to, uint32_t from, uint32_t bytes) { simt_bulk_store(to, from, bytes); }
PRIM_FN void prim_bulk_group_end(void) { simt_bulk_group_end(); }
#define PRIM_BULK_AWAIT_READ(but) simt_bulk_await(but, true)
#define PRIM_BULK_AWAIT_STORED(but) simt_bulk_await(but, false)
PRIM_FN void prim_bulk_fence(void) { simt_bulk_fence(); }

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
