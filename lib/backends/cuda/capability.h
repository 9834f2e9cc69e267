/* capability.h: which GPUs this library has code for, and the message for a GPU that it has none for. Does
 * not use CUDA, so that it can be tested without. Compute capabilities are multiplied by ten, as
 * everywhere. */
#ifndef TUTTI_BACKENDS_CUDA_CAPABILITY_H
#define TUTTI_BACKENDS_CUDA_CAPABILITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAPABILITY_OLDEST 80 /* the kernels use its instructions */

/* The targets that kernels were compiled for; each list ends with 0. */
struct capability_code {
  const uint32_t *machine; /* runs on GPUs of its major version, from its minor version on */
  const uint32_t *ptx;     /* the driver compiles it for GPUs of the same capability and of all newer ones */
};

/* The targets of this library (capability_built.c). */
extern const struct capability_code capability_built;

enum capability_support { CAPABILITY_NONE, CAPABILITY_BY_PTX, CAPABILITY_NATIVE };

enum capability_support capability_support(const struct capability_code *code, uint32_t capability);
/* The message for a GPU with CAPABILITY_NONE: the GPU, the library's targets, and the cure. */
void capability_explain(const struct capability_code *code, uint32_t device_index, const char *name,
                        uint32_t capability, char *text, size_t text_bytes);

#endif
