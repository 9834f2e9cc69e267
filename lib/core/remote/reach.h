/* reach.h: which processes of one host can map each other's memory, found out by trying, once for each
 * communicator, before its communicators are made. Those that cannot are set apart: others of their host
 * reach them over the network. Promises that all processes come to the same list, also where one alone fails.
 * Does not know what lies in the memory. */
#ifndef TUTTI_CORE_REACH_H
#define TUTTI_CORE_REACH_H

#include "core/bootstrap/gather.h"
#include "core/comm/comm.h"

struct reach {
  uint8_t *apart;              /* by process: its memory is not mapped by others, nor others' by it */
  char why[COMM_REASON_BYTES]; /* of the last one that was set apart; "" when none was */
};

/* Behind gather_wait, by all processes. `model` is a device-side half that has told its peer info. On failure
 * reason has the sentence. reach->apart is the caller's to free, also then. */
ncclResult_t reach_try(struct gather *gather, const char *call, const struct backend *ops,
                       struct device_comm *model, uint32_t rank_count, struct reach *reach, char *reason,
                       size_t reason_bytes);

#endif
