/* launch.h: which rank this process is, as whoever started it says in the environment: a launcher of MPI
 * programs, Slurm, torchrun, `tutti launch`, or nobody. Promises numbers that fit together, or a sentence
 * that names the variables that do not. Knows nothing of communicators; reads the environment anew at each
 * call. */
#ifndef TUTTI_BASE_LAUNCH_H
#define TUTTI_BASE_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define LAUNCH_RANKS_MOST (1 << 20)

struct launch {
  int rank, rank_count;        /* rank < rank_count */
  int local_rank, local_count; /* among the processes of this host; local_count 0: nobody says */
  const char *launcher;        /* "tutti", "torchrun", "openmpi", "hydra", "slurm", "pmi", "pmix", "none" */
};

/* Of several that speak, the first in this order, which is usually the innermost: tutti (TUTTI_RANK,
 * TUTTI_SIZE), torchrun (RANK, WORLD_SIZE and LOCAL_RANK or MASTER_ADDR), Open MPI (OMPI_COMM_WORLD_*),
 * MPICH's Hydra (PMI_RANK and MPI_LOCALRANKID), Slurm's srun (SLURM_PROCID; in a batch script's own shell it
 * counts for nothing), PMI (PMI_RANK), PMIx (PMIX_RANK). Others that disagree are named in a warning. Nobody:
 * rank 0 of 1. A number that is none, or that does not fit the others: ncclInvalidUsage. */
ncclResult_t launch_read(struct launch *launch);

/* Where the ranks of this launch can meet, as "host:port", without a word between them: the host of rank 0
 * and a port that nobody else is likely to have. The same text on all ranks. */
enum launch_place {
  LAUNCH_AT_ADDRESS, /* `address` has it */
  LAUNCH_BY_PMIX,    /* rank 0's host is not known, but PMIx can carry what rank 0 says (pmix.h) */
  LAUNCH_UNKNOWN     /* nobody says where rank 0 is */
};
#define LAUNCH_ADDRESS_BYTES 288
struct launch_rendezvous {
  enum launch_place place;
  char address[LAUNCH_ADDRESS_BYTES];
  const char *source; /* the variables that it is from, for sentences */
  uint64_t job;       /* tells this launch from others that used the same address */
};
/* In this order: NCCL_COMM_ID; TUTTI_RENDEZVOUS; MASTER_ADDR and MASTER_PORT + 1000 (at MASTER_PORT listens
 * torchrun's own store); all ranks on this host: the loopback address; Slurm: the step's first host; PMIx.
 * Ports of the last ones are 20000 to 31999, by the job's name. A variable that makes no sense:
 * ncclInvalidUsage. */
ncclResult_t launch_rendezvous(const struct launch *launch, struct launch_rendezvous *out);

/* The first name of a list in Slurm's form, "node[07-12,20],other": "node07". False: it is none, or does not
 * fit. */
bool launch_first_host(const char *list, char *out, size_t out_bytes);
/* Element `index` of "4(x2),3", which is 4, 4, 3; 0 when there is none. */
int launch_tasks_of_node(const char *text, uint32_t index);

#endif
