/* request.c: calls become plan requests as core/collective.c makes them: bytes where nothing is reduced,
 * sends and receives for the all-to-all kind. Addresses are invented; planning compares them and no more. */
#include "check/request.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/rules.h"
#include "schedule/chunk.h"

#define IN_ADDRESS UINT64_C(0x100000000000)
#define OUT_ADDRESS UINT64_C(0x200000000000)

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
  limits->algos = (1u << ALGO_TREE) | (1u << ALGO_DIRECT) | (1u << ALGO_TWO_SHOT);
  limits->links = STEP_LINKS_MAX;
}

static bool is_exchange(uint8_t func) { return func > FUNC_ALL_REDUCE; }
static bool call_reduces(uint8_t func) {
  return func == FUNC_ALL_REDUCE || func == FUNC_REDUCE || func == FUNC_REDUCE_SCATTER;
}

/* What the call moves, in planning's own terms: bytes of int8 where nothing is reduced. */
struct terms {
  uint64_t count; /* elements of a rank's contribution */
  uint32_t element_bytes, unit_bytes;
  uint64_t in_blocks, out_blocks; /* of `count`, that the buffers hold on this rank; 0: none */
};

static struct terms terms_of(const struct check_call *call, uint32_t rank) {
  struct terms terms = {call->count, check_type_bytes(call->dtype), 1, 1, 1};
  const bool root = rank == call->root;
  if (!call_reduces(call->func)) {
    terms.count *= terms.element_bytes;
    terms.element_bytes = 1;
  }
  terms.unit_bytes = terms.element_bytes;
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

/* Addresses of the two buffers, one within the other where the call is in place. */
void check_call_addresses(const struct check_call *call, uint32_t rank, uint64_t *in, uint64_t *out) {
  const struct terms terms = terms_of(call, rank);
  const uint64_t own = rank * terms.count * terms.element_bytes;
  *in = IN_ADDRESS;
  *out = OUT_ADDRESS;
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

/* The results in an output buffer that begins `shift` units behind its region's begin. */
static void results_set(const struct check_call *call, uint32_t rank, uint64_t shift,
                        struct check_segment *segment) {
  const struct terms terms = terms_of(call, rank);
  const uint32_t n = call->rank_count;
  segment->begin = shift;
  segment->count = terms.count;
  segment->repeat = 1;
  segment->kind = call_reduces(call->func) ? CHECK_SUM : CHECK_COPY;
  segment->rank = rank;
  segment->origin = 0;
  switch (call->func) {
    case FUNC_BROADCAST: segment->rank = call->root; break;
    case FUNC_ALL_GATHER:
    case FUNC_GATHER:
      segment->rank = 0;
      segment->repeat = n;
      break;
    case FUNC_REDUCE_SCATTER: segment->origin = rank * terms.count; break;
    case FUNC_ALL_TO_ALL:
      segment->rank = 0;
      segment->repeat = n;
      segment->origin = rank * terms.count;
      break;
    case FUNC_SCATTER:
      segment->rank = call->root;
      segment->origin = rank * terms.count;
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

/* Two regions a rank: of input and output, or one around both and an empty one. */
static void regions_set(struct check_setup *setup, const struct check_call *call, uint32_t rank) {
  const struct terms terms = terms_of(call, rank);
  struct check_region *in = &setup->regions[2 * (size_t)rank], *out = in + 1;
  struct check_segment *result = &setup->segments[rank];
  uint64_t in_address, out_address;
  check_call_addresses(call, rank, &in_address, &out_address);
  memset(in, 0, 2 * sizeof *in);
  in->address = in_address;
  out->address = out_address;
  in->count = terms.in_blocks * terms.count;
  out->count = terms.out_blocks * terms.count;
  if (has_input(call, rank, &terms)) {
    in->input.count = in->count;
    in->input.rank = rank;
  }
  if (has_result(call, rank, &terms)) {
    out->results = result;
    out->result_count = 1;
    results_set(call, rank, 0, result);
  }
  if (in_address >= OUT_ADDRESS) { /* the input lies in the output */
    out->input = in->input;
    out->input.begin = (in_address - out_address) / terms.unit_bytes;
    in->count = in->input.count = 0;
  } else if (out_address < OUT_ADDRESS) { /* the output lies in the input */
    in->results = out->results;
    in->result_count = out->result_count;
    if (in->result_count > 0) results_set(call, rank, (out_address - in_address) / terms.unit_bytes, result);
    if (in->count < out->count) in->count = out->count;
    out->count = out->result_count = 0;
  }
  if (in->count == 0) in->address = 8; /* nowhere */
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
  op->dtype = call_reduces(call->func) ? call->dtype : (uint8_t)ncclInt8;
  op->op = call_reduces(call->func) ? call->op : (uint8_t)OP_SUM;
  op->peer = peer;
  op->count = count;
  op->in = (const void *)(uintptr_t)in;
  op->out = (void *)(uintptr_t)out;
}

static void list_exchange(struct op_list *list, const struct check_call *call, uint32_t rank, uint64_t in,
                          uint64_t out, uint64_t bytes) {
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

static void list_fill(struct op_list *list, const struct check_call *call, uint32_t rank) {
  const struct terms terms = terms_of(call, rank);
  uint64_t in, out;
  check_call_addresses(call, rank, &in, &out);
  list->count = 0;
  if (is_exchange(call->func)) {
    list_exchange(list, call, rank, in, out, terms.count);
    return;
  }
  if (call->func == FUNC_REDUCE && rank != call->root) out = 0;
  list_add(list, call, call->func, call->root, in, out, terms.count);
}

static void request_fill(struct plan_request *request, const struct check_call *call) {
  memset(request, 0, sizeof *request);
  request->rank_count = call->rank_count;
  request->graph = call->graph;
  request->limits = call->limits;
  request->p2p_ll_threshold = call->p2p_ll_threshold;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request->algo_mask[func] = call->algo_mask;
    request->proto_mask[func] = call->proto_mask;
  }
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) request->max_threads[proto] = 512;
}

const char *check_call_forbid(const struct check_call *call, uint8_t algo, uint8_t proto) {
  struct plan_request request;
  if (is_exchange(call->func)) {
    if (algo != ALGO_RING) return "messages know no algorithm; leave it out";
    return proto == PROTO_LL128 ? "messages go by LL or Simple" : NULL;
  }
  request_fill(&request, call);
  return rules_forbid(&request, call->func, algo, proto);
}

static ncclResult_t no_memory(const struct check_call *call) {
  return log_fail(ncclSystemError, "no memory for the plans of %u ranks; take fewer", call->rank_count);
}

void check_setup_free(struct check_setup *setup) {
  for (uint32_t rank = 0; rank < setup->rank_capacity; rank++) plan_memory_free(&setup->memories[rank]);
  os_free(setup->plans);
  os_free(setup->memories);
  os_free(setup->regions);
  os_free(setup->segments);
  os_free(setup->ops);
  memset(setup, 0, sizeof *setup);
}

static bool setup_reserve(struct check_setup *setup, uint32_t ranks) {
  if (ranks <= setup->rank_capacity) return true;
  check_setup_free(setup);
  setup->plans = (struct plan *)os_alloc(ranks * sizeof *setup->plans);
  setup->memories = (struct plan_memory *)os_alloc(ranks * sizeof *setup->memories);
  setup->regions = (struct check_region *)os_alloc(2 * (size_t)ranks * sizeof *setup->regions);
  setup->segments = (struct check_segment *)os_alloc(ranks * sizeof *setup->segments);
  setup->ops = (struct plan_op *)os_alloc((2 * (size_t)ranks + 2) * sizeof *setup->ops);
  if (setup->memories) setup->rank_capacity = ranks;
  return setup->plans && setup->memories && setup->regions && setup->segments && setup->ops;
}

ncclResult_t check_setup_frame(struct check_setup *setup, const struct check_call *call) {
  if (!setup_reserve(setup, call->rank_count)) return no_memory(call);
  for (uint32_t rank = 0; rank < call->rank_count; rank++) regions_set(setup, call, rank);
  struct check_input *input = &setup->input;
  memset(input, 0, sizeof *input);
  input->rank_count = call->rank_count;
  input->plans = setup->plans;
  input->unit_bytes = terms_of(call, 0).unit_bytes;
  setup->op.sequence = 0;
  setup->op.reduces = call_reduces(call->func);
  setup->op.one_order = call->func == FUNC_ALL_REDUCE;
  input->ops = &setup->op;
  input->op_count = 1;
  input->regions = setup->regions;
  input->region_count = 2;
  input->first_step = call->first_step;
  input->fault_rank = UINT32_MAX;
  return ncclSuccess;
}

ncclResult_t check_setup_make(struct check_setup *setup, const struct check_call *call) {
  struct plan_request request;
  struct op_list list;
  TRY(check_setup_frame(setup, call));
  request_fill(&request, call);
  list.ops = setup->ops;
  for (uint32_t rank = 0; rank < call->rank_count; rank++) {
    list_fill(&list, call, rank);
    request.rank = rank;
    request.ops = list.ops;
    request.op_count = list.count;
    TRY(plan_build_within(&request, &setup->memories[rank], &setup->plans[rank]));
  }
  return ncclSuccess;
}

bool check_plan_of_request(struct check_engine *engine, const struct plan_request *request,
                           struct check_report *report) {
  const struct plan_op *op = &request->ops[0];
  struct check_setup setup;
  struct check_call call;
  memset(&setup, 0, sizeof setup);
  memset(&call, 0, sizeof call);
  memset(report, 0, sizeof *report);
  call.func = op->func;
  call.dtype = op->dtype;
  call.op = op->op;
  call.in_place = op->in == op->out;
  call.rank_count = request->rank_count;
  call.root = op->peer;
  call.count = op->count;
  call.algo_mask = request->algo_mask[op->func];
  call.proto_mask = request->proto_mask[op->func];
  call.p2p_ll_threshold = request->p2p_ll_threshold;
  call.limits = request->limits;
  call.graph = request->graph;
  bool proved = false;
  if (check_setup_make(&setup, &call) == ncclSuccess) proved = check_run(engine, &setup.input, report);
  else report->rule = CHECK_RESOURCES;
  check_setup_free(&setup);
  return proved;
}
