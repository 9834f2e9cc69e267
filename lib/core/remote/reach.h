/* reach.h: finds out which processes of one host can map each other's memory, by trying, once for each new
 * communicator: first that of devices, then, between those that it fails for, memory of the host. Where both
 * fail, a process is set apart: the other processes of its host reach it over the network. All processes get
 * the same list, even if only one fails. Knows nothing about the memory's contents. */
#ifndef TUTTI_CORE_REACH_H
#define TUTTI_CORE_REACH_H

#include "core/bootstrap/gather.h"
#include "core/comm/comm.h"

enum reach_memory {
  REACH_DEVICE, /* of devices (on GPUs: P2P), or whatever a backend without devices shares */
  REACH_HOST,   /* of the host, which devices access (SHM) */
  REACH_MEMORIES
};

/* A process, as the others of its host see it. */
struct reach_process {
  uint8_t place;                   /* among those of its host; the last place stands for all further ones */
  uint64_t denied[REACH_MEMORIES]; /* bits of the places of processes with which it does not share that */
};

struct reach {
  struct reach_process *processes; /* by process */
  char why[COMM_REASON_BYTES];     /* reason of the last process that was set apart; "" if none was */
};

/* False if nothing of this kind is mapped between the two, which are of one host. */
bool reach_allows(const struct reach_process *one, const struct reach_process *other,
                  enum reach_memory memory);

/* Call on all processes after gather_wait. `model` is a device-side half whose peer info was gathered. On
 * failure `reason` has the message. The caller frees reach->processes, also on failure. */
ncclResult_t reach_try(struct gather *gather, const char *call, const struct backend *ops,
                       struct device_comm *model, uint32_t rank_count, struct reach *reach, char *reason,
                       size_t reason_bytes);

#endif
