/* proxy_ops.c: what a plan transfers over networks. A task is one work's share of one connection; it iterates
 * over the work's steps as its slices are posted, so its memory does not grow with the data. Tasks queue up
 * on their connections in the order in which the kernel's blocks use them. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/proxy/proxy_impl.h"

/* ---- creating ---- */

static bool is_remote(const struct work *work, const uint8_t *remote, uint32_t peer) {
  return (work->flags & WORK_PART) == 0 && peer != work->rank && remote[peer] != 0;
}

static uint32_t work_task_count(const struct work *work, const uint8_t *remote) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < work->recv_count; i++) count += is_remote(work, remote, work->recv_peer[i]);
  for (uint32_t i = 0; i < work->send_count; i++) count += is_remote(work, remote, work->send_peer[i]);
  return count;
}

static ncclResult_t work_check(const struct proxy_comm *comm, const struct plan *plan,
                               const struct work *work) {
  const struct plan_limits *limits = &plan->limits;
  const bool ll = work->proto == PROTO_LL && comm->call.ops->network->net_ll(false);
  if (work->proto != PROTO_SIMPLE && !ll)
    return log_fail(ncclInternalError,
                    "comm %s: rank %" PRIu32
                    ": an operation between hosts was planned with a protocol that networks do not carry",
                    comm->name, comm->call.rank);
  if (limits->reserved_bytes >= PLAN_RESERVED_BYTES) return ncclSuccess;
  return log_fail(ncclInternalError, "comm %s: rank %" PRIu32 ": its slots have no space for the proxies",
                  comm->name, comm->call.rank);
}

static struct device_conn_name link_name(const struct work *work, uint32_t link_index, bool sends) {
  const uint32_t peer = sends ? work->send_peer[link_index] : work->recv_peer[link_index];
  const struct device_conn_name name = {
      peer, work->channel_index, work_link_conn(work, peer, sends), work->proto, sends, false};
  return name;
}

static struct proxy_set *set_find(struct proxy_comm *comm, const struct device_conn_name *name,
                                  uint32_t place) {
  os_mutex_lock(&comm->names);
  void *set = map_find(&comm->sets, backend_slots_key(name->channel_index, place, name->sends));
  os_mutex_unlock(&comm->names);
  return (struct proxy_set *)set;
}

static bool set_is_missing(struct proxy_comm *comm, const struct device_conn_name *name, uint32_t place) {
  const struct proxy_conn *conn = proxy_conn_find(comm, name);
  return conn != NULL && conn->end.pooled && set_find(comm, name, place) == NULL;
}

static ncclResult_t set_open(struct proxy_comm *comm, const struct device_conn_name *name, uint32_t place) {
  uint8_t *buffer = NULL;
  if (!set_is_missing(comm, name, place)) return ncclSuccess;
  TRY(comm->call.ops->network->net_slots(comm->call.device_comm, name->channel_index, place, name->sends,
                                         &buffer));
  struct proxy_set *set = (struct proxy_set *)os_alloc(sizeof *set);
  os_mutex_lock(&comm->names);
  const bool reserved = set != NULL && map_reserve(&comm->sets);
  if (reserved) {
    set->buffer = buffer;
    set->place = place;
    map_insert(&comm->sets, backend_slots_key(name->channel_index, place, name->sends), set);
  }
  os_mutex_unlock(&comm->names);
  if (reserved) return ncclSuccess;
  os_free(set);
  return log_no_memory("comm %s: rank %" PRIu32 ": sharing slots", comm->name, comm->call.rank);
}

/* True for messages in Simple; LL has its own slots. */
static bool work_shares_slots(const struct work *work) {
  return work->conn_index == CONN_MESSAGE && work->proto == PROTO_SIMPLE;
}

static ncclResult_t open_sets(struct proxy_comm *comm, const struct plan *plan, const uint8_t *remote) {
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    const struct plan_batch *batch = &plan->batches[b];
    for (uint32_t place = 0; place < batch->work_count; place++) {
      const struct work *work = &plan->works[batch->first_work + place];
      if (!work_shares_slots(work) || work_task_count(work, remote) == 0) continue;
      const struct device_conn_name name = link_name(work, 0, work->send_count > 0);
      TRY(set_open(comm, &name, place));
    }
  }
  return ncclSuccess;
}

/* `place` is the work's index in its batch. */
static ncclResult_t add_task(struct proxy_ops *ops, const struct work *work, uint32_t place,
                             uint32_t link_index, bool sends) {
  const struct device_conn_name name = link_name(work, link_index, sends);
  struct proxy_task *task = &ops->tasks[ops->task_count];
  task->conn = proxy_conn_find(ops->comm, &name);
  if (task->conn == NULL)
    return log_fail(
        ncclInternalError, "comm %s: rank %" PRIu32 " has no connection %s rank %" PRIu32 " on channel %u",
        ops->comm->name, ops->comm->call.rank, sends ? "to" : "from", name.peer, work->channel_index);
  if (task->conn->end.pooled && work_shares_slots(work)) task->set = set_find(ops->comm, &name, place);
  task->work = work;
  task->link_index = link_index;
  ops->task_count += 1;
  return ncclSuccess;
}

static ncclResult_t add_work(struct proxy_ops *ops, const struct plan *plan, const struct work *work,
                             uint32_t place, const uint8_t *remote) {
  if (work_task_count(work, remote) > 0) TRY(work_check(ops->comm, plan, work));
  for (uint32_t i = 0; i < work->recv_count; i++)
    if (is_remote(work, remote, work->recv_peer[i])) TRY(add_task(ops, work, place, i, false));
  for (uint32_t i = 0; i < work->send_count; i++)
    if (is_remote(work, remote, work->send_peer[i])) TRY(add_task(ops, work, place, i, true));
  return ncclSuccess;
}

/* Batches are ordered by channel, then by turn, and so are the tasks of each connection, which at most one
 * work of a batch uses. */
static ncclResult_t add_batches(struct proxy_ops *ops, const struct plan *plan, const uint8_t *remote) {
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    const struct plan_batch *batch = &plan->batches[b];
    for (uint32_t i = 0; i < batch->work_count; i++)
      TRY(add_work(ops, plan, &ops->works[batch->first_work + i], i, remote));
  }
  return ncclSuccess;
}

/* One allocation, since most are used for one launch: it includes a posting, the works and their buffers. */
static struct proxy_ops *ops_alloc(const struct plan *plan, uint32_t task_count) {
  const size_t task_bytes = task_count * sizeof(struct proxy_task);
  const size_t work_bytes = plan->work_count * sizeof(struct work);
  struct proxy_ops *ops = (struct proxy_ops *)os_alloc(sizeof *ops + sizeof *ops->own + 2 * task_bytes +
                                                       work_bytes + plan->work_count * sizeof *ops->buffers);
  if (ops == NULL) return NULL;
  ops->own = ops->spare = (struct proxy_posting *)(void *)((uint8_t *)ops->tasks + task_bytes);
  ops->own->ops = ops;
  ops->works = (struct work *)(void *)((uint8_t *)ops->own->tasks + task_bytes);
  memcpy(ops->works, plan->works, work_bytes);
  if (plan->buffers != NULL && plan_is_loose(plan)) {
    ops->buffers = (struct plan_buffers *)(void *)(ops->works + plan->work_count);
    memcpy(ops->buffers, plan->buffers, plan->work_count * sizeof *ops->buffers);
  }
  for (uint32_t i = 0; i < plan->work_count; i++) ops->works[i].op_sequence += plan->first_sequence;
  ops->limits = plan->limits;
  return ops;
}

static void ops_release(struct proxy_ops *ops) {
  for (struct proxy_posting *posting = ops->spare, *next; posting != NULL; posting = next) {
    next = posting->next;
    if (posting != ops->own) os_free(posting);
  }
  os_free(ops);
}

ncclResult_t proxy_ops_create(struct proxy_comm *comm, const struct plan *plan, const uint8_t *remote,
                              struct proxy_ops **result) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < plan->work_count; i++) count += work_task_count(&plan->works[i], remote);
  *result = NULL;
  if (count == 0) return ncclSuccess;
  TRY(open_sets(comm, plan, remote));
  struct proxy_ops *ops = ops_alloc(plan, count);
  if (ops == NULL)
    return log_no_memory("comm %s: rank %" PRIu32 ": %" PRIu32 " network transfers", comm->name,
                         comm->call.rank, count);
  ops->comm = comm;
  const ncclResult_t added = add_batches(ops, plan, remote);
  if (added != ncclSuccess) {
    ops_release(ops);
    return added;
  }
  ops->made_entry = (struct proxy_mailbox_entry){NULL, PROXY_MAILBOX_MADE, ops, NULL};
  proxy_mailbox_put(&ops->made_entry);
  *result = ops;
  return ncclSuccess;
}

static void ops_enlist(struct proxy_ops *ops) {
  struct proxy_comm *comm = ops->comm;
  ops->next = comm->ops;
  if (comm->ops != NULL) comm->ops->previous = ops;
  comm->ops = ops;
}

static void ops_unlist(struct proxy_ops *ops) {
  if (ops->comm == NULL) return;
  if (ops->previous != NULL) ops->previous->next = ops->next;
  else ops->comm->ops = ops->next;
  if (ops->next != NULL) ops->next->previous = ops->previous;
  ops->comm = NULL;
}

static void ops_settle(struct proxy_ops *ops) {
  if (!ops->freed || ops->posted > 0) return;
  ops_unlist(ops);
  ops_release(ops);
}

void proxy_ops_free(struct proxy_ops *ops) {
  if (ops == NULL) return;
  ops->freed_entry = (struct proxy_mailbox_entry){NULL, PROXY_MAILBOX_FREED, ops, NULL};
  proxy_mailbox_put(&ops->freed_entry);
}

/* ---- posting ---- */

static void posting_spare(struct proxy_posting *posting) {
  struct proxy_posting **spare = &posting->ops->spare;
  posting->next = __atomic_load_n(spare, __ATOMIC_RELAXED);
  while (
      !__atomic_compare_exchange_n(spare, &posting->next, posting, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
    continue;
}

/* Takes the whole spare list, so that no other thread uses it meanwhile, and returns all but one. */
static struct proxy_posting *posting_take(struct proxy_ops *ops) {
  struct proxy_posting *posting = __atomic_exchange_n(&ops->spare, NULL, __ATOMIC_ACQUIRE);
  if (posting == NULL) {
    posting = (struct proxy_posting *)os_alloc(sizeof *posting + ops->task_count * sizeof posting->tasks[0]);
    if (posting != NULL) posting->ops = ops;
    return posting;
  }
  for (struct proxy_posting *other = posting->next, *next; other != NULL; other = next) {
    next = other->next;
    posting_spare(other);
  }
  return posting;
}

static void conn_queue(struct proxy_conn *conn, struct proxy_task *task) {
  if (conn->last != NULL) conn->last->next = task;
  else conn->first = task;
  conn->last = task;
  proxy_conn_list(conn);
}

static void set_queue(struct proxy_set *set, struct proxy_task *task) {
  if (set == NULL) return;
  if (set->first != NULL) set->last->set_next = task;
  else set->first = task;
  set->last = task;
}

/* Tasks are done in the order of posting: only the first of a set has slices in flight. */
static void set_pass_on(struct proxy_set *set) {
  if (set != NULL) set->first = set->first->set_next;
}

static void posting_begin(struct proxy_posting *posting) {
  struct proxy_ops *ops = posting->ops;
  posting->live = ops->task_count;
  ops->posted += 1;
  ops->comm->live += ops->task_count;
  ops->comm->idle_reported = false;
  for (uint32_t i = 0; i < ops->task_count; i++) {
    posting->tasks[i] = ops->tasks[i];
    posting->tasks[i].posting = posting;
    conn_queue(posting->tasks[i].conn, &posting->tasks[i]);
    set_queue(posting->tasks[i].set, &posting->tasks[i]);
  }
  for (uint32_t i = 0; i < ops->task_count && !proxy_in_world(); i++)
    if (posting->tasks[i].conn->end.pooled) proxy_conn_lead(posting->tasks[i].conn);
}

static void read_posted(struct proxy_posting *posting) {
  const struct proxy_comm *comm = posting->ops->comm;
  if (comm == NULL || comm->failed) {
    posting_spare(posting);
    return;
  }
  posting_begin(posting);
  proxy_attend();
}

void proxy_ops_read(const struct proxy_mailbox_entry *entry) {
  struct proxy_ops *ops = entry->ops;
  switch (entry->kind) {
    case PROXY_MAILBOX_MADE: ops_enlist(ops); break;
    case PROXY_MAILBOX_POSTED: read_posted(entry->posting); break;
    case PROXY_MAILBOX_FREED:
      ops->freed = true;
      ops_settle(ops);
      break;
  }
}

static void post_fail(struct proxy_ops *ops) {
  proxy_lock();
  if (ops->comm != NULL)
    proxy_comm_fail(ops->comm, ncclSystemError, "%" PRIu32 " network transfers" LOG_OUT_OF_MEMORY,
                    ops->task_count);
  proxy_attend();
  proxy_unlock();
}

void proxy_ops_post(struct proxy_ops *ops) {
  if (ops == NULL) return;
  struct proxy_posting *posting = posting_take(ops);
  if (posting != NULL) {
    posting->entry = (struct proxy_mailbox_entry){NULL, PROXY_MAILBOX_POSTED, ops, posting};
    proxy_mailbox_put(&posting->entry);
  } else {
    post_fail(ops);
  }
  proxy_wake();
}

bool proxy_ops_turn(struct proxy_ops *ops, bool last) { return ops != NULL && proxy_turn(&ops->comm, last); }

void proxy_task_done(struct proxy_task *task) {
  struct proxy_posting *posting = task->posting;
  struct proxy_ops *ops = posting->ops;
  set_pass_on(task->set);
  ops->comm->live -= 1;
  posting->live -= 1;
  if (posting->live > 0) return;
  posting_spare(posting);
  ops->posted -= 1;
  ops_settle(ops);
}

/* The communicator is closed: its posted work is dropped with its connections; the rest belongs to threads
 * that may still post it. */
static void posting_drop(struct proxy_posting *posting) {
  posting_spare(posting);
  posting->ops->posted -= 1;
}

static void task_drop(struct proxy_task *task) {
  task->posting->live -= 1;
  if (task->posting->live == 0) posting_drop(task->posting);
}

static void conn_drop_tasks(struct proxy_conn *conn) {
  for (; conn->n_done < conn->n_posted; conn->n_done++) {
    struct proxy_task *task = conn->flights[conn->n_done % PROXY_SLICES_MAX].task;
    task->outstanding -= 1;
    if (task->iterated && task->outstanding == 0) task_drop(task);
  }
  while (conn->first != NULL) {
    struct proxy_task *task = conn->first;
    conn->first = task->next;
    task_drop(task);
  }
  conn->last = NULL;
}

void proxy_ops_forget(struct proxy_comm *comm) {
  for (struct proxy_conn *conn = comm->first; conn != NULL; conn = conn->next) conn_drop_tasks(conn);
  os_mutex_lock(&comm->names);
  for (uint32_t i = 0; i < comm->sets.capacity; i++) os_free(comm->sets.entries[i].value);
  map_clear(&comm->sets);
  os_mutex_unlock(&comm->names);
  while (comm->ops != NULL) {
    struct proxy_ops *ops = comm->ops;
    ops_unlist(ops);
    ops->previous = ops->next = NULL;
    if (ops->freed) ops_release(ops);
  }
}
