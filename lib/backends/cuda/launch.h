/* launch.h: what the host half hands to the kernel. Plain C, compiled by gcc and by nvcc. Addresses are the
 * GPU's; who mapped them is the host's business. It knows nothing of streams or of CUDA's headers. */
#ifndef TUTTI_BACKENDS_CUDA_LAUNCH_H
#define TUTTI_BACKENDS_CUDA_LAUNCH_H

#include "schedule/plan.h"

struct fifo;

/* A work with everything that it touches. */
struct bound_work {
  struct work work;
  struct plan_buffers buffers;
  struct fifo *recv_fifo[STEP_LINKS_MAX], *send_fifo[STEP_LINKS_MAX];
  uint8_t *recv_buffer[STEP_LINKS_MAX], *send_buffer[STEP_LINKS_MAX]; /* of the work's protocol */
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

/* A plan travels with the kernel's arguments where it fits: a few works in the small form, many in the large
 * one. */
#define LAUNCH_SMALL_BYTES 3072
#define LAUNCH_LARGE_BYTES 28672

struct launch_arguments {
  const uint8_t *data;     /* works, then batches, in memory of the host; NULL: they follow the arguments */
  uint32_t batches_offset; /* bytes from the works to the batches */
  uint32_t depth;          /* slices in flight, 1..LANE_DEPTH_MAX */
  uint32_t from_graph;     /* 1: each launch of a graph runs this kernel anew; 0: the host launches it once */
  struct launch_counts *counts;
  struct rank_cells *cells;
  int *failed; /* of the communicator: set by whoever finds a mismatch, seen by all its ranks */
  struct plan_limits limits;
  uint16_t first_batch[PLAN_CHANNELS_MAX + 1]; /* by block, and one behind the last */
};

struct launch_small {
  struct launch_arguments arguments;
  uint64_t plan[LAUNCH_SMALL_BYTES / 8];
};

/* Begins as the small form does. */
struct launch_large {
  struct launch_arguments arguments;
  uint64_t plan[LAUNCH_LARGE_BYTES / 8];
};

#ifdef __cplusplus
extern "C" {
#endif
/* Enqueues the kernel on a stream of the current device: a cudaError. Reads the first plan_bytes of the plan.
 */
int step_kernel_launch(const struct launch_large *launch, size_t plan_bytes, uint32_t block_count,
                       void *stream);
/* Loads the kernel onto the current device, so that the first launch does not have to. A cudaError. */
int step_kernel_load(void);
size_t step_kernel_fifo_bytes(void);
#ifdef __cplusplus
}
#endif

#endif
