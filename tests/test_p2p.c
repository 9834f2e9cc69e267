/* test_p2p.c: point-to-point: every pair of ranks communicates in exactly one round, both ends choose the
 * same channels, parts and chunks cover a message exactly. For all rank counts up to 33 and all divisors as
 * group sizes. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "schedule/p2p.h"

#define RANKS_MAX 33

/* ---- rounds ---- */

static void expect_deltas(uint32_t group_count, const uint32_t *expected) {
  struct p2p_schedule schedule;
  uint32_t round, to, from;
  p2p_schedule_begin(&schedule, 0, group_count, 1);
  for (uint32_t i = 0; i < group_count; i++) {
    assert_true(p2p_schedule_next(&schedule, &round, &to, &from));
    assert_int_equal(round, i);
    assert_int_equal(to, expected[i]);
    assert_int_equal(from, (group_count - expected[i]) % group_count);
  }
  assert_false(p2p_schedule_next(&schedule, &round, &to, &from));
}

static void test_group_deltas(void **state) {
  static const uint32_t of_16[] = {0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8};
  static const uint32_t of_6[] = {0, 1, 3, 2, 5, 4};
  (void)state;
  expect_deltas(16, of_16);
  expect_deltas(6, of_6);
}

/* rounds[a][b]: the round in which a sends to b, computed by a; from[b][a]: the round in which b receives
 * from a, computed by b. */
static void fill_rounds(uint32_t rank_count, uint32_t group_size, int rounds[RANKS_MAX][RANKS_MAX],
                        int from[RANKS_MAX][RANKS_MAX]) {
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    struct p2p_schedule schedule;
    uint32_t round, send_peer, recv_peer, count = 0;
    p2p_schedule_begin(&schedule, rank, rank_count, group_size);
    while (p2p_schedule_next(&schedule, &round, &send_peer, &recv_peer)) {
      assert_int_equal(round, count++);
      assert_true(send_peer < rank_count && recv_peer < rank_count);
      assert_int_equal(rounds[rank][send_peer], -1);
      assert_int_equal(from[rank][recv_peer], -1);
      rounds[rank][send_peer] = (int)round;
      from[rank][recv_peer] = (int)round;
    }
    assert_int_equal(count, rank_count);
    assert_int_equal(rounds[rank][rank], 0);
  }
}

static void test_rounds_meet(void **state) {
  static int rounds[RANKS_MAX][RANKS_MAX], from[RANKS_MAX][RANKS_MAX];
  (void)state;
  for (uint32_t n = 1; n <= RANKS_MAX; n++)
    for (uint32_t group_size = 1; group_size <= n; group_size++) {
      if (n % group_size != 0) continue;
      memset(rounds, -1, sizeof rounds);
      memset(from, -1, sizeof from);
      fill_rounds(n, group_size, rounds, from);
      for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++) assert_true(rounds[a][b] >= 0 && rounds[a][b] == from[b][a]);
    }
}

/* One node: the round is the distance. */
static void test_rounds_of_one_group(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= RANKS_MAX; n++)
    for (uint32_t rank = 0; rank < n; rank++) {
      struct p2p_schedule schedule;
      uint32_t round, to, from;
      p2p_schedule_begin(&schedule, rank, n, n);
      while (p2p_schedule_next(&schedule, &round, &to, &from)) {
        assert_int_equal(to, (rank + round) % n);
        assert_int_equal(from, (rank + n - round) % n);
      }
    }
}

/* ---- channels ---- */

/* Consecutive rounds use all channels before they use one twice, half of the channels apart; parts go to the
 * following channels. */
static void test_channels(void **state) {
  (void)state;
  for (uint32_t channels = 1; channels <= 64; channels *= 2) {
    for (uint32_t round = 0; round < 3 * channels; round++) {
      uint64_t used = 0;
      for (uint32_t part = 0; part < channels; part++) {
        const uint32_t channel = p2p_channel(round, part, channels);
        assert_true(channel < channels);
        assert_int_equal(channel, (p2p_channel(round, 0, channels) + part) % channels);
        used |= UINT64_C(1) << channel;
      }
      assert_true(used == (channels == 64 ? UINT64_MAX : (UINT64_C(1) << channels) - 1));
      assert_int_equal(p2p_channel(round, 0, channels), p2p_channel(round + channels, 0, channels));
    }
    uint64_t bases = 0;
    for (uint32_t round = 0; round < channels; round++)
      bases |= UINT64_C(1) << p2p_channel(round, 0, channels);
    assert_true(bases == (channels == 64 ? UINT64_MAX : (UINT64_C(1) << channels) - 1));
  }
  assert_int_equal(p2p_channel(1, 0, 8), 4);
  assert_int_equal(p2p_channel(3, 0, 8), 6);
  assert_int_equal(p2p_channel(6, 2, 8), 5);
}

/* ---- parts ---- */

static void expect_covers(const struct p2p_split *split, size_t bytes, uint32_t per_peer) {
  size_t covered = 0, offset, count;
  assert_true(split->part_count >= 1 && split->part_count <= per_peer);
  assert_int_equal(split->part_bytes % P2P_PART_ALIGN_BYTES, 0);
  for (uint32_t part = 0; part < split->part_count; part++) {
    p2p_part(split, bytes, part, &offset, &count);
    assert_int_equal(offset, covered);
    assert_true(count <= split->part_bytes);
    covered += count;
  }
  assert_int_equal(covered, bytes);
}

static void expect_parts(size_t bytes, size_t chunk_bytes, uint32_t ranks, uint32_t channels,
                         uint32_t per_peer) {
  const struct p2p_split split = p2p_message_split(bytes, chunk_bytes, ranks, channels, per_peer);
  const struct p2p_split ll = p2p_ll_split(bytes, ranks, channels, per_peer);
  expect_covers(&split, bytes, per_peer);
  expect_covers(&ll, bytes, per_peer);
}

static void test_parts_cover(void **state) {
  static const size_t chunks[] = {1, 16, 4096, 131072, 524288};
  (void)state;
  for (size_t i = 0; i < 5; i++)
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks += 4)
      for (uint32_t channels = 1; channels <= 32; channels *= 2)
        for (uint32_t per_peer = 1; per_peer <= channels; per_peer *= 2)
          for (size_t bytes = 0; bytes < (size_t)1 << 30; bytes += bytes / 5 + 1)
            expect_parts(bytes, chunks[i], ranks, channels, per_peer);
  for (size_t bytes = 0; bytes < 70000; bytes++) expect_parts(bytes, 65536, 2, 16, 8);
}

/* Default sizes of one node: 512 KiB chunks, so parts of at least 64 KiB and, while there are channels, at
 * most 16 MiB. */
static void test_parts_golden(void **state) {
  static const struct {
    size_t bytes;
    uint32_t ranks, parts;
    size_t part_bytes;
  } rows[] = {{0, 8, 1, 0},
              {1, 8, 1, 4096},
              {65536, 8, 1, 65536},
              {65537, 8, 2, 36864},
              {1 << 20, 8, 4, 262144},
              {1 << 20, 32, 1, 1 << 20},
              {(size_t)8 << 20, 32, 32, 262144},
              {((size_t)8 << 20) - 1, 32, 1, (size_t)8 << 20},
              {(size_t)256 << 20, 32, 32, (size_t)8 << 20},
              {(size_t)512 << 20, 8, 32, (size_t)16 << 20},
              {(size_t)1 << 30, 8, 32, (size_t)32 << 20}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const struct p2p_split split = p2p_message_split(rows[i].bytes, 524288, rows[i].ranks, 32, 32);
    assert_int_equal(split.part_count, rows[i].parts);
    assert_int_equal(split.part_bytes, rows[i].part_bytes);
  }
}

/* LL: one channel per 4 KiB, up to twice a peer's share of channels; four times if parts get long; never more
 * than 16, with which a send and a receive are launched by the arguments of a kernel. */
static void test_ll_golden(void **state) {
  static const struct {
    size_t bytes;
    uint32_t ranks, parts;
    size_t part_bytes;
  } rows[] = {{0, 4, 1, 0},         {1, 4, 1, 4096},         {4096, 4, 1, 4096},     {4097, 4, 2, 4096},
              {65536, 4, 16, 4096}, {262144, 4, 16, 16384},  {262145, 4, 16, 20480}, {1 << 20, 4, 16, 65536},
              {65536, 2, 16, 4096}, {65536, 8, 8, 8192},     {262144, 8, 16, 16384}, {65536, 64, 4, 16384},
              {16384, 64, 2, 8192}, {1 << 20, 64, 4, 262144}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const struct p2p_split split = p2p_ll_split(rows[i].bytes, rows[i].ranks, 32, 32);
    assert_int_equal(split.part_count, rows[i].parts);
    assert_int_equal(split.part_bytes, rows[i].part_bytes);
  }
}

/* ---- steps ---- */

static void expect_steps(uint8_t func, size_t part_count, size_t chunk_count, uint32_t flags) {
  const struct work work = {
      .func = func, .part_offset = 12288, .part_count = part_count, .chunk_count = chunk_count};
  struct p2p_iter iter;
  struct step step;
  size_t done = 0;
  uint32_t steps = 0;
  p2p_begin(&iter);
  while (p2p_next(&iter, &work, &step)) {
    assert_int_equal(step.flags, flags);
    assert_int_equal(step.recv_links, func == FUNC_RECV);
    assert_int_equal(step.send_links, func == FUNC_SEND);
    assert_int_equal(step.in_offset, 12288 + done);
    assert_int_equal(step.out_offset, 12288 + done);
    assert_int_equal(step.chunk_index, steps++);
    assert_int_equal(step.count, size_min(chunk_count, part_count - done));
    done += step.count;
  }
  assert_int_equal(done, part_count);
  assert_int_equal(steps, size_max(1, size_div_up(part_count, size_max(1, chunk_count))));
}

/* Both ends take the same number of steps with the same counts; a message of zero bytes takes one step. */
static void test_steps(void **state) {
  (void)state;
  for (size_t chunk_count = 1; chunk_count <= 9; chunk_count++)
    for (size_t part_count = 0; part_count <= 5 * chunk_count + 2; part_count++) {
      expect_steps(FUNC_SEND, part_count, chunk_count, STEP_COPY_IN | STEP_SEND | STEP_SEND_FINAL);
      expect_steps(FUNC_RECV, part_count, chunk_count, STEP_RECV | STEP_KEEP | STEP_RECV_FINAL);
      expect_steps(FUNC_COPY, part_count, chunk_count, STEP_COPY_IN | STEP_KEEP | STEP_POST_OP);
    }
  expect_steps(FUNC_COPY, 0, 0, STEP_COPY_IN | STEP_KEEP | STEP_POST_OP);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_group_deltas),        cmocka_unit_test(test_rounds_meet),
      cmocka_unit_test(test_rounds_of_one_group), cmocka_unit_test(test_channels),
      cmocka_unit_test(test_parts_cover),         cmocka_unit_test(test_parts_golden),
      cmocka_unit_test(test_ll_golden),           cmocka_unit_test(test_steps)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
