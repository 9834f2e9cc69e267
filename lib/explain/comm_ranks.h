/* comm_ranks.h: the ranks of one communicator, as the diagnosis of calls, messages and channels needs them;
 * and the words that diagnoses are made of. */
#ifndef TUTTI_EXPLAIN_COMM_RANKS_H
#define TUTTI_EXPLAIN_COMM_RANKS_H

#include <stdio.h>

#include "explain/diagnose.h"
#include "explain/rank_state.h"

struct comm_ranks {
  struct rank_state *states; /* by rank */
  uint32_t count, rank_count;
  const struct rank_state *all; /* of all communicators */
  uint32_t all_count;
  struct diagnosis *diagnosis;
};

/* ---- words ---- */

void say(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void show(struct diagnosis *diagnosis, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *ranks_comm_name(const struct comm_ranks *ranks, char out[64]);

/* "0-3, 7" */
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

void rank_place(const struct rank_state *state, char out[160]);
void call_text(const struct record_call *call, char out[160]);
/* What a rank is doing that has not called what others have. */
void absent_text(const struct rank_state *state, char *out, size_t out_bytes);

/* The diagnosis, and because of whom. */
void blame(struct comm_ranks *ranks, enum diagnosis_kind kind, const char *detail,
           const struct rank_state *state);

/* ---- who is there ---- */

const struct rank_state *ranks_find(const struct comm_ranks *ranks, uint32_t rank);
/* Ranks that left no file, the first 64 of them; how many those are. */
uint32_t ranks_missing(const struct comm_ranks *ranks, struct rank_list *list);

/* The first collective that has not ended somewhere. */
const struct record_call *ranks_first_pending(const struct comm_ranks *ranks);

/* ---- calls ---- */

/* What two calls of one collective must have in common; NULL: nothing differs. */
const char *calls_differ(const struct record_call *left, const struct record_call *right);

/* The other end of a message of the rank that has not ended; NULL: the other rank has not called it. */
const struct record_call *message_partner(const struct rank_state *state, const struct rank_state *other,
                                          const struct record_call *call);

/* ---- waits ---- */

/* By enum record_wait: "data of". */
extern const char *const wait_texts[];
/* One line for each rank that waits, and for what its networks owe. */
void show_waits(const struct comm_ranks *ranks);

/* ---- diagnoses: true, and the diagnosis set, where there is something to say ---- */

bool diagnose_mismatch(struct comm_ranks *ranks, uint32_t collective);
/* `wanted`: a call of the collective by somebody. */
bool diagnose_refused(struct comm_ranks *ranks, uint32_t collective, const struct record_call *wanted);
bool diagnose_not_arrived(struct comm_ranks *ranks, uint32_t collective, const struct record_call *wanted);
bool diagnose_absent(struct comm_ranks *ranks);
bool diagnose_not_met(struct comm_ranks *ranks);
bool diagnose_died(struct comm_ranks *ranks);
bool diagnose_slow(struct comm_ranks *ranks);
/* The same of connections over networks, whatever else waits meanwhile. */
bool diagnose_slow_link(struct comm_ranks *ranks);
bool diagnose_failed(struct comm_ranks *ranks);
/* A rank failed, and not because nothing moved any more. */
bool ranks_have_failed(const struct comm_ranks *ranks);
/* `behind`: also those whose other end has yet to come to collectives before it. */
bool diagnose_messages(struct comm_ranks *ranks, bool behind);
bool diagnose_not_launched(struct comm_ranks *ranks);
/* A rank has not launched a graph in which others wait for it. */
bool diagnose_graph(struct comm_ranks *ranks);
/* One line of what graphs have under way. */
void show_graphs(const struct comm_ranks *ranks);
bool diagnose_not_started(struct comm_ranks *ranks);
/* A kernel whose lane makes no move, while nobody waits for it. */
bool diagnose_frozen(struct comm_ranks *ranks);
/* Waits that the other end's rows contradict: what was sent has not come. */
bool diagnose_links(struct comm_ranks *ranks);
bool diagnose_channel(struct comm_ranks *ranks);

#endif
