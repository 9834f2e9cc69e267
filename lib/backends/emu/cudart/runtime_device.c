/* runtime_device.c: the emulated runtime's device functions. The emulated GPU describes itself with the
 * sizes of a Hopper data-center GPU, so that programs which size their work by them take the paths they
 * take on one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/cudart/runtime.h"
#include "backends/emu/world_impl.h"
#include "base/array.h"
#include "base/log.h"
#include "base/open_group.h"

enum { RUNTIME_VERSION = CUDART_VERSION };

static bool device_valid(int device) { return device >= 0 && (uint32_t)device < emu_options()->device_count; }

cudaError_t tutti_cudart_DriverGetVersion(int *version) {
  if (version == NULL) return runtime_result(cudaErrorInvalidValue);
  *version = RUNTIME_VERSION;
  return cudaSuccess;
}

cudaError_t tutti_cudart_RuntimeGetVersion(int *version) { return tutti_cudart_DriverGetVersion(version); }

cudaError_t tutti_cudart_GetDeviceCount(int *count) {
  if (count == NULL) return runtime_result(cudaErrorInvalidValue);
  *count = (int)emu_options()->device_count;
  return cudaSuccess;
}

cudaError_t tutti_cudart_SetDevice(int device) {
  if (!device_valid(device)) return runtime_result(cudaErrorInvalidDevice);
  return runtime_result(emu_device_select((uint32_t)device));
}

cudaError_t tutti_cudart_GetDevice(int *device) {
  if (device == NULL) return runtime_result(cudaErrorInvalidValue);
  *device = (int)emu_device_current();
  return cudaSuccess;
}

cudaError_t tutti_cudart_InitDevice(int device, unsigned device_flags, unsigned flags) {
  (void)device_flags;
  (void)flags;
  return device_valid(device) ? cudaSuccess : runtime_result(cudaErrorInvalidDevice);
}

static _Thread_local unsigned device_flags = cudaDeviceMapHost;

cudaError_t tutti_cudart_SetDeviceFlags(unsigned flags) {
  if ((flags & ~(unsigned)cudaDeviceMask) != 0) return runtime_result(cudaErrorInvalidValue);
  device_flags = flags | cudaDeviceMapHost;
  return cudaSuccess;
}

cudaError_t tutti_cudart_GetDeviceFlags(unsigned *flags) {
  if (flags == NULL) return runtime_result(cudaErrorInvalidValue);
  *flags = device_flags;
  return cudaSuccess;
}

/* The facts in both the properties and the attributes: ROW(attribute, member, value). */
#define DEVICE_FACTS(ROW)                                                                 \
  ROW(cudaDevAttrMaxThreadsPerBlock, maxThreadsPerBlock, 1024)                            \
  ROW(cudaDevAttrMaxBlockDimX, maxThreadsDim[0], 1024)                                    \
  ROW(cudaDevAttrMaxBlockDimY, maxThreadsDim[1], 1024)                                    \
  ROW(cudaDevAttrMaxBlockDimZ, maxThreadsDim[2], 64)                                      \
  ROW(cudaDevAttrMaxGridDimX, maxGridSize[0], 0x7fffffff)                                 \
  ROW(cudaDevAttrMaxGridDimY, maxGridSize[1], 65535)                                      \
  ROW(cudaDevAttrMaxGridDimZ, maxGridSize[2], 65535)                                      \
  ROW(cudaDevAttrMaxSharedMemoryPerBlock, sharedMemPerBlock, 49152)                       \
  ROW(cudaDevAttrTotalConstantMemory, totalConstMem, 65536)                               \
  ROW(cudaDevAttrWarpSize, warpSize, 32)                                                  \
  ROW(cudaDevAttrMaxPitch, memPitch, 0x7fffffff)                                          \
  ROW(cudaDevAttrMaxRegistersPerBlock, regsPerBlock, 65536)                               \
  ROW(cudaDevAttrClockRate, clockRate, 1980000)                                           \
  ROW(cudaDevAttrTextureAlignment, textureAlignment, 512)                                 \
  ROW(cudaDevAttrGpuOverlap, deviceOverlap, 1)                                            \
  ROW(cudaDevAttrMultiProcessorCount, multiProcessorCount, 132)                           \
  ROW(cudaDevAttrKernelExecTimeout, kernelExecTimeoutEnabled, 0)                          \
  ROW(cudaDevAttrIntegrated, integrated, 0)                                               \
  ROW(cudaDevAttrCanMapHostMemory, canMapHostMemory, 1)                                   \
  ROW(cudaDevAttrComputeMode, computeMode, 0)                                             \
  ROW(cudaDevAttrConcurrentKernels, concurrentKernels, 1)                                 \
  ROW(cudaDevAttrEccEnabled, ECCEnabled, 1)                                               \
  ROW(cudaDevAttrTccDriver, tccDriver, 0)                                                 \
  ROW(cudaDevAttrMemoryClockRate, memoryClockRate, 3201000)                               \
  ROW(cudaDevAttrGlobalMemoryBusWidth, memoryBusWidth, 6144)                              \
  ROW(cudaDevAttrL2CacheSize, l2CacheSize, 60 << 20)                                      \
  ROW(cudaDevAttrMaxThreadsPerMultiProcessor, maxThreadsPerMultiProcessor, 2048)          \
  ROW(cudaDevAttrAsyncEngineCount, asyncEngineCount, 3)                                   \
  ROW(cudaDevAttrUnifiedAddressing, unifiedAddressing, 1)                                 \
  ROW(cudaDevAttrComputeCapabilityMajor, major, 9)                                        \
  ROW(cudaDevAttrComputeCapabilityMinor, minor, 0)                                        \
  ROW(cudaDevAttrStreamPrioritiesSupported, streamPrioritiesSupported, 1)                 \
  ROW(cudaDevAttrMaxSharedMemoryPerMultiprocessor, sharedMemPerMultiprocessor, 233472)    \
  ROW(cudaDevAttrMaxRegistersPerMultiprocessor, regsPerMultiprocessor, 65536)             \
  ROW(cudaDevAttrManagedMemory, managedMemory, 1)                                         \
  ROW(cudaDevAttrIsMultiGpuBoard, isMultiGpuBoard, 0)                                     \
  ROW(cudaDevAttrHostNativeAtomicSupported, hostNativeAtomicSupported, 0)                 \
  ROW(cudaDevAttrPageableMemoryAccess, pageableMemoryAccess, 0)                           \
  ROW(cudaDevAttrConcurrentManagedAccess, concurrentManagedAccess, 1)                     \
  ROW(cudaDevAttrComputePreemptionSupported, computePreemptionSupported, 1)               \
  ROW(cudaDevAttrCanUseHostPointerForRegisteredMem, canUseHostPointerForRegisteredMem, 1) \
  ROW(cudaDevAttrCooperativeLaunch, cooperativeLaunch, 1)                                 \
  ROW(cudaDevAttrMaxSharedMemoryPerBlockOptin, sharedMemPerBlockOptin, 232448)            \
  ROW(cudaDevAttrHostRegisterSupported, hostRegisterSupported, 1)                         \
  ROW(cudaDevAttrMaxBlocksPerMultiprocessor, maxBlocksPerMultiProcessor, 32)              \
  ROW(cudaDevAttrMemoryPoolsSupported, memoryPoolsSupported, 1)                           \
  ROW(cudaDevAttrGPUDirectRDMASupported, gpuDirectRDMASupported, 0)                       \
  ROW(cudaDevAttrClusterLaunch, clusterLaunch, 1)

static void device_place(uint32_t device_index, int *domain, int *bus) {
  char text[32];
  unsigned domain_number = 0, bus_number = 0;
  emu_device_bus_id(device_index, text, sizeof text);
  if (sscanf(text, "%x:%x", &domain_number, &bus_number) != 2) domain_number = bus_number = 0;
  *domain = (int)domain_number;
  *bus = (int)bus_number;
}

cudaError_t tutti_cudart_GetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  if (prop == NULL) return runtime_result(cudaErrorInvalidValue);
  if (!device_valid(device)) return runtime_result(cudaErrorInvalidDevice);
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "tutti emulated GPU");
  memcpy(prop->uuid.bytes, "tutti emulated", 12);
  memcpy(prop->uuid.bytes + 12, &device, sizeof device);
  prop->totalGlobalMem = EMU_DEVICE_MEMORY_BYTES;
  prop->multiGpuBoardGroupID = device;
  prop->reservedSharedMemPerBlock = 1024;
  device_place((uint32_t)device, &prop->pciDomainID, &prop->pciBusID);
#define MEMBER(attribute, member, value) prop->member = value;
  DEVICE_FACTS(MEMBER)
#undef MEMBER
  return cudaSuccess;
}

cudaError_t tutti_cudart_DeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  if (value == NULL) return runtime_result(cudaErrorInvalidValue);
  if (!device_valid(device)) return runtime_result(cudaErrorInvalidDevice);
  int domain, bus;
  device_place((uint32_t)device, &domain, &bus);
  switch ((int)attribute) {
#define ATTRIBUTE(attribute, member, number) \
  case attribute: *value = number; return cudaSuccess;
    DEVICE_FACTS(ATTRIBUTE)
#undef ATTRIBUTE
    case cudaDevAttrPciDomainId: *value = domain; return cudaSuccess;
    case cudaDevAttrPciBusId: *value = bus; return cudaSuccess;
    case cudaDevAttrPciDeviceId: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiGpuBoardGroupID: *value = device; return cudaSuccess;
    default: break;
  }
  /* CUDA's other attributes, which have no value in the emulator. */
  if ((int)attribute < cudaDevAttrMaxThreadsPerBlock || (int)attribute > 147)
    return runtime_result(cudaErrorInvalidValue);
  *value = 0;
  return cudaSuccess;
}

cudaError_t tutti_cudart_DeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int from,
                                               int to) {
  if (value == NULL) return runtime_result(cudaErrorInvalidValue);
  if (!device_valid(from) || !device_valid(to) || from == to) return runtime_result(cudaErrorInvalidDevice);
  if (attribute < cudaDevP2PAttrPerformanceRank || attribute > cudaDevP2PAttrCudaArrayAccessSupported) {
    return runtime_result(cudaErrorInvalidValue);
  }
  *value = attribute == cudaDevP2PAttrPerformanceRank ? 0 : 1;
  return cudaSuccess;
}

cudaError_t tutti_cudart_DeviceGetPCIBusId(char *text, int length, int device) {
  if (text == NULL || length < 13) return runtime_result(cudaErrorInvalidValue);
  if (!device_valid(device)) return runtime_result(cudaErrorInvalidDevice);
  emu_device_bus_id((uint32_t)device, text, (size_t)length);
  return cudaSuccess;
}

cudaError_t tutti_cudart_DeviceGetByPCIBusId(int *device, const char *text) {
  unsigned domain, bus, wanted_domain, wanted_bus;
  if (device == NULL || text == NULL) return runtime_result(cudaErrorInvalidValue);
  if (sscanf(text, "%x:%x:", &wanted_domain, &wanted_bus) != 2) return runtime_result(cudaErrorInvalidValue);
  for (uint32_t i = 0; i < emu_options()->device_count; i++) {
    char own[32];
    emu_device_bus_id(i, own, sizeof own);
    if (sscanf(own, "%x:%x:", &domain, &bus) != 2 || domain != wanted_domain || bus != wanted_bus) continue;
    *device = (int)i;
    return cudaSuccess;
  }
  return runtime_result(cudaErrorInvalidDevice);
}

cudaError_t tutti_cudart_DeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least != NULL) *least = 0;
  if (greatest != NULL) *greatest = -5;
  return cudaSuccess;
}

cudaError_t tutti_cudart_DeviceCanAccessPeer(int *can, int device, int peer) {
  if (can == NULL) return runtime_result(cudaErrorInvalidValue);
  if (!device_valid(device) || !device_valid(peer)) return runtime_result(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

/* ---- peer access: remembered, since a program may rely on the errors; never needed ---- */

static struct { uint32_t from, to; } * peers;
static uint32_t peer_count, peer_capacity;

static bool peer_find(uint32_t from, uint32_t to, uint32_t *place) {
  for (uint32_t i = 0; i < peer_count; i++) {
    *place = i;
    if (peers[i].from == from && peers[i].to == to) return true;
  }
  return false;
}

static int peer_enable(uint32_t from, uint32_t to) {
  uint32_t place;
  if (peer_find(from, to, &place)) return cudaErrorPeerAccessAlreadyEnabled;
  if (!array_grow(&peers, &peer_capacity, (uint64_t)peer_count + 1, sizeof *peers))
    return cudaErrorMemoryAllocation;
  peers[peer_count].from = from;
  peers[peer_count++].to = to;
  return 0;
}

static int peer_disable(uint32_t from, uint32_t to) {
  uint32_t place;
  if (!peer_find(from, to, &place)) return cudaErrorPeerAccessNotEnabled;
  peers[place] = peers[--peer_count];
  return 0;
}

cudaError_t tutti_cudart_DeviceEnablePeerAccess(int peer, unsigned flags) {
  if (!device_valid(peer)) return runtime_result(cudaErrorInvalidDevice);
  if (flags != 0) return runtime_result(cudaErrorInvalidValue);
  if ((uint32_t)peer == emu_device_current()) return runtime_result(cudaErrorPeerAccessUnsupported);
  emu_lock();
  int error = peer_enable(emu_device_current(), (uint32_t)peer);
  emu_unlock();
  return runtime_result(error);
}

cudaError_t tutti_cudart_DeviceDisablePeerAccess(int peer) {
  if (!device_valid(peer)) return runtime_result(cudaErrorInvalidDevice);
  emu_lock();
  int error = peer_disable(emu_device_current(), (uint32_t)peer);
  emu_unlock();
  return runtime_result(error);
}

/* ---- the whole device ---- */

static int device_wait(void) {
  int error = emu_capture_device_wait(emu_device_current());
  if (error == 0) error = emu_capture_unsafe_call();
  return error != 0 ? error : emu_device_synchronize(emu_device_current());
}

cudaError_t tutti_cudart_DeviceSynchronize(void) {
  if (open_group_blocks("cudaDeviceSynchronize", NULL, emu_device_current(), true))
    return runtime_result(cudaErrorNotPermitted);
  emu_lock();
  int error = device_wait();
  emu_unlock();
  return runtime_result(error);
}

/* Ranks of communicators have streams and memory there. */
static int device_unused(uint32_t device_index) {
  char rank[160];
  if (!emu_device_has_rank(device_index, rank, sizeof rank)) return 0;
  log_urgent("cudaDeviceReset of device %" PRIu32
             ": %s still uses it; call ncclCommDestroy for all communicators of the device before",
             device_index, rank);
  return cudaErrorIllegalState;
}

cudaError_t tutti_cudart_DeviceReset(void) {
  emu_lock();
  int error = device_unused(emu_device_current());
  if (error != 0) {
    emu_unlock();
    return runtime_result(error);
  }
  error = device_wait();
  bool idle = emu_device_idle(emu_device_current());
  for (uint32_t i = peer_count; i-- > 0;) {
    if (peers[i].from == emu_device_current()) peers[i] = peers[--peer_count];
  }
  emu_unlock();
  if (idle) emu_memory_reset(emu_device_current());
  tutti_cudart_GetLastError();
  return runtime_result(error);
}
