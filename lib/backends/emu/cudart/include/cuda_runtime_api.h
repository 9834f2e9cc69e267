/* cuda_runtime_api.h: the emulated CUDA runtime, for host programs that have neither toolkit nor GPU.
 * Names, values and meanings are those of CUDA 13; where CUDA 11 and 12 had other argument lists, those
 * compile as well (see the end). What is not declared here is not emulated: kernels of one's own,
 * textures, arrays, the driver interface. Every function is safe to call from any thread. Host functions
 * that streams call must not call the runtime. */
#ifndef TUTTI_EMU_CUDA_RUNTIME_API_H
#define TUTTI_EMU_CUDA_RUNTIME_API_H
#ifndef __CUDA_RUNTIME_API_H__ /* the guard of NVIDIA's header: whichever comes first stands */
#define __CUDA_RUNTIME_API_H__

#define CUDART_VERSION 13000
#define TUTTI_CUDART_EMULATED 1

#include "driver_types.h"

#ifdef __cplusplus
extern "C" {
#define TUTTI_CUDART_DEFAULT(value) = value
#else
#define TUTTI_CUDART_DEFAULT(value)
#endif

/* ---- errors: one value a thread, kept until asked for ---- */
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

/* ---- devices ---- */
cudaError_t cudaDriverGetVersion(int *driverVersion);
cudaError_t cudaRuntimeGetVersion(int *runtimeVersion);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags);
cudaError_t cudaSetDeviceFlags(unsigned int flags);
cudaError_t cudaGetDeviceFlags(unsigned int *flags);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attr, int srcDevice, int dstDevice);
cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device);
cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *pciBusId);
cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority);
cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice);
cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags);
cudaError_t cudaDeviceDisablePeerAccess(int peerDevice);
cudaError_t cudaDeviceSynchronize(void);
/* Waits for the current device, then frees the memory that the program allocated on it. Streams and events
 * stay. */
cudaError_t cudaDeviceReset(void);

/* ---- memory: sizes and pitches in bytes ---- */
cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaMallocPitch(void **devPtr, size_t *pitch, size_t width, size_t height);
cudaError_t cudaMallocManaged(void **devPtr, size_t size,
                              unsigned int flags TUTTI_CUDART_DEFAULT(cudaMemAttachGlobal));
cudaError_t cudaMallocHost(void **ptr, size_t size);
cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags);
cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t hStream);
cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags);
cudaError_t cudaHostUnregister(void *ptr);
cudaError_t cudaHostGetDevicePointer(void **pDevice, void *pHost, unsigned int flags);
cudaError_t cudaHostGetFlags(unsigned int *pFlags, void *pHost);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaMemcpyPeer(void *dst, int dstDevice, const void *src, int srcDevice, size_t count);
cudaError_t cudaMemcpyPeerAsync(void *dst, int dstDevice, const void *src, int srcDevice, size_t count,
                                cudaStream_t stream TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                         size_t height, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaMemset(void *devPtr, int value, size_t count);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t stream TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaMemset2D(void *devPtr, size_t pitch, int value, size_t width, size_t height);
cudaError_t cudaMemset2DAsync(void *devPtr, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream TUTTI_CUDART_DEFAULT(0));
/* Memory is not yet shared between processes: these answer cudaErrorNotSupported. */
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr);
cudaError_t cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags);
cudaError_t cudaIpcCloseMemHandle(void *devPtr);

/* ---- streams ---- */
cudaError_t cudaStreamCreate(cudaStream_t *pStream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *userData,
                                  unsigned int flags);
cudaError_t cudaStreamGetFlags(cudaStream_t hStream, unsigned int *flags);
cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int *priority);
cudaError_t cudaStreamGetDevice(cudaStream_t hStream, int *device);
cudaError_t cudaStreamGetId(cudaStream_t hStream, unsigned long long *streamId);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData);

/* ---- events ---- */
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream TUTTI_CUDART_DEFAULT(0),
                                     unsigned int flags TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

/* ---- captures ---- */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus);
/* The dependencies stay valid until the stream's next call. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *captureStatus_out,
                                     unsigned long long *id_out TUTTI_CUDART_DEFAULT(0),
                                     cudaGraph_t *graph_out TUTTI_CUDART_DEFAULT(0),
                                     const cudaGraphNode_t **dependencies_out TUTTI_CUDART_DEFAULT(0),
                                     const cudaGraphEdgeData **edgeData_out TUTTI_CUDART_DEFAULT(0),
                                     size_t *numDependencies_out TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);

/* ---- graphs ---- */
cudaError_t cudaGraphCreate(cudaGraph_t *pGraph, unsigned int flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                  const cudaGraphNode_t *pDependencies, size_t numDependencies);
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                 const cudaGraphNode_t *pDependencies, size_t numDependencies,
                                 const struct cudaHostNodeParams *pNodeParams);
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                     const cudaGraphNode_t *pDependencies, size_t numDependencies, void *dst,
                                     const void *src, size_t count, enum cudaMemcpyKind kind);
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                                   const cudaGraphNode_t *pDependencies, size_t numDependencies,
                                   const struct cudaMemsetParams *pMemsetParams);
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                     const cudaGraphNode_t *to, const cudaGraphEdgeData *edgeData,
                                     size_t numDependencies);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes);
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t *pRootNodes, size_t *pNumRootNodes);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *pType);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                          unsigned long long flags TUTTI_CUDART_DEFAULT(0));
cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec);

#ifdef __cplusplus
}
#endif

/* ---- earlier argument lists: CUDA 11's five for instantiating, CUDA 12's without edge data ---- */

static inline cudaError_t tutti_cudart_graph_instantiate_11(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                            cudaGraphNode_t *error_node, char *log,
                                                            size_t log_bytes) {
  if (error_node != NULL) *error_node = NULL;
  if (log != NULL && log_bytes != 0) log[0] = '\0';
  return cudaGraphInstantiateWithFlags(exec, graph, 0);
}
static inline cudaError_t tutti_cudart_capture_info_12(cudaStream_t stream,
                                                       enum cudaStreamCaptureStatus *status,
                                                       unsigned long long *id, cudaGraph_t *graph,
                                                       const cudaGraphNode_t **dependencies, size_t *count) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, dependencies, NULL, count);
}
static inline cudaError_t tutti_cudart_capture_info_11(cudaStream_t stream,
                                                       enum cudaStreamCaptureStatus *status,
                                                       unsigned long long *id) {
  return cudaStreamGetCaptureInfo(stream, status, id, NULL, NULL, NULL, NULL);
}
static inline cudaError_t tutti_cudart_add_dependencies_12(cudaGraph_t graph, const cudaGraphNode_t *from,
                                                           const cudaGraphNode_t *to, size_t count) {
  return cudaGraphAddDependencies(graph, from, to, NULL, count);
}
#define cudaStreamGetCaptureInfo_v2 tutti_cudart_capture_info_12
#define cudaStreamGetCaptureInfo_v3 cudaStreamGetCaptureInfo

#ifdef __cplusplus
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               cudaGraphNode_t *error_node, char *log, size_t log_bytes) {
  return tutti_cudart_graph_instantiate_11(exec, graph, error_node, log, log_bytes);
}
static inline cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from,
                                                   const cudaGraphNode_t *to, size_t count) {
  return cudaGraphAddDependencies(graph, from, to, NULL, count);
}
#else
/* C has no overloads, so the number of arguments chooses. */
#define TUTTI_CUDART_SIXTH(a, b, c, d, e, f, ...) f
#define TUTTI_CUDART_EIGHTH(a, b, c, d, e, f, g, h, ...) h
#define cudaGraphInstantiate(...) \
  TUTTI_CUDART_SIXTH(__VA_ARGS__, tutti_cudart_graph_instantiate_11, , cudaGraphInstantiateWithFlags, , 0) \
  (__VA_ARGS__)
#define cudaGraphAddDependencies(...) \
  TUTTI_CUDART_SIXTH(__VA_ARGS__, (cudaGraphAddDependencies), tutti_cudart_add_dependencies_12, , , 0) \
  (__VA_ARGS__)
#define cudaStreamGetCaptureInfo(...) \
  TUTTI_CUDART_EIGHTH(__VA_ARGS__, (cudaStreamGetCaptureInfo), tutti_cudart_capture_info_12, , , \
                      tutti_cudart_capture_info_11, , 0) \
  (__VA_ARGS__)
#endif

#endif
#endif
