/* main.c: runs one case of the suite as an ordinary program: a thread for each rank, or under a launcher one
 * rank of several processes.
 *
 *   bugs CASE             the wrong program
 *   bugs --right CASE     its correct twin
 *   bugs --list           one line for each case, its fields separated by tabs: name, class, file, ranks,
 * kind, flags, why it is known to be missed, and what the error must contain
 *
 * Status 0: the program did not notice an error. 1: a call failed; the call and its error are printed. 2:
 * there is no such case. */
#include <pthread.h>

#include <tutti.h>

#include "bugs.h"

enum { CASES_MOST = 400 };
static const struct bug_case *cases[CASES_MOST];
static int case_count;
static bool bug = true;
static const struct bug_case *chosen;
static struct job jobs[RANKS];

void bug_register(const struct bug_case *bug_case) {
  if (case_count == CASES_MOST) abort();
  cases[case_count++] = bug_case;
}

/* ---- errors ---- */

/* The first thread that fails ends the process; others stay here. */
static void fail(const char *file, int line, const char *call, const char *error, const char *more) {
  static pthread_mutex_t failing = PTHREAD_MUTEX_INITIALIZER;
  const char *slash = strrchr(file, '/');
  pthread_mutex_lock(&failing);
  fprintf(stderr, "%s:%d: %s: %s%s%s\n", slash ? slash + 1 : file, line, call, error, *more ? ": " : "",
          more);
  fflush(NULL);
  _exit(1); /* other threads are within calls: what exit() destroys is still in use */
}

void bug_cuda(cudaError_t error, const char *file, int line, const char *call) {
  if (error != cudaSuccess) fail(file, line, call, cudaGetErrorName(error), cudaGetErrorString(error));
}

void bug_nccl(ncclResult_t result, const char *file, int line, const char *call) {
  if (result != ncclSuccess) fail(file, line, call, ncclGetErrorString(result), ncclGetLastError(NULL));
}

/* ---- objects ---- */

cudaStream_t new_stream(struct job *job) {
  cudaStream_t *stream = &job->made_streams[job->stream_count++];
  CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  return *stream;
}

cudaEvent_t new_event(struct job *job) {
  cudaEvent_t *event = &job->made_events[job->event_count++];
  CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  return *event;
}

void *new_memory(struct job *job, size_t bytes) {
  void **memory = &job->made_memory[job->memory_count++];
  CUDA(cudaMalloc(memory, bytes));
  CUDA(cudaMemset(*memory, 0, bytes));
  CUDA(cudaDeviceSynchronize());
  return *memory;
}

float *new_floats(struct job *job, size_t count) { return (float *)new_memory(job, count * sizeof(float)); }

ncclComm_t keep_comm(struct job *job, ncclComm_t comm) { return job->made_comms[job->comm_count++] = comm; }

ncclComm_t new_split(struct job *job, ncclComm_t comm, int color) {
  ncclComm_t made = NULL;
  NCCL(ncclCommSplit(comm, color, job->rank, &made, NULL));
  return keep_comm(job, made);
}

ncclComm_t new_copy(struct job *job, ncclComm_t comm) { return new_split(job, comm, 0); }

void order(struct job *job, cudaStream_t earlier, cudaStream_t later) {
  cudaEvent_t event = new_event(job);
  CUDA(cudaEventRecord(event, earlier));
  CUDA(cudaStreamWaitEvent(later, event, 0));
}

/* ---- a rank ---- */

static void rank_begin(struct job *job, int index, int device) {
  CUDA(cudaSetDevice(device));
  CUDA(cudaStreamCreateWithFlags(&job->streams[index], cudaStreamNonBlocking));
  job->ins[index] = new_floats(job, SIZE);
  job->outs[index] = new_floats(job, SIZE);
}

static void rank_end(struct job *job) {
  const bool all = chosen->kind == BUG_ALL;
  for (int i = 0; i < (all ? job->size : 1); i++) {
    CUDA(cudaSetDevice(all ? i : job->rank));
    CUDA(cudaDeviceSynchronize());
  }
  while (job->comm_count > 0) NCCL(ncclCommDestroy(job->made_comms[--job->comm_count]));
  for (int i = 0; i < RANKS; i++) {
    NCCL(ncclCommDestroy(job->comms[i]));
    if (job->streams[i]) CUDA(cudaStreamDestroy(job->streams[i]));
  }
  while (job->event_count > 0) CUDA(cudaEventDestroy(job->made_events[--job->event_count]));
  while (job->stream_count > 0) CUDA(cudaStreamDestroy(job->made_streams[--job->stream_count]));
  while (job->memory_count > 0) CUDA(cudaFree(job->made_memory[--job->memory_count]));
}

static void *rank_run(void *argument) {
  struct job *job = (struct job *)argument;
  rank_begin(job, 0, job->rank);
  if (chosen->kind == BUG_RANKS) NCCL(ncclCommInitRank(&job->comms[0], job->size, job->id, job->rank));
  chosen->run(job, bug, job->rank, job->size, job->comms[0], job->streams[0], job->ins[0], job->outs[0]);
  rank_end(job);
  return NULL;
}

/* ---- a job ---- */

static void run_threads(void) {
  pthread_t threads[RANKS];
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  for (int rank = 0; rank < chosen->ranks; rank++) {
    jobs[rank].rank = rank;
    jobs[rank].size = chosen->ranks;
    jobs[rank].id = id;
    if (pthread_create(&threads[rank], NULL, rank_run, &jobs[rank]) != 0) exit(3);
  }
  for (int rank = 0; rank < chosen->ranks; rank++) pthread_join(threads[rank], NULL);
}

static void run_all(void) {
  struct job *job = &jobs[0];
  job->size = chosen->ranks;
  for (int rank = 0; rank < job->size; rank++) rank_begin(job, rank, rank);
  NCCL(ncclCommInitAll(job->comms, job->size, NULL));
  chosen->run(job, bug, 0, job->size, job->comms[0], job->streams[0], job->ins[0], job->outs[0]);
  rank_end(job);
}

static void run_process(const tutti_launch_t *launch) {
  struct job *job = &jobs[0];
  job->rank = launch->rank;
  job->size = launch->rank_count;
  NCCL(tutti_launch_id(launch, &job->id));
  rank_run(job);
}

/* ---- the command line ---- */

static void list(void) {
  static const char *const kinds[] = {"ranks", "bare", "all"};
  for (int i = 0; i < case_count; i++) {
    const struct bug_case *one = cases[i];
    const char *slash = strrchr(one->file, '/');
    printf("%s\t%s\t%s\t%d\t%s\t%s%s%s\t%s", one->name, one->class_name, slash ? slash + 1 : one->file,
           one->ranks, kinds[one->kind], one->seeds ? "seeds " : "", one->processes ? "processes " : "",
           one->emulated ? "guarded" : "", one->missed ? one->missed : "");
    for (size_t k = 0; k < sizeof one->says / sizeof *one->says && one->says[k]; k++)
      printf("\t%s", one->says[k]);
    putchar('\n');
  }
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[argc - 1] : "";
  tutti_launch_t launch = {.size = sizeof launch};
  if (argc == 2 && strcmp(name, "--list") == 0) {
    list();
    return 0;
  }
  bug = !(argc == 3 && strcmp(argv[1], "--right") == 0);
  for (int i = 0; i < case_count; i++)
    if (strcmp(cases[i]->name, name) == 0) chosen = cases[i];
  if (!chosen || argc != (bug ? 2 : 3)) {
    fprintf(stderr, "usage: bugs [--right] CASE\n       bugs --list\n");
    return 2;
  }
  NCCL(tutti_launch_read(&launch));
  if (launch.rank_count > 1) run_process(&launch);
  else if (chosen->kind == BUG_ALL) run_all();
  else run_threads();
  return 0;
}
