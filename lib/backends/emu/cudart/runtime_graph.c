/* runtime_graph.c: the emulated runtime's graph functions. Nodes of kernels come from captures only. */
#include "backends/emu/cudart/runtime.h"

#include <string.h>

static struct emu_graph *graph_at(cudaGraph_t handle) {
  return handle != NULL && emu_handle_live(handle, HANDLE_GRAPH) ? (struct emu_graph *)(void *)handle : NULL;
}

/* NULL, too, while a capture adds to it. */
static struct emu_graph *graph_captured(cudaGraph_t handle) {
  struct emu_graph *graph = graph_at(handle);
  return graph != NULL && !graph->capturing ? graph : NULL;
}

static struct emu_graph_exec *exec_at(cudaGraphExec_t handle) {
  return handle != NULL && emu_handle_live(handle, HANDLE_EXEC) ? (struct emu_graph_exec *)(void *)handle
                                                                : NULL;
}

cudaError_t tutti_cudart_GraphCreate(cudaGraph_t *handle, unsigned flags) {
  if (handle == NULL || flags != 0) return runtime_result(cudaErrorInvalidValue);
  struct emu_graph *graph = emu_graph_new();
  if (graph == NULL) return runtime_result(cudaErrorMemoryAllocation);
  emu_lock();
  emu_handle_insert(&graph->handle, HANDLE_GRAPH);
  emu_unlock();
  *handle = (cudaGraph_t)(void *)graph;
  return cudaSuccess;
}

cudaError_t tutti_cudart_GraphDestroy(cudaGraph_t handle) {
  emu_lock();
  struct emu_graph *graph = graph_captured(handle);
  if (graph != NULL) emu_graph_free(graph);
  emu_unlock();
  return runtime_result(graph == NULL ? cudaErrorInvalidValue : 0);
}

/* ---- nodes ---- */

static int dependencies_read(const struct emu_graph *graph, const cudaGraphNode_t *handles, size_t count,
                             struct node_list *list) {
  for (size_t i = 0; i < count; i++) {
    struct graph_node *node = (struct graph_node *)(void *)handles[i];
    if (!emu_graph_has(graph, node)) return cudaErrorInvalidValue;
    if (!node_list_add(list, node)) return cudaErrorMemoryAllocation;
  }
  return 0;
}

static int node_add(cudaGraphNode_t *handle, struct emu_graph *graph, const cudaGraphNode_t *dependencies,
                    size_t count, const struct emu_work *work) {
  if (graph == NULL || handle == NULL || (count != 0 && dependencies == NULL)) return cudaErrorInvalidValue;
  struct node_list list = {NULL, 0, 0};
  struct graph_node *node = NULL;
  int error = dependencies_read(graph, dependencies, count, &list);
  if (error == 0) {
    node = emu_graph_add(graph, work, &list);
    if (node == NULL) error = cudaErrorMemoryAllocation;
  }
  node_list_clear(&list);
  if (error == 0) *handle = (cudaGraphNode_t)(void *)node;
  return error;
}

static cudaError_t add(cudaGraphNode_t *handle, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
                       size_t count, const struct emu_work *work) {
  emu_lock();
  int error = node_add(handle, graph_at(graph), dependencies, count, work);
  emu_unlock();
  return runtime_result(error);
}

cudaError_t tutti_cudart_GraphAddEmptyNode(cudaGraphNode_t *handle, cudaGraph_t graph,
                                           const cudaGraphNode_t *dependencies, size_t count) {
  struct emu_work work;
  memset(&work, 0, sizeof work);
  return add(handle, graph, dependencies, count, &work);
}

cudaError_t tutti_cudart_GraphAddHostNode(cudaGraphNode_t *handle, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies, size_t count,
                                          const struct cudaHostNodeParams *parameters) {
  if (parameters == NULL || parameters->fn == NULL) return runtime_result(cudaErrorInvalidValue);
  struct emu_work work;
  memset(&work, 0, sizeof work);
  work.kind = WORK_HOST;
  work.as.host.function = parameters->fn;
  work.as.host.argument = parameters->userData;
  return add(handle, graph, dependencies, count, &work);
}

cudaError_t tutti_cudart_GraphAddMemcpyNode1D(cudaGraphNode_t *handle, cudaGraph_t graph,
                                              const cudaGraphNode_t *dependencies, size_t count, void *to,
                                              const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  RACE_CALL("cudaGraphAddMemcpyNode1D");
  struct emu_work work;
  int error = runtime_copy_prepare(&work, to, from, bytes, kind);
  return error != 0 ? runtime_result(error) : add(handle, graph, dependencies, count, &work);
}

cudaError_t tutti_cudart_GraphAddMemsetNode(cudaGraphNode_t *handle, cudaGraph_t graph,
                                            const cudaGraphNode_t *dependencies, size_t count,
                                            const struct cudaMemsetParams *fill) {
  RACE_CALL("cudaGraphAddMemsetNode");
  struct emu_work work;
  if (fill == NULL) return runtime_result(cudaErrorInvalidValue);
  int error = runtime_fill_prepare(&work, fill->dst, fill->pitch, fill->value, fill->elementSize, fill->width,
                                   fill->height);
  return error != 0 ? runtime_result(error) : add(handle, graph, dependencies, count, &work);
}

static int dependencies_add(const struct emu_graph *graph, const cudaGraphNode_t *from,
                            const cudaGraphNode_t *to, size_t count) {
  if (graph == NULL || (count != 0 && (from == NULL || to == NULL))) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; i++) {
    struct graph_node *before = (struct graph_node *)(void *)from[i],
                      *after = (struct graph_node *)(void *)to[i];
    if (!emu_graph_has(graph, before) || !emu_graph_has(graph, after) || before == after)
      return cudaErrorInvalidValue;
    if (!node_list_add(&after->dependencies, before)) return cudaErrorMemoryAllocation;
  }
  return 0;
}

cudaError_t tutti_cudart_GraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                              const cudaGraphNode_t *to, const cudaGraphEdgeData *edges,
                                              size_t count) {
  (void)edges; /* edge data names ports, which only user kernels have */
  emu_lock();
  int error = dependencies_add(graph_at(graph), from, to, count);
  emu_unlock();
  return runtime_result(error);
}

/* CUDA's way of returning lists: without an array the count is told, with one it is filled and its rest
 * set to NULL. */
static int nodes_list(const struct emu_graph *graph, bool roots_only, cudaGraphNode_t *handles,
                      size_t *count) {
  if (graph == NULL || count == NULL) return cudaErrorInvalidValue;
  size_t found = 0;
  for (uint32_t i = 0; i < graph->nodes.count; i++) {
    struct graph_node *node = graph->nodes.items[i];
    if (roots_only && node->dependencies.count != 0) continue;
    if (handles != NULL && found < *count) handles[found] = (cudaGraphNode_t)(void *)node;
    found++;
  }
  for (size_t i = found; handles != NULL && i < *count; i++) handles[i] = NULL;
  if (handles == NULL || *count > found) *count = found;
  return 0;
}

cudaError_t tutti_cudart_GraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *handles, size_t *count) {
  emu_lock();
  int error = nodes_list(graph_at(graph), false, handles, count);
  emu_unlock();
  return runtime_result(error);
}

cudaError_t tutti_cudart_GraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *handles, size_t *count) {
  emu_lock();
  int error = nodes_list(graph_at(graph), true, handles, count);
  emu_unlock();
  return runtime_result(error);
}

cudaError_t tutti_cudart_GraphNodeGetType(cudaGraphNode_t handle, enum cudaGraphNodeType *type) {
  if (handle == NULL || type == NULL) return runtime_result(cudaErrorInvalidValue);
  switch (((const struct graph_node *)(const void *)handle)->work.kind) {
    case WORK_COPY: *type = cudaGraphNodeTypeMemcpy; break;
    case WORK_FILL: *type = cudaGraphNodeTypeMemset; break;
    case WORK_HOST: *type = cudaGraphNodeTypeHost; break;
    case WORK_FREE: *type = cudaGraphNodeTypeMemFree; break;
    case WORK_KERNEL: *type = cudaGraphNodeTypeKernel; break;
    case WORK_EMPTY: *type = cudaGraphNodeTypeEmpty; break;
  }
  return cudaSuccess;
}

/* ---- instances ---- */

cudaError_t tutti_cudart_GraphInstantiateWithFlags(cudaGraphExec_t *handle, cudaGraph_t graph_handle,
                                                   unsigned long long flags) {
  const unsigned long long known = cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
                                   cudaGraphInstantiateFlagUseNodePriority;
  if (handle == NULL || (flags & ~known) != 0) return runtime_result(cudaErrorInvalidValue);
  struct emu_graph_exec *exec;
  emu_lock();
  struct emu_graph *graph = graph_captured(graph_handle);
  int error = graph == NULL ? cudaErrorInvalidValue : emu_capture_unsafe_call();
  if (error == 0) error = emu_graph_instantiate(graph, &exec);
  emu_unlock();
  if (error == 0) *handle = (cudaGraphExec_t)(void *)exec;
  return runtime_result(error);
}

cudaError_t tutti_cudart_GraphInstantiate(cudaGraphExec_t *handle, cudaGraph_t graph,
                                          unsigned long long flags) {
  return tutti_cudart_GraphInstantiateWithFlags(handle, graph, flags);
}

static cudaError_t exec_on_stream(cudaGraphExec_t handle, cudaStream_t stream_handle, bool launch) {
  emu_lock();
  struct emu_graph_exec *exec = exec_at(handle);
  struct emu_stream *stream = emu_stream_find(stream_handle);
  int error = exec == NULL ? cudaErrorInvalidValue : stream == NULL ? cudaErrorInvalidResourceHandle : 0;
  if (error == 0 && launch) error = emu_graph_launch(exec, stream);
  emu_unlock();
  return runtime_result(error);
}

cudaError_t tutti_cudart_GraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return exec_on_stream(exec, stream, false); /* nothing to bring anywhere */
}

cudaError_t tutti_cudart_GraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return exec_on_stream(exec, stream, true);
}

cudaError_t tutti_cudart_GraphExecDestroy(cudaGraphExec_t handle) {
  emu_lock();
  struct emu_graph_exec *exec = exec_at(handle);
  if (exec != NULL) {
    emu_handle_remove(&exec->handle);
    emu_graph_exec_drop(exec);
  }
  emu_unlock();
  return runtime_result(exec == NULL ? cudaErrorInvalidValue : 0);
}
