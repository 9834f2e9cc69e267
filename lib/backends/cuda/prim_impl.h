/* prim_impl.h (cuda): the device seam over PTX. Thread 0 of a block, the leader, runs the state machines of
 * all lanes; the threads of the other warps are workers, who wait at a barrier for something to do. A move is
 * handed to them through a few words of shared memory; line primitives are noted in a list, which they carry
 * out in one go before the leader looks at anything else, with the fragments in their registers. The leader
 * alone waits and posts. It promises the emulator's results to the bit. It knows nothing of plans, channels
 * or how memory was mapped. */
#ifndef TUTTI_BACKENDS_CUDA_PRIM_IMPL_H
#define TUTTI_BACKENDS_CUDA_PRIM_IMPL_H

#ifdef PRIM_FN
#error "include protocol/prim.h before anything of schedule/: PRIM_FN is already bound to the host"
#endif
#define PRIM_FN static __device__ __forceinline__

/* Never contracted, and their NaN is the canonical one. Doubles have another NaN: they keep the header's
 * way. */
#define PRIM_FLOAT_SUM(left, right) __fadd_rn(left, right)
#define PRIM_FLOAT_PROD(left, right) __fmul_rn(left, right)

#include "protocol/move.h"
#include "kernels/types.h"

/* The leader's warp does not work: a lone thread of it would tear LL128's lines. */
#define PRIM_LEADER_THREADS 32
#define PRIM_WORKERS 512
#define PRIM_THREADS (PRIM_LEADER_THREADS + PRIM_WORKERS)

/* A worker's share of a group of lines: eight-byte words. LL: word k is the data of line k * workers +
 * worker. LL128: eight workers carry a line in pieces of sixteen bytes, so words 2k and 2k + 1 are piece
 * worker % 8 of line k * (workers / 8) + worker / 8; the second word of piece 7 is the flag and holds no
 * data. */
#define PRIM_FRAGMENT_WORDS 8
#define PRIM_FRAGMENT_LINES PRIM_FRAGMENT_WORDS /* of LL, a worker; LL128: half a line a worker */
#define PRIM_FRAGMENTS 2                        /* what a group needs at once: data, and what arrived */

/* The leader's name for a set of the workers' registers. */
struct prim_fragment {
  uint8_t index;
};

struct prim_words {
  uint64_t words[PRIM_FRAGMENT_WORDS];
};

enum prim_line_verb {
  PRIM_ZERO,
  PRIM_LINE_LOAD,
  PRIM_LINE_STORE,
  PRIM_USER_LOAD,
  PRIM_USER_STORE,
  PRIM_COMBINE,
  PRIM_POST
};

struct prim_line_command {
  uint8_t verb, kind, fragment, other; /* enum prim_line_verb, enum line_kind, sets of registers */
  uint32_t line_count;
  uint8_t *address; /* of lines, or of user memory */
  uint64_t flag;
  size_t bytes; /* of the group's data */
  const struct work *work;
};

#define PRIM_LINE_COMMANDS_MAX 32

/* Sixteen-byte vectors that a worker has in flight. */
#define PRIM_VECTORS 4
#define PRIM_EACH_VECTOR(k) _Pragma("unroll") for (uint32_t k = 0; k < PRIM_VECTORS; k++)

enum prim_task { PRIM_TASK_END, PRIM_TASK_MOVE, PRIM_TASK_LINES, PRIM_TASK_READY };

/* What the leader asks of the workers. */
struct prim_team {
  uint8_t task;     /* enum prim_task */
  bool loaded;      /* a command of the list has defined the first set of registers */
  bool stores;      /* the list has stores of lines */
  uint32_t refused; /* READY: a line has not come */
  uint32_t command_count;
  const struct move *move; /* being carried out, or none */
  struct prim_line_command commands[PRIM_LINE_COMMANDS_MAX];
};

__shared__ struct prim_team prim_team;

struct prim {
  const int *abort_flag;  /* of the rank, in memory of the host */
  const int *failed_flag; /* of the communicator, likewise */
  uint32_t looks;
  bool aborted;
};

/* ---- workers ---- */

PRIM_FN bool prim_leader(const struct prim *prim) {
  (void)prim;
  return threadIdx.x == 0;
}

/* All threads of the block, from wherever they are: the leader is not where the rest of its warp is. */
PRIM_FN void prim_meet(void) { asm volatile("barrier.sync 0;" : : : "memory"); }

PRIM_FN void prim_barrier(const struct prim *prim) {
  (void)prim;
  prim_meet();
}

PRIM_FN uint32_t prim_worker(void) { return threadIdx.x - PRIM_LEADER_THREADS; }

/* The leader waits until the workers have ended their move. */
PRIM_FN void prim_settle(void) {
  if (prim_team.move == 0) return;
  prim_meet();
  prim_team.move = 0;
}

PRIM_FN void prim_ask(uint8_t task) {
  prim_team.task = task;
  prim_meet();
}

/* Has the noted commands carried out. What the leader wrote before, the step's size, goes ahead of the lines.
 */
PRIM_FN void prim_flush(void) {
  if (prim_team.command_count == 0) return;
  prim_settle();
  if (prim_team.stores) __threadfence_system();
  prim_ask(PRIM_TASK_LINES);
  prim_meet();
  prim_team.command_count = 0;
  prim_team.loaded = prim_team.stores = false;
}

/* ---- counters ---- */

PRIM_FN uint64_t prim_load_acquire(const uint64_t *address) {
  uint64_t value;
  prim_flush();
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

/* The workers' accesses come before, through the barrier that ended their task. */
PRIM_FN void prim_store_release(uint64_t *address, uint64_t value) {
  prim_flush();
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

PRIM_FN int prim_flag(const int *address) {
  int value;
  asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/* The flags lie behind a slow bus: few calls really look. */
#define PRIM_CALLS_A_LOOK 256

PRIM_FN bool prim_aborted(struct prim *prim) {
  prim_flush();
  if (++prim->looks % PRIM_CALLS_A_LOOK == 0)
    prim->aborted = prim_flag(prim->abort_flag) != 0 || prim_flag(prim->failed_flag) != 0;
  return prim->aborted;
}

PRIM_FN void prim_pause(struct prim *prim) {
  (void)prim;
  __nanosleep(20);
}

/* ---- moves ---- */

/* For each row of the table of types: an operator on two elements, a whole span, and an operator on an
 * eight-byte word. */
#define PRIM_TYPE(value, name, storage, accumulator)                                                         \
  union prim_##name##_cell {                                                                                 \
    uint64_t word;                                                                                           \
    storage elements[8 / sizeof(storage)];                                                                   \
  };                                                                                                         \
  PRIM_FN storage prim_##name##_combine(uint8_t op, storage left, storage right) {                           \
    switch (op) {                                                                                            \
      case OP_PROD: return type_##name##_prod(left, right);                                                  \
      case OP_MAX: return type_##name##_max(left, right);                                                    \
      case OP_MIN: return type_##name##_min(left, right);                                                    \
      default: return type_##name##_sum(left, right);                                                        \
    }                                                                                                        \
  }                                                                                                          \
  PRIM_FN storage prim_##name##_argument(uint64_t op_arg) {                                                  \
    union prim_##name##_cell cell;                                                                           \
    cell.word = op_arg;                                                                                      \
    return cell.elements[0];                                                                                 \
  }                                                                                                          \
  PRIM_FN storage prim_##name##_source(const struct move *move, uint32_t source_index,                       \
                                       size_t element_index) {                                               \
    const storage element = ((const storage *)move->source[source_index])[element_index];                    \
    if (move->op != OP_PRE_MUL_SUM || (move->pre_op_sources >> source_index & 1) == 0) return element;       \
    return type_##name##_prod(element, prim_##name##_argument(move->op_arg));                                \
  }                                                                                                          \
  static __device__ __noinline__ void prim_##name##_move(const struct move *move, size_t first,              \
                                                         uint32_t stride) {                                  \
    for (size_t i = first; i < move->count; i += stride) {                                                   \
      storage result = prim_##name##_source(move, 0, i);                                                     \
      for (uint32_t s = 1; s < move->source_count; s++)                                                      \
        result = prim_##name##_combine(move->op, result, prim_##name##_source(move, s, i));                  \
      if (move->post_op && move->op == OP_SUM_POST_DIV)                                                      \
        result = type_##name##_divide(result, move->op_arg >> 1);                                            \
      for (uint32_t d = 0; d < move->destination_count; d++) ((storage *)move->destination[d])[i] = result;  \
    }                                                                                                        \
  }                                                                                                          \
  PRIM_FN uint4 prim_##name##_add(uint4 left, uint4 right) {                                                 \
    union {                                                                                                  \
      uint4 whole;                                                                                           \
      storage elements[16 / sizeof(storage)];                                                                \
    } first, second;                                                                                         \
    first.whole = left;                                                                                      \
    second.whole = right;                                                                                    \
    for (uint32_t i = 0; i < 16 / sizeof(storage); i++)                                                      \
      first.elements[i] = type_##name##_sum(first.elements[i], second.elements[i]);                          \
    return first.whole;                                                                                      \
  }                                                                                                          \
  static __device__ __noinline__ void prim_##name##_add_span(const struct move *move, size_t vector_count) { \
    const uint4 *left = (const uint4 *)move->source[0], *right = (const uint4 *)move->source[1];             \
    for (size_t i = prim_worker(); i < vector_count; i += PRIM_VECTORS * PRIM_WORKERS) {                     \
      uint4 a[PRIM_VECTORS], b[PRIM_VECTORS];                                                                \
      PRIM_EACH_VECTOR(k) if (i + k * PRIM_WORKERS < vector_count) a[k] = left[i + k * PRIM_WORKERS];        \
      PRIM_EACH_VECTOR(k) if (i + k * PRIM_WORKERS < vector_count) b[k] = right[i + k * PRIM_WORKERS];       \
      PRIM_EACH_VECTOR(k) if (i + k * PRIM_WORKERS < vector_count) {                                         \
        const uint4 sum = prim_##name##_add(a[k], b[k]);                                                     \
        for (uint32_t d = 0; d < move->destination_count; d++)                                               \
          ((uint4 *)move->destination[d])[i + k * PRIM_WORKERS] = sum;                                       \
      }                                                                                                      \
    }                                                                                                        \
  }                                                                                                          \
  static __device__ __noinline__ uint64_t prim_##name##_word(uint8_t op, uint64_t left, uint64_t right) {    \
    union prim_##name##_cell first, second;                                                                  \
    first.word = left;                                                                                       \
    second.word = right;                                                                                     \
    for (uint32_t i = 0; i < 8 / sizeof(storage); i++)                                                       \
      first.elements[i] = prim_##name##_combine(op, first.elements[i], second.elements[i]);                  \
    return first.word;                                                                                       \
  }                                                                                                          \
  static __device__ __noinline__ uint64_t prim_##name##_stage(bool before, uint64_t word, uint64_t op_arg) { \
    union prim_##name##_cell cell;                                                                           \
    cell.word = word;                                                                                        \
    for (uint32_t i = 0; i < 8 / sizeof(storage); i++)                                                       \
      cell.elements[i] = before ? type_##name##_prod(cell.elements[i], prim_##name##_argument(op_arg))       \
                                : type_##name##_divide(cell.elements[i], op_arg >> 1);                       \
    return cell.word;                                                                                        \
  }

TYPE_TABLE(PRIM_TYPE)
#undef PRIM_TYPE

static __device__ __noinline__ void prim_copy_span(const struct move *move, size_t vector_count) {
  const uint4 *source = (const uint4 *)move->source[0];
  for (size_t i = prim_worker(); i < vector_count; i += PRIM_VECTORS * PRIM_WORKERS) {
    uint4 data[PRIM_VECTORS];
    PRIM_EACH_VECTOR(k) if (i + k * PRIM_WORKERS < vector_count) data[k] = source[i + k * PRIM_WORKERS];
    for (uint32_t d = 0; d < move->destination_count; d++) {
      uint4 *destination = (uint4 *)move->destination[d];
      PRIM_EACH_VECTOR(k)
      if (i + k * PRIM_WORKERS < vector_count) destination[i + k * PRIM_WORKERS] = data[k];
    }
  }
}

PRIM_FN bool prim_move_aligned(const struct move *move) {
  uintptr_t all = 0;
  for (uint32_t i = 0; i < move->source_count; i++) all |= (uintptr_t)move->source[i];
  for (uint32_t i = 0; i < move->destination_count; i++) all |= (uintptr_t)move->destination[i];
  return all % 16 == 0;
}

/* Bytes of the span's front that sixteen-byte vectors carried: a copy, or a sum of two. */
PRIM_FN size_t prim_move_vectors(const struct move *move, size_t element_bytes) {
  const size_t vector_count = move->count * element_bytes / 16;
  const bool scales = move->op == OP_PRE_MUL_SUM && move->pre_op_sources != 0;
  const bool divides = move->post_op && move->op == OP_SUM_POST_DIV;
  if (vector_count == 0 || scales || divides || !prim_move_aligned(move)) return 0;
  if (move->source_count == 1) {
    prim_copy_span(move, vector_count);
    return vector_count * 16;
  }
  if (move->source_count != 2 || (move->op >= OP_PROD && move->op <= OP_MIN)) return 0;
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: prim_##name##_add_span(move, vector_count); break;
  switch (move->dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
  return vector_count * 16;
}

PRIM_FN size_t prim_element_bytes(uint8_t dtype) {
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: return sizeof(storage);
  switch (dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
  return 1;
}

/* A worker's share of a move. */
PRIM_FN void prim_move_share(const struct move *move) {
  const size_t element_bytes = prim_element_bytes(move->dtype);
  const size_t first = prim_move_vectors(move, element_bytes) / element_bytes + prim_worker();
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: prim_##name##_move(move, first, PRIM_WORKERS); break;
  switch (move->dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
}

PRIM_FN void prim_move_begin(struct prim *prim, struct move *move) {
  (void)prim;
  prim_flush();
  prim_settle();
  if (move->count == 0 || move->destination_count == 0) return;
  prim_team.move = move;
  prim_ask(PRIM_TASK_MOVE);
}

/* Moves end in the order of their begin, so a later one that has begun says that this one is over. */
PRIM_FN void prim_move_finish(struct prim *prim, struct move *move) {
  (void)prim;
  if (prim_team.move == move) prim_settle();
}

PRIM_FN uint64_t prim_word_combine(const struct work *work, uint64_t left, uint64_t right) {
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: return prim_##name##_word(work->op, left, right);
  switch (work->dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
  return left;
}

/* The operator's stage before (multiply) or after (divide) the sum. */
PRIM_FN uint64_t prim_word_stage(const struct work *work, bool before, uint64_t word) {
#define PRIM_CASE(value, name, storage, accumulator) \
  case value: return prim_##name##_stage(before, word, work->op_arg);
  switch (work->dtype) { TYPE_TABLE(PRIM_CASE) }
#undef PRIM_CASE
  return word;
}

/* ---- lines ---- */

PRIM_FN void prim_load_pair(const uint8_t *address, uint64_t *low, uint64_t *high) {
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(*low), "=l"(*high)
               : "l"(address)
               : "memory");
}

PRIM_FN void prim_store_pair(uint8_t *address, uint64_t low, uint64_t high) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(address), "l"(low), "l"(high) : "memory");
}

/* Line and piece that this worker's share begins with, and how many lines later the next one comes. */
PRIM_FN uint32_t prim_line_first(uint8_t kind) { return kind == LINE_LL ? prim_worker() : prim_worker() / 8; }
PRIM_FN uint32_t prim_line_stride(uint8_t kind) { return kind == LINE_LL ? PRIM_WORKERS : PRIM_WORKERS / 8; }
PRIM_FN uint32_t prim_line_turns(uint8_t kind) {
  return kind == LINE_LL ? PRIM_FRAGMENT_WORDS : PRIM_FRAGMENT_WORDS / 2;
}
PRIM_FN uint32_t prim_line_piece(void) { return prim_worker() % 8; }

/* LL's line is two words of {data, flag}; LL128's flag is the last of its sixteen words. */
PRIM_FN bool prim_pair_flagged(uint8_t kind, uint32_t piece, uint64_t low, uint64_t high, uint64_t flag) {
  if (kind == LINE_LL128) return piece != 7 || high == flag;
  return (uint32_t)(low >> 32) == (uint32_t)flag && (uint32_t)(high >> 32) == (uint32_t)flag;
}

PRIM_FN uint8_t *prim_pair_address(uint8_t kind, uint8_t *line, uint32_t line_index, uint32_t piece) {
  return kind == LINE_LL ? line + (size_t)line_index * 16
                         : line + (size_t)line_index * 128 + (size_t)piece * 16;
}

/* The leader's own look at one line. */
PRIM_FN bool prim_line_flagged(uint8_t kind, uint8_t *line, uint32_t line_index, uint64_t flag) {
  uint64_t low, high;
  prim_load_pair(prim_pair_address(kind, line, line_index, 7), &low, &high);
  return prim_pair_flagged(kind, 7, low, high, flag);
}

/* The workers look at all lines only when the first and the last have come. */
PRIM_FN bool prim_line_ready(uint8_t kind, uint8_t *line, uint32_t line_count, uint64_t flag) {
  prim_flush();
  if (!prim_line_flagged(kind, line, 0, flag)) return false;
  if (line_count > 1 && !prim_line_flagged(kind, line, line_count - 1, flag)) return false;
  if (line_count > 2) {
    struct prim_line_command *command = &prim_team.commands[0];
    prim_settle();
    command->kind = kind;
    command->address = line;
    command->line_count = line_count;
    command->flag = flag;
    prim_team.refused = 0;
    prim_ask(PRIM_TASK_READY);
    prim_meet();
    if (prim_team.refused != 0) return false;
  }
  /* What the sender wrote before its lines, the step's size, must be visible behind them. */
  __threadfence_system();
  return true;
}

/* A worker's share of that question. */
PRIM_FN void prim_ready_share(const struct prim_line_command *command) {
  const uint32_t stride = prim_line_stride(command->kind);
  for (uint32_t i = prim_line_first(command->kind); i < command->line_count; i += stride) {
    uint64_t low, high;
    prim_load_pair(prim_pair_address(command->kind, command->address, i, prim_line_piece()), &low, &high);
    if (!prim_pair_flagged(command->kind, prim_line_piece(), low, high, command->flag)) prim_team.refused = 1;
  }
}

PRIM_FN struct prim_line_command *prim_note(uint8_t verb, uint8_t fragment) {
  if (prim_team.command_count == PRIM_LINE_COMMANDS_MAX) prim_flush();
  struct prim_line_command *command = &prim_team.commands[prim_team.command_count];
  prim_team.command_count += 1;
  command->verb = verb;
  command->fragment = fragment;
  return command;
}

/* The first set of registers that a list defines is its data, any later one what arrived. */
PRIM_FN uint8_t prim_fragment_define(struct prim_fragment *fragment) {
  fragment->index = prim_team.loaded ? 1 : 0;
  prim_team.loaded = true;
  return fragment->index;
}

PRIM_FN void prim_fragment_zero(struct prim_fragment *fragment) {
  fragment->index = 0;
  prim_note(PRIM_ZERO, 0);
}

PRIM_FN void prim_line_load(uint8_t kind, uint8_t *line, uint32_t line_count,
                            struct prim_fragment *fragment) {
  struct prim_line_command *command = prim_note(PRIM_LINE_LOAD, prim_fragment_define(fragment));
  command->kind = kind;
  command->address = line;
  command->line_count = line_count;
}

PRIM_FN void prim_line_store(uint8_t kind, uint8_t *line, uint32_t line_count, uint64_t flag,
                             const struct prim_fragment *fragment) {
  struct prim_line_command *command = prim_note(PRIM_LINE_STORE, fragment->index);
  command->kind = kind;
  command->address = line;
  command->line_count = line_count;
  command->flag = flag;
  prim_team.stores = true;
}

PRIM_FN void prim_note_user(uint8_t verb, uint8_t fragment, const void *user, size_t bytes,
                            const struct work *work) {
  struct prim_line_command *command = prim_note(verb, fragment);
  command->kind = work->proto == PROTO_LL ? LINE_LL : LINE_LL128;
  command->address = (uint8_t *)user;
  command->bytes = bytes;
  command->work = work;
}

PRIM_FN void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user,
                                size_t bytes, const struct work *work) {
  (void)prim;
  prim_note_user(PRIM_USER_LOAD, prim_fragment_define(fragment), user, bytes, work);
}

/* The list's last command that named a work has the kind. */
PRIM_FN void prim_fragment_store(struct prim *prim, void *user, const struct prim_fragment *fragment,
                                 size_t bytes) {
  (void)prim;
  const uint8_t kind = prim_team.commands[0].kind;
  struct prim_line_command *command = prim_note(PRIM_USER_STORE, fragment->index);
  command->kind = kind;
  command->address = (uint8_t *)user;
  command->bytes = bytes;
}

PRIM_FN void prim_fragment_combine(struct prim *prim, struct prim_fragment *data,
                                   const struct prim_fragment *arrived, size_t bytes,
                                   const struct work *work) {
  (void)prim;
  prim_note_user(PRIM_COMBINE, data->index, 0, bytes, work);
  prim_team.commands[prim_team.command_count - 1].other = arrived->index;
}

PRIM_FN void prim_fragment_post(struct prim *prim, struct prim_fragment *data, size_t bytes,
                                const struct work *work) {
  (void)prim;
  if (work->op == OP_SUM_POST_DIV) prim_note_user(PRIM_POST, data->index, 0, bytes, work);
}

/* ---- lines, the workers' side ---- */

PRIM_FN void prim_words_receive(const struct prim_line_command *command, struct prim_words *words) {
  const uint8_t kind = command->kind;
#pragma unroll
  for (uint32_t turn = 0; turn < PRIM_FRAGMENT_WORDS; turn++) {
    const uint32_t i = prim_line_first(kind) + turn * prim_line_stride(kind);
    uint64_t low = 0, high = 0;
    if (turn >= prim_line_turns(kind)) break;
    if (i < command->line_count)
      prim_load_pair(prim_pair_address(kind, command->address, i, prim_line_piece()), &low, &high);
    if (kind == LINE_LL) {
      words->words[turn] = (low & 0xffffffffu) | high << 32;
    } else {
      words->words[2 * turn % PRIM_FRAGMENT_WORDS] = low;
      words->words[(2 * turn + 1) % PRIM_FRAGMENT_WORDS] = high;
    }
  }
}

/* A pair of LL is stored whole. The eight pairs of an LL128 line leave in one instruction of one warp, as
 * a store of 128 bytes, which links on which LL128 is allowed do not tear. */
PRIM_FN void prim_words_send(const struct prim_line_command *command, const struct prim_words *words) {
  const uint8_t kind = command->kind;
#pragma unroll
  for (uint32_t turn = 0; turn < PRIM_FRAGMENT_WORDS; turn++) {
    const uint32_t i = prim_line_first(kind) + turn * prim_line_stride(kind);
    uint64_t low, high;
    if (turn >= prim_line_turns(kind)) break;
    if (kind == LINE_LL) {
      low = (words->words[turn] & 0xffffffffu) | command->flag << 32;
      high = words->words[turn] >> 32 | command->flag << 32;
    } else {
      low = words->words[2 * turn % PRIM_FRAGMENT_WORDS];
      high = prim_line_piece() == 7 ? command->flag : words->words[(2 * turn + 1) % PRIM_FRAGMENT_WORDS];
    }
    __syncwarp();
    if (i < command->line_count)
      prim_store_pair(prim_pair_address(kind, command->address, i, prim_line_piece()), low, high);
  }
}

#define PRIM_NO_DATA (~(size_t)0)

/* Byte of the group's data at which a word of this worker begins; PRIM_NO_DATA for a flag. */
PRIM_FN size_t prim_word_offset(uint8_t kind, uint32_t word) {
  if (kind == LINE_LL) return 8 * ((size_t)word * PRIM_WORKERS + prim_worker());
  if (prim_line_piece() == 7 && word % 2 == 1) return PRIM_NO_DATA;
  return 120 * ((size_t)(word / 2) * (PRIM_WORKERS / 8) + prim_worker() / 8) + 16 * prim_line_piece() +
         8 * (word % 2);
}

/* Up to eight bytes at an address that is aligned to nothing in particular; what is missing is zero. */
PRIM_FN uint64_t prim_word_load(const uint8_t *address, size_t bytes) {
  uint64_t word = 0;
  if (bytes >= 8 && ((uintptr_t)address & 7) == 0) return *(const uint64_t *)address;
  for (uint32_t i = 0; i < 8 && i < bytes; i++) word |= (uint64_t)address[i] << (8 * i);
  return word;
}

PRIM_FN void prim_word_store(uint8_t *address, size_t bytes, uint64_t word) {
  if (bytes >= 8 && ((uintptr_t)address & 7) == 0) {
    *(uint64_t *)address = word;
    return;
  }
  for (uint32_t i = 0; i < 8 && i < bytes; i++) address[i] = (uint8_t)(word >> (8 * i));
}

PRIM_FN void prim_words_user_load(const struct prim_line_command *command, struct prim_words *words) {
#pragma unroll
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++) {
    const size_t offset = prim_word_offset(command->kind, i);
    uint64_t word = 0;
    if (offset < command->bytes) word = prim_word_load(command->address + offset, command->bytes - offset);
    if (command->work->op == OP_PRE_MUL_SUM && offset < command->bytes)
      word = prim_word_stage(command->work, true, word);
    words->words[i] = word;
  }
}

PRIM_FN void prim_words_user_store(const struct prim_line_command *command, const struct prim_words *words) {
#pragma unroll
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++) {
    const size_t offset = prim_word_offset(command->kind, i);
    if (offset < command->bytes)
      prim_word_store(command->address + offset, command->bytes - offset, words->words[i]);
  }
}

PRIM_FN void prim_words_combine(const struct prim_line_command *command, struct prim_words *data,
                                const struct prim_words *arrived) {
#pragma unroll
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++)
    if (prim_word_offset(command->kind, i) < command->bytes)
      data->words[i] = prim_word_combine(command->work, data->words[i], arrived->words[i]);
}

PRIM_FN void prim_words_post(const struct prim_line_command *command, struct prim_words *words) {
#pragma unroll
  for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++)
    if (prim_word_offset(command->kind, i) < command->bytes)
      words->words[i] = prim_word_stage(command->work, false, words->words[i]);
}

PRIM_FN void prim_command_run(const struct prim_line_command *command, struct prim_words *words,
                              const struct prim_words *other) {
  switch (command->verb) {
    case PRIM_ZERO:
#pragma unroll
      for (uint32_t i = 0; i < PRIM_FRAGMENT_WORDS; i++) words->words[i] = 0;
      break;
    case PRIM_LINE_LOAD: prim_words_receive(command, words); break;
    case PRIM_LINE_STORE: prim_words_send(command, words); break;
    case PRIM_USER_LOAD: prim_words_user_load(command, words); break;
    case PRIM_USER_STORE: prim_words_user_store(command, words); break;
    case PRIM_COMBINE: prim_words_combine(command, words, other); break;
    default: prim_words_post(command, words); break;
  }
}

/* ---- the life of everybody but the leader ---- */

PRIM_FN void prim_task_share(struct prim_words *fragments) {
  switch (prim_team.task) {
    case PRIM_TASK_MOVE: prim_move_share(prim_team.move); break;
    case PRIM_TASK_READY: prim_ready_share(&prim_team.commands[0]); break;
    default:
      for (uint32_t i = 0; i < prim_team.command_count; i++) {
        const struct prim_line_command *command = &prim_team.commands[i];
        prim_command_run(command, &fragments[command->fragment], &fragments[1]);
      }
  }
}

/* Until the leader says that the batch has ended. The rest of the leader's warp only meets. */
PRIM_FN void prim_serve(void) {
  struct prim_words fragments[PRIM_FRAGMENTS];
  while (true) {
    prim_meet();
    if (prim_team.task == PRIM_TASK_END) break;
    if (threadIdx.x >= PRIM_LEADER_THREADS) prim_task_share(fragments);
    prim_meet();
  }
}

PRIM_FN void prim_dismiss(void) {
  prim_flush();
  prim_settle();
  prim_ask(PRIM_TASK_END);
}

#endif
