/* api.h: how an entry point of nccl.h is exported: pncclX is the function, ncclX a weak alias of it. */
#ifndef TUTTI_CORE_API_H
#define TUTTI_CORE_API_H

#include "nccl.h"

/* After the body of pncclX: API_EXPORT(X) */
#define API_EXPORT(name) \
  extern __typeof__(pnccl##name) nccl##name __attribute__((weak, alias("pnccl" #name), visibility("default")))

/* For exported functions that nccl.h does not declare. */
#define API_VISIBLE __attribute__((visibility("default")))

#endif
