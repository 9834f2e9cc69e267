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

/* window.c. A window, as all ranks make it in the same order; with `symmetric`, for collectives and kernels.
 */
ncclResult_t window_make(struct ncclComm *comm, const char *call, void *memory, size_t bytes, bool symmetric,
                         const void *caller, struct window **made);
ncclResult_t window_drop(struct ncclComm *comm, const char *call, struct window *window);
/* The process's window with a view of this handle. */
ncclResult_t window_of_device(const char *call, const void *handle, struct ncclComm **comm,
                              struct window **window);
/* The rank's window of this handle. */
ncclResult_t window_check(struct ncclComm *comm, const char *call, const void *handle,
                          const struct window **window);

#endif
