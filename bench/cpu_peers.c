/* cpu_peers.c: this library's collectives on CPU cores, through its public interface over the emulator in
 * threads mode. Ranks are threads of this process, each on a core of its own while there are enough; with
 * --processes 1 this process is one rank of those that `tutti launch` starts, and with --hosts 1 as well each
 * of them says that it is on a host of its own, so that they meet over TCP on loopback. A batch is enqueued
 * on a stream and waited for once, or, with --each 1, after every call. */
#define _GNU_SOURCE
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <tutti.h>
#include <unistd.h>

#include "cpu_peers.h"

#define RANKS_MOST 64

struct rank {
  struct peers peers;
  const struct peers_range *range;
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  double *value; /* one value, in device memory */
  int device;
  bool each;
  pthread_t thread;
};

static void must_nccl(ncclResult_t result, const char *call) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "cpu_peers: %s: %s (%s)\n", call, ncclGetErrorString(result), ncclGetLastError(NULL));
  exit(1);
}

static void must_cuda(cudaError_t result, const char *call) {
  if (result == cudaSuccess) return;
  fprintf(stderr, "cpu_peers: %s: %s\n", call, cudaGetErrorString(result));
  exit(1);
}

#define NCCL(call) must_nccl(call, #call)
#define CUDA(call) must_cuda(call, #call)

static void send_recv(struct rank *rank, size_t count) {
  const struct peers *peers = &rank->peers;
  const int n = peers->rank_count, next = (peers->rank + 1) % n, previous = (peers->rank + n - 1) % n;
  NCCL(ncclGroupStart());
  NCCL(ncclSend(peers->send, count, ncclFloat, next, rank->comm, rank->stream));
  NCCL(ncclRecv(peers->recv, count, ncclFloat, previous, rank->comm, rank->stream));
  NCCL(ncclGroupEnd());
}

static void run_once(struct rank *rank, enum peers_op op, size_t count) {
  const struct peers *peers = &rank->peers;
  const float *send = peers->send;
  float *recv = peers->recv;
  ncclComm_t comm = rank->comm;
  cudaStream_t stream = rank->stream;
  switch (op) {
    case PEERS_ALL_REDUCE: NCCL(ncclAllReduce(send, recv, count, ncclFloat, ncclSum, comm, stream)); break;
    case PEERS_ALL_REDUCE_IN_PLACE:
      NCCL(ncclAllReduce(recv, recv, count, ncclFloat, ncclSum, comm, stream));
      break;
    case PEERS_ALL_GATHER: NCCL(ncclAllGather(send, recv, count, ncclFloat, comm, stream)); break;
    case PEERS_REDUCE_SCATTER:
      NCCL(ncclReduceScatter(send, recv, count, ncclFloat, ncclSum, comm, stream));
      break;
    case PEERS_BROADCAST: NCCL(ncclBroadcast(recv, recv, count, ncclFloat, 0, comm, stream)); break;
    case PEERS_ALL_TO_ALL: NCCL(ncclAlltoAll(send, recv, count, ncclFloat, comm, stream)); break;
    default: send_recv(rank, count); break;
  }
}

static void run(struct peers *peers, enum peers_op op, size_t count, int calls) {
  struct rank *rank = (struct rank *)peers->context;
  for (int i = 0; i < calls; i++) {
    run_once(rank, op, count);
    if (rank->each) CUDA(cudaStreamSynchronize(rank->stream));
  }
  CUDA(cudaStreamSynchronize(rank->stream));
}

static double most(struct peers *peers, double value) {
  struct rank *rank = (struct rank *)peers->context;
  *rank->value = value;
  NCCL(ncclAllReduce(rank->value, rank->value, 1, ncclDouble, ncclMax, rank->comm, rank->stream));
  CUDA(cudaStreamSynchronize(rank->stream));
  return *rank->value;
}

static void pin(const struct rank *rank) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  if (rank->peers.rank_count > cores) return;
  CPU_ZERO(&set);
  CPU_SET(rank->peers.rank, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *rank_main(void *argument) {
  struct rank *rank = (struct rank *)argument;
  struct peers *peers = &rank->peers;
  pin(rank);
  CUDA(cudaSetDevice(rank->device));
  CUDA(cudaStreamCreate(&rank->stream));
  CUDA(cudaMalloc((void **)&peers->send, rank->range->last_bytes + 4096));
  CUDA(cudaMalloc((void **)&peers->recv, rank->range->last_bytes + 4096));
  CUDA(cudaMalloc((void **)&rank->value, sizeof *rank->value));
  NCCL(ncclCommInitRank(&rank->comm, peers->rank_count, rank->id, peers->rank));
  peers_run_all(peers, rank->range);
  NCCL(ncclCommDestroy(rank->comm));
  CUDA(cudaStreamDestroy(rank->stream));
  CUDA(cudaFree(peers->send));
  CUDA(cudaFree(peers->recv));
  CUDA(cudaFree(rank->value));
  return NULL;
}

static struct rank rank_of(int argc, char **argv, int rank, int rank_count) {
  struct rank made;
  memset(&made, 0, sizeof made);
  made.peers = (struct peers){
      peers_option(argc, argv, "--name", "tutti"), rank, rank_count, NULL, NULL, NULL, run, most};
  made.device = rank;
  made.each = atoi(peers_option(argc, argv, "--each", "0")) != 0;
  return made;
}

static void run_threads(int argc, char **argv, const struct peers_range *range, int count) {
  static struct rank ranks[RANKS_MOST];
  ncclUniqueId id;
  setenv("TUTTI_EMU", count > 8 ? "mode=threads,devices=64" : "mode=threads", 0);
  NCCL(ncclGetUniqueId(&id));
  for (int i = 0; i < count; i++) {
    ranks[i] = rank_of(argc, argv, i, count);
    ranks[i].peers.context = &ranks[i];
    ranks[i].range = range;
    ranks[i].id = id;
    pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
  }
  for (int i = 0; i < count; i++) pthread_join(ranks[i].thread, NULL);
}

static void run_process(int argc, char **argv, const struct peers_range *range, bool hosts) {
  tutti_launch_t launch = {.size = sizeof launch};
  setenv("TUTTI_EMU", "mode=threads", 0);
  NCCL(tutti_launch_read(&launch));
  if (hosts) {
    char host[32];
    snprintf(host, sizeof host, "host%d", launch.rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  }
  struct rank rank = rank_of(argc, argv, launch.rank, launch.rank_count);
  rank.peers.context = &rank;
  rank.range = range;
  rank.device = launch.local_rank;
  NCCL(tutti_launch_id(&launch, &rank.id));
  rank_main(&rank);
}

int main(int argc, char **argv) {
  const struct peers_range range = peers_range_read(argc, argv);
  const int count = atoi(peers_option(argc, argv, "--ranks", "2"));
  const bool hosts = atoi(peers_option(argc, argv, "--hosts", "0")) != 0;
  if (count < 1 || count > RANKS_MOST) return 2;
  if (atoi(peers_option(argc, argv, "--processes", "0")) != 0) run_process(argc, argv, &range, hosts);
  else run_threads(argc, argv, &range, count);
  return 0;
}
