/* err.h: the result type of every function that can fail, and the text of each value. There is one enum,
 * NCCL's (nccl.h). The function that detects an error logs it with log_fail() and returns the code; its
 * callers return the code with TRY(). Outputs are set only on success. */
#ifndef TUTTI_BASE_ERR_H
#define TUTTI_BASE_ERR_H

#include "nccl.h"

/* Passes a failure up unchanged; the callee has already logged it. */
#define TRY(call)                                       \
  do {                                                  \
    ncclResult_t try_result_ = (call);                  \
    if (try_result_ != ncclSuccess) return try_result_; \
  } while (0)

/* Constant text of a result code, never NULL; "unknown result code" for values outside the enum. */
const char *err_text(ncclResult_t result);

#endif
