/* expr.h: what an element holds, as a symbol: an input, an input after the operator's first stage, a
 * combination of two, a final value. Equal expressions have equal numbers, so numbers are compared. An
 * expression says which ranks took part and in which order; struct piece says which element it is, so that
 * all elements of a message share one expression. Knows nothing of memory and schedules. */
#ifndef TUTTI_SIM_CHECK_EXPR_H
#define TUTTI_SIM_CHECK_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number of an expression. The first ones are inputs: 2 * leaf is a leaf's raw input, 2 * leaf + 1 the
 * same after the first stage. A leaf is op * rank_count + rank. */
typedef uint32_t expr_id;
#define EXPR_OLD (UINT32_MAX - 1) /* what memory held before; no result may depend on it */
#define EXPR_POST UINT32_MAX      /* as right operand: left, after the operator's last stage */

/* A list of the expressions whose operand with the larger number is this one; few share one. */
struct expr {
  expr_id left, right;
  uint32_t first, sibling; /* row + 1; 0: none */
};

struct expr_table {
  uint32_t rank_count, leaf_count;
  struct expr *rows; /* of expressions from 2 * leaf_count on */
  uint8_t *known;    /* by row: enum expr_known */
  uint32_t *leaves;  /* by 2 * leaf and 2 * leaf + 1: `first` of an expression that is a leaf */
  uint32_t *seen;    /* by rank: the last traversal that visited it */
  uint32_t *stack;
  uint32_t count, capacity, leaf_capacity, seen_capacity, stack_capacity, traversal;
  bool failed; /* memory was out at some time: answers may be wrong */
};

enum expr_known { EXPR_UNKNOWN = 0, EXPR_COMPLETE = 1, EXPR_LACKING = 2 };

/* Clears the table; false when memory is out; then expr_combine() returns EXPR_OLD. */
bool expr_reset(struct expr_table *table, uint32_t rank_count, uint32_t op_count);
void expr_free(struct expr_table *table);

static inline expr_id expr_input(uint32_t leaf) { return 2 * leaf; }
static inline bool expr_is_leaf(const struct expr_table *table, expr_id id) {
  return id < 2 * table->leaf_count;
}
static inline bool expr_is_raw(const struct expr_table *table, expr_id id) {
  return expr_is_leaf(table, id) && id % 2 == 0;
}
bool expr_is_final(const struct expr_table *table, expr_id id);

/* left then right, in the order in which the kernel adds them; right EXPR_POST: the last stage. */
expr_id expr_combine(struct expr_table *table, expr_id left, expr_id right);

/* Each rank's contribution to `op` exactly once, and the last stage once at the end. */
bool expr_is_complete(struct expr_table *table, expr_id id, uint32_t op);
/* A complete expression is ((0 + 1) + 2) + ... over the ranks' contributions. */
bool expr_is_fold(const struct expr_table *table, expr_id id);
/* How many different expressions were found complete. */
uint32_t expr_complete_count(const struct expr_table *table);
/* The leaf, raw or as a contribution, is part of it. */
bool expr_contains(struct expr_table *table, expr_id id, uint32_t leaf);

/* "((1+2)+3)+0", only ranks; a long one is cut in its middle. Returns `out`. */
const char *expr_text(struct expr_table *table, expr_id id, char *out, size_t out_bytes);

/* A run of elements that hold one expression: element i is of input position origin + i. */
struct piece {
  uint64_t count;
  int64_t origin;
  expr_id expr;
};

/* What a message or a place holds, piece after piece. */
struct value {
  struct piece *pieces;
  uint32_t count, capacity;
};
bool value_add(struct value *value, uint64_t count, int64_t origin, expr_id expr);
void value_free(struct value *value);

#endif
