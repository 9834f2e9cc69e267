/* msccl.c: MSCCL's XML: <algo>, in it a <gpu> per rank, in that a <tb> per thread block, in that <step>s. Its
 * buffers i, o and s are input, output and scratch; for in-place calls, what it writes to i is part of the
 * output. A dependence (depid, deps) is a wait for another block of the rank. libexpat reads the XML;
 * document type declarations are rejected. */
#include <expat.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/custom/custom_build.h"
#include "schedules/formats.h"

enum xml_depth { DEPTH_NONE, DEPTH_ALGO, DEPTH_GPU, DEPTH_TB, DEPTH_STEP };

static const char *const element_names[] = {"algo", "gpu", "tb", "step"};

struct xml_reader {
  struct custom_build *build;
  XML_Parser parser;
  ncclResult_t result;
  uint32_t depth; /* enum xml_depth */
  bool seen_algo;
  uint32_t rank, tb_count, step_count;
  bool sends, receives; /* the current tb has a peer on this side */
  uint64_t ranks_seen[CUSTOM_RANKS_MAX / 64];
};

static uint32_t line_of(const struct xml_reader *reader) {
  return (uint32_t)XML_GetCurrentLineNumber(reader->parser);
}

#define xml_fail(reader, ...) custom_fail((reader)->build, line_of(reader), __VA_ARGS__)

/* ---- attributes ---- */

static const char *attribute(const XML_Char **attributes, const char *name) {
  for (; attributes[0] != NULL; attributes += 2)
    if (strcmp(attributes[0], name) == 0) return attributes[1];
  return NULL;
}

static bool number_parse(const char *text, int64_t *number) {
  const bool minus = *text == '-';
  int64_t value = 0;
  text += minus;
  if (*text == '\0') return false;
  for (; *text != '\0'; text++) {
    if (*text < '0' || *text > '9' || value > (INT64_MAX - 9) / 10) return false;
    value = value * 10 + (*text - '0');
  }
  *number = minus ? -value : value;
  return true;
}

/* A required attribute, from `lowest` to `highest`. */
static ncclResult_t take_number(const struct xml_reader *reader, const XML_Char **attributes,
                                const char *name, int64_t lowest, int64_t highest, int64_t *number) {
  const char *text = attribute(attributes, name);
  const char *element = element_names[reader->depth];
  if (text == NULL) return xml_fail(reader, "<%s> has no %s", element, name);
  if (!number_parse(text, number) || *number < lowest || *number > highest)
    return xml_fail(reader, "<%s %s>: expected a number from %" PRId64 " to %" PRId64 ", found '%.40s'",
                    element, name, lowest, highest, text);
  return ncclSuccess;
}

/* The same for an optional one. */
static ncclResult_t take_optional(const struct xml_reader *reader, const XML_Char **attributes,
                                  const char *name, int64_t highest, int64_t *number) {
  if (attribute(attributes, name) == NULL) return ncclSuccess;
  return take_number(reader, attributes, name, 0, highest, number);
}

static const char *take_text(const XML_Char **attributes, const char *name) {
  const char *text = attribute(attributes, name);
  return text != NULL ? text : "";
}

/* ---- <algo> ---- */

static ncclResult_t algo_places(const struct xml_reader *reader, const XML_Char **attributes) {
  int64_t in_place = 0;
  TRY(take_optional(reader, attributes, "inplace", 1, &in_place));
  int64_t out_of_place = in_place == 0;
  TRY(take_optional(reader, attributes, "outofplace", 1, &out_of_place));
  reader->build->schedule->places =
      (uint8_t)((in_place != 0 ? CUSTOM_IN_PLACE : 0) | (out_of_place != 0 ? CUSTOM_OUT_OF_PLACE : 0));
  if (in_place == 0 && out_of_place == 0)
    return xml_fail(reader, "<algo> is for calls neither in place nor out of place: expected one of them");
  return ncclSuccess;
}

/* A loop's chunks are those of the larger buffer. */
static ncclResult_t algo_chunks(const struct xml_reader *reader, const XML_Char **attributes) {
  struct custom_schedule *schedule = reader->build->schedule;
  const bool all = schedule->func == FUNC_ALL_GATHER || schedule->func == FUNC_REDUCE_SCATTER ||
                   schedule->func == FUNC_ALL_TO_ALL;
  const uint32_t blocks = all ? schedule->rank_count : 1;
  int64_t chunks;
  TRY(take_number(reader, attributes, "nchunksperloop", 1, (int64_t)CUSTOM_CHUNKS_MAX * blocks, &chunks));
  if (chunks % blocks != 0)
    return xml_fail(reader, "nchunksperloop is %" PRId64 ": expected a multiple of the %" PRIu32 " ranks",
                    chunks, blocks);
  schedule->chunk_count = (uint32_t)(chunks / blocks);
  return ncclSuccess;
}

static ncclResult_t algo_begin(struct xml_reader *reader, const XML_Char **attributes) {
  struct custom_schedule *schedule = reader->build->schedule;
  const char *coll = take_text(attributes, "coll"), *proto_text = take_text(attributes, "proto");
  const int func = custom_func_of(coll), proto = custom_proto_of(proto_text);
  int64_t ranks, root = 0, min_bytes = 0, max_bytes = 0;
  if (func < 0)
    return xml_fail(
        reader,
        "<algo coll>: expected broadcast, reduce, allgather, reducescatter, allreduce or alltoall, "
        "found '%.40s'",
        coll);
  if (proto < 0)
    return xml_fail(reader, "<algo proto>: expected Simple, LL or LL128, found '%.40s'", proto_text);
  TRY(take_number(reader, attributes, "ngpus", 2, CUSTOM_RANKS_MAX, &ranks));
  TRY(take_optional(reader, attributes, "root", ranks - 1, &root));
  TRY(take_optional(reader, attributes, "minBytes", INT64_MAX, &min_bytes));
  TRY(take_optional(reader, attributes, "maxBytes", INT64_MAX, &max_bytes));
  custom_name_take(schedule, take_text(attributes, "name"));
  schedule->func = (uint8_t)func;
  schedule->protos = (uint8_t)(1u << proto);
  schedule->rank_count = (uint32_t)ranks;
  schedule->root = (uint32_t)root;
  schedule->min_bytes = (size_t)min_bytes;
  if (max_bytes > 0) schedule->max_bytes = (size_t)max_bytes;
  reader->seen_algo = true;
  TRY(algo_places(reader, attributes));
  return algo_chunks(reader, attributes);
}

/* ---- <gpu> and <tb> ---- */

static ncclResult_t gpu_begin(struct xml_reader *reader, const XML_Char **attributes) {
  struct custom_schedule *schedule = reader->build->schedule;
  int64_t rank, scratch = 0;
  TRY(take_number(reader, attributes, "id", 0, (int64_t)schedule->rank_count - 1, &rank));
  TRY(take_optional(reader, attributes, "s_chunks", CUSTOM_CHUNKS_MAX, &scratch));
  if ((reader->ranks_seen[rank / 64] >> (rank % 64)) & 1)
    return xml_fail(reader, "<gpu id=\"%" PRId64 "\"> is listed twice", rank);
  reader->ranks_seen[rank / 64] |= UINT64_C(1) << (rank % 64);
  if ((uint32_t)scratch > schedule->scratch_count) schedule->scratch_count = (uint32_t)scratch;
  reader->rank = (uint32_t)rank;
  reader->tb_count = 0;
  return ncclSuccess;
}

static ncclResult_t tb_begin(struct xml_reader *reader, const XML_Char **attributes) {
  const int64_t last = (int64_t)reader->build->schedule->rank_count - 1;
  struct custom_block *block;
  int64_t id, send, recv, channel;
  uint32_t link;
  TRY(take_number(reader, attributes, "id", 0, LIST_LANES_MAX - 1, &id));
  if (id != reader->tb_count)
    return xml_fail(reader, "<tb id>: expected %" PRIu32 ", the next of its gpu, found %" PRId64,
                    reader->tb_count, id);
  TRY(take_number(reader, attributes, "send", -1, last, &send));
  TRY(take_number(reader, attributes, "recv", -1, last, &recv));
  TRY(take_number(reader, attributes, "chan", 0, PLAN_CHANNELS_MAX - 1, &channel));
  TRY(custom_add_block(reader->build, reader->rank, (uint32_t)channel, line_of(reader), &block));
  if (send >= 0) TRY(custom_add_link(reader->build, true, (uint32_t)send, line_of(reader), &link));
  if (recv >= 0) TRY(custom_add_link(reader->build, false, (uint32_t)recv, line_of(reader), &link));
  reader->sends = send >= 0;
  reader->receives = recv >= 0;
  reader->tb_count += 1;
  reader->step_count = 0;
  return ncclSuccess;
}

/* ---- <step> ---- */

struct xml_type {
  const char *name;
  uint32_t flags;
};

static const struct xml_type xml_types[] = {
    {"nop", 0},
    {"s", STEP_COPY_IN | STEP_SEND},
    {"r", STEP_RECV | STEP_KEEP},
    {"rcs", STEP_RECV | STEP_KEEP | STEP_SEND},
    {"rrs", STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_SEND},
    {"rrc", STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP},
    {"rrcs", STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_SEND},
    {"cpy", STEP_COPY_IN | STEP_KEEP},
    {"re", STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_FOLD},
};

static ncclResult_t step_type(const struct xml_reader *reader, const XML_Char **attributes,
                              struct list_step *step) {
  const char *text = take_text(attributes, "type");
  uint32_t i = 0;
  while (i < sizeof xml_types / sizeof xml_types[0] && strcmp(text, xml_types[i].name) != 0) i++;
  if (i == sizeof xml_types / sizeof xml_types[0])
    return xml_fail(reader, "<step type>: expected s, r, rcs, rrs, rrc, rrcs, cpy, re or nop, found '%.40s'",
                    text);
  step->flags = xml_types[i].flags;
  step->send_links = (step->flags & STEP_SEND) != 0;
  step->recv_links = (step->flags & STEP_RECV) != 0;
  if (step->send_links > reader->sends || step->recv_links > reader->receives)
    return xml_fail(reader, "<step type=\"%s\"> %s, and its <tb> has no rank to %s", text,
                    step->send_links > reader->sends ? "sends" : "receives",
                    step->send_links > reader->sends ? "send to" : "receive from");
  return ncclSuccess;
}

static ncclResult_t step_source(const struct xml_reader *reader, const XML_Char **attributes,
                                struct list_step *step) {
  const char *text = take_text(attributes, "srcbuf");
  int64_t offset;
  TRY(take_number(reader, attributes, "srcoff", 0, INT32_MAX, &offset));
  step->in_chunk = (uint32_t)offset;
  if (strcmp(text, "i") == 0) return ncclSuccess;
  if (strcmp(text, "o") == 0) step->flags |= STEP_FROM_OUTPUT;
  else if (strcmp(text, "s") == 0) step->flags |= STEP_FROM_SCRATCH;
  else return xml_fail(reader, "<step srcbuf>: expected i, o or s, found '%.40s'", text);
  return ncclSuccess;
}

/* In place, the input is part of the output; for a reduce-scatter, the output is part of the input. */
static ncclResult_t step_destination(const struct xml_reader *reader, const XML_Char **attributes,
                                     struct list_step *step) {
  const struct custom_schedule *schedule = reader->build->schedule;
  const char *text = take_text(attributes, "dstbuf");
  int64_t offset;
  TRY(take_number(reader, attributes, "dstoff", 0, INT32_MAX, &offset));
  step->out_chunk = (uint32_t)offset;
  if (strcmp(text, "o") == 0) return ncclSuccess;
  if (strcmp(text, "s") == 0) {
    step->flags |= STEP_TO_SCRATCH;
  } else if (strcmp(text, "i") != 0) {
    return xml_fail(reader, "<step dstbuf>: expected i, o or s, found '%.40s'", text);
  } else if (schedule->places != CUSTOM_IN_PLACE || schedule->func == FUNC_REDUCE_SCATTER) {
    step->flags |= STEP_TO_INPUT;
  } else if (schedule->func == FUNC_ALL_GATHER) {
    if (step->out_chunk >= schedule->chunk_count)
      return xml_fail(reader, "<step dstoff>: the input has %" PRIu32 " chunks, found %" PRId64,
                      schedule->chunk_count, offset);
    step->out_chunk += reader->rank * schedule->chunk_count;
  }
  return ncclSuccess;
}

static ncclResult_t step_dependence(const struct xml_reader *reader, const XML_Char **attributes,
                                    struct list_step *step) {
  int64_t block = -1, last = -1;
  if (attribute(attributes, "depid") == NULL) return ncclSuccess;
  TRY(take_number(reader, attributes, "depid", -1, LIST_LANES_MAX - 1, &block));
  if (block < 0) return ncclSuccess;
  TRY(take_number(reader, attributes, "deps", 0, CUSTOM_STEPS_MAX, &last));
  step->flags |= STEP_AWAIT_LIST;
  step->wait_lane = (uint16_t)block;
  step->wait_steps = (uint32_t)last;
  return ncclSuccess;
}

static ncclResult_t step_begin(struct xml_reader *reader, const XML_Char **attributes) {
  struct list_step step;
  int64_t number, count = 1;
  memset(&step, 0, sizeof step);
  TRY(take_number(reader, attributes, "s", 0, CUSTOM_STEPS_MAX, &number));
  if (number != reader->step_count)
    return xml_fail(reader, "<step s>: expected %" PRIu32 ", the next of its tb, found %" PRId64,
                    reader->step_count, number);
  TRY(step_type(reader, attributes, &step));
  if (step.flags & STEP_COPY_IN) TRY(step_source(reader, attributes, &step));
  if (step.flags & STEP_KEEP) TRY(step_destination(reader, attributes, &step));
  if (step.flags != 0) TRY(take_number(reader, attributes, "cnt", 1, CUSTOM_CHUNKS_MAX, &count));
  TRY(step_dependence(reader, attributes, &step));
  reader->step_count += 1;
  return custom_add_step(reader->build, &step, (uint32_t)count, line_of(reader));
}

/* ---- the document ---- */

static void stop(struct xml_reader *reader, ncclResult_t result) {
  reader->result = result;
  XML_StopParser(reader->parser, XML_FALSE);
}

static void on_start(void *argument, const XML_Char *name, const XML_Char **attributes) {
  struct xml_reader *reader = (struct xml_reader *)argument;
  ncclResult_t result;
  if (reader->result != ncclSuccess) return;
  if (reader->depth == DEPTH_STEP || strcmp(name, element_names[reader->depth]) != 0) {
    stop(reader,
         xml_fail(reader, "expected %s%s%s, found <%.40s>", reader->depth == DEPTH_STEP ? "nothing" : "<",
                  reader->depth == DEPTH_STEP ? "" : element_names[reader->depth],
                  reader->depth == DEPTH_STEP ? " within <step>" : ">", name));
    return;
  }
  switch (reader->depth) {
    case DEPTH_NONE: result = algo_begin(reader, attributes); break;
    case DEPTH_ALGO: result = gpu_begin(reader, attributes); break;
    case DEPTH_GPU: result = tb_begin(reader, attributes); break;
    default: result = step_begin(reader, attributes); break;
  }
  reader->depth += 1;
  if (result != ncclSuccess) stop(reader, result);
}

static void on_end(void *argument, const XML_Char *name) {
  struct xml_reader *reader = (struct xml_reader *)argument;
  (void)name;
  reader->depth -= 1;
}

static void on_document_type(void *argument, const XML_Char *name, const XML_Char *system_id,
                             const XML_Char *public_id, int has_subset) {
  struct xml_reader *reader = (struct xml_reader *)argument;
  (void)name, (void)system_id, (void)public_id, (void)has_subset;
  if (reader->result == ncclSuccess)
    stop(reader, xml_fail(reader, "expected <algo>, found a document type, which a schedule has no use for"));
}

static ncclResult_t document_parse(struct xml_reader *reader, const char *text, size_t bytes) {
  XML_SetUserData(reader->parser, reader);
  XML_SetElementHandler(reader->parser, on_start, on_end);
  XML_SetStartDoctypeDeclHandler(reader->parser, on_document_type);
  const enum XML_Status status = XML_Parse(reader->parser, text, (int)bytes, 1);
  if (reader->result != ncclSuccess) return reader->result;
  if (status == XML_STATUS_OK && reader->seen_algo) return ncclSuccess;
  const enum XML_Error error = XML_GetErrorCode(reader->parser);
  if (error == XML_ERROR_NO_MEMORY) return log_no_memory("%s: the XML", reader->build->name);
  return xml_fail(reader, "expected well-formed XML: %s", XML_ErrorString(error));
}

ncclResult_t custom_msccl_parse(struct custom_build *build, char *text, size_t bytes) {
  struct xml_reader reader;
  memset(&reader, 0, sizeof reader);
  reader.build = build;
  reader.parser = XML_ParserCreate(NULL);
  if (reader.parser == NULL) return log_no_memory("%s: the XML", build->name);
  const ncclResult_t result = document_parse(&reader, text, bytes);
  XML_ParserFree(reader.parser);
  return result;
}
