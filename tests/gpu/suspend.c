/* suspend.c: communicators that are suspended and resumed, of one process and of several: the devices' memory
 * is back while they are, results have the same bits afterwards, and a CUDA graph that lives forbids it. */
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>

#include "rendezvous.h"

enum { COUNT = 1 << 18, TURNS = 3, PROCESSES = 3 };

struct rank {
  ncclComm_t comm;
  cudaStream_t stream;
  float *in, *out;
  float *first[2]; /* what the first calls have written */
};

static float host[COUNT];

static void rank_open(struct rank *rank, int number) {
  NEED(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&rank->in, sizeof host));
  NEED(cudaMalloc((void **)&rank->out, sizeof host));
  for (int i = 0; i < COUNT; i++) host[i] = (float)(i % 101 + 1) / (float)(number + 3);
  NEED(cudaMemcpyAsync(rank->in, host, sizeof host, cudaMemcpyHostToDevice, rank->stream));
  NEED(cudaStreamSynchronize(rank->stream));
}

static void rank_close(struct rank *rank) {
  NEED(cudaFree(rank->in));
  NEED(cudaFree(rank->out));
  NEED(cudaStreamDestroy(rank->stream));
  free(rank->first[0]);
  free(rank->first[1]);
}

static void rank_call(const struct rank *rank, int call, int size) {
  if (call == 0)
    NEED(ncclAllReduce(rank->in, rank->out, COUNT, ncclFloat, ncclSum, rank->comm, rank->stream));
  else NEED(ncclAlltoAll(rank->in, rank->out, (size_t)(COUNT / size), ncclFloat, rank->comm, rank->stream));
}

/* The call's results are those of its first time. */
static void rank_check(struct rank *rank, int call, int size) {
  const size_t bytes = call == 0 ? sizeof host : (size_t)(COUNT / size) * (size_t)size * sizeof *host;
  NEED(cudaMemcpyAsync(host, rank->out, bytes, cudaMemcpyDeviceToHost, rank->stream));
  NEED(cudaStreamSynchronize(rank->stream));
  if (rank->first[call] != NULL) NEED(memcmp(rank->first[call], host, bytes) != 0);
  if (rank->first[call] == NULL) {
    rank->first[call] = (float *)malloc(sizeof host);
    NEED(rank->first[call] == NULL);
    memcpy(rank->first[call], host, bytes);
  }
}

static size_t bytes_free(void) {
  size_t left = 0, total = 0;
  NEED(cudaMemGetInfo(&left, &total));
  return left;
}

/* Whether half of the bytes at least are free while suspended, as memory is given back in pieces. Where calls
 * took none (`fresh`: before them), it is no memory of devices: the emulator's. */
static int is_back(size_t fresh, size_t used, uint64_t bytes) {
  return fresh <= used || bytes_free() >= used + bytes / 2;
}

static uint64_t stat_of(const struct rank *rank, ncclCommMemStat_t stat) {
  uint64_t value = 0;
  NEED(ncclCommMemStats(rank->comm, stat, &value));
  return value;
}

/* ---- one process ---- */

static void calls_here(struct rank *ranks, int size) {
  for (int call = 0; call < 2; call++) {
    NEED(ncclGroupStart());
    for (int r = 0; r < size; r++) rank_call(&ranks[r], call, size);
    NEED(ncclGroupEnd());
    for (int r = 0; r < size; r++) {
      need_device(r);
      rank_check(&ranks[r], call, size);
    }
  }
}

static void suspend_here(const struct rank *ranks, int size, int resumes) {
  NEED(ncclGroupStart());
  for (int r = 0; r < size; r++)
    NEED(resumes ? ncclCommResume(ranks[r].comm) : ncclCommSuspend(ranks[r].comm, NCCL_SUSPEND_MEM));
  NEED(ncclGroupEnd());
}

static void turn_here(struct rank *ranks, int size) {
  need_device(0);
  const size_t fresh = bytes_free();
  calls_here(ranks, size);
  calls_here(ranks, size); /* those that are kept */
  need_device(0);
  const size_t used = bytes_free();
  const uint64_t bytes = stat_of(&ranks[0], ncclStatGpuMemSuspend);
  suspend_here(ranks, size, 0);
  need_device(0);
  NEED(!is_back(fresh, used, bytes));
  NEED(stat_of(&ranks[0], ncclStatGpuMemSuspended) != 1);
  NEED(stat_of(&ranks[0], ncclStatGpuMemSuspend) != bytes);
  NEED(stat_of(&ranks[0], ncclStatGpuMemTotal) != stat_of(&ranks[0], ncclStatGpuMemPersist));
  NEED(ncclAllReduce(ranks[0].in, ranks[0].out, 1, ncclFloat, ncclSum, ranks[0].comm, ranks[0].stream) !=
       ncclInvalidUsage);
  suspend_here(ranks, size, 1);
  NEED(stat_of(&ranks[0], ncclStatGpuMemSuspended) != 0);
}

static void graph_here(struct rank *ranks, int size) {
  cudaGraph_t graphs[RANKS_MAX];
  cudaGraphExec_t execs[RANKS_MAX];
  if (size == 1) return; /* its kernels use no connection */
  for (int r = 0; r < size; r++) {
    need_device(r);
    NEED(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeThreadLocal));
  }
  NEED(ncclGroupStart());
  for (int r = 0; r < size; r++) rank_call(&ranks[r], 0, size);
  NEED(ncclGroupEnd());
  for (int r = 0; r < size; r++) {
    need_device(r);
    NEED(cudaStreamEndCapture(ranks[r].stream, &graphs[r]));
  }
  for (int r = 0; r < size; r++) {
    need_device(r);
    NEED(cudaGraphInstantiate(&execs[r], graphs[r], 0));
    NEED(cudaGraphDestroy(graphs[r]));
  }
  for (int r = 0; r < size; r++) {
    need_device(r);
    NEED(ncclCommSuspend(ranks[r].comm, NCCL_SUSPEND_MEM) != ncclInvalidUsage);
    NEED(strstr(ncclGetLastError(NULL), "destroy the graph") == NULL);
    NEED(cudaGraphLaunch(execs[r], ranks[r].stream));
  }
  for (int r = 0; r < size; r++) {
    need_device(r);
    rank_check(&ranks[r], 0, size);
    NEED(cudaGraphExecDestroy(execs[r]));
  }
}

static void run_here(int size) {
  static struct rank ranks[RANKS_MAX];
  ncclComm_t comms[RANKS_MAX];
  need_comms(comms, size);
  for (int r = 0; r < size; r++) {
    need_device(r);
    ranks[r].comm = comms[r];
    rank_open(&ranks[r], r);
  }
  for (int turn = 0; turn < TURNS; turn++) {
    turn_here(ranks, size);
    calls_here(ranks, size);
    graph_here(ranks, size);
  }
  for (int r = 0; r < size; r++) {
    NEED(ncclCommDestroy(comms[r]));
    rank_close(&ranks[r]);
  }
}

/* ---- several processes ---- */

static void calls_alone(struct rank *rank, int size) {
  for (int call = 0; call < 2; call++) {
    rank_call(rank, call, size);
    rank_check(rank, call, size);
  }
}

static void run_process(int number, int size) {
  static struct rank rank;
  NEED(!rendezvous_device(size, number));
  rendezvous_comm(&rank.comm, size, number);
  rank_open(&rank, number);
  for (int turn = 0; turn < TURNS; turn++) {
    rendezvous_barrier(size);
    const size_t fresh = bytes_free();
    rendezvous_barrier(size);
    calls_alone(&rank, size);
    calls_alone(&rank, size);
    rendezvous_barrier(size);
    const size_t used = bytes_free();
    const uint64_t bytes = stat_of(&rank, ncclStatGpuMemSuspend);
    rendezvous_barrier(size);
    NEED(ncclCommSuspend(rank.comm, NCCL_SUSPEND_MEM));
    rendezvous_barrier(size);
    NEED(!is_back(fresh, used, bytes));
    NEED(stat_of(&rank, ncclStatGpuMemSuspended) != 1);
    rendezvous_barrier(size);
    NEED(ncclCommResume(rank.comm));
  }
  calls_alone(&rank, size);
  NEED(ncclCommDestroy(rank.comm));
  rank_close(&rank);
}

static pid_t process_start(int number, int size) {
  const pid_t child = fork(); /* before CUDA is used */
  NEED(child < 0);
  if (child != 0) return child;
  if (number < size) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); /* there may be one GPU */
  if (number < size) run_process(number, size);
  else run_here(need_ranks());
  exit(0);
}

/* Ends all if one fails: the others would wait for it. */
static int processes_wait(const pid_t *children, int count) {
  int bad = 0;
  for (int status; wait(&status) > 0;) {
    for (int i = 0; status != 0 && i < count; i++) kill(children[i], SIGKILL);
    bad |= status;
  }
  return bad;
}

int main(void) {
  const char *asked = getenv("NEED_RANKS");
  const int size = asked != NULL && atoi(asked) < RANKS_MAX ? atoi(asked) : PROCESSES;
  pid_t children[RANKS_MAX];
  rendezvous_open();
  for (int number = 0; number < size; number++) children[number] = process_start(number, size);
  int bad = processes_wait(children, size);
  children[0] = process_start(size, size);
  bad |= processes_wait(children, 1);
  if (bad == 0) printf("suspend: memory was given back, and results have the same bits: ok\n");
  return bad != 0;
}
