/* expr.c: a table of pairs, indexed by the operand with the larger number. */
#include "check/expr.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/os.h"

enum { ROWS_FIRST = 1024 };

static bool grow(void *block, uint32_t *capacity, uint64_t wanted, size_t row_bytes) {
  return array_grow(block, capacity, wanted < ROWS_FIRST ? ROWS_FIRST : wanted, row_bytes);
}

bool value_add(struct value *value, uint64_t count, int64_t origin, expr_id expr) {
  struct piece *last = value->count > 0 ? &value->pieces[value->count - 1] : NULL;
  if (count == 0) return true;
  if (last && last->expr == expr && last->origin + (int64_t)last->count == origin) {
    last->count += count;
    return true;
  }
  if (!grow(&value->pieces, &value->capacity, value->count + 1, sizeof *value->pieces)) return false;
  struct piece *piece = &value->pieces[value->count++];
  piece->count = count;
  piece->origin = origin;
  piece->expr = expr;
  return true;
}

void value_free(struct value *value) {
  os_free(value->pieces);
  memset(value, 0, sizeof *value);
}

bool expr_reset(struct expr_table *table, uint32_t rank_count, uint32_t op_count) {
  table->rank_count = rank_count;
  table->leaf_count = rank_count * op_count;
  table->traversal = 0;
  table->failed = false;
  if (!grow(&table->seen, &table->seen_capacity, rank_count, sizeof *table->seen)) return false;
  memset(table->seen, 0, rank_count * sizeof *table->seen);
  if (!grow(&table->leaves, &table->leaf_capacity, 2 * table->leaf_count, sizeof *table->leaves))
    return false;
  memset(table->leaves, 0, 2 * table->leaf_count * sizeof *table->leaves);
  table->count = 0;
  return true;
}

void expr_free(struct expr_table *table) {
  os_free(table->rows);
  os_free(table->known);
  os_free(table->leaves);
  os_free(table->seen);
  os_free(table->stack);
  memset(table, 0, sizeof *table);
}

/* Where the list of expressions begins whose newer operand is `id`. */
static inline uint32_t *list_of(struct expr_table *table, expr_id id) {
  return expr_is_leaf(table, id) ? &table->leaves[id] : &table->rows[id - 2 * table->leaf_count].first;
}

static bool table_grow(struct expr_table *table) {
  uint32_t known = table->capacity;
  return grow(&table->known, &known, table->count + 1, sizeof *table->known) &&
         grow(&table->rows, &table->capacity, table->count + 1, sizeof *table->rows);
}

expr_id expr_combine(struct expr_table *table, expr_id left, expr_id right) {
  const expr_id newer = right == EXPR_POST || left > right ? left : right;
  for (uint32_t at = *list_of(table, newer); at != 0; at = table->rows[at - 1].sibling) {
    const struct expr *row = &table->rows[at - 1];
    if (row->left == left && row->right == right) return 2 * table->leaf_count + at - 1;
  }
  if (table->count == table->capacity && !table_grow(table)) return EXPR_OLD;
  uint32_t *list = list_of(table, newer);
  struct expr *row = &table->rows[table->count];
  row->left = left;
  row->right = right;
  row->first = 0;
  row->sibling = *list;
  table->known[table->count] = EXPR_UNKNOWN;
  *list = ++table->count;
  return 2 * table->leaf_count + table->count - 1;
}

bool expr_is_final(const struct expr_table *table, expr_id id) {
  return id != EXPR_OLD && !expr_is_leaf(table, id) &&
         table->rows[id - 2 * table->leaf_count].right == EXPR_POST;
}

static bool stack_push(struct expr_table *table, uint32_t *depth, expr_id id) {
  if (!grow(&table->stack, &table->stack_capacity, *depth + 1, sizeof *table->stack)) {
    table->failed = true;
    return false;
  }
  table->stack[(*depth)++] = id;
  return true;
}

/* Traverses all leaves below `id`, which is no finished value; counts those that are a first contribution of
 * `op`. False at the first that is not. */
static bool leaves_count(struct expr_table *table, expr_id id, uint32_t op, uint32_t *count) {
  uint32_t depth = 0;
  table->traversal += 1;
  *count = 0;
  if (!stack_push(table, &depth, id)) return false;
  while (depth > 0) {
    const expr_id next = table->stack[--depth];
    if (next == EXPR_OLD || next == EXPR_POST) return false;
    if (expr_is_leaf(table, next)) {
      const uint32_t rank = next / 2 % table->rank_count;
      if (next % 2 == 0 || next / 2 / table->rank_count != op || table->seen[rank] == table->traversal)
        return false;
      table->seen[rank] = table->traversal;
      *count += 1;
      continue;
    }
    const struct expr *row = &table->rows[next - 2 * table->leaf_count];
    const expr_id left = row->left, right = row->right;
    if (!stack_push(table, &depth, left) || !stack_push(table, &depth, right)) return false;
  }
  return true;
}

/* For an expression whose leaves all belong to one operation: whether it is this one. */
static bool expr_contains_op(const struct expr_table *table, expr_id id, uint32_t op) {
  while (!expr_is_leaf(table, id)) {
    const struct expr *row = &table->rows[id - 2 * table->leaf_count];
    id = expr_is_leaf(table, row->left) ? row->left : row->right;
  }
  return id / 2 / table->rank_count == op;
}

bool expr_is_complete(struct expr_table *table, expr_id id, uint32_t op) {
  if (!expr_is_final(table, id)) return false;
  const uint32_t row = id - 2 * table->leaf_count;
  uint32_t count;
  if (table->known[row] == EXPR_UNKNOWN) {
    const bool good = leaves_count(table, table->rows[row].left, op, &count) && count == table->rank_count;
    table->known[row] = good ? EXPR_COMPLETE : EXPR_LACKING;
  }
  if (table->known[row] != EXPR_COMPLETE) return false;
  /* It was found complete for the one operation of all its leaves. */
  return table->leaf_count == table->rank_count || expr_contains_op(table, table->rows[row].left, op);
}

bool expr_is_fold(const struct expr_table *table, expr_id id) {
  if (expr_is_final(table, id)) id = table->rows[id - 2 * table->leaf_count].left;
  for (uint32_t rank = table->rank_count - 1; rank > 0; rank--) {
    if (expr_is_leaf(table, id)) return false;
    const struct expr *row = &table->rows[id - 2 * table->leaf_count];
    if (!expr_is_leaf(table, row->right) || row->right / 2 % table->rank_count != rank) return false;
    id = row->left;
  }
  return expr_is_leaf(table, id) && id / 2 % table->rank_count == 0;
}

uint32_t expr_complete_count(const struct expr_table *table) {
  uint32_t count = 0;
  for (uint32_t row = 0; row < table->count; row++) count += table->known[row] == EXPR_COMPLETE;
  return count;
}

bool expr_contains(struct expr_table *table, expr_id id, uint32_t leaf) {
  if (id == EXPR_OLD) return false;
  if (expr_is_leaf(table, id)) return id / 2 == leaf;
  if (expr_is_final(table, id) && expr_is_complete(table, id, leaf / table->rank_count)) return true;
  uint32_t depth = 0;
  if (!stack_push(table, &depth, id)) return false;
  while (depth > 0) {
    const expr_id next = table->stack[--depth];
    if (next == EXPR_OLD || next == EXPR_POST) continue;
    if (expr_is_leaf(table, next)) {
      if (next / 2 == leaf) return true;
      continue;
    }
    const struct expr row = table->rows[next - 2 * table->leaf_count];
    if (!stack_push(table, &depth, row.left) || !stack_push(table, &depth, row.right)) return false;
  }
  return false;
}

/* A cursor over a text buffer; output beyond its end is dropped. */
struct writer {
  char *text;
  size_t used, capacity;
};

static void write_text(struct writer *writer, const char *text) {
  while (*text && writer->used + 1 < writer->capacity) writer->text[writer->used++] = *text++;
  writer->text[writer->used] = 0;
}

static void write_expr(const struct expr_table *table, expr_id id, struct writer *writer, uint32_t depth) {
  char number[24];
  if (id == EXPR_OLD) {
    write_text(writer, "old content");
  } else if (expr_is_leaf(table, id)) {
    snprintf(number, sizeof number, "%u", id / 2 % table->rank_count);
    write_text(writer, number);
  } else if (depth == 0) {
    write_text(writer, "...");
  } else {
    const struct expr *row = &table->rows[id - 2 * table->leaf_count];
    if (row->right == EXPR_POST) {
      write_expr(table, row->left, writer, depth);
      return;
    }
    write_text(writer, "(");
    write_expr(table, row->left, writer, depth - 1);
    write_text(writer, "+");
    write_expr(table, row->right, writer, depth - 1);
    write_text(writer, ")");
  }
}

const char *expr_text(struct expr_table *table, expr_id id, char *out, size_t out_bytes) {
  struct writer writer = {out, 0, out_bytes};
  out[0] = 0;
  write_expr(table, id, &writer, 8);
  return out;
}
