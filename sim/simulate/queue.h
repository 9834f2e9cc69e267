/* queue.h: a priority queue of a fixed set of numbers: a heap (heap.h) ordered by (time, number), so that
 * ties have one order. Each number is in it at most once; its time may change. Memory is allocated once. */
#ifndef TUTTI_SIM_SIMULATE_QUEUE_H
#define TUTTI_SIM_SIMULATE_QUEUE_H

#include "base/os.h"
#include "heap.h"

struct queue_item {
  uint64_t time_ps;
  uint32_t number;
};

struct queue {
  struct queue_item *items;
  uint32_t *place; /* by number: its index in items plus one, 0 if it is not in the queue */
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

static inline bool queue_before(const struct queue_item *a, const struct queue_item *b) {
  return a->time_ps != b->time_ps ? a->time_ps < b->time_ps : a->number < b->number;
}

static inline void queue_put(struct queue *queue, uint32_t at, const struct queue_item *item) {
  queue->items[at] = *item;
  queue->place[item->number] = at + 1;
}

HEAP(queue, queue, queue_item, queue_before, queue_put)

/* An item that may have to move either way. */
static inline void queue_settle(struct queue *queue, uint32_t at, const struct queue_item *item) {
  if (at > 0 && queue_before(item, &queue->items[(at - 1) / 4])) queue_rise(queue, at, item);
  else queue_sink(queue, queue->count, at, item);
}

/* Adds the number, or changes its time. */
static inline void queue_set(struct queue *queue, uint32_t number, uint64_t time_ps) {
  const struct queue_item item = {time_ps, number};
  uint32_t at = queue->place[number];
  if (at == 0) at = ++queue->count;
  queue_settle(queue, at - 1, &item);
}

static inline void queue_remove(struct queue *queue, uint32_t number) {
  const uint32_t at = queue->place[number];
  if (at == 0) return;
  queue->place[number] = 0;
  const struct queue_item last = queue->items[--queue->count];
  if (last.number == number) return;
  queue_settle(queue, at - 1, &last);
}

#endif
