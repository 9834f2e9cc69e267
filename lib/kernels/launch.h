/* launch.h: what the host half hands to the kernel. Plain C, compiled by gcc and by nvcc. Addresses are the
 * GPU's; who mapped them is the host's business. It knows nothing of streams or of CUDA's headers. */
#ifndef TUTTI_KERNELS_LAUNCH_H
#define TUTTI_KERNELS_LAUNCH_H

#include <assert.h>

#include "kernels/link_count.h"
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
  /* Of one link a side that shows no input: what is added to the output's address where it is offered. Of
   * others: where, among the launch's further links, its receiving ones from the second on begin, with the
   * sending ones behind them, and behind these, where it offers its output, what is added for each receiving
   * link, the first included; then, where it shows its input, the same for each sending link, or
   * LAUNCH_HIDDEN. */
  uint64_t further;
};

/* Beside what is added to an address: the peer does not reach that memory. */
#define LAUNCH_HIDDEN UINT64_MAX

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
 * stream can wait for a count (launch_order.c), so a block adds to it when everything that it wrote into the
 * rank's connections is visible to the device's next kernel, and is done with them and with the arguments
 * then. A graph's blocks also count themselves at
 * their begin, because the host does not know how often a graph is launched. */
struct launch_counts {
  uint64_t plain_ended; /* of launches that no graph made */
  uint64_t graph_started, graph_ended;
};

/* What a lane says that has waited for long: of which work. What for, the host finds at the work's links
 * (record.c). Written twice sixteen bytes at a time; it stays there when the lane goes on. */
struct launch_wait {
  uint64_t work[2];  /* the first words of its struct work */
  uint64_t sequence; /* of the operation, and one more; 0: nobody has waited here */
  uint32_t recv_peer, send_peer;
};

#define LAUNCH_WAITS (PLAN_CHANNELS_MAX * PLAN_BATCH_WORKS_MAX)

/* Memory of the host that kernels write to: one a rank. */
struct rank_control {
  int abort;  /* the host's word to this rank's kernels; first: a block knows its address */
  int failed; /* a kernel's word to the host: errors[] has an entry */
  struct launch_counts counts_seen; /* the host's copy, for the host alone */
  struct launch_error errors[PLAN_CHANNELS_MAX];
  struct launch_wait waits[LAUNCH_WAITS]; /* by channel * PLAN_BATCH_WORKS_MAX + place in the batch */
};
static_assert(offsetof(struct rank_control, abort) == 0 && offsetof(struct rank_control, waits) % 16 == 0 &&
                  sizeof(struct launch_wait) == 32,
              "a block stores vectors");

/* There is a kernel for each protocol, by enum work_proto, and one for launches of several. */
#define LAUNCH_KERNEL_MIXED PROTO_COUNT
/* And two for works of more than one link a side: of LL alone, and of all protocols. */
#define LAUNCH_KERNEL_LL_LINKS (PROTO_COUNT + 1)
#define LAUNCH_KERNEL_LINKS (PROTO_COUNT + 2)
/* And one for direct collectives alone, in LL. */
#define LAUNCH_KERNEL_DIRECT (PROTO_COUNT + 3)
/* And one for long copies of Simple, which copy engines carry (compute capability 9.0). */
#define LAUNCH_KERNEL_BULK (PROTO_COUNT + 4)
/* And two for those whose lines go once round, with plain sums: of few links, and of many. */
#define LAUNCH_KERNEL_ONCE (PROTO_COUNT + 5)
#define LAUNCH_KERNEL_ONCE_LINKS (PROTO_COUNT + 6)
/* And one for direct collectives alone, in Simple. */
#define LAUNCH_KERNEL_DIRECT_SIMPLE (PROTO_COUNT + 7)
#define LAUNCH_KERNELS (PROTO_COUNT + 8)

/* Most warps of a block: two for every work of a batch, or an issue warp, a commit warp and fourteen compute
 * warps for one. */
#define LAUNCH_WARPS_MAX 16
/* Of a block of direct collectives, whose threads have more lines in flight and so more registers each. */
#define LAUNCH_DIRECT_WARPS 12
#define LAUNCH_DIRECT_SIMPLE_WARPS 15
/* Of one whose lines go once round: sixteen warps for 4 KiB, and one that keeps the accounts. Of many links,
 * as many as registers allow. */
#define LAUNCH_ONCE_WARPS 17
#define LAUNCH_ONCE_LINKS 3 /* a side, at most */
#define LAUNCH_ONCE_LINKS_WARPS 12

/* A plan travels with the kernel's arguments where it fits: 32 works, with their batches. */
#define LAUNCH_PLAN_BYTES 6400
static_assert(32 * (sizeof(struct bound_work) + sizeof(struct plan_batch)) <= LAUNCH_PLAN_BYTES,
              "rings over all channels need no slab");

struct launch_arguments {
  const uint8_t *data;     /* works, then batches, in memory of the host; NULL: they follow the arguments */
  uint32_t batches_offset; /* bytes from the works to the batches */
  uint32_t further_offset; /* and to the further links */
  uint32_t from_graph;     /* 1: each launch of a graph runs this kernel anew; 0: the host launches it once */
  uint32_t hosted; /* 1: a proxy may wait for slots to be freed: kernels of direct collectives do it at their
                      end */
  struct launch_counts *counts;
  struct rank_control *control;
  int *failed; /* of the communicator: set by whoever finds a mismatch, seen by all its ranks */
  struct plan_limits limits;
  uint16_t first_batch[PLAN_CHANNELS_MAX + 1]; /* by block, and one behind the last */
};

struct launch {
  struct launch_arguments arguments;
  uint64_t plan[LAUNCH_PLAN_BYTES / 8];
};

/* Of direct collectives in Simple, whose works have many links: 24 works of three. */
#define LAUNCH_LONG_PLAN_BYTES 10240
static_assert(24 * (sizeof(struct bound_work) + 6 * sizeof(struct bound_further) +
                    sizeof(struct plan_batch)) <=
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
/* Enqueues a kernel, by LAUNCH_KERNELS' numbers, on a stream of the current device: a cudaError. `overlaps`:
 * it may come onto the device while the stream's previous kernel ends (compute capability 9.0). */
int step_kernel_launch(uint32_t kernel, const union launch_any *launch, uint32_t block_count,
                       uint32_t warp_count, bool overlaps, void *stream);
/* Loads the kernels onto the current device, so that the first launch does not have to. A cudaError. */
int step_kernel_load(void);
#ifdef __cplusplus
}
#endif

#endif
