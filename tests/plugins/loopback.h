/* loopback.h: the counters of the test plugin, for the test that has loaded it: found by dlsym as
 * loopback_counted, loopback_fault, loopback_contexts and loopback_lie. */
#ifndef TUTTI_TESTS_PLUGINS_LOOPBACK_H
#define TUTTI_TESTS_PLUGINS_LOOPBACK_H

#include <stdint.h>

struct loopback_counts {
  uint64_t init, finalize, listen, connect, isend, irecv, iflush, test, messages;
  int64_t links, registrations; /* live ones */
};
typedef const struct loopback_counts *(*loopback_counted_type)(void);
typedef const char *(*loopback_fault_type)(void); /* the caller's first violation, "" if there is none */
typedef int (*loopback_contexts_type)(void);      /* live ones */
typedef void (*loopback_lie_type)(void);          /* from now on test() returns impossible sizes */

#endif
