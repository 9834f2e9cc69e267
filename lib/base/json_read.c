/* json_read.c: see json_read.h. One pass over the text; escapes in strings are decoded in place. */
#include "base/json_read.h"

#include <string.h>

#include "base/array.h"
#include "base/os.h"

struct json_scan {
  struct json_tree *tree;
  char *next, *end;
  uint32_t depth;
};

static bool fault(struct json_scan *scan, const char *sentence) {
  scan->tree->fault = sentence;
  return false;
}

static void skip_blanks(struct json_scan *scan) {
  for (; *scan->next == ' ' || *scan->next == '\t' || *scan->next == '\r' || *scan->next == '\n';
       scan->next++)
    if (*scan->next == '\n') scan->tree->line += 1;
}

/* Adds a value; returns its index, 0 if there is no space. The root, values[0], is added before any other. */
static uint32_t value_add(struct json_scan *scan) {
  struct json_tree *tree = scan->tree;
  if (tree->count == JSON_VALUES_MAX) {
    tree->fault = "expected at most 4194304 values";
    return 0;
  }
  if (!array_grow(&tree->values, &tree->capacity, (uint64_t)tree->count + 1, sizeof *tree->values)) return 0;
  struct json_value *value = &tree->values[tree->count];
  memset(value, 0, sizeof *value);
  value->line = tree->line;
  return tree->count++;
}

/* ---- strings ---- */

static bool hex_take(struct json_scan *scan, uint32_t *code) {
  *code = 0;
  for (uint32_t i = 0; i < 4; i++) {
    const char letter = *scan->next;
    const char low = letter >= 'A' && letter <= 'F' ? (char)(letter + 32) : letter;
    if (low >= '0' && low <= '9') *code = *code * 16 + (uint32_t)(low - '0');
    else if (low >= 'a' && low <= 'f') *code = *code * 16 + (uint32_t)(low - 'a' + 10);
    else return fault(scan, "expected four hexadecimal digits behind \\u");
    scan->next += 1;
  }
  return true;
}

/* Writes a code point as UTF-8, which is never longer than its escape. Unpaired surrogates and zeros become
 * question marks, because a string ends with a zero. */
static char *code_put(char *out, uint32_t code) {
  if (code == 0 || (code >= 0xd800 && code < 0xe000)) code = '?';
  if (code < 0x80) {
    *out++ = (char)code;
  } else if (code < 0x800) {
    *out++ = (char)(0xc0 | code >> 6);
    *out++ = (char)(0x80 | (code & 63));
  } else {
    *out++ = (char)(0xe0 | code >> 12);
    *out++ = (char)(0x80 | (code >> 6 & 63));
    *out++ = (char)(0x80 | (code & 63));
  }
  return out;
}

static bool escape_take(struct json_scan *scan, char **out) {
  static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  const char letter = *scan->next;
  const char *found = letter == '\0' ? NULL : strchr(names, letter);
  scan->next += letter != '\0';
  if (found != NULL) {
    *(*out)++ = meanings[found - names];
    return true;
  }
  uint32_t code = 0;
  if (letter != 'u') return fault(scan, "expected one of \" \\ / b f n r t u behind a backslash");
  if (!hex_take(scan, &code)) return false;
  *out = code_put(*out, code);
  return true;
}

static bool string_take(struct json_scan *scan, const char **text) {
  char *out = ++scan->next;
  *text = out;
  while (*scan->next != '"') {
    if ((unsigned char)*scan->next < ' ') return fault(scan, "expected the string's closing \" in its line");
    if (*scan->next != '\\') {
      *out++ = *scan->next++;
      continue;
    }
    scan->next += 1;
    if (!escape_take(scan, &out)) return false;
  }
  scan->next += 1;
  *out = '\0';
  return true;
}

/* ---- numbers and words ---- */

static bool digits_take(struct json_scan *scan) {
  if (*scan->next < '0' || *scan->next > '9') return fault(scan, "expected a digit");
  while (*scan->next >= '0' && *scan->next <= '9') scan->next += 1;
  return true;
}

static bool number_scan(struct json_scan *scan) {
  if (*scan->next == '-') scan->next += 1;
  const bool zero = *scan->next == '0';
  const char *first = scan->next;
  if (!digits_take(scan)) return false;
  if (zero && scan->next > first + 1) return fault(scan, "expected no digit behind a leading 0");
  if (*scan->next == '.') {
    scan->next += 1;
    if (!digits_take(scan)) return false;
  }
  if (*scan->next != 'e' && *scan->next != 'E') return true;
  scan->next += 1;
  if (*scan->next == '+' || *scan->next == '-') scan->next += 1;
  return digits_take(scan);
}

static bool word_take(struct json_scan *scan, struct json_value *value) {
  static const char *const words[] = {"null", "true", "false"};
  for (uint32_t i = 0; i < 3; i++) {
    const size_t length = strlen(words[i]);
    if (strncmp(scan->next, words[i], length) != 0) continue;
    value->kind = i == 0 ? JSON_NULL : JSON_BOOL;
    value->truth = i == 1;
    scan->next += length;
    return true;
  }
  return fault(scan, "expected a value: an object, an array, a string, a number, true, false or null");
}

/* ---- values ---- */

static bool value_take(struct json_scan *scan, uint32_t index);

static bool name_take(struct json_scan *scan, const char **name) {
  if (*scan->next != '"') return fault(scan, "expected a member's name in quotes");
  if (!string_take(scan, name)) return false;
  skip_blanks(scan);
  if (*scan->next != ':') return fault(scan, "expected ':' behind a member's name");
  scan->next += 1;
  skip_blanks(scan);
  return true;
}

/* After a value: sets *more if a comma follows. */
static bool comma_take(struct json_scan *scan, char closing, bool *more) {
  skip_blanks(scan);
  *more = *scan->next == ',';
  if (!*more && *scan->next != closing)
    return fault(
        scan, closing == ']' ? "expected ',' or ']' behind an item" : "expected ',' or '}' behind a member");
  *scan->next = '\0'; /* terminates a preceding number */
  scan->next += 1;
  if (*more) skip_blanks(scan);
  return true;
}

static bool holder_take(struct json_scan *scan, uint32_t index) {
  const bool object = *scan->next == '{';
  const char closing = object ? '}' : ']';
  uint32_t last = 0;
  scan->tree->values[index].kind = object ? JSON_OBJECT : JSON_ARRAY;
  if (scan->depth++ == JSON_NESTING_MAX) return fault(scan, "expected at most 64 values within each other");
  scan->next += 1;
  skip_blanks(scan);
  bool more = *scan->next != closing;
  if (!more) scan->next += 1;
  while (more) {
    const char *name = NULL;
    if (object && !name_take(scan, &name)) return false;
    const uint32_t item = value_add(scan);
    if (item == 0) return false;
    scan->tree->values[item].name = name;
    if (last == 0) scan->tree->values[index].first = item;
    else scan->tree->values[last].next = item;
    scan->tree->values[index].count += 1;
    last = item;
    if (!value_take(scan, item) || !comma_take(scan, closing, &more)) return false;
  }
  scan->depth -= 1;
  return true;
}

static bool value_take(struct json_scan *scan, uint32_t index) {
  struct json_value *value = &scan->tree->values[index];
  if (*scan->next == '{' || *scan->next == '[') return holder_take(scan, index);
  if (*scan->next == '"') {
    value->kind = JSON_STRING;
    return string_take(scan, &value->text);
  }
  if (*scan->next != '-' && (*scan->next < '0' || *scan->next > '9')) return word_take(scan, value);
  value->kind = JSON_NUMBER;
  value->text = scan->next;
  return number_scan(scan);
}

bool json_read(char *text, size_t bytes, struct json_tree *tree) {
  struct json_scan scan = {tree, text, text + bytes, 0};
  memset(tree, 0, sizeof *tree);
  tree->line = 1;
  if (strncmp(text, "\xef\xbb\xbf", 3) == 0) scan.next += 3;
  skip_blanks(&scan);
  value_add(&scan);
  if (tree->count == 0 || !value_take(&scan, 0)) return false;
  skip_blanks(&scan);
  if (scan.next != scan.end) return fault(&scan, "expected the end of the file behind its value");
  return true;
}

void json_free(struct json_tree *tree) {
  os_free(tree->values);
  tree->values = NULL;
}

/* ---- asking ---- */

const struct json_value *json_next(const struct json_tree *tree, const struct json_value *within,
                                   const struct json_value *value) {
  const uint32_t index = value == NULL ? within->first : value->next;
  return index == 0 ? NULL : &tree->values[index];
}

const struct json_value *json_member(const struct json_tree *tree, const struct json_value *object,
                                     const char *name) {
  if (object->kind != JSON_OBJECT) return NULL;
  const struct json_value *member = json_next(tree, object, NULL);
  while (member != NULL && strcmp(member->name, name) != 0) member = json_next(tree, object, member);
  return member;
}

bool json_whole(const struct json_value *value, uint64_t *number) {
  uint64_t sum = 0;
  if (value->kind != JSON_NUMBER) return false;
  for (const char *text = value->text; *text >= '0' && *text <= '9'; text++) {
    const uint64_t digit = (uint64_t)(*text - '0');
    if (sum > (UINT64_MAX - digit) / 10) return false;
    sum = sum * 10 + digit;
    if (text[1] == '.' || text[1] == 'e' || text[1] == 'E') return false;
  }
  *number = sum;
  return *value->text != '-';
}

const char *json_kind_name(const struct json_value *value) {
  static const char *const names[] = {"null",     "a truth value", "a number",
                                      "a string", "an array",      "an object"};
  return names[value->kind];
}
