/* record.c: writes lanes and their connections to the recorder's tables. The row of a lane is written only by
 * the thread that drives the lane; rows of connections are found and added with the world locked. */
#include "backends/emu/record.h"

#include "base/log.h"
#include "trace/recorder.h"

static_assert((int)WAIT_OFFER == (int)WAITS_OFFER && (int)WAIT_LIST == (int)WAITS_LIST, "one numbering");

/* An address of an input is offered like that of an output, and an input is read when its slots are free. */
static uint8_t wait_kind(const struct lane_wait *wait) {
  return (uint8_t)(wait->kind == WAIT_INPUT  ? WAITS_OFFER
                   : wait->kind == WAIT_READ ? WAITS_SLOT
                                             : wait->kind);
}

void emu_record_error(const struct device_comm *comm, ncclResult_t error) {
  recorder_break(comm->live.comm, (uint32_t)error, log_last_error());
}

static struct record_lane *lane_row(const struct emu_lane *emu) {
  const struct recorder_live *live = &emu->block->run->launch->comm->live;
  const uint32_t row = emu->lane.work->channel_index * PLAN_BATCH_WORKS_MAX + emu->lane_index;
  return row < live->comm->lane_rows ? &live->lanes[row] : NULL;
}

static void link_record(const struct emu_lane *emu, const struct link *link, bool sends) {
  const struct recorder_live *live = &emu->block->run->launch->comm->live;
  const struct work *work = emu->lane.work;
  const uint8_t conn = (uint8_t)(work_link_conn(work, link->peer, sends) | (sends ? RECORD_LINK_SENDS : 0));
  struct record_link *row = recorder_link(live, link->peer, (uint8_t)work->channel_index, work->proto, conn);
  if (row == NULL) return;
  row->step = link->step;
  row->head = sends ? link->cached : link->posted;
  row->tail = sends ? link->posted : link->cached;
}

/* Also writes the links of lanes that have ended, because another rank may wait for what they sent. */
static void lane_record(struct emu_lane *emu) {
  struct record_lane *row = lane_row(emu);
  struct lane_wait wait;
  for (uint32_t i = 0; i < emu->lane.work->recv_count; i++) link_record(emu, &emu->lane.recv[i], false);
  for (uint32_t i = 0; i < emu->lane.work->send_count; i++) link_record(emu, &emu->lane.send[i], true);
  if (row == NULL) return;
  row->used = 0; /* the row's content is older than the links */
  if (emu->lane.phase == LANE_DONE) return;
  emu_lane_wait(emu, &wait);
  *row = (struct record_lane){.used = 1,
                              .channel = (uint8_t)emu->lane.work->channel_index,
                              .lane = emu->lane_index,
                              .wait = wait_kind(&wait),
                              .peer = wait.peer,
                              .sequence = (uint32_t)emu_lane_sequence(emu),
                              .step = (uint32_t)emu->lane.steps_done,
                              .have = wait.have,
                              .need = wait.need};
}

void emu_record_block(struct emu_block *block) {
  if (block->run->launch->comm->live.comm == NULL) return;
  for (uint32_t i = 0; i < block->lane_count; i++) lane_record(&block->lanes[i]);
}

void emu_record_forget(const struct emu_block *block) {
  if (block->run->launch->comm->live.comm == NULL) return;
  for (uint32_t i = 0; i < block->lane_count; i++) {
    struct record_lane *row = lane_row(&block->lanes[i]);
    if (row != NULL) row->used = 0;
  }
}
