/* warps.h: how many warps a block has use for, and how they are divided among the works of a batch. The host
 * divides them at each launch, and the kernel reads the result beside the batch. What a work computes does
 * not depend on its warps. */
#ifndef TUTTI_KERNELS_WARPS_H
#define TUTTI_KERNELS_WARPS_H

#include "kernels/launch.h"
#include "schedule/algo.h"

/* Of the warps of a rank's two works in a tree, the one that adds what the children send gets this share,
 * since it reads more than it writes. Without children both only copy. */
#define WARPS_TREE_UP_PERCENT 70u

/* Fewest warps of a work that moves data beside others: one that runs its lane, and one or two that move. */
#define WARPS_LEAST 2u
#define WARPS_LEAST_USUAL 3u

#define WARP_LL_BYTES (32u * 8)     /* one line per thread */
#define WARP_LL128_BYTES (4u * 120) /* one line per eight threads */

/* Bytes of the longest chunk of the first loop. */
static inline size_t work_chunk_bytes(const struct work *work) {
  return work->element_bytes *
         chunk_of_loop(work->part_count, work->chunk_count, algo_loop_chunks(work), work->last_chunk_count);
}

/* Warps that a work can use: an issue warp, compute warps for its lines, and a commit warp. */
static inline size_t warps_useful(const struct work *work) {
  if (work->proto == PROTO_SIMPLE) return LAUNCH_WARPS_MAX;
  const size_t warp_bytes = work->proto == PROTO_LL ? WARP_LL_BYTES : WARP_LL128_BYTES;
  return 2 + size_max(1, size_div_up(work_chunk_bytes(work), warp_bytes));
}

/* A receiver whose sender stores into its output moves no data: one warp runs its lane. */
static inline bool warps_light(const struct work *work) {
  return work->func == FUNC_RECV && (work->flags & WORK_DIRECT_RECV) != 0 &&
         (work->flags & WORK_OUTPUT_HIDDEN) == 0;
}

/* What a work has to do, compared with the others of its batch. */
static inline uint64_t warps_weight(const struct work *work) {
  const uint64_t kib = ((uint64_t)work->part_count * work->element_bytes >> 10) + 1;
  uint32_t percent = 50;
  if (work->algo == ALGO_TREE && work->role == ROLE_UP && work->recv_count > 0)
    percent = WARPS_TREE_UP_PERCENT;
  if (work->algo == ALGO_TREE && work->role == ROLE_DOWN && work->send_count > 0)
    percent = 100 - WARPS_TREE_UP_PERCENT;
  return kib * percent;
}

/* Fewest warps with which a batch's works run side by side, if each that moves data has `least`. */
static inline uint32_t warps_needed(const struct work *const *works, uint32_t work_count, uint32_t least) {
  uint32_t needed = 0;
  if (work_count == 1) return 1;
  for (uint32_t i = 0; i < work_count; i++) needed += warps_light(works[i]) ? 1 : least;
  return needed;
}

/* Divides at least warps_needed() with WARPS_LEAST. Those that no work can use have none. */
static inline void warps_divide(const struct work *const *works, uint32_t work_count, uint32_t warps,
                                uint8_t counts[PLAN_BATCH_WORKS_MAX]) {
  const bool usual = warps >= warps_needed(works, work_count, WARPS_LEAST_USUAL);
  const uint32_t least = usual ? WARPS_LEAST_USUAL : WARPS_LEAST;
  uint64_t weights[PLAN_BATCH_WORKS_MAX], loads[PLAN_BATCH_WORKS_MAX]; /* load: weight by warp */
  size_t most[PLAN_BATCH_WORKS_MAX];
  uint32_t left = warps;
  for (uint32_t i = 0; i < work_count; i++) {
    const bool light = warps_light(works[i]);
    counts[i] = (uint8_t)(work_count == 1 ? warps : light ? 1 : least);
    most[i] = light ? 1 : warps_useful(works[i]);
    weights[i] = warps_weight(works[i]);
    loads[i] = weights[i] / counts[i];
    left -= counts[i];
  }
  while (left > 0) { /* the next one goes to the work that would take longest */
    uint32_t next = work_count;
    for (uint32_t i = 0; i < work_count; i++)
      if (counts[i] < most[i] && (next == work_count || loads[i] > loads[next])) next = i;
    if (next == work_count) return;
    counts[next] += 1;
    loads[next] = weights[next] / counts[next];
    left -= 1;
  }
}

#endif
