/* replay.h: what files of records say of a job, as a script that the guarded emulator can run: communicators,
 * the launches of each rank from the first operation that has not ended everywhere, and where each rank and
 * each of its lanes stood. replay_script.c reads it, with replay_graph.c, replay_plan.c makes plans of it,
 * replay_world.c runs it, replay_state.c asks what is missing; replay.c is the verb. */
#ifndef TUTTI_SIM_REPLAY_H
#define TUTTI_SIM_REPLAY_H

#include "core/custom/custom.h"
#include "core/plan/plan.h"
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

/* Operations that go, or should have gone, to the device as one kernel. */
struct replay_launch {
  uint32_t first_op, op_count;
  uint64_t ticks;
  const struct record_plan *plan; /* NULL: its row is gone */
  bool launched;
  bool borrowed; /* the plan is another rank's, who may have had another part in it */
};

struct replay_rank {
  const struct rank_state *state; /* NULL: it left no file */
  uint32_t rank, device;          /* device: of the emulator */
  struct replay_op *ops;
  struct replay_launch *launches; /* in order; those that were not launched are the last */
  uint32_t op_count, launch_count, launched_count;
  uint64_t started, ended; /* of these launches; UINT64_MAX and 0 where nobody counted */
  uint32_t collectives;    /* called, of those that count from the communicator's begin */
  bool guessed; /* whether it has launched the graph that others are in, or that has ended, nobody tells */
};

/* How data came to outputs: by slots alone, straight where much is to be moved (cores), always straight.
 * Plans do not tell, and it matters only to lanes that wait for an address. */
enum replay_transport { TRANSPORT_SLOTS, TRANSPORT_CORES, TRANSPORT_DIRECT, TRANSPORT_COUNT };

struct replay_comm {
  const char *name;
  uint32_t rank_count;
  struct replay_rank *ranks;
  uint32_t first_collective, last_collective; /* the last one counts where a graph is under way */
  bool captured; /* a graph is: its kernels from the first to the last that a rank is in are what is replayed
                  */
  bool whole;    /* from the first operation on: counters begin with 0 */
  bool net;      /* some connections led over networks */
  uint32_t channels;                       /* most that a plan of it has */
  uint32_t slots, step_bytes[PROTO_COUNT]; /* of its connections; 0: as in production */
  uint32_t message_chunk_bytes;            /* of a plan in Simple that said so; 0: none did */
  enum replay_transport transport;
  struct graph graph;
  uint32_t fit[2]; /* which limits fitted the plan before, of messages the second: replay_plan.c */
  bool refitted;   /* messages before were planned otherwise than later ones */
  bool unlike;     /* none did, once */
};

struct replay {
  struct rank_state *states;
  struct custom_schedule *custom; /* the user's, or NULL */
  struct replay_comm *comms;
  uint32_t comm_count, device_count, seed_count;
  bool graph;          /* a graph has a kernel under way that is left out: records of its capture are gone */
  size_t buffer_bytes; /* of one rank's input, and of its output */
  uint32_t remark_count;
  char remarks[8][REPLAY_TEXT_BYTES];
};

void replay_remark(struct replay *replay, const char *format, ...) __attribute__((format(printf, 2, 3)));
void replay_say(char out[REPLAY_TEXT_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* From files to a script, which all but `custom` of *replay becomes. ncclInvalidArgument, and a sentence,
 * where they ask for more than a replay takes; ncclSystemError when memory is out. replay_free() in any case.
 */
ncclResult_t replay_read(const struct records *records, struct replay *replay);
void replay_free(struct replay *replay);
/* Finds what graphs have under way on the communicator, once its ranks have their ranks: `captured`, and the
 * first and last collective. Not where no rank is in a graph, or records of its capture are gone. */
void replay_graph_find(struct replay_comm *comm);
/* How far each rank is in it, once its ranks have their launches. */
void replay_graph_count(struct replay *replay, struct replay_comm *comm);
/* Whether ranks of which it is not known have launched the graph, and ended it, or have not. False: there is
 * no such rank. */
bool replay_graph_guess(struct replay *replay, bool ended);
/* The call of this collective that most ranks made, and one of those ranks; NULL: nobody made any. */
const struct record_call *replay_majority(const struct replay_comm *comm, uint32_t collective,
                                          const struct replay_rank **of);
/* The rank's own call of it; NULL: there is none. */
const struct record_call *replay_find(const struct replay_rank *rank, uint32_t collective);
/* They are the same collective with the same arguments. */
bool replay_calls_agree(const struct record_call *left, const struct record_call *right);

/* The plan of these operations for one rank, as like the recorded one as can be; `memory` is where the rank's
 * input begins, its output lies replay->buffer_bytes behind. plan_free() it. */
ncclResult_t replay_plan(struct replay *replay, struct replay_comm *comm, const struct replay_rank *rank,
                         const struct replay_op *ops, const struct replay_launch *launch, uint8_t *memory,
                         struct plan *plan);

/* Of all its connections. */
void replay_limits(const struct replay_comm *comm, struct plan_limits *limits);

/* ---- runs ---- */

/* What a rank may still be waited for: that it calls, launches, or starts a kernel; or that something it
 * sent, or freed, arrives. */
enum replay_event_kind { EVENT_CALL, EVENT_LAUNCH, EVENT_START, EVENT_SEND, EVENT_RECV, EVENT_MOVE };
struct replay_event {
  enum replay_event_kind kind;
  uint32_t comm, rank;
  uint32_t channel, last_channel; /* the same on all of these */
  uint64_t number;                /* of the step: what the waiting end needs its counter to say */
  uint32_t waiter, lane;          /* whose lane waits for what was sent or freed */
  bool replaces; /* a call that was another one: what others made of that is as if it had not been */
  char why[REPLAY_TEXT_BYTES];
};
#define REPLAY_SEVERAL UINT64_MAX /* a number: connections count differently */
#define REPLAY_EVENTS_MOST 64
void replay_event_text(const struct replay *replay, const struct replay_event *event,
                       char out[REPLAY_TEXT_BYTES]);

struct replay_mark { /* a lane's step, for --until */
  uint32_t rank, channel;
  uint64_t step;
};
struct replay_scenario {
  uint64_t seed;
  enum replay_transport transport;
  const struct replay_event *injected; /* which of those below happens; NULL: none */
  const struct replay_event *missing;  /* the others go on missing */
  uint32_t missing_count;
  bool goes_on;                    /* beyond the recorded stop */
  const struct replay_mark *until; /* NULL: as far as it goes */
  uint64_t event_limit;            /* beyond the recorded stop; 0: as far as it goes */
  bool assumes;                    /* ranks without files did what the others did */
  bool holds_seen;                 /* where counters say, also lanes of which nothing else is told */
  void (*look)(void *argument);    /* called where it stands in the end, before all of it goes */
  void *argument;
};

struct replay_outcome {
  bool reached;                   /* the recorded state */
  char reason[REPLAY_TEXT_BYTES]; /* why it was not */
  struct replay_event events[REPLAY_EVENTS_MOST];
  uint32_t event_count, unended;      /* unended: launches that have not, or that were never made */
  uint64_t ended, events_run;         /* launches that have */
  bool until_reached, failed, moving; /* failed: ranks called different things */
  char stop[REPLAY_TEXT_BYTES];       /* where it stops, or what failed */
};
/* The place that these words name; the missing event that they mean, NULL: none of them. */
bool replay_mark_parse(const char *from, struct replay_mark *mark);
const struct replay_event *replay_event_find(const struct replay *replay,
                                             const struct replay_outcome *outcome, const char *from);
/* ncclSuccess also where the state is not reached. */
ncclResult_t replay_run(struct replay *replay, const struct replay_scenario *scenario,
                        struct replay_outcome *outcome);
/* From within look(): prints the lanes that have not ended, of one rank or (REPLAY_NONE) of all. */
void replay_print_lanes(uint32_t rank, uint32_t most);

#endif
