/* arena.h: memory of the devices, and of the host for the devices, cut out of a few large pieces. A piece is
 * what another process maps (ipc.c): one handle for all that lies in it. Promises zeroed memory, and that
 * giving back never waits for a kernel, as cudaFree and cudaFreeHost do: pieces stay the process's, for later
 * communicators. Called with cuda_mutex held, within a scope of the device. It does not know who has a block,
 * nor what he does with it. */
#ifndef TUTTI_BACKENDS_CUDA_ARENA_H
#define TUTTI_BACKENDS_CUDA_ARENA_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "backends/cuda/extent.h"
#include "base/err.h"

#define DEVICES_MAX 64

struct arena_piece {
  uint8_t *base;
  uint64_t number; /* of the process's pieces, from 1 */
  uint32_t device_index;
  struct extents extents;
  bool has_handle;
  cudaIpcMemHandle_t handle;
  struct arena_piece *next;
};

struct arena_block {
  void *address; /* NULL: none */
  struct arena_piece *piece;
  struct extent extent;
};

#define ARENA_HOST DEVICES_MAX /* in place of a device: pinned, and all devices see it */

ncclResult_t cuda_arena_take(uint32_t device_index, uint64_t bytes, struct arena_block *block);
/* No kernel, here or elsewhere, uses it any more. A block without address is allowed; it has none behind. */
void cuda_arena_give(struct arena_block *block);
/* Frees pieces of which nothing is taken, and that no other process was ever told of: it may still have those
 * mapped. For a process without ranks, as it may wait for its kernels. */
void cuda_arena_trim(void);
/* What other processes map the piece by: the same at every call. */
ncclResult_t cuda_arena_handle(struct arena_piece *piece);
/* Bytes of all pieces of a device. */
uint64_t cuda_arena_bytes(uint32_t device_index);

#endif
