/* replay_state.c: examines a script that makes no progress: is it in the recorded state, what could continue
 * without the holds, what has ended, and where the rest waits. The world must be locked. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "replay/replay_world.h"
#include "trace/record_text.h"

static const char *const wait_texts[] = {"nothing",
                                         "the address of",
                                         "data of",
                                         "a free slot at",
                                         "LL lines of",
                                         "another list of",
                                         "the input's address of",
                                         "reads of its input by"};

/* ---- every lane that has not ended ---- */

static bool run_each(const struct emu_kernel_run *run, lane_seen seen, void *argument) {
  for (uint32_t b = 0; b < run->launch->block_count; b++)
    for (uint32_t i = 0; i < run->launch->blocks[b].lane_count; i++) {
      struct emu_lane *emu = &run->launch->blocks[b].lanes[i];
      if (emu->bound && emu->lane.phase != LANE_DONE && !seen(argument, emu)) return false;
    }
  return true;
}

void lanes_each(lane_seen seen, void *argument) {
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++)
      for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
        if (run->launch->comm == world.ranks[c][r].device && !run_each(run, seen, argument)) return;
}

static const struct device_comm *lane_comm(const struct emu_lane *emu) {
  return emu->block->run->launch->comm;
}

/* ---- counters of connection ends ---- */

struct end {
  const struct record_link *row;
  uint64_t base; /* the end's count before the script begins */
};

static bool end_find(struct emu_lane *emu, struct link *link, bool sends, struct end *end) {
  struct live_rank *rank = &world.ranks[lane_comm(emu)->config.comm_id - 1][lane_comm(emu)->config.rank];
  if (target_of(emu) == NULL || rank->script->state == NULL) return false;
  end->row = link_row(rank, emu->lane.work, link->peer, sends);
  if (end->row == NULL) return false;
  end->base = rank_is_seen(rank)
                  ? seen_begin(emu, link, sends, end->row) - link_begin(emu->lane.work, link, sends)
                  : end->row->step - link->step;
  return true;
}

/* At an operation's start a receiver posts what it has freed before; until then its sender lacks slots that
 * are free here. */
static bool slots_are_owed(struct emu_lane *emu, const struct record_lane *row) {
  struct emu_conn *conn = NULL;
  struct end own;
  if (row->wait != WAITS_SLOT) return false;
  struct link *link = target_link(emu, row, &conn);
  return link != NULL && conn->recv_lane == NULL && end_find(emu, link, true, &own) &&
         own.row->head < own.base;
}

/* ---- descriptions ---- */

void lane_say_wait(struct emu_lane *emu, char out[REPLAY_TEXT_BYTES]) {
  struct lane_wait wait = lane_wait_first(&emu->lane, &emu->prim);
  int used = snprintf(out, REPLAY_TEXT_BYTES, "operation #%" PRIu64 ", step %" PRIu64, emu_lane_sequence(emu),
                      emu->lane.steps_done);
  const size_t left = REPLAY_TEXT_BYTES - (size_t)used;
  const struct target *target = target_of(emu);
  const bool stays = target != NULL && target->held && (!world.lifted || target->missing);
  const bool held = stays && target->row->wait != WAITS_NOT;
  if (emu->lane.error != LANE_OK)
    snprintf(out + used, left, ", does not agree with rank %u on its size", emu->lane.mismatch_peer);
  else if (wait.kind == WAIT_NOTHING && held)
    snprintf(out + used, left, ", waits for %s rank %u%s", wait_texts[target->row->wait], target->row->peer,
             slots_are_owed(emu, target->row) ? ", from before" : ", which is there");
  else if (wait.kind == WAIT_NOTHING) snprintf(out + used, left, ", could go on");
  else if (wait.need == 0)
    snprintf(out + used, left, ", waits for %s rank %u", wait_texts[wait.kind], wait.peer);
  else
    snprintf(out + used, left, ", waits for %s rank %u (%" PRIu64 " of %" PRIu64 ")", wait_texts[wait.kind],
             wait.peer, wait.have, wait.need);
}

static void lane_say(struct emu_lane *emu, char out[REPLAY_TEXT_BYTES]) {
  const struct device_comm *comm = lane_comm(emu);
  char waits[REPLAY_TEXT_BYTES];
  lane_say_wait(emu, waits);
  replay_say(out, "rank %u of comm '%.40s', channel %u: %.400s", comm->config.rank, comm->name,
             emu->lane.work->channel_index, waits);
}

/* ---- is it the recorded state? ---- */

static void target_say(const struct live_rank *rank, const char *name, const struct target *target,
                       char out[REPLAY_TEXT_BYTES]) {
  const struct record_lane *row = target->row;
  replay_say(out, "rank %u of comm '%.40s' was at step %u of operation #%u on channel %u", rank->script->rank,
             name, row->step, row->sequence, row->channel);
}

/* A step number that the operation does not have. */
static bool target_is_beyond(const struct live_rank *rank, const char *name, const struct target *target,
                             char out[REPLAY_TEXT_BYTES]) {
  char where[REPLAY_TEXT_BYTES];
  if (target->present || !target->seen || target->stale) return false;
  target_say(rank, name, target, where);
  replay_say(out, "%.300s, which ends after step %" PRIu64 " here: its count is wrong", where, target->steps);
  return true;
}

static bool target_is_short(const struct live_rank *rank, const char *name, const struct target *target,
                            char out[REPLAY_TEXT_BYTES]) {
  char where[REPLAY_TEXT_BYTES], now[REPLAY_TEXT_BYTES];
  if ((target->present && target->held) || target->stale) return false;
  target_say(rank, name, target, where);
  if (!target->present) {
    replay_say(out, "%.300s, to which no kernel comes while the others stay where they were", where);
    return true;
  }
  lane_say(target->live, now);
  replay_say(out, "%.200s, to which it cannot come while the others stay where they were: %.200s", where,
             now);
  return true;
}

static bool anybody_differs(const struct replay_comm *comm, const struct record_call *call) {
  for (uint32_t r = 0; r < comm->rank_count && !is_message(call->func); r++) {
    const struct record_call *other = replay_find(&comm->ranks[r], call->collective);
    if (other != NULL && !replay_calls_agree(call, other)) return true;
  }
  return false;
}

/* Kernels that the rank can have ended by itself: one that finds a different size elsewhere ends them all,
 * and the emulator does not detect different protocols either. */
static uint64_t kernels_before_difference(const struct replay_comm *comm, const struct replay_rank *rank) {
  for (uint32_t i = 0; i < rank->launched_count; i++)
    for (uint32_t k = 0; k < rank->launches[i].op_count; k++)
      if (anybody_differs(comm, &rank->ops[rank->launches[i].first_op + k].call)) return i;
  return rank->launched_count;
}

static bool kernels_differ(const struct replay_comm *comm, const struct live_rank *rank,
                           char out[REPLAY_TEXT_BYTES]) {
  const struct replay_rank *script = rank->script;
  if (script->state == NULL || script->state->view->comm->counts == 0 || world.failed) return false;
  if (rank->device->turn >= script->ended) return false;
  if (rank->device->turn >= kernels_before_difference(comm, script)) {
    replay_remark(world.replay,
                  "the kernels of comm '%s' ended by themselves: they found out that ranks called different "
                  "things",
                  comm->name);
    return false;
  }
  replay_say(out,
             "rank %u of comm '%.40s' had ended %" PRIu64
             " of the kernels that are replayed, and here it can end "
             "%" PRIu64 " while the others stay where they were",
             script->rank, comm->name, script->ended, rank->device->turn);
  return true;
}

static struct link *link_to(struct emu_lane *emu, uint32_t peer) {
  for (uint32_t i = 0; i < emu->lane.work->recv_count; i++)
    if (emu->lane.recv[i].peer == peer) return &emu->lane.recv[i];
  return NULL;
}

/* Both ends have consistent counters: neither has seen what the other has not done. */
static bool link_is_wrong(struct emu_lane *emu, struct link *link, struct emu_conn *conn, bool sends,
                          char out[REPLAY_TEXT_BYTES]) {
  const struct device_comm *comm = lane_comm(emu);
  const struct replay_comm *script = &world.replay->comms[comm->config.comm_id - 1];
  const bool whole = script->whole && !script->net; /* a network's may begin with the number of its slots */
  struct end own, other;
  if (!end_find(emu, link, sends, &own)) return false;
  const uint64_t posted = sends ? own.row->tail : own.row->head;
  const uint64_t seen = sends ? own.row->head : own.row->tail;
  const uint64_t done = own.base + (sends ? conn->fifo->sender.head : conn->fifo->receiver.tail);
  const bool ll = emu->lane.work->proto != PROTO_SIMPLE;
  const bool seen_only = rank_is_seen(&world.ranks[comm->config.comm_id - 1][comm->config.rank]);
  const uint64_t most = own.base + (seen_only ? seen_most(emu, link, sends) : 0);
  const bool counted = posted == own.base + link->posted || posted <= most || (seen_only && sends && ll);
  const bool slots = emu->lane.work->proto == PROTO_SIMPLE || sends;
  if (counted && (!whole || own.base == 0) && (!slots || script->net || seen <= done || seen <= most)) {
    struct emu_lane *peer = sends ? conn->recv_lane : NULL;
    struct link *end = peer != NULL ? link_to(peer, comm->config.rank) : NULL;
    if (end == NULL || !end_find(peer, end, false, &other) || other.base == own.base) return false;
    replay_say(
        out,
        "rank %u and rank %u of comm '%.40s' count differently on their connection on channel %u: %" PRIu64
        " steps were before this one at its sender, %" PRIu64 " at its receiver",
        comm->config.rank, link->peer, comm->name, emu->lane.work->channel_index, own.base, other.base);
    return true;
  }
  replay_say(out,
             "rank %u of comm '%.40s' counts step %" PRIu64 ", head %" PRIu64 ", tail %" PRIu64
             " %s rank %u on "
             "channel %u, where the schedule is at step %" PRIu64 " and %" PRIu64
             " have come from there: a "
             "counter is stale or corrupted",
             comm->config.rank, comm->name, own.row->step, own.row->head, own.row->tail,
             sends ? "to" : "from", link->peer, emu->lane.work->channel_index, link->step,
             sends ? conn->fifo->sender.head : conn->fifo->receiver.tail);
  return true;
}

static bool lane_links_wrong(void *argument, struct emu_lane *emu) {
  char *out = (char *)argument;
  const struct target *target = target_of(emu);
  if (target == NULL || !target->held) return true;
  for (uint32_t i = 0; i < emu->lane.work->recv_count; i++)
    if (link_is_wrong(emu, &emu->lane.recv[i], emu->recv_conn[i], false, out)) return false;
  for (uint32_t i = 0; i < emu->lane.work->send_count; i++)
    if (link_is_wrong(emu, &emu->lane.send[i], emu->send_conn[i], true, out)) return false;
  return true;
}

typedef bool (*target_test)(const struct live_rank *rank, const char *name, const struct target *target,
                            char out[REPLAY_TEXT_BYTES]);

static bool targets_any(target_test test, char out[REPLAY_TEXT_BYTES]) {
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++)
      for (uint32_t i = 0; i < world.ranks[c][r].target_count; i++)
        if (test(&world.ranks[c][r], world.replay->comms[c].name, &world.ranks[c][r].targets[i], out))
          return true;
  return false;
}

void state_compare(struct replay_outcome *outcome) {
  char *reason = outcome->reason;
  if (outcome->moving) {
    replay_say(reason, "it was still making progress after %" PRIu64 " events", outcome->events_run);
    return;
  }
  if (targets_any(target_is_beyond, reason)) return;
  lanes_each(lane_links_wrong, reason);
  if (reason[0] != '\0' || targets_any(target_is_short, reason)) return;
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++)
      if (kernels_differ(&world.replay->comms[c], &world.ranks[c][r], reason)) return;
  outcome->reached = true;
}

/* ---- what is missing ---- */

static struct replay_event *event_add(struct replay_outcome *outcome, enum replay_event_kind kind,
                                      uint32_t comm, uint32_t rank) {
  if (outcome->event_count == REPLAY_EVENTS_MOST) return NULL;
  struct replay_event *event = &outcome->events[outcome->event_count++];
  memset(event, 0, sizeof *event);
  event->kind = kind;
  event->comm = comm;
  event->rank = rank;
  return event;
}

/* What the lane waited for in the record has arrived. */
static bool target_is_served(struct target *target) {
  struct emu_lane *emu = target->live;
  const struct record_lane *row = target->row;
  struct emu_conn *conn = NULL;
  const struct link *link = target_link(emu, row, &conn);
  const struct lane_wait wait = lane_wait_first(&emu->lane, &emu->prim);
  const uint32_t steps = emu->lane.work->slice_steps;
  if (emu->lane.error != LANE_OK || row->wait == WAITS_LIST || slots_are_owed(emu, row)) return false;
  if (wait.kind == WAIT_NOTHING) return true;
  if (row->wait == WAITS_NOT || rank_is_seen(live_of(lane_comm(emu)))) return false;
  if (link == NULL || emu->lane.phase == LANE_OPEN) return false;
  if (row->wait == WAITS_DATA) return conn->fifo->receiver.tail >= link->step + steps;
  if (row->wait == WAITS_SLOT) return conn->fifo->sender.head + conn->slots >= link->step + steps;
  return row->wait == WAITS_LL && (wait.kind != WAIT_LL || wait.peer != row->peer);
}

/* Merges the last event with an equal one on the previous channel. */
static void event_join(struct replay_outcome *outcome) {
  if (outcome->event_count < 2) return;
  const struct replay_event *event = &outcome->events[outcome->event_count - 1];
  struct replay_event *before = &outcome->events[outcome->event_count - 2];
  if (before->kind != event->kind || before->comm != event->comm || before->rank != event->rank ||
      before->waiter != event->waiter || before->lane != event->lane ||
      before->last_channel + 1 != event->channel)
    return;
  if (before->number != event->number) before->number = REPLAY_SEVERAL;
  before->last_channel = event->channel;
  outcome->event_count -= 1;
}

static void target_event(struct replay_outcome *outcome, uint32_t comm, uint32_t r, struct target *target) {
  const struct record_lane *row = target->row;
  const bool slot = row->wait == WAITS_SLOT;
  struct emu_conn *conn = NULL;
  if (!target->present || !target->held || !target_is_served(target)) return;
  const bool idles = row->wait == WAITS_NOT;
  struct replay_event *event = event_add(outcome,
                                         idles  ? EVENT_MOVE
                                         : slot ? EVENT_RECV
                                                : EVENT_SEND,
                                         comm, idles ? r : row->peer);
  const struct link *link = target_link(target->live, row, &conn);
  if (event == NULL) return;
  event->channel = event->last_channel = row->channel;
  event->waiter = r;
  event->lane = row->lane;
  event->number = row->step;
  if (idles) {
    replay_say(event->why, "rank %u is at step %u of operation #%u on channel %u, and could go on", r,
               row->step, row->sequence, row->channel);
    return;
  }
  event->number = slot && conn != NULL && row->need >= conn->slots ? row->need - conn->slots : row->need;
  if (row->wait == WAITS_LL && link != NULL) {
    const struct record_link *noted =
        link_row(&world.ranks[comm][r], target->live->lane.work, row->peer, false);
    event->number = (noted != NULL ? noted->step : link->step) + 1;
  }
  replay_say(event->why, "rank %u has %s it, and rank %u is at step %" PRIu64 " of operation #%u without it",
             row->peer, slot ? "freed" : "sent", r, target->steps, row->sequence);
  event_join(outcome);
}

static void call_say(const struct replay_comm *comm, uint32_t r, uint32_t collective, const char *what,
                     char out[REPLAY_TEXT_BYTES]) {
  const struct replay_rank *of = NULL;
  const struct record_call *call = replay_majority(comm, collective, &of);
  replay_say(out, "rank %u %s %s of %" PRIu64 " %s, which %s %u called as #%u", r, what,
             record_func_name(call->func), call->count, record_type_name(call->dtype), "rank", of->rank,
             call->sequence);
}

static bool rank_differs(struct replay_outcome *outcome, uint32_t c, uint32_t r) {
  const struct replay_comm *comm = &world.replay->comms[c];
  const struct replay_rank *rank = &comm->ranks[r], *of = NULL;
  for (uint32_t i = 0; i < rank->op_count; i++) {
    const struct record_call *own = &rank->ops[i].call;
    const struct record_call *theirs =
        is_message(own->func) ? NULL : replay_majority(comm, own->collective, &of);
    if (theirs == NULL || replay_calls_agree(own, theirs)) continue;
    struct replay_event *event = event_add(outcome, EVENT_CALL, c, r);
    if (event == NULL) return true;
    event->replaces = true;
    call_say(comm, r, own->collective, "called something else in the place of", event->why);
    return true;
  }
  return false;
}

/* Fewer than half of the ranks called it: these did something else. */
static bool few_called(const struct replay_comm *comm, uint32_t collective) {
  uint32_t called = 0;
  for (uint32_t r = 0; r < comm->rank_count; r++)
    called += comm->ranks[r].state != NULL && (int32_t)(comm->ranks[r].collectives - collective) > 0;
  return 2 * called < comm->rank_count;
}

static void rank_lacks_call(struct replay_outcome *outcome, uint32_t c, uint32_t r) {
  const struct replay_comm *comm = &world.replay->comms[c];
  const struct replay_rank *rank = &comm->ranks[r], *of = NULL;
  const uint32_t next = rank->state != NULL ? rank->collectives : comm->first_collective;
  if ((rank->state == NULL && world.scenario->assumes) || replay_majority(comm, next, &of) == NULL) return;
  if (few_called(comm, next)) {
    replay_remark(world.replay, "few of the %u ranks of comm '%s' called its collective %u", comm->rank_count,
                  comm->name, next);
    return;
  }
  struct replay_event *event = event_add(outcome, EVENT_CALL, c, r);
  if (event != NULL)
    call_say(comm, r, next,
             rank->state != NULL ? "has not called" : "left no file; perhaps it has not called", event->why);
}

static bool rank_lacks_message(struct replay_outcome *outcome, uint32_t c, uint32_t r) {
  const struct replay_comm *comm = &world.replay->comms[c];
  const struct replay_rank *rank = &comm->ranks[r];
  const uint32_t count = messages_missing(comm, r, NULL);
  if (count == 0) return false;
  struct replay_op *ops = (struct replay_op *)os_alloc(count * sizeof *ops);
  struct replay_event *event = ops != NULL ? event_add(outcome, EVENT_CALL, c, r) : NULL;
  if (event != NULL) {
    messages_missing(comm, r, ops);
    const struct record_call *call = &ops[0].call;
    const bool sends = call->func == FUNC_SEND;
    replay_say(event->why, "rank %u has not called the %s rank %u that rank %u's %s #%u needs", r,
               sends ? "send to" : "receive from", call->peer, call->peer, sends ? "receive" : "send",
               call->sequence);
    for (uint32_t i = 0; i < rank->launched_count; i++)
      event->replaces |= rank->ops[rank->launches[i].first_op].call.collective >= call->collective;
  }
  os_free(ops);
  return true;
}

static bool comm_hangs(uint32_t c) {
  const struct replay_comm *comm = &world.replay->comms[c];
  for (uint32_t r = 0; r < comm->rank_count; r++)
    if (world.ranks[c][r].device->turn < world.ranks[c][r].launched ||
        comm->ranks[r].launched_count < comm->ranks[r].launch_count)
      return true;
  return false;
}

/* Some rank waited: the job was not just killed. */
static bool comm_waits(uint32_t c) {
  for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++)
    if (world.ranks[c][r].target_count > 0) return true;
  return false;
}

static void rank_events(struct replay_outcome *outcome, uint32_t c, uint32_t r) {
  struct live_rank *rank = &world.ranks[c][r];
  struct replay_event *event = NULL;
  const uint32_t before = outcome->event_count;
  for (uint32_t i = 0; i < rank->target_count; i++) target_event(outcome, c, r, &rank->targets[i]);
  const bool broken = rank->script->state != NULL && rank->script->state->view->comm->error != 0;
  const bool known = rank->device->turn < rank->script->launched_count && comm_waits(c);
  if (rank->wanted && known && !broken && (event = event_add(outcome, EVENT_START, c, r)) != NULL)
    replay_say(event->why,
               "rank %u has launched operation #%" PRIu64 ", and its device has not begun with it", r,
               rank->script->ops[rank->script->launches[rank->device->turn].first_op].sequence);
  if (rank->script->launched_count < rank->script->launch_count &&
      (event = event_add(outcome, EVENT_LAUNCH, c, r)) != NULL)
    replay_say(event->why,
               world.replay->comms[c].captured
                   ? "rank %u has not launched the graph with operation #%" PRIu64 ", which others are in"
                   : "rank %u has called operation #%" PRIu64 " and not launched it",
               r, rank->script->ops[rank->script->launches[rank->script->launched_count].first_op].sequence);
  if (rank_differs(outcome, c, r) || outcome->event_count > before) return;
  if (!rank_lacks_message(outcome, c, r)) rank_lacks_call(outcome, c, r);
}

/* All has ended, which is a failure if ranks called different operations. */
static void comm_remark(uint32_t c) {
  const struct replay_comm *comm = &world.replay->comms[c];
  const struct replay_rank *of = NULL;
  for (uint32_t r = 0; r < comm->rank_count; r++)
    for (uint32_t i = 0; i < comm->ranks[r].op_count; i++) {
      const struct record_call *own = &comm->ranks[r].ops[i].call;
      const struct record_call *theirs =
          is_message(own->func) ? NULL : replay_majority(comm, own->collective, &of);
      if (theirs == NULL || replay_calls_agree(own, theirs)) continue;
      replay_remark(world.replay,
                    "rank %u of comm '%s' called something else than others as operation #%u: its result is "
                    "wrong; `tutti explain` says more",
                    r, comm->name, own->sequence);
      return;
    }
}

void state_find_events(struct replay_outcome *outcome) {
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    if (world.scenario->injected == NULL && !comm_hangs(c)) comm_remark(c);
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; comm_hangs(c) && r < world.replay->comms[c].rank_count; r++)
      rank_events(outcome, c, r);
}

/* ---- result ---- */

struct stops {
  struct replay_outcome *outcome;
  uint32_t count;
};

static bool lane_stops(void *argument, struct emu_lane *emu) {
  struct stops *stops = (struct stops *)argument;
  if (stops->count++ == 0) lane_say(emu, stops->outcome->stop);
  return true;
}

void state_sum(struct replay_outcome *outcome) {
  struct stops stops = {outcome, 0};
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++) {
      const struct live_rank *rank = &world.ranks[c][r];
      outcome->ended += rank->device->turn;
      outcome->unended += (uint32_t)(rank->launched - rank->device->turn);
    }
  lanes_each(lane_stops, &stops);
  if (stops.count > 1) {
    const size_t used = strlen(outcome->stop);
    snprintf(outcome->stop + used, REPLAY_TEXT_BYTES - used, "; %u more wait", stops.count - 1);
  }
  for (uint32_t c = 0; c < world.replay->comm_count && !world.failed; c++) {
    world.failed = world.ranks[c][0].device->error != ncclSuccess;
    if (world.failed)
      replay_say(world.failure, "comm '%.40s' breaks: an invariant of the protocol does not hold",
                 world.replay->comms[c].name);
  }
  outcome->failed = world.failed;
  if (world.failed) memcpy(outcome->stop, world.failure, sizeof outcome->stop);
}

/* ---- printing ---- */

/* Lanes of a rank on adjacent channels with the same wait are one line. */
struct printing {
  uint32_t rank, most, count; /* count: lines */
  const struct device_comm *comm;
  uint32_t first, last; /* channels of the line that is not printed yet */
  char waits[REPLAY_TEXT_BYTES];
};

static void line_print(struct printing *printing) {
  char channels[32];
  if (printing->comm == NULL || printing->count++ >= printing->most) return;
  if (printing->last > printing->first)
    snprintf(channels, sizeof channels, "channels %u-%u", printing->first, printing->last);
  else snprintf(channels, sizeof channels, "channel %u", printing->first);
  printf("  rank %u of comm '%.40s', %s: %s\n", printing->comm->config.rank, printing->comm->name, channels,
         printing->waits);
}

static void link_print(const struct link *link, const struct emu_conn *conn, bool sends) {
  const uint64_t head = conn->fifo->sender.head, tail = conn->fifo->receiver.tail;
  printf("    %s rank %u: step %" PRIu64 ", head %" PRIu64 ", tail %" PRIu64 ": %" PRIu64
         " of %u slots%s filled\n",
         sends ? "to" : "from", link->peer, link->step, head, tail, tail > head ? tail - head : 0,
         conn->slots, emu_conn_reads(conn, link) ? " at the sender" : "");
}

static void links_print(const struct emu_lane *emu) {
  for (uint32_t i = 0; i < emu->lane.work->recv_count; i++)
    link_print(&emu->lane.recv[i], emu->recv_conn[i], false);
  for (uint32_t i = 0; i < emu->lane.work->send_count; i++)
    link_print(&emu->lane.send[i], emu->send_conn[i], true);
}

static bool lane_print(void *argument, struct emu_lane *emu) {
  struct printing *printing = (struct printing *)argument;
  const struct device_comm *comm = lane_comm(emu);
  const uint32_t channel = emu->lane.work->channel_index;
  char waits[REPLAY_TEXT_BYTES];
  if (printing->rank != REPLAY_NONE && comm->config.rank != printing->rank) return true;
  lane_say_wait(emu, waits);
  if (printing->rank == REPLAY_NONE && printing->comm == comm && printing->last + 1 == channel &&
      strcmp(printing->waits, waits) == 0) {
    printing->last = channel;
    return true;
  }
  if (printing->rank == REPLAY_NONE) line_print(printing);
  printing->comm = comm;
  printing->first = printing->last = channel;
  memcpy(printing->waits, waits, sizeof waits);
  if (printing->rank == REPLAY_NONE) return true;
  line_print(printing);
  links_print(emu);
  return true;
}

void replay_print_lanes(uint32_t rank, uint32_t most) {
  struct printing printing = {.rank = rank, .most = most};
  emu_lock();
  lanes_each(lane_print, &printing);
  emu_unlock();
  if (rank == REPLAY_NONE) line_print(&printing);
  if (printing.count > most) printf("  %u more lines of lanes that have not ended\n", printing.count - most);
  if (printing.count == 0 && rank != REPLAY_NONE) printf("  rank %u: no lane of it is under way\n", rank);
}
