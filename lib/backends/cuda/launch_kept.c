/* launch_kept.c: launches that are repeated. A loop makes the same calls with the same allocations, and then
 * the arguments of its kernels differ in the numbers of their operations and in places: they are kept here,
 * and a launch that finds its own needs no plan, no binding and no lock of another rank. Promises to launch
 * nothing that cuda_launch() would launch otherwise: whatever may have changed since is compared, or is not
 * kept. */
#include <stddef.h>
#include <string.h>

#include "backends/cuda/ipc.h"
#include "backends/cuda/vmm.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/recent.h"
#include "schedule/algo.h"

#define KEPT_MAX 12u   /* as many as core remembers calls and groups (call_cache.h) */
#define KEPT_WORKS 64u /* CALL_CACHE_WORKS */
#define KEPT_MEMORY 32u

/* OWN: of ncclMemAlloc; PIECE: of a mapped range. */
enum kept_kind { MEMORY_PLAIN, MEMORY_OWN, MEMORY_PIECE };

/* Memory that the kernel shows to other ranks: it must still be the allocation that it was. */
struct kept_memory {
  uint64_t address, id;
  enum kept_kind kind;
};

#define ROW_NONE 255u

struct cuda_kept {
  uint64_t serial; /* of the plan; 0: none is kept */
  struct plan_buffers buffers[KEPT_WORKS];
  uint64_t sequences[KEPT_WORKS]; /* op_sequence by work, from the launch's first one */
  struct kept_memory memory[KEPT_MEMORY];
  uint8_t in_rows[KEPT_WORKS], out_rows[KEPT_WORKS]; /* of `memory`, by work; ROW_NONE: not shown */
  uint32_t work_count, memory_count;
  bool moves;          /* the same launch for any buffers in the same allocations */
  bool leased;         /* ranks of other processes are shown some of it ... */
  uint64_t generation; /* ... of the rank's regions, which it was bound with */
  bool refused;        /* such a launch is not repeated: what to do is known */
  struct cuda_kernel kernel;
  union launch_any launch;
};

struct cuda_kept_set {
  struct cuda_kept *kept[KEPT_MAX];
  uint32_t next;        /* index that the next one replaces */
  struct recent recent; /* a program of ever new buffers would otherwise pay for what is never repeated */
};

void cuda_kept_close(struct device_comm *comm) {
  if (comm->kept == NULL) return;
  for (uint32_t i = 0; i < KEPT_MAX; i++) os_free(comm->kept->kept[i]);
  os_free(comm->kept);
  comm->kept = NULL;
}

/* ---- keeping ---- */

static struct cuda_conn *work_conn(struct device_comm *comm, const struct work *work, bool sends,
                                   uint32_t index) {
  const uint32_t peer = (sends ? work->send_peer : work->recv_peer)[index];
  return cuda_conn_find(comm, peer, work->channel_index, work->conn_index, sends);
}

static uint64_t memory_id(const struct kept_memory *row) {
  struct vmm_memory own;
  switch (row->kind) {
    case MEMORY_PLAIN: return cuda_memory_id(row->address);
    case MEMORY_PIECE: return cuda_mapped_id(row->address, row->address);
    default: return cuda_memory_find_own((const void *)(uintptr_t)row->address, &own) ? own.id : 0;
  }
}

static bool row_add(struct cuda_kept *kept, const struct kept_memory *row, uint8_t *index) {
  uint32_t i = 0;
  while (i < kept->memory_count &&
         (kept->memory[i].address != row->address || kept->memory[i].kind != row->kind))
    i++;
  *index = (uint8_t)i;
  if (row->kind != MEMORY_PLAIN) kept->moves = false;
  if (i < kept->memory_count) return true;
  if (i == KEPT_MEMORY) return false;
  kept->memory[kept->memory_count++] = *row;
  return row->id != 0;
}

/* A buffer in mapped ranges may consist of several, each of which can change: to ranks of this process, only
 * plain memory, and that of ncclMemAlloc, is known by one number. */
static bool memory_keep(struct cuda_kept *kept, const void *memory, uint8_t *index) {
  struct kept_memory row = {(uintptr_t)memory, 0, MEMORY_PLAIN};
  if (!cuda_memory_is_plain(memory)) row.kind = MEMORY_OWN;
  row.id = memory_id(&row);
  return row_add(kept, &row, index);
}

/* Ranks of other processes know a buffer by its regions; those behind one that they cannot map do not
 * count. */
static bool regions_keep(struct regions *regions, struct cuda_kept *kept, const void *memory, size_t bytes,
                         uint8_t *index) {
  const uint64_t address = (uintptr_t)memory;
  struct region *region = region_find(regions, address);
  kept->leased = true;
  kept->moves = kept->moves && region != NULL;
  for (; region != NULL; region = region_beside(regions, region)) {
    const struct kept_memory row = {region->base, region->id, region->is_piece ? MEMORY_PIECE : MEMORY_PLAIN};
    if (!row_add(kept, &row, index)) return false;
    if (!region->mappable || address + bytes <= region->base + region->bytes) return true;
  }
  return false;
}

/* A buffer that a work's kernel shows to the ranks on one side of it. */
struct kept_side {
  const struct work *work;
  const void *memory;
  bool sends;
};

static uint32_t side_count(const struct kept_side *side) {
  const uint32_t shown = side->sends ? WORK_SHOWS_INPUT : WORK_DIRECT_RECV;
  if ((side->work->flags & shown) == 0) return 0;
  return side->sends ? side->work->send_count : side->work->recv_count;
}

static size_t side_bytes(const struct kept_side *side) {
  return side->sends ? work_in_bytes(side->work) : work_out_bytes(side->work);
}

static bool side_keep(struct device_comm *comm, struct cuda_kept *kept, const struct kept_side *side,
                      uint8_t *index) {
  bool here = false, elsewhere = false;
  *index = ROW_NONE;
  for (uint32_t i = 0; i < side_count(side); i++) {
    const bool remote = work_conn(comm, side->work, side->sends, i)->remote != NULL;
    here = here || !remote;
    elsewhere = elsewhere || remote;
  }
  return (!here || memory_keep(kept, side->memory, index)) &&
         (!elsewhere || regions_keep(&comm->regions, kept, side->memory, side_bytes(side), index));
}

static bool work_keep(struct device_comm *comm, const struct plan *plan, uint32_t index,
                      struct cuda_kept *kept) {
  const struct plan_buffers *buffers = &plan->buffers[index];
  const struct kept_side out = {&plan->works[index], buffers->out, false};
  const struct kept_side in = {&plan->works[index], buffers->in, true};
  kept->buffers[index] = *buffers;
  kept->sequences[index] = plan->works[index].op_sequence;
  return side_keep(comm, kept, &out, &kept->out_rows[index]) &&
         side_keep(comm, kept, &in, &kept->in_rows[index]);
}

static bool side_is_decided(struct device_comm *comm, const struct kept_side *side) {
  for (uint32_t i = 0; i < side_count(side); i++) {
    const uint32_t peer = (side->sends ? side->work->send_peer : side->work->recv_peer)[i];
    if (work_conn(comm, side->work, side->sends, i)->remote != NULL &&
        !region_decided(&comm->regions, (uintptr_t)side->memory, side_bytes(side), peer))
      return false;
  }
  return true;
}

/* False if a later launch may show its memory to more ranks of other processes than this one did. */
static bool launch_is_decided(struct device_comm *comm, const struct plan *plan) {
  bool decided = true;
  cuda_conns_lock(comm);
  for (uint32_t i = 0; i < plan->work_count && decided; i++) {
    const struct kept_side out = {&plan->works[i], plan->buffers[i].out, false};
    const struct kept_side in = {&plan->works[i], plan->buffers[i].in, true};
    decided = side_is_decided(comm, &out) && side_is_decided(comm, &in);
  }
  cuda_conns_unlock(comm);
  return decided;
}

static bool launch_shows(const struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct kept_side out = {&plan->works[i], NULL, false}, in = {&plan->works[i], NULL, true};
    if (side_count(&out) > 0 || side_count(&in) > 0) return true;
  }
  return false;
}

/* Buffers so near to each other are often in one allocation. */
#define NEAR_BITS 30

/* True at the second time, unless the launch was forgotten meanwhile. */
static bool launch_is_repeated(struct cuda_kept_set *set, const struct plan *plan) {
  const uint32_t count = launch_shows(plan) ? plan->work_count : 0;
  uint64_t hash = plan->serial;
  for (uint32_t i = 0; i < count; i++) {
    hash = hash_scramble(hash + ((uintptr_t)plan->buffers[i].in >> NEAR_BITS));
    hash = hash_scramble(hash + ((uintptr_t)plan->buffers[i].out >> NEAR_BITS));
  }
  return recent_has(&set->recent, hash);
}

static struct cuda_kept *kept_take(struct device_comm *comm, const struct plan *plan) {
  if (comm->kept == NULL) comm->kept = (struct cuda_kept_set *)os_alloc(sizeof *comm->kept);
  if (comm->kept == NULL || !launch_is_repeated(comm->kept, plan) || !launch_is_decided(comm, plan))
    return NULL;
  struct cuda_kept **place = &comm->kept->kept[comm->kept->next];
  comm->kept->next = (comm->kept->next + 1) % KEPT_MAX;
  if (*place == NULL) *place = (struct cuda_kept *)os_alloc(sizeof **place);
  return *place;
}

/* Whether memory is in the allocation of a row; asks the driver once for works that use the same. */
struct moved {
  const void *memory;
  uint64_t id;
};

static bool is_in_row(const struct cuda_kept *kept, uint8_t row, const void *memory, struct moved *asked) {
  if (row == ROW_NONE) return true;
  if (asked->memory != memory) *asked = (struct moved){memory, cuda_memory_id((uintptr_t)memory)};
  return asked->id == kept->memory[row].id;
}

/* Peers see an allocation as a whole, so that its parts are at the same distance from where peers see them.
 */
static bool kept_serves(const struct cuda_kept *kept, const struct plan_buffers *buffers) {
  struct moved in = {NULL, 0}, out = {NULL, 0};
  if (kept->refused || !kept->moves) return false;
  for (uint32_t i = 0; i < kept->work_count; i++) {
    if (!is_in_row(kept, kept->in_rows[i], buffers[i].in, &in)) return false;
    if (!is_in_row(kept, kept->out_rows[i], buffers[i].out, &out)) return false;
  }
  return true;
}

/* The kept launch of these very buffers or, if the driver may be asked, of others in the same allocations. */
static struct cuda_kept *kept_find(const struct device_comm *comm, uint64_t serial,
                                   const struct plan_buffers *buffers, bool asks) {
  struct cuda_kept *moved = NULL;
  for (uint32_t i = 0; comm->kept != NULL && i < KEPT_MAX; i++) {
    struct cuda_kept *kept = comm->kept->kept[i];
    if (kept == NULL || kept->serial != serial) continue;
    if (memcmp(kept->buffers, buffers, kept->work_count * sizeof *kept->buffers) == 0) return kept;
    if (asks && moved == NULL && kept_serves(kept, buffers)) moved = kept;
  }
  return moved;
}

/* Not at its first time, nor if it is known to be refused. Without memory for it, the next launch is made
 * like this one. */
void cuda_launch_keep(struct device_comm *comm, const struct plan *plan, const struct cuda_kernel *kernel,
                      const union launch_any *launch, size_t plan_bytes) {
  if (plan->work_count > KEPT_WORKS || plan->serial == 0) return;
  const struct cuda_kept *found = kept_find(comm, plan->serial, plan->buffers, false);
  struct cuda_kept *kept = found == NULL ? kept_take(comm, plan) : NULL;
  if (kept == NULL) return;
  kept->refused = kept->leased = false;
  kept->moves = true;
  kept->memory_count = 0;
  kept->work_count = plan->work_count;
  cuda_conns_lock(comm);
  kept->generation = comm->regions.bound;
  for (uint32_t i = 0; i < plan->work_count; i++) kept->refused |= !work_keep(comm, plan, i, kept);
  cuda_conns_unlock(comm);
  kept->kernel = *kernel;
  memcpy(&kept->launch, launch, offsetof(struct launch, plan) + plan_bytes);
  kept->serial = plan->serial;
}

/* ---- repeating ---- */

static bool memory_is_kept(const struct cuda_kept *kept) {
  for (uint32_t i = 0; i < kept->memory_count; i++)
    if (memory_id(&kept->memory[i]) != kept->memory[i].id) return false;
  return true;
}

/* All of its memory that other processes have mapped is still mapped, and counts as used. What is retired
 * later stays mapped until this launch has ended, as its rank is launching. */
static bool leases_are_kept(struct device_comm *comm, const struct cuda_kept *kept) {
  if (!kept->leased) return true;
  cuda_conns_lock(comm);
  const bool same = comm->regions.generation == kept->generation;
  for (uint32_t i = 0; i < kept->memory_count && same; i++)
    region_used(&comm->regions, kept->memory[i].address);
  cuda_conns_unlock(comm);
  return same;
}

static ncclResult_t kept_launch(struct device_comm *comm, struct cuda_kept *kept,
                                const struct device_cached_launch *cached,
                                const struct cuda_capture *capture) {
  struct bound_work *works = (struct bound_work *)kept->launch.longer.plan;
  for (uint32_t i = 0; i < kept->work_count; i++) {
    ((struct work *)(void *)works[i].work)->op_sequence = kept->sequences[i] + cached->first_sequence;
    works[i].in = cached->buffers[i].in;
    works[i].out = cached->buffers[i].out;
  }
  struct cuda_kernel kernel = kept->kernel;
  /* Communicators may have been made since. */
  if (kernel.cluster > 1) kernel.cluster = cuda_budget_cluster(comm, kernel.block_count, false);
  return cuda_kernel_enqueue(comm, &kernel, &kept->launch, cached->stream, capture);
}

/* False, and nothing is launched, if what it shows has changed. */
static bool kept_try(struct device_comm *comm, struct cuda_kept *kept,
                     const struct device_cached_launch *cached, const struct cuda_capture *capture,
                     ncclResult_t *result) {
  if (!memory_is_kept(kept) || !leases_are_kept(comm, kept)) {
    kept->serial = 0;
    return false;
  }
  *result = kept_launch(comm, kept, cached, capture);
  return true;
}

bool cuda_launch_rebound(struct device_comm *comm, const struct plan *plan, device_stream stream,
                         const struct cuda_capture *capture, ncclResult_t *result) {
  struct cuda_kept *kept = plan->serial != 0 ? kept_find(comm, plan->serial, plan->buffers, true) : NULL;
  const struct device_cached_launch repeated = {
      .first_sequence = plan->first_sequence, .buffers = plan->buffers, .stream = stream};
  return kept != NULL && !kept->refused && kept_try(comm, kept, &repeated, capture, result);
}

/* False, and nothing is launched: core calls cuda_launch(). */
static bool launch_repeat(struct device_comm *comm, const struct device_cached_launch *cached,
                          ncclResult_t *result) {
  struct cuda_kept *kept = kept_find(comm, cached->serial, cached->buffers, true);
  struct cuda_capture capture = {0, NULL};
  if (kept == NULL || kept->refused) return false;
  if (cuda_order_capture((cudaStream_t)cached->stream, &capture) != 0 || capture.id != 0) return false;
  if (!kept_try(comm, kept, cached, &capture, result)) return false;
  if (*result == ncclSuccess) cuda_record_launch(comm, cached->first_sequence);
  return true;
}

bool cuda_launch_cached(struct device_comm *comm, const struct device_cached_launch *cached,
                        ncclResult_t *result) {
  int device_before = -1;
  if (comm->kept == NULL) return false;
  const bool there =
      cudaGetDevice(&device_before) == cudaSuccess && device_before == (int)comm->config.device_index;
  const bool entered = !there && cuda_device_enter(comm->config.device_index);
  __atomic_fetch_add(&comm->launching, 1, __ATOMIC_ACQ_REL);
  const bool launched = launch_repeat(comm, cached, result);
  __atomic_fetch_sub(&comm->launching, 1, __ATOMIC_ACQ_REL);
  if (entered) cuda_device_leave();
  return launched;
}
