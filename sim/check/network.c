/* network.c: makes one channel's lanes and connections from the plans, runs them until none can move, and
 * reports which lane waits for which if some have not ended. */
#include <inttypes.h>
#include <stdio.h>

#include "check/engine.h"

/* The batches of `rank` on the network's channels: [*first, *last) of its plan. */
static void batches_of(struct check_engine *engine, uint32_t rank, uint32_t *first, uint32_t *last) {
  const struct plan *plan = &engine->input->plans[rank];
  uint32_t at = engine->batch_cursor[rank];
  while (at < plan->batch_count && plan->batches[at].channel_index < engine->channel) at += 1;
  *first = at;
  while (at < plan->batch_count && plan->batches[at].channel_index - engine->channel < engine->channel_count)
    at += 1;
  *last = at;
}

/* ---- connections ---- */

enum { CONNS_A_CHANNEL = 4 };

static uint32_t conn_hash(uint32_t sender, uint32_t receiver, uint32_t index) {
  const uint64_t mixed =
      (((uint64_t)sender << 32) | receiver) * UINT64_C(0x9e3779b97f4a7c15) + index * 0x85ebca6bu;
  return (uint32_t)((mixed ^ mixed >> 31) * UINT64_C(0xbf58476d1ce4e5b9) >> 33);
}

/* The connection's number; it is made if it is new. UINT32_MAX when memory is out. */
static uint32_t conn_find(struct check_engine *engine, uint32_t sender, uint32_t receiver, uint32_t index,
                          uint32_t channel) {
  uint32_t at = conn_hash(sender, receiver, index + CONNS_A_CHANNEL * channel) & engine->conn_mask;
  for (; engine->conn_slots[at] != 0; at = (at + 1) & engine->conn_mask) {
    const struct conn *conn = &engine->conns[engine->conn_slots[at] - 1];
    if (conn->sender == sender && conn->receiver == receiver && conn->index == index &&
        conn->channel == channel)
      return engine->conn_slots[at] - 1;
  }
  if (engine->conn_count == engine->conn_capacity) return UINT32_MAX;
  struct conn *conn = &engine->conns[engine->conn_count];
  conn->sender = sender;
  conn->receiver = receiver;
  conn->index = index;
  conn->channel = channel;
  conn->send_lane = conn->recv_lane = conn->waiting_sender = conn->waiting_receiver = LANE_NONE;
  conn->send_step = conn->recv_step = conn->written = conn->read = engine->input->first_step;
  conn->head_seen = conn->tail_seen = engine->input->first_step;
  conn->capacity = engine->slots + 2;
  conn->messages = (struct message *)arena_take(&engine->arena, conn->capacity * sizeof *conn->messages);
  if (!conn->messages) return UINT32_MAX;
  executor_bind_conn(engine, conn);
  engine->conn_slots[at] = ++engine->conn_count;
  return engine->conn_count - 1;
}

static bool conns_make(struct check_engine *engine, uint32_t most) {
  uint32_t slots = 16;
  while (slots < 2 * most) slots *= 2;
  engine->conn_count = 0;
  engine->conn_capacity = most;
  engine->conn_mask = slots - 1;
  engine->conns = (struct conn *)arena_take(&engine->arena, (size_t)most * sizeof *engine->conns);
  engine->conn_slots = (uint32_t *)arena_take(&engine->arena, (size_t)slots * sizeof *engine->conn_slots);
  return engine->conns && engine->conn_slots && executor_take_words(engine, most);
}

/* ---- lanes ---- */

static uint32_t op_of(const struct check_input *input, uint64_t sequence) {
  for (uint32_t i = 0; i < input->op_count; i++)
    if (input->ops[i].sequence == sequence) return i;
  return UINT32_MAX;
}

/* The most elements that fit the slots of a slice, or the single slot of LL and LL128. */
static uint64_t slot_capacity(const struct plan_limits *limits, const struct work *work) {
  const uint64_t step_bytes = limits->step_bytes[work->proto];
  if (work->proto == PROTO_LL) return step_bytes / 2 / work->element_bytes;
  if (work->proto == PROTO_LL128) return step_bytes / 128 * 120 / work->element_bytes;
  return work->slice_steps * step_bytes / work->element_bytes;
}

static bool work_is_sound(struct check_engine *engine, struct check_lane *lane) {
  const struct work *work = lane->work;
  const uint32_t ranks = engine->input->rank_count;
  bool sound = work->recv_count <= STEP_LINKS_MAX && work->send_count <= STEP_LINKS_MAX &&
               work->slice_steps > 0 && work->chunk_steps >= work->slice_steps &&
               work->chunk_steps % work->slice_steps == 0 && work->rank == lane->rank &&
               work->proto < PROTO_COUNT && work->element_bytes % engine->input->unit_bytes == 0 &&
               work->chunk_steps <= engine->slots;
  const bool with_itself = work->conn_index == CONN_SWITCH; /* a rank hosts its own switch */
  for (uint32_t i = 0; sound && i < work->recv_count; i++)
    sound = work->recv_peer[i] < ranks && (with_itself || work->recv_peer[i] != lane->rank);
  for (uint32_t i = 0; sound && i < work->send_count; i++)
    sound = work->send_peer[i] < ranks && (with_itself || work->send_peer[i] != lane->rank);
  if (sound) return true;
  return engine_fail(
      engine, CHECK_PARTS, lane, UINT32_MAX,
      "has a work that no executor takes: its links, steps a chunk or element size are out of range");
}

/* A fused work is followed by its parts, which have the same shape; no other work has parts. */
static bool parts_are_sound(struct check_engine *engine, struct check_lane *lane, const struct plan *plan) {
  const struct work *work = lane->work;
  const bool fused = (work->flags & WORK_FUSED) != 0;
  const size_t count = fused ? work->fused_count : 1, rest = plan->work_count - (size_t)(work - plan->works);
  bool sound = count >= 1 && count <= rest && (work->flags & WORK_PART) == 0;
  if (fused) sound = sound && work->recv_count == 1 && work->send_count == 1;
  for (size_t i = 0; sound && i < count; i++) {
    const struct work *part = &work[i];
    sound = ((part->flags & WORK_PART) != 0) == (i > 0) && part->proto == work->proto &&
            part->element_bytes == work->element_bytes && part->channel_index == work->channel_index;
    if (sound && op_of(engine->input, part->op_sequence) == UINT32_MAX)
      return engine_fail(engine, CHECK_PARTS, lane, UINT32_MAX,
                         "has a work of operation %" PRIu64 ", which nobody called", part->op_sequence);
  }
  return sound || engine_fail(engine, CHECK_PARTS, lane, UINT32_MAX,
                              "has a fused work whose parts do not lie behind it, or a part without one");
}

static bool lane_make(struct check_engine *engine, struct check_lane *lane, uint32_t rank, uint32_t block,
                      uint32_t batch, uint32_t place) {
  const struct plan *plan = &engine->input->plans[rank];
  const struct work *work = &plan->works[place];
  lane->work = lane->part = work;
  lane->buffers = &plan->buffers[place];
  lane->rank = rank;
  lane->batch = batch;
  lane->block = block;
  if (!work_is_sound(engine, lane) || !parts_are_sound(engine, lane, plan)) return false;
  lane->op = op_of(engine->input, work->op_sequence);
  lane->reduces = engine->input->ops[lane->op].reduces;
  lane->unstaged = lane->reduces && engine->input->ops[lane->op].unstaged;
  if (lane_has_list(lane))
    lane->scratch = (uint64_t)(uintptr_t)plan->scratch + work->scratch_page * (uint64_t)LIST_PAGE_BYTES;
  lane->slot_capacity = slot_capacity(&plan->limits, work);
  lane->scale = work->element_bytes / engine->input->unit_bytes;
  const uint32_t links = (uint32_t)work->recv_count + work->send_count;
  lane->conns = (uint32_t *)arena_take(&engine->arena, links * sizeof *lane->conns);
  if (!lane->conns) return engine_out_of_memory(engine);
  for (uint32_t i = 0; i < links; i++) {
    const bool sends = i >= work->recv_count;
    const uint32_t peer = sends ? work->send_peer[i - work->recv_count] : work->recv_peer[i];
    const uint32_t index = work_link_conn(work, peer, sends);
    lane->conns[i] = conn_find(engine, sends ? rank : peer, sends ? peer : rank, index, work->channel_index);
    if (lane->conns[i] == UINT32_MAX) return engine_out_of_memory(engine);
  }
  return true;
}

static bool lanes_count(struct check_engine *engine) {
  uint32_t links = 0;
  engine->lane_count = engine->list_count = 0;
  for (uint32_t rank = 0; rank < engine->input->rank_count; rank++) {
    const struct plan *plan = &engine->input->plans[rank];
    uint32_t first, last;
    batches_of(engine, rank, &first, &last);
    for (; first < last; first++) {
      const struct plan_batch *batch = &plan->batches[first];
      engine->lane_count += batch->work_count;
      for (uint32_t i = 0; i < batch->work_count; i++) {
        const struct work *work = &plan->works[batch->first_work + i];
        links += (uint32_t)work->recv_count + work->send_count;
        if (algo_family(work) == FAMILY_LIST && work->role >= engine->list_count)
          engine->list_count = work->role + 1u;
      }
    }
  }
  const size_t count = engine->lane_count;
  engine->lanes = (struct check_lane *)arena_take(&engine->arena, count * sizeof *engine->lanes);
  engine->queue = (uint32_t *)arena_take(&engine->arena, count * sizeof *engine->queue);
  engine->blocks = (struct block *)arena_take(
      &engine->arena, (size_t)engine->input->rank_count * engine->channel_count * sizeof *engine->blocks);
  engine->queue_head = engine->queue_length = 0;
  engine->progress = (uint64_t *)arena_take(
      &engine->arena, (size_t)engine->input->rank_count * engine->list_count * sizeof *engine->progress);
  if (!engine->lanes || !engine->queue || !engine->blocks || !engine->progress || !conns_make(engine, links))
    return engine_out_of_memory(engine);
  return true;
}

/* The lanes of batches [first, last) of the rank's plan, which are those of one channel. */
static bool block_make(struct check_engine *engine, uint32_t rank, uint32_t place, uint32_t first,
                       uint32_t last, uint32_t *index) {
  const uint32_t number = rank * engine->channel_count + place;
  struct block *block = &engine->blocks[number];
  block->first_lane = *index;
  for (uint32_t turn = 0; first + turn < last; turn++) {
    const struct plan_batch *batch = &engine->input->plans[rank].batches[first + turn];
    for (uint32_t i = 0; i < batch->work_count; i++) {
      if (!lane_make(engine, &engine->lanes[*index], rank, number, turn, batch->first_work + i)) return false;
      *index += 1;
      block->running += turn == 0;
    }
  }
  block->lane_count = *index - block->first_lane;
  return true;
}

static bool lanes_make(struct check_engine *engine) {
  uint32_t index = 0;
  if (!lanes_count(engine)) return false;
  for (uint32_t rank = 0; rank < engine->input->rank_count; rank++) {
    const struct plan *plan = &engine->input->plans[rank];
    uint32_t first, last, at;
    batches_of(engine, rank, &first, &last);
    at = first;
    for (uint32_t i = 0; i < engine->channel_count; i++) {
      uint32_t end = at;
      while (end < last && plan->batches[end].channel_index == engine->channel + i) end += 1;
      if (!block_make(engine, rank, i, at, end, &index)) return false;
      at = end;
    }
    engine->batch_cursor[rank] = last;
  }
  return true;
}

/* ---- running ---- */

void network_push(struct check_engine *engine, uint32_t lane_index) {
  struct check_lane *lane = &engine->lanes[lane_index];
  if (lane->queued) return;
  lane->queued = true;
  uint32_t at = engine->queue_head + engine->queue_length++;
  if (at >= engine->lane_count) at -= engine->lane_count;
  engine->queue[at] = lane_index;
}

static const char *wants[] = {"",          "the offer of an output", "data", "a free slot", "a step",
                              "the input", "a read of its input"};

/* What a lane waits for comes from the sender of the connection; else, from its receiver. */
static bool comes_from_sender(uint8_t want) { return want == WANT_DATA || want == WANT_INPUT; }

/* The lane that could let a stuck lane continue, LANE_NONE if that lane has ended; *peer: its rank. */
static uint32_t stuck_behind(const struct check_engine *engine, const struct check_lane *lane,
                             uint32_t *peer) {
  if (lane->want == WANT_LIST) {
    *peer = lane->rank;
    return lane->want_conn;
  }
  const struct conn *conn = &engine->conns[lane->want_conn];
  *peer = comes_from_sender(lane->want) ? conn->sender : conn->receiver;
  return comes_from_sender(lane->want) ? conn->send_lane : conn->recv_lane;
}

/* Describes a cycle of lists that wait for each other, as far as the buffer allows. */
static void cycle_text(const struct check_engine *engine, const struct check_lane *lane, uint32_t count,
                       char *out, size_t out_bytes) {
  size_t used = 0;
  uint32_t peer;
  out[0] = 0;
  if (!lane_has_list(lane)) return;
  for (uint32_t i = 0; i < count && used + 60 < out_bytes; i++) {
    const uint32_t other = stuck_behind(engine, lane, &peer);
    const int added =
        snprintf(out + used, out_bytes - used, "%s rank %u block %u step %" PRIu64 "%s", i == 0 ? ":" : ",",
                 lane->rank, lane->work->role, lane->step_number, i + 1 < count && i >= 6 ? " ..." : "");
    used += added > 0 ? (size_t)added : 0;
    if (i >= 6) return;
    lane = &engine->lanes[other];
  }
}

static bool cycle_report(struct check_engine *engine, const struct check_lane *lane, uint32_t count) {
  char cycle[400];
  uint32_t peer;
  const struct check_lane *other = &engine->lanes[stuck_behind(engine, lane, &peer)];
  cycle_text(engine, lane, count, cycle, sizeof cycle);
  if (lane->want == WANT_LIST)
    return engine_fail(
        engine, CHECK_DEADLOCK, lane, peer,
        "waits for block %u of its own rank, in a cycle of %u lanes that wait for each other%s",
        other->work->role, count, cycle);
  return engine_fail(engine, CHECK_DEADLOCK, lane, peer,
                     "waits for %s of rank %u, in a cycle of %u lanes that wait for each other with %u "
                     "slots%s",
                     wants[lane->want], peer, count, engine->slots, cycle);
}

/* Follows the waits from a stuck lane, to a lane whose peer has ended or around a cycle. */
static bool stuck_report(struct check_engine *engine, const struct check_lane *lane) {
  const struct check_lane *first = lane;
  uint32_t peer;
  for (uint32_t hops = 0; hops <= engine->lane_count; hops++) {
    const uint32_t other = stuck_behind(engine, lane, &peer);
    if (other == LANE_NONE) {
      const struct conn *conn = &engine->conns[lane->want_conn];
      const bool receives = comes_from_sender(lane->want);
      return engine_fail(
          engine, CHECK_MATCH, lane, peer,
          "waits for %s %s rank %u, which has no more steps on this connection (step %" PRIu64 ")",
          wants[lane->want], receives ? "from" : "of", peer, receives ? conn->recv_step : conn->send_step);
    }
    lane = &engine->lanes[other];
    if (lane->want == WANT_NOTHING) break;
    if (lane == first || hops == engine->lane_count) return cycle_report(engine, first, hops + 1);
  }
  return engine_fail(engine, CHECK_DEADLOCK, first, UINT32_MAX, "waits for ever, for %s", wants[first->want]);
}

/* A lane on the cycle: after as many hops as there are lanes, a lane of the cycle is reached. */
static const struct check_lane *stuck_on_cycle(const struct check_engine *engine,
                                               const struct check_lane *lane) {
  for (uint32_t hops = 0; hops < engine->lane_count; hops++) {
    uint32_t peer;
    const uint32_t other = stuck_behind(engine, lane, &peer);
    if (other == LANE_NONE || engine->lanes[other].want == WANT_NOTHING) return lane;
    lane = &engine->lanes[other];
  }
  return lane;
}

/* The sender's last lane that used the connection, or its first; NULL if it has none. */
static const struct check_lane *conn_user(const struct check_engine *engine, uint32_t index) {
  const struct conn *conn = &engine->conns[index];
  const struct block *block =
      &engine->blocks[(size_t)conn->sender * engine->channel_count + conn->channel - engine->channel];
  const struct check_lane *user = block->lane_count > 0 ? &engine->lanes[block->first_lane] : NULL;
  for (uint32_t i = 0; i < block->lane_count; i++) {
    const struct check_lane *lane = &engine->lanes[block->first_lane + i];
    for (uint32_t k = 0; k < lane->work->send_count; k++)
      if (lane->conns[lane->work->recv_count + k] == index) user = lane;
  }
  return user;
}

/* All lanes have ended and every message was taken. */
static bool network_is_done(struct check_engine *engine) {
  for (uint32_t i = 0; i < engine->lane_count; i++) {
    const struct check_lane *lane = &engine->lanes[i];
    if (lane->phase != PHASE_ENDED && lane->want != WANT_NOTHING)
      return stuck_report(engine, stuck_on_cycle(engine, lane));
  }
  for (uint32_t i = 0; i < engine->lane_count; i++) {
    const struct check_lane *lane = &engine->lanes[i];
    if (lane->phase != PHASE_ENDED)
      return engine_fail(engine, CHECK_DEADLOCK, lane, UINT32_MAX,
                         "never begins, behind a batch that never ends");
  }
  for (uint32_t i = 0; i < engine->conn_count; i++) {
    const struct conn *conn = &engine->conns[i];
    const struct check_lane *lane = conn_user(engine, i);
    if (conn->held != 0 || conn->send_step != conn->recv_step)
      return engine_fail(engine, CHECK_MATCH, lane, conn->receiver,
                         "has sent up to step %" PRIu64 " to rank %u, which took up to step %" PRIu64
                         " of it",
                         conn->send_step, conn->receiver, conn->recv_step);
    if (conn->offer_made)
      return engine_fail(engine, CHECK_MATCH, lane, conn->receiver,
                         "has not taken the output that rank %u offered", conn->receiver);
    if (conn->source_made)
      return engine_fail(engine, CHECK_MATCH, lane, conn->receiver,
                         "shows its input to rank %u, which has not taken its address", conn->receiver);
  }
  return true;
}

static uint32_t channels_used(const struct check_engine *engine) {
  uint32_t used = 0;
  for (uint32_t i = 0; i < engine->channel_count; i++) {
    uint32_t rank = 0;
    while (rank < engine->input->rank_count &&
           engine->blocks[rank * engine->channel_count + i].lane_count == 0)
      rank += 1;
    used += rank < engine->input->rank_count;
  }
  return used;
}

bool network_run(struct check_engine *engine) {
  if (!lanes_make(engine)) return false;
  for (uint32_t i = 0; i < engine->lane_count; i++)
    if (engine->lanes[i].batch == 0) network_push(engine, i);
  while (engine->queue_length > 0) {
    const uint32_t index = engine->queue[engine->queue_head];
    engine->queue_head = engine->queue_head + 1 == engine->lane_count ? 0 : engine->queue_head + 1;
    engine->queue_length -= 1;
    engine->lanes[index].queued = false;
    if (!executor_advance(engine, &engine->lanes[index])) return false;
  }
  if (!network_is_done(engine)) return false;
  engine->report->work_count += engine->lane_count;
  engine->report->connection_count += engine->conn_count;
  engine->report->channel_count += channels_used(engine);
  engine->lane_base += engine->lane_count;
  return true;
}
