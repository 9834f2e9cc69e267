/* comm.h: a communicator: struct ncclComm is one rank's, struct comm_shared is what all ranks of it in this
 * process share. A communicator belongs to one thread at a time, but for what is marked "locked": that
 * changes under the backend's lock. */
#ifndef TUTTI_CORE_COMM_H
#define TUTTI_CORE_COMM_H

#include "backends/backend.h"
#include "core/comm/call_cache.h"
#include "core/comm/connect_table.h"
#include "core/plan/plan.h"
#include "core/comm/redop.h"
#include "core/comm/registrations.h"
#include "core/settings/settings.h"
#include "trace/recorder.h"

#define COMM_NAME_BYTES 48
#define COMM_REASON_BYTES 512

struct remote;
struct rendezvous;

/* The last rank to go closes the device-side halves of all: while one rank lives, its peers' memory is
 * there. */
struct comm_shared {
  struct comm_shared *next; /* all communicators of the process; locked */
  const struct backend *ops;
  uint64_t comm_id;
  uint64_t serial; /* unlike comm_id never used again in this process */
  uint32_t rank_count;
  uint32_t live_count; /* communicators that are not destroyed; locked */
  struct graph graph;
  struct remote *remote;             /* NULL where all ranks are in this process */
  struct device_comm **device_comms; /* by rank; NULL for those of other processes */
};

enum comm_state {
  COMM_RENDEZVOUS, /* waits for the other ranks */
  COMM_READY,
  COMM_FAILED, /* was never made; async_error and reason say why */
  COMM_FINALIZING,
  COMM_FINALIZED
};

/* What one group collects for a communicator. */
struct comm_queue {
  struct ncclComm *next; /* next communicator of the group, in order of first use */
  bool queued;           /* is in a group's list */
  struct plan_op *ops;
  uint32_t op_count, op_capacity;
  device_stream *streams; /* distinct, in order of first use */
  uint32_t stream_count, stream_capacity;
  uint64_t first_sequence;   /* to go back to when the group is discarded ... */
  uint32_t first_collective; /* ... and the recorder's count */
  struct plan plan;          /* lies in plan_memory */
  struct plan_memory plan_memory;
};

struct ncclComm {
  uint64_t canary_begin;
  const struct backend *ops;
  uint32_t state;       /* enum comm_state; locked, read atomically */
  uint32_t async_error; /* ncclResult_t; locked, read atomically */
  uint32_t rank, rank_count, device_index;
  uint32_t fork_count; /* os_fork_count() of the process that it is good in */
  uint64_t comm_id;
  struct comm_shared *shared;    /* NULL until all ranks have met; locked */
  struct rendezvous *rendezvous; /* while COMM_RENDEZVOUS; locked */
  struct ncclComm *parent;       /* of a split under way, else NULL; locked */
  uint32_t children_rendezvous;  /* splits of this one under way; locked */
  uint32_t waiter_count;         /* threads inside a waiting call; locked */
  uint32_t aborted;              /* locked, read atomically */
  uint32_t called_off;           /* aborted or broken: calls to other processes give up; atomic */
  uint32_t broken;               /* 1: some thread is noting why, 2: reason is there; atomic */
  bool revoked;
  struct device_comm *device_comm;
  ncclConfig_t config; /* every member set; commName and netName NULL */
  struct settings settings;
  const struct custom_schedule *custom; /* of TUTTI_CUSTOM_FILE, or NULL */
  uint64_t met_ns;                      /* when this rank checked in */
  uint64_t sequence;                    /* operations so far; written by its thread, read atomically */
  uint64_t split_count;
  uint64_t owner; /* serial of the thread that last enqueued */
  struct comm_queue queue;
  struct call_cache call_cache;
  struct recorder recorder;
  struct connect_table connections;
  struct redop_table redops;
  struct registration *registrations;
  char name[COMM_NAME_BYTES];     /* for sentences */
  char reason[COMM_REASON_BYTES]; /* why it FAILED (locked), or broke */
  ncclResult_t reason_code;       /* what it broke with */
  uint64_t canary_end;
};

/* Opens the device-side half; rank, rank_count, comm_id and settings are known. */
ncclResult_t comm_open(struct ncclComm *comm);
/* Notes that memory is a communicator, and that it is none any more. */
void comm_mark(struct ncclComm *comm, bool live);

/* NULL, freed or foreign memory: ncclInvalidArgument, naming the call. */
ncclResult_t comm_check_handle(const struct ncclComm *comm, const char *call);
/* The same, and it must be ready for operations: made, not finalized, not revoked, without error. */
ncclResult_t comm_check_ready(struct ncclComm *comm, const char *call);
/* The same, but a revoked one passes. For what rebuilds: split and shrink. */
ncclResult_t comm_check_met(struct ncclComm *comm, const char *call);
/* What comm_check_ready() would let pass, but for errors that the device alone knows. Says nothing. */
bool comm_is_ready(const struct ncclComm *comm);

enum comm_state comm_state(const struct ncclComm *comm);
ncclResult_t comm_async_error(const struct ncclComm *comm);
/* Keeps the first error. */
void comm_set_async_error(struct ncclComm *comm, ncclResult_t error);
/* Something outside has broken this communicator (a process lost, a network failed): notes the first code and
 * sentence, and ends what its kernels wait for. Any thread, also under the backend's lock. */
void comm_break(struct ncclComm *comm, ncclResult_t error, const char *reason);
/* The sentence that it was broken with, or the code's own. */
const char *comm_why(const struct ncclComm *comm, ncclResult_t error);
/* The calling thread now drives this rank. */
void comm_own(struct ncclComm *comm);
/* Bytes of the core's own structures. */
uint64_t comm_core_bytes(const struct ncclComm *comm);

/* A communicator with no device-side halves yet; NULL when memory is out. */
struct comm_shared *comm_shared_create(const struct backend *ops, uint64_t comm_id, uint32_t rank_count);
/* Once all ranks and their settings are known, by rank: makes the communicator's graph. */
ncclResult_t comm_shared_lay_out(struct comm_shared *shared, struct ncclComm *const *comms);
/* Its far ranks (communicator->far) have been freed before. NULL is allowed. */
void comm_shared_free(struct comm_shared *shared);
/* Locked: makes the communicator known, or unknown, and asks whether a number is taken. */
void comm_shared_enlist(struct comm_shared *shared);
void comm_shared_delist(struct comm_shared *shared);
bool comm_shared_id_taken(uint64_t comm_id);

#endif
