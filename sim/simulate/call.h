/* call.h: a collective on a cluster as planning takes it: production's limits, the cluster's channels. */
#ifndef TUTTI_SIM_SIMULATE_CALL_H
#define TUTTI_SIM_SIMULATE_CALL_H

#include "check/request.h"
#include "simulate/cluster.h"

/* `channels`: at most so many, 0: as many as the cluster's graph has. */
void call_fill(const struct cluster *cluster, uint8_t func, uint8_t dtype, size_t count, uint32_t channels,
               struct check_call *call);

#endif
