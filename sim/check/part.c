/* part.c: splits a plan into its channels. */
#include "check/part.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

static void key_mix(struct part_key *key, uint64_t value) {
  key->low = (key->low ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  key->low ^= key->low >> 32;
  key->high = (key->high + value) * UINT64_C(0xbf58476d1ce4e5b9);
  key->high ^= key->high >> 29;
}

/* The members of a work that its steps and its executor depend on, except the part's place. */
static void key_mix_work(struct part_key *key, const struct work *work, const struct plan_limits *limits) {
  key_mix(key, (uint64_t)work->func << 56 | (uint64_t)work->algo << 48 | (uint64_t)work->proto << 40 |
                   (uint64_t)work->chunk_steps << 32 | (uint64_t)work->slice_steps << 24 |
                   (uint64_t)work->recv_count << 16 | (uint64_t)work->send_count << 8 | work->conn_index);
  key_mix(key, (uint64_t)work->role << 56 | (uint64_t)work->flags << 32 | work->rank);
  key_mix(key, (uint64_t)work->ring_index << 32 | work->root);
  key_mix(key, (uint64_t)work->head_index << 32 | work->head_count);
  key_mix(key, work->part_count);
  key_mix(key, work->chunk_count);
  key_mix(key, work->last_chunk_count);
  key_mix(key, (uint64_t)work->slice_steps * limits->step_bytes[work->proto] / work->element_bytes);
  for (uint32_t i = 0; i < work->recv_count; i++) key_mix(key, work->recv_peer[i]);
  for (uint32_t i = 0; i < work->send_count; i++) key_mix(key, work->send_peer[i]);
}

struct part_key part_key_of(const struct check_setup *setup, uint32_t channel_index, size_t *count) {
  struct part_key key = {1, 2};
  const struct check_input *input = &setup->input;
  const struct work *ringed = NULL;
  *count = 0;
  key_mix(&key, (uint64_t)input->rank_count << 32 | input->plans[0].limits.slots);
  key_mix(&key, input->first_step << 3 | (uint64_t)input->ops[0].rank_order << 2 | input->inputs);
  for (uint32_t rank = 0; rank < input->rank_count; rank++) {
    const struct plan *plan = &input->plans[rank];
    for (uint32_t i = 0; i < plan->batch_count; i++) {
      const struct plan_batch *batch = &plan->batches[i];
      if (batch->channel_index != channel_index) continue;
      key_mix(&key, (uint64_t)rank << 32 | batch->work_count);
      for (uint32_t j = 0; j < batch->work_count; j++) {
        const struct work *work = &plan->works[batch->first_work + j];
        const struct plan_buffers *buffers = &plan->buffers[batch->first_work + j];
        key_mix_work(&key, work, &plan->limits);
        key_mix(&key, (uint64_t)(buffers->in != NULL) << 1 | (buffers->out != NULL));
        key_mix(&key, buffers->in == buffers->out);
        *count = work->part_count;
        if (work->algo == ALGO_RING && work->ring_ranks != NULL) ringed = work;
      }
    }
  }
  for (uint32_t i = 0; ringed && i < input->rank_count; i++) key_mix(&key, ringed->ring_ranks[i]);
  return key;
}

static bool tiles_fail(struct check_report *report, uint32_t rank, uint32_t channel, const char *text) {
  memset(report, 0, sizeof *report);
  report->rule = CHECK_PARTS;
  report->rank = rank;
  report->peer = UINT32_MAX;
  report->channel = channel;
  report->step = UINT64_MAX;
  snprintf(report->text, sizeof report->text, "%s", text);
  return false;
}

bool part_tiles(const struct check_setup *setup, struct check_report *report) {
  const struct check_input *input = &setup->input;
  for (uint32_t rank = 0; rank < input->rank_count; rank++) {
    const struct plan *plan = &input->plans[rank], *first = &input->plans[0];
    size_t done = 0, begin = 0;
    if (plan->channel_mask != first->channel_mask)
      return tiles_fail(report, rank, UINT32_MAX, "uses other channels than rank 0");
    for (uint32_t i = 0; i < plan->work_count; i++) {
      const struct work *work = &plan->works[i];
      const bool repeats = i > 0 && plan->works[i - 1].channel_index == work->channel_index;
      if (work->part_offset != (repeats ? begin : done))
        return tiles_fail(report, rank, work->channel_index,
                          "has a part that does not begin where the channel before ends");
      if (repeats && work->part_count != done - begin)
        return tiles_fail(report, rank, work->channel_index, "has works of different parts on one channel");
      if (repeats) continue;
      begin = done;
      done += work->part_count;
    }
    if (plan->work_count > 0 && done != plan->works[0].count)
      return tiles_fail(report, rank, UINT32_MAX, "has parts that do not add up to the operation");
  }
  return true;
}

/* The batches of one channel of a rank, with works and buffers of their own. */
static void part_plan(const struct plan *plan, uint32_t channel_index, struct plan *out, size_t count,
                      void *in, void *to) {
  uint32_t works = 0, batches = 0;
  for (uint32_t i = 0; i < plan->batch_count; i++) {
    const struct plan_batch *batch = &plan->batches[i];
    if (batch->channel_index != channel_index) continue;
    out->batches[batches].channel_index = 0;
    out->batches[batches].first_work = works;
    out->batches[batches++].work_count = batch->work_count;
    for (uint32_t j = 0; j < batch->work_count; j++, works++) {
      out->works[works] = plan->works[batch->first_work + j];
      out->works[works].channel_index = 0;
      out->works[works].part_offset = 0;
      out->works[works].count = count;
      out->buffers[works].in = plan->buffers[batch->first_work + j].in == NULL ? NULL : in;
      out->buffers[works].out = plan->buffers[batch->first_work + j].out == NULL ? NULL : to;
    }
  }
  out->work_count = works;
  out->batch_count = batches;
  out->channel_mask = 1;
}

ncclResult_t part_setup(struct check_setup *part, const struct check_setup *setup,
                        const struct check_call *call, uint32_t channel_index, size_t count) {
  struct check_call cut = *call;
  cut.count = count;
  if (setup->input.unit_bytes == 1) cut.dtype = ncclInt8;
  TRY(check_setup_frame(part, &cut));
  for (uint32_t rank = 0; rank < call->rank_count; rank++) {
    const struct plan *plan = &setup->plans[rank];
    struct plan *out = &part->plans[rank];
    struct plan_memory *memory = &part->memories[rank];
    const size_t bytes =
        plan->work_count * (sizeof *out->works + sizeof *out->buffers + sizeof *out->batches);
    if (memory->plan_bytes < bytes) {
      os_free(memory->plan);
      memory->plan = os_alloc(bytes);
      memory->plan_bytes = memory->plan ? bytes : 0;
      if (!memory->plan) return log_no_memory("a plan of %zu bytes", bytes);
    }
    *out = *plan;
    out->works = (struct work *)memory->plan;
    out->buffers = (struct plan_buffers *)(void *)(out->works + plan->work_count);
    out->batches = (struct plan_batch *)(void *)(out->buffers + plan->work_count);
    uint64_t in, to;
    check_call_addresses(&cut, rank, &in, &to);
    part_plan(plan, channel_index, out, count, (void *)(uintptr_t)in, (void *)(uintptr_t)to);
  }
  return ncclSuccess;
}

bool part_set_add(struct part_set *set, struct part_key key) {
  if (2 * (set->count + 1) > set->capacity) {
    struct part_set grown = {NULL, 0, set->capacity ? 2 * set->capacity : 4096};
    grown.rows = (struct part_key *)os_alloc(grown.capacity * sizeof *grown.rows);
    if (!grown.rows) return true;
    for (uint32_t i = 0; i < set->capacity; i++)
      if ((set->rows[i].low | set->rows[i].high) != 0) part_set_add(&grown, set->rows[i]);
    os_free(set->rows);
    *set = grown;
  }
  uint32_t at = (uint32_t)(key.low >> 20) % set->capacity;
  for (; (set->rows[at].low | set->rows[at].high) != 0; at = (at + 1) % set->capacity)
    if (set->rows[at].low == key.low && set->rows[at].high == key.high) return false;
  set->rows[at] = key;
  set->count += 1;
  return true;
}

void part_set_free(struct part_set *set) {
  os_free(set->rows);
  memset(set, 0, sizeof *set);
}

void parts_free(struct parts *parts) {
  check_setup_free(&parts->part);
  part_set_free(&parts->seen);
}

ncclResult_t parts_prove(struct check_engine *engine, const struct check_setup *setup,
                         const struct check_call *call, struct parts *parts, bool *proved,
                         struct check_report *report) {
  const uint64_t mask = setup->plans[0].channel_mask;
  memset(report, 0, sizeof *report);
  *proved = part_tiles(setup, report);
  for (uint32_t channel = 0; *proved && channel < PLAN_CHANNELS_MAX; channel++) {
    size_t count;
    if ((mask >> channel & 1) == 0) continue;
    const struct part_key key = part_key_of(setup, channel, &count);
    parts->program_count += 1;
    if (!part_set_add(&parts->seen, key)) continue;
    TRY(part_setup(&parts->part, setup, call, channel, count));
    parts->run_count += 1;
    *proved = check_run(engine, &parts->part.input, report);
    if (report->channel != UINT32_MAX || !*proved) report->channel = channel;
    parts->step_count += report->step_count;
    parts->slice_count += report->slice_count;
    parts->connection_count += report->connection_count;
  }
  return ncclSuccess;
}
