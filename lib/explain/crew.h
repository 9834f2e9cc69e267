/* crew.h: the ranks of one communicator, as those see them who judge their calls, messages and channels; and
 * the words that verdicts are made of. */
#ifndef TUTTI_EXPLAIN_CREW_H
#define TUTTI_EXPLAIN_CREW_H

#include <stdio.h>

#include "explain/judge.h"
#include "explain/seat.h"

struct crew {
  struct seat *seats; /* by rank */
  uint32_t count, rank_count;
  const struct seat *all; /* of all communicators */
  uint32_t all_count;
  struct verdict *verdict;
};

/* ---- words ---- */

void say(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void show(struct verdict *verdict, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *crew_name(const struct crew *crew, char out[64]);

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

void seat_place(const struct seat *seat, char out[160]);
void call_text(const struct record_call *call, char out[160]);
/* What a rank is doing that has not called what others have. */
void absent_text(const struct seat *seat, char *out, size_t out_bytes);

/* The verdict, and because of whom. */
void blame(struct crew *crew, enum verdict_kind kind, const char *detail, const struct seat *seat);

/* ---- who is there ---- */

const struct seat *crew_seat(const struct crew *crew, uint32_t rank);
/* Ranks that left no file, the first 64 of them; how many those are. */
uint32_t crew_missing(const struct crew *crew, struct rank_list *list);

/* The first collective that has not ended somewhere. */
const struct record_call *crew_first(const struct crew *crew);

/* ---- calls ---- */

/* What two calls of one collective must have in common; NULL: nothing differs. */
const char *calls_differ(const struct record_call *left, const struct record_call *right);
/* The call that most ranks made; NULL: no record of any is left. */
const struct record_call *crew_majority(const struct crew *crew, uint32_t collective, uint32_t *agree_count,
                                        uint32_t *seen_count);

/* The other end of a message of the seat that has not ended; NULL: the other rank has not called it. */
const struct record_call *message_partner(const struct seat *seat, const struct seat *other,
                                          const struct record_call *call);

/* ---- waits ---- */

/* By enum record_wait: "data of". */
extern const char *const wait_texts[];
/* One line for each rank that waits, and for what its networks owe. */
void show_waits(const struct crew *crew);

/* ---- judges: true, and the verdict set, where there is something to say ---- */

bool judge_mismatch(struct crew *crew, uint32_t collective);
/* `wanted`: a call of the collective by somebody. */
bool judge_refused(struct crew *crew, uint32_t collective, const struct record_call *wanted);
bool judge_not_arrived(struct crew *crew, uint32_t collective, const struct record_call *wanted);
bool judge_absent(struct crew *crew);
bool judge_not_met(struct crew *crew);
bool judge_died(struct crew *crew);
bool judge_slow(struct crew *crew);
/* The same of connections over networks, whatever else waits meanwhile. */
bool judge_slow_link(struct crew *crew);
bool judge_failed(struct crew *crew);
/* A rank failed, and not because nothing moved any more. */
bool crew_has_failed(const struct crew *crew);
/* `behind`: also those whose other end has yet to come to collectives before it. */
bool judge_messages(struct crew *crew, bool behind);
bool judge_not_launched(struct crew *crew);
/* A rank has not launched a graph in which others wait for it. */
bool judge_graph(struct crew *crew);
/* One line of what graphs have under way. */
void show_graphs(const struct crew *crew);
bool judge_not_started(struct crew *crew);
/* A kernel whose lane makes no move, while nobody waits for it. */
bool judge_frozen(struct crew *crew);
/* Waits that the other end's rows contradict: what was sent has not come. */
bool judge_links(struct crew *crew);
bool judge_channel(struct crew *crew);

#endif
