/* collective.c: the rows of collective.h. */
#include "collective.h"

#include "schedule/work.h"

#include <string.h>

static double factor_one(double rank_count) {
  (void)rank_count;
  return 1;
}
static double factor_part(double rank_count) { return (rank_count - 1) / rank_count; }
static double factor_twice(double rank_count) { return 2 * (rank_count - 1) / rank_count; }

/* id, name, has_op, has_root, is_split, in_place, factor */
static const struct collective collectives[] = {
    {COLLECTIVE_ALL_REDUCE, "all_reduce", true, false, false, IN_PLACE_SAME, factor_twice},
    {COLLECTIVE_ALL_GATHER, "all_gather", false, false, true, IN_PLACE_SEND_AT_RANK, factor_part},
    {COLLECTIVE_REDUCE_SCATTER, "reduce_scatter", true, false, true, IN_PLACE_RECEIVE_AT_RANK, factor_part},
    {COLLECTIVE_BROADCAST, "broadcast", false, true, false, IN_PLACE_SAME, factor_one},
    {COLLECTIVE_REDUCE, "reduce", true, true, false, IN_PLACE_SAME, factor_one},
    {COLLECTIVE_SENDRECV, "sendrecv", false, false, false, IN_PLACE_NONE, factor_one},
    {COLLECTIVE_ALLTOALL, "alltoall", false, false, true, IN_PLACE_NONE, factor_part},
    {COLLECTIVE_GATHER, "gather", false, true, true, IN_PLACE_SEND_AT_RANK, factor_part},
    {COLLECTIVE_SCATTER, "scatter", false, true, true, IN_PLACE_RECEIVE_AT_RANK, factor_part},
};

const struct collective *collective_at(size_t index) {
  return index < sizeof collectives / sizeof collectives[0] ? &collectives[index] : NULL;
}

const struct collective *collective_find(const char *name) {
  size_t length = strlen(name);
  if (length > 5 && !strcmp(name + length - 5, "_perf")) length -= 5;
  for (size_t index = 0; collective_at(index); index++) {
    const struct collective *collective = collective_at(index);
    if (strlen(collective->name) == length && !strncmp(collective->name, name, length)) return collective;
  }
  return NULL;
}

size_t collective_count(const struct collective *collective, size_t size_bytes, size_t type_bytes,
                        uint32_t rank_count) {
  size_t count = size_bytes / type_bytes;
  if (!collective->is_split) return count;
  size_t whole = 16 / type_bytes; /* elements in 16 bytes */
  return count / rank_count / whole * whole;
}

size_t collective_bytes(const struct collective *collective, size_t count, size_t type_bytes,
                        uint32_t rank_count) {
  return count * type_bytes * (collective->is_split ? rank_count : 1);
}

uint8_t collective_func(const struct collective *collective) {
  switch (collective->id) {
    case COLLECTIVE_ALL_REDUCE: return FUNC_ALL_REDUCE;
    case COLLECTIVE_ALL_GATHER: return FUNC_ALL_GATHER;
    case COLLECTIVE_REDUCE_SCATTER: return FUNC_REDUCE_SCATTER;
    case COLLECTIVE_BROADCAST: return FUNC_BROADCAST;
    case COLLECTIVE_REDUCE: return FUNC_REDUCE;
    case COLLECTIVE_ALLTOALL: return FUNC_ALL_TO_ALL;
    case COLLECTIVE_GATHER: return FUNC_GATHER;
    case COLLECTIVE_SCATTER: return FUNC_SCATTER;
    default: return FUNC_SEND_RECV;
  }
}
