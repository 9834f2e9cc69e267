/* stream.c: queues of operations, in both modes. Promises: operations of one stream end in the order in
 * which they were enqueued; a wait ends after the point it names; the legacy default stream and the
 * blocking streams of its device are ordered as CUDA orders them. Knows kernels only as a table, and
 * nothing of how hosts wait. */
#include "backends/emu/cudart/stream_impl.h"

#include <string.h>

#include "base/log.h"

/* ---- points ---- */

static struct stream_point *stream_point_new(void) {
  struct stream_point *point = (struct stream_point *)os_alloc(sizeof *point);
  if (point != NULL) point->reference_count = 1;
  return point;
}

void stream_point_drop(struct stream_point *point) {
  if (point == NULL || --point->reference_count != 0) return;
  emu_race_point_drop(&point->race);
  os_free(point);
}

static void point_await(struct stream_point *point, struct stream_op *op) {
  struct stream_op **link = &point->waiters;
  while (*link != NULL && (*link)->stream->actor.key <= op->stream->actor.key) link = &(*link)->next_waiter;
  op->next_waiter = *link;
  *link = op;
}

static void point_reach(struct stream_point *point, int error) {
  point->reached = true;
  point->error = error;
  point->time_ns = emu_clock_ns();
  for (struct stream_op *op = point->waiters; op != NULL; op = op->next_waiter)
    stream_wake(&op->stream->actor);
  point->waiters = NULL;
}

/* ---- the order of a device ---- */

/* No operation older than `ticket` is left on the blocking streams. */
static bool blocking_passed(const struct emu_device *device, uint64_t ticket) {
  for (const struct emu_stream *stream = device->streams; stream != NULL; stream = stream->next_on_device) {
    if (stream->blocking && stream->head != NULL && stream->head->ticket < ticket) return false;
  }
  return true;
}

static bool order_allows(const struct emu_stream *stream) {
  const struct emu_device *device = stream->device;
  if (stream->legacy) return blocking_passed(device, stream->head->ticket);
  if (!stream->blocking || device->legacy == NULL || device->legacy->head == NULL) return true;
  return device->legacy->head->ticket > stream->head->ticket;
}

static void order_wake(const struct emu_stream *ended) {
  const struct emu_device *device = ended->device;
  if (ended->blocking && device->legacy != NULL && device->legacy->head != NULL) {
    stream_wake(&device->legacy->actor);
  }
  if (!ended->legacy) return;
  for (struct emu_stream *stream = device->streams; stream != NULL; stream = stream->next_on_device) {
    if (stream->blocking && stream->head != NULL) stream_wake(&stream->actor);
  }
}

bool stream_idle(const struct emu_stream *stream) { return stream->head == NULL; }

bool stream_head_enabled(const struct emu_stream *stream) {
  const struct stream_op *op = stream->head;
  if (op == NULL || stream->busy || !order_allows(stream)) return false;
  if (op->kind == OP_WAIT) return op->point->reached;
  /* In threads mode a kernel waits for its turn by itself, inside execute(). */
  if (op->turn.run != NULL && emu_options()->mode == EMU_GUARDED) return op->turn.ops->ready(op->turn.run);
  return true;
}

/* ---- the end of an operation ---- */

/* As many as a busy stream usually has; more, after a burst, are freed. */
#define IDLE_OPS_MOST 1024

static void op_give_back(struct stream_op *op) {
  struct emu_stream *stream = op->stream;
  if (stream->idle_count == IDLE_OPS_MOST) {
    os_free(op);
    return;
  }
  op->next = stream->idle;
  stream->idle = op;
  stream->idle_count += 1;
}

/* NULL when there is none. */
static struct stream_op *op_take_idle(struct emu_stream *stream) {
  struct stream_op *op = stream->idle;
  if (op == NULL) return NULL;
  stream->idle = op->next;
  stream->idle_count -= 1;
  return op;
}

static void op_free(struct stream_op *op) {
  if (op->turn.run != NULL) op->turn.ops->retire(op->turn.run);
  if (op->kind == OP_WORK) emu_work_drop(&op->work);
  if (op->graph_run != NULL) emu_graph_run_free(op->graph_run);
  stream_point_drop(op->point);
  op_give_back(op);
}

static void head_begin(struct emu_stream *stream) {
  if (stream->head->turn.run != NULL && emu_options()->mode == EMU_GUARDED)
    emu_turn_list(&stream->head->turn);
  stream_wake(&stream->actor);
}

static void stream_release_if_over(struct emu_stream *stream);

void stream_head_ended(struct emu_stream *stream, int error) {
  struct stream_op *op = stream->head;
  bool launched = op->turn.run != NULL || op->graph_run != NULL;
  if (stream->error == 0) stream->error = error;
  stream->head = op->next;
  stream->queued_count -= 1;
  if (stream->head == NULL) stream->tail = NULL;
  stream->busy = false;
  if (op->kind == OP_RECORD) point_reach(op->point, stream->error);
  op_free(op);
  if (stream->head != NULL) head_begin(stream);
  else if (stream->active_link != NULL) stream_deactivate(stream);
  order_wake(stream);
  if (launched && emu_options()->mode == EMU_GUARDED) emu_kernel_runs_wake();
  stream_release_if_over(stream);
  emu_changed();
}

/* ---- executing operations ---- */

static void kernel_ended(void *argument, int error) {
  stream_head_ended((struct emu_stream *)argument, error);
}

static struct emu_stream *stream_of(struct emu_actor *actor) {
  return (struct emu_stream *)(void *)((char *)actor - offsetof(struct emu_stream, actor));
}

static bool stream_enabled(struct emu_actor *actor) { return stream_head_enabled(stream_of(actor)); }

static void stream_actor_run(struct emu_actor *actor) {
  struct emu_stream *stream = stream_of(actor);
  struct stream_op *op = stream->head;
  stream->busy = true;
  emu_trace_actor(actor, (uint8_t)op->kind);
  if (op->kind == OP_GRAPH) {
    emu_graph_run_start(op->graph_run);
  } else if (op->turn.run != NULL) {
    emu_turn_unlist(&op->turn);
    op->turn.ops->start(op->turn.run, kernel_ended, stream);
  } else {
    if (op->kind == OP_WORK) emu_work_perform(&op->work);
    stream_head_ended(stream, 0);
  }
}

static const struct emu_actor_ops stream_actor_ops = {stream_enabled, stream_actor_run};

/* threads: executes the head, blocking. */
static void stream_head_perform(struct emu_stream *stream) {
  struct stream_op *op = stream->head;
  int error = 0;
  stream->busy = true;
  if (op->kind == OP_GRAPH) {
    error = emu_graph_run_execute(op->graph_run);
    if (!emu_graph_run_over(op->graph_run)) return; /* the process is ending */
  } else if (op->turn.run != NULL) {
    stream->thread_outside = true;
    emu_unlock();
    error = op->turn.ops->execute(op->turn.run);
    emu_lock();
    stream->thread_outside = false;
  } else if (op->kind == OP_WORK) {
    stream->thread_outside = op->work.kind == WORK_HOST;
    emu_work_perform(&op->work);
    stream->thread_outside = false;
  }
  stream_head_ended(stream, error);
}

/* ---- threads: driving a stream ---- */

#define DRIVE_OPS 32

bool stream_op_is_own(const struct stream_op *op) {
  if (op->turn.run != NULL) return op->turn.ops->advance == NULL;
  return op->kind == OP_GRAPH || (op->kind == OP_WORK && op->work.kind == WORK_HOST);
}

/* Collects the kernels at the head that can run one after another. */
static uint32_t drive_collect(const struct emu_stream *stream, struct stream_op *ops[DRIVE_OPS]) {
  const struct emu_device *device = stream->device;
  const struct emu_stream *legacy = stream->blocking ? device->legacy : NULL;
  uint32_t count = 0;
  if (stream->head == NULL || stream->busy || !order_allows(stream)) return 0;
  for (struct stream_op *op = stream->head; op != NULL && count < DRIVE_OPS; op = op->next) {
    if (op->turn.run == NULL || op->turn.ops->advance == NULL) break;
    if (legacy != NULL && legacy->head != NULL && legacy->head->ticket < op->ticket) break;
    ops[count++] = op;
    if (stream->legacy) break;
  }
  return count;
}

/* Returns EMU_RUN_OVER if some have ended. */
static enum emu_advance drive_kernels(struct emu_stream *stream, uint32_t patience) {
  struct stream_op *ops[DRIVE_OPS];
  const uint32_t count = drive_collect(stream, ops);
  enum emu_advance result = EMU_RUN_STUCK;
  uint32_t over = 0;
  if (count == 0) return result;
  emu_unlock();
  for (; over < count; over++) {
    result = ops[over]->turn.ops->advance(ops[over]->turn.run, patience);
    if (result != EMU_RUN_OVER) break;
  }
  emu_lock();
  for (uint32_t i = 0; i < over; i++) stream_head_ended(stream, ops[i]->turn.ops->finish(ops[i]->turn.run));
  return over > 0 ? EMU_RUN_OVER : result;
}

bool stream_drive(struct emu_stream *stream, uint32_t patience, bool own) {
  bool moved = false;
  if (stream->driven) return false;
  stream->driven = true;
  emu_stream_hold(stream);
  while (stream->head != NULL) {
    struct stream_op *op = stream->head;
    const enum emu_advance result = drive_kernels(stream, patience);
    moved = moved || result != EMU_RUN_STUCK;
    if (result == EMU_RUN_OVER) continue;
    const bool kernel = op->turn.run != NULL && op->turn.ops->advance != NULL;
    if (kernel || (!own && stream_op_is_own(op)) || !stream_head_enabled(stream)) break;
    stream_head_perform(stream);
    moved = true;
    if (stream->busy) break; /* the process is ending */
  }
  stream->driven = false;
  stream->looks += 1;
  if (stream->head != NULL && !own && stream_op_is_own(stream->head)) stream_thread_wake(stream);
  emu_stream_drop(stream);
  return moved;
}

/* ---- enqueueing ---- */

/* Starts the stream's thread here, so that nothing can fail between a kernel's enqueue() and its place in the
 * queue. */
static struct stream_op *op_new(struct emu_stream *stream, enum stream_op_kind kind) {
  struct stream_op *op = op_take_idle(stream);
  if (op != NULL) {
    memset(op, 0, sizeof *op);
  } else {
    op = (struct stream_op *)os_alloc(sizeof *op);
    if (op == NULL) return NULL;
  }
  if (emu_options()->mode == EMU_THREADS && !stream_thread_need(stream)) {
    os_free(op);
    return NULL;
  }
  op->stream = stream;
  op->kind = kind;
  return op;
}

static void op_push(struct stream_op *op) {
  struct emu_stream *stream = op->stream;
  op->ticket = ++stream->device->ticket_count;
  if (stream->tail != NULL) stream->tail->next = op;
  else stream->head = op;
  stream->tail = op;
  stream->queued_count += 1;
  if (op->kind == OP_WAIT) point_await(op->point, op);
  if (stream->head == op) head_begin(stream);
  if (emu_options()->mode == EMU_THREADS) stream_activate(stream);
  emu_changed();
}

int emu_stream_enqueue(struct emu_stream *stream, const struct emu_work *work) {
  struct stream_op *op = op_new(stream, OP_WORK);
  if (op == NULL) return cudaErrorMemoryAllocation;
  if (work->kind == WORK_KERNEL) {
    op->turn.actor = &stream->actor;
    op->turn.ops = work->as.kernel->ops;
    op->turn.run = op->turn.ops->enqueue(work->as.kernel);
    if (op->turn.run == NULL) {
      os_free(op);
      return cudaErrorMemoryAllocation;
    }
  }
  op->work = *work;
  if (work->kind == WORK_HOST) op->work.as.host.behind = emu_race_mark(stream);
  emu_work_keep(work);
  op_push(op);
  return 0;
}

int stream_push_wait(struct emu_stream *stream, struct stream_point *point) {
  emu_race_wait(stream, &point->race);
  if (point->reached) return 0;
  struct stream_op *op = op_new(stream, OP_WAIT);
  if (op == NULL) return cudaErrorMemoryAllocation;
  op->point = point;
  point->reference_count++;
  op_push(op);
  return 0;
}

int stream_push_record(struct emu_stream *stream, struct stream_point **point) {
  struct stream_point *fresh = stream_point_new();
  struct stream_op *op = fresh == NULL ? NULL : op_new(stream, OP_RECORD);
  if (op == NULL) {
    stream_point_drop(fresh);
    return cudaErrorMemoryAllocation;
  }
  op->point = fresh;
  fresh->reference_count++;
  fresh->race = emu_race_mark(stream);
  *point = fresh;
  op_push(op);
  return 0;
}

int stream_push_graph(struct emu_stream *stream, struct emu_graph_run *run) {
  struct stream_op *op = op_new(stream, OP_GRAPH);
  if (op == NULL) return cudaErrorMemoryAllocation;
  op->graph_run = run;
  op_push(op);
  return 0;
}

/* ---- calls on a stream ---- */

/* A use of the legacy stream depends on every blocking stream of its device, which a capture cannot
 * express. */
static int legacy_allows(struct emu_stream *stream) {
  return stream->legacy ? emu_capture_legacy_use(stream->device_index) : 0;
}

int emu_stream_work(struct emu_stream *stream, const struct emu_work *work) {
  if (stream->capture != NULL) return emu_capture_work(stream, work);
  int error = legacy_allows(stream);
  if (error == 0) error = emu_race_work(stream, work);
  return error != 0 ? error : emu_stream_enqueue(stream, work);
}

int emu_stream_record(struct emu_stream *stream, struct emu_event *event) {
  if (event->device_index != stream->device_index) return cudaErrorInvalidResourceHandle;
  if (stream->capture != NULL) return emu_capture_record(stream, event);
  int error = legacy_allows(stream);
  if (error != 0) return error;
  struct stream_point *point;
  error = stream_push_record(stream, &point);
  if (error != 0) return error;
  stream_point_drop(event->point);
  event->point = point;
  event->capture_id = 0;
  node_list_clear(&event->nodes);
  return 0;
}

int emu_stream_wait_event(struct emu_stream *stream, struct emu_event *event) {
  if (stream->capture != NULL || event->capture_id != 0) return emu_capture_wait(stream, event);
  int error = legacy_allows(stream);
  if (error != 0 || event->point == NULL) return error;
  return stream_push_wait(stream, event->point);
}

/* Makes `later` wait for everything that is on `earlier` now. */
static int stream_join(struct emu_stream *later, struct emu_stream *earlier) {
  struct stream_point *point;
  int error = stream_push_record(earlier, &point);
  if (error != 0) return error;
  error = stream_push_wait(later, point);
  stream_point_drop(point);
  return error;
}

/* The same for capturing streams, with a temporary event. */
static int capture_join(struct emu_stream *later, struct emu_stream *earlier) {
  struct emu_event event;
  memset(&event, 0, sizeof event);
  event.device_index = earlier->device_index;
  int error = emu_stream_record(earlier, &event);
  if (error == 0) error = emu_stream_wait_event(later, &event);
  node_list_clear(&event.nodes);
  stream_point_drop(event.point);
  return error;
}

static int join(struct emu_stream *later, struct emu_stream *earlier) {
  if (later == earlier) return 0;
  if (later->capture != NULL || earlier->capture != NULL) return capture_join(later, earlier);
  return stream_join(later, earlier);
}

/* A thread that enqueues faster than the stream executes helps to execute, which keeps the data in the
 * caches. Only for a few operations, because the same thread may have to enqueue for the rank that the stream
 * waits for. */
#define RELIEVE_OPS DRIVE_OPS
#define RELIEVE_PATIENCE 64u

static void stream_relieve(struct emu_stream *stream) {
  if (stream->queued_count >= RELIEVE_OPS && stream->queued_count % RELIEVE_OPS == 0)
    stream_drive(stream, RELIEVE_PATIENCE, false);
}

/* ---- threads: kernels that begin at once ---- */

/* A launch on an idle stream begins within the launch call, and continues in the next one, since what it
 * waits for arrives meanwhile. This is the number of polls without progress before the next launch is
 * enqueued. */
#define AT_ONCE_PATIENCE 256u
/* After polls in vain, for example because this thread launches for the other ranks, too, the next tries are
 * skipped: at most this many. */
#define AT_ONCE_PAUSE_MOST 1023u

/* The stream has no operation that a kernel would wait for, except a kernel that has begun in this way. */
static bool stream_is_free(const struct emu_stream *stream) {
  const struct emu_device *device = stream->device;
  const struct stream_op *head = stream->head;
  if (stream->busy || stream->driven || stream->closing || stream->idle == NULL) return false;
  if (head != NULL && (!head->begun || head->next != NULL)) return false;
  if (stream->legacy) return blocking_passed(device, UINT64_MAX);
  return !stream->blocking || device->legacy == NULL || device->legacy->head == NULL;
}

/* Enqueues a kernel that has begun, or that waits for the one that has. */
static void at_once_push(struct stream_op *op, const struct emu_work *work, struct emu_kernel_run *run,
                         struct stream_op *before) {
  struct emu_stream *stream = op->stream;
  struct stream_op **link = before != NULL ? &before->next : &stream->head;
  op->kind = OP_WORK;
  op->work = *work;
  op->turn = (struct emu_turn){&stream->actor, work->as.kernel->ops, run, NULL, NULL};
  op->point = NULL;
  op->graph_run = NULL;
  op->begun = true;
  emu_work_keep(work);
  op->next = *link;
  *link = op;
  if (op->next == NULL) stream->tail = op;
  stream->queued_count += 1;
  stream_activate(stream);
}

/* The kernel has ended without having been enqueued. */
static void at_once_over(struct stream_op *op, const struct emu_kernel_ops *ops, struct emu_kernel_run *run) {
  struct emu_stream *stream = op->stream;
  const int error = ops->finish(run);
  if (stream->error == 0) stream->error = error;
  ops->retire(run);
  op_give_back(op);
}

/* Advances the previous kernel to its end, then this one as far as possible without waiting. */
static enum emu_advance at_once_advance(const struct stream_op *before, const struct emu_kernel_ops *ops,
                                        struct emu_kernel_run *run, uint32_t patience, bool *vain) {
  if (before != NULL) *vain = before->turn.ops->advance(before->turn.run, patience) != EMU_RUN_OVER;
  else *vain = false;
  return *vain ? EMU_RUN_STUCK : ops->advance(run, 0);
}

/* A brief kernel runs with the lock held, which saves taking it again. */
static enum emu_advance at_once_drive(struct emu_stream *stream, const struct stream_op *before,
                                      const struct emu_kernel_ops *ops, struct emu_kernel_run *run,
                                      bool *vain) {
  enum emu_advance result = EMU_RUN_STUCK;
  *vain = true;
  const bool brief = ops->brief(run) && (before == NULL || ops->brief(before->turn.run));
  if (brief) result = at_once_advance(before, ops, run, 0, vain);
  if (!*vain) return result;
  stream->busy = true;
  emu_unlock();
  result = at_once_advance(before, ops, run, AT_ONCE_PATIENCE, vain);
  emu_lock();
  stream->busy = false;
  return result;
}

/* False if the launch must be enqueued; else it was made, or *error has the reason why not. */
static bool launch_at_once(struct emu_stream *stream, const struct emu_work *work, int *error) {
  const struct emu_kernel_ops *ops = work->as.kernel->ops;
  if (stream->at_once_pause > 0) {
    stream->at_once_pause -= 1;
    return false;
  }
  if (!stream_is_free(stream) || ops->advance == NULL || legacy_allows(stream) != 0) return false;
  struct emu_kernel_run *run = ops->enqueue(work->as.kernel);
  if (run == NULL) {
    *error = cudaErrorMemoryAllocation;
    return true;
  }
  struct stream_op *before = stream->head, *op = op_take_idle(stream);
  bool vain;
  op->stream = stream;
  op->ticket = ++stream->device->ticket_count;
  emu_stream_hold(stream);
  const enum emu_advance result = at_once_drive(stream, before, ops, run, &vain);
  stream->at_once_vain = vain ? (2 * stream->at_once_vain + 1) & AT_ONCE_PAUSE_MOST : 0;
  stream->at_once_pause = stream->at_once_vain;
  if (result != EMU_RUN_OVER) at_once_push(op, work, run, before);
  if (before != NULL && !vain) stream_head_ended(stream, before->turn.ops->finish(before->turn.run));
  if (result == EMU_RUN_OVER) at_once_over(op, ops, run);
  if (stream->tail != NULL && stream->tail != op) stream_thread_wake(stream); /* it found the stream busy */
  emu_stream_drop(stream);
  return true;
}

/* Ends the kernel that has begun, if there is one; true if none is left. */
static bool stream_ends_begun(struct emu_stream *stream) {
  const struct stream_op *head = stream->head;
  if (head == NULL) return true;
  const struct emu_kernel_ops *ops = head->turn.ops;
  if (!ops->brief(head->turn.run) || ops->advance(head->turn.run, 0) != EMU_RUN_OVER) return false;
  stream_head_ended(stream, ops->finish(head->turn.run));
  return true;
}

/* False: the kernel cannot be launched this way. */
static bool launch_whole(struct emu_stream *stream, const struct emu_work *work) {
  struct emu_kernel *kernel = work->as.kernel;
  struct emu_kernel_run *run;
  if (kernel->ops->whole(kernel, &run)) return true;
  if (run == NULL) return false;
  struct stream_op *op = op_take_idle(stream);
  op->stream = stream;
  op->ticket = ++stream->device->ticket_count;
  at_once_push(op, work, run, NULL);
  return true;
}

bool emu_stream_launch_whole(struct emu_stream *stream, struct emu_kernel *kernel, int *error) {
  if (stream->at_once_pause > 0 || !stream_is_free(stream) || !stream_ends_begun(stream)) return false;
  const struct emu_work work = {.kind = WORK_KERNEL, .as.kernel = kernel};
  *error = emu_race_work(stream, &work);
  if (*error != 0) return true;
  const bool launched = launch_whole(stream, &work);
  kernel->race_checked = !launched;
  return launched;
}

/* Checks the launch for races, unless that is done. */
static int launch_check(struct emu_stream *stream, const struct emu_work *work) {
  const bool checked = work->as.kernel->race_checked;
  work->as.kernel->race_checked = false;
  return checked ? 0 : emu_race_work(stream, work);
}

int emu_stream_launch(struct emu_stream *stream, struct emu_kernel *kernel, struct emu_stream *const *others,
                      uint32_t other_count) {
  int error = 0;
  for (uint32_t i = 0; error == 0 && i < other_count; i++) error = join(stream, others[i]);
  if (error != 0) return error;
  struct emu_work work;
  memset(&work, 0, sizeof work);
  work.kind = WORK_KERNEL;
  work.as.kernel = kernel;
  const bool threads = emu_options()->mode == EMU_THREADS;
  if (stream->capture != NULL) error = emu_capture_work(stream, &work);
  else error = legacy_allows(stream);
  if (error == 0 && stream->capture == NULL) error = launch_check(stream, &work);
  if (error != 0) return error;
  if (stream->capture == NULL) {
    if (threads && other_count == 0 && launch_at_once(stream, &work, &error)) return error;
    error = emu_stream_enqueue(stream, &work);
  }
  for (uint32_t i = 0; error == 0 && i < other_count; i++) error = join(others[i], stream);
  if (threads) stream_relieve(stream);
  return error;
}

/* ---- life ---- */

int emu_stream_create(uint32_t device_index, unsigned flags, int priority, struct emu_stream **result) {
  struct emu_device *device = emu_device(device_index);
  struct emu_stream *stream = device == NULL ? NULL : (struct emu_stream *)os_alloc(sizeof *stream);
  if (stream == NULL) return cudaErrorMemoryAllocation;
  stream->device = device;
  stream->device_index = device_index;
  stream->stream_index = device->stream_count++;
  stream->flags = flags;
  stream->priority = priority;
  stream->blocking = (flags & cudaStreamNonBlocking) == 0;
  stream->reference_count = 1;
  os_cond_init(&stream->wake);
  emu_actor_init(&stream->actor, &stream_actor_ops,
                 emu_key(EMU_KEY_STREAM, device_index, stream->stream_index, 0));
  struct emu_stream **link = &device->streams;
  while (*link != NULL) link = &(*link)->next_on_device;
  *link = stream;
  emu_handle_insert(&stream->handle, HANDLE_STREAM);
  *result = stream;
  return 0;
}

static void stream_unlist(struct emu_stream *stream) {
  struct emu_stream **link = &stream->device->streams;
  while (*link != NULL && *link != stream) link = &(*link)->next_on_device;
  if (*link == stream) *link = stream->next_on_device;
}

void stream_free(struct emu_stream *stream) {
  node_list_clear(&stream->frontier);
  os_cond_destroy(&stream->wake);
  for (struct stream_op *op = stream->idle, *next; op != NULL; op = next) {
    next = op->next;
    os_free(op);
  }
  os_free(stream);
}

static void stream_release_if_over(struct emu_stream *stream) {
  if (!stream->closing || stream->head != NULL || stream->reference_count != 0) return;
  emu_race_stream_gone(stream);
  stream_unlist(stream);
  if (emu_options()->mode == EMU_GUARDED) emu_actor_remove(&stream->actor);
  if (stream->thread_started) stream_thread_retire(stream);
  else stream_free(stream);
}

void emu_stream_hold(struct emu_stream *stream) { stream->reference_count++; }

void emu_stream_drop(struct emu_stream *stream) {
  stream->reference_count--;
  stream_release_if_over(stream);
}

void emu_stream_destroy(struct emu_stream *stream) {
  emu_capture_leave(stream);
  emu_handle_remove(&stream->handle);
  stream->closing = true;
  emu_stream_drop(stream);
}
