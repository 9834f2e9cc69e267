/* reset.c: devices that the program resets (cudaDeviceReset, cuDevicePrimaryCtxReset). A reset destroys a
 * context with all of its memory, streams and events, also this library's, and tells nobody. So each device
 * in use has a witness: an allocation whose number the driver gives to no other. A device's life is the time
 * from one reset to the next; what belongs to an earlier life is forgotten, not freed. */
#include <cuda.h>

#include "backends/cuda/ipc.h"
#include "base/log.h"

#define WITNESS_BYTES 256

typedef CUresult (*context_state)(CUdevice device, unsigned *flags, int *active);

static struct life {
  void *witness;
  uint64_t id; /* of the witness; 0: none, so that nothing can be told */
  uint32_t number;
} lives[DEVICES_MAX];

uint32_t cuda_life(uint32_t device_index) {
  return device_index < DEVICES_MAX ? __atomic_load_n(&lives[device_index].number, __ATOMIC_ACQUIRE) : 0;
}

/* A context that was reset is inactive until the runtime is used on its device again. */
static bool context_is_active(uint32_t device_index) {
  static context_state ask; /* the same value whoever finds it first */
  unsigned flags = 0;
  int active = 0;
  if (ask == NULL) *(void **)&ask = cuda_driver_function("cuDevicePrimaryCtxGetState");
  return ask == NULL || ask((CUdevice)device_index, &flags, &active) != CUDA_SUCCESS || active != 0;
}

bool cuda_device_was_reset(uint32_t device_index) {
  const struct life *life = &lives[device_index];
  const uint64_t id = __atomic_load_n(&life->id, __ATOMIC_ACQUIRE);
  if (id == 0) return false;
  if (!context_is_active(device_index) || !cuda_device_enter(device_index)) return true;
  const bool same = cuda_memory_id((uintptr_t)life->witness) == id;
  cuda_device_leave();
  return !same;
}

ncclResult_t cuda_life_begin(uint32_t device_index) {
  struct life *life = &lives[device_index];
  TRY(cuda_result(cudaMalloc(&life->witness, WITNESS_BYTES), "allocating device memory"));
  __atomic_store_n(&life->id, cuda_memory_id((uintptr_t)life->witness), __ATOMIC_RELEASE);
  return ncclSuccess;
}

bool cuda_comm_lost(const struct device_comm *comm) {
  return comm->life != cuda_life(comm->config.device_index) ||
         cuda_device_was_reset(comm->config.device_index);
}

/* Kernels of the communicator's ranks on other devices wait for this one. */
static void world_fail(const struct device_comm *lost) {
  for (struct device_comm *comm = cuda_comms(); comm != NULL; comm = comm->next)
    if (comm->world == lost->world && comm->life == cuda_life(comm->config.device_index))
      cuda_comm_fail(comm, ncclUnhandledCudaError);
}

static void comm_lose(struct device_comm *comm) {
  if (__atomic_load_n(&comm->error, __ATOMIC_ACQUIRE) == ncclSuccess) {
    log_fail(ncclUnhandledCudaError,
             "comm %s: rank %u lost its memory, streams and kernels: the program reset device %u "
             "(cudaDeviceReset or cuDevicePrimaryCtxReset) while the communicator lived; call "
             "ncclCommAbort for it, and destroy all communicators of a device before a reset",
             comm->name, comm->config.rank, comm->config.device_index);
    recorder_break(comm->live.comm, ncclUnhandledCudaError, log_last_error());
  }
  __atomic_store_n(&comm->error, ncclUnhandledCudaError, __ATOMIC_RELEASE);
  world_fail(comm);
}

void cuda_device_renew(uint32_t device_index) {
  if (device_index >= DEVICES_MAX || !cuda_device_was_reset(device_index)) return;
  struct life *life = &lives[device_index];
  __atomic_store_n(&life->id, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&life->number, life->number + 1, __ATOMIC_RELEASE);
  cuda_device_forget(device_index);
  cuda_link_forget(device_index);
  cuda_ipc_forget(device_index);
  for (struct device_comm *comm = cuda_comms(); comm != NULL; comm = comm->next)
    if (comm->config.device_index == device_index && comm->life != life->number) comm_lose(comm);
}
