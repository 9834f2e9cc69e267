/* part.h: one channel of a plan as a plan of its own: the same works, with their part moved to the start of
 * the buffers and the buffers cut to it. Iterators use a part's offset only as a summand and the count only
 * as the distance of blocks, so a proof of one holds for the other; `check_all` proves a sample both ways. */
#ifndef TUTTI_SIM_CHECK_PART_H
#define TUTTI_SIM_CHECK_PART_H

#include "check/request.h"

/* Two hashes of everything that a channel's run depends on. */
struct part_key {
  uint64_t low, high;
};

/* Whether the collective's parts are the same on all ranks, are contiguous and cover its count. */
bool part_tiles(const struct check_setup *setup, struct check_report *report);

/* Of channel `channel_index` of a collective; *count is its elements in planning's terms. */
struct part_key part_key_of(const struct check_setup *setup, uint32_t channel_index, size_t *count);

/* Makes `part` this channel alone, with the buffers of a call of `count` elements. */
ncclResult_t part_setup(struct check_setup *part, const struct check_setup *setup,
                        const struct check_call *call, uint32_t channel_index, size_t count);

/* A set of keys. All zero at first. */
struct part_set {
  struct part_key *rows;
  uint32_t count, capacity;
};
/* True if the key is new; it is added. When memory is out every key is new. */
bool part_set_add(struct part_set *set, struct part_key key);
void part_set_free(struct part_set *set);

/* The memory and the counters of parts_prove(). */
struct parts {
  struct check_setup part;
  struct part_set seen;                               /* those that need not run again */
  uint64_t program_count, run_count;                  /* channels; those of them that were run */
  uint64_t step_count, slice_count, connection_count; /* of these */
};
void parts_free(struct parts *parts);

/* Proves a collective's plans channel by channel, except channels proved before. *report is that of the last
 * run, or names the broken rule. */
ncclResult_t parts_prove(struct check_engine *engine, const struct check_setup *setup,
                         const struct check_call *call, struct parts *parts, bool *proved,
                         struct check_report *report);

#endif
