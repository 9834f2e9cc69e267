/* wrap.c: calls on both sides of a step at which flags and tags wrap (TUTTI_FIRST_STEP), every result
 * compared with what the call must give, bit for bit. First many calls of one or two elements, which leave
 * most lines of a slot as they were; then long ones, which read the lines that the short ones left.
 *
 *     wrap [all RANKS LONG SEEDS [SCENE...]]   runs itself for each row of `settings` below
 *     wrap RANKS LONG SEEDS [SCENE...]         RANKS 0: all devices; LONG: elements of a long call
 *
 * For a SCENE that is the name of a call, communicators are made that run 0, 3, 8, ... short calls of this
 * kind before long ones; `each`: every kind of call. A SCENE that is two names, as all_gather:broadcast, runs
 * short calls of the first kind, among them one of the second kind, in each of the last places once.
 * `streams` runs short and long calls of each kind on two streams in turn, without a wait between them. For
 * each seed, calls of all kinds are mixed, some of them two in a group, some without a wait between them. The
 * ranks are those of the launch (tutti launch) if it has several, or else RANKS devices of this process.
 * Prints the first wrong result, or what was run and `ok`. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <tutti.h>
#include <unistd.h>

#include "calls.h"
#include "need.h"

#define LONG_CALLS 10
#define PLACES 32      /* short calls of a scene of two, */
#define LAST_PLACES 12 /* and the places of the other call among them */
#define GROUP 2        /* calls of a group, at most */
#define BURST 6        /* calls without a wait between them, at most */

static struct {
  int rank_count, first, end; /* ranks; those of this process */
  size_t long_count;
  struct {
    ncclComm_t comm;
    cudaStream_t stream, other_stream;
    uint32_t *in[BURST], *out[BURST]; /* by place in a group or burst */
  } ranks[RANKS_MAX];
  uint32_t *host;
  tutti_launch_t launch;
  uint64_t draws;
  unsigned calls;
  bool streams; /* calls alternate between two streams */
} run;

static uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 31)) * UINT64_C(0x9fb21c651e98df25);
  return state ^ (state >> 28);
}

static uint32_t draw(uint32_t below) { return (uint32_t)(mix(run.draws += 0x9e3779b9u) >> 16) % below; }

/* Calls with odd numbers are of float, for which GPUs have other kernels: numbers that any order of additions
 * sums exactly. The others are of uint32. */
static ncclDataType_t type_of(unsigned call_number) { return call_number % 2 == 1 ? ncclFloat : ncclUint32; }

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static uint32_t number_at(unsigned call_number, int rank, size_t index) {
  const uint32_t bits = (uint32_t)(mix(mix(call_number * 977 + (uint64_t)rank) + index) >> 20);
  return type_of(call_number) == ncclFloat ? bits % 4096 : bits;
}

/* A number as the call's type has it. */
static uint32_t element_of(unsigned call_number, uint32_t number) {
  return type_of(call_number) == ncclFloat ? bits_of((float)number) : number;
}

/* Elements of a call's buffers before their first one: some are not aligned to a GPU's vectors. */
static size_t shift_of(unsigned call_number) { return call_number / 2 % 2; }

static cudaStream_t stream_of(int r, unsigned call_number) {
  return run.streams && call_number % 2 == 1 ? run.ranks[r].other_stream : run.ranks[r].stream;
}

static int root_of(unsigned call_number) { return (int)(call_number % (unsigned)run.rank_count); }

/* What the call must leave in element `index` of a rank's output of `count` elements a block; false: it
 * leaves it as it is. */
static bool expected_at(enum call call, unsigned number, int rank, size_t count, size_t index,
                        uint32_t *value) {
  const int n = run.rank_count, block = (int)(index / count), root = root_of(number);
  const size_t own = (size_t)rank * count, within = index % count;
  const bool sums = call == ALL_REDUCE || call == REDUCE || call == REDUCE_SCATTER;
  const bool blocks = call == ALL_GATHER || call == ALL_TO_ALL || call == GATHER;
  if ((call == REDUCE || call == GATHER) && rank != root) return false;
  if (block >= (blocks ? n : 1)) return false;
  uint32_t sum = 0;
  for (int r = 0; sums && r < n; r++) sum += number_at(number, r, (call == REDUCE_SCATTER ? own : 0) + index);
  if (call == BROADCAST) sum = number_at(number, root, index);
  if (call == ALL_GATHER || call == GATHER) sum = number_at(number, block, within);
  if (call == ALL_TO_ALL) sum = number_at(number, block, own + within);
  if (call == SCATTER) sum = number_at(number, root, own + within);
  if (call == EXCHANGE) sum = number_at(number, (rank + n - 1) % n, index);
  *value = element_of(number, sum);
  return true;
}

/* A call of one kind, on buffers `place`. */
struct job {
  enum call call;
  unsigned number;
  size_t count;
  unsigned place;
};

static void issue(int r, const struct job *job) {
  const struct call_arguments arguments = {run.ranks[r].in[job->place] + shift_of(job->number),
                                           run.ranks[r].out[job->place] + shift_of(job->number),
                                           job->count,
                                           type_of(job->number),
                                           r,
                                           run.rank_count,
                                           root_of(job->number),
                                           run.ranks[r].comm,
                                           stream_of(r, job->number)};
  call_make(job->call, &arguments);
}

#define UNTOUCHED 0x5a5a5a5au

static void prepare(const struct job *job) {
  const size_t elements = job->count * (size_t)run.rank_count;
  for (int r = run.first; r < run.end; r++) {
    for (size_t i = 0; i < elements; i++) run.host[i] = element_of(job->number, number_at(job->number, r, i));
    need_device(r);
    NEED(cudaMemcpy(run.ranks[r].in[job->place] + shift_of(job->number), run.host, elements * 4,
                    cudaMemcpyHostToDevice));
    NEED(cudaMemset(run.ranks[r].out[job->place] + shift_of(job->number), 0x5a, elements * 4));
    NEED(cudaDeviceSynchronize());
  }
}

static void check(const struct job *job, const char *story) {
  const size_t elements = job->count * (size_t)run.rank_count;
  for (int r = run.first; r < run.end; r++) {
    need_device(r);
    NEED(cudaStreamSynchronize(stream_of(r, job->number)));
    NEED(cudaMemcpy(run.host, run.ranks[r].out[job->place] + shift_of(job->number), elements * 4,
                    cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < elements; i++) {
      uint32_t value = UNTOUCHED;
      if (!expected_at(job->call, job->number, r, job->count, i, &value)) value = UNTOUCHED;
      if (run.host[i] == value) continue;
      printf("wrong: %s, call %u (%s of %zu elements): rank %d, element %zu is 0x%08x instead of 0x%08x\n",
             story, job->number, call_names[job->call], job->count, r, i, run.host[i], value);
      exit(1);
    }
  }
  run.calls += 1;
}

/* The user may overwrite the input in the stream's order: no rank reads it any more then. */
static void overwrite(int r, const struct job *job) {
  const size_t bytes = job->count * (size_t)run.rank_count * 4;
  uint32_t *in = run.ranks[r].in[job->place] + shift_of(job->number);
  need_device(r);
  NEED(cudaMemsetAsync(in, 0xa5, bytes, stream_of(r, job->number)));
}

/* One rank after another. What a rank must wait for is not there yet when it looks, so that it takes what
 * old flags or tags seem to announce. The last rank's kernel is launched when the others have had time to
 * look, which is no condition for a right result: in guarded mode a query gives them turns, else they run. */
static void issue_late(const struct job *job) {
  for (int i = 0; i < run.rank_count; i++) {
    const int r = (int)((job->number + (unsigned)i) % (unsigned)run.rank_count);
    need_device(r);
    if (i == run.rank_count - 1) {
      (void)cudaStreamQuery(run.ranks[(r + 1) % run.rank_count].stream);
      usleep(300);
    }
    NEED(ncclGroupStart());
    issue(r, job);
    NEED(ncclGroupEnd());
    overwrite(r, job);
  }
}

static void jobs_launch(const struct job *jobs, unsigned job_count) {
  NEED(ncclGroupStart());
  for (int r = run.first; r < run.end; r++)
    for (unsigned i = 0; i < job_count; i++) issue(r, &jobs[i]);
  NEED(ncclGroupEnd());
  for (int r = run.first; r < run.end; r++)
    for (unsigned i = 0; i < job_count; i++) overwrite(r, &jobs[i]);
}

/* The calls of one group, or those of a burst: one after another, so that a fast rank is calls ahead of a
 * slow one. */
static void jobs_run(const struct job *jobs, unsigned job_count, bool grouped, const char *story) {
  for (unsigned i = 0; i < job_count; i++) prepare(&jobs[i]);
  if (grouped) jobs_launch(jobs, job_count);
  for (unsigned i = 0; i < job_count && !grouped; i++) jobs_launch(&jobs[i], 1);
  for (unsigned i = 0; i < job_count; i++) check(&jobs[i], story);
}

static void comms_open(void) {
  ncclComm_t comms[RANKS_MAX];
  if (run.launch.rank_count > 1) {
    ncclUniqueId id;
    NEED(tutti_launch_id(&run.launch, &id));
    need_device(run.first);
    NEED(ncclCommInitRank(&run.ranks[run.first].comm, run.rank_count, id, run.first));
    return;
  }
  need_comms(comms, run.rank_count);
  for (int r = 0; r < run.rank_count; r++) run.ranks[r].comm = comms[r];
}

static void comms_close(void) {
  for (int r = run.first; r < run.end; r++) NEED(ncclCommDestroy(run.ranks[r].comm));
}

static void short_and_long(const enum call *calls, unsigned short_calls, const char *name) {
  char story[64];
  bool connected[CALLS] = {false}; /* else several ranks of one thread must launch together */
  snprintf(story, sizeof story, "%s with %u short calls first", name, short_calls);
  comms_open();
  for (unsigned number = 0; number < short_calls + LONG_CALLS; number++) {
    const struct job job = {calls[number], number, number < short_calls ? 1 + draw(2) : run.long_count, 0};
    const bool alike = /* every call of this kind uses the same connections */
        job.call != REDUCE && job.call != BROADCAST && job.call != GATHER && job.call != SCATTER;
    if (number >= short_calls && connected[job.call] && run.end - run.first == run.rank_count) {
      prepare(&job);
      issue_late(&job);
      check(&job, story);
    } else {
      jobs_run(&job, 1, true, story);
    }
    connected[job.call] = alike;
  }
  comms_close();
}

#define SHORT_MOST 64

static void scene_of_one(enum call call) {
  static const unsigned before[] = {0, 3, 8, 16, 23, 33};
  enum call calls[SHORT_MOST + LONG_CALLS];
  for (unsigned i = 0; i < SHORT_MOST + LONG_CALLS; i++) calls[i] = call;
  for (unsigned i = 0; i < sizeof before / sizeof before[0]; i++)
    short_and_long(calls, before[i], call_names[call]);
}

static void scene_of_two(enum call call, enum call other) {
  for (unsigned place = PLACES - LAST_PLACES; place < PLACES; place++) {
    enum call calls[SHORT_MOST + LONG_CALLS];
    for (unsigned i = 0; i < SHORT_MOST + LONG_CALLS; i++) calls[i] = i == place ? other : call;
    short_and_long(calls, PLACES, call_names[other]);
  }
}

static void scene_of_all(uint64_t seed) {
  run.draws = seed * 1000003;
  const unsigned short_calls = 8 + draw(40);
  comms_open();
  for (unsigned number = 0; number < short_calls + LONG_CALLS;) {
    struct job jobs[BURST];
    const bool grouped = draw(2) == 0;
    const unsigned job_count = 1 + draw(grouped ? GROUP : BURST);
    for (unsigned i = 0; i < job_count; i++, number++)
      jobs[i] = (struct job){(enum call)draw(CALLS), number,
                             number < short_calls ? 1 + draw(2) : run.long_count, i};
    jobs_run(jobs, job_count, grouped, "calls of all kinds");
  }
  comms_close();
}

/* A kernel that begins when blocks of another stream's were counted may use what they have left: of short
 * calls and of long ones. */
static void scene_of_streams(void) {
  static const bool is_long[BURST] = {false, false, true, true, false, true};
  run.streams = true;
  comms_open();
  for (unsigned number = 0; number < CALLS * BURST;) {
    struct job jobs[BURST];
    for (unsigned i = 0; i < BURST; i++, number++)
      jobs[i] = (struct job){(enum call)(number / BURST), number, is_long[i] ? run.long_count : 1 + i, i};
    jobs_run(jobs, BURST, false, "calls on two streams");
  }
  comms_close();
  run.streams = false;
}

static void scene(const char *text) {
  if (strcmp(text, "streams") == 0) {
    scene_of_streams();
    return;
  }
  if (strcmp(text, "each") == 0) {
    for (unsigned i = 0; i < CALLS; i++) scene_of_one((enum call)i);
    return;
  }
  const char *colon = strchr(text, ':');
  const size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
  enum call first = CALLS, second = CALLS;
  for (unsigned i = 0; i < CALLS; i++) {
    if (strlen(call_names[i]) == length && strncmp(text, call_names[i], length) == 0) first = (enum call)i;
    if (colon != NULL && strcmp(colon + 1, call_names[i]) == 0) second = (enum call)i;
  }
  if (first == CALLS || (colon != NULL && second == CALLS)) {
    printf("failed: no scene %s\n", text);
    exit(2);
  }
  if (colon != NULL) scene_of_two(first, second);
  else scene_of_one(first);
}

static void ranks_open(int rank_count) {
  run.launch.size = sizeof run.launch;
  NEED(tutti_launch_read(&run.launch));
  const bool alone = run.launch.rank_count <= 1;
  if (alone && rank_count == 0) rank_count = need_ranks();
  run.rank_count = alone ? rank_count : run.launch.rank_count;
  run.first = alone ? 0 : run.launch.rank;
  run.end = alone ? rank_count : run.launch.rank + 1;
  const size_t bytes = run.long_count * (size_t)run.rank_count * 4;
  run.host = (uint32_t *)malloc(bytes);
  if (run.host == NULL || run.rank_count > RANKS_MAX) exit(2);
  for (int r = run.first; r < run.end; r++) {
    need_device(r);
    NEED(cudaStreamCreateWithFlags(&run.ranks[r].stream, cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&run.ranks[r].other_stream, cudaStreamNonBlocking));
    for (int place = 0; place < BURST; place++) {
      NEED(cudaMalloc((void **)&run.ranks[r].in[place], bytes + 4)); /* shift_of() */
      NEED(cudaMalloc((void **)&run.ranks[r].out[place], bytes + 4));
    }
  }
}

static void ranks_close(void) {
  for (int r = run.first; r < run.end; r++) {
    for (int place = 0; place < BURST; place++) {
      NEED(cudaFree(run.ranks[r].in[place]));
      NEED(cudaFree(run.ranks[r].out[place]));
    }
    NEED(cudaStreamDestroy(run.ranks[r].stream));
    NEED(cudaStreamDestroy(run.ranks[r].other_stream));
  }
  free(run.host);
}

/* ---- all settings ---- */

/* Each kernel of GPUs runs on both sides of a wrap. `long_count`: elements of a long call on one channel, if
 * the kernel is for long copies. */
#define DIRECT "allgather:Direct;reducescatter:Direct;broadcast:Direct"
static const struct {
  const char *algo, *proto, *long_count;
} settings[] = {
    {"Ring", "LL", NULL},
    {"Ring", "LL128", NULL},
    {"Ring", "Simple", NULL},
    {"Ring", "Simple", "270000"},
    {"Ring", "allreduce:LL;broadcast:LL128;allgather:Simple;reduce:LL;reducescatter:Simple", NULL},
    {"allreduce:Tree", "LL", NULL},
    {"allreduce:Tree", "Simple", NULL},
    {"allreduce:Direct;alltoall:Direct;" DIRECT, "LL", NULL},
    {"allreduce:Direct;alltoall:Direct;" DIRECT, "Simple", NULL},
    {"allreduce:TwoShot;" DIRECT, "LL", NULL},
    {"allreduce:TwoShot;" DIRECT, "Simple", NULL},
};
static const char *const first_steps[] = {"2147483616", "4294967264"}; /* 32 before 2^31 and 2^32 */

/* In a process of its own, because settings are read once. */
static void setting_run(char **arguments, const char *first, size_t row) {
  const char *algo = settings[row].algo, *proto = settings[row].proto;
  char *longer[] = {arguments[0], arguments[1], (char *)settings[row].long_count, "1", NULL};
  int status = 0;
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("TUTTI_FIRST_STEP", first, 1);
    setenv("NCCL_ALGO", algo, 1);
    setenv("NCCL_PROTO", proto, 1);
    if (longer[2] != NULL) setenv("NCCL_MAX_CTAS", "1", 1);
    execv("/proc/self/exe", longer[2] != NULL ? longer : arguments);
    _exit(127);
  }
  if (child > 0 && waitpid(child, &status, 0) == child && status == 0) return;
  printf("failed: with TUTTI_FIRST_STEP=%s NCCL_ALGO='%s' NCCL_PROTO='%s'\n", first, algo, proto);
  exit(1);
}

static void settings_run(char **arguments) {
  const size_t count = sizeof settings / sizeof settings[0];
  for (size_t i = 0; i < sizeof first_steps / sizeof first_steps[0]; i++)
    for (size_t k = 0; k < count; k++) setting_run(arguments, first_steps[i], k);
  printf("wrap: %zu settings, on both sides of steps 2^31 and 2^32: ok\n", count);
}

int main(int argc, char **argv) {
  char *usual[] = {argv[0], "0", "2000", "3", "all_reduce", NULL};
  if (argc == 1 || strcmp(argv[1], "all") == 0) {
    settings_run(argc == 1 ? usual : argv + 1);
    return 0;
  }
  if (argc < 4) return 2;
  run.long_count = (size_t)atoi(argv[2]);
  ranks_open(atoi(argv[1]));
  for (int i = 4; i < argc; i++) scene(argv[i]);
  for (int seed = 1; seed <= atoi(argv[3]); seed++) scene_of_all((uint64_t)seed);
  ranks_close();
  printf("%d ranks, %u calls: ok\n", run.rank_count, run.calls);
  return 0;
}
