/* kernels.h: the CPU's reduce and copy for every type and operator, generated from the X-macro tables
 * (types.h) that the GPU kernels use too. Results depend on the operands only, bit for bit: no contraction,
 * rounding to nearest even; a minimum or maximum prefers a number over a NaN and orders -0 below +0. Knows
 * nothing of FIFOs or ranks. */
#ifndef TUTTI_KERNELS_KERNELS_H
#define TUTTI_KERNELS_KERNELS_H

#include "protocol/move.h"

/* Moves one span as described by struct move, with any number of sources and destinations up to
 * MOVE_SPANS_MAX. */
void kernel_move(const struct move *move);

/* destination = left op right, `count` elements, for op SUM, PROD, MIN, MAX (PRE_MUL_SUM and SUM_POST_DIV
 * count as SUM). destination may be left or right. */
void kernel_reduce(uint8_t dtype, uint8_t op, void *destination, const void *left, const void *right,
                   size_t count);

/* destination = source * factor (PRE_MUL_SUM's first stage; op_arg holds the factor's bits in dtype) or
 * source / divisor (SUM_POST_DIV's last stage; op_arg = divisor << 1 | is_signed). destination may be source.
 */
void kernel_pre_op(uint8_t dtype, uint8_t op, uint64_t op_arg, void *destination, const void *source,
                   size_t count);
void kernel_post_op(uint8_t dtype, uint8_t op, uint64_t op_arg, void *destination, const void *source,
                    size_t count);

size_t kernel_type_bytes(uint8_t dtype); /* 0 for a value outside ncclDataType_t */
const char *kernel_type_name(
    uint8_t dtype); /* nccl-tests' name: "float", "half", "bfloat16", "f8e4m3", ... */

/* Number <-> bits of a type, correctly rounded (nearest even; fp8 saturates to its largest finite value as
 * CUDA's conversions do). For integers the value is truncated. Used for scalars, tests and the oracle. */
uint64_t kernel_from_double(uint8_t dtype, double value);
double kernel_to_double(uint8_t dtype, uint64_t bits);

#endif
