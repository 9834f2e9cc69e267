/* ptx.h: instructions of the kernels that C++ does not have, one function each. To run the kernels elsewhere
 * than on a GPU, put another file of this name before it on the include path (tests/simt). It does not depend
 * on its callers. */
#ifndef TUTTI_KERNELS_PTX_H
#define TUTTI_KERNELS_PTX_H

#include <stdbool.h>
#include <stdint.h>

/* ---- memory ---- */

/* Of an address in shared memory. */
PRIM_FN uint32_t prim_shared_place(const void *place) { return (uint32_t)__cvta_generic_to_shared(place); }

/* All accesses to memory that other ranks or blocks see are volatile assembly, which compilers keep in order.
 * Few of them clobber memory, so that the lane stays in registers. Loads bypass the first-level cache,
 * because a peer may have written since. */
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

/* What another rank posted: accesses after it are not executed before it. */
PRIM_FN uint64_t prim_load_posted(const void *address) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address));
  return value;
}

PRIM_FN ulonglong2 prim_load_pair_posted(const void *address) {
  ulonglong2 pair;
  asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(pair.x), "=l"(pair.y) : "l"(address));
  return pair;
}

/* The same by all lanes of a warp at one address: one load, with one result for all lanes. */
PRIM_FN uint64_t prim_load_word_together(const void *address) { return prim_load_word(address); }
PRIM_FN uint64_t prim_load_posted_together(const void *address) { return prim_load_posted(address); }
PRIM_FN ulonglong2 prim_load_pair_posted_together(const void *address) {
  return prim_load_pair_posted(address);
}

/* Words of shared memory by which warps of a block hand over work: what a thread did before it posts a word
 * happens before what another does after it has peeked at it. The posting thread's compiler must be kept from
 * delaying plain stores (prim_converge_reads). */
PRIM_FN uint32_t prim_peek(const uint32_t *word) {
  uint32_t value;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(prim_shared_place(word)));
  return value;
}

PRIM_FN uint32_t prim_peek_together(const uint32_t *word) { return prim_peek(word); }

PRIM_FN void prim_post(uint32_t *word, uint32_t value) {
  asm volatile("fence.acq_rel.cta;");
  *(volatile uint32_t *)word = value; /* its address needs no register of its own */
}

/* One 16-byte store; readers see each 8-byte half whole. */
PRIM_FN void prim_store_pair(void *address, uint64_t low, uint64_t high) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(low), "l"(high));
}

/* The same, of a line of LL. */
PRIM_FN void prim_store_line(void *address, uint64_t low, uint64_t high) {
  prim_store_pair(address, low, high);
}

/* The same, of a tagged word. */
PRIM_FN void prim_store_tagged(void *address, uint64_t low, uint64_t high) {
  prim_store_pair(address, low, high);
}

/* The same, by lanes of a warp side by side to one line of 128 bytes, which readers see whole. */
PRIM_FN void prim_store_line_part(void *address, uint64_t low, uint64_t high) {
  prim_store_pair(address, low, high);
}

PRIM_FN void prim_store_vector(void *address, ulonglong2 vector) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(vector.x), "l"(vector.y));
}

PRIM_FN void prim_store_word(uint64_t *address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value));
}

/* The pair was loaded whole and is used: whoever stores there next must be ordered after it. For tests, which
 * check this; a GPU does nothing. */
PRIM_FN void prim_took(const void *address) { (void)address; }

PRIM_FN int prim_flag(const int *address) {
  int value;
  asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

/* Loads if `asked`, else 0. Predicated, without a branch, because a compiler may wait for a branch's loads at
 * its end. */
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

PRIM_FN void prim_store_release(uint64_t *address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

/* Bypasses the first-level cache and keeps program order, like all loads of the kernels. */
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

/* ---- asynchronous copies of words to shared memory ---- */

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
/* The same; and no read after it is executed before it. */
PRIM_FN void prim_converge_reads(void) { asm volatile("bar.warp.sync 0xffffffff;" : : : "memory"); }

/* Barrier number `id` (a constant) of the block, for `threads` threads, PRIM_CONSTANT or PRIM_VARIABLE;
 * arriving does not wait. */
#define PRIM_CONSTANT(number) "n"(number)
#define PRIM_VARIABLE(number) "r"(number)
#define PRIM_BARRIER_ARRIVE(id, threads) \
  asm volatile("barrier.cta.arrive %0, %1;" : : PRIM_CONSTANT(id), threads : "memory")
#define PRIM_BARRIER_SYNC(id, threads) \
  asm volatile("barrier.cta.sync %0, %1;" : : PRIM_CONSTANT(id), threads : "memory")

/* Programmatic dependent launch (compute capability 9.0): the stream's next kernel may begin; the previous
 * one has ended. */
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

/* ---- copies by copy engines (compute capability 9.0) ---- */

/* The shared memory that the launch requests: its bytes, and its address in shared memory. */
PRIM_FN uint32_t prim_requested_bytes(void) {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

PRIM_FN uint32_t prim_requested_place(void) {
  extern __shared__ __align__(128) uint8_t prim_requested[];
  return prim_shared_place(prim_requested);
}

/* A barrier in shared memory that loads complete: each of its phases ends when one thread has said how many
 * bytes it expects, and these have arrived. Phases have the parities 0 and 1 in turn. */
PRIM_FN void prim_arrivals_open(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(barrier) : "memory");
}

/* Before copy engines use barriers that this thread has opened. */
PRIM_FN void prim_arrivals_fence(void) {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

PRIM_FN void prim_arrivals_close(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}

PRIM_FN void prim_arrivals_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}

/* Waits for some time; not 0 if the phase of that parity has ended. */
PRIM_FN uint32_t prim_arrivals_ended(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ended)
               : "r"(barrier), "r"(parity)
               : "memory");
  return ended;
}

/* From memory to shared memory. Addresses and bytes are multiples of 16. */
PRIM_FN void prim_bulk_load(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/* From shared memory; in the thread's open group of stores, which prim_bulk_group_end() ends. */
PRIM_FN void prim_bulk_store(uint8_t *to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(from), "r"(bytes)
               : "memory");
}

PRIM_FN void prim_bulk_group_end(void) { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }

/* Waits until all of this thread's groups but the last `but` (a constant) have been read from shared memory,
 * or are stored as if by its own instructions. */
#define PRIM_BULK_AWAIT_READ(but) \
  asm volatile("cp.async.bulk.wait_group.read %0;" : : PRIM_CONSTANT(but) : "memory")
#define PRIM_BULK_AWAIT_STORED(but) \
  asm volatile("cp.async.bulk.wait_group %0;" : : PRIM_CONSTANT(but) : "memory")

/* Orders what this thread has seen stored by instructions before its later copies by copy engines. */
PRIM_FN void prim_bulk_fence(void) { asm volatile("fence.proxy.async.global;" : : : "memory"); }

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

/* Before sm_90 there is no such addition; a fused multiply-add with a factor of one rounds in the same
 * way. */
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
