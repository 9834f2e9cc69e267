/* work.h: one piece of a plan: what one rank does on one channel for one operation. Plain data that every
 * rank computes from the same inputs (core/plan/plan.c); the iterators of this folder and the executors in
 * lib/protocol read it. It names peers by rank and memory by offset; addresses are bound at launch. */
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
  FUNC_COUNT = 12, /* COPY: no peer: a send to self, or a collective of one rank */
  /* One-sided calls, which become no works; NCCL's ids, too. */
  FUNC_PUT_SIGNAL = 12,
  FUNC_SIGNAL = 13,
  FUNC_WAIT_SIGNAL = 14,
  FUNC_CALLS = 15
};

static inline bool func_is_one_sided(uint32_t func) { return func >= FUNC_COUNT; }

static inline bool func_reduces(uint32_t func) {
  return func == FUNC_REDUCE || func == FUNC_REDUCE_SCATTER || func == FUNC_ALL_REDUCE;
}
static inline bool func_has_root(uint32_t func) {
  return func == FUNC_REDUCE || func == FUNC_BROADCAST || func == FUNC_GATHER || func == FUNC_SCATTER;
}
static inline bool func_is_p2p(uint32_t func) { return func == FUNC_SEND || func == FUNC_RECV; }
/* Numbers 0-6 are NCCL's ids. */
enum work_algo {
  ALGO_TREE = 0,
  ALGO_RING = 1,
  ALGO_COLLNET_DIRECT = 2,
  ALGO_COLLNET_CHAIN = 3,
  ALGO_NVLS = 4,
  ALGO_NVLS_TREE = 5,
  ALGO_PAT = 6,
  ALGO_DIRECT = 7,   /* every rank to every rank; all-reduce in one shot */
  ALGO_TWO_SHOT = 8, /* all-reduce: a direct reduce-scatter, then a direct all-gather; reduce: then a gather;
                        broadcast: a scatter, then a direct all-gather */
  ALGO_CUSTOM = 9,   /* steps from a schedule that the user wrote (list.h) */
  ALGO_COUNT = 10
};
enum work_proto { PROTO_LL = 0, PROTO_LL128 = 1, PROTO_SIMPLE = 2, PROTO_COUNT = 3 };

/* Operators as kernels see them. Averages and user-defined operators become a sum with a stage before or
 * after. */
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
  WORK_DIRECT_SEND = 1,     /* the receiver's output is reachable: the receiver offers its address */
  WORK_DIRECT_RECV = 2,     /* our output is offered to the sender */
  WORK_IN_PLACE = 4,        /* in place, by the collective's definition of it */
  WORK_OUTPUT_HIDDEN = 8,   /* set by a backend at launch: the sender cannot reach our output */
  WORK_FUSED = 16,          /* this work and the next fused_count - 1 works share one lane (fused.h) */
  WORK_PART = 32,           /* one of those next works: has no lane of its own */
  WORK_SHOWS_INPUT = 128,   /* receivers that can reach our input may read it instead of a slot */
  WORK_SCALAR = 256,        /* set by a backend at launch: op_arg is the address of the scalar */
  WORK_LOOPS_OVERLAP = 512, /* direct collectives: steps of several loops overlap (direct.h) */
  WORK_READS_SLOTS = 1024,  /* Simple: the slots are the sender's, and the receiver reads them over the link;
                               links over a network keep their own slots */
  WORK_ROOT_APART = 2048,   /* two shots from or to a root that has no shard of its own (direct.h) */
  WORK_POOLED = 64 /* set by a backend at launch: a message that uses its rank's shared slots (net_slots) */
};

/* Which of the connections between two ranks on a channel a work uses. */
enum work_conn {
  CONN_COLLECTIVE = 0,
  CONN_MESSAGE = 1,
  CONN_SWITCH = 2,     /* collectives over a switch */
  CONN_FROM_SWITCH = 3 /* from the switch to the rank that hosts it: see work_link_conn() */
};

/* The sets of slots of a connection: one for each enum work_proto, which the receiver has, and one of Simple,
 * which the sender has (WORK_READS_SLOTS). All count the connection's steps with the same counters, so works
 * that use different sets may follow each other. */
enum work_slots { SLOTS_AT_SENDER = PROTO_COUNT, SLOTS_COUNT };

/* Some algorithms split a rank's share of a channel into works that run side by side; the role tells them
 * apart. */
enum work_role {
  ROLE_WHOLE = 0,
  ROLE_UP = 1,    /* tree: towards the root */
  ROLE_DOWN = 2,  /* tree: from the root */
  ROLE_SWITCH = 3 /* the emulated switch of a network that adds and multicasts, on the rank that hosts it */
};

struct list;

struct work {
  uint8_t func, algo, proto, dtype;     /* enum work_func, work_algo, work_proto, ncclDataType_t */
  uint8_t op, chunk_steps, slice_steps; /* enum work_op; FIFO steps per chunk and per slice */
  uint8_t element_bytes;
  uint8_t recv_count, send_count; /* links in use below */
  uint16_t channel_index;
  uint32_t flags;            /* enum work_flag */
  uint16_t role;             /* enum work_role; for a list, its number on the rank */
  uint16_t head_index;       /* over switches: the rank's index in its node */
  uint32_t rank, rank_count; /* in the communicator */
  union {
    uint32_t ring_index;   /* distance from rank 0 along the channel's ring; 0 without a ring */
    uint32_t pack;         /* PAT: blocks that share a slot (pat_pack), a power of two */
    uint32_t scratch_page; /* list: offset of its scratch in the plan's, in LIST_PAGE_BYTES */
  };
  uint32_t root;       /* rank; for rooted collectives */
  uint16_t conn_index; /* enum work_conn */
  uint16_t head_count; /* over switches: ranks per node; else 0 */
  size_t count;        /* elements a rank contributes (all-gather: sends, reduce-scatter: receives) */
  size_t part_offset, part_count; /* this channel's share of `count`, elements */
  size_t chunk_count;             /* most elements of a chunk */
  union {
    size_t last_chunk_count; /* elements of a chunk of the last loop, if a loop has one chunk per rank
                                (algo_cut); for a list, elements of a chunk of its grid */
    size_t fused_count;      /* WORK_FUSED: number of parts, including this one */
  };
  uint64_t op_arg;      /* bits of the scalar: PRE_MUL_SUM factor in dtype, POST_DIV divisor<<1|signed */
  uint64_t op_sequence; /* number of the operation on its communicator: for checks and traces */
  union {
    const uint32_t *ring_ranks; /* ring order from rank 0, rank_count entries, shared by all ranks */
    const struct list *list;    /* ALGO_CUSTOM; outlives the plan */
  };
  uint32_t recv_peer[STEP_LINKS_MAX],
      send_peer[STEP_LINKS_MAX]; /* ranks; the last members, because kernels get them separately */
};

/* The slots that a work uses on its links within a node: an enum work_proto or SLOTS_AT_SENDER. */
PRIM_FN uint8_t work_slots(const struct work *work) {
  return (work->flags & WORK_READS_SLOTS) != 0 ? (uint8_t)SLOTS_AT_SENDER : work->proto;
}

/* The protocol that such slots are of. */
PRIM_FN uint8_t slots_proto(uint8_t slots) {
  return slots == SLOTS_AT_SENDER ? (uint8_t)PROTO_SIMPLE : slots;
}

/* Bytes of the operation's input and output on this rank, from the addresses that its works are given. */
PRIM_FN size_t work_in_bytes(const struct work *work) {
  const bool parts =
      work->func == FUNC_REDUCE_SCATTER || work->func == FUNC_ALL_TO_ALL || work->func == FUNC_SCATTER;
  return work->count * work->element_bytes * (parts ? work->rank_count : 1);
}

PRIM_FN size_t work_out_bytes(const struct work *work) {
  const bool parts =
      work->func == FUNC_ALL_GATHER || work->func == FUNC_ALL_TO_ALL || work->func == FUNC_GATHER;
  return work->count * work->element_bytes * (parts ? work->rank_count : 1);
}

/* A work with WORK_SHOWS_INPUT: from every rank that reads the input in place the work receives sums of it
 * before it ends, which shows that the input was read. */
PRIM_FN bool work_returns_sums(const struct work *work) {
  return work->algo == ALGO_TWO_SHOT && work->func == FUNC_ALL_REDUCE;
}

/* The connection of a work's link to or from `peer`. Usually it is the work's own. A rank that hosts a switch
 * has two connections with it, one per direction; only the connection index tells their ends apart. */
PRIM_FN uint32_t work_link_conn(const struct work *work, uint32_t peer, bool sends) {
  const bool back = (work->role == ROLE_SWITCH) == sends;
  return work->conn_index == CONN_SWITCH && peer == work->rank && back ? CONN_FROM_SWITCH : work->conn_index;
}

#endif
