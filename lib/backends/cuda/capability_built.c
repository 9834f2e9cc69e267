/* capability_built.c: the targets that this library's kernels were compiled for, from the build. */
#include "backends/cuda/capability.h"

static const uint32_t machine[] = {CAPABILITY_CODE, 0};
static const uint32_t ptx[] = {CAPABILITY_PTX, 0};

const struct capability_code capability_built = {machine, ptx};
