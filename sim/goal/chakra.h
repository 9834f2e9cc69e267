/* chakra.h: Chakra execution traces, the files that ASTRA-sim and others replay: one file per rank, a stream
 * of protobuf messages (README.md lists the fields). They are read node by node; sends, receives and
 * computations become a schedule of messages. Such a schedule can be written as Chakra traces, too. */
#ifndef TUTTI_SIM_GOAL_CHAKRA_H
#define TUTTI_SIM_GOAL_CHAKRA_H

#include "goal/export.h"

/* Constants of the format. */
enum chakra_kind {
  CHAKRA_METADATA = 1,
  CHAKRA_MEM_LOAD = 2,
  CHAKRA_MEM_STORE = 3,
  CHAKRA_COMP = 4,
  CHAKRA_SEND = 5,
  CHAKRA_RECV = 6,
  CHAKRA_COLL = 7
};
enum { CHAKRA_NAME_BYTES = 64 };

struct chakra_node {
  uint64_t id, kind; /* enum chakra_kind */
  uint64_t duration_us;
  uint64_t comm_type, comm_size; /* which collective; bytes */
  uint32_t comm_src, comm_dst, comm_tag;
  uint64_t *deps; /* ids of nodes that end before it begins, of both kinds */
  uint32_t dep_count, dep_capacity;
  char name[CHAKRA_NAME_BYTES], group[CHAKRA_NAME_BYTES]; /* cut to fit; group: pg_name */
};

/* Calls `take` for each node of the file, in order; the node is valid during the call. Stops at the first
 * failure. */
ncclResult_t chakra_read(const char *name, FILE *file,
                         ncclResult_t (*take)(void *context, const struct chakra_node *node), void *context);

/* The rank of a file: the number before `.et`; UINT32_MAX: it has none. */
uint32_t chakra_rank_of(const char *path);

/* Values of comm_type. */
enum chakra_coll {
  CHAKRA_ALL_REDUCE,
  CHAKRA_REDUCE,
  CHAKRA_ALL_GATHER,
  CHAKRA_GATHER,
  CHAKRA_SCATTER,
  CHAKRA_BROADCAST,
  CHAKRA_ALL_TO_ALL,
  CHAKRA_REDUCE_SCATTER,
  CHAKRA_REDUCE_SCATTER_BLOCK,
  CHAKRA_BARRIER
};

/* comm_size is the input of one rank: for these two collectives a part of the output. Converts it to the size
 * in nccl-tests' sense. */
uint64_t chakra_coll_bytes(uint64_t comm_type, uint64_t comm_size, uint32_t rank_count);

/* Callback that plans collectives: returns the call's number in the export, to which it is added at its first
 * use. */
struct chakra_planner {
  struct goal_export_costs costs;
  void *context;
  ncclResult_t (*plan)(void *context, struct goal_export *out, uint32_t comm_type, uint64_t bytes,
                       uint32_t *number);
};

/* Reads the files of all ranks, whose names end in .RANK.et with ranks from 0 on, in any order. Other nodes
 * become computations, and a collective becomes the messages of its plan: all ranks must make the same
 * collectives in the same order. */
ncclResult_t goal_read_chakra(uint32_t count, char **paths, const struct chakra_planner *planner,
                              struct goal *goal);
/* Writes PREFIX.RANK.et for each rank. Waits for an operation's start are omitted: the format has none. */
ncclResult_t goal_write_chakra(const struct goal *goal, const char *prefix);

#endif
