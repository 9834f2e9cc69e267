/* proxy_walk.c: see proxy_walk.h. The arithmetic is that of lanes (protocol/lane.h, simple.h, lines.h). */
#include "core/proxy/proxy_walk.h"

#include <string.h>

void proxy_walk_begin(struct proxy_walk *walk, const struct work *work, uint32_t link_index, bool sends,
                      uint64_t saved_step, const struct plan_limits *limits) {
  const uint64_t chunk_steps = work->chunk_steps;
  memset(walk, 0, sizeof *walk);
  walk->work = walk->part = work;
  walk->link_index = link_index;
  walk->sends = sends;
  walk->next_step = (saved_step + chunk_steps - 1) & ~(chunk_steps - 1);
  walk->slice_capacity =
      (size_t)work->slice_steps * limits->step_bytes[PROTO_SIMPLE] >> size_log2(work->element_bytes);
  algo_begin(&walk->iter, work);
}

/* Steps of rings and messages whose data is final as it comes: what lies there now has been read long before,
 * by whoever has sent what this was made of. */
static bool step_lands(const struct proxy_walk *walk, const struct step *step) {
  const uint32_t as_it_comes = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  const uint8_t family = algo_family(walk->work);
  return !walk->sends && (family == FAMILY_RING || family == FAMILY_P2P) &&
         (step->flags & ~(uint32_t)(STEP_SEND | STEP_SEND_FINAL)) == as_it_comes;
}

/* The next chunk, or the next slot that several steps share. */
static bool walk_chunk(struct proxy_walk *walk) {
  const uint32_t more = walk->sends ? STEP_SEND_MORE : STEP_RECV_MORE;
  struct step step;
  walk->held = 0;
  walk->shared = false;
  while (algo_next(&walk->iter, walk->work, &step)) {
    if ((((walk->sends ? step.send_links : step.recv_links) >> walk->link_index) & 1) == 0) continue;
    if ((walk->work->flags & WORK_FUSED) != 0) walk->part = walk->work + step.part;
    if ((walk->work->flags & WORK_FUSED) != 0 && (step.flags & STEP_PART) != 0) walk->agreed = false;
    walk->held = size_max(walk->held, (walk->sends ? step.send_place : step.recv_place) + step.count);
    walk->shared |= (step.flags & more) != 0;
    walk->lands = step_lands(walk, &step);
    walk->out_offset = step.out_offset;
    if ((step.flags & more) == 0) return true;
  }
  return false;
}

bool proxy_walk_next(struct proxy_walk *walk, struct proxy_slice *slice) {
  const struct work *work = walk->work;
  if (walk->slice_index == walk->slice_count) {
    if (!walk_chunk(walk)) return false;
    walk->slice_index = 0;
    walk->slice_count = work->chunk_steps / work->slice_steps;
    walk->slice_elements = work->proto == PROTO_LL
                               ? walk->held /* a chunk is one step */
                               : chunk_slice_count(walk->held, walk->slice_count, walk->slice_capacity);
  }
  const size_t offset = size_min(walk->held, walk->slice_index * walk->slice_elements);
  slice->begin = walk->next_step;
  slice->end = walk->next_step += work->slice_steps;
  slice->bytes = size_min(walk->held - offset, walk->slice_elements) * work->element_bytes;
  slice->part = walk->part;
  slice->agreed_bytes = (uint64_t)walk->part->part_count * walk->part->element_bytes;
  slice->announces = !walk->agreed;
  slice->shared = walk->shared;
  slice->lands = walk->lands;
  slice->out_offset = walk->out_offset + offset;
  slice->lines = work->proto == PROTO_LL;
  slice->skipped = slice->bytes == 0 && walk->agreed &&
                   (work->algo == ALGO_RING || slice->lines); /* whose slots nobody shares */
  walk->agreed = true;
  walk->slice_index += 1;
  return true;
}
