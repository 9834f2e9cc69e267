/* replay_session.h: a replay that is stepped by commands: replay_session.c reads and runs them,
 * replay_break.c stops at places, replay_view.c prints ranks, lanes, plans and who waits for whom. */
#ifndef TUTTI_SIM_REPLAY_SESSION_H
#define TUTTI_SIM_REPLAY_SESSION_H

#include <stdio.h>

#include "option.h"
#include "replay/replay_world.h"
#include "trace/trace.h"

struct session_flags {
  const struct option_list *commands; /* run first, in order */
  const char *file;                   /* of commands, which run after those; NULL: none */
  bool keeps_going;                   /* after a command that fails */
};

/* Runs a session on a script; `scenario` is how its recorded state was reached, `base` the outcome. 0, or
 * the exit code of a failed command. */
int session_run(struct replay *replay, const struct replay_scenario *scenario,
                const struct replay_outcome *base, const struct session_flags *flags);

/* ---- replay_break.c ---- */

/* From within an event: notes whether the record is of a place where to stop. */
void break_watch(const struct trace_record *record);
/* After an event: the number of the breakpoint that it has come to; 0: none. */
uint32_t break_take(void);
/* False, with a sentence. `event`: stop at that event; UINT64_MAX: at the place. */
bool break_add(const struct replay_place *place, uint64_t event, const char *words,
               char why[REPLAY_TEXT_BYTES]);
bool break_delete(uint64_t number); /* 0: all */
void break_print(void);
bool break_any(void);

/* ---- replay_view.c: with the world locked ---- */

void view_ranks(void);
void view_waits(void);
/* Every lane of these; false: there is none. */
bool view_lanes(const struct replay_place *place);
/* The plan of the operation, or of the rank's current one. False, with a sentence. */
bool view_plan(const struct replay_place *place, char why[REPLAY_TEXT_BYTES]);
/* Whether a place names this communicator and rank. */
bool place_has_rank(const struct replay_place *place, const struct device_comm *comm);
/* The function of an operation of a rank, an enum work_func. */
uint32_t operation_func(const struct device_comm *comm, uint64_t sequence, uint32_t usual);

#endif
