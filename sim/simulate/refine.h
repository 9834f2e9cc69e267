/* refine.h: finds which nodes of a graph are alike: the coarsest parts that separate colours and in which
 * every node has, for each label and each part, as many edges with that label into that part as any other of
 * its own part. Knows nothing of the meaning of nodes and labels. */
#ifndef TUTTI_SIM_SIMULATE_REFINE_H
#define TUTTI_SIM_SIMULATE_REFINE_H

#include <stdbool.h>
#include <stdint.h>

/* Both ends of an edge store it, with one label. */
struct refine_graph {
  uint32_t node_count;
  uint32_t *first; /* by node: its first entry; one more behind the last */
  uint32_t *to;    /* by entry */
  uint16_t *label;
};

struct refine_edge {
  uint32_t one, other;
  uint16_t label;
};

/* False when memory is out. Free with refine_graph_free(). */
bool refine_graph_make(uint32_t node_count, const struct refine_edge *edges, uint32_t edge_count,
                       struct refine_graph *graph);
void refine_graph_free(struct refine_graph *graph);

/* Fills part_of and representative by node; the representative is the lowest node of its part. Uses sums of
 * hashes: call refine_holds() to verify the parts. False when memory is out. */
bool refine_parts(const struct refine_graph *graph, const uint64_t *colour, uint32_t *part_of,
                  uint32_t *representative);

/* Whether each node's edges go, label by label, to the same parts as its representative's; sorts entries. */
bool refine_holds(struct refine_graph *graph, const uint32_t *part_of, const uint32_t *representative);

#endif
