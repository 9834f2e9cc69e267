/* rendezvous_remote.c: a rendezvous with ranks of other processes. Its thread checks this process's ranks in
 * with the root, waits for all peer info, creates the communicators that this process has ranks in, and
 * agrees with the other processes on the result. All processes get the same outcome, and the thread ends with
 * the rendezvous. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/control.h"
#include "core/remote/remote.h"
#include "core/rendezvous/rendezvous_impl.h"
#include "core/remote/reach.h"
#include "core/stall/stall.h"

/* The state of one rendezvous's thread. */
struct conduct {
  struct rendezvous *rendezvous;
  const struct backend *ops;
  struct gather *gather;
  struct comm_shared *
      *shared_states; /* those that this process has ranks in, with their communicators open */
  uint32_t shared_count;
  struct remote_member *members; /* all ranks with a communicator, by communicator */
  uint32_t *ranks;               /* of the communicator being created, by rank */
  struct ncclComm **comms;       /* the same; NULL for ranks of other processes */
  struct reach reach;            /* which processes map each other's memory */
  bool holds;                    /* nothing moves until the rendezvous has ended */
  char reason[COMM_REASON_BYTES];
};

struct remote_member {
  int color, key_order;
  uint32_t rank;
};

bool rendezvous_is_remote(const struct rendezvous_call *call) {
  const struct remote *remote = call->parent ? call->parent->shared->remote : NULL;
  if (call->kind == RENDEZVOUS_SPLIT) return remote && remote->process_count > 1;
  return !call->id.own;
}

/* By ranks of several processes, of which none has registered the id. */
static bool is_grow(const struct rendezvous_call *call) { return call->id.grown > 0 && !call->id.own; }

void rendezvous_root_end(const struct rendezvous_call *call) {
  if (is_grow(call)) control_unserve(call->id.nonce); /* who comes late is refused */
  else if (call->kind == RENDEZVOUS_INIT && (call->id.own || call->id.fixed))
    bootstrap_id_over(call->id.nonce);
}

void rendezvous_child_secret(const struct secret *parent, uint64_t number, struct secret *secret) {
  secret_derive(parent, "tutti split", &number, sizeof number, secret);
}

/* ---- Checking in ---- */

/* A rank without color gets no communicator and has no peer info. A child's device-side half is not open yet,
 * so the parent's is used. */
static ncclResult_t slot_info(const struct rendezvous_call *call, struct peer_info *info) {
  memset(info, 0, sizeof *info);
  if (!call->comm || call->comm->stands_in) return ncclSuccess;
  const bool child = call->kind == RENDEZVOUS_SPLIT;
  TRY(peer_info_fill(call->comm, child ? call->parent->device_comm : call->comm->device_comm, info));
  info->color = call->color;
  info->key_order = call->key_order;
  return ncclSuccess;
}

ncclResult_t rendezvous_fill_info(const struct rendezvous_call *call, struct peer_info **out) {
  struct peer_info *info = (struct peer_info *)os_alloc(sizeof *info);
  if (!info) return log_no_memory("%s: describing rank %u", call->call, call->rank);
  const ncclResult_t result = slot_info(call, info);
  if (result == ncclSuccess) *out = info;
  else os_free(info);
  return result;
}

/* Checks in a rank that arrived before the root was reached. */
static ncclResult_t conduct_check_in(struct conduct *conduct, uint32_t index) {
  struct rendezvous *rendezvous = conduct->rendezvous;
  struct rank_slot *slot = &rendezvous->slots[index];
  if (!slot->info) { /* it arrived before the first rank of another process, by an id of this process */
    struct rendezvous_call call = rendezvous->first;
    call.rank = index;
    call.comm = slot->comm;
    TRY(rendezvous_fill_info(&call, &slot->info));
  }
  return gather_check_in(conduct->gather, index, slot->info, sizeof *slot->info);
}

/* Ranks that arrive later check themselves in. */
static ncclResult_t conduct_check_in_all(struct conduct *conduct) {
  struct rendezvous *rendezvous = conduct->rendezvous;
  ncclResult_t result = ncclSuccess;
  conduct->ops->device->lock();
  rendezvous->gather = conduct->gather;
  if (rendezvous->cancel_code != ncclSuccess)
    gather_cancel(conduct->gather, rendezvous->cancel_code, rendezvous->cancel_reason);
  for (uint32_t i = 0; i < rendezvous->first.rank_count; i++) {
    struct rank_slot *slot = &rendezvous->slots[i];
    if (!slot->arrived || slot->checked_in) continue;
    slot->checked_in = true;
    conduct->ops->device->unlock();
    if (result == ncclSuccess) result = conduct_check_in(conduct, i);
    conduct->ops->device->lock();
  }
  conduct->ops->device->unlock();
  return result;
}

void rendezvous_check_in(const struct rendezvous_call *call, struct rendezvous *rendezvous) {
  struct peer_info **info = &rendezvous->slots[call->rank].info;
  /* Without info, the first rank of another process checked in while this one was arriving. */
  ncclResult_t result = *info ? ncclSuccess : rendezvous_fill_info(call, info);
  if (result == ncclSuccess) result = gather_check_in(rendezvous->gather, call->rank, *info, sizeof **info);
  backend_ops()->device->lock();
  if (result != ncclSuccess && rendezvous->cancel_code == ncclSuccess) {
    rendezvous->cancel_code = result;
    snprintf(rendezvous->cancel_reason, sizeof rendezvous->cancel_reason, "rank %u could not check in",
             call->rank);
    gather_cancel(rendezvous->gather, result, rendezvous->cancel_reason);
  }
  rendezvous->checking_in -= 1;
  backend_ops()->device->unlock();
}

/* ---- Communicators ---- */

static int member_compare(const void *left, const void *right) {
  const struct remote_member *a = (const struct remote_member *)left,
                             *b = (const struct remote_member *)right;
  if (a->color != b->color) return a->color < b->color ? -1 : 1;
  if (a->key_order != b->key_order) return a->key_order < b->key_order ? -1 : 1;
  return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Lists all ranks that get a communicator, grouped by communicator, in rank order. */
static ncclResult_t conduct_sort(struct conduct *conduct, uint32_t *member_count) {
  const uint32_t rank_count = conduct->rendezvous->first.rank_count;
  const struct gather_rank *said = gather_ranks(conduct->gather);
  *member_count = 0;
  for (uint32_t i = 0; i < rank_count; i++) {
    const struct peer_info *info = (const struct peer_info *)said[i].info;
    if (said[i].info_bytes != sizeof *info)
      return log_fail(ncclInvalidUsage,
                      "rank %u described itself with %u bytes, this library does with %zu; load the same "
                      "library everywhere",
                      i, said[i].info_bytes, sizeof *info);
    struct peer_info copy;
    memcpy(&copy, info, sizeof copy);
    if (!copy.present) continue;
    const struct remote_member member = {copy.color, copy.key_order, i};
    conduct->members[(*member_count)++] = member;
  }
  qsort(conduct->members, *member_count, sizeof *conduct->members, member_compare);
  return ncclSuccess;
}

static ncclResult_t shared_settle(struct comm_shared *shared, struct ncclComm *const *comms) {
  const struct settings *any = NULL;
  for (uint32_t rank = 0; rank < shared->rank_count; rank++) {
    if (!comms[rank]) continue;
    TRY(remote_settle(shared->remote, &comms[rank]->settings));
    any = &comms[rank]->settings;
  }
  return remote_lay_out(shared->remote, any->plan.limits.channel_count, &shared->graph);
}

static ncclResult_t shared_open_comms(struct comm_shared *shared, struct ncclComm *const *comms, bool child) {
  for (uint32_t rank = 0; rank < shared->rank_count; rank++) {
    struct ncclComm *comm = comms[rank];
    if (!comm) continue;
    if (child) {
      comm->comm_id = shared->comm_id;
      comm->rank = rank;
      comm->rank_count = shared->rank_count;
      TRY(comm_open(comm));
    }
    comm->ops->device->comm_settle(comm->device_comm, &comm->settings.plan.limits);
    shared->device_comms[rank] = comm->device_comm;
  }
  return remote_open(shared->remote, comms, &stall_watcher);
}

/* ---- One order of events ---- */

static uint32_t own_rank(const struct comm_shared *shared) {
  uint32_t rank = 0;
  while (!shared->remote->comms[rank]) rank += 1;
  return rank;
}

/* By rank, what those ranks say that this process shares memory with. NULL: out of memory. */
static const struct device_comm_handle **order_handles(const struct comm_shared *shared) {
  const struct remote *remote = shared->remote;
  const uint32_t group = remote->groups[own_rank(shared)];
  const struct device_comm_handle **handles =
      (const struct device_comm_handle **)os_alloc(shared->rank_count * sizeof *handles);
  for (uint32_t rank = 0; handles && rank < shared->rank_count; rank++)
    if (remote->groups[rank] == group) handles[rank] = &remote->infos[rank].device;
  return handles;
}

/* Ranks that only a network reaches have no order with those of this host. */
static ncclResult_t shared_order_prepare(struct comm_shared *shared) {
  if (shared->remote->networked) return ncclSuccess;
  const struct device_comm_handle **handles = order_handles(shared);
  if (!handles) return log_no_memory("what %u ranks say", shared->rank_count);
  ncclResult_t result = ncclSuccess;
  for (uint32_t rank = 0; result == ncclSuccess && rank < shared->rank_count; rank++)
    if (shared->remote->comms[rank])
      result = shared->ops->process->order_prepare(shared->device_comms[rank], handles, shared->rank_count);
  os_free(handles);
  return result;
}

static void shared_order_join(struct comm_shared *shared) {
  const struct device_comm_handle **handles = shared->remote->networked ? NULL : order_handles(shared);
  for (uint32_t rank = 0; handles && rank < shared->rank_count; rank++)
    if (shared->remote->comms[rank])
      shared->ops->process->order_join(shared->device_comms[rank], handles, shared->rank_count);
  os_free(handles);
}

/* Creates the communicator of members [begin, end), if this process has ranks in it. It is stored before it
 * is filled, so that a failure finds what to undo. */
static ncclResult_t conduct_shared(struct conduct *conduct, uint32_t begin, uint32_t end, uint64_t comm_id,
                                   const struct secret *secret) {
  struct rendezvous *rendezvous = conduct->rendezvous;
  const bool child = rendezvous->first.kind == RENDEZVOUS_SPLIT;
  bool ours = false;
  for (uint32_t i = begin; i < end; i++) {
    conduct->ranks[i - begin] = conduct->members[i].rank;
    conduct->comms[i - begin] = rendezvous->slots[conduct->members[i].rank].comm;
    ours = ours || conduct->comms[i - begin];
  }
  if (!ours) return ncclSuccess;
  struct comm_shared *shared =
      child ? comm_shared_create(conduct->ops, comm_id, end - begin) : rendezvous->shared;
  if (!shared) return log_no_memory("%s: %u ranks", rendezvous->first.call, end - begin);
  rendezvous->shared = child ? rendezvous->shared : NULL;
  conduct->shared_states[conduct->shared_count++] = shared;
  TRY(remote_create(shared, secret, conduct->gather, conduct->ranks, &conduct->reach, &shared->remote));
  TRY(shared_settle(shared, conduct->comms));
  TRY(shared_open_comms(shared, conduct->comms, child));
  return shared_order_prepare(shared);
}

static ncclResult_t conduct_all_shared(struct conduct *conduct) {
  const struct rendezvous_call *first = &conduct->rendezvous->first;
  uint32_t member_count = 0;
  TRY(conduct_sort(conduct, &member_count));
  for (uint32_t begin = 0, end; begin < member_count; begin = end) {
    const int color = conduct->members[begin].color;
    for (end = begin + 1; end < member_count && conduct->members[end].color == color;) end += 1;
    const bool child = first->kind == RENDEZVOUS_SPLIT;
    struct secret secret;
    gather_communicator(conduct->gather, &secret);
    if (child) secret_derive(&secret, "tutti color", &color, sizeof color, &secret);
    TRY(conduct_shared(conduct, begin, end, child ? rendezvous_child_id(first, color) : first->comm_id,
                       &secret));
  }
  return ncclSuccess;
}

/* Closes what conduct_all_shared() opened; communicators of an INIT keep the device-side half that they came
 * with. */
static void conduct_undo(struct conduct *conduct) {
  conduct->ops->process->order_cancel();
  const bool child = conduct->rendezvous->first.kind == RENDEZVOUS_SPLIT;
  for (uint32_t i = 0; i < conduct->shared_count; i++) {
    struct comm_shared *shared = conduct->shared_states[i];
    if (shared->remote) remote_watch_leave(shared->remote);
    remote_free(shared->remote);
    shared->remote = NULL;
    for (uint32_t rank = 0; child && rank < shared->rank_count; rank++)
      if (shared->device_comms[rank]) conduct->ops->device->comm_close(shared->device_comms[rank]);
    comm_shared_free(shared);
  }
  for (uint32_t i = 0; child && i < conduct->rendezvous->first.rank_count; i++)
    if (conduct->rendezvous->slots[i].comm) conduct->rendezvous->slots[i].comm->device_comm = NULL;
}

/* ---- The thread ---- */

static ncclResult_t conduct_alloc(struct conduct *conduct) {
  const uint32_t count = conduct->rendezvous->first.rank_count;
  conduct->shared_states = (struct comm_shared **)os_alloc(count * sizeof *conduct->shared_states);
  conduct->members = (struct remote_member *)os_alloc(count * sizeof *conduct->members);
  conduct->ranks = (uint32_t *)os_alloc(count * sizeof *conduct->ranks);
  conduct->comms = (struct ncclComm **)os_alloc(count * sizeof *conduct->comms);
  if (conduct->shared_states && conduct->members && conduct->ranks && conduct->comms) return ncclSuccess;
  return log_no_memory("rendezvous %u ranks", count);
}

static ncclResult_t conduct_watch(struct conduct *conduct) {
  struct remote_watch *watch;
  TRY(remote_watch_create(&watch));
  for (uint32_t i = 0; i < conduct->shared_count; i++)
    remote_watch_join(watch, conduct->shared_states[i]->remote);
  const ncclResult_t result = remote_watch_begin(watch, conduct->gather);
  remote_watch_drop(watch);
  return result;
}

/* This process's own failure is already logged; its message is sent to the others. */
static ncclResult_t conduct_note(struct conduct *conduct, ncclResult_t result) {
  if (result != ncclSuccess) snprintf(conduct->reason, sizeof conduct->reason, "%s", log_own_error());
  return result;
}

/* Not for a child: its device-side half does not exist yet, and its parent's may be closed. */
static ncclResult_t conduct_reach(struct conduct *conduct) {
  const struct rendezvous_call *first = &conduct->rendezvous->first;
  struct device_comm *model = NULL;
  for (uint32_t i = 0; !model && first->kind == RENDEZVOUS_INIT && i < first->rank_count; i++)
    if (conduct->rendezvous->slots[i].comm) model = conduct->rendezvous->slots[i].comm->device_comm;
  return reach_try(conduct->gather, first->call, conduct->ops, model, first->rank_count, &conduct->reach,
                   conduct->reason, sizeof conduct->reason);
}

/* If the network was to replace memory that cannot be mapped and fails too, the message has both reasons. */
static ncclResult_t conduct_make(struct conduct *conduct) {
  const ncclResult_t result = conduct_note(conduct, conduct_all_shared(conduct));
  char why[COMM_REASON_BYTES];
  if (result == ncclSuccess || conduct->reach.why[0] == '\0') return result;
  snprintf(why, sizeof why, "%s", conduct->reason);
  snprintf(conduct->reason, sizeof conduct->reason, "%.255s; and instead: %.239s", conduct->reach.why, why);
  return result;
}

/* Logs time and cost by phase; bench/bootstrap.c explains the phases. */
static void conduct_report(const struct conduct *conduct, uint64_t begin_ns, uint64_t opened_ns) {
  const struct gather_cost cost = gather_costs(conduct->gather);
  log_info(LOG_INIT,
           "%s: Init timings: %u ranks in %u processes: total %.2f ms (check-in %.2f, peer info in %u rounds "
           "%.2f, "
           "communicators %.2f, agreement %.2f), %llu bytes sent, %llu received, %llu through the root here",
           conduct->rendezvous->first.call, conduct->rendezvous->first.rank_count,
           gather_process_count(conduct->gather), (double)(os_time_ns() - begin_ns) * 1e-6,
           (double)cost.check_in_ns * 1e-6, cost.rounds, (double)cost.allgather_ns * 1e-6,
           (double)opened_ns * 1e-6, (double)cost.agree_ns * 1e-6, (unsigned long long)cost.sent_bytes,
           (unsigned long long)cost.received_bytes, (unsigned long long)cost.root_bytes);
}

static ncclResult_t conduct_meet(struct conduct *conduct) {
  const uint64_t begin_ns = os_time_ns();
  const struct rendezvous *rendezvous = conduct->rendezvous;
  const struct gather_call call = {rendezvous->first.call,
                                   rendezvous->secret,
                                   rendezvous->first.roots,
                                   rendezvous->first.root_count,
                                   rendezvous->first.kind == RENDEZVOUS_SPLIT || is_grow(&rendezvous->first),
                                   rendezvous->first.rank_count,
                                   rendezvous->first.signature,
                                   rendezvous->first.id.fixed,
                                   rendezvous->first.id.lasting};
  TRY(conduct_note(conduct, conduct_alloc(conduct)));
  TRY(conduct_note(conduct, gather_open(&call, &conduct->gather)));
  const ncclResult_t checked_in = conduct_check_in_all(conduct);
  if (checked_in != ncclSuccess) gather_cancel(conduct->gather, checked_in, log_own_error());
  TRY(gather_wait(conduct->gather, conduct->reason, sizeof conduct->reason));
  conduct->ops->process->order_hold(1);
  conduct->holds = true;
  TRY(conduct_reach(conduct));
  const uint64_t met_ns = os_time_ns();
  const ncclResult_t made = conduct_make(conduct);
  const uint64_t opened_ns = os_time_ns() - met_ns;
  TRY(gather_agree(conduct->gather, made, conduct->reason, sizeof conduct->reason));
  for (uint32_t i = 0; i < conduct->shared_count; i++) shared_order_join(conduct->shared_states[i]);
  conduct_report(conduct, begin_ns, opened_ns);
  return conduct_note(conduct, conduct_watch(conduct));
}

/* No thread uses the gather any more. */
static void conduct_leave_gather(struct conduct *conduct) {
  bool busy = true;
  while (busy) {
    conduct->ops->device->lock();
    busy = conduct->rendezvous->checking_in > 0;
    if (!busy) conduct->rendezvous->gather = NULL;
    conduct->ops->device->unlock();
    if (busy) os_sleep_ms(1);
  }
  gather_close(conduct->gather);
}

static void conduct_publish(struct conduct *conduct) {
  for (uint32_t i = 0; i < conduct->shared_count; i++) {
    struct comm_shared *shared = conduct->shared_states[i];
    comm_shared_enlist(shared);
    for (uint32_t rank = 0; rank < shared->rank_count; rank++)
      if (shared->remote->comms[rank]) comm_join_shared(shared->remote->comms[rank], shared);
  }
  rendezvous_publish(conduct->rendezvous);
}

static void *conduct_body(void *argument) {
  struct conduct conduct;
  memset(&conduct, 0, sizeof conduct);
  conduct.rendezvous = (struct rendezvous *)argument;
  conduct.ops = backend_ops();
  const ncclResult_t result = conduct_meet(&conduct);
  if (result != ncclSuccess) conduct_undo(&conduct);
  conduct_leave_gather(&conduct);
  rendezvous_root_end(
      &conduct.rendezvous->first); /* before the next communicator at the same address can start */
  if (result != ncclSuccess) log_warn("%s: %s", conduct.rendezvous->first.call, conduct.reason);
  conduct.ops->device->lock();
  if (result == ncclSuccess) conduct_publish(&conduct);
  else rendezvous_end(conduct.rendezvous, result, conduct.reason);
  if (conduct.holds) conduct.ops->process->order_hold(-1);
  rendezvous_unlock(conduct.ops);
  os_free(conduct.reach.processes);
  os_free(conduct.shared_states);
  os_free(conduct.members);
  os_free(conduct.ranks);
  os_free(conduct.comms);
  return NULL;
}

ncclResult_t rendezvous_conduct(struct rendezvous *rendezvous) {
  static const char failed[] = "no thread could be started to meet ranks of other processes";
  os_thread thread;
  rendezvous->conducted = true;
  if (os_thread_start_named(&thread, "tutti-init", conduct_body, rendezvous)) {
    os_thread_detach(thread);
    return ncclSuccess;
  }
  rendezvous->conducted = false;
  const ncclResult_t result =
      log_fail(ncclSystemError, "%s: %s; raise ulimit -u", rendezvous->first.call, failed);
  rendezvous_end(rendezvous, result, failed);
  return result;
}

/* On the control server's thread: a rank of another process has checked in with a root of this process. */
void rendezvous_called(uint64_t nonce) {
  const struct backend *ops = backend_ops();
  ops->device->lock();
  struct rendezvous *rendezvous = rendezvous_find_nonce(nonce);
  if (rendezvous && !rendezvous->conducted)
    rendezvous_conduct(rendezvous); /* otherwise the first rank to join starts it */
  ops->device->unlock();
}
