/* test_faults.c: small programs over emulated nodes whose network fails, or that end operations at an
 * arbitrary moment. A program is drawn from its seed: nodes, NICs, delays and small buffers; communicators
 * (all ranks, a split, a non-blocking one); collectives, messages, groups and graphs; at most one network
 * fault at some message; and an abort, a revocation or a destroy with operations in flight.
 *
 * Without a fault every result is exact. With one, every call and every wait ends, and each communicator
 * either has exact results or an error on all of its ranks with a message that names which rank lost which;
 * the others continue with exact results; survivors shrink and continue. Equal seeds make equal events. At
 * the end no memory and no thread is left.
 *
 *   test_faults                      some hundred seeds, as a test
 *   test_faults FIRST COUNT [MODE]   these seeds, with one `ok` or `not ok` line each; MODE is guarded or
 *                                    threads; seeds.sh runs many */
/* sanitizers: address thread */
/* runner: tsan 20 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include "backends/fault.h"
#include "base/hash.h"
#include "base/os.h"
#include "base/param.h"
#include "tutti.h"

enum {
  FAILURE_MS = 10000, /* until all ranks know of a failure */
  DEVICES_MAX = 8,
  COMMUNICATORS_MAX = 4,
  OPS_MAX = 24,
  GRAPHS_MAX = 3,
  COUNT_MAX = 200,
  ARENA_WORDS = OPS_MAX * COUNT_MAX * 2 * DEVICES_MAX,
  TEXT_BYTES = 700,
  STALE = 0x7e7e7e7e,
#if defined(__SANITIZE_THREAD__) /* guarded mode runs one thread at a time; other builds run the rest */
  SEEDS = 40,
#else
  SEEDS = 240,
#endif
  SEEDS_THREADS = 36,
  HANG_SECONDS = 100 /* of one seed */
};

enum op_kind {
  ALL_REDUCE,
  BROADCAST,
  REDUCE,
  ALL_GATHER,
  REDUCE_SCATTER,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
  SHIFT, /* to the next rank, from the one before */
  OP_KINDS
};

enum misdeed { MISDEED_NONE, ABORT_ONE, ABORT_ALL, REVOKE, DESTROY, FINALIZE, MISDEEDS };

struct op {
  enum op_kind kind;
  uint32_t communicator, count, root, in, out; /* in, out: words from the start of the arena */
  bool checked;
};

/* One communicator: its ranks' handles, NULL after they were destroyed. */
struct communicator {
  uint32_t size;
  int devices[DEVICES_MAX]; /* by rank */
  ncclComm_t comms[DEVICES_MAX];
  cudaStream_t streams[DEVICES_MAX];
  bool blocking;
  bool hurt;           /* aborted, revoked or destroyed by the program itself */
  bool over;           /* no further call is made on it */
  ncclResult_t failed; /* the first error of any call on it */
  char text[TEXT_BYTES];
};

struct trial {
  uint64_t seed, state;
  bool threads;
  uint32_t node_count, device_count;
  enum fault_kind fault;
  enum misdeed misdeed;
  uint32_t misdeed_step, misdeed_communicator;
  struct communicator communicators[COMMUNICATORS_MAX + 1]; /* the last: survivors of another one */
  uint32_t communicator_count, op_count, used_words;
  struct op ops[OPS_MAX];
  cudaGraphExec_t graphs[GRAPHS_MAX * DEVICES_MAX];
  uint32_t graph_count;
  uint32_t failed_count;
  char environment[240], text[2 * TEXT_BYTES];
};

static uint32_t *arena[DEVICES_MAX];
static uint64_t outcomes[3]; /* exact, error reported, ended by the program: communicators of all trials */

static uint32_t draw(struct trial *trial, uint32_t lowest, uint32_t highest) {
  return lowest + (uint32_t)(hash_draw(&trial->state) >> 32) % (highest - lowest + 1);
}

/* Keeps the first error. */
static bool wrong(struct trial *trial, const char *format, ...) {
  va_list arguments;
  if (trial->text[0] != '\0') return false;
  va_start(arguments, format);
  vsnprintf(trial->text, sizeof trial->text, format, arguments);
  va_end(arguments);
  return false;
}

/* ---- drawing a program ---- */

static void draw_world(struct trial *trial) {
  static const char *const rules[] = {"random", "priority", "round_robin"};
  static const uint32_t node_counts[] = {2, 2, 3, 4};
  trial->node_count = node_counts[draw(trial, 0, 3)];
  const uint32_t near = draw(trial, 1, DEVICES_MAX / trial->node_count > 3 ? 3 : 2);
  trial->device_count = trial->node_count * near;
  const uint32_t fault = draw(trial, 0, FAULT_RESET + 2); /* no fault is three times as likely */
  trial->fault = fault <= FAULT_RESET ? (enum fault_kind)fault : FAULT_NOTHING;
  /* In threads mode a hang is reported after a second. */
  if (trial->threads && trial->fault == FAULT_STOP && draw(trial, 0, 3) != 0) trial->fault = FAULT_RESET;
  const uint32_t slots = draw(trial, 2, 8), chunk = draw(trial, 4, 200), channels = draw(trial, 1, 3);
  const uint32_t depth = draw(trial, 1, 4), lag = draw(trial, 0, 2) == 0 ? draw(trial, 1, 100) : 0;
  const uint32_t rule = draw(trial, 0, 2), nics = draw(trial, 1, 4), delay = draw(trial, 0, 12);
  const uint32_t fault_at = draw(trial, 0, 1) ? draw(trial, 1, 30) : draw(trial, 1, 300);
  const uint32_t weak = trial->threads ? 0 : draw(trial, 0, 3) == 0;
  snprintf(trial->environment, sizeof trial->environment,
           "%sdevices=%u,nodes=%u,net=1,nics=%u,net_delay=%u,slots=%u,chunk=%u,channels=%u,depth=%u,lag=%u,"
           "rule=%s,weak=%u,fault=%s,fault_at=%u",
           trial->threads ? "mode=threads," : "", trial->device_count, trial->node_count, nics, delay, slots,
           chunk, channels, depth, lag, rules[rule], weak, fault_names[trial->fault], fault_at);
}

static bool fault_is_harmless(enum fault_kind fault) { return fault == FAULT_NOTHING || fault == FAULT_HOLD; }

/* ---- communicators ---- */

static ncclResult_t communicator_settle(const struct communicator *communicator) {
  ncclResult_t first = ncclSuccess;
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    ncclResult_t state = ncclInProgress;
    if (communicator->comms[rank] == NULL) continue;
    for (uint32_t i = 0; state == ncclInProgress && i < 10000000; i++)
      if (ncclCommGetAsyncError(communicator->comms[rank], &state) != ncclSuccess) state = ncclInternalError;
    if (first == ncclSuccess) first = state;
  }
  return first;
}

static bool communicator_streams(struct trial *trial, struct communicator *communicator) {
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    cudaSetDevice(communicator->devices[rank]);
    if (cudaStreamCreate(&communicator->streams[rank]) != cudaSuccess)
      return wrong(trial, "cudaStreamCreate");
  }
  return true;
}

static bool open_all(struct trial *trial) {
  struct communicator *communicator = &trial->communicators[trial->communicator_count++];
  communicator->size = trial->device_count;
  communicator->blocking = true;
  for (uint32_t rank = 0; rank < communicator->size; rank++) communicator->devices[rank] = (int)rank;
  if (ncclCommInitAll(communicator->comms, (int)communicator->size, communicator->devices) != ncclSuccess)
    return wrong(trial, "ncclCommInitAll: %s", ncclGetLastError(NULL));
  return communicator_streams(trial, communicator);
}

/* Some of the devices, in reverse; never blocks. */
static bool open_free(struct trial *trial) {
  struct communicator *communicator = &trial->communicators[trial->communicator_count++];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  const uint32_t stride = draw(trial, 1, 2);
  for (int device = (int)trial->device_count - 1; device >= 0; device -= (int)stride)
    communicator->devices[communicator->size++] = device;
  config.blocking = 0;
  if (ncclGetUniqueId(&id) != ncclSuccess) return wrong(trial, "ncclGetUniqueId");
  if (ncclGroupStart() != ncclSuccess) return wrong(trial, "ncclGroupStart");
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    cudaSetDevice(communicator->devices[rank]);
    ncclCommInitRankConfig(&communicator->comms[rank], (int)communicator->size, id, (int)rank, &config);
  }
  const ncclResult_t result = ncclGroupEnd();
  if (result != ncclSuccess && result != ncclInProgress)
    return wrong(trial, "ncclCommInitRankConfig: %s", ncclGetLastError(NULL));
  if (communicator_settle(communicator) != ncclSuccess)
    return wrong(trial, "init: %s", ncclGetLastError(NULL));
  return communicator_streams(trial, communicator);
}

/* One communicator split in two, by node or across nodes, in reverse. */
static bool open_split(struct trial *trial) {
  struct communicator *parent = &trial->communicators[0],
                      *halves = &trial->communicators[trial->communicator_count];
  ncclComm_t made[DEVICES_MAX];
  const bool across = draw(trial, 0, 1);
  const uint32_t size = parent->size;
  if (ncclGroupStart() != ncclSuccess) return wrong(trial, "ncclGroupStart");
  for (uint32_t rank = 0; rank < size; rank++)
    ncclCommSplit(parent->comms[rank], across ? (int)rank % 2 : rank >= size / 2, (int)(size - rank),
                  &made[rank], NULL);
  if (ncclGroupEnd() != ncclSuccess) return wrong(trial, "ncclCommSplit: %s", ncclGetLastError(NULL));
  trial->communicator_count += 2;
  for (uint32_t rank = size; rank-- > 0;) {
    struct communicator *half = &halves[across ? rank % 2 : rank >= size / 2];
    half->blocking = true;
    half->devices[half->size] = (int)rank;
    half->comms[half->size++] = made[rank];
  }
  return communicator_streams(trial, &halves[0]) && communicator_streams(trial, &halves[1]);
}

static bool communicators_open(struct trial *trial) {
  if (!open_all(trial)) return false;
  if (draw(trial, 0, 2) == 0 && !open_split(trial)) return false;
  return draw(trial, 0, 2) != 0 || open_free(trial);
}

/* ---- operations ---- */

static uint32_t blocks_in(const struct op *op, uint32_t size) {
  return op->kind == REDUCE_SCATTER || op->kind == ALL_TO_ALL || op->kind == SCATTER ? size : 1;
}

static uint32_t blocks_out(const struct op *op, uint32_t size) {
  return op->kind == ALL_GATHER || op->kind == ALL_TO_ALL || op->kind == GATHER ? size : 1;
}

static uint32_t value(const struct trial *trial, const struct op *op, uint32_t rank, uint32_t index) {
  const uint32_t number = (uint32_t)(op - trial->ops);
  return (uint32_t)trial->seed * 2654435761u + number * 97u + rank * 40503u + index * index;
}

static uint32_t sum(const struct trial *trial, const struct op *op, uint32_t index) {
  uint32_t total = 0;
  for (uint32_t rank = 0; rank < trial->communicators[op->communicator].size; rank++)
    total += value(trial, op, rank, index);
  return total;
}

static uint32_t expected(const struct trial *trial, const struct op *op, uint32_t rank, uint32_t i) {
  const uint32_t size = trial->communicators[op->communicator].size, own = rank * op->count + i % op->count;
  switch (op->kind) {
    case BROADCAST: return value(trial, op, op->root, i);
    case ALL_GATHER:
    case GATHER: return value(trial, op, i / op->count, i % op->count);
    case REDUCE_SCATTER: return sum(trial, op, own);
    case ALL_TO_ALL: return value(trial, op, i / op->count, own);
    case SCATTER: return value(trial, op, op->root, own);
    case SHIFT: return value(trial, op, (rank + size - 1) % size, i);
    default: return sum(trial, op, i);
  }
}

static bool op_check(struct trial *trial, struct op *op) {
  const struct communicator *communicator = &trial->communicators[op->communicator];
  const bool rooted = op->kind == REDUCE || op->kind == GATHER;
  op->checked = true;
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    const uint32_t *out = arena[communicator->devices[rank]] + op->out;
    for (uint32_t i = 0; i < op->count * blocks_out(op, communicator->size); i++) {
      if ((rooted && rank != op->root) || out[i] == expected(trial, op, rank, i)) continue;
      return wrong(trial, "operation %u (kind %d) of communicator %u: rank %u element %u of %u is %u, not %u",
                   (uint32_t)(op - trial->ops), op->kind, op->communicator, rank, i, op->count, out[i],
                   expected(trial, op, rank, i));
    }
  }
  return true;
}

static struct op *op_draw(struct trial *trial, uint32_t communicator_index, enum op_kind kind) {
  const struct communicator *communicator = &trial->communicators[communicator_index];
  if (trial->op_count == OPS_MAX) return NULL;
  struct op *op = &trial->ops[trial->op_count++];
  op->kind = kind;
  op->communicator = communicator_index;
  op->count = draw(trial, 0, 2) == 0 ? draw(trial, 20, COUNT_MAX) : draw(trial, 1, 20);
  op->root = draw(trial, 0, communicator->size - 1);
  op->in = trial->used_words;
  op->out = op->in + op->count * blocks_in(op, communicator->size);
  trial->used_words = op->out + op->count * blocks_out(op, communicator->size);
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    uint32_t *words = arena[communicator->devices[rank]];
    for (uint32_t i = op->in; i < op->out; i++) words[i] = value(trial, op, rank, i - op->in);
    for (uint32_t i = op->out; i < trial->used_words; i++) words[i] = STALE;
  }
  return op;
}

static ncclResult_t call_of(const struct op *op, const struct communicator *communicator, uint32_t rank) {
  const ncclComm_t comm = communicator->comms[rank];
  const cudaStream_t stream = communicator->streams[rank];
  const int root = (int)op->root, next = (int)((rank + 1) % communicator->size);
  const int before = (int)((rank + communicator->size - 1) % communicator->size);
  const uint32_t *in = arena[communicator->devices[rank]] + op->in;
  uint32_t *out = arena[communicator->devices[rank]] + op->out;
  const size_t n = op->count;
  ncclResult_t sent;
  switch (op->kind) {
    case ALL_REDUCE: return ncclAllReduce(in, out, n, ncclUint32, ncclSum, comm, stream);
    case BROADCAST: return ncclBroadcast(in, out, n, ncclUint32, root, comm, stream);
    case REDUCE: return ncclReduce(in, out, n, ncclUint32, ncclSum, root, comm, stream);
    case ALL_GATHER: return ncclAllGather(in, out, n, ncclUint32, comm, stream);
    case REDUCE_SCATTER: return ncclReduceScatter(in, out, n, ncclUint32, ncclSum, comm, stream);
    case ALL_TO_ALL: return ncclAlltoAll(in, out, n, ncclUint32, comm, stream);
    case GATHER: return ncclGather(in, out, n, ncclUint32, root, comm, stream);
    case SCATTER: return ncclScatter(in, out, n, ncclUint32, root, comm, stream);
    default: break;
  }
  sent = ncclSend(in, n, ncclUint32, next, comm, stream);
  const ncclResult_t received = ncclRecv(out, n, ncclUint32, before, comm, stream);
  return sent != ncclSuccess ? sent : received;
}

/* An error of a call on the communicator. */
static void communicator_note(struct communicator *communicator, ncclResult_t error) {
  if (error == ncclSuccess || error == ncclInProgress || communicator->failed != ncclSuccess) return;
  communicator->failed = error;
  snprintf(communicator->text, sizeof communicator->text, "%s", ncclGetLastError(NULL));
}

/* One or two operations of a communicator as one group. */
static void ops_launch(struct communicator *communicator, struct op *const *ops, uint32_t op_count) {
  ncclGroupStart();
  for (uint32_t i = 0; i < op_count; i++)
    for (uint32_t rank = 0; rank < communicator->size; rank++) call_of(ops[i], communicator, rank);
  communicator_note(communicator, ncclGroupEnd());
  if (!communicator->blocking) communicator_note(communicator, communicator_settle(communicator));
}

/* The same as a graph, launched several times. */
static void ops_replay(struct trial *trial, struct communicator *communicator, struct op *const *ops,
                       uint32_t op_count) {
  cudaGraphExec_t *graphs = &trial->graphs[trial->graph_count];
  for (uint32_t rank = 0; rank < communicator->size; rank++)
    cudaStreamBeginCapture(communicator->streams[rank], cudaStreamCaptureModeRelaxed);
  ops_launch(communicator, ops, op_count);
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    cudaGraph_t graph = NULL;
    if (cudaStreamEndCapture(communicator->streams[rank], &graph) != cudaSuccess || graph == NULL) continue;
    if (cudaGraphInstantiate(&graphs[rank], graph, 0) != cudaSuccess) graphs[rank] = NULL;
    cudaGraphDestroy(graph);
  }
  trial->graph_count += DEVICES_MAX;
  for (uint32_t times = draw(trial, 1, 3); times > 0; times--)
    for (uint32_t rank = 0; rank < communicator->size && communicator->failed == ncclSuccess; rank++)
      if (graphs[rank] != NULL) cudaGraphLaunch(graphs[rank], communicator->streams[rank]);
}

static void step_launch(struct trial *trial, uint32_t communicator_index) {
  struct communicator *communicator = &trial->communicators[communicator_index];
  struct op *ops[2];
  uint32_t count = 0;
  const uint32_t wanted = draw(trial, 1, 4) == 4 ? 2 : 1;
  while (count < wanted && (ops[count] = op_draw(trial, communicator_index,
                                                 (enum op_kind)draw(trial, 0, OP_KINDS - 1))) != NULL)
    count += 1;
  if (count == 0) return;
  if (trial->graph_count < GRAPHS_MAX * DEVICES_MAX && draw(trial, 0, 4) == 0)
    ops_replay(trial, communicator, ops, count);
  else ops_launch(communicator, ops, count);
}

static bool communicator_verify(struct trial *trial, uint32_t communicator_index) {
  for (uint32_t i = 0; i < trial->op_count; i++)
    if (trial->ops[i].communicator == communicator_index && !trial->ops[i].checked &&
        !op_check(trial, &trial->ops[i]))
      return false;
  return true;
}

/* Waits for all streams; operations without an error must be exact. */
static bool communicator_wait(struct trial *trial, uint32_t communicator_index) {
  struct communicator *communicator = &trial->communicators[communicator_index];
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    cudaSetDevice(communicator->devices[rank]);
    if (cudaStreamSynchronize(communicator->streams[rank]) != cudaSuccess)
      communicator_note(communicator, ncclRemoteError);
  }
  communicator_note(communicator, communicator_settle(communicator));
  if (communicator->failed != ncclSuccess || communicator->hurt) return true;
  return communicator_verify(trial, communicator_index);
}

/* ---- ending communicators ---- */

static void communicator_abort(struct communicator *communicator) {
  for (uint32_t rank = 0; rank < communicator->size; rank++)
    if (communicator->comms[rank] != NULL) ncclCommAbort(communicator->comms[rank]);
  memset(communicator->comms, 0, sizeof communicator->comms);
  communicator->over = true;
}

/* With any operations in flight. */
static bool communicator_destroy(struct trial *trial, uint32_t communicator_index, bool finalize) {
  struct communicator *communicator = &trial->communicators[communicator_index];
  for (uint32_t rank = 0; finalize && rank < communicator->size; rank++)
    communicator_note(communicator, ncclCommFinalize(communicator->comms[rank]));
  if (finalize && !communicator->blocking) communicator_note(communicator, communicator_settle(communicator));
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    const ncclResult_t result = ncclCommDestroy(communicator->comms[rank]);
    communicator_note(communicator, result);
  }
  memset(communicator->comms, 0, sizeof communicator->comms);
  communicator->over = true;
  return communicator->failed != ncclSuccess || communicator->hurt ||
         communicator_verify(trial, communicator_index);
}

static bool misdeed_happen(struct trial *trial) {
  const uint32_t index = trial->misdeed_communicator % trial->communicator_count;
  struct communicator *communicator = &trial->communicators[index];
  const uint32_t rank = draw(trial, 0, communicator->size - 1);
  if (trial->misdeed == DESTROY) return communicator_destroy(trial, index, false);
  if (trial->misdeed == FINALIZE) return communicator_destroy(trial, index, true);
  communicator->hurt = true;
  if (trial->misdeed == ABORT_ALL) communicator_abort(communicator);
  if (trial->misdeed == REVOKE)
    for (uint32_t i = 0; i < communicator->size; i++)
      ncclCommRevoke(communicator->comms[i], NCCL_REVOKE_DEFAULT);
  if (trial->misdeed == ABORT_ONE) {
    ncclCommAbort(communicator->comms[rank]);
    communicator->comms[rank] = NULL;
  }
  return true;
}

/* ---- messages of a failed communicator ---- */

static bool code_allowed(const struct communicator *communicator, ncclResult_t code) {
  if (communicator->hurt) return code != ncclInternalError;
  return code == ncclRemoteError;
}

static bool names_operation(const char *text) {
  static const char *const names[] = {"deadlock: ", "AllReduce",     "Broadcast", "Reduce",
                                      "AllGather",  "ReduceScatter", "Send",      "Recv"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strstr(text, names[i]) != NULL) return true;
  return false;
}

/* The asynchronous error of a rank whose communicator has failed. With free threads another rank may have
 * failed first, and the failure is on its way to this one. */
static ncclResult_t rank_error(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  ncclCommGetAsyncError(comm, &state);
  for (uint32_t ms = 0; state == ncclSuccess && ms < FAILURE_MS; ms++) {
    os_sleep_ms(1);
    ncclCommGetAsyncError(comm, &state);
  }
  return state;
}

/* The result of further calls on a rank: the error, with its reason on at least one rank. */
static bool rank_says(struct trial *trial, struct communicator *communicator, uint32_t rank, bool *named) {
  uint32_t *words = arena[communicator->devices[rank]];
  const ncclResult_t state = rank_error(communicator->comms[rank]);
  if (!code_allowed(communicator, state))
    return wrong(trial, "a communicator failed with %d, rank %u has %d: %s", communicator->failed, rank,
                 state, communicator->text);
  const ncclResult_t second = ncclAllReduce(words, words, 1, ncclUint32, ncclSum, communicator->comms[rank],
                                            communicator->streams[rank]);
  if (second != state) return wrong(trial, "rank %u has %d, and a call gives %d", rank, state, second);
  *named = *named || names_operation(ncclGetLastError(NULL));
  return true;
}

static bool communicator_says(struct trial *trial, uint32_t communicator_index) {
  struct communicator *communicator = &trial->communicators[communicator_index];
  bool named = names_operation(communicator->text) || communicator->over || communicator->hurt;
  for (uint32_t rank = 0; rank < communicator->size; rank++)
    if (communicator->comms[rank] != NULL && !communicator->hurt &&
        !rank_says(trial, communicator, rank, &named))
      return false;
  if (!named || strstr(communicator->text, "rank ") == NULL)
    return wrong(trial, "communicator %u failed without naming rank and operation: %s", communicator_index,
                 communicator->text);
  return true;
}

/* A new communicator of the remaining ranks completes an all-reduce. */
static bool communicator_shrink(struct trial *trial, struct communicator *communicator) {
  int excluded[DEVICES_MAX], excluded_count = 0;
  ncclComm_t made[DEVICES_MAX] = {NULL};
  struct communicator *left = &trial->communicators[COMMUNICATORS_MAX];
  const uint32_t lost = draw(trial, 0, communicator->size - 1);
  memset(left, 0, sizeof *left);
  for (uint32_t rank = 0; rank < communicator->size; rank++)
    if (rank == lost || communicator->comms[rank] == NULL) excluded[excluded_count++] = (int)rank;
  if (communicator->size - (uint32_t)excluded_count < 2) return true;
  ncclGroupStart();
  for (uint32_t rank = 0, next = 0; rank < communicator->size; rank++) {
    if (next < (uint32_t)excluded_count && excluded[next] == (int)rank) {
      next += 1;
      continue;
    }
    left->devices[left->size++] = communicator->devices[rank];
    ncclCommShrink(communicator->comms[rank], excluded, excluded_count, &made[left->size - 1], NULL,
                   NCCL_SHRINK_ABORT);
  }
  ncclResult_t result = ncclGroupEnd();
  memcpy(left->comms, made, sizeof made);
  if (result == ncclInProgress) result = communicator_settle(left);
  if (result != ncclSuccess) return wrong(trial, "ncclCommShrink: %s", ncclGetLastError(NULL));
  left->blocking = communicator->blocking;
  return communicator_streams(trial, left);
}

static bool left_use(struct trial *trial) {
  struct communicator *left = &trial->communicators[COMMUNICATORS_MAX];
  struct op *op = op_draw(trial, COMMUNICATORS_MAX, ALL_REDUCE);
  if (op != NULL) ops_launch(left, &op, 1);
  if (!communicator_wait(trial, COMMUNICATORS_MAX)) return false;
  if (left->failed == ncclSuccess) return true;
  /* The fault may not have happened yet if the program itself ended the parent. */
  if (fault_is_harmless(trial->fault) || trial->failed_count > 0)
    return wrong(trial, "after a shrink: %s", left->text);
  trial->failed_count += 1;
  return communicator_says(trial, COMMUNICATORS_MAX);
}

/* ---- one seed ---- */

static bool steps_run(struct trial *trial) {
  const uint32_t steps = draw(trial, 2, 7);
  trial->misdeed = draw(trial, 0, 2) == 0 ? (enum misdeed)draw(trial, 1, MISDEEDS - 1) : MISDEED_NONE;
  trial->misdeed_step = draw(trial, 0, steps - 1);
  trial->misdeed_communicator = draw(trial, 0, COMMUNICATORS_MAX - 1);
  for (uint32_t step = 0; step < steps; step++) {
    const uint32_t index = draw(trial, 0, trial->communicator_count - 1);
    struct communicator *communicator = &trial->communicators[index];
    if (!communicator->over && !communicator->hurt && communicator->failed == ncclSuccess)
      step_launch(trial, index);
    if (draw(trial, 0, 3) == 0 && !communicator_wait(trial, index)) return false;
    if (trial->misdeed != MISDEED_NONE && step == trial->misdeed_step && !misdeed_happen(trial)) return false;
  }
  return true;
}

/* Queued operations end by themselves: their communicators are destroyed. */
static void streams_close(struct communicator *communicator) {
  for (uint32_t rank = 0; rank < communicator->size; rank++) {
    cudaSetDevice(communicator->devices[rank]);
    if (communicator->streams[rank] == NULL) continue;
    cudaStreamSynchronize(communicator->streams[rank]);
    cudaStreamDestroy(communicator->streams[rank]);
    communicator->streams[rank] = NULL;
  }
}

static bool communicator_close(struct trial *trial, uint32_t index) {
  struct communicator *communicator = &trial->communicators[index];
  if (!communicator->over && !communicator_wait(trial, index)) return false;
  outcomes[communicator->hurt ? 2 : communicator->failed != ncclSuccess]++;
  if (communicator->failed == ncclSuccess && !communicator->hurt)
    return communicator->over || communicator_destroy(trial, index, draw(trial, 0, 1));
  trial->failed_count += !communicator->hurt;
  if (communicator->failed != ncclSuccess && !communicator->hurt && fault_is_harmless(trial->fault))
    return wrong(trial, "without a fault communicator %u failed: %s", index, communicator->text);
  if (communicator->failed != ncclSuccess && !communicator->hurt && !communicator_says(trial, index))
    return false;
  if (!communicator->over && draw(trial, 0, 1) == 0) {
    if (!communicator_shrink(trial, communicator)) return false;
    struct communicator *left = &trial->communicators[COMMUNICATORS_MAX];
    if (left->size > 0 && !left_use(trial)) return false;
    if (left->failed != ncclSuccess) communicator_abort(left);
    if (left->size > 0 && !left->over && !communicator_destroy(trial, COMMUNICATORS_MAX, false)) return false;
    streams_close(left);
  }
  if (!communicator->over) communicator_abort(communicator);
  return true;
}

static bool trial_play(struct trial *trial) {
  bool ok = communicators_open(trial) && steps_run(trial);
  for (uint32_t i = 0; ok && i < trial->communicator_count; i++) ok = communicator_close(trial, i);
  for (uint32_t i = 0; i <= COMMUNICATORS_MAX; i++)
    if (!trial->communicators[i].over) communicator_abort(&trial->communicators[i]);
  for (uint32_t i = 0; i < trial->graph_count; i++)
    if (trial->graphs[i] != NULL) cudaGraphExecDestroy(trial->graphs[i]);
  for (uint32_t i = 0; i <= COMMUNICATORS_MAX; i++) streams_close(&trial->communicators[i]);
  if (ok && trial->failed_count > 1)
    return wrong(trial, "one fault has failed %u communicators", trial->failed_count);
  return ok;
}

static uint32_t thread_count(void) {
  uint32_t count = 0;
  DIR *folder = opendir("/proc/self/task");
  for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
    count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

/* Ending threads may need a moment. Threads of blocks are kept for later ones, each with one block of memory.
 */
static bool nothing_left(struct trial *trial, uint64_t blocks, uint32_t threads) {
  int64_t more_blocks = 1, more_threads = 0;
  for (uint32_t i = 0; i < 2000 && more_blocks != more_threads; i++) {
    if (i > 0) os_sleep_ms(1);
    more_threads = (int64_t)thread_count() - threads;
    more_blocks = (int64_t)(os_alloc_live() - blocks);
  }
  if (more_blocks == more_threads && (trial->threads || more_threads == 0)) return true;
  if (more_threads < 0 && more_blocks <= 0) return true; /* one thread of an earlier trial was still ending */
  return wrong(trial, "%d blocks of memory and %d threads are left", (int)more_blocks, (int)more_threads);
}

static ncclResult_t world_configure(const struct trial *trial) {
  const tutti_emu_config_t config = {.size = sizeof config, .seed = trial->seed, .threads = trial->threads};
  ncclResult_t result = ncclInvalidUsage;
  setenv("TUTTI_EMU", trial->environment, 1);
  param_reset();
  for (uint32_t tries = 0; tries < 1000 && result == ncclInvalidUsage; tries++) {
    result = tutti_emu_configure(&config);
    if (result == ncclInvalidUsage) os_sleep_ms(1);
  }
  return result;
}

static bool trial_run(struct trial *trial, uint64_t seed, bool threads, bool second, uint64_t *hash) {
  tutti_emu_stats_t stats = {.size = sizeof stats};
  memset(trial, 0, sizeof *trial);
  trial->seed = seed;
  trial->state = seed * 2 + threads;
  trial->threads = threads;
  draw_world(trial);
  alarm(HANG_SECONDS);
  if (world_configure(trial) != ncclSuccess) return wrong(trial, "configure: %s", ncclGetLastError(NULL));
  const uint64_t blocks = os_alloc_live();
  const uint32_t thread_number = thread_count();
  const bool ok = trial_play(trial);
  tutti_emu_stats(&stats);
  *hash = stats.trace_hash;
  alarm(0);
  if (!ok || !second) return ok;
  /* The check for races forgets what streams have done. */
  if (world_configure(trial) != ncclSuccess) return wrong(trial, "configure: %s", ncclGetLastError(NULL));
  return nothing_left(trial, blocks, thread_number);
}

/* The number of failing seeds, each of which is printed. Guarded seeds run twice. */
static uint32_t seeds_run(uint64_t first, uint64_t count, bool threads) {
  static struct trial trial;
  uint32_t failures = 0;
  for (uint64_t seed = first; seed < first + count; seed++) {
    uint64_t hash = 0, second = 0;
    bool ok =
        trial_run(&trial, seed, threads, false, &hash) && trial_run(&trial, seed, threads, true, &second);
    if (ok && !threads && hash != second) ok = wrong(&trial, "two runs make different moves");
    failures += !ok;
    if (!ok)
      printf("not ok - seed %llu, misdeed %d at step %u, TUTTI_EMU=%s: %s\n", (unsigned long long)seed,
             trial.misdeed, trial.misdeed_step, trial.environment, trial.text);
    fflush(stdout);
  }
  return failures;
}

static void arena_open(void) {
  setenv("NCCL_DEBUG", "NONE", 0);
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  const tutti_emu_config_t config = {.size = sizeof config};
  setenv("TUTTI_EMU", "devices=8", 1);
  param_reset();
  if (tutti_emu_configure(&config) != ncclSuccess) abort();
  for (int device = 0; device < DEVICES_MAX; device++) {
    if (cudaSetDevice(device) != cudaSuccess) abort();
    if (cudaMalloc((void **)&arena[device], ARENA_WORDS * sizeof(uint32_t)) != cudaSuccess) abort();
  }
}

static void arena_close(void) {
  for (int device = 0; device < DEVICES_MAX; device++) cudaFree(arena[device]);
}

static void seeds_test(uint64_t count, bool threads) {
  arena_open();
  memset(outcomes, 0, sizeof outcomes);
  const uint32_t failures = seeds_run(1, count, threads);
  arena_close();
  assert_int_equal(failures, 0);
  for (uint32_t i = 0; i < 3; i++) assert_true(outcomes[i] > 0);
}

static void test_guarded(void **state) {
  (void)state;
  seeds_test(SEEDS, false);
}

static void test_threads(void **state) {
  (void)state;
  seeds_test(SEEDS_THREADS, true);
}

static int seeds_main(uint64_t first, uint64_t count, bool threads) {
  arena_open();
  const uint32_t failures = seeds_run(first, count, threads);
  arena_close();
  if (failures == 0)
    printf(
        "ok - %s, seeds %llu to %llu: %llu communicators exact, %llu failed by name, %llu ended by the "
        "program\n",
        threads ? "threads" : "guarded", (unsigned long long)first, (unsigned long long)(first + count - 1),
        (unsigned long long)outcomes[0], (unsigned long long)outcomes[1], (unsigned long long)outcomes[2]);
  return failures > 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_guarded), cmocka_unit_test(test_threads)};
  if (argc >= 3)
    return seeds_main(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10),
                      argc > 3 && strcmp(argv[3], "threads") == 0);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
