/* extent.h: which parts of one piece of memory are taken. Plain arithmetic over offsets, without CUDA, so
 * that any machine can test it. It knows nothing of where the piece lies. */
#ifndef TUTTI_BACKENDS_CUDA_EXTENT_H
#define TUTTI_BACKENDS_CUDA_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

/* What begins at each block that is taken; sizes are rounded up to it. */
#define EXTENT_ALIGN 512u

struct extent {
  uint64_t offset, bytes;
};

/* The free parts in order, no two of which touch. */
struct extents {
  struct extent *free_parts;
  uint32_t count, capacity, block_count;
  uint64_t bytes, taken_bytes;
  uint64_t high; /* what lies from here on was never taken */
};

/* One piece of `bytes`, a multiple of EXTENT_ALIGN, all of it free. False when memory is out. */
bool extents_open(struct extents *extents, uint64_t bytes);
void extents_close(struct extents *extents);
/* The first place where `bytes` fit. *fresh: no part of it was ever taken before. False when they fit
 * nowhere, or memory is out. */
bool extents_take(struct extents *extents, uint64_t bytes, struct extent *taken, bool *fresh);
/* Gives back what extents_take() has given. Needs no memory. */
void extents_give(struct extents *extents, const struct extent *taken);

#endif
