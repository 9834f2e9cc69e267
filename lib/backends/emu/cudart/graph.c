/* graph.c: graphs as lists of nodes with dependencies, their instances, and the launch of an instance on a
 * stream. Promises: an instance is a copy, so that the graph may change or go; it lives until its last
 * launch has ended; launches of one instance do not overlap. Knows nothing of how nodes are scheduled
 * (graph_run.c). Everything locked. */
#include "base/array.h"
#include "backends/emu/cudart/stream_impl.h"

#include <string.h>

/* ---- sets of nodes ---- */

/* For nodes that are known to be new. */
static bool node_list_append(struct node_list *list, struct graph_node *node) {
  if (!array_grow(&list->items, &list->capacity, (uint64_t)list->count + 1, sizeof *list->items))
    return false;
  list->items[list->count++] = node;
  return true;
}

bool node_list_add(struct node_list *list, struct graph_node *node) {
  for (uint32_t i = 0; i < list->count; i++) {
    if (list->items[i] == node) return true;
  }
  return node_list_append(list, node);
}

void node_list_clear(struct node_list *list) {
  os_free(list->items);
  memset(list, 0, sizeof *list);
}

bool node_list_copy(struct node_list *list, const struct node_list *other) {
  node_list_clear(list);
  for (uint32_t i = 0; i < other->count; i++) {
    if (!node_list_append(list, other->items[i])) return false;
  }
  return true;
}

/* ---- graphs ---- */

struct emu_graph *emu_graph_new(void) {
  return (struct emu_graph *)os_alloc(sizeof(struct emu_graph));
}

static void node_free(struct graph_node *node) {
  emu_work_drop(&node->work);
  node_list_clear(&node->dependencies);
  os_free(node);
}

void emu_graph_free(struct emu_graph *graph) {
  emu_handle_remove(&graph->handle);
  for (uint32_t i = 0; i < graph->nodes.count; i++) node_free(graph->nodes.items[i]);
  node_list_clear(&graph->nodes);
  os_free(graph);
}

struct graph_node *emu_graph_add(struct emu_graph *graph, const struct emu_work *work,
                                 const struct node_list *dependencies) {
  struct graph_node *node = (struct graph_node *)os_alloc(sizeof *node);
  if (node == NULL) return NULL;
  node->node_index = graph->nodes.count;
  if (!node_list_copy(&node->dependencies, dependencies) || !node_list_append(&graph->nodes, node)) {
    node_list_clear(&node->dependencies);
    os_free(node);
    return NULL;
  }
  node->work = *work;
  emu_work_keep(work);
  return node;
}

bool emu_graph_has(const struct emu_graph *graph, const struct graph_node *node) {
  for (uint32_t i = 0; i < graph->nodes.count; i++) {
    if (graph->nodes.items[i] == node) return true;
  }
  return false;
}

/* ---- instances ---- */

static uint32_t edge_count(const struct emu_graph *graph) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < graph->nodes.count; i++) count += graph->nodes.items[i]->dependencies.count;
  return count;
}

/* Makes the lists of dependents, grouped by node, and takes references for each node's work. */
static void exec_fill(struct emu_graph_exec *exec, const struct emu_graph *graph) {
  for (uint32_t i = 0; i < exec->node_count; i++) {
    const struct graph_node *node = graph->nodes.items[i];
    exec->nodes[i].work = node->work;
    emu_work_keep(&node->work);
    exec->nodes[i].dependency_count = node->dependencies.count;
    for (uint32_t k = 0; k < node->dependencies.count; k++) {
      exec->nodes[node->dependencies.items[k]->node_index].dependent_count++;
    }
  }
  uint32_t first = 0;
  for (uint32_t i = 0; i < exec->node_count; i++) {
    exec->nodes[i].first_dependent = first;
    first += exec->nodes[i].dependent_count;
    exec->nodes[i].dependent_count = 0;
  }
  for (uint32_t i = 0; i < exec->node_count; i++) {
    const struct node_list *dependencies = &graph->nodes.items[i]->dependencies;
    for (uint32_t k = 0; k < dependencies->count; k++) {
      struct exec_node *before = &exec->nodes[dependencies->items[k]->node_index];
      exec->dependents[before->first_dependent + before->dependent_count++] = i;
    }
  }
}

/* Kahn's algorithm, counting only: a node that is never reached lies on a cycle. */
static bool exec_acyclic(const struct emu_graph_exec *exec, uint32_t *waiting, uint32_t *queue) {
  uint32_t queued = 0;
  for (uint32_t i = 0; i < exec->node_count; i++) {
    waiting[i] = exec->nodes[i].dependency_count;
    if (waiting[i] == 0) queue[queued++] = i;
  }
  for (uint32_t taken = 0; taken < queued; taken++) {
    const struct exec_node *node = &exec->nodes[queue[taken]];
    for (uint32_t k = 0; k < node->dependent_count; k++) {
      uint32_t next = exec->dependents[node->first_dependent + k];
      if (--waiting[next] == 0) queue[queued++] = next;
    }
  }
  return queued == exec->node_count;
}

int emu_graph_instantiate(struct emu_graph *graph, struct emu_graph_exec **result) {
  uint32_t node_count = graph->nodes.count;
  struct emu_graph_exec *exec = (struct emu_graph_exec *)os_alloc(sizeof *exec);
  uint32_t *scratch = (uint32_t *)os_alloc(2 * (size_t)node_count * sizeof *scratch);
  if (exec != NULL) {
    exec->reference_count = 1;
    exec->nodes = (struct exec_node *)os_alloc(node_count * sizeof *exec->nodes);
    exec->dependents = (uint32_t *)os_alloc(edge_count(graph) * sizeof *exec->dependents);
  }
  int error = cudaErrorMemoryAllocation;
  if (exec != NULL && scratch != NULL && exec->nodes != NULL && exec->dependents != NULL) {
    exec->node_count = node_count;
    exec_fill(exec, graph);
    error = exec_acyclic(exec, scratch, scratch + node_count) ? emu_race_graph_nodes(exec)
                                                              : cudaErrorInvalidValue;
  }
  os_free(scratch);
  if (error != 0) {
    if (exec != NULL) emu_graph_exec_drop(exec);
    return error;
  }
  emu_handle_insert(&exec->handle, HANDLE_EXEC);
  *result = exec;
  return 0;
}

void emu_graph_exec_drop(struct emu_graph_exec *exec) {
  if (--exec->reference_count != 0) return;
  for (uint32_t i = 0; i < exec->node_count; i++) emu_work_drop(&exec->nodes[i].work);
  stream_point_drop(exec->last);
  os_free(exec->nodes);
  os_free(exec->dependents);
  os_free(exec);
}

/* ---- launches ---- */

/* What the i-th node of an instance depends on, as nodes of the graph into which `copies` were made so
 * far. */
static bool copied_dependencies(const struct emu_graph_exec *exec, uint32_t node_index,
                                const struct node_list *copies, struct node_list *dependencies) {
  for (uint32_t i = 0; i < copies->count; i++) {
    const struct exec_node *before = &exec->nodes[i];
    for (uint32_t k = 0; k < before->dependent_count; k++) {
      if (exec->dependents[before->first_dependent + k] != node_index) continue;
      if (!node_list_add(dependencies, copies->items[i])) return false;
    }
  }
  return dependencies->count == exec->nodes[node_index].dependency_count;
}

static struct graph_node *node_copy(const struct emu_graph_exec *exec, uint32_t node_index,
                                    const struct node_list *copies, struct emu_graph *graph,
                                    const struct node_list *roots_after) {
  const struct exec_node *node = &exec->nodes[node_index];
  if (node->dependency_count == 0) return emu_graph_add(graph, &node->work, roots_after);
  struct node_list dependencies = {NULL, 0, 0};
  struct graph_node *copy = NULL;
  if (copied_dependencies(exec, node_index, copies, &dependencies)) {
    copy = emu_graph_add(graph, &node->work, &dependencies);
  }
  node_list_clear(&dependencies);
  return copy;
}

/* A launch on a capturing stream puts the instance's nodes into the graph that is being captured. */
static int launch_captured(const struct emu_graph_exec *exec, struct emu_stream *stream) {
  if (emu_capture_status(stream) != cudaStreamCaptureStatusActive) return cudaErrorStreamCaptureInvalidated;
  struct emu_graph *graph = emu_capture_graph(stream);
  struct node_list copies = {NULL, 0, 0}, leaves = {NULL, 0, 0};
  bool copied = true;
  for (uint32_t i = 0; copied && i < exec->node_count; i++) {
    struct graph_node *copy = node_copy(exec, i, &copies, graph, &stream->frontier);
    copied = copy != NULL && node_list_append(&copies, copy);
    if (copied && exec->nodes[i].dependent_count == 0) copied = node_list_append(&leaves, copy);
  }
  node_list_clear(&copies);
  if (!copied) {
    node_list_clear(&leaves);
    return emu_capture_spoil(stream, cudaErrorMemoryAllocation);
  }
  if (leaves.count == 0) return 0;
  node_list_clear(&stream->frontier);
  stream->frontier = leaves;
  return 0;
}

/* False after the sentence of the first kernel that can no longer be launched. */
static bool exec_is_launchable(const struct emu_graph_exec *exec) {
  for (uint32_t i = 0; i < exec->node_count; i++) {
    const struct emu_work *work = &exec->nodes[i].work;
    if (work->kind != WORK_KERNEL || work->as.kernel->ops->refuses == NULL) continue;
    if (work->as.kernel->ops->refuses(work->as.kernel)) return false;
  }
  return true;
}

int emu_graph_launch(struct emu_graph_exec *exec, struct emu_stream *stream) {
  if (!exec_is_launchable(exec)) return cudaErrorInvalidValue;
  if (stream->capture != NULL) return launch_captured(exec, stream);
  int error = stream->legacy ? emu_capture_legacy_use(stream->device_index) : 0;
  if (error == 0 && exec->last != NULL) error = stream_push_wait(stream, exec->last);
  if (error == 0) error = emu_race_graph(stream, exec);
  struct emu_graph_run *run;
  if (error == 0) error = emu_graph_run_new(exec, stream, &run);
  if (error != 0) return error;
  error = stream_push_graph(stream, run);
  if (error != 0) {
    emu_graph_run_free(run);
    return error;
  }
  struct stream_point *point;
  error = stream_push_record(stream, &point);
  if (error != 0) return error;
  stream_point_drop(exec->last);
  exec->last = point;
  return 0;
}
