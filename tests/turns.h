/* turns.h: whether the threads of this process have had CPU time, for programs that wait until nothing makes
 * progress: on a busy machine a runnable thread may not run for long. */
#ifndef TUTTI_TESTS_TURNS_H
#define TUTTI_TESTS_TURNS_H

#include <stdbool.h>
#include <stdint.h>

enum { TURNS_THREADS = 512 };

/* CPU time of each thread so far. */
struct turns {
  uint32_t count;
  struct {
    int thread;
    uint64_t ns;
  } threads[TURNS_THREADS];
};

void turns_note(struct turns *turns);
/* True if each runnable thread has since had this much CPU time. */
bool turns_passed(const struct turns *turns, uint64_t ns);

#endif
