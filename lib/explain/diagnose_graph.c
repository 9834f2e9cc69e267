/* diagnose_graph.c: operations captured in a CUDA graph. They are called once and run again with each launch
 * of the graph, and launches leave no records. So ranks are compared by the operations under way, not by
 * calls. */
#include <inttypes.h>
#include <string.h>

#include "explain/comm_ranks.h"

static uint32_t graph_operation(const struct rank_state *state) {
  return state->view->comm->graph_operation - 1;
}

static const struct rank_state *ranks_graph(const struct comm_ranks *ranks) {
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].graph) return &ranks->states[i];
  return NULL;
}

/* "#4, AllReduce of 1024 float32, sum" */
static void operation_text(const struct rank_state *state, uint32_t sequence, char out[192]) {
  const struct record_call *call = rank_find_call(state, sequence);
  char text[160] = "";
  if (call != NULL) call_text(call, text);
  snprintf(out, 192, "#%u%s%s", sequence, call != NULL ? ", " : "", text);
}

void show_graphs(const struct comm_ranks *ranks) {
  const struct rank_state *first = ranks_graph(ranks);
  struct rank_list list = {"", 0, 0, 0, 0};
  char text[192];
  if (first == NULL) return;
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].graph && graph_operation(&ranks->states[i]) == graph_operation(first))
      list_add(&list, rank_number(&ranks->states[i]));
  operation_text(first, graph_operation(first), text);
  list_end(&list);
  show(ranks->diagnosis, "a graph that ranks %s launched has operation %s, under way again", list.text, text);
}

/* The rank has run the graph's kernel less often than the rank that waits in it; if the backend does not
 * count these runs: the rank runs nothing. */
static bool has_not_launched(const struct rank_state *state, const struct rank_state *waiter) {
  const uint32_t own = state->view->comm->graph_runs, theirs = waiter->view->comm->graph_runs;
  if (state->graph || state->graph_queued || !rank_knows_ends(state)) return false;
  return theirs != 0 ? (int32_t)(own - theirs) < 0 : !rank_pends(state);
}

/* The rank waits for nothing, or only for a rank that itself waits in the graph. */
static bool is_free(const struct comm_ranks *ranks, const struct rank_state *state) {
  const struct record_lane *lane = rank_first_wait(state);
  if (lane == NULL) return state->view->comm->started == state->view->comm->ended;
  const struct rank_state *other = ranks_find(ranks, lane->peer);
  return other != NULL && other->graph;
}

static void report_not_launched(struct comm_ranks *ranks, const struct rank_state *state,
                                const struct rank_state *waiter, const struct record_lane *lane) {
  const uint32_t runs = state->view->comm->graph_runs, theirs = waiter->view->comm->graph_runs;
  char place[160], name[64], text[192], why[160];
  rank_place(state, place);
  operation_text(waiter, lane->sequence, text);
  absent_text(state, why, sizeof why);
  blame(ranks, DIAGNOSIS_NOT_ARRIVED, "graph", state);
  say(ranks->diagnosis->sentence,
      "%s has not launched the graph with operation %s, of comm %s, in which rank %u waits for it: %s", place,
      text, ranks_comm_name(ranks, name), rank_number(waiter), why);
  if (theirs != 0)
    show(ranks->diagnosis, "graphs have begun %u kernels of rank %u, and %u of rank %u", runs,
         rank_number(state), theirs, rank_number(waiter));
  show_waits(ranks);
  say(ranks->diagnosis->next,
      "look at what rank %u's program does now (py-spy dump, gdb -p), and why it did not launch its graph as "
      "often as the others, in the same order with its other calls",
      rank_number(state));
}

bool diagnose_graph(struct comm_ranks *ranks) {
  if (ranks_graph(ranks) == NULL || ranks_have_failed(ranks)) return false;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *waiter = &ranks->states[i];
    uint32_t row = 0;
    for (const struct record_lane *lane = rank_next_wait(waiter, &row); lane != NULL && waiter->graph;
         row++, lane = rank_next_wait(waiter, &row)) {
      const struct rank_state *state = ranks_find(ranks, lane->peer);
      if (state == NULL || !has_not_launched(state, waiter) || !is_free(ranks, state)) continue;
      report_not_launched(ranks, state, waiter, lane);
      return true;
    }
  }
  return false;
}
