/* launch.h: what the host half hands to the kernel. Plain C, compiled by gcc and by nvcc. Addresses are the
 * GPU's; who mapped them is the host's business. It knows nothing of streams or of CUDA's headers. */
#ifndef TUTTI_BACKENDS_CUDA_LAUNCH_H
#define TUTTI_BACKENDS_CUDA_LAUNCH_H

#include "backends/cuda/link_count.h"
#include "schedule/plan.h"

struct fifo_sender;
struct fifo_receiver;

/* Bytes of a struct fifo_sender, and of a struct fifo_receiver. */
#define LAUNCH_END_BYTES 384
#define LAUNCH_ANNOUNCED_OFFSET 128 /* in the receiver's: head and tail come first in theirs */
#define LAUNCH_STEP_OFFSET 256      /* in both: where the next operation begins */

/* An end of a connection. */
struct bound_link {
  struct fifo_sender *sender;
  struct fifo_receiver *receiver;
  uint8_t *buffer; /* of the work's protocol */
};

#define BOUND_WORK_WORDS (offsetof(struct work, recv_peer) / 8)

/* A work with everything that it touches. Short, because it travels with every launch: most works have one
 * link a side, and those of the others lie behind the batches. */
struct bound_work {
  uint64_t work[BOUND_WORK_WORDS]; /* a struct work as far as kernels read it */
  struct plan_buffers buffers;
  struct bound_link recv, send;
  uint32_t recv_peer, send_peer; /* ranks, for reports */
  /* Of one link a side: what is added to the output's address where it is offered. Of more: where, among the
   * launch's further links, its receiving ones from the second on begin, with the sending ones behind them,
   * and behind these, where it offers its output, what is added for each receiving link, the first included.
   */
  uint64_t further;
};

/* A link of a work from its side's second one on. */
struct bound_further {
  struct bound_link link;
  uint64_t peer;
};

/* A lane that could not go on: what struct lane says about it. */
struct launch_error {
  uint32_t error, peer; /* enum lane_error, 0 = none; rank */
  uint32_t func;        /* enum work_func */
  uint32_t reserved;
  uint64_t op_sequence, expected_bytes, found_bytes;
};

/* How far a rank's kernels are, in blocks, since the rank was opened: one a rank, in memory of its device. A
 * stream can wait for a count (order.c), so a block adds to it when everything that it wrote is visible to
 * the device's next kernel, and is done with the arguments then. A graph's blocks also count themselves at
 * their begin, because the host does not know how often a graph is launched. */
struct launch_counts {
  uint64_t plain_ended; /* of launches that no graph made */
  uint64_t graph_started, graph_ended;
};

/* Memory of the host that kernels write to: one a rank. */
struct rank_cells {
  int abort;                        /* the host's word to this rank's kernels */
  int failed;                       /* a kernel's word to the host: errors[] has an entry */
  struct launch_counts counts_seen; /* the host's copy, for the host alone */
  struct launch_error errors[PLAN_CHANNELS_MAX];
};

/* There is a kernel for each protocol, by enum work_proto, and one for launches of several. */
#define LAUNCH_KERNEL_MIXED PROTO_COUNT
/* And two for works of more than one link a side: of LL alone, and of all protocols. */
#define LAUNCH_KERNEL_LL_LINKS (PROTO_COUNT + 1)
#define LAUNCH_KERNEL_LINKS (PROTO_COUNT + 2)
/* And one for direct exchanges alone, in LL. */
#define LAUNCH_KERNEL_EXCHANGE (PROTO_COUNT + 3)
/* And one for long copies of Simple, which copy engines carry (compute capability 9.0). */
#define LAUNCH_KERNEL_BULK (PROTO_COUNT + 4)
#define LAUNCH_KERNELS (PROTO_COUNT + 5)

/* Most warps of a block: two for every work of a batch, or a scout, a poster and fourteen workers for one. */
#define LAUNCH_WARPS_MAX 16
/* Of a block of exchanges, whose threads have more lines in flight and so more registers each. */
#define LAUNCH_EXCHANGE_WARPS 12

/* A plan travels with the kernel's arguments where it fits: 32 works, with their batches. */
#define LAUNCH_PLAN_BYTES 6144

struct launch_arguments {
  const uint8_t *data;     /* works, then batches, in memory of the host; NULL: they follow the arguments */
  uint32_t batches_offset; /* bytes from the works to the batches */
  uint32_t further_offset; /* and to the further links */
  uint32_t from_graph;     /* 1: each launch of a graph runs this kernel anew; 0: the host launches it once */
  struct launch_counts *counts;
  struct rank_cells *cells;
  int *failed; /* of the communicator: set by whoever finds a mismatch, seen by all its ranks */
  struct plan_limits limits;
  uint16_t first_batch[PLAN_CHANNELS_MAX + 1]; /* by block, and one behind the last */
};

struct launch {
  struct launch_arguments arguments;
  uint64_t plan[LAUNCH_PLAN_BYTES / 8];
};

#ifdef __cplusplus
extern "C" {
#endif
/* Enqueues a kernel, by LAUNCH_KERNELS' numbers, on a stream of the current device: a cudaError. `overlaps`:
 * it may come onto the device while the stream's previous kernel ends (compute capability 9.0). */
int step_kernel_launch(uint32_t kernel, const struct launch *launch, uint32_t block_count,
                       uint32_t warp_count, bool overlaps, void *stream);
/* Loads the kernels onto the current device, so that the first launch does not have to. A cudaError. */
int step_kernel_load(void);
#ifdef __cplusplus
}
#endif

#endif
