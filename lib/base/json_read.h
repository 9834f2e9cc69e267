/* json_read.h: a JSON text as a tree of values, each with the line that it began on. Numbers stay text until
 * somebody asks for one, so that no digit is lost. (Readers of schedules name the line of what they refuse;
 * jansson does not keep lines.) */
#ifndef TUTTI_BASE_JSON_READ_H
#define TUTTI_BASE_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_VALUES_MAX (1u << 22)
#define JSON_NESTING_MAX 64

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json_value {
  uint8_t kind; /* enum json_kind */
  bool truth;   /* of a JSON_BOOL */
  uint32_t line;
  uint32_t first, next, count; /* its first member or item, the one behind it; 0: none. How many it has */
  const char *name;            /* of an object's member; NULL elsewhere */
  const char *text;            /* of a number or a string */
};

struct json_tree {
  struct json_value *values; /* values[0] is the whole */
  uint32_t count, capacity;
  uint32_t line;     /* where reading ended */
  const char *fault; /* what was expected there; NULL when the text was read, or memory is out */
};

/* Reads `text`, which ends with a zero behind `bytes` and is written to: its strings are in the tree, which
 * must not outlive it. False when it is no JSON (tree->fault) or memory is out (fault is NULL). Free the tree
 * either way. */
bool json_read(char *text, size_t bytes, struct json_tree *tree);
void json_free(struct json_tree *tree);

/* The member of an object by name; NULL when it has none, or `object` is no object. */
const struct json_value *json_member(const struct json_tree *tree, const struct json_value *object,
                                     const char *name);
/* What an array or an object holds, one by one: begin with NULL; NULL is the end. */
const struct json_value *json_next(const struct json_tree *tree, const struct json_value *within,
                                   const struct json_value *value);
/* A whole number from 0 on. False when the value is no such number, or beyond 64 bits. */
bool json_whole(const struct json_value *value, uint64_t *number);
/* What a value is, in a word: "a number". */
const char *json_kind_name(const struct json_value *value);

#endif
