/* engine.c: see engine.h. Times are whole picoseconds. A lane's slice takes the lane's own cost, and its
 * bytes the time of the slowest of lane and links; over a network a proxy sends it on from there. */
#include "simulate/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/text.h"
#include "simulate/demand.h"
#include "simulate/flow.h"
#include "simulate/queue.h"

/* A step of LL or LL128 is passed on in pieces, like its lines: as many, a power of two, as have at least
 * this many bytes. */
enum { PIECES_MAX = 16, PIECE_BYTES = 4096 };
enum { TURNS_TOLD = 1 << 14 }; /* of lanes and events */
enum want { WANT_NOTHING, WANT_DATA, WANT_SLOT, WANT_LIST, WANT_TRANSFER };
enum phase { PHASE_WAITS, PHASE_RUNS, PHASE_ENDED };

struct lane {
  struct slice_iter iter;
  struct sim_slice slice;
  const uint32_t
      *links; /* connections: recv_count, then send_count; SIM_NONE: the same as another one (fold.h) */
  link_set recv_own, send_own; /* number of links that are not SIM_NONE */
  uint32_t sides;              /* of the slice: the larger number of links on one side */
  uint64_t now_ps;             /* end of its last slice */
  uint64_t begin_ps;           /* of the slice that is moving */
  double ps_a_byte;            /* of the current slice */
  uint64_t slice_ps, move_ps, side_ps;
  bool zero_copy; /* data that others store in its outputs costs no move */
  uint64_t piece_bytes, last_bytes;
  uint64_t steps;                     /* steps that have ended */
  uint32_t want_of;                   /* connection, or lane for WANT_LIST */
  uint32_t transfers;                 /* transfers of the slice that run */
  uint32_t first_waiter, next_waiter; /* lane + 1: lists that wait for a step of this one */
  uint8_t phase, want;
  uint8_t pieces_left;            /* pieces of the slice after the current one */
  uint8_t cut;                    /* number of pieces of the slice */
  bool is_first;                  /* first piece of its slice */
  bool has_slice, queued, shares; /* shares: its slices must begin in the order of time */
};

/* Between two proxies. `filled`, `sent` and `taken` count steps: written by the sender's lane, sent over the
 * network, freed by the receiver's lane. */
struct network {
  uint64_t *filled_at, *slot_at, *bytes; /* by step, in engine.times */
  uint8_t *steps;                        /* ... in engine.steps */
  uint64_t filled, sent, taken;
  uint64_t begin_ps, end_ps; /* of the last message */
  uint64_t proxy_ps, message_ps, flight_ps, gap_ps;
  bool under_way;
};

struct conn {
  uint64_t *data_at, *free_at; /* by step, in engine.times: when the other end sees it */
  uint32_t pieces, slots,
      mask;                  /* of a step; slots in pieces; a power of two minus one: places of its rings */
  uint64_t announced, freed; /* steps, as visible to the waiting end; all steps are in pieces */
  uint64_t send_step, recv_step; /* of the ends */
  uint64_t post_ps;
  double ps_a_byte, gbps;                    /* of its links; bytes are data */
  double wire;                               /* bytes on links per byte of data */
  uint32_t waiting_sender, waiting_receiver; /* lanes, SIM_NONE */
  uint32_t sends_lane;                       /* the sender's lane, while it moves */
  uint32_t network;                          /* index in engine.networks, SIM_NONE */
};

struct block {
  uint32_t batch, running;
};

/* The running kernel of a supply. */
struct track {
  uint32_t running; /* lanes */
  uint64_t end_ps;
};

struct engine {
  const struct engine_request *request;
  const struct sim_net *net;
  const struct cluster *cluster;
  struct engine_report *report;
  struct lane *lanes;
  struct conn *conns;
  struct network *networks;
  struct block *blocks;
  uint64_t *times; /* rings, two per connection, and three per network */
  uint8_t *steps;
  struct track *tracks;
  uint32_t *ready;
  uint32_t ready_head, ready_count, slots, network_count;
  struct flow_set flows;
  struct queue queue; /* connections, then lanes */
  uint64_t now_ps;
  uint32_t ended, turns;
};

static uint64_t us_to_ps(double us) { return (uint64_t)(us * 1e6 + 0.5); }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void lane_push(struct engine *engine, uint32_t index) {
  struct lane *lane = &engine->lanes[index];
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

static void conn_free(struct engine *engine, struct conn *conn, uint32_t steps, uint64_t at_ps) {
  for (uint32_t i = 0; i < steps; i++) conn->free_at[(conn->freed + i) & conn->mask] = at_ps;
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
      begin_ps = later(begin_ps, network->slot_at[(last - 1 - conn->slots) & conn->mask]);
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
  for (uint32_t i = 0; i < steps; i++)
    network->slot_at[(network->taken + i) & conn->mask] = end_ps + network->proxy_ps + network->flight_ps;
  network->taken += steps;
  network_go(engine, index);
}

/* ---- a lane's slices ---- */

/* Both ends round their counters up to a whole chunk; the skipped steps are passed from one to the other. */
static void lane_bind(struct engine *engine, struct lane *lane) {
  const struct work *work = lane->iter.work;
  for (uint32_t i = 0; i < (uint32_t)work->recv_count + work->send_count; i++) {
    if (lane->links[i] == SIM_NONE) continue;
    struct conn *conn = &engine->conns[lane->links[i]];
    const bool sends = i >= work->recv_count;
    uint64_t *step = sends ? &conn->send_step : &conn->recv_step;
    const uint32_t unit = slice_iter_round_steps(work) * conn->pieces;
    const uint32_t skipped = (uint32_t)((unit - *step % unit) % unit);
    *step += skipped;
    if (skipped == 0) continue;
    if (conn->network == SIM_NONE && sends) conn_announce(engine, conn, skipped, lane->now_ps);
    else if (conn->network == SIM_NONE) conn_free(engine, conn, skipped, lane->now_ps);
    else if (sends) network_fill(engine, lane->links[i], skipped, 0, lane->now_ps);
    else network_take(engine, lane->links[i], skipped, lane->now_ps);
  }
}

static bool lane_wait(struct lane *lane, uint32_t conn, enum want want) {
  lane->want = (uint8_t)want;
  lane->want_of = conn;
  return false;
}

/* A list's wait for another list's step; lists run in the order of time, so what has ended is known by now.
 */
static bool list_ready(struct engine *engine, struct lane *lane) {
  if (lane->slice.wait_lane == SIM_NONE) return true;
  const uint32_t self = (uint32_t)(lane - engine->lanes);
  const uint32_t other = sim_net_list(engine->net, engine->net->lanes[self].rank, lane->slice.wait_lane);
  if (other == SIM_NONE) return true;
  struct lane *list = &engine->lanes[other];
  if (list->phase == PHASE_ENDED || list->steps >= lane->slice.wait_steps) {
    lane->now_ps = later(lane->now_ps, engine->now_ps);
    return true;
  }
  lane->next_waiter = list->first_waiter;
  list->first_waiter = self + 1;
  return lane_wait(lane, other, WANT_LIST);
}

static void list_report(struct engine *engine, struct lane *lane) {
  for (uint32_t waiter = lane->first_waiter; waiter != 0;) {
    struct lane *waits = &engine->lanes[waiter - 1];
    lane_push(engine, waiter - 1);
    waiter = waits->next_waiter;
  }
  lane->first_waiter = 0;
}

/* The steps by which the slice, or a piece of it, advances a connection. */
static uint32_t slice_steps(const struct lane *lane, const struct conn *conn) {
  return lane->slice.fifo_steps * conn->pieces / lane->cut;
}

/* The time when all that the slice waits for is there; false while a time is unknown. */
static bool slice_ready(struct engine *engine, struct lane *lane, uint64_t *begin_ps) {
  const struct sim_slice *slice = &lane->slice;
  const uint32_t recv_count = lane->iter.work->recv_count;
  uint64_t at_ps = lane->now_ps;
  for (link_set links = slice->recv_links; links != 0; links &= links - 1) {
    const uint32_t index = lane->links[__builtin_ctzll(links)];
    struct conn *conn = &engine->conns[index];
    const uint64_t last = conn->recv_step + slice_steps(lane, conn);
    if (conn->announced < last) {
      conn->waiting_receiver = (uint32_t)(lane - engine->lanes);
      return lane_wait(lane, index, WANT_DATA);
    }
    at_ps = later(at_ps, conn->data_at[(last - 1) & conn->mask]);
  }
  for (link_set links = slice->send_links; links != 0; links &= links - 1) {
    const uint32_t index = lane->links[recv_count + (uint32_t)__builtin_ctzll(links)];
    struct conn *conn = &engine->conns[index];
    const uint64_t last = conn->send_step + slice_steps(lane, conn);
    if (last > conn->freed + conn->slots) {
      conn->waiting_sender = (uint32_t)(lane - engine->lanes);
      return lane_wait(lane, index, WANT_SLOT);
    }
    if (last > conn->slots) at_ps = later(at_ps, conn->free_at[(last - 1 - conn->slots) & conn->mask]);
  }
  *begin_ps = at_ps;
  return true;
}

static void slice_post(struct engine *engine, struct lane *lane, uint64_t end_ps) {
  const struct sim_slice *slice = &lane->slice;
  const uint32_t recv_count = lane->iter.work->recv_count;
  for (link_set links = slice->frees; links != 0; links &= links - 1) {
    const uint32_t index = lane->links[__builtin_ctzll(links)];
    struct conn *conn = &engine->conns[index];
    const uint32_t steps = slice_steps(lane, conn);
    conn->recv_step += steps;
    if (conn->network == SIM_NONE) conn_free(engine, conn, steps, end_ps + conn->post_ps);
    else network_take(engine, index, steps, end_ps);
  }
  for (link_set links = slice->announces; links != 0; links &= links - 1) {
    const uint32_t link = (uint32_t)__builtin_ctzll(links), index = lane->links[recv_count + link];
    struct conn *conn = &engine->conns[index];
    const uint32_t steps = slice_steps(lane, conn);
    conn->send_step += steps;
    engine->report->message_count += conn->network == SIM_NONE && lane->pieces_left == 0;
    if (conn->network == SIM_NONE) conn_announce(engine, conn, steps, end_ps + conn->post_ps);
    else network_fill(engine, index, steps, sim_slice_link_bytes(slice, link), end_ps);
  }
  if (engine->request->hear) {
    const struct engine_span span = {(uint32_t)(lane - engine->lanes), lane->now_ps, lane->begin_ps, end_ps,
                                     slice};
    engine->request->hear(engine->request->context, &span);
  }
  engine->report->slice_count += lane->pieces_left == 0;
  lane->now_ps = end_ps;
  lane->has_slice = false;
  lane->steps += slice->ends_step;
  if (slice->ends_step && lane->first_waiter != 0) list_report(engine, lane);
}

/* What it receives was stored directly into its output, and is not forwarded. */
static bool slice_is_zero_copy(const struct lane *lane) {
  return lane->zero_copy && lane->slice.send_links == 0 && (lane->slice.flags & STEP_RECV_FINAL) != 0;
}

/* The lane's time for a slice of any size. */
static uint64_t slice_fixed_ps(const struct lane *lane) {
  if (!lane->is_first) return 0;
  const uint32_t sides = (lane->slice.recv_links != 0) + (lane->slice.send_links != 0);
  return lane->slice_ps + sides * lane->side_ps +
         (lane->slice.bytes > 0 && !slice_is_zero_copy(lane) ? lane->move_ps : 0);
}

/* The lane's own time for a slice. */
static uint64_t slice_ps(const struct lane *lane) {
  const struct sim_slice *slice = &lane->slice;
  if (slice->bytes == 0 || slice_is_zero_copy(lane)) return slice_fixed_ps(lane);
  return slice_fixed_ps(lane) + (uint64_t)((double)slice->bytes * lane->sides * lane->ps_a_byte + 0.5);
}

/* Ends the slice at once if its links are not shared. */
static void slice_move(struct engine *engine, struct lane *lane, uint64_t begin_ps) {
  const struct sim_slice *slice = &lane->slice;
  uint64_t links_ps = 0;
  for (link_set links = slice->bytes > 0 ? slice->send_links : 0; links != 0; links &= links - 1) {
    const uint32_t link = (uint32_t)__builtin_ctzll(links);
    const struct conn *conn = &engine->conns[lane->links[lane->iter.work->recv_count + link]];
    const double bytes = (double)sim_slice_link_bytes(slice, link);
    if (conn->network == SIM_NONE)
      links_ps = later(links_ps, (uint64_t)(bytes * conn->ps_a_byte + 0.5) + slice_fixed_ps(lane));
  }
  lane->begin_ps = begin_ps;
  slice_post(engine, lane, begin_ps + later(slice_ps(lane), links_ps));
}

/* Shared links of the slice: their transfers are events. */
static bool slice_is_shared(const struct engine *engine, const struct lane *lane) {
  if (!lane->shares) return false;
  if (lane->iter.work->algo == ALGO_CUSTOM) return true;
  if (lane->slice.bytes == 0) return false;
  for (link_set links = lane->slice.send_links; links != 0; links &= links - 1) {
    const uint32_t index = lane->links[lane->iter.work->recv_count + (uint32_t)__builtin_ctzll(links)];
    if (engine->conns[index].network == SIM_NONE && !flow_is_private(&engine->flows, index)) return true;
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

static void lane_end(struct engine *engine, struct lane *lane) {
  const uint32_t index = (uint32_t)(lane - engine->lanes), number = engine->net->lanes[index].block;
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

/* Skips links that are the same as another one. */
static void slice_fold(struct lane *lane) {
  struct sim_slice *slice = &lane->slice;
  const uint32_t out = (uint32_t)__builtin_popcountll(slice->send_links),
                 in = (uint32_t)__builtin_popcountll(slice->recv_links);
  const bool copies_own = slice->each && (slice->flags & STEP_COPY_IN) && (slice->flags & STEP_KEEP);
  lane->sides = (out > in ? out : in > 0 ? in : 1) + copies_own;
  slice->recv_links &= lane->recv_own;
  slice->frees &= lane->recv_own;
  slice->send_links &= lane->send_own;
  slice->announces &= lane->send_own;
}

static uint32_t pieces_of(uint64_t bytes) {
  uint32_t pieces = 1;
  while (pieces < PIECES_MAX && bytes >= 2ull * pieces * PIECE_BYTES) pieces *= 2;
  return pieces;
}

/* The next slice, or the next piece of one: both ends of a connection cut it alike, as they know its bytes.
 */
static bool slice_next(struct lane *lane) {
  struct sim_slice *slice = &lane->slice;
  lane->is_first = lane->pieces_left == 0;
  if (!lane->is_first) {
    lane->pieces_left -= 1;
    slice->ends_step = lane->pieces_left == 0;
    slice->bytes = slice->ends_step ? lane->last_bytes : lane->piece_bytes;
    return true;
  }
  if (!slice_iter_next(&lane->iter, slice)) return false;
  slice_fold(lane);
  lane->cut = 1;
  const uint32_t pieces = lane->iter.work->proto == PROTO_SIMPLE ? 1 : pieces_of(slice->bytes);
  if (pieces == 1) return true;
  lane->pieces_left = (uint8_t)(pieces - 1);
  lane->piece_bytes = slice->bytes / pieces;
  lane->last_bytes = slice->bytes - (pieces - 1) * lane->piece_bytes;
  slice->bytes = lane->piece_bytes;
  lane->cut = (uint8_t)pieces;
  slice->ends_step = false;
  return true;
}

/* Runs the lane as far as it can go now. */
static void lane_run(struct engine *engine, struct lane *lane) {
  uint64_t begin_ps;
  if (lane->phase == PHASE_ENDED || lane->want == WANT_TRANSFER) return;
  lane->want = WANT_NOTHING;
  if (lane->phase == PHASE_WAITS) {
    lane->phase = PHASE_RUNS;
    lane_bind(engine, lane);
  }
  for (;;) {
    if (!lane->has_slice && !slice_next(lane)) {
      lane_end(engine, lane);
      return;
    }
    lane->has_slice = true;
    if (!list_ready(engine, lane) || !slice_ready(engine, lane, &begin_ps)) return;
    if (slice_is_shared(engine, lane)) break;
    slice_move(engine, lane, begin_ps);
  }
  lane->want = WANT_TRANSFER;
  lane->begin_ps = begin_ps;
  queue_set(&engine->queue, engine->net->conn_count + (uint32_t)(lane - engine->lanes),
            begin_ps + slice_fixed_ps(lane));
}

/* ---- events ---- */

static void transfer_begin(struct engine *engine, uint32_t index, uint64_t bytes) {
  const struct conn *conn = &engine->conns[index];
  const uint64_t end_ps =
      flow_begin(&engine->flows, index, (double)bytes * conn->wire, conn->gbps, engine->now_ps);
  if (end_ps != UINT64_MAX) queue_set(&engine->queue, index, end_ps);
}

/* The lane's own part of the slice is over, or its transfers begin. */
static void lane_event(struct engine *engine, struct lane *lane) {
  const struct sim_slice *slice = &lane->slice;
  if (lane->transfers == SIM_NONE) { /* everything is moved */
    lane->transfers = 0;
    lane->want = WANT_NOTHING;
    slice_post(engine, lane, engine->now_ps);
    lane_push(engine, (uint32_t)(lane - engine->lanes));
    return;
  }
  for (link_set links = slice->bytes > 0 ? slice->send_links : 0; links != 0; links &= links - 1) {
    const uint32_t link = (uint32_t)__builtin_ctzll(links);
    const uint32_t index = lane->links[lane->iter.work->recv_count + link];
    struct conn *conn = &engine->conns[index];
    if (conn->network != SIM_NONE || flow_is_private(&engine->flows, index)) continue;
    conn->sends_lane = (uint32_t)(lane - engine->lanes);
    lane->transfers += 1;
    transfer_begin(engine, index, sim_slice_link_bytes(slice, link));
  }
  if (lane->transfers > 0) return;
  lane->transfers = SIM_NONE;
  queue_set(&engine->queue, engine->net->conn_count + (uint32_t)(lane - engine->lanes),
            later(engine->now_ps, lane->begin_ps + slice_ps(lane)));
}

static void conn_event(struct engine *engine, uint32_t index) {
  struct conn *conn = &engine->conns[index];
  struct network *network = conn->network == SIM_NONE ? NULL : &engine->networks[conn->network];
  if (network && !engine->flows.flows[index].active) {
    transfer_begin(engine, index, network->bytes[network->sent & conn->mask]);
    return;
  }
  flow_end(&engine->flows, index);
  if (network) {
    network_arrive(engine, conn, network, engine->now_ps);
    network_go(engine, index);
    return;
  }
  struct lane *lane = &engine->lanes[conn->sends_lane];
  if (--lane->transfers > 0) return;
  lane->transfers = SIM_NONE;
  queue_set(&engine->queue, engine->net->conn_count + conn->sends_lane,
            later(engine->now_ps, lane->begin_ps + slice_ps(lane)));
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
    lane_run(engine, &engine->lanes[index]);
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
    if (item.number < engine->net->conn_count) conn_event(engine, item.number);
    else lane_event(engine, &engine->lanes[item.number - engine->net->conn_count]);
  }
}

/* ---- what makes no progress ---- */

static const char *const want_words[] = {"", "data", "a free slot", "a step", "a transfer"};

/* The lane that could let a stuck one continue; SIM_NONE if its rank has no more to do there. */
static uint32_t stuck_behind(const struct engine *engine, uint32_t index, uint32_t *peer) {
  const struct lane *lane = &engine->lanes[index];
  const struct sim_net *net = engine->net;
  *peer = net->lanes[index].rank;
  if (lane->want == WANT_LIST) return lane->want_of;
  if (lane->want == WANT_TRANSFER || lane->want == WANT_NOTHING) return SIM_NONE;
  const struct sim_conn *conn = &net->conns[lane->want_of];
  const bool data = lane->want == WANT_DATA;
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
  const struct lane *lane = &engine->lanes[index];
  uint32_t peer;
  stuck_behind(engine, index, &peer);
  stuck_say(engine, "rank %u channel %u step %" PRIu64 " waits for %s %s rank %u",
            engine->net->lanes[index].rank, lane->iter.work->channel_index, lane->steps,
            want_words[lane->want], lane->want == WANT_DATA ? "from" : "of", peer);
}

/* A lane on the cycle, or at the end of the chain: after as many hops as there are lanes. */
static uint32_t stuck_root(const struct engine *engine, uint32_t index) {
  char link[64];
  uint32_t peer;
  for (uint32_t hops = 0; hops < engine->net->lane_count; hops++) {
    const struct lane *lane = &engine->lanes[index];
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
    const struct lane *lane = &engine->lanes[i];
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

static void stuck_report(struct engine *engine) {
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
  const struct lane *lane = &engine->lanes[root];
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

/* ---- making ---- */

static void lane_make(struct engine *engine, uint32_t index, uint64_t begin_ps) {
  const struct cluster_costs *costs = &engine->cluster->costs;
  const struct sim_lane *place = &engine->net->lanes[index];
  const double slow = engine->cluster->rank_slow[place->rank];
  const uint8_t proto = place->work->proto;
  struct lane *lane = &engine->lanes[index];
  slice_iter_begin(&lane->iter, &engine->net->plans[place->rank].limits, place->work);
  lane->links = &engine->net->links[place->first_link];
  for (uint32_t k = 0; k < place->work->recv_count; k++)
    lane->recv_own |= (link_set)(lane->links[k] != SIM_NONE) << k;
  for (uint32_t k = 0; k < place->work->send_count; k++)
    lane->send_own |= (link_set)(lane->links[place->work->recv_count + k] != SIM_NONE) << k;
  lane->now_ps = begin_ps + us_to_ps(place->work->func >= FUNC_SEND_RECV ? costs->message_launch_us
                                                                         : costs->launch_us[proto]);
  lane->slice_ps = us_to_ps(costs->slice_us[proto] * slow);
  lane->move_ps = us_to_ps(costs->move_us[proto] * slow);
  lane->side_ps = us_to_ps(costs->side_us * slow);
  lane->ps_a_byte = 1e3 * slow / costs->lane_gbps[proto];
  lane->zero_copy = costs->zero_copy != 0 && (place->work->flags & WORK_DIRECT_RECV) != 0;
  engine->blocks[place->block].running += place->batch == 0;
  if (place->batch == 0) lane_push(engine, index);
}

/* Whether its slices can share a link with others. */
static void lane_share(struct engine *engine, struct lane *lane) {
  const struct work *work = lane->iter.work;
  lane->shares = work->algo == ALGO_CUSTOM;
  for (link_set links = lane->send_own; links != 0; links &= links - 1) {
    const uint32_t index = lane->links[work->recv_count + (uint32_t)__builtin_ctzll(links)];
    lane->shares = lane->shares || !flow_is_private(&engine->flows, index);
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
      struct lane *lane = &engine->lanes[i];
      const bool queued = lane->queued;
      memset(lane, 0, sizeof *lane);
      lane->queued = queued;
      lane_make(engine, i, kernel.begin_ps);
      lane_share(engine, lane);
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
    whole = demand_add(&demand, &routes[i], engine->conns[i].gbps);
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
  struct flow_user *users = (struct flow_user *)os_alloc((net->conn_count + (size_t)1) * sizeof *users);
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
  if (result == ncclSuccess && !supply && !fold && !demand_find(engine, routes, demand))
    result = log_no_memory("%u routes", net->conn_count);
  if (result == ncclSuccess)
    result = flow_set_make(engine->cluster->link_gbps,
                           supply ? supply->demand_gbps
                           : fold ? NULL
                                  : demand,
                           engine->cluster->link_count, users, net->conn_count, &engine->flows);
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
      if (index != SIM_NONE && engine->conns[index].pieces < pieces) engine->conns[index].pieces = pieces;
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
    conn->free_at = times + ring;
    times += 2 * ring;
    if (!engine->net->conns[i].sends || !conn_is_remote(engine, i)) continue;
    engine->networks[remote++] = (struct network){
        .filled_at = times, .slot_at = times + ring, .bytes = times + 2 * ring, .steps = steps};
    times += 3 * ring;
    steps += ring;
  }
  return true;
}

static ncclResult_t engine_make(struct engine *engine) {
  const struct sim_net *net = engine->net;
  engine->lanes = (struct lane *)os_alloc((net->lane_count + (size_t)1) * sizeof *engine->lanes);
  engine->conns = (struct conn *)os_alloc((net->conn_count + (size_t)1) * sizeof *engine->conns);
  engine->blocks = (struct block *)os_alloc((net->block_count + (size_t)1) * sizeof *engine->blocks);
  engine->ready = (uint32_t *)os_alloc((net->lane_count + (size_t)1) * sizeof *engine->ready);
  uint32_t remote = 0;
  for (uint32_t i = 0; engine->conns && i < net->conn_count; i++)
    engine->conns[i].waiting_sender = engine->conns[i].waiting_receiver = engine->conns[i].network = SIM_NONE;
  for (uint32_t i = 0; i < net->conn_count; i++) remote += conn_is_remote(engine, i);
  engine->networks = (struct network *)os_alloc((remote + (size_t)1) * sizeof *engine->networks);
  engine->slots = net->rank_count > 0 ? net->plans[0].limits.slots : 1;
  if (engine->conns) pieces_find(engine);
  if (!engine->lanes || !engine->conns || !engine->blocks || !engine->ready || !engine->networks ||
      !times_make(engine) || !queue_make(&engine->queue, net->conn_count + net->lane_count))
    return log_no_memory("%u lanes and %u connections", net->lane_count, net->conn_count);
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
    lane_share(engine, &engine->lanes[i]);
  }
  return ncclSuccess;
}

ncclResult_t engine_run(const struct engine_request *request, struct engine_report *report) {
  struct engine engine;
  memset(&engine, 0, sizeof engine);
  memset(report, 0, sizeof *report);
  engine.request = request;
  engine.net = request->net;
  engine.cluster = request->cluster;
  engine.report = report;
  const ncclResult_t made = engine_make(&engine);
  if (made == ncclSuccess) engine_go(&engine);
  if (made == ncclSuccess && engine.ended < engine.net->lane_count) stuck_report(&engine);
  os_free(engine.lanes);
  os_free(engine.conns);
  os_free(engine.networks);
  os_free(engine.times);
  os_free(engine.steps);
  os_free(engine.blocks);
  os_free(engine.tracks);
  os_free(engine.ready);
  queue_free(&engine.queue);
  flow_set_free(&engine.flows);
  return made;
}
