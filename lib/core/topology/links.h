/* links.h: the ranks that a rank exchanges data with in an algorithm. Pure arithmetic over the communicator's
 * graph, equal on every rank. */
#ifndef TUTTI_CORE_LINKS_H
#define TUTTI_CORE_LINKS_H

#include "core/topology/graph.h"

/* Maximum number of works for one rank's part of a channel. */
#define LINKS_ROLES_MAX 3

/* The roles of the works that together execute a rank's part of `channel_index`. Returns their number. */
uint32_t links_roles(const struct graph *graph, uint8_t algo, uint32_t channel_index, uint32_t rank,
                     uint32_t roles[LINKS_ROLES_MAX]);

/* Fills the links of a work whose function, algorithm, role, channel, ranks and root are set, and for a ring
 * its ring_ranks; set ring_index before (links_ring_index). For switch algorithms it also sets the connection
 * index and the rank's position: heads and root. */
void links_set(const struct graph *graph, struct work *work);

/* Distance of a rank from rank 0 along a channel's ring. */
uint32_t links_ring_index(const struct graph *graph, uint32_t channel_index, uint32_t rank);

/* Maximum number of links on one side of a work, over all ranks: what a backend's executor must support. */
uint32_t links_most(const struct graph *graph, uint8_t algo);

#endif
