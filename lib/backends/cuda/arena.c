/* arena.c: see arena.h. The size of new pieces grows with the memory in use, so that a small communicator
 * needs little memory, and a large one few pieces. */
#include "backends/cuda/arena.h"

#include <assert.h>
#include <string.h>

#include "backends/cuda/device.h"
#include "base/log.h"

#define PIECE_GRAIN (UINT64_C(2) << 20) /* device page size: memory of one page is exported as a whole */
#define PIECE_LEAST (UINT64_C(4) << 20)
#define PIECE_LEAST_HOST (UINT64_C(1) << 18)
#define PIECE_MOST (UINT64_C(64) << 20) /* except for larger blocks */

static struct arena_piece *pieces[ARENA_SHM + 1];
static uint64_t held_bytes[ARENA_SHM + 1], last_number;

uint64_t cuda_arena_bytes(uint32_t device_index) { return held_bytes[device_index]; }

static uint64_t piece_bytes(uint32_t device_index, uint64_t least) {
  const bool host = device_index >= ARENA_HOST;
  const uint64_t grain = host ? PIECE_LEAST_HOST : PIECE_GRAIN;
  uint64_t bytes = held_bytes[device_index] / 2;
  if (bytes < (host ? PIECE_LEAST_HOST : PIECE_LEAST)) bytes = host ? PIECE_LEAST_HOST : PIECE_LEAST;
  if (bytes > PIECE_MOST) bytes = PIECE_MOST;
  if (least > grain)
    bytes = (bytes + least - 1) / least * least; /* blocks of one size are usually allocated together */
  return (bytes + grain - 1) / grain * grain;
}

static ncclResult_t piece_alloc(struct arena_piece *piece, uint64_t bytes) {
  struct share_ticket ticket;
  void *base = NULL;
  static_assert(sizeof ticket <= sizeof piece->handle, "a handle holds a ticket");
  piece->life = cuda_life(piece->maker_index);
  if (piece->device_index == ARENA_SHM) {
    TRY(cuda_shm_make(bytes, &piece->pages, &ticket));
    memcpy(&piece->handle, &ticket, sizeof ticket);
    piece->has_handle = true;
    base = piece->pages.device;
  } else if (piece->device_index == ARENA_HOST) {
    TRY(cuda_host_take(bytes, &piece->host));
    base = piece->host.data;
  } else {
    TRY(cuda_zeroed_device(bytes, &base));
  }
  piece->base = (uint8_t *)base;
  return ncclSuccess;
}

static ncclResult_t piece_make(uint32_t device_index, uint32_t maker_index, uint64_t least,
                               struct arena_piece **made) {
  const uint64_t bytes = piece_bytes(device_index, least);
  struct arena_piece *piece = (struct arena_piece *)os_alloc(sizeof *piece);
  if (piece == NULL || !extents_open(&piece->extents, bytes)) {
    os_free(piece);
    return log_no_memory("device %u: noting a piece of its memory", device_index);
  }
  piece->device_index = device_index;
  piece->maker_index = maker_index;
  const ncclResult_t result = piece_alloc(piece, bytes);
  if (result != ncclSuccess) {
    extents_close(&piece->extents);
    os_free(piece);
    return result;
  }
  piece->number = ++last_number;
  piece->next = pieces[device_index];
  pieces[device_index] = piece;
  held_bytes[device_index] += bytes;
  *made = piece;
  return ncclSuccess;
}

static bool piece_lost(const struct arena_piece *piece) {
  return piece->life != cuda_life(piece->maker_index);
}

bool cuda_arena_lost(const struct arena_block *block) { return piece_lost(block->piece); }

static bool piece_take(struct arena_piece *piece, uint64_t bytes, struct arena_block *block, bool *fresh) {
  if (!extents_take(&piece->extents, bytes, &block->extent, fresh)) return false;
  block->piece = piece;
  block->address = piece->base + block->extent.offset;
  return true;
}

ncclResult_t cuda_arena_take(uint32_t device_index, uint64_t bytes, struct arena_block *block) {
  struct arena_block taken = {NULL, NULL, {0, 0}};
  bool fresh = true;
  int maker = 0;
  TRY(cuda_result(cudaGetDevice(&maker), "asking for the thread's device"));
  for (struct arena_piece *piece = pieces[device_index]; piece != NULL && taken.address == NULL;
       piece = piece->next)
    if (piece->maker_index == (uint32_t)maker && !piece_lost(piece) &&
        piece_take(piece, bytes, &taken, &fresh))
      break;
  if (taken.address == NULL) {
    struct arena_piece *piece = NULL;
    TRY(piece_make(device_index, (uint32_t)maker, bytes, &piece));
    piece_take(piece, bytes, &taken, &fresh);
  }
  ncclResult_t result = ncclSuccess;
  if (!fresh && device_index == ARENA_HOST) memset(taken.address, 0, bytes);
  else if (!fresh) result = cuda_zero(taken.address, bytes);
  if (result == ncclSuccess) *block = taken;
  else cuda_arena_give(&taken);
  return result;
}

void cuda_arena_give(struct arena_block *block) {
  if (block->address == NULL) return;
  extents_give(&block->piece->extents, &block->extent);
  block->address = NULL;
}

static void piece_free(struct arena_piece *piece) {
  held_bytes[piece->device_index] -= piece->extents.bytes;
  if (piece->device_index == ARENA_SHM) cuda_shm_free(&piece->pages);
  else if (piece->device_index == ARENA_HOST) cuda_host_give(&piece->host, piece_lost(piece));
  else if (!piece_lost(piece) && cudaFree(piece->base) != cudaSuccess) cudaGetLastError();
  extents_close(&piece->extents);
  os_free(piece);
}

/* `serial`: pieces that were shown to this communicator alone are not mapped any more; 0: of none is that
 * known. */
static void pieces_trim(uint32_t device_index, uint64_t serial) {
  for (struct arena_piece **place = &pieces[device_index], *piece; (piece = *place) != NULL;) {
    const bool own = device_index == ARENA_SHM || piece_lost(piece) || !piece->has_handle;
    const bool closed = serial != 0 && piece->shown_to == serial;
    if (piece->extents.taken_bytes > 0 || (!own && !closed)) {
      place = &piece->next;
      continue;
    }
    *place = piece->next;
    piece_free(piece);
  }
}

void cuda_arena_trim(void) {
  for (uint32_t i = 0; i <= ARENA_SHM; i++) pieces_trim(i, 0);
}

void cuda_arena_trim_of(uint32_t device_index, uint64_t serial) {
  pieces_trim(device_index, serial);
  pieces_trim(ARENA_HOST, serial);
  pieces_trim(ARENA_SHM, serial);
}

void cuda_arena_show(struct arena_piece *piece, uint64_t serial) {
  if (piece->shown_to == 0) piece->shown_to = serial;
  else if (piece->shown_to != serial) piece->shown_to = ARENA_SHOWN_TO_SEVERAL;
}

ncclResult_t cuda_arena_handle(struct arena_piece *piece) {
  if (piece->has_handle) return ncclSuccess;
  const cudaError_t error = cudaIpcGetMemHandle(&piece->handle, piece->base);
  if (error == cudaErrorNotSupported) { /* as virtual GPUs answer */
    cudaGetLastError();
    log_info(LOG_INIT, "the driver has no CUDA IPC here: processes share memory of the host instead");
    return ncclUnhandledCudaError;
  }
  TRY(cuda_result((int)error, "offering device memory to other processes (cudaIpcGetMemHandle)"));
  piece->has_handle = true;
  return ncclSuccess;
}
