/* image.c: sections with a communicator and its ring, as large as their contents. */
#include "files/image.h"

#include <string.h>

#include "base/array.h"
#include "base/os.h"
#include "schedule/work.h"

enum { RING_OFFSET = RECORD_COMM_BYTES, RECORDS_A_CALL = 3, RING_LEAST = 4 };
static_assert(RING_OFFSET >= sizeof(struct record_comm), "the ring lies behind it");

uint32_t image_comm_add(struct image *image) {
  if (!array_grow(&image->comms, &image->comm_capacity, (uint64_t)image->comm_count + 1,
                  sizeof *image->comms))
    return UINT32_MAX;
  memset(&image->comms[image->comm_count], 0, sizeof *image->comms);
  return image->comm_count++;
}

static bool records_reserve(struct image_comm *comm) {
  return array_grow(&comm->records, &comm->record_capacity, (uint64_t)comm->record_count + RECORDS_A_CALL,
                    sizeof *comm->records);
}

bool image_call_add(struct image_comm *comm, const struct record_call *call,
                    const struct record_place *place) {
  const bool message = call->func == FUNC_SEND || call->func == FUNC_RECV;
  if (!records_reserve(comm)) return false;
  union record *records = &comm->records[comm->record_count];
  memset(records, 0, RECORDS_A_CALL * sizeof *records);
  records[0].call = *call;
  records[0].call.kind = RECORD_CALL;
  records[0].call.sequence = (uint32_t)comm->comm.calls;
  records[0].call.collective = comm->collectives;
  records[1].place = *place;
  records[1].place.kind = RECORD_PLACE;
  records[2].launch = (struct record_launch){.kind = RECORD_LAUNCH,
                                             .streams = 1,
                                             .operations = 1,
                                             .ticks = call->ticks,
                                             .sequence = (uint32_t)comm->comm.calls,
                                             .number = comm->operations};
  comm->record_count += RECORDS_A_CALL;
  comm->operations += 1;
  comm->collectives += !message;
  comm->comm.calls += 1;
  return true;
}

static uint32_t ring_records(const struct image_comm *comm) {
  uint32_t records = RING_LEAST;
  while (records < comm->record_count) records *= 2;
  return records;
}

static size_t section_bytes(const struct image_comm *comm) {
  const size_t bytes = RING_OFFSET + (size_t)ring_records(comm) * RECORD_BYTES;
  return (bytes + RECORD_PAGE_BYTES - 1) / RECORD_PAGE_BYTES * RECORD_PAGE_BYTES;
}

static void section_put(const struct image_comm *from, uint8_t *at) {
  struct record_comm comm = from->comm;
  comm.section = (struct record_section){RECORD_SECTION_COMM, sizeof comm, section_bytes(from)};
  comm.ring_records = ring_records(from);
  comm.ring_offset = RING_OFFSET;
  comm.tail = from->record_count;
  memcpy(at, &comm, sizeof comm);
  if (from->record_count > 0) memcpy(at + RING_OFFSET, from->records, from->record_count * RECORD_BYTES);
}

void *image_make(const struct image *image, size_t *byte_count) {
  size_t bytes = RECORD_PAGE_BYTES;
  for (uint32_t i = 0; i < image->comm_count; i++) bytes += section_bytes(&image->comms[i]);
  uint8_t *file = (uint8_t *)os_alloc(bytes);
  if (file == NULL) return NULL;
  struct record_header header = image->header;
  memcpy(header.magic, RECORD_MAGIC, sizeof header.magic);
  header.version = RECORD_VERSION;
  header.byte_order = RECORD_BYTE_ORDER;
  header.header_bytes = RECORD_PAGE_BYTES;
  header.record_bytes = RECORD_BYTES;
  header.used_bytes = bytes;
  memcpy(file, &header, sizeof header);
  uint8_t *at = file + RECORD_PAGE_BYTES;
  for (uint32_t i = 0; i < image->comm_count; i++) {
    section_put(&image->comms[i], at);
    at += section_bytes(&image->comms[i]);
  }
  *byte_count = bytes;
  return file;
}

void image_free(struct image *image) {
  for (uint32_t i = 0; i < image->comm_count; i++) os_free(image->comms[i].records);
  os_free(image->comms);
  memset(image, 0, sizeof *image);
}
