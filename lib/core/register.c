/* register.c: registration of user buffers. A range is stored once, however often it is registered. Its
 * memory is used later: when it is exported to other processes (remote_region.c) or registered with a network
 * (proxy_memory.c). */
#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/collective.h"
#include "core/comm/comm.h"
#include "core/register.h"
#include "core/remote/remote.h"
#include "core/proxy/proxy.h"

static struct registration *register_find(struct ncclComm *comm, uintptr_t begin, size_t bytes) {
  for (struct registration *row = comm->registrations; row; row = row->next) {
    if (row->begin == begin && row->bytes == bytes) return row;
  }
  return NULL;
}

/* The rank's proxy if the communicator uses networks, else NULL. */
static struct proxy_comm *register_proxy(const struct ncclComm *comm) {
  const struct remote *remote = comm->shared ? comm->shared->remote : NULL;
  return remote && remote->networked ? remote->proxies[comm->rank] : NULL;
}

static ncclResult_t register_add(struct ncclComm *comm, const char *call, void *buffer, size_t bytes,
                                 uint64_t memory_id, const void *caller, struct registration **handle) {
  struct registration *row = register_find(comm, (uintptr_t)buffer, bytes);
  if (!row) {
    row = (struct registration *)os_alloc(sizeof *row);
    if (!row) {
      return log_no_memory("%s: rank %u of comm '%s': noting the buffer", call, comm->rank, comm->name);
    }
    struct proxy_comm *proxy = register_proxy(comm);
    const ncclResult_t told = proxy ? proxy_comm_announce(proxy, (uintptr_t)buffer, bytes) : ncclSuccess;
    if (told != ncclSuccess) {
      os_free(row);
      return told;
    }
    row->begin = (uintptr_t)buffer;
    row->bytes = bytes;
    row->memory_id = memory_id;
    row->caller = caller;
    row->next = comm->registrations;
    comm->registrations = row;
  }
  row->user_count += 1;
  *handle = row;
  return ncclSuccess;
}

ncclResult_t register_check(const struct ncclComm *comm, const char *call, const void *buffer, size_t bytes,
                            const void *output) {
  if (buffer && bytes > 0 && output) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: rank %u of comm '%s': %s; pass device memory and where to put the handle", call,
                  comm->rank, comm->name,
                  !buffer   ? "the buffer is NULL"
                  : !output ? "the handle is NULL"
                            : "the size is 0");
}

ncclResult_t register_device(struct ncclComm *comm, const char *call, void *buffer, size_t bytes,
                             const void *caller, struct registration **handle) {
  struct pointer_info info;
  char text[CHECK_TEXT_BYTES] = "";
  TRY(comm->ops->memory->query(buffer, &info));
  if (comm->settings.check_pointers && info.kind != POINTER_HOST)
    TRY(check_memory(comm, "the buffer", buffer, bytes, text));
  if (text[0] != '\0')
    return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s': %s", call, comm->rank, comm->name, text);
  if (info.kind != POINTER_HOST) return register_add(comm, call, buffer, bytes, info.id, caller, handle);
  *handle = NULL;
  return ncclSuccess;
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle) {
  struct registration *row = NULL;
  TRY(comm_check_ready(comm, "ncclCommRegister"));
  TRY(register_check(comm, "ncclCommRegister", buff, size, handle));
  TRY(register_device(comm, "ncclCommRegister", buff, size, CALL_PLACE, &row));
  *handle = row;
  return ncclSuccess;
}
API_EXPORT(CommRegister);

/* Networks and other processes may still map it. */
static ncclResult_t register_check_live(const struct ncclComm *comm, const char *call,
                                        const struct registration *row) {
  struct pointer_info info;
  char site[200];
  if (!comm->settings.check_pointers) return ncclSuccess;
  TRY(comm->ops->memory->query((const void *)row->begin, &info));
  if (info.id == row->memory_id) return ncclSuccess;
  callsite_text(row->caller, site, sizeof site);
  return log_fail(
      ncclInvalidUsage,
      "%s: rank %u of comm '%s': the memory at %p of %zu bytes, registered at %s, was freed while "
      "it was registered; call %s before the memory is freed",
      call, comm->rank, comm->name, (const void *)row->begin, row->bytes, site, call);
}

/* *link = where the communicator's list has the registration. */
static ncclResult_t register_of(struct ncclComm *comm, const char *call, const void *handle,
                                struct registration ***link) {
  *link = &comm->registrations;
  while (**link && **link != handle) *link = &(**link)->next;
  if (**link) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "%s: rank %u of comm '%s' gave no handle %p; pass what the call that registers set, once "
                  "for each call",
                  call, comm->rank, comm->name, handle);
}

ncclResult_t register_drop(struct ncclComm *comm, const char *call, const void *handle) {
  struct registration **link;
  TRY(comm_check_handle(comm, call));
  if (!handle) return ncclSuccess;
  TRY(register_of(comm, call, handle, &link));
  struct registration *row = *link;
  row->user_count -= 1;
  if (row->user_count > 0) return ncclSuccess;
  *link = row->next;
  struct proxy_comm *proxy = register_proxy(comm);
  if (proxy) proxy_comm_withdraw(proxy, row->begin, row->bytes);
  const ncclResult_t result = register_check_live(comm, call, row);
  os_free(row);
  return result;
}

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle) {
  return register_drop(comm, "ncclCommDeregister", handle);
}
API_EXPORT(CommDeregister);
