/* direct_once.h: direct collectives over LL in a single pass: what direct_ll.h does in phases of any length,
 * with a line of each block in a thread's registers throughout. Every warp holds the links. Everything that
 * does not depend on earlier kernels is prepared before they have ended. After that come one round of loads
 * (counters and input together), the stores to the other ranks, the polling of their lines, and the sums or
 * copies. The last warp moves no data: it announces and compares sizes, saves the counters and cleans slots, so
 * the other warps do not wait for this. The host knows which works it can run (launch.c) and how many links per
 * side its kernel has (DIRECT_ONCE_LINKS). */
#ifndef TUTTI_KERNELS_DIRECT_ONCE_H
#define TUTTI_KERNELS_DIRECT_ONCE_H

#include "kernels/direct.h"

#define DIRECT_EACH_LINK(link) _Pragma("unroll") for (uint32_t link = 0; link < DIRECT_ONCE_LINKS; link++)

/* Of a link: the address of a thread's line in slot 0, and the block of user memory that the link's lines
 * belong to. */
struct direct_once_route {
  uint64_t slot_0;
  uint8_t *user;
  uint32_t bytes;
};

struct direct_once {
  struct direct_once_route sent[DIRECT_ONCE_LINKS], received[DIRECT_ONCE_LINKS];
  const uint8_t *in; /* the own block, and the destination of it or of the sum */
  uint8_t *out;
  uint32_t bytes, slot_bytes, flag_mask;
  uint32_t send_count, recv_count, rank, dtype;
  bool scatters, spreads, adds, sends_sum, collects; /* the steps that the work has */
  bool keeps;                                        /* the own block is copied to the output */
  uint64_t own;                                      /* own values, then the sum */
  uint64_t words[DIRECT_ONCE_LINKS];                 /* data to send, then received data */
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
PRIM_FN void direct_once_routes(const struct step *step, bool sends, struct direct_once_route *routes) {
  DIRECT_EACH_LINK(link) {
    if (link >= (sends ? direct_of()->send_count : direct_of()->recv_count)) continue;
    routes[link].user = direct_user(step, link, sends);
    routes[link].bytes = direct_bytes(step_link_count(step, link));
  }
}

/* The own block: an operand of the sum, sent to all, or copied. */
PRIM_FN void direct_once_own(const struct step *step, struct direct_once *once) {
  const bool each = step_is_each(step);
  const size_t row = each ? step_block_offset(step, step->own_index) : 0;
  once->in = direct_in(step->in_offset + row);
  once->out = direct_out(step->out_offset + row);
  once->bytes = direct_bytes(each ? step_block_count(step, step->own_index) : step->count);
}

/* Notes what a step of the only loop does. */
PRIM_FN void direct_once_note(const struct step *step, struct direct_once *once) {
  const bool sends = (step->flags & STEP_SEND) != 0, keeps = (step->flags & STEP_KEEP) != 0;
  if (step->flags & STEP_REDUCE) {
    once->adds = true;
    once->sends_sum = sends;
  } else if (sends) {
    once->scatters = step_is_each(step);
    once->spreads = !once->scatters;
    once->keeps = keeps;
    if (once->scatters) direct_once_routes(step, true, once->sent);
  } else {
    once->collects = true;
    direct_once_routes(step, false, once->received);
  }
  if ((step->flags & STEP_REDUCE) != 0 || (sends && (once->spreads || keeps))) direct_once_own(step, once);
}

PRIM_FN void direct_once_pin(struct direct_once *once) {
  DIRECT_EACH_LINK(link) {
    direct_pin(once->sent[link].slot_0);
    direct_pin(once->sent[link].user);
    direct_pin(once->sent[link].bytes);
    direct_pin(once->received[link].slot_0);
    direct_pin(once->received[link].user);
    direct_pin(once->received[link].bytes);
  }
  direct_pin(once->in);
  direct_pin(once->out);
  direct_pin(once->bytes);
  direct_pin(once->slot_bytes);
  direct_pin(once->flag_mask);
  direct_pin(once->send_count);
  direct_pin(once->recv_count);
  direct_pin(once->rank);
  direct_pin(once->dtype);
}

PRIM_FN void direct_once_prepare(const struct plan_limits *limits, struct direct_once *once) {
  const struct work *work = direct_of();
  struct step step;
  DIRECT_EACH_LINK(link) {
    const struct direct_once_route nothing = {0, 0, 0};
    once->sent[link] = once->received[link] = nothing;
    if (link < work->send_count)
      once->sent[link].slot_0 = (uint64_t)(uintptr_t)direct_bound(link, true)->buffer + threadIdx.x * 16;
    if (link < work->recv_count)
      once->received[link].slot_0 = (uint64_t)(uintptr_t)direct_bound(link, false)->buffer + threadIdx.x * 16;
  }
  once->in = 0;
  once->out = 0;
  once->bytes = 0;
  once->scatters = once->spreads = once->adds = once->sends_sum = once->collects = once->keeps = false;
#pragma unroll
  for (uint32_t kind = 0; kind < DIRECT_KINDS; kind++) {
    if (!direct_has(work, kind)) continue;
    direct_step_at(work, 0, kind, &step);
    direct_once_note(&step, once);
  }
  once->slot_bytes = limits->step_bytes[PROTO_LL];
  once->flag_mask = (uint32_t)line_flag_mask(limits->flag_bits);
  once->send_count = work->send_count;
  once->recv_count = work->recv_count;
  once->rank = work->rank;
  once->dtype = work->dtype;
  direct_once_pin(once);
}

/* ---- LL ---- */

/* True if this thread has a line in a block of `bytes`. */
PRIM_FN bool direct_has_line(uint32_t bytes) { return threadIdx.x * 8 < bytes; }

/* This thread's line of a link's step, by the number of the step's lines. */
PRIM_FN uint64_t direct_once_line(const struct direct_once *once, uint64_t slot_0, uint32_t number) {
  return slot_0 + line_slot_at(number, FIFO_SLOTS_MAX) * once->slot_bytes;
}

PRIM_FN uint32_t direct_once_flag(const struct direct_once *once, uint32_t number) {
  return (uint32_t)line_flag_at(number, once->flag_mask);
}

/* The number of the lines of step `step` of link `index`, which thread `index` or DIRECT_SENDS + `index` of
 * the warp holds. */
PRIM_FN uint32_t direct_once_number(const struct direct_run *it, uint32_t thread, uint32_t step) {
  return __shfl_sync(PRIM_ALL_LANES, (uint32_t)it->link.line, (int)thread) + step;
}

PRIM_FN uint64_t direct_once_word(const uint8_t *from, uint32_t bytes) {
  const uint32_t offset = threadIdx.x * 8;
  const bool lies = offset < bytes, whole = lies && ((uintptr_t)from & 7) == 0 && bytes - offset >= 8;
  uint64_t word = prim_load_word_if(whole, from + offset);
  if (lies && !whole) word = word_load(from + offset, bytes - offset);
  return word;
}

PRIM_FN void direct_once_load(struct direct_once *once) {
  once->own = direct_once_word(once->in, once->bytes);
  if (!once->scatters) return;
  DIRECT_EACH_LINK(link)
  once->words[link] = direct_once_word(once->sent[link].user, once->sent[link].bytes);
}

/* `SCATTERED`: each link gets its own words; else all get the same. */
template <bool SCATTERED>
PRIM_FN void direct_once_send(const struct direct_run *it, const struct direct_once *once, uint32_t step) {
  DIRECT_EACH_LINK(link) {
    const uint32_t number = direct_once_number(it, DIRECT_SENDS + link, step);
    if (link < once->send_count && direct_has_line(SCATTERED ? once->sent[link].bytes : once->bytes))
      direct_put(direct_once_line(once, once->sent[link].slot_0, number), direct_once_flag(once, number), 0,
                 SCATTERED ? once->words[link] : once->own);
  }
}

/* `adding`: every link's lines belong to the own block. */
PRIM_FN bool direct_once_receive(const struct direct_run *it, struct direct_once *once, uint32_t step,
                                 bool adding) {
  uint64_t lines[DIRECT_ONCE_LINKS];
  uint32_t flags[DIRECT_ONCE_LINKS];
  DIRECT_EACH_LINK(link) {
    const uint32_t number = direct_once_number(it, link, step);
    lines[link] = direct_once_line(once, once->received[link].slot_0, number);
    flags[link] = direct_once_flag(once, number);
  }
  DIRECT_AWAIT({
    DIRECT_EACH_LINK(link)
    if (link < once->recv_count && direct_has_line(adding ? once->bytes : once->received[link].bytes))
      flagged &= direct_take(lines[link], flags[link], 0, &once->words[link]);
  })
  return true;
}

/* ---- sums ---- */

template <uint8_t DTYPE>
PRIM_FN uint64_t direct_once_add(const uint64_t *words, uint32_t others) {
  uint64_t sum = words[0];
#pragma unroll
  for (uint32_t rank = 1; rank <= DIRECT_ONCE_LINKS; rank++)
    if (rank <= others) sum = word_combine(DTYPE, OP_SUM, sum, words[rank]);
  return sum;
}

/* Adds in rank order. */
PRIM_FN void direct_once_sum(struct direct_once *once) {
  uint64_t words[DIRECT_ONCE_LINKS + 1];
#pragma unroll
  for (uint32_t rank = 0; rank <= DIRECT_ONCE_LINKS; rank++) {
    const uint64_t before = rank < DIRECT_ONCE_LINKS ? once->words[rank % DIRECT_ONCE_LINKS] : 0;
    const uint64_t behind = rank > 0 ? once->words[(rank > 0 ? rank : 1) - 1] : 0;
    words[rank] = rank < once->rank ? before : rank == once->rank ? once->own : behind;
  }
  if (once->dtype == TYPE_FLOAT) once->own = direct_once_add<TYPE_FLOAT>(words, once->recv_count);
  else if (once->dtype == TYPE_HALF) once->own = direct_once_add<TYPE_HALF>(words, once->recv_count);
  else once->own = direct_once_add<TYPE_BFLOAT16>(words, once->recv_count);
}

/* ---- warps that move ---- */

/* Called by a warp that moves, when it has read the counters; after all have, the last warp may write
 * them. */
PRIM_FN void direct_counters_read(void) {
  PRIM_BARRIER_ARRIVE(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x));
}

PRIM_FN void direct_await_readers(void) { PRIM_BARRIER_SYNC(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x)); }

/* True if the heads that were read show it already. */
PRIM_FN bool direct_knows_slots(const struct direct_run *it, uint32_t steps) {
  return __all_sync(PRIM_ALL_LANES, !it->sends || !it->keeps || link_knows_slots(&it->link, steps));
}

PRIM_FN void direct_once_keep(const struct direct_once *once) {
  direct_keep(threadIdx.x, once->out, once->bytes, once->own);
}

PRIM_FN void direct_once_collect(const struct direct_run *it, struct direct_once *once) {
  if (!direct_once_receive(it, once, once->adds ? 1 : 0, false)) return;
  DIRECT_EACH_LINK(link)
  direct_keep(threadIdx.x, once->received[link].user, once->received[link].bytes, once->words[link]);
}

PRIM_FN void direct_once_move(struct direct_run *it, bool awaits) {
  struct direct_once once;
  direct_once_prepare(&it->arguments->limits, &once);
  if (awaits) launch_await_previous();
  direct_once_load(&once);
  direct_open(it);
  const uint32_t steps = direct_link_steps(direct_of());
  const bool ready = direct_knows_slots(it, steps);
  direct_counters_read();
  if (!ready && !direct_await_slots(it, true, steps)) return;
  if (once.scatters) direct_once_send<true>(it, &once, 0);
  else if (once.spreads) direct_once_send<false>(it, &once, 0);
  if (once.keeps) direct_once_keep(&once);
  if (once.adds) {
    if (!direct_once_receive(it, &once, 0, true)) return;
    direct_once_sum(&once);
    if (once.sends_sum) direct_once_send<false>(it, &once, 1);
    direct_once_keep(&once);
  }
  if (once.collects) direct_once_collect(it, &once);
}

/* ---- the last warp ---- */

/* Compares the announced sizes with what this rank expects. */
PRIM_FN bool direct_poll_sizes(struct direct_run *it) {
  it->link.agreed = it->sends || !it->keeps;
  while (!__all_sync(PRIM_ALL_LANES, it->link.agreed))
    if (!direct_compare(it) || direct_is_stopped(it)) return false;
  return true;
}

/* For all steps. Not inlined, because it is rare. */
static __device__ __noinline__ void direct_once_clean(const struct direct_run *it) {
  struct direct_run run = *it;
#pragma unroll 1
  for (uint32_t kind = 0; kind < DIRECT_KINDS; kind++) {
    struct step step;
    if (!direct_has(direct_of(), kind)) continue;
    direct_step_at(direct_of(), 0, kind, &step);
    direct_clean(&run, &step);
    if (direct_names(&run, &step)) ll_advance(&run.link);
  }
}

/* Whether a slot of the work's `steps` steps has to be cleaned. */
PRIM_FN bool direct_once_cleans(const struct direct_run *it, uint32_t steps) {
  bool cleans = false;
  for (uint32_t step = 0; step < steps; step++)
    cleans |= line_cleans_at(it->link.line + step, it->arguments->limits.flag_bits, FIFO_SLOTS_MAX);
  return __any_sync(PRIM_ALL_LANES, cleans && it->sends && it->keeps);
}

/* The beginning of the next operation is known, and the fence before the count (direct_end) completes before
 * the lines arrive. */
PRIM_FN void direct_once_accounts(struct direct_run *it, bool awaits) {
  const uint32_t steps = direct_link_steps(direct_of());
  if (awaits) launch_await_previous();
  direct_open(it);
  direct_signal_head(it);
  if (!direct_announce(it)) return;
  direct_await_readers();
  direct_save(it, steps, steps);
  __syncwarp();
  __threadfence();
  if (direct_once_cleans(it, steps) && direct_await_slots(it, true, steps)) direct_once_clean(it);
  if (!direct_poll_sizes(it) || it->arguments->hosted == 0) return;
  it->link.step += steps; /* a proxy waits until all slots of this operation are free */
  while (!direct_others_gone())
    if (direct_is_stopped(it)) return;
  direct_signal_head(it);
}

PRIM_FN void direct_run_once(const struct launch_arguments *arguments, bool awaits) {
  struct direct_run it;
  direct_prepare(&it, arguments);
  if (direct_commits()) {
    direct_once_accounts(&it, awaits);
    return;
  }
  direct_once_move(&it, awaits);
  if (arguments->hosted != 0) direct_leave();
}

#endif
