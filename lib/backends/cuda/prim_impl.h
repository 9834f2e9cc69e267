/* prim_impl.h (cuda): the device seam over PTX. The workers of a lane are the threads of a block: all of
 * them run the same state machine over a lane of their own and call the same primitives in the same order.
 * That only works while they agree, so whatever another GPU may change is read by the leader alone and
 * handed to all. Slow, and plainly correct; README.md beside this file says what a fast version changes.
 * Blocks must have a whole number of warps. */
#ifndef TUTTI_BACKENDS_CUDA_PRIM_IMPL_H
#define TUTTI_BACKENDS_CUDA_PRIM_IMPL_H

#ifdef PRIM_FN
#error "include protocol/prim.h before anything of schedule/: PRIM_FN is already bound to the host"
#endif
#define PRIM_FN static __device__ __forceinline__

/* Never contracted, and their NaN is the canonical one. Doubles have another NaN: they keep the header's
 * way. */
#define PRIM_FLOAT_SUM(left, right) __fadd_rn(left, right)
#define PRIM_FLOAT_PROD(left, right) __fmul_rn(left, right)

#include "protocol/move.h"
#include "kernels/types.h"

/* A worker's share of a group of lines: eight-byte words. LL: word k is the data of line k * workers +
 * worker. LL128: eight workers carry a line in pieces of sixteen bytes, so words 2k and 2k + 1 are piece
 * worker % 8 of line k * (workers / 8) + worker / 8; the second word of piece 7 is the flag and holds no
 * data. */
#define PRIM_FRAGMENT_WORDS 8
#define PRIM_FRAGMENT_LINES PRIM_FRAGMENT_WORDS /* of LL, a worker; LL128: half a line a worker */

struct prim_fragment {
  uint64_t words[PRIM_FRAGMENT_WORDS];
  uint8_t kind; /* enum line_kind: how the words lie */
};

struct prim {
  const int *abort_flag; /* of the rank, in memory that the host can write */
  uint32_t worker, worker_count;
};

/* ---- workers ---- */

PRIM_FN bool prim_leader(const struct prim *prim) { return prim->worker == 0; }
PRIM_FN void prim_barrier(const struct prim *prim) {
  (void)prim;
  __syncthreads();
}

/* The leader's value, for all. The first barrier keeps a leader that is early from overwriting what others
 * still read. */
PRIM_FN uint64_t prim_agree(uint64_t value) {
  __shared__ uint64_t cell;
  __syncthreads();
  if (threadIdx.x == 0) cell = value;
  __syncthreads();
  return cell;
}

/* ---- counters ---- */

PRIM_FN uint64_t prim_load_acquire(const uint64_t *address) {
  uint64_t value = 0;
  if (threadIdx.x == 0)
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return prim_agree(value);
}

/* The barrier puts every worker's accesses before the leader's release. */
PRIM_FN void prim_store_release(uint64_t *address, uint64_t value) {
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

PRIM_FN bool prim_aborted(const struct prim *prim) {
  uint32_t value = 0;
  if (threadIdx.x == 0)
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(prim->abort_flag) : "memory");
  return prim_agree(value) != 0;
}

PRIM_FN void prim_pause(struct prim *prim) {
  (void)prim;
  __nanosleep(40);
}

/* ---- moves ---- */

/* For each row of the table of types: an operator on two elements, a whole span, and an operator on an
 * eight-byte word. */
#define PRIM_TYPE(value, name, storage, accumulator)                                                         \
  union prim_##name##_cell {                                                                                 \
    uint64_t word;                                                                                           \
    storage elements[8 / sizeof(storage)];                                                                   \
  };                                                                                                         \
  PRIM_FN storage prim_##name##_combine(uint8_t op, storage left, storage right) {                           \
    switch (op) {                                                                                            \
      case OP_PROD: return type_##name##_prod(left, right);                                                  \
      case OP_MAX: return type_##name##_max(left, right);                                                    \
      case OP_MIN: return type_##name##_min(left, right);                                                    \
      default: return type_##name##_sum(left, right);                                                        \
    }                                                                                                        \
  }                                                                                                          \
  PRIM_FN storage prim_##name##_argument(uint64_t op_arg) {                                                  \
    union prim_##name##_cell cell;                                                                           \
    cell.word = op_arg;                                                                                      \
    return cell.elements[0];                                                                                 \
  }                                                                                                          \
  PRIM_FN storage prim_##name##_source(const struct move *move, uint32_t source_index,                       \
                                       size_t element_index) {                                               \
    const storage element = ((const storage *)move->source[source_index])[element_index];                    \
    if (move->op != OP_PRE_MUL_SUM || (move->pre_op_sources >> source_index & 1) == 0) return element;       \
    return type_##name##_prod(element, prim_##name##_argument(move->op_arg));                                \
  }                                                                                                          \
  static __device__ __noinline__ void prim_##name##_move(const struct move *move, uint32_t first,            \
                                                         uint32_t stride) {                                  \
    for (size_t i = first; i < move->count; i += stride) {                                                   \
      storage result = prim_##name##_source(move, 0, i);                                                     \
      for (uint32_t s = 1; s < move->source_count; s++)                                                      \
        result = prim_##name##_combine(move->op, result, prim_##name##_source(move, s, i));                  \
      if (move->post_op && move->op == OP_SUM_POST_DIV)                                                      \
        result = type_##name##_divide(result, move->op_arg >> 1);                                            \
      for (uint32_t d = 0; d < move->destination_count; d++) ((storage *)move->destination[d])[i] = result;  \
    }                                                                                                        \
  }                                                                                                          \
  static __device__ __noinline__ uint64_t prim_##name##_word(uint8_t op, uint64_t left, uint64_t right) {    \
    union prim_##name##_cell first, second;                                                                  \
    first.word = left;                                                                                       \
    second.word = right;                                                                                     \
    for (uint32_t i = 0; i < 8 / sizeof(storage); i++)                                                       \
      first.elements[i] = prim_##name##_combine(op, first.elements[i], second.elements[i]);                  \
    return first.word;                                                                                       \
  }                                                                                                          \
  static __device__ __noinline__ uint64_t prim_##name##_stage(bool before, uint64_t word, uint64_t op_arg) { \
    union prim_##name##_cell cell;                                                                           \
    cell.word = word;                                                                                        \
    for (uint32_t i = 0; i < 8 / sizeof(storage); i++)                                                       \
      cell.elements[i] = before ? type_##name##_prod(cell.elements[i], prim_##name##_argument(op_arg))       \
                                : type_##name##_divide(cell.elements[i], op_arg >> 1);                       \
    return cell.word;                                                                                        \
  }

TYPE_TABLE(PRIM_TYPE)
#undef PRIM_TYPE

PRIM_FN void prim_move_begin(struct prim *prim, struct move *move) {
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: prim_##name##_move(move, prim->worker, prim->worker_count); break;
  switch (move->dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
}

PRIM_FN void prim_move_finish(struct prim *prim, struct move *move) {
  (void)move;
  prim_barrier(prim);
}

PRIM_FN uint64_t prim_word_combine(const struct work *work, uint64_t left, uint64_t right) {
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: return prim_##name##_word(work->op, left, right);
  switch (work->dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
  return left;
}

/* The operator's stage before (multiply) or after (divide) the sum. */
PRIM_FN uint64_t prim_word_stage(const struct work *work, bool before, uint64_t word) {
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: return prim_##name##_stage(before, word, work->op_arg);
  switch (work->dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
  return word;
}

/* ---- lines ---- */

PRIM_FN void prim_load_pair(const uint8_t *address, uint64_t *low, uint64_t *high) {
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(*low), "=l"(*high)
               : "l"(address)
               : "memory");
}

PRIM_FN void prim_store_pair(uint8_t *address, uint64_t low, uint64_t high) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(low), "l"(high) : "memory");
}

/* Line and piece that this worker's share begins with, and how many lines later the next one comes. */
PRIM_FN uint32_t prim_line_first(uint8_t kind) { return kind == LINE_LL ? threadIdx.x : threadIdx.x / 8; }
PRIM_FN uint32_t prim_line_stride(uint8_t kind) { return kind == LINE_LL ? blockDim.x : blockDim.x / 8; }
PRIM_FN uint32_t prim_line_piece(void) { return threadIdx.x % 8; }

/* LL's line is two words of {data, flag}; LL128's flag is the last of its sixteen words. */
PRIM_FN bool prim_pair_flagged(uint8_t kind, uint64_t low, uint64_t high, uint64_t flag) {
  if (kind == LINE_LL128) return prim_line_piece() != 7 || high == flag;
  return (uint32_t)(low >> 32) == (uint32_t)flag && (uint32_t)(high >> 32) == (uint32_t)flag;
}

PRIM_FN const uint8_t *prim_pair_address(uint8_t kind, const uint8_t *line, uint32_t line_index) {
  return kind == LINE_LL ? line + (size_t)line_index * 16
                         : line + (size_t)line_index * 128 + (size_t)prim_line_piece() * 16;
}

PRIM_FN bool prim_line_ready(uint8_t kind, const uint8_t *line, uint32_t line_count, uint64_t flag) {
  bool ready = true;
  for (uint32_t i = prim_line_first(kind); i < line_count && ready; i += prim_line_stride(kind)) {
    uint64_t low, high;
    prim_load_pair(prim_pair_address(kind, line, i), &low, &high);
    ready = prim_pair_flagged(kind, low, high, flag);
  }
  /* What the sender wrote before its lines, the step's size, must be visible behind them. */
  if (__syncthreads_and(ready) == 0) return false;
  __threadfence_system();
  return true;
}

PRIM_FN void prim_fragment_zero(struct prim_fragment *fragment) {
  fragment->kind = LINE_LL;
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++) fragment->words[i] = 0;
}

PRIM_FN void prim_line_load(uint8_t kind, const uint8_t *line, uint32_t line_count,
                            struct prim_fragment *fragment) {
  uint32_t word = 0;
  prim_fragment_zero(fragment);
  fragment->kind = kind;
  for (uint32_t i = prim_line_first(kind); i < line_count; i += prim_line_stride(kind)) {
    uint64_t low, high;
    prim_load_pair(prim_pair_address(kind, line, i), &low, &high);
    if (kind == LINE_LL) {
      fragment->words[word++] = (low & 0xffffffffu) | high << 32;
    } else {
      fragment->words[word++] = low;
      fragment->words[word++] = high;
    }
  }
}

/* A pair of LL is stored whole. The eight pairs of an LL128 line leave in one instruction of one warp, as
 * a store of 128 bytes, which links on which LL128 is allowed do not tear. */
PRIM_FN void prim_line_store(uint8_t kind, uint8_t *line, uint32_t line_count, uint64_t flag,
                             const struct prim_fragment *fragment) {
  const uint32_t turns = (line_count + prim_line_stride(kind) - 1) / prim_line_stride(kind);
  __threadfence_system(); /* the step's size goes ahead of its lines */
  for (uint32_t turn = 0; turn < turns; turn++) {
    const uint32_t i = prim_line_first(kind) + turn * prim_line_stride(kind);
    uint8_t *address = (uint8_t *)prim_pair_address(kind, line, i);
    uint64_t low, high;
    if (kind == LINE_LL) {
      low = (fragment->words[turn] & 0xffffffffu) | flag << 32;
      high = fragment->words[turn] >> 32 | flag << 32;
    } else {
      low = fragment->words[2 * turn];
      high = prim_line_piece() == 7 ? flag : fragment->words[2 * turn + 1];
    }
    __syncwarp();
    if (i < line_count) prim_store_pair(address, low, high);
  }
}

/* ---- fragments ---- */

#define PRIM_NO_DATA (~(size_t)0)

/* Byte of the group's data at which a word of this worker begins; PRIM_NO_DATA for a flag. */
PRIM_FN size_t prim_fragment_offset(uint8_t kind, uint32_t word) {
  if (kind == LINE_LL) return 8 * ((size_t)word * blockDim.x + threadIdx.x);
  if (prim_line_piece() == 7 && word % 2 == 1) return PRIM_NO_DATA;
  return 120 * ((size_t)(word / 2) * (blockDim.x / 8) + threadIdx.x / 8) + 16 * prim_line_piece() +
         8 * (word % 2);
}

/* Up to eight bytes at an address that is aligned to nothing in particular; what is missing is zero. */
PRIM_FN uint64_t prim_word_load(const uint8_t *address, size_t bytes) {
  uint64_t word = 0;
  if (bytes >= 8 && ((uintptr_t)address & 7) == 0) return *(const uint64_t *)address;
  for (uint32_t i = 0; i < 8 && i < bytes; i++) word |= (uint64_t)address[i] << (8 * i);
  return word;
}

PRIM_FN void prim_word_store(uint8_t *address, size_t bytes, uint64_t word) {
  if (bytes >= 8 && ((uintptr_t)address & 7) == 0) {
    *(uint64_t *)address = word;
    return;
  }
  for (uint32_t i = 0; i < 8 && i < bytes; i++) address[i] = (uint8_t)(word >> (8 * i));
}

PRIM_FN void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user,
                                size_t bytes, const struct work *work) {
  (void)prim;
  fragment->kind = work->proto == PROTO_LL ? LINE_LL : LINE_LL128;
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++) {
    const size_t offset = prim_fragment_offset(fragment->kind, i);
    uint64_t word = 0;
    if (offset < bytes) word = prim_word_load((const uint8_t *)user + offset, bytes - offset);
    fragment->words[i] =
        work->op == OP_PRE_MUL_SUM && offset < bytes ? prim_word_stage(work, true, word) : word;
  }
}

PRIM_FN void prim_fragment_store(struct prim *prim, void *user, const struct prim_fragment *fragment,
                                 size_t bytes) {
  (void)prim;
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++) {
    const size_t offset = prim_fragment_offset(fragment->kind, i);
    if (offset < bytes) prim_word_store((uint8_t *)user + offset, bytes - offset, fragment->words[i]);
  }
}

PRIM_FN void prim_fragment_combine(struct prim *prim, struct prim_fragment *data,
                                   const struct prim_fragment *arrived, size_t bytes,
                                   const struct work *work) {
  (void)prim;
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++)
    if (prim_fragment_offset(data->kind, i) < bytes)
      data->words[i] = prim_word_combine(work, data->words[i], arrived->words[i]);
}

PRIM_FN void prim_fragment_post(struct prim *prim, struct prim_fragment *data, size_t bytes,
                                const struct work *work) {
  (void)prim;
  if (work->op != OP_SUM_POST_DIV) return;
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++)
    if (prim_fragment_offset(data->kind, i) < bytes)
      data->words[i] = prim_word_stage(work, false, data->words[i]);
}

#endif
