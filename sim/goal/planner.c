/* planner.c: see planner.h. */
#include "goal/planner.h"

#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "bench/bench.h"
#include "core/plan/names.h"
#include "core/settings/settings.h"
#include "machine.h"

enum { RANKS_MOST = 65536 };

static ncclResult_t take_type(struct planner *planner, const char *type) {
  for (planner->dtype = 0; planner->dtype < ncclNumTypes; planner->dtype++) {
    if (strcmp(bench_type_name((ncclDataType_t)planner->dtype), type) == 0) return ncclSuccess;
  }
  return log_fail(ncclInvalidUsage, "--type %s: must be one that `tutti bench -d` knows", type);
}

ncclResult_t planner_open(struct planner *planner, const struct goal_config *config) {
  const int64_t ranks = config->nodes * config->gpus;
  memset(planner, 0, sizeof *planner);
  planner->config = config;
  if (ranks > RANKS_MOST || config->root >= ranks)
    return log_fail(ncclInvalidUsage,
                    "%" PRId64 " ranks and --root %" PRId64 ": at most %d ranks, and a root of theirs", ranks,
                    config->root, RANKS_MOST);
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    planner->algos[func] = (1u << ALGO_COUNT) - 1;
    planner->protos[func] = (1u << PROTO_COUNT) - 1;
  }
  TRY(take_type(planner, config->type));
  TRY(settings_parse_list("--algo", config->algo, names_algo, ALGO_COUNT, planner->algos));
  TRY(settings_parse_list("--proto", config->proto, names_proto, PROTO_COUNT, planner->protos));
  return machine_graph(config->machine, (uint32_t)config->nodes, (uint32_t)config->gpus, &planner->graph);
}

static void call_fill(const struct planner *planner, const struct planner_call *row,
                      struct check_call *call) {
  memset(call, 0, sizeof *call);
  call->func = collective_func(row->collective);
  call->dtype = planner->dtype;
  call->op = OP_SUM;
  call->rank_count = planner->graph.rank_count;
  call->root = (uint32_t)planner->config->root;
  call->p2p_ll_threshold = 16384;
  call->graph = &planner->graph;
  call->count =
      collective_count(row->collective, row->bytes, check_type_bytes(call->dtype), call->rank_count);
  /* Messages use the same algorithm and protocol settings as all-reduces. */
  const bool named = call->func < FUNC_SEND_RECV || call->func == FUNC_ALL_TO_ALL;
  call->algo_mask = planner->algos[named ? call->func : FUNC_ALL_REDUCE];
  call->proto_mask = planner->protos[named ? call->func : FUNC_ALL_REDUCE];
  plan_limits_default(&call->limits);
  call->limits.channel_count = (uint32_t)planner->config->channels;
  if (call->limits.channel_count > planner->graph.channel_count)
    call->limits.channel_count = planner->graph.channel_count;
}

ncclResult_t planner_plan(struct planner *planner, const struct collective *collective, uint64_t bytes,
                          struct planner_call **found) {
  struct check_call call;
  for (uint32_t i = 0; i < planner->call_count; i++) {
    *found = planner->calls[i];
    if ((*found)->collective == collective && (*found)->bytes == bytes) return ncclSuccess;
  }
  if (!array_resize(&planner->calls, (uint64_t)planner->call_count + 1, sizeof *planner->calls))
    return log_no_memory("%" PRIu32 " calls", planner->call_count);
  struct planner_call *row = (struct planner_call *)os_alloc(sizeof *row);
  if (row == NULL) return log_no_memory("%" PRIu32 " calls", planner->call_count);
  planner->calls[planner->call_count++] = row;
  row->collective = collective;
  row->bytes = bytes;
  row->number = UINT32_MAX;
  call_fill(planner, row, &call);
  TRY(check_setup_make(&row->setup, &call));
  *found = row;
  return ncclSuccess;
}

ncclResult_t planner_plan_chakra(void *context, struct goal_export *out, uint32_t comm_type, uint64_t bytes,
                                 uint32_t *number) {
  static const char *const names[] = {"all_reduce",     "reduce",    "all_gather", "gather",
                                      "scatter",        "broadcast", "alltoall",   "reduce_scatter",
                                      "reduce_scatter", "all_reduce"};
  struct planner *planner = (struct planner *)context;
  struct planner_call *call;
  if (comm_type > CHAKRA_BARRIER)
    return log_fail(ncclInvalidArgument, "collective %" PRIu32 " of a Chakra trace; there are 0 to %d",
                    comm_type, CHAKRA_BARRIER);
  const struct collective *collective = collective_find(names[comm_type]);
  const uint64_t least = check_type_bytes(planner->dtype); /* the size of a barrier */
  const uint64_t whole = chakra_coll_bytes(comm_type, bytes, planner->graph.rank_count);
  if (whole > GOAL_BYTES_MOST)
    return log_fail(ncclInvalidArgument,
                    "a Chakra trace's %s of %" PRIu64 " bytes of each of %" PRIu32 " ranks: more than 2^40",
                    names[comm_type], bytes, planner->graph.rank_count);
  TRY(planner_plan(planner, collective, comm_type == CHAKRA_BARRIER || whole < least ? least : whole, &call));
  if (call->number == UINT32_MAX)
    TRY(goal_export_call(out, call->setup.plans, planner->graph.rank_count, &call->number));
  *number = call->number;
  return ncclSuccess;
}

void planner_close(struct planner *planner) {
  for (uint32_t i = 0; i < planner->call_count; i++) {
    check_setup_free(&planner->calls[i]->setup);
    os_free(planner->calls[i]);
  }
  os_free(planner->calls);
  graph_free(&planner->graph);
  memset(planner, 0, sizeof *planner);
}
