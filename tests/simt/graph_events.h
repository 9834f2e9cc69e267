/* graph_events.h (simt): events that graphs wait for and record. */
#ifndef TUTTI_TESTS_SIMT_GRAPH_EVENTS_H
#define TUTTI_TESTS_SIMT_GRAPH_EVENTS_H

#include <cuda_runtime.h>

/* The instance has the nodes of the graph, or is launched: before the runtime's own call. */
void graph_events_instantiate(cudaGraphExec_t exec, cudaGraph_t graph);
void graph_events_launch(cudaGraphExec_t exec);
/* Before a graph or an instance is destroyed, whose address the next one of either kind may have. What was
 * instantiated from a graph stays. */
void graph_events_destroy(const void *graph);

#endif
