/* arena.h: the emulator's memory: one sparse block of shared memory (base/share.h) per process, which
 * contains the device memory of programs and the FIFOs of connections from other processes. Another process
 * maps it once and converts all addresses with one offset. Free memory can neither be read nor written here,
 * and addresses are reused as late as possible, so that a late store of a peer does no harm. The block is
 * made with the first span or pin, and freed with the last. The functions take a lock of their own. */
#ifndef TUTTI_BACKENDS_EMU_ARENA_H
#define TUTTI_BACKENDS_EMU_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/share.h"

/* Allocates whole zeroed pages. `reserve`: backs them with memory at once, so that no access can fail.
 * Returns false if out of memory. If this process cannot have an arena, or it is full, *memory is NULL and
 * the result is true: the caller then allocates memory that is not shared. */
bool emu_arena_alloc(size_t bytes, bool reserve, void **memory);
/* False if the memory is not from the arena. */
bool emu_arena_free(void *memory);
/* The offset of an address in the arena; false if it lies elsewhere. */
bool emu_arena_offset(const void *address, uint64_t *offset);

/* Keeps the arena, so that other processes may map it; returns its address here and its ticket. */
ncclResult_t emu_arena_pin(struct share_ticket *ticket, uint64_t *base);
void emu_arena_unpin(void);

/* conn_kept.c: frees the kept connections that their peers have left. Any thread, under any lock of the
 * emulator. */
void emu_kept_sweep(void);

#endif
