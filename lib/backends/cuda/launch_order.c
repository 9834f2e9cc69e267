/* launch_order.c: a rank's kernels share its connections, so they run in call order, on any streams. It
 * promises that a launch on the same stream as the last one adds only the kernel to it, that the fate of
 * earlier streams does not matter, and that nothing here waits on the host. It counts blocks and knows
 * nothing of plans. README.md explains why this is correct ("How launches are ordered"). */
#include <cuda.h>

#include "backends/cuda/device.h"
#include "base/log.h"

typedef CUresult (*wait_value_function)(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                        unsigned flags);

static wait_value_function wait_value; /* written under cuda_mutex, always the same value */

/* ---- open and close ---- */

/* Whether a stream of this device can wait for a count in memory. */
static bool counts_waitable(uint32_t device_index) {
  *(void **)&wait_value = cuda_driver_function("cuStreamWaitValue64_v2");
  return wait_value != NULL &&
         cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
}

ncclResult_t cuda_order_open(struct cuda_order *order, uint32_t device_index) {
  order->by_events = !counts_waitable(device_index);
  if (order->by_events)
    log_info(LOG_INIT, "device %u has no stream memory operations: an event follows every launch",
             device_index);
  TRY(cuda_arena_take(device_index, sizeof *order->counts, &order->counts_block));
  order->counts = (struct launch_counts *)order->counts_block.address;
  TRY(cuda_result(cudaEventCreateWithFlags(&order->serial, cudaEventDisableTiming), "making an event"));
  TRY(cuda_result(cudaEventCreateWithFlags(&order->captured, cudaEventDisableTiming), "making an event"));
  return cuda_result(cudaEventCreateWithFlags(&order->join, cudaEventDisableTiming), "making an event");
}

void cuda_order_close(struct cuda_order *order, bool lost) {
  if (!lost && order->stream != NULL) cudaStreamDestroy(order->stream);
  if (!lost && order->serial != NULL) cudaEventDestroy(order->serial);
  if (!lost && order->captured != NULL) cudaEventDestroy(order->captured);
  if (!lost && order->join != NULL) cudaEventDestroy(order->join);
  cuda_arena_give(&order->counts_block);
}

/* ---- streams ---- */

int cuda_order_capture(cudaStream_t stream, struct cuda_capture *capture) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = NULL;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &id, &graph, NULL, NULL, NULL);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, &id, &graph, NULL, NULL);
#endif
  const bool captured = error == cudaSuccess && status != cudaStreamCaptureStatusNone;
  capture->id = captured ? id : 0;
  capture->graph = captured ? graph : NULL;
  if (error != cudaErrorStreamCaptureImplicit) return error;
  cudaGetLastError(); /* the legacy stream fails while another one is captured; it is not captured */
  return 0;
}

/* A key that never repeats for a different stream: a handle can be reused after its stream was destroyed, and
 * the per-thread handle is a different stream in every thread. This library assigns numbers from the top. */
static int stream_key_of(cudaStream_t stream, bool captured, uint64_t *key) {
  static uint64_t last_thread;
  static _Thread_local uint64_t thread;
  unsigned long long id = 0;
  if (thread == 0) thread = __atomic_add_fetch(&last_thread, 1, __ATOMIC_RELAXED);
  *key = stream == cudaStreamPerThread ? ~thread : UINT64_MAX;
  if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return 0;
  if (captured) { /* its id cannot be queried, and its handle lives as long as the capture */
    *key = (uint64_t)(uintptr_t)stream;
    return 0;
  }
  const cudaError_t error = cudaStreamGetId(stream, &id);
  *key = id;
  return error;
}

int cuda_order_stream_key(cudaStream_t stream, uint64_t *key) { return stream_key_of(stream, false, key); }

/* Kernels of several communicators have no order where a device has no 64-bit stream memory operations. */
int cuda_order_await(const struct launch_counts *counts, uint64_t target, cudaStream_t stream) {
  const CUdeviceptr address = (CUdeviceptr)(uintptr_t)&counts->plain_ended;
  if (wait_value == NULL) return 0;
  const CUresult error = wait_value((CUstream)stream, address, target, CU_STREAM_WAIT_VALUE_GEQ);
  return error == CUDA_SUCCESS ? 0 : cudaErrorUnknown;
}

static int counts_wait(const struct cuda_order *order, cudaStream_t stream) {
  return cuda_order_await(order->counts, order->blocks_launched, stream);
}

static int streams_join(const struct cuda_order *order, const device_stream *streams, uint32_t stream_count,
                        bool before) {
  const cudaStream_t first = (cudaStream_t)streams[0];
  int error = before ? 0 : cudaEventRecord(order->join, first);
  for (uint32_t i = 1; i < stream_count && error == 0; i++) {
    const cudaStream_t other = (cudaStream_t)streams[i];
    if (before) error = cudaEventRecord(order->join, other);
    if (error == 0) error = cudaStreamWaitEvent(before ? first : other, order->join, 0);
  }
  return error;
}

/* ---- launches by the host ---- */

static int plain_before(struct cuda_order *order, cudaStream_t stream, uint64_t key) {
  if (order->captured_ever) return cudaStreamWaitEvent(stream, order->serial, 0);
  if (order->blocks_launched == 0 || key == order->stream_key) return 0;
  if (!order->by_events) return counts_wait(order, stream);
  return cudaStreamWaitEvent(stream, order->serial, 0);
}

/* ---- launches by graphs ---- */

/* From now on `serial` is recorded after the rank's launches of either kind. Earlier launches are on streams
 * that may no longer exist, so the library's own stream waits for their count. */
static int captures_begin(struct cuda_order *order) {
  int error = 0;
  if (order->captured_ever) return 0;
  if (!order->by_events && order->blocks_launched > 0) {
    error = cudaStreamCreateWithFlags(&order->stream, cudaStreamNonBlocking);
    if (error == 0) error = counts_wait(order, order->stream);
    if (error == 0) error = cudaEventRecord(order->serial, order->stream);
  }
  if (error == 0) order->by_events = order->captured_ever = true;
  return error;
}

/* On the capture's own stream the order is implied; an additional edge would cost time in every replay. */
static int graph_before(struct cuda_order *order, cudaStream_t stream, uint64_t key,
                        const struct cuda_capture *capture) {
  const bool first = order->graph_id != capture->id, same = order->captured_key == key;
  order->captured_key = key;
  if (!first) return same ? 0 : cudaStreamWaitEvent(stream, order->captured, 0);
  const int error = captures_begin(order);
  if (error != 0) return error;
  return cudaStreamWaitEvent(stream, order->serial, cudaEventWaitExternal);
}

/* The capture's last node: the kernel just launched. */
static int capture_last(cudaStream_t stream, cudaGraphNode_t *last) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t *nodes = NULL;
  size_t node_count = 0;
#if CUDART_VERSION >= 13000
  const cudaGraphEdgeData *edges = NULL;
  const cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &nodes, &edges, &node_count);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &nodes, &node_count);
#endif
  if (error != cudaSuccess) return error;
  if (node_count == 0) return cudaErrorStreamCaptureInvalidated;
  *last = nodes[0];
  return 0;
}

static int edge_add(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(graph, &from, &to, NULL, 1);
#else
  return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
}

static int edge_remove(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
  return cudaGraphRemoveDependencies(graph, &from, &to, NULL, 1);
#else
  return cudaGraphRemoveDependencies(graph, &from, &to, 1);
#endif
}

/* One node per graph records `serial`, after the rank's last kernel in it. It is beside the stream, so that
 * later captured work does not wait for it. */
static int graph_record(struct cuda_order *order, cudaStream_t stream, const struct cuda_capture *capture) {
  cudaGraphNode_t last = NULL;
  int error = capture_last(stream, &last);
  if (error != 0) return error;
  if (order->graph_id != capture->id) {
    error = cudaGraphAddEventRecordNode(&order->record, capture->graph, &last, 1, order->serial);
  } else {
    error = edge_add(capture->graph, last, order->record);
    if (error == 0) error = edge_remove(capture->graph, order->record_after, order->record);
  }
  if (error != 0) return error;
  order->graph_id = capture->id;
  order->record_after = last;
  return cudaEventRecord(order->captured, stream);
}

/* ---- both ---- */

int cuda_order_before(struct cuda_order *order, const device_stream *streams, uint32_t stream_count,
                      const struct cuda_capture *capture) {
  const cudaStream_t stream = (cudaStream_t)streams[0];
  uint64_t key = 0;
  int error = stream_count > 1 ? streams_join(order, streams, stream_count, true) : 0;
  if (error == 0) error = stream_key_of(stream, capture->id != 0, &key);
  if (error == 0 && capture->id != 0) return graph_before(order, stream, key, capture);
  if (error == 0) error = plain_before(order, stream, key);
  if (error == 0) order->stream_key = key;
  return error;
}

int cuda_order_after(struct cuda_order *order, const device_stream *streams, uint32_t stream_count,
                     const struct cuda_capture *capture, uint32_t block_count) {
  const cudaStream_t stream = (cudaStream_t)streams[0];
  int error = 0;
  if (capture->id == 0) {
    __atomic_store_n(&order->blocks_launched, order->blocks_launched + block_count, __ATOMIC_RELEASE);
    if (order->by_events) error = cudaEventRecord(order->serial, stream);
  } else {
    error = graph_record(order, stream, capture);
  }
  if (error == 0 && stream_count > 1) error = streams_join(order, streams, stream_count, false);
  return error;
}

int cuda_order_ended(const struct cuda_order *order, cudaStream_t stream, struct launch_counts *seen,
                     bool *ended) {
  int error = 0;
  if (order->captured_ever || seen->plain_ended != order->blocks_launched) {
    error = cudaMemcpyAsync(seen, order->counts, sizeof *seen, cudaMemcpyDeviceToHost, stream);
    if (error == 0) error = cudaStreamSynchronize(stream);
  }
  if (error == 0)
    *ended = seen->plain_ended == order->blocks_launched && seen->graph_started == seen->graph_ended;
  return error;
}
