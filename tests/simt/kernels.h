/* kernels.h (simt): what a launch needs to know about a kernel: its name and entry, the size of each
 * parameter, and how to call it with pointers to them. */
#ifndef TUTTI_TESTS_SIMT_KERNELS_H
#define TUTTI_TESTS_SIMT_KERNELS_H

#include <stddef.h>

enum { SIMT_PARAMETERS = 6, SIMT_DEVICES = 64, SIMT_KERNELS_MOST = 64 };

struct simt_kernel {
  const char *name;
  const void *entry;
  void (*call)(void **parameters);
  size_t bytes[SIMT_PARAMETERS]; /* ends with 0 */
};

/* Registers kernels, before any launch. The caller keeps the rows. `begin_block` is called on the thread of a
 * block before its kernel. */
void simt_kernels_offer(const struct simt_kernel *rows, size_t count, void (*begin_block)(void));

/* Those of the program that is tested. */
void simt_program_offer(const struct simt_kernel *rows, size_t count);

/* Forgets what was set for kernels of a device, whose context ends. */
void simt_kernels_unload(int device);

#endif
