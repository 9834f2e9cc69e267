/* vector_types.h: the small vector types of CUDA's headers, for host programs that name them. */
#ifndef TUTTI_EMU_VECTOR_TYPES_H
#define TUTTI_EMU_VECTOR_TYPES_H
#ifndef __VECTOR_TYPES_H__ /* the guard of NVIDIA's header: whichever comes first stands */
#define __VECTOR_TYPES_H__

#define TUTTI_EMU_VECTORS(base, type)          \
  typedef struct base##1 { type x; } base##1;          \
  typedef struct base##2 { type x, y; } base##2;       \
  typedef struct base##3 { type x, y, z; } base##3;    \
  typedef struct base##4 { type x, y, z, w; } base##4
TUTTI_EMU_VECTORS(char, signed char);
TUTTI_EMU_VECTORS(uchar, unsigned char);
TUTTI_EMU_VECTORS(short, short);
TUTTI_EMU_VECTORS(ushort, unsigned short);
TUTTI_EMU_VECTORS(int, int);
TUTTI_EMU_VECTORS(uint, unsigned int);
TUTTI_EMU_VECTORS(long, long);
TUTTI_EMU_VECTORS(ulong, unsigned long);
TUTTI_EMU_VECTORS(longlong, long long);
TUTTI_EMU_VECTORS(ulonglong, unsigned long long);
TUTTI_EMU_VECTORS(float, float);
TUTTI_EMU_VECTORS(double, double);
#undef TUTTI_EMU_VECTORS

typedef struct dim3 {
  unsigned int x, y, z;
#ifdef __cplusplus
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
#endif
} dim3;

#endif
#endif
