/* window.c: windows: buffers that all ranks register, in the same order, so that each may put into the
 * others'. Registering waits for no other rank; the first put does. */
#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/comm/comm.h"
#include "core/register.h"
#include "core/remote/remote.h"

/* NULL: out of memory. Locked. */
static struct window_list *lists_of(struct comm_shared *shared) {
  if (!shared->windows)
    shared->windows = (struct window_list *)os_alloc(shared->rank_count * sizeof *shared->windows);
  return shared->windows;
}

/* False: out of memory. */
static bool window_add(struct ncclComm *comm, struct window *window) {
  comm->ops->device->lock();
  struct window_list *lists = lists_of(comm->shared);
  if (lists) {
    struct window_list *list = &lists[comm->rank];
    window->number = ++list->count;
    window->next = list->first;
    list->first = window;
  }
  comm->ops->device->unlock();
  return lists;
}

/* With `takes`, off the list. NULL: it is no window of the rank. */
static struct window *window_of(struct ncclComm *comm, const void *handle, bool takes) {
  struct window *found = NULL;
  if (!comm->shared) return NULL; /* it is still being made */
  comm->ops->device->lock();
  struct window_list *list = comm->shared->windows ? &comm->shared->windows[comm->rank] : NULL;
  struct window **link = list ? &list->first : NULL;
  while (link && *link && *link != handle) link = &(*link)->next;
  if (link && *link) {
    found = *link;
    if (takes) *link = found->next;
  }
  comm->ops->device->unlock();
  return found;
}

enum window_find windows_find(const struct window_list *list, uint32_t number, struct window *window) {
  if (!list) return WINDOW_LATER;
  if (list->left) return WINDOW_LEFT;
  for (const struct window *each = list->first; each; each = each->next) {
    if (each->number != number) continue;
    *window = *each;
    return WINDOW_FOUND;
  }
  return number > list->count ? WINDOW_LATER : WINDOW_GONE;
}

bool window_has(const struct window *window, uint64_t offset, size_t bytes) {
  return offset <= window->bytes && bytes <= window->bytes - offset;
}

uint32_t windows_hold(struct ncclComm *comm, const void *begin, size_t bytes, uint64_t *offset) {
  const uintptr_t address = (uintptr_t)begin;
  uint32_t number = 0;
  comm->ops->device->lock();
  const struct window_list *lists = comm->shared->windows;
  for (const struct window *each = lists ? lists[comm->rank].first : NULL; each && number == 0;
       each = each->next) {
    const uintptr_t at = address - (uintptr_t)each->begin; /* huge if it begins behind */
    if (!each->symmetric || !each->registration || !window_has(each, at, bytes)) continue;
    number = each->number;
    *offset = at;
  }
  comm->ops->device->unlock();
  return number;
}

void windows_show(struct ncclComm *comm) {
  const struct window_list *lists = comm->shared->windows; /* the rank's own list is this thread's */
  for (const struct window *each = lists ? lists[comm->rank].first : NULL; each; each = each->next)
    if (each->registration) remote_window_show(comm, each->begin, each->bytes);
}

void windows_leave(struct ncclComm *comm) {
  struct window *next;
  if (!comm->shared) return;
  comm->ops->device->lock();
  struct window_list *list = comm->shared->windows ? &comm->shared->windows[comm->rank] : NULL;
  struct window *window = list ? list->first : NULL;
  if (list) *list = (struct window_list){NULL, list->count, true};
  comm->ops->device->unlock();
  for (; window; window = next) {
    next = window->next;
    os_free(window);
  }
}

ncclResult_t window_check(struct ncclComm *comm, const char *call, const void *handle,
                          const struct window **window) {
  *window = window_of(comm, handle, false);
  if (*window) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: rank %u of comm '%s' has no window %p; pass what this rank's ncclCommWindowRegister has "
      "set, until it is deregistered",
      call, comm->rank, comm->name, handle);
}

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                     int winFlags) {
  TRY(comm_check_ready(comm, "ncclCommWindowRegister"));
  TRY(register_check(comm, "ncclCommWindowRegister", buff, size, win));
  if ((winFlags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0) {
    return log_fail(ncclInvalidArgument,
                    "ncclCommWindowRegister: rank %u of comm '%s': 0x%x is no NCCL_WIN_* flag", comm->rank,
                    comm->name, (unsigned)winFlags);
  }
  struct window *window = (struct window *)os_alloc(sizeof *window);
  if (!window) return log_no_memory("ncclCommWindowRegister: rank %u of comm '%s'", comm->rank, comm->name);
  window->begin = buff;
  window->bytes = size;
  window->symmetric = (winFlags & NCCL_WIN_COLL_SYMMETRIC) != 0;
  const ncclResult_t result =
      register_device(comm, "ncclCommWindowRegister", buff, size, CALL_PLACE, &window->registration);
  if (result == ncclSuccess && window->registration) remote_window_show(comm, buff, size);
  if (result != ncclSuccess || !window_add(comm, window)) {
    if (result == ncclSuccess) register_drop(comm, "ncclCommWindowRegister", window->registration);
    os_free(window);
    return result != ncclSuccess ? result : log_no_memory("ncclCommWindowRegister: noting the window");
  }
  *win = window->registration ? (ncclWindow_t)(void *)window : NULL;
  return ncclSuccess;
}
API_EXPORT(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  const struct window *window;
  TRY(comm_check_handle(comm, "ncclCommWindowDeregister"));
  if (!win) return ncclSuccess;
  TRY(window_check(comm, "ncclCommWindowDeregister", win, &window));
  struct window *taken = window_of(comm, win, true);
  remote_window_hide(comm, taken->begin, taken->bytes);
  const ncclResult_t result = register_drop(comm, "ncclCommWindowDeregister", taken->registration);
  os_free(taken);
  return result;
}
API_EXPORT(CommWindowDeregister);

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr) {
  const struct window *window;
  TRY(comm_check_handle(comm, "ncclWinGetUserPtr"));
  if (!outUserPtr)
    return log_fail(ncclInvalidArgument,
                    "ncclWinGetUserPtr: outUserPtr is NULL; pass where to put the address");
  *outUserPtr = NULL;
  if (!win) return ncclSuccess;
  TRY(window_check(comm, "ncclWinGetUserPtr", win, &window));
  *outUserPtr = window->begin;
  return ncclSuccess;
}
API_EXPORT(WinGetUserPtr);
