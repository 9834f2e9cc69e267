/* err.h: the result type of every fallible function, and the text of each value.
 * There is one enum, NCCL's (nccl.h). The function that first knows of an error logs it with log_fail()
 * and returns the code; everybody above passes the code on with TRY(). Outputs are set only on success. */
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
