/* driver.cc (simt): libcuda.so.1: contexts, which here are devices, and streams that wait for a count. */
#include <cuda.h>
#include <cuda_runtime.h>

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_memory.h"
#include "kernels.h"
#include "memory.h"
#include "order.h"
#include "reset.h"

enum { CONTEXTS_MOST = 16 };

/* The devices that a thread has pushed, the last one on top. */
static thread_local int pushed[CONTEXTS_MOST];
static thread_local int pushed_count;

extern "C" {

CUresult cuDeviceGet(CUdevice *device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}

/* The runtime retains a context, too, when it is used on its device: that is not counted here. */
static int retained[SIMT_DEVICES];

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  reset_use_device(device);
  __atomic_add_fetch(&retained[device], 1, __ATOMIC_RELAXED);
  *context = (CUcontext)(intptr_t)(device + 1);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  __atomic_store_n(&retained[device], 0, __ATOMIC_RELAXED);
  return reset_device(device) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The last release, which is in place of the runtime's, destroys the context. */
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (!reset_is_active(device)) return CUDA_ERROR_INVALID_VALUE;
  return __atomic_sub_fetch(&retained[device], 1, __ATOMIC_RELAXED) < 0 ? cuDevicePrimaryCtxReset_v2(device)
                                                                        : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  *flags = 0;
  *active = reset_is_active(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  int current = 0;
  if (!reset_is_active((int)(intptr_t)context - 1)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (pushed_count == CONTEXTS_MOST || cudaGetDevice(&current) != cudaSuccess)
    return CUDA_ERROR_INVALID_VALUE;
  pushed[pushed_count++] = current;
  return tutti_cudart_SetDevice((int)(intptr_t)context - 1) == cudaSuccess ? CUDA_SUCCESS
                                                                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  int current = 0;
  if (pushed_count == 0 || cudaGetDevice(&current) != cudaSuccess) return CUDA_ERROR_INVALID_VALUE;
  *context = (CUcontext)(intptr_t)(current + 1);
  tutti_cudart_SetDevice(pushed[--pushed_count]);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  return cudaGetDevice(device) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  int device = 0;
  if (cudaStreamGetDevice((cudaStream_t)stream, &device) != cudaSuccess) return CUDA_ERROR_INVALID_VALUE;
  *context = (CUcontext)(intptr_t)(device + 1);
  return CUDA_SUCCESS;
}

/* SIMT_RDMA=dmabuf: NICs reach the devices' memory, and the driver gives DMA-BUFs of it; SIMT_RDMA=address: it
 * gives none; SIMT_RDMA=closed: it says that it does and gives none; SIMT_RDMA=refused: NICs register no address
 * of it, either. */
static bool rdma_is(const char *way) {
  const char *text = getenv("SIMT_RDMA");
  return text != NULL && strcmp(text, way) == 0;
}

/* SIMT_NO_VMM=1: the devices have no memory of cuMemCreate. SIMT_MPS=1: they are shared by MPS.
 * SIMT_RDMA_ORDERED=1: what NICs write to their memory is visible at once. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = getenv("SIMT_NO_VMM") == NULL && !simt_is_virtual();
      break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: *value = getenv("SIMT_FABRIC") != NULL; break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: *value = getenv("SIMT_MPS") != NULL; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = getenv("SIMT_RDMA_ORDERED") != NULL ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER : 0;
      break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      *value = rdma_is("dmabuf") || rdma_is("closed") || rdma_is("address") || rdma_is("refused");
      break;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = rdma_is("dmabuf") || rdma_is("closed"); break;
    default: *value = 0; break;
  }
  return CUDA_SUCCESS;
}

/* Each descriptor has a position of its own: where the range begins in the file of its memory. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  const long page = sysconf(_SC_PAGESIZE);
  uint64_t begin = 0;
  char path[64];
  int file = -1;
  if (!rdma_is("dmabuf")) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || bytes == 0 || address % page != 0 ||
      bytes % page != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!driver_memory_file(address, bytes, &begin, &file) && !simt_memory_file(address, bytes, &begin, &file))
    return CUDA_ERROR_INVALID_VALUE;
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const int opened = open(path, O_RDWR | O_CLOEXEC);
  if (opened < 0 || lseek(opened, (off_t)(address - begin), SEEK_SET) < 0) abort();
  *(int *)handle = opened;
  return CUDA_SUCCESS;
}

/* SIMT_MIG=N: the process's devices are slice N of a GPU: what is on the same place of the bus in another
 * process is another device. */
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  struct cudaDeviceProp properties;
  const char *slice = getenv("SIMT_MIG");
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid->bytes, properties.uuid.bytes, sizeof uuid->bytes);
  if (slice != NULL) uuid->bytes[0] = (char)atoi(slice);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  uint64_t begin = 0, id = 0;
  bool is_shared = false;
  if (!simt_memory_find(address, &begin, bytes, &id, &is_shared)) return CUDA_ERROR_INVALID_VALUE;
  *base = begin;
  return CUDA_SUCCESS;
}

/* Of an address in a range. The id of the buffer is the range's: only the block tells what is mapped. */
static CUresult range_attribute(const struct driver_memory *memory, void *data,
                                CUpointer_attribute attribute) {
  const bool mapped = memory->bytes > 0;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = memory->range; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = memory->range_bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)data = mapped; return CUDA_SUCCESS;
    default: break;
  }
  if (!mapped) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = memory->range_id; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(unsigned long long *)data = memory->block_id; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = memory->types; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(void **)data = NULL; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)data = 0; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  struct driver_memory memory;
  uint64_t begin = 0, id = 0;
  size_t bytes = 0;
  bool is_shared = false;
  if (driver_memory_find(address, &memory)) return range_attribute(&memory, data, attribute);
  if (!simt_memory_find(address, &begin, &bytes, &id, &is_shared)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = id; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)data = is_shared; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

struct count_wait {
  const uint64_t *count;
  uint64_t value;
  bool is_repeated;
  const void *stream;
  int device;
};

static void count_await(void *argument) {
  struct count_wait *wait = (struct count_wait *)argument;
  while (!__atomic_load_n(reset_kills(wait->device), __ATOMIC_RELAXED) &&
         __atomic_load_n(wait->count, __ATOMIC_ACQUIRE) < wait->value)
    sched_yield();
  order_stream_awaits(wait->stream, wait->device, wait->count);
  if (!wait->is_repeated) free(wait);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  struct count_wait *wait = (struct count_wait *)malloc(sizeof *wait);
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (wait == NULL || flags != CU_STREAM_WAIT_VALUE_GEQ) abort();
  cudaStreamIsCapturing((cudaStream_t)stream, &status);
  *wait = {(const uint64_t *)(uintptr_t)address, value, status == cudaStreamCaptureStatusActive,
           (const void *)stream, 0};
  if (cudaGetDevice(&wait->device) != cudaSuccess) wait->device = 0;
  return cudaLaunchHostFunc((cudaStream_t)stream, count_await, wait) == cudaSuccess
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}

struct value_write {
  uint64_t *place, value;
};

static void value_store(void *argument) {
  struct value_write *write = (struct value_write *)argument;
  __atomic_store_n(write->place, write->value, __ATOMIC_RELEASE);
  free(write);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  struct value_write *write = (struct value_write *)malloc(sizeof *write);
  if (write == NULL || flags != CU_STREAM_WRITE_VALUE_DEFAULT) abort();
  *write = {(uint64_t *)(uintptr_t)address, value};
  return cudaLaunchHostFunc((cudaStream_t)stream, value_store, write) == cudaSuccess
             ? CUDA_SUCCESS
             : CUDA_ERROR_NOT_SUPPORTED;
}
}
