/* child.h: starting programs: what stands between fork and exec. The parent waits for them and signals them
 * itself. Promises that a child dies with the thread that started it. For programs that have one thread. */
#ifndef TUTTI_BASE_CHILD_H
#define TUTTI_BASE_CHILD_H

#include <signal.h>
#include <stdint.h>

struct child_plan {
  char *const *arguments; /* [0] is looked for in PATH; ends with NULL */
  const char *const
      *extras; /* "NAME=value" or "NAME", which is taken out, over the parent's; ends with NULL */
  int input, output, error;        /* descriptors for 0, 1 and 2; -1: the parent's own */
  const sigset_t *mask;            /* signals that are blocked */
  uint32_t core_index, core_count; /* of the cores that the parent may use; count 0: all */
};

/* *pid of the running program; 0, or the errno of whatever could not be done. */
int child_start(const struct child_plan *plan, int *pid);
/* Cores that this process may use. */
uint32_t child_core_count(void);

/* A port of the loopback address, 127.0.0.1, that the system gives to nobody while *fd is open, but at which
 * a socket with SO_REUSEADDR can listen. 0, or an errno. */
int child_port_hold(int *fd, unsigned *port);

#endif
