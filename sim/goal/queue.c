/* queue.c: see queue.h. */
#include "goal/queue.h"

#include <string.h>

#include "base/array.h"
#include "base/os.h"
#include "heap.h"

static inline void queue_put(struct queue *queue, uint32_t at, const struct event *event) {
  queue->items[at] = *event;
}

HEAP(queue, queue, event, event_before, queue_put)

bool queue_add(struct queue *queue, const struct event *event) {
  if (!array_grow(&queue->items, &queue->capacity, (uint64_t)queue->count + 1, sizeof *queue->items))
    return false;
  queue_rise(queue, queue->count++, event);
  return true;
}

void queue_take(struct queue *queue, struct event *event) {
  *event = queue->items[0];
  const uint32_t count = --queue->count;
  queue_sink(queue, count, 0, &queue->items[count]);
}

/* Merges without recursion: the right spines of both heaps, with the children of each node swapped. */
static uint32_t waiters_join(struct waiter *waiters, uint32_t one, uint32_t two) {
  uint32_t root = 0, *hole = &root;
  while (one != 0 && two != 0) {
    if (waiters[two].event.number < waiters[one].event.number) {
      const uint32_t other = one;
      one = two;
      two = other;
    }
    *hole = one;
    const uint32_t right = waiters[one].right;
    waiters[one].right = waiters[one].left;
    hole = &waiters[one].left;
    one = right;
  }
  *hole = one != 0 ? one : two;
  return root;
}

bool waiters_add(struct queue *queue, uint32_t *root, const struct event *event) {
  uint32_t fresh = queue->waiter_free;
  if (fresh != 0) {
    queue->waiter_free = queue->waiters[fresh].right;
  } else {
    if (!array_grow(&queue->waiters, &queue->waiter_capacity, (uint64_t)queue->waiter_count + 2,
                    sizeof *queue->waiters))
      return false;
    fresh = ++queue->waiter_count;
  }
  const struct waiter waiter = {*event, 0, 0};
  queue->waiters[fresh] = waiter;
  *root = waiters_join(queue->waiters, *root, fresh);
  return true;
}

void waiters_take(struct queue *queue, uint32_t *root, struct event *event) {
  struct waiter *first = &queue->waiters[*root];
  const uint32_t place = *root;
  *event = first->event;
  *root = waiters_join(queue->waiters, first->left, first->right);
  first->right = queue->waiter_free;
  queue->waiter_free = place;
}

void queue_free(struct queue *queue) {
  os_free(queue->items);
  os_free(queue->waiters);
  memset(queue, 0, sizeof *queue);
}
