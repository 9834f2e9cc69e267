/* test_plan.c: plans of all ranks for random groups of operations fit together: parts add up to the
 * operations, batches respect their limits, and all plans run to their ends with batches as barriers, with
 * unbounded queues and with the FIFO's few slots. Also failures: masks that exclude everything, out of
 * memory. Only counts are simulated, not data. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/plan/plan.h"
#include "core/plan/tune.h"
#include "schedule/algo.h"

#define RANKS_MAX 9
#define OPS_MAX 64 /* of one rank */
#define CHANNELS_MAX 8
#define QUEUE_MAX 2048 /* messages in flight on one link; a sender alone is never further ahead here */

static const uint8_t type_sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* One group on one communicator, as all ranks call it. */
struct scenario {
  uint64_t seed;
  uint32_t rank_count, ring[RANKS_MAX];
  struct graph graph;
  struct plan_request request; /* except rank and operations */
  struct plan_op ops[RANKS_MAX][OPS_MAX];
  uint32_t op_counts[RANKS_MAX];
  size_t bytes_max; /* of an operation */
  bool has_collectives;
  struct plan plans[RANKS_MAX];
};

static struct scenario scenario;

/* ---- drawing a scenario ---- */

static uint64_t random_state;

static uint64_t random_next(void) { return hash_draw(&random_state); }

static uint32_t random_below(uint32_t bound) { return (uint32_t)(random_next() >> 32) % bound; }

static void draw_limits(struct scenario *s) {
  struct plan_limits *limits = &s->request.settings.limits;
  const uint32_t kind = random_below(3); /* tiny, medium, production sizes */
  const uint32_t unit = kind == 0 ? 1 + random_below(4) : 64 + random_below(64);
  memset(limits, 0, sizeof *limits);
  limits->slots = 1 + random_below(8);
  limits->step_bytes[PROTO_SIMPLE] = kind == 2 ? 524288 : 16 * unit;
  limits->step_bytes[PROTO_LL] = kind == 2 ? 65536 : 16 * unit;
  limits->step_bytes[PROTO_LL128] = kind == 2 ? 614400 : 128 * unit;
  limits->chunk_bytes = kind == 0 ? random_below(33) : 0;
  limits->p2p_chunk_bytes = kind == 0 ? 1 + random_below(16 * unit) : limits->step_bytes[PROTO_SIMPLE];
  limits->channel_count = 1 + random_below(CHANNELS_MAX);
  limits->p2p_channel_count = 1u << random_below(4);
  limits->p2p_channels_per_peer = 1 + random_below(limits->p2p_channel_count);
  while (limits->p2p_channels_per_peer & (limits->p2p_channels_per_peer - 1))
    limits->p2p_channels_per_peer -= 1;
  limits->flag_bits = 32;
  limits->direct = random_below(2) == 0;
  s->bytes_max = kind == 0 ? 700 : kind == 1 ? 400000 : (size_t)6 << 20;
  s->request.settings.p2p_ll_threshold = kind == 2 ? 16384 : random_below(200);
}

static void graph_of_ring(struct graph *graph, const uint32_t *ring, uint32_t rank_count) {
  memset(graph, 0, sizeof *graph);
  graph->rank_count = rank_count;
  graph->node_count = 1;
  graph->channel_count = PLAN_CHANNELS_MAX;
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++) graph->ring[channel] = ring;
}

static void draw_communicator(struct scenario *s) {
  static const uint32_t proto_masks[] = {7, 7, 7, 1, 2, 4, 5, 6};
  s->rank_count = 1 + random_below(RANKS_MAX);
  for (uint32_t i = 0; i < s->rank_count; i++) s->ring[i] = i;
  for (uint32_t i = 2; i < s->rank_count; i++) { /* entry 0 is always rank 0 */
    const uint32_t other = 1 + random_below(i), rank = s->ring[i];
    s->ring[i] = s->ring[other];
    s->ring[other] = rank;
  }
  memset(&s->request, 0, sizeof s->request);
  s->request.rank_count = s->rank_count;
  graph_of_ring(&s->graph, s->ring, s->rank_count);
  s->request.graph = &s->graph;
  const uint32_t proto_mask = proto_masks[random_below(8)];
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    s->request.settings.algo_mask[func] = (1u << ALGO_COUNT) - 1;
    s->request.settings.proto_mask[func] = proto_mask;
  }
}

static struct plan_op *scenario_add(struct scenario *s, uint32_t rank, const struct plan_op *op) {
  assert_true(s->op_counts[rank] < OPS_MAX);
  s->ops[rank][s->op_counts[rank]] = *op;
  return &s->ops[rank][s->op_counts[rank]++];
}

/* Addresses are never dereferenced; each operation has a range of its own, which also identifies a work's
 * operation. */
static uint8_t *address_of(uint64_t sequence) { return (uint8_t *)(uintptr_t)((sequence + 1) << 36); }

static size_t draw_count(const struct scenario *s, uint8_t dtype) {
  if (random_below(8) == 0) return 0;
  const size_t most = s->bytes_max / type_sizes[dtype];
  return random_below(3) == 0 ? random_below((uint32_t)most) : random_below((uint32_t)(most / 16 + 1));
}

static void draw_collective(struct scenario *s, uint64_t sequence) {
  struct plan_op op = {
      .func = (uint8_t)random_below(5), .dtype = (uint8_t)random_below(ncclNumTypes), .sequence = sequence};
  const bool all = op.func == FUNC_ALL_GATHER || op.func == FUNC_REDUCE_SCATTER;
  op.peer = op.func <= FUNC_REDUCE ? random_below(s->rank_count) : 0;
  op.op = op.func == FUNC_REDUCE || op.func >= FUNC_REDUCE_SCATTER ? (uint8_t)random_below(OP_COUNT)
                                                                   : (uint8_t)OP_SUM;
  op.count = draw_count(s, op.dtype) / (all ? s->rank_count : 1);
  for (uint32_t rank = 0; rank < s->rank_count; rank++) {
    const size_t own = rank * op.count * type_sizes[op.dtype];
    uint8_t *base = address_of(sequence);
    op.in = op.out = base;
    if (op.func == FUNC_ALL_GATHER) op.in = base + own;
    if (op.func == FUNC_REDUCE_SCATTER) op.out = base + own;
    if (random_below(2) == 0) op.out = base + ((size_t)1 << 35);
    scenario_add(s, rank, &op);
  }
  s->has_collectives = true;
}

static void draw_message(struct scenario *s, uint64_t sequence) {
  const uint32_t from = random_below(s->rank_count), to = random_below(s->rank_count);
  struct plan_op op = {.dtype = (uint8_t)random_below(ncclNumTypes), .sequence = sequence};
  op.count = draw_count(s, op.dtype);
  op.func = FUNC_SEND;
  op.peer = to;
  op.in = address_of(sequence);
  scenario_add(s, from, &op);
  op.func = FUNC_RECV;
  op.peer = from;
  op.in = NULL;
  op.out = address_of(sequence) + (random_below(4) == 0 ? 0 : (size_t)1 << 35);
  scenario_add(s, to, &op);
}

/* Ranks may make calls in different orders if NCCL's rules do not order them. */
static void draw_order(struct scenario *s, uint32_t rank) {
  for (uint32_t swaps = 4 * s->op_counts[rank]; swaps > 0 && s->op_counts[rank] > 1; swaps--) {
    struct plan_op *first = &s->ops[rank][random_below(s->op_counts[rank] - 1)], *second = first + 1;
    const bool collectives = first->func <= FUNC_ALL_REDUCE && second->func <= FUNC_ALL_REDUCE;
    if (collectives || (first->func == second->func && first->peer == second->peer)) continue;
    const struct plan_op op = *first;
    *first = *second;
    *second = op;
  }
}

static void scenario_draw(struct scenario *s, uint64_t seed) {
  s->seed = random_state = seed;
  draw_communicator(s);
  draw_limits(s);
  memset(s->op_counts, 0, sizeof s->op_counts);
  s->has_collectives = false;
  const uint32_t shape = random_below(3); /* only collectives, only messages, both */
  const uint32_t collectives = shape == 1 ? 0 : random_below(5), messages = shape == 0 ? 0 : random_below(30);
  for (uint32_t i = 0; i < collectives; i++) draw_collective(s, i);
  for (uint32_t i = 0; i < messages; i++) draw_message(s, collectives + i);
  for (uint32_t rank = 0; rank < s->rank_count; rank++) draw_order(s, rank);
}

static struct plan_request request_of(const struct scenario *s, uint32_t rank) {
  struct plan_request request = s->request;
  request.rank = rank;
  request.ops = s->ops[rank];
  request.op_count = s->op_counts[rank];
  return request;
}

static void scenario_plan(struct scenario *s) {
  for (uint32_t rank = 0; rank < s->rank_count; rank++) {
    const struct plan_request request = request_of(s, rank);
    assert_int_equal(plan_build(&request, &s->plans[rank]), ncclSuccess);
  }
}

static void scenario_free(struct scenario *s) {
  for (uint32_t rank = 0; rank < s->rank_count; rank++) plan_free(&s->plans[rank]);
}

static void expect(const struct scenario *s, uint32_t rank, bool good, const char *what) {
  if (!good)
    fail_msg("seed %llu, %u ranks, rank %u: %s", (unsigned long long)s->seed, s->rank_count, rank, what);
}

/* ---- one rank's plan ---- */

/* Two works of one batch on the same end of a connection would mix their slots. */
static bool works_share_end(const struct work *a, const struct work *b) {
  if (a->conn_index != b->conn_index) return false;
  return (a->send_count > 0 && b->send_count > 0 && a->send_peer[0] == b->send_peer[0]) ||
         (a->recv_count > 0 && b->recv_count > 0 && a->recv_peer[0] == b->recv_peer[0]);
}

static void check_batch(const struct scenario *s, uint32_t rank, const struct plan_batch *batch) {
  const struct work *works = &s->plans[rank].works[batch->first_work];
  expect(s, rank, batch->work_count >= 1 && batch->work_count <= PLAN_BATCH_WORKS_MAX,
         "a batch is empty or too long");
  for (uint32_t i = 0; i < batch->work_count; i++) {
    expect(s, rank, works[i].channel_index == batch->channel_index, "a batch has a work of another channel");
    expect(s, rank, works[i].rank == rank && works[i].rank_count == s->rank_count,
           "a work is another rank's");
    expect(s, rank,
           (works[i].flags & (WORK_DIRECT_SEND | WORK_DIRECT_RECV)) == 0 ||
               (s->request.settings.limits.direct && works[i].proto == PROTO_SIMPLE),
           "stores directly where it must not");
    expect(s, rank, works[i].conn_index == 1 || batch->work_count == 1, "a collective shares its batch");
    for (uint32_t j = 0; j < i; j++)
      expect(s, rank, !works_share_end(&works[i], &works[j]),
             "two works of a batch share an end of a connection");
  }
}

static void check_batches(const struct scenario *s, uint32_t rank) {
  const struct plan *plan = &s->plans[rank];
  const struct plan_limits *limits = &s->request.settings.limits;
  uint32_t works = 0, channel = 0;
  bool messages = false;
  uint64_t mask = 0;
  for (uint32_t i = 0; i < plan->batch_count; i++) {
    const struct plan_batch *batch = &plan->batches[i];
    expect(s, rank, batch->first_work == works && batch->channel_index >= channel,
           "batches are out of order");
    if (batch->channel_index != channel) messages = false;
    check_batch(s, rank, batch);
    const bool p2p = plan->works[works].conn_index == 1;
    expect(s, rank, p2p || !messages || s->rank_count == 1, "a collective comes behind a message");
    expect(s, rank, batch->channel_index < (p2p ? limits->p2p_channel_count : limits->channel_count),
           "has no such channel");
    messages = messages || p2p;
    channel = batch->channel_index;
    works += batch->work_count;
    mask |= UINT64_C(1) << channel;
  }
  expect(s, rank, works == plan->work_count && mask == plan->channel_mask, "works are left over");
}

/* The expected plan for an operation: total elements, and their size. */
struct expected_parts {
  size_t total;
  uint32_t element_bytes;
  bool any;
};

static const struct plan_op *self_receive(const struct scenario *s, uint32_t rank,
                                          const struct plan_op *send) {
  for (uint32_t i = 0; i < s->op_counts[rank]; i++) {
    const struct plan_op *op = &s->ops[rank][i];
    if (op->func == FUNC_RECV && op->sequence == send->sequence) return op;
  }
  return NULL;
}

static struct expected_parts expected_of(const struct scenario *s, uint32_t rank, const struct plan_op *op) {
  struct expected_parts parts = {op->count, type_sizes[op->dtype], op->count > 0};
  if (op->func <= FUNC_ALL_REDUCE) {
    if (s->rank_count == 1 && op->in == op->out && op->op != OP_PRE_MUL_SUM) parts.any = false;
    return parts;
  }
  parts.total = op->count * parts.element_bytes;
  parts.element_bytes = 1;
  if (op->peer != rank) parts.any = true;
  else if (op->func == FUNC_RECV)
    parts.any = false; /* the copy replaces both halves, under the send's name */
  else parts.any = parts.any && self_receive(s, rank, op)->out != op->in;
  return parts;
}

/* The next part of the operation's element range, which begins at `begin`; NULL if none does. */
static const struct work *part_at(const struct plan *plan, const struct plan_op *op, size_t begin) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    const bool half = work->func == op->func || (work->func == FUNC_COPY && op->func != FUNC_RECV);
    if (work->op_sequence != op->sequence || !half || work->part_offset != begin) continue;
    return work;
  }
  return NULL;
}

static void check_parts(const struct scenario *s, uint32_t rank, const struct plan_op *op, uint32_t *works) {
  const struct plan *plan = &s->plans[rank];
  const struct expected_parts parts = expected_of(s, rank, op);
  const bool copy = op->func <= FUNC_ALL_REDUCE ? s->rank_count == 1 : op->peer == rank;
  size_t covered = 0;
  if (!parts.any) return;
  do {
    const struct work *work = part_at(plan, op, covered);
    expect(s, rank, work != NULL, "parts leave a gap");
    expect(s, rank, work->part_count > 0 || parts.total == 0, "has an empty part");
    expect(s, rank, work->element_bytes == parts.element_bytes, "has another element size");
    expect(s, rank, (work->func == FUNC_COPY) == copy, "does not copy within the rank");
    expect(s, rank, work->chunk_count > 0, "has no chunk");
    const struct plan_buffers *buffers = &plan->buffers[work - plan->works];
    expect(s, rank, op->func == FUNC_RECV || buffers->in == op->in, "reads other memory");
    expect(s, rank, op->func == FUNC_SEND || buffers->out == op->out, "writes other memory");
    covered += work->part_count;
    *works += 1;
  } while (covered < parts.total);
  expect(s, rank, covered == parts.total, "parts are more than the operation");
}

static void check_plan(const struct scenario *s, uint32_t rank) {
  uint32_t works = 0;
  check_batches(s, rank);
  for (uint32_t i = 0; i < s->op_counts[rank]; i++) check_parts(s, rank, &s->ops[rank][i], &works);
  expect(s, rank, works == s->plans[rank].work_count, "has works of no operation");
}

/* The same request gives the same plan at every call. */
static void check_pure(const struct scenario *s, uint32_t rank) {
  const struct plan_request request = request_of(s, rank);
  const struct plan *plan = &s->plans[rank];
  struct plan second;
  assert_int_equal(plan_build(&request, &second), ncclSuccess);
  assert_int_equal(second.work_count, plan->work_count);
  assert_int_equal(second.batch_count, plan->batch_count);
  assert_memory_equal(second.works, plan->works, plan->work_count * sizeof *plan->works);
  assert_memory_equal(second.buffers, plan->buffers, plan->work_count * sizeof *plan->buffers);
  assert_memory_equal(second.batches, plan->batches, plan->batch_count * sizeof *plan->batches);
  plan_free(&second);
}

/* ---- all plans together: the symbolic run ---- */

/* One step's data on a link, with everything that the receiver must agree with. */
struct message {
  uint64_t sequence;
  size_t count, place;
  uint8_t element_bytes, proto, chunk_steps, slice_steps;
  bool final;
};

struct link_run {
  uint32_t head, tail, used_steps;
  bool offered;
  size_t offer_bytes;
  struct message queue[QUEUE_MAX];
};

struct lane_run {
  const struct work *work;
  struct algo_iter iter;
  struct step step;
  bool offering, taking, has_step;
};

/* A channel of a rank: its current batch. */
struct block_run {
  uint32_t batch_index, batch_end, lane_count;
  struct lane_run lanes[PLAN_BATCH_WORKS_MAX];
};

struct world_run {
  uint32_t slots; /* of a link; UINT32_MAX: no bound */
  struct block_run blocks[RANKS_MAX][CHANNELS_MAX];
  struct link_run links[RANKS_MAX][RANKS_MAX][CHANNELS_MAX][2]; /* by from, to, channel, connection */
};

static struct world_run world;

static struct link_run *link_in(const struct work *work) {
  return &world.links[work->recv_peer[0]][work->rank][work->channel_index][work->conn_index];
}

static struct link_run *link_out(const struct work *work) {
  return &world.links[work->rank][work->send_peer[0]][work->channel_index][work->conn_index];
}

static void lane_next(struct lane_run *lane) {
  lane->has_step = algo_next(&lane->iter, lane->work, &lane->step);
}

static void lane_begin(struct lane_run *lane, const struct work *work) {
  lane->work = work;
  lane->offering = (work->flags & WORK_DIRECT_RECV) != 0;
  lane->taking = (work->flags & WORK_DIRECT_SEND) != 0;
  algo_begin(&lane->iter, work);
  lane_next(lane);
}

/* Offers of output addresses before the first step. An offer never waits: the end of the previous operation
 * shows that its offer was taken. */
static bool lane_offers(const struct scenario *s, struct lane_run *lane) {
  const size_t bytes = lane->work->part_count * lane->work->element_bytes;
  if (lane->offering) {
    struct link_run *link = link_in(lane->work);
    expect(s, lane->work->rank, !link->offered, "offers before the last offer was taken");
    link->offered = true;
    link->offer_bytes = bytes;
    lane->offering = false;
    return true;
  }
  struct link_run *link = link_out(lane->work);
  if (!link->offered) return false;
  expect(s, lane->work->rank, link->offer_bytes == bytes, "takes an offer of another size");
  link->offered = false;
  lane->taking = false;
  return true;
}

/* Where the data belongs, as far as both ends can compute: final values in the output, partial sums in the
 * input. */
static size_t step_place(const struct step *step, bool final) {
  return final ? step->out_offset : step->in_offset;
}

static void lane_receive(const struct scenario *s, struct lane_run *lane) {
  const struct work *work = lane->work;
  struct link_run *link = link_in(work);
  const struct message *message = &link->queue[link->head++ % QUEUE_MAX];
  const bool final = (lane->step.flags & STEP_RECV_FINAL) != 0;
  expect(s, work->rank, message->sequence == work->op_sequence, "receives another operation's data");
  expect(s, work->rank, message->count == lane->step.count, "receives another count");
  expect(s, work->rank, message->final == final && message->place == step_place(&lane->step, final),
         "receives other elements");
  expect(s, work->rank,
         message->element_bytes == work->element_bytes && message->proto == work->proto &&
             message->chunk_steps == work->chunk_steps && message->slice_steps == work->slice_steps,
         "speaks another protocol");
  link->used_steps -= work->chunk_steps;
}

static void lane_send(const struct scenario *s, struct lane_run *lane) {
  const struct work *work = lane->work;
  struct link_run *link = link_out(work);
  const bool final = (lane->step.flags & STEP_SEND_FINAL) != 0;
  expect(s, work->rank, link->tail - link->head < QUEUE_MAX, "fills the test's queue");
  const struct message message = {work->op_sequence,
                                  lane->step.count,
                                  step_place(&lane->step, final),
                                  work->element_bytes,
                                  work->proto,
                                  work->chunk_steps,
                                  work->slice_steps,
                                  final};
  link->queue[link->tail++ % QUEUE_MAX] = message;
  link->used_steps += work->chunk_steps;
}

/* Runs one step if its data has arrived and its slots are free; both must be true together. */
static bool lane_move(const struct scenario *s, struct lane_run *lane) {
  if (lane->offering || lane->taking) return lane_offers(s, lane);
  if (!lane->has_step) return false;
  const bool receives = lane->step.recv_links != 0, sends = lane->step.send_links != 0;
  if (receives && link_in(lane->work)->head == link_in(lane->work)->tail) return false;
  if (sends && world.slots - link_out(lane->work)->used_steps < lane->work->chunk_steps) return false;
  if (receives) lane_receive(s, lane);
  if (sends) lane_send(s, lane);
  lane_next(lane);
  return true;
}

static void block_open(const struct scenario *s, uint32_t rank, struct block_run *block) {
  const struct plan *plan = &s->plans[rank];
  block->lane_count = 0;
  if (block->batch_index == block->batch_end) return;
  const struct plan_batch *batch = &plan->batches[block->batch_index];
  block->lane_count = batch->work_count;
  for (uint32_t i = 0; i < batch->work_count; i++)
    lane_begin(&block->lanes[i], &plan->works[batch->first_work + i]);
}

/* Advances the lanes of the current batch as far as possible; after the last one the next batch begins. */
static bool block_move(const struct scenario *s, uint32_t rank, struct block_run *block) {
  bool moved = false, running = false;
  for (uint32_t i = 0; i < block->lane_count; i++) {
    struct lane_run *lane = &block->lanes[i];
    while (lane_move(s, lane)) moved = true;
    running = running || lane->has_step || lane->offering || lane->taking;
  }
  if (running || block->lane_count == 0) return moved;
  block->batch_index += 1;
  block_open(s, rank, block);
  return true;
}

static void world_begin(const struct scenario *s, uint32_t slots) {
  world.slots = slots;
  memset(world.blocks, 0, sizeof world.blocks);
  for (uint32_t i = 0; i < RANKS_MAX * RANKS_MAX * CHANNELS_MAX * 2; i++) {
    struct link_run *link = &world.links[0][0][0][0] + i;
    link->head = link->tail = link->used_steps = 0;
    link->offered = false;
  }
  for (uint32_t rank = 0; rank < s->rank_count; rank++)
    for (uint32_t i = 0, end; i < s->plans[rank].batch_count; i = end) {
      const struct plan_batch *batches = s->plans[rank].batches;
      for (end = i;
           end < s->plans[rank].batch_count && batches[end].channel_index == batches[i].channel_index;)
        end++;
      struct block_run *block = &world.blocks[rank][batches[i].channel_index];
      block->batch_index = i;
      block->batch_end = end;
      block_open(s, rank, block);
    }
}

static bool world_move(const struct scenario *s) {
  bool moved = false;
  for (uint32_t rank = 0; rank < s->rank_count; rank++)
    for (uint32_t channel = 0; channel < CHANNELS_MAX; channel++)
      if (block_move(s, rank, &world.blocks[rank][channel])) moved = true;
  return moved;
}

/* Runs all plans; at the end every lane of every batch has ended and every queue is empty. */
static void check_run(const struct scenario *s, uint32_t slots) {
  world_begin(s, slots);
  while (world_move(s)) {}
  for (uint32_t rank = 0; rank < s->rank_count; rank++)
    for (uint32_t channel = 0; channel < CHANNELS_MAX; channel++) {
      const struct block_run *block = &world.blocks[rank][channel];
      expect(s, rank, block->batch_index == block->batch_end,
             slots == UINT32_MAX ? "waits for ever" : "waits for slots for ever");
      for (uint32_t from = 0; from < s->rank_count; from++)
        for (uint32_t conn = 0; conn < 2; conn++) {
          const struct link_run *link = &world.links[from][rank][channel][conn];
          expect(s, rank, link->head == link->tail && !link->offered, "leaves data behind");
        }
    }
}

static void test_random_groups(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 1500; seed++) {
    scenario_draw(&scenario, seed);
    scenario_plan(&scenario);
    for (uint32_t rank = 0; rank < scenario.rank_count; rank++) check_plan(&scenario, rank);
    if (seed % 10 == 0) check_pure(&scenario, 0);
    check_run(&scenario, UINT32_MAX);
    /* A ring receives and sends in one step, so it needs a second slot: one slot is enough only for messages
     * and chains. */
    const uint32_t slots = scenario.request.settings.limits.slots;
    check_run(&scenario, scenario.has_collectives && slots < 2 ? 2 : slots);
    scenario_free(&scenario);
  }
}

/* ---- known plans ---- */

static void request_begin(struct plan_request *request, uint32_t rank, uint32_t rank_count,
                          struct plan_op *ops, uint32_t count) {
  static const uint32_t ring[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  memset(request, 0, sizeof *request);
  request->rank = rank;
  request->rank_count = rank_count;
  static struct graph graph;
  graph_of_ring(&graph, ring, rank_count);
  request->graph = &graph;
  request->ops = ops;
  request->op_count = count;
  request->settings.limits = (struct plan_limits){
      8, {65536, 614400, 524288}, 0, 524288, 16, 16, 16, 32, 0, true, 0, 0, 1, 0, 0, false, 0, false, false,
      0};
  request->settings.p2p_ll_threshold = 16384;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request->settings.algo_mask[func] = (1u << ALGO_COUNT) - 1;
    request->settings.proto_mask[func] = 7;
  }
}

/* 64 MiB of float on 8 ranks over Simple: 16 channels of 4 MiB, chunks of at most 2 MiB, four steps a
 * chunk, two a slice. */
static void test_all_reduce_64_mib(void **state) {
  struct plan_op op = {.func = FUNC_ALL_REDUCE,
                       .dtype = ncclFloat32,
                       .count = (size_t)16 << 20,
                       .in = address_of(0),
                       .out = address_of(1)};
  struct plan_request request;
  struct plan plan;
  (void)state;
  request_begin(&request, 3, 8, &op, 1);
  request.settings.proto_mask[FUNC_ALL_REDUCE] = 1u << PROTO_SIMPLE;
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  assert_int_equal(plan.work_count, 16);
  assert_int_equal(plan.batch_count, 16);
  assert_true(plan.channel_mask == 0xffff);
  for (uint32_t i = 0; i < 16; i++) {
    const struct work *work = &plan.works[i];
    assert_int_equal(work->part_count, 1 << 20);
    assert_int_equal(work->part_offset, i << 20);
    assert_int_equal(work->chunk_count, 524288);
    assert_true(work->chunk_steps == 4 && work->slice_steps == 2);
    assert_true(work->send_peer[0] == 4 && work->recv_peer[0] == 2 && work->ring_index == 3);
    assert_int_equal(work->flags, WORK_DIRECT_SEND | WORK_DIRECT_RECV);
  }
  plan_free(&plan);
}

/* Chunks along a chain: for sums on GPUs, for copies on GPUs, and for either on CPU cores. */
static void test_chain_chunks(void **state) {
  static const struct {
    uint8_t func;
    bool cores;
    size_t part_bytes, chunk_bytes;
  } rows[] = {{FUNC_BROADCAST, false, 1 << 19, 131072}, {FUNC_BROADCAST, false, 32 << 20, 262144},
              {FUNC_BROADCAST, true, 1 << 19, 65536},   {FUNC_REDUCE, false, 1 << 19, 65536},
              {FUNC_REDUCE, false, 4 << 20, 131072},    {FUNC_REDUCE, false, 32 << 20, 262144},
              {FUNC_REDUCE, true, 4 << 20, 65536},      {FUNC_REDUCE, true, 32 << 20, 262144}};
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct plan_op op = {.func = rows[i].func,
                         .dtype = ncclInt8,
                         .count = 16 * rows[i].part_bytes,
                         .in = address_of(0),
                         .out = address_of(1)};
    struct plan_request request;
    struct plan plan;
    request_begin(&request, 1, 4, &op, 1);
    request.settings.proto_mask[op.func] = 1u << PROTO_SIMPLE;
    request.settings.limits.cores = rows[i].cores;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    assert_int_equal(plan.works[0].part_count, rows[i].part_bytes);
    assert_int_equal(plan.works[0].chunk_count, rows[i].chunk_bytes);
    plan_free(&plan);
  }
}

/* 20 ranks exchange messages with all on one channel: rounds 1-3, and then four at a time, share a batch
 * each. */
static void test_all_to_all_batches(void **state) {
  static struct plan_op ops[40];
  static const uint32_t expected[5] = {6, 8, 8, 8, 8};
  struct plan_request request;
  struct plan plan;
  (void)state;
  for (uint32_t i = 0; i < 40; i++) {
    const struct plan_op op = {.func = i % 2 ? FUNC_SEND : FUNC_RECV,
                               .dtype = ncclInt8,
                               .peer = i / 2,
                               .count = 1000,
                               .sequence = i};
    ops[i] = op;
  }
  request_begin(&request, 7, 20, ops, 40);
  request.settings.limits.p2p_channel_count = request.settings.limits.p2p_channels_per_peer = 1;
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  assert_int_equal(plan.batch_count, 5);
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(plan.batches[i].work_count, expected[i]);
  plan_free(&plan);
}

/* Over a network a short message uses LL on one channel, by its own size; messages within a node are
 * unchanged. */
static void test_messages_over_networks(void **state) {
  static const uint32_t groups[4] = {0, 0, 2, 2};
  struct plan_request request;
  struct plan_op op = {.func = FUNC_SEND, .dtype = ncclInt8, .in = address_of(0)};
  struct plan plan;
  (void)state;
  request_begin(&request, 1, 4, &op, 1);
  const size_t most = tune_net_message_bytes(&request);
  assert_in_range(most, 4096, 16384);
  const struct {
    uint32_t peer;
    size_t bytes;
    bool plain, cores;
    uint32_t protos, threshold, proto;
  } rows[] = {{2, 0, false, false, 7, 16384, PROTO_LL},
              {2, most, false, false, 7, 16384, PROTO_LL},
              {2, most + 1, false, false, 7, 16384, PROTO_SIMPLE},
              {2, 1001, false, false, 7, 1000, PROTO_SIMPLE},
              {2, 8, true, false, 7, 16384, PROTO_SIMPLE},
              {2, 8, true, false, 1u << PROTO_LL, 16384, PROTO_SIMPLE},
              {2, 8, false, false, 1u << PROTO_SIMPLE, 16384, PROTO_SIMPLE},
              {2, 1 << 20, false, false, 1u << PROTO_LL, 16384, PROTO_LL},
              {2, 8, false, true, 7, 16384, PROTO_SIMPLE},
              {0, most + 1, true, false, 7, 16384, PROTO_LL}};
  for (uint32_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) { /* as planned by both ends */
    op.func = i % 2 == 0 ? FUNC_SEND : FUNC_RECV;
    op.peer = i % 2 == 0 ? rows[i / 2].peer : 1;
    op.count = rows[i / 2].bytes;
    request_begin(&request, i % 2 == 0 ? 1 : rows[i / 2].peer, 4, &op, 1);
    request.groups = groups;
    request.settings.net_plain = rows[i / 2].plain;
    request.settings.limits.cores = rows[i / 2].cores;
    request.settings.proto_mask[op.func] = rows[i / 2].protos;
    request.settings.p2p_ll_threshold = rows[i / 2].threshold;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    if (plan.works[0].proto != rows[i / 2].proto) fail_msg("row %u: protocol %u", i, plan.works[0].proto);
    const bool remote_lines = rows[i / 2].peer == 2 && plan.works[0].proto == PROTO_LL;
    if (remote_lines) assert_int_equal(plan.work_count, 1);
    if (remote_lines)
      assert_int_equal(plan.works[0].chunk_count, plan_net_ll_bytes(&request.settings.limits) / 2);
    plan_free(&plan);
  }
}

static struct plan_op all_to_all_op(size_t count) {
  const struct plan_op op = {.func = FUNC_ALL_TO_ALL,
                             .dtype = ncclFloat32,
                             .count = count,
                             .in = address_of(0),
                             .out = address_of(1)};
  return op;
}

static void assert_same_plan(const struct plan *a, const struct plan *b) {
  assert_int_equal(a->work_count, b->work_count);
  assert_int_equal(a->batch_count, b->batch_count);
  assert_memory_equal(a->works, b->works, a->work_count * sizeof *a->works);
  assert_memory_equal(a->buffers, b->buffers, a->work_count * sizeof *a->buffers);
  assert_memory_equal(a->batches, b->batches, a->batch_count * sizeof *a->batches);
}

/* An all-to-all is planned as the sends and receives that a user would write, in one group with others. */
static void test_all_to_all_is_messages(void **state) {
  static const size_t counts[] = {1, 1000, 70000, 3000000};
  struct plan_op ops[2 * 8 + 2];
  (void)state;
  for (uint32_t i = 0; i < 4 * 7; i++) {
    const uint32_t n = 2 + i % 7, rank = (i * 5) % n;
    struct plan_op group[3] = {{.func = FUNC_RECV, .dtype = ncclInt8, .peer = n - 1, .count = 77},
                               all_to_all_op(counts[i / 7]),
                               {.func = FUNC_SEND, .dtype = ncclInt8, .peer = n - 1, .count = 77}};
    struct plan_request request;
    struct plan whole, written;
    ops[0] = group[0];
    ops[2 * n + 1] = group[2];
    for (uint32_t k = 0; k < 2 * n; k++) {
      struct plan_op *op = &ops[1 + k];
      *op = group[1];
      op->func = k % 2 == 0 ? FUNC_SEND : FUNC_RECV;
      op->peer = k / 2;
      op->in = k % 2 == 0 ? (const char *)op->in + op->peer * op->count * 4 : NULL;
      op->out = k % 2 == 0 ? NULL : (char *)op->out + op->peer * op->count * 4;
    }
    request_begin(&request, rank, n, group, 3);
    assert_int_equal(plan_build(&request, &whole), ncclSuccess);
    request_begin(&request, rank, n, ops, 2 * n + 2);
    assert_int_equal(plan_build(&request, &written), ncclSuccess);
    assert_same_plan(&whole, &written);
    plan_free(&whole);
    plan_free(&written);
  }
}

/* If the user's messages are replaced, and an executor has the links, one work per channel carries it. */
static void test_all_to_all_direct(void **state) {
  struct plan_op op = all_to_all_op(100);
  struct plan_request request;
  struct plan plan;
  (void)state;
  for (uint32_t links = 3; links <= 4; links++) {
    request_begin(&request, 1, 5, &op, 1);
    request.settings.limits.algos = ~0u;
    request.settings.limits.links = links;
    request.settings.algo_mask[FUNC_ALL_TO_ALL] = 1u << ALGO_DIRECT;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    if (links == 3) {
      assert_int_equal(plan.works[0].func, FUNC_COPY);
    } else {
      assert_int_equal(plan.work_count, 1);
      assert_true(plan.works[0].func == FUNC_ALL_TO_ALL && plan.works[0].algo == ALGO_DIRECT);
      assert_true(plan.works[0].send_count == 4 && plan.works[0].recv_count == 4);
      assert_int_equal(plan.works[0].send_peer[1], 2);
    }
    plan_free(&plan);
  }
}

/* Inputs are shown if the executors read them in place, unless they are scaled before, or the sum goes to a
 * place that others still read. */
static void test_inputs_shown(void **state) {
  static const struct {
    uint8_t func, algo, op;
    bool in_place, shows;
  } rows[] = {{FUNC_ALL_REDUCE, ALGO_TWO_SHOT, OP_SUM, false, true},
              {FUNC_ALL_REDUCE, ALGO_TWO_SHOT, OP_SUM, true, true},
              {FUNC_ALL_REDUCE, ALGO_TWO_SHOT, OP_PRE_MUL_SUM, false, false},
              {FUNC_ALL_REDUCE, ALGO_DIRECT, OP_MAX, false, true},
              {FUNC_ALL_REDUCE, ALGO_DIRECT, OP_SUM, true, false},
              {FUNC_REDUCE_SCATTER, ALGO_DIRECT, OP_SUM, false, true},
              {FUNC_ALL_GATHER, ALGO_DIRECT, OP_SUM, false, false}};
  (void)state;
  for (uint32_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++) {
    struct plan_op op = {.func = rows[i / 3].func,
                         .dtype = ncclFloat32,
                         .op = rows[i / 3].op,
                         .count = 1 << 20,
                         .in = address_of(0),
                         .out = address_of(rows[i / 3].in_place ? 0 : 1)};
    struct plan_request request;
    struct plan plan;
    request_begin(&request, 0, 4, &op, 1);
    request.settings.limits.algos = i % 3 == 2 ? ~0u : ~PLAN_SHOWS_INPUTS;
    request.settings.limits.links = 3;
    request.settings.limits.direct = true;
    request.settings.limits.quick_protos = i % 3 == 1 ? 1u << PROTO_SIMPLE : 0;
    request.settings.algo_mask[op.func] = 1u << rows[i / 3].algo;
    request.settings.proto_mask[op.func] = 1u << PROTO_SIMPLE;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    assert_true(plan.work_count > 0);
    for (uint32_t k = 0; k < plan.work_count; k++)
      assert_true(((plan.works[k].flags & WORK_SHOWS_INPUT) != 0) == (rows[i / 3].shows && i % 3 != 0));
    plan_free(&plan);
  }
}

/* Which works read slots at their sender if the settings ask for it: those of rings, trees and messages over
 * Simple, and these store nothing directly into an output. */
static void test_slots_at_the_sender(void **state) {
  static const struct {
    uint8_t func, algo, proto;
    bool reads;
  } rows[] = {{FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, true},
              {FUNC_ALL_GATHER, ALGO_RING, PROTO_SIMPLE, true},
              {FUNC_BROADCAST, ALGO_RING, PROTO_SIMPLE, true},
              {FUNC_ALL_REDUCE, ALGO_TREE, PROTO_SIMPLE, true},
              {FUNC_SEND, ALGO_RING, PROTO_SIMPLE, true},
              {FUNC_RECV, ALGO_RING, PROTO_SIMPLE, true},
              {FUNC_ALL_REDUCE, ALGO_RING, PROTO_LL, false},
              {FUNC_ALL_REDUCE, ALGO_RING, PROTO_LL128, false},
              {FUNC_ALL_REDUCE, ALGO_TREE, PROTO_LL, false},
              {FUNC_SEND, ALGO_RING, PROTO_LL, false},
              {FUNC_ALL_REDUCE, ALGO_TWO_SHOT, PROTO_SIMPLE, false},
              {FUNC_ALL_GATHER, ALGO_DIRECT, PROTO_SIMPLE, false},
              {FUNC_ALL_GATHER, ALGO_PAT, PROTO_SIMPLE, false}};
  const uint32_t stores = WORK_DIRECT_SEND | WORK_DIRECT_RECV;
  struct graph graph;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  for (uint32_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
    const bool asked = i % 2 == 1, reads = asked && rows[i / 2].reads;
    struct plan_op op = {.func = rows[i / 2].func,
                         .dtype = ncclFloat32,
                         .count = 1 << 20,
                         .peer = rows[i / 2].func == FUNC_BROADCAST ? 0 : 1,
                         .in = address_of(0),
                         .out = address_of(1)};
    struct plan_request request;
    struct plan plan;
    uint32_t stored = 0;
    request_begin(&request, 0, 4, &op, 1);
    request.graph = &graph;
    request.settings.reads_slots = asked;
    request.settings.limits.algos = ~0u;
    request.settings.limits.links = 3;
    request.settings.p2p_ll_threshold = rows[i / 2].proto == PROTO_LL ? (size_t)1 << 30 : 0;
    request.settings.algo_mask[op.func] = 1u << rows[i / 2].algo;
    request.settings.proto_mask[op.func] = 1u << rows[i / 2].proto;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    assert_true(plan.work_count > 0);
    for (uint32_t k = 0; k < plan.work_count; k++) {
      const struct work *work = &plan.works[k];
      stored |= work->flags & stores;
      assert_int_equal((work->flags & WORK_READS_SLOTS) != 0, reads);
      assert_int_equal(work_slots(work), reads ? SLOTS_AT_SENDER : rows[i / 2].proto);
    }
    assert_int_equal(stored != 0, rows[i / 2].proto == PROTO_SIMPLE && !reads);
    plan_free(&plan);
  }
  graph_free(&graph);
}

/* On a backend that is fast at it, one-shot uses twice as many channels, each with at least 2 KiB. */
static void test_one_shot_spread(void **state) {
  struct plan_op op = {
      .func = FUNC_ALL_REDUCE, .dtype = ncclFloat32, .in = address_of(0), .out = address_of(1)};
  static const size_t kib[] = {2, 4, 8, 32, 64};
  static const uint32_t slow[] = {1, 1, 2, 8, 16}, quick[] = {1, 2, 4, 16, 16};
  (void)state;
  for (uint32_t i = 0; i < 2 * sizeof kib / sizeof *kib; i++) {
    struct plan_request request;
    struct plan plan;
    op.count = kib[i / 2] * 1024 / sizeof(float);
    request_begin(&request, 0, 4, &op, 1);
    request.settings.limits.algos = ~0u;
    request.settings.limits.links = 3;
    request.settings.limits.quick_protos = i % 2 == 1 ? 1u << PROTO_LL : 0;
    request.settings.algo_mask[FUNC_ALL_REDUCE] = 1u << ALGO_DIRECT;
    request.settings.proto_mask[FUNC_ALL_REDUCE] = 1u << PROTO_LL;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    assert_int_equal(plan.work_count, i % 2 == 1 ? quick[i / 2] : slow[i / 2]);
    plan_free(&plan);
  }
}

/* If direct collectives are fast they carry small blocks, each operation by itself. */
static void test_all_to_all_quick(void **state) {
  struct plan_op ops[2] = {all_to_all_op(4096), all_to_all_op((size_t)16 << 20)};
  struct plan_request request;
  struct plan plan;
  uint32_t all_to_alls = 0, messages = 0;
  (void)state;
  ops[1].sequence = 1;
  request_begin(&request, 1, 4, ops, 2);
  request.settings.limits.algos = ~0u;
  request.settings.limits.algos_last = PLAN_ALGOS_LAST;
  request.settings.limits.links = 7;
  request.settings.limits.quick_protos = 1u << PROTO_LL;
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  for (uint32_t i = 0; i < plan.work_count; i++) {
    const struct work *work = &plan.works[i];
    assert_int_equal(work->func == FUNC_ALL_TO_ALL, work->op_sequence == 0);
    if (work->func == FUNC_ALL_TO_ALL) assert_true(work->algo == ALGO_DIRECT && work->proto == PROTO_LL);
    all_to_alls += work->func == FUNC_ALL_TO_ALL;
    messages += work->func == FUNC_SEND;
  }
  assert_true(all_to_alls > 0 && all_to_alls <= 16 && messages == 3 * 16);
  plan_free(&plan);
}

/* Descending traffic; equal operations in the order of the calls; an all-gather counts with all the data that
 * it moves. */
static void test_collectives_sorted(void **state) {
  struct plan_op ops[5];
  static const size_t counts[5] = {1000, 5000, 1000, 2000, 1000};
  static const uint64_t expected[5] = {3, 1, 0, 2, 4};
  struct plan_request request;
  struct plan plan;
  (void)state;
  for (uint32_t i = 0; i < 5; i++) {
    const struct plan_op op = {.func = i == 3 ? FUNC_ALL_GATHER : FUNC_ALL_REDUCE,
                               .dtype = ncclInt8,
                               .count = counts[i],
                               .in = address_of(i),
                               .out = address_of(9),
                               .sequence = i};
    ops[i] = op;
  }
  request_begin(&request, 0, 8, ops, 5);
  request.settings.limits.channel_count = 1;
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  assert_int_equal(plan.work_count, 5);
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(plan.works[i].op_sequence, expected[i]);
  plan_free(&plan);
}

/* Protocol of the first of `count` equal all-reduces in one group; with `other` every second one has that
 * type. */
static uint8_t proto_of_group(uint32_t count, size_t elements, uint8_t other) {
  struct plan_op ops[4];
  struct plan_request request;
  struct plan plan;
  for (uint32_t i = 0; i < count; i++) {
    const struct plan_op op = {.func = FUNC_ALL_REDUCE,
                               .dtype = i % 2 ? other : (uint8_t)ncclFloat32,
                               .count = elements,
                               .in = address_of(i),
                               .out = address_of(9),
                               .sequence = i};
    ops[i] = op;
  }
  request_begin(&request, 0, 8, ops, count);
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  const uint8_t proto = plan.works[0].proto;
  plan_free(&plan);
  return proto;
}

/* Small operations of one kind choose their protocol by their sum, others by their own size. */
static void test_group_chooses_by_sum(void **state) {
  uint32_t differences = 0;
  (void)state;
  for (size_t elements = 256; elements < (size_t)1 << 26; elements *= 2) {
    const uint8_t alone = proto_of_group(1, elements, ncclFloat32),
                  sum = proto_of_group(1, 4 * elements, ncclFloat32);
    assert_int_equal(proto_of_group(4, elements, ncclFloat32), sum);
    assert_int_equal(proto_of_group(4, elements, ncclInt32), alone);
    differences += alone != sum;
  }
  assert_true(differences > 0);
}

/* With all protocols but one forbidden a rank gets that one. Messages do not use LL128. */
static void test_forced_protocols(void **state) {
  static const uint8_t of_message[PROTO_COUNT] = {PROTO_LL, PROTO_SIMPLE, PROTO_SIMPLE};
  static const size_t chunk_bytes[PROTO_COUNT] = {32768, 576000, 4 * 524288};
  struct plan_op ops[2] = {
      {.func = FUNC_ALL_REDUCE, .dtype = ncclFloat32, .count = 5000, .in = address_of(0)},
      {.func = FUNC_SEND, .dtype = ncclFloat32, .peer = 1, .count = 5000000, .in = address_of(1)}};
  (void)state;
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) {
    struct plan_request request;
    struct plan plan;
    request_begin(&request, 0, 2, ops, 2);
    for (uint32_t func = 0; func < FUNC_COUNT; func++) request.settings.proto_mask[func] = 1u << proto;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    for (uint32_t i = 0; i < plan.work_count; i++) {
      const bool message = plan.works[i].func == FUNC_SEND;
      assert_int_equal(plan.works[i].proto, message ? of_message[proto] : proto);
      if (!message) assert_int_equal(plan.works[i].chunk_count, chunk_bytes[proto] / 4);
    }
    plan_free(&plan);
  }
}

/* ---- failures ---- */

static void test_algo_masks(void **state) {
  struct plan_op op = {.dtype = ncclFloat32, .count = 100, .in = address_of(0), .out = address_of(1)};
  (void)state;
  for (uint8_t func = 0; func <= FUNC_RECV; func++) {
    struct plan_request request;
    struct plan plan;
    if (func == FUNC_SEND_RECV) continue;
    const bool collective = func <= FUNC_ALL_REDUCE;
    op.func = func;
    op.peer = collective ? 0 : 1;
    request_begin(&request, 0, 2, &op, 1);
    for (uint32_t i = 0; i < FUNC_COUNT; i++)
      request.settings.algo_mask[i] = i == func ? ~(1u << ALGO_RING) : 1u << ALGO_RING;
    memset(&plan, 0x5a, sizeof plan);
    const struct plan before = plan;
    const uint64_t live = os_alloc_live();
    assert_int_equal(plan_build(&request, &plan), collective ? ncclInvalidUsage : ncclSuccess);
    if (collective) {
      assert_memory_equal(&plan, &before, sizeof plan);
      assert_non_null(strstr(log_last_error(), "NCCL_ALGO"));
    } else {
      plan_free(&plan);
    }
    assert_true(os_alloc_live() == live);
    request.rank_count = collective ? 1 : 2; /* with one rank there is no algorithm to choose */
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    plan_free(&plan);
    assert_true(os_alloc_live() == live);
  }
}

/* The k-th allocation fails, for every k until none does. */
static void fail_every_allocation(const struct plan_request *request) {
  ncclResult_t result = ncclSystemError;
  for (uint64_t k = 1; result != ncclSuccess; k++) {
    struct plan plan;
    memset(&plan, 0x5a, sizeof plan);
    const struct plan before = plan;
    const uint64_t live = os_alloc_live();
    os_alloc_fail_at(k);
    result = plan_build(request, &plan);
    os_alloc_fail_at(0);
    assert_true(result == ncclSuccess || result == ncclSystemError);
    if (result == ncclSuccess) plan_free(&plan);
    else assert_memory_equal(&plan, &before, sizeof plan);
    assert_true(os_alloc_live() == live);
    assert_true(k < 100);
  }
}

static void test_memory_runs_out(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    scenario_draw(&scenario, seed);
    const struct plan_request request = request_of(&scenario, scenario.rank_count - 1);
    fail_every_allocation(&request);
  }
  struct plan_op ops[3] = {{.func = FUNC_BROADCAST, .dtype = ncclInt8, .peer = 1, .count = 700},
                           all_to_all_op(100),
                           {.func = FUNC_BROADCAST, .dtype = ncclInt8, .peer = 2, .count = 500}};
  struct plan_request request;
  request_begin(&request, 0, 8, ops, 3);
  request.settings.limits.algos = PLAN_FUSES;
  fail_every_allocation(&request);
}

static void test_nothing_to_do(void **state) {
  struct plan_op ops[2] = {
      {.func = FUNC_ALL_REDUCE, .dtype = ncclInt8, .in = address_of(0), .out = address_of(1)},
      {.func = FUNC_RECV, .dtype = ncclInt8, .peer = 1, .out = address_of(2)}};
  struct plan_request request;
  struct plan plan;
  (void)state;
  request_begin(&request, 0, 2, ops, 0);
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  assert_true(plan.work_count == 0 && plan.batch_count == 0 && plan.channel_mask == 0);
  plan_free(&plan);
  /* Zero bytes: the collective is dropped, the message still has both halves. */
  request_begin(&request, 0, 2, ops, 2);
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  assert_true(plan.work_count == 1 && plan.works[0].func == FUNC_RECV && plan.works[0].part_count == 0);
  plan_free(&plan);
}

/* More bytes never take less time, and every operation takes some. */
static void test_predicted_time(void **state) {
  (void)state;
  for (uint8_t func = 0; func <= FUNC_RECV; func++) {
    struct plan_op op = {.func = func, .dtype = ncclFloat32, .peer = 0};
    struct plan_request request;
    double last_us = 0;
    if (func == FUNC_SEND_RECV) continue;
    request_begin(&request, 1, 8, &op, 1);
    for (op.count = 1; op.count < (size_t)1 << 32; op.count *= 2) {
      const double time_us = plan_time_us(&request);
      assert_true(time_us > 0 && time_us >= last_us);
      last_us = time_us;
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_groups),          cmocka_unit_test(test_all_reduce_64_mib),
      cmocka_unit_test(test_forced_protocols),       cmocka_unit_test(test_chain_chunks),
      cmocka_unit_test(test_all_to_all_batches),     cmocka_unit_test(test_messages_over_networks),
      cmocka_unit_test(test_all_to_all_is_messages), cmocka_unit_test(test_all_to_all_direct),
      cmocka_unit_test(test_all_to_all_quick),       cmocka_unit_test(test_inputs_shown),
      cmocka_unit_test(test_one_shot_spread),        cmocka_unit_test(test_collectives_sorted),
      cmocka_unit_test(test_group_chooses_by_sum),   cmocka_unit_test(test_algo_masks),
      cmocka_unit_test(test_memory_runs_out),        cmocka_unit_test(test_nothing_to_do),
      cmocka_unit_test(test_predicted_time),         cmocka_unit_test(test_slots_at_the_sender)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
