/* poller.c: see poller.h. Uses epoll, and an eventfd for wakes. */
#include "base/poller.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"

#define EVENTS_MOST 256

bool poller_add(struct poller *poller, int fd, void *tag) {
  struct epoll_event event;
  memset(&event, 0, sizeof event);
  event.events = EPOLLIN;
  event.data.ptr = tag;
  return epoll_ctl(poller->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void poller_set(struct poller *poller, int fd, void *tag, bool reads, bool writes) {
  struct epoll_event event;
  memset(&event, 0, sizeof event);
  event.events = (reads ? EPOLLIN : 0u) | (writes ? EPOLLOUT : 0u);
  event.data.ptr = tag;
  epoll_ctl(poller->epoll_fd, EPOLL_CTL_MOD, fd, &event);
}

void poller_remove(struct poller *poller, int fd) {
  struct epoll_event event;
  memset(&event, 0, sizeof event);
  epoll_ctl(poller->epoll_fd, EPOLL_CTL_DEL, fd, &event);
}

ncclResult_t poller_open(struct poller *poller) {
  poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  poller->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (poller->epoll_fd >= 0 && poller->wake_fd >= 0 && poller_add(poller, poller->wake_fd, NULL))
    return ncclSuccess;
  const int error = errno;
  poller_close(poller);
  return log_fail(ncclSystemError,
                  "no descriptors to watch connections with: %s; raise the limit of open files (ulimit -n)",
                  strerror(error));
}

void poller_close(struct poller *poller) {
  if (poller->epoll_fd >= 0) close(poller->epoll_fd);
  if (poller->wake_fd >= 0) close(poller->wake_fd);
  poller->epoll_fd = poller->wake_fd = -1;
}

uint32_t poller_wait(struct poller *poller, int timeout_ms, struct poller_event *events, uint32_t most) {
  struct epoll_event found[EVENTS_MOST];
  const int limit = most < EVENTS_MOST ? (int)most : EVENTS_MOST;
  const int count = epoll_wait(poller->epoll_fd, found, limit, timeout_ms);
  uint32_t kept = 0;
  for (int i = 0; i < count; i++) {
    if (found[i].data.ptr == NULL) {
      uint64_t woken;
      if (read(poller->wake_fd, &woken, sizeof woken) < 0) continue;
      continue;
    }
    const bool broken = (found[i].events & (EPOLLERR | EPOLLHUP)) != 0;
    events[kept].tag = found[i].data.ptr;
    events[kept].reads = broken || (found[i].events & EPOLLIN) != 0;
    events[kept].writes = broken || (found[i].events & EPOLLOUT) != 0;
    kept++;
  }
  return kept;
}

void poller_wake(struct poller *poller) {
  const uint64_t one = 1;
  if (write(poller->wake_fd, &one, sizeof one) < 0) return; /* the counter is full, so it wakes anyway */
}
