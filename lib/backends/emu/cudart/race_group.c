/* race_group.c: calls of one group. Nothing orders them, so none may write what another one reads or writes.
 * Only a call that is made again with the same arguments may, as benchmarks do. */
#include "backends/emu/cudart/race_impl.h"

#include <stdlib.h>

#include "base/array.h"

struct use_access {
  uintptr_t begin, end;
  uint32_t use;
  bool writes;
};

/* Kept for the next group. */
static struct {
  struct use_access *items;
  uint32_t count, capacity;
} accesses;

static bool accesses_gather(const struct race_use *uses, uint32_t use_count) {
  struct race_work_access own[RACE_ACCESSES_MOST];
  accesses.count = 0;
  for (uint32_t use = 0; use < use_count; use++) {
    const uint32_t count = race_use_accesses(&uses[use], own);
    if (!array_grow(&accesses.items, &accesses.capacity, (uint64_t)accesses.count + count,
                    sizeof *accesses.items)) {
      race_give_up();
      return false;
    }
    for (uint32_t i = 0; i < count; i++) {
      const uintptr_t begin = (uintptr_t)own[i].extent.base;
      accesses.items[accesses.count++] =
          (struct use_access){begin, begin + own[i].extent.width, use, own[i].writes};
    }
  }
  return true;
}

static int by_begin(const void *a, const void *b) {
  const struct use_access *one = (const struct use_access *)a, *other = (const struct use_access *)b;
  if (one->begin != other->begin) return one->begin < other->begin ? -1 : 1;
  return one->use < other->use ? -1 : one->use > other->use;
}

static bool uses_equal(const struct race_use *one, const struct race_use *other) {
  return one->in == other->in && one->out == other->out && one->in_bytes == other->in_bytes &&
         one->out_bytes == other->out_bytes && one->scalar == other->scalar && one->rule == other->rule &&
         one->peer == other->peer;
}

static void report(const struct use_access *one, const struct use_access *other, struct race_op *const *ops) {
  const bool swapped = one->use > other->use;
  const struct use_access *first = swapped ? other : one, *second = swapped ? one : other;
  struct race_pair pair = {.first = ops[first->use],
                           .second = ops[second->use],
                           .first_writes = first->writes,
                           .second_writes = second->writes};
  if (!emu_memory_find((const void *)other->begin, &pair.memory)) return;
  const uintptr_t base = (uintptr_t)pair.memory.base;
  pair.begin = other->begin - base;
  pair.end = (other->end < one->end ? other->end : one->end) - base;
  race_report_group(&pair);
}

/* Sorted by where they begin: each is compared with those that begin within it. `last_read`, `last_write`:
 * how far the earlier ones reach, so that many reads of one buffer cost nothing. */
bool race_group_check(const struct race_use *uses, uint32_t use_count, struct race_op *const *ops) {
  uintptr_t last_read = 0, last_write = 0;
  bool overlaps = false;
  if (use_count < 2 || !accesses_gather(uses, use_count) || accesses.count == 0) return true;
  qsort(accesses.items, accesses.count, sizeof *accesses.items, by_begin);
  for (uint32_t i = 0; i < accesses.count; i++) {
    const struct use_access *access = &accesses.items[i];
    uintptr_t *last = access->writes ? &last_write : &last_read;
    overlaps = overlaps || access->begin < last_write || (access->writes && access->begin < last_read);
    if (access->end > *last) *last = access->end;
  }
  for (uint32_t i = 0; overlaps && i < accesses.count; i++) {
    const struct use_access *one = &accesses.items[i];
    for (uint32_t k = i + 1; k < accesses.count && accesses.items[k].begin < one->end; k++) {
      const struct use_access *other = &accesses.items[k];
      if (one->use == other->use || (!one->writes && !other->writes)) continue;
      if (uses_equal(&uses[one->use], &uses[other->use])) continue;
      report(one, other, ops);
      return false;
    }
  }
  return true;
}
