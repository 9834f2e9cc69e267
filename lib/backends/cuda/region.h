/* region.h: memory of the program that a rank has shown to ranks of other processes, by address, and what
 * they said of it. Plain data, without CUDA, so that any machine can test it. Promises that memory which was
 * freed, and whose addresses others have now, is told from what it was, by the number that the driver gave
 * it. It does not know how memory is mapped. */
#ifndef TUTTI_BACKENDS_CUDA_REGION_H
#define TUTTI_BACKENDS_CUDA_REGION_H

#include "backends/cuda/ipc_handle.h"

#define REGIONS_MOST 64 /* of a rank, but for those of graphs; the one used least recently goes first */

/* What a peer has answered; anything larger is where it has mapped the region. */
#define REGION_UNASKED 0u
#define REGION_ASKED 1u
#define REGION_REFUSED 2u

struct region {
  uint64_t base, bytes;
  uint64_t id; /* the driver's number of the allocation: never used again */
  uint32_t use_count;
  bool mappable, offered;
  bool lasts;             /* a graph has the peers' addresses: it goes when it is freed, and not before */
  bool pushed_out;        /* its memory is still the program's, and kernels on their way may offer it */
  struct ipc_piece piece; /* where offered */
  struct region *next;
  uint64_t answers[]; /* by rank */
};

/* A rank's; all zero but rank_count is empty. */
struct regions {
  uint32_t rank_count, count;
  struct region *first; /* used last */
  struct region *gone;  /* freed by the program, or pushed out: some peers still have them mapped */
};

/* The region that an address lies in, which is the first of the list then; NULL: none. */
struct region *region_find(struct regions *regions, uint64_t address);
/* A fresh one at the list's begin, of an allocation that none is of; NULL when memory is out. May push
 * another out. */
struct region *region_add(struct regions *regions, uint64_t base, uint64_t bytes, uint64_t id);
/* Its memory is no longer the program's. */
void region_retire(struct regions *regions, struct region *region);
/* By the piece's number; NULL: none. */
struct region *region_of_piece(struct regions *regions, uint64_t number);
/* One peer that is to unmap a piece: each is said once. `idle`: no kernel is on its way that knew those which
 * were pushed out. */
bool region_next_gone(struct regions *regions, bool idle, uint32_t *peer, struct ipc_piece *piece);
void regions_free(struct regions *regions);

#endif
