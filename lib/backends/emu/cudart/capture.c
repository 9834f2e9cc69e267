/* capture.c: stream captures: work enqueued on a capturing stream becomes a node of a graph, which depends
 * on what that stream had reached; an event recorded in a capture and waited for by another stream draws
 * that stream in. Promises: the error codes, and which of them invalidate the capture, are those of CUDA
 * 13 on a real device. Knows nothing of how graphs run. Everything locked. */
#include "backends/emu/cudart/stream_impl.h"

struct emu_capture {
  struct emu_capture *next;
  uint64_t id;
  int mode;
  pthread_t thread; /* that began it */
  bool spoiled;
  struct emu_stream *origin;
  struct emu_stream *streams; /* those that take part, origin included; linked by next_in_capture */
  struct emu_graph *graph;
  struct node_list left; /* frontiers of streams destroyed during the capture */
};

static struct emu_capture *captures;
static _Thread_local int thread_mode = cudaStreamCaptureModeGlobal;

static int capture_spoil(struct emu_capture *capture, int error) {
  capture->spoiled = true;
  return error;
}

static struct emu_capture *capture_find(uint64_t id) {
  struct emu_capture *capture = captures;
  while (capture != NULL && capture->id != id) capture = capture->next;
  return capture;
}

static void capture_enter(struct emu_capture *capture, struct emu_stream *stream) {
  stream->capture = capture;
  stream->next_in_capture = capture->streams;
  capture->streams = stream;
}

/* Ends the capture on all streams, and frees the graph unless the caller has taken it. */
static void capture_dissolve(struct emu_capture *capture) {
  struct emu_capture **link = &captures;
  while (*link != capture) link = &(*link)->next;
  *link = capture->next;
  for (struct emu_stream *stream = capture->streams; stream != NULL; stream = stream->next_in_capture) {
    stream->capture = NULL;
    node_list_clear(&stream->frontier);
  }
  node_list_clear(&capture->left);
  if (capture->graph != NULL) emu_graph_free(capture->graph);
  os_free(capture);
}

int emu_capture_begin(struct emu_stream *stream, int mode) {
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  if (stream->capture != NULL) return cudaErrorIllegalState;
  struct emu_capture *capture = (struct emu_capture *)os_alloc(sizeof *capture);
  struct emu_graph *graph = emu_graph_new();
  if (capture == NULL || graph == NULL) {
    os_free(capture);
    if (graph != NULL) emu_graph_free(graph);
    return cudaErrorMemoryAllocation;
  }
  uint64_t serial = ++emu_device(stream->device_index)->capture_count;
  capture->id = ((uint64_t)stream->device_index + 1) << 32 | serial;
  capture->mode = mode;
  capture->thread = pthread_self();
  capture->origin = stream;
  capture->graph = graph;
  graph->capturing = true;
  emu_handle_insert(&graph->handle, HANDLE_GRAPH); /* nodes can be added beside the streams */
  capture->next = captures;
  captures = capture;
  capture_enter(capture, stream);
  return 0;
}

/* Nodes of a capture depend on earlier ones only, so one pass from the newest to the oldest finds all
 * ancestors. */
static void mark_ancestors(struct emu_graph *graph, const struct node_list *of) {
  for (uint32_t i = 0; i < graph->nodes.count; i++) graph->nodes.items[i]->marked = false;
  for (uint32_t i = 0; i < of->count; i++) of->items[i]->marked = true;
  for (uint32_t i = graph->nodes.count; i-- > 0;) {
    const struct graph_node *node = graph->nodes.items[i];
    if (!node->marked) continue;
    for (uint32_t k = 0; k < node->dependencies.count; k++) node->dependencies.items[k]->marked = true;
  }
}

static bool all_marked(const struct node_list *list) {
  for (uint32_t i = 0; i < list->count; i++) {
    if (!list->items[i]->marked) return false;
  }
  return true;
}

/* The origin's frontier depends on every captured node. */
static bool capture_joined(const struct emu_capture *capture) {
  mark_ancestors(capture->graph, &capture->origin->frontier);
  for (const struct emu_stream *stream = capture->streams; stream != NULL; stream = stream->next_in_capture) {
    if (!all_marked(&stream->frontier)) return false;
  }
  return all_marked(&capture->left);
}

int emu_capture_end(struct emu_stream *stream, struct emu_graph **graph) {
  struct emu_capture *capture = stream->capture;
  if (capture == NULL) return cudaErrorIllegalState;
  if (capture->origin != stream) return capture_spoil(capture, cudaErrorStreamCaptureUnmatched);
  bool same_thread = pthread_equal(capture->thread, pthread_self()) != 0;
  int error = 0;
  if (capture->mode != cudaStreamCaptureModeRelaxed && !same_thread)
    error = cudaErrorStreamCaptureWrongThread;
  else if (capture->spoiled) error = cudaErrorStreamCaptureInvalidated;
  else if (!capture_joined(capture)) error = cudaErrorStreamCaptureUnjoined;
  if (error == 0) {
    *graph = capture->graph;
    (*graph)->capturing = false;
    capture->graph = NULL;
  }
  capture_dissolve(capture);
  return error;
}

static int frontier_set(struct emu_stream *stream, struct graph_node *node) {
  node_list_clear(&stream->frontier);
  return node_list_add(&stream->frontier, node) ? 0
                                                : capture_spoil(stream->capture, cudaErrorMemoryAllocation);
}

int emu_capture_work(struct emu_stream *stream, const struct emu_work *work) {
  struct emu_capture *capture = stream->capture;
  if (capture->spoiled) return cudaErrorStreamCaptureInvalidated;
  struct graph_node *node = emu_graph_add(capture->graph, work, &stream->frontier);
  if (node == NULL) return capture_spoil(capture, cudaErrorMemoryAllocation);
  return frontier_set(stream, node);
}

int emu_capture_record(struct emu_stream *stream, struct emu_event *event) {
  struct emu_capture *capture = stream->capture;
  if (capture->spoiled) return cudaErrorStreamCaptureInvalidated;
  if (!node_list_copy(&event->nodes, &stream->frontier))
    return capture_spoil(capture, cudaErrorMemoryAllocation);
  stream_point_drop(event->point);
  event->point = NULL;
  event->capture_id = capture->id;
  return 0;
}

static int frontier_join(struct emu_stream *stream, const struct node_list *nodes) {
  for (uint32_t i = 0; i < nodes->count; i++) {
    if (!node_list_add(&stream->frontier, nodes->items[i])) {
      return capture_spoil(stream->capture, cudaErrorMemoryAllocation);
    }
  }
  return 0;
}

int emu_capture_wait(struct emu_stream *stream, struct emu_event *event) {
  struct emu_capture *own = stream->capture;
  if (own != NULL && own->spoiled) return cudaErrorStreamCaptureInvalidated;
  if (event->capture_id == 0)
    return event->point == NULL ? 0 : capture_spoil(own, cudaErrorStreamCaptureIsolation);
  struct emu_capture *other = capture_find(event->capture_id);
  if (other == NULL) return cudaErrorInvalidValue;
  if (other->spoiled) return cudaErrorStreamCaptureInvalidated;
  if (stream->legacy) return capture_spoil(other, cudaErrorStreamCaptureImplicit);
  if (own != NULL && own != other) {
    own->spoiled = true;
    return capture_spoil(other, cudaErrorStreamCaptureMerge);
  }
  if (own == NULL) capture_enter(other, stream);
  return frontier_join(stream, &event->nodes);
}

int emu_capture_spoil(struct emu_stream *stream, int error) {
  return stream->capture == NULL ? 0 : capture_spoil(stream->capture, error);
}

int emu_capture_event_spoil(const struct emu_event *event) {
  if (event->capture_id == 0) return 0;
  struct emu_capture *capture = capture_find(event->capture_id);
  return capture == NULL ? cudaErrorInvalidValue : capture_spoil(capture, cudaErrorCapturedEvent);
}

static bool capture_forbids(const struct emu_capture *capture) {
  if (thread_mode == cudaStreamCaptureModeRelaxed || capture->mode == cudaStreamCaptureModeRelaxed)
    return false;
  if (pthread_equal(capture->thread, pthread_self())) return true;
  return thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
}

int emu_capture_unsafe_call(void) {
  int error = 0;
  for (struct emu_capture *capture = captures; capture != NULL; capture = capture->next) {
    if (capture_forbids(capture)) error = capture_spoil(capture, cudaErrorStreamCaptureUnsupported);
  }
  return error;
}

static int spoil_on_device(uint32_t device_index, bool blocking_only, int error) {
  int result = 0;
  if (captures == NULL) return 0;
  for (struct emu_stream *stream = emu_device(device_index)->streams; stream != NULL;
       stream = stream->next_on_device) {
    if (stream->capture == NULL || (blocking_only && !stream->blocking)) continue;
    result = capture_spoil(stream->capture, error);
  }
  return result;
}

int emu_capture_legacy_use(uint32_t device_index) {
  return spoil_on_device(device_index, true, cudaErrorStreamCaptureImplicit);
}

bool emu_capture_touches_legacy(uint32_t device_index) {
  for (const struct emu_stream *stream = emu_device_streams(device_index); stream != NULL;
       stream = stream->next_on_device) {
    if (stream->capture != NULL && stream->blocking) return true;
  }
  return false;
}

int emu_capture_device_wait(uint32_t device_index) {
  return spoil_on_device(device_index, false, cudaErrorStreamCaptureUnsupported);
}

void emu_capture_leave(struct emu_stream *stream) {
  struct emu_capture *capture = stream->capture;
  if (capture == NULL) return;
  if (capture->origin == stream) {
    capture_dissolve(capture);
    return;
  }
  for (uint32_t i = 0; i < stream->frontier.count; i++) {
    if (!node_list_add(&capture->left, stream->frontier.items[i])) capture->spoiled = true;
  }
  struct emu_stream **link = &capture->streams;
  while (*link != stream) link = &(*link)->next_in_capture;
  *link = stream->next_in_capture;
  stream->capture = NULL;
}

int emu_capture_thread_mode(int mode) {
  int old = thread_mode;
  thread_mode = mode;
  return old;
}

int emu_capture_status(const struct emu_stream *stream) {
  if (stream->capture == NULL) return cudaStreamCaptureStatusNone;
  return stream->capture->spoiled ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

uint32_t emu_stream_device(const struct emu_stream *stream) { return stream->device_index; }

uint64_t emu_stream_capture_id(const struct emu_stream *stream) {
  return stream->capture == NULL ? 0 : stream->capture->id;
}

struct emu_graph *emu_capture_graph(const struct emu_stream *stream) {
  return stream->capture == NULL ? NULL : stream->capture->graph;
}
