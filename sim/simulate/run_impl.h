/* run_impl.h: what the files of a run (run.c, run_plans.c, run_fold.c, run_order.c, run_stuck.c) share. */
#ifndef TUTTI_SIM_SIMULATE_RUN_IMPL_H
#define TUTTI_SIM_SIMULATE_RUN_IMPL_H

#include <stdlib.h>

#include "base/log.h"
#include "base/os.h"
#include "simulate/call.h"
#include "simulate/run.h"

#define RUN_LINKS_MAX (1u << 28)

/* A plan of one rank, for calls that are alike. */
struct shape {
  uint32_t comm, place, call; /* call: one of those that are alike */
  uint32_t next;              /* next with the same hash, SIM_NONE */
  uint64_t uses;              /* kernels */
  uint64_t streams;           /* one bit per stream that it runs on */
  struct plan plan;
  uint32_t first_lane, lane_count, first_block, block_count; /* in run.rows */
};

struct track {
  uint32_t rank, stream;
  uint32_t step; /* of the rank: the one that runs, or is next */
  uint32_t done; /* steps of this track that have ended */
  uint32_t first_lane, lane_capacity, first_block, block_capacity;
  uint64_t begin_ps, end_ps; /* of the kernel that runs; of the last that has ended */
  uint64_t *ends;            /* of all steps, if others wait for them */
  uint32_t next_ready;       /* SIM_NONE */
  bool ready, running;
  uint32_t stuck; /* of a lane, when the run is stuck: index in the reports + 1 */
};

/* The n-th kernel of a communicator's collectives: when its ranks arrived. */
struct arrival {
  uint64_t sum_ps, last_ps;
  uint32_t count;
};
struct arrivals {
  uint32_t *next; /* by place: the number of its next one */
  struct arrival *rows;
  uint32_t row_capacity;
};

/* When a kernel ran. */
struct interval {
  uint64_t begin_ps, end_ps;
};
/* Of a rank with several streams. */
struct intervals {
  struct interval *rows;
  uint32_t count, capacity;
};

/* A step of a rank begins when an earlier one on another stream has ended: both use the same ends. */
struct turn {
  uint32_t step, prior;
};

struct stuck_lane {
  uint32_t peer; /* of the job */
  const char *wants;
  char link[64];
};

struct run {
  const struct run_request *request;
  const struct workload *workload;
  struct run_report *report;
  struct graph *graphs; /* by communicator; empty if the cluster's is used, or none is needed */
  struct shape *shapes;
  uint32_t shape_count, shape_capacity;
  uint32_t *buckets; /* of shapes */
  uint32_t bucket_mask;
  uint32_t **shape_of;   /* by rank and step */
  uint32_t *first_shape; /* by rank; one entry more */
  struct sim_net rows;   /* of all plans, one after another: ranks, links and connections of the job */
  uint32_t lane_capacity, block_capacity, link_capacity;
  uint8_t *pieces;     /* by connection of the running rows: the number of pieces of a step */
  double *demand_gbps; /* by link: the greatest demand at a time */
  struct fold fold;    /* if ranks are alike, its net's rows are used instead */
  bool folded;
  struct interval **times; /* by representing rank and step, if it is folded */
  struct track *tracks;
  uint32_t track_count, first_ready, last_ready;
  uint32_t *first_track; /* by rank; one entry more */
  bool awaited[WORKLOAD_STREAMS_MAX];
  struct turn *turns; /* rank after rank, by step */
  uint32_t turn_count, turn_capacity;
  uint32_t *first_turn; /* by rank; one entry more */
  uint64_t **step_ends; /* by rank and step; NULL for a rank that has no turns */
  struct sim_net net;
  uint32_t *conn_buckets, conn_mask, conn_capacity;
  uint32_t *conn_comms, *conn_next; /* by connection: its communicator; next with the same hash */
  struct plan *plans;               /* by rank of the job: only limits, for the engine */
  struct plan_op *ops;
  uint32_t op_capacity;
  struct stuck_lane *stuck;
  uint32_t stuck_count;
  uint32_t *kind_of;           /* by call */
  struct arrivals *arrivals;   /* by communicator */
  struct intervals *intervals; /* by rank */
  bool failed;                 /* memory was out during the run */
};

static inline ncclResult_t run_no_memory(const struct run *run) {
  return log_no_memory("%s: the plans of %u ranks", run->workload->name, run->workload->rank_count);
}

/* ---- run_plans.c */
/* `peers`: also the peers of messages. */
uint64_t run_ops_hash(const struct workload *workload, const struct workload_call *call, bool peers,
                      uint64_t hash);
bool run_calls_same(const struct workload *workload, const struct workload_call *a,
                    const struct workload_call *b, bool peers);
/* Finds the different plans; then makes them, and their rows. */
ncclResult_t run_shapes_make(struct run *run);
ncclResult_t run_plans_make(struct run *run);

/* ---- run_fold.c */
/* False if another rank represents it. */
bool run_has_rank(const struct run *run, uint32_t rank);
ncclResult_t run_demand_find(struct run *run);
ncclResult_t run_fold(struct run *run);

/* ---- run_order.c */
ncclResult_t run_turns_find(struct run *run);
void run_turns_free(struct run *run);
/* The track whose kernel must end before the track's next one begins; NULL: none, and *free_ps is not earlier
 * than the end of those that had to. */
struct track *run_turn_of(const struct run *run, const struct track *track, uint64_t *free_ps);

/* ---- run_stuck.c */
/* Callback of the engine: a lane that is stuck. */
void run_stuck_add(void *context, const struct engine_stuck *stuck);
/* Writes the report's text. */
void run_stuck_report(struct run *run);

/* ---- run.c */
/* The track's current call. */
const struct workload_call *run_step_call(const struct run *run, const struct track *track);
bool run_track_ended(const struct run *run, const struct track *track);
/* NULL: the rank has no such stream. */
struct track *run_track_find(const struct run *run, uint32_t rank, uint32_t stream);

#endif
