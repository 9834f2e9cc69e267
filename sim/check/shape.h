/* shape.h: graphs of invented machines, for checks: nodes of equally many ranks, with other rings and trees
 * on every second channel. */
#ifndef TUTTI_SIM_CHECK_SHAPE_H
#define TUTTI_SIM_CHECK_SHAPE_H

#include "core/graph.h"

/* `nodes` nodes of `gpus` ranks each: one node is graph_flat(). Else rings go by rank, on odd channels the
 * other way round; even channels have the first tree of the pair over nodes, odd ones the second; inside a
 * node ranks are a chain. Free with graph_free(). */
ncclResult_t shape_graph(uint32_t nodes, uint32_t gpus, struct graph *graph);

#endif
