/* ipc_region.c: outputs that kernels of other processes store into. A rank exports the allocation of an
 * output when the output is used again, and each peer maps the whole allocation; later offers contain the
 * peer's addresses. At each launch the driver's id of the allocation shows whether an address still refers to
 * the same memory. It promises that unmapping, which may wait for kernels, is done without a lock. */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/ipc.h"
#include "base/log.h"

#define USES_BEFORE_ASKED 2u             /* memory that is used once is not worth exporting */
#define REGION_GRAIN (UINT64_C(2) << 20) /* smaller allocations share an exported page with others */

/* ---- the owner ---- */

static bool is_mappable(const struct device_comm *comm, const struct region *region) {
  struct cudaPointerAttributes attributes;
  const void *base = (const void *)(uintptr_t)region->base;
  if (region->base % REGION_GRAIN != 0 || region->bytes < REGION_GRAIN) return false;
  if (cudaPointerGetAttributes(&attributes, base) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice && attributes.device == (int)comm->config.device_index &&
         cuda_memory_is_plain(base);
}

/* The region of the memory that is at this address now. */
static struct region *region_now(struct device_comm *comm, uint64_t address) {
  uint64_t base = 0, bytes = 0;
  const uint64_t id = cuda_memory_id(address);
  struct region *region;
  while ((region = region_find(&comm->regions, address)) != NULL) {
    if (region->id == id) return region;
    region_retire(&comm->regions, region);
  }
  if (id == 0 || !cuda_memory_range(address, &base, &bytes)) return NULL;
  region = region_add(&comm->regions, base, bytes, id);
  if (region != NULL) region->mappable = is_mappable(comm, region);
  return region;
}

static bool region_offer(struct region *region) {
  cudaIpcMemHandle_t handle;
  if (region->offered) return true;
  if (cudaIpcGetMemHandle(&handle, (void *)(uintptr_t)region->base) != cudaSuccess) {
    cudaGetLastError();
    region->mappable = false;
    return false;
  }
  region->piece.owner = cuda_ipc_owner();
  region->piece.number = region->id | IPC_NUMBER_OF_REGION;
  region->piece.bytes = region->bytes;
  memcpy(region->piece.handle, &handle, sizeof handle);
  region->offered = true;
  return true;
}

static void handle_write(const struct ipc_piece *piece, struct device_memory_handle *handle) {
  struct ipc_memory_handle content;
  memset(&content, 0, sizeof content);
  content.piece = *piece;
  content.process = *cuda_ipc_self();
  ipc_memory_handle_write(&content, handle);
}

void cuda_region_check(struct device_comm *comm, const void *memory, bool lasts) {
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_conns_lock(comm);
  struct region *region = region_now(comm, (uint64_t)(uintptr_t)memory);
  if (region != NULL && region->use_count < USES_BEFORE_ASKED) region->use_count += 1;
  if (region != NULL && lasts) region->lasts = true;
  cuda_conns_unlock(comm);
  cuda_scope_leave(&scope);
}

/* Called with the lock held. */
static bool region_wanted(struct device_comm *comm, uint64_t address, uint32_t peer,
                          struct device_memory_handle *handle) {
  struct region *region = region_find(&comm->regions, address);
  if (region == NULL || !region->mappable || region->answers[peer] != REGION_UNASKED) return false;
  if ((region->use_count < USES_BEFORE_ASKED && !region->lasts) || !region_offer(region)) return false;
  region->answers[peer] = REGION_ASKED;
  handle_write(&region->piece, handle);
  return true;
}

bool cuda_region_ask(struct device_comm *comm, const void *memory, uint32_t peer,
                     struct device_memory_handle *handle) {
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_conns_lock(comm);
  const bool wanted = region_wanted(comm, (uint64_t)(uintptr_t)memory, peer, handle);
  cuda_conns_unlock(comm);
  cuda_scope_leave(&scope);
  return wanted;
}

void cuda_region_answered(struct device_comm *comm, uint32_t peer, const struct device_memory_handle *handle,
                          uint64_t address) {
  struct ipc_memory_handle content;
  if (!ipc_memory_handle_read(handle, &content)) return;
  cuda_conns_lock(comm);
  struct region *region = region_of_piece(&comm->regions, content.piece.number);
  if (region != NULL) region->answers[peer] = address > REGION_REFUSED ? address : REGION_REFUSED;
  cuda_conns_unlock(comm);
}

bool cuda_region_shift(struct device_comm *comm, const void *output, uint32_t peer, uint64_t *shift) {
  const struct region *region = region_find(&comm->regions, (uint64_t)(uintptr_t)output);
  if (region == NULL || region->answers[peer] <= REGION_REFUSED) return false;
  *shift = region->answers[peer] - region->base;
  return true;
}

/* Called with the lock held: finds what the program has freed since the last call. */
static void regions_look(struct device_comm *comm) {
  for (struct region *region = comm->regions.first, *next; region != NULL; region = next) {
    next = region->next;
    if (cuda_memory_id(region->base) != region->id) region_retire(&comm->regions, region);
  }
}

bool cuda_region_gone(struct device_comm *comm, uint32_t *peer, struct device_memory_handle *handle) {
  struct ipc_piece piece;
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_conns_lock(comm);
  regions_look(comm);
  const bool idle = __atomic_load_n(&comm->launching, __ATOMIC_ACQUIRE) == 0 && cuda_comm_idle(comm);
  const bool gone = region_next_gone(&comm->regions, idle, peer, &piece);
  cuda_conns_unlock(comm);
  cuda_scope_leave(&scope);
  if (gone) handle_write(&piece, handle);
  return gone;
}

/* ---- the process that maps it ---- */

/* A region of another process that this rank's kernels store into. */
struct cuda_guest_region {
  struct ipc_mapping *mapping;
  struct cuda_guest_region *next;
};

static struct cuda_guest_region **guest_place(struct device_comm *comm, const struct ipc_piece *piece) {
  struct cuda_guest_region **place = &comm->guests;
  while (*place != NULL &&
         ((*place)->mapping->piece.owner != piece->owner || (*place)->mapping->piece.number != piece->number))
    place = &(*place)->next;
  return place;
}

/* Called with the lock held. */
static ncclResult_t guest_map(struct device_comm *comm, uint32_t peer, const struct ipc_memory_handle *handle,
                              uint64_t *address) {
  struct cuda_guest_region **place = guest_place(comm, &handle->piece), *guest = *place;
  char whose[64];
  if (guest == NULL) {
    guest = (struct cuda_guest_region *)os_alloc(sizeof *guest);
    if (guest == NULL) return log_no_memory("noting memory of rank %u", peer);
    snprintf(whose, sizeof whose, "rank %u (process %d)", peer, (int)handle->process.number);
    const ncclResult_t result =
        cuda_ipc_map(comm->config.device_index, &handle->piece, &handle->process, whose, &guest->mapping);
    if (result != ncclSuccess) {
      os_free(guest);
      return result;
    }
    guest->next = comm->guests;
    comm->guests = guest;
  }
  *address = (uint64_t)(uintptr_t)guest->mapping->base;
  return ncclSuccess;
}

ncclResult_t cuda_region_map(struct device_comm *comm, uint32_t peer,
                             const struct device_memory_handle *handle, uint64_t *address) {
  struct ipc_memory_handle content;
  if (!ipc_memory_handle_read(handle, &content))
    return log_fail(ncclInvalidUsage,
                    "comm %s: what rank %u says of its memory is not understood; use the same build on all "
                    "ranks",
                    comm->name, peer);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_lock();
  const ncclResult_t result = guest_map(comm, peer, &content, address);
  cuda_unlock();
  cuda_scope_leave(&scope);
  return result;
}

static void guest_drop(struct cuda_guest_region **place) {
  struct cuda_guest_region *guest = *place;
  *place = guest->next;
  cuda_ipc_unmap(guest->mapping);
  os_free(guest);
}

void cuda_region_unmap(struct device_comm *comm, uint32_t peer, const struct device_memory_handle *handle) {
  struct ipc_memory_handle content;
  (void)peer;
  if (!ipc_memory_handle_read(handle, &content)) return;
  cuda_lock();
  struct cuda_guest_region **place = guest_place(comm, &content.piece);
  if (*place != NULL) guest_drop(place);
  cuda_unlock();
}

void cuda_regions_close(struct device_comm *comm) {
  while (comm->guests != NULL) guest_drop(&comm->guests);
  regions_free(&comm->regions);
}

/* Unmapping waits for all kernels of the device. None of this library's run then, unless one is launched
 * meanwhile. */
void cuda_region_sweep(void) {
  cuda_lock();
  struct ipc_mapping *unused = cuda_all_idle() ? cuda_ipc_take_unused(true) : NULL;
  cuda_unlock();
  cuda_ipc_close(unused);
}
