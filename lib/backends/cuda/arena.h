/* arena.h: device memory, and host memory for the devices, divided from a few large pieces. A piece is what
 * another process maps (ipc.c): one handle for everything in it. It promises zeroed memory, and that freeing
 * a block never waits for a kernel, as cudaFree and cudaFreeHost do: pieces stay the process's, for later
 * communicators. Called with cuda_mutex held, within a scope of the device. It does not know the owners of
 * blocks. */
#ifndef TUTTI_BACKENDS_CUDA_ARENA_H
#define TUTTI_BACKENDS_CUDA_ARENA_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "backends/cuda/extent.h"
#include "backends/cuda/shm.h"
#include "base/err.h"

#define DEVICES_MAX 64

/* Memory of the host, at the same address for the host and for all devices (host_memory.c). */
struct cuda_host_memory {
  uint8_t *data; /* NULL: none */
  size_t bytes;
  bool own_pages; /* registered with CUDA; else CUDA allocated it */
};

struct arena_piece {
  uint8_t *base;
  uint64_t number; /* number among the process's pieces, from 1 */
  uint32_t device_index;
  uint32_t maker_index, life; /* the device that was current when it was made; see cuda_life() */
  struct extents extents;
  bool has_handle;
  uint64_t shown_to; /* serial of the communicator whose ranks of other processes may map it; 0: none */
  cudaIpcMemHandle_t handle;    /* of ARENA_SHM: a struct share_ticket */
  struct shm_pages pages;       /* of ARENA_SHM */
  struct cuda_host_memory host; /* of ARENA_HOST */
  struct arena_piece *next;
};

struct arena_block {
  void *address; /* NULL: none */
  struct arena_piece *piece;
  struct extent extent;
};

/* Instead of a device: pinned host memory that all devices can access, also of other processes (SHM). A piece
 * serves the device that was current when it was made: it ends with a reset of that one. */
#define ARENA_HOST DEVICES_MAX
#define ARENA_SHM (DEVICES_MAX + 1)

ncclResult_t cuda_arena_take(uint32_t device_index, uint64_t bytes, struct arena_block *block);
/* Frees a block that no kernel, here or in another process, uses any more. A block without address is
 * allowed; afterwards it has none. */
void cuda_arena_give(struct arena_block *block);
/* The device was reset: the block's memory is gone. */
bool cuda_arena_lost(const struct arena_block *block);
/* Frees pieces without used blocks that were never exported to another process, which may still have them
 * mapped; other processes have their own hold on shared memory of the host. For a process without ranks,
 * because it may wait for its kernels. */
void cuda_arena_trim(void);
#define ARENA_SHOWN_TO_SEVERAL UINT64_MAX
/* Ranks of other processes of this communicator may map the piece. */
void cuda_arena_show(struct arena_piece *piece, uint64_t serial);
/* As cuda_arena_trim(), for one device, and also pieces that were shown to this communicator alone: its ranks
 * have unmapped all that is free. May wait for the device's kernels. */
void cuda_arena_trim_of(uint32_t device_index, uint64_t serial);
/* Gets the handle by which other processes map the piece: the same at every call. */
ncclResult_t cuda_arena_handle(struct arena_piece *piece);
/* Bytes of all pieces of a device. */
uint64_t cuda_arena_bytes(uint32_t device_index);

#endif
