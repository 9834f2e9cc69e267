/* program.c: see program.h. In this order: shapes, generating, repairing, the naive run, the real run,
 * shrinking, printing. */
#include "program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "base/hash.h"

#include "base/os.h"
#include "base/param.h"
#include "collective.h"
#include "tutti.h"

enum { PATTERN = 0xa5, MEMORY_BYTES = PROGRAM_REGISTERS * PROGRAM_REGISTER_BYTES };

/* ---- shapes ---- */

uint32_t program_comm_size(const struct program *program, uint32_t comm) {
  const uint32_t n = program->rank_count;
  return comm < 2 ? n : comm == 2 ? (n + 1) / 2 : n / 2;
}

uint32_t program_comm_device(const struct program *program, uint32_t comm, uint32_t rank) {
  if (comm == 0) return rank;
  if (comm == 1) return program->rank_count - 1 - rank;
  return 2 * (program_comm_size(program, comm) - 1 - rank) + (comm == 3 ? 1 : 0);
}

/* The device's rank, or -1. */
static int comm_rank(const struct program *program, uint32_t comm, uint32_t device) {
  for (uint32_t rank = 0; rank < program_comm_size(program, comm); rank++)
    if (program_comm_device(program, comm, rank) == device) return (int)rank;
  return -1;
}

static bool op_is_collective(const struct program_op *op) { return op->kind < COLLECTIVE_COUNT; }

/* True for calls made of sends and receives, whose order among each other must be the same on two ranks. */
static bool op_is_messages(const struct program_op *op) {
  return op->kind != COLLECTIVE_ALL_REDUCE && op->kind != COLLECTIVE_ALL_GATHER &&
         op->kind != COLLECTIVE_REDUCE_SCATTER && op->kind != COLLECTIVE_BROADCAST &&
         op->kind != COLLECTIVE_REDUCE;
}

static bool op_reduces(const struct program_op *op) {
  return op->kind == COLLECTIVE_ALL_REDUCE || op->kind == COLLECTIVE_REDUCE_SCATTER ||
         op->kind == COLLECTIVE_REDUCE;
}

static const struct collective *collective_of(const struct program_op *op) {
  size_t index = 0;
  while (collective_at(index)->id != (enum collective_id)op->kind) index += 1;
  return collective_at(index);
}

static struct oracle_case case_of(const struct program *program, const struct program_op *op) {
  const struct oracle_case c = {(enum collective_id)op->kind,
                                (ncclDataType_t)op->type,
                                (enum oracle_op)op->op,
                                program_comm_size(program, op->comm),
                                op->root,
                                op->count,
                                0};
  return c;
}

/* Elements of one message of an all-to-all-v. */
static uint32_t all_to_all_v_count(const struct program_op *op, uint32_t from, uint32_t to) {
  const uint32_t hash = (op->salt + from * 0x9e3779b9u + to * 0x85ebca6bu) * 0xc2b2ae35u;
  return (hash >> 30) == 0 ? 0 : (hash >> 8) % (op->count + 1);
}

/* Offset of the message whose other end is this rank, in elements: after the messages of lower ranks. */
static uint32_t all_to_all_v_offset(const struct program_op *op, uint32_t rank, uint32_t other,
                                    bool sending) {
  uint32_t offset = 0;
  for (uint32_t peer = 0; peer < other; peer++)
    offset += sending ? all_to_all_v_count(op, rank, peer) : all_to_all_v_count(op, peer, rank);
  return offset;
}

/* Elements of the larger buffer of a call, over all ranks. */
static size_t op_elements(const struct program *program, const struct program_op *op) {
  const size_t n = program_comm_size(program, op->comm);
  if (op->kind == PROGRAM_MESSAGE) return op->count;
  if (op->kind == PROGRAM_ALL_TO_ALL_V) return op->count * n;
  return op->count * (collective_of(op)->is_split ? n : 1);
}

/* ---- generating ---- */

struct dice {
  uint64_t state;
};

static uint32_t draw(struct dice *dice, uint32_t bound) {
  return (uint32_t)(hash_draw(&dice->state) >> 32) % bound;
}

static void generate_constants(struct program *p, struct dice *dice) {
  p->rank_count = 1 + draw(dice, PROGRAM_RANKS_MAX);
  p->thread_per_rank = draw(dice, 3) == 0;
  p->ordering = (uint8_t)draw(dice, 3);
  p->shared_streams = draw(dice, 2) == 0;
  p->stream_count = 1 + draw(dice, PROGRAM_STREAMS);
  p->slots =
      2 + draw(dice, 7); /* a ring with one slot deadlocks: all ranks wait for space before they receive */
  p->chunk_bytes = 1 + draw(dice, 64);
  p->channel_count = 1 + draw(dice, 4);
  p->flag_bits = 5 + draw(dice, 28);
  p->depth = 1 + draw(dice, 4);
  p->lag_percent = draw(dice, 3) == 0 ? draw(dice, 101) : 0;
  p->span = 1 + draw(dice, 8);
  p->rule = draw(dice, 3);
  p->protocols = 1 + draw(dice, 7);
  p->reads = p->seed % 2; /* not drawn, so that seeds keep their programs */
}

/* Mostly a few elements, sometimes none, sometimes hundreds. */
static uint32_t draw_count(struct dice *dice) {
  const uint32_t kind = draw(dice, 8);
  if (kind == 0) return 0;
  return kind < 6 ? 1 + draw(dice, 20) : 1 + draw(dice, kind == 6 ? 100 : 1000);
}

static void generate_op(const struct program *p, struct program_op *op, struct dice *dice) {
  static const uint8_t kinds[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                  COLLECTIVE_BROADCAST,  COLLECTIVE_REDUCE,     COLLECTIVE_SENDRECV,
                                  COLLECTIVE_ALLTOALL,   COLLECTIVE_GATHER,     COLLECTIVE_SCATTER,
                                  PROGRAM_MESSAGE,       PROGRAM_MESSAGE,       PROGRAM_MESSAGE,
                                  PROGRAM_MESSAGE,       PROGRAM_ALL_TO_ALL_V};
  op->kind = kinds[draw(dice, sizeof kinds)];
  op->comm = (uint8_t)(draw(dice, 2) == 0 ? 0 : draw(dice, PROGRAM_COMMS));
  op->stream = (uint8_t)draw(dice, p->stream_count);
  op->type = (uint8_t)draw(dice, op_reduces(op) ? ncclFloat16 : ncclNumTypes);
  op->op = (uint8_t)draw(dice, ORACLE_OP_COUNT);
  op->in_place = draw(dice, 3) == 0;
  op->root = draw(dice, PROGRAM_RANKS_MAX);
  op->peer = draw(dice, PROGRAM_RANKS_MAX);
  op->count = draw_count(dice);
  op->shift_in = draw(dice, 4);
  op->shift_out = draw(dice, 4);
  op->salt = draw(dice, 1u << 31);
}

/* Outputs are the first registers of a random order, inputs come from the rest. */
static void generate_registers(struct program_group *group, struct dice *dice) {
  uint8_t order[PROGRAM_REGISTERS];
  for (uint8_t i = 0; i < PROGRAM_REGISTERS; i++) order[i] = i;
  for (uint32_t i = PROGRAM_REGISTERS - 1; i > 0; i--) {
    const uint32_t other = draw(dice, i + 1);
    const uint8_t kept = order[i];
    order[i] = order[other];
    order[other] = kept;
  }
  for (uint32_t i = 0; i < group->op_count; i++) {
    group->ops[i].out = order[i];
    group->ops[i].in = order[group->op_count + draw(dice, PROGRAM_REGISTERS - group->op_count)];
  }
}

/* One call in three is another message between the two ranks of the message before. */
static void generate_group(const struct program *p, struct program_group *group, struct dice *dice) {
  group->op_count = 1 + draw(dice, PROGRAM_OPS_MAX);
  for (uint32_t i = 0; i < group->op_count; i++) {
    struct program_op *op = &group->ops[i];
    const struct program_op *before = i > 0 ? op - 1 : NULL;
    generate_op(p, op, dice);
    if (before == NULL || before->kind != PROGRAM_MESSAGE || draw(dice, 3) != 0) continue;
    op->kind = PROGRAM_MESSAGE;
    op->comm = before->comm;
    op->root = before->root;
    op->peer = before->peer;
  }
  group->bare = draw(dice, 5) == 0;
  group->messages_first = draw(dice, 2) == 0;
  generate_registers(group, dice);
}

void program_generate(struct program *program, uint64_t seed) {
  struct dice dice = {seed * 0xd6e8feb86659fd93u};
  memset(program, 0, sizeof *program);
  program->seed = seed;
  generate_constants(program, &dice);
  program->group_count = 1 + draw(&dice, PROGRAM_GROUPS_MAX);
  for (uint32_t i = 0; i < program->group_count; i++) generate_group(program, &program->groups[i], &dice);
  program_repair(program);
}

/* ---- repairing ---- */

static void op_repair(const struct program *program, struct program_op *op) {
  const size_t unit = oracle_type_bytes((ncclDataType_t)op->type);
  if (program_comm_size(program, op->comm) == 0) op->comm = 0;
  const uint32_t n = program_comm_size(program, op->comm);
  op->root %= n;
  op->peer %= n;
  op->stream = (uint8_t)(op->stream % program->stream_count);
  if (!op_is_collective(op) || collective_of(op)->in_place == IN_PLACE_NONE) op->in_place = false;
  const uint32_t shift = op->shift_in > op->shift_out ? op->shift_in : op->shift_out;
  while ((op_elements(program, op) + shift) * unit > PROGRAM_REGISTER_BYTES) op->count /= 2;
}

/* A message to oneself and an all-to-all-v require an enclosing group. */
void program_repair(struct program *program) {
  if (program->ordering == PROGRAM_BY_STREAMS) program->shared_streams = true;
  for (uint32_t g = 0; g < program->group_count; g++) {
    struct program_group *group = &program->groups[g];
    for (uint32_t i = 0; i < group->op_count; i++) {
      struct program_op *op = &group->ops[i];
      op_repair(program, op);
      if (op->kind == PROGRAM_ALL_TO_ALL_V) group->bare = false;
      if (op->kind == PROGRAM_MESSAGE && op->root == op->peer) group->bare = false;
    }
  }
}

/* ---- the naive run: the expected memory ---- */

typedef uint8_t device_memory[MEMORY_BYTES];

static size_t register_place(const struct program_op *op, uint8_t number, uint32_t shift) {
  return (size_t)number * PROGRAM_REGISTER_BYTES + shift * oracle_type_bytes((ncclDataType_t)op->type);
}

/* Offsets of a rank's buffers in its device's memory, bytes; a rank may lack either. */
struct places {
  size_t in, out;
  bool sends, receives;
};

static struct places op_places(const struct program *program, const struct program_op *op, uint32_t rank) {
  struct places at = {register_place(op, op->in, op->shift_in), register_place(op, op->out, op->shift_out),
                      true, true};
  if (op->kind == PROGRAM_ALL_TO_ALL_V) return at;
  if (op->kind == PROGRAM_MESSAGE) {
    at.sends = rank == op->root;
    at.receives = rank == op->peer;
    return at;
  }
  const struct oracle_case c = case_of(program, op);
  at.sends = oracle_send_count(&c, rank) > 0;
  at.receives = oracle_receive_count(&c, rank) > 0;
  if (!op->in_place || !at.sends || !at.receives) return at;
  const size_t own = rank * op->count * oracle_type_bytes(c.type);
  const enum in_place_rule rule = collective_of(op)->in_place;
  at.in = at.out + (rule == IN_PLACE_SEND_AT_RANK ? own : 0);
  if (rule == IN_PLACE_RECEIVE_AT_RANK) at.out += own;
  return at;
}

static uint64_t scalar_of(uint32_t rank) { return rank + 2; }

static uint64_t integer_load(const struct program_op *op, const uint8_t *at) {
  const size_t bytes = oracle_type_bytes((ncclDataType_t)op->type);
  uint64_t bits = 0;
  memcpy(&bits, at, bytes);
  const bool is_signed = op->type == ncclInt8 || op->type == ncclInt32 || op->type == ncclInt64;
  const unsigned unused = 64 - 8 * (unsigned)bytes;
  return is_signed ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits;
}

static bool integer_less(const struct program_op *op, uint64_t a, uint64_t b) {
  return op->type == ncclInt64 || op->type == ncclInt32 || op->type == ncclInt8 ? (int64_t)a < (int64_t)b
                                                                                : a < b;
}

static uint64_t integer_combine(const struct program_op *op, uint64_t total, uint64_t value) {
  switch (op->op) {
    case ORACLE_PROD: return total * value;
    case ORACLE_MAX: return integer_less(op, total, value) ? value : total;
    case ORACLE_MIN: return integer_less(op, value, total) ? value : total;
    default: return total + value;
  }
}

/* The quotient of the sum, in the precision of the type. */
static uint64_t integer_average(const struct program_op *op, uint64_t total, uint32_t ranks) {
  const uint64_t sum = integer_load(op, (const uint8_t *)&total);
  const bool is_signed = op->type == ncclInt8 || op->type == ncclInt32 || op->type == ncclInt64;
  return is_signed ? (uint64_t)((int64_t)sum / (int64_t)ranks) : sum / ranks;
}

/* One element of a reduction: element `index` of every rank's input. */
static uint64_t naive_reduce(const struct program *program, const struct program_op *op,
                             device_memory *before, size_t index) {
  const size_t unit = oracle_type_bytes((ncclDataType_t)op->type);
  const uint32_t n = program_comm_size(program, op->comm);
  uint64_t total = 0;
  for (uint32_t rank = 0; rank < n; rank++) {
    const uint8_t *memory = before[program_comm_device(program, op->comm, rank)];
    uint64_t value = integer_load(op, memory + op_places(program, op, rank).in + index * unit);
    if (op->op == ORACLE_MUL_SUM) value *= scalar_of(rank);
    total = rank == 0 ? value : integer_combine(op, total, value);
  }
  return op->op == ORACLE_AVG ? integer_average(op, total, n) : total;
}

/* The rank and the element of its input that output element `index` of a rank is a copy of. */
static uint32_t naive_source(const struct program *program, const struct program_op *op, uint32_t rank,
                             size_t *index) {
  const uint32_t n = program_comm_size(program, op->comm);
  const size_t block = *index / op->count, inside = *index % op->count;
  switch (op->kind) {
    case COLLECTIVE_SENDRECV: return (rank + n - 1) % n;
    case COLLECTIVE_SCATTER: *index += rank * op->count; return op->root;
    case COLLECTIVE_ALLTOALL: *index = rank * op->count + inside; return (uint32_t)block;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER: *index = inside; return (uint32_t)block;
    default: return op->root;
  }
}

static void naive_collective(const struct program *program, const struct program_op *op,
                             device_memory *before, device_memory *after, uint32_t rank) {
  const struct oracle_case c = case_of(program, op);
  const size_t unit = oracle_type_bytes(c.type);
  uint8_t *out = after[program_comm_device(program, op->comm, rank)] + op_places(program, op, rank).out;
  for (size_t i = 0; i < oracle_receive_count(&c, rank); i++) {
    size_t index = i + (op->kind == COLLECTIVE_REDUCE_SCATTER ? rank * c.count : 0);
    uint64_t bits = 0;
    if (op_reduces(op)) {
      bits = naive_reduce(program, op, before, index);
    } else {
      const uint32_t source = naive_source(program, op, rank, &index);
      const uint8_t *memory = before[program_comm_device(program, op->comm, source)];
      memcpy(&bits, memory + op_places(program, op, source).in + index * unit, unit);
    }
    memcpy(out + i * unit, &bits, unit);
  }
}

static void naive_message(const struct program *program, const struct program_op *op, device_memory *before,
                          device_memory *after, uint32_t from, uint32_t to) {
  const size_t unit = oracle_type_bytes((ncclDataType_t)op->type);
  const bool uneven = op->kind == PROGRAM_ALL_TO_ALL_V;
  const size_t count = uneven ? all_to_all_v_count(op, from, to) : op->count;
  size_t in = op_places(program, op, from).in, out = op_places(program, op, to).out;
  if (uneven) {
    in += all_to_all_v_offset(op, from, to, true) * unit;
    out += all_to_all_v_offset(op, to, from, false) * unit;
  }
  memcpy(after[program_comm_device(program, op->comm, to)] + out,
         before[program_comm_device(program, op->comm, from)] + in, count * unit);
}

static void naive_op(const struct program *program, const struct program_op *op, device_memory *after,
                     device_memory *before) {
  const uint32_t n = program_comm_size(program, op->comm);
  memcpy(before, after, PROGRAM_RANKS_MAX * sizeof(device_memory));
  if (op->kind == PROGRAM_MESSAGE) naive_message(program, op, before, after, op->root, op->peer);
  for (uint32_t rank = 0; rank < n && op->kind != PROGRAM_MESSAGE; rank++) {
    if (op_is_collective(op)) naive_collective(program, op, before, after, rank);
    for (uint32_t from = 0; from < n && op->kind == PROGRAM_ALL_TO_ALL_V; from++)
      naive_message(program, op, before, after, from, rank);
  }
}

static void memory_fill(const struct program *program, uint32_t device, uint8_t *memory) {
  struct dice dice = {program->seed + device};
  for (size_t i = 0; i < MEMORY_BYTES; i++) memory[i] = (uint8_t)draw(&dice, 256);
}

static void naive_run(const struct program *program, device_memory *after, device_memory *before) {
  for (uint32_t device = 0; device < program->rank_count; device++)
    memory_fill(program, device, after[device]);
  for (uint32_t g = 0; g < program->group_count; g++)
    for (uint32_t i = 0; i < program->groups[g].op_count; i++)
      naive_op(program, &program->groups[g].ops[i], after, before);
}

/* ---- the real run ---- */

struct run;

/* One device: its rank of every communicator, its streams, its memory. */
struct rank_state {
  struct run *run;
  uint32_t device;
  os_thread thread;
  ncclComm_t comms[PROGRAM_COMMS];
  cudaStream_t streams[PROGRAM_COMMS][PROGRAM_STREAMS];
  cudaEvent_t events[PROGRAM_COMMS][PROGRAM_STREAMS];
  uint8_t *memory;
};

struct run {
  const struct program *program;
  ncclUniqueId ids[2];
  struct rank_state ranks[PROGRAM_RANKS_MAX];
  os_mutex lock;
  char *text;
  bool failed;
};

/* Keeps the first error. */
static bool complain(struct run *run, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  os_mutex_lock(&run->lock);
  if (!run->failed) vsnprintf(run->text, PROGRAM_TEXT_BYTES, format, arguments);
  run->failed = true;
  os_mutex_unlock(&run->lock);
  va_end(arguments);
  return false;
}

static bool good(struct run *run, ncclResult_t result, const char *call) {
  return result == ncclSuccess ||
         complain(run, "%s: %s: %s", call, ncclGetErrorString(result), ncclGetLastError(NULL));
}

static bool good_cuda(struct run *run, cudaError_t error, const char *call) {
  return error == cudaSuccess ||
         complain(run, "%s: %s: %s", call, cudaGetErrorString(error), ncclGetLastError(NULL));
}

static uint32_t stream_set(const struct program *program, uint32_t comm) {
  return program->shared_streams ? 0 : comm;
}

static bool rank_open(struct rank_state *state) {
  struct run *run = state->run;
  bool ok = good_cuda(run, cudaSetDevice((int)state->device), "cudaSetDevice") &&
            good_cuda(run, cudaMalloc((void **)&state->memory, MEMORY_BYTES), "cudaMalloc");
  for (uint32_t comm = 0; ok && comm < PROGRAM_COMMS; comm++) {
    for (uint32_t i = 0; ok && i < run->program->stream_count; i++) {
      ok = good_cuda(run, cudaStreamCreateWithFlags(&state->streams[comm][i], cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags") &&
           good_cuda(run, cudaEventCreateWithFlags(&state->events[comm][i], cudaEventDisableTiming),
                     "cudaEventCreateWithFlags");
    }
  }
  if (ok) memory_fill(run->program, state->device, state->memory);
  return ok;
}

/* After a failure, operations in flight are aborted. */
static void rank_close_comms(struct rank_state *state) {
  for (uint32_t comm = PROGRAM_COMMS; comm-- > 0;) {
    if (state->run->failed) ncclCommAbort(state->comms[comm]);
    else good(state->run, ncclCommDestroy(state->comms[comm]), "ncclCommDestroy");
  }
}

static void rank_close(struct rank_state *state) {
  for (uint32_t comm = 0; comm < PROGRAM_COMMS; comm++) {
    for (uint32_t i = 0; i < PROGRAM_STREAMS; i++) {
      if (state->streams[comm][i]) cudaStreamDestroy(state->streams[comm][i]);
      if (state->events[comm][i]) cudaEventDestroy(state->events[comm][i]);
    }
  }
  cudaFree(state->memory);
}

/* The device's part of the split: even and odd devices, the highest first. */
static bool rank_split(struct rank_state *state) {
  const uint32_t odd = state->device % 2;
  return good(state->run,
              ncclCommSplit(state->comms[0], (int)odd, -(int)state->device, &state->comms[2 + odd], NULL),
              "ncclCommSplit");
}

/* ---- issuing ---- */

static bool issue_half(struct rank_state *state, const struct program_op *op, uint32_t peer, size_t place,
                       size_t count, bool sending) {
  const cudaStream_t stream = state->streams[stream_set(state->run->program, op->comm)][op->stream];
  const ncclDataType_t type = (ncclDataType_t)op->type;
  const ncclComm_t comm = state->comms[op->comm];
  return sending ? good(state->run, ncclSend(state->memory + place, count, type, (int)peer, comm, stream),
                        "ncclSend")
                 : good(state->run, ncclRecv(state->memory + place, count, type, (int)peer, comm, stream),
                        "ncclRecv");
}

static bool issue_message(struct rank_state *state, const struct program_op *op, uint32_t rank) {
  const struct places at = op_places(state->run->program, op, rank);
  const bool receive_first = op->salt % 2;
  bool ok = true;
  if (at.receives && receive_first) ok = issue_half(state, op, op->root, at.out, op->count, false);
  if (ok && at.sends) ok = issue_half(state, op, op->peer, at.in, op->count, true);
  if (ok && at.receives && !receive_first) ok = issue_half(state, op, op->root, at.out, op->count, false);
  return ok;
}

/* Peers in an order that depends on the rank. */
static bool issue_all_to_all_v(struct rank_state *state, const struct program_op *op, uint32_t rank) {
  const struct program *program = state->run->program;
  const size_t unit = oracle_type_bytes((ncclDataType_t)op->type);
  const uint32_t n = program_comm_size(program, op->comm);
  const struct places at = op_places(program, op, rank);
  bool ok = true;
  for (uint32_t i = 0; ok && i < n; i++) {
    const uint32_t peer = (i + op->salt + rank) % n;
    ok = issue_half(state, op, peer, at.in + all_to_all_v_offset(op, rank, peer, true) * unit,
                    all_to_all_v_count(op, rank, peer), true) &&
         issue_half(state, op, peer, at.out + all_to_all_v_offset(op, rank, peer, false) * unit,
                    all_to_all_v_count(op, peer, rank), false);
  }
  return ok;
}

/* The operator is destroyed as soon as the call has returned, as NCCL allows. */
static bool issue_collective(struct rank_state *state, const struct program_op *op, uint32_t rank) {
  static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  const struct program *program = state->run->program;
  const struct places at = op_places(program, op, rank);
  const bool own = op_reduces(op) && op->op == ORACLE_MUL_SUM;
  uint64_t scalar = scalar_of(rank);
  struct collective_call call = {at.sends ? state->memory + at.in : NULL,
                                 at.receives ? state->memory + at.out : NULL,
                                 op->count,
                                 (ncclDataType_t)op->type,
                                 own ? ncclSum : ops[op->op % 5],
                                 (int)op->root,
                                 (int)rank,
                                 (int)program_comm_size(program, op->comm),
                                 state->comms[op->comm],
                                 state->streams[stream_set(program, op->comm)][op->stream]};
  if (own && !good(state->run,
                   ncclRedOpCreatePreMulSum(&call.op, &scalar, call.type, ncclScalarHostImmediate, call.comm),
                   "ncclRedOpCreatePreMulSum"))
    return false;
  const struct collective *collective = collective_of(op);
  bool ok = good(state->run, collective_launch(collective, &call), collective->name);
  if (own) ok = good(state->run, ncclRedOpDestroy(call.op, call.comm), "ncclRedOpDestroy") && ok;
  return ok;
}

static bool issue_op(struct rank_state *state, const struct program_op *op) {
  const int rank = comm_rank(state->run->program, op->comm, state->device);
  if (rank < 0) return true;
  if (op->kind == PROGRAM_MESSAGE) return issue_message(state, op, (uint32_t)rank);
  if (op->kind == PROGRAM_ALL_TO_ALL_V) return issue_all_to_all_v(state, op, (uint32_t)rank);
  return issue_collective(state, op, (uint32_t)rank);
}

/* True if the device's call enqueues work on its stream. */
static bool op_touches(const struct program *program, const struct program_op *op, uint32_t device) {
  const int rank = comm_rank(program, op->comm, device);
  if (rank < 0) return false;
  if (op->kind == PROGRAM_MESSAGE) return (uint32_t)rank == op->root || (uint32_t)rank == op->peer;
  return op->count > 0 || op->kind == PROGRAM_ALL_TO_ALL_V || op->kind == COLLECTIVE_SENDRECV;
}

/* The stream that orders groups, for a device's last call on a communicator in the group; otherwise the
 * call's own stream. */
static uint8_t op_stream(const struct rank_state *state, const struct program_group *group, uint32_t i) {
  const struct program *program = state->run->program;
  const uint8_t first = (uint8_t)((uint32_t)(group - program->groups) % program->stream_count);
  if (program->ordering != PROGRAM_BY_STREAMS) return group->ops[i].stream;
  for (uint32_t later = i + 1; later < group->op_count && !group->bare; later++) {
    const struct program_op *op = &group->ops[later];
    if (op->comm == group->ops[i].comm && op_touches(program, op, state->device)) return group->ops[i].stream;
  }
  return first;
}

/* All ranks use communicators that share streams in the same order, because a kernel waits for the one before
 * it on its stream. */
static bool issue_group(struct rank_state *state, const struct program_group *group) {
  const struct program *program = state->run->program;
  const bool sorted = program->shared_streams && !group->bare;
  const bool two_passes = group->messages_first && !group->bare && state->device % 2;
  bool ok = cudaSetDevice((int)state->device) == cudaSuccess;
  for (uint32_t comm = 0; comm < (sorted ? PROGRAM_COMMS : 1u); comm++) {
    for (uint32_t pass = 0; pass < (two_passes ? 2u : 1u); pass++) {
      for (uint32_t i = 0; ok && i < group->op_count; i++) {
        struct program_op op = group->ops[i];
        if ((sorted && op.comm != comm) || (two_passes && op_is_messages(&op) != (pass == 0))) continue;
        op.stream = op_stream(state, group, i);
        ok = issue_op(state, &op);
      }
    }
  }
  return ok;
}

/* ---- ordering groups ---- */

static bool rank_wait(struct rank_state *state) {
  bool ok = true;
  for (uint32_t comm = 0; comm < PROGRAM_COMMS; comm++)
    for (uint32_t i = 0; ok && i < state->run->program->stream_count; i++)
      ok = good_cuda(state->run, cudaStreamSynchronize(state->streams[comm][i]), "cudaStreamSynchronize");
  return ok;
}

/* The first stream waits for all others, then the others wait for it. */
static bool rank_chain(struct rank_state *state) {
  struct run *run = state->run;
  const uint32_t streams = run->program->stream_count;
  const cudaStream_t first = state->streams[0][0];
  bool ok = true;
  for (uint32_t i = 1; ok && i < PROGRAM_COMMS * streams; i++) {
    const cudaEvent_t event = state->events[i / streams][i % streams];
    ok =
        good_cuda(run, cudaEventRecord(event, state->streams[i / streams][i % streams]), "cudaEventRecord") &&
        good_cuda(run, cudaStreamWaitEvent(first, event, 0), "cudaStreamWaitEvent");
  }
  ok = ok && good_cuda(run, cudaEventRecord(state->events[0][0], first), "cudaEventRecord");
  for (uint32_t i = 1; ok && i < PROGRAM_COMMS * streams; i++)
    ok = good_cuda(run, cudaStreamWaitEvent(state->streams[i / streams][i % streams], state->events[0][0], 0),
                   "cudaStreamWaitEvent");
  return ok;
}

/* The next group's ordering stream waits for this group's. */
static bool rank_hand_over(struct rank_state *state, uint32_t group_index) {
  const uint32_t streams = state->run->program->stream_count;
  const cudaStream_t from = state->streams[0][group_index % streams];
  const cudaStream_t to = state->streams[0][(group_index + 1) % streams];
  const cudaEvent_t event = state->events[0][0];
  return good_cuda(state->run, cudaEventRecord(event, from), "cudaEventRecord") &&
         good_cuda(state->run, cudaStreamWaitEvent(to, event, 0), "cudaStreamWaitEvent");
}

static bool rank_order(struct rank_state *state, uint32_t group_index) {
  if (cudaSetDevice((int)state->device) != cudaSuccess) return false;
  switch (state->run->program->ordering) {
    case PROGRAM_BY_HOST: return rank_wait(state);
    case PROGRAM_BY_EVENTS: return rank_chain(state);
    default: return rank_hand_over(state, group_index);
  }
}

/* ---- one thread per rank ---- */

static bool rank_join(struct rank_state *state) {
  struct run *run = state->run;
  const int n = (int)run->program->rank_count, device = (int)state->device;
  return good_cuda(run, cudaSetDevice(device), "cudaSetDevice") &&
         good(run, ncclCommInitRank(&state->comms[0], n, run->ids[0], device), "ncclCommInitRank") &&
         good(run, ncclCommInitRank(&state->comms[1], n, run->ids[1], n - 1 - device), "ncclCommInitRank") &&
         rank_split(state);
}

static void *rank_body(void *argument) {
  struct rank_state *state = (struct rank_state *)argument;
  const struct program *program = state->run->program;
  bool ok = rank_join(state);
  for (uint32_t g = 0; ok && g < program->group_count; g++) {
    const struct program_group *group = &program->groups[g];
    if (!group->bare) ok = good(state->run, ncclGroupStart(), "ncclGroupStart");
    ok = ok && issue_group(state, group);
    if (!group->bare) ok = good(state->run, ncclGroupEnd(), "ncclGroupEnd") && ok;
    ok = ok && rank_order(state, g);
  }
  if (ok) rank_wait(state);
  rank_close_comms(state);
  return NULL;
}

static void run_threads(struct run *run) {
  const uint32_t n = run->program->rank_count;
  uint32_t started = 0;
  if (!good(run, ncclGetUniqueId(&run->ids[0]), "ncclGetUniqueId")) return;
  if (!good(run, ncclGetUniqueId(&run->ids[1]), "ncclGetUniqueId")) return;
  while (started < n && os_thread_start(&run->ranks[started].thread, rank_body, &run->ranks[started]))
    started++;
  if (started < n) complain(run, "a thread did not start");
  for (uint32_t i = 0; i < started; i++) os_thread_join(run->ranks[i].thread);
}

/* ---- one thread for all ranks ---- */

static bool run_join(struct run *run) {
  const uint32_t n = run->program->rank_count;
  int reversed[PROGRAM_RANKS_MAX];
  ncclComm_t forward[PROGRAM_RANKS_MAX], backward[PROGRAM_RANKS_MAX];
  for (uint32_t i = 0; i < n; i++) reversed[i] = (int)(n - 1 - i);
  if (!good(run, ncclCommInitAll(forward, (int)n, NULL), "ncclCommInitAll")) return false;
  for (uint32_t i = 0; i < n; i++) run->ranks[i].comms[0] = forward[i];
  if (!good(run, ncclCommInitAll(backward, (int)n, reversed), "ncclCommInitAll")) return false;
  for (uint32_t i = 0; i < n; i++) run->ranks[i].comms[1] = backward[n - 1 - i];
  bool ok = good(run, ncclGroupStart(), "ncclGroupStart");
  for (uint32_t i = 0; ok && i < n; i++) ok = rank_split(&run->ranks[i]);
  return good(run, ncclGroupEnd(), "ncclGroupEnd") && ok;
}

static void run_alone(struct run *run) {
  const struct program *program = run->program;
  const uint32_t n = program->rank_count;
  bool ok = run_join(run);
  for (uint32_t g = 0; ok && g < program->group_count; g++) {
    const struct program_group *group = &program->groups[g];
    if (!group->bare) ok = good(run, ncclGroupStart(), "ncclGroupStart");
    for (uint32_t i = 0; ok && i < n; i++) ok = issue_group(&run->ranks[i], group);
    if (!group->bare) ok = good(run, ncclGroupEnd(), "ncclGroupEnd") && ok;
    for (uint32_t i = 0; ok && i < n; i++) ok = rank_order(&run->ranks[i], g);
  }
  for (uint32_t i = 0; ok && i < n; i++) ok = rank_wait(&run->ranks[i]);
  for (uint32_t i = 0; i < n; i++) rank_close_comms(&run->ranks[i]);
}

/* ---- the whole run ---- */

static void settings_text(const struct program *p, char *emu, size_t emu_bytes, char *proto,
                          size_t proto_bytes) {
  static const char *const rules[] = {"random", "priority", "round_robin"};
  snprintf(emu, emu_bytes,
           "mode=%s,slots=%u,chunk=%u,channels=%u,flag_bits=%u,depth=%u,lag=%u,span=%u,rule=%s",
           p->free_threads ? "threads" : "guarded", p->slots, p->chunk_bytes, p->channel_count, p->flag_bits,
           p->depth, p->lag_percent, p->span, rules[p->rule]);
  snprintf(proto, proto_bytes, "%s%s%s", p->protocols & 1 ? "LL," : "", p->protocols & 2 ? "LL128," : "",
           p->protocols & 4 ? "Simple" : "");
  if (proto[0] && proto[strlen(proto) - 1] == ',') proto[strlen(proto) - 1] = '\0';
}

/* In threads mode a stream's thread may still be finishing its last operation: then the query is repeated. */
static bool run_configure(struct run *run) {
  const tutti_emu_config_t config = {.size = sizeof config, .seed = run->program->seed};
  char emu[160], proto[32];
  settings_text(run->program, emu, sizeof emu, proto, sizeof proto);
  setenv("TUTTI_EMU", emu, 1);
  setenv("NCCL_PROTO", proto, 1);
  setenv("NCCL_P2P_READ_ENABLE", run->program->reads ? "1" : "0", 1);
  setenv("TUTTI_STALL_SECONDS", "3", 1); /* a hang in threads mode is reported soon */
  param_reset();
  ncclResult_t result = tutti_emu_configure(&config);
  for (int tries = 0; tries < 1000 && result == ncclInvalidUsage; tries++) {
    os_sleep_ms(1);
    result = tutti_emu_configure(&config);
  }
  return good(run, result, "tutti_emu_configure");
}

/* Describes the call that wrote a register last. */
static void register_story(const struct program *program, uint32_t number, char *out, size_t out_bytes) {
  snprintf(out, out_bytes, "no call writes it");
  for (uint32_t g = 0; g < program->group_count; g++) {
    for (uint32_t i = 0; i < program->groups[g].op_count; i++)
      if (program->groups[g].ops[i].out == number)
        snprintf(out, out_bytes, "last written by call %u of group %u", i, g);
  }
}

static void run_compare(struct run *run, device_memory *expected) {
  for (uint32_t device = 0; device < run->program->rank_count; device++) {
    const uint8_t *found = run->ranks[device].memory;
    char story[64];
    size_t i = 0;
    if (memcmp(found, expected[device], MEMORY_BYTES) == 0) continue;
    while (found[i] == expected[device][i]) i++;
    const uint32_t number = (uint32_t)(i / PROGRAM_REGISTER_BYTES);
    register_story(run->program, number, story, sizeof story);
    complain(run, "device %u, r%u byte %zu is 0x%02x instead of 0x%02x; %s", device, number,
             i % PROGRAM_REGISTER_BYTES, found[i], expected[device][i], story);
  }
}

static void run_opened(struct run *run, uint64_t *trace_hash) {
  tutti_emu_stats_t stats = {.size = sizeof stats};
  bool ok = true;
  for (uint32_t i = 0; ok && i < run->program->rank_count; i++) ok = rank_open(&run->ranks[i]);
  if (ok && run->program->thread_per_rank) run_threads(run);
  else if (ok) run_alone(run);
  good(run, tutti_emu_stats(&stats), "tutti_emu_stats");
  if (trace_hash) *trace_hash = stats.trace_hash;
}

bool program_run(const struct program *program, uint64_t *trace_hash, char text[PROGRAM_TEXT_BYTES]) {
  static device_memory after[PROGRAM_RANKS_MAX], before[PROGRAM_RANKS_MAX];
  struct run run;
  memset(&run, 0, sizeof run);
  run.program = program;
  run.text = text;
  text[0] = '\0';
  os_mutex_init(&run.lock);
  for (uint32_t i = 0; i < program->rank_count; i++) {
    run.ranks[i].run = &run;
    run.ranks[i].device = i;
  }
  if (run_configure(&run)) {
    run_opened(&run, trace_hash);
    if (!run.failed) {
      naive_run(program, after, before);
      run_compare(&run, after);
    }
    for (uint32_t i = 0; i < program->rank_count; i++) rank_close(&run.ranks[i]);
  }
  os_mutex_destroy(&run.lock);
  return !run.failed;
}

/* ---- shrinking ---- */

struct shrinking {
  program_check fails;
  void *argument;
  uint32_t tries_left;
};

/* Keeps the change if the program still fails with it. */
static bool shrink_try(struct shrinking *shrinking, struct program *program, struct program *changed) {
  program_repair(changed);
  if (shrinking->tries_left == 0 || memcmp(program, changed, sizeof *program) == 0) return false;
  shrinking->tries_left -= 1;
  if (!shrinking->fails(changed, shrinking->argument)) return false;
  *program = *changed;
  return true;
}

static bool shrink_groups(struct shrinking *shrinking, struct program *program) {
  bool any = false;
  for (uint32_t g = program->group_count; g-- > 0 && program->group_count > 1;) {
    struct program changed = *program;
    changed.group_count -= 1;
    memmove(&changed.groups[g], &changed.groups[g + 1], (changed.group_count - g) * sizeof changed.groups[0]);
    any = shrink_try(shrinking, program, &changed) || any;
  }
  return any;
}

static bool shrink_ops(struct shrinking *shrinking, struct program *program) {
  bool any = false;
  for (uint32_t g = 0; g < program->group_count; g++) {
    for (uint32_t i = program->groups[g].op_count; i-- > 0 && program->groups[g].op_count > 1;) {
      struct program changed = *program;
      struct program_group *group = &changed.groups[g];
      group->op_count -= 1;
      memmove(&group->ops[i], &group->ops[i + 1], (group->op_count - i) * sizeof group->ops[0]);
      any = shrink_try(shrinking, program, &changed) || any;
    }
  }
  return any;
}

static bool shrink_ranks(struct shrinking *shrinking, struct program *program) {
  for (uint32_t n = 1; n < program->rank_count; n++) {
    struct program changed = *program;
    changed.rank_count = n;
    if (shrink_try(shrinking, program, &changed)) return true;
  }
  return false;
}

/* Sets one member of the program to its simplest value, if the failure remains. */
static bool shrink_member(struct shrinking *shrinking, struct program *program, size_t offset, size_t bytes,
                          uint32_t plain) {
  struct program changed = *program;
  memcpy((char *)&changed + offset, &plain, bytes); /* little-endian, as all hosts that NCCL supports */
  return shrink_try(shrinking, program, &changed);
}
#define SHRINK(member, plain)                                                                               \
  any =                                                                                                     \
      shrink_member(shrinking, program, offsetof(struct program, member), sizeof program->member, plain) || \
      any

static bool shrink_constants(struct shrinking *shrinking, struct program *program) {
  bool any = false;
  SHRINK(free_threads, 0);
  SHRINK(thread_per_rank, 0);
  SHRINK(ordering, PROGRAM_BY_HOST);
  SHRINK(ordering, PROGRAM_BY_EVENTS);
  SHRINK(shared_streams, 1);
  SHRINK(stream_count, 1);
  SHRINK(slots, 8);
  SHRINK(chunk_bytes, 64);
  SHRINK(channel_count, 1);
  SHRINK(flag_bits, 32);
  SHRINK(depth, 1);
  SHRINK(lag_percent, 0);
  SHRINK(span, 8);
  SHRINK(rule, 0);
  SHRINK(reads, 0);
  SHRINK(protocols, 4);
  SHRINK(protocols, 1);
  SHRINK(protocols, 2);
  return any;
}

/* Reduces a call's count towards one, and its other numbers to their simplest. */
static bool shrink_op(struct shrinking *shrinking, struct program *program, uint32_t g, uint32_t i) {
  bool any = false;
  for (int what = 0; what < 9; what++) {
    struct program changed = *program;
    struct program_op *op = &changed.groups[g].ops[i];
    switch (what) {
      case 0:
        if (op->count > 1) op->count = 1;
        break;
      case 1:
        if (op->count > 1) op->count /= 2;
        break;
      case 2:
        if (op->count > 1) op->count -= 1;
        break;
      case 3: op->shift_in = op->shift_out = 0; break;
      case 4: op->in_place = false; break;
      case 5: op->type = ncclInt8; break;
      case 6: op->comm = 0; break;
      case 7: op->op = ORACLE_SUM; break;
      default: op->root = 0; break;
    }
    any = shrink_try(shrinking, program, &changed) || any;
  }
  return any;
}

static bool shrink_details(struct shrinking *shrinking, struct program *program) {
  bool any = false;
  for (uint32_t g = 0; g < program->group_count; g++) {
    for (uint32_t flag = 0; flag < 2; flag++) {
      struct program changed = *program;
      *(flag ? &changed.groups[g].bare : &changed.groups[g].messages_first) = false;
      any = shrink_try(shrinking, program, &changed) || any;
    }
    for (uint32_t i = 0; i < program->groups[g].op_count; i++)
      any = shrink_op(shrinking, program, g, i) || any;
  }
  return any;
}

void program_shrink(struct program *program, program_check fails, void *argument, uint32_t tries_max) {
  struct shrinking shrinking = {fails, argument, tries_max};
  for (bool any = true; any && shrinking.tries_left > 0;) {
    any = shrink_groups(&shrinking, program);
    any = shrink_ops(&shrinking, program) || any;
    any = shrink_ranks(&shrinking, program) || any;
    any = shrink_constants(&shrinking, program) || any;
    any = shrink_details(&shrinking, program) || any;
  }
}

/* ---- printing ---- */

struct paper {
  char *out;
  size_t capacity, used;
};

__attribute__((format(printf, 2, 3))) static void put(struct paper *paper, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t left = paper->used < paper->capacity ? paper->capacity - paper->used : 0;
  const int wrote = vsnprintf(left ? paper->out + paper->used : NULL, left, format, arguments);
  if (wrote > 0) paper->used += (size_t)wrote;
  va_end(arguments);
}

static const char *const comm_names[] = {"world", "reverse", "even", "odd"};
static const char *const type_names[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                         "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                         "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};

static void print_buffer(struct paper *paper, uint8_t number, uint32_t shift) {
  put(paper, "r%u", number);
  if (shift) put(paper, " + %u", shift);
}

static void print_tail(struct paper *paper, const struct program_op *op) {
  put(paper, ", %s, stream[%u]);\n", comm_names[op->comm], op->stream);
}

static void print_message(struct paper *paper, const struct program *program, const struct program_op *op,
                          uint32_t from, uint32_t to, size_t count, uint32_t in, uint32_t out) {
  put(paper, "    if (device == %u) ncclSend(", program_comm_device(program, op->comm, from));
  print_buffer(paper, op->in, in);
  put(paper, ", %zu, %s, %u", count, type_names[op->type], to);
  print_tail(paper, op);
  put(paper, "    if (device == %u) ncclRecv(", program_comm_device(program, op->comm, to));
  print_buffer(paper, op->out, out);
  put(paper, ", %zu, %s, %u", count, type_names[op->type], from);
  print_tail(paper, op);
}

static void print_all_to_all_v(struct paper *paper, const struct program *program,
                               const struct program_op *op) {
  const uint32_t n = program_comm_size(program, op->comm);
  for (uint32_t from = 0; from < n; from++)
    for (uint32_t to = 0; to < n; to++)
      print_message(paper, program, op, from, to, all_to_all_v_count(op, from, to),
                    op->shift_in + all_to_all_v_offset(op, from, to, true),
                    op->shift_out + all_to_all_v_offset(op, to, from, false));
}

static void print_collective(struct paper *paper, const struct program_op *op) {
  static const char *const calls[] = {"AllReduce", "AllGather", "ReduceScatter",
                                      "Broadcast", "Reduce",    "(ring of Send and Recv)",
                                      "AlltoAll",  "Gather",    "Scatter"};
  static const char *const ops[] = {"ncclSum", "ncclProd", "ncclMax",
                                    "ncclMin", "ncclAvg",  "preMulSum(rank + 2)"};
  put(paper, "    nccl%s(", calls[op->kind]);
  print_buffer(paper, op->in_place ? op->out : op->in, op->in_place ? op->shift_out : op->shift_in);
  put(paper, ", ");
  print_buffer(paper, op->out, op->shift_out);
  put(paper, "%s, %u, %s", op->in_place ? " /* in place */" : "", op->count, type_names[op->type]);
  if (op_reduces(op)) put(paper, ", %s", ops[op->op]);
  if (collective_of(op)->has_root) put(paper, ", root %u", op->root);
  print_tail(paper, op);
}

static void print_op(struct paper *paper, const struct program *program, const struct program_op *op) {
  if (op->kind == PROGRAM_ALL_TO_ALL_V) print_all_to_all_v(paper, program, op);
  else if (op_is_collective(op)) print_collective(paper, op);
  else print_message(paper, program, op, op->root, op->peer, op->count, op->shift_in, op->shift_out);
}

static void print_head(struct paper *paper, const struct program *program) {
  char emu[160], proto[32];
  settings_text(program, emu, sizeof emu, proto, sizeof proto);
  put(paper, "/* generated from seed %llu; TUTTI_SEED=%llu TUTTI_EMU=%s NCCL_PROTO=%s%s\n",
      (unsigned long long)program->seed, (unsigned long long)program->seed, emu, proto,
      program->reads ? " NCCL_P2P_READ_ENABLE=1" : "");
  put(paper, " * %u devices, %s, %u streams%s; r0..r%u are registers of %u bytes on each device.\n",
      program->rank_count, program->thread_per_rank ? "one thread each" : "one thread drives all",
      program->stream_count, program->shared_streams ? "" : " for each communicator", PROGRAM_REGISTERS - 1,
      PROGRAM_REGISTER_BYTES);
  put(paper,
      " * world: devices in order; reverse: from the last to the first; even, odd: a split of world, the\n"
      " * highest device first. Every line without `if` is called on all devices of its communicator. */\n");
}

size_t program_print(const struct program *program, char *out, size_t out_bytes) {
  static const char *const ordering[] = {
      "cudaStreamSynchronize(all streams);", "/* events: all streams wait for all */",
      "/* group g: each device's last call on each communicator was on stream[g % streams] whatever is said\n"
      "   above; an event leads from there to the next */"};
  struct paper paper = {out, out_bytes, 0};
  print_head(&paper, program);
  for (uint32_t g = 0; g < program->group_count; g++) {
    const struct program_group *group = &program->groups[g];
    put(&paper, group->bare ? "{\n" : "ncclGroupStart(); {\n");
    for (uint32_t i = 0; i < group->op_count; i++) print_op(&paper, program, &group->ops[i]);
    put(&paper, "} %s%s\n", group->bare ? "" : "ncclGroupEnd(); ", ordering[program->ordering]);
    if (group->messages_first && !group->bare)
      put(&paper, "/* odd devices issue what is made of sends and receives first */\n");
  }
  return paper.used;
}
