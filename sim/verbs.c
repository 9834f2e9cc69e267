/* verbs.c: the table of verbs. A new verb is one file and one line here. */
#include <stdio.h>
#include <string.h>

#include "verb.h"

const struct verb *const verbs[] = {&verb_bench,  &verb_check,  &verb_doctor, &verb_explain,
                                    &verb_goal,   &verb_launch, &verb_replay, &verb_sim,
                                    &verb_status, &verb_topo,   &verb_trace,  &verb_help};
const size_t verb_count = sizeof verbs / sizeof verbs[0];

const struct verb *verb_find(const char *name) {
  for (size_t index = 0; index < verb_count; index++) {
    if (!strcmp(verbs[index]->name, name)) return verbs[index];
  }
  return NULL;
}

enum exit_code verb_unknown(const char *name) {
  const char *names[sizeof verbs / sizeof verbs[0]];
  for (size_t index = 0; index < verb_count; index++) names[index] = verbs[index]->name;
  const char *nearest = option_nearest(name, names, verb_count);
  fprintf(stderr, "tutti: no verb `%s`", name);
  if (nearest) fprintf(stderr, "; did you mean `%s`?", nearest);
  fprintf(stderr, " (`tutti help` lists the verbs)\n");
  return EXIT_USAGE;
}
