/* cudart.c: libtutti-cudart.so: each function of the CUDA runtime passes its arguments to libnccl.so.2, which
 * has all the state. So a program that is linked to the emulated runtime and the NCCL calls use the same
 * emulated devices. */
#include "backends/emu/cudart/cudart.h"

/* The parentheses around the name prevent the expansion of the header's macros that count arguments. */
#define FORWARD(type, name, parameters, arguments) \
  type(cuda##name) parameters { return tutti_cudart_##name arguments; }
TUTTI_CUDART_CALLS(FORWARD)
