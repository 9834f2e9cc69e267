/* test_json_read.c: JSON as a tree: kinds, lines, escapes, numbers of all 64 bits; and the place of the error
 * in malformed text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_read.h"

static char text[4096];

static bool read_text(const char *json, struct json_tree *tree) {
  snprintf(text, sizeof text, "%s", json);
  return json_read(text, strlen(text), tree);
}

static void test_values(void **state) {
  (void)state;
  struct json_tree tree;
  uint64_t number = 0;
  assert_true(
      read_text("\xef\xbb\xbf {\"a\": [1, 18446744073709551615, -2, 1.5, 3e2],\n \"b\" : {\"c\":true,\n"
                "\"d\": null, \"e\": \"x\\n\\u00e9\\\"\"}, \"f\":[], \"g\": {} }\n",
                &tree));
  const struct json_value *root = &tree.values[0], *list = json_member(&tree, root, "a");
  assert_true(root->kind == JSON_OBJECT && root->count == 4 && list->kind == JSON_ARRAY && list->count == 5);
  const struct json_value *item = json_next(&tree, list, NULL);
  assert_true(json_whole(item, &number) && number == 1 && item->line == 1);
  item = json_next(&tree, list, item);
  assert_true(json_whole(item, &number) && number == UINT64_MAX);
  for (uint32_t i = 0; i < 3; i++) {
    item = json_next(&tree, list, item);
    assert_true(item->kind == JSON_NUMBER && !json_whole(item, &number));
  }
  assert_true(json_next(&tree, list, item) == NULL);
  const struct json_value *inner = json_member(&tree, root, "b");
  assert_true(inner->line == 2 && json_member(&tree, inner, "c")->truth);
  assert_true(json_member(&tree, inner, "d")->kind == JSON_NULL && json_member(&tree, inner, "d")->line == 3);
  assert_true(strcmp(json_member(&tree, inner, "e")->text, "x\n\xc3\xa9\"") == 0);
  assert_true(json_member(&tree, root, "z") == NULL && json_member(&tree, list, "a") == NULL);
  assert_true(json_next(&tree, json_member(&tree, root, "f"), NULL) == NULL);
  json_free(&tree);
}

static void test_numbers(void **state) {
  (void)state;
  struct json_tree tree;
  uint64_t number;
  assert_true(read_text("[18446744073709551616, 0 , 7\n]", &tree));
  const struct json_value *item = json_next(&tree, &tree.values[0], NULL);
  assert_true(!json_whole(item, &number));
  item = json_next(&tree, &tree.values[0], item);
  assert_true(json_whole(item, &number) && number == 0);
  item = json_next(&tree, &tree.values[0], item);
  assert_true(json_whole(item, &number) && number == 7);
  json_free(&tree);
}

static void refuses(const char *json, uint32_t line, const char *words) {
  struct json_tree tree;
  assert_true(!read_text(json, &tree));
  assert_true(tree.fault != NULL && strstr(tree.fault, words) != NULL && tree.line == line);
  json_free(&tree);
}

static void test_faults(void **state) {
  (void)state;
  char deep[200];
  memset(deep, '[', sizeof deep);
  deep[sizeof deep - 1] = '\0';
  refuses("", 1, "expected a value");
  refuses("{\n\"a\" 1}", 2, "expected ':'");
  refuses("{a: 1}", 1, "expected a member's name");
  refuses("[1 2]", 1, "expected ',' or ']'");
  refuses("{\"a\": 1\n", 2, "expected ',' or '}'");
  refuses("[1,]", 1, "expected a value");
  refuses("[01]", 1, "no digit behind a leading 0");
  refuses("[1.]", 1, "expected a digit");
  refuses("[-]", 1, "expected a digit");
  refuses("[\"a\nb\"]", 1, "closing \"");
  refuses("[\"a\\x\"]", 1, "behind a backslash");
  refuses("[\"\\u00g0\"]", 1, "four hexadecimal digits");
  refuses("[\"a\\", 1, "behind a backslash");
  refuses("[] []", 1, "expected the end");
  refuses(deep, 1, "at most 64 values within each other");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
