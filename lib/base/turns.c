/* turns.c: see turns.h. */
#include "base/turns.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static bool thread_sleeps(int thread) {
  char path[64], line[256], state = 'S';
  snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
  FILE *file = fopen(path, "r");
  if (file == NULL) return true; /* the thread has ended */
  while (fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "State: %c", &state) == 1) break;
  fclose(file);
  return strchr("RDTt", state) == NULL;
}

void turns_note(struct turns *turns) {
  DIR *folder = opendir("/proc/self/task");
  turns->count = 0;
  for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
    const int thread = atoi(entry->d_name);
    if (thread == 0 || turns->count == TURNS_THREADS) continue;
    turns->threads[turns->count].thread = thread;
    turns->threads[turns->count].sleeps = thread_sleeps(thread);
    turns->threads[turns->count++].ns = thread_ns(thread);
  }
  if (folder != NULL) closedir(folder);
}

static bool turn_passed(const struct turns *before, const struct turns *now, uint32_t i, uint64_t ns) {
  const int thread = now->threads[i].thread;
  uint32_t k = 0;
  while (k < before->count && before->threads[k].thread != thread) k++;
  const bool is_new = k == before->count;
  if (thread == gettid() || (now->threads[i].sleeps && (is_new || before->threads[k].sleeps))) return true;
  return now->threads[i].ns - (is_new ? 0 : before->threads[k].ns) >= ns;
}

bool turns_passed(const struct turns *turns, uint64_t ns) {
  static struct turns now;
  bool passed = true;
  turns_note(&now);
  for (uint32_t i = 0; i < now.count && passed; i++) passed = turn_passed(turns, &now, i, ns);
  return passed;
}
