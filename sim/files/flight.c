/* flight.c: reads a dump of PyTorch's Flight Recorder (docs.pytorch.org, "Flight Recorder for Debugging Stuck
 * Jobs"), versions 2.x. Its process groups become communicators, and an entry an operation that was called,
 * launched, and started and ended according to its state. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/log.h"
#include "files/import.h"
#include "schedule/work.h"

void import_report(struct import *import, const char *format, ...) {
  enum { TOLD_MOST = 20 };
  va_list arguments;
  if (import->verb == NULL || ++import->told > TOLD_MOST) return;
  va_start(arguments, format);
  fprintf(stderr, "tutti %s: %s: ", import->verb, import->path);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

/* ---- small helpers ---- */

static int64_t integer_of(const json_t *object, const char *key, int64_t otherwise) {
  const json_t *value = json_object_get(object, key);
  return value != NULL && json_is_integer(value) ? (int64_t)json_integer_value(value) : otherwise;
}

static const char *text_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return value != NULL && json_is_string(value) ? json_string_value(value) : "";
}

/* A dump's rank: the number at the end of its file's name, before endings such as ".json". */
static bool rank_of_name(const char *path, uint32_t *rank) {
  static const char *const endings[] = {".zst", ".json", ".pickle", ".pkl"};
  size_t end = strlen(path), begin;
  for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
    const size_t length = strlen(endings[i]);
    if (end > length && memcmp(path + end - length, endings[i], length) == 0) end -= length;
  }
  for (begin = end; begin > 0 && path[begin - 1] >= '0' && path[begin - 1] <= '9';) begin--;
  if (begin == end || end - begin > 8) return false;
  *rank = (uint32_t)strtoul(path + begin, NULL, 10);
  return true;
}

/* ---- process groups ---- */

/* The place of `rank` in "[0, 2, 5]", or in an array; and the length. UINT32_MAX: not found. */
static uint32_t place_in(const json_t *ranks, uint32_t rank, uint32_t *count) {
  uint32_t place = UINT32_MAX;
  *count = 0;
  if (json_is_array(ranks)) {
    for (; *count < json_array_size(ranks); *count += 1)
      if (json_integer_value(json_array_get(ranks, *count)) == (json_int_t)rank) place = *count;
    return place;
  }
  for (const char *at = json_string_value(ranks); at != NULL && *at != '\0';) {
    char *end = (char *)(uintptr_t)at;
    const unsigned long number = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
    if (end == at) at++;
    else {
      if (number == rank) place = *count;
      *count += 1;
      at = end;
    }
  }
  return place;
}

static uint64_t group_id(const char *name, const char *desc, const json_t *ranks) {
  uint64_t hash = hash_text(hash_text(HASH_SEED, name), desc);
  if (json_is_string(ranks)) return hash_text(hash, json_string_value(ranks));
  for (size_t i = 0; i < json_array_size(ranks); i++)
    hash = hash_mix(hash, (uint64_t)json_integer_value(json_array_get(ranks, i)));
  return hash;
}

static ncclResult_t group_add(struct import *import, struct image *image, const char *key,
                              const json_t *config, uint32_t rank) {
  const char *name = text_of(config, "name"), *desc = text_of(config, "desc");
  const json_t *ranks = json_object_get(config, "ranks");
  uint32_t rank_count;
  const uint32_t place = place_in(ranks, rank, &rank_count);
  if (name[0] == '\0') name = key;
  if (place == UINT32_MAX) {
    import_report(import, "process group %s: its ranks do not name %u, whose dump this is; it is left out",
                  key, rank);
    return ncclSuccess;
  }
  const uint32_t number = image_comm_add(image);
  if (number == UINT32_MAX) return log_no_memory("%s: its groups", import->path);
  struct record_comm *comm = &image->comms[number].comm;
  const bool plain = desc[0] == '\0' || strcmp(desc, name) == 0;
  comm->comm_id = group_id(name, desc, ranks);
  comm->rank = place;
  comm->rank_count = rank_count;
  comm->counts = RECORD_COUNTS_SEEN;
  snprintf(comm->name, sizeof comm->name, "%s%s%s", name, plain ? "" : ":", plain ? "" : desc);
  return ncclSuccess;
}

static ncclResult_t groups_read(struct import *import, struct image *image, const json_t *configs) {
  const char *key;
  json_t *config;
  json_object_foreach((json_t *)(uintptr_t)configs, key, config)
      TRY(group_add(import, image, key, config, image->header.rank));
  return ncclSuccess;
}

/* The group of an entry, by its name and description. */
static struct image_comm *group_of(struct image *image, const json_t *entry) {
  const json_t *group = json_object_get(entry, "process_group");
  const char *name = json_string_value(json_array_get(group, 0));
  const char *desc = json_string_value(json_array_get(group, 1));
  char full[sizeof image->comms->comm.name];
  if (name == NULL) return NULL;
  const bool plain = desc == NULL || desc[0] == '\0' || strcmp(desc, name) == 0;
  snprintf(full, sizeof full, "%s%s%s", name, plain ? "" : ":", plain ? "" : desc);
  for (uint32_t i = 0; i < image->comm_count; i++)
    if (strcmp(image->comms[i].comm.name, full) == 0) return &image->comms[i];
  return NULL;
}

/* ---- entries ---- */

/* An operation's name contains one of these; the first match counts. */
static const struct {
  const char *part;
  uint8_t func;
} functions[] = {{"all_reduce", FUNC_ALL_REDUCE},
                 {"allreduce", FUNC_ALL_REDUCE},
                 {"reduce_scatter", FUNC_REDUCE_SCATTER},
                 {"all_gather", FUNC_ALL_GATHER},
                 {"allgather", FUNC_ALL_GATHER},
                 {"all_to_all", FUNC_ALL_TO_ALL},
                 {"alltoall", FUNC_ALL_TO_ALL},
                 {"broadcast", FUNC_BROADCAST},
                 {"gather", FUNC_GATHER},
                 {"scatter", FUNC_SCATTER},
                 {"reduce", FUNC_REDUCE},
                 {"send", FUNC_SEND},
                 {"recv", FUNC_RECV}};

static uint8_t function_of(const char *name) {
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
    if (strcasestr(name, functions[i].part) != NULL) return functions[i].func;
  return FUNC_COUNT;
}

/* torch.dtype's names in C++. */
static uint8_t type_of(const char *name) {
  static const struct {
    const char *name;
    uint8_t type;
  } types[] = {{"Char", ncclInt8},
               {"Byte", ncclUint8},
               {"Bool", ncclUint8},
               {"Int", ncclInt32},
               {"UInt32", ncclUint32},
               {"Long", ncclInt64},
               {"UInt64", ncclUint64},
               {"Half", ncclFloat16},
               {"Float", ncclFloat32},
               {"Double", ncclFloat64},
               {"BFloat16", ncclBfloat16},
               {"Float8_e4m3fn", ncclFloat8e4m3},
               {"Float8_e5m2", ncclFloat8e5m2}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    if (strcmp(types[i].name, name) == 0) return types[i].type;
  return UINT8_MAX;
}

/* Elements of all tensors of a list of shapes; too large values wrap. */
static uint64_t elements_of(const json_t *shapes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < json_array_size(shapes); i++) {
    const json_t *shape = json_array_get(shapes, i);
    uint64_t product = 1;
    for (size_t k = 0; k < json_array_size(shape); k++)
      product *= (uint64_t)json_integer_value(json_array_get(shape, k));
    sum += json_is_array(shape) ? product : 0;
  }
  return sum;
}

/* The call's count: one rank's part for collectives that gather or scatter. */
static uint64_t count_of(const json_t *entry, uint8_t func) {
  const uint64_t in = elements_of(json_object_get(entry, "input_sizes"));
  const uint64_t out = elements_of(json_object_get(entry, "output_sizes"));
  switch (func) {
    case FUNC_ALL_TO_ALL: return in + out > 0; /* its parts may differ between ranks */
    case FUNC_REDUCE_SCATTER:
    case FUNC_SCATTER:
    case FUNC_RECV: return out > 0 ? out : in;
    default: return in > 0 ? in : out;
  }
}

/* "nccl:send 0->1", "nccl:recv 1<-0": the second number is the other rank. */
static uint32_t peer_of(const char *name) {
  const char *arrow = strpbrk(name, "<>");
  return arrow == NULL ? 0 : (uint32_t)strtoul(arrow + strcspn(arrow, "0123456789"), NULL, 10);
}

static struct record_call call_of(const json_t *entry, uint8_t func) {
  const json_t *types = json_object_get(entry, "input_dtypes");
  if (json_array_size(types) == 0) types = json_object_get(entry, "output_dtypes");
  const char *type = json_string_value(json_array_get(types, 0));
  const bool message = func == FUNC_SEND || func == FUNC_RECV;
  const struct record_call call = {.func = func,
                                   .dtype = type_of(type != NULL ? type : ""),
                                   .op = 254, /* unknown */
                                   .peer = message ? peer_of(text_of(entry, "profiling_name")) : 0,
                                   .ticks = (uint64_t)integer_of(entry, "time_created_ns", 0),
                                   .count = count_of(entry, func)};
  return call;
}

/* Kernels end in the order of their launches: the first one that has not ended stops the count. */
static void state_add(struct image_comm *comm, const json_t *entry) {
  const char *state = text_of(entry, "state");
  const bool completed = strcmp(state, "completed") == 0;
  const uint64_t before = comm->operations - 1u;
  comm->comm.launched = comm->operations;
  if (completed && comm->comm.ended == before) {
    comm->comm.ended += 1;
    comm->comm.moved_ticks = (uint64_t)integer_of(entry, "time_discovered_completed_ns", 0);
  }
  if (completed || strcmp(state, "started") == 0) comm->comm.started = comm->operations;
}

/* The first remaining entry shows how many were dropped before it. */
static void numbers_begin(struct image_comm *comm, const json_t *entry, bool message) {
  const int64_t operation = integer_of(entry, "op_id", 1),
                collective = integer_of(entry, "collective_seq_id", 1);
  if (comm->operations > 0) return;
  comm->comm.calls = operation > 0 ? (uint64_t)operation - 1 : 0;
  comm->collectives = collective > 0 ? (uint32_t)collective - !message : 0;
}

static ncclResult_t entry_read(struct import *import, struct image *image, size_t number,
                               const json_t *entry) {
  const char *name = text_of(entry, "profiling_name");
  const uint8_t func = function_of(name);
  struct image_comm *comm = group_of(image, entry);
  const struct record_place place = {.stream = UINT8_MAX};
  if (strcasestr(name, "coalesced") != NULL && func >= FUNC_SEND)
    return ncclSuccess; /* a summary of other entries */
  if (comm == NULL || func == FUNC_COUNT) {
    import_report(import, "entry %zu, \"%.60s\": %s; it is left out", number, name,
                  comm == NULL ? "its process group is not in pg_config" : "no operation of a known name");
    return ncclSuccess;
  }
  const struct record_call call = call_of(entry, func);
  const bool message = func == FUNC_SEND || func == FUNC_RECV;
  if (call.count == 0 && !message) return ncclSuccess; /* an operation without data is ignored */
  numbers_begin(comm, entry, message);
  if (!image_call_add(comm, &call, &place)) return log_no_memory("%s: entry %zu", import->path, number);
  state_add(comm, entry);
  return ncclSuccess;
}

static ncclResult_t entries_read(struct import *import, struct image *image, const json_t *entries) {
  struct record_header *header = &image->header;
  for (size_t i = 0; i < json_array_size(entries); i++) {
    const json_t *entry = json_array_get(entries, i);
    const uint64_t created = (uint64_t)integer_of(entry, "time_created_ns", 0);
    if (i == 0) header->first_ticks = header->first_ns = header->wall_ns = created;
    TRY(entry_read(import, image, i, entry));
  }
  return ncclSuccess;
}

/* Without kernel times (TORCH_NCCL_ENABLE_TIMING) no entry ever has a start; then starts are treated as
 * unknown. */
static void starts_settle(struct image *image) {
  for (uint32_t i = 0; i < image->comm_count; i++) {
    struct record_comm *comm = &image->comms[i].comm;
    if (comm->started <= comm->ended) comm->started = comm->launched;
  }
}

ncclResult_t flight_import(struct import *import, const json_t *dump, struct image *image) {
  const json_t *entries = json_object_get(dump, "entries"), *groups = json_object_get(dump, "pg_config");
  const char *slash = strrchr(import->path, '/');
  struct image fresh;
  memset(&fresh, 0, sizeof fresh);
  if (!json_is_array(entries) || !json_is_object(groups))
    return log_fail(
        ncclInvalidArgument,
        "%s: `entries` and `pg_config` were expected, as in a dump of PyTorch's Flight Recorder of "
        "version 2.3 or later",
        import->path);
  if (!rank_of_name(import->path, &fresh.header.rank))
    return log_fail(ncclInvalidArgument,
                    "%s: a dump does not say which rank's it is; the name must end in that number, as in "
                    "nccl_trace_rank_7",
                    import->path);
  snprintf(fresh.header.host, sizeof fresh.header.host, "%s", slash != NULL ? slash + 1 : import->path);
  snprintf(fresh.header.library, sizeof fresh.header.library, "Flight Recorder %.8s",
           text_of(dump, "version"));
  ncclResult_t result = groups_read(import, &fresh, groups);
  if (result == ncclSuccess) result = entries_read(import, &fresh, entries);
  starts_settle(&fresh);
  if (result == ncclSuccess) *image = fresh;
  else image_free(&fresh);
  return result;
}
