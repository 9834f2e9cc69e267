/* proxy.c: how many FIFO steps a proxy counts on a connection for a work, from the work alone: loops times
 * steps per loop times steps per chunk. It does not use the iterators, so that the two can be compared. */
#include "check/engine.h"

static uint64_t loops_of(const struct work *work, uint64_t chunks) {
  const uint64_t loop_count = work->chunk_count * chunks;
  return loop_count == 0 ? 0 : (work->part_count + loop_count - 1) / loop_count;
}

/* Slots per chunk that an aggregated tree uses on the link to distance 1 << link: one if that is a whole row
 * of packed blocks or more, else one for each column whose lowest bit it is. */
static uint64_t pat_slots(const struct work *work, uint32_t link) {
  const uint64_t low = UINT64_C(1) << link;
  uint64_t columns = 1;
  while (columns < work->rank_count) columns *= 2;
  columns /= work->pack;
  if (low >= columns) return 1;
  if (columns > work->rank_count) columns = work->rank_count;
  return (columns - low + 2 * low - 1) / (2 * low);
}

/* Parts that do not begin at the receiving side, or end at the sending side, each in chunks of the whole. */
static uint64_t fused_steps(const struct work *work, bool sends) {
  uint64_t chunks = 0;
  for (size_t i = 0; i < work->fused_count; i++) {
    if (work[i].root == (sends ? work->send_peer[0] : work->rank)) continue;
    chunks += (work[i].part_count + work->chunk_count - 1) / work->chunk_count;
  }
  return chunks * work->chunk_steps;
}

/* Steps of one loop on one link, in chunks. */
static bool loop_steps(const struct work *work, bool sends, uint32_t link, uint64_t *chunks,
                       uint64_t *steps) {
  const uint64_t others = work->rank_count - 1;
  *chunks = *steps = 1;
  switch (work->algo) {
    case ALGO_TREE: return true;
    case ALGO_DIRECT: return true; /* one message to each other rank, for every collective */
    case ALGO_PAT: *steps = pat_slots(work, link); return true;
    case ALGO_TWO_SHOT: /* of a reduction to a root, sums go to the root alone */
      *chunks = others + 1;
      *steps =
          work->func == FUNC_REDUCE && (sends ? work->send_peer[link] : work->rank) != work->root ? 1 : 2;
      return true;
    case ALGO_RING: break;
    default: return false;
  }
  if (work->func == FUNC_ALL_REDUCE) {
    *chunks = others + 1;
    *steps = 2 * others;
  } else if (work->func == FUNC_ALL_GATHER || work->func == FUNC_REDUCE_SCATTER) {
    *steps = others;
  }
  return true;
}

bool proxy_steps(const struct work *work, bool sends, uint32_t link, uint64_t *steps) {
  uint64_t chunks, of_loop;
  if ((work->flags & WORK_FUSED) != 0) {
    *steps = fused_steps(work, sends);
    return true;
  }
  if (work->func == FUNC_SEND || work->func == FUNC_RECV) {
    *steps = work->part_count == 0 ? 1 : (work->part_count + work->chunk_count - 1) / work->chunk_count;
    return true;
  }
  if (!loop_steps(work, sends, link, &chunks, &of_loop)) return false;
  *steps = loops_of(work, chunks) * of_loop * work->chunk_steps;
  return true;
}
