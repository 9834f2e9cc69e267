/* poller.h: many sockets watched by one thread, which any other thread may wake. Level-triggered. Knows
 * nothing of what the sockets are for. */
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
  bool reads, writes; /* a connection that is gone reads and writes */
};

/* ncclSystemError when descriptors are out. */
ncclResult_t poller_open(struct poller *poller);
void poller_close(struct poller *poller);
/* Watches fd for reading, and for writing where asked; false when the system is out of memory. */
bool poller_add(struct poller *poller, int fd, void *tag);
void poller_set(struct poller *poller, int fd, void *tag, bool reads, bool writes);
void poller_remove(struct poller *poller, int fd);
/* At most `most` events; waits up to timeout_ms (-1: no limit), less when woken or interrupted. */
uint32_t poller_wait(struct poller *poller, int timeout_ms, struct poller_event *events, uint32_t most);
void poller_wake(struct poller *poller);

#endif
