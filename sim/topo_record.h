/* topo_record.h: copies what describes a machine's topology into a folder (`tutti topo --record`). */
#ifndef TUTTI_SIM_TOPO_RECORD_H
#define TUTTI_SIM_TOPO_RECORD_H

#include "base/err.h"

/* `folder` is made; it must not exist. ncclSystemError: it exists, or cannot be written; what was written so
 * far remains. ncclInvalidUsage or ncclSystemError, with the reason, if the GPUs cannot be read. */
ncclResult_t topo_record(const char *sysfs, const char *folder);

#endif
