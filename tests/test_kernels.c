/* test_kernels.c: the element types and the CPU's reduce and copy loops against slow, independent
 * definitions: formats are decoded from their mathematical definition, rounding searches for the two
 * neighbours, integers are computed in 128 bits. Does not test speed, nor the GPU, which compiles the same
 * arithmetic. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "kernels/kernels.h"
#include "kernels/types.h"

enum { INT8 = 0, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, F8E4M3, F8E5M2 };

/* ---- random numbers ---- */

static uint64_t random_state = 1;

static uint64_t random_next(void) { return hash_draw(&random_state); }

/* ---- the oracle of formats ---- */

struct format {
  int bits, mantissa_bits, bias;
  uint64_t finite;   /* largest finite magnitude */
  uint64_t overflow; /* the result for a larger number */
  uint64_t nan;
  bool has_infinity;
};

static const struct format half_format = {16, 10, 15, 0x7bff, 0x7c00, 0x7fff, true};
static const struct format bfloat16_format = {16, 7, 127, 0x7f7f, 0x7f80, 0x7fff, true};
static const struct format e4m3_format = {8, 3, 7, 0x7e, 0x7e, 0x7f, false};
static const struct format e5m2_format = {8, 2, 15, 0x7b, 0x7b, 0x7f, true};
static const struct format float_format = {32, 23, 127, 0x7f7fffff, 0x7f800000, 0x7fffffff, true};

static const struct format *format_of(int dtype) {
  switch (dtype) {
    case HALF: return &half_format;
    case BFLOAT16: return &bfloat16_format;
    case F8E4M3: return &e4m3_format;
    case F8E5M2: return &e5m2_format;
    case FLOAT: return &float_format;
    default: return NULL;
  }
}

/* The value of a magnitude as if the range of exponents were unbounded, so that the value after `finite` is
 * the next power of two. */
static double magnitude_value(const struct format *format, uint64_t magnitude) {
  uint64_t fraction = magnitude & ((1ull << format->mantissa_bits) - 1);
  int exponent = (int)(magnitude >> format->mantissa_bits);
  if (exponent == 0) return ldexp((double)fraction, 1 - format->bias - format->mantissa_bits);
  fraction += 1ull << format->mantissa_bits;
  return ldexp((double)fraction, exponent - format->bias - format->mantissa_bits);
}

static double oracle_decode(const struct format *format, uint64_t bits) {
  uint64_t sign = 1ull << (format->bits - 1), magnitude = bits & (sign - 1);
  double value = magnitude_value(format, magnitude);
  bool infinite = format->has_infinity && magnitude == format->finite + 1;
  if (magnitude > format->finite) value = infinite ? INFINITY : NAN;
  return bits & sign ? -value : value;
}

/* Rounds to nearest even by comparing with the midpoint of the two neighbours, which a double represents
 * exactly. */
static uint64_t oracle_encode(const struct format *format, double value) {
  uint64_t sign = signbit(value) ? 1ull << (format->bits - 1) : 0, low = 0, high = format->finite + 1;
  double size = fabs(value), middle;
  if (isnan(value)) return format->nan;
  if (size >= magnitude_value(format, high)) return sign | format->overflow;
  while (high - low > 1) {
    uint64_t between = low + (high - low) / 2;
    if (magnitude_value(format, between) <= size) low = between;
    else high = between;
  }
  middle = (magnitude_value(format, low) + magnitude_value(format, high)) / 2;
  if (size > middle || (size == middle && (low & 1) != 0)) low = high;
  return sign | (low > format->finite ? format->overflow : low);
}

/* ---- the oracle of operators ---- */

static double double_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return isnan(value) ? 0x7fffffffffffffffu : bits;
}

static bool is_signed_type(int dtype) { return dtype == INT8 || dtype == INT32 || dtype == INT64; }
static bool is_integer_type(int dtype) { return dtype <= UINT64; }

static uint64_t type_mask(int dtype) {
  size_t bytes = kernel_type_bytes((uint8_t)dtype);
  return bytes == 8 ? UINT64_MAX : (1ull << (bytes * 8)) - 1;
}

static __int128 integer_value(int dtype, uint64_t bits) {
  uint64_t mask = type_mask(dtype);
  if (is_signed_type(dtype) && (bits & ~(mask >> 1) & mask) != 0) return (__int128)bits - (__int128)mask - 1;
  return (__int128)bits;
}

static uint64_t oracle_integer(int dtype, int op, uint64_t left, uint64_t right) {
  __int128 a = integer_value(dtype, left), b = integer_value(dtype, right);
  __int128 product = (__int128)((unsigned __int128)a * (unsigned __int128)b);
  __int128 results[4] = {a + b, product, a > b ? a : b, a < b ? a : b};
  return (uint64_t)results[op] & type_mask(dtype);
}

static double value_of(int dtype, uint64_t bits) {
  return dtype == DOUBLE ? double_of(bits) : oracle_decode(format_of(dtype), bits);
}

static uint64_t oracle_extreme(int dtype, int op, uint64_t left, uint64_t right) {
  double a = value_of(dtype, left), b = value_of(dtype, right);
  bool left_is_less = a < b || (a == b && signbit(a) && !signbit(b));
  if (isnan(a) && isnan(b)) return type_mask(dtype) >> 1;
  if (isnan(a)) return right;
  if (isnan(b)) return left;
  return left_is_less == (op == OP_MIN) ? left : right;
}

/* Sums and products of the smaller types are exact or safely rounded in double; then rounded once to float,
 * and once to the type. */
static uint64_t oracle_combine(int dtype, int op, uint64_t left, uint64_t right) {
  double a, b, result;
  if (is_integer_type(dtype)) return oracle_integer(dtype, op, left, right);
  if (op == OP_MAX || op == OP_MIN) return oracle_extreme(dtype, op, left, right);
  a = value_of(dtype, left);
  b = value_of(dtype, right);
  result = op == OP_SUM ? a + b : a * b;
  if (dtype == DOUBLE) return bits_of(result);
  result = oracle_decode(&float_format, oracle_encode(&float_format, result));
  return oracle_encode(format_of(dtype), result);
}

static uint64_t oracle_divide(int dtype, uint64_t bits, uint64_t divisor) {
  if (!is_integer_type(dtype)) return bits;
  return (uint64_t)(integer_value(dtype, bits) / (__int128)divisor) & type_mask(dtype);
}

/* ---- elements of any type ---- */

static uint64_t element_load(int dtype, const void *span, size_t index) {
  size_t bytes = kernel_type_bytes((uint8_t)dtype);
  uint64_t bits = 0;
  memcpy(&bits, (const char *)span + index * bytes, bytes);
  return bits;
}

static void element_store(int dtype, void *span, size_t index, uint64_t bits) {
  size_t bytes = kernel_type_bytes((uint8_t)dtype);
  memcpy((char *)span + index * bytes, &bits, bytes);
}

/* Random bits, special values and, most often, numbers close enough to each other to be rounded. */
static uint64_t element_random(int dtype) {
  static const double specials[] = {0.0,   -0.0,   1,    -1,    0.5, INFINITY, -INFINITY, NAN,
                                    1e-45, -1e-40, 6e-8, 65504, 448, 3e38,     1e308};
  uint64_t draw = random_next();
  if (draw % 8 == 0 && !is_integer_type(dtype))
    return kernel_from_double((uint8_t)dtype, specials[draw / 8 % (sizeof specials / sizeof *specials)]);
  if (draw % 4 == 1 || is_integer_type(dtype)) return random_next() & type_mask(dtype);
  return kernel_from_double((uint8_t)dtype, ldexp((double)(int64_t)random_next(), -60 + (int)(draw / 8 % 5)));
}

/* ---- tests of types ---- */

static void test_table(void **state) {
  static const char *const names[TYPE_COUNT] = {"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                                                "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
  static const size_t bytes[TYPE_COUNT] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  int row = 0;
  (void)state;
#define CHECK_ROW(value, name, storage, accumulator) assert_int_equal(value, row++);
  TYPE_TABLE(CHECK_ROW)
  assert_int_equal(row, TYPE_COUNT);
  row = 0;
#define CHECK_OPERATOR(value, name, combine) assert_int_equal(value, row++);
  TYPE_OPERATOR_TABLE(CHECK_OPERATOR)
  assert_int_equal(row, OP_COUNT);
  for (uint8_t dtype = 0; dtype < TYPE_COUNT; dtype++) {
    assert_string_equal(kernel_type_name(dtype), names[dtype]);
    assert_int_equal(kernel_type_bytes(dtype), bytes[dtype]);
  }
  assert_int_equal(kernel_type_bytes(TYPE_COUNT), 0);
}

static const int small_types[] = {HALF, BFLOAT16, F8E4M3, F8E5M2};

static void test_small_round_trip(void **state) {
  (void)state;
  for (size_t i = 0; i < 4; i++) {
    const struct format *format = format_of(small_types[i]);
    for (uint64_t bits = 0; bits < 1ull << format->bits; bits++) {
      double expected = oracle_decode(format, bits), value = kernel_to_double((uint8_t)small_types[i], bits);
      uint64_t back = kernel_from_double((uint8_t)small_types[i], value);
      if (isnan(expected)) {
        assert_true(isnan(value));
        assert_int_equal(back, format->nan);
      } else {
        assert_true(value == expected && !signbit(value) == !signbit(expected));
        assert_int_equal(back, isinf(expected) ? (bits & ~(format->finite + 1)) | format->overflow : bits);
      }
    }
  }
}

static void check_from_double(int dtype, double value) {
  const char *name = kernel_type_name((uint8_t)dtype);
  uint64_t expected = oracle_encode(format_of(dtype), value);
  uint64_t actual = kernel_from_double((uint8_t)dtype, value);
  if (actual != expected)
    fail_msg("%s from %a: %#" PRIx64 ", expected %#" PRIx64, name, value, actual, expected);
  expected = oracle_encode(format_of(dtype), -value);
  actual = kernel_from_double((uint8_t)dtype, -value);
  if (actual != expected)
    fail_msg("%s from %a: %#" PRIx64 ", expected %#" PRIx64, name, -value, actual, expected);
}

/* Every representable number, every tie between two, and doubles just beside a tie, which a conversion
 * through float would round to the tie. */
static void test_small_boundaries(void **state) {
  (void)state;
  for (size_t i = 0; i < 4; i++) {
    const struct format *format = format_of(small_types[i]);
    for (uint64_t magnitude = 0; magnitude <= format->finite; magnitude++) {
      double low = magnitude_value(format, magnitude), high = magnitude_value(format, magnitude + 1);
      double middle = (low + high) / 2;
      check_from_double(small_types[i], middle);
      check_from_double(small_types[i], nextafter(middle, INFINITY));
      check_from_double(small_types[i], nextafter(middle, 0));
      check_from_double(small_types[i], nextafter(low, INFINITY));
      check_from_double(small_types[i], nextafter(high, 0));
    }
  }
}

static void test_conversions_random(void **state) {
  static const double traps[] = {INFINITY,
                                 NAN,
                                 0.0,
                                 1e300,
                                 1e-300,
                                 5e-324,
                                 3.4028235677973366e38,
                                 3.4028234e38,
                                 1.401298464324817e-45,
                                 7.006492321624085e-46,
                                 7.0064923216240869e-46,
                                 1.1754943508222875e-38,
                                 65519.999999999993,
                                 65520,
                                 464,
                                 480,
                                 448.0000001,
                                 57344.0001,
                                 61440};
  (void)state;
  random_state = 2;
  for (size_t i = 0; i < 5; i++) {
    int dtype = i < 4 ? small_types[i] : FLOAT;
    const struct format *format = format_of(dtype);
    for (size_t j = 0; j < sizeof traps / sizeof *traps; j++) check_from_double(dtype, traps[j]);
    for (size_t j = 0; j < 30000; j++) {
      int lowest = -55 - format->bias - format->mantissa_bits;
      int exponent = (int)(random_next() % (uint64_t)(2 * format->bias + 2 * format->mantissa_bits + 6));
      double value = ldexp((double)(random_next() >> 11), lowest + exponent);
      check_from_double(dtype, value);
      check_from_double(dtype, (double)(float)value);
    }
  }
}

static void test_conversions_integer(void **state) {
  (void)state;
  assert_int_equal(kernel_from_double(INT8, -3.9), 0xfd);
  assert_int_equal(kernel_from_double(INT8, 1000), 0x7f);
  assert_int_equal(kernel_from_double(INT8, -INFINITY), 0x80);
  assert_int_equal(kernel_from_double(UINT8, -0.9), 0);
  assert_int_equal(kernel_from_double(UINT8, 254.9), 254);
  assert_int_equal(kernel_from_double(INT32, NAN), 0);
  assert_int_equal(kernel_from_double(INT32, -2147483648.0), 0x80000000u);
  assert_int_equal(kernel_from_double(UINT32, 4294967295.5), 0xffffffffu);
  assert_true(kernel_from_double(INT64, 9.3e18) == INT64_MAX);
  assert_true(kernel_from_double(INT64, -9.3e18) == (uint64_t)INT64_MIN);
  assert_true(kernel_from_double(UINT64, 1.9e19) == UINT64_MAX);
  assert_true(kernel_from_double(UINT64, 18446744073709549568.0) == 18446744073709549568u);
  assert_true(kernel_to_double(INT8, 0xff) == -1);
  assert_true(kernel_to_double(UINT8, 0xff) == 255);
  assert_true(kernel_to_double(INT64, UINT64_MAX) == -1);
  assert_true(kernel_from_double(DOUBLE, 0.1) == bits_of(0.1));
  assert_true(kernel_from_double(DOUBLE, NAN) == 0x7fffffffffffffffu);
}

/* ---- tests of operators ---- */

static void check_pairs(int dtype, const uint64_t *left, const uint64_t *right, size_t count) {
  size_t bytes = count * kernel_type_bytes((uint8_t)dtype);
  void *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
  assert_true(a != NULL && b != NULL && c != NULL);
  for (size_t i = 0; i < count; i++) {
    element_store(dtype, a, i, left[i]);
    element_store(dtype, b, i, right[i]);
  }
  for (int op = OP_SUM; op <= OP_MIN; op++) {
    kernel_reduce((uint8_t)dtype, (uint8_t)op, c, a, b, count);
    for (size_t i = 0; i < count; i++) {
      uint64_t expected = oracle_combine(dtype, op, left[i], right[i]), actual = element_load(dtype, c, i);
      if (actual != expected)
        fail_msg("%s op %d of %#" PRIx64 " %#" PRIx64 ": %#" PRIx64 ", expected %#" PRIx64,
                 kernel_type_name((uint8_t)dtype), op, left[i], right[i], actual, expected);
    }
  }
  free(a);
  free(b);
  free(c);
}

static void test_pairs(void **state) {
  enum { PAIRS = 65536 };
  uint64_t *left = (uint64_t *)malloc(PAIRS * sizeof *left);
  uint64_t *right = (uint64_t *)malloc(PAIRS * sizeof *right);
  (void)state;
  assert_true(left != NULL && right != NULL);
  random_state = 3;
  for (int dtype = 0; dtype < TYPE_COUNT; dtype++) {
    size_t bytes = kernel_type_bytes((uint8_t)dtype);
    bool every_pair = bytes == 1, every_left = bytes == 2;
    size_t count = every_pair || every_left ? PAIRS : 20000;
    for (size_t i = 0; i < count; i++) {
      left[i] = every_pair ? i & 0xff : every_left ? i : element_random(dtype);
      right[i] = every_pair ? i >> 8 : element_random(dtype);
    }
    check_pairs(dtype, left, right, count);
  }
  free(left);
  free(right);
}

/* ---- tests of moves ---- */

struct trial {
  struct move move;
  void *memory[2 * MOVE_SPANS_MAX]; /* memory to free */
  size_t memory_count;
  uint64_t *expected;
  int same_source; /* a destination that is this source; -1: none */
};

/* Spans have exactly their stated length, so that AddressSanitizer finds one element too many. */
static void *trial_span(struct trial *trial, size_t offset) {
  size_t bytes = kernel_type_bytes(trial->move.dtype);
  char *memory = (char *)malloc((trial->move.count + offset) * bytes + (trial->move.count + offset == 0));
  assert_non_null(memory);
  trial->memory[trial->memory_count++] = memory;
  return memory + offset * bytes;
}

static uint64_t trial_expected(const struct move *move, size_t index) {
  int combine = move->op == OP_PRE_MUL_SUM || move->op == OP_SUM_POST_DIV ? OP_SUM : move->op;
  uint64_t result = 0;
  for (int i = 0; i < move->source_count; i++) {
    uint64_t element = element_load(move->dtype, move->source[i], index);
    if (move->op == OP_PRE_MUL_SUM && (move->pre_op_sources >> i & 1) != 0)
      element = oracle_combine(move->dtype, OP_PROD, element, move->op_arg);
    result = i == 0 ? element : oracle_combine(move->dtype, combine, result, element);
  }
  if (move->op != OP_SUM_POST_DIV || !move->post_op) return result;
  return oracle_divide(move->dtype, result, move->op_arg >> 1);
}

static void trial_fill(struct trial *trial) {
  struct move *move = &trial->move;
  for (int i = 0; i < move->source_count; i++) {
    char *span = (char *)trial_span(trial, random_next() % 4);
    for (size_t j = 0; j < move->count; j++) element_store(move->dtype, span, j, element_random(move->dtype));
    move->source[i] = span;
  }
  for (int i = 0; i < move->destination_count; i++)
    move->destination[i] = trial_span(trial, random_next() % 4);
  if (trial->same_source >= 0) {
    int which = (int)(random_next() % move->destination_count);
    move->destination[which] = (void *)(uintptr_t)move->source[trial->same_source];
  }
  trial->expected = (uint64_t *)malloc((move->count + 1) * sizeof *trial->expected);
  assert_non_null(trial->expected);
  for (size_t j = 0; j < move->count; j++) trial->expected[j] = trial_expected(move, j);
}

static void trial_run(struct trial *trial) {
  struct move *move = &trial->move;
  trial_fill(trial);
  kernel_move(move);
  for (int i = 0; i < move->destination_count; i++)
    for (size_t j = 0; j < move->count; j++) {
      uint64_t actual = element_load(move->dtype, move->destination[i], j);
      if (actual != trial->expected[j])
        fail_msg("%s op %d, %d -> %d, %zu elements, in place %d: destination %d element %zu: %#" PRIx64
                 ", expected %#" PRIx64,
                 kernel_type_name(move->dtype), move->op, move->source_count, move->destination_count,
                 move->count, trial->same_source, i, j, actual, trial->expected[j]);
    }
  for (size_t i = 0; i < trial->memory_count; i++) free(trial->memory[i]);
  free(trial->expected);
}

static void trial_start(int dtype, int op, int source_count, int destination_count, size_t count) {
  struct trial trial;
  memset(&trial, 0, sizeof trial);
  trial.move.dtype = (uint8_t)dtype;
  trial.move.op = (uint8_t)op;
  trial.move.count = count;
  trial.move.source_count = (uint8_t)source_count;
  trial.move.destination_count = (uint8_t)destination_count;
  trial.move.pre_op_sources = (uint16_t)random_next();
  trial.move.post_op = random_next() % 4 != 0;
  trial.same_source = (int)(random_next() % (uint64_t)(source_count + 1)) - 1;
  if (op == OP_PRE_MUL_SUM) trial.move.op_arg = element_random(dtype);
  if (op == OP_SUM_POST_DIV)
    trial.move.op_arg = (1 + random_next() % 9) << 1 | (uint64_t)is_signed_type(dtype);
  trial_run(&trial);
}

static void test_moves(void **state) {
  static const size_t counts[] = {0, 1, 2, 7, 8, 31, 67};
  (void)state;
  random_state = 4;
  for (int dtype = 0; dtype < TYPE_COUNT; dtype++)
    for (int op = 0; op < OP_COUNT; op++)
      for (int shape = 0; shape < 4 * 3; shape++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
          trial_start(dtype, op, shape % 4 + 1, shape / 4 + 1, counts[i]);
}

/* Spans longer than a tile, and the largest number of sources and destinations. */
static void test_events_long(void **state) {
  (void)state;
  random_state = 5;
  for (int dtype = 0; dtype < TYPE_COUNT; dtype++)
    for (int op = 0; op < OP_COUNT; op++) {
      size_t tile = 4096 / kernel_type_bytes((uint8_t)dtype);
      trial_start(dtype, op, 2, 2, tile + 3);
      trial_start(dtype, op, 3, 1, 2 * tile);
      trial_start(dtype, op, MOVE_SPANS_MAX, MOVE_SPANS_MAX, tile / 8 + 5);
    }
}

static void test_move_of_nothing(void **state) {
  struct move move;
  float value = 3, other = 4;
  (void)state;
  memset(&move, 0, sizeof move);
  move.dtype = FLOAT;
  move.count = 1;
  move.source[0] = &value;
  move.destination[0] = &other;
  move.source_count = 1;
  kernel_move(&move);
  move.source_count = 0;
  move.destination_count = 1;
  kernel_move(&move);
  assert_true(other == 4);
}

/* A copy keeps every bit, also of a NaN that no operator returns. */
static void test_copy_keeps_nan(void **state) {
  uint32_t source[3] = {0x7f800001u, 0xffc12345u, 0x80000000u}, destination[3] = {0, 0, 0};
  struct move move;
  (void)state;
  memset(&move, 0, sizeof move);
  move.dtype = FLOAT;
  move.count = 3;
  move.source_count = move.destination_count = 1;
  move.source[0] = source;
  move.destination[0] = destination;
  kernel_move(&move);
  assert_memory_equal(source, destination, sizeof source);
}

/* (1 + 2^-12)^2 loses 2^-24 when rounded; a fused multiply-add would keep it. */
static void test_no_contraction(void **state) {
  float sources[2][9], destination[9], factor = 1 + 0x1p-12f;
  struct move move;
  (void)state;
  memset(&move, 0, sizeof move);
  for (int i = 0; i < 9; i++) {
    sources[0][i] = 1 + 0x1p-12f;
    sources[1][i] = -1 - 0x1p-11f;
  }
  move.dtype = FLOAT;
  move.op = OP_PRE_MUL_SUM;
  move.count = 9;
  move.pre_op_sources = 1;
  memcpy(&move.op_arg, &factor, sizeof factor);
  move.source_count = 2;
  move.destination_count = 1;
  move.source[0] = sources[0];
  move.source[1] = sources[1];
  move.destination[0] = destination;
  kernel_move(&move);
  for (int i = 0; i < 9; i++) assert_true(destination[i] == 0);
}

static void test_stages(void **state) {
  int32_t numbers[5] = {-7, 7, 0, INT32_MIN, INT32_MAX}, result[5];
  static const int32_t thirds[5] = {-2, 2, 0, -715827882, 715827882};
  uint16_t halves[2] = {0x3c00, 0x7bff}, scaled[2];
  (void)state;
  kernel_post_op(INT32, OP_SUM_POST_DIV, 3 << 1 | 1, result, numbers, 5);
  assert_memory_equal(result, thirds, sizeof thirds);
  kernel_post_op(INT32, OP_SUM, 3 << 1 | 1, result, numbers, 5);
  assert_memory_equal(result, numbers, sizeof numbers);
  kernel_pre_op(HALF, OP_PRE_MUL_SUM, 0x4000, scaled, halves, 2);
  assert_int_equal(scaled[0], 0x4000);
  assert_int_equal(scaled[1], 0x7c00);
  kernel_pre_op(HALF, OP_SUM, 0x4000, halves, halves, 2);
  assert_int_equal(halves[0], 0x3c00);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_small_round_trip),
      cmocka_unit_test(test_small_boundaries),
      cmocka_unit_test(test_conversions_random),
      cmocka_unit_test(test_conversions_integer),
      cmocka_unit_test(test_pairs),
      cmocka_unit_test(test_moves),
      cmocka_unit_test(test_events_long),
      cmocka_unit_test(test_move_of_nothing),
      cmocka_unit_test(test_copy_keeps_nan),
      cmocka_unit_test(test_no_contraction),
      cmocka_unit_test(test_stages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
