/* memory_impl.h: what the emulated CUDA runtime needs of emulated memory beyond stream.h: who owns an
 * allocation, how much is left, and whether a copy stays inside. All calls lock by themselves and may be
 * made with or without the world's lock. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_MEMORY_IMPL_H
#define TUTTI_BACKENDS_EMU_CUDART_MEMORY_IMPL_H

#include "backends/emu/cudart/stream.h"

enum emu_memory_kind { EMU_MEMORY_NONE, EMU_MEMORY_HOST, EMU_MEMORY_DEVICE, EMU_MEMORY_MANAGED };

/* How an allocation came to be: INTERNAL ones are the library's, the others a program's. REGISTERED is
 * host memory that was not allocated here. Only the call that matches may free it. */
enum emu_memory_origin { EMU_ORIGIN_INTERNAL, EMU_ORIGIN_DEVICE, EMU_ORIGIN_HOST, EMU_ORIGIN_REGISTERED };

int emu_memory_create(uint32_t device_index, size_t bytes, enum emu_memory_kind kind,
                      enum emu_memory_origin origin, unsigned flags, void **pointer);
/* 1 and a warning when `pointer` is not the start of a live allocation of this origin. */
int emu_memory_release(void *pointer, enum emu_memory_origin origin);
int emu_memory_check(const void *pointer, enum emu_memory_origin origin); /* as release, without freeing */
/* Device a program's allocation lives on, as emu_memory_find says. */
int emu_memory_register(void *pointer, size_t bytes, uint32_t device_index, unsigned flags);
int emu_memory_flags(const void *pointer, unsigned *flags); /* of host memory */
uint64_t emu_memory_used(uint32_t device_index);            /* bytes of device and managed memory */
/* 1 and a warning when [pointer, pointer + bytes) begins in a known allocation and ends beyond it. `what`
 * names the access. */
int emu_memory_bounds(const void *pointer, size_t bytes, const char *what);
/* Frees what a program left on the device: cudaDeviceReset. */
void emu_memory_reset(uint32_t device_index);

#endif
