/* mutants_step.c: iterators that yield a wrong step. */
#include "check/check.h"
#include "check/mutation.h"
#include "schedule/direct.h"

/* A step changed once. */
static uint32_t changed(struct mutation *m) {
  m->applied += 1;
  return HOOK_RUN;
}
static bool first(const struct mutation *m) { return m->applied == 0; }
static bool has(const struct step *step, uint32_t flags) { return (step->flags & flags) == flags; }

static uint32_t other_input_chunk(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_COPY_IN) || step->count == 0) return HOOK_RUN;
  if (step->in_offset >= work->chunk_count) step->in_offset -= work->chunk_count;
  else step->in_offset += work->chunk_count;
  return changed(m);
}
static uint32_t other_output_chunk(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_KEEP) || step->count == 0) return HOOK_RUN;
  if (step->out_offset >= work->chunk_count) step->out_offset -= work->chunk_count;
  else step->out_offset += work->chunk_count;
  return changed(m);
}
static uint32_t input_one_off(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_COPY_IN) || step->count == 0 || step->in_offset == 0) return HOOK_RUN;
  step->in_offset -= 1;
  return changed(m);
}
static uint32_t output_one_off(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_KEEP) || step->count == 0) return HOOK_RUN;
  step->out_offset += 1;
  return changed(m);
}
static uint32_t count_short(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || step->count == 0) return HOOK_RUN;
  step->count -= 1;
  return changed(m);
}
static uint32_t count_long(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  step->count += 1;
  return changed(m);
}
static uint32_t step_missing(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || step->count == 0) return HOOK_RUN;
  m->applied += 1;
  return HOOK_SKIP;
}
static uint32_t step_twice(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  (void)step;
  if (!first(m)) return HOOK_RUN;
  m->applied += 1;
  return HOOK_RUN_AND_ASK;
}
static uint32_t ends_early(struct mutation *m, const struct work *work, struct step *step) {
  (void)step;
  if (m->steps < 2 || work->part_count <= work->chunk_count) return HOOK_RUN;
  m->applied += 1;
  return HOOK_END;
}
static uint32_t steps_swapped(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (m->has_kept) {
    const struct step next = m->kept;
    if (m->applied > 1) {
      *step = next;
      m->has_kept = false;
      return HOOK_RUN;
    }
    m->applied += 1;
    return HOOK_RUN_AND_ASK;
  }
  if (!first(m) || m->steps < 1) return HOOK_RUN;
  m->kept = *step;
  m->has_kept = true;
  m->applied += 1;
  return HOOK_SKIP;
}
static uint32_t blocks_apart(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_EACH) || step->count == 0) return HOOK_RUN;
  step->stride += 1;
  return changed(m);
}
/* A root that is apart has no block. */
static uint32_t blocks_of(const struct work *work) {
  return work->rank_count - (direct_is_apart(work) ? 1 : 0);
}
static uint32_t row_longer(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_EACH) || step->end >= step->stride * blocks_of(work)) return HOOK_RUN;
  step->end += 1;
  return changed(m);
}
static uint32_t row_shorter(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_EACH) || step->count == 0) return HOOK_RUN;
  const size_t last = blocks_of(work) - 1u - (direct_place(work) + 1 == blocks_of(work));
  if (step_block_count(step, (uint32_t)last) == 0) return HOOK_RUN;
  step->end = last * step->stride + step_block_count(step, (uint32_t)last) - 1;
  return changed(m);
}
static uint32_t shown_as_sent(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_SEND_SHOWN)) return HOOK_RUN;
  step->flags &= ~(uint32_t)STEP_SEND_SHOWN;
  return changed(m);
}
static uint32_t shown_taken_as_sent(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_RECV_SHOWN)) return HOOK_RUN;
  step->flags &= ~(uint32_t)STEP_RECV_SHOWN;
  return changed(m);
}
static uint32_t sent_as_shown(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_COPY_IN | STEP_SEND) || has(step, STEP_SEND_SHOWN)) return HOOK_RUN;
  step->flags |= STEP_SEND_SHOWN;
  return changed(m);
}
static uint32_t keep_missing(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_KEEP) || step->count == 0) return HOOK_RUN;
  step->flags &= ~(uint32_t)STEP_KEEP;
  return changed(m);
}
static uint32_t keep_of_partial(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || has(step, STEP_KEEP) || step->count == 0) return HOOK_RUN;
  step->flags |= STEP_KEEP;
  return changed(m);
}
static uint32_t own_missing(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_COPY_IN | STEP_REDUCE) || step->count == 0) return HOOK_RUN;
  step->flags &= ~(uint32_t)(STEP_COPY_IN | (step->recv_links == 1 ? (uint32_t)STEP_REDUCE : 0));
  return changed(m);
}
static uint32_t reduce_missing(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_REDUCE) || step->count == 0) return HOOK_RUN;
  step->flags &= ~(uint32_t)STEP_REDUCE;
  return changed(m);
}
static uint32_t arrived_dropped(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_COPY_IN | STEP_REDUCE) || step->count == 0) return HOOK_RUN;
  step->flags &= ~(uint32_t)(STEP_RECV | STEP_REDUCE);
  step->recv_links = 0;
  return changed(m);
}
static uint32_t reduce_twice(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_RECV | STEP_KEEP) || has(step, STEP_REDUCE) || step->count == 0)
    return HOOK_RUN;
  step->flags |= STEP_COPY_IN | STEP_REDUCE;
  step->in_offset = step->out_offset;
  return changed(m);
}
static uint32_t input_overwrites(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_RECV | STEP_KEEP) || has(step, STEP_COPY_IN) || step->count == 0)
    return HOOK_RUN;
  step->flags = (step->flags | STEP_COPY_IN) & ~(uint32_t)(STEP_RECV | STEP_RECV_FINAL);
  step->recv_links = 0;
  step->in_offset = 0;
  return changed(m);
}
static uint32_t post_missing(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_POST_OP) || step->count == 0) return HOOK_RUN;
  step->flags &= ~(uint32_t)STEP_POST_OP;
  return changed(m);
}
static uint32_t post_twice(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_RECV | STEP_KEEP) || has(step, STEP_POST_OP) || step->count == 0)
    return HOOK_RUN;
  if (work->func != FUNC_ALL_REDUCE) return HOOK_RUN;
  step->flags |= STEP_POST_OP;
  return changed(m);
}
static uint32_t post_early(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_COPY_IN) || has(step, STEP_POST_OP) || step->count == 0) return HOOK_RUN;
  if (work->func != FUNC_ALL_REDUCE && work->func != FUNC_REDUCE && work->func != FUNC_REDUCE_SCATTER)
    return HOOK_RUN;
  step->flags |= STEP_POST_OP;
  return changed(m);
}
static uint32_t partial_sent_as_final(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_SEND) || has(step, STEP_SEND_FINAL)) return HOOK_RUN;
  step->flags |= STEP_SEND_FINAL;
  return changed(m);
}
static uint32_t final_sent_as_partial(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_SEND_FINAL)) return HOOK_RUN;
  step->flags &= ~(uint32_t)STEP_SEND_FINAL;
  return changed(m);
}
static uint32_t final_taken_as_partial(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_RECV_FINAL)) return HOOK_RUN;
  step->flags &= ~(uint32_t)STEP_RECV_FINAL;
  return changed(m);
}
static uint32_t partial_taken_as_final(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_RECV) || has(step, STEP_RECV_FINAL)) return HOOK_RUN;
  step->flags |= STEP_RECV_FINAL;
  return changed(m);
}
static uint32_t send_missing(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_SEND)) return HOOK_RUN;
  step->flags &= ~(uint32_t)(STEP_SEND | STEP_SEND_FINAL);
  step->send_links = 0;
  return changed(m);
}
static uint32_t receive_missing(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_RECV)) return HOOK_RUN;
  step->flags &= ~(uint32_t)(STEP_RECV | STEP_REDUCE | STEP_RECV_FINAL);
  step->recv_links = 0;
  return changed(m);
}
static uint32_t link_dropped_of_send(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || (step->send_links & (step->send_links - 1)) == 0) return HOOK_RUN;
  step->send_links &= step->send_links - 1;
  return changed(m);
}
static uint32_t link_dropped_of_receive(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || (step->recv_links & (step->recv_links - 1)) == 0) return HOOK_RUN;
  step->recv_links &= step->recv_links - 1;
  return changed(m);
}
static uint32_t other_link(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || work->send_count < 2 || step->send_links == 0) return HOOK_RUN;
  if ((step->send_links & (step->send_links - 1)) != 0) return HOOK_RUN;
  step->send_links = step->send_links == 1 ? 2 : step->send_links / 2;
  return changed(m);
}
static uint32_t own_at_other_place(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_COPY_IN | STEP_REDUCE)) return HOOK_RUN;
  step->own_index = step->own_index == work->recv_count ? 0 : step->own_index + 1;
  return changed(m);
}
static uint32_t own_behind_the_last(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || !has(step, STEP_COPY_IN | STEP_REDUCE)) return HOOK_RUN;
  step->own_index = work->recv_count + 1u;
  return changed(m);
}
static uint32_t output_for_input(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!first(m) || !has(step, STEP_COPY_IN) || step->count == 0) return HOOK_RUN;
  step->flags |= STEP_FROM_OUTPUT;
  return changed(m);
}
/* The part's last elements, where a step ends with them. */
static uint32_t tail_missed(struct mutation *m, const struct work *work, struct step *step) {
  if (step->count == 0 || step->count == work->chunk_count) return HOOK_RUN;
  step->count = 0;
  return changed(m);
}
static uint32_t output_one_step_late(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  if (!has(step, STEP_KEEP)) return HOOK_RUN;
  const struct step now = *step;
  if (m->has_kept) {
    step->out_offset = m->kept.out_offset;
    m->applied += step->count > 0 && m->kept.out_offset != now.out_offset;
  }
  m->kept = now;
  m->has_kept = true;
  return HOOK_RUN;
}
static uint32_t other_number(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  step->chunk_index += 1;
  return changed(m);
}

/* ---- slots that steps share ---- */

static uint32_t flags_cleared(struct mutation *m, struct step *step, uint32_t flags) {
  if (!first(m) || !has(step, flags)) return HOOK_RUN;
  step->flags &= ~flags;
  return changed(m);
}
static uint32_t slot_posted_early(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  return flags_cleared(m, step, STEP_SEND_MORE);
}
static uint32_t slot_freed_early(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  return flags_cleared(m, step, STEP_RECV_MORE);
}
static uint32_t slot_kept_open(struct mutation *m, const struct work *work, struct step *step) {
  if (work->algo != ALGO_PAT || !first(m) || !has(step, STEP_SEND) || has(step, STEP_SEND_MORE))
    return HOOK_RUN;
  step->flags |= STEP_SEND_MORE;
  return changed(m);
}
static uint32_t slot_read_on(struct mutation *m, const struct work *work, struct step *step) {
  if (work->algo != ALGO_PAT || !first(m) || !has(step, STEP_RECV) || has(step, STEP_RECV_MORE))
    return HOOK_RUN;
  step->flags |= STEP_RECV_MORE;
  return changed(m);
}
static uint32_t other_place_sent(struct mutation *m, const struct work *work, struct step *step) {
  if (work->algo != ALGO_PAT || !first(m) || !has(step, STEP_SEND)) return HOOK_RUN;
  step->send_place += (uint32_t)step->count;
  return changed(m);
}
static uint32_t other_place_read(struct mutation *m, const struct work *work, struct step *step) {
  if (work->algo != ALGO_PAT || !first(m) || !has(step, STEP_RECV)) return HOOK_RUN;
  if (step->recv_place >= step->count) step->recv_place -= (uint32_t)step->count;
  else step->recv_place += (uint32_t)step->count;
  return changed(m);
}
static uint32_t writes_for_adds(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  return flags_cleared(m, step, STEP_SEND_ADD);
}
static uint32_t adds_for_writes(struct mutation *m, const struct work *work, struct step *step) {
  if (work->algo != ALGO_PAT || !first(m) || !has(step, STEP_SEND) || has(step, STEP_SEND_ADD))
    return HOOK_RUN;
  step->flags |= STEP_SEND_ADD | STEP_REDUCE;
  return changed(m);
}

/* ---- parts ---- */

static uint32_t part_not_announced(struct mutation *m, const struct work *work, struct step *step) {
  (void)work;
  return flags_cleared(m, step, STEP_PART);
}
static uint32_t step_of_other_part(struct mutation *m, const struct work *work, struct step *step) {
  if (!first(m) || (work->flags & WORK_FUSED) == 0) return HOOK_RUN;
  step->part = (uint32_t)((step->part + 1) % work->fused_count);
  return changed(m);
}

const struct mutant mutants_of_steps[] = {
    {"slot_posted_early", "a slot goes before all is in it", slot_posted_early, NULL, 0, {{0, NULL}}},
    {"slot_freed_early", "a slot is freed before all is read", slot_freed_early, NULL, 0, {{0, NULL}}},
    {"slot_kept_open", "a full slot stays open", slot_kept_open, NULL, 0, {{0, NULL}}},
    {"slot_read_on", "a slot that was read stays", slot_read_on, NULL, 0, {{0, NULL}}},
    {"other_place_sent", "a step writes another place of a slot", other_place_sent, NULL, 0, {{0, NULL}}},
    {"other_place_read", "a step reads another place of a slot", other_place_read, NULL, 0, {{0, NULL}}},
    {"writes_for_adds", "a step writes where it should add", writes_for_adds, NULL, 0, {{0, NULL}}},
    {"adds_for_writes", "a step adds where it should write", adds_for_writes, NULL, 0, {{0, NULL}}},
    {"part_not_announced", "a part begins without its size", part_not_announced, NULL, 0, {{0, NULL}}},
    {"step_of_other_part", "a step is of another part", step_of_other_part, NULL, 0, {{0, NULL}}},
    {"other_input_chunk", "a step takes another chunk of the input", other_input_chunk, NULL, 0, {{0, NULL}}},
    {"other_output_chunk",
     "a step writes another chunk of the output",
     other_output_chunk,
     NULL,
     0,
     {{0, NULL}}},
    {"input_one_off", "a step takes its input one element early", input_one_off, NULL, 0, {{0, NULL}}},
    {"output_one_off", "a step writes one element late", output_one_off, NULL, 0, {{0, NULL}}},
    {"count_short", "a step has one element less", count_short, NULL, 0, {{0, NULL}}},
    {"count_long", "steps have one element more", count_long, NULL, 0, {{0, NULL}}},
    {"step_missing", "a step is left out", step_missing, NULL, 0, {{0, NULL}}},
    {"step_twice", "a step is made twice", step_twice, NULL, 0, {{0, NULL}}},
    {"ends_early", "the steps end before the last chunk", ends_early, NULL, 0, {{0, NULL}}},
    {"steps_swapped",
     "two steps change places",
     steps_swapped,
     NULL,
     0,
     {{COLUMNS_TWO_SHOT | COLUMN(DIRECT_ALL_GATHER) | COLUMNS_DIRECT_SCATTER,
       "the two steps use different connections"},
      {COLUMN(DIRECT_ALL_REDUCE),
       "the sends of the next loop go before the sum of this one, and slots hold both"}}},
    {"blocks_apart",
     "the blocks of a step lie one element too far apart",
     blocks_apart,
     NULL,
     0,
     {{0, NULL}}},
    {"row_longer", "the last block of a step is one element too long", row_longer, NULL, 0, {{0, NULL}}},
    {"row_shorter", "the last block of a step lacks an element", row_shorter, NULL, 0, {{0, NULL}}},
    {"shown_as_sent", "an input that is read in place is sent", shown_as_sent, NULL, 0, {{0, NULL}}},
    {"shown_taken_as_sent",
     "an input that is read in place is looked for in the slot",
     shown_taken_as_sent,
     NULL,
     0,
     {{0, NULL}}},
    {"sent_as_shown", "what is read in the slot is not sent", sent_as_shown, NULL, 0, {{0, NULL}}},
    {"keep_missing",
     "a result is not written",
     keep_missing,
     NULL,
     0,
     {{COLUMN(TWO_SHOT_REDUCE), "the root only receives, and what a step only receives is written anyway"}}},
    {"keep_of_partial",
     "a value on its way is written",
     keep_of_partial,
     NULL,
     0,
     {{COLUMN(PAT_ALL_GATHER), "a block that is sent on is written where it lies"},
      {COLUMNS_TWO_SHOT, "the own shard is written where its sum goes afterwards"},
      {COLUMN(TWO_SHOT_BROADCAST), "the root has no shard of its own to write"},
      {COLUMN(RING_ALL_GATHER) | COLUMN(RING_BROADCAST) | COLUMN(DIRECT_ALL_GATHER) |
           COLUMN(DIRECT_BROADCAST) | COLUMN(FUSED_BROADCAST),
       "the only value that is not written is a rank's own one in place, which lies there"}}},
    {"own_missing", "a rank's own contribution is left out", own_missing, NULL, 0, {{0, NULL}}},
    {"reduce_missing", "a step has two values and does not combine", reduce_missing, NULL, 0, {{0, NULL}}},
    {"arrived_dropped", "a step sends its own and drops what arrived", arrived_dropped, NULL, 0, {{0, NULL}}},
    {"reduce_twice", "a finished value gets a contribution again", reduce_twice, NULL, 0, {{0, NULL}}},
    {"input_overwrites",
     "a rank keeps its input where a result belongs",
     input_overwrites,
     NULL,
     0,
     {{0, NULL}}},
    {"post_missing", "the last stage is left out", post_missing, NULL, 0, {{0, NULL}}},
    {"post_twice", "the last stage is applied to a finished value", post_twice, NULL, 0, {{0, NULL}}},
    {"post_early", "the last stage is applied to a partial sum", post_early, NULL, 0, {{0, NULL}}},
    {"partial_sent_as_final", "a partial sum is sent as final", partial_sent_as_final, NULL, 0, {{0, NULL}}},
    {"final_sent_as_partial",
     "a final value is sent as partial",
     final_sent_as_partial,
     NULL,
     0,
     {{0, NULL}}},
    {"final_taken_as_partial",
     "a final value is looked for in the slot",
     final_taken_as_partial,
     NULL,
     0,
     {{0, NULL}}},
    {"partial_taken_as_final",
     "a partial sum is looked for in the output",
     partial_taken_as_final,
     NULL,
     0,
     {{0, NULL}}},
    {"send_missing", "a step does not send", send_missing, NULL, 0, {{0, NULL}}},
    {"receive_missing", "a step does not receive", receive_missing, NULL, 0, {{0, NULL}}},
    {"link_dropped_of_send",
     "a step leaves out one of its receivers",
     link_dropped_of_send,
     NULL,
     0,
     {{0, NULL}}},
    {"link_dropped_of_receive",
     "a step leaves out one of its senders",
     link_dropped_of_receive,
     NULL,
     0,
     {{0, NULL}}},
    {"other_link", "a step sends to another rank", other_link, NULL, 0, {{0, NULL}}},
    {"own_at_other_place",
     "a rank adds its own share at another place of the order",
     own_at_other_place,
     NULL,
     0,
     {{COLUMN(RING_ALL_REDUCE) | COLUMN(RING_REDUCE_SCATTER) | COLUMN(RING_REDUCE) | COLUMN(TREE_ALL_REDUCE) |
           COLUMN(TWO_SHOT_ALL_REDUCE) | COLUMN(TWO_SHOT_REDUCE) | COLUMN(DIRECT_REDUCE) |
           COLUMN(DIRECT_REDUCE_SCATTER) | COLUMN(PAT_REDUCE_SCATTER) | COLUMN(COLLNET_CHAIN_ALL_REDUCE),
       "each element is added up in one place and handed to the others, so that all still get the same "
       "bits"}}},
    {"own_behind_the_last",
     "a rank's own share comes behind more links than there are",
     own_behind_the_last,
     NULL,
     0,
     {{0, NULL}}},
    {"output_for_input", "a step takes its output for its input", output_for_input, NULL, 0, {{0, NULL}}},
    {"tail_missed",
     "a chunk that is shorter than others is taken for empty",
     tail_missed,
     NULL,
     0,
     {{0, NULL}}},
    {"output_one_step_late",
     "results are written where the result before belongs",
     output_one_step_late,
     NULL,
     0,
     {{0, NULL}}},
    {"other_number",
     "steps bear another chunk's number",
     other_number,
     NULL,
     0,
     {{COLUMNS_ALL, "the number is for traces and reports alone"}}},
};
const uint32_t mutants_of_steps_count = sizeof mutants_of_steps / sizeof mutants_of_steps[0];
