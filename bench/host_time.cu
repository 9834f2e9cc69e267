/* host_time.cu: what a call of a collective costs the host when it repeats: the time until ncclAllReduce
 * returns. Each rank is a thread, or a process, with a GPU, a stream and a buffer of its own. Bursts of
 * calls, shorter than a stream's queue, are timed and then waited for. Names CUDA and NCCL alone, so that it
 * runs with either library. nvcc compiles also a kernel that does nothing, with as many bytes of arguments as
 * this library's kernels have: what launching that costs is printed beside.
 *
 *     nvcc -O2 host_time.cu -lnccl            on GPUs
 *     g++ -O2 -x c++ host_time.cu ...         with tests/simt, whose launches do nothing here (SIMT_LAUNCH)
 *     host_time [RANKS [BYTES [GROUP [processes|threads [BUFFERS [messages]]]]]]      2, 1024, 1, threads, 1
 *
 * GROUP: calls in a ncclGroup; BUFFERS: buffers of one allocation that the calls use in turns; messages: each
 * call is a group of a send to the next rank and a receive from the one before.
 *
 * Prints the least and the median time of a call over all bursts and ranks. */
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

enum { BURST = 200, BURSTS = 60, WARM = 40, RANKS_MAX = 64 };
#define BUFFER_BYTES                                                                     \
  ((size_t)4 << 20) /* at least: processes show each other allocations of 2 MiB and more \
                     */

#define NEED(call)                                                                                  \
  do {                                                                                              \
    const int status_ = (int)(call);                                                                \
    if (status_ != 0) {                                                                             \
      fprintf(stderr, "host_time: %s: %d (%s)\n", #call, status_, ncclGetLastError(NULL)), exit(1); \
    }                                                                                               \
  } while (0)

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

struct rank {
  pthread_t thread;
  pid_t process;
  int index, device, count, group, rank_count, buffers;
  bool messages;
  ncclComm_t comm;
  double calls[BURSTS], launches[BURSTS]; /* 0: not measured */
};

/* Shared by the processes, if ranks are processes. */
static struct shared {
  pthread_barrier_t barrier;
  ncclUniqueId id;
  struct rank ranks[RANKS_MAX];
} * shared;

#ifdef __CUDACC__
struct arguments {
  char bytes[7168];
};
static __global__ void nothing(const __grid_constant__ arguments given) { (void)given; }

static void launches_measure(struct rank *rank, cudaStream_t stream) {
  static arguments given;
  void *parameters[] = {&given};
  for (int burst = 0; burst < BURSTS; burst++) {
    const double begin = now_ns();
    for (int i = 0; i < BURST; i++)
      NEED(cudaLaunchKernel((const void *)nothing, dim3(1), dim3(96), parameters, 0, stream));
    rank->launches[burst] = (now_ns() - begin) / BURST;
    NEED(cudaStreamSynchronize(stream));
  }
}
#else
static void launches_measure(struct rank *rank, cudaStream_t stream) { (void)rank, (void)stream; }
#endif

static void call_make(const struct rank *rank, float *buffer, cudaStream_t stream) {
  const size_t count = (size_t)rank->count;
  if (rank->messages) {
    NEED(ncclSend(buffer, count, ncclFloat, (rank->index + 1) % rank->rank_count, rank->comm, stream));
    NEED(ncclRecv(buffer + count, count, ncclFloat, (rank->index + rank->rank_count - 1) % rank->rank_count,
                  rank->comm, stream));
  } else {
    NEED(ncclAllReduce(buffer, buffer, count, ncclFloat, ncclSum, rank->comm, stream));
  }
}

static void burst_make(const struct rank *rank, float *buffer, cudaStream_t stream, int calls) {
  const bool grouped = rank->group > 1 || rank->messages;
  for (int i = 0; i < calls; i += rank->group) {
    if (grouped) NEED(ncclGroupStart());
    for (int k = 0; k < rank->group; k++)
      call_make(rank, buffer + (size_t)((i + k) % rank->buffers) * 2 * (size_t)rank->count, stream);
    if (grouped) NEED(ncclGroupEnd());
  }
}

static void *rank_main(void *argument) {
  struct rank *rank = (struct rank *)argument;
  cudaStream_t stream;
  float *buffer;
  NEED(cudaSetDevice(rank->device));
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const size_t bytes = (size_t)rank->buffers * 2 * (size_t)rank->count * sizeof *buffer;
  NEED(cudaMalloc((void **)&buffer, std::max(bytes, BUFFER_BYTES)));
  burst_make(rank, buffer, stream, WARM);
  NEED(cudaStreamSynchronize(stream));
  pthread_barrier_wait(&shared->barrier);
  if (rank->index == 0 || rank->process != 0) setenv("SIMT_LAUNCH", "none", 1);
  pthread_barrier_wait(&shared->barrier);
  for (int burst = 0; burst < BURSTS; burst++) {
    const double begin = now_ns();
    burst_make(rank, buffer, stream, BURST);
    rank->calls[burst] = (now_ns() - begin) / BURST;
    NEED(cudaStreamSynchronize(stream));
    pthread_barrier_wait(&shared->barrier);
  }
  launches_measure(rank, stream);
  return NULL;
}

static void line(const char *what, const std::vector<double> &all_times) {
  std::vector<double> times;
  for (double time : all_times)
    if (time > 0) times.push_back(time);
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  printf("%-24s least %7.0f ns, median %7.0f ns\n", what, times[0], times[times.size() / 2]);
}

/* ---- ranks as processes, which are made before CUDA is used ---- */

static void process_main(struct rank *rank, int rank_count) {
  int device_count = 0;
  NEED(cudaGetDeviceCount(&device_count));
  rank->device = rank->index % device_count;
  NEED(cudaSetDevice(rank->device));
  if (rank->index == 0) NEED(ncclGetUniqueId(&shared->id));
  pthread_barrier_wait(&shared->barrier);
  NEED(ncclCommInitRank(&rank->comm, rank_count, shared->id, rank->index));
  rank_main(rank);
  pthread_barrier_wait(&shared->barrier);
  _exit(0); /* with launches that do nothing no communicator can end */
}

static void processes_run(int rank_count) {
  for (int i = 0; i < rank_count; i++) {
    struct rank *rank = &shared->ranks[i];
    const pid_t process = fork();
    if (process != 0) continue;
    rank->process = getpid();
    process_main(rank, rank_count);
  }
  for (int i = 0, status = 0; i < rank_count; i++) {
    if (wait(&status) > 0 && status == 0) continue;
    fprintf(stderr, "host_time: a rank has failed\n");
    kill(0, SIGTERM); /* the others wait for it */
  }
}

/* ---- ranks as threads ---- */

static void threads_run(int rank_count) {
  int device_count = 0;
  ncclComm_t comms[RANKS_MAX];
  int devices[RANKS_MAX];
  NEED(cudaGetDeviceCount(&device_count));
  for (int i = 0; i < rank_count; i++) devices[i] = shared->ranks[i].device = i % device_count;
  NEED(ncclCommInitAll(comms, rank_count, devices));
  for (int i = 0; i < rank_count; i++) {
    shared->ranks[i].comm = comms[i];
    pthread_create(&shared->ranks[i].thread, NULL, rank_main, &shared->ranks[i]);
  }
  for (int i = 0; i < rank_count; i++) pthread_join(shared->ranks[i].thread, NULL);
}

int main(int argc, char **argv) {
  const int rank_count = argc > 1 ? atoi(argv[1]) : 2, bytes = argc > 2 ? atoi(argv[2]) : 1024;
  const int group = argc > 3 ? atoi(argv[3]) : 1;
  const bool processes = argc > 4 && strcmp(argv[4], "processes") == 0;
  const int buffers = argc > 5 ? atoi(argv[5]) : 1;
  const bool messages = argc > 6 && strcmp(argv[6], "messages") == 0;
  pthread_barrierattr_t between;
  std::vector<double> calls, launches;
  int version = 0;
  NEED(rank_count < 1 || rank_count > RANKS_MAX || group < 1 || buffers < 1);
  shared =
      (struct shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  NEED(shared == MAP_FAILED);
  pthread_barrierattr_init(&between);
  pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &between, (unsigned)rank_count);
  for (int i = 0; i < rank_count; i++) {
    shared->ranks[i].index = i;
    shared->ranks[i].count = bytes / 4;
    shared->ranks[i].group = group;
    shared->ranks[i].rank_count = rank_count;
    shared->ranks[i].buffers = buffers;
    shared->ranks[i].messages = messages;
  }
  if (processes) processes_run(rank_count);
  else threads_run(rank_count);
  for (int i = 0; i < rank_count; i++) {
    const struct rank *rank = &shared->ranks[i];
    calls.insert(calls.end(), rank->calls, rank->calls + BURSTS);
    launches.insert(launches.end(), rank->launches, rank->launches + BURSTS);
  }
  NEED(ncclGetVersion(&version));
  printf("NCCL %d, %d ranks%s, %d bytes, %d calls in a group, %d buffers\n", version, rank_count,
         processes ? " in as many processes" : "", bytes, group, buffers);
  line(messages ? "a send and a receive" : "ncclAllReduce", calls);
  line("a kernel that does nothing", launches);
  fflush(stdout);
  _exit(0); /* with launches that do nothing no communicator can end */
}
