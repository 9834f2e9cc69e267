/* region.h: the program's memory that a rank has exported to ranks of other processes, by address, and their
 * replies. Plain data, without CUDA, so that it can be tested on any machine. It detects memory that was
 * freed and whose addresses were reused, by the driver's id of the allocation. It does not know how memory is
 * mapped. */
#ifndef TUTTI_BACKENDS_CUDA_REGION_H
#define TUTTI_BACKENDS_CUDA_REGION_H

#include "backends/cuda/ipc_handle.h"

#define REGIONS_MOST 64 /* per rank, besides those of graphs; evicted least recently used first */

/* A peer's reply; any larger value is the address at which it has mapped the region. */
#define REGION_UNASKED 0u
#define REGION_ASKED 1u
#define REGION_REFUSED 2u

struct region {
  uint64_t base, bytes;
  uint64_t id; /* the driver's id of the allocation: never reused */
  uint32_t use_count;
  bool mappable, offered;
  bool lasts;             /* a graph contains the peers' addresses: kept until it is freed */
  bool pushed_out;        /* evicted: its memory is still the program's, and launched kernels may offer it */
  struct ipc_piece piece; /* what is exported */
  struct region *next;
  uint64_t answers[]; /* replies by rank */
};

/* The regions of a rank; all zero except rank_count is empty. */
struct regions {
  uint32_t rank_count, count;
  struct region *first; /* most recently used */
  struct region *gone;  /* freed by the program, or evicted: some peers still have them mapped */
};

/* Finds the region that contains an address and moves it to the front; NULL: none. */
struct region *region_find(struct regions *regions, uint64_t address);
/* Adds a region at the front, for an allocation that has none; NULL if memory is out. May evict another
 * region. */
struct region *region_add(struct regions *regions, uint64_t base, uint64_t bytes, uint64_t id);
/* Retires a region whose memory is no longer the program's. */
void region_retire(struct regions *regions, struct region *region);
/* Finds a region by its piece's number; NULL: none. */
struct region *region_of_piece(struct regions *regions, uint64_t number);
/* Returns one peer that must unmap a piece; each is returned once. `idle`: no launched kernel uses evicted
 * regions. */
bool region_next_gone(struct regions *regions, bool idle, uint32_t *peer, struct ipc_piece *piece);
void regions_free(struct regions *regions);

#endif
