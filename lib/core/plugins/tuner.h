/* tuner.h: NCCL's tuner plugins (NCCL_TUNER_PLUGIN), of the interface's versions 2 to 6. A plugin sees the
 * predicted times of a collective's options, in NCCL's order, and changes them: the cheapest is taken. Each
 * rank of each communicator has a tuner, which remembers the answers: an equal question is not asked twice,
 * so that ranks ask the same questions in the same order whatever they plan from caches. Knows nothing of the
 * cost model. */
#ifndef TUTTI_CORE_TUNER_H
#define TUTTI_CORE_TUNER_H

#include <stdbool.h>

#include "base/err.h"
#include "schedule/work.h"

#define TUNER_ALGOS 7 /* those of enum work_algo that NCCL has, with its numbers */

struct tuner; /* of one rank of a communicator */

/* Hash of the name and version of the process's plugin, which the first call loads; 0: there is none. */
uint64_t tuner_identity(void);

/* What a plugin learns of a communicator. */
struct tuner_comm {
  const char *name;
  uint64_t comm_id;
  uint32_t rank, rank_count, node_count, node_ranks_min, node_ranks_max;
};
/* NULL without a plugin, or if memory is out. A plugin whose init fails is named in the log, and its tuner
 * leaves every choice to the library. */
struct tuner *tuner_open(const struct tuner_comm *comm);
void tuner_close(struct tuner *tuner); /* NULL is allowed */

/* A collective, or several that are planned together. */
struct tuner_question {
  size_t bytes;
  uint32_t collectives;                  /* of the group */
  uint32_t options;                      /* set of those offered: bit algo * PROTO_COUNT + proto */
  float costs[TUNER_ALGOS][PROTO_COUNT]; /* microseconds; TUNER_IGNORE: not possible */
  uint8_t func;
};
#define TUNER_IGNORE (-1.0f)

/* How the question was settled. */
struct tuner_answer {
  size_t bytes;
  uint32_t collectives, options, channel_count;
  uint32_t chunk_bytes; /* 0: the library's */
  uint8_t func, algo, proto;
  bool changed;  /* the library alone would have chosen otherwise */
  uint32_t next; /* in its list */
};

/* An answer from before; NULL: there is none. */
const struct tuner_answer *tuner_recall(const struct tuner *tuner, const struct tuner_question *question);
/* Asks the plugin. True if it chose: algo and proto of *answer are set. channel_count of it: as the plugin
 * wants, 0 if it says nothing. What names the question is set in any case. */
bool tuner_ask(struct tuner *tuner, const struct tuner_question *question, struct tuner_answer *answer);
/* Asks for the size of chunks, given the library's; 0 if the plugin leaves it alone. */
uint32_t tuner_ask_chunk(struct tuner *tuner, const struct tuner_answer *answer, size_t chunk_bytes);
/* Remembers what became of a question. */
void tuner_remember(struct tuner *tuner, const struct tuner_question *question, struct tuner_answer *answer);

/* The answers so far, by number; NULL: no more. */
const struct tuner_answer *tuner_answer_at(const struct tuner *tuner, uint32_t number);
/* The number of the first answer that this has not returned; it has now. UINT32_MAX: none. */
uint32_t tuner_answer_new(struct tuner *tuner);

#endif
