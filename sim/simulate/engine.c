/* engine.c: see engine.h. The library's executor runs the lanes (steps/executor.h); this file keeps times, in
 * whole picoseconds. A lane's slice takes the lane's own cost, and its bytes the time of the slowest of lane
 * and links; over a network a proxy sends it on from there. */
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "simulate/demand.h"
#include "simulate/engine_impl.h"

/* A step of LL or LL128 is passed on in pieces, like its lines: as many, a power of two, as have at least
 * this many bytes. */
enum { PIECES_MAX = 16, PIECE_BYTES = 4096 };
enum { TURNS_TOLD = 1 << 14 }; /* of lanes and events */
static uint64_t us_to_ps(double us) { return (uint64_t)(us * 1e6 + 0.5); }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void lane_push(struct engine *engine, uint32_t index) {
  struct engine_lane *lane = &engine->lanes[index];
  if (lane->queued) return;
  lane->queued = true;
  uint32_t at = engine->ready_head + engine->ready_count++;
  if (at >= engine->net->lane_count) at -= engine->net->lane_count;
  engine->ready[at] = index;
}

static void wake(struct engine *engine, uint32_t *waiting) {
  if (*waiting == SIM_NONE) return;
  lane_push(engine, *waiting);
  *waiting = SIM_NONE;
}

/* ---- connections ---- */

static void conn_announce(struct engine *engine, struct conn *conn, uint32_t steps, uint64_t at_ps) {
  for (uint32_t i = 0; i < steps; i++) conn->data_at[(conn->announced + i) & conn->mask] = at_ps;
  conn->announced += steps;
  wake(engine, &conn->waiting_receiver);
}

/* Doubles the ring, which has the times of the last steps before `count`. */
static void ring_grow(struct engine *engine, struct ring *ring, uint64_t count) {
  const uint32_t mask = 2 * ring->mask + 1;
  uint64_t *at = (uint64_t *)os_alloc((mask + (size_t)1) * sizeof *at);
  engine->failed = engine->failed || !at;
  if (!at) return;
  for (uint64_t step = count > ring->mask ? count - ring->mask - 1 : 0; step < count; step++)
    at[step & mask] = ring->at[step & ring->mask];
  if (ring->grown) os_free(ring->at);
  *ring = (struct ring){at, mask, true};
}

/* Adds steps to the `count` that the ring has had; the times of those from `first` on are needed. */
static void ring_add(struct engine *engine, struct ring *ring, uint64_t first, uint64_t count, uint32_t steps,
                     uint64_t at_ps) {
  while (count + steps - first > ring->mask + (uint64_t)1 && !engine->failed) ring_grow(engine, ring, count);
  for (uint32_t i = 0; i < steps; i++) ring->at[(count + i) & ring->mask] = at_ps;
}

static uint64_t before_by(uint64_t step, uint32_t slots) { return step > slots ? step - slots : 0; }

static void conn_free(struct engine *engine, struct conn *conn, uint32_t steps, uint64_t at_ps) {
  ring_add(engine, &conn->free_at, before_by(conn->send_step, conn->slots), conn->freed, steps, at_ps);
  conn->freed += steps;
  wake(engine, &conn->waiting_sender);
}

/* The message at `sent` is done. */
static void network_arrive(struct engine *engine, struct conn *conn, struct network *network,
                           uint64_t end_ps) {
  const uint32_t steps = network->steps[network->sent & conn->mask];
  network->sent += steps;
  network->end_ps = end_ps;
  network->under_way = false;
  if (engine->request->see_message && network->bytes[(network->sent - steps) & conn->mask] > 0) {
    const struct engine_message message = {(uint32_t)(conn - engine->conns), network->begin_ps, end_ps,
                                           network->bytes[(network->sent - steps) & conn->mask]};
    engine->request->see_message(engine->request->context, &message);
  }
  engine->report->message_count += network->sent % conn->pieces == 0;
  conn_announce(engine, conn, steps, end_ps + network->flight_ps + network->proxy_ps + conn->post_ps);
  conn_free(engine, conn, steps, end_ps + network->flight_ps + conn->post_ps);
}

/* Sends what is filled and has a slot at the receiver: at once if the links are not shared, else as an event.
 */
static void network_go(struct engine *engine, uint32_t index) {
  struct conn *conn = &engine->conns[index];
  struct network *network = &engine->networks[conn->network];
  while (!network->under_way && network->sent < network->filled) {
    const uint32_t at = network->sent & conn->mask, steps = network->steps[at];
    const uint64_t last = network->sent + steps;
    if (conn->gbps <= 0 || last > network->taken + conn->slots) return;
    const uint64_t gap_ps = network->sent > 0 && network->sent % conn->pieces == 0 ? network->gap_ps : 0;
    uint64_t begin_ps = later(network->filled_at[at], network->end_ps + gap_ps);
    if (last > conn->slots)
      begin_ps = later(begin_ps, network->slot_at.at[(last - 1 - conn->slots) & network->slot_at.mask]);
    if (network->sent % conn->pieces == 0) begin_ps += network->message_ps;
    network->under_way = true;
    network->begin_ps = begin_ps;
    if (!flow_is_private(&engine->flows, index)) {
      queue_set(&engine->queue, index, begin_ps);
      return;
    }
    network_arrive(engine, conn, network,
                   begin_ps + (uint64_t)((double)network->bytes[at] * conn->ps_a_byte + 0.5));
  }
}

static void network_fill(struct engine *engine, uint32_t index, uint32_t steps, uint64_t bytes,
                         uint64_t end_ps) {
  const struct conn *conn = &engine->conns[index];
  struct network *network = &engine->networks[conn->network];
  const uint32_t at = network->filled & conn->mask;
  network->filled_at[at] = end_ps + network->proxy_ps;
  network->bytes[at] = bytes;
  network->steps[at] = (uint8_t)steps;
  network->filled += steps;
  network_go(engine, index);
}

static void network_take(struct engine *engine, uint32_t index, uint32_t steps, uint64_t end_ps) {
  const struct conn *conn = &engine->conns[index];
  struct network *network = &engine->networks[conn->network];
  ring_add(engine, &network->slot_at, before_by(network->sent, conn->slots), network->taken, steps,
           end_ps + network->proxy_ps + network->flight_ps);
  network->taken += steps;
  network_go(engine, index);
}

/* ---- what a lane knows and posts: the machine of its executor ---- */

static struct engine_lane *lane_now(struct engine *engine) {
  return (struct engine_lane *)(void *)engine->prim.lane; /* its first member */
}

static uint32_t lane_number(const struct engine *engine, const struct engine_lane *lane) {
  return (uint32_t)(lane - engine->lanes);
}

static const struct work *lane_work(const struct engine_lane *lane) { return lane->executor.run.work; }

static uint32_t lane_conn(const struct engine_lane *lane, uint32_t link, bool sends) {
  return lane->links[sends ? lane_work(lane)->recv_count + link : link];
}

static void lane_wait(struct engine_lane *lane, uint32_t of, enum want want) {
  lane->want = (uint8_t)want;
  lane->want_of = of;
}

/* The next slice begins at this time or later. */
static void lane_await(struct engine_lane *lane, uint64_t at_ps) {
  lane->ready_ps = later(lane->ready_ps, at_ps);
}

/* In pieces of steps; false if the lane must wait for them. */
static bool pieces_have_come(struct engine *engine, uint32_t link, bool sends, uint64_t need) {
  struct engine_lane *lane = lane_now(engine);
  const uint32_t index = lane_conn(lane, link, sends);
  const struct conn *conn = &engine->conns[index];
  if ((sends ? conn->freed : conn->announced) < need) {
    lane_wait(lane, index, sends ? WANT_SLOT : WANT_DATA);
    return false;
  }
  if (need > 0)
    lane_await(lane, sends ? conn->free_at.at[(need - 1) & conn->free_at.mask]
                           : conn->data_at[(need - 1) & conn->mask]);
  return true;
}

static uint64_t machine_load(void *context, uint32_t link, bool sends, uint64_t need) {
  struct engine *engine = (struct engine *)context;
  const struct conn *conn = &engine->conns[lane_conn(lane_now(engine), link, sends)];
  if (pieces_have_come(engine, link, sends, need * conn->pieces)) return need;
  return (sends ? conn->freed : conn->announced) / conn->pieces;
}

static bool machine_lines(void *context, uint32_t link, uint64_t step) {
  struct engine *engine = (struct engine *)context;
  const struct engine_lane *lane = lane_now(engine);
  const struct sim_slice *slice = &lane->executor.slice;
  const uint32_t pieces = engine->conns[lane_conn(lane, link, false)].pieces;
  return pieces_have_come(engine, link, false, step * pieces + (slice->piece + 1) * (pieces / slice->pieces));
}

static void machine_shown(void *context, uint32_t link, bool known) {
  struct engine *engine = (struct engine *)context;
  struct engine_lane *lane = lane_now(engine);
  const uint32_t index = lane_conn(lane, link, false);
  if (known) lane_await(lane, engine->conns[index].shown_ps);
  else lane_wait(lane, index, WANT_INPUT);
}

static void machine_show(void *context, uint32_t link) {
  struct engine *engine = (struct engine *)context;
  const struct engine_lane *lane = lane_now(engine);
  struct conn *conn = &engine->conns[lane_conn(lane, link, true)];
  conn->shown_ps = lane->now_ps + conn->post_ps;
  wake(engine, &conn->waiting_receiver);
}

/* Lists run in the order of time, so what has ended is known by now. */
static uint64_t machine_list(void *context, uint32_t number) {
  struct engine *engine = (struct engine *)context;
  struct engine_lane *lane = lane_now(engine);
  const uint32_t rank = engine->net->lanes[lane_number(engine, lane)].rank;
  const uint32_t other = sim_net_list(engine->net, rank, number);
  const uint64_t steps = engine->progress[(size_t)rank * LIST_LANES_MAX + number];
  const struct step *step = &lane->executor.run.step;
  if (steps >= lane->executor.run.progress_begin + step->wait_count) {
    lane->now_ps = later(lane->now_ps, engine->now_ps);
    lane_await(lane, lane->now_ps);
  } else {
    lane_wait(lane, other, WANT_LIST);
  }
  return steps;
}

/* Passes on steps up to `step`, in pieces, with so many bytes. */
static void conn_pass(struct engine *engine, uint32_t index, bool sends, uint64_t step, uint64_t bytes,
                      uint64_t at_ps) {
  struct conn *conn = &engine->conns[index];
  uint64_t *passed = sends ? &conn->send_step : &conn->recv_step;
  if (step <= *passed) return; /* another link of the lane is the same */
  const uint32_t steps = (uint32_t)(step - *passed);
  *passed = step;
  if (conn->network == SIM_NONE && sends) conn_announce(engine, conn, steps, at_ps + conn->post_ps);
  else if (conn->network == SIM_NONE) conn_free(engine, conn, steps, at_ps + conn->post_ps);
  else if (sends) network_fill(engine, index, steps, bytes, at_ps);
  else network_take(engine, index, steps, at_ps);
}

static void machine_store(void *context, uint32_t link, bool sends, uint64_t step) {
  struct engine *engine = (struct engine *)context;
  const struct engine_lane *lane = lane_now(engine);
  const uint32_t index = lane_conn(lane, link, sends);
  const uint64_t bytes = sends ? lane->executor.slice.moves[lane_work(lane)->recv_count + link].held : 0;
  conn_pass(engine, index, sends, step * engine->conns[index].pieces, bytes, engine->end_ps);
}

static void list_report(struct engine *engine, struct engine_lane *lane) {
  for (uint32_t waiter = lane->first_waiter; waiter != 0;) {
    const struct engine_lane *waits = &engine->lanes[waiter - 1];
    lane_push(engine, waiter - 1);
    waiter = waits->next_waiter;
  }
  lane->first_waiter = 0;
}

static void machine_report(void *context, uint64_t step_count) {
  struct engine *engine = (struct engine *)context;
  struct engine_lane *lane = lane_now(engine);
  const uint32_t rank = engine->net->lanes[lane_number(engine, lane)].rank;
  engine->progress[(size_t)rank * LIST_LANES_MAX + lane_work(lane)->role] = step_count;
  list_report(engine, lane);
}

static uint32_t pieces_of(uint64_t bytes) {
  uint32_t pieces = 1;
  while (pieces < PIECES_MAX && bytes >= 2ull * pieces * PIECE_BYTES) pieces *= 2;
  return pieces;
}

static const struct executor_machine machine = {.load = machine_load,
                                                .lines = machine_lines,
                                                .shown = machine_shown,
                                                .list = machine_list,
                                                .store = machine_store,
                                                .show = machine_show,
                                                .report = machine_report,
                                                .pieces = pieces_of};

/* ---- a lane's slices ---- */

/* False, and the lane waits, while another lane uses one of its ends of connections. */
static bool lane_bind(struct engine *engine, struct engine_lane *lane, const struct work *work) {
  const uint32_t self = lane_number(engine, lane), links = (uint32_t)work->recv_count + work->send_count;
  for (uint32_t i = 0; i < links; i++) {
    const struct conn *conn = &engine->conns[lane->links[i]];
    const uint32_t user = i >= work->recv_count ? conn->send_lane : conn->recv_lane;
    if (user == SIM_NONE) continue;
    lane_wait(lane, user, WANT_TURN);
    return false;
  }
  for (uint32_t i = 0; i < links; i++) {
    struct conn *conn = &engine->conns[lane->links[i]];
    *(i >= work->recv_count ? &conn->send_lane : &conn->recv_lane) = self;
  }
  return true;
}

/* Both ends round their counters up to a whole chunk; the skipped steps are passed from one to the other. */
static bool lane_begin(struct engine *engine, struct engine_lane *lane) {
  const struct sim_lane *place = &engine->net->lanes[lane_number(engine, lane)];
  const struct work *work = place->work;
  if (!lane_bind(engine, lane, work)) return false;
  struct executor_work made = {.work = work,
                               .limits = &engine->net->plans[place->rank].limits,
                               .conns = lane->links,
                               .links = &engine->links[place->first_link],
                               .stores_in_outputs = lane->stores_in_outputs};
  for (uint32_t i = 0; i < work->send_count; i++)
    made.shows |= (link_set)(engine->conns[lane->links[work->recv_count + i]].network == SIM_NONE) << i;
  engine->prim.progress = engine->progress ? engine->progress + (size_t)place->rank * LIST_LANES_MAX : NULL;
  engine->end_ps = lane->ready_ps = lane->now_ps;
  lane->executor.run.work = work;
  lane->executor.slice.moves = &engine->moves[place->first_link];
  executor_open(&engine->prim, &lane->executor, &made);
  for (uint32_t i = 0; i < work->send_count; i++) {
    const uint32_t index = lane->links[work->recv_count + i];
    const uint64_t step = lane->executor.run.send[i].step * engine->conns[index].pieces;
    conn_pass(engine, index, true, step, 0, lane->now_ps);
  }
  return true;
}

/* The links over which the slice moves data without a network, one for each connection. */
static link_set slice_links(const struct engine *engine, const struct engine_lane *lane, bool sends) {
  const struct sim_slice *slice = &lane->executor.slice;
  link_set links = sends ? slice->sends & lane->send_own : slice->reads & lane->recv_own, near = 0;
  for (; links != 0; links &= links - 1) {
    const uint32_t link = (uint32_t)__builtin_ctzll(links);
    near |= (link_set)(engine->conns[lane_conn(lane, link, sends)].network == SIM_NONE) << link;
  }
  return near;
}

static uint64_t slice_link_bytes(const struct engine_lane *lane, uint32_t link, bool sends) {
  return lane->executor.slice.moves[sends ? lane_work(lane)->recv_count + link : link].moved;
}

/* Passes on a group of lines: they need no post. */
static void lines_pass(struct engine *engine, const struct engine_lane *lane, uint64_t end_ps) {
  const struct sim_slice *slice = &lane->executor.slice;
  for (link_set links = slice->send_links; links != 0; links &= links - 1) {
    const uint32_t link = (uint32_t)__builtin_ctzll(links), index = lane_conn(lane, link, true);
    const uint32_t pieces = engine->conns[index].pieces;
    conn_pass(engine, index, true,
              lane->executor.run.send[link].step * pieces + (slice->piece + 1) * (pieces / slice->pieces),
              slice_link_bytes(lane, link, true), end_ps);
  }
}

static void slice_end(struct engine *engine, struct engine_lane *lane, uint64_t end_ps) {
  const struct sim_slice *slice = &lane->executor.slice;
  const bool lines = lane_work(lane)->proto != PROTO_SIMPLE, last = slice->piece + 1 == slice->pieces;
  if (engine->request->hear) {
    const struct engine_span span = {lane_number(engine, lane), lane->now_ps, lane->begin_ps, end_ps, slice};
    engine->request->hear(engine->request->context, &span);
  }
  engine->end_ps = end_ps;
  lane->now_ps = end_ps;
  lane_await(lane, end_ps);
  if (lines) lines_pass(engine, lane, end_ps);
  else executor_move(&engine->prim, &lane->executor, LANE_FINISH);
  if (!last) return;
  engine->report->slice_count += 1;
  for (link_set links = slice->announces & lane->send_own; links != 0; links &= links - 1) {
    const uint32_t index = lane_conn(lane, (uint32_t)__builtin_ctzll(links), true);
    engine->report->message_count += engine->conns[index].network == SIM_NONE;
  }
  executor_move(&engine->prim, &lane->executor, LANE_POST);
}

/* The lane's time for a slice of any size. */
static uint64_t slice_fixed_ps(const struct engine_lane *lane) {
  const struct sim_slice *slice = &lane->executor.slice;
  if (slice->piece > 0) return 0;
  const uint32_t sides = (slice->recv_links != 0) + (slice->send_links != 0);
  return lane->slice_ps + sides * lane->side_ps + (slice->bytes > 0 && slice->copies > 0 ? lane->move_ps : 0);
}

/* The lane's own time for a slice. */
static uint64_t slice_ps(const struct engine_lane *lane) {
  const struct sim_slice *slice = &lane->executor.slice;
  return slice_fixed_ps(lane) + (uint64_t)((double)slice->bytes * slice->copies * lane->ps_a_byte + 0.5);
}

/* Ends the slice at once: its links are not shared. */
static void slice_move(struct engine *engine, struct engine_lane *lane) {
  uint64_t links_ps = 0;
  for (int sends = 0; sends < 2; sends++)
    for (link_set links = slice_links(engine, lane, sends); links != 0; links &= links - 1) {
      const uint32_t link = (uint32_t)__builtin_ctzll(links);
      const double ps_a_byte = engine->conns[lane_conn(lane, link, sends)].ps_a_byte;
      const double bytes = (double)slice_link_bytes(lane, link, sends);
      links_ps = later(links_ps, (uint64_t)(bytes * ps_a_byte + 0.5) + slice_fixed_ps(lane));
    }
  slice_end(engine, lane, lane->begin_ps + later(slice_ps(lane), links_ps));
}

/* The flow of the transfers of a connection's sender, or of a receiver that reads; SIM_NONE: there is none.
 */
static uint32_t flow_of(const struct engine *engine, uint32_t conn, bool sends) {
  if (engine->conns[conn].network != SIM_NONE) return SIM_NONE;
  if (sends) return conn;
  return engine->flow_count > engine->net->conn_count ? engine->net->conn_count + conn : SIM_NONE;
}

/* Shared links of the slice: their transfers are events. */
static bool slice_is_shared(const struct engine *engine, const struct engine_lane *lane) {
  if (!lane->shares) return false;
  if (lane_work(lane)->algo == ALGO_CUSTOM) return true;
  for (int sends = 0; sends < 2; sends++)
    for (link_set links = slice_links(engine, lane, sends); links != 0; links &= links - 1) {
      const uint32_t index = lane_conn(lane, (uint32_t)__builtin_ctzll(links), sends);
      if (!flow_is_private(&engine->flows, flow_of(engine, index, sends))) return true;
    }
  return false;
}

static void kernels_begin(struct engine *engine);

/* The block's remaining lanes begin when those of the previous batch have ended. */
static void block_go_on(struct engine *engine, uint32_t number) {
  const struct sim_block *place = &engine->net->blocks[number];
  struct block *block = &engine->blocks[number];
  uint64_t end_ps = 0;
  for (uint32_t i = place->first_lane; i < place->first_lane + place->lane_count; i++)
    if (engine->net->lanes[i].batch == block->batch) end_ps = later(end_ps, engine->lanes[i].now_ps);
  block->batch += 1;
  for (uint32_t i = place->first_lane; i < place->first_lane + place->lane_count; i++) {
    if (engine->net->lanes[i].batch != block->batch) continue;
    engine->lanes[i].now_ps = later(engine->lanes[i].now_ps, end_ps);
    block->running += 1;
    lane_push(engine, i);
  }
}

static void lane_end(struct engine *engine, struct engine_lane *lane) {
  const uint32_t index = lane_number(engine, lane), number = engine->net->lanes[index].block;
  const struct work *work = lane_work(lane);
  for (uint32_t i = 0; i < (uint32_t)work->recv_count + work->send_count; i++) {
    struct conn *conn = &engine->conns[lane->links[i]];
    *(i >= work->recv_count ? &conn->send_lane : &conn->recv_lane) = SIM_NONE;
  }
  lane->now_ps = lane->ready_ps;
  lane->phase = PHASE_ENDED;
  engine->ended += 1;
  engine->report->end_ps = later(engine->report->end_ps, lane->now_ps);
  list_report(engine, lane);
  if (--engine->blocks[number].running == 0) block_go_on(engine, number);
  if (!engine->tracks) return;
  const uint32_t index_of_track = engine->net->blocks[number].track;
  struct track *track = &engine->tracks[index_of_track];
  track->end_ps = later(track->end_ps, lane->now_ps);
  if (--track->running > 0) return;
  engine->request->supply->ended(engine->request->supply->context, index_of_track, track->end_ps);
  kernels_begin(engine);
}

/* Puts the lane aside until what it waits for has come. */
static void lane_put_aside(struct engine *engine, struct engine_lane *lane) {
  const uint32_t self = lane_number(engine, lane);
  if (lane->want == WANT_SLOT) {
    engine->conns[lane->want_of].waiting_sender = self;
  } else if (lane->want == WANT_DATA || lane->want == WANT_INPUT) {
    engine->conns[lane->want_of].waiting_receiver = self;
  } else if (lane->want_of != SIM_NONE) {
    lane->next_waiter = engine->lanes[lane->want_of].first_waiter;
    engine->lanes[lane->want_of].first_waiter = self + 1;
  }
}

/* Runs the lane as far as it can go now. */
static void lane_go(struct engine *engine, struct engine_lane *lane) {
  if (lane->phase == PHASE_ENDED || lane->want == WANT_TRANSFER) return;
  lane->want = WANT_NOTHING;
  if (lane->phase == PHASE_WAITS && lane_begin(engine, lane)) lane->phase = PHASE_RUNS;
  while (lane->phase == PHASE_RUNS) {
    const uint32_t action = executor_action(&engine->prim, &lane->executor);
    if (action == 0) break;
    lane->want = WANT_NOTHING;
    executor_move(&engine->prim, &lane->executor, action);
    if (action == LANE_END) {
      lane_end(engine, lane);
      return;
    }
    if (action != LANE_BEGIN && action != LANE_LL) continue;
    lane->begin_ps = lane->ready_ps;
    if (slice_is_shared(engine, lane)) {
      lane->want = WANT_TRANSFER;
      queue_set(&engine->queue, engine->flow_count + lane_number(engine, lane),
                lane->begin_ps + slice_fixed_ps(lane));
      return;
    }
    slice_move(engine, lane);
  }
  lane_put_aside(engine, lane);
}

/* ---- events ---- */

static void transfer_begin(struct engine *engine, uint32_t flow, uint32_t conn, uint64_t bytes) {
  const double wire = engine->conns[conn].wire, gbps = engine->conns[conn].gbps;
  const uint64_t end_ps = flow_begin(&engine->flows, flow, (double)bytes * wire, gbps, engine->now_ps);
  if (end_ps != UINT64_MAX) queue_set(&engine->queue, flow, end_ps);
}

/* Everything is moved: what is left is the lane's own part. */
static void transfers_end(struct engine *engine, struct engine_lane *lane) {
  lane->transfers = SIM_NONE;
  queue_set(&engine->queue, engine->flow_count + lane_number(engine, lane),
            later(engine->now_ps, lane->begin_ps + slice_ps(lane)));
}

/* The lane's own part of the slice is over, or its transfers begin. */
static void lane_event(struct engine *engine, struct engine_lane *lane) {
  if (lane->transfers == SIM_NONE) {
    lane->transfers = 0;
    lane->want = WANT_NOTHING;
    slice_end(engine, lane, engine->now_ps);
    lane_push(engine, lane_number(engine, lane));
    return;
  }
  for (int sends = 0; sends < 2; sends++)
    for (link_set links = slice_links(engine, lane, sends); links != 0; links &= links - 1) {
      const uint32_t link = (uint32_t)__builtin_ctzll(links), index = lane_conn(lane, link, sends);
      const uint32_t flow = flow_of(engine, index, sends);
      if (flow_is_private(&engine->flows, flow)) continue;
      engine->movers[flow] = lane_number(engine, lane);
      lane->transfers += 1;
      transfer_begin(engine, flow, index, slice_link_bytes(lane, link, sends));
    }
  if (lane->transfers == 0) transfers_end(engine, lane);
}

static void flow_event(struct engine *engine, uint32_t flow) {
  const uint32_t index = flow < engine->net->conn_count ? flow : flow - engine->net->conn_count;
  struct conn *conn = &engine->conns[index];
  struct network *network = conn->network == SIM_NONE ? NULL : &engine->networks[conn->network];
  if (network && !engine->flows.flows[flow].active) {
    transfer_begin(engine, flow, index, network->bytes[network->sent & conn->mask]);
    return;
  }
  flow_end(&engine->flows, flow);
  if (network) {
    network_arrive(engine, conn, network, engine->now_ps);
    network_go(engine, index);
    return;
  }
  struct engine_lane *lane = &engine->lanes[engine->movers[flow]];
  if (--lane->transfers == 0) transfers_end(engine, lane);
}

static void flow_told(void *context, uint32_t conn, uint64_t end_ps) {
  struct engine *engine = (struct engine *)context;
  if (end_ps == UINT64_MAX) queue_remove(&engine->queue, conn);
  else queue_set(&engine->queue, conn, end_ps);
}

static void turn_count(struct engine *engine) {
  if (++engine->turns % TURNS_TOLD == 0 && engine->request->tell)
    engine->request->tell(engine->request->report_context, engine->report->slice_count);
}

static void lanes_run(struct engine *engine) {
  while (engine->ready_count > 0) {
    const uint32_t index = engine->ready[engine->ready_head];
    engine->ready_head = engine->ready_head + 1 == engine->net->lane_count ? 0 : engine->ready_head + 1;
    engine->ready_count -= 1;
    engine->lanes[index].queued = false;
    lane_go(engine, &engine->lanes[index]);
    turn_count(engine);
  }
}

static void engine_go(struct engine *engine) {
  struct queue *queue = &engine->queue;
  for (;;) {
    lanes_run(engine);
    if (queue->count == 0 || queue->items[0].time_ps > engine->now_ps)
      flow_settle(&engine->flows, engine->now_ps, flow_told, engine);
    if (queue->count == 0) return;
    const struct queue_item item = queue->items[0];
    queue_remove(queue, item.number);
    engine->now_ps = later(engine->now_ps, item.time_ps);
    engine->report->event_count += 1;
    turn_count(engine);
    if (item.number < engine->flow_count) flow_event(engine, item.number);
    else lane_event(engine, &engine->lanes[item.number - engine->flow_count]);
  }
}

/* ---- making ---- */

/* Of these links those whose connection is not that of an earlier one. */
static link_set links_own(const uint32_t *links, uint32_t count) {
  link_set own = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t k = 0;
    while (links[k] != links[i]) k += 1;
    own |= (link_set)(k == i) << i;
  }
  return own;
}

static void lane_make(struct engine *engine, uint32_t index, uint64_t begin_ps) {
  const struct cluster_costs *costs = &engine->cluster->costs;
  const struct sim_lane *place = &engine->net->lanes[index];
  const double slow = engine->cluster->rank_slow[place->rank];
  const uint8_t proto = place->work->proto;
  struct engine_lane *lane = &engine->lanes[index];
  lane->links = &engine->net->links[place->first_link];
  lane->recv_own = links_own(lane->links, place->work->recv_count);
  lane->send_own = links_own(lane->links + place->work->recv_count, place->work->send_count);
  lane->now_ps = begin_ps + us_to_ps(place->work->func >= FUNC_SEND_RECV ? costs->message_launch_us
                                                                         : costs->launch_us[proto]);
  lane->slice_ps = us_to_ps(costs->slice_us[proto] * slow);
  lane->move_ps = us_to_ps(costs->move_us[proto] * slow);
  lane->side_ps = us_to_ps(costs->side_us * slow);
  lane->ps_a_byte = 1e3 * slow / costs->lane_gbps[proto];
  lane->stores_in_outputs = costs->zero_copy != 0;
  engine->blocks[place->block].running += place->batch == 0;
  if (place->batch == 0) lane_push(engine, index);
}

/* Whether its slices can share a link with others. */
static void lane_share(struct engine *engine, uint32_t number) {
  struct engine_lane *lane = &engine->lanes[number];
  const struct work *work = engine->net->lanes[number].work;
  lane->shares = work->algo == ALGO_CUSTOM;
  for (uint32_t i = 0; i < (uint32_t)work->recv_count + work->send_count; i++) {
    const uint32_t flow = flow_of(engine, lane->links[i], i >= work->recv_count);
    lane->shares = lane->shares || (flow != SIM_NONE && !flow_is_private(&engine->flows, flow));
  }
}

/* Begins all kernels that the supply has ready, in the rows of kernels that have ended. */
static void kernels_begin(struct engine *engine) {
  const struct engine_supply *supply = engine->request->supply;
  struct engine_kernel kernel;
  while (supply->next(supply->context, &kernel)) {
    struct track *track = &engine->tracks[kernel.track];
    track->running = kernel.lane_count;
    track->end_ps = kernel.begin_ps;
    memset(&engine->blocks[kernel.first_block], 0, kernel.block_count * sizeof *engine->blocks);
    for (uint32_t i = kernel.first_lane; i < kernel.first_lane + kernel.lane_count; i++) {
      struct engine_lane *lane = &engine->lanes[i];
      const bool queued = lane->queued;
      memset(lane, 0, sizeof *lane);
      lane->queued = queued;
      lane_make(engine, i, kernel.begin_ps);
      lane_share(engine, i);
    }
    engine->ended -= kernel.lane_count;
    if (kernel.lane_count == 0) supply->ended(supply->context, kernel.track, kernel.begin_ps);
  }
}

/* Costs of the connection. */
static void conn_make(struct engine *engine, uint32_t index, struct cluster_route *route) {
  const struct cluster_costs *costs = &engine->cluster->costs;
  const struct sim_conn *place = &engine->net->conns[index];
  const uint8_t proto = place->proto;
  struct conn *conn = &engine->conns[index];
  cluster_route_find(engine->cluster, place, route);
  conn->wire = cluster_wire(proto);
  conn->gbps = cluster_most_gbps(engine->cluster, route, proto, place->sender);
  conn->ps_a_byte = conn->gbps > 0 ? 1e3 * conn->wire / conn->gbps : 0;
  conn->post_ps = us_to_ps(costs->post_us[route->kind][proto]);
  if (!route->network) return;
  conn->network = engine->network_count++;
  struct network *network = &engine->networks[conn->network];
  network->proxy_ps = us_to_ps(costs->proxy_us);
  network->gap_ps = us_to_ps(costs->gap_us);
  network->message_ps = us_to_ps(costs->message_us);
  network->flight_ps = us_to_ps(route->flight_us);
}

/* The demand of connections on links; false when memory is out. */
static bool demand_find(const struct engine *engine, const struct cluster_route *routes, double *gbps) {
  struct demand demand;
  bool whole = demand_make(engine->cluster, &demand);
  for (uint32_t i = 0; whole && i < engine->net->conn_count; i++)
    whole = demand_add(&demand, &routes[i], engine->conns[i].gbps * (1 + engine->net->conns[i].shows));
  whole = whole && demand_sum(&demand, gbps);
  demand_free(&demand);
  return whole;
}

/* Which connections use which links, and so which are shared. A fold has left out links that are never full.
 */
static ncclResult_t flows_make(struct engine *engine) {
  const struct sim_net *net = engine->net;
  const struct fold *fold = engine->request->fold;
  const struct engine_supply *supply = engine->request->supply;
  double *demand = (double *)os_alloc((engine->cluster->link_count + (size_t)1) * sizeof *demand);
  struct flow_user *users = (struct flow_user *)os_alloc((engine->flow_count + (size_t)1) * sizeof *users);
  struct cluster_route *routes =
      (struct cluster_route *)os_alloc((net->conn_count + (size_t)1) * sizeof *routes);
  ncclResult_t result = ncclSuccess;
  if (!users || !routes || !demand) result = log_no_memory("%u routes", net->conn_count);
  for (uint32_t i = 0; result == ncclSuccess && i < net->conn_count; i++)
    if (net->conns[i].sends) conn_make(engine, i, &routes[i]);
  for (uint32_t i = 0; result == ncclSuccess && i < net->conn_count; i++) {
    users[i].links = fold ? &fold->links[fold->first_share[i]] : routes[i].links;
    users[i].times = fold ? &fold->users[fold->first_share[i]] : NULL;
    users[i].link_count = fold ? fold->first_share[i + 1] - fold->first_share[i] : routes[i].link_count;
    users[i].most_gbps = engine->conns[i].gbps;
  }
  for (uint32_t i = net->conn_count; result == ncclSuccess && i < engine->flow_count; i++)
    users[i] = users[i - net->conn_count];
  if (result == ncclSuccess && !supply && !fold && !demand_find(engine, routes, demand))
    result = log_no_memory("%u routes", net->conn_count);
  if (result == ncclSuccess)
    result = flow_set_make(engine->cluster->link_gbps,
                           supply ? supply->demand_gbps
                           : fold ? NULL
                                  : demand,
                           engine->cluster->link_count, users, engine->flow_count, &engine->flows);
  os_free(demand);
  os_free(users);
  os_free(routes);
  return result;
}

/* The most pieces that a step of the work is cut into. */
uint32_t engine_pieces(const struct work *work) {
  const bool short_ring = work->algo == ALGO_RING && work->func <= FUNC_ALL_REDUCE &&
                          (work->flags & WORK_FUSED) == 0 &&
                          work->part_count < work->chunk_count * algo_loop_chunks(work);
  const size_t count = short_ring ? work->last_chunk_count : work->chunk_count;
  return work->proto == PROTO_SIMPLE ? 1 : pieces_of(count * work->element_bytes);
}

/* The number of pieces per step on each connection, and so the length of its rings. Consecutive kernels may
 * round up by different chunks: by less than all slots beyond the free ones. */
static void pieces_find(struct engine *engine) {
  const struct sim_net *net = engine->net;
  const struct engine_supply *supply = engine->request->supply;
  for (uint32_t i = 0; i < net->conn_count; i++) engine->conns[i].pieces = supply ? supply->pieces[i] : 1;
  for (uint32_t i = 0; !supply && i < net->lane_count; i++) {
    const struct work *work = net->lanes[i].work;
    const uint32_t pieces = engine_pieces(work);
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      const uint32_t index = net->links[net->lanes[i].first_link + k];
      if (engine->conns[index].pieces < pieces) engine->conns[index].pieces = pieces;
    }
  }
  for (uint32_t i = 0; i < net->conn_count; i++) {
    struct conn *conn = &engine->conns[i];
    uint32_t places = 1;
    conn->slots = engine->slots * conn->pieces;
    while (places < (supply ? 2 : 1) * conn->slots) places *= 2;
    conn->mask = places - 1;
  }
}

static bool conn_is_remote(const struct engine *engine, uint32_t index) {
  const struct sim_conn *conn = &engine->net->conns[index];
  return conn->sender / engine->cluster->gpus != conn->receiver / engine->cluster->gpus;
}

/* Rings of times of connections and of their networks, in the order of conn_make(). */
static bool times_make(struct engine *engine) {
  const uint32_t conns = engine->net->conn_count;
  size_t places = 1, remote_places = 1;
  for (uint32_t i = 0; i < conns; i++) {
    const size_t ring = engine->conns[i].mask + (size_t)1;
    places += (conn_is_remote(engine, i) ? 5 : 2) * ring;
    remote_places += conn_is_remote(engine, i) ? ring : 0;
  }
  engine->times = (uint64_t *)os_alloc(places * sizeof(uint64_t));
  engine->steps = (uint8_t *)os_alloc(remote_places);
  if (!engine->times || !engine->steps) return false;
  uint64_t *times = engine->times;
  uint8_t *steps = engine->steps;
  for (uint32_t i = 0, remote = 0; i < conns; i++) {
    struct conn *conn = &engine->conns[i];
    const size_t ring = conn->mask + (size_t)1;
    conn->data_at = times;
    conn->free_at = (struct ring){times + ring, conn->mask, false};
    times += 2 * ring;
    if (!engine->net->conns[i].sends || !conn_is_remote(engine, i)) continue;
    engine->networks[remote++] = (struct network){.filled_at = times,
                                                  .slot_at = {times + ring, conn->mask, false},
                                                  .bytes = times + 2 * ring,
                                                  .steps = steps};
    times += 3 * ring;
    steps += ring;
  }
  return true;
}

/* Memory of lanes and connections. */
static bool engine_allocate(struct engine *engine) {
  const struct sim_net *net = engine->net;
  const size_t lanes = net->lane_count + (size_t)1, conns = net->conn_count + (size_t)1,
               links = net->link_count + (size_t)1;
  bool shows = false, lists = false;
  for (uint32_t i = 0; i < net->conn_count; i++) shows = shows || net->conns[i].shows;
  for (uint32_t i = 0; !engine->request->supply && i < net->lane_count; i++)
    lists = lists || net->lanes[i].work->algo == ALGO_CUSTOM;
  engine->flow_count = (shows ? 2 : 1) * net->conn_count;
  engine->lanes = (struct engine_lane *)os_alloc(lanes * sizeof *engine->lanes);
  engine->links = (struct link *)os_alloc(links * sizeof *engine->links);
  engine->moves = (struct sim_link *)os_alloc(links * sizeof *engine->moves);
  engine->words = (struct conn_words *)os_alloc(conns * sizeof *engine->words);
  engine->conns = (struct conn *)os_alloc(conns * sizeof *engine->conns);
  engine->movers = (uint32_t *)os_alloc((engine->flow_count + (size_t)1) * sizeof *engine->movers);
  engine->blocks = (struct block *)os_alloc((net->block_count + (size_t)1) * sizeof *engine->blocks);
  engine->ready = (uint32_t *)os_alloc(lanes * sizeof *engine->ready);
  if (lists)
    engine->progress =
        (uint64_t *)os_alloc((size_t)net->rank_count * LIST_LANES_MAX * sizeof *engine->progress);
  return engine->lanes && engine->links && engine->moves && engine->words && engine->conns &&
         engine->movers && engine->blocks && engine->ready && (engine->progress || !lists) &&
         queue_make(&engine->queue, engine->flow_count + net->lane_count);
}

static bool conns_allocate(struct engine *engine) {
  const struct sim_net *net = engine->net;
  uint32_t remote = 0;
  for (uint32_t i = 0; i < net->conn_count; i++) {
    struct conn *conn = &engine->conns[i];
    conn->waiting_sender = conn->waiting_receiver = conn->network = SIM_NONE;
    conn->send_lane = conn->recv_lane = SIM_NONE;
    remote += conn_is_remote(engine, i);
  }
  engine->networks = (struct network *)os_alloc((remote + (size_t)1) * sizeof *engine->networks);
  pieces_find(engine);
  return engine->networks && times_make(engine);
}

static ncclResult_t engine_make(struct engine *engine) {
  const struct sim_net *net = engine->net;
  engine->slots = net->rank_count > 0 ? net->plans[0].limits.slots : 1;
  if (!engine_allocate(engine) || !conns_allocate(engine))
    return log_no_memory("%u lanes and %u connections", net->lane_count, net->conn_count);
  engine->prim = (struct prim){.machine = &machine, .context = engine, .words = engine->words};
  TRY(flows_make(engine));
  if (engine->request->supply) {
    engine->tracks =
        (struct track *)os_alloc((engine->request->supply->track_count + (size_t)1) * sizeof *engine->tracks);
    if (!engine->tracks)
      return log_no_memory("the kernels of %u tracks", engine->request->supply->track_count);
    engine->ended = net->lane_count;
    for (uint32_t i = 0; i < net->lane_count; i++) engine->lanes[i].phase = PHASE_ENDED;
    kernels_begin(engine);
    return ncclSuccess;
  }
  for (uint32_t i = 0; i < net->lane_count; i++) {
    lane_make(engine, i, 0);
    lane_share(engine, i);
  }
  return ncclSuccess;
}

static void engine_free(struct engine *engine) {
  for (uint32_t i = 0; engine->times && i < engine->net->conn_count; i++) {
    const struct conn *conn = &engine->conns[i];
    if (conn->free_at.grown) os_free(conn->free_at.at);
    if (conn->network != SIM_NONE && engine->networks[conn->network].slot_at.grown)
      os_free(engine->networks[conn->network].slot_at.at);
  }
  os_free(engine->lanes);
  os_free(engine->links);
  os_free(engine->moves);
  os_free(engine->words);
  os_free(engine->progress);
  os_free(engine->conns);
  os_free(engine->movers);
  os_free(engine->networks);
  os_free(engine->times);
  os_free(engine->steps);
  os_free(engine->blocks);
  os_free(engine->tracks);
  os_free(engine->ready);
  queue_free(&engine->queue);
  flow_set_free(&engine->flows);
}

ncclResult_t engine_run(const struct engine_request *request, struct engine_report *report) {
  struct engine engine;
  memset(&engine, 0, sizeof engine);
  memset(report, 0, sizeof *report);
  engine.request = request;
  engine.net = request->net;
  engine.cluster = request->cluster;
  engine.report = report;
  ncclResult_t result = engine_make(&engine);
  if (result == ncclSuccess) engine_go(&engine);
  if (result == ncclSuccess && engine.ended < engine.net->lane_count) engine_stuck_report(&engine);
  if (result == ncclSuccess && engine.failed)
    result = log_no_memory("the times of %u connections", engine.net->conn_count);
  engine_free(&engine);
  return result;
}
