/* watcher.c: what core/stall does for a communicator of several processes from its opening to its end. */
#include "core/bootstrap/control.h"
#include "core/remote/remote.h"
#include "core/stall/stall.h"
#include "core/stall/survey.h"
#include "core/stall/watchdog.h"

static ncclResult_t watcher_open(struct remote *remote, void **state) {
  struct stall *stall = NULL;
  TRY(stall_open(remote, &stall));
  os_mutex_lock(&remote->lock); /* other processes may already ask */
  *state = stall;
  os_mutex_unlock(&remote->lock);
  return survey_join(remote);
}

static void watcher_leave(struct remote *remote) { survey_leave(remote); }

static void watcher_close(void *state) { stall_close((struct stall *)state); }

static ncclResult_t watcher_answer(struct remote *remote, uint32_t kind, const void *request, uint32_t bytes,
                                   void *reply, uint32_t *reply_bytes) {
  if (kind == REMOTE_CALL_STALL) return stall_answer(remote, request, bytes, reply, reply_bytes);
  *reply_bytes = 0;
  if (kind == REMOTE_CALL_ALARM) return watchdog_alarm();
  watchdog_receive((const char *)request + sizeof kind, bytes - (uint32_t)sizeof kind);
  return ncclSuccess;
}

const struct remote_watcher stall_watcher = {watcher_open, watcher_leave, watcher_close, watcher_answer};
