/* runtime.h: shared by the files of the emulated CUDA runtime (runtime_*.c); private to them. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_RUNTIME_H
#define TUTTI_BACKENDS_EMU_CUDART_RUNTIME_H

#include "backends/emu/cudart/stream_impl.h"

#include "backends/emu/cudart/cudart.h"
#include "backends/emu/cudart/memory_impl.h"

/* Converts a result and stores it for cudaGetLastError, except for "not ready", which is not an error. */
cudaError_t runtime_result(int error);

/* cudaErrorInitializationError, with a sentence the first time, in a process that was forked from one that
 * used the devices: CUDA does not work there. Else 0. */
int runtime_fork_check(void);

/* Check a copy or a fill and describe it; empty work when there is nothing to move. Widths in bytes, of
 * fills in elements. */
int runtime_copy_prepare(struct emu_work *work, void *to, const void *from, size_t bytes,
                         enum cudaMemcpyKind kind);
int runtime_fill_prepare(struct emu_work *work, void *to, size_t pitch, uint32_t value,
                         uint32_t element_bytes, size_t width, size_t height);

#endif
