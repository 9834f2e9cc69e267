/* cuda_runtime.h: the emulated CUDA runtime with the conveniences that C++ programs expect of this name. */
#ifndef TUTTI_EMU_CUDA_RUNTIME_H
#define TUTTI_EMU_CUDA_RUNTIME_H
#ifndef __CUDA_RUNTIME_H__ /* the guard of NVIDIA's header: whichever comes first stands */
#define __CUDA_RUNTIME_H__

#include "cuda_runtime_api.h"

#ifdef __cplusplus

/* Typed pointers where the C functions take void **. */
template <class T> static inline cudaError_t cudaMalloc(T **pointer, size_t bytes) {
  return ::cudaMalloc(reinterpret_cast<void **>(pointer), bytes);
}
template <class T>
static inline cudaError_t cudaMallocHost(T **pointer, size_t bytes, unsigned int flags = 0) {
  return ::cudaHostAlloc(reinterpret_cast<void **>(pointer), bytes, flags);
}
template <class T> static inline cudaError_t cudaHostAlloc(T **pointer, size_t bytes, unsigned int flags) {
  return ::cudaHostAlloc(reinterpret_cast<void **>(pointer), bytes, flags);
}
template <class T> static inline cudaError_t cudaMallocManaged(T **pointer, size_t bytes,
                                                               unsigned int flags = cudaMemAttachGlobal) {
  return ::cudaMallocManaged(reinterpret_cast<void **>(pointer), bytes, flags);
}
template <class T> static inline cudaError_t cudaMallocAsync(T **pointer, size_t bytes, cudaStream_t stream) {
  return ::cudaMallocAsync(reinterpret_cast<void **>(pointer), bytes, stream);
}
template <class T>
static inline cudaError_t cudaMallocPitch(T **pointer, size_t *pitch, size_t width, size_t height) {
  return ::cudaMallocPitch(reinterpret_cast<void **>(pointer), pitch, width, height);
}
template <class T>
static inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned int flags) {
  return ::cudaHostGetDevicePointer(reinterpret_cast<void **>(device), host, flags);
}
static inline cudaError_t cudaMallocHost(void **pointer, size_t bytes, unsigned int flags) {
  return ::cudaHostAlloc(pointer, bytes, flags);
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned int flags) {
  return ::cudaEventCreateWithFlags(event, flags);
}

#endif
#endif
#endif
