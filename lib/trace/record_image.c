/* record_image.c: packs the rows in use, and copies the newest records that a diagnosis needs. */
#include "trace/record_image.h"

#include <string.h>

/* Records kept from before the first operation that has not ended: earlier calls may be mismatched already.
 */
#define PAST_RECORDS 64u

/* Places kept from the first operation that has not ended on, and of the newest records. */
#define PLACED_RECORDS 96u
#define PLACED_LAST 8u

struct image {
  struct record_comm *comm;
  uint8_t *out;
  uint32_t used, capacity; /* bytes */
};

static bool row_is_used(const uint8_t *row) { return row[0] == 1; }

/* Copies the rows of a table that are in use; returns their number, and the new *offset. */
static uint32_t rows_put(struct image *image, const void *table, uint32_t rows, uint32_t *offset) {
  uint32_t count = 0;
  *offset = image->used;
  for (uint32_t row = 0; row < rows && image->used + RECORD_BYTES <= image->capacity; row++) {
    const uint8_t *from = (const uint8_t *)table + (size_t)row * RECORD_BYTES;
    if (!row_is_used(from)) continue;
    memcpy(image->out + image->used, from, RECORD_BYTES);
    image->used += RECORD_BYTES;
    count += 1;
  }
  return count;
}

/* Plans are found by row number, so all rows are copied. */
static uint32_t plans_put(struct image *image, const struct record_plan *plans, uint32_t rows,
                          uint32_t *offset) {
  *offset = image->used;
  if (rows > (image->capacity - image->used) / RECORD_BYTES) return 0;
  memcpy(image->out + image->used, plans, (size_t)rows * RECORD_BYTES);
  image->used += rows * RECORD_BYTES;
  return rows;
}

/* A launch has ended if the count of ended kernels is beyond its number. */
static bool record_has_ended(const struct record_comm *comm, const union record *record) {
  return record->kind == RECORD_LAUNCH && comm->counts != 0 && record->launch.number < comm->ended;
}

struct record_places record_places_find(const struct record_view *view) {
  uint64_t pending = view->end;
  while (pending > view->first && !record_has_ended(view->comm, record_at(view, pending - 1))) pending -= 1;
  const struct record_places places = {pending > PAST_RECORDS ? pending - PAST_RECORDS : 0,
                                       pending + PLACED_RECORDS,
                                       view->end > PLACED_LAST ? view->end - PLACED_LAST : 0};
  return places;
}

bool record_stays(const struct record_view *view, const struct record_places *places, uint64_t number) {
  if (record_at(view, number)->kind != RECORD_PLACE) return true;
  return (number >= places->begin && number < places->end) || number >= places->last;
}

/* The number of the first record to copy; *count: how many to copy from there on, at most `most`. */
static uint64_t records_first(const struct record_view *view, const struct record_places *places,
                              uint32_t most, uint32_t *count) {
  uint64_t number = view->end;
  uint32_t past = 0;
  *count = 0;
  while (number > view->first && *count < most && past < PAST_RECORDS) {
    const union record *record = record_at(view, number - 1);
    if (past > 0 || record_has_ended(view->comm, record)) past += 1;
    *count += record_stays(view, places, number - 1);
    number -= 1;
  }
  return number;
}

static void records_put(struct image *image, const struct record_view *view) {
  struct record_comm *comm = image->comm;
  uint32_t most = 1, count;
  while (most * 2 <= (image->capacity - image->used) / RECORD_BYTES) most *= 2;
  const struct record_places places = record_places_find(view);
  uint64_t number = records_first(view, &places, most, &count);
  comm->ring_records = 1;
  while (comm->ring_records < count) comm->ring_records *= 2;
  comm->ring_offset = image->used;
  /* If older records are left out, the tail is that of a ring that has wrapped around. */
  comm->tail = count + (number > 0 ? 2 * (uint64_t)comm->ring_records : 0);
  for (uint32_t put = 0; put < count; number++) {
    if (!record_stays(view, &places, number)) continue;
    union record *record = (union record *)(void *)(image->out + image->used + put * RECORD_BYTES);
    *record = *record_at(view, number);
    if (record->kind == RECORD_PLACE) record->place.in = record->place.out = 0;
    put += 1;
  }
  image->used += comm->ring_records * RECORD_BYTES;
}

uint32_t record_image_section(const struct record_view *view, uint8_t *out, uint32_t capacity) {
  struct record_comm *comm = (struct record_comm *)(void *)out;
  struct image image = {comm, out, RECORD_COMM_BYTES, capacity & ~(RECORD_PAGE_BYTES - 1)};
  memcpy(comm, view->comm, sizeof *comm);
  comm->section.header_bytes = sizeof *comm;
  memset(comm->streams, 0, sizeof comm->streams);
  comm->input_rows = comm->input_offset = 0; /* a diagnosis needs no plans */
  comm->lane_rows = rows_put(&image, view->lanes, view->lane_rows, &comm->lane_offset);
  comm->link_rows = rows_put(&image, view->links, view->link_rows, &comm->link_offset);
  comm->proxy_rows = rows_put(&image, view->proxies, view->proxy_rows, &comm->proxy_offset);
  comm->pace_rows = rows_put(&image, view->paces, view->pace_rows, &comm->pace_offset);
  comm->links_used = comm->link_rows;
  comm->proxies_used = comm->proxy_rows;
  comm->paces_used = comm->pace_rows;
  comm->plan_rows = plans_put(&image, view->plans, view->plan_rows, &comm->plan_offset);
  records_put(&image, view);
  comm->section.bytes = (image.used + RECORD_PAGE_BYTES - 1) & ~(RECORD_PAGE_BYTES - 1);
  return (uint32_t)comm->section.bytes;
}
