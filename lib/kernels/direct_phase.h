/* direct_phase.h: a block of direct collectives of any length. The first warp, the issue warp, makes the steps:
 * it waits for slots, counters and offers, and writes down what each step moves, as a phase with all its
 * addresses. The last one, the commit warp, announces and compares sizes, makes offers, fences, and posts and
 * saves counters. The warps between carry out the phases (direct_ll.h, direct_simple.h). */
#ifndef TUTTI_KERNELS_DIRECT_PHASE_H
#define TUTTI_KERNELS_DIRECT_PHASE_H

#include "kernels/direct.h"

#define DIRECT_PHASES 4u             /* by which the issue warp may be ahead of the slowest compute warp */

enum direct_phase_kind { DIRECT_SCATTER, DIRECT_SPREAD, DIRECT_ADD, DIRECT_COLLECT };

/* What the compute warps move in a step, with all its addresses. */
struct direct_phase {
  /* Of a link: source and destination; over LL that of its lines is the first one's. A sum has its sources
   * here: over Simple by rank, with the own values. */
  uint64_t from[DIRECT_LINKS + 1];
  uint64_t to[DIRECT_LINKS + 1];
  uint32_t bytes[DIRECT_LINKS + 1]; /* not of a spread or a sum, where they are own_bytes */
  uint32_t from_flag[DIRECT_LINKS], to_flag[DIRECT_LINKS]; /* LL: of a link's lines */
  const uint8_t *in; /* own values, except of a sum over Simple; and their place in the own output; 0: none */
  uint8_t *out;
  uint32_t own_bytes, most_bytes; /* most_bytes: maximum over the links */
  uint32_t links;                 /* number of links of the phase */
  uint32_t kind;                  /* enum direct_phase_kind */
  uint32_t whole;                 /* Simple: copies and plain sums use whole vectors, except for the last bytes */
  uint32_t sends;                 /* of a sum: it is sent to all links */
  uint32_t signaled, freed;       /* steps of every send and receive link completed with this phase */
};

__shared__ struct direct_phase direct_phases[DIRECT_PHASES];
/* ---- compute warps ---- */

struct direct_share_of {
  uint32_t index, count; /* this thread's index among those that move data */
};

PRIM_FN uint32_t direct_compute_warps(void) { return blockDim.x / PRIM_WARP - 2; }

/* Carries out the thread's share of a phase; false if the block was aborted. Of each protocol. */
PRIM_FN bool direct_run_phase(const struct direct_phase *phase, struct direct_share_of share);

PRIM_FN void direct_carry_phases(bool awaits) {
  const struct direct_share_of share = {threadIdx.x - PRIM_WARP, direct_compute_warps() * PRIM_WARP};
  if (awaits) launch_await_previous();
  for (uint32_t number = 0;; number++) {
    while (!__all_sync(PRIM_ALL_LANES, *(volatile uint32_t *)&direct_issued > number)) {
      const bool ended = *(volatile uint32_t *)&direct_ended == number + 1;
      if (__any_sync(PRIM_ALL_LANES, ended || *(volatile uint32_t *)&direct_stopped != 0)) return;
    }
    if (!direct_run_phase(&direct_phases[number % DIRECT_PHASES], share)) return;
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = number + 1;
  }
}

/* Phases that all compute warps have completed; `seen`: and the commit warp has processed. */
PRIM_FN uint32_t direct_phases_done(bool seen) {
  uint32_t done = UINT32_MAX;
  if (prim_lane() < direct_compute_warps() + (seen ? 1 : 0))
    done = *(volatile uint32_t *)&direct_done[1 + prim_lane()];
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
  uint32_t issued;          /* phases */
  uint32_t signaled, freed; /* steps made on each send link, and on each receive link */
  bool taken;               /* the published addresses have arrived */
  bool shows;               /* send link: the receiver reads our input, or there is no receiver */
  bool zero_copy;           /* senders store final values in our output */
  bool plain;               /* sums of the types common in training */
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
    if (!there && it->sends)
      there = prim_tagged_read(&link->sender->offer, tag, &address) &
              prim_tagged_read(&link->sender->offer_bytes, tag, &bytes);
    else if (!there)
      there = prim_tagged_read(&link->receiver->source, tag, &address) &
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
  if (direct_is_ll()) return direct_await_slots(it, names, 1);
  if ((step->flags & (STEP_SEND_FINAL | STEP_REDUCE)) != 0 && !direct_take_shown(it, issue)) return false;
  return direct_await_slots(it, names, 1) &&
         direct_await_data(it, names && !it->sends && !(direct_reads_inputs(step) && it->link.direct != 0));
}

/* Returns the next phase's record once compute warps and commit warp have released it. */
PRIM_FN struct direct_phase *direct_phase_begin(struct direct_run *it, struct direct_issue *issue,
                                                uint32_t kind) {
  while (issue->issued >= DIRECT_PHASES && direct_phases_done(true) <= issue->issued - DIRECT_PHASES)
    if (direct_is_stopped(it)) return 0;
  struct direct_phase *phase = &direct_phases[issue->issued % DIRECT_PHASES];
  if (prim_lane() <= DIRECT_LINKS) phase->bytes[prim_lane()] = 0;
  if (prim_lane() == 0) {
    phase->kind = kind;
    phase->links =
        kind == DIRECT_ADD || kind == DIRECT_COLLECT ? direct_of()->recv_count : direct_of()->send_count;
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

/* Where what arrives on this thread's link lies in the fifo. */
PRIM_FN uint64_t direct_place(const struct direct_run *it) {
  return direct_is_ll() ? direct_lines(&it->link) : (uint64_t)(uintptr_t)link_slot(&it->link);
}

/* Where this thread's link sends the step's data: to the receiver's output or a slot. */
PRIM_FN uint64_t direct_target(const struct direct_run *it, const struct step *step) {
  uint8_t *to = (uint8_t *)(uintptr_t)direct_place(it);
  if (!direct_is_ll() && (step->flags & STEP_SEND_FINAL) != 0 && it->link.direct != 0)
    to = it->link.direct + step_link_out(step, direct_index(), true) * direct_of()->element_bytes;
  return (uint64_t)(uintptr_t)to;
}

/* To every link its own block of the input, or the same block; and the own one to the output if the step
 * keeps it. */
PRIM_FN void direct_write_send(const struct direct_run *it, struct direct_issue *issue,
                               const struct step *step, struct direct_phase *phase) {
  const bool each = step_is_each(step);
  const uint32_t index = direct_index();
  uint64_t places = 0;
  if (direct_names(it, step) && it->sends) {
    phase->to[index] = places = direct_target(it, step);
    if (each) {
      phase->from[index] = (uint64_t)(uintptr_t)direct_in(step_link_in(step, index));
      phase->bytes[index] = issue->shows ? 0 : direct_bytes(step_link_count(step, index));
      places |= phase->from[index];
    }
  }
  if (prim_lane() == 0) {
    const size_t row = each ? step_block_offset(step, step->own_index) : 0;
    const bool keeps = (step->flags & STEP_KEEP) != 0;
    phase->most_bytes = direct_bytes(step->count);
    phase->sends = 1;
    if (keeps || !each) phase->in = direct_in(step->in_offset + row);
    if (keeps) phase->out = direct_out(step->out_offset + row);
    if (keeps || !each)
      phase->own_bytes = direct_bytes(each ? step_block_count(step, step->own_index) : step->count);
    if (!each) places |= (uint64_t)(uintptr_t)phase->in | (uint64_t)(uintptr_t)phase->out;
  }
  direct_phase_issue(issue, phase, places, direct_of()->op != OP_PRE_MUL_SUM);
}

/* Every link's block to the output. */
PRIM_FN void direct_write_collect(const struct direct_run *it, struct direct_issue *issue,
                                  const struct step *step, struct direct_phase *phase) {
  const uint32_t index = direct_index();
  uint64_t places = 0;
  if (direct_names(it, step) && !it->sends) {
    phase->from[index] = direct_place(it);
    phase->to[index] = places = (uint64_t)(uintptr_t)direct_user(step, index, false);
    phase->bytes[index] = direct_bytes(step_link_count(step, index));
  }
  if (prim_lane() == 0) phase->most_bytes = direct_bytes(step->count);
  direct_phase_issue(issue, phase, places, true);
}

/* A sum's sources are in the order of ranks: the received ones, each a slot or a sender's input, and the own
 * one. */
PRIM_FN void direct_write_sum(const struct direct_run *it, struct direct_issue *issue,
                              const struct step *step, struct direct_phase *phase) {
  const uint32_t index = direct_index();
  uint64_t places = 0;
  if (direct_names(it, step)) {
    const bool shown = !direct_is_ll() && !it->sends && it->link.direct != 0;
    if (it->sends) places = direct_target(it, step);
    else if (shown)
      places = (uint64_t)(uintptr_t)it->link.direct + step->in_offset * direct_of()->element_bytes;
    else places = direct_place(it);
    if (it->sends) phase->to[index] = places;
    else phase->from[direct_is_ll() ? index : step_block(step, index)] = places;
  }
  if (prim_lane() == 0) {
    phase->in = direct_in(step->in_offset);
    if (!direct_is_ll()) phase->from[step->own_index] = (uint64_t)(uintptr_t)phase->in;
    phase->out = direct_out(step->out_offset);
    phase->own_bytes = direct_bytes(step->count);
    phase->sends = (step->flags & STEP_SEND) != 0;
    places |= (uint64_t)(uintptr_t)phase->in | (uint64_t)(uintptr_t)phase->out;
  }
  direct_phase_issue(issue, phase, places, issue->plain);
}

/* Makes a step when its data is available. What nothing moves for is posted with the next phase. */
PRIM_FN bool direct_issue_step(struct direct_run *it, struct direct_issue *issue, const struct step *step) {
  const bool sums = (step->flags & STEP_REDUCE) != 0, recvs = (step->flags & STEP_RECV) != 0;
  if (!direct_await_step(it, issue, step)) return false;
  issue->signaled += (step->flags & STEP_SEND) != 0;
  issue->freed += recvs;
  const bool still = recvs ? !sums && issue->zero_copy : __all_sync(PRIM_ALL_LANES, issue->shows) != 0;
  if (!still) {
    const uint32_t kind = sums                 ? DIRECT_ADD
                          : recvs              ? DIRECT_COLLECT
                          : step_is_each(step) ? DIRECT_SCATTER
                                               : DIRECT_SPREAD;
    struct direct_phase *phase = direct_phase_begin(it, issue, kind);
    if (phase == 0) return false;
    if (direct_is_ll() && direct_names(it, step))
      (it->sends ? phase->to_flag : phase->from_flag)[direct_index()] = direct_flag(it);
    if (sums) direct_write_sum(it, issue, step, phase);
    else if (recvs) direct_write_collect(it, issue, step, phase);
    else direct_write_send(it, issue, step, phase);
  }
  if (direct_is_ll()) direct_clean(it, step);
  if (!direct_names(it, step)) return true;
  if (direct_is_ll()) ll_advance(&it->link);
  else link_advance(&it->link, 1);
  return true;
}

PRIM_FN void direct_issue_begin(const struct direct_run *it, struct direct_issue *issue) {
  issue->issued = issue->signaled = issue->freed = 0;
  issue->taken = (direct_of()->flags & (WORK_DIRECT_SEND | WORK_SHOWS_INPUT)) == 0;
  issue->zero_copy = direct_receives_zero_copy();
  issue->plain = direct_is_plain();
  issue->shows = !direct_is_ll() && (!it->sends || !it->keeps || direct_shift_of(it) != LAUNCH_HIDDEN);
}

PRIM_FN void direct_issue_steps(struct direct_run *it, bool awaits) {
  struct direct_issue issue;
  struct direct_iter steps;
  struct step step;
  direct_issue_begin(it, &issue);
  direct_begin(&steps, direct_of());
  bool more = direct_next(&steps, direct_of(), &step);
  if (awaits) launch_await_previous();
  direct_open(it);
  direct_both_read(false);
  while (more) {
    if (!direct_issue_step(it, &issue, &step)) return;
    more = direct_next(&steps, direct_of(), &step);
  }
  if (prim_lane() == 0) *(volatile uint32_t *)&direct_ended = issue.issued + 1;
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
  if (direct_is_ll() && it->sends) return;
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
  direct_save(it, steps, direct_is_ll() ? steps : 0);
  __syncwarp();
  __threadfence();
}

/* Posts what the compute warps have done, until nothing is left. */
PRIM_FN bool direct_commit_all(struct direct_run *it) {
  for (uint32_t done = 0;;) {
    const uint32_t ended = prim_peek_together(&direct_ended);
    const uint32_t issued = prim_peek_together(&direct_issued);
    const uint32_t now = size_min(direct_phases_done(false), issued);
    const struct direct_phase *latest = &direct_phases[(now - 1) % DIRECT_PHASES];
    const uint32_t steps = it->sends ? latest->signaled : latest->freed;
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = now;
    if (now != done) direct_signal(it, steps);
    done = now;
    const bool agreed = __all_sync(PRIM_ALL_LANES, it->link.agreed) != 0;
    if (!agreed && (done > 0 || it->looks > DIRECT_LOOKS_FIRST) && !direct_compare(it)) return false;
    if (agreed && __all_sync(PRIM_ALL_LANES, ended == done + 1)) return true;
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
  if (reads || it->arguments->hosted != 0) direct_signal_head(it); /* a proxy waits for it */
  if (reads) direct_await_heads(it);
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
