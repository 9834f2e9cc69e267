/* rank_program.c: some ranks of a communicator in one process, using only the public API, for tests that
 * start several such processes, perhaps on several hosts, and inject faults: every result is compared, every
 * error is printed with its sentence, and survivors may continue without lost ranks.
 *
 *   rank_program --rank R --size N (--id FILE | --comm-id HOST:PORT) [OPTION VALUE...]
 *
 *   --here M             ranks R to R+M-1 are threads of this process (default 1)
 *   --main               the rank is the main thread, and no other thread calls the library
 *   --threads            all ranks are: the same as --rank 0 --here N
 *   --id FILE            rank 0 writes the unique id there, the others wait for it
 *   --comm-id HOST:PORT  NCCL_COMM_ID; without either there must be no other process
 *   --launched           rank, size and ids come from a launcher
 *   --ops LIST           of all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv; default:
 *                        all
 *   --bytes B            of a rank's share of each operation (default 4096)
 *   --iterations K       of the list (default 3)
 *   --poll               polls errors and the stream alternately, instead of waiting for the stream
 *   --query              polls only the stream until it has ended, and then the communicator
 *   --pace MS            pause before each iteration
 *   --hold K,FILE        waits until FILE exists before iteration K, or after the last one if K is
 * --iterations
 *   --seed S             of the data
 *   --deadline SECONDS   the process ends itself with status 124 (default 60)
 *   --class N            config.trafficClass
 *   --rounds N           makes, uses and destroys N communicators, one after another (default 1); the id's
 *                        file of a later round is FILE.1, FILE.2, ...
 *   --abort-at R,K       rank R aborts its communicator before iteration K
 *   --leave-at R,K       rank R destroys its communicator before iteration K, as if it had finished
 *   --kill-at K          this process kills itself before iteration K
 *   --late-news FILE     and a child of it keeps its connections open until FILE exists
 *   --split M            at the end, an all-reduce among the ranks that are equal modulo M
 *   --split-busy         the split begins while an all-reduce of all ranks runs
 *   --shrink-after-error LIST   ranks that survivors of an error exclude; an all-reduce follows
 *
 * Prints one line per phase and rank, `rank R PHASE ok ...` or `rank R PHASE error CODE NAME: SENTENCE`, and
 * at the end `end descriptors D threads T allocations A`, each the increase since the start; with several
 * rounds, since the first. Status: 0: success, or success after shrinking; 1: wrong data; 2: misuse; 3: an
 * error; 124: the deadline. */
#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

#include "base/os.h"

enum { OPS_MAX = 64, EXCLUDED_MAX = 64, NOT_DATA = 2 };

enum op_kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALLTOALL, SENDRECV, OP_KINDS };
static const char *const op_names[OP_KINDS] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                               "reduce",     "alltoall",   "sendrecv"};

static struct {
  int rank, size, here;
  const char *id_file, *comm_id, *hold_file, *news_file;
  enum op_kind ops[OPS_MAX];
  int op_count;
  bool polls, query, launched, split_busy, main;
  tutti_launch_t launch;
  size_t count; /* elements of a rank's share */
  int iterations, pace_ms, hold_at, deadline_seconds, rounds;
  int abort_rank, abort_at, kill_at; /* -1: none */
  int leave_rank, leave_at;
  int split;         /* 0: no */
  int traffic_class; /* negative: none */
  uint32_t seed;
  int excluded[EXCLUDED_MAX], excluded_count;
} wanted = {.here = 1,
            .traffic_class = -1,
            .count = 1024,
            .iterations = 3,
            .deadline_seconds = 60,
            .rounds = 1,
            .rank = -1,
            .abort_rank = -1,
            .leave_rank = -1,
            .kill_at = -1};

static ncclUniqueId shared_id;
static atomic_int worst; /* the process's exit status so far */

static void worsen(int status) {
  int before = atomic_load(&worst);
  while (before < status && !atomic_compare_exchange_weak(&worst, &before, status)) {}
}

/* ---- resources of the process ---- */

static long entries_of(const char *path) {
  long count = 0;
  DIR *folder = opendir(path);
  if (folder == NULL) return -1;
  while (readdir(folder)) count += 1;
  closedir(folder);
  return count;
}

struct inventory {
  long descriptors, threads, allocations;
};

static struct inventory inventory_take(void) {
  const struct inventory taken = {entries_of("/proc/self/fd"), entries_of("/proc/self/task"),
                                  (long)os_alloc_live()};
  return taken;
}

static bool inventory_within(struct inventory now, struct inventory limit) {
  return now.descriptors <= limit.descriptors && now.threads <= limit.threads &&
         now.allocations <= limit.allocations;
}

/* Ending threads need a moment, and so do other processes that release what they share with this one (until
 * then a descriptor is open): it is freed when this process allocates. */
static void inventory_tell(struct inventory before) {
  struct inventory now = inventory_take();
  tutti_emu_trace_close(); /* the file of TUTTI_EVENTS, if there is one */
  for (int i = 0; i < 100 || (i < 600 && now.descriptors > before.descriptors); i++) {
    if (inventory_within(now, before)) break;
    void *memory = NULL;
    os_sleep_ms(10);
    if (cudaMalloc(&memory, 1) == cudaSuccess) cudaFree(memory);
    now = inventory_take();
  }
  printf("end descriptors %ld threads %ld allocations %ld\n", now.descriptors - before.descriptors,
         now.threads - before.threads, now.allocations - before.allocations);
}

/* Where each thread is, without memory or locks. */
static void threads_tell(void) {
  static const char *const files[] = {"comm", "wchan", "syscall"};
  char path[64], text[256];
  for (int thread = getpid(); thread < getpid() + 64; thread++)
    for (int i = 0; i < 3; i++) {
      snprintf(path, sizeof path, "/proc/self/task/%d/%s", thread, files[i]);
      const int file = open(path, O_RDONLY);
      const ssize_t bytes = file >= 0 ? read(file, text, sizeof text - 1) : 0;
      if (file < 0) break;
      close(file);
      if (bytes <= 0) continue;
      if (text[bytes - 1] != '\n') text[bytes] = '\n';
      (void)!write(STDOUT_FILENO, text, (size_t)bytes + (text[bytes - 1] != '\n'));
    }
}

static void on_deadline(int signal) {
  static const char text[] = "deadline: this process did not end by itself\n";
  void *frames[40];
  (void)signal;
  if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) _exit(125);
  backtrace_symbols_fd(frames, backtrace(frames, 40), STDOUT_FILENO);
  threads_tell();
  _exit(124);
}

/* ---- one rank ---- */

struct rank {
  pthread_t thread;
  int rank, size; /* of comm: they change after shrinking */
  int device, first_rank;
  bool forgiven; /* the error that shrinking recovers from */
  ncclComm_t comm;
  cudaStream_t stream;
  uint32_t *in, *out, *host; /* size * count elements each */
};

/* One line; false for an error. */
static bool tell(const struct rank *rank, const char *phase, ncclResult_t result) {
  if (result == ncclSuccess) {
    printf("rank %d %s ok\n", rank->first_rank, phase);
    return true;
  }
  char sentence[1024];
  snprintf(sentence, sizeof sentence, "%s", ncclGetLastError(rank->comm));
  for (char *end; (end = strchr(sentence, '\n')) != NULL;) *end = '|'; /* reports have several lines */
  printf("rank %d %s error %d %s: %s\n", rank->first_rank, phase, (int)result, ncclGetErrorString(result),
         sentence);
  if (wanted.excluded_count == 0 || rank->forgiven) worsen(3);
  return false;
}

static uint32_t value_of(uint32_t turn, int rank, size_t index) {
  uint64_t mixed =
      wanted.seed + turn * 0x9e3779b97f4a7c15ull + (uint64_t)rank * 0xbf58476d1ce4e5b9ull + index;
  mixed = (mixed ^ (mixed >> 29)) * 0x94d049bb133111ebull;
  return (uint32_t)(mixed ^ (mixed >> 32));
}

static uint32_t sum_of(const struct rank *rank, uint32_t turn, size_t index) {
  uint32_t sum = 0;
  for (int other = 0; other < rank->size; other++) sum += value_of(turn, other, index);
  return sum;
}

/* The root of rooted operations changes with each iteration. */
static int root_of(const struct rank *rank, uint32_t turn) { return (int)(turn % (uint32_t)rank->size); }

static size_t in_count(const struct rank *rank, enum op_kind op) {
  return op == REDUCE_SCATTER || op == ALLTOALL ? wanted.count * (size_t)rank->size : wanted.count;
}

static size_t out_count(const struct rank *rank, enum op_kind op, uint32_t turn) {
  if (op == REDUCE && root_of(rank, turn) != rank->rank) return 0;
  return op == ALL_GATHER || op == ALLTOALL ? wanted.count * (size_t)rank->size : wanted.count;
}

static uint32_t expected(const struct rank *rank, enum op_kind op, uint32_t turn, size_t index) {
  const size_t count = wanted.count, own = (size_t)rank->rank;
  switch (op) {
    case ALL_GATHER: return value_of(turn, (int)(index / count), index % count);
    case REDUCE_SCATTER: return sum_of(rank, turn, own * count + index);
    case BROADCAST: return value_of(turn, root_of(rank, turn), index);
    case ALLTOALL: return value_of(turn, (int)(index / count), own * count + index % count);
    case SENDRECV: return value_of(turn, (rank->rank + rank->size - 1) % rank->size, index);
    default: return sum_of(rank, turn, index);
  }
}

static ncclResult_t shift(const struct rank *rank) {
  const int next = (rank->rank + 1) % rank->size, last = (rank->rank + rank->size - 1) % rank->size;
  ncclResult_t result = ncclGroupStart();
  if (result != ncclSuccess) return result;
  result = ncclSend(rank->in, wanted.count, ncclUint32, next, rank->comm, rank->stream);
  if (result == ncclSuccess)
    result = ncclRecv(rank->out, wanted.count, ncclUint32, last, rank->comm, rank->stream);
  const ncclResult_t ended = ncclGroupEnd();
  return result != ncclSuccess ? result : ended;
}

static ncclResult_t call(const struct rank *rank, enum op_kind op, uint32_t turn) {
  const size_t count = wanted.count;
  const int root = root_of(rank, turn);
  uint32_t *in = rank->in, *out = rank->out;
  switch (op) {
    case ALL_REDUCE: return ncclAllReduce(in, out, count, ncclUint32, ncclSum, rank->comm, rank->stream);
    case ALL_GATHER: return ncclAllGather(in, out, count, ncclUint32, rank->comm, rank->stream);
    case REDUCE_SCATTER:
      return ncclReduceScatter(in, out, count, ncclUint32, ncclSum, rank->comm, rank->stream);
    case BROADCAST: return ncclBroadcast(in, out, count, ncclUint32, root, rank->comm, rank->stream);
    case REDUCE: return ncclReduce(in, out, count, ncclUint32, ncclSum, root, rank->comm, rank->stream);
    case ALLTOALL: return ncclAlltoAll(in, out, count, ncclUint32, rank->comm, rank->stream);
    default: return shift(rank);
  }
}

/* Waits until the stream ends or the communicator fails; returns the communicator's error. */
static ncclResult_t stream_wait(const struct rank *rank) {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    const cudaError_t stream =
        wanted.polls || wanted.query ? cudaStreamQuery(rank->stream) : cudaStreamSynchronize(rank->stream);
    if (wanted.query && stream == cudaErrorNotReady) {
      os_yield();
      continue;
    }
    const ncclResult_t asked = ncclCommGetAsyncError(rank->comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclSuccess && state != ncclInProgress) return state;
    if (stream == cudaSuccess) return state;
    if (stream != cudaErrorNotReady) return ncclUnhandledCudaError;
    os_yield();
  }
}

static size_t wrong_elements(const struct rank *rank, enum op_kind op, uint32_t turn) {
  const size_t count = out_count(rank, op, turn);
  size_t wrong = 0;
  if (count == 0) return 0;
  if (cudaMemcpy(rank->host, rank->out, count * sizeof *rank->host, cudaMemcpyDeviceToHost) != cudaSuccess)
    return count;
  for (size_t i = 0; i < count; i++) wrong += rank->host[i] != expected(rank, op, turn, i);
  if (wrong > 0)
    printf("rank %d %s turn %u: %zu of %zu elements are wrong\n", rank->first_rank, op_names[op], turn, wrong,
           count);
  return wrong;
}

/* One operation with its data. */
static ncclResult_t operate(const struct rank *rank, enum op_kind op, uint32_t turn, size_t *wrong) {
  const size_t count = in_count(rank, op), capacity = wanted.count * (size_t)rank->size;
  for (size_t i = 0; i < count; i++) rank->host[i] = value_of(turn, rank->rank, i);
  if (cudaMemcpy(rank->in, rank->host, count * sizeof *rank->host, cudaMemcpyHostToDevice) != cudaSuccess ||
      cudaMemset(rank->out, 0x5a, capacity * sizeof *rank->out) != cudaSuccess)
    return ncclUnhandledCudaError;
  ncclResult_t result = call(rank, op, turn);
  if (result == ncclInProgress || result == ncclSuccess) result = stream_wait(rank);
  if (result == ncclSuccess) *wrong += wrong_elements(rank, op, turn);
  return result;
}

/* ---- a rank's life ---- */

static bool id_write(const char *path) {
  char draft[4200];
  snprintf(draft, sizeof draft, "%s.draft", path);
  return os_file_write(draft, (const char *)&shared_id, sizeof shared_id) && rename(draft, path) == 0;
}

static void id_wait(const char *path) {
  for (;; os_sleep_ms(10)) { /* the deadline is the process's */
    size_t bytes = 0;
    char *content = os_file_read(path, &bytes);
    const bool whole = content && bytes == sizeof shared_id;
    if (whole) memcpy(&shared_id, content, sizeof shared_id);
    os_free(content);
    if (whole) return;
  }
}

static ncclResult_t id_get(int round) {
  char path[4096];
  if (wanted.launched) return tutti_launch_id(&wanted.launch, &shared_id);
  if (wanted.id_file && round == 0) snprintf(path, sizeof path, "%s", wanted.id_file);
  else if (wanted.id_file) snprintf(path, sizeof path, "%s.%d", wanted.id_file, round);
  if (wanted.id_file && wanted.rank != 0) {
    id_wait(path);
    return ncclSuccess;
  }
  const ncclResult_t result = ncclGetUniqueId(&shared_id);
  if (result != ncclSuccess || wanted.id_file == NULL) return result;
  return id_write(path) ? ncclSuccess : ncclSystemError;
}

static bool rank_open(struct rank *rank) {
  const size_t bytes = wanted.count * (size_t)rank->size * sizeof *rank->in;
  rank->host = (uint32_t *)malloc(bytes);
  const bool ready = rank->host && cudaSetDevice(rank->device) == cudaSuccess &&
                     cudaStreamCreate(&rank->stream) == cudaSuccess &&
                     cudaMalloc((void **)&rank->in, bytes) == cudaSuccess &&
                     cudaMalloc((void **)&rank->out, bytes) == cudaSuccess;
  return tell(rank, "memory", ready ? ncclSuccess : ncclUnhandledCudaError);
}

static void rank_close(struct rank *rank) {
  if (rank->in) cudaFree(rank->in);
  if (rank->out) cudaFree(rank->out);
  if (rank->stream) cudaStreamDestroy(rank->stream);
  free(rank->host);
}

static void hold(int iteration) {
  while (wanted.hold_file && iteration == wanted.hold_at && access(wanted.hold_file, F_OK) != 0)
    os_sleep_ms(20);
}

/* Its peers learn of its end late. The child is made without the handlers of a fork, which would close the
 * connections. */
static void kill_itself(void) {
  if (wanted.news_file != NULL && syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) == 0) {
    for (int i = 0; i < wanted.deadline_seconds * 50 && access(wanted.news_file, F_OK) != 0; i++)
      os_sleep_ms(20);
    _exit(0);
  }
  kill(getpid(), SIGKILL);
}

static bool operations(const struct rank *rank) {
  size_t wrong = 0;
  uint32_t turn = 0;
  for (int iteration = 0; iteration < wanted.iterations; iteration++) {
    if (wanted.pace_ms > 0) os_sleep_ms((unsigned)wanted.pace_ms);
    hold(iteration);
    if (iteration == wanted.leave_at && rank->first_rank == wanted.leave_rank) break;
    if (iteration == wanted.kill_at) kill_itself();
    if (iteration == wanted.abort_at && rank->first_rank == wanted.abort_rank) return false;
    for (int i = 0; i < wanted.op_count; i++, turn++) {
      char phase[64];
      const ncclResult_t result = operate(rank, wanted.ops[i], turn, &wrong);
      snprintf(phase, sizeof phase, "%s iteration %d", op_names[wanted.ops[i]], iteration);
      if (result != ncclSuccess) return tell(rank, phase, result);
    }
    printf("rank %d iteration %d ok\n", rank->first_rank, iteration);
  }
  hold(wanted.iterations);
  if (wrong > 0) worsen(1);
  printf("rank %d operations %s\n", rank->first_rank, wrong == 0 ? "ok" : "wrong");
  return true;
}

/* The survivors continue; the earlier error then does not count. */
static bool shrink(struct rank *rank) {
  ncclComm_t small = NULL;
  size_t wrong = 0;
  ncclResult_t result =
      ncclCommShrink(rank->comm, wanted.excluded, wanted.excluded_count, &small, NULL, NCCL_SHRINK_ABORT);
  if (!tell(rank, "shrink", result)) return false;
  ncclCommAbort(rank->comm);
  rank->comm = small;
  cudaStreamDestroy(rank->stream); /* it may keep the error of what it ran */
  rank->stream = NULL;
  if (cudaStreamCreate(&rank->stream) != cudaSuccess) return false;
  if (ncclCommUserRank(small, &rank->rank) != ncclSuccess || ncclCommCount(small, &rank->size) != ncclSuccess)
    return false;
  result = operate(rank, ALL_REDUCE, 1000000, &wrong);
  if (wrong > 0) worsen(1);
  return tell(rank, "all_reduce after shrink", result) && wrong == 0;
}

/* The parent communicator and its buffers remain; ranks of the split are in reverse order. */
static bool split(const struct rank *rank) {
  struct rank part = *rank;
  size_t wrong = 0;
  if (wanted.split_busy && !tell(rank, "all_reduce beside split", call(rank, ALL_REDUCE, 3000000)))
    return false;
  if (!tell(rank, "split",
            ncclCommSplit(rank->comm, rank->rank % wanted.split, -rank->rank, &part.comm, NULL)))
    return false;
  const int expected_rank = (rank->size - 1 - rank->rank) / wanted.split;
  if (ncclCommUserRank(part.comm, &part.rank) != ncclSuccess ||
      ncclCommCount(part.comm, &part.size) != ncclSuccess || part.rank != expected_rank)
    worsen(1);
  const ncclResult_t result = operate(&part, ALL_REDUCE, 2000000, &wrong);
  if (wrong > 0) worsen(1);
  return tell(rank, "all_reduce after split", result) &&
         tell(rank, "destroy of the split", ncclCommDestroy(part.comm)) && wrong == 0;
}

static void *rank_live(void *argument) {
  struct rank *rank = (struct rank *)argument;
  const uint64_t begin_ns = os_time_ns();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.trafficClass = wanted.traffic_class;
  if (rank_open(rank)) {
    const ncclResult_t made =
        config.trafficClass < 0
            ? ncclCommInitRank(&rank->comm, rank->size, shared_id, rank->rank)
            : ncclCommInitRankConfig(&rank->comm, rank->size, shared_id, rank->rank, &config);
    if (tell(rank, "init", made)) {
      printf("rank %d init took %llu ms\n", rank->first_rank,
             (unsigned long long)(os_time_ns() - begin_ns) / 1000000);
      bool good = operations(rank);
      if (!good && wanted.excluded_count > 0 && rank->first_rank != wanted.abort_rank) good = shrink(rank);
      if (good && wanted.split > 0) good = split(rank);
      if (good) tell(rank, "destroy", ncclCommDestroy(rank->comm));
      else tell(rank, "abort", ncclCommAbort(rank->comm));
    }
  }
  rank_close(rank);
  return NULL;
}

/* ---- the command line ---- */

static bool ops_read(char *list) {
  char *rest;
  wanted.op_count = 0;
  for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    int kind = 0;
    while (kind < OP_KINDS && strcmp(word, op_names[kind]) != 0) kind++;
    if (kind == OP_KINDS || wanted.op_count == OPS_MAX) return false;
    wanted.ops[wanted.op_count++] = (enum op_kind)kind;
  }
  return wanted.op_count > 0;
}

static bool excluded_read(char *list) {
  char *rest;
  for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
    if (wanted.excluded_count == EXCLUDED_MAX) return false;
    wanted.excluded[wanted.excluded_count++] = atoi(word);
  }
  return wanted.excluded_count > 0;
}

static bool hold_read(char *value) {
  char *comma = strchr(value, ',');
  if (!comma) return false;
  wanted.hold_at = atoi(value);
  wanted.hold_file = comma + 1;
  return true;
}

static bool option_read(const char *name, char *value) {
  const long number = strtol(value, NULL, 0);
  if (strcmp(name, "--rank") == 0) wanted.rank = (int)number;
  else if (strcmp(name, "--size") == 0) wanted.size = (int)number;
  else if (strcmp(name, "--here") == 0) wanted.here = (int)number;
  else if (strcmp(name, "--id") == 0) wanted.id_file = value;
  else if (strcmp(name, "--comm-id") == 0) wanted.comm_id = value;
  else if (strcmp(name, "--ops") == 0) return ops_read(value);
  else if (strcmp(name, "--bytes") == 0) wanted.count = ((size_t)number + 3) / 4;
  else if (strcmp(name, "--iterations") == 0) wanted.iterations = (int)number;
  else if (strcmp(name, "--pace") == 0) wanted.pace_ms = (int)number;
  else if (strcmp(name, "--hold") == 0) return hold_read(value);
  else if (strcmp(name, "--seed") == 0) wanted.seed = (uint32_t)number;
  else if (strcmp(name, "--deadline") == 0) wanted.deadline_seconds = (int)number;
  else if (strcmp(name, "--rounds") == 0) wanted.rounds = (int)number;
  else if (strcmp(name, "--class") == 0) wanted.traffic_class = (int)number;
  else if (strcmp(name, "--split") == 0) wanted.split = (int)number;
  else if (strcmp(name, "--late-news") == 0) wanted.news_file = value;
  else if (strcmp(name, "--kill-at") == 0) wanted.kill_at = (int)number;
  else if (strcmp(name, "--abort-at") == 0)
    return sscanf(value, "%d,%d", &wanted.abort_rank, &wanted.abort_at) == 2;
  else if (strcmp(name, "--leave-at") == 0)
    return sscanf(value, "%d,%d", &wanted.leave_rank, &wanted.leave_at) == 2;
  else if (strcmp(name, "--shrink-after-error") == 0) return excluded_read(value);
  else return false;
  return true;
}

static bool options_read(int argc, char **argv) {
  bool threads = false;
  for (int kind = 0; kind < OP_KINDS; kind++) wanted.ops[wanted.op_count++] = (enum op_kind)kind;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--threads") == 0) threads = true;
    else if (strcmp(argv[i], "--poll") == 0) wanted.polls = true;
    else if (strcmp(argv[i], "--query") == 0) wanted.query = true;
    else if (strcmp(argv[i], "--main") == 0) wanted.main = true;
    else if (strcmp(argv[i], "--launched") == 0) wanted.launched = true;
    else if (strcmp(argv[i], "--split-busy") == 0) wanted.split_busy = true;
    else if (i + 1 == argc || !option_read(argv[i], argv[i + 1])) return false;
    else i++;
  }
  if (threads) {
    wanted.rank = 0;
    wanted.here = wanted.size;
  }
  wanted.launch.size = sizeof wanted.launch;
  if (wanted.launched && tutti_launch_read(&wanted.launch) == ncclSuccess) {
    wanted.rank = wanted.launch.rank;
    wanted.size = wanted.launch.rank_count;
  }
  if (wanted.main && wanted.here != 1) return false;
  return wanted.size > 0 && wanted.rank >= 0 && wanted.here > 0 && wanted.rank + wanted.here <= wanted.size &&
         wanted.count > 0 && wanted.iterations >= 0 && wanted.rounds > 0;
}

/* One thread per rank, the main thread with --main. */
static int ranks_run(struct rank *ranks, int round) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < wanted.here) {
    fprintf(stderr, "rank_program: %d devices for %d ranks; TUTTI_EMU=devices=%d makes as many\n", devices,
            wanted.here, wanted.here);
    return 2;
  }
  memset(ranks, 0, (size_t)wanted.here * sizeof *ranks);
  for (int i = 0; i < wanted.here; i++) {
    ranks[i].rank = ranks[i].first_rank = wanted.rank + i;
    ranks[i].size = wanted.size;
    ranks[i].device = (wanted.rank + i) % devices;
  }
  if (!tell(&ranks[0], "id", id_get(round))) return 3;
  if (wanted.main && tutti_emu_callers(1) == ncclSuccess) {
    rank_live(&ranks[0]);
    return atomic_load(&worst);
  }
  int started = 0;
  while (started < wanted.here &&
         pthread_create(&ranks[started].thread, NULL, rank_live, &ranks[started]) == 0)
    started++;
  for (int i = 0; i < started; i++) pthread_join(ranks[i].thread, NULL);
  return started == wanted.here ? atomic_load(&worst) : 3;
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (!options_read(argc, argv)) {
    fprintf(stderr, "rank_program: the head of tests/rank_program.c has the options\n");
    return 2;
  }
  if (wanted.comm_id) setenv("NCCL_COMM_ID", wanted.comm_id, 1);
  signal(SIGALRM, on_deadline);
  alarm((unsigned)wanted.deadline_seconds);
  struct inventory before = inventory_take();
  struct rank *ranks = (struct rank *)calloc((size_t)wanted.here, sizeof *ranks);
  if (ranks == NULL) return 3;
  int status = 0;
  for (int round = 0; round < wanted.rounds && status == 0; round++) {
    status = ranks_run(ranks, round);
    if (round == 0 && wanted.rounds > 1) before = inventory_take();
  }
  free(ranks);
  inventory_tell(before);
  return status;
}
