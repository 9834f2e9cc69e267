/* cpu_peers_mpi.c: the same program as cpu_peers.c over MPI, built with any mpicc. */
#include <mpi.h>

#include "cpu_peers.h"

static void run_once(struct peers *peers, enum peers_op op, int count) {
  const float *send = peers->send;
  float *recv = peers->recv;
  const int n = peers->rank_count, next = (peers->rank + 1) % n, previous = (peers->rank + n - 1) % n;
  switch (op) {
    case PEERS_ALL_REDUCE: MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); break;
    case PEERS_ALL_REDUCE_IN_PLACE:
      MPI_Allreduce(MPI_IN_PLACE, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case PEERS_ALL_GATHER:
      MPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case PEERS_REDUCE_SCATTER:
      MPI_Reduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case PEERS_BROADCAST: MPI_Bcast(recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD); break;
    case PEERS_ALL_TO_ALL:
      MPI_Alltoall(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    default:
      MPI_Sendrecv(send, count, MPI_FLOAT, next, 0, recv, count, MPI_FLOAT, previous, 0, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
      break;
  }
}

static void run(struct peers *peers, enum peers_op op, size_t count, int calls) {
  for (int i = 0; i < calls; i++) run_once(peers, op, (int)count);
}

static double most(struct peers *peers, double value) {
  double result = 0;
  (void)peers;
  MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

int main(int argc, char **argv) {
  struct peers peers = {peers_option(argc, argv, "--name", "mpi"), 0, 1, NULL, NULL, NULL, run, most};
  const struct peers_range range = peers_range_read(argc, argv);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &peers.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peers.rank_count);
  peers.send = aligned_alloc(4096, range.last_bytes + 4096);
  peers.recv = aligned_alloc(4096, range.last_bytes + 4096);
  if (peers.send == NULL || peers.recv == NULL) return 1;
  memset(peers.send, 0, range.last_bytes);
  memset(peers.recv, 0, range.last_bytes);
  peers_run_all(&peers, &range);
  free(peers.send);
  free(peers.recv);
  MPI_Finalize();
  return 0;
}
