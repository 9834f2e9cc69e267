/* clang-format off */
/* fifo.h: a connection: one sender, one receiver, a ring of slots. The memory of each end, and an end's own
 * view of both. Whatever an end polls is in its own memory, written by the other end.
 *
 *   struct fifo_sender                                struct fifo_receiver, and a buffer a protocol
 *   +-------------+--------------------------------+  +-------------+----------------------------------+
 *   | head        | slots freed so far; receiver   |  | tail        | slots filled so far; sender      |
 *   |             | writes, sender polls           |  |             | writes, receiver polls           |
 *   | offer,      | the receiver's output and its  |  | source,     | the sender's input and its       |
 *   | offer_bytes | bytes, written by the receiver |  | source_bytes| bytes, written by the sender     |
 *   |             |                                |  | announced[] | bytes of the operation that      |
 *   |             |                                |  |             | begins in a slot, by the sender  |
 *   | send_step,  | where the next operation       |  | recv_step,  | where the next operation         |
 *   | send_line[] | begins: the sender's own       |  | recv_line[] | begins: the receiver's own       |
 *   +-------------+--------------------------------+  +--------+--------+-- ... --+----------------------+
 *   slots in use: tail - head <= slots                | slot 0 | slot 1 |         | step s: s mod slots
 *                                                     +--------+--------+-- ... --+
 *
 * A work with WORK_READS_SLOTS (schedule/work.h) uses a second set of Simple's slots, in the sender's memory.
 * The counters are the same, and stay where their readers poll them.
 *
 * A receiver that reads the sender's input in place (schedule/step.h) frees a slot without waiting until it
 * was filled, so head may be greater than tail. Offers and sources have the tag of the operation and are
 * stored before it moves anything; address 0 says that the slots are used. An operation that shows its input
 * ends when head has reached its last step, or when sums of the input have come back.
 *
 * With coherent caches (PRIM_COHERENT) cache misses dominate the cost of a message. There an operation that
 * begins with an LL step puts its announcement before the slot's lines, in the same cache line as the first,
 * and a sender keeps the last head it read from operation to operation.
 *
 * Counters count steps since the connection was made and never fall or restart. LL and LL128 use
 * head but not tail: the flags of their lines signal arrival. Each of them also counts its own steps, for
 * flags and slots; with a common count, the steps in which old flags must be rewritten could belong to
 * another protocol. */
/* clang-format on */
#ifndef TUTTI_PROTOCOL_FIFO_H
#define TUTTI_PROTOCOL_FIFO_H

#include "protocol/prim.h" /* first: it may define PRIM_FN */

#include "schedule/slice.h"

#define FIFO_SLOTS_MAX 8
#define FIFO_LINE_BYTES 128

/* A value with a tag that identifies its operation, so that reading it needs no order with any other access.
 * Laid out as an LL line, so that each half is valid by itself: {value, tag} twice, 32 bits each. */
struct tagged_word {
  uint64_t halves[2];
};

/* Keeps apart what different ends write. One thread that runs all lanes needs no padding (PRIM_COMPACT). */
#ifdef PRIM_COMPACT
#define FIFO_PAD(name, words)
#else
#define FIFO_PAD(name, words) uint64_t name[words];
#endif

/* Each row is on its own cache lines, because the two ends must not share one. */
struct fifo_sender {
  uint64_t head;
  FIFO_PAD(head_pad, 15)
  struct tagged_word offer, offer_bytes;
  FIFO_PAD(offer_pad, 12)
  uint64_t send_step;
  uint64_t send_line[2];
  uint64_t send_head; /* PRIM_COHERENT: last value read */
  uint64_t read_step; /* where the last operation ended whose slots the receiver reads here: until head is
                         there this memory is needed */
  FIFO_PAD(send_pad, 11)
};

struct fifo_receiver {
  uint64_t tail;
  FIFO_PAD(tail_pad, 1)
  struct tagged_word source, source_bytes;
  FIFO_PAD(source_pad, 10)
  struct tagged_word announced[FIFO_SLOTS_MAX];
  uint64_t recv_step;
  uint64_t recv_line[2];
  FIFO_PAD(recv_pad, 13)
};
#ifndef PRIM_COMPACT
static_assert(sizeof(struct fifo_sender) == 3 * FIFO_LINE_BYTES, "both ends map this layout");
static_assert(sizeof(struct fifo_receiver) == 3 * FIFO_LINE_BYTES, "both ends map this layout");
#endif

/* A loop over the links of a side that are in a set. A GPU's loop has a constant bound, so that the compiler
 * can keep the links in registers; on a CPU, skipping the missing links is cheaper, also all at once where
 * lanes have many links and use few of them at a time. */
#ifdef PRIM_COMPACT
#define FIFO_EACH_LINK(i, count, set) \
  for (uint32_t i = fifo_lowest_link(set); i < (count); i = fifo_lowest_link((set) & ~(link_set)1 << i))
PRIM_FN uint32_t fifo_lowest_link(link_set set) {
  return set != 0 ? (uint32_t)__builtin_ctzll(set) : STEP_LINKS_MAX;
}
#elif PRIM_ALGOS > 1
#define FIFO_EACH_LINK(i, count, set)    \
  for (uint32_t i = 0; i < (count); i++) \
    if ((((set) >> i) & 1) != 0)
#else
#define FIFO_EACH_LINK(i, count, set)       \
  for (uint32_t i = 0; i < PRIM_LINKS; i++) \
    if (i < (count) && (((set) >> i) & 1) != 0)
#endif
#define FIFO_ALL_LINKS (~(link_set)0)

/* One end of a connection while a lane uses it. `step` runs ahead of `posted` by the slices in flight. */
struct link {
  struct fifo_sender *sender;
  struct fifo_receiver *receiver;
  uint8_t *buffer; /* the work's slots (work_slots()) */
  uint64_t step;   /* first step of the next slice */
  uint64_t posted; /* steps posted to the other end */
  uint64_t cached; /* last value seen of the other end's counter */
  uint8_t *direct; /* sender: the receiver's output if it can be stored to; receiver: the sender's input if it
                      can be read; else 0 */
#ifdef PRIM_SHIFTS
  uint64_t direct_shift; /* to be added to the address that the other end offers or shows */
#endif
#ifdef PRIM_OFFER_SHIFTS
  uint64_t
      offer_shift; /* to be added to the address that this end offers or shows, for the other's process */
#endif
  uint32_t slot_index; /* step mod slots */
  uint32_t slots, step_bytes;
  uint32_t peer; /* rank at the other end */
  bool agreed;   /* the operation's size was announced (sender) or compared (receiver) */
#if PRIM_ALGOS > 0
  bool shows; /* sender of a work with WORK_SHOWS_INPUT: the receiver can read its input */
#endif
  uint64_t line;      /* LL and LL128: steps of this protocol on the connection so far; slot is line mod
                         slots */
  uint32_t line_slot; /* line mod slots */
};

/* step mod slots, in 32-bit arithmetic. */
PRIM_FN uint32_t link_slot_of(const struct link *link, uint64_t step) {
  const uint32_t slots = link->slots, low = (uint32_t)step, high = (uint32_t)(step >> 32);
  if ((slots & (slots - 1)) == 0) return low & (slots - 1);
  return (high % slots * (UINT32_MAX % slots + 1) + low % slots) % slots;
}

/* Binds an end for one operation. */
PRIM_FN void link_open(struct link *link, uint64_t saved_step, uint32_t chunk_steps) {
  link->step = slice_first_step(saved_step, chunk_steps);
  link->posted = link->step;
  link->cached = 0;
  link->direct = 0;
  link->agreed = false;
  link->slot_index = link_slot_of(link, link->step);
}

PRIM_FN void link_advance(struct link *link, uint32_t steps) {
  link->step += steps;
  link->slot_index += steps;
  if (link->slot_index >= link->slots) link->slot_index -= link->slots;
}

PRIM_FN uint8_t *link_slot(const struct link *link) {
  return link->buffer + (size_t)link->slot_index * link->step_bytes;
}

/* Bytes of the tagged word before an LL slot's lines, and bytes by which it makes the slot longer. */
#ifdef PRIM_COHERENT
#define FIFO_LL_TAGGED_BYTES ((uint32_t)sizeof(struct tagged_word))
#define FIFO_LL_MORE_BYTES 64u
#else
#define FIFO_LL_TAGGED_BYTES 0u
#define FIFO_LL_MORE_BYTES 0u
#endif

/* Distance between slots of a protocol, an enum work_proto. */
PRIM_FN size_t fifo_slot_bytes(uint8_t proto, uint32_t step_bytes) {
  return step_bytes + (proto == PROTO_LL ? FIFO_LL_MORE_BYTES : 0);
}

PRIM_FN struct tagged_word *link_announcement(const struct link *link, uint8_t proto) {
#ifdef PRIM_COHERENT
  if (proto == PROTO_LL)
    return (struct tagged_word *)(void *)(link->buffer +
                                          link->line_slot * fifo_slot_bytes(proto, link->step_bytes));
#else
  (void)proto;
#endif
  return &link->receiver->announced[link->slot_index];
}

/* An operation that frees slots one by one may post several at a time, because a sender can spare a few:
 * whether to post when the counter goes from `before` to `now`. */
#define FIFO_FREES_TOGETHER 4u
PRIM_FN bool fifo_frees_now(uint64_t before, uint64_t now) {
  return now / FIFO_FREES_TOGETHER != before / FIFO_FREES_TOGETHER;
}

/* The tag of the operation that begins at the link's step; differs from zeroed memory. */
PRIM_FN uint32_t link_tag(const struct link *link) { return (uint32_t)link->step + 1; }

/* The predicates of the protocol. They read the other end's counter only if its cached value is not
 * enough. */
PRIM_FN bool link_has_data(struct link *link, uint32_t steps) {
  if (link->cached >= link->step + steps) return true;
  link->cached = prim_load_tail(&link->receiver->tail);
  return link->cached >= link->step + steps;
}

/* Whether the last head that was read shows that many free slots. */
PRIM_FN bool link_knows_slots(const struct link *link, uint32_t steps) {
  return link->cached + link->slots >= link->step + steps;
}

PRIM_FN bool link_has_slots(struct link *link, uint32_t steps) {
  if (link_knows_slots(link, steps)) return true;
  link->cached = prim_load_head(&link->sender->head);
  return link_knows_slots(link, steps);
}

/* Whether the receiver has freed every slot before the link's step. */
PRIM_FN bool link_all_freed(struct link *link) {
  if (link->cached < link->step) link->cached = prim_load_head(&link->sender->head);
  return link->cached >= link->step;
}

#endif
