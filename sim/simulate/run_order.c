/* run_order.c: kernels of a rank that use the same ends of connections run in the order in which the rank
 * calls them, also on different streams: collectives of one communicator, and messages of one with the same
 * peer in the same direction. On one stream they are in order anyway. */
#include "simulate/run_impl.h"

#include "base/array.h"
#include "base/map.h"

enum { END_COLLECTIVE, END_SEND, END_RECV };

/* Whose ends an operation uses; not 0. */
static uint64_t ends_key(const struct workload_call *call, const struct workload_op *op) {
  const uint64_t kind = op->func == FUNC_SEND ? END_SEND : op->func == FUNC_RECV ? END_RECV : END_COLLECTIVE;
  return ((uint64_t)call->comm << 34 | kind << 32 | (kind == END_COLLECTIVE ? 0 : op->peer)) + 1;
}

static bool turn_add(struct run *run, uint32_t step, uint32_t prior) {
  if (!array_grow(&run->turns, &run->turn_capacity, (uint64_t)run->turn_count + 1, sizeof *run->turns))
    return false;
  run->turns[run->turn_count++] = (struct turn){step, prior};
  return true;
}

/* `last`: one for each operation of the rank; the steps plus one that used the ends last. */
static bool rank_turns_find(struct run *run, uint32_t rank, struct map *map, uint32_t *last) {
  const struct workload *workload = run->workload;
  const struct workload_rank *own = &workload->ranks[rank];
  uint32_t count = 0;
  for (uint32_t i = 0; i < own->step_count; i++) {
    const struct workload_call *call = &workload->calls[own->steps[i].call];
    for (uint32_t k = 0; k < call->op_count; k++) {
      const uint64_t key = ends_key(call, &workload->ops[call->first_op + k]);
      uint32_t *user = (uint32_t *)map_find(map, key);
      if (!user) {
        user = &last[count++];
        *user = i;
        if (!map_reserve(map)) return false;
        map_insert(map, key, user);
      }
      const bool other = workload->calls[own->steps[*user].call].stream != call->stream;
      if (other && !turn_add(run, i, *user)) return false;
      *user = i;
    }
  }
  return true;
}

static bool rank_has_streams(const struct workload_rank *own, uint32_t stream_count) {
  uint32_t used = 0;
  for (uint32_t i = 0; own->step_count > 0 && i < stream_count; i++) used += own->stream_steps[i] > 0;
  return used > 1;
}

ncclResult_t run_turns_find(struct run *run) {
  const struct workload *workload = run->workload;
  bool whole = true;
  run->first_turn = (uint32_t *)os_alloc((workload->rank_count + (size_t)1) * sizeof *run->first_turn);
  run->step_ends = (uint64_t **)os_alloc(workload->rank_count * sizeof *run->step_ends);
  if (!run->first_turn || !run->step_ends) return run_no_memory(run);
  for (uint32_t rank = 0; whole && rank < workload->rank_count; rank++) {
    const struct workload_rank *own = &workload->ranks[rank];
    struct map map = {NULL, 0, 0};
    size_t ops = 0;
    run->first_turn[rank] = run->turn_count;
    run->first_turn[rank + 1] = run->turn_count;
    if (!rank_has_streams(own, workload->stream_count)) continue;
    for (uint32_t i = 0; i < own->step_count; i++) ops += workload->calls[own->steps[i].call].op_count;
    uint32_t *last = (uint32_t *)os_alloc((ops + 1) * sizeof *last);
    whole = last && rank_turns_find(run, rank, &map, last);
    map_clear(&map);
    os_free(last);
    run->first_turn[rank + 1] = run->turn_count;
    if (run->turn_count == run->first_turn[rank]) continue;
    run->step_ends[rank] = (uint64_t *)os_alloc(own->step_count * sizeof **run->step_ends);
    whole = whole && run->step_ends[rank];
  }
  return whole ? ncclSuccess : run_no_memory(run);
}

struct track *run_turn_of(const struct run *run, const struct track *track, uint64_t *free_ps) {
  uint32_t low = run->first_turn[track->rank], high = run->first_turn[track->rank + 1];
  const uint32_t end = high;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (run->turns[middle].step < track->step) low = middle + 1;
    else high = middle;
  }
  for (; low < end && run->turns[low].step == track->step; low++) {
    const uint32_t prior = run->turns[low].prior;
    const uint32_t call = run->workload->ranks[track->rank].steps[prior].call;
    struct track *other = run_track_find(run, track->rank, run->workload->calls[call].stream);
    if (other && other->step <= prior) return other;
    if (run->step_ends[track->rank][prior] > *free_ps) *free_ps = run->step_ends[track->rank][prior];
  }
  return NULL;
}

void run_turns_free(struct run *run) {
  for (uint32_t i = 0; run->step_ends && i < run->workload->rank_count; i++) os_free(run->step_ends[i]);
  os_free(run->step_ends);
  os_free(run->first_turn);
  os_free(run->turns);
}
