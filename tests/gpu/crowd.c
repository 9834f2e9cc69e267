/* crowd.c: several communicators of the same ranks, whose kernels are under way at once, each on a stream of
 * its own. The stream of one rank is late for the first communicator: the kernels of the others then take the
 * multiprocessors there, and on the other GPUs the first one's do. If they do not all fit, kernels that
 * wait for each other must not wait for its multiprocessors too. Communicators are split, made while others
 * are in use, and destroyed in between.
 *
 *     crowd [clusters BLOCKS OTHERS | full | graphs]
 *
 * clusters: kernels of one communicator fill the first GPU in such a way that no cluster of four blocks of
 * the other's finds place there, and do not end before it has: on the other GPUs they come after it. BLOCKS,
 * OTHERS: the most blocks of the one's kernels, and of the other's. graphs: two communicators' sums are
 * captured, and the graphs are replayed at once, each in a stream of its own, by the ranks in different
 * orders, which the GPUs must have multiprocessors for. full: makes communicators until a GPU that its ranks
 * share has too few free multiprocessors for another one. The call is refused with a sentence, and a
 * communicator that is destroyed gives its share back. */
#include <string.h>
#include <unistd.h>

#include "need.h"

enum { COMMS = 4, COMMS_MOST = 64, COUNT_MOST = 1 << 20, ROUNDS = 4 };

static int rank_count;
static ncclComm_t comms[COMMS_MOST][RANKS_MAX];
static cudaStream_t streams[COMMS][RANKS_MAX];
static int *data[COMMS][RANKS_MAX];
static int count = 20000, host[COUNT_MOST];
static int gate_is_open; /* atomic */

static void CUDART_CB gate_await(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&gate_is_open, __ATOMIC_ACQUIRE)) usleep(50);
}

static void comm_close(int comm) {
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommDestroy(comms[comm][rank]));
}

static void comm_split(int comm, int parent) {
  NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++)
    NEED(ncclCommSplit(comms[parent][rank], 0, rank, &comms[comm][rank], NULL));
  NEED(ncclGroupEnd());
}

static void fill(int comm, int rank) {
  need_device(rank);
  for (int i = 0; i < count; i++) host[i] = i + comm * 7 + rank;
  NEED(cudaMemcpyAsync(data[comm][rank], host, count * sizeof *host, cudaMemcpyHostToDevice,
                       streams[comm][rank]));
  NEED(cudaStreamSynchronize(streams[comm][rank]));
}

static void check(int comm, int rank) {
  need_device(rank);
  NEED(cudaMemcpyAsync(host, data[comm][rank], count * sizeof *host, cudaMemcpyDeviceToHost,
                       streams[comm][rank]));
  NEED(cudaStreamSynchronize(streams[comm][rank]));
  for (int i = 0; i < count; i++)
    NEED(host[i] != (i + comm * 7) * rank_count + rank_count * (rank_count - 1) / 2);
}

static void sum_start(int comm, int rank) {
  NEED(ncclAllReduce(data[comm][rank], data[comm][rank], count, ncclUint32, ncclSum, comms[comm][rank],
                     streams[comm][rank]));
}

/* All GPUs launch in the same order. */
static void sums_start(void) {
  for (int comm = 0; comm < COMMS; comm++) {
    NEED(ncclGroupStart());
    for (int rank = 0; rank < rank_count; rank++) sum_start(comm, rank);
    NEED(ncclGroupEnd());
  }
}

/* In a group each rank may call in an order of its own. */
static void sums_start_at_once(void) {
  NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++)
    for (int i = 0; i < COMMS; i++) sum_start((i + rank) % COMMS, rank);
  NEED(ncclGroupEnd());
}

static void round_run(int late_rank, int at_once) {
  for (int comm = 0; comm < COMMS; comm++)
    for (int rank = 0; rank < rank_count; rank++) fill(comm, rank);
  __atomic_store_n(&gate_is_open, 0, __ATOMIC_RELEASE);
  need_device(late_rank);
  NEED(cudaLaunchHostFunc(streams[0][late_rank], gate_await, NULL));
  if (at_once) sums_start_at_once();
  else sums_start();
  __atomic_store_n(&gate_is_open, 1, __ATOMIC_RELEASE);
  for (int comm = 0; comm < COMMS; comm++)
    for (int rank = 0; rank < rank_count; rank++) NEED(cudaStreamSynchronize(streams[comm][rank]));
  for (int comm = 0; comm < COMMS; comm++)
    for (int rank = 0; rank < rank_count; rank++) check(comm, rank);
}

static void rounds_run(void) {
  for (int comm = 0; comm < COMMS; comm++)
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      NEED(cudaStreamCreateWithFlags(&streams[comm][rank], cudaStreamNonBlocking));
      NEED(cudaMalloc((void **)&data[comm][rank], count * sizeof *host));
    }
  need_comms(comms[0], rank_count);
  need_comms(comms[1], rank_count);
  comm_split(2, 0);
  comm_split(3, 2);
  for (int round = 0; round < ROUNDS; round++) {
    round_run(round % rank_count, round / 2 % 2);
    comm_close(round % 2 + 1); /* others are made while the rest is in use */
    if (round % 2 == 0) need_comms(comms[1], rank_count);
    else comm_split(2, 3);
  }
  for (int comm = 0; comm < COMMS; comm++) comm_close(comm);
  for (int comm = 0; comm < COMMS; comm++)
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      NEED(cudaFree(data[comm][rank]));
      NEED(cudaStreamDestroy(streams[comm][rank]));
    }
}

/* ---- clusters ---- */

static void comms_open(int comm, int blocks, int cluster) {
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = config.maxCTAs = blocks;
  config.cgaClusterSize = cluster;
  NEED(ncclGetUniqueId(&id));
  NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(ncclCommInitRankConfig(&comms[comm][rank], rank_count, id, rank, &config));
  }
  NEED(ncclGroupEnd());
}

/* In the first GPU the kernel that the other one waits for elsewhere begins first. */
static void clusters_run(int clustered_blocks, int other_blocks) {
  cudaEvent_t ended[RANKS_MAX];
  count = COUNT_MOST;
  comms_open(0, clustered_blocks, 4);
  comms_open(1, other_blocks, 1);
  for (int comm = 0; comm < 2; comm++)
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      NEED(cudaStreamCreateWithFlags(&streams[comm][rank], cudaStreamNonBlocking));
      NEED(cudaMalloc((void **)&data[comm][rank], count * sizeof *host));
      fill(comm, rank);
    }
  need_device(0);
  NEED(cudaLaunchHostFunc(streams[0][0], gate_await, NULL));
  for (int comm = 0; comm < 2; comm++) {
    NEED(ncclGroupStart());
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      if (comm == 1 && rank > 0) NEED(cudaStreamWaitEvent(streams[1][rank], ended[rank], 0));
      sum_start(comm, rank);
    }
    NEED(ncclGroupEnd());
    for (int rank = 0; rank < rank_count && comm == 0; rank++) {
      need_device(rank);
      NEED(cudaEventCreateWithFlags(&ended[rank], cudaEventDisableTiming));
      NEED(cudaEventRecord(ended[rank], streams[0][rank]));
    }
  }
  usleep(100000); /* the other communicator's kernel has begun there, unless the machine is very busy */
  __atomic_store_n(&gate_is_open, 1, __ATOMIC_RELEASE);
  for (int comm = 0; comm < 2; comm++)
    for (int rank = 0; rank < rank_count; rank++) check(comm, rank);
  for (int comm = 0; comm < 2; comm++) {
    comm_close(comm);
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      NEED(cudaFree(data[comm][rank]));
      NEED(cudaStreamDestroy(streams[comm][rank]));
      if (comm == 0) NEED(cudaEventDestroy(ended[rank]));
    }
  }
}

/* ---- graphs of two communicators ---- */

enum { GRAPHS = 2, REPLAYS = 6 };

static cudaGraphExec_t graphs[GRAPHS][RANKS_MAX];

/* One thread captures on all ranks: their kernels need no order then. */
static void graph_capture(int comm, int rank) {
  cudaGraph_t graph;
  need_device(rank);
  NEED(cudaStreamBeginCapture(streams[comm][rank], cudaStreamCaptureModeThreadLocal));
  sum_start(comm, rank);
  NEED(cudaStreamEndCapture(streams[comm][rank], &graph));
  NEED(cudaGraphInstantiate(&graphs[comm][rank], graph, 0));
  NEED(cudaGraphDestroy(graph));
}

/* The stream of one rank's first graph is late: the second graph runs there alone meanwhile. */
static void replays_run(int late_rank) {
  for (int comm = 0; comm < GRAPHS; comm++)
    for (int rank = 0; rank < rank_count; rank++) fill(comm, rank);
  __atomic_store_n(&gate_is_open, 0, __ATOMIC_RELEASE);
  need_device(late_rank);
  NEED(cudaLaunchHostFunc(streams[0][late_rank], gate_await, NULL));
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    for (int i = 0; i < GRAPHS; i++) {
      const int comm = (rank + i) % GRAPHS;
      NEED(cudaGraphLaunch(graphs[comm][rank], streams[comm][rank]));
    }
  }
  for (int rank = 0; rank < rank_count; rank++) NEED(cudaStreamSynchronize(streams[1][rank]));
  __atomic_store_n(&gate_is_open, 1, __ATOMIC_RELEASE);
  for (int rank = 0; rank < rank_count; rank++) NEED(cudaStreamSynchronize(streams[0][rank]));
  for (int comm = 0; comm < GRAPHS; comm++)
    for (int rank = 0; rank < rank_count; rank++) check(comm, rank);
}

static void graphs_run(void) {
  for (int comm = 0; comm < GRAPHS; comm++) {
    need_comms(comms[comm], rank_count);
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      NEED(cudaStreamCreateWithFlags(&streams[comm][rank], cudaStreamNonBlocking));
      NEED(cudaMalloc((void **)&data[comm][rank], count * sizeof *host));
    }
  }
  for (int comm = 0; comm < GRAPHS; comm++)
    for (int rank = 0; rank < rank_count; rank++) graph_capture(comm, rank);
  for (int replay = 0; replay < REPLAYS; replay++) replays_run(replay % rank_count);
  for (int comm = 0; comm < GRAPHS; comm++) {
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      NEED(cudaGraphExecDestroy(graphs[comm][rank]));
      NEED(cudaFree(data[comm][rank]));
      NEED(cudaStreamDestroy(streams[comm][rank]));
    }
    comm_close(comm);
  }
}

static int comm_open(int comm) {
  int devices[RANKS_MAX];
  for (int rank = 0; rank < rank_count; rank++) devices[rank] = rank % need_device_count();
  return ncclCommInitAll(comms[comm], rank_count, devices) == ncclSuccess;
}

static void fill_device(void) {
  int opened = 0;
  while (opened < COMMS_MOST && comm_open(opened)) opened += 1;
  if (opened < COMMS_MOST) {
    const char *said = ncclGetLastError(NULL);
    if (opened == 0 || strstr(said, "multiprocessors") == NULL || strstr(said, "destroy some") == NULL) {
      fprintf(stderr, "crowd: communicator %d: \"%s\"\n", opened, said);
      exit(1);
    }
    printf("crowd: %d communicators, then: %s\n", opened, said);
    comm_close(0);
    NEED(!comm_open(0));
  }
  for (int comm = 0; comm < opened; comm++) comm_close(comm);
}

int main(int argument_count, char **arguments) {
  const int full = argument_count > 1 && strcmp(arguments[1], "full") == 0;
  rank_count = need_ranks();
  if (rank_count < 2) {
    puts("crowd: needs two devices");
    return 0;
  }
  const int replayed = argument_count > 1 && strcmp(arguments[1], "graphs") == 0;
  const int clusters = argument_count > 3 && strcmp(arguments[1], "clusters") == 0;
  if (full) fill_device();
  else if (clusters) clusters_run(atoi(arguments[2]), atoi(arguments[3]));
  else if (replayed) graphs_run();
  else rounds_run();
  need_fresh_start(rank_count);
  printf("crowd: %s of %d ranks: ok\n",
         full       ? "too many communicators"
         : clusters ? "clusters"
         : replayed ? "graphs of two communicators"
                    : "several communicators",
         rank_count);
  return 0;
}
