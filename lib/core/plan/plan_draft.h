/* plan_draft.h: what the parts of planning share: works in the order in which they are thought of, and what
 * is known of a collective before it lies on channels. Inside plan*.c alone. */
#ifndef TUTTI_CORE_PLAN_DRAFT_H
#define TUTTI_CORE_PLAN_DRAFT_H

#include "core/plan/plan.h"

/* A work in the order of generation; sorted by channel at the end. */
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
  size_t scratch_bytes; /* of lists so far */
};

/* Adds a work behind all others; those with equal ids that come one after the other are a batch. */
ncclResult_t draft_add(struct draft *draft, const struct work *work, const void *in, void *out,
                       uint64_t batch_id);
ncclResult_t plan_out_of_memory(const struct plan_request *request);
/* Grows the block to `bytes` where it is smaller; what it holds is kept. */
bool plan_block_reserve(void **block, size_t *capacity_bytes, size_t bytes);
uint32_t plan_type_bytes(uint8_t dtype);
bool plan_op_is_message(const struct plan_op *op);

/* What planning knows of one collective before it lies on channels. */
struct task {
  const struct plan_op *op;
  uint32_t element_bytes;
  uint8_t algo, proto;
  uint32_t fused; /* the set of broadcasts that it is one of, from 1 on; 0: it stands alone */
  size_t weight;  /* bytes moved a byte of count */
  size_t traffic_bytes;
  uint32_t channel_count; /* over how many it is spread at most */
  size_t budget_bytes;    /* traffic that a channel of it should carry at least */
};

/* ---- plan_collective.c ---- */

/* Lays all collectives of the request over the channels. */
ncclResult_t draft_collectives(struct draft *draft);
/* What every work of a task has, on whatever channel. */
struct work work_of_task(const struct plan_request *request, const struct task *task);
/* Shorter chunks where they pass rank after rank. */
void work_shorten_chain(const struct plan_limits *limits, struct work *work);
/* Which of the links' final values go straight into an output: enum work_flag. */
uint32_t work_direct_flags(const struct work *work, const struct plan_request *request);
/* Most data bytes of a chunk. */
size_t chunk_data_bytes(const struct plan_limits *limits, uint8_t proto, uint32_t chunk_steps);

/* ---- plan_fused.c ---- */

/* Numbers the sets of broadcasts that are carried together (task.fused). */
void tasks_fuse(const struct plan_request *request, struct task *tasks, uint32_t count);
/* Set after set; the tasks of a set lie together. */
ncclResult_t draft_fused_sets(struct draft *draft, struct task *tasks, uint32_t count);

/* ---- plan_p2p.c ---- */

/* All sends and receives of the request. */
ncclResult_t draft_p2p(struct draft *draft);

#endif
