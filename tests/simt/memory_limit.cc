/* memory_limit.cc (simt): SIMT_MEMORY=FILE:MIB: each device has so much memory for allocations of 2 MiB and
 * more, counted in FILE by all processes of a test. Memory is in use for as long as a living process has it
 * mapped, whoever allocated it. */
#include <cuda_runtime.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory_limit.h"

enum { ROWS = 4096, HOLDERS = 8 };

struct row {
  uint64_t pages; /* 0: the row is free */
  size_t bytes;
  int device;
  int holders[HOLDERS]; /* processes that have it mapped; 0: none */
};

struct table {
  uint64_t last;
  struct row rows[ROWS];
};

static struct {
  int file; /* 0: not opened yet; -1: there is no limit */
  size_t device_bytes;
  struct table *table;
} limit;

static void limit_open(void) {
  const char *text = getenv("SIMT_MEMORY");
  const char *colon = text != NULL ? strrchr(text, ':') : NULL;
  char path[512];
  if (colon == NULL || (size_t)(colon - text) >= sizeof path) {
    limit.file = -1;
    return;
  }
  snprintf(path, sizeof path, "%.*s", (int)(colon - text), text);
  limit.device_bytes = strtoul(colon + 1, NULL, 10) << 20;
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof *limit.table) != 0) abort();
  void *table = mmap(NULL, sizeof *limit.table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (table == MAP_FAILED) abort();
  limit.table = (struct table *)table;
  limit.file = file;
}

/* Of threads as of processes: a lock of a file is the process's, so the threads have one of their own. */
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

/* False if there is no limit; else end with limit_leave(). */
static bool limit_enter(void) {
  pthread_mutex_lock(&threads);
  if (limit.file == 0) limit_open();
  if (limit.file > 0 && flock(limit.file, LOCK_EX) == 0) return true;
  pthread_mutex_unlock(&threads);
  return false;
}

static void limit_leave(void) {
  flock(limit.file, LOCK_UN);
  pthread_mutex_unlock(&threads);
}

static bool row_is_held(const struct row *row) {
  for (int i = 0; i < HOLDERS; i++)
    if (row->holders[i] != 0 && (kill(row->holders[i], 0) == 0 || errno == EPERM)) return true;
  return false;
}

static size_t used(int device) {
  size_t bytes = 0;
  for (int i = 0; i < ROWS; i++) {
    struct row *row = &limit.table->rows[i];
    if (row->pages != 0 && !row_is_held(row)) row->pages = 0;
    if (row->pages != 0 && row->device == device) bytes += row->bytes;
  }
  return bytes;
}

static struct row *row_find(uint64_t pages) {
  for (int i = 0; i < ROWS; i++)
    if (limit.table->rows[i].pages == pages) return &limit.table->rows[i];
  return NULL;
}

static void holder_change(uint64_t pages, int from, int to) {
  if (pages == 0 || !limit_enter()) return;
  struct row *row = row_find(pages);
  for (int i = 0; row != NULL && i < HOLDERS; i++) {
    if (row->holders[i] != from) continue;
    row->holders[i] = to;
    break;
  }
  limit_leave();
}

bool memory_limit_add(int device, size_t bytes, uint64_t *pages) {
  *pages = 0;
  if (!limit_enter()) return true;
  struct row *row = used(device) + bytes <= limit.device_bytes ? row_find(0) : NULL;
  if (row != NULL) {
    *row = {++limit.table->last, bytes, device, {getpid()}};
    *pages = row->pages;
  }
  limit_leave();
  return row != NULL;
}

void memory_limit_hold(uint64_t pages) { holder_change(pages, 0, getpid()); }

void memory_limit_drop(uint64_t pages) { holder_change(pages, getpid(), 0); }

extern "C" {
cudaError_t tutti_cudart_MemGetInfo(size_t *free_bytes, size_t *total_bytes);

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || !limit_enter())
    return tutti_cudart_MemGetInfo(free_bytes, total_bytes);
  *total_bytes = limit.device_bytes;
  *free_bytes = limit.device_bytes - used(device);
  limit_leave();
  return cudaSuccess;
}
}
