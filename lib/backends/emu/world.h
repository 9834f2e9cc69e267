/* world.h: the emulated machine, shared by all emulated devices of the process: its lock, its options, the
 * guarded scheduler, which runs one actor's event at a time by a seeded rule, and the waiting of host
 * threads. It does not know what actors do.
 *
 * guarded mode: nothing has a thread of its own. Host threads that wait (cudaStreamSynchronize, blocking
 * inits, ...) run the events: once every thread that owns a rank is inside a waiting call, the last one to
 * arrive runs events until some waiter's condition holds. Which actor runs depends only on the seed and on
 * earlier events, never on which thread enqueued first: actors woken from outside the event loop enter the
 * ready set in the order of their keys. threads mode: actors are not used; streams and blocks are pthreads;
 * waiters sleep on the world's condition variable.
 */
#ifndef TUTTI_BACKENDS_EMU_WORLD_H
#define TUTTI_BACKENDS_EMU_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum emu_mode { EMU_GUARDED, EMU_THREADS };
enum emu_rule { EMU_RULE_RANDOM, EMU_RULE_PRIORITY, EMU_RULE_ROUND_ROBIN };

/* From TUTTI_SEED, TUTTI_EMU and TUTTI_EVENTS, or tutti_emu_configure(); fixed once the world is in use. */
struct emu_options {
  enum emu_mode mode;
  enum emu_rule rule;
  uint64_t seed;
  uint32_t device_count;                                 /* emulated GPUs */
  uint32_t node_count;                                   /* the devices are divided into these, in order */
  uint32_t slots, chunk_bytes, channel_count, flag_bits; /* 0 = the production value */
  uint32_t depth;                                        /* slices in flight per lane, 1..LANE_DEPTH_MAX */
  uint32_t lag;        /* percent of slices whose data is moved at their finish instead of at their begin */
  uint32_t span_lines; /* lines of LL or LL128 that one event carries at most */
  bool direct;         /* offer direct stores between ranks */
  uint32_t inputs; /* direct collectives over Simple read the inputs of others in place: 0 never, 1 where they
                      can be reached, 2 over half of those links */
  bool both_ends;  /* connections between processes need handles from both ends, as on GPUs */
  bool order;      /* the processes of a host have one order of events (order.h) */
  bool weak, tear; /* see weak.h; lines of 128 bytes arrive in pieces */
  uint32_t weaken; /* enum weak_point: what is left out of the protocol */
  bool net;        /* nodes are connected by the emulated network (network.c) */
  uint32_t nic_count;     /* NICs per node; 0: one for each of its GPUs, at most 8 */
  uint32_t net_delay;     /* the longest delay of a message, in the network's turns */
  uint32_t fault;         /* enum fault_kind of fault.h */
  uint32_t fault_at;      /* number of the message with the fault, from 1; 0: drawn from the seed */
  uint64_t stall_seconds; /* TUTTI_STALL_SECONDS when the settings were read */
};
const struct emu_options *emu_options(void);
/* Checks TUTTI_EMU alone, and changes nothing; false with a sentence in `fault` if it is wrong. */
bool emu_settings_check(char *fault, size_t fault_bytes);

/* Something that the guarded scheduler runs. Embedded in its owner's struct; the calls below need the lock.
 */
struct emu_actor;
struct emu_actor_ops {
  bool (*enabled)(struct emu_actor *actor); /* can it run an event now? no side effect */
  void (*run)(struct emu_actor *actor);     /* one event; called only when enabled; may end the actor */
};
struct emu_actor {
  const struct emu_actor_ops *ops;
  uint64_t key;         /* unique, and the same on every run: (device, stream, ...), see stream.h */
  uint32_t ready_index; /* place in the ready set + 1; 0 = not in it */
  uint32_t pending;     /* woken from outside the event loop, and not yet in the ready set */
  uint64_t priority;    /* for EMU_RULE_PRIORITY */
};
void emu_actor_init(struct emu_actor *actor, const struct emu_actor_ops *ops, uint64_t key);
void emu_actor_wake(struct emu_actor *actor);   /* its enabled() may have become true; harmless otherwise */
void emu_actor_remove(struct emu_actor *actor); /* must be called before its memory is freed */

void emu_lock(void);
void emu_unlock(void);
/* To be called after a change of anything that a host waiter's condition may depend on. Locked. */
void emu_changed(void);

/* Waits, with the world locked, until done(argument) is true, or a deadlock is found (guarded: no actor can
 * run and every owner waits; the log gets one sentence per stuck lane, and their ranks fail with
 * ncclRemoteError), or the deadline has passed (ncclInProgress; deadline_ms 0 = none). May release the lock
 * while waiting. */
ncclResult_t emu_wait(bool (*done)(void *argument), void *argument, uint64_t deadline_ms);
/* For queries in polling loops. guarded: waits as emu_wait does, but for at most `event_count` further
 * events, or until no actor can run. threads: yields. */
void emu_poll(bool (*done)(void *argument), void *argument, uint32_t event_count);

/* The owner of a rank is the thread that makes its calls. A thread that ends loses all of its ranks. */
struct emu_owner;
void emu_owner_set(struct emu_owner **slot); /* the calling thread becomes the owner */
void emu_owner_clear(struct emu_owner **slot);

/* Runs user code (a host callback) in the middle of an event, without the lock. */
void emu_call_out(void (*function)(void *argument), void *argument);

/* Adds to the hash and the trace that a stream's actor executes an operation of this kind. guarded mode only.
 */
void emu_trace_actor(const struct emu_actor *actor, uint8_t operation);

uint64_t emu_random(void);  /* the world's own seeded stream; locked; guarded mode only */
extern uint64_t emu_events; /* events run since the start; written only by world.c */
static inline uint64_t emu_event_count(void) { return emu_events; }
uint64_t emu_clock_ns(void); /* guarded: modelled, a function of events; threads: real */

/* How many polls without progress a kernel's thread makes before it leaves the core to others for a while.
 * The number is halved each time, so that a job that makes no progress does not keep its cores busy. */
#define EMU_PATIENCE 4096u
#define EMU_PATIENCE_LEAST 8u
static inline uint32_t emu_patience_next(uint32_t patience, bool moved) {
  if (moved) return EMU_PATIENCE;
  return patience > EMU_PATIENCE_LEAST ? patience / 2 : patience;
}

#endif
