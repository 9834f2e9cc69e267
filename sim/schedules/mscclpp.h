/* mscclpp.h: what the two halves of the reader of MSCCL++'s plans share: the plan's head, ranks and blocks
 * (mscclpp.c), and the ops of a block (mscclpp_op.c). */
#ifndef TUTTI_SIM_SCHEDULES_MSCCLPP_H
#define TUTTI_SIM_SCHEDULES_MSCCLPP_H

#include "base/json_read.h"
#include "schedules/onesided.h"

enum pp_channel { PP_MEMORY, PP_PORT, PP_SWITCH, PP_CHANNEL_TYPES };
extern const char *const pp_channel_names[PP_CHANNEL_TYPES];

/* A channel's end, memory or port: its peer, and the counter of the other end, UINT32_MAX if there is none.
 */
struct pp_end {
  uint32_t peer, other;
};

/* The state of a rank while its blocks are read. */
struct pp_rank {
  const struct json_value *value; /* its object in gpus[] */
  uint32_t scratch_count;         /* chunks of the grid */
  uint32_t first_counter[2],
      channel_count[2];                      /* of PP_MEMORY and PP_PORT: signals, one counter per channel */
  uint32_t first_semaphore, semaphore_count; /* counters too */
};

struct pp_reader {
  struct json_tree tree;
  struct onesided_plan plan;
  struct custom_build *build;
  struct pp_rank *ranks;
  struct pp_end *ends; /* by counter; unused for semaphores */
  uint32_t
      parts;     /* chunks of the grid per chunk of the file: groups of blocks share each chunk of the file */
  uint32_t rank; /* the current rank */
  const struct json_value *block;
  uint32_t *barrier_ids;                                     /* of the file, by barrier */
  uint32_t end_capacity, barrier_id_capacity, rank_barriers; /* the first barrier of the rank */
};

#define pp_fail(reader, value, ...) custom_fail((reader)->build, (value)->line, __VA_ARGS__)

ncclResult_t pp_out_of_memory(const struct pp_reader *reader);

/* A required member, of the given kind. */
ncclResult_t pp_take(const struct pp_reader *reader, const struct json_value *object, const char *name,
                     enum json_kind kind, const struct json_value **member);
/* A whole number within bounds; `name` is for messages. */
ncclResult_t pp_number_of(const struct pp_reader *reader, const struct json_value *value, const char *name,
                          uint64_t lowest, uint64_t highest, uint64_t *number);
ncclResult_t pp_take_number(const struct pp_reader *reader, const struct json_value *object, const char *name,
                            uint64_t lowest, uint64_t highest, uint32_t *number);
/* An optional array: NULL if it is missing. */
const struct json_value *pp_array(const struct pp_reader *reader, const struct json_value *object,
                                  const char *name);

/* In the objects of `array` whose `key` is `wanted`, the arrays `name` are treated as one: returns its
 * index-th item and the object that contains it; NULL after the last. */
const struct json_value *pp_pick(const struct pp_reader *reader, const struct json_value *array,
                                 const char *key, const char *wanted, const char *name, uint32_t index,
                                 const struct json_value **object);

/* Appends the ops of a thread block, or of a pipeline, to the plan. */
ncclResult_t pp_ops_take(struct pp_reader *reader, const struct json_value *ops, bool in_pipeline);

#endif
