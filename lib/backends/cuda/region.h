/* region.h: the program's memory that a rank has exported to ranks of other processes, by address, and their
 * replies. Plain data, without CUDA, so that it can be tested on any machine. It detects memory that was
 * freed and whose addresses were reused, by the driver's id of the allocation. It does not know how memory is
 * mapped. */
#ifndef TUTTI_BACKENDS_CUDA_REGION_H
#define TUTTI_BACKENDS_CUDA_REGION_H

#include "backends/cuda/ipc_handle.h"

/* Per rank, besides those of graphs; evicted least recently used first. */
#define REGIONS_MOST 64
#define REGION_PIECES_MOST 4096 /* of mapped ranges: programs map 2 MiB or 20 MiB at a time */

/* A peer's reply; any larger value is the address at which it has mapped the region. */
#define REGION_UNASKED 0u
#define REGION_ASKED 1u
#define REGION_REFUSED 2u

/* Keeps the peers' mappings of a region for as long as a graph contains their addresses. */
struct region_hold;

struct region {
  uint64_t base, bytes;
  uint64_t id; /* of the allocation, by the driver's numbers: never reused */
  uint32_t use_count;
  uint32_t idle_looks;        /* calls of regions_recall() since it was used */
  uint32_t later_uses, later; /* uses before it is asked for again, and how many they were last time */
  bool mappable, offered;
  bool is_piece;            /* of a range of addresses in which memory is mapped */
  struct ipc_range range;   /* ... if so */
  struct region *beside;    /* the one that begins where this one ends, if it was looked for */
  bool lasts;               /* never evicted: used by a graph, or registered */
  uint32_t windows;         /* that lie in it, of those which ranks of other processes put into */
  bool fenced, settled;     /* of a region that is gone: `fence` is set, and no kernel offers the region */
  uint64_t fence;           /* number of the rank's blocks that were launched when it was gone */
  struct region_hold *hold; /* NULL: no graph has used it */
  struct ipc_piece piece;   /* what is exported */
  struct region *next;
  uint64_t answers[]; /* replies by rank */
};

/* The regions of a rank; all zero except rank_count is empty. */
struct regions {
  uint32_t rank_count, count; /* count: without pieces */
  uint32_t piece_count;
  struct region *first; /* most recently used */
  struct region *gone;  /* freed by the program, or evicted: some peers still have them mapped */
  uint64_t generation;  /* number of regions that were retired so far ... */
  uint64_t bound;       /* ... when the rank's last launch was bound */
};

/* Finds the region that contains an address and moves it to the front; NULL: none. */
struct region *region_find(struct regions *regions, uint64_t address);
/* The region that begins where this one ends; NULL: none. */
struct region *region_beside(struct regions *regions, struct region *region);
/* The shift from a buffer's addresses to those at which a peer has mapped it; false: it has not mapped all of
 * it, or parts of it elsewhere. */
bool region_shift(struct regions *regions, uint64_t address, uint64_t bytes, uint32_t peer, uint64_t *shift);
/* True if what region_shift() says of the buffer stays true until a region is retired: the peer is not asked
 * for any part of it any more. */
bool region_decided(struct regions *regions, uint64_t address, uint64_t bytes, uint32_t peer);
/* The region at an address, if any, is used by a launch that is made like an earlier one. */
void region_used(struct regions *regions, uint64_t address);
/* Notes a peer's reply: an address, DEVICE_REGION_LATER or 0. */
void region_answer(struct region *region, uint32_t peer, uint64_t address);
/* Adds a region at the front, for an allocation that has none; NULL if memory is out. May evict another
 * region. */
struct region *region_add(struct regions *regions, uint64_t base, uint64_t bytes, uint64_t id, bool is_piece);
/* Retires a region whose memory is no longer the program's. */
void region_retire(struct regions *regions, struct region *region);
/* Called repeatedly while memory is short: regions that were not used for REGION_IDLE_LOOKS calls are
 * retired, so that no peer keeps their memory when the program frees it, but are noted anew: the peers are
 * asked again when they are used. Those of graphs and windows are kept. */
#define REGION_IDLE_LOOKS 16u
void regions_recall(struct regions *regions);
/* A window is registered, or is no more: with the last one its regions are retired, and noted anew. */
void regions_hold(struct regions *regions, uint64_t address, uint64_t bytes, bool holds);
/* Finds a region by its piece's number, also one that is gone; NULL: none. */
struct region *region_of_piece(struct regions *regions, uint64_t number);
/* Called repeatedly while regions are gone. `launched`: number of blocks that were launched so far, unless a
 * launch is in progress (`launching`); `ended`: how many of them have ended. */
void regions_settle(struct regions *regions, bool launching, uint64_t launched, uint64_t ended);
bool regions_unsettled(const struct regions *regions); /* that call is due */
/* Returns one peer that must unmap a piece; each is returned once, after the kernels that were launched when
 * the region was gone, and the graphs that use it. */
bool region_next_gone(struct regions *regions, uint32_t *peer, struct ipc_piece *piece);
/* For a graph, which releases it when it is destroyed, on any thread; NULL if memory is out. */
struct region_hold *region_hold(struct region *region);
void region_release(struct region_hold *hold); /* NULL is allowed */
void regions_free(struct regions *regions);

#endif
