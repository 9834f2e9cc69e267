/* moves.c: a move of Simple (protocol/move.h) over symbols: reads its sources, combines them in their order,
 * and writes its destinations. What an address is decides what is checked: a slot, the memory of the rank at
 * a link's other end, or the rank's own. */
#include <inttypes.h>

#include "check/executor.h"

void value_swap(struct value *a, struct value *b) {
  const struct value kept = *a;
  *a = *b;
  *b = kept;
}

/* An operator without stages takes any input as a contribution. */
bool move_read_own(struct prim *prim, uint64_t address, uint64_t units, bool first_stage, struct value *out) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  if (!access_read(engine, lane, address, units, LANE_NONE, 0, out)) return false;
  for (uint32_t i = 0; i < out->count; i++) {
    struct piece *piece = &out->pieces[i];
    if (piece->expr == EXPR_OLD)
      return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX, "takes what is no input and no value yet");
    if (lane->unstaged) piece->expr += expr_is_raw(&engine->exprs, piece->expr);
    if (lane->unstaged || !first_stage || !lane->reduces || seam_fault(prim, FAULT_NO_FIRST_STAGE)) continue;
    if (!expr_is_raw(&engine->exprs, piece->expr))
      return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX,
                         "takes as its input what is no input any more: element %" PRId64, piece->origin);
    piece->expr += 1;
  }
  return true;
}

static bool may_combine(const struct prim *prim, expr_id expr) {
  const struct expr_table *exprs = &prim->engine->exprs;
  return !prim->lane->reduces ||
         (expr != EXPR_OLD && !expr_is_raw(exprs, expr) && !expr_is_final(exprs, expr));
}

static bool pair_is_sound(struct prim *prim, uint32_t peer, int64_t left_at, expr_id left, int64_t right_at,
                          expr_id right) {
  if (left_at != right_at)
    return engine_fail(prim->engine, CHECK_COMBINE, prim->lane, peer,
                       "combines element %" PRId64 " with element %" PRId64 " of another rank's input",
                       left_at, right_at);
  if (may_combine(prim, left) && may_combine(prim, right)) return true;
  return engine_fail(prim->engine, CHECK_COMBINE, prim->lane, peer,
                     "combines element %" PRId64
                     ", of which one side is finished already, or lacks the "
                     "operator's first stage",
                     left_at);
}

bool move_combine(struct prim *prim, uint32_t peer, const struct value *with) {
  struct check_engine *engine = prim->engine;
  struct value *sum = &engine->sum, *out = &engine->scratch;
  uint32_t i = 0, j = 0;
  uint64_t left_done = 0, right_done = 0;
  out->count = 0;
  while (i < sum->count && j < with->count) {
    const struct piece *left = &sum->pieces[i], *right = &with->pieces[j];
    const uint64_t left_rest = left->count - left_done, right_rest = right->count - right_done;
    const uint64_t count = left_rest < right_rest ? left_rest : right_rest;
    const int64_t left_at = left->origin + (int64_t)left_done, right_at = right->origin + (int64_t)right_done;
    if (!pair_is_sound(prim, peer, left_at, left->expr, right_at, right->expr)) return false;
    const expr_id both = expr_combine(&engine->exprs, left->expr, right->expr);
    if (both == EXPR_OLD || !value_add(out, count, left_at, both)) return engine_out_of_memory(engine);
    left_done = count == left_rest ? 0 : left_done + count;
    right_done = count == right_rest ? 0 : right_done + count;
    i += left_done == 0;
    j += right_done == 0;
  }
  value_swap(sum, out);
  return true;
}

bool move_finish(struct prim *prim) {
  struct check_engine *engine = prim->engine;
  const struct check_lane *lane = prim->lane;
  if (!lane->reduces || lane->unstaged) return true;
  for (uint32_t i = 0; i < engine->sum.count; i++) {
    struct piece *piece = &engine->sum.pieces[i];
    if (!may_combine(prim, piece->expr))
      return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX,
                         "finishes element %" PRId64 ", which is finished already or no sum", piece->origin);
    piece->expr = expr_combine(&engine->exprs, piece->expr, EXPR_POST);
    if (piece->expr == EXPR_OLD) return engine_out_of_memory(engine);
  }
  return true;
}

/* The link of the lane that uses the connection of a slot's address, on either side. */
static bool slot_link(const struct prim *prim, uint64_t address, bool sends, uint32_t *link) {
  const uint32_t index = (uint32_t)((address & ~SEAM_SLOTS) >> SEAM_CONN_SHIFT);
  if (index >= prim->engine->conn_count) return false;
  const struct conn *conn = &prim->engine->conns[index];
  *link = sends ? conn->send_link : conn->recv_link;
  return (sends ? conn->send_lane : conn->recv_lane) == seam_lane_index(prim);
}

/* If final values are stored in the output directly, where they arrive is also where the rank keeps them: the
 * first link of the step whose message has not been read. False if the source is the rank's own operand,
 * which may lie there too. */
static bool output_link(const struct prim *prim, uint32_t place, bool first_stage, uint32_t *link) {
  const struct step *step = &prim->run->step;
  const link_set left = step->recv_links & link_first(prim->run->work->recv_count) & ~prim->took;
  const bool own = first_stage || ((step->flags & STEP_COPY_IN) != 0 && place == step->own_index);
  if ((step->flags & STEP_RECV_FINAL) == 0 || !prim->run->zero_copy_receive || left == 0 || own) return false;
  *link = (uint32_t)__builtin_ctzll(left);
  return true;
}

/* Source number `place`. *peer: where it comes from, or UINT32_MAX. */
static bool source_read(struct prim *prim, const struct move *move, uint32_t place, uint64_t units,
                        struct value *out, uint32_t *peer) {
  const uint64_t address = (uint64_t)(uintptr_t)move->source[place];
  const bool first_stage = (move->pre_op_sources >> place & 1) != 0;
  uint32_t link;
  *peer = UINT32_MAX;
  if ((address & SEAM_SLOTS) != 0) {
    if (slot_link(prim, address, false, &link)) {
      *peer = seam_recv_conn(prim, link)->sender;
      return slots_read(prim, link, address, units, out);
    }
    if (slot_link(prim, address, true, &link)) {
      *peer = seam_send_conn(prim, link)->receiver;
      return slots_read_sent(prim, link, address, units, out);
    }
    return engine_fail(prim->engine, CHECK_SLOT, prim->lane, UINT32_MAX,
                       "reads slots of a connection that it does not use");
  }
  if (address >> SEAM_WINDOW_SHIFT != 0) {
    link = (uint32_t)(address >> SEAM_WINDOW_SHIFT) - 1;
    *peer = seam_recv_conn(prim, link)->sender;
    return slots_read_shown(prim, link, address & SEAM_ADDRESS_MASK, units, out);
  }
  if (output_link(prim, place, first_stage, &link)) {
    *peer = seam_recv_conn(prim, link)->sender;
    return slots_read_output(prim, link, address, units, out);
  }
  return move_read_own(prim, address, units, first_stage, out);
}

/* Stores engine->sum. */
static bool destination_write(struct prim *prim, const void *destination, uint64_t units) {
  const uint64_t address = (uint64_t)(uintptr_t)destination;
  uint32_t link;
  if ((address & SEAM_SLOTS) != 0) {
    if (slot_link(prim, address, true, &link)) return slots_write(prim, link, address, 0, units);
    return engine_fail(prim->engine, CHECK_SLOT, prim->lane, UINT32_MAX,
                       "writes slots of a connection on which it does not send");
  }
  if (address >> SEAM_WINDOW_SHIFT == 0)
    return access_write(prim->engine, prim->lane, prim->lane->rank, address, &prim->engine->sum);
  link = (uint32_t)(address >> SEAM_WINDOW_SHIFT) - 1;
  return slots_write_output(prim, link, address & SEAM_ADDRESS_MASK, units);
}

static bool move_each(struct prim *prim, const struct move *move) {
  uint32_t peer;
  for (uint32_t k = 0; k < move->source_count; k++) {
    const uint64_t units = (uint64_t)move->counts[k] * prim->lane->scale;
    if (!source_read(prim, move, k, units, &prim->engine->sum, &peer) ||
        !destination_write(prim, move->destination[k], units))
      return false;
  }
  return true;
}

static bool move_all(struct prim *prim, const struct move *move) {
  struct check_engine *engine = prim->engine;
  const uint64_t units = (uint64_t)move->count * prim->lane->scale;
  const uint32_t flags = prim->run->step.flags;
  uint32_t peer;
  if (move->source_count == 0 && move->destination_count > 0)
    return engine_fail(engine, CHECK_COMBINE, prim->lane, UINT32_MAX,
                       "hands on a value that comes from nowhere");
  for (uint32_t k = 0; k < move->source_count; k++) {
    const bool fold = (flags & STEP_FOLD) != 0 && k + 1u == move->source_count;
    if (!source_read(prim, move, k, units, k == 0 ? &engine->sum : &engine->arrived, &peer)) return false;
    if (k > 0 && (flags & STEP_REDUCE) == 0 && !fold)
      return engine_fail(engine, CHECK_COMBINE, prim->lane, peer,
                         "has several sources in a step that does not reduce");
    if (k > 0 && !move_combine(prim, peer, &engine->arrived)) return false;
  }
  if (move->post_op && !move_finish(prim)) return false;
  for (uint32_t k = 0; k < move->destination_count; k++)
    if (!destination_write(prim, move->destination[k], units)) return false;
  return true;
}

/* Faults that post before they move. */
static void posts_early(struct prim *prim) {
  const struct flight *flight = lane_flight(prim->run, 0);
  const uint32_t steps = prim->lane->work->slice_steps;
  if (seam_fault(prim, FAULT_EARLY_FREE)) {
    FIFO_EACH_LINK(i, prim->lane->work->recv_count, flight->recv_links) {
      const struct link *link = &prim->run->recv[i];
      prim_store_head(prim, &link->sender->head, link->posted + steps);
    }
  }
  if (seam_fault(prim, FAULT_EARLY_POST)) {
    FIFO_EACH_LINK(i, prim->lane->work->send_count, flight->send_links) {
      const struct link *link = &prim->run->send[i];
      prim_store_tail(prim, &link->receiver->tail, link->posted + steps);
    }
  }
}

void prim_move_begin(struct prim *prim, struct move *move) {
  const struct step *step = &prim->run->step;
  prim->offset = size_min(step->count, prim->run->slice_index * prim->run->slice_elements);
  prim->engine->report->slice_count += 1;
  prim->engine->report->element_count += (uint64_t)move->count * prim->lane->scale;
  if (prim->engine->input->fault != FAULT_NONE) posts_early(prim);
}

/* The data is moved as late as it may be. */
void prim_move_finish(struct prim *prim, struct move *move) {
  if (seam_failed(prim) || !(move->each ? move_each(prim, move) : move_all(prim, move))) return;
  slots_settle(prim);
}
