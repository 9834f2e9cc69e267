/* move.c: the steps of one chunk of a one-sided move. What the block reads of its own rank and of others is
 * summed at its first local target, or in a spare chunk, and sent from there to all other targets. On all
 * lists a chunk is finished before the next begins, so both ends of a connection process its chunks in one
 * order, and one slot is enough. */
#include "schedules/lists.h"

/* ---- places ---- */

static void place_from(const struct onesided_place *place, struct list_step *step) {
  step->flags |= STEP_COPY_IN;
  if (place->buffer == ONESIDED_OUTPUT) step->flags |= STEP_FROM_OUTPUT;
  if (place->buffer == ONESIDED_SCRATCH) step->flags |= STEP_FROM_SCRATCH;
  step->in_chunk = place->chunk;
}

/* In place, the input is part of the output; for a reduce-scatter, the output is part of the input. */
static void place_to(const struct custom_schedule *schedule, const struct onesided_place *place,
                     struct list_step *step) {
  step->flags |= STEP_KEEP;
  step->out_chunk = place->chunk;
  if (place->buffer == ONESIDED_SCRATCH) step->flags |= STEP_TO_SCRATCH;
  if (place->buffer != ONESIDED_INPUT) return;
  if (schedule->places != CUSTOM_IN_PLACE || schedule->func == FUNC_REDUCE_SCATTER)
    step->flags |= STEP_TO_INPUT;
  else if (schedule->func == FUNC_ALL_GATHER) step->out_chunk += place->rank * schedule->chunk_count;
}

static bool place_same(const struct onesided_place *a, const struct onesided_place *b) {
  return a->rank == b->rank && a->buffer == b->buffer && a->chunk == b->chunk;
}

/* ---- moving one chunk ---- */

/* The state of one chunk's sum. */
struct state {
  struct lists *lists;
  const struct onesided_op *op;
  uint32_t block, rank, chunk;
  const struct onesided_place *places; /* sources, then targets */
  struct onesided_place own;           /* the place of the sum so far, with has_own */
  struct onesided_place kept;          /* the first local target, with has_kept */
  bool has_own, has_kept;
  bool whole;              /* the sum has all its sources */
  uint32_t source, target; /* the next remote ones */
};

static struct onesided_place place_at(const struct state *state, uint32_t index) {
  struct onesided_place place = state->places[index];
  place.chunk += state->chunk;
  return place;
}

static const struct custom_schedule *schedule_of(const struct state *state) {
  return state->lists->plan->build->schedule;
}

static ncclResult_t own_push(struct state *state, const struct list_step *step) {
  return lists_push(state->lists, &state->lists->lists[state->block], step, state->op->line);
}

/* The link of the block's list to a rank, made if necessary; the helper at the other end gets one, too. */
static ncclResult_t link_to(struct state *state, bool sends, uint32_t rank, uint16_t *links) {
  struct one_list *list = &state->lists->lists[state->block];
  uint32_t *peers = sends ? list->send_peer : list->recv_peer;
  uint32_t *count = sends ? &list->send_count : &list->recv_count, link = 0;
  while (link < *count && peers[link] != rank) link++;
  if (link == LIST_LINKS_MAX)
    return custom_fail(state->lists->plan->build, state->op->line,
                       "a block %s the memory of at most %d other ranks", sends ? "writes" : "reads",
                       LIST_LINKS_MAX);
  if (link == *count) peers[(*count)++] = rank;
  *links = (uint16_t)(1u << link);
  return ncclSuccess;
}

/* The helper's step for a place at its rank: keeps what is written there, sends what is read there. */
static ncclResult_t hand_push(struct state *state, const struct onesided_place *place, bool written) {
  struct one_list *helper = &state->lists->lists[lists_helper(state->lists, state->block, place->rank)];
  struct list_step step = {.flags = written ? STEP_RECV : STEP_SEND};
  if (written) {
    helper->recv_peer[0] = state->rank;
    helper->recv_count = 1;
    step.recv_links = 1;
    place_to(schedule_of(state), place, &step);
  } else {
    helper->send_peer[0] = state->rank;
    helper->send_count = 1;
    step.send_links = 1;
    place_from(place, &step);
  }
  return lists_push(state->lists, helper, &step, state->op->line);
}

/* ---- targets ---- */

/* Sends to as many remote targets as one step can: one per rank, in their order. */
static ncclResult_t send_some(struct state *state, struct list_step *step) {
  const struct onesided_op *op = state->op;
  for (; state->target < op->target_count; state->target++) {
    const struct onesided_place place = place_at(state, op->source_count + state->target);
    uint16_t link = 0;
    if (place.rank == state->rank) continue;
    TRY(link_to(state, true, place.rank, &link));
    if (step->send_links & link) break;
    step->send_links |= link;
    step->flags |= STEP_SEND;
    TRY(hand_push(state, &place, true));
  }
  return ncclSuccess;
}

/* The destination of the sum: the first local target, if there is one. */
static void kept_choose(struct state *state) {
  const struct onesided_op *op = state->op;
  for (uint32_t i = 0; i < op->target_count && !state->has_kept; i++) {
    state->kept = place_at(state, op->source_count + i);
    state->has_kept = state->kept.rank == state->rank;
  }
}

/* The destination of a sum without a local target. */
static ncclResult_t spare_take(struct state *state, struct onesided_place *place) {
  struct custom_schedule *schedule = state->lists->plan->build->schedule;
  uint32_t *spare = &state->lists->spare[state->block];
  if (*spare == 0 && schedule->scratch_count == CUSTOM_CHUNKS_MAX)
    return custom_fail(state->lists->plan->build, state->op->line,
                       "its sums take more than %d chunks of scratch", CUSTOM_CHUNKS_MAX);
  if (*spare == 0) *spare = ++schedule->scratch_count;
  *place = (struct onesided_place){state->rank, *spare - 1, ONESIDED_SCRATCH};
  return ncclSuccess;
}

/* A step that makes the sum, or a part of it: stored if a later step needs it, and sent when it is complete.
 */
static ncclResult_t sum_push(struct state *state, struct list_step *step, bool whole) {
  if (whole) TRY(send_some(state, step));
  state->whole = whole;
  if (state->has_kept || !whole || (step->flags & STEP_FOLD) || state->target < state->op->target_count) {
    if (state->has_kept) state->own = state->kept;
    else TRY(spare_take(state, &state->own));
    state->has_own = true;
    place_to(schedule_of(state), &state->own, step);
  }
  return own_push(state, step);
}

/* What no earlier step could do: a plain copy, further local targets, and further targets of one rank. */
static ncclResult_t send_rest(struct state *state) {
  const struct onesided_op *op = state->op;
  uint32_t own_targets = 0;
  for (bool first = !state->whole;; first = false) {
    struct list_step step = {.flags = 0};
    TRY(send_some(state, &step));
    if (!first && step.send_links == 0) break;
    place_from(&state->own, &step);
    if (first && state->has_kept) place_to(schedule_of(state), &state->kept, &step);
    TRY(own_push(state, &step));
  }
  for (uint32_t i = 0; i < op->target_count; i++) {
    const struct onesided_place place = place_at(state, op->source_count + i);
    struct list_step step = {.flags = 0};
    if (place.rank != state->rank || own_targets++ == 0) continue;
    place_from(&state->own, &step);
    place_to(schedule_of(state), &place, &step);
    TRY(own_push(state, &step));
  }
  return ncclSuccess;
}

/* ---- sources ---- */

static uint32_t own_sources(const struct state *state) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < state->op->source_count; i++) count += state->places[i].rank == state->rank;
  return count;
}

/* The local source that the others are added to: the one at the sum's destination, or the first. */
static uint32_t first_own(const struct state *state) {
  uint32_t first = state->op->source_count;
  for (uint32_t i = 0; i < state->op->source_count; i++) {
    const struct onesided_place place = place_at(state, i);
    if (place.rank != state->rank) continue;
    if (state->has_kept && place_same(&place, &state->kept)) return i;
    if (first == state->op->source_count) first = i;
  }
  return first;
}

/* Local sources: the sum of several is stored before remote ones are received. */
static ncclResult_t sum_own(struct state *state) {
  const struct onesided_op *op = state->op;
  const uint32_t own_count = own_sources(state), first = first_own(state);
  uint32_t added = 1;
  if (own_count == 0) return ncclSuccess;
  state->own = place_at(state, first);
  state->has_own = true;
  if (own_count == 1) return ncclSuccess;
  if (!state->has_kept || !place_same(&state->own, &state->kept)) {
    struct list_step step = {.flags = 0};
    place_from(&state->own, &step);
    TRY(sum_push(state, &step, false));
  }
  for (uint32_t i = 0; i < op->source_count; i++) {
    const struct onesided_place place = place_at(state, i);
    struct list_step step = {.flags = STEP_REDUCE | STEP_FOLD};
    if (place.rank != state->rank || i == first) continue;
    place_from(&place, &step);
    added += 1;
    TRY(sum_push(state, &step, added == op->source_count));
  }
  return ncclSuccess;
}

/* Remote sources: as many at once as have a connection each. */
static ncclResult_t sum_others(struct state *state) {
  const struct onesided_op *op = state->op;
  for (;;) {
    struct list_step step = {.flags = 0};
    bool more = false;
    for (; state->source < op->source_count && !more; state->source += !more) {
      const struct onesided_place place = place_at(state, state->source);
      uint16_t link = 0;
      if (place.rank == state->rank) continue;
      TRY(link_to(state, false, place.rank, &link));
      more = (step.recv_links & link) != 0;
      if (more) continue;
      step.recv_links |= link;
      TRY(hand_push(state, &place, false));
    }
    if (step.recv_links == 0) return ncclSuccess;
    step.flags |= STEP_RECV;
    if (state->has_own) place_from(&state->own, &step);
    if (state->has_own || (step.recv_links & (step.recv_links - 1)) != 0) step.flags |= STEP_REDUCE;
    TRY(sum_push(state, &step, !more));
  }
}

ncclResult_t lists_move_chunk(struct lists *lists, uint32_t block, const struct onesided_op *op,
                              uint32_t chunk) {
  struct state state = {.lists = lists,
                        .op = op,
                        .block = block,
                        .rank = lists->plan->blocks[block].rank,
                        .chunk = chunk,
                        .places = &lists->plan->places[op->first_place]};
  kept_choose(&state);
  TRY(sum_own(&state));
  TRY(sum_others(&state));
  return send_rest(&state);
}
