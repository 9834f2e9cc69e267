/* memory.h (simt): finds the allocation of a device address. */
#ifndef TUTTI_TESTS_SIMT_MEMORY_H
#define TUTTI_TESTS_SIMT_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* False for an address that was neither allocated nor mapped from another process. `id` is never reused;
 * is_shared: other processes can map it. */
bool simt_memory_find(uint64_t address, uint64_t *base, size_t *bytes, uint64_t *id, bool *is_shared);

/* The file of memory of cudaMalloc, all of whose bytes are one allocation's; false if there is none. */
bool simt_memory_file(uint64_t address, size_t bytes, uint64_t *base, int *file);

/* Memory of other processes, or of the host, that devices access here: until it is dropped. */
void simt_memory_add(void *base, size_t bytes);
void simt_memory_drop(void *base);
/* Memory that cuMemMap has mapped for a device, until it is unmapped, which waits for the device as cudaFree
 * does. */
void simt_memory_map(void *base, size_t bytes, int device);
void simt_memory_unmap(void *base);
/* Which devices may read and write what is mapped there, one bit each. */
void simt_memory_allow(void *base, uint64_t readers, uint64_t writers);
/* SIMT_ACCESS=FILE: a kernel on the device accesses an address. If that is of memory that cuMemMap has
 * mapped, and the device has no access, the program ends. Accesses to other devices' memory are counted, and
 * FILE has their number when the program ends. */
void simt_memory_check(int device, const void *address, bool writes);

/* SIMT_VGPU=1: the devices are virtual GPUs, without peer access, CUDA IPC and memory of cuMemCreate. */
bool simt_is_virtual(void);

/* All memory of the device is gone, with its context. */
void simt_memory_reset(int device);
/* So are registrations of the host's memory, before that. */
void simt_registered_reset(int device);

/* Waits while another thread of the process waits for a device in order to free or unmap memory: a driver
 * launches no kernel meanwhile. */
void simt_memory_settle(void);

#endif
