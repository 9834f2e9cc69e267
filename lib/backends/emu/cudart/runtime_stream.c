/* runtime_stream.c: the emulated runtime's streams, events and captures: looks handles up, refuses what
 * CUDA refuses while a stream captures, and passes on. */
#include "backends/emu/cudart/runtime.h"

#include <string.h>

#include "base/open_group.h"

static struct emu_stream *stream_at(cudaStream_t handle) { return emu_stream_find(handle); }

/* Runs `act` on the stream under the lock. */
static cudaError_t with_stream(cudaStream_t handle, int (*act)(struct emu_stream *stream, void *argument),
                               void *argument) {
  emu_lock();
  struct emu_stream *stream = stream_at(handle);
  int error = stream == NULL ? cudaErrorInvalidResourceHandle : act(stream, argument);
  emu_unlock();
  return runtime_result(error);
}

/* ---- life ---- */

cudaError_t tutti_cudart_StreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority) {
  if (handle == NULL || (flags & ~(unsigned)cudaStreamNonBlocking) != 0)
    return runtime_result(cudaErrorInvalidValue);
  const int forked = runtime_fork_check();
  if (forked != 0) return runtime_result(forked);
  int clamped = priority > 0 ? 0 : priority < -5 ? -5 : priority;
  struct emu_stream *stream;
  emu_lock();
  stream_threads_collect();
  int error = emu_stream_create(emu_device_current(), flags, clamped, &stream);
  emu_unlock();
  if (error == 0) *handle = (cudaStream_t)(void *)stream;
  return runtime_result(error);
}

cudaError_t tutti_cudart_StreamCreateWithFlags(cudaStream_t *handle, unsigned flags) {
  return tutti_cudart_StreamCreateWithPriority(handle, flags, 0);
}

cudaError_t tutti_cudart_StreamCreate(cudaStream_t *handle) {
  return tutti_cudart_StreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

static int stream_destroy(struct emu_stream *stream, void *argument) {
  (void)argument;
  emu_stream_destroy(stream);
  if (!emu_in_host_function()) stream_threads_collect();
  return 0;
}

cudaError_t tutti_cudart_StreamDestroy(cudaStream_t handle) {
  if ((uintptr_t)handle <= (uintptr_t)cudaStreamPerThread)
    return runtime_result(cudaErrorInvalidResourceHandle);
  return with_stream(handle, stream_destroy, NULL);
}

/* ---- waiting ---- */

static int wait_permitted(struct emu_stream *stream) {
  int error = emu_capture_spoil(stream, cudaErrorStreamCaptureUnsupported);
  if (error == 0 && stream->legacy) error = emu_capture_legacy_use(stream->device_index);
  return error != 0 ? error : emu_capture_unsafe_call();
}

static int stream_synchronize(struct emu_stream *stream, void *argument) {
  (void)argument;
  int error = wait_permitted(stream);
  return error != 0 ? error : emu_stream_synchronize(stream);
}

cudaError_t tutti_cudart_StreamSynchronize(cudaStream_t handle) {
  if (open_group_blocks("cudaStreamSynchronize", handle, emu_device_current(), false))
    return runtime_result(cudaErrorNotPermitted);
  return with_stream(handle, stream_synchronize, NULL);
}

static int stream_query(struct emu_stream *stream, void *argument) {
  (void)argument;
  int error = wait_permitted(stream);
  return error != 0 ? error : emu_stream_query(stream);
}

cudaError_t tutti_cudart_StreamQuery(cudaStream_t handle) { return with_stream(handle, stream_query, NULL); }

/* ---- properties ---- */

static int stream_flags(struct emu_stream *stream, void *argument) {
  *(unsigned *)argument = stream->flags;
  return 0;
}

cudaError_t tutti_cudart_StreamGetFlags(cudaStream_t handle, unsigned *flags) {
  return flags == NULL ? runtime_result(cudaErrorInvalidValue) : with_stream(handle, stream_flags, flags);
}

static int stream_priority(struct emu_stream *stream, void *argument) {
  *(int *)argument = stream->priority;
  return 0;
}

cudaError_t tutti_cudart_StreamGetPriority(cudaStream_t handle, int *priority) {
  return priority == NULL ? runtime_result(cudaErrorInvalidValue)
                          : with_stream(handle, stream_priority, priority);
}

static int stream_device(struct emu_stream *stream, void *argument) {
  *(int *)argument = (int)stream->device_index;
  return 0;
}

cudaError_t tutti_cudart_StreamGetDevice(cudaStream_t handle, int *device) {
  return device == NULL ? runtime_result(cudaErrorInvalidValue) : with_stream(handle, stream_device, device);
}

static int stream_id(struct emu_stream *stream, void *argument) {
  *(unsigned long long *)argument =
      ((unsigned long long)stream->device_index << 32 | stream->stream_index) + 1;
  return 0;
}

cudaError_t tutti_cudart_StreamGetId(cudaStream_t handle, unsigned long long *id) {
  return id == NULL ? runtime_result(cudaErrorInvalidValue) : with_stream(handle, stream_id, id);
}

/* ---- host functions ---- */

static int host_work(struct emu_stream *stream, void *argument) {
  return emu_stream_work(stream, (const struct emu_work *)argument);
}

cudaError_t tutti_cudart_LaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *argument) {
  if (function == NULL) return runtime_result(cudaErrorInvalidValue);
  struct emu_work work;
  memset(&work, 0, sizeof work);
  work.kind = WORK_HOST;
  work.as.host.function = function;
  work.as.host.argument = argument;
  return with_stream(handle, host_work, &work);
}

/* The older form, with two more arguments to carry; it belongs to its one call. */
struct callback {
  cudaStream_t handle;
  cudaStreamCallback_t function;
  void *argument;
};

static void callback_run(void *argument) {
  struct callback callback = *(struct callback *)argument;
  os_free(argument);
  callback.function(callback.handle, cudaSuccess, callback.argument);
}

static int callback_work(struct emu_stream *stream, void *argument) {
  struct emu_work work;
  memset(&work, 0, sizeof work);
  work.kind = WORK_HOST;
  work.as.host.function = callback_run;
  work.as.host.argument = argument;
  int error = emu_capture_spoil(stream, cudaErrorStreamCaptureUnsupported);
  return error != 0 ? error : emu_stream_work(stream, &work);
}

cudaError_t tutti_cudart_StreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void *argument,
                                           unsigned flags) {
  if (function == NULL || flags != 0) return runtime_result(cudaErrorInvalidValue);
  struct callback *callback = (struct callback *)os_alloc(sizeof *callback);
  if (callback == NULL) return runtime_result(cudaErrorMemoryAllocation);
  callback->handle = handle;
  callback->function = function;
  callback->argument = argument;
  cudaError_t error = with_stream(handle, callback_work, callback);
  if (error != cudaSuccess) os_free(callback);
  return error;
}

/* ---- events ---- */

cudaError_t tutti_cudart_EventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
  const unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (handle == NULL || (flags & ~known) != 0) return runtime_result(cudaErrorInvalidValue);
  if ((flags & cudaEventInterprocess) != 0) return runtime_result(cudaErrorNotSupported);
  struct emu_event *event = (struct emu_event *)os_alloc(sizeof *event);
  if (event == NULL) return runtime_result(cudaErrorMemoryAllocation);
  event->device_index = emu_device_current();
  event->flags = flags;
  emu_lock();
  emu_handle_insert(&event->handle, HANDLE_EVENT);
  emu_unlock();
  *handle = (cudaEvent_t)(void *)event;
  return cudaSuccess;
}

cudaError_t tutti_cudart_EventCreate(cudaEvent_t *handle) {
  return tutti_cudart_EventCreateWithFlags(handle, cudaEventDefault);
}

static struct emu_event *event_at(cudaEvent_t handle) {
  return handle != NULL && emu_handle_live(handle, HANDLE_EVENT) ? (struct emu_event *)(void *)handle : NULL;
}

/* Streams that record or await the event hold its points, not the event. */
cudaError_t tutti_cudart_EventDestroy(cudaEvent_t handle) {
  emu_lock();
  struct emu_event *event = event_at(handle);
  if (event != NULL) {
    emu_handle_remove(&event->handle);
    stream_point_drop(event->point);
    node_list_clear(&event->nodes);
    os_free(event);
  }
  emu_unlock();
  return runtime_result(event == NULL ? cudaErrorInvalidResourceHandle : 0);
}

cudaError_t tutti_cudart_EventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle,
                                              unsigned flags) {
  if (flags == cudaEventRecordExternal) return runtime_result(cudaErrorNotSupported);
  if (flags != cudaEventRecordDefault) return runtime_result(cudaErrorInvalidValue);
  emu_lock();
  struct emu_event *event = event_at(handle);
  struct emu_stream *stream = stream_at(stream_handle);
  int error =
      event == NULL || stream == NULL ? cudaErrorInvalidResourceHandle : emu_stream_record(stream, event);
  emu_unlock();
  return runtime_result(error);
}

cudaError_t tutti_cudart_EventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return tutti_cudart_EventRecordWithFlags(handle, stream, cudaEventRecordDefault);
}

cudaError_t tutti_cudart_StreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags) {
  if (flags == cudaEventWaitExternal) return runtime_result(cudaErrorNotSupported);
  if (flags != cudaEventWaitDefault) return runtime_result(cudaErrorInvalidValue);
  emu_lock();
  struct emu_event *event = event_at(handle);
  struct emu_stream *stream = stream_at(stream_handle);
  int error =
      event == NULL || stream == NULL ? cudaErrorInvalidResourceHandle : emu_stream_wait_event(stream, event);
  emu_unlock();
  return runtime_result(error);
}

static cudaError_t event_ask(cudaEvent_t handle, int (*ask)(struct stream_point *point)) {
  emu_lock();
  struct emu_event *event = event_at(handle);
  int error = event == NULL ? cudaErrorInvalidResourceHandle : emu_capture_event_spoil(event);
  if (error == 0) error = emu_capture_unsafe_call();
  if (error == 0 && event->point != NULL) error = ask(event->point);
  emu_unlock();
  return runtime_result(error);
}

cudaError_t tutti_cudart_EventQuery(cudaEvent_t handle) { return event_ask(handle, emu_point_query); }

cudaError_t tutti_cudart_EventSynchronize(cudaEvent_t handle) {
  return event_ask(handle, emu_point_synchronize);
}

static int elapsed(const struct emu_event *start, const struct emu_event *end, float *ms) {
  if (start == NULL || end == NULL) return cudaErrorInvalidResourceHandle;
  if (start->capture_id != 0 || end->capture_id != 0) return cudaErrorInvalidValue;
  if (start->point == NULL || end->point == NULL || start->device_index != end->device_index ||
      ((start->flags | end->flags) & cudaEventDisableTiming) != 0) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!start->point->reached || !end->point->reached) return cudaErrorNotReady;
  *ms = (float)((double)(int64_t)(end->point->time_ns - start->point->time_ns) / 1e6);
  return 0;
}

cudaError_t tutti_cudart_EventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  if (ms == NULL) return runtime_result(cudaErrorInvalidValue);
  emu_lock();
  int error = elapsed(event_at(start), event_at(end), ms);
  emu_unlock();
  return runtime_result(error);
}

/* ---- captures ---- */

static int capture_begin(struct emu_stream *stream, void *argument) {
  return emu_capture_begin(stream, *(const int *)argument);
}

cudaError_t tutti_cudart_StreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  int number = (int)mode;
  return with_stream(handle, capture_begin, &number);
}

static int capture_end(struct emu_stream *stream, void *argument) {
  struct emu_graph *graph;
  int error = emu_capture_end(stream, &graph);
  *(cudaGraph_t *)argument = error == 0 ? (cudaGraph_t)(void *)graph : NULL;
  return error;
}

cudaError_t tutti_cudart_StreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  return graph == NULL ? runtime_result(cudaErrorInvalidValue) : with_stream(handle, capture_end, graph);
}

static int capture_status(struct emu_stream *stream, void *argument) {
  if (stream->legacy && emu_capture_touches_legacy(stream->device_index))
    return cudaErrorStreamCaptureImplicit;
  *(enum cudaStreamCaptureStatus *)argument = (enum cudaStreamCaptureStatus)emu_capture_status(stream);
  return 0;
}

cudaError_t tutti_cudart_StreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  return status == NULL ? runtime_result(cudaErrorInvalidValue) : with_stream(handle, capture_status, status);
}

struct capture_info {
  enum cudaStreamCaptureStatus *status;
  unsigned long long *id;
  cudaGraph_t *graph;
  const cudaGraphNode_t **dependencies;
  const cudaGraphEdgeData **edges;
  size_t *count;
};

static int capture_info(struct emu_stream *stream, void *argument) {
  const struct capture_info *info = (const struct capture_info *)argument;
  if (stream->legacy && emu_capture_touches_legacy(stream->device_index))
    return cudaErrorStreamCaptureImplicit;
  *info->status = (enum cudaStreamCaptureStatus)emu_capture_status(stream);
  if (*info->status != cudaStreamCaptureStatusActive) return 0;
  if (info->id != NULL) *info->id = emu_stream_capture_id(stream);
  if (info->graph != NULL) *info->graph = (cudaGraph_t)(void *)emu_capture_graph(stream);
  if (info->dependencies != NULL)
    *info->dependencies = (const cudaGraphNode_t *)(const void *)stream->frontier.items;
  if (info->edges != NULL) *info->edges = NULL;
  if (info->count != NULL) *info->count = stream->frontier.count;
  return 0;
}

cudaError_t tutti_cudart_StreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                              unsigned long long *id, cudaGraph_t *graph,
                                              const cudaGraphNode_t **dependencies,
                                              const cudaGraphEdgeData **edges, size_t *count) {
  if (status == NULL) return runtime_result(cudaErrorInvalidValue);
  struct capture_info info = {status, id, graph, dependencies, edges, count};
  return with_stream(handle, capture_info, &info);
}

cudaError_t tutti_cudart_ThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  if (mode == NULL || (int)*mode < cudaStreamCaptureModeGlobal || (int)*mode > cudaStreamCaptureModeRelaxed) {
    return runtime_result(cudaErrorInvalidValue);
  }
  *mode = (enum cudaStreamCaptureMode)emu_capture_thread_mode((int)*mode);
  return cudaSuccess;
}
