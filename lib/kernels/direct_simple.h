/* direct_simple.h: the code of a block whose works are all direct collectives over Simple; like direct.h, on
 * which it builds, by phases over all links at once. The first warp, the issue warp, waits for slots,
 * counters and offers, and writes down what each phase of a loop moves. The last one, the commit warp,
 * announces and compares sizes, makes offers, fences, and posts and saves counters. The warps between carry
 * out the phases:
 *
 *   move     to every link its own block of the input; every link's block to the output, if not there yet
 *   spread   the same block to every link
 *   add      received blocks of all links and own values; two shots store the sum into all outputs
 *
 * The next loop's first phase is moved before the sums of this one, so that the links carry data while
 * counters are in flight. Steps are still posted in order: what the next loop's first phase wrote is posted
 * after this loop's sums. The result has the same bits and counters as schedule/direct.h's steps over the
 * same connections: both must change together. It needs FIFO_SLOTS_MAX slots. */
#ifndef TUTTI_KERNELS_DIRECT_SIMPLE_H
#define TUTTI_KERNELS_DIRECT_SIMPLE_H

#include "kernels/direct.h"

#include "kernels/compute_warp.h"

/* Vectors that a thread has in flight: per link or source of a group, or of one source. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200 /* more would spill */
#define DIRECT_GROUP 2u
#else
#define DIRECT_GROUP 4u
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900 /* its code needs more registers */
#define DIRECT_VECTORS 1
#define DIRECT_SPREAD_VECTORS 1
#else
#define DIRECT_VECTORS 2
#define DIRECT_SPREAD_VECTORS 3
#endif
#define DIRECT_PHASES 4u /* by which the issue warp may be ahead of the slowest compute warp */

enum direct_phase_kind { DIRECT_MOVE, DIRECT_SPREAD, DIRECT_ADD };

/* A phase of a loop, with all its addresses. */
struct direct_phase {
  /* Of a move: the source per link; of a sum: its sources, including the own values, by rank. */
  uint64_t from[DIRECT_LINKS + 1];
  uint64_t to[DIRECT_LINKS + 1]; /* destination of a link's block: a slot or an output */
  uint32_t bytes[DIRECT_LINKS + 1];
  const uint8_t *in; /* own values (not of a sum) and their place in the own output; 0: none */
  uint8_t *out;
  uint32_t own_bytes, most_bytes; /* most_bytes: maximum over the links */
  uint32_t links;                 /* set of links of the phase */
  uint32_t kind;                  /* enum direct_phase_kind */
  uint32_t whole;                 /* copies and plain sums use whole vectors, except for the last bytes */
  uint32_t sends;                 /* of a sum: it is sent to all links */
  uint32_t signaled, freed;       /* steps of every send and receive link completed with this phase */
};

__shared__ struct direct_phase direct_phases[DIRECT_PHASES];
__shared__ struct prim_descriptor
    direct_descriptors[PRIM_WARPS_MAX]; /* one per warp: spans that are not whole vectors */

PRIM_FN uint32_t direct_compute_warps(void) { return blockDim.x / PRIM_WARP - 2; }

/* Phases that all compute warps have completed; `seen`: and the commit warp has processed. */
PRIM_FN uint32_t direct_phases_done(bool seen) {
  uint32_t done = UINT32_MAX;
  if (prim_lane() < direct_compute_warps() + (seen ? 1 : 0))
    done = *(volatile uint32_t *)&direct_done[1 + prim_lane()];
  return __reduce_min_sync(PRIM_ALL_LANES, done);
}

/* ---- compute warps: whole vectors ---- */

struct direct_share_of {
  uint32_t index, count; /* this thread's index among those that move data */
};

/* Vector number `at` from an address of the phase. The address is read each time, because those of all links
 * would fill the registers. */
PRIM_FN uint8_t *direct_vector(const uint64_t *base, uint32_t at) {
  return (uint8_t *)(uintptr_t)(*(const volatile uint64_t *)base + (uint64_t)at * 16);
}

/* Four links at a time: all their loads, some vectors per link and thread, are issued before the first
 * store. */
PRIM_FN void direct_move_vectors(const struct direct_phase *phase, struct direct_share_of share,
                                 uint32_t link) {
  const uint32_t most = phase->most_bytes / 16;
#pragma unroll 1
  for (uint32_t first = share.index; first < most; first += DIRECT_VECTORS * share.count) {
    ulonglong2 vectors[DIRECT_GROUP][DIRECT_VECTORS];
#pragma unroll
    for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < phase->bytes[link + k] / 16)
          vectors[k][v] = prim_load_pair(direct_vector(&phase->from[link + k], at));
      }
#pragma unroll
    for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < phase->bytes[link + k] / 16)
          prim_store_vector(direct_vector(&phase->to[link + k], at), vectors[k][v]);
      }
  }
}

PRIM_FN void direct_spread_vectors(const struct direct_phase *phase, struct direct_share_of share) {
  const uint32_t count = phase->own_bytes / 16, targets = phase->links + (phase->out != 0 ? 1 : 0);
#pragma unroll 1
  for (uint32_t first = share.index; first < count; first += DIRECT_SPREAD_VECTORS * share.count) {
    ulonglong2 vectors[DIRECT_SPREAD_VECTORS];
#pragma unroll
    for (uint32_t v = 0; v < DIRECT_SPREAD_VECTORS; v++) {
      const uint32_t at = first + v * share.count;
      if (at < count) vectors[v] = prim_load_pair(phase->in + (size_t)at * 16);
    }
#pragma unroll 1
    for (uint32_t link = 0; link < targets; link++) {
      uint8_t *to = link < phase->links ? direct_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_SPREAD_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < count) prim_store_vector(to + (size_t)at * 16, vectors[v]);
      }
    }
  }
}

PRIM_FN ulonglong2 direct_add_vector(const struct work *work, ulonglong2 sum, ulonglong2 vector) {
  sum.x = direct_add<true>(work, sum.x, vector.x);
  sum.y = direct_add<true>(work, sum.y, vector.y);
  return sum;
}

/* Four sources at a time: all their loads are issued before the first sum. */
PRIM_FN void direct_add_vectors(const struct direct_phase *phase, struct direct_share_of share) {
  const struct work *work = direct_of();
  const uint32_t count = phase->own_bytes / 16, targets = phase->sends ? phase->links : 0;
#pragma unroll 1
  for (uint32_t first = share.index; first < count; first += DIRECT_VECTORS * share.count) {
    ulonglong2 sums[DIRECT_VECTORS];
#pragma unroll 1
    for (uint32_t source = 0; source <= phase->links; source += DIRECT_GROUP) {
      ulonglong2 vectors[DIRECT_GROUP][DIRECT_VECTORS];
#pragma unroll
      for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
        for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
          const uint32_t at = first + v * share.count;
          if (source + k <= phase->links && at < count)
            vectors[k][v] = prim_load_pair(direct_vector(&phase->from[source + k], at));
        }
#pragma unroll
      for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
        for (uint32_t v = 0; v < DIRECT_VECTORS; v++)
          if (source + k == 0) sums[v] = vectors[k][v];
          else if (source + k <= phase->links) sums[v] = direct_add_vector(work, sums[v], vectors[k][v]);
    }
#pragma unroll 1
    for (uint32_t link = 0; link <= targets; link++) {
      uint8_t *to = link < targets ? direct_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < count) prim_store_vector(to + (size_t)at * 16, sums[v]);
      }
    }
  }
}

/* ---- compute warps: spans of any type, operator and alignment ---- */

/* The warp's descriptor, which its thread 0 fills in before direct_carry(). */
PRIM_FN struct prim_descriptor *direct_descriptor(void) {
  __syncwarp();
  return &direct_descriptors[direct_warp()];
}

PRIM_FN void direct_descriptor_begin(struct prim_descriptor *descriptor, uint32_t bytes) {
  const struct work *work = direct_of();
  descriptor->kind = PRIM_SPAN;
  descriptor->dtype = work->dtype;
  descriptor->op = work->op;
  descriptor->op_arg = work->op_arg;
  descriptor->flags = 0;
  descriptor->own_index = descriptor->second_count = descriptor->other_count = 0;
  descriptor->count = bytes / work->element_bytes;
}

/* Not inlined: it has a case for each type and operator, and is not on the fast path. */
static __device__ __noinline__ void direct_carry(void) {
  struct compute_warp compute; /* spans use no other member */
  compute.index = threadIdx.x - PRIM_WARP;
  compute.count = direct_compute_warps() * PRIM_WARP;
  __syncwarp();
  compute_span(&compute, &direct_descriptors[direct_warp()], false);
}

/* Copies one span; if the operator scales own values, they are scaled here. */
PRIM_FN void direct_carry_copy(const uint8_t *from, uint8_t *to, uint32_t bytes, bool own) {
  if (bytes == 0) return;
  struct prim_descriptor *descriptor = direct_descriptor();
  if (prim_lane() == 0) {
    direct_descriptor_begin(descriptor, bytes);
    descriptor->first = from;
    descriptor->out = to;
    if (own && descriptor->op == OP_PRE_MUL_SUM) descriptor->flags = PRIM_SCALES;
  }
  direct_carry();
}

/* Moves the remainder of a phase after its whole vectors, link by link. */
PRIM_FN void direct_move_rest(const struct direct_phase *phase) {
#pragma unroll 1
  for (uint32_t link = 0; link < phase->links; link++) {
    const uint32_t skip = phase->whole ? phase->bytes[link] / 16 * 16 : 0;
    direct_carry_copy((const uint8_t *)(uintptr_t)phase->from[link] + skip,
                      (uint8_t *)(uintptr_t)phase->to[link] + skip, phase->bytes[link] - skip, phase->sends);
  }
  direct_carry_copy(phase->in, phase->out, phase->own_bytes, false);
}

PRIM_FN void direct_spread_rest(const struct direct_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
#pragma unroll 1
  for (uint32_t link = 0; link < phase->links; link++)
    direct_carry_copy(phase->in + skip, (uint8_t *)(uintptr_t)phase->to[link] + skip, phase->own_bytes - skip,
                      true);
  if (phase->out != 0) direct_carry_copy(phase->in + skip, phase->out + skip, phase->own_bytes - skip, false);
}

PRIM_FN void direct_add_rest(const struct direct_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
  if (skip == phase->own_bytes) return;
  struct prim_descriptor *descriptor = direct_descriptor();
  if (prim_lane() == 0) {
    direct_descriptor_begin(descriptor, phase->own_bytes - skip);
    descriptor->own_index = direct_of()->rank;
    descriptor->flags = descriptor->op == OP_PRE_MUL_SUM    ? PRIM_SCALES
                        : descriptor->op == OP_SUM_POST_DIV ? PRIM_DIVIDES
                                                            : 0;
    descriptor->first = (const uint8_t *)(uintptr_t)phase->from[0] + skip;
    for (uint32_t source = 1; source <= phase->links; source++)
      descriptor->second[descriptor->second_count++] = (const uint8_t *)(uintptr_t)phase->from[source] + skip;
    descriptor->out = phase->out + skip;
    for (uint32_t link = 0; link < phase->links && phase->sends; link++)
      descriptor->other[descriptor->other_count++] = (uint8_t *)(uintptr_t)phase->to[link] + skip;
  }
  direct_carry();
}

PRIM_FN void direct_run_phase(const struct direct_phase *phase, struct direct_share_of share) {
  switch (phase->kind) {
    case DIRECT_MOVE:
#pragma unroll 1
      for (uint32_t link = 0; phase->whole && link < phase->links; link += DIRECT_GROUP)
        direct_move_vectors(phase, share, link);
      direct_move_rest(phase);
      break;
    case DIRECT_SPREAD:
      if (phase->whole) direct_spread_vectors(phase, share);
      direct_spread_rest(phase);
      break;
    default:
      if (phase->whole) direct_add_vectors(phase, share);
      direct_add_rest(phase);
      break;
  }
}

PRIM_FN void direct_carry_phases(bool awaits) {
  const struct direct_share_of share = {threadIdx.x - PRIM_WARP, direct_compute_warps() * PRIM_WARP};
  if (awaits) launch_await_previous();
  for (uint32_t number = 0;; number++) {
    while (!__all_sync(PRIM_ALL_LANES, *(volatile uint32_t *)&direct_issued > number)) {
      const bool ended = *(volatile uint32_t *)&direct_ended == number + 1;
      if (__any_sync(PRIM_ALL_LANES, ended || *(volatile uint32_t *)&direct_stopped != 0)) return;
    }
    const struct direct_phase *phase = &direct_phases[number % DIRECT_PHASES];
    direct_run_phase(phase, share);
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = number + 1;
  }
}

/* ---- issue warp ---- */

/* The shift of the address that this thread's link publishes: the output's for a receive link, the input's
 * for a send link. Shifts are stored after the work's further links. */
PRIM_FN uint64_t direct_shift_of(const struct direct_run *it) {
  const struct work *work = direct_of();
  const uint32_t links = direct_before(true) + (work->send_count > 1 ? work->send_count - 1u : 0);
  const uint32_t before = it->sends && (work->flags & WORK_DIRECT_RECV) != 0 ? work->recv_count : 0;
  if (!it->keeps || (work->flags & (it->sends ? WORK_SHOWS_INPUT : WORK_DIRECT_RECV)) == 0)
    return LAUNCH_HIDDEN;
  if (!work_has_further(work)) return direct_work.further;
  return ((const uint64_t *)&direct_further[links])[before + prim_lane() % DIRECT_SENDS];
}

struct direct_sum_place {
  uint64_t own; /* address of own values */
  uint8_t *out;
  size_t from_offset_bytes, to_offset_bytes; /* the same in every rank's input and output */
  uint32_t bytes;
};

struct direct_issue {
  struct direct_sum_place sum; /* the next sum */
  uint64_t direct;             /* the receiver's output, the sender's input; 0: slots */
  uint64_t tail;               /* receive link: last value read */
  uint32_t issued;             /* phases */
  bool taken;                  /* the published addresses have arrived */
  bool shows;                  /* send link: the receiver reads our input, or there is no receiver */
  bool zero_copy;              /* senders store final values in our output */
  bool plain;                  /* sums of the types common in training */
  uint32_t loops, signaled, freed;
};

PRIM_FN bool direct_receives_zero_copy(void) {
  const struct work *work = direct_of();
  return (work->flags & WORK_DIRECT_RECV) != 0 && (work->flags & WORK_OUTPUT_HIDDEN) == 0 &&
         direct_work.out != 0;
}

PRIM_FN size_t direct_loop_elements(void) {
  return direct_of()->chunk_count * direct_loop_chunks(direct_of());
}

PRIM_FN uint32_t direct_loops(void) {
  return (uint32_t)((direct_of()->part_count + direct_loop_elements() - 1) / direct_loop_elements());
}

/* Synchronizes issue and commit warps after both have read the counters, so that the commit warp may write
 * them. No other warp reads what earlier kernels wrote before it gets a phase. */
PRIM_FN void direct_both_read(bool waits) {
  if (waits) PRIM_BARRIER_SYNC(DIRECT_READ_BARRIER, PRIM_CONSTANT(2 * PRIM_WARP));
  else PRIM_BARRIER_ARRIVE(DIRECT_READ_BARRIER, PRIM_CONSTANT(2 * PRIM_WARP));
}

/* Waits until every receive link has this many steps of the operation; `read`: except links whose input is
 * read in place. */
PRIM_FN bool direct_await_steps(struct direct_run *it, struct direct_issue *issue, uint32_t steps,
                                bool read) {
  const bool asks = !it->sends && it->keeps && (!read || issue->direct == 0);
  while (!__all_sync(PRIM_ALL_LANES, !asks || issue->tail >= it->position + steps)) {
    if (asks) issue->tail = prim_load_word(&it->receiver->tail);
    if (direct_is_stopped(it)) return false;
  }
  return true;
}

/* The memory that this thread's link may publish: the receiver its output, the sender its input. */
PRIM_FN bool direct_is_shown(const struct direct_run *it) {
  const uint32_t flag = it->sends ? WORK_DIRECT_SEND : WORK_SHOWS_INPUT;
  return it->keeps && (direct_of()->flags & flag) != 0;
}

/* Takes the published outputs of all receivers and inputs of all senders; their arrival also means that those
 * ranks have begun. On a wrong size it stops; the commit warp reports the error. */
PRIM_FN bool direct_take_shown(struct direct_run *it, struct direct_issue *issue) {
  const bool asks = direct_is_shown(it);
  const uint32_t tag = (uint32_t)it->position + 1;
  uint64_t bytes = direct_agreed_bytes();
  bool there = !asks;
  if (issue->taken) return true;
  while (!__all_sync(PRIM_ALL_LANES, there)) {
    if (!there && it->sends)
      there = prim_tagged_read(&it->sender->offer, tag, &issue->direct) &
              prim_tagged_read(&it->sender->offer_bytes, tag, &bytes);
    else if (!there)
      there = prim_tagged_read(&it->receiver->source, tag, &issue->direct) &
              prim_tagged_read(direct_announcement(it), tag, &bytes);
    if (direct_is_stopped(it)) return false;
  }
  issue->taken = true;
  while (__any_sync(PRIM_ALL_LANES, asks && bytes != direct_agreed_bytes()))
    if (direct_is_stopped(it)) return false;
  return true;
}

PRIM_FN uint64_t direct_slot(const struct direct_run *it, uint32_t step) {
  const uint32_t slot = (uint32_t)(it->position + step) % DIRECT_SLOTS;
  return (uint64_t)(uintptr_t)it->buffer + (uint64_t)slot * it->arguments->limits.step_bytes[PROTO_SIMPLE];
}

/* Destination of step `step` of a send link: the own block's place in the receiver's output, or a slot. */
PRIM_FN uint64_t direct_target(const struct direct_run *it, const struct direct_issue *issue,
                               const struct direct_loop *loop, uint32_t step, bool final) {
  const struct work *work = direct_of();
  const struct direct_block block = direct_block_of(loop, work->rank, work->func == FUNC_BROADCAST);
  if (final && issue->direct != 0) return issue->direct + block.offset_bytes;
  return direct_slot(it, step);
}

/* Returns the next phase's record once compute warps and commit warp have released it. */
PRIM_FN struct direct_phase *direct_phase_begin(struct direct_run *it, struct direct_issue *issue,
                                                uint32_t kind, uint32_t links) {
  while (issue->issued >= DIRECT_PHASES && direct_phases_done(true) <= issue->issued - DIRECT_PHASES)
    if (direct_is_stopped(it)) return 0;
  struct direct_phase *phase = &direct_phases[issue->issued % DIRECT_PHASES];
  if (prim_lane() <= DIRECT_LINKS) phase->bytes[prim_lane()] = 0;
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

/* `places`: the addresses that this thread wrote, ORed; `plain`: only copies and plain sums. */
PRIM_FN void direct_phase_issue(struct direct_issue *issue, struct direct_phase *phase, uint64_t places,
                                bool plain) {
  const bool whole = __all_sync(PRIM_ALL_LANES, (places & 15) == 0) != 0 && plain;
  issue->issued += 1;
  if (prim_lane() == 0) {
    phase->whole = whole;
    phase->signaled = issue->signaled;
    phase->freed = issue->freed;
  }
  __threadfence_block();
  __syncwarp();
  if (prim_lane() == 0) *(volatile uint32_t *)&direct_issued = issue->issued;
  __syncwarp();
}

/* To every link its own block of the input. */
PRIM_FN bool direct_write_scatter(struct direct_run *it, struct direct_issue *issue,
                                  const struct direct_loop *loop, uint32_t index) {
  const struct work *work = direct_of();
  const uint32_t link = prim_lane() % DIRECT_SENDS;
  struct direct_phase *phase = direct_phase_begin(it, issue, DIRECT_MOVE, work->send_count);
  uint64_t places = 0;
  if (phase == 0) return false;
  if (it->keeps && it->sends) {
    const struct direct_block block = direct_block_of(loop, direct_peer_of(link), false);
    phase->from[link] = (uint64_t)(uintptr_t)direct_in(&block);
    phase->to[link] = direct_target(it, issue, loop, index * it->send_steps, !it->adds);
    phase->bytes[link] = issue->shows ? 0 : block.bytes;
    places = phase->from[link] | phase->to[link];
  }
  if (prim_lane() == 0) {
    phase->most_bytes = (uint32_t)(loop->chunk * work->element_bytes);
    phase->sends = 1;
    if (it->copies) {
      const struct direct_block own = direct_block_of(loop, work->rank, false);
      phase->in = direct_in(&own);
      phase->out = direct_out(&own);
      phase->own_bytes = own.bytes;
    }
  }
  direct_phase_issue(issue, phase, places, work->op != OP_PRE_MUL_SUM);
  return true;
}

/* The same block to every link, and to the own output if the operation requires it. */
PRIM_FN bool direct_write_spread(struct direct_run *it, struct direct_issue *issue,
                                 const struct direct_loop *loop, uint32_t index) {
  const struct work *work = direct_of();
  const uint32_t link = prim_lane() % DIRECT_SENDS;
  const bool keeps = work->func != FUNC_ALL_REDUCE && (work->flags & WORK_IN_PLACE) == 0;
  struct direct_phase *phase = direct_phase_begin(it, issue, DIRECT_SPREAD, work->send_count);
  uint64_t places = 0;
  if (phase == 0) return false;
  if (it->keeps && it->sends) {
    phase->to[link] = direct_target(it, issue, loop, index * it->send_steps, !it->adds);
    places = phase->to[link];
  }
  if (prim_lane() == 0) {
    const struct direct_block from = direct_block_of(loop, 0, true);
    const struct direct_block to = direct_block_of(loop, work->rank, work->func != FUNC_ALL_GATHER);
    phase->in = direct_in(&from);
    if (keeps) phase->out = direct_out(&to);
    phase->own_bytes = from.bytes;
    places |= (uint64_t)(uintptr_t)phase->in | (uint64_t)(uintptr_t)phase->out;
  }
  direct_phase_issue(issue, phase, places, work->op != OP_PRE_MUL_SUM);
  return true;
}

/* Every link's block to the output, if senders did not store it there. */
PRIM_FN bool direct_write_collect(struct direct_run *it, struct direct_issue *issue,
                                  const struct direct_loop *loop, uint32_t index) {
  const struct work *work = direct_of();
  const uint32_t link = prim_lane() % DIRECT_SENDS;
  struct direct_phase *phase = direct_phase_begin(it, issue, DIRECT_MOVE, work->recv_count);
  uint64_t places = 0;
  if (phase == 0) return false;
  if (it->keeps && !it->sends) {
    const struct direct_block block =
        direct_block_of(loop, direct_peer_of(link), work->func == FUNC_BROADCAST);
    phase->from[link] = direct_slot(it, index * it->recv_steps + it->recv_steps - 1);
    phase->to[link] = (uint64_t)(uintptr_t)direct_out(&block);
    phase->bytes[link] = block.bytes;
    places = phase->to[link];
  }
  if (prim_lane() == 0) phase->most_bytes = (uint32_t)(loop->chunk * work->element_bytes);
  direct_phase_issue(issue, phase, places, true);
  return true;
}

/* ---- issue warp: phases in order, each when its data is available ---- */

PRIM_FN bool direct_issue_first(struct direct_run *it, struct direct_issue *issue, uint32_t index) {
  if (it->send_steps == 0) return true;
  if (!it->adds && !direct_take_shown(it, issue)) return false;
  if (!direct_await_slots(it, it->position + index * it->send_steps + 1)) return false;
  /* Posted after the sums of the previous loop, which are issued later. */
  if (!it->sends_sum || index == 0) issue->signaled += 1;
  if (__all_sync(PRIM_ALL_LANES, issue->shows)) return true;
  const struct direct_loop loop = direct_loop_at(index * direct_loop_elements());
  return it->scatters ? direct_write_scatter(it, issue, &loop, index)
                      : direct_write_spread(it, issue, &loop, index);
}

/* Addresses and size of a loop's sum, as far as they follow from this rank's memory. */
PRIM_FN struct direct_sum_place direct_sum_at(uint32_t index) {
  const struct work *work = direct_of();
  const struct direct_loop loop = direct_loop_at(index * direct_loop_elements());
  const struct direct_block to = direct_block_of(&loop, work->rank, true);
  const struct direct_block from =
      work->func == FUNC_REDUCE_SCATTER ? direct_block_of(&loop, work->rank, false) : to;
  struct direct_sum_place sum;
  sum.own = (uint64_t)(uintptr_t)direct_in(&from);
  sum.out = direct_out(&to);
  sum.from_offset_bytes = from.offset_bytes;
  sum.to_offset_bytes = to.offset_bytes;
  sum.bytes = from.bytes;
  return sum;
}

/* Waits for what a sum needs: published addresses, slots, and steps of ranks that publish no input. */
PRIM_FN bool direct_await_sources(struct direct_run *it, struct direct_issue *issue, uint32_t index) {
  if (!direct_take_shown(it, issue)) return false;
  if (it->sends_sum && !direct_await_slots(it, it->position + index * it->send_steps + 2)) return false;
  return direct_await_steps(it, issue, index * it->recv_steps + 1, true);
}

/* Issues a loop's sum; what depends on no other rank was computed before. */
PRIM_FN bool direct_issue_add(struct direct_run *it, struct direct_issue *issue, uint32_t index) {
  const struct work *work = direct_of();
  const struct direct_sum_place sum = issue->sum;
  const uint32_t link = prim_lane() % DIRECT_SENDS, source = link < work->rank ? link : link + 1;
  const bool brings = it->keeps && !it->sends, takes = it->keeps && it->sends && it->sends_sum;
  if (it->sends_sum) issue->signaled += index + 1 < issue->loops ? 2 : 1;
  /* Final values of the previous loop need no slot, or are collected later. */
  if (issue->zero_copy || !it->collects || index == 0) issue->freed = index * it->recv_steps + 1;
  /* In one shot in place, the sum overwrites values that the block may still read and send. */
  while (it->spreads && (work->flags & WORK_IN_PLACE) != 0 && direct_phases_done(false) < issue->issued)
    if (direct_is_stopped(it)) return false;
  if (!direct_await_sources(it, issue, index)) return false;
  struct direct_phase *phase = direct_phase_begin(it, issue, DIRECT_ADD, work->recv_count);
  if (phase == 0) return false;
  uint64_t place = issue->direct + (it->sends ? sum.to_offset_bytes : sum.from_offset_bytes);
  if (issue->direct == 0)
    place = direct_slot(it, it->sends ? index * it->send_steps + 1 : index * it->recv_steps);
  if (brings) phase->from[source] = place;
  if (takes) phase->to[link] = place;
  if (prim_lane() == 0) {
    phase->from[work->rank] = sum.own;
    phase->out = sum.out;
    phase->own_bytes = sum.bytes;
    phase->sends = it->sends_sum;
  }
  direct_phase_issue(issue, phase, (brings || takes ? place : 0) | sum.own | (uint64_t)(uintptr_t)sum.out,
                     issue->plain);
  if (index + 1 < issue->loops) issue->sum = direct_sum_at(index + 1);
  return true;
}

PRIM_FN bool direct_issue_collect(struct direct_run *it, struct direct_issue *issue, uint32_t index) {
  const struct direct_loop loop = direct_loop_at(index * direct_loop_elements());
  const uint32_t steps = (index + 1) * it->recv_steps;
  if (!direct_await_steps(it, issue, steps, false)) return false;
  /* The next loop's sums were issued before. */
  if (steps > issue->freed) issue->freed = steps + (it->adds && index + 1 < issue->loops ? 1 : 0);
  return issue->zero_copy || direct_write_collect(it, issue, &loop, index);
}

PRIM_FN void direct_issue_begin(const struct direct_run *it, struct direct_issue *issue) {
  issue->direct = issue->tail = 0;
  issue->issued = issue->signaled = issue->freed = 0;
  issue->loops = direct_loops();
  issue->taken = (direct_of()->flags & (WORK_DIRECT_SEND | WORK_SHOWS_INPUT)) == 0;
  issue->zero_copy = direct_receives_zero_copy();
  issue->plain = direct_is_plain();
  if (it->adds) issue->sum = direct_sum_at(0);
  issue->shows = !it->sends || !it->keeps || direct_shift_of(it) != LAUNCH_HIDDEN;
}

PRIM_FN void direct_issue_turns(struct direct_run *it, bool awaits) {
  struct direct_issue issue;
  direct_issue_begin(it, &issue);
  if (awaits) launch_await_previous();
  direct_read_counters(it);
  direct_both_read(false);
  const uint32_t loops = issue.loops, lag = it->adds ? 1 : issue.zero_copy ? 2 : 0;
  for (uint32_t turn = 0; turn <= loops + lag; turn++) {
    if (turn < loops && !direct_issue_first(it, &issue, turn)) return;
    if (it->adds && turn >= 1 && turn <= loops && !direct_issue_add(it, &issue, turn - 1)) return;
    if (it->collects && turn > lag && !direct_issue_collect(it, &issue, turn - lag - 1)) return;
  }
  if (prim_lane() == 0) *(volatile uint32_t *)&direct_ended = issue.issued + 1;
}

/* ---- commit warp ---- */

/* Publishes the output's address to every sender (0: use the slots), and the input's address to every
 * receiver. */
PRIM_FN void direct_show(const struct direct_run *it) {
  const uint32_t tag = (uint32_t)it->position + 1;
  const uint64_t shift = direct_shift_of(it);
  const bool hidden = it->sends ? shift == LAUNCH_HIDDEN : !direct_receives_zero_copy();
  const void *memory = it->sends ? direct_work.in : direct_work.out;
  const uint64_t address = hidden ? 0 : (uint64_t)(uintptr_t)memory + shift;
  if (!it->keeps || (direct_of()->flags & (it->sends ? WORK_SHOWS_INPUT : WORK_DIRECT_RECV)) == 0) return;
  if (!it->sends) prim_tagged_write(&it->sender->offer_bytes, tag, direct_agreed_bytes());
  prim_tagged_write(it->sends ? &it->receiver->source : &it->sender->offer, tag, address);
}

/* Checks once what the other ranks announced as the operation's size; false if it differs. */
PRIM_FN bool direct_compare(struct direct_run *it) {
  const bool asks = it->keeps && !it->agreed;
  const uint32_t tag = (uint32_t)it->position + 1;
  uint64_t bytes = 0;
  if (asks)
    it->agreed =
        prim_tagged_read(it->sends ? &it->sender->offer_bytes : direct_announcement(it), tag, &bytes);
  return direct_agrees(it, asks && it->agreed, bytes);
}

/* Posts the counters of this thread's link up to what the compute warps have completed. */
PRIM_FN void direct_signal(const struct direct_run *it, uint32_t steps, uint32_t *signaled) {
  const uint32_t before = *signaled;
  if (!it->keeps || steps == before) return;
  *signaled = steps;
  if (it->sends) {
    prim_fence();
    prim_store_word(&it->receiver->tail, it->position + steps);
  } else if (steps / DIRECT_STEPS_A_HEAD != before / DIRECT_STEPS_A_HEAD) {
    prim_store_word(&it->sender->head, it->position + steps);
  }
}

PRIM_FN bool direct_await_heads(struct direct_run *it) {
  const bool asks = it->sends && it->keeps;
  while (!__all_sync(PRIM_ALL_LANES, !asks || it->head >= it->position)) {
    if (asks) it->head = prim_load_word(&it->sender->head);
    if (direct_is_stopped(it)) return false;
  }
  return true;
}

/* Sizes are compared after the first tail, while the compute warps move data; if posting it has to wait,
 * before. */
#define DIRECT_LOOKS_FIRST 64u

/* Saves where the next operation begins, which is known when this one begins. */
PRIM_FN void direct_save_all(const struct direct_run *it, uint32_t steps) {
  direct_both_read(true);
  if (it->keeps) prim_store_pair(direct_counters(it), it->position + steps, it->line);
  __syncwarp();
  __threadfence();
}

/* Posts what the compute warps have done, until nothing is left. */
PRIM_FN bool direct_commit_all(struct direct_run *it, uint32_t *signaled) {
  for (uint32_t done = 0;;) {
    const uint32_t ended = prim_peek_together(&direct_ended);
    const uint32_t issued = prim_peek_together(&direct_issued);
    const uint32_t now = size_min(direct_phases_done(false), issued);
    const struct direct_phase *latest = &direct_phases[(now - 1) % DIRECT_PHASES];
    const uint32_t steps = it->sends ? latest->signaled : latest->freed;
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = now;
    if (now != done) direct_signal(it, steps, signaled);
    done = now;
    const bool agreed = __all_sync(PRIM_ALL_LANES, it->agreed) != 0;
    if (!agreed && (done > 0 || it->looks > DIRECT_LOOKS_FIRST) && !direct_compare(it)) return false;
    if (agreed && __all_sync(PRIM_ALL_LANES, ended == done + 1)) return true;
    if (direct_is_stopped(it)) return false;
  }
}

PRIM_FN void direct_commit_phases(struct direct_run *it, bool awaits) {
  const uint32_t all = direct_loops() * direct_steps(it);
  const bool reads = !it->sends_sum && (direct_of()->flags & WORK_SHOWS_INPUT) != 0;
  uint32_t signaled = 0;
  if (awaits) launch_await_previous();
  direct_read_counters(it);
  direct_show(it);
  if (!direct_announce(it)) return;
  direct_signal_head(it);
  direct_save_all(it, all);
  it->agreed = !it->keeps || (it->sends && (direct_of()->flags & WORK_DIRECT_SEND) == 0);
  if (!direct_commit_all(it, &signaled)) return;
  /* The user may overwrite the input once all ranks have read it: returned sums or heads show this. */
  it->position += all;
  if (!reads) return;
  direct_signal_head(it);
  direct_await_heads(it);
}

/* ---- the block ---- */

PRIM_FN void direct_run_slots(const struct launch_arguments *arguments, bool awaits) {
  struct direct_run it;
  const bool issues = direct_warp() == 0;
  if (!issues && !direct_commits()) {
    direct_carry_phases(awaits);
    return;
  }
  direct_prepare(&it, arguments);
  if (issues) direct_issue_turns(&it, awaits);
  else direct_commit_phases(&it, awaits);
}

#endif
