/* plan_cache.h: the last plans of a communicator, reused when the same operations come with other buffers. A
 * cached plan has symbolic names instead of addresses: the plan is built for names that say only which
 * operations use the same memory. So planning stays a pure function, and a cached plan equals the plan that
 * would be built. Groups of several operations with a collective are reused only with the same buffers, from
 * the third time on. Knows nothing of communicators. */
#ifndef TUTTI_CORE_PLAN_CACHE_H
#define TUTTI_CORE_PLAN_CACHE_H

#include "core/plan/plan.h"

struct plan_cache;

/* True if the plan of these operations of this rank is cached: *plan is bound to their memory and valid until
 * the next call. `cache` may be NULL. */
bool plan_cache_find(struct plan_cache *cache, uint32_t rank, const struct plan_op *ops, uint32_t op_count,
                     struct plan *plan);

/* Before planning: *keep says if the plan can be cached; if so, the request now has names instead of
 * addresses. Creates the cache if necessary. */
ncclResult_t plan_cache_begin(struct plan_cache **cache, struct plan_request *request, bool *keep);
/* After planning a plan that can be cached: binds *plan to the memory of `ops`, the request's original
 * operations, and caches it. Both functions fail with ncclSystemError if memory is out. */
ncclResult_t plan_cache_keep(struct plan_cache *cache, const struct plan_request *request,
                             const struct plan_op *ops, struct plan *plan);

void plan_cache_free(struct plan_cache *cache);

/* Bytes that the cache holds; NULL is allowed. */
uint64_t plan_cache_bytes(const struct plan_cache *cache);

#endif
