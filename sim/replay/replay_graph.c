/* replay_graph.c: operations that a CUDA graph has captured. They are called once and launched many times,
 * without records, so a graph's kernels are replayed from the first to the last that some rank is in: earlier
 * kernels have ended. The counts of kernels that graphs have begun show how far each rank is. GPUs do not
 * keep these counts, so there the state of ranks that are in no kernel is guessed. */
#include "replay/replay.h"

static uint32_t graph_operation(const struct rank_state *state) {
  return state->view->comm->graph_operation - 1;
}

void replay_graph_find(struct replay_comm *comm) {
  for (uint32_t r = 0; r < comm->rank_count; r++) {
    const struct rank_state *state = comm->ranks[r].state;
    if (state == NULL || !state->graph) continue;
    const struct record_call *call = rank_find_call(state, graph_operation(state));
    if (call == NULL) {
      comm->captured = false;
      return;
    }
    if (!comm->captured || (int32_t)(call->collective - comm->first_collective) < 0)
      comm->first_collective = call->collective;
    if (!comm->captured || (int32_t)(call->collective - comm->last_collective) > 0)
      comm->last_collective = call->collective;
    comm->captured = true;
  }
}

/* The launch that contains the operation; launch_count: none does. */
static uint32_t launch_of(const struct replay_rank *rank, uint32_t sequence) {
  uint32_t i = 0;
  while (i < rank->launch_count &&
         sequence - (uint32_t)rank->ops[rank->launches[i].first_op].sequence >= rank->launches[i].op_count)
    i++;
  return i;
}

static void rank_set(struct replay_rank *rank, bool launched, uint32_t started, uint32_t ended) {
  rank->launched_count = launched ? rank->launch_count : 0;
  for (uint32_t i = 0; i < rank->launch_count; i++) rank->launches[i].launched = launched;
  rank->started = started;
  rank->ended = ended;
}

/* The place of its kernel after what was launched by calls, of other communicators too. */
static void rank_queue(struct replay_rank *rank) {
  for (uint32_t i = 0; i < rank->launch_count; i++) rank->launches[i].ticks = UINT64_MAX;
  rank_set(rank, true, 0, 0);
}

/* A rank that is in no kernel of a graph, while `of` is in its `index`-th of these and graphs have begun
 * `runs` of its kernels. */
static void rank_count(struct replay_rank *rank, uint32_t runs, uint32_t index) {
  const uint32_t own = rank->state->view->comm->graph_runs;
  const uint32_t most = rank->launch_count;
  const int32_t begun = (int32_t)(own - (runs - index - 1));
  const uint32_t ended = begun > 0 && (uint32_t)begun < most ? (uint32_t)begun : most;
  if (begun <= 0) rank_set(rank, false, 0, 0);
  else rank_set(rank, true, ended, ended);
}

void replay_graph_count(struct replay *replay, struct replay_comm *comm) {
  uint32_t runs = 0, index = 0;
  bool guesses = false;
  for (uint32_t r = 0; r < comm->rank_count; r++) {
    struct replay_rank *rank = &comm->ranks[r];
    if (rank->state == NULL || !rank->state->graph) continue;
    index = launch_of(rank, graph_operation(rank->state));
    runs = rank->state->view->comm->graph_runs;
    const bool gone = index == rank->launch_count;
    replay->graph = replay->graph || gone;
    rank_set(rank, true, gone ? 0 : index + 1, gone ? 0 : index);
  }
  for (uint32_t r = 0; r < comm->rank_count; r++) {
    struct replay_rank *rank = &comm->ranks[r];
    if (rank->state == NULL || rank->state->graph) continue;
    if (rank->state->graph_queued) rank_queue(rank);
    else if (runs != 0) rank_count(rank, runs, index);
    else guesses = rank->guessed = true;
  }
  if (!guesses) return;
  replay_graph_guess(replay, false);
  replay_remark(replay,
                "how often graphs were launched is not known of comm '%s': ranks that are in none are taken "
                "for those that have not launched it, or where that cannot be, that have ended it",
                comm->name);
}

bool replay_graph_guess(struct replay *replay, bool ended) {
  bool any = false;
  for (uint32_t c = 0; c < replay->comm_count; c++)
    for (uint32_t r = 0; r < replay->comms[c].rank_count; r++) {
      struct replay_rank *rank = &replay->comms[c].ranks[r];
      if (!rank->guessed) continue;
      rank_set(rank, ended, ended ? rank->launch_count : 0, ended ? rank->launch_count : 0);
      any = true;
    }
  return any;
}
