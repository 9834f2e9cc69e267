/* split.c: communicators made from communicators. A split is a rendezvous of all the parent's ranks, a shrink
 * one of the remaining ranks; rendezvous.c completes both. */
#include <string.h>

#include "base/callsite.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/remote/remote.h"
#include "core/settings/config.h"
#include "core/group.h"
#include "core/life.h"

/* Queues the job; a rank without color gets no communicator. */
static ncclResult_t split_add(struct rendezvous_call *call, ncclComm_t *result, const ncclConfig_t *config) {
  struct ncclComm *parent = call->parent;
  ncclConfig_t full;
  call->comm_id = parent->comm_id;
  call->key[0] = parent->shared->serial;
  TRY(config_read(call->call, config, &parent->config, &full));
  if (call->color != NCCL_SPLIT_NOCOLOR)
    TRY(comm_create(call->call, call->caller, &full, parent->device_index, &call->comm));
  const ncclResult_t added = group_add_job(call, result);
  if (added != ncclSuccess && call->comm) comm_discard(call->comm);
  return added;
}

static void split_begin(struct rendezvous_call *call, const char *name, const void *caller,
                        struct ncclComm *comm) {
  memset(call, 0, sizeof *call);
  call->call = name;
  call->caller = caller;
  call->kind = RENDEZVOUS_SPLIT;
  call->parent = comm;
}

/* Ranks of several processes check in with the process of the first of them, whose address the parent knows.
 */
static ncclResult_t split_take_root(struct rendezvous_call *call, uint32_t first_rank) {
  const struct remote *remote = call->parent->shared->remote;
  if (!remote || remote->process_count == 1) return ncclSuccess; /* all in this process */
  struct gather_root *root = (struct gather_root *)os_alloc(sizeof *root);
  if (!root) return log_no_memory("%s: an address", call->call);
  root->address = remote->addresses[remote->ranks[first_rank].process_index];
  root->let_in = remote->secret;
  call->roots = root;
  call->root_count = 1;
  return ncclSuccess;
}

static ncclResult_t split_check(struct ncclComm *comm, const char *call, const ncclComm_t *result) {
  TRY(comm_check_met(comm, call));
  if (!comm->revoked) TRY(comm_check_awake(comm, call));
  if (result) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: rank %u of comm '%s': newcomm is NULL; pass where to put the communicator", call,
                  comm->rank, comm->name);
}

static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *result, const ncclConfig_t *config,
                          const void *caller) {
  static const char *const name = "ncclCommSplit";
  TRY(split_check(comm, name, result));
  if (!comm->revoked) TRY(comm_check_ready(comm, name));
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return log_fail(ncclInvalidArgument,
                    "%s: rank %u of comm '%s': color is %d; use 0 or more, or NCCL_SPLIT_NOCOLOR", name,
                    comm->rank, comm->name, color);
  }
  struct rendezvous_call call;
  split_begin(&call, name, caller, comm);
  call.rank_count = comm->rank_count;
  call.rank = comm->rank;
  call.color = color;
  call.key_order = key;
  TRY(split_take_root(&call, 0));
  return split_add(&call, result, config);
}

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
  group_enter();
  return group_leave(split(comm, color, key, newcomm, config, CALL_PLACE));
}
API_EXPORT(CommSplit);

/* Marks the excluded ranks; counts the remaining ranks and this rank's index among them. */
static ncclResult_t shrink_mark(const struct ncclComm *comm, const int *excluded, int excluded_count,
                                uint8_t *marks, struct rendezvous_call *call) {
  for (int i = 0; i < excluded_count; i++) {
    if (excluded[i] < 0 || (uint32_t)excluded[i] >= comm->rank_count) {
      return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s' excludes rank %d of %u", call->call,
                      comm->rank, comm->name, excluded[i], comm->rank_count);
    }
    marks[excluded[i]] = 1;
  }
  if (marks[comm->rank]) {
    return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s' excludes itself; only survivors call",
                    call->call, comm->rank, comm->name);
  }
  call->signature = hash_bytes(HASH_SEED, marks, comm->rank_count);
  for (uint32_t i = 0; i < comm->rank_count; i++) {
    call->rank_count += !marks[i];
    call->rank += i < comm->rank && !marks[i];
  }
  return ncclSuccess;
}

static ncclResult_t shrink(ncclComm_t comm, const int *excluded, int excluded_count, ncclComm_t *result,
                           const ncclConfig_t *config, int flags, const void *caller) {
  static const char *const name = "ncclCommShrink";
  TRY(split_check(comm, name, result));
  if (!excluded || excluded_count <= 0 || (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)) {
    return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s': %s", name, comm->rank, comm->name,
                    !excluded || excluded_count <= 0
                        ? "the list of ranks to exclude is empty; name at least one"
                        : "the flags are none of NCCL_SHRINK_*");
  }
  if (!comm->revoked && flags == NCCL_SHRINK_DEFAULT) TRY(comm_check_ready(comm, name));
  struct rendezvous_call call;
  split_begin(&call, name, caller, comm);
  uint8_t *marks = (uint8_t *)os_alloc(comm->rank_count);
  if (!marks) return log_no_memory("%s: rank %u of comm '%s': a communicator", name, comm->rank, comm->name);
  ncclResult_t marked = shrink_mark(comm, excluded, excluded_count, marks, &call);
  uint32_t first = 0;
  while (first < comm->rank && marks[first]) first += 1;
  if (marked == ncclSuccess) marked = split_take_root(&call, first);
  os_free(marks);
  TRY(marked);
  if (flags == NCCL_SHRINK_ABORT) comm->ops->device->comm_abort(comm->device_comm);
  return split_add(&call, result, config);
}

ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                             ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags) {
  group_enter();
  return group_leave(
      shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags, CALL_PLACE));
}
API_EXPORT(CommShrink);
