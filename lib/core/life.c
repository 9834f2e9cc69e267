/* life.c: creation and end of one rank's communicator. Device-side halves are closed only when no rank of the
 * communicator is left that might still write to them. Does not know how ranks meet, nor what they
 * communicate.
 */
#include "core/life.h"

#include <stdio.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/bootstrap/bootstrap.h"
#include "core/comm/handles.h"
#include "core/comm/leaks.h"
#include "core/comm/use.h"
#include "core/custom/custom.h"
#include "core/remote/remote.h"
#include "core/group.h"
#include "core/rma.h"
#include "core/plan/plan_cache.h"
#include "core/plugins/profiler.h"
#include "core/plugins/tuner.h"
#include "core/proxy/net.h"
#include "core/rendezvous/rendezvous.h"
#include "core/stall/watchdog.h"

static uint32_t live_count; /* communicators of the process; under the backend's lock */
static uint32_t live_forks; /* os_fork_count() of the process that made them */

/* One rank leaves; the last one closes everything. Until then no thread uses the rank that left. */
static void comm_shared_leave(struct comm_shared *shared, uint32_t rank) {
  if (shared->remote) remote_leave(shared->remote, rank);
  shared->ops->device->comm_disown(shared->device_comms[rank]);
  shared->ops->device->lock();
  const bool last = --shared->live_count == 0;
  if (last) comm_shared_delist(shared);
  shared->ops->device->unlock();
  if (!last) return;
  if (shared->remote) remote_watch_leave(shared->remote);
  remote_free(shared->remote); /* before the device-side halves that its answers use */
  shared->remote = NULL;
  for (uint32_t i = shared->rank_count; i > 0; i--)
    shared->ops->device->comm_close(shared->device_comms[i - 1]);
  comm_shared_free(shared);
}

static void comm_count(const struct backend *ops, bool born) {
  ops->device->lock();
  if (born) live_forks = os_fork_count();
  live_count += born ? 1 : (uint32_t)-1;
  if (live_count == 0 && !rendezvous_any()) bootstrap_restart_numbers();
  ops->device->unlock();
  if (born) watchdog_enter();
  else watchdog_leave();
}

/* CUDA's state does not survive a fork. */
static ncclResult_t fork_check(const struct backend *ops, const char *call) {
  ops->device->lock();
  const bool inherited = live_count > 0 && live_forks != os_fork_count();
  ops->device->unlock();
  if (!inherited) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: this process was forked from one that has communicators, and neither CUDA nor NCCL works "
      "in such a child; fork before the first communicator, or start another program (exec)",
      call);
}

ncclResult_t comm_create(const char *call, const void *caller, const ncclConfig_t *config,
                         uint32_t device_index, struct ncclComm **comm) {
  const struct backend *ops = backend_ops();
  if (!ops) return ncclInvalidUsage;
  TRY(fork_check(ops, call));
  if (config->netName) TRY(net_require(call, config->netName));
  struct settings settings;
  TRY(settings_read(ops, config, &settings));
  const struct custom_schedule *custom = NULL;
  const char *path = param_text(PARAM_CUSTOM_FILE);
  const ncclResult_t shared = *path != '\0' ? custom_share(path, &custom) : ncclSuccess;
  if (shared != ncclSuccess) {
    settings_free(&settings);
    return shared;
  }
  struct ncclComm *fresh = (struct ncclComm *)os_alloc(sizeof *fresh);
  if (!fresh || !handles_add(fresh)) {
    os_free(fresh);
    settings_free(&settings);
    custom_release(custom);
    return log_no_memory("%s: a communicator", call);
  }
  fresh->ops = ops;
  fresh->device_index = device_index;
  fresh->fork_count = os_fork_count();
  fresh->made_by = call;
  fresh->caller = caller;
  fresh->settings = settings;
  fresh->custom = custom;
  fresh->config = *config;
  fresh->config.commName = fresh->config.netName = NULL;
  fresh->state = COMM_RENDEZVOUS;
  if (config->commName) snprintf(fresh->name, sizeof fresh->name, "%s", config->commName);
  comm_count(ops, true);
  leaks_watch();
  *comm = fresh;
  return ncclSuccess;
}

static void comm_free(struct ncclComm *comm) {
  const struct backend *ops = comm->ops;
  handles_remove(comm);
  while (use_is_called(comm)) os_yield(); /* a call that is being refused */
  recorder_close(&comm->recorder, comm->aborted ? RECORD_ABORTED : RECORD_ENDED);
  call_cache_free(&comm->call_cache);
  os_free(comm->queue.ops);
  os_free(comm->queue.calls);
  os_free(comm->queue.streams);
  plan_memory_free(&comm->queue.plan_memory);
  tuner_close(comm->settings.plan.tuner);
  profiler_close(comm->profiler);
  settings_free(&comm->settings);
  connect_table_free(&comm->connections);
  redop_table_free(&comm->redops);
  registrations_free(comm->registrations);
  rma_free(comm);
  custom_release(comm->custom);
  if (comm->grow_nonce != 0) bootstrap_id_over(comm->grow_nonce);
  os_free(comm);
  comm_count(ops, false);
}

void comm_discard(struct ncclComm *comm) {
  group_forget(comm);
  leaks_leave(comm);
  rendezvous_withdraw(comm, "was dropped");
  rendezvous_forget_parent(comm);
  match_leave(comm);
  windows_leave(comm);
  lsa_free(comm);
  if (comm->shared) comm_shared_leave(comm->shared, comm->rank);
  else comm->ops->device->comm_close(comm->device_comm);
  comm_free(comm);
}
