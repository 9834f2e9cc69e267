/* move.c: the CPU's loops over the arithmetic of types.h: every type and operator, for any number of sources
 * and destinations. It gives the bits of types.h on every processor, and works in place. On x86 each loop is
 * compiled twice, for AVX2 and for the baseline, and selected at run time; by plain branches, not ifunc
 * resolvers, so that sanitizers work. It does not know FIFOs, ranks or threads. */
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MOVE_HAS_AVX2 1 /* clang has no run-time check for F16C */
#include <immintrin.h>
#endif

#include "kernels/types.h"

/* Partial results stay in the first-level cache: it holds a tile and its sources. */
#define MOVE_TILE_BYTES 4096

/* Each iteration touches one index only, so vectorizing is safe even if a destination is a source. */
#if defined(__clang__)
#define LOOP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define LOOP_INDEPENDENT _Pragma("GCC ivdep")
#else
#define LOOP_INDEPENDENT
#endif

typedef void combine_loop(void *destination, const void *left, const void *right, size_t count);
typedef void scalar_loop(void *destination, const void *source, uint64_t argument, size_t count);

/* One type's loops for one instruction set. */
struct type_loops {
  combine_loop *sum, *prod, *max, *min;
  scalar_loop *scale;  /* multiplies by the factor whose bits are the argument */
  scalar_loop *divide; /* divides by the argument */
};

#define LOOP_COMBINE(isa, attribute, name, storage, operation)                                  \
  attribute static void loop_##isa##_##name##_##operation(void *destination, const void *left,  \
                                                          const void *right, size_t count) {    \
    storage *out = (storage *)destination;                                                      \
    const storage *first = (const storage *)left, *second = (const storage *)right;             \
    LOOP_INDEPENDENT                                                                            \
    for (size_t i = 0; i < count; i++) out[i] = type_##name##_##operation(first[i], second[i]); \
  }

#define LOOP_SCALARS(isa, attribute, name, storage)                                         \
  attribute static void loop_##isa##_##name##_scale(void *destination, const void *source,  \
                                                    uint64_t argument, size_t count) {      \
    storage *out = (storage *)destination, factor;                                          \
    const storage *in = (const storage *)source;                                            \
    memcpy(&factor, &argument, sizeof factor);                                              \
    LOOP_INDEPENDENT                                                                        \
    for (size_t i = 0; i < count; i++) out[i] = type_##name##_prod(in[i], factor);          \
  }                                                                                         \
  attribute static void loop_##isa##_##name##_divide(void *destination, const void *source, \
                                                     uint64_t argument, size_t count) {     \
    storage *out = (storage *)destination;                                                  \
    const storage *in = (const storage *)source;                                            \
    LOOP_INDEPENDENT                                                                        \
    for (size_t i = 0; i < count; i++) out[i] = type_##name##_divide(in[i], argument);      \
  }

#define LOOP_TYPE(isa, attribute, name, storage)    \
  LOOP_COMBINE(isa, attribute, name, storage, sum)  \
  LOOP_COMBINE(isa, attribute, name, storage, prod) \
  LOOP_COMBINE(isa, attribute, name, storage, max)  \
  LOOP_COMBINE(isa, attribute, name, storage, min)  \
  LOOP_SCALARS(isa, attribute, name, storage)

#define LOOP_ROW(isa, name)                                                                  \
  {                                                                                          \
    loop_##isa##_##name##_sum, loop_##isa##_##name##_prod, loop_##isa##_##name##_max,        \
        loop_##isa##_##name##_min, loop_##isa##_##name##_scale, loop_##isa##_##name##_divide \
  }

#define LOOP_TYPE_BASE(value, name, storage, accumulator) LOOP_TYPE(base, , name, storage)
#define LOOP_ROW_BASE(value, name, storage, accumulator) LOOP_ROW(base, name),
TYPE_TABLE(LOOP_TYPE_BASE)
static const struct type_loops base_loops[TYPE_COUNT] = {TYPE_TABLE(LOOP_ROW_BASE)};

#ifdef MOVE_HAS_AVX2
/* Unused: EIGHT_ROW has other loops for some operators. */
#define LOOP_TYPE_AVX2(value, name, storage, accumulator) \
  LOOP_TYPE(avx2, __attribute__((target("avx2"), unused)), name, storage)
TYPE_TABLE(LOOP_TYPE_AVX2)

/* Compilers vectorize 16-bit floats poorly, so these loops use intrinsics: half by the processor's own
 * conversions, bfloat16 by shifts. The bits are those of types.h. */
#define EIGHT_FUNCTION __attribute__((target("avx2,f16c"))) static

EIGHT_FUNCTION inline __m256 half_load(const uint16_t *elements) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)elements));
}

EIGHT_FUNCTION inline void half_store(uint16_t *elements, __m256 numbers) {
  __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 settled = _mm256_blendv_ps(numbers, nan, _mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
  _mm_storeu_si128((__m128i *)(void *)elements, _mm256_cvtps_ph(settled, _MM_FROUND_TO_NEAREST_INT));
}

EIGHT_FUNCTION inline __m256 bfloat16_load(const uint16_t *elements) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)elements));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

EIGHT_FUNCTION inline void bfloat16_store(uint16_t *elements, __m256 numbers) {
  __m256i bits = _mm256_castps_si256(numbers);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i nearest = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, nearest), 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
  __m256i settled = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fff), nan);
  __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(settled), _mm256_extracti128_si256(settled, 1));
  _mm_storeu_si128((__m128i *)(void *)elements, packed);
}

#define EIGHT_COMBINE(name, operation, instruction)                                                 \
  EIGHT_FUNCTION void loop_eight_##name##_##operation(void *destination, const void *left,          \
                                                      const void *right, size_t count) {            \
    uint16_t *out = (uint16_t *)destination;                                                        \
    const uint16_t *first = (const uint16_t *)left, *second = (const uint16_t *)right;              \
    size_t done = 0;                                                                                \
    for (; count - done >= 8; done += 8)                                                            \
      name##_store(out + done, instruction(name##_load(first + done), name##_load(second + done))); \
    loop_base_##name##_##operation(out + done, first + done, second + done, count - done);          \
  }

#define EIGHT_TYPE(name)                                                                                  \
  EIGHT_COMBINE(name, sum, _mm256_add_ps)                                                                 \
  EIGHT_COMBINE(name, prod, _mm256_mul_ps)                                                                \
  EIGHT_FUNCTION void loop_eight_##name##_scale(void *destination, const void *source, uint64_t argument, \
                                                size_t count) {                                           \
    uint16_t *out = (uint16_t *)destination;                                                              \
    const uint16_t *in = (const uint16_t *)source;                                                        \
    __m256 factor = _mm256_set1_ps(type_##name##_to_float((uint16_t)argument));                           \
    size_t done = 0;                                                                                      \
    for (; count - done >= 8; done += 8)                                                                  \
      name##_store(out + done, _mm256_mul_ps(name##_load(in + done), factor));                            \
    loop_base_##name##_scale(out + done, in + done, argument, count - done);                              \
  }

EIGHT_TYPE(half)
EIGHT_TYPE(bfloat16)

#define EIGHT_ROW(name)                                                                                \
  {                                                                                                    \
    loop_eight_##name##_sum, loop_eight_##name##_prod, loop_avx2_##name##_max, loop_avx2_##name##_min, \
        loop_eight_##name##_scale, loop_avx2_##name##_divide                                           \
  }

/* In the order of TYPE_TABLE. */
static const struct type_loops avx2_loops[TYPE_COUNT] = {
    LOOP_ROW(avx2, int8),   LOOP_ROW(avx2, uint8),  LOOP_ROW(avx2, int32),  LOOP_ROW(avx2, uint32),
    LOOP_ROW(avx2, int64),  LOOP_ROW(avx2, uint64), EIGHT_ROW(half),        LOOP_ROW(avx2, float),
    LOOP_ROW(avx2, double), EIGHT_ROW(bfloat16),    LOOP_ROW(avx2, f8e4m3), LOOP_ROW(avx2, f8e5m2)};

static const struct type_loops *loops_of(uint8_t dtype) {
  assert(dtype < TYPE_COUNT);
  const bool has_both = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has_both ? &avx2_loops[dtype] : &base_loops[dtype];
}
#else
static const struct type_loops *loops_of(uint8_t dtype) {
  assert(dtype < TYPE_COUNT);
  return &base_loops[dtype];
}
#endif

static combine_loop *loop_combine(uint8_t dtype, uint8_t op) {
  const struct type_loops *loops = loops_of(dtype);
#define LOOP_OF_OPERATOR(value, name, combine) loops->combine,
  combine_loop *const by_operator[OP_COUNT] = {TYPE_OPERATOR_TABLE(LOOP_OF_OPERATOR)};
  assert(op < OP_COUNT);
  return by_operator[op];
}

void kernel_reduce(uint8_t dtype, uint8_t op, void *destination, const void *left, const void *right,
                   size_t count) {
  loop_combine(dtype, op)(destination, left, right, count);
}

static void span_copy(void *destination, const void *source, size_t bytes) {
  if (destination != source && bytes != 0) memcpy(destination, source, bytes);
}

void kernel_pre_op(uint8_t dtype, uint8_t op, uint64_t op_arg, void *destination, const void *source,
                   size_t count) {
  if (op == OP_PRE_MUL_SUM) loops_of(dtype)->scale(destination, source, op_arg, count);
  else span_copy(destination, source, count * kernel_type_bytes(dtype));
}

void kernel_post_op(uint8_t dtype, uint8_t op, uint64_t op_arg, void *destination, const void *source,
                    size_t count) {
  if (op == OP_SUM_POST_DIV) loops_of(dtype)->divide(destination, source, op_arg >> 1, count);
  else span_copy(destination, source, count * kernel_type_bytes(dtype));
}

static bool move_scales(const struct move *move, uint32_t source_index) {
  return move->op == OP_PRE_MUL_SUM && (move->pre_op_sources >> source_index & 1) != 0;
}

/* Moves `count` elements from `offset_bytes` on. Only the last stage writes a destination, because a
 * destination may be a source that an earlier stage still reads. `scratch` is two tiles, for the stages
 * before the last. */
static void move_tile(const struct move *move, size_t offset_bytes, size_t count, size_t bytes,
                      unsigned char scratch[2][MOVE_TILE_BYTES]) {
  unsigned char *result = (unsigned char *)move->destination[0] + offset_bytes;
  const void *partial = (const unsigned char *)move->source[0] + offset_bytes;
  uint32_t last = move->source_count - 1u;
  if (move_scales(move, 0)) {
    void *target = last == 0 ? result : scratch[0];
    kernel_pre_op(move->dtype, move->op, move->op_arg, target, partial, count);
    partial = target;
  }
  for (uint32_t i = 1; i <= last; i++) {
    void *target = i == last ? result : scratch[0];
    const void *operand = (const unsigned char *)move->source[i] + offset_bytes;
    if (move_scales(move, i)) {
      kernel_pre_op(move->dtype, move->op, move->op_arg, scratch[1], operand, count);
      operand = scratch[1];
    }
    kernel_reduce(move->dtype, move->op, target, partial, operand, count);
    partial = target;
  }
  if (move->post_op) kernel_post_op(move->dtype, move->op, move->op_arg, result, partial, count);
  else span_copy(result, partial, bytes);
  for (uint32_t i = 1; i < move->destination_count; i++)
    span_copy((unsigned char *)move->destination[i] + offset_bytes, result, bytes);
}

/* Whether the whole span can be one tile: it needs no scratch, and no data is read again while in cache. */
static bool move_is_one_pass(const struct move *move) {
  bool staged = move->source_count > 2 || (move->op == OP_PRE_MUL_SUM && move->pre_op_sources != 0) ||
                (move->op == OP_SUM_POST_DIV && move->post_op);
  return move->destination_count == 1 && !staged;
}

#ifdef MOVE_HAS_AVX2
/* Stores that bypass the caches and do not read the lines they overwrite. */
__attribute__((target("avx2"))) static void stream_copy(unsigned char *to, const unsigned char *from,
                                                        size_t bytes) {
  size_t done = (32 - ((uintptr_t)to & 31)) & 31;
  if (done > bytes) done = bytes;
  memcpy(to, from, done);
  for (; bytes - done >= 128; done += 128) {
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + done));
    const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + done + 32));
    const __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + done + 64));
    const __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + done + 96));
    _mm256_stream_si256((__m256i *)(void *)(to + done), a);
    _mm256_stream_si256((__m256i *)(void *)(to + done + 32), b);
    _mm256_stream_si256((__m256i *)(void *)(to + done + 64), c);
    _mm256_stream_si256((__m256i *)(void *)(to + done + 96), d);
  }
  memcpy(to + done, from + done, bytes - done);
}

/* Computes each tile once and stores it to every destination. The fence orders the stores before the post
 * that announces them. */
static bool move_streams(const struct move *move) {
  unsigned char scratch[3][MOVE_TILE_BYTES] __attribute__((aligned(64)));
  if (move->remote_destinations == 0 || !__builtin_cpu_supports("avx2")) return false;
  const size_t element_bytes = kernel_type_bytes(move->dtype), tile_count = MOVE_TILE_BYTES / element_bytes;
  const bool copies = move->source_count == 1 && !move_scales(move, 0) && !move->post_op;
  struct move tile = *move;
  tile.destination_count = 1;
  tile.destination[0] = scratch[2];
  for (size_t done = 0; done < move->count; done += tile_count) {
    const size_t count = move->count - done < tile_count ? move->count - done : tile_count;
    const size_t offset = done * element_bytes, bytes = count * element_bytes;
    for (uint32_t i = 0; i < move->source_count; i++)
      tile.source[i] = (const unsigned char *)move->source[i] + offset;
    if (!copies) move_tile(&tile, 0, count, bytes, scratch);
    const unsigned char *from = copies ? (const unsigned char *)tile.source[0] : scratch[2];
    for (uint32_t i = 0; i < move->destination_count; i++) {
      unsigned char *to = (unsigned char *)move->destination[i] + offset;
      if (((move->remote_destinations >> i) & 1) != 0 && to != from) stream_copy(to, from, bytes);
      else span_copy(to, from, bytes);
    }
  }
  _mm_sfence();
  return true;
}
#else
static bool move_streams(const struct move *move) {
  (void)move;
  return false;
}
#endif

void kernel_move(const struct move *move) {
  unsigned char scratch[2][MOVE_TILE_BYTES] __attribute__((aligned(64)));
  size_t element_bytes = kernel_type_bytes(move->dtype);
  size_t tile_count = move_is_one_pass(move) ? move->count : MOVE_TILE_BYTES / element_bytes;
  assert(move->source_count <= MOVE_SPANS_MAX && move->destination_count <= MOVE_SPANS_MAX);
  if (move->source_count == 0 || move->destination_count == 0 || move_streams(move)) return;
  for (size_t done = 0; done < move->count; done += tile_count) {
    size_t count = move->count - done < tile_count ? move->count - done : tile_count;
    move_tile(move, done * element_bytes, count, count * element_bytes, scratch);
  }
}

size_t kernel_type_bytes(uint8_t dtype) {
#define TYPE_BYTES(value, name, storage, accumulator) sizeof(storage),
  static const uint8_t bytes[TYPE_COUNT] = {TYPE_TABLE(TYPE_BYTES)};
  return dtype < TYPE_COUNT ? bytes[dtype] : 0;
}

const char *kernel_type_name(uint8_t dtype) {
#define TYPE_NAME(value, name, storage, accumulator) #name,
  static const char *const names[TYPE_COUNT] = {TYPE_TABLE(TYPE_NAME)};
  return dtype < TYPE_COUNT ? names[dtype] : "unknown";
}

uint64_t kernel_from_double(uint8_t dtype, double value) {
  uint64_t bits = 0;
#define TYPE_FROM_DOUBLE(type, name, storage, accumulator) \
  case type: {                                             \
    storage element = type_##name##_from_double(value);    \
    memcpy(&bits, &element, sizeof element);               \
    break;                                                 \
  }
  switch (dtype) { TYPE_TABLE(TYPE_FROM_DOUBLE) }
  return bits;
}

double kernel_to_double(uint8_t dtype, uint64_t bits) {
#define TYPE_TO_DOUBLE(type, name, storage, accumulator) \
  case type: {                                           \
    storage element;                                     \
    memcpy(&element, &bits, sizeof element);             \
    return type_##name##_to_double(element);             \
  }
  switch (dtype) { TYPE_TABLE(TYPE_TO_DOUBLE) }
  return 0;
}
