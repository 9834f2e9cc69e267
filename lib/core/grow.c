/* grow.c: communicators to which ranks are added. A grow is a rendezvous by a unique id which every rank of
 * the communicator can work out, from a secret that they share and the number of the grow; so a rank that
 * passes no id waits for none. Ranks of several processes check in with the process of rank 0, whichever rank
 * gave the id to the ranks that join. */
#include <string.h>

#include "base/callsite.h"
#include "base/hash.h"
#include "base/log.h"
#include "core/api.h"
#include "core/remote/remote.h"
#include "core/group.h"
#include "core/init.h"

static const char get_name[] = "ncclCommGetUniqueId", name[] = "ncclCommGrow";

static uint64_t grow_number(uint64_t parent, uint64_t turn) {
  return hash_mix(hash_mix(4, parent), turn) | 1ull << 63;
}

/* The id of this rank's next grow. */
static ncclResult_t grow_id(struct ncclComm *comm, const char *call, ncclUniqueId *id,
                            struct bootstrap_id *content) {
  const struct remote *remote = comm->shared->remote;
  const uint64_t turn = comm->grow_count + 1;
  struct bootstrap_grow grow;
  memset(&grow, 0, sizeof grow);
  grow.rank_count = comm->rank_count;
  bootstrap_set_called(rendezvous_called);
  if (!remote || remote->process_count == 1) {
    grow.number = grow_number(comm->comm_id, turn);
    TRY(bootstrap_grow_id_local(&grow, comm->shared->serial, turn, id));
  } else {
    remote_grow_secret(remote, turn, &grow.secret);
    grow.number = grow_number(secret_name(&grow.secret), turn);
    grow.root = remote->addresses[remote->ranks[0].process_index];
    bootstrap_grow_id(&grow, id);
  }
  TRY(bootstrap_id_read(id, call, comm->rank, content));
  if (content->own) comm->grow_nonce = content->nonce;
  return ncclSuccess;
}

static ncclResult_t grow_check_out(const struct ncclComm *comm, const void *out, const char *call,
                                   const char *what) {
  if (out) return ncclSuccess;
  return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s': %s", call, comm->rank, comm->name, what);
}

static ncclResult_t get_id(struct ncclComm *comm, ncclUniqueId *out) {
  struct bootstrap_id content;
  TRY(comm_check_ready(comm, get_name));
  TRY(grow_check_out(comm, out, get_name, "uniqueId is NULL; pass where to put the id"));
  return grow_id(comm, get_name, out, &content);
}

ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId) { return get_id(comm, uniqueId); }
API_EXPORT(CommGetUniqueId);

static ncclResult_t grow_check(const struct ncclComm *comm, int rank_count, int rank, const ncclUniqueId *id,
                               const ncclUniqueId *expected) {
  if (rank_count <= 0 || (uint32_t)rank_count <= comm->rank_count)
    return log_fail(
        ncclInvalidArgument,
        "%s: rank %u of comm '%s': nRanks is %d, and there are %u ranks before the grow; pass the "
        "larger number of ranks after it",
        name, comm->rank, comm->name, rank_count, comm->rank_count);
  if (rank != -1)
    return log_fail(ncclInvalidArgument,
                    "%s: rank %u of comm '%s': rank is %d; a rank of the communicator that grows keeps its "
                    "rank: pass -1",
                    name, comm->rank, comm->name, rank);
  if (!id || memcmp(id, expected, sizeof *id) == 0) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: rank %u of comm '%s': the unique id is not of this communicator's next grow, but of "
                  "an earlier one, of another communicator, or of ncclGetUniqueId; pass the id of "
                  "ncclCommGetUniqueId, which is good for one grow, or NULL",
                  name, comm->rank, comm->name);
}

/* A rank of the communicator that grows. */
static ncclResult_t grow_old(struct ncclComm *comm, int rank_count, const ncclUniqueId *id, int rank,
                             struct init_rank *about, struct rendezvous_call *call) {
  ncclUniqueId expected;
  struct bootstrap_id content;
  TRY(comm_check_ready(comm, name));
  TRY(grow_check_out(comm, about->comm, name, "newcomm is NULL; pass where to put the communicator"));
  TRY(grow_id(comm, name, &expected, &content));
  TRY(grow_check(comm, rank_count, rank, id, &expected));
  about->inherited = &comm->config;
  about->device_index = comm->device_index;
  call->rank = comm->rank;
  TRY(init_queue(call, 1, &expected, about));
  comm->grow_count += 1;
  comm->grow_nonce = 0; /* the rendezvous closes its root */
  return content.own ? ncclSuccess : remote_grow_admit(comm->shared->remote, comm->grow_count + 1);
}

/* A rank that joins. */
static ncclResult_t grow_new(int rank_count, const ncclUniqueId *id, int rank, struct init_rank *about,
                             struct rendezvous_call *call) {
  struct bootstrap_id content;
  if (!about->comm || !id)
    return log_fail(ncclInvalidArgument, "%s: comm is NULL, so this rank joins, and %s", name,
                    id ? "newcomm is NULL; pass where to put the communicator"
                       : "uniqueId is NULL; pass the id that a rank of the communicator got from "
                         "ncclCommGetUniqueId");
  TRY(bootstrap_id_read(id, name, (uint32_t)rank, &content));
  if (content.grown == 0)
    return log_fail(ncclInvalidArgument,
                    "%s: rank %d: the unique id is of ncclGetUniqueId, by which no communicator grows; pass "
                    "that which a rank of the communicator got from ncclCommGetUniqueId",
                    name, rank);
  if (rank < 0 || rank >= rank_count || (uint32_t)rank < content.grown)
    return log_fail(ncclInvalidArgument,
                    "%s: rank %d of %d ranks: the communicator has %u ranks before the grow, which keep "
                    "theirs; ranks that join count from %u to nRanks less one",
                    name, rank, rank_count, content.grown, content.grown);
  TRY(backend_ops() ? backend_ops()->device->current(&about->device_index) : ncclInvalidUsage);
  call->rank = (uint32_t)rank;
  return init_queue(call, 1, id, about);
}

static ncclResult_t grow(struct ncclComm *comm, int rank_count, const ncclUniqueId *id, int rank,
                         ncclComm_t *result, const ncclConfig_t *config, const void *caller) {
  struct init_rank about = {result, config, NULL, 0, true};
  struct rendezvous_call call;
  memset(&call, 0, sizeof call);
  call.call = name;
  call.caller = caller;
  call.rank_count = (uint32_t)rank_count;
  log_version();
  if (comm) return grow_old(comm, rank_count, id, rank, &about, &call);
  bootstrap_set_called(rendezvous_called);
  return grow_new(rank_count, id, rank, &about, &call);
}

ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                           ncclComm_t *newcomm, ncclConfig_t *config) {
  group_enter();
  return group_leave(grow(comm, nRanks, uniqueId, rank, newcomm, config, CALL_PLACE));
}
API_EXPORT(CommGrow);
