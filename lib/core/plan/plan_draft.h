/* plan_draft.h: what the parts of planning share: works in the order in which they are generated, and what is
 * known of a collective before it is assigned to channels. For plan*.c only. */
#ifndef TUTTI_CORE_PLAN_DRAFT_H
#define TUTTI_CORE_PLAN_DRAFT_H

#include "core/plan/plan.h"

/* A work in order of generation; sorted by channel at the end. */
struct draft_row {
  struct work work;
  struct plan_buffers buffers;
  uint64_t batch_id; /* equal and adjacent on a channel = same batch */
};

struct draft {
  const struct plan_request *request;
  struct plan_memory *memory;
  struct draft_row *rows; /* memory->draft */
  uint32_t count;
  uint64_t next_batch_id;
  size_t scratch_bytes; /* of custom schedules so far */
};

/* Appends a work; consecutive works with equal batch ids form a batch. */
ncclResult_t draft_add(struct draft *draft, const struct work *work, const void *in, void *out,
                       uint64_t batch_id);
ncclResult_t plan_out_of_memory(const struct plan_request *request);
/* Grows the block to at least `bytes` and keeps its contents. */
bool plan_block_reserve(void **block, size_t *capacity_bytes, size_t bytes);
uint32_t plan_type_bytes(uint8_t dtype);
bool plan_op_is_message(const struct plan_op *op);

/* What planning knows of one collective before it is assigned to channels. */
struct task {
  const struct plan_op *op;
  uint32_t element_bytes;
  uint8_t algo, proto;
  uint32_t fused; /* number of its set of fused broadcasts, from 1; 0: not fused */
  size_t weight;  /* bytes moved per byte of count */
  size_t traffic_bytes;
  uint32_t channel_count; /* maximum number of channels */
  uint32_t chunk_bytes;   /* as in tune_choice */
  size_t budget_bytes;    /* minimum traffic per channel */
};

/* ---- plan_collective.c ---- */

/* Assigns all collectives of the request to channels. */
ncclResult_t draft_collectives(struct draft *draft);
/* The members of a work that do not depend on the channel. */
struct work work_of_task(const struct plan_request *request, const struct task *task);
/* Shortens chunks that are passed along a chain of ranks. */
void work_shorten_chain(const struct plan_limits *limits, struct work *work);
/* WORK_READS_SLOTS if the work reads slots at their sender, else 0. */
uint32_t work_slot_flags(const struct work *work, const struct plan_request *request);
/* Which links store final values directly into an output: enum work_flag. */
uint32_t work_direct_flags(const struct work *work, const struct plan_request *request);
/* Maximum data bytes of a chunk. */
size_t chunk_data_bytes(const struct plan_limits *limits, uint8_t proto, uint32_t chunk_steps);

/* ---- plan_fused.c ---- */

/* Numbers the sets of broadcasts that are fused (task.fused). */
void tasks_fuse(const struct plan_request *request, struct task *tasks, uint32_t count);
/* Drafts one set after another; the tasks of a set are adjacent. */
ncclResult_t draft_fused_sets(struct draft *draft, struct task *tasks, uint32_t count);

/* ---- plan_p2p.c ---- */

/* All sends and receives of the request. */
ncclResult_t draft_p2p(struct draft *draft);

#endif
