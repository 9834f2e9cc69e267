/* pickle.c: the stack machine of pickles, without the opcodes that act:
 * https://docs.python.org/3/library/pickletools.html lists the opcodes. A value that was used twice is never
 * changed afterwards, so no value can contain itself. */
#include "files/pickle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

/* Lists and dictionaries of one byte each must not take much more memory than the file. */
enum { CONTAINERS_LEAST = 1024, BYTES_A_CONTAINER = 8, HEIGHT_MOST = 64 };

enum opcode {
  OP_MARK = '(',
  OP_STOP = '.',
  OP_POP = '0',
  OP_NONE = 'N',
  OP_INT4 = 'J',
  OP_INT1 = 'K',
  OP_INT2 = 'M',
  OP_LONG1 = 0x8a,
  OP_FLOAT = 'G',
  OP_TRUE = 0x88,
  OP_FALSE = 0x89,
  OP_TEXT4 = 'X',
  OP_TEXT1 = 0x8c,
  OP_TEXT8 = 0x8d,
  OP_BYTES4 = 'B',
  OP_BYTES1 = 'C',
  OP_STRING1 = 'U',
  OP_STRING4 = 'T',
  OP_LIST = ']',
  OP_APPEND = 'a',
  OP_APPENDS = 'e',
  OP_LIST_OF = 'l',
  OP_DICT = '}',
  OP_SETITEM = 's',
  OP_SETITEMS = 'u',
  OP_DICT_OF = 'd',
  OP_TUPLE0 = ')',
  OP_TUPLE1 = 0x85,
  OP_TUPLE2 = 0x86,
  OP_TUPLE3 = 0x87,
  OP_TUPLE = 't',
  OP_PUT1 = 'q',
  OP_PUT4 = 'r',
  OP_MEMOIZE = 0x94,
  OP_GET1 = 'h',
  OP_GET4 = 'j',
  OP_PROTO = 0x80,
  OP_FRAME = 0x95
};

/* Names of opcodes that would look up, call or build objects, for the error message. */
static const char *acting_name(uint8_t opcode) {
  switch (opcode) {
    case 'c': return "GLOBAL";
    case 0x93: return "STACK_GLOBAL";
    case 'R': return "REDUCE";
    case 'b': return "BUILD";
    case 'i': return "INST";
    case 'o': return "OBJ";
    case 0x81: return "NEWOBJ";
    case 0x92: return "NEWOBJ_EX";
    case 'P': return "PERSID";
    case 'Q': return "BINPERSID";
    case 0x82:
    case 0x83:
    case 0x84: return "EXT";
    default: return NULL;
  }
}

struct entry {
  json_t *value;   /* NULL: a mark */
  uint32_t height; /* nesting depth; 0 for a plain value */
  bool fetched;    /* from the memo: other values share it */
  size_t kept;     /* 0: not in the memo; else its number there plus one */
};
struct kept {
  json_t *value;
  uint32_t height;
};

struct pickle {
  const char *name;
  const uint8_t *bytes;
  size_t byte_count, at;
  size_t opcode_at;
  struct entry *stack;
  size_t depth, stack_capacity;
  struct kept *memo;
  size_t memo_count, memo_capacity;
  size_t containers;
  bool stopped;
};

static ncclResult_t pickle_fail(const struct pickle *pickle, const char *text) {
  return log_fail(ncclInvalidArgument, "%s: byte %zu: %s", pickle->name, pickle->opcode_at, text);
}

static ncclResult_t memory_fail(const struct pickle *pickle) {
  return log_no_memory("%s: what it holds", pickle->name);
}

/* Little-endian bytes of an argument. */
static ncclResult_t number_take(struct pickle *pickle, uint32_t bytes, uint64_t *value) {
  if (pickle->byte_count - pickle->at < bytes)
    return pickle_fail(pickle, "the file ends within an opcode's argument");
  *value = 0;
  for (uint32_t i = 0; i < bytes; i++) *value |= (uint64_t)pickle->bytes[pickle->at + i] << (8 * i);
  pickle->at += bytes;
  return ncclSuccess;
}

/* ---- the stack ---- */

static ncclResult_t stack_push(struct pickle *pickle, struct entry entry) {
  if (!array_grow_long(&pickle->stack, &pickle->stack_capacity, pickle->depth + 1, sizeof *pickle->stack)) {
    json_decref(entry.value);
    return memory_fail(pickle);
  }
  pickle->stack[pickle->depth++] = entry;
  return ncclSuccess;
}

/* Takes ownership of the value. */
static ncclResult_t value_push(struct pickle *pickle, json_t *value) {
  if (value == NULL) return memory_fail(pickle);
  const struct entry entry = {value, 0, false, 0};
  return stack_push(pickle, entry);
}

static ncclResult_t container_push(struct pickle *pickle, json_t *value, uint32_t height) {
  pickle->containers += 1; /* a NULL is reported below */
  if (pickle->containers > CONTAINERS_LEAST + pickle->byte_count / BYTES_A_CONTAINER) {
    json_decref(value);
    return pickle_fail(pickle, "more lists and dictionaries than a dump of this size has");
  }
  if (value == NULL) return memory_fail(pickle);
  const struct entry entry = {value, height, false, 0};
  return stack_push(pickle, entry);
}

static void stack_drop(struct pickle *pickle, size_t depth) {
  while (pickle->depth > depth) json_decref(pickle->stack[--pickle->depth].value);
}

/* Where the values above the last mark begin. */
static ncclResult_t mark_find(const struct pickle *pickle, size_t *begin) {
  for (size_t i = pickle->depth; i > 0; i--) {
    *begin = i;
    if (pickle->stack[i - 1].value == NULL) return ncclSuccess;
  }
  return pickle_fail(pickle, "a mark was expected below");
}

/* The value at this depth, for modification. */
static ncclResult_t target_check(const struct pickle *pickle, size_t depth, json_type type) {
  const struct entry *entry = &pickle->stack[depth];
  if (entry->value == NULL || json_typeof(entry->value) != type)
    return pickle_fail(pickle,
                       type == JSON_ARRAY ? "a list was expected below" : "a dictionary was expected below");
  if (entry->fetched || entry->value->refcount != 1u + (entry->kept != 0))
    return pickle_fail(pickle, "something is changed that is already part of something else");
  return ncclSuccess;
}

/* ---- lists, tuples, dictionaries ---- */

static ncclResult_t array_fill(struct pickle *pickle, json_t *array, size_t begin) {
  for (size_t i = begin; i < pickle->depth; i++) {
    if (pickle->stack[i].value == NULL) return pickle_fail(pickle, "a value was expected, not a mark");
    if (json_array_append(array, pickle->stack[i].value) != 0) return memory_fail(pickle);
  }
  return ncclSuccess;
}

static ncclResult_t key_text(const struct pickle *pickle, const json_t *key, char digits[32],
                             const char **text) {
  *text = digits;
  if (key != NULL && json_is_string(key)) *text = json_string_value(key);
  else if (key != NULL && json_is_integer(key))
    snprintf(digits, 32, "%" JSON_INTEGER_FORMAT, json_integer_value(key));
  else return pickle_fail(pickle, "a text or a number was expected as a key");
  return ncclSuccess;
}

static ncclResult_t object_fill(struct pickle *pickle, json_t *object, size_t begin) {
  if ((pickle->depth - begin) % 2 != 0) return pickle_fail(pickle, "a key has no value");
  for (size_t i = begin; i < pickle->depth; i += 2) {
    char digits[32];
    const char *key;
    TRY(key_text(pickle, pickle->stack[i].value, digits, &key));
    if (pickle->stack[i + 1].value == NULL) return pickle_fail(pickle, "a value was expected, not a mark");
    if (json_object_set(object, key, pickle->stack[i + 1].value) != 0) return memory_fail(pickle);
  }
  return ncclSuccess;
}

/* For a list with the values from `begin` on. */
static ncclResult_t height_of(const struct pickle *pickle, size_t begin, uint32_t *height) {
  *height = 1;
  for (size_t i = begin; i < pickle->depth; i++)
    if (pickle->stack[i].height >= *height) *height = pickle->stack[i].height + 1;
  return *height <= HEIGHT_MOST ? ncclSuccess
                                : pickle_fail(pickle, "lists in lists, deeper than in any dump");
}

/* Moves the values from `begin` on into the list or dictionary below them. */
static ncclResult_t extend(struct pickle *pickle, size_t begin, size_t target, json_type type) {
  uint32_t height;
  TRY(target_check(pickle, target, type));
  TRY(height_of(pickle, begin, &height));
  struct entry *below = &pickle->stack[target];
  if (height > below->height) below->height = height;
  if (below->kept != 0) pickle->memo[below->kept - 1].height = below->height;
  json_t *into = below->value;
  TRY(type == JSON_ARRAY ? array_fill(pickle, into, begin) : object_fill(pickle, into, begin));
  stack_drop(pickle, target + 1);
  return ncclSuccess;
}

static ncclResult_t extend_last(struct pickle *pickle, size_t count, json_type type) {
  if (pickle->depth < count + 1) return pickle_fail(pickle, "values were expected below");
  return extend(pickle, pickle->depth - count, pickle->depth - count - 1, type);
}

static ncclResult_t extend_marked(struct pickle *pickle, json_type type) {
  size_t begin = 0;
  TRY(mark_find(pickle, &begin));
  if (begin < 2) return pickle_fail(pickle, "a list or dictionary was expected below the mark");
  return extend(pickle, begin, begin - 2, type);
}

/* A new container with the values from `begin` on; `drop`: the number of stack entries that it replaces. */
static ncclResult_t gather(struct pickle *pickle, size_t begin, size_t drop, json_type type) {
  uint32_t height;
  TRY(height_of(pickle, begin, &height));
  json_t *fresh = type == JSON_ARRAY ? json_array() : json_object();
  if (fresh == NULL) return memory_fail(pickle);
  const ncclResult_t result =
      type == JSON_ARRAY ? array_fill(pickle, fresh, begin) : object_fill(pickle, fresh, begin);
  if (result != ncclSuccess) {
    json_decref(fresh);
    return result;
  }
  stack_drop(pickle, drop);
  return container_push(pickle, fresh, height);
}

static ncclResult_t gather_last(struct pickle *pickle, size_t count) {
  if (pickle->depth < count) return pickle_fail(pickle, "values were expected below");
  return gather(pickle, pickle->depth - count, pickle->depth - count, JSON_ARRAY);
}

static ncclResult_t gather_marked(struct pickle *pickle, json_type type) {
  size_t begin = 0;
  TRY(mark_find(pickle, &begin));
  return gather(pickle, begin, begin - 1, type);
}

/* ---- the memo ---- */

/* Picklers number memo entries from 0 on. */
static ncclResult_t memo_put(struct pickle *pickle, uint64_t number) {
  struct entry *top = pickle->depth > 0 ? &pickle->stack[pickle->depth - 1] : NULL;
  if (top == NULL || top->value == NULL) return pickle_fail(pickle, "a value was expected below");
  if (number != pickle->memo_count || top->kept != 0)
    return pickle_fail(pickle, "numbers of kept values were expected to count up from 0, one a value");
  if (!array_grow_long(&pickle->memo, &pickle->memo_capacity, pickle->memo_count + 1, sizeof *pickle->memo))
    return memory_fail(pickle);
  pickle->memo[pickle->memo_count++] = (struct kept){json_incref(top->value), top->height};
  top->kept = pickle->memo_count;
  return ncclSuccess;
}

static ncclResult_t memo_get(struct pickle *pickle, uint64_t number) {
  if (number >= pickle->memo_count) return pickle_fail(pickle, "no value of that number has been kept");
  const struct kept *kept = &pickle->memo[number];
  const struct entry entry = {json_incref(kept->value), kept->height, true, (size_t)number + 1};
  return stack_push(pickle, entry);
}

/* ---- single values ---- */

static ncclResult_t text_take(struct pickle *pickle, uint32_t length_bytes) {
  uint64_t length = 0;
  TRY(number_take(pickle, length_bytes, &length));
  if (length > pickle->byte_count - pickle->at) return pickle_fail(pickle, "the file ends within a text");
  const char *text = (const char *)pickle->bytes + pickle->at;
  pickle->at += (size_t)length;
  json_t *value = json_stringn(text, (size_t)length);
  if (value == NULL) value = json_string("?"); /* it is not UTF-8 */
  return value_push(pickle, value);
}

static ncclResult_t float_take(struct pickle *pickle) {
  uint64_t bits = 0;
  double number;
  TRY(number_take(pickle, 8, &bits));
  bits = __builtin_bswap64(bits); /* the only big-endian argument */
  memcpy(&number, &bits, sizeof number);
  json_t *value = json_real(number);
  return value_push(pickle, value != NULL ? value : json_null()); /* JSON has no infinity */
}

/* A number of up to 8 bytes, in two's complement. */
static ncclResult_t long_take(struct pickle *pickle) {
  uint64_t length = 0, value = 0;
  TRY(number_take(pickle, 1, &length));
  if (length > 8) return pickle_fail(pickle, "a whole number of more than 8 bytes");
  TRY(number_take(pickle, (uint32_t)length, &value));
  const uint32_t unused = 64 - 8 * (uint32_t)length;
  const int64_t number = length == 0 ? 0 : (int64_t)(value << unused) >> unused;
  return value_push(pickle, json_integer(number));
}

static ncclResult_t integer_take(struct pickle *pickle, uint32_t bytes) {
  uint64_t value = 0;
  TRY(number_take(pickle, bytes, &value));
  return value_push(pickle, json_integer(bytes == 4 ? (int32_t)value : (int64_t)value));
}

static ncclResult_t memo_take(struct pickle *pickle, uint32_t bytes, bool put) {
  uint64_t number = 0;
  TRY(number_take(pickle, bytes, &number));
  return put ? memo_put(pickle, number) : memo_get(pickle, number);
}

static ncclResult_t refuse(const struct pickle *pickle, uint8_t opcode) {
  const char *acting = acting_name(opcode);
  char text[160];
  if (acting != NULL)
    snprintf(text, sizeof text,
             "opcode %s, which would run something; this reader runs nothing, and dumps need no such",
             acting);
  else snprintf(text, sizeof text, "opcode 0x%02x, which no dump of plain data has", opcode);
  return pickle_fail(pickle, text);
}

/* ---- opcodes ---- */

static ncclResult_t skip(struct pickle *pickle, uint32_t bytes) {
  uint64_t ignored = 0;
  return number_take(pickle, bytes, &ignored);
}

static ncclResult_t pop(struct pickle *pickle) {
  if (pickle->depth == 0) return pickle_fail(pickle, "a value was expected below");
  stack_drop(pickle, pickle->depth - 1);
  return ncclSuccess;
}

static ncclResult_t run_scalar(struct pickle *pickle, uint8_t opcode) {
  switch (opcode) {
    case OP_NONE: return value_push(pickle, json_null());
    case OP_TRUE: return value_push(pickle, json_true());
    case OP_FALSE: return value_push(pickle, json_false());
    case OP_INT1: return integer_take(pickle, 1);
    case OP_INT2: return integer_take(pickle, 2);
    case OP_INT4: return integer_take(pickle, 4);
    case OP_LONG1: return long_take(pickle);
    case OP_FLOAT: return float_take(pickle);
    case OP_TEXT1:
    case OP_BYTES1:
    case OP_STRING1: return text_take(pickle, 1);
    case OP_TEXT4:
    case OP_BYTES4:
    case OP_STRING4: return text_take(pickle, 4);
    case OP_TEXT8: return text_take(pickle, 8);
    default: return refuse(pickle, opcode);
  }
}

static ncclResult_t run_one(struct pickle *pickle, uint8_t opcode) {
  const struct entry mark = {NULL, 0, false, 0};
  switch (opcode) {
    case OP_PROTO: return skip(pickle, 1);
    case OP_FRAME: return skip(pickle, 8);
    case OP_MARK: return stack_push(pickle, mark);
    case OP_POP: return pop(pickle);
    case OP_STOP: pickle->stopped = true; return ncclSuccess;
    case OP_LIST: return container_push(pickle, json_array(), 1);
    case OP_DICT: return container_push(pickle, json_object(), 1);
    case OP_APPEND: return extend_last(pickle, 1, JSON_ARRAY);
    case OP_SETITEM: return extend_last(pickle, 2, JSON_OBJECT);
    case OP_APPENDS: return extend_marked(pickle, JSON_ARRAY);
    case OP_SETITEMS: return extend_marked(pickle, JSON_OBJECT);
    case OP_TUPLE0: return gather_last(pickle, 0);
    case OP_TUPLE1: return gather_last(pickle, 1);
    case OP_TUPLE2: return gather_last(pickle, 2);
    case OP_TUPLE3: return gather_last(pickle, 3);
    case OP_TUPLE:
    case OP_LIST_OF: return gather_marked(pickle, JSON_ARRAY);
    case OP_DICT_OF: return gather_marked(pickle, JSON_OBJECT);
    case OP_PUT1: return memo_take(pickle, 1, true);
    case OP_PUT4: return memo_take(pickle, 4, true);
    case OP_MEMOIZE: return memo_put(pickle, pickle->memo_count);
    case OP_GET1: return memo_take(pickle, 1, false);
    case OP_GET4: return memo_take(pickle, 4, false);
    default: return run_scalar(pickle, opcode);
  }
}

static ncclResult_t run(struct pickle *pickle) {
  while (!pickle->stopped) {
    pickle->opcode_at = pickle->at;
    if (pickle->at == pickle->byte_count)
      return pickle_fail(pickle, "more was expected: the file is cut off");
    TRY(run_one(pickle, pickle->bytes[pickle->at++]));
  }
  if (pickle->depth != 1 || pickle->stack[0].value == NULL)
    return pickle_fail(pickle, "one value was expected at the end");
  return ncclSuccess;
}

bool pickle_is(const void *bytes, size_t byte_count) {
  const uint8_t *byte = (const uint8_t *)bytes;
  return byte_count >= 2 && byte[0] == OP_PROTO && byte[1] >= 2 && byte[1] <= 5;
}

ncclResult_t pickle_read(const char *name, const void *bytes, size_t byte_count, json_t **value) {
  struct pickle pickle = {.name = name, .bytes = (const uint8_t *)bytes, .byte_count = byte_count};
  const ncclResult_t result = run(&pickle);
  if (result == ncclSuccess) *value = json_incref(pickle.stack[0].value);
  stack_drop(&pickle, 0);
  for (size_t i = 0; i < pickle.memo_count; i++) json_decref(pickle.memo[i].value);
  os_free(pickle.stack);
  os_free(pickle.memo);
  return result;
}

/* ---- writing ---- */

struct out {
  char *bytes;
  size_t used, capacity;
  bool failed;
};

static void put(struct out *out, const void *bytes, size_t count) {
  if (!out->failed) out->failed = !array_grow_long(&out->bytes, &out->capacity, out->used + count, 1);
  if (out->failed) return;
  memcpy(out->bytes + out->used, bytes, count);
  out->used += count;
}

static void put_opcode(struct out *out, uint8_t opcode) { put(out, &opcode, 1); }

static void put_number(struct out *out, uint64_t number, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i++) put_opcode(out, (uint8_t)(number >> (8 * i)));
}

static void put_text(struct out *out, const char *text, size_t length) {
  put_opcode(out, OP_TEXT4);
  put_number(out, length, 4);
  put(out, text, length);
}

static void put_real(struct out *out, double number) {
  uint64_t bits = 0;
  memcpy(&bits, &number, sizeof bits);
  put_opcode(out, OP_FLOAT);
  put_number(out, __builtin_bswap64(bits), 8);
}

static void put_value(struct out *out, const json_t *value, bool tuple);

static void put_object(struct out *out, const json_t *value) {
  const char *key;
  json_t *each;
  put_opcode(out, OP_DICT);
  put_opcode(out, OP_MARK);
  json_object_foreach((json_t *)(uintptr_t)value, key, each) {
    put_text(out, key, strlen(key));
    put_value(out, each, strcmp(key, "process_group") == 0);
  }
  put_opcode(out, OP_SETITEMS);
}

static void put_array(struct out *out, const json_t *value, bool tuple) {
  if (!tuple) put_opcode(out, OP_LIST);
  put_opcode(out, OP_MARK);
  for (size_t i = 0; i < json_array_size(value); i++) put_value(out, json_array_get(value, i), false);
  put_opcode(out, tuple ? OP_TUPLE : OP_APPENDS);
}

static void put_value(struct out *out, const json_t *value, bool tuple) {
  switch (json_typeof(value)) {
    case JSON_OBJECT: put_object(out, value); break;
    case JSON_ARRAY: put_array(out, value, tuple); break;
    case JSON_STRING: put_text(out, json_string_value(value), json_string_length(value)); break;
    case JSON_REAL: put_real(out, json_real_value(value)); break;
    case JSON_INTEGER:
      put_opcode(out, OP_LONG1);
      put_number(out, 8, 1);
      put_number(out, (uint64_t)json_integer_value(value), 8);
      break;
    case JSON_TRUE: put_opcode(out, OP_TRUE); break;
    case JSON_FALSE: put_opcode(out, OP_FALSE); break;
    default: put_opcode(out, OP_NONE); break;
  }
}

ncclResult_t pickle_write(const json_t *value, char **bytes, size_t *byte_count) {
  struct out out = {NULL, 0, 0, false};
  put_opcode(&out, OP_PROTO);
  put_opcode(&out, 2);
  put_value(&out, value, false);
  put_opcode(&out, OP_STOP);
  if (out.failed) {
    os_free(out.bytes);
    return log_no_memory("writing a pickle of %zu bytes", out.used);
  }
  *bytes = out.bytes;
  *byte_count = out.used;
  return ncclSuccess;
}
