/* cudart.h: the interface between the emulator's two libraries. libtutti-cudart.so has only the names that
 * CUDA programs call. The implementation is in libnccl.so.2, which uses it, too, under the same names with
 * another prefix. One row per function: X(type, name without prefix, (parameters), (arguments)). */
#ifndef TUTTI_BACKENDS_EMU_CUDART_CUDART_H
#define TUTTI_BACKENDS_EMU_CUDART_CUDART_H

#include "backends/emu/cudart/include/cuda_runtime.h"
#include "backends/emu/cudart/include/cuda_profiler_api.h"

#define TUTTI_CUDART_CALLS(X)                                                                                \
  X(cudaError_t, GetLastError, (void), ())                                                                   \
  X(cudaError_t, PeekAtLastError, (void), ())                                                                \
  X(const char *, GetErrorName, (cudaError_t error), (error))                                                \
  X(const char *, GetErrorString, (cudaError_t error), (error))                                              \
  X(cudaError_t, DriverGetVersion, (int *driverVersion), (driverVersion))                                    \
  X(cudaError_t, RuntimeGetVersion, (int *runtimeVersion), (runtimeVersion))                                 \
  X(cudaError_t, GetDeviceCount, (int *count), (count))                                                      \
  X(cudaError_t, SetDevice, (int device), (device))                                                          \
  X(cudaError_t, GetDevice, (int *device), (device))                                                         \
  X(cudaError_t, InitDevice, (int device, unsigned int deviceFlags, unsigned int flags),                     \
    (device, deviceFlags, flags))                                                                            \
  X(cudaError_t, SetDeviceFlags, (unsigned int flags), (flags))                                              \
  X(cudaError_t, GetDeviceFlags, (unsigned int *flags), (flags))                                             \
  X(cudaError_t, GetDeviceProperties, (struct cudaDeviceProp * prop, int device), (prop, device))            \
  X(cudaError_t, DeviceGetAttribute, (int *value, enum cudaDeviceAttr attr, int device),                     \
    (value, attr, device))                                                                                   \
  X(cudaError_t, DeviceGetP2PAttribute,                                                                      \
    (int *value, enum cudaDeviceP2PAttr attr, int srcDevice, int dstDevice),                                 \
    (value, attr, srcDevice, dstDevice))                                                                     \
  X(cudaError_t, DeviceGetPCIBusId, (char *pciBusId, int len, int device), (pciBusId, len, device))          \
  X(cudaError_t, DeviceGetByPCIBusId, (int *device, const char *pciBusId), (device, pciBusId))               \
  X(cudaError_t, DeviceGetStreamPriorityRange, (int *leastPriority, int *greatestPriority),                  \
    (leastPriority, greatestPriority))                                                                       \
  X(cudaError_t, DeviceCanAccessPeer, (int *canAccessPeer, int device, int peerDevice),                      \
    (canAccessPeer, device, peerDevice))                                                                     \
  X(cudaError_t, DeviceEnablePeerAccess, (int peerDevice, unsigned int flags), (peerDevice, flags))          \
  X(cudaError_t, DeviceDisablePeerAccess, (int peerDevice), (peerDevice))                                    \
  X(cudaError_t, DeviceSynchronize, (void), ())                                                              \
  X(cudaError_t, DeviceReset, (void), ())                                                                    \
  X(cudaError_t, Malloc, (void **devPtr, size_t size), (devPtr, size))                                       \
  X(cudaError_t, MallocPitch, (void **devPtr, size_t *pitch, size_t width, size_t height),                   \
    (devPtr, pitch, width, height))                                                                          \
  X(cudaError_t, MallocManaged, (void **devPtr, size_t size, unsigned int flags), (devPtr, size, flags))     \
  X(cudaError_t, MallocHost, (void **ptr, size_t size), (ptr, size))                                         \
  X(cudaError_t, HostAlloc, (void **pHost, size_t size, unsigned int flags), (pHost, size, flags))           \
  X(cudaError_t, MallocAsync, (void **devPtr, size_t size, cudaStream_t hStream), (devPtr, size, hStream))   \
  X(cudaError_t, Free, (void *devPtr), (devPtr))                                                             \
  X(cudaError_t, FreeHost, (void *ptr), (ptr))                                                               \
  X(cudaError_t, FreeAsync, (void *devPtr, cudaStream_t hStream), (devPtr, hStream))                         \
  X(cudaError_t, HostRegister, (void *ptr, size_t size, unsigned int flags), (ptr, size, flags))             \
  X(cudaError_t, HostUnregister, (void *ptr), (ptr))                                                         \
  X(cudaError_t, HostGetDevicePointer, (void **pDevice, void *pHost, unsigned int flags),                    \
    (pDevice, pHost, flags))                                                                                 \
  X(cudaError_t, HostGetFlags, (unsigned int *pFlags, void *pHost), (pFlags, pHost))                         \
  X(cudaError_t, MemGetInfo, (size_t * free, size_t * total), (free, total))                                 \
  X(cudaError_t, PointerGetAttributes, (struct cudaPointerAttributes * attributes, const void *ptr),         \
    (attributes, ptr))                                                                                       \
  X(cudaError_t, Memcpy, (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind),               \
    (dst, src, count, kind))                                                                                 \
  X(cudaError_t, MemcpyAsync,                                                                                \
    (void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream),               \
    (dst, src, count, kind, stream))                                                                         \
  X(cudaError_t, MemcpyPeer, (void *dst, int dstDevice, const void *src, int srcDevice, size_t count),       \
    (dst, dstDevice, src, srcDevice, count))                                                                 \
  X(cudaError_t, MemcpyPeerAsync,                                                                            \
    (void *dst, int dstDevice, const void *src, int srcDevice, size_t count, cudaStream_t stream),           \
    (dst, dstDevice, src, srcDevice, count, stream))                                                         \
  X(cudaError_t, Memcpy2D,                                                                                   \
    (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,                  \
     enum cudaMemcpyKind kind),                                                                              \
    (dst, dpitch, src, spitch, width, height, kind))                                                         \
  X(cudaError_t, Memcpy2DAsync,                                                                              \
    (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,                  \
     enum cudaMemcpyKind kind, cudaStream_t stream),                                                         \
    (dst, dpitch, src, spitch, width, height, kind, stream))                                                 \
  X(cudaError_t, Memset, (void *devPtr, int value, size_t count), (devPtr, value, count))                    \
  X(cudaError_t, MemsetAsync, (void *devPtr, int value, size_t count, cudaStream_t stream),                  \
    (devPtr, value, count, stream))                                                                          \
  X(cudaError_t, Memset2D, (void *devPtr, size_t pitch, int value, size_t width, size_t height),             \
    (devPtr, pitch, value, width, height))                                                                   \
  X(cudaError_t, Memset2DAsync,                                                                              \
    (void *devPtr, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream),               \
    (devPtr, pitch, value, width, height, stream))                                                           \
  X(cudaError_t, IpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *devPtr), (handle, devPtr))             \
  X(cudaError_t, IpcOpenMemHandle, (void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags),           \
    (devPtr, handle, flags))                                                                                 \
  X(cudaError_t, IpcCloseMemHandle, (void *devPtr), (devPtr))                                                \
  X(cudaError_t, StreamCreate, (cudaStream_t * pStream), (pStream))                                          \
  X(cudaError_t, StreamCreateWithFlags, (cudaStream_t * pStream, unsigned int flags), (pStream, flags))      \
  X(cudaError_t, StreamCreateWithPriority, (cudaStream_t * pStream, unsigned int flags, int priority),       \
    (pStream, flags, priority))                                                                              \
  X(cudaError_t, StreamDestroy, (cudaStream_t stream), (stream))                                             \
  X(cudaError_t, StreamSynchronize, (cudaStream_t stream), (stream))                                         \
  X(cudaError_t, StreamQuery, (cudaStream_t stream), (stream))                                               \
  X(cudaError_t, StreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),              \
    (stream, event, flags))                                                                                  \
  X(cudaError_t, StreamAddCallback,                                                                          \
    (cudaStream_t stream, cudaStreamCallback_t callback, void *userData, unsigned int flags),                \
    (stream, callback, userData, flags))                                                                     \
  X(cudaError_t, StreamGetFlags, (cudaStream_t hStream, unsigned int *flags), (hStream, flags))              \
  X(cudaError_t, StreamGetPriority, (cudaStream_t hStream, int *priority), (hStream, priority))              \
  X(cudaError_t, StreamGetDevice, (cudaStream_t hStream, int *device), (hStream, device))                    \
  X(cudaError_t, StreamGetId, (cudaStream_t hStream, unsigned long long *streamId), (hStream, streamId))     \
  X(cudaError_t, LaunchHostFunc, (cudaStream_t stream, cudaHostFn_t fn, void *userData),                     \
    (stream, fn, userData))                                                                                  \
  X(cudaError_t, EventCreate, (cudaEvent_t * event), (event))                                                \
  X(cudaError_t, EventCreateWithFlags, (cudaEvent_t * event, unsigned int flags), (event, flags))            \
  X(cudaError_t, EventDestroy, (cudaEvent_t event), (event))                                                 \
  X(cudaError_t, EventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))                     \
  X(cudaError_t, EventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned int flags),         \
    (event, stream, flags))                                                                                  \
  X(cudaError_t, EventQuery, (cudaEvent_t event), (event))                                                   \
  X(cudaError_t, EventSynchronize, (cudaEvent_t event), (event))                                             \
  X(cudaError_t, EventElapsedTime, (float *ms, cudaEvent_t start, cudaEvent_t end), (ms, start, end))        \
  X(cudaError_t, StreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode), (stream, mode)) \
  X(cudaError_t, StreamEndCapture, (cudaStream_t stream, cudaGraph_t * pGraph), (stream, pGraph))            \
  X(cudaError_t, StreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus * pCaptureStatus),    \
    (stream, pCaptureStatus))                                                                                \
  X(cudaError_t, StreamGetCaptureInfo,                                                                       \
    (cudaStream_t stream, enum cudaStreamCaptureStatus * captureStatus_out, unsigned long long *id_out,      \
     cudaGraph_t *graph_out, const cudaGraphNode_t **dependencies_out,                                       \
     const cudaGraphEdgeData **edgeData_out, size_t *numDependencies_out),                                   \
    (stream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out, numDependencies_out))     \
  X(cudaError_t, ThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode), (mode))               \
  X(cudaError_t, GraphCreate, (cudaGraph_t * pGraph, unsigned int flags), (pGraph, flags))                   \
  X(cudaError_t, GraphDestroy, (cudaGraph_t graph), (graph))                                                 \
  X(cudaError_t, GraphAddEmptyNode,                                                                          \
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,                  \
     size_t numDependencies),                                                                                \
    (pGraphNode, graph, pDependencies, numDependencies))                                                     \
  X(cudaError_t, GraphAddHostNode,                                                                           \
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,                  \
     size_t numDependencies, const struct cudaHostNodeParams *pNodeParams),                                  \
    (pGraphNode, graph, pDependencies, numDependencies, pNodeParams))                                        \
  X(cudaError_t, GraphAddMemcpyNode1D,                                                                       \
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,                  \
     size_t numDependencies, void *dst, const void *src, size_t count, enum cudaMemcpyKind kind),            \
    (pGraphNode, graph, pDependencies, numDependencies, dst, src, count, kind))                              \
  X(cudaError_t, GraphAddMemsetNode,                                                                         \
    (cudaGraphNode_t * pGraphNode, cudaGraph_t graph, const cudaGraphNode_t *pDependencies,                  \
     size_t numDependencies, const struct cudaMemsetParams *pMemsetParams),                                  \
    (pGraphNode, graph, pDependencies, numDependencies, pMemsetParams))                                      \
  X(cudaError_t, GraphAddDependencies,                                                                       \
    (cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,                              \
     const cudaGraphEdgeData *edgeData, size_t numDependencies),                                             \
    (graph, from, to, edgeData, numDependencies))                                                            \
  X(cudaError_t, GraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t * nodes, size_t * numNodes),             \
    (graph, nodes, numNodes))                                                                                \
  X(cudaError_t, GraphGetRootNodes,                                                                          \
    (cudaGraph_t graph, cudaGraphNode_t * pRootNodes, size_t * pNumRootNodes),                               \
    (graph, pRootNodes, pNumRootNodes))                                                                      \
  X(cudaError_t, GraphNodeGetType, (cudaGraphNode_t node, enum cudaGraphNodeType * pType), (node, pType))    \
  X(cudaError_t, GraphInstantiate,                                                                           \
    (cudaGraphExec_t * pGraphExec, cudaGraph_t graph, unsigned long long flags), (pGraphExec, graph, flags)) \
  X(cudaError_t, GraphInstantiateWithFlags,                                                                  \
    (cudaGraphExec_t * pGraphExec, cudaGraph_t graph, unsigned long long flags), (pGraphExec, graph, flags)) \
  X(cudaError_t, GraphUpload, (cudaGraphExec_t graphExec, cudaStream_t stream), (graphExec, stream))         \
  X(cudaError_t, GraphLaunch, (cudaGraphExec_t graphExec, cudaStream_t stream), (graphExec, stream))         \
  X(cudaError_t, GraphExecDestroy, (cudaGraphExec_t graphExec), (graphExec))                                 \
  X(cudaError_t, ProfilerStart, (void), ())                                                                  \
  X(cudaError_t, ProfilerStop, (void), ())

/* Exported, whatever the rest of the library is compiled with. */
#define TUTTI_CUDART_DECLARE(type, name, parameters, arguments) \
  __attribute__((visibility("default"))) type tutti_cudart_##name parameters;
TUTTI_CUDART_CALLS(TUTTI_CUDART_DECLARE)

/* cudaSuccess, or the error of all calls where the emulator's settings are wrong. */
__attribute__((visibility("default"))) cudaError_t tutti_cudart_refusal(void);

#endif
