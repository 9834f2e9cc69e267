/* window.c: windows: buffers that all ranks register, in the same order, so that each may put into the
 * others'. Registering waits for no other rank; the first put does. */
#include <string.h>

#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "core/api.h"
#include "core/register.h"
#include "core/comm/collective_call.h"
#include "core/remote/remote.h"

/* Those with views, by which host calls without a communicator find it. */
static struct window *with_views;
static os_mutex views_lock = OS_MUTEX_INITIALIZER;

static void view_enlist(struct window *window) {
  os_mutex_lock(&views_lock);
  window->next_view = with_views;
  with_views = window;
  os_mutex_unlock(&views_lock);
}

static void view_delist(struct window *window) {
  os_mutex_lock(&views_lock);
  struct window **link = &with_views;
  while (*link && *link != window) link = &(*link)->next_view;
  if (*link) *link = window->next_view;
  os_mutex_unlock(&views_lock);
}

ncclResult_t window_of_device(const char *call, const void *handle, struct ncclComm **comm,
                              struct window **window) {
  os_mutex_lock(&views_lock);
  struct window *found = with_views;
  while (found && found->view->memory != handle) found = found->next_view;
  os_mutex_unlock(&views_lock);
  if (!found)
    return log_fail(ncclInvalidUsage,
                    "%s: %p is no window that kernels can use; pass what ncclCommWindowRegister has set for "
                    "device memory with NCCL_WIN_COLL_SYMMETRIC",
                    call, handle);
  *comm = found->comm;
  *window = found;
  return comm_check_ready(found->comm, call);
}

static void window_free(struct ncclComm *comm, struct window *window) {
  view_delist(window);
  lsa_view_drop(comm, window);
  os_free(window);
}

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

static const void *window_handle(const struct window *window) {
  return window->view ? window->view->memory : window;
}

/* With `takes`, off the list. NULL: it is no window of the rank. */
static struct window *window_of(struct ncclComm *comm, const void *handle, bool takes) {
  struct window *found = NULL;
  if (!comm->shared) return NULL; /* it is still being made */
  comm->ops->device->lock();
  struct window_list *list = comm->shared->windows ? &comm->shared->windows[comm->rank] : NULL;
  struct window **link = list ? &list->first : NULL;
  while (link && *link && window_handle(*link) != handle) link = &(*link)->next;
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
  for (struct window *each = lists ? lists[comm->rank].first : NULL; each; each = each->next) {
    if (!each->registration) continue;
    each->filled = false;
    remote_window_show(comm, each->begin, each->bytes);
  }
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
    window_free(comm, window);
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

ncclResult_t window_make(struct ncclComm *comm, const char *call, void *memory, size_t bytes, bool symmetric,
                         const void *caller, struct window **made) {
  struct window *window = (struct window *)os_alloc(sizeof *window);
  if (!window) return log_no_memory("%s: rank %u of comm '%s'", call, comm->rank, comm->name);
  window->comm = comm;
  window->begin = memory;
  window->bytes = bytes;
  window->symmetric = symmetric;
  ncclResult_t result = register_device(comm, call, memory, bytes, caller, &window->registration);
  if (result == ncclSuccess) result = lsa_view_make(comm, window);
  if (result == ncclSuccess && window->view) view_enlist(window);
  if (result == ncclSuccess && window->registration) remote_window_show(comm, memory, bytes);
  if (result == ncclSuccess && !window_add(comm, window))
    result = log_no_memory("%s: noting the window", call);
  if (result != ncclSuccess) {
    register_drop(comm, call, window->registration);
    window_free(comm, window);
    return result;
  }
  *made = window;
  return ncclSuccess;
}

ncclResult_t window_drop(struct ncclComm *comm, const char *call, struct window *window) {
  struct window *taken = window_of(comm, window_handle(window), true);
  remote_window_hide(comm, taken->begin, taken->bytes);
  const ncclResult_t result = register_drop(comm, call, taken->registration);
  window_free(comm, taken);
  return result;
}

/* Once there is a device communicator, kernels may use a window as soon as it is registered. */
static ncclResult_t window_settle(struct ncclComm *comm, const void *caller) {
  struct collective_call call;
  if (!comm->lsa.used) return ncclSuccess;
  memset(&call, 0, sizeof call);
  call.name = "ncclCommWindowRegister";
  call.comm = comm;
  call.caller = caller;
  return lsa_run(&call, NULL, NULL);
}

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                     int winFlags) {
  struct window *window;
  TRY(comm_check_ready(comm, "ncclCommWindowRegister"));
  TRY(register_check(comm, "ncclCommWindowRegister", buff, size, win));
  if ((winFlags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0) {
    return log_fail(ncclInvalidArgument,
                    "ncclCommWindowRegister: rank %u of comm '%s': 0x%x is no NCCL_WIN_* flag", comm->rank,
                    comm->name, (unsigned)winFlags);
  }
  const bool symmetric = (winFlags & NCCL_WIN_COLL_SYMMETRIC) != 0;
  TRY(window_make(comm, "ncclCommWindowRegister", buff, size, symmetric, CALL_PLACE, &window));
  *win = window->registration ? (ncclWindow_t)(uintptr_t)window_handle(window) : NULL;
  return window_settle(comm, CALL_PLACE);
}
API_EXPORT(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  const struct window *window;
  TRY(comm_check_handle(comm, "ncclCommWindowDeregister"));
  if (!win) return ncclSuccess;
  TRY(window_check(comm, "ncclCommWindowDeregister", win, &window));
  return window_drop(comm, "ncclCommWindowDeregister", (struct window *)window);
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
