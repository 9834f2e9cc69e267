/* access.c: accesses of users' memory, and the order that they must have. Two accesses of a place, of which
 * one is a write, are ordered if
 *   - one lane makes both, or lanes of two batches of one block;
 *   - both are lists of one rank, and the second has waited, itself or through others, for the first's step;
 *   - the reader took the message that announces the store (and then owns the element);
 *   - the place held an input that was read once, and the written value contains that input: it cannot exist
 *     before the read.
 * The order in which this run came to them is never used. */
#include <inttypes.h>
#include <stdio.h>

#include "check/engine.h"

/* A step that no list can have waited for. */
#define STEP_NEVER UINT64_MAX

/* `before` has ended when `lane` begins, or is the same lane; or its step has ended when that of `lane`
 * begins. */
static bool lane_is_after(const struct check_engine *engine, uint32_t before, uint64_t step,
                          const struct check_lane *lane) {
  if (before == LANE_NONE) return true;
  if (before == LANE_MANY || before < engine->lane_base) return false;
  const struct check_lane *other = &engine->lanes[before - engine->lane_base];
  if (other == lane || (other->block == lane->block && other->batch < lane->batch)) return true;
  return list_knows(engine, lane, other, step);
}

static const char *lane_name(const struct check_engine *engine, uint32_t id, char *out, size_t out_bytes) {
  if (id == LANE_MANY) snprintf(out, out_bytes, "several lanes");
  else if (id < engine->lane_base) snprintf(out, out_bytes, "another channel");
  else {
    const struct check_lane *lane = &engine->lanes[id - engine->lane_base];
    if (lane_has_list(lane)) snprintf(out, out_bytes, "block %u of rank %u", lane->work->role, lane->rank);
    else snprintf(out, out_bytes, "rank %u", lane->rank);
  }
  return out;
}

static struct region *find(struct check_engine *engine, const struct check_lane *lane, uint32_t rank,
                           uint64_t address, uint64_t units, bool writes, uint64_t *begin) {
  struct region *region = memory_find(&engine->memory, rank, address, units, begin);
  if (region) return region;
  engine_fail(engine, CHECK_BOUNDS, lane, rank,
              "%s %" PRIu64 " elements of rank %u's memory outside of its buffers",
              writes ? "writes" : "reads", units, rank);
  return NULL;
}

/* Adds a list's read to those of the span; reads that it knows to have ended are dropped. */
static bool reading_add(struct check_engine *engine, const struct check_lane *lane, struct span *span) {
  const struct reading *kept = NULL;
  uint32_t dropped = 0;
  for (const struct reading *at = span->readings; at; at = at->next)
    dropped += lane_is_after(engine, at->lane, at->step, lane);
  if (dropped == 0) kept = span->readings;
  for (const struct reading *at = span->readings; at && dropped > 0; at = at->next) {
    if (lane_is_after(engine, at->lane, at->step, lane)) continue;
    struct reading *copy = (struct reading *)arena_take_raw(&engine->arena, sizeof *copy);
    if (!copy) return engine_out_of_memory(engine);
    *copy = *at;
    copy->next = kept;
    kept = copy;
  }
  struct reading *fresh = (struct reading *)arena_take_raw(&engine->arena, sizeof *fresh);
  if (!fresh) return engine_out_of_memory(engine);
  fresh->next = kept;
  fresh->step = lane->step_number;
  fresh->lane = engine_lane_id(engine, lane);
  span->readings = fresh;
  return true;
}

static bool span_read(struct check_engine *engine, struct check_lane *lane, struct span *span, uint32_t from,
                      uint32_t stamp) {
  const uint32_t id = engine_lane_id(engine, lane);
  char name[40];
  if (span->writer == from && from != LANE_NONE && span->stamp == (stamp & STAMP_MASK)) span->writer = id;
  if (span->writer != id && !lane_is_after(engine, span->writer, span->write_step, lane))
    return engine_fail(engine, CHECK_MEMORY, lane, UINT32_MAX,
                       "reads element %" PRIu64 " of a buffer that %s writes, in no order with it",
                       span->begin, lane_name(engine, span->writer, name, sizeof name));
  span->reads = span->reads == 0 ? 1 : 2;
  if (lane_has_list(lane)) return reading_add(engine, lane, span);
  span->reader = lane_is_after(engine, span->reader, STEP_NEVER, lane) ? id : LANE_MANY;
  return true;
}

bool access_read(struct check_engine *engine, struct check_lane *lane, uint64_t address, uint64_t units,
                 uint32_t from, uint32_t stamp, struct value *value) {
  return access_read_of(engine, lane, lane->rank, address, units, from, stamp, value);
}

bool access_read_of(struct check_engine *engine, struct check_lane *lane, uint32_t rank, uint64_t address,
                    uint64_t units, uint32_t from, uint32_t stamp, struct value *value) {
  uint64_t at;
  struct region *region;
  value->count = 0;
  if (units == 0) return true;
  if (!(region = find(engine, lane, rank, address, units, false, &at))) return false;
  for (uint64_t end = at + units; at < end;) {
    const uint64_t index = at >> region->page_shift;
    struct page *page = &region->pages[index];
    const uint64_t page_end = page_end_of(region, index), stop = page_end < end ? page_end : end;
    uint32_t first, last;
    if (!memory_cut(&engine->memory, region, page, at, stop, &first, &last))
      return engine_out_of_memory(engine);
    for (uint32_t i = first; i < last; i++) {
      struct span *span = &page->spans[i];
      const uint64_t span_end = i + 1 < last ? page->spans[i + 1].begin : stop;
      if (!span_read(engine, lane, span, from, stamp)) return false;
      if (!value_add(value, span_end - span->begin, span->origin, span->expr))
        return engine_out_of_memory(engine);
    }
    at = stop;
  }
  return true;
}

/* Every piece that is written over [begin, end) of the region contains what the span holds. */
static bool pieces_rest_on(struct check_engine *engine, const struct span *span, uint64_t begin, uint64_t end,
                           const struct value *value, uint64_t value_begin) {
  if (!expr_is_raw(&engine->exprs, span->expr) || span->reads != 1 || span->writer != LANE_NONE) return false;
  const int64_t to_origin = span->origin - (int64_t)span->begin;
  uint64_t at = value_begin;
  for (uint32_t i = 0; i < value->count && at < end; at += value->pieces[i++].count) {
    const struct piece *piece = &value->pieces[i];
    if (at + piece->count <= begin) continue;
    if (piece->origin - (int64_t)at != to_origin) return false;
    if (!expr_contains(&engine->exprs, piece->expr, span->expr / 2)) return false;
  }
  return true;
}

/* A reader of the span that may not have read yet when `lane` writes; LANE_NONE when there is none. */
static uint32_t span_reader(const struct check_engine *engine, const struct check_lane *lane,
                            const struct span *span) {
  if (!lane_is_after(engine, span->reader, STEP_NEVER, lane)) return span->reader;
  for (const struct reading *at = span->readings; at; at = at->next)
    if (!lane_is_after(engine, at->lane, at->step, lane)) return at->lane;
  return LANE_NONE;
}

static bool span_overwrite(struct check_engine *engine, struct check_lane *lane, uint32_t rank,
                           const struct span *span, uint64_t end, const struct value *value,
                           uint64_t value_begin) {
  char name[40];
  if (span->writer != LANE_NONE && !lane_is_after(engine, span->writer, span->write_step, lane))
    return engine_fail(engine, CHECK_MEMORY, lane, rank,
                       "writes element %" PRIu64
                       " of rank %u's buffer, which %s writes too, in no order with it",
                       span->begin, rank, lane_name(engine, span->writer, name, sizeof name));
  const uint32_t reader = span_reader(engine, lane, span);
  if (reader == LANE_NONE) return true;
  if (pieces_rest_on(engine, span, span->begin, end, value, value_begin)) return true;
  return engine_fail(engine, CHECK_MEMORY, lane, rank,
                     "overwrites element %" PRIu64 " of rank %u's buffer, which %s may not have read yet",
                     span->begin, rank, lane_name(engine, reader, name, sizeof name));
}

/* The pieces of `value` on [begin, end); element `value_begin` + k of the value is element k of the range. */
static bool value_cut(const struct value *value, uint64_t value_begin, uint64_t begin, uint64_t end,
                      struct value *out) {
  uint64_t at = value_begin;
  out->count = 0;
  for (uint32_t i = 0; i < value->count && at < end; at += value->pieces[i++].count) {
    const struct piece *piece = &value->pieces[i];
    const uint64_t from = at > begin ? at : begin, piece_end = at + piece->count;
    const uint64_t to = piece_end < end ? piece_end : end;
    if (from < to && !value_add(out, to - from, piece->origin + (int64_t)(from - at), piece->expr))
      return false;
  }
  return true;
}

bool access_write(struct check_engine *engine, struct check_lane *lane, uint32_t rank, uint64_t address,
                  const struct value *value) {
  uint64_t units = 0, begin;
  for (uint32_t i = 0; i < value->count; i++) units += value->pieces[i].count;
  if (units == 0) return true;
  struct region *region = find(engine, lane, rank, address, units, true, &begin);
  if (!region) return false;
  engine->store_count += 1;
  for (uint64_t at = begin, end = begin + units; at < end;) {
    const uint64_t index = at >> region->page_shift;
    struct page *page = &region->pages[index];
    const uint64_t page_end = page_end_of(region, index), stop = page_end < end ? page_end : end;
    uint32_t first, last;
    if (!memory_cut(&engine->memory, region, page, at, stop, &first, &last))
      return engine_out_of_memory(engine);
    for (uint32_t i = first; i < last; i++) {
      const uint64_t span_end = i + 1 < last ? page->spans[i + 1].begin : stop;
      if (!span_overwrite(engine, lane, rank, &page->spans[i], span_end, value, begin)) return false;
    }
    if (!value_cut(value, begin, at, stop, &engine->scratch) ||
        !memory_put(&engine->memory, page, first, last, at, engine->scratch.pieces, engine->scratch.count,
                    engine_lane_id(engine, lane), lane->step_number, engine->store_count))
      return engine_out_of_memory(engine);
    at = stop;
  }
  return true;
}
