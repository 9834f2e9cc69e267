/* call_cache.h: launches repeated calls directly. A loop makes the same calls with the same arguments, alone
 * or as a group on one communicator; these calls were checked and planned before, and their connections
 * exist, so they go straight to the backend if it has kept the prepared launch.
 *
 * A group is matched call by call: as long as its calls equal those of a cached group, nothing is done for
 * them. At the group's end they are launched at once. If a call differs, they take the full path. */
#ifndef TUTTI_CORE_CALL_CACHE_H
#define TUTTI_CORE_CALL_CACHE_H

#include <stdbool.h>

#include "backends/backend.h"
#include "nccl.h"

#define CALL_CACHE_CALLS 8
#define CALL_CACHE_GROUPS 4
#define CALL_CACHE_GROUP_CALLS 8 /* an all-to-all of four ranks */
/* A collective on GPUs has a work a channel, 32 at most; a message to and from a peer has 16 of each. */
#define CALL_CACHE_WORKS 64
#define CALL_CACHE_ENTRY_WORKS 32
#define CALL_CACHE_GROUP_FEW 16
#define CALL_CACHE_ENTRY_FEW 4

struct collective_call;
struct ncclComm;

struct call_cache_args {
  const char *name; /* the function's */
  const void *in;
  void *out;
  size_t count;
  device_stream stream;
  int peer;
  uint8_t func, dtype, op, zero;
};

/* Buffers of a plan's works: in place of an array of its own if they are few. */
struct call_cache_buffers {
  const struct plan_buffers *used;
  struct plan_buffers *many;
  uint32_t capacity; /* of `many` */
};

struct call_cache_entry {
  struct call_cache_args args;
  uint64_t serial;     /* of the plan */
  uint64_t generation; /* of memory (memory_ops.def), when the buffers were checked */
  struct call_cache_buffers buffers;
  struct plan_buffers few[CALL_CACHE_ENTRY_FEW];
};

struct call_cache_group {
  struct call_cache_args calls[CALL_CACHE_GROUP_CALLS];
  uint32_t call_count;
  uint64_t serial;     /* of the plan; 0: the entry is empty */
  uint64_t generation; /* as above */
  struct call_cache_buffers buffers;
  struct plan_buffers few[CALL_CACHE_GROUP_FEW];
};

struct call_cache_groups {
  struct call_cache_group kept[CALL_CACHE_GROUPS];
  uint32_t next; /* index that the next group replaces */
};

struct call_cache {
  uint64_t hashes[CALL_CACHE_CALLS]; /* by entry; 0: the entry is empty */
  struct call_cache_entry calls[CALL_CACHE_CALLS];
  uint32_t next;                    /* index that the next call replaces */
  struct call_cache_groups *groups; /* NULL before the first */
  /* the open group: number of calls that match `path`; else number of calls that were recorded in the next
   * place, more than CALL_CACHE_GROUP_CALLS if the group cannot be cached */
  uint32_t followed, noted;
  const struct call_cache_group *path;
  const void *callers[CALL_CACHE_GROUP_CALLS]; /* of the followed calls */
  /* the last launch, from which call_cache_note() and call_cache_note_group() take the plan */
  uint64_t serial, sequence;
  uint32_t work_count;
  const struct plan_buffers *buffers;
};

/* True if the call was cached and has been launched; *result is the launch's result. `call` is outside any
 * group; its communicator is one, and nothing else of it need have been checked. */
bool call_cache_launch(const struct collective_call *call, ncclResult_t *result);
/* Records what a communicator launches, alone in its group or with others; by the thread that owns it. */
void call_cache_note_launch(struct ncclComm *comm, const struct plan *plan, uint32_t stream_count);
/* Caches a call that has just succeeded on the full path, alone. */
void call_cache_note(const struct collective_call *call);

/* True if the call continues a group as a cached group did. The communicator of `call` is one, and nothing
 * else of it need have been checked. */
bool call_cache_follow(const struct collective_call *call);
/* As call_cache_follow(), for a thread whose last call in the open group was followed: the state of the
 * communicator is checked at the group's end only. */
bool call_cache_follow_on(struct call_cache *cache, const struct collective_call *call);
/* True if the followed calls are the whole cached group and were launched; *result is the launch's result. */
bool call_cache_launch_group(struct ncclComm *comm, ncclResult_t *result);
/* Records a call of a group that took the full path. Fails if memory is out. */
ncclResult_t call_cache_note_call(const struct collective_call *call);
/* Caches the group that has just succeeded on the full path. */
void call_cache_note_group(struct ncclComm *comm);
/* The open group cannot be cached. */
static inline void call_cache_leave_group(struct call_cache *cache) {
  cache->noted = CALL_CACHE_GROUP_CALLS + 1;
}
/* The open group has ended for this communicator. */
void call_cache_end_group(struct ncclComm *comm);
/* The i-th followed call. */
struct collective_call call_cache_followed(struct ncclComm *comm, uint32_t i);
/* Bytes of the cached calls and groups. */
uint64_t call_cache_bytes(const struct call_cache *cache);
void call_cache_free(struct call_cache *cache);

#endif
