/* run_program.c: programs for test_run.sh, by their first argument: right ones, and wrong ones that fail with
 * some seeds, with some settings, or always. Linked with the emulator. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include "nccl.h"

enum { RANKS = 3, COUNT = 4096 };

#define MUST(call)                                              \
  do {                                                          \
    if ((call) != 0) {                                          \
      fprintf(stderr, "line %d: %s failed\n", __LINE__, #call); \
      exit(1);                                                  \
    }                                                           \
  } while (0)

static ncclComm_t comms[RANKS];
static cudaStream_t streams[RANKS], second; /* rank 0 receives on two streams */
static float *data[RANKS], *other;

static void begin(void) {
  MUST(ncclCommInitAll(comms, RANKS, NULL));
  for (int rank = 0; rank < RANKS; rank++) {
    MUST(cudaSetDevice(rank));
    MUST(cudaStreamCreate(&streams[rank]));
    MUST(cudaMalloc((void **)&data[rank], COUNT * sizeof(float)));
    MUST(cudaMemset(data[rank], 0, COUNT * sizeof(float)));
  }
  MUST(cudaSetDevice(0));
  MUST(cudaStreamCreate(&second));
  MUST(cudaMalloc((void **)&other, COUNT * sizeof(float)));
}

static void end(void) {
  for (int rank = 0; rank < RANKS; rank++) MUST(cudaStreamSynchronize(streams[rank]));
  MUST(cudaStreamSynchronize(second));
  for (int rank = 0; rank < RANKS; rank++) MUST(ncclCommDestroy(comms[rank]));
}

static void reduce(void) {
  MUST(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++)
    MUST(ncclAllReduce(data[rank], data[rank], COUNT, ncclFloat, ncclSum, comms[rank], streams[rank]));
  MUST(ncclGroupEnd());
}

/* A message race: ranks 1 and 2 each send to rank 0, which uses what comes first. The wrong program takes it
 * for granted that this is rank 1's message. */
static int race(int right) {
  begin();
  ncclComm_t pair[2];
  const int devices[2] = {0, 2};
  MUST(ncclCommInitAll(pair, 2, devices));
  MUST(ncclGroupStart());
  MUST(ncclRecv(data[0], COUNT, ncclFloat, 1, comms[0], streams[0]));
  MUST(ncclSend(data[1], COUNT, ncclFloat, 0, comms[1], streams[1]));
  MUST(ncclRecv(other, COUNT, ncclFloat, 1, pair[0], second));
  MUST(ncclSend(data[2], COUNT, ncclFloat, 0, pair[1], streams[2]));
  MUST(ncclGroupEnd());
  cudaError_t first, last;
  do {
    first = cudaStreamQuery(streams[0]);
    last = cudaStreamQuery(second);
  } while (first == cudaErrorNotReady && last == cudaErrorNotReady);
  const int wrong = !right && first == cudaErrorNotReady;
  end();
  for (int i = 0; i < 2; i++) MUST(ncclCommDestroy(pair[i]));
  puts(wrong ? "rank 2 was first" : "ok");
  return wrong;
}

/* Fails only where these settings are, which stand for a bug that they make visible. */
static int picky(const char *wanted) {
  const char *emu = getenv("TUTTI_EMU");
  begin();
  reduce();
  end();
  const int found = emu != NULL && strstr(emu, wanted) != NULL;
  puts(found ? "NCCL WARN the picky program met its setting" : "ok");
  return found ? 3 : 0;
}

/* Fails with seed 3, late, and with seed 5, at once. */
static int late(void) {
  const char *seed = getenv("TUTTI_SEED");
  begin();
  reduce();
  end();
  if (strcmp(seed, "3") == 0) usleep(300000);
  return strcmp(seed, "3") == 0 || strcmp(seed, "5") == 0;
}

static int noisy(long megabytes) {
  static char line[1 << 20];
  begin();
  reduce();
  end();
  memset(line, 'x', sizeof line);
  line[sizeof line - 1] = '\n';
  for (long i = 0; i < megabytes; i++) fwrite(line, 1, sizeof line, stdout);
  puts("the last line <&> \"\x01\xff\xc3\xa9\"");
  return 5;
}

static int reads(void) {
  begin();
  reduce();
  end();
  return getchar() == EOF ? 0 : 1;
}

/* Leaves a process behind, in a session of its own, that holds the outputs open. */
static int leaves(void) {
  begin();
  reduce();
  end();
  if (fork() == 0) {
    setsid();
    for (;;) pause();
  }
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "nothing") == 0) return 0;
  if (strcmp(what, "early") == 0) return 4;
  if (strcmp(what, "race") == 0) return race(0);
  if (strcmp(what, "right") == 0) return race(1);
  if (strcmp(what, "late") == 0) return late();
  if (strcmp(what, "picky") == 0) return picky(argv[2]);
  if (strcmp(what, "noisy") == 0) return noisy(atol(argv[2]));
  if (strcmp(what, "reads") == 0) return reads();
  if (strcmp(what, "leaves") == 0) return leaves();
  if (strcmp(what, "sleeps") != 0) return 2;
  begin();
  reduce();
  for (;;) pause();
}
