/* settings.h: what the environment and a communicator's config say about its plans: sizes, channels, allowed
 * algorithms and protocols. Read once for each communicator, so that it does not change under it. */
#ifndef TUTTI_CORE_SETTINGS_H
#define TUTTI_CORE_SETTINGS_H

#include "backends/backend.h"
#include "core/plan/plan.h"

struct settings {
  struct plan_limits limits;
  uint32_t algo_mask[FUNC_COUNT], proto_mask[FUNC_COUNT];
  uint32_t proto_named[FUNC_COUNT]; /* protocols that NCCL_PROTO asks for by name */
  uint32_t protos_torn;             /* protocols that settings_take_paths took out */
  uint32_t algos_off;               /* algorithms that a variable of their own leaves out */
  uint32_t max_threads[PROTO_COUNT];
  uint32_t thread_bytes[2][PROTO_COUNT]; /* NCCL_THREAD_THRESHOLDS of Tree and Ring; 0: not said */
  struct tune_file *tune_file;           /* the user's own rules, or NULL; settings_free */
  size_t p2p_ll_threshold;
  uint32_t net_peer_channels;
  bool net_plain;               /* messages over a network are in Simple alone */
  bool net_ll_for_all;          /* however many ranks there are, messages between hosts may be in LL */
  uint32_t p2p_net_chunk_bytes; /* bound of a message's chunk in a communicator over networks */
  bool check_pointers;
};

/* Starts from the backend's limits. An unknown word in NCCL_ALGO or NCCL_PROTO, or a list that allows
 * nothing: ncclInvalidUsage, naming what exists. `config` has every member set. */
ncclResult_t settings_read(const struct backend *ops, const ncclConfig_t *config, struct settings *settings);

/* Frees what the settings hold. */
void settings_free(struct settings *settings);

/* Lowers what ranks may be configured differently in (numbers of channels) to the smaller of both. */
void settings_agree(struct settings *settings, const struct settings *other);

/* Equal for ranks whose plans fit together: of everything that a plan depends on, but for what settings_agree
 * and settings_take_paths bring into line. */
uint64_t settings_digest(const struct settings *settings);

/* The communicator has connections over networks, which carry Simple, and with `ll` also LL; and messages
 * in smaller chunks, since the slots of messages are as large (plan_pool_step_bytes). With many ranks
 * messages over networks stay in Simple: each connection of them would have slots of its own for LL. True
 * when NCCL_PROTO had asked for what a collective loses by name. */
#define SETTINGS_NET_LL_RANKS 64u
bool settings_take_network(struct settings *settings, bool ll, uint32_t rank_count);

/* What the paths between all devices of a communicator have in common. */
struct settings_paths {
  bool peer_access; /* each device may store into memory of each other */
  bool ll128;       /* and stores of 128 bytes arrive whole */
};

/* Lowers *paths, which begins as all true, to what the path from one device to another carries; a path that
 * the backend cannot tell carries neither. */
void settings_add_path(const struct backend *ops, uint32_t from, uint32_t to, struct settings_paths *paths);

/* Takes out what the paths do not carry: direct stores without peer access, and LL128 where lines may tear,
 * unless NCCL_PROTO asks for it by name or allows nothing else: true when LL128 stays against the paths. */
bool settings_take_paths(struct settings *settings, const struct settings_paths *paths);

/* Protocols that a text like NCCL_PROTO asks for by name, a mask a function: "^LL" asks for none. */
void settings_parse_named(const char *text, uint32_t named[FUNC_COUNT]);

/* Bit mask a function from a list like "ring,tree", "^tree" or "allreduce:ring;broadcast:^tree". `words` are
 * the tokens by bit, NULL where a bit has none. An empty text leaves the masks alone. */
ncclResult_t settings_parse_list(const char *variable, const char *text, const char *const *words,
                                 uint32_t word_count, uint32_t masks[FUNC_COUNT]);

/* NCCL_THREAD_THRESHOLDS: up to six numbers, parted by blanks or commas: LL, LL128 and Simple of Tree, then
 * of Ring; -2 says nothing. False, and all 0, when the text is something else. */
/* The set of algorithms that are off: by variables of their own, and those of switches that `algos` (as
 * NCCL_ALGO) does not name. `collnet`: the configuration asks for CollNet. Masks lose them where only other
 * functions' clauses name them. */
uint32_t settings_algos_off(const char *algos, bool collnet, uint32_t masks[FUNC_COUNT]);

bool settings_parse_thresholds(const char *text, uint32_t thread_bytes[2][PROTO_COUNT]);

#endif
