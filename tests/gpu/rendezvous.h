/* rendezvous.h: what the processes of a program share, one a rank: a barrier and the communicator's id. */
#ifndef TUTTI_TESTS_GPU_RENDEZVOUS_H
#define TUTTI_TESTS_GPU_RENDEZVOUS_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "need.h"

static struct rendezvous {
  int arrived, turn, votes;
  int id_is_set;
  ncclUniqueId id;
} * rendezvous;

/* Before the processes are started. */
static inline void rendezvous_open(void) {
  void *shared = mmap(NULL, sizeof *rendezvous, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NEED(shared == MAP_FAILED);
  rendezvous = (struct rendezvous *)shared;
}

static inline void rendezvous_barrier(int size) {
  const int turn = __atomic_load_n(&rendezvous->turn, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&rendezvous->arrived, 1, __ATOMIC_ACQ_REL) == size) {
    __atomic_store_n(&rendezvous->arrived, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&rendezvous->turn, turn + 1, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(&rendezvous->turn, __ATOMIC_ACQUIRE) == turn) usleep(50);
}

/* True if `yes` is true in all processes. */
static inline int rendezvous_all(int size, int yes) {
  if (yes) __atomic_add_fetch(&rendezvous->votes, 1, __ATOMIC_ACQ_REL);
  rendezvous_barrier(size);
  const int all = __atomic_load_n(&rendezvous->votes, __ATOMIC_ACQUIRE) == size;
  rendezvous_barrier(size);
  if (yes) __atomic_sub_fetch(&rendezvous->votes, 1, __ATOMIC_ACQ_REL);
  rendezvous_barrier(size);
  return all;
}

/* Selects the rank's device; false if there are too few, and NCCL_MULTI_RANK_GPU_ENABLE does not let ranks
 * share them. */
static inline int rendezvous_device(int size, int rank) {
  if (need_shares(size) && getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL) return 0;
  need_device(rank);
  return 1;
}

/* The communicator of all processes, on the selected device. */
static inline void rendezvous_comm(ncclComm_t *comm, int size, int rank) {
  if (rank == 0) {
    NEED(ncclGetUniqueId(&rendezvous->id));
    __atomic_store_n(&rendezvous->id_is_set, 1, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(&rendezvous->id_is_set, __ATOMIC_ACQUIRE) == 0) usleep(50);
  NEED(ncclCommInitRank(comm, size, rendezvous->id, rank));
}

/* Waits for the processes, of which the last one must end by signal `loss`, unless that is 0, and all others
 * with status 0. Once one does not, those that are left are asked to end. The status of the first that did
 * not, or 1; 0 if all did. */
static inline int rendezvous_end(pid_t *children, int count, int loss) {
  const pid_t lost = loss != 0 ? children[count - 1] : -1;
  int failed = 0;
  for (int ended = 0; ended < count; ended++) {
    int status = 0;
    const pid_t child = wait(&status);
    for (int i = 0; i < count; i++)
      if (children[i] == child) children[i] = 0;
    const int good = child == lost ? WIFSIGNALED(status) && WTERMSIG(status) == loss
                                   : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (good || failed != 0) continue;
    failed = WIFEXITED(status) && WEXITSTATUS(status) != 0 ? WEXITSTATUS(status) : 1;
    for (int i = 0; i < count; i++)
      if (children[i] > 0) kill(children[i], SIGTERM);
  }
  return failed;
}

/* Runs `count` processes, so that this one never opens a device, and waits for them as rendezvous_end() does.
 * rank_main does not return. */
static inline int rendezvous_run(int count, void (*rank_main)(int mode, int rank), int mode, int loss) {
  pid_t children[RANKS_MAX];
  memset(rendezvous, 0, sizeof *rendezvous);
  for (int rank = 0; rank < count; rank++) {
    children[rank] = fork();
    NEED(children[rank] < 0);
    if (children[rank] == 0) rank_main(mode, rank);
  }
  return rendezvous_end(children, count, loss);
}

#endif
