/* settings.h: what the environment and a communicator's config say about its plans: sizes, channels, allowed
 * algorithms and protocols. Read once for each communicator, so that it does not change under it. */
#ifndef TUTTI_CORE_SETTINGS_H
#define TUTTI_CORE_SETTINGS_H

#include "backends/backend.h"
#include "core/plan.h"

struct settings {
  struct plan_limits limits;
  uint32_t algo_mask[FUNC_COUNT], proto_mask[FUNC_COUNT];
  uint32_t max_threads[PROTO_COUNT];
  size_t p2p_ll_threshold;
  bool check_pointers;
};

/* Starts from the backend's limits. An unknown word in NCCL_ALGO or NCCL_PROTO, or a list that allows
 * nothing: ncclInvalidUsage, naming what exists. `config` has every member set. */
ncclResult_t settings_read(const struct device_ops *ops, const ncclConfig_t *config,
                           struct settings *settings);

/* Lowers what ranks may be configured differently in (numbers of channels) to the smaller of both. */
void settings_agree(struct settings *settings, const struct settings *other);

/* Bit mask a function from a list like "ring,tree", "^tree" or "allreduce:ring;broadcast:^tree". `words` are
 * the tokens by bit, NULL where a bit has none. An empty text leaves the masks alone. */
ncclResult_t settings_parse_list(const char *variable, const char *text, const char *const *words,
                                 uint32_t word_count, uint32_t masks[FUNC_COUNT]);

#endif
