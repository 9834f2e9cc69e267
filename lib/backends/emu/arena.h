/* arena.h: where the emulator's memory lies: one sparse block of shared memory (base/share.h) a process, so
 * that another process maps all of it once and finds everything by one difference of addresses: device
 * memory of programs, and the FIFOs of connections from other processes. What is free can neither be read
 * nor written here, and addresses are used again as late as possible: a store of a peer that comes too late
 * hits nothing that matters. The block comes with the first span, or pin, and goes with the last. Calls lock
 * by themselves. */
#ifndef TUTTI_BACKENDS_EMU_ARENA_H
#define TUTTI_BACKENDS_EMU_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/share.h"

/* Whole zeroed pages; freed with emu_arena_free(). reserve: taken at once, so that no touch can fail. False
 * when a note of it, or the pages, cannot be had. *memory is NULL, and nothing is to be freed, where this
 * process can have no arena, or it is full: the caller takes memory that nobody can share. */
bool emu_arena_alloc(size_t bytes, bool reserve, void **memory);
/* False when it is no span of the arena. */
bool emu_arena_free(void *memory);
/* Where the address lies in the arena; false when it does not. */
bool emu_arena_offset(const void *address, uint64_t *offset);

/* Keeps the arena, for others to map: where it begins here, and its ticket. */
ncclResult_t emu_arena_pin(struct share_ticket *ticket, uint64_t *base);
void emu_arena_unpin(void);

/* conn_kept.c: frees what peers have kept from being freed and keep no more. Any thread, under any lock of
 * the emulator. */
void emu_kept_sweep(void);

#endif
