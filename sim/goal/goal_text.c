/* goal_text.c: GOAL as text: one pass over the file, with one rank in memory at a time. A line has an
 * operation, a wait or a comment; a name belongs to its rank and is defined above the lines that use it. The
 * reader accepts what the writer prints. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "goal/goal.h"

enum { BUFFER_BYTES = 1 << 20, LINE_BYTES_MOST = 4096, NAME_BYTES_MOST = 256, SHOWN_BYTES = 24 };

struct name {
  uint32_t hash, begin, bytes; /* in the reader's names; bytes 0: free */
  uint32_t op;
};

struct goal_text {
  const char *file_name;
  FILE *file;
  struct goal_build *build;
  char *buffer, *at, *end; /* unread bytes, followed by a zero */
  uint32_t line;
  bool whole;         /* the rest of the file is in the buffer */
  uint32_t rank_line; /* first line of the current rank */
  struct name *names; /* open addressing; name_capacity is a power of two */
  uint32_t name_count, name_capacity;
  char *letters;
  uint32_t letter_count, letter_capacity;
};

/* The text found instead of the expected one, shortened for a message. */
static const char *found(const struct goal_text *text, char *shown) {
  size_t count = 0;
  while (count < SHOWN_BYTES - 1 && text->at + count < text->end && text->at[count] != '\n' &&
         text->at[count] != '\r')
    count++;
  if (count == 0) return text->at == text->end ? "the end of the file" : "the end of the line";
  memcpy(shown, text->at, count);
  shown[count] = '\0';
  text_clean(shown, SHOWN_BYTES);
  return shown;
}

static ncclResult_t fail_expected(const struct goal_text *text, const char *expected) {
  char shown[SHOWN_BYTES];
  return log_fail(ncclInvalidArgument, "%s:%" PRIu32 ": expected %s, found `%s`", text->file_name, text->line,
                  expected, found(text, shown));
}

/* ---- characters ---- */

/* Reads a whole line into the buffer, as far as the file goes. */
static void fill(struct goal_text *text) {
  size_t left = (size_t)(text->end - text->at);
  if (text->whole || left >= LINE_BYTES_MOST) return;
  memmove(text->buffer, text->at, left);
  while (!text->whole && left < LINE_BYTES_MOST) {
    const size_t more = fread(text->buffer + left, 1, BUFFER_BYTES - left, text->file);
    text->whole = more == 0;
    left += more;
  }
  text->at = text->buffer;
  text->end = text->buffer + left;
  *text->end = '\0';
}

static bool skip_comment(struct goal_text *text) {
  const bool lines = text->at[1] == '*';
  text->at += 2;
  for (;; text->at++) {
    if (text->end - text->at < 2) fill(text);
    if (text->at == text->end) return !lines;
    if (*text->at == '\n') {
      if (!lines) return true;
      text->line += 1;
    }
    if (lines && text->at[0] == '*' && text->at[1] == '/') break;
  }
  text->at += 2;
  return true;
}

/* Skips to the next word, on any line. */
static ncclResult_t skip_lines(struct goal_text *text) {
  for (;;) {
    fill(text);
    const char letter = *text->at;
    if (letter == '\n') text->line += 1;
    if (letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r') {
      text->at += 1;
    } else if (letter == '/' && (text->at[1] == '/' || text->at[1] == '*')) {
      const uint32_t line = text->line;
      if (!skip_comment(text))
        return log_fail(ncclInvalidArgument, "%s:%" PRIu32 ": the comment that begins here has no `*/`",
                        text->file_name, line);
    } else {
      return ncclSuccess;
    }
  }
}

static inline void skip_blanks(struct goal_text *text) {
  while (*text->at == ' ' || *text->at == '\t') text->at++;
}

static inline bool is_first_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static inline bool is_letter(char c) { return is_first_letter(c) || (c >= '0' && c <= '9') || c == '_'; }

/* A word of this line, which may be empty; it points into the buffer. */
static inline const char *take_word(struct goal_text *text, uint32_t *bytes) {
  skip_blanks(text);
  const char *begin = text->at;
  if (is_first_letter(*begin)) {
    while (is_letter(*text->at)) text->at++;
  }
  *bytes = (uint32_t)(text->at - begin);
  return begin;
}

static inline bool word_is(const char *word, uint32_t bytes, const char *other) {
  return strlen(other) == bytes && memcmp(word, other, bytes) == 0;
}

static ncclResult_t expect_word(struct goal_text *text, const char *word) {
  uint32_t bytes;
  char *before = text->at;
  const char *begin = take_word(text, &bytes);
  if (word_is(begin, bytes, word)) return ncclSuccess;
  text->at = before;
  char expected[32];
  snprintf(expected, sizeof expected, "`%s`", word);
  skip_blanks(text);
  return fail_expected(text, expected);
}

static ncclResult_t take_number(struct goal_text *text, const char *what, uint64_t most, uint64_t *number) {
  skip_blanks(text);
  uint64_t value = 0;
  const char *begin = text->at;
  for (; *text->at >= '0' && *text->at <= '9' && value <= most; text->at++)
    value = value * 10 + (uint64_t)(*text->at - '0');
  if (text->at != begin && value <= most) {
    *number = value;
    return ncclSuccess;
  }
  text->at = (char *)(uintptr_t)begin;
  char expected[96];
  snprintf(expected, sizeof expected, "%s from 0 to %" PRIu64, what, most);
  return fail_expected(text, expected);
}

/* The same, or -1 for any. */
static ncclResult_t take_number_or_any(struct goal_text *text, const char *what, uint64_t most,
                                       uint32_t *number) {
  uint64_t value = GOAL_ANY;
  skip_blanks(text);
  if (text->at[0] == '-' && text->at[1] == '1' && !is_letter(text->at[2])) text->at += 2;
  else TRY(take_number(text, what, most, &value));
  *number = (uint32_t)value;
  return ncclSuccess;
}

/* ---- names of operations ---- */

static struct name *name_slot(struct goal_text *text, const char *word, uint32_t bytes, uint32_t hash) {
  uint32_t slot = hash & (text->name_capacity - 1);
  for (;; slot = (slot + 1) & (text->name_capacity - 1)) {
    struct name *name = &text->names[slot];
    if (name->bytes == 0) return name;
    if (name->hash == hash && name->bytes == bytes && memcmp(text->letters + name->begin, word, bytes) == 0)
      return name;
  }
}

static uint32_t name_hash(const char *word, uint32_t bytes) {
  uint64_t hash = HASH_SEED;
  for (uint32_t i = 0; i < bytes; i++) hash = hash * 31 + (uint8_t)word[i];
  return (uint32_t)(hash_mix(hash, bytes) >> 16);
}

static ncclResult_t names_grow(struct goal_text *text, uint32_t bytes) {
  if (!array_grow(&text->letters, &text->letter_capacity, (uint64_t)text->letter_count + bytes, 1))
    return log_no_memory("%s: names", text->file_name);
  if (text->name_count < text->name_capacity / 2) return ncclSuccess;
  const uint32_t capacity = text->name_capacity * 2;
  struct name *names = (struct name *)os_alloc(capacity * sizeof *names), *old = text->names;
  if (names == NULL) return log_no_memory("%s: names", text->file_name);
  for (uint32_t i = 0; i < text->name_capacity; i++) {
    if (old[i].bytes == 0) continue;
    uint32_t slot = old[i].hash & (capacity - 1);
    while (names[slot].bytes != 0) slot = (slot + 1) & (capacity - 1);
    names[slot] = old[i];
  }
  os_free(old);
  text->names = names;
  text->name_capacity = capacity;
  return ncclSuccess;
}

static ncclResult_t name_add(struct goal_text *text, const char *word, uint32_t bytes, uint32_t op) {
  if (bytes >= NAME_BYTES_MOST)
    return log_fail(ncclInvalidArgument,
                    "%s:%" PRIu32 ": a name of %" PRIu32 " letters; at most %d are allowed", text->file_name,
                    text->line, bytes, NAME_BYTES_MOST - 1);
  TRY(names_grow(text, bytes));
  const uint32_t hash = name_hash(word, bytes);
  struct name *name = name_slot(text, word, bytes, hash);
  if (name->bytes != 0)
    return log_fail(ncclInvalidArgument,
                    "%s:%" PRIu32
                    ": `%.*s` is the name of an operation above; each needs "
                    "its own",
                    text->file_name, text->line, (int)bytes, word);
  memcpy(text->letters + text->letter_count, word, bytes);
  const struct name fresh = {hash, text->letter_count, bytes, op};
  *name = fresh;
  text->letter_count += bytes;
  text->name_count += 1;
  return ncclSuccess;
}

static ncclResult_t name_find(struct goal_text *text, const char *word, uint32_t bytes, uint32_t *op) {
  const struct name *name = name_slot(text, word, bytes, name_hash(word, bytes));
  *op = name->op;
  if (bytes > 0 && name->bytes != 0) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "%s:%" PRIu32
                  ": no operation above is named `%.*s`; a name stands above "
                  "the lines that wait for it",
                  text->file_name, text->line, (int)(bytes < 64 ? bytes : 64), word);
}

/* ---- lines ---- */

static ncclResult_t take_size(struct goal_text *text, uint64_t *size) {
  TRY(take_number(text, "a number of bytes", GOAL_BYTES_MOST, size));
  if (*text->at != 'b') return fail_expected(text, "`b` behind the number of bytes, as in `send 8b to 1`");
  text->at += 1;
  return ncclSuccess;
}

static ncclResult_t take_peer(struct goal_text *text, uint32_t rank, struct goal_op *op) {
  const struct goal *goal = text->build->goal;
  const bool send = op->kind == GOAL_SEND;
  TRY(take_size(text, &op->size));
  TRY(expect_word(text, send ? "to" : "from"));
  uint64_t peer = 0;
  uint32_t any = GOAL_ANY;
  if (send) TRY(take_number(text, "a rank", goal->rank_count - 1, &peer));
  else TRY(take_number_or_any(text, "-1 (any rank) or a rank", goal->rank_count - 1, &any));
  if (send) any = (uint32_t)peer;
  op->peer = any == GOAL_ANY ? GOAL_ANY : goal_distance(goal, rank, any);
  return ncclSuccess;
}

/* tag, cpu and nic in any order, up to the end of the line. */
static ncclResult_t take_options(struct goal_text *text, struct goal_op *op) {
  for (;;) {
    uint32_t bytes;
    uint64_t number;
    char *before = text->at;
    const char *word = take_word(text, &bytes);
    if (op->kind != GOAL_CALC && word_is(word, bytes, "tag")) {
      if (op->kind == GOAL_RECV) {
        TRY(take_number_or_any(text, "-1 (any tag) or a tag", INT32_MAX, &op->tag));
      } else {
        TRY(take_number(text, "a tag", INT32_MAX, &number));
        op->tag = (uint32_t)number;
      }
    } else if (word_is(word, bytes, "cpu")) {
      TRY(take_number(text, "a CPU", GOAL_CPUS_MOST - 1, &number));
      op->cpu = (uint8_t)number;
    } else if (op->kind != GOAL_CALC && word_is(word, bytes, "nic")) {
      TRY(take_number(text, "a NIC", GOAL_NICS_MOST - 1, &number));
      op->nic = (uint8_t)number;
    } else {
      text->at = before;
      return ncclSuccess;
    }
  }
}

static ncclResult_t take_line_end(struct goal_text *text, const char *expected) {
  skip_blanks(text);
  const char letter = *text->at;
  if (letter == '\n' || letter == '\r' || letter == '}' || text->at == text->end) return ncclSuccess;
  if (letter == '/' && (text->at[1] == '/' || text->at[1] == '*')) return ncclSuccess;
  return fail_expected(text, expected);
}

/* The kind of operation that this word begins, or 0. */
static uint8_t kind_of(const char *word, uint32_t bytes) {
  if (word_is(word, bytes, "send")) return GOAL_SEND;
  if (word_is(word, bytes, "recv")) return GOAL_RECV;
  return word_is(word, bytes, "calc") ? GOAL_CALC : 0;
}

static ncclResult_t take_op(struct goal_text *text, uint32_t rank, uint8_t kind, uint32_t *index) {
  struct goal_op op;
  memset(&op, 0, sizeof op);
  op.kind = kind;
  op.line = text->line - text->rank_line;
  if (kind == GOAL_CALC) TRY(take_number(text, "nanoseconds", GOAL_BYTES_MOST, &op.size));
  else TRY(take_peer(text, rank, &op));
  TRY(take_options(text, &op));
  TRY(take_line_end(text, kind == GOAL_CALC ? "`cpu` or the end of the line"
                                            : "`tag`, `cpu`, `nic` or the end of the line"));
  *index = goal_build_op(text->build, &op);
  if (*index != UINT32_MAX) return ncclSuccess;
  return log_no_memory("%s:%" PRIu32 ": the operations of rank %" PRIu32, text->file_name, text->line, rank);
}

static ncclResult_t take_wait(struct goal_text *text, const char *after, uint32_t after_bytes) {
  uint32_t bytes, before_op, after_op;
  const char *word = take_word(text, &bytes);
  const bool begin = word_is(word, bytes, "irequires");
  if (!begin && !word_is(word, bytes, "requires")) {
    text->at -= bytes;
    return fail_expected(text, "`:`, `requires` or `irequires` behind a name");
  }
  TRY(name_find(text, after, after_bytes, &after_op));
  word = take_word(text, &bytes);
  if (bytes == 0) return fail_expected(text, "the name of the operation that is waited for");
  TRY(name_find(text, word, bytes, &before_op));
  TRY(take_line_end(text, "the end of the line"));
  return goal_build_edge(text->build, before_op, after_op, begin);
}

static ncclResult_t take_line(struct goal_text *text, uint32_t rank) {
  uint32_t bytes, op;
  const char *word = take_word(text, &bytes);
  uint8_t kind = kind_of(word, bytes);
  if (kind != 0) return take_op(text, rank, kind, &op);
  if (bytes == 0) return fail_expected(text, "`send`, `recv`, `calc`, a name or `}`");
  skip_blanks(text);
  if (*text->at != ':') return take_wait(text, word, bytes);
  text->at += 1;
  uint32_t kind_bytes;
  const char *kind_word = take_word(text, &kind_bytes);
  kind = kind_of(kind_word, kind_bytes);
  if (kind == 0) {
    text->at -= kind_bytes;
    return fail_expected(text, "`send`, `recv` or `calc` behind a name and `:`");
  }
  TRY(take_op(text, rank, kind, &op));
  return name_add(text, word, bytes, op);
}

static ncclResult_t take_rank(struct goal_text *text) {
  const struct goal *goal = text->build->goal;
  uint64_t rank;
  text->rank_line = text->line;
  TRY(expect_word(text, "rank"));
  TRY(take_number(text, "a rank", goal->rank_count - 1, &rank));
  if (goal->programs[rank] != NULL)
    return log_fail(ncclInvalidArgument, "%s:%" PRIu32 ": rank %" PRIu64 " a second time", text->file_name,
                    text->line, rank);
  TRY(skip_lines(text));
  if (*text->at != '{') return fail_expected(text, "`{` behind the rank's number");
  text->at += 1;
  memset(text->names, 0, text->name_capacity * sizeof *text->names);
  text->name_count = text->letter_count = 0;
  for (;;) {
    TRY(skip_lines(text));
    if (*text->at == '}') break;
    if (text->at == text->end)
      return log_fail(ncclInvalidArgument, "%s:%" PRIu32 ": rank %" PRIu64 " begins here and has no `}`",
                      text->file_name, text->rank_line, rank);
    TRY(take_line(text, (uint32_t)rank));
  }
  text->at += 1;
  return goal_build_rank(text->build, (uint32_t)rank, text->rank_line);
}

static ncclResult_t take_file(struct goal_text *text) {
  uint64_t count;
  TRY(skip_lines(text));
  TRY(expect_word(text, "num_ranks"));
  TRY(take_number(text, "a number of ranks", GOAL_RANKS_MOST, &count));
  if (count == 0)
    return log_fail(ncclInvalidArgument, "%s:%" PRIu32 ": expected 1 to %d ranks, found 0", text->file_name,
                    text->line, GOAL_RANKS_MOST);
  struct goal *goal = text->build->goal;
  TRY(goal_build_open(text->build, goal, (uint32_t)count));
  for (;;) {
    TRY(skip_lines(text));
    if (text->at == text->end) break;
    TRY(take_rank(text));
  }
  for (uint32_t rank = 0; rank < goal->rank_count; rank++) {
    if (goal->programs[rank] == NULL)
      return log_fail(ncclInvalidArgument, "%s:%" PRIu32 ": the file ends without `rank %" PRIu32 " {`",
                      text->file_name, text->line, rank);
  }
  return ncclSuccess;
}

ncclResult_t goal_read_text(const char *name, FILE *file, struct goal_build *build) {
  struct goal_text text;
  memset(&text, 0, sizeof text);
  text.file_name = name;
  text.file = file;
  text.build = build;
  text.line = 1;
  text.name_capacity = 64;
  text.buffer = (char *)os_alloc(BUFFER_BYTES + 1);
  text.names = (struct name *)os_alloc(text.name_capacity * sizeof *text.names);
  text.at = text.end = text.buffer;
  ncclResult_t result =
      text.buffer != NULL && text.names != NULL ? take_file(&text) : log_no_memory("a schedule");
  if (result == ncclSuccess && ferror(file))
    result = log_fail(ncclSystemError, "%s: cannot be read: %s", name, strerror(errno));
  os_free(text.buffer);
  os_free(text.names);
  os_free(text.letters);
  return result;
}

/* ---- writing ---- */

static void write_rank(const struct goal *goal, uint32_t rank, FILE *file) {
  const struct goal_program *program = goal->programs[rank];
  char words[128];
  fprintf(file, "\nrank %" PRIu32 " {\n", rank);
  for (uint32_t i = 0; i < program->op_count; i++) {
    goal_op_print(goal, rank, &program->ops[i], words, sizeof words);
    fprintf(file, "l%" PRIu32 ": %s\n", i + 1, words);
  }
  for (uint32_t i = 0; i < program->op_count; i++) {
    const struct goal_op *op = &program->ops[i];
    for (uint32_t next = op->first; next < op[1].first; next++)
      fprintf(file, "l%" PRIu32 " %s l%" PRIu32 "\n", program->nexts[next] + 1,
              next - op->first < op->begun ? "irequires" : "requires", i + 1);
  }
  fprintf(file, "}\n");
}

ncclResult_t goal_write_text(const struct goal *goal, const char *name, FILE *file) {
  fprintf(file, "num_ranks %" PRIu32 "\n", goal->rank_count);
  for (uint32_t rank = 0; rank < goal->rank_count && !ferror(file); rank++) write_rank(goal, rank, file);
  if (fflush(file) == 0 && !ferror(file)) return ncclSuccess;
  return log_fail(ncclSystemError, "%s: cannot be written: %s", name, strerror(errno));
}
