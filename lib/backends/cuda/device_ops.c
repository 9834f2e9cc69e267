/* device_ops.c: GPUs behind the host seam (backend.h): devices, memory, ranks and what their kernels say.
 * Promises that the calling thread's device is what it was before, and that allocating is allowed while the
 * thread captures a stream. */
#include <assert.h>
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/capability.h"
#include "backends/cuda/device.h"
#include "backends/cuda/ipc.h"
#include "kernels/launch_limits.h"
#include "kernels/link_test.h"
#include "backends/cuda/topology.h"
#include "backends/cuda/vmm.h"
#include "base/log.h"

#define ABORTED_WAIT_NS UINT64_C(10000000000)
#define LOOK_EVERY_NS 1000000u /* asking a device for its state takes time: few calls really do */

static os_mutex cuda_mutex = OS_MUTEX_INITIALIZER;
static os_mutex core_mutex = OS_MUTEX_INITIALIZER; /* lock() and unlock() of the seam */
static _Thread_local uint32_t conns_held;          /* ranks whose conns_mutex this thread has */

void cuda_lock(void) {
  assert(conns_held == 0);
  os_mutex_lock(&cuda_mutex);
}

bool cuda_try_lock(void) { return os_mutex_try_lock(&cuda_mutex); }

void cuda_unlock(void) { os_mutex_unlock(&cuda_mutex); }

void cuda_conns_lock(struct device_comm *comm) {
  os_mutex_lock(&comm->conns_mutex);
  conns_held += 1;
}

bool cuda_conns_try_lock(struct device_comm *comm) {
  if (!os_mutex_try_lock(&comm->conns_mutex)) return false;
  conns_held += 1;
  return true;
}

void cuda_conns_unlock(struct device_comm *comm) {
  conns_held -= 1;
  os_mutex_unlock(&comm->conns_mutex);
}
static struct device_comm *comms;
static struct cuda_world *worlds;
static cudaStream_t
    own_streams[DEVICES_MAX]; /* for what the library itself moves; made with a device's first rank */

ncclResult_t cuda_result(int error, const char *what) {
  if (error == 0) return ncclSuccess;
  cudaGetLastError();
  return log_fail(error == cudaErrorInvalidValue ? ncclInvalidArgument : ncclUnhandledCudaError,
                  "%s failed with CUDA error %d (%s)", what, error, cudaGetErrorString((cudaError_t)error));
}

/* ---- a thread's device ---- */

typedef CUresult (*device_by_index)(CUdevice *device, int index);
typedef CUresult (*context_retain)(CUcontext *context, CUdevice device);
typedef CUresult (*context_push)(CUcontext context);
typedef CUresult (*context_pop)(CUcontext *context);

static CUcontext contexts[DEVICES_MAX]; /* the same value whoever finds it first, until a reset */

/* The context that the runtime uses too, made where there is none yet. */
static CUcontext context_of(uint32_t device_index) {
  device_by_index by_index = NULL;
  context_retain retain = NULL;
  CUcontext context = NULL;
  CUdevice device = 0;
  if (device_index >= DEVICES_MAX) return NULL;
  context = __atomic_load_n(&contexts[device_index], __ATOMIC_ACQUIRE);
  if (context != NULL) return context;
  *(void **)&by_index = cuda_driver_function("cuDeviceGet");
  *(void **)&retain = cuda_driver_function("cuDevicePrimaryCtxRetain");
  if (by_index == NULL || retain == NULL || by_index(&device, (int)device_index) != CUDA_SUCCESS ||
      retain(&context, device) != CUDA_SUCCESS)
    return NULL;
  __atomic_store_n(&contexts[device_index], context, __ATOMIC_RELEASE);
  return context;
}

static bool context_enter(CUcontext context) {
  static context_push push;
  if (push == NULL) *(void **)&push = cuda_driver_function("cuCtxPushCurrent_v2");
  return push != NULL && context != NULL && push(context) == CUDA_SUCCESS;
}

bool cuda_device_enter(uint32_t device_index) { return context_enter(context_of(device_index)); }

void cuda_device_leave(void) {
  static context_pop pop;
  CUcontext context = NULL;
  if (pop == NULL) *(void **)&pop = cuda_driver_function("cuCtxPopCurrent_v2");
  if (pop != NULL) pop(&context);
}

struct cuda_scope cuda_scope_enter(uint32_t device_index) {
  struct cuda_scope scope = {cuda_device_enter(device_index), cudaStreamCaptureModeRelaxed};
  if (!scope.entered) cudaSetDevice((int)device_index);
  cudaThreadExchangeStreamCaptureMode(&scope.mode);
  return scope;
}

void cuda_scope_leave(const struct cuda_scope *scope) {
  enum cudaStreamCaptureMode mode = scope->mode;
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (scope->entered) cuda_device_leave();
}

/* ---- devices ---- */

static ncclResult_t cuda_device_count(uint32_t *count) {
  int found = 0;
  TRY(cuda_result(cudaGetDeviceCount(&found), "counting devices"));
  *count = (uint32_t)found;
  return ncclSuccess;
}

static ncclResult_t cuda_device_current(uint32_t *device_index) {
  int current = 0;
  TRY(cuda_result(cudaGetDevice(&current), "asking for the thread's device"));
  *device_index = (uint32_t)current;
  return ncclSuccess;
}

static ncclResult_t cuda_device_select(uint32_t device_index) {
  return cuda_result(cudaSetDevice((int)device_index), "selecting a device");
}

typedef CUresult (*device_uuid)(CUuuid *uuid, CUdevice device);

/* The driver knows the slice (MIG) that a device is; left unknown if it is too old for that. */
static void device_uuid_ask(uint32_t device_index, uint8_t uuid[16]) {
  CUuuid asked;
  device_uuid ask = NULL;
  static_assert(sizeof asked.bytes == 16, "as long as in struct device_info");
  *(void **)&ask = cuda_driver_function("cuDeviceGetUuid_v2");
  if (ask != NULL && ask(&asked, (CUdevice)device_index) == CUDA_SUCCESS)
    memcpy(uuid, asked.bytes, sizeof asked.bytes);
}

static ncclResult_t device_info_ask(uint32_t device_index, struct device_info *info) {
  struct cudaDeviceProp properties;
  TRY(cuda_result(cudaGetDeviceProperties(&properties, (int)device_index),
                  "asking for a device's properties"));
  memset(info, 0, sizeof *info);
  snprintf(info->name, sizeof info->name, "%.63s", properties.name);
  TRY(cuda_result(cudaDeviceGetPCIBusId(info->bus_id, sizeof info->bus_id, (int)device_index),
                  "asking for a device's place on the bus"));
  info->capability = (uint32_t)(properties.major * 10 + properties.minor);
  info->memory_bytes = properties.totalGlobalMem;
  info->blocks = (uint32_t)properties.multiProcessorCount; /* a block may use all registers of one */
  device_uuid_ask(device_index, info->uuid);
  cuda_guest_fill(device_index, info);
  return ncclSuccess;
}

/* The runtime takes long to collect what never changes, and each communicator asks. */
static ncclResult_t cuda_device_info(uint32_t device_index, struct device_info *info) {
  static os_mutex lock = OS_MUTEX_INITIALIZER;
  static struct device_info known[DEVICES_MAX]; /* capability 0: not asked yet */
  if (device_index >= DEVICES_MAX) return device_info_ask(device_index, info);
  os_mutex_lock(&lock);
  const ncclResult_t result =
      known[device_index].capability != 0 ? ncclSuccess : device_info_ask(device_index, &known[device_index]);
  *info = known[device_index];
  os_mutex_unlock(&lock);
  return result;
}

static bool peer_enable(uint32_t from, uint32_t to) {
  int possible = 0;
  if (cudaDeviceCanAccessPeer(&possible, (int)from, (int)to) != cudaSuccess) cudaGetLastError();
  if (!possible) return false;
  const struct cuda_scope scope = cuda_scope_enter(from);
  const cudaError_t error = cudaDeviceEnablePeerAccess((int)to, 0);
  cudaGetLastError();
  cuda_scope_leave(&scope);
  return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
}

static signed char reach_known[DEVICES_MAX][DEVICES_MAX]; /* 0 not asked, 1 yes, -1 no */

bool cuda_reach(uint32_t from, uint32_t to) {
  if (from == to) return true;
  if (from >= DEVICES_MAX || to >= DEVICES_MAX) return false;
  if (reach_known[from][to] == 0) {
    const bool reach = topology_allows(from, to) && peer_enable(from, to) && cuda_link_works(from, to);
    reach_known[from][to] = reach ? 1 : -1;
  }
  return reach_known[from][to] > 0;
}

/* Peer access ends with a context, and is asked for again. */
void cuda_device_forget(uint32_t device_index) {
  own_streams[device_index] = NULL;
  __atomic_store_n(&contexts[device_index], NULL, __ATOMIC_RELEASE);
  for (uint32_t other = 0; other < DEVICES_MAX; other++)
    reach_known[device_index][other] = reach_known[other][device_index] = 0;
}

static ncclResult_t cuda_device_reach(uint32_t from, uint32_t to, bool *reach) {
  cuda_lock();
  *reach = cuda_reach(from, to);
  cuda_unlock();
  return ncclSuccess;
}

/* Over NVLink a warp's aligned store of 128 bytes stays one packet. */
static ncclResult_t cuda_device_path(uint32_t from, uint32_t to, struct device_path_info *info) {
  cuda_lock();
  topology_path(from, to, info);
  const ncclResult_t result = topology_check_pair(from, to);
  info->peer_access = result == ncclSuccess && cuda_reach(from, to);
  info->ll128 = info->peer_access && info->type <= PATH_NVL;
  cuda_unlock();
  return result;
}

/* Nothing of other devices is touched: they may be of other processes. */
static ncclResult_t cuda_device_farthest_path(uint32_t device_index, struct device_path_info *info) {
  cuda_lock();
  topology_path_farthest(device_index, info);
  info->peer_access = topology_level() != PATH_LOC;
  cuda_unlock();
  return ncclSuccess;
}

/* Ranks may offer their outputs only where every device reaches every other. */
static bool all_possible(uint32_t device_count) {
  int possible = 1;
  for (uint32_t from = 0; from < device_count; from++)
    for (uint32_t to = 0; to < device_count && possible; to++)
      if (from != to && cudaDeviceCanAccessPeer(&possible, (int)from, (int)to) != cudaSuccess) possible = 0;
  return possible != 0;
}

static ncclResult_t cuda_device_limits(struct plan_limits *limits) {
  uint32_t device_count = 0;
  TRY(cuda_device_count(&device_count));
  launch_limits(limits, all_possible(device_count));
  return ncclSuccess;
}

/* ---- memory ---- */

cudaStream_t cuda_own_stream(uint32_t device_index) { return own_streams[device_index]; }

void cuda_settle(void) {
  int device_index = 0;
  if (cudaGetDevice(&device_index) != cudaSuccess ||
      cudaStreamSynchronize(own_streams[device_index]) != cudaSuccess)
    cudaGetLastError();
}

ncclResult_t cuda_zero(void *pointer, size_t bytes) {
  int device_index = 0;
  TRY(cuda_result(cudaGetDevice(&device_index), "asking for the thread's device"));
  TRY(cuda_result(cudaMemsetAsync(pointer, 0, bytes, own_streams[device_index]), "clearing device memory"));
  return cuda_result(cudaStreamSynchronize(own_streams[device_index]), "clearing device memory");
}

ncclResult_t cuda_zeroed_device(size_t bytes, void **pointer) {
  void *fresh = NULL;
  TRY(cuda_result(cudaMalloc(&fresh, bytes), "allocating device memory"));
  const ncclResult_t result = cuda_zero(fresh, bytes);
  if (result == ncclSuccess) *pointer = fresh;
  else cudaFree(fresh);
  return result;
}

ncclResult_t cuda_memory_write(void *device, const void *host, size_t bytes) {
  int device_index = 0;
  TRY(cuda_result(cudaGetDevice(&device_index), "asking for the thread's device"));
  TRY(cuda_result(cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, own_streams[device_index]),
                  "writing device memory"));
  return cuda_result(cudaStreamSynchronize(own_streams[device_index]), "writing device memory");
}

void *cuda_driver_function(const char *name) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return driver != NULL ? dlsym(driver, name) : NULL;
}

typedef CUresult (*device_attribute)(int *value, CUdevice_attribute attribute, CUdevice device);

int cuda_device_ask(uint32_t device_index, int attribute) {
  static device_attribute ask; /* the same value whoever finds it first */
  int value = 0;
  if (ask == NULL) *(void **)&ask = cuda_driver_function("cuDeviceGetAttribute");
  const bool known =
      ask != NULL && ask(&value, (CUdevice_attribute)attribute, (CUdevice)device_index) == CUDA_SUCCESS;
  return known ? value : 0;
}

typedef CUresult (*pointer_attribute)(void *data, CUpointer_attribute attribute, CUdeviceptr pointer);

bool cuda_pointer_ask(int attribute, uint64_t address, void *data) {
  static pointer_attribute ask; /* the same value whoever finds it first */
  if (ask == NULL) *(void **)&ask = cuda_driver_function("cuPointerGetAttribute");
  return ask != NULL && ask(data, (CUpointer_attribute)attribute, (CUdeviceptr)address) == CUDA_SUCCESS;
}

uint64_t cuda_memory_id(uint64_t address) {
  unsigned long long id = 0;
  return cuda_pointer_ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, address, &id) ? id : 0;
}

typedef CUresult (*address_range)(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer);

bool cuda_memory_range(uint64_t address, uint64_t *base, uint64_t *bytes) {
  static address_range ask; /* the same value whoever finds it first */
  CUdeviceptr begin = 0;
  size_t size = 0;
  if (ask == NULL) *(void **)&ask = cuda_driver_function("cuMemGetAddressRange_v2");
  if (ask == NULL || ask(&begin, &size, (CUdeviceptr)address) != CUDA_SUCCESS) return false;
  *base = begin;
  *bytes = size;
  return true;
}

bool cuda_memory_is_plain(const void *pointer) {
  int capable = 0;
  return cuda_pointer_ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, (uintptr_t)pointer, &capable) &&
         capable != 0;
}

/* A buffer may span several ranges of mapped memory, so only plain memory has an end that is known, and that
 * of ncclMemAlloc. */
static void query_range(const void *pointer, struct pointer_info *info) {
  struct vmm_memory own;
  uint64_t base, bytes;
  if (cuda_memory_find_own(pointer, &own)) {
    info->base = (void *)(uintptr_t)own.base;
    info->bytes = own.bytes;
    return;
  }
  if (info->kind != POINTER_DEVICE || !cuda_memory_is_plain(pointer) ||
      !cuda_memory_range((uintptr_t)pointer, &base, &bytes))
    return;
  info->base = (void *)(uintptr_t)base;
  info->bytes = bytes;
}

static ncclResult_t cuda_memory_query(const void *pointer, struct pointer_info *info) {
  struct cudaPointerAttributes attributes;
  memset(info, 0, sizeof *info);
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    cudaGetLastError();
    return ncclSuccess;
  }
  switch (attributes.type) {
    case cudaMemoryTypeHost: info->kind = POINTER_HOST; break;
    case cudaMemoryTypeDevice: info->kind = POINTER_DEVICE; break;
    case cudaMemoryTypeManaged: info->kind = POINTER_MANAGED; break;
    default: break;
  }
  if (attributes.device >= 0) info->device_index = (uint32_t)attributes.device;
  info->id = cuda_memory_id((uintptr_t)pointer);
  query_range(pointer, info);
  return ncclSuccess;
}

ncclResult_t cuda_memory_fetch(void *host, const void *device, size_t bytes) {
  int device_index = 0;
  TRY(cuda_result(cudaGetDevice(&device_index), "asking for the thread's device"));
  if (own_streams[device_index] == NULL)
    return cuda_result(cudaMemcpy(host, device, bytes, cudaMemcpyDefault), "reading");
  TRY(cuda_result(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, own_streams[device_index]),
                  "reading"));
  return cuda_result(cudaStreamSynchronize(own_streams[device_index]), "reading device memory");
}

/* ---- communicators ---- */

static struct cuda_world *world_find(uint64_t comm_id) {
  struct cuda_world *world = worlds;
  while (world != NULL && world->comm_id != comm_id) world = world->next;
  return world;
}

static ncclResult_t world_enter(struct device_comm *comm) {
  static uint64_t last_serial; /* under cuda_mutex */
  struct cuda_world *world = world_find(comm->config.comm_id);
  struct arena_block flag = {NULL, NULL, {0, 0}};
  if (world == NULL) {
    TRY(cuda_arena_take(ARENA_HOST, sizeof *world->failed, &flag));
    world = (struct cuda_world *)os_alloc(sizeof *world);
    if (world == NULL) {
      cuda_arena_give(&flag);
      return log_no_memory("rank %u: its device's part", comm->config.rank);
    }
    world->comm_id = comm->config.comm_id;
    world->serial = ++last_serial;
    world->failed_block = flag;
    world->failed = (int *)flag.address;
    os_mutex_init(&world->launches_mutex);
    world->next = worlds;
    worlds = world;
  }
  world->rank_count += 1;
  comm->world = world;
  return ncclSuccess;
}

static void world_leave(struct cuda_world *world, uint32_t all_ranks) {
  struct cuda_world **place = &worlds;
  if (world == NULL || --world->rank_count > 0) return;
  while (*place != world) place = &(*place)->next;
  *place = world->next;
  cuda_arena_give(&world->failed_block);
  cuda_rma_signals_close(world, all_ranks);
  os_mutex_destroy(&world->launches_mutex);
  os_free(world);
}

/* Before the first kernel: a GPU without code is named, and not found out by a launch that fails. */
static ncclResult_t device_check_code(uint32_t device_index) {
  struct device_info info;
  char text[512];
  TRY(cuda_device_info(device_index, &info));
  const enum capability_support support = capability_support(&capability_built, info.capability);
  if (support == CAPABILITY_NONE) {
    capability_explain(&capability_built, device_index, info.name, info.capability, text, sizeof text);
    return log_fail(ncclInvalidUsage, "%s", text);
  }
  if (support == CAPABILITY_BY_PTX)
    log_info(LOG_INIT,
             "Device %u (%s, compute capability %u.%u): the driver compiles the kernels from PTX, once; "
             "`scons GPUS=%u` builds them for it",
             device_index, info.name, info.capability / 10, info.capability % 10, info.capability);
  return ncclSuccess;
}

/* What needs a device once: a stream of our own, the kernel's code. A first launch may not wait for other
 * kernels. */
static ncclResult_t device_prepare(uint32_t device_index) {
  if (device_index >= DEVICES_MAX)
    return log_fail(ncclInvalidArgument, "device %u: no more than %u devices are supported", device_index,
                    DEVICES_MAX);
  if (own_streams[device_index] != NULL) return ncclSuccess;
  cuda_end_watch();
  TRY(device_check_code(device_index));
  TRY(cuda_result(step_kernel_load(), "loading the kernels"));
  TRY(cuda_life_begin(device_index));
  cudaStream_t stream = NULL;
  TRY(cuda_result(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
  own_streams[device_index] = stream;
  return ncclSuccess;
}

/* Kernels of one block without work: what a first launch allocates is there from now on. They count as a
 * graph's, which are over when they are waited for. */
static ncclResult_t comm_launch_first(struct device_comm *comm) {
  union launch_any launch;
  const cudaStream_t stream = own_streams[comm->config.device_index];
  memset(&launch, 0, sizeof launch);
  launch.arguments.control = comm->control;
  launch.arguments.failed = comm->world->failed;
  launch.arguments.counts = comm->order.counts;
  launch.arguments.from_graph = 1;
  for (uint32_t kernel = 0; kernel < LAUNCH_KERNELS; kernel++)
    TRY(cuda_result(step_kernel_launch(kernel, &launch, 1, 1, 1, false, stream), "launching a first kernel"));
  return cuda_result(cudaStreamSynchronize(stream), "running a first kernel");
}

static ncclResult_t comm_fill(struct device_comm *comm) {
  int major = 0;
  TRY(cuda_result(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)comm->config.device_index),
      "asking for a device's capability"));
  comm->overlaps = major >= 9;
  TRY(device_prepare(comm->config.device_index));
  cuda_ipc_self(); /* found out while others are kept out */
  cuda_ipc_owner();
  TRY(world_enter(comm));
  TRY(cuda_arena_take(ARENA_HOST, sizeof *comm->control, &comm->control_block));
  comm->control = (struct rank_control *)comm->control_block.address;
  TRY(cuda_order_open(&comm->order, comm->config.device_index));
  TRY(cuda_slabs_open(comm));
  return comm_launch_first(comm);
}

static void comm_free(struct device_comm *comm) {
  const bool lost = comm->life != cuda_life(comm->config.device_index);
  if (lost) memset(&comm->side, 0, sizeof comm->side); /* no stream and no event exists any more */
  cuda_conn_close_all(comm, lost);
  cuda_regions_close(comm);
  cuda_slabs_close(comm);
  cuda_budget_leave(comm);
  cuda_order_close(&comm->order, lost);
  cuda_side_close(&comm->side);
  cuda_rma_close(comm, lost);
  os_mutex_destroy(&comm->conns_mutex);
  cuda_record_close(comm);
  cuda_kept_close(comm);
  cuda_graph_uses_close(comm);
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++)
    cuda_arena_give(&comm->rings[channel].block);
  cuda_arena_give(&comm->control_block);
  world_leave(comm->world, comm->config.rank_count);
  os_free(comm);
}

static ncclResult_t cuda_comm_open(const struct device_comm_config *config, struct device_comm **comm) {
  struct device_comm *fresh = (struct device_comm *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return log_no_memory("rank %u: its device's part", config->rank);
  fresh->config = *config;
  snprintf(fresh->name, sizeof fresh->name, "%s", config->name != NULL ? config->name : "communicator");
  fresh->config.name = fresh->name;
  fresh->regions.rank_count = config->rank_count;
  fresh->memory_bytes = sizeof *fresh + sizeof *fresh->control;
  os_mutex_init(&fresh->conns_mutex);
  cuda_lock();
  cuda_device_renew(config->device_index);
  fresh->life = cuda_life(config->device_index);
  cuda_unlock();
  const struct cuda_scope scope = cuda_scope_enter(config->device_index);
  cuda_lock();
  cuda_conn_kept_sweep();
  ncclResult_t result = comm_fill(fresh);
  if (result == ncclSuccess) {
    cuda_record_open(fresh, config->live);
    fresh->lasting_bytes = fresh->memory_bytes;
    fresh->next = comms;
    comms = fresh;
    *comm = fresh;
  } else {
    comm_free(fresh);
  }
  cuda_unlock();
  cuda_scope_leave(&scope);
  return result;
}

/* A device that has failed ends nothing any more. Our own stream tells without disturbing a capture. */
static cudaError_t device_state(const struct device_comm *comm) {
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const cudaError_t state = cudaStreamQuery(own_streams[comm->config.device_index]);
  cuda_scope_leave(&scope);
  return state == cudaErrorNotReady ? cudaSuccess : state;
}

static bool device_failed(struct device_comm *comm) {
  const uint64_t now_ns = os_time_ns();
  const uint64_t looked_ns = __atomic_load_n(&comm->looked_ns, __ATOMIC_RELAXED);
  if (now_ns - looked_ns < LOOK_EVERY_NS) return false;
  __atomic_store_n(&comm->looked_ns, now_ns, __ATOMIC_RELAXED);
  return cuda_device_was_reset(comm->config.device_index) || device_state(comm) != cudaSuccess;
}

/* A device that does not answer any more counts as idle: nothing of this rank will ever end. */
bool cuda_comm_idle(struct device_comm *comm) {
  if (cuda_comm_lost(comm)) return true;
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  bool ended = false;
  const int error = cuda_order_ended(&comm->order, own_streams[comm->config.device_index],
                                     &comm->control->counts_seen, &ended);
  if (error != 0) cudaGetLastError();
  else cuda_record_ended(comm);
  ended = ended && cuda_rma_idle(comm);
  cuda_scope_leave(&scope);
  return error != 0 || ended;
}

static bool cuda_comm_unread(struct device_comm *comm) {
  bool unread = false;
  if (cuda_comm_lost(comm)) return false;
  cuda_conns_lock(comm);
  for (uint32_t i = 0; i < comm->conns.capacity && !unread; i++) {
    const struct cuda_conn *conn = (const struct cuda_conn *)comm->conns.entries[i].value;
    unread = conn != NULL && conn->remote != NULL && cuda_conn_remote_unread(conn);
  }
  cuda_conns_unlock(comm);
  return unread;
}

struct device_comm *cuda_comms(void) {
  return comms;
}

uint32_t cuda_device_in_use(void) {
  int current = 0;
  if (comms != NULL) return comms->config.device_index;
  if (cudaGetDevice(&current) != cudaSuccess) cudaGetLastError();
  return (uint32_t)current;
}

bool cuda_device_idle(uint32_t device_index) {
  for (struct device_comm *comm = comms; comm != NULL; comm = comm->next)
    if (comm->config.device_index == device_index && !cuda_comm_idle(comm)) return false;
  return true;
}

/* Kernels of an aborted rank end by themselves, unless they are queued behind something that never ends: then
 * their memory is given up, because it may not be freed under them, and the program goes on. */
static bool comm_wait_idle(struct device_comm *comm) {
  const uint64_t end_ns = os_time_ns() + ABORTED_WAIT_NS;
  while (!cuda_comm_idle(comm)) {
    const bool aborted = __atomic_load_n(&comm->control->abort, __ATOMIC_ACQUIRE) != 0;
    if (aborted && os_time_ns() >= end_ns) {
      log_warn(
          "rank %u of comm %s was aborted, and its kernels are still behind other work of the device: its "
          "memory is not freed; abort what they wait for first",
          comm->config.rank, comm->name);
      return false;
    }
    os_yield();
  }
  return true;
}

/* Of a device that was reset nothing is left to free, and a scope would make its context anew. */
static struct cuda_scope close_enter(struct device_comm *comm, bool *lost) {
  const struct cuda_scope none = {false, cudaStreamCaptureModeGlobal};
  cuda_lock();
  cuda_device_renew(comm->config.device_index);
  *lost = comm->life != cuda_life(comm->config.device_index);
  cuda_unlock();
  return *lost ? none : cuda_scope_enter(comm->config.device_index);
}

static void cuda_comm_close(struct device_comm *comm) {
  bool lost = false;
  if (comm == NULL) return;
  if (!comm_wait_idle(comm)) {
    comm->order.counts_block.address = NULL; /* its kernels may still count: it is never freed */
    cuda_budget_leave(comm);
    return;
  }
  const struct cuda_scope scope = close_enter(comm, &lost);
  cuda_lock();
  struct device_comm **place = &comms;
  while (*place != comm) place = &(*place)->next;
  *place = comm->next;
  comm_free(comm);
  cuda_conn_kept_sweep();
  if (comms == NULL) {
    cuda_conn_kept_drop();
    cuda_rma_kept_drop();
    cuda_ipc_close(cuda_ipc_take_unused(NULL));
    cuda_arena_trim();
    cuda_ipc_probe_close();
  }
  cuda_unlock();
  if (!lost) cuda_scope_leave(&scope);
}

/* Nothing here depends on who drives a rank. */
static void cuda_comm_own(struct device_comm *comm) { (void)comm; }

/* Both ends' launches wait until the connection is in their tables. cuda_mutex first: so two ranks that
 * connect to each other do not wait for each other. */
static ncclResult_t cuda_comm_connect(struct device_comm *sender, struct device_comm *receiver,
                                      uint32_t channel_index, uint32_t conn_index, uint8_t slots) {
  cuda_lock();
  cuda_conns_lock(sender);
  cuda_conns_lock(receiver);
  const ncclResult_t result = cuda_conn_open(sender, receiver, channel_index, conn_index, slots);
  cuda_conns_unlock(receiver);
  cuda_conns_unlock(sender);
  cuda_unlock();
  return result;
}

static ncclResult_t cuda_ops_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                                      struct device_net_end *end) {
  cuda_lock();
  cuda_conns_lock(comm);
  const ncclResult_t result = cuda_conn_net(comm, name, end);
  cuda_conns_unlock(comm);
  cuda_unlock();
  return result;
}

static ncclResult_t cuda_ops_conn_export(struct device_comm *comm, const struct device_conn_name *name,
                                         struct device_conn_handle *handle) {
  cuda_lock();
  cuda_conns_lock(comm);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const ncclResult_t result = cuda_conn_export(comm, name, handle);
  cuda_scope_leave(&scope);
  cuda_conns_unlock(comm);
  cuda_unlock();
  return result;
}

static ncclResult_t cuda_ops_conn_import(struct device_comm *comm, const struct device_conn_name *name,
                                         const struct device_conn_handle *handle) {
  cuda_lock();
  cuda_conns_lock(comm);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const ncclResult_t result = cuda_conn_import(comm, name, handle);
  cuda_scope_leave(&scope);
  cuda_conns_unlock(comm);
  cuda_unlock();
  return result;
}

/* A GPU that polls another's memory loads the link, and waits for it. */
static bool cuda_conn_both_ends(void) { return true; }

static ncclResult_t cuda_ops_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place,
                                       bool sends, uint8_t **buffer) {
  cuda_lock();
  cuda_conns_lock(comm);
  const ncclResult_t result = cuda_net_slots(comm, channel_index, place, sends, buffer);
  cuda_conns_unlock(comm);
  cuda_unlock();
  return result;
}

static ncclResult_t cuda_ops_net_sample(struct device_comm *comm, size_t *bytes, uint8_t **sample) {
  cuda_lock();
  cuda_conns_lock(comm);
  const ncclResult_t result = cuda_net_sample(comm, bytes, sample);
  cuda_conns_unlock(comm);
  cuda_unlock();
  return result;
}

static ncclResult_t cuda_comm_memory(struct device_comm *comm, uint64_t *bytes) {
  cuda_lock();
  *bytes = comm->memory_bytes + map_bytes(&comm->conns) + map_bytes(&comm->slots);
  cuda_unlock();
  return ncclSuccess;
}

static void cuda_comm_abort(struct device_comm *comm) {
  __atomic_store_n(&comm->control->abort, 1, __ATOMIC_RELEASE);
  cuda_rma_abort(comm);
}

/* Streams go on without an error; who asks for the communicator's hears of it. */
void cuda_comm_fail(struct device_comm *comm, ncclResult_t error) {
  ncclResult_t none = ncclSuccess;
  __atomic_compare_exchange_n(&comm->error, &none, error, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  cuda_comm_abort(comm);
}

static void cuda_comm_settle(struct device_comm *comm, const struct plan_limits *limits) {
  struct device_info info;
  comm->config.limits = *limits;
  if (cuda_device_info(comm->config.device_index, &info) == ncclSuccess) cuda_budget_join(comm, &info);
}

/* ---- what kernels say ---- */

static void report_mismatch(const struct device_comm *comm, const struct launch_error *error,
                            uint32_t channel_index) {
  log_urgent(
      "comm %s: rank %u and rank %u do not agree on operation %llu: rank %u has %llu bytes for channel %u "
      "where "
      "rank %u expects %llu; call the same collective with the same count and type on all ranks, in the same "
      "order",
      comm->name, error->peer, comm->config.rank, (unsigned long long)error->op_sequence, error->peer,
      (unsigned long long)error->found_bytes, channel_index, comm->config.rank,
      (unsigned long long)error->expected_bytes);
}

/* Every rank of a communicator fails with the one that found a mismatch. */
static ncclResult_t comm_look(struct device_comm *comm) {
  ncclResult_t error = ncclSuccess;
  cuda_device_renew(comm->config.device_index);
  if (comm->error != ncclSuccess) return comm->error;
  const bool own = __atomic_load_n(&comm->control->failed, __ATOMIC_ACQUIRE) != 0;
  if (own || __atomic_load_n(comm->world->failed, __ATOMIC_ACQUIRE) != 0) error = ncclInvalidUsage;
  if (own)
    for (uint32_t i = 0; i < PLAN_CHANNELS_MAX; i++)
      if (comm->control->errors[i].error != 0) report_mismatch(comm, &comm->control->errors[i], i);
  const bool others = error != ncclSuccess && !own;
  if (error == ncclSuccess)
    error = cuda_result(device_state(comm), "a kernel on the device, ours or the program's,");
  if (error != ncclSuccess)
    recorder_break(comm->live.comm, error,
                   others ? "another rank found that ranks do not agree on an operation" : log_last_error());
  __atomic_store_n(&comm->error, error, __ATOMIC_RELEASE);
  return error;
}

/* Every call of the program asks: without a lock while all is well. */
static ncclResult_t cuda_comm_error(struct device_comm *comm) {
  const ncclResult_t known = (ncclResult_t)__atomic_load_n(&comm->error, __ATOMIC_ACQUIRE);
  if (known != ncclSuccess) return known;
  if (__atomic_load_n(comm->world->failed, __ATOMIC_ACQUIRE) == 0 &&
      __atomic_load_n(&comm->control->failed, __ATOMIC_ACQUIRE) == 0 && !device_failed(comm))
    return ncclSuccess;
  cuda_lock();
  const ncclResult_t result = comm_look(comm);
  cuda_unlock();
  return result;
}

/* Of kernels nothing is known. Where all have ended, waits for signals may be what is left. */
static void cuda_comm_stall(struct device_comm *comm, bool asks, struct device_stall *stall) {
  const uint64_t launched = __atomic_load_n(&comm->order.blocks_launched, __ATOMIC_ACQUIRE);
  (void)asks;
  memset(stall, 0, sizeof *stall);
  stall->known = !comm->order.captured_ever &&
                 __atomic_load_n(&comm->control->counts_seen.plain_ended, __ATOMIC_ACQUIRE) == launched;
  stall->moves = launched;
  if (stall->known) cuda_rma_stall(comm, stall);
}

/* ---- streams and waiting ---- */

static ncclResult_t cuda_stream_capture(device_stream stream, uint64_t *graph_id) {
  struct cuda_capture capture = {0, NULL};
  TRY(cuda_result(cuda_order_capture((cudaStream_t)stream, &capture), "asking a stream for its capture"));
  *graph_id = capture.id;
  return ncclSuccess;
}

static void cuda_ops_lock(void) { os_mutex_lock(&core_mutex); }
static void cuda_ops_unlock(void) { os_mutex_unlock(&core_mutex); }

#define WAIT_TURNS_AWAKE 1000

static ncclResult_t cuda_wait_until(bool (*done)(void *argument), void *argument, uint64_t deadline_ms) {
  const uint64_t end_ns = os_time_ns() + deadline_ms * 1000000;
  for (uint32_t turn = 0;; turn++) {
    os_mutex_lock(&core_mutex);
    const bool finished = done(argument);
    os_mutex_unlock(&core_mutex);
    if (finished) return ncclSuccess;
    if (deadline_ms != 0 && os_time_ns() >= end_ns) return ncclInProgress;
    if (turn < WAIT_TURNS_AWAKE) os_yield();
    else os_sleep_ms(1);
  }
}

typedef CUresult (*stream_context)(CUstream stream, CUcontext *context);
typedef CUresult (*context_device)(CUdevice *device);

static bool context_device_index(CUcontext context, uint32_t *device_index) {
  static context_device ask; /* the same value whoever finds it first */
  CUdevice device = 0;
  if (ask == NULL) *(void **)&ask = cuda_driver_function("cuCtxGetDevice");
  if (ask == NULL || !context_enter(context)) return false;
  const bool known = ask(&device) == CUDA_SUCCESS;
  cuda_device_leave();
  if (known) *device_index = (uint32_t)device;
  return known;
}

static enum stream_place cuda_stream_place(device_stream stream, uint32_t *device_index) {
  static stream_context ask; /* the same value whoever finds it first */
  CUcontext context = NULL;
  if ((uintptr_t)stream <= 2) return STREAM_DEFAULT;
  if (ask == NULL) *(void **)&ask = cuda_driver_function("cuStreamGetCtx");
  if (ask == NULL || ask((CUstream)stream, &context) != CUDA_SUCCESS) return STREAM_DEFAULT;
  return context_device_index(context, device_index) ? STREAM_ON : STREAM_DEFAULT;
}

static bool cuda_runs_programs(void) { return true; }

static ncclResult_t cuda_ops_memory_write(uint32_t device_index, void *memory, const void *from,
                                          size_t bytes) {
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  const ncclResult_t result = cuda_memory_write(memory, from, bytes);
  cuda_scope_leave(&scope);
  return result;
}

static const struct device_ops device_table = {
    .size = sizeof(struct device_ops),
    .count = cuda_device_count,
    .current = cuda_device_current,
    .select = cuda_device_select,
    .info = cuda_device_info,
    .reach = cuda_device_reach,
    .limits = cuda_device_limits,
    .comm_open = cuda_comm_open,
    .comm_close = cuda_comm_close,
    .comm_own = cuda_comm_own,
    .comm_disown = cuda_comm_own,
    .comm_settle = cuda_comm_settle,
    .use = cuda_device_use,
    .comm_fail = cuda_comm_fail,
    .comm_connect = cuda_comm_connect,
    .comm_memory = cuda_comm_memory,
    .comm_releasable = cuda_comm_releasable,
    .comm_release_check = cuda_comm_release_check,
    .comm_release = cuda_comm_release,
    .comm_release_end = cuda_comm_release_end,
    .comm_abort = cuda_comm_abort,
    .comm_stall = cuda_comm_stall,
    .comm_error = cuda_comm_error,
    .put = cuda_put,
    .await = cuda_await,
    .comm_idle = cuda_comm_idle,
    .comm_unread = cuda_comm_unread,
    .launch = cuda_launch,
    .launch_cached = cuda_launch_cached,
    .stream_capture = cuda_stream_capture,
    .stream_place = cuda_stream_place,
    .wait_until = cuda_wait_until,
    .progress = os_yield,
    .lock = cuda_ops_lock,
    .unlock = cuda_ops_unlock,
    .path = cuda_device_path,
    .farthest_path = cuda_device_farthest_path,
    .records_look = cuda_records_look,
    .runs_programs = cuda_runs_programs,
    .comm_reaches = cuda_comm_reaches,
};
static const struct memory_ops memory_table = {
    .size = sizeof(struct memory_ops),
    .alloc = cuda_memory_alloc,
    .free = cuda_memory_free,
    .query = cuda_memory_query,
    .write = cuda_ops_memory_write,
    .dmabuf = cuda_memory_dmabuf,
};
static const struct process_ops process_table = {
    .size = sizeof(struct process_ops),
    .comm_handle = cuda_comm_handle,
    .comm_reach = cuda_comm_reach,
    .comm_reach_shm = cuda_comm_reach_shm,
    .comm_check = cuda_comm_check,
    .conn_export = cuda_ops_conn_export,
    .conn_import = cuda_ops_conn_import,
    .conn_both_ends = cuda_conn_both_ends,
    .region_check = cuda_region_check,
    .region_ask = cuda_region_ask,
    .region_answered = cuda_region_answered,
    .region_map = cuda_region_map,
    .region_unmap = cuda_region_unmap,
    .regions_look = cuda_regions_look,
    .region_gone = cuda_region_gone,
    .region_sweep = cuda_region_sweep,
    .puts_between = cuda_puts_between,
    .signals_export = cuda_signals_export,
    .signals_import = cuda_signals_import,
    .window_map = cuda_put_window_map,
    .window_shown = cuda_window_shown,
    .window_hold = cuda_window_hold,
};
static const struct network_ops network_table = {
    .size = sizeof(struct network_ops),
    .conn_net = cuda_ops_conn_net,
    .net_announce = cuda_net_announce,
    .net_take = cuda_net_take,
    .net_put = cuda_net_put,
    .net_ll = cuda_net_ll,
    .net_slots = cuda_ops_net_slots,
    .net_rdma = cuda_net_rdma,
    .net_memory = cuda_net_memory,
    .net_sample = cuda_ops_net_sample,
};
static const struct backend cuda_ops = {sizeof(struct backend), "cuda",         &device_table,
                                        &memory_table,          &process_table, &network_table};

const struct backend *tutti_cuda_ops(const struct backend_services *services, char *reason,
                                     size_t reason_bytes) {
  int device_count = 0;
  cuda_log_open(services);
  const cudaError_t error = cudaGetDeviceCount(&device_count);
  if (error == cudaSuccess && device_count > 0) return &cuda_ops;
  cudaGetLastError();
  snprintf(reason, reason_bytes, "the driver reports no device (%s)",
           error == cudaSuccess ? "none is there" : cudaGetErrorString(error));
  return NULL;
}
