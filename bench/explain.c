/* explain.c: files of many ranks for `tutti explain`, as recorder.c lays them out, with rings of any size.
 *
 *   explain FOLDER RANKS CALLS RING KIND    a file for each rank, FOLDER/RANK.trace
 *
 * RING is a number of records, a power of two; a call takes three. KIND: `absent`: all calls but the last
 * have ended, which the last rank has not made; `well`: all have ended; `pending`: none has, of those that
 * the ring still holds, and in the middle of them one rank called something else; `waits`: all ranks wait for
 * the one before them in the last call, but for one, whose lane does not move; `slow`: all have ended, one is
 * always late. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/work.h"
#include "trace/record.h"

#define CALL_RECORDS 3u

struct bench {
  uint32_t ranks, calls, ring;
  const char *kind;
};

static bool is(const struct bench *bench, const char *kind) { return strcmp(bench->kind, kind) == 0; }

static void calls_put(const struct bench *bench, uint32_t rank, uint32_t calls, union record *ring) {
  const uint32_t held = bench->ring / CALL_RECORDS < calls ? bench->ring / CALL_RECORDS : calls;
  for (uint32_t i = 0; i < calls; i++) {
    const bool other = is(bench, "pending") && rank == 7 && i == calls - held / 2;
    const uint64_t late = is(bench, "slow") && rank == 7 ? 900000 : rank * 10;
    const uint64_t number = (uint64_t)CALL_RECORDS * i, mask = bench->ring - 1;
    union record *call = &ring[number & mask], *place = &ring[(number + 1) & mask];
    union record *launch = &ring[(number + 2) & mask];
    memset(call, 0, sizeof *call);
    memset(place, 0, sizeof *place);
    memset(launch, 0, sizeof *launch);
    call->call = (struct record_call){.kind = RECORD_CALL,
                                      .func = FUNC_ALL_REDUCE,
                                      .dtype = 7,
                                      .ticks = 1000000ull * (i + 1) + late,
                                      .count = other ? 4711 : 1024,
                                      .sequence = i,
                                      .collective = i};
    place->place = (struct record_place){.kind = RECORD_PLACE, .in = 4096, .out = 8192};
    launch->launch = (struct record_launch){.kind = RECORD_LAUNCH,
                                            .streams = 1,
                                            .operations = 1,
                                            .sequence = i,
                                            .number = i,
                                            .ticks = call->call.ticks};
  }
}

static void comm_put(const struct bench *bench, uint32_t rank, uint8_t *section) {
  struct record_comm *comm = (struct record_comm *)section;
  const bool absent = is(bench, "absent") && rank + 1 == bench->ranks;
  const uint32_t calls = bench->calls - absent;
  *comm = (struct record_comm){.comm_id = 1,
                               .rank = rank,
                               .rank_count = bench->ranks,
                               .settings_digest = 1,
                               .topology_digest = 1,
                               .ring_records = bench->ring,
                               .plan_rows = 64,
                               .lane_rows = 512,
                               .link_rows = 256,
                               .plan_offset = 512,
                               .lane_offset = 2560,
                               .link_offset = 18944,
                               .proxy_rows = 128,
                               .proxy_offset = 27136,
                               .ring_offset = 32768,
                               .name = "bench",
                               .counts = 1};
  comm->section.kind = RECORD_SECTION_COMM;
  comm->section.header_bytes = sizeof *comm;
  comm->section.bytes = 32768 + (uint64_t)bench->ring * RECORD_BYTES;
  comm->tail = (uint64_t)CALL_RECORDS * calls;
  comm->calls = comm->launched = comm->started = comm->ended = calls;
  if (is(bench, "absent") || is(bench, "waits")) comm->ended = bench->calls - 1;
  if (is(bench, "pending")) comm->ended = 0, comm->started = 1;
  calls_put(bench, rank, calls, (union record *)(void *)(section + comm->ring_offset));
  if (!is(bench, "waits")) return;
  struct record_lane *lanes = (struct record_lane *)(void *)(section + comm->lane_offset);
  lanes[0] = (struct record_lane){.used = 1,
                                  .wait = rank == 7 ? WAITS_NOT : WAITS_DATA,
                                  .need = 1,
                                  .step = 3,
                                  .peer = (rank + bench->ranks - 1) % bench->ranks,
                                  .sequence = calls - 1};
}

static int file_put(const struct bench *bench, const char *folder, uint32_t rank, uint8_t *bytes,
                    size_t size) {
  char path[4096];
  memset(bytes, 0, size);
  comm_put(bench, rank, bytes + RECORD_PAGE_BYTES);
  struct record_header *header = (struct record_header *)bytes;
  *header = (struct record_header){.version = RECORD_VERSION,
                                   .byte_order = RECORD_BYTE_ORDER,
                                   .header_bytes = RECORD_PAGE_BYTES,
                                   .record_bytes = RECORD_BYTES,
                                   .used_bytes = size,
                                   .process = 1000 + rank,
                                   .last_ticks = 1000000,
                                   .last_ns = 1000000,
                                   .host = "bench"};
  memcpy(header->magic, RECORD_MAGIC, sizeof header->magic);
  snprintf(path, sizeof path, "%s/%u.trace", folder, rank);
  FILE *file = fopen(path, "w");
  if (file == NULL) return 3;
  const bool whole = fwrite(bytes, 1, size, file) == size;
  return fclose(file) == 0 && whole ? 0 : 3;
}

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  const struct bench bench = {(uint32_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10),
                              (uint32_t)strtoul(argv[4], NULL, 10), argv[5]};
  const size_t size = RECORD_PAGE_BYTES + 32768 + (size_t)bench.ring * RECORD_BYTES;
  uint8_t *bytes = malloc(size);
  int status = bytes == NULL || bench.ring == 0 ? 3 : 0;
  for (uint32_t rank = 0; rank < bench.ranks && status == 0; rank++)
    status = file_put(&bench, argv[1], rank, bytes, size);
  free(bytes);
  return status;
}
