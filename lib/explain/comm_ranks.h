/* comm_ranks.h: the recorded ranks of one communicator, and the helpers that all diagnoses of a communicator
 * share: lookup of ranks and calls, and the text of sentences and evidence lines. */
#ifndef TUTTI_EXPLAIN_COMM_RANKS_H
#define TUTTI_EXPLAIN_COMM_RANKS_H

#include <stdio.h>

#include "explain/call_site.h"
#include "explain/diagnose.h"
#include "explain/rank_state.h"

struct comm_ranks {
  struct rank_state *states;    /* ordered by rank; a rank without a file has no entry */
  uint32_t count, rank_count;   /* entries in states; size of the communicator */
  const struct rank_state *all; /* the ranks of all communicators in the files */
  uint32_t all_count;
  struct diagnosis *diagnosis;
};

/* ---- text ---- */

/* Formats into `out`, which has DIAGNOSIS_TEXT_BYTES. */
void say(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Adds a line of evidence to the diagnosis. */
void show(struct diagnosis *diagnosis, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *ranks_comm_name(const struct comm_ranks *ranks, char out[64]);

/* A list of ranks as text: "0-3, 7". Ranks are added in increasing order. */
struct rank_list {
  char text[256];
  size_t used;
  uint32_t count, first, last;
};

void list_add(struct rank_list *list, uint32_t rank);
const char *list_end(struct rank_list *list);
static inline const char *ranks_word(const struct rank_list *list) {
  return list->count == 1 ? "rank" : "ranks";
}

/* "rank 2 (process 4711 on node3)"; in a communicator of a part of the job's ranks "rank 2 (global rank 6,
 * device 1, process 4711 on node3)". */
void rank_place(const struct rank_state *state, char out[160]);
void call_text(const struct record_call *call, char out[160]);
/* How the rank's process ended: "exited with status 3". */
void gone_text(const struct rank_state *state, char out[64]);
/* How long the ranks had been in this collective: ", for 6 s when the files were taken"; "" if not for long.
 */
void waited_text(const struct comm_ranks *ranks, const struct record_call *call, char out[64]);
/* Describes what a rank does that has not made a call which other ranks have made. */
void absent_text(const struct rank_state *state, char *out, size_t out_bytes);

/* Sets the kind of the diagnosis, its detail, and the rank that is the root cause. */
void blame(struct comm_ranks *ranks, enum diagnosis_kind kind, const char *detail,
           const struct rank_state *state);

/* Cites the rank's last call, if it made one. */
void cite_last(struct comm_ranks *ranks, const struct rank_state *state);
/* Cites a call of whichever of the ranks made it. */
void cite_of(struct comm_ranks *ranks, const struct record_call *call);

/* ---- ranks ---- */

/* NULL if the rank left no file. */
const struct rank_state *ranks_find(const struct comm_ranks *ranks, uint32_t rank);
/* Lists the ranks that left no file, at most 64; returns the number listed. */
uint32_t ranks_missing(const struct comm_ranks *ranks, struct rank_list *list);

/* The first collective that has not ended on every rank. */
const struct record_call *ranks_first_pending(const struct comm_ranks *ranks);

/* ---- calls ---- */

/* Names the first argument in which two calls of one collective differ; NULL if they match. */
const char *calls_differ(const struct record_call *left, const struct record_call *right);

/* For a send or receive of `state` that has not ended, the matching call of `other`; NULL if `other` has not
 * made it. */
const struct record_call *message_partner(const struct rank_state *state, const struct rank_state *other,
                                          const struct record_call *call);

/* ---- waits ---- */

/* Indexed by enum record_wait, for example "data of". */
extern const char *const wait_texts[];
/* Adds a line of evidence for each rank that waits, and for each unfinished message of its proxies. */
void show_waits(const struct comm_ranks *ranks);

/* ---- diagnoses: each looks for one kind of problem; if it finds one, it sets the diagnosis and returns true
 * ---- */

/* Ranks made different calls as this collective. */
bool diagnose_mismatch(struct comm_ranks *ranks, uint32_t collective);
/* A rank's call of this collective was refused. `wanted`: the call as some other rank made it. */
bool diagnose_refused(struct comm_ranks *ranks, uint32_t collective, const struct record_call *wanted);
/* A send or receive was refused because the other rank's differs. */
bool diagnose_refused_message(struct comm_ranks *ranks);
/* A rank has not called this collective; `wanted` as above. */
bool diagnose_not_arrived(struct comm_ranks *ranks, uint32_t collective, const struct record_call *wanted);
/* A rank left no file, and others have failed. */
bool diagnose_absent(struct comm_ranks *ranks);
/* The communicator was never made, because a rank did not join. */
bool diagnose_not_met(struct comm_ranks *ranks);
/* Some ranks have failed; another one's process died before. */
bool diagnose_died(struct comm_ranks *ranks);
/* A rank's process called exit() with an error while the communicator was open. */
bool diagnose_exited(struct comm_ranks *ranks);
/* A rank exited with status 0 and left the communicator open, and the processes of others were ended. */
bool diagnose_left(struct comm_ranks *ranks);
/* Processes ended without destroying the communicator, and nothing tells why. */
bool diagnose_gone(struct comm_ranks *ranks);
/* Nothing hangs, but the others repeatedly wait for one rank. */
bool diagnose_slow(struct comm_ranks *ranks);
/* Nothing hangs, but a connection over a network is slow. Other waits do not hide it. */
bool diagnose_slow_link(struct comm_ranks *ranks);
/* Ranks failed; the diagnosis quotes the reason that a rank gave. */
bool diagnose_failed(struct comm_ranks *ranks);
/* A rank failed because the emulator detected a deadlock. */
bool ranks_are_deadlocked(const struct comm_ranks *ranks);
/* A rank failed for a reason other than a detected deadlock. */
bool ranks_have_failed(const struct comm_ranks *ranks);
/* A send or receive has no matching call, or the two differ. `behind`: also if the other rank has not reached
 * the collectives before it yet. */
bool diagnose_messages(struct comm_ranks *ranks, bool behind);
/* A rank has made a call and not launched it. */
bool diagnose_not_launched(struct comm_ranks *ranks);
/* All ranks have made the call, and the process of one of them keeps the others from going on. */
bool diagnose_away(struct comm_ranks *ranks);
/* The same, if that rank has called this collective. */
bool diagnose_away_after(struct comm_ranks *ranks, uint32_t collective);
/* A rank has not launched a graph in which others wait for it. */
bool diagnose_graph(struct comm_ranks *ranks);
/* Adds a line of evidence about the graph operations under way. */
void show_graphs(const struct comm_ranks *ranks);
/* A rank's kernel was launched and has not started. */
bool diagnose_not_started(struct comm_ranks *ranks);
/* A lane of a running kernel makes no progress, although it waits for no other rank. */
bool diagnose_frozen(struct comm_ranks *ranks);
/* A rank waits for something that the other end has recorded as done: a stale or corrupt counter, or a
 * message in a network. */
bool diagnose_links(struct comm_ranks *ranks);
/* All ranks launched the operation and a channel hangs: follows the chain of waits to its end. */
bool diagnose_channel(struct comm_ranks *ranks);

#endif
