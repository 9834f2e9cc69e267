/* json_read.h: parses JSON into a tree of values, each with the line it starts on. Numbers stay text until a
 * caller asks for one, so that no digit is lost. (Readers of schedules report line numbers, which jansson
 * does not keep.) */
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
  uint32_t first, next,
      count;        /* index of the first member or item, and of the next sibling; 0: none. Count */
  const char *name; /* of an object's member; else NULL */
  const char *text; /* of a number or a string */
};

struct json_tree {
  struct json_value *values; /* values[0] is the root */
  uint32_t count, capacity;
  uint32_t line;     /* where reading ended */
  const char *fault; /* what was expected there; NULL on success and if memory is out */
};

/* Parses `text`, which has `bytes` bytes and a terminating zero. The parser modifies it, and the tree's
 * strings point into it, so it must outlive the tree. False: invalid JSON (tree->fault) or out of memory
 * (fault is NULL). Free the tree in every case. */
bool json_read(char *text, size_t bytes, struct json_tree *tree);
void json_free(struct json_tree *tree);

/* The member of an object by name; NULL if there is none or `object` is not an object. */
const struct json_value *json_member(const struct json_tree *tree, const struct json_value *object,
                                     const char *name);
/* Iterates over an array or object: start with NULL; returns NULL at the end. */
const struct json_value *json_next(const struct json_tree *tree, const struct json_value *within,
                                   const struct json_value *value);
/* A whole number from 0 on. False if the value is something else or exceeds 64 bits. */
bool json_whole(const struct json_value *value, uint64_t *number);
/* The kind of a value in words: "a number". */
const char *json_kind_name(const struct json_value *value);

#endif
