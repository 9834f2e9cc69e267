/* custom.h: schedules that a user wrote: read from a file, kept as flat lists of steps (schedule/list.h), and
 * turned into plans like those of any other algorithm. The library reads tutti's text (custom_text.c, drawn
 * in examples/schedules/README.md); the command reads other formats and prints them as that (sim/schedules).
 * Reading proves that a file is well formed: numbers in bounds, places within their buffers, peers among the
 * ranks. Whether the steps fit together, end, and compute what they should is the checker's question; a plan
 * of any schedule that was read can be run and does not leave its buffers. */
#ifndef TUTTI_CORE_CUSTOM_H
#define TUTTI_CORE_CUSTOM_H

#include "base/err.h"
#include "schedule/list.h"
#include "schedule/plan.h"

/* Bounds of a file; beyond them reading fails with a sentence. */
#define CUSTOM_FILE_BYTES_MAX (64u << 20)
#define CUSTOM_RANKS_MAX 4096
#define CUSTOM_CHUNKS_MAX 65536 /* of a rank's count, and of a rank's scratch */
#define CUSTOM_STEPS_MAX 65536  /* of one block; a rank's blocks together hold no more than 16 times that */

/* What a user may call a schedule for. */
enum custom_place { CUSTOM_OUT_OF_PLACE = 1, CUSTOM_IN_PLACE = 2 };

/* One thread block of one rank: a list that runs on a channel, side by side with the rank's others. */
struct custom_block {
  uint32_t rank, channel_index;
  uint8_t recv_count, send_count;
  uint32_t recv_peer[STEP_LINKS_MAX], send_peer[STEP_LINKS_MAX]; /* ranks; a step's links are bits of these */
  struct list list;
};

struct custom_schedule {
  char name[64];
  uint8_t func;   /* enum work_func: BROADCAST..ALL_REDUCE, ALL_TO_ALL */
  uint8_t protos; /* set of enum work_proto that it may run with */
  uint8_t places; /* set of enum custom_place */
  bool staged;    /* its steps say where a result is final: averages and scaled sums can use it */
  bool waits;     /* lists wait for each other */
  bool even;      /* a call's count must be a multiple of chunk_count */
  uint32_t rank_count, channel_count, root;
  uint32_t chunk_count;        /* a rank's count is cut into so many */
  uint32_t scratch_count;      /* chunks of scratch a rank */
  size_t min_bytes, max_bytes; /* of a call, as `tutti bench` counts them; 0 and SIZE_MAX: any */
  uint32_t block_count;
  struct custom_block
      *blocks;           /* by rank, in the order of the file: a block's place on its rank is its number */
  uint32_t *first_block; /* by rank; one entry more than there are ranks */
  struct list_step *steps;
};

void custom_free(struct custom_schedule *schedule); /* NULL is allowed */

/* The collective that it carries: an enum work_func. */
uint8_t custom_func(const struct custom_schedule *schedule);

/* A schedule in the process's keeping: the file is read once for all that share it at a time.
 * ncclInvalidUsage with file, line and what was expected when it is malformed or beyond a bound,
 * ncclSystemError when it cannot be opened or memory is out; *schedule is set on success alone. */
ncclResult_t custom_share(const char *path, const struct custom_schedule **schedule);
void custom_release(const struct custom_schedule *schedule); /* NULL is allowed */

/* NULL when the schedule can carry this call; else the rule that forbids it, a sentence without capital and
 * end. Read of the work: function, protocol, operator, ranks, root, count, element_bytes and WORK_IN_PLACE.
 */
const char *custom_forbid(const struct custom_schedule *schedule, const struct work *work);
/* Most links that one side of a block has. */
uint32_t custom_links_most(const struct custom_schedule *schedule);

/* Makes *work that of block number `index` of its rank; false behind the last. It comes with what no block
 * decides: function, protocol, type, ranks, count, and as chunk_count what the protocol allows. */
bool custom_work(const struct custom_schedule *schedule, uint32_t index, struct work *work);
/* Bytes of scratch that one operation of `count` elements takes: whole pages. */
size_t custom_scratch_bytes(const struct custom_schedule *schedule, size_t count, uint32_t element_bytes);
/* Lists wait for each other, or keep chunks in scratch: a plan with them has scratch_bytes. */
bool custom_needs_scratch(const struct custom_schedule *schedule);

#endif
