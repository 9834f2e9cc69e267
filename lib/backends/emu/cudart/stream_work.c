/* stream_work.c: the work that streams and graph nodes share, and kernels that wait for their turn.
 * Knows nothing of queues or of graphs. */
#include "backends/emu/cudart/stream_impl.h"

#include <string.h>

#include "backends/emu/cudart/memory_impl.h"

static _Thread_local bool in_host_function;

bool emu_in_host_function(void) { return in_host_function; }

static void copy_bytes(const struct emu_work *work) {
  const uint8_t *from = (const uint8_t *)work->as.copy.from;
  uint8_t *to = (uint8_t *)work->as.copy.to;
  for (size_t row = 0; row < work->as.copy.height; row++) {
    memmove(to + row * work->as.copy.to_pitch, from + row * work->as.copy.from_pitch, work->as.copy.width);
  }
}

static void fill_row(uint8_t *to, uint32_t value, uint32_t element_bytes, size_t count) {
  if (element_bytes == 1) {
    memset(to, (int)(value & 0xff), count);
    return;
  }
  for (size_t i = 0; i < count; i++) memcpy(to + i * element_bytes, &value, element_bytes);
}

static void fill_bytes(const struct emu_work *work) {
  uint8_t *to = (uint8_t *)work->as.fill.to;
  for (size_t row = 0; row < work->as.fill.height; row++) {
    fill_row(to + row * work->as.fill.pitch, work->as.fill.value, work->as.fill.element_bytes,
             work->as.fill.width);
  }
}

/* In guarded mode bytes are moved with the lock held, as part of one event; in threads mode a copy may take
 * long. */
static void outside_lock(void (*move_bytes)(const struct emu_work *work), const struct emu_work *work) {
  bool threads = emu_options()->mode == EMU_THREADS;
  if (threads) emu_unlock();
  move_bytes(work);
  if (threads) emu_lock();
}

void emu_work_perform(const struct emu_work *work) {
  switch (work->kind) {
    case WORK_COPY: outside_lock(copy_bytes, work); return;
    case WORK_FILL: outside_lock(fill_bytes, work); return;
    case WORK_FREE: emu_memory_release(work->as.release.pointer, EMU_ORIGIN_DEVICE); return;
    case WORK_HOST:
      emu_race_host_knows(&work->as.host.behind);
      in_host_function = true;
      emu_call_out(work->as.host.function, work->as.host.argument);
      in_host_function = false;
      return;
    case WORK_EMPTY:
    case WORK_KERNEL: return;
  }
}

void emu_work_keep(const struct emu_work *work) {
  if (work->kind == WORK_KERNEL) work->as.kernel->reference_count++;
}

void emu_work_drop(const struct emu_work *work) {
  if (work->kind == WORK_KERNEL) emu_kernel_drop(work->as.kernel);
  if (work->kind == WORK_COPY) os_free(work->as.copy.staging);
  if (work->kind != WORK_HOST) return;
  struct race_point behind = work->as.host.behind;
  emu_race_point_drop(&behind);
}

void emu_kernel_drop(struct emu_kernel *kernel) {
  if (--kernel->reference_count == 0) kernel->ops->release(kernel);
}

/* sorted by the actors' keys: threads that enqueue in any order leave the same list */
static struct emu_turn *turns;

void emu_turn_list(struct emu_turn *turn) {
  struct emu_turn **link = &turns;
  while (*link != NULL && (*link)->actor->key < turn->actor->key) link = &(*link)->next;
  turn->next = *link;
  turn->link = link;
  if (turn->next != NULL) turn->next->link = &turn->next;
  *link = turn;
}

void emu_turn_unlist(struct emu_turn *turn) {
  if (turn->link == NULL) return;
  *turn->link = turn->next;
  if (turn->next != NULL) turn->next->link = turn->link;
  turn->link = NULL;
}

void emu_kernel_runs_wake(void) {
  for (struct emu_turn *turn = turns; turn != NULL; turn = turn->next) {
    if (turn->ops->ready(turn->run)) stream_wake(turn->actor);
  }
}
