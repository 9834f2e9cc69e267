/* planning.h: the job whose plans a verb shows without running it: which library on which devices, with this
 * environment. Its settings go through the library's own functions (settings_read, settings_settle), so that
 * the plans are those of a communicator of that job. */
#ifndef TUTTI_SIM_PLANNING_H
#define TUTTI_SIM_PLANNING_H

#include "core/settings/settings.h"
#include "verb.h"

enum planning_as {
  PLANNING_CUDA,    /* this library's kernels on GPUs */
  PLANNING_EMU,     /* its emulator, guarded */
  PLANNING_THREADS, /* its emulator on free threads */
  PLANNING_NCCL     /* NCCL: all algorithms, and every protocol between hosts too */
};

struct planning_ask {
  const char *verb; /* for messages */
  const char *as;   /* --as; NULL: `usual` */
  enum planning_as usual;
  const char *algo, *proto, *tune_file; /* instead of the environment's NCCL_ALGO, ...; or NULL */
  uint32_t channels;                    /* instead of the backend's number; 0: that */
  bool no_net;                          /* nodes of the emulator share memory */
};

struct planning {
  enum planning_as as;
  bool no_net;
  struct settings settings; /* as each rank reads them */
};

/* Reads the settings; a message says what is wrong with them. Close it in any case. */
enum exit_code planning_open(const struct planning_ask *ask, struct planning *job);
void planning_close(struct planning *job);

/* True if ranks of different nodes use a network in this job. */
bool planning_is_networked(const struct planning *job, uint32_t node_count);

/* The machine's graph as the job's communicator makes it: `gpus` ranks on each of `nodes` nodes; as
 * machine_graph(). */
ncclResult_t planning_graph(const struct planning *job, const char *machine, const uint32_t *gpus,
                            uint32_t nodes, struct graph *graph);

/* A request of rank 0 without operations, as the job's communicator on this graph makes it. */
void planning_request(const struct planning *job, const struct graph *graph, struct plan_request *request);

/* Lets the request use the algorithms of a set that its backend does not carry, by the emulator's executors,
 * if the set leaves it no other. */
void planning_borrow(struct plan_request *request, uint32_t algos);

/* Whose plans they are, for users: without full stop. */
void planning_text(const struct planning *job, uint32_t node_count, char *out, size_t out_bytes);
/* What a time of the algorithm means if this library has no GPU kernel for it; NULL if it has. */
const char *planning_time_note(uint8_t algo);

/* The help of --as, as options of all verbs say it. */
#define PLANNING_AS_HELP                                                                                 \
  "whose plans: cuda (this library on GPUs), emu or threads (its emulator, guarded or on threads, with " \
  "TUTTI_EMU), or nccl (NCCL, with LL128 between hosts)"

#endif
