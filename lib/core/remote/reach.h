/* reach.h: finds out which processes of one host can map each other's memory, by trying, once for each new
 * communicator. A process that fails is set apart: the other processes of its host reach it over the network.
 * All processes get the same list, even if only one fails. Knows nothing about the memory's contents. */
#ifndef TUTTI_CORE_REACH_H
#define TUTTI_CORE_REACH_H

#include "core/bootstrap/gather.h"
#include "core/comm/comm.h"

struct reach {
  uint8_t *apart;              /* by process: 1 if no memory is mapped between it and others */
  char why[COMM_REASON_BYTES]; /* reason of the last process that was set apart; "" if none was */
};

/* Call on all processes after gather_wait. `model` is a device-side half whose peer info was gathered. On
 * failure `reason` has the message. The caller frees reach->apart, also on failure. */
ncclResult_t reach_try(struct gather *gather, const char *call, const struct backend *ops,
                       struct device_comm *model, uint32_t rank_count, struct reach *reach, char *reason,
                       size_t reason_bytes);

#endif
