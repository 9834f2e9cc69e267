/* recorder.h: records what each communicator of this process does, in a file that survives the process
 * (TUTTI_TRACE). A communicator's records have one writer, the thread that drives it; it takes no lock and
 * allocates nothing. If recording is off or there is no space, the recorder is empty and costs a comparison.
 */
#ifndef TUTTI_TRACE_RECORDER_H
#define TUTTI_TRACE_RECORDER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/python_frame.h"
#include "base/ticks.h"
#include "trace/record.h"

/* The tables that a backend fills (record.h). They are never unmapped, so writing is safe at any time. */
struct recorder_live {
  struct record_comm *comm; /* launched, started, ended, moved_ticks, links_used; NULL: nothing is recorded */
  struct record_lane *lanes;
  struct record_link *links;
  struct record_proxy *proxies;
  struct record_pace *paces;
};

/* A frame of Python that the file has. */
struct recorder_frame {
  struct python_frame frame;
  uint64_t address; /* 0: there is no space, or no text */
};

struct recorder {
  struct record_comm *comm; /* NULL: nothing is recorded */
  union record *ring;
  struct record_plan *plans;
  struct record_lane *lanes;
  struct record_link *links;
  struct record_proxy *proxies;
  struct record_pace *paces;
  struct record_input *inputs;
  uint64_t tail;
  uint32_t mask;
  uint32_t collectives; /* called so far */
  uint32_t last_stream;
  uint32_t evictions;              /* recorder_evictions of the next two */
  const void *callers[8];          /* direct-mapped cache of return addresses that the file has already */
  struct recorder_frame frames[8]; /* the same of frames of Python */
};

struct recorder_birth {
  uint64_t comm_id;
  uint32_t rank, rank_count, device;
  uint64_t settings_digest, topology_digest;
  const char *name;
};

/* Begins to record. Never fails: on an error the recorder is empty, and the log says why, once. */
void recorder_open(struct recorder *recorder, const struct recorder_birth *birth);
/* The communicator has ended. */
void recorder_close(struct recorder *recorder, enum record_state state);
struct recorder_live recorder_live(const struct recorder *recorder);

static inline void recorder_push(struct recorder *recorder, const union record *record) {
  recorder->ring[recorder->tail & recorder->mask] = *record;
  recorder->tail += 1;
  __atomic_store_n(&recorder->comm->tail, recorder->tail, __ATOMIC_RELEASE);
}

/* enum record_kind of the last record. */
static inline uint8_t recorder_last_kind(const struct recorder *recorder) {
  return recorder->tail > 0 ? recorder->ring[(recorder->tail - 1) & recorder->mask].kind : RECORD_NONE;
}

uint8_t recorder_add_stream(struct recorder *recorder, uint64_t stream);
static inline uint8_t recorder_stream(struct recorder *recorder, const void *stream) {
  const uint64_t handle = (uint64_t)(uintptr_t)stream;
  if (recorder->last_stream < RECORD_STREAMS && recorder->comm->streams[recorder->last_stream] == handle)
    return (uint8_t)recorder->last_stream;
  return recorder_add_stream(recorder, handle);
}

/* How often rows of the file's places were emptied for others. */
extern uint32_t recorder_evictions;
static inline bool recorder_has_its_places(const struct recorder *recorder) {
  return recorder->evictions == __atomic_load_n(&recorder_evictions, __ATOMIC_RELAXED);
}

void recorder_add_caller(struct recorder *recorder, const void *caller);
static inline uint64_t recorder_caller(struct recorder *recorder, const void *caller) {
  if (recorder->callers[((uintptr_t)caller >> 2) % 8] != caller || !recorder_has_its_places(recorder))
    recorder_add_caller(recorder, caller);
  return (uint64_t)(uintptr_t)caller;
}

/* The same for a call that Python makes; 0 if there is no text of it. */
uint64_t recorder_add_frame(struct recorder *recorder, const struct python_frame *frame);
static inline uint64_t recorder_python(struct recorder *recorder, const struct python_frame *frame) {
  const struct recorder_frame *row = &recorder->frames[((uintptr_t)frame->instruction >> 2) % 8];
  if (row->frame.instruction == frame->instruction && row->frame.code == frame->code &&
      row->frame.name == frame->name && recorder_has_its_places(recorder))
    return row->address;
  return recorder_add_frame(recorder, frame);
}

/* call->ticks is the time at which the call began; call->sequence is the next operation's number. */
static inline void recorder_call(struct recorder *recorder, const struct record_call *call,
                                 const struct record_place *place) {
  const uint64_t tail = recorder->tail;
  union record *ring = recorder->ring;
  ring[tail & recorder->mask].call = *call;
  ring[(tail + 1) & recorder->mask].place = *place;
  recorder->tail = tail + 2;
  __atomic_store_n(&recorder->comm->tail, tail + 2, __ATOMIC_RELEASE);
}

/* Records a call together with its launch, whose `kind` the caller has set. */
static inline void recorder_call_launched(struct recorder *recorder, const struct record_call *call,
                                          const struct record_place *place,
                                          const struct record_launch *launch) {
  const uint64_t tail = recorder->tail;
  union record *ring = recorder->ring;
  ring[tail & recorder->mask].call = *call;
  ring[(tail + 1) & recorder->mask].place = *place;
  ring[(tail + 2) & recorder->mask].launch = *launch;
  recorder->tail = tail + 3;
  __atomic_store_n(&recorder->comm->tail, tail + 3, __ATOMIC_RELEASE);
  /* Collectives evict the ring from the caches, and a store that misses delays the stores after it. So the
   * lines of the next call's records are prefetched. */
  __builtin_prefetch(&ring[(tail + 3) & recorder->mask], 1);
  __builtin_prefetch(&ring[(tail + 5) & recorder->mask], 1);
}

/* The operations [sequence, sequence + operations) were launched as kernel `number` of the communicator. */
void recorder_launch(struct recorder *recorder, const struct record_launch *launch);
void recorder_error(struct recorder *recorder, uint32_t result, uint64_t sequence);
void recorder_drop(struct recorder *recorder, uint64_t sequence);
void recorder_life(struct recorder *recorder, enum record_life life, uint64_t sequence);
/* The communicator failed with this message; only the first one is kept. From any thread; `comm` may be NULL.
 */
void recorder_break(struct record_comm *comm, uint32_t error, const char *reason);
/* Records a plan in the row of its number. */
void recorder_plan(struct recorder *recorder, const struct record_plan *plan);
static inline bool recorder_knows_plan(const struct recorder *recorder, uint64_t number) {
  const struct record_plan *row = &recorder->plans[number % RECORD_PLANS];
  return row->used != 0 && row->number == (uint32_t)number && number != 0;
}

/* ---- for backends ---- */

/* Finds or adds the row of one end of a connection; NULL if there is no space. One thread at a time. */
struct record_link *recorder_link(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                  uint8_t proto, uint8_t conn);

/* Adds a row for a connection's proxy; NULL if there is no space or nothing is recorded. One thread at a
 * time.
 */
struct record_proxy *recorder_proxy(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                    uint8_t proto, uint8_t conn);

/* Measures how long one end of a connection waits. The two longest waits are left out of the row: a process
 * that got no processor for a while explains them as well as a slow link does. */
struct recorder_pace {
  struct record_pace *row; /* NULL: not recorded */
  uint64_t waited;         /* since row->begin: ticks / RECORD_PACE_UNIT of all waits that ended */
  uint64_t longest[2];     /* the longest and the second longest of them */
};
/* Adds a row for how long the connection waits; `device` is the NIC, 255 if there is none. One thread at a
 * time. */
void recorder_pace_open(struct recorder_pace *pace, const struct recorder_live *live, uint32_t peer,
                        uint8_t channel, uint8_t device, uint8_t conn);
/* `given` more messages have completed; `waits`: another one is expected. */
void recorder_pace_turn(struct recorder_pace *pace, bool waits, uint32_t given);
static inline void recorder_pace_note(struct recorder_pace *pace, bool waits, uint32_t given) {
  if (pace->row != NULL && (given > 0 || waits != (pace->row->since != 0)))
    recorder_pace_turn(pace, waits, given);
}

/* Stores in the header which process this one waits for before any event can run; 0: none. */
void recorder_note_awaited(uint32_t process);

/* ---- for the watchdog and tutti status ---- */

/* Stores the address of the process's control server in the header. */
void recorder_note_address(const char *text);

/* Stores the current time in the header, which shows a later reader that the process was alive. Any thread.
 */
void recorder_note_time(void);

/* Copies the file's current content from `offset` on; returns the number of bytes copied, at most `bytes`.
 * Any thread. */
size_t recorder_copy(uint64_t offset, void *out, size_t bytes);

/* The progress of a communicator. */
struct recorder_look {
  uint64_t comm_id;
  uint64_t moves; /* a hash that changes when the communicator makes progress */
  uint32_t rank;
  bool pends; /* a launched kernel has not ended, and the communicator has not failed */
};
/* Reads the communicator at *offset (0: the first) and advances *offset to the next one; false if there are
 * no more. Any thread. */
bool recorder_look_next(uint64_t *offset, struct recorder_look *look);

/* ---- for tests ---- */

/* Closes the file; the next recorder_open() reads TUTTI_TRACE again. No recorder may be open. */
void recorder_reset(void);
/* Path of the file that this process writes, "" if there is none. */
const char *recorder_path(void);

#endif
