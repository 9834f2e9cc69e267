/* call_cache.h: calls that are made again with the same arguments, as loops make them, alone or as a group of
 * calls on one communicator. They were checked and planned, and what they need is connected: they go straight
 * to the backend, if that kept what it made of them.
 *
 * A group is followed call by call: as long as its calls are those of a group that was made before, nothing
 * is done for them. At its end they are launched at once, or, as where a call differs, noted the full path.
 */
#ifndef TUTTI_CORE_CALL_CACHE_H
#define TUTTI_CORE_CALL_CACHE_H

#include <stdbool.h>

#include "backends/backend.h"
#include "nccl.h"

#define CALL_CACHE_CALLS 8
#define CALL_CACHE_GROUPS 4
#define CALL_CACHE_GROUP_CALLS 8 /* an all-to-all of four ranks */
#define CALL_CACHE_WORKS 8       /* a plan of more is so much work that how it is found matters little */
#define CALL_CACHE_ENTRY_WORKS 4

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

struct call_cache_entry {
  struct call_cache_args args;
  uint64_t serial; /* of the plan; 0: nothing is here */
  struct plan_buffers buffers[CALL_CACHE_ENTRY_WORKS];
};

struct call_cache_group {
  struct call_cache_args calls[CALL_CACHE_GROUP_CALLS];
  uint32_t call_count;
  uint64_t serial; /* of the plan; 0: nothing is here */
  struct plan_buffers buffers[CALL_CACHE_WORKS];
};

struct call_cache_groups {
  struct call_cache_group kept[CALL_CACHE_GROUPS];
  uint32_t next; /* whose place the next one takes */
};

struct call_cache {
  struct call_cache_entry calls[CALL_CACHE_CALLS];
  struct call_cache_groups *groups; /* NULL before the first */
  /* the open group: calls that were followed, and in which one; else calls that were noted in the next place,
   * more than CALL_CACHE_GROUP_CALLS where it is none to be kept */
  uint32_t followed, noted;
  const struct call_cache_group *path;
  /* the launch that was made last: what the notes below take its plan from */
  uint64_t serial, sequence;
  uint32_t work_count;
  const struct plan_buffers *buffers;
};

/* True when the call was one of those, and is launched; *result is what it came to. `call` need not have been
 * checked, and is outside any group. */
bool call_cache_launch(const struct collective_call *call, ncclResult_t *result);
/* What a communicator launches, in a group of its own or with others; by the thread that owns it. */
void call_cache_note_launch(struct ncclComm *comm, const struct plan *plan, uint32_t stream_count);
/* The call has just gone the full path, alone, and well. */
void call_cache_note(const struct collective_call *call);

/* True when the call goes on with a group as one did before. `call` need not have been checked. */
bool call_cache_follow(const struct collective_call *call);
/* The same where this thread has followed a call of the open group, and no other since: what the communicator
 * is good for is asked at the group's end. */
bool call_cache_follow_on(struct call_cache *cache, const struct collective_call *call);
/* True when the calls that were followed are all, and are launched; *result is what that came to. */
bool call_cache_launch_group(struct ncclComm *comm, ncclResult_t *result);
/* A call in a group that has gone the full path. Fails when memory is out. */
ncclResult_t call_cache_note_call(const struct collective_call *call);
/* The group has just gone the full path, and well. */
void call_cache_note_group(struct ncclComm *comm);
/* The open group is over for this communicator. */
void call_cache_end_group(struct ncclComm *comm);
/* The i-th of the calls that were followed. */
struct collective_call call_cache_followed(struct ncclComm *comm, uint32_t i);
/* Memory of the groups, bytes. */
uint64_t call_cache_bytes(const struct call_cache *cache);
void call_cache_free(struct call_cache *cache);

#endif
