/* mscclpp_op.c: the ops of MSCCL++'s thread blocks. An op names a channel by its index in its block's
 * channel_ids, and remote memory by its index in the block's remote_buffer_ids; both refer to lists of the
 * rank. */
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "schedules/mscclpp.h"

enum op_kind { OP_NONE, OP_SIGNAL, OP_WAIT, OP_ACQUIRE, OP_RELEASE, OP_BARRIER, OP_PIPELINE, OP_MOVE };

struct op_name {
  const char *name;
  uint8_t kind; /* enum op_kind */
  bool relaxed;
  bool sums, takes_packets, makes_packets, signals; /* of a move */
};

/* Letters of moves: r read, re sum, c copy, s send, pkt packets, gl and g all ranks of a switch. */
static const struct op_name op_names[] = {
    {.name = "nop", .kind = OP_NONE},
    {.name = "flush", .kind = OP_NONE},
    {.name = "signal", .kind = OP_SIGNAL},
    {.name = "rlxsignal", .kind = OP_SIGNAL, .relaxed = true},
    {.name = "wait", .kind = OP_WAIT},
    {.name = "rlxwait", .kind = OP_WAIT, .relaxed = true},
    {.name = "sem_acquire", .kind = OP_ACQUIRE},
    {.name = "sem_release", .kind = OP_RELEASE},
    {.name = "barrier", .kind = OP_BARRIER},
    {.name = "pipeline", .kind = OP_PIPELINE},
    {.name = "copy", .kind = OP_MOVE},
    {.name = "put", .kind = OP_MOVE},
    {.name = "pws", .kind = OP_MOVE, .signals = true},
    {.name = "pwsf", .kind = OP_MOVE, .signals = true},
    {.name = "get", .kind = OP_MOVE},
    {.name = "re", .kind = OP_MOVE, .sums = true},
    {.name = "res", .kind = OP_MOVE, .sums = true},
    {.name = "rre", .kind = OP_MOVE, .sums = true},
    {.name = "rres", .kind = OP_MOVE, .sums = true},
    {.name = "ppkt", .kind = OP_MOVE, .makes_packets = true},
    {.name = "cpkt", .kind = OP_MOVE, .makes_packets = true},
    {.name = "upkt", .kind = OP_MOVE, .takes_packets = true},
    {.name = "rppkt", .kind = OP_MOVE, .takes_packets = true, .makes_packets = true},
    {.name = "repkt", .kind = OP_MOVE, .sums = true, .takes_packets = true},
    {.name = "respkt", .kind = OP_MOVE, .sums = true, .takes_packets = true, .makes_packets = true},
    {.name = "recspkt", .kind = OP_MOVE, .sums = true, .takes_packets = true, .makes_packets = true},
    {.name = "glre", .kind = OP_MOVE, .sums = true},
    {.name = "gstore", .kind = OP_MOVE},
    {.name = "glres", .kind = OP_MOVE, .sums = true},
};

/* The state of an op while it is read. */
struct op_reader {
  struct pp_reader *file;
  const struct json_value *value;
  const struct op_name *name;
  uint32_t channel_type;     /* enum pp_channel; PP_CHANNEL_TYPES when it names none */
  uint32_t part, part_count; /* this block's part of the op's chunks, and the number of parts */
  uint32_t chunk_count;      /* of each of its places, on the grid; 0 before the first */
};

static ncclResult_t op_add(struct pp_reader *reader, const struct onesided_op *op) {
  struct onesided_plan *plan = &reader->plan;
  if (!array_grow(&plan->ops, &plan->op_capacity, (uint64_t)plan->op_count + 1, sizeof *plan->ops))
    return pp_out_of_memory(reader);
  plan->ops[plan->op_count++] = *op;
  return ncclSuccess;
}

/* ---- channels ---- */

static ncclResult_t op_channel_type(struct op_reader *op) {
  const struct json_value *word = json_member(&op->file->tree, op->value, "channel_type");
  op->channel_type = PP_CHANNEL_TYPES;
  if (word == NULL) return ncclSuccess;
  for (uint32_t type = 0; type < PP_CHANNEL_TYPES && word->kind == JSON_STRING; type++)
    if (strcmp(word->text, pp_channel_names[type]) == 0) op->channel_type = type;
  if (op->channel_type == PP_CHANNEL_TYPES)
    return pp_fail(op->file, word, "\"channel_type\": expected memory, port or switch");
  return ncclSuccess;
}

/* A number in one of the block's lists, such as channel_ids under "channel_type". */
static ncclResult_t block_number(const struct op_reader *op, const char *list, const char *key,
                                 const char *name, uint64_t place, uint32_t *number) {
  const struct pp_reader *file = op->file;
  const struct json_value *object;
  uint64_t wide;
  if (op->channel_type == PP_CHANNEL_TYPES)
    return pp_fail(file, op->value, "\"channel_type\" is missing: expected memory, port or switch");
  const char *type = pp_channel_names[op->channel_type];
  const struct json_value *item = place > UINT32_MAX ? NULL
                                                     : pp_pick(file, pp_array(file, file->block, list), key,
                                                               type, name, (uint32_t)place, &object);
  if (item == NULL)
    return pp_fail(file, op->value,
                   "its threadblock has no number %" PRIu64 " among the \"%s\" of its %s \"%s\"", place, name,
                   type, list);
  TRY(pp_number_of(file, item, name, 0, UINT32_MAX, &wide));
  *number = (uint32_t)wide;
  return ncclSuccess;
}

/* A signal raises its own channel's counter, a wait lowers the other end's. */
static ncclResult_t channels_sync(struct op_reader *op, bool raises) {
  struct pp_reader *file = op->file;
  const struct pp_rank *rank = &file->ranks[file->rank];
  const struct json_value *list, *item = NULL;
  TRY(pp_take(file, op->value, "channel_ids", JSON_ARRAY, &list));
  while ((item = json_next(&file->tree, list, item)) != NULL) {
    uint64_t place;
    uint32_t channel;
    TRY(pp_number_of(file, item, "channel_ids", 0, UINT32_MAX, &place));
    TRY(block_number(op, "channels", "channel_type", "channel_ids", place, &channel));
    if (op->channel_type == PP_SWITCH)
      return pp_fail(file, op->value, "a switch has no signals: expected a memory or a port channel");
    if (channel >= rank->channel_count[op->channel_type])
      return pp_fail(file, op->value, "rank %" PRIu32 " has no %s channel %" PRIu32, file->rank,
                     pp_channel_names[op->channel_type], channel);
    const uint32_t counter = rank->first_counter[op->channel_type] + channel;
    const struct pp_end *end = &file->ends[counter];
    if (end->other == UINT32_MAX)
      return pp_fail(file, op->value,
                     "%s channel %" PRIu32 " of rank %" PRIu32 " has no other end: rank %" PRIu32
                     " has fewer channels to it",
                     pp_channel_names[op->channel_type], channel, file->rank, end->peer);
    const struct onesided_op sync = {.kind = raises ? ONESIDED_RAISE : ONESIDED_AWAIT,
                                     .relaxed = op->name->relaxed,
                                     .line = op->value->line,
                                     .object = raises ? counter : end->other};
    TRY(op_add(file, &sync));
  }
  return ncclSuccess;
}

/* ---- within a rank ---- */

static ncclResult_t semaphores_sync(struct op_reader *op, bool raises) {
  struct pp_reader *file = op->file;
  const struct pp_rank *rank = &file->ranks[file->rank];
  const struct json_value *list, *item = NULL;
  TRY(pp_take(file, op->value, "semaphore_ids", JSON_ARRAY, &list));
  while ((item = json_next(&file->tree, list, item)) != NULL) {
    uint64_t number;
    if (rank->semaphore_count == 0) return pp_fail(file, op->value, "its gpu has no \"semaphores\"");
    TRY(pp_number_of(file, item, "semaphore_ids", 0, rank->semaphore_count - 1, &number));
    const struct onesided_op sync = {.kind = raises ? ONESIDED_RAISE : ONESIDED_AWAIT,
                                     .line = op->value->line,
                                     .object = rank->first_semaphore + (uint32_t)number};
    TRY(op_add(file, &sync));
  }
  return ncclSuccess;
}

static ncclResult_t barrier_add(struct pp_reader *file, uint32_t id, uint32_t count) {
  struct onesided_plan *plan = &file->plan;
  if (!array_grow(&plan->barriers, &plan->barrier_capacity, (uint64_t)plan->barrier_count + 1,
                  sizeof *plan->barriers) ||
      !array_grow(&file->barrier_ids, &file->barrier_id_capacity, (uint64_t)plan->barrier_count + 1,
                  sizeof *file->barrier_ids))
    return pp_out_of_memory(file);
  file->barrier_ids[plan->barrier_count] = id;
  plan->barriers[plan->barrier_count++] = count;
  return ncclSuccess;
}

static ncclResult_t barrier_sync(struct op_reader *op) {
  struct pp_reader *file = op->file;
  uint32_t id, count, index = file->rank_barriers;
  TRY(pp_take_number(file, op->value, "barrier_id", 0, UINT32_MAX, &id));
  TRY(pp_take_number(file, op->value, "num_threadblocks", 1, ONESIDED_BLOCKS_MAX, &count));
  while (index < file->plan.barrier_count && file->barrier_ids[index] != id) index++;
  if (index == file->plan.barrier_count) TRY(barrier_add(file, id, count));
  if (file->plan.barriers[index] != count)
    return pp_fail(file, op->value,
                   "\"num_threadblocks\" of barrier %" PRIu32 " is %" PRIu32 ", and was %" PRIu32, id, count,
                   file->plan.barriers[index]);
  const struct onesided_op sync = {.kind = ONESIDED_BARRIER, .line = op->value->line, .object = index};
  return op_add(file, &sync);
}

/* ---- places ---- */

static ncclResult_t buffer_of(const struct op_reader *op, const struct json_value *object, const char *name,
                              uint8_t *buffer) {
  const struct json_value *word;
  TRY(pp_take(op->file, object, name, JSON_STRING, &word));
  if (strcmp(word->text, "i") == 0) *buffer = ONESIDED_INPUT;
  else if (strcmp(word->text, "o") == 0) *buffer = ONESIDED_OUTPUT;
  else if (strcmp(word->text, "s") == 0) *buffer = ONESIDED_SCRATCH;
  else return pp_fail(op->file, word, "\"%s\": expected i, o or s, found '%.40s'", name, word->text);
  return ncclSuccess;
}

static ncclResult_t place_add(struct op_reader *op, const struct json_value *value, uint32_t rank,
                              uint8_t buffer) {
  struct pp_reader *file = op->file;
  struct onesided_plan *plan = &file->plan;
  const struct custom_schedule *schedule = file->build->schedule;
  uint32_t index, size;
  TRY(pp_take_number(file, value, "index", 0, INT32_MAX / file->parts, &index));
  TRY(pp_take_number(file, value, "size", 1, CUSTOM_CHUNKS_MAX, &size));
  const uint64_t chunks = (uint64_t)size * file->parts;
  const uint64_t first = (uint64_t)index * file->parts,
                 capacity = buffer == ONESIDED_SCRATCH  ? file->ranks[rank].scratch_count
                            : buffer == ONESIDED_OUTPUT ? custom_out_chunks(schedule)
                                                        : custom_in_chunks(schedule);
  if (first + chunks > capacity)
    return pp_fail(file, value,
                   "chunks %" PRIu32 " to %" PRIu32 " of a buffer of rank %" PRIu32 " that has %" PRIu64,
                   index, index + size - 1, rank, capacity / file->parts);
  const uint32_t count = (uint32_t)(chunks / op->part_count);
  if (op->chunk_count != 0 && op->chunk_count != count)
    return pp_fail(file, value, "\"size\" is %" PRIu32 ", and another where the op begins: expected one",
                   size);
  op->chunk_count = count;
  if (!array_grow(&plan->places, &plan->place_capacity, (uint64_t)plan->place_count + 1,
                  sizeof *plan->places))
    return pp_out_of_memory(file);
  plan->places[plan->place_count++] =
      (struct onesided_place){rank, (uint32_t)first + op->part * count, buffer};
  return ncclSuccess;
}

/* The place at each rank that a switch connects. */
static ncclResult_t places_of_switch(struct op_reader *op, const struct json_value *value, uint64_t place) {
  struct pp_reader *file = op->file;
  const struct json_value *list = pp_array(file, file->ranks[file->rank].value, "channels");
  const struct json_value *object, *ranks, *item = NULL;
  uint32_t channel;
  uint8_t buffer;
  op->channel_type = PP_SWITCH;
  TRY(block_number(op, "channels", "channel_type", "channel_ids", place, &channel));
  const struct json_value *group =
      pp_pick(file, list, "channel_type", pp_channel_names[PP_SWITCH], "rank_groups", channel, &object);
  if (group == NULL)
    return pp_fail(file, op->value, "rank %" PRIu32 " has no switch channel %" PRIu32, file->rank, channel);
  TRY(pp_take(file, group, "ranks", JSON_ARRAY, &ranks));
  /* the description has buffer_type; some published plans have buff */
  TRY(buffer_of(op, object, json_member(&file->tree, object, "buff") == NULL ? "buffer_type" : "buff",
                &buffer));
  while ((item = json_next(&file->tree, ranks, item)) != NULL) {
    uint64_t rank;
    TRY(pp_number_of(file, item, "ranks", 0, file->build->schedule->rank_count - 1, &rank));
    TRY(place_add(op, value, (uint32_t)rank, buffer));
  }
  return ncclSuccess;
}

static ncclResult_t places_of(struct op_reader *op, const struct json_value *value) {
  struct pp_reader *file = op->file;
  const struct json_value *remote = json_member(&file->tree, value, "buffer_id");
  const struct json_value *group = json_member(&file->tree, value, "switch_channel_id");
  uint64_t place;
  uint8_t buffer;
  if (group != NULL) {
    TRY(pp_number_of(file, group, "switch_channel_id", 0, UINT32_MAX, &place));
    return places_of_switch(op, value, place);
  }
  if (remote == NULL) {
    TRY(buffer_of(op, value, "type", &buffer));
    return place_add(op, value, file->rank, buffer);
  }
  const struct json_value *list, *object = NULL;
  uint32_t id, rank;
  TRY(pp_number_of(file, remote, "buffer_id", 0, UINT32_MAX, &place));
  TRY(block_number(op, "remote_buffer_refs", "access_channel_type", "remote_buffer_ids", place, &id));
  TRY(pp_take(file, file->ranks[file->rank].value, "remote_buffers", JSON_ARRAY, &list));
  if (id >= list->count)
    return pp_fail(file, value, "remote buffer %" PRIu32 ": its gpu has %" PRIu32, id, list->count);
  for (uint32_t i = 0; i <= id; i++) object = json_next(&file->tree, list, object);
  TRY(pp_take_number(file, object, "rank", 0, file->build->schedule->rank_count - 1, &rank));
  TRY(buffer_of(op, object, "type", &buffer));
  return place_add(op, value, rank, buffer);
}

/* ---- moves ---- */

static ncclResult_t op_part(struct op_reader *op) {
  const struct json_value *group = json_member(&op->file->tree, op->value, "tbg_info");
  op->part = 0;
  op->part_count = 1;
  if (group == NULL) return ncclSuccess;
  TRY(pp_take_number(op->file, group, "tbg_size", 1, op->file->parts, &op->part_count));
  return pp_take_number(op->file, group, "tb_id", 0, op->part_count - 1, &op->part);
}

static ncclResult_t op_operator(const struct op_reader *op) {
  const struct json_value *word = json_member(&op->file->tree, op->value, "reduce_op");
  if (word == NULL || (word->kind == JSON_STRING && strcmp(word->text, "sum") == 0)) return ncclSuccess;
  return pp_fail(op->file, word, "\"reduce_op\": expected sum, which stands for the call's operator");
}

/* Takes every `nth` place of both lists; all if nth is negative. */
static ncclResult_t move_add(struct op_reader *op, const struct json_value *sources,
                             const struct json_value *targets, int64_t nth) {
  struct onesided_plan *plan = &op->file->plan;
  struct onesided_op move = {.kind = ONESIDED_MOVE,
                             .takes_packets = op->name->takes_packets,
                             .makes_packets = op->name->makes_packets,
                             .line = op->value->line,
                             .first_place = plan->place_count};
  op->chunk_count = 0;
  for (uint32_t side = 0; side < 2; side++) {
    const struct json_value *list = side == 0 ? sources : targets, *item = NULL;
    for (int64_t i = 0; (item = json_next(&op->file->tree, list, item)) != NULL; i++)
      if (nth < 0 || i == nth) TRY(places_of(op, item));
    if (side == 0) move.source_count = plan->place_count - move.first_place;
  }
  move.target_count = plan->place_count - move.first_place - move.source_count;
  move.chunk_count = op->chunk_count;
  if (move.source_count == 0 || move.target_count == 0)
    return pp_fail(op->file, op->value, "expected places in \"src_buff\" and in \"dst_buff\"");
  return op_add(op->file, &move);
}

static ncclResult_t op_move(struct op_reader *op) {
  const struct json_value *sources, *targets;
  TRY(pp_take(op->file, op->value, "src_buff", JSON_ARRAY, &sources));
  TRY(pp_take(op->file, op->value, "dst_buff", JSON_ARRAY, &targets));
  TRY(op_part(op));
  TRY(op_operator(op));
  if (op->name->sums || sources->count == 1) {
    TRY(move_add(op, sources, targets, -1));
  } else if (sources->count != targets->count) {
    return pp_fail(op->file, op->value,
                   "\"%s\" from %" PRIu32 " places to %" PRIu32
                   ": expected one source, or one for each target",
                   op->name->name, sources->count, targets->count);
  } else {
    for (uint32_t i = 0; i < sources->count; i++) TRY(move_add(op, sources, targets, i));
  }
  return op->name->signals ? channels_sync(op, true) : ncclSuccess;
}

/* ---- ops ---- */

static ncclResult_t op_name_take(struct op_reader *op) {
  const struct json_value *word;
  TRY(pp_take(op->file, op->value, "name", JSON_STRING, &word));
  for (uint32_t i = 0; i < sizeof op_names / sizeof op_names[0]; i++)
    if (strcmp(word->text, op_names[i].name) == 0) op->name = &op_names[i];
  if (op->name == NULL)
    return pp_fail(
        op->file, word,
        "an op \"%.40s\": expected copy, put, pws, pwsf, get, re, res, rre, rres, ppkt, cpkt, upkt, "
        "rppkt, repkt, respkt, recspkt, glre, gstore, glres, signal, wait, rlxsignal, rlxwait, flush, "
        "sem_acquire, sem_release, barrier, pipeline or nop",
        word->text);
  return ncclSuccess;
}

/* A pipeline repeats its ops for each piece of its chunks; lists run all pieces in any case. */
static ncclResult_t op_pipeline(struct op_reader *op, bool in_pipeline) {
  const struct json_value *ops;
  if (in_pipeline) return pp_fail(op->file, op->value, "a pipeline within a pipeline");
  TRY(pp_take(op->file, op->value, "ops", JSON_ARRAY, &ops));
  return pp_ops_take(op->file, ops, true);
}

static ncclResult_t op_take(struct op_reader *op, bool in_pipeline) {
  TRY(op_name_take(op));
  TRY(op_channel_type(op));
  switch (op->name->kind) {
    case OP_NONE: return ncclSuccess;
    case OP_SIGNAL: return channels_sync(op, true);
    case OP_WAIT: return channels_sync(op, false);
    case OP_ACQUIRE: return semaphores_sync(op, false);
    case OP_RELEASE: return semaphores_sync(op, true);
    case OP_BARRIER: return barrier_sync(op);
    case OP_PIPELINE: return op_pipeline(op, in_pipeline);
    default: return op_move(op);
  }
}

ncclResult_t pp_ops_take(struct pp_reader *reader, const struct json_value *ops, bool in_pipeline) {
  const struct json_value *value = NULL;
  while ((value = json_next(&reader->tree, ops, value)) != NULL) {
    struct op_reader op = {.file = reader, .value = value};
    TRY(op_take(&op, in_pipeline));
  }
  return ncclSuccess;
}
