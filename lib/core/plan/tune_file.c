/* tune_file.c: reads rules from a text. A text with any error makes no rule at all; the message has file,
 * line and what was expected. Memory is bounded by TUNE_RULES_MAX rules. Does not know which rules a
 * communicator can follow. */
#include "core/plan/tune_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/plan/names.h"

/* A piece of the text: not terminated. */
struct span {
  const char *begin, *end;
};

struct reader {
  const char *path;
  uint32_t line;
  struct span rest; /* of the line */
};

static size_t span_length(struct span span) { return (size_t)(span.end - span.begin); }

static bool is_space(char letter) { return letter == ' ' || letter == '\t' || letter == '\r'; }

/* The next word of the line; empty at its end. */
static struct span word_next(struct reader *reader) {
  struct span *rest = &reader->rest, word;
  while (rest->begin < rest->end && is_space(*rest->begin)) rest->begin++;
  word.begin = rest->begin;
  while (rest->begin < rest->end && !is_space(*rest->begin)) rest->begin++;
  word.end = rest->begin;
  return word;
}

static ncclResult_t expected(const struct reader *reader, struct span found, const char *what) {
  const int length = span_length(found) > 40 ? 40 : (int)span_length(found);
  if (length == 0)
    return log_fail(ncclInvalidUsage, "%s:%u: expected %s, found the end of the line", reader->path,
                    reader->line, what);
  return log_fail(ncclInvalidUsage, "%s:%u: expected %s, found '%.*s'", reader->path, reader->line, what,
                  length, found.begin);
}

/* Decimal, with K, M or G of 1024 if `sizes`. */
static bool number_read(struct span word, bool sizes, uint64_t *value) {
  uint64_t number = 0, factor = 1;
  const char *at = word.begin;
  if (at == word.end || *at < '0' || *at > '9') return false;
  for (; at < word.end && *at >= '0' && *at <= '9'; at++) {
    if (__builtin_mul_overflow(number, (uint64_t)10, &number)) return false;
    if (__builtin_add_overflow(number, (uint64_t)(*at - '0'), &number)) return false;
  }
  if (sizes && at < word.end) {
    if (*at == 'K' || *at == 'k') factor = 1u << 10;
    else if (*at == 'M' || *at == 'm') factor = 1u << 20;
    else if (*at == 'G' || *at == 'g') factor = 1u << 30;
    else return false;
    at++;
  }
  if (at != word.end || __builtin_mul_overflow(number, factor, &number)) return false;
  *value = number;
  return true;
}

static bool word_is(struct span word, const char *text) {
  return strlen(text) == span_length(word) && memcmp(word.begin, text, strlen(text)) == 0;
}

/* Fails with a message that lists the valid names. */
static ncclResult_t expected_name(const struct reader *reader, struct span found, const char *what,
                                  const char *const *names, uint32_t count) {
  char known[128], sentence[192];
  names_list(names, count, ~0u, known, sizeof known);
  snprintf(sentence, sizeof sentence, "%s (%s)", what, known);
  return expected(reader, found, sentence);
}

static ncclResult_t name_read(const struct reader *reader, struct span word, const char *what,
                              const char *const *names, uint32_t count, uint8_t *index) {
  const int found = names_find(names, count, word.begin, span_length(word));
  if (found < 0) return expected_name(reader, word, what, names, count);
  *index = (uint8_t)found;
  return ncclSuccess;
}

static ncclResult_t count_read(const struct reader *reader, struct span word, uint32_t most, const char *what,
                               uint32_t *count) {
  uint64_t number;
  if (!number_read(word, false, &number) || number < 1 || number > most) return expected(reader, word, what);
  *count = (uint32_t)number;
  return ncclSuccess;
}

enum { KEY_RANKS = 1, KEY_NODES = 2, KEY_ALGO = 4, KEY_PROTO = 8, KEY_CHANNELS = 16 };
static const char keys_text[] = "ranks=, nodes=, algo=, proto= or channels=, each at most once";

/* Reads key=value; *seen collects the keys so far. */
static ncclResult_t pair_read(const struct reader *reader, struct span word, struct tune_rule *rule,
                              uint32_t *seen) {
  const char *equals = (const char *)memchr(word.begin, '=', span_length(word));
  struct span key = {word.begin, equals != NULL ? equals : word.end};
  struct span value = {equals != NULL ? equals + 1 : word.end, word.end};
  const uint32_t which = equals == NULL             ? 0u
                         : word_is(key, "ranks")    ? (uint32_t)KEY_RANKS
                         : word_is(key, "nodes")    ? (uint32_t)KEY_NODES
                         : word_is(key, "algo")     ? (uint32_t)KEY_ALGO
                         : word_is(key, "proto")    ? (uint32_t)KEY_PROTO
                         : word_is(key, "channels") ? (uint32_t)KEY_CHANNELS
                                                    : 0u;
  if (which == 0 || (*seen & which) != 0) return expected(reader, word, keys_text);
  *seen |= which;
  switch (which) {
    case KEY_RANKS:
      return count_read(reader, value, 1u << 30, "a number of ranks from 1 on", &rule->rank_count);
    case KEY_NODES:
      return count_read(reader, value, 1u << 30, "a number of nodes from 1 on", &rule->node_count);
    case KEY_ALGO: return name_read(reader, value, "an algorithm", names_algo, ALGO_COUNT, &rule->algo);
    case KEY_PROTO: return name_read(reader, value, "a protocol", names_proto, PROTO_COUNT, &rule->proto);
    default:
      return count_read(reader, value, PLAN_CHANNELS_MAX, "a number of channels from 1 to 64",
                        &rule->channel_count);
  }
}

static ncclResult_t rule_read(struct reader *reader, struct span word, struct tune_rule *rule) {
  uint32_t seen = 0;
  memset(rule, 0, sizeof *rule);
  rule->line = reader->line;
  TRY(name_read(reader, word, "a collective", names_collective, FUNC_COUNT, &rule->func));
  word = word_next(reader);
  if (!number_read(word, true, &rule->from_bytes))
    return expected(reader, word, "the least size: bytes, with K, M or G");
  word = word_next(reader);
  if (word_is(word, "max")) rule->to_bytes = UINT64_MAX;
  else if (!number_read(word, true, &rule->to_bytes) || rule->to_bytes <= rule->from_bytes)
    return expected(reader, word, "the size at which the rule ends: bytes above the least size, or max");
  for (word = word_next(reader); span_length(word) > 0; word = word_next(reader))
    TRY(pair_read(reader, word, rule, &seen));
  if ((seen & KEY_ALGO) == 0) return expected(reader, word, "algo=NAME");
  if ((seen & KEY_PROTO) == 0) return expected(reader, word, "proto=NAME");
  return ncclSuccess;
}

/* The next line of *text, without its comment, as a reader. */
static struct reader line_next(const char *path, struct span *text, uint32_t line) {
  const char *end = (const char *)memchr(text->begin, '\n', span_length(*text));
  struct reader reader = {path, line, {text->begin, end != NULL ? end : text->end}};
  text->begin = end != NULL ? end + 1 : text->end;
  const char *comment = (const char *)memchr(reader.rest.begin, '#', span_length(reader.rest));
  if (comment != NULL) reader.rest.end = comment;
  return reader;
}

static bool rules_meet(const struct tune_rule *a, const struct tune_rule *b) {
  if (a->func != b->func || a->from_bytes >= b->to_bytes || b->from_bytes >= a->to_bytes) return false;
  if (a->rank_count != 0 && b->rank_count != 0 && a->rank_count != b->rank_count) return false;
  return a->node_count == 0 || b->node_count == 0 || a->node_count == b->node_count;
}

static ncclResult_t file_add(const char *path, struct tune_file *file, const struct tune_rule *rule) {
  for (uint32_t i = 0; i < file->count; i++) {
    if (!rules_meet(&file->rules[i], rule)) continue;
    return log_fail(ncclInvalidUsage,
                    "%s:%u: expected sizes that no other rule for %s claims, but line %u has some of them; "
                    "change one of the two",
                    path, rule->line, names_collective[rule->func], file->rules[i].line);
  }
  file->rules[file->count++] = *rule;
  return ncclSuccess;
}

static ncclResult_t file_fill(const char *path, struct span text, struct tune_file *file) {
  for (uint32_t line = 1; text.begin < text.end; line++) {
    struct reader reader = line_next(path, &text, line);
    const struct span word = word_next(&reader);
    struct tune_rule rule;
    if (span_length(word) == 0) continue;
    TRY(rule_read(&reader, word, &rule));
    TRY(file_add(path, file, &rule));
  }
  return ncclSuccess;
}

static uint32_t rules_count(struct span text) {
  uint32_t count = 0;
  while (text.begin < text.end) {
    struct reader reader = line_next("", &text, 0);
    count += span_length(word_next(&reader)) > 0;
  }
  return count;
}

ncclResult_t tune_file_parse(const char *path, const char *text, size_t length, struct tune_file **file) {
  const struct span whole = {text, text + length};
  if (length > TUNE_FILE_BYTES_MAX)
    return log_fail(ncclInvalidUsage, "%s: expected at most %d bytes of tuning rules, found %zu", path,
                    TUNE_FILE_BYTES_MAX, length);
  const uint32_t count = rules_count(whole);
  if (count > TUNE_RULES_MAX)
    return log_fail(ncclInvalidUsage, "%s: expected at most %d rules, found %u", path, TUNE_RULES_MAX, count);
  struct tune_file *fresh = (struct tune_file *)os_alloc(sizeof *fresh + count * sizeof fresh->rules[0]);
  if (fresh == NULL) return log_no_memory("%s: %u tuning rules", path, count);
  const ncclResult_t result = file_fill(path, whole, fresh);
  if (result == ncclSuccess) *file = fresh;
  else os_free(fresh);
  return result;
}

ncclResult_t tune_file_read(const char *path, struct tune_file **file) {
  size_t length = 0;
  char *text = os_file_read(path, &length);
  if (text == NULL)
    return log_fail(ncclInvalidUsage, "%s: the tuning file cannot be read: %s; check TUTTI_TUNE_FILE", path,
                    strerror(errno));
  const ncclResult_t result = tune_file_parse(path, text, length, file);
  os_free(text);
  return result;
}

static bool rule_applies(const struct tune_rule *rule, const struct tune_sought *sought) {
  if (rule->func != sought->func || sought->bytes < rule->from_bytes) return false;
  if (sought->bytes >= rule->to_bytes && rule->to_bytes != UINT64_MAX) return false;
  if (rule->rank_count != 0 && rule->rank_count != sought->graph->rank_count) return false;
  if (rule->collectives != 0 && rule->collectives != sought->collectives) return false;
  return rule->node_count == 0 || rule->node_count == sought->graph->node_count;
}

const struct tune_rule *tune_file_find(const struct tune_file *file, const struct tune_rule *after,
                                       const struct tune_sought *sought) {
  if (file == NULL) return NULL;
  for (const struct tune_rule *rule = after != NULL ? after + 1 : file->rules;
       rule < file->rules + file->count; rule++)
    if (rule_applies(rule, sought)) return rule;
  return NULL;
}

int tune_rule_text(const struct tune_rule *rule, char *out, size_t out_bytes) {
  char to[24] = "max", ranks[24] = "", nodes[24] = "", channels[24] = "";
  if (rule->to_bytes != UINT64_MAX) snprintf(to, sizeof to, "%" PRIu64, rule->to_bytes);
  if (rule->rank_count != 0) snprintf(ranks, sizeof ranks, " ranks=%u", rule->rank_count);
  if (rule->node_count != 0) snprintf(nodes, sizeof nodes, " nodes=%u", rule->node_count);
  if (rule->channel_count != 0) snprintf(channels, sizeof channels, " channels=%u", rule->channel_count);
  return snprintf(out, out_bytes, "%s %" PRIu64 " %s%s%s algo=%s proto=%s%s", names_collective[rule->func],
                  rule->from_bytes, to, ranks, nodes, names_algo[rule->algo], names_proto[rule->proto],
                  channels);
}
