/* fuzz_goal.c: any bytes as a GOAL file, text or binary. An accepted file is written, read again as the same
 * schedule, and run. */
/* sources: sim/goal/goal.c sim/goal/goal_text.c sim/goal/goal_binary.c sim/goal/loggops
 * sim/goal/queue.c base/ */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "goal/loggops.h"

enum { OPS_RUN_MOST = 100000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Both are the same schedule, except for line numbers. */
static void compare(const struct goal *one, const struct goal *two) {
  if (one->rank_count != two->rank_count || one->op_count != two->op_count ||
      one->byte_count != two->byte_count || one->cpu_count != two->cpu_count)
    abort();
  for (uint32_t rank = 0; rank < one->rank_count; rank++) {
    const struct goal_program *first = one->programs[rank], *second = two->programs[rank];
    if (first->next_count != second->next_count) abort();
    for (uint32_t i = 0; i < first->op_count; i++) {
      if (first->ops[i].size != second->ops[i].size || first->ops[i].peer != second->ops[i].peer ||
          first->ops[i].waits != second->ops[i].waits || first->ops[i].begun != second->ops[i].begun)
        abort();
    }
  }
}

static void write_and_read(const struct goal *goal, bool binary) {
  struct goal second;
  char *bytes = NULL;
  size_t byte_count = 0;
  FILE *file = open_memstream(&bytes, &byte_count);
  const ncclResult_t result =
      binary ? goal_write_binary(goal, "memory", file) : goal_write_text(goal, "memory", file);
  fclose(file);
  if (result != ncclSuccess) abort();
  file = fmemopen(bytes, byte_count, "rb");
  if (file == NULL || goal_read("memory", file, &second) != ncclSuccess) abort();
  compare(goal, &second);
  goal_free(&second);
  fclose(file);
  free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const struct loggops_costs costs = LOGGOPS_DEFAULT;
  struct goal goal;
  if (size == 0) return 0;
  FILE *file = fmemopen((void *)(uintptr_t)data, size, "rb");
  if (file == NULL) abort();
  if (goal_read("input", file, &goal) == ncclSuccess) {
    struct loggops_result result;
    struct text why;
    memset(&why, 0, sizeof why);
    if (goal.rank_count <= 4096) {
      write_and_read(&goal, true);
      write_and_read(&goal, false);
    }
    if (goal.op_count <= OPS_RUN_MOST && goal.rank_count <= 4096 &&
        loggops_run(&goal, &costs, NULL, &result, &why) == ncclSuccess)
      loggops_result_free(&result);
    text_free(&why);
    goal_free(&goal);
  }
  fclose(file);
  return 0;
}
