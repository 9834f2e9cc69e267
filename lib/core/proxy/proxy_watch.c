/* proxy_watch.c: sleeping while connections wait for kernels. A kernel stores its counters without a wake,
 * and may begin long after its launch, behind other work of its stream. So the engine's thread divides its
 * sleep into naps, and between them looks at what kernels store, but not at the network, whose descriptors
 * wake it. Naps are as short as 4 % of a core allow: what a nap costs is measured, as it differs
 * tenfold between machines. */
#include "base/os.h"
#include "base/wake.h"
#include "core/proxy/proxy_impl.h"

#define NAP_US_LEAST 20u
#define SHARE 25u           /* the naps cost at most 1 / SHARE of a core */
#define COST_NS_FIRST 1000u /* of a nap, before any was measured */
#define AVERAGED 8u         /* naps, for their cost */

static struct proxy_watch_stats stats; /* atomic */

struct proxy_watch_stats proxy_watch_stats(void) {
  const struct proxy_watch_stats now = {__atomic_load_n(&stats.looks, __ATOMIC_SEQ_CST),
                                        __atomic_load_n(&stats.found, __ATOMIC_SEQ_CST)};
  return now;
}

uint64_t proxy_watch_nap_us(uint64_t cost_ns, uint64_t most_us) {
  uint64_t nap_us = (SHARE - 1) * cost_ns / 1000;
  if (nap_us < NAP_US_LEAST) nap_us = NAP_US_LEAST;
  return nap_us < most_us ? nap_us : most_us;
}

/* A slice that the kernel has filled, and that is still here, waits for the network. */
uint64_t proxy_watch_count(void) {
  uint64_t count = 0;
  proxy_lock();
  for (struct proxy_comm *comm = proxy_comms(); comm != NULL; comm = comm->next)
    for (const struct proxy_conn *conn = comm->busy.first; conn != NULL && !comm->failed;
         conn = conn->next_busy)
      count += proxy_conn_waits_for_kernel(conn);
  proxy_unlock();
  return count;
}

static bool look(uint64_t waiting) {
  __atomic_fetch_add(&stats.looks, 1, __ATOMIC_SEQ_CST);
  const bool found = proxy_watch_count() != waiting;
  if (found) __atomic_fetch_add(&stats.found, 1, __ATOMIC_SEQ_CST);
  return found;
}

/* The cost includes the look before the nap and, of the first one, the engine's turn. */
void proxy_watch(const struct proxy_watch *watch, uint64_t *cost_ns) {
  uint64_t now_ns = os_time_ns(), cpu_ns = watch->cpu_ns;
  const uint64_t until_ns = now_ns + watch->most_us * 1000;
  if (*cost_ns == 0) *cost_ns = COST_NS_FIRST;
  while (now_ns < until_ns && !look(watch->waiting)) {
    const uint64_t nap_us = proxy_watch_nap_us(*cost_ns, (until_ns - now_ns + 999) / 1000);
    if (wake_wait(watch->wake, watch->descriptors, watch->descriptor_count, nap_us)) return;
    const uint64_t used_ns = os_thread_cpu_ns();
    *cost_ns = (*cost_ns * (AVERAGED - 1) + (used_ns - cpu_ns)) / AVERAGED;
    cpu_ns = used_ns;
    now_ns = os_time_ns();
  }
}
