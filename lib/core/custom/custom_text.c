/* custom_text.c: tutti's format of schedules, described in examples/schedules/README.md: a head of settings,
 * then the steps of every block of every rank, one per line, each a row of actions in the order in which data
 * passes through them. Reading is one pass over lines and words; the writer prints what the reader accepts.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/custom/custom_build.h"

/* The state of reading. */
struct text_reader {
  struct custom_build *build;
  char *next;     /* the next line */
  const char *at; /* in the current line, which ends with a zero */
  uint32_t line;
  uint32_t seen; /* settings of the head so far, as bits */
  bool in_head;
};

#define text_fail(reader, ...) custom_fail((reader)->build, (reader)->line, __VA_ARGS__)

/* ---- words ---- */

static void skip_blanks(struct text_reader *reader) {
  while (*reader->at == ' ' || *reader->at == '\t') reader->at++;
}

/* If these letters come next, skips them and returns true. */
static bool take(struct text_reader *reader, const char *letters) {
  skip_blanks(reader);
  const size_t length = strlen(letters);
  if (strncmp(reader->at, letters, length) != 0) return false;
  reader->at += length;
  return true;
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* As take(), for a whole word. */
static bool take_word(struct text_reader *reader, const char *word) {
  const char *before = reader->at;
  if (take(reader, word) && !is_letter(*reader->at)) return true;
  reader->at = before;
  return false;
}

/* The unexpected text, shortened for a message. */
static const char *rest_of(const struct text_reader *reader) {
  return *reader->at == '\0' ? "the end of the line" : reader->at;
}

static ncclResult_t take_number(struct text_reader *reader, const char *what, uint32_t most,
                                uint32_t *number) {
  skip_blanks(reader);
  uint64_t value = 0;
  const char *digit = reader->at;
  for (; *digit >= '0' && *digit <= '9' && value <= UINT32_MAX; digit++)
    value = value * 10 + (uint64_t)(*digit - '0');
  if (digit == reader->at) return text_fail(reader, "expected %s, found '%.40s'", what, rest_of(reader));
  if (value > most)
    return text_fail(reader, "%s is at most %" PRIu32 ", found '%.40s'", what, most, reader->at);
  reader->at = digit;
  *number = (uint32_t)value;
  return ncclSuccess;
}

static bool at_number(struct text_reader *reader) {
  skip_blanks(reader);
  return *reader->at >= '0' && *reader->at <= '9';
}

static ncclResult_t expect_end(struct text_reader *reader) {
  skip_blanks(reader);
  if (*reader->at == '\0') return ncclSuccess;
  return text_fail(reader, "expected the end of the line, found '%.40s'", reader->at);
}

/* ---- the head ---- */

enum head_row {
  HEAD_NAME,
  HEAD_COLLECTIVE,
  HEAD_RANKS,
  HEAD_CHUNKS,
  HEAD_PROTOCOL,
  HEAD_PLACE,
  HEAD_SCRATCH,
  HEAD_ROOT,
  HEAD_COUNT
};

static const char *const head_names[HEAD_COUNT] = {"name",     "collective", "ranks",   "chunks",
                                                   "protocol", "in-place",   "scratch", "root"};
#define HEAD_NEEDED (1u << HEAD_COLLECTIVE | 1u << HEAD_RANKS | 1u << HEAD_CHUNKS)

static ncclResult_t head_collective(struct text_reader *reader) {
  struct custom_schedule *schedule = reader->build->schedule;
  const int func = custom_func_of(reader->at);
  if (func < 0)
    return text_fail(
        reader,
        "expected broadcast, reduce, all_gather, reduce_scatter, all_reduce or all_to_all, found "
        "'%.40s'",
        rest_of(reader));
  schedule->func = (uint8_t)func;
  return ncclSuccess;
}

/* "simple", "ll or ll128", "any". */
static ncclResult_t head_protocol(struct text_reader *reader) {
  static const char *const words[PROTO_COUNT] = {"ll", "ll128", "simple"};
  struct custom_schedule *schedule = reader->build->schedule;
  schedule->protos = 0;
  if (take_word(reader, "any")) schedule->protos = (1u << PROTO_COUNT) - 1;
  else do {
      uint32_t proto = 0;
      while (proto < PROTO_COUNT && !take_word(reader, words[proto])) proto++;
      if (proto == PROTO_COUNT)
        return text_fail(reader, "expected simple, ll, ll128 or any, found '%.40s'", rest_of(reader));
      schedule->protos |= (uint8_t)(1u << proto);
    } while (take_word(reader, "or"));
  return expect_end(reader);
}

static ncclResult_t head_place(struct text_reader *reader) {
  struct custom_schedule *schedule = reader->build->schedule;
  if (take_word(reader, "yes")) schedule->places = CUSTOM_IN_PLACE;
  else if (take_word(reader, "no")) schedule->places = CUSTOM_OUT_OF_PLACE;
  else if (take_word(reader, "any")) schedule->places = CUSTOM_IN_PLACE | CUSTOM_OUT_OF_PLACE;
  else return text_fail(reader, "expected yes, no or any, found '%.40s'", rest_of(reader));
  return expect_end(reader);
}

static ncclResult_t head_number(struct text_reader *reader, enum head_row row) {
  struct custom_schedule *schedule = reader->build->schedule;
  uint32_t *const places[HEAD_COUNT] = {[HEAD_RANKS] = &schedule->rank_count,
                                        [HEAD_CHUNKS] = &schedule->chunk_count,
                                        [HEAD_SCRATCH] = &schedule->scratch_count,
                                        [HEAD_ROOT] = &schedule->root};
  const uint32_t most = row == HEAD_RANKS  ? CUSTOM_RANKS_MAX
                        : row == HEAD_ROOT ? CUSTOM_RANKS_MAX - 1
                                           : CUSTOM_CHUNKS_MAX;
  TRY(take_number(reader, head_names[row], most, places[row]));
  if (row == HEAD_RANKS && schedule->rank_count < 2) return text_fail(reader, "expected two ranks or more");
  if (row == HEAD_CHUNKS && schedule->chunk_count < 1) return text_fail(reader, "expected one chunk or more");
  return expect_end(reader);
}

static ncclResult_t head_line(struct text_reader *reader) {
  uint32_t row = 0;
  while (row < HEAD_COUNT && !take_word(reader, head_names[row])) row++;
  if (row == HEAD_COUNT)
    return text_fail(reader,
                     "expected name, collective, ranks, chunks, protocol, in-place, scratch, root or a block "
                     "('rank 0 channel 0:'), found '%.40s'",
                     rest_of(reader));
  if (!take(reader, ":")) return text_fail(reader, "expected ':' behind '%s'", head_names[row]);
  if ((reader->seen >> row) & 1) return text_fail(reader, "'%s' is given twice", head_names[row]);
  reader->seen |= 1u << row;
  skip_blanks(reader);
  switch (row) {
    case HEAD_NAME:
      snprintf(reader->build->schedule->name, sizeof reader->build->schedule->name, "%s", reader->at);
      return ncclSuccess;
    case HEAD_COLLECTIVE: return head_collective(reader);
    case HEAD_PROTOCOL: return head_protocol(reader);
    case HEAD_PLACE: return head_place(reader);
    default: return head_number(reader, (enum head_row)row);
  }
}

static ncclResult_t head_end(struct text_reader *reader) {
  const struct custom_schedule *schedule = reader->build->schedule;
  for (uint32_t row = 0; row < HEAD_COUNT; row++)
    if (((HEAD_NEEDED & ~reader->seen) >> row) & 1)
      return text_fail(reader, "expected '%s:' before the first block", head_names[row]);
  if (schedule->root >= schedule->rank_count)
    return text_fail(reader, "root %" PRIu32 " is none of the %" PRIu32 " ranks", schedule->root,
                     schedule->rank_count);
  reader->in_head = false;
  return ncclSuccess;
}

/* ---- blocks ---- */

static ncclResult_t take_peers(struct text_reader *reader, bool sends, uint32_t *links) {
  do {
    uint32_t peer, link;
    TRY(take_number(reader, "a rank", UINT32_MAX, &peer));
    TRY(custom_add_link(reader->build, sends, peer, reader->line, &link));
    *links |= 1u << link;
  } while (at_number(reader));
  return ncclSuccess;
}

/* "rank 0 channel 1:", or "rank 0 channel 1 recv 3 2 send 1:", which fixes the order of links. */
static ncclResult_t block_line(struct text_reader *reader) {
  struct custom_block *block;
  uint32_t rank, channel, links = 0;
  if (reader->in_head) TRY(head_end(reader));
  TRY(take_number(reader, "a rank", UINT32_MAX, &rank));
  if (!take_word(reader, "channel"))
    return text_fail(reader, "expected 'channel', found '%.40s'", rest_of(reader));
  TRY(take_number(reader, "a channel", PLAN_CHANNELS_MAX - 1, &channel));
  TRY(custom_add_block(reader->build, rank, channel, reader->line, &block));
  for (;;) {
    if (take_word(reader, "recv")) TRY(take_peers(reader, false, &links));
    else if (take_word(reader, "send")) TRY(take_peers(reader, true, &links));
    else break;
  }
  if (!take(reader, ":")) return text_fail(reader, "expected ':', found '%.40s'", rest_of(reader));
  return expect_end(reader);
}

/* ---- steps ---- */

/* A step as its line is read. */
struct text_step {
  struct list_step step;
  uint32_t chunk_count; /* 0: no chunk named yet */
};

/* "in[3]" or "out[0..3]". */
static ncclResult_t take_place(struct text_reader *reader, bool writes, struct text_step *text) {
  static const char *const names[] = {"in", "out", "scratch"};
  static const uint32_t reads[] = {0, STEP_FROM_OUTPUT, STEP_FROM_SCRATCH};
  static const uint32_t written[] = {STEP_TO_INPUT, 0, STEP_TO_SCRATCH};
  uint32_t buffer = 0, first, last;
  while (buffer < 3 && !take_word(reader, names[buffer])) buffer++;
  if (buffer == 3 || !take(reader, "["))
    return text_fail(reader, "expected in[...], out[...] or scratch[...], found '%.40s'", rest_of(reader));
  TRY(take_number(reader, "a chunk", INT32_MAX, &first));
  last = first;
  if (take(reader, "..")) TRY(take_number(reader, "a chunk", INT32_MAX, &last));
  if (!take(reader, "]")) return text_fail(reader, "expected ']', found '%.40s'", rest_of(reader));
  if (last < first) return text_fail(reader, "chunks %" PRIu32 "..%" PRIu32 " run backwards", first, last);
  const uint32_t count = last - first + 1;
  if (text->chunk_count != 0 && text->chunk_count != count)
    return text_fail(reader, "%" PRIu32 " chunks here and %" PRIu32 " before: expected as many", count,
                     text->chunk_count);
  text->chunk_count = count;
  text->step.flags |= writes ? written[buffer] : reads[buffer];
  if (writes) text->step.out_chunk = first;
  else text->step.in_chunk = first;
  return ncclSuccess;
}

static ncclResult_t once(struct text_reader *reader, const struct text_step *text, uint32_t flag,
                         const char *action) {
  if (text->step.flags & flag) return text_fail(reader, "'%s' occurs twice in this step", action);
  return ncclSuccess;
}

static ncclResult_t step_recv(struct text_reader *reader, struct text_step *text) {
  uint32_t links = 0;
  TRY(once(reader, text, STEP_RECV | STEP_COPY_IN, "recv"));
  if (!take(reader, "<-")) return text_fail(reader, "expected '<- RANK', found '%.40s'", rest_of(reader));
  TRY(take_peers(reader, false, &links));
  text->step.recv_links = (uint16_t)links;
  text->step.flags |= STEP_RECV | ((links & (links - 1)) != 0 ? (uint32_t)STEP_REDUCE : 0);
  return ncclSuccess;
}

static ncclResult_t step_send(struct text_reader *reader, struct text_step *text) {
  uint32_t links = 0;
  TRY(once(reader, text, STEP_SEND, "send"));
  if (!take(reader, "->")) {
    TRY(once(reader, text, STEP_RECV | STEP_COPY_IN, "a source"));
    TRY(take_place(reader, false, text));
    text->step.flags |= STEP_COPY_IN;
    if (!take(reader, "->")) return text_fail(reader, "expected '-> RANK', found '%.40s'", rest_of(reader));
  }
  TRY(take_peers(reader, true, &links));
  text->step.send_links = (uint16_t)links;
  text->step.flags |= STEP_SEND;
  return ncclSuccess;
}

/* "add in[2]", and "after 2" if it is added after that many received chunks. */
static ncclResult_t step_add(struct text_reader *reader, struct text_step *text) {
  uint32_t index = 0;
  TRY(once(reader, text, STEP_COPY_IN, "add"));
  if ((text->step.flags & STEP_RECV) == 0) return text_fail(reader, "'add' comes behind 'recv'");
  TRY(take_place(reader, false, text));
  if (take_word(reader, "after")) TRY(take_number(reader, "a number of links", LIST_LINKS_MAX, &index));
  if (index > (uint32_t)__builtin_popcount(text->step.recv_links))
    return text_fail(reader, "it receives from fewer than %" PRIu32 " ranks", index);
  text->step.own_index = (uint16_t)index;
  text->step.flags |= STEP_COPY_IN | STEP_REDUCE;
  return ncclSuccess;
}

static ncclResult_t step_after(struct text_reader *reader, struct text_step *text) {
  uint32_t block;
  TRY(once(reader, text, STEP_AWAIT_LIST, "after"));
  if (!take_word(reader, "block"))
    return text_fail(reader, "expected 'block', found '%.40s'", rest_of(reader));
  TRY(take_number(reader, "a block", LIST_LANES_MAX - 1, &block));
  if (!take_word(reader, "step")) return text_fail(reader, "expected 'step', found '%.40s'", rest_of(reader));
  TRY(take_number(reader, "a step", CUSTOM_STEPS_MAX, &text->step.wait_steps));
  text->step.wait_lane = (uint16_t)block;
  text->step.flags |= STEP_AWAIT_LIST;
  return ncclSuccess;
}

static ncclResult_t step_action(struct text_reader *reader, struct text_step *text) {
  if (take_word(reader, "recv")) return step_recv(reader, text);
  if (take_word(reader, "send")) return step_send(reader, text);
  if (take_word(reader, "add")) return step_add(reader, text);
  if (take_word(reader, "after")) return step_after(reader, text);
  if (take_word(reader, "read")) {
    TRY(once(reader, text, STEP_RECV | STEP_COPY_IN, "a source"));
    text->step.flags |= STEP_COPY_IN;
    return take_place(reader, false, text);
  }
  if (take_word(reader, "keep")) {
    TRY(once(reader, text, STEP_KEEP, "keep"));
    text->step.flags |= STEP_KEEP;
    return take_place(reader, true, text);
  }
  if (take_word(reader, "sum")) {
    TRY(once(reader, text, STEP_KEEP, "keep"));
    text->step.flags |= STEP_KEEP | STEP_FOLD | STEP_REDUCE;
    return take_place(reader, true, text);
  }
  if (take_word(reader, "finish")) {
    text->step.flags |= STEP_POST_OP;
    return ncclSuccess;
  }
  if (take_word(reader, "nothing")) return ncclSuccess;
  return text_fail(reader,
                   "expected after, recv, read, add, finish, keep, sum, send or nothing, found '%.40s'",
                   rest_of(reader));
}

static ncclResult_t step_line(struct text_reader *reader) {
  struct text_step text;
  memset(&text, 0, sizeof text);
  do TRY(step_action(reader, &text));
  while (take(reader, ","));
  TRY(expect_end(reader));
  return custom_add_step(reader->build, &text.step, text.chunk_count > 0 ? text.chunk_count : 1,
                         reader->line);
}

/* ---- lines ---- */

/* Makes the next line current, without its comment and trailing blanks; false after the last. */
static bool line_next(struct text_reader *reader, const char *end) {
  if (reader->next > end) return false;
  char *line = reader->next, *stop = line;
  while (stop < end && *stop != '\n') stop++;
  reader->next = stop + 1;
  *stop = '\0';
  stop = line + strcspn(line, "#");
  while (stop > line && (stop[-1] == ' ' || stop[-1] == '\t' || stop[-1] == '\r')) stop--;
  *stop = '\0';
  reader->at = line;
  reader->line += 1;
  skip_blanks(reader);
  return true;
}

ncclResult_t custom_text_parse(struct custom_build *build, char *text, size_t bytes) {
  struct text_reader reader;
  memset(&reader, 0, sizeof reader);
  reader.build = build;
  reader.next = text;
  reader.in_head = true;
  build->schedule->protos = 1u << PROTO_SIMPLE;
  build->schedule->places = CUSTOM_IN_PLACE | CUSTOM_OUT_OF_PLACE;
  if (memchr(text, '\0', bytes) != NULL) return custom_fail(build, 0, "expected text, found a zero byte");
  if (!line_next(&reader, text + bytes) || strcmp(reader.at, CUSTOM_TEXT_FIRST_LINE) != 0) {
    reader.line = 1;
    return text_fail(&reader, "expected '%s', MSCCL's XML or MSCCL++'s JSON", CUSTOM_TEXT_FIRST_LINE);
  }
  while (line_next(&reader, text + bytes)) {
    if (*reader.at == '\0') continue;
    if (take_word(&reader, "rank")) TRY(block_line(&reader));
    else if (reader.in_head) TRY(head_line(&reader));
    else TRY(step_line(&reader));
  }
  return reader.in_head ? head_end(&reader) : ncclSuccess;
}
