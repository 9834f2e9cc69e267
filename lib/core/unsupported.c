/* unsupported.c: symbols of NCCL 2.30.7 that this release exports but does not implement: what the device API
 * has of multicast, mailboxes and LL all-to-all, which no header declares. A program linked against them
 * loads, and a call returns an error that says what is missing. They take no arguments because they use none:
 * on every supported ABI the caller cleans up its arguments. */
#include "base/log.h"
#include "core/api.h"

static ncclResult_t unsupported(const char *name) {
  return log_fail(ncclInvalidUsage,
                  "%s: this part of the device API is not in this release: it has windows and barriers of "
                  "ranks that reach each other (nccl_device.h)",
                  name);
}

#define UNSUPPORTED(name)                                              \
  API_VISIBLE ncclResult_t pnccl##name(void);                          \
  ncclResult_t pnccl##name(void) { return unsupported("nccl" #name); } \
  API_EXPORT(name)

UNSUPPORTED(GetLsaMultimemDevicePointer);
UNSUPPORTED(GetMultimemDevicePointer);
UNSUPPORTED(GinInboxA2ACreateRequirement);
UNSUPPORTED(GinOutboxCreateRequirement);
UNSUPPORTED(LLA2ACreateRequirement);

/* Number of slots: none. */
API_VISIBLE int pncclLLA2ACalcSlots(void);
int pncclLLA2ACalcSlots(void) {
  unsupported("ncclLLA2ACalcSlots");
  return 0;
}
API_EXPORT(LLA2ACalcSlots);

/* An internal function that NCCL exports. */
API_VISIBLE void ncclResetDebugInitInternal(void);
void ncclResetDebugInitInternal(void) { log_reset(); }
