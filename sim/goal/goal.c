/* goal.c: a schedule in memory: operations and their dependences, added rank by rank, packed, and shared with
 * an earlier rank that does the same. Schedules that readers accept are consistent: peers exist, and waits
 * name operations of the rank. loggops.c finds whether the schedule ends. */
#include "goal/goal.h"

#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"

static ncclResult_t fail_memory(void) { return log_no_memory("a schedule of this size"); }

ncclResult_t goal_build_open(struct goal_build *build, struct goal *goal, uint32_t rank_count) {
  memset(build, 0, sizeof *build);
  memset(goal, 0, sizeof *goal);
  build->goal = goal;
  goal->rank_count = rank_count;
  goal->cpu_count = goal->nic_count = 1;
  goal->programs = (struct goal_program **)os_alloc(rank_count * sizeof *goal->programs);
  goal->lines = (uint32_t *)os_alloc(rank_count * sizeof *goal->lines);
  build->hash_capacity = 64;
  build->by_hash = (struct goal_program **)os_alloc(build->hash_capacity * sizeof *build->by_hash);
  if (goal->programs == NULL || goal->lines == NULL || build->by_hash == NULL) return fail_memory();
  return ncclSuccess;
}

uint32_t goal_build_op(struct goal_build *build, const struct goal_op *op) {
  if (build->op_count >= GOAL_OPS_MOST ||
      !array_grow(&build->ops, &build->op_capacity, (uint64_t)build->op_count + 2, sizeof *build->ops))
    return UINT32_MAX;
  memcpy(&build->ops[build->op_count], op,
         sizeof *op); /* with the padding between members, which is compared */
  return build->op_count++;
}

ncclResult_t goal_build_edge(struct goal_build *build, uint32_t before, uint32_t after, bool begin) {
  if (!array_grow(&build->edges, &build->edge_capacity, (uint64_t)build->edge_count + 1,
                  sizeof *build->edges))
    return fail_memory();
  const struct goal_edge edge = {before, after, begin};
  build->edges[build->edge_count++] = edge;
  return ncclSuccess;
}

/* Stores followers contiguously: for each operation those that wait for its start, then those that wait for
 * its end, in the order in which they were added. */
static ncclResult_t pack_edges(struct goal_build *build) {
  struct goal_op *ops = build->ops;
  if (build->next_capacity < build->edge_count) {
    os_free(build->nexts);
    build->nexts = (uint32_t *)os_alloc(build->edge_count * sizeof *build->nexts);
    build->next_capacity = build->nexts != NULL ? build->edge_count : 0;
    if (build->nexts == NULL) return fail_memory();
  }
  for (uint32_t i = 0; i <= build->op_count; i++) ops[i].first = ops[i].begun = ops[i].waits = 0;
  for (uint32_t i = 0; i < build->edge_count; i++) {
    const struct goal_edge *edge = &build->edges[i];
    ops[edge->before].first += 1;
    ops[edge->before].begun += edge->begin;
    ops[edge->after].waits += 1;
  }
  uint32_t at = 0;
  for (uint32_t i = 0; i <= build->op_count; i++) {
    const uint32_t count = ops[i].first;
    ops[i].first = at;
    at += count;
  }
  for (int pass = 0; pass < 2;
       pass++) { /* each list fills from its first place on, which is restored below */
    for (uint32_t i = 0; i < build->edge_count; i++) {
      const struct goal_edge *edge = &build->edges[i];
      if (edge->begin == (pass == 0)) build->nexts[ops[edge->before].first++] = edge->after;
    }
  }
  for (uint32_t i = build->op_count; i > 0; i--) ops[i].first = ops[i - 1].first;
  ops[0].first = 0;
  return ncclSuccess;
}

static uint64_t program_hash(const struct goal_build *build) {
  uint64_t hash = hash_mix(HASH_SEED, build->op_count);
  for (uint32_t i = 0; i < build->op_count; i++) {
    const struct goal_op *op = &build->ops[i];
    hash = hash_mix(hash, op->size);
    hash = hash_mix(hash, (uint64_t)op->peer << 32 | op->tag);
    hash = hash_mix(hash, (uint64_t)op->first << 32 | op->line);
    hash = hash_mix(hash, (uint64_t)op->begun << 32 | op->waits);
    hash = hash_mix(hash, (uint64_t)op->kind << 16 | (uint64_t)op->cpu << 8 | op->nic);
  }
  for (uint32_t i = 0; i < build->edge_count; i++) hash = hash_mix(hash, build->nexts[i]);
  return hash;
}

static bool program_is(const struct goal_program *program, const struct goal_build *build, uint64_t hash) {
  return program->hash == hash && program->op_count == build->op_count &&
         program->next_count == build->edge_count &&
         memcmp(program->ops, build->ops, build->op_count * sizeof *build->ops) == 0 &&
         (build->edge_count == 0 ||
          memcmp(program->nexts, build->nexts, build->edge_count * sizeof *build->nexts) == 0);
}

static ncclResult_t hash_grow(struct goal_build *build) {
  const uint32_t capacity = build->hash_capacity * 2;
  struct goal_program **larger = (struct goal_program **)os_alloc(capacity * sizeof *larger);
  if (larger == NULL) return fail_memory();
  for (struct goal_program *program = build->goal->newest; program != NULL; program = program->older) {
    uint32_t slot = (uint32_t)program->hash & (capacity - 1);
    while (larger[slot] != NULL) slot = (slot + 1) & (capacity - 1);
    larger[slot] = program;
  }
  os_free(build->by_hash);
  build->by_hash = larger;
  build->hash_capacity = capacity;
  return ncclSuccess;
}

static struct goal_program *program_make(const struct goal_build *build, uint64_t hash) {
  const size_t op_bytes = (build->op_count + (size_t)1) * sizeof(struct goal_op);
  const size_t next_bytes = build->edge_count * sizeof(uint32_t);
  struct goal_program *program = (struct goal_program *)os_alloc(sizeof *program + op_bytes + next_bytes);
  if (program == NULL) return NULL;
  program->hash = hash;
  program->op_count = build->op_count;
  program->next_count = build->edge_count;
  program->ops = (struct goal_op *)(program + 1);
  program->nexts = (uint32_t *)(program->ops + build->op_count + 1);
  memcpy(program->ops, build->ops, op_bytes);
  if (next_bytes > 0) memcpy(program->nexts, build->nexts, next_bytes);
  return program;
}

static void goal_count(struct goal *goal, const struct goal_program *program) {
  goal->op_count += program->op_count;
  for (uint32_t i = 0; i < program->op_count; i++) {
    const struct goal_op *op = &program->ops[i];
    if (op->cpu >= goal->cpu_count) goal->cpu_count = op->cpu + 1u;
    if (op->nic >= goal->nic_count) goal->nic_count = op->nic + 1u;
    if (op->kind != GOAL_SEND) continue;
    goal->message_count += 1;
    goal->byte_count += op->size;
  }
}

ncclResult_t goal_build_rank(struct goal_build *build, uint32_t rank, uint32_t line) {
  struct goal_op last;
  struct goal *goal = build->goal;
  memset(&last, 0, sizeof last);
  if (goal_build_op(build, &last) == UINT32_MAX) return fail_memory();
  build->op_count -= 1;
  TRY(pack_edges(build));
  const uint64_t hash = program_hash(build);
  uint32_t slot = (uint32_t)hash & (build->hash_capacity - 1);
  while (build->by_hash[slot] != NULL && !program_is(build->by_hash[slot], build, hash))
    slot = (slot + 1) & (build->hash_capacity - 1);
  struct goal_program *program = build->by_hash[slot];
  if (program == NULL) {
    program = program_make(build, hash);
    if (program == NULL) return fail_memory();
    program->number = goal->program_count;
    program->older = goal->newest;
    goal->newest = program;
    goal->program_count += 1;
    build->by_hash[slot] = program;
    if (goal->program_count > build->hash_capacity / 2) TRY(hash_grow(build));
  }
  goal->programs[rank] = program;
  goal->lines[rank] = line;
  goal_count(goal, program);
  build->op_count = build->edge_count = 0;
  return ncclSuccess;
}

void goal_build_close(struct goal_build *build) {
  os_free(build->ops);
  os_free(build->edges);
  os_free(build->nexts);
  os_free(build->by_hash);
  memset(build, 0, sizeof *build);
}

void goal_free(struct goal *goal) {
  while (goal->newest != NULL) {
    struct goal_program *older = goal->newest->older;
    os_free(goal->newest);
    goal->newest = older;
  }
  os_free(goal->programs);
  os_free(goal->lines);
  memset(goal, 0, sizeof *goal);
}

ncclResult_t goal_read(const char *name, FILE *file, struct goal *goal) {
  struct goal_build build;
  const int first = getc(file);
  memset(&build, 0, sizeof build);
  memset(goal, 0, sizeof *goal);
  build.goal = goal;
  if (first != EOF) ungetc(first, file);
  /* No text begins with the first byte of the magic number. */
  const ncclResult_t result = first == (GOAL_MAGIC & 0xff) ? goal_read_binary(name, file, &build)
                                                           : goal_read_text(name, file, &build);
  goal_build_close(&build);
  if (result != ncclSuccess) goal_free(goal);
  return result;
}

/* ---- operations as text ---- */

static void print_number(char *text, size_t bytes, const char *word, uint32_t number) {
  const size_t used = strlen(text);
  if (number == GOAL_ANY) snprintf(text + used, bytes - used, " %s -1", word);
  else snprintf(text + used, bytes - used, " %s %" PRIu32, word, number);
}

void goal_op_print(const struct goal *goal, uint32_t rank, const struct goal_op *op, char *text,
                   size_t bytes) {
  if (op->kind == GOAL_CALC) {
    snprintf(text, bytes, "calc %" PRIu64, op->size);
  } else {
    snprintf(text, bytes, "%s %" PRIu64 "b", op->kind == GOAL_SEND ? "send" : "recv", op->size);
    print_number(text, bytes, op->kind == GOAL_SEND ? "to" : "from", goal_peer(goal, rank, op));
    if (op->tag != 0) print_number(text, bytes, "tag", op->tag);
  }
  if (op->cpu != 0) print_number(text, bytes, "cpu", op->cpu);
  if (op->nic != 0) print_number(text, bytes, "nic", op->nic);
}

void goal_op_describe(const struct goal *goal, uint32_t rank, uint32_t op_index, char *text, size_t bytes) {
  const struct goal_op *op = &goal->programs[rank]->ops[op_index];
  if (goal->lines[rank] != 0)
    snprintf(text, bytes, "rank %" PRIu32 ", line %" PRIu32 ": ", rank, goal->lines[rank] + op->line);
  else snprintf(text, bytes, "rank %" PRIu32 ", operation %" PRIu32 ": ", rank, op_index);
  const size_t used = strlen(text);
  if (used < bytes) goal_op_print(goal, rank, op, text + used, bytes - used);
}
