/* turns.h: whether the threads of this process have had their turn, for programs that wait until nothing
 * moves any more: on a busy machine a thread that could go on may not come to it for long. */
#ifndef TUTTI_TESTS_TURNS_H
#define TUTTI_TESTS_TURNS_H

#include <stdbool.h>
#include <stdint.h>

enum { TURNS_THREADS = 512 };

/* What each thread had computed. */
struct turns {
  uint32_t count;
  struct {
    int thread;
    uint64_t ns;
  } threads[TURNS_THREADS];
};

void turns_note(struct turns *turns);
/* Since then each thread that could go on has computed for so long. */
bool turns_passed(const struct turns *turns, uint64_t ns);

#endif
