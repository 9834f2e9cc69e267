/* exchange_simple.h: the program of a block whose works are all direct exchanges in Simple, behind exchange.h
 * and like it by phases over all links at once. The first warp, the scout, waits for slots, counters and
 * offers and writes down what a phase of a loop moves; the last one, the poster, announces and compares
 * sizes, makes offers, fences, tells counters and saves them; those between carry phases out:
 *
 *   move    every link its own block of the input; every link's block to the output, where it is not there
 * yet spread  the same to every link add     what all links brought and the own values; two shots store it
 * into all outputs
 *
 * The first phase of the next loop goes before the sums of this one, so that the links carry data while
 * counters are on their way. Steps are still told in their order: what the next loop's first phase wrote is
 * told behind this loop's sums. It promises what schedule/direct.h's steps do over the same connections, to
 * the bit and to the counter: they must change together. It needs FIFO_SLOTS_MAX slots. */
#ifndef TUTTI_KERNELS_EXCHANGE_SIMPLE_H
#define TUTTI_KERNELS_EXCHANGE_SIMPLE_H

#include "kernels/exchange.h"

#include "backends/cuda/worker.h"

/* Vectors that a thread has in flight: of each of four links or sources, or of one source. */
#define EXCHANGE_GROUP 4u
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900 /* whose code takes more registers beside */
#define EXCHANGE_VECTORS 1
#define EXCHANGE_SPREAD_VECTORS 1
#else
#define EXCHANGE_VECTORS 2
#define EXCHANGE_SPREAD_VECTORS 3
#endif
#define EXCHANGE_PHASES 4u /* that the scout may be ahead of the slowest worker */

enum exchange_phase_kind { EXCHANGE_MOVE, EXCHANGE_SPREAD, EXCHANGE_ADD };

/* A phase of a loop, with all its addresses. */
struct exchange_phase {
  /* Of a move, link by link, what is moved; of a sum its sources, the own values too, by rank. */
  uint64_t from[EXCHANGE_LINKS + 1];
  uint64_t to[EXCHANGE_LINKS + 1]; /* where a link's block goes: a slot, or an output */
  uint32_t bytes[EXCHANGE_LINKS + 1];
  const uint8_t *in; /* the own values, but of a sum, and their place in the own output; 0: none */
  uint8_t *out;
  uint32_t own_bytes, most_bytes; /* of a link at most */
  uint32_t links;                 /* that take part */
  uint32_t kind;                  /* enum exchange_phase_kind */
  uint32_t whole;                 /* whole vectors of copies and plain sums, up to the last bytes */
  uint32_t sends;                 /* of a sum: it goes to all links */
  uint32_t told, freed;           /* steps of every send, and receive link that this phase ends */
};

__shared__ struct exchange_phase exchange_phases[EXCHANGE_PHASES];
__shared__ struct prim_order
    exchange_orders[PRIM_WARPS_MAX]; /* one a warp: spans that are not whole vectors */

PRIM_FN uint32_t exchange_workers(void) { return blockDim.x / PRIM_WARP - 2; }

/* Phases that all workers have behind them; `seen`: and the poster too. */
PRIM_FN uint32_t exchange_phases_done(bool seen) {
  uint32_t done = UINT32_MAX;
  if (prim_lane() < exchange_workers() + (seen ? 1 : 0))
    done = *(volatile uint32_t *)&exchange_done[1 + prim_lane()];
  return __reduce_min_sync(PRIM_ALL_LANES, done);
}

/* ---- workers: whole vectors ---- */

struct exchange_share_of {
  uint32_t index, count; /* this thread among those that move */
};

/* Vector number `at` behind an address of the phase, which is asked for each time: those of all links would
 * fill the registers. */
PRIM_FN uint8_t *exchange_vector(const uint64_t *base, uint32_t at) {
  return (uint8_t *)(uintptr_t)(*(const volatile uint64_t *)base + (uint64_t)at * 16);
}

/* Four links at a time: their loads leave, some vectors of a thread of each, before the first store. */
PRIM_FN void exchange_move_vectors(const struct exchange_phase *phase, struct exchange_share_of worker,
                                   uint32_t link) {
  const uint32_t most = phase->most_bytes / 16;
#pragma unroll 1
  for (uint32_t first = worker.index; first < most; first += EXCHANGE_VECTORS * worker.count) {
    ulonglong2 vectors[EXCHANGE_GROUP][EXCHANGE_VECTORS];
#pragma unroll
    for (uint32_t k = 0; k < EXCHANGE_GROUP; k++)
#pragma unroll
      for (uint32_t v = 0; v < EXCHANGE_VECTORS; v++) {
        const uint32_t at = first + v * worker.count;
        if (at < phase->bytes[link + k] / 16)
          vectors[k][v] = prim_load_pair(exchange_vector(&phase->from[link + k], at));
      }
#pragma unroll
    for (uint32_t k = 0; k < EXCHANGE_GROUP; k++)
#pragma unroll
      for (uint32_t v = 0; v < EXCHANGE_VECTORS; v++) {
        const uint32_t at = first + v * worker.count;
        if (at < phase->bytes[link + k] / 16)
          prim_store_vector(exchange_vector(&phase->to[link + k], at), vectors[k][v]);
      }
  }
}

PRIM_FN void exchange_spread_vectors(const struct exchange_phase *phase, struct exchange_share_of worker) {
  const uint32_t count = phase->own_bytes / 16, targets = phase->links + (phase->out != 0 ? 1 : 0);
#pragma unroll 1
  for (uint32_t first = worker.index; first < count; first += EXCHANGE_SPREAD_VECTORS * worker.count) {
    ulonglong2 vectors[EXCHANGE_SPREAD_VECTORS];
#pragma unroll
    for (uint32_t v = 0; v < EXCHANGE_SPREAD_VECTORS; v++) {
      const uint32_t at = first + v * worker.count;
      if (at < count) vectors[v] = prim_load_pair(phase->in + (size_t)at * 16);
    }
#pragma unroll 1
    for (uint32_t link = 0; link < targets; link++) {
      uint8_t *to = link < phase->links ? exchange_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
      for (uint32_t v = 0; v < EXCHANGE_SPREAD_VECTORS; v++) {
        const uint32_t at = first + v * worker.count;
        if (at < count) prim_store_vector(to + (size_t)at * 16, vectors[v]);
      }
    }
  }
}

PRIM_FN ulonglong2 exchange_add_vector(const struct work *work, ulonglong2 sum, ulonglong2 vector) {
  sum.x = exchange_add<true>(work, sum.x, vector.x);
  sum.y = exchange_add<true>(work, sum.y, vector.y);
  return sum;
}

/* Four sources at a time: their loads leave before the first is added. */
PRIM_FN void exchange_add_vectors(const struct exchange_phase *phase, struct exchange_share_of worker) {
  const struct work *work = exchange_of();
  const uint32_t count = phase->own_bytes / 16, targets = phase->sends ? phase->links : 0;
#pragma unroll 1
  for (uint32_t first = worker.index; first < count; first += EXCHANGE_VECTORS * worker.count) {
    ulonglong2 sums[EXCHANGE_VECTORS];
#pragma unroll 1
    for (uint32_t source = 0; source <= phase->links; source += EXCHANGE_GROUP) {
      ulonglong2 vectors[EXCHANGE_GROUP][EXCHANGE_VECTORS];
#pragma unroll
      for (uint32_t k = 0; k < EXCHANGE_GROUP; k++)
#pragma unroll
        for (uint32_t v = 0; v < EXCHANGE_VECTORS; v++) {
          const uint32_t at = first + v * worker.count;
          if (source + k <= phase->links && at < count)
            vectors[k][v] = prim_load_pair(exchange_vector(&phase->from[source + k], at));
        }
#pragma unroll
      for (uint32_t k = 0; k < EXCHANGE_GROUP; k++)
#pragma unroll
        for (uint32_t v = 0; v < EXCHANGE_VECTORS; v++)
          if (source + k == 0) sums[v] = vectors[k][v];
          else if (source + k <= phase->links) sums[v] = exchange_add_vector(work, sums[v], vectors[k][v]);
    }
#pragma unroll 1
    for (uint32_t link = 0; link <= targets; link++) {
      uint8_t *to = link < targets ? exchange_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
      for (uint32_t v = 0; v < EXCHANGE_VECTORS; v++) {
        const uint32_t at = first + v * worker.count;
        if (at < count) prim_store_vector(to + (size_t)at * 16, sums[v]);
      }
    }
  }
}

/* ---- workers: spans of any type, operator and place ---- */

/* The warp's order, for its thread 0 to fill in; exchange_carry() follows. */
PRIM_FN struct prim_order *exchange_order(void) {
  __syncwarp();
  return &exchange_orders[exchange_warp()];
}

PRIM_FN void exchange_order_begin(struct prim_order *order, uint32_t bytes) {
  const struct work *work = exchange_of();
  order->kind = PRIM_SPAN;
  order->dtype = work->dtype;
  order->op = work->op;
  order->op_arg = work->op_arg;
  order->flags = 0;
  order->own_index = order->second_count = order->other_count = 0;
  order->count = bytes / work->element_bytes;
}

/* Called, not inlined: it has a case for each type and operator, and what is fast does not come here. */
static __device__ __noinline__ void exchange_carry(void) {
  struct worker worker; /* spans ask for nothing else of it */
  worker.index = threadIdx.x - PRIM_WARP;
  worker.count = exchange_workers() * PRIM_WARP;
  __syncwarp();
  worker_span(&worker, &exchange_orders[exchange_warp()], false);
}

/* One span from one place to another; the own values that an operator scales are scaled on their way out. */
PRIM_FN void exchange_carry_copy(const uint8_t *from, uint8_t *to, uint32_t bytes, bool own) {
  if (bytes == 0) return;
  struct prim_order *order = exchange_order();
  if (prim_lane() == 0) {
    exchange_order_begin(order, bytes);
    order->first = from;
    order->out = to;
    if (own && order->op == OP_PRE_MUL_SUM) order->flags = PRIM_SCALES;
  }
  exchange_carry();
}

/* What is left of a phase behind its whole vectors, link by link. */
PRIM_FN void exchange_move_rest(const struct exchange_phase *phase) {
#pragma unroll 1
  for (uint32_t link = 0; link < phase->links; link++) {
    const uint32_t skip = phase->whole ? phase->bytes[link] / 16 * 16 : 0;
    exchange_carry_copy((const uint8_t *)(uintptr_t)phase->from[link] + skip,
                        (uint8_t *)(uintptr_t)phase->to[link] + skip, phase->bytes[link] - skip,
                        phase->sends);
  }
  exchange_carry_copy(phase->in, phase->out, phase->own_bytes, false);
}

PRIM_FN void exchange_spread_rest(const struct exchange_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
#pragma unroll 1
  for (uint32_t link = 0; link < phase->links; link++)
    exchange_carry_copy(phase->in + skip, (uint8_t *)(uintptr_t)phase->to[link] + skip,
                        phase->own_bytes - skip, true);
  if (phase->out != 0)
    exchange_carry_copy(phase->in + skip, phase->out + skip, phase->own_bytes - skip, false);
}

PRIM_FN void exchange_add_rest(const struct exchange_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
  if (skip == phase->own_bytes) return;
  struct prim_order *order = exchange_order();
  if (prim_lane() == 0) {
    exchange_order_begin(order, phase->own_bytes - skip);
    order->own_index = exchange_of()->rank;
    order->flags = order->op == OP_PRE_MUL_SUM    ? PRIM_SCALES
                   : order->op == OP_SUM_POST_DIV ? PRIM_DIVIDES
                                                  : 0;
    order->first = (const uint8_t *)(uintptr_t)phase->from[0] + skip;
    for (uint32_t source = 1; source <= phase->links; source++)
      order->second[order->second_count++] = (const uint8_t *)(uintptr_t)phase->from[source] + skip;
    order->out = phase->out + skip;
    for (uint32_t link = 0; link < phase->links && phase->sends; link++)
      order->other[order->other_count++] = (uint8_t *)(uintptr_t)phase->to[link] + skip;
  }
  exchange_carry();
}

PRIM_FN void exchange_run_phase(const struct exchange_phase *phase, struct exchange_share_of worker) {
  switch (phase->kind) {
    case EXCHANGE_MOVE:
#pragma unroll 1
      for (uint32_t link = 0; phase->whole && link < phase->links; link += EXCHANGE_GROUP)
        exchange_move_vectors(phase, worker, link);
      exchange_move_rest(phase);
      break;
    case EXCHANGE_SPREAD:
      if (phase->whole) exchange_spread_vectors(phase, worker);
      exchange_spread_rest(phase);
      break;
    default:
      if (phase->whole) exchange_add_vectors(phase, worker);
      exchange_add_rest(phase);
      break;
  }
}

PRIM_FN void exchange_carry_phases(bool awaits) {
  const struct exchange_share_of worker = {threadIdx.x - PRIM_WARP, exchange_workers() * PRIM_WARP};
  if (awaits) launch_await_previous();
  for (uint32_t number = 0;; number++) {
    while (!__all_sync(PRIM_ALL_LANES, *(volatile uint32_t *)&exchange_issued > number)) {
      const bool ended = *(volatile uint32_t *)&exchange_ended == number + 1;
      if (__any_sync(PRIM_ALL_LANES, ended || *(volatile uint32_t *)&exchange_stopped != 0)) return;
    }
    const struct exchange_phase *phase = &exchange_phases[number % EXCHANGE_PHASES];
    exchange_run_phase(phase, worker);
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&exchange_done[exchange_warp()] = number + 1;
  }
}

/* ---- scout ---- */

/* What is added to the address that this thread's link shows: of a receive link the output's, of a send link
 * the input's. They lie behind the work's further links. */
PRIM_FN uint64_t exchange_shift(const struct exchange *it) {
  const struct work *work = exchange_of();
  const uint32_t links = exchange_before(true) + (work->send_count > 1 ? work->send_count - 1u : 0);
  const uint32_t before = it->sends && (work->flags & WORK_DIRECT_RECV) != 0 ? work->recv_count : 0;
  if (!it->keeps || (work->flags & (it->sends ? WORK_SHOWS_INPUT : WORK_DIRECT_RECV)) == 0)
    return LAUNCH_HIDDEN;
  if (!work_has_further(work)) return exchange_work.further;
  return ((const uint64_t *)&exchange_further[links])[before + prim_lane() % EXCHANGE_SENDS];
}

struct exchange_sum_place {
  uint64_t own; /* address of the own values */
  uint8_t *out;
  size_t from_offset_bytes, to_offset_bytes; /* in every rank's input, in every rank's output */
  uint32_t bytes;
};

struct exchange_scout {
  struct exchange_sum_place sum; /* the next one */
  uint64_t direct;               /* the receiver's output, the sender's input; 0: slots */
  uint64_t tail;                 /* receive link: as it was seen last */
  uint32_t issued;               /* phases */
  bool taken;                    /* what the other ranks show was */
  bool shows;                    /* send link: the receiver reads the own input, or there is none */
  bool lands;                    /* final values come straight into the own output */
  bool plain;                    /* sums that networks are trained with */
  uint32_t loops, told, freed;
};

PRIM_FN bool exchange_lands(void) {
  const struct work *work = exchange_of();
  return (work->flags & WORK_DIRECT_RECV) != 0 && (work->flags & WORK_OUTPUT_HIDDEN) == 0 &&
         exchange_work.buffers.out != 0;
}

PRIM_FN size_t exchange_loop_elements(void) {
  return exchange_of()->chunk_count * direct_loop_chunks(exchange_of());
}

PRIM_FN uint32_t exchange_loops(void) {
  return (uint32_t)((exchange_of()->part_count + exchange_loop_elements() - 1) / exchange_loop_elements());
}

/* Scout and poster know the counters: the poster may write them. Only these two look at what earlier kernels
 * wrote before a phase is there. */
PRIM_FN void exchange_both_read(bool waits) {
  if (waits) PRIM_BARRIER_SYNC(EXCHANGE_READ_BARRIER, PRIM_CONSTANT(2 * PRIM_WARP));
  else PRIM_BARRIER_ARRIVE(EXCHANGE_READ_BARRIER, PRIM_CONSTANT(2 * PRIM_WARP));
}

/* Every receive link has brought so many steps of the operation; `read`: but those whose input is read. */
PRIM_FN bool exchange_await_steps(struct exchange *it, struct exchange_scout *scout, uint32_t steps,
                                  bool read) {
  const bool asks = !it->sends && it->keeps && (!read || scout->direct == 0);
  while (!__all_sync(PRIM_ALL_LANES, !asks || scout->tail >= it->position + steps)) {
    if (asks) scout->tail = prim_load_word(&it->receiver->tail);
    if (exchange_is_stopped(it)) return false;
  }
  return true;
}

/* What this thread's link may show: the receiver its output, the sender its input. */
PRIM_FN bool exchange_is_shown(const struct exchange *it) {
  const uint32_t flag = it->sends ? WORK_DIRECT_SEND : WORK_SHOWS_INPUT;
  return it->keeps && (exchange_of()->flags & flag) != 0;
}

/* Outputs of all receivers and inputs of all senders, where they show them: that says too that they have
 * begun. A wrong size ends here: the poster says so. */
PRIM_FN bool exchange_take_shown(struct exchange *it, struct exchange_scout *scout) {
  const bool asks = exchange_is_shown(it);
  const uint32_t tag = (uint32_t)it->position + 1;
  uint64_t bytes = exchange_agreed_bytes();
  bool there = !asks;
  if (scout->taken) return true;
  while (!__all_sync(PRIM_ALL_LANES, there)) {
    if (!there && it->sends)
      there = prim_cell_read(&it->sender->offer, tag, &scout->direct) &
              prim_cell_read(&it->sender->offer_bytes, tag, &bytes);
    else if (!there)
      there = prim_cell_read(&it->receiver->source, tag, &scout->direct) &
              prim_cell_read(exchange_cell(it), tag, &bytes);
    if (exchange_is_stopped(it)) return false;
  }
  scout->taken = true;
  while (__any_sync(PRIM_ALL_LANES, asks && bytes != exchange_agreed_bytes()))
    if (exchange_is_stopped(it)) return false;
  return true;
}

PRIM_FN uint64_t exchange_slot(const struct exchange *it, uint32_t step) {
  const uint32_t slot = (uint32_t)(it->position + step) % EXCHANGE_SLOTS;
  return (uint64_t)(uintptr_t)it->buffer + (uint64_t)slot * it->arguments->limits.step_bytes[PROTO_SIMPLE];
}

/* Where step `step` of a send link goes: the own block's place in the receiver's output, or a slot. */
PRIM_FN uint64_t exchange_target(const struct exchange *it, const struct exchange_scout *scout,
                                 const struct exchange_loop *loop, uint32_t step, bool final) {
  const struct work *work = exchange_of();
  const struct exchange_block block = exchange_block_of(loop, work->rank, work->func == FUNC_BROADCAST);
  if (final && scout->direct != 0) return scout->direct + block.offset_bytes;
  return exchange_slot(it, step);
}

/* The next phase's place, once workers and poster are done with what was there. */
PRIM_FN struct exchange_phase *exchange_phase_begin(struct exchange *it, struct exchange_scout *scout,
                                                    uint32_t kind, uint32_t links) {
  while (scout->issued >= EXCHANGE_PHASES && exchange_phases_done(true) <= scout->issued - EXCHANGE_PHASES)
    if (exchange_is_stopped(it)) return 0;
  struct exchange_phase *phase = &exchange_phases[scout->issued % EXCHANGE_PHASES];
  if (prim_lane() <= EXCHANGE_LINKS) phase->bytes[prim_lane()] = 0;
  if (prim_lane() == 0) {
    phase->kind = kind;
    phase->links = links;
    phase->in = 0;
    phase->out = 0;
    phase->own_bytes = phase->most_bytes = phase->sends = 0;
  }
  __syncwarp();
  return phase;
}

/* `places`: the addresses that this thread wrote down, one upon the other; `plain`: nothing but copies and
 * plain sums. */
PRIM_FN void exchange_phase_issue(struct exchange_scout *scout, struct exchange_phase *phase, uint64_t places,
                                  bool plain) {
  const bool whole = __all_sync(PRIM_ALL_LANES, (places & 15) == 0) != 0 && plain;
  scout->issued += 1;
  if (prim_lane() == 0) {
    phase->whole = whole;
    phase->told = scout->told;
    phase->freed = scout->freed;
  }
  __threadfence_block();
  __syncwarp();
  if (prim_lane() == 0) *(volatile uint32_t *)&exchange_issued = scout->issued;
  __syncwarp();
}

/* Every link its own block of the input. */
PRIM_FN bool exchange_order_scatter(struct exchange *it, struct exchange_scout *scout,
                                    const struct exchange_loop *loop, uint32_t index) {
  const struct work *work = exchange_of();
  const uint32_t link = prim_lane() % EXCHANGE_SENDS;
  struct exchange_phase *phase = exchange_phase_begin(it, scout, EXCHANGE_MOVE, work->send_count);
  uint64_t places = 0;
  if (phase == 0) return false;
  if (it->keeps && it->sends) {
    const struct exchange_block block = exchange_block_of(loop, exchange_peer(link), false);
    phase->from[link] = (uint64_t)(uintptr_t)exchange_in(&block);
    phase->to[link] = exchange_target(it, scout, loop, index * it->send_steps, !it->adds);
    phase->bytes[link] = scout->shows ? 0 : block.bytes;
    places = phase->from[link] | phase->to[link];
  }
  if (prim_lane() == 0) {
    phase->most_bytes = (uint32_t)(loop->chunk * work->element_bytes);
    phase->sends = 1;
    if (it->copies) {
      const struct exchange_block own = exchange_block_of(loop, work->rank, false);
      phase->in = exchange_in(&own);
      phase->out = exchange_out(&own);
      phase->own_bytes = own.bytes;
    }
  }
  exchange_phase_issue(scout, phase, places, work->op != OP_PRE_MUL_SUM);
  return true;
}

/* The same to every link; the own output too, where the operation has it there. */
PRIM_FN bool exchange_order_spread(struct exchange *it, struct exchange_scout *scout,
                                   const struct exchange_loop *loop, uint32_t index) {
  const struct work *work = exchange_of();
  const uint32_t link = prim_lane() % EXCHANGE_SENDS;
  const bool keeps = work->func != FUNC_ALL_REDUCE && (work->flags & WORK_IN_PLACE) == 0;
  struct exchange_phase *phase = exchange_phase_begin(it, scout, EXCHANGE_SPREAD, work->send_count);
  uint64_t places = 0;
  if (phase == 0) return false;
  if (it->keeps && it->sends) {
    phase->to[link] = exchange_target(it, scout, loop, index * it->send_steps, !it->adds);
    places = phase->to[link];
  }
  if (prim_lane() == 0) {
    const struct exchange_block from = exchange_block_of(loop, 0, true);
    const struct exchange_block to = exchange_block_of(loop, work->rank, work->func != FUNC_ALL_GATHER);
    phase->in = exchange_in(&from);
    if (keeps) phase->out = exchange_out(&to);
    phase->own_bytes = from.bytes;
    places |= (uint64_t)(uintptr_t)phase->in | (uint64_t)(uintptr_t)phase->out;
  }
  exchange_phase_issue(scout, phase, places, work->op != OP_PRE_MUL_SUM);
  return true;
}

/* Every link's block to the output, where it did not come there itself. */
PRIM_FN bool exchange_order_collect(struct exchange *it, struct exchange_scout *scout,
                                    const struct exchange_loop *loop, uint32_t index) {
  const struct work *work = exchange_of();
  const uint32_t link = prim_lane() % EXCHANGE_SENDS;
  struct exchange_phase *phase = exchange_phase_begin(it, scout, EXCHANGE_MOVE, work->recv_count);
  uint64_t places = 0;
  if (phase == 0) return false;
  if (it->keeps && !it->sends) {
    const struct exchange_block block =
        exchange_block_of(loop, exchange_peer(link), work->func == FUNC_BROADCAST);
    phase->from[link] = exchange_slot(it, index * it->recv_steps + it->recv_steps - 1);
    phase->to[link] = (uint64_t)(uintptr_t)exchange_out(&block);
    phase->bytes[link] = block.bytes;
    places = phase->to[link];
  }
  if (prim_lane() == 0) phase->most_bytes = (uint32_t)(loop->chunk * work->element_bytes);
  exchange_phase_issue(scout, phase, places, true);
  return true;
}

/* ---- scout: phases in their order, each when what it needs is there ---- */

PRIM_FN bool exchange_scout_first(struct exchange *it, struct exchange_scout *scout, uint32_t index) {
  if (it->send_steps == 0) return true;
  if (!it->adds && !exchange_take_shown(it, scout)) return false;
  if (!exchange_await_slots(it, it->position + index * it->send_steps + 1)) return false;
  /* Behind the sums of the loop before, which come later. */
  if (!it->sends_sum || index == 0) scout->told += 1;
  if (__all_sync(PRIM_ALL_LANES, scout->shows)) return true;
  const struct exchange_loop loop = exchange_loop_at(index * exchange_loop_elements());
  return it->scatters ? exchange_order_scatter(it, scout, &loop, index)
                      : exchange_order_spread(it, scout, &loop, index);
}

/* Where the values of a loop's sum lie: as far as the ranks' memory goes, all that there is to know of them.
 */
PRIM_FN struct exchange_sum_place exchange_sum_at(uint32_t index) {
  const struct work *work = exchange_of();
  const struct exchange_loop loop = exchange_loop_at(index * exchange_loop_elements());
  const struct exchange_block to = exchange_block_of(&loop, work->rank, true);
  const struct exchange_block from =
      work->func == FUNC_REDUCE_SCATTER ? exchange_block_of(&loop, work->rank, false) : to;
  struct exchange_sum_place sum;
  sum.own = (uint64_t)(uintptr_t)exchange_in(&from);
  sum.out = exchange_out(&to);
  sum.from_offset_bytes = from.offset_bytes;
  sum.to_offset_bytes = to.offset_bytes;
  sum.bytes = from.bytes;
  return sum;
}

/* What a sum may wait for: what other ranks show, slots, and steps of those that show nothing. */
PRIM_FN bool exchange_await_sources(struct exchange *it, struct exchange_scout *scout, uint32_t index) {
  if (!exchange_take_shown(it, scout)) return false;
  if (it->sends_sum && !exchange_await_slots(it, it->position + index * it->send_steps + 2)) return false;
  return exchange_await_steps(it, scout, index * it->recv_steps + 1, true);
}

/* What needs no other rank was found out before. */
PRIM_FN bool exchange_scout_add(struct exchange *it, struct exchange_scout *scout, uint32_t index) {
  const struct work *work = exchange_of();
  const struct exchange_sum_place sum = scout->sum;
  const uint32_t link = prim_lane() % EXCHANGE_SENDS, source = link < work->rank ? link : link + 1;
  const bool brings = it->keeps && !it->sends, takes = it->keeps && it->sends && it->sends_sum;
  if (it->sends_sum) scout->told += index + 1 < scout->loops ? 2 : 1;
  /* Final values of the loop before need no slot, or are collected later. */
  if (scout->lands || !it->collects || index == 0) scout->freed = index * it->recv_steps + 1;
  /* In one shot and in place the sum goes where the block may still read values to send. */
  while (it->spreads && (work->flags & WORK_IN_PLACE) != 0 && exchange_phases_done(false) < scout->issued)
    if (exchange_is_stopped(it)) return false;
  if (!exchange_await_sources(it, scout, index)) return false;
  struct exchange_phase *phase = exchange_phase_begin(it, scout, EXCHANGE_ADD, work->recv_count);
  if (phase == 0) return false;
  uint64_t place = scout->direct + (it->sends ? sum.to_offset_bytes : sum.from_offset_bytes);
  if (scout->direct == 0)
    place = exchange_slot(it, it->sends ? index * it->send_steps + 1 : index * it->recv_steps);
  if (brings) phase->from[source] = place;
  if (takes) phase->to[link] = place;
  if (prim_lane() == 0) {
    phase->from[work->rank] = sum.own;
    phase->out = sum.out;
    phase->own_bytes = sum.bytes;
    phase->sends = it->sends_sum;
  }
  exchange_phase_issue(scout, phase, (brings || takes ? place : 0) | sum.own | (uint64_t)(uintptr_t)sum.out,
                       scout->plain);
  if (index + 1 < scout->loops) scout->sum = exchange_sum_at(index + 1);
  return true;
}

PRIM_FN bool exchange_scout_collect(struct exchange *it, struct exchange_scout *scout, uint32_t index) {
  const struct exchange_loop loop = exchange_loop_at(index * exchange_loop_elements());
  const uint32_t steps = (index + 1) * it->recv_steps;
  if (!exchange_await_steps(it, scout, steps, false)) return false;
  /* The sums of the next loop were read before. */
  if (steps > scout->freed) scout->freed = steps + (it->adds && index + 1 < scout->loops ? 1 : 0);
  return scout->lands || exchange_order_collect(it, scout, &loop, index);
}

PRIM_FN void exchange_scout_begin(const struct exchange *it, struct exchange_scout *scout) {
  scout->direct = scout->tail = 0;
  scout->issued = scout->told = scout->freed = 0;
  scout->loops = exchange_loops();
  scout->taken = (exchange_of()->flags & (WORK_DIRECT_SEND | WORK_SHOWS_INPUT)) == 0;
  scout->lands = exchange_lands();
  scout->plain = exchange_is_plain();
  if (it->adds) scout->sum = exchange_sum_at(0);
  scout->shows = !it->sends || !it->keeps || exchange_shift(it) != LAUNCH_HIDDEN;
}

PRIM_FN void exchange_scout_turns(struct exchange *it, bool awaits) {
  struct exchange_scout scout;
  exchange_scout_begin(it, &scout);
  if (awaits) launch_await_previous();
  exchange_read_counters(it);
  exchange_both_read(false);
  const uint32_t loops = scout.loops, lag = it->adds ? 1 : scout.lands ? 2 : 0;
  for (uint32_t turn = 0; turn <= loops + lag; turn++) {
    if (turn < loops && !exchange_scout_first(it, &scout, turn)) return;
    if (it->adds && turn >= 1 && turn <= loops && !exchange_scout_add(it, &scout, turn - 1)) return;
    if (it->collects && turn > lag && !exchange_scout_collect(it, &scout, turn - lag - 1)) return;
  }
  if (prim_lane() == 0) *(volatile uint32_t *)&exchange_ended = scout.issued + 1;
}

/* ---- poster ---- */

/* Tells every sender where the output lies, or that it must use the slots, and every receiver the same of the
 * input. */
PRIM_FN void exchange_show(const struct exchange *it) {
  const uint32_t tag = (uint32_t)it->position + 1;
  const uint64_t shift = exchange_shift(it);
  const bool hidden = it->sends ? shift == LAUNCH_HIDDEN : !exchange_lands();
  const void *memory = it->sends ? exchange_work.buffers.in : exchange_work.buffers.out;
  const uint64_t address = hidden ? 0 : (uint64_t)(uintptr_t)memory + shift;
  if (!it->keeps || (exchange_of()->flags & (it->sends ? WORK_SHOWS_INPUT : WORK_DIRECT_RECV)) == 0) return;
  if (!it->sends) prim_cell_write(&it->sender->offer_bytes, tag, exchange_agreed_bytes());
  prim_cell_write(it->sends ? &it->receiver->source : &it->sender->offer, tag, address);
}

/* One look at what the other ranks said of the operation's size; false when it is another one. */
PRIM_FN bool exchange_compare(struct exchange *it) {
  const bool asks = it->keeps && !it->agreed;
  const uint32_t tag = (uint32_t)it->position + 1;
  uint64_t bytes = 0;
  if (asks)
    it->agreed = prim_cell_read(it->sends ? &it->sender->offer_bytes : exchange_cell(it), tag, &bytes);
  return exchange_agrees(it, asks && it->agreed, bytes);
}

/* The counters of this thread's link, as far as the workers are. */
PRIM_FN void exchange_tell(const struct exchange *it, uint32_t steps, uint32_t *told) {
  const uint32_t before = *told;
  if (!it->keeps || steps == before) return;
  *told = steps;
  if (it->sends) {
    prim_fence();
    prim_store_word(&it->receiver->tail, it->position + steps);
  } else if (steps / EXCHANGE_STEPS_A_HEAD != before / EXCHANGE_STEPS_A_HEAD) {
    prim_store_word(&it->sender->head, it->position + steps);
  }
}

PRIM_FN bool exchange_await_heads(struct exchange *it) {
  const bool asks = it->sends && it->keeps;
  while (!__all_sync(PRIM_ALL_LANES, !asks || it->head >= it->position)) {
    if (asks) it->head = prim_load_word(&it->sender->head);
    if (exchange_is_stopped(it)) return false;
  }
  return true;
}

/* Sizes are compared behind the first tail, while the workers move; but where that has to wait, before. */
#define EXCHANGE_LOOKS_FIRST 64u

/* Where the next operation begins is known at the begin. */
PRIM_FN void exchange_save_all(const struct exchange *it, uint32_t steps) {
  exchange_both_read(true);
  if (it->keeps) prim_store_pair(exchange_counters(it), it->position + steps, it->line);
  __syncwarp();
  __threadfence();
}

/* Tells what workers have done, until nothing is left. */
PRIM_FN bool exchange_post_all(struct exchange *it, uint32_t *told) {
  for (uint32_t done = 0;;) {
    const uint32_t ended = prim_peek_together(&exchange_ended);
    const uint32_t issued = prim_peek_together(&exchange_issued);
    const uint32_t now = size_min(exchange_phases_done(false), issued);
    const struct exchange_phase *latest = &exchange_phases[(now - 1) % EXCHANGE_PHASES];
    const uint32_t steps = it->sends ? latest->told : latest->freed;
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&exchange_done[exchange_warp()] = now;
    if (now != done) exchange_tell(it, steps, told);
    done = now;
    const bool agreed = __all_sync(PRIM_ALL_LANES, it->agreed) != 0;
    if (!agreed && (done > 0 || it->looks > EXCHANGE_LOOKS_FIRST) && !exchange_compare(it)) return false;
    if (agreed && __all_sync(PRIM_ALL_LANES, ended == done + 1)) return true;
    if (exchange_is_stopped(it)) return false;
  }
}

PRIM_FN void exchange_post_phases(struct exchange *it, bool awaits) {
  const uint32_t all = exchange_loops() * exchange_steps(it);
  const bool reads = !it->sends_sum && (exchange_of()->flags & WORK_SHOWS_INPUT) != 0;
  uint32_t told = 0;
  if (awaits) launch_await_previous();
  exchange_read_counters(it);
  exchange_show(it);
  if (!exchange_announce(it)) return;
  exchange_tell_head(it);
  exchange_save_all(it, all);
  it->agreed = !it->keeps || (it->sends && (exchange_of()->flags & WORK_DIRECT_SEND) == 0);
  if (!exchange_post_all(it, &told)) return;
  /* The own input is its owner's again when all have read it: sums that come back say so, or heads. */
  it->position += all;
  if (!reads) return;
  exchange_tell_head(it);
  exchange_await_heads(it);
}

/* ---- the block ---- */

PRIM_FN void exchange_run_slots(const struct launch_arguments *arguments, bool awaits) {
  struct exchange it;
  const bool scouts = exchange_warp() == 0;
  if (!scouts && !exchange_posts()) {
    exchange_carry_phases(awaits);
    return;
  }
  exchange_prepare(&it, arguments);
  if (scouts) exchange_scout_turns(&it, awaits);
  else exchange_post_phases(&it, awaits);
}

#endif
