/* world.h: the emulated machine that all emulated devices of the process share: its lock, its options, the
 * guarded scheduler that moves one actor at a time by a seeded rule, and the waiting of host threads. Knows
 * nothing of what actors do.
 *
 * guarded mode: nothing has a thread of its own. Host threads that wait (cudaStreamSynchronize, blocking
 * inits, ...) lend their time: when every thread that owns a rank is inside a waiting call, the last one to
 * arrive moves actors until some waiter's condition holds. Which actor moves depends on the seed and on
 * earlier events only, never on which thread enqueued first: actors woken from outside the pump are put into
 * the ready set in the order of their keys. threads mode: actors are not used; streams and blocks are
 * pthreads; waiters sleep on the world's condition variable. */
#ifndef TUTTI_BACKENDS_EMU_WORLD_H
#define TUTTI_BACKENDS_EMU_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum emu_mode { EMU_GUARDED, EMU_THREADS };
enum emu_rule { EMU_RULE_RANDOM, EMU_RULE_PRIORITY, EMU_RULE_ROUND_ROBIN };

/* From TUTTI_SEED, TUTTI_EMU and TUTTI_EVENTS, or tutti_emu_configure(); fixed from the first use of the
 * world on. */
struct emu_options {
  enum emu_mode mode;
  enum emu_rule rule;
  uint64_t seed;
  uint32_t device_count;                                 /* emulated GPUs */
  uint32_t node_count;                                   /* that these are divided into, in order */
  uint32_t slots, chunk_bytes, channel_count, flag_bits; /* 0 = the production value */
  uint32_t depth;                                        /* slices in flight a lane, 1..LANE_DEPTH_MAX */
  uint32_t lag;           /* percent of events whose data is moved late, at finish instead of at begin */
  uint32_t span_lines;    /* lines that one event of a line protocol carries; 0 = all that are ready */
  bool direct;            /* offer direct stores between ranks */
  bool both_ends;         /* of connections between processes are asked for, as GPUs need it */
  bool weak, tear;        /* see weak.h; lines of 128 bytes arrive in pieces */
  uint32_t weaken;        /* enum weak_point: what is left out of the protocol */
  bool net;               /* nodes are joined by the emulated network (network.c) */
  uint32_t nic_count;     /* of a node; 0: one for each of its GPUs, 8 at most */
  uint32_t net_delay;     /* most turns of the network that a message takes */
  uint32_t fault;         /* enum fault_kind of fault.h */
  uint32_t fault_at;      /* message that it happens to, from 1; 0: drawn from the seed */
  uint64_t stall_seconds; /* TUTTI_STALL_SECONDS when the settings were read */
};
const struct emu_options *emu_options(void);

/* One thing that moves. Embedded in the owner's struct; all calls below with the world locked. */
struct emu_actor;
struct emu_actor_ops {
  bool (*enabled)(struct emu_actor *actor); /* may it move now? no side effect */
  void (*move)(struct emu_actor *actor);    /* one event; called only when enabled; may end the actor */
};
struct emu_actor {
  const struct emu_actor_ops *ops;
  uint64_t
      key; /* unique and the same on every run: (device, stream, ...), see stream.h; orders outside wakes */
  uint32_t ready_index; /* place in the ready set + 1; 0 = not in it */
  uint32_t pending;     /* woken from outside the pump, not yet sorted in */
  uint64_t priority;    /* for EMU_RULE_PRIORITY */
};
void emu_actor_init(struct emu_actor *actor, const struct emu_actor_ops *ops, uint64_t key);
void emu_actor_wake(struct emu_actor *actor);   /* its enabled() may have become true; harmless otherwise */
void emu_actor_remove(struct emu_actor *actor); /* must be called before the memory goes */

void emu_lock(void);
void emu_unlock(void);
/* Call after changing anything a host waiter's condition may depend on. Locked. */
void emu_changed(void);

/* Waits, with the world locked, until done(argument) or until nothing can move any more (guarded: every actor
 * is stuck and every owner waits; the verdict is logged once, with one sentence per stuck lane, and their
 * ranks fail with ncclRemoteError) or until the deadline (ncclInProgress; deadline_ms 0 = none). May release
 * the lock while waiting. */
ncclResult_t emu_wait(bool (*done)(void *argument), void *argument, uint64_t deadline_ms);
/* For queries in polling loops: guarded: waits as emu_wait does, but at most until `event_count` further
 * moves were made, or nothing can move. Threads: yields. */
void emu_poll(bool (*done)(void *argument), void *argument, uint32_t event_count);

/* Who drives ranks: the calling thread gains or loses one. A thread that ends loses all of its ranks. */
struct emu_owner;
void emu_owner_set(struct emu_owner **slot); /* the calling thread takes *slot over from whoever had it */
void emu_owner_clear(struct emu_owner **slot);

/* Runs user code (a host callback) in the middle of a move: drops the lock around it. */
void emu_call_out(void (*function)(void *argument), void *argument);

/* Notes in hash and trace that an actor of a stream carries out an operation of this kind. guarded mode only.
 */
void emu_trace_actor(const struct emu_actor *actor, uint8_t operation);

uint64_t emu_random(void);  /* the world's own seeded stream; locked; guarded mode only */
extern uint64_t emu_events; /* events run since start; changed by the world alone */
static inline uint64_t emu_event_count(void) { return emu_events; }
uint64_t emu_clock_ns(void); /* guarded: modelled, a function of events; threads: real */

/* How many looks find that a kernel waits before its thread leaves the core to others for a while: half as
 * many each time that nothing has moved, since a job that makes no progress is to leave its cores to others.
 */
#define EMU_PATIENCE 4096u
#define EMU_PATIENCE_LEAST 8u
static inline uint32_t emu_patience_next(uint32_t patience, bool moved) {
  if (moved) return EMU_PATIENCE;
  return patience > EMU_PATIENCE_LEAST ? patience / 2 : patience;
}

#endif
