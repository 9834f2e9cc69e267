/* model.c: the cost model's answer for a collective by its name in nccl-tests. Knows how their size column
 * becomes counts. */
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/comm.h"
#include "core/group.h"
#include "tutti.h"

/* The size column is the larger buffer; `divided` says that a rank contributes 1/n of it. */
struct model_row {
  const char *name;
  uint8_t func;
  bool divided;
};

static const struct model_row model_rows[] = {{"all_reduce", FUNC_ALL_REDUCE, false},
                                              {"reduce", FUNC_REDUCE, false},
                                              {"broadcast", FUNC_BROADCAST, false},
                                              {"all_gather", FUNC_ALL_GATHER, true},
                                              {"reduce_scatter", FUNC_REDUCE_SCATTER, true},
                                              {"alltoall", FUNC_ALL_TO_ALL, true},
                                              {"gather", FUNC_GATHER, true},
                                              {"scatter", FUNC_SCATTER, true},
                                              {"sendrecv", FUNC_SEND_RECV, false}};

static const struct model_row *model_find(const char *name) {
  for (size_t i = 0; i < sizeof model_rows / sizeof model_rows[0]; i++) {
    if (strcmp(model_rows[i].name, name) == 0) return &model_rows[i];
  }
  return NULL;
}

static void model_add(struct plan_op *ops, uint32_t *count, uint8_t func, uint32_t peer, size_t elements) {
  struct plan_op *op = &ops[(*count)++];
  op->func = func;
  op->dtype = ncclFloat32;
  op->peer = peer;
  op->count = elements;
}

/* Of gathers and scatters the root's work is the longest, so rank 0 is taken to be it. */
static uint32_t model_describe(const struct ncclComm *comm, const struct model_row *row, size_t elements,
                               struct plan_op *ops) {
  const uint32_t rank = comm->rank, n = comm->rank_count;
  uint32_t count = 0;
  if (row->func == FUNC_SEND_RECV) {
    model_add(ops, &count, FUNC_SEND, (rank + 1) % n, elements);
    model_add(ops, &count, FUNC_RECV, (rank + n - 1) % n, elements);
    return count;
  }
  if (row->func != FUNC_ALL_TO_ALL && row->func != FUNC_GATHER && row->func != FUNC_SCATTER) {
    model_add(ops, &count, row->func, 0, elements);
    return count;
  }
  for (uint32_t peer = 0; peer < n; peer++) {
    if (row->func != FUNC_GATHER || peer == rank) model_add(ops, &count, FUNC_SEND, peer, elements);
    if (row->func != FUNC_SCATTER || peer == rank) model_add(ops, &count, FUNC_RECV, peer, elements);
  }
  return count;
}

ncclResult_t tutti_model_time(ncclComm_t comm, const char *collective, size_t bytes, double *time_us) {
  static const char *const call = "tutti_model_time";
  struct plan_request request;
  TRY(comm_check_ready(comm, call));
  const struct model_row *row = collective ? model_find(collective) : NULL;
  if (!row || !time_us) {
    return log_fail(ncclInvalidArgument,
                    "%s: %s%s; use all_reduce, all_gather, reduce_scatter, broadcast, reduce, "
                    "sendrecv, alltoall, gather or scatter",
                    call, row ? "time_us is NULL" : "unknown collective ",
                    row || !collective ? "" : collective);
  }
  struct plan_op *ops = (struct plan_op *)os_alloc(2 * (size_t)comm->rank_count * sizeof *ops);
  if (!ops) return log_fail(ncclSystemError, "%s: no memory for %u messages", call, 2 * comm->rank_count);
  const size_t elements = bytes / sizeof(float) / (row->divided ? comm->rank_count : 1);
  group_request(comm, ops, model_describe(comm, row, elements, ops), &request);
  *time_us = plan_time_us(&request);
  os_free(ops);
  return ncclSuccess;
}
