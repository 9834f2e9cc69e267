/* cuda_fp8.h: the two 8-bit floating-point types as opaque values; there are no conversions on the host. */
#ifndef TUTTI_EMU_CUDA_FP8_H
#define TUTTI_EMU_CUDA_FP8_H
#ifndef __CUDA_FP8_H__ /* the guard of NVIDIA's header: whichever comes first stands */
#define __CUDA_FP8_H__

typedef unsigned char __nv_fp8_storage_t;
typedef struct __nv_fp8_e4m3 { __nv_fp8_storage_t __x; } __nv_fp8_e4m3;
typedef struct __nv_fp8_e5m2 { __nv_fp8_storage_t __x; } __nv_fp8_e5m2;

#endif
#endif
