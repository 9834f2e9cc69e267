/* print.c: prints a schedule as tutti's text (examples/schedules/README.md describes it). */
#include "schedules/schedules.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/custom/custom_build.h"

struct text_writer {
  void (*emit)(void *argument, const char *line);
  void *argument;
  char line[CUSTOM_TEXT_LINE_BYTES];
  size_t used;
};

static void put(struct text_writer *writer, const char *format, ...) LOG_FORMAT(2, 3);
static void put(struct text_writer *writer, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int added =
      vsnprintf(writer->line + writer->used, sizeof writer->line - writer->used, format, arguments);
  va_end(arguments);
  if (added > 0) writer->used += (size_t)added;
  if (writer->used >= sizeof writer->line) writer->used = sizeof writer->line - 1;
}

static void put_line(struct text_writer *writer) {
  writer->line[writer->used] = '\0';
  writer->emit(writer->argument, writer->line);
  writer->used = 0;
}

static void put_peers(struct text_writer *writer, const char *before, uint32_t links, const uint32_t *peers) {
  put(writer, "%s", before);
  for (uint32_t i = 0; i < LIST_LINKS_MAX; i++)
    if ((links >> i) & 1) put(writer, " %" PRIu32, peers[i]);
}

static const char *place_read(uint32_t flags) {
  return flags & STEP_FROM_SCRATCH ? "scratch" : flags & STEP_FROM_OUTPUT ? "out" : "in";
}

static const char *place_written(uint32_t flags) {
  return flags & STEP_TO_SCRATCH ? "scratch" : flags & STEP_TO_INPUT ? "in" : "out";
}

/* Begins an action: prints a comma after the previous one. */
static void put_action(struct text_writer *writer, const char *action) {
  put(writer, "%s%s", writer->used > 2 ? ", " : "", action);
}

/* Waits name steps of the file, and a written file has one line per row. */
static void put_step(struct text_writer *writer, const struct custom_block *block,
                     const struct list_step *step) {
  const uint32_t flags = step->flags;
  const bool adds = (flags & STEP_RECV) && (flags & STEP_COPY_IN);
  const bool straight = (flags & STEP_COPY_IN) && !adds && (flags & (STEP_KEEP | STEP_POST_OP)) == 0;
  put(writer, "  ");
  if (flags & STEP_AWAIT_LIST) {
    put_action(writer, "after");
    put(writer, " block %u step %" PRIu32, step->wait_lane, step->wait_steps - 1);
  }
  if (flags & STEP_RECV) {
    put_action(writer, "recv");
    put_peers(writer, " <-", step->recv_links, block->recv_peer);
  }
  if (adds) {
    put_action(writer, "add");
    put(writer, " %s[%" PRIu32 "]", place_read(flags), step->in_chunk);
    if (step->own_index > 0) put(writer, " after %u", step->own_index);
  } else if ((flags & STEP_COPY_IN) && !straight) {
    put_action(writer, "read");
    put(writer, " %s[%" PRIu32 "]", place_read(flags), step->in_chunk);
  }
  if (flags & STEP_POST_OP) put_action(writer, "finish");
  if (flags & STEP_KEEP) {
    put_action(writer, flags & STEP_FOLD ? "sum" : "keep");
    put(writer, " %s[%" PRIu32 "]", place_written(flags), step->out_chunk);
  }
  if (flags & STEP_SEND) {
    put_action(writer, "send");
    if (straight) put(writer, " %s[%" PRIu32 "]", place_read(flags), step->in_chunk);
    put_peers(writer, " ->", step->send_links, block->send_peer);
  }
  if (writer->used == 2) put(writer, "nothing");
  put_line(writer);
}

/* True if the steps name a side's links in a different order, or omit one. */
static bool links_need_order(const struct list *list, bool sends, uint32_t count) {
  uint32_t seen = 0;
  for (uint32_t i = 0; i < list->step_count; i++) {
    const uint32_t links = sends ? list->steps[i].send_links : list->steps[i].recv_links;
    const uint32_t fresh = links & ~seen;
    /* New links must be the lowest that were not used. */
    if (fresh != 0 && ((seen | fresh) & ((seen | fresh) + 1)) != 0) return true;
    seen |= links;
  }
  return seen != (1u << count) - 1;
}

static void put_block(struct text_writer *writer, const struct custom_block *block) {
  put(writer, "rank %" PRIu32 " channel %" PRIu32, block->rank, block->channel_index);
  if (links_need_order(&block->list, false, block->recv_count))
    put_peers(writer, " recv", (1u << block->recv_count) - 1, block->recv_peer);
  if (links_need_order(&block->list, true, block->send_count))
    put_peers(writer, " send", (1u << block->send_count) - 1, block->send_peer);
  put(writer, ":");
  put_line(writer);
  for (uint32_t i = 0; i < block->list.step_count; i++) put_step(writer, block, &block->list.steps[i]);
}

static void put_head(struct text_writer *writer, const struct custom_schedule *schedule) {
  static const char *const protos[] = {"any",    "ll",           "ll128",           "ll or ll128",
                                       "simple", "ll or simple", "ll128 or simple", "any"};
  static const char *const places[] = {"any", "no", "yes", "any"};
  put(writer, CUSTOM_TEXT_FIRST_LINE);
  put_line(writer);
  put(writer, "name: %s", schedule->name);
  put_line(writer);
  put(writer, "collective: %s", custom_func_name(schedule->func));
  put_line(writer);
  put(writer, "ranks: %" PRIu32, schedule->rank_count);
  put_line(writer);
  put(writer, "chunks: %" PRIu32, schedule->chunk_count);
  put_line(writer);
  put(writer, "protocol: %s", protos[schedule->protos & 7]);
  put_line(writer);
  put(writer, "in-place: %s", places[schedule->places & 3]);
  put_line(writer);
  if (schedule->scratch_count > 0) {
    put(writer, "scratch: %" PRIu32, schedule->scratch_count);
    put_line(writer);
  }
  if (schedule->func == FUNC_BROADCAST || schedule->func == FUNC_REDUCE) {
    put(writer, "root: %" PRIu32, schedule->root);
    put_line(writer);
  }
}

void custom_print(const struct custom_schedule *schedule, void (*emit)(void *argument, const char *line),
                  void *argument) {
  struct text_writer writer;
  memset(&writer, 0, sizeof writer);
  writer.emit = emit;
  writer.argument = argument;
  put_head(&writer, schedule);
  for (uint32_t i = 0; i < schedule->block_count; i++) put_block(&writer, &schedule->blocks[i]);
}
