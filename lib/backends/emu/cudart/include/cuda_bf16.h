/* cuda_bf16.h: bfloat16 as an opaque 16-bit value (the upper half of a float) with the host conversions. */
#ifndef TUTTI_EMU_CUDA_BF16_H
#define TUTTI_EMU_CUDA_BF16_H
#ifndef __CUDA_BF16_H__ /* the guard of NVIDIA's header: whichever comes first stands */
#define __CUDA_BF16_H__

#include <string.h>

typedef struct __nv_bfloat16 { unsigned short x; } __nv_bfloat16;
typedef struct __nv_bfloat16_raw { unsigned short x; } __nv_bfloat16_raw;
typedef struct __nv_bfloat162 { __nv_bfloat16 x, y; } __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

static inline float __bfloat162float(__nv_bfloat16 value) {
  unsigned int bits = (unsigned int)value.x << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/* Rounds to nearest, ties to even. */
static inline __nv_bfloat16 __float2bfloat16(float value) {
  unsigned int bits;
  __nv_bfloat16 result;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) result.x = 0x7fff; /* not a number */
  else result.x = (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return result;
}

#endif
#endif
