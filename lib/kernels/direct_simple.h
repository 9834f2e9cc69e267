/* direct_simple.h: the phases of direct_phase.h over Simple: whole vectors where addresses allow it, and spans of any
 * type, operator and alignment. Two shots store the sum into all outputs. */
#ifndef TUTTI_KERNELS_DIRECT_SIMPLE_H
#define TUTTI_KERNELS_DIRECT_SIMPLE_H

#include "kernels/direct_phase.h"

#include "kernels/compute_warp.h"

/* Vectors that a thread has in flight: per link or source of a group, or of one source. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200 /* more would spill */
#define DIRECT_GROUP 2u
#else
#define DIRECT_GROUP 4u
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900 /* its code needs more registers */
#define DIRECT_VECTORS 1
#define DIRECT_SPREAD_VECTORS 1
#else
#define DIRECT_VECTORS 2
#define DIRECT_SPREAD_VECTORS 3
#endif
__shared__ struct prim_descriptor
    direct_descriptors[PRIM_WARPS_MAX]; /* one per warp: spans that are not whole vectors */

/* ---- whole vectors ---- */

/* Vector number `at` from an address of the phase. The address is read each time, because those of all links
 * would fill the registers. */
PRIM_FN uint8_t *direct_vector(const uint64_t *base, uint32_t at) {
  return (uint8_t *)(uintptr_t)(*(const volatile uint64_t *)base + (uint64_t)at * 16);
}

/* Four links at a time: all their loads, some vectors per link and thread, are issued before the first
 * store. */
PRIM_FN void direct_move_vectors(const struct direct_phase *phase, struct direct_share_of share,
                                 uint32_t link) {
  const uint32_t most = phase->most_bytes / 16;
#pragma unroll 1
  for (uint32_t first = share.index; first < most; first += DIRECT_VECTORS * share.count) {
    ulonglong2 vectors[DIRECT_GROUP][DIRECT_VECTORS];
#pragma unroll
    for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < phase->bytes[link + k] / 16)
          vectors[k][v] = prim_load_pair(direct_vector(&phase->from[link + k], at));
      }
#pragma unroll
    for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < phase->bytes[link + k] / 16)
          prim_store_vector(direct_vector(&phase->to[link + k], at), vectors[k][v]);
      }
  }
}

PRIM_FN void direct_spread_vectors(const struct direct_phase *phase, struct direct_share_of share) {
  const uint32_t count = phase->own_bytes / 16, targets = phase->links + (phase->out != 0 ? 1 : 0);
#pragma unroll 1
  for (uint32_t first = share.index; first < count; first += DIRECT_SPREAD_VECTORS * share.count) {
    ulonglong2 vectors[DIRECT_SPREAD_VECTORS];
#pragma unroll
    for (uint32_t v = 0; v < DIRECT_SPREAD_VECTORS; v++) {
      const uint32_t at = first + v * share.count;
      if (at < count) vectors[v] = prim_load_pair(phase->in + (size_t)at * 16);
    }
#pragma unroll 1
    for (uint32_t link = 0; link < targets; link++) {
      uint8_t *to = link < phase->links ? direct_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_SPREAD_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < count) prim_store_vector(to + (size_t)at * 16, vectors[v]);
      }
    }
  }
}

PRIM_FN ulonglong2 direct_add_vector(const struct work *work, ulonglong2 sum, ulonglong2 vector) {
  sum.x = direct_add<true>(work, sum.x, vector.x);
  sum.y = direct_add<true>(work, sum.y, vector.y);
  return sum;
}

/* Four sources at a time: all their loads are issued before the first sum. */
PRIM_FN void direct_add_vectors(const struct direct_phase *phase, struct direct_share_of share) {
  const struct work *work = direct_of();
  const uint32_t count = phase->own_bytes / 16, targets = phase->sends ? phase->links : 0;
#pragma unroll 1
  for (uint32_t first = share.index; first < count; first += DIRECT_VECTORS * share.count) {
    ulonglong2 sums[DIRECT_VECTORS];
#pragma unroll 1
    for (uint32_t source = 0; source <= phase->links; source += DIRECT_GROUP) {
      ulonglong2 vectors[DIRECT_GROUP][DIRECT_VECTORS];
#pragma unroll
      for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
        for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
          const uint32_t at = first + v * share.count;
          if (source + k <= phase->links && at < count)
            vectors[k][v] = prim_load_pair(direct_vector(&phase->from[source + k], at));
        }
#pragma unroll
      for (uint32_t k = 0; k < DIRECT_GROUP; k++)
#pragma unroll
        for (uint32_t v = 0; v < DIRECT_VECTORS; v++)
          if (source + k == 0) sums[v] = vectors[k][v];
          else if (source + k <= phase->links) sums[v] = direct_add_vector(work, sums[v], vectors[k][v]);
    }
#pragma unroll 1
    for (uint32_t link = 0; link <= targets; link++) {
      uint8_t *to = link < targets ? direct_vector(&phase->to[link], 0) : phase->out;
#pragma unroll
      for (uint32_t v = 0; v < DIRECT_VECTORS; v++) {
        const uint32_t at = first + v * share.count;
        if (at < count) prim_store_vector(to + (size_t)at * 16, sums[v]);
      }
    }
  }
}

/* ---- spans of any type, operator and alignment ---- */

/* The warp's descriptor, which its thread 0 fills in before direct_carry(). */
PRIM_FN struct prim_descriptor *direct_descriptor(void) {
  __syncwarp();
  return &direct_descriptors[direct_warp()];
}

PRIM_FN void direct_descriptor_begin(struct prim_descriptor *descriptor, uint32_t bytes) {
  const struct work *work = direct_of();
  descriptor->kind = PRIM_SPAN;
  descriptor->dtype = work->dtype;
  descriptor->op = work->op;
  descriptor->op_arg = work->op_arg;
  descriptor->flags = 0;
  descriptor->own_index = descriptor->second_count = descriptor->other_count = 0;
  descriptor->count = bytes / work->element_bytes;
}

/* Not inlined: it has a case for each type and operator, and is not on the fast path. */
static __device__ __noinline__ void direct_carry(void) {
  struct compute_warp compute; /* spans use no other member */
  compute.index = threadIdx.x - PRIM_WARP;
  compute.count = direct_compute_warps() * PRIM_WARP;
  __syncwarp();
  compute_span(&compute, &direct_descriptors[direct_warp()], false);
}

/* Copies one span; if the operator scales own values, they are scaled here. */
PRIM_FN void direct_carry_copy(const uint8_t *from, uint8_t *to, uint32_t bytes, bool own) {
  if (bytes == 0) return;
  struct prim_descriptor *descriptor = direct_descriptor();
  if (prim_lane() == 0) {
    direct_descriptor_begin(descriptor, bytes);
    descriptor->first = from;
    descriptor->out = to;
    if (own && descriptor->op == OP_PRE_MUL_SUM) descriptor->flags = PRIM_SCALES;
  }
  direct_carry();
}

/* Moves the remainder of a phase after its whole vectors, link by link. */
PRIM_FN void direct_move_rest(const struct direct_phase *phase) {
#pragma unroll 1
  for (uint32_t link = 0; link < phase->links; link++) {
    const uint32_t skip = phase->whole ? phase->bytes[link] / 16 * 16 : 0;
    direct_carry_copy((const uint8_t *)(uintptr_t)phase->from[link] + skip,
                      (uint8_t *)(uintptr_t)phase->to[link] + skip, phase->bytes[link] - skip, phase->sends);
  }
  direct_carry_copy(phase->in, phase->out, phase->own_bytes, false);
}

PRIM_FN void direct_spread_rest(const struct direct_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
#pragma unroll 1
  for (uint32_t link = 0; link < phase->links; link++)
    direct_carry_copy(phase->in + skip, (uint8_t *)(uintptr_t)phase->to[link] + skip, phase->own_bytes - skip,
                      true);
  if (phase->out != 0) direct_carry_copy(phase->in + skip, phase->out + skip, phase->own_bytes - skip, false);
}

PRIM_FN void direct_add_rest(const struct direct_phase *phase) {
  const uint32_t skip = phase->whole ? phase->own_bytes / 16 * 16 : 0;
  if (skip == phase->own_bytes) return;
  struct prim_descriptor *descriptor = direct_descriptor();
  if (prim_lane() == 0) {
    direct_descriptor_begin(descriptor, phase->own_bytes - skip);
    descriptor->own_index = direct_of()->rank;
    descriptor->flags = descriptor->op == OP_PRE_MUL_SUM    ? PRIM_SCALES
                        : descriptor->op == OP_SUM_POST_DIV ? PRIM_DIVIDES
                                                            : 0;
    descriptor->first = (const uint8_t *)(uintptr_t)phase->from[0] + skip;
    for (uint32_t source = 1; source <= phase->links; source++)
      descriptor->second[descriptor->second_count++] = (const uint8_t *)(uintptr_t)phase->from[source] + skip;
    descriptor->out = phase->out + skip;
    for (uint32_t link = 0; link < phase->links && phase->sends; link++)
      descriptor->other[descriptor->other_count++] = (uint8_t *)(uintptr_t)phase->to[link] + skip;
  }
  direct_carry();
}

PRIM_FN bool direct_run_phase(const struct direct_phase *phase, struct direct_share_of share) {
  switch (phase->kind) {
    case DIRECT_SCATTER:
    case DIRECT_COLLECT:
#pragma unroll 1
      for (uint32_t link = 0; phase->whole && link < phase->links; link += DIRECT_GROUP)
        direct_move_vectors(phase, share, link);
      direct_move_rest(phase);
      break;
    case DIRECT_SPREAD:
      if (phase->whole) direct_spread_vectors(phase, share);
      direct_spread_rest(phase);
      break;
    default:
      if (phase->whole) direct_add_vectors(phase, share);
      direct_add_rest(phase);
      break;
  }
  return true;
}

#endif
