/* register.h: registrations, for windows. */
#ifndef TUTTI_CORE_REGISTER_H
#define TUTTI_CORE_REGISTER_H

#include "core/comm/comm.h"

/* Refuses NULL and a size of 0. */
ncclResult_t register_check(const struct ncclComm *comm, const char *call, const void *buffer, size_t bytes,
                            const void *output);
/* Memory of the host is ignored: NULL. */
ncclResult_t register_device(struct ncclComm *comm, const char *call, void *buffer, size_t bytes,
                             const void *caller, struct registration **handle);
ncclResult_t register_drop(struct ncclComm *comm, const char *call, const void *handle);

/* window.c: the rank's window of this handle. */
ncclResult_t window_check(struct ncclComm *comm, const char *call, const void *handle,
                          const struct window **window);

#endif
