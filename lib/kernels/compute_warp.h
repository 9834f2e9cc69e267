/* compute_warp.h: how a compute warp carries out its share of a descriptor (prim_impl.h): of a span, or of
 * a group of LL lines. It promises the emulator's results to the bit. It knows nothing of lanes or
 * connections. */
#ifndef TUTTI_KERNELS_COMPUTE_WARP_H
#define TUTTI_KERNELS_COMPUTE_WARP_H

#include "protocol/ll.h"

struct compute_warp {
  uint32_t index, count; /* index and number of the warp group's threads that move data */
  struct prim prim;      /* for aborts */
};

/* ---- spans ---- */

/* Loops over a descriptor's further sources and destinations. With at most one, an absent one is zero; with
 * more, they are counted. */
#if PRIM_LINKS > 1
#define SPAN_EACH_SECOND(k, span) _Pragma("unroll 1") for (uint32_t k = 0; k < (span)->second_count; k++)
#define SPAN_EACH_OTHER(k, span) _Pragma("unroll 1") for (uint32_t k = 0; k < (span)->other_count; k++)
#define DESCRIPTOR_COPY(descriptor, shared) \
  const struct prim_descriptor &descriptor = *(shared) /* does not fit in registers */
PRIM_FN uint32_t descriptor_own_index(const struct prim_descriptor *descriptor) {
  return descriptor->own_index;
}
#else
#define DESCRIPTOR_COPY(descriptor, shared) const struct prim_descriptor descriptor = *(shared)
#define SPAN_EACH_SECOND(k, span) for (uint32_t k = 0; k < 1 && (span)->second[0] != 0; k++)
#define SPAN_EACH_OTHER(k, span) for (uint32_t k = 0; k < 1 && (span)->other[0] != 0; k++)
PRIM_FN uint32_t descriptor_own_index(const struct prim_descriptor *descriptor) {
  return (void)descriptor, 0;
}
#endif

PRIM_FN void span_store(const struct prim_descriptor *span, size_t offset, ulonglong2 vector) {
  prim_store_vector(span->out + offset, vector);
  SPAN_EACH_OTHER(k, span) prim_store_vector(span->other[k] + offset, vector);
}

/* Adds source number `index` to the sum of the previous ones; the first one starts the sum. */
PRIM_FN ulonglong2 span_add(uint8_t dtype, uint8_t op, const struct prim_descriptor *span, uint32_t index,
                            ulonglong2 sum, ulonglong2 source) {
  if (op == OP_PRE_MUL_SUM && (span->flags & PRIM_SCALES) && index == descriptor_own_index(span)) {
    source.x = word_scale(dtype, source.x, span->op_arg);
    source.y = word_scale(dtype, source.y, span->op_arg);
  }
  if (index == 0) return source;
  sum.x = word_combine(dtype, op, sum.x, source.x);
  sum.y = word_combine(dtype, op, sum.y, source.y);
  return sum;
}

PRIM_FN ulonglong2 span_end(uint8_t dtype, uint8_t op, const struct prim_descriptor *span, ulonglong2 sum) {
  if (op == OP_SUM_POST_DIV && (span->flags & PRIM_DIVIDES)) {
    sum.x = word_divide(dtype, sum.x, span->op_arg);
    sum.y = word_divide(dtype, sum.y, span->op_arg);
  }
  return sum;
}

/* Vectors of each source that a thread has in flight: as many as fit in registers beside the arithmetic. */
PRIM_FN uint32_t span_vectors(uint8_t dtype, uint8_t op) {
  const bool plain = dtype == TYPE_FLOAT || dtype == TYPE_HALF || dtype == TYPE_BFLOAT16;
  return plain && op == OP_SUM ? PRIM_SUM_VECTORS : PRIM_VECTORS;
}

#if PRIM_LINKS > 1

/* One source after another: a turn's loads of a source are all issued before they are added. */
PRIM_FN void span_reduce(uint8_t dtype, uint8_t op, const struct compute_warp *compute,
                         const struct prim_descriptor *span, size_t skip, size_t count) {
  const size_t stride = compute->count, turn = PRIM_VECTORS * stride;
#pragma unroll 1
  for (size_t i = compute->index; i < count; i += turn) {
    ulonglong2 sum[PRIM_VECTORS], source[PRIM_VECTORS];
#pragma unroll
    for (uint32_t k = 0; k < PRIM_VECTORS; k++) {
      const size_t at = i + k * stride, offset = skip + 16 * at;
      sum[k].x = sum[k].y = 0;
      if (at < count) sum[k] = span_add(dtype, op, span, 0, sum[k], prim_load_pair(span->first + offset));
    }
    SPAN_EACH_SECOND(index, span) {
#pragma unroll
      for (uint32_t k = 0; k < PRIM_VECTORS; k++) {
        const size_t at = i + k * stride, offset = skip + 16 * at;
        source[k].x = source[k].y = 0;
        if (at < count) source[k] = prim_load_pair(span->second[index] + offset);
      }
#pragma unroll
      for (uint32_t k = 0; k < PRIM_VECTORS; k++)
        sum[k] = span_add(dtype, op, span, index + 1, sum[k], source[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < PRIM_VECTORS; k++) {
      const size_t at = i + k * stride, offset = skip + 16 * at;
      if (at < count) span_store(span, offset, span_end(dtype, op, span, sum[k]));
    }
  }
}

#else

/* Combines both sources of a vector. */
PRIM_FN ulonglong2 span_combine(uint8_t dtype, uint8_t op, const struct prim_descriptor *span,
                                ulonglong2 first, ulonglong2 second) {
  first = span_add(dtype, op, span, 0, first, first);
  if (span->second[0] != 0) first = span_add(dtype, op, span, 1, first, second);
  return span_end(dtype, op, span, first);
}

/* This thread's share of a span's vectors. All loads of a turn are issued before its first sum, also in the
 * last turn, which is usually partial. */
PRIM_FN void span_reduce(uint8_t dtype, uint8_t op, const struct compute_warp *compute,
                         const struct prim_descriptor *span, size_t skip, size_t count) {
  const uint32_t vectors = span_vectors(dtype, op);
  const size_t stride = compute->count, turn = vectors * stride;
#pragma unroll 1
  for (size_t i = compute->index; i < count; i += turn) {
    ulonglong2 first[PRIM_SUM_VECTORS], second[PRIM_SUM_VECTORS];
#pragma unroll
    for (uint32_t k = 0; k < vectors; k++) {
      const size_t at = i + k * stride, offset = skip + 16 * at;
      first[k].x = first[k].y = second[k].x = second[k].y = 0;
      if (at >= count) continue;
      if (span->second[0] != 0) second[k] = prim_load_pair(span->second[0] + offset);
      first[k] = prim_load_pair(span->first + offset);
    }
#pragma unroll
    for (uint32_t k = 0; k < vectors; k++) {
      const size_t at = i + k * stride;
      if (at >= count) continue;
      span_store(span, skip + 16 * at, span_combine(dtype, op, span, first[k], second[k]));
    }
  }
}

#endif

PRIM_FN void span_copy(const struct compute_warp *compute, const struct prim_descriptor *span, size_t skip,
                       size_t count) {
  const size_t stride = compute->count, turn = PRIM_COPY_VECTORS * stride;
#pragma unroll 1
  for (size_t i = compute->index; i < count; i += turn) {
    ulonglong2 data[PRIM_COPY_VECTORS];
#pragma unroll
    for (uint32_t k = 0; k < PRIM_COPY_VECTORS; k++) {
      const size_t at = i + k * stride;
      data[k].x = data[k].y = 0;
      if (at < count) data[k] = prim_load_pair(span->first + skip + 16 * at);
    }
#pragma unroll
    for (uint32_t k = 0; k < PRIM_COPY_VECTORS; k++) {
      const size_t at = i + k * stride;
      if (at < count) span_store(span, skip + 16 * at, data[k]);
    }
  }
}

#define SPAN_COPY OP_COUNT /* besides enum work_op: one source, unchanged */

/* Edges of spans, and spans whose ends are aligned differently, element by element: the first `front`, and
 * those from `back` on. */
PRIM_FN void span_elements(uint8_t dtype, uint8_t op, const struct compute_warp *compute,
                           const struct prim_descriptor *span, size_t front, size_t back, uint32_t bytes) {
  const size_t count = front + span->count - back;
#pragma unroll 1
  for (size_t i = compute->index; i < count; i += compute->count) {
    const size_t offset = (i < front ? i : i - front + back) * bytes;
    ulonglong2 sum = {element_load(span->first + offset, bytes), 0};
    if (op != SPAN_COPY) {
      sum = span_add(dtype, op, span, 0, sum, sum);
      SPAN_EACH_SECOND(k, span) {
        const ulonglong2 source = {element_load(span->second[k] + offset, bytes), 0};
        sum = span_add(dtype, op, span, k + 1, sum, source);
      }
      sum = span_end(dtype, op, span, sum);
    }
    element_store(span->out + offset, bytes, sum.x);
    SPAN_EACH_OTHER(k, span) element_store(span->other[k] + offset, bytes, sum.x);
  }
}

/* `carried`: the whole vectors are moved elsewhere (bulk.h). */
PRIM_FN void span_move(uint8_t dtype, uint8_t op, const struct compute_warp *compute,
                       const struct prim_descriptor *span, uint32_t bytes, bool carried) {
  const size_t count = span->count;
  const uintptr_t place = (uintptr_t)span->first % 16;
  bool alike = (uintptr_t)span->out % 16 == place;
  SPAN_EACH_SECOND(k, span) alike = alike && (uintptr_t)span->second[k] % 16 == place;
  SPAN_EACH_OTHER(k, span) alike = alike && (uintptr_t)span->other[k] % 16 == place;
  const uint32_t shift = size_log2(bytes);
  const size_t front = alike ? size_min(count, (16 - place) % 16 >> shift) : count;
  const size_t vectors = (count - front) << shift >> 4;
  const size_t back = front + (vectors << 4 >> shift);
  if (vectors << 4 >> shift < count) span_elements(dtype, op, compute, span, front, back, bytes);
  if (carried) return;
  if (op == SPAN_COPY) span_copy(compute, span, front << shift, vectors);
  else span_reduce(dtype, op, compute, span, front << shift, vectors);
}

PRIM_FN bool span_is_copy(const struct prim_descriptor *span) {
  bool alone = span->flags == 0;
  SPAN_EACH_SECOND(k, span) alone = false;
  return alone;
}

/* Dispatches a span by type and operator: a case for each pair. */
PRIM_FN void compute_span(const struct compute_warp *compute, const struct prim_descriptor *shared,
                          bool carried) {
  DESCRIPTOR_COPY(span, shared);
  const uint32_t bytes = word_element_bytes(span.dtype);
  if (span_is_copy(&span)) {
    span_move(0, SPAN_COPY, compute, &span, bytes, carried);
    return;
  }
#define SPAN_OPERATOR(op, operator_name, combine)                   \
  case op:                                                          \
    span_move(dtype, op, compute, &span, sizeof(element), carried); \
    break;
#define SPAN_TYPE(value, name, storage, accumulator)        \
  case value: {                                             \
    const uint8_t dtype = value;                            \
    typedef storage element;                                \
    switch (span.op) { TYPE_OPERATOR_TABLE(SPAN_OPERATOR) } \
  } break;
  switch (span.dtype) { TYPE_TABLE(SPAN_TYPE) }
#undef SPAN_TYPE
#undef SPAN_OPERATOR
}

/* ---- LL ---- */

/* A compute thread's share of every group of a protocol, in bytes. */
struct line_share {
  uint32_t data_first, data_stride, wire_first, wire_stride;
  bool flags; /* LL128: this compute thread's piece ends with the line's flag */
};

PRIM_FN uint32_t line_turns(uint8_t kind) { return kind == LINE_LL ? PRIM_WORDS : PRIM_WORDS / 2; }

PRIM_FN struct line_share line_share_of(const struct compute_warp *compute, uint8_t kind) {
  const uint32_t line = compute->index / 8, piece = compute->index % 8;
  struct line_share share;
  share.data_first = kind == LINE_LL ? compute->index * 8 : line * 120 + piece * 16;
  share.data_stride = kind == LINE_LL ? compute->count * 8 : compute->count / 8 * 120;
  share.wire_first = compute->index * 16;
  share.wire_stride = compute->count * 16;
  share.flags = piece == 7;
  return share;
}

/* A loop over the turns of a group in which any compute thread has a line; `mine` tells whether this one
 * has. */
#define LINE_EACH_TURN(turn, mine, share, kind, wire_bytes)                                                 \
  _Pragma(                                                                                                  \
      "unroll") for (uint32_t turn = 0; turn < PRIM_WORDS;                                                  \
                     turn++) if (turn <                                                                     \
                                 line_turns(kind)) if (const uint32_t before = turn * (share)->wire_stride; \
                                                       before <                                             \
                                                       (wire_bytes)) if (const bool mine =                  \
                                                                             before + (share)->wire_first < \
                                                                             (wire_bytes);                  \
                                                                         true)

/* Loads the compute thread's pairs of a group; true if its lines have the flag. An LL line is two words of
 * {data, flag}; the flag of LL128 is the last of a line's sixteen words. */
PRIM_FN bool ll_take(uint8_t kind, const struct line_share *share, const struct prim_descriptor *descriptor,
                     uint32_t link, uint32_t wire_bytes, uint64_t *words) {
  const uint8_t *at = descriptor->second[link] + share->wire_first;
  const uint64_t flag = descriptor->recv_flag[link];
  bool flagged = true;
  LINE_EACH_TURN(turn, mine, share, kind, wire_bytes) {
    if (mine) {
      const ulonglong2 pair = prim_load_pair(at + turn * share->wire_stride);
      if (kind == LINE_LL) {
        words[turn] = line_word(pair.x, pair.y);
        flagged &= line_half_has(pair.x, flag) && line_half_has(pair.y, flag);
      } else {
        words[2 * turn % PRIM_WORDS] = pair.x;
        words[(2 * turn + 1) % PRIM_WORDS] = pair.y;
        flagged &= !share->flags || pair.y == flag;
      }
    }
  }
  return flagged;
}

/* Waits until the warp's lines have arrived; false if the lane was aborted. The eight pairs of an LL128 line
 * are loaded again after the vote, because a 128-byte load that overlaps a 128-byte store may see the store's
 * end before its beginning. */
PRIM_FN bool ll_await(uint8_t kind, struct compute_warp *compute, const struct line_share *share,
                      const struct prim_descriptor *descriptor, uint32_t link, uint32_t wire_bytes,
                      uint64_t *words) {
  while (!__all_sync(PRIM_ALL_LANES, ll_take(kind, share, descriptor, link, wire_bytes, words)))
    if (prim_aborted(&compute->prim)) return false;
  if (kind == LINE_LL128) ll_take(kind, share, descriptor, link, wire_bytes, words);
  LINE_EACH_TURN(turn, mine, share, kind, wire_bytes) {
    if (mine) prim_took(descriptor->second[link] + share->wire_first + turn * share->wire_stride);
  }
  return true;
}

/* An LL pair is stored whole. The eight pairs of an LL128 line are stored by one instruction of one warp, as
 * a 128-byte store; links that allow LL128 do not tear it. */
PRIM_FN void ll_send(uint8_t kind, const struct line_share *share, const struct prim_descriptor *descriptor,
                     uint32_t link, uint32_t wire_bytes, const uint64_t *words) {
  uint8_t *at = descriptor->other[link] + share->wire_first;
  const uint64_t flag = descriptor->send_flag[link];
  if (kind == LINE_LL128) prim_converge();
  LINE_EACH_TURN(turn, mine, share, kind, wire_bytes) {
    if (kind == LINE_LL) {
      const uint64_t low = line_first_half(words[turn], flag), high = line_second_half(words[turn], flag);
      if (mine) prim_store_line(at + turn * share->wire_stride, low, high);
    } else {
      const uint64_t high = share->flags ? flag : words[(2 * turn + 1) % PRIM_WORDS];
      if (mine) prim_store_line_part(at + turn * share->wire_stride, words[2 * turn % PRIM_WORDS], high);
    }
  }
}

/* Offset in a group's data at which word k of this compute thread begins; past the end of any group if it
 * holds no data. */
PRIM_FN uint32_t line_word_offset(uint8_t kind, const struct line_share *share, uint32_t k) {
  if (kind == LINE_LL) return share->data_first + k * share->data_stride;
  if (k % 2 == 1 && share->flags) return UINT32_MAX - 8;
  return share->data_first + k / 2 * share->data_stride + k % 2 * 8;
}

/* Starts copying the user's input to shared memory; nothing waits for it until the words are used. Whole
 * words if the user's memory is aligned to them; bytes at a group's end, and otherwise. */
PRIM_FN void ll_fetch(uint8_t kind, const struct line_share *share, const uint8_t *from, uint32_t bytes) {
  const bool aligned = ((uintptr_t)from & 7) == 0;
  PRIM_EACH_WORD(k) {
    const uint32_t offset = line_word_offset(kind, share, k);
    uint64_t *place = &prim_shared.fetched[threadIdx.x][k];
    if (offset >= bytes) continue;
    if (aligned && offset + 8 <= bytes) prim_fetch_word(place, from + offset);
    else prim_put_word(place, word_load(from + offset, bytes - offset));
  }
}

PRIM_FN void ll_fetched(uint64_t *words) {
  prim_fetch_end();
  PRIM_EACH_WORD(k) words[k] = prim_fetched_word(&prim_shared.fetched[threadIdx.x][k]);
}

PRIM_FN void ll_keep(uint8_t kind, const struct line_share *share, uint8_t *to, uint32_t bytes,
                     const uint64_t *words) {
  const bool aligned = ((uintptr_t)to & 7) == 0;
  PRIM_EACH_WORD(k) {
    const uint32_t offset = line_word_offset(kind, share, k);
    if (aligned && offset + 8 <= bytes) element_store(to + offset, 8, words[k]);
    else if (offset < bytes) word_store(to + offset, bytes - offset, words[k]);
  }
}

/* Operators also process words without data; their results are not stored. */
#if PRIM_LINKS > 1

/* The user's input, scaled if the operator requires it. */
PRIM_FN void ll_own(uint8_t kind, const struct line_share *share, const struct prim_descriptor *descriptor,
                    uint64_t *words) {
  ll_fetch(kind, share, descriptor->first, (uint32_t)descriptor->count);
  ll_fetched(words);
  if (descriptor->flags & PRIM_SCALES)
    words_apply(descriptor->dtype, WORDS_SCALE, words, words, descriptor->op_arg);
}

/* Loads the data of all links; all loads are issued together. */
PRIM_FN bool ll_take_all(uint8_t kind, const struct line_share *share,
                         const struct prim_descriptor *descriptor, uint32_t wire_bytes,
                         uint64_t (*arrived)[PRIM_WORDS]) {
  bool flagged = true;
#pragma unroll
  for (uint32_t link = 0; link < PRIM_LINKS; link++)
    if (PRIM_WORDS == 1 && link < descriptor->second_count)
      flagged &= ll_take(kind, share, descriptor, link, wire_bytes, arrived[link]);
  return flagged;
}

PRIM_FN bool ll_await_all(uint8_t kind, struct compute_warp *compute, const struct line_share *share,
                          const struct prim_descriptor *descriptor, uint32_t wire_bytes,
                          uint64_t (*arrived)[PRIM_WORDS]) {
  while (!__all_sync(PRIM_ALL_LANES, ll_take_all(kind, share, descriptor, wire_bytes, arrived)))
    if (prim_aborted(&compute->prim)) return false;
  if (kind == LINE_LL128) ll_take_all(kind, share, descriptor, wire_bytes, arrived);
  for (uint32_t link = 0; link < descriptor->second_count; link++)
    LINE_EACH_TURN(turn, mine, share, kind, wire_bytes) {
      if (mine) prim_took(descriptor->second[link] + share->wire_first + turn * share->wire_stride);
    }
  return true;
}

/* Selects the words of one link by comparisons, because registers cannot be indexed. */
PRIM_FN void ll_pick(const uint64_t (*arrived)[PRIM_WORDS], uint32_t link, uint64_t *words) {
#pragma unroll
  for (uint32_t i = 0; i < PRIM_LINKS; i++)
    if (PRIM_WORDS == 1 && i == link) PRIM_EACH_WORD(k) words[k] = arrived[i][k];
}

/* Adds all sources in order; the words of all links at once if registers hold them. */
PRIM_FN bool ll_gather(uint8_t kind, struct compute_warp *compute, const struct line_share *share,
                       const struct prim_descriptor *descriptor, uint32_t wire_bytes, uint64_t *words) {
  const bool at_once = PRIM_WORDS == 1;
  const uint32_t sources = descriptor->second_count + (descriptor->first != 0);
  uint64_t own[PRIM_WORDS] = {0}, source[PRIM_WORDS] = {0};
  uint64_t arrived[at_once ? PRIM_LINKS : 1][PRIM_WORDS] = {{0}};
  uint32_t link = 0;
  if (at_once && descriptor->first != 0) ll_own(kind, share, descriptor, own);
  if (at_once && !ll_await_all(kind, compute, share, descriptor, wire_bytes, arrived)) return false;
#pragma unroll 1
  for (uint32_t i = 0; i < sources; i++) {
    const bool is_own = descriptor->first != 0 && i == descriptor->own_index;
    if (is_own && at_once) PRIM_EACH_WORD(k) source[k] = own[k];
    else if (is_own) ll_own(kind, share, descriptor, source);
    else if (at_once) ll_pick(arrived, link++, source);
    else if (!ll_await(kind, compute, share, descriptor, link++, wire_bytes, source)) return false;
    if (i > 0) words_apply(descriptor->dtype, descriptor->op, words, source, 0);
    else PRIM_EACH_WORD(k) words[k] = source[k];
  }
  return true;
}

#else

PRIM_FN bool ll_gather(uint8_t kind, struct compute_warp *compute, const struct line_share *share,
                       const struct prim_descriptor *descriptor, uint32_t wire_bytes, uint64_t *words) {
  uint64_t arrived[PRIM_WORDS] = {0};
  if (descriptor->first != 0) { /* it arrives before the lines do, so waiting for it costs nothing */
    ll_fetch(kind, share, descriptor->first, (uint32_t)descriptor->count);
    ll_fetched(words);
  }
  if (descriptor->second[0] != 0 && !ll_await(kind, compute, share, descriptor, 0, wire_bytes, arrived))
    return false;
  if (descriptor->first != 0) {
    if (descriptor->flags & PRIM_SCALES)
      words_apply(descriptor->dtype, WORDS_SCALE, words, words, descriptor->op_arg);
    if (descriptor->flags & PRIM_COMBINES) words_apply(descriptor->dtype, descriptor->op, words, arrived, 0);
  } else {
    PRIM_EACH_WORD(k) words[k] = arrived[k];
  }
  return true;
}

#endif

PRIM_FN bool compute_ll(uint8_t kind, struct compute_warp *compute, const struct prim_descriptor *shared) {
  DESCRIPTOR_COPY(descriptor, shared);
  const struct line_share share = line_share_of(compute, kind);
  const uint32_t wire_bytes = descriptor.line_count * line_wire_bytes(kind);
  uint64_t words[PRIM_WORDS] = {0};
  if (!ll_gather(kind, compute, &share, &descriptor, wire_bytes, words)) return false;
  if (descriptor.flags & PRIM_DIVIDES)
    words_apply(descriptor.dtype, WORDS_DIVIDE, words, words, descriptor.op_arg);
  SPAN_EACH_OTHER(k, &descriptor) ll_send(kind, &share, &descriptor, k, wire_bytes, words);
  if (descriptor.out != 0) ll_keep(kind, &share, descriptor.out, (uint32_t)descriptor.count, words);
  return true;
}

#ifdef PRIM_BULK
#include "kernels/bulk.h"
#else

/* ---- the main loop of a compute warp ---- */

/* False for a descriptor of a protocol that this kernel does not support, and for the last one. */
PRIM_FN bool compute_do(struct compute_warp *compute, const struct prim_descriptor *descriptor) {
#ifdef PRIM_PROTO
  if (descriptor->kind == PRIM_END) return false;
  if (PRIM_PROTO == PROTO_LL) return compute_ll(LINE_LL, compute, descriptor);
  if (PRIM_PROTO == PROTO_LL128) return compute_ll(LINE_LL128, compute, descriptor);
  compute_span(compute, descriptor, false);
  return true;
#else
  switch (descriptor->kind) {
    case PRIM_SPAN: compute_span(compute, descriptor, false); return true;
    case PRIM_LL: return compute_ll(LINE_LL, compute, descriptor);
#if PRIM_LINKS == 1 /* with many links LL128 would not fit in registers */
    case PRIM_LL128: return compute_ll(LINE_LL128, compute, descriptor);
#endif
    default: return false;
  }
#endif
}

PRIM_FN void compute_run(struct compute_warp *compute) {
  uint32_t *done = &prim_shared.done[threadIdx.x / PRIM_WARP];
  const struct prim_queue *queue = compute->prim.queue;
  for (uint32_t count = 0;; count++) {
    while ((int32_t)(prim_peek_together(&queue->issued) - count) <= 0)
      if (prim_aborted(&compute->prim)) return;
    prim_converge_reads(); /* the descriptor is read after it */
    if (!compute_do(compute, &queue->descriptors[count % PRIM_DESCRIPTORS])) return;
    prim_converge();
    if (prim_lane() == 0) prim_post(done, count + 1);
  }
}

#endif

#endif
