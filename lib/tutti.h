/* tutti.h: what NCCL's names lack: which backend runs, the emulator's seed and sizes, traces, memory. Plain
 * C, no dependency beyond nccl.h; every function is safe to call from any thread unless it says otherwise. */
#ifndef TUTTI_H
#define TUTTI_H

#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0

/* Version and build in one line, for bug reports: "tutti 0.1.0 (NCCL API 2.28.9; backends: emu)". Static,
 * never NULL. */
const char *tutti_version(void);

/* Name of the backend this process uses: "emu" or "cuda"; chooses it when nothing has yet. Static. */
const char *tutti_backend(void);

/* Settings of the emulator. Zero in a member keeps the default or what the environment says (TUTTI_EMU,
 * TUTTI_SEED, TUTTI_EVENTS). */
typedef struct {
  size_t size;           /* sizeof(tutti_emu_config_t), set by the caller */
  uint64_t seed;         /* of the guarded scheduler; 0 = TUTTI_SEED or 1 */
  int threads;           /* 1 = free threads, 0 = guarded (one event at a time, deterministic) */
  uint32_t device_count; /* emulated GPUs, default 8 */
  uint32_t slots; /* FIFO slots of a connection, 1..8, default 8; 1 stops every ring: a deadlock to look at */
  uint32_t chunk_bytes;   /* largest chunk of data, bytes; default what the slots hold */
  uint32_t channel_count; /* channels of a collective, 1..64, default 2; free threads 1 */
  uint32_t flag_bits;     /* bits of a line's flag, 5..32, default 32 */
  uint32_t depth;         /* slices in flight a lane, 1..4, default 1 */
  uint32_t lag_percent; /* how often data is moved at the end of a move instead of at its begin, default 0 */
  const char *trace_path; /* file for the trace of every event (guarded), NULL = none */
} tutti_emu_config_t;

/* Replaces the emulator's settings. Legal only while the process has no communicator and no emulated stream
 * in use, else ncclInvalidUsage; a member out of range gives ncclInvalidArgument and changes nothing. The
 * world starts anew: same settings and same calls give the same events and the same trace. Closes an open
 * trace first. */
ncclResult_t tutti_emu_configure(const tutti_emu_config_t *config);

/* Counters of the guarded world since it started. */
typedef struct {
  size_t size;         /* sizeof(tutti_emu_stats_t), set by the caller */
  uint64_t events;     /* events of all actors */
  uint64_t steps;      /* schedule steps that lanes have finished */
  uint64_t trace_hash; /* hash of every event in order: equal for equal runs, also when no trace is written */
} tutti_emu_stats_t;
ncclResult_t tutti_emu_stats(tutti_emu_stats_t *stats);

/* Flushes and closes the trace file; later events are not traced. */
ncclResult_t tutti_emu_trace_close(void);

/* Bytes that the library holds for this rank of the communicator: connections, plans, tables. */
ncclResult_t tutti_comm_memory(ncclComm_t comm, uint64_t *bytes);

/* Time in microseconds that the cost model predicts for one call of a collective, by the model that chooses
 * algorithm and protocol. `collective` is nccl-tests' name ("all_reduce", "sendrecv", ...), `bytes` its size
 * column. Fails with ncclInvalidArgument for an unknown name. */
ncclResult_t tutti_model_time(ncclComm_t comm, const char *collective, size_t bytes, double *time_us);

/* What tutti_model_time() predicts for, as a text of one line: how many ranks and nodes, where the figures
 * come from, the most channels. Cut to `text_bytes`, its zero among them; 200 hold it. ncclInvalidArgument
 * where `text` is NULL or `text_bytes` 0. */
ncclResult_t tutti_model_text(ncclComm_t comm, char *text, size_t text_bytes);

/* One option to carry a collective. */
typedef struct {
  char algo[16], proto[8]; /* as NCCL_ALGO and NCCL_PROTO spell them: "Ring", "LL128" */
  int channel_count;       /* over how many it would be spread at most */
  double time_us;          /* predicted by the cost model, microseconds */
} tutti_tuning_option_t;

#define TUTTI_TUNING_OPTIONS_MAX 32
typedef struct {
  size_t size; /* sizeof(tutti_tuning_options_t), set by the caller */
  int rank_count, node_count;
  int option_count; /* of those below; 0 with one rank */
  tutti_tuning_option_t options[TUTTI_TUNING_OPTIONS_MAX];
} tutti_tuning_options_t;

/* All options that the communicator's settings, machine and backend allow for a call of all_reduce,
 * all_gather, reduce_scatter, broadcast or reduce: the chosen one first, the others by predicted time.
 * `bytes` is nccl-tests' size column. Equal on all ranks. ncclInvalidArgument for another name,
 * ncclInvalidUsage where NCCL_ALGO and NCCL_PROTO leave no option. */
ncclResult_t tutti_comm_tuning_options(ncclComm_t comm, const char *collective, size_t bytes,
                                       tutti_tuning_options_t *options);

/* Which rank this process is, as its launcher says in the environment. */
typedef struct {
  size_t size;          /* sizeof(tutti_launch_t), set by the caller */
  int rank, rank_count; /* of all processes of the launch: rank is 0 to rank_count - 1 */
  int local_rank;       /* among those of this host: a number for cudaSetDevice */
  int local_count;      /* processes on this host; 0 = the launcher does not say */
  const char
      *launcher; /* "tutti", "torchrun", "openmpi", "hydra", "slurm", "pmi", "pmix" or "none"; static */
} tutti_launch_t;

/* Reads tutti launch's variables (TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE), torchrun's
 * (RANK, WORLD_SIZE, LOCAL_RANK), Open MPI's (OMPI_COMM_WORLD_*), those of MPICH's Hydra (PMI_RANK, PMI_SIZE,
 * MPI_LOCALRANKID), Slurm's (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID), PMI's and PMIx's. The first in this
 * order counts; others that say something else are named in a warning. A process that nothing launched is
 * rank 0 of 1. Numbers that are none or that contradict each other: ncclInvalidUsage, naming the variables.
 */
ncclResult_t tutti_launch_read(tutti_launch_t *launch);

/* A unique id for ncclCommInitRank that is the same on all ranks of the launch, without MPI or any other
 * means to pass it on. All ranks call it equally often: the k-th calls agree, and no two calls of a process
 * do. Rank 0 of the launch must be in the communicator, as its rank 0. Where they meet: at NCCL_COMM_ID, at
 * TUTTI_RENDEZVOUS (host:port), at MASTER_ADDR and MASTER_PORT + 1000; else, when all ranks are on one host,
 * at a loopback port that the job's name yields; else with Slurm on the step's first host, at such a port,
 * and with PMIx (Open MPI) wherever rank 0 says, which PMIx passes on. Where none of these is known:
 * ncclInvalidUsage, asking for TUTTI_RENDEZVOUS. One process alone needs none. */
ncclResult_t tutti_launch_id(const tutti_launch_t *launch, ncclUniqueId *id);

#ifdef __cplusplus
}
#endif
#endif
