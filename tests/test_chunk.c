/* test_chunk.c: the arithmetic from bytes to channels, loops, chunks and slices: golden values of NCCL's
 * distribution, and for all small inputs that parts cover the whole without overlap and fit their slots. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "schedule/chunk.h"
#include "schedule/ring.h"

/* ---- over the channels ---- */

static struct chunk_cursor cursor_begin(size_t traffic_bytes, uint32_t channel_count) {
  const struct chunk_cursor cursor = {0, channel_count, 0, chunk_budget_bytes(traffic_bytes, channel_count)};
  return cursor;
}

static struct chunk_split split_alone(size_t count, uint32_t element_bytes, size_t weight,
                                      uint32_t channel_count) {
  struct chunk_cursor cursor =
      cursor_begin(chunk_traffic_bytes(count * element_bytes, weight), channel_count);
  return chunk_split_next(&cursor, count, element_bytes, weight);
}

static void expect_split(struct chunk_split split, uint32_t channel_high, size_t low, size_t middle,
                         size_t high) {
  assert_int_equal(split.channel_low, 0);
  assert_int_equal(split.channel_high, channel_high);
  assert_int_equal(split.count_low, low);
  assert_int_equal(split.count_middle, middle);
  assert_int_equal(split.count_high, high);
}

static void test_split_golden(void **state) {
  (void)state;
  expect_split(split_alone(262144, 4, 2, 4), 3, 65536, 65536, 65536);
  expect_split(split_alone(300000, 4, 2, 4), 3, 77824, 77824, 66528);
  expect_split(split_alone(1000, 4, 2, 4), 0, 1000, 0, 0);
  expect_split(split_alone(10000000, 2, 2, 16), 15, 630784, 630784, 538240);
}

/* A task's parts follow each other on its channels, none is empty, and each begins at a multiple of the unit.
 */
static void expect_cover(const struct chunk_split *split, size_t count, uint32_t element_bytes,
                         size_t weight) {
  const size_t unit_elements =
      size_round_up(size_div_up(CHUNK_UNIT_TRAFFIC_BYTES, weight), 16) / element_bytes;
  size_t covered = 0, offset, part;
  for (uint32_t channel = split->channel_low; channel <= split->channel_high; channel++) {
    chunk_split_part(split, channel, &offset, &part);
    assert_int_equal(offset, covered);
    assert_int_equal(offset % unit_elements, 0);
    assert_true(part > 0);
    covered += part;
  }
  assert_int_equal(covered, count);
}

/* Three tasks in sequence: each continues where the one before ended, on its last channel or on the next one,
 * and every channel except the last has reached its budget, except for the last units of tasks, which count
 * as whole units. */
static void expect_tasks(const size_t counts[3], uint32_t element_bytes, size_t weight,
                         uint32_t channel_count) {
  size_t traffic = 0, loads[16] = {0}, offset, part;
  for (int i = 0; i < 3; i++) traffic += chunk_traffic_bytes(counts[i] * element_bytes, weight);
  struct chunk_cursor cursor = cursor_begin(traffic, channel_count);
  const size_t unit_traffic = size_round_up(size_div_up(CHUNK_UNIT_TRAFFIC_BYTES, weight), 16) * weight;
  uint32_t last = 0;
  for (int i = 0; i < 3; i++) {
    const struct chunk_split split = chunk_split_next(&cursor, counts[i], element_bytes, weight);
    assert_true(split.channel_low == last || split.channel_low == last + 1);
    assert_true(split.channel_high < channel_count);
    assert_int_equal(cursor.channel_index, split.channel_high);
    expect_cover(&split, counts[i], element_bytes, weight);
    for (uint32_t channel = split.channel_low; channel <= split.channel_high; channel++) {
      chunk_split_part(&split, channel, &offset, &part);
      loads[channel] += chunk_traffic_bytes(part * element_bytes, weight);
    }
    last = split.channel_high;
  }
  for (uint32_t channel = 0; channel < last; channel++)
    assert_true(loads[channel] + 3 * unit_traffic >= cursor.budget_bytes);
}

/* Counts at and next to multiples of the unit. */
static size_t count_near(size_t unit_elements, size_t index) {
  const size_t units = index / 3;
  return index % 3 == 0 ? units * unit_elements + 1 : (units + 1) * unit_elements - (index % 3 - 1);
}

static void test_split_exhaustive(void **state) {
  static const size_t weights[] = {1, 2, 3, 8, 17, 4 * 17};
  (void)state;
  for (uint32_t channels = 1; channels <= 9; channels++)
    for (size_t w = 0; w < 6; w++)
      for (size_t index = 0; index < 18 * 18 * 18; index++) {
        const uint32_t element_bytes = 1u << (index + channels) % 4;
        const size_t unit =
            size_round_up(size_div_up(CHUNK_UNIT_TRAFFIC_BYTES, weights[w]), 16) / element_bytes;
        const size_t counts[3] = {count_near(unit, index % 18), count_near(unit, index / 18 % 18),
                                  count_near(unit, index / 324 * 5)};
        expect_tasks(counts, element_bytes, weights[w], channels);
      }
}

/* Eight tasks of one unit each share four channels in pairs; a ninth exceeds the budget and goes on the last
 * channel too. */
static void test_split_pairs(void **state) {
  struct chunk_cursor cursor = cursor_begin(8 * 32768, 4);
  (void)state;
  for (uint32_t i = 0; i < 9; i++) {
    const struct chunk_split split = chunk_split_next(&cursor, 4096, 4, 2);
    assert_int_equal(split.channel_low, i < 8 ? i / 2 : 3);
    assert_int_equal(split.channel_high, split.channel_low);
    assert_int_equal(split.count_low, 4096);
    assert_int_equal(cursor.used_bytes, i < 8 ? (i % 2 + 1) * 32768 : 3 * 32768);
  }
}

static void test_split_counts_one_by_one(void **state) {
  (void)state;
  for (size_t count = 1; count <= 40000; count += count < 9000 ? 1 : 7)
    for (uint32_t channels = 1; channels <= 8; channels *= 2) {
      const struct chunk_split split = split_alone(count, 8, 2, channels);
      assert_true(split.channel_low == 0 && split.channel_high < channels);
      expect_cover(&split, count, 8, 2);
    }
}

/* ---- loops ---- */

/* The loops of a part cover it: full chunks up to the last loop, whose chunk is a multiple of sixteen bytes
 * or full. */
static void expect_loops(size_t part_count, size_t chunk_count, uint32_t chunks, uint32_t element_bytes) {
  size_t done = 0, chunk = 0;
  while (done < part_count) {
    chunk = chunk_loop_count(part_count, done, chunk_count, chunks, element_bytes);
    assert_true(chunk > 0 && chunk <= chunk_count);
    assert_true(chunk == chunk_count || chunk * element_bytes % 16 == 0);
    if (part_count - done >= chunk_count * chunks) assert_int_equal(chunk, chunk_count);
    else assert_true(chunk * chunks >= part_count - done);
    done += chunk * chunks;
  }
  assert_true(done < part_count + chunk_count * chunks);
}

static void test_loops(void **state) {
  (void)state;
  for (uint32_t chunks = 1; chunks <= 17; chunks++)
    for (uint32_t element_bytes = 1; element_bytes <= 16; element_bytes *= 2)
      for (size_t chunk_count = 1; chunk_count <= 33; chunk_count += 4)
        for (size_t part_count = 1; part_count <= 2 * chunk_count * chunks + 3; part_count++)
          expect_loops(part_count, chunk_count, chunks, element_bytes);
}

/* ---- steps and slices ---- */

static void test_steps_of_slots(void **state) {
  static const uint32_t expected[9] = {0, 1, 1, 1, 2, 2, 2, 2, 4};
  (void)state;
  for (uint32_t slots = 1; slots <= 8; slots++) {
    assert_int_equal(chunk_steps_of_slots(slots), expected[slots]);
    assert_true(slots == 1 || 2 * chunk_steps_of_slots(slots) <= slots);
  }
}

/* Slices cover the chunk in order, full ones first, none larger than its slots. */
static void expect_slices(size_t count, uint32_t slices, size_t capacity) {
  const size_t slice = chunk_slice_count(count, slices, capacity);
  size_t covered = 0;
  for (uint32_t i = 0; i < slices; i++) {
    const size_t begin = size_min(count, i * slice), part = size_min(count - begin, slice);
    assert_int_equal(begin, covered);
    assert_true(part <= capacity);
    covered += part;
  }
  assert_int_equal(covered, count);
  if (count <= capacity / 32) assert_true(slice >= count);
}

static void test_slices(void **state) {
  (void)state;
  for (uint32_t slices = 1; slices <= 4; slices++)
    for (size_t capacity = 1; capacity <= 200; capacity += capacity < 40 ? 1 : 13)
      for (size_t count = 0; count <= slices * capacity; count++) expect_slices(count, slices, capacity);
  expect_slices(1000, 2, 65536);
  assert_int_equal(chunk_slice_count(1000, 2, 65536), 2048);
  assert_int_equal(chunk_slice_count(100000, 2, 65536), 50000);
  assert_int_equal(chunk_slice_count(100001, 2, 65536), 50016);
}

/* 64 MiB of float on 8 ranks and 16 channels with NCCL's default sizes, from the split to the FIFO's steps.
 */
static void test_all_reduce_64_mib(void **state) {
  static const uint32_t ring[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  const uint32_t chunk_steps = chunk_steps_of_slots(8);
  const size_t count = ((size_t)64 << 20) / 4, step_elements = 524288 / 4;
  const struct chunk_split split = split_alone(count, 4, 2, 16);
  struct work work = {.func = FUNC_ALL_REDUCE,
                      .element_bytes = 4,
                      .rank_count = 8,
                      .count = count,
                      .ring_ranks = ring,
                      .chunk_count = chunk_steps * step_elements};
  struct ring_iter iter;
  struct step step;
  uint32_t steps = 0, sent = 0, received = 0;
  (void)state;
  chunk_split_part(&split, 5, &work.part_offset, &work.part_count);
  assert_int_equal(split.channel_high, 15);
  assert_int_equal(work.part_count, ((size_t)4 << 20) / 4);
  ring_cut(&work);
  ring_begin(&iter, &work);
  while (ring_next(&iter, &work, &step)) {
    assert_int_equal(step.count, 524288 / 4);
    assert_int_equal(chunk_slice_count(step.count, 2, 2 * step_elements), 262144 / 4);
    steps += 1;
    sent += step.flags & STEP_SEND ? chunk_steps : 0;
    received += step.flags & STEP_RECV ? chunk_steps : 0;
  }
  assert_int_equal(steps, 15);
  assert_int_equal(sent, 56);
  assert_int_equal(received, 56);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_split_golden), cmocka_unit_test(test_split_exhaustive),
      cmocka_unit_test(test_split_pairs),  cmocka_unit_test(test_split_counts_one_by_one),
      cmocka_unit_test(test_loops),        cmocka_unit_test(test_steps_of_slots),
      cmocka_unit_test(test_slices),       cmocka_unit_test(test_all_reduce_64_mib)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
