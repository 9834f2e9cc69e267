/* api.h: the functions of NCCL and of the CUDA runtime that a benchmark calls, either of the libraries that
 * this command is linked with, or of files that it loads on a machine with GPUs. */
#ifndef TUTTI_SIM_API_H
#define TUTTI_SIM_API_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime.h>

#include "nccl.h"
#include "tutti.h"

#define API_NCCL(CALL)           \
  CALL(ncclGetVersion)           \
  CALL(ncclGetUniqueId)          \
  CALL(ncclGetErrorString)       \
  CALL(ncclGetLastError)         \
  CALL(ncclCommInitRank)         \
  CALL(ncclCommDestroy)          \
  CALL(ncclCommAbort)            \
  CALL(ncclCommGetAsyncError)    \
  CALL(ncclCommRegister)         \
  CALL(ncclCommDeregister)       \
  CALL(ncclCommWindowRegister)   \
  CALL(ncclCommWindowDeregister) \
  CALL(ncclRedOpCreatePreMulSum) \
  CALL(ncclRedOpDestroy)         \
  CALL(ncclGroupStart)           \
  CALL(ncclGroupEnd)             \
  CALL(ncclAllReduce)            \
  CALL(ncclAllGather)            \
  CALL(ncclReduceScatter)        \
  CALL(ncclBroadcast)            \
  CALL(ncclReduce)               \
  CALL(ncclSend)                 \
  CALL(ncclRecv)                 \
  CALL(ncclAlltoAll)             \
  CALL(ncclGather)               \
  CALL(ncclScatter)

#define API_CUDA(CALL)                \
  CALL(cudaGetDeviceCount)            \
  CALL(cudaGetErrorString)            \
  CALL(cudaDeviceGetPCIBusId)         \
  CALL(cudaSetDevice)                 \
  CALL(cudaMalloc)                    \
  CALL(cudaFree)                      \
  CALL(cudaMemcpy)                    \
  CALL(cudaStreamCreateWithFlags)     \
  CALL(cudaStreamDestroy)             \
  CALL(cudaStreamSynchronize)         \
  CALL(cudaStreamQuery)               \
  CALL(cudaStreamBeginCapture)        \
  CALL(cudaStreamEndCapture)          \
  CALL(cudaGraphInstantiateWithFlags) \
  CALL(cudaGraphDestroy)              \
  CALL(cudaGraphLaunch)               \
  CALL(cudaGraphExecDestroy)

/* Functions of this library; NULL if another NCCL is loaded. */
#define API_TUTTI(CALL)           \
  CALL(tutti_version)             \
  CALL(tutti_backend)             \
  CALL(tutti_comm_memory)         \
  CALL(tutti_comm_tuning_options) \
  CALL(tutti_launch_id)

struct api {
#define API_MEMBER(name) __typeof__(&name) name;
  API_NCCL(API_MEMBER)
  API_CUDA(API_MEMBER)
  API_TUTTI(API_MEMBER)
#undef API_MEMBER
  /* The size of the struct differs between CUDA versions; all begin with the name. */
  cudaError_t (*device_properties)(void *properties, int device);
  /* ncclResetDebugInit, which headers mark as deprecated: this library reads all its settings again. */
  void (*settings_reset)(void);
};

/* The functions in use: those that this command is linked with, until api_load(). */
extern const struct api *api;

/* Loads an NCCL and a CUDA runtime, whose functions are used from then on. NULL for a path: the library
 * beside this command, else the system's; the system's runtime of CUDA 13 or 12. False, with a sentence in
 * `reason`, if a file cannot be loaded or lacks a function, because it is older than NCCL 2.28 or CUDA 12.
 * Not safe while another thread calls. */
bool api_load(const char *nccl_path, const char *cudart_path, char *reason, size_t reason_bytes);

/* The file from which the functions in use were loaded. */
const char *api_library_path(void);

/* A device's name, "" if it is unknown. */
void api_device_name(int device, char *name, size_t name_bytes);

#endif
