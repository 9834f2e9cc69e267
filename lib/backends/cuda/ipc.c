/* ipc.c: see ipc.h. */
#include "backends/cuda/ipc.h"

#include <assert.h>
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/path.h"
#include "backends/cuda/topology.h"
#include "base/log.h"
#include "base/param.h"

static struct ipc_mapping *mappings;

/* A few bytes on each device that other processes read in the trial mapping. */
static struct {
  struct arena_block block;
  uint64_t token;
} probes[DEVICES_MAX];

/* What other processes map in a trial: a block as long as the longest pieces, so that limits on addresses and
 * sizes show, of which the first page alone is used. Its first word is the token. */
#define PROBE_BYTES (UINT64_C(64) << 20)
#define PROBE_PAGE_BYTES UINT64_C(4096)
static struct {
  struct shm_pages pages;
  struct share_ticket ticket;
  uint64_t token;
} shm_probe;

uint64_t cuda_ipc_owner(void) {
  static uint64_t number;
  while (number == 0) number = os_entropy();
  return number;
}

const struct os_process *cuda_ipc_self(void) {
  static struct os_process process;
  if (process.number == 0) os_process_self(&process);
  return &process;
}

ncclResult_t cuda_ipc_offer(struct arena_piece *piece, struct ipc_piece *offer) {
  static_assert(sizeof piece->handle == IPC_HANDLE_BYTES, "as long as CUDA's handle");
  TRY(cuda_arena_handle(piece));
  offer->owner = cuda_ipc_owner();
  offer->number = piece->number | (piece->device_index == ARENA_SHM ? IPC_NUMBER_OF_SHM : 0);
  offer->bytes = piece->extents.bytes;
  memcpy(offer->handle, &piece->handle, sizeof piece->handle);
  return ncclSuccess;
}

/* ---- mappings ---- */

/* True if the mapping is as long as its owner states. */
static bool range_holds(const void *base, uint64_t bytes) {
  uint64_t begin, mapped_bytes;
  return cuda_memory_range((uintptr_t)base, &begin, &mapped_bytes) &&
         begin + mapped_bytes >= (uint64_t)(uintptr_t)base + bytes;
}

static const char *cure_of(cudaError_t error) {
  if (error == cudaErrorPeerAccessUnsupported || error == cudaErrorInvalidDevice)
    return "the driver has no peer access between the two GPUs; `nvidia-smi topo -p2p n` says why";
  if (error == cudaErrorMemoryAllocation)
    return "device memory or addresses are used up; leave some to the library";
  return "containers need the same IPC and PID namespaces (docker run --ipc=host --pid=host) and both GPUs; "
         "NCCL_P2P_DISABLE=1 avoids the attempt";
}

static ncclResult_t mapping_open_shm(struct ipc_mapping *mapping, const char *whose) {
  struct share_ticket ticket;
  memcpy(&ticket, mapping->piece.handle, sizeof ticket);
  TRY(cuda_shm_map(&ticket, mapping->piece.bytes, whose, &mapping->pages));
  mapping->base = mapping->pages.device;
  return ncclSuccess;
}

static ncclResult_t mapping_open(struct ipc_mapping *mapping, const char *whose) {
  cudaIpcMemHandle_t handle;
  void *base = NULL;
  memcpy(&handle, mapping->piece.handle, sizeof handle);
  const cudaError_t error = cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return log_fail(
        ncclUnhandledCudaError,
        "device %u cannot map device memory of %s: cudaIpcOpenMemHandle failed with CUDA error %d "
        "(%s): %s",
        mapping->device_index, whose, (int)error, cudaGetErrorString(error), cure_of(error));
  }
  if (range_holds(base, mapping->piece.bytes)) {
    mapping->base = (uint8_t *)base;
    return ncclSuccess;
  }
  cudaIpcCloseMemHandle(base);
  return log_fail(ncclInvalidUsage,
                  "device memory of %s is smaller than its handle states; use the same build on all ranks",
                  whose);
}

static ncclResult_t window_open(struct ipc_mapping *mapping, const struct ipc_range *range, int descriptor,
                                const char *whose) {
  return cuda_window_map(mapping->device_index, &mapping->piece, range, descriptor, whose, &mapping->window,
                         &mapping->base);
}

static struct ipc_mapping *mapping_find(uint32_t device_index, const struct ipc_piece *piece) {
  struct ipc_mapping *mapping = mappings;
  while (mapping != NULL &&
         (mapping->lost || (mapping->device_index != device_index && !ipc_piece_on_host(piece)) ||
          mapping->piece.owner != piece->owner || mapping->piece.number != piece->number))
    mapping = mapping->next;
  return mapping;
}

/* `range` NULL: a piece of cudaMalloc. */
static ncclResult_t mapping_take(uint32_t device_index, const struct ipc_piece *piece,
                                 const struct os_process *process, const struct ipc_range *range,
                                 int descriptor, const char *whose, struct ipc_mapping **mapping) {
  struct ipc_mapping *found = mapping_find(device_index, piece);
  if (found == NULL) {
    found = (struct ipc_mapping *)os_alloc(sizeof *found);
    if (found == NULL) return log_no_memory("noting device memory of %s", whose);
    found->device_index = device_index;
    found->piece = *piece;
    found->process = *process;
    const ncclResult_t result = ipc_piece_on_host(piece) ? mapping_open_shm(found, whose)
                                : range != NULL          ? window_open(found, range, descriptor, whose)
                                                         : mapping_open(found, whose);
    if (result != ncclSuccess) {
      os_free(found);
      return result;
    }
    found->next = mappings;
    mappings = found;
  }
  found->use_count += 1;
  *mapping = found;
  return ncclSuccess;
}

ncclResult_t cuda_ipc_map(uint32_t device_index, const struct ipc_piece *piece,
                          const struct os_process *process, const char *whose, struct ipc_mapping **mapping) {
  return mapping_take(device_index, piece, process, NULL, -1, whose, mapping);
}

ncclResult_t cuda_ipc_map_in_range(uint32_t device_index, const struct ipc_memory_handle *handle,
                                   int descriptor, const char *whose, struct ipc_mapping **mapping) {
  return mapping_take(device_index, &handle->piece, &handle->process, &handle->range, descriptor, whose,
                      mapping);
}

void cuda_ipc_forget(uint32_t device_index) {
  for (struct ipc_mapping *mapping = mappings; mapping != NULL; mapping = mapping->next)
    if (mapping->device_index == device_index) mapping->lost = true;
  cuda_arena_give(&probes[device_index].block);
  cuda_shm_unregister(&shm_probe.pages); /* it is not noted in which device's context they are registered */
}

void cuda_ipc_unmap(struct ipc_mapping *mapping) {
  if (mapping != NULL) mapping->use_count -= 1;
}

static bool is_unused_region(const struct ipc_mapping *mapping) {
  return mapping->use_count == 0 && (mapping->piece.number & IPC_NUMBER_OF_REGION) != 0;
}

bool cuda_ipc_has_unused(void) {
  const struct ipc_mapping *mapping = mappings;
  while (mapping != NULL && !is_unused_region(mapping)) mapping = mapping->next;
  return mapping != NULL;
}

struct ipc_mapping *cuda_ipc_take_unused(bool (*idle)(uint32_t device_index)) {
  struct ipc_mapping *taken = NULL;
  for (struct ipc_mapping **place = &mappings, *mapping; (mapping = *place) != NULL;) {
    const bool ready =
        idle == NULL ? mapping->use_count == 0 : is_unused_region(mapping) && idle(mapping->device_index);
    if (!ready) {
      place = &mapping->next;
      continue;
    }
    *place = mapping->next;
    mapping->next = taken;
    taken = mapping;
  }
  return taken;
}

void cuda_ipc_close(struct ipc_mapping *taken) {
  for (struct ipc_mapping *next; taken != NULL; taken = next) {
    next = taken->next;
    if (taken->lost && taken->window == NULL && !ipc_piece_on_host(&taken->piece)) {
      os_free(taken);
      continue;
    }
    const struct cuda_scope scope = cuda_scope_enter(taken->device_index);
    if (ipc_piece_on_host(&taken->piece)) cuda_shm_unmap(&taken->pages);
    else if (taken->window != NULL) cuda_window_unmap(taken->window, taken->base, taken->piece.bytes);
    else if (cudaIpcCloseMemHandle(taken->base) != cudaSuccess) cudaGetLastError();
    cuda_scope_leave(&scope);
    os_free(taken);
  }
}

/* ---- memory of the host ---- */

static ncclResult_t shm_probe_make(void) {
  if (shm_probe.pages.host != NULL) return ncclSuccess;
  shm_probe.token = os_entropy();
  TRY(share_alloc(PROBE_BYTES, &shm_probe.pages.host, &shm_probe.ticket));
  shm_probe.pages.bytes = PROBE_PAGE_BYTES;
  memcpy(shm_probe.pages.host, &shm_probe.token, sizeof shm_probe.token);
  return ncclSuccess;
}

void cuda_ipc_probe_close(void) { cuda_shm_free(&shm_probe.pages); }

/* Registers this process's page, and reads the peer's on the device. */
static ncclResult_t shm_try(uint32_t device_index, uint32_t peer, const struct ipc_comm_handle *handle) {
  struct ipc_piece piece = {handle->shm.owner[0],
                            (handle->shm.number & ~IPC_NUMBER_OF_REGION) | IPC_NUMBER_OF_SHM,
                            PROBE_PAGE_BYTES,
                            {0}};
  struct ipc_mapping *mapping = NULL;
  uint64_t token = 0;
  char whose[64];
  memcpy(piece.handle, &handle->shm, sizeof handle->shm);
  snprintf(whose, sizeof whose, "rank %u (process %d)", peer, (int)handle->process.number);
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  ncclResult_t result = cuda_shm_register(&shm_probe.pages, "this process");
  if (result == ncclSuccess) result = cuda_ipc_map(device_index, &piece, &handle->process, whose, &mapping);
  if (result == ncclSuccess) result = cuda_memory_fetch(&token, mapping->base, sizeof token);
  if (result == ncclSuccess && token != handle->shm_token)
    result = log_fail(ncclSystemError, "device %u reads other data in shared memory of %s than it wrote",
                      device_index, whose);
  cuda_ipc_unmap(mapping);
  cuda_scope_leave(&scope);
  return result;
}

/* ---- handles ---- */

static ncclResult_t probe_make(uint32_t device_index) {
  struct arena_block block = {NULL, NULL, {0, 0}};
  if (probes[device_index].block.address != NULL) return ncclSuccess;
  const uint64_t token = os_entropy();
  TRY(cuda_arena_take(device_index, sizeof token, &block));
  const ncclResult_t result = cuda_memory_write(block.address, &token, sizeof token);
  if (result != ncclSuccess) cuda_arena_give(&block);
  TRY(result);
  probes[device_index].token = token;
  probes[device_index].block = block;
  return ncclSuccess;
}

static ncclResult_t handle_fill(const struct device_comm *comm, struct ipc_comm_handle *content) {
  const uint32_t device_index = comm->config.device_index;
  const struct arena_block *block = &probes[device_index].block;
  char name[PCI_NAME_BYTES];
  TRY(cuda_result(cudaDeviceGetPCIBusId(name, sizeof name, (int)device_index),
                  "asking for a device's place on the bus"));
  if (!pci_name(name, content->bus_id)) snprintf(content->bus_id, sizeof content->bus_id, "%s", name);
  content->level = (uint32_t)topology_level();
  content->process = *cuda_ipc_self();
  if (content->level == PATH_LOC) content->flags |= IPC_NO_SHARING;
  if ((content->flags & IPC_NO_SHARING) != 0) return ncclSuccess;
  TRY(probe_make(device_index));
  TRY(cuda_ipc_offer(block->piece, &content->piece));
  content->probe = block->extent.offset;
  content->token = probes[device_index].token;
  return ncclSuccess;
}

static ncclResult_t shm_fill(struct ipc_comm_handle *content) {
  if (param_int(PARAM_SHM_DISABLE) != 0) content->flags |= IPC_NO_SHM;
  else if (shm_probe_make() != ncclSuccess) return ncclSystemError;
  content->shm = shm_probe.ticket;
  content->shm_token = shm_probe.token;
  return ncclSuccess;
}

ncclResult_t cuda_comm_handle(struct device_comm *comm, struct device_comm_handle *handle) {
  struct ipc_comm_handle content;
  memset(&content, 0, sizeof content);
  cuda_lock();
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  if (handle_fill(comm, &content) != ncclSuccess) {
    content.flags |= IPC_NO_SHARING;
    log_info(LOG_INIT | LOG_P2P, "comm %s: rank %u shares no memory of its device with other processes",
             comm->name, comm->config.rank);
  }
  if (shm_fill(&content) != ncclSuccess) {
    content.flags |= IPC_NO_SHM;
    log_info(LOG_INIT | LOG_SHM, "comm %s: rank %u shares no memory of the host with other processes: %s",
             comm->name, comm->config.rank, log_last_error());
  }
  cuda_scope_leave(&scope);
  cuda_unlock();
  ipc_comm_handle_write(&content, handle);
  return ncclSuccess;
}

/* Maps the piece and compares the token that the owner wrote. */
static ncclResult_t reach_try(uint32_t device_index, uint32_t peer, const struct ipc_comm_handle *handle) {
  struct ipc_mapping *mapping = NULL;
  uint64_t token = 0;
  char whose[96];
  snprintf(whose, sizeof whose, "rank %u (process %d, GPU %.31s)", peer, (int)handle->process.number,
           handle->bus_id);
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  ncclResult_t result = cuda_ipc_map(device_index, &handle->piece, &handle->process, whose, &mapping);
  if (result == ncclSuccess) result = cuda_memory_fetch(&token, mapping->base + handle->probe, sizeof token);
  if (result == ncclSuccess && token != handle->token)
    result = log_fail(ncclSystemError,
                      "device %u maps device memory of %s, but reads other data than the peer wrote; "
                      "likely causes are an IOMMU or PCI access control (ACS); set NCCL_P2P_DISABLE=1",
                      device_index, whose);
  cuda_ipc_unmap(mapping);
  cuda_scope_leave(&scope);
  return result;
}

/* The same result at both ends: the shorter level counts. */
static bool level_allows(uint32_t device_index, uint32_t peer, const struct ipc_comm_handle *handle) {
  struct device_path_info info;
  const enum device_path_type own = topology_level();
  const enum device_path_type level =
      handle->level < (uint32_t)own ? (enum device_path_type)handle->level : own;
  topology_path_named(device_index, handle->bus_id, &info);
  if (info.type <= level) return true;
  log_warn(
      "the path from device %u to GPU %.31s of rank %u is %s, and NCCL_P2P_LEVEL allows none longer than "
      "%s; set it higher for direct access",
      device_index, handle->bus_id, peer, info.name, path_name(level));
  return false;
}

/* Called with the lock held. */
static bool reach_find(uint32_t device_index, uint32_t peer, const struct ipc_comm_handle *handle) {
  if (topology_level() == PATH_LOC || (handle->flags & IPC_NO_SHARING) != 0) return false;
  if (handle->piece.owner == cuda_ipc_owner()) return true;
  return level_allows(device_index, peer, handle) && reach_try(device_index, peer, handle) == ncclSuccess;
}

/* Called with the lock held. */
static bool shm_find(uint32_t device_index, uint32_t peer, const struct ipc_comm_handle *handle) {
  if (param_int(PARAM_SHM_DISABLE) != 0 || (handle->flags & IPC_NO_SHM) != 0) return false;
  if (handle->shm.number == shm_probe.ticket.number) return true;
  return share_possible(&handle->shm) && shm_probe.pages.host != NULL &&
         shm_try(device_index, peer, handle) == ncclSuccess;
}

static ncclResult_t handle_read(const struct device_comm *comm, uint32_t peer,
                                const struct device_comm_handle *handle, struct ipc_comm_handle *content) {
  if (ipc_comm_handle_read(handle, content)) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "comm %s: what rank %u says of its device is not understood; use the same build and "
                  "backend on all ranks",
                  comm != NULL ? comm->name : "to be", peer);
}

ncclResult_t cuda_comm_reach_shm(struct device_comm *comm, uint32_t peer,
                                 const struct device_comm_handle *handle, bool *reach) {
  struct ipc_comm_handle content;
  TRY(handle_read(comm, peer, handle, &content));
  cuda_lock();
  *reach = shm_find(comm != NULL ? comm->config.device_index : cuda_device_in_use(), peer, &content);
  cuda_unlock();
  return ncclSuccess;
}

ncclResult_t cuda_comm_check(struct device_comm *comm, uint32_t peer,
                             const struct device_comm_handle *handle) {
  struct ipc_comm_handle content;
  TRY(handle_read(comm, peer, handle, &content));
  cuda_lock();
  const ncclResult_t result =
      topology_check(comm != NULL ? comm->config.device_index : cuda_device_in_use(), content.bus_id);
  cuda_unlock();
  return result;
}

ncclResult_t cuda_comm_reach(struct device_comm *comm, uint32_t peer, const struct device_comm_handle *handle,
                             bool *reach) {
  struct ipc_comm_handle content;
  TRY(handle_read(comm, peer, handle, &content));
  cuda_lock();
  *reach = reach_find(comm != NULL ? comm->config.device_index : cuda_device_in_use(), peer, &content);
  cuda_unlock();
  return ncclSuccess;
}
