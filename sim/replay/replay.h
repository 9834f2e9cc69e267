/* replay.h: a job's records as a script that the guarded emulator can run: communicators, the launches of
 * each rank from the first operation that has not ended on every rank, and the recorded state of each rank
 * and each of its lanes. replay_script.c, with replay_graph.c, reads it; replay_plan.c makes its plans;
 * replay_world.c runs it; replay_state.c finds what is missing; replay.c is the verb. */
#ifndef TUTTI_SIM_REPLAY_H
#define TUTTI_SIM_REPLAY_H

#include "core/custom/custom.h"
#include "core/plan/plan_inputs.h"
#include "explain/rank_state.h"
#include "files/records.h"

#define REPLAY_NONE UINT32_MAX
#define REPLAY_TEXT_BYTES 512

/* An operation that a rank called, or should have. */
struct replay_op {
  struct record_call call;
  struct record_place place;
  uint64_t sequence;
};

/* Operations that one kernel launch contains, or should contain. */
struct replay_launch {
  uint32_t first_op, op_count;
  uint64_t ticks;
  const struct record_plan *plan; /* NULL: its row is overwritten */
  bool launched;
  bool borrowed; /* the plan is another rank's, which may have had a different part in it */
};

struct replay_rank {
  const struct rank_state *state; /* NULL: it left no file */
  uint32_t rank, device;          /* device: of the emulator */
  struct replay_op *ops;
  struct replay_launch *launches; /* in order; launches that were not made are the last */
  uint32_t op_count, launch_count, launched_count;
  uint64_t started, ended; /* of these launches; UINT64_MAX and 0 if not counted */
  uint32_t collectives;    /* called, counted from the communicator's creation */
  bool guessed;            /* unknown whether it has launched the graph that others run or have ended */
};

/* How data reached outputs: only through slots, directly for large amounts (cores), always directly. Plans do
 * not record it, and it matters only to lanes that wait for an address. */
enum replay_transport { TRANSPORT_SLOTS, TRANSPORT_CORES, TRANSPORT_DIRECT, TRANSPORT_COUNT };

struct replay_comm {
  const char *name;
  uint32_t rank_count;
  struct replay_rank *ranks;
  uint32_t first_collective, last_collective; /* the last one counts only during a graph */
  bool captured;     /* a graph runs: its kernels from the first to the last that a rank is in are replayed */
  bool whole;        /* from the first operation on: counters begin with 0 */
  bool net;          /* some connections led over networks */
  bool overtaken;    /* recorded after another communicator had failed (replay_failed.c) */
  uint32_t channels; /* most that a plan of it has */
  uint32_t slots, step_bytes[PROTO_COUNT]; /* of its connections; 0: production's */
  uint32_t message_chunk_bytes;            /* of a plan in Simple that recorded it; 0: none did */
  enum replay_transport transport;
  struct graph graph;
  bool known; /* the records hold what its plans were made from: */
  struct plan_inputs inputs;
  uint32_t fit[2]; /* which limits matched the previous plan, second for messages: replay_plan.c */
  bool refitted;   /* earlier messages were planned differently from later ones */
  bool unlike;     /* at least once, no limits matched */
};

struct replay {
  struct rank_state *states;
  struct custom_schedule *custom; /* the user's schedule, or NULL */
  struct replay_comm *comms;
  uint32_t comm_count, device_count, seed_count;
  bool graph;          /* a running kernel of a graph is left out: records of its capture are overwritten */
  size_t buffer_bytes; /* of one rank's input, and of its output */
  uint32_t remark_count;
  char remarks[8][REPLAY_TEXT_BYTES];
};

void replay_remark(struct replay *replay, const char *format, ...) __attribute__((format(printf, 2, 3)));
void replay_say(char out[REPLAY_TEXT_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes a script from files: fills all of *replay but `custom`. ncclInvalidArgument, and a sentence, if the
 * files exceed a limit of replay; ncclSystemError when memory is out. Call replay_free() in any case. */
ncclResult_t replay_read(const struct records *records, struct replay *replay);
void replay_free(struct replay *replay);
/* Finds which kernels of graphs the communicator runs, when its ranks are known: `captured`, and the first
 * and last collective. Not if no rank is in a graph, or records of its capture are overwritten. */
void replay_graph_find(struct replay_comm *comm);
/* How far each rank is in the graph, when its launches are known. */
void replay_graph_count(struct replay *replay, struct replay_comm *comm);
/* Sets whether ranks whose state in the graph is unknown have launched and ended it, or not begun. False:
 * there is no such rank. */
bool replay_graph_guess(struct replay *replay, bool ended);
/* Sets `overtaken` where it is so, when all communicators are read. */
void replay_find_overtaken(struct replay *replay);
/* The call of this collective that most ranks made, and one of those ranks; NULL: no rank made it. */
const struct record_call *replay_majority(const struct replay_comm *comm, uint32_t collective,
                                          const struct replay_rank **of);
/* The rank's own call of it; NULL: there is none. */
const struct record_call *replay_find(const struct replay_rank *rank, uint32_t collective);
/* Whether they are the same collective with the same arguments. */
bool replay_calls_agree(const struct record_call *left, const struct record_call *right);

/* The plan of these operations for one rank. If the records hold the inputs of plans, it is the recorded
 * plan, or ncclInvalidArgument, with a sentence that says what differs; else it is as close as possible;
 * `memory` is where the rank's input begins, its output is replay->buffer_bytes after it. Free with
 * plan_free(). */
ncclResult_t replay_plan(struct replay *replay, struct replay_comm *comm, const struct replay_rank *rank,
                         const struct replay_op *ops, const struct replay_launch *launch, uint8_t *memory,
                         struct plan *plan);

/* Of all its connections. */
void replay_limits(const struct replay_comm *comm, struct plan_limits *limits);

/* ---- runs ---- */

/* What other ranks may wait for: that a rank calls, launches, or starts a kernel; or that something it sent
 * or freed arrives. */
enum replay_event_kind { EVENT_CALL, EVENT_LAUNCH, EVENT_START, EVENT_SEND, EVENT_RECV, EVENT_MOVE };
struct replay_event {
  enum replay_event_kind kind;
  uint32_t comm, rank;
  uint32_t channel, last_channel; /* the same on all of these */
  uint64_t number;                /* of the step: the counter value that the waiting end needs */
  uint32_t waiter, lane;          /* the lane that waits for what was sent or freed */
  bool replaces;                  /* it replaces a wrong call: the effects of that on others are undone */
  char why[REPLAY_TEXT_BYTES];
};
#define REPLAY_SEVERAL UINT64_MAX /* a number: it differs between connections */
#define REPLAY_EVENTS_MOST 64
void replay_event_text(const struct replay *replay, const struct replay_event *event,
                       char out[REPLAY_TEXT_BYTES]);

struct replay_mark { /* a lane's step, for --until */
  uint32_t rank, channel;
  uint64_t step;
};
/* A place in a session: what a breakpoint or a command names. Members that the words leave out are
 * REPLAY_NONE, UINT64_MAX or NULL. */
struct replay_place {
  uint32_t rank, channel, lane, func;
  uint64_t step, sequence, count; /* sequence: of the operation; count: a bare number at the end */
  uint32_t comm;                  /* index */
};
struct replay_scenario {
  uint64_t seed;
  enum replay_transport transport;
  const struct replay_event *injected; /* which of the events below to inject; NULL: none */
  const struct replay_event *missing;  /* the others stay missing */
  uint32_t missing_count;
  bool goes_on;                    /* continues after the recorded state */
  const struct replay_mark *until; /* NULL: as far as possible */
  uint64_t event_limit;            /* after the recorded state; 0: as far as possible */
  bool assumes;                    /* ranks without files did what the others did */
  bool holds_seen;                 /* where only counters are known, holds also lanes without other records */
  void (*look)(void *argument);    /* called in the final state, before the run is torn down */
  void *argument;
};

struct replay_outcome {
  bool reached;                   /* the recorded state */
  char reason[REPLAY_TEXT_BYTES]; /* why it was not */
  struct replay_event events[REPLAY_EVENTS_MOST];
  uint32_t event_count, unended;      /* unended: launches that have not ended, or were never made */
  uint64_t ended, events_run;         /* launches that have ended */
  bool until_reached, failed, moving; /* failed: ranks called different operations */
  char stop[REPLAY_TEXT_BYTES];       /* where it stops, or what failed */
};
/* Parses a place; finds the missing event that these words name, NULL: none. */
bool replay_mark_parse(const char *from, struct replay_mark *mark);
const struct replay_event *replay_event_find(const struct replay *replay,
                                             const struct replay_outcome *outcome, const char *from);
/* Parses `rank 2 channel 0 lane 1 step 5 op all_reduce #3 comm NAME 10`, any of them. False, with a sentence.
 */
bool replay_place_parse(const struct replay *replay, const char *from, struct replay_place *place,
                        char why[REPLAY_TEXT_BYTES]);
/* ncclSuccess also if the state is not reached. */
ncclResult_t replay_run(struct replay *replay, const struct replay_scenario *scenario,
                        struct replay_outcome *outcome);
/* The same in pieces: begins a run, which replay_end() ends; advances it to event number `event` (*more: it
 * is there; false: the run ends before it). `outcome` is of this run, initially all zero. */
ncclResult_t replay_begin(struct replay *replay, const struct replay_scenario *scenario);
ncclResult_t replay_advance(uint64_t event, struct replay_outcome *outcome, bool *more);
void replay_end(void);
/* From within look(): prints the lanes that have not ended, of one rank or (REPLAY_NONE) of all. */
void replay_print_lanes(uint32_t rank, uint32_t most);

#endif
