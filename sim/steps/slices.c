/* slices.c: a lane whose waits are over at once (executor.h): what it would do, without times. */
#include <string.h>

#include "base/os.h"
#include "steps/executor.h"

struct slices {
  struct prim prim;
  struct executor_lane lane;
  struct conn_words words[2 * STEP_LINKS_MAX];
  struct link links[2 * STEP_LINKS_MAX];
  struct sim_link moves[2 * STEP_LINKS_MAX];
};

struct slices *slices_open(void) {
  return (struct slices *)os_alloc(sizeof(struct slices));
}

void slices_close(struct slices *slices) { os_free(slices); }

void slices_begin(struct slices *slices, const struct plan_limits *limits, const struct work *work) {
  const uint32_t links = (uint32_t)work->recv_count + work->send_count;
  uint32_t conns[2 * STEP_LINKS_MAX];
  const struct executor_work made = {.work = work, .limits = limits, .conns = conns, .links = slices->links};
  for (uint32_t i = 0; i < links; i++) conns[i] = i;
  memset(&slices->prim, 0, sizeof slices->prim);
  memset(&slices->lane, 0, sizeof slices->lane);
  memset(slices->words, 0, links * sizeof *slices->words);
  slices->prim.words = slices->words;
  slices->lane.slice.moves = slices->moves;
  executor_open(&slices->prim, &slices->lane, &made);
}

const struct sim_slice *slices_next(struct slices *slices) {
  for (;;) {
    const uint32_t action = executor_action(&slices->prim, &slices->lane);
    executor_move(&slices->prim, &slices->lane, action);
    if (action == LANE_END) return NULL;
    if (action == LANE_POST) return &slices->lane.slice;
  }
}

/* The number of steps of a work does not depend on its rank, except for lists, over switches, and at the root
 * of a reduction by two shots. */
static bool works_have_as_many(const struct work *a, const struct work *b) {
  return a->func == b->func && a->algo == b->algo && a->proto == b->proto && a->flags == b->flags &&
         a->chunk_steps == b->chunk_steps && a->slice_steps == b->slice_steps && a->role == b->role &&
         a->count == b->count && a->part_count == b->part_count && a->chunk_count == b->chunk_count &&
         a->last_chunk_count == b->last_chunk_count && a->rank_count == b->rank_count &&
         a->recv_count == b->recv_count && a->send_count == b->send_count && a->algo != ALGO_CUSTOM &&
         (a->algo != ALGO_TWO_SHOT || (a->rank == a->root) == (b->rank == b->root)) &&
         !switch_is_algo(a->algo);
}

uint64_t slices_count(const struct sim_net *net) {
  enum { KINDS = 16 };
  const struct work *kinds[KINDS] = {NULL};
  uint64_t slices[KINDS] = {0}, sum = 0;
  struct slices *lane = slices_open();
  for (uint32_t i = 0, next = 0; lane && i < net->lane_count; i++) {
    const struct work *work = net->lanes[i].work;
    uint32_t kind = 0;
    while (kind < KINDS && !(kinds[kind] && works_have_as_many(kinds[kind], work))) kind += 1;
    if (kind == KINDS) {
      kind = next++ % KINDS;
      kinds[kind] = work;
      slices[kind] = 0;
      slices_begin(lane, &net->plans[net->lanes[i].rank - net->first_rank].limits, work);
      while (slices_next(lane)) slices[kind] += 1;
    }
    sum += slices[kind];
  }
  slices_close(lane);
  return sum;
}
