/* replay_view.c: what a session prints of the world: ranks, who waits for whom, lanes with the slots,
 * counters and flags of their connections, and plans. Reads only; the world is locked. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "replay/replay_session.h"
#include "trace/record_text.h"

bool place_has_rank(const struct replay_place *place, const struct device_comm *comm) {
  return (place->rank == REPLAY_NONE || comm->config.rank == place->rank) &&
         (place->comm == REPLAY_NONE || comm->config.comm_id == place->comm + 1);
}

uint32_t operation_func(const struct device_comm *comm, uint64_t sequence, uint32_t usual) {
  const struct replay_rank *script = world.ranks[comm->config.comm_id - 1][comm->config.rank].script;
  for (uint32_t i = 0; i < script->op_count; i++)
    if (script->ops[i].sequence == sequence) return script->ops[i].call.func;
  return usual;
}

static const char *func_of_lane(const struct emu_lane *emu) {
  return record_func_name(
      operation_func(emu->block->run->launch->comm, emu_lane_sequence(emu), emu->lane.work->func));
}

/* ---- ranks ---- */

static const struct emu_kernel_run *run_now(const struct live_rank *rank) {
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    if (run->launch->comm == rank->device && run->turn == rank->device->turn) return run;
  return NULL;
}

static void rank_print(const struct replay_comm *comm, const struct live_rank *rank) {
  const struct emu_kernel_run *run = run_now(rank);
  printf("rank %u of comm '%.40s', device %u: %" PRIu64 " of %" PRIu64 " kernels ended", rank->script->rank,
         comm->name, rank->script->device, rank->device->turn, rank->launched);
  if (run != NULL && run->launch->plan.work_count > 0) {
    const struct work *work = &run->launch->plan.works[0];
    const uint64_t sequence = run->first_sequence + work->op_sequence;
    printf("; in operation #%" PRIu64 " %s, %s %s", sequence,
           record_func_name(operation_func(rank->device, sequence, work->func)), record_algo_name(work->algo),
           record_proto_name(work->proto));
  } else if (rank->device->turn < rank->launched) printf("; its next kernel has not started");
  putchar('\n');
}

void view_ranks(void) {
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++)
      rank_print(&world.replay->comms[c], &world.ranks[c][r]);
}

/* ---- who waits for whom ---- */

/* A rank of a communicator as a number: communicators one after another. */
struct waits {
  uint32_t comm, begin, told; /* of this communicator; lines printed */
  uint32_t *next;             /* by number: one that it waits for, or REPLAY_NONE */
};

static bool lane_waits(struct emu_lane *emu, uint32_t *peer) {
  const struct target *target = target_of(emu);
  const struct lane_wait wait = lane_wait_first(&emu->lane, &emu->prim);
  const bool held = target != NULL && target->held && !world.lifted && target->row->wait != WAITS_NOT;
  if (wait.kind == WAIT_NOTHING && !held) return false;
  *peer = wait.kind != WAIT_NOTHING ? wait.peer : target->row->peer;
  return wait.kind != WAIT_LIST;
}

static bool wait_print(void *argument, struct emu_lane *emu) {
  struct waits *waits = (struct waits *)argument;
  const struct device_comm *comm = emu->block->run->launch->comm;
  char text[REPLAY_TEXT_BYTES];
  uint32_t peer = 0;
  if (comm->config.comm_id != waits->comm + 1 || !lane_waits(emu, &peer)) return true;
  uint32_t *next = &waits->next[waits->begin + comm->config.rank];
  if (*next == REPLAY_NONE) *next = waits->begin + peer;
  lane_say_wait(emu, text);
  printf("  rank %u waits for rank %u: channel %u: %s\n", comm->config.rank, peer,
         emu->lane.work->channel_index, text);
  waits->told += 1;
  return true;
}

static struct live_rank *rank_of(uint32_t number, uint32_t *comm) {
  for (*comm = 0; number >= world.replay->comms[*comm].rank_count; *comm += 1)
    number -= world.replay->comms[*comm].rank_count;
  return &world.ranks[*comm][number];
}

/* A kernel that has not started waits for the one that runs on its device. */
static uint32_t device_blocks(const struct live_rank *rank) {
  uint32_t number = 0;
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++, number++) {
      const struct live_rank *other = &world.ranks[c][r];
      if (other != rank && other->script->device == rank->script->device && run_now(other) != NULL)
        return number;
    }
  return REPLAY_NONE;
}

static uint32_t number_next(const struct waits *waits, uint32_t number) {
  uint32_t c;
  const struct live_rank *rank = rank_of(number, &c);
  if (waits->next[number] != REPLAY_NONE) return waits->next[number];
  const bool queued = rank->device->turn < rank->launched && run_now(rank) == NULL;
  return queued ? device_blocks(rank) : REPLAY_NONE;
}

static void number_print(uint32_t number) {
  uint32_t c;
  const struct live_rank *rank = rank_of(number, &c);
  if (world.replay->comm_count == 1) printf("rank %u", rank->script->rank);
  else printf("rank %u of comm '%.40s'", rank->script->rank, world.replay->comms[c].name);
}

/* Follows one wait of each rank: to a cycle, or to a rank that waits for none. */
static void waits_conclude(const struct waits *waits, uint32_t count) {
  uint32_t at = 0, c;
  while (at < count && waits->next[at] == REPLAY_NONE) at++;
  if (at == count) return;
  for (uint32_t i = 0; i < count && number_next(waits, at) != REPLAY_NONE; i++) at = number_next(waits, at);
  if (number_next(waits, at) == REPLAY_NONE) {
    const struct live_rank *rank = rank_of(at, &c);
    fputs("waits for no rank: ", stdout);
    rank_print(&world.replay->comms[c], rank);
    return;
  }
  fputs("a cycle: ", stdout);
  number_print(at);
  for (uint32_t next = number_next(waits, at); next != at; next = number_next(waits, next)) {
    fputs(" -> ", stdout);
    number_print(next);
  }
  fputs(" -> ", stdout);
  number_print(at);
  putchar('\n');
}

void view_waits(void) {
  uint32_t count = 0;
  for (uint32_t c = 0; c < world.replay->comm_count; c++) count += world.replay->comms[c].rank_count;
  struct waits waits = {0, 0, 0, (uint32_t *)os_alloc((count + 1) * sizeof(uint32_t))};
  if (waits.next == NULL) return;
  for (uint32_t i = 0; i < count; i++) waits.next[i] = REPLAY_NONE;
  for (; waits.comm < world.replay->comm_count; waits.comm++) {
    waits.told = 0;
    printf("comm '%.40s':\n", world.replay->comms[waits.comm].name);
    lanes_each(wait_print, &waits);
    if (waits.told == 0) puts("  no lane waits");
    waits.begin += world.replay->comms[waits.comm].rank_count;
  }
  waits_conclude(&waits, count);
  os_free(waits.next);
}

/* ---- lanes ---- */

/* The flag of a slot's first line, and how many lines from there on have it, unless all. */
static void slot_print_flag(const struct link *link, uint8_t proto, uint32_t slot) {
  const uint32_t line_bytes = proto == PROTO_LL ? 16 : FIFO_LINE_BYTES;
  const uint32_t lines = link->step_bytes / line_bytes, at = proto == PROTO_LL ? 4 : 120;
  const uint8_t *begin = link->buffer + slot * fifo_slot_bytes(proto, link->step_bytes) +
                         (proto == PROTO_LL ? FIFO_LL_TAGGED_BYTES : 0);
  uint32_t flag = 0, other = 0, count = 1;
  memcpy(&flag, begin + at, sizeof flag);
  for (; count < lines; count++) {
    memcpy(&other, begin + (size_t)count * line_bytes + at, sizeof other);
    if (other != flag) break;
  }
  printf(" %u", flag);
  if (count < lines) printf(" (%u of %u lines, then %u)", count, lines, other);
}

/* The step that is in a slot; `-`: it is free. */
static void slot_print_step(const struct link *link, const struct emu_conn *conn, uint32_t slot) {
  const uint64_t head = conn->fifo->sender.head, tail = conn->fifo->receiver.tail;
  uint64_t step = head;
  while (step < tail && link_slot_of(link, step) != slot) step++;
  if (step < tail) printf(" %" PRIu64, step);
  else fputs(" -", stdout);
}

static void slots_print(const struct link *link, const struct emu_conn *conn, uint8_t proto) {
  const bool steps = proto == PROTO_SIMPLE;
  fputs(steps ? "      steps in the slots:" : "      flags in the slots:", stdout);
  for (uint32_t slot = 0; slot < link->slots; slot++) {
    if (slot > 0) putchar(',');
    if (steps) slot_print_step(link, conn, slot);
    else slot_print_flag(link, proto, slot);
  }
  printf("; next: slot %u\n", steps ? link->slot_index : link->line_slot);
}

static void link_show(const struct emu_lane *emu, const struct link *link, const struct emu_conn *conn,
                      bool sends) {
  const uint8_t proto = emu->lane.work->proto;
  printf("    %s rank %u: step %" PRIu64 ", posted %" PRIu64 ", seen %" PRIu64 "; head %" PRIu64
         ", tail %" PRIu64 ", %u slots of %u bytes%s%s\n",
         sends ? "to" : "from", link->peer, link->step, link->posted, link->cached, conn->fifo->sender.head,
         conn->fifo->receiver.tail, link->slots, link->step_bytes,
         emu_conn_reads(conn, link) ? " at the sender" : "",
         sends && link->direct != NULL ? "; stores into the output" : "");
  if (proto != PROTO_SIMPLE)
    printf("      %" PRIu64 " steps of %s before; the next has flag %" PRIu64 "\n", link->line,
           record_proto_name(proto),
           emu->lane.flag_bits >= 32 ? link->line + 1
                                     : (link->line + 1) & ((UINT64_C(1) << emu->lane.flag_bits) - 1));
  if (link->buffer != NULL) slots_print(link, conn, proto);
}

static void lane_show(struct emu_lane *emu) {
  static const char *const phases[] = {"opens", "runs", "has ended"};
  const struct device_comm *comm = emu->block->run->launch->comm;
  const struct work *work = emu->lane.work;
  char text[REPLAY_TEXT_BYTES];
  lane_say_wait(emu, text);
  printf("  rank %u of comm '%.40s', channel %u, lane %u: %s #%" PRIu64 ", %s %s, batch %u, %s: %s\n",
         comm->config.rank, comm->name, work->channel_index, emu->lane_index, func_of_lane(emu),
         emu_lane_sequence(emu), record_algo_name(work->algo), record_proto_name(work->proto),
         emu->block->batch_index, emu->lane.phase <= LANE_DONE ? phases[emu->lane.phase] : "?", text);
  printf("    step %" PRIu64 ", slice %u of %u; slices begun %" PRIu64 ", finished %" PRIu64
         ", posted %" PRIu64 "; line %u of %u\n",
         emu->lane.steps_done, emu->lane.slice_index, emu->lane.slice_count, emu->lane.begun,
         emu->lane.finished, emu->lane.posted, emu->lane.line_index, emu->lane.line_count);
  for (uint32_t i = 0; i < work->recv_count; i++)
    link_show(emu, &emu->lane.recv[i], emu->recv_conn[i], false);
  for (uint32_t i = 0; i < work->send_count; i++) link_show(emu, &emu->lane.send[i], emu->send_conn[i], true);
}

struct showing {
  const struct replay_place *place;
  bool any;
};

static bool lane_show_if(void *argument, struct emu_lane *emu) {
  struct showing *showing = (struct showing *)argument;
  const struct replay_place *place = showing->place;
  if (!place_has_rank(place, emu->block->run->launch->comm) ||
      (place->channel != REPLAY_NONE && emu->lane.work->channel_index != place->channel) ||
      (place->lane != REPLAY_NONE && emu->lane_index != place->lane))
    return true;
  lane_show(emu);
  showing->any = true;
  return true;
}

bool view_lanes(const struct replay_place *place) {
  struct showing showing = {place, false};
  lanes_each(lane_show_if, &showing);
  return showing.any;
}

/* ---- plans ---- */

static void peers_print(const char *what, const uint32_t *peers, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) printf("%s%u", i == 0 ? what : ", ", peers[i]);
}

static void plan_print(const struct replay_comm *comm, uint32_t rank, const struct plan *plan,
                       uint64_t first) {
  printf("rank %u of comm '%.40s': %u works in %u batches on %d channels; %u slots\n", rank, comm->name,
         plan->work_count, plan->batch_count, __builtin_popcountll(plan->channel_mask), plan->limits.slots);
  for (uint32_t b = 0; b < plan->batch_count; b++)
    for (uint32_t i = 0; i < plan->batches[b].work_count; i++) {
      const struct work *work = &plan->works[plan->batches[b].first_work + i];
      printf("  channel %u, batch %u, lane %u: %s #%" PRIu64
             ", %s %s, %zu of %zu elements of %u bytes, chunks of "
             "%zu",
             plan->batches[b].channel_index, b, i, record_func_name(work->func), first + work->op_sequence,
             record_algo_name(work->algo), record_proto_name(work->proto), (size_t)work->part_count,
             (size_t)work->count, work->element_bytes, (size_t)work->chunk_count);
      peers_print("; from rank ", work->recv_peer, work->recv_count);
      peers_print("; to rank ", work->send_peer, work->send_count);
      putchar('\n');
    }
}

/* The launch of the operation; without one, the rank's current launch. launch_count: there is none. */
static uint32_t launch_find(const struct live_rank *rank, const struct replay_place *place) {
  const struct replay_rank *script = rank->script;
  for (uint32_t i = 0; i < script->launch_count; i++) {
    const struct replay_launch *launch = &script->launches[i];
    if (place->sequence == UINT64_MAX && place->func == REPLAY_NONE && i == rank->device->turn) return i;
    for (uint32_t k = 0; k < launch->op_count; k++) {
      const struct replay_op *op = &script->ops[launch->first_op + k];
      if (op->sequence == place->sequence || (place->sequence == UINT64_MAX && place->func == op->call.func))
        return i;
    }
  }
  return script->launch_count;
}

static bool rank_view_plan(uint32_t c, uint32_t r, const struct replay_place *place,
                           char why[REPLAY_TEXT_BYTES]) {
  struct replay_comm *comm = &world.replay->comms[c];
  const struct replay_rank *script = world.ranks[c][r].script;
  const uint32_t index = launch_find(&world.ranks[c][r], place);
  struct plan plan;
  if (index == script->launch_count) {
    replay_say(why, "rank %u of comm '%.40s' has no such operation here", r, comm->name);
    return false;
  }
  const struct replay_launch *launch = &script->launches[index];
  const struct replay_op *ops = &script->ops[launch->first_op];
  if (replay_plan(world.replay, comm, script, ops, launch, world.memory, &plan) != ncclSuccess) {
    replay_say(why, "%.480s", log_own_error());
    return false;
  }
  plan_print(comm, r, &plan, ops[0].sequence);
  plan_free(&plan);
  return true;
}

bool view_plan(const struct replay_place *place, char why[REPLAY_TEXT_BYTES]) {
  bool any = false;
  replay_say(why, "no rank has such an operation here");
  for (uint32_t c = 0; c < world.replay->comm_count; c++)
    for (uint32_t r = 0; r < world.replay->comms[c].rank_count; r++)
      if (place_has_rank(place, world.ranks[c][r].device)) any = rank_view_plan(c, r, place, why) || any;
  return any;
}
