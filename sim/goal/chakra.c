/* chakra.c: reads Chakra traces. Implements the part of protobuf's encoding that these files use:
 * variable-length numbers, and fields that are such numbers, eight or four bytes, or bytes with a length.
 * Unknown fields are skipped. */
#include "goal/chakra.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "goal/chakra_fields.h"

/* The longest message that is read. */
enum { MESSAGE_BYTES_MOST = 1 << 26 };

struct span {
  const uint8_t *at, *end;
};

struct chakra_reader {
  const char *name;
  FILE *file;
  uint64_t offset;  /* of the current message */
  uint8_t *message; /* message_capacity bytes */
  size_t message_capacity;
  struct chakra_node node;
};

static ncclResult_t read_fail(const struct chakra_reader *reader, const char *what) {
  return log_fail(ncclInvalidArgument, "%s: the message at byte %" PRIu64 " %s", reader->name, reader->offset,
                  what);
}

static bool take_number(struct span *span, uint64_t *number) {
  *number = 0;
  for (unsigned shift = 0; shift < 64 && span->at < span->end; shift += 7) {
    const uint8_t byte = *span->at++;
    *number |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/* Reads a field: its number to *field, and its value to either *number or *bytes (empty for numbers). */
static bool take_field(struct span *span, uint64_t *field, uint64_t *number, struct span *bytes) {
  uint64_t key, count = 0;
  *number = 0;
  bytes->at = bytes->end = span->at;
  if (!take_number(span, &key)) return false;
  *field = key >> 3;
  switch (key & 7) {
    case WIRE_NUMBER: return take_number(span, number);
    case WIRE_EIGHT: count = 8; break;
    case WIRE_FOUR: count = 4; break;
    case WIRE_BYTES:
      if (!take_number(span, &count)) return false;
      break;
    default: return false;
  }
  if (count > (uint64_t)(span->end - span->at)) return false;
  bytes->at = span->at;
  bytes->end = span->at += count;
  return true;
}

static void take_text(struct span bytes, char *text) {
  const size_t count = (size_t)(bytes.end - bytes.at);
  const size_t kept = count < CHAKRA_NAME_BYTES - 1 ? count : CHAKRA_NAME_BYTES - 1;
  if (kept > 0) memcpy(text, bytes.at, kept);
  text[kept] = '\0';
  text_clean(text, CHAKRA_NAME_BYTES);
}

static bool take_dep(struct chakra_node *node, uint64_t id) {
  if (!array_grow(&node->deps, &node->dep_capacity, (uint64_t)node->dep_count + 1, sizeof *node->deps))
    return false;
  node->deps[node->dep_count++] = id;
  return true;
}

static bool span_is(struct span span, const char *text) {
  return (size_t)(span.end - span.at) == strlen(text) && memcmp(span.at, text, strlen(text)) == 0;
}

/* A value may precede its name, so the attribute is scanned first. */
static bool take_attribute(struct chakra_node *node, struct span span) {
  struct span name = {span.at, span.at}, text = name;
  uint64_t value = 0;
  while (span.at < span.end) {
    uint64_t field, number;
    struct span bytes;
    if (!take_field(&span, &field, &number, &bytes)) return false;
    if (field == ATTR_NAME) name = bytes;
    else if (field == ATTR_STRING) text = bytes;
    else if (bytes.at == bytes.end) value = number;
  }
  if (span_is(name, "comm_type")) node->comm_type = value;
  else if (span_is(name, "comm_size")) node->comm_size = value;
  else if (span_is(name, "comm_src")) node->comm_src = (uint32_t)value;
  else if (span_is(name, "comm_dst")) node->comm_dst = (uint32_t)value;
  else if (span_is(name, "comm_tag")) node->comm_tag = (uint32_t)value;
  else if (span_is(name, "pg_name")) take_text(text, node->group);
  return true;
}

/* Dependences are one per field, or packed. */
static bool take_deps(struct chakra_node *node, uint64_t number, struct span bytes, bool packed) {
  if (!packed) return take_dep(node, number);
  while (bytes.at < bytes.end) {
    if (!take_number(&bytes, &number) || !take_dep(node, number)) return false;
  }
  return true;
}

static bool take_node(struct chakra_node *node, struct span span) {
  uint64_t *deps = node->deps;
  const uint32_t capacity = node->dep_capacity;
  memset(node, 0, sizeof *node);
  node->deps = deps;
  node->dep_capacity = capacity;
  while (span.at < span.end) {
    const bool packed = (*span.at & 7) == WIRE_BYTES; /* fields below 16 have a key of one byte */
    uint64_t field, number;
    struct span bytes;
    if (!take_field(&span, &field, &number, &bytes)) return false;
    switch (field) {
      case NODE_ID: node->id = number; break;
      case NODE_NAME: take_text(bytes, node->name); break;
      case NODE_TYPE: node->kind = number; break;
      case NODE_CTRL_DEPS:
      case NODE_DATA_DEPS:
        if (!take_deps(node, number, bytes, packed)) return false;
        break;
      case NODE_DURATION: node->duration_us = number; break;
      case NODE_ATTR:
        if (!take_attribute(node, bytes)) return false;
        break;
      default: break;
    }
  }
  return true;
}

/* The next message; *count 0 at the end of the file. */
static ncclResult_t read_message(struct chakra_reader *reader, size_t *count) {
  uint64_t length = 0;
  unsigned shift = 0;
  int byte = getc(reader->file);
  reader->offset = (uint64_t)ftello(reader->file) - (byte != EOF);
  *count = 0;
  if (byte == EOF) return ncclSuccess;
  for (; byte != EOF; byte = getc(reader->file), shift += 7) {
    length |= (uint64_t)(byte & 0x7f) << (shift < 63 ? shift : 63);
    if (byte < 0x80 || shift >= 63) break;
  }
  if (byte == EOF) return read_fail(reader, "is cut off");
  if (length > MESSAGE_BYTES_MOST) return read_fail(reader, "is longer than 64 MiB: no Chakra trace");
  if (length >= reader->message_capacity) { /* an empty message needs a byte, too */
    os_free(reader->message);
    reader->message = (uint8_t *)os_alloc(length + 1);
    reader->message_capacity = reader->message != NULL ? length + 1 : 0;
    if (reader->message == NULL) return log_no_memory("%s", reader->name);
  }
  if (fread(reader->message, 1, length, reader->file) != length) return read_fail(reader, "is cut off");
  *count = length + 1; /* an empty message is not the end */
  return ncclSuccess;
}

ncclResult_t chakra_read(const char *name, FILE *file,
                         ncclResult_t (*take)(void *context, const struct chakra_node *node), void *context) {
  struct chakra_reader reader;
  size_t count = 0;
  memset(&reader, 0, sizeof reader);
  reader.name = name;
  reader.file = file;
  ncclResult_t result = read_message(&reader, &count); /* the first message has the version */
  if (result == ncclSuccess && count == 0)
    result = log_fail(ncclInvalidArgument, "%s: empty; no Chakra trace", name);
  while (result == ncclSuccess) {
    result = read_message(&reader, &count);
    if (result != ncclSuccess || count == 0) break;
    const struct span span = {reader.message, reader.message + count - 1};
    result = take_node(&reader.node, span) ? take(context, &reader.node)
                                           : read_fail(&reader, "is no node of a Chakra trace");
  }
  os_free(reader.message);
  os_free(reader.node.deps);
  return result;
}

/* ---- a schedule ---- */

/* A node by its id, for nodes that refer to it. */
struct chakra_id {
  uint64_t id;
  uint32_t op;
};
struct chakra_wait {
  uint64_t before;
  uint32_t after;
};

/* The collectives of the first rank, which the other ranks' are compared with. */
struct chakra_coll_call {
  uint32_t type;
  uint64_t bytes;
};
struct chakra_job {
  struct goal_build build;
  const struct chakra_planner *planner;
  struct goal_export *out;
  struct chakra_coll_call *colls;
  uint32_t coll_count, coll_capacity;
  const char *first_path; /* of the rank that made them; NULL before it is read */
};

struct chakra_rank {
  const char *path;
  struct chakra_job *job;
  struct goal_build *build;
  uint32_t rank, coll_count;
  struct chakra_id *ids;
  struct chakra_wait *waits;
  uint32_t id_count, id_capacity, wait_count, wait_capacity;
};

static ncclResult_t node_fail(const struct chakra_rank *own, const struct chakra_node *node,
                              const char *what) {
  return log_fail(ncclInvalidArgument, "%s: node %" PRIu64 " `%s` %s", own->path, node->id, node->name, what);
}

static ncclResult_t node_to_op(const struct chakra_rank *own, const struct chakra_node *node,
                               struct goal_op *op) {
  const struct goal *goal = own->build->goal;
  memset(op, 0, sizeof *op);
  op->kind = node->kind == CHAKRA_SEND ? GOAL_SEND : node->kind == CHAKRA_RECV ? GOAL_RECV : GOAL_CALC;
  if (node->kind < CHAKRA_METADATA || node->kind > CHAKRA_COLL)
    return node_fail(own, node, "is of no kind from 1 (metadata) to 7 (collective)");
  if (node->kind == CHAKRA_COLL)
    return ncclSuccess; /* without a duration: what it waits for precedes its messages */
  if (op->kind == GOAL_CALC) {
    if (node->duration_us > GOAL_BYTES_MOST / 1000) return node_fail(own, node, "takes more than 2^40 ns");
    op->size = node->duration_us * 1000;
    return ncclSuccess;
  }
  const uint32_t peer = op->kind == GOAL_SEND ? node->comm_dst : node->comm_src;
  if (peer >= goal->rank_count) return node_fail(own, node, "names a rank of which there is no file");
  if (node->comm_tag >= GOAL_EXPORT_TAGS)
    return node_fail(own, node, "has a tag below 0, or of 2^30 and more");
  if (node->comm_size > GOAL_BYTES_MOST) return node_fail(own, node, "has more than 2^40 bytes");
  op->size = node->comm_size;
  op->tag = node->comm_tag;
  op->peer = goal_distance(goal, own->rank, peer);
  return ncclSuccess;
}

uint64_t chakra_coll_bytes(uint64_t comm_type, uint64_t comm_size, uint32_t rank_count) {
  return comm_type == CHAKRA_ALL_GATHER || comm_type == CHAKRA_GATHER ? comm_size * rank_count : comm_size;
}

/* The rank's next collective must be the one that all ranks make there. */
static ncclResult_t coll_check(struct chakra_rank *own, const struct chakra_node *node) {
  struct chakra_job *job = own->job;
  const struct chakra_coll_call call = {(uint32_t)node->comm_type, node->comm_size};
  const uint32_t number = own->coll_count++;
  if (node->comm_type > CHAKRA_BARRIER) return node_fail(own, node, "is a collective of no kind from 0 to 9");
  if (node->comm_size > GOAL_BYTES_MOST) return node_fail(own, node, "has more than 2^40 bytes");
  if (node->group[0] != '\0')
    return node_fail(own, node, "names a process group; only collectives of all ranks are known");
  if (job->first_path == own->path) {
    TRY(array_reserve(&job->colls, &job->coll_capacity, (uint64_t)number + 1, sizeof *job->colls,
                      "the collectives of a Chakra trace"));
    job->colls[job->coll_count++] = call;
    return ncclSuccess;
  }
  if (number < job->coll_count && job->colls[number].type == call.type &&
      job->colls[number].bytes == call.bytes)
    return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s: node %" PRIu64 " `%s` is collective %" PRIu32 " of its rank, of type %" PRIu32
                  " and %" PRIu64 " bytes; %s has another there",
                  own->path, node->id, node->name, number, call.type, call.bytes, job->first_path);
}

/* The messages of a collective are between `op` and a new operation for its end. */
static ncclResult_t coll_take(struct chakra_rank *own, const struct chakra_node *node, uint32_t *op) {
  const struct chakra_planner *planner = own->job->planner;
  struct goal_op end;
  uint32_t number;
  memset(&end, 0, sizeof end);
  end.kind = GOAL_CALC;
  TRY(coll_check(own, node));
  TRY(planner->plan(planner->context, own->job->out, (uint32_t)node->comm_type, node->comm_size, &number));
  const uint32_t end_op = goal_build_op(own->build, &end);
  if (end_op == UINT32_MAX) return log_no_memory("%s", own->path);
  TRY(goal_export_rank(own->job->out, number, own->rank, *op, end_op));
  *op = end_op;
  return ncclSuccess;
}

static ncclResult_t node_take(void *context, const struct chakra_node *node) {
  struct chakra_rank *own = (struct chakra_rank *)context;
  struct goal_op op;
  TRY(node_to_op(own, node, &op));
  const uint32_t index = goal_build_op(own->build, &op);
  bool fits = index != UINT32_MAX &&
              array_grow(&own->ids, &own->id_capacity, (uint64_t)own->id_count + 1, sizeof *own->ids);
  for (uint32_t i = 0; fits && i < node->dep_count; i++) {
    const struct chakra_wait wait = {node->deps[i], index};
    fits = array_grow(&own->waits, &own->wait_capacity, (uint64_t)own->wait_count + 1, sizeof *own->waits);
    if (fits) own->waits[own->wait_count++] = wait;
  }
  if (!fits) return log_no_memory("%s", own->path);
  struct chakra_id id = {node->id, index};
  if (node->kind == CHAKRA_COLL) TRY(coll_take(own, node, &id.op));
  own->ids[own->id_count++] = id;
  return ncclSuccess;
}

static int id_order(const void *one, const void *two) {
  const uint64_t first = ((const struct chakra_id *)one)->id, second = ((const struct chakra_id *)two)->id;
  return first < second ? -1 : first > second;
}

static ncclResult_t waits_resolve(struct chakra_rank *own) {
  if (own->id_count > 0) qsort(own->ids, own->id_count, sizeof *own->ids, id_order);
  for (uint32_t i = 1; i < own->id_count; i++) {
    if (own->ids[i].id == own->ids[i - 1].id)
      return log_fail(ncclInvalidArgument, "%s: two nodes have the id %" PRIu64, own->path, own->ids[i].id);
  }
  for (uint32_t i = 0; i < own->wait_count; i++) {
    const struct chakra_id key = {own->waits[i].before, 0};
    const struct chakra_id *found =
        (const struct chakra_id *)bsearch(&key, own->ids, own->id_count, sizeof key, id_order);
    if (found == NULL)
      return log_fail(ncclInvalidArgument, "%s: a node waits for node %" PRIu64 ", which is not there",
                      own->path, key.id);
    TRY(goal_build_edge(own->build, found->op, own->waits[i].after, false));
  }
  return ncclSuccess;
}

static ncclResult_t rank_read(struct chakra_job *job, uint32_t rank, const char *path) {
  struct chakra_rank own;
  memset(&own, 0, sizeof own);
  own.path = path;
  own.job = job;
  own.build = &job->build;
  own.rank = rank;
  if (job->first_path == NULL) job->first_path = path;
  FILE *file = fopen(path, "rb");
  if (file == NULL) return log_fail(ncclSystemError, "%s: cannot be read: %s", path, strerror(errno));
  ncclResult_t result = chakra_read(path, file, node_take, &own);
  if (result == ncclSuccess && own.coll_count != job->coll_count)
    result = log_fail(ncclInvalidArgument, "%s: %" PRIu32 " collectives; %s has %" PRIu32, path,
                      own.coll_count, job->first_path, job->coll_count);
  if (result == ncclSuccess) result = waits_resolve(&own);
  if (result == ncclSuccess) result = goal_build_rank(&job->build, rank, 0);
  fclose(file);
  os_free(own.ids);
  os_free(own.waits);
  return result;
}

uint32_t chakra_rank_of(const char *path) {
  const char *end = strrchr(path, '.'), *begin = end;
  uint32_t rank = 0;
  if (end == NULL || strcmp(end, ".et") != 0) return UINT32_MAX;
  while (begin > path && begin[-1] >= '0' && begin[-1] <= '9' && end - begin < 7) begin--;
  if (begin == end || begin == path || begin[-1] != '.') return UINT32_MAX;
  for (; begin < end; begin++) rank = rank * 10 + (uint32_t)(*begin - '0');
  return rank;
}

ncclResult_t goal_read_chakra(uint32_t count, char **paths, const struct chakra_planner *planner,
                              struct goal *goal) {
  struct chakra_job job;
  memset(&job, 0, sizeof job);
  job.planner = planner;
  ncclResult_t result = goal_build_open(&job.build, goal, count);
  if (result == ncclSuccess)
    result = goal_export_open(&job.build, &planner->costs, GOAL_EXPORT_TAGS, &job.out);
  for (uint32_t i = 0; i < count && result == ncclSuccess; i++) {
    const uint32_t rank = chakra_rank_of(paths[i]);
    if (rank >= count || goal->programs[rank] != NULL)
      result = log_fail(ncclInvalidArgument,
                        "%s: %" PRIu32 " files are expected to end in .0.et to .%" PRIu32 ".et, each once",
                        paths[i], count, count - 1);
    else result = rank_read(&job, rank, paths[i]);
  }
  goal_export_close(job.out);
  os_free(job.colls);
  goal_build_close(&job.build);
  if (result != ncclSuccess) goal_free(goal);
  return result;
}
