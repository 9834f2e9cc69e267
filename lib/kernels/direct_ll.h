/* direct_ll.h: direct collectives over LL. Every warp but the last moves lines: it makes all steps of a loop,
 * a few lines of each block at a time, with its threads holding the links (direct.h). What does not depend on
 * earlier kernels is prepared before they have ended; after that come one round of loads (counters and input
 * together), the stores to the other ranks, the polling of their lines, and the sums or copies. The last warp
 * announces and compares sizes, frees slots, cleans them and saves the counters, so the other warps do not
 * wait for this.
 *
 * A kernel of single passes has DIRECT_ONCE: its works have one loop whose lines its threads hold at once
 * (launch.c knows which works), and sums of plain types only. */
#ifndef TUTTI_KERNELS_DIRECT_LL_H
#define TUTTI_KERNELS_DIRECT_LL_H

#include <cuda_runtime.h>

#include "kernels/link_count.h"

#define PRIM_WORDS 1
#define PRIM_LINKS LAUNCH_LINKS
#define PRIM_ALGOS 1
#define PRIM_PROTO PROTO_LL

#include "kernels/direct.h"

#ifdef DIRECT_ONCE
#define DIRECT_LOOPS false
#else
#define DIRECT_LOOPS true
#endif

#define DIRECT_EACH_LINK(link) _Pragma("unroll") for (uint32_t link = 0; link < LINKS; link++)
#define DIRECT_EACH_LINE(b) _Pragma("unroll") for (uint32_t b = 0; b < LINES; b++)

/* Of a link: the address of a thread's first line in slot 0, and the block of user memory that the link's
 * lines belong to. */
struct direct_route {
  uint64_t slot_0;
  uint8_t *user;
  uint32_t bytes;
};

/* What the steps of a loop do. */
template <uint32_t LINKS>
struct direct_loop {
  struct direct_route sent[LINKS], received[LINKS];
  const uint8_t *in; /* the own block, and the destination of it or of the sum */
  uint8_t *out;
  uint32_t bytes, slot_bytes, flag_mask;
  uint32_t most; /* lines of the longest block */
  uint32_t send_count, recv_count, rank, dtype;
  bool scatters, spreads, adds, sends_sum, collects; /* the steps that the work has */
  bool keeps;                                        /* the own block is copied to the output */
};

/* Lines of a thread: a group. */
template <uint32_t LINKS, uint32_t LINES>
struct direct_words {
  uint64_t own[LINES];         /* own values, then the sum */
  uint64_t each[LINES][LINKS]; /* data to send, then received data */
};

/* ---- before earlier kernels have ended ---- */

/* Keeps the compiler from delaying a load past a wait: a value that a thread gets from itself by a shuffle
 * must be ready. */
PRIM_FN void direct_pin(uint32_t &value) { value = __shfl_sync(PRIM_ALL_LANES, value, (int)prim_lane()); }
PRIM_FN void direct_pin(uint64_t &value) {
  value = __shfl_sync(PRIM_ALL_LANES, (unsigned long long)value, (int)prim_lane());
}
template <typename TYPE>
PRIM_FN void direct_pin(TYPE *&pointer) {
  uint64_t value = (uint64_t)(uintptr_t)pointer;
  direct_pin(value);
  pointer = (TYPE *)(uintptr_t)value;
}

/* The links' memory in a step with a block for each link, or with one for all. */
template <uint32_t LINKS>
PRIM_FN void direct_set_routes(const struct step *step, bool sends, struct direct_route *routes) {
  DIRECT_EACH_LINK(link) {
    if (link >= (sends ? direct_of()->send_count : direct_of()->recv_count)) continue;
    routes[link].user = direct_user(step, link, sends);
    routes[link].bytes = direct_bytes(step_link_count(step, link));
  }
}

/* The own block: an operand of the sum, sent to all, or copied. */
template <uint32_t LINKS>
PRIM_FN void direct_set_own(const struct step *step, struct direct_loop<LINKS> *loop) {
  const bool each = step_is_each(step);
  const size_t row = each ? step_block_offset(step, step->own_index) : 0;
  loop->in = direct_in(step->in_offset + row);
  loop->out = direct_out(step->out_offset + row);
  loop->bytes = direct_bytes(each ? step_block_count(step, step->own_index) : step->count);
}

template <uint32_t LINKS>
PRIM_FN void direct_note_step(const struct step *step, struct direct_loop<LINKS> *loop) {
  const bool sends = (step->flags & STEP_SEND) != 0, keeps = (step->flags & STEP_KEEP) != 0;
  if (step->flags & STEP_REDUCE) {
    loop->adds = true;
    loop->sends_sum = sends;
  } else if (sends) {
    loop->scatters = step_is_each(step);
    loop->spreads = !loop->scatters;
    loop->keeps = keeps;
    if (loop->scatters) direct_set_routes<LINKS>(step, true, loop->sent);
  } else {
    loop->collects = true;
    direct_set_routes<LINKS>(step, false, loop->received);
  }
  if ((step->flags & STEP_REDUCE) != 0 || (sends && (loop->spreads || keeps))) direct_set_own(step, loop);
  loop->most = size_max(loop->most, line_count_of(LINE_LL, direct_bytes(step->count)));
}

template <uint32_t LINKS>
PRIM_FN void direct_pin_loop(struct direct_loop<LINKS> *loop) {
  DIRECT_EACH_LINK(link) {
    direct_pin(loop->sent[link].slot_0);
    direct_pin(loop->sent[link].user);
    direct_pin(loop->sent[link].bytes);
    direct_pin(loop->received[link].slot_0);
    direct_pin(loop->received[link].user);
    direct_pin(loop->received[link].bytes);
  }
  direct_pin(loop->in);
  direct_pin(loop->out);
  direct_pin(loop->bytes);
  direct_pin(loop->slot_bytes);
  direct_pin(loop->flag_mask);
  direct_pin(loop->send_count);
  direct_pin(loop->recv_count);
  direct_pin(loop->rank);
  direct_pin(loop->dtype);
}

/* The loop that has `done` elements of the part before it. */
template <uint32_t LINKS>
PRIM_FN void direct_prepare_loop(const struct plan_limits *limits, size_t done,
                                 struct direct_loop<LINKS> *loop) {
  const struct work *work = direct_of();
  struct step step;
  DIRECT_EACH_LINK(link) {
    const struct direct_route nothing = {0, 0, 0};
    loop->sent[link] = loop->received[link] = nothing;
    if (link < work->send_count)
      loop->sent[link].slot_0 = (uint64_t)(uintptr_t)direct_bound(link, true)->buffer + threadIdx.x * 16;
    if (link < work->recv_count)
      loop->received[link].slot_0 = (uint64_t)(uintptr_t)direct_bound(link, false)->buffer + threadIdx.x * 16;
  }
  loop->in = 0;
  loop->out = 0;
  loop->bytes = loop->most = 0;
  loop->scatters = loop->spreads = loop->adds = loop->sends_sum = loop->collects = loop->keeps = false;
#pragma unroll
  for (uint32_t kind = 0; kind < DIRECT_KINDS; kind++) {
    if (!direct_has(work, kind)) continue;
    direct_step_at(work, done, kind, &step);
    direct_note_step(&step, loop);
  }
  loop->slot_bytes = limits->step_bytes[PROTO_LL];
  loop->flag_mask = (uint32_t)line_flag_mask(limits->flag_bits);
  loop->send_count = work->send_count;
  loop->recv_count = work->recv_count;
  loop->rank = work->rank;
  loop->dtype = work->dtype;
  if (done == 0) direct_pin_loop(loop);
}

/* ---- lines of a group ---- */

PRIM_FN uint32_t direct_movers(void) { return blockDim.x - PRIM_WARP; }

/* Lines from this thread's first one to its line `b` of the group that begins after `begun` lines; over a
 * single pass there is one group. */
PRIM_FN uint32_t direct_ahead(uint32_t begun, uint32_t b) {
  return (DIRECT_LOOPS ? begun : 0) + b * direct_movers();
}

/* True if the line is in a block of `bytes`. */
PRIM_FN bool direct_has_line(uint32_t bytes, uint32_t ahead) { return (threadIdx.x + ahead) * 8 < bytes; }

/* This thread's first line of a link's step, by the number of the step's lines. */
template <uint32_t LINKS>
PRIM_FN uint64_t direct_line(const struct direct_loop<LINKS> *loop, uint64_t slot_0, uint32_t number) {
  return slot_0 + line_slot_at(number, FIFO_SLOTS_MAX) * loop->slot_bytes;
}

/* The number of the lines of step `step` of the loop on a link, which thread `thread` of the warp holds. */
PRIM_FN uint32_t direct_number(const struct direct_run *it, uint32_t thread, uint32_t step) {
  return __shfl_sync(PRIM_ALL_LANES, (uint32_t)it->link.line, (int)thread) + step;
}

PRIM_FN uint64_t direct_word(const uint8_t *from, uint32_t bytes, uint32_t ahead) {
  const uint32_t offset = (threadIdx.x + ahead) * 8;
  const bool lies = offset < bytes, whole = lies && ((uintptr_t)from & 7) == 0 && bytes - offset >= 8;
  uint64_t word = prim_load_word_if(whole, from + offset);
  if (lies && !whole) word = word_load(from + offset, bytes - offset);
  return word;
}

/* An operator that scales is applied to own values when they are loaded. */
template <bool PLAIN>
PRIM_FN uint64_t direct_scaled(uint64_t word) {
  const struct work *work = direct_of();
  if (!PLAIN && work->op == OP_PRE_MUL_SUM) words_apply(work->dtype, WORDS_SCALE, &word, &word, work->op_arg);
  return word;
}

static_assert(PRIM_WORDS == 1, "words_apply() takes a line's word");

template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN void direct_load_own(const struct direct_loop<LINKS> *loop, uint32_t begun,
                             struct direct_words<LINKS, LINES> *words) {
  DIRECT_EACH_LINE(b) words->own[b] = direct_word(loop->in, loop->bytes, direct_ahead(begun, b));
  if (!PLAIN) DIRECT_EACH_LINE(b) words->own[b] = direct_scaled<PLAIN>(words->own[b]);
}

template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN void direct_load_each(const struct direct_loop<LINKS> *loop, uint32_t begun,
                              struct direct_words<LINKS, LINES> *words) {
  DIRECT_EACH_LINE(b)
  DIRECT_EACH_LINK(link)
  words->each[b][link] = direct_word(loop->sent[link].user, loop->sent[link].bytes, direct_ahead(begun, b));
  if (!PLAIN) {
    DIRECT_EACH_LINE(b)
    DIRECT_EACH_LINK(link) words->each[b][link] = direct_scaled<PLAIN>(words->each[b][link]);
  }
}

/* `SCATTERED`: each link gets its own words; else all get the same. */
template <uint32_t LINKS, uint32_t LINES, bool SCATTERED>
PRIM_FN void direct_send(const struct direct_run *it, const struct direct_loop<LINKS> *loop, uint32_t begun,
                         uint32_t step, const struct direct_words<LINKS, LINES> *words) {
  DIRECT_EACH_LINK(link) {
    const uint32_t number = direct_number(it, DIRECT_SENDS + link, step);
    const uint64_t lines = direct_line(loop, loop->sent[link].slot_0, number);
    const uint32_t flag = (uint32_t)line_flag_at(number, loop->flag_mask);
    DIRECT_EACH_LINE(b)
    if (link < loop->send_count &&
        direct_has_line(SCATTERED ? loop->sent[link].bytes : loop->bytes, direct_ahead(begun, b)))
      direct_put(lines, flag, direct_ahead(begun, b), SCATTERED ? words->each[b][link] : words->own[b]);
  }
}

/* Waits until all lines of the warp have arrived. `adding`: every link's lines belong to the own block. The
 * warp votes, so that its threads iterate together. */
template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_receive(const struct direct_run *it, const struct direct_loop<LINKS> *loop,
                            uint32_t begun, uint32_t step, bool adding,
                            struct direct_words<LINKS, LINES> *words) {
  uint64_t lines[LINKS];
  uint32_t flags[LINKS];
  DIRECT_EACH_LINK(link) {
    const uint32_t number = direct_number(it, link, step);
    lines[link] = direct_line(loop, loop->received[link].slot_0, number);
    flags[link] = (uint32_t)line_flag_at(number, loop->flag_mask);
  }
  for (;;) {
    bool flagged = true;
    DIRECT_EACH_LINE(b)
    DIRECT_EACH_LINK(link)
    if (link < loop->recv_count &&
        direct_has_line(adding ? loop->bytes : loop->received[link].bytes, direct_ahead(begun, b)))
      flagged &= direct_take(lines[link], flags[link], direct_ahead(begun, b), &words->each[b][link]);
    if (__all_sync(PRIM_ALL_LANES, flagged)) break;
    if (direct_sees_stop()) return false;
  }
  DIRECT_EACH_LINE(b)
  DIRECT_EACH_LINK(link)
  if (link < loop->recv_count &&
      direct_has_line(adding ? loop->bytes : loop->received[link].bytes, direct_ahead(begun, b)))
    direct_took(lines[link], direct_ahead(begun, b));
  return true;
}

/* ---- sums ---- */

template <uint32_t LINKS, uint8_t DTYPE>
PRIM_FN uint64_t direct_add_typed(const uint64_t *words, uint32_t others) {
  uint64_t sum = words[0];
#pragma unroll
  for (uint32_t rank = 1; rank <= LINKS; rank++)
    if (rank <= others) sum = word_combine(DTYPE, OP_SUM, sum, words[rank]);
  return sum;
}

/* Adds in rank order. */
template <uint32_t LINKS>
PRIM_FN uint64_t direct_sum_plain(const struct direct_loop<LINKS> *loop, uint64_t own, const uint64_t *each) {
  uint64_t words[LINKS + 1];
#pragma unroll
  for (uint32_t rank = 0; rank <= LINKS; rank++) {
    const uint64_t before = rank < LINKS ? each[rank % LINKS] : 0;
    const uint64_t behind = rank > 0 ? each[(rank > 0 ? rank : 1) - 1] : 0;
    words[rank] = rank < loop->rank ? before : rank == loop->rank ? own : behind;
  }
  if (loop->dtype == TYPE_FLOAT) return direct_add_typed<LINKS, TYPE_FLOAT>(words, loop->recv_count);
  if (loop->dtype == TYPE_HALF) return direct_add_typed<LINKS, TYPE_HALF>(words, loop->recv_count);
  return direct_add_typed<LINKS, TYPE_BFLOAT16>(words, loop->recv_count);
}

/* The same for any type and operator. */
template <uint32_t LINKS>
PRIM_FN uint64_t direct_sum_any(const struct direct_loop<LINKS> *loop, uint64_t own, const uint64_t *each) {
  const struct work *work = direct_of();
  uint64_t sum = 0;
#pragma unroll 1
  for (uint32_t rank = 0; rank <= loop->recv_count; rank++) {
    uint64_t word = own;
    DIRECT_EACH_LINK(link)
    if (rank != loop->rank && link == (rank < loop->rank ? rank : rank - 1)) word = each[link];
    if (rank > 0) words_apply(work->dtype, work->op, &sum, &word, 0);
    else sum = word;
  }
  if (work->op == OP_SUM_POST_DIV) words_apply(work->dtype, WORDS_DIVIDE, &sum, &sum, work->op_arg);
  return sum;
}

/* ---- warps that move ---- */

/* Called by a warp that moves, when it has read the counters; after all have, the last warp may write
 * them. */
PRIM_FN void direct_counters_read(void) {
  PRIM_BARRIER_ARRIVE(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x));
}

/* True if the heads that were read show it already. */
PRIM_FN bool direct_knows_slots(const struct direct_run *it, uint32_t steps) {
  return __all_sync(PRIM_ALL_LANES, !it->sends || !it->keeps || link_knows_slots(&it->link, steps));
}

PRIM_FN void direct_await_readers(void) { PRIM_BARRIER_SYNC(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x)); }

template <uint32_t LINKS, uint32_t LINES>
PRIM_FN void direct_keep_own(const struct direct_loop<LINKS> *loop, uint32_t begun,
                             const struct direct_words<LINKS, LINES> *words) {
  DIRECT_EACH_LINE(b)
  direct_keep(threadIdx.x + direct_ahead(begun, b), loop->out, loop->bytes, words->own[b]);
}

/* For each group of the loop. */
#define DIRECT_EACH_GROUP(begun)                                                 \
  _Pragma("unroll 1") for (uint32_t begun = 0; begun == 0 || begun < loop->most; \
                           begun = DIRECT_LOOPS ? begun + LINES * direct_movers() : ~0u)

/* The first step; the first group is loaded. */
template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN void direct_make_first(const struct direct_run *it, const struct direct_loop<LINKS> *loop,
                               struct direct_words<LINKS, LINES> *words) {
  const bool owns = loop->spreads || loop->keeps;
  DIRECT_EACH_GROUP(begun) {
    if (DIRECT_LOOPS && begun > 0 && owns) direct_load_own<LINKS, LINES, PLAIN>(loop, begun, words);
    if (DIRECT_LOOPS && begun > 0 && loop->scatters)
      direct_load_each<LINKS, LINES, PLAIN>(loop, begun, words);
    if (loop->scatters) direct_send<LINKS, LINES, true>(it, loop, begun, 0, words);
    else if (loop->spreads) direct_send<LINKS, LINES, false>(it, loop, begun, 0, words);
    if (loop->keeps) direct_keep_own(loop, begun, words);
  }
}

template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN bool direct_make_sum(const struct direct_run *it, const struct direct_loop<LINKS> *loop,
                             struct direct_words<LINKS, LINES> *words) {
  DIRECT_EACH_GROUP(begun) {
    if (DIRECT_LOOPS) direct_load_own<LINKS, LINES, PLAIN>(loop, begun, words);
    if (!direct_receive(it, loop, begun, 0, true, words)) return false;
    DIRECT_EACH_LINE(b)
    words->own[b] = PLAIN ? direct_sum_plain(loop, words->own[b], words->each[b])
                          : direct_sum_any(loop, words->own[b], words->each[b]);
    if (loop->sends_sum) direct_send<LINKS, LINES, false>(it, loop, begun, 1, words);
    direct_keep_own(loop, begun, words);
  }
  return true;
}

template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_make_last(const struct direct_run *it, const struct direct_loop<LINKS> *loop,
                              struct direct_words<LINKS, LINES> *words) {
  DIRECT_EACH_GROUP(begun) {
    if (!direct_receive(it, loop, begun, loop->adds ? 1 : 0, false, words)) return false;
    DIRECT_EACH_LINE(b)
    DIRECT_EACH_LINK(link)
    direct_keep(threadIdx.x + direct_ahead(begun, b), loop->received[link].user, loop->received[link].bytes,
                words->each[b][link]);
  }
  return true;
}

/* Ends a loop: the links are `steps` steps further. */
PRIM_FN void direct_end_loop(struct direct_run *it, uint32_t loops, uint32_t steps) {
  it->link.step += steps;
  it->link.line += steps;
  __syncwarp();
  if (prim_lane() == 0) prim_post(&direct_done[direct_warp()], loops);
}

/* Whether the work needs no more than PLAIN: one without a sum of this rank's does, unless it scales what it
 * sends. */
PRIM_FN bool direct_moves_plain(void) {
  const struct work *work = direct_of();
  return direct_is_plain() || (!direct_has(work, DIRECT_SUM) && work->op != OP_PRE_MUL_SUM);
}

template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN void direct_move(struct direct_run *it, bool awaits) {
  const uint32_t steps = direct_link_steps(direct_of());
  const struct plan_limits *limits = &it->arguments->limits;
  struct direct_loop<LINKS> loop;
  struct direct_words<LINKS, LINES> words;
  size_t done = 0;
  direct_prepare_loop(limits, done, &loop);
  if (awaits) launch_await_previous();
  for (uint32_t loops = 1;; loops++) {
    direct_load_own<LINKS, LINES, PLAIN>(&loop, 0, &words);
    if (loop.scatters) direct_load_each<LINKS, LINES, PLAIN>(&loop, 0, &words);
    if (loops == 1) direct_open(it);
    const bool ready = direct_knows_slots(it, steps);
    if (loops == 1) direct_counters_read();
    if (!ready && !direct_await_slots(it, true, steps)) return;
    direct_make_first<LINKS, LINES, PLAIN>(it, &loop, &words);
    if (loop.adds && !direct_make_sum<LINKS, LINES, PLAIN>(it, &loop, &words)) return;
    if (loop.collects && !direct_make_last(it, &loop, &words)) return;
    if (!DIRECT_LOOPS && it->arguments->hosted == 0) return;
    direct_end_loop(it, loops, steps);
    if (!DIRECT_LOOPS || (done += direct_loop_elements(direct_of())) >= direct_of()->part_count) return;
    direct_prepare_loop(limits, done, &loop);
  }
}

/* ---- the last warp ---- */

/* Compares the announced sizes with what this rank expects. */
PRIM_FN bool direct_poll_sizes(struct direct_run *it) {
  it->link.agreed = it->sends || !it->keeps;
  while (!__all_sync(PRIM_ALL_LANES, it->link.agreed))
    if (!direct_compare(it) || direct_is_stopped(it)) return false;
  return true;
}

/* Rewrites the lines of the slots that the steps of a loop do not use, where their flags would be taken for
 * those of a later step. Not inlined, because it is rare. */
static __device__ __noinline__ void direct_clean(const struct direct_run *it, size_t done) {
  const struct plan_limits *limits = &it->arguments->limits;
  const uint32_t end = limits->step_bytes[PROTO_LL] / line_wire_bytes(LINE_LL);
  struct link link = it->link;
  link.line_slot = line_slot_at((uint32_t)link.line, FIFO_SLOTS_MAX);
#pragma unroll 1
  for (uint32_t kind = 0; kind < DIRECT_KINDS; kind++) {
    struct step step;
    if (!direct_has(direct_of(), kind)) continue;
    direct_step_at(direct_of(), done, kind, &step);
    const bool names = it->sends && direct_names(it, &step);
    const bool cleans = names && line_cleans_at(link.line, limits->flag_bits, FIFO_SLOTS_MAX);
    const uint64_t first = (uint64_t)(uintptr_t)line_address(&link, LINE_LL, 0);
    const uint32_t used = line_count_of(LINE_LL, direct_bytes(step_link_count(&step, direct_index())));
    const uint32_t mark = (uint32_t)line_flag_at(link.line, line_flag_mask(limits->flag_bits));
    for (uint32_t links = __ballot_sync(PRIM_ALL_LANES, cleans); links != 0; links &= links - 1) {
      const int holder = __ffs((int)links) - 1;
      const uint64_t lines = __shfl_sync(PRIM_ALL_LANES, (unsigned long long)first, holder);
      const uint32_t flag = __shfl_sync(PRIM_ALL_LANES, mark, holder);
      for (uint32_t line = __shfl_sync(PRIM_ALL_LANES, used, holder) + prim_lane(); line < end;
           line += PRIM_WARP)
        direct_put(lines, flag, line, 0);
    }
    if (names) ll_advance(&link);
  }
  __syncwarp();           /* lane 0's fence, before its count, is for the lines of all lanes */
  __threadfence_system(); /* before other threads write these slots again */
}

/* Whether a slot of the loop's `steps` steps has to be cleaned. */
PRIM_FN bool direct_cleans(const struct direct_run *it, uint32_t steps) {
  bool cleans = false;
  for (uint32_t step = 0; step < steps; step++)
    cleans |= line_cleans_at(it->link.line + step, it->arguments->limits.flag_bits, FIFO_SLOTS_MAX);
  return __any_sync(PRIM_ALL_LANES, cleans && it->sends && it->keeps);
}

/* Waits until all moving warps have completed `loops` loops. */
PRIM_FN bool direct_await_movers(struct direct_run *it, uint32_t loops) {
  const uint32_t warps = blockDim.x / PRIM_WARP - 1;
  for (;;) {
    uint32_t done = UINT32_MAX;
    if (prim_lane() < warps) done = prim_peek(&direct_done[prim_lane()]);
    if (__reduce_min_sync(PRIM_ALL_LANES, done) >= loops) return true;
    if (direct_is_stopped(it)) return false;
  }
}

/* The beginning of the next operation is known, and the fence before the count (direct_end) completes before
 * the lines arrive. */
PRIM_FN void direct_keep_accounts(struct direct_run *it, bool awaits) {
  const uint32_t steps = direct_link_steps(direct_of());
  const uint32_t all = DIRECT_LOOPS ? (uint32_t)direct_loops(direct_of()) : 1;
  const bool hosted = it->arguments->hosted != 0;
  if (awaits) launch_await_previous();
  direct_open(it);
  direct_signal_head(it);
  if (!direct_announce(it)) return;
  direct_await_readers();
  direct_save(it, all * steps, all * steps);
  __syncwarp();
  __threadfence();
  for (uint32_t loops = 1; loops <= all; loops++) {
    if (direct_cleans(it, steps)) {
      if (!direct_await_slots(it, true, steps)) return;
      const struct direct_run held = *it; /* the address of `it` would keep it in memory everywhere */
      direct_clean(&held, (loops - 1) * direct_loop_elements(direct_of()));
    }
    if (loops == 1 && !direct_poll_sizes(it)) return;
    if (all == 1 && !hosted) return;
    if (!direct_await_movers(it, loops)) return;
    const uint64_t before = it->link.step;
    it->link.step += steps;
    it->link.line += steps;
    /* A proxy waits until all slots of this operation are free. */
    if (fifo_frees_now(before, it->link.step) || (loops == all && hosted)) direct_signal_head(it);
  }
}

/* `MOVE`: direct_move() for the kernel's links and lines. */
template <void (*MOVE)(struct direct_run *, bool)>
PRIM_FN void direct_run_ll(const struct launch_arguments *arguments, bool awaits) {
  struct direct_run it;
  direct_prepare(&it, arguments);
  if (direct_commits()) direct_keep_accounts(&it, awaits);
  else MOVE(&it, awaits);
}

#endif
