/* fifo.h: a connection: one sender, one receiver, a ring of slots. The layout that both ends map, and an
 * end's own view of it.
 *
 *   struct fifo (each row on lines of its own: the two ends must not share one)      buffer of a protocol
 *   +-----------+----------------------------------------------------------+         +--------+--------+--
 * ... --+ | tail      | slots filled so far; sender writes, receiver polls       |         | slot 0 | slot 1
 * |         | | head      | slots freed so far; receiver writes, sender polls        | +--------+--------+--
 * ... --+ | exchange  | address of the receiver's output, or 0, and its bytes    |         step s lives in
 * slot s mod slots | sizes[]   | bytes that the sender put into each slot                 | | send_step |
 * where the sender's next operation begins; send_line[]    |         slots in use: tail - head <= slots |
 * recv_step | where the receiver's next operation begins; recv_line[]  |
 *   +-----------+----------------------------------------------------------+
 *
 * Counters count steps since the connection was made and never fall or restart. The line protocols move head
 * alone: the flags of their lines say what tail would. Each of them also counts its own steps, for flags and
 * slots: with the common count, the steps in which old flags must be rewritten could fall to another
 * protocol. */
#ifndef TUTTI_PROTOCOL_FIFO_H
#define TUTTI_PROTOCOL_FIFO_H

#include "protocol/prim.h"

#define FIFO_SLOTS_MAX 8
#define FIFO_LINE_BYTES 128

struct fifo {
  uint64_t tail;
  uint64_t tail_pad[15];
  uint64_t head;
  uint64_t head_pad[15];
  uint64_t exchange;
  uint64_t exchange_bytes;
  uint64_t exchange_pad[14];
  uint64_t sizes[FIFO_SLOTS_MAX];
  uint64_t sizes_pad[8];
  uint64_t send_step;
  uint64_t send_line[2];
  uint64_t send_pad[13];
  uint64_t recv_step;
  uint64_t recv_line[2];
  uint64_t recv_pad[13];
};
static_assert(sizeof(struct fifo) == 6 * FIFO_LINE_BYTES, "both ends map this layout");

/* One end of a connection while a lane uses it. `step` runs ahead of `posted` by the slices in flight. */
struct link {
  struct fifo *fifo;
  uint8_t *buffer;     /* the work's protocol's slots */
  uint64_t step;       /* first step of the next slice */
  uint64_t posted;     /* steps told to the other end */
  uint64_t cached;     /* last value seen of the other end's counter */
  uint8_t *direct;     /* sender: the receiver's output, when it may be stored to; else 0 */
  uint32_t slot_index; /* step mod slots */
  uint32_t slots, step_bytes;
  uint32_t peer; /* rank at the other end */
  uint64_t line; /* line protocols: steps that this one has taken on the connection; lives in slot line mod
                    slots */
  uint32_t line_slot; /* line mod slots */
};

/* Binds an end for one operation: both ends round the counter up to a whole chunk, so that slices of a chunk
 * lie together. */
PRIM_FN void link_open(struct link *link, uint64_t saved_step, uint32_t chunk_steps) {
  link->step = (saved_step + chunk_steps - 1) / chunk_steps * chunk_steps;
  link->posted = link->step;
  link->cached = 0;
  link->direct = 0;
  link->slot_index = (uint32_t)(link->step % link->slots);
}

PRIM_FN void link_advance(struct link *link, uint32_t steps) {
  link->step += steps;
  link->slot_index += steps;
  if (link->slot_index >= link->slots) link->slot_index -= link->slots;
}

PRIM_FN uint8_t *link_slot(const struct link *link) {
  return link->buffer + (size_t)link->slot_index * link->step_bytes;
}

/* The two predicates of the protocol. The other end's counter is read only when its last value does not
 * suffice. */
PRIM_FN bool link_has_data(struct link *link, uint32_t steps) {
  if (link->cached >= link->step + steps) return true;
  link->cached = prim_load_acquire(&link->fifo->tail);
  return link->cached >= link->step + steps;
}

PRIM_FN bool link_has_slots(struct link *link, uint32_t steps) {
  if (link->cached + link->slots >= link->step + steps) return true;
  link->cached = prim_load_acquire(&link->fifo->head);
  return link->cached + link->slots >= link->step + steps;
}

#endif
