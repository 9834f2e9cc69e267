/* memory.c: regions in pages, pages in spans. Pages are small, so that inserting a span moves few others. */
#include "check/memory.h"

#include <string.h>

#include "base/array.h"
#include "base/os.h"

enum {
  BLOCK_BYTES_FIRST = 1 << 18,
  SPANS_FIRST = 6,
  RANKS_MANY = 128,
  PAGE_UNITS_LEAST = 4,
  ALIGN_BYTES = 16
};

static bool arena_grow(struct arena *arena, size_t bytes) {
  if (arena->block_count == arena->block_capacity) {
    const uint32_t capacity = arena->block_capacity ? 2 * arena->block_capacity : 16;
    if (!array_resize(&arena->blocks, capacity, sizeof *arena->blocks) ||
        !array_resize(&arena->block_bytes, capacity, sizeof *arena->block_bytes))
      return false;
    arena->block_capacity = capacity;
  }
  const uint32_t doublings = arena->block_count < 8 ? arena->block_count : 8;
  size_t capacity = (size_t)BLOCK_BYTES_FIRST << doublings;
  if (capacity < bytes) capacity = bytes;
  uint8_t *block = NULL;
  if (!array_resize(&block, capacity, 1)) return false;
  arena->blocks[arena->block_count] = block;
  arena->block_bytes[arena->block_count++] = capacity;
  return true;
}

void *arena_take_raw(struct arena *arena, size_t bytes) {
  bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
  while (arena->block < arena->block_count && arena->used + bytes > arena->block_bytes[arena->block]) {
    arena->block += 1;
    arena->used = 0;
  }
  if (arena->block == arena->block_count && !arena_grow(arena, bytes)) return NULL;
  uint8_t *taken = arena->blocks[arena->block] + arena->used;
  arena->used += bytes;
  return taken;
}

void *arena_take(struct arena *arena, size_t bytes) {
  void *taken = arena_take_raw(arena, bytes);
  if (taken) memset(taken, 0, bytes);
  return taken;
}

void arena_reset(struct arena *arena) { arena->block = arena->used = 0; }

void arena_free(struct arena *arena) {
  for (uint32_t i = 0; i < arena->block_count; i++) os_free(arena->blocks[i]);
  os_free(arena->blocks);
  os_free(arena->block_bytes);
  memset(arena, 0, sizeof *arena);
}

/* About as many pages as blocks that schedules cut a region into; fewer for very many blocks. */
static void region_set_pages(struct region *region, uint32_t rank_count) {
  const uint64_t count = region->row->count,
                 most = rank_count > RANKS_MANY ? rank_count / 4 : 2 * rank_count + 8;
  while ((count >> region->page_shift) > most || (1u << region->page_shift) < PAGE_UNITS_LEAST)
    region->page_shift += 1;
  region->page_count = (uint32_t)((count + ((uint64_t)1 << region->page_shift) - 1) >> region->page_shift);
}

bool memory_reset(struct memory *memory, struct arena *arena, const struct check_input *input) {
  const size_t count = (size_t)input->rank_count * input->region_count;
  memory->input = input;
  memory->arena = arena;
  memory->unit_shift = 0;
  while (1u << memory->unit_shift < input->unit_bytes) memory->unit_shift += 1;
  memory->regions = (struct region *)arena_take(arena, count * sizeof *memory->regions);
  if (!memory->regions) return false;
  for (size_t i = 0; i < count; i++) {
    struct region *region = &memory->regions[i];
    region->row = &input->regions[i];
    region_set_pages(region, input->rank_count);
    region->pages = (struct page *)arena_take(arena, region->page_count * sizeof *region->pages);
    if (!region->pages) return false;
  }
  return true;
}

struct region *memory_find(struct memory *memory, uint32_t rank, uint64_t address, uint64_t units,
                           uint64_t *begin) {
  const uint32_t shift = memory->unit_shift;
  struct region *regions = &memory->regions[(size_t)rank * memory->input->region_count];
  for (uint32_t i = 0; i < memory->input->region_count; i++) {
    const struct check_region *row = regions[i].row;
    if (address < row->address || address - row->address > row->count << shift) continue;
    const uint64_t at = (address - row->address) >> shift;
    if (at << shift != address - row->address) continue;
    if (at > row->count || units > row->count - at || (at == row->count && units == 0 && at > 0)) continue;
    *begin = at;
    return &regions[i];
  }
  return NULL;
}

static bool page_reserve(struct memory *memory, struct page *page, uint32_t count) {
  if (count <= page->capacity) return true;
  uint32_t capacity = page->capacity ? 2 * page->capacity : SPANS_FIRST;
  while (capacity < count) capacity *= 2;
  struct span *spans = (struct span *)arena_take_raw(memory->arena, capacity * sizeof *spans);
  if (!spans) return false;
  if (page->count > 0) memcpy(spans, page->spans, page->count * sizeof *spans);
  page->spans = spans;
  page->capacity = capacity;
  return true;
}

static void page_add(struct page *page, uint64_t begin, int64_t origin, expr_id expr) {
  struct span *span = &page->spans[page->count++];
  span->begin = begin;
  span->origin = origin;
  span->expr = expr;
  span->writer = span->reader = LANE_NONE;
  span->reads = 0;
  span->stamp = 0;
  span->write_step = 0;
  span->readings = NULL;
}

bool memory_touch(struct memory *memory, struct region *region, uint32_t page_index) {
  struct page *page = &region->pages[page_index];
  if (page->count > 0) return true;
  const struct check_segment *input = &region->row->input;
  const uint64_t begin = (uint64_t)page_index << region->page_shift;
  const uint64_t end = page_end_of(region, page_index);
  if (!page_reserve(memory, page, SPANS_FIRST)) return false;
  const uint64_t input_end = input->begin + input->count;
  if (input->count == 0 || input_end <= begin || input->begin >= end) {
    page_add(page, begin, (int64_t)begin, EXPR_OLD);
    return true;
  }
  if (input->begin > begin) page_add(page, begin, (int64_t)begin, EXPR_OLD);
  const uint64_t first = input->begin > begin ? input->begin : begin;
  page_add(page, first, (int64_t)(input->origin + first - input->begin),
           expr_input(input->op * memory->input->rank_count + input->rank));
  if (input_end < end) page_add(page, input_end, (int64_t)input_end, EXPR_OLD);
  return true;
}

/* Index of the first span that begins at `at`, after a cut if necessary; count if `at` is the page's end. */
static bool page_cut(struct memory *memory, struct page *page, uint64_t at, uint32_t from, uint32_t *index) {
  uint32_t i = from;
  for (uint32_t behind = page->count; i < behind;) {
    const uint32_t middle = i + (behind - i) / 2;
    if (page->spans[middle].begin < at) i = middle + 1;
    else behind = middle;
  }
  *index = i;
  if (i < page->count ? page->spans[i].begin == at : false) return true;
  if (!page_reserve(memory, page, page->count + 1)) return false;
  memmove(&page->spans[i + 1], &page->spans[i], (page->count - i) * sizeof *page->spans);
  page->spans[i] = page->spans[i - 1];
  page->spans[i].origin += (int64_t)(at - page->spans[i].begin);
  page->spans[i].begin = at;
  page->count += 1;
  return true;
}

bool memory_cut(struct memory *memory, struct region *region, struct page *page, uint64_t begin, uint64_t end,
                uint32_t *first, uint32_t *last) {
  const uint32_t index = (uint32_t)(page - region->pages);
  const uint64_t page_end = page_end_of(region, index);
  if (!memory_touch(memory, region, index) || !page_cut(memory, page, begin, 0, first)) return false;
  *last = page->count;
  return end == page_end || page_cut(memory, page, end, *first, last);
}

bool memory_put(struct memory *memory, struct page *page, uint32_t first, uint32_t last, uint64_t begin,
                const struct piece *pieces, uint32_t piece_count, uint32_t writer, uint64_t write_step,
                uint32_t stamp) {
  const uint32_t count = page->count - (last - first) + piece_count;
  if (!page_reserve(memory, page, count)) return false;
  memmove(&page->spans[first + piece_count], &page->spans[last], (page->count - last) * sizeof *page->spans);
  for (uint32_t i = 0; i < piece_count; i++) {
    struct span *span = &page->spans[first + i];
    span->begin = begin;
    span->origin = pieces[i].origin;
    span->expr = pieces[i].expr;
    span->writer = writer;
    span->reader = LANE_NONE;
    span->reads = 0;
    span->stamp = stamp & STAMP_MASK;
    span->write_step = write_step;
    span->readings = NULL;
    begin += pieces[i].count;
  }
  page->count = count;
  return true;
}
