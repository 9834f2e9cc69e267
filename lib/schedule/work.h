/* work.h: one piece of a plan: what one rank does on one channel for one operation. Pure data, computed by
 * every rank from the same inputs (core/plan/plan.c), read by the iterators here and by the executors in
 * lib/protocol. It names peers by rank and memory by offset; addresses are bound at launch. */
#ifndef TUTTI_SCHEDULE_WORK_H
#define TUTTI_SCHEDULE_WORK_H

#include "schedule/step.h"

/* Numbers 0-4 and 6, 7 are NCCL's function ids, so that traces and plugins agree. */
enum work_func {
  FUNC_BROADCAST = 0,
  FUNC_REDUCE = 1,
  FUNC_ALL_GATHER = 2,
  FUNC_REDUCE_SCATTER = 3,
  FUNC_ALL_REDUCE = 4,
  FUNC_SEND_RECV = 5,
  FUNC_SEND = 6,
  FUNC_RECV = 7,
  FUNC_ALL_TO_ALL = 8,
  FUNC_SCATTER = 9,
  FUNC_GATHER = 10,
  FUNC_COPY = 11,
  FUNC_COUNT = 12 /* COPY: no peer at all: send to self, or a one-rank collective */
};
/* Numbers 0-6 are NCCL's ids. */
enum work_algo {
  ALGO_TREE = 0,
  ALGO_RING = 1,
  ALGO_COLLNET_DIRECT = 2,
  ALGO_COLLNET_CHAIN = 3,
  ALGO_NVLS = 4,
  ALGO_NVLS_TREE = 5,
  ALGO_PAT = 6,
  ALGO_DIRECT = 7,   /* everyone to everyone; an all-reduce in one shot */
  ALGO_TWO_SHOT = 8, /* all-reduce: a direct reduce-scatter, then a direct all-gather */
  ALGO_CUSTOM = 9,   /* the steps of a list that the user gave */
  ALGO_COUNT = 10
};
enum work_proto { PROTO_LL = 0, PROTO_LL128 = 1, PROTO_SIMPLE = 2, PROTO_COUNT = 3 };

/* Operators as kernels see them. Average and user operators become a sum with a stage before or after it. */
enum work_op {
  OP_SUM = 0,
  OP_PROD = 1,
  OP_MAX = 2,
  OP_MIN = 3,
  OP_PRE_MUL_SUM = 4,
  OP_SUM_POST_DIV = 5,
  OP_COUNT = 6
};

enum work_flag {
  WORK_DIRECT_SEND = 1,   /* the receiver's output is in reach: its address is taken from its offer */
  WORK_DIRECT_RECV = 2,   /* our output is offered to the sender */
  WORK_IN_PLACE = 4,      /* input and output are the same memory (in the collective's own sense) */
  WORK_OUTPUT_HIDDEN = 8, /* a backend sets it at launch: the sender cannot reach our output after all */
  WORK_FUSED = 16,        /* this work and the fused_count - 1 works behind it share one lane (fused.h) */
  WORK_PART = 32,         /* one of those behind: no lane of its own */
  WORK_SHOWS_INPUT = 128, /* receivers may read our input itself, where they reach it, instead of a slot */
  WORK_POOLED = 64        /* a backend sets it at launch: a message whose slots are its rank's (net_slots) */
};

/* Which of a pair of ranks' connections on a channel a work uses. */
enum work_conn {
  CONN_COLLECTIVE = 0,
  CONN_MESSAGE = 1,
  CONN_SWITCH = 2,     /* collectives over a switch */
  CONN_FROM_SWITCH = 3 /* where a rank hosts the switch, what comes back from it: see work_link_conn() */
};

/* Where an algorithm cuts a rank's part of a channel into works that run side by side: which one this is. */
enum work_role {
  ROLE_WHOLE = 0,
  ROLE_UP = 1,    /* tree: towards the root */
  ROLE_DOWN = 2,  /* tree: from the root */
  ROLE_SWITCH = 3 /* the emulated switch of a network that adds and multicasts, on the rank that hosts it */
};

struct list;

struct work {
  uint8_t func, algo, proto, dtype;     /* enum work_func, work_algo, work_proto, ncclDataType_t */
  uint8_t op, chunk_steps, slice_steps; /* enum work_op; FIFO steps a chunk and a slice take */
  uint8_t element_bytes;
  uint8_t recv_count, send_count; /* links in use below */
  uint16_t channel_index;
  uint32_t flags;            /* enum work_flag */
  uint16_t role;             /* enum work_role; of a list, its number on the rank */
  uint16_t head_index;       /* over switches: the rank's place in its node */
  uint32_t rank, rank_count; /* in the communicator */
  union {
    uint32_t ring_index;   /* distance from rank 0 along the channel's ring; 0 where there is none */
    uint32_t pack;         /* PAT: blocks that share a slot (pat_pack), a power of two */
    uint32_t scratch_page; /* of a list: its scratch begins so many LIST_PAGE_BYTES into the plan's */
  };
  uint32_t root;       /* rank; for rooted collectives */
  uint16_t conn_index; /* enum work_conn */
  uint16_t head_count; /* over switches: ranks of a node; 0 elsewhere */
  size_t count;        /* elements a rank contributes (all-gather: sends, reduce-scatter: receives) */
  size_t part_offset, part_count; /* this channel's share of `count`, elements */
  size_t chunk_count;             /* most elements of a chunk */
  union {
    size_t last_chunk_count; /* elements of a chunk of the last loop, where a loop has a chunk a rank
                                (algo_cut); of a list, of a chunk of its grid */
    size_t fused_count;      /* WORK_FUSED: parts, this one included */
  };
  uint64_t op_arg;      /* bits of the scalar: PRE_MUL_SUM factor in dtype, POST_DIV divisor<<1|signed */
  uint64_t op_sequence; /* number of the operation on its communicator: for checks and traces */
  union {
    const uint32_t *ring_ranks; /* ring order from rank 0, rank_count entries, one array for all ranks */
    const struct list *list;    /* ALGO_CUSTOM; outlives the plan */
  };
  uint32_t recv_peer[STEP_LINKS_MAX], send_peer[STEP_LINKS_MAX]; /* ranks; last: kernels get them apart */
};

/* The connection of a work's link to or from `peer`: the work's own, but a rank has two with the switch that
 * it hosts itself, one in each direction, whose ends are told apart by their numbers alone. */
PRIM_FN uint32_t work_link_conn(const struct work *work, uint32_t peer, bool sends) {
  const bool back = (work->role == ROLE_SWITCH) == sends;
  return work->conn_index == CONN_SWITCH && peer == work->rank && back ? CONN_FROM_SWITCH : work->conn_index;
}

#endif
