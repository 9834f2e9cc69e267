/* parties.h: ranks of one communicator in several processes, without the API: a test forks its parties before
 * it touches the library; each opens its ranks on the emulator's table, exchanges cards with the others over
 * sockets that were made before, and drives them plan by plan. Inputs are a function of (rank, index, number
 * of the call), small enough for every type to hold their sums, and each buffer stands between guard bytes.
 * Functions that can fail return a sentence, NULL when all is well. */
#ifndef TUTTI_TESTS_PARTIES_H
#define TUTTI_TESTS_PARTIES_H

#include <sys/types.h>

#include "backends/backend.h"
#include "core/topology/graph.h"
#include "tutti.h"

#define PARTIES_MAX 9
#define PARTY_RANKS_MAX 9
#define PARTY_TEXT_BYTES 256

struct party {
  uint32_t index, count, ranks_each; /* rank r belongs to party r / ranks_each */
  int to[PARTIES_MAX];               /* sockets to the others; -1 for itself */
  const struct device_ops *ops;
  struct plan_limits limits;
  struct graph graph;
  struct device_comm *comms[PARTY_RANKS_MAX]; /* by rank; its own alone */
  uint64_t sequence;
  uint32_t algo_mask; /* 0: the ring alone */
  bool heap;          /* memory of calls lies where no other process can map it */
  char text[PARTY_TEXT_BYTES];
};

/* func: BROADCAST..ALL_REDUCE; SEND_RECV: to the next rank and from the one before; ALL_TO_ALL. */
struct party_call {
  uint8_t func, proto, dtype;
  uint32_t root;
  size_t count;
  uint64_t sequence;
  uint8_t *memory[PARTY_RANKS_MAX], *in[PARTY_RANKS_MAX], *out[PARTY_RANKS_MAX];
};

/* Forks `count` parties that run body() and end; waits for them, at most `seconds`. Returns how many did not
 * end with NULL from body(), which their stderr says why. `pids` (may be NULL) is filled before body() runs
 * anywhere, and between() called meanwhile. */
typedef const char *party_body(struct party *party, void *argument);
uint32_t parties_run(uint32_t count, uint32_t ranks_each, uint32_t seconds, party_body *body, void *argument,
                     void (*between)(const pid_t *pids, void *argument));

/* In a party. configure: TUTTI_EMU's text and a seed. */
const char *party_configure(struct party *party, const char *emu, uint64_t seed);
const char *party_open(struct party *party);
void party_close(struct party *party);
/* Everybody has come here. */
bool party_meet(struct party *party);
uint32_t party_rank_count(const struct party *party);

bool party_prepare(struct party *party, struct party_call *call);
/* Plans, connects (all parties must call) and launches the call on every own rank. */
const char *party_launch(struct party *party, struct party_call *call);
/* Until nothing runs: the first error of a rank, ncclInProgress at the deadline (0: none). */
ncclResult_t party_wait(struct party *party, uint64_t deadline_ms);
const char *party_check(struct party *party, const struct party_call *call);
void party_free(struct party *party, struct party_call *call);
/* The whole of it. */
const char *party_do(struct party *party, struct party_call *call);

/* Open descriptors, and lines of /proc/self/maps that name a block. */
uint32_t party_descriptors(void);
uint32_t party_mappings(void);

#endif
