/* list.h: schedules that a user wrote: an iterator over an array of steps. Positions are chunks of a grid
 * that divides a rank's count. If a chunk of the grid exceeds the slots, the whole list is run again for the
 * next piece of every chunk. Lists of one rank run side by side and may wait for each other's steps. */
#ifndef TUTTI_SCHEDULE_LIST_H
#define TUTTI_SCHEDULE_LIST_H

#include "schedule/chunk.h"
#include "schedule/work.h"

/* Maximum number of links of a list on one side: its steps name them by 16 bits. */
#define LIST_LINKS_MAX 16
/* Maximum number of lists per rank, and bytes of the progress counters at the beginning of its scratch
 * memory, one counter per list. */
#define LIST_LANES_MAX 512
#define LIST_PROGRESS_BYTES (LIST_LANES_MAX * sizeof(uint64_t))
/* The scratch memory of an operation begins at a multiple of this. */
#define LIST_PAGE_BYTES 4096

/* One step; it moves one chunk. */
struct list_step {
  uint32_t flags; /* enum step_flag */
  uint16_t recv_links, send_links, own_index;
  uint16_t wait_lane;           /* with STEP_AWAIT_LIST: number of the list to wait for ... */
  uint32_t wait_steps;          /* ... the steps of this round that it must have completed */
  uint32_t wait_round;          /* ... and the steps of a round */
  uint32_t in_chunk, out_chunk; /* of input, output or scratch, by the flags */
};

/* A rank's list, and the grid: a rank's count is cut into chunk_count chunks; input and output have one block
 * of that many, or one block per rank. */
struct list {
  const struct list_step *steps;
  uint32_t step_count;
  uint32_t round;       /* steps of the longest list of the rank */
  uint32_t chunk_count; /* chunks per rank's count */
  bool even;            /* chunks have one size, because data moves between different chunks */
};

struct list_iter {
  uint32_t step_index, turn; /* the next step, and the number of this run of the list */
  size_t done;               /* elements of each chunk of the grid before this turn */
};

/* Elements of a chunk of the grid: an even share of the count. From 512 bytes on it is rounded to 16 bytes,
 * unless the chunks must be even. The planner keeps it in the work's last_chunk_count, because division is
 * slow on a GPU. */
PRIM_FN size_t list_grid_count(const struct list *list, size_t count, uint32_t element_bytes) {
  const size_t share = size_div_up(count, list->chunk_count);
  if (list->even || share * element_bytes < 512) return share;
  return size_round_up(share, element_bytes >= 16 ? 1 : 16 / element_bytes);
}

PRIM_FN void list_begin(struct list_iter *it) {
  it->step_index = it->turn = 0;
  it->done = 0;
}

/* Where a piece of a chunk begins, in elements; *count is reduced to the piece's size there. Chunks of
 * scratch are complete; a block of input or output ends with the rank's count. */
PRIM_FN size_t list_place(const struct list_iter *it, const struct work *work, uint32_t chunk, bool scratch,
                          size_t *count) {
  const size_t grid = work->last_chunk_count;
  const uint32_t chunks = work->list->chunk_count;
  if (scratch) return chunk * grid + it->done;
  const uint32_t block = chunk / chunks;
  const size_t begin = (chunk - block * chunks) * grid + it->done;
  *count = begin < work->count ? size_min(*count, work->count - begin) : 0;
  return block * work->count + size_min(begin, work->count);
}

PRIM_FN bool list_next(struct list_iter *it, const struct work *work, struct step *step) {
  const struct list *list = work->list;
  if (it->step_index == list->step_count) {
    it->step_index = 0;
    it->turn += 1;
    it->done += work->chunk_count;
  }
  if (list->step_count == 0 || it->done >= work->last_chunk_count) return false;
  const struct list_step *row = &list->steps[it->step_index];
  const bool own = (row->flags & STEP_COPY_IN) != 0, keeps = (row->flags & STEP_KEEP) != 0;
  step->flags = row->flags;
  step->recv_links = row->recv_links;
  step->send_links = row->send_links;
  step->own_index = row->own_index;
  step->chunk_index = keeps ? row->out_chunk : row->in_chunk;
  step->wait_lane = row->wait_lane;
  step->wait_count = (uint64_t)it->turn * row->wait_round + row->wait_steps;
  step->recv_place = step->send_place = step->part = 0;
  step->in_offset = step->out_offset = 0;
  step->count = size_min(work->chunk_count, work->last_chunk_count - it->done);
  if (own)
    step->in_offset =
        list_place(it, work, row->in_chunk, (row->flags & STEP_FROM_SCRATCH) != 0, &step->count);
  if (keeps)
    step->out_offset =
        list_place(it, work, row->out_chunk, (row->flags & STEP_TO_SCRATCH) != 0, &step->count);
  if ((row->flags & (STEP_RECV | STEP_COPY_IN)) == 0) step->count = 0;
  it->step_index += 1;
  return true;
}

#endif
