/* runtime.cc (simt): the parts of the CUDA runtime that the GPU backend needs and the emulated runtime lacks:
 * kernels and their launches. A launch is a host function of its stream, which runs each block on its own
 * thread and returns when all have ended. */
#include <cuda_runtime.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels.h"
#include "memory.h"
#include "order.h"
#include "reset.h"
#include "watch.h"

static const struct simt_kernel *kernel_rows, *program_rows;
static size_t kernel_count, program_count;
static void (*kernel_begin_block)(void);

void simt_kernels_offer(const struct simt_kernel *rows, size_t count, void (*begin_block)(void)) {
  if (count > SIMT_KERNELS_MOST / 2) abort();
  kernel_rows = rows;
  kernel_count = count;
  kernel_begin_block = begin_block;
}

void simt_program_offer(const struct simt_kernel *rows, size_t count) {
  if (count > SIMT_KERNELS_MOST / 2) abort();
  program_rows = rows;
  program_count = count;
}

static const struct simt_kernel *kernel_find(const void *entry) {
  for (size_t index = 0; index < kernel_count; index++)
    if (kernel_rows[index].entry == entry) return &kernel_rows[index];
  for (size_t index = 0; index < program_count; index++)
    if (program_rows[index].entry == entry) return &program_rows[index];
  return NULL;
}

/* Among all that can be launched: the program's are the last. */
static size_t kernel_number(const struct simt_kernel *kernel) {
  if (kernel >= kernel_rows && kernel < kernel_rows + kernel_count) return (size_t)(kernel - kernel_rows);
  return SIMT_KERNELS_MOST - program_count + (size_t)(kernel - program_rows);
}

/* SIMT_KERNELS=FILE: appends the name of each kernel to FILE when it is launched with work for the first
 * time. The backend's first launches, which have none, have one warp. */
static void kernel_note(const struct simt_kernel *kernel, uint32_t thread_count) {
  static uint64_t noted; /* by row */
  const uint64_t bit = (uint64_t)1 << kernel_number(kernel);
  const char *path = getenv("SIMT_KERNELS");
  if (path == NULL || thread_count <= 32 || (__atomic_fetch_or(&noted, bit, __ATOMIC_RELAXED) & bit) != 0)
    return;
  FILE *file = fopen(path, "a");
  if (file == NULL) return;
  fprintf(file, "%s\n", kernel->name);
  fclose(file);
}

/* ---- devices ---- */

extern "C" cudaError_t tutti_cudart_GetDeviceProperties(struct cudaDeviceProp *properties, int device);

/* SIMT_MULTIPROCESSORS=N or N:PARTS: each device runs N blocks at once, the same number in each of its parts;
 * a further one begins when one has ended, a cluster's when one part has place for them all. 0: any number.
 */
enum { PARTS_MOST = 8 };
static int multiprocessors(int *parts) {
  const char *text = getenv("SIMT_MULTIPROCESSORS");
  int count = 0;
  *parts = 1;
  if (text == NULL || sscanf(text, "%d:%d", &count, parts) < 1) return 0;
  if (*parts < 1 || *parts > PARTS_MOST) abort();
  return count;
}

extern "C" cudaError_t tutti_cudart_DeviceCanAccessPeer(int *can, int device, int peer);

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  const cudaError_t error = tutti_cudart_DeviceCanAccessPeer(can, device, peer);
  if (error == cudaSuccess && simt_is_virtual()) *can = 0;
  return error;
}

/* SIMT_CAPABILITY=86: the devices report compute capability 8.6, whatever code exists. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  const cudaError_t error = tutti_cudart_GetDeviceProperties(properties, device);
  const char *text = getenv("SIMT_CAPABILITY");
  int parts;
  if (error != cudaSuccess) return error;
  if (multiprocessors(&parts) > 0) properties->multiProcessorCount = multiprocessors(&parts);
  if (simt_is_virtual()) snprintf(properties->name, sizeof properties->name, "GRID H100-80C");
  if (text == NULL) return cudaSuccess;
  properties->major = atoi(text) / 10;
  properties->minor = atoi(text) % 10;
  return cudaSuccess;
}

static pthread_mutex_t blocks_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t block_ended = PTHREAD_COND_INITIALIZER;
static int blocks_running[SIMT_DEVICES][PARTS_MOST];

/* The part of the device with the most free places. Locked. */
static int part_freest(int device, int parts) {
  int freest = 0;
  for (int part = 1; part < parts; part++)
    if (blocks_running[device][part] < blocks_running[device][freest]) freest = part;
  return freest;
}

/* Takes the places of `cluster` blocks in one part, and returns it. */
static int multiprocessors_take(int device, int cluster) {
  int parts, part;
  const int count = multiprocessors(&parts);
  pthread_mutex_lock(&blocks_mutex);
  while (part = part_freest(device, parts),
         count > 0 && blocks_running[device][part] + cluster > count / parts)
    pthread_cond_wait(&block_ended, &blocks_mutex);
  blocks_running[device][part] += cluster;
  pthread_mutex_unlock(&blocks_mutex);
  return part;
}

static void multiprocessor_give(int device, int part) {
  pthread_mutex_lock(&blocks_mutex);
  blocks_running[device][part] -= 1;
  pthread_cond_broadcast(&block_ended);
  pthread_mutex_unlock(&blocks_mutex);
}

/* ---- a launch ---- */

/* Shared memory that a launch may request, by kernel: as much as every kernel may, or what it was allowed. */
enum { SHARED_USUAL = 48 << 10 };
static size_t shared_allowed[SIMT_DEVICES][SIMT_KERNELS_MOST];

/* Of the current device. */
static size_t *shared_allowance(const struct simt_kernel *kernel) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= SIMT_DEVICES) abort();
  return &shared_allowed[device][kernel_number(kernel)];
}

static size_t shared_most(const struct simt_kernel *kernel) {
  const size_t allowed = __atomic_load_n(shared_allowance(kernel), __ATOMIC_RELAXED);
  return allowed > SHARED_USUAL ? allowed : (size_t)SHARED_USUAL;
}

void simt_kernels_unload(int device) { memset(shared_allowed[device], 0, sizeof shared_allowed[device]); }

struct simt_launch {
  const struct simt_kernel *kernel;
  uint32_t block_count, thread_count;
  size_t shared_bytes; /* that it requests */
  int slow_warp, device, cluster;
  const void *stream;
  bool overlaps;    /* it may begin before the stream's previous launch has ended */
  bool is_repeated; /* in a graph: launched as often as the graph */
  void *parameters[SIMT_PARAMETERS];
};

struct simt_block_job {
  const struct simt_launch *launch;
  struct order_launch *order;
  uint32_t index;
  int part; /* of the device, where it runs */
  pthread_t thread;
};

static void launch_free(struct simt_launch *launch) {
  for (uint32_t i = 0; i < SIMT_PARAMETERS; i++) free(launch->parameters[i]);
  free(launch);
}

static void thread_body(void *argument) {
  const struct simt_launch *launch = (const struct simt_launch *)argument;
  launch->kernel->call((void **)launch->parameters);
}

static void *block_main(void *argument) {
  const struct simt_block_job *job = (const struct simt_block_job *)argument;
  kernel_begin_block();
  simt_block_heeds(reset_kills(job->launch->device));
  watch_block_begin(job->launch->kernel->name, job->launch->device, job->launch->parameters, job->index,
                    job->launch->thread_count);
  simt_block_run(job->order, job->index, job->launch->thread_count, job->launch->shared_bytes,
                 job->launch->slow_warp, thread_body, (void *)job->launch);
  multiprocessor_give(job->launch->device, job->part);
  return NULL;
}

static void launch_run(void *argument) {
  struct simt_launch *launch = (struct simt_launch *)argument;
  struct simt_block_job *jobs = (struct simt_block_job *)calloc(launch->block_count, sizeof *jobs);
  if (jobs == NULL) abort();
  struct order_launch *order = order_launch_begin(launch->stream, launch->device, launch->overlaps);
  for (uint32_t index = 0; index < launch->block_count; index++) {
    const bool first = index % (uint32_t)launch->cluster == 0;
    jobs[index] = {launch, order, index, 0, 0};
    jobs[index].part = first ? multiprocessors_take(launch->device, launch->cluster) : jobs[index - 1].part;
    if (pthread_create(&jobs[index].thread, NULL, block_main, &jobs[index]) != 0) abort();
  }
  for (uint32_t index = 0; index < launch->block_count; index++) pthread_join(jobs[index].thread, NULL);
  order_launch_end(order);
  free(jobs);
  if (!launch->is_repeated) launch_free(launch);
}

/* SIMT_SLOW_WARP=WARP or WARP:DEVICE: that warp of each block is slow, on all devices or on one. */
static int slow_warp(void) {
  const char *text = getenv("SIMT_SLOW_WARP");
  int warp = SIMT_NO_WARP, only = 0, device = 0;
  if (text == NULL || sscanf(text, "%d:%d", &warp, &only) < 2) return warp;
  return cudaGetDevice(&device) == cudaSuccess && device == only ? warp : SIMT_NO_WARP;
}

static struct simt_launch *launch_make(const struct simt_kernel *kernel, dim3 grid, dim3 block,
                                       void **parameters, size_t shared_bytes, cudaStream_t stream,
                                       int cluster, bool overlaps) {
  struct simt_launch *launch = (struct simt_launch *)calloc(1, sizeof *launch);
  if (launch == NULL) return NULL;
  launch->kernel = kernel;
  launch->block_count = grid.x;
  launch->thread_count = block.x;
  launch->shared_bytes = shared_bytes;
  launch->slow_warp = slow_warp();
  if (cudaGetDevice(&launch->device) != cudaSuccess || launch->device >= SIMT_DEVICES) abort();
  launch->stream = (const void *)stream;
  launch->cluster = cluster;
  launch->overlaps = overlaps;
  for (uint32_t i = 0; i < SIMT_PARAMETERS && kernel->bytes[i] > 0; i++) {
    launch->parameters[i] = malloc(kernel->bytes[i]);
    if (launch->parameters[i] == NULL) {
      launch_free(launch);
      return NULL;
    }
    memcpy(launch->parameters[i], parameters[i], kernel->bytes[i]);
  }
  return launch;
}

/* SIMT_LAUNCH=none: launches do nothing, so that what the host does for them can be measured. A program sets
 * it itself, when its ranks have met; its communicators never end then. */
static bool drops_launches(void) {
  const char *text = getenv("SIMT_LAUNCH");
  return text != NULL && strcmp(text, "none") == 0;
}

static cudaError_t launch_send(const void *entry, dim3 grid, dim3 block, void **parameters,
                               size_t shared_bytes, cudaStream_t stream, int cluster, bool overlaps) {
  const struct simt_kernel *kernel = kernel_find(entry);
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (kernel == NULL || shared_bytes > shared_most(kernel)) return cudaErrorInvalidValue;
  reset_use();
  if (drops_launches()) return cudaSuccess;
  kernel_note(kernel, block.x);
  struct simt_launch *launch =
      launch_make(kernel, grid, block, parameters, shared_bytes, stream, cluster, overlaps);
  if (launch == NULL) return cudaErrorMemoryAllocation;
  simt_memory_settle();
  cudaError_t error = cudaStreamIsCapturing(stream, &status);
  launch->is_repeated = status == cudaStreamCaptureStatusActive;
  if (error == cudaSuccess) error = cudaLaunchHostFunc(stream, launch_run, launch);
  if (error != cudaSuccess) launch_free(launch);
  return error;
}

cudaError_t cudaLaunchKernel(const void *entry, dim3 grid, dim3 block, void **parameters, size_t shared_bytes,
                             cudaStream_t stream) {
  return launch_send(entry, grid, block, parameters, shared_bytes, stream, 1, false);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *entry, void **parameters) {
  unsigned int cluster = 1;
  bool overlaps = false;
  for (unsigned int i = 0; i < config->numAttrs; i++) {
    const cudaLaunchAttribute *attribute = &config->attrs[i];
    if (attribute->id == cudaLaunchAttributeProgrammaticStreamSerialization)
      overlaps = attribute->val.programmaticStreamSerializationAllowed != 0;
    if (attribute->id == cudaLaunchAttributeClusterDimension) cluster = attribute->val.clusterDim.x;
  }
  if (cluster == 0 || cluster > 8 || config->gridDim.x % cluster != 0) return cudaErrorInvalidValue;
  return launch_send(entry, config->gridDim, config->blockDim, parameters, config->dynamicSmemBytes,
                     config->stream, (int)cluster, overlaps);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *entry) {
  attributes->sharedSizeBytes = 0;
  return kernel_find(entry) != NULL ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaFuncSetAttribute(const void *entry, enum cudaFuncAttribute attribute, int value) {
  const struct simt_kernel *kernel = kernel_find(entry);
  if (kernel == NULL || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0)
    return cudaErrorInvalidValue;
  __atomic_store_n(shared_allowance(kernel), (size_t)value, __ATOMIC_RELAXED);
  return cudaSuccess;
}
