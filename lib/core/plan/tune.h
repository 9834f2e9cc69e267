/* tune.h: the cost model, time(operation, algorithm, protocol) = latency + bytes / bandwidth, and the choices
 * that follow from it. Pure arithmetic over the figures of tune_table.c, the communicator's graph, the rules
 * (rules.h) and the user's tuning file (tune_file.h).
 *
 * `bytes` is the size column of nccl-tests: one rank's contribution for all-reduce, broadcast and reduce, all
 * ranks' for all-gather and reduce-scatter. */
#ifndef TUTTI_CORE_TUNE_H
#define TUTTI_CORE_TUNE_H

#include "core/plan/plan.h"

/* The bytes of an operation, as the model counts them. */
size_t tune_bytes(uint8_t func, size_t count, uint32_t element_bytes, uint32_t rank_count);

/* Predicted microseconds of one collective, or of one message of `bytes` for SEND and RECV (Ring), over
 * `channel_count` channels; infinite if the graph has no path for the algorithm. Does not check the rules.
 * One node of Hopper GPUs over NVLink, and a graph without speeds, use measured figures; all others use
 * NCCL's formulas. */
double tune_time_us(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                    size_t bytes, uint32_t channel_count);

/* Describes what tune_time_us() assumes, for users: the ranks, the source of the figures, the maximum number
 * of channels. */
void tune_model_text(const struct plan_request *request, char *out, size_t out_bytes);

/* True if a direct collective that the backend has a fast kernel for is predicted to run an all-to-all with
 * blocks of this size faster than messages between all ranks. */
bool tune_direct_is_best(const struct plan_request *request, size_t block_bytes);

/* Maximum bytes of a message over a network for which LL takes no longer than Simple: the time that LL saves
 * per hop on one node, at the rate at which proxies transfer LL lines. The figures were measured with
 * collectives between hosts, where LL was faster on GPUs up to 4 to 16 KiB per rank. Independent of the
 * graph; 0 for CPU cores, where LL costs more than a slice at any size. */
size_t tune_net_message_bytes(const struct plan_request *request);

/* How an operation is executed. */
struct tune_choice {
  uint8_t algo, proto;    /* enum work_algo, work_proto */
  uint32_t channel_count; /* maximum number of channels, 1..limits.channel_count */
  double time_us;         /* predicted; 0 on one rank */
  uint32_t file_line;     /* line of the rule in the tuning file that applied; 0: the model's choice */
  uint32_t chunk_bytes;   /* maximum bytes of a chunk, as a tuner plugin wants; 0: the model's */
};

/* Takes the tuning file's choice, else the tuner plugin's (plugins/tuner.h), else the allowed algorithm and
 * protocol with the least predicted time.
 * ncclInvalidUsage if none is allowed; the message has the rule that forbids each and what would be allowed.
 */
ncclResult_t tune_choose(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_choice *choice);

/* True for a direct collective that the backend has a fast kernel for (plan_limits.quick_protos). */
bool tune_is_quick(const struct plan_request *request, uint8_t algo, uint8_t proto);
/* True for a direct collective over Simple in which ranks read the inputs of others in place. */
bool tune_shows_inputs(const struct plan_request *request, uint8_t algo);

/* One option to execute an operation. */
struct tune_candidate {
  uint8_t algo, proto;
  const char *forbidden;  /* the rule, a sentence without full stop; NULL: allowed */
  bool last;              /* used only if nothing else is left: PAT with several ranks per node */
  double time_us;         /* if allowed */
  uint32_t channel_count; /* if allowed */
};
#define TUNE_CANDIDATES (ALGO_COUNT * PROTO_COUNT)

/* Fills all candidates, ordered by algorithm. Returns how many are allowed. */
uint32_t tune_candidates(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_candidate rows[TUNE_CANDIDATES]);

/* Number of channels for a size: fewer if a thread would have only a few bytes to move. Rings on one node use
 * all channels, since chunk.h leaves out those without data. */
uint32_t tune_channels(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                       size_t bytes);

/* Maximum bytes of a chunk of an operation of `bytes`, at most `chunk_bytes`, the capacity of the slots:
 * short enough for the stages of a tree or a pipeline to overlap. Rings use `chunk_bytes`. */
size_t tune_chunk_bytes(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                        size_t bytes, uint32_t channel_count, size_t chunk_bytes);

#endif
