/* launch.c: tutti_launch_read and tutti_launch_id: the rank of this process, and an id that all ranks of its
 * launch share. Ids agree if all ranks call in the same order. base/launch.h knows the launchers. */
#include "base/launch.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/param.h"
#include "base/pmix.h"
#include "core/bootstrap/bootstrap.h"
#include "tutti.h"

ncclResult_t tutti_launch_read(tutti_launch_t *launch) {
  struct launch found;
  if (!launch || launch->size != sizeof *launch)
    return log_fail(ncclInvalidArgument,
                    "tutti_launch_read: launch is NULL or its size member is not sizeof(tutti_launch_t)");
  TRY(param_check());
  TRY(launch_read(&found));
  launch->rank = found.rank;
  launch->rank_count = found.rank_count;
  launch->local_rank = found.local_rank;
  launch->local_count = found.local_count;
  launch->launcher = found.launcher;
  return ncclSuccess;
}

static ncclResult_t launch_check(const tutti_launch_t *launch, const ncclUniqueId *id) {
  if (!id) return log_fail(ncclInvalidArgument, "tutti_launch_id: id is NULL; pass where to put the id");
  if (launch && launch->size == sizeof *launch && launch->launcher && launch->rank_count >= 1 &&
      launch->rank >= 0 && launch->rank < launch->rank_count)
    return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "tutti_launch_id: launch is NULL or not what tutti_launch_read has filled in");
}

/* Rank 0 makes an id as ncclGetUniqueId does, and PMIx distributes it. */
static ncclResult_t id_by_pmix(int rank, uint64_t ordinal, ncclUniqueId *id) {
  char key[48];
  snprintf(key, sizeof key, "tutti.id.%llu", (unsigned long long)ordinal);
  if (rank > 0) return pmix_lookup(key, id, sizeof *id, (int)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS));
  TRY(ncclGetUniqueId(id));
  return pmix_publish(key, id, sizeof *id);
}

ncclResult_t tutti_launch_id(const tutti_launch_t *launch, ncclUniqueId *id) {
  static uint64_t last_ordinal;
  struct launch_rendezvous where;
  ncclUniqueId made;
  log_version();
  TRY(launch_check(launch, id));
  if (launch->rank_count == 1) return ncclGetUniqueId(id);
  const struct launch found = {launch->rank, launch->rank_count, launch->local_rank, launch->local_count,
                               launch->launcher};
  TRY(launch_rendezvous(&found, &where));
  const uint64_t ordinal = __atomic_add_fetch(&last_ordinal, 1, __ATOMIC_RELAXED);
  switch (where.place) {
    case LAUNCH_AT_ADDRESS:
      log_info(LOG_INIT, "rank %d of %d by %s: the ranks meet at %s (%s)", launch->rank, launch->rank_count,
               launch->launcher, where.address, where.source);
      TRY(bootstrap_id_at(where.address, where.source, where.job + ordinal * HASH_STEP, &made));
      break;
    case LAUNCH_BY_PMIX: TRY(id_by_pmix(launch->rank, ordinal, &made)); break;
    default:
      return log_fail(ncclInvalidUsage,
                      "tutti_launch_id: rank %d of %d: %s does not say on which host rank 0 is; set "
                      "TUTTI_RENDEZVOUS=host:port, a host that all ranks reach and a port that is free there",
                      launch->rank, launch->rank_count, launch->launcher);
  }
  *id = made;
  return ncclSuccess;
}
