/* engine.h: the network that one channel's works form: blocks with lanes, connections with slots. Lanes run
 * from a worklist; a lane that cannot continue is put aside until the end of the connection that it waits for
 * moves. Since each lane waits for one thing at a time and each end of a connection has one user, the order
 * of lanes does not change what they do. Private to sim/check. */
#ifndef TUTTI_SIM_CHECK_ENGINE_H
#define TUTTI_SIM_CHECK_ENGINE_H

#include "check/check.h"
#include "check/expr.h"
#include "check/memory.h"
#include "schedule/algo.h"

/* A slice in transit, or the record of one whose data went directly to the receiver's output. */
struct message {
  uint64_t step, count;     /* first FIFO step; elements in units */
  uint64_t announced_bytes; /* of the operation on this channel */
  uint64_t address; /* where it was stored in the receiver's output, when `direct`; of the sender's input,
                       when `shown` */
  uint64_t place;   /* units from the slot's begin, where several share it */
  const struct work *work;           /* the sender's, or the part of it that the step is of */
  struct message *next;              /* the next one in the slot */
  uint32_t steps, lane;              /* FIFO steps; the sender's lane */
  uint32_t stamp;                    /* number of the store, when `direct` */
  bool final, direct, begins, taken; /* begins: says its part's size */
  bool shown;                        /* nothing was sent: the receiver reads the sender's input in place */
  uint64_t reads; /* steps of the connection in the other direction that the sender has read before */
  uint32_t piece_count, more_capacity;
  struct piece one, *more; /* pieces: in `one` when it is one, else in `more` */
};

/* The four counters obey freed <= read <= announced <= written <= freed + slots; each end checks its half
 * against what its waits have guaranteed, not against what the other end happens to have done. */
struct conn {
  uint32_t sender, receiver, index, channel; /* ranks; conn_index */
  uint32_t send_lane, recv_lane;             /* who uses the ends now, or LANE_NONE */
  uint32_t waiting_sender, waiting_receiver; /* lanes put aside, or LANE_NONE */
  uint64_t send_step, recv_step;             /* the next step of each end */
  uint64_t written, announced, read, freed;
  uint64_t free_seen,
      data_seen; /* what the sender's and the receiver's waits guarantee of freed and announced */
  uint32_t offers_made, offers_taken;
  uint64_t offer_address; /* the receiver's output; 0: not reachable */
  uint32_t sources_made, sources_taken;
  uint64_t source_address; /* the sender's input; 0: the receiver cannot read it */
  uint64_t shown_step;     /* the step after the last one whose data the receiver may read in the input */
  uint64_t reads_seen;     /* steps that the receiver has read, by what it has sent to the sender */
  uint32_t put, got;       /* places of the next message in the ring, to write and to read */
  uint32_t held, capacity; /* messages in it; most */
  struct message *messages;
  struct message *open; /* the last message in the slot that is being written, if steps share it; or NULL */
  bool half_read;       /* the slot that is being read is to be read again */
};

enum lane_phase { LANE_WAITS_BATCH, LANE_OPENS, LANE_RUNS, LANE_AWAITS_READERS, LANE_ENDED };
enum lane_want { WANT_NOTHING, WANT_OFFER, WANT_DATA, WANT_SLOT, WANT_LIST, WANT_INPUT, WANT_READ };

/* What a list knows from its step `step` on: by lane of its rank, the steps that have ended. */
struct list_clock {
  uint64_t step, *ended;
};

struct lane {
  const struct work *work,
      *part; /* part: of a fused work, the part that the step belongs to; else the work */
  const struct plan_buffers *buffers, *all_buffers; /* the part's; of the first part */
  struct algo_iter iter;
  struct step step;
  uint32_t rank, batch, op; /* batch: turn on its block; op: place in the input's ops */
  uint32_t block;           /* its place in the engine's blocks */
  uint8_t phase, want;      /* enum lane_phase, lane_want */
  bool queued, zero_copy_receive, reduces, unstaged, sliced, repeats;
  uint32_t opened; /* send links whose offers have been taken, then receive links whose inputs have */
  link_set shown_links, read_links; /* sets: send links whose receivers read the input in place; receive links
                                       whose senders' input this lane reads */
  uint32_t want_conn;               /* of WANT_LIST: the lane */
  uint32_t slice_index, slice_count, slice_steps;
  uint32_t scale; /* units of memory per element */
  uint64_t slice_elements, slice_capacity, step_number;
  uint64_t slot_capacity; /* elements that the slots of a slice hold, whatever the protocol */
  uint32_t *conns;        /* recv_count, then send_count */
  uint64_t *begin_steps;  /* the same: the step at which the work began on each */
  uint64_t scratch;       /* address of the operation's */
  struct list_clock *clocks;
  uint32_t clock_count, clock_capacity;
  uint32_t first_waiter, next_waiter; /* lane + 1: lists put aside until this one ends a step */
};

/* One rank on one channel. */
struct block {
  uint32_t first_lane, lane_count; /* all its batches' */
  uint32_t batch, running;         /* current turn; lanes of it that have not ended */
};

struct check_engine {
  const struct check_input *input;
  struct check_report *report;
  struct check_report proxy; /* the first proxy that counts wrong: reported if everything else is right */
  struct arena arena;
  struct expr_table exprs;
  struct memory memory;
  struct value own, arrived, sum, scratch;
  uint32_t slots, channel, channel_count; /* channels of the network: from `channel` on */
  uint64_t clock_bytes;                   /* of lists' clocks so far */
  uint32_t store_count;                   /* stores to users' memory so far */
  uint32_t lane_base;     /* number of this channel's first lane: earlier channels' lanes are below */
  struct message *spares; /* messages that shared a slot, to be used again */
  struct lane *lanes;
  uint32_t lane_count;
  struct block *blocks;
  struct conn *conns;
  uint32_t conn_count, conn_capacity;
  uint32_t *conn_slots; /* by hash: conn + 1 */
  uint32_t conn_mask;
  uint32_t *queue;
  uint32_t queue_head, queue_length;
  uint32_t *batch_cursor; /* by rank: its next batch, ordered by channel */
};

/* Records the first broken rule; returns false, for the caller to return. The lane may be NULL. */
bool engine_fail(struct check_engine *engine, enum check_rule rule, const struct lane *lane, uint32_t peer,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));
bool engine_out_of_memory(struct check_engine *engine);
static inline uint32_t engine_lane_id(const struct check_engine *engine, const struct lane *lane) {
  return engine->lane_base + (uint32_t)(lane - engine->lanes);
}
static inline bool engine_fault(const struct check_engine *engine, enum check_fault fault, uint32_t rank) {
  const struct check_input *input = engine->input;
  return input->fault == (uint32_t)fault && (input->fault_rank == UINT32_MAX || input->fault_rank == rank);
}

/* The network's channels on all ranks, from making their connections to the end of the last lane. */
bool network_run(struct check_engine *engine);
void network_push(struct check_engine *engine, uint32_t lane_index);

/* Elements of the current slice. */
uint64_t slice_elements(const struct lane *lane);
/* Whether the current step reads what arrives over receive link `link` in the sender's input. */
static inline bool lane_reads_input(const struct lane *lane, uint32_t link) {
  return (lane->step.flags & STEP_RECV_SHOWN) != 0 && (lane->read_links >> link & 1) != 0;
}
static inline bool lane_shows_input(const struct lane *lane) {
  return (lane->work->flags & WORK_SHOWS_INPUT) != 0;
}
/* If the lane shows its input: its connection in the other direction than `conn`; else, or if it has none,
 * NULL. */
struct conn *lane_conn_back(struct check_engine *engine, const struct lane *lane, const struct conn *conn);

/* Runs a lane as far as it can go; false when a rule is broken. */
bool lane_advance(struct check_engine *engine, struct lane *lane);

/* Lists (lists.c). *ready: what the current step waits for is done; else the lane is put aside. */
bool lane_has_list(const struct lane *lane);
bool list_follow(struct check_engine *engine, struct lane *lane, bool *ready);
/* After a step, and at the end: wakes lists that wait for this one. */
void list_report(struct check_engine *engine, struct lane *lane);
/* Step `step` of `before`, a lane of the same rank, has ended when the current step of `lane` begins. */
bool list_knows(const struct check_engine *engine, const struct lane *lane, const struct lane *before,
                uint64_t step);
/* One slice that the lane's waits allow. */
bool slice_move(struct check_engine *engine, struct lane *lane);

/* Reads into `value`, which is emptied first; `from`: the lane whose store number `stamp` is expected there,
 * or LANE_NONE. */
bool access_read(struct check_engine *engine, struct lane *lane, uint64_t address, uint64_t units,
                 uint32_t from, uint32_t stamp, struct value *value);
/* The same in the memory of `rank`. */
bool access_read_of(struct check_engine *engine, struct lane *lane, uint32_t rank, uint64_t address,
                    uint64_t units, uint32_t from, uint32_t stamp, struct value *value);
/* Stores into the memory of `rank`, the lane's own or a receiver. */
bool access_write(struct check_engine *engine, struct lane *lane, uint32_t rank, uint64_t address,
                  const struct value *value);

/* Compares the final contents of memory with the required ones. */
bool verify_results(struct check_engine *engine);

/* FIFO steps that a proxy counts for the work's connection on receive or send link `link`; false if no
 * formula is known. */
bool proxy_steps(const struct work *work, bool sends, uint32_t link, uint64_t *steps);

#endif
