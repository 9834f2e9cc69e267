/* config.h: reads ncclConfig_t: which members the caller's version has, their defaults and bounds, and what
 * the environment overrides. */
#ifndef TUTTI_CORE_CONFIG_H
#define TUTTI_CORE_CONFIG_H

#include "base/err.h"

/* Fills *result with every member set (commName and netName point into the caller's memory or are NULL). If
 * `user` is NULL, copies `inherited`, or the defaults if that is NULL too. ncclInvalidArgument: wrong magic
 * or a member out of range. */
ncclResult_t config_read(const char *call, const ncclConfig_t *user, const ncclConfig_t *inherited,
                         ncclConfig_t *result);

#endif
