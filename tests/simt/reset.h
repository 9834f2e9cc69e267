/* reset.h (simt): the contexts of devices, which a program may reset. */
#ifndef TUTTI_TESTS_SIMT_RESET_H
#define TUTTI_TESTS_SIMT_RESET_H

#include <cuda_runtime.h>

#include <stdbool.h>

extern "C" cudaError_t tutti_cudart_SetDevice(int device);

/* Ends the device's context: its kernels, streams, events and memory. */
cudaError_t reset_device(int device);
/* False from a reset until the device is used again. */
bool reset_is_active(int device);
/* A call that makes a context where there is none: on the current device, or on any. */
void reset_use(void);
void reset_use_device(int device);
/* True while the device's kernels are to end. */
const bool *reset_kills(int device);
/* The thread's next blocks end, wherever their threads are, when *killed is true (block.cc). */
void simt_block_heeds(const bool *killed);

#endif
