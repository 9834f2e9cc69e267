/* mapped_file.c: shared mappings of files; the page cache keeps their contents after the process has ended.
 */
#include "base/mapped_file.h"

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

bool mapped_file_open(struct mapped_file *file, const char *path, size_t bytes_most) {
  struct mapped_file fresh = {NULL, 0, bytes_most, ""};
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
  *file = fresh;
  return true;
}

/* If the name is now another file's or nonexistent, the file no longer grows. */
bool mapped_file_grow(struct mapped_file *file, size_t bytes) {
  struct stat now;
  if (bytes <= file->bytes) return true;
  if (bytes > file->bytes_most || bytes > os_file_bytes_most()) {
    errno = EFBIG;
    return false;
  }
  const int descriptor = open(file->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return false;
  if (fstat(descriptor, &now) != 0 || (size_t)now.st_size != file->bytes) {
    errno = ESTALE;
    return file_fail(descriptor, NULL);
  }
  const int cause = posix_fallocate(descriptor, (off_t)file->bytes, (off_t)(bytes - file->bytes));
  if (cause != 0) {
    errno = cause;
    return file_fail(descriptor, NULL);
  }
  close(descriptor);
  file->bytes = bytes;
  return true;
}

void mapped_file_remove(const struct mapped_file *file) { unlink(file->path); }

void mapped_file_close(struct mapped_file *file) {
  if (file->memory != NULL) munmap(file->memory, file->bytes_most);
  memset(file, 0, sizeof *file);
}

uint64_t wall_ns(void) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return 0;
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

size_t mapped_file_peek(const char *path, void *out, size_t bytes) {
  const int descriptor = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return 0;
  const ssize_t got = read(descriptor, out, bytes);
  close(descriptor);
  return got > 0 ? (size_t)got : 0;
}

/* ---- old files ---- */

#define SWEEP_FILES_MOST 4096u /* examined per sweep */

struct old_file {
  int64_t seconds;
  uint64_t bytes;
  char path[MAPPED_FILE_PATH_BYTES];
};

struct sweep {
  const char *folder, *begin, *end;
  bool (*stale)(const char *path);
  uint64_t bytes;         /* of all files found */
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

void mapped_file_sweep(const char *folder, const char *begin, const char *end, uint64_t bytes_most,
                       bool (*stale)(const char *path)) {
  struct sweep sweep = {folder, begin, end, stale, 0, {0, 0, ""}};
  struct statvfs space;
  if (statvfs(folder, &space) == 0 && (uint64_t)space.f_blocks * space.f_frsize / 4 < bytes_most)
    bytes_most = (uint64_t)space.f_blocks * space.f_frsize / 4;
  for (uint32_t tries = 0; tries < SWEEP_FILES_MOST && sweep_look(&sweep); tries++)
    if (sweep.bytes <= bytes_most || unlink(sweep.oldest.path) != 0) return;
}
