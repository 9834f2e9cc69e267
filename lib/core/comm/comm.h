/* comm.h: a communicator. struct ncclComm is one rank's, struct comm_shared is what all ranks of it in this
 * process share. Only one thread at a time uses a communicator; members marked "locked" change under the
 * backend's lock. */
#ifndef TUTTI_CORE_COMM_H
#define TUTTI_CORE_COMM_H

#include "backends/backend.h"
#include "core/comm/call_cache.h"
#include "core/comm/connect_table.h"
#include "core/comm/match.h"
#include "core/comm/one_sided.h"
#include "core/comm/lsa.h"
#include "core/plan/plan.h"
#include "core/comm/redop.h"
#include "core/comm/registrations.h"
#include "core/comm/windows.h"
#include "core/settings/settings.h"
#include "trace/recorder.h"

#define COMM_NAME_BYTES 48
#define COMM_REASON_BYTES 512

struct profiler;
struct remote;
struct rendezvous;

/* The last rank to be destroyed closes the device-side halves of all ranks, so that the peers' memory exists
 * while one rank lives. */
struct comm_shared {
  struct comm_shared *next; /* all communicators of the process; locked */
  const struct backend *ops;
  uint64_t comm_id;
  uint64_t serial; /* unlike comm_id, never reused in this process */
  uint32_t rank_count;
  uint32_t live_count; /* communicators that are not destroyed; locked */
  struct graph graph;
  struct remote *remote;             /* NULL if all ranks are in this process */
  struct device_comm **device_comms; /* by rank; NULL for those of other processes */
  struct match *match;
  struct window_list *windows; /* by rank; NULL before the first; locked */
};

enum comm_state {
  COMM_RENDEZVOUS, /* waits for the other ranks */
  COMM_READY,
  COMM_FAILED, /* initialization failed; async_error and reason say why */
  COMM_FINALIZING,
  COMM_FINALIZED
};

/* What a group queues for a communicator. */
struct comm_queue {
  struct ncclComm *next; /* next communicator of the group, in order of first use */
  bool queued;           /* is in a group's list ... */
  const void *group;     /* ... of this group */
  struct plan_op *ops;
  uint32_t op_count, op_capacity;
  struct plan_call *calls; /* that the operations come from */
  uint32_t call_count, call_capacity;
  device_stream *streams; /* distinct, in order of first use */
  uint32_t stream_count, stream_capacity;
  uint64_t first_sequence;   /* restored if the group is discarded ... */
  uint32_t first_collective; /* ... as is the recorder's count */
  struct plan plan;          /* stored in plan_memory */
  struct plan_memory plan_memory;
};

/* Which call a thread is in; all atomic (use.h). */
struct comm_use {
  uint32_t state;
  const void *thread;   /* that is in the call ... */
  const char *call;     /* ... of this name, the last of its group ... */
  const void *caller;   /* ... at this place */
  const char *end_call; /* the call that ends the communicator; NULL: none has begun */
  const void *end_caller;
};

struct ncclComm {
  const struct backend *ops;
  uint32_t state;       /* enum comm_state; locked, read atomically */
  uint32_t async_error; /* ncclResult_t; locked, read atomically */
  uint32_t rank, rank_count, device_index;
  uint32_t fork_count; /* os_fork_count() of the process that it is valid in */
  const char *made_by; /* "ncclCommInitRank" */
  const void *caller;  /* of that call; NULL: unknown */
  uint64_t comm_id;
  struct comm_shared *shared;    /* NULL until all ranks have joined; locked */
  struct rendezvous *rendezvous; /* while COMM_RENDEZVOUS; locked */
  struct ncclComm *parent;       /* of a split under way, else NULL; locked */
  uint32_t children_rendezvous;  /* splits of this one under way; locked */
  uint32_t waiter_count;         /* threads inside a waiting call; locked */
  uint32_t aborted;              /* locked, read atomically */
  bool destroying;               /* a thread is in ncclCommDestroy; atomic */
  uint32_t called_off;           /* aborted or broken: calls to other processes are cancelled; atomic */
  uint32_t broken;               /* 1: a thread is writing the reason, 2: reason is set; atomic */
  bool revoked;
  bool suspended;           /* its connections are gone until it is resumed */
  bool suspending;          /* a thread suspends or resumes it */
  bool stands_in;           /* no communicator: stands for its parent while that is suspended or resumed */
  uint64_t suspended_bytes; /* that were given back */
  struct device_comm *device_comm;
  ncclConfig_t config; /* every member set; commName and netName NULL */
  struct settings settings;
  const struct custom_schedule *custom; /* of TUTTI_CUSTOM_FILE, or NULL */
  uint64_t met_ns;                      /* when this rank joined */
  uint64_t unread_ns; /* since when its end waits for receivers that read its slots; 0: not */
  uint64_t sequence;  /* operations so far; written by its thread, read atomically */
  uint64_t split_count, grow_count;
  uint64_t grow_nonce; /* of an id within this process that waits for this rank's grow; 0: none */
  uint64_t owner;      /* serial of the thread that last enqueued */
  struct comm_use use;
  struct comm_queue queue;
  struct call_cache call_cache;
  struct match_rank match; /* under the lock of shared->match */
  struct recorder recorder;
  struct connect_table connections;
  struct redop_table redops;
  struct registration *registrations;
  struct one_sided one_sided;
  struct lsa lsa;
  struct profiler *profiler; /* the rank's profiler plugin, or NULL */
  bool profiler_sought;
  char name[COMM_NAME_BYTES];     /* for messages */
  char reason[COMM_REASON_BYTES]; /* why it is COMM_FAILED (locked), or broken */
  ncclResult_t reason_code;       /* the code that it was broken with */
};

/* Opens the device-side half; rank, rank_count, comm_id and settings are known. */
ncclResult_t comm_open(struct ncclComm *comm);
/* ncclInvalidArgument, naming the call, for NULL, freed or foreign memory. */
ncclResult_t comm_check_handle(const struct ncclComm *comm, const char *call);
/* As above, and the communicator must be ready for operations: made, not finalized, revoked or suspended, no
 * error. */
ncclResult_t comm_check_ready(struct ncclComm *comm, const char *call);
/* As comm_check_ready(), but allows a suspended communicator. */
ncclResult_t comm_check_sound(struct ncclComm *comm, const char *call);
/* ncclInvalidUsage, naming the call, for a suspended communicator. */
ncclResult_t comm_check_awake(const struct ncclComm *comm, const char *call);
/* As comm_check_ready(), but allows a revoked communicator; for split and shrink. */
ncclResult_t comm_check_met(struct ncclComm *comm, const char *call);
/* True if comm_check_ready() would succeed, except for errors that only the device knows. Logs nothing. */
bool comm_is_ready(const struct ncclComm *comm);
/* The same for a handle that is known to be one of a communicator. */
bool comm_known_is_ready(const struct ncclComm *comm);

enum comm_state comm_state(const struct ncclComm *comm);
ncclResult_t comm_async_error(const struct ncclComm *comm);
/* Keeps the first error. */
void comm_set_async_error(struct ncclComm *comm, ncclResult_t error);
/* config.trafficClass plus 1; 0: not set. */
static inline uint32_t comm_traffic_class(const struct ncclComm *comm) {
  const int asked = comm->config.trafficClass;
  return asked == NCCL_CONFIG_UNDEF_INT ? 0 : (uint32_t)asked + 1;
}
/* Breaks a communicator for an external reason (a process was lost, a network failed): keeps the first code
 * and message, and ends the waits of its kernels. Any thread, also under the backend's lock. */
void comm_break(struct ncclComm *comm, ncclResult_t error, const char *reason);
/* As comm_break(), for a caller that has logged the reason. */
void comm_break_silently(struct ncclComm *comm, ncclResult_t error, const char *reason);
/* The message that it was broken with, or the text of the code. */
const char *comm_why(const struct ncclComm *comm, ncclResult_t error);
/* The calling thread now drives this rank. */
void comm_own(struct ncclComm *comm);
/* Bytes of core's own structures. */
uint64_t comm_core_bytes(const struct ncclComm *comm);

/* Creates shared state without device-side halves; NULL if memory is out. */
struct comm_shared *comm_shared_create(const struct backend *ops, uint64_t comm_id, uint32_t rank_count);
/* Makes the communicator's graph, once all ranks and their settings are known; `comms` is by rank. */
ncclResult_t comm_shared_lay_out(struct comm_shared *shared, struct ncclComm *const *comms);
/* shared->remote must have been freed before. NULL is allowed. */
void comm_shared_free(struct comm_shared *shared);
/* Locked: add the communicator to the process's list, remove it, and test whether a comm_id is in use. */
void comm_shared_enlist(struct comm_shared *shared);
void comm_shared_delist(struct comm_shared *shared);
bool comm_shared_id_taken(uint64_t comm_id);

#endif
