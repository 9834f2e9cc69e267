/* replay_failed.c: a program may go on after a communicator has failed: the failed kernels end, and what
 * waited behind them on their streams runs, perhaps up to the next hang. The records then hold two states of
 * different times. The replay is of the first one: communicators that ran behind a failed one are not held at
 * their recorded places; they go as far as they can. */
#include "replay/replay.h"

static uint64_t launch_stream(const struct replay_rank *rank, const struct replay_launch *launch) {
  const struct record_place *place = &rank->ops[launch->first_op].place;
  return place->stream < RECORD_STREAMS ? rank->state->view->comm->streams[place->stream] : 0;
}

/* The first launch that did not end before the failure; launched_count: all did. */
static uint64_t rank_stopped(const struct replay_comm *comm, const struct replay_rank *rank) {
  if (comm->overtaken) return 0;
  if (rank->state->view->comm->error == 0 || rank->ended >= rank->started) return rank->launched_count;
  return rank->ended;
}

/* The later rank's kernel started though it was queued behind one of the earlier rank's that never ended. */
static bool rank_overtakes(const struct replay_comm *before, const struct replay_rank *earlier,
                           const struct replay_rank *later) {
  if (earlier->state == NULL || later->state == NULL || earlier->device != later->device) return false;
  if (later->started == UINT64_MAX) return false;
  for (uint64_t i = rank_stopped(before, earlier); i < earlier->launched_count; i++)
    for (uint64_t k = 0; k < later->launched_count && k < later->started; k++)
      if (later->launches[k].ticks > earlier->launches[i].ticks &&
          launch_stream(earlier, &earlier->launches[i]) == launch_stream(later, &later->launches[k]))
        return true;
  return false;
}

static bool comm_overtakes(const struct replay *replay, const struct replay_comm *comm) {
  for (uint32_t c = 0; c < replay->comm_count; c++) {
    const struct replay_comm *before = &replay->comms[c];
    for (uint32_t r = 0; r < before->rank_count && before != comm; r++)
      for (uint32_t k = 0; k < comm->rank_count; k++)
        if (rank_overtakes(before, &before->ranks[r], &comm->ranks[k])) return true;
  }
  return false;
}

void replay_find_overtaken(struct replay *replay) {
  bool found = true;
  while (found) {
    found = false;
    for (uint32_t c = 0; c < replay->comm_count; c++) {
      struct replay_comm *comm = &replay->comms[c];
      if (comm->overtaken || !comm_overtakes(replay, comm)) continue;
      found = comm->overtaken = true;
      for (uint32_t r = 0; r < comm->rank_count; r++) {
        comm->ranks[r].started = UINT64_MAX;
        comm->ranks[r].ended = 0;
      }
      replay_remark(replay,
                    "comm '%s' went on when a communicator had failed: it is not held where it was recorded",
                    comm->name);
    }
  }
}
