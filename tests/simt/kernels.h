/* kernels.h (simt): what a launch has to know of a kernel: its entry, the size of each parameter, and how to
 * call it with pointers to them. */
#ifndef TUTTI_TESTS_SIMT_KERNELS_H
#define TUTTI_TESTS_SIMT_KERNELS_H

#include <stddef.h>

enum { SIMT_PARAMETERS = 6 };

struct simt_kernel {
  const void *entry;
  void (*call)(void **parameters);
  size_t bytes[SIMT_PARAMETERS]; /* 0 ends them */
};

/* The rows stay the caller's; before any launch. */
void simt_kernels_offer(const struct simt_kernel *rows, size_t count);

#endif
