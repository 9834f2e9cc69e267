/* plan_cache.c: symbolic names of memory, and the plans that were built for them. A name is a number above
 * all offsets: it identifies an operation's memory, and which side of it. In groups with collectives memory
 * may overlap in ways that names do not say: they keep their addresses. */
#include "core/plan/plan_cache.h"

#include <string.h>

#include "base/hash.h"
#include "base/os.h"
#include "base/recent.h"
#include "core/plan/plan_draft.h"

#define CACHE_PLANS 8
#define CACHE_OPS_MOST 16
#define NAME_SHIFT 47 /* no buffer is longer than the address space */

struct kept {
  uint32_t op_count;
  struct plan_op ops[CACHE_OPS_MOST]; /* with names instead of addresses */
  struct plan plan;                   /* works, names, batches and the current buffers, in one block */
  struct plan_buffers *names;         /* by work */
  uint64_t bytes;
};

struct plan_cache {
  struct plan_op ops[CACHE_OPS_MOST]; /* of the request that is being looked up, or planned */
  uint32_t op_count;
  uint32_t last, next; /* last: the plan found last; next: index that the next plan replaces */
  struct kept *plans[CACHE_PLANS];
  struct recent groups; /* by address, that were planned */
};

static bool op_is_message(const struct plan_op *op) { return op->func == FUNC_SEND || op->func == FUNC_RECV; }

static void *name_of(uint32_t op_index, bool out, size_t offset) {
  return (void *)(uintptr_t)((uint64_t)(2 * op_index + out + 1) << NAME_SHIFT | offset);
}

/* Names a collective's memory: in place, a block of the other side, or separate. */
static void name_collective(uint32_t rank, const struct plan_op *op, struct plan_op *named) {
  const size_t own = (size_t)rank * op->count * plan_type_bytes(op->dtype);
  const uint8_t *in = (const uint8_t *)op->in, *out = (const uint8_t *)op->out;
  if (in != NULL) named->in = name_of(0, false, 0);
  if (out != NULL) named->out = name_of(0, true, 0);
  if (in == NULL || out == NULL) return;
  if (in == out) named->in = named->out;
  else if (op->func == FUNC_ALL_GATHER && in == out + own) named->in = name_of(0, true, own);
  else if (op->func == FUNC_REDUCE_SCATTER && out == in + own) named->out = name_of(0, false, own);
}

/* A message has one side; equal memory gets the name of the first message that uses it. */
static void name_message(const struct plan_op *ops, uint32_t index, struct plan_op *named) {
  const void *memory = ops[index].func == FUNC_SEND ? ops[index].in : ops[index].out;
  uint32_t first = 0;
  while ((ops[first].func == FUNC_SEND ? ops[first].in : ops[first].out) != memory) first += 1;
  void *name = memory == NULL ? NULL : name_of(first, ops[first].func != FUNC_SEND, 0);
  if (ops[index].func == FUNC_SEND) named->in = name;
  else named->out = name;
}

/* False for one collective, and for messages. */
static bool has_addresses(const struct plan_op *ops, uint32_t op_count) {
  for (uint32_t i = 0; i < op_count && op_count > 1; i++)
    if (!op_is_message(&ops[i])) return true;
  return false;
}

static bool cache_can(const struct plan_op *ops, uint32_t op_count) {
  if (op_count > CACHE_OPS_MOST || op_count == 0) return false;
  for (uint32_t i = 0; i < op_count && op_count > 1; i++)
    if (ops[i].scalar != NULL) return false;
  return true;
}

static void cache_name(struct plan_cache *cache, uint32_t rank, const struct plan_op *ops,
                       uint32_t op_count) {
  const bool addresses = has_addresses(ops, op_count);
  cache->op_count = op_count;
  for (uint32_t i = 0; i < op_count; i++) {
    struct plan_op *named = &cache->ops[i];
    memset(named, 0, sizeof *named);
    named->func = ops[i].func;
    named->dtype = ops[i].dtype;
    named->op = ops[i].op;
    named->peer = ops[i].peer;
    named->count = ops[i].count;
    named->op_arg = ops[i].op_arg;
    named->sequence = ops[i].sequence - ops[0].sequence;
    if (addresses) named->in = ops[i].in, named->out = ops[i].out;
    else if (op_is_message(&ops[i])) name_message(ops, i, named);
    else name_collective(rank, &ops[i], named);
  }
}

/* A group by address is cached at its second time: a program of ever new buffers repeats none. */
static bool group_is_repeated(struct plan_cache *cache) {
  uint64_t hash = cache->op_count;
  for (uint32_t i = 0; i < cache->op_count; i++) {
    const struct plan_op *op = &cache->ops[i];
    hash = hash_scramble(hash + (uintptr_t)op->in);
    hash = hash_scramble(hash + (uintptr_t)op->out);
    hash = hash_scramble(hash + op->count);
    hash = hash_scramble(hash + op->func + ((uint64_t)op->op << 8) + ((uint64_t)op->dtype << 16));
  }
  return recent_has(&cache->groups, hash);
}

/* Replaces names by addresses. `buffers` may be `names`. */
static void plan_bind(struct plan *plan, const struct plan_buffers *names, const struct plan_op *ops,
                      bool addresses) {
  plan->first_sequence = ops[0].sequence;
  if (addresses && plan->work_count > 0)
    memmove(plan->buffers, names, plan->work_count * sizeof *plan->buffers);
  if (addresses) return;
  const uint64_t below = (UINT64_C(1) << NAME_SHIFT) - 1;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const uint64_t in = (uintptr_t)names[i].in, out = (uintptr_t)names[i].out;
    const uint64_t in_name = in >> NAME_SHIFT, out_name = out >> NAME_SHIFT;
    const struct plan_op *in_op = &ops[in_name > 0 ? (in_name - 1) / 2 : 0];
    const struct plan_op *out_op = &ops[out_name > 0 ? (out_name - 1) / 2 : 0];
    const void *in_base = in_name % 2 == 1 ? in_op->in : in_op->out;
    const void *out_base = out_name % 2 == 1 ? out_op->in : out_op->out;
    plan->buffers[i].in = in_name > 0 ? (const uint8_t *)in_base + (in & below) : NULL;
    plan->buffers[i].scalar = ops[0].scalar; /* only plans of one operation have any */
    plan->buffers[i].out = out_name > 0 ? (uint8_t *)(uintptr_t)out_base + (out & below) : NULL;
  }
}

static bool kept_matches(const struct kept *kept, const struct plan_cache *cache) {
  return kept != NULL && kept->op_count == cache->op_count &&
         memcmp(kept->ops, cache->ops, cache->op_count * sizeof *cache->ops) == 0;
}

bool plan_cache_find(struct plan_cache *cache, uint32_t rank, const struct plan_op *ops, uint32_t op_count,
                     struct plan *plan) {
  if (cache == NULL || !cache_can(ops, op_count)) return false;
  cache_name(cache, rank, ops, op_count);
  for (uint32_t i = 0; i < CACHE_PLANS; i++) {
    const uint32_t index = (cache->last + i) % CACHE_PLANS;
    struct kept *kept = cache->plans[index];
    if (!kept_matches(kept, cache)) continue;
    cache->last = index;
    plan_bind(&kept->plan, kept->names, ops, has_addresses(ops, op_count));
    *plan = kept->plan;
    return true;
  }
  return false;
}

ncclResult_t plan_cache_begin(struct plan_cache **cache, struct plan_request *request, bool *keep) {
  *keep = request->custom == NULL && cache_can(request->ops, request->op_count);
  if (!*keep) return ncclSuccess;
  if (*cache == NULL) *cache = (struct plan_cache *)os_alloc(sizeof **cache);
  if (*cache == NULL) return plan_out_of_memory(request);
  cache_name(*cache, request->rank, request->ops, request->op_count);
  *keep = !has_addresses(request->ops, request->op_count) || group_is_repeated(*cache);
  if (*keep) request->ops = (*cache)->ops;
  return ncclSuccess;
}

static struct kept *kept_create(const struct plan_cache *cache, const struct plan *plan) {
  const size_t work_bytes = plan->work_count * sizeof *plan->works;
  const size_t buffer_bytes = plan->work_count * sizeof *plan->buffers;
  const size_t batch_bytes = plan->batch_count * sizeof *plan->batches;
  const size_t bytes = sizeof(struct kept) + work_bytes + 2 * buffer_bytes + batch_bytes;
  struct kept *kept = (struct kept *)os_alloc(bytes);
  if (kept == NULL) return NULL;
  kept->bytes = bytes;
  kept->op_count = cache->op_count;
  memcpy(kept->ops, cache->ops, sizeof kept->ops);
  kept->plan = *plan;
  kept->plan.works = (struct work *)(kept + 1);
  kept->plan.buffers = (struct plan_buffers *)(kept->plan.works + plan->work_count);
  kept->names = kept->plan.buffers + plan->work_count;
  kept->plan.batches = (struct plan_batch *)(kept->names + plan->work_count);
  if (work_bytes > 0) memcpy(kept->plan.works, plan->works, work_bytes);
  if (work_bytes > 0) memcpy(kept->names, plan->buffers, buffer_bytes);
  if (batch_bytes > 0) memcpy(kept->plan.batches, plan->batches, batch_bytes);
  return kept;
}

/* A plan with its own memory, or one that another part must be notified of, is not cached. */
ncclResult_t plan_cache_keep(struct plan_cache *cache, const struct plan_request *request,
                             const struct plan_op *ops, struct plan *plan) {
  static uint64_t last_serial;
  const bool addresses = has_addresses(ops, cache->op_count);
  if (plan->scratch_bytes != 0 || plan->hook != NULL) {
    plan_bind(plan, plan->buffers, ops, addresses);
    return ncclSuccess;
  }
  struct kept *kept = kept_create(cache, plan);
  if (kept == NULL) return plan_out_of_memory(request);
  kept->plan.serial = __atomic_add_fetch(&last_serial, 1, __ATOMIC_RELAXED);
  cache->last = cache->next;
  os_free(cache->plans[cache->next]);
  cache->plans[cache->next] = kept;
  cache->next = (cache->next + 1) % CACHE_PLANS;
  plan_bind(&kept->plan, kept->names, ops, addresses);
  *plan = kept->plan;
  return ncclSuccess;
}

void plan_cache_free(struct plan_cache *cache) {
  if (cache == NULL) return;
  for (uint32_t i = 0; i < CACHE_PLANS; i++) os_free(cache->plans[i]);
  os_free(cache);
}

uint64_t plan_cache_bytes(const struct plan_cache *cache) {
  uint64_t bytes = cache != NULL ? sizeof *cache : 0;
  for (uint32_t i = 0; cache != NULL && i < CACHE_PLANS; i++)
    bytes += cache->plans[i] != NULL ? cache->plans[i]->bytes : 0;
  return bytes;
}
