/* cuda_fp16.h: half precision as an opaque 16-bit value (IEEE 754 binary16) with the host conversions. */
#ifndef TUTTI_EMU_CUDA_FP16_H
#define TUTTI_EMU_CUDA_FP16_H
#ifndef __CUDA_FP16_H__ /* the guard of NVIDIA's header: whichever comes first stands */
#define __CUDA_FP16_H__

#include <string.h>

typedef struct __half { unsigned short x; } __half;
typedef struct __half_raw { unsigned short x; } __half_raw;
typedef struct __half2 { __half x, y; } __half2;
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half value) {
  unsigned int sign = (unsigned int)(value.x & 0x8000) << 16, exponent = value.x >> 10 & 31,
               fraction = value.x & 0x3ff;
  unsigned int bits;
  float result;
  if (exponent == 0) { /* zero and subnormal: fraction units of 2^-24 */
    result = (float)fraction * (1.0f / 16777216.0f);
    return sign != 0 ? -result : result;
  }
  bits = sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/* Rounds to nearest, ties to even; what is too large becomes infinity. */
static inline __half __float2half(float value) {
  unsigned int bits, magnitude, shift, rest, halfway, kept;
  __half result;
  memcpy(&bits, &value, sizeof bits);
  magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x47800000) { /* 65536 and above, infinity, not a number */
    result.x = (unsigned short)(bits >> 16 & 0x8000) | 0x7c00 | (magnitude > 0x7f800000 ? 0x200 : 0);
    return result;
  }
  if (magnitude >= 0x38800000) { /* normal in binary16: drop 13 bits */
    shift = 13;
    kept = magnitude - 0x38000000;
  } else { /* subnormal: the implicit bit becomes visible and slides right */
    shift = magnitude < 0x33000000 ? 31 : 126 - (magnitude >> 23);
    kept = (magnitude & 0x7fffff) | 0x800000;
  }
  rest = kept & ((1u << shift) - 1);
  halfway = 1u << (shift - 1);
  kept >>= shift;
  if (rest > halfway || (rest == halfway && (kept & 1) != 0)) kept++;
  result.x = (unsigned short)((bits >> 16 & 0x8000) | kept);
  return result;
}

#endif
#endif
