/* race_memory.c: for each allocation that operations access, the last write of each byte and the reads since
 * then, as spans of bytes with equal history. Forgets what the host has waited for; an allocation with too
 * many spans is forgotten whole, which loses races but makes none up. */
#include "backends/emu/cudart/race_impl.h"

#include <string.h>

#include "base/array.h"

#define READS_MOST 8    /* of a span: concurrent ones; the oldest is forgotten */
#define SPANS_MOST 4096 /* of an allocation */
#define ROWS_MOST 4096u /* of an access that are noted */
#define BUCKET_BITS 10

struct span {
  size_t begin, end; /* bytes of the allocation */
  struct race_op *write;
  struct race_op *reads[READS_MOST];
  uint32_t read_count;
};

struct memory {
  struct emu_allocation allocation;
  struct span *spans; /* sorted, not overlapping */
  uint32_t count, capacity, trim_at;
  struct memory *next;
};

static struct memory *buckets[1 << BUCKET_BITS];
static uint32_t memory_count, sweep_at = 256;

static struct memory **bucket_of(const void *base) {
  return &buckets[((uint64_t)(uintptr_t)base >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - BUCKET_BITS)];
}

/* ---- spans ---- */

static void reads_clear(struct span *span) {
  for (uint32_t i = 0; i < span->read_count; i++) race_op_drop(span->reads[i]);
  span->read_count = 0;
}

static void span_clear(struct span *span) {
  if (span->write != NULL) race_op_drop(span->write);
  span->write = NULL;
  reads_clear(span);
}

static void span_keep(const struct span *span) {
  if (span->write != NULL) span->write->reference_count += 1;
  for (uint32_t i = 0; i < span->read_count; i++) span->reads[i]->reference_count += 1;
}

static void memory_clear(struct memory *memory) {
  for (uint32_t i = 0; i < memory->count; i++) span_clear(&memory->spans[i]);
  os_free(memory->spans);
  memory->spans = NULL;
  memory->count = memory->capacity = memory->trim_at = 0;
}

/* Forgets accesses that the host has waited for; true if nothing is left. */
static bool span_forget_passed(struct span *span) {
  if (span->write != NULL && race_has_passed(span->write->stream, span->write->write_epoch)) {
    race_op_drop(span->write);
    span->write = NULL;
  }
  for (uint32_t i = 0; i < span->read_count;) {
    struct race_op *read = span->reads[i];
    if (!race_has_passed(read->stream, read->read_epoch)) {
      i += 1;
      continue;
    }
    span->reads[i] = span->reads[--span->read_count];
    race_op_drop(read);
  }
  return span->write == NULL && span->read_count == 0;
}

static void memory_trim(struct memory *memory) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < memory->count; i++)
    if (!span_forget_passed(&memory->spans[i])) memory->spans[left++] = memory->spans[i];
  memory->count = left;
}

/* The first span that ends behind the offset. */
static uint32_t span_place(const struct memory *memory, size_t offset) {
  uint32_t low = 0, high = memory->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (memory->spans[middle].end <= offset) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Replaces `removed` spans, whose references the caller has taken over, by `added` empty ones. */
static bool spans_splice(struct memory *memory, uint32_t place, uint32_t removed, uint32_t added) {
  if (added > removed && !array_grow(&memory->spans, &memory->capacity,
                                     (uint64_t)memory->count + added - removed, sizeof *memory->spans)) {
    race_give_up();
    return false;
  }
  if (added != removed)
    memmove(&memory->spans[place + added], &memory->spans[place + removed],
            (memory->count - place - removed) * sizeof *memory->spans);
  memory->count = memory->count + added - removed;
  memset(&memory->spans[place], 0, added * sizeof *memory->spans);
  return true;
}

/* Makes the offset a border. */
static bool span_cut(struct memory *memory, size_t offset) {
  const uint32_t place = span_place(memory, offset);
  if (place == memory->count || memory->spans[place].begin >= offset) return true;
  const struct span whole = memory->spans[place];
  if (!spans_splice(memory, place, 1, 2)) return false;
  span_keep(&whole);
  memory->spans[place] = memory->spans[place + 1] = whole;
  memory->spans[place].end = memory->spans[place + 1].begin = offset;
  return true;
}

static bool spans_equal(const struct span *one, const struct span *other) {
  return one->end == other->begin && one->write == other->write && one->read_count == other->read_count &&
         memcmp(one->reads, other->reads, one->read_count * sizeof *one->reads) == 0;
}

/* Joins the spans from `first` to `last` with equal neighbours. */
static void spans_coalesce(struct memory *memory, uint32_t first, uint32_t last) {
  if (first > 0) first -= 1;
  for (uint32_t i = first; i + 1 < memory->count && i <= last;) {
    if (!spans_equal(&memory->spans[i], &memory->spans[i + 1])) {
      i += 1;
      continue;
    }
    memory->spans[i].end = memory->spans[i + 1].end;
    span_clear(&memory->spans[i + 1]);
    spans_splice(memory, i + 1, 1, 0);
    if (last > 0) last -= 1;
  }
}

/* ---- an access ---- */

struct access {
  struct race_op *op;
  bool writes;
  const struct race_point *at;
  struct memory *memory;
  size_t begin, end;
};

static bool fits(const struct access *access, struct race_op *other, bool other_writes,
                 const struct span *span) {
  if (other == NULL || other->launch == access->op->launch) return true;
  const uint64_t epoch = other_writes ? other->write_epoch : other->read_epoch;
  if (race_is_before(other->stream, epoch, access->at) == RACE_ORDERED) return true;
  const struct race_pair pair = {
      .first = other,
      .second = access->op,
      .first_writes = other_writes,
      .second_writes = access->writes,
      .at = *access->at,
      .memory = access->memory->allocation,
      .begin = span->begin > access->begin ? span->begin : access->begin,
      .end = span->end < access->end ? span->end : access->end,
  };
  return race_pair_check(&pair);
}

static bool span_fits(const struct access *access, struct span *span) {
  if (!fits(access, span->write, true, span)) return false;
  for (uint32_t i = 0; access->writes && i < span->read_count; i++)
    if (!fits(access, span->reads[i], false, span)) return false;
  return true;
}

/* Reads that are before this one need not be kept: what is ordered behind this one is behind them. */
static void span_read(struct span *span, const struct access *access) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < span->read_count; i++) {
    struct race_op *read = span->reads[i];
    if (read == access->op || race_is_before(read->stream, read->read_epoch, access->at) == RACE_ORDERED)
      race_op_drop(read);
    else span->reads[left++] = read;
  }
  if (left == READS_MOST) {
    race_op_drop(span->reads[0]);
    memmove(span->reads, span->reads + 1, --left * sizeof *span->reads);
  }
  span->reads[left] = access->op;
  span->read_count = left + 1;
  access->op->reference_count += 1;
}

/* One span, without what was there. */
static void note_write(const struct access *access, uint32_t first, uint32_t past) {
  struct memory *memory = access->memory;
  for (uint32_t i = first; i < past; i++) span_clear(&memory->spans[i]);
  if (!spans_splice(memory, first, past - first, 1)) return;
  memory->spans[first].begin = access->begin;
  memory->spans[first].end = access->end;
  memory->spans[first].write = access->op;
  access->op->reference_count += 1;
  spans_coalesce(memory, first, first);
}

/* A span in each gap. */
static void note_read(const struct access *access, uint32_t first) {
  struct memory *memory = access->memory;
  uint32_t place = first;
  for (size_t at = access->begin; at < access->end; place++) {
    if (place == memory->count || memory->spans[place].begin > at) {
      const size_t next = place == memory->count ? access->end : memory->spans[place].begin;
      if (!spans_splice(memory, place, 0, 1)) return;
      memory->spans[place].begin = at;
      memory->spans[place].end = next < access->end ? next : access->end;
    }
    span_read(&memory->spans[place], access);
    at = memory->spans[place].end;
  }
  spans_coalesce(memory, first, place);
}

static bool access_note(const struct access *access) {
  struct memory *memory = access->memory;
  if (memory->count > memory->trim_at) {
    memory_trim(memory);
    if (memory->count > SPANS_MOST) memory_clear(memory);
    memory->trim_at = 2 * memory->count + 16;
  }
  if (!span_cut(memory, access->begin) || !span_cut(memory, access->end)) return true;
  const uint32_t first = span_place(memory, access->begin);
  uint32_t past = first;
  for (; past < memory->count && memory->spans[past].begin < access->end; past++)
    if (!span_fits(access, &memory->spans[past])) return false;
  if (access->writes) note_write(access, first, past);
  else note_read(access, first);
  return true;
}

/* ---- allocations ---- */

static void memory_free(struct memory **link) {
  struct memory *memory = *link;
  *link = memory->next;
  memory_clear(memory);
  os_free(memory);
  memory_count -= 1;
}

/* Drops the allocations that have been freed, and those with no history. */
static void memories_sweep(void) {
  for (uint32_t i = 0; i < 1u << BUCKET_BITS; i++) {
    for (struct memory **link = &buckets[i]; *link != NULL;) {
      struct emu_allocation now;
      memory_trim(*link);
      const bool live = (*link)->count > 0 && emu_memory_find((*link)->allocation.base, &now) &&
                        now.serial == (*link)->allocation.serial;
      if (live) link = &(*link)->next;
      else memory_free(link);
    }
  }
  sweep_at = 2 * memory_count + 256;
}

static struct memory *memory_of(const struct emu_allocation *allocation, bool make) {
  struct memory *memory = *bucket_of(allocation->base);
  while (memory != NULL && memory->allocation.base != allocation->base) memory = memory->next;
  if (memory != NULL && memory->allocation.serial != allocation->serial) {
    memory_clear(memory);
    memory->allocation = *allocation;
  }
  if (memory != NULL || !make) return memory;
  if (memory_count >= sweep_at) memories_sweep();
  memory = (struct memory *)os_alloc(sizeof *memory);
  if (memory == NULL) {
    race_give_up();
    return NULL;
  }
  memory->allocation = *allocation;
  memory->next = *bucket_of(allocation->base);
  memory_count += 1;
  return *bucket_of(allocation->base) = memory;
}

static bool access_rows(struct access *access, size_t offset, const struct race_extent *extent) {
  const size_t left = access->memory->allocation.bytes - offset;
  const bool whole = extent->pitch == extent->width || extent->height == 1;
  const size_t rows = whole ? 1 : extent->height < ROWS_MOST ? extent->height : ROWS_MOST;
  const size_t width = whole ? extent->width * extent->height : extent->width;
  for (size_t row = 0; row < rows && race_is_on(); row++) {
    if (row * extent->pitch >= left) return true;
    access->begin = offset + row * extent->pitch;
    access->end = access->begin + (width < left - row * extent->pitch ? width : left - row * extent->pitch);
    if (!access_note(access)) return false;
  }
  return true;
}

bool race_access(struct race_op *op, const struct race_extent *extent, bool writes,
                 const struct race_point *at) {
  struct emu_allocation allocation;
  if (extent->width == 0 || extent->height == 0 || !emu_memory_find(extent->base, &allocation)) return true;
  struct access access = {.op = op, .writes = writes, .at = at, .memory = memory_of(&allocation, true)};
  if (access.memory == NULL) return true;
  return access_rows(&access, (size_t)((const char *)extent->base - (const char *)allocation.base), extent);
}

bool race_memory_free(const struct emu_allocation *allocation, struct race_op *op,
                      const struct race_point *at) {
  struct memory *memory = memory_of(allocation, false);
  if (memory == NULL) return true;
  const struct access access = {op, true, at, memory, 0, allocation->bytes};
  for (uint32_t i = 0; i < memory->count; i++)
    if (!span_fits(&access, &memory->spans[i])) return false;
  return true;
}

void race_memory_forget(const void *base) {
  for (struct memory **link = bucket_of(base); *link != NULL; link = &(*link)->next) {
    if ((*link)->allocation.base != base) continue;
    memory_free(link);
    return;
  }
}

void race_memory_forget_all(void) {
  for (uint32_t i = 0; i < 1u << BUCKET_BITS; i++)
    while (buckets[i] != NULL) memory_free(&buckets[i]);
}
