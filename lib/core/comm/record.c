/* record.c: describes calls and plans as records. Promises that nothing here fails, waits or allocates. */
#include "core/comm/record.h"

#include <string.h>

#include "core/plan/plan_inputs.h"

void record_birth(struct ncclComm *comm) {
  const struct recorder_birth birth = {.comm_id = comm->comm_id,
                                       .rank = comm->rank,
                                       .rank_count = comm->rank_count,
                                       .device = comm->device_index,
                                       .settings_digest = settings_digest(&comm->settings),
                                       .name = comm->name};
  recorder_open(&comm->recorder, &birth);
}

void record_met(struct ncclComm *comm, const struct plan_request *request) {
  if (comm->recorder.comm == NULL) return;
  comm->recorder.comm->settings_digest = settings_digest(&comm->settings);
  comm->recorder.comm->topology_digest = graph_digest(&comm->shared->graph);
  plan_inputs_write(request, comm->recorder.inputs, comm->recorder.comm->input_rows);
}

/* ---- calls ---- */

static bool call_is_message(const struct collective_call *call) {
  return call->func == FUNC_SEND || call->func == FUNC_RECV;
}

/* What a launch of a plan carries out. */
static bool call_is_operation(const struct collective_call *call) {
  return !func_is_one_sided(call->func) && (call->count != 0 || call_is_message(call));
}

static struct record_call call_record(const struct collective_call *call, uint64_t ticks, uint64_t sequence) {
  const struct record_call said = {.kind = RECORD_CALL,
                                   .func = call->func,
                                   .dtype = (uint8_t)call->dtype,
                                   .op = (uint32_t)call->op < ncclNumOps ? (uint8_t)call->op : 255,
                                   .peer = (uint32_t)call->peer,
                                   .ticks = ticks,
                                   .count = call->count,
                                   .sequence = (uint32_t)sequence,
                                   .collective = call->comm->recorder.collectives};
  return said;
}

/* The line of Python that makes the call, which CALL_PLACE has read, or else the return address. */
static uint64_t call_caller(const struct collective_call *call) {
  struct recorder *recorder = &call->comm->recorder;
  const struct python_frame *frame = python_caller_frame(call->caller);
  return frame != NULL ? recorder_python(recorder, frame) : recorder_caller(recorder, call->caller);
}

static struct record_place call_place(const struct collective_call *call, uint32_t group, uint16_t flags) {
  const struct record_place place = {.kind = RECORD_PLACE,
                                     .stream = recorder_stream(&call->comm->recorder, call->stream),
                                     .flags = flags,
                                     .group = group,
                                     .in = (uint64_t)(uintptr_t)call->in,
                                     .out = (uint64_t)(uintptr_t)call->out,
                                     .caller = call_caller(call)};
  return place;
}

static void call_count(struct recorder *recorder, const struct collective_call *call, uint64_t sequence) {
  recorder->collectives += !call_is_message(call);
  recorder->comm->calls = sequence + 1;
}

void record_call(const struct collective_call *call, uint64_t ticks, uint64_t sequence, uint32_t group) {
  struct recorder *recorder = &call->comm->recorder;
  if (recorder->comm == NULL) return;
  const struct record_call said = call_record(call, ticks, sequence);
  const struct record_place place = call_place(call, group, 0);
  recorder_call(recorder, &said, &place);
  if (!call_is_operation(call)) return;
  call_count(recorder, call, sequence);
  recorder->comm->open_group = group;
}

void record_cached(const struct collective_call *call, uint64_t ticks, uint64_t launched, uint64_t plan) {
  struct recorder *recorder = &call->comm->recorder;
  if (recorder->comm == NULL) return;
  const uint64_t sequence = call->comm->sequence - 1;
  const struct record_call said = call_record(call, ticks, sequence);
  const struct record_place place = call_place(call, 0, RECORD_CACHED);
  const struct record_launch launch = {.kind = RECORD_LAUNCH,
                                       .streams = 1,
                                       .operations = 1,
                                       .ticks = ticks,
                                       .sequence = (uint32_t)sequence,
                                       .plan = (uint32_t)plan,
                                       .number = launched};
  recorder_call_launched(recorder, &said, &place, &launch);
  call_count(recorder, call, sequence);
}

void record_mismatch(const struct collective_call *call, uint64_t ticks) {
  struct recorder *recorder = &call->comm->recorder;
  if (recorder->comm == NULL || recorder_last_kind(recorder) == RECORD_ERROR) return;
  struct record_call said = call_record(call, ticks, recorder->comm->calls);
  const struct record_place place = call_place(call, 0, 0);
  said.kind = RECORD_MISMATCH;
  recorder_call(recorder, &said, &place);
}

void record_refused(const struct collective_call *call, ncclResult_t result) {
  if (call->comm == NULL || !comm_is_ready(call->comm)) return;
  recorder_error(&call->comm->recorder, result, call->comm->sequence);
}

/* ---- launches ---- */

void record_launch(struct ncclComm *comm, uint64_t number, uint64_t plan, uint64_t sequence,
                   uint32_t operations, uint32_t streams, bool captured) {
  if (comm->recorder.comm == NULL) return;
  const struct record_launch launch = {.captured = captured,
                                       .streams = (uint16_t)streams,
                                       .operations = operations,
                                       .ticks = ticks_now(),
                                       .sequence = (uint32_t)sequence,
                                       .plan = (uint32_t)plan,
                                       .number = number};
  recorder_launch(&comm->recorder, &launch);
}

void record_plan(struct ncclComm *comm, const struct plan *plan) {
  if (comm->recorder.comm == NULL || recorder_knows_plan(&comm->recorder, plan->serial)) return;
  const struct work *work = &plan->works[0];
  const struct record_plan row = {.used = 1,
                                  .func = work->func,
                                  .algo = work->algo,
                                  .proto = work->proto,
                                  .works = (uint16_t)plan->work_count,
                                  .channels = (uint16_t)__builtin_popcountll(plan->channel_mask),
                                  .number = (uint32_t)plan->serial,
                                  .step_bytes = plan->limits.step_bytes[work->proto],
                                  .digest = plan_digest(plan),
                                  .chunk_elements = (uint32_t)work->chunk_count,
                                  .chunk_steps = work->chunk_steps,
                                  .slice_steps = work->slice_steps,
                                  .slots = (uint8_t)plan->limits.slots,
                                  .element_bytes = work->element_bytes};
  recorder_plan(&comm->recorder, &row);
}
