/* replay_seen.c: ranks on GPUs, whose counters were read from outside: a running kernel reports nothing, so
 * all that is known of a lane is that it waited, and the counters of its connections. First such lanes run as
 * far as they can, and must wait in the end; if that does not reach the recorded state, something that was
 * sent has not arrived, and they are held where the counters show. */
#include "replay/replay_world.h"

bool rank_is_seen(const struct live_rank *rank) {
  return rank->script->state != NULL && rank->script->state->view->comm->counts == RECORD_COUNTS_SEEN;
}

/* GPUs run direct collectives by phases, of two loops at a time: steps are posted a few at a time, and inputs
 * that are read in place need no step. */
static bool work_is_direct(const struct work *work) {
  return work->algo == ALGO_DIRECT || work->algo == ALGO_TWO_SHOT;
}

#define STEPS_MOST (UINT64_C(1) << 16) /* of one operation on one link: more than any GPU has taken */

/* The steps that the work takes on one of its links. */
static uint64_t work_link_steps(const struct work *work, uint32_t link_index, bool sends) {
  struct algo_iter it;
  struct step step;
  uint64_t steps = 0;
  for (algo_begin(&it, work); steps < STEPS_MOST && algo_next(&it, work, &step);)
    steps += (((sends ? step.send_links : step.recv_links) >> link_index) & 1) * work->chunk_steps;
  return steps;
}

/* If the start of the operation is not recorded: its first action is to tell its senders that all earlier
 * slots are free. */
static bool counters_are_ahead(const struct emu_lane *emu, const struct record_link *row) {
  const struct work *work = emu->lane.work;
  const struct live_rank *rank = live_of(emu->block->run->launch->comm);
  const struct record_link *from =
      work->recv_count > 0 ? link_row(rank, work, emu->lane.recv[0].peer, false) : NULL;
  return from != NULL ? from->head < from->step : row->tail < row->step;
}

/* Direct collectives record the start of the next operation before they wait. */
uint64_t seen_begin(const struct emu_lane *emu, const struct link *link, bool sends,
                    const struct record_link *row) {
  const struct work *work = emu->lane.work;
  const struct replay_comm *script = &world.replay->comms[emu->block->run->launch->comm->config.comm_id - 1];
  if (!work_is_direct(work)) return row->step;
  const uint32_t index = (uint32_t)(link - (sends ? emu->lane.send : emu->lane.recv));
  const uint64_t steps = work_link_steps(work, index, sends), begin = link_begin(work, link, sends);
  const bool ahead = script->whole ? row->step == begin + steps : counters_are_ahead(emu, row);
  return ahead && row->step >= steps ? row->step - steps : row->step;
}

/* A direct collective's counters are only known not to exceed its end. */
uint64_t seen_most(const struct emu_lane *emu, const struct link *link, bool sends) {
  const struct work *work = emu->lane.work;
  const uint32_t index = (uint32_t)(link - (sends ? emu->lane.send : emu->lane.recv));
  if (!work_is_direct(work)) return 0;
  return link_begin(work, link, sends) + work_link_steps(work, index, sends);
}

/* The next slice would move a counter beyond its recorded value; over LL only freed steps are posted. */
static bool link_is_there(const struct emu_lane *emu, const struct link *link, bool sends) {
  const struct work *work = emu->lane.work;
  const struct record_link *row = link_row(live_of(emu->block->run->launch->comm), work, link->peer, sends);
  const bool late = work_is_direct(work);
  if (row == NULL || (sends && (late || work->proto != PROTO_SIMPLE))) return false;
  const uint64_t begin = seen_begin(emu, link, sends, row);
  const uint64_t told = sends || (late && work->proto == PROTO_SIMPLE) ? row->tail : row->head;
  return link->step - link_begin(work, link, sends) >= (told > begin ? told - begin : 0);
}

static bool lane_is_there(const struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  for (uint32_t i = 0; i < lane->work->recv_count && lane->has_step; i++)
    if (((lane->step.recv_links >> i) & 1) != 0 && link_is_there(emu, &lane->recv[i], false)) return true;
  for (uint32_t i = 0; i < lane->work->send_count && lane->has_step; i++)
    if (((lane->step.send_links >> i) & 1) != 0 && link_is_there(emu, &lane->send[i], true)) return true;
  return false;
}

uint32_t seen_allows(struct target *target, uint32_t actions, uint32_t late) {
  struct emu_lane *emu = target->live;
  const bool runs = emu->lane.phase == LANE_RUN;
  if (world.scenario->holds_seen && runs && lane_is_there(emu)) {
    target->held = true;
    return actions & late;
  }
  target->held = lane_wait_first(&emu->lane, &emu->prim).kind != WAIT_NOTHING;
  return actions;
}
