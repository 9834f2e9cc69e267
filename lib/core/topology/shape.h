/* shape.h: what of a node decides its rings and trees, in words of 64 bits: equal on machines that are alike,
 * whatever their devices are called, and short enough for a record. A graph of several machines is made from
 * these words alone, so it is the same wherever the words are. */
#ifndef TUTTI_CORE_SHAPE_H
#define TUTTI_CORE_SHAPE_H

#include "core/topology/topology.h"

struct node_shape {
  const uint64_t *words; /* one for each device, then one for each row of NVLinks; none is 0 */
  uint32_t count;
};

/* The words in a new os_alloc block, which the caller frees; NULL if memory is out. */
uint64_t *shape_write(const struct topology *topology, uint32_t *count);
/* The topology of `nodes` nodes of this shape, with names of its own; free it with topology_free().
 * ncclInvalidUsage, naming `name`, if there is no such node; ncclSystemError: out of memory. */
ncclResult_t shape_read(const struct node_shape *shape, const char *name, uint32_t nodes,
                        struct topology *topology);

#endif
