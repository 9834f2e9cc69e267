/* comm_init.c: how long ncclCommInitRank takes when each rank is a process with a GPU of its own, and how
 * much GPU memory a communicator takes, used once by an all-reduce. Names CUDA and NCCL alone, so that it
 * runs with either library, and with the emulator.
 *
 *     cc -O2 comm_init.c -I.../include -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -lnccl
 *     comm_init RANKS [COMMUNICATORS]
 *
 * Prints a line: the first communicator of the processes in ms, the median of the later ones, the MiB of the
 * first and of each later one; of the slowest or largest rank. All communicators stay until the end. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MOST = 16, COMMS_MOST = 32, COUNT = 1 << 18 };

/* What the processes share. */
struct board {
  atomic_int arrived, failed;
  ncclUniqueId ids[COMMS_MOST];
  double init_ms[COMMS_MOST][RANKS_MOST];
  size_t used_bytes[COMMS_MOST][RANKS_MOST];
};

static struct board *board;
static int rank_count, comm_count = 5;

#define NEED(call)                                                                                        \
  do {                                                                                                    \
    const int status_ = (int)(call);                                                                      \
    if (status_ != 0) {                                                                                   \
      fprintf(stderr, "comm_init.c:%d: %s: %d (%s)\n", __LINE__, #call, status_, ncclGetLastError(NULL)); \
      atomic_store(&board->failed, 1);                                                                    \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* A barrier of all processes; ends the process if another has failed. */
static void meet(void) {
  static int round;
  const struct timespec nap = {0, 20000};
  round += 1;
  atomic_fetch_add(&board->arrived, 1);
  while (atomic_load(&board->arrived) < round * rank_count) {
    if (atomic_load(&board->failed)) exit(1);
    nanosleep(&nap, NULL);
  }
}

static size_t free_bytes(void) {
  size_t available = 0, total = 0;
  NEED(cudaDeviceSynchronize());
  NEED(cudaMemGetInfo(&available, &total));
  return available;
}

static void rank_run(int rank) {
  ncclComm_t comms[COMMS_MOST];
  cudaStream_t stream;
  float *data = NULL;
  NEED(cudaSetDevice(rank));
  NEED(cudaMalloc((void **)&data, COUNT * sizeof *data));
  NEED(cudaMemset(data, 0, COUNT * sizeof *data));
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < comm_count; i++) {
    const size_t before = free_bytes();
    if (rank == 0) NEED(ncclGetUniqueId(&board->ids[i]));
    meet();
    const double begin = now_ms();
    NEED(ncclCommInitRank(&comms[i], rank_count, board->ids[i], rank));
    board->init_ms[i][rank] = now_ms() - begin;
    NEED(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comms[i], stream));
    NEED(cudaStreamSynchronize(stream));
    const size_t after = free_bytes();
    board->used_bytes[i][rank] = before > after ? before - after : 0;
    meet();
  }
  for (int i = 0; i < comm_count; i++) NEED(ncclCommDestroy(comms[i]));
  exit(0);
}

static double slowest_ms(int comm) {
  double most = 0;
  for (int rank = 0; rank < rank_count; rank++)
    most = board->init_ms[comm][rank] > most ? board->init_ms[comm][rank] : most;
  return most;
}

static double largest_mib(int comm) {
  size_t most = 0;
  for (int rank = 0; rank < rank_count; rank++)
    most = board->used_bytes[comm][rank] > most ? board->used_bytes[comm][rank] : most;
  return (double)most / (1 << 20);
}

static int ascending(const void *a, const void *b) {
  const double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

static void report(void) {
  double times[COMMS_MOST], sum_mib = 0;
  const int later = comm_count - 1;
  for (int i = 0; i < later; i++) {
    times[i] = slowest_ms(i + 1);
    sum_mib += largest_mib(i + 1);
  }
  qsort(times, (size_t)later, sizeof times[0], ascending);
  printf("init: %d processes: first %.1f ms, later %.1f ms; first %.1f MiB, later %.1f MiB\n", rank_count,
         slowest_ms(0), times[later / 2], largest_mib(0), sum_mib / later);
}

int main(int argc, char **argv) {
  int failures = 0, status = 0;
  rank_count = argc > 1 ? atoi(argv[1]) : 2;
  if (argc > 2) comm_count = atoi(argv[2]);
  if (rank_count < 1 || rank_count > RANKS_MOST || comm_count < 2 || comm_count > COMMS_MOST) {
    fprintf(stderr, "comm_init RANKS [COMMUNICATORS]: 1 to %d, and 2 to %d\n", RANKS_MOST, COMMS_MOST);
    return 2;
  }
  board =
      (struct board *)mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED) return 3;
  for (int rank = 0; rank < rank_count; rank++) {
    const pid_t child = fork();
    if (child == 0) rank_run(rank);
    if (child < 0) return 3;
  }
  while (wait(&status) > 0) {
    if (status == 0) continue;
    failures += 1;
    atomic_store(&board->failed, 1);
  }
  if (failures == 0) report();
  return failures > 0;
}
