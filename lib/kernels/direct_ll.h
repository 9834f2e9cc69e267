/* direct_ll.h: the phases of direct_phase.h over LL: lines of eight bytes and their flags, which receivers poll. */
#ifndef TUTTI_KERNELS_DIRECT_LL_H
#define TUTTI_KERNELS_DIRECT_LL_H

#include "kernels/direct_phase.h"

/* Lines per link that a thread has in flight if there are few links; limited by registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define DIRECT_FEW_LINES 2
#else
#define DIRECT_FEW_LINES 1
#endif

PRIM_FN void direct_scale(uint64_t *word) {
  const struct work *work = direct_of();
  if (work->op == OP_PRE_MUL_SUM) words_apply(work->dtype, WORDS_SCALE, word, word, work->op_arg);
}

PRIM_FN const uint8_t *direct_memory(uint64_t address) { return (const uint8_t *)(uintptr_t)address; }

/* Sends every link its own block of the input: the loads of all links first, LINES per thread at a time, then
 * the stores. */
template <uint32_t LINKS, uint32_t LINES>
PRIM_FN void direct_scatter(const struct direct_phase *phase, struct direct_share_of share) {
  const uint32_t links = phase->links, most = direct_line_count(phase->most_bytes);
#pragma unroll 1
  for (uint32_t first = share.index; first < most; first += LINES * share.count) {
    uint64_t words[LINKS][LINES];
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++)
        if (link < links)
          words[link][b] =
              direct_load(first + b * share.count, direct_memory(phase->from[link]), phase->bytes[link]);
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++) {
        const uint32_t line = first + b * share.count;
        if (link < links && line * 8 < phase->bytes[link])
          direct_put(phase->to[link], phase->to_flag[link], line, words[link][b]);
      }
  }
}

/* Sends the same block to every link, and copies it to the own output if the step keeps it. */
template <uint32_t LINES>
PRIM_FN void direct_spread(const struct direct_phase *phase, struct direct_share_of share) {
  const uint8_t *from = phase->in;
  const uint32_t bytes = phase->own_bytes, links = phase->links, end = direct_line_count(bytes);
#pragma unroll 1
  for (uint32_t first = share.index; first < end; first += LINES * share.count) {
    uint64_t words[LINES];
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) words[b] = direct_load(first + b * share.count, from, bytes);
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) {
      const uint32_t line = first + b * share.count;
#pragma unroll 1
      for (uint32_t link = 0; link < links; link++)
        if (line < end) direct_put(phase->to[link], phase->to_flag[link], line, words[b]);
      if (phase->out != 0) direct_keep(line, phase->out, bytes, words[b]);
    }
  }
}

/* Both, for values that are scaled before they are sent. This case is rare, so the code is short instead of
 * fast. */
PRIM_FN void direct_send_scaled(const struct direct_phase *phase, struct direct_share_of share) {
  const bool spreads = phase->kind == DIRECT_SPREAD;
#pragma unroll 1
  for (uint32_t link = 0; link < phase->links; link++) {
    const uint8_t *from = spreads ? phase->in : direct_memory(phase->from[link]);
    const uint32_t bytes = spreads ? phase->own_bytes : phase->bytes[link];
#pragma unroll 1
    for (uint32_t line = share.index; line < direct_line_count(bytes); line += share.count) {
      uint64_t word = direct_load(line, from, bytes);
      direct_scale(&word);
      direct_put(phase->to[link], phase->to_flag[link], line, word);
    }
  }
}

static_assert(PRIM_WORDS == 1, "words_apply() takes a line's word");

/* Adds all sources of a line in rank order. */
template <uint32_t LINKS, bool PLAIN>
PRIM_FN uint64_t direct_sum(const struct work *work, uint64_t own, const uint64_t *arrived) {
  uint64_t sum = 0;
#pragma unroll(PLAIN ? LINKS + 1 : 1)
  for (uint32_t rank = 0; rank < LINKS + 1; rank++) {
    uint64_t word = own;
    if (rank > work->recv_count) continue;
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
      if (rank != work->rank && link == (rank < work->rank ? rank : rank - 1)) word = arrived[link];
    sum = rank > 0 ? direct_add<PLAIN>(work, sum, word) : word;
  }
  return sum;
}

/* Adds the received blocks of all links and the own values; keeps the sum, and sends it if the step does. */
template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN bool direct_add_up(const struct direct_phase *phase, struct direct_share_of share) {
  const struct work *work = direct_of();
  const uint32_t bytes = phase->own_bytes, end = direct_line_count(bytes), links = phase->links;
#pragma unroll 1
  for (uint32_t turn = 0; share.index - prim_lane() + turn < end; turn += LINES * share.count) {
    const uint32_t first = share.index + turn;
    uint64_t own[LINES], arrived[LINES][LINKS];
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) own[b] = direct_load(first + b * share.count, phase->in, bytes);
    DIRECT_AWAIT({
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++)
#pragma unroll
        for (uint32_t link = 0; link < LINKS; link++)
          if (link < links && first + b * share.count < end)
            flagged &= direct_take(phase->from[link], phase->from_flag[link], first + b * share.count,
                                   &arrived[b][link]);
    })
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) {
      const uint32_t line = first + b * share.count;
      if (!PLAIN) direct_scale(&own[b]);
      uint64_t sum = direct_sum<LINKS, PLAIN>(work, own[b], arrived[b]);
      if (!PLAIN && work->op == OP_SUM_POST_DIV)
        words_apply(work->dtype, WORDS_DIVIDE, &sum, &sum, work->op_arg);
      if (phase->sends)
#pragma unroll
        for (uint32_t link = 0; link < LINKS; link++)
          if (link < links && line < end) direct_put(phase->to[link], phase->to_flag[link], line, sum);
      direct_keep(line, phase->out, bytes, sum);
    }
  }
  return true;
}

/* Copies every link's block to the output. */
template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_collect(const struct direct_phase *phase, struct direct_share_of share) {
  const uint32_t most = direct_line_count(phase->most_bytes), links = phase->links;
#pragma unroll 1
  for (uint32_t turn = 0; share.index - prim_lane() + turn < most; turn += LINES * share.count) {
    const uint32_t first = share.index + turn;
    uint64_t words[LINKS][LINES];
    DIRECT_AWAIT({
#pragma unroll
      for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
        for (uint32_t b = 0; b < LINES; b++)
          if (link < links && (first + b * share.count) * 8 < phase->bytes[link])
            flagged &= direct_take(phase->from[link], phase->from_flag[link], first + b * share.count,
                                   &words[link][b]);
    })
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++)
        if (link < links)
          direct_keep(first + b * share.count, (uint8_t *)(uintptr_t)phase->to[link], phase->bytes[link],
                      words[link][b]);
  }
  return true;
}

/* The own block of a step with a block for each link. */
PRIM_FN void direct_copy(const struct direct_phase *phase, struct direct_share_of share) {
  const uint32_t bytes = phase->own_bytes;
#pragma unroll 1
  for (uint32_t line = share.index; line < direct_line_count(bytes); line += share.count)
    direct_keep(line, phase->out, bytes, direct_load(line, phase->in, bytes));
}

template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_move(const struct direct_phase *phase, struct direct_share_of share) {
  const bool scatters = phase->kind == DIRECT_SCATTER;
  if (phase->kind == DIRECT_ADD)
    return direct_is_plain() ? direct_add_up<LINKS, LINES, true>(phase, share)
                             : direct_add_up<LINKS, 1, false>(phase, share);
  if (phase->kind == DIRECT_COLLECT) return direct_collect<LINKS, LINES>(phase, share);
  if (direct_of()->op == OP_PRE_MUL_SUM) direct_send_scaled(phase, share);
  else if (scatters) direct_scatter<LINKS, LINES>(phase, share);
  else direct_spread<4>(phase, share);
  if (scatters) direct_copy(phase, share);
  return true;
}

PRIM_FN bool direct_run_phase(const struct direct_phase *phase, struct direct_share_of share) {
  return phase->links <= 3 ? direct_move<3, DIRECT_FEW_LINES>(phase, share)
                           : direct_move<DIRECT_LINKS, 1>(phase, share);
}

#endif
