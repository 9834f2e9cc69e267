/* cudart.c: libtutti-cudart.so: each function of the CUDA runtime hands its arguments to the library that
 * keeps the state. Knows nothing else, so that a program which is linked to the emulated runtime sees the
 * same world as NCCL's calls do. */
#include "backends/emu/cudart/cudart.h"

/* The name in parentheses is never taken for one of the header's macros that count arguments. */
#define FORWARD(type, name, parameters, arguments) \
  type(cuda##name) parameters { return tutti_cudart_##name arguments; }
TUTTI_CUDART_CALLS(FORWARD)
