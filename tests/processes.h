/* processes.h: ranks of one communicator in several processes, without the API: a test forks its processes
 * before it uses the library; each opens its ranks on the emulator's table, exchanges handles with the others
 * over sockets that were made before, and drives them plan by plan. Inputs are a function of (rank, index,
 * number of the call), small enough for every type to hold their sums, and each buffer lies between guard
 * bytes. Functions that can fail return a message, NULL on success. */
#ifndef TUTTI_TESTS_PROCESSES_H
#define TUTTI_TESTS_PROCESSES_H

#include <sys/types.h>

#include "backends/backend.h"
#include "core/topology/graph.h"
#include "tutti.h"

#define PROCESSES_MAX 9
#define PROCESS_RANKS_MAX 9
#define PROCESS_TEXT_BYTES 256

struct process {
  uint32_t index, count, ranks_each; /* rank r belongs to process r / ranks_each */
  int to[PROCESSES_MAX];             /* sockets to the others; -1 for itself */
  const struct backend *ops;
  struct plan_limits limits;
  struct graph graph;
  struct device_comm *comms[PROCESS_RANKS_MAX]; /* by rank; only its own */
  uint64_t sequence;
  uint32_t algo_mask; /* 0: only the ring */
  bool heap;          /* memory of calls cannot be mapped by other processes */
  char text[PROCESS_TEXT_BYTES];
};

/* func: BROADCAST..ALL_REDUCE; SEND_RECV: to the next rank and from the one before; ALL_TO_ALL. */
struct process_call {
  uint8_t func, proto, dtype;
  uint32_t root;
  size_t count;
  uint64_t sequence;
  uint8_t *memory[PROCESS_RANKS_MAX], *in[PROCESS_RANKS_MAX], *out[PROCESS_RANKS_MAX];
};

/* Forks `count` processes that run body() and exit; waits for them, at most `seconds`. Returns how many did
 * not exit with NULL from body(); their stderr says why. `pids` (may be NULL) is filled before body() runs,
 * and between() is called meanwhile. */
typedef const char *process_body(struct process *process, void *argument);
uint32_t processes_run(uint32_t count, uint32_t ranks_each, uint32_t seconds, process_body *body,
                       void *argument, void (*between)(const pid_t *pids, void *argument));

/* For use in a process. configure: TUTTI_EMU's text and a seed. */
const char *process_configure(struct process *process, const char *emu, uint64_t seed);
const char *process_open(struct process *process);
void process_close(struct process *process);
/* A barrier of all processes. */
bool process_meet(struct process *process);
uint32_t process_rank_count(const struct process *process);

bool process_prepare(struct process *process, struct process_call *call);
/* Plans, connects (all processes must call) and launches the call on each of its own ranks. */
const char *process_launch(struct process *process, struct process_call *call);
/* Waits until nothing runs: the first error of a rank, ncclInProgress at the deadline (0: none). */
ncclResult_t process_wait(struct process *process, uint64_t deadline_ms);
const char *process_check(struct process *process, const struct process_call *call);
void process_free(struct process *process, struct process_call *call);
/* All of the above for one call. */
const char *process_do(struct process *process, struct process_call *call);

/* Open descriptors, and the lines of /proc/self/maps that name a block. */
uint32_t process_descriptors(void);
uint32_t process_mappings(void);

#endif
