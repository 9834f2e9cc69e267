/* workload_text.c: a workload as lines of text (workload.h; README.md has the grammar). Loops and groups are
 * expanded while they are read. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "bench/bench.h"
#include "simulate/workload.h"

enum { WORDS_MOST = 32, DEPTH_MOST = 8, REPEAT_MOST = 1000000 };

/* An operation of the group that is open. */
struct group_row {
  uint32_t rank, comm; /* rank: of the job */
  uint32_t number;     /* the order of the file */
  struct workload_op op;
};

/* A `repeat` that is open. */
struct frame {
  uint32_t line, times;
  uint32_t *first_step; /* by rank */
};

struct reader {
  struct workload *workload;
  uint32_t line;
  uint32_t word_count, word; /* word: the next one to be read */
  char *words[WORDS_MOST];
  struct frame frames[DEPTH_MOST];
  uint32_t depth;
  bool in_group, has_calls;
  uint32_t group_line;
  struct workload_call group; /* its line's streams and times */
  struct group_row *rows;
  uint32_t row_count, row_capacity;
  uint32_t *list; /* the last list of ranks that was read */
  uint32_t list_count;
};

/* The contents of one line. */
struct clause {
  struct workload_call call;
  struct workload_op op;
  uint32_t from, to;
  bool has_ranks, has_when;
};

static ncclResult_t fail(const struct reader *reader, const char *expected) {
  const uint32_t at = reader->word;
  return log_fail(ncclInvalidUsage, "%s line %u: expected %s%s%.40s%s", reader->workload->name, reader->line,
                  expected, at < reader->word_count ? ", not `" : "",
                  at < reader->word_count ? reader->words[at] : "", at < reader->word_count ? "`" : "");
}

/* ---- words ---- */

static const char *next(struct reader *reader) {
  return reader->word < reader->word_count ? reader->words[reader->word] : "";
}

static bool takes(struct reader *reader, const char *word) {
  if (strcmp(next(reader), word) != 0) return false;
  reader->word += 1;
  return true;
}

static bool whole_read(const char **text, uint64_t most, uint64_t *number) {
  char *end;
  errno = 0;
  const unsigned long long value = strtoull(*text, &end, 10);
  if (**text < '0' || **text > '9' || errno || value > most) return false;
  *number = value;
  *text = end;
  return true;
}

static ncclResult_t number_take(struct reader *reader, uint64_t lowest, uint64_t most, const char *expected,
                                uint32_t *number) {
  const char *text = next(reader);
  uint64_t value;
  if (!whole_read(&text, most, &value) || *text || value < lowest) return fail(reader, expected);
  *number = (uint32_t)value;
  reader->word += 1;
  return ncclSuccess;
}

/* "20us", "1.5ms", "3s", "100ns" */
static ncclResult_t time_take(struct reader *reader, uint64_t *ps) {
  static const struct {
    const char *name;
    double ps;
  } units[] = {{"ns", 1e3}, {"us", 1e6}, {"ms", 1e9}, {"s", 1e12}};
  const char *text = next(reader);
  char *end;
  const double value = strtod(text, &end);
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (*text < '0' || *text > '9' || strcmp(end, units[i].name) != 0) continue;
    if (!(value * units[i].ps <= (double)WORKLOAD_PS_MAX)) break;
    *ps = (uint64_t)(value * units[i].ps + 0.5);
    reader->word += 1;
    return ncclSuccess;
  }
  return fail(reader, "a time of at most 100000s, as 20us, 1.5ms, 3s or 100ns");
}

/* "0-7,16-31/4": different numbers less than `below`; into reader->list. */
static ncclResult_t list_take(struct reader *reader, uint32_t below) {
  char expected[96];
  const char *text = next(reader);
  snprintf(expected, sizeof expected, "ranks 0 to %u, each once, as 0-7,16-31/4", below - 1);
  reader->list_count = 0;
  while (*text) {
    uint64_t first, last, step = 1;
    if (!whole_read(&text, below - 1, &first)) return fail(reader, expected);
    last = first;
    if (*text == '-' && (text++, !whole_read(&text, below - 1, &last))) return fail(reader, expected);
    if (*text == '/' && (text++, !whole_read(&text, below, &step))) return fail(reader, expected);
    if (last < first || step == 0 || (*text && *text != ',')) return fail(reader, expected);
    if (*text == ',' && *++text == 0) return fail(reader, expected);
    for (uint64_t rank = first; rank <= last; rank += step) {
      if (reader->list_count == reader->workload->rank_count) return fail(reader, expected);
      reader->list[reader->list_count++] = (uint32_t)rank;
    }
  }
  if (reader->list_count == 0) return fail(reader, expected);
  reader->word += 1;
  return ncclSuccess;
}

/* Rejects a list with a repeated rank. */
static ncclResult_t list_distinct(struct reader *reader) {
  const size_t bytes = (reader->workload->rank_count + 7) / 8;
  uint8_t *seen = (uint8_t *)os_alloc(bytes);
  bool twice = false;
  if (!seen) return log_no_memory("%s: its ranks", reader->workload->name);
  for (uint32_t i = 0; i < reader->list_count; i++) {
    const uint32_t rank = reader->list[i];
    twice = twice || (seen[rank / 8] & 1u << rank % 8) != 0;
    seen[rank / 8] |= (uint8_t)(1u << rank % 8);
  }
  os_free(seen);
  if (!twice) return ncclSuccess;
  reader->word -= 1;
  return fail(reader, "each rank once");
}

static bool name_is_good(const char *name) {
  return *name && strlen(name) < sizeof((struct workload_comm *)NULL)->name;
}

/* A size as for `tutti bench -b`, or "count N"; the count is computed when the communicator is known. */
static ncclResult_t size_take(struct reader *reader, uint64_t *bytes, uint64_t *count) {
  const bool counts = takes(reader, "count");
  const char *text = next(reader);
  const char *expected = counts ? "a count of elements up to 1099511627776"
                                : "a size up to 1T in bytes, as 1000, 64K, 1M or 2G, or `count` and a number";
  uint64_t value, unit = 1;
  if (!whole_read(&text, WORKLOAD_COUNT_MAX, &value)) return fail(reader, expected);
  if (!counts && *text) {
    unit = *text == 'K' ? 1u << 10 : *text == 'M' ? 1u << 20 : *text == 'G' ? 1u << 30 : 0;
    text += 1;
  }
  if (*text || unit == 0 || value > WORKLOAD_COUNT_MAX / unit) return fail(reader, expected);
  *bytes = counts ? UINT64_MAX : value * unit;
  *count = value;
  reader->word += 1;
  return ncclSuccess;
}

/* ---- clauses ---- */

static bool type_take(struct reader *reader, uint8_t *dtype) {
  for (int i = 0; i < ncclNumTypes; i++)
    if (takes(reader, bench_type_name((ncclDataType_t)i))) {
      *dtype = (uint8_t)i;
      return true;
    }
  return false;
}

static bool op_take(struct reader *reader, uint8_t *op) {
  static const char *const names[] = {"sum", "prod", "max", "min"};
  for (uint8_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (takes(reader, names[i])) {
      *op = i;
      return true;
    }
  return false;
}

static ncclResult_t comm_take(struct reader *reader, uint32_t *comm) {
  *comm = workload_find_comm(reader->workload, next(reader));
  if (*comm == WORKLOAD_NONE) return fail(reader, "a communicator that a line `comm NAME RANKS` above names");
  reader->word += 1;
  return ncclSuccess;
}

static ncclResult_t stream_take(struct reader *reader, bool makes, uint32_t *stream) {
  *stream = workload_find_stream(reader->workload, next(reader));
  if (*stream == WORKLOAD_NONE && (!makes || !name_is_good(next(reader))))
    return fail(reader,
                makes ? "a stream's name of at most 47 letters" : "a stream that a line above has used");
  if (*stream == WORKLOAD_NONE) TRY(workload_add_stream(reader->workload, next(reader), stream));
  reader->word += 1;
  return ncclSuccess;
}

static ncclResult_t wait_take(struct reader *reader, struct workload_call *call) {
  TRY(stream_take(reader, false, &call->wait_stream));
  call->wait_but = 0;
  if (!takes(reader, "but")) return ncclSuccess;
  return number_take(reader, 0, WORKLOAD_STEPS_MAX, "how many calls are left out, 0 to 16777216",
                     &call->wait_but);
}

/* One of the words for times and streams; *took says whether there was one. */
static ncclResult_t when_take(struct reader *reader, struct workload_call *call, bool *took) {
  *took = true;
  if (takes(reader, "stream")) return stream_take(reader, true, &call->stream);
  if (takes(reader, "wait")) return wait_take(reader, call);
  if (takes(reader, "after")) return time_take(reader, &call->after_ps);
  if (takes(reader, "at")) return time_take(reader, &call->at_ps);
  *took = false;
  return ncclSuccess;
}

static void clause_begin(const struct reader *reader, struct clause *clause) {
  memset(clause, 0, sizeof *clause);
  clause->call.wait_stream = WORKLOAD_NONE;
  clause->call.line = reader->line;
  clause->op.dtype = ncclFloat32;
  clause->from = clause->to = WORKLOAD_NONE;
}

static bool is_message(uint8_t func) { return func == FUNC_SEND || func == FUNC_RECV; }

/* Words after the size, in any order, except those that need the communicator: they follow `comm`. */
static ncclResult_t clause_read(struct reader *reader, const struct collective *collective,
                                struct clause *clause) {
  const uint32_t first = reader->word;
  /* Reads the communicator first, wherever it is, because ranks are counted in it. */
  for (reader->word = first; reader->word < reader->word_count; reader->word += 1)
    if (takes(reader, "comm")) {
      TRY(comm_take(reader, &clause->call.comm));
      break;
    }
  const uint32_t below = reader->workload->comms[clause->call.comm].rank_count;
  char roots[64];
  snprintf(roots, sizeof roots, "a rank of the communicator, 0 to %u", below - 1);
  for (reader->word = first; reader->word < reader->word_count;) {
    bool took;
    TRY(when_take(reader, &clause->call, &took));
    clause->has_when = clause->has_when || took;
    if (took) continue;
    if (takes(reader, "comm")) reader->word += 1;
    else if (collective && collective->has_root && takes(reader, "root"))
      TRY(number_take(reader, 0, below - 1, roots, &clause->op.peer));
    else if (!is_message(clause->op.func) && takes(reader, "ranks")) {
      TRY(list_take(reader, below));
      TRY(list_distinct(reader));
      clause->has_ranks = true;
    } else if (is_message(clause->op.func) && takes(reader, "from"))
      TRY(number_take(reader, 0, below - 1, roots, &clause->from));
    else if (is_message(clause->op.func) && takes(reader, "to"))
      TRY(number_take(reader, 0, below - 1, roots, &clause->to));
    else if (clause->op.func != FUNC_COUNT && type_take(reader, &clause->op.dtype)) continue;
    else if (collective && collective->has_op && op_take(reader, &clause->op.op)) continue;
    else
      return fail(reader, is_message(clause->op.func)
                              ? "a type, from R, to R, comm NAME, stream NAME, wait STREAM, after TIME or at "
                                "TIME"
                          : collective ? "a type, an operator or root R where the operation has one, ranks "
                                         "LIST, comm NAME, stream NAME, wait STREAM, after TIME or at TIME"
                                       : "ranks LIST, stream NAME, wait STREAM, after TIME or at TIME");
  }
  if (is_message(clause->op.func) && (clause->from == WORKLOAD_NONE || clause->to == WORKLOAD_NONE))
    return fail(reader, "from R and to R");
  return ncclSuccess;
}

/* ---- calls ---- */

static ncclResult_t row_add(struct reader *reader, uint32_t rank, uint32_t comm,
                            const struct workload_op *op) {
  if (reader->row_count == WORKLOAD_STEPS_MAX)
    return log_fail(ncclInvalidUsage, "%s line %u: a group of more than %u operations of all ranks",
                    reader->workload->name, reader->line, reader->row_count);
  if (!array_grow(&reader->rows, &reader->row_capacity, (uint64_t)reader->row_count + 1,
                  sizeof *reader->rows))
    return log_no_memory("%s: its calls", reader->workload->name);
  reader->rows[reader->row_count] = (struct group_row){rank, comm, reader->row_count, *op};
  reader->row_count += 1;
  return ncclSuccess;
}

/* By rank, then by communicator in the order of the file: by the first row of each. */
static int row_compare(const void *left, const void *right) {
  const struct group_row *a = (const struct group_row *)left, *b = (const struct group_row *)right;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  if (a->comm != b->comm) return a->comm < b->comm ? -1 : 1;
  return a->number < b->number ? -1 : a->number > b->number;
}

static bool ops_same(const struct workload *workload, const struct workload_call *call,
                     const struct group_row *rows, uint32_t count) {
  if (call->op_count != count || call->comm != rows[0].comm) return false;
  for (uint32_t i = 0; i < count; i++) {
    const struct workload_op *a = &workload->ops[call->first_op + i], *b = &rows[i].op;
    if (a->func != b->func || a->dtype != b->dtype || a->op != b->op || a->peer != b->peer ||
        a->count != b->count)
      return false;
  }
  return true;
}

/* One rank's part of the group on one communicator; reuses the previous rank's if it is equal. */
static ncclResult_t part_add(struct reader *reader, const struct group_row *rows, uint32_t count,
                             bool first) {
  struct workload *workload = reader->workload;
  struct workload_call call = reader->group;
  if (count > WORKLOAD_OPS_MAX)
    return log_fail(ncclInvalidUsage, "%s line %u: %u operations of rank %u in one group: at most %u",
                    workload->name, reader->group_line, count, rows[0].rank, WORKLOAD_OPS_MAX);
  if (!first) call.after_ps = call.at_ps = 0;
  for (uint32_t i = workload->call_count; i > 0 && workload->call_count - i < 2; i--)
    if (workload->calls[i - 1].line == call.line && workload->calls[i - 1].after_ps == call.after_ps &&
        workload->calls[i - 1].at_ps == call.at_ps &&
        ops_same(workload, &workload->calls[i - 1], rows, count))
      return workload_add_step(workload, rows[0].rank, i - 1);
  uint32_t number;
  call.comm = rows[0].comm;
  call.first_op = workload->op_count;
  call.op_count = count;
  for (uint32_t i = 0; i < count; i++) TRY(workload_add_op(workload, &rows[i].op));
  TRY(workload_add_call(workload, &call, &number));
  return workload_add_step(workload, rows[0].rank, number);
}

static ncclResult_t group_end(struct reader *reader) {
  if (reader->row_count > 0) qsort(reader->rows, reader->row_count, sizeof *reader->rows, row_compare);
  for (uint32_t i = 0, count; i < reader->row_count; i += count) {
    const struct group_row *rows = &reader->rows[i];
    for (count = 1; i + count < reader->row_count; count++)
      if (rows[count].rank != rows->rank || rows[count].comm != rows->comm) break;
    TRY(part_add(reader, rows, count, i == 0 || rows[-1].rank != rows->rank));
  }
  reader->row_count = 0;
  reader->in_group = false;
  return ncclSuccess;
}

/* Adds the line's operation for each of its ranks. A line outside of a group is a group of its own. */
static ncclResult_t clause_add(struct reader *reader, const struct clause *clause) {
  const struct workload_comm *comm = &reader->workload->comms[clause->call.comm];
  const uint32_t count = clause->has_ranks ? reader->list_count : comm->rank_count;
  if (!reader->in_group) {
    reader->group = clause->call;
    reader->group_line = reader->line;
  }
  for (uint32_t i = 0; i < count; i++)
    TRY(row_add(reader, workload_rank_of(comm, clause->has_ranks ? reader->list[i] : i), clause->call.comm,
                &clause->op));
  return reader->in_group ? ncclSuccess : group_end(reader);
}

static ncclResult_t message_add(struct reader *reader, const struct clause *clause, bool sends,
                                bool receives) {
  const struct workload_comm *comm = &reader->workload->comms[clause->call.comm];
  struct workload_op send = clause->op, receive = clause->op;
  send.func = FUNC_SEND;
  send.peer = clause->to;
  receive.func = FUNC_RECV;
  receive.peer = clause->from;
  if (!reader->in_group) {
    reader->group = clause->call;
    reader->group_line = reader->line;
  }
  if (sends) TRY(row_add(reader, workload_rank_of(comm, clause->from), clause->call.comm, &send));
  if (receives) TRY(row_add(reader, workload_rank_of(comm, clause->to), clause->call.comm, &receive));
  return reader->in_group ? ncclSuccess : group_end(reader);
}

static ncclResult_t operation_read(struct reader *reader, const struct collective *collective, bool sends,
                                   bool receives) {
  static const uint8_t type_bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  struct clause clause;
  uint64_t bytes = 0, count = 0;
  clause_begin(reader, &clause);
  clause.op.func = collective ? collective_func(collective) : FUNC_SEND;
  TRY(size_take(reader, &bytes, &count));
  TRY(clause_read(reader, collective, &clause));
  if (reader->in_group && clause.has_when) {
    reader->word = reader->word_count;
    return fail(reader, "stream, wait, after and at on the line of the group");
  }
  const size_t each = type_bytes[clause.op.dtype];
  const uint32_t ranks = reader->workload->comms[clause.call.comm].rank_count;
  clause.op.count = bytes == UINT64_MAX ? count
                    : collective        ? collective_count(collective, bytes, each, ranks)
                                        : bytes / each;
  reader->has_calls = true;
  return collective ? clause_add(reader, &clause) : message_add(reader, &clause, sends, receives);
}

static ncclResult_t compute_read(struct reader *reader) {
  struct clause clause;
  uint32_t number;
  clause_begin(reader, &clause);
  clause.op.func = FUNC_COUNT;
  TRY(time_take(reader, &clause.call.after_ps));
  const uint64_t ps = clause.call.after_ps;
  TRY(clause_read(reader, NULL, &clause));
  clause.call.after_ps = ps;
  if (reader->in_group) return fail(reader, "operations within the group");
  const struct workload_comm *comm = &reader->workload->comms[clause.call.comm];
  const uint32_t count = clause.has_ranks ? reader->list_count : comm->rank_count;
  reader->has_calls = true;
  TRY(workload_add_call(reader->workload, &clause.call, &number));
  for (uint32_t i = 0; i < count; i++)
    TRY(workload_add_step(reader->workload, workload_rank_of(comm, clause.has_ranks ? reader->list[i] : i),
                          number));
  return ncclSuccess;
}

/* ---- lines ---- */

static ncclResult_t group_read(struct reader *reader) {
  struct clause clause;
  if (reader->in_group) return fail(reader, "no group within a group");
  clause_begin(reader, &clause);
  while (reader->word < reader->word_count) {
    bool took;
    TRY(when_take(reader, &clause.call, &took));
    if (!took) return fail(reader, "stream NAME, wait STREAM, after TIME or at TIME");
  }
  reader->group = clause.call;
  reader->group_line = reader->line;
  reader->in_group = true;
  return ncclSuccess;
}

static ncclResult_t repeat_read(struct reader *reader) {
  struct workload *workload = reader->workload;
  uint32_t times;
  if (reader->in_group) return fail(reader, "operations within the group");
  TRY(number_take(reader, 1, REPEAT_MOST, "how often, 1 to 1000000", &times));
  if (reader->depth == DEPTH_MOST) return fail(reader, "at most 8 repetitions within each other");
  struct frame *frame = &reader->frames[reader->depth++];
  frame->line = reader->line;
  frame->times = times;
  frame->first_step = (uint32_t *)os_alloc(workload->rank_count * sizeof *frame->first_step);
  if (!frame->first_step) return log_no_memory("%s: its ranks", workload->name);
  for (uint32_t rank = 0; rank < workload->rank_count; rank++)
    frame->first_step[rank] = workload->ranks[rank].step_count;
  reader->has_calls = true;
  return ncclSuccess;
}

static ncclResult_t repeat_end(struct reader *reader) {
  struct workload *workload = reader->workload;
  struct frame *frame = &reader->frames[--reader->depth];
  ncclResult_t result = ncclSuccess;
  for (uint32_t rank = 0; result == ncclSuccess && rank < workload->rank_count; rank++) {
    const uint32_t first = frame->first_step[rank], last = workload->ranks[rank].step_count;
    for (uint32_t time = 1; result == ncclSuccess && first < last && time < frame->times; time++)
      for (uint32_t i = first; result == ncclSuccess && i < last; i++)
        result = workload_add_step(workload, rank, workload->ranks[rank].steps[i].call);
  }
  os_free(frame->first_step);
  frame->first_step = NULL;
  return result;
}

static ncclResult_t end_read(struct reader *reader) {
  if (reader->in_group) return group_end(reader);
  if (reader->depth > 0) return repeat_end(reader);
  reader->word = reader->word_count;
  return fail(reader, "no `end` without a group or repeat");
}

static ncclResult_t comm_read(struct reader *reader) {
  const char *name = next(reader);
  uint32_t number;
  if (!name_is_good(name) || workload_find_comm(reader->workload, name) != WORKLOAD_NONE)
    return fail(reader, "a name of at most 47 letters that no communicator has, then its ranks");
  reader->word += 1;
  TRY(list_take(reader, reader->workload->rank_count));
  TRY(list_distinct(reader));
  return workload_add_comm(reader->workload, name, reader->list, reader->list_count, &number);
}

/* The number of ranks, before everything else. */
static ncclResult_t ranks_read(struct reader *reader) {
  struct workload *workload = reader->workload;
  const char *name = workload->name;
  uint32_t count;
  TRY(number_take(reader, 1, WORKLOAD_RANKS_MAX, "how many ranks, 1 to 131072", &count));
  if (reader->has_calls || workload->comm_count > 1) {
    reader->word -= 1;
    return fail(reader, "`ranks` in front of all communicators and calls");
  }
  workload_free(workload);
  os_free(reader->list);
  TRY(workload_make(name, count, workload));
  reader->list = (uint32_t *)os_alloc(count * sizeof *reader->list);
  return reader->list ? ncclSuccess : log_no_memory("%s: its ranks", name);
}

static ncclResult_t line_read(struct reader *reader) {
  ncclResult_t result;
  if (takes(reader, "ranks")) result = ranks_read(reader);
  else if (takes(reader, "comm")) result = comm_read(reader);
  else if (takes(reader, "group")) result = group_read(reader);
  else if (takes(reader, "repeat")) result = repeat_read(reader);
  else if (takes(reader, "end")) result = end_read(reader);
  else if (takes(reader, "compute")) result = compute_read(reader);
  else if (takes(reader, "message")) result = operation_read(reader, NULL, true, true);
  else if (takes(reader, "send")) result = operation_read(reader, NULL, true, false);
  else if (takes(reader, "recv")) result = operation_read(reader, NULL, false, true);
  else if (collective_find(next(reader))) {
    const struct collective *collective = collective_find(next(reader));
    reader->word += 1;
    result = operation_read(reader, collective, false, false);
  } else return fail(reader, "a collective, message, send, recv, compute, group, repeat, end, comm or ranks");
  if (result == ncclSuccess && reader->word < reader->word_count) return fail(reader, "the line's end");
  return result;
}

/* Splits the line into words, in place. */
static ncclResult_t words_cut(struct reader *reader, char *line) {
  reader->word_count = reader->word = 0;
  for (char *at = line + strspn(line, " \t\r"); *at && *at != '#'; at += strspn(at, " \t\r")) {
    if (reader->word_count == WORDS_MOST) {
      reader->word = WORDS_MOST;
      return fail(reader, "at most 32 words");
    }
    reader->words[reader->word_count++] = at;
    at += strcspn(at, " \t\r#");
    if (*at == '#') *at = 0;
    else if (*at) *at++ = 0;
  }
  return ncclSuccess;
}

static ncclResult_t lines_read(struct reader *reader, char *text) {
  while (*text) {
    char *next_line = text + strcspn(text, "\n");
    if (*next_line) *next_line++ = 0;
    reader->line += 1;
    TRY(words_cut(reader, text));
    if (reader->word_count > 0) TRY(line_read(reader));
    text = next_line;
  }
  if (!reader->in_group && reader->depth == 0) return ncclSuccess;
  reader->line = reader->in_group ? reader->group_line : reader->frames[reader->depth - 1].line;
  reader->word = reader->word_count = 0;
  return fail(reader, "an `end` for what begins here");
}

ncclResult_t workload_parse(const char *name, char *text, uint32_t rank_count, struct workload *workload) {
  struct reader reader;
  memset(&reader, 0, sizeof reader);
  reader.workload = workload;
  TRY(workload_make(name, rank_count, workload));
  reader.list = (uint32_t *)os_alloc(rank_count * sizeof *reader.list);
  const ncclResult_t result = reader.list ? lines_read(&reader, text) : log_no_memory("%s: its ranks", name);
  while (reader.depth > 0) os_free(reader.frames[--reader.depth].first_step);
  os_free(reader.rows);
  os_free(reader.list);
  return result;
}

ncclResult_t workload_read(const char *path, uint32_t rank_count, struct workload *workload) {
  size_t bytes;
  char *text = os_file_read(path, &bytes);
  memset(workload, 0, sizeof *workload);
  if (!text) return log_fail(ncclSystemError, "%s cannot be read: %s", path, strerror(errno));
  const ncclResult_t result =
      strlen(text) == bytes ? workload_parse(path, text, rank_count, workload)
                            : log_fail(ncclInvalidUsage, "%s line 1: expected text without zero bytes", path);
  os_free(text);
  return result;
}
