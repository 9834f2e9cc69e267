/* test_nccl_figures.c: figures of NCCL's documentation, and of published descriptions of its code, hold for
 * planner, schedule and protocol here: sizes of buffers, channels and chunks of messages, bytes of LL lines,
 * steps of rings, shape of the double binary tree. Each test's comment names the figure's source. Where the
 * planner differs on purpose (lib/README.md), the test states the difference. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/param.h"
#include "core/plan/plan.h"
#include "kernels/launch_limits.h"
#include "protocol/ll.h"
#include "schedule/algo.h"

#define RANKS_MAX 64
#define CHANNELS 32
#define PER_PEER 2 /* NCCL's channels per peer over NVLink, where one path uses one link */
#define TREE_MAX 2048

enum { STEP_BYTES = 524288, KIB = 1024, MIB = 1024 * 1024 };

/* A request of a communicator whose ranks are in rank order, on one node, for one protocol. */
struct figures {
  struct graph graph;
  struct plan_request request;
};

static void figures_open(struct figures *f, uint32_t rank_count, uint32_t proto) {
  assert_int_equal(graph_flat(rank_count, &f->graph), ncclSuccess);
  plan_request_begin(&f->request, rank_count, &f->graph);
  f->request.settings.limits.p2p_channel_count = CHANNELS;
  f->request.settings.limits.p2p_channels_per_peer = PER_PEER;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    f->request.settings.algo_mask[func] = 1u << ALGO_RING;
    f->request.settings.proto_mask[func] = 1u << proto;
  }
}

static void figures_close(struct figures *f) { graph_free(&f->graph); }

/* The plan of one rank. Addresses are never dereferenced. */
static void figures_plan(struct figures *f, uint32_t rank, const struct plan_op *ops, uint32_t count,
                         struct plan *plan) {
  f->request.rank = rank;
  f->request.ops = ops;
  f->request.op_count = count;
  assert_int_equal(plan_build(&f->request, plan), ncclSuccess);
}

static struct plan_op op_of(uint8_t func, uint32_t peer, size_t bytes) {
  const struct plan_op op = {.func = func,
                             .dtype = ncclInt8,
                             .peer = peer,
                             .count = bytes,
                             .in = func == FUNC_RECV ? NULL : (void *)((uintptr_t)1 << 36),
                             .out = func == FUNC_SEND ? NULL : (void *)((uintptr_t)1 << 38)};
  return op;
}

/* ---- buffers ---- */

/* NCCL's documentation of NCCL_BUFFSIZE: 4 MiB per channel and peer. Descriptions of NCCL 2.30's code: 8
 * slots with every protocol, of 512 KiB for Simple, 64 KiB for LL (NCCL_LL_BUFFSIZE: 512 KiB), 600 KiB for
 * LL128 (NCCL_LL128_BUFFSIZE: 4800 KiB). */
static void expect_buffers(const struct plan_limits *limits) {
  assert_int_equal(limits->slots, 8);
  assert_int_equal(limits->step_bytes[PROTO_SIMPLE], STEP_BYTES);
  assert_int_equal(limits->step_bytes[PROTO_LL], 64 * KIB);
  assert_int_equal(limits->step_bytes[PROTO_LL128], 600 * KIB);
  assert_int_equal(limits->slots * limits->step_bytes[PROTO_SIMPLE], 4 * MIB);
  assert_int_equal(limits->slots * limits->step_bytes[PROTO_LL], 512 * KIB);
  assert_int_equal(limits->slots * limits->step_bytes[PROTO_LL128], 4915200);
}

static void test_buffers(void **state) {
  struct plan_limits limits;
  (void)state;
  plan_limits_default(&limits);
  expect_buffers(&limits);
  launch_limits(&limits, true);
  expect_buffers(&limits);
  assert_int_equal(param_int(PARAM_BUFFSIZE), 4 * MIB);
  assert_int_equal(param_int(PARAM_LL_BUFFSIZE), 512 * KIB);
  assert_int_equal(param_int(PARAM_LL128_BUFFSIZE), 4915200);
  assert_int_equal(param_int(PARAM_P2P_NVL_CHUNKSIZE), STEP_BYTES);
  assert_int_equal(FIFO_SLOTS_MAX, 8);
}

/* ---- parts, chunks and steps of a message ---- */

/* A part is cut into chunks of one step each, all of them full here. */
static void expect_part(const struct work *work, size_t offset, size_t bytes, uint32_t steps) {
  struct algo_iter iter;
  struct step step;
  assert_int_equal(work->part_offset, offset);
  assert_int_equal(work->part_count, bytes);
  assert_int_equal(work->chunk_count, STEP_BYTES);
  assert_true(work->chunk_steps == 1 && work->slice_steps == 1);
  algo_begin(&iter, work);
  for (uint32_t i = 0; i < steps; i++) {
    assert_true(algo_next(&iter, work, &step));
    assert_int_equal(step.in_offset, offset + i * (bytes / steps));
    assert_int_equal(step.count, bytes / steps);
  }
  assert_false(algo_next(&iter, work, &step));
}

/* 4 MiB from rank 0 to rank 1, as both ranks plan it. */
static void expect_message(uint32_t per_peer, uint32_t parts, uint32_t steps) {
  const struct plan_op send = op_of(FUNC_SEND, 1, 4 * MIB), recv = op_of(FUNC_RECV, 0, 4 * MIB);
  struct figures f;
  figures_open(&f, 2, PROTO_SIMPLE);
  f.request.settings.limits.p2p_channels_per_peer = per_peer;
  for (uint32_t rank = 0; rank < 2; rank++) {
    uint64_t channels = 0;
    struct plan plan;
    figures_plan(&f, rank, rank == 0 ? &send : &recv, 1, &plan);
    assert_int_equal(plan.work_count, parts);
    for (uint32_t i = 0; i < parts; i++) {
      /* Round 1 begins at half of the channels; works are in the order of channels. */
      const uint32_t part = (plan.works[i].channel_index + CHANNELS - CHANNELS / 2) % CHANNELS;
      expect_part(&plan.works[i], part * (4 * MIB / parts), 4 * MIB / parts, steps);
      channels |= UINT64_C(1) << part;
    }
    assert_true(channels == (UINT64_C(1) << parts) - 1);
    plan_free(&plan);
  }
  figures_close(&f);
}

/* Descriptions of NCCL 2.30's planner: two channels carry 4 MiB as two parts of 2 MiB, of 4 chunks of one
 * step each, half of their slots; one channel carries it in 8 steps, all of its slots. With 32 channels per
 * peer, 2 ranks share them: 16 parts of one step. */
static void test_message_of_4_mib(void **state) {
  (void)state;
  expect_message(PER_PEER, 2, 4);
  expect_message(1, 1, 8);
  expect_message(CHANNELS, 16, 1);
}

/* NCCL's number of parts on one node, for chunks of `step` bytes: a peer's share of the channels, at most one
 * for each step / 8 bytes; doubled while a part exceeds 32 steps. */
static uint32_t nccl_parts(size_t bytes, size_t step, uint32_t ranks, uint32_t channels, uint32_t per_peer) {
  uint32_t share = per_peer;
  while (share > 1 && share * ranks > channels) share /= 2;
  size_t parts = (bytes + step / 8 - 1) / (step / 8);
  if (parts > share) parts = share;
  if (parts == 0) parts = 1;
  while ((bytes + parts - 1) / parts > 32 * step && parts <= per_peer / 2) parts *= 2;
  return (uint32_t)parts;
}

static void expect_split(size_t bytes, size_t step, uint32_t ranks, uint32_t per_peer) {
  const struct p2p_split split = p2p_message_split(bytes, step, ranks, CHANNELS, per_peer);
  const uint32_t parts = nccl_parts(bytes, step, ranks, CHANNELS, per_peer);
  const bool all = bytes >= (size_t)per_peer * 256 * KIB;
  assert_true(parts <= per_peer);
  assert_int_equal(split.part_count, all ? per_peer : parts);
  const size_t part_bytes = (bytes + split.part_count - 1) / split.part_count;
  assert_int_equal(split.part_bytes, (part_bytes + 4095) / 4096 * 4096);
}

/* The same source. Parts begin at multiples of 4096 bytes. The planner differs where each channel of the peer
 * gets 256 KiB or more: it uses all of them, also with so many ranks that NCCL uses a share. */
static void test_message_parts(void **state) {
  static const size_t steps[] = {STEP_BYTES, 64 * KIB, 4 * KIB}; /* NCCL_P2P_NVL_CHUNKSIZE */
  (void)state;
  for (uint32_t i = 0; i < 3; i++)
    for (uint32_t per_peer = 1; per_peer <= CHANNELS; per_peer *= 2)
      for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++)
        for (size_t bytes = 0; bytes < (size_t)4096 * MIB; bytes += bytes / 7 + 1)
          expect_split(bytes, steps[i], ranks, per_peer);
  assert_int_equal(nccl_parts(MIB, STEP_BYTES, 16, CHANNELS, PER_PEER), 2);
  assert_int_equal(nccl_parts(MIB, STEP_BYTES, 17, CHANNELS, PER_PEER), 1);
  assert_int_equal(p2p_message_split(MIB, STEP_BYTES, 17, CHANNELS, PER_PEER).part_count, 2);
}

/* ---- channels of messages ---- */

static uint32_t bits_reversed(uint32_t value) {
  uint32_t reversed = 0;
  for (uint32_t i = 0; i < 5; i++) reversed |= (value >> i & 1) << (4 - i);
  return reversed;
}

/* By sender and receiver: the channels of the message, as either end plans them. */
struct channels {
  uint32_t sender[RANKS_MAX][RANKS_MAX], receiver[RANKS_MAX][RANKS_MAX];
  uint32_t loads[RANKS_MAX][CHANNELS]; /* parts that a rank sends on a channel */
};

/* All ranks send `bytes` to all others. */
static void channels_fill(struct channels *all, uint32_t ranks, size_t bytes) {
  static struct plan_op ops[2 * RANKS_MAX];
  struct figures f;
  memset(all, 0, sizeof *all);
  figures_open(&f, ranks, PROTO_SIMPLE);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    struct plan plan;
    uint32_t count = 0;
    for (uint32_t peer = 0; peer < ranks; peer++) {
      if (peer == rank) continue;
      ops[count++] = op_of(FUNC_SEND, peer, bytes);
      ops[count++] = op_of(FUNC_RECV, peer, bytes);
    }
    figures_plan(&f, rank, ops, count, &plan);
    for (uint32_t i = 0; i < plan.work_count; i++) {
      const struct work *work = &plan.works[i];
      const bool sends = work->func == FUNC_SEND;
      uint32_t *set =
          sends ? &all->sender[rank][work->send_peer[0]] : &all->receiver[work->recv_peer[0]][rank];
      assert_true(work->channel_index < CHANNELS && (*set >> work->channel_index & 1) == 0);
      *set |= 1u << work->channel_index;
      all->loads[rank][work->channel_index] += sends;
    }
    plan_free(&plan);
  }
  figures_close(&f);
}

/* The most and the fewest parts on a channel differ by one at most, if the round of the own copy, which no
 * message uses, counts as well. */
static void expect_even_loads(const struct channels *all, uint32_t ranks, uint32_t parts) {
  for (uint32_t rank = 0; rank < ranks; rank++) {
    uint32_t most = 0, fewest = UINT32_MAX;
    for (uint32_t channel = 0; channel < CHANNELS; channel++) {
      const uint32_t load = all->loads[rank][channel] + (channel < parts);
      most = load > most ? load : most;
      fewest = load < fewest ? load : fewest;
    }
    assert_in_range(most - fewest, 0, 1);
    assert_int_equal(most, ((size_t)ranks * parts + CHANNELS - 1) / CHANNELS);
  }
}

static void expect_channels(uint32_t ranks, size_t bytes, uint32_t parts) {
  static struct channels all;
  channels_fill(&all, ranks, bytes);
  for (uint32_t from = 0; from < ranks; from++)
    for (uint32_t to = 0; to < ranks; to++) {
      if (from == to) continue;
      const uint32_t round = (to + ranks - from) % ranks, base = bits_reversed(round % CHANNELS);
      uint32_t expected = 0;
      for (uint32_t part = 0; part < parts; part++) expected |= 1u << (base + part) % CHANNELS;
      assert_int_equal(all.sender[from][to], expected);
      assert_int_equal(all.receiver[from][to], expected);
    }
  expect_even_loads(&all, ranks, parts);
}

/* Descriptions of NCCL 2.30's planner: a message's first channel is its round, which is the distance
 * from sender to receiver on one node, with its bits reversed; further parts on the next channels. So the two
 * directions of a pair, whose rounds add up to the number of ranks, have channels of their own, and both ends
 * of a direction the same ones. The sizes are those for which NCCL and the planner use equal parts: few bytes
 * take one channel if more than 16 ranks share 32, many bytes take two. */
static void test_channels_of_pairs(void **state) {
  (void)state;
  for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++) {
    const size_t sizes[] = {128 * KIB, 64 * (size_t)MIB};
    for (uint32_t i = 0; i < 2; i++) {
      const uint32_t parts = nccl_parts(sizes[i], STEP_BYTES, ranks, CHANNELS, PER_PEER);
      assert_int_equal(parts, i == 1 || ranks <= 16 ? 2 : 1);
      expect_channels(ranks, sizes[i], parts);
    }
  }
}

/* Four sends and four receives share a batch: NCCL's 8 messages per channel. */
static void test_batches(void **state) {
  (void)state;
  assert_int_equal(PLAN_BATCH_WORKS_MAX, 8);
  assert_int_equal(2 * P2P_BATCH_ROUNDS, PLAN_BATCH_WORKS_MAX);
}

/* ---- lines ---- */

/* "Demystifying NCCL": an LL line has 4 bytes of data and 4 of flag, twice; half of the bytes are data. An
 * LL128 line has 120 bytes of data and 8 of flag: 15/16. */
static void test_bytes_of_lines(void **state) {
  struct figures f;
  (void)state;
  assert_true(line_wire_bytes(LINE_LL) == 16 && line_data_bytes(LINE_LL) == 8);
  assert_true(line_wire_bytes(LINE_LL128) == 128 && line_data_bytes(LINE_LL128) == 120);
  assert_int_equal(614400 / line_wire_bytes(LINE_LL128) * line_data_bytes(LINE_LL128), 576000);
  assert_int_equal(65536 / line_wire_bytes(LINE_LL) * line_data_bytes(LINE_LL), 32768);
  const struct plan_op op = op_of(FUNC_ALL_REDUCE, 0, 64 * (size_t)MIB);
  static const size_t chunk_bytes[PROTO_COUNT] = {32768, 576000, 4 * STEP_BYTES};
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) {
    struct plan plan;
    figures_open(&f, 8, proto);
    figures_plan(&f, 0, &op, 1, &plan);
    assert_int_equal(plan.works[0].proto, proto);
    assert_int_equal(plan.works[0].chunk_count, chunk_bytes[proto]);
    plan_free(&plan);
    figures_close(&f);
  }
}

/* The same source: where data and flags lie in the lines. LL's flag is the number of the step plus one, cut
 * to 32 bits; LL128's has 64. */
static void test_layout_of_lines(void **state) {
  static const int no_abort = 0;
  const struct prim prim = {.abort_flag = &no_abort};
  const uint64_t line = UINT64_C(0x1aabbccdc), flag = line_flag_at(line, line_flag_mask(32));
  static struct prim_fragment data;
  static _Alignas(128) uint8_t wire[256], expected[256];
  (void)state;
  assert_true(flag == line + 1);
  for (uint32_t i = 0; i < 240; i++) data.data[i] = (uint8_t)(i + 1);
  const uint32_t short_flag = (uint32_t)flag;
  for (uint32_t half = 0; half < 4; half++) {
    memcpy(&expected[half * 8], &data.data[half * 4], 4);
    memcpy(&expected[half * 8 + 4], &short_flag, 4);
  }
  prim_line_store(&prim, LINE_LL, wire, 2, flag, &data);
  assert_memory_equal(wire, expected, 32);
  assert_true(prim_line_ready(&prim, LINE_LL, wire, 2, flag));
  wire[7] ^= 1; /* either half's flag counts */
  assert_false(prim_line_ready(&prim, LINE_LL, wire, 2, flag));
  for (uint32_t i = 0; i < 2; i++) {
    memcpy(&expected[i * 128], &data.data[i * 120], 120);
    memcpy(&expected[i * 128 + 120], &flag, 8);
  }
  prim_line_store(&prim, LINE_LL128, wire, 2, flag, &data);
  assert_memory_equal(wire, expected, 256);
  assert_true(prim_line_ready(&prim, LINE_LL128, wire, 2, flag));
  wire[127] ^= 1; /* the flag's highest byte */
  assert_false(prim_line_ready(&prim, LINE_LL128, wire, 2, flag));
}

/* ---- rings ---- */

/* NCCL's primitives, as actions of a step. */
enum {
  PRIMITIVE = STEP_RECV | STEP_SEND | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP,
  SEND = STEP_COPY_IN | STEP_SEND,
  COPY_SEND = SEND | STEP_KEEP,
  RECV = STEP_RECV | STEP_KEEP,
  RECV_COPY_SEND = RECV | STEP_SEND,
  RECV_REDUCE_COPY = RECV | STEP_COPY_IN | STEP_REDUCE,
  RECV_REDUCE_SEND = STEP_RECV | SEND | STEP_REDUCE,
  RECV_REDUCE_COPY_SEND = RECV_REDUCE_COPY | STEP_SEND
};

struct call {
  uint32_t primitive;
  uint32_t chunk; /* all-reduce: by index along the ring; else: the rank whose block it is */
};

/* The rank `distance` further along the ring of test_rings, which runs against the ranks' order. */
static uint32_t ring_after(uint32_t rank, uint32_t distance, uint32_t ranks) {
  return (rank + ranks - distance % ranks) % ranks;
}

/* NCCL's calls of one loop, from its ring kernels' descriptions ("Demystifying NCCL", tables of the ring
 * algorithms); returns how many. */
static uint32_t nccl_calls(uint8_t func, uint32_t rank, uint32_t index, uint32_t k, struct call *calls) {
  uint32_t count = 0;
  if (func == FUNC_ALL_REDUCE) {
    calls[count++] = (struct call){SEND, (index + k - 1) % k};
    for (uint32_t j = 2; j < k; j++) calls[count++] = (struct call){RECV_REDUCE_SEND, (index + k - j) % k};
    calls[count++] = (struct call){RECV_REDUCE_COPY_SEND, index};
    for (uint32_t j = 1; j + 1 < k; j++) calls[count++] = (struct call){RECV_COPY_SEND, (index + k - j) % k};
    calls[count++] = (struct call){RECV, (index + 1) % k};
  } else if (func == FUNC_ALL_GATHER) {
    calls[count++] = (struct call){COPY_SEND, rank};
    for (uint32_t j = 1; j + 1 < k; j++)
      calls[count++] = (struct call){RECV_COPY_SEND, ring_after(rank, k - j, k)};
    calls[count++] = (struct call){RECV, ring_after(rank, 1, k)};
  } else {
    calls[count++] = (struct call){SEND, ring_after(rank, k - 1, k)};
    for (uint32_t j = 2; j < k; j++)
      calls[count++] = (struct call){RECV_REDUCE_SEND, ring_after(rank, k - j, k)};
    calls[count++] = (struct call){RECV_REDUCE_COPY, rank};
  }
  return count;
}

/* One loop of a work on the only channel: all calls, and how many of them send and receive. */
static void expect_loop(const struct work *work) {
  struct call calls[2 * RANKS_MAX];
  struct algo_iter iter;
  struct step step;
  const uint32_t k = work->rank_count;
  const uint32_t count = nccl_calls(work->func, work->rank, work->ring_index, k, calls);
  const bool all_reduce = work->func == FUNC_ALL_REDUCE;
  uint32_t sends = 0, receives = 0;
  assert_int_equal(count, all_reduce ? 2 * k - 1 : k);
  algo_begin(&iter, work);
  for (uint32_t i = 0; i < count; i++) {
    assert_true(algo_next(&iter, work, &step));
    assert_int_equal(step.flags & PRIMITIVE, calls[i].primitive);
    assert_int_equal(step.chunk_index, calls[i].chunk);
    assert_int_equal(step.count, work->chunk_count);
    sends += (step.flags & STEP_SEND) != 0;
    receives += (step.flags & STEP_RECV) != 0;
  }
  assert_false(algo_next(&iter, work, &step));
  assert_int_equal(sends, all_reduce ? 2 * (k - 1) : k - 1);
  assert_int_equal(receives, sends);
}

/* A ring of one loop on one channel. Counted are a rank's calls of primitives: 2k-1 for all-reduce, k for
 * all-gather and reduce-scatter, of which all but one send and all but one receive: 2(k-1) and k-1 messages
 * in each direction. Over Simple each takes 4 of the 8 slots, in two slices ("Demystifying NCCL"). */
static void test_rings(void **state) {
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE, FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER};
  static uint32_t ring[RANKS_MAX];
  (void)state;
  for (uint32_t k = 2; k <= RANKS_MAX; k++) {
    struct figures f;
    figures_open(&f, k, PROTO_SIMPLE);
    for (uint32_t i = 0; i < k; i++) ring[i] = ring_after(0, i, k);
    f.graph.ring[0] = ring;
    f.request.settings.limits.channel_count = 1;
    for (uint32_t i = 0; i < 3 * k; i++) {
      const size_t chunks = funcs[i / k] == FUNC_ALL_REDUCE ? k : 1;
      const struct plan_op op = op_of(funcs[i / k], 0, chunks * 4 * STEP_BYTES);
      struct plan plan;
      figures_plan(&f, i % k, &op, 1, &plan);
      assert_int_equal(plan.work_count, 1);
      assert_int_equal(plan.works[0].chunk_count, 4 * STEP_BYTES);
      assert_true(plan.works[0].chunk_steps == 4 && plan.works[0].slice_steps == 2);
      expect_loop(&plan.works[0]);
      plan_free(&plan);
    }
    figures_close(&f);
  }
}

/* The same source: rings of broadcast and reduce move chunks of one step, and other protocols have no other
 * kind. */
static void test_steps_of_chunks(void **state) {
  (void)state;
  for (uint8_t func = 0; func <= FUNC_ALL_REDUCE; func++)
    for (uint32_t proto = 0; proto < PROTO_COUNT; proto++) {
      const struct plan_op op = op_of(func, 0, 64 * (size_t)MIB);
      const bool long_chunks = proto == PROTO_SIMPLE && func >= FUNC_ALL_GATHER;
      struct figures f;
      struct plan plan;
      figures_open(&f, 4, proto);
      figures_plan(&f, 1, &op, 1, &plan);
      assert_int_equal(plan.works[0].chunk_steps, long_chunks ? 4 : 1);
      assert_int_equal(plan.works[0].slice_steps, long_chunks ? 2 : 1);
      plan_free(&plan);
      figures_close(&f);
    }
}

/* ---- double binary trees ---- */

static uint32_t log2_up(uint32_t value) {
  uint32_t log = 0;
  while (1u << log < value) log++;
  return log;
}

static bool is_interior(const struct graph_places *place) {
  return place->down[0] != GRAPH_NONE || place->down[1] != GRAPH_NONE;
}

/* One tree spans all places: one root, every other place is one child of one parent, and every way up ends
 * at the root. Its height is the logarithm, rounded up. */
static void expect_tree(uint32_t count, bool second, struct graph_places *tree) {
  uint32_t roots = 0, children = 0, height = 0;
  for (uint32_t place = 0; place < count; place++) tree[place] = graph_double_tree(count, place, second);
  for (uint32_t place = 0; place < count; place++) {
    uint32_t depth = 0;
    for (uint32_t i = 0; i < 2; i++) {
      if (tree[place].down[i] == GRAPH_NONE) continue;
      assert_true(tree[place].down[i] < count);
      assert_int_equal(tree[tree[place].down[i]].up, place);
      assert_int_equal(tree[tree[place].down[i]].first, i == 0);
      children += 1;
    }
    roots += tree[place].up == GRAPH_NONE;
    if (tree[place].up == GRAPH_NONE) assert_true(tree[place].down[0] == GRAPH_NONE);
    for (uint32_t at = place; tree[at].up != GRAPH_NONE; at = tree[at].up) assert_true(++depth < count);
    height = depth > height ? depth : height;
  }
  assert_int_equal(roots, 1);
  assert_int_equal(children, count - 1);
  assert_int_equal(height, log2_up(count));
}

/* NVIDIA's "Massively Scale Your Deep Learning Training with NCCL 2.4": the trees are complementary, so that
 * each rank is interior in one and a leaf in the other. This holds for even counts. For odd ones, whose
 * second tree is shifted by one and not mirrored, place 0 alone is interior in both: as the first tree's
 * root, which has one child, and as a place with children in the second. */
static void test_double_trees(void **state) {
  static struct graph_places trees[2][TREE_MAX];
  (void)state;
  for (uint32_t count = 1; count <= TREE_MAX; count++) {
    for (uint32_t tree = 0; tree < 2; tree++) expect_tree(count, tree == 1, trees[tree]);
    for (uint32_t place = 0; count > 1 && place < count; place++) {
      const uint32_t interior = (uint32_t)is_interior(&trees[0][place]) + is_interior(&trees[1][place]);
      assert_int_equal(interior, count % 2 == 1 && place == 0 ? 2 : 1);
    }
    assert_int_equal(trees[0][0].up, GRAPH_NONE);
    assert_int_equal(trees[1][count % 2 == 0 ? count - 1 : count > 1].up, GRAPH_NONE);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_buffers),         cmocka_unit_test(test_message_of_4_mib),
      cmocka_unit_test(test_message_parts),   cmocka_unit_test(test_channels_of_pairs),
      cmocka_unit_test(test_batches),         cmocka_unit_test(test_bytes_of_lines),
      cmocka_unit_test(test_layout_of_lines), cmocka_unit_test(test_rings),
      cmocka_unit_test(test_steps_of_chunks), cmocka_unit_test(test_double_trees)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
