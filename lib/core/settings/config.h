/* config.h: reads ncclConfig_t: which members count, their defaults and bounds, and what the environment
 * overrides. */
#ifndef TUTTI_CORE_CONFIG_H
#define TUTTI_CORE_CONFIG_H

#include "base/err.h"

/* Fills *result with every member set (commName and netName point into the caller's memory or are NULL). user
 * NULL = a copy of `inherited`, or the defaults when that is NULL too. A wrong magic or a member out of
 * range: ncclInvalidArgument. */
ncclResult_t config_read(const char *call, const ncclConfig_t *user, const ncclConfig_t *inherited,
                         ncclConfig_t *result);

#endif
