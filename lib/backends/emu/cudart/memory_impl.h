/* memory_impl.h: functions of emulated memory for the emulated CUDA runtime, beyond those of stream.h: the
 * owner of an allocation, free memory, and bounds of copies. They take a lock of their own and may be called
 * with or without the world's lock. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_MEMORY_IMPL_H
#define TUTTI_BACKENDS_EMU_CUDART_MEMORY_IMPL_H

#include "backends/emu/cudart/stream.h"

enum emu_memory_kind { EMU_MEMORY_NONE, EMU_MEMORY_HOST, EMU_MEMORY_DEVICE, EMU_MEMORY_MANAGED };

/* The call that made an allocation, and so the one that may free it. INTERNAL: the library's own; REGISTERED:
 * host memory that was not allocated here. */
enum emu_memory_origin { EMU_ORIGIN_INTERNAL, EMU_ORIGIN_DEVICE, EMU_ORIGIN_HOST, EMU_ORIGIN_REGISTERED };

int emu_memory_create(uint32_t device_index, size_t bytes, enum emu_memory_kind kind,
                      enum emu_memory_origin origin, unsigned flags, void **pointer);
/* Returns 1, with a warning, if `pointer` is not the start of a live allocation of this origin. */
int emu_memory_release(void *pointer, enum emu_memory_origin origin);
int emu_memory_check(const void *pointer, enum emu_memory_origin origin); /* as release, without freeing */
/* Registers host memory of the program. */
int emu_memory_register(void *pointer, size_t bytes, uint32_t device_index, unsigned flags);
int emu_memory_flags(const void *pointer, unsigned *flags); /* of host memory */
uint64_t emu_memory_used(uint32_t device_index);            /* bytes of device and managed memory */
/* Returns 1, with a warning, if [pointer, pointer + bytes) begins in a known allocation and ends beyond it.
 * `what` names the access. */
int emu_memory_bounds(const void *pointer, size_t bytes, const char *what);
/* In the child of a fork: whether the parent had memory of the program then. */
void emu_memory_forked(void);
bool emu_memory_was_forked(void);
/* Frees the program's allocations on the device, for cudaDeviceReset. */
void emu_memory_reset(uint32_t device_index);

#endif
