/* race.c: what each submitted operation accesses and comes after: copies, fills, frees, NCCL calls, graphs.
 * An operation takes two epochs, of its reads and of its writes, because a rank's message ends its reads
 * before the receiver continues. Knows neither how clocks nor how accesses are kept. */
#include "backends/emu/cudart/race_impl.h"

#include <string.h>

#include "base/array.h"

_Thread_local struct race_call emu_race_call;

static uint64_t launch_count;
static bool submitting;
static bool found, forgets; /* in the operation that is being submitted, or since */
static bool late;           /* a race that no call has returned yet */

/* ---- points ---- */

void emu_race_point_drop(struct race_point *point) {
  race_clock_drop(point->clock);
  *point = (struct race_point){NULL, 0, 0};
}

void emu_race_point_copy(struct race_point *point, const struct race_point *from) {
  struct race_clock *clock = race_clock_keep(from->clock);
  const struct race_point copy = {clock, from->epoch, from->stream};
  emu_race_point_drop(point);
  *point = copy;
}

static struct race_point point_of(const struct emu_stream *stream) {
  const struct race_stream *race = &stream->race;
  return (struct race_point){race->clock, race->id != 0 ? race_epochs[race->id] : 0, race->id};
}

static void stream_add(struct emu_stream *stream, const struct race_point *point) {
  race_clock_add(&stream->race.clock, point);
  stream->race.version += 1;
}

/* What CUDA orders by itself: the legacy default stream and the blocking streams of its device. */
static void stream_order(struct emu_stream *stream) {
  struct emu_device *device = stream->device;
  struct race_stream *race = &stream->race;
  if (race->id == 0) race->id = race_stream_number();
  if (stream->legacy) {
    for (struct emu_stream *other = device->streams; other != NULL; other = other->next_on_device) {
      if (!other->blocking || other->race.version == other->race.legacy_merged) continue;
      const struct race_point point = point_of(other);
      stream_add(stream, &point);
      other->race.legacy_merged = other->race.version;
    }
    race_clock_add_clock(&race->clock, device->race.gone_blocking);
  } else if (stream->blocking && device->legacy != NULL &&
             device->legacy->race.version != race->merged_legacy) {
    const struct race_point point = point_of(device->legacy);
    stream_add(stream, &point);
    race->merged_legacy = device->legacy->race.version;
  }
}

struct race_point emu_race_mark(struct emu_stream *stream) {
  if (!race_is_on()) return (struct race_point){NULL, 0, 0};
  stream_order(stream);
  const struct race_point point = point_of(stream);
  race_clock_keep(point.clock);
  return point;
}

struct race_point emu_race_mark_device(const struct emu_device *device) {
  struct race_point mark = {NULL, 0, 0};
  if (!race_is_on()) return mark;
  for (const struct emu_stream *stream = device->streams; stream != NULL; stream = stream->next_on_device) {
    const struct race_point point = point_of(stream);
    race_clock_add(&mark.clock, &point);
  }
  race_clock_add_clock(&mark.clock, device->race.gone);
  return mark;
}

void emu_race_wait(struct emu_stream *stream, const struct race_point *point) {
  if (!race_is_on()) return;
  stream_order(stream);
  if (point->stream != stream->race.id) stream_add(stream, point);
}

void emu_race_host_knows(const struct race_point *point) {
  if (!race_is_on()) return;
  race_host_set(point->stream, point->epoch);
  race_host_add(point->clock);
}

void emu_race_tidy(struct emu_device *device) {
  if (!race_is_on()) return;
  for (struct emu_stream *stream = device->streams; stream != NULL; stream = stream->next_on_device)
    race_clock_prune(&stream->race.clock);
  race_clock_prune(&device->race.gone);
  race_clock_prune(&device->race.gone_blocking);
}

void emu_race_device_restart(struct emu_device *device) {
  race_clock_drop(device->race.gone);
  race_clock_drop(device->race.gone_blocking);
  device->race.gone = device->race.gone_blocking = NULL;
}

void emu_race_stream_gone(struct emu_stream *stream) {
  struct race_device *device = &stream->device->race;
  if (race_is_on()) {
    race_clock_prune(&stream->race.clock);
    const struct race_point point = point_of(stream);
    race_clock_add(&device->gone, &point);
    if (stream->blocking || stream->legacy) race_clock_add(&device->gone_blocking, &point);
  }
  race_clock_drop(stream->race.clock);
  stream->race.clock = NULL;
}

/* ---- forgetting ---- */

static void forget(void) {
  race_forget_passed();
  race_pairs_drop();
  race_memory_forget_all();
}

void emu_race_forget(void) {
  if (!race_is_on()) return;
  if (submitting) forgets = true;
  else forget();
}

void emu_race_restart(void) {
  forget();
  race_reset();
}

static void submit_begin(void) {
  submitting = true;
  found = forgets = false;
}

static int submit_end(void) {
  submitting = false;
  if (forgets) forget();
  return found ? RACE_ERROR : 0;
}

int emu_race_take_error(void) {
  const bool was = late;
  late = false;
  return was ? RACE_ERROR : 0;
}

void race_found(void) {
  if (submitting) found = true;
  else late = true;
}

/* ---- accesses ---- */

struct race_op *race_op_new(const struct race_call *call) {
  struct race_op *op = (struct race_op *)os_alloc(sizeof *op);
  if (op == NULL) {
    race_give_up();
    return NULL;
  }
  op->reference_count = 1;
  op->call = *call;
  return op;
}

void race_op_drop(struct race_op *op) {
  if (--op->reference_count != 0) return;
  race_clock_drop(op->clock);
  emu_race_rank_drop(op->rank);
  os_free(op);
}

uint32_t race_work_accesses(const struct emu_work *work,
                            struct race_work_access accesses[RACE_ACCESSES_MOST]) {
  struct emu_allocation memory;
  switch (work->kind) {
    case WORK_COPY:
      accesses[0] = (struct race_work_access){
          {work->as.copy.from, work->as.copy.from_pitch, work->as.copy.width, work->as.copy.height}, false};
      accesses[1] = (struct race_work_access){
          {work->as.copy.to, work->as.copy.to_pitch, work->as.copy.width, work->as.copy.height}, true};
      return 2;
    case WORK_FILL:
      accesses[0] =
          (struct race_work_access){{work->as.fill.to, work->as.fill.pitch,
                                     work->as.fill.width * work->as.fill.element_bytes, work->as.fill.height},
                                    true};
      return 1;
    case WORK_FREE:
      if (!emu_memory_find(work->as.release.pointer, &memory)) return 0;
      accesses[0] = (struct race_work_access){{memory.base, memory.bytes, memory.bytes, 1}, true};
      return 1;
    case WORK_EMPTY:
    case WORK_HOST:
    case WORK_KERNEL: return 0;
  }
  return 0;
}

uint32_t race_use_accesses(const struct race_use *use, struct race_work_access accesses[RACE_ACCESSES_MOST]) {
  uint32_t count = 0;
  if (use->in_bytes > 0)
    accesses[count++] = (struct race_work_access){{use->in, use->in_bytes, use->in_bytes, 1}, false};
  if (use->out_bytes > 0)
    accesses[count++] = (struct race_work_access){{use->out, use->out_bytes, use->out_bytes, 1}, true};
  if (use->scalar != NULL)
    accesses[count++] =
        (struct race_work_access){{use->scalar, use->scalar_bytes, use->scalar_bytes, 1}, false};
  return count;
}

/* ---- submitting ---- */

/* The works of one submission: one, or the nodes of a graph, which count as one operation of the stream. */
struct batch {
  struct emu_stream *stream;
  const struct emu_work *work;
  const struct emu_graph_exec *exec; /* NULL: only `work` */
  uint64_t entry_epoch;
};

/* By access to memory; kept for the next submission. */
static struct {
  struct race_op **items;
  uint32_t count, capacity;
} ops;

static uint32_t batch_count(const struct batch *batch) {
  return batch->exec != NULL ? batch->exec->node_count : 1;
}

static const struct emu_work *batch_work(const struct batch *batch, uint32_t i) {
  return batch->exec != NULL ? &batch->exec->nodes[i].work : batch->work;
}

static struct emu_kernel *work_kernel(const struct emu_work *work) {
  return work->kind == WORK_KERNEL && work->as.kernel->race != NULL ? work->as.kernel : NULL;
}

/* Work that has an operation of its own; a kernel has one for each of its NCCL calls. */
static bool work_has_op(const struct emu_work *work) {
  return work->kind == WORK_COPY || work->kind == WORK_FILL || work->kind == WORK_FREE;
}

static struct race_op *batch_op(const struct batch *batch, const struct race_call *call) {
  const struct emu_stream *stream = batch->stream;
  struct race_op *op = race_op_new(call);
  if (op == NULL) return NULL;
  op->stream = stream->race.id;
  op->stream_index = stream->stream_index;
  op->device_index = stream->device_index;
  op->legacy = stream->legacy;
  op->captured = batch->exec != NULL;
  op->read_epoch = batch->entry_epoch + 1;
  op->write_epoch = batch->entry_epoch + 2;
  op->launch = launch_count;
  return op;
}

static bool ops_add(struct race_op *op) {
  if (op == NULL) return false;
  if (!array_grow(&ops.items, &ops.capacity, (uint64_t)ops.count + 1, sizeof *ops.items)) {
    race_op_drop(op);
    race_give_up();
    return false;
  }
  ops.items[ops.count++] = op;
  return true;
}

/* An operation for each NCCL call, copy, fill and free. */
static bool batch_make_ops(const struct batch *batch) {
  for (uint32_t i = 0; i < batch_count(batch); i++) {
    const struct emu_work *work = batch_work(batch, i);
    struct emu_kernel *kernel = work_kernel(work);
    for (uint32_t k = 0; kernel != NULL && k < kernel->use_count; k++) {
      struct race_op *op = batch_op(batch, &kernel->uses[k].call);
      if (!ops_add(op)) return false;
      op->rank = kernel->race;
      op->rank->reference_count += 1;
      op->sequence = kernel->uses[k].sequence;
    }
    if (!work_has_op(work)) continue;
    if (!ops_add(batch_op(batch, &work->call))) return false;
  }
  return true;
}

/* False, after a report, if NCCL calls of a graph use memory that was freed after their capture. */
static bool graph_check_memory(const struct batch *batch) {
  struct race_work_access accesses[RACE_ACCESSES_MOST];
  struct emu_allocation memory;
  struct race_op *const *op = ops.items;
  for (uint32_t i = 0; batch->exec != NULL && i < batch_count(batch); i++) {
    const struct emu_work *work = batch_work(batch, i);
    const struct emu_kernel *kernel = work_kernel(work);
    for (uint32_t k = 0; kernel != NULL && k < kernel->use_count; k++, op++) {
      const uint32_t count = race_use_accesses(&kernel->uses[k], accesses);
      for (uint32_t a = 0; a < count; a++) {
        if (emu_memory_find(accesses[a].extent.base, &memory)) continue;
        race_report_gone(*op, accesses[a].writes);
        return false;
      }
    }
    op += work_has_op(work);
  }
  return true;
}

/* The calls of each kernel, which are those of one group. */
static bool batch_check_groups(const struct batch *batch) {
  struct race_op *const *op = ops.items;
  for (uint32_t i = 0; i < batch_count(batch); i++) {
    const struct emu_work *work = batch_work(batch, i);
    const struct emu_kernel *kernel = work_kernel(work);
    if (kernel != NULL && !race_group_check(kernel->uses, kernel->use_count, op)) return false;
    if (kernel != NULL) op += kernel->use_count;
    op += work_has_op(work);
  }
  return true;
}

static bool accesses_note(struct race_op *op, const struct race_work_access accesses[RACE_ACCESSES_MOST],
                          uint32_t count, bool writes, const struct race_point *at) {
  for (uint32_t i = 0; i < count; i++)
    if (accesses[i].writes == writes && !race_access(op, &accesses[i].extent, writes, at)) return false;
  return true;
}

static bool batch_access(const struct batch *batch, bool writes, const struct race_point *at) {
  struct race_work_access accesses[RACE_ACCESSES_MOST];
  struct race_op **op = ops.items;
  for (uint32_t i = 0; i < batch_count(batch); i++) {
    const struct emu_work *work = batch_work(batch, i);
    const struct emu_kernel *kernel = work_kernel(work);
    for (uint32_t k = 0; kernel != NULL && k < kernel->use_count; k++)
      if (!accesses_note(*op++, accesses, race_use_accesses(&kernel->uses[k], accesses), writes, at))
        return false;
    if (!work_has_op(work)) continue;
    if (!accesses_note(*op++, accesses, race_work_accesses(work, accesses), writes, at)) return false;
  }
  return true;
}

/* A rank's launches run one after another, on whatever streams. */
static void batch_wait_for_ranks(const struct batch *batch) {
  struct emu_stream *stream = batch->stream;
  for (uint32_t i = 0; i < batch_count(batch); i++) {
    const struct emu_kernel *kernel = work_kernel(batch_work(batch, i));
    if (kernel == NULL) continue;
    if (kernel->apart) race_rank_follow(kernel->race, kernel->uses, kernel->use_count, &stream->race.clock);
    if (kernel->apart) continue;
    if (kernel->race->last.stream != stream->race.id) stream_add(stream, &kernel->race->last);
    emu_race_point_drop(&kernel->race->last);
  }
}

static void batch_meet_ranks(const struct batch *batch) {
  struct emu_stream *stream = batch->stream;
  const struct race_point entry = {stream->race.clock, batch->entry_epoch, stream->race.id};
  const struct race_point read = {stream->race.clock, batch->entry_epoch + 1, stream->race.id};
  for (uint32_t i = 0; i < batch_count(batch); i++) {
    const struct emu_kernel *kernel = work_kernel(batch_work(batch, i));
    if (kernel != NULL) race_rank_bring(kernel->race, kernel->uses, kernel->use_count, &entry, &read);
  }
  for (uint32_t i = 0; i < batch_count(batch); i++) {
    const struct emu_kernel *kernel = work_kernel(batch_work(batch, i));
    if (kernel != NULL) race_rank_take(kernel->race, kernel->uses, kernel->use_count, &stream->race.clock);
  }
  for (uint32_t i = 0; i < ops.count && race_clock_is_open(stream->race.clock); i++)
    ops.items[i]->clock = race_clock_keep(stream->race.clock);
}

static void batch_end(const struct batch *batch) {
  struct emu_stream *stream = batch->stream;
  race_epochs[stream->race.id] = batch->entry_epoch + 2;
  stream->race.version += 1;
  const struct race_point end = point_of(stream);
  for (uint32_t i = 0; i < batch_count(batch); i++) {
    const struct emu_kernel *kernel = work_kernel(batch_work(batch, i));
    if (kernel != NULL && !kernel->apart) emu_race_point_copy(&kernel->race->last, &end);
  }
  while (ops.count > 0) race_op_drop(ops.items[--ops.count]);
}

static int batch_submit(struct batch *batch) {
  struct emu_stream *stream = batch->stream;
  int error = emu_race_take_error();
  if (!race_is_on()) return error;
  submit_begin();
  stream_order(stream);
  if (!race_is_on()) return submit_end();
  launch_count += 1;
  batch->entry_epoch = race_epochs[stream->race.id];
  batch_wait_for_ranks(batch);
  const struct race_point entry = {race_clock_keep(stream->race.clock), batch->entry_epoch, stream->race.id};
  bool fits = batch_make_ops(batch) && graph_check_memory(batch) && batch_check_groups(batch) &&
              batch_access(batch, false, &entry);
  race_clock_drop(entry.clock);
  if (fits) batch_meet_ranks(batch);
  const struct race_point read = {stream->race.clock, batch->entry_epoch + 1, stream->race.id};
  fits = fits && !found && batch_access(batch, true, &read);
  batch_end(batch);
  const int raced = submit_end();
  return error != 0 ? error : raced;
}

int emu_race_work(struct emu_stream *stream, const struct emu_work *work) {
  struct batch batch = {stream, work, NULL, 0};
  return batch_submit(&batch);
}

int emu_race_graph(struct emu_stream *stream, const struct emu_graph_exec *exec) {
  struct batch batch = {stream, NULL, exec, 0};
  return batch_submit(&batch);
}

/* ---- allocations ---- */

int emu_race_free(const void *base) {
  struct emu_allocation memory;
  if (!race_is_on() || !emu_memory_find(base, &memory)) return 0;
  submit_begin();
  const struct race_point at = {NULL, 0, 0};
  struct race_op *op = race_op_new(&emu_race_call);
  if (op != NULL && race_memory_free(&memory, op, &at)) race_memory_forget(memory.base);
  if (op != NULL) race_op_drop(op);
  return submit_end();
}

void emu_race_allocated(struct emu_stream *stream, const void *base) {
  struct emu_allocation memory;
  if (!race_is_on() || !emu_memory_find(base, &memory)) return;
  stream_order(stream);
  const struct race_extent extent = {memory.base, memory.bytes, memory.bytes, 1};
  const struct race_point at = point_of(stream);
  const struct batch batch = {stream, NULL, NULL, at.epoch};
  struct race_op *op = batch_op(&batch, &emu_race_call);
  if (op == NULL) return;
  race_access(op, &extent, true, &at);
  race_op_drop(op);
  race_epochs[stream->race.id] = at.epoch + 2;
  stream->race.version += 1;
}
