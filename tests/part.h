/* part.h: the part of a long enumeration that a test program runs, another one each day. tests/run_tests.py
 * sets TEST_DAY to the day of the last commit; TEST_PART=N/M chooses a part, TEST_PART=all the whole, which
 * is also what runs without either. part.inc is the same for scripts. */
#ifndef TESTS_PART_H
#define TESTS_PART_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct part {
  uint64_t number, of;
};

/* The day's part of `of` parts; prints which. */
static inline struct part part_of(uint64_t of) {
  const char *chosen = getenv("TEST_PART"), *day = getenv("TEST_DAY");
  unsigned long long number = 0, parts = 0;
  struct part part = {0, 1};
  if (chosen != NULL && sscanf(chosen, "%llu/%llu", &number, &parts) == 2 && parts > 0) {
    part.of = parts;
    part.number = number % parts;
  } else if (chosen == NULL && day != NULL) {
    part.of = of;
    part.number = strtoull(day, NULL, 10) % of;
  } else if (chosen != NULL && strcmp(chosen, "all") != 0) {
    fprintf(stderr, "TEST_PART=%s: must be N/M, or all\n", chosen);
    exit(2);
  }
  printf("# part %llu/%llu: TEST_PART=%llu/%llu repeats it, TEST_PART=all runs all\n",
         (unsigned long long)part.number, (unsigned long long)part.of, (unsigned long long)part.number,
         (unsigned long long)part.of);
  return part;
}

static inline bool part_has(struct part part, uint64_t number) { return number % part.of == part.number; }

#endif
