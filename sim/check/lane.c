/* lane.c: runs a lane: output addresses, slice after slice with its waits, posts, the end. A lane waits for
 * one end of one connection at a time; whether it may continue depends on counters that only grow. */
#include <inttypes.h>

#include "check/engine.h"

static void wake(struct check_engine *engine, uint32_t *waiting) {
  const uint32_t lane = *waiting;
  if (lane == LANE_NONE) return;
  *waiting = LANE_NONE;
  network_push(engine, lane);
}

/* Puts the lane aside until that end moves. */
static void wait_for(struct check_engine *engine, struct lane *lane, uint32_t conn, enum lane_want want) {
  const uint32_t index = (uint32_t)(lane - engine->lanes);
  lane->want = (uint8_t)want;
  lane->want_conn = conn;
  if (want == WANT_DATA || want == WANT_INPUT) engine->conns[conn].waiting_receiver = index;
  else engine->conns[conn].waiting_sender = index;
}

static uint64_t rounded(uint64_t step, uint32_t unit) { return (step + unit - 1) / unit * unit; }

/* Both ends round up to a whole chunk; the receiver frees the skipped steps. */
static bool lane_bind(struct check_engine *engine, struct lane *lane) {
  const struct work *work = lane->work;
  const uint32_t index = (uint32_t)(lane - engine->lanes),
                 links = (uint32_t)work->recv_count + work->send_count;
  for (uint32_t i = 0; i < links; i++) {
    struct conn *conn = &engine->conns[lane->conns[i]];
    const bool sends = i >= work->recv_count;
    uint32_t *user = sends ? &conn->send_lane : &conn->recv_lane;
    if (*user != LANE_NONE)
      return engine_fail(engine, CHECK_PARTS, lane, sends ? conn->receiver : conn->sender,
                         "uses the connection %s rank %u at once with another of its works",
                         sends ? "to" : "from", sends ? conn->receiver : conn->sender);
    *user = index;
    if (sends) {
      conn->send_step = rounded(conn->send_step, work->chunk_steps);
      if (conn->announced < conn->send_step) conn->announced = conn->written = conn->send_step;
    } else {
      if (!engine_fault(engine, FAULT_NO_ROUNDING, lane->rank))
        conn->recv_step = rounded(conn->recv_step, work->chunk_steps);
      if (conn->freed < conn->recv_step) {
        conn->freed = conn->read = conn->recv_step;
        wake(engine, &conn->waiting_sender);
      }
    }
    lane->begin_steps[i] = sends ? conn->send_step : conn->recv_step;
  }
  return true;
}

static void offers_make(struct check_engine *engine, struct lane *lane) {
  const bool shown = lane->buffers->out != NULL && (lane->work->flags & WORK_OUTPUT_HIDDEN) == 0;
  if ((lane->work->flags & WORK_DIRECT_RECV) == 0) return;
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    struct conn *conn = &engine->conns[lane->conns[i]];
    conn->offers_made += 1;
    conn->offer_address = shown ? (uint64_t)(uintptr_t)lane->buffers->out : 0;
    wake(engine, &conn->waiting_sender);
  }
  lane->zero_copy_receive = shown;
}

struct conn *lane_conn_back(struct check_engine *engine, const struct lane *lane, const struct conn *conn) {
  const bool sends = conn->sender == lane->rank;
  const struct work *work = lane->work;
  const uint32_t first = sends ? 0 : work->recv_count, count = sends ? work->recv_count : work->send_count;
  for (uint32_t i = first; lane_shows_input(lane) && i < first + count; i++) {
    struct conn *back = &engine->conns[lane->conns[i]];
    if (sends ? back->sender == conn->receiver : back->receiver == conn->sender) return back;
  }
  return NULL;
}

/* With INPUTS_MIXED a rank can show its input to some of the others, and can read that of some. */
static bool input_is_hidden(const struct check_engine *engine, const struct conn *conn) {
  return engine->input->inputs == INPUTS_HIDDEN ||
         (engine->input->inputs == INPUTS_MIXED && ((conn->sender / 2 + conn->receiver) & 1) != 0);
}

static bool inputs_show(struct check_engine *engine, struct lane *lane) {
  for (uint32_t i = 0; lane_shows_input(lane) && i < lane->work->send_count; i++) {
    struct conn *conn = &engine->conns[lane->conns[lane->work->recv_count + i]];
    const bool hidden = input_is_hidden(engine, conn);
    if (conn->sources_made != conn->sources_taken)
      return engine_fail(engine, CHECK_MATCH, lane, conn->receiver,
                         "shows its input to rank %u, which has not taken the address of the last one",
                         conn->receiver);
    conn->sources_made += 1;
    conn->source_address = hidden ? 0 : (uint64_t)(uintptr_t)lane->buffers->in;
    lane->shown_links |= (link_set)(!hidden || engine_fault(engine, FAULT_INPUT_HIDDEN, lane->rank)) << i;
    wake(engine, &conn->waiting_receiver);
  }
  return true;
}

/* False until the addresses of the senders' inputs have arrived. */
static bool inputs_taken(struct check_engine *engine, struct lane *lane) {
  if (!lane_shows_input(lane) || engine_fault(engine, FAULT_INPUT_NOT_AWAITED, lane->rank)) return true;
  for (uint32_t link; (link = lane->opened - lane->work->send_count) < lane->work->recv_count;
       lane->opened++) {
    struct conn *conn = &engine->conns[lane->conns[link]];
    if (conn->sources_taken == conn->sources_made) {
      wait_for(engine, lane, lane->conns[link], WANT_INPUT);
      return false;
    }
    conn->sources_taken += 1;
    lane->read_links |= (link_set)(conn->source_address != 0) << link;
  }
  return true;
}

/* The wait at the end of a lane whose input is read in place, if no sums come back. */
static bool inputs_read(struct check_engine *engine, struct lane *lane) {
  if (!lane_shows_input(lane) || work_returns_sums(lane->work)) return true;
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    const uint32_t index = lane->conns[lane->work->recv_count + i];
    struct conn *conn = &engine->conns[index];
    if (engine_fault(engine, FAULT_INPUT_ENDS_EARLY, lane->rank)) continue;
    if (conn->freed < conn->send_step) {
      wait_for(engine, lane, index, WANT_READ);
      return false;
    }
    conn->free_seen = conn->send_step;
  }
  return true;
}

/* What the lane has waited for, slots or data, must show that its input was read over each link, and that the
 * address was taken. */
static bool inputs_are_free(struct check_engine *engine, const struct lane *lane) {
  for (uint32_t i = 0; lane_shows_input(lane) && i < lane->work->send_count; i++) {
    const struct conn *conn = &engine->conns[lane->conns[lane->work->recv_count + i]];
    if (conn->free_seen < conn->shown_step && conn->reads_seen < conn->shown_step)
      return engine_fail(engine, CHECK_MEMORY, lane, conn->receiver,
                         "ends before it knows that rank %u has read its input, up to step %" PRIu64
                         " of the connection",
                         conn->receiver, conn->shown_step);
  }
  return true;
}

/* False until the address of the output has arrived. */
static bool offers_taken(struct check_engine *engine, struct lane *lane) {
  if ((lane->work->flags & WORK_DIRECT_SEND) == 0 && lane->opened < lane->work->send_count)
    lane->opened = lane->work->send_count;
  for (; lane->opened < lane->work->send_count; lane->opened++) {
    const uint32_t index = lane->conns[lane->work->recv_count + lane->opened];
    struct conn *conn = &engine->conns[index];
    if (conn->offers_taken == conn->offers_made) {
      wait_for(engine, lane, index, WANT_OFFER);
      return false;
    }
    conn->offers_taken += 1;
  }
  return true;
}

/* The next step, from the iterator or a hook. */
static bool step_next(struct check_engine *engine, struct lane *lane) {
  const struct check_input *input = engine->input;
  for (;;) {
    if (!lane->repeats && !algo_next(&lane->iter, lane->work, &lane->step)) return false;
    if (!input->hook) return true;
    const uint32_t what = input->hook(input->hook_context, lane->work, lane->step_number, &lane->step);
    lane->repeats = what == HOOK_RUN_AND_ASK;
    if (what == HOOK_END) return false;
    if (what != HOOK_SKIP) return true;
  }
}

/* What slice.c supports. Nothing is proved of other steps. */
#define STEPS_OF_LISTS (STEP_FROM_SCRATCH | STEP_TO_SCRATCH | STEP_TO_INPUT | STEP_FOLD | STEP_AWAIT_LIST)
#define STEP_KNOWN                                                                                        \
  (STEP_RECV | STEP_SEND | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_POST_OP | STEP_SEND_FINAL |      \
   STEP_RECV_FINAL | STEP_FROM_OUTPUT | STEP_IN_ORDER | STEP_RECV_MORE | STEP_SEND_MORE | STEP_SEND_ADD | \
   STEP_PART | STEP_EACH | STEP_SEND_SHOWN | STEP_RECV_SHOWN | STEPS_OF_LISTS)

/* What a step with a block for each link never does. */
#define EACH_LACKS (STEP_REDUCE | STEP_POST_OP | STEP_SEND_ADD | STEP_FOLD | STEP_PART)

/* Only Simple lets steps share slots, only with one slice a chunk, and only a fused work has parts. */
static bool step_is_sound(struct check_engine *engine, const struct lane *lane) {
  const struct step *step = &lane->step;
  const struct work *work = lane->work;
  const bool shares = (step->flags & (STEP_RECV_MORE | STEP_SEND_MORE | STEP_SEND_ADD)) != 0 ||
                      step->recv_place != 0 || step->send_place != 0;
  const bool fused = (work->flags & WORK_FUSED) != 0;
  if (shares && (work->proto != PROTO_SIMPLE || work->chunk_steps != work->slice_steps))
    return engine_fail(engine, CHECK_SLOT, lane, UINT32_MAX,
                       "shares a slot among steps, where a chunk has several slices or lines");
  if ((step->flags & STEP_SEND_ADD) != 0 &&
      (step->send_links == 0 || (step->send_links & (step->send_links - 1)) != 0))
    return engine_fail(engine, CHECK_SLOT, lane, UINT32_MAX, "adds to the slots of other than one link");
  if (step_is_each(step) && (shares || (step->flags & EACH_LACKS) != 0))
    return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX,
                       "moves a block for each link, and also adds or shares slots");
  if ((step->flags & (STEP_SEND_SHOWN | STEP_RECV_SHOWN)) != 0 &&
      (!lane_shows_input(lane) || shares || work->proto != PROTO_SIMPLE || work->op == OP_PRE_MUL_SUM))
    return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX,
                       "lets inputs be read in place in a work that shows none, or scales them first");
  if (fused ? step->part >= work->fused_count : step->part != 0 || (step->flags & STEP_PART) != 0)
    return engine_fail(engine, CHECK_PARTS, lane, UINT32_MAX, "names part %u, which its work does not have",
                       step->part);
  return true;
}

static bool step_is_known(struct check_engine *engine, const struct lane *lane) {
  const uint32_t unknown = lane->step.flags & ~(uint32_t)STEP_KNOWN;
  if (unknown == 0) return step_is_sound(engine, lane);
  return engine_fail(engine, CHECK_RESOURCES, lane, UINT32_MAX,
                     "has a step with flags 0x%x, which the checker does not know yet: nothing is proved",
                     unknown);
}

/* Makes the next slice current; false when there is none. In LL and LL128 a step is one slice. */
static bool slice_next(struct check_engine *engine, struct lane *lane) {
  if (lane->sliced && lane->slice_index < lane->slice_count) return true;
  if (!step_next(engine, lane)) return false;
  const struct work *work = lane->work;
  const bool simple = work->proto == PROTO_SIMPLE;
  if ((work->flags & WORK_FUSED) != 0 && lane->step.part < work->fused_count) {
    lane->part = work + lane->step.part;
    lane->buffers = lane->all_buffers + lane->step.part;
  }
  lane->sliced = true;
  lane->slice_index = 0;
  lane->slice_count = simple ? work->chunk_steps / work->slice_steps : 1;
  lane->slice_elements = simple ? chunk_slice_count(lane->step.count, lane->slice_count, lane->slice_capacity)
                                : lane->step.count;
  engine->report->step_count += 1;
  return true;
}

/* The waits of a slice. What they guarantee is recorded on the connection. */
static bool slice_ready(struct check_engine *engine, struct lane *lane) {
  const struct work *work = lane->work;
  const uint32_t steps = lane->slice_steps;
  for (uint32_t i = 0; i < work->recv_count; i++) {
    if ((lane->step.recv_links >> i & 1) == 0) continue;
    struct conn *conn = &engine->conns[lane->conns[i]];
    if (engine_fault(engine, FAULT_NO_WAIT, lane->rank)) continue;
    if (engine_fault(engine, FAULT_EMPTY_NOT_AWAITED, lane->rank) && slice_elements(lane) == 0) continue;
    if (conn->announced < conn->recv_step + steps || conn->held == 0) {
      wait_for(engine, lane, lane->conns[i], WANT_DATA);
      return false;
    }
    /* Where it reads the sender's input, a lane does not wait for this; here it does, to compare both ends.
     */
    if (!lane_reads_input(lane, i)) conn->data_seen = conn->recv_step + steps;
  }
  for (uint32_t i = 0; i < work->send_count; i++) {
    if ((lane->step.send_links >> i & 1) == 0) continue;
    struct conn *conn = &engine->conns[lane->conns[work->recv_count + i]];
    const uint64_t slots = engine->slots + engine_fault(engine, FAULT_SLOT_TOO_MANY, lane->rank) -
                           engine_fault(engine, FAULT_SLOT_TOO_FEW, lane->rank);
    if (conn->send_step + steps > conn->freed + slots) {
      wait_for(engine, lane, lane->conns[work->recv_count + i], WANT_SLOT);
      return false;
    }
    const uint64_t seen = conn->send_step + steps > slots ? conn->send_step + steps - slots : 0;
    if (seen > conn->free_seen) conn->free_seen = seen;
  }
  return true;
}

static bool slice_free(struct check_engine *engine, struct lane *lane, struct conn *conn) {
  const uint64_t end = conn->recv_step + lane->slice_steps;
  if (conn->read < end)
    return engine_fail(engine, CHECK_SLOT, lane, conn->sender,
                       "frees step %" PRIu64 " of the connection from rank %u before it has read it",
                       conn->recv_step, conn->sender);
  conn->recv_step = end;
  if (engine_fault(engine, FAULT_NEVER_FREE, lane->rank)) return true;
  conn->freed = end;
  wake(engine, &conn->waiting_sender);
  return true;
}

static bool slice_announce(struct check_engine *engine, struct lane *lane, struct conn *conn) {
  const uint64_t end = conn->send_step + lane->slice_steps;
  if (conn->written < end)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "announces step %" PRIu64 " to rank %u before it has written it", conn->send_step,
                       conn->receiver);
  conn->send_step = end;
  if (engine_fault(engine, FAULT_EMPTY_NOT_POSTED, lane->rank) && slice_elements(lane) == 0) return true;
  conn->announced = end;
  wake(engine, &conn->waiting_receiver);
  return true;
}

/* Frees what was read and announces what was written, except slots that the next step shares. */
static bool slice_post(struct check_engine *engine, struct lane *lane, bool frees, bool announces) {
  const struct work *work = lane->work;
  frees = frees && (lane->step.flags & STEP_RECV_MORE) == 0;
  announces = announces && (lane->step.flags & STEP_SEND_MORE) == 0;
  for (uint32_t i = 0; frees && i < work->recv_count; i++) {
    if ((lane->step.recv_links >> i & 1) == 0) continue;
    if (!slice_free(engine, lane, &engine->conns[lane->conns[i]])) return false;
  }
  for (uint32_t i = 0; announces && i < work->send_count; i++) {
    if ((lane->step.send_links >> i & 1) == 0) continue;
    if (!slice_announce(engine, lane, &engine->conns[lane->conns[work->recv_count + i]])) return false;
  }
  return true;
}

static bool slice_do(struct check_engine *engine, struct lane *lane) {
  const bool early_free = engine_fault(engine, FAULT_EARLY_FREE, lane->rank);
  const bool early_post = engine_fault(engine, FAULT_EARLY_POST, lane->rank);
  if (!slice_post(engine, lane, early_free, early_post)) return false;
  if (!slice_move(engine, lane)) return false;
  if (!slice_post(engine, lane, !early_free, !early_post)) return false;
  lane->slice_index += 1;
  lane->step_number += lane->slice_index == lane->slice_count;
  list_report(engine, lane);
  return true;
}

/* Checks what a proxy would have counted on a connection that the lane is done with. */
static void proxy_compare(struct check_engine *engine, struct lane *lane, uint32_t i) {
  const struct work *work = lane->work;
  const struct conn *conn = &engine->conns[lane->conns[i]];
  const bool sends = i >= work->recv_count;
  const uint64_t taken = (sends ? conn->send_step : conn->recv_step) - lane->begin_steps[i];
  struct check_report *report = engine->report;
  uint64_t counted;
  if (engine->proxy.rule != CHECK_NONE ||
      !proxy_steps(work, sends, sends ? i - work->recv_count : i, &counted))
    return;
  counted += engine_fault(engine, FAULT_PROXY_ONE_MORE, lane->rank);
  if (counted == taken) return;
  engine->report = &engine->proxy;
  engine_fail(engine, CHECK_PROXY, lane, sends ? conn->receiver : conn->sender,
              "takes %" PRIu64 " steps on the connection %s rank %u, of which a proxy would count %" PRIu64,
              taken, sends ? "to" : "from", sends ? conn->receiver : conn->sender, counted);
  engine->report = report;
}

/* The lane releases its connections; after the last lane of a batch the next batch begins. */
static bool lane_end(struct check_engine *engine, struct lane *lane) {
  const struct work *work = lane->work;
  lane->phase = LANE_ENDED;
  list_report(engine, lane);
  if (!inputs_are_free(engine, lane)) return false;
  for (uint32_t i = 0; i < (uint32_t)work->recv_count + work->send_count; i++) {
    struct conn *conn = &engine->conns[lane->conns[i]];
    const bool sends = i >= work->recv_count;
    if (sends ? conn->open != NULL : conn->half_read)
      return engine_fail(engine, CHECK_MATCH, lane, sends ? conn->receiver : conn->sender,
                         "ends with a slot %s rank %u that another step was to share", sends ? "to" : "from",
                         sends ? conn->receiver : conn->sender);
    if (sends) conn->send_lane = LANE_NONE;
    else conn->recv_lane = LANE_NONE;
    proxy_compare(engine, lane, i);
  }
  struct block *block = &engine->blocks[lane->block];
  block->running -= 1;
  if (block->running > 0) return true;
  block->batch += 1;
  for (uint32_t i = block->first_lane; i < block->first_lane + block->lane_count; i++) {
    if (engine->lanes[i].batch != block->batch) continue;
    block->running += 1;
    network_push(engine, i);
  }
  return true;
}

bool lane_advance(struct check_engine *engine, struct lane *lane) {
  bool ready;
  lane->want = WANT_NOTHING;
  if (lane->phase == LANE_WAITS_BATCH) {
    lane->phase = LANE_OPENS;
    algo_begin(&lane->iter, lane->work);
    if (!lane_bind(engine, lane)) return false;
    offers_make(engine, lane);
    if (!inputs_show(engine, lane)) return false;
  }
  if (lane->phase == LANE_OPENS) {
    if (!offers_taken(engine, lane) || !inputs_taken(engine, lane)) return true;
    lane->phase = LANE_RUNS;
  }
  while (lane->phase == LANE_RUNS && slice_next(engine, lane)) {
    if (lane->slice_index == 0 && !step_is_known(engine, lane)) return false;
    if (!list_follow(engine, lane, &ready)) return false;
    if (!ready || !slice_ready(engine, lane)) return true;
    if (!slice_do(engine, lane)) return false;
  }
  lane->phase = LANE_AWAITS_READERS;
  return !inputs_read(engine, lane) || lane_end(engine, lane);
}
