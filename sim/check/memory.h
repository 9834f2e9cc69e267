/* memory.h: the users' memory of all ranks, as symbols. Each place stores what it holds, which lane wrote it
 * and which lanes have read it since, so an access without an order to an earlier one is found in any order
 * of the run. */
#ifndef TUTTI_SIM_CHECK_MEMORY_H
#define TUTTI_SIM_CHECK_MEMORY_H

#include "check/check.h"
#include "check/expr.h"

#define LANE_NONE UINT32_MAX       /* the initial contents; not read yet */
#define LANE_MANY (UINT32_MAX - 1) /* read by several lanes */

#define STAMP_MASK ((1u << 30) - 1)

/* A list's step that has read a place since the last write. */
struct reading {
  const struct reading *next;
  uint64_t step;
  uint32_t lane;
};

struct span {
  uint64_t begin; /* units from the region's begin */
  int64_t origin;
  expr_id expr;
  uint32_t writer, reader; /* lanes; lists' reads are `readings` */
  uint32_t reads : 2;      /* by that reader since the last write, at most 2 */
  uint32_t stamp : 30;     /* number of the store */
  uint64_t write_step;     /* of the writer */
  const struct reading *readings;
};

/* Part of a region, covered by adjacent spans. No spans: untouched. */
struct page {
  struct span *spans;
  uint32_t count, capacity;
};

struct region {
  const struct check_region *row;
  struct page *pages;
  uint32_t page_shift; /* a page is 1 << page_shift units */
  uint32_t page_count;
};

static inline uint64_t page_end_of(const struct region *region, uint64_t page_index) {
  const uint64_t end = (page_index + 1) << region->page_shift;
  return end < region->row->count ? end : region->row->count;
}

struct memory {
  const struct check_input *input;
  struct region *regions; /* region_count of each rank */
  uint32_t unit_shift;    /* a unit is 1 << unit_shift bytes */
  struct arena *arena;
};

/* A bump allocator that keeps its blocks from run to run. */
struct arena {
  uint8_t **blocks;
  size_t *block_bytes;
  uint32_t block_count, block_capacity, block;
  size_t used;
};
void *arena_take(struct arena *arena, size_t bytes);     /* zeroed, aligned to 16; NULL when memory is out */
void *arena_take_raw(struct arena *arena, size_t bytes); /* the same, not zeroed */
void arena_reset(struct arena *arena);
void arena_free(struct arena *arena);

bool memory_reset(struct memory *memory, struct arena *arena, const struct check_input *input);

/* The region of `rank` that holds all of [address, address + units); NULL when there is none. */
struct region *memory_find(struct memory *memory, uint32_t rank, uint64_t address, uint64_t units,
                           uint64_t *begin);

/* Spans [*first, *last) of the page become those of [begin, end), which is cut out; the page must contain
 * both ends. False when memory is out. */
bool memory_cut(struct memory *memory, struct region *region, struct page *page, uint64_t begin, uint64_t end,
                uint32_t *first, uint32_t *last);
/* Replaces spans [first, last) by `pieces`, as store `stamp` of `writer`, in its step `write_step`. */
bool memory_put(struct memory *memory, struct page *page, uint32_t first, uint32_t last, uint64_t begin,
                const struct piece *pieces, uint32_t piece_count, uint32_t writer, uint64_t write_step,
                uint32_t stamp);
/* Creates the spans of an untouched page. */
bool memory_touch(struct memory *memory, struct region *region, uint32_t page_index);

#endif
