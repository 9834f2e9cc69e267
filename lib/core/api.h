/* api.h: how an entry point of nccl.h is published: the body is the strong pncclX, ncclX a weak alias of
 * it. */
#ifndef TUTTI_CORE_API_H
#define TUTTI_CORE_API_H

#include "nccl.h"

/* After the body of pncclX: API_EXPORT(X) */
#define API_EXPORT(name) \
  extern __typeof__(pnccl##name) nccl##name __attribute__((weak, alias("pnccl" #name), visibility("default")))

/* For declarations of what nccl.h does not declare. */
#define API_VISIBLE __attribute__((visibility("default")))

#endif
