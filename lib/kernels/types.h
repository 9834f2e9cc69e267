/* types.h: the 12 element types and 6 operators of NCCL's API, one table of each, and the arithmetic of one
 * element, written once and compiled by gcc (C11) and by nvcc, so that a result has the same bits on a CPU
 * and on a GPU. It promises: rounding to nearest even, once per operator; a NaN result is the type's one
 * canonical NaN; a minimum or maximum prefers a number over a NaN and orders -0 below +0; integers wrap. The
 * rules and their reasons are in README.md. It knows nothing of spans, memory or vectors: move.c and the GPU
 * kernels loop over these functions.
 *
 * A unit compiled by nvcc includes protocol/prim.h first, so that PRIM_FN makes these functions __device__. A
 * unit must be compiled without contraction (-ffp-contract=off) or, on a GPU, with the hooks below. */
#ifndef TUTTI_KERNELS_TYPES_H
#define TUTTI_KERNELS_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "schedule/work.h"

/* X(value, name, storage, accumulator): value of ncclDataType_t; nccl-tests' name, which is also part of the
 * functions' names (type_half_sum); the C type of a stored element; the C type in which sums and products are
 * computed. The rows are in the order of the values, without a gap: arrays made from this table are indexed
 * by ncclDataType_t. */
#define TYPE_TABLE(X)              \
  X(0, int8, int8_t, uint32_t)     \
  X(1, uint8, uint8_t, uint32_t)   \
  X(2, int32, int32_t, uint32_t)   \
  X(3, uint32, uint32_t, uint32_t) \
  X(4, int64, int64_t, uint64_t)   \
  X(5, uint64, uint64_t, uint64_t) \
  X(6, half, uint16_t, float)      \
  X(7, float, float, float)        \
  X(8, double, double, double)     \
  X(9, bfloat16, uint16_t, float)  \
  X(10, f8e4m3, uint8_t, float)    \
  X(11, f8e5m2, uint8_t, float)

enum {
  TYPE_LAST_INTEGER = 5,
  TYPE_HALF = 6,
  TYPE_FLOAT = 7,
  TYPE_BFLOAT16 = 9,
  TYPE_F8E4M3 = 10,
  TYPE_F8E5M2 = 11,
  TYPE_COUNT = 12
};

/* X(value, name, combine): value of enum work_op, its name, and the function that combines two elements. The
 * last two operators are sums with a stage before (type_*_prod with the factor) or after (type_*_divide). */
#define TYPE_OPERATOR_TABLE(X) \
  X(0, sum, sum)               \
  X(1, prod, prod)             \
  X(2, max, max)               \
  X(3, min, min)               \
  X(4, pre_mul_sum, sum)       \
  X(5, sum_post_div, sum)

/* ---- bits of a float and of a double ---- */

union type_bits32 {
  float number;
  uint32_t bits;
};

union type_bits64 {
  double number;
  uint64_t bits;
};

PRIM_FN uint32_t type_float_bits(float number) {
  union type_bits32 view;
  view.number = number;
  return view.bits;
}

PRIM_FN float type_float_of_bits(uint32_t bits) {
  union type_bits32 view;
  view.bits = bits;
  return view.number;
}

PRIM_FN uint64_t type_double_bits(double number) {
  union type_bits64 view;
  view.number = number;
  return view.bits;
}

PRIM_FN double type_double_of_bits(uint64_t bits) {
  union type_bits64 view;
  view.bits = bits;
  return view.number;
}

/* Turns any NaN into the canonical one, because processors disagree on which NaN an operation yields. */
PRIM_FN float type_float_settle(float number) {
  return number == number ? number : type_float_of_bits(0x7fffffffu);
}

PRIM_FN double type_double_settle(double number) {
  return number == number ? number : type_double_of_bits(0x7fffffffffffffffu);
}

/* A backend may bind these to instructions that never contract and already yield the canonical NaN (CUDA:
 * __fadd_rn, __fmul_rn for float); the results must not change by one bit. */
#ifndef PRIM_FLOAT_SUM
#define PRIM_FLOAT_SUM(left, right) type_float_settle((left) + (right))
#define PRIM_FLOAT_PROD(left, right) type_float_settle((left) * (right))
#endif
#ifndef PRIM_DOUBLE_SUM
#define PRIM_DOUBLE_SUM(left, right) type_double_settle((left) + (right))
#define PRIM_DOUBLE_PROD(left, right) type_double_settle((left) * (right))
#endif

/* A choice without a branch, because compilers do not vectorize a branch around float arithmetic. */
PRIM_FN uint32_t type_choose(bool first_wins, uint32_t first, uint32_t second) {
  uint32_t mask = 0u - (uint32_t)first_wins;
  return (first & mask) | (second & ~mask);
}

/* ---- minimum and maximum of the small floating types, on their bits ---- */

/* Converts a sign-and-magnitude pattern to a two's complement key (-0 is -1, +0 is 0) and back, so that one
 * integer comparison orders all numbers. `top` is the largest magnitude that is not a NaN. A NaN gets the key
 * that loses; `highest`, all ones but the sign, is both the greatest key and the canonical NaN. */
#define TYPE_EXTREMES(name, storage, key, lowest, highest, top)                               \
  PRIM_FN key type_##name##_flip(key pattern) {                                               \
    return (key)(pattern ^ (key)((key)(pattern >> (sizeof(key) * 8 - 1)) & (highest)));       \
  }                                                                                           \
  PRIM_FN key type_##name##_key(storage bits, key nan_key) {                                  \
    key magnitude = (key)((key)bits & (highest));                                             \
    return magnitude > (key)(top) ? nan_key : type_##name##_flip((key)bits);                  \
  }                                                                                           \
  PRIM_FN storage type_##name##_max(storage left, storage right) {                            \
    key first = type_##name##_key(left, lowest), second = type_##name##_key(right, lowest);   \
    key best = first > second ? first : second;                                               \
    return (storage)(best == (lowest) ? (highest) : type_##name##_flip(best));                \
  }                                                                                           \
  PRIM_FN storage type_##name##_min(storage left, storage right) {                            \
    key first = type_##name##_key(left, highest), second = type_##name##_key(right, highest); \
    return (storage)type_##name##_flip(first < second ? first : second);                      \
  }

TYPE_EXTREMES(half, uint16_t, int16_t, INT16_MIN, INT16_MAX, 0x7c00)
TYPE_EXTREMES(bfloat16, uint16_t, int16_t, INT16_MIN, INT16_MAX, 0x7f80)
TYPE_EXTREMES(f8e4m3, uint8_t, int8_t, INT8_MIN, INT8_MAX, 0x7e)
TYPE_EXTREMES(f8e5m2, uint8_t, int8_t, INT8_MIN, INT8_MAX, 0x7c)
/* ---- small floating types <-> float ---- */

/* Converts a magnitude with `mantissa_bits` stored bits and exponent bias `bias` to the bits of the float of
 * the same value. `finite` is the largest finite magnitude; larger patterns are infinity or NaN and stay so.
 * Exact, and without subnormal floats, which some processors flush to zero and others handle slowly. */
PRIM_FN uint32_t type_small_widen(uint32_t magnitude, int mantissa_bits, int bias, uint32_t finite) {
  uint32_t shifted = magnitude << (23 - mantissa_bits);
  uint32_t normal = shifted + ((uint32_t)(127 - bias) << 23);
  /* In the float with this exponent and mantissa 0, the unit in the last place is the type's smallest
   * step. */
  uint32_t anchor = (uint32_t)(151 - bias - mantissa_bits) << 23;
  uint32_t tiny = type_float_bits(type_float_of_bits(anchor | magnitude) - type_float_of_bits(anchor));
  uint32_t number = type_choose((int32_t)magnitude < (1 << mantissa_bits), tiny, normal);
  return type_choose((int32_t)magnitude > (int32_t)finite, shifted | 0x7f800000u, number);
}

/* Rounds a float's magnitude, given as bits without the sign, to nearest even; at most `overflow` for every
 * number. */
PRIM_FN uint32_t type_small_narrow(uint32_t magnitude, int mantissa_bits, int bias, uint32_t overflow) {
  int dropped_bits = 23 - mantissa_bits;
  uint32_t first_normal = (uint32_t)(128 - bias) << 23;
  uint32_t anchor = (uint32_t)(151 - bias - mantissa_bits) << 23;
  /* Adding the anchor makes the processor round a subnormal result. */
  uint32_t tiny = type_float_bits(type_float_of_bits(magnitude) + type_float_of_bits(anchor)) - anchor;
  uint32_t nearest = (1u << (dropped_bits - 1)) - 1 + ((magnitude >> dropped_bits) & 1);
  uint32_t normal = (magnitude - ((uint32_t)(127 - bias) << 23) + nearest) >> dropped_bits;
  uint32_t rounded = type_choose((int32_t)magnitude < (int32_t)first_normal, tiny, normal);
  return rounded < overflow ? rounded : overflow;
}

/* Conversions per type: `finite` is the largest finite magnitude, `overflow` what larger numbers become:
 * infinity for half, the largest finite magnitude for fp8 (as CUDA's __NV_SATFINITE). */
#define TYPE_SMALL_CONVERSIONS(name, storage, type_bits, mantissa_bits, bias, finite, overflow, nan) \
  PRIM_FN float type_##name##_to_float(storage element) {                                            \
    uint32_t sign = element & (1u << ((type_bits)-1));                                               \
    uint32_t magnitude = type_small_widen(element ^ sign, mantissa_bits, bias, finite);              \
    return type_float_of_bits(magnitude | sign << (32 - (type_bits)));                               \
  }                                                                                                  \
  PRIM_FN storage type_##name##_from_float(float number) {                                           \
    uint32_t bits = type_float_bits(number), magnitude = bits & 0x7fffffffu;                         \
    uint32_t sign = (bits ^ magnitude) >> (32 - (type_bits));                                        \
    uint32_t rounded = type_small_narrow(magnitude, mantissa_bits, bias, overflow);                  \
    return (storage)type_choose((int32_t)magnitude > 0x7f800000, nan, rounded | sign);               \
  }

TYPE_SMALL_CONVERSIONS(half, uint16_t, 16, 10, 15, 0x7bffu, 0x7c00u, 0x7fffu)
TYPE_SMALL_CONVERSIONS(f8e4m3, uint8_t, 8, 3, 7, 0x7eu, 0x7eu, 0x7fu)
TYPE_SMALL_CONVERSIONS(f8e5m2, uint8_t, 8, 2, 15, 0x7bu, 0x7bu, 0x7fu)

/* bfloat16 is the upper half of a float. */
PRIM_FN float type_bfloat16_to_float(uint16_t element) { return type_float_of_bits((uint32_t)element << 16); }

PRIM_FN uint16_t type_bfloat16_from_float(float number) {
  uint32_t bits = type_float_bits(number);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)type_choose((int32_t)(bits & 0x7fffffffu) > 0x7f800000, 0x7fffu, rounded);
}

/* The float next to `number` towards zero, with its last bit set if bits were lost. It has at least two bits
 * more than any small type, so rounding it again gives the same result as rounding `number` once. */
PRIM_FN float type_float_round_to_odd(double number) {
  float nearest = (float)number;
  uint32_t bits = type_float_bits(nearest);
  double back = (double)nearest;
  bool away_from_zero = number < 0 ? back < number : back > number;
  if (back == number || number != number) return nearest;
  return type_float_of_bits((away_from_zero ? bits - 1 : bits) | 1u);
}

/* ---- the functions of every type ---- */

/* The functions of each row of TYPE_TABLE, with name T and storage S:
 *   S type_T_sum, _prod, _max, _min (S left, S right)
 *   S type_T_divide(S element, uint64_t divisor)   C's integer division; floating types unchanged
 *   S type_T_from_double(double)    nearest even; integers: towards zero, clamped to the range, NaN is 0
 *   double type_T_to_double(S)      exact, except int64 and uint64 above 2^53: nearest even */

#define TYPE_INTEGER(name, storage, wide, quotient, low, high)                                           \
  PRIM_FN storage type_##name##_sum(storage left, storage right) {                                       \
    return (storage)((wide)left + (wide)right);                                                          \
  }                                                                                                      \
  PRIM_FN storage type_##name##_prod(storage left, storage right) {                                      \
    return (storage)((wide)left * (wide)right);                                                          \
  }                                                                                                      \
  PRIM_FN storage type_##name##_max(storage left, storage right) { return left > right ? left : right; } \
  PRIM_FN storage type_##name##_min(storage left, storage right) { return left < right ? left : right; } \
  PRIM_FN storage type_##name##_divide(storage element, uint64_t divisor) {                              \
    return divisor == 0 ? element : (storage)((quotient)element / (quotient)divisor);                    \
  }                                                                                                      \
  PRIM_FN storage type_##name##_from_double(double number) {                                             \
    if (number != number) return 0;                                                                      \
    if (number <= (double)(low)) return (low);                                                           \
    return number >= (double)(high) ? (high) : (storage)number;                                          \
  }                                                                                                      \
  PRIM_FN double type_##name##_to_double(storage element) { return (double)element; }

TYPE_INTEGER(int8, int8_t, uint32_t, int64_t, INT8_MIN, INT8_MAX)
TYPE_INTEGER(uint8, uint8_t, uint32_t, uint64_t, 0, UINT8_MAX)
TYPE_INTEGER(int32, int32_t, uint32_t, int64_t, INT32_MIN, INT32_MAX)
TYPE_INTEGER(uint32, uint32_t, uint32_t, uint64_t, 0, UINT32_MAX)
TYPE_INTEGER(int64, int64_t, uint64_t, int64_t, INT64_MIN, INT64_MAX)
TYPE_INTEGER(uint64, uint64_t, uint64_t, uint64_t, 0, UINT64_MAX)

#define TYPE_SMALL(name, storage)                                                                  \
  PRIM_FN storage type_##name##_sum(storage left, storage right) {                                 \
    return type_##name##_from_float(type_##name##_to_float(left) + type_##name##_to_float(right)); \
  }                                                                                                \
  PRIM_FN storage type_##name##_prod(storage left, storage right) {                                \
    return type_##name##_from_float(type_##name##_to_float(left) * type_##name##_to_float(right)); \
  }                                                                                                \
  PRIM_FN storage type_##name##_divide(storage element, uint64_t divisor) {                        \
    (void)divisor;                                                                                 \
    return element;                                                                                \
  }                                                                                                \
  PRIM_FN storage type_##name##_from_double(double number) {                                       \
    return type_##name##_from_float(type_float_round_to_odd(number));                              \
  }                                                                                                \
  PRIM_FN double type_##name##_to_double(storage element) { return (double)type_##name##_to_float(element); }

TYPE_SMALL(half, uint16_t)
TYPE_SMALL(bfloat16, uint16_t)
TYPE_SMALL(f8e4m3, uint8_t)
TYPE_SMALL(f8e5m2, uint8_t)

/* Equal numbers have equal bits except for the zeros: of those the larger has the sign bit cleared and the
 * smaller has it set. A comparison with a NaN is false, which selects `right`, so only a NaN there needs
 * another check. */
#define TYPE_NATIVE(name, word, SUM, PROD)                                                                 \
  PRIM_FN name type_##name##_sum(name left, name right) { return SUM(left, right); }                       \
  PRIM_FN name type_##name##_prod(name left, name right) { return PROD(left, right); }                     \
  PRIM_FN name type_##name##_pick(bool left_wins, name left, name right) {                                 \
    word mask = (word)0 - (word)left_wins;                                                                 \
    return type_##name##_of_bits((type_##name##_bits(left) & mask) | (type_##name##_bits(right) & ~mask)); \
  }                                                                                                        \
  PRIM_FN name type_##name##_max(name left, name right) {                                                  \
    word kept = type_##name##_bits(left) | ((word)(left == right) - 1);                                    \
    name tied = type_##name##_of_bits(type_##name##_bits(right) & kept);                                   \
    name best = type_##name##_pick(left > right, left, tied);                                              \
    return type_##name##_settle(type_##name##_pick(right == right, best, left));                           \
  }                                                                                                        \
  PRIM_FN name type_##name##_min(name left, name right) {                                                  \
    word added = type_##name##_bits(left) & ((word)0 - (word)(left == right));                             \
    name tied = type_##name##_of_bits(type_##name##_bits(right) | added);                                  \
    name best = type_##name##_pick(left < right, left, tied);                                              \
    return type_##name##_settle(type_##name##_pick(right == right, best, left));                           \
  }                                                                                                        \
  PRIM_FN name type_##name##_divide(name element, uint64_t divisor) {                                      \
    (void)divisor;                                                                                         \
    return element;                                                                                        \
  }                                                                                                        \
  PRIM_FN name type_##name##_from_double(double number) { return type_##name##_settle((name)number); }     \
  PRIM_FN double type_##name##_to_double(name element) { return (double)element; }

TYPE_NATIVE(float, uint32_t, PRIM_FLOAT_SUM, PRIM_FLOAT_PROD)
TYPE_NATIVE(double, uint64_t, PRIM_DOUBLE_SUM, PRIM_DOUBLE_PROD)

#endif
