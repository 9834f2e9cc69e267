/* link_load.c: see link_load.h. */
#include "steps/link_load.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "steps/slices.h"

/* Adds what a work sends, by receiver. */
static void work_add(struct slices *slices, const struct plan_limits *limits, const struct work *work,
                     uint64_t *to) {
  const struct sim_slice *slice;
  slices_begin(slices, limits, work);
  while ((slice = slices_next(slices)) != NULL)
    for (uint32_t link = 0; link < work->send_count; link++)
      to[work->send_peer[link]] += slice->moves[work->recv_count + link].moved;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

ncclResult_t link_load_of(const struct plan *plans, const struct graph *graph, struct link_load *load) {
  const uint32_t ranks = graph->rank_count;
  const size_t bytes = ranks * sizeof(uint64_t);
  uint64_t *to = (uint64_t *)os_alloc(bytes), *leaving = (uint64_t *)os_alloc(bytes);
  struct slices *slices = slices_open();
  const bool whole = to && leaving && slices;
  memset(load, 0, sizeof *load);
  for (uint32_t rank = 0; whole && rank < ranks; rank++) {
    const struct plan *plan = &plans[rank];
    uint64_t sum = 0;
    memset(to, 0, bytes);
    for (uint32_t i = 0; i < plan->work_count; i++) work_add(slices, &plan->limits, &plan->works[i], to);
    for (uint32_t peer = 0; peer < ranks; peer++) {
      sum += to[peer];
      load->link = larger(load->link, to[peer]);
      if (graph->node[peer] != graph->node[rank]) leaving[graph->node[rank]] += to[peer];
    }
    load->rank = larger(load->rank, sum);
  }
  for (uint32_t node = 0; whole && node < graph->node_count; node++)
    load->node = larger(load->node, leaving[node]);
  slices_close(slices);
  os_free(to);
  os_free(leaving);
  return whole ? ncclSuccess : log_no_memory("the bytes of %u ranks", ranks);
}

ncclResult_t link_load_of_request(const struct plan_request *request, struct link_load *load) {
  const uint32_t ranks = request->rank_count;
  struct plan *plans = (struct plan *)os_alloc(ranks * sizeof *plans);
  if (!plans) return log_no_memory("the plans of %u ranks", ranks);
  ncclResult_t result = ncclSuccess;
  struct plan_request own = *request;
  for (uint32_t rank = 0; rank < ranks && result == ncclSuccess; rank++) {
    own.rank = rank;
    result = plan_build(&own, &plans[rank]);
  }
  if (result == ncclSuccess) result = link_load_of(plans, request->graph, load);
  for (uint32_t rank = 0; rank < ranks; rank++) plan_free(&plans[rank]);
  os_free(plans);
  return result;
}
