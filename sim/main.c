/* main.c: the tutti command. Finds the verb and passes it the rest of the command line. */
#include <stdio.h>
#include <string.h>

#include "limit.h"
#include "tutti.h"
#include "verb.h"

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "help";
  if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
    puts(tutti_version());
    return EXIT_GOOD;
  }
  if (!strcmp(name, "--help") || !strcmp(name, "-h")) name = "help";
  const struct verb *verb = verb_find(name);
  if (!verb) return verb_unknown(name);
  enum exit_code code = argc > 1 ? verb->run(argc - 1, argv + 1) : verb->run(argc, argv);
  code = limit_end(name, code);
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  fprintf(stderr, "tutti %s: standard output cannot be written; is the disk full or the pipe closed?\n",
          name);
  return code == EXIT_GOOD ? EXIT_ENVIRONMENT : code;
}
