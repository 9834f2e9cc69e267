/* verify.c: the checks at the end of a run: every element of every buffer holds the required value, or its
 * initial one; all ranks added in one order. */
#include <inttypes.h>
#include <stdio.h>

#include "check/engine.h"

/* A cursor over one rank's region: the contents at `at`, up to `end`. */
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
  const struct page *page = &region->pages[cursor->page];
  if (page->count == 0 && !memory_touch(&engine->memory, region, cursor->page))
    return engine_out_of_memory(engine);
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

/* What rank 0 holds, if all ranks must add in one order, as pieces by their place in the region
 * (engine->own); other ranks are compared with it as they are visited. */
struct order {
  bool records; /* this is rank 0 */
  uint32_t at;  /* current piece */
};

static bool order_fail(struct check_engine *engine, uint32_t rank, uint64_t at, expr_id found,
                       expr_id wanted) {
  char one[120], two[120];
  engine_fail(engine, CHECK_SAME_ORDER, NULL, 0, "adds up element %" PRIu64 " as %s, rank 0 as %s", at,
              expr_text(&engine->exprs, found, two, sizeof two),
              expr_text(&engine->exprs, wanted, one, sizeof one));
  engine->report->rank = rank;
  return false;
}

/* The first piece of rank 0's over [cursor->at, end) that differs; NULL if there is none. *covered: every
 * element has a piece. */
static const struct piece *order_follow(const struct value *reference, struct order *order,
                                        const struct cursor *cursor, uint64_t end, bool *covered) {
  uint64_t at = cursor->at;
  *covered = false;
  for (; order->at < reference->count; order->at++) {
    const struct piece *piece = &reference->pieces[order->at];
    const uint64_t begin = (uint64_t)piece->origin, piece_end = begin + piece->count;
    if (begin >= end) return NULL;
    if (piece_end > cursor->at && piece->expr != cursor->expr) return piece;
    if (begin <= at && piece_end > at) at = piece_end;
    *covered = at >= end;
    if (piece_end > end) return NULL;
  }
  return NULL;
}

static bool rank_order_fail(struct check_engine *engine, uint32_t rank, const struct cursor *cursor) {
  char found[120];
  engine_fail(engine, CHECK_RANK_ORDER, NULL, UINT32_MAX,
              "element %" PRIu64 " of a buffer is added up as %s, not from rank 0 on", cursor->at,
              expr_text(&engine->exprs, cursor->expr, found, sizeof found));
  engine->report->rank = rank;
  return false;
}

static bool result_fail(struct check_engine *engine, uint32_t rank, const struct cursor *cursor,
                        const struct check_segment *segment, uint32_t block, uint64_t index) {
  char found[160], wanted[80];
  const bool unfinished = segment->kind == CHECK_SUM && !engine->input->ops[segment->op].unstaged &&
                          !expr_is_final(&engine->exprs, cursor->expr);
  expr_text(&engine->exprs, cursor->expr, found, sizeof found);
  if (segment->kind == CHECK_SUM) snprintf(wanted, sizeof wanted, "all ranks' sum");
  else snprintf(wanted, sizeof wanted, "rank %u's input", segment->rank + block);
  engine_fail(engine, CHECK_RESULT, NULL, UINT32_MAX,
              "element %" PRIu64 " of a buffer must end as %s of element %" PRIu64
              " and ends as %s of element %" PRId64 "%s",
              cursor->at, wanted, segment->origin + index, found, cursor->origin,
              !cursor->touched ? ", never written"
              : unfinished     ? ", not finished"
                               : "");
  engine->report->rank = rank;
  return false;
}

/* Without operator stages a sum is final as it is. */
static bool sum_is_complete(struct check_engine *engine, expr_id expr, uint32_t op) {
  if (!engine->input->ops[op].unstaged || expr == EXPR_OLD) return expr_is_complete(&engine->exprs, expr, op);
  const expr_id sum = expr_is_raw(&engine->exprs, expr) ? expr + 1 : expr;
  const expr_id finished = expr_combine(&engine->exprs, sum, EXPR_POST);
  if (finished == EXPR_OLD) return engine_out_of_memory(engine);
  return expr_is_complete(&engine->exprs, finished, op);
}

static bool result_is_good(struct check_engine *engine, const struct cursor *cursor,
                           const struct check_segment *segment, uint32_t block) {
  const uint32_t ranks = engine->input->rank_count;
  if (segment->kind == CHECK_COPY)
    return cursor->expr == expr_input(segment->op * ranks + segment->rank + block);
  if (ranks == 1 && cursor->expr == expr_input(segment->op)) return true;
  return sum_is_complete(engine, cursor->expr, segment->op);
}

/* The elements at the cursor up to `end`, which are in one span and in block `block` of the segment. */
static bool span_verify(struct check_engine *engine, uint32_t rank, const struct cursor *cursor, uint64_t end,
                        const struct check_segment *segment, uint32_t block, struct order *order) {
  const struct check_input *input = engine->input;
  const bool sum = segment->kind == CHECK_SUM, one_order = sum && input->ops[segment->op].one_order;
  const uint64_t index = cursor->at - (segment->begin + block * segment->count);
  const struct piece *other = NULL;
  char *text = engine->report->order;
  bool covered = false;
  if (one_order && !order->records) other = order_follow(&engine->own, order, cursor, end, &covered);
  /* What equals rank 0's contents was checked there. */
  const bool known = covered && !other && input->op_count == 1;
  if (cursor->origin != (int64_t)(segment->origin + index) ||
      (!known && !result_is_good(engine, cursor, segment, block)))
    return result_fail(engine, rank, cursor, segment, block, index);
  if (sum && !known && input->ops[segment->op].rank_order && !expr_is_fold(&engine->exprs, cursor->expr))
    return rank_order_fail(engine, rank, cursor);
  if (other) {
    const uint64_t begin = (uint64_t)other->origin;
    return order_fail(engine, rank, begin > cursor->at ? begin : cursor->at, cursor->expr, other->expr);
  }
  if (sum && text[0] == 0) expr_text(&engine->exprs, cursor->expr, text, sizeof engine->report->order);
  if (!one_order || !order->records) return true;
  return value_add(&engine->own, end - cursor->at, (int64_t)cursor->at, cursor->expr) ||
         engine_out_of_memory(engine);
}

/* One block of a segment: elements [begin, begin + count) of the region. */
static bool block_verify(struct check_engine *engine, uint32_t rank, struct cursor *cursor,
                         const struct check_segment *segment, uint32_t block, struct order *order) {
  const uint64_t end = segment->begin + (block + 1) * segment->count;
  while (cursor->at < end) {
    if (!cursor_look(engine, cursor)) return false;
    const uint64_t stop = cursor->end < end ? cursor->end : end;
    if (!span_verify(engine, rank, cursor, stop, segment, block, order)) return false;
    if (cursor->end > end) {
      cursor->at = end;
      return true;
    }
    cursor_step(cursor);
  }
  return true;
}

/* Elements up to `end` that have no result: unchanged. */
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
  struct order order = {rank == 0, 0};
  struct cursor cursor = {region, 0, 0, 0, 0, 0, 0, false};
  const struct check_region *row = region->row;
  if (row->ends_anyhow) return true;
  for (uint32_t i = 0; i < row->result_count; i++) {
    const struct check_segment *segment = &row->results[i];
    if (!rest_verify(engine, rank, &cursor, segment->begin)) return false;
    for (uint32_t block = 0; block < segment->repeat; block++)
      if (!block_verify(engine, rank, &cursor, segment, block, &order)) return false;
  }
  return rest_verify(engine, rank, &cursor, row->count);
}

bool verify_results(struct check_engine *engine) {
  const uint32_t count = engine->input->region_count;
  for (uint32_t i = 0; i < count; i++) {
    engine->own.count = 0;
    for (uint32_t rank = 0; rank < engine->input->rank_count; rank++)
      if (!region_verify(engine, rank, &engine->memory.regions[(size_t)rank * count + i])) return false;
  }
  return true;
}
