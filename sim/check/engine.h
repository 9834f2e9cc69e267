/* engine.h: the network that one channel's works form: blocks with lanes, connections with slots. Lanes run
 * from a worklist; a lane that cannot continue is put aside until the end of the connection that it waits for
 * moves. Since each lane waits for one thing at a time and each end of a connection has one user, the order
 * of lanes does not change what they do. Private to sim/check. */
#ifndef TUTTI_SIM_CHECK_ENGINE_H
#define TUTTI_SIM_CHECK_ENGINE_H

#include "check/check.h"
#include "check/expr.h"
#include "check/memory.h"
#include "schedule/transfer.h"

/* A slice in transit, or the record of one whose data went directly to the receiver's output. */
struct message {
  uint64_t step, count; /* first FIFO step; elements in units */
  uint64_t slot;        /* address at which its slot begins */
  uint64_t address;     /* where it was stored in the receiver's output, when `direct`; of the sender's input,
                           when `shown` */
  uint64_t place;       /* units from the slot's begin, where several share it */
  uint64_t flag;        /* LL and LL128: of its lines */
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

struct conn_words;

/* The counters, which are in `words`, obey freed <= read <= announced <= written <= freed + slots. Each end
 * is checked against what its waits have guaranteed, not against what the other end happens to have done. */
struct conn {
  uint32_t sender, receiver, index, channel; /* ranks; conn_index */
  uint32_t send_lane, recv_lane;             /* who uses the ends now, or LANE_NONE */
  uint32_t send_link, recv_link;             /* the ends' links in these lanes */
  uint32_t waiting_sender, waiting_receiver; /* lanes put aside, or LANE_NONE */
  struct conn_words *words;                  /* what both ends poll */
  uint64_t send_step, recv_step;             /* the next step of each end */
  uint64_t written, read;                    /* the step after the last one that was written, read */
  uint64_t head_seen, tail_seen;             /* what the ends' waits guarantee of freed and filled slots */
  bool offer_made, source_made;              /* an address that the other end has not taken */
  uint64_t shown_step;     /* the step after the last one whose data the receiver may read in the input */
  uint64_t reads_seen;     /* steps that the receiver has read, by what it has sent to the sender */
  uint32_t put, got;       /* places of the next message in the ring, to write and to read */
  uint32_t held, capacity; /* messages in it; most */
  struct message *messages;
  struct message *open; /* the last message in the slot that is being written, if steps share it; or NULL */
  bool half_read;       /* the slot that is being read is to be read again */
};

enum check_phase { PHASE_WAITS, PHASE_RUNS, PHASE_ENDED };
enum check_want { WANT_NOTHING, WANT_OFFER, WANT_DATA, WANT_SLOT, WANT_LIST, WANT_INPUT, WANT_READ };

/* What a list knows from its step `step` on: by lane of its rank, the steps that have ended. */
struct list_clock {
  uint64_t step, *ended;
};

struct lane;

/* A lane of the network; `run` is the library's, while it runs. */
struct check_lane {
  struct lane *run;
  const struct work *work,
      *part; /* part: of a fused work, the part that the step belongs to; else the work */
  const struct plan_buffers *buffers; /* of a fused work, of its first part */
  uint32_t rank, batch, op;           /* batch: turn on its block; op: place in the input's ops */
  uint32_t block;                     /* its place in the engine's blocks */
  uint8_t phase, want;                /* enum check_phase, check_want */
  bool queued, reduces, unstaged, repeats;
  uint32_t want_conn; /* of WANT_LIST: the lane */
  uint32_t scale;     /* units of memory per element */
  uint64_t step_number;
  uint64_t slot_capacity;          /* elements that the slots of a slice hold, whatever the protocol */
  uint32_t *conns;                 /* recv_count, then send_count */
  struct transfer_link *transfers; /* the same: what proxies would pass */
  uint64_t scratch;                /* address of the operation's */
  struct list_clock *clocks;
  uint32_t clock_count, clock_capacity;
  uint32_t first_waiter, next_waiter; /* lane + 1: lists put aside until this one ends a step */
  /* the list that the current step waits for, lane + 1; what this lane has seen of its progress; whether the
     last poll ended there */
  uint32_t seen_list;
  uint64_t list_seen;
  bool stuck_on_list;
};

/* One rank on one channel. */
struct block {
  uint32_t first_lane, lane_count; /* all its batches' */
  uint32_t batch, running;         /* current turn; lanes of it that have not ended */
};

struct check_engine {
  const struct check_input *input;
  struct check_report *report;
  struct check_report proxy; /* the first transfer that differs: reported if everything else is right */
  struct arena arena;
  struct expr_table exprs;
  struct memory memory;
  struct value own, arrived, sum, scratch;
  uint32_t slots, channel, channel_count; /* channels of the network: from `channel` on */
  uint64_t clock_bytes;                   /* of lists' clocks so far */
  uint32_t store_count;                   /* stores to users' memory so far */
  uint32_t lane_base;       /* number of this channel's first lane: earlier channels' lanes are below */
  struct message *spares;   /* messages that shared a slot, to be used again */
  struct lane *lane_spares; /* the memory of lanes that have ended, each with the next one's address */
  uint64_t *progress;       /* of each rank's lists, by number: list_count of each rank */
  uint32_t list_count;
  void *words; /* of all connections (executor.h) */
  struct check_lane *lanes;
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
bool engine_fail(struct check_engine *engine, enum check_rule rule, const struct check_lane *lane,
                 uint32_t peer, const char *format, ...) __attribute__((format(printf, 5, 6)));
bool engine_out_of_memory(struct check_engine *engine);
static inline uint32_t engine_lane_id(const struct check_engine *engine, const struct check_lane *lane) {
  return engine->lane_base + (uint32_t)(lane - engine->lanes);
}
static inline bool engine_fault(const struct check_engine *engine, enum check_fault fault, uint32_t rank) {
  const struct check_input *input = engine->input;
  return input->fault == (uint32_t)fault && (input->fault_rank == UINT32_MAX || input->fault_rank == rank);
}

/* The network's channels on all ranks, from making their connections to the end of the last lane. */
bool network_run(struct check_engine *engine);
void network_push(struct check_engine *engine, uint32_t lane_index);

/* Runs the lane until it waits or has ended, with the library's executor (executor.c). */
bool executor_advance(struct check_engine *engine, struct check_lane *lane);
/* Memory for what the ends of `count` connections poll; false when memory is out. */
bool executor_take_words(struct check_engine *engine, uint32_t count);
/* Gives a new connection its part of it. */
void executor_bind_conn(struct check_engine *engine, struct conn *conn);

/* Lists (lists.c). The list of the lane's operation and rank with this number; NULL when there is none. */
bool lane_has_list(const struct check_lane *lane);
struct check_lane *list_named(struct check_engine *engine, const struct check_lane *lane, uint32_t number);
/* Steps of `other` that the lane knows to have ended. */
uint64_t list_known(const struct check_engine *engine, const struct check_lane *lane,
                    const struct check_lane *other);
/* The lane has waited until `count` steps of the other list had ended. */
bool list_learn(struct check_engine *engine, struct check_lane *lane, const struct check_lane *other,
                uint64_t count);
/* Puts the lane aside until the other list reports. */
void list_wait(struct check_engine *engine, struct check_lane *lane, struct check_lane *other);
/* After a step, and at the end: wakes lists that wait for this one. */
void list_report(struct check_engine *engine, struct check_lane *lane);
/* Step `step` of `before`, a lane of the same rank, has ended when the current step of `lane` begins. */
bool list_knows(const struct check_engine *engine, const struct check_lane *lane,
                const struct check_lane *before, uint64_t step);

/* Reads into `value`, which is emptied first; `from`: the lane whose store number `stamp` is expected there,
 * or LANE_NONE. */
bool access_read(struct check_engine *engine, struct check_lane *lane, uint64_t address, uint64_t units,
                 uint32_t from, uint32_t stamp, struct value *value);
/* The same in the memory of `rank`. */
bool access_read_of(struct check_engine *engine, struct check_lane *lane, uint32_t rank, uint64_t address,
                    uint64_t units, uint32_t from, uint32_t stamp, struct value *value);
/* Stores into the memory of `rank`, the lane's own or a receiver. */
bool access_write(struct check_engine *engine, struct check_lane *lane, uint32_t rank, uint64_t address,
                  const struct value *value);

/* Compares the final contents of memory with the required ones. */
bool verify_results(struct check_engine *engine);

#endif
