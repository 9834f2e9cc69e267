/* tune.h: the cost model: time(operation, algorithm, protocol) = latency + bytes / bandwidth, and the choices
 * that follow from it. Pure arithmetic over the figures of tune_table.c, the communicator's graph, the rules
 * (rules.h) and the user's own rules (tune_file.h).
 *
 * `bytes` counts a rank's contribution for all-reduce, broadcast and reduce, all ranks' for all-gather and
 * reduce-scatter: nccl-tests' size column. */
#ifndef TUTTI_CORE_TUNE_H
#define TUTTI_CORE_TUNE_H

#include "core/plan/plan.h"

/* Bytes by which the model measures an operation. */
size_t tune_bytes(uint8_t func, size_t count, uint32_t element_bytes, uint32_t rank_count);

/* Predicted microseconds of one collective, or of one message of `bytes` for SEND and RECV (Ring), spread
 * over `channel_count` channels; infinite where the graph has no path for the algorithm. Does not ask the
 * rules. One node of Hopper GPUs over NVLink, and a graph without speeds, go by what was measured, all others
 * by NCCL's formulas. */
double tune_time_us(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                    size_t bytes, uint32_t channel_count);

/* What tune_time_us() predicts for, as a text for users: the ranks, where the figures come from, the most
 * channels. */
void tune_model_text(const struct plan_request *request, char *out, size_t out_bytes);

/* True where a direct collective that the backend carries quickly is predicted to take less time for an
 * all-to-all, in blocks of so many bytes, than messages between all ranks. */
bool tune_direct_is_best(const struct plan_request *request, size_t block_bytes);

/* Bytes of a message over a network up to which LL takes no longer than Simple: what lines save a hop on one
 * node, at the rate at which proxies carry them. The figures are those of collectives between hosts, whose LL
 * was faster on GPUs up to 4 to 16 KiB a rank. The same whatever the graph; 0 for cores, to whom lines cost
 * more than a slice at any size. */
size_t tune_net_message_bytes(const struct plan_request *request);

/* How an operation is carried. */
struct tune_choice {
  uint8_t algo, proto;    /* enum work_algo, work_proto */
  uint32_t channel_count; /* over how many it is spread at most, 1..limits.channel_count */
  double time_us;         /* predicted; 0 on one rank */
  uint32_t file_line;     /* of the rule in the tuning file that chose; 0: the model did */
};

/* What the tuning file says, else the allowed algorithm and protocol with the least predicted time;
 * ncclInvalidUsage, with the rule that forbids each and what would be allowed, when none is left. */
ncclResult_t tune_choose(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_choice *choice);

/* A direct collective that the backend carries quickly (plan_limits.quick_protos). */
bool tune_is_quick(const struct plan_request *request, uint8_t algo, uint8_t proto);

/* One option to carry an operation. */
struct tune_candidate {
  uint8_t algo, proto;
  const char *forbidden;  /* the rule, a sentence without its full stop; NULL: allowed */
  bool last;              /* taken only where nothing else is left: PAT with several ranks a node */
  double time_us;         /* of what is allowed */
  uint32_t channel_count; /* the same */
};
#define TUNE_CANDIDATES (ALGO_COUNT * PROTO_COUNT)

/* All of them, algorithm by algorithm. Returns how many are allowed. */
uint32_t tune_candidates(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_candidate rows[TUNE_CANDIDATES]);

/* Channels that a size is worth: fewer where a thread would have less than a few bytes to move. Rings on one
 * node take all, as chunk.h leaves out those that would have nothing. */
uint32_t tune_channels(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                       size_t bytes);

/* Most bytes of a chunk of an operation of `bytes`, not above `chunk_bytes`, which is what the slots hold:
 * short enough for the stages of a tree or a pipeline to overlap. Rings keep theirs. */
size_t tune_chunk_bytes(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                        size_t bytes, uint32_t channel_count, size_t chunk_bytes);

#endif
