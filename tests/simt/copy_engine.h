/* copy_engine.h (simt): a block's shared memory, which copy engines and their barriers address by 32 bits,
 * and the bulk copies of simt_block.h. */
#ifndef TUTTI_TESTS_SIMT_COPY_ENGINE_H
#define TUTTI_TESTS_SIMT_COPY_ENGINE_H

#include <stddef.h>
#include <stdint.h>

/* The shared memory of the block that this host thread runs next: what its kernels declare, */
void copy_engine_declared(void *memory, size_t bytes);
/* and what its launch requests, with garbage in it. */
void copy_engine_block_begin(uint32_t thread_count, size_t requested_bytes);
void copy_engine_block_end(void);
/* The running thread has ended: none of its copies may be in flight. */
void copy_engine_thread_end(void);
/* Any copy in flight takes a step, by the seed. */
void copy_engine_stir(void);

#endif
