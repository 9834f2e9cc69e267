/* recorder.h: notes what each communicator of this process does, where it outlives the process: TUTTI_TRACE.
 * A communicator's records have one writer, the thread that drives it, which takes no lock and allocates
 * nothing. Where recording is off, or there is no space, recorders are empty and cost a comparison. */
#ifndef TUTTI_TRACE_RECORDER_H
#define TUTTI_TRACE_RECORDER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/ticks.h"
#include "trace/record.h"

/* What a backend fills: see record.h. Never unmapped, so that it may be written to at any time. */
struct recorder_live {
  struct record_comm *comm; /* launched, started, ended, moved_ticks, links_used; NULL: nobody records */
  struct record_lane *lanes;
  struct record_link *links;
  struct record_proxy *proxies;
  struct record_pace *paces;
};

struct recorder {
  struct record_comm *comm; /* NULL: nothing is recorded */
  union record *ring;
  struct record_plan *plans;
  struct record_lane *lanes;
  struct record_link *links;
  struct record_proxy *proxies;
  struct record_pace *paces;
  uint64_t tail;
  uint32_t mask;
  uint32_t collectives; /* called so far */
  uint32_t last_stream;
  const void *callers[8]; /* that are noted, each in its place */
};

struct recorder_birth {
  uint64_t comm_id;
  uint32_t rank, rank_count, device;
  uint64_t settings_digest, topology_digest;
  const char *name;
};

/* Begins to record. Never fails: where it cannot, the recorder is empty, and the log says why, once. */
void recorder_open(struct recorder *recorder, const struct recorder_birth *birth);
/* The communicator is no more. */
void recorder_close(struct recorder *recorder, enum record_state state);
struct recorder_live recorder_live(const struct recorder *recorder);

static inline void recorder_push(struct recorder *recorder, const union record *record) {
  recorder->ring[recorder->tail & recorder->mask] = *record;
  recorder->tail += 1;
  __atomic_store_n(&recorder->comm->tail, recorder->tail, __ATOMIC_RELEASE);
}

uint8_t recorder_add_stream(struct recorder *recorder, uint64_t stream);
static inline uint8_t recorder_stream(struct recorder *recorder, const void *stream) {
  const uint64_t handle = (uint64_t)(uintptr_t)stream;
  if (recorder->last_stream < RECORD_STREAMS && recorder->comm->streams[recorder->last_stream] == handle)
    return (uint8_t)recorder->last_stream;
  return recorder_add_stream(recorder, handle);
}

void recorder_add_caller(struct recorder *recorder, const void *caller);
static inline uint64_t recorder_caller(struct recorder *recorder, const void *caller) {
  if (recorder->callers[((uintptr_t)caller >> 2) % 8] != caller) recorder_add_caller(recorder, caller);
  return (uint64_t)(uintptr_t)caller;
}

/* `ticks` are of when the call began. Its number is that of the next operation. */
static inline void recorder_call(struct recorder *recorder, const struct record_call *call,
                                 const struct record_place *place) {
  const uint64_t tail = recorder->tail;
  union record *ring = recorder->ring;
  ring[tail & recorder->mask].call = *call;
  ring[(tail + 1) & recorder->mask].place = *place;
  recorder->tail = tail + 2;
  __atomic_store_n(&recorder->comm->tail, tail + 2, __ATOMIC_RELEASE);
}

/* A call that is launched already; `launch` has its kind. */
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
  /* What operations move drives the ring out of near caches, and whatever is stored behind a record that
   * waits for memory waits too: where the next call's come is fetched meanwhile. */
  __builtin_prefetch(&ring[(tail + 3) & recorder->mask], 1);
  __builtin_prefetch(&ring[(tail + 5) & recorder->mask], 1);
}

/* The operations [sequence, sequence + operations) were handed to the device, as launch `number` of it. */
void recorder_launch(struct recorder *recorder, const struct record_launch *launch);
void recorder_error(struct recorder *recorder, uint32_t result, uint64_t sequence);
void recorder_drop(struct recorder *recorder, uint64_t sequence);
void recorder_life(struct recorder *recorder, enum record_life life, uint64_t sequence);
/* It broke, with this sentence; the first one stays. Any thread; NULL: nobody records it. */
void recorder_break(struct record_comm *comm, uint32_t error, const char *reason);
/* A plan that has not been noted; its row is that of its number. */
void recorder_plan(struct recorder *recorder, const struct record_plan *plan);
static inline bool recorder_knows_plan(const struct recorder *recorder, uint64_t number) {
  const struct record_plan *row = &recorder->plans[number % RECORD_PLANS];
  return row->used != 0 && row->number == (uint32_t)number && number != 0;
}

/* ---- for backends ---- */

/* The row of one end of a connection, found or made; NULL when there is no space. One thread at a time. */
struct record_link *recorder_link(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                  uint8_t proto, uint8_t conn);

/* A fresh row of a connection's proxy; NULL when there is no space, or nobody records. One thread at a time.
 */
struct record_proxy *recorder_proxy(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                    uint8_t proto, uint8_t conn);

/* The same of how long it waits; a NIC of 255 is none. */
struct record_pace *recorder_pace(const struct recorder_live *live, uint32_t peer, uint8_t channel,
                                  uint8_t device, uint8_t conn);
/* `given` more messages than before have come, and it waits for others, or for none. */
void recorder_pace_turn(struct record_pace *pace, bool waits, uint32_t given);
static inline void recorder_pace_note(struct record_pace *pace, bool waits, uint32_t given) {
  if (pace != NULL && (given > 0 || waits != (pace->since != 0))) recorder_pace_turn(pace, waits, given);
}

/* ---- for who looks on ---- */

/* Where other processes reach this one: goes into the header. */
void recorder_note_address(const char *text);

/* Where files are looked at later, this is known to have been: the process lives. Any thread. */
void recorder_note_time(void);

/* Copies what the file holds from `offset` on, as it is now; returns how many bytes of it there are, at most
 * `bytes`. Any thread. */
size_t recorder_copy(uint64_t offset, void *out, size_t bytes);

/* A communicator, for who watches whether it moves. */
struct recorder_look {
  uint64_t comm_id;
  uint64_t moves; /* changes whenever something of it moves */
  uint32_t rank;
  bool pends; /* kernels are launched that have not ended, and it is not broken */
};
/* The communicator at *offset or behind it (0: the first); *offset becomes the place behind it. False: there
 * are no more. Any thread. */
bool recorder_look_next(uint64_t *offset, struct recorder_look *look);

/* ---- for tests ---- */

/* Forgets what TUTTI_TRACE said and the file that it led to; nothing may be recorded at the time. */
void recorder_reset(void);
/* Path of the file that this process writes, "" when there is none. */
const char *recorder_path(void);

#endif
