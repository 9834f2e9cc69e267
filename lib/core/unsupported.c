/* unsupported.c: symbols of NCCL 2.30.7 that this release exports but does not implement: those of the device
 * API, which nccl.h does not declare. A program linked against them loads, and a call returns an error that
 * says what is missing. They take no arguments because they use none: on every supported ABI the caller
 * cleans up its arguments. */
#include "base/log.h"
#include "core/api.h"

static ncclResult_t unsupported(const char *name) {
  return log_fail(ncclInvalidUsage,
                  "%s: the device-side interface is not in this release; use the host-side "
                  "collectives",
                  name);
}

#define UNSUPPORTED(name)                                              \
  API_VISIBLE ncclResult_t pnccl##name(void);                          \
  ncclResult_t pnccl##name(void) { return unsupported("nccl" #name); } \
  API_EXPORT(name)

UNSUPPORTED(DevCommCreate);
UNSUPPORTED(DevCommDestroy);
UNSUPPORTED(CommQueryProperties);
UNSUPPORTED(GetLsaDevicePointer);
UNSUPPORTED(GetLsaMultimemDevicePointer);
UNSUPPORTED(GetMultimemDevicePointer);
UNSUPPORTED(GetPeerDevicePointer);
UNSUPPORTED(GinBarrierCreateRequirement);
UNSUPPORTED(GinInboxA2ACreateRequirement);
UNSUPPORTED(GinOutboxCreateRequirement);
UNSUPPORTED(LLA2ACreateRequirement);
UNSUPPORTED(LsaBarrierCreateRequirement);

/* Number of slots: none. */
API_VISIBLE int pncclLLA2ACalcSlots(void);
int pncclLLA2ACalcSlots(void) {
  unsupported("ncclLLA2ACalcSlots");
  return 0;
}
API_EXPORT(LLA2ACalcSlots);

/* ncclTeam_t as callers expect it back, three numbers by value; all zeros is a team without ranks. */
struct unsupported_team {
  int rank_count, rank, stride;
};

#define UNSUPPORTED_TEAM(name)                           \
  API_VISIBLE struct unsupported_team pnccl##name(void); \
  struct unsupported_team pnccl##name(void) {            \
    const struct unsupported_team none = {0, 0, 0};      \
    unsupported("nccl" #name);                           \
    return none;                                         \
  }                                                      \
  API_EXPORT(name)

UNSUPPORTED_TEAM(TeamLsa);
UNSUPPORTED_TEAM(TeamRail);
UNSUPPORTED_TEAM(TeamWorld);

/* -1 is not a rank of any ncclTeam_t. */
#define UNSUPPORTED_RANK(name)       \
  API_VISIBLE int pnccl##name(void); \
  int pnccl##name(void) {            \
    unsupported("nccl" #name);       \
    return -1;                       \
  }                                  \
  API_EXPORT(name)

UNSUPPORTED_RANK(TeamRankToLsa);
UNSUPPORTED_RANK(TeamRankToWorld);

/* An internal function that NCCL exports. */
API_VISIBLE void ncclResetDebugInitInternal(void);
void ncclResetDebugInitInternal(void) { log_reset(); }
