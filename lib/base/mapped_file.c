/* mapped_file.c: shared mappings of files; the page cache keeps their contents after the process has ended.
 */
#include "base/mapped_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"

/* ---- files that somebody truncates ----
 * A process that writes to a page behind the new end of a file gets SIGBUS. The pages of such a file are
 * replaced by anonymous ones: what is written from then on is lost with the process, but the process lives.
 */

#define MAPPINGS_MOST 8u

/* Read by the signal handler: `bytes` is 0 while an entry is free or changes. */
static struct mapping {
  uint8_t *memory;
  size_t bytes;
} mappings[MAPPINGS_MOST];
static struct sigaction before;

/* The program's own handler, if it has one, or the default follows. */
static void pages_lost(int number, siginfo_t *info, void *context) {
  const uint8_t *at = (const uint8_t *)info->si_addr;
  for (uint32_t i = 0; i < MAPPINGS_MOST; i++) {
    const size_t bytes = __atomic_load_n(&mappings[i].bytes, __ATOMIC_ACQUIRE);
    uint8_t *memory = mappings[i].memory;
    if (bytes == 0 || at < memory || at >= memory + bytes) continue;
    if (mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory)
      return;
  }
  if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(number);
  else signal(number, SIG_DFL); /* the access is repeated */
}

/* Installed once and left: a program may have saved it as its own handler's predecessor. */
static void handler_install(void) {
  static uint32_t installed;
  struct sigaction own;
  if (__atomic_exchange_n(&installed, 1, __ATOMIC_ACQ_REL)) return;
  memset(&own, 0, sizeof own);
  own.sa_sigaction = pages_lost;
  own.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigemptyset(&own.sa_mask);
  if (sigaction(SIGBUS, NULL, &before) == 0) sigaction(SIGBUS, &own, NULL);
}

static void mapping_add(uint8_t *memory, size_t bytes) {
  handler_install();
  for (uint32_t i = 0; i < MAPPINGS_MOST; i++) {
    if (mappings[i].memory != NULL) continue;
    mappings[i].memory = memory;
    __atomic_store_n(&mappings[i].bytes, bytes, __ATOMIC_RELEASE);
    return;
  }
}

static void mapping_remove(const uint8_t *memory) {
  for (uint32_t i = 0; i < MAPPINGS_MOST; i++) {
    if (mappings[i].memory != memory) continue;
    __atomic_store_n(&mappings[i].bytes, 0, __ATOMIC_RELEASE);
    mappings[i].memory = NULL;
  }
}

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
  mapping_add(fresh.memory, bytes_most);
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
  if (file->memory != NULL) {
    mapping_remove(file->memory);
    munmap(file->memory, file->bytes_most);
  }
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
  char name[NAME_MAX + 1];
};

struct sweep {
  const char *folder, *begin, *end;
  bool (*stale)(const char *path);
  struct old_file files[SWEEP_FILES_MOST];
  uint32_t count;
  uint64_t bytes; /* of all files found */
};

static bool name_fits(const struct sweep *sweep, const char *name) {
  const size_t length = strlen(name), begin = strlen(sweep->begin), end = strlen(sweep->end);
  return length >= begin + end && strncmp(name, sweep->begin, begin) == 0 &&
         strcmp(name + length - end, sweep->end) == 0;
}

static bool sweep_path(const struct sweep *sweep, const char *name, char path[MAPPED_FILE_PATH_BYTES]) {
  return snprintf(path, MAPPED_FILE_PATH_BYTES, "%s%s", sweep->folder, name) < MAPPED_FILE_PATH_BYTES;
}

static void sweep_add(struct sweep *sweep, const char *name) {
  char path[MAPPED_FILE_PATH_BYTES];
  struct stat now;
  if (!sweep_path(sweep, name, path)) return;
  if (lstat(path, &now) != 0 || !S_ISREG(now.st_mode) || now.st_uid != geteuid()) return;
  if (!sweep->stale(path)) return;
  struct old_file *file = &sweep->files[sweep->count++];
  file->seconds = now.st_mtim.tv_sec;
  file->bytes = (uint64_t)now.st_blocks * 512;
  snprintf(file->name, sizeof file->name, "%s", name);
  sweep->bytes += file->bytes;
}

static void sweep_look(struct sweep *sweep) {
  DIR *folder = opendir(sweep->folder);
  if (folder == NULL) return;
  for (const struct dirent *entry = readdir(folder); entry != NULL && sweep->count < SWEEP_FILES_MOST;
       entry = readdir(folder))
    if (name_fits(sweep, entry->d_name)) sweep_add(sweep, entry->d_name);
  closedir(folder);
}

static int age_compare(const void *left, const void *right) {
  const struct old_file *a = (const struct old_file *)left, *b = (const struct old_file *)right;
  return a->seconds < b->seconds ? -1 : a->seconds > b->seconds;
}

void mapped_file_sweep(const char *folder, const char *begin, const char *end, uint64_t bytes_most,
                       bool (*stale)(const char *path)) {
  static struct sweep sweep; /* too large for a stack */
  struct statvfs space;
  char path[MAPPED_FILE_PATH_BYTES];
  sweep.folder = folder;
  sweep.begin = begin;
  sweep.end = end;
  sweep.stale = stale;
  sweep.count = 0;
  sweep.bytes = 0;
  if (statvfs(folder, &space) == 0 && (uint64_t)space.f_blocks * space.f_frsize / 4 < bytes_most)
    bytes_most = (uint64_t)space.f_blocks * space.f_frsize / 4;
  sweep_look(&sweep);
  if (sweep.bytes > bytes_most) qsort(sweep.files, sweep.count, sizeof *sweep.files, age_compare);
  for (uint32_t i = 0; i < sweep.count && sweep.bytes > bytes_most; i++) {
    if (!sweep_path(&sweep, sweep.files[i].name, path) || unlink(path) != 0) break;
    sweep.bytes -= sweep.files[i].bytes;
  }
}
