/* queue.h: which of a fixed set of numbers comes next: a binary heap over (time, number), so that ties have
 * one order. Each number has one place at most; its time may change. Memory is taken once. */
#ifndef TUTTI_SIM_SIMULATE_QUEUE_H
#define TUTTI_SIM_SIMULATE_QUEUE_H

#include "base/os.h"

struct queue_item {
  uint64_t time_ps;
  uint32_t number;
};

struct queue {
  struct queue_item *items;
  uint32_t *place; /* by number: its place in items plus one, 0 when it has none */
  uint32_t count;
};

static inline bool queue_make(struct queue *queue, uint32_t numbers) {
  queue->count = 0;
  queue->items = (struct queue_item *)os_alloc(((size_t)numbers + 1) * sizeof *queue->items);
  queue->place = (uint32_t *)os_alloc(((size_t)numbers + 1) * sizeof *queue->place);
  return queue->items && queue->place;
}

static inline void queue_free(struct queue *queue) {
  os_free(queue->items);
  os_free(queue->place);
}

static inline bool queue_before(struct queue_item a, struct queue_item b) {
  return a.time_ps != b.time_ps ? a.time_ps < b.time_ps : a.number < b.number;
}

static inline void queue_put(struct queue *queue, uint32_t at, struct queue_item item) {
  queue->items[at] = item;
  queue->place[item.number] = at + 1;
}

static inline void queue_up(struct queue *queue, uint32_t at, struct queue_item item) {
  while (at > 0 && queue_before(item, queue->items[(at - 1) / 2])) {
    queue_put(queue, at, queue->items[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  queue_put(queue, at, item);
}

static inline void queue_down(struct queue *queue, uint32_t at, struct queue_item item) {
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= queue->count) break;
    if (child + 1 < queue->count && queue_before(queue->items[child + 1], queue->items[child])) child += 1;
    if (!queue_before(queue->items[child], item)) break;
    queue_put(queue, at, queue->items[child]);
    at = child;
  }
  queue_put(queue, at, item);
}

/* Enters the number, or changes its time. */
static inline void queue_set(struct queue *queue, uint32_t number, uint64_t time_ps) {
  const struct queue_item item = {time_ps, number};
  uint32_t at = queue->place[number];
  if (at == 0) at = ++queue->count;
  at -= 1;
  if (at > 0 && queue_before(item, queue->items[(at - 1) / 2])) queue_up(queue, at, item);
  else queue_down(queue, at, item);
}

static inline void queue_remove(struct queue *queue, uint32_t number) {
  const uint32_t at = queue->place[number];
  if (at == 0) return;
  queue->place[number] = 0;
  const struct queue_item last = queue->items[--queue->count];
  if (last.number == number) return;
  if (at > 1 && queue_before(last, queue->items[(at - 2) / 2])) queue_up(queue, at - 1, last);
  else queue_down(queue, at - 1, last);
}

#endif
