/* slice.h: how chunks are cut into slices over Simple. A lane waits and posts by slices, and a proxy's
 * messages are slices, so both cut by this. */
#ifndef TUTTI_SCHEDULE_SLICE_H
#define TUTTI_SCHEDULE_SLICE_H

#include "schedule/chunk.h"
#include "schedule/work.h"

/* A connection's first step of a work, after the step that an earlier work has saved. Both ends round up to a
 * whole chunk (a power of two of steps), so that the slices of a chunk are contiguous. */
PRIM_FN uint64_t slice_first_step(uint64_t saved_step, uint32_t chunk_steps) {
  return (saved_step + chunk_steps - 1) & ~(uint64_t)(chunk_steps - 1);
}

/* Slices of each chunk. */
PRIM_FN uint32_t slice_count_of(const struct work *work) { return work->chunk_steps / work->slice_steps; }

/* Elements that a slice's slots hold. */
PRIM_FN size_t slice_capacity_of(const struct work *work, uint32_t step_bytes) {
  return (size_t)work->slice_steps * step_bytes >> size_log2(work->element_bytes);
}

/* First element of slice `index`, and its elements, of a chunk of `count` elements; `most`: of a slice
 * (chunk_slice_count). Trailing slices may be empty. */
PRIM_FN size_t slice_offset(size_t count, uint32_t index, size_t most) {
  return size_min(count, index * most);
}
PRIM_FN size_t slice_length(size_t count, size_t offset, size_t most) {
  return size_min(count - offset, most);
}

#endif
