/* tutti.h: functions beyond NCCL's API: the backend in use, the emulator's seed and sizes, traces, memory
 * use, the cost model, launchers. Plain C, needs nccl.h only. Every function may be called from any thread
 * unless its comment says otherwise. */
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

/* Version and build as one line for bug reports: "tutti 0.1.0 (NCCL API 2.30.7; backends: emu)". Static,
 * never NULL. */
const char *tutti_version(void);

/* Name of the backend of this process, "emu" or "cuda". Selects the backend if none is selected yet. Static.
 */
const char *tutti_backend(void);

/* Settings of the emulator. A member that is 0 keeps its default or the value from the environment
 * (TUTTI_EMU, TUTTI_SEED, TUTTI_EVENTS). */
typedef struct {
  size_t size;            /* sizeof(tutti_emu_config_t), set by the caller */
  uint64_t seed;          /* of the guarded scheduler; 0 = TUTTI_SEED, else 1 */
  int threads;            /* 1 = free threads, 0 = guarded (one event at a time, deterministic) */
  uint32_t device_count;  /* number of emulated GPUs, default 8 */
  uint32_t slots;         /* FIFO slots per connection, 1..8, default 8; 1 makes every ring deadlock */
  uint32_t chunk_bytes;   /* maximum bytes of a chunk; default: the capacity of the slots */
  uint32_t channel_count; /* channels per collective, 1..64, default 2 (1 with free threads) */
  uint32_t flag_bits;     /* bits of an LL line's flag, 5..32, default 32 */
  uint32_t depth;         /* slices in flight per lane (one work on one channel), 1..4, default 1 */
  uint32_t lag_percent;   /* percentage of moves that copy data at their end instead of at once, default 0 */
  const char
      *trace_path; /* file for the trace of every event (guarded only); NULL: what TUTTI_EVENTS names */
} tutti_emu_config_t;

/* Replaces the emulator's settings. Allowed only while the process has no communicator and uses no emulated
 * stream, else ncclInvalidUsage; so is an unknown or wrong TUTTI_* variable. ncclInvalidArgument: a member is
 * out of range; nothing changes. The emulator restarts: the same settings and the same calls produce the same
 * events and the same trace. Closes an open trace first. */
ncclResult_t tutti_emu_configure(const tutti_emu_config_t *config);

/* Counters of the guarded emulator since it started. */
typedef struct {
  size_t size;     /* sizeof(tutti_emu_stats_t), set by the caller */
  uint64_t events; /* events of all actors */
  uint64_t steps;  /* schedule steps that lanes have completed */
  uint64_t
      trace_hash; /* hash of all events in order; equal runs have equal hashes, with or without a trace */
} tutti_emu_stats_t;
ncclResult_t tutti_emu_stats(tutti_emu_stats_t *stats);

/* At most so many threads of this process will call the library or the CUDA runtime from now on; 0, the
 * default: any thread may. The guarded emulator reports a deadlock at once when that many threads wait, and
 * else only after TUTTI_STALL_SECONDS, because another thread might make the missing call. For programs with
 * threads of other libraries, such as OpenMP. */
ncclResult_t tutti_emu_callers(uint32_t count);

/* 1: of several threads whose waits end in the guarded emulator, the one that has waited longest goes on
 * alone until it waits again, and then the next. So what threads do between their waits has an order as well,
 * equal in every run with the same seed, if they begin in an order. 0, the default: they go on at once. */
ncclResult_t tutti_emu_take_turns(int on);

/* Waits until *word is not `value` any more, as cudaStreamSynchronize waits for a stream: a rank whose thread
 * waits for another one in any other way keeps the guarded emulator's world from moving. Whoever changes the
 * word calls tutti_emu_wake(). ncclInternalError: nothing is left that could move; the message says so.
 * ncclInvalidArgument: `word` is NULL. */
ncclResult_t tutti_emu_wait(const uint32_t *word, uint32_t value);
ncclResult_t tutti_emu_wake(void);

/* As tutti_emu_wait, for a program that polls: also returns, with ncclSuccess, after a number of events, as
 * cudaStreamQuery does for a stream that is busy. */
ncclResult_t tutti_emu_poll(const uint32_t *word, uint32_t value);

/* Flushes and closes the trace file. Later events are not traced. */
ncclResult_t tutti_emu_trace_close(void);

/* *bytes: memory that the library holds for this rank of the communicator: connections, plans, tables. */
ncclResult_t tutti_comm_memory(ncclComm_t comm, uint64_t *bytes);

/* *time_us: predicted microseconds of one call of a collective, by the cost model that also selects algorithm
 * and protocol. `collective` is the name in nccl-tests ("all_reduce", "sendrecv", ...), `bytes` the value of
 * its size column. ncclInvalidArgument: unknown name. */
ncclResult_t tutti_model_time(ncclComm_t comm, const char *collective, size_t bytes, double *time_us);

/* Describes what tutti_model_time() assumes, as one line of text: number of ranks and nodes, source of the
 * figures, maximum number of channels. The text is truncated to `text_bytes`, including the terminating zero;
 * 200 bytes are enough. ncclInvalidArgument: `text` is NULL or `text_bytes` is 0. */
ncclResult_t tutti_model_text(ncclComm_t comm, char *text, size_t text_bytes);

/* One option to execute a collective. */
typedef struct {
  char algo[16], proto[8]; /* as NCCL_ALGO and NCCL_PROTO spell them: "Ring", "LL128" */
  int channel_count;       /* maximum number of channels */
  double time_us;          /* predicted by the cost model, microseconds */
} tutti_tuning_option_t;

#define TUTTI_TUNING_OPTIONS_MAX 32
typedef struct {
  size_t size; /* sizeof(tutti_tuning_options_t), set by the caller */
  int rank_count, node_count;
  int option_count; /* entries used in options[]; 0 with one rank */
  tutti_tuning_option_t options[TUTTI_TUNING_OPTIONS_MAX];
} tutti_tuning_options_t;

/* Lists all options that the communicator's settings, machine and backend allow for a call of all_reduce,
 * all_gather, reduce_scatter, broadcast or reduce: the selected option first, the others by predicted time.
 * `bytes` is the size column of nccl-tests. Equal on all ranks. ncclInvalidArgument: another name.
 * ncclInvalidUsage: NCCL_ALGO and NCCL_PROTO leave no option. */
ncclResult_t tutti_comm_tuning_options(ncclComm_t comm, const char *collective, size_t bytes,
                                       tutti_tuning_options_t *options);

/* The rank of this process, as its launcher states it in the environment. */
typedef struct {
  size_t size;          /* sizeof(tutti_launch_t), set by the caller */
  int rank, rank_count; /* among all processes of the launch: rank is 0 to rank_count - 1 */
  int local_rank;       /* among the processes of this host: an argument for cudaSetDevice */
  int local_count;      /* processes on this host; 0 = the launcher does not say */
  const char
      *launcher; /* "tutti", "torchrun", "openmpi", "hydra", "slurm", "pmi", "pmix" or "none"; static */
} tutti_launch_t;

/* Reads the variables of tutti launch (TUTTI_RANK, TUTTI_SIZE, TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE), torchrun
 * (RANK, WORLD_SIZE, LOCAL_RANK), Open MPI (OMPI_COMM_WORLD_*), MPICH's Hydra (PMI_RANK, PMI_SIZE,
 * MPI_LOCALRANKID), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID), PMI and PMIx. The first launcher in
 * this order is used; a warning names others that disagree. A process without a launcher is rank 0 of 1.
 * ncclInvalidUsage: a value is not a number or contradicts another one; the message names the variables. */
ncclResult_t tutti_launch_read(tutti_launch_t *launch);

/* Creates a unique id for ncclCommInitRank that is the same on all ranks of the launch, without MPI or
 * another way to distribute it. All ranks call it equally often: the k-th calls return the same id, and each
 * call of a process returns a different one. Rank 0 of the launch must be rank 0 of the communicator. The
 * ranks meet at the first address that is known: NCCL_COMM_ID; TUTTI_RENDEZVOUS (host:port); MASTER_ADDR with
 * MASTER_PORT + 1000; if all ranks are on one host, a loopback port derived from the job's name; with Slurm,
 * a port derived in the same way on the step's first host; with PMIx (Open MPI), an address that rank 0
 * publishes through PMIx. ncclInvalidUsage: no address is known; the message asks for TUTTI_RENDEZVOUS. A
 * launch of one process needs no address. */
ncclResult_t tutti_launch_id(const tutti_launch_t *launch, ncclUniqueId *id);

#ifdef __cplusplus
}
#endif
#endif
