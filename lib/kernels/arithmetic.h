/* arithmetic.h: the elements of types.h eight bytes at a time, as loops over vectors and lines want them. The
 * instructions that a GPU has for pairs of small floats are used where they give the bits of types.h for
 * every operand, NaN included. Type and operator are constants wherever these functions are called in a loop,
 * so that nothing is left of the choice. It knows nothing of who calls. */
#ifndef TUTTI_KERNELS_ARITHMETIC_H
#define TUTTI_KERNELS_ARITHMETIC_H

/* Never contracted, and their NaN is the canonical one. Doubles have another NaN: they keep the header's way.
 */
#define PRIM_FLOAT_SUM(left, right) __fadd_rn(left, right)
#define PRIM_FLOAT_PROD(left, right) __fmul_rn(left, right)

#include "kernels/types.h"

PRIM_FN uint32_t word_element_bytes(uint8_t dtype) {
#define WORD_TYPE(value, name, storage, accumulator) \
  case value: return sizeof(storage);
  switch (dtype) { TYPE_TABLE(WORD_TYPE) }
#undef WORD_TYPE
  return 1;
}

/* ---- any type: element by element ---- */

#define WORD_TYPE(value, name, storage, accumulator)                                                      \
  union word_##name##_view {                                                                              \
    uint64_t word;                                                                                        \
    storage elements[8 / sizeof(storage)];                                                                \
  };                                                                                                      \
  PRIM_FN uint64_t word_##name##_combine(uint8_t op, uint64_t left, uint64_t right) {                     \
    union word_##name##_view first, second;                                                               \
    first.word = left;                                                                                    \
    second.word = right;                                                                                  \
    _Pragma("unroll") for (uint32_t i = 0; i < 8 / sizeof(storage); i++) switch (op) {                    \
      case OP_PROD: first.elements[i] = type_##name##_prod(first.elements[i], second.elements[i]); break; \
      case OP_MAX: first.elements[i] = type_##name##_max(first.elements[i], second.elements[i]); break;   \
      case OP_MIN: first.elements[i] = type_##name##_min(first.elements[i], second.elements[i]); break;   \
      default: first.elements[i] = type_##name##_sum(first.elements[i], second.elements[i]); break;       \
    }                                                                                                     \
    return first.word;                                                                                    \
  }
TYPE_TABLE(WORD_TYPE)
#undef WORD_TYPE

/* ---- pairs of small floats ---- */

PRIM_FN uint32_t pair_half(uint8_t op, uint32_t left, uint32_t right) {
  switch (op) {
    case OP_PROD: return pair_half_prod(left, right);
    case OP_MAX: return pair_half_max(left, right);
    case OP_MIN: return pair_half_min(left, right);
    default: return pair_half_sum(left, right);
  }
}

/* All but the product, whose subnormal results the instruction rounds once and types.h twice. */
PRIM_FN uint32_t pair_bfloat16(uint8_t op, uint32_t left, uint32_t right) {
  switch (op) {
    case OP_MAX: return pair_bfloat16_max(left, right);
    case OP_MIN: return pair_bfloat16_min(left, right);
    default: return pair_bfloat16_sum(left, right);
  }
}

#if __CUDA_ARCH__ >= 890
#define WORD_FP8_NATIVE 1
/* Two numbers of fp8 -> half, which is exact, -> float; there as types.h does. */
#define WORD_FP8(name, format)                                                            \
  PRIM_FN uint16_t pair_##name(uint8_t op, uint16_t left, uint16_t right) {               \
    uint32_t first, second;                                                               \
    float a, b, c, d;                                                                     \
    uint16_t result;                                                                      \
    asm("cvt.rn.f16x2." format "x2 %0, %1;" : "=r"(first) : "h"(left));                   \
    asm("cvt.rn.f16x2." format "x2 %0, %1;" : "=r"(second) : "h"(right));                 \
    asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"((uint16_t)first));                          \
    asm("cvt.f32.f16 %0, %1;" : "=f"(b) : "h"((uint16_t)(first >> 16)));                  \
    asm("cvt.f32.f16 %0, %1;" : "=f"(c) : "h"((uint16_t)second));                         \
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"((uint16_t)(second >> 16)));                 \
    a = op == OP_PROD ? __fmul_rn(a, c) : __fadd_rn(a, c);                                \
    b = op == OP_PROD ? __fmul_rn(b, d) : __fadd_rn(b, d);                                \
    asm("cvt.rn.satfinite." format "x2.f32 %0, %1, %2;" : "=h"(result) : "f"(b), "f"(a)); \
    return result;                                                                        \
  }                                                                                       \
  PRIM_FN uint64_t word_##name##_native(uint8_t op, uint64_t left, uint64_t right) {      \
    uint64_t result = 0;                                                                  \
    _Pragma("unroll") for (uint32_t i = 0; i < 64; i += 16) result |=                     \
        (uint64_t)pair_##name(op, (uint16_t)(left >> i), (uint16_t)(right >> i)) << i;    \
    return result;                                                                        \
  }
WORD_FP8(f8e4m3, "e4m3")
WORD_FP8(f8e5m2, "e5m2")
#undef WORD_FP8
#endif

PRIM_FN uint64_t word_float_extreme(uint8_t op, uint64_t left, uint64_t right) {
  const float a = type_float_of_bits((uint32_t)left), b = type_float_of_bits((uint32_t)right);
  const float c = type_float_of_bits((uint32_t)(left >> 32)), d = type_float_of_bits((uint32_t)(right >> 32));
  const float low = op == OP_MAX ? fmaxf(a, b) : fminf(a, b), high = op == OP_MAX ? fmaxf(c, d) : fminf(c, d);
  return type_float_bits(low) | (uint64_t)type_float_bits(high) << 32;
}

/* ---- words ---- */

PRIM_FN uint64_t word_combine(uint8_t dtype, uint8_t op, uint64_t left, uint64_t right) {
  if (dtype == TYPE_HALF)
    return pair_half(op, (uint32_t)left, (uint32_t)right) |
           (uint64_t)pair_half(op, (uint32_t)(left >> 32), (uint32_t)(right >> 32)) << 32;
  if (dtype == TYPE_BFLOAT16 && op != OP_PROD)
    return pair_bfloat16(op, (uint32_t)left, (uint32_t)right) |
           (uint64_t)pair_bfloat16(op, (uint32_t)(left >> 32), (uint32_t)(right >> 32)) << 32;
  if (dtype == TYPE_FLOAT && (op == OP_MAX || op == OP_MIN)) return word_float_extreme(op, left, right);
#ifdef WORD_FP8_NATIVE
  if (dtype == TYPE_F8E4M3 && op != OP_MAX && op != OP_MIN) return word_f8e4m3_native(op, left, right);
  if (dtype == TYPE_F8E5M2 && op != OP_MAX && op != OP_MIN) return word_f8e5m2_native(op, left, right);
#endif
#define WORD_TYPE(value, name, storage, accumulator) \
  case value: return word_##name##_combine(op, left, right);
  switch (dtype) { TYPE_TABLE(WORD_TYPE) }
#undef WORD_TYPE
  return left;
}

/* Every element times the factor whose bits are op_arg. */
PRIM_FN uint64_t word_scale(uint8_t dtype, uint64_t word, uint64_t op_arg) {
  uint64_t factors = op_arg;
  switch (word_element_bytes(dtype)) {
    case 1: factors = (op_arg & 0xff) * 0x0101010101010101u; break;
    case 2: factors = (op_arg & 0xffff) * 0x0001000100010001u; break;
    case 4: factors = (op_arg & 0xffffffffu) | op_arg << 32; break;
    default: break;
  }
  return word_combine(dtype, OP_PROD, word, factors);
}

PRIM_FN uint64_t element_divide(uint8_t dtype, uint64_t element, uint64_t divisor) {
#define WORD_TYPE(value, name, storage, accumulator)                  \
  case value: {                                                       \
    union word_##name##_view view;                                    \
    view.word = element;                                              \
    return (uint64_t)type_##name##_divide(view.elements[0], divisor); \
  }
  switch (dtype) { TYPE_TABLE(WORD_TYPE) }
#undef WORD_TYPE
  return element;
}

/* Averages of integers: rare, and a division is long, so elements take turns. */
PRIM_FN uint64_t word_divide(uint8_t dtype, uint64_t word, uint64_t op_arg) {
  const uint32_t bits = 8 * word_element_bytes(dtype);
  const uint64_t mask = bits == 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
  uint64_t result = 0;
  if (dtype > TYPE_LAST_INTEGER) return word;
#pragma unroll 1
  for (uint32_t i = 0; i < 64; i += bits)
    result |= (element_divide(dtype, word >> i, op_arg >> 1) & mask) << i;
  return result;
}

/* ---- user memory ---- */

/* Up to eight bytes at an address that is aligned to nothing in particular; what is missing is zero. */
PRIM_FN uint64_t word_load(const uint8_t *address, uint32_t bytes) {
  uint64_t word = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++)
    if (i < bytes) word |= element_load(address + i, 1) << (8 * i);
  return word;
}

PRIM_FN void word_store(uint8_t *address, uint32_t bytes, uint64_t word) {
#pragma unroll
  for (uint32_t i = 0; i < 8; i++)
    if (i < bytes) element_store(address + i, 1, word >> (8 * i));
}

/* ---- a compute thread's words of a group of LL lines ---- */

/* Beside enum work_op: the operator's stage before and after a sum. */
#define WORDS_SCALE OP_COUNT
#define WORDS_DIVIDE (OP_COUNT + 1)

#define WORDS_EACH(expression) \
  _Pragma("unroll") for (uint32_t k = 0; k < PRIM_WORDS; k++) words[k] = (expression)

/* A call would have a kernel save what it holds in registers, so all of it is inline; the sums that networks
 * are trained with come first, where two comparisons find them. `others` is not read by the stages. */
PRIM_FN void words_apply(uint8_t dtype, uint8_t verb, uint64_t *words, const uint64_t *others,
                         uint64_t op_arg) {
  const bool sums = verb == OP_SUM || verb == OP_PRE_MUL_SUM || verb == OP_SUM_POST_DIV;
  if (sums && dtype == TYPE_FLOAT) {
    WORDS_EACH(word_combine(TYPE_FLOAT, OP_SUM, words[k], others[k]));
    return;
  }
  if (sums && dtype == TYPE_BFLOAT16) {
    WORDS_EACH(word_combine(TYPE_BFLOAT16, OP_SUM, words[k], others[k]));
    return;
  }
#define WORD_TYPE(value, name, storage, accumulator)                                      \
  case value:                                                                             \
    switch (verb) {                                                                       \
      case OP_PROD: WORDS_EACH(word_combine(value, OP_PROD, words[k], others[k])); break; \
      case OP_MAX: WORDS_EACH(word_combine(value, OP_MAX, words[k], others[k])); break;   \
      case OP_MIN: WORDS_EACH(word_combine(value, OP_MIN, words[k], others[k])); break;   \
      case WORDS_SCALE: WORDS_EACH(word_scale(value, words[k], op_arg)); break;           \
      case WORDS_DIVIDE: WORDS_EACH(word_divide(value, words[k], op_arg)); break;         \
      default: WORDS_EACH(word_combine(value, OP_SUM, words[k], others[k])); break;       \
    }                                                                                     \
    break;
  switch (dtype) { TYPE_TABLE(WORD_TYPE) }
#undef WORD_TYPE
}

#undef WORDS_EACH

#endif
