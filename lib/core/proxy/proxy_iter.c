/* proxy_iter.c: see proxy_iter.h. Slices are cut as those of lanes (schedule/slice.h). */
#include "core/proxy/proxy_iter.h"

#include <string.h>

#include "schedule/slice.h"

void proxy_iter_begin(struct proxy_iter *iter, const struct work *work, uint32_t link_index, bool sends,
                      uint64_t saved_step, const struct plan_limits *limits) {
  memset(iter, 0, sizeof *iter);
  iter->work = iter->part = work;
  iter->link_index = link_index;
  iter->sends = sends;
  iter->next_step = slice_first_step(saved_step, work->chunk_steps);
  iter->slice_capacity = slice_capacity_of(work, limits->step_bytes[PROTO_SIMPLE]);
  algo_begin(&iter->steps, work);
}

/* Steps of rings and messages whose data is final on arrival. What it overwrites has been read long before,
 * by the ranks that produced the data. */
static bool step_is_zero_copy(const struct proxy_iter *iter, const struct step *step) {
  const uint32_t as_it_comes = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  const uint8_t family = algo_family(iter->work);
  return !iter->sends && (family == FAMILY_RING || family == FAMILY_P2P) &&
         (step->flags & ~(uint32_t)(STEP_SEND | STEP_SEND_FINAL)) == as_it_comes;
}

/* Advances to the next chunk, or to the next slot that several steps share. */
static bool iter_chunk(struct proxy_iter *iter) {
  const uint32_t more = iter->sends ? STEP_SEND_MORE : STEP_RECV_MORE;
  struct step step;
  memset(&step, 0, sizeof step);
  iter->held = iter->cut = 0;
  iter->shared = false;
  while (algo_next(&iter->steps, iter->work, &step)) {
    if ((((iter->sends ? step.send_links : step.recv_links) >> iter->link_index) & 1) == 0) continue;
    if ((iter->work->flags & WORK_FUSED) != 0) iter->part = iter->work + step.part;
    if ((iter->work->flags & WORK_FUSED) != 0 && (step.flags & STEP_PART) != 0) iter->agreed = false;
    const size_t place = iter->sends ? step.send_place : step.recv_place;
    iter->held = size_max(iter->held, place + step_link_count(&step, iter->link_index));
    iter->cut = size_max(iter->cut, place + step.count);
    iter->shared |= (step.flags & more) != 0;
    iter->zero_copy = step_is_zero_copy(iter, &step);
    iter->out_offset = step_link_out(&step, iter->link_index, iter->sends);
    if ((step.flags & more) == 0) return true;
  }
  return false;
}

bool proxy_iter_next(struct proxy_iter *iter, struct proxy_slice *slice) {
  const struct work *work = iter->work;
  if (iter->slice_index == iter->slice_count) {
    if (!iter_chunk(iter)) return false;
    iter->slice_index = 0;
    iter->slice_count = slice_count_of(work);
    iter->slice_elements = work->proto == PROTO_LL
                               ? iter->cut /* a chunk is one step */
                               : chunk_slice_count(iter->cut, iter->slice_count, iter->slice_capacity);
  }
  const size_t offset = slice_offset(iter->held, iter->slice_index, iter->slice_elements);
  slice->begin = iter->next_step;
  slice->end = iter->next_step += work->slice_steps;
  slice->bytes = slice_length(iter->held, offset, iter->slice_elements) * work->element_bytes;
  slice->part = iter->part;
  slice->agreed_bytes = (uint64_t)iter->part->part_count * iter->part->element_bytes;
  slice->announces = !iter->agreed;
  slice->shared = iter->shared;
  slice->zero_copy = iter->zero_copy;
  slice->out_offset = iter->out_offset + offset;
  slice->ll = work->proto == PROTO_LL;
  slice->skipped = slice->bytes == 0 && iter->agreed &&
                   (work->algo == ALGO_RING || slice->ll); /* whose slots are not shared */
  iter->agreed = true;
  iter->slice_index += 1;
  return true;
}
