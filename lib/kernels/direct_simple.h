/* direct_simple.h: direct collectives over Simple. The first warp, the issue warp, makes the steps: it waits
 * for slots, counters and offers, and writes down what each step moves, as a phase with all its addresses.
 * The last one, the commit warp, announces and compares sizes, makes offers, fences, and posts and saves
 * counters. The warps between carry out the phases: whole vectors where addresses allow it, and spans of any
 * type, operator and alignment. */
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
#define DIRECT_SPREAD_VECTORS 2
#endif
#define DIRECT_PAIR_VECTORS (2 * DIRECT_VECTORS)
#define DIRECT_PHASES 4u /* by which the issue warp may be ahead of the slowest compute warp */

enum direct_phase_kind { DIRECT_SCATTER, DIRECT_SPREAD, DIRECT_ADD, DIRECT_COLLECT };

/* What the compute warps move in a step, with all its addresses. */
struct direct_phase {
  /* Of a link: source and destination. A sum has its sources here: by rank, with the own values. */
  uint64_t from[DIRECT_LINKS + 1];
  uint64_t to[DIRECT_LINKS + 1];
  uint32_t bytes[DIRECT_LINKS + 1]; /* not of a spread or a sum, where they are own_bytes */
  const uint8_t *in;                /* own values and their place in the own output; 0: none */
  uint8_t *out;
  uint32_t own_bytes, most_bytes; /* most_bytes: maximum over the links */
  uint32_t links;           /* of a scatter and a collection: those of the side; of a sum: its sources */
  uint32_t targets;         /* of a spread and a sum: links that it is sent to, in `to` from 0 on */
  uint32_t kind;            /* enum direct_phase_kind */
  uint32_t whole;           /* copies and plain sums use whole vectors, except for the last bytes */
  uint32_t scales;          /* of copies: the values are own ones */
  uint32_t made[PRIM_WARP]; /* by thread that holds a link: its steps completed with this phase */
};

__shared__ struct direct_phase direct_phases[DIRECT_PHASES];
__shared__ struct prim_descriptor
    direct_descriptors[PRIM_WARPS_MAX]; /* one per warp: spans that are not whole vectors */

/* ---- compute warps ---- */

struct direct_share_of {
  uint32_t index, count; /* this thread's index among those that move data */
};

PRIM_FN uint32_t direct_compute_warps(void) { return blockDim.x / PRIM_WARP - 2; }

/* For direct_is_plain(). */
PRIM_FN uint64_t direct_add(const struct work *work, uint64_t sum, uint64_t word) {
  if (work->dtype == TYPE_FLOAT) return word_combine(TYPE_FLOAT, OP_SUM, sum, word);
  if (work->dtype == TYPE_HALF) return word_combine(TYPE_HALF, OP_SUM, sum, word);
  return word_combine(TYPE_BFLOAT16, OP_SUM, sum, word);
}

/* Whole vectors. */

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
  const uint32_t count = phase->own_bytes / 16, targets = phase->targets + (phase->out != 0 ? 1 : 0);
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
      uint8_t *to = link < phase->targets ? direct_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_SPREAD_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < count) prim_store_vector(to + (size_t)at * 16, vectors[v]);
      }
    }
  }
}

PRIM_FN ulonglong2 direct_add_vector(const struct work *work, ulonglong2 sum, ulonglong2 vector) {
  sum.x = direct_add(work, sum.x, vector.x);
  sum.y = direct_add(work, sum.y, vector.y);
  return sum;
}

PRIM_FN void direct_store_sums(const struct direct_phase *phase, uint32_t first, uint32_t stride,
                               const ulonglong2 *sums, uint32_t vectors) {
  const uint32_t count = phase->own_bytes / 16, targets = phase->targets + (phase->out != 0 ? 1 : 0);
#pragma unroll 1
  for (uint32_t link = 0; link < targets; link++) {
    uint8_t *to = link < phase->targets ? direct_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
    for (uint32_t v = 0; v < vectors; v++) {
      const uint32_t at = first + v * stride;
      if (at < count) prim_store_vector(to + (size_t)at * 16, sums[v]);
    }
  }
}

/* Four sources at a time: all their loads are issued before the first sum. */
PRIM_FN void direct_add_many(const struct direct_phase *phase, struct direct_share_of share) {
  const struct work *work = direct_of();
  const uint32_t count = phase->own_bytes / 16;
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
    direct_store_sums(phase, first, share.count, sums, DIRECT_VECTORS);
  }
}

/* The two sources of two ranks, with registers for more vectors of each, which it would not have inlined. */
static __device__ __noinline__ void direct_add_two(const struct direct_phase *phase,
                                                   struct direct_share_of share) {
  const struct work *work = direct_of();
  const uint32_t count = phase->own_bytes / 16;
#pragma unroll 1
  for (uint32_t first = share.index; first < count; first += DIRECT_PAIR_VECTORS * share.count) {
    ulonglong2 sums[DIRECT_PAIR_VECTORS], others[DIRECT_PAIR_VECTORS];
#pragma unroll
    for (uint32_t v = 0; v < DIRECT_PAIR_VECTORS; v++) {
      const uint32_t at = first + v * share.count;
      if (at < count) sums[v] = prim_load_pair(direct_vector(&phase->from[0], at));
      if (at < count) others[v] = prim_load_pair(direct_vector(&phase->from[1], at));
    }
#pragma unroll
    for (uint32_t v = 0; v < DIRECT_PAIR_VECTORS; v++) sums[v] = direct_add_vector(work, sums[v], others[v]);
    direct_store_sums(phase, first, share.count, sums, DIRECT_PAIR_VECTORS);
  }
}

PRIM_FN void direct_add_vectors(const struct direct_phase *phase, struct direct_share_of share) {
  if (DIRECT_PAIR) direct_add_two(phase, share);
  else direct_add_many(phase, share);
}

/* Spans of any type, operator and alignment. */

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
                      (uint8_t *)(uintptr_t)phase->to[link] + skip, phase->bytes[link] - skip, phase->scales);
  }
  direct_carry_copy(phase->in, phase->out, phase->own_bytes, false);
}

PRIM_FN void direct_spread_rest(const struct direct_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
#pragma unroll 1
  for (uint32_t link = 0; link < phase->targets; link++)
    direct_carry_copy(phase->in + skip, (uint8_t *)(uintptr_t)phase->to[link] + skip, phase->own_bytes - skip,
                      phase->scales);
  if (phase->out != 0) direct_carry_copy(phase->in + skip, phase->out + skip, phase->own_bytes - skip, false);
}

PRIM_FN void direct_add_rest(const struct direct_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
  if (skip == phase->own_bytes) return;
  struct prim_descriptor *descriptor = direct_descriptor();
  if (prim_lane() == 0) {
    direct_descriptor_begin(descriptor, phase->own_bytes - skip);
    descriptor->own_index = direct_place(direct_of());
    descriptor->flags = descriptor->op == OP_PRE_MUL_SUM    ? PRIM_SCALES
                        : descriptor->op == OP_SUM_POST_DIV ? PRIM_DIVIDES
                                                            : 0;
    descriptor->first = (const uint8_t *)(uintptr_t)phase->from[0] + skip;
    for (uint32_t source = 1; source <= phase->links; source++)
      descriptor->second[descriptor->second_count++] = (const uint8_t *)(uintptr_t)phase->from[source] + skip;
    /* A span has a place of its own: the output, or, of a sum that is only sent, the first link's. */
    const bool keeps = phase->out != 0;
    descriptor->out = (keeps ? phase->out : (uint8_t *)(uintptr_t)phase->to[0]) + skip;
    for (uint32_t link = keeps ? 0 : 1; link < phase->targets; link++)
      descriptor->other[descriptor->other_count++] = (uint8_t *)(uintptr_t)phase->to[link] + skip;
  }
  direct_carry();
}

PRIM_FN void direct_run_phase(const struct direct_phase *phase, struct direct_share_of share) {
  switch (phase->kind) {
    case DIRECT_SCATTER:
    case DIRECT_COLLECT:
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
    while (!__all_sync(PRIM_ALL_LANES, prim_peek(&direct_issued) > number)) {
      const bool ended = prim_peek(&direct_ended) == number + 1;
      if (__any_sync(PRIM_ALL_LANES, ended || *(volatile uint32_t *)&direct_stopped != 0)) return;
    }
    prim_converge_reads(); /* the phase is read after it */
    direct_run_phase(&direct_phases[number % DIRECT_PHASES], share);
    __syncwarp();
    if (prim_lane() == 0) prim_post(&direct_done[direct_warp()], number + 1);
  }
}

/* Phases that all compute warps have completed; `seen`: and the commit warp has processed. */
PRIM_FN uint32_t direct_phases_done(bool seen) {
  uint32_t done = UINT32_MAX;
  if (prim_lane() < direct_compute_warps() + (seen ? 1 : 0)) done = prim_peek(&direct_done[1 + prim_lane()]);
  return __reduce_min_sync(PRIM_ALL_LANES, done);
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
  return ((const uint64_t *)&direct_further[links])[before + direct_index()];
}

struct direct_issue {
  uint32_t issued; /* phases */
  uint32_t made;   /* steps on this thread's link */
  bool taken;      /* the published addresses have arrived */
  bool shows;      /* send link: the receiver reads our input, or there is no receiver */
  bool moves;      /* the next step has a phase */
  uint32_t places; /* the low bits of its addresses that this thread wrote, ORed */
};

PRIM_FN bool direct_receives_zero_copy(void) {
  const struct work *work = direct_of();
  return (work->flags & WORK_DIRECT_RECV) != 0 && (work->flags & WORK_OUTPUT_HIDDEN) == 0 &&
         direct_work.out != 0;
}

/* Synchronizes issue and commit warps after both have read the counters, so that the commit warp may write
 * them. No other warp reads what earlier kernels wrote before it gets a phase. */
PRIM_FN void direct_both_read(bool waits) {
  if (waits) PRIM_BARRIER_SYNC(DIRECT_READ_BARRIER, PRIM_CONSTANT(2 * PRIM_WARP));
  else PRIM_BARRIER_ARRIVE(DIRECT_READ_BARRIER, PRIM_CONSTANT(2 * PRIM_WARP));
}

/* Waits for the data of the receive links for which `asks` is true. */
PRIM_FN bool direct_await_data(struct direct_run *it, bool asks) {
  while (!__all_sync(PRIM_ALL_LANES, !asks || link_has_data(&it->link, 1)))
    if (direct_is_stopped(it)) return false;
  return true;
}

/* The memory that this thread's link may publish: the receiver its output, the sender its input. */
PRIM_FN bool direct_is_shown(const struct direct_run *it) {
  const uint32_t flag = it->sends ? WORK_DIRECT_SEND : WORK_SHOWS_INPUT;
  return it->keeps && (direct_of()->flags & flag) != 0;
}

/* Takes the published outputs of all receivers and inputs of all senders, as the link's `direct`; their
 * arrival also means that those ranks have begun. On a wrong size it stops; the commit warp reports the
 * error. */
PRIM_FN bool direct_take_shown(struct direct_run *it, struct direct_issue *issue) {
  const struct link *link = &it->link;
  const bool asks = direct_is_shown(it);
  const uint32_t tag = it->tag;
  const uint64_t agreed = lane_agreed_bytes(direct_of());
  uint64_t bytes = agreed, address = 0;
  bool there = !asks;
  if (issue->taken) return true;
  while (!__all_sync(PRIM_ALL_LANES, there)) {
    /* Two loads at once: the second one's order serves both. */
    if (!there && it->sends)
      there = prim_tagged_glance(&link->sender->offer, tag, &address) &
              prim_tagged_read(&link->sender->offer_bytes, tag, &bytes);
    else if (!there)
      there = prim_tagged_glance(&link->receiver->source, tag, &address) &
              prim_tagged_read(it->announced, tag, &bytes);
    if (direct_is_stopped(it)) return false;
  }
  it->link.direct = (uint8_t *)(uintptr_t)address;
  issue->taken = true;
  while (__any_sync(PRIM_ALL_LANES, asks && bytes != agreed))
    if (direct_is_stopped(it)) return false;
  return true;
}

/* Whether the step reads its senders' inputs where they lie. */
PRIM_FN bool direct_reads_inputs(const struct step *step) {
  return (step->flags & STEP_REDUCE) != 0 && (direct_of()->flags & WORK_SHOWS_INPUT) != 0;
}

/* Waits for what a step needs: published addresses, slots, and steps of ranks that publish no input. In
 * place, a sum may overwrite values that the block still reads and sends. */
PRIM_FN bool direct_await_step(struct direct_run *it, struct direct_issue *issue, const struct step *step) {
  const bool names = direct_names(it, step);
  while ((step->flags & STEP_IN_ORDER) != 0 && direct_phases_done(false) < issue->issued)
    if (direct_is_stopped(it)) return false;
  if ((step->flags & (STEP_SEND_FINAL | STEP_REDUCE)) != 0 && !direct_take_shown(it, issue)) return false;
  return direct_await_slots(it, names, 1) &&
         direct_await_data(it, names && !it->sends && !(direct_reads_inputs(step) && it->link.direct != 0));
}

/* Whether compute warps have nothing to move: receivers read our input, or senders store into our output.
 * What such a step signals is posted with the next phase. */
PRIM_FN bool direct_is_still(const struct direct_issue *issue, const struct step *step) {
  if (step->flags & STEP_RECV)
    return (step->flags & (STEP_REDUCE | STEP_SEND)) == 0 && direct_receives_zero_copy();
  if ((step->flags & STEP_SEND) == 0) return false;
  return __all_sync(PRIM_ALL_LANES, issue->shows) != 0;
}

/* A step that passes on what it receives, and one that copies input to output, are spreads too. */
PRIM_FN uint32_t direct_kind(const struct step *step) {
  if (step->flags & STEP_REDUCE) return DIRECT_ADD;
  if ((step->flags & (STEP_RECV | STEP_SEND)) == STEP_RECV) return DIRECT_COLLECT;
  return step_is_each(step) ? DIRECT_SCATTER : DIRECT_SPREAD;
}

PRIM_FN bool direct_passes_on(const struct step *step) {
  return (step->flags & (STEP_RECV | STEP_SEND | STEP_REDUCE)) == (STEP_RECV | STEP_SEND);
}

PRIM_FN struct direct_phase *direct_next_phase(const struct direct_issue *issue) {
  return &direct_phases[issue->issued % DIRECT_PHASES];
}

/* What thread 0 writes of the own values of a sum, of a block for all links, or of a copy, and of all links.
 */
PRIM_FN void direct_prepare_own(const struct step *step, struct direct_phase *phase) {
  const bool each = step_is_each(step), keeps = (step->flags & STEP_KEEP) != 0;
  const bool owns = (step->flags & STEP_COPY_IN) != 0 && (keeps || !each);
  const size_t row = each ? step_block_offset(step, step->own_index) : 0;
  phase->kind = direct_kind(step);
  phase->links = (step->flags & STEP_RECV) != 0 ? direct_of()->recv_count : direct_of()->send_count;
  phase->targets = (step->flags & STEP_SEND) != 0 && !each ? (uint32_t)__popc(step->send_links) : 0;
  phase->most_bytes = direct_bytes(step->count);
  phase->scales = (step->flags & (STEP_COPY_IN | STEP_SEND)) == (STEP_COPY_IN | STEP_SEND);
  phase->in = owns ? direct_in(step->in_offset + row) : 0;
  phase->out = owns && keeps ? direct_out(step->out_offset + row) : 0;
  if (direct_passes_on(step)) phase->out = direct_out(step->out_offset); /* `in` is the slot */
  phase->own_bytes = !owns && !direct_passes_on(step) ? 0
                     : each                           ? direct_bytes(step_block_count(step, step->own_index))
                                                      : phase->most_bytes;
  if (phase->kind == DIRECT_ADD) phase->from[step->own_index] = (uint64_t)(uintptr_t)phase->in;
}

/* Writes what is known of the next step before its counters and offers: once compute warps and commit warp
 * have released the phase's record. */
PRIM_FN bool direct_prepare_step(struct direct_run *it, struct direct_issue *issue, const struct step *step) {
  const uint32_t index = direct_index();
  issue->places = 0;
  issue->moves = !direct_is_still(issue, step);
  if (!issue->moves) return true;
  while (issue->issued >= DIRECT_PHASES && direct_phases_done(true) <= issue->issued - DIRECT_PHASES)
    if (direct_is_stopped(it)) return false;
  __syncwarp(); /* each lane has seen some warps done */
  struct direct_phase *phase = direct_next_phase(issue);
  if (prim_lane() <= DIRECT_LINKS) phase->bytes[prim_lane()] = 0;
  __syncwarp();
  const bool apart = step_is_each(step) || direct_kind(step) == DIRECT_COLLECT; /* a block of its own */
  if (apart && direct_names(it, step)) {
    const uint64_t user = (uint64_t)(uintptr_t)direct_user(step, index, it->sends);
    (it->sends ? phase->from : phase->to)[index] = user;
    issue->places = (uint32_t)user;
    phase->bytes[index] = it->sends && issue->shows ? 0 : direct_bytes(step_link_count(step, index));
  }
  if (prim_lane() != 0) return true;
  direct_prepare_own(step, phase);
  if (!step_is_each(step)) issue->places |= (uint32_t)((uintptr_t)phase->in | (uintptr_t)phase->out);
  return true;
}

/* The link's end of what the step moves: a slot, or the memory that the other rank has shown. */
PRIM_FN uint64_t direct_place(const struct direct_run *it, const struct step *step) {
  const bool direct =
      it->link.direct != 0 && (step->flags & (it->sends ? STEP_SEND_FINAL : STEP_REDUCE)) != 0;
  if (!direct) return (uint64_t)(uintptr_t)link_slot(&it->link);
  const size_t offset = it->sends ? step_link_out(step, direct_index(), true) : step->in_offset;
  return (uint64_t)(uintptr_t)it->link.direct + offset * direct_of()->element_bytes;
}

/* The link's number among those that the step sends to. */
PRIM_FN uint32_t direct_target(const struct step *step, uint32_t index) {
  return (uint32_t)__popc(step->send_links & ((1u << index) - 1));
}

/* Adds the links' ends, and gives the phase to the compute warps. */
PRIM_FN void direct_issue_phase(const struct direct_run *it, struct direct_issue *issue,
                                const struct step *step) {
  struct direct_phase *phase = direct_next_phase(issue);
  const uint32_t index = direct_index();
  const bool sums = (step->flags & STEP_REDUCE) != 0;
  const bool plain =
      sums ? direct_is_plain() : (step->flags & STEP_RECV) != 0 || direct_of()->op != OP_PRE_MUL_SUM;
  if (direct_names(it, step)) {
    const uint64_t place = direct_place(it, step);
    issue->places |= (uint32_t)place;
    if (it->sends) phase->to[step_is_each(step) ? index : direct_target(step, index)] = place;
    else if (direct_passes_on(step)) phase->in = (const uint8_t *)(uintptr_t)place;
    else phase->from[sums ? step_block(step, index) : index] = place;
  }
  phase->made[prim_lane()] = issue->made;
  const bool whole = __all_sync(PRIM_ALL_LANES, (issue->places & 15) == 0) != 0 && plain;
  issue->issued += 1;
  if (prim_lane() == 0) phase->whole = whole;
  __syncwarp();
  if (prim_lane() == 0) prim_post(&direct_issued, issue->issued);
}

/* Makes a step that is prepared, when its data is available. */
PRIM_FN bool direct_issue_step(struct direct_run *it, struct direct_issue *issue, const struct step *step) {
  if (!direct_await_step(it, issue, step)) return false;
  if (direct_names(it, step)) issue->made += 1;
  if (issue->moves) direct_issue_phase(it, issue, step);
  if (direct_names(it, step)) link_advance(&it->link, 1);
  return true;
}

PRIM_FN void direct_issue_begin(const struct direct_run *it, struct direct_issue *issue) {
  issue->issued = issue->made = 0;
  issue->taken = (direct_of()->flags & (WORK_DIRECT_SEND | WORK_SHOWS_INPUT)) == 0;
  issue->shows = !it->sends || !it->keeps || direct_shift_of(it) != LAUNCH_HIDDEN;
}

/* Not inlined: the step would not fit in registers beside the rest, and the code is cached when it runs
 * again. */
static __device__ __noinline__ bool direct_next_step(struct direct_iter *steps, struct step *step) {
  return direct_next(steps, direct_of(), step);
}

PRIM_FN void direct_issue_steps(struct direct_run *it, bool awaits) {
  struct direct_issue issue;
  struct direct_iter steps;
  struct step step;
  direct_issue_begin(it, &issue);
  direct_begin(&steps, direct_of());
  uint32_t early = 0; /* steps before the first one that moves data or receives */
  bool more = direct_next_step(&steps, &step);
  for (; more && (step.flags & STEP_RECV) == 0 && direct_is_still(&issue, &step); early++)
    more = direct_next_step(&steps, &step);
  more = more && direct_prepare_step(it, &issue, &step);
  if (awaits) launch_await_previous();
  direct_open(it);
  direct_both_read(false);
  if (early > 0 && !direct_await_slots(it, true, early)) return;
  if (it->sends && it->keeps) {
    link_advance(&it->link, early);
    issue.made = early;
  }
  while (more) {
    if (!direct_issue_step(it, &issue, &step)) return;
    more = direct_next_step(&steps, &step);
    if (more && !direct_prepare_step(it, &issue, &step)) return;
  }
  if (prim_lane() == 0) prim_post(&direct_ended, issue.issued + 1);
}

/* ---- commit warp ---- */

/* Publishes the output's address to every sender (0: use the slots), and the input's address to every
 * receiver. */
PRIM_FN void direct_show(const struct direct_run *it) {
  const uint32_t tag = it->tag;
  const uint64_t shift = direct_shift_of(it);
  const bool hidden = it->sends ? shift == LAUNCH_HIDDEN : !direct_receives_zero_copy();
  const void *memory = it->sends ? direct_work.in : direct_work.out;
  const uint64_t address = hidden ? 0 : (uint64_t)(uintptr_t)memory + shift;
  if (!it->keeps || (direct_of()->flags & (it->sends ? WORK_SHOWS_INPUT : WORK_DIRECT_RECV)) == 0) return;
  if (!it->sends) prim_tagged_write(&it->link.sender->offer_bytes, tag, lane_agreed_bytes(direct_of()));
  prim_tagged_write(it->sends ? &it->link.receiver->source : &it->link.sender->offer, tag, address);
}

/* Posts `steps` steps of the operation on this thread's link, which the compute warps have completed. */
PRIM_FN void direct_signal(struct direct_run *it, uint32_t steps) {
  struct link *link = &it->link;
  const uint64_t before = link->posted, now = link->step + steps;
  if (!it->keeps || now == before) return;
  link->posted = now;
  if (it->sends) {
    prim_fence();
    prim_store_word(&link->receiver->tail, now);
  } else if (fifo_frees_now(before, now)) {
    prim_store_word(&link->sender->head, now);
  }
}

/* Waits until the receivers have freed everything: they read the input, which the user may overwrite next. */
PRIM_FN bool direct_await_heads(struct direct_run *it) {
  const bool asks = it->sends && it->keeps;
  while (!__all_sync(PRIM_ALL_LANES, !asks || link_all_freed(&it->link)))
    if (direct_is_stopped(it)) return false;
  return true;
}

/* Sizes are compared after the first tail, while the compute warps move data; if posting it has to wait,
 * before. */
#define DIRECT_LOOKS_FIRST 64u

/* Saves where the next operation begins, which is known when this one begins. */
PRIM_FN void direct_save_all(const struct direct_run *it, uint32_t steps) {
  direct_both_read(true);
  direct_save(it, steps, 0);
  __syncwarp();
  __threadfence();
}

/* Posts what the compute warps have done, until nothing is left. A receive link's slots are freed once its
 * size is compared: the sender's next operation may announce its own there. A receiver that has everything
 * may show its next operation's size before this warp has seen this one's; the issue warp saw it before it
 * issued what goes there. */
PRIM_FN bool direct_commit_all(struct direct_run *it) {
  for (uint32_t done = 0, steps = 0;;) {
    const uint32_t ended = prim_peek_together(&direct_ended);
    const uint32_t issued = prim_peek_together(&direct_issued);
    const uint32_t now = size_min(direct_phases_done(false), issued);
    const struct direct_phase *latest = &direct_phases[(now - 1) % DIRECT_PHASES];
    if (now != done) steps = latest->made[prim_lane()]; /* later it may be another's */
    __syncwarp();
    if (now != done && prim_lane() == 0) prim_post(&direct_done[direct_warp()], now);
    const bool agreed = it->link.agreed;
    const bool all_agreed = __all_sync(PRIM_ALL_LANES, agreed) != 0;
    if (now > 0 && (now != done || !all_agreed) && (agreed || it->sends)) direct_signal(it, steps);
    done = now;
    if (!all_agreed && (done > 0 || it->looks > DIRECT_LOOKS_FIRST) && !direct_compare(it)) return false;
    if (__all_sync(PRIM_ALL_LANES, ended == done + 1 && (agreed || it->sends))) return true;
    if (direct_is_stopped(it)) return false;
  }
}

PRIM_FN void direct_commit_phases(struct direct_run *it, bool awaits) {
  const struct work *work = direct_of();
  const uint32_t all = (uint32_t)direct_loops(work) * direct_link_steps(work);
  const bool reads = work->algo != ALGO_TWO_SHOT && (work->flags & WORK_SHOWS_INPUT) != 0;
  if (awaits) launch_await_previous();
  direct_open(it);
  direct_show(it);
  if (!direct_announce(it)) return;
  direct_signal_head(it);
  direct_save_all(it, all);
  it->link.agreed = !it->keeps || (it->sends && (work->flags & WORK_DIRECT_SEND) == 0);
  if (!direct_commit_all(it)) return;
  /* The user may overwrite the input once all ranks have read it: returned sums or heads show this. */
  it->link.step += all;
  if (!reads) return;
  direct_signal_head(it);
  direct_await_heads(it);
}

/* ---- the block ---- */

/* `awaits`: the launch's first work, before which nothing that an earlier kernel wrote may be read. */
PRIM_FN void direct_run_phases(const struct launch_arguments *arguments, bool awaits) {
  struct direct_run it;
  const bool issues = direct_warp() == 0;
  if (!issues && !direct_commits()) {
    direct_carry_phases(awaits);
    return;
  }
  direct_prepare(&it, arguments);
  if (issues) direct_issue_steps(&it, awaits);
  else direct_commit_phases(&it, awaits);
}

#endif
