/* record_text.c: reads and writes the text form. A table of fields for each kind of line serves both. */
#include "trace/record_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "schedule/work.h"

#define LINE_BYTES 4096
#define FIRST_LINE "# tutti records 1"
/* The largest section that a text may define: larger than any of the recorder's. */
#define SECTION_BYTES_MOST (256u << 10)
#define FILE_BYTES_MOST (256u << 20)

/* ---- the tables of fields ---- */

struct names {
  const char *const *words;
  uint32_t count;
};
#define NAMES(array) \
  { array, sizeof(array) / sizeof(array)[0] }

static const char *const func_words[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce",
                                         "SendRecv",  "Send",   "Recv",      "AlltoAll",      "Scatter",
                                         "Gather",    "Copy",   "PutSignal", "Signal",        "WaitSignal"};
static const char *const type_words[] = {"int8",    "uint8",    "int32",      "uint32",
                                         "int64",   "uint64",   "float16",    "float32",
                                         "float64", "bfloat16", "float8e4m3", "float8e5m2"};
static const char *const op_words[] = {"sum", "prod", "max", "min", "avg"};
static const char *const algo_words[] = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                         "NVLSTree", "PAT",  "Direct",        "TwoShot",      "Custom"};
static const char *const proto_words[] = {"LL", "LL128", "Simple"};
static const char *const state_words[] = {"open", "ended", "aborted"};
static const char *const life_words[] = {"none",   "finalize", "destroy", "abort",
                                         "revoke", "split",    "suspend", "resume"};
static const char *const wait_words[] = {"nothing", "offer", "data", "slot", "lines", "list"};
static const char *const input_words[] = {"end",
                                          "ranks",
                                          "places",
                                          "topology",
                                          "topology_rules",
                                          "masks",
                                          "threads",
                                          "rule_bytes",
                                          "rule_choice",
                                          "slots",
                                          "ll_bytes",
                                          "ll128_bytes",
                                          "simple_bytes",
                                          "chunk_bytes",
                                          "p2p_chunk_bytes",
                                          "channels",
                                          "p2p_channels",
                                          "p2p_channels_per_peer",
                                          "flag_bits",
                                          "direct",
                                          "algos",
                                          "algos_last",
                                          "links",
                                          "protos",
                                          "reserved",
                                          "cores",
                                          "quick_protos",
                                          "protos_torn",
                                          "algos_off",
                                          "p2p_ll_threshold",
                                          "net_peer_channels",
                                          "net_plain",
                                          "first_step",
                                          "rank_order",
                                          "reads_slots",
                                          "on_host",
                                          "shape"};
static_assert(sizeof input_words / sizeof input_words[0] == INPUT_NAMES, "a name each");
static const struct names func_names = NAMES(func_words), type_names = NAMES(type_words),
                          op_names = NAMES(op_words), algo_names = NAMES(algo_words),
                          proto_names = NAMES(proto_words), state_names = NAMES(state_words),
                          life_names = NAMES(life_words), wait_names = NAMES(wait_words),
                          input_names = NAMES(input_words);
static_assert(sizeof func_words / sizeof func_words[0] == FUNC_CALLS, "a name each");
static_assert(sizeof algo_words / sizeof algo_words[0] == ALGO_COUNT, "a name each");

static const char *name_of(const struct names *names, uint32_t number) {
  return number < names->count ? names->words[number] : "?";
}
const char *record_func_name(uint32_t func) { return name_of(&func_names, func); }
const char *record_type_name(uint32_t dtype) { return name_of(&type_names, dtype); }
const char *record_op_name(uint32_t op) { return op == 255 ? "user" : name_of(&op_names, op); }
const char *record_algo_name(uint32_t algo) { return name_of(&algo_names, algo); }
const char *record_proto_name(uint32_t proto) { return name_of(&proto_names, proto); }

enum field_kind { FIELD_DECIMAL, FIELD_HEX, FIELD_TEXT };
struct field {
  const char *name;
  uint16_t offset;
  uint16_t bytes; /* 1, 2, 4, 8; of texts their space */
  uint8_t kind;   /* enum field_kind */
  const struct names *names;
};
#define SIZE(type, member) sizeof(((struct type *)0)->member)
#define D(type, member) \
  { #member, offsetof(struct type, member), SIZE(type, member), FIELD_DECIMAL, NULL }
#define X(type, member) \
  { #member, offsetof(struct type, member), SIZE(type, member), FIELD_HEX, NULL }
#define T(type, member) \
  { #member, offsetof(struct type, member), SIZE(type, member), FIELD_TEXT, NULL }
#define N(type, member, of) \
  { #member, offsetof(struct type, member), SIZE(type, member), FIELD_DECIMAL, &of }

#define H(member) D(record_header, member)
static const struct field header_fields[] = {H(version),
                                             X(record_header, byte_order),
                                             H(header_bytes),
                                             H(record_bytes),
                                             H(used_bytes),
                                             X(record_header, process_realm),
                                             H(process_born),
                                             H(process),
                                             N(record_header, state, state_names),
                                             H(first_ticks),
                                             H(first_ns),
                                             H(wall_ns),
                                             H(last_ticks),
                                             H(last_ns),
                                             H(rank),
                                             H(refused),
                                             T(record_header, host),
                                             T(record_header, library),
                                             T(record_header, control),
                                             T(record_header, job),
                                             H(exits),
                                             H(exit_status),
                                             T(record_header, modules),
                                             H(awaited),
                                             H(ended_by)};
static const struct field caller_fields[] = {X(record_caller, address), X(record_caller, offset),
                                             T(record_caller, file)};
#define C(member) D(record_comm, member)
static const struct field comm_fields[] = {{"kind", 0, 4, FIELD_DECIMAL, NULL},
                                           {"header_bytes", 4, 4, FIELD_DECIMAL, NULL},
                                           {"bytes", 8, 8, FIELD_DECIMAL, NULL},
                                           X(record_comm, comm_id),
                                           C(born),
                                           C(rank),
                                           C(rank_count),
                                           C(device),
                                           N(record_comm, state, state_names),
                                           X(record_comm, settings_digest),
                                           X(record_comm, topology_digest),
                                           C(ring_records),
                                           C(plan_rows),
                                           C(lane_rows),
                                           C(link_rows),
                                           C(ring_offset),
                                           C(plan_offset),
                                           C(lane_offset),
                                           C(link_offset),
                                           C(proxy_rows),
                                           C(proxy_offset),
                                           T(record_comm, name),
                                           T(record_comm, reason),
                                           C(error),
                                           C(links_refused),
                                           C(tail),
                                           C(calls),
                                           C(open_group),
                                           C(counts),
                                           C(launched),
                                           C(started),
                                           C(ended),
                                           C(moved_ticks),
                                           C(links_used),
                                           C(proxies_used),
                                           C(pace_rows),
                                           C(pace_offset),
                                           C(paces_used),
                                           C(graph_operation),
                                           C(graph_runs),
                                           C(input_rows),
                                           C(input_offset)};
static const struct field call_fields[] = {N(record_call, func, func_names),
                                           N(record_call, dtype, type_names),
                                           N(record_call, op, op_names),
                                           D(record_call, peer),
                                           D(record_call, count),
                                           D(record_call, sequence),
                                           D(record_call, collective),
                                           D(record_call, ticks)};
static const struct field place_fields[] = {D(record_place, stream), D(record_place, flags),
                                            D(record_place, group),  X(record_place, in),
                                            X(record_place, out),    X(record_place, caller)};
static const struct field launch_fields[] = {D(record_launch, captured),   D(record_launch, streams),
                                             D(record_launch, operations), D(record_launch, sequence),
                                             D(record_launch, plan),       D(record_launch, number),
                                             D(record_launch, ticks)};
static const struct field error_fields[] = {D(record_error, result), D(record_error, sequence),
                                            D(record_error, ticks)};
static const struct field life_fields[] = {N(record_life_event, life, life_names),
                                           D(record_life_event, sequence), D(record_life_event, ticks)};
static const struct field plan_fields[] = {D(record_plan, used),
                                           N(record_plan, func, func_names),
                                           N(record_plan, algo, algo_names),
                                           N(record_plan, proto, proto_names),
                                           D(record_plan, works),
                                           D(record_plan, channels),
                                           D(record_plan, number),
                                           D(record_plan, step_bytes),
                                           X(record_plan, digest),
                                           D(record_plan, chunk_elements),
                                           D(record_plan, chunk_steps),
                                           D(record_plan, slice_steps),
                                           D(record_plan, slots),
                                           D(record_plan, element_bytes)};
static const struct field lane_fields[] = {
    D(record_lane, used), D(record_lane, channel),  D(record_lane, lane), N(record_lane, wait, wait_names),
    D(record_lane, peer), D(record_lane, sequence), D(record_lane, step), D(record_lane, have),
    D(record_lane, need)};
static const struct field link_fields[] = {
    D(record_link, used), D(record_link, channel), N(record_link, proto, proto_names),
    D(record_link, conn), D(record_link, peer),    D(record_link, step),
    D(record_link, head), D(record_link, tail)};

#define P(member) D(record_proxy, member)
static const struct field proxy_fields[] = {P(used),     P(channel),  N(record_proxy, proto, proto_names),
                                            P(conn),     P(peer),     P(posted),
                                            P(received), P(flushed),  P(transmitted),
                                            P(done),     P(connected)};

#define S(member) D(record_pace, member)
static const struct field pace_fields[] = {S(used),  S(channel), S(device), S(conn), S(peer),
                                           S(begin), S(since),   S(waited), S(count)};

#define I(member) D(record_input, member)
static const struct field input_fields[] = {I(used), N(record_input, name, input_names), I(index), I(a), I(b),
                                            I(c)};

enum line_kind {
  LINE_HEADER,
  LINE_COMM,
  LINE_PLAN,
  LINE_LANE,
  LINE_LINK,
  LINE_PROXY,
  LINE_PACE,
  LINE_INPUT,
  LINE_RECORD
};
struct line_type {
  const char *name;
  uint8_t kind;   /* enum line_kind */
  uint8_t record; /* LINE_RECORD: its enum record_kind */
  uint8_t field_count;
  const struct field *fields;
};
#define FIELDS(array) sizeof(array) / sizeof(array)[0], array
static const struct line_type line_types[] = {
    {"header", LINE_HEADER, 0, FIELDS(header_fields)},
    {"comm", LINE_COMM, 0, FIELDS(comm_fields)},
    {"plan", LINE_PLAN, 0, FIELDS(plan_fields)},
    {"lane", LINE_LANE, 0, FIELDS(lane_fields)},
    {"link", LINE_LINK, 0, FIELDS(link_fields)},
    {"proxy", LINE_PROXY, 0, FIELDS(proxy_fields)},
    {"pace", LINE_PACE, 0, FIELDS(pace_fields)},
    {"input", LINE_INPUT, 0, FIELDS(input_fields)},
    {"call", LINE_RECORD, RECORD_CALL, FIELDS(call_fields)},
    {"place", LINE_RECORD, RECORD_PLACE, FIELDS(place_fields)},
    {"launch", LINE_RECORD, RECORD_LAUNCH, FIELDS(launch_fields)},
    {"error", LINE_RECORD, RECORD_ERROR, FIELDS(error_fields)},
    {"drop", LINE_RECORD, RECORD_DROP, FIELDS(life_fields)},
    {"mismatch", LINE_RECORD, RECORD_MISMATCH, FIELDS(call_fields)},
    {"life", LINE_RECORD, RECORD_LIFE, FIELDS(life_fields)},
};
#define LINE_TYPES (sizeof line_types / sizeof line_types[0])
static const struct line_type caller_type = {"caller", 0, 0, FIELDS(caller_fields)};

static const struct line_type *type_of_record(uint8_t kind) {
  for (size_t i = 0; i < LINE_TYPES; i++)
    if (line_types[i].kind == LINE_RECORD && line_types[i].record == kind) return &line_types[i];
  return NULL;
}

/* ---- bytes to text ---- */

struct line {
  char text[LINE_BYTES];
  size_t used;
};

static void line_add(struct line *line, const char *format, ...) LOG_FORMAT(2, 3);
static void line_add(struct line *line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int added = vsnprintf(line->text + line->used, LINE_BYTES - line->used, format, arguments);
  va_end(arguments);
  if (added > 0) line->used += (size_t)added;
  if (line->used >= LINE_BYTES) line->used = LINE_BYTES - 1;
}

static uint64_t number_load(const uint8_t *at, uint8_t bytes) {
  uint64_t value = 0;
  memcpy(&value, at, bytes);
  return value;
}

static void text_add(struct line *line, const uint8_t *text, size_t capacity) {
  line_add(line, "\"");
  for (size_t i = 0; i < capacity && text[i] != 0; i++) {
    if (text[i] >= ' ' && text[i] < 127 && text[i] != '"' && text[i] != '\\') line_add(line, "%c", text[i]);
    else line_add(line, "\\x%02x", text[i]);
  }
  line_add(line, "\"");
}

static void field_add(struct line *line, const struct field *field, const uint8_t *base) {
  const uint8_t *at = base + field->offset;
  if (field->kind == FIELD_TEXT) {
    if (at[0] == 0) return;
    line_add(line, " %s=", field->name);
    text_add(line, at, field->bytes);
    return;
  }
  const uint64_t value = number_load(at, field->bytes);
  if (value == 0 && field->names == NULL) return;
  if (field->names != NULL && value < field->names->count)
    line_add(line, " %s=%s", field->name, field->names->words[value]);
  else if (field->kind == FIELD_HEX) line_add(line, " %s=0x%" PRIx64, field->name, value);
  else line_add(line, " %s=%" PRIu64, field->name, value);
}

struct dump {
  record_put put;
  void *argument;
};

static void dump_struct(const struct dump *dump, const struct line_type *type, int64_t number,
                        const void *base) {
  struct line line = {"", 0};
  line_add(&line, "%s", type->name);
  if (number >= 0) line_add(&line, " @%" PRId64, number);
  for (uint32_t i = 0; i < type->field_count; i++) field_add(&line, &type->fields[i], (const uint8_t *)base);
  dump->put(dump->argument, line.text);
}

static void dump_raw(const struct dump *dump, uint64_t number, const uint8_t *bytes) {
  struct line line = {"", 0};
  line_add(&line, "unknown @%" PRIu64 " ", number);
  for (uint32_t i = 0; i < RECORD_BYTES; i++) line_add(&line, "%02x", bytes[i]);
  dump->put(dump->argument, line.text);
}

static void dump_record(const struct dump *dump, const struct record_view *view, uint64_t number) {
  const union record *record = record_at(view, number);
  const struct line_type *type = type_of_record(record->kind);
  if (type != NULL) dump_struct(dump, type, (int64_t)number, record);
  else dump_raw(dump, number, record->bytes);
}

static void dump_streams(const struct dump *dump, const struct record_comm *comm) {
  for (uint32_t i = 0; i < RECORD_STREAMS; i++) {
    struct line line = {"", 0};
    if (comm->streams[i] == 0) continue;
    line_add(&line, "stream @%u handle=0x%" PRIx64, i, comm->streams[i]);
    dump->put(dump->argument, line.text);
  }
}

static void dump_rows(const struct dump *dump, enum line_kind kind, const void *rows, uint32_t count) {
  const uint8_t *row = (const uint8_t *)rows;
  for (uint32_t i = 0; i < count; i++, row += RECORD_BYTES) {
    static const uint8_t nothing[RECORD_BYTES] = {0};
    if (memcmp(row, nothing, sizeof nothing) != 0) dump_struct(dump, &line_types[kind], i, row);
  }
}

static void dump_callers(const struct dump *dump, const struct record_caller *rows) {
  for (uint32_t i = 0; rows != NULL && i < RECORD_CALLERS; i++)
    if (rows[i].address != 0) dump_struct(dump, &caller_type, i, &rows[i]);
}

static void dump_view(const struct dump *dump, const struct record_view *view) {
  dump_struct(dump, &line_types[LINE_COMM], -1, view->comm);
  dump_streams(dump, view->comm);
  dump_rows(dump, LINE_PLAN, view->plans, view->plan_rows);
  dump_rows(dump, LINE_LANE, view->lanes, view->lane_rows);
  dump_rows(dump, LINE_LINK, view->links, view->link_rows);
  dump_rows(dump, LINE_PROXY, view->proxies, view->proxy_rows);
  dump_rows(dump, LINE_PACE, view->paces, view->pace_rows);
  dump_rows(dump, LINE_INPUT, view->inputs, view->input_rows);
  for (uint64_t number = view->first; number < view->end; number++) dump_record(dump, view, number);
}

void record_text_dump(const struct record_file *file, record_put put, void *argument) {
  const struct dump dump = {put, argument};
  put(argument, FIRST_LINE);
  dump_struct(&dump, &line_types[LINE_HEADER], -1, &file->header);
  dump_callers(&dump, file->callers);
  for (uint32_t i = 0; i < file->view_count; i++) dump_view(&dump, &file->views[i]);
}

/* ---- text to bytes ---- */

struct packing {
  const char *name;
  uint32_t line;
  uint8_t *bytes;
  size_t byte_count, capacity;
  size_t section; /* offset of the current section; 0 before the first */
};

static ncclResult_t pack_fail(const struct packing *packing, const char *format, ...) LOG_FORMAT(2, 3);
static ncclResult_t pack_fail(const struct packing *packing, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return log_fail(ncclInvalidArgument, "%s:%u: %s", packing->name, packing->line, text);
}

static ncclResult_t pack_grow(struct packing *packing, size_t more) {
  const size_t wanted = packing->byte_count + more;
  if (wanted > FILE_BYTES_MOST)
    return pack_fail(packing, "more than %u bytes of sections; are they all of one file?", FILE_BYTES_MOST);
  if (!array_grow_long(&packing->bytes, &packing->capacity, wanted, 1))
    return log_no_memory("%s: %zu bytes", packing->name, wanted);
  memset(packing->bytes + packing->byte_count, 0, more);
  packing->byte_count = wanted;
  return ncclSuccess;
}

/* Iterates over a line's words, which end at a space or at the end of the line. */
struct words {
  const char *at, *end;
};

static bool word_next(struct words *words, const char **word, size_t *length) {
  bool quoted = false;
  while (words->at < words->end && *words->at == ' ') words->at++;
  *word = words->at;
  while (words->at < words->end && (quoted || *words->at != ' ')) quoted ^= *words->at++ == '"';
  *length = (size_t)(words->at - *word);
  return *length > 0;
}

static bool number_read(const char *text, size_t length, uint64_t *value) {
  const bool hex = length > 2 && text[0] == '0' && text[1] == 'x';
  const uint64_t base = hex ? 16 : 10;
  *value = 0;
  for (size_t i = hex ? 2 : 0; i < length; i++) {
    const char c = text[i];
    const uint64_t digit = c >= '0' && c <= '9'          ? (uint64_t)(c - '0')
                           : hex && c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a') + 10
                                                         : 99;
    if (digit == 99 || *value > (UINT64_MAX - digit) / base) return false;
    *value = *value * base + digit;
  }
  return length > 0;
}

static bool name_read(const struct names *names, const char *text, size_t length, uint64_t *value) {
  for (uint32_t i = 0; names != NULL && i < names->count; i++) {
    *value = i;
    if (strlen(names->words[i]) == length && memcmp(names->words[i], text, length) == 0) return true;
  }
  return number_read(text, length, value);
}

static bool hex_read(const char *text, uint8_t *value) {
  uint64_t number;
  const char prefixed[] = {'0', 'x', text[0], text[1]};
  if (!number_read(prefixed, 4, &number)) return false;
  *value = (uint8_t)number;
  return true;
}

static bool text_read(const char *text, size_t length, uint8_t *out, size_t capacity) {
  size_t used = 0;
  if (length < 2 || text[0] != '"' || text[length - 1] != '"') return false;
  for (size_t i = 1; i + 1 < length; i++) {
    uint8_t c = (uint8_t)text[i];
    if (c == '\\') {
      if (i + 5 > length || text[i + 1] != 'x' || !hex_read(text + i + 2, &c)) return false;
      i += 3;
    }
    if (used == capacity || c == 0) return false;
    out[used++] = c;
  }
  memset(out + used, 0, capacity - used);
  return true;
}

static bool field_read(const struct field *field, const char *text, size_t length, uint8_t *base) {
  uint64_t value;
  if (field->kind == FIELD_TEXT) return text_read(text, length, base + field->offset, field->bytes);
  if (!name_read(field->names, text, length, &value)) return false;
  if (field->bytes < 8 && value >> (8 * field->bytes) != 0) return false;
  memcpy(base + field->offset, &value, field->bytes);
  return true;
}

static ncclResult_t pack_fields(const struct packing *packing, const struct line_type *type,
                                struct words *words, uint8_t *base) {
  const char *word;
  size_t length;
  while (word_next(words, &word, &length)) {
    const char *equals = (const char *)memchr(word, '=', length);
    const size_t name_length = equals != NULL ? (size_t)(equals - word) : length;
    uint32_t i = 0;
    while (i < type->field_count && (strlen(type->fields[i].name) != name_length ||
                                     memcmp(type->fields[i].name, word, name_length) != 0))
      i++;
    if (i == type->field_count || equals == NULL)
      return pack_fail(packing, "\"%.*s\": a field of `%s` and its value were expected", (int)length, word,
                       type->name);
    if (!field_read(&type->fields[i], equals + 1, length - name_length - 1, base))
      return pack_fail(packing, "\"%.*s\": no such value of `%s`", (int)length, word, type->fields[i].name);
  }
  return ncclSuccess;
}

static struct record_comm *pack_comm(const struct packing *packing) {
  return packing->section != 0 ? (struct record_comm *)(void *)(packing->bytes + packing->section) : NULL;
}

static ncclResult_t pack_header(struct packing *packing, struct words *words) {
  if (packing->byte_count != 0) return pack_fail(packing, "one header was expected, in front of all else");
  TRY(pack_grow(packing, RECORD_PAGE_BYTES));
  memcpy(packing->bytes, RECORD_MAGIC, 8);
  return pack_fields(packing, &line_types[LINE_HEADER], words, packing->bytes);
}

static ncclResult_t pack_section(struct packing *packing, struct words *words) {
  struct record_comm comm;
  memset(&comm, 0, sizeof comm);
  if (packing->byte_count == 0) return pack_fail(packing, "a header was expected first");
  TRY(pack_fields(packing, &line_types[LINE_COMM], words, (uint8_t *)&comm));
  const uint64_t bytes = comm.section.bytes;
  if (bytes < RECORD_PAGE_BYTES || bytes % RECORD_PAGE_BYTES != 0 || bytes > SECTION_BYTES_MOST)
    return pack_fail(packing, "a section of %" PRIu64 " bytes; a multiple of %u up to %u was expected", bytes,
                     RECORD_PAGE_BYTES, SECTION_BYTES_MOST);
  packing->section = packing->byte_count;
  TRY(pack_grow(packing, (size_t)bytes));
  memcpy(packing->bytes + packing->section, &comm, sizeof comm);
  return ncclSuccess;
}

/* The address of row `number` of a table; NULL if it does not lie in the section. */
static uint8_t *pack_row(const struct packing *packing, uint64_t offset, uint64_t rows, uint64_t number) {
  const struct record_comm *comm = pack_comm(packing);
  if (comm == NULL || number >= rows || rows > SECTION_BYTES_MOST / RECORD_BYTES) return NULL;
  if (offset < RECORD_COMM_LEAST || offset + (number + 1) * RECORD_BYTES > comm->section.bytes) return NULL;
  return packing->bytes + packing->section + offset + number * RECORD_BYTES;
}

static uint8_t *pack_place(const struct packing *packing, enum line_kind kind, uint64_t number) {
  const struct record_comm *comm = pack_comm(packing);
  if (comm == NULL) return NULL;
  switch (kind) {
    case LINE_PLAN: return pack_row(packing, comm->plan_offset, comm->plan_rows, number);
    case LINE_LANE: return pack_row(packing, comm->lane_offset, comm->lane_rows, number);
    case LINE_LINK: return pack_row(packing, comm->link_offset, comm->link_rows, number);
    case LINE_PROXY: return pack_row(packing, comm->proxy_offset, comm->proxy_rows, number);
    case LINE_PACE: return pack_row(packing, comm->pace_offset, comm->pace_rows, number);
    case LINE_INPUT: return pack_row(packing, comm->input_offset, comm->input_rows, number);
    default: break;
  }
  const uint32_t ring = comm->ring_records;
  if (ring == 0 || (ring & (ring - 1)) != 0) return NULL;
  return pack_row(packing, comm->ring_offset, ring, number & (ring - 1));
}

static ncclResult_t pack_stream(const struct packing *packing, uint64_t number, struct words *words) {
  static const struct field handle = {"handle", 0, 8, FIELD_HEX, NULL};
  static const struct line_type type = {"stream", 0, 0, 1, &handle};
  struct record_comm *comm = pack_comm(packing);
  if (comm == NULL || number >= RECORD_STREAMS)
    return pack_fail(packing, "stream @%" PRIu64 ": a number below %u, of a section, was expected", number,
                     RECORD_STREAMS);
  return pack_fields(packing, &type, words, (uint8_t *)&comm->streams[number]);
}

static ncclResult_t pack_caller(const struct packing *packing, uint64_t number, struct words *words) {
  if (packing->byte_count == 0 || number >= RECORD_CALLERS)
    return pack_fail(packing, "caller @%" PRIu64 ": a number below %u, behind a header, was expected", number,
                     RECORD_CALLERS);
  return pack_fields(packing, &caller_type, words,
                     packing->bytes + RECORD_CALLERS_OFFSET + number * sizeof(struct record_caller));
}

static ncclResult_t pack_unknown(const struct packing *packing, uint64_t number, struct words *words) {
  uint8_t *at = pack_place(packing, LINE_RECORD, number);
  const char *word;
  size_t length;
  if (at == NULL || !word_next(words, &word, &length) || length != 2 * RECORD_BYTES)
    return pack_fail(packing, "unknown @%" PRIu64 ": %u hexadecimal digits, in a ring, were expected", number,
                     2 * RECORD_BYTES);
  for (uint32_t i = 0; i < RECORD_BYTES; i++)
    if (!hex_read(word + 2 * i, &at[i])) return pack_fail(packing, "a hexadecimal digit was expected");
  return ncclSuccess;
}

static ncclResult_t pack_struct(const struct packing *packing, const struct line_type *type, uint64_t number,
                                struct words *words) {
  uint8_t *at = pack_place(packing, (enum line_kind)type->kind, number);
  if (at == NULL)
    return pack_fail(packing,
                     "%s @%" PRIu64 " lies in no section; a `comm` that has space for it was expected",
                     type->name, number);
  memset(at, 0, RECORD_BYTES);
  if (type->kind == LINE_RECORD) at[0] = type->record;
  return pack_fields(packing, type, words, at);
}

static bool word_is(const char *word, size_t length, const char *name) {
  return strlen(name) == length && memcmp(word, name, length) == 0;
}

static ncclResult_t pack_line(struct packing *packing, const char *begin, const char *end) {
  struct words words = {begin, end};
  const char *word, *place;
  size_t length, place_length;
  uint64_t number;
  if (!word_next(&words, &word, &length) || word[0] == '#') return ncclSuccess;
  if (word_is(word, length, "header")) return pack_header(packing, &words);
  if (word_is(word, length, "comm")) return pack_section(packing, &words);
  if (!word_next(&words, &place, &place_length) || place[0] != '@' ||
      !number_read(place + 1, place_length - 1, &number))
    return pack_fail(packing, "`%.*s`: a place was expected behind it, as in @12", (int)length, word);
  if (word_is(word, length, "caller")) return pack_caller(packing, number, &words);
  if (word_is(word, length, "stream")) return pack_stream(packing, number, &words);
  if (word_is(word, length, "unknown")) return pack_unknown(packing, number, &words);
  for (size_t i = LINE_PLAN; i < LINE_TYPES; i++)
    if (word_is(word, length, line_types[i].name))
      return pack_struct(packing, &line_types[i], number, &words);
  return pack_fail(packing, "`%.*s` is no line of records", (int)length, word);
}

static ncclResult_t pack_lines(struct packing *packing, const char *text, size_t text_bytes) {
  const char *end = text + text_bytes;
  for (const char *at = text; at < end;) {
    const char *newline = (const char *)memchr(at, '\n', (size_t)(end - at));
    const char *line_end = newline != NULL ? newline : end;
    packing->line += 1;
    TRY(pack_line(packing, at, line_end));
    at = line_end + 1;
  }
  if (packing->byte_count > 0) return ncclSuccess;
  return pack_fail(packing, "a header was expected, and the text ends");
}

ncclResult_t record_text_pack(const char *name, const char *text, size_t text_bytes, void **bytes,
                              size_t *byte_count) {
  struct packing packing = {name, 0, NULL, 0, 0, 0};
  const ncclResult_t result = pack_lines(&packing, text, text_bytes);
  if (result != ncclSuccess) {
    os_free(packing.bytes);
    return result;
  }
  *bytes = packing.bytes;
  *byte_count = packing.byte_count;
  return ncclSuccess;
}

bool record_is_text(const void *bytes, size_t byte_count) {
  return byte_count >= sizeof FIRST_LINE - 1 && memcmp(bytes, FIRST_LINE, sizeof FIRST_LINE - 1) == 0;
}
