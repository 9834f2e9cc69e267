/* runtime_error.c: the emulated runtime's errors: each thread's last one, and names and texts. */
#include "backends/emu/cudart/runtime.h"
#include "base/log.h"

static _Thread_local cudaError_t last_error = cudaSuccess;

cudaError_t runtime_result(int error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = (cudaError_t)error;
  return (cudaError_t)error;
}

int runtime_fork_check(void) {
  static int said; /* atomic */
  if (!emu_memory_was_forked()) return 0;
  if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
    log_urgent(
        "this process was forked from one that has memory on devices, and CUDA does not work in such a "
        "child; fork before the first CUDA call, or start another program (exec)");
  return cudaErrorInitializationError;
}

cudaError_t tutti_cudart_GetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t tutti_cudart_PeekAtLastError(void) { return last_error; }

const char *tutti_cudart_GetErrorName(cudaError_t error) {
  switch (error) {
#define NAME(name, value, text) \
  case name: return #name;
    TUTTI_EMU_CUDA_ERRORS(NAME)
#undef NAME
    default: return "unrecognized error code";
  }
}

const char *tutti_cudart_GetErrorString(cudaError_t error) {
  switch (error) {
#define TEXT(name, value, text) \
  case name: return text;
    TUTTI_EMU_CUDA_ERRORS(TEXT)
#undef TEXT
    default: return "unrecognized error code";
  }
}

cudaError_t tutti_cudart_ProfilerStart(void) { return cudaSuccess; }

cudaError_t tutti_cudart_ProfilerStop(void) { return cudaSuccess; }
