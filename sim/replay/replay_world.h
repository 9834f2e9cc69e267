/* replay_world.h: a script while it runs: what replay_world.c, which makes and runs it, and replay_state.c,
 * which examines it, share. */
#ifndef TUTTI_SIM_REPLAY_WORLD_H
#define TUTTI_SIM_REPLAY_WORLD_H

#include "backends/emu/scheduler_gate.h"
#include "replay/replay.h"

/* A lane with a recorded place. */
struct target {
  const struct record_lane *row;
  uint32_t slice; /* of the step: the next one to begin */
  struct emu_lane *live;
  bool seen, present, held; /* it was recorded; it exists now; it is at its recorded place */
  bool carries;             /* LL: the lines of the step were sent, but the step was not posted */
  bool stale;               /* its connections were recorded after it had continued: they are not usable */
  bool missing;             /* it keeps waiting although what it waits for has arrived */
  uint64_t steps;           /* steps so far */
};

struct live_rank {
  const struct replay_rank *script;
  struct device_comm *device;
  struct target *targets;
  uint32_t target_count;
  uint64_t launched;      /* here */
  uint64_t may_start;     /* launches */
  bool wanted;            /* another one could start, but for that limit */
  uint32_t messages_made; /* the missing ones */
};

struct stream_of {
  uint32_t device;
  uint64_t handle;
  const struct record_file *file;
  cudaStream_t stream;
};

/* First every lane is held at its recorded place; when nothing moves, senders over networks get the slots of
 * both ends; when nothing moves again, the state is examined, and if the run goes on, the holds are lifted.
 */
enum replay_phase { PHASE_HELD, PHASE_CREDIT, PHASE_LIFTED };

struct replay_world {
  enum replay_phase phase;
  struct replay *replay;
  const struct replay_scenario *scenario;
  const struct backend *ops;
  struct live_rank **ranks; /* by communicator, then by rank */
  struct stream_of *streams;
  uint32_t stream_count;
  uint8_t *memory;
  size_t stride;        /* distance between ranks; 0: all share */
  uint64_t launches;    /* made, of all ranks */
  bool lifted, stopped; /* holds are lifted; the awaited lane has arrived */
  bool credit;          /* senders over networks may be ahead by the slots of both ends */
  bool failed;
  char failure[REPLAY_TEXT_BYTES];
};
extern struct replay_world world; /* one, because the emulator belongs to the process */

/* The lane's target, NULL: it is not held. */
struct target *target_of(const struct emu_lane *emu);
/* The link of a lane that its row describes, and its connection; NULL: there is none. */
struct link *target_link(struct emu_lane *emu, const struct record_lane *row, struct emu_conn **conn);
/* What the rank recorded for one end of a connection; NULL: nothing. */
const struct record_link *link_row(const struct live_rank *rank, const struct work *work, uint32_t peer,
                                   bool sends);
/* The launch, its plan and its connections. */
ncclResult_t launch_make(uint32_t comm_index, uint32_t r, const struct replay_op *ops,
                         const struct replay_launch *launch);

/* The step at which the operation began on this link. */
uint64_t link_begin(const struct work *work, const struct link *link, bool sends);
/* The lane's rank, as it runs here. */
struct live_rank *live_of(const struct device_comm *comm);

/* replay_seen.c. The rank's rows come from counters in memory that were read from outside. */
bool rank_is_seen(const struct live_rank *rank);
/* As target_allows() in replay_world.c, for such a rank; `late`: the action ends a move that has begun. */
uint32_t seen_allows(struct target *target, uint32_t actions, uint32_t late);
/* The step at which, by its own count, the rank began the operation at this end of a connection. */
uint64_t seen_begin(const struct emu_lane *emu, const struct link *link, bool sends,
                    const struct record_link *row);
/* The greatest possible value of a counter of this end if kernels post differently from a lane; else 0. */
uint64_t seen_most(const struct emu_lane *emu, const struct link *link, bool sends);

/* replay_calls.c. A recorded launch, changed by the injected event; the launch that an event adds when
 * nothing moves; and assumptions about ranks without files. */
ncclResult_t calls_make_recorded(uint32_t comm_index, uint32_t r, uint32_t index);
ncclResult_t calls_make_event(const struct replay_event *event);
ncclResult_t calls_assume(void);
/* Halves of messages that others called and this rank did not; `found` may be NULL. */
uint32_t messages_missing(const struct replay_comm *comm, uint32_t r, struct replay_op *found);

/* replay_state.c. Locked: compares the state with the record, and finds what is missing. */
void state_compare(struct replay_outcome *outcome);
void state_find_events(struct replay_outcome *outcome);
/* Every lane that has not ended, in the order of communicators and ranks. */
typedef bool (*lane_seen)(void *argument, struct emu_lane *emu); /* false: stop */
void lanes_each(lane_seen seen, void *argument);
/* What is equal on several channels of a rank: the operation, its step, what it waits for. */
void lane_say_wait(struct emu_lane *emu, char out[REPLAY_TEXT_BYTES]);
/* What has ended, and where the rest waits. */
void state_sum(struct replay_outcome *outcome);

#endif
