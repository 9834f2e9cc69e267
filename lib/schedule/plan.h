/* plan.h: what one rank launches at once, as flat data: works, and the order in which each channel runs them.
 * core/plan/plan.c computes it as a pure function of (operations, ranks, parameters), so every rank derives
 * matching plans and the checker can derive all of them without a communicator. Backends bind addresses to it
 * and run it. */
#ifndef TUTTI_SCHEDULE_PLAN_H
#define TUTTI_SCHEDULE_PLAN_H

#include "schedule/work.h"

#define PLAN_CHANNELS_MAX 64
#define PLAN_BATCH_WORKS_MAX 8 /* four sends and four receives that may wait for each other */

/* Sizes that all ranks of a communicator share. Production values are NCCL's; the emulator also draws tiny
 * values. */
struct plan_limits {
  uint32_t slots;                   /* FIFO depth of a connection, steps: 1..FIFO_SLOTS_MAX (8) */
  uint32_t step_bytes[PROTO_COUNT]; /* wire bytes of one step's slot, a multiple of 16 (LL128: of 128) */
  uint32_t chunk_bytes;             /* upper bound of a chunk's data, 0 = the slots' capacity */
  uint32_t p2p_chunk_bytes;         /* upper bound of a point-to-point chunk, 1..one Simple step */
  uint32_t channel_count;           /* collective channels, 1..PLAN_CHANNELS_MAX */
  uint32_t p2p_channel_count;       /* a power of two */
  uint32_t p2p_channels_per_peer;   /* a power of two */
  uint32_t flag_bits;               /* width of a line's flag: 32; 8 in tests so that it wraps */
  uint32_t first_step;              /* where connections' counters begin: 0; TUTTI_FIRST_STEP in tests */
  bool direct;                      /* ranks may store into each other's output */
  uint32_t algos;      /* set of enum work_algo that executors support besides rings and messages */
  uint32_t algos_last; /* of `algos`, those chosen on one node only if no other algorithm is left */
  uint32_t links;      /* most links per side of a work that executors support, 1..STEP_LINKS_MAX; 0 is 1 */
  uint32_t protos;     /* set of enum work_proto that executors support for `algos`; 0 is all */
  uint32_t reserved_bytes; /* part of Simple's step_bytes that chunks leave free: a proxy writes there */
  bool cores;              /* ranks are CPU cores with shared memory: costs differ from GPUs' */
  uint32_t quick_protos;   /* set of enum work_proto with which direct collectives are not among algos_last */
  bool shares_device;      /* other ranks of the communicator may run on this rank's device */
  bool on_host;            /* GPUs of a host do not reach each other: data passes through its memory */
  uint32_t cluster_blocks; /* blocks of a GPU's kernel that begin together, where it can; 0, 1: each alone */
};

/* Algorithms that GPUs support on one node but that are not faster than rings yet. Direct collectives over LL
 * (quick_protos) are the exception. */
#define PLAN_ALGOS_LAST (1u << ALGO_TREE | 1u << ALGO_DIRECT | 1u << ALGO_TWO_SHOT)

/* A bit of plan_limits.algos besides enum work_algo: lanes execute fused works (fused.h). */
#define PLAN_FUSES (1u << 31)
/* Another one: lanes of direct collectives over Simple read the inputs of others in place. Backends that have
 * fast kernels for them (quick_protos) do so without it. */
#define PLAN_SHOWS_INPUTS (1u << 30)

/* Works [first_work, first_work + work_count) of plan.works run concurrently on one channel; the next batch
 * of the channel starts when all of them have ended. */
struct plan_batch {
  uint32_t channel_index, first_work, work_count;
};

/* User memory of one work, bound by the host before launch. */
struct plan_buffers {
  const void *in;
  void *out;
  const void *scalar; /* read when the work begins, in place of its op_arg; NULL: op_arg has it */
};

/* What one call of the launch reads and writes, as the user passed it; for checks. */
struct plan_call {
  const char *name;   /* "ncclAllReduce"; lives for ever */
  const void *caller; /* the call's return address; 0: not known */
  const void *in;
  void *out;
  const void *scalar;         /* of the operator, on the device; NULL: none there */
  size_t in_bytes, out_bytes; /* 0: not used by this rank */
  uint8_t scalar_bytes;
  uint8_t func;      /* enum work_func */
  uint32_t peer;     /* root, or other rank of a message */
  uint64_t sequence; /* number of the call on its communicator */
};

struct launch_hook;

struct plan {
  uint32_t rank, rank_count;
  uint32_t work_count, batch_count;
  struct work *works;
  struct plan_buffers *buffers; /* one for each work */
  struct plan_batch *batches;   /* ordered by channel, then by time */
  uint64_t channel_mask;        /* channels that have batches */
  size_t scratch_bytes;         /* scratch memory that lists need, or 0; ... */
  void *scratch;                /* ... the host binds it, zeroes it once and keeps it from plan to plan */
  struct plan_limits limits;
  /* If not 0: plans with the same number differ only in `buffers` and `first_sequence`, so what was prepared
   * for one can be used again. Works number their operations from first_sequence. */
  uint64_t serial, first_sequence;
  const struct launch_hook *hook; /* called at each start (backend.h); 0: no hook */
  const struct plan_call *calls;  /* that the operations come from; until the launch returns */
  uint32_t call_count;
};

/* Bytes per slot of the pool that a rank's messages share (backend.h, net_slots): one of their chunks plus
 * the proxy's space. */
PRIM_FN uint32_t plan_pool_step_bytes(const struct plan_limits *limits) {
  const uint32_t most = limits->step_bytes[PROTO_SIMPLE];
  if (limits->p2p_chunk_bytes >= most - limits->reserved_bytes) return most;
  const uint32_t bytes = ((limits->p2p_chunk_bytes + 127) & ~127u) + limits->reserved_bytes;
  return bytes < most ? bytes : most;
}

/* Bytes per LL slot of a message over a network. Each connection has its own slots, so they are few; a longer
 * message takes several. */
#define PLAN_NET_LL_BYTES 16384

PRIM_FN uint32_t plan_net_ll_bytes(const struct plan_limits *limits) {
  const uint32_t most = limits->step_bytes[PROTO_LL];
  return most < PLAN_NET_LL_BYTES ? most : PLAN_NET_LL_BYTES;
}

/* Bytes per slot of messages over a network. Simple's slots belong to the rank: one pool for all peers. */
PRIM_FN uint32_t plan_message_step_bytes(const struct plan_limits *limits, uint8_t proto) {
  return proto == PROTO_LL ? plan_net_ll_bytes(limits) : plan_pool_step_bytes(limits);
}

/* True if no work of the plan depends on another work of this rank having read or written user memory: the
 * plan has messages only, or one operation per channel. Then data may leave later and arrive earlier than its
 * lane moves it. */
PRIM_FN bool plan_is_loose(const struct plan *plan) {
  bool messages = true, turns = false;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    if ((plan->works[i].flags & WORK_FUSED) != 0) return false;
    messages = messages && plan->works[i].func > FUNC_ALL_REDUCE;
  }
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    turns = turns || plan->batches[b].work_count > 1;
    turns = turns || (b > 0 && plan->batches[b].channel_index == plan->batches[b - 1].channel_index);
  }
  return messages || !turns;
}

#endif
