/* leave.c: a program that exits while its kernels wait for other ranks ends with its own status, and is told
 * what it left. So does a child that it has forked, which has no kernels. */
#include <sys/wait.h>
#include <unistd.h>

#include "need.h"

enum { COUNT = 1 << 19, STATUS = 7 };

static void await(pid_t child, const char *who) {
  int status = 0;
  NEED(child < 0);
  NEED(waitpid(child, &status, 0) != child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == STATUS) return;
  fprintf(stderr, "leave: %s: status %#x\n", who, (unsigned)status);
  exit(1);
}

/* Rank 0 calls alone; `naps`: seconds that its kernel waits before the exit. */
static void leave(unsigned naps) {
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t stream;
  float *data;
  need_shared_devices(2);
  need_comms(comms, 2);
  need_device(0);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&data, COUNT * sizeof *data));
  NEED(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comms[0], stream));
  const pid_t child = fork();
  if (child == 0) exit(STATUS);
  await(child, "a child of the program");
  sleep(naps);
  exit(STATUS);
}

int main(void) {
  for (unsigned naps = 0; naps < 2; naps++) {
    const pid_t child = fork(); /* before CUDA is used */
    if (child == 0) leave(naps);
    await(child, naps == 0 ? "at once" : "after a second");
  }
  printf("leave: a program that left its kernels ended with its own status: ok\n");
  return 0;
}
