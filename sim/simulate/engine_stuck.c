/* engine_stuck.c: which lane waits for which when a run makes no progress. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "simulate/engine_impl.h"

static const char *const want_words[] = {
    "", "data", "a free slot", "the address of the input", "a step", "a free connection", "a transfer"};

/* The lane that could let a stuck one continue; SIM_NONE if its rank has no more to do there. */
static uint32_t stuck_behind(const struct engine *engine, uint32_t index, uint32_t *peer) {
  const struct engine_lane *lane = &engine->lanes[index];
  const struct sim_net *net = engine->net;
  *peer = net->lanes[index].rank;
  if (lane->want == WANT_LIST || lane->want == WANT_TURN) return lane->want_of;
  if (lane->want == WANT_TRANSFER || lane->want == WANT_NOTHING) return SIM_NONE;
  const struct sim_conn *conn = &net->conns[lane->want_of];
  const bool data = lane->want != WANT_SLOT;
  *peer = data ? conn->sender : conn->receiver;
  for (uint32_t i = 0; i < net->lane_count; i++) {
    if (engine->lanes[i].phase == PHASE_ENDED) continue;
    const struct work *work = net->lanes[i].work;
    const uint32_t first = data ? work->recv_count : 0,
                   last = data ? first + work->send_count : work->recv_count;
    for (uint32_t k = first; k < last; k++)
      if (engine->lanes[i].links[k] == lane->want_of) return i;
  }
  return SIM_NONE;
}

/* Whether the connection's links carry nothing; stores the link in `link`. */
static bool conn_is_dead(const struct engine *engine, uint32_t index, char *link, size_t link_bytes) {
  struct cluster_route route;
  if (engine->conns[index].gbps > 0) return false;
  cluster_route_find(engine->cluster, &engine->net->conns[index], &route);
  for (uint32_t i = 0; i < route.link_count; i++)
    if (engine->cluster->link_gbps[route.links[i]] <= 0)
      cluster_link_name(engine->cluster, route.links[i], link, link_bytes);
  return true;
}

#define stuck_say(engine, ...) text_append((engine)->report->text, sizeof(engine)->report->text, __VA_ARGS__)

static void stuck_say_lane(struct engine *engine, uint32_t index) {
  const struct engine_lane *lane = &engine->lanes[index];
  uint32_t peer;
  stuck_behind(engine, index, &peer);
  stuck_say(engine, "rank %u channel %u step %" PRIu64 " waits for %s %s rank %u",
            engine->net->lanes[index].rank, engine->net->lanes[index].work->channel_index,
            lane->executor.run.steps_done, want_words[lane->want], lane->want == WANT_DATA ? "from" : "of",
            peer);
}

/* A lane on the cycle, or at the end of the chain: after as many hops as there are lanes. */
static uint32_t stuck_root(const struct engine *engine, uint32_t index) {
  char link[64];
  uint32_t peer;
  for (uint32_t hops = 0; hops < engine->net->lane_count; hops++) {
    const struct engine_lane *lane = &engine->lanes[index];
    const uint32_t next = stuck_behind(engine, index, &peer);
    if (next == SIM_NONE || engine->lanes[next].want == WANT_NOTHING) return index;
    if (lane->want <= WANT_SLOT && conn_is_dead(engine, lane->want_of, link, sizeof link)) return index;
    index = next;
  }
  return index;
}

/* Reports to the supply, which knows what the lanes run, and to the drawing. */
static void stuck_print(struct engine *engine) {
  for (uint32_t i = 0; i < engine->net->lane_count; i++) {
    const struct engine_lane *lane = &engine->lanes[i];
    struct engine_stuck stuck = {i, 0, want_words[lane->want], "", lane->now_ps};
    char link[64] = "";
    if (lane->phase == PHASE_ENDED || lane->want == WANT_NOTHING) continue;
    stuck_behind(engine, i, &stuck.peer);
    if (lane->want <= WANT_SLOT) conn_is_dead(engine, lane->want_of, link, sizeof link);
    stuck.link = link;
    if (engine->tracks) engine->request->supply->stuck(engine->request->supply->context, &stuck);
    if (engine->request->on_stuck) engine->request->on_stuck(engine->request->context, &stuck);
  }
}

void engine_stuck_report(struct engine *engine) {
  enum { SHOWN = 6 };
  char link[64] = "";
  uint32_t index = 0, peer, length = 0;
  engine->report->stalled = true;
  if (engine->tracks || engine->request->on_stuck) stuck_print(engine);
  if (engine->tracks) return;
  while (index < engine->net->lane_count && engine->lanes[index].want == WANT_NOTHING) index += 1;
  stuck_say(engine, "%u of %u lanes never end: ", engine->net->lane_count - engine->ended,
            engine->net->lane_count);
  if (index == engine->net->lane_count) return;
  const uint32_t root = stuck_root(engine, index);
  const struct engine_lane *lane = &engine->lanes[root];
  uint32_t next = stuck_behind(engine, root, &peer);
  stuck_say_lane(engine, root);
  if (lane->want <= WANT_SLOT && conn_is_dead(engine, lane->want_of, link, sizeof link)) {
    stuck_say(engine, ", over %s, which carries nothing", link);
    return;
  }
  if (next == SIM_NONE) {
    stuck_say(engine, ", which has no more steps on this connection");
    return;
  }
  for (length = 1; next != SIM_NONE && next != root && length <= engine->net->lane_count; length++) {
    if (length < SHOWN) stuck_say(engine, "; ");
    if (length < SHOWN) stuck_say_lane(engine, next);
    next = stuck_behind(engine, next, &peer);
  }
  if (next == root)
    stuck_say(engine, "%s: a cycle of %u lanes that wait for each other with %u slots",
              length > SHOWN ? "; ..." : "", length, engine->slots);
}
