/* cuda.h (simt): the names of the driver API that the GPU backend uses. */
#ifndef TUTTI_TESTS_SIMT_CUDA_H
#define TUTTI_TESTS_SIMT_CUDA_H

#include <stdint.h>

typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NOT_SUPPORTED = 801 } CUresult;
typedef enum { CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122 } CUdevice_attribute;
typedef enum {
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 12
} CUpointer_attribute;
typedef enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 } CUmemRangeHandleType;
enum { CU_STREAM_WAIT_VALUE_GEQ = 0 };

#endif
