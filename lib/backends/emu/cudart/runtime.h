/* runtime.h: what the files that implement the emulated CUDA runtime (runtime_*.c) share. Nobody else
 * includes it. */
#ifndef TUTTI_BACKENDS_EMU_CUDART_RUNTIME_H
#define TUTTI_BACKENDS_EMU_CUDART_RUNTIME_H

#include "backends/emu/cudart/stream_impl.h"

#include "backends/emu/cudart/cudart.h"
#include "backends/emu/cudart/memory_impl.h"

/* What a runtime function returns: keeps an error for cudaGetLastError, except "not ready", which is none. */
cudaError_t runtime_result(int error);

/* Check a copy or a fill and describe it; empty work when there is nothing to move. Widths in bytes, of
 * fills in elements. */
int runtime_copy_prepare(struct emu_work *work, void *to, const void *from, size_t bytes,
                         enum cudaMemcpyKind kind);
int runtime_fill_prepare(struct emu_work *work, void *to, size_t pitch, uint32_t value,
                         uint32_t element_bytes, size_t width, size_t height);

#endif
