/* block.c: the emulator's kernels. A launch is a plan bound to a rank. Each channel of it is a block, and
 * each work of a block's current batch is a lane that runs the shared executors. guarded: lanes are actors
 * that run one event at a time, with the checks around it. threads: a thread advances a block's lanes in
 * turn. The algorithms are in the works, not here. */
#include "backends/emu/block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/check.h"
#include "backends/emu/order.h"
#include "backends/emu/rma.h"
#include "backends/emu/scheduler_gate.h"
#include "backends/emu/fault_injection.h"
#include "backends/emu/record.h"
#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "trace/trace.h"

#define LANE_KEY_KIND UINT64_C(2) /* beside EMU_KEY_STREAM */
#define ERROR_LAUNCH_TIMEOUT 702  /* cudaErrorLaunchTimeout */

struct device_comm *emu_comms;
struct emu_kernel_run *emu_runs;
const struct emu_gate *emu_gate;

static bool comm_aborted(const struct device_comm *comm) {
  return __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0;
}

void emu_comm_free(struct device_comm *comm) {
  if (comm->signals != NULL && !emu_arena_free(comm->signals)) os_free(comm->signals);
  os_free(comm->signals_there);
  os_free(comm);
}

/* ---- failing a communicator ---- */

static void run_wake_lanes(struct emu_kernel_run *run) {
  for (uint32_t b = 0; b < run->launch->block_count; b++) {
    struct emu_block *block = &run->launch->blocks[b];
    for (uint32_t i = 0; i < block->lane_count; i++) emu_actor_wake(&block->lanes[i].actor);
  }
}

void emu_comm_abort_rank(struct device_comm *comm) {
  emu_race_forget();
  __atomic_store_n(&comm->abort_flag, 1, __ATOMIC_RELAXED);
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    if (run->launch->comm == comm && emu_options()->mode == EMU_GUARDED) run_wake_lanes(run);
  emu_kernel_runs_wake();
  emu_comm_order_share();
  emu_changed();
}

void emu_comm_fail(uint64_t comm_id, ncclResult_t error) {
  for (struct device_comm *comm = emu_comms; comm != NULL; comm = comm->next) {
    if (comm->config.comm_id != comm_id) continue;
    if (comm->error == ncclSuccess) __atomic_store_n(&comm->error, error, __ATOMIC_RELAXED);
    emu_record_error(comm, error);
    if (!comm->error_traced) emu_trace(TRACE_ERROR, 0, comm, 0, 0, 0, (uint64_t)error);
    emu_comm_abort_rank(comm);
  }
}

uint64_t emu_lane_sequence(const struct emu_lane *emu) {
  return emu->block->run->first_sequence + lane_part(&emu->lane)->op_sequence;
}

static void lane_report_broken(struct emu_lane *emu, const char *text) {
  char lane_text[320], cached[512];
  const struct device_comm *comm = emu->block->run->launch->comm;
  emu_report_lane(lane_text, sizeof lane_text, emu);
  emu_report_reproduce(cached, sizeof cached);
  log_urgent("comm %s: invariant broken at event %" PRIu64 ": %s; %s; %s", comm->name, emu_event_count(),
             text, lane_text, cached);
  emu_comm_fail(comm->config.comm_id, ncclInternalError);
}

static void lane_report_mismatch(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  const struct device_comm *comm = emu->block->run->launch->comm;
  log_urgent("comm %s: rank %u and rank %u do not agree on operation %" PRIu64 " (%s): rank %u has %" PRIu64
             " bytes for channel %u where "
             "rank %u expects %" PRIu64
             "; call the same collective with the same count and type on all ranks, in the same order",
             comm->name, lane->mismatch_peer, comm->config.rank, emu_lane_sequence(emu),
             emu_func_name(lane->work->func), lane->mismatch_peer, lane->found_bytes,
             lane->work->channel_index, comm->config.rank, lane->expected_bytes);
  emu_comm_fail(comm->config.comm_id, ncclInvalidUsage);
}

/* ---- lanes ---- */

static void lane_bind_link(struct link *link, struct emu_conn *conn, const struct work *work, uint32_t peer) {
  link->sender = &conn->fifo->sender;
  link->receiver = &conn->fifo->receiver;
  link->buffer = conn->buffer[emu_conn_slots(conn, work)];
  link->slots = conn->slots;
  link->step_bytes = conn->step_bytes[work->proto];
  link->direct_shift = conn->peer_shift;
  link->peer = peer;
}

/* LL uses the connection's own slots. */
static void lane_bind_pool(struct emu_lane *emu, struct link *link, const struct work *work,
                           const struct emu_conn *conn, bool sends) {
  const struct device_comm *comm = emu->block->run->launch->comm;
  if (!conn->pooled || work->proto == PROTO_LL) return;
  link->buffer =
      (uint8_t *)map_find(&comm->slots, backend_slots_key(conn->channel_index, emu->lane_index, sends));
}

/* A rank that sends to a rank of another process has mapped that rank's memory, so it can also read that
 * rank's input. */
static void lane_bind_shown(struct emu_lane *emu, const struct work *work) {
  if ((work->flags & WORK_SHOWS_INPUT) == 0) return;
  for (uint32_t i = 0; i < work->recv_count; i++)
    for (uint32_t k = 0; k < work->send_count; k++)
      if (work->send_peer[k] == work->recv_peer[i])
        emu->lane.recv[i].direct_shift = emu->send_conn[k]->peer_shift;
}

/* Gives the lane its rank's ends of connections, all of which core has opened. */
static void lane_bind(struct emu_lane *emu, const struct work *work) {
  struct device_comm *comm = emu->block->run->launch->comm;
  emu->remote = false;
  for (uint32_t i = 0; i < work->recv_count; i++) {
    const uint32_t peer = work->recv_peer[i], conn_index = work_link_conn(work, peer, false);
    emu->recv_conn[i] = emu_conn_find(comm, peer, work->channel_index, conn_index, false);
    emu->remote |= emu_conn_is_remote(emu->recv_conn[i]);
    lane_bind_link(&emu->lane.recv[i], emu->recv_conn[i], work, peer);
    lane_bind_pool(emu, &emu->lane.recv[i], work, emu->recv_conn[i], false);
  }
  for (uint32_t i = 0; i < work->send_count; i++) {
    const uint32_t peer = work->send_peer[i], conn_index = work_link_conn(work, peer, true);
    emu->send_conn[i] = emu_conn_find(comm, peer, work->channel_index, conn_index, true);
    emu->remote |= emu_conn_is_remote(emu->send_conn[i]);
    lane_bind_link(&emu->lane.send[i], emu->send_conn[i], work, peer);
    lane_bind_pool(emu, &emu->lane.send[i], work, emu->send_conn[i], true);
  }
  lane_bind_shown(emu, work);
}

/* Registers the lane at its connections, so that the other end can wake it. Guarded mode only. */
static void lane_attach(struct emu_lane *emu, const struct work *work) {
  emu->bound = true;
  for (uint32_t i = 0; i < work->recv_count; i++) emu->recv_conn[i]->recv_lane = emu;
  for (uint32_t i = 0; i < work->send_count; i++) emu->send_conn[i]->send_lane = emu;
}

/* Senders of other processes cannot store into an output outside the arena. */
static void lane_hide_output(const struct emu_lane *emu, struct work *work, const void *out) {
  uint64_t offset;
  work->flags &= ~(uint32_t)WORK_OUTPUT_HIDDEN;
  if (!emu->remote || (work->flags & WORK_DIRECT_RECV) == 0) return;
  for (uint32_t i = 0; i < work->recv_count; i++)
    if (emu_conn_is_remote(emu->recv_conn[i]) && !emu_arena_offset(out, &offset))
      work->flags |= WORK_OUTPUT_HIDDEN;
}

/* Such that with inputs=2 each rank has links of both kinds. */
static bool conn_is_odd(const struct emu_conn *conn) {
  return ((conn->sender_rank / 2 + conn->receiver_rank + conn->channel_index) & 1) != 0;
}

/* A receiver of this process can read any input, and one of another process those in the arena, if it sends
 * to this rank too (lane_bind_shown): the root of a reduction in one hop does not. */
static void lane_show_input(struct emu_lane *emu, const struct work *work, const void *in) {
  uint64_t offset;
  if ((work->flags & WORK_SHOWS_INPUT) == 0) return;
  const bool shared = emu->remote && work->recv_count > 0 && emu_arena_offset(in, &offset);
  for (uint32_t i = 0; i < work->send_count; i++) {
    const struct emu_conn *conn = emu->send_conn[i];
    const bool hidden = emu_options()->inputs == 2 && conn_is_odd(conn);
    emu->lane.send[i].shows = !hidden && (shared || !emu_conn_is_remote(conn));
  }
}

static void lane_detach(struct emu_lane *emu) {
  const struct work *work = emu->lane.work;
  emu->bound = false;
  for (uint32_t i = 0; i < work->recv_count; i++) emu->recv_conn[i]->recv_lane = NULL;
  for (uint32_t i = 0; i < work->send_count; i++) emu->send_conn[i]->send_lane = NULL;
}

static inline void lane_wake(struct emu_lane *emu) {
  if (emu != NULL) emu_actor_wake(&emu->actor);
}

/* Wakes the lane at the other end of a connection, or notes that its process should look. */
static inline void lane_wake_end(const struct emu_lane *emu, const struct emu_conn *conn, bool sends) {
  const struct device_comm *comm = emu->block->run->launch->comm;
  lane_wake(sends ? conn->recv_lane : conn->send_lane);
  if (emu_conn_is_remote(conn) && comm->order_slots != NULL)
    emu_order_touch(comm->order_slots[sends ? conn->receiver_rank : conn->sender_rank]);
}

/* A step of a list has ended: wakes the rank's other lanes, which may wait for it. */
static void lane_wake_lists(const struct emu_lane *emu) {
  if (emu->lane.progress == NULL || emu->lane.work->algo != ALGO_CUSTOM) return;
  run_wake_lanes(emu->block->run);
}

/* Wakes the actors that may wait for what this action changed. */
static inline void lane_wake_peers(struct emu_lane *emu, uint32_t action) {
  const struct work *work = emu->lane.work;
  if (action == LANE_POST || action == LANE_END) lane_wake_lists(emu);
  if (action == LANE_BEGIN || action == LANE_FINISH || action == LANE_END) return;
  bool net = false;
  for (uint32_t i = 0; i < work->recv_count; i++) {
    lane_wake_end(emu, emu->recv_conn[i], false);
    net |= emu->recv_conn[i]->net;
  }
  for (uint32_t i = 0; i < work->send_count; i++) {
    lane_wake_end(emu, emu->send_conn[i], true);
    net |= emu->send_conn[i]->net;
  }
  if (net) emu_services_poke();
}

static bool lane_actor_enabled(struct emu_actor *actor) {
  struct emu_lane *emu = (struct emu_lane *)actor;
  if (emu->actions != 0) return true; /* an enabled action stays enabled until this lane runs */
  if (emu->lane.phase == LANE_DONE) return false;
  if (prim_aborted(&emu->prim)) emu->actions = EMU_LANE_ABORT;
  else if (emu->frozen) return false;
  else emu->actions = lane_enabled(&emu->lane, &emu->prim);
  if ((emu->actions & LANE_END) != 0 && emu_lane_is_held(emu)) emu->actions &= ~(uint32_t)LANE_END;
  if (emu->lane.error != LANE_OK) emu->actions = EMU_LANE_ABORT;
  if (emu_gate != NULL) emu->actions = emu_gate->lane(emu, emu->actions);
  return emu->actions != 0;
}

void emu_lane_wait(struct emu_lane *emu, struct lane_wait *wait) {
  *wait = lane_wait_first(&emu->lane, &emu->prim);
}

/* One of the enabled actions, drawn at random. */
static uint32_t lane_choose(uint32_t actions) {
  if ((actions & (actions - 1)) == 0) return actions;
  uint32_t skip = (uint32_t)(emu_random() >> 32) % (uint32_t)__builtin_popcount(actions);
  while (skip-- > 0) actions &= actions - 1;
  return actions & (~actions + 1);
}

static void lane_trace(const struct emu_lane *emu, uint32_t action) {
  const struct lane *lane = &emu->lane;
  const uint64_t elements = action == LANE_BEGIN || action == LANE_LL ? lane->step.count : 0;
  const uint64_t value = lane->steps_done << 32 | (elements & 0xffffffffu);
  emu_trace_hash(emu->trace_key, (uint8_t)action, value);
  if (emu_meter.tracing)
    emu_trace_write(TRACE_LANE, (uint8_t)action, emu->block->run->launch->comm, lane->work->channel_index,
                    emu->lane_index, lane->step.chunk_index, value);
}

static bool lane_faultless(void) {
  struct emu_lane *lane;
  const char *text = emu_weak_fault(&lane);
  if (text != NULL) lane_report_broken(lane, text);
  return text == NULL;
}

void emu_lane_stores_seen(struct emu_lane *emu) {
  lane_wake_peers(emu, LANE_POST);
  lane_faultless();
}

/* Checks, performs and traces one action. False if an invariant is broken. */
static bool lane_act(struct emu_lane *emu, uint32_t action) {
  const char *broken = emu_check_before(emu, action);
  if (broken == NULL) {
    const uint64_t steps = emu->lane.steps_done;
    lane_trace(emu, action);
    lane_move(&emu->lane, &emu->prim, action);
    emu_meter.steps_done += emu->lane.steps_done - steps;
    broken = emu_check_after(emu, action);
    /* The data of this slice was moved at its begin, so its finish is part of the same event. */
    if (action == LANE_BEGIN && !emu->prim.late && emu->lane.begun == emu->lane.finished + 1) {
      emu_check_before(emu, LANE_FINISH);
      lane_move(&emu->lane, &emu->prim, LANE_FINISH);
      if (emu->lane.depth == 1)
        emu->actions = LANE_POST; /* the only enabled action: saves a call of lane_enabled() */
    }
  }
  if (broken != NULL) lane_report_broken(emu, broken);
  return broken == NULL;
}

static void block_lane_ended(struct emu_block *block);

#define CACHE_LINE_BYTES 64u
#define FETCH_BYTES_MOST 2048u /* cores fetch the rest ahead themselves */

static inline void fetch(const uint8_t *memory, uint32_t bytes, bool stores) {
  if (bytes > FETCH_BYTES_MOST) bytes = FETCH_BYTES_MOST;
  for (uint32_t i = 0; i < bytes; i += CACHE_LINE_BYTES) {
    if (stores) __builtin_prefetch(memory + i, 1);
    else __builtin_prefetch(memory + i, 0);
  }
}

/* The data of a thousand ranks fits into no cache. Asks for all that a move of LL reads and writes at once,
 * so that it waits for memory once: with 1,024 ranks a tenth of the time. */
static void lane_fetch_lines(const struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  const struct work *work = lane->work;
  if (work->proto != PROTO_LL || !lane->step_held) return;
  const uint32_t lines_bytes = ll_group(lane) * line_wire_bytes(LINE_LL);
  FIFO_EACH_LINK(i, work->send_count, lane->step.send_links)
  fetch(line_address(&lane->send[i], LINE_LL, lane->line_index), lines_bytes, true);
  FIFO_EACH_LINK(i, work->recv_count, lane->step.recv_links)
  fetch(line_address(&lane->recv[i], LINE_LL, lane->line_index), lines_bytes, false);
  if (step_is_each(&lane->step)) return; /* its user memory is in many places */
  if ((lane->step.flags & STEP_COPY_IN) != 0) fetch(ll_input(lane), ll_bytes(lane), false);
  if ((lane->step.flags & STEP_KEEP) != 0) fetch(lane_kept(lane, 0) + ll_offset(lane), ll_bytes(lane), true);
}

static void lane_actor_run(struct emu_actor *actor) {
  struct emu_lane *emu = (struct emu_lane *)actor;
  const uint32_t action = lane_choose(emu->actions);
  emu->actions = 0;
  emu->since = emu_event_count();
  if (action == EMU_LANE_ABORT) {
    if (emu->lane.error != LANE_OK && !prim_aborted(&emu->prim)) lane_report_mismatch(emu);
    emu->lane.phase = LANE_DONE;
  } else {
    if (action == LANE_LL) lane_fetch_lines(emu);
    if (action == LANE_BEGIN) emu->prim.late = emu->lag != 0 && emu_random() % 100 < emu->lag;
    if (lane_act(emu, action)) {
      emu_fault_inject(emu, action);
      lane_wake_peers(emu, action);
    }
    if (emu->prim.weak != NULL) emu_weak_settle(emu->prim.weak);
  }
  if (emu->lane.phase != LANE_DONE) {
    if (emu_weak_on) lane_faultless();
    return;
  }
  if (emu->prim.weak != NULL) {
    emu_weak_close(emu->prim.weak, prim_aborted(&emu->prim));
    emu_lane_stores_seen(emu);
  }
  lane_detach(emu);
  emu_actor_remove(&emu->actor);
  block_lane_ended(emu->block);
}

static const struct emu_actor_ops lane_actor_ops = {lane_actor_enabled, lane_actor_run};

/* ---- blocks ---- */

static uint64_t lane_actor_key(const struct device_comm *comm, const struct work *work, uint32_t lane_index) {
  return LANE_KEY_KIND << 56 | (comm->trace_id & 0xffff) << 40 | (uint64_t)comm->config.rank << 16 |
         (uint64_t)work->channel_index << 8 | lane_index;
}

/* A longer output would only evict data that is still needed from the caches. */
#define REMOTE_BYTES 8388608u

static size_t work_output_bytes(const struct work *work) {
  const bool blocks = work->func == FUNC_ALL_GATHER || work->func == FUNC_ALL_TO_ALL;
  return work->part_count * work->element_bytes * (blocks ? work->rank_count : 1);
}

/* Not for lists, whose steps may read what they wrote. */
static bool lane_is_remote(const struct work *work) {
  return emu_options()->mode == EMU_THREADS && work->algo != ALGO_CUSTOM &&
         work_output_bytes(work) >= REMOTE_BYTES;
}

/* Most lines of one move. Groups are shorter in threads mode, where a long one would arrive late, with weak
 * memory, where each line becomes a record, and among processes, whose turns are of few events. */
static uint32_t lane_group_lines(const struct device_comm *comm, const struct work *work) {
  const struct emu_options *options = emu_options();
  const bool is_long =
      work->proto == PROTO_LL && options->mode == EMU_GUARDED && !options->weak && comm->order_slots == NULL;
  const uint32_t most = is_long ? PRIM_LL_LINES : PRIM_FRAGMENT_LINES;
  return options->span_lines < most ? options->span_lines : most;
}

/* Sets the members that are the same for all runs of a launch. */
static void lane_prepare(struct emu_lane *emu, struct emu_block *block, uint32_t lane_index,
                         const struct work *work) {
  const struct emu_launch *launch = block->run->launch;
  emu->block = block;
  emu->lane_index = (uint8_t)lane_index;
  emu->prim.abort_flag = &launch->comm->abort_flag;
  emu->prim.late = false;
  emu->lag = (uint8_t)emu_options()->lag;
  emu->lane.depth = (uint8_t)emu_options()->depth;
  emu->lane.flag_bits = (uint8_t)launch->plan.limits.flag_bits;
  emu->lane.group_lines = lane_group_lines(launch->comm, work);
  emu->lane.remote = lane_is_remote(work);
  emu->keeps_step = false;
  emu->lane.progress = NULL;
  emu->lane.scratch = NULL;
  if (work->algo == ALGO_CUSTOM && launch->plan.scratch != NULL) {
    emu->lane.progress = (uint64_t *)launch->plan.scratch;
    emu->lane.scratch = (uint8_t *)launch->plan.scratch + (size_t)work->scratch_page * LIST_PAGE_BYTES;
  }
  lane_bind(emu, work);
  emu->prim.direct = emu_lane_is_direct(emu, &launch->plan, work) ? emu : NULL;
}

static void lane_start(struct emu_lane *emu, struct work *work, const struct plan_buffers *buffers) {
  lane_hide_output(emu, work, buffers->out);
  lane_show_input(emu, work, buffers->in);
  if (buffers->scalar != NULL) memcpy(&work->op_arg, buffers->scalar, work->element_bytes);
  emu->lane.parts = buffers;
  if (work->proto == PROTO_LL && emu_options()->mode == EMU_THREADS) emu_ll_open(emu, work, buffers);
  else lane_open(&emu->lane, &emu->prim, work, buffers->in, buffers->out);
}

static void lane_start_guarded(struct emu_lane *emu, struct work *work, const struct plan_buffers *buffers) {
  const struct device_comm *comm = emu->block->run->launch->comm;
  emu->actions = 0;
  emu->frozen = false;
  emu->since = emu_event_count();
  emu->trace_key = emu_trace_key(TRACE_LANE, comm, work->channel_index, emu->lane_index);
  emu_actor_init(&emu->actor, &lane_actor_ops, lane_actor_key(comm, work, emu->lane_index));
  lane_attach(emu, work);
  emu->prim.weak = emu_weak_open(emu);
  lane_start(emu, work, buffers);
  emu_check_open(emu);
}

/* Opens the lanes of the block's current batch. Opening frees the steps that rounding skipped, so senders are
 * woken, too. */
static void block_batch_start(struct emu_block *block) {
  const struct emu_launch *launch = block->run->launch;
  const struct plan_batch *batch = &launch->plan.batches[block->batch_index];
  block->lane_count = block->lanes_live = batch->work_count;
  for (uint32_t i = 0; i < batch->work_count; i++) {
    const uint32_t index = batch->first_work + i;
    lane_prepare(&block->lanes[i], block, i, &launch->plan.works[index]);
    lane_start_guarded(&block->lanes[i], &launch->plan.works[index], &block->run->buffers[index]);
  }
  emu_trace(TRACE_BLOCK, 0, launch->comm, batch->channel_index, 0, 0, block->batch_index);
}

static void run_ended(struct emu_kernel_run *run);

static void block_next_batch(struct emu_block *block) {
  if (block->batch_index == block->batch_end || comm_aborted(block->run->launch->comm)) {
    block->lane_count = 0;
    block->run->blocks_live -= 1;
    if (block->run->blocks_live == 0) run_ended(block->run);
    return;
  }
  block_batch_start(block);
  for (uint32_t i = 0; i < block->lane_count; i++) {
    emu_actor_wake(&block->lanes[i].actor);
    lane_wake_peers(&block->lanes[i], LANE_POST);
  }
}

static void block_lane_ended(struct emu_block *block) {
  block->lanes_live -= 1;
  if (block->lanes_live > 0) return;
  emu_trace(TRACE_BLOCK, 1, block->run->launch->comm,
            block->run->launch->plan.batches[block->batch_index].channel_index, 0, 0, block->batch_index);
  block->batch_index += 1;
  block_next_batch(block);
}

/* ---- launches ---- */

static void run_list(struct emu_kernel_run *run) {
  run->listed = true;
  run->next = emu_runs;
  emu_runs = run;
}

static void run_unlist(struct emu_kernel_run *run) {
  struct emu_kernel_run **place = &emu_runs;
  if (!run->listed) return;
  while (*place != run) place = &(*place)->next;
  *place = run->next;
  run->listed = false;
}

/* The rank's next launch may start; streams call ready() again after ended(). */
static void run_pass_turn(struct emu_kernel_run *run) {
  struct device_comm *comm = run->launch->comm;
  if (__atomic_load_n(&comm->error, __ATOMIC_RELAXED) != ncclSuccess) run->error = ERROR_LAUNCH_TIMEOUT;
  run->over = true;
  if (run->launch->captured) emu_record_graph_ended(comm);
  emu_record_ended(comm, run->turn + 1);
  __atomic_store_n(&comm->turn, run->turn + 1, __ATOMIC_RELEASE); /* only this run writes it now */
}

static int run_close(struct emu_kernel_run *run) {
  if (!run->over) run_pass_turn(run);
  run_unlist(run);
  if (emu_options()->mode == EMU_GUARDED) emu_trace(TRACE_KERNEL, 1, run->launch->comm, 0, 0, 0, run->turn);
  if (emu_runs == NULL) emu_report_flush();
  emu_changed();
  return run->error;
}

/* The thread that drives the lanes also drives the proxies of the launch: there may be no core for another
 * thread. */
static bool run_turn_hook(const struct emu_kernel_run *run, bool last) {
  const struct launch_hook *hook = &run->hook;
  if (hook->turn == NULL || (!last && comm_aborted(run->launch->comm))) return false;
  return hook->turn(hook->argument, last);
}

static void run_ended(struct emu_kernel_run *run) {
  void (*ended)(void *argument, int error) = run->ended;
  void *argument = run->ended_argument;
  run_turn_hook(run, true);
  ended(argument, run_close(run));
}

static bool run_ready(struct emu_kernel_run *run) {
  const struct device_comm *comm = run->launch->comm;
  return __atomic_load_n(&comm->turn, __ATOMIC_ACQUIRE) == run->turn &&
         (emu_gate == NULL || emu_gate->kernel(comm, run->turn));
}

/* Calls the hook at the start of a run, except after an abort. */
static void run_signal_start(const struct emu_kernel_run *run) {
  if (run->hook.start != NULL && !comm_aborted(run->launch->comm)) run->hook.start(run->hook.argument);
}

/* Gives the launch's blocks to this run. */
static void run_begin(struct emu_kernel_run *run) {
  const struct emu_launch *launch = run->launch;
  run->started = true;
  run->blocks_live = launch->block_count;
  emu_record_started(launch->comm, run->turn + 1);
  if (launch->captured) emu_record_graph(launch->comm, run->first_sequence);
  for (uint32_t b = 0; b < launch->block_count; b++) {
    struct emu_block *block = &launch->blocks[b];
    block->run = run;
    __atomic_store_n(&block->batch_index, block->first_batch, __ATOMIC_RELAXED);
    block->lane_count = 0;
    block->given = block->done = false;
  }
}

static void run_begin_guarded(struct emu_kernel_run *run) {
  run_begin(run);
  run_list(run);
  emu_trace(TRACE_KERNEL, 0, run->launch->comm, 0, 0, 0, run->turn);
}

static void run_start(struct emu_kernel_run *run, void (*ended)(void *argument, int error), void *argument) {
  run->ended = ended;
  run->ended_argument = argument;
  run_begin_guarded(run);
  run_signal_start(run);
  if (run->launch->block_count == 0) {
    run_ended(run);
    return;
  }
  /* The end of the last block may free the run, so the count is read before. */
  const uint32_t block_count = run->launch->block_count;
  run->blocks_live += 1;
  for (uint32_t b = 0; b < block_count; b++) block_next_batch(&run->launch->blocks[b]);
  run->blocks_live -= 1;
  if (run->blocks_live == 0) run_ended(run);
}

/* ---- threads mode ---- */

/* Binds the lanes of the block's current batch, unless they are still bound from the previous run. */
static void block_batch_bind(struct emu_block *block, const struct plan_batch *batch) {
  const struct emu_launch *launch = block->run->launch;
  if (block->bound_batch == block->batch_index + 1) return;
  emu_lock();
  for (uint32_t i = 0; i < batch->work_count; i++) {
    lane_prepare(&block->lanes[i], block, i, &launch->plan.works[batch->first_work + i]);
    block->lanes[i].since = os_time_ns();
  }
  emu_unlock();
  block->bound_batch = block->batch_index + 1;
}

static void block_batch_open(struct emu_block *block) {
  const struct emu_launch *launch = block->run->launch;
  const struct plan_batch *batch = &launch->plan.batches[block->batch_index];
  block_batch_bind(block, batch);
  for (uint32_t i = 0; i < batch->work_count; i++) {
    const uint32_t index = batch->first_work + i;
    lane_start(&block->lanes[i], &launch->plan.works[index], &block->run->buffers[index]);
  }
  block->lane_count = batch->work_count;
}

/* Handles the end of a block's lanes: reports a mismatch or, after a deadlock, what they waited for. */
static void block_settle_batch(struct emu_block *block) {
  emu_lock();
  emu_record_block(block);
  for (uint32_t i = 0; i < block->lane_count; i++) {
    struct emu_lane *emu = &block->lanes[i];
    if (emu->lane.error != LANE_OK && !prim_aborted(&emu->prim)) lane_report_mismatch(emu);
    emu_report_stopped(emu);
    emu->lane.phase = LANE_DONE;
  }
  emu_unlock();
}

/* A number that changes with every event of the lane. */
static uint64_t lane_mark(const struct lane *lane) {
  return (lane->steps_done << 24) + ((uint64_t)lane->line_index << 8) + lane->begun + lane->posted +
         lane->offer_index + ((uint64_t)lane->step_open << 7);
}

static bool lane_go(struct emu_lane *emu, uint64_t slices) {
  switch (emu->lane.work->proto) {
    case PROTO_LL: return emu_ll_advance(emu);
    case PROTO_SIMPLE: return emu_simple_advance(emu, slices);
    default: return lane_advance(&emu->lane, &emu->prim, slices);
  }
}

/* Polls without progress before the recorder's rows of waiting lanes are written, and before they are written
 * again. */
#define RECORD_LOOKS 256u
#define RECORD_LOOKS_PERIOD 4096u /* a power of two */

static void block_record(struct emu_block *block, bool moved) {
  if (!moved && (++block->idle_looks & (RECORD_LOOKS_PERIOD - 1)) == RECORD_LOOKS) {
    emu_lock();
    emu_record_block(block);
    emu_unlock();
    block->shown = true;
  }
  if (!moved) return;
  block->idle_looks = 0;
  if (block->shown && !comm_aborted(block->run->launch->comm)) emu_record_forget(block);
  block->shown = false;
}

/* The lane must not end yet, because the network still reads what it sends without a copy; not after an
 * abort. */
static bool lane_is_kept(const struct emu_lane *emu) {
  return emu->prim.direct != NULL && !prim_aborted(&emu->prim) && emu_lane_is_held(emu);
}

/* Advances the lanes of the current batch as far as possible without waiting; true if one made progress. */
static bool block_advance(struct emu_block *block) {
  bool moved = false, broken = false;
  uint32_t running = 0;
  if (block->lane_count == 0 && comm_aborted(block->run->launch->comm)) {
    block->done = true; /* later launches end empty */
    return true;
  }
  if (block->lane_count == 0) block_batch_open(block);
  /* Lanes take turns slice by slice: if one copied all its slices, the peer of another would wait for slots.
   */
  const uint64_t slices = block->lane_count > 1 ? 1 : LANE_ALL_SLICES;
  for (uint32_t i = 0; i < block->lane_count; i++) {
    struct emu_lane *emu = &block->lanes[i];
    if (emu->lane.phase == LANE_DONE) {
      running += lane_is_kept(emu);
      continue;
    }
    const uint64_t mark = lane_mark(&emu->lane);
    const bool over = lane_go(emu, slices);
    running += !over || lane_is_kept(emu);
    broken = broken || (over && emu->lane.phase != LANE_DONE);
    moved = moved || over || lane_mark(&emu->lane) != mark;
  }
  if (moved) __atomic_store_n(&block->progress, block->progress + 1, __ATOMIC_RELAXED);
  block_record(block, moved);
  if (running > 0 && !moved && emu_block_is_asked(block, block->run->launch->comm)) emu_block_report(block);
  if (running > 0) return moved;
  const bool aborted = comm_aborted(block->run->launch->comm);
  if (broken || aborted) block_settle_batch(block);
  block->lane_count = 0;
  __atomic_store_n(&block->batch_index, block->batch_index + 1, __ATOMIC_RELAXED);
  block->done = block->batch_index == block->batch_end || comm_aborted(block->run->launch->comm);
  return true;
}

/* The main function of a block with a thread of its own. */
static void block_thread(void *argument) {
  struct emu_block *block = (struct emu_block *)argument;
  for (uint32_t looks = 0; !block->done; looks++) {
    if (block_advance(block)) looks = 0;
    else if (looks < EMU_PATIENCE) prim_pause(&block->lanes[0].prim);
    else os_sleep_ms(1);
  }
  __atomic_fetch_sub(&block->run->blocks_live, 1, __ATOMIC_RELEASE);
}

/* Gives blocks to threads of their own. The first one, and any for which there is no thread, stay with the
 * thread that drives the run. */
static void run_share(struct emu_kernel_run *run) {
  const struct emu_launch *launch = run->launch;
  if (!launch->shares || comm_aborted(launch->comm)) return;
  for (uint32_t b = 1; b < launch->block_count; b++)
    launch->blocks[b].given = emu_pool_run(block_thread, &launch->blocks[b]);
}

/* Polls every block that has no thread of its own once. */
static bool run_look(struct emu_kernel_run *run) {
  const struct emu_launch *launch = run->launch;
  bool moved = false;
  for (uint32_t b = 0; b < launch->block_count; b++) {
    struct emu_block *block = &launch->blocks[b];
    if (block->given || block->done) continue;
    moved = block_advance(block) || moved;
    if (!block->done) continue;
    if (launch->shares) __atomic_fetch_sub(&run->blocks_live, 1, __ATOMIC_RELEASE);
    else __atomic_store_n(&run->blocks_live, run->blocks_live - 1, __ATOMIC_RELAXED);
  }
  return moved;
}

/* Pauses between two polls without progress. With more ranks than cores it yields often, because the rank
 * that this one waits for needs a core. */
static void run_pause(const struct emu_kernel_run *run, uint32_t looks) {
  const uint32_t often = emu_comm_is_crowded(run->launch->comm) ? 2 : 256; /* a power of two */
  if ((looks & (often - 1)) == often - 1) os_yield();
  else os_spin();
}

static enum emu_advance run_advance(struct emu_kernel_run *run, uint32_t patience) {
  enum emu_advance result = EMU_RUN_STUCK;
  if (!run->started) {
    if (!run_ready(run)) return result;
    run_begin(run);
    run_signal_start(run);
    run_share(run);
  }
  for (uint32_t looks = 0; __atomic_load_n(&run->blocks_live, __ATOMIC_ACQUIRE) > 0; looks++) {
    const bool moved = run_look(run);
    if (run_turn_hook(run, false) || moved) {
      looks = 0;
      result = EMU_RUN_MOVED;
      continue;
    }
    if (looks >= patience) {
      if (run->listed) return result;
      emu_lock();
      run_list(run);
      emu_unlock();
      return result;
    }
    run_pause(run, looks);
  }
  run_turn_hook(run, true);
  run_pass_turn(run);
  return EMU_RUN_OVER;
}

static bool run_turn_came(void *argument) { return run_ready((struct emu_kernel_run *)argument); }

/* For graph nodes, whose threads may block. */
static int run_execute(struct emu_kernel_run *run) {
  emu_lock();
  emu_wait(run_turn_came, run, 0);
  emu_unlock();
  uint32_t patience = EMU_PATIENCE;
  for (enum emu_advance result; (result = run_advance(run, patience)) != EMU_RUN_OVER;) {
    patience = emu_patience_next(patience, result == EMU_RUN_MOVED);
    os_sleep_ms(patience < EMU_PATIENCE / 16 ? 1 : 0);
  }
  emu_lock();
  const int error = run_close(run);
  emu_unlock();
  return error;
}

/* ---- the kernel as streams see it ---- */

static uint32_t block_lane_capacity(const struct plan *plan, uint32_t first_batch, uint32_t *batch_end) {
  const uint32_t channel = plan->batches[first_batch].channel_index;
  uint32_t most = 0, b = first_batch;
  for (; b < plan->batch_count && plan->batches[b].channel_index == channel; b++)
    if (plan->batches[b].work_count > most) most = plan->batches[b].work_count;
  *batch_end = b;
  return most;
}

static struct emu_kernel_run *run_create(struct emu_launch *launch) {
  struct emu_kernel_run *run = launch->idle;
  const size_t buffer_bytes = launch->plan.work_count * sizeof *run->buffers;
  if (run != NULL) {
    launch->idle = run->next;
    *run = (struct emu_kernel_run){.launch = launch};
  } else {
    run = (struct emu_kernel_run *)os_alloc(sizeof *run + buffer_bytes);
    if (run == NULL) return NULL;
  }
  run->buffers = (struct plan_buffers *)(run + 1);
  if (buffer_bytes > 0) memcpy(run->buffers, launch->plan.buffers, buffer_bytes);
  return run;
}

static void hook_drop(const struct launch_hook *hook) {
  if (hook->drop != NULL) hook->drop(hook->argument);
}

static struct emu_kernel_run *launch_enqueue(struct emu_kernel *kernel) {
  struct emu_launch *launch = (struct emu_launch *)kernel;
  struct emu_kernel_run *run = run_create(launch);
  if (run == NULL) return NULL;
  run->launch = launch;
  run->first_sequence = launch->first_sequence;
  run->hook = launch->hook;
  if (launch->kept) launch->hook = (struct launch_hook){NULL, NULL, NULL, NULL};
  run->turn = launch->comm->launches;
  launch->comm->launches += 1;
  emu_record_counts(launch->comm);
  kernel->reference_count += 1;
  return run;
}

/* A launch that never started must give up its turn. If it is the next to run, it counts as run; if it is the
 * last one, as never launched. It cannot be any other, since the launches after it would wait forever. */
static void launch_retire(struct emu_kernel_run *run) {
  struct emu_launch *launch = run->launch;
  if (run->over) {
    launch->comm->ended += 1;
  } else {
    if (run_ready(run))
      __atomic_fetch_add(&launch->comm->turn, 1, __ATOMIC_RELEASE), launch->comm->ended += 1;
    else if (run->turn + 1 == launch->comm->launches) launch->comm->launches -= 1;
    else emu_comm_fail(launch->comm->config.comm_id, ncclInternalError);
    emu_record_counts(launch->comm);
    emu_kernel_runs_wake();
  }
  if (launch->kept) hook_drop(&run->hook);
  run->next = launch->idle;
  launch->idle = run;
  emu_kernel_drop(&launch->kernel);
}

static bool launch_refuses(const struct emu_kernel *kernel) {
  const struct device_comm *comm = ((const struct emu_launch *)kernel)->comm;
  if (!comm->left && !comm->closed) return false;
  log_urgent("cudaGraphLaunch: the graph holds a kernel of rank %" PRIu32
             " of comm %s, which is destroyed; destroy the communicator after the last launch of the graph",
             comm->config.rank, comm->name);
  return true;
}

static void launch_release(struct emu_kernel *kernel) {
  struct emu_launch *launch = (struct emu_launch *)kernel;
  struct device_comm *comm = launch->comm;
  hook_drop(&launch->hook);
  os_free(launch->uses);
  emu_race_rank_drop(kernel->race);
  comm->kernel_count -= 1;
  comm->captured_count -= launch->captured;
  if (comm->closed && comm->kernel_count == 0) emu_comm_free(comm);
  for (struct emu_kernel_run *run = launch->idle, *next; run != NULL; run = next) {
    next = run->next;
    os_free(run);
  }
  os_free(launch);
}

static bool run_is_brief(const struct emu_kernel_run *run) {
  return run->launch->brief && run->hook.turn == NULL && run->hook.start == NULL;
}

/* Polls of lanes that wait for another process, about as long as releasing and taking the lock would take.
 * Not more, because another thread of this process may need the lock. */
#define WHOLE_LOOKS 64u

/* True if all lanes have ended without an error. */
static bool block_run_whole(struct emu_block *block, uint32_t lane_count) {
  const struct emu_launch *launch = block->run->launch;
  bool remote = false;
  for (uint32_t i = 0; i < lane_count; i++) {
    lane_start(&block->lanes[i], &launch->plan.works[i], &block->run->buffers[i]);
    remote |= block->lanes[i].remote;
  }
  for (uint32_t looks = remote && !emu_comm_is_crowded(launch->comm) ? WHOLE_LOOKS : 1; looks > 0; looks--) {
    uint32_t ended = 0;
    for (uint32_t i = 0; i < lane_count; i++) {
      if (block->lanes[i].lane.phase != LANE_DONE) lane_go(&block->lanes[i], LANE_ALL_SLICES);
      ended += block->lanes[i].lane.phase == LANE_DONE;
    }
    if (ended == lane_count) return true;
  }
  return false;
}

static bool launch_whole(struct emu_kernel *kernel, struct emu_kernel_run **run) {
  struct emu_launch *launch = (struct emu_launch *)kernel;
  struct device_comm *comm = launch->comm;
  struct emu_block *block = launch->blocks;
  const uint32_t lane_count = launch->plan.work_count;
  *run = launch->idle;
  if (*run == NULL) return false;
  if (!launch->whole || comm->turn != comm->launches || comm_aborted(comm) || launch->hook.drop != NULL ||
      block->bound_batch != block->first_batch + 1) {
    *run = NULL;
    return false;
  }
  block->run = *run;
  (*run)->buffers = launch->plan.buffers; /* until the launch has another run */
  if (block_run_whole(block, lane_count)) {
    comm->launches += 1;
    comm->ended += 1;
    emu_record_whole(comm);
    __atomic_store_n(&comm->turn, comm->launches, __ATOMIC_RELEASE);
    return true;
  }
  *run = launch_enqueue(kernel);
  run_begin(*run);
  block->lane_count = lane_count;
  for (uint32_t i = 0; i < lane_count; i++) block->lanes[i].lane.parts = &(*run)->buffers[i];
  return false;
}

static const struct emu_kernel_ops launch_ops = {
    .enqueue = launch_enqueue,
    .ready = run_ready,
    .start = run_start,
    .execute = run_execute,
    .retire = launch_retire,
    .refuses = launch_refuses,
    .release = launch_release,
    .advance = run_advance,
    .brief = run_is_brief,
    .whole = launch_whole,
    .finish = run_close,
};

/* Lays out the blocks and their lanes in the launch's allocation. */
static void launch_lay_out(struct emu_launch *launch, struct emu_lane *lanes) {
  const struct plan *plan = &launch->plan;
  for (uint32_t batch = 0; batch < plan->batch_count; launch->block_count++) {
    struct emu_block *block = &launch->blocks[launch->block_count];
    block->lanes = lanes;
    block->first_batch = batch;
    lanes += block_lane_capacity(plan, batch, &block->batch_end);
    batch = block->batch_end;
  }
}

/* Bytes per channel from which on a thread of its own pays off. */
#define SHARE_BYTES_MIN 262144u

static bool launch_shares(const struct device_comm *comm, const struct plan *plan, uint32_t block_count) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < plan->work_count; i++)
    bytes += plan->works[i].part_count * plan->works[i].element_bytes;
  return block_count > 1 && comm->cores > comm->config.rank_count && bytes / block_count >= SHARE_BYTES_MIN;
}

/* Bytes of a plan that a core moves in less time than waking another thread takes. */
#define BRIEF_BYTES 2048u
#define BRIEF_REMOTE_BYTES 32768u

static bool launch_is_brief(const struct device_comm *comm, const struct plan *plan) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    if (plan->works[i].algo == ALGO_CUSTOM) return false;
    bytes += work_output_bytes(&plan->works[i]);
  }
  return plan->work_count <= 4 && bytes <= (comm->has_remote ? BRIEF_REMOTE_BYTES : BRIEF_BYTES);
}

/* Allocates the launch with a copy of the plan after it: works, buffers, batches, then blocks and lanes. */
struct emu_kernel *emu_launch_create(struct device_comm *comm, const struct plan *plan, bool captured) {
  const size_t work_bytes = plan->work_count * sizeof *plan->works;
  const size_t buffer_bytes = plan->work_count * sizeof *plan->buffers;
  const size_t batch_bytes = size_round_up(plan->batch_count * sizeof *plan->batches, 16);
  uint32_t block_count = 0, lane_count = 0;
  for (uint32_t batch = 0; batch < plan->batch_count; block_count++)
    lane_count += block_lane_capacity(plan, batch, &batch);
  const size_t block_bytes = size_round_up(block_count * sizeof(struct emu_block), 16);
  const size_t lane_bytes = lane_count * sizeof(struct emu_lane);
  struct emu_launch *launch = (struct emu_launch *)os_alloc(sizeof *launch + work_bytes + buffer_bytes +
                                                            batch_bytes + block_bytes + lane_bytes);
  if (launch == NULL) return NULL;
  uint8_t *behind = (uint8_t *)(launch + 1);
  launch->kernel.ops = &launch_ops;
  launch->kernel.reference_count = 1;
  launch->comm = comm;
  launch->captured = captured;
  launch->plan = *plan;
  launch->plan.hook = NULL;
  launch->plan.calls = NULL;
  if (plan->hook != NULL) launch->hook = *plan->hook;
  launch->first_sequence = plan->first_sequence;
  launch->plan.works = (struct work *)(void *)behind;
  launch->plan.buffers = (struct plan_buffers *)(void *)(behind += work_bytes);
  launch->plan.batches = (struct plan_batch *)(void *)(behind += buffer_bytes);
  launch->blocks = (struct emu_block *)(void *)(behind += batch_bytes);
  if (plan->work_count > 0) memcpy(launch->plan.works, plan->works, work_bytes);
  if (plan->work_count > 0) memcpy(launch->plan.buffers, plan->buffers, buffer_bytes);
  if (plan->batch_count > 0)
    memcpy(launch->plan.batches, plan->batches, plan->batch_count * sizeof *plan->batches);
  launch_lay_out(launch, (struct emu_lane *)(void *)(behind + block_bytes));
  launch->shares = launch_shares(comm, plan, block_count);
  launch->brief = launch_is_brief(comm, plan);
  launch->whole = launch->brief && plan->batch_count == 1;
  comm->kernel_count += 1;
  comm->captured_count += captured;
  return &launch->kernel;
}

/* Finds a kept launch of this plan, the newest first, and sets the buffers of its next run. */
static struct emu_launch *launch_kept(const struct device_comm *comm, uint64_t serial,
                                      uint64_t first_sequence, const struct plan_buffers *buffers) {
  for (uint32_t i = 1; i <= COMM_LAUNCHES_KEPT && serial != 0; i++) {
    struct emu_launch *launch = comm->kept[(comm->kept_next - i) % COMM_LAUNCHES_KEPT];
    if (launch == NULL || launch->plan.serial != serial) continue;
    launch->first_sequence = first_sequence;
    for (uint32_t k = 0; k < launch->plan.work_count; k++) launch->plan.buffers[k] = buffers[k];
    return launch;
  }
  return NULL;
}

struct emu_kernel *emu_launch_find(struct device_comm *comm, const struct plan *plan) {
  struct emu_launch *launch = launch_kept(comm, plan->serial, plan->first_sequence, plan->buffers);
  if (launch != NULL) {
    hook_drop(&launch->hook); /* of a run that could not be made */
    launch->hook = plan->hook != NULL ? *plan->hook : (struct launch_hook){NULL, NULL, NULL, NULL};
    launch->kernel.reference_count += 1;
    return &launch->kernel;
  }
  struct emu_kernel *kernel = emu_launch_create(comm, plan, false);
  if (kernel == NULL || plan->serial == 0) return kernel;
  struct emu_launch **place = &comm->kept[comm->kept_next++ % COMM_LAUNCHES_KEPT];
  if (*place != NULL) emu_kernel_drop(&(*place)->kernel);
  kernel->reference_count += 1;
  *place = (struct emu_launch *)kernel;
  (*place)->kept = true;
  return kernel;
}

struct emu_kernel *emu_launch_find_cached(struct device_comm *comm,
                                          const struct device_cached_launch *cached) {
  struct emu_launch *launch = launch_kept(comm, cached->serial, cached->first_sequence, cached->buffers);
  return launch != NULL ? &launch->kernel : NULL;
}

/* ---- what a launch accesses (race.h) ---- */

static enum race_rule rule_of(uint8_t func) {
  switch (func) {
    case FUNC_BROADCAST:
    case FUNC_SCATTER: return RACE_FROM_ROOT;
    case FUNC_REDUCE:
    case FUNC_GATHER: return RACE_TO_ROOT;
    case FUNC_SEND: return RACE_SEND;
    case FUNC_RECV: return RACE_RECEIVE;
    default: return RACE_ALL;
  }
}

/* Ranks may call those that are made of messages before or after other collectives of a group (match.h). */
static bool is_of_messages(uint8_t func) {
  return func == FUNC_ALL_TO_ALL || func == FUNC_GATHER || func == FUNC_SCATTER;
}

bool emu_launch_uses(struct emu_kernel *kernel, const struct plan_call *calls, uint32_t call_count) {
  struct emu_launch *launch = (struct emu_launch *)kernel;
  if (!array_grow(&launch->uses, &launch->use_capacity, call_count, sizeof *launch->uses)) return false;
  for (uint32_t i = 0; i < call_count; i++)
    launch->uses[i] = (struct race_use){.call = {calls[i].name, calls[i].caller},
                                        .sequence = calls[i].sequence,
                                        .in = calls[i].in,
                                        .out = calls[i].out,
                                        .scalar = calls[i].scalar,
                                        .scalar_bytes = calls[i].scalar_bytes,
                                        .in_bytes = calls[i].in_bytes,
                                        .out_bytes = calls[i].out_bytes,
                                        .rule = rule_of(calls[i].func),
                                        .peer = calls[i].peer,
                                        .order = is_of_messages(calls[i].func)};
  if (kernel->race == NULL) kernel->race = emu_race_rank_keep(launch->comm->race);
  kernel->uses = launch->uses;
  kernel->use_count = call_count;
  return true;
}

void emu_launch_drop_kept(struct device_comm *comm) {
  for (uint32_t i = 0; i < COMM_LAUNCHES_KEPT; i++) {
    struct emu_launch *launch = comm->kept[i];
    comm->kept[i] = NULL;
    if (launch != NULL) emu_kernel_drop(&launch->kernel);
  }
}

/* ---- functions for world.c ---- */

bool emu_lanes_waiting(void) { return emu_runs != NULL || emu_rma_waiting(); }

/* The first lane from `from` on that has not ended and is linked to another process. */
static struct emu_lane *block_remote_lane(struct emu_block *block, uint32_t from) {
  for (uint32_t i = from; i < block->lane_count; i++)
    if (block->lanes[i].bound && block->lanes[i].remote) return &block->lanes[i];
  return NULL;
}

/* In threads mode only their own threads may read lanes, so the answer is that of the whole rank. */
static bool run_is_outside(const struct emu_kernel_run *run) {
  if (comm_aborted(run->launch->comm) || run->launch->comm->order_slots != NULL) return false;
  if (emu_options()->mode == EMU_THREADS) return run->launch->comm->has_remote;
  for (uint32_t b = 0; b < run->launch->block_count; b++)
    if (block_remote_lane(&run->launch->blocks[b], 0) != NULL) return true;
  return false;
}

bool emu_lanes_outside(void) {
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    if (run_is_outside(run)) return true;
  return emu_rma_outside(false);
}

/* guarded mode: writes the recorder's rows when no lane here can run, or not before another process has
 * acted. */
void emu_lanes_record(void) {
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    for (uint32_t b = 0; b < run->launch->block_count; b++) emu_record_block(&run->launch->blocks[b]);
}

void emu_lanes_record_awaited(uint32_t process) {
  static uint32_t noted; /* locked */
  if (process != noted) recorder_note_awaited(process);
  noted = process;
}

bool emu_lanes_look(void) {
  bool any = emu_rma_look();
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    for (uint32_t b = 0; b < run->launch->block_count; b++) {
      struct emu_block *block = &run->launch->blocks[b];
      struct emu_lane *emu = block_remote_lane(block, 0);
      for (; emu != NULL; emu = block_remote_lane(block, (uint32_t)(emu - block->lanes) + 1)) {
        if (emu->actor.ready_index != 0 || !lane_actor_enabled(&emu->actor)) continue;
        emu_actor_wake(&emu->actor);
        any = true;
      }
    }
  static uint32_t idle_looks; /* locked */
  idle_looks = any ? 0 : idle_looks + 1;
  if (idle_looks == RECORD_LOOKS) emu_lanes_record();
  return any;
}

void emu_gate_loosened(void) {
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next) run_wake_lanes(run);
  emu_kernel_runs_wake();
}

bool emu_lanes_reach_out(void) {
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    if (run->launch->comm->reaches_out) return true;
  return emu_rma_outside(true);
}

uint32_t emu_lanes_crowd(void) {
  uint32_t most = 1;
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next) {
    const struct device_comm *comm = run->launch->comm;
    if (comm->config.rank_count / comm->cores > most) most = comm->config.rank_count / comm->cores;
  }
  return most;
}

uint64_t emu_lanes_progress(void) {
  uint64_t sum = emu_rma_progress();
  if (emu_options()->mode == EMU_GUARDED) return sum + emu_meter.steps_done;
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next) {
    sum += __atomic_load_n(&run->launch->comm->turn, __ATOMIC_RELAXED);
    for (uint32_t b = 0; b < run->launch->block_count; b++)
      sum += __atomic_load_n(&run->launch->blocks[b].progress, __ATOMIC_RELAXED);
  }
  return sum;
}

void emu_lanes_stop(void) {
  while (true) {
    struct emu_kernel_run *run = emu_runs;
    while (run != NULL && comm_aborted(run->launch->comm)) run = run->next;
    if (run == NULL) break;
    emu_comm_fail(run->launch->comm->config.comm_id, ncclRemoteError);
  }
  for (struct device_comm *comm; (comm = emu_rma_stuck()) != NULL;)
    emu_comm_fail(comm->config.comm_id, ncclRemoteError);
}

void emu_lanes_trace_stop(void) {
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next) {
    struct device_comm *comm = run->launch->comm;
    if (comm->error_traced || comm_aborted(comm)) continue;
    emu_trace(TRACE_ERROR, 0, comm, 0, 0, 0, (uint64_t)ncclRemoteError);
    comm->error_traced = true;
  }
}

void emu_lanes_stop_stuck(void) {
  emu_lanes_report_stuck();
  emu_lanes_stop();
}
