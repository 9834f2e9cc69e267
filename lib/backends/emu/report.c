/* report.c: sentences about lanes that wait, and the line that runs the program again. Reads lanes, changes
 * nothing. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/block.h"
#include "base/log.h"
#include "base/os.h"

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

static void wait_text(char *out, size_t out_bytes, const struct lane_wait *wait) {
  switch (wait->kind) {
    case WAIT_DATA:
      snprintf(out, out_bytes, "waits for data from rank %" PRIu32 ": tail %" PRIu64 ", needs %" PRIu64,
               wait->peer, wait->have, wait->need);
      break;
    case WAIT_SLOT:
      snprintf(out, out_bytes,
               "waits for a free slot towards rank %" PRIu32 ": head and slots make %" PRIu64
               ", needs %" PRIu64,
               wait->peer, wait->have, wait->need);
      break;
    case WAIT_LINES:
      snprintf(out, out_bytes,
               "waits for lines from rank %" PRIu32 ": line %" PRIu64 " of %" PRIu64 " has not come",
               wait->peer, wait->have, wait->need);
      break;
    case WAIT_OFFER:
      snprintf(out, out_bytes, "waits for rank %" PRIu32 " to enter the operation and offer its output",
               wait->peer);
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

static const struct device_comm *comm_of_rank(uint64_t comm_id, uint32_t rank) {
  for (const struct device_comm *comm = emu_comms; comm != NULL; comm = comm->next)
    if (comm->config.comm_id == comm_id && comm->config.rank == rank) return comm;
  return NULL;
}

/* Why a peer cannot help: it never launched as many kernels as the waiting rank has. */
static void peer_text(char *out, size_t out_bytes, const struct device_comm *comm, uint64_t turn,
                      uint32_t peer) {
  const struct device_comm *other = comm_of_rank(comm->config.comm_id, peer);
  out[0] = '\0';
  if (other == NULL) snprintf(out, out_bytes, "; rank %" PRIu32 " has left the communicator", peer);
  else if (other->launches <= turn)
    snprintf(out, out_bytes, "; rank %" PRIu32 " has launched %" PRIu64 " of %" PRIu64 " kernels", peer,
             other->launches, turn + 1);
}

void emu_report_lane(char *out, size_t out_bytes, struct emu_lane *emu) {
  char wait[160], peer[120], since[48];
  const struct emu_kernel_run *run = emu->block->run;
  const struct device_comm *comm = run->launch->comm;
  const struct lane_wait first = lane_wait_first(&emu->lane, &emu->prim);
  wait_text(wait, sizeof wait, &first);
  const bool alone = first.kind == WAIT_NOTHING || first.kind == WAIT_LIST;
  peer_text(peer, sizeof peer, comm, run->turn, alone ? comm->config.rank : first.peer);
  if (emu_options()->mode == EMU_GUARDED) snprintf(since, sizeof since, "since move %" PRIu64, emu->since);
  else snprintf(since, sizeof since, "for %" PRIu64 " ms", (os_time_ns() - emu->since) / 1000000u);
  snprintf(out, out_bytes, "rank %" PRIu32 " channel %u %s #%" PRIu64 " step %" PRIu64 " %s%s (%s)",
           comm->config.rank, emu->lane.work->channel_index, emu_func_name(emu->lane.work->func),
           lane_part(&emu->lane)->op_sequence, emu->lane.steps_done, wait, peer, since);
}

static void report_lane(struct emu_lane *emu) {
  char text[400];
  report.lane_count += 1;
  if (report.lane_count > REPORT_LANES_MAX) return;
  emu_report_lane(text, sizeof text, emu);
  report_add("\n  comm %s: %s", emu->block->run->launch->comm->name, text);
}

static void add_options(char *out, size_t out_bytes) {
  const struct emu_options *o = emu_options();
  size_t used = (size_t)snprintf(out, out_bytes, "mode=%s", o->mode == EMU_GUARDED ? "guarded" : "threads");
  const struct {
    const char *name;
    uint32_t value, usual;
  } rows[] = {
      {"devices", o->device_count, 8},
      {"slots", o->slots, 0},
      {"chunk", o->chunk_bytes, 0},
      {"channels", o->channel_count, 0},
      {"flag_bits", o->flag_bits, 0},
      {"depth", o->depth, 1},
      {"lag", o->lag, 0},
      {"span", o->span_lines, 64},
      {"rule", o->rule, 0},
      {"direct", o->direct, 1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0] && used < out_bytes; i++)
    if (rows[i].value != rows[i].usual)
      used += (size_t)snprintf(out + used, out_bytes - used, ",%s=%" PRIu32, rows[i].name, rows[i].value);
}

void emu_report_reproduce(char *out, size_t out_bytes) {
  char options[200];
  size_t command_bytes = 0;
  char *command = os_file_read("/proc/self/cmdline", &command_bytes);
  add_options(options, sizeof options);
  for (size_t i = 0; command != NULL && i + 1 < command_bytes; i++)
    if (command[i] == '\0') command[i] = ' ';
  snprintf(out, out_bytes, "reproduce: TUTTI_SEED=%" PRIu64 " TUTTI_EMU=%s %s", emu_options()->seed, options,
           command != NULL ? command : "(this program)");
  os_free(command);
}

static void report_begin(const char *verdict) {
  report.used = report.lane_count = 0;
  report_add("%s", verdict);
}

static void report_end(void) {
  char again[1024];
  if (report.lane_count > REPORT_LANES_MAX)
    report_add("\n  and %" PRIu32 " more", report.lane_count - REPORT_LANES_MAX);
  emu_report_reproduce(again, sizeof again);
  log_urgent("%s\n  %s", report.text, again);
}

void emu_report_stuck(void) {
  if (emu_options()->mode == EMU_THREADS) {
    if (report.collecting) return; /* a second waiter saw the same: what lanes have said already stays */
    report.collecting = true;
    report_begin("deadlock: no kernel has made progress for TUTTI_STALL_SECONDS; these lanes wait:");
    return;
  }
  report_begin("deadlock: nothing can move any more; these lanes wait:");
  for (struct emu_kernel_run *run = emu_runs; run != NULL; run = run->next)
    for (uint32_t b = 0; b < run->launch->block_count; b++)
      for (uint32_t i = 0; i < run->blocks[b].lane_count; i++)
        if (run->blocks[b].lanes[i].lane.phase != LANE_DONE) report_lane(&run->blocks[b].lanes[i]);
  report_end();
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
