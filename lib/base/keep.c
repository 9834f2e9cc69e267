/* keep.c: files that are mapped and shared with nobody but the page cache, which outlives the process. */
#include "base/keep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"

/* ---- one file ---- */

static bool file_fail(int descriptor, const char *path) {
  const int cause = errno;
  if (descriptor >= 0) close(descriptor);
  if (path != NULL) unlink(path);
  errno = cause;
  return false;
}

bool keep_open(struct keep *keep, const char *path, size_t bytes_most) {
  struct keep fresh = {NULL, 0, bytes_most, ""};
  if (snprintf(fresh.path, sizeof fresh.path, "%s", path) >= (int)sizeof fresh.path) {
    errno = ENAMETOOLONG;
    return false;
  }
  unlink(path);
  const int descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor < 0) return false;
  void *memory = mmap(NULL, bytes_most, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return file_fail(descriptor, path);
  close(descriptor);
  fresh.memory = (uint8_t *)memory;
  *keep = fresh;
  return true;
}

/* The name may be another file's by now, or nobody's: then nothing grows any more. */
bool keep_grow(struct keep *keep, size_t bytes) {
  struct stat now;
  if (bytes <= keep->bytes) return true;
  if (bytes > keep->bytes_most || bytes > os_file_bytes_most()) {
    errno = EFBIG;
    return false;
  }
  const int descriptor = open(keep->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return false;
  if (fstat(descriptor, &now) != 0 || (size_t)now.st_size != keep->bytes) {
    errno = ESTALE;
    return file_fail(descriptor, NULL);
  }
  const int cause = posix_fallocate(descriptor, (off_t)keep->bytes, (off_t)(bytes - keep->bytes));
  if (cause != 0) {
    errno = cause;
    return file_fail(descriptor, NULL);
  }
  close(descriptor);
  keep->bytes = bytes;
  return true;
}

void keep_remove(const struct keep *keep) { unlink(keep->path); }

void keep_close(struct keep *keep) {
  if (keep->memory != NULL) munmap(keep->memory, keep->bytes_most);
  memset(keep, 0, sizeof *keep);
}

uint64_t keep_wall_ns(void) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return 0;
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

size_t keep_peek(const char *path, void *out, size_t bytes) {
  const int descriptor = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return 0;
  const ssize_t got = read(descriptor, out, bytes);
  close(descriptor);
  return got > 0 ? (size_t)got : 0;
}

/* ---- old files ---- */

#define SWEEP_FILES_MOST 4096u /* looked at by one sweep */

struct old_file {
  int64_t seconds;
  uint64_t bytes;
  char path[KEEP_PATH_BYTES];
};

struct sweep {
  const char *folder, *begin, *end;
  bool (*stale)(const char *path);
  uint64_t bytes;         /* of all that were found */
  struct old_file oldest; /* seconds INT64_MAX: none */
};

static bool name_fits(const struct sweep *sweep, const char *name) {
  const size_t length = strlen(name), begin = strlen(sweep->begin), end = strlen(sweep->end);
  return length >= begin + end && strncmp(name, sweep->begin, begin) == 0 &&
         strcmp(name + length - end, sweep->end) == 0;
}

static void sweep_add(struct sweep *sweep, const char *name) {
  struct stat now;
  struct old_file file;
  if (snprintf(file.path, sizeof file.path, "%s%s", sweep->folder, name) >= (int)sizeof file.path) return;
  if (lstat(file.path, &now) != 0 || !S_ISREG(now.st_mode) || now.st_uid != geteuid()) return;
  if (!sweep->stale(file.path)) return;
  file.bytes = (uint64_t)now.st_blocks * 512;
  file.seconds = now.st_mtim.tv_sec;
  sweep->bytes += file.bytes;
  if (file.seconds < sweep->oldest.seconds) sweep->oldest = file;
}

static bool sweep_look(struct sweep *sweep) {
  DIR *folder = opendir(sweep->folder);
  uint32_t count = 0;
  sweep->bytes = 0;
  sweep->oldest.seconds = INT64_MAX;
  if (folder == NULL) return false;
  for (const struct dirent *entry = readdir(folder); entry != NULL && count < SWEEP_FILES_MOST;
       entry = readdir(folder)) {
    if (!name_fits(sweep, entry->d_name)) continue;
    count += 1;
    sweep_add(sweep, entry->d_name);
  }
  closedir(folder);
  return sweep->oldest.seconds != INT64_MAX;
}

void keep_sweep(const char *folder, const char *begin, const char *end, uint64_t bytes_most,
                bool (*stale)(const char *path)) {
  struct sweep sweep = {folder, begin, end, stale, 0, {0, 0, ""}};
  struct statvfs space;
  if (statvfs(folder, &space) == 0 && (uint64_t)space.f_blocks * space.f_frsize / 4 < bytes_most)
    bytes_most = (uint64_t)space.f_blocks * space.f_frsize / 4;
  for (uint32_t tries = 0; tries < SWEEP_FILES_MOST && sweep_look(&sweep); tries++)
    if (sweep.bytes <= bytes_most || unlink(sweep.oldest.path) != 0) return;
}
