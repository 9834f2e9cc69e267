/* child.h: starts programs: everything between fork and exec. The caller waits for them and signals them.
 * Promises that a child ends with the thread that started it. For single-threaded programs. */
#ifndef TUTTI_BASE_CHILD_H
#define TUTTI_BASE_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct child_plan {
  char *const *arguments; /* [0] is looked up in PATH; ends with NULL */
  const char *const
      *extras; /* changes to the parent's environment: "NAME=value", or "NAME" to unset; ends with NULL */
  int input, output, error;        /* descriptors for 0, 1 and 2; -1: the parent's */
  const sigset_t *mask;            /* blocked signals */
  uint32_t core_index, core_count; /* among the cores that the parent may use; count 0: all */
  bool own_group;                  /* it leads a process group of its own, numbered like it */
};

/* Starts the program and sets *pid. Returns 0, or the errno of what failed. */
int child_start(const struct child_plan *plan, int *pid);
/* Cores that this process may use. */
uint32_t child_core_count(void);

/* Ends the programs that children have started and left running, if this process has made itself their reaper
 * (PR_SET_CHILD_SUBREAPER) and has no other child left. Names each on stderr after `verb`, if it is not NULL.
 */
void child_leftovers_end(const char *verb);

/* Reserves a port of 127.0.0.1: while *fd is open the system gives it to no other socket, but a socket with
 * SO_REUSEADDR can listen on it. Returns 0 or an errno. */
int child_port_hold(int *fd, unsigned *port);

#endif
