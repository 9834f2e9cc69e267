/* register.c: registration of user buffers. A range is remembered once, however often it is announced;
 * nothing is done with it until its outputs are shown to other processes (far_region.c). Windows bring
 * nothing yet and answer so. */
#include "core/register.h"

#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/comm.h"

void register_list_free(struct registration *list) {
  for (struct registration *next; list; list = next) {
    next = list->next;
    os_free(list);
  }
}

static struct registration *register_find(struct ncclComm *comm, uintptr_t begin, size_t bytes) {
  for (struct registration *row = comm->registrations; row; row = row->next) {
    if (row->begin == begin && row->bytes == bytes) return row;
  }
  return NULL;
}

bool register_holds(const struct ncclComm *comm, const void *address) {
  for (const struct registration *row = comm->registrations; row; row = row->next)
    if ((uintptr_t)address - row->begin < row->bytes) return true;
  return false;
}

static ncclResult_t register_add(struct ncclComm *comm, void *buffer, size_t bytes, void **handle) {
  struct registration *row = register_find(comm, (uintptr_t)buffer, bytes);
  if (!row) {
    row = (struct registration *)os_alloc(sizeof *row);
    if (!row) {
      return log_fail(ncclSystemError,
                      "ncclCommRegister: rank %u of comm '%s': no memory to note the buffer; free some "
                      "and try again",
                      comm->rank, comm->name);
    }
    row->begin = (uintptr_t)buffer;
    row->bytes = bytes;
    row->next = comm->registrations;
    comm->registrations = row;
  }
  row->user_count += 1;
  *handle = row;
  return ncclSuccess;
}

static ncclResult_t register_check(const struct ncclComm *comm, const char *call, const void *buffer,
                                   size_t bytes, const void *output) {
  if (buffer && bytes > 0 && output) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: rank %u of comm '%s': %s; pass device memory and where to put the handle", call,
                  comm->rank, comm->name,
                  !buffer   ? "the buffer is NULL"
                  : !output ? "the handle is NULL"
                            : "the size is 0");
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle) {
  struct pointer_info info;
  TRY(comm_check_ready(comm, "ncclCommRegister"));
  TRY(register_check(comm, "ncclCommRegister", buff, size, handle));
  TRY(comm->ops->memory_query(buff, &info));
  if (info.kind == POINTER_HOST) {
    *handle = NULL;
    return ncclSuccess;
  }
  return register_add(comm, buff, size, handle);
}
API_EXPORT(CommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle) {
  TRY(comm_check_handle(comm, "ncclCommDeregister"));
  if (!handle) return ncclSuccess;
  struct registration **link = &comm->registrations;
  while (*link && *link != handle) link = &(*link)->next;
  struct registration *row = *link;
  if (!row) {
    return log_fail(ncclInvalidUsage,
                    "ncclCommDeregister: rank %u of comm '%s' gave no handle %p; pass what "
                    "ncclCommRegister set, once for each call",
                    comm->rank, comm->name, handle);
  }
  row->user_count -= 1;
  if (row->user_count > 0) return ncclSuccess;
  *link = row->next;
  os_free(row);
  return ncclSuccess;
}
API_EXPORT(CommDeregister);

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                     int winFlags) {
  TRY(comm_check_ready(comm, "ncclCommWindowRegister"));
  TRY(register_check(comm, "ncclCommWindowRegister", buff, size, win));
  if (winFlags != NCCL_WIN_DEFAULT && winFlags != NCCL_WIN_COLL_SYMMETRIC) {
    return log_fail(ncclInvalidArgument,
                    "ncclCommWindowRegister: rank %u of comm '%s': 0x%x is no NCCL_WIN_* flag", comm->rank,
                    comm->name, (unsigned)winFlags);
  }
  *win = NULL;
  return ncclSuccess;
}
API_EXPORT(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  TRY(comm_check_handle(comm, "ncclCommWindowDeregister"));
  if (!win) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "ncclCommWindowDeregister: rank %u of comm '%s' gave no window %p; this release "
                  "gives NULL windows only",
                  comm->rank, comm->name, (void *)win);
}
API_EXPORT(CommWindowDeregister);
