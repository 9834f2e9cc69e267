/* launch_budget.c: kernels of several communicators on one device, which share its multiprocessors. A kernel
 * waits for those of other ranks. If it also waits for a multiprocessor, which another communicator's kernel
 * keeps while it waits for its own other ranks, no kernel ever ends. Ranks that share the device in their
 * communicator have blocks of their own (settings_add_device). The kernels of all others are ordered where
 * they might not fit together: one waits on its stream for the ends of those launched before it, until it
 * fits. README.md says why this is enough if all devices launch in the same order ("Several communicators on
 * one device"). */
#include <cuda.h>

#include "backends/cuda/device.h"
#include "base/array.h"
#include "base/log.h"
#include "schedule/chunk.h"

#define WAITS_MOST 256u

/* Guards the lists and the members `budget` of their ranks. Nothing is called under it that waits. */
static os_mutex budget_mutex = OS_MUTEX_INITIALIZER;
static struct budget {
  struct device_comm *ranks;
  uint32_t blocks, shared_blocks; /* that the device runs at once; of ranks that share the device */
  uint32_t claims;                /* atomic: blocks of all communicators */
  uint64_t tickets, turn;
  bool crowded;             /* atomic: launches are ordered */
  bool ordered;             /* they were once: streams may still wait for counts */
  bool captured_said;       /* atomic: the log says that replays of graphs are not ordered */
  struct arena_block *kept; /* counts of ranks that are closed, until no rank is left */
  uint32_t kept_count, kept_capacity;
} budgets[DEVICES_MAX];

static uint32_t claim_of(const struct device_comm *comm) {
  const struct plan_limits *limits = &comm->config.limits;
  const uint32_t blocks =
      limits->channel_count > limits->p2p_channel_count ? limits->channel_count : limits->p2p_channel_count;
  return (uint32_t)size_round_up(blocks, comm->budget.cluster);
}

/* The blocks of a cluster need multiprocessors of one part of the device at once. Of each part's free ones up
 * to a cluster's blocks less one may be of no use to it, however the other blocks lie. H100 and H200 have
 * eight parts (graphics processing clusters), and as many at most have GPUs of capability 10.x; the driver
 * does not tell. */
#define DEVICE_PARTS 8u
#define PARTS_KNOWN(capability) ((capability) >= 90 && (capability) < 110)
static uint32_t useless_most(uint32_t cluster) { return (cluster - 1) * DEVICE_PARTS; }

/* A power of two. Under MPS, other processes' blocks are not counted. */
static uint32_t cluster_of(const struct device_comm *comm, const struct device_info *info) {
  uint32_t cluster = 1;
  while (cluster * 2 <= comm->config.limits.cluster_blocks) cluster *= 2;
  if (cluster == 1 || !PARTS_KNOWN(info->capability) || comm->config.limits.shares_device) return 1;
  if (useless_most(cluster) + cluster > info->blocks) return 1;
  return cuda_device_ask(comm->config.device_index, CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == 0 ? cluster : 1;
}

/* Locked. */
static void budget_count(struct budget *budget) {
  uint32_t shared = 0, single = 0;
  for (const struct device_comm *comm = budget->ranks; comm != NULL; comm = comm->budget.next)
    *(comm->config.limits.shares_device ? &shared : &single) += claim_of(comm);
  budget->shared_blocks = shared;
  __atomic_store_n(&budget->claims, shared + single, __ATOMIC_RELAXED);
  const bool crowded = budget->blocks > 0 && shared + single > budget->blocks;
  budget->ordered = budget->ordered || crowded;
  __atomic_store_n(&budget->crowded, crowded, __ATOMIC_RELEASE);
}

void cuda_budget_join(struct device_comm *comm, const struct device_info *info) {
  struct budget *budget = &budgets[comm->config.device_index];
  const uint32_t cluster = cluster_of(comm, info);
  os_mutex_lock(&budget_mutex);
  comm->budget.cluster = cluster;
  budget->blocks = info->blocks;
  comm->budget.next = budget->ranks;
  budget->ranks = comm;
  budget_count(budget);
  os_mutex_unlock(&budget_mutex);
}

/* A stream that waits for the counts reads them when it comes to the wait. */
static void counts_keep(struct budget *budget, struct arena_block *counts) {
  if (!budget->ordered || counts->address == NULL) return;
  if (!array_grow(&budget->kept, &budget->kept_capacity, (uint64_t)budget->kept_count + 1,
                  sizeof *budget->kept))
    return;
  budget->kept[budget->kept_count++] = *counts;
  counts->address = NULL;
}

void cuda_budget_leave(struct device_comm *comm) {
  if (comm->config.device_index >= DEVICES_MAX) return;
  struct budget *budget = &budgets[comm->config.device_index];
  os_mutex_lock(&budget_mutex);
  struct device_comm **place = &budget->ranks;
  while (*place != NULL && *place != comm) place = &(*place)->budget.next;
  if (*place == comm) *place = comm->budget.next;
  counts_keep(budget, &comm->order.counts_block);
  while (budget->ranks == NULL && budget->kept_count > 0)
    cuda_arena_give(&budget->kept[--budget->kept_count]);
  if (budget->ranks == NULL) {
    os_free(budget->kept);
    budget->kept = NULL;
    budget->kept_capacity = 0;
    budget->ordered = false;
  }
  budget_count(budget);
  os_mutex_unlock(&budget_mutex);
}

/* One cluster must find place whatever other communicators run: blocks of different channels do not wait for
 * each other, so the launch's other clusters then follow. Replays of graphs are not ordered: where not all
 * communicators fit at once, captured kernels use no clusters. */
uint32_t cuda_budget_cluster(const struct device_comm *comm, uint32_t block_count, bool captured) {
  const struct budget *budget = &budgets[comm->config.device_index];
  const uint32_t cluster = comm->budget.cluster;
  const bool crowded = __atomic_load_n(&budget->crowded, __ATOMIC_ACQUIRE);
  if (cluster < 2 || block_count < 2 * cluster || (crowded && captured)) return 1;
  const uint32_t own = crowded ? block_count : claim_of(comm);
  const uint32_t all = crowded ? budget->blocks : __atomic_load_n(&budget->claims, __ATOMIC_RELAXED);
  return all - own + useless_most(cluster) + cluster <= budget->blocks ? cluster : 1;
}

ncclResult_t cuda_device_use(uint32_t device_index, struct device_use *use) {
  *use = (struct device_use){0, 0, 0};
  if (device_index >= DEVICES_MAX) return ncclSuccess;
  os_mutex_lock(&budget_mutex);
  for (const struct device_comm *comm = budgets[device_index].ranks; comm != NULL; comm = comm->budget.next) {
    const uint32_t blocks = claim_of(comm);
    use->rank_count += 1;
    if (comm->config.limits.shares_device) use->shared_blocks += blocks;
    else if (use->single_blocks < blocks) use->single_blocks = blocks;
  }
  os_mutex_unlock(&budget_mutex);
  return ncclSuccess;
}

/* ---- launches ---- */

/* A rank's last launch, as others wait for its end. */
struct wait {
  struct launch_counts *counts;
  uint64_t target;
};

/* What another rank of the device has launched: its end, its most blocks at once, and its place in the order,
 * which is first for launches from when the device was not crowded. Locked. */
struct busy {
  uint64_t target, ticket;
  uint32_t blocks;
};

/* False if nothing of it runs. The counts of the host's last look are never ahead. */
static bool rank_is_busy(const struct device_comm *comm, struct busy *busy) {
  const uint64_t launched = __atomic_load_n(&comm->order.blocks_launched, __ATOMIC_ACQUIRE);
  const uint64_t ended = __atomic_load_n(&comm->control->counts_seen.plain_ended, __ATOMIC_RELAXED);
  const bool known = comm->budget.target >= launched;
  busy->target = known ? comm->budget.target : launched;
  busy->ticket = known ? comm->budget.ticket : 0;
  busy->blocks = known ? comm->budget.blocks : claim_of(comm);
  return busy->target > ended;
}

/* Another rank whose kernels are ordered with those of `self`. */
static bool is_ordered(const struct device_comm *comm, const struct device_comm *self) {
  return comm != self && !comm->config.limits.shares_device &&
         comm->life == cuda_life(comm->config.device_index);
}

/* The first in the order that was not chosen in this turn. */
static struct device_comm *oldest(const struct budget *budget, const struct device_comm *self,
                                  struct busy *first) {
  struct device_comm *found = NULL;
  struct busy busy;
  for (struct device_comm *comm = budget->ranks; comm != NULL; comm = comm->budget.next) {
    if (!is_ordered(comm, self) || comm->budget.turn == budget->turn) continue;
    if (!rank_is_busy(comm, &busy) || (found != NULL && busy.ticket >= first->ticket)) continue;
    found = comm;
    *first = busy;
  }
  return found;
}

/* Locked. Which ranks must have ended before `block_count` more blocks surely fit. */
static uint32_t waits_choose(struct budget *budget, const struct device_comm *self, uint32_t block_count,
                             struct wait *waits) {
  uint64_t needed = (uint64_t)budget->shared_blocks + block_count;
  struct busy busy;
  uint32_t count = 0;
  for (const struct device_comm *comm = budget->ranks; comm != NULL; comm = comm->budget.next)
    if (is_ordered(comm, self) && rank_is_busy(comm, &busy)) needed += busy.blocks;
  budget->turn += 1;
  while (needed > budget->blocks && count < WAITS_MOST) {
    struct device_comm *comm = oldest(budget, self, &busy);
    if (comm == NULL) break;
    comm->budget.turn = budget->turn;
    waits[count++] = (struct wait){comm->order.counts, busy.target};
    needed -= busy.blocks;
  }
  return count;
}

/* Kernels of one rank never run at once, so the largest of those under way counts. */
static void launch_note(struct budget *budget, struct device_comm *comm, uint32_t block_count) {
  struct busy busy;
  const bool runs = rank_is_busy(comm, &busy);
  comm->budget.blocks = runs && busy.blocks > block_count ? busy.blocks : block_count;
  comm->budget.target = comm->order.blocks_launched + block_count;
  comm->budget.ticket = ++budget->tickets;
}

/* Nothing of the library is called when a graph is launched. Once for each device. */
static void captured_say(struct budget *budget, const struct device_comm *comm) {
  if (__atomic_exchange_n(&budget->captured_said, true, __ATOMIC_RELAXED)) return;
  log_info(LOG_INIT,
           "comm %s: rank %u: a graph captures kernels, and the communicators of device %u may run more "
           "blocks than the %u that fit on it: kernels of graphs wait for none of other communicators, so "
           "replays of several communicators at once may never end; launch these graphs on one stream, or "
           "set a lower NCCL_MAX_CTAS",
           comm->name, comm->config.rank, comm->config.device_index, budget->blocks);
}

int cuda_budget_before(struct device_comm *comm, uint32_t block_count, cudaStream_t stream,
                       const struct cuda_capture *capture) {
  struct budget *budget = &budgets[comm->config.device_index];
  struct wait waits[WAITS_MOST];
  int error = 0;
  if (!__atomic_load_n(&budget->crowded, __ATOMIC_ACQUIRE)) return 0;
  if (comm->config.limits.shares_device || block_count == 0) return 0;
  if (capture->id != 0) {
    captured_say(budget, comm);
    return 0;
  }
  os_mutex_lock(&budget_mutex);
  const uint32_t count = waits_choose(budget, comm, block_count, waits);
  launch_note(budget, comm, block_count);
  os_mutex_unlock(&budget_mutex);
  for (uint32_t i = 0; i < count && error == 0; i++)
    error = cuda_order_await(waits[i].counts, waits[i].target, stream);
  if (error != 0) cuda_budget_withdraw(comm);
  return error;
}

/* Also of launches that were not noted. */
void cuda_budget_withdraw(struct device_comm *comm) {
  const uint64_t launched = comm->order.blocks_launched;
  os_mutex_lock(&budget_mutex);
  if (comm->budget.target > launched) comm->budget.target = launched;
  os_mutex_unlock(&budget_mutex);
}
