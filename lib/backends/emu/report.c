/* report.c: describes waiting lanes in sentences, and prints the command that repeats the run. Only reads
 * lanes. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/block.h"
#include "backends/emu/order.h"
#include "backends/emu/rma.h"
#include "backends/emu/world_impl.h"
#include "backends/explainer.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"

#define EXPLAINER_BYTES 768
#define REPORT_LANES_MAX 64

static struct {
  char text[16384];
  size_t used;
  uint32_t lane_count;
  bool collecting; /* threads mode: lanes add their sentences as their own threads stop them */
} report;

const char *emu_func_name(uint8_t func) {
  static const char *const names[FUNC_COUNT] = {
      "broadcast", "reduce",  "all_gather", "reduce_scatter", "all_reduce", "send and receive",
      "send",      "receive", "all_to_all", "scatter",        "gather",     "copy"};
  return func < FUNC_COUNT ? names[func] : "unknown";
}

static void report_add(const char *format, ...) LOG_FORMAT(1, 2);
static void report_add(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int added = vsnprintf(report.text + report.used, sizeof report.text - report.used, format, arguments);
  va_end(arguments);
  if (added > 0) report.used += (size_t)added;
  if (report.used >= sizeof report.text) report.used = sizeof report.text - 1;
}

static void switch_text(char *out, size_t out_bytes, uint32_t channel_index, uint32_t rank) {
  snprintf(out, out_bytes, "the switch of channel %" PRIu32 " at rank %" PRIu32, channel_index, rank);
}

/* The rank or switch at the other end of a lane's link. */
static void other_text(char *out, size_t out_bytes, const struct work *work, uint32_t peer, bool sends) {
  if (switch_is_behind(work, peer, sends)) switch_text(out, out_bytes, work->channel_index, peer);
  else snprintf(out, out_bytes, "rank %" PRIu32, peer);
}

const char *emu_report_end(char out[EMU_END_BYTES], const struct emu_conn *conn, bool sends) {
  const struct emu_lane *lane = sends ? conn->send_lane : conn->recv_lane;
  const struct emu_lane *other = sends ? conn->recv_lane : conn->send_lane;
  const uint32_t rank = sends ? conn->sender_rank : conn->receiver_rank;
  const bool is_switch = lane != NULL ? lane->lane.work->role == ROLE_SWITCH
                                      : other != NULL && switch_is_behind(other->lane.work, rank, !sends);
  if (is_switch) switch_text(out, EMU_END_BYTES, conn->channel_index, rank);
  else snprintf(out, EMU_END_BYTES, "%" PRIu32, rank);
  return out;
}

static void wait_text(char *out, size_t out_bytes, const struct work *work, const struct lane_wait *wait) {
  char other[EMU_END_BYTES];
  other_text(other, sizeof other, work, wait->peer, emu_wait_sends(wait));
  switch (wait->kind) {
    case WAIT_DATA:
      snprintf(out, out_bytes, "waits for data from %s: tail %" PRIu64 ", needs %" PRIu64, other, wait->have,
               wait->need);
      break;
    case WAIT_SLOT:
      snprintf(out, out_bytes,
               "waits for a free slot towards %s: head and slots make %" PRIu64 ", needs %" PRIu64, other,
               wait->have, wait->need);
      break;
    case WAIT_LL:
      snprintf(out, out_bytes, "waits for LL lines from %s: line %" PRIu64 " of %" PRIu64 " has not come",
               other, wait->have, wait->need);
      break;
    case WAIT_OFFER:
    case WAIT_INPUT:
      snprintf(out, out_bytes, "waits for %s to enter the operation and %s", other,
               wait->kind == WAIT_OFFER ? "offer its output" : "show its input");
      break;
    case WAIT_READ:
      snprintf(out, out_bytes,
               "waits until %s has read its input: head and slots make %" PRIu64 ", needs %" PRIu64, other,
               wait->have, wait->need);
      break;
    case WAIT_LIST:
      snprintf(out, out_bytes,
               "waits for block %" PRIu32 " of its own rank, which has ended %" PRIu64 " of %" PRIu64
               " steps",
               wait->peer, wait->have, wait->need);
      break;
    default: snprintf(out, out_bytes, "could move"); break;
  }
}

bool emu_device_has_rank(uint32_t device_index, char *text, size_t text_bytes) {
  const struct device_comm *comm = emu_comms;
  while (comm != NULL && comm->config.device_index != device_index) comm = comm->next;
  if (comm != NULL)
    snprintf(text, text_bytes, "rank %" PRIu32 " of comm '%s'", comm->config.rank, comm->name);
  return comm != NULL;
}

static const struct device_comm *comm_of_rank(uint64_t comm_id, uint32_t rank) {
  for (const struct device_comm *comm = emu_comms; comm != NULL; comm = comm->next)
    if (comm->config.comm_id == comm_id && comm->config.rank == rank) return comm;
  return NULL;
}

static bool peer_is_remote(const struct emu_lane *emu, uint32_t peer) {
  const struct work *work = emu->lane.work;
  for (uint32_t i = 0; i < work->recv_count; i++)
    if (work->recv_peer[i] == peer && emu_conn_is_remote(emu->recv_conn[i])) return true;
  for (uint32_t i = 0; i < work->send_count; i++)
    if (work->send_peer[i] == peer && emu_conn_is_remote(emu->send_conn[i])) return true;
  return false;
}

static bool peer_is_networked(const struct emu_lane *emu, uint32_t peer) {
  const struct work *work = emu->lane.work;
  for (uint32_t i = 0; i < work->recv_count; i++)
    if (work->recv_peer[i] == peer && emu->recv_conn[i]->net) return true;
  for (uint32_t i = 0; i < work->send_count; i++)
    if (work->send_peer[i] == peer && emu->send_conn[i]->net) return true;
  return false;
}

/* Why a peer does not respond, for example because it has launched fewer kernels than the waiting rank. */
static void peer_text(char *out, size_t out_bytes, const struct emu_lane *emu, uint32_t peer) {
  const struct device_comm *comm = emu->block->run->launch->comm;
  const struct device_comm *other = comm_of_rank(comm->config.comm_id, peer);
  const uint64_t turn = emu->block->run->turn;
  out[0] = '\0';
  if (comm->ordered && emu_order_lost(comm->order_slots[peer]))
    snprintf(out, out_bytes, "; the process of rank %" PRIu32 " has ended", peer);
  else if (comm->ordered && emu_order_ended(comm->order_slots[peer]))
    snprintf(out, out_bytes, "; rank %" PRIu32 " has left the communicator", peer);
  else if (peer_is_remote(emu, peer))
    snprintf(out, out_bytes, "; rank %" PRIu32 " is another process's", peer);
  else if (other == NULL && peer_is_networked(emu, peer))
    snprintf(out, out_bytes, "; rank %" PRIu32 " lies behind a network", peer);
  else if (other == NULL) snprintf(out, out_bytes, "; rank %" PRIu32 " has left the communicator", peer);
  else if (other->launches <= turn)
    snprintf(out, out_bytes, "; rank %" PRIu32 " has launched %" PRIu64 " of %" PRIu64 " kernels", peer,
             other->launches, turn + 1);
}

void emu_report_lane(char *out, size_t out_bytes, struct emu_lane *emu) {
  char wait[192], peer[120], since[48], who[EMU_END_BYTES];
  const struct device_comm *comm = emu->block->run->launch->comm;
  const struct work *work = emu->lane.work;
  struct lane_wait first;
  emu_lane_wait(emu, &first);
  if (work->role == ROLE_SWITCH && work->algo != ALGO_CUSTOM)
    switch_text(who, sizeof who, work->channel_index, comm->config.rank);
  else snprintf(who, sizeof who, "rank %" PRIu32 " channel %u", comm->config.rank, work->channel_index);
  wait_text(wait, sizeof wait, work, &first);
  const bool alone = first.kind == WAIT_NOTHING || first.kind == WAIT_LIST;
  peer_text(peer, sizeof peer, emu, alone ? comm->config.rank : first.peer);
  if (emu_options()->mode == EMU_GUARDED) snprintf(since, sizeof since, "since event %" PRIu64, emu->since);
  else snprintf(since, sizeof since, "for %" PRIu64 " ms", (os_time_ns() - emu->since) / 1000000u);
  snprintf(out, out_bytes, "%s %s #%" PRIu64 " step %" PRIu64 " %s%s (%s)", who, emu_func_name(work->func),
           emu_lane_sequence(emu), emu->lane.steps_done, wait, peer, since);
}

static void report_lane(struct emu_lane *emu) {
  char text[400];
  report.lane_count += 1;
  if (report.lane_count > REPORT_LANES_MAX) return;
  emu_report_lane(text, sizeof text, emu);
  report_add("\n  comm %s: %s", emu->block->run->launch->comm->name, text);
}

void emu_report_reproduce(char *out, size_t out_bytes) {
  char options[200], first[48] = "";
  size_t command_bytes = 0;
  char *command = os_file_read("/proc/self/cmdline", &command_bytes);
  emu_options_text(options, sizeof options);
  for (size_t i = 0; command != NULL && i + 1 < command_bytes; i++)
    if (command[i] == '\0') command[i] = ' ';
  if (param_int(PARAM_TUTTI_FIRST_STEP) != 0)
    snprintf(first, sizeof first, " TUTTI_FIRST_STEP=%" PRId64, param_int(PARAM_TUTTI_FIRST_STEP));
  snprintf(out, out_bytes, "reproduce: TUTTI_SEED=%" PRIu64 "%s TUTTI_EMU=%s %s", emu_options()->seed, first,
           options, command != NULL ? command : "(this program)");
  os_free(command);
}

static void report_begin(const char *headline) {
  report.used = report.lane_count = 0;
  report_add("%s", headline);
}

static void report_end_lanes(void) {
  if (report.lane_count > REPORT_LANES_MAX)
    report_add("\n  and %" PRIu32 " more", report.lane_count - REPORT_LANES_MAX);
}

static void report_end(void) {
  char again[1024];
  char services[2048];
  report_end_lanes();
  emu_services_report(services, sizeof services);
  report_add("%s", services);
  emu_report_reproduce(again, sizeof again);
  log_urgent("%s\n  %s", report.text, again);
}

static void report_lanes(void) {
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    for (uint32_t b = 0; b < run->launch->block_count; b++)
      for (uint32_t i = 0; i < run->launch->blocks[b].lane_count; i++)
        if (run->launch->blocks[b].lanes[i].bound) report_lane(&run->launch->blocks[b].lanes[i]);
}

/* Waits for signals. */
static void report_signals(void) {
  char text[400];
  for (uint32_t place = 0; emu_rma_report(&place, text, sizeof text);)
    if (++report.lane_count <= REPORT_LANES_MAX) report_add("\n  %s", text);
}

/* Begins with the sentence of `tutti explain` if the records tell why nothing moves. */
static void report_begin_stuck(const char *headline) {
  char why[EXPLAINER_BYTES], text[EXPLAINER_BYTES + 160];
  explainer_ask(why, sizeof why);
  snprintf(text, sizeof text, "deadlock: %s%s%s", why, why[0] != '\0' ? "\n  " : "", headline);
  report_begin(text);
}

void emu_lanes_report_stuck(void) {
  if (emu_options()->mode == EMU_THREADS) {
    if (report.collecting) return; /* another waiter has begun this report already */
    report.collecting = true;
    report_begin_stuck("no kernel has made progress for TUTTI_STALL_SECONDS; these lanes wait:");
    report_signals();
    return;
  }
  emu_lanes_record();
  report_begin_stuck("nothing can move any more; these lanes wait:");
  report_lanes();
  report_signals();
  report_end();
}

static bool link_is_remote(struct device_comm *comm, const struct work *work, uint32_t peer, bool sends) {
  const uint32_t conn_index = work_link_conn(work, peer, sends);
  const struct emu_conn *conn = emu_conn_find(comm, peer, work->channel_index, conn_index, sends);
  return emu_conn_is_remote(conn) || conn->net;
}

/* While a thread runs a work, only its peers can be reported. */
static void report_links(const struct emu_kernel_run *run, const struct work *work) {
  struct device_comm *comm = run->launch->comm;
  report.lane_count += 1;
  if (report.lane_count > REPORT_LANES_MAX) return;
  report_add("\n  comm %s: rank %" PRIu32 " channel %u %s #%" PRIu64 ", linked to", comm->name,
             comm->config.rank, work->channel_index, emu_func_name(work->func),
             run->first_sequence + work->op_sequence);
  for (uint32_t i = 0; i < work->recv_count; i++)
    if (link_is_remote(comm, work, work->recv_peer[i], false))
      report_add(" rank %" PRIu32 " (receives)", work->recv_peer[i]);
  for (uint32_t i = 0; i < work->send_count; i++)
    if (link_is_remote(comm, work, work->send_peer[i], true))
      report_add(" rank %" PRIu32 " (sends)", work->send_peer[i]);
}

static void report_batches(void) {
  for (const struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    for (uint32_t b = 0; b < run->launch->block_count; b++) {
      if (!run->launch->comm->has_remote && !run->launch->comm->reaches_out) break;
      const struct emu_block *block = &run->launch->blocks[b];
      const struct plan *plan = &run->launch->plan;
      const uint32_t index = __atomic_load_n(&block->batch_index, __ATOMIC_RELAXED);
      for (uint32_t i = 0; index < block->batch_end && i < plan->batches[index].work_count; i++)
        report_links(run, &plan->works[plan->batches[index].first_work + i]);
    }
}

void emu_report_slow(void) {
  if (report.collecting) return;
  report_begin(
      "nothing has moved for TUTTI_STALL_SECONDS while ranks of other processes are waited for; the "
      "wait goes on:");
  if (emu_options()->mode == EMU_GUARDED) report_lanes();
  else report_batches();
  report_end_lanes();
  log_warn("%s", report.text);
}

void emu_report_stopped(struct emu_lane *emu) {
  if (report.collecting && emu->lane.phase != LANE_DONE) report_lane(emu);
}

void emu_report_flush(void) {
  if (report.collecting) report_end();
  report.collecting = false;
}

bool emu_report_complete(void *argument) {
  (void)argument;
  return !report.collecting;
}
