/* replay_program.c: a run with drawn settings and calls, in which one rank may leave out calls; then the
 * process kills itself, so that its records stay. test_replay.sh replays them.
 *
 *   replay_program SEED     TUTTI_TRACE says where the file goes
 *
 * Draws devices, nodes and networks, chunks, slots, channels, algorithms, protocols, NCCL_* settings that
 * plans depend on, tuning files, splits, groups and graphs. Prints one line with the settings. Ends by
 * SIGKILL; with status 2 if SEED is missing, 3 if a call fails that should not. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "base/hash.h"
#include "must.h"

#define RANKS_MOST 12
#define ELEMENTS_MOST 30000
#define CALLS_MOST 10

static uint64_t numbers;
static uint32_t draw(uint32_t low, uint32_t high) {
  return low + (uint32_t)(hash_draw(&numbers) % (high - low + 1));
}
static bool one_in(uint32_t count) { return draw(1, count) == 1; }

/* ---- settings ---- */

struct text {
  char bytes[256];
};

static void text_add(struct text *text, const char *name, uint32_t value) {
  const size_t used = strlen(text->bytes);
  snprintf(text->bytes + used, sizeof text->bytes - used, "%s%s=%u", used > 0 ? "," : "", name, value);
}

static void say(const char *name, const char *value) {
  setenv(name, value, 1);
  printf("%s=%s ", name, value);
}

static void say_number(const char *name, uint32_t value) {
  char text[16];
  snprintf(text, sizeof text, "%u", value);
  say(name, text);
}

static void draw_emulator(uint32_t ranks, uint32_t nodes) {
  struct text emu = {""};
  static const uint32_t chunks[] = {16, 64, 100, 512, 1000, 4096, 65536};
  text_add(&emu, "devices", ranks);
  if (nodes > 1) text_add(&emu, "nodes", nodes);
  if (nodes > 1 && one_in(2)) text_add(&emu, "net", 1);
  if (one_in(2)) text_add(&emu, "chunk", chunks[draw(0, 6)]);
  if (one_in(2)) text_add(&emu, "slots", draw(2, 8));
  if (one_in(2)) text_add(&emu, "channels", draw(1, 7));
  if (one_in(4)) text_add(&emu, "lag", draw(1, 100));
  if (one_in(4)) text_add(&emu, "depth", draw(1, 3));
  if (one_in(6)) text_add(&emu, "direct", 0);
  if (one_in(6)) text_add(&emu, "flag_bits", 8);
  say("TUTTI_EMU", emu.bytes);
}

static void draw_settings(void) {
  static const char *const algos[] = {"Ring",         "^Tree",    "Direct,Ring",
                                      "TwoShot,Ring", "PAT,Ring", "Tree,Ring"};
  static const char *const protos[] = {"LL", "LL128", "Simple", "^LL128", "^Simple"};
  if (one_in(2)) say("NCCL_ALGO", algos[draw(0, 5)]);
  if (one_in(2)) say("NCCL_PROTO", protos[draw(0, 4)]);
  if (one_in(5)) say_number("NCCL_BUFFSIZE", draw(1, 64) * 4096);
  if (one_in(5)) say_number("NCCL_P2P_LL_THRESHOLD", draw(0, 40000));
  if (one_in(5)) say_number("NCCL_MIN_NCHANNELS", draw(1, 4));
  if (one_in(5)) say_number("NCCL_MAX_P2P_NCHANNELS", draw(1, 4));
  if (one_in(5)) say_number("NCCL_NCHANNELS_PER_NET_PEER", draw(1, 3));
  if (one_in(5)) say_number("NCCL_P2P_NET_CHUNKSIZE", draw(1, 16) * 1024);
  if (one_in(6)) say_number("NCCL_NTHREADS", 64u << draw(0, 3));
  if (one_in(6)) say_number("NCCL_CROSS_NIC", draw(0, 2));
  if (one_in(6)) say("NCCL_THREAD_THRESHOLDS", "64 -2 512 128");
}

/* Rules for all_reduce; the file is read when communicators are made. */
static void draw_rules(const char *path) {
  static const char *const rules =
      "all_reduce 1 8K algo=Ring proto=LL channels=1\n"
      "all_reduce 8K max algo=Ring proto=Simple channels=2\n";
  FILE *file = one_in(4) ? fopen(path, "w") : NULL;
  if (file == NULL) return;
  fputs(rules, file);
  fclose(file);
  setenv("TUTTI_TUNE_FILE", path, 1);
  printf("rules ");
}

/* ---- calls ---- */

static ncclComm_t comms[RANKS_MOST], parts[RANKS_MOST];
static cudaStream_t streams[RANKS_MOST];
static uint8_t *in[RANKS_MOST], *out[RANKS_MOST];
static int ranks, absent, absent_from; /* from this call on, the rank calls nothing */

struct call {
  uint32_t kind, count, root;
  ncclDataType_t type;
};

static void call_make(const struct call *call, int rank, ncclComm_t comm, int size) {
  const int root = (int)call->root % size;
  cudaStream_t stream = streams[rank];
  int own = 0;
  MUST(ncclCommUserRank(comm, &own));
  switch (call->kind) {
    case 0:
    case 1: MUST(ncclAllReduce(in[rank], out[rank], call->count, call->type, ncclSum, comm, stream)); break;
    case 2: MUST(ncclBroadcast(in[rank], out[rank], call->count, call->type, root, comm, stream)); break;
    case 3:
      MUST(ncclReduce(in[rank], out[rank], call->count, call->type, ncclMax, root, comm, stream));
      break;
    case 4: MUST(ncclAllGather(in[rank], out[rank], call->count, call->type, comm, stream)); break;
    case 5:
      MUST(ncclReduceScatter(in[rank], out[rank], call->count, call->type, ncclAvg, comm, stream));
      break;
    case 6: MUST(ncclAlltoAll(in[rank], out[rank], call->count, call->type, comm, stream)); break;
    case 7: MUST(ncclGather(in[rank], out[rank], call->count, call->type, root, comm, stream)); break;
    default:
      MUST(ncclSend(in[rank], call->count, call->type, (own + 1) % size, comm, stream));
      MUST(ncclRecv(out[rank], call->count, call->type, (own + size - 1) % size, comm, stream));
      break;
  }
}

static struct call call_draw(void) {
  static const ncclDataType_t types[] = {ncclInt8, ncclFloat16, ncclFloat, ncclDouble};
  static const uint32_t scales[] = {16, 1000, 8000, ELEMENTS_MOST};
  const struct call call = {draw(0, 8), draw(1, scales[draw(0, 3)]), draw(0, 11), types[draw(0, 3)]};
  return call;
}

/* One group of one or more calls of every rank; `split`: on the communicators of half of the ranks. */
static void group_make(const struct call *calls, uint32_t count, int number, bool split) {
  MUST(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++) {
    if (rank == absent && number >= absent_from) continue;
    const int size = split ? (ranks + (rank % 2 == 0)) / 2 : ranks;
    for (uint32_t i = 0; i < count; i++) call_make(&calls[i], rank, split ? parts[rank] : comms[rank], size);
  }
  MUST(ncclGroupEnd());
}

static void groups_make(void) {
  const bool splits = ranks >= 4 && one_in(3);
  if (splits) {
    MUST(ncclGroupStart());
    for (int rank = 0; rank < ranks; rank++)
      MUST(ncclCommSplit(comms[rank], rank % 2, rank, &parts[rank], NULL));
    MUST(ncclGroupEnd());
  }
  const int groups = (int)draw(1, 5);
  absent = (int)draw(0, (uint32_t)ranks - 1);
  absent_from = (int)draw(0, (uint32_t)groups);
  printf("%d groups, rank %d absent from %d%s\n", groups, absent, absent_from, splits ? ", split" : "");
  fflush(stdout);
  for (int i = 0; i < groups; i++) {
    struct call calls[3];
    const uint32_t count = one_in(2) ? 1 : draw(1, 3);
    for (uint32_t k = 0; k < count; k++) calls[k] = call_draw();
    group_make(calls, count, i, splits && one_in(2));
  }
}

/* The calls of each rank as one graph, which the absent rank launches once less often. */
static void graphs_make(void) {
  cudaGraph_t captured[RANKS_MOST];
  cudaGraphExec_t graphs[RANKS_MOST];
  absent = (int)draw(0, (uint32_t)ranks - 1);
  absent_from = 1000;
  const int launches = (int)draw(1, 3);
  printf("a graph launched %d times, once less by rank %d\n", launches, absent);
  fflush(stdout);
  for (int rank = 0; rank < ranks; rank++)
    MUST(cudaStreamBeginCapture(streams[rank], cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 2; i++) {
    const struct call call = call_draw();
    group_make(&call, 1, i, false);
  }
  for (int rank = 0; rank < ranks; rank++) {
    MUST(cudaStreamEndCapture(streams[rank], &captured[rank]));
    MUST(cudaGraphInstantiate(&graphs[rank], captured[rank], 0));
  }
  for (int i = 0; i < launches; i++)
    for (int rank = 0; rank < ranks; rank++)
      if (rank != absent || i + 1 < launches) MUST(cudaGraphLaunch(graphs[rank], streams[rank]));
}

int main(int argc, char **argv) {
  char rules[512];
  if (argc != 2) return 2;
  numbers = strtoull(argv[1], NULL, 10);
  numbers = hash_draw(&numbers); /* neighbouring seeds give different runs */
  setenv("TUTTI_SEED", argv[1], 1);
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  setenv("NCCL_DEBUG", "NONE", 0);
  const uint32_t nodes = one_in(2) ? 1 : draw(2, 4);
  ranks = (int)(nodes == 1 ? draw(2, 9) : nodes * draw(1, RANKS_MOST / nodes));
  draw_emulator((uint32_t)ranks, nodes);
  draw_settings();
  snprintf(rules, sizeof rules, "%s.rules", getenv("TUTTI_TRACE") != NULL ? getenv("TUTTI_TRACE") : "replay");
  draw_rules(rules);
  MUST(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    MUST(cudaSetDevice(rank));
    MUST(cudaStreamCreate(&streams[rank]));
    MUST(cudaMalloc((void **)&in[rank], ELEMENTS_MOST * 8 * RANKS_MOST));
    MUST(cudaMalloc((void **)&out[rank], ELEMENTS_MOST * 8 * RANKS_MOST));
  }
  if (one_in(6)) graphs_make();
  else groups_make();
  for (int rank = 0; rank < ranks; rank++)
    if (cudaStreamSynchronize(streams[rank]) != cudaSuccess) break; /* it hangs */
  return kill(getpid(), SIGKILL);
}
