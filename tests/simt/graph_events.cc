/* graph_events.cc (simt): events that order graphs and other launches: external waits in a capture, and nodes
 * that record. As on a GPU, a launch of a graph waits for what was recorded last when it was launched, and
 * counts as recorded from then on. The emulated runtime has neither: here both are host nodes, which count
 * records. */
#include "graph_events.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
cudaError_t tutti_cudart_EventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t tutti_cudart_StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t tutti_cudart_GraphAddHostNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                          const cudaGraphNode_t *before, size_t count,
                                          const struct cudaHostNodeParams *parameters);
}

/* An event's records, by number. */
struct record {
  cudaEvent_t event;
  uint64_t issued, done;
  bool by_graph; /* the last one */
  struct record *next;
};

/* A node of a graph, and the numbers of its launches that have not reached it, oldest first. */
enum { LAUNCHES_MOST = 4096 };
struct node {
  struct record *record;
  bool waits; /* else it records */
  uint64_t numbers[LAUNCHES_MOST], pushed, taken;
};

struct owner {
  const void *graph; /* or an instance */
  struct node *node;
  struct owner *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct record *records;
static struct owner *owners;

/* Locked. Events keep their row after they are destroyed: a new one at the same address goes on counting. */
static struct record *record_of(cudaEvent_t event) {
  struct record *found = records;
  while (found != NULL && found->event != event) found = found->next;
  if (found != NULL) return found;
  found = (struct record *)calloc(1, sizeof *found);
  if (found == NULL) abort();
  found->event = event;
  found->next = records;
  records = found;
  return found;
}

static void record_end(struct record *record, uint64_t number) {
  pthread_mutex_lock(&mutex);
  if (record->done < number) __atomic_store_n(&record->done, number, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&mutex);
}

static void record_await(const struct record *record, uint64_t number) {
  while (__atomic_load_n(&record->done, __ATOMIC_ACQUIRE) < number) sched_yield();
}

/* ---- nodes ---- */

static void node_run(void *argument) {
  struct node *node = (struct node *)argument;
  pthread_mutex_lock(&mutex);
  const uint64_t number = node->numbers[node->taken++ % LAUNCHES_MOST];
  pthread_mutex_unlock(&mutex);
  if (node->waits) record_await(node->record, number);
  else record_end(node->record, number);
}

/* Locked. */
static void owner_add(const void *graph, struct node *node) {
  struct owner *fresh = (struct owner *)malloc(sizeof *fresh);
  if (fresh == NULL) abort();
  *fresh = {graph, node, owners};
  owners = fresh;
}

/* Locked. */
static void owner_remove(const void *graph) {
  for (struct owner **place = &owners; *place != NULL;) {
    struct owner *owner = *place;
    if (owner->graph != graph) {
      place = &owner->next;
      continue;
    }
    *place = owner->next;
    free(owner);
  }
}

static struct node *node_make(cudaGraph_t graph, cudaEvent_t event, bool waits) {
  struct node *node = (struct node *)calloc(1, sizeof *node);
  if (node == NULL) abort();
  pthread_mutex_lock(&mutex);
  node->record = record_of(event);
  node->waits = waits;
  owner_add((const void *)graph, node);
  pthread_mutex_unlock(&mutex);
  return node;
}

void graph_events_instantiate(cudaGraphExec_t exec, cudaGraph_t graph) {
  pthread_mutex_lock(&mutex);
  for (const struct owner *owner = owners; owner != NULL; owner = owner->next)
    if (owner->graph == (const void *)graph) owner_add((const void *)exec, owner->node);
  pthread_mutex_unlock(&mutex);
}

void graph_events_destroy(const void *graph) {
  pthread_mutex_lock(&mutex);
  owner_remove(graph);
  pthread_mutex_unlock(&mutex);
}

void graph_events_launch(cudaGraphExec_t exec) {
  pthread_mutex_lock(&mutex);
  for (int records_now = 0; records_now < 2; records_now++) /* what it records is not what it waits for */
    for (const struct owner *owner = owners; owner != NULL; owner = owner->next) {
      struct node *node = owner->node;
      if (owner->graph != (const void *)exec || node->waits == (records_now != 0)) continue;
      if (node->pushed - node->taken == LAUNCHES_MOST) abort();
      node->numbers[node->pushed++ % LAUNCHES_MOST] =
          node->waits ? node->record->issued : ++node->record->issued;
      if (!node->waits) node->record->by_graph = true;
    }
  pthread_mutex_unlock(&mutex);
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                        const cudaGraphNode_t *before, size_t count, cudaEvent_t event) {
  struct cudaHostNodeParams parameters = {};
  parameters.fn = node_run;
  parameters.userData = node_make(graph, event, false);
  return tutti_cudart_GraphAddHostNode(node, graph, before, count, &parameters);
}

/* An edge too many orders nothing that the capture does not. */
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                        const cudaGraphNode_t *to, const void *edges, size_t count) {
  (void)graph, (void)from, (void)to, (void)edges, (void)count;
  return cudaSuccess;
}

/* ---- streams ---- */

static bool capture_of(cudaStream_t stream, cudaGraph_t *graph) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  *graph = NULL;
  if (cudaStreamGetCaptureInfo(stream, &status, NULL, graph, NULL, NULL, NULL) == cudaSuccess)
    return status == cudaStreamCaptureStatusActive;
  cudaGetLastError(); /* the legacy stream, while another one is captured */
  return false;
}

struct errand {
  struct record *record;
  uint64_t number;
  bool waits;
};

static void errand_run(void *argument) {
  struct errand *errand = (struct errand *)argument;
  if (errand->waits) record_await(errand->record, errand->number);
  else record_end(errand->record, errand->number);
  free(errand);
}

static cudaError_t errand_send(struct record *record, uint64_t number, bool waits, cudaStream_t stream) {
  struct errand *errand = (struct errand *)malloc(sizeof *errand);
  if (errand == NULL) abort();
  *errand = {record, number, waits};
  return cudaLaunchHostFunc(stream, errand_run, errand);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  cudaGraph_t graph = NULL;
  const bool captured = capture_of(stream, &graph);
  const cudaError_t error = tutti_cudart_EventRecord(event, stream);
  if (captured || error != cudaSuccess) return error;
  pthread_mutex_lock(&mutex);
  struct record *record = record_of(event);
  const uint64_t number = ++record->issued;
  record->by_graph = false;
  pthread_mutex_unlock(&mutex);
  return errand_send(record, number, false, stream);
}

/* SIMT_EVENT_NODES=none: graphs take no nodes of events, as the body of a conditional node. */
static bool has_event_nodes(void) {
  const char *text = getenv("SIMT_EVENT_NODES");
  return text == NULL || strcmp(text, "none") != 0;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  cudaGraph_t graph = NULL;
  if (capture_of(stream, &graph)) {
    if (flags != cudaEventWaitExternal) return tutti_cudart_StreamWaitEvent(stream, event, flags);
    if (!has_event_nodes()) return cudaErrorNotSupported;
    return cudaLaunchHostFunc(stream, node_run, node_make(graph, event, true));
  }
  pthread_mutex_lock(&mutex);
  struct record *record = record_of(event);
  const uint64_t number = record->issued;
  const bool by_graph = record->by_graph;
  pthread_mutex_unlock(&mutex);
  return by_graph ? errand_send(record, number, true, stream)
                  : tutti_cudart_StreamWaitEvent(stream, event, flags);
}
