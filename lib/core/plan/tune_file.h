/* tune_file.h: the user's rules for algorithm and protocol, read from a file (TUTTI_TUNE_FILE), one rule per
 * line:
 *
 *   COLLECTIVE FROM TO [ranks=N] [nodes=N] algo=NAME proto=NAME [channels=N]   # comment
 *   all_reduce 8 32K ranks=4 nodes=1 algo=TwoShot proto=LL channels=8 # 4.1 us
 *
 * The rule applies to FROM <= bytes < TO, as nccl-tests counts them, with K, M or G of 1024; TO may be `max`.
 * The whole file is checked before any rule applies: unknown words and overlapping rules are errors. rules.h
 * decides if a communicator can follow a rule, when the rule is used. */
#ifndef TUTTI_CORE_TUNE_FILE_H
#define TUTTI_CORE_TUNE_FILE_H

#include "core/topology/graph.h"

#define TUNE_RULES_MAX 1024 /* rules per file */
#define TUNE_FILE_BYTES_MAX (1 << 20)

struct tune_rule {
  uint64_t from_bytes, to_bytes;   /* from <= bytes < to; UINT64_MAX: no limit */
  uint32_t rank_count, node_count; /* the rule applies to these; 0: any */
  uint32_t channel_count;          /* 0: the model's choice */
  uint32_t line;                   /* in the file, from 1 */
  uint8_t func, algo, proto;
  /* Of a recorded answer of a tuner plugin alone: collectives of the group, 0: any; as in tune_choice. */
  uint32_t collectives, chunk_bytes;
};

struct tune_file {
  uint32_t count;
  struct tune_rule rules[]; /* in the order of the file */
};

/* Parses a text of `length` bytes, which needs no terminating zero; *file is an os_alloc block.
 * ncclInvalidUsage, with `path`, line and what was expected, if a line is wrong. */
ncclResult_t tune_file_parse(const char *path, const char *text, size_t length, struct tune_file **file);

/* As tune_file_parse(), for the file at `path`. */
ncclResult_t tune_file_read(const char *path, struct tune_file **file);

/* An operation, for tune_file_find. */
struct tune_sought {
  const struct graph *graph;
  uint64_t bytes;
  uint32_t collectives; /* of its group */
  uint8_t func;
};
/* The first rule after `after` (NULL: of all) that applies to an operation, or NULL; `file` may be NULL. */
const struct tune_rule *tune_file_find(const struct tune_file *file, const struct tune_rule *after,
                                       const struct tune_sought *sought);

/* Writes one rule as a line of a tuning file, without newline; returns as snprintf does. */
int tune_rule_text(const struct tune_rule *rule, char *out, size_t out_bytes);

#endif
