/* transfer.h: what a work passes over one of its links, slice by slice: the FIFO steps of each slice, and its
 * bytes. A proxy makes a message of each. Both ends of a connection know every transfer in advance, because
 * each follows from the work alone, by the same iterators and the same slices (schedule/slice.h) as a lane's.
 * The checker compares them with what lanes pass, on every link that it checks. Takes constant memory for any
 * count. Knows no connection and no network. */
#ifndef TUTTI_SCHEDULE_TRANSFER_H
#define TUTTI_SCHEDULE_TRANSFER_H

#include "schedule/algo.h"
#include "schedule/slice.h"

/* FIFO steps [begin, end) of a connection, passed on at once. */
struct transfer {
  uint64_t begin, end;
  size_t bytes;            /* of data */
  const struct work *part; /* the operation: the work, or the part of a fused one */
  uint64_t agreed_bytes;   /* of the operation on its channel */
  bool announces;          /* the first of its operation */
  bool skipped;            /* both ends know that it is empty: no message */
  bool ll;                 /* kernels use LL; the message on the network is plain data */
  bool shared;             /* several schedule steps use it: a receiver may omit its last part */
  bool zero_copy;          /* of a receiver: it goes directly to its part's output, in any order, ... */
  size_t out_offset;       /* ... at this offset in elements */
};

/* A link of a work, as its steps pass it. */
struct transfer_link {
  const struct work *work; /* the first of its parts, if it is fused */
  const struct work *part; /* the operation of the next transfers */
  uint32_t index;
  bool sends, agreed; /* agreed: an earlier transfer has carried the operation's size */
  bool open;          /* the next step uses the slots of the one before */
  bool shared;        /* as in struct transfer */
  bool zero_copy;     /* the chunk is received directly into the output, ... */
  size_t out_offset;  /* ... at this offset */
  uint64_t next_step; /* of the connection */
  uint32_t slice_index, slice_count;
  size_t slice_elements, slice_capacity;
  size_t held, cut; /* elements of the slots, or of the chunk; the same for the link that has most, by which
                       all links' slices are cut */
};

struct transfer_iter {
  struct algo_iter steps;
  struct transfer_link link;
};

/* `saved_step` is the connection's step after the previous work; `step_bytes`: of a step of Simple. */
PRIM_FN void transfer_open(struct transfer_link *link, const struct work *work, uint32_t index, bool sends,
                           uint64_t saved_step, uint32_t step_bytes) {
  link->work = link->part = work;
  link->index = index;
  link->sends = sends;
  link->agreed = link->open = link->shared = link->zero_copy = false;
  link->next_step = slice_first_step(saved_step, work->chunk_steps);
  link->slice_index = link->slice_count = 0;
  link->slice_elements = link->held = link->cut = link->out_offset = 0;
  link->slice_capacity = slice_capacity_of(work, step_bytes);
}

/* Whether the step uses the link. */
PRIM_FN bool transfer_uses(const struct transfer_link *link, const struct step *step) {
  return ((link->sends ? step->send_links : step->recv_links) >> link->index & 1) != 0;
}

/* Steps of rings and messages whose data is final on arrival. What it overwrites has been read long before,
 * by the ranks that produced the data. */
PRIM_FN bool transfer_is_zero_copy(const struct transfer_link *link, const struct step *step) {
  const uint32_t as_it_comes = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  const uint8_t family = algo_family(link->work);
  return !link->sends && (family == FAMILY_RING || family == FAMILY_P2P) &&
         (step->flags & ~(uint32_t)(STEP_SEND | STEP_SEND_FINAL)) == as_it_comes;
}

/* Takes in the next step that uses the link, when all earlier transfers are taken. If it is the last one that
 * uses its slots, transfers follow. */
PRIM_FN void transfer_add(struct transfer_link *link, const struct step *step) {
  const struct work *work = link->work;
  const size_t place = link->sends ? step_send_place(step) : step_recv_place(step);
  if (!link->open) {
    link->held = link->cut = 0;
    link->shared = false;
  }
  if ((work->flags & WORK_FUSED) != 0) {
    link->part = work + step_part(step);
    if ((step->flags & STEP_PART) != 0) link->agreed = false;
  }
  link->held = size_max(link->held, place + step_link_count(step, link->index));
  link->cut = size_max(link->cut, place + step->count);
  link->zero_copy = transfer_is_zero_copy(link, step);
  link->out_offset = step_link_out(step, link->index, link->sends);
  link->open = (step->flags & (link->sends ? STEP_SEND_MORE : STEP_RECV_MORE)) != 0;
  link->shared |= link->open;
  if (link->open) return;
  link->slice_index = 0;
  link->slice_count = slice_count_of(work);
  link->slice_elements = work->proto == PROTO_SIMPLE
                             ? chunk_slice_count(link->cut, link->slice_count, link->slice_capacity)
                             : link->cut; /* a chunk of lines is one step */
}

/* False if a step must be added first. */
PRIM_FN bool transfer_take(struct transfer_link *link, struct transfer *transfer) {
  const struct work *work = link->work;
  if (link->slice_index == link->slice_count) return false;
  const size_t offset = slice_offset(link->held, link->slice_index, link->slice_elements);
  transfer->begin = link->next_step;
  transfer->end = link->next_step += work->slice_steps;
  transfer->bytes = slice_length(link->held, offset, link->slice_elements) * work->element_bytes;
  transfer->part = link->part;
  transfer->agreed_bytes = (uint64_t)link->part->part_count * link->part->element_bytes;
  transfer->announces = !link->agreed;
  transfer->shared = link->shared;
  transfer->zero_copy = link->zero_copy;
  transfer->out_offset = link->out_offset + offset;
  transfer->ll = work->proto == PROTO_LL;
  transfer->skipped = transfer->bytes == 0 && link->agreed &&
                      (work->algo == ALGO_RING || transfer->ll); /* whose slots are not shared */
  link->agreed = true;
  link->slice_index += 1;
  return true;
}

/* As transfer_open(). */
PRIM_FN void transfer_begin(struct transfer_iter *iter, const struct work *work, uint32_t index, bool sends,
                            uint64_t saved_step, uint32_t step_bytes) {
  algo_begin(&iter->steps, work);
  transfer_open(&iter->link, work, index, sends, saved_step, step_bytes);
}

/* False after the last one; iter->link.next_step is then the first step of the connection's next work. */
PRIM_FN bool transfer_next(struct transfer_iter *iter, struct transfer *transfer) {
  struct step step = {0}; /* no algorithm sets all fields */
  while (!transfer_take(&iter->link, transfer)) {
    if (!algo_next(&iter->steps, iter->link.work, &step)) return false;
    if (transfer_uses(&iter->link, &step)) transfer_add(&iter->link, &step);
  }
  return true;
}

#endif
