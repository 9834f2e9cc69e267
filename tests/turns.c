/* turns.c: see turns.h. */
#include "turns.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* The thread's CPU clock, as pthread_getcpuclockid() would name it. */
static uint64_t thread_ns(int thread) {
  enum { OF_A_THREAD = 4, AS_SCHEDULED = 2 };
  struct timespec now = {0, 0};
  const clockid_t its_clock = (clockid_t)(~(unsigned)thread << 3 | OF_A_THREAD | AS_SCHEDULED);
  if (clock_gettime(its_clock, &now) != 0) return 0;
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool thread_waits(int thread) {
  char path[64], line[256], state = 'S';
  snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
  FILE *file = fopen(path, "r");
  if (file == NULL) return true; /* the thread has ended */
  while (fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "State: %c", &state) == 1) break;
  fclose(file);
  return state != 'R';
}

void turns_note(struct turns *turns) {
  DIR *folder = opendir("/proc/self/task");
  turns->count = 0;
  for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    const int thread = atoi(entry->d_name);
    if (thread == 0 || turns->count == TURNS_THREADS) continue;
    turns->threads[turns->count].thread = thread;
    turns->threads[turns->count++].ns = thread_ns(thread);
  }
  if (folder != NULL) closedir(folder);
}

static uint64_t ns_noted(const struct turns *turns, int thread) {
  for (uint32_t i = 0; i < turns->count; i++)
    if (turns->threads[i].thread == thread) return turns->threads[i].ns;
  return 0;
}

bool turns_passed(const struct turns *turns, uint64_t ns) {
  static struct turns now;
  bool passed = true;
  turns_note(&now);
  for (uint32_t i = 0; i < now.count && passed; i++) {
    const int thread = now.threads[i].thread;
    passed = now.threads[i].ns - ns_noted(turns, thread) >= ns || thread == gettid() || thread_waits(thread);
  }
  return passed;
}
