/* connect.h: makes connections when a plan first needs them (comm/connect_table.h records which exist). */
#ifndef TUTTI_CORE_CONNECT_H
#define TUTTI_CORE_CONNECT_H

#include "base/err.h"
#include "schedule/plan.h"

struct ncclComm;

/* Makes every missing connection that the plan's works name, and binds the plan's scratch memory. */
ncclResult_t connect_plan(struct ncclComm *comm, struct plan *plan);

#endif
