/* cudart.c: libtutti-cudart.so: each function of the CUDA runtime passes its arguments to libnccl.so.2, which
 * has all the state. So a program that is linked to the emulated runtime and the NCCL calls use the same
 * emulated devices. */
#include "backends/emu/cudart/cudart.h"

/* The error of calls that wrong settings refuse. Functions that only print an error never fail. The
 * parentheses around the name prevent the expansion of the header's macros that count arguments. */
#define FORWARD(type, name, parameters, arguments)                                             \
  type(cuda##name) parameters {                                                                \
    const long refusal = _Generic((type)0, cudaError_t : tutti_cudart_refusal(), default : 0); \
    return refusal != 0 ? (type)refusal : tutti_cudart_##name arguments;                       \
  }
TUTTI_CUDART_CALLS(FORWARD)
