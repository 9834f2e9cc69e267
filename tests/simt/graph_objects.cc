/* graph_objects.cc (simt): user objects: what a graph needs of the host. An object is destroyed with the last
 * graph, and the last graph instantiated from one, that has it. */
#include <cuda_runtime.h>

#include <pthread.h>
#include <stdlib.h>

#include "graph_events.h"

extern "C" {
cudaError_t tutti_cudart_GraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t tutti_cudart_GraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t tutti_cudart_GraphDestroy(cudaGraph_t graph);
cudaError_t tutti_cudart_GraphExecDestroy(cudaGraphExec_t exec);
}

struct CUuserObject_st {
  void *pointer;
  cudaHostFn_t destroy;
  unsigned int count;
};

struct holder {
  const void *graph; /* or an instantiated one */
  bool is_launched;
  cudaStream_t stream; /* of its last launch */
  cudaUserObject_t object;
  struct holder *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct holder *holders;

static void holder_add(const void *graph, cudaUserObject_t object) {
  struct holder *holder = (struct holder *)malloc(sizeof *holder);
  if (holder == NULL) abort();
  *holder = {graph, false, NULL, object, holders};
  holders = holder;
}

/* Takes one of its rows; false: it has none. */
static bool holder_take(const void *graph, struct holder *taken) {
  bool found = false;
  pthread_mutex_lock(&mutex);
  for (struct holder **place = &holders; *place != NULL && !found;) {
    struct holder *holder = *place;
    if (holder->graph != graph) {
      place = &holder->next;
      continue;
    }
    found = true;
    *taken = *holder;
    *place = holder->next;
    free(holder);
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

static void object_drop(void *object) { cudaUserObjectRelease((cudaUserObject_t)object, 1); }

/* What a launch uses is dropped when the launch has ended. */
static void holder_drop_all(const void *graph) {
  struct holder taken;
  while (holder_take(graph, &taken))
    if (!taken.is_launched || cudaLaunchHostFunc(taken.stream, object_drop, taken.object) != cudaSuccess)
      object_drop(taken.object);
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer, cudaHostFn_t destroy,
                                 unsigned int count, unsigned int flags) {
  struct CUuserObject_st *fresh = (struct CUuserObject_st *)malloc(sizeof *fresh);
  (void)flags;
  if (fresh == NULL) return cudaErrorMemoryAllocation;
  *fresh = {pointer, destroy, count};
  *object = fresh;
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  if (__atomic_sub_fetch(&object->count, count, __ATOMIC_ACQ_REL) > 0) return cudaSuccess;
  object->destroy(object->pointer);
  free(object);
  return cudaSuccess;
}

/* The caller's reference moves to the graph. */
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned int count,
                                      unsigned int flags) {
  if (count != 1 || flags != cudaGraphUserObjectMove) return cudaErrorInvalidValue;
  pthread_mutex_lock(&mutex);
  holder_add((const void *)graph, object);
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  const cudaError_t error = tutti_cudart_GraphInstantiate(exec, graph, flags);
  if (error != cudaSuccess) return error;
  graph_events_instantiate(*exec, graph);
  pthread_mutex_lock(&mutex);
  for (struct holder *holder = holders; holder != NULL; holder = holder->next) {
    if (holder->graph != (const void *)graph) continue;
    __atomic_add_fetch(&holder->object->count, 1, __ATOMIC_ACQ_REL);
    holder_add((const void *)*exec, holder->object);
  }
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  graph_events_destroy((const void *)graph);
  const cudaError_t error = tutti_cudart_GraphDestroy(graph);
  if (error == cudaSuccess) holder_drop_all((const void *)graph);
  return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  pthread_mutex_lock(&mutex);
  for (struct holder *holder = holders; holder != NULL; holder = holder->next) {
    if (holder->graph != (const void *)exec) continue;
    holder->is_launched = true;
    holder->stream = stream;
  }
  pthread_mutex_unlock(&mutex);
  graph_events_launch(exec);
  return tutti_cudart_GraphLaunch(exec, stream);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  graph_events_destroy((const void *)exec);
  const cudaError_t error = tutti_cudart_GraphExecDestroy(exec);
  if (error == cudaSuccess) holder_drop_all((const void *)exec);
  return error;
}
