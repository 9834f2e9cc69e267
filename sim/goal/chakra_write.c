/* chakra_write.c: writes Chakra traces. A message of a rank to itself is not written as one, because
 * ASTRA-sim's networks reject it: its send and its receive become computations of no duration, the second
 * after the first. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "goal/chakra.h"
#include "goal/chakra_fields.h"

/* A growing buffer; `failed` stays set. */
struct bytes {
  uint8_t *begin;
  size_t count, capacity;
  bool failed;
};

static void put_byte(struct bytes *bytes, uint8_t byte) {
  if (!bytes->failed) bytes->failed = !array_grow_long(&bytes->begin, &bytes->capacity, bytes->count + 1, 1);
  if (!bytes->failed) bytes->begin[bytes->count++] = byte;
}

static void put_number(struct bytes *bytes, uint64_t number) {
  for (; number > 0x7f; number >>= 7) put_byte(bytes, (uint8_t)(number | 0x80));
  put_byte(bytes, (uint8_t)number);
}

static void put_field(struct bytes *bytes, uint32_t field, uint64_t number) {
  put_number(bytes, (uint64_t)field << 3 | WIRE_NUMBER);
  put_number(bytes, number);
}

static void put_bytes(struct bytes *bytes, uint32_t field, const void *content, size_t count) {
  put_number(bytes, (uint64_t)field << 3 | WIRE_BYTES);
  put_number(bytes, count);
  for (size_t i = 0; i < count; i++) put_byte(bytes, ((const uint8_t *)content)[i]);
}

static void put_attribute(struct bytes *bytes, const char *name, uint32_t field, uint64_t value) {
  uint8_t capacity[64];
  struct bytes inner = {capacity, 0, sizeof capacity, false}; /* names are short: it never grows */
  put_bytes(&inner, ATTR_NAME, name, strlen(name));
  put_field(&inner, field, value);
  put_bytes(bytes, NODE_ATTR, inner.begin, inner.count);
}

/* ---- messages of a rank to itself ---- */

struct own_message {
  uint32_t tag, kind, index;
};

/* The other operation of the message, for each operation of a rank; ALONE for all others. */
#define ALONE UINT32_MAX

static int own_order(const void *one, const void *two) {
  const struct own_message *a = (const struct own_message *)one, *b = (const struct own_message *)two;
  if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
  if (a->tag != b->tag) return a->tag < b->tag ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

/* Sends and receives with the same tag are matched in order; unmatched ones stay messages. */
static void own_pair(const struct own_message *messages, uint32_t sends, uint32_t count, uint32_t *others) {
  for (uint32_t send = 0, recv = sends; send < sends && recv < count;) {
    const struct own_message *a = &messages[send], *b = &messages[recv];
    if (a->tag == b->tag) {
      others[a->index] = b->index;
      others[b->index] = a->index;
    }
    send += a->tag <= b->tag;
    recv += b->tag <= a->tag;
  }
}

static ncclResult_t own_find(const struct goal_program *program, uint32_t **others) {
  struct own_message *messages = (struct own_message *)os_alloc((program->op_count + 1) * sizeof *messages);
  uint32_t count = 0, sends = 0;
  *others = (uint32_t *)os_alloc((program->op_count + 1) * sizeof **others);
  if (messages == NULL || *others == NULL) {
    os_free(messages);
    return log_no_memory("a Chakra trace");
  }
  for (uint32_t i = 0; i < program->op_count; i++) {
    const struct goal_op *op = &program->ops[i];
    (*others)[i] = ALONE;
    if (op->kind == GOAL_CALC || op->peer != 0) continue;
    messages[count++] = (struct own_message){op->tag, op->kind, i};
    sends += op->kind == GOAL_SEND;
  }
  qsort(messages, count, sizeof *messages, own_order);
  own_pair(messages, sends, count, *others);
  os_free(messages);
  return ncclSuccess;
}

/* ---- nodes ---- */

static void put_node(const struct goal *goal, uint32_t rank, uint32_t index, const struct bytes *deps,
                     bool is_message, struct bytes *bytes) {
  static const uint8_t kinds[] = {0, CHAKRA_SEND, CHAKRA_RECV, CHAKRA_COMP};
  const struct goal_op *op = &goal->programs[rank]->ops[index];
  const uint32_t peer = goal_peer(goal, rank, op);
  char name[64];
  bytes->count = 0;
  snprintf(name, sizeof name, "%s%" PRIu32,
           op->kind == GOAL_SEND   ? "send"
           : op->kind == GOAL_RECV ? "recv"
                                   : "comp",
           index);
  put_field(bytes, NODE_ID, index);
  put_bytes(bytes, NODE_NAME, name, strlen(name));
  put_field(bytes, NODE_TYPE, is_message ? kinds[op->kind] : CHAKRA_COMP);
  if (deps->count > 0) put_bytes(bytes, NODE_DATA_DEPS, deps->begin, deps->count);
  if (!is_message) put_field(bytes, NODE_DURATION, op->kind == GOAL_CALC ? (op->size + 999) / 1000 : 0);
  put_attribute(bytes, "is_cpu_op", ATTR_BOOL, 0);
  if (!is_message) return;
  put_attribute(bytes, "comm_size", ATTR_INT64, op->size);
  put_attribute(bytes, "comm_src", ATTR_INT32, op->kind == GOAL_SEND ? rank : peer);
  put_attribute(bytes, "comm_dst", ATTR_INT32, op->kind == GOAL_SEND ? peer : rank);
  put_attribute(bytes, "comm_tag", ATTR_INT32, op->tag);
}

/* The reverse of the followers: for each operation the ones whose end it waits for. */
static ncclResult_t befores_make(const struct goal_program *program, uint32_t **firsts, uint32_t **befores) {
  *firsts = (uint32_t *)os_alloc((program->op_count + (size_t)2) * sizeof **firsts);
  *befores = (uint32_t *)os_alloc(program->next_count * sizeof **befores);
  if (*firsts == NULL || *befores == NULL) return log_no_memory("a Chakra trace");
  for (int pass = 0; pass < 2; pass++) { /* counts, shifted by two places; then fills, shifted by one */
    for (uint32_t i = 0; i < program->op_count; i++) {
      const struct goal_op *op = &program->ops[i];
      for (uint32_t next = op->first + op->begun; next < op[1].first; next++) {
        const uint32_t after = program->nexts[next];
        if (pass == 0) (*firsts)[after + 2] += 1;
        else (*befores)[(*firsts)[after + 1]++] = i;
      }
    }
    for (uint32_t i = 2; pass == 0 && i < program->op_count + 2; i++) (*firsts)[i] += (*firsts)[i - 1];
  }
  return ncclSuccess;
}

static bool write_message(FILE *file, const struct bytes *message) {
  uint8_t capacity[16];
  struct bytes head = {capacity, 0, sizeof capacity, false};
  put_number(&head, message->count);
  return !message->failed && fwrite(head.begin, 1, head.count, file) == head.count &&
         fwrite(message->begin, 1, message->count, file) == message->count;
}

static bool write_nodes(const struct goal *goal, uint32_t rank, const uint32_t *firsts,
                        const uint32_t *befores, const uint32_t *others, FILE *file) {
  struct bytes message, deps;
  memset(&message, 0, sizeof message);
  memset(&deps, 0, sizeof deps);
  put_bytes(&message, 1, "0.0.4", 5);
  bool written = write_message(file, &message);
  for (uint32_t i = 0; i < goal->programs[rank]->op_count && written; i++) {
    const uint8_t kind = goal->programs[rank]->ops[i].kind;
    deps.count = 0;
    for (uint32_t place = firsts[i]; place < firsts[i + 1]; place++) put_number(&deps, befores[place]);
    if (kind == GOAL_RECV && others[i] != ALONE) put_number(&deps, others[i]);
    put_node(goal, rank, i, &deps, kind != GOAL_CALC && others[i] == ALONE, &message);
    written = !deps.failed && write_message(file, &message);
  }
  os_free(message.begin);
  os_free(deps.begin);
  return written;
}

static ncclResult_t rank_write(const struct goal *goal, uint32_t rank, const char *path) {
  uint32_t *firsts = NULL, *befores = NULL, *others = NULL;
  FILE *file = fopen(path, "wb");
  if (file == NULL) return log_fail(ncclSystemError, "%s: cannot be written: %s", path, strerror(errno));
  ncclResult_t result = befores_make(goal->programs[rank], &firsts, &befores);
  if (result == ncclSuccess) result = own_find(goal->programs[rank], &others);
  const bool written = result == ncclSuccess && write_nodes(goal, rank, firsts, befores, others, file);
  const bool closed = fclose(file) == 0;
  if (result == ncclSuccess && !(written && closed))
    result = log_fail(ncclSystemError, "%s: cannot be written: %s", path, strerror(errno));
  os_free(firsts);
  os_free(befores);
  os_free(others);
  return result;
}

ncclResult_t goal_write_chakra(const struct goal *goal, const char *prefix) {
  char path[4096];
  for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
    for (uint32_t i = 0; i < goal->programs[rank]->op_count; i++) {
      const struct goal_op *op = &goal->programs[rank]->ops[i];
      if (op->kind == GOAL_RECV && (op->peer == GOAL_ANY || op->tag == GOAL_ANY))
        return log_fail(ncclInvalidUsage,
                        "rank %" PRIu32
                        " receives from any rank or with any tag, which Chakra "
                        "traces have no word for; name the rank and the tag",
                        rank);
    }
    if (snprintf(path, sizeof path, "%s.%" PRIu32 ".et", prefix, rank) >= (int)sizeof path)
      return log_fail(ncclInvalidArgument, "%s: a name too long", prefix);
    TRY(rank_write(goal, rank, path));
  }
  return ncclSuccess;
}
