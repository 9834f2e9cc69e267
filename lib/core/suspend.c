/* suspend.c: gives the memory of a communicator's connections back, and lets its next calls connect as the
 * first ones did. All ranks take part: none closes a connection that another one still uses, and none asks
 * for a new one while the other end has the old one. Their rendezvous is that of a split without a
 * communicator, so that a rank which does not come, or whose process ends, is named as there. */
#include "core/suspend.h"

#include <inttypes.h>
#include <string.h>

#include "base/callsite.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/comm/use.h"
#include "core/group.h"
#include "core/life.h"
#include "core/plan/plan_cache.h"
#include "core/proxy/proxy.h"
#include "core/remote/remote.h"

/* ---- The rendezvous ---- */

/* Where ranks of other processes check in: with the process of rank 0. */
static uint32_t root_of(const struct ncclComm *comm, struct gather_root *root) {
  const struct remote *remote = comm->shared->remote;
  if (!remote || remote->process_count == 1) return 0;
  root->address = remote->addresses[remote->ranks[0].process_index];
  root->let_in = remote->secret;
  return 1;
}

#define TURN_SHIFT 62

static ncclResult_t job_arrive(struct suspend_job *job, uint64_t turn) {
  struct ncclComm *comm = job->comm;
  struct gather_root root;
  struct rendezvous_call call;
  ncclConfig_t config = comm->config;
  memset(&call, 0, sizeof call);
  config.blocking = 1;
  call.call = job->call;
  call.caller = job->caller;
  call.kind = RENDEZVOUS_SPLIT;
  call.parent = comm;
  call.comm_id = comm->comm_id;
  call.key[0] = comm->shared->serial;
  call.key[1] = comm->split_count | turn << TURN_SHIFT;
  call.rank_count = comm->rank_count;
  call.rank = comm->rank;
  call.color = NCCL_SPLIT_NOCOLOR;
  call.signature = hash_text(HASH_SEED, job->call);
  call.roots = &root;
  call.root_count = root_of(comm, &root);
  const ncclResult_t created =
      comm_create(job->call, job->caller, &config, comm->device_index, &job->stand_in);
  if (created != ncclSuccess) {
    rendezvous_refuse(&call, "could not take part");
    return created;
  }
  call.comm = job->stand_in;
  call.comm->stands_in = true;
  TRY(rendezvous_join(&call));
  return rendezvous_arrive(&call);
}

static void job_withdraw(struct suspend_job *job) {
  if (job->stand_in) comm_discard(job->stand_in);
  job->stand_in = NULL;
}

/* If the communicator failed meanwhile, says why. */
static ncclResult_t job_wait(struct suspend_job *job) {
  const struct ncclComm *comm = job->comm;
  const ncclResult_t result = rendezvous_wait(job->stand_in, job->call);
  const ncclResult_t error = comm_async_error(comm);
  if (result == ncclSuccess || error == ncclSuccess) return result;
  return log_fail(error, "%s: rank %u of comm '%s' failed meanwhile (%s); abort it", job->call, comm->rank,
                  comm->name, comm_why(comm, error));
}

/* Waits for the other ranks of each communicator: `turn` 0, then, of those that are suspended, 1 and 2. The
 * first turn is counted as a split on all ranks, also where an earlier one of the group has failed. */
static ncclResult_t jobs_wait(struct suspend_job *jobs, uint64_t turn) {
  ncclResult_t result = ncclSuccess;
  for (struct suspend_job *job = jobs; job; job = job->next) {
    if (job->resumes && turn > 0) continue;
    job->comm->split_count += turn == 0;
    if (result == ncclSuccess) result = job_arrive(job, turn);
  }
  for (struct suspend_job *job = jobs; job; job = job->next) {
    if (result == ncclSuccess && job->stand_in) result = job_wait(job);
    job_withdraw(job);
  }
  return result;
}

/* ---- Giving back ---- */

/* Cached plans and calls would go to connections that no longer exist. */
static void calls_forget(struct ncclComm *comm) {
  call_cache_free(&comm->call_cache);
  memset(&comm->call_cache, 0, sizeof comm->call_cache);
  plan_cache_free(comm->queue.plan_memory.cache);
  comm->queue.plan_memory.cache = NULL;
  memset(&comm->queue.plan, 0, sizeof comm->queue.plan);
}

/* Proxies first: they use the slots that the backend frees. */
static void give_back(struct ncclComm *comm) {
  const struct remote *remote = comm->shared->remote;
  comm->suspended_bytes = comm->ops->device->comm_releasable(comm->device_comm);
  if (remote && remote->proxies[comm->rank]) proxy_comm_release(remote->proxies[comm->rank]);
  comm->ops->device->comm_release(comm->device_comm);
  __atomic_fetch_add(&comm->one_sided.unmapped, 1, __ATOMIC_RELEASE);
  connect_table_free(&comm->connections);
  calls_forget(comm);
  comm->suspended = true;
}

/* ---- The calls ---- */

static void job_leave(struct suspend_job *job) {
  if (!job->entered) return;
  job->comm->suspending = job->entered = false;
  use_end(job->comm);
  comm_waiter_leave(job->comm);
}

static ncclResult_t job_enter(struct suspend_job *job) {
  struct ncclComm *comm = job->comm;
  if (!comm_waiter_enter(comm))
    return log_fail(ncclInvalidUsage, "%s: rank %u of comm '%s' was aborted", job->call, comm->rank,
                    comm->name);
  job->entered = !comm->suspending;
  comm->suspending = true;
  if (job->entered) {
    use_begin(comm, job->call, job->caller); /* ends of other threads refuse, or wait */
    TRY(use_check(comm, job->call, job->caller));
    return job->resumes ? ncclSuccess : comm_drain(comm);
  }
  comm_waiter_leave(comm);
  return log_fail(ncclInvalidUsage,
                  "%s: rank %u of comm '%s' is suspended or resumed twice in one group; do one of it",
                  job->call, comm->rank, comm->name);
}

static void job_finish(struct suspend_job *job) {
  struct ncclComm *comm = job->comm;
  uint64_t bytes = 0;
  if (job->resumes) comm->suspended = false;
  comm->ops->device->comm_memory(comm->device_comm, &bytes);
  log_info(LOG_INIT,
           "%s comm %p rank %u nranks %u cudaDev %u commId 0x%" PRIx64 " - %s, %" PRIu64 " bytes are left",
           job->call, (void *)comm, comm->rank, comm->rank_count, comm->device_index, comm->comm_id,
           job->resumes ? "resumed" : "suspended", bytes);
}

/* Device memory is freed only while all ranks are here: freeing waits for kernels, and one that a rank
 * launches on another communicator would wait for this rank's. */
static ncclResult_t jobs_give_back(struct suspend_job *jobs) {
  bool suspends = false;
  for (struct suspend_job *job = jobs; job; job = job->next) {
    if (!job->resumes) give_back(job->comm);
    suspends = suspends || !job->resumes;
  }
  if (!suspends) return ncclSuccess;
  TRY(jobs_wait(jobs, 1));
  for (struct suspend_job *job = jobs; job; job = job->next)
    if (!job->resumes) job->comm->ops->device->comm_release_end(job->comm->device_comm);
  return jobs_wait(jobs, 2);
}

static ncclResult_t jobs_run(struct suspend_job *jobs) {
  for (struct suspend_job *job = jobs; job; job = job->next) TRY(job_enter(job));
  for (struct suspend_job *job = jobs; job; job = job->next)
    if (job->resumes) windows_show(job->comm);
  TRY(jobs_wait(jobs, 0));
  for (struct suspend_job *job = jobs; job; job = job->next)
    recorder_life(&job->comm->recorder, job->resumes ? LIFE_RESUME : LIFE_SUSPEND, job->comm->sequence);
  TRY(jobs_give_back(jobs));
  for (struct suspend_job *job = jobs; job; job = job->next) job_finish(job);
  return ncclSuccess;
}

ncclResult_t suspend_run(struct suspend_job *jobs) {
  const ncclResult_t result = jobs_run(jobs);
  for (struct suspend_job *job = jobs; job; job = job->next) job_leave(job);
  return result;
}

void suspend_free(struct suspend_job *jobs) {
  for (struct suspend_job *job = jobs, *next; job; job = next) {
    next = job->next;
    os_free(job);
  }
}

static ncclResult_t suspend_add(struct ncclComm *comm, const char *call, const void *caller, bool resumes) {
  struct suspend_job *job = (struct suspend_job *)os_alloc(sizeof *job);
  if (!job) return log_no_memory("%s: noting the call", call);
  job->comm = comm;
  job->call = call;
  job->caller = caller;
  job->resumes = resumes;
  group_add_suspend(job);
  return ncclSuccess;
}

static ncclResult_t suspend_check(struct ncclComm *comm, const char *call, int flags) {
  if (flags != NCCL_SUSPEND_MEM)
    return log_fail(ncclInvalidArgument,
                    "%s: rank %u of comm '%s': the flags are 0x%x; pass NCCL_SUSPEND_MEM", call, comm->rank,
                    comm->name, (unsigned)flags);
  if (comm->suspended)
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u of comm '%s' is suspended already; call ncclCommResume before", call,
                    comm->rank, comm->name);
  if (!comm->ops->device->comm_idle(comm->device_comm))
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u of comm '%s' has operations that have not ended; wait for the streams that "
                    "they are on (cudaStreamSynchronize) before",
                    call, comm->rank, comm->name);
  if (comm->lsa.resources)
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u of comm '%s' has a device communicator, whose kernels keep the addresses of "
                    "other ranks; call ncclDevCommDestroy before",
                    call, comm->rank, comm->name);
  return comm->ops->device->comm_release_check(comm->device_comm);
}

static ncclResult_t suspend(struct ncclComm *comm, int flags, const void *caller) {
  static const char *const call = "ncclCommSuspend";
  TRY(comm_check_sound(comm, call));
  TRY(comm_check_unused(comm, call, caller));
  TRY(suspend_check(comm, call, flags));
  return suspend_add(comm, call, caller, false);
}

ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags) {
  group_enter();
  return group_leave(suspend(comm, flags, CALL_PLACE));
}
API_EXPORT(CommSuspend);

static ncclResult_t resume(struct ncclComm *comm, const void *caller) {
  static const char *const call = "ncclCommResume";
  TRY(comm_check_sound(comm, call));
  TRY(comm_check_unused(comm, call, caller));
  if (!comm->suspended)
    return log_fail(ncclInvalidUsage,
                    "%s: rank %u of comm '%s' is not suspended; call ncclCommSuspend before", call,
                    comm->rank, comm->name);
  return suspend_add(comm, call, caller, true);
}

ncclResult_t pncclCommResume(ncclComm_t comm) {
  group_enter();
  return group_leave(resume(comm, CALL_PLACE));
}
API_EXPORT(CommResume);
