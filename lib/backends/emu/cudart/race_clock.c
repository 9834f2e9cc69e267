/* race_clock.c: vector clocks, sparse and shared until they change, and joins, which stand for the clocks of
 * all ranks of an NCCL call. Entries that the host has waited for are left out, so a clock has no more of
 * them than there are streams with work that nobody has waited for. */
#include "backends/emu/cudart/race_impl.h"

#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/param.h"

/* Joins that one question visits at most; then the order counts as unknown. */
#define JOINS_VISITED_MOST 64

uint64_t *race_passed, *race_epochs;
static uint32_t stream_count, stream_capacity;
static bool given_up;
static int wanted = -1; /* < 0: not read */
static uint64_t visit, join_serial;
static struct race_join *dying; /* by next; freed one by one, since each may hold a long chain of others */

bool race_is_on(void) {
  if (wanted < 0) wanted = param_int(PARAM_TUTTI_RACE_CHECK) != 0;
  return wanted > 0 && !given_up;
}

void race_give_up(void) {
  if (!given_up) log_warn("the check for races ends: out of memory");
  given_up = true;
}

void race_reset(void) {
  given_up = false;
  wanted = -1;
}

static bool streams_grow(void) {
  const uint64_t count = (uint64_t)stream_count + 2;
  if (count <= stream_capacity) return true;
  if (!array_resize(&race_passed, 2 * count, sizeof *race_passed) ||
      !array_resize(&race_epochs, 2 * count, sizeof *race_epochs))
    return false;
  for (uint64_t i = stream_capacity; i < 2 * count; i++) race_passed[i] = race_epochs[i] = 0;
  stream_capacity = (uint32_t)(2 * count);
  return true;
}

uint32_t race_stream_number(void) {
  if (streams_grow()) return ++stream_count;
  race_give_up();
  return 0;
}

void race_forget_passed(void) {
  for (uint32_t i = 1; i <= stream_count; i++) race_passed[i] = race_epochs[i];
}

/* ---- the life of clocks and joins ---- */

static void clock_clear(struct race_clock *clock) {
  for (uint32_t i = 0; i < clock->join_count; i++) {
    struct race_join *join = clock->joins[i];
    if (--join->reference_count != 0) continue;
    join->next = dying;
    dying = join;
  }
  os_free(clock->entries);
  os_free(clock->joins);
  memset(clock, 0, sizeof *clock);
}

static void bury(void) {
  while (dying != NULL) {
    struct race_join *join = dying;
    dying = join->next;
    clock_clear(&join->clock);
    os_free(join);
  }
}

struct race_clock *race_clock_keep(struct race_clock *clock) {
  if (clock != NULL) clock->reference_count += 1;
  return clock;
}

void race_clock_drop(struct race_clock *clock) {
  if (clock == NULL || --clock->reference_count != 0) return;
  clock_clear(clock);
  os_free(clock);
  bury();
}

void race_join_drop(struct race_join *join) {
  if (--join->reference_count != 0) return;
  join->next = dying;
  dying = join;
  bury();
}

struct race_join *race_join_new(uint64_t family, uint64_t number) {
  struct race_join *join = (struct race_join *)os_alloc(sizeof *join);
  if (join == NULL) {
    race_give_up();
    return NULL;
  }
  join->reference_count = 1;
  join->family = family;
  join->number = number;
  join->serial = ++join_serial;
  return join;
}

static bool entries_copy(struct race_clock *to, const struct race_clock *from) {
  if (!array_grow(&to->entries, &to->entry_capacity, from->entry_count, sizeof *to->entries) ||
      !array_grow(&to->joins, &to->join_capacity, from->join_count, sizeof *to->joins))
    return false;
  for (uint32_t i = 0; i < from->entry_count; i++) {
    if (!race_has_passed(from->entries[i].stream, from->entries[i].epoch))
      to->entries[to->entry_count++] = from->entries[i];
  }
  for (uint32_t i = 0; i < from->join_count; i++) {
    to->joins[i] = from->joins[i];
    to->joins[i]->reference_count += 1;
  }
  to->join_count = from->join_count;
  return true;
}

/* The clock, with no other reference to it; NULL if memory is out. */
static struct race_clock *clock_own(struct race_clock **clock) {
  if (*clock != NULL && (*clock)->reference_count == 1) return *clock;
  struct race_clock *own = (struct race_clock *)os_alloc(sizeof *own);
  if (own == NULL || (*clock != NULL && !entries_copy(own, *clock))) {
    if (own != NULL) clock_clear(own);
    os_free(own);
    race_give_up();
    return NULL;
  }
  own->reference_count = 1;
  race_clock_drop(*clock);
  return *clock = own;
}

/* ---- merging ---- */

/* The first entry of this stream or a later one. */
static uint32_t entry_place(const struct race_clock *clock, uint32_t stream) {
  uint32_t low = 0, high = clock->entry_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (clock->entries[middle].stream < stream) low = middle + 1;
    else high = middle;
  }
  return low;
}

static uint64_t entry_epoch(const struct race_clock *clock, uint32_t stream) {
  const uint32_t place = entry_place(clock, stream);
  return place < clock->entry_count && clock->entries[place].stream == stream ? clock->entries[place].epoch
                                                                              : 0;
}

static void entry_add(struct race_clock *clock, uint32_t stream, uint64_t epoch) {
  if (epoch == 0 || race_has_passed(stream, epoch)) return;
  const uint32_t place = entry_place(clock, stream);
  if (place < clock->entry_count && clock->entries[place].stream == stream) {
    if (clock->entries[place].epoch < epoch) clock->entries[place].epoch = epoch;
    return;
  }
  if (!array_grow(&clock->entries, &clock->entry_capacity, (uint64_t)clock->entry_count + 1,
                  sizeof *clock->entries)) {
    race_give_up();
    return;
  }
  memmove(&clock->entries[place + 1], &clock->entries[place],
          (clock->entry_count - place) * sizeof *clock->entries);
  clock->entries[place] = (struct race_entry){epoch, stream};
  clock->entry_count += 1;
}

/* Merges from the back, within the one array. */
static void entries_merge(struct race_clock *to, const struct race_clock *from) {
  if (from->entry_count < 4) {
    for (uint32_t i = 0; i < from->entry_count; i++)
      entry_add(to, from->entries[i].stream, from->entries[i].epoch);
    return;
  }
  const uint64_t most = (uint64_t)to->entry_count + from->entry_count;
  if (!array_grow(&to->entries, &to->entry_capacity, most, sizeof *to->entries)) {
    race_give_up();
    return;
  }
  uint32_t a = to->entry_count, b = from->entry_count, place = (uint32_t)most;
  while (b > 0) {
    const struct race_entry other = from->entries[b - 1];
    if (a > 0 && to->entries[a - 1].stream > other.stream) {
      to->entries[--place] = to->entries[--a];
      continue;
    }
    b -= 1;
    struct race_entry merged = other;
    if (a > 0 && to->entries[a - 1].stream == other.stream && to->entries[--a].epoch > merged.epoch)
      merged = to->entries[a];
    if (!race_has_passed(merged.stream, merged.epoch)) to->entries[--place] = merged;
  }
  memmove(to->entries + a, to->entries + place, (most - place) * sizeof *to->entries);
  to->entry_count = a + (uint32_t)(most - place);
}

static void join_insert(struct race_clock *clock, struct race_join *join) {
  for (uint32_t i = 0; i < clock->join_count; i++) {
    struct race_join *other = clock->joins[i];
    if (other->family != join->family) continue;
    if (other->serial >= join->serial) return;
    join->reference_count += 1;
    clock->joins[i] = join;
    race_join_drop(other);
    return;
  }
  if (!array_grow(&clock->joins, &clock->join_capacity, (uint64_t)clock->join_count + 1,
                  sizeof *clock->joins)) {
    race_give_up();
    return;
  }
  join->reference_count += 1;
  clock->joins[clock->join_count++] = join;
}

static void clock_merge(struct race_clock *to, const struct race_clock *from) {
  entries_merge(to, from);
  for (uint32_t i = 0; i < from->join_count; i++) join_insert(to, from->joins[i]);
}

void race_clock_add_clock(struct race_clock **clock, const struct race_clock *from) {
  if (from == NULL || *clock == from) return;
  if (from->entry_count == 0 && from->join_count == 0) return;
  struct race_clock *own = clock_own(clock);
  if (own != NULL) clock_merge(own, from);
}

void race_clock_add(struct race_clock **clock, const struct race_point *point) {
  race_clock_add_clock(clock, point->clock);
  if (point->stream == 0 || race_has_passed(point->stream, point->epoch)) return;
  if (*clock != NULL && entry_epoch(*clock, point->stream) >= point->epoch) return;
  struct race_clock *own = clock_own(clock);
  if (own != NULL) entry_add(own, point->stream, point->epoch);
}

void race_clock_add_join(struct race_clock **clock, struct race_join *join) {
  struct race_clock *own = clock_own(clock);
  if (own != NULL) join_insert(own, join);
}

bool race_clock_is_open(const struct race_clock *clock) {
  for (uint32_t i = 0; clock != NULL && i < clock->join_count; i++)
    if (clock->joins[i]->missing != 0) return true;
  return false;
}

static bool entries_passed(const struct race_clock *clock) {
  for (uint32_t i = 0; i < clock->entry_count; i++)
    if (!race_has_passed(clock->entries[i].stream, clock->entries[i].epoch)) return false;
  return true;
}

void race_clock_prune(struct race_clock **clock) {
  if (*clock == NULL || !entries_passed(*clock)) return;
  for (uint32_t i = 0; i < (*clock)->join_count; i++) {
    const struct race_join *join = (*clock)->joins[i];
    if (join->missing != 0 || join->clock.join_count != 0 || !entries_passed(&join->clock)) return;
  }
  race_clock_drop(*clock);
  *clock = NULL;
}

/* ---- joins ---- */

/* Takes over what complete joins contain, so that no chain of them goes back in time. */
static void join_settle(struct race_join *join) {
  for (uint32_t i = 0; i < join->clock.join_count;) {
    struct race_join *inner = join->clock.joins[i];
    if (inner->missing != 0 && inner != join) {
      i += 1;
      continue;
    }
    join->clock.joins[i] = join->clock.joins[--join->clock.join_count];
    if (inner != join) clock_merge(&join->clock, &inner->clock);
    inner->reference_count -= 1;
    if (inner->reference_count == 0) {
      inner->next = dying;
      dying = inner;
    }
  }
}

void race_join_bring(struct race_join *join, const struct race_point *point) {
  entry_add(&join->clock, point->stream, point->epoch);
  if (point->clock != NULL) clock_merge(&join->clock, point->clock);
  if (--join->missing != 0) return;
  join_settle(join);
  bury();
}

/* ---- questions ---- */

/* The joins that a question has still to look into. */
struct search {
  struct race_join *joins[JOINS_VISITED_MOST];
  uint32_t count, seen;
  bool overflow;
};

static void search_add(struct search *search, const struct race_clock *clock) {
  for (uint32_t i = 0; i < clock->join_count; i++) {
    struct race_join *join = clock->joins[i];
    if (join->visited == visit) continue;
    join->visited = visit;
    if (search->seen == JOINS_VISITED_MOST) {
      search->overflow = true;
      return;
    }
    search->seen += 1;
    search->joins[search->count++] = join;
  }
}

enum race_order race_is_before(uint32_t stream, uint64_t epoch, const struct race_point *point) {
  if (stream == point->stream ? epoch <= point->epoch : race_has_passed(stream, epoch)) return RACE_ORDERED;
  if (point->clock == NULL) return RACE_UNORDERED;
  if (entry_epoch(point->clock, stream) >= epoch) return RACE_ORDERED;
  struct search search = {.count = 0};
  bool open = false;
  visit += 1;
  search_add(&search, point->clock);
  while (search.count > 0) {
    const struct race_join *join = search.joins[--search.count];
    if (entry_epoch(&join->clock, stream) >= epoch) return RACE_ORDERED;
    open = open || join->missing != 0;
    search_add(&search, &join->clock);
  }
  return open || search.overflow ? RACE_UNKNOWN : RACE_UNORDERED;
}

void race_host_set(uint32_t stream, uint64_t epoch) {
  if (stream != 0 && race_passed[stream] < epoch) race_passed[stream] = epoch;
}

static void host_add_entries(const struct race_clock *clock) {
  for (uint32_t i = 0; i < clock->entry_count; i++)
    race_host_set(clock->entries[i].stream, clock->entries[i].epoch);
}

void race_host_add(const struct race_clock *clock) {
  if (clock == NULL) return;
  struct search search = {.count = 0};
  host_add_entries(clock);
  visit += 1;
  search_add(&search, clock);
  while (search.count > 0) {
    const struct race_join *join = search.joins[--search.count];
    host_add_entries(&join->clock);
    search_add(&search, &join->clock);
  }
  if (search.overflow) emu_race_forget();
}
