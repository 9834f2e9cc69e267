/* ranks.h: the ranks of one communicator without the API: opened on the emulator's table, connected for every
 * protocol, driven plan by plan. A test's call is a struct call: operation, protocol, type, count and the
 * memory of all ranks. Inputs are a function of (rank, index, number of the call), small enough for every
 * type to hold their sums, and each buffer lies between guard bytes. Supports the ring's collectives and a
 * send to the next rank. */
#ifndef TUTTI_TESTS_RANKS_H
#define TUTTI_TESTS_RANKS_H

#include "backends/backend.h"
#include "core/topology/graph.h"
#include "tutti.h"

#define RANKS_MAX 8
#define RANKS_TEXT_BYTES 160

struct ranks {
  const struct backend *ops;
  uint32_t count;
  struct plan_limits limits;
  struct graph graph;
  uint32_t algo_mask; /* set of enum work_algo; 0: only the ring, whose connections already exist */
  bool reads_slots;   /* plan_settings.reads_slots */
  struct device_comm *comms[RANKS_MAX];
  uint64_t sequence;                  /* calls prepared so far */
  const uint8_t (*remote)[RANKS_MAX]; /* by rank: which peers are behind a network; NULL: none */
  /* Replaces connecting and launching of a rank's plan, for tests that need it. */
  ncclResult_t (*launch)(struct ranks *ranks, uint32_t rank, struct plan *plan);
};

/* One operation on all ranks. func: BROADCAST..ALL_REDUCE, or SEND_RECV: to the rank 1 + `skips` further on,
 * and from the rank as far before. */
struct call {
  uint8_t func, proto, dtype;
  bool in_place; /* not for SEND_RECV */
  uint32_t root, skips;
  size_t count; /* elements, as in the API call */
  uint64_t sequence;
  uint8_t *memory[RANKS_MAX], *in[RANKS_MAX], *out[RANKS_MAX];
};

/* tutti_emu_configure, which refuses while a stream is in use; in threads mode a stream's thread may still be
 * finishing its last operation after the kernels have ended, so a refused call is repeated for a second. */
ncclResult_t ranks_configure(const tutti_emu_config_t *config);

/* `count` ranks, 2..RANKS_MAX, owned by the calling thread, with the emulator's current limits. */
ncclResult_t ranks_open(struct ranks *ranks, uint32_t count);
/* The same without connections, and with these limits. */
ncclResult_t ranks_open_bare(struct ranks *ranks, uint32_t count, const struct plan_limits *limits);
void ranks_close(struct ranks *ranks);
/* Waits until no launched kernel of any rank is unfinished; returns the first error of a rank. */
ncclResult_t ranks_wait(struct ranks *ranks);
/* The same for ranks [first, end), which the calling thread drives. */
ncclResult_t ranks_wait_for(struct ranks *ranks, uint32_t first, uint32_t end);
ncclResult_t ranks_error(const struct ranks *ranks);

/* Gives the call its number and memory, and fills the inputs. False when memory is out. */
bool call_prepare(struct ranks *ranks, struct call *call);
/* Launches one rank's part of it; `count` is usually call->count. */
ncclResult_t call_launch(struct ranks *ranks, uint32_t rank, const struct call *call, size_t count);
ncclResult_t call_launch_all(struct ranks *ranks, const struct call *call);
/* True if every output is exact and every guard byte is unchanged; otherwise describes the error in `text`.
 */
bool call_check(const struct ranks *ranks, const struct call *call, char text[RANKS_TEXT_BYTES]);
/* Adds the outputs of all ranks to a hash, for comparing runs. */
uint64_t call_hash(const struct ranks *ranks, const struct call *call, uint64_t hash);
void call_free(struct call *call);

#endif
