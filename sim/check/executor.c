/* executor.c: runs a lane with the library's executor (protocol/run.h): moves until none is possible, then
 * the lane is put aside until the end of the connection that its last load looked at moves. A lane waits for
 * one thing at a time; whether it may continue depends on counters that only grow. */
#include "check/executor.h"

#include <inttypes.h>
#include <string.h>

_Thread_local struct prim *prim_now;

/* More than a step of LL has, and its data still counts in 32 bits. */
enum { GROUP_LINES = 1 << 24 };

/* ---- steps ---- */

/* The next step, from the iterator or a hook. */
static bool step_next(struct prim *prim, struct algo_iter *iter, const struct work *work, struct step *step) {
  const struct check_input *input = prim->engine->input;
  struct check_lane *lane = prim->lane;
  for (;;) {
    if (!lane->repeats && !algo_next(iter, work, step)) return false;
    if (!lane->repeats) proxies_step(prim, step);
    if (!input->hook) return true;
    const uint32_t what = input->hook(input->hook_context, work, lane->step_number, step);
    lane->repeats = what == HOOK_RUN_AND_ASK;
    if (what == HOOK_END) return false;
    if (what != HOOK_SKIP) return true;
  }
}

/* What moves.c and slots.c support. Nothing is proved of other steps. */
#define STEPS_OF_LISTS (STEP_FROM_SCRATCH | STEP_TO_SCRATCH | STEP_TO_INPUT | STEP_FOLD | STEP_AWAIT_LIST)
#define STEP_KNOWN                                                                                        \
  (STEP_RECV | STEP_SEND | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_POST_OP | STEP_SEND_FINAL |      \
   STEP_RECV_FINAL | STEP_FROM_OUTPUT | STEP_IN_ORDER | STEP_RECV_MORE | STEP_SEND_MORE | STEP_SEND_ADD | \
   STEP_PART | STEP_EACH | STEP_SEND_SHOWN | STEP_RECV_SHOWN | STEPS_OF_LISTS)

/* What a step with a block for each link never does. */
#define EACH_LACKS (STEP_REDUCE | STEP_POST_OP | STEP_SEND_ADD | STEP_FOLD | STEP_PART)

/* Only Simple lets steps share slots, only with one slice a chunk, and only a fused work has parts. */
static bool step_is_sound(struct check_engine *engine, const struct check_lane *lane,
                          const struct step *step) {
  const struct work *work = lane->work;
  const bool shares = (step->flags & (STEP_RECV_MORE | STEP_SEND_MORE | STEP_SEND_ADD)) != 0 ||
                      step->recv_place != 0 || step->send_place != 0;
  const bool fused = (work->flags & WORK_FUSED) != 0, shows = (work->flags & WORK_SHOWS_INPUT) != 0;
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
      (!shows || shares || work->proto != PROTO_SIMPLE || work->op == OP_PRE_MUL_SUM))
    return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX,
                       "lets inputs be read in place in a work that shows none, or scales them first");
  if (fused ? step->part >= work->fused_count : step->part != 0 || (step->flags & STEP_PART) != 0)
    return engine_fail(engine, CHECK_PARTS, lane, UINT32_MAX, "names part %u, which its work does not have",
                       step->part);
  return true;
}

static bool step_is_known(struct check_engine *engine, const struct check_lane *lane,
                          const struct step *step) {
  const uint32_t unknown = step->flags & ~(uint32_t)STEP_KNOWN;
  if (unknown != 0)
    return engine_fail(engine, CHECK_RESOURCES, lane, UINT32_MAX,
                       "has a step with flags 0x%x, which the checker does not know yet: nothing is proved",
                       unknown);
  if (!step_is_sound(engine, lane, step)) return false;
  if ((step->flags & STEP_AWAIT_LIST) == 0 || list_named(engine, lane, step->wait_lane)) return true;
  return engine_fail(engine, CHECK_PARTS, lane, UINT32_MAX,
                     "waits for block %u, which its rank does not have", step->wait_lane);
}

bool executor_next_step(struct algo_iter *iter, const struct work *work, struct step *step) {
  struct prim *prim = prim_now;
  struct check_lane *lane = prim->lane;
  if (!step_next(prim, iter, work, step) || !step_is_known(prim->engine, lane, step)) return false;
  if ((work->flags & WORK_FUSED) != 0) lane->part = work + step->part;
  prim->engine->report->step_count += 1;
  return true;
}

/* ---- the begin and the end of a lane ---- */

/* With INPUTS_MIXED a rank can show its input to some of the others, and can read that of some. */
static bool input_is_hidden(const struct check_engine *engine, const struct conn *conn) {
  return engine->input->inputs == INPUTS_HIDDEN ||
         (engine->input->inputs == INPUTS_MIXED && ((conn->sender / 2 + conn->receiver) & 1) != 0);
}

/* Gives the lane one of its ends of connections; false if another lane uses it. */
static bool link_bind(struct prim *prim, uint32_t i, bool sends) {
  const struct work *work = prim->lane->work;
  const struct plan_limits *limits = &prim->engine->input->plans[prim->lane->rank].limits;
  struct conn *conn = sends ? seam_send_conn(prim, i) : seam_recv_conn(prim, i);
  struct link *link = sends ? &prim->run->send[i] : &prim->run->recv[i];
  uint32_t *user = sends ? &conn->send_lane : &conn->recv_lane;
  if (*user != LANE_NONE)
    return engine_fail(prim->engine, CHECK_PARTS, prim->lane, sends ? conn->receiver : conn->sender,
                       "uses the connection %s rank %u at once with another of its works",
                       sends ? "to" : "from", sends ? conn->receiver : conn->sender);
  *user = seam_lane_index(prim);
  *(sends ? &conn->send_link : &conn->recv_link) = i;
  link->sender = &conn->words->sender;
  link->receiver = &conn->words->receiver;
  link->buffer =
      (uint8_t *)(uintptr_t)(SEAM_SLOTS | (uint64_t)(conn - prim->engine->conns) << SEAM_CONN_SHIFT |
                             (uint64_t)work->proto << SEAM_PROTO_SHIFT);
  link->slots = prim->engine->slots;
  link->step_bytes = limits->step_bytes[work->proto];
  link->direct_shift = SEAM_WINDOW(i);
  link->peer = sends ? conn->receiver : conn->sender;
  link->shows = sends && (!input_is_hidden(prim->engine, conn) || seam_fault(prim, FAULT_INPUT_HIDDEN));
  return true;
}

/* A fault of the catalogue: a receiver that does not round up to a chunk. */
static void links_unround(struct prim *prim) {
  FIFO_EACH_LINK(i, prim->lane->work->recv_count, FIFO_ALL_LINKS) {
    link_open(&prim->run->recv[i], prim->run->recv[i].receiver->recv_step, 1);
  }
}

/* Both ends have rounded up to a whole chunk; the receiver has freed the steps between. */
static void links_note(struct prim *prim) {
  const struct work *work = prim->lane->work;
  for (uint32_t i = 0; i < work->recv_count; i++)
    seam_recv_conn(prim, i)->recv_step = prim->run->recv[i].step;
  for (uint32_t i = 0; i < work->send_count; i++) {
    struct conn *conn = seam_send_conn(prim, i);
    const uint64_t step = prim->run->send[i].step;
    conn->send_step = step;
    if (conn->written < step) conn->written = step;
  }
}

/* Lanes are large, and few run at once. */
static struct lane *run_take(struct check_engine *engine) {
  struct lane *run = engine->lane_spares;
  if (run) memcpy(&engine->lane_spares, (const void *)run, sizeof engine->lane_spares);
  else run = (struct lane *)arena_take_raw(&engine->arena, sizeof *run);
  return run;
}

static void run_give(struct check_engine *engine, struct lane *run) {
  memcpy((void *)run, &engine->lane_spares, sizeof engine->lane_spares);
  engine->lane_spares = run;
}

static bool lane_begin(struct prim *prim) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  const struct work *work = lane->work;
  const struct plan_limits *limits = &engine->input->plans[lane->rank].limits;
  struct lane *run = prim->run = lane->run = run_take(engine);
  if (!run) return engine_out_of_memory(engine);
  if (((uintptr_t)lane->buffers->in | (uintptr_t)lane->buffers->out) >> SEAM_WINDOW_SHIFT != 0)
    return engine_fail(engine, CHECK_RESOURCES, lane, UINT32_MAX,
                       "has memory at addresses that the checker uses itself: nothing is proved");
  for (uint32_t i = 0; i < work->recv_count; i++)
    if (!link_bind(prim, i, false)) return false;
  for (uint32_t i = 0; i < work->send_count; i++)
    if (!link_bind(prim, i, true)) return false;
  run->depth = 1;
  run->flag_bits = (uint8_t)(limits->flag_bits != 0 ? limits->flag_bits : 32);
  run->group_lines = GROUP_LINES;
  run->parts = lane->buffers;
  run->remote = false;
  run->scratch = (uint8_t *)(uintptr_t)lane->scratch;
  run->progress = lane_has_list(lane) ? engine->progress + (size_t)lane->rank * engine->list_count : NULL;
  prim->opens = true;
  lane_open(run, prim, work, lane->buffers->in, lane->buffers->out);
  prim->opens = false;
  if (seam_fault(prim, FAULT_NO_ROUNDING)) links_unround(prim);
  links_note(prim);
  if (!proxies_begin(prim)) return false;
  lane->phase = PHASE_RUNS;
  return !seam_failed(prim);
}

/* What the lane has waited for, slots or data, must show that its input was read over each link, and that the
 * address was taken. */
static bool inputs_are_free(const struct prim *prim) {
  for (uint32_t i = 0; lane_shows_input(prim->run) && i < prim->lane->work->send_count; i++) {
    const struct conn *conn = seam_send_conn(prim, i);
    if (conn->head_seen < conn->shown_step && conn->reads_seen < conn->shown_step)
      return engine_fail(prim->engine, CHECK_MEMORY, prim->lane, conn->receiver,
                         "ends before it knows that rank %u has read its input, up to step %" PRIu64
                         " of the connection",
                         conn->receiver, conn->shown_step);
  }
  return true;
}

/* The lane releases its connections; after the last lane of a batch the next batch begins. */
static bool lane_end(struct prim *prim) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  const struct work *work = lane->work;
  lane->phase = PHASE_ENDED;
  if (!inputs_are_free(prim)) return false;
  for (uint32_t i = 0; i < (uint32_t)work->recv_count + work->send_count; i++) {
    struct conn *conn = &engine->conns[lane->conns[i]];
    const bool sends = i >= work->recv_count;
    if (sends ? conn->open != NULL : conn->half_read)
      return engine_fail(engine, CHECK_MATCH, lane, sends ? conn->receiver : conn->sender,
                         "ends with a slot %s rank %u that another step was to share", sends ? "to" : "from",
                         sends ? conn->receiver : conn->sender);
    if (sends) conn->send_lane = LANE_NONE;
    else conn->recv_lane = LANE_NONE;
  }
  proxies_end(prim);
  run_give(engine, prim->run);
  lane->run = NULL;
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

/* ---- running ---- */

/* Where its move does not need a message, a lane does not wait for it; here it does, to compare both ends. */
static bool messages_are_there(struct prim *prim) {
  if (seam_fault(prim, FAULT_NO_WAIT)) return true;
  if (seam_fault(prim, FAULT_EMPTY_NOT_AWAITED) && seam_next_count(prim) == 0) return true;
  FIFO_EACH_LINK(i, prim->lane->work->recv_count, prim->run->step.recv_links) {
    const struct conn *conn = seam_recv_conn(prim, i);
    if (conn->held > 0) continue;
    prim->want = WANT_DATA;
    prim->want_conn = prim->lane->conns[i];
    return false;
  }
  return true;
}

/* Puts the lane aside until what it waits for moves. If something has come that is not what it waits for, the
 * lane would wait for ever. */
static bool lane_wait(struct prim *prim) {
  struct check_lane *lane = prim->lane;
  lane->want = prim->want;
  lane->want_conn = prim->want_conn;
  if (lane->want == WANT_LIST) {
    list_wait(prim->engine, lane, &prim->engine->lanes[lane->want_conn]);
    return true;
  }
  struct conn *conn = &prim->engine->conns[lane->want_conn];
  if (lane->want == WANT_DATA || lane->want == WANT_INPUT) conn->waiting_receiver = seam_lane_index(prim);
  else conn->waiting_sender = seam_lane_index(prim);
  if (lane->want == WANT_OFFER || lane->want == WANT_INPUT)
    return slots_meet_address(prim, conn, lane->want == WANT_OFFER);
  return lane->want != WANT_DATA || conn->held == 0 ||
         slots_meet(prim, conn->recv_link, &conn->messages[conn->got]);
}

/* The begin of a slice, or a step's lines: what the step waited for is known now. */
static bool slice_begin(struct prim *prim, uint32_t action) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  const struct step *step = &prim->run->step;
  if ((step->flags & STEP_AWAIT_LIST) != 0 && lane->list_seen >= prim->run->progress_begin) {
    const struct check_lane *other = &engine->lanes[lane->seen_list - 1];
    if (!list_learn(engine, lane, other, lane->list_seen - prim->run->progress_begin)) return false;
    lane->seen_list = 0;
  }
  prim->took = prim->sent = 0;
  prim->clears = false;
  prim->offset = 0;
  if (action == LANE_LL) {
    engine->report->slice_count += 1;
    engine->report->element_count += (uint64_t)step->count * lane->scale;
  }
  lane_move(prim->run, prim, action);
  return !seam_failed(prim) && (action == LANE_BEGIN || slots_settle(prim));
}

/* Of the moves that are possible, the one that shows most what may go wrong: a post before what it posts. */
static uint32_t action_choose(uint32_t actions) {
  return (actions & LANE_POST) != 0     ? LANE_POST
         : (actions & LANE_FINISH) != 0 ? LANE_FINISH
         : actions != 0                 ? lane_first_action(actions)
                                        : 0;
}

/* Makes a move; false after a broken rule. */
static bool lane_do(struct prim *prim, uint32_t action) {
  struct check_lane *lane = prim->lane;
  struct lane *run = prim->run;
  if (action == LANE_BEGIN || action == LANE_LL) return slice_begin(prim, action);
  if (action == LANE_POST && (!seam_is_simple(prim) || run->slice_index == run->slice_count))
    lane->step_number += 1;
  lane_move(run, prim, action);
  return !seam_failed(prim);
}

static bool sizes_agree(const struct prim *prim) {
  const struct lane *run = prim->run;
  if (run->error == LANE_OK) return true;
  return engine_fail(prim->engine, CHECK_PARTS, prim->lane, run->mismatch_peer,
                     "has %" PRIu64 " bytes of the operation here, where rank %u announces %" PRIu64,
                     run->expected_bytes, run->mismatch_peer, run->found_bytes);
}

static bool lane_advance_to_wait(struct prim *prim) {
  struct check_lane *lane = prim->lane;
  lane->want = WANT_NOTHING;
  if (lane->phase == PHASE_WAITS && !lane_begin(prim)) return false;
  while (prim->run->phase != LANE_DONE) {
    prim->want = WANT_NOTHING;
    prim->revealed = prim->list_may_show_more = false;
    const uint32_t actions = lane_enabled(prim->run, prim);
    lane->stuck_on_list = actions == 0 && prim->want == WANT_LIST;
    if (seam_failed(prim) || !sizes_agree(prim)) return false;
    if (actions == 0 && (prim->revealed || (lane->stuck_on_list && prim->list_may_show_more))) continue;
    const uint32_t action = action_choose(actions);
    if (action == 0 || ((action == LANE_BEGIN || action == LANE_LL) && !messages_are_there(prim)))
      return lane_wait(prim);
    if (!lane_do(prim, action) || !sizes_agree(prim)) return false;
  }
  return lane_end(prim);
}

bool executor_advance(struct check_engine *engine, struct check_lane *lane) {
  struct prim prim;
  memset(&prim, 0, sizeof prim);
  prim.engine = engine;
  prim.lane = lane;
  prim.run = lane->run;
  prim_now = &prim;
  const bool good = lane_advance_to_wait(&prim);
  prim_now = NULL;
  return good;
}
