/* race_graph.c: nodes of one graph that access the same memory, one of them writing, without a path between
 * them. Looked at when the graph is instantiated. What a rank's NCCL kernels order is taken into account:
 * those of one rank run in node order, and those of one communicator come after what is before any of them.
 * Graphs of more nodes than NODES_MOST are not looked at. */
#include "backends/emu/cudart/race_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define NODES_MOST 4096u

/* One access of a node. */
struct node_access {
  uintptr_t begin, end;
  uint32_t node;
  bool writes;
  const struct race_call *call;
  struct race_rank *rank;
  uint64_t sequence;
};

struct node_check {
  const struct emu_graph_exec *exec;
  uint32_t words;   /* of a row */
  uint64_t *before; /* a row of bits a node: the nodes before it */
  struct node_access *accesses;
  uint32_t count, capacity;
};

/* ---- what is before what ---- */

static uint64_t *row(const struct node_check *check, uint32_t node) {
  return check->before + (size_t)node * check->words;
}

static bool is_before(const struct node_check *check, uint32_t first, uint32_t second) {
  return (row(check, second)[first / 64] >> (first % 64) & 1) != 0;
}

/* All before `first`, and with `itself` also that, is before `second`. True if that is new. */
static bool row_add(const struct node_check *check, uint32_t first, uint32_t second, bool itself) {
  const uint64_t *from = row(check, first);
  uint64_t *to = row(check, second), added = 0;
  for (uint32_t i = 0; i < check->words; i++) {
    added |= from[i] & ~to[i];
    to[i] |= from[i];
  }
  if (!itself || is_before(check, first, second)) return added != 0;
  to[first / 64] |= UINT64_C(1) << (first % 64);
  return true;
}

static const struct race_rank *node_rank(const struct node_check *check, uint32_t node) {
  const struct emu_work *work = &check->exec->nodes[node].work;
  return work->kind == WORK_KERNEL ? work->as.kernel->race : NULL;
}

/* One pass over all edges; true if it found something new. */
static bool rows_pass(const struct node_check *check) {
  const struct emu_graph_exec *exec = check->exec;
  bool news = false;
  for (uint32_t i = 0; i < exec->node_count; i++) {
    const struct exec_node *node = &exec->nodes[i];
    for (uint32_t k = 0; k < node->dependent_count; k++)
      news = row_add(check, i, exec->dependents[node->first_dependent + k], true) || news;
    const struct race_rank *rank = node_rank(check, i);
    for (uint32_t k = 0; rank != NULL && k < exec->node_count; k++) {
      const struct race_rank *other = node_rank(check, k);
      if (other == rank && k > i) news = row_add(check, i, k, true) || news;
      else if (other != NULL && other != rank && other->group == rank->group)
        news = row_add(check, i, k, false) || news;
    }
  }
  return news;
}

/* ---- accesses ---- */

static bool add_extent(struct node_check *check, const struct node_access *model,
                       const struct race_work_access *access) {
  struct emu_allocation memory;
  if (!emu_memory_find(access->extent.base, &memory)) return true;
  if (!array_grow(&check->accesses, &check->capacity, (uint64_t)check->count + 1, sizeof *check->accesses))
    return false;
  /* Rows with gaps between them count as their first row. */
  const struct race_extent *extent = &access->extent;
  const bool whole = extent->pitch == extent->width;
  struct node_access *added = &check->accesses[check->count++];
  *added = *model;
  added->writes = access->writes;
  added->begin = (uintptr_t)extent->base;
  added->end = added->begin + extent->width * (whole ? extent->height : 1);
  return true;
}

static bool add_node(struct node_check *check, uint32_t node) {
  const struct emu_work *work = &check->exec->nodes[node].work;
  struct race_work_access accesses[RACE_ACCESSES_MOST];
  const struct emu_kernel *kernel = work->kind == WORK_KERNEL ? work->as.kernel : NULL;
  for (uint32_t i = 0; kernel != NULL && kernel->race != NULL && i < kernel->use_count; i++) {
    const struct race_use *use = &kernel->uses[i];
    const struct node_access model = {0, 0, node, false, &use->call, kernel->race, use->sequence};
    const uint32_t count = race_use_accesses(use, accesses);
    for (uint32_t k = 0; k < count; k++)
      if (!add_extent(check, &model, &accesses[k])) return false;
  }
  const struct node_access model = {0, 0, node, false, &work->call, NULL, 0};
  const uint32_t count = race_work_accesses(work, accesses);
  for (uint32_t k = 0; k < count; k++)
    if (!add_extent(check, &model, &accesses[k])) return false;
  return true;
}

static int by_begin(const void *a, const void *b) {
  const struct node_access *one = (const struct node_access *)a, *other = (const struct node_access *)b;
  if (one->begin != other->begin) return one->begin < other->begin ? -1 : 1;
  return one->node < other->node ? -1 : one->node > other->node;
}

static struct race_op *op_of(const struct node_access *access) {
  struct race_op *op = race_op_new(access->call);
  if (op == NULL) return NULL;
  op->captured = true;
  op->rank = access->rank;
  op->sequence = access->sequence;
  if (op->rank != NULL) op->rank->reference_count += 1;
  return op;
}

static void report(const struct node_access *one, const struct node_access *other) {
  const bool swapped = one->node > other->node;
  const struct node_access *first = swapped ? other : one, *second = swapped ? one : other;
  struct race_pair pair = {.first_writes = first->writes, .second_writes = second->writes};
  emu_memory_find((const void *)other->begin, &pair.memory);
  const uintptr_t base = (uintptr_t)pair.memory.base;
  pair.begin = (other->begin > one->begin ? other->begin : one->begin) - base;
  pair.end = (other->end < one->end ? other->end : one->end) - base;
  pair.first = op_of(first);
  pair.second = op_of(second);
  if (pair.first != NULL && pair.second != NULL) race_report_nodes(&pair);
  if (pair.first != NULL) race_op_drop(pair.first);
  if (pair.second != NULL) race_op_drop(pair.second);
}

/* Accesses sorted by where they begin: each is compared with those that begin within it. */
static int accesses_compare(struct node_check *check) {
  if (check->count > 0) qsort(check->accesses, check->count, sizeof *check->accesses, by_begin);
  for (uint32_t i = 0; i < check->count; i++) {
    const struct node_access *one = &check->accesses[i];
    for (uint32_t k = i + 1; k < check->count && check->accesses[k].begin < one->end; k++) {
      const struct node_access *other = &check->accesses[k];
      if (one->node == other->node || (!one->writes && !other->writes)) continue;
      if (is_before(check, one->node, other->node) || is_before(check, other->node, one->node)) continue;
      report(one, other);
      return RACE_ERROR;
    }
  }
  return 0;
}

int emu_race_graph_nodes(const struct emu_graph_exec *exec) {
  struct node_check check = {.exec = exec, .words = (exec->node_count + 63) / 64};
  int error = 0;
  if (!race_is_on() || exec->node_count < 2 || exec->node_count > NODES_MOST) return 0;
  check.before = (uint64_t *)os_alloc((size_t)exec->node_count * check.words * sizeof *check.before);
  bool complete = check.before != NULL;
  for (uint32_t i = 0; complete && i < exec->node_count; i++) complete = add_node(&check, i);
  if (complete) {
    while (rows_pass(&check)) continue;
    error = accesses_compare(&check);
  } else {
    race_give_up();
  }
  os_free(check.before);
  os_free(check.accesses);
  return error;
}
