/* library.c: queries about the library and about a communicator, and memory allocation. */
#include "base/callsite.h"
#include "base/log.h"
#include "base/param.h"
#include "core/api.h"
#include "core/comm/comm.h"
#include "core/comm/leaks.h"
#include "core/proxy/proxy.h"
#include "tutti.h"

#define TEXT_OF(value) #value
#define TEXT(value) TEXT_OF(value)

ncclResult_t pncclGetVersion(int *version) {
  if (!version)
    return log_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL; pass where to put the number");
  *version = (int)param_int(PARAM_TUTTI_NCCL_VERSION);
  return ncclSuccess;
}
API_EXPORT(GetVersion);

const char *pncclGetErrorString(ncclResult_t result) { return err_text(result); }
API_EXPORT(GetErrorString);

const char *pncclGetLastError(ncclComm_t comm) {
  (void)comm; /* unused: errors belong to the process */
  return log_last_error();
}
API_EXPORT(GetLastError);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
void pncclResetDebugInit(void) {
  param_reset();
  log_reset();
}
API_EXPORT(ResetDebugInit);
#pragma GCC diagnostic pop

/* ---- A communicator ---- */

/* Allowed from the moment that the ranks have met until the handle is destroyed. */
static ncclResult_t comm_check_question(struct ncclComm *comm, const char *call, const int *answer) {
  TRY(comm_check_handle(comm, call));
  if (comm_state(comm) == COMM_RENDEZVOUS || comm_state(comm) == COMM_FAILED) TRY(comm_check_met(comm, call));
  if (answer) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: rank %u of comm '%s': the output is NULL; pass where to put the number", call,
                  comm->rank, comm->name);
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int *count) {
  TRY(comm_check_question(comm, "ncclCommCount", count));
  *count = (int)comm->rank_count;
  return ncclSuccess;
}
API_EXPORT(CommCount);

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device) {
  TRY(comm_check_question(comm, "ncclCommCuDevice", device));
  *device = (int)comm->device_index;
  return ncclSuccess;
}
API_EXPORT(CommCuDevice);

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank) {
  TRY(comm_check_question(comm, "ncclCommUserRank", rank));
  *rank = (int)comm->rank;
  return ncclSuccess;
}
API_EXPORT(CommUserRank);

ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value) {
  uint64_t bytes = 0;
  TRY(comm_check_met(comm, "ncclCommMemStats"));
  if (!value)
    return log_fail(ncclInvalidArgument, "ncclCommMemStats: value is NULL; pass where to put the number");
  if (stat < ncclStatGpuMemSuspend || stat > ncclStatGpuMemTotal)
    return log_fail(ncclInvalidArgument, "ncclCommMemStats: %d is no ncclCommMemStat_t", (int)stat);
  TRY(comm->ops->device->comm_memory(comm->device_comm, &bytes));
  const uint64_t held = comm->suspended ? 0 : comm->ops->device->comm_releasable(comm->device_comm);
  switch (stat) {
    case ncclStatGpuMemSuspend: *value = comm->suspended ? comm->suspended_bytes : held; break;
    case ncclStatGpuMemSuspended: *value = comm->suspended; break;
    case ncclStatGpuMemPersist: *value = bytes - held; break;
    default: *value = bytes; break;
  }
  return ncclSuccess;
}
API_EXPORT(CommMemStats);

/* ---- Memory ---- */

ncclResult_t pncclMemAlloc(void **ptr, size_t size) {
  if (!ptr) return log_fail(ncclInvalidArgument, "ncclMemAlloc: ptr is NULL; pass where to put the address");
  const struct backend *ops = backend_ops();
  uint32_t device_index = 0;
  if (!ops) return ncclInvalidUsage;
  if (size == 0) {
    *ptr = NULL;
    return ncclSuccess;
  }
  TRY(ops->device->current(&device_index));
  void *memory = NULL;
  TRY(ops->memory->alloc(device_index, size, &memory));
  ncclResult_t noted = leaks_memory_add(memory, size, device_index, CALL_PLACE);
  if (noted == ncclSuccess) noted = proxy_memory_offer((uintptr_t)memory, size);
  if (noted == ncclSuccess) {
    *ptr = memory;
    return ncclSuccess;
  }
  leaks_memory_remove(memory);
  ops->memory->free(memory);
  return noted;
}
API_EXPORT(MemAlloc);

ncclResult_t pncclMemFree(void *ptr) {
  if (!ptr) return ncclSuccess;
  const struct backend *ops = backend_ops();
  if (!ops) return ncclInvalidUsage;
  proxy_memory_withdraw((uintptr_t)ptr);
  leaks_memory_remove(ptr);
  return ops->memory->free(ptr);
}
API_EXPORT(MemFree);

/* ---- tutti's own ---- */

const char *tutti_version(void) {
  return "tutti " TEXT(TUTTI_VERSION_MAJOR) "." TEXT(TUTTI_VERSION_MINOR) "." TEXT(TUTTI_VERSION_PATCH)
         " (NCCL API " TEXT(NCCL_MAJOR) "." TEXT(NCCL_MINOR) "." TEXT(NCCL_PATCH) "; backends: emu)";
}

const char *tutti_backend(void) {
  const struct backend *ops = backend_ops();
  return ops ? ops->name : "none";
}

ncclResult_t tutti_comm_memory(ncclComm_t comm, uint64_t *bytes) {
  uint64_t device_bytes = 0;
  TRY(comm_check_met(comm, "tutti_comm_memory"));
  if (!bytes)
    return log_fail(ncclInvalidArgument, "tutti_comm_memory: bytes is NULL; pass where to put the number");
  TRY(comm->ops->device->comm_memory(comm->device_comm, &device_bytes));
  *bytes = device_bytes + comm_core_bytes(comm);
  return ncclSuccess;
}
