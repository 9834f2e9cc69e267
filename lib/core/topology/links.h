/* links.h: whom a rank exchanges data with in an algorithm. Pure arithmetic over the communicator's graph,
 * the same on every rank. */
#ifndef TUTTI_CORE_LINKS_H
#define TUTTI_CORE_LINKS_H

#include "core/topology/graph.h"

/* Most works that an algorithm makes of one rank's part of a channel. */
#define LINKS_ROLES_MAX 3

/* The works, by role, that side by side carry a rank's part of `channel_index`. Returns how many. */
uint32_t links_roles(const struct graph *graph, uint8_t algo, uint32_t channel_index, uint32_t rank,
                     uint32_t roles[LINKS_ROLES_MAX]);

/* Fills the links of a work whose function, algorithm, role, channel, ranks and root are set, and with a ring
 * its ring_ranks; ring_index must be set before (links_ring_index). Over a switch also the connection and all
 * that says where the rank stands: heads and root. */
void links_set(const struct graph *graph, struct work *work);

/* Distance of a rank from rank 0 along a channel's ring. */
uint32_t links_ring_index(const struct graph *graph, uint32_t channel_index, uint32_t rank);

/* Most links that one side of a work has, over all ranks: what a backend's executor must carry. */
uint32_t links_most(const struct graph *graph, uint8_t algo);

#endif
