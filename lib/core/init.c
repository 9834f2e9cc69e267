/* init.c: the entry points that create communicators from unique ids. They check arguments and queue a job;
 * group.c runs it. */
#include <string.h>

#include "base/callsite.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/api.h"
#include "core/bootstrap/bootstrap.h"
#include "core/settings/config.h"
#include "core/group.h"
#include "core/init.h"
#include "core/life.h"

ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId) {
  if (!uniqueId)
    return log_fail(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL; pass where to put the id");
  log_version();
  TRY(param_check());
  return bootstrap_id_create(uniqueId);
}
API_EXPORT(GetUniqueId);

/* All ranks must pass the same ids in the same order. */
static uint64_t ids_signature(const ncclUniqueId *ids, int id_count) {
  return hash_bytes(HASH_SEED, ids, (size_t)id_count * sizeof *ids);
}

static ncclResult_t init_check(const char *call, ncclComm_t *comm, int rank_count, int rank, int id_count,
                               const ncclUniqueId *ids) {
  if (!comm)
    return log_fail(ncclInvalidArgument, "%s: comm is NULL; pass where to put the communicator", call);
  if (rank_count < 1 || rank < 0 || rank >= rank_count) {
    return log_fail(ncclInvalidArgument,
                    "%s: rank %d of %d ranks; ranks count from 0 to the number of ranks less one", call, rank,
                    rank_count);
  }
  if (ids && id_count >= 1 && id_count <= rank_count) return ncclSuccess;
  return log_fail(ncclInvalidArgument, "%s: rank %d: %d unique ids for %d ranks; pass one to that many", call,
                  rank, ids ? id_count : 0, rank_count);
}

/* Queues the job of one rank. */
static ncclResult_t init_note(struct rendezvous_call *call, ncclComm_t *comm, const ncclConfig_t *config,
                              uint32_t device_index) {
  TRY(comm_create(call->call, call->caller, config, device_index, &call->comm));
  const ncclResult_t result = group_add_job(call, comm);
  if (result != ncclSuccess) comm_discard(call->comm);
  return result;
}

static ncclResult_t init_rank(struct rendezvous_call *call, ncclComm_t *comm, const ncclConfig_t *config,
                              const ncclConfig_t *inherited, uint32_t device_index) {
  ncclConfig_t full;
  TRY(config_read(call->call, config, inherited, &full));
  const ncclResult_t result = init_note(call, comm, &full, device_index);
  if (result == ncclSystemError) rendezvous_refuse(call, "cannot hold a communicator" LOG_OUT_OF_MEMORY);
  return result;
}

static ncclResult_t init_read_id(const struct rendezvous_call *call, const ncclUniqueId *bytes, bool grows,
                                 struct bootstrap_id *id) {
  TRY(bootstrap_id_read(bytes, call->call, call->rank, id));
  if (id->grown > 0 && !grows)
    return log_fail(
        ncclInvalidArgument,
        "%s: rank %u: the unique id is of ncclCommGetUniqueId, by which a communicator grows; pass "
        "it to ncclCommGrow, or get another with ncclGetUniqueId",
        call->call, call->rank);
  if (id->own || id->root.family != 0) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: rank %u: the process that made the unique id had no network interface to be reached at; "
      "see NCCL_SOCKET_IFNAME there",
      call->call, call->rank);
}

/* The first id names the communicator; each is a root to check in at. */
static ncclResult_t init_take_ids(struct rendezvous_call *call, int id_count, const ncclUniqueId *ids,
                                  bool grows) {
  struct bootstrap_id id;
  TRY(init_read_id(call, &ids[0], grows, &call->id));
  call->key[0] = call->comm_id = call->id.number;
  call->key[1] = call->id.nonce;
  call->roots = (struct gather_root *)os_alloc((size_t)id_count * sizeof *call->roots);
  if (!call->roots) {
    rendezvous_refuse(call, "cannot hold its ids" LOG_OUT_OF_MEMORY);
    return log_no_memory("%s: %d ids", call->call, id_count);
  }
  call->root_count = (uint32_t)id_count;
  for (int i = 0; i < id_count; i++) {
    TRY(init_read_id(call, &ids[i], grows, &id));
    call->roots[i] = (struct gather_root){id.root, id.secret};
  }
  return ncclSuccess;
}

ncclResult_t init_queue(struct rendezvous_call *call, int id_count, const ncclUniqueId *ids,
                        const struct init_rank *rank) {
  call->kind = RENDEZVOUS_INIT;
  call->signature = ids_signature(ids, id_count);
  ncclResult_t result = init_take_ids(call, id_count, ids, rank->grows);
  log_info(LOG_INIT, "%s rank %u nranks %u cudaDev %u commId 0x%llx - Init START", call->call, call->rank,
           call->rank_count, rank->device_index, (unsigned long long)call->comm_id);
  if (result == ncclSuccess)
    result = init_rank(call, rank->comm, rank->config, rank->inherited, rank->device_index);
  if (result != ncclSuccess) os_free(call->roots); /* on success the job owns them */
  return result;
}

static ncclResult_t init_one(const char *name, ncclComm_t *comm, int rank_count, int rank, int id_count,
                             const ncclUniqueId *ids, const ncclConfig_t *config, const void *caller) {
  struct rendezvous_call call;
  memset(&call, 0, sizeof call);
  call.call = name;
  call.caller = caller;
  call.rank_count = (uint32_t)rank_count;
  call.rank = (uint32_t)rank;
  struct init_rank about = {comm, config, NULL, 0, false};
  log_version();
  bootstrap_set_called(rendezvous_called);
  TRY(init_check(name, comm, rank_count, rank, id_count, ids));
  TRY(backend_ops() ? backend_ops()->device->current(&about.device_index) : ncclInvalidUsage);
  return init_queue(&call, id_count, ids, &about);
}

static ncclResult_t init_entry(const char *name, ncclComm_t *comm, int rank_count, int rank, int id_count,
                               const ncclUniqueId *ids, const ncclConfig_t *config, const void *caller) {
  group_enter();
  return group_leave(init_one(name, comm, rank_count, rank, id_count, ids, config, caller));
}

ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
  return init_entry("ncclCommInitRank", comm, nranks, rank, 1, &commId, NULL, CALL_PLACE);
}
API_EXPORT(CommInitRank);

ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config) {
  return init_entry("ncclCommInitRankConfig", comm, nranks, rank, 1, &commId, config, CALL_PLACE);
}
API_EXPORT(CommInitRankConfig);

ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId *commIds, ncclConfig_t *config) {
  return init_entry("ncclCommInitRankScalable", newcomm, nranks, myrank, nId, commIds, config, CALL_PLACE);
}
API_EXPORT(CommInitRankScalable);

/* ---- All ranks at once ---- */

static ncclResult_t init_all_check_devices(int device_count, const int *devices, uint32_t present) {
  int *seen = (int *)os_alloc(present * sizeof *seen); /* rank + 1 */
  if (!seen) return log_no_memory("ncclCommInitAll: %u devices", present);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; result == ncclSuccess && i < device_count; i++) {
    const int device = devices ? devices[i] : i;
    if (device < 0 || (uint32_t)device >= present) {
      result =
          log_fail(ncclInvalidArgument, "ncclCommInitAll: rank %d is given device %d; there are %u devices",
                   i, device, present);
    } else if (seen[device] > 0 && param_int(PARAM_MULTI_RANK_GPU_ENABLE) == 0) {
      result = log_fail(ncclInvalidUsage,
                        "ncclCommInitAll: Duplicate GPU detected : rank %d and rank %d both on CUDA device "
                        "%d; give every rank a device of its own, or set NCCL_MULTI_RANK_GPU_ENABLE=1",
                        seen[device] - 1, i, device);
    } else {
      seen[device] = i + 1;
    }
  }
  os_free(seen);
  return result;
}

static ncclResult_t init_all(ncclComm_t *comms, int rank_count, const int *devices, const void *caller) {
  static const char *const name = "ncclCommInitAll";
  ncclUniqueId id;
  uint32_t present = 0;
  log_version();
  if (!comms || rank_count < 0) {
    return log_fail(ncclInvalidArgument, "%s: %s; pass an array of ndev communicators", name,
                    comms ? "ndev is negative" : "comm is NULL");
  }
  if (rank_count == 0) return ncclSuccess;
  TRY(backend_ops() ? backend_ops()->device->count(&present) : ncclInvalidUsage);
  TRY(init_all_check_devices(rank_count, devices, present));
  struct rendezvous_call call;
  memset(&call, 0, sizeof call);
  call.call = name;
  call.caller = caller;
  call.kind = RENDEZVOUS_INIT;
  call.rank_count = (uint32_t)rank_count;
  struct bootstrap_id content;
  bootstrap_id_local(&id);
  TRY(bootstrap_id_read(&id, name, 0, &content));
  call.key[0] = call.comm_id = content.number;
  call.key[1] = content.nonce;
  call.id = content;
  for (int i = 0; i < rank_count; i++) {
    call.rank = (uint32_t)i;
    TRY(init_rank(&call, &comms[i], NULL, NULL, (uint32_t)(devices ? devices[i] : i)));
  }
  return ncclSuccess;
}

ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist) {
  group_enter();
  return group_leave(init_all(comm, ndev, devlist, CALL_PLACE));
}
API_EXPORT(CommInitAll);
