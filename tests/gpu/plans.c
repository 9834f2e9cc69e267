/* plans.c: proves which inputs each element of a call's output consists of, for each plan that the library
 * chooses for growing sizes, and that nothing else is written.
 *
 *     plans [GPUS MOST KEYS [CALL...]]
 *     plans GPUS options                prints the tuner's options, each as COLLECTIVE ALGORITHM PROTOCOL
 *
 * GPUS: devices of this process, one rank each, or 0 for all; the processes of a launch (tutti launch) have
 * as many each. MOST: bytes of a rank's longest buffer. KEYS: a file to which a line for each distinct plan
 * is appended. CALLs: names of calls.h; all of them if none is given. The CALL out-of-place leaves out calls
 * in place.
 *
 * Inputs are symbols: random numbers of 64 bits (ncclUint64, summed modulo 2^64), so that an output that is
 * any other sum of inputs than the right one equals it by chance once in 2^64. Sums of floats have kernels of
 * their own: a rank's float is a digit from 1 to 7 at the rank's place of a number in base 8, so that every
 * order of additions is exact. Halves have whole numbers up to 31, for the same reason; uint8 has bytes.
 *
 * A rank's memory holds noise, the input, noise, the output, noise; or, in place, only one of the two. After
 * the call all of it is compared with what it was before, but for the output. The plan is read from the
 * process's record file (TUTTI_TRACE). */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tutti.h>
#include <unistd.h>

#include "calls.h"
#include "need.h"
#include "trace/record.h"

#define GUARD 2048 /* bytes of noise before, between and behind the buffers; a multiple of 16 */
#define KEYS_MOST 4096
#define KEY_BYTES 128

static const struct symbol_type {
  const char *name;
  ncclDataType_t type;
  size_t bytes;
} types[] = {{"uint64", ncclUint64, 8},
             {"float", ncclFloat, 4},
             {"half", ncclHalf, 2},
             {"bfloat16", ncclBfloat16, 2},
             {"uint8", ncclUint8, 1}};
enum { UINT64, FLOAT, HALF, BFLOAT16, UINT8, TYPES };

#define FUNC_COPY                                                                           \
  11 /* of schedule/work.h: the first work of some plans of messages, which has no protocol \
      */

static struct {
  int rank_count, first, end; /* ranks; those of this process */
  bool out_of_place;
  size_t most, arena_bytes;
  struct {
    int device;
    ncclComm_t comm;
    cudaStream_t stream;
    uint8_t *arena;
  } ranks[RANKS_MAX];
  uint8_t *before, *after; /* of one rank */
  tutti_launch_t launch;
  char record[512]; /* the file of this process */
  unsigned calls, key_count;
  char keys[KEYS_MOST][KEY_BYTES];
} run;

/* One call. Offsets are in the memory of a rank. */
struct job {
  enum call call;
  unsigned number;
  const struct symbol_type *type;
  size_t count; /* elements of a block */
  bool in_place;
  int root;
};

struct places {
  size_t in, out, in_count, out_count, end; /* bytes, bytes, elements, elements; where the last noise ends */
};

static uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 31)) * UINT64_C(0x9fb21c651e98df25);
  state = (state ^ (state >> 28)) * UINT64_C(0xd6e8feb86659fd93);
  return state ^ (state >> 32);
}

/* ---- symbols ---- */

static uint64_t symbol(const struct job *job, int rank, size_t index) {
  const uint64_t bits = mix(mix(job->number * UINT64_C(8191) + (uint64_t)rank) + index);
  switch (job->type->type) {
    case ncclFloat: return (1 + (bits >> 8) % 7) << 3 * rank;
    case ncclHalf:
    case ncclBfloat16: return 1 + (bits >> 8) % 31; /* eight of them are at most 256 */
    default: return bits;
  }
}

static void element_write(const struct symbol_type *type, uint8_t *to, uint64_t value) {
  const float number = (float)value;
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  if (type->type == ncclFloat) value = bits;
  if (type->type == ncclBfloat16) value = bits >> 16;
  if (type->type == ncclHalf) value = (bits - (UINT32_C(112) << 23)) >> 13; /* bias 127 becomes 15 */
  memcpy(to, &value, type->bytes);
}

static bool is_sum(enum call call) { return call == ALL_REDUCE || call == REDUCE || call == REDUCE_SCATTER; }

/* What element `index` of the rank's output must be. */
static uint64_t wanted(const struct job *job, int rank, size_t index) {
  const int n = run.rank_count, block = (int)(index / job->count);
  const size_t own = (size_t)rank * job->count, within = index % job->count;
  uint64_t sum = 0;
  switch (job->call) {
    case BROADCAST: return symbol(job, job->root, index);
    case ALL_GATHER:
    case GATHER: return symbol(job, block, within);
    case ALL_TO_ALL: return symbol(job, block, own + within);
    case SCATTER: return symbol(job, job->root, own + within);
    case EXCHANGE: return symbol(job, (rank + n - 1) % n, index);
    default: break;
  }
  for (int r = 0; r < n; r++) sum += symbol(job, r, (job->call == REDUCE_SCATTER ? own : 0) + index);
  return sum;
}

/* ---- memory ---- */

static bool rank_receives(const struct job *job, int rank) {
  return (job->call != REDUCE && job->call != GATHER) || rank == job->root;
}

static struct places places_of(const struct job *job, int rank) {
  const size_t count = job->count, all = count * (size_t)run.rank_count, bytes = job->type->bytes;
  const enum call call = job->call;
  const bool takes_all = call == REDUCE_SCATTER || call == ALL_TO_ALL || call == SCATTER;
  const bool gives_all = call == ALL_GATHER || call == ALL_TO_ALL || call == GATHER;
  struct places places = {.in_count = takes_all ? all : count, .out_count = gives_all ? all : count};
  places.in = places.out = GUARD + job->number / 2 % 3 * bytes; /* not always aligned */
  if (!job->in_place) {
    places.out = (places.in + places.in_count * bytes + 15) / 16 * 16 + GUARD + job->number / 3 % 2 * bytes;
    places.end = places.out + places.out_count * bytes + GUARD;
  } else {
    places.end = places.in + (takes_all || gives_all ? all : count) * bytes + GUARD;
    if (gives_all) places.in += (size_t)rank * count * bytes;
    if (takes_all) places.out += (size_t)rank * count * bytes;
  }
  return places;
}

/* The rank's memory before the call. */
static void image_begin(const struct job *job, int rank, const struct places *places) {
  for (size_t i = 0; i < places->end; i += 8) {
    const uint64_t noise = mix(~i * 31 + job->number + ((uint64_t)rank << 40));
    memcpy(run.before + i, &noise, 8);
  }
  for (size_t i = 0; i < places->in_count; i++)
    element_write(job->type, run.before + places->in + i * job->type->bytes, symbol(job, rank, i));
}

static void image_end(const struct job *job, int rank, const struct places *places) {
  for (size_t i = 0; i < places->out_count && rank_receives(job, rank); i++)
    element_write(job->type, run.before + places->out + i * job->type->bytes, wanted(job, rank, i));
}

/* ---- plans ---- */

static const uint8_t *record_map(size_t *bytes) {
  const int file = open(run.record, O_RDONLY);
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0) {
    printf("failed: no record file %s\n", run.record);
    exit(1);
  }
  const uint8_t *map = (const uint8_t *)mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  *bytes = (size_t)about.st_size;
  if (map == MAP_FAILED) exit(1);
  return map;
}

/* The plan that the process's first rank launched last. */
static struct record_plan plan_last(void) {
  static const uint8_t *map;
  static size_t bytes;
  struct record_plan none = {0};
  if (map == NULL) map = record_map(&bytes);
  const struct record_header *header = (const struct record_header *)(const void *)map;
  size_t at = header->header_bytes;
  while (at + RECORD_COMM_BYTES <= bytes && at < header->used_bytes) {
    const struct record_comm *comm = (const struct record_comm *)(const void *)(map + at);
    if (comm->section.bytes == 0) break;
    for (uint64_t i = comm->tail;
         (int)comm->rank == run.first && i > 0 && i + comm->ring_records > comm->tail; i--) {
      const size_t row = (i - 1) & (comm->ring_records - 1);
      const uint8_t *place = map + at + comm->ring_offset + row * RECORD_BYTES;
      if (*place != RECORD_LAUNCH) continue;
      const uint32_t number = ((const struct record_launch *)(const void *)place)->plan;
      const struct record_plan *plans =
          (const struct record_plan *)(const void *)(map + at + comm->plan_offset);
      const struct record_plan *plan = plans + number % comm->plan_rows;
      return plan->number == number ? *plan : none;
    }
    at += comm->section.bytes;
  }
  return none;
}

static const char *algo_name(const struct record_plan *plan) {
  static const char *const names[] = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                      "NVLSTree", "PAT",  "Direct",        "TwoShot"};
  return plan->algo < sizeof names / sizeof names[0] ? names[plan->algo] : "?";
}

static const char *proto_name(const struct record_plan *plan) {
  static const char *const names[] = {"LL", "LL128", "Simple"};
  return plan->proto < 3 ? names[plan->proto] : "?";
}

/* Chunks of a channel's part of a block, about: 1, 2 or more. */
static const char *chunks_of(const struct job *job, const struct record_plan *plan) {
  const size_t part = job->count / (plan->channels > 0 ? plan->channels : 1);
  const size_t chunk = plan->chunk_elements > 0 ? plan->chunk_elements : 1;
  return part <= chunk ? "1" : part <= 2 * chunk ? "2" : "more";
}

static void plan_text(const struct job *job, char *text) {
  const struct record_plan plan = plan_last();
  const bool messages =
      job->call == EXCHANGE || job->call == ALL_TO_ALL || job->call == GATHER || job->call == SCATTER;
  if (plan.used == 0) {
    snprintf(text, KEY_BYTES, "%s: no plan is recorded", call_names[job->call]);
    return;
  }
  snprintf(text, KEY_BYTES, "%s %s %s channels=%u works=%u steps=%u/%u chunks=%s%s", call_names[job->call],
           messages && plan.algo == 1 ? "Messages" : algo_name(&plan),
           plan.func == FUNC_COPY ? "-" : proto_name(&plan), plan.channels, plan.works, plan.chunk_steps,
           plan.slice_steps, chunks_of(job, &plan), job->in_place ? " in-place" : "");
}

static void plan_count(const struct job *job) {
  char text[KEY_BYTES];
  plan_text(job, text);
  for (unsigned i = 0; i < run.key_count; i++)
    if (strcmp(run.keys[i], text) == 0) return;
  if (run.key_count == KEYS_MOST) exit(2);
  memcpy(run.keys[run.key_count++], text, KEY_BYTES);
}

/* ---- calls ---- */

static void issue(int r, const struct job *job) {
  const struct places places = places_of(job, r);
  const struct call_arguments arguments = {run.ranks[r].arena + places.in,
                                           run.ranks[r].arena + places.out,
                                           job->count,
                                           job->type->type,
                                           r,
                                           run.rank_count,
                                           job->root,
                                           run.ranks[r].comm,
                                           run.ranks[r].stream};
  call_make(job->call, &arguments);
}

/* What a wrong element is instead, if it is one of the usual faults. */
static void explain(const struct job *job, int rank, size_t index, const struct places *places) {
  const size_t bytes = job->type->bytes;
  const uint8_t *found = run.after + places->out + index * bytes;
  uint8_t other[8];
  for (int r = 0; is_sum(job->call) && r < run.rank_count; r++) {
    const size_t at = (job->call == REDUCE_SCATTER ? (size_t)rank * job->count : 0) + index;
    const uint64_t value = wanted(job, rank, index), part = symbol(job, r, at);
    element_write(job->type, other, value + part);
    if (memcmp(found, other, bytes) == 0) printf(" (rank %d's element is there twice)", r);
    element_write(job->type, other, value - part);
    if (memcmp(found, other, bytes) == 0) printf(" (rank %d's element is missing)", r);
  }
  for (size_t i = 0; i < places->out_count && bytes == 8; i++) {
    element_write(job->type, other, wanted(job, rank, i));
    if (memcmp(found, other, bytes) == 0) printf(" (what element %zu must be)", i);
  }
}

static void wrong(const struct job *job, int rank, const struct places *places, size_t at) {
  const size_t bytes = job->type->bytes;
  const size_t in_end = places->in + places->in_count * bytes,
               out_end = places->out + places->out_count * bytes;
  char text[KEY_BYTES];
  plan_text(job, text);
  printf("wrong: call %u (%s of %zu %s, root %d), plan %s: rank %d, ", job->number, call_names[job->call],
         job->count, job->type->name, job->root, text, rank);
  if (at >= places->out && at < out_end && rank_receives(job, rank)) {
    const size_t index = (at - places->out) / bytes;
    uint64_t found = 0, value = 0;
    memcpy(&found, run.after + places->out + index * bytes, bytes);
    memcpy(&value, run.before + places->out + index * bytes, bytes);
    printf("element %zu is 0x%llx instead of 0x%llx", index, (unsigned long long)found,
           (unsigned long long)value);
    explain(job, rank, index, places);
  } else if (at >= places->in && at < in_end) {
    printf("element %zu of the input is changed", (at - places->in) / bytes);
  } else if (at >= out_end && at < out_end + GUARD) {
    printf("a store past the end: byte %zu behind the output is changed", at - out_end);
  } else if (at >= in_end && at < in_end + GUARD) {
    printf("a store past the end: byte %zu behind the input is changed", at - in_end);
  } else if (at >= places->out && at < out_end) {
    printf("byte %zu of an output that this rank does not have is changed", at - places->out);
  } else {
    printf("a store outside the buffers: byte %zu of the rank's memory is changed", at);
  }
  printf("\n");
  exit(1);
}

static void job_run(const struct job *job) {
  for (int r = run.first; r < run.end; r++) {
    const struct places places = places_of(job, r);
    image_begin(job, r, &places);
    need_device(run.ranks[r].device);
    NEED(cudaMemcpy(run.ranks[r].arena, run.before, places.end, cudaMemcpyHostToDevice));
    NEED(cudaDeviceSynchronize());
  }
  NEED(ncclGroupStart());
  for (int r = run.first; r < run.end; r++) issue(r, job);
  NEED(ncclGroupEnd());
  for (int r = run.first; r < run.end; r++) {
    const struct places places = places_of(job, r);
    need_device(run.ranks[r].device);
    NEED(cudaStreamSynchronize(run.ranks[r].stream));
    NEED(cudaMemcpy(run.after, run.ranks[r].arena, places.end, cudaMemcpyDeviceToHost));
    image_begin(job, r, &places);
    image_end(job, r, &places);
    if (memcmp(run.before, run.after, places.end) == 0) continue;
    for (size_t at = 0; at < places.end; at++)
      if (run.before[at] != run.after[at]) wrong(job, r, &places, at);
  }
  run.calls += 1;
  plan_count(job);
}

/* ---- all sizes ---- */

static bool is_tuned(enum call call) { return is_sum(call) || call == BROADCAST || call == ALL_GATHER; }

/* NCCL_ALGO and NCCL_PROTO leave an option for the call. */
static bool call_is_possible(enum call call) {
  static tutti_tuning_options_t options;
  if (!is_tuned(call)) return true;
  options.size = sizeof options;
  return tutti_comm_tuning_options(run.ranks[run.first].comm, call_names[call], 4096, &options) ==
         ncclSuccess;
}

static void each_size(enum call call) {
  const bool alone = run.out_of_place || call == ALL_TO_ALL || call == EXCHANGE; /* no call in place */
  const bool blocks = call != ALL_REDUCE && call != REDUCE && call != BROADCAST && call != EXCHANGE;
  size_t count = 1, next = 2;
  for (unsigned size = 0;; size++) {
    bool any = false;
    const unsigned third = HALF + size % 3; /* of the types with few bits, one after another */
    for (unsigned t = 0; t < TYPES; t++) {
      if (t >= HALF && t != third) continue;
      struct job job = {
          .call = call, .number = run.calls, .type = &types[t], .count = count + t % 2 * (size % 4)};
      job.in_place = !alone && (size + t) % 2 == 1;
      job.root = (int)(run.calls % (unsigned)run.rank_count);
      if (job.count * (blocks ? (size_t)run.rank_count : 1) * job.type->bytes > run.most) continue;
      job_run(&job);
      any = true;
    }
    if (!any) return;
    const size_t sum = count + next;
    count = next;
    next = sum;
  }
}

static void ranks_open(int gpus, size_t most) {
  ncclUniqueId id;
  run.launch.size = sizeof run.launch;
  NEED(tutti_launch_read(&run.launch));
  const bool alone = run.launch.rank_count <= 1;
  run.rank_count = gpus * (alone ? 1 : run.launch.rank_count);
  run.first = alone ? 0 : gpus * run.launch.rank;
  run.end = run.first + gpus;
  run.most = most;
  run.arena_bytes = 2 * most + 4 * GUARD + 256;
  run.before = (uint8_t *)malloc(run.arena_bytes);
  run.after = (uint8_t *)malloc(run.arena_bytes);
  if (run.before == NULL || run.after == NULL || gpus < 1 || run.rank_count > RANKS_MAX) exit(2);
  if (alone) NEED(ncclGetUniqueId(&id));
  else NEED(tutti_launch_id(&run.launch, &id));
  NEED(ncclGroupStart());
  for (int r = run.first; r < run.end; r++) {
    run.ranks[r].device = (alone ? 0 : gpus * run.launch.local_rank) + r - run.first;
    need_device(run.ranks[r].device);
    NEED(cudaStreamCreateWithFlags(&run.ranks[r].stream, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&run.ranks[r].arena, run.arena_bytes));
    NEED(ncclCommInitRank(&run.ranks[r].comm, run.rank_count, id, r));
  }
  NEED(ncclGroupEnd());
}

static void ranks_close(void) {
  for (int r = run.first; r < run.end; r++) {
    NEED(ncclCommDestroy(run.ranks[r].comm));
    need_device(run.ranks[r].device);
    NEED(cudaFree(run.ranks[r].arena));
    NEED(cudaStreamDestroy(run.ranks[r].stream));
  }
  free(run.before);
  free(run.after);
}

static bool is_named(const char *name, int argc, char **argv) {
  int named = 0;
  for (int i = 4; i < argc; i++) {
    if (strcmp(argv[i], name) == 0) return true;
    named += strcmp(argv[i], "out-of-place") != 0;
  }
  return named == 0;
}

/* Every algorithm and protocol that the tuner may choose for some size, most of them several times. */
static void options_print(void) {
  static tutti_tuning_options_t options;
  for (unsigned call = 0; call < CALLS; call++)
    for (size_t bytes = 1; is_tuned((enum call)call) && bytes <= (size_t)4 << 30; bytes *= 2) {
      options.size = sizeof options;
      NEED(tutti_comm_tuning_options(run.ranks[run.first].comm, call_names[call], bytes, &options));
      for (int i = 0; i < options.option_count; i++)
        printf("%s %s %s\n", call_names[call], options.options[i].algo, options.options[i].proto);
    }
}

static void keys_write(const char *name) {
  FILE *file = fopen(name, "a");
  if (file == NULL) exit(2);
  for (unsigned i = 0; i < run.key_count; i++) fprintf(file, "%s\n", run.keys[i]);
  if (fclose(file) != 0) exit(2);
}

int main(int argc, char **argv) {
  char *usual[] = {argv[0], "0", "16384", "/dev/null", NULL};
  if (argc == 1) argc = 4, argv = usual;
  const bool options = argc == 3 && strcmp(argv[2], "options") == 0;
  if (argc < 4 && !options) return 2;
  const char *folder = getenv("TUTTI_TRACE");
  const bool is_folder = folder != NULL && folder[0] != 0 && folder[strlen(folder) - 1] == '/';
  snprintf(run.record, sizeof run.record, "%splans.%d", is_folder ? folder : "/tmp/", (int)getpid());
  setenv("TUTTI_TRACE", run.record, 1);
  for (int i = 4; i < argc; i++) run.out_of_place |= strcmp(argv[i], "out-of-place") == 0;
  ranks_open(atoi(argv[1]) > 0 ? atoi(argv[1]) : need_ranks(), (size_t)atol(argv[2]));
  if (options && run.first == 0) options_print();
  for (unsigned i = 0; i < CALLS && !options; i++)
    if (is_named(call_names[i], argc, argv) && call_is_possible((enum call)i)) each_size((enum call)i);
  if (run.first == 0 && !options) keys_write(argv[3]);
  ranks_close();
  unlink(run.record);
  if (run.first == 0 && !options)
    printf("%d ranks, %u plans of %u calls: ok\n", run.rank_count, run.key_count, run.calls);
  return 0;
}
