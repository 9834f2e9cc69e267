/* callsite.c: finds the file of an address, and asks addr2line about it. */
#include "base/callsite.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"

/* Debug information of large libraries takes long to read. */
enum { ANSWER_MS = 3000 };

bool callsite_find(const void *address, struct callsite *site) {
  Dl_info found;
  void *map = NULL;
  if (dladdr1(address, &found, &map, RTLD_DL_LINKMAP) == 0 || !map || !found.dli_fname) return false;
  const struct link_map *file = (const struct link_map *)map;
  site->offset = (uint64_t)(uintptr_t)address - file->l_addr;
  snprintf(site->path, sizeof site->path, "%s", file->l_name);
  if (*file->l_name != '\0') return true;
  const ssize_t length = readlink("/proc/self/exe", site->path, sizeof site->path - 1); /* the program */
  if (length <= 0) return false;
  site->path[length] = '\0';
  return true;
}

bool callsite_stamp(const char *path, struct callsite_stamp *stamp) {
  struct stat about;
  if (path[0] != '/' || stat(path, &about) != 0 || !S_ISREG(about.st_mode)) return false;
  if (about.st_uid != 0 && about.st_uid != geteuid()) return false;
  stamp->bytes = (uint64_t)about.st_size;
  stamp->changed_ns = (uint64_t)about.st_mtim.tv_sec * 1000000000u + (uint64_t)about.st_mtim.tv_nsec;
  return true;
}

/* The call, not what follows it. */
static unsigned long long call_offset(const struct callsite *site) { return site->offset - 1; }

/* Starts addr2line with its output in *out. */
static bool ask(const struct callsite *site, pid_t *child, int *out) {
  char path[sizeof site->path], address[32];
  char *const arguments[] = {"addr2line", "-f", "-C", "-e", path, address, NULL};
  char *const environment[] = {"LC_ALL=C", NULL}; /* nothing of the job's is preloaded into it */
  posix_spawn_file_actions_t actions;
  int ends[2];
  snprintf(path, sizeof path, "%s", site->path);
  snprintf(address, sizeof address, "0x%llx", call_offset(site));
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  bool begun = posix_spawn_file_actions_init(&actions) == 0;
  if (begun) {
    begun = posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0 &&
            posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) == 0 &&
            posix_spawn(child, "/usr/bin/addr2line", &actions, NULL, arguments, environment) == 0;
    posix_spawn_file_actions_destroy(&actions);
  }
  close(ends[1]);
  if (begun) *out = ends[0];
  else close(ends[0]);
  return begun;
}

/* Reads until the end or the deadline. */
static void hear(int from, char *text, size_t bytes) {
  const uint64_t end_ns = os_time_ns() + ANSWER_MS * UINT64_C(1000000);
  size_t used = 0;
  for (uint64_t now_ns = os_time_ns(); now_ns < end_ns && used + 1 < bytes; now_ns = os_time_ns()) {
    struct pollfd answer = {from, POLLIN, 0};
    if (poll(&answer, 1, (int)((end_ns - now_ns) / 1000000) + 1) <= 0) continue;
    const ssize_t got = read(from, text + used, bytes - 1 - used);
    if (got <= 0) break;
    used += (size_t)got;
  }
  text[used] = '\0';
}

/* "function\n/path/file.c:31 (discriminator 2)\n" -> "file.c:31 (function)". */
static bool answer_take(char *answer, char *out, size_t out_bytes) {
  char *line = strchr(answer, '\n');
  if (!line) return false;
  *line++ = '\0';
  line[strcspn(line, " \n")] = '\0';
  const char *colon = strrchr(line, ':');
  if (!colon || strncmp(line, "??", 2) == 0 || strcmp(colon, ":?") == 0 || strcmp(colon, ":0") == 0)
    return false;
  snprintf(out, out_bytes, "%s (%s)", os_base_name(line), answer);
  return true;
}

static bool line_find(const struct callsite *site, char *out, size_t out_bytes) {
  char answer[2048];
  pid_t child;
  int from;
  if (!ask(site, &child, &from)) return false;
  hear(from, answer, sizeof answer);
  close(from);
  kill(child, SIGKILL); /* if it is not done: its answer is not waited for */
  while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {}
  return answer_take(answer, out, out_bytes);
}

void callsite_line(const struct callsite *site, char *out, size_t out_bytes) {
  if (!line_find(site, out, out_bytes)) callsite_plain(site, out, out_bytes);
}

void callsite_plain(const struct callsite *site, char *out, size_t out_bytes) {
  snprintf(out, out_bytes, "%s+0x%llx", os_base_name(site->path), call_offset(site));
}

void callsite_text(const void *address, char *out, size_t out_bytes) {
  struct callsite site;
  const char *python = python_caller_text(address);
  if (python != NULL) snprintf(out, out_bytes, "%s", python);
  else if (callsite_find(address, &site)) callsite_line(&site, out, out_bytes);
  else snprintf(out, out_bytes, "an unknown place");
}
