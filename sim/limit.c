/* limit.c: limits of the kernel, and the sentences when a verb reaches them. */
#include "limit.h"

#include <ctype.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/os.h"
#include "base/share.h"

enum { SECONDS_MOST = 1000000, MEBIBYTE = 1 << 20 };

static struct {
  uint64_t bytes;     /* 0: none */
  bool by_user;       /* the memory's limit is the user's */
  char too_long[256]; /* what the handler writes */
} limit;

static void time_is_over(int number) {
  (void)number;
  const char *text = limit.too_long;
  size_t left = strlen(text);
  while (left > 0) {
    const ssize_t moved = write(STDERR_FILENO, text, left);
    if (moved <= 0) break;
    text += moved;
    left -= (size_t)moved;
  }
  _exit(EXIT_ENVIRONMENT);
}

static bool time_set(const char *verb, uint64_t seconds) {
  struct rlimit most;
  struct sigaction action;
  if (seconds == 0 || seconds > SECONDS_MOST) return false;
  snprintf(limit.too_long, sizeof limit.too_long,
           "\ntutti %s: stopped after %llu s of processor time: the input needs more work than --limit "
           "allows; raise it, or make the input smaller\n",
           verb, (unsigned long long)seconds);
  memset(&action, 0, sizeof action);
  action.sa_handler = time_is_over;
  if (sigaction(SIGXCPU, &action, NULL) != 0 || getrlimit(RLIMIT_CPU, &most) != 0) return false;
  most.rlim_cur = seconds < most.rlim_max ? seconds : most.rlim_max;
  return setrlimit(RLIMIT_CPU, &most) == 0;
}

static bool memory_set(uint64_t bytes) {
  struct rlimit most;
  if (getrlimit(RLIMIT_DATA, &most) != 0) return false;
  most.rlim_cur = bytes < most.rlim_max ? bytes : most.rlim_max;
  limit.bytes = most.rlim_cur;
  return setrlimit(RLIMIT_DATA, &most) == 0;
}

/* One part of the list; its length at *length. */
static bool part_set(const char *verb, const char *text, size_t *length) {
  char *end;
  const bool is_number = isdigit((unsigned char)*text);
  const uint64_t number = is_number ? strtoull(text, &end, 10) : 0;
  if (!is_number || number > SECONDS_MOST) return false;
  const char unit = (char)tolower((unsigned char)*end);
  *length = (size_t)(end + 1 - text);
  switch (unit) {
    case 's': return time_set(verb, number);
    case 'm':
      if (*end == 'm') return time_set(verb, number * 60);
      limit.by_user = true;
      return number > 0 && memory_set(number * MEBIBYTE);
    case 'g': limit.by_user = true; return number > 0 && memory_set(number * 1024 * MEBIBYTE);
    default: return false;
  }
}

bool limit_set(const char *verb, const char *text) {
  size_t length = 0;
  for (const char *part = text;; part += length + 1) {
    if (!part_set(verb, part, &length) || (part[length] != ',' && part[length] != '\0')) break;
    if (part[length] == '\0') return true;
  }
  fprintf(stderr,
          "tutti %s: --limit %s: must be processor time, as 60s or 10m, memory, as 512M or 2G, or both, as "
          "60s,2G\n",
          verb, text);
  return false;
}

void limit_begin(void) {
  const char *whose;
  if (!limit.by_user) memory_set(share_memory_left(&whose));
}

enum exit_code limit_end(const char *verb, enum exit_code code) {
  if (code == EXIT_GOOD || limit.bytes == 0 || os_alloc_failures() == 0) return code;
  fprintf(stderr, "tutti %s: it may take %.1f GiB of memory, %s\n", verb,
          (double)limit.bytes / 1024 / MEBIBYTE,
          limit.by_user ? "by --limit; raise it, or make the input smaller"
                        : "what was free when it began; free some, or make the input smaller");
  return EXIT_ENVIRONMENT;
}
