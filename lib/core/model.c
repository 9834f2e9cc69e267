/* model.c: the cost model's answers for a collective by its name in nccl-tests. Converts nccl-tests' size
 * column to counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/comm/comm.h"
#include "core/group.h"
#include "core/plan/names.h"
#include "core/plan/tune.h"
#include "tutti.h"

/* The size column is the larger buffer; `divided`: a rank contributes 1/n of it. */
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

/* For gathers and scatters the root takes longest, so rank 0 is assumed to be the root. */
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
  if (!ops) return log_no_memory("%s: %u messages", call, 2 * comm->rank_count);
  const size_t elements = bytes / sizeof(float) / (row->divided ? comm->rank_count : 1);
  group_request(comm, ops, model_describe(comm, row, elements, ops), &request);
  *time_us = plan_time_us(&request);
  os_free(ops);
  return ncclSuccess;
}

ncclResult_t tutti_model_text(ncclComm_t comm, char *text, size_t text_bytes) {
  static const char *const call = "tutti_model_text";
  struct plan_request request;
  TRY(comm_check_ready(comm, call));
  if (!text || text_bytes == 0)
    return log_fail(ncclInvalidArgument, "%s: text is NULL or text_bytes is 0", call);
  group_request(comm, NULL, 0, &request);
  tune_model_text(&request, text, text_bytes);
  return ncclSuccess;
}

/* ---- tuning options ---- */

static int option_compare(const void *a, const void *b) {
  const double first = ((const tutti_tuning_option_t *)a)->time_us,
               second = ((const tutti_tuning_option_t *)b)->time_us;
  return (first > second) - (first < second);
}

static void option_add(tutti_tuning_options_t *options, const struct tune_candidate *row, uint32_t channels,
                       double time_us) {
  tutti_tuning_option_t *option = &options->options[options->option_count++];
  snprintf(option->algo, sizeof option->algo, "%s", names_algo[row->algo]);
  snprintf(option->proto, sizeof option->proto, "%s", names_proto[row->proto]);
  option->channel_count = (int)channels;
  option->time_us = time_us;
}

/* The selected option may have another number of channels than the model's: a tuning file can set it. */
static ncclResult_t options_list(const struct plan_request *request, uint8_t func, size_t bytes,
                                 tutti_tuning_options_t *options) {
  struct tune_candidate rows[TUNE_CANDIDATES];
  struct tune_choice choice;
  _Static_assert(TUNE_CANDIDATES <= TUTTI_TUNING_OPTIONS_MAX, "every option has a place");
  TRY(tune_choose(request, func, bytes, &choice));
  const struct tune_candidate *chosen = &rows[choice.algo * PROTO_COUNT + choice.proto];
  tune_candidates(request, func, bytes, rows);
  option_add(options, chosen, choice.channel_count, choice.time_us);
  for (const struct tune_candidate *row = rows; row < rows + TUNE_CANDIDATES; row++) {
    if (row->forbidden || row == chosen || isinf(row->time_us)) continue;
    option_add(options, row, row->channel_count, row->time_us);
  }
  qsort(options->options + 1, (size_t)options->option_count - 1, sizeof options->options[0], option_compare);
  return ncclSuccess;
}

ncclResult_t tutti_comm_tuning_options(ncclComm_t comm, const char *collective, size_t bytes,
                                       tutti_tuning_options_t *options) {
  static const char *const call = "tutti_comm_tuning_options";
  struct plan_request request;
  TRY(comm_check_ready(comm, call));
  if (!options || options->size != sizeof *options)
    return log_fail(ncclInvalidArgument,
                    "%s: options is NULL or its size member is not sizeof(tutti_tuning_options_t)", call);
  const int func = collective ? names_find(names_collective, FUNC_COUNT, collective, strlen(collective)) : -1;
  if (func < 0)
    return log_fail(
        ncclInvalidArgument,
        "%s: %s has only one option; take all_reduce, all_gather, reduce_scatter, broadcast or reduce", call,
        collective ? collective : "NULL");
  group_request(comm, NULL, 0, &request);
  options->rank_count = (int)comm->rank_count;
  options->node_count = (int)request.graph->node_count;
  options->option_count = 0;
  return comm->rank_count == 1 ? ncclSuccess : options_list(&request, (uint8_t)func, bytes, options);
}
