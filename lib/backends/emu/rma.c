/* rma.c: puts and waits for signals. Each is a kernel of one step, which begins when what it waits for has
 * come: a put when the earlier signals of its rank for this peer have been made, a wait when its signals
 * have. So streams order it, guarded worlds schedule it, and the check for races sees it, as they do any
 * kernel; but it takes no place in the order of its rank's launches. */
#include "backends/emu/rma.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/block.h"
#include "backends/emu/order.h"
#include "base/log.h"

#define ERROR_LAUNCH_TIMEOUT 702 /* cudaErrorLaunchTimeout */

struct emu_rma {
  struct emu_kernel kernel; /* the first member */
  struct emu_rma *next, **link;
  struct device_comm *comm, *target; /* target: of a put for a rank of this process, else NULL */
  uint64_t *signal;                  /* of a put: this rank's counter at the peer; else NULL */
  bool reached;                      /* atomic: it is at the head of its stream */
  bool looked;                       /* it was woken by emu_rma_look() */
  struct device_put put;
  uint32_t await_count;
  struct device_await *awaits;
  struct race_use *uses;
};

static struct emu_rma *calls; /* enqueued and not ended, the oldest first */
static uint64_t ended_count;  /* atomic */

static struct emu_rma *rma_of(struct emu_kernel_run *run) { return (struct emu_rma *)(void *)run; }
static struct emu_kernel_run *run_of(struct emu_rma *rma) { return (struct emu_kernel_run *)(void *)rma; }

static bool is_aborted(const struct device_comm *comm) {
  return __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0;
}

static uint64_t came(const struct device_comm *comm, const struct device_await *await) {
  const uint64_t place = signal_place(comm->config.rank_count, await->set, await->peer);
  return __atomic_load_n(&comm->signals[place], __ATOMIC_ACQUIRE);
}

/* ---- the one step ---- */

/* The memory of a rank that was aborted may be gone. */
static bool rma_is_off(const struct emu_rma *rma) {
  return is_aborted(rma->comm) || (rma->target != NULL && is_aborted(rma->target));
}

static bool rma_has_all(const struct emu_rma *rma) {
  if (rma->signal != NULL) return __atomic_load_n(rma->signal, __ATOMIC_ACQUIRE) + 1 == rma->put.number;
  for (uint32_t i = 0; i < rma->await_count; i++)
    if (came(rma->comm, &rma->awaits[i]) < rma->awaits[i].number) return false;
  return true;
}

static bool rma_ready(struct emu_kernel_run *run) {
  struct emu_rma *rma = rma_of(run);
  __atomic_store_n(&rma->reached, true, __ATOMIC_RELAXED);
  return rma_is_off(rma) || rma_has_all(rma);
}

static void rma_perform(struct emu_rma *rma) {
  __atomic_fetch_add(&ended_count, 1, __ATOMIC_RELAXED);
  if (rma->signal == NULL || rma_is_off(rma)) return;
  const struct plan_call *call = &rma->put.call;
  if (call->in_bytes > 0) memmove(call->out, call->in, call->in_bytes);
  __atomic_store_n(rma->signal, rma->put.number, __ATOMIC_RELEASE);
  if (rma->target == NULL && rma->comm->order_slots != NULL && emu_options()->mode == EMU_GUARDED)
    emu_order_touch(rma->comm->order_slots[call->peer]);
}

static int rma_finish(struct emu_kernel_run *run) {
  const struct emu_rma *rma = rma_of(run);
  if (emu_runs == NULL && !emu_rma_waiting()) emu_report_flush();
  emu_changed();
  return __atomic_load_n(&rma->comm->error, __ATOMIC_RELAXED) != ncclSuccess ? ERROR_LAUNCH_TIMEOUT : 0;
}

static void rma_start(struct emu_kernel_run *run, void (*ended)(void *argument, int error), void *argument) {
  rma_perform(rma_of(run));
  ended(argument, rma_finish(run));
}

static enum emu_advance rma_advance(struct emu_kernel_run *run, uint32_t patience) {
  for (uint32_t looks = 0; !rma_ready(run); looks++) {
    if (looks >= patience) return EMU_RUN_STUCK;
    if (looks % 256 == 255) os_yield();
    else os_spin();
  }
  rma_perform(rma_of(run));
  return EMU_RUN_OVER;
}

/* Only nodes of graphs are executed so, and captures refuse these calls. */
static int rma_execute(struct emu_kernel_run *run) {
  while (rma_advance(run, EMU_PATIENCE) != EMU_RUN_OVER) os_sleep_ms(1);
  return 0;
}

static bool rma_is_brief(const struct emu_kernel_run *run) {
  (void)run;
  return false;
}

static bool rma_whole(struct emu_kernel *kernel, struct emu_kernel_run **run) {
  (void)kernel;
  *run = NULL;
  return false;
}

/* ---- life ---- */

static struct emu_kernel_run *rma_enqueue(struct emu_kernel *kernel) {
  struct emu_rma *rma = (struct emu_rma *)kernel, **link = &calls;
  while (*link != NULL) link = &(*link)->next;
  rma->link = link;
  *link = rma;
  rma->comm->rma_count += 1;
  if (rma->target != NULL) rma->target->rma_aimed += 1;
  kernel->reference_count += 1;
  return run_of(rma);
}

static void rma_retire(struct emu_kernel_run *run) {
  struct emu_rma *rma = rma_of(run);
  *rma->link = rma->next;
  if (rma->next != NULL) rma->next->link = rma->link;
  rma->comm->rma_count -= 1;
  if (rma->target != NULL) rma->target->rma_aimed -= 1;
  emu_kernel_drop(&rma->kernel);
}

static void rma_release(struct emu_kernel *kernel) {
  struct emu_rma *rma = (struct emu_rma *)kernel;
  emu_race_rank_drop(kernel->race);
  os_free(rma->awaits);
  os_free(rma->uses);
  os_free(rma);
}

static const struct emu_kernel_ops rma_ops = {
    .enqueue = rma_enqueue,
    .ready = rma_ready,
    .start = rma_start,
    .execute = rma_execute,
    .retire = rma_retire,
    .release = rma_release,
    .advance = rma_advance,
    .brief = rma_is_brief,
    .whole = rma_whole,
    .finish = rma_finish,
};

/* NULL: out of memory. */
static struct emu_rma *rma_create(struct device_comm *comm, uint32_t await_count) {
  struct emu_rma *rma = (struct emu_rma *)os_alloc(sizeof *rma);
  if (rma == NULL) return NULL;
  rma->uses = (struct race_use *)os_alloc((await_count + 1) * sizeof *rma->uses);
  rma->awaits = (struct device_await *)os_alloc((await_count + 1) * sizeof *rma->awaits);
  if (rma->uses == NULL || rma->awaits == NULL) {
    os_free(rma->awaits);
    os_free(rma->uses);
    os_free(rma);
    return NULL;
  }
  rma->kernel.ops = &rma_ops;
  rma->kernel.reference_count = 1;
  rma->kernel.race = emu_race_rank_keep(comm->race);
  rma->kernel.apart = true;
  rma->kernel.uses = rma->uses;
  rma->comm = comm;
  rma->await_count = await_count;
  return rma;
}

static struct race_use use_of(const struct plan_call *call, enum race_rule rule, uint32_t peer) {
  return (struct race_use){.call = {call->name, call->caller},
                           .sequence = call->sequence,
                           .in = call->in,
                           .out = call->out,
                           .in_bytes = call->in_bytes,
                           .out_bytes = call->out_bytes,
                           .rule = rule,
                           .peer = peer};
}

bool emu_signals_have(struct device_comm *comm) {
  const size_t bytes = (size_t)SIGNAL_SETS * comm->config.rank_count * sizeof *comm->signals;
  void *memory = NULL;
  if (comm->signals != NULL) return true;
  if (comm->pinned && !emu_arena_alloc(bytes, true, &memory)) return false;
  comm->signals = (uint64_t *)(memory != NULL ? memory : os_alloc(bytes));
  return comm->signals != NULL;
}

/* This rank's counter at the peer; NULL: out of memory. */
static uint64_t *signal_at(struct device_comm *comm, const struct device_put *put) {
  const uint64_t place = signal_place(comm->config.rank_count, put->set, comm->config.rank);
  if (put->target == NULL) return &comm->signals_there[put->call.peer].signals[place];
  return emu_signals_have(put->target) ? &put->target->signals[place] : NULL;
}

/* Default-stream names mean the rank's device. */
static int rma_launch(struct device_comm *comm, struct emu_rma *rma, device_stream stream) {
  const uint32_t selected = emu_device_current();
  emu_device_select(comm->config.device_index);
  emu_owner_set(&comm->owner);
  struct emu_stream *found = emu_stream_find(stream);
  const int error = found != NULL ? emu_stream_launch(found, &rma->kernel, NULL, 0) : 400;
  emu_kernel_drop(&rma->kernel);
  emu_device_select(selected);
  return error;
}

static ncclResult_t rma_result(const struct device_comm *comm, const struct plan_call *call, int error) {
  if (error == 0) return ncclSuccess;
  if (error == RACE_ERROR) return log_fail(ncclInvalidUsage, "%s", emu_race_text());
  if (error == 2)
    return log_no_memory("%s: rank %" PRIu32 " of comm '%s': enqueueing it", call->name, comm->config.rank,
                         comm->name);
  return log_fail(ncclUnhandledCudaError, "%s: rank %" PRIu32 " of comm '%s': enqueueing it: CUDA error %d",
                  call->name, comm->config.rank, comm->name, error);
}

ncclResult_t emu_put(struct device_comm *comm, const struct device_put *put, device_stream stream) {
  int error = 2;
  emu_lock();
  uint64_t *signal = signal_at(comm, put);
  struct emu_rma *rma = signal != NULL ? rma_create(comm, 0) : NULL;
  if (rma != NULL) {
    rma->target = put->target;
    rma->signal = signal;
    rma->put = *put;
    rma->uses[0] = use_of(&put->call, RACE_SIGNAL, put->call.peer);
    rma->uses[0].set = put->set;
    if (put->target == NULL) rma->uses[0].out_bytes = 0; /* memory that the check does not know */
    rma->kernel.use_count = 1;
    error = rma_launch(comm, rma, stream);
  }
  emu_unlock();
  return rma_result(comm, &put->call, error);
}

ncclResult_t emu_await(struct device_comm *comm, const struct plan_call *call,
                       const struct device_await *awaits, uint32_t await_count, device_stream stream) {
  int error = 2;
  emu_lock();
  struct emu_rma *rma = emu_signals_have(comm) ? rma_create(comm, await_count) : NULL;
  if (rma != NULL) {
    rma->put.call = *call;
    memcpy(rma->awaits, awaits, await_count * sizeof *awaits);
    for (uint32_t i = 0; i < await_count; i++) {
      rma->uses[i] = use_of(call, RACE_AWAIT, awaits[i].peer);
      rma->uses[i].number = awaits[i].number;
      rma->uses[i].set = awaits[i].set;
    }
    rma->kernel.use_count = await_count;
    error = rma_launch(comm, rma, stream);
  }
  emu_unlock();
  return rma_result(comm, call, error);
}

/* ---- what waits ---- */

static bool rma_waits(const struct emu_rma *rma) {
  return __atomic_load_n(&rma->reached, __ATOMIC_RELAXED) && !rma_is_off(rma) && !rma_has_all(rma);
}

bool emu_rma_waiting(void) {
  for (const struct emu_rma *rma = calls; rma != NULL; rma = rma->next)
    if (rma_waits(rma)) return true;
  return false;
}

static bool is_here(const struct device_comm *comm, uint32_t rank) {
  for (const struct device_comm *other = emu_comms; other != NULL; other = other->next)
    if (other->config.comm_id == comm->config.comm_id && other->config.rank == rank) return true;
  return false;
}

bool emu_rma_outside(bool ordered) {
  for (const struct emu_rma *rma = calls; rma != NULL; rma = rma->next) {
    if ((rma->comm->order_slots != NULL && !ordered) || !rma->comm->pinned || !rma_waits(rma)) continue;
    for (uint32_t i = 0; i < rma->await_count; i++)
      if (came(rma->comm, &rma->awaits[i]) < rma->awaits[i].number &&
          !is_here(rma->comm, rma->awaits[i].peer))
        return true;
  }
  return false;
}

bool emu_rma_look(void) {
  for (const struct emu_rma *rma = calls; rma != NULL; rma = rma->next) {
    if (!rma->comm->pinned || rma->signal != NULL || rma->looked || !rma->reached || !rma_has_all(rma))
      continue;
    for (struct emu_rma *each = calls; each != NULL; each = each->next)
      each->looked = each->looked || (each->reached && rma_has_all(each));
    emu_kernel_runs_wake();
    return true;
  }
  return false;
}

uint64_t emu_rma_progress(void) { return __atomic_load_n(&ended_count, __ATOMIC_RELAXED); }

/* Signals that the rank has enqueued for the peer and that have not been made. */
static uint64_t under_way(const struct device_comm *comm, uint32_t from) {
  uint64_t count = 0;
  for (const struct emu_rma *rma = calls; rma != NULL; rma = rma->next)
    count += rma->target == comm && rma->comm->config.rank == from;
  return count;
}

static void await_text(const struct emu_rma *rma, char *out, size_t out_bytes) {
  size_t used = (size_t)snprintf(out, out_bytes, "rank %" PRIu32 " %s waits", rma->comm->config.rank,
                                 rma->put.call.name);
  const char *joint = "";
  for (uint32_t i = 0; i < rma->await_count && used < out_bytes; i++) {
    const struct device_await *await = &rma->awaits[i];
    const uint64_t have = came(rma->comm, await), before = await->number - await->count;
    if (have >= await->number) continue;
    used += (size_t)snprintf(out + used, out_bytes - used,
                             "%s for %" PRIu32 " signal%s of rank %" PRIu32 ": %" PRIu64 " of them have come",
                             joint, await->count, await->count == 1 ? "" : "s", await->peer,
                             have > before ? have - before : 0);
    if (used < out_bytes && is_here(rma->comm, await->peer))
      used +=
          (size_t)snprintf(out + used, out_bytes - used, ", and rank %" PRIu32 " has called %" PRIu64 " more",
                           await->peer, under_way(rma->comm, await->peer));
    joint = ";";
  }
}

bool emu_rma_report(uint32_t *place, char *out, size_t out_bytes) {
  uint32_t number = 0;
  for (const struct emu_rma *rma = calls; rma != NULL; rma = rma->next, number++) {
    if (number < *place || !rma_waits(rma)) continue;
    const int used = snprintf(out, out_bytes, "comm %s: ", rma->comm->name);
    out += used, out_bytes -= (size_t)used;
    *place = number + 1;
    if (rma->signal == NULL) await_text(rma, out, out_bytes);
    else
      snprintf(out, out_bytes,
               "rank %" PRIu32 " %s to rank %" PRIu32 " waits for an earlier one of these on another stream",
               rma->comm->config.rank, rma->put.call.name, rma->put.call.peer);
    return true;
  }
  return false;
}

struct device_comm *emu_rma_stuck(void) {
  for (const struct emu_rma *rma = calls; rma != NULL; rma = rma->next)
    if (rma_waits(rma)) return rma->comm;
  return NULL;
}

void emu_rma_stall(const struct device_comm *comm, struct device_stall *stall) {
  stall->busy = stall->busy || comm->rma_count > 0;
  for (const struct emu_rma *rma = calls; rma != NULL; rma = rma->next) {
    if (rma->comm != comm || rma->signal != NULL || !rma_waits(rma)) continue;
    for (uint32_t i = 0; i < rma->await_count && stall->wait_count < DEVICE_WAITS_MOST; i++) {
      if (came(comm, &rma->awaits[i]) >= rma->awaits[i].number) continue;
      stall->waits[stall->wait_count++] = (struct device_wait){
          .peer = rma->awaits[i].peer, .func = rma->put.call.func, .operation = rma->put.call.sequence};
    }
  }
}
