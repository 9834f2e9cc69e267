/* turns.h: whether the threads of this process have had CPU time, for code that gives up a wait because
 * nothing has made progress for some time: on a busy machine a runnable thread may not run for seconds. */
#ifndef TUTTI_BASE_TURNS_H
#define TUTTI_BASE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

enum { TURNS_THREADS = 512 };

/* What each thread did until now. */
struct turns {
  uint32_t count;
  struct {
    int thread;
    bool sleeps;
    uint64_t ns; /* CPU time */
  } threads[TURNS_THREADS];
};

void turns_note(struct turns *turns);
/* True if each thread has since had this much CPU time, or slept then and sleeps now. A thread that a
 * debugger has stopped does not sleep. If false, the caller notes anew: a thread that has just gone to sleep
 * may do so for a moment before it goes on. */
bool turns_passed(const struct turns *turns, uint64_t ns);

#endif
