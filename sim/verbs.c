/* verbs.c: the table of verbs. A new verb is one file and one line here. */
#include <stdio.h>
#include <string.h>

#include "backends/emu/world.h"
#include "base/param.h"
#include "base/text.h"
#include "collective.h"
#include "verb.h"

const struct verb *const verbs[] = {&verb_bench,  &verb_check,  &verb_doctor, &verb_explain, &verb_goal,
                                    &verb_launch, &verb_replay, &verb_run,    &verb_sim,     &verb_status,
                                    &verb_topo,   &verb_trace,  &verb_help};
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
  const char *nearest = text_nearest(name, names, verb_count);
  fprintf(stderr, "tutti: no verb `%s`", name);
  if (nearest) fprintf(stderr, "; did you mean `%s`?", nearest);
  fprintf(stderr, " (`tutti help` lists the verbs)\n");
  return EXIT_USAGE;
}

bool verb_settings_good(const char *verb) {
  const struct param_fault *fault;
  char text[1024];
  bool good = true;
  for (size_t i = 0; (fault = param_fault(i)) != NULL; i++) {
    if (fault->kind != PARAM_FAULT_REFUSED) continue;
    fprintf(stderr, "tutti %s: %s\n", verb, fault->text);
    good = false;
  }
  if (emu_settings_check(text, sizeof text)) return good;
  fprintf(stderr, "tutti %s: %s\n", verb, text);
  return false;
}

void verb_no_such(const char *verb, const char *what, const char *name, const char *const *names,
                  size_t count) {
  const char *nearest = text_nearest(name, names, count);
  fprintf(stderr, "tutti %s: no %s `%s`", verb, what, name);
  if (nearest) fprintf(stderr, "; did you mean `%s`?", nearest);
  fprintf(stderr, " Known:");
  for (size_t index = 0; index < count; index++) fprintf(stderr, " %s", names[index]);
  fputc('\n', stderr);
}

const struct collective *verb_collective(const char *verb, int operand_count, char **operands) {
  const char *names[COLLECTIVE_COUNT];
  size_t count = 0;
  for (; collective_at(count); count++) names[count] = collective_at(count)->name;
  if (operand_count != 1) {
    fprintf(stderr,
            "tutti %s: needs one collective, got %d: `tutti %s all_reduce` (`tutti help %s` says more)\n",
            verb, operand_count, verb, verb);
    return NULL;
  }
  const struct collective *collective = collective_find(operands[0]);
  if (!collective) verb_no_such(verb, "collective", operands[0], names, count);
  return collective;
}
