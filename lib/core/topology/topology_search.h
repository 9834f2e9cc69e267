/* topology_search.h: finds chains of a node's GPUs, with the NICs at their ends, for rings and trees: as many
 * concurrent chains with as much bandwidth each as the links support. The search is bounded: it gives up
 * after a fixed number of steps. A pure function of its request. */
#ifndef TUTTI_CORE_TOPOLOGY_SEARCH_H
#define TUTTI_CORE_TOPOLOGY_SEARCH_H

#include "core/topology/topology_paths.h"

#define SEARCH_CHANNELS_MAX 32

/* NCCL's numbers. */
enum search_pattern {
  SEARCH_BALANCED_TREE = 1, /* the second rank of the chain holds one child of the node */
  SEARCH_SPLIT_TREE = 2,    /* the second rank holds both */
  SEARCH_TREE = 3,          /* the first rank holds all network connections */
  SEARCH_RING = 4,
  SEARCH_SWITCH = 5, /* NVLS */
  SEARCH_DIRECT = 6  /* CollNet */
};

struct search_request {
  const struct paths *paths;
  const uint32_t *gpus; /* by local rank: its GPU */
  uint32_t gpu_count;
  enum search_pattern pattern; /* SEARCH_RING, or the tree to try first */
  uint32_t node_count;         /* above 1: chains begin and end at NICs */
  uint32_t channels_most;      /* 1..SEARCH_CHANNELS_MAX */
  uint32_t cross_nic;          /* NCCL_CROSS_NIC: 0 never, 1 a ring may leave by any NIC, 2 by its pair's */
};

struct search_result {
  enum search_pattern pattern;
  uint32_t channel_count;                 /* 0: nothing found */
  double gbps;                            /* of each channel, inside and between nodes */
  enum graph_path intra_path, inter_path; /* the worst path used */
  bool same_channels;
  uint32_t cross_nic;                                     /* as used */
  uint32_t hop_count;                                     /* links of all channels */
  uint32_t chain[SEARCH_CHANNELS_MAX][TOPOLOGY_GPUS_MAX]; /* local ranks in order */
  uint32_t net[SEARCH_CHANNELS_MAX][2]; /* NICs at the two ends: a ring enters by the first and leaves by
                                           the second; TOPOLOGY_NONE on one node */
};

/* Fills *result. ncclSystemError when memory is out. */
ncclResult_t search_run(const struct search_request *request, struct search_result *result);

/* Candidate bandwidths of a channel, GB/s, descending, ending with 0. */
const double *search_speeds(uint32_t capability, bool network);

#endif
