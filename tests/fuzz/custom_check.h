/* custom_check.h: checks every schedule that a fuzz target of either format has read: its plans stay within
 * their buffers, and the writer's output is read as the same schedule. A violation aborts the program. */
#ifndef TUTTI_TESTS_FUZZ_CUSTOM_CHECK_H
#define TUTTI_TESTS_FUZZ_CUSTOM_CHECK_H

#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "schedules/schedules.h"
#include "core/custom/custom_build.h"
#include "core/plan/plan.h"
#include "schedule/algo.h"

enum { CHECK_RANKS = 4, CHECK_STEPS = 20000 };

struct check_text {
  char *text;
  size_t used, capacity;
};

static void must(bool good) {
  if (!good) abort();
}

static void check_emit(void *argument, const char *line) {
  struct check_text *out = (struct check_text *)argument;
  const size_t length = strlen(line);
  if (out->used + length + 2 > out->capacity) {
    out->capacity = 2 * (out->used + length + 2);
    out->text = (char *)realloc(out->text, out->capacity);
    must(out->text != NULL);
  }
  memcpy(out->text + out->used, line, length);
  out->text[out->used + length] = '\n';
  out->used += length + 1;
}

/* Every place that a work's steps name is within its buffer. */
static void check_work(const struct custom_schedule *schedule, const struct work *work) {
  const size_t in = custom_in_chunks(schedule) / schedule->chunk_count * work->count;
  const size_t out = custom_out_chunks(schedule) / schedule->chunk_count * work->count;
  const size_t scratch = schedule->scratch_count * work->last_chunk_count;
  struct algo_iter it;
  struct step step;
  memset(&it, 0, sizeof it);
  algo_begin(&it, work);
  for (uint32_t i = 0; i < CHECK_STEPS && algo_next(&it, work, &step); i++) {
    const size_t read = step.flags & STEP_FROM_SCRATCH ? scratch : step.flags & STEP_FROM_OUTPUT ? out : in;
    const size_t written = step.flags & STEP_TO_SCRATCH ? scratch : step.flags & STEP_TO_INPUT ? in : out;
    must(step.count <= work->chunk_count);
    must((step.recv_links >> work->recv_count) == 0 && (step.send_links >> work->send_count) == 0);
    if (step.flags & STEP_COPY_IN) must(step.in_offset <= read && step.count <= read - step.in_offset);
    if (step.flags & STEP_KEEP) must(step.out_offset <= written && step.count <= written - step.out_offset);
    if (step.flags & STEP_AWAIT_LIST) must(step.wait_lane < LIST_LANES_MAX);
  }
}

static void check_plans(const struct custom_schedule *schedule) {
  const struct plan_limits limits = {.slots = 4,
                                     .step_bytes = {256, 1024, 256},
                                     .p2p_chunk_bytes = 64,
                                     .channel_count = 2,
                                     .p2p_channel_count = 1,
                                     .p2p_channels_per_peer = 1,
                                     .flag_bits = 32};
  const size_t counts[] = {schedule->chunk_count, 3 * (size_t)schedule->chunk_count + 1};
  for (uint32_t rank = 0; rank < schedule->rank_count && rank < CHECK_RANKS; rank++)
    for (uint32_t i = 0; i < 2; i++) {
      struct plan plan;
      if (custom_plan(schedule, rank, counts[i], &limits, &plan) != ncclSuccess) continue;
      for (uint32_t k = 0; k < plan.work_count; k++) check_work(schedule, &plan.works[k]);
      plan_free(&plan);
    }
}

static void check_same(const struct custom_schedule *a, const struct custom_schedule *b) {
  must(a->func == b->func && a->protos == b->protos && a->places == b->places && a->even == b->even);
  must(a->waits == b->waits && a->staged == b->staged && a->rank_count == b->rank_count);
  must(a->chunk_count == b->chunk_count && a->scratch_count == b->scratch_count);
  must(a->block_count == b->block_count);
  for (uint32_t i = 0; i < a->block_count; i++) {
    const struct custom_block *x = &a->blocks[i], *y = &b->blocks[i];
    must(x->rank == y->rank && x->channel_index == y->channel_index);
    must(x->recv_count == y->recv_count && x->send_count == y->send_count);
    must(memcmp(x->recv_peer, y->recv_peer, sizeof x->recv_peer) == 0);
    must(memcmp(x->send_peer, y->send_peer, sizeof x->send_peer) == 0);
    must(x->list.step_count == y->list.step_count && x->list.round == y->list.round);
    must(x->list.step_count == 0 ||
         memcmp(x->list.steps, y->list.steps, x->list.step_count * sizeof *x->list.steps) == 0);
  }
}

static void check_round_trip(const struct custom_schedule *schedule) {
  struct check_text out = {NULL, 0, 0};
  struct custom_schedule *second = NULL;
  custom_print(schedule, check_emit, &out);
  must(custom_parse("printed", out.text, out.used, &second) == ncclSuccess);
  check_same(schedule, second);
  custom_free(second);
  free(out.text);
}

static void check_input(const uint8_t *data, size_t size) {
  struct custom_schedule *schedule = NULL;
  if (custom_parse("input", (const char *)data, size, &schedule) != ncclSuccess) return;
  check_plans(schedule);
  check_round_trip(schedule);
  custom_free(schedule);
}

#endif
