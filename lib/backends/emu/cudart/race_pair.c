/* race_pair.c: pairs of accesses that may race: those whose order depends on calls that other ranks have not
 * made yet wait here, the others are reported. A report names both accesses, the bytes and the cure. */
#include "backends/emu/cudart/race_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/callsite.h"
#include "base/log.h"

/* Further ones are not looked at again. */
#define PAIRS_MOST 256

static struct race_pair pairs[PAIRS_MOST];
static uint32_t pair_count;
static char text[1200];

static uint64_t reports;

const char *emu_race_text(void) { return text; }
uint64_t emu_race_count(void) { return reports; }

/* ---- sentences ---- */

static void add(const char *format, ...) LOG_FORMAT(1, 2);
static void add(const char *format, ...) {
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, sizeof text - used, format, arguments);
  va_end(arguments);
}

static void add_stream(const struct race_op *op) {
  if (op->legacy) add("the default stream of device %" PRIu32, op->device_index);
  else add("stream %" PRIu32 " of device %" PRIu32, op->stream_index, op->device_index);
}

static void add_site(const struct race_call *call) {
  char site[200];
  if (call->address == NULL) return;
  callsite_text(call->address, site, sizeof site);
  add(" at %s", site);
}

/* "ncclAllReduce #3 of communicator 1 rank 0 (stream 2 of device 0) at job.c:31 (train)" */
static void add_op(const struct race_op *op) {
  char rank[120];
  add("%s", op->call.name != NULL ? op->call.name : "an operation");
  if (op->rank != NULL) add(" #%" PRIu64 " of %s", op->sequence, race_rank_text(op->rank, rank, sizeof rank));
  if (op->captured) add(" of a graph");
  if (op->stream != 0) {
    add(" (");
    add_stream(op);
    add(")");
  }
  add_site(&op->call);
}

static const char *verb(const struct race_op *op, bool writes) {
  const bool frees =
      op->call.name != NULL && (strstr(op->call.name, "Free") || strstr(op->call.name, "Unreg"));
  return frees ? "frees" : writes ? "writes" : "reads";
}

static void add_memory(const struct race_pair *pair) {
  const struct emu_allocation *memory = &pair->memory;
  add(" bytes [%zu, %zu) of ", pair->begin, pair->end);
  if (memory->kind == EMU_MEMORY_DEVICE)
    add("%zu bytes on device %" PRIu32, memory->bytes, memory->device_index);
  else add("%zu bytes of %s memory", memory->bytes, memory->kind == EMU_MEMORY_HOST ? "host" : "managed");
  if (memory->call.name == NULL) return;
  add(" (%s", memory->call.name);
  add_site(&memory->call);
  add(")");
}

static void text_begin(const struct race_pair *pair) {
  reports += 1;
  snprintf(text, sizeof text, "race: ");
  add_op(pair->first);
  add(" %s", verb(pair->first, pair->first_writes));
  add_memory(pair);
  add(", and ");
  add_op(pair->second);
  add(" %s them", verb(pair->second, pair->second_writes));
}

static void text_cure(const struct race_pair *pair) {
  add(" without an order between the two; ");
  if (pair->second->stream != 0 && !pair->second->legacy) {
    add("record an event on ");
    add_stream(pair->first);
    add(" after the first and make ");
    add_stream(pair->second);
    add(" wait for it (cudaStreamWaitEvent) before the second, or ");
  }
  add("call cudaStreamSynchronize for ");
  add_stream(pair->first);
  add(" between them");
}

static void found(const struct race_pair *pair) {
  log_urgent("%s", text);
  race_found();
  emu_race_forget();
  race_rank_fail(pair->first->rank);
  race_rank_fail(pair->second->rank);
}

static void report(const struct race_pair *pair) {
  text_begin(pair);
  text_cure(pair);
  found(pair);
}

void race_report_group(const struct race_pair *pair) {
  text_begin(pair);
  add("; calls of one group have no order: use other memory, or call ncclGroupEnd and ncclGroupStart between "
      "the two");
  found(pair);
}

void race_report_gone(const struct race_op *op, bool writes) {
  reports += 1;
  text[0] = '\0';
  add_op(op);
  add(" %s memory that was freed after the capture; keep it until cudaGraphExecDestroy", verb(op, writes));
  log_urgent("%s", text);
  race_found();
}

void race_report_nodes(const struct race_pair *pair) {
  text_begin(pair);
  add(", and no path of the graph orders the two nodes; add a dependency between them: when capturing, with "
      "cudaEventRecord and cudaStreamWaitEvent between their streams");
  log_urgent("%s", text);
}

/* ---- pairs that wait ---- */

static enum race_order order_of(const struct race_pair *pair) {
  const struct race_op *first = pair->first, *second = pair->second;
  const enum race_order forth =
      race_is_before(first->stream, pair->first_writes ? first->write_epoch : first->read_epoch, &pair->at);
  if (forth == RACE_ORDERED || first->clock == NULL || second->stream == 0) return forth;
  const struct race_point behind = {first->clock, first->write_epoch, first->stream};
  const enum race_order back =
      race_is_before(second->stream, pair->second_writes ? second->write_epoch : second->read_epoch, &behind);
  return back == RACE_UNORDERED ? forth : back;
}

static void pair_drop(struct race_pair *pair) {
  race_op_drop(pair->first);
  race_op_drop(pair->second);
  emu_race_point_drop(&pair->at);
}

static void pair_keep(const struct race_pair *pair) {
  struct race_pair *kept = &pairs[pair_count];
  if (pair_count == PAIRS_MOST) return;
  pair_count += 1;
  *kept = *pair;
  kept->first->reference_count += 1;
  kept->second->reference_count += 1;
  race_clock_keep(kept->at.clock);
}

bool race_pair_check(const struct race_pair *pair) {
  const enum race_order order = order_of(pair);
  if (order == RACE_UNKNOWN) pair_keep(pair);
  if (order == RACE_UNORDERED) report(pair);
  return order != RACE_UNORDERED;
}

void race_pairs_look(void) {
  for (uint32_t i = 0; i < pair_count;) {
    struct race_pair pair = pairs[i];
    const enum race_order order = order_of(&pair);
    if (order == RACE_UNKNOWN) {
      i += 1;
      continue;
    }
    pairs[i] = pairs[--pair_count];
    if (order == RACE_UNORDERED) report(&pair);
    pair_drop(&pair);
    if (order == RACE_UNORDERED) return;
  }
}

void race_pairs_drop(void) {
  while (pair_count > 0) pair_drop(&pairs[--pair_count]);
}
