/* verify.c: the end of a run: every element of every buffer holds what was asked for, or what it held at
 * first; all ranks added up in one order. */
#include <inttypes.h>
#include <stdio.h>

#include "check/engine.h"

/* A walk over one rank's region: what lies at `at`, up to `end`. */
struct cursor {
  struct region *region;
  uint64_t at, end;
  uint32_t page, span;
  int64_t origin;
  expr_id expr;
  bool touched; /* the span was written */
};

static bool cursor_look(struct check_engine *engine, struct cursor *cursor) {
  struct region *region = cursor->region;
  if (!memory_touch(&engine->memory, region, cursor->page)) return engine_out_of_memory(engine);
  const struct page *page = &region->pages[cursor->page];
  const struct span *span = &page->spans[cursor->span];
  cursor->end = cursor->span + 1 < page->count ? page->spans[cursor->span + 1].begin
                                               : page_end_of(region, cursor->page);
  cursor->origin = span->origin + (int64_t)(cursor->at - span->begin);
  cursor->expr = span->expr;
  cursor->touched = span->writer != LANE_NONE;
  return true;
}

static void cursor_step(struct cursor *cursor) {
  cursor->at = cursor->end;
  cursor->span += 1;
  if (cursor->span < cursor->region->pages[cursor->page].count) return;
  cursor->span = 0;
  cursor->page += 1;
}

/* Where an order was seen first, to compare other ranks' with. */
static bool order_note(struct check_engine *engine, expr_id expr) {
  struct check_report *report = engine->report;
  if (report->order[0] == 0) expr_text(&engine->exprs, expr, report->order, sizeof report->order);
  return true;
}

static bool result_fail(struct check_engine *engine, uint32_t rank, const struct cursor *cursor,
                        const struct check_segment *segment, uint32_t block, uint64_t index) {
  char found[160], wanted[80];
  expr_text(&engine->exprs, cursor->expr, found, sizeof found);
  if (segment->kind == CHECK_SUM) snprintf(wanted, sizeof wanted, "all ranks' sum");
  else snprintf(wanted, sizeof wanted, "rank %u's input", segment->rank + block);
  engine_fail(engine, CHECK_RESULT, NULL, UINT32_MAX,
              "element %" PRIu64 " of a buffer must end as %s of element %" PRIu64
              " and ends as %s of element %" PRId64 "%s",
              cursor->at, wanted, segment->origin + index, found, cursor->origin,
              cursor->touched ? "" : ", never written");
  engine->report->rank = rank;
  return false;
}

static bool result_is_good(struct check_engine *engine, const struct cursor *cursor,
                           const struct check_segment *segment, uint32_t block) {
  const uint32_t ranks = engine->input->rank_count;
  if (segment->kind == CHECK_COPY)
    return cursor->expr == expr_input(segment->op * ranks + segment->rank + block);
  if (ranks == 1 && cursor->expr == expr_input(segment->op)) return true;
  return expr_is_complete(&engine->exprs, cursor->expr, segment->op);
}

/* One block of a segment: elements [begin, begin + count) of the region. */
static bool block_verify(struct check_engine *engine, uint32_t rank, struct cursor *cursor,
                         const struct check_segment *segment, uint32_t block) {
  const uint64_t begin = segment->begin + block * segment->count, end = begin + segment->count;
  while (cursor->at < end) {
    if (!cursor_look(engine, cursor)) return false;
    const uint64_t index = cursor->at - begin;
    if (cursor->origin != (int64_t)(segment->origin + index) ||
        !result_is_good(engine, cursor, segment, block))
      return result_fail(engine, rank, cursor, segment, block, index);
    if (segment->kind == CHECK_SUM) order_note(engine, cursor->expr);
    if (cursor->end > end) {
      cursor->at = end;
      return true;
    }
    cursor_step(cursor);
  }
  return true;
}

/* Elements up to `end` that no result is for: as at first. */
static bool rest_verify(struct check_engine *engine, uint32_t rank, struct cursor *cursor, uint64_t end) {
  const struct check_segment *input = &cursor->region->row->input;
  while (cursor->at < end) {
    if (!cursor_look(engine, cursor)) return false;
    const bool in_input = cursor->at >= input->begin && cursor->at < input->begin + input->count;
    const expr_id wanted =
        in_input ? expr_input(input->op * engine->input->rank_count + input->rank) : EXPR_OLD;
    if (cursor->expr != wanted || cursor->touched) {
      engine_fail(engine, CHECK_RESULT, NULL, UINT32_MAX,
                  "element %" PRIu64 " of a buffer is written, though it belongs to no result", cursor->at);
      engine->report->rank = rank;
      return false;
    }
    if (cursor->end > end) {
      cursor->at = end;
      return true;
    }
    cursor_step(cursor);
  }
  return true;
}

static bool region_verify(struct check_engine *engine, uint32_t rank, struct region *region) {
  struct cursor cursor = {region, 0, 0, 0, 0, 0, 0, false};
  const struct check_region *row = region->row;
  for (uint32_t i = 0; i < row->result_count; i++) {
    const struct check_segment *segment = &row->results[i];
    if (!rest_verify(engine, rank, &cursor, segment->begin)) return false;
    for (uint32_t block = 0; block < segment->repeat; block++)
      if (!block_verify(engine, rank, &cursor, segment, block)) return false;
  }
  return rest_verify(engine, rank, &cursor, row->count);
}

/* Both regions hold the same expressions at the same places from one result on. */
static bool order_compare(struct check_engine *engine, uint32_t rank, struct region *first,
                          struct region *other, const struct check_segment *a,
                          const struct check_segment *b) {
  struct cursor left = {first, 0, 0, 0, 0, 0, 0, false}, right = {other, 0, 0, 0, 0, 0, 0, false};
  while (left.at < a->begin + a->count && right.at < b->begin + b->count) {
    if (!cursor_look(engine, &left) || !cursor_look(engine, &right)) return false;
    const bool within = left.at >= a->begin && right.at >= b->begin;
    if (within && left.at - a->begin == right.at - b->begin && left.expr != right.expr) {
      char one[120], two[120];
      engine_fail(engine, CHECK_SAME_ORDER, NULL, 0, "adds up element %" PRIu64 " as %s, rank 0 as %s",
                  right.at - b->begin, expr_text(&engine->exprs, right.expr, two, sizeof two),
                  expr_text(&engine->exprs, left.expr, one, sizeof one));
      engine->report->rank = rank;
      return false;
    }
    const uint64_t left_end = left.end - a->begin, right_end = right.end - b->begin;
    if (left_end <= right_end) cursor_step(&left);
    if (right_end <= left_end) cursor_step(&right);
  }
  return true;
}

/* Each rank's sums against rank 0's. */
static bool orders_verify(struct check_engine *engine) {
  const uint32_t count = engine->input->region_count;
  for (uint32_t i = 0; i < count; i++) {
    struct region *first = &engine->memory.regions[i];
    for (uint32_t s = 0; s < first->row->result_count; s++) {
      const struct check_segment *segment = &first->row->results[s];
      if (segment->kind != CHECK_SUM || !engine->input->ops[segment->op].one_order) continue;
      for (uint32_t rank = 1; rank < engine->input->rank_count; rank++) {
        struct region *other = &engine->memory.regions[(size_t)rank * count + i];
        if (s >= other->row->result_count) continue;
        if (!order_compare(engine, rank, first, other, segment, &other->row->results[s])) return false;
      }
    }
  }
  return true;
}

bool verify_results(struct check_engine *engine) {
  const uint32_t count = engine->input->region_count;
  for (uint32_t rank = 0; rank < engine->input->rank_count; rank++)
    for (uint32_t i = 0; i < count; i++)
      if (!region_verify(engine, rank, &engine->memory.regions[(size_t)rank * count + i])) return false;
  return orders_verify(engine);
}
