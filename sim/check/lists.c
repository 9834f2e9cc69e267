/* lists.c: lists of one rank that wait for each other's steps. A list's progress is a queue of ticks, one per
 * step, and a wait is a blocking read of the n-th tick. Each list records which steps of the others it knows
 * to have ended, as of each of its own steps that waited; so a wait passes on what the other list knew at the
 * step that is waited for, and nothing that happened later in this run. */
#include <string.h>

#include "check/engine.h"

/* For all lists of a run together: many times what realistic files need. */
#define CLOCK_BYTES_MAX (UINT64_C(1) << 28)

bool lane_has_list(const struct check_lane *lane) { return algo_family(lane->work) == FAMILY_LIST; }

static void lanes_of_rank(const struct check_engine *engine, uint32_t rank, uint32_t *first, uint32_t *end) {
  const struct block *blocks = &engine->blocks[(size_t)rank * engine->channel_count];
  const struct block *last = &blocks[engine->channel_count - 1];
  *first = blocks[0].first_lane;
  *end = last->first_lane + last->lane_count;
}

struct check_lane *list_named(struct check_engine *engine, const struct check_lane *lane, uint32_t number) {
  uint32_t at, end;
  for (lanes_of_rank(engine, lane->rank, &at, &end); at < end; at++) {
    const struct work *work = engine->lanes[at].work;
    if (lane_has_list(&engine->lanes[at]) && work->role == number &&
        work->op_sequence == lane->work->op_sequence)
      return &engine->lanes[at];
  }
  return NULL;
}

static const uint64_t *clock_now(const struct check_lane *lane) {
  return lane->clock_count > 0 ? lane->clocks[lane->clock_count - 1].ended : NULL;
}

/* What the list knew when `count` of its steps had ended; NULL means nothing. */
static const uint64_t *clock_as_of(const struct check_lane *lane, uint64_t count) {
  uint32_t low = 0, high = lane->clock_count; /* clocks of steps below `count` */
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (lane->clocks[middle].step < count) low = middle + 1;
    else high = middle;
  }
  return low > 0 ? lane->clocks[low - 1].ended : NULL;
}

static bool clocks_reserve(struct check_engine *engine, struct check_lane *lane) {
  if (lane->clock_count < lane->clock_capacity) return true;
  const uint32_t capacity = lane->clock_capacity ? 2 * lane->clock_capacity : 4;
  struct list_clock *clocks = (struct list_clock *)arena_take(&engine->arena, capacity * sizeof *clocks);
  if (!clocks) return engine_out_of_memory(engine);
  if (lane->clock_count > 0) memcpy(clocks, lane->clocks, lane->clock_count * sizeof *clocks);
  lane->clocks = clocks;
  lane->clock_capacity = capacity;
  return true;
}

uint64_t list_known(const struct check_engine *engine, const struct check_lane *lane,
                    const struct check_lane *other) {
  const uint64_t *now = clock_now(lane);
  uint32_t first, end;
  if (!now) return 0;
  lanes_of_rank(engine, lane->rank, &first, &end);
  return now[(uint32_t)(other - engine->lanes) - first];
}

/* Adds what the other list knew. */
bool list_learn(struct check_engine *engine, struct check_lane *lane, const struct check_lane *other,
                uint64_t count) {
  const uint64_t *now = clock_now(lane);
  uint32_t first, end;
  lanes_of_rank(engine, lane->rank, &first, &end);
  const uint32_t place = (uint32_t)(other - engine->lanes) - first, lists = end - first;
  if (other == lane || (now && now[place] >= count)) return true;
  engine->clock_bytes += lists * sizeof *now;
  if (engine->clock_bytes > CLOCK_BYTES_MAX)
    return engine_fail(engine, CHECK_RESOURCES, lane, UINT32_MAX,
                       "waits once more than the checker can keep; take a smaller count");
  uint64_t *ended = (uint64_t *)arena_take(&engine->arena, lists * sizeof *ended);
  if (!ended || !clocks_reserve(engine, lane)) return engine_out_of_memory(engine);
  const uint64_t *theirs = clock_as_of(other, count);
  for (uint32_t i = 0; i < lists; i++) {
    const uint64_t known = now ? now[i] : 0, told = theirs ? theirs[i] : 0;
    ended[i] = known > told ? known : told;
  }
  if (ended[place] < count) ended[place] = count;
  struct list_clock *clock = &lane->clocks[lane->clock_count++];
  clock->step = lane->step_number;
  clock->ended = ended;
  return true;
}

void list_wait(struct check_engine *engine, struct check_lane *lane, struct check_lane *other) {
  lane->next_waiter = other->first_waiter;
  other->first_waiter = (uint32_t)(lane - engine->lanes) + 1;
}

void list_report(struct check_engine *engine, struct check_lane *lane) {
  uint32_t at = lane->first_waiter;
  lane->first_waiter = 0;
  while (at != 0) {
    const uint32_t index = at - 1;
    at = engine->lanes[index].next_waiter;
    network_push(engine, index);
  }
}

bool list_knows(const struct check_engine *engine, const struct check_lane *lane,
                const struct check_lane *before, uint64_t step) {
  const uint64_t *now = clock_now(lane);
  uint32_t first, end;
  if (!now || before->rank != lane->rank) return false;
  lanes_of_rank(engine, lane->rank, &first, &end);
  return now[(uint32_t)(before - engine->lanes) - first] > step;
}
