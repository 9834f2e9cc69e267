/* config.c: one table of ncclConfig_t's members has offsets, versions, defaults and bounds; all code iterates
 * over it. A caller built against an older header gets the defaults for members that it does not have. Does
 * not know what the members mean. */
#include "core/settings/config.h"

#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"

#define CONFIG_MAGIC 0xcafebeefu
#define CONFIG_NO_PARAM PARAM_COUNT

struct config_member {
  const char *name;
  size_t offset;
  unsigned since; /* version that introduced the member */
  int initial, lowest, highest;
  enum param_id param; /* the setting that overrides it */
  const char *without; /* why it has no effect; NULL: it has one */
};

#define MEMBER(name, since, initial, lowest, highest, param) \
  { #name, offsetof(ncclConfig_t, name), since, initial, lowest, highest, param, NULL }
#define MEMBER_WITHOUT(name, since, initial, lowest, highest, why) \
  { #name, offsetof(ncclConfig_t, name), since, initial, lowest, highest, CONFIG_NO_PARAM, why }

static const struct config_member members[] = {
    MEMBER(blocking, 21400, 1, 0, 1, PARAM_COMM_BLOCKING),
    MEMBER(cgaClusterSize, 21700, 4, 0, 8, PARAM_CGA_CLUSTER_SIZE),
    MEMBER(minCTAs, 21700, 1, 1, 64, PARAM_MIN_CTAS),
    MEMBER(maxCTAs, 21700, 64, 1, 64, PARAM_MAX_CTAS),
    MEMBER_WITHOUT(splitShare, 21800, 0, 0, 1, "a split communicator has resources of its own"),
    MEMBER(trafficClass, 22500, NCCL_CONFIG_UNDEF_INT, 0, INT_MAX - 1, CONFIG_NO_PARAM),
    MEMBER(collnetEnable, 22700, 0, 0, 1, PARAM_COLLNET_ENABLE),
    MEMBER(CTAPolicy, 22700, NCCL_CTA_POLICY_DEFAULT, 0, 3, PARAM_CTA_POLICY),
    MEMBER_WITHOUT(shrinkShare, 22700, 0, 0, 1, "a shrunk communicator has resources of its own"),
    MEMBER_WITHOUT(nvlsCTAs, 22700, NCCL_CONFIG_UNDEF_INT, 1, INT_MAX,
                   "NVLS takes the channels that minCTAs and maxCTAs allow"),
    MEMBER(nChannelsPerNetPeer, 22800, NCCL_CONFIG_UNDEF_INT, 1, 64, PARAM_NCHANNELS_PER_NET_PEER),
    MEMBER_WITHOUT(nvlinkCentricSched, 22800, 0, 0, 1,
                   "messages of a group are ordered by rank distance alone"),
    MEMBER_WITHOUT(graphUsageMode, 22900, 2, 0, 2, "launches in graphs and others can always be mixed"),
    MEMBER_WITHOUT(numRmaCtx, 22900, 1, 1, INT_MAX, "one-sided calls have one context"),
    MEMBER_WITHOUT(maxP2pPeers, 23000, NCCL_CONFIG_UNDEF_INT, 1, INT_MAX,
                   "the number of peers is not limited"),
    MEMBER_WITHOUT(graphStreamOrdering, 23000, 1, 0, 1,
                   "replays of a communicator's graphs are always ordered")};

#define MEMBER_COUNT (sizeof members / sizeof members[0])

static int *member_value(ncclConfig_t *config, const struct config_member *member) {
  return (int *)((char *)config + member->offset);
}

static void config_set_defaults(ncclConfig_t *config) {
  const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  *config = initial;
  for (size_t i = 0; i < MEMBER_COUNT; i++) *member_value(config, &members[i]) = members[i].initial;
}

/* True if the caller's struct has the member, by its size and by the version that it was built against. */
static bool config_has(const ncclConfig_t *user, size_t offset, size_t bytes, unsigned since) {
  return user->version >= since && user->size >= offset + bytes;
}

static ncclResult_t config_take_member(const char *call, const ncclConfig_t *user,
                                       const struct config_member *member, ncclConfig_t *result) {
  if (!config_has(user, member->offset, sizeof(int), member->since)) return ncclSuccess;
  int value;
  memcpy(&value, (const char *)user + member->offset, sizeof value);
  if (value == NCCL_CONFIG_UNDEF_INT) return ncclSuccess;
  if (value < member->lowest || value > member->highest) {
    return log_fail(ncclInvalidArgument,
                    "%s: config.%s is %d, outside %d..%d; leave it at NCCL_CONFIG_UNDEF_INT for "
                    "the default",
                    call, member->name, value, member->lowest, member->highest);
  }
  if (member->without != NULL && value != member->initial)
    log_info(LOG_INIT, "%s: config.%s=%d is accepted and has no effect in tutti: %s", call, member->name,
             value, member->without);
  *member_value(result, member) = value;
  return ncclSuccess;
}

static ncclResult_t config_take(const char *call, const ncclConfig_t *user, ncclConfig_t *result) {
  if (user->magic != CONFIG_MAGIC || user->size < offsetof(ncclConfig_t, blocking)) {
    return log_fail(ncclInvalidArgument,
                    "%s: config has magic 0x%x and size %zu; start it from "
                    "NCCL_CONFIG_INITIALIZER",
                    call, user->magic, user->size);
  }
  for (size_t i = 0; i < MEMBER_COUNT; i++) TRY(config_take_member(call, user, &members[i], result));
  if (config_has(user, offsetof(ncclConfig_t, netName), sizeof user->netName, 21700))
    result->netName = user->netName;
  if (config_has(user, offsetof(ncclConfig_t, commName), sizeof user->commName, 22600)) {
    result->commName = user->commName;
  }
  return ncclSuccess;
}

/* The environment overrides the config; param.c has checked its bounds. */
static void config_override(ncclConfig_t *config) {
  for (size_t i = 0; i < MEMBER_COUNT; i++) {
    const enum param_id param = members[i].param;
    if (param != CONFIG_NO_PARAM && param_is_set(param))
      *member_value(config, &members[i]) = (int)param_int(param);
  }
  if (param_is_set(PARAM_MIN_NCHANNELS)) config->minCTAs = (int)param_int(PARAM_MIN_NCHANNELS);
  if (param_is_set(PARAM_MAX_NCHANNELS)) config->maxCTAs = (int)param_int(PARAM_MAX_NCHANNELS);
}

ncclResult_t config_read(const char *call, const ncclConfig_t *user, const ncclConfig_t *inherited,
                         ncclConfig_t *result) {
  ncclConfig_t config;
  if (!user && inherited) config = *inherited;
  else config_set_defaults(&config);
  if (user) TRY(config_take(call, user, &config));
  if (config.minCTAs > config.maxCTAs) {
    return log_fail(ncclInvalidArgument,
                    "%s: config.minCTAs %d is above config.maxCTAs %d; lower one or raise the "
                    "other",
                    call, config.minCTAs, config.maxCTAs);
  }
  config_override(&config);
  if (config.minCTAs > config.maxCTAs) config.minCTAs = config.maxCTAs;
  *result = config;
  return ncclSuccess;
}
