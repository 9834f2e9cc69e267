/* launch_kept.c: launches that are repeated. A loop makes the same calls with the same memory, and then the
 * arguments of its kernels differ in nothing but the numbers of their operations: they are kept here, and a
 * launch that finds its own needs no plan, no binding and no lock. Promises to launch nothing that
 * cuda_launch() would launch otherwise: whatever may have changed since is compared, or is not kept. */
#include <stddef.h>
#include <string.h>

#include "backends/cuda/vmm.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/recent.h"
#include "schedule/algo.h"

#define KEPT_MAX 12u   /* as many as core remembers calls and groups (call_cache.h) */
#define KEPT_WORKS 16u /* CALL_CACHE_WORKS */

/* Memory that the kernel shows to other ranks: it must still be the allocation that it was. */
struct kept_memory {
  const void *memory;
  uint64_t id;
  bool own; /* of ncclMemAlloc */
};

struct cuda_kept {
  uint64_t serial; /* of the plan; 0: none is kept */
  struct plan_buffers buffers[KEPT_WORKS];
  uint64_t sequences[KEPT_WORKS]; /* op_sequence by work, from the launch's first one */
  struct kept_memory memory[2 * KEPT_WORKS];
  uint32_t work_count, memory_count;
  bool refused; /* such a launch is not repeated: what to do is known */
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

/* Leases of other processes' mappings are taken at each launch, by their address. */
static bool work_has_remote(struct device_comm *comm, const struct work *work) {
  for (uint32_t side = 0; side < 2; side++) {
    const uint32_t *peers = side != 0 ? work->send_peer : work->recv_peer;
    const uint32_t count = side != 0 ? work->send_count : work->recv_count;
    for (uint32_t i = 0; i < count; i++)
      if (cuda_conn_find(comm, peers[i], work->channel_index, work->conn_index, side != 0)->remote != NULL)
        return true;
  }
  return false;
}

static uint64_t memory_id(const struct kept_memory *row) {
  struct vmm_memory own;
  if (!row->own) return cuda_memory_id((uintptr_t)row->memory);
  return cuda_memory_find_own(row->memory, &own) ? own.id : 0;
}

/* A buffer in mapped ranges may consist of several, each of which can change: only plain memory, and that of
 * ncclMemAlloc, is known by one number. */
static bool memory_keep(struct cuda_kept *kept, const void *memory) {
  for (uint32_t i = 0; i < kept->memory_count; i++)
    if (kept->memory[i].memory == memory) return true;
  struct kept_memory row = {memory, 0, !cuda_memory_is_plain(memory)};
  row.id = memory_id(&row);
  kept->memory[kept->memory_count++] = row;
  return row.id != 0;
}

static bool work_keep(struct device_comm *comm, const struct plan *plan, uint32_t index,
                      struct cuda_kept *kept) {
  const struct work *work = &plan->works[index];
  const struct plan_buffers *buffers = &plan->buffers[index];
  const uint32_t shown = work->flags & (WORK_DIRECT_RECV | WORK_SHOWS_INPUT);
  kept->buffers[index] = *buffers;
  kept->sequences[index] = work->op_sequence;
  if (buffers->scalar != NULL || (shown != 0 && work_has_remote(comm, work))) return false;
  return ((shown & WORK_DIRECT_RECV) == 0 || memory_keep(kept, buffers->out)) &&
         ((shown & WORK_SHOWS_INPUT) == 0 || memory_keep(kept, buffers->in));
}

/* True at the second time, unless the launch was forgotten meanwhile. */
static bool launch_is_repeated(struct cuda_kept_set *set, const struct plan *plan) {
  uint64_t hash = plan->serial;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    hash = hash_scramble(hash + (uintptr_t)plan->buffers[i].in);
    hash = hash_scramble(hash + (uintptr_t)plan->buffers[i].out);
  }
  return recent_has(&set->recent, hash);
}

static struct cuda_kept *kept_take(struct device_comm *comm, const struct plan *plan) {
  if (comm->kept == NULL) comm->kept = (struct cuda_kept_set *)os_alloc(sizeof *comm->kept);
  if (comm->kept == NULL || !launch_is_repeated(comm->kept, plan)) return NULL;
  struct cuda_kept **place = &comm->kept->kept[comm->kept->next];
  comm->kept->next = (comm->kept->next + 1) % KEPT_MAX;
  if (*place == NULL) *place = (struct cuda_kept *)os_alloc(sizeof **place);
  return *place;
}

static struct cuda_kept *kept_find(const struct device_comm *comm, uint64_t serial,
                                   const struct plan_buffers *buffers) {
  for (uint32_t i = 0; comm->kept != NULL && i < KEPT_MAX; i++) {
    struct cuda_kept *kept = comm->kept->kept[i];
    if (kept == NULL || kept->serial != serial) continue;
    if (memcmp(kept->buffers, buffers, kept->work_count * sizeof *kept->buffers) == 0) return kept;
  }
  return NULL;
}

/* Not at its first time. Without memory for it, the next launch is made like this one. */
void cuda_launch_keep(struct device_comm *comm, const struct plan *plan, const struct cuda_kernel *kernel,
                      const union launch_any *launch, size_t plan_bytes) {
  if (plan->work_count > KEPT_WORKS || plan->serial == 0) return;
  const struct cuda_kept *found = kept_find(comm, plan->serial, plan->buffers);
  struct cuda_kept *kept = found == NULL ? kept_take(comm, plan) : NULL;
  if (kept == NULL) return;
  kept->refused = false;
  kept->memory_count = 0;
  kept->work_count = plan->work_count;
  cuda_conns_lock(comm);
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

static ncclResult_t kept_launch(struct device_comm *comm, struct cuda_kept *kept,
                                const struct device_cached_launch *cached,
                                const struct cuda_capture *capture) {
  struct bound_work *works = (struct bound_work *)kept->launch.longer.plan;
  for (uint32_t i = 0; i < kept->work_count; i++)
    ((struct work *)(void *)works[i].work)->op_sequence = kept->sequences[i] + cached->first_sequence;
  return cuda_kernel_enqueue(comm, &kept->kernel, &kept->launch, cached->stream, capture);
}

/* False, and nothing is launched: core calls cuda_launch(). */
static bool launch_repeat(struct device_comm *comm, struct cuda_kept *kept,
                          const struct device_cached_launch *cached, ncclResult_t *result) {
  struct cuda_capture capture = {0, NULL};
  if (cuda_order_capture((cudaStream_t)cached->stream, &capture) != 0 || capture.id != 0) return false;
  if (!memory_is_kept(kept)) {
    kept->serial = 0;
    return false;
  }
  *result = kept_launch(comm, kept, cached, &capture);
  if (*result == ncclSuccess) cuda_record_launch(comm, cached->first_sequence);
  return true;
}

bool cuda_launch_cached(struct device_comm *comm, const struct device_cached_launch *cached,
                        ncclResult_t *result) {
  struct cuda_kept *kept = kept_find(comm, cached->serial, cached->buffers);
  int device_before = -1;
  if (kept == NULL || kept->refused) return false;
  const bool there =
      cudaGetDevice(&device_before) == cudaSuccess && device_before == (int)comm->config.device_index;
  const bool entered = !there && cuda_device_enter(comm->config.device_index);
  __atomic_fetch_add(&comm->launching, 1, __ATOMIC_ACQ_REL);
  const bool launched = launch_repeat(comm, kept, cached, result);
  __atomic_fetch_sub(&comm->launching, 1, __ATOMIC_ACQ_REL);
  if (entered) cuda_device_leave();
  return launched;
}
