/* custom_build.c: builds a schedule row by row and completes it at the end: sorts blocks by rank, converts
 * waits for steps of the file to waits for steps of lists, and derives what the schedule requires of a call.
 * A finished schedule names no place outside its buffers and no connection twice. */
#include "core/custom/custom_build.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

#define BLOCKS_FIRST 16
/* Steps of all lists of a file: as many as a file of the maximum size can hold. */
#define ROWS_MAX (1u << 23)

ncclResult_t custom_fail_at(const char *source, int source_line, const struct custom_build *build,
                            uint32_t line, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (line == 0) return log_fail_at(source, source_line, ncclInvalidUsage, "%s: %s", build->name, text);
  return log_fail_at(source, source_line, ncclInvalidUsage, "%s:%u: %s", build->name, line, text);
}

static ncclResult_t out_of_memory(const struct custom_build *build) {
  return log_no_memory("%s: the schedule of %u steps", build->name, build->row_count);
}

/* ---- names ---- */

static const char *const func_names[] = {"broadcast",      "reduce",     "all_gather",
                                         "reduce_scatter", "all_reduce", "all_to_all"};
static const uint8_t func_ids[] = {FUNC_BROADCAST,      FUNC_REDUCE,     FUNC_ALL_GATHER,
                                   FUNC_REDUCE_SCATTER, FUNC_ALL_REDUCE, FUNC_ALL_TO_ALL};

/* Compares names without case and underscores. */
static bool name_alike(const char *a, const char *b) {
  for (;; a++, b++) {
    while (*a == '_') a++;
    while (*b == '_') b++;
    const char low = *a >= 'A' && *a <= 'Z' ? (char)(*a + 32) : *a;
    if (low != *b) return false;
    if (low == '\0') return true;
  }
}

int custom_func_of(const char *name) {
  for (uint32_t i = 0; i < sizeof func_ids; i++)
    if (name_alike(name, func_names[i])) return func_ids[i];
  return -1;
}

const char *custom_func_name(uint8_t func) {
  for (uint32_t i = 0; i < sizeof func_ids; i++)
    if (func_ids[i] == func) return func_names[i];
  return "unknown";
}

int custom_proto_of(const char *name) {
  static const char *const names[PROTO_COUNT] = {"LL", "LL128", "Simple"};
  for (int proto = 0; proto < PROTO_COUNT; proto++)
    if (strcasecmp(name, names[proto]) == 0) return proto;
  return -1;
}

void custom_name_take(struct custom_schedule *schedule, const char *text) {
  snprintf(schedule->name, sizeof schedule->name, "%s", text);
  for (char *letter = schedule->name; *letter != '\0'; letter++)
    if ((unsigned char)*letter < ' ' || *letter == '#') *letter = '_';
}

uint32_t custom_in_chunks(const struct custom_schedule *schedule) {
  const bool all = schedule->func == FUNC_REDUCE_SCATTER || schedule->func == FUNC_ALL_TO_ALL;
  return schedule->chunk_count * (all ? schedule->rank_count : 1);
}

uint32_t custom_out_chunks(const struct custom_schedule *schedule) {
  const bool all = schedule->func == FUNC_ALL_GATHER || schedule->func == FUNC_ALL_TO_ALL;
  return schedule->chunk_count * (all ? schedule->rank_count : 1);
}

/* ---- growing ---- */

static bool blocks_reserve(struct custom_build *build) {
  struct custom_schedule *schedule = build->schedule;
  const uint32_t count = schedule->block_count;
  if (count < build->block_capacity) return true;
  const uint32_t capacity = count == 0 ? BLOCKS_FIRST : 2 * count;
  if (!array_resize(&schedule->blocks, capacity, sizeof *schedule->blocks) ||
      !array_resize(&build->drafts, capacity, sizeof *build->drafts))
    return false;
  memset(build->drafts + count, 0, (capacity - count) * sizeof *build->drafts);
  build->block_capacity = capacity;
  return true;
}

ncclResult_t custom_add_block(struct custom_build *build, uint32_t rank, uint32_t channel, uint32_t line,
                              struct custom_block **block) {
  struct custom_schedule *schedule = build->schedule;
  if (rank >= schedule->rank_count)
    return custom_fail(build, line, "rank %u is none of the %u ranks", rank, schedule->rank_count);
  if (channel >= PLAN_CHANNELS_MAX)
    return custom_fail(build, line, "channel %u: expected 0 to %d", channel, PLAN_CHANNELS_MAX - 1);
  if (!blocks_reserve(build)) return out_of_memory(build);
  struct custom_draft *draft = &build->drafts[schedule->block_count];
  *block = &schedule->blocks[schedule->block_count];
  memset(*block, 0, sizeof **block);
  (*block)->rank = rank;
  (*block)->channel_index = channel;
  draft->first_row = build->row_count;
  draft->row_count = 0;
  draft->line = line;
  schedule->block_count += 1;
  if (channel >= schedule->channel_count) schedule->channel_count = channel + 1;
  return ncclSuccess;
}

ncclResult_t custom_add_link(struct custom_build *build, bool sends, uint32_t peer, uint32_t line,
                             uint32_t *link) {
  const struct custom_schedule *schedule = build->schedule;
  struct custom_block *block = &schedule->blocks[schedule->block_count - 1];
  uint32_t *peers = sends ? block->send_peer : block->recv_peer;
  uint8_t *count = sends ? &block->send_count : &block->recv_count;
  for (*link = 0; *link < *count; *link += 1)
    if (peers[*link] == peer) return ncclSuccess;
  if (peer >= schedule->rank_count || peer == block->rank)
    return custom_fail(build, line, "rank %u as a peer of rank %u: expected another of the %u ranks", peer,
                       block->rank, schedule->rank_count);
  if (*count == LIST_LINKS_MAX)
    return custom_fail(build, line, "a block %s at most %d ranks", sends ? "sends to" : "receives from",
                       LIST_LINKS_MAX);
  peers[*count] = peer;
  *count += 1;
  return ncclSuccess;
}

/* ---- one step ---- */

static bool is_input(const struct list_step *step) {
  return (step->flags & STEP_COPY_IN) && (step->flags & (STEP_FROM_OUTPUT | STEP_FROM_SCRATCH)) == 0;
}

static bool is_output(const struct list_step *step) {
  return (step->flags & STEP_KEEP) && (step->flags & (STEP_TO_SCRATCH | STEP_TO_INPUT)) == 0;
}

/* Only the root of a reduce has an output, and only the root of a broadcast an input. */
static const char *step_missing(const struct custom_schedule *schedule, uint32_t rank,
                                const struct list_step *step) {
  if (rank == schedule->root) return NULL;
  if (schedule->func == FUNC_BROADCAST && (is_input(step) || (step->flags & STEP_TO_INPUT)))
    return "only the root of a broadcast has an input";
  if (schedule->func == FUNC_REDUCE && (is_output(step) || (step->flags & STEP_FROM_OUTPUT)))
    return "only the root of a reduce has an output";
  return NULL;
}

/* What is wrong with a step, or NULL. */
static const char *step_fault(const struct custom_schedule *schedule, uint32_t rank,
                              const struct list_step *step) {
  const uint32_t flags = step->flags;
  const bool has_data = (flags & (STEP_RECV | STEP_COPY_IN)) != 0;
  if ((flags & (STEP_SEND | STEP_KEEP | STEP_POST_OP)) && !has_data)
    return "there is nothing to send or to keep: expected a receive or an own chunk before";
  if (has_data && (flags & (STEP_SEND | STEP_KEEP)) == 0)
    return "what it has goes nowhere: expected a send or a place to keep it";
  if ((flags & STEP_TO_INPUT) && schedule->places != CUSTOM_IN_PLACE)
    return "the user's input may be written by a schedule for calls in place alone";
  if ((flags & STEP_FOLD) && (flags & STEP_RECV))
    return "a sum with what is there is for own chunks alone: expected no receive in the same step";
  return step_missing(schedule, rank, step);
}

static ncclResult_t check_places(const struct custom_build *build, const struct list_step *step,
                                 uint32_t chunk_count, uint32_t line) {
  const struct custom_schedule *schedule = build->schedule;
  const uint32_t ins = custom_in_chunks(schedule), outs = custom_out_chunks(schedule);
  const uint32_t read = step->flags & STEP_FROM_SCRATCH  ? schedule->scratch_count
                        : step->flags & STEP_FROM_OUTPUT ? outs
                                                         : ins;
  const uint32_t written = step->flags & STEP_TO_SCRATCH ? schedule->scratch_count
                           : step->flags & STEP_TO_INPUT ? ins
                                                         : outs;
  if ((step->flags & STEP_COPY_IN) && (step->in_chunk >= read || chunk_count > read - step->in_chunk))
    return custom_fail(build, line, "chunks %u to %u are read of a buffer that has %u", step->in_chunk,
                       step->in_chunk + chunk_count - 1, read);
  if ((step->flags & STEP_KEEP) && (step->out_chunk >= written || chunk_count > written - step->out_chunk))
    return custom_fail(build, line, "chunks %u to %u are written to a buffer that has %u", step->out_chunk,
                       step->out_chunk + chunk_count - 1, written);
  return ncclSuccess;
}

static bool rows_reserve(struct custom_build *build, uint32_t more) {
  const uint32_t before = build->row_capacity;
  if (!array_grow(&build->rows, &build->row_capacity, (uint64_t)build->row_count + more, sizeof *build->rows))
    return false;
  memset(build->rows + before, 0, (build->row_capacity - before) * sizeof *build->rows);
  return true;
}

ncclResult_t custom_add_step(struct custom_build *build, const struct list_step *step, uint32_t chunk_count,
                             uint32_t line) {
  const struct custom_block *block = &build->schedule->blocks[build->schedule->block_count - 1];
  struct custom_draft *draft = &build->drafts[build->schedule->block_count - 1];
  const char *fault = step_fault(build->schedule, block->rank, step);
  if (fault != NULL) return custom_fail(build, line, "%s", fault);
  if (chunk_count == 0) return custom_fail(build, line, "a step moves at least one chunk");
  TRY(check_places(build, step, chunk_count, line));
  if (chunk_count > CUSTOM_STEPS_MAX - draft->row_count)
    return custom_fail(build, line, "a block has at most %d steps of one chunk", CUSTOM_STEPS_MAX);
  if (chunk_count > ROWS_MAX - build->row_count)
    return custom_fail(build, line, "a file has at most %u steps of one chunk", ROWS_MAX);
  if (!rows_reserve(build, chunk_count)) return out_of_memory(build);
  const uint32_t number =
      draft->row_count == 0 ? 0 : build->rows[draft->first_row + draft->row_count - 1].number + 1;
  for (uint32_t i = 0; i < chunk_count; i++) {
    struct custom_row *row = &build->rows[build->row_count + i];
    row->step = *step;
    row->step.in_chunk += (step->flags & STEP_COPY_IN) ? i : 0;
    row->step.out_chunk += (step->flags & STEP_KEEP) ? i : 0;
    if (i > 0) {
      row->step.flags &= ~(uint32_t)STEP_AWAIT_LIST;
      row->step.wait_lane = 0;
      row->step.wait_steps = 0;
    }
    row->number = number;
    row->line = line;
  }
  build->row_count += chunk_count;
  draft->row_count += chunk_count;
  return ncclSuccess;
}

/* ---- settling ---- */

/* Sorts blocks by rank, in the order of the file within a rank; the blocks' rows are not moved. */
static bool blocks_sort(struct custom_build *build) {
  struct custom_schedule *schedule = build->schedule;
  const uint32_t count = schedule->block_count, ranks = schedule->rank_count;
  struct custom_block *blocks = (struct custom_block *)os_alloc(count * sizeof *blocks);
  struct custom_draft *drafts = (struct custom_draft *)os_alloc(count * sizeof *drafts);
  uint32_t *first = (uint32_t *)os_alloc((ranks + 2) * sizeof *first);
  if (blocks == NULL || drafts == NULL || first == NULL) {
    os_free(blocks);
    os_free(drafts);
    os_free(first);
    return false;
  }
  for (uint32_t i = 0; i < count; i++) first[schedule->blocks[i].rank + 2] += 1;
  for (uint32_t rank = 0; rank < ranks; rank++) first[rank + 2] += first[rank + 1];
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t place = first[schedule->blocks[i].rank + 1]++;
    blocks[place] = schedule->blocks[i];
    drafts[place] = build->drafts[i];
  }
  os_free(schedule->blocks);
  os_free(build->drafts);
  schedule->blocks = blocks;
  build->drafts = drafts;
  schedule->first_block = first;
  return true;
}

static bool shares_peer(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count) {
  for (uint32_t i = 0; i < a_count; i++)
    for (uint32_t j = 0; j < b_count; j++)
      if (a[i] == b[j]) return true;
  return false;
}

/* Checks that a rank has not too many blocks, and that no connection is used twice. */
static ncclResult_t check_rank(const struct custom_build *build, uint32_t rank) {
  const struct custom_schedule *schedule = build->schedule;
  const uint32_t begin = schedule->first_block[rank], end = schedule->first_block[rank + 1];
  if (end - begin > LIST_LANES_MAX)
    return custom_fail(build, build->drafts[end - 1].line, "rank %u has more than %d blocks", rank,
                       LIST_LANES_MAX);
  for (uint32_t i = begin; i < end; i++) {
    const struct custom_block *block = &schedule->blocks[i];
    uint32_t beside = 0;
    for (uint32_t k = begin; k < i; k++) {
      const struct custom_block *other = &schedule->blocks[k];
      if (other->channel_index != block->channel_index) continue;
      beside += 1;
      if (shares_peer(block->send_peer, block->send_count, other->send_peer, other->send_count) ||
          shares_peer(block->recv_peer, block->recv_count, other->recv_peer, other->recv_count))
        return custom_fail(
            build, build->drafts[i].line,
            "two blocks of rank %u on channel %u use the connection to the same rank: expected "
            "one of them on another channel",
            rank, block->channel_index);
    }
    if (beside >= PLAN_BATCH_WORKS_MAX)
      return custom_fail(build, build->drafts[i].line,
                         "rank %u has more than %d blocks on channel %u: expected some on other channels",
                         rank, PLAN_BATCH_WORKS_MAX, block->channel_index);
  }
  return ncclSuccess;
}

/* Converts a wait for a step of the file to a number of rows that must be complete. */
static ncclResult_t settle_wait(struct custom_build *build, uint32_t rank, struct custom_row *row) {
  struct custom_schedule *schedule = build->schedule;
  const uint32_t begin = schedule->first_block[rank], end = schedule->first_block[rank + 1];
  const uint32_t wanted = row->step.wait_steps;
  if (row->step.wait_lane >= end - begin)
    return custom_fail(build, row->line, "it waits for block %u: rank %u has %u", row->step.wait_lane, rank,
                       end - begin);
  const struct custom_draft *draft = &build->drafts[begin + row->step.wait_lane];
  uint32_t low = 0, high = draft->row_count; /* rows whose number is at most the wanted one */
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (build->rows[draft->first_row + middle].number <= wanted) low = middle + 1;
    else high = middle;
  }
  if (low == 0 || build->rows[draft->first_row + low - 1].number != wanted)
    return custom_fail(build, row->line, "it waits for step %u of block %u, which has no such step", wanted,
                       row->step.wait_lane);
  row->step.wait_steps = low;
  row->step.wait_round = draft->row_count;
  schedule->waits = true;
  return ncclSuccess;
}

static ncclResult_t settle_rank(struct custom_build *build, uint32_t rank) {
  struct custom_schedule *schedule = build->schedule;
  const uint32_t begin = schedule->first_block[rank], end = schedule->first_block[rank + 1];
  uint32_t round = 0;
  TRY(check_rank(build, rank));
  for (uint32_t i = begin; i < end; i++) {
    const struct custom_draft *draft = &build->drafts[i];
    struct list *list = &schedule->blocks[i].list;
    list->step_count = draft->row_count;
    list->chunk_count = schedule->chunk_count;
    if (draft->row_count > round) round = draft->row_count;
    for (uint32_t k = 0; k < draft->row_count; k++) {
      struct custom_row *row = &build->rows[draft->first_row + k];
      if (row->step.flags & STEP_AWAIT_LIST) TRY(settle_wait(build, rank, row));
    }
  }
  for (uint32_t i = begin; i < end; i++) schedule->blocks[i].list.round = round;
  return ncclSuccess;
}

/* Sets the flags that state what the schedule requires of a call. */
static void settle_needs(struct custom_build *build) {
  struct custom_schedule *schedule = build->schedule;
  bool finishes = false, rereads = false;
  for (uint32_t i = 0; i < build->row_count; i++) {
    const uint32_t flags = build->rows[i].step.flags;
    finishes = finishes || (flags & STEP_POST_OP);
    rereads = rereads || (flags & (STEP_FROM_OUTPUT | STEP_FROM_SCRATCH | STEP_FOLD));
  }
  schedule->staged = finishes && !rereads;
}

static bool steps_place(struct custom_build *build) {
  struct custom_schedule *schedule = build->schedule;
  schedule->steps = (struct list_step *)os_alloc(build->row_count * sizeof *schedule->steps);
  if (schedule->steps == NULL) return false;
  struct list_step *next = schedule->steps;
  for (uint32_t i = 0; i < schedule->block_count; i++) {
    const struct custom_draft *draft = &build->drafts[i];
    schedule->blocks[i].list.steps = next;
    for (uint32_t k = 0; k < draft->row_count; k++) *next++ = build->rows[draft->first_row + k].step;
  }
  return true;
}

/* ---- even or not ---- */

#define NOWHERE UINT32_MAX

/* The chunk's place within its block of the user's memory; NOWHERE if the step names none, or two. */
static uint32_t step_position(const struct custom_schedule *schedule, const struct list_step *step) {
  const uint32_t chunks = schedule->chunk_count;
  uint32_t from = NOWHERE, to = NOWHERE;
  if (step->flags & (STEP_FROM_SCRATCH | STEP_TO_SCRATCH)) return NOWHERE;
  if (step->flags & STEP_COPY_IN) from = step->in_chunk % chunks;
  if (step->flags & STEP_KEEP) to = step->out_chunk % chunks;
  if (from == NOWHERE) return to;
  return to == NOWHERE || to == from ? from : NOWHERE;
}

static int block_link(const uint32_t *peers, uint32_t count, uint32_t rank) {
  for (uint32_t i = 0; i < count; i++)
    if (peers[i] == rank) return (int)i;
  return -1;
}

/* The next step from *index on that uses the link, or NULL. */
static const struct list_step *next_on_link(const struct list *list, bool sends, uint32_t link,
                                            uint32_t *index) {
  while (*index < list->step_count) {
    const struct list_step *step = &list->steps[(*index)++];
    if (((sends ? step->send_links : step->recv_links) >> link) & 1) return step;
  }
  return NULL;
}

/* True if every chunk sent over the connection has the same place at both ends. */
static bool link_is_aligned(const struct custom_schedule *schedule, const struct custom_block *sender,
                            uint32_t send_link, const struct custom_block *receiver, uint32_t recv_link) {
  uint32_t sent = 0, received = 0;
  for (;;) {
    const struct list_step *send = next_on_link(&sender->list, true, send_link, &sent);
    const struct list_step *recv = next_on_link(&receiver->list, false, recv_link, &received);
    if (send == NULL && recv == NULL) return true;
    if (send == NULL || recv == NULL) return false;
    if (step_position(schedule, send) != step_position(schedule, recv)) return false;
  }
}

static bool sender_is_aligned(const struct custom_schedule *schedule, const struct custom_block *sender,
                              uint32_t send_link) {
  const uint32_t peer = sender->send_peer[send_link];
  for (uint32_t i = schedule->first_block[peer]; i < schedule->first_block[peer + 1]; i++) {
    const struct custom_block *receiver = &schedule->blocks[i];
    const int link = block_link(receiver->recv_peer, receiver->recv_count, sender->rank);
    if (receiver->channel_index == sender->channel_index && link >= 0)
      return link_is_aligned(schedule, sender, send_link, receiver, (uint32_t)link);
  }
  return false;
}

void custom_settle_even(struct custom_schedule *schedule) {
  bool aligned = true;
  for (uint32_t i = 0; i < schedule->block_count && aligned; i++) {
    const struct custom_block *block = &schedule->blocks[i];
    for (uint32_t k = 0; k < block->list.step_count && aligned; k++)
      aligned = block->list.steps[k].flags == STEP_AWAIT_LIST || block->list.steps[k].flags == 0 ||
                step_position(schedule, &block->list.steps[k]) != NOWHERE;
    for (uint32_t link = 0; link < block->send_count && aligned; link++)
      aligned = sender_is_aligned(schedule, block, link);
  }
  schedule->even = !aligned;
}

/* ---- the whole ---- */

ncclResult_t custom_settle(struct custom_build *build) {
  struct custom_schedule *schedule = build->schedule;
  if (schedule->block_count == 0) return custom_fail(build, 0, "it has no steps: expected a rank's block");
  if (!blocks_sort(build)) return out_of_memory(build);
  for (uint32_t rank = 0; rank < schedule->rank_count; rank++) TRY(settle_rank(build, rank));
  settle_needs(build);
  if (!steps_place(build)) return out_of_memory(build);
  custom_settle_even(schedule);
  for (uint32_t i = 0; i < schedule->block_count; i++) schedule->blocks[i].list.even = schedule->even;
  return ncclSuccess;
}
