/* oracle.c: inputs and expected outputs of collectives. Plain loops over ranks and elements, without code of
 * the library that it checks. oracle.h says which inputs and why. */
#include "oracle.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256 }; /* elements whose inputs are drawn at a time: loops over them are vectorized */

/* In loops over elements: with a format that the compiler knows they take a fifth of the time. */
#define INLINE static inline __attribute__((always_inline))

/* Copies for wider vectors, of which the loader takes one; sanitizers' builds have none. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTORS __attribute__((target_clones("arch=x86-64-v4", "avx2", "default"), optimize("O3")))
#else
#define VECTORS
#endif

/* Calls a function that has a format as first parameter; the most used formats each get a copy of its code.
 */
#define WITH_FORMAT(type, function, ...)                                    \
  ((type) == ncclFloat32    ? function(&formats[ncclFloat32], __VA_ARGS__)  \
   : (type) == ncclFloat16  ? function(&formats[ncclFloat16], __VA_ARGS__)  \
   : (type) == ncclBfloat16 ? function(&formats[ncclBfloat16], __VA_ARGS__) \
                            : function(&formats[type], __VA_ARGS__))

/* ---- types: all floats are sign, exponent, fraction; they differ in widths only */

struct format {
  uint32_t bytes;
  bool is_float, is_signed;
  uint32_t exponent_bits, fraction_bits;
  bool has_infinity; /* the largest exponent is kept for infinities and NaNs; else its last fraction is NaN */
};

static const struct format formats[ncclNumTypes] = {
    {1, false, true, 0, 0, false},  /* int8 */
    {1, false, false, 0, 0, false}, /* uint8 */
    {4, false, true, 0, 0, false},  /* int32 */
    {4, false, false, 0, 0, false}, /* uint32 */
    {8, false, true, 0, 0, false},  /* int64 */
    {8, false, false, 0, 0, false}, /* uint64 */
    {2, true, true, 5, 10, true},   /* half */
    {4, true, true, 8, 23, true},   /* float */
    {8, true, true, 11, 52, true},  /* double */
    {2, true, true, 8, 7, true},    /* bfloat16 */
    {1, true, true, 4, 3, false},   /* f8e4m3 */
    {1, true, true, 5, 2, true},    /* f8e5m2 */
};

size_t oracle_type_bytes(ncclDataType_t type) {
  return (unsigned)type < ncclNumTypes ? formats[type].bytes : 0;
}

static int format_bias(const struct format *format) { return (1 << (format->exponent_bits - 1)) - 1; }

static uint64_t bits_mask(const struct format *format) {
  return format->bytes == 8 ? ~0ull : (1ull << (8 * format->bytes)) - 1;
}

INLINE uint64_t bits_load(const void *memory, uint32_t bytes) {
  uint64_t bits = 0;
  memcpy(&bits, memory, bytes); /* little-endian hosts, as all that NCCL runs on */
  return bits;
}

/* (-1)^negative * (1 + fraction / 2^fraction_bits) * 2^exponent; the caller knows it to be normal. */
INLINE uint64_t float_bits(const struct format *format, bool negative, int exponent, uint64_t fraction) {
  uint64_t biased = (uint64_t)(exponent + format_bias(format));
  uint64_t sign = (uint64_t)negative << (format->exponent_bits + format->fraction_bits);
  return sign | biased << format->fraction_bits | fraction;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* A whole number below 2^(fraction_bits + 1), exactly. */
INLINE uint64_t float_bits_whole(const struct format *format, bool negative, uint64_t number) {
  if (format->bytes == 4) return bits_of_float((float)(int32_t)number) | (uint64_t)negative << 31;
  if (number == 0) return 0;
  int exponent = 63 - __builtin_clzll(number);
  uint64_t fraction =
      (number << (format->fraction_bits - (uint32_t)exponent)) & ((1ull << format->fraction_bits) - 1);
  return float_bits(format, negative, exponent, fraction);
}

static double double_of_bits(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE double float_value(const struct format *format, uint64_t bits) {
  uint64_t fraction = bits & ((1ull << format->fraction_bits) - 1);
  uint64_t top = (1ull << format->exponent_bits) - 1;
  uint64_t biased = bits >> format->fraction_bits & top;
  uint64_t sign = (bits >> (format->exponent_bits + format->fraction_bits) & 1) << 63;
  if (format->bytes == 8) return double_of_bits(bits);
  if (format->bytes == 4) return (double)float_of_bits((uint32_t)bits);
  if (biased == top && (format->has_infinity || fraction == (1ull << format->fraction_bits) - 1)) {
    bool is_infinity = format->has_infinity && fraction == 0;
    return is_infinity ? (sign ? -INFINITY : INFINITY) : NAN;
  }
  if (biased == 0) {
    double size = ldexp((double)fraction, 1 - format_bias(format) - (int)format->fraction_bits);
    return sign ? -size : size;
  }
  uint64_t exponent = biased + 1023 - (uint64_t)format_bias(format);
  return double_of_bits(sign | exponent << 52 | fraction << (52 - format->fraction_bits));
}

/* The integer that the bits stand for, sign-extended. */
static int64_t integer_value(const struct format *format, uint64_t bits) {
  uint32_t unused = 64 - 8 * format->bytes;
  return format->is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
}

/* ---- shapes: which rank sends and receives how much */

static bool collective_reduces(enum collective_id collective) {
  return collective == COLLECTIVE_ALL_REDUCE || collective == COLLECTIVE_REDUCE_SCATTER ||
         collective == COLLECTIVE_REDUCE;
}

size_t oracle_send_count(const struct oracle_case *c, uint32_t rank) {
  switch (c->collective) {
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALLTOALL: return c->count * c->rank_count;
    case COLLECTIVE_SCATTER: return rank == c->root ? c->count * c->rank_count : 0;
    case COLLECTIVE_BROADCAST: return rank == c->root ? c->count : 0;
    default: return c->count;
  }
}

size_t oracle_receive_count(const struct oracle_case *c, uint32_t rank) {
  switch (c->collective) {
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALLTOALL: return c->count * c->rank_count;
    case COLLECTIVE_GATHER: return rank == c->root ? c->count * c->rank_count : 0;
    case COLLECTIVE_REDUCE: return rank == c->root ? c->count : 0;
    default: return c->count;
  }
}

/* ---- inputs */

static uint64_t hash(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ x >> 32;
}

/* Random bits of an element, the same for all ranks; of an element of one rank. */
static uint64_t hash_element(const struct oracle_case *c, size_t index) {
  return hash(c->seed * 0x9e3779b97f4a7c15ull + index * 0xbf58476d1ce4e5b9ull + 0x94d049bb133111ebull);
}
static uint64_t hash_rank(uint64_t element, uint32_t rank) {
  uint64_t x = element + (rank + 1) * 0x2545f4914f6cdd1dull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ x >> 32;
}

/* True for an element whose float inputs have random significands. */
static bool element_is_rough(uint64_t element) { return element >> 62 == 3; }

/* What the inputs of all elements of a case have in common. */
struct draw {
  const struct oracle_case *c;
  bool is_reduced;
  uint32_t ranks;   /* how many contribute more than zero (to a product: than one) to an element */
  uint64_t numbers; /* of a sum's exact elements: 0 to numbers - 1 */
  bool is_sum;      /* of floats to which all ranks contribute: the usual case, in loops of its own */
};

static struct draw draw_of(const struct oracle_case *c, const struct format *format) {
  struct draw draw = {c, collective_reduces(c->collective), c->rank_count, 0, false};
  if (!format->is_float) return draw;
  uint32_t exact_bits = format->fraction_bits + (c->op == ORACLE_MUL_SUM ? 0 : 1);
  uint64_t limit = c->op == ORACLE_PROD ? 4 : 1ull << exact_bits;
  if (draw.ranks > limit) draw.ranks = (uint32_t)limit;
  uint64_t highest = (1ull << exact_bits) / draw.ranks;
  draw.is_sum = draw.is_reduced && draw.ranks == c->rank_count && c->op != ORACLE_PROD &&
                c->op != ORACLE_MAX && c->op != ORACLE_MIN;
  draw.numbers = highest < 1ull << (format->fraction_bits + 1) ? highest + 1 : highest;
  return draw;
}

/* One element of a float input to a sum: its sign is the element's, so that nothing cancels. */
INLINE uint64_t input_sum(const struct format *format, const struct draw *draw, uint64_t element,
                          uint64_t bits) {
  bool negative = element >> 61 & 1;
  uint64_t fraction = bits & ((1ull << format->fraction_bits) - 1);
  uint64_t rough = float_bits(format, negative, -(int)(bits >> 62), fraction);
  uint64_t number = format->fraction_bits < 32
                        ? (bits << 2 >> 32) * draw->numbers >> 32
                        : (uint64_t)((unsigned __int128)(bits << 2) * draw->numbers >> 64);
  uint64_t exact = float_bits_whole(format, negative, number);
  uint64_t mask = element_is_rough(element) ? ~0ull : 0;
  return (rough & mask) | (exact & ~mask);
}

/* One element of a float input to a product: powers of two, or a significand below 2. */
static uint64_t input_product(const struct format *format, uint64_t element, uint64_t bits, bool is_inside) {
  bool negative = bits >> 61 & 1;
  if (!is_inside) return float_bits(format, negative, 0, 0);
  uint64_t fraction = bits & ((1ull << format->fraction_bits) - 1);
  if (element_is_rough(element)) return float_bits(format, negative, 0, fraction);
  return float_bits(format, negative, (int)(bits % 3) - 1, 0);
}

/* One element of a float input to a maximum or minimum: any sign, any of the middle exponents. */
static uint64_t input_order(const struct format *format, uint64_t bits) {
  int range = format_bias(format) - 1;
  int exponent = (int)((bits >> 48) % (uint64_t)(2 * range)) - range;
  return float_bits(format, bits >> 47 & 1, exponent,
                    (bits >> 60) * 0x1111111111111111ull & ((1ull << format->fraction_bits) - 1));
}

INLINE uint64_t input_bits(const struct format *format, const struct draw *draw, uint64_t element,
                           uint32_t rank) {
  const struct oracle_case *c = draw->c;
  uint64_t bits = hash_rank(element, rank);
  if (!draw->is_reduced) return bits & bits_mask(format);
  if (!format->is_float) return (c->op == ORACLE_PROD ? bits | 1 : bits) & bits_mask(format);
  if (c->op == ORACLE_MAX || c->op == ORACLE_MIN) return input_order(format, bits);
  uint32_t ranks = draw->ranks;
  bool is_inside = ranks == c->rank_count || (rank + element % c->rank_count) % c->rank_count < ranks;
  if (c->op == ORACLE_PROD) return input_product(format, element, bits, is_inside);
  return is_inside ? input_sum(format, draw, element, bits) : 0;
}

/* What an operation needs to draw a block of elements: they are the same for all ranks. */
INLINE void elements_draw(const struct oracle_case *c, size_t first, uint64_t elements[BLOCK]) {
  const struct oracle_case own = *c; /* which `elements` cannot overlap, so that the loop is vectorized */
  for (size_t i = 0; i < BLOCK; i++) elements[i] = hash_element(&own, first + i);
}

/* A rank's inputs of a block. */
INLINE void inputs_draw(const struct format *format, const struct draw *draw, const uint64_t elements[BLOCK],
                        uint32_t rank, uint64_t bits[BLOCK]) {
  const struct oracle_case c = *draw->c;
  struct draw own = *draw;
  own.c = &c;
  if (own.is_sum) {
    for (size_t i = 0; i < BLOCK; i++)
      bits[i] = input_sum(format, &own, elements[i], hash_rank(elements[i], rank));
    return;
  }
  for (size_t i = 0; i < BLOCK; i++) bits[i] = input_bits(format, &own, elements[i], rank);
}

INLINE void input_write(const struct format *format, const struct oracle_case *c, uint32_t rank, size_t first,
                        size_t count, void *out) {
  const struct draw draw = draw_of(c, format);
  uint64_t elements[BLOCK], bits[BLOCK];
  unsigned char *cursor = (unsigned char *)out;
  for (size_t done = 0; done < count; done += BLOCK) {
    const size_t some = count - done < BLOCK ? count - done : BLOCK;
    elements_draw(c, first + done, elements);
    inputs_draw(format, &draw, elements, rank, bits);
    for (size_t i = 0; i < some; i++, cursor += format->bytes) memcpy(cursor, &bits[i], format->bytes);
  }
}

VECTORS void oracle_input(const struct oracle_case *c, uint32_t rank, size_t first, size_t count, void *out) {
  WITH_FORMAT(c->type, input_write, c, rank, first, count, out);
}

/* 1, 2 or 3 for integers; 1 or 2 for floats, which keep every number of input_sum() exact. */
static uint64_t scalar_number(const struct format *format, uint32_t rank) {
  return format->is_float ? 1 + rank % 2 : 1 + rank % 3;
}

void oracle_scalar(const struct oracle_case *c, uint32_t rank, void *out) {
  const struct format *format = &formats[c->type];
  uint64_t number = scalar_number(format, rank);
  uint64_t bits = format->is_float ? float_bits_whole(format, false, number) : number;
  memcpy(out, &bits, format->bytes);
}

/* ---- expected outputs */

INLINE uint64_t reduce_integer(const struct format *format, const struct draw *draw, uint64_t element) {
  const struct oracle_case *c = draw->c;
  uint64_t total = input_bits(format, draw, element, 0);
  if (c->op == ORACLE_MUL_SUM) total *= scalar_number(format, 0);
  for (uint32_t rank = 1; rank < c->rank_count; rank++) {
    uint64_t bits = input_bits(format, draw, element, rank);
    bool is_less =
        format->is_signed ? integer_value(format, bits) < integer_value(format, total) : bits < total;
    switch (c->op) {
      case ORACLE_PROD: total *= bits; break;
      case ORACLE_MAX: total = is_less ? total : bits; break;
      case ORACLE_MIN: total = is_less ? bits : total; break;
      case ORACLE_MUL_SUM: total += bits * scalar_number(format, rank); break;
      default: total += bits; break;
    }
  }
  total &= bits_mask(format);
  if (c->op != ORACLE_AVG) return total;
  if (!format->is_signed) return total / c->rank_count;
  return (uint64_t)(integer_value(format, total) / (int64_t)c->rank_count) & bits_mask(format);
}

/* The bound of oracle.h on a sum of n terms of total size `magnitude`, after `steps` roundings of each. */
static double rounding_bound(const struct format *format, uint32_t steps, uint32_t ranks, double magnitude) {
  double unit = ldexp(1, -(int)format->fraction_bits - 1);
  return (expm1(steps * log1p(unit)) + ranks * 0x1p-52) * magnitude;
}

static double average_bound(const struct oracle_case *c, const struct format *format, bool is_rough,
                            double magnitude) {
  uint32_t ranks = c->rank_count;
  double smallest = ldexp(1, 1 - format_bias(format) - (int)format->fraction_bits);
  bool is_power = (ranks & (ranks - 1)) == 0;
  if (!is_rough && is_power && 1.0 / ranks >= smallest) return 0;
  double lost_in_factor =
      1.0 / ranks < ldexp(smallest, (int)format->fraction_bits) ? smallest / 2 * magnitude : 0;
  return rounding_bound(format, ranks + 1, ranks, magnitude / ranks) + 2 * lost_in_factor +
         ranks * smallest / 2;
}

/* What `total` must be within; `magnitude`: the sum of the terms' sizes. */
INLINE double float_tolerance(const struct format *format, const struct draw *draw, uint64_t element,
                              double total, double magnitude) {
  const struct oracle_case *c = draw->c;
  bool is_rough = element_is_rough(element);
  if (c->op == ORACLE_AVG) return average_bound(c, format, is_rough, magnitude);
  if (!is_rough || c->op == ORACLE_MAX || c->op == ORACLE_MIN) return 0;
  double size = c->op == ORACLE_PROD ? fabs(total) : magnitude;
  return rounding_bound(format, c->rank_count - 1, c->rank_count, size);
}

INLINE double reduce_float(const struct format *format, const struct draw *draw, uint64_t element,
                           double *tolerance) {
  const struct oracle_case *c = draw->c;
  double total = c->op == ORACLE_PROD ? 1 : 0, magnitude = 0;
  for (uint32_t rank = 0; rank < c->rank_count; rank++) {
    double value = float_value(format, input_bits(format, draw, element, rank));
    if (c->op == ORACLE_MUL_SUM) value *= (double)scalar_number(format, rank);
    if (c->op == ORACLE_PROD) total *= value;
    else if (c->op == ORACLE_MAX) total = rank && total > value ? total : value;
    else if (c->op == ORACLE_MIN) total = rank && total < value ? total : value;
    else total += value;
    magnitude += fabs(value);
  }
  *tolerance = float_tolerance(format, draw, element, total, magnitude);
  return c->op == ORACLE_AVG ? total / c->rank_count : total;
}

/* The same of a block of sums: rank after rank, in loops that compilers vectorize. All terms of a sum have
 * one sign, so that its size is that of the terms. */
INLINE void sums_reduce(const struct format *format, const struct draw *draw, size_t first, size_t count,
                        double *values, double *tolerances) {
  const struct oracle_case *c = draw->c;
  uint64_t elements[BLOCK], bits[BLOCK];
  double totals[BLOCK] = {0};
  elements_draw(c, first, elements);
  for (uint32_t rank = 0; rank < c->rank_count; rank++) {
    const double factor = c->op == ORACLE_MUL_SUM ? (double)scalar_number(format, rank) : 1;
    inputs_draw(format, draw, elements, rank, bits);
    for (size_t i = 0; i < BLOCK; i++) totals[i] += factor * float_value(format, bits[i]);
  }
  for (size_t i = 0; i < count; i++) {
    values[i] = c->op == ORACLE_AVG ? totals[i] / c->rank_count : totals[i];
    tolerances[i] = float_tolerance(format, draw, elements[i], totals[i], fabs(totals[i]));
  }
}

/* The rank and element of the input that the output element of `rank` is a copy of. */
static uint32_t move_source(const struct oracle_case *c, uint32_t rank, size_t index, size_t *source_index) {
  *source_index = index;
  switch (c->collective) {
    case COLLECTIVE_SENDRECV: return (rank + c->rank_count - 1) % c->rank_count;
    case COLLECTIVE_SCATTER: *source_index = rank * c->count + index; return c->root;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER: *source_index = index % c->count; return (uint32_t)(index / c->count);
    case COLLECTIVE_ALLTOALL:
      *source_index = rank * c->count + index % c->count;
      return (uint32_t)(index / c->count);
    default: return c->root;
  }
}

INLINE void part_expect(const struct format *format, const struct oracle_case *c, uint32_t rank, size_t first,
                        size_t count, struct oracle_part *part) {
  const struct draw draw = draw_of(c, format);
  const size_t shift = c->collective == COLLECTIVE_REDUCE_SCATTER ? rank * c->count : 0;
  for (size_t done = 0; draw.is_sum && done < count; done += BLOCK) {
    const size_t some = count - done < BLOCK ? count - done : BLOCK;
    sums_reduce(format, &draw, first + shift + done, some, part->values + done, part->tolerances + done);
  }
  for (size_t i = 0; !draw.is_sum && i < count; i++) {
    size_t source_index = first + i + shift;
    part->values[i] = part->tolerances[i] = 0;
    if (!draw.is_reduced) {
      uint32_t source = move_source(c, rank, first + i, &source_index);
      part->bits[i] = input_bits(format, &draw, hash_element(c, source_index), source);
      continue;
    }
    uint64_t element = hash_element(c, source_index);
    if (format->is_float) part->values[i] = reduce_float(format, &draw, element, &part->tolerances[i]);
    else part->bits[i] = reduce_integer(format, &draw, element);
  }
}

VECTORS size_t oracle_expect(const struct oracle_case *c, uint32_t rank, size_t first,
                             struct oracle_part *part) {
  const size_t total = oracle_receive_count(c, rank);
  if (first >= total) return 0;
  const size_t count = total - first < ORACLE_PART ? total - first : ORACLE_PART;
  WITH_FORMAT(c->type, part_expect, c, rank, first, count, part);
  return count;
}

bool oracle_is_shared(const struct oracle_case *c) {
  return c->collective == COLLECTIVE_ALL_REDUCE || c->collective == COLLECTIVE_BROADCAST ||
         c->collective == COLLECTIVE_ALL_GATHER;
}

/* True if all are within their tolerances; false also where floats of this format have no such loop. */
INLINE bool floats_fit(const struct format *format, const void *output, size_t count,
                       const struct oracle_part *part) {
  const unsigned char *cursor = (const unsigned char *)output;
  int outside = 0;
  if (format->bytes != 4) return false;
  for (size_t i = 0; i < count; i++, cursor += 4) {
    const double got = (double)float_of_bits((uint32_t)bits_load(cursor, 4));
    outside |= !(fabs(got - part->values[i]) <= part->tolerances[i]);
  }
  return outside == 0;
}

INLINE uint64_t part_compare(const struct format *format, const struct oracle_case *c, size_t count,
                             const struct oracle_part *part, const void *output,
                             struct oracle_mismatch *first) {
  const bool is_reduced_float = collective_reduces(c->collective) && format->is_float;
  const unsigned char *cursor = (const unsigned char *)output;
  uint64_t wrong = 0;
  if (is_reduced_float && floats_fit(format, output, count, part)) return 0;
  for (size_t index = 0; index < count; index++, cursor += format->bytes) {
    uint64_t bits = bits_load(cursor, format->bytes);
    double got = is_reduced_float ? float_value(format, bits) : 0;
    bool is_right = is_reduced_float ? fabs(got - part->values[index]) <= part->tolerances[index]
                                     : bits == part->bits[index];
    if (is_right || wrong++) continue;
    first->index = index;
    first->got = is_reduced_float ? got : (double)integer_value(format, bits);
    first->expected =
        is_reduced_float ? part->values[index] : (double)integer_value(format, part->bits[index]);
    first->tolerance = part->tolerances[index];
  }
  return wrong;
}

VECTORS uint64_t oracle_compare(const struct oracle_case *c, size_t count, const struct oracle_part *part,
                                const void *output, struct oracle_mismatch *first) {
  return WITH_FORMAT(c->type, part_compare, c, count, part, output, first);
}

uint64_t oracle_check(const struct oracle_case *c, const uint32_t *ranks, const void *const *outputs,
                      uint32_t output_count, struct oracle_mismatch *first) {
  struct oracle_part part;
  uint64_t wrong = 0;
  size_t longest = 1;
  for (size_t start = 0; longest > 0; start += ORACLE_PART) {
    size_t count = longest = 0;
    for (uint32_t output = 0; output < output_count; output++) {
      struct oracle_mismatch found;
      if (output == 0 || !oracle_is_shared(c)) count = oracle_expect(c, ranks[output], start, &part);
      if (count > longest) longest = count;
      const unsigned char *here = (const unsigned char *)outputs[output] + start * oracle_type_bytes(c->type);
      const uint64_t more = count == 0 ? 0 : oracle_compare(c, count, &part, here, &found);
      if (more > 0 && wrong == 0 && first != NULL) {
        *first = found;
        first->rank = ranks[output];
        first->index += start;
      }
      wrong += more;
    }
  }
  return wrong;
}
