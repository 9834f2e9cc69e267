/* request.c: turns calls into plan requests as core/collective.c does: bytes for collectives that do not
 * reduce, sends and receives for the all-to-all kind. Addresses are invented; planning only compares them. */
#include "check/request.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/custom/custom.h"
#include "core/plan/rules.h"
#include "schedule/chunk.h"

#define IN_ADDRESS UINT64_C(0x100000000000)
#define OUT_ADDRESS UINT64_C(0x200000000000)
#define SCRATCH_ADDRESS UINT64_C(0x300000000000)

uint32_t check_type_bytes(uint8_t dtype) {
  static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return dtype < ncclNumTypes ? bytes[dtype] : 0;
}

static uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

void check_limits(struct plan_limits *limits, uint32_t slots, uint32_t chunk_bytes, uint32_t channel_count,
                  bool direct) {
  memset(limits, 0, sizeof *limits);
  limits->slots = slots;
  limits->chunk_bytes = chunk_bytes;
  limits->step_bytes[PROTO_SIMPLE] = 524288;
  limits->step_bytes[PROTO_LL] = 65536;
  limits->step_bytes[PROTO_LL128] = 614400;
  limits->p2p_chunk_bytes = 524288;
  if (chunk_bytes != 0) {
    const uint32_t chunk_steps = chunk_steps_of_slots(slots);
    limits->step_bytes[PROTO_SIMPLE] = round_up((chunk_bytes + chunk_steps - 1) / chunk_steps, 16);
    limits->step_bytes[PROTO_LL] = round_up(2 * chunk_bytes, 16);
    limits->step_bytes[PROTO_LL128] = round_up(chunk_bytes, 120) / 120 * 128;
    limits->p2p_chunk_bytes = chunk_bytes;
  }
  limits->channel_count = channel_count;
  limits->p2p_channel_count = 1;
  while (limits->p2p_channel_count < channel_count) limits->p2p_channel_count *= 2;
  limits->p2p_channels_per_peer = limits->p2p_channel_count < 2 ? 1 : 2;
  limits->flag_bits = 32;
  limits->direct = direct;
  limits->algos = ~0u;
  limits->links = STEP_LINKS_MAX;
}

static bool is_p2p_expansion(uint8_t func) { return func > FUNC_ALL_REDUCE; }

/* What the call moves, in planning's own terms: bytes of int8 if nothing is reduced. */
struct terms {
  uint64_t count, units; /* elements of a rank's contribution; the same in units of memory */
  uint32_t element_bytes, unit_bytes;
  uint64_t in_blocks, out_blocks; /* of `count`, in this rank's buffers; 0: none */
};

static struct terms terms_of(const struct check_call *call, uint32_t rank) {
  struct terms terms = {call->count, 0, check_type_bytes(call->dtype), 1, 1, 1};
  const bool root = rank == call->root;
  if (!func_reduces(call->func)) {
    terms.count *= terms.element_bytes;
    terms.element_bytes = 1;
  }
  terms.unit_bytes = call->unit_bytes ? call->unit_bytes : terms.element_bytes;
  terms.units = terms.count * (terms.element_bytes / terms.unit_bytes);
  switch (call->func) {
    case FUNC_BROADCAST: terms.in_blocks = root || call->in_place; break;
    case FUNC_REDUCE: terms.out_blocks = root || call->in_place; break;
    case FUNC_ALL_GATHER: terms.out_blocks = call->rank_count; break;
    case FUNC_REDUCE_SCATTER: terms.in_blocks = call->rank_count; break;
    case FUNC_ALL_TO_ALL: terms.in_blocks = terms.out_blocks = call->rank_count; break;
    case FUNC_GATHER: terms.out_blocks = root ? call->rank_count : 0; break;
    case FUNC_SCATTER: terms.in_blocks = root ? call->rank_count : 0; break;
    default: break;
  }
  return terms;
}

/* Where the memory of a group's call begins. */
static uint64_t call_base(const struct check_call *call) { return (uint64_t)call->place << 46; }

/* Addresses of the two buffers; if the call is in place, one is within the other. */
void check_call_addresses(const struct check_call *call, uint32_t rank, uint64_t *in, uint64_t *out) {
  const struct terms terms = terms_of(call, rank);
  const uint64_t own = rank * terms.count * terms.element_bytes;
  *in = call_base(call) + IN_ADDRESS;
  *out = call_base(call) + OUT_ADDRESS;
  if (!call->in_place) return;
  const bool inner_in = call->func == FUNC_ALL_GATHER || (call->func == FUNC_GATHER && rank == call->root);
  const bool inner_out =
      call->func == FUNC_REDUCE_SCATTER || (call->func == FUNC_SCATTER && rank == call->root);
  if (call->func == FUNC_GATHER || call->func == FUNC_SCATTER) {
    if (rank != call->root) return;
  }
  if (inner_in) *in = *out + own;
  else if (inner_out) *out = *in + own;
  else *out = *in;
}

/* ---- what memory must hold ---- */

/* The results in an output buffer that begins `shift` units after its region's start. */
static void results_set(const struct check_call *call, uint32_t rank, uint64_t shift,
                        struct check_segment *segment) {
  const struct terms terms = terms_of(call, rank);
  const uint32_t n = call->rank_count;
  segment->begin = shift;
  segment->count = terms.units;
  segment->op = call->place;
  segment->repeat = 1;
  segment->kind = func_reduces(call->func) ? CHECK_SUM : CHECK_COPY;
  segment->rank = rank;
  segment->origin = 0;
  switch (call->func) {
    case FUNC_BROADCAST: segment->rank = call->root; break;
    case FUNC_ALL_GATHER:
    case FUNC_GATHER:
      segment->rank = 0;
      segment->repeat = n;
      break;
    case FUNC_REDUCE_SCATTER: segment->origin = rank * terms.units; break;
    case FUNC_ALL_TO_ALL:
      segment->rank = 0;
      segment->repeat = n;
      segment->origin = rank * terms.units;
      break;
    case FUNC_SCATTER:
      segment->rank = call->root;
      segment->origin = rank * terms.units;
      break;
    case FUNC_SEND_RECV: segment->rank = (rank + n - 1) % n; break;
    default: break;
  }
}

static bool has_result(const struct check_call *call, uint32_t rank, const struct terms *terms) {
  return terms->out_blocks > 0 && (call->func != FUNC_REDUCE || rank == call->root);
}

static bool has_input(const struct check_call *call, uint32_t rank, const struct terms *terms) {
  return terms->in_blocks > 0 && (call->func != FUNC_BROADCAST || rank == call->root);
}

/* Two regions per rank and call: for input and output, or one for both and an empty one. */
static void regions_set(struct check_setup *setup, const struct check_call *call, uint32_t rank) {
  const struct terms terms = terms_of(call, rank);
  const size_t row = (size_t)rank * setup->input.op_count + call->place;
  const uint64_t out_begin = call_base(call) + OUT_ADDRESS;
  struct check_region *in = &setup->regions[(size_t)rank * setup->input.region_count + 2 * call->place];
  struct check_region *out = in + 1;
  struct check_segment *result = &setup->segments[row];
  uint64_t in_address, out_address;
  check_call_addresses(call, rank, &in_address, &out_address);
  memset(in, 0, 2 * sizeof *in);
  in->address = in_address;
  out->address = out_address;
  in->count = terms.in_blocks * terms.units;
  out->count = terms.out_blocks * terms.units;
  if (has_input(call, rank, &terms)) {
    in->input.count = in->count;
    in->input.rank = rank;
    in->input.op = call->place;
  }
  if (has_result(call, rank, &terms)) {
    out->results = result;
    out->result_count = 1;
    results_set(call, rank, 0, result);
  }
  if (in_address >= out_begin) { /* the input is inside the output */
    out->input = in->input;
    out->input.begin = (in_address - out_address) / terms.unit_bytes;
    in->count = in->input.count = 0;
  } else if (out_address < out_begin) { /* the output is inside the input */
    in->results = out->results;
    in->result_count = out->result_count;
    if (in->result_count > 0) results_set(call, rank, (out_address - in_address) / terms.unit_bytes, result);
    if (in->count < out->count) in->count = out->count;
    out->count = out->result_count = 0;
  }
  if (in->count == 0) in->address = 8; /* an invalid address */
  if (out->count == 0) out->address = 16;
}

/* ---- plans ---- */

struct op_list {
  struct plan_op *ops;
  uint32_t count;
};

static void list_add(struct op_list *list, const struct check_call *call, uint8_t func, uint32_t peer,
                     uint64_t in, uint64_t out, uint64_t count) {
  struct plan_op *op = &list->ops[list->count++];
  memset(op, 0, sizeof *op);
  op->func = func;
  op->dtype = func_reduces(call->func) ? call->dtype : (uint8_t)ncclInt8;
  op->op = func_reduces(call->func) ? call->op : (uint8_t)OP_SUM;
  op->peer = peer;
  op->sequence = call->place;
  op->count = count;
  op->in = (const void *)(uintptr_t)in;
  op->out = (void *)(uintptr_t)out;
}

static void list_p2p_expansion(struct op_list *list, const struct check_call *call, uint32_t rank,
                               uint64_t in, uint64_t out, uint64_t bytes) {
  const bool root = rank == call->root, done = root && call->in_place && call->func != FUNC_ALL_TO_ALL;
  if (call->func == FUNC_SEND_RECV) {
    const uint32_t n = call->rank_count;
    list_add(list, call, FUNC_SEND, (rank + 1) % n, in, 0, bytes);
    list_add(list, call, FUNC_RECV, (rank + n - 1) % n, 0, out, bytes);
    return;
  }
  if (call->func == FUNC_GATHER && !done) list_add(list, call, FUNC_SEND, call->root, in, 0, bytes);
  if (call->func == FUNC_SCATTER && !done) list_add(list, call, FUNC_RECV, call->root, 0, out, bytes);
  if (call->func != FUNC_ALL_TO_ALL && !root) return;
  for (uint32_t peer = 0; peer < call->rank_count; peer++) {
    if (peer == rank && done) continue;
    if (call->func != FUNC_GATHER) list_add(list, call, FUNC_SEND, peer, in + peer * bytes, 0, bytes);
    if (call->func != FUNC_SCATTER) list_add(list, call, FUNC_RECV, peer, 0, out + peer * bytes, bytes);
  }
}

/* Without messages, planning takes an all-to-all as it is; for a job it decides itself. */
static bool is_direct_all_to_all(const struct check_call *call) {
  return call->func == FUNC_ALL_TO_ALL && (call->job || (call->algo_mask & 1u << ALGO_RING) == 0);
}

static void list_fill(struct op_list *list, const struct check_call *call, uint32_t rank) {
  const struct terms terms = terms_of(call, rank);
  uint64_t in, out;
  check_call_addresses(call, rank, &in, &out);
  if (is_p2p_expansion(call->func) && !is_direct_all_to_all(call) && !call->custom) {
    list_p2p_expansion(list, call, rank, in, out, terms.count);
    return;
  }
  if (call->func == FUNC_REDUCE && rank != call->root) out = 0;
  list_add(list, call, call->func, call->root, in, out, terms.count);
}

uint32_t check_call_ops(const struct check_call *call, uint32_t rank, struct plan_op *ops) {
  struct op_list list = {ops, 0};
  list_fill(&list, call, rank);
  return list.count;
}

/* Switches are used only if they are named, as in the library. */
#define SWITCHES \
  (1u << ALGO_NVLS | 1u << ALGO_NVLS_TREE | 1u << ALGO_COLLNET_DIRECT | 1u << ALGO_COLLNET_CHAIN)

void check_call_request(const struct check_call *call, struct plan_request *request) {
  if (call->job) {
    *request = *call->job;
    request->custom = call->custom;
    return;
  }
  plan_request_begin(request, call->rank_count, call->graph);
  request->custom = call->custom;
  request->settings.tune_file = call->tune_file;
  request->settings.limits = call->limits;
  request->settings.p2p_ll_threshold = call->p2p_ll_threshold;
  request->settings.rank_order = call->rank_order;
  request->settings.reads_slots = call->reads_slots;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request->settings.algo_mask[func] = call->algo_mask;
    request->settings.proto_mask[func] = call->proto_mask;
  }
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) request->settings.max_threads[proto] = 512;
  if ((call->algo_mask & (call->algo_mask - 1)) != 0) request->settings.algos_off = SWITCHES;
}

const char *check_call_forbid(const struct check_call *call, uint8_t algo, uint8_t proto) {
  struct plan_request request;
  if (is_p2p_expansion(call->func)) {
    struct check_call direct = *call;
    direct.algo_mask &= ~(1u << ALGO_RING);
    check_call_request(&direct, &request);
    if (call->func == FUNC_ALL_TO_ALL && algo == ALGO_DIRECT && (call->algo_mask & 1u << ALGO_RING) != 0)
      return "messages carry it where they are allowed; name Direct alone";
    if (call->func == FUNC_ALL_TO_ALL && algo == ALGO_DIRECT)
      return rules_forbid(&request, call->func, algo, proto);
    if (algo != ALGO_RING) return "messages know no algorithm; leave it out";
    return proto == PROTO_LL128 ? "messages go by LL or Simple" : NULL;
  }
  check_call_request(call, &request);
  request.settings.algos_off = 0;
  return rules_forbid(&request, call->func, algo, proto);
}

static ncclResult_t no_memory(const struct check_call *call) {
  return log_no_memory("the plans of %u ranks", call->rank_count);
}

void check_setup_free(struct check_setup *setup) {
  for (uint32_t rank = 0; rank < setup->rank_capacity; rank++) plan_memory_free(&setup->memories[rank]);
  os_free(setup->plans);
  os_free(setup->memories);
  os_free(setup->regions);
  os_free(setup->segments);
  os_free(setup->ops);
  os_free(setup->op_rows);
  os_free(setup->calls);
  memset(setup, 0, sizeof *setup);
}

static bool setup_reserve(struct check_setup *setup, uint32_t ranks, uint32_t group) {
  if (ranks <= setup->rank_capacity && group <= setup->group_capacity) return true;
  check_setup_free(setup);
  const size_t rows = (size_t)ranks * group;
  setup->plans = (struct plan *)os_alloc(ranks * sizeof *setup->plans);
  setup->regions = (struct check_region *)os_alloc((2 * rows + ranks) * sizeof *setup->regions);
  setup->segments = (struct check_segment *)os_alloc(rows * sizeof *setup->segments);
  setup->ops = (struct plan_op *)os_alloc((2 * (size_t)ranks + 2) * group * sizeof *setup->ops);
  setup->op_rows = (struct check_op *)os_alloc(group * sizeof *setup->op_rows);
  setup->calls = (struct check_call *)os_alloc(group * sizeof *setup->calls);
  setup->memories = (struct plan_memory *)os_alloc(ranks * sizeof *setup->memories);
  if (setup->memories) setup->rank_capacity = ranks;
  setup->group_capacity = group;
  return setup->plans && setup->memories && setup->regions && setup->segments && setup->ops &&
         setup->op_rows && setup->calls;
}

/* Memory and what it must hold, for `count` calls that are in setup->calls. */
static void frame_set(struct check_setup *setup, uint32_t count) {
  struct check_input *input = &setup->input;
  const uint32_t ranks = setup->calls[0].rank_count;
  memset(input, 0, sizeof *input);
  input->rank_count = ranks;
  input->plans = setup->plans;
  input->unit_bytes = UINT32_MAX;
  input->ops = setup->op_rows;
  input->op_count = count;
  input->regions = setup->regions;
  input->region_count = 2 * count + (setup->calls[0].custom != NULL);
  input->first_step = setup->calls[0].first_step;
  input->inputs = setup->calls[0].inputs;
  input->fault_rank = UINT32_MAX;
  for (uint32_t i = 0; i < count; i++) {
    struct check_call *call = &setup->calls[i];
    call->place = i;
    call->unit_bytes = 0;
    const uint32_t unit_bytes = terms_of(call, 0).unit_bytes;
    if (unit_bytes < input->unit_bytes) input->unit_bytes = unit_bytes;
    setup->op_rows[i].sequence = i;
    setup->op_rows[i].reduces = func_reduces(call->func);
    setup->op_rows[i].one_order = call->func == FUNC_ALL_REDUCE;
    setup->op_rows[i].rank_order =
        func_reduces(call->func) && (call->job ? call->job->settings.rank_order : call->rank_order);
    setup->op_rows[i].unstaged = call->custom != NULL && !call->custom->staged;
  }
  for (uint32_t i = 0; i < count; i++) {
    setup->calls[i].unit_bytes = input->unit_bytes;
    for (uint32_t rank = 0; rank < ranks; rank++) regions_set(setup, &setup->calls[i], rank);
  }
}

ncclResult_t check_setup_frame(struct check_setup *setup, const struct check_call *call) {
  const uint32_t count = call->group_count > 1 ? call->group_count : 1;
  if (!setup_reserve(setup, call->rank_count, count)) return no_memory(call);
  for (uint32_t i = 0; i < count; i++) {
    setup->calls[i] = *call;
    setup->calls[i].root = (call->root + i) % call->rank_count;
  }
  frame_set(setup, count);
  return ncclSuccess;
}

/* The rank's scratch is its last region, after the counters with the progress of its lists. */
static void scratch_bind(struct check_setup *setup, uint32_t rank) {
  struct plan *plan = &setup->plans[rank];
  struct check_region *region = &setup->regions[(rank + 1) * (size_t)setup->input.region_count - 1];
  memset(region, 0, sizeof *region);
  region->address = SCRATCH_ADDRESS + LIST_PROGRESS_BYTES;
  region->ends_anyhow = true;
  if (plan->scratch_bytes <= LIST_PROGRESS_BYTES) return;
  plan->scratch = (void *)(uintptr_t)SCRATCH_ADDRESS;
  region->count = (plan->scratch_bytes - LIST_PROGRESS_BYTES) / setup->input.unit_bytes;
}

/* The plans of all ranks for the calls in the frame, from a request without rank and operations. */
static ncclResult_t plans_make(struct check_setup *setup, struct plan_request *request) {
  struct op_list list;
  list.ops = setup->ops;
  request->ops = list.ops;
  for (uint32_t rank = 0; rank < setup->input.rank_count; rank++) {
    list.count = 0;
    for (uint32_t i = 0; i < setup->input.op_count; i++) list_fill(&list, &setup->calls[i], rank);
    request->rank = rank;
    request->op_count = list.count;
    TRY(plan_build_within(request, &setup->memories[rank], &setup->plans[rank]));
    if (setup->calls[0].custom) scratch_bind(setup, rank);
  }
  return ncclSuccess;
}

ncclResult_t check_setup_make(struct check_setup *setup, const struct check_call *call) {
  struct plan_request request;
  TRY(check_setup_frame(setup, call));
  check_call_request(call, &request);
  return plans_make(setup, &request);
}

ncclResult_t check_setup_bind(struct check_setup *setup, const struct check_call *call,
                              const struct plan *plans) {
  TRY(check_setup_frame(setup, call));
  for (uint32_t rank = 0; rank < call->rank_count; rank++) {
    uint64_t in, out;
    check_call_addresses(&setup->calls[0], rank, &in, &out);
    setup->plans[rank] = plans[rank];
    for (uint32_t i = 0; i < plans[rank].work_count; i++) {
      plans[rank].buffers[i].in = (const void *)(uintptr_t)in;
      plans[rank].buffers[i].out = (void *)(uintptr_t)out;
    }
    if (call->custom) scratch_bind(setup, rank);
  }
  return ncclSuccess;
}

/* ---- a request ---- */

static bool op_in_place(const struct plan_request *request, const struct plan_op *op) {
  const uint64_t in = (uint64_t)(uintptr_t)op->in, out = (uint64_t)(uintptr_t)op->out;
  const uint64_t own = request->rank * op->count * check_type_bytes(op->dtype);
  if (op->func == FUNC_ALL_GATHER) return in == out + own;
  if (op->func == FUNC_REDUCE_SCATTER) return out == in + own;
  return op->func != FUNC_ALL_TO_ALL && in == out;
}

static void call_of_op(const struct plan_request *request, const struct plan_op *op,
                       struct check_call *call) {
  memset(call, 0, sizeof *call);
  call->func = op->func;
  call->dtype = op->dtype;
  call->op = op->op;
  call->in_place = op_in_place(request, op);
  call->rank_order = request->settings.rank_order;
  call->reads_slots = request->settings.reads_slots;
  call->rank_count = request->rank_count;
  call->root = op->peer;
  call->count = op->count;
  call->algo_mask = request->settings.algo_mask[op->func];
  call->proto_mask = request->settings.proto_mask[op->func];
  call->limits = request->settings.limits;
  call->graph = request->graph;
}

static bool request_fail(struct check_report *report, const char *text) {
  report->rule = CHECK_RESOURCES;
  report->rank = report->peer = report->channel = UINT32_MAX;
  report->step = UINT64_MAX;
  snprintf(report->text, sizeof report->text, "%s", text);
  return false;
}

bool check_plan_of_request(struct check_engine *engine, const struct plan_request *request,
                           struct check_report *report) {
  struct check_setup setup;
  struct plan_request all = *request;
  memset(&setup, 0, sizeof setup);
  memset(report, 0, sizeof *report);
  if (request->op_count == 0) return true;
  for (uint32_t i = 0; i < request->op_count; i++)
    if (request->ops[i].func > FUNC_ALL_REDUCE && request->ops[i].func != FUNC_ALL_TO_ALL)
      return request_fail(report, "a request of one rank does not say what others send and receive");
  bool proved = setup_reserve(&setup, request->rank_count, request->op_count);
  if (!proved) request_fail(report, "the plans of all ranks" LOG_OUT_OF_MEMORY);
  for (uint32_t i = 0; proved && i < request->op_count; i++)
    call_of_op(request, &request->ops[i], &setup.calls[i]);
  if (proved) {
    frame_set(&setup, request->op_count);
    proved = plans_make(&setup, &all) == ncclSuccess;
    if (!proved) request_fail(report, log_last_error());
  }
  if (proved) proved = check_run(engine, &setup.input, report);
  check_setup_free(&setup);
  return proved;
}
