/* direct_once.h: direct collectives over LL in a single pass: what direct.h does in phases of any length,
 * with one or two lines of each block in a thread's registers throughout. Everything that does not depend on
 * earlier kernels is prepared before they have ended. After that come one round of loads (counters and input
 * together), the stores to the other ranks, the polling of their lines, and the sums or copies. It promises
 * the same results over the same connections. The host knows which works it can run (launch.c) and how many
 * links per side its kernel has (DIRECT_ONCE_LINKS). */
#ifndef TUTTI_KERNELS_DIRECT_ONCE_H
#define TUTTI_KERNELS_DIRECT_ONCE_H

#include "kernels/direct.h"

#define DIRECT_EACH_LINK(link) _Pragma("unroll") for (uint32_t link = 0; link < DIRECT_ONCE_LINKS; link++)

/* The address of a thread's first line in slot 0 of a link, and the block of user memory that the link's
 * lines belong to. */
struct direct_route {
  uint64_t slot_0;
  uint8_t *user;
  uint32_t bytes;
};

struct direct_once {
  struct direct_route sent[DIRECT_ONCE_LINKS], received[DIRECT_ONCE_LINKS];
  const uint8_t *in; /* the own block, and the destination of it or of the sum */
  uint8_t *out;
  uint32_t bytes, slot_bytes, flag_mask;
  uint32_t send_count, recv_count, rank, dtype;
  bool keeps;                        /* the own block is copied to the output */
  uint64_t own;                      /* own values, then the sum */
  uint64_t words[DIRECT_ONCE_LINKS]; /* data to send, then received data */
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

PRIM_FN uint64_t direct_buffer(uint32_t link, bool sends) {
  const struct work *work = direct_of();
  const uint32_t before = sends && work->recv_count > 1 ? work->recv_count - 1u : 0;
  if (link > 0) return (uint64_t)(uintptr_t)direct_further[before + link - 1].link.buffer;
  return (uint64_t)(uintptr_t)(sends ? direct_work.send.buffer : direct_work.recv.buffer);
}

PRIM_FN struct direct_route direct_route_of(const struct direct_run *it, const struct direct_loop *loop,
                                            uint32_t link, bool sends) {
  const struct work *work = direct_of();
  const bool whole = sends ? it->spreads : work->func == FUNC_BROADCAST;
  struct direct_route route = {0, 0, 0};
  if (link >= (sends ? work->send_count : work->recv_count)) return route;
  const struct direct_block block = direct_block_of(loop, direct_peer_of(link), whole);
  route.slot_0 = direct_buffer(link, sends) + it->thread * 16;
  route.user = sends ? (uint8_t *)(uintptr_t)direct_in(&block) : direct_out(&block);
  route.bytes = block.bytes;
  direct_pin(route.slot_0);
  direct_pin(route.user);
  direct_pin(route.bytes);
  return route;
}

/* The own block: an operand of the sum, sent to all, or copied. */
PRIM_FN void direct_once_own(const struct direct_run *it, const struct direct_loop *loop,
                             struct direct_once *once) {
  const struct work *work = direct_of();
  const bool in_whole = !it->copies && work->func != FUNC_REDUCE_SCATTER;
  const bool out_whole = !it->copies && work->func != FUNC_ALL_GATHER;
  const struct direct_block from = direct_block_of(loop, work->rank, in_whole);
  const struct direct_block to = direct_block_of(loop, work->rank, out_whole);
  once->in = direct_in(&from);
  once->out = direct_out(&to);
  once->bytes = it->adds || it->spreads || it->copies ? from.bytes : 0;
  once->keeps = it->copies || (it->spreads && !it->adds && (work->flags & WORK_IN_PLACE) == 0);
  direct_pin(once->in);
  direct_pin(once->out);
  direct_pin(once->bytes);
}

PRIM_FN void direct_once_prepare(const struct direct_run *it, struct direct_once *once) {
  const struct work *work = direct_of();
  const struct direct_loop loop = direct_loop_at(0);
  const uint32_t flag_bits = it->arguments->limits.flag_bits;
  DIRECT_EACH_LINK(link) {
    once->sent[link] = direct_route_of(it, &loop, link, true);
    once->received[link] = direct_route_of(it, &loop, link, false);
  }
  direct_once_own(it, &loop, once);
  once->slot_bytes = it->arguments->limits.step_bytes[PROTO_LL];
  once->flag_mask = flag_bits >= 32 ? UINT32_MAX : (1u << flag_bits) - 1;
  once->send_count = work->send_count;
  once->recv_count = work->recv_count;
  once->rank = work->rank;
  once->dtype = work->dtype;
  direct_pin(once->slot_bytes);
  direct_pin(once->flag_mask);
  direct_pin(once->send_count);
  direct_pin(once->recv_count);
  direct_pin(once->rank);
  direct_pin(once->dtype);
}

/* ---- LL ---- */

/* True if this thread has a line in a block of `bytes`. */
PRIM_FN bool direct_has_line(const struct direct_run *it, uint32_t bytes) { return it->thread * 8 < bytes; }

/* A step's slot and flag, from the line number of its link. */
PRIM_FN struct direct_place direct_once_place(const struct direct_once *once, uint64_t slot_0,
                                              uint32_t line) {
  const struct direct_place place = {slot_0 + line % DIRECT_SLOTS * once->slot_bytes,
                                     (line + 1) & once->flag_mask};
  return place;
}

PRIM_FN uint64_t direct_once_word(const struct direct_run *it, const uint8_t *from, uint32_t bytes) {
  const uint32_t offset = it->thread * 8;
  const bool lies = offset < bytes, whole = lies && ((uintptr_t)from & 7) == 0 && bytes - offset >= 8;
  uint64_t word = prim_load_word_if(whole, from + offset);
  if (lies && !whole) word = word_load(from + offset, bytes - offset);
  return word;
}

PRIM_FN void direct_once_load(const struct direct_run *it, struct direct_once *once) {
  once->own = direct_once_word(it, once->in, once->bytes);
  if (!it->scatters) return;
  DIRECT_EACH_LINK(link)
  once->words[link] = direct_once_word(it, once->sent[link].user, once->sent[link].bytes);
}

/* `SCATTERED`: each link gets its own words; else all get the same. */
template <bool SCATTERED>
PRIM_FN void direct_once_send(const struct direct_run *it, const struct direct_once *once, uint32_t step) {
  DIRECT_EACH_LINK(link) {
    const uint32_t line = __shfl_sync(PRIM_ALL_LANES, (uint32_t)it->line, (int)(DIRECT_SENDS + link)) + step;
    const struct direct_place place = direct_once_place(once, once->sent[link].slot_0, line);
    if (link < once->send_count && direct_has_line(it, SCATTERED ? once->sent[link].bytes : once->bytes))
      direct_put(&place, 0, SCATTERED ? once->words[link] : once->own);
  }
}

/* Like direct_clean(). */
PRIM_FN void direct_once_clean(const struct direct_run *it, const struct direct_once *once) {
  if (!__any_sync(PRIM_ALL_LANES, direct_is_near(it))) return;
#pragma unroll 1
  for (uint32_t link = 0; link < once->send_count; link++) {
    const uint32_t line = __shfl_sync(PRIM_ALL_LANES, (uint32_t)it->line, (int)(DIRECT_SENDS + link));
    const uint64_t slot_0 = direct_buffer(link, true);
    const struct direct_place first = direct_once_place(once, slot_0, line),
                              second = direct_once_place(once, slot_0, line + 1);
    const struct direct_loop loop = direct_loop_at(0);
    const struct direct_block block = direct_block_of(&loop, direct_peer_of(link), it->spreads);
    direct_clean_slot(it, &first, block.bytes);
    if (it->send_steps == 2) direct_clean_slot(it, &second, once->bytes);
  }
}

/* `adding`: every link's lines belong to the own block. */
PRIM_FN bool direct_once_receive(struct direct_run *it, struct direct_once *once, uint32_t step,
                                 bool adding) {
  struct direct_place places[DIRECT_ONCE_LINKS];
  DIRECT_EACH_LINK(link) {
    const uint32_t line = __shfl_sync(PRIM_ALL_LANES, (uint32_t)it->line, (int)link) + step;
    places[link] = direct_once_place(once, once->received[link].slot_0, line);
  }
  DIRECT_AWAIT(it, {
    DIRECT_EACH_LINK(link)
    if (link < once->recv_count && direct_has_line(it, adding ? once->bytes : once->received[link].bytes))
      flagged &= direct_take(&places[link], 0, &once->words[link]);
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

/* ---- the work ---- */

PRIM_FN void direct_once_keep(const struct direct_run *it, const struct direct_once *once) {
  direct_keep(it->thread, once->out, once->bytes, once->own);
}

PRIM_FN void direct_once_collect(struct direct_run *it, struct direct_once *once) {
  if (!direct_once_receive(it, once, it->recv_steps - 1, false)) return;
  DIRECT_EACH_LINK(link)
  direct_keep(it->thread, once->received[link].user, once->received[link].bytes, once->words[link]);
}

PRIM_FN void direct_work_once(struct direct_run *it, bool awaits) {
  struct direct_once once;
  direct_once_prepare(it, &once);
  if (awaits) launch_await_previous();
  direct_once_load(it, &once);
  direct_read_counters(it);
  const bool ready = direct_has_slots(it, it->position + it->send_steps);
  direct_counters_read();
  if (!ready && !direct_await_slots(it, it->position + it->send_steps)) return;
  if (it->scatters) direct_once_send<true>(it, &once, 0);
  else if (it->spreads) direct_once_send<false>(it, &once, 0);
  direct_once_clean(it, &once);
  if (once.keeps) direct_once_keep(it, &once);
  if (it->adds) {
    if (!direct_once_receive(it, &once, 0, true)) return;
    direct_once_sum(&once);
    if (it->sends_sum) direct_once_send<false>(it, &once, 1);
    direct_once_keep(it, &once);
  }
  if (it->collects) direct_once_collect(it, &once);
}

#endif
