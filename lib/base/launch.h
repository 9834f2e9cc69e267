/* launch.h: the rank of this process as its launcher states it in the environment: an MPI launcher, Slurm,
 * torchrun, `tutti launch`, or none. Returns consistent numbers, or a message that names the inconsistent
 * variables. Knows nothing of communicators; reads the environment at each call. */
#ifndef TUTTI_BASE_LAUNCH_H
#define TUTTI_BASE_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define LAUNCH_RANKS_MOST (1 << 20)

struct launch {
  int rank, rank_count;        /* rank < rank_count */
  int local_rank, local_count; /* among the processes of this host; local_count 0: unknown */
  const char *launcher;        /* "tutti", "torchrun", "openmpi", "hydra", "slurm", "pmi", "pmix", "none" */
};

/* If several launchers have set variables, uses the first in this order, usually the innermost: tutti
 * (TUTTI_RANK, TUTTI_SIZE), torchrun (RANK, WORLD_SIZE and LOCAL_RANK or MASTER_ADDR), Open MPI
 * (OMPI_COMM_WORLD_*), MPICH's Hydra (PMI_RANK and MPI_LOCALRANKID), Slurm's srun (SLURM_PROCID; ignored in
 * the shell of a batch script), PMI (PMI_RANK), PMIx (PMIX_RANK). A warning names others that disagree.
 * Without a launcher: rank 0 of 1. ncclInvalidUsage: a value is not a number or does not match the others. */
ncclResult_t launch_read(struct launch *launch);

/* True if a launcher states that all ranks, two at least, are on this host, and no variable names an address
 * elsewhere where ranks meet. Logs nothing. */
bool launch_is_local(void);

/* The launch's name, the same in all of its processes and in no other launch, as the launcher states it:
 * "torchrun.0.29500.node1.none". "" without a launcher that names its jobs. */
#define LAUNCH_JOB_BYTES 64
void launch_job(char out[LAUNCH_JOB_BYTES]);

/* An address, "host:port", at which the ranks of this launch can meet without prior communication: the host
 * of rank 0 and a port that is probably free. The same text on all ranks. */
enum launch_place {
  LAUNCH_AT_ADDRESS, /* in `address` */
  LAUNCH_BY_PMIX,    /* rank 0's host is unknown, but PMIx can distribute an address of rank 0 (pmix.h) */
  LAUNCH_UNKNOWN     /* rank 0's host is unknown */
};
#define LAUNCH_ADDRESS_BYTES 288
struct launch_rendezvous {
  enum launch_place place;
  char address[LAUNCH_ADDRESS_BYTES];
  const char *source; /* the variables that it is from, for messages */
  uint64_t job;       /* distinguishes this launch from others at the same address */
};
/* Uses the first of: NCCL_COMM_ID; TUTTI_RENDEZVOUS; MASTER_ADDR with MASTER_PORT + 1000 (torchrun's store
 * listens at MASTER_PORT); if all ranks are on this host, the loopback address; PMIx, if libpmix is
 * installed; Slurm: the step's first host. For loopback and Slurm the port is 20000 to 31999, derived from
 * the job's name. ncclInvalidUsage: a variable is malformed. */
ncclResult_t launch_rendezvous(const struct launch *launch, struct launch_rendezvous *out);

/* The first name of a Slurm host list, "node[07-12,20],other": "node07". False if the list is malformed or
 * the name does not fit. */
bool launch_first_host(const char *list, char *out, size_t out_bytes);
/* Element `index` of a Slurm task list, "4(x2),3" = 4, 4, 3; 0 if there is none. */
int launch_tasks_of_node(const char *text, uint32_t index);

#endif
