/* launch.h: what the host code passes to the kernel. Plain C, compiled by gcc and by nvcc. Addresses are the
 * GPU's; the host maps them. It knows nothing of streams or CUDA's headers. */
#ifndef TUTTI_KERNELS_LAUNCH_H
#define TUTTI_KERNELS_LAUNCH_H

#include <assert.h>

#include "kernels/link_count.h"
#include "schedule/plan.h"

struct fifo_sender;
struct fifo_receiver;

/* Bytes of a struct fifo_sender, and of a struct fifo_receiver. */
#define LAUNCH_END_BYTES 384
#define LAUNCH_ANNOUNCED_OFFSET 128 /* in struct fifo_receiver; head and tail are the first members */
#define LAUNCH_SOURCE_OFFSET 16     /* in struct fifo_receiver: source and source_bytes */
#define LAUNCH_OFFER_OFFSET 128     /* in struct fifo_sender: offer and offer_bytes */
#define LAUNCH_STEP_OFFSET 256      /* in both: start of the next operation */
#define LAUNCH_READ_OFFSET 288      /* in struct fifo_sender: read_step */

/* An end of a connection. */
struct bound_link {
  struct fifo_sender *sender;
  struct fifo_receiver *receiver;
  uint8_t *buffer; /* the work's slots (work_slots()) */
};

#define BOUND_WORK_WORDS (offsetof(struct work, recv_peer) / 8)

/* A work with everything that it accesses. It is short, because it is part of every launch: most works have
 * one link per side; further links are stored after the batches. */
struct bound_work {
  uint64_t work[BOUND_WORK_WORDS]; /* the part of struct work that kernels read */
  const void *in;
  void *out;
  struct bound_link recv, send;
  uint32_t recv_peer, send_peer; /* ranks, for reports */
  /* With one link per side and no published input: the shift that is added to the output's address when it is
   * offered. Else: index of the work's entries among the launch's further links. They are its receive links
   * from the second on, then its send links from the second on; then, if it offers its output, a shift for
   * each receive link, including the first; then, if it publishes its input, a shift for each send link, or
   * LAUNCH_HIDDEN. */
  uint64_t further;
};

/* In place of a shift: the peer cannot reach that memory. */
#define LAUNCH_HIDDEN UINT64_MAX

/* A link of a work, from the second of its side on. */
struct bound_further {
  struct bound_link link;
  uint64_t peer;
};

/* The error of a lane that stopped, from struct lane. */
struct launch_error {
  uint32_t error, peer; /* enum lane_error, 0 = none; rank */
  uint32_t func;        /* enum work_func */
  uint32_t reserved;
  uint64_t op_sequence, expected_bytes, found_bytes;
};

/* Progress of a rank's kernels, in blocks, since the rank was opened: one per rank, in memory of its device.
 * A stream can wait for a count (launch_order.c). A block therefore adds to it only when everything that it
 * wrote into the rank's connections is visible to the device's next kernel, and it no longer uses them or the
 * arguments. A graph's blocks also count when they begin, because the host does not know how often a graph is
 * launched. */
struct launch_counts {
  uint64_t plain_ended; /* launches outside graphs */
  uint64_t graph_started, graph_ended;
};

/* Written by a lane that has waited for long; identifies its work. The host finds what it waits for in the
 * work's links (record.c). Two 16-byte stores; it is not cleared when the lane continues. */
struct launch_wait {
  uint64_t work[2];  /* the first words of its struct work */
  uint64_t sequence; /* of the operation, plus one; 0: no lane has waited here */
  uint32_t recv_peer, send_peer;
};

#define LAUNCH_WAITS (PLAN_CHANNELS_MAX * PLAN_BATCH_WORKS_MAX)

/* Host memory that kernels write to: one per rank. */
struct rank_control {
  int abort; /* set by the host to abort this rank's kernels; first member, because blocks have its address */
  int failed;                       /* set by a kernel: errors[] has an entry */
  struct launch_counts counts_seen; /* the host's copy; kernels do not use it */
  struct launch_error errors[PLAN_CHANNELS_MAX];
  struct launch_wait waits[LAUNCH_WAITS]; /* by channel * PLAN_BATCH_WORKS_MAX + index in the batch */
};
static_assert(offsetof(struct rank_control, abort) == 0 && offsetof(struct rank_control, waits) % 16 == 0 &&
                  sizeof(struct launch_wait) == 32,
              "a block stores vectors");

/* There is one kernel per protocol, by enum work_proto, and one for launches with several. */
#define LAUNCH_KERNEL_MIXED PROTO_COUNT
/* Two for works with more than one link per side: only LL, and all protocols. */
#define LAUNCH_KERNEL_LL_LINKS (PROTO_COUNT + 1)
#define LAUNCH_KERNEL_LINKS (PROTO_COUNT + 2)
/* Two for direct collectives only, over LL: few links, and many links. */
#define LAUNCH_KERNEL_DIRECT (PROTO_COUNT + 3)
#define LAUNCH_KERNEL_DIRECT_LINKS (PROTO_COUNT + 9)
/* One for long copies over Simple, which copy engines move (compute capability 9.0). */
#define LAUNCH_KERNEL_BULK (PROTO_COUNT + 4)
/* Three for direct collectives in a single pass, with plain sums: few links, few links with several lines a
 * thread, and many links. */
#define LAUNCH_KERNEL_ONCE (PROTO_COUNT + 5)
#define LAUNCH_KERNEL_ONCE_LINES (PROTO_COUNT + 6)
#define LAUNCH_KERNEL_ONCE_LINKS (PROTO_COUNT + 7)
/* Two for direct collectives only, over Simple; the second one for two ranks, some of whose works add. */
#define LAUNCH_KERNEL_DIRECT_SIMPLE (PROTO_COUNT + 8)
#define LAUNCH_KERNEL_DIRECT_PAIR (PROTO_COUNT + 10)
#define LAUNCH_KERNELS (PROTO_COUNT + 11)

/* Most warps of a block: two per work of a batch, or an issue warp, a commit warp and 14 compute warps for
 * one work. */
#define LAUNCH_WARPS_MAX 16
/* The same for direct collectives, whose threads have more lines in flight and so more registers each. */
#define LAUNCH_DIRECT_WARPS 12
#define LAUNCH_DIRECT_LINKS_WARPS 8
#define LAUNCH_DIRECT_SIMPLE_WARPS 15
/* The same for a single pass: 16 warps for 4 KiB, and one for sizes and counters. With several lines a
 * thread, or with many links, as many as registers allow. */
#define LAUNCH_ONCE_WARPS 17
#define LAUNCH_ONCE_LINES 3 /* a thread's */
#define LAUNCH_ONCE_LINES_WARPS 16
#define LAUNCH_ONCE_LINKS 3 /* at most, per side */
#define LAUNCH_ONCE_LINKS_WARPS 12

/* As struct plan_batch, with the warps of each work (warps.h), from the block's first one on. */
struct bound_batch {
  uint32_t first_work, work_count;
  uint8_t warps[PLAN_BATCH_WORKS_MAX]; /* of one work: all */
};
static_assert(sizeof(struct bound_batch) == 2 * sizeof(uint64_t), "the warps are read as one word");

/* A plan that fits is passed in the kernel's arguments: 32 works with their batches. */
#define LAUNCH_PLAN_BYTES 6400
static_assert(32 * (sizeof(struct bound_work) + sizeof(struct bound_batch)) <= LAUNCH_PLAN_BYTES,
              "rings over all channels need no slab");

struct launch_arguments {
  const uint8_t *data;     /* works, then batches, in host memory; NULL: they follow the arguments */
  uint32_t batches_offset; /* bytes from the works to the batches */
  uint32_t further_offset; /* bytes to the further links */
  uint32_t
      from_graph;  /* 1: a graph contains the kernel and may launch it often; 0: the host launches it once */
  uint32_t hosted; /* 1: a proxy may wait for freed slots, so kernels of direct collectives post them at
                      their end */
  struct launch_counts *counts;
  struct rank_control *control;
  int *failed; /* of the communicator: set when a mismatch is found, read by all its ranks */
  struct plan_limits limits;
  uint16_t first_batch[PLAN_CHANNELS_MAX + 1]; /* by block, and one past the last */
};

struct launch {
  struct launch_arguments arguments;
  uint64_t plan[LAUNCH_PLAN_BYTES / 8];
};

/* The same for direct collectives over Simple, whose works have many links: 24 works of three. */
#define LAUNCH_LONG_PLAN_BYTES 10240
static_assert(24 * (sizeof(struct bound_work) + 6 * sizeof(struct bound_further) +
                    sizeof(struct bound_batch)) <=
                  LAUNCH_LONG_PLAN_BYTES,
              "nor do direct collectives among four (core/plan/tune.c, DIRECT_SIMPLE_CHANNELS)");

struct launch_long {
  struct launch_arguments arguments;
  uint64_t plan[LAUNCH_LONG_PLAN_BYTES / 8];
};

union launch_any {
  struct launch_arguments arguments;
  struct launch usual;
  struct launch_long longer;
};

#ifdef __cplusplus
extern "C" {
#endif
/* Enqueues kernel number `kernel` (LAUNCH_KERNELS) on a stream of the current device; returns a cudaError.
 * `overlaps`: it may start on the device while the stream's previous kernel ends; `cluster`: so many blocks,
 * a divisor of their number, begin together in one part of the device; 1: each begins alone (both: compute
 * capability 9.0). */
int step_kernel_launch(uint32_t kernel, const union launch_any *launch, uint32_t block_count,
                       uint32_t warp_count, uint32_t cluster, bool overlaps, void *stream);
/* Loads the kernels on the current device, so that the first launch does not. Returns a cudaError. */
int step_kernel_load(void);
#ifdef __cplusplus
}
#endif

#endif
