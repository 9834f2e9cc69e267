/* fault_injection.c: the faults of lanes that TUTTI_EMU may request (fault.h): a lane stops, or one of its
 * counters is stale or corrupt. Only in guarded mode, where no other event runs at the same time. */
#include "backends/emu/fault_injection.h"

#include "backends/fault.h"
#include "base/log.h"

static struct {
  struct fault_plan plan;
  uint64_t *counter; /* the wrong counter; NULL if there is none */
  uint64_t value;    /* its wrong value */
} injected;

void emu_fault_restart(const struct emu_options *options) {
  const enum fault_kind kind = (enum fault_kind)options->fault;
  fault_plan_make(&injected.plan, FAULT_IS_LANES(kind) ? kind : FAULT_NOTHING, options->fault_at,
                  options->seed);
  injected.counter = NULL;
}

bool emu_fault_holds(const uint64_t *counter) { return counter == injected.counter; }

static void injected_report(const struct emu_lane *emu, uint32_t peer) {
  const struct device_comm *comm = emu->block->run->launch->comm;
  log_info(LOG_COLL, "fault '%s' happens on channel %u, from rank %u to rank %u of %s",
           fault_names[injected.plan.kind], emu->lane.work->channel_index, comm->config.rank, peer,
           comm->name);
}

static bool counter_hold(const struct emu_lane *emu, const struct link *link, uint64_t *counter,
                         uint64_t value) {
  injected.counter = counter;
  injected.value = value;
  injected_report(emu, link->peer);
  return true;
}

/* Sets a receiver's tail back to its value before the last slice or, to corrupt it, below the receiver's
 * head. */
static bool tail_spoil(const struct emu_lane *emu, bool corrupt) {
  const uint32_t steps = emu->lane.work->slice_steps;
  for (uint32_t i = 0; i < emu->lane.work->send_count && emu->lane.work->proto == PROTO_SIMPLE; i++) {
    const struct link *link = &emu->lane.send[i];
    const uint64_t head = prim_load_acquire(&link->sender->head);
    if (emu->send_conn[i]->net || link->posted < steps || (corrupt && head == 0)) continue;
    if (prim_load_acquire(&link->receiver->tail) != link->posted) continue; /* the slice was not sent there */
    return counter_hold(emu, link, &link->receiver->tail, corrupt ? head - 1 : link->posted - steps);
  }
  return false;
}

/* The same for the head, which counts the slots that the lane has freed. */
static bool head_spoil(const struct emu_lane *emu, bool corrupt) {
  const uint32_t steps = emu->lane.work->proto == PROTO_SIMPLE ? emu->lane.work->slice_steps : 1;
  for (uint32_t i = 0; i < emu->lane.work->recv_count; i++) {
    const struct link *link = &emu->lane.recv[i];
    if (emu->recv_conn[i]->net || link->posted < steps || (corrupt && link->posted <= link->slots)) continue;
    if (prim_load_acquire(&link->sender->head) != link->posted) continue;
    return counter_hold(emu, link, &link->sender->head,
                        corrupt ? link->posted - link->slots - 1 : link->posted - steps);
  }
  return false;
}

void emu_fault_inject(struct emu_lane *emu, uint32_t action) {
  const bool corrupt = injected.plan.kind == FAULT_CORRUPT;
  if (injected.counter != NULL) {
    prim_store_release(injected.counter, injected.value);
    return;
  }
  if (injected.plan.kind == FAULT_NOTHING || (action != LANE_POST && action != LANE_LL)) return;
  if (injected.plan.count < injected.plan.at) fault_next(&injected.plan);
  if (injected.plan.count < injected.plan.at) return;
  if (injected.plan.kind == FAULT_FREEZE) {
    emu->frozen = true;
    injected_report(emu, emu->block->run->launch->comm->config.rank);
    injected.plan.kind = FAULT_NOTHING;
  } else if (tail_spoil(emu, corrupt) || head_spoil(emu, corrupt)) { /* else the next slice is tried */
    prim_store_release(injected.counter, injected.value);
  }
}
