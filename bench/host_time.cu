/* host_time.cu: what a call of a collective costs the host when it repeats: the time until ncclAllReduce
 * returns. Each rank is a thread with a GPU, a stream and a buffer of its own. Bursts of calls, shorter than
 * a stream's queue, are timed and then waited for. Names CUDA and NCCL alone, so that it runs with either
 * library. nvcc compiles also a kernel that does nothing, with as many bytes of arguments as this library's
 * kernels have: what launching that costs is printed beside.
 *
 *     nvcc -O2 host_time.cu -lnccl            on GPUs
 *     g++ -O2 -x c++ host_time.cu ...         with tests/simt, whose launches do nothing here (SIMT_LAUNCH)
 *     host_time [RANKS [BYTES [GROUP]]]       2, 1024, 1; GROUP: calls in a ncclGroup
 *
 * Prints the least and the median time of a call over all bursts and ranks. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <unistd.h>
#include <vector>

enum { BURST = 200, BURSTS = 60, WARM = 40 };

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
  int index, device, count, group;
  ncclComm_t comm;
  std::vector<double> calls, launches;
};

static pthread_barrier_t barrier;

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
    rank->launches.push_back((now_ns() - begin) / BURST);
    NEED(cudaStreamSynchronize(stream));
  }
}
#else
static void launches_measure(struct rank *rank, cudaStream_t stream) { (void)rank, (void)stream; }
#endif

static void burst_make(const struct rank *rank, float *buffer, cudaStream_t stream, int calls) {
  for (int i = 0; i < calls; i += rank->group) {
    if (rank->group > 1) NEED(ncclGroupStart());
    for (int k = 0; k < rank->group; k++)
      NEED(ncclAllReduce(buffer, buffer, (size_t)rank->count, ncclFloat, ncclSum, rank->comm, stream));
    if (rank->group > 1) NEED(ncclGroupEnd());
  }
}

static void *rank_main(void *argument) {
  struct rank *rank = (struct rank *)argument;
  cudaStream_t stream;
  float *buffer;
  NEED(cudaSetDevice(rank->device));
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&buffer, (size_t)rank->count * sizeof *buffer));
  burst_make(rank, buffer, stream, WARM);
  NEED(cudaStreamSynchronize(stream));
  pthread_barrier_wait(&barrier);
  if (rank->index == 0) setenv("SIMT_LAUNCH", "none", 1);
  pthread_barrier_wait(&barrier);
  for (int burst = 0; burst < BURSTS; burst++) {
    const double begin = now_ns();
    burst_make(rank, buffer, stream, BURST);
    rank->calls.push_back((now_ns() - begin) / BURST);
    NEED(cudaStreamSynchronize(stream));
    pthread_barrier_wait(&barrier);
  }
  launches_measure(rank, stream);
  return NULL;
}

static void line(const char *what, std::vector<double> times) {
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  printf("%-24s least %7.0f ns, median %7.0f ns\n", what, times[0], times[times.size() / 2]);
}

int main(int argc, char **argv) {
  const int rank_count = argc > 1 ? atoi(argv[1]) : 2, bytes = argc > 2 ? atoi(argv[2]) : 1024;
  const int group = argc > 3 ? atoi(argv[3]) : 1;
  int device_count = 0, version = 0;
  std::vector<struct rank> ranks((size_t)rank_count);
  std::vector<ncclComm_t> comms((size_t)rank_count);
  std::vector<int> devices;
  std::vector<double> calls, launches;
  NEED(cudaGetDeviceCount(&device_count));
  for (int i = 0; i < rank_count; i++) devices.push_back(i % device_count);
  NEED(ncclGetVersion(&version));
  NEED(ncclCommInitAll(comms.data(), rank_count, devices.data()));
  pthread_barrier_init(&barrier, NULL, (unsigned)rank_count);
  for (int i = 0; i < rank_count; i++) {
    ranks[(size_t)i] = {0, i, devices[(size_t)i], bytes / 4, group, comms[(size_t)i], {}, {}};
    pthread_create(&ranks[(size_t)i].thread, NULL, rank_main, &ranks[(size_t)i]);
  }
  for (struct rank &rank : ranks) {
    pthread_join(rank.thread, NULL);
    calls.insert(calls.end(), rank.calls.begin(), rank.calls.end());
    launches.insert(launches.end(), rank.launches.begin(), rank.launches.end());
  }
  printf("NCCL %d, %d ranks, %d bytes, %d calls in a group\n", version, rank_count, bytes, group);
  line("ncclAllReduce", calls);
  line("a kernel that does nothing", launches);
  fflush(stdout);
  _exit(0); /* with launches that do nothing no communicator can end */
}
