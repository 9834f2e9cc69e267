/* slots.c: at which end of a link the slots of Simple lie (NCCL_P2P_READ_ENABLE). Rank 0 sends to rank 1, by
 * a message and as the root of a broadcast; the slots are memory of the one rank or the other, which
 * tutti_comm_memory tells.
 *
 *     slots [sender|receiver [FILE]]     the end that must hold them; receiver, if none is named
 *
 * The ranks are those of the launch (tutti launch) if it has several, or else two devices of this process.
 * With FILE, which must not exist, two processes pass one more message: rank 1 receives it when rank 0 has
 * made FILE, after its send and the begin of its end, which must wait for that. With `-` as FILE rank 1 never
 * receives it.
 * Prints what is wrong, or what was run and `ok`. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <tutti.h>
#include <unistd.h>

#include "need.h"

#define RANKS 2
#define COUNT 3000000                /* several turns of the slots */
#define FEW 1000                     /* less than the slots hold */
#define SLOT_BYTES (4 * 1024 * 1024) /* all slots of a connection: NCCL_BUFFSIZE; all else takes less */

static struct {
  tutti_launch_t launch;
  int first, end; /* ranks of this process */
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  uint32_t *data[RANKS];
  uint32_t host[COUNT];
} run;

static uint64_t held_by(int rank) {
  uint64_t bytes = 0;
  NEED(tutti_comm_memory(run.comms[rank], &bytes));
  return bytes;
}

static uint32_t number_at(uint32_t salt, uint32_t index) { return (index + salt) * 2654435761u; }

static void ranks_open(void) {
  run.launch.size = sizeof run.launch;
  NEED(tutti_launch_read(&run.launch));
  const bool alone = run.launch.rank_count <= 1;
  if (!alone && run.launch.rank_count != RANKS) exit(2);
  run.first = alone ? 0 : run.launch.rank;
  run.end = alone ? RANKS : run.launch.rank + 1;
  if (alone) {
    need_comms(run.comms, RANKS);
  } else {
    ncclUniqueId id;
    NEED(tutti_launch_id(&run.launch, &id));
    need_device(run.first);
    NEED(ncclCommInitRank(&run.comms[run.first], RANKS, id, run.first));
  }
  for (int rank = run.first; rank < run.end; rank++) {
    need_device(rank);
    NEED(cudaStreamCreateWithFlags(&run.streams[rank], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&run.data[rank], sizeof run.host));
  }
}

static void ranks_close(void) {
  for (int rank = run.first; rank < run.end; rank++) {
    need_device(rank);
    NEED(cudaFree(run.data[rank]));
    NEED(cudaStreamDestroy(run.streams[rank]));
    NEED(ncclCommDestroy(run.comms[rank]));
  }
}

static ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  NEED(ncclCommGetAsyncError(comm, &state));
  return state;
}

/* The result of a call of a communicator that does not block. */
static ncclResult_t settled(ncclComm_t comm, ncclResult_t result) {
  while (result == ncclInProgress) result = state_of(comm);
  return result;
}

static void sender_leaves(ncclComm_t comm, const char *file) {
  const ncclResult_t begun = ncclCommFinalize(comm);
  for (int polls = 0; polls < 1000; polls++) {
    if (state_of(comm) == ncclInProgress) continue;
    printf("wrong: rank 0 may leave before rank 1 has read its slots\n");
    exit(1);
  }
  FILE *made = fopen(file, "w");
  NEED(made == NULL || fclose(made) != 0);
  NEED(settled(comm, begun));
}

/* A message that fits in the slots, so that it has left when nobody receives it yet. */
static void leave_first(const char *file) {
  const int rank = run.first;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  ncclUniqueId id;
  config.blocking = 0;
  NEED(tutti_launch_id(&run.launch, &id));
  ncclResult_t result = ncclCommInitRankConfig(&comm, RANKS, id, rank, &config);
  NEED(settled(comm, result));
  const bool received = strcmp(file, "-") != 0;
  while (rank == 1 && received && access(file, F_OK) != 0) usleep(1000);
  if (rank == 0) result = ncclSend(run.data[0], FEW, ncclUint32, 1, comm, run.streams[0]);
  else if (received) result = ncclRecv(run.data[1], FEW, ncclUint32, 0, comm, run.streams[1]);
  NEED(settled(comm, result));
  NEED(cudaStreamSynchronize(run.streams[rank]));
  if (rank == 0 && received) sender_leaves(comm, file);
  else NEED(settled(comm, ncclCommFinalize(comm)));
  NEED(ncclCommDestroy(comm));
}

static void fill(uint32_t salt) {
  for (int rank = run.first; rank < run.end; rank++) {
    for (uint32_t i = 0; i < COUNT; i++) run.host[i] = rank == 0 ? number_at(salt, i) : 0;
    need_device(rank);
    NEED(cudaMemcpyAsync(run.data[rank], run.host, sizeof run.host, cudaMemcpyHostToDevice,
                         run.streams[rank]));
    NEED(cudaStreamSynchronize(run.streams[rank]));
  }
}

static void pass(bool message) {
  NEED(ncclGroupStart());
  for (int rank = run.first; rank < run.end; rank++) {
    uint32_t *data = run.data[rank];
    if (!message) NEED(ncclBroadcast(data, data, COUNT, ncclUint32, 0, run.comms[rank], run.streams[rank]));
    else if (rank == 0) NEED(ncclSend(data, COUNT, ncclUint32, 1, run.comms[rank], run.streams[rank]));
    else NEED(ncclRecv(data, COUNT, ncclUint32, 0, run.comms[rank], run.streams[rank]));
  }
  NEED(ncclGroupEnd());
}

static void check(uint32_t salt, uint32_t count, const char *name) {
  for (int rank = run.first; rank < run.end; rank++) {
    need_device(rank);
    NEED(cudaMemcpyAsync(run.host, run.data[rank], sizeof run.host, cudaMemcpyDeviceToHost,
                         run.streams[rank]));
    NEED(cudaStreamSynchronize(run.streams[rank]));
    for (uint32_t i = 0; i < count; i++) {
      if (run.host[i] == number_at(salt, i)) continue;
      printf("wrong: %s: rank %d, element %u is 0x%08x instead of 0x%08x\n", name, rank, i, run.host[i],
             number_at(salt, i));
      exit(1);
    }
  }
}

static void pass_often(bool message) {
  for (uint32_t turn = 0; turn < 3; turn++) {
    fill(turn + message * 10u);
    pass(message);
    check(turn + message * 10u, COUNT, message ? "message" : "broadcast");
  }
}

/* Each rank has made its ends of both connections, and so have the other process's requests. */
static void check_places(int owner) {
  for (int rank = run.first; rank < run.end; rank++) {
    const uint64_t held = held_by(rank);
    if (held / SLOT_BYTES == (rank == owner ? 2 : 0)) continue;
    printf("wrong: rank %d holds %llu bytes; the slots of two connections must be at the %s, rank %d\n", rank,
           (unsigned long long)held, owner == 0 ? "sender" : "receiver", owner);
    exit(1);
  }
}

int main(int argc, char **argv) {
  const char *end = argc > 1 ? argv[1] : "receiver";
  if (argc > 3 || (strcmp(end, "sender") != 0 && strcmp(end, "receiver") != 0)) exit(2);
  const int owner = strcmp(end, "sender") == 0 ? 0 : 1;
  setenv("NCCL_BUFFSIZE", "4194304", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  setenv("NCCL_ALGO", "Ring", 1);
  setenv("NCCL_MAX_CTAS", "1", 1);
  ranks_open();
  pass_often(true);
  pass_often(false);
  check_places(owner);
  if (argc == 3) {
    fill(20);
    leave_first(argv[2]);
    if (strcmp(argv[2], "-") != 0) check(20, FEW, "last message");
  }
  ranks_close();
  printf("a message and a broadcast, slots at the %s: ok\n", end);
  return 0;
}
