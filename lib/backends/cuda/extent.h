/* extent.h: which parts of one piece of memory are used. Plain arithmetic on offsets, without CUDA, so that
 * it can be tested on any machine. It does not know where the piece is. */
#ifndef TUTTI_BACKENDS_CUDA_EXTENT_H
#define TUTTI_BACKENDS_CUDA_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

/* Alignment of blocks; sizes are rounded up to it. */
#define EXTENT_ALIGN 512u

struct extent {
  uint64_t offset, bytes;
};

/* The free parts in order; no two are adjacent. */
struct extents {
  struct extent *free_parts;
  uint32_t count, capacity, block_count;
  uint64_t bytes, taken_bytes;
  uint64_t high; /* memory from here on has never been used */
};

/* Starts with one free piece of `bytes`, a multiple of EXTENT_ALIGN. False if memory is out. */
bool extents_open(struct extents *extents, uint64_t bytes);
void extents_close(struct extents *extents);
/* Takes the first free part that fits `bytes`. *fresh: no part of it was used before. False if none fits, or
 * memory is out. */
bool extents_take(struct extents *extents, uint64_t bytes, struct extent *taken, bool *fresh);
/* Frees what extents_take() returned. Allocates no memory. */
void extents_give(struct extents *extents, const struct extent *taken);

#endif
