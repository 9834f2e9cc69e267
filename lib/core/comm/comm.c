/* comm.c: the state of one rank's communicator, and the state that its ranks share. Promises to detect a
 * freed or foreign handle as far as memory allows. Does not know how ranks meet, nor what they communicate.
 */
#include "core/comm/comm.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/plan/plan_cache.h"
#include "core/comm/handles.h"
#include "core/comm/leaks.h"
#include "core/comm/record.h"
#include "core/topology/layout.h"

/* Under the backend's lock. */
static struct comm_shared *shared_states;

struct comm_shared *comm_shared_create(const struct backend *ops, uint64_t comm_id, uint32_t rank_count) {
  static uint64_t last_serial;
  struct comm_shared *shared = (struct comm_shared *)os_alloc(sizeof *shared);
  if (!shared) return NULL;
  shared->serial = __atomic_add_fetch(&last_serial, 1, __ATOMIC_RELAXED);
  shared->ops = ops;
  shared->comm_id = comm_id;
  shared->rank_count = rank_count;
  shared->device_comms = (struct device_comm **)os_alloc(rank_count * sizeof *shared->device_comms);
  shared->match = match_create(rank_count);
  if (!shared->device_comms || !shared->match) {
    comm_shared_free(shared);
    return NULL;
  }
  return shared;
}

ncclResult_t comm_shared_lay_out(struct comm_shared *shared, struct ncclComm *const *comms) {
  uint32_t *devices = (uint32_t *)os_alloc(shared->rank_count * sizeof *devices);
  if (!devices) return log_no_memory("the devices of %u ranks", shared->rank_count);
  for (uint32_t rank = 0; rank < shared->rank_count; rank++) devices[rank] = comms[rank]->device_index;
  const uint32_t channel_count = comms[0]->settings.plan.limits.channel_count;
  const ncclResult_t result =
      layout_graph(shared->ops, devices, shared->rank_count, channel_count, &shared->graph);
  os_free(devices);
  return result;
}

void comm_shared_free(struct comm_shared *shared) {
  if (!shared) return;
  graph_free(&shared->graph);
  match_free(shared->match);
  os_free(shared->device_comms);
  os_free(shared->windows);
  os_free(shared);
}

void comm_shared_enlist(struct comm_shared *shared) {
  shared->next = shared_states;
  shared_states = shared;
}

bool comm_shared_id_taken(uint64_t comm_id) {
  for (const struct comm_shared *shared = shared_states; shared; shared = shared->next) {
    if (shared->comm_id == comm_id) return true;
  }
  return false;
}

void comm_shared_delist(struct comm_shared *shared) {
  struct comm_shared **link = &shared_states;
  while (*link && *link != shared) link = &(*link)->next;
  if (*link) *link = shared->next;
}

ncclResult_t comm_open(struct ncclComm *comm) {
  struct device_comm_config config;
  memset(&config, 0, sizeof config);
  config.comm_id = comm->comm_id;
  config.rank = comm->rank;
  config.rank_count = comm->rank_count;
  config.device_index = comm->device_index;
  config.limits = comm->settings.plan.limits;
  if (comm->name[0] == '\0')
    snprintf(comm->name, sizeof comm->name, "%llx", (unsigned long long)comm->comm_id);
  config.name = comm->name;
  record_birth(comm);
  const struct recorder_live live = recorder_live(&comm->recorder);
  config.live = &live;
  return comm->ops->device->comm_open(&config, &comm->device_comm);
}

enum comm_state comm_state(const struct ncclComm *comm) {
  return (enum comm_state)__atomic_load_n(&comm->state, __ATOMIC_ACQUIRE);
}

ncclResult_t comm_async_error(const struct ncclComm *comm) {
  const ncclResult_t own = (ncclResult_t)__atomic_load_n(&comm->async_error, __ATOMIC_ACQUIRE);
  if (own != ncclSuccess || !comm->device_comm) return own;
  return comm->ops->device->comm_error(comm->device_comm);
}

void comm_set_async_error(struct ncclComm *comm, ncclResult_t error) {
  leaks_excuse();
  uint32_t none = ncclSuccess;
  __atomic_compare_exchange_n(&comm->async_error, &none, error, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void break_for(struct ncclComm *comm, ncclResult_t error, const char *reason, bool logs) {
  uint32_t none = 0;
  if (__atomic_compare_exchange_n(&comm->broken, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    snprintf(comm->reason, sizeof comm->reason, "%s", reason);
    comm->reason_code = error;
    leaks_excuse();
    recorder_break(comm->recorder.comm, error, reason);
    __atomic_store_n(&comm->broken, 2, __ATOMIC_RELEASE);
    __atomic_store_n(&comm->called_off, 1, __ATOMIC_RELEASE);
    if (logs) {
      log_urgent(
          "rank %u of comm '%s', after %llu operations: %s; abort it, or shrink it to those who are left",
          comm->rank, comm->name, (unsigned long long)__atomic_load_n(&comm->sequence, __ATOMIC_RELAXED),
          reason);
    }
    comm_set_async_error(comm, error);
  }
  comm->ops->device->comm_fail(comm->device_comm, error);
}

void comm_break(struct ncclComm *comm, ncclResult_t error, const char *reason) {
  break_for(comm, error, reason, true);
}

void comm_break_silently(struct ncclComm *comm, ncclResult_t error, const char *reason) {
  break_for(comm, error, reason, false);
}

const char *comm_why(const struct ncclComm *comm, ncclResult_t error) {
  return __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE) == 2 ? comm->reason : err_text(error);
}

ncclResult_t comm_check_handle(const struct ncclComm *comm, const char *call) {
  if (!comm) {
    return log_fail(ncclInvalidArgument, "%s: the communicator is NULL; pass one that ncclCommInit* has set",
                    call);
  }
  if (handles_has(comm)) {
    if (comm->fork_count == os_fork_count()) return ncclSuccess;
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u of comm '%s' belongs to the process that this one was forked from; leave it "
                    "alone, and make communicators of this process's own",
                    call, comm->rank, comm->name);
  }
  return log_fail(ncclInvalidArgument,
                  "%s: %p is no communicator, or one that was destroyed; do not use a handle after "
                  "ncclCommDestroy or ncclCommAbort",
                  call, (const void *)comm);
}

static ncclResult_t comm_check_state(struct ncclComm *comm, const char *call) {
  switch (comm_state(comm)) {
    case COMM_READY: break;
    case COMM_RENDEZVOUS:
      return log_fail(ncclInvalidArgument,
                      "%s: the communicator is still being made; poll ncclCommGetAsyncError until "
                      "it no longer answers ncclInProgress",
                      call);
    case COMM_FAILED:
      return log_fail(comm_async_error(comm), "%s: the communicator could not be made: %s; destroy it", call,
                      comm->reason);
    default:
      return log_fail(ncclInvalidArgument,
                      "%s: rank %u of comm '%s' is finalized; only ncclCommDestroy is left", call, comm->rank,
                      comm->name);
  }
  if (__atomic_load_n(&comm->children_rendezvous, __ATOMIC_ACQUIRE) == 0) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: rank %u of comm '%s' is still being split; poll ncclCommGetAsyncError until "
                  "it no longer answers ncclInProgress",
                  call, comm->rank, comm->name);
}

ncclResult_t comm_check_met(struct ncclComm *comm, const char *call) {
  TRY(comm_check_handle(comm, call));
  return comm_check_state(comm, call);
}

ncclResult_t comm_check_sound(struct ncclComm *comm, const char *call) {
  TRY(comm_check_met(comm, call));
  if (comm->revoked) {
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u of comm '%s' was revoked; split or shrink it, or destroy it", call,
                    comm->rank, comm->name);
  }
  const ncclResult_t error = comm_async_error(comm);
  if (error == ncclSuccess) return ncclSuccess;
  return log_fail(error, "%s: rank %u of comm '%s' failed earlier (%s); abort it", call, comm->rank,
                  comm->name, comm_why(comm, error));
}

ncclResult_t comm_check_awake(const struct ncclComm *comm, const char *call) {
  if (!comm->suspended) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "%s: rank %u of comm '%s' is suspended; call ncclCommResume on every rank before", call,
                  comm->rank, comm->name);
}

ncclResult_t comm_check_ready(struct ncclComm *comm, const char *call) {
  TRY(comm_check_sound(comm, call));
  return comm_check_awake(comm, call);
}

bool comm_is_ready(const struct ncclComm *comm) { return handles_has(comm) && comm_known_is_ready(comm); }

bool comm_known_is_ready(const struct ncclComm *comm) {
  return comm->fork_count == os_fork_count() && comm_state(comm) == COMM_READY && !comm->revoked &&
         !comm->suspended && __atomic_load_n(&comm->children_rendezvous, __ATOMIC_ACQUIRE) == 0 &&
         __atomic_load_n(&comm->async_error, __ATOMIC_ACQUIRE) == ncclSuccess;
}

/* Threads are identified by serial numbers, because addresses and system ids are reused. */
void comm_own(struct ncclComm *comm) {
  static uint64_t last_serial;
  static _Thread_local uint64_t serial;
  if (serial == 0) serial = __atomic_add_fetch(&last_serial, 1, __ATOMIC_RELAXED);
  log_set_device((int)comm->device_index);
  if (comm->owner == serial) return;
  comm->owner = serial;
  comm->ops->device->comm_own(comm->device_comm);
}

uint64_t comm_core_bytes(const struct ncclComm *comm) {
  uint64_t bytes = sizeof *comm + call_cache_bytes(&comm->call_cache);
  bytes += comm->queue.op_capacity * sizeof *comm->queue.ops;
  bytes += comm->queue.call_capacity * sizeof *comm->queue.calls;
  bytes += comm->queue.stream_capacity * sizeof *comm->queue.streams;
  bytes += comm->queue.plan_memory.task_bytes + comm->queue.plan_memory.draft_bytes;
  bytes += comm->queue.plan_memory.plan_bytes + plan_cache_bytes(comm->queue.plan_memory.cache);
  bytes += comm->connections.capacity * sizeof *comm->connections.entries;
  bytes += comm->redops.count * sizeof *comm->redops.rows;
  for (const struct registration *row = comm->registrations; row; row = row->next) bytes += sizeof *row;
  return bytes;
}
