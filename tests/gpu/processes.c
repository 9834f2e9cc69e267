/* processes.c: one process per rank. The program starts itself once for each rank. The ranks run every
 * collective with sizes of each protocol, check the results, split, call with different counts, abort, lose
 * one process, and go on with the rest.
 *
 *   processes [RANKS] [timed]
 *
 * With `timed` it runs longer operations, and prints times and memory of init and some operations.
 * PROCESSES_ONE_VISIBLE=1: each process sees only its own device, as with many launchers. PROCESSES_FIRST=1:
 * only the phases without errors, so that another library can be measured too. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "need.h"

enum { COUNTS = 5, POLLS_MAX = 20000, PATH_BYTES_MAX = 256 };
static const size_t counts[COUNTS] = {1, 1000, 30000, 300001, 3000000};

static struct {
  int rank, size, round;
  const char *folder;
  int timed;
  cudaStream_t stream;
  int *in, *out, *host;
  size_t capacity; /* elements of each */
} self;

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* ---- ids in files ---- */

static void id_path(char *path, const char *suffix) {
  snprintf(path, PATH_BYTES_MAX, "%s/id.%d%s", self.folder, self.round, suffix);
}

static ncclUniqueId id_share(int rank) {
  char path[PATH_BYTES_MAX], fresh[PATH_BYTES_MAX];
  ncclUniqueId id;
  self.round += 1;
  id_path(path, "");
  id_path(fresh, ".new");
  if (rank == 0) {
    NEED(ncclGetUniqueId(&id));
    FILE *file = fopen(fresh, "wb");
    NEED(file == NULL || fwrite(&id, sizeof id, 1, file) != 1);
    NEED(fclose(file));
    NEED(rename(fresh, path));
    return id;
  }
  FILE *file = NULL;
  for (int poll = 0; poll < POLLS_MAX && file == NULL; poll++) {
    file = fopen(path, "rb");
    if (file == NULL) usleep(1000);
  }
  NEED(file == NULL || fread(&id, sizeof id, 1, file) != 1);
  fclose(file);
  return id;
}

static ncclComm_t comm_new(int rank, int size) {
  ncclComm_t comm;
  const ncclUniqueId id = id_share(rank);
  NEED(ncclCommInitRank(&comm, size, id, rank));
  return comm;
}

/* Waits until all ranks get here; through files, because the communicator is about to break. */
static void meet(int size) {
  char path[PATH_BYTES_MAX], suffix[32];
  for (int rank = 0; rank < size; rank++) {
    FILE *file = NULL;
    snprintf(suffix, sizeof suffix, ".here.%d", rank);
    id_path(path, suffix);
    for (int poll = 0; poll < POLLS_MAX && file == NULL; poll++) {
      file = fopen(path, rank == self.rank ? "wb" : "rb");
      if (file == NULL) usleep(1000);
    }
    NEED(file == NULL);
    fclose(file);
  }
}

/* ---- collectives ---- */

static int value(int rank, size_t i) { return (int)(i % 1009) * 31 + rank * 7 + self.round; }

static void fill(size_t count) {
  for (size_t i = 0; i < count; i++) self.host[i] = value(self.rank, i);
  NEED(cudaMemcpyAsync(self.in, self.host, count * sizeof(int), cudaMemcpyHostToDevice, self.stream));
  NEED(cudaMemsetAsync(self.out, 0xee, self.capacity * sizeof(int), self.stream));
  NEED(cudaStreamSynchronize(self.stream));
}

static void fetch(size_t count) {
  NEED(cudaMemcpyAsync(self.host, self.out, count * sizeof(int), cudaMemcpyDeviceToHost, self.stream));
  NEED(cudaStreamSynchronize(self.stream));
}

static void expect(const char *what, size_t count, size_t i, int wanted) {
  if (self.host[i] == wanted) return;
  fprintf(stderr, "rank %d: %s of %zu: element %zu is %d, not %d\n", self.rank, what, count, i, self.host[i],
          wanted);
  exit(1);
}

static int sum_at(size_t i) {
  int sum = 0;
  for (int rank = 0; rank < self.size; rank++) sum += value(rank, i);
  return sum;
}

static void all_reduce(ncclComm_t comm, size_t count) {
  fill(count);
  NEED(ncclAllReduce(self.in, self.out, count, ncclInt32, ncclSum, comm, self.stream));
  fetch(count);
  for (size_t i = 0; i < count; i++) expect("all-reduce", count, i, sum_at(i));
}

static void all_gather(ncclComm_t comm, size_t count) {
  fill(count);
  NEED(ncclAllGather(self.in, self.out, count, ncclInt32, comm, self.stream));
  fetch(count * (size_t)self.size);
  for (int rank = 0; rank < self.size; rank++)
    for (size_t i = 0; i < count; i++) expect("all-gather", count, (size_t)rank * count + i, value(rank, i));
}

static void reduce_scatter(ncclComm_t comm, size_t count) {
  const size_t begin = (size_t)self.rank * count;
  fill(count * (size_t)self.size);
  NEED(ncclReduceScatter(self.in, self.out, count, ncclInt32, ncclSum, comm, self.stream));
  fetch(count);
  for (size_t i = 0; i < count; i++) expect("reduce-scatter", count, i, sum_at(begin + i));
}

static void broadcast(ncclComm_t comm, size_t count, int root) {
  fill(count);
  NEED(ncclBroadcast(self.in, self.out, count, ncclInt32, root, comm, self.stream));
  fetch(count);
  for (size_t i = 0; i < count; i++) expect("broadcast", count, i, value(root, i));
}

static void reduce(ncclComm_t comm, size_t count, int root) {
  fill(count);
  NEED(ncclReduce(self.in, self.out, count, ncclInt32, ncclSum, root, comm, self.stream));
  fetch(count);
  for (size_t i = 0; self.rank == root && i < count; i++) expect("reduce", count, i, sum_at(i));
}

static void exchange(ncclComm_t comm, size_t count) {
  fill(count * (size_t)self.size);
  NEED(ncclGroupStart());
  for (int peer = 0; peer < self.size; peer++) {
    const size_t begin = (size_t)peer * count;
    NEED(ncclSend(self.in + begin, count, ncclInt32, peer, comm, self.stream));
    NEED(ncclRecv(self.out + begin, count, ncclInt32, peer, comm, self.stream));
  }
  NEED(ncclGroupEnd());
  fetch(count * (size_t)self.size);
  for (int peer = 0; peer < self.size; peer++)
    for (size_t i = 0; i < count; i++)
      expect("send and receive", count, (size_t)peer * count + i, value(peer, (size_t)self.rank * count + i));
}

static void all_ops(ncclComm_t comm) {
  const int rows = self.timed ? COUNTS : COUNTS - 1; /* the longest takes the emulator long */
  for (int c = 0; c < rows; c++) {
    all_reduce(comm, counts[c]);
    all_gather(comm, counts[c]);
    reduce_scatter(comm, counts[c]);
    broadcast(comm, counts[c], self.size - 1);
    reduce(comm, counts[c], 0);
    exchange(comm, counts[c]);
  }
}

/* ---- times and memory ---- */

static double used_mib(void) {
  size_t free_bytes = 0, total_bytes = 0;
  NEED(cudaMemGetInfo(&free_bytes, &total_bytes));
  return (double)(total_bytes - free_bytes) / (1 << 20);
}

static void time_one(ncclComm_t comm, size_t bytes, const char *what) {
  const int turns = bytes > 1 << 24 ? 10 : 200;
  const size_t count = bytes / sizeof(int) > 0 ? bytes / sizeof(int) : 1;
  double begin_us = 0;
  for (int turn = -10; turn < turns; turn++) {
    if (turn == 0) {
      NEED(cudaStreamSynchronize(self.stream));
      begin_us = now_us();
    }
    if (what[0] == 'r') {
      NEED(ncclAllReduce(self.in, self.out, count, ncclInt32, ncclSum, comm, self.stream));
      continue;
    }
    NEED(ncclGroupStart());
    NEED(ncclSend(self.in, count, ncclInt32, (self.rank + 1) % self.size, comm, self.stream));
    NEED(ncclRecv(self.out, count, ncclInt32, (self.rank + self.size - 1) % self.size, comm, self.stream));
    NEED(ncclGroupEnd());
  }
  NEED(cudaStreamSynchronize(self.stream));
  const double us = (now_us() - begin_us) / turns;
  const double factor = what[0] == 'r' ? 2.0 * (self.size - 1) / self.size : 1;
  if (self.rank == 0)
    printf("  %s %zu bytes: %.1f us, busbw %.1f GB/s\n", what, bytes, us, (double)bytes * factor / us * 1e-3);
}

static void times(ncclComm_t comm) {
  static const size_t sizes[] = {8, 32 << 10, 1 << 20, 16 << 20, 256 << 20};
  if (!self.timed) return;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) time_one(comm, sizes[i], "reduce");
  for (size_t i = 1; i < sizeof sizes / sizeof *sizes; i++) time_one(comm, sizes[i], "sendrecv");
}

/* ---- phases ---- */

static void say(const char *phase) {
  if (self.rank != 0) return;
  printf("%s\n", phase);
  fflush(stdout);
}

static void phase_all(void) {
  const double before_mib = used_mib(), begin_us = now_us();
  ncclComm_t comm = comm_new(self.rank, self.size), half = NULL;
  const double made_us = now_us(), made_mib = used_mib();
  all_ops(comm);
  if (self.timed && self.rank == 0)
    printf("  init %.1f ms and %.0f MiB, first operations %.1f ms, %.0f MiB behind them\n",
           (made_us - begin_us) * 1e-3, made_mib - before_mib, (now_us() - made_us) * 1e-3,
           used_mib() - before_mib);
  times(comm);
  NEED(ncclCommSplit(comm, self.rank % 2, self.rank, &half, NULL));
  const int rank = self.rank, size = self.size;
  NEED(ncclAllReduce(self.in, self.out, 1000, ncclInt32, ncclSum, half, self.stream));
  NEED(cudaStreamSynchronize(self.stream));
  NEED(rank != self.rank || size != self.size);
  NEED(ncclCommDestroy(half));
  all_reduce(comm, 1000);
  NEED(ncclCommDestroy(comm));
  say("collectives agree");
}

/* Frees outputs and allocates others at their addresses. */
static void phase_outputs(void) {
  const size_t count = counts[self.timed ? COUNTS - 1 : COUNTS - 2];
  int *const before = self.out;
  ncclComm_t comm = comm_new(self.rank, self.size);
  for (int turn = 0; turn < 6; turn++) {
    const size_t shift = (size_t)turn * 3 + (size_t)self.rank;
    void *memory = NULL;
    NEED(cudaMalloc(&memory, (self.capacity + 64) * sizeof(int)));
    self.out = (int *)memory + shift;
    for (int second = 0; second < 3; second++) {
      all_gather(comm, count / 8);
      broadcast(comm, count, turn % self.size);
      exchange(comm, count / 8);
      all_reduce(comm, count);
    }
    NEED(cudaFree(memory));
  }
  const double freed_mib = used_mib();
  if (self.timed) sleep(3);
  if (self.timed && self.rank == 0)
    printf("  %.0f MiB in use when the last output was freed, %.0f after 3 s\n", freed_mib, used_mib());
  NEED(ncclCommDestroy(comm));
  self.out = before;
  say("outputs freed and replaced");
}

/* Memory that others may still use is reused only after they have left. */
static void phase_repeat(void) {
  for (int turn = 0; turn < 4; turn++) {
    ncclComm_t comm = comm_new(self.rank, self.size);
    all_reduce(comm, 1000);
    exchange(comm, 3000);
    all_reduce(comm, 300000);
    NEED(ncclCommDestroy(comm));
  }
  if (self.timed && self.rank == 0) printf("  %.0f MiB in use\n", used_mib());
  say("communicators destroyed and created again");
}

static ncclResult_t poll_error(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  for (int poll = 0; poll < POLLS_MAX && state == ncclSuccess; poll++) {
    cudaStreamQuery(self.stream); /* an emulated GPU makes progress when queried */
    NEED(ncclCommGetAsyncError(comm, &state));
    if (state == ncclSuccess) usleep(1000);
  }
  return state;
}

static void stream_renew(void) {
  cudaStreamSynchronize(self.stream); /* the result after aborted kernels depends on the backend */
  cudaGetLastError();
}

static void phase_mismatch(void) {
  ncclComm_t comm = comm_new(self.rank, self.size);
  all_reduce(comm, 1000);
  meet(self.size);
  const double begin_us = now_us();
  const ncclResult_t called =
      ncclAllReduce(self.in, self.out, self.rank == 1 ? 500 : 1000, ncclInt32, ncclSum, comm, self.stream);
  NEED(called != ncclSuccess && called != ncclInvalidUsage);
  const ncclResult_t state = poll_error(comm);
  if (state != ncclInvalidUsage && state != ncclRemoteError) {
    fprintf(stderr, "rank %d: a mismatch is told as %d (%s)\n", self.rank, state, ncclGetLastError(NULL));
    exit(1);
  }
  if (self.timed)
    printf("  rank %d heard of the mismatch after %.0f ms: %d, %s\n", self.rank, (now_us() - begin_us) * 1e-3,
           state, ncclGetLastError(comm));
  NEED(ncclCommAbort(comm));
  stream_renew();
  say("a mismatch is reported to all ranks");
}

/* A child process that ends changes nothing. Then rank 0 gives up while the others wait for it. */
static void phase_abort(void) {
  ncclComm_t comm = comm_new(self.rank, self.size);
  int status = 0;
  all_reduce(comm, 30000);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  NEED(child < 0 || waitpid(child, &status, 0) != child || status != 0);
  all_reduce(comm, 30000);
  meet(self.size);
  if (self.rank != 0) {
    const ncclResult_t called =
        ncclAllReduce(self.in, self.out, 30000, ncclInt32, ncclSum, comm, self.stream);
    NEED(called != ncclSuccess && called != ncclRemoteError);
    NEED(poll_error(comm) != ncclRemoteError);
  }
  NEED(ncclCommAbort(comm));
  stream_renew();
  say("an abort is reported to all ranks");
}

/* The last rank is killed while the others wait for it; they go on without it. */
static void phase_kill(void) {
  ncclComm_t comm = comm_new(self.rank, self.size);
  all_reduce(comm, 30000);
  meet(self.size);
  if (self.rank == self.size - 1) kill(getpid(), SIGKILL);
  const double begin_us = now_us();
  const ncclResult_t called = ncclAllReduce(self.in, self.out, 30000, ncclInt32, ncclSum, comm, self.stream);
  NEED(called != ncclSuccess && called != ncclRemoteError); /* the loss may have been detected already */
  NEED(poll_error(comm) != ncclRemoteError);
  if (self.timed && self.rank == 0)
    printf("  a death is noticed after %.0f ms\n", (now_us() - begin_us) * 1e-3);
  NEED(ncclCommAbort(comm));
  stream_renew();
  self.size -= 1;
  comm = comm_new(self.rank, self.size);
  all_ops(comm);
  NEED(ncclCommDestroy(comm));
  say("the other ranks continue");
}

static int run_rank(void) {
  need_device(self.rank);
  NEED(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking));
  self.capacity = counts[COUNTS - 1] * (size_t)self.size;
  if (self.timed && self.capacity < (256u << 20) / sizeof(int)) self.capacity = (256u << 20) / sizeof(int);
  self.host = (int *)malloc(self.capacity * sizeof(int));
  NEED(self.host == NULL);
  NEED(cudaMalloc((void **)&self.in, self.capacity * sizeof(int)));
  NEED(cudaMalloc((void **)&self.out, self.capacity * sizeof(int)));
  phase_all();
  if (getenv("PROCESSES_FIRST") != NULL) return 0;
  phase_repeat();
  phase_outputs();
  phase_mismatch();
  phase_abort();
  if (self.size > 2) phase_kill();
  free(self.host);
  return 0;
}

/* ---- the parent process ---- */

static pid_t start(char *program, int rank) {
  char rank_text[16], size_text[16], timed_text[16];
  snprintf(rank_text, sizeof rank_text, "%d", rank);
  snprintf(size_text, sizeof size_text, "%d", self.size);
  snprintf(timed_text, sizeof timed_text, "%d", self.timed);
  char *const arguments[] = {program, (char *)"--rank", rank_text, size_text, (char *)self.folder, timed_text,
                             NULL};
  fflush(stdout);
  const pid_t child = fork();
  if (child != 0) return child;
  if (getenv("PROCESSES_ONE_VISIBLE") != NULL) setenv("CUDA_VISIBLE_DEVICES", rank_text, 1);
  execv("/proc/self/exe", arguments);
  _exit(127);
}

static void folder_remove(void) {
  char path[PATH_BYTES_MAX];
  for (self.round = 0; self.round < 20; self.round++) {
    id_path(path, "");
    remove(path);
    id_path(path, ".new");
    remove(path);
    for (int rank = 0; rank < self.size; rank++) {
      char suffix[32];
      snprintf(suffix, sizeof suffix, ".here.%d", rank);
      id_path(path, suffix);
      remove(path);
    }
  }
  remove(self.folder);
}

/* The last rank is expected to end by SIGKILL, unless PROCESSES_FIRST is set. */
static int wait_all(pid_t *children) {
  int failed = 0;
  for (int ended = 0; ended < self.size; ended++) {
    int status = 0;
    const pid_t child = wait(&status);
    const int meant = self.size > 2 && getenv("PROCESSES_FIRST") == NULL && child == children[self.size - 1];
    const int good = meant ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                           : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (good || failed) continue;
    failed = 1;
    for (int rank = 0; rank < self.size; rank++) kill(children[rank], SIGTERM);
  }
  return failed;
}

int main(int argc, char **argv) {
  char folder[] = "/tmp/processes.XXXXXX";
  pid_t children[RANKS_MAX];
  if (argc == 6 && strcmp(argv[1], "--rank") == 0) {
    self.rank = atoi(argv[2]);
    self.size = atoi(argv[3]);
    self.folder = argv[4];
    self.timed = atoi(argv[5]);
    return run_rank();
  }
  self.size = argc > 1 ? atoi(argv[1]) : need_ranks();
  self.timed = argc > 2;
  if (self.size < 2 || self.size > RANKS_MAX) {
    puts("processes: needs two devices: ok");
    return 0;
  }
  self.folder = mkdtemp(folder);
  NEED(self.folder == NULL);
  for (int rank = 0; rank < self.size; rank++) children[rank] = start(argv[0], rank);
  const int failed = wait_all(children);
  folder_remove();
  printf("processes: %d ranks in as many processes: %s\n", self.size, failed ? "FAILED" : "ok");
  return failed;
}
