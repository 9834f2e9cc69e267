/* executor.h: what the files that bind protocol/prim.h share (executor.c, counters.c, slots.c, moves.c,
 * lines.c). They alone include lib/protocol.
 *
 * Addresses. A user's memory has the addresses that the plans have. The memory of the rank at the other end
 * of link k of a lane is seen at the same addresses plus window k (the lane adds it to an address that it
 * takes: PRIM_SHIFTS). Each connection has a range of addresses for the slots of each protocol. Nothing is
 * stored at any of them.
 *
 *   bit 63 | connection 62..37 | protocol 36..35 | byte of the slots       a slot
 *        0 | link + 1   62..57 | address                                   the other rank's memory
 *        0 | 0                 | address                                   the rank's own memory */
#ifndef TUTTI_SIM_CHECK_EXECUTOR_H
#define TUTTI_SIM_CHECK_EXECUTOR_H

#include "check/engine.h"
#include "protocol/run.h"

#define SEAM_SLOTS (UINT64_C(1) << 63)
enum { SEAM_CONN_SHIFT = 37, SEAM_PROTO_SHIFT = 35, SEAM_WINDOW_SHIFT = 57 };
#define SEAM_WINDOW(link) ((uint64_t)((link) + 1) << SEAM_WINDOW_SHIFT)
#define SEAM_ADDRESS_MASK ((UINT64_C(1) << SEAM_WINDOW_SHIFT) - 1)

/* What both ends of a connection poll. Aligned to its size, so that the connection is found by any word's
 * address. */
#define CONN_WORDS_BYTES 1024
struct conn_words {
  _Alignas(CONN_WORDS_BYTES) struct fifo_sender sender;
  struct fifo_receiver receiver;
  struct conn *conn;
};
static_assert(sizeof(struct conn_words) == CONN_WORDS_BYTES, "found by address");

static inline struct conn_words *words_of(const void *word) {
  return (struct conn_words *)((uintptr_t)word & ~(uintptr_t)(CONN_WORDS_BYTES - 1));
}

/* The context of the lane that runs. */
struct prim {
  struct check_engine *engine;
  struct check_lane *lane;
  struct lane *run;
  bool opens;              /* in lane_open() */
  bool revealed;           /* a load has returned more than the one before */
  bool list_may_show_more; /* than the progress that was returned: if the lane waits for that */
  uint8_t want; /* the last load that may have been too little: enum check_want, and of which connection */
  uint32_t want_conn;
  uint64_t offset;     /* of the slice or group, elements from the step's begin */
  link_set took, sent; /* links of the step whose message the move has read, written */
  bool loaded;         /* a group of lines has a value: engine->sum */
  bool clears;         /* lines are stored that have no data */
  uint32_t peer;       /* whose lines were loaded last */
};

/* The one that runs in this thread: loads are not given it. */
extern _Thread_local struct prim *prim_now;

static inline uint32_t seam_lane_index(const struct prim *prim) {
  return (uint32_t)(prim->lane - prim->engine->lanes);
}
static inline struct conn *seam_recv_conn(const struct prim *prim, uint32_t link) {
  return &prim->engine->conns[prim->lane->conns[link]];
}
static inline struct conn *seam_send_conn(const struct prim *prim, uint32_t link) {
  return &prim->engine->conns[prim->lane->conns[prim->lane->work->recv_count + link]];
}
static inline bool seam_fault(const struct prim *prim, enum check_fault fault) {
  return engine_fault(prim->engine, fault, prim->lane->rank);
}
static inline bool seam_failed(const struct prim *prim) { return prim->engine->report->rule != CHECK_NONE; }
static inline bool seam_is_simple(const struct prim *prim) { return prim->lane->work->proto == PROTO_SIMPLE; }
/* FIFO steps of a slice. */
static inline uint32_t seam_steps(const struct prim *prim) {
  return seam_is_simple(prim) ? prim->lane->work->slice_steps : 1;
}
static inline void seam_wake(struct check_engine *engine, uint32_t *waiting) {
  const uint32_t lane = *waiting;
  if (lane == LANE_NONE) return;
  *waiting = LANE_NONE;
  network_push(engine, lane);
}
/* Of `count` elements of the step on a link, those of the slice that is moved now. */
static inline uint64_t seam_slice_count(const struct prim *prim, uint64_t count) {
  const uint64_t rest = count > prim->offset ? count - prim->offset : 0;
  return seam_is_simple(prim) && rest > prim->run->slice_elements ? prim->run->slice_elements : rest;
}
/* Elements of the slice that a load may wait for. */
uint64_t seam_next_count(const struct prim *prim);

/* If the lane shows its input: its connection in the other direction than `conn`; else, or if it has none,
 * NULL. */
struct conn *seam_conn_back(const struct prim *prim, const struct conn *conn);

/* ---- slots.c: messages ---- */

/* Whether a message is the one that a receive link waits for, by its work and its step. */
bool slots_meet(struct prim *prim, uint32_t link, const struct message *message);
/* The same for an address that it waits for: of the receiver's output, or of the sender's input. */
bool slots_meet_address(struct prim *prim, const struct conn *conn, bool sends);
/* What arrives over a receive link at an address in a slot, in this rank's output, or in the sender's input.
 */
bool slots_read(struct prim *prim, uint32_t link, uint64_t address, uint64_t units, struct value *out);
bool slots_read_output(struct prim *prim, uint32_t link, uint64_t address, uint64_t units, struct value *out);
bool slots_read_shown(struct prim *prim, uint32_t link, uint64_t address, uint64_t units, struct value *out);
/* What the open slot of a send link holds at an address. */
bool slots_read_sent(struct prim *prim, uint32_t link, uint64_t address, uint64_t units, struct value *out);
/* Stores engine->sum in the slot of a send link, or directly in the receiver's output. */
bool slots_write(struct prim *prim, uint32_t link, uint64_t address, uint64_t flag, uint64_t units);
bool slots_write_output(struct prim *prim, uint32_t link, uint64_t address, uint64_t units);
/* After a move, before its post: what the step's links passed without it, and the slots that are complete. */
bool slots_settle(struct prim *prim);

/* ---- proxy.c ---- */

/* When the lane begins, after its links are open; false when memory is out. */
bool proxies_begin(struct prim *prim);
/* The schedule's next step. */
void proxies_step(struct prim *prim, const struct step *step);
/* The lane has written, or read, all that the slots of a link's next steps hold. */
void proxies_pass(struct prim *prim, uint32_t link, bool sends, const struct message *message);
/* When the lane has ended. */
void proxies_end(struct prim *prim);

/* ---- moves.c ---- */

/* A rank's own operand, after the operator's first stage if `first_stage`. */
bool move_read_own(struct prim *prim, uint64_t address, uint64_t units, bool first_stage, struct value *out);
/* engine->sum combined with the next operand, element by element; peer: where it comes from. */
bool move_combine(struct prim *prim, uint32_t peer, const struct value *with);
/* The operator's last stage on engine->sum. */
bool move_finish(struct prim *prim);
void value_swap(struct value *a, struct value *b);

#endif
