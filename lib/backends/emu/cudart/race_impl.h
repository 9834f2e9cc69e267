/* race_impl.h: clocks, joins, operations and accessed memory of the check for races (race.h); shared by its
 * files. Everything locked. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_RACE_IMPL_H
#define TUTTI_BACKENDS_EMU_CUDART_RACE_IMPL_H

#include "backends/emu/cudart/race.h"
#include "backends/emu/cudart/stream_impl.h"

/* ---- clocks (race_clock.c) ---- */

struct race_entry {
  uint64_t epoch;
  uint32_t stream;
};

/* Shared by its references; whoever changes one that others share makes a copy before. */
struct race_clock {
  uint32_t reference_count;
  uint32_t entry_count, entry_capacity, join_count, join_capacity;
  struct race_entry *entries; /* sorted by stream */
  struct race_join **joins;   /* references; one a family */
};

/* What the operations of one NCCL call on several ranks have before them. It is known when all ranks that
 * bring something have made the call. */
struct race_join {
  uint32_t reference_count;
  uint32_t missing;        /* ranks that have not brought theirs; 0: complete */
  uint32_t absent;         /* ranks that have not made the call; 0: nobody looks for it any more */
  uint64_t number;         /* of its call in its list */
  uint64_t family, serial; /* of one family the newest contains the others */
  struct race_clock clock;
  uint64_t visited;
  struct race_join *next;
};

struct race_join *race_join_new(uint64_t family, uint64_t number);
void race_join_drop(struct race_join *join);
/* A rank brings what is before the point. */
void race_join_bring(struct race_join *join, const struct race_point *point);

struct race_clock *race_clock_keep(struct race_clock *clock);
void race_clock_drop(struct race_clock *clock);
bool race_clock_is_open(const struct race_clock *clock); /* contains a join that is not complete */
void race_clock_add(struct race_clock **clock, const struct race_point *point);
void race_clock_add_clock(struct race_clock **clock, const struct race_clock *from);
void race_clock_add_join(struct race_clock **clock, struct race_join *join);
/* Drops it if the host has waited for all that it contains. */
void race_clock_prune(struct race_clock **clock);
/* The host's. */
void race_host_add(const struct race_clock *clock);
void race_host_set(uint32_t stream, uint64_t epoch);

enum race_order { RACE_ORDERED, RACE_UNORDERED, RACE_UNKNOWN };
/* Is the operation before the point? UNKNOWN: ranks have not made their calls yet. */
enum race_order race_is_before(uint32_t stream, uint64_t epoch, const struct race_point *point);

/* By stream: up to which epoch the host knows that it has ended. */
extern uint64_t *race_passed;
extern uint64_t *race_epochs; /* of its newest operation */
uint32_t race_stream_number(void);
static inline bool race_has_passed(uint32_t stream, uint64_t epoch) { return race_passed[stream] >= epoch; }

/* Memory is out: the check ends, because it would see races where it cannot note an order. */
void race_give_up(void);
bool race_is_on(void);
void race_reset(void);         /* as if it had neither given up nor read the setting */
void race_forget_passed(void); /* all that streams have done has passed */

void race_found(void); /* one was reported */

/* ---- operations ---- */

struct race_op {
  uint32_t reference_count;
  uint32_t stream, stream_index, device_index;
  bool legacy, captured;
  uint64_t read_epoch, write_epoch; /* reads end at the first, writes at the second */
  uint64_t launch;                  /* equal for the operations of one launch, which do not race here */
  struct race_clock *clock;         /* behind it, if that has open joins; else NULL */
  struct race_call call;
  struct race_rank *rank; /* a reference; NULL: no NCCL call */
  uint64_t sequence;
};
struct race_op *race_op_new(const struct race_call *call); /* NULL: memory is out */
void race_op_drop(struct race_op *op);

/* Rows of bytes. */
struct race_extent {
  const void *base;
  size_t pitch, width, height;
};

/* The extents that work accesses, other than a kernel; 0, 1 or 2. */
#define RACE_ACCESSES_MOST 3 /* of an operation or a call */

struct race_work_access {
  struct race_extent extent;
  bool writes;
};
uint32_t race_work_accesses(const struct emu_work *work,
                            struct race_work_access accesses[RACE_ACCESSES_MOST]);
/* The same of an NCCL call. */
uint32_t race_use_accesses(const struct race_use *use, struct race_work_access accesses[RACE_ACCESSES_MOST]);

/* ---- accessed memory (race_memory.c) ---- */

/* Two accesses of which one writes. */
struct race_pair {
  struct race_op *first, *second;
  bool first_writes, second_writes;
  struct race_point at; /* where the second one is */
  struct emu_allocation memory;
  size_t begin, end;
};

/* Notes an access and reports races with earlier ones; false if there is one. `at` is the clock before it. */
bool race_access(struct race_op *op, const struct race_extent *extent, bool writes,
                 const struct race_point *at);
/* Something uses the allocation that the host has not waited for; `op` frees it. */
bool race_memory_free(const struct emu_allocation *memory, struct race_op *op, const struct race_point *at);
void race_memory_forget(const void *base);
void race_memory_forget_all(void);

/* ---- pairs (race_pair.c) ---- */

/* False if the pair races, which is then reported; one whose order is not known yet is looked at again. */
bool race_pair_check(const struct race_pair *pair);
void race_pairs_look(void); /* a join is complete */
void race_pairs_drop(void);
/* A call of a graph that is launched uses memory that is no more. */
void race_report_gone(const struct race_op *op, bool writes);
/* Calls of one group race. */
void race_report_group(const struct race_pair *pair);
/* Nodes of a graph race. */
void race_report_nodes(const struct race_pair *pair);

/* ---- groups (race_group.c) ---- */

/* False, after a report, if calls of one group use memory that one of them writes. ops: of each use. */
bool race_group_check(const struct race_use *uses, uint32_t use_count, struct race_op *const *ops);

/* ---- ranks (race_comm.c) ---- */

struct race_rank {
  uint32_t reference_count;
  uint32_t rank;
  char name[64];
  struct race_group *group; /* NULL when closed */
  void (*fail)(uint64_t comm_id);
  struct race_point last; /* the end of its newest launch: launches of a rank run one after another */
  uint64_t numbers[2];    /* collectives launched, by order */
};
void race_rank_fail(const struct race_rank *rank); /* ends its communicator */
const char *race_rank_text(const struct race_rank *rank, char *out, size_t out_bytes);
/* One-sided calls of the rank: puts for one peer take place one after another, on whatever streams. */
void race_rank_follow(struct race_rank *rank, const struct race_use *uses, uint32_t use_count,
                      struct race_clock **clock);
/* A launch of the rank: what the others get from it, then what it gets from them. `entry` is before its
 * reads, `read` behind them. */
void race_rank_bring(struct race_rank *rank, const struct race_use *uses, uint32_t use_count,
                     const struct race_point *entry, const struct race_point *read);
void race_rank_take(struct race_rank *rank, const struct race_use *uses, uint32_t use_count,
                    struct race_clock **clock);

#endif
