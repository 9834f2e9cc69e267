/* plan_cache.h: the last plans of a communicator, found again when the same operations come with other
 * memory. A plan is kept as it was built, but for addresses: it was planned for names of the operations'
 * memory, which say what is the same memory as what, and nothing else; so planning stays a pure function, and
 * a kept plan is the one that would be built. Knows nothing of communicators. */
#ifndef TUTTI_CORE_PLAN_CACHE_H
#define TUTTI_CORE_PLAN_CACHE_H

#include "core/plan/plan.h"

struct plan_cache;

/* True when the plan of these operations of this rank is kept: *plan is bound to their memory, and lies in
 * the cache until the next call. *cache may be NULL. */
bool plan_cache_find(struct plan_cache *cache, uint32_t rank, const struct plan_op *ops, uint32_t op_count,
                     struct plan *plan);

/* Before planning: *keep says whether the plan can be kept, and then the request is for names instead of
 * memory. Makes the cache when it is not there. */
ncclResult_t plan_cache_begin(struct plan_cache **cache, struct plan_request *request, bool *keep);
/* After planning what can be kept: binds *plan to the memory of `ops`, those that the request had before, and
 * keeps it. Both fail with ncclSystemError when memory is out. */
ncclResult_t plan_cache_keep(struct plan_cache *cache, const struct plan_request *request,
                             const struct plan_op *ops, struct plan *plan);

void plan_cache_free(struct plan_cache *cache);

/* Bytes that the cache holds; NULL is allowed. */
uint64_t plan_cache_bytes(const struct plan_cache *cache);

#endif
