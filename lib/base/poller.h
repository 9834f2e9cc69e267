/* poller.h: one thread watches many sockets; any other thread can wake it. Level-triggered. Knows nothing of
 * the sockets' purpose. */
#ifndef TUTTI_BASE_POLLER_H
#define TUTTI_BASE_POLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct poller {
  int epoll_fd, wake_fd;
};
struct poller_event {
  void *tag;
  bool reads, writes; /* both are set for a connection that is gone */
};

/* ncclSystemError: no descriptors left. */
ncclResult_t poller_open(struct poller *poller);
void poller_close(struct poller *poller);
/* Watches fd for reading; false if the system is out of memory. */
bool poller_add(struct poller *poller, int fd, void *tag);
void poller_set(struct poller *poller, int fd, void *tag, bool reads, bool writes);
void poller_remove(struct poller *poller, int fd);
/* Returns at most `most` events; waits up to timeout_ms (-1: no limit), or until woken or interrupted. */
uint32_t poller_wait(struct poller *poller, int timeout_ms, struct poller_event *events, uint32_t most);
void poller_wake(struct poller *poller);

#endif
