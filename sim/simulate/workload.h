/* workload.h: what the ranks of a job call, and when: communicators, calls, and each rank's steps on its
 * streams. Read from text (workload_text.c), from files of records (workload_records.c) or from Chakra traces
 * (workload_chakra.c); run by run.h. Knows no machine and no plan. */
#ifndef TUTTI_SIM_SIMULATE_WORKLOAD_H
#define TUTTI_SIM_SIMULATE_WORKLOAD_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"
#include "schedule/work.h"

/* Limits; reading fails with a sentence beyond them. */
#define WORKLOAD_RANKS_MAX 131072u
#define WORKLOAD_COMMS_MAX 65536u
#define WORKLOAD_STREAMS_MAX 64u
#define WORKLOAD_CALLS_MAX (1u << 20)                /* different ones */
#define WORKLOAD_STEPS_MAX (1u << 24)                /* of all ranks together */
#define WORKLOAD_OPS_MAX 4096u                       /* of one group */
#define WORKLOAD_PS_MAX UINT64_C(100000000000000000) /* 10^5 seconds */
#define WORKLOAD_COUNT_MAX ((uint64_t)1 << 40)       /* elements of a call */

#define WORKLOAD_NONE UINT32_MAX

struct workload_comm {
  char name[48];
  uint32_t rank_count;
  uint32_t *ranks; /* of the job, by rank of the communicator; NULL: all, in order */
};

/* One operation, as the API has it. */
struct workload_op {
  uint8_t func, dtype, op; /* enum work_func; ncclDataType_t; enum work_op */
  uint32_t peer;           /* root, or the peer of a message: in the communicator */
  uint64_t count;
};

/* What a rank launches together: a group's operations on one communicator, or one operation. */
struct workload_call {
  uint32_t comm, stream;
  uint32_t first_op, op_count; /* 0: it only computes */
  uint32_t wait_stream;        /* the stream that it waits for; WORKLOAD_NONE */
  uint32_t wait_but;           /* it waits for all steps there so far, except this many */
  uint32_t line;               /* of its file; 0: none */
  uint64_t after_ps;           /* computed first, on the stream */
  uint64_t at_ps;              /* it does not begin earlier; 0: any time */
};

/* A rank's step on a stream. */
struct workload_step {
  uint32_t call;
  uint32_t wait; /* number of steps of call.wait_stream on this rank that must have ended */
};
struct workload_rank {
  struct workload_step *steps;
  uint32_t step_count, step_capacity;
  uint32_t *stream_steps; /* by stream: steps so far */
};

struct workload {
  const char *name;
  char (*streams)[48];
  struct workload_comm *comms; /* the first one: all ranks, "world" */
  struct workload_op *ops;
  struct workload_call *calls;
  struct workload_rank *ranks;
  uint32_t rank_count, comm_count, stream_count, op_count, call_count;
  uint32_t comm_capacity, op_capacity, call_capacity;
  uint64_t step_count; /* of all ranks */
};

/* Begins a workload with this many ranks, with the communicator `world` and the stream `main`. Free it with
 * workload_free() in any case. */
ncclResult_t workload_make(const char *name, uint32_t rank_count, struct workload *workload);
void workload_free(struct workload *workload);

/* These functions return ncclInvalidUsage beyond a limit, ncclSystemError when memory is out; `ranks` are
 * copied. */
ncclResult_t workload_add_comm(struct workload *workload, const char *name, const uint32_t *ranks,
                               uint32_t rank_count, uint32_t *number);
ncclResult_t workload_add_stream(struct workload *workload, const char *name, uint32_t *number);
ncclResult_t workload_add_op(struct workload *workload, const struct workload_op *op);
ncclResult_t workload_add_call(struct workload *workload, const struct workload_call *call, uint32_t *number);
/* Adds a rank's next step; it waits for what the call says, or for the first `wait` steps of the call's
 * wait_stream. */
ncclResult_t workload_add_step(struct workload *workload, uint32_t rank, uint32_t call);
ncclResult_t workload_add_waiting(struct workload *workload, uint32_t rank, uint32_t call, uint32_t wait);

uint32_t workload_find_comm(const struct workload *workload, const char *name); /* WORKLOAD_NONE */
uint32_t workload_find_stream(const struct workload *workload, const char *name);
/* The job's rank of a communicator's rank, and the reverse: WORKLOAD_NONE if it is not a member. */
uint32_t workload_rank_of(const struct workload_comm *comm, uint32_t place);
uint32_t workload_place_of(const struct workload_comm *comm, uint32_t rank);

/* "all_reduce", "send", ...: as in the text form. */
const char *workload_func_name(uint8_t func);
/* "all_reduce 1024 x float sum comm dp"; into `out`. For a message whose peer is WORKLOAD_NONE the peer is
 * omitted. */
void workload_say_op(const struct workload *workload, const struct workload_call *call,
                     const struct workload_op *op, char *out, size_t out_bytes);
/* "file line 7: "; "" without line numbers. */
void workload_say_place(const struct workload *workload, const struct workload_call *call, char *out,
                        size_t out_bytes);

/* Checks that the ranks' calls match: collectives of a communicator in one order and with equal arguments,
 * each message sent and received once, with one size. Calls `tell` for mismatches, at most WORKLOAD_TOLD_MOST
 * times; *wrong is their number. ncclSystemError when memory is out. */
#define WORKLOAD_TOLD_MOST 8u
ncclResult_t workload_match(const struct workload *workload, void (*tell)(void *context, const char *text),
                            void *context, uint64_t *wrong);

/* Reads text of the grammar in README.md; `rank_count` ranks if the text does not give their number. Errors
 * have file, line and what was expected. */
ncclResult_t workload_read(const char *path, uint32_t rank_count, struct workload *workload);
/* The same from memory, which is modified; `name` must stay valid. */
ncclResult_t workload_parse(const char *name, char *text, uint32_t rank_count, struct workload *workload);
/* Reads a job's records: files of records, Flight Recorder dumps or logs (files/records.h). Calls are made at
 * their recorded times, or with `gaps` as long after the end of the previous call as was recorded between the
 * two. Errors are reported on stderr. */
ncclResult_t workload_records(int path_count, char **paths, bool gaps, struct workload *workload);
/* Reads Chakra traces, the files of all ranks (goal/chakra.h). A cycle of nodes is rejected. */
ncclResult_t workload_chakra(int path_count, char **paths, struct workload *workload);
/* Prints text that reads back as the same workload. */
void workload_print(const struct workload *workload, FILE *out);

#endif
