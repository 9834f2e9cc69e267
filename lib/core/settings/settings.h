/* settings.h: what the environment and a communicator's config set for its plans: sizes, channels, allowed
 * algorithms and protocols. Read once for each communicator, so they do not change during its life. */
#ifndef TUTTI_CORE_SETTINGS_H
#define TUTTI_CORE_SETTINGS_H

#include "backends/backend.h"
#include "core/plan/plan.h"

/* TUTTI_LEAK_CHECK */
enum leak_check { LEAK_CHECK_OFF, LEAK_CHECK_REPORT, LEAK_CHECK_ERROR, LEAK_CHECKS };

struct settings {
  struct plan_settings plan;
  struct tune_file *tune_file;  /* plan.tune_file, freed by settings_free */
  uint64_t tuner;               /* tuner_identity() */
  bool net_ll_for_all;          /* messages between hosts may use LL with any number of ranks */
  uint32_t p2p_net_chunk_bytes; /* maximum chunk of a message in a communicator over networks */
  bool check_pointers;
  bool match_factors; /* with match_calls: premultiplied sums of different factors differ */
  bool match_calls;   /* compare the calls of all ranks (match.h) */
};

/* What becomes of leaks; LEAK_CHECK_OFF if the parameter makes no sense, which settings_read() refuses. */
enum leak_check settings_leak_check(const struct backend *ops);
/* TUTTI_SUM_ORDER=rank. */
bool settings_rank_order(void);
/* NCCL_P2P_READ_ENABLE=1. */
bool settings_reads_slots(void);
/* Starts from the backend's limits. ncclInvalidUsage, listing the valid words: an unknown word in NCCL_ALGO
 * or NCCL_PROTO, or a list that allows nothing. Every member of `config` is set. */
ncclResult_t settings_read(const struct backend *ops, const ncclConfig_t *config, struct settings *settings);

/* Frees what the settings hold. */
void settings_free(struct settings *settings);

/* Lowers settings that ranks may set differently (numbers of channels) to the smaller value. */
void settings_agree(struct settings *settings, const struct settings *other);

/* Hash of everything that a plan depends on, except what settings_agree and settings_take_paths adjust: equal
 * for ranks whose plans match. */
uint64_t settings_digest(const struct settings *settings);

/* The communicator has connections over networks, which support Simple, and with `ll` also LL. Messages use
 * smaller chunks, because the slots of messages have the size of a chunk (plan_pool_step_bytes). Above
 * SETTINGS_NET_LL_RANKS ranks, messages over networks use Simple only, because each connection would need its
 * own slots for LL. True if NCCL_PROTO named a protocol that a collective loses. */
#define SETTINGS_NET_LL_RANKS 64u
bool settings_take_network(struct settings *settings, bool ll, uint32_t rank_count);

/* What the paths between all devices of a communicator have in common. */
struct settings_paths {
  bool peer_access; /* each device can store into the memory of every other */
  bool ll128;       /* 128-byte stores are not torn */
};

/* Clears the members of *paths, initially all true, that the path between two devices does not support; a
 * path unknown to the backend supports neither. */
ncclResult_t settings_add_path(const struct backend *ops, uint32_t from, uint32_t to,
                               struct settings_paths *paths);

/* Removes what the paths do not support: direct stores without peer access, and LL128 if stores may be torn,
 * unless NCCL_PROTO names LL128 or allows nothing else; returns true in that case. */
bool settings_take_paths(struct settings *settings, const struct settings_paths *paths);

/* A device of the communicator's ranks. */
struct settings_device {
  uint32_t rank_count, own_count; /* own_count: of this process */
  uint32_t sharers;               /* ranks there of all communicators that are made by the same call */
  uint32_t blocks;                /* that it runs at once (device_info.blocks) */
  struct device_use use; /* by other communicators, of all processes that have ranks of this one there */
};

/* What the ranks of a communicator have in common, besides their settings. */
struct settings_ranks {
  uint32_t rank_count;
  struct settings_paths paths;
  bool on_host;                /* some of them pass data through memory of their host */
  bool networked;              /* some of them reach others over networks alone */
  bool net_ll;                 /* these networks carry LL (network_ops.net_ll) */
  bool share_devices;          /* several of them are on one device */
  uint32_t blocks;             /* that each of them may run at once on its device; 0: any number */
  uint32_t streams;            /* most ranks of this process on one device */
  struct settings_device full; /* a device with too few blocks for its ranks; rank_count 0: there is none */
};

/* Adds a device of the communicator's ranks: how many blocks each of them may run there. What is free is
 * divided so that as much is left for communicators that are made later. */
void settings_add_device(struct settings_ranks *ranks, const struct settings_device *device);
/* ncclInvalidUsage, with the numbers, if a device has too few blocks. Logs what ranks that share devices get,
 * if some do. */
ncclResult_t settings_check_devices(const struct settings_ranks *ranks);

/* What was asked for and is not, or not safely, given. */
struct settings_losses {
  bool torn;  /* LL128 stays although stores may be torn: it was asked for */
  bool named; /* NCCL_PROTO names a protocol that the networks do not carry */
};

/* Adapts the settings of one rank, after all ranks have agreed, to what the ranks have in common. Then
 * settings.plan and the graph determine every plan. A pure function, which the tools that show plans without
 * a communicator call too. Repeated calls change nothing more. */
struct settings_losses settings_settle(struct settings *settings, const struct settings_ranks *ranks);

/* Protocols that a text like NCCL_PROTO names, one mask per function: "^LL" names none. */
void settings_parse_named(const char *text, uint32_t named[FUNC_COUNT]);

/* One bit mask per function from a list like "ring,tree", "^tree" or "allreduce:ring;broadcast:^tree".
 * `words` are the tokens by bit, NULL for bits without token. An empty text leaves the masks unchanged. */
ncclResult_t settings_parse_list(const char *variable, const char *text, const char *const *words,
                                 uint32_t word_count, uint32_t masks[FUNC_COUNT]);

/* The set of algorithms that are disabled: by their own variables, and those that need a switch if `algos`
 * (as NCCL_ALGO) does not name them. `collnet`: the config enables CollNet. Removes from a function's mask
 * the algorithms that only the clauses of other functions name. */
uint32_t settings_algos_off(const char *algos, bool collnet, uint32_t masks[FUNC_COUNT]);

/* NCCL_THREAD_THRESHOLDS: up to six numbers, separated by blanks or commas: LL, LL128 and Simple of Tree,
 * then of Ring; -2 leaves the default. False, with all thread_bytes 0, if the text is malformed. */
bool settings_parse_thresholds(const char *text, uint32_t thread_bytes[2][PROTO_COUNT]);

#endif
