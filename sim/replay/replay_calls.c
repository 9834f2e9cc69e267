/* replay_calls.c: missing calls: the calls that other ranks made, inserted in their order among a rank's own.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "replay/replay_world.h"

static bool happens(enum replay_event_kind kind, uint32_t comm, uint32_t rank) {
  const struct replay_event *event = world.scenario->injected;
  return event != NULL && event->kind == kind && event->comm == comm && event->rank == rank;
}

/* ---- messages whose other half was called ---- */

/* Messages of a function with a peer, called after this many collectives (REPLAY_NONE: anywhere). */
static uint32_t messages_count(const struct replay_rank *rank, uint8_t func, uint32_t peer,
                               uint32_t collective) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < rank->op_count; i++) {
    const struct record_call *call = &rank->ops[i].call;
    count += call->func == func && call->peer == peer &&
             (collective == REPLAY_NONE || call->collective == collective);
  }
  return count;
}

static uint8_t other_half(uint8_t func) { return func == FUNC_SEND ? FUNC_RECV : FUNC_SEND; }

/* Of the peer's messages with this rank, those without a half here. If some are missing, they are the last
 * ones of those called between two collectives. */
static uint32_t messages_of_peer(const struct replay_comm *comm, uint32_t r, uint32_t peer, uint8_t func,
                                 struct replay_op *found) {
  const struct replay_rank *theirs = &comm->ranks[peer];
  const uint32_t here = messages_count(&comm->ranks[r], func, peer, REPLAY_NONE);
  const uint32_t there = messages_count(theirs, other_half(func), r, REPLAY_NONE);
  uint32_t count = 0, seen = 0, last = REPLAY_NONE;
  for (uint32_t i = 0; i < theirs->op_count && here + count < there; i++) {
    const struct record_call *call = &theirs->ops[i].call;
    if (call->func != other_half(func) || call->peer != r) continue;
    seen = call->collective == last ? seen + 1 : 1;
    last = call->collective;
    if (seen <= messages_count(&comm->ranks[r], func, peer, call->collective)) continue;
    if (found != NULL) {
      found[count] = theirs->ops[i];
      found[count].call.func = func;
      found[count].call.peer = peer;
      found[count].sequence = seen;
      found[count].place.stream = 255;
    }
    count += 1;
  }
  return count;
}

uint32_t messages_missing(const struct replay_comm *comm, uint32_t r, struct replay_op *found) {
  uint32_t count = 0;
  for (uint32_t peer = 0; peer < comm->rank_count; peer++)
    for (uint8_t func = FUNC_SEND; func <= FUNC_RECV && peer != r; func++)
      count += messages_of_peer(comm, r, peer, func, found != NULL ? found + count : NULL);
  return count;
}

static int message_compare(const void *left, const void *right) {
  const struct replay_op *a = (const struct replay_op *)left, *b = (const struct replay_op *)right;
  if (a->call.collective != b->call.collective) return a->call.collective < b->call.collective ? -1 : 1;
  return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

/* The plan of a launch with as many messages, one of which is between these ranks. */
static const struct record_plan *plan_of_message(const struct replay_comm *comm, uint32_t r,
                                                 const struct replay_op *op, uint32_t op_count) {
  const struct replay_rank *theirs = &comm->ranks[op->call.peer];
  for (uint32_t i = 0; i < theirs->launched_count; i++)
    for (uint32_t k = 0; k < theirs->launches[i].op_count && theirs->launches[i].op_count == op_count; k++) {
      const struct record_call *call = &theirs->ops[theirs->launches[i].first_op + k].call;
      if (call->func == other_half(op->call.func) && call->peer == r &&
          call->collective == op->call.collective)
        return theirs->launches[i].plan;
    }
  return NULL;
}

/* Messages that belong before the rank's next collective, number `limit`; messages without a collective in
 * between are one launch. */
static ncclResult_t messages_make(uint32_t comm_index, uint32_t r, uint32_t limit) {
  struct replay_comm *comm = &world.replay->comms[comm_index];
  struct live_rank *rank = &world.ranks[comm_index][r];
  const uint32_t count = messages_missing(comm, r, NULL);
  ncclResult_t result = ncclSuccess;
  if (count == 0) return ncclSuccess;
  struct replay_op *ops = (struct replay_op *)os_alloc(count * sizeof *ops);
  if (ops == NULL) return log_no_memory("%u messages", count);
  messages_missing(comm, r, ops);
  qsort(ops, count, sizeof *ops, message_compare);
  for (uint32_t i = rank->messages_made, end; i < count && result == ncclSuccess; i = end) {
    struct replay_launch launch = {.launched = true, .borrowed = true};
    for (end = i; end < count && message_compare(&ops[i], &ops[end]) == 0;) end++;
    if (ops[i].call.collective > limit) break;
    for (uint32_t k = i; k < end; k++)
      ops[k].sequence = comm->ranks[r].state != NULL ? comm->ranks[r].state->called : 0;
    launch.op_count = end - i;
    launch.plan = plan_of_message(comm, r, &ops[i], launch.op_count);
    result = launch_make(comm_index, r, &ops[i], &launch);
    rank->messages_made = end;
  }
  os_free(ops);
  return result;
}

/* ---- collectives ---- */

/* The plan of another rank for this collective, alone or in a group of the same size. */
static const struct record_plan *plan_of_others(const struct replay_comm *comm,
                                                const struct record_call *call, uint32_t op_count) {
  for (uint32_t r = 0; r < comm->rank_count; r++)
    for (uint32_t k = 0; k < comm->ranks[r].launched_count; k++) {
      const struct replay_launch *launch = &comm->ranks[r].launches[k];
      const struct record_call *first = &comm->ranks[r].ops[launch->first_op].call;
      if (launch->op_count == op_count && launch->plan != NULL && first->collective == call->collective &&
          replay_calls_agree(first, call))
        return launch->plan;
    }
  return NULL;
}

/* Recorded operations; if the rank should have called what the others called, wrong ones are replaced. */
ncclResult_t calls_make_recorded(uint32_t comm_index, uint32_t r, uint32_t index) {
  const struct replay_comm *comm = &world.replay->comms[comm_index];
  const struct replay_rank *rank = &comm->ranks[r], *of = NULL;
  struct replay_launch launch = rank->launches[index];
  struct replay_op *own = (struct replay_op *)os_alloc(launch.op_count * sizeof *own);
  if (own == NULL) return log_no_memory("%u operations", launch.op_count);
  memcpy(own, &rank->ops[launch.first_op], launch.op_count * sizeof *own);
  for (uint32_t i = 0; i < launch.op_count && happens(EVENT_CALL, comm_index, r); i++) {
    const struct record_call *call =
        is_message(own[i].call.func) ? NULL : replay_majority(comm, own[i].call.collective, &of);
    if (call == NULL || replay_calls_agree(call, &own[i].call)) continue;
    own[i].call = *call;
    launch.plan = NULL;
  }
  launch.borrowed |= launch.plan == NULL;
  if (launch.plan == NULL && !is_message(own[0].call.func))
    launch.plan = plan_of_others(comm, &own[0].call, launch.op_count);
  if (launch.plan == NULL && is_message(own[0].call.func))
    launch.plan = plan_of_message(comm, r, &own[0], launch.op_count);
  ncclResult_t result = ncclSuccess;
  if (happens(EVENT_CALL, comm_index, r)) result = messages_make(comm_index, r, own[0].call.collective);
  if (result == ncclSuccess) result = launch_make(comm_index, r, own, &launch);
  os_free(own);
  return result;
}

/* The collectives of another rank's launch from `next` on, for a rank that has not called them. */
static ncclResult_t launch_like(uint32_t comm_index, uint32_t r, const struct replay_rank *of,
                                const struct replay_launch *theirs, uint32_t *next) {
  const struct replay_rank *rank = &world.replay->comms[comm_index].ranks[r];
  struct replay_launch launch = {.launched = true, .borrowed = true, .plan = theirs->plan};
  struct replay_op *ops = (struct replay_op *)os_alloc(theirs->op_count * sizeof *ops);
  if (ops == NULL) return log_no_memory("%u operations", theirs->op_count);
  for (uint32_t i = 0; i < theirs->op_count; i++) {
    const struct replay_op *op = &of->ops[theirs->first_op + i];
    if (is_message(op->call.func) || (int32_t)(op->call.collective - *next) < 0) continue;
    ops[launch.op_count] = *op;
    ops[launch.op_count].place.stream = 255;
    if (rank->state != NULL)
      ops[launch.op_count].sequence = rank->state->called + (op->call.collective - rank->collectives);
    launch.op_count += 1;
  }
  ncclResult_t result = ncclSuccess;
  if (launch.op_count > 0) {
    result = messages_make(comm_index, r, ops[0].call.collective);
    if (result == ncclSuccess) result = launch_make(comm_index, r, ops, &launch);
    *next = ops[launch.op_count - 1].call.collective + 1;
  }
  os_free(ops);
  return result;
}

/* All calls that others made, and this rank did not. */
static ncclResult_t calls_make_missing(uint32_t comm_index, uint32_t r) {
  struct replay_comm *comm = &world.replay->comms[comm_index];
  const struct replay_rank *rank = &comm->ranks[r], *of = NULL;
  uint32_t next = rank->state != NULL ? rank->collectives : comm->first_collective, last = next - 1;
  while (last != next && replay_majority(comm, next, &of) != NULL) {
    last = next;
    for (uint32_t k = 0; k < of->launch_count && last == next; k++)
      TRY(launch_like(comm_index, r, of, &of->launches[k], &next));
  }
  return messages_make(comm_index, r, UINT32_MAX);
}

/* How many operations from here on belong together: messages without a collective in between, or one
 * collective. */
static uint32_t ops_together(const struct replay_op *ops, uint32_t count) {
  uint32_t together = 1;
  while (together < count && is_message(ops[0].call.func) && is_message(ops[together].call.func) &&
         ops[together].call.collective == ops[0].call.collective)
    together++;
  return together;
}

/* A group that was not launched: as one launch if other ranks launched it so, else one by one. */
static ncclResult_t launch_late(uint32_t comm_index, uint32_t r, uint32_t index) {
  struct replay_rank *rank = &world.replay->comms[comm_index].ranks[r];
  const struct replay_launch whole = rank->launches[index];
  const struct replay_op *ops = &rank->ops[whole.first_op];
  ncclResult_t result = ncclSuccess;
  if (plan_of_others(&world.replay->comms[comm_index], &ops[0].call, whole.op_count) != NULL)
    return calls_make_recorded(comm_index, r, index);
  for (uint32_t i = 0, count; i < whole.op_count && result == ncclSuccess; i += count) {
    count = ops_together(&ops[i], whole.op_count - i);
    rank->launches[index] = (struct replay_launch){.first_op = whole.first_op + i, .op_count = count};
    result = calls_make_recorded(comm_index, r, index);
  }
  rank->launches[index] = whole;
  return result;
}

ncclResult_t calls_make_event(const struct replay_event *event) {
  const struct replay_rank *rank = &world.replay->comms[event->comm].ranks[event->rank];
  if (event->kind > EVENT_LAUNCH) return ncclSuccess;
  for (uint32_t i = rank->launched_count; i < rank->launch_count; i++)
    TRY(launch_late(event->comm, event->rank, i));
  return event->kind == EVENT_CALL ? calls_make_missing(event->comm, event->rank) : ncclSuccess;
}

ncclResult_t calls_assume(void) {
  for (uint32_t c = 0; c < world.replay->comm_count && world.scenario->assumes; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++)
      if (world.replay->comms[c].ranks[r].state == NULL) TRY(calls_make_missing(c, r));
  return ncclSuccess;
}
