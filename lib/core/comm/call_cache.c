/* call_cache.c: a small table of calls, found by a hash of their arguments; a new call replaces the oldest.
 * Groups are in a short list. Promises to launch nothing that the full path would refuse. */
#include "core/comm/call_cache.h"

#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/comm/copies.h"
#include "core/comm/record.h"

/* Never 0. */
static uint64_t call_hash(const struct collective_call *call) {
  const uint64_t mixed =
      (uintptr_t)call->in ^ (uintptr_t)call->stream ^ (uint64_t)call->count << 9 ^ (uint64_t)call->func << 5;
  return (mixed * HASH_STEP ^ (uintptr_t)call->out) * HASH_STEP | 1;
}

/* The calls of a loop never replace each other, wherever their memory is, if there are no more than entries.
 */
static struct call_cache_entry *find_call(struct call_cache *cache, uint64_t hash) {
  for (uint32_t i = 0; i < CALL_CACHE_CALLS; i++)
    if (cache->hashes[i] == hash) return &cache->calls[i];
  return NULL;
}

static struct call_cache_entry *take_entry(struct call_cache *cache, uint64_t hash) {
  struct call_cache_entry *entry = find_call(cache, hash);
  if (entry != NULL) return entry;
  entry = &cache->calls[cache->next];
  cache->hashes[cache->next] = hash;
  cache->next = (cache->next + 1) % CALL_CACHE_CALLS;
  return entry;
}

static bool args_are(const struct call_cache_args *args, const struct collective_call *call) {
  return args->in == call->in && args->out == call->out && args->count == call->count &&
         args->stream == call->stream && args->peer == call->peer && args->func == call->func &&
         args->dtype == (uint32_t)call->dtype && args->op == (uint32_t)call->op;
}

static void args_set(struct call_cache_args *args, const struct collective_call *call) {
  *args = (struct call_cache_args){call->name,        call->in,   call->out,  call->count,
                                   call->stream,      call->peer, call->func, (uint8_t)call->dtype,
                                   (uint8_t)call->op, 0};
}

/* Buffers that were checked are checked again if memory was freed since; 0: before each call. */
static uint64_t generation_now(const struct ncclComm *comm) {
  return comm->settings.check_pointers ? comm->ops->memory->generation() : UINT64_MAX;
}

/* Not cached: a user's operator, which may change its meaning, a call with count 0, and one that copy engines
 * carry out as soon as its output is in a window. */
static bool call_keeps(const struct collective_call *call) {
  return (uint32_t)call->op < ncclNumOps && call->count != 0 && generation_now(call->comm) != 0 &&
         !copies_may_take(call);
}

/* If calls are logged, they take the full path. */
static bool call_is_quiet(const struct collective_call *call) {
  return comm_known_is_ready(call->comm) && !log_enabled(LOG_INFO, LOG_COLL | LOG_CALL);
}

/* ---- a call ---- */

static bool launch(struct ncclComm *comm, uint64_t serial, const struct plan_buffers *buffers,
                   const struct collective_call *calls, uint32_t call_count, ncclResult_t *result) {
  struct plan_call uses[CALL_CACHE_GROUP_CALLS];
  for (uint32_t i = 0; i < call_count; i++) uses[i] = collective_uses(&calls[i], comm->sequence + i);
  comm_own(comm);
  const struct device_cached_launch cache = {serial,          comm->sequence, buffers,
                                             calls[0].stream, uses,           call_count};
  if (!comm->ops->device->launch_cached(comm->device_comm, &cache, result)) return false;
  if (*result == ncclSuccess)
    __atomic_store_n(&comm->sequence, comm->sequence + call_count, __ATOMIC_RELAXED);
  return true;
}

bool call_cache_launch(const struct collective_call *call, ncclResult_t *result) {
  if (!call_is_quiet(call) || call->comm->queue.queued) return false; /* queued: by another thread */
  const struct call_cache_entry *entry = find_call(&call->comm->call_cache, call_hash(call));
  if (entry == NULL || !args_are(&entry->args, call)) return false;
  if (entry->generation != generation_now(call->comm)) return false;
  const uint64_t ticks = ticks_now(), launched = record_launched(call->comm);
  match_begin(call->comm);
  *result = match_call(call);
  if (*result != ncclSuccess) {
    record_refused(call, *result);
    return true;
  }
  if (!launch(call->comm, entry->serial, entry->buffers.used, call, 1, result)) {
    match_undo(call->comm);
    return false;
  }
  if (*result == ncclSuccess) record_cached(call, ticks, launched, entry->serial);
  return true;
}

/* Proxies must be notified of each launch, and a plan that is not cached cannot be launched again. A world
 * that moves only while its threads wait gains nothing. */
void call_cache_note_launch(struct ncclComm *comm, const struct plan *plan, uint32_t stream_count) {
  const bool kept = plan->work_count <= CALL_CACHE_WORKS && stream_count == 1 && plan->hook == NULL &&
                    comm->ops->device->keeps_time() && comm->profiler == NULL;
  comm->call_cache.serial = kept ? plan->serial : 0;
  comm->call_cache.sequence = comm->queue.first_sequence;
  comm->call_cache.work_count = plan->work_count;
  comm->call_cache.buffers = plan->buffers;
}

/* Takes the plan of the last `call_count` calls; 0 if it cannot be launched again. */
static uint64_t take_serial(struct ncclComm *comm, uint32_t call_count) {
  const uint64_t serial = comm->call_cache.serial;
  comm->call_cache.serial = 0;
  return comm->call_cache.sequence + call_count == comm->sequence ? serial : 0;
}

/* Keeps the buffers of the last launch. False: there is no memory for many; the next launch is made like this
 * one. */
static bool keep_buffers(const struct call_cache *cache, struct plan_buffers *few, uint32_t few_count,
                         struct call_cache_buffers *kept) {
  const uint32_t count = cache->work_count;
  if (count > few_count && !array_grow(&kept->many, &kept->capacity, count, sizeof *few)) return false;
  struct plan_buffers *to = count > few_count ? kept->many : few;
  memcpy(to, cache->buffers, count * sizeof *to);
  kept->used = to;
  return true;
}

void call_cache_note(const struct collective_call *call) {
  struct call_cache *cache = &call->comm->call_cache;
  const uint64_t serial = take_serial(call->comm, 1);
  if (serial == 0 || cache->work_count > CALL_CACHE_ENTRY_WORKS || !call_keeps(call)) return;
  struct call_cache_entry *entry = take_entry(cache, call_hash(call));
  args_set(&entry->args, call);
  entry->serial = serial;
  entry->generation = generation_now(call->comm);
  if (!keep_buffers(cache, entry->few, CALL_CACHE_ENTRY_FEW, &entry->buffers))
    cache->hashes[entry - cache->calls] = 0;
}

/* ---- groups ---- */

/* A cached group that begins with the followed calls and continues with `call`; NULL if there is none. */
static const struct call_cache_group *find_path(const struct call_cache *cache,
                                                const struct collective_call *call) {
  const uint32_t count = cache->followed;
  for (uint32_t i = 0; i < CALL_CACHE_GROUPS; i++) {
    const struct call_cache_group *group = &cache->groups->kept[i];
    if (group->serial == 0 || (call ? group->call_count <= count : group->call_count != count)) continue;
    if (call && !args_are(&group->calls[count], call)) continue;
    if (count == 0 || memcmp(group->calls, cache->path->calls, count * sizeof *group->calls) == 0)
      return group;
  }
  return NULL;
}

bool call_cache_follow(const struct collective_call *call) {
  if (!call_is_quiet(call) || comm_async_error(call->comm) != ncclSuccess) return false;
  struct call_cache *cache = &call->comm->call_cache;
  const struct call_cache_group *path =
      cache->groups != NULL && cache->noted == 0 ? find_path(cache, call) : NULL;
  if (path == NULL || path->generation != generation_now(call->comm)) return false;
  cache->path = path;
  cache->callers[cache->followed++] = call->caller;
  return true;
}

bool call_cache_follow_on(struct call_cache *cache, const struct collective_call *call) {
  const struct call_cache_group *path = cache->path;
  const uint32_t count = cache->followed;
  if (count == 0 || count >= path->call_count || !args_are(&path->calls[count], call)) return false;
  cache->callers[count] = call->caller;
  cache->followed = count + 1;
  return true;
}

struct collective_call call_cache_followed(struct ncclComm *comm, uint32_t i) {
  const struct call_cache_args *args = &comm->call_cache.path->calls[i];
  const struct collective_call call = {args->name,
                                       args->func,
                                       args->in,
                                       args->out,
                                       args->count,
                                       (ncclDataType_t)args->dtype,
                                       (ncclRedOp_t)args->op,
                                       args->peer,
                                       comm,
                                       args->stream,
                                       comm->call_cache.callers[i]};
  return call;
}

bool call_cache_launch_group(struct ncclComm *comm, ncclResult_t *result) {
  struct call_cache *cache = &comm->call_cache;
  const uint32_t count = cache->followed;
  if (count == 0 || !comm_is_ready(comm)) return false;
  const struct call_cache_group *path =
      cache->path->call_count == count ? cache->path : find_path(cache, NULL);
  const uint64_t number = record_launched(comm), sequence = comm->sequence;
  struct collective_call calls[CALL_CACHE_GROUP_CALLS];
  if (path == NULL) return false;
  cache->path = path;
  for (uint32_t i = 0; i < count; i++) calls[i] = call_cache_followed(comm, i);
  if (!launch(comm, path->serial, path->buffers.used, calls, count, result)) return false;
  if (*result == ncclSuccess) record_launch(comm, number, path->serial, sequence, count, 1, false);
  return true;
}

ncclResult_t call_cache_note_call(const struct collective_call *call) {
  struct call_cache *cache = &call->comm->call_cache;
  struct call_cache_groups *groups = cache->groups;
  if (!call->comm->queue.queued) return ncclSuccess; /* nothing was queued: count 0 */
  if (cache->noted >= CALL_CACHE_GROUP_CALLS || !call_keeps(call)) {
    cache->noted = CALL_CACHE_GROUP_CALLS + 1;
    return ncclSuccess;
  }
  if (groups == NULL) groups = cache->groups = (struct call_cache_groups *)os_alloc(sizeof *groups);
  if (groups == NULL) return log_no_memory("%s: remembering the group", call->name);
  groups->kept[groups->next].serial = 0;
  args_set(&groups->kept[groups->next].calls[cache->noted++], call);
  return ncclSuccess;
}

void call_cache_note_group(struct ncclComm *comm) {
  struct call_cache *cache = &comm->call_cache;
  const uint32_t count = cache->noted;
  if (count == 0 || count > CALL_CACHE_GROUP_CALLS) return;
  const uint64_t serial = take_serial(comm, count);
  if (serial == 0) return;
  struct call_cache_group *group = &cache->groups->kept[cache->groups->next];
  cache->groups->next = (cache->groups->next + 1) % CALL_CACHE_GROUPS;
  group->call_count = count;
  group->serial = serial;
  group->generation = generation_now(comm);
  if (!keep_buffers(cache, group->few, CALL_CACHE_GROUP_FEW, &group->buffers)) group->serial = 0;
}

void call_cache_end_group(struct ncclComm *comm) { comm->call_cache.followed = comm->call_cache.noted = 0; }

uint64_t call_cache_bytes(const struct call_cache *cache) {
  uint64_t bytes = cache->groups != NULL ? sizeof *cache->groups : 0, buffers = 0;
  for (uint32_t i = 0; i < CALL_CACHE_CALLS; i++) buffers += cache->calls[i].buffers.capacity;
  for (uint32_t i = 0; cache->groups != NULL && i < CALL_CACHE_GROUPS; i++)
    buffers += cache->groups->kept[i].buffers.capacity;
  return bytes + buffers * sizeof(struct plan_buffers);
}

void call_cache_free(struct call_cache *cache) {
  for (uint32_t i = 0; i < CALL_CACHE_CALLS; i++) os_free(cache->calls[i].buffers.many);
  for (uint32_t i = 0; cache->groups != NULL && i < CALL_CACHE_GROUPS; i++)
    os_free(cache->groups->kept[i].buffers.many);
  os_free(cache->groups);
}
