/* test_matrix.c: every type, operator, collective and protocol at 2, 3, 5 and 8 ranks, with zero elements,
 * one, a few and enough for several channels and loops, in place and out of place, at addresses aligned to
 * one element only. Results are compared with sim/oracle.h. Then the same calls with other slots, depths,
 * lags, seeds and scheduling rules, and with free threads: each output must have the same bits. Every byte
 * outside of outputs must be unchanged. */
/* sanitizers: address thread */
/* runner: 15 s, tsan 10 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "base/param.h"
#include "collective.h"
#include "tutti.h"

/* In a sanitizer build the four rank counts begin at different types and test every fourth type, or one.
 * Guarded mode has one thread at a time, which ThreadSanitizer learns little from: it has that of three
 * ranks. */
#if defined(__SANITIZE_THREAD__)
enum { TYPE_STRIDE = ncclNumTypes, GUARDED_RANKS = 3 };
#elif defined(__SANITIZE_ADDRESS__)
enum { TYPE_STRIDE = 4, GUARDED_RANKS = 0 };
#else
enum { TYPE_STRIDE = 1, GUARDED_RANKS = 0 };
#endif

enum {
  THREADS_STRIDE = 3,
  RANKS_MAX = 8,
  PROTOCOLS = 3,
  ENTRIES_MAX = 64,
  GAP_BYTES = 32,
  PATTERN = 0xa5,
  ARENA_BYTES = 1 << 20,
  COMPLAINTS_MAX = 3,
  LARGE_TRAFFIC_BYTES = 80000 /* three times 32 KiB, the least that gets a channel of its own */
};

/* One call on all ranks. */
struct entry {
  struct oracle_case c;
  const struct collective *collective;
  bool in_place;
  size_t offset; /* of its region in both arenas of every rank, bytes */
};

/* The emulator's settings, and whether the calls of a batch are one group or one launch each. Settings with
 * the same `results` must give the same bits. */
struct setting {
  const char *name, *environment; /* TUTTI_EMU */
  int threads;
  bool fused, large;
  int results;
};
static const struct setting settings[] = {
    {"one launch a call", "slots=2,chunk=40,channels=3", 0, false, false, 0},
    {"one group", "slots=2,chunk=40,channels=3", 0, true, false, 1},
    {"one group, much in flight",
     "slots=7,chunk=40,channels=3,depth=3,lag=40,rule=priority,span=1,flag_bits=5", 0, true, false, 1},
    {"one group, threads", "slots=3,chunk=40,channels=3,depth=2,lag=30", 1, true, false, 1},
    {"several loops", "slots=4,chunk=480,channels=2", 0, true, true, 2},
    {"several loops, late", "slots=8,chunk=480,channels=2,depth=4,lag=70,rule=round_robin,flag_bits=6", 0,
     true, true, 2},
    {"several loops, one launch a call", "slots=3,chunk=480,channels=2,span=2", 0, false, true, 2},
    {"several loops, threads", "slots=2,chunk=480,channels=2,depth=2", 1, true, true, 2},
};
enum { SETTINGS = sizeof settings / sizeof settings[0], RESULT_SETS = 3 };
static const char *const protocols[PROTOCOLS] = {"LL", "LL128", "Simple"};

static struct {
  const struct setting *setting;
  uint32_t rank_count, protocol;
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  unsigned char *send[RANKS_MAX], *receive[RANKS_MAX];             /* arenas, device memory */
  unsigned char *send_image[RANKS_MAX], *receive_image[RANKS_MAX]; /* their expected contents */
  ncclRedOp_t operators[RANKS_MAX];                                /* of the batch's type */
  uint32_t complaints;
} world;

/* Hashes of outputs: those of the first run of each set of settings, 0 before it. */
static uint64_t results[RESULT_SETS][COLLECTIVE_COUNT][ncclNumTypes][ENTRIES_MAX];

/* ---- the world ---- */

static void expect(ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return;
  fail_msg("%u ranks, %s, %s: %s: %s: %s", world.rank_count, protocols[world.protocol], world.setting->name,
           what, ncclGetErrorString(result), ncclGetLastError(NULL));
}
static void expect_cuda(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  fail_msg("%u ranks, %s, %s: %s: %s: %s", world.rank_count, protocols[world.protocol], world.setting->name,
           what, cudaGetErrorString(error), ncclGetLastError(NULL));
}

static void world_open(uint32_t rank_count, uint32_t protocol, const struct setting *setting) {
  const tutti_emu_config_t config = {
      .size = sizeof config, .seed = 1 + (uint64_t)(setting - settings), .threads = setting->threads};
  world.setting = setting;
  world.rank_count = rank_count;
  world.protocol = protocol;
  setenv("TUTTI_EMU", setting->environment, 1);
  setenv("NCCL_PROTO", protocols[protocol], 1);
  setenv("NCCL_ALGO", "ring", 1); /* free threads would choose by the number of cores */
  param_reset();
  expect(tutti_emu_configure(&config), "tutti_emu_configure");
  expect(ncclCommInitAll(world.comms, (int)rank_count, NULL), "ncclCommInitAll");
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    expect_cuda(cudaSetDevice((int)rank), "cudaSetDevice");
    expect_cuda(cudaStreamCreateWithFlags(&world.streams[rank], cudaStreamNonBlocking), "cudaStreamCreate");
    expect_cuda(cudaMalloc((void **)&world.send[rank], ARENA_BYTES), "cudaMalloc");
    expect_cuda(cudaMalloc((void **)&world.receive[rank], ARENA_BYTES), "cudaMalloc");
  }
}

static void world_close(void) {
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    expect(ncclCommDestroy(world.comms[rank]), "ncclCommDestroy");
    expect_cuda(cudaStreamDestroy(world.streams[rank]), "cudaStreamDestroy");
    expect_cuda(cudaFree(world.send[rank]), "cudaFree");
    expect_cuda(cudaFree(world.receive[rank]), "cudaFree");
  }
}

static void world_wait(void) {
  for (uint32_t rank = 0; rank < world.rank_count; rank++)
    expect_cuda(cudaStreamSynchronize(world.streams[rank]), "cudaStreamSynchronize");
}

/* ---- one batch: all calls of one collective and type ---- */

/* Bytes of the call's larger buffer, over all ranks. */
static size_t entry_bytes(const struct entry *entry) {
  return entry->c.count * oracle_type_bytes(entry->c.type) *
         (entry->collective->is_split ? entry->c.rank_count : 1);
}

static void entry_add(struct entry *entries, uint32_t *count, const struct collective *collective,
                      ncclDataType_t type, enum oracle_op op, size_t elements, bool in_place) {
  struct entry *entry = &entries[*count];
  const struct entry *before = *count == 0 ? NULL : entry - 1;
  const size_t unit = oracle_type_bytes(type);
  const size_t begin = before == NULL ? 0 : before->offset + entry_bytes(before);
  const struct oracle_case c = {collective->id, type,      op, world.rank_count, *count % world.rank_count,
                                elements,       1 + *count};
  entry->c = c;
  entry->collective = collective;
  entry->in_place = in_place;
  entry->offset = (begin + GAP_BYTES + 15) / 16 * 16 + (*count % 3 == 0 ? 0 : unit * (*count % 3));
  *count += 1;
  assert_true(*count <= ENTRIES_MAX && entry->offset + entry_bytes(entry) + GAP_BYTES <= ARENA_BYTES);
}

static uint32_t batch_small(struct entry *entries, const struct collective *collective, ncclDataType_t type) {
  static const size_t counts[] = {0, 1, 7, 65};
  uint32_t count = 0;
  for (uint32_t op = 0; op < (collective->has_op ? ORACLE_OP_COUNT : 1u); op++) {
    for (uint32_t i = 0; i < 4; i++) {
      entry_add(entries, &count, collective, type, (enum oracle_op)op, counts[i], false);
      if (collective->in_place != IN_PLACE_NONE)
        entry_add(entries, &count, collective, type, (enum oracle_op)op, counts[i], true);
    }
  }
  return count;
}

/* One call that needs several channels and loops; operators and in-place vary with types and ranks. */
static uint32_t batch_large(struct entry *entries, const struct collective *collective, ncclDataType_t type) {
  const uint32_t turn = (uint32_t)type + world.protocol + world.rank_count;
  const size_t weight = collective->id == COLLECTIVE_ALL_REDUCE ? 2
                        : collective->is_split                  ? world.rank_count
                                                                : 1;
  const size_t elements = LARGE_TRAFFIC_BYTES / weight / oracle_type_bytes(type) + 3;
  uint32_t count = 0;
  entry_add(entries, &count, collective, type, (enum oracle_op)(turn % ORACLE_OP_COUNT), elements,
            collective->in_place != IN_PLACE_NONE && turn / 2 % 2);
  return count;
}

/* A rank's buffers in a pair of arenas; NULL for a buffer that the rank lacks. */
struct buffers {
  unsigned char *send, *receive;
  bool in_place;
};
static struct buffers entry_buffers(const struct entry *entry, uint32_t rank, unsigned char *send_arena,
                                    unsigned char *receive_arena) {
  const size_t own = rank * entry->c.count * oracle_type_bytes(entry->c.type);
  const bool sends = oracle_send_count(&entry->c, rank) > 0,
             receives = oracle_receive_count(&entry->c, rank) > 0;
  unsigned char *region = receive_arena + entry->offset;
  const struct buffers apart = {sends ? send_arena + entry->offset : NULL, receives ? region : NULL, false};
  if (!entry->in_place || !sends || !receives) return apart;
  const bool send_inside = entry->collective->in_place == IN_PLACE_SEND_AT_RANK;
  const bool receive_inside = entry->collective->in_place == IN_PLACE_RECEIVE_AT_RANK;
  const struct buffers together = {region + (send_inside ? own : 0), region + (receive_inside ? own : 0),
                                   true};
  return together;
}

static void batch_fill(const struct entry *entries, uint32_t count, size_t bytes) {
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    memset(world.send_image[rank], PATTERN, bytes);
    memset(world.receive_image[rank], PATTERN, bytes);
    for (uint32_t i = 0; i < count; i++) {
      const struct buffers at =
          entry_buffers(&entries[i], rank, world.send_image[rank], world.receive_image[rank]);
      if (at.send) oracle_input(&entries[i].c, rank, 0, oracle_send_count(&entries[i].c, rank), at.send);
    }
    memcpy(world.send[rank], world.send_image[rank], bytes);
    memcpy(world.receive[rank], world.receive_image[rank], bytes);
  }
}

static ncclRedOp_t nccl_op(enum oracle_op op, uint32_t rank) {
  static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  return op == ORACLE_MUL_SUM ? world.operators[rank] : ops[op];
}

static void entry_launch(const struct entry *entry) {
  expect(ncclGroupStart(), "ncclGroupStart");
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    const struct buffers at = entry_buffers(entry, rank, world.send[rank], world.receive[rank]);
    const struct collective_call call = {at.send,
                                         at.receive,
                                         entry->c.count,
                                         entry->c.type,
                                         nccl_op(entry->c.op, rank),
                                         (int)entry->c.root,
                                         (int)rank,
                                         (int)world.rank_count,
                                         world.comms[rank],
                                         world.streams[rank]};
    expect(collective_launch(entry->collective, &call), entry->collective->name);
  }
  expect(ncclGroupEnd(), "ncclGroupEnd");
}

/* Scalars lie in host memory for even ranks and in device memory for odd ones. */
static void operators_create(ncclDataType_t type) {
  static uint64_t scalars[RANKS_MAX];
  struct oracle_case c;
  memset(&c, 0, sizeof c);
  c.type = type;
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    unsigned char *device = world.send[rank] + ARENA_BYTES - 8;
    oracle_scalar(&c, rank, &scalars[rank]);
    memcpy(device, &scalars[rank], 8);
    expect(ncclRedOpCreatePreMulSum(&world.operators[rank], rank % 2 ? (void *)device : &scalars[rank], type,
                                    rank % 2 ? ncclScalarDevice : ncclScalarHostImmediate, world.comms[rank]),
           "ncclRedOpCreatePreMulSum");
  }
}

static void batch_run(const struct entry *entries, uint32_t count) {
  const bool has_op = entries[0].collective->has_op;
  if (has_op) operators_create(entries[0].c.type);
  if (world.setting->fused) expect(ncclGroupStart(), "ncclGroupStart");
  for (uint32_t i = 0; i < count; i++) entry_launch(&entries[i]);
  if (world.setting->fused) expect(ncclGroupEnd(), "ncclGroupEnd");
  for (uint32_t rank = 0; has_op && rank < world.rank_count; rank++)
    expect(ncclRedOpDestroy(world.operators[rank], world.comms[rank]), "ncclRedOpDestroy");
  world_wait();
}

/* ---- comparing ---- */

static void entry_complain(const struct entry *entry, const char *text) {
  static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "premulsum"};
  if (world.complaints++ >= COMPLAINTS_MAX) return;
  print_error("%u ranks, %s, TUTTI_EMU=%s, %s: %s of %zu elements of type %d, operator %s, root %u, %s: %s\n",
              world.rank_count, protocols[world.protocol], world.setting->environment,
              world.setting->threads ? "threads" : "guarded", entry->collective->name, entry->c.count,
              (int)entry->c.type, ops[entry->c.op], entry->c.root,
              entry->in_place ? "in place" : "out of place", text);
}

static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t count) {
  for (; count >= 8; bytes += 8, count -= 8) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 29;
  }
  for (; count > 0; bytes++, count--) hash = (hash ^ *bytes) * UINT64_C(0x100000001b3);
  return hash;
}

/* The first run of a set is compared with the oracle, and gives the results expected of later runs. */
static void entry_check(const struct entry *entry, uint64_t *known) {
  const void *outputs[RANKS_MAX];
  uint32_t ranks[RANKS_MAX];
  uint64_t hash = 1;
  const size_t unit = oracle_type_bytes(entry->c.type);
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    const struct buffers at = entry_buffers(entry, rank, world.send[rank], world.receive[rank]);
    const size_t bytes = oracle_receive_count(&entry->c, rank) * unit;
    ranks[rank] = rank;
    outputs[rank] = at.receive;
    if (bytes > 0) hash = hash_bytes(hash, at.receive, bytes);
  }
  if (*known != 0) {
    if (*known != hash) entry_complain(entry, "other bits than with the first of these settings");
    return;
  }
  struct oracle_mismatch wrong;
  char text[160];
  *known = hash;
  if (oracle_check(&entry->c, ranks, outputs, world.rank_count, &wrong) == 0) return;
  snprintf(text, sizeof text, "rank %u element %zu is %.17g instead of %.17g (tolerance %g)", wrong.rank,
           wrong.index, wrong.got, wrong.expected, wrong.tolerance);
  entry_complain(entry, text);
}

/* Copies the outputs into the images; then everything must be equal. */
static void batch_check(const struct entry *entries, uint32_t count, size_t bytes) {
  uint64_t *known = results[world.setting->results][entries[0].c.collective][entries[0].c.type];
  for (uint32_t i = 0; i < count; i++) entry_check(&entries[i], &known[i]);
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    for (uint32_t i = 0; i < count; i++) {
      const size_t output = oracle_receive_count(&entries[i].c, rank) * oracle_type_bytes(entries[i].c.type);
      const struct buffers is = entry_buffers(&entries[i], rank, world.send[rank], world.receive[rank]);
      const struct buffers was =
          entry_buffers(&entries[i], rank, world.send_image[rank], world.receive_image[rank]);
      if (output > 0) memcpy(was.receive, is.receive, output);
    }
    if (memcmp(world.send[rank], world.send_image[rank], bytes) != 0)
      entry_complain(&entries[0], "a call of this type wrote into a send buffer");
    if (memcmp(world.receive[rank], world.receive_image[rank], bytes) != 0)
      entry_complain(&entries[0], "a call of this type wrote outside of its outputs");
  }
}

static void batch_test(const struct collective *collective, ncclDataType_t type) {
  struct entry entries[ENTRIES_MAX];
  const uint32_t count =
      world.setting->large ? batch_large(entries, collective, type) : batch_small(entries, collective, type);
  const size_t bytes = entries[count - 1].offset + entry_bytes(&entries[count - 1]) + GAP_BYTES;
  batch_fill(entries, count, bytes);
  batch_run(entries, count);
  batch_check(entries, count, bytes);
}

/* ---- the matrix ---- */

/* Threads start and switch slowly: free threads test a part of the types, a different part for each
 * collective, protocol and rank count. */
static void setting_test(uint32_t rank_count, uint32_t protocol, const struct setting *setting) {
  const uint32_t part = setting->threads && (int)TYPE_STRIDE < (int)ncclNumTypes ? THREADS_STRIDE : 1;
  const uint32_t stride = TYPE_STRIDE * part;
  world_open(rank_count, protocol, setting);
  for (uint32_t i = 0; collective_at(i); i++) {
    uint32_t type = rank_count * 5 % TYPE_STRIDE;
    type += (i + protocol + rank_count) % part * TYPE_STRIDE;
    for (; type < ncclNumTypes; type += stride) batch_test(collective_at(i), (ncclDataType_t)type);
  }
  world_close();
}

static void ranks_test(uint32_t rank_count) {
  world.complaints = 0;
  for (uint32_t protocol = 0; protocol < PROTOCOLS; protocol++) {
    memset(results, 0, sizeof results);
    for (uint32_t i = 0; i < SETTINGS; i++)
      if (GUARDED_RANKS == 0 || rank_count == GUARDED_RANKS || settings[i].threads)
        setting_test(rank_count, protocol, &settings[i]);
  }
  assert_int_equal(world.complaints, 0);
}

static void test_two_ranks(void **state) {
  (void)state;
  ranks_test(2);
}
static void test_three_ranks(void **state) {
  (void)state;
  ranks_test(3);
}
static void test_five_ranks(void **state) {
  (void)state;
  ranks_test(5);
}
static void test_eight_ranks(void **state) {
  (void)state;
  ranks_test(8);
}

static int images_open(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < RANKS_MAX; rank++) {
    world.send_image[rank] = (unsigned char *)malloc(ARENA_BYTES);
    world.receive_image[rank] = (unsigned char *)malloc(ARENA_BYTES);
    if (!world.send_image[rank] || !world.receive_image[rank]) return 1;
  }
  return 0;
}

static int images_close(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < RANKS_MAX; rank++) {
    free(world.send_image[rank]);
    free(world.receive_image[rank]);
  }
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_ranks), cmocka_unit_test(test_three_ranks),
                                     cmocka_unit_test(test_five_ranks), cmocka_unit_test(test_eight_ranks)};
  return cmocka_run_group_tests(tests, images_open, images_close);
}
