/* test_pat.c: aggregated trees (PAT) against their definition. The steps of all ranks run together on
 * symbols: a value is an element of a block and the set of ranks whose contributions it has, so a lost,
 * doubled or misplaced contribution is found. Links have as few as one slot, and fail if steps share slots
 * against the rules of step.h. Then orders and counts of messages that are known from elsewhere. Ranks share
 * only queues with one producer and one consumer, so one order of events covers all. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "schedule/algo.h"

enum { RANKS = 64, DIMS = 6, BLOCK_MAX = 6, SLOT_TAGGED_WORDS = 2 * RANKS, SLOTS_MAX = 8 };
enum { FINAL = 0x8000 }; /* in addition to the element's number: the operator's last stage was applied */

struct entry {
  uint64_t ranks; /* whose contributions it has; 0: never written */
  uint16_t block, element;
};

struct slot {
  struct entry entries[SLOT_TAGGED_WORDS];
  uint32_t filled;
};

/* One direction of a pair of ranks. */
struct queue {
  struct slot slots[SLOTS_MAX];
  uint32_t posted, freed; /* slots */
  bool write_open, read_open;
  uint32_t posts;
};

static struct {
  uint32_t rank_count, count, slot_count;
  uint8_t func;
  bool in_place;
  struct work works[RANKS];
  struct algo_iter iters[RANKS];
  struct step steps[RANKS];
  bool has_step[RANKS];
  struct queue queues[RANKS][DIMS]; /* by receiver and its link */
  struct entry in[RANKS][RANKS * BLOCK_MAX], out[RANKS][RANKS * BLOCK_MAX];
} world;

static void expect(bool good, uint32_t rank, const char *what) {
  const struct work *work = &world.works[rank];
  if (good) return;
  fail_msg("%s of %u ranks, %u elements, chunk %zu, pack %u, %u slots: rank %u: %s",
           world.func == FUNC_ALL_GATHER ? "all_gather" : "reduce_scatter", world.rank_count, world.count,
           work->chunk_count, work->pack, world.slot_count, rank, what);
}

static struct entry *input_entry(uint32_t rank, size_t offset) {
  if (!world.in_place) return &world.in[rank][offset];
  return &world.out[rank][offset + (world.func == FUNC_ALL_GATHER ? rank * world.count : 0)];
}

/* Reduce-scatter in place: the output is the own block of the input. */
static struct entry *output_entry(uint32_t rank, size_t offset) {
  const bool inside = world.in_place && world.func == FUNC_REDUCE_SCATTER;
  return &world.out[rank][offset + (inside ? rank * world.count : 0)];
}

static void setup(uint8_t func, uint32_t rank_count, uint32_t count, uint32_t chunk_count, uint32_t pack) {
  const uint32_t channel_offset = count / 3; /* a channel's part need not begin at the start of the block */
  memset(&world, 0, sizeof world - sizeof world.in - sizeof world.out);
  world.func = func;
  world.rank_count = rank_count;
  world.count = count + channel_offset;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    struct work *work = &world.works[rank];
    work->func = func;
    work->algo = ALGO_PAT;
    work->rank = rank;
    work->rank_count = rank_count;
    work->count = world.count;
    work->part_offset = channel_offset;
    work->part_count = count;
    work->chunk_count = chunk_count;
    work->pack = pack;
  }
}

static void setup_memory(bool in_place) {
  const uint32_t n = world.rank_count, blocks = world.func == FUNC_ALL_GATHER ? 1 : n;
  world.in_place = in_place;
  memset(world.in, 0, sizeof world.in);
  memset(world.out, 0, sizeof world.out);
  for (uint32_t rank = 0; rank < n; rank++) {
    if (in_place) world.works[rank].flags = WORK_IN_PLACE;
    for (uint32_t i = 0; i < blocks * world.count; i++) {
      struct entry *entry = input_entry(rank, i);
      entry->ranks = UINT64_C(1) << rank;
      entry->block = (uint16_t)(world.func == FUNC_ALL_GATHER ? rank : i / world.count);
      entry->element = (uint16_t)(i % world.count);
    }
    algo_begin(&world.iters[rank], &world.works[rank]);
    world.has_step[rank] = algo_next(&world.iters[rank], &world.works[rank], &world.steps[rank]);
  }
}

/* ---- one step ---- */

static uint32_t link_of(uint32_t set) {
  uint32_t index = 0;
  while (((set >> index) & 1) == 0) index += 1;
  return index;
}

static struct queue *queue_from(uint32_t rank) {
  return &world.queues[rank][link_of(world.steps[rank].recv_links)];
}

/* All-gather sends to the rank before, over its link of the same number; reduce-scatter to the rank after. */
static struct queue *queue_to(uint32_t rank) {
  const uint32_t n = world.rank_count, link = link_of(world.steps[rank].send_links), hop = 1u << link;
  const uint32_t peer = world.func == FUNC_ALL_GATHER ? (rank + n - hop) % n : (rank + hop) % n;
  return &world.queues[peer][link];
}

static bool may_move(uint32_t rank) {
  const struct step *step = &world.steps[rank];
  if ((step->flags & STEP_RECV) && queue_from(rank)->posted == queue_from(rank)->freed) return false;
  if ((step->flags & STEP_SEND) == 0) return true;
  return queue_to(rank)->posted - queue_to(rank)->freed < world.slot_count;
}

static void add(uint32_t rank, struct entry *sum, const struct entry *with, bool reduces) {
  if (sum->ranks == 0) {
    *sum = *with;
    return;
  }
  expect(reduces, rank, "combines where nothing is to be reduced");
  expect(sum->block == with->block && sum->element == with->element, rank, "combines two different elements");
  expect((sum->ranks & with->ranks) == 0, rank, "adds a contribution twice");
  sum->ranks |= with->ranks;
}

/* Element `i` of the step, in all its sources and destinations. */
static struct entry combined(uint32_t rank, uint32_t i) {
  const struct step *step = &world.steps[rank];
  const bool reduces = (step->flags & STEP_REDUCE) != 0;
  struct entry sum = {0, 0, 0};
  if (step->flags & STEP_SEND_ADD) {
    const struct queue *to = queue_to(rank);
    expect(to->write_open, rank, "adds to a slot that is not open");
    sum = to->slots[to->posted % world.slot_count].entries[step->send_place + i];
    expect(sum.ranks != 0, rank, "adds to nothing");
  }
  if (step->flags & STEP_COPY_IN) {
    const bool output = (step->flags & STEP_FROM_OUTPUT) != 0;
    const struct entry *own =
        output ? output_entry(rank, step->in_offset + i) : input_entry(rank, step->in_offset + i);
    expect(own->ranks != 0, rank, "reads what was never written");
    expect(output || own->ranks == UINT64_C(1) << rank, rank, "reads input that was overwritten");
    add(rank, &sum, own, reduces);
  }
  if (step->flags & STEP_RECV) {
    const struct queue *from = queue_from(rank);
    const struct slot *slot = &from->slots[from->freed % world.slot_count];
    expect(step->recv_place + step->count <= slot->filled, rank, "reads more than the slot holds");
    add(rank, &sum, &slot->entries[step->recv_place + i], reduces);
  }
  if (step->flags & STEP_POST_OP) sum.element |= FINAL;
  return sum;
}

static void send_open(uint32_t rank) {
  const struct step *step = &world.steps[rank];
  struct queue *to = queue_to(rank);
  struct slot *slot = &to->slots[to->posted % world.slot_count];
  if (!to->write_open) slot->filled = 0;
  if (step->flags & STEP_SEND_ADD) {
    expect(step->send_place + step->count <= slot->filled, rank, "adds behind what was written");
    return;
  }
  expect(step->send_place == slot->filled, rank, "leaves a gap in a slot");
  slot->filled += (uint32_t)step->count;
  expect(slot->filled <= world.works[rank].pack * world.works[rank].chunk_count, rank, "overfills a slot");
}

static void pass_on(uint32_t rank) {
  const struct step *step = &world.steps[rank];
  if (step->flags & STEP_SEND) {
    struct queue *to = queue_to(rank);
    to->write_open = (step->flags & STEP_SEND_MORE) != 0;
    to->posted += !to->write_open;
    to->posts += !to->write_open;
  }
  if (step->flags & STEP_RECV) {
    struct queue *from = queue_from(rank);
    from->read_open = (step->flags & STEP_RECV_MORE) != 0;
    from->freed += !from->read_open;
  }
}

static void move(uint32_t rank) {
  const struct step *step = &world.steps[rank];
  if (step->flags & STEP_SEND) send_open(rank);
  for (uint32_t i = 0; i < step->count; i++) {
    const struct entry value = combined(rank, i);
    if (step->flags & STEP_KEEP) *output_entry(rank, step->out_offset + i) = value;
    if ((step->flags & STEP_SEND) == 0) continue;
    struct queue *to = queue_to(rank);
    to->slots[to->posted % world.slot_count].entries[step->send_place + i] = value;
  }
  pass_on(rank);
  world.has_step[rank] = algo_next(&world.iters[rank], &world.works[rank], &world.steps[rank]);
}

/* ---- one case ---- */

static void check_rank(uint32_t rank) {
  const uint32_t n = world.rank_count;
  const bool gathers = world.func == FUNC_ALL_GATHER;
  const struct work *work = &world.works[rank];
  expect(!world.has_step[rank], rank, "waits for ever");
  for (uint32_t link = 0; link < DIMS; link++) {
    const struct queue *queue = &world.queues[rank][link];
    expect(queue->posted == queue->freed && !queue->write_open && !queue->read_open, rank,
           "leaves a slot behind");
  }
  for (uint32_t block = 0; block < (gathers ? n : 1); block++)
    for (uint32_t i = 0; i < work->part_count; i++) {
      const uint32_t element = (uint32_t)work->part_offset + i;
      const struct entry *entry = output_entry(rank, block * world.count + element);
      const uint64_t all = ~UINT64_C(0) >> (RANKS - n);
      expect(entry->block == (gathers ? block : rank), rank, "has another block's element");
      expect(entry->element == (gathers ? element : (element | FINAL)), rank, "has another element");
      expect(entry->ranks == (gathers ? UINT64_C(1) << block : all), rank, "lacks contributions");
    }
}

static void run(uint32_t slot_count, bool in_place) {
  world.slot_count = slot_count;
  setup_memory(in_place);
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < world.rank_count; rank++)
      while (world.has_step[rank] && may_move(rank)) {
        move(rank);
        moved = true;
      }
  }
  for (uint32_t rank = 0; rank < world.rank_count; rank++) check_rank(rank);
}

static void test_results(void **state) {
  static const uint8_t funcs[] = {FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER};
  (void)state;
  for (uint32_t n = 2; n <= RANKS; n++)
    for (uint32_t pack = 1; pack == 1 || pack < 2 * (n / 2); pack *= 2)
      for (uint32_t turn = 0; turn < 4; turn++) {
        const uint32_t chunk = turn < 2 ? 1 : 2, count = turn < 2 ? 1 : 3; /* the last chunk is short */
        if (n > 24 && (n + turn) % 4 != 0) continue;
        setup(funcs[turn % 2], n, count, chunk, pack);
        run(1 + (n + pack) % 3, (n + turn / 2) % 2 != 0);
      }
}

/* Every number of ranks with the largest packs, and up to eight slots. */
static void test_small_worlds(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 9; n++)
    for (uint32_t slots = 1; slots <= SLOTS_MAX; slots++)
      for (uint32_t turn = 0; turn < 4; turn++) {
        setup(turn % 2 ? FUNC_ALL_GATHER : FUNC_REDUCE_SCATTER, n, 4, 1 + slots % 4,
              pat_pack(n, turn < 2 ? 1 : 4, 8));
        run(slots, turn / 2 != 0);
      }
}

/* ---- known values ---- */

/* Posts of a rank by link, for blocks and slots of these sizes. */
static void check_posts(uint32_t n, uint32_t block_bytes, uint32_t step_bytes, const uint32_t *posts) {
  static const uint8_t funcs[] = {FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER};
  for (uint32_t i = 0; i < 2; i++) {
    setup(funcs[i], n, 1, 1, pat_pack(n, block_bytes, step_bytes));
    run(2, false);
    for (uint32_t rank = 0; rank < n; rank++)
      for (uint32_t link = 0; link < pat_dims(n); link++)
        assert_int_equal(world.queues[rank][link].posts, posts[link]);
  }
}

static void test_posts(void **state) {
  static const uint32_t tiny_5[] = {2, 1, 1}, ones[] = {1, 1, 1, 1, 1, 1};
  static const uint32_t full_8[] = {4, 2, 1}, full_16[] = {8, 4, 2, 1}, full_64[] = {32, 16, 8, 4, 2, 1};
  static const uint32_t middle_64[] = {8, 4, 2, 1, 1, 1};
  (void)state;
  check_posts(5, 64, 524288, tiny_5);
  check_posts(7, 64, 524288, ones);
  check_posts(8, 64, 524288, ones);
  check_posts(16, 64, 524288, ones);
  check_posts(64, 64, 524288, ones);
  check_posts(8, 524288, 524288, full_8);
  check_posts(16, 524288, 524288, full_16);
  check_posts(64, 524288, 524288, full_64);
  check_posts(64, 131072, 524288, middle_64);
}

/* A step as a line of the tables: links that it receives from and sends to, -1 for none. */
struct line {
  int from, to;
};

static void check_order(uint8_t func, const struct line *lines, uint32_t line_count) {
  setup(func, 8, 1, 1, 1);
  setup_memory(false);
  for (uint32_t i = 0; i < line_count; i++) {
    const struct step *step = &world.steps[3];
    assert_true(world.has_step[3]);
    /* The table's executor reads this from a slot again; here it is in the output. */
    const bool second = func == FUNC_ALL_GATHER && (step->flags & STEP_FROM_OUTPUT) != 0;
    const int from = step->flags & STEP_RECV ? (int)link_of(step->recv_links) : second ? 2 : -1;
    assert_int_equal(from, lines[i].from);
    assert_int_equal(step->flags & STEP_SEND ? (int)link_of(step->send_links) : -1, lines[i].to);
    world.has_step[3] = algo_next(&world.iters[3], &world.works[3], &world.steps[3]);
  }
  assert_false(world.has_step[3]);
}

static void test_order(void **state) {
  static const struct line gather[] = {{-1, 2}, {2, 1}, {1, 0},  {0, -1}, {2, 0}, {0, -1},
                                       {-1, 1}, {1, 0}, {0, -1}, {-1, 0}, {0, -1}};
  static const struct line scatter[] = {{-1, 0}, {0, 1}, {1, 2},  {-1, 0}, {0, 2}, {2, -1},
                                        {-1, 0}, {0, 1}, {1, -1}, {-1, 0}, {0, -1}};
  (void)state;
  check_order(FUNC_ALL_GATHER, gather, 11);
  check_order(FUNC_REDUCE_SCATTER, scatter, 11);
}

static void test_columns(void **state) {
  static const uint32_t of_8[] = {4, 6, 7, 5, 2, 3, 1};
  static const uint32_t of_16[] = {8, 12, 14, 15, 13, 10, 11, 9, 4, 6, 7, 5, 2, 3, 1};
  uint32_t column = 4;
  (void)state;
  for (uint32_t i = 0; i < 7; i++, column = pat_column_down(column)) assert_int_equal(column, of_8[i]);
  assert_int_equal(column, 0);
  column = 8;
  for (uint32_t i = 0; i < 15; i++, column = pat_column_down(column)) assert_int_equal(column, of_16[i]);
  assert_int_equal(column, 0);
}

/* Dependencies that an executor must know before it reads data that the same rank wrote. */
static void test_flags(void **state) {
  static const uint32_t expected[] = {
      STEP_COPY_IN | STEP_SEND,                           /* 3 */
      STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_SEND, /* 2, with 3's sum */
      STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP, /* own, with 2's sum */
      STEP_COPY_IN | STEP_SEND,                           /* 1 */
      STEP_RECV | STEP_COPY_IN | STEP_FROM_OUTPUT | STEP_REDUCE | STEP_KEEP | STEP_POST_OP};
  (void)state;
  setup(FUNC_REDUCE_SCATTER, 4, 1, 1, 1);
  setup_memory(false);
  for (uint32_t i = 0; i < 5; i++) {
    assert_true(world.has_step[0]);
    assert_int_equal(world.steps[0].flags, expected[i]);
    world.has_step[0] = algo_next(&world.iters[0], &world.works[0], &world.steps[0]);
  }
  assert_false(world.has_step[0]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_results), cmocka_unit_test(test_small_worlds),
                                     cmocka_unit_test(test_posts),   cmocka_unit_test(test_order),
                                     cmocka_unit_test(test_columns), cmocka_unit_test(test_flags)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
