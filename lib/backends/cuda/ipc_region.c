/* ipc_region.c: outputs that kernels of other processes store into, and inputs that they read. A rank exports
 * the allocation of a buffer when the buffer is used again, and each peer maps the whole allocation; later
 * offers contain the peer's addresses. A buffer in mapped ranges has as many allocations as pieces. At each
 * launch the driver's id of the allocation shows whether an address still refers to the same memory. It
 * promises that unmapping, which may wait for kernels, is done without a lock. */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/ipc.h"
#include "base/log.h"
#include "base/param.h"

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

/* How a piece of a mapped range can be exported, or IPC_LEGACY: not at all. */
static uint32_t piece_kind(struct device_comm *comm, const struct mapped_memory *memory) {
  struct cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, (const void *)(uintptr_t)memory->base) != cudaSuccess) {
    cudaGetLastError();
    return IPC_LEGACY;
  }
  if (attributes.type != cudaMemoryTypeDevice || attributes.device != (int)comm->config.device_index)
    return IPC_LEGACY;
  if ((memory->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return IPC_DESCRIPTOR;
  const bool fabric = (memory->handle_types & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  if (fabric && param_int(PARAM_MNNVL_ENABLE) != 0) return IPC_FABRIC;
  if (!comm->hidden_said)
    log_info(
        LOG_REG,
        "comm %s: rank %u: other processes cannot map the memory of cuMemCreate at 0x%llx, and its data goes "
        "through slots: %s",
        comm->name, comm->config.rank, (unsigned long long)memory->base,
        fabric ? "it allows fabric handles only, which NCCL_MNNVL_ENABLE=0 excludes"
               : "it was created without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR in requestedHandleTypes");
  comm->hidden_said = true;
  return IPC_LEGACY;
}

static struct region *piece_add(struct device_comm *comm, const struct mapped_memory *memory) {
  struct region *region = region_add(&comm->regions, memory->base, memory->bytes, memory->id, true);
  if (region == NULL) return NULL;
  region->range = memory->range;
  region->range.kind = piece_kind(comm, memory);
  region->mappable = region->range.kind != IPC_LEGACY;
  return region;
}

static uint64_t id_now(uint64_t address, uint64_t base, bool is_piece) {
  return is_piece ? cuda_mapped_id(address, base) : cuda_memory_id(address);
}

/* The program has freed it. */
static void region_lose(struct device_comm *comm, struct region *region) {
  if (region->windows > 0)
    log_warn(
        "comm %s: rank %u: the memory at 0x%llx of a window was freed while it is registered, and ranks of "
        "other processes put into it no more; call ncclCommWindowDeregister before the memory is freed",
        comm->name, comm->config.rank, (unsigned long long)region->base);
  region->windows = 0;
  region_retire(&comm->regions, region);
}

/* The region of the memory that is at this address now. */
static struct region *region_now(struct device_comm *comm, uint64_t address) {
  uint64_t base = 0, bytes = 0;
  struct mapped_memory mapped;
  struct region *region;
  while ((region = region_find(&comm->regions, address)) != NULL) {
    if (region->id == id_now(address, region->base, region->is_piece)) return region;
    region_lose(comm, region);
  }
  if (cuda_mapped_find(address, &mapped)) return piece_add(comm, &mapped);
  const uint64_t id = cuda_memory_id(address);
  if (id == 0 || !cuda_memory_range(address, &base, &bytes)) return NULL;
  region = region_add(&comm->regions, base, bytes, id, false);
  if (region != NULL) region->mappable = is_mappable(comm, region);
  return region;
}

static bool region_export(struct region *region, int *descriptor) {
  cudaIpcMemHandle_t handle;
  if (region->range.kind != IPC_LEGACY)
    return (region->range.kind == IPC_FABRIC && region->offered) ||
           cuda_mapped_export(region->base, region->range.kind, descriptor, region->piece.handle);
  if (region->offered) return true;
  if (cudaIpcGetMemHandle(&handle, (void *)(uintptr_t)region->base) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  memcpy(region->piece.handle, &handle, sizeof handle);
  return true;
}

static bool region_offer(struct region *region, int *descriptor) {
  if (!region_export(region, descriptor)) {
    region->mappable = false;
    return false;
  }
  region->piece.owner = cuda_ipc_owner();
  region->piece.number = region->id | IPC_NUMBER_OF_REGION;
  region->piece.bytes = region->bytes;
  region->offered = true;
  return true;
}

static void handle_write(const struct ipc_piece *piece, const struct ipc_range *range,
                         struct device_memory_handle *handle) {
  struct ipc_memory_handle content;
  memset(&content, 0, sizeof content);
  content.piece = *piece;
  if (range != NULL) content.range = *range;
  content.process = *cuda_ipc_self();
  ipc_memory_handle_write(&content, handle);
}

static void region_use(struct region *region, bool lasts) {
  region->idle_looks = 0;
  if (region->use_count < USES_BEFORE_ASKED) region->use_count += 1;
  if (region->later_uses > 0) region->later_uses -= 1;
  if (lasts) region->lasts = true;
}

/* More pieces than are noted would displace each other at every launch. */
static bool is_shown_in_pieces(const struct region *first, size_t bytes) {
  return bytes / (REGION_PIECES_MOST / 2) < first->bytes;
}

void cuda_region_check(struct device_comm *comm, const void *memory, size_t bytes, bool lasts) {
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const uint64_t end = (uint64_t)(uintptr_t)memory + bytes;
  cuda_conns_lock(comm);
  struct region *region = region_now(comm, (uint64_t)(uintptr_t)memory);
  const bool shown = region != NULL && is_shown_in_pieces(region, bytes);
  while (region != NULL) {
    region_use(region, lasts);
    const uint64_t next = region->base + region->bytes;
    region = shown && region->mappable && next < end ? region_now(comm, next) : NULL;
  }
  cuda_conns_unlock(comm);
  cuda_scope_leave(&scope);
}

static bool region_is_due(const struct region *region, uint32_t peer) {
  return region->answers[peer] == REGION_UNASKED && region->later_uses == 0;
}

/* All of the buffer can be mapped; *due: the first of its regions that the peer is to be asked for, or NULL.
 */
static bool buffer_find(struct regions *regions, uint64_t address, size_t bytes, uint32_t peer,
                        struct region **due) {
  const uint64_t end = address + bytes;
  *due = NULL;
  for (struct region *region = region_find(regions, address); region != NULL;
       region = region_beside(regions, region)) {
    if (!region->mappable || region->answers[peer] == REGION_REFUSED) return false;
    if (region->use_count < USES_BEFORE_ASKED && !region->lasts) return false;
    if (*due == NULL && region_is_due(region, peer)) *due = region;
    if (end <= region->base + region->bytes) return true;
  }
  return false;
}

bool cuda_region_ask(struct device_comm *comm, const void *memory, size_t bytes, uint32_t peer,
                     struct device_memory_handle *handle, int *descriptor) {
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  struct region *region = NULL;
  cuda_conns_lock(comm);
  const bool wanted = buffer_find(&comm->regions, (uint64_t)(uintptr_t)memory, bytes, peer, &region) &&
                      region != NULL && region_offer(region, descriptor);
  if (wanted) {
    region->answers[peer] = REGION_ASKED;
    handle_write(&region->piece, &region->range, handle);
  }
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
  if (region != NULL) region_answer(region, peer, address);
  cuda_conns_unlock(comm);
}

bool cuda_region_shift(struct device_comm *comm, const void *memory, size_t bytes, uint32_t peer,
                       uint64_t *shift) {
  return region_shift(&comm->regions, (uint64_t)(uintptr_t)memory, bytes, peer, shift);
}

/* ---- windows ---- */

void cuda_window_hold(struct device_comm *comm, const void *memory, size_t bytes, bool holds) {
  if (holds) cuda_region_check(comm, memory, bytes, true);
  cuda_conns_lock(comm);
  regions_hold(&comm->regions, (uint64_t)(uintptr_t)memory, bytes, holds);
  cuda_conns_unlock(comm);
}

/* It waits for no thread that calls the driver: the caller has a lock of core. */
uint64_t cuda_window_shown(struct device_comm *comm, uint32_t peer, uint64_t address, size_t bytes) {
  uint64_t shift = 0;
  if (!cuda_conns_try_lock(comm)) return DEVICE_REGION_LATER;
  const bool shown = region_shift(&comm->regions, address, bytes, peer, &shift);
  cuda_conns_unlock(comm);
  return shown ? address + shift : 0;
}

/* ---- what the program has freed ---- */

/* The lease thread asks the driver about shown memory without a lock, because the driver may let it wait for
 * another thread of the program that is in cudaFree. */
struct look {
  uint64_t base, id;
  uint32_t device_index;
  bool is_piece, freed;
};
#define LOOKS_MOST 512u /* per call; the next call goes on */

static uint32_t looks_collect(struct look *looks, uint32_t *skip) {
  uint32_t count = 0, passed = 0;
  cuda_lock();
  for (struct device_comm *comm = cuda_comms(); comm != NULL; comm = comm->next) {
    if (!cuda_conns_try_lock(comm)) continue;
    for (const struct region *region = comm->regions.first; region != NULL; region = region->next)
      if (region->offered && passed++ >= *skip && count < LOOKS_MOST)
        looks[count++] =
            (struct look){region->base, region->id, comm->config.device_index, region->is_piece, false};
    cuda_conns_unlock(comm);
  }
  cuda_unlock();
  *skip = count == LOOKS_MOST ? *skip + count : 0;
  return count;
}

/* True if something was freed. */
static bool looks_ask(struct look *looks, uint32_t count) {
  bool freed = false;
  for (uint32_t i = 0; i < count; i++) {
    const struct cuda_scope scope = cuda_scope_enter(looks[i].device_index);
    looks[i].freed = id_now(looks[i].base, looks[i].base, looks[i].is_piece) != looks[i].id;
    cuda_scope_leave(&scope);
    freed = freed || looks[i].freed;
  }
  return freed;
}

static void looks_retire(struct device_comm *comm, const struct look *looks, uint32_t count) {
  for (struct region *region = comm->regions.first, *next; region != NULL; region = next) {
    next = region->next;
    for (uint32_t i = 0; i < count; i++) {
      if (!looks[i].freed || looks[i].id != region->id || looks[i].base != region->base) continue;
      region_lose(comm, region);
      break;
    }
  }
}

/* Finds out how far the rank's kernels are. With cuda_mutex held. */
static void comm_settle(struct device_comm *comm) {
  const bool launching = __atomic_load_n(&comm->launching, __ATOMIC_ACQUIRE) != 0;
  const uint64_t launched = __atomic_load_n(&comm->order.blocks_launched, __ATOMIC_ACQUIRE);
  const bool idle = cuda_comm_idle(comm);
  const uint64_t ended = idle && !launching ? launched : comm->control->counts_seen.plain_ended;
  if (!cuda_conns_try_lock(comm)) return;
  regions_settle(&comm->regions, launching, launched, ended);
  cuda_conns_unlock(comm);
}

/* Devices of which little memory is free, one bit each: what a program keeps there without using it, it may
 * free soon, and expect to be free at once. */
#define MEMORY_LOOK_NS 64000000u /* the driver takes longer for this question */
#define MEMORY_SHORT_PART 8u     /* of all of it */

static uint64_t memory_look(const struct look *looks, uint32_t count) {
  static uint64_t looked_ns; /* one thread calls */
  const uint64_t now_ns = os_time_ns();
  uint64_t asked = 0, result = 0;
  if (now_ns - looked_ns < MEMORY_LOOK_NS) return 0;
  looked_ns = now_ns;
  for (uint32_t i = 0; i < count; i++) {
    const uint64_t device = UINT64_C(1) << looks[i].device_index;
    size_t free_bytes = 0, total = 0;
    if ((asked & device) != 0) continue;
    asked |= device;
    const struct cuda_scope scope = cuda_scope_enter(looks[i].device_index);
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) cudaGetLastError();
    cuda_scope_leave(&scope);
    if (free_bytes < total / MEMORY_SHORT_PART) result |= device;
  }
  return result;
}

/* True if there is more to do for the rank later. What was freed is asked back first. With cuda_mutex held.
 */
static bool comm_look(struct device_comm *comm, const struct look *looks, uint32_t count, bool freed,
                      uint64_t short_devices) {
  if (!cuda_conns_try_lock(comm)) return true;
  if ((short_devices >> comm->config.device_index & 1) != 0) regions_recall(&comm->regions);
  if (freed) looks_retire(comm, looks, count);
  const bool gone = comm->regions.gone != NULL, unsettled = regions_unsettled(&comm->regions);
  cuda_conns_unlock(comm);
  if (unsettled) comm_settle(comm);
  return gone;
}

static bool regions_look(void) {
  static struct look looks[LOOKS_MOST]; /* one thread calls */
  static uint32_t skip;
  const uint32_t count = looks_collect(looks, &skip);
  const bool freed = looks_ask(looks, count);
  const uint64_t short_devices = memory_look(looks, count);
  bool busy = count > 0;
  cuda_lock();
  for (struct device_comm *comm = cuda_comms(); comm != NULL; comm = comm->next)
    busy = comm_look(comm, looks, count, freed, short_devices) || busy;
  cuda_unlock();
  return busy;
}

bool cuda_regions_look(void) {
  if (!cuda_look_begin()) return false;
  const bool busy = regions_look();
  cuda_look_end();
  return busy;
}

/* It waits for no thread that calls the driver: the caller has a lock of core. */
bool cuda_region_gone(struct device_comm *comm, uint32_t *peer, struct device_memory_handle *handle) {
  struct ipc_piece piece;
  if (!cuda_conns_try_lock(comm)) return false;
  const bool gone = region_next_gone(&comm->regions, peer, &piece);
  cuda_conns_unlock(comm);
  if (gone) handle_write(&piece, NULL, handle);
  return gone;
}

/* ---- graphs ---- */

struct graph_holds {
  uint32_t count, most;
  struct region_hold *holds[];
};

static void CUDART_CB graph_holds_drop(void *argument) {
  struct graph_holds *holds = (struct graph_holds *)argument;
  for (uint32_t i = 0; i < holds->count; i++) region_release(holds->holds[i]);
  os_free(holds);
}

static bool region_hold_once(struct region *region, struct graph_holds *holds) {
  if (!region->offered) return true;
  for (uint32_t i = 0; i < holds->count; i++)
    if (holds->holds[i] == region->hold) return true;
  if (holds->count == holds->most) return false;
  holds->holds[holds->count] = region_hold(region);
  if (holds->holds[holds->count] == NULL) return false;
  holds->count += 1;
  return true;
}

static bool graph_hold(struct device_comm *comm, const void *memory, size_t bytes,
                       struct graph_holds *holds) {
  struct regions *regions = &comm->regions;
  const uint64_t address = (uint64_t)(uintptr_t)memory;
  struct region *region = memory != NULL ? region_find(regions, address) : NULL;
  for (; region != NULL; region = region_beside(regions, region)) {
    if (!region_hold_once(region, holds)) return false;
    if (address + bytes <= region->base + region->bytes) return true;
  }
  return true;
}

ncclResult_t cuda_regions_leave(struct device_comm *comm, const struct plan *plan, cudaGraph_t graph) {
  cudaUserObject_t object = NULL;
  const uint32_t most = comm->regions.count + comm->regions.piece_count;
  struct graph_holds *holds =
      (struct graph_holds *)os_alloc(sizeof *holds + (most + 1) * sizeof holds->holds[0]);
  bool held = holds != NULL;
  if (held) holds->most = most;
  for (uint32_t i = 0; i < plan->work_count && held; i++)
    held = graph_hold(comm, plan->buffers[i].in, work_in_bytes(&plan->works[i]), holds) &&
           graph_hold(comm, plan->buffers[i].out, work_out_bytes(&plan->works[i]), holds);
  if (!held) {
    if (holds != NULL) graph_holds_drop(holds);
    return log_no_memory("rank %u: noting the memory that a graph shows", comm->config.rank);
  }
  if (holds->count == 0) {
    os_free(holds);
    return ncclSuccess;
  }
  int error = cudaUserObjectCreate(&object, holds, graph_holds_drop, 1, cudaUserObjectNoDestructorSync);
  if (error != 0) graph_holds_drop(holds);
  else error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error != 0 && object != NULL) cudaUserObjectRelease(object, 1); /* drops them */
  return cuda_result(error, "giving a graph the memory that it shows");
}

/* ---- the process that maps it ---- */

/* A region of another process that this rank's kernels access. The owner may show it anew before it has said
 * that the earlier time is over, so both are counted. */
struct cuda_guest_region {
  struct ipc_mapping *mapping;
  uint32_t shown_count;
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
                              int descriptor, uint64_t *address) {
  const uint32_t device_index = comm->config.device_index;
  struct cuda_guest_region **place = guest_place(comm, &handle->piece), *guest = *place;
  char whose[64];
  if (guest == NULL) {
    guest = (struct cuda_guest_region *)os_alloc(sizeof *guest);
    if (guest == NULL) return log_no_memory("noting memory of rank %u", peer);
    snprintf(whose, sizeof whose, "rank %u (process %d)", peer, (int)handle->process.number);
    const ncclResult_t result =
        handle->range.kind == IPC_LEGACY
            ? cuda_ipc_map(device_index, &handle->piece, &handle->process, whose, &guest->mapping)
            : cuda_ipc_map_in_range(device_index, handle, descriptor, whose, &guest->mapping);
    if (result != ncclSuccess) {
      os_free(guest);
      return result;
    }
    guest->next = comm->guests;
    comm->guests = guest;
  }
  guest->shown_count += 1;
  *address = (uint64_t)(uintptr_t)guest->mapping->base;
  return ncclSuccess;
}

ncclResult_t cuda_region_map(struct device_comm *comm, uint32_t peer,
                             const struct device_memory_handle *handle, int descriptor, uint64_t *address) {
  struct ipc_memory_handle content;
  if (!ipc_memory_handle_read(handle, &content) || (content.range.kind == IPC_DESCRIPTOR && descriptor < 0))
    return log_fail(ncclInvalidUsage,
                    "comm %s: what rank %u says of its memory is not understood; use the same build on all "
                    "ranks",
                    comm->name, peer);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_lock();
  const ncclResult_t result = guest_map(comm, peer, &content, descriptor, address);
  cuda_unlock();
  cuda_scope_leave(&scope);
  if (result != ncclInProgress) return result;
  *address = DEVICE_REGION_LATER;
  return ncclSuccess;
}

bool cuda_guests_hold(const struct device_comm *comm, uint64_t address, uint64_t bytes) {
  const uint64_t end = address + bytes;
  for (const struct cuda_guest_region *guest = comm->guests; guest != NULL && address < end;) {
    const uint64_t base = (uint64_t)(uintptr_t)guest->mapping->base;
    const bool within = address - base < guest->mapping->piece.bytes;
    if (within) address = base + guest->mapping->piece.bytes;
    guest = within ? comm->guests : guest->next;
  }
  return address >= end;
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
  if (*place != NULL && --(*place)->shown_count == 0) guest_drop(place);
  cuda_unlock();
}

void cuda_regions_close(struct device_comm *comm) {
  while (comm->guests != NULL) guest_drop(&comm->guests);
  regions_free(&comm->regions);
}

/* Unmapping waits for all kernels of the device. None of this library's run then, unless one is launched
 * meanwhile. */
bool cuda_region_sweep(void) {
  if (!cuda_look_begin()) return false;
  cuda_lock();
  struct ipc_mapping *unused = cuda_ipc_take_unused(cuda_device_idle);
  const bool left = cuda_ipc_has_unused();
  cuda_unlock();
  cuda_ipc_close(unused);
  cuda_look_end();
  return left;
}
