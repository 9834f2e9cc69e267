/* replay_world.h: a script while it runs: what replay_world.c, which makes and moves it, and replay_state.c,
 * which looks at it, share. */
#ifndef TUTTI_SIM_REPLAY_WORLD_H
#define TUTTI_SIM_REPLAY_WORLD_H

#include "backends/emu/scheduler_gate.h"
#include "replay/replay.h"

/* A lane that stood somewhere. */
struct target {
  const struct record_lane *row;
  uint32_t slice; /* of the step: the next one to begin */
  struct emu_lane *live;
  bool seen, present, held; /* it was there at all; is there now; stands where it was */
  bool carries;             /* lines: those of the step had gone, and it was not posted */
  bool stale;               /* its connections were noted when it had gone on: it says nothing */
  bool missing;             /* it goes on waiting although what it waits for is there */
  uint64_t steps;           /* how far it came */
};

struct live_rank {
  const struct replay_rank *script;
  struct device_comm *device;
  struct target *targets;
  uint32_t target_count;
  uint64_t launched;      /* here */
  uint64_t may_start;     /* launches */
  bool wanted;            /* another one could start, but for that */
  uint32_t messages_made; /* of those that were missing */
};

struct stream_of {
  uint32_t device;
  uint64_t handle;
  const struct record_file *file;
  cudaStream_t stream;
};

struct replay_world {
  struct replay *replay;
  const struct replay_scenario *scenario;
  const struct backend *ops;
  struct live_rank **ranks; /* by communicator, then by rank */
  struct stream_of *streams;
  uint32_t stream_count;
  uint8_t *memory;
  size_t stride;        /* from rank to rank; 0: all share */
  uint64_t launches;    /* made, of all ranks */
  bool lifted, stopped; /* holds are lifted; the lane that is waited for has come there */
  bool failed;
  char failure[REPLAY_TEXT_BYTES];
};
extern struct replay_world world; /* the emulator is the process's, so there is one */

/* The lane's target, NULL: it may go where it likes. */
struct target *target_of(const struct emu_lane *emu);
/* The link of a lane that its row is about, and its connection; NULL: there is none. */
struct link *target_link(struct emu_lane *emu, const struct record_lane *row, struct emu_conn **conn);
/* What the rank noted of one end of a connection; NULL: nothing. */
const struct record_link *link_row(const struct live_rank *rank, const struct work *work, uint32_t peer,
                                   bool sends);
/* The launch, its plan and its connections. */
ncclResult_t launch_make(uint32_t comm_index, uint32_t r, const struct replay_op *ops,
                         const struct replay_launch *launch);

/* Where the operation at this link began, in steps. */
uint64_t link_begin(const struct work *work, const struct link *link, bool sends);
/* The lane's rank, as it runs here. */
struct live_rank *live_of(const struct device_comm *comm);

/* replay_seen.c. Rows of this rank come from counters in memory, looked at from outside. */
bool rank_is_seen(const struct live_rank *rank);
/* As target_allows() in replay_world.c, for such a rank; `late`: what ends a move that has begun. */
uint32_t seen_allows(struct target *target, uint32_t actions, uint32_t late);
/* Where, by its own count, the rank had begun the operation at this end of a connection. */
uint64_t seen_begin(const struct emu_lane *emu, const struct link *link, bool sends,
                    const struct record_link *row);
/* What a counter of this end may say at most where kernels tell theirs otherwise than a lane does; else 0. */
uint64_t seen_most(const struct emu_lane *emu, const struct link *link, bool sends);

/* replay_calls.c. A recorded launch, with what the injected event makes of it; what an event adds when all
 * stands; and what is assumed of ranks without files. */
ncclResult_t calls_make_recorded(uint32_t comm_index, uint32_t r, uint32_t index);
ncclResult_t calls_make_event(const struct replay_event *event);
ncclResult_t calls_assume(void);
/* Halves of messages that others called and this rank did not; `found` may be NULL. */
uint32_t messages_missing(const struct replay_comm *comm, uint32_t r, struct replay_op *found);

/* replay_state.c. Locked: compares what stands with the record, and finds what was missing. */
void state_compare(struct replay_outcome *outcome);
void state_find_events(struct replay_outcome *outcome);
/* What has ended, and where the rest stands. */
void state_sum(struct replay_outcome *outcome);

#endif
