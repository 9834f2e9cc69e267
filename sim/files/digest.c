/* digest.c: copies the header and each communicator's section up to its ring unchanged, so that record_read.h
 * can read them; after them it keeps a part of the rings, one after another. It does not depend on the
 * tables' layout. */
#include "files/digest.h"

#include <string.h>

#include "base/array.h"
#include "base/os.h"
#include "trace/record_image.h"

static size_t round_page(size_t bytes) {
  return (bytes + RECORD_PAGE_BYTES - 1) / RECORD_PAGE_BYTES * RECORD_PAGE_BYTES;
}

/* The part of the section before its ring; the whole section if it has no ring, or if something follows the
 * ring. */
static size_t head_bytes(const struct record_file *file, const struct record_view *view) {
  const struct record_comm *comm = view->comm;
  const uint64_t end =
      file->header.used_bytes < file->byte_count ? file->header.used_bytes : file->byte_count;
  const uint64_t left = end - view->offset;
  const uint64_t capacity = comm->section.bytes < left ? comm->section.bytes : left;
  const uint64_t ring_end = comm->ring_offset + (uint64_t)comm->ring_records * RECORD_BYTES;
  return (size_t)(view->ring_records != 0 && ring_end + RECORD_PAGE_BYTES > capacity ? comm->ring_offset
                                                                                     : capacity);
}

static uint64_t records_stay(const struct record_view *view) {
  const struct record_places places = record_places_find(view);
  uint64_t count = 0;
  for (uint64_t number = view->first; number < view->end; number++)
    count += record_stays(view, &places, number);
  return count;
}

/* Header and sections; returns their end. */
static uint8_t *heads_put(const struct record_file *file, uint8_t *bytes) {
  uint8_t *out = bytes + RECORD_PAGE_BYTES;
  memset(bytes, 0, RECORD_PAGE_BYTES);
  memcpy(bytes, file->bytes, file->byte_count < RECORD_PAGE_BYTES ? file->byte_count : RECORD_PAGE_BYTES);
  for (uint32_t i = 0; i < file->view_count; i++) {
    const struct record_view *view = &file->views[i];
    const size_t head = head_bytes(file, view);
    memcpy(out, view->comm, head);
    ((struct record_comm *)(void *)out)->section.bytes = round_page(head);
    memset(out + head, 0, round_page(head) - head);
    out += round_page(head);
  }
  ((struct record_header *)(void *)bytes)->used_bytes = (uint64_t)(out - bytes);
  return out;
}

/* The records' numbers still show how many of a ring's first records are missing. The ring holds only what
 * has been written: record_at() is called for no other record. */
static uint8_t *ring_put(const struct record_view *view, struct record_view *to, uint8_t *out) {
  const struct record_places places = record_places_find(view);
  uint64_t count = 0;
  to->ring = out;
  for (uint64_t number = view->first; number < view->end; number++) {
    if (!record_stays(view, &places, number)) continue;
    memcpy(out, record_at(view, number), RECORD_BYTES);
    out += RECORD_BYTES;
    count += 1;
  }
  to->ring_records = 1;
  while (to->ring_records < count) to->ring_records *= 2;
  to->first = view->first > 0 ? to->ring_records : 0;
  to->end = to->first + count;
  return out;
}

void *digest_make(const struct record_file *file, struct record_file *digest) {
  size_t byte_count = RECORD_PAGE_BYTES;
  for (uint32_t i = 0; i < file->view_count; i++)
    byte_count +=
        round_page(head_bytes(file, &file->views[i])) + (size_t)records_stay(&file->views[i]) * RECORD_BYTES;
  uint8_t *bytes = NULL;
  if (!array_resize(&bytes, byte_count, 1)) return NULL; /* not zeroed: all of it is written */
  uint8_t *out = heads_put(file, bytes);
  if (record_file_read(file->name, bytes, (size_t)(out - bytes), NULL, digest) != ncclSuccess) {
    os_free(bytes);
    return NULL;
  }
  for (uint32_t i = 0; i < file->view_count; i++) out = ring_put(&file->views[i], &digest->views[i], out);
  return bytes;
}
