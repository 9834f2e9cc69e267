/* prim_impl.h (emu): the device primitives (protocol/prim.h) with C11 atomics and the CPU's kernels, one
 * thread per lane. The data of a move that the scheduler marks `late` is moved at its finish instead of at
 * its begin, which is all the asynchrony of a copy engine that others can see. With weak memory, weak.h
 * handles stores and acquires. */
#ifndef TUTTI_BACKENDS_EMU_PRIM_IMPL_H
#define TUTTI_BACKENDS_EMU_PRIM_IMPL_H

#include <sched.h>
#include <string.h>

#define PRIM_LINKS STEP_LINKS_MAX
#define PRIM_DEPTH 4
#define PRIM_SHIFTS 1 /* outputs of other processes have other addresses in this one */
#define PRIM_COHERENT 1

#if defined __SSE2__ && !defined __SANITIZE_THREAD__
#define PRIM_WHOLE_LINES 1 /* an LL line in one load or store, each half of which is atomic */
#include <emmintrin.h>
#endif

#include "backends/emu/weak.h"
#include "base/os.h"
#include "kernels/kernels.h"
#include "protocol/line.h"

struct emu_lane;
struct prim {
  const int *abort_flag; /* of the rank; set by any thread */
  bool late; /* the next move's data is moved at its finish; set by the scheduler before each begin */
  uint32_t pauses;
  struct emu_weak *weak;         /* 0: stores are visible at once */
  const struct emu_lane *direct; /* the lane, if its data may bypass a network's slots (net_end.c); else 0 */
};
void emu_net_move(const struct emu_lane *lane, const struct move *move);

/* PRIM_STRONG: compiled for lanes of threads mode, which never have weak memory. */
PRIM_FN bool prim_is_weak(const struct prim *prim) {
#ifdef PRIM_STRONG
  (void)prim;
  return false;
#else
  return prim->weak != 0;
#endif
}
PRIM_FN bool prim_may_be_weak(void) {
#ifdef PRIM_STRONG
  return false;
#else
  return emu_weak_on;
#endif
}

#define PRIM_FRAGMENT_LINES 64 /* of LL128 */
#define PRIM_LL_LINES                                                                   \
  512 /* most lines of LL in a group: 4 KiB of data, as many bytes of lines as of LL128 \
       */
struct prim_fragment {
  _Alignas(16) uint8_t data[PRIM_FRAGMENT_LINES * 120 + 120];
};

PRIM_FN bool prim_leader(const struct prim *prim) {
  (void)prim;
  return true;
}
PRIM_FN void prim_join(const struct prim *prim) { (void)prim; }
PRIM_FN void prim_await_readers(const struct prim *prim) { (void)prim; }

PRIM_FN uint64_t prim_load_acquire(const uint64_t *address) {
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}
PRIM_FN void prim_store_release(uint64_t *address, uint64_t value) {
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
}
PRIM_FN uint64_t prim_load_tail(const uint64_t *address) {
  return prim_may_be_weak() ? emu_weak_load_tail(address) : prim_load_acquire(address);
}
PRIM_FN uint64_t prim_load_head(const uint64_t *address) {
  return prim_may_be_weak() ? emu_weak_load_head(address) : prim_load_acquire(address);
}
PRIM_FN void prim_store_tail(const struct prim *prim, uint64_t *address, uint64_t value) {
  if (prim_is_weak(prim)) emu_weak_store_tail(prim->weak, address, value);
  else prim_store_release(address, value);
}
PRIM_FN void prim_store_head(const struct prim *prim, uint64_t *address, uint64_t value) {
  if (prim_is_weak(prim)) emu_weak_store_head(prim->weak, address, value);
  else prim_store_release(address, value);
}

PRIM_FN void prim_tagged_store(const struct prim *prim, struct tagged_word *word, uint32_t tag,
                               uint64_t value) {
  uint64_t *halves = (uint64_t *)(void *)word;
  if (prim_is_weak(prim)) {
    emu_weak_store_tagged(prim->weak, halves, tag, value);
    return;
  }
  prim_store_release(&halves[0], line_first_half(value, tag));
  prim_store_release(&halves[1], line_second_half(value, tag));
}
PRIM_FN bool prim_tagged_load(const struct tagged_word *word, uint32_t tag, uint64_t *value) {
  const uint64_t *halves = (const uint64_t *)(const void *)word;
  if (prim_may_be_weak()) return emu_weak_load_tagged(halves, tag, value);
  const uint64_t low = prim_load_acquire(&halves[0]), high = prim_load_acquire(&halves[1]);
  if (!line_half_has(low, tag) || !line_half_has(high, tag)) return false;
  *value = line_word(low, high);
  return true;
}

PRIM_FN bool prim_aborted(const struct prim *prim) {
  return __atomic_load_n(prim->abort_flag, __ATOMIC_RELAXED) != 0;
}

/* Spins a little, then yields the core, because there may be more lanes than cores. */
PRIM_FN void prim_pause(struct prim *prim) {
  prim->pauses += 1;
  if (prim->pauses % 64 == 0) sched_yield();
  else os_spin();
}

PRIM_FN void prim_move_span(struct prim *prim, const struct move *move) {
  if (prim_is_weak(prim)) emu_weak_move(prim->weak, move);
  else if (move->count == 0) return;
  else if (prim->direct != 0) emu_net_move(prim->direct, move);
  else kernel_move(move);
}

PRIM_FN void prim_move(struct prim *prim, const struct move *move) {
  struct move copy;
  if (!move->each) prim_move_span(prim, move);
  for (uint32_t k = 0; move->each && k < move->source_count; k++) {
    move_copy(move, k, &copy);
    prim_move_span(prim, &copy);
  }
}

PRIM_FN void prim_move_begin(struct prim *prim, struct move *move) {
  move->note = prim->late;
  if (!move->note) prim_move(prim, move);
}

PRIM_FN void prim_move_finish(struct prim *prim, struct move *move) {
  if (move->note) prim_move(prim, move);
}

/* An LL line is two words of {data, flag}, each stored atomically; the flag of LL128 is stored after the
 * data. */
PRIM_FN bool prim_line_flagged(uint8_t kind, const uint8_t *line, uint64_t flag) {
  const uint64_t *words = (const uint64_t *)(const void *)line;
  if (kind == LINE_LL128) return prim_load_acquire(&words[15]) == flag;
  return line_half_has(prim_load_acquire(&words[0]), flag) &&
         line_half_has(prim_load_acquire(&words[1]), flag);
}

#ifdef PRIM_WHOLE_LINES
/* x86 keeps these loads and stores in order; the compiler must, too. */
PRIM_FN void prim_keep_order(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

PRIM_FN __m128i prim_ll_line(const uint8_t *lines, uint32_t index) {
  return _mm_loadu_si128((const __m128i *)(const void *)(lines + (size_t)index * 16));
}

PRIM_FN bool prim_ll_ready(const uint8_t *lines, uint32_t line_count, uint64_t flag) {
  const __m128i flags = _mm_set1_epi32((int)(uint32_t)flag);
  __m128i same = _mm_cmpeq_epi32(prim_ll_line(lines, line_count - 1), flags);
  if ((_mm_movemask_epi8(same) & 0xf0f0) != 0xf0f0) return false; /* the most likely to be missing */
  for (uint32_t i = 0; i + 1 < line_count; i++)
    same = _mm_and_si128(same, _mm_cmpeq_epi32(prim_ll_line(lines, i), flags));
  prim_keep_order();
  return (_mm_movemask_epi8(same) & 0xf0f0) == 0xf0f0;
}

PRIM_FN void prim_ll_load(const uint8_t *lines, uint32_t line_count, uint8_t *data) {
  prim_keep_order();
  for (uint32_t i = 0; i < line_count; i++)
    _mm_storel_epi64((__m128i *)(void *)(data + (size_t)i * 8),
                     _mm_shuffle_epi32(prim_ll_line(lines, i), _MM_SHUFFLE(3, 1, 2, 0)));
}

PRIM_FN void prim_ll_store(uint8_t *lines, uint32_t line_count, uint64_t flag, const uint8_t *data) {
  const __m128i flags = _mm_set1_epi32((int)(uint32_t)flag);
  prim_keep_order();
  for (uint32_t i = 0; i < line_count; i++) {
    const __m128i both = _mm_loadl_epi64((const __m128i *)(const void *)(data + (size_t)i * 8));
    _mm_storeu_si128((__m128i *)(void *)(lines + (size_t)i * 16), _mm_unpacklo_epi32(both, flags));
  }
  prim_keep_order();
}
#endif

PRIM_FN bool prim_line_ready(const struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                             uint64_t flag) {
  (void)prim;
  const uint32_t wire_bytes = line_wire_bytes(kind);
  if (prim_may_be_weak()) return emu_weak_ll_ready(kind, line, line_count, flag);
#ifdef PRIM_WHOLE_LINES
  if (kind == LINE_LL) return prim_ll_ready(line, line_count, flag);
#endif
  for (uint32_t i = line_count; i-- > 0;) /* the last line is the most likely to be missing */
    if (!prim_line_flagged(kind, line + (size_t)i * wire_bytes, flag)) return false;
  return true;
}

PRIM_FN void prim_line_load(const struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                            uint64_t flag, struct prim_fragment *fragment) {
  (void)flag; /* prim_line_ready has seen it */
  if (prim_is_weak(prim)) {
    emu_weak_note_ll(prim->weak, WEAK_LINE_LOAD, line, line_count, 0, fragment);
    return;
  }
#ifdef PRIM_WHOLE_LINES
  if (kind == LINE_LL) {
    prim_ll_load(line, line_count, fragment->data);
    return;
  }
#endif
  for (uint32_t i = 0; i < line_count; i++) {
    if (kind == LINE_LL128) {
      memcpy(fragment->data + (size_t)i * 120, line + (size_t)i * 128, 120);
      continue;
    }
    const uint64_t *words = (const uint64_t *)(const void *)(line + (size_t)i * 16);
    const uint64_t low = prim_load_acquire(&words[0]), high = prim_load_acquire(&words[1]);
    const uint64_t both = line_word(low, high);
    memcpy(fragment->data + (size_t)i * 8, &both, 8);
  }
}

PRIM_FN void prim_line_store(const struct prim *prim, uint8_t kind, uint8_t *line, uint32_t line_count,
                             uint64_t flag, const struct prim_fragment *fragment) {
  if (prim_is_weak(prim)) {
    emu_weak_note_ll(prim->weak, WEAK_LINE_STORE, line, line_count, flag, fragment);
    return;
  }
#ifdef PRIM_WHOLE_LINES
  if (kind == LINE_LL) {
    prim_ll_store(line, line_count, flag, fragment->data);
    return;
  }
#endif
  for (uint32_t i = 0; i < line_count; i++) {
    uint64_t *words = (uint64_t *)(void *)(line + (size_t)i * line_wire_bytes(kind));
    if (kind == LINE_LL128) {
      memcpy(words, fragment->data + (size_t)i * 120, 120);
      prim_store_release(&words[15], flag);
      continue;
    }
    uint64_t both;
    memcpy(&both, fragment->data + (size_t)i * 8, 8);
    prim_store_release(&words[0], line_first_half(both, flag));
    prim_store_release(&words[1], line_second_half(both, flag));
  }
}

PRIM_FN void prim_fragment_zero(struct prim_fragment *fragment) { memset(fragment->data, 0, 120); }

/* The primitives of a group are performed at once; with weak memory together and later. */
PRIM_FN void prim_group_begin(const struct prim *prim) {
  if (prim_is_weak(prim)) emu_weak_group_begin(prim->weak);
}
PRIM_FN void prim_group_end(const struct prim *prim, uint8_t kind, uint32_t line_count, uint32_t bytes,
                            const struct work *work) {
  (void)line_count, (void)bytes;
  if (prim_is_weak(prim)) emu_weak_group_end(prim->weak, kind, work);
}

/* For 8 bytes a call of memcpy takes longer than the copy. */
PRIM_FN void prim_copy(void *to, const void *from, size_t bytes) {
  if (bytes == 8) memcpy(to, from, 8);
  else memcpy(to, from, bytes);
}

/* Loads the rank's own input into registers, pre-multiplied if the operator requires it; the unused rest of
 * the last line is zeroed. */
PRIM_FN void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user,
                                size_t bytes, const struct work *work) {
  if (prim_is_weak(prim)) {
    emu_weak_note(prim->weak, WEAK_USER_LOAD, user, bytes, fragment, 0);
    return;
  }
  memset(fragment->data + bytes, 0, work->proto == PROTO_LL ? 8 : 120);
  if (work->op == OP_PRE_MUL_SUM)
    kernel_pre_op(work->dtype, work->op, work->op_arg, fragment->data, user, bytes / work->element_bytes);
  else prim_copy(fragment->data, user, bytes);
}

PRIM_FN void prim_fragment_store(struct prim *prim, void *user, const struct prim_fragment *fragment,
                                 size_t bytes, const struct work *work) {
  (void)work;
  if (prim_is_weak(prim)) emu_weak_note(prim->weak, WEAK_USER_STORE, user, bytes, fragment, 0);
  else prim_copy(user, fragment->data, bytes);
}

PRIM_FN void prim_fragment_combine(struct prim *prim, struct prim_fragment *data,
                                   const struct prim_fragment *arrived, size_t bytes,
                                   const struct work *work) {
  if (prim_is_weak(prim)) {
    emu_weak_note(prim->weak, WEAK_COMBINE, 0, bytes, data, arrived);
    return;
  }
  kernel_reduce(work->dtype, work->op, data->data, data->data, arrived->data, bytes / work->element_bytes);
}

PRIM_FN void prim_fragment_post(struct prim *prim, struct prim_fragment *data, size_t bytes,
                                const struct work *work) {
  if (prim_is_weak(prim)) {
    emu_weak_note(prim->weak, WEAK_POST, 0, bytes, data, 0);
    return;
  }
  if (work->op == OP_SUM_POST_DIV)
    kernel_post_op(work->dtype, work->op, work->op_arg, data->data, data->data, bytes / work->element_bytes);
}

#endif
