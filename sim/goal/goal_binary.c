/* goal_binary.c: GOAL in the binary form that LogGOPSim reads: little endian, packed, a table of offsets and
 * then one rank after another. Ranks are read in any order; every number is checked against the file's size
 * before memory is allocated for it. The output equals that of LogGOPSim's converter for the same text, byte
 * for byte. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "goal/goal.h"

/* Offsets in the table are counted from the end of the magic number. */
enum { MAGIC_BYTES = 8, HEAD_BYTES = 14, PLACE_BYTES = 16, NODE_BYTES = 39, MAGIC_EATEN = 2342 };

static uint32_t get32(const uint8_t *at) {
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
static uint64_t get64(const uint8_t *at) { return get32(at) | (uint64_t)get32(at + 4) << 32; }
static uint8_t *put32(uint8_t *at, uint32_t value) {
  for (int i = 0; i < 4; i++) *at++ = (uint8_t)(value >> (8 * i));
  return at;
}
static uint8_t *put64(uint8_t *at, uint64_t value) {
  return put32(put32(at, (uint32_t)value), (uint32_t)(value >> 32));
}

/* ---- reading ---- */

struct goal_binary {
  const char *name;
  FILE *file;
  struct goal_build *build;
  uint64_t file_bytes, begin, bytes; /* of the current rank */
  uint32_t rank, node_count;
  uint8_t *data;
  uint64_t data_capacity;
};

#define binary_fail(binary, at, format, ...)                                                      \
  log_fail(ncclInvalidArgument, "%s: byte %" PRIu64 ": rank %" PRIu32 " " format, (binary)->name, \
           (binary)->begin + (at), (binary)->rank, __VA_ARGS__)

static ncclResult_t read_at(const struct goal_binary *binary, uint64_t place, void *bytes, size_t count) {
  if (fseeko(binary->file, (off_t)place, SEEK_SET) == 0 && fread(bytes, 1, count, binary->file) == count)
    return ncclSuccess;
  return log_fail(ncclSystemError, "%s: cannot be read at byte %" PRIu64 ": %s", binary->name, place,
                  ferror(binary->file) ? strerror(errno) : "it ends there");
}

static ncclResult_t node_take(const struct goal_binary *binary, uint64_t at, struct goal_op *op) {
  const struct goal *goal = binary->build->goal;
  const uint8_t *node = binary->data + at;
  const uint32_t peer = get32(node + 5);
  memset(op, 0, sizeof *op);
  op->kind = node[4];
  op->size = get64(node + 9);
  op->cpu = node[21];
  if (op->kind < GOAL_SEND || op->kind > GOAL_CALC)
    return binary_fail(binary, at + 4, "has an operation of kind %u; there are 1 (send), 2 (recv), 3 (calc)",
                       op->kind);
  if (op->size > GOAL_BYTES_MOST)
    return binary_fail(binary, at + 9, "has a size of %" PRIu64 "; at most 2^40 is allowed", op->size);
  if (op->kind == GOAL_CALC) return ncclSuccess;
  const bool any = op->kind == GOAL_RECV;
  op->tag = get32(node + 17);
  op->nic = node[22];
  if (peer >= goal->rank_count && !(any && peer == GOAL_ANY))
    return binary_fail(binary, at + 5, "names rank %" PRIu32 " of %" PRIu32, peer, goal->rank_count);
  if (op->tag > INT32_MAX && !(any && op->tag == GOAL_ANY))
    return binary_fail(binary, at + 17, "has tag %" PRIu32 "; at most 2^31 - 1 is allowed", op->tag);
  op->peer = peer == GOAL_ANY ? GOAL_ANY : goal_distance(goal, binary->rank, peer);
  return ncclSuccess;
}

/* Followers of one operation: `count` of the appendix's numbers from `first` on. */
static ncclResult_t edges_take(const struct goal_binary *binary, uint64_t node_at, uint64_t appendix,
                               uint32_t before, bool begin) {
  const uint8_t *list = binary->data + node_at + (begin ? 31 : 23);
  const uint64_t count = get32(list), first = get32(list + 4), entries = (binary->bytes - appendix) / 4;
  if (count > 0 && first + count > entries)
    return binary_fail(binary, node_at, "has followers up to %" PRIu64 " of %" PRIu64, first + count,
                       entries);
  for (uint64_t i = first; i < first + count; i++) {
    const uint32_t after = get32(binary->data + appendix + 4 * i);
    if (after >= binary->node_count)
      return binary_fail(binary, appendix + 4 * i, "has operation %" PRIu32 " wait, of %" PRIu32, after,
                         binary->node_count);
    TRY(goal_build_edge(binary->build, before, after, begin));
  }
  return ncclSuccess;
}

static ncclResult_t nodes_take(struct goal_binary *binary, uint64_t nodes_at) {
  const uint64_t appendix = nodes_at + (uint64_t)binary->node_count * NODE_BYTES;
  for (uint32_t i = 0; i < binary->node_count; i++) {
    struct goal_op op;
    TRY(node_take(binary, nodes_at + (uint64_t)i * NODE_BYTES, &op));
    if (goal_build_op(binary->build, &op) == UINT32_MAX)
      return log_no_memory("%s: the operations of rank %" PRIu32, binary->name, binary->rank);
  }
  for (uint32_t i = 0; i < binary->node_count; i++) {
    const uint64_t at = nodes_at + (uint64_t)i * NODE_BYTES;
    TRY(edges_take(binary, at, appendix, i, true));
    TRY(edges_take(binary, at, appendix, i, false));
    if (binary->build->edge_count > (binary->bytes - appendix) / 4)
      return binary_fail(binary, at, "shares followers among operations, up to number %" PRIu32, i);
  }
  return ncclSuccess;
}

/* The file also counts what each operation waits for. */
static ncclResult_t waits_check(const struct goal_binary *binary, uint64_t nodes_at) {
  const struct goal_program *program = binary->build->goal->programs[binary->rank];
  for (uint32_t i = 0; i < program->op_count; i++) {
    const uint64_t at = nodes_at + (uint64_t)i * NODE_BYTES;
    if (get32(binary->data + at) != program->ops[i].waits)
      return binary_fail(binary, at,
                         "says that operation %" PRIu32 " waits for %" PRIu32 " others; it follows %" PRIu32,
                         i, get32(binary->data + at), program->ops[i].waits);
  }
  return ncclSuccess;
}

/* A rank's bytes: its operations, a list of those that wait for nothing, and the appendix of followers. */
static ncclResult_t rank_take(struct goal_binary *binary) {
  if (binary->bytes < 8)
    return binary_fail(binary, 0, "has %" PRIu64 " bytes; at least 8 are needed", binary->bytes);
  if (binary->data_capacity < binary->bytes) {
    os_free(binary->data);
    binary->data = (uint8_t *)os_alloc(binary->bytes);
    binary->data_capacity = binary->data != NULL ? binary->bytes : 0;
    if (binary->data == NULL) return log_no_memory("%s: rank %" PRIu32, binary->name, binary->rank);
  }
  TRY(read_at(binary, binary->begin, binary->data, binary->bytes));
  binary->node_count = get32(binary->data);
  const uint64_t roots = get32(binary->data + 4), nodes_at = 8 + 4 * roots;
  if (binary->node_count >= GOAL_OPS_MOST ||
      nodes_at + (uint64_t)binary->node_count * NODE_BYTES > binary->bytes)
    return binary_fail(binary, 0, "has %" PRIu32 " operations and %" PRIu64 " roots in %" PRIu64 " bytes",
                       binary->node_count, roots, binary->bytes);
  TRY(nodes_take(binary, nodes_at));
  TRY(goal_build_rank(binary->build, binary->rank, 0));
  return waits_check(binary, nodes_at);
}

static ncclResult_t ranks_take(struct goal_binary *binary, const uint8_t *places) {
  for (uint32_t rank = 0; rank < binary->build->goal->rank_count; rank++) {
    const uint8_t *place = places + (size_t)rank * PLACE_BYTES;
    const uint64_t begin = get64(place), end = get64(place + 8), most = binary->file_bytes - MAGIC_BYTES;
    binary->rank = rank;
    if (begin > end || end > most)
      return log_fail(ncclInvalidArgument,
                      "%s: byte %zu: rank %" PRIu32 " lies from %" PRIu64 " to %" PRIu64
                      " behind the magic number; the file has %" PRIu64 " bytes there",
                      binary->name, HEAD_BYTES + (size_t)rank * PLACE_BYTES, rank, begin, end, most);
    binary->begin = begin + MAGIC_BYTES;
    binary->bytes = end - begin;
    TRY(rank_take(binary));
  }
  return ncclSuccess;
}

static ncclResult_t head_take(struct goal_binary *binary, uint32_t *rank_count) {
  uint8_t head[HEAD_BYTES];
  if (fseeko(binary->file, 0, SEEK_END) != 0)
    return log_fail(ncclSystemError, "%s: a binary must be a file, not a pipe: %s", binary->name,
                    strerror(errno));
  binary->file_bytes = (uint64_t)ftello(binary->file);
  if (binary->file_bytes < HEAD_BYTES)
    return log_fail(ncclInvalidArgument, "%s: %" PRIu64 " bytes; a GOAL binary has a head of %d",
                    binary->name, binary->file_bytes, HEAD_BYTES);
  TRY(read_at(binary, 0, head, sizeof head));
  *rank_count = get32(head + 8);
  if (get64(head) == MAGIC_EATEN)
    return log_fail(ncclInvalidArgument,
                    "%s: magic number %d: LogGOPSim has eaten this file up (--save-mem); "
                    "make it again",
                    binary->name, MAGIC_EATEN);
  if (get64(head) != GOAL_MAGIC)
    return log_fail(ncclInvalidArgument, "%s: byte 0: expected the magic number %d, found %" PRIu64,
                    binary->name, GOAL_MAGIC, get64(head));
  if (*rank_count == 0 || *rank_count > GOAL_RANKS_MOST ||
      (binary->file_bytes - HEAD_BYTES) / PLACE_BYTES < *rank_count)
    return log_fail(ncclInvalidArgument,
                    "%s: byte 8: %" PRIu32 " ranks in %" PRIu64
                    " bytes; 1 to %d are "
                    "allowed, each with %d bytes and more",
                    binary->name, *rank_count, binary->file_bytes, GOAL_RANKS_MOST, PLACE_BYTES);
  return ncclSuccess;
}

ncclResult_t goal_read_binary(const char *name, FILE *file, struct goal_build *build) {
  struct goal_binary binary;
  uint32_t rank_count = 0;
  memset(&binary, 0, sizeof binary);
  binary.name = name;
  binary.file = file;
  binary.build = build;
  TRY(head_take(&binary, &rank_count));
  TRY(goal_build_open(build, build->goal, rank_count));
  const size_t place_bytes = (size_t)rank_count * PLACE_BYTES;
  uint8_t *places = (uint8_t *)os_alloc(place_bytes);
  if (places == NULL) return log_no_memory("%s: its ranks", name);
  ncclResult_t result = read_at(&binary, HEAD_BYTES, places, place_bytes);
  if (result == ncclSuccess) result = ranks_take(&binary, places);
  os_free(places);
  os_free(binary.data);
  return result;
}

/* ---- writing ---- */

static uint64_t rank_bytes(const struct goal_program *program) {
  uint64_t roots = 0;
  for (uint32_t i = 0; i < program->op_count; i++) roots += program->ops[i].waits == 0;
  return 8 + 4 * roots + (uint64_t)program->op_count * NODE_BYTES + 4 * (uint64_t)program->next_count;
}

static uint8_t *node_put(const struct goal *goal, uint32_t rank, const struct goal_op *op, uint32_t place,
                         uint8_t *at) {
  const bool calc = op->kind == GOAL_CALC;
  const uint32_t ended = op[1].first - op->first - op->begun;
  at = put32(at, op->waits);
  *at++ = op->kind;
  at = put32(at, calc ? 0 : goal_peer(goal, rank, op));
  at = put64(at, op->size);
  at = put32(at, op->tag);
  *at++ = op->cpu;
  *at++ = op->nic;
  at = put32(put32(at, ended), place);
  return put32(put32(at, op->begun), place + ended);
}

static void rank_put(const struct goal *goal, uint32_t rank, uint8_t *at) {
  const struct goal_program *program = goal->programs[rank];
  uint8_t *count = put32(at, program->op_count);
  uint32_t roots = 0;
  at = count + 4;
  for (uint32_t i = 0; i < program->op_count; i++) {
    if (program->ops[i].waits != 0) continue;
    at = put32(at, i);
    roots += 1;
  }
  put32(count, roots);
  for (uint32_t i = 0; i < program->op_count; i++)
    at = node_put(goal, rank, &program->ops[i], program->ops[i].first, at);
  for (uint32_t i = 0; i < program->op_count; i++) {
    const struct goal_op *op = &program->ops[i];
    for (uint32_t next = op->first + op->begun; next < op[1].first; next++)
      at = put32(at, program->nexts[next]);
    for (uint32_t next = op->first; next < op->first + op->begun; next++)
      at = put32(at, program->nexts[next]);
  }
}

static ncclResult_t write_fail(const char *name) {
  return log_fail(ncclSystemError, "%s: cannot be written: %s", name, strerror(errno));
}

static ncclResult_t write_ranks(const struct goal *goal, const char *name, FILE *file, uint8_t *data) {
  for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
    rank_put(goal, rank, data);
    if (fwrite(data, 1, rank_bytes(goal->programs[rank]), file) == 0) return write_fail(name);
  }
  return fflush(file) == 0 && !ferror(file) ? ncclSuccess : write_fail(name);
}

ncclResult_t goal_write_binary(const struct goal *goal, const char *name, FILE *file) {
  uint8_t head[HEAD_BYTES], place[PLACE_BYTES], *at = put32(put64(head, GOAL_MAGIC), goal->rank_count);
  uint64_t begin = HEAD_BYTES - MAGIC_BYTES + (uint64_t)goal->rank_count * PLACE_BYTES, most = 0;
  at[0] = (uint8_t)(goal->cpu_count - 1);
  at[1] = (uint8_t)(goal->nic_count - 1);
  fwrite(head, 1, sizeof head, file);
  for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
    const uint64_t bytes = rank_bytes(goal->programs[rank]);
    put64(put64(place, begin), begin + bytes);
    fwrite(place, 1, sizeof place, file);
    begin += bytes;
    if (bytes > most) most = bytes;
  }
  uint8_t *data = (uint8_t *)os_alloc(most);
  if (data == NULL) return log_no_memory("%s: a rank of %" PRIu64 " bytes", name, most);
  const ncclResult_t result = write_ranks(goal, name, file, data);
  os_free(data);
  return result;
}
