/* replay_world.c: runs a script in the guarded emulator. First every kernel and every lane is held at its
 * recorded place; when nothing can move any more, the state is compared with the recorded one, and what could
 * move without the holds is what was missing. Then the holds are lifted, except those for events that are
 * still missing. Only one run at a time: the emulator belongs to the process. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "replay/replay_world.h"
#include "tutti.h"

#define EVENTS_MOST UINT64_C(200000000)
#define EVENTS_A_TIME 100000u
#define DEADLINE_NS UINT64_C(30000000000) /* for each half of a run */
#define STREAMS_MOST 4096
#define STEPS_MOST (1u << 20)          /* steps of a lane that are counted */
#define MEMORY_APART ((size_t)1 << 28) /* below it ranks have separate memory */

struct replay_world world;

/* ---- current and recorded places of lanes ---- */

struct live_rank *live_of(const struct device_comm *comm) {
  return &world.ranks[comm->config.comm_id - 1][comm->config.rank];
}

static bool row_sends(const struct record_lane *row) {
  return row->wait == WAITS_SLOT || row->wait == WAITS_OFFER;
}

/* Several batches of an operation have a lane of this number; only one has this link. */
static bool lane_has_link(const struct emu_lane *emu, const struct record_lane *row) {
  const struct work *work = emu->lane.work;
  const uint32_t *peers = row_sends(row) ? work->send_peer : work->recv_peer;
  const uint32_t count = row_sends(row) ? work->send_count : work->recv_count;
  for (uint32_t i = 0; i < count; i++)
    if (peers[i] == row->peer) return true;
  return false;
}

struct target *target_of(const struct emu_lane *emu) {
  struct live_rank *rank = live_of(emu->block->run->launch->comm);
  for (uint32_t i = 0; i < rank->target_count; i++) {
    const struct record_lane *row = rank->targets[i].row;
    if (rank->targets[i].stale || row->channel != emu->lane.work->channel_index ||
        row->lane != emu->lane_index)
      continue;
    if (row->sequence != (uint32_t)emu_lane_sequence(emu)) continue;
    if (row->wait == WAITS_NOT || row->wait == WAITS_LIST || lane_has_link(emu, row))
      return &rank->targets[i];
  }
  return NULL;
}

const struct record_link *link_row(const struct live_rank *rank, const struct work *work, uint32_t peer,
                                   bool sends) {
  const struct record_view *view = rank->script->state->view;
  const uint8_t name = (uint8_t)(work_link_conn(work, peer, sends) | (sends ? RECORD_LINK_SENDS : 0));
  for (uint32_t i = 0; i < view->link_rows; i++) {
    const struct record_link *row = &view->links[i];
    if (row->used == 1 && row->channel == work->channel_index && row->peer == peer && row->conn == name &&
        row->proto == work->proto)
      return row;
  }
  return NULL;
}

struct link *target_link(struct emu_lane *emu, const struct record_lane *row, struct emu_conn **conn) {
  const struct work *work = emu->lane.work;
  const bool sends = row_sends(row);
  const uint32_t count = sends ? work->send_count : work->recv_count;
  for (uint32_t i = 0; i < count; i++) {
    struct link *link = sends ? &emu->lane.send[i] : &emu->lane.recv[i];
    *conn = sends ? emu->send_conn[i] : emu->recv_conn[i];
    if (link->peer == row->peer) return link;
  }
  return NULL;
}

/* The peer had ended the collective that this operation is. */
static bool peer_has_ended(const struct live_rank *rank, const struct live_rank *peer, uint64_t sequence) {
  uint32_t collective = REPLAY_NONE;
  for (uint32_t i = 0; i < rank->script->op_count; i++)
    if (rank->script->ops[i].sequence == sequence && !is_message(rank->script->ops[i].call.func))
      collective = rank->script->ops[i].call.collective;
  for (uint64_t i = 0; i < peer->script->ended && i < peer->script->launched_count; i++)
    for (uint32_t k = 0; k < peer->script->launches[i].op_count && collective != REPLAY_NONE; k++) {
      const struct record_call *call = &peer->script->ops[peer->script->launches[i].first_op + k].call;
      if (!is_message(call->func) && call->collective == collective) return true;
    }
  return false;
}

/* How many of a rank's first operations are messages of this kind to or from the peer. */
static uint32_t messages_with(const struct replay_rank *rank, uint8_t func, uint32_t peer,
                              uint32_t op_count) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < op_count; i++)
    count += rank->ops[i].call.func == func && rank->ops[i].call.peer == peer;
  return count;
}

/* This operation is a send, and the peer had ended its receive: messages between two ranks are in order. */
static bool peer_has_received(const struct replay_rank *rank, const struct replay_rank *peer,
                              uint64_t sequence) {
  uint32_t sent = 0, ended_ops = 0;
  while (sent < rank->op_count && rank->ops[sent].sequence != sequence) sent += 1;
  if (sent == rank->op_count || rank->ops[sent].call.func != FUNC_SEND ||
      rank->ops[sent].call.peer != peer->rank)
    return false;
  for (uint64_t i = 0; i < peer->ended && i < peer->launched_count; i++)
    ended_ops = peer->launches[i].first_op + peer->launches[i].op_count;
  return messages_with(peer, FUNC_RECV, rank->rank, ended_ops) >=
         messages_with(rank, FUNC_SEND, peer->rank, sent + 1);
}

/* At the peer's end of the connection. */
static const struct record_link *link_row_of_peer(const struct live_rank *peer, const struct work *work,
                                                  uint32_t peer_rank) {
  const struct record_view *view = peer->script->state != NULL ? peer->script->state->view : NULL;
  for (uint32_t k = 0; view != NULL && k < view->link_rows; k++) {
    const struct record_link *row = &view->links[k];
    if (row->used == 1 && row->channel == work->channel_index && row->peer == work->rank &&
        row->conn == work_link_conn(work, peer_rank, true) && row->proto == work->proto)
      return row;
  }
  return NULL;
}

/* A receiver was past its sender's step: LL lines arrive before the sender counts their step. */
static bool target_carries(const struct emu_lane *emu) {
  const struct work *work = emu->lane.work;
  const struct device_comm *comm = emu->block->run->launch->comm;
  for (uint32_t i = 0; i < work->send_count && work->proto != PROTO_SIMPLE; i++) {
    const struct live_rank *peer = &world.ranks[comm->config.comm_id - 1][work->send_peer[i]];
    const struct record_link *own = link_row(live_of(comm), work, work->send_peer[i], true);
    const struct record_link *other = link_row_of_peer(peer, work, work->send_peer[i]);
    if (own != NULL && other != NULL && other->step > own->step) return true;
    if (peer_has_ended(live_of(comm), peer, emu_lane_sequence(emu))) return true;
    if (world.replay->comms[comm->config.comm_id - 1].whole &&
        peer_has_received(live_of(comm)->script, peer->script, emu_lane_sequence(emu)))
      return true;
  }
  return false;
}

/* The step that it waits for was done when its rank recorded the connection: it had continued meanwhile. */
static bool target_is_stale(const struct target *target, const struct emu_lane *emu) {
  const struct work *work = emu->lane.work;
  const struct device_comm *comm = emu->block->run->launch->comm;
  const struct record_lane *row = target->row;
  struct algo_iter it;
  struct step step;
  uint64_t done = 1;
  uint32_t index = 0;
  while (index < work->recv_count && work->recv_peer[index] != row->peer) index++;
  if ((row->wait != WAITS_DATA && row->wait != WAITS_LL) || index == work->recv_count) return false;
  const struct record_link *link = link_row(live_of(comm), work, row->peer, false);
  if (link == NULL || rank_is_seen(live_of(comm))) return false;
  if (row->wait == WAITS_DATA) return link->step >= row->need;
  if (!world.replay->comms[comm->config.comm_id - 1].whole) return false;
  algo_begin(&it, work);
  for (uint32_t i = 0; i < row->step && i < STEPS_MOST && algo_next(&it, work, &step); i++)
    done += (step.recv_links >> index) & 1;
  return link->step >= link_begin(work, &emu->lane.recv[index], false) + done * work->chunk_steps;
}

/* Completed slices of the recorded step, from the counter of the link that is waited on. */
static void target_measure(struct target *target, struct emu_lane *emu) {
  const struct work *work = emu->lane.work;
  struct emu_conn *conn;
  const bool waits = target->row->wait != WAITS_NOT; /* else any of its links shows its progress */
  const bool sends = waits ? row_sends(target->row) : work->send_count > 0;
  const struct link *link = waits   ? target_link(emu, target->row, &conn)
                            : sends ? &emu->lane.send[0]
                                    : &emu->lane.recv[0];
  target->slice = 0;
  target->stale = target_is_stale(target, emu);
  target->carries = target_carries(emu);
  if (link == NULL || work->proto != PROTO_SIMPLE || work->chunk_steps == work->slice_steps) return;
  const struct record_link *row = link_row(live_of(emu->block->run->launch->comm), work, link->peer, sends);
  if (row != NULL) target->slice = (uint32_t)(row->step % work->chunk_steps) / work->slice_steps;
}

uint64_t link_begin(const struct work *work, const struct link *link, bool sends) {
  const uint64_t saved = sends ? link->sender->send_step : link->receiver->recv_step;
  return slice_first_step(saved, work->chunk_steps);
}

/* Which of these actions keep the lane at or before its recorded place. */
static uint32_t target_allows(struct target *target, struct emu_lane *emu, uint32_t actions) {
  const struct lane *lane = &emu->lane;
  const struct record_lane *row = target->row;
  const uint32_t slice = lane->slice_index < lane->slice_count ? lane->slice_index : 0;
  const uint32_t late = LANE_FINISH | (lane->work->proto == PROTO_SIMPLE ? (uint32_t)LANE_POST : 0);
  if (!target->seen) target_measure(target, emu);
  target->seen = true;
  if (target->stale) return actions;
  target->live = emu;
  target->steps = lane->steps_done;
  target->held = lane->error != LANE_OK && lane->steps_done == row->step; /* found that sizes differ */
  if (target->held) return 0;
  if (rank_is_seen(live_of(emu->block->run->launch->comm))) return seen_allows(target, actions, late);
  if (lane->phase == LANE_OPEN) {
    target->held = row->step == 0 && row->wait == WAITS_OFFER && lane_takes(lane) &&
                   lane_take_link(&emu->lane)->peer == row->peer;
    return target->held ? 0 : actions;
  }
  if (lane->steps_done < row->step ||
      (lane->steps_done == row->step && slice < target->slice && lane->work->proto == PROTO_SIMPLE))
    return actions;
  target->held = row->wait != WAITS_OFFER; /* it has received the address here */
  return actions & (target->carries ? late | LANE_LL : late);
}

static void failure_note(const struct emu_lane *emu) {
  const struct device_comm *comm = emu->block->run->launch->comm;
  if (world.failed) return;
  world.failed = true;
  replay_say(world.failure,
             "rank %u and rank %u of comm '%s' do not agree on operation #%" PRIu64 ": rank %u has %" PRIu64
             " bytes for channel %u where rank %u expects %" PRIu64,
             comm->config.rank, emu->lane.mismatch_peer, comm->name, emu_lane_sequence(emu),
             emu->lane.mismatch_peer, emu->lane.found_bytes, emu->lane.work->channel_index, comm->config.rank,
             emu->lane.expected_bytes);
}

static bool lane_is_marked(const struct emu_lane *emu) {
  const struct replay_mark *mark = world.scenario->until;
  return mark != NULL && emu->block->run->launch->comm->config.rank == mark->rank &&
         emu->lane.work->channel_index == mark->channel && emu->lane.steps_done >= mark->step;
}

/* The connection used a network. */
static bool link_was_net(const struct device_comm *comm, const struct work *work, uint32_t peer, bool sends) {
  const struct replay_comm *script = &world.replay->comms[comm->config.comm_id - 1];
  const struct rank_state *state = script->ranks[comm->config.rank].state;
  const uint8_t name = (uint8_t)(work_link_conn(work, peer, sends) | (sends ? RECORD_LINK_SENDS : 0));
  if (!script->net) return false;
  if (state == NULL) return script->graph.node[comm->config.rank] != script->graph.node[peer];
  for (uint32_t i = 0; i < state->view->proxy_rows; i++) {
    const struct record_proxy *row = &state->view->proxies[i];
    if (row->used == 1 && row->peer == peer && row->channel == work->channel_index && row->conn == name)
      return true;
  }
  return false;
}

/* The lane was further than it is. */
static bool lane_is_behind(const struct emu_lane *emu) {
  const struct emu_kernel_run *run = emu->block->run;
  const struct live_rank *rank = live_of(run->launch->comm);
  const struct target *target = target_of(emu);
  return world.lifted || (target != NULL ? !target->held : run->turn < rank->script->ended);
}

/* A network has the same number of slots at each end, so a sender may be ahead by both. Here there are only
 * those of one end; as data is not read, an unread slot is overwritten, and its announcement may be lost. So
 * this is the last resort: it begins when nothing moves without it, and is for lanes that were further. */
static bool lane_give_credit(struct emu_lane *emu) {
  const struct device_comm *comm = emu->block->run->launch->comm;
  const struct work *work = emu->lane.work;
  bool given = false;
  if (!world.credit || !lane_is_behind(emu)) return false;
  if (!world.replay->comms[comm->config.comm_id - 1].net || emu->lane.phase != LANE_RUN) return false;
  for (uint32_t i = 0; i < work->send_count; i++) {
    struct link *link = &emu->lane.send[i];
    const uint64_t end = link->step + work->slice_steps;
    if (link->cached + link->slots >= end || emu->send_conn[i]->fifo->sender.head + 2 * link->slots < end)
      continue;
    if (!link_was_net(comm, work, link->peer, true)) continue;
    link->cached = end - link->slots;
    given = true;
  }
  for (uint32_t i = 0; i < work->recv_count; i++) {
    struct link *link = &emu->lane.recv[i];
    const uint64_t tail = emu->recv_conn[i]->fifo->receiver.tail;
    if (link->agreed || tail < link->step + link->slots || !link_was_net(comm, work, link->peer, false))
      continue;
    link->agreed = given = true;
  }
  return given;
}

static uint32_t gate_lane(struct emu_lane *emu, uint32_t actions) {
  struct target *target = target_of(emu);
  if (actions == 0 && lane_give_credit(emu)) actions = lane_enabled(&emu->lane, &emu->prim);
  if (actions == 0) return 0;
  if (world.stopped) return 0;
  if (lane_is_marked(emu) && (actions & (LANE_BEGIN | LANE_LL | LANE_END)) != 0) {
    world.stopped = true;
    return 0;
  }
  if (emu->lane.error != LANE_OK) {
    failure_note(emu);
    return 0; /* others may still move */
  }
  if (target == NULL || (world.lifted && !target->missing)) return actions;
  return target_allows(target, emu, actions);
}

static bool gate_kernel(const struct device_comm *comm, uint64_t turn) {
  struct live_rank *rank = live_of(comm);
  if (world.stopped) return false;
  if (turn < rank->may_start) return true;
  rank->wanted = true;
  return false;
}

static const struct emu_gate gate = {gate_lane, gate_kernel};

/* ---- making it ---- */

/* For an operation that has not ended; in a graph, for the running kernel. */
static bool row_is_now(const struct replay_comm *comm, const struct replay_rank *rank,
                       const struct record_lane *row) {
  const uint64_t sequence = widen(rank->state->view->comm->calls, row->sequence);
  if (row->used != 1 || row->wait > WAITS_LIST || sequence >= rank->state->called) return false;
  if (comm->overtaken) return false;
  if (!comm->captured) return sequence >= rank->state->done && !rank->state->graph;
  if (rank->ended >= rank->started) return false;
  const struct replay_launch *launch = &rank->launches[rank->ended];
  return sequence - rank->ops[launch->first_op].sequence < launch->op_count;
}

static bool rank_make_targets(const struct replay_comm *comm, struct live_rank *rank) {
  const struct rank_state *state = rank->script->state;
  const struct record_view *view = state != NULL ? state->view : NULL;
  uint32_t count = 0;
  for (uint32_t i = 0; view != NULL && i < view->lane_rows; i++) count += view->lanes[i].used == 1;
  rank->targets = (struct target *)os_alloc((count + 1) * sizeof *rank->targets);
  if (rank->targets == NULL) return false;
  for (uint32_t i = 0; view != NULL && i < view->lane_rows; i++) {
    const struct record_lane *row = &view->lanes[i];
    if (!row_is_now(comm, rank->script, row)) continue;
    rank->targets[rank->target_count++].row = row;
  }
  return true;
}

static ncclResult_t rank_open(uint32_t comm_index, uint32_t r) {
  const struct replay_comm *comm = &world.replay->comms[comm_index];
  struct live_rank *rank = &world.ranks[comm_index][r];
  struct device_comm_config config;
  rank->script = &comm->ranks[r];
  rank->may_start = rank->script->state != NULL ? rank->script->started : UINT64_MAX;
  if (!rank_make_targets(comm, rank)) return log_no_memory("rank %u", r);
  memset(&config, 0, sizeof config);
  config.comm_id = comm_index + 1;
  config.rank = r;
  config.rank_count = comm->rank_count;
  config.device_index = rank->script->device;
  config.name = comm->name;
  replay_limits(comm, &config.limits);
  return world.ops->device->comm_open(&config, &rank->device);
}

/* One stream for each that the program had on the device. */
static cudaStream_t stream_find(const struct replay_rank *rank, const struct replay_op *op) {
  uint64_t handle = 0;
  if (rank->state != NULL && op->place.stream < RECORD_STREAMS)
    handle = rank->state->view->comm->streams[op->place.stream];
  for (uint32_t i = 0; i < world.stream_count; i++)
    if (world.streams[i].device == rank->device && world.streams[i].handle == handle)
      return world.streams[i].stream;
  struct stream_of *made = &world.streams[world.stream_count];
  if (world.stream_count == STREAMS_MOST || cudaSetDevice((int)rank->device) != cudaSuccess ||
      cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking) != cudaSuccess)
    return NULL;
  made->device = rank->device;
  made->handle = handle;
  world.stream_count += 1;
  return made->stream;
}

static ncclResult_t plan_connect(uint32_t comm_index, struct live_rank *rank, const struct plan *plan) {
  struct live_rank *ranks = world.ranks[comm_index];
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    const uint32_t self = rank->script->rank;
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      const bool sends = k >= work->recv_count;
      const uint32_t peer = sends ? work->send_peer[k - work->recv_count] : work->recv_peer[k];
      if (peer == self && work->conn_index != CONN_SWITCH) continue;
      TRY(world.ops->device->comm_connect(ranks[sends ? self : peer].device,
                                          ranks[sends ? peer : self].device, work->channel_index,
                                          work_link_conn(work, peer, sends), work_slots(work)));
    }
  }
  return ncclSuccess;
}

static uint8_t *rank_memory(uint32_t comm_index, uint32_t r) {
  return world.memory + world.stride * world.replay->comms[comm_index].ranks[r].device;
}

ncclResult_t launch_make(uint32_t comm_index, uint32_t r, const struct replay_op *ops,
                         const struct replay_launch *launch) {
  struct replay_comm *comm = &world.replay->comms[comm_index];
  struct live_rank *rank = &world.ranks[comm_index][r];
  device_stream streams[8];
  uint32_t stream_count = 0;
  struct plan plan;
  for (uint32_t i = 0; i < launch->op_count && stream_count < 8; i++) {
    cudaStream_t stream = stream_find(rank->script, &ops[i]);
    bool known = false;
    if (stream == NULL) return log_fail(ncclSystemError, "rank %u: no stream can be made", r);
    for (uint32_t k = 0; k < stream_count; k++) known = known || streams[k] == (device_stream)stream;
    if (!known) streams[stream_count++] = (device_stream)stream;
  }
  TRY(replay_plan(world.replay, comm, rank->script, ops, launch, rank_memory(comm_index, r), &plan));
  plan.first_sequence = ops[0].sequence;
  ncclResult_t result = plan_connect(comm_index, rank, &plan);
  if (result == ncclSuccess && plan.scratch_bytes > 0)
    result = world.ops->memory->scratch(rank->device, plan.scratch_bytes, &plan.scratch);
  if (result == ncclSuccess) result = world.ops->device->launch(rank->device, &plan, streams, stream_count);
  plan_free(&plan);
  rank->launched += result == ncclSuccess;
  world.launches += result == ncclSuccess;
  return result;
}

/* ---- what was launched ---- */

/* All recorded launches, in the order of time on each device. */
struct turn {
  uint32_t comm, rank, launch, device;
  uint64_t ticks;
};

static int turn_compare(const void *left, const void *right) {
  const struct turn *a = (const struct turn *)left, *b = (const struct turn *)right;
  if (a->device != b->device) return a->device < b->device ? -1 : 1;
  if (a->comm == b->comm) return a->launch < b->launch ? -1 : a->launch > b->launch;
  if (a->ticks != b->ticks) return a->ticks < b->ticks ? -1 : 1;
  return a->comm < b->comm ? -1 : 1;
}

static ncclResult_t launches_make(void) {
  uint32_t count = 0, filled = 0;
  struct replay *replay = world.replay;
  for (uint32_t c = 0; c < replay->comm_count; c++)
    for (uint32_t r = 0; r < replay->comms[c].rank_count; r++)
      count += replay->comms[c].ranks[r].launched_count;
  struct turn *turns = (struct turn *)os_alloc((count + 1) * sizeof *turns);
  if (turns == NULL) return log_no_memory("%u launches", count);
  for (uint32_t c = 0; c < replay->comm_count; c++)
    for (uint32_t r = 0; r < replay->comms[c].rank_count; r++) {
      const struct replay_rank *rank = &replay->comms[c].ranks[r];
      for (uint32_t k = 0; k < rank->launched_count; k++)
        turns[filled++] = (struct turn){c, r, k, rank->device, rank->launches[k].ticks};
    }
  qsort(turns, count, sizeof *turns, turn_compare);
  ncclResult_t result = ncclSuccess;
  for (uint32_t i = 0; i < count && result == ncclSuccess; i++)
    result = calls_make_recorded(turns[i].comm, turns[i].rank, turns[i].launch);
  os_free(turns);
  return result;
}

/* ---- moving ---- */

/* True when nothing can move any more; false, with `moving`, if that did not happen. */
static bool settle(uint64_t event_limit, struct replay_outcome *outcome) {
  const uint64_t begin = emu_event_count(), deadline = os_time_ns() + DEADLINE_NS;
  bool settled = false;
  emu_lock();
  while (!settled && emu_event_count() - begin < event_limit) {
    uint64_t left = event_limit - (emu_event_count() - begin);
    settled = emu_world_settle(left < EVENTS_A_TIME ? left : EVENTS_A_TIME);
    if (os_time_ns() > deadline) break;
  }
  emu_unlock();
  outcome->events_run = emu_event_count();
  outcome->moving = !settled;
  return settled;
}

static bool anybody_over_network(void) {
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    if (world.replay->comms[c].net) return true;
  return false;
}

/* Records the place of every lane that has not ended. */
static void lanes_look(void) {
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    for (uint32_t b = 0; b < run->launch->block_count; b++) {
      struct emu_block *block = &run->launch->blocks[b];
      for (uint32_t i = 0; i < block->lane_count; i++) {
        struct emu_lane *emu = &block->lanes[i];
        struct target *target = emu->bound ? target_of(emu) : NULL;
        if (target == NULL) continue;
        target_allows(target, emu, 0);
        target->present = true;
      }
    }
}

/* A call that differs from the record undoes its effects on others; and what keeps one direction of a
 * connection back also keeps back the other. */
static bool event_brings(const struct replay_event *event, const struct replay_event *other) {
  if (event->comm != other->comm) return false;
  return event->replaces ||
         (event->kind >= EVENT_SEND && other->kind >= EVENT_SEND && event->channel == other->channel &&
          event->rank == other->waiter && event->waiter == other->rank);
}

/* Lifts the holds, except those for events that are still missing. */
static void holds_lift(void) {
  const struct replay_scenario *scenario = world.scenario;
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++) world.ranks[c][r].may_start = UINT64_MAX;
  for (uint32_t i = 0; i < scenario->missing_count; i++) {
    const struct replay_event *event = &scenario->missing[i];
    struct live_rank *rank = &world.ranks[event->comm][event->rank];
    const bool undone = scenario->injected != NULL && event_brings(scenario->injected, event);
    if (event == scenario->injected || undone) continue;
    if (event->kind == EVENT_START) rank->may_start = rank->script->started;
    if (event->kind < EVENT_SEND) continue;
    rank = &world.ranks[event->comm][event->waiter];
    for (uint32_t k = 0; k < rank->target_count; k++)
      if (rank->targets[k].row->channel >= event->channel &&
          rank->targets[k].row->channel <= event->last_channel && rank->targets[k].row->lane == event->lane)
        rank->targets[k].missing = true;
  }
  world.lifted = true;
  emu_gate_loosened();
}

/* ---- the phases of a run ---- */

static void phase_credit(void) {
  emu_lock();
  world.credit = true;
  emu_gate_loosened();
  emu_unlock();
}

static void state_examine(struct replay_outcome *outcome) {
  emu_lock();
  lanes_look();
  state_compare(outcome);
  state_find_events(outcome);
  emu_unlock();
}

static ncclResult_t phase_go_on(void) {
  if (world.scenario->injected != NULL) TRY(calls_make_event(world.scenario->injected));
  emu_lock();
  holds_lift();
  emu_unlock();
  return ncclSuccess;
}

/* Nothing can move: what comes next. False: nothing. */
static ncclResult_t phase_next(struct replay_outcome *outcome, bool *more) {
  *more = false;
  if (world.phase == PHASE_HELD) {
    world.phase = PHASE_CREDIT;
    *more = anybody_over_network() && !outcome->moving && !world.stopped;
    if (*more) phase_credit();
    if (*more) return ncclSuccess;
  }
  if (world.phase != PHASE_CREDIT) return ncclSuccess;
  world.phase = PHASE_LIFTED;
  state_examine(outcome);
  *more = world.scenario->goes_on && !world.stopped && !outcome->moving;
  return *more ? phase_go_on() : ncclSuccess;
}

static ncclResult_t world_run(struct replay_outcome *outcome) {
  const uint64_t limit = world.scenario->event_limit;
  bool more = true;
  while (more) {
    settle(world.phase == PHASE_LIFTED && limit > 0 ? limit : EVENTS_MOST, outcome);
    TRY(phase_next(outcome, &more));
  }
  outcome->until_reached = world.stopped;
  emu_lock();
  state_sum(outcome);
  emu_unlock();
  if (world.scenario->look != NULL) world.scenario->look(world.scenario->argument);
  return ncclSuccess;
}

ncclResult_t replay_advance(uint64_t event, struct replay_outcome *outcome, bool *more) {
  *more = true;
  while (*more && emu_event_count() < event) {
    emu_lock();
    const bool settled = emu_world_settle(event - emu_event_count());
    emu_unlock();
    outcome->events_run = emu_event_count();
    if (settled) TRY(phase_next(outcome, more));
  }
  return ncclSuccess;
}

/* ---- making and freeing the emulator ---- */

static ncclResult_t world_open(void) {
  struct replay *replay = world.replay;
  const size_t bytes = 2 * replay->buffer_bytes + 4096;
  const bool fits = bytes <= MEMORY_APART / (replay->device_count + 1);
  void *memory = NULL;
  world.stride = fits ? bytes : 0;
  world.ranks = (struct live_rank **)os_alloc((replay->comm_count + 1) * sizeof *world.ranks);
  world.streams = (struct stream_of *)os_alloc(STREAMS_MOST * sizeof *world.streams);
  if (world.ranks == NULL || world.streams == NULL) return log_no_memory("a replay");
  TRY(world.ops->memory->alloc(0, bytes + world.stride * replay->device_count, &memory));
  world.memory = (uint8_t *)memory;
  for (uint32_t c = 0; c < replay->comm_count; c++) {
    replay->comms[c].transport = world.scenario->transport;
    const uint32_t rank_count = replay->comms[c].rank_count;
    world.ranks[c] = (struct live_rank *)os_alloc(rank_count * sizeof *world.ranks[c]);
    if (world.ranks[c] == NULL) return log_no_memory("%u ranks", rank_count);
    for (uint32_t r = 0; r < rank_count; r++) TRY(rank_open(c, r));
  }
  return ncclSuccess;
}

static void ranks_close(uint32_t c) {
  for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++) {
    world.ops->device->comm_close(world.ranks[c][r].device);
    os_free(world.ranks[c][r].targets);
  }
  os_free(world.ranks[c]);
}

static void world_close(void) {
  struct replay_outcome unused;
  emu_gate = NULL;
  for (uint32_t c = 0; world.ranks != NULL && c < world.replay->comm_count; c++)
    for (uint32_t r = 0; world.ranks[c] != NULL && r < world.replay->comms[c].rank_count; r++)
      if (world.ranks[c][r].device != NULL) world.ops->device->comm_abort(world.ranks[c][r].device);
  settle(EVENTS_MOST, &unused);
  for (uint32_t c = 0; world.ranks != NULL && c < world.replay->comm_count; c++)
    if (world.ranks[c] != NULL) ranks_close(c);
  for (uint32_t i = 0; i < world.stream_count; i++) cudaStreamDestroy(world.streams[i].stream);
  if (world.memory != NULL) world.ops->memory->free(world.memory);
  os_free(world.streams);
  os_free(world.ranks);
}

ncclResult_t replay_begin(struct replay *replay, const struct replay_scenario *scenario) {
  const tutti_emu_config_t config = {
      .size = sizeof config, .seed = scenario->seed, .device_count = replay->device_count};
  TRY(tutti_emu_configure(&config));
  if (emu_options()->mode != EMU_GUARDED)
    return log_fail(ncclInvalidUsage,
                    "a replay needs the guarded emulator; leave mode=threads out of TUTTI_EMU");
  memset(&world, 0, sizeof world);
  world.replay = replay;
  world.scenario = scenario;
  world.ops = emu_backend();
  emu_gate = &gate;
  ncclResult_t result = world_open();
  if (result == ncclSuccess) result = launches_make();
  if (result == ncclSuccess) result = calls_assume();
  if (result != ncclSuccess) world_close();
  return result;
}

void replay_end(void) { world_close(); }

ncclResult_t replay_run(struct replay *replay, const struct replay_scenario *scenario,
                        struct replay_outcome *outcome) {
  memset(outcome, 0, sizeof *outcome);
  TRY(replay_begin(replay, scenario));
  const ncclResult_t result = world_run(outcome);
  world_close();
  return result;
}
