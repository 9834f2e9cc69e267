/* judge_graph.c: operations that a graph has captured and launches: they were called once, and run again with
 * each launch, of which there are no records. So ranks are compared by what is under way, not by their calls.
 */
#include <inttypes.h>
#include <string.h>

#include "explain/crew.h"

static uint32_t graph_operation(const struct seat *seat) { return seat->view->comm->graph_operation - 1; }

static const struct seat *crew_graph(const struct crew *crew) {
  for (uint32_t i = 0; i < crew->count; i++)
    if (crew->seats[i].graph) return &crew->seats[i];
  return NULL;
}

/* "#4, AllReduce of 1024 float32, sum" */
static void operation_text(const struct seat *seat, uint32_t sequence, char out[192]) {
  const struct record_call *call = seat_call(seat, sequence);
  char text[160] = "";
  if (call != NULL) call_text(call, text);
  snprintf(out, 192, "#%u%s%s", sequence, call != NULL ? ", " : "", text);
}

void show_graphs(const struct crew *crew) {
  const struct seat *first = crew_graph(crew);
  struct rank_list list = {"", 0, 0, 0, 0};
  char text[192];
  if (first == NULL) return;
  for (uint32_t i = 0; i < crew->count; i++)
    if (crew->seats[i].graph && graph_operation(&crew->seats[i]) == graph_operation(first))
      list_add(&list, seat_rank(&crew->seats[i]));
  operation_text(first, graph_operation(first), text);
  list_end(&list);
  show(crew->verdict, "a graph that ranks %s launched has operation %s, under way again", list.text, text);
}

/* The rank has run what the other one waits in less often than that one; or, where nobody counts, it runs
 * nothing. */
static bool has_not_launched(const struct seat *seat, const struct seat *waiter) {
  const uint32_t own = seat->view->comm->graph_runs, theirs = waiter->view->comm->graph_runs;
  if (seat->graph || seat->graph_queued || !seat_knows_ends(seat)) return false;
  return theirs != 0 ? (int32_t)(own - theirs) < 0 : !seat_pends(seat);
}

/* Nothing holds it, or somebody who waits in the graph himself. */
static bool is_free(const struct crew *crew, const struct seat *seat) {
  const struct record_lane *lane = seat_first_wait(seat);
  if (lane == NULL) return seat->view->comm->started == seat->view->comm->ended;
  const struct seat *other = crew_seat(crew, lane->peer);
  return other != NULL && other->graph;
}

static void tell_not_launched(struct crew *crew, const struct seat *seat, const struct seat *waiter,
                              const struct record_lane *lane) {
  const uint32_t runs = seat->view->comm->graph_runs, theirs = waiter->view->comm->graph_runs;
  char place[160], name[64], text[192], why[160];
  seat_place(seat, place);
  operation_text(waiter, lane->sequence, text);
  absent_text(seat, why, sizeof why);
  blame(crew, VERDICT_NOT_ARRIVED, "graph", seat);
  say(crew->verdict->sentence,
      "%s has not launched the graph with operation %s, of comm %s, in which rank %u waits for it: %s", place,
      text, crew_name(crew, name), seat_rank(waiter), why);
  if (theirs != 0)
    show(crew->verdict, "graphs have begun %u kernels of rank %u, and %u of rank %u", runs, seat_rank(seat),
         theirs, seat_rank(waiter));
  show_waits(crew);
  say(crew->verdict->next,
      "look at what rank %u's program does now (py-spy dump, gdb -p), and why it did not launch its graph as "
      "often as the others, in the same order with its other calls",
      seat_rank(seat));
}

bool judge_graph(struct crew *crew) {
  if (crew_graph(crew) == NULL || crew_has_failed(crew)) return false;
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct seat *waiter = &crew->seats[i];
    uint32_t row = 0;
    for (const struct record_lane *lane = seat_wait(waiter, &row); lane != NULL && waiter->graph;
         row++, lane = seat_wait(waiter, &row)) {
      const struct seat *seat = crew_seat(crew, lane->peer);
      if (seat == NULL || !has_not_launched(seat, waiter) || !is_free(crew, seat)) continue;
      tell_not_launched(crew, seat, waiter, lane);
      return true;
    }
  }
  return false;
}
