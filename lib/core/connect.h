/* connect.h: connections are made when a plan first needs them (comm/connect_table.h remembers which). */
#ifndef TUTTI_CORE_CONNECT_H
#define TUTTI_CORE_CONNECT_H

#include "base/err.h"
#include "schedule/plan.h"

struct ncclComm;

/* Makes every connection that the plan's works name and that is not there yet, and binds its scratch. */
ncclResult_t connect_plan(struct ncclComm *comm, struct plan *plan);

#endif
