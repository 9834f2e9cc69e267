/* bench_rank.c: the ranks that one host thread drives: communicators, streams, buffers with guard zones,
 * timed calls and checked calls. Uses only the public NCCL and CUDA interfaces, and the cost model's.
 *
 *   a zone:  [ guard | bytes that the call uses ...... | guard ]
 *
 * Before a checked call the guards are filled with a pattern, and the input is written between them; after
 * it, guards and input must be unchanged, and the output right. Both go through the host in parts, so that
 * the host needs no copy of a zone, however many ranks there are. In guarded mode threads wait for each other
 * only inside NCCL and CUDA calls, because the emulator runs only while all threads that own ranks wait in
 * it. */
#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "base/log.h"
#include "tutti.h"

enum { GUARD_BYTES = 512, PATTERN = 0xa5, AGREE_COUNT = 4 };
#define NS_PER_SECOND 1000000000ull

struct bench_rank {
  uint32_t rank;
  ncclComm_t comm;
  cudaStream_t stream;
  unsigned char *send_zone, *receive_zone; /* on the device */
  double *agreed;        /* on the device, only with several processes: AGREE_COUNT values */
  unsigned char *places; /* the same: those of all ranks */
  void *registrations[2];
  ncclWindow_t windows[2];
  ncclRedOp_t op;
  bool owns_op;
  cudaGraph_t captured; /* until graph is made of it */
  cudaGraphExec_t graph;
};

/* The ranks of one thread. */
struct thread_ranks {
  struct bench *bench;
  bool is_first; /* drives rank 0 */
  struct bench_rank *ranks;
  uint32_t count;
  unsigned char *wanted, *found; /* host: a part of a zone, as it should be, and as it is */
  struct oracle_part *expected;  /* a part of an output */
  int *devices;                  /* of the ranks */
};

/* One half of a row. */
struct half_job {
  const struct bench_row *row;
  bool is_in_place;
};

static bool nccl_ok(struct thread_ranks *own, ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return true;
  bench_fail(own->bench, result == ncclSystemError, "%s: %s\n%s", what, api->ncclGetErrorString(result),
             api->ncclGetLastError(NULL));
  return false;
}

static bool cuda_ok(struct thread_ranks *own, cudaError_t error, const char *what) {
  if (error == cudaSuccess) return true;
  const char *report = api->ncclGetLastError(NULL);
  bench_fail(own->bench, error == cudaErrorMemoryAllocation, "%s: %s%s%s", what,
             api->cudaGetErrorString(error), report && *report ? "\n" : "", report ? report : "");
  return false;
}

/* A part of elements of the largest type. */
#define PART_BYTES ((size_t)ORACLE_PART * 8)

static size_t send_zone_bytes(const struct thread_ranks *own) {
  return own->bench->send_bytes + 2 * GUARD_BYTES;
}
static size_t receive_zone_bytes(const struct thread_ranks *own) {
  return own->bench->receive_bytes + 2 * GUARD_BYTES;
}

/* ---- make and free */

static bool ranks_allocate(struct thread_ranks *own, int thread_index) {
  struct bench *bench = own->bench;
  own->count = (uint32_t)bench->flags.ranks_per_thread;
  own->ranks = (struct bench_rank *)os_alloc(own->count * sizeof own->ranks[0]);
  own->wanted = (unsigned char *)os_alloc(PART_BYTES);
  own->found = (unsigned char *)os_alloc(PART_BYTES);
  own->expected = (struct oracle_part *)os_alloc(sizeof *own->expected);
  own->devices = (int *)os_alloc(own->count * sizeof own->devices[0]);
  bool has_memory = own->ranks && own->devices && own->wanted && own->found && own->expected;
  for (uint32_t index = 0; has_memory && index < own->count; index++) {
    const uint32_t of_process = (uint32_t)thread_index * own->count + index;
    own->ranks[index].rank = bench_own_first(bench) + of_process;
    own->devices[index] = (int)bench_own_device(bench, of_process);
  }
  if (!has_memory) bench_fail(bench, true, "host buffers of %u ranks" LOG_OUT_OF_MEMORY, own->count);
  return has_memory;
}

static bool devices_prepare(struct thread_ranks *own) {
  for (uint32_t index = 0; index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    bool is_good =
        cuda_ok(own, api->cudaSetDevice(own->devices[index]), "cudaSetDevice") &&
        cuda_ok(own, api->cudaMalloc((void **)&rank->send_zone, send_zone_bytes(own)), "cudaMalloc") &&
        cuda_ok(own, api->cudaMalloc((void **)&rank->receive_zone, receive_zone_bytes(own)), "cudaMalloc") &&
        cuda_ok(own, api->cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking),
                "cudaStreamCreateWithFlags");
    if (!is_good) return false;
    if (own->bench->launch.rank_count == 1) continue;
    const size_t places_bytes = (size_t)own->bench->flags.rank_count * sizeof own->bench->places[0];
    is_good =
        cuda_ok(own, api->cudaMalloc((void **)&rank->agreed, AGREE_COUNT * sizeof(double)), "cudaMalloc") &&
        cuda_ok(own, api->cudaMalloc((void **)&rank->places, places_bytes), "cudaMalloc");
    if (!is_good) return false;
  }
  return true;
}

static bool comms_init(struct thread_ranks *own) {
  bool is_good = nccl_ok(own, api->ncclGroupStart(), "ncclGroupStart");
  for (uint32_t index = 0; is_good && index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    is_good = cuda_ok(own, api->cudaSetDevice(own->devices[index]), "cudaSetDevice") &&
              nccl_ok(own,
                      api->ncclCommInitRank(&rank->comm, (int)own->bench->flags.rank_count, own->bench->id,
                                            (int)rank->rank),
                      "ncclCommInitRank");
  }
  return nccl_ok(own, api->ncclGroupEnd(), "ncclCommInitRank in a group") && is_good;
}

static ncclResult_t zone_register(struct thread_ranks *own, struct bench_rank *rank, int zone_index) {
  unsigned char *zone = zone_index ? rank->receive_zone : rank->send_zone;
  const size_t bytes = zone_index ? receive_zone_bytes(own) : send_zone_bytes(own);
  if (own->bench->flags.registration == 1) {
    return api->ncclCommRegister(rank->comm, zone, bytes, &rank->registrations[zone_index]);
  }
  return api->ncclCommWindowRegister(rank->comm, zone, bytes, &rank->windows[zone_index],
                                     NCCL_WIN_COLL_SYMMETRIC);
}

static bool zones_register(struct thread_ranks *own) {
  if (!own->bench->flags.registration) return true;
  for (int zone_index = 0; zone_index < 2; zone_index++) {
    bool is_good = nccl_ok(own, api->ncclGroupStart(), "ncclGroupStart");
    for (uint32_t index = 0; is_good && index < own->count; index++) {
      is_good = nccl_ok(own, zone_register(own, &own->ranks[index], zone_index), "registering a buffer");
    }
    if (!nccl_ok(own, api->ncclGroupEnd(), "registering buffers in a group") || !is_good) return false;
  }
  return true;
}

static bool rank_unregister(struct thread_ranks *own, struct bench_rank *rank) {
  for (int zone_index = 0; zone_index < 2; zone_index++) {
    void *registration = rank->registrations[zone_index];
    ncclWindow_t window = rank->windows[zone_index];
    if (registration &&
        !nccl_ok(own, api->ncclCommDeregister(rank->comm, registration), "ncclCommDeregister"))
      return false;
    if (window &&
        !nccl_ok(own, api->ncclCommWindowDeregister(rank->comm, window), "ncclCommWindowDeregister"))
      return false;
  }
  return true;
}

/* After a failure communicators are aborted, as their peers may be gone. */
static void comms_drop(struct thread_ranks *own) {
  for (uint32_t index = 0; index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    if (!rank->comm) continue;
    bool is_good = !bench_has_failed(own->bench) && rank_unregister(own, rank);
    if (is_good) nccl_ok(own, api->ncclCommDestroy(rank->comm), "ncclCommDestroy");
    else api->ncclCommAbort(rank->comm);
  }
}

static void own_drop(struct thread_ranks *own) {
  if (own->ranks) comms_drop(own);
  for (uint32_t index = 0; own->ranks && index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    if (rank->stream) api->cudaStreamDestroy(rank->stream);
    if (rank->send_zone) api->cudaFree(rank->send_zone);
    if (rank->receive_zone) api->cudaFree(rank->receive_zone);
    if (rank->agreed) api->cudaFree(rank->agreed);
    if (rank->places) api->cudaFree(rank->places);
  }
  os_free(own->ranks);
  os_free(own->devices);
  os_free(own->wanted);
  os_free(own->found);
  os_free(own->expected);
}

/* ---- calls */

/* Bytes before a rank's part of a buffer that is used in place. */
static size_t bytes_before_part(const struct half_job *job, uint32_t rank) {
  return rank * job->row->count * oracle_type_bytes(job->row->type);
}

/* Where a rank's send and receive data begin. In place, both are in the zone that holds all parts. */
static unsigned char *send_data(const struct thread_ranks *own, const struct half_job *job,
                                const struct bench_rank *rank) {
  const enum in_place_rule rule = own->bench->collective->in_place;
  if (!job->is_in_place || rule == IN_PLACE_RECEIVE_AT_RANK) return rank->send_zone + GUARD_BYTES;
  return rank->receive_zone + GUARD_BYTES +
         (rule == IN_PLACE_SEND_AT_RANK ? bytes_before_part(job, rank->rank) : 0);
}
static unsigned char *receive_data(const struct thread_ranks *own, const struct half_job *job,
                                   const struct bench_rank *rank) {
  if (job->is_in_place && own->bench->collective->in_place == IN_PLACE_RECEIVE_AT_RANK)
    return rank->send_zone + GUARD_BYTES + bytes_before_part(job, rank->rank);
  return rank->receive_zone + GUARD_BYTES;
}

static ncclResult_t rank_launch(const struct thread_ranks *own, const struct half_job *job,
                                struct bench_rank *rank) {
  struct collective_call call = {
      send_data(own, job, rank),
      receive_data(own, job, rank),
      job->row->count,
      job->row->type,
      rank->op,
      job->row->root > 0 ? job->row->root : 0,
      (int)rank->rank,
      (int)own->bench->flags.rank_count,
      rank->comm,
      rank->stream,
  };
  return collective_launch(own->bench->collective, &call);
}

static bool own_launch(struct thread_ranks *own, const struct half_job *job, int64_t aggregate_count) {
  bool is_good = nccl_ok(own, api->ncclGroupStart(), "ncclGroupStart");
  for (int64_t call = 0; is_good && call < aggregate_count; call++) {
    for (uint32_t index = 0; is_good && index < own->count; index++) {
      is_good = nccl_ok(own, rank_launch(own, job, &own->ranks[index]), own->bench->collective->name);
    }
  }
  return nccl_ok(own, api->ncclGroupEnd(), "ncclGroupEnd") && is_good;
}

/* Waits for a stream, at most --timeout. */
static bool stream_wait(struct thread_ranks *own, struct bench_rank *rank) {
  int64_t timeout_seconds = own->bench->flags.timeout_seconds;
  if (!timeout_seconds)
    return cuda_ok(own, api->cudaStreamSynchronize(rank->stream), "cudaStreamSynchronize");
  uint64_t deadline_ns = os_time_ns() + (uint64_t)timeout_seconds * NS_PER_SECOND;
  for (;;) {
    cudaError_t state = api->cudaStreamQuery(rank->stream);
    if (state != cudaErrorNotReady) return cuda_ok(own, state, "cudaStreamQuery");
    ncclResult_t async = ncclSuccess;
    if (!nccl_ok(own, api->ncclCommGetAsyncError(rank->comm, &async), "ncclCommGetAsyncError")) return false;
    if (async != ncclInProgress && !nccl_ok(own, async, "asynchronous error")) return false;
    if (os_time_ns() < deadline_ns) continue;
    bench_fail(own->bench, false, "rank %u did not finish in %lld s (--timeout)", rank->rank,
               (long long)timeout_seconds);
    return false;
  }
}

static bool own_wait(struct thread_ranks *own) {
  for (uint32_t index = 0; index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    ncclResult_t async = ncclSuccess;
    if (!stream_wait(own, rank)) return false;
    if (!nccl_ok(own, api->ncclCommGetAsyncError(rank->comm, &async), "ncclCommGetAsyncError")) return false;
    if (!nccl_ok(own, async, "asynchronous error")) return false;
  }
  return true;
}

/* Timed iterations: several calls per group and, with --blocking, a wait after each group. */
static bool own_iterate(struct thread_ranks *own, const struct half_job *job, int64_t iteration_count) {
  for (int64_t iteration = 0; iteration < iteration_count; iteration++) {
    if (!own_launch(own, job, own->bench->flags.aggregate_count)) return false;
    if (own->bench->flags.is_blocking && !own_wait(own)) return false;
  }
  return true;
}

/* ---- several processes */

/* Combines the values of all threads' ranks, on all of them: their sum, or the largest. In a sum, `values`
 * counts once per rank of this thread. */
static bool own_agree(struct thread_ranks *own, ncclRedOp_t op, double *values, size_t count) {
  static const double nothing[AGREE_COUNT] = {0};
  for (uint32_t index = 0; index < own->count; index++) {
    const double *mine = index == 0 || op != ncclSum ? values : nothing;
    if (!cuda_ok(
            own,
            api->cudaMemcpy(own->ranks[index].agreed, mine, count * sizeof *mine, cudaMemcpyHostToDevice),
            "cudaMemcpy"))
      return false;
  }
  bool is_good = nccl_ok(own, api->ncclGroupStart(), "ncclGroupStart");
  for (uint32_t index = 0; is_good && index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    is_good = nccl_ok(
        own, api->ncclAllReduce(rank->agreed, rank->agreed, count, ncclDouble, op, rank->comm, rank->stream),
        "what processes agree on");
  }
  is_good = nccl_ok(own, api->ncclGroupEnd(), "ncclGroupEnd") && is_good && own_wait(own);
  return is_good && cuda_ok(own,
                            api->cudaMemcpy(values, own->ranks[0].agreed, count * sizeof *values,
                                            cudaMemcpyDeviceToHost),
                            "cudaMemcpy");
}

static bool is_alone(const struct thread_ranks *own) { return own->bench->launch.rank_count == 1; }

/* Waits for all threads of all processes. */
static bool own_barrier(struct thread_ranks *own) {
  double nothing = 0;
  if (!is_alone(own) && !own_agree(own, ncclMax, &nothing, 1)) return false;
  return own->bench->is_modelled || bench_barrier(own->bench);
}

/* Combines both halves of a row over all processes: the slowest time, the sum of faults. Only the process's
 * first thread keeps the faults, so that they count once. */
static bool parts_agree(struct thread_ranks *own, struct bench_half *parts) {
  double times[2], faults[4];
  if (is_alone(own)) return true;
  for (int half = 0; half < 2; half++) {
    times[half] = isnan(parts[half].time_us) ? -1 : parts[half].time_us;
    faults[half] = (double)parts[half].wrong;
    faults[2 + half] = (double)parts[half].out_of_bounds;
  }
  if (!own_agree(own, ncclMax, times, 2) || !own_agree(own, ncclSum, faults, 4)) return false;
  for (int half = 0; half < 2; half++) {
    parts[half].time_us = times[half] < 0 ? NAN : times[half];
    parts[half].wrong = own->is_first ? (uint64_t)faults[half] : 0;
    parts[half].out_of_bounds = own->is_first ? (uint64_t)faults[2 + half] : 0;
  }
  return true;
}

static bool places_gather(struct thread_ranks *own, unsigned char *all, size_t place_bytes) {
  bool is_good = nccl_ok(own, api->ncclGroupStart(), "ncclGroupStart");
  for (uint32_t index = 0; is_good && index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    unsigned char *copy = rank->places;
    is_good = cuda_ok(own,
                      api->cudaMemcpy(copy + rank->rank * place_bytes, &own->bench->places[rank->rank],
                                      place_bytes, cudaMemcpyHostToDevice),
                      "cudaMemcpy") &&
              nccl_ok(own,
                      api->ncclAllGather(copy + rank->rank * place_bytes, copy, place_bytes, ncclUint8,
                                         rank->comm, rank->stream),
                      "where ranks run");
  }
  is_good = nccl_ok(own, api->ncclGroupEnd(), "ncclGroupEnd") && is_good && own_wait(own);
  const size_t bytes = (size_t)own->bench->flags.rank_count * place_bytes;
  return is_good && cuda_ok(own, api->cudaMemcpy(all, own->ranks[0].places, bytes, cudaMemcpyDeviceToHost),
                            "cudaMemcpy");
}

/* Exchanges where all ranks run, before the table begins. */
static bool places_learn(struct thread_ranks *own) {
  struct bench *bench = own->bench;
  const size_t place_bytes = sizeof bench->places[0], bytes = (size_t)bench->flags.rank_count * place_bytes;
  if (is_alone(own)) return true;
  unsigned char *all = (unsigned char *)os_alloc(bytes);
  bool is_good = all != NULL;
  if (!is_good) bench_fail(bench, true, "the places of all ranks" LOG_OUT_OF_MEMORY);
  is_good = is_good && places_gather(own, all, place_bytes);
  if (is_good && own->is_first) {
    os_mutex_lock(&bench->mutex);
    memcpy(bench->places, all, bytes);
    os_mutex_unlock(&bench->mutex);
    if (!bench->flags.tune_path) bench_table_begin(bench);
  }
  os_free(all);
  return is_good;
}

/* ---- graphs */

static bool graph_make(struct thread_ranks *own, struct bench_rank *rank) {
  if (!rank->captured) return false;
  bool is_good = cuda_ok(own, api->cudaGraphInstantiateWithFlags(&rank->graph, rank->captured, 0),
                         "cudaGraphInstantiate");
  api->cudaGraphDestroy(rank->captured);
  rank->captured = NULL;
  return is_good;
}

/* Captures groups of calls of all ranks, each rank's into its own graph. */
static bool graphs_capture(struct thread_ranks *own, const struct half_job *job, int64_t group_count,
                           int64_t aggregate_count) {
  for (uint32_t index = 0; index < own->count; index++) {
    cudaError_t begun =
        api->cudaStreamBeginCapture(own->ranks[index].stream, cudaStreamCaptureModeThreadLocal);
    if (!cuda_ok(own, begun, "cudaStreamBeginCapture")) return false;
  }
  bool is_good = true;
  for (int64_t group = 0; is_good && group < group_count; group++) {
    is_good = own_launch(own, job, aggregate_count);
  }
  for (uint32_t index = 0; index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    is_good =
        cuda_ok(own, api->cudaStreamEndCapture(rank->stream, &rank->captured), "cudaStreamEndCapture") &&
        is_good;
  }
  /* A thread makes no graph while it captures another stream. */
  for (uint32_t index = 0; index < own->count; index++) {
    is_good = graph_make(own, &own->ranks[index]) && is_good;
  }
  return is_good;
}

static bool graphs_launch(struct thread_ranks *own, int64_t launch_count) {
  for (int64_t launch = 0; launch < launch_count; launch++) {
    for (uint32_t index = 0; index < own->count; index++) {
      struct bench_rank *rank = &own->ranks[index];
      if (!cuda_ok(own, api->cudaGraphLaunch(rank->graph, rank->stream), "cudaGraphLaunch")) return false;
    }
  }
  return true;
}

static void graphs_drop(struct thread_ranks *own) {
  for (uint32_t index = 0; index < own->count; index++) {
    if (own->ranks[index].graph) api->cudaGraphExecDestroy(own->ranks[index].graph);
    own->ranks[index].graph = NULL;
  }
}

/* ---- data */

static struct oracle_case case_of(const struct thread_ranks *own, const struct half_job *job,
                                  int64_t check_index) {
  const struct bench_flags *flags = &own->bench->flags;
  struct oracle_case c = {
      own->bench->collective->id,
      job->row->type,
      job->row->op,
      (uint32_t)flags->rank_count,
      job->row->root > 0 ? (uint32_t)job->row->root : 0,
      job->row->count,
      flags->seed + 2 * (uint64_t)check_index + job->is_in_place,
  };
  return c;
}

static bool to_device(struct thread_ranks *own, void *device, const void *host, size_t bytes) {
  return bytes == 0 ||
         cuda_ok(own, api->cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}
static bool to_host(struct thread_ranks *own, void *host, const void *device, size_t bytes) {
  return bytes == 0 ||
         cuda_ok(own, api->cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

/* Bytes that a call must not write. */
struct guard {
  unsigned char *begin;
  size_t bytes;
};

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static bool guard_write(struct thread_ranks *own, const struct guard *guard) {
  memset(own->wanted, PATTERN, least(guard->bytes, PART_BYTES));
  for (size_t done = 0; done < guard->bytes; done += PART_BYTES) {
    const size_t bytes = least(guard->bytes - done, PART_BYTES);
    if (!to_device(own, guard->begin + done, own->wanted, bytes)) return false;
  }
  return true;
}

static uint64_t bytes_altered(const unsigned char *wanted, const unsigned char *found, size_t bytes) {
  uint64_t altered = 0;
  if (memcmp(wanted, found, bytes) == 0) return 0;
  for (size_t index = 0; index < bytes; index++) altered += wanted[index] != found[index];
  return altered;
}

static bool guard_compare(struct thread_ranks *own, const struct guard *guard, uint64_t *altered) {
  memset(own->wanted, PATTERN, least(guard->bytes, PART_BYTES));
  for (size_t done = 0; done < guard->bytes; done += PART_BYTES) {
    const size_t bytes = least(guard->bytes - done, PART_BYTES);
    if (!to_host(own, own->found, guard->begin + done, bytes)) return false;
    *altered += bytes_altered(own->wanted, own->found, bytes);
  }
  return true;
}

/* The guards before and after the used bytes of a zone; all of a buffer that the call does not use. */
static void guards_place(const struct half_job *job, unsigned char *zone, size_t used_bytes,
                         struct guard guards[2]) {
  unsigned char *end = zone + GUARD_BYTES + used_bytes;
  guards[0] = (struct guard){zone, GUARD_BYTES};
  guards[1] = (struct guard){end, GUARD_BYTES + (used_bytes == 0 ? job->row->bytes : 0)};
}

/* Those of the zones that a call of this rank is given: one in place, which it may change as a whole. Returns
 * how many. */
static int guards_of(const struct thread_ranks *own, const struct half_job *job, const struct oracle_case *c,
                     const struct bench_rank *rank, struct guard guards[4]) {
  const size_t type_bytes = oracle_type_bytes(c->type);
  const bool at_send = own->bench->collective->in_place == IN_PLACE_RECEIVE_AT_RANK;
  if (job->is_in_place) {
    guards_place(job, at_send ? rank->send_zone : rank->receive_zone, job->row->bytes, guards);
    return 2;
  }
  guards_place(job, rank->send_zone, oracle_send_count(c, rank->rank) * type_bytes, guards);
  guards_place(job, rank->receive_zone, oracle_receive_count(c, rank->rank) * type_bytes, guards + 2);
  return 4;
}

/* Puts a part of the rank's input, from element `first` on, into own->wanted: without checks the data is
 * arbitrary. Returns its bytes; 0 at the end. */
static size_t input_part(struct thread_ranks *own, const struct oracle_case *c, uint32_t rank, size_t first) {
  const size_t total = oracle_send_count(c, rank), type_bytes = oracle_type_bytes(c->type);
  if (first >= total) return 0;
  const size_t count = least(total - first, ORACLE_PART);
  if (own->bench->flags.check_count > 0) oracle_input(c, rank, first, count, own->wanted);
  else memset(own->wanted, PATTERN, count * type_bytes);
  return count * type_bytes;
}

static bool input_load(struct thread_ranks *own, const struct half_job *job, const struct oracle_case *c,
                       const struct bench_rank *rank) {
  unsigned char *data = send_data(own, job, rank);
  size_t bytes;
  for (size_t first = 0; (bytes = input_part(own, c, rank->rank, first)) > 0; first += ORACLE_PART) {
    if (!to_device(own, data, own->wanted, bytes)) return false;
    data += bytes;
  }
  return true;
}

static bool zones_load(struct thread_ranks *own, const struct half_job *job, const struct oracle_case *c) {
  struct guard guards[4];
  for (uint32_t index = 0; index < own->count; index++) {
    const struct bench_rank *rank = &own->ranks[index];
    const int count = guards_of(own, job, c, rank, guards);
    for (int guard = 0; guard < count; guard++)
      if (!guard_write(own, &guards[guard])) return false;
    if (!input_load(own, job, c, rank)) return false;
  }
  return true;
}

/* Out-of-place calls must leave the send buffer as it was. */
static bool input_compare(struct thread_ranks *own, const struct half_job *job, const struct oracle_case *c,
                          const struct bench_rank *rank, uint64_t *altered) {
  const unsigned char *data = send_data(own, job, rank);
  size_t bytes;
  for (size_t first = 0; (bytes = input_part(own, c, rank->rank, first)) > 0; first += ORACLE_PART) {
    if (!to_host(own, own->found, data, bytes)) return false;
    *altered += bytes_altered(own->wanted, own->found, bytes);
    data += bytes;
  }
  return true;
}

/* Compares the elements of all outputs from `first` on, a part of each. *count: how many of the longest; 0 at
 * the end. What all ranks expect is computed once. */
static bool outputs_compare(struct thread_ranks *own, const struct half_job *job, const struct oracle_case *c,
                            size_t first, size_t *longest, uint64_t *wrong,
                            struct oracle_mismatch *mismatch) {
  const size_t type_bytes = oracle_type_bytes(c->type);
  size_t count = 0;
  *longest = 0;
  for (uint32_t index = 0; index < own->count; index++) {
    const struct bench_rank *rank = &own->ranks[index];
    const unsigned char *data = receive_data(own, job, rank) + first * type_bytes;
    struct oracle_mismatch found;
    if (index == 0 || !oracle_is_shared(c)) count = oracle_expect(c, rank->rank, first, own->expected);
    if (count > *longest) *longest = count;
    if (count == 0) continue;
    if (!to_host(own, own->found, data, count * type_bytes)) return false;
    const uint64_t more = oracle_compare(c, count, own->expected, own->found, &found);
    if (more > 0 && *wrong == 0) {
      *mismatch = found;
      mismatch->rank = rank->rank;
      mismatch->index += first;
    }
    *wrong += more;
  }
  return true;
}

static void mismatch_report(const struct thread_ranks *own, const struct half_job *job, uint64_t wrong,
                            const struct oracle_mismatch *first) {
  fprintf(stderr,
          "tutti bench: %s of %zu bytes, %s %s, %s: %llu wrong elements, the first at rank %u element %zu: "
          "got %.17g, expected %.17g within %.3g\n",
          own->bench->collective->name, job->row->bytes, bench_type_name(job->row->type),
          bench_op_name(own->bench, job->row->op), job->is_in_place ? "in place" : "out of place",
          (unsigned long long)wrong, first->rank, first->index, first->got, first->expected,
          first->tolerance);
}

static bool half_verify(struct thread_ranks *own, const struct half_job *job, const struct oracle_case *c,
                        struct bench_half *part) {
  struct oracle_mismatch mismatch;
  struct guard guards[4];
  uint64_t wrong = 0;
  for (uint32_t index = 0; index < own->count; index++) {
    const struct bench_rank *rank = &own->ranks[index];
    const int count = guards_of(own, job, c, rank, guards);
    for (int guard = 0; guard < count; guard++)
      if (!guard_compare(own, &guards[guard], &part->out_of_bounds)) return false;
    if (!job->is_in_place && !input_compare(own, job, c, rank, &part->out_of_bounds)) return false;
  }
  for (size_t first = 0, count = 1; count > 0; first += ORACLE_PART)
    if (!outputs_compare(own, job, c, first, &count, &wrong, &mismatch)) return false;
  if (wrong > 0) mismatch_report(own, job, wrong, &mismatch);
  part->wrong += wrong;
  return true;
}

/* ---- halves and rows */

static void moving_count(struct thread_ranks *own, uint64_t start_ns) {
  if (!own->is_first) return;
  os_mutex_lock(&own->bench->mutex);
  own->bench->moving_ns += os_time_ns() - start_ns;
  os_mutex_unlock(&own->bench->mutex);
}

/* One checked call with new data. It is not grouped, because calls of a group may run at once and would share
 * the buffer. */
static bool half_check(struct thread_ranks *own, const struct half_job *job, int64_t check_index,
                       struct bench_half *part) {
  struct oracle_case c = case_of(own, job, check_index);
  bool has_graph = own->bench->flags.graph_launches > 0;
  if (!zones_load(own, job, &c)) return false;
  uint64_t start_ns = os_time_ns();
  bool is_good =
      has_graph ? graphs_capture(own, job, 1, 1) && graphs_launch(own, 1) : own_launch(own, job, 1);
  is_good = is_good && own_wait(own);
  moving_count(own, start_ns);
  graphs_drop(own);
  return is_good && half_verify(own, job, &c, part);
}

/* The timed calls; microseconds of one call. In guarded mode they run as well, but the time is the model's.
 */
static bool half_time(struct thread_ranks *own, const struct half_job *job, double *time_us) {
  struct bench *bench = own->bench;
  const struct bench_flags *flags = &bench->flags;
  struct oracle_case c = case_of(own, job, -1);
  bool has_graph = flags->graph_launches > 0;
  if (flags->warmup_count + flags->iteration_count == 0) return true;
  if (!zones_load(own, job, &c) || !own_iterate(own, job, flags->warmup_count) || !own_wait(own))
    return false;
  if (flags->iteration_count == 0) return true;
  if (has_graph && !graphs_capture(own, job, flags->iteration_count, flags->aggregate_count)) return false;
  if (!own_barrier(own)) return false;
  uint64_t start_ns = os_time_ns();
  bool is_good =
      has_graph ? graphs_launch(own, flags->graph_launches) : own_iterate(own, job, flags->iteration_count);
  uint64_t enqueued_ns = os_time_ns();
  is_good = is_good && own_wait(own);
  uint64_t end_ns = flags->is_cpu_time ? enqueued_ns : os_time_ns();
  moving_count(own, start_ns);
  graphs_drop(own);
  int64_t calls = flags->iteration_count * flags->aggregate_count * (has_graph ? flags->graph_launches : 1);
  *time_us = (double)(end_ns - start_ns) * 1e-3 / (double)calls;
  return is_good;
}

/* A pre-multiplied sum has a factor for each rank, so the operator is created again for each row. */
static bool ops_create(struct thread_ranks *own, const struct bench_row *row) {
  static const ncclRedOp_t builtin[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  for (uint32_t index = 0; index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    rank->op = row->op == ORACLE_MUL_SUM ? ncclSum : builtin[row->op];
    if (row->op != ORACLE_MUL_SUM || !own->bench->collective->has_op) continue;
    struct half_job job = {row, false};
    struct oracle_case c = case_of(own, &job, 0);
    uint64_t scalar = 0;
    oracle_scalar(&c, rank->rank, &scalar);
    ncclResult_t made =
        api->ncclRedOpCreatePreMulSum(&rank->op, &scalar, row->type, ncclScalarHostImmediate, rank->comm);
    if (!nccl_ok(own, made, "ncclRedOpCreatePreMulSum")) return false;
    rank->owns_op = true;
  }
  return true;
}

static bool ops_destroy(struct thread_ranks *own) {
  for (uint32_t index = 0; index < own->count; index++) {
    struct bench_rank *rank = &own->ranks[index];
    if (rank->owns_op && !nccl_ok(own, api->ncclRedOpDestroy(rank->op, rank->comm), "ncclRedOpDestroy"))
      return false;
    rank->owns_op = false;
  }
  return true;
}

static bool half_run(struct thread_ranks *own, const struct bench_row *row, bool is_in_place,
                     struct bench_half *part) {
  const struct bench *bench = own->bench;
  struct half_job job = {row, is_in_place};
  double time_us = NAN;
  if (!half_time(own, &job, &time_us)) return false;
  if (own->is_first)
    bench_progress(own->bench, row, bench->flags.warmup_count + bench->flags.iteration_count);
  for (int64_t check = 0; check < bench->flags.check_count; check++) {
    if (!half_check(own, &job, check, part)) return false;
    if (own->is_first) bench_progress(own->bench, row, 1);
  }
  if (bench->is_modelled &&
      tutti_model_time(own->ranks[0].comm, bench->collective->name, row->bytes, &time_us) != ncclSuccess) {
    time_us = NAN;
  }
  part->is_run = true;
  part->time_us = time_us;
  return true;
}

static bool rows_run(struct thread_ranks *own) {
  struct bench *bench = own->bench;
  for (size_t index = 0; index < bench->row_count; index++) {
    struct bench_row *row = &bench->rows[index];
    struct bench_half parts[2];
    memset(parts, 0, sizeof parts);
    bool is_good = ops_create(own, row);
    if (is_good && bench_has_out_of_place(bench)) is_good = half_run(own, row, false, &parts[0]);
    if (is_good && bench_has_in_place(bench)) is_good = half_run(own, row, true, &parts[1]);
    if (!is_good || !parts_agree(own, parts) || !ops_destroy(own)) {
      bench_fail(bench, false, "stopped at %zu bytes", row->bytes);
      return false;
    }
    bench_row_report(bench, row, parts, own->is_first);
  }
  return true;
}

static void memory_report(const struct thread_ranks *own) {
  for (uint32_t index = 0; api->tutti_comm_memory && index < own->count; index++) {
    uint64_t bytes = 0;
    if (api->tutti_comm_memory(own->ranks[index].comm, &bytes) != ncclSuccess) return;
    fprintf(stderr, "tutti bench: rank %u: %llu bytes of library memory\n", own->ranks[index].rank,
            (unsigned long long)bytes);
  }
}

/* The machine of the predicted times; they are printed without it if the library does not name it. */
static void model_ask(struct thread_ranks *own) {
  struct bench *bench = own->bench;
  os_mutex_lock(&bench->mutex);
  if (tutti_model_text(own->ranks[0].comm, bench->model, sizeof bench->model) != ncclSuccess)
    bench->model[0] = '\0';
  os_mutex_unlock(&bench->mutex);
}

static bool options_ask(struct thread_ranks *own, tutti_tuning_options_t *options) {
  struct bench *bench = own->bench;
  const size_t bytes = bench->rows[bench->row_count - 1].bytes;
  options->size = sizeof *options;
  return nccl_ok(own,
                 api->tutti_comm_tuning_options(own->ranks[0].comm, bench->collective->name, bytes, options),
                 "tutti_comm_tuning_options");
}

/* A settings file, or a library that does not read its environment again, can prevent the forced option. */
static bool option_check(struct thread_ranks *own) {
  const tutti_tuning_option_t *forced = own->bench->forced;
  tutti_tuning_options_t options;
  if (!forced) return true;
  if (!options_ask(own, &options)) return false;
  if (options.option_count > 0 && strcmp(options.options[0].algo, forced->algo) == 0 &&
      strcmp(options.options[0].proto, forced->proto) == 0)
    return true;
  bench_fail(own->bench, false, "the library takes %s %s instead", options.options[0].algo,
             options.options[0].proto);
  return false;
}

void bench_ranks_run(struct bench *bench, int thread_index) {
  struct thread_ranks own;
  memset(&own, 0, sizeof own);
  own.bench = bench;
  own.is_first = thread_index == 0;
  const bool has_comms = ranks_allocate(&own, thread_index) && devices_prepare(&own) && comms_init(&own);
  if (has_comms && bench->options && own.is_first) options_ask(&own, bench->options);
  const bool is_ready =
      has_comms && !bench->options && option_check(&own) && zones_register(&own) && places_learn(&own);
  if (is_ready && bench->is_modelled && own.is_first) model_ask(&own);
  const bool has_run = is_ready && rows_run(&own);
  if (has_run && bench->flags.verbose) memory_report(&own);
  /* cudaFree waits for the device's kernels, and keeps other threads from what theirs wait for. */
  if (has_run && !bench->is_modelled) bench_barrier(bench);
  own_drop(&own);
}
