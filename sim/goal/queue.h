/* queue.h: events ordered by time, then by number; and heaps of events that wait for a gate. The caller
 * assigns the numbers. Waiting nodes are in one array and are named by index. */
#ifndef TUTTI_SIM_GOAL_QUEUE_H
#define TUTTI_SIM_GOAL_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

enum event_kind { EVENT_OP, EVENT_MESSAGE, EVENT_GATE };

struct event {
  uint64_t time_ns, number;
  uint32_t rank; /* the operation's rank; a message's sender; for a gate its index */
  uint32_t item; /* kind << 30 | operation */
};

struct waiter {
  struct event event;
  uint32_t left, right; /* of a skew heap (Sleator, Tarjan 1986) by number; right: next free one */
};

struct queue {
  struct event *items; /* a heap (heap.h) */
  uint32_t count, capacity;
  struct waiter *waiters; /* from 1 on */
  uint32_t waiter_count, waiter_capacity, waiter_free;
};

static inline bool event_before(const struct event *one, const struct event *two) {
  return one->time_ns < two->time_ns || (one->time_ns == two->time_ns && one->number < two->number);
}

/* False when memory is out. */
bool queue_add(struct queue *queue, const struct event *event);
/* The first event; the queue must not be empty. */
void queue_take(struct queue *queue, struct event *event);

bool waiters_add(struct queue *queue, uint32_t *root, const struct event *event);
void waiters_take(struct queue *queue, uint32_t *root, struct event *event);
void queue_free(struct queue *queue);

#endif
