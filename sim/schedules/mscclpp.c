/* mscclpp.c: MSCCL++'s execution plans, JSON: gpus[] has the ranks, their threadblocks[] the ops. onesided.h
 * defines what the ops do. Written from the format's public description and from published plans. */
#include "schedules/formats.h"
#include "schedules/mscclpp.h"

#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

/* The most parts that a chunk of the file is cut into. */
#define PARTS_MAX 1024

const char *const pp_channel_names[PP_CHANNEL_TYPES] = {"memory", "port", "switch"};

ncclResult_t pp_out_of_memory(const struct pp_reader *reader) {
  return log_no_memory("%s: the plan", reader->build->name);
}

/* ---- members ---- */

ncclResult_t pp_take(const struct pp_reader *reader, const struct json_value *object, const char *name,
                     enum json_kind kind, const struct json_value **member) {
  static const char *const kinds[] = {"null",     "true or false", "a number",
                                      "a string", "an array",      "an object"};
  if (object->kind != JSON_OBJECT)
    return pp_fail(reader, object, "expected an object with \"%s\", found %s", name, json_kind_name(object));
  *member = json_member(&reader->tree, object, name);
  if (*member == NULL) return pp_fail(reader, object, "\"%s\" is missing: expected %s", name, kinds[kind]);
  if ((*member)->kind != (uint8_t)kind)
    return pp_fail(reader, *member, "\"%s\": expected %s, found %s", name, kinds[kind],
                   json_kind_name(*member));
  return ncclSuccess;
}

ncclResult_t pp_number_of(const struct pp_reader *reader, const struct json_value *value, const char *name,
                          uint64_t lowest, uint64_t highest, uint64_t *number) {
  if (json_whole(value, number) && *number >= lowest && *number <= highest) return ncclSuccess;
  return pp_fail(reader, value,
                 "\"%s\": expected a whole number from %" PRIu64 " to %" PRIu64 ", found %.40s", name, lowest,
                 highest, value->kind == JSON_NUMBER ? value->text : json_kind_name(value));
}

ncclResult_t pp_take_number(const struct pp_reader *reader, const struct json_value *object, const char *name,
                            uint64_t lowest, uint64_t highest, uint32_t *number) {
  const struct json_value *member;
  uint64_t wide;
  TRY(pp_take(reader, object, name, JSON_NUMBER, &member));
  TRY(pp_number_of(reader, member, name, lowest, highest, &wide));
  *number = (uint32_t)wide;
  return ncclSuccess;
}

/* An optional array. */
const struct json_value *pp_array(const struct pp_reader *reader, const struct json_value *object,
                                  const char *name) {
  const struct json_value *member = json_member(&reader->tree, object, name);
  return member != NULL && member->kind == JSON_ARRAY ? member : NULL;
}

const struct json_value *pp_pick(const struct pp_reader *reader, const struct json_value *array,
                                 const char *key, const char *wanted, const char *name, uint32_t index,
                                 const struct json_value **object) {
  const struct json_value *item = NULL;
  while (array != NULL && (item = json_next(&reader->tree, array, item)) != NULL) {
    const struct json_value *word = json_member(&reader->tree, item, key), *picked = NULL;
    const struct json_value *within = pp_array(reader, item, name);
    if (word == NULL || word->kind != JSON_STRING || strcmp(word->text, wanted) != 0 || within == NULL)
      continue;
    *object = item;
    if (index >= within->count) {
      index -= within->count;
      continue;
    }
    for (uint32_t i = 0; i <= index; i++) picked = json_next(&reader->tree, within, picked);
    return picked;
  }
  return NULL;
}

/* ---- the head ---- */

static ncclResult_t head_sizes(const struct pp_reader *reader, const struct json_value *root) {
  static const char *const names[] = {"min_message_size", "max_message_size"};
  struct custom_schedule *schedule = reader->build->schedule;
  for (uint32_t i = 0; i < 2; i++) {
    const struct json_value *member = json_member(&reader->tree, root, names[i]);
    uint64_t bytes;
    if (member == NULL) continue;
    TRY(pp_number_of(reader, member, names[i], 0, UINT64_MAX, &bytes));
    *(i == 0 ? &schedule->min_bytes : &schedule->max_bytes) = bytes;
  }
  return ncclSuccess;
}

static ncclResult_t head_take(const struct pp_reader *reader, const struct json_value *root) {
  struct custom_schedule *schedule = reader->build->schedule;
  const struct json_value *name = json_member(&reader->tree, root, "name");
  const struct json_value *collective, *protocol, *in_place, *gpus;
  TRY(pp_take(reader, root, "collective", JSON_STRING, &collective));
  TRY(pp_take(reader, root, "protocol", JSON_STRING, &protocol));
  TRY(pp_take(reader, root, "inplace", JSON_BOOL, &in_place));
  TRY(pp_take(reader, root, "gpus", JSON_ARRAY, &gpus));
  const int func = custom_func_of(collective->text), proto = custom_proto_of(protocol->text);
  if (func < 0)
    return pp_fail(
        reader, collective,
        "\"collective\": expected allreduce, allgather, reducescatter, broadcast or alltoall, found "
        "'%.40s'",
        collective->text);
  if (proto != PROTO_SIMPLE && proto != PROTO_LL)
    return pp_fail(reader, protocol, "\"protocol\": expected Simple or LL, found '%.40s'", protocol->text);
  if (gpus->count < 2 || gpus->count > CUSTOM_RANKS_MAX)
    return pp_fail(reader, gpus, "\"gpus\": expected 2 to %d of them, found %" PRIu32, CUSTOM_RANKS_MAX,
                   gpus->count);
  custom_name_take(schedule, name != NULL && name->kind == JSON_STRING ? name->text : "");
  schedule->func = (uint8_t)func;
  schedule->protos = (uint8_t)(1u << proto);
  schedule->places = in_place->truth ? CUSTOM_IN_PLACE : CUSTOM_OUT_OF_PLACE;
  schedule->rank_count = gpus->count;
  return head_sizes(reader, root);
}

/* ---- ranks ---- */

static ncclResult_t counter_add(struct pp_reader *reader, uint32_t initial, uint32_t peer) {
  struct onesided_plan *plan = &reader->plan;
  if (!array_grow(&reader->ends, &reader->end_capacity, (uint64_t)plan->counter_count + 1,
                  sizeof *reader->ends) ||
      !array_grow(&plan->counters, &plan->counter_capacity, (uint64_t)plan->counter_count + 1,
                  sizeof *plan->counters))
    return pp_out_of_memory(reader);
  reader->ends[plan->counter_count] = (struct pp_end){peer, UINT32_MAX};
  plan->counters[plan->counter_count++] = (struct onesided_counter){initial, 0};
  return ncclSuccess;
}

static ncclResult_t rank_channels(struct pp_reader *reader, uint32_t rank, uint32_t type) {
  const struct json_value *list = pp_array(reader, reader->ranks[rank].value, "channels"), *object = NULL;
  while (list != NULL && (object = json_next(&reader->tree, list, object)) != NULL) {
    const struct json_value *word = json_member(&reader->tree, object, "channel_type"), *item = NULL;
    const struct json_value *peers = pp_array(reader, object, "connected_to");
    if (word == NULL || word->kind != JSON_STRING || peers == NULL ||
        strcmp(word->text, pp_channel_names[type]) != 0)
      continue;
    while ((item = json_next(&reader->tree, peers, item)) != NULL) {
      uint64_t peer;
      TRY(pp_number_of(reader, item, "connected_to", 0, reader->build->schedule->rank_count - 1, &peer));
      TRY(counter_add(reader, 0, (uint32_t)peer));
    }
  }
  return ncclSuccess;
}

static ncclResult_t rank_counters(struct pp_reader *reader, uint32_t rank) {
  struct pp_rank *own = &reader->ranks[rank];
  const struct json_value *list = pp_array(reader, own->value, "semaphores"), *item = NULL;
  for (uint32_t type = PP_MEMORY; type <= PP_PORT; type++) {
    own->first_counter[type] = reader->plan.counter_count;
    TRY(rank_channels(reader, rank, type));
    own->channel_count[type] = reader->plan.counter_count - own->first_counter[type];
  }
  own->first_semaphore = reader->plan.counter_count;
  while (list != NULL && (item = json_next(&reader->tree, list, item)) != NULL) {
    uint32_t initial;
    TRY(pp_take_number(reader, item, "init_value", 0, CUSTOM_STEPS_MAX, &initial));
    TRY(counter_add(reader, initial, 0));
    own->semaphore_count += 1;
  }
  return ncclSuccess;
}

/* A rank's nth channel to a peer is connected with that peer's nth channel to the rank. */
static void channels_pair(struct pp_reader *reader, uint32_t rank, uint32_t type) {
  const struct pp_rank *own = &reader->ranks[rank];
  for (uint32_t i = 0; i < own->channel_count[type]; i++) {
    struct pp_end *ends = &reader->ends[own->first_counter[type]];
    const struct pp_rank *peer = &reader->ranks[ends[i].peer];
    const uint32_t first = peer->first_counter[type];
    uint32_t before = 0, other = 0;
    for (uint32_t k = 0; k < i; k++) before += ends[k].peer == ends[i].peer;
    for (; other < peer->channel_count[type]; other++)
      if (reader->ends[first + other].peer == rank && before-- == 0) break;
    ends[i].other = other < peer->channel_count[type] ? first + other : UINT32_MAX;
  }
}

/* The chunks of a rank's count, from the buffer that gives it; the blocks of all ranks if the buffer holds
 * those. */
static ncclResult_t rank_chunks(const struct pp_reader *reader, const struct json_value *value) {
  struct custom_schedule *schedule = reader->build->schedule;
  const bool all = schedule->func == FUNC_ALL_GATHER || schedule->func == FUNC_REDUCE_SCATTER ||
                   schedule->func == FUNC_ALL_TO_ALL;
  const char *name = schedule->func == FUNC_ALL_GATHER ? "output_chunks" : "input_chunks";
  const uint32_t blocks = all ? schedule->rank_count : 1;
  uint32_t chunks;
  if (json_member(&reader->tree, value, "inputChunks") != NULL)
    return pp_fail(reader, value,
                   "\"inputChunks\": a plan of MSCCL++'s older language: expected one with \"input_chunks\"");
  TRY(pp_take_number(reader, value, name, 1, (uint64_t)CUSTOM_CHUNKS_MAX * blocks, &chunks));
  if (chunks % blocks != 0)
    return pp_fail(reader, value, "\"%s\" is %" PRIu32 ": expected a multiple of the %" PRIu32 " ranks", name,
                   chunks, blocks);
  if (schedule->chunk_count != 0 && schedule->chunk_count != chunks / blocks)
    return pp_fail(reader, value, "\"%s\" is %" PRIu32 ", and was another with the ranks before", name,
                   chunks);
  schedule->chunk_count = chunks / blocks;
  return ncclSuccess;
}

static ncclResult_t ranks_take(struct pp_reader *reader, const struct json_value *root) {
  struct custom_schedule *schedule = reader->build->schedule;
  const struct json_value *gpus = json_member(&reader->tree, root, "gpus"), *value = NULL;
  reader->ranks = (struct pp_rank *)os_alloc(schedule->rank_count * sizeof *reader->ranks);
  if (reader->ranks == NULL) return pp_out_of_memory(reader);
  for (uint32_t rank = 0; rank < schedule->rank_count; rank++) {
    uint32_t id, scratch;
    value = json_next(&reader->tree, gpus, value);
    TRY(pp_take_number(reader, value, "id", 0, UINT32_MAX, &id));
    if (id != rank)
      return pp_fail(reader, value, "\"id\" of a gpu: expected %" PRIu32 ", the next, found %" PRIu32, rank,
                     id);
    TRY(rank_chunks(reader, value));
    TRY(pp_take_number(reader, value, "scratch_chunks", 0, CUSTOM_CHUNKS_MAX, &scratch));
    reader->ranks[rank].value = value;
    reader->ranks[rank].scratch_count = scratch * reader->parts;
    if (scratch > schedule->scratch_count) schedule->scratch_count = scratch;
    TRY(rank_counters(reader, rank));
  }
  for (uint32_t rank = 0; rank < schedule->rank_count; rank++)
    for (uint32_t type = PP_MEMORY; type <= PP_PORT; type++) channels_pair(reader, rank, type);
  const uint64_t scratch_sum = (uint64_t)schedule->scratch_count * schedule->rank_count * reader->parts;
  if ((uint64_t)schedule->chunk_count * reader->parts > CUSTOM_CHUNKS_MAX ||
      scratch_sum > ONESIDED_SCRATCH_MAX ||
      (uint64_t)schedule->scratch_count * reader->parts > CUSTOM_CHUNKS_MAX)
    return custom_fail(
        reader->build, 0,
        "its chunks, cut so that groups of thread blocks share them, are more than %d of a rank's "
        "count or scratch, or more than %u of all scratch",
        CUSTOM_CHUNKS_MAX, ONESIDED_SCRATCH_MAX);
  schedule->chunk_count *= reader->parts;
  schedule->scratch_count *= reader->parts;
  return ncclSuccess;
}

/* ---- groups of thread blocks ---- */

/* If several blocks share an op's chunks, each with one of tbg_size parts, the grid is as fine as all of them
 * need. */
static ncclResult_t parts_count(struct pp_reader *reader) {
  reader->parts = 1;
  for (uint32_t i = 0; i < reader->tree.count; i++) {
    const struct json_value *value = &reader->tree.values[i];
    uint64_t size, a = reader->parts, b;
    if (value->name == NULL || strcmp(value->name, "tbg_size") != 0) continue;
    TRY(pp_number_of(reader, value, "tbg_size", 1, PARTS_MAX, &size));
    for (b = size; b != 0;) {
      const uint64_t rest = a % b;
      a = b;
      b = rest;
    }
    if (reader->parts / a * size > PARTS_MAX)
      return pp_fail(reader, value, "groups of thread blocks cut a chunk into more than %d parts", PARTS_MAX);
    reader->parts = (uint32_t)(reader->parts / a * size);
  }
  return ncclSuccess;
}

/* ---- blocks ---- */

static ncclResult_t block_take(struct pp_reader *reader, const struct json_value *value, uint32_t number) {
  struct onesided_plan *plan = &reader->plan;
  const struct json_value *ops;
  uint32_t id;
  TRY(pp_take_number(reader, value, "id", 0, UINT32_MAX, &id));
  if (id != number)
    return pp_fail(reader, value, "\"id\" of a threadblock: expected %" PRIu32 ", the next, found %" PRIu32,
                   number, id);
  TRY(pp_take(reader, value, "ops", JSON_ARRAY, &ops));
  if (plan->block_count == ONESIDED_BLOCKS_MAX)
    return pp_fail(reader, value, "expected at most %d threadblocks of all gpus together",
                   ONESIDED_BLOCKS_MAX);
  if (!array_grow(&plan->blocks, &plan->block_capacity, (uint64_t)plan->block_count + 1,
                  sizeof *plan->blocks))
    return pp_out_of_memory(reader);
  const uint32_t first = plan->op_count;
  reader->block = value;
  TRY(pp_ops_take(reader, ops, false));
  plan->blocks[plan->block_count++] =
      (struct onesided_block){reader->rank, value->line, first, plan->op_count - first};
  return ncclSuccess;
}

static ncclResult_t blocks_take(struct pp_reader *reader) {
  for (uint32_t rank = 0; rank < reader->build->schedule->rank_count; rank++) {
    const struct json_value *list, *value = NULL;
    TRY(pp_take(reader, reader->ranks[rank].value, "threadblocks", JSON_ARRAY, &list));
    reader->rank = rank;
    reader->rank_barriers = reader->plan.barrier_count;
    for (uint32_t number = 0; (value = json_next(&reader->tree, list, value)) != NULL; number++)
      TRY(block_take(reader, value, number));
  }
  if (reader->plan.block_count == 0) return custom_fail(reader->build, 0, "it has no threadblocks");
  return ncclSuccess;
}

/* For each op, its index among its block's raises or waits of a counter, and their number. */
static ncclResult_t counters_settle(struct pp_reader *reader) {
  struct onesided_plan *plan = &reader->plan;
  uint32_t *counts = (uint32_t *)os_alloc((2 * (size_t)plan->counter_count + 1) * sizeof *counts);
  if (counts == NULL) return pp_out_of_memory(reader);
  for (uint32_t i = 0; i < plan->block_count; i++) {
    struct onesided_op *first = &plan->ops[plan->blocks[i].first_op], *end = first + plan->blocks[i].op_count;
    for (uint32_t turn = 0; turn < 3; turn++)
      for (struct onesided_op *op = first; op < end; op++) {
        if (op->kind != ONESIDED_RAISE && op->kind != ONESIDED_AWAIT) continue;
        uint32_t *count = &counts[2 * op->object + (op->kind == ONESIDED_RAISE)];
        if (turn == 0) op->ordinal = ++*count;
        else if (turn == 1) op->of_block = *count;
        else *count = 0;
        if (turn == 0 && op->kind == ONESIDED_RAISE) plan->counters[op->object].raise_count += 1;
      }
  }
  os_free(counts);
  return ncclSuccess;
}

/* ---- the whole ---- */

static ncclResult_t document_take(struct pp_reader *reader) {
  const struct json_value *root = &reader->tree.values[0];
  TRY(head_take(reader, root));
  TRY(parts_count(reader));
  TRY(ranks_take(reader, root));
  TRY(blocks_take(reader));
  TRY(counters_settle(reader));
  return onesided_lower(&reader->plan);
}

ncclResult_t custom_mscclpp_parse(struct custom_build *build, char *text, size_t bytes) {
  struct pp_reader reader;
  ncclResult_t result;
  memset(&reader, 0, sizeof reader);
  reader.build = reader.plan.build = build;
  if (json_read(text, bytes, &reader.tree)) result = document_take(&reader);
  else if (reader.tree.fault != NULL) result = custom_fail(build, reader.tree.line, "%s", reader.tree.fault);
  else result = pp_out_of_memory(&reader);
  os_free(reader.ranks);
  os_free(reader.ends);
  os_free(reader.barrier_ids);
  onesided_free(&reader.plan);
  json_free(&reader.tree);
  return result;
}
