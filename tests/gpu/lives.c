/* lives.c: what a program does around the lives of its communicators. Without arguments: it resets devices
 * (cudaDeviceReset) whose communicators are destroyed, while those of other devices live, and is forked; new
 * communicators work each time.
 *
 *     lives reset|reset-abort|reset-running|reset-primary|reset-release|forked|captured
 *
 * Wrong programs. A device is reset while its communicator lives, and then destroyed at once, or aborted
 * after a call that fails with a sentence; while a kernel waits for another rank; by the driver's
 * cuDevicePrimaryCtxReset, or by cuDevicePrimaryCtxRelease, which the program calls more often than it has
 * retained the context. A forked child uses its parent's communicator. A stream captures a collective into
 * a graph that takes no nodes of events (SIMT_EVENT_NODES=none). */
#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "need.h"

enum { COUNT = 5000, STATUS = 7 };

static int rank_count;
static ncclComm_t comms[RANKS_MAX];
static cudaStream_t streams[RANKS_MAX];
static float *data[RANKS_MAX];

static void fail(const char *what) {
  fprintf(stderr, "lives: %s; the last error is \"%s\"\n", what, ncclGetLastError(NULL));
  exit(1);
}

static void rank_open(int rank) {
  need_device(rank);
  NEED(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&data[rank], COUNT * sizeof *data[rank]));
}

static void rank_close(int rank) {
  need_device(rank);
  NEED(cudaFree(data[rank]));
  NEED(cudaStreamDestroy(streams[rank]));
}

static ncclResult_t sums_start(int ranks) {
  ncclResult_t result = ncclSuccess;
  NEED(ncclGroupStart());
  for (int rank = 0; rank < ranks && result == ncclSuccess; rank++)
    result = ncclAllReduce(data[rank], data[rank], COUNT, ncclFloat, ncclSum, comms[rank], streams[rank]);
  const ncclResult_t ended = ncclGroupEnd();
  return result != ncclSuccess ? result : ended;
}

static void sums_run(int ranks) {
  NEED(sums_start(ranks));
  for (int rank = 0; rank < ranks; rank++) NEED(cudaStreamSynchronize(streams[rank]));
}

/* ---- right programs ---- */

static void reset_all(void) {
  const int used = rank_count < need_device_count() ? rank_count : need_device_count();
  for (int device = 0; device < used; device++) {
    NEED(cudaSetDevice(device));
    NEED(cudaDeviceReset());
  }
}

/* The last device is reset while a communicator of the others lives. */
static void reset_beside(void) {
  const int last = need_device_count() - 1;
  int devices[RANKS_MAX];
  ncclComm_t alone;
  if (need_shares(rank_count) || last < 1 || last >= RANKS_MAX) return;
  for (int rank = 0; rank < last; rank++) devices[rank] = rank;
  NEED(ncclCommInitAll(comms, last, devices));
  for (int rank = 0; rank < last; rank++) rank_open(rank);
  sums_run(last);
  NEED(ncclCommInitAll(&alone, 1, &last));
  NEED(ncclCommDestroy(alone));
  NEED(cudaSetDevice(last));
  NEED(cudaDeviceReset());
  sums_run(last);
  need_fresh_start(rank_count);
  sums_run(last);
  for (int rank = 0; rank < last; rank++) NEED(ncclCommDestroy(comms[rank]));
  for (int rank = 0; rank < last; rank++) rank_close(rank);
}

static void await(pid_t child, const char *who) {
  int status = 0;
  NEED(child < 0);
  NEED(waitpid(child, &status, 0) != child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == STATUS) return;
  fprintf(stderr, "lives: %s: status %#x\n", who, (unsigned)status);
  exit(1);
}

static void all_open(void) {
  need_comms(comms, rank_count);
  for (int rank = 0; rank < rank_count; rank++) rank_open(rank);
  sums_run(rank_count);
}

static void all_close(void) {
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommDestroy(comms[rank]));
  for (int rank = 0; rank < rank_count; rank++) rank_close(rank);
}

static void all_abort(void) {
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommAbort(comms[rank]));
  for (int rank = 0; rank < rank_count; rank++) rank_close(rank);
}

/* `child_body`: what a child does with its parent's communicators before it exits; NULL: nothing. */
static void forks(void (*child_body)(void)) {
  all_open();
  NEED(sums_start(rank_count));
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    if (child_body != NULL) child_body();
    exit(STATUS);
  }
  await(child, "a forked child");
  for (int rank = 0; rank < rank_count; rank++) NEED(cudaStreamSynchronize(streams[rank]));
  sums_run(rank_count);
  all_close();
}

/* ---- wrong programs ---- */

static void child_refused(ncclResult_t result, const char *what) {
  if (result != ncclSuccess && strstr(ncclGetLastError(NULL), "fork") != NULL) return;
  fail(what);
}

static void child_uses(void) {
  child_refused(sums_start(1), "a child's collective is not refused");
  child_refused(ncclCommDestroy(comms[0]), "a child's ncclCommDestroy is not refused");
  child_refused(ncclCommAbort(comms[0]), "a child's ncclCommAbort is not refused");
  child_refused(ncclCommInitAll(comms, 1, NULL), "a child's new communicator is not refused");
}

/* By the driver; the emulator has none. */
static int reset_primary(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  int (*reset)(int device) = NULL;
  if (driver != NULL) *(void **)&reset = dlsym(driver, "cuDevicePrimaryCtxReset_v2");
  return reset != NULL ? reset(0) : (int)cudaErrorNotSupported;
}

/* What others have retained is released, too. */
static int release_primary(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  int (*release)(int device) = NULL, (*state)(int device, unsigned *flags, int *active) = NULL;
  unsigned flags = 0;
  int active = 1, error = driver == NULL ? (int)cudaErrorNotSupported : 0;
  if (driver != NULL) *(void **)&release = dlsym(driver, "cuDevicePrimaryCtxRelease_v2");
  if (driver != NULL) *(void **)&state = dlsym(driver, "cuDevicePrimaryCtxGetState");
  while (error == 0 && active) {
    error = release(0);
    if (error == 0) error = state(0, &flags, &active);
  }
  return error;
}

static int reset_by(const char *how) {
  if (strcmp(how, "reset-primary") == 0) return reset_primary();
  return strcmp(how, "reset-release") == 0 ? release_primary() : (int)cudaDeviceReset();
}

static int is_on_first_device(int rank) { return rank % need_device_count() == 0; }

/* A call after the reset fails; the log names it. The streams and the memory of device 0 are gone. */
static void call_after_reset(void) {
  for (int rank = 0; rank < rank_count; rank++)
    if (is_on_first_device(rank)) rank_open(rank);
  if (sums_start(rank_count) == ncclSuccess) fail("a call after a reset succeeds");
  for (int rank = 0; rank < rank_count; rank++)
    if (is_on_first_device(rank)) rank_close(rank);
}

static void reset_used(const char *how) {
  const int destroys = strcmp(how, "reset") == 0;
  all_open();
  need_device(0);
  if (strcmp(how, "reset-running") == 0)
    NEED(ncclAllReduce(data[0], data[0], COUNT, ncclFloat, ncclSum, comms[0], streams[0]));
  const int error = reset_by(how);
  if (error != 0) { /* the emulator refuses it, with a sentence, and all goes on */
    all_abort();
    return;
  }
  if (!destroys) call_after_reset();
  for (int rank = 0; rank < rank_count; rank++) {
    if (!destroys) NEED(ncclCommAbort(comms[rank]));
    else if (ncclCommDestroy(comms[rank]) == ncclSuccess && rank == 0)
      fail("destroying a communicator of a device that was reset succeeds");
    if (!is_on_first_device(rank)) rank_close(rank);
  }
}

static void captured(void) {
  cudaGraph_t graph;
  all_open();
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamBeginCapture(streams[rank], cudaStreamCaptureModeThreadLocal));
  }
  if (sums_start(rank_count) == ncclSuccess || strstr(ncclGetLastError(NULL), "conditional node") == NULL)
    fail("a capture into such a graph is not refused");
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    if (cudaStreamEndCapture(streams[rank], &graph) == cudaSuccess) NEED(cudaGraphDestroy(graph));
  }
  all_abort();
}

static void right(void) {
  for (int round = 0; round < 2; round++) {
    need_fresh_start(rank_count);
    reset_all();
  }
  need_fresh_start(rank_count);
  reset_beside();
  forks(NULL);
}

int main(int argument_count, char **arguments) {
  const char *how = argument_count > 1 ? arguments[1] : "";
  rank_count = need_ranks();
  if (rank_count < 2) {
    puts("lives: needs two devices");
    return 0;
  }
  if (strncmp(how, "reset", 5) == 0) reset_used(how);
  else if (strcmp(how, "forked") == 0) forks(child_uses);
  else if (strcmp(how, "captured") == 0) captured();
  else right();
  need_fresh_start(rank_count);
  printf("lives: %s on %d ranks: ok\n", how[0] != '\0' ? how : "resets and forks", rank_count);
  return 0;
}
