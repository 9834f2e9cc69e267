/* call.h: a collective of a communicator in planning's form: production's limits, its graph's channels. */
#ifndef TUTTI_SIM_SIMULATE_CALL_H
#define TUTTI_SIM_SIMULATE_CALL_H

#include "check/request.h"

/* `channels`: the most channels, 0: all of the graph. */
void call_fill(const struct graph *graph, uint8_t func, uint8_t dtype, size_t count, uint32_t channels,
               struct check_call *call);

#endif
