/* custom.h: custom schedules: read from a file, kept as flat lists of steps (schedule/list.h), and turned
 * into plans like those of any other algorithm. The library reads tutti's text format (custom_text.c,
 * described in examples/schedules/README.md); the command converts other formats to it (sim/schedules).
 * Reading checks that a file is well formed: numbers in bounds, chunks within their buffers, peers among the
 * ranks. The checker proves whether the steps match, terminate and compute the right result; a plan of any
 * schedule that was read can run and stays within its buffers. */
#ifndef TUTTI_CORE_CUSTOM_H
#define TUTTI_CORE_CUSTOM_H

#include "base/err.h"
#include "schedule/list.h"
#include "schedule/plan.h"

/* Limits of a file; reading fails with a message beyond them. */
#define CUSTOM_FILE_BYTES_MAX (64u << 20)
#define CUSTOM_RANKS_MAX 4096
#define CUSTOM_CHUNKS_MAX 65536 /* of a rank's count, and of a rank's scratch */
#define CUSTOM_STEPS_MAX 65536  /* of one block; all blocks of a rank together: 16 times that */

/* Buffer placements that a schedule supports. */
enum custom_place { CUSTOM_OUT_OF_PLACE = 1, CUSTOM_IN_PLACE = 2 };

/* One thread block of one rank: a list of steps that runs on a channel, concurrently with the rank's others.
 */
struct custom_block {
  uint32_t rank, channel_index;
  uint8_t recv_count, send_count;
  uint32_t recv_peer[LIST_LINKS_MAX], send_peer[LIST_LINKS_MAX]; /* ranks; a step's links are bits of these */
  struct list list;
};

struct custom_schedule {
  char name[64];
  uint8_t func;   /* enum work_func: BROADCAST..ALL_REDUCE, ALL_TO_ALL */
  uint8_t protos; /* set of enum work_proto that it may run with */
  uint8_t places; /* set of enum custom_place */
  bool staged;    /* the steps mark where a result is final, so averages and scaled sums can use it */
  bool waits;     /* lists wait for each other */
  bool even;      /* a call's count must be a multiple of chunk_count */
  uint32_t rank_count, channel_count, root;
  uint32_t chunk_count;        /* chunks that a rank's count is divided into */
  uint32_t scratch_count;      /* chunks of scratch memory per rank */
  size_t min_bytes, max_bytes; /* of a call, as `tutti bench` counts them; 0 and SIZE_MAX: no limit */
  uint32_t block_count;
  struct custom_block
      *blocks; /* by rank, then in the order of the file; a block's index on its rank is its number */
  uint32_t *first_block; /* by rank; has rank_count + 1 entries */
  struct list_step *steps;
};

void custom_free(struct custom_schedule *schedule); /* NULL is allowed */

/* Hash of everything that a plan depends on; never 0. */
uint64_t custom_digest(const struct custom_schedule *schedule);

/* The collective of the schedule: an enum work_func. */
uint8_t custom_func(const struct custom_schedule *schedule);

/* Shares a schedule in this process: the file is read once for all concurrent users. ncclInvalidUsage, with
 * file, line and what was expected, if the file is malformed or exceeds a limit; ncclSystemError if it cannot
 * be opened or memory is out. *schedule is set only on success. */
ncclResult_t custom_share(const char *path, const struct custom_schedule **schedule);
void custom_release(const struct custom_schedule *schedule); /* NULL is allowed */

/* NULL if the schedule can execute this call; else the rule that forbids it, as a sentence without capital
 * letter and full stop. Reads these members of the work: function, protocol, operator, ranks, root, count,
 * element_bytes and WORK_IN_PLACE. */
const char *custom_forbid(const struct custom_schedule *schedule, const struct work *work);
/* Maximum number of links on one side of a block. */
uint32_t custom_links_most(const struct custom_schedule *schedule);

/* Completes *work for block `index` of its rank; false if the rank has no such block. The caller sets what
 * does not depend on the block: function, protocol, type, ranks, count, and the protocol's limit as
 * chunk_count. */
bool custom_work(const struct custom_schedule *schedule, uint32_t index, struct work *work);
/* Bytes of scratch memory for one operation of `count` elements, in whole pages. */
size_t custom_scratch_bytes(const struct custom_schedule *schedule, size_t count, uint32_t element_bytes);
/* True if lists wait for each other or keep chunks in scratch memory: the plan then has scratch_bytes. */
bool custom_needs_scratch(const struct custom_schedule *schedule);

#endif
