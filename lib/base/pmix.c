/* pmix.c: the few PMIx calls that pmix.h needs, from a library loaded at run time. Declares the names,
 * constants and layouts that the PMIx standard fixes since version 2. Does not know what the bytes mean. */
#include "base/pmix.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define PMIX_LIBRARY "libpmix.so.2"
#define PMIX_RANK_WILDCARD 0xfffffffeu
enum { PMIX_NOT_FOUND = -46 };
enum {
  PMIX_TYPE_STRING = 3,
  PMIX_TYPE_INT = 6,
  PMIX_TYPE_UINT16 = 13,
  PMIX_TYPE_UINT32 = 14,
  PMIX_SCOPE_GLOBAL = 3
};

struct pmix_process {
  char job[256];
  uint32_t rank;
};

struct pmix_value {
  uint16_t type;
  union {
    char *string;
    int number;
    uint32_t word;
    uint16_t half;
    uint64_t capacity[4]; /* as large as the largest member there */
  } data;
};

struct pmix_directive {
  char key[512];
  uint32_t flags;
  struct pmix_value value;
};

/* Guarded by `lock`; written once. */
static struct {
  bool tried;
  int (*init)(struct pmix_process *self, struct pmix_directive *directives, size_t count);
  int (*finalize)(const struct pmix_directive *directives, size_t count);
  int (*put)(uint8_t scope, const char *key, struct pmix_value *value);
  int (*commit)(void);
  int (*get)(const struct pmix_process *process, const char *key, const struct pmix_directive *directives,
             size_t count, struct pmix_value **value);
  struct pmix_process self;
  int pid; /* of the process that joined, not of a forked child; 0: not joined */
} pmix;
static os_mutex lock = OS_MUTEX_INITIALIZER;

static bool symbol_find(void *library, const char *name, void *place) {
  *(void **)place = dlsym(library, name);
  return *(void **)place != NULL;
}

bool pmix_is_here(void) {
  void *library = dlopen(PMIX_LIBRARY, RTLD_LAZY);
  if (library) dlclose(library);
  return library != NULL;
}

static ncclResult_t library_join(void) {
  void *library = dlopen(PMIX_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    return log_fail(ncclSystemError,
                    "the ranks of this launch can only find each other through PMIx, and " PMIX_LIBRARY
                    " is not here (%s); install it, or set TUTTI_RENDEZVOUS=host:port of rank 0's host",
                    dlerror());
  const bool complete =
      symbol_find(library, "PMIx_Init", &pmix.init) &&
      symbol_find(library, "PMIx_Finalize", &pmix.finalize) && symbol_find(library, "PMIx_Put", &pmix.put) &&
      symbol_find(library, "PMIx_Commit", &pmix.commit) && symbol_find(library, "PMIx_Get", &pmix.get);
  if (!complete) return log_fail(ncclSystemError, PMIX_LIBRARY " lacks calls of PMIx; set TUTTI_RENDEZVOUS");
  const int code = pmix.init(&pmix.self, NULL, 0);
  if (code != 0)
    return log_fail(ncclSystemError, "PMIx_Init answers %d; set TUTTI_RENDEZVOUS=host:port of rank 0's host",
                    code);
  pmix.pid = os_pid();
  return ncclSuccess;
}

static ncclResult_t pmix_join(void) {
  ncclResult_t result = ncclSuccess;
  os_mutex_lock(&lock);
  if (!pmix.tried) {
    pmix.tried = true;
    result = library_join();
  } else if (pmix.pid != os_pid()) {
    result =
        log_fail(ncclSystemError, "PMIx cannot be joined by this process%s; set TUTTI_RENDEZVOUS=host:port",
                 pmix.pid ? ", which was forked from one that has" : "");
  }
  os_mutex_unlock(&lock);
  return result;
}

/* PMIx takes a process that ends without leaving for a failed one. */
__attribute__((destructor)) static void pmix_leave(void) {
  if (pmix.pid != 0 && pmix.pid == os_pid()) pmix.finalize(NULL, 0);
}

ncclResult_t pmix_publish(const char *key, const void *data, size_t bytes) {
  TRY(pmix_join());
  char *text = (char *)os_alloc(2 * bytes + 1);
  if (!text) return log_no_memory("%zu bytes of %s", bytes, key);
  for (size_t i = 0; i < bytes; i++) snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)data)[i]);
  struct pmix_value value;
  memset(&value, 0, sizeof value);
  value.type = PMIX_TYPE_STRING;
  value.data.string = text;
  int code = pmix.put(PMIX_SCOPE_GLOBAL, key, &value);
  if (code == 0) code = pmix.commit();
  os_free(text);
  if (code == 0) return ncclSuccess;
  return log_fail(ncclSystemError, "PMIx does not take %s: %d; set TUTTI_RENDEZVOUS=host:port", key, code);
}

/* The caller frees the value. */
static int value_get(uint32_t rank, const char *key, int seconds, struct pmix_value **value) {
  struct pmix_process process = pmix.self;
  struct pmix_directive patience;
  memset(&patience, 0, sizeof patience);
  snprintf(patience.key, sizeof patience.key, "pmix.timeout");
  patience.value.type = PMIX_TYPE_INT;
  patience.value.data.number = seconds;
  process.rank = rank;
  *value = NULL;
  return pmix.get(&process, key, &patience, 1, value);
}

static bool hex_read(const char *text, unsigned char *data, size_t bytes) {
  if (strlen(text) != 2 * bytes || strspn(text, "0123456789abcdef") != 2 * bytes) return false;
  for (size_t i = 0; i < bytes; i++) {
    const char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
    data[i] = (unsigned char)strtoul(digits, NULL, 16);
  }
  return true;
}

ncclResult_t pmix_lookup(const char *key, void *data, size_t bytes, int seconds) {
  struct pmix_value *value;
  TRY(pmix_join());
  const uint64_t deadline_ns = os_time_ns() + (uint64_t)seconds * 1000000000u;
  int code = value_get(0, key, seconds, &value);
  while (code == PMIX_NOT_FOUND && os_time_ns() < deadline_ns) { /* rank 0 has not joined yet */
    os_sleep_ms(20);
    code = value_get(0, key, seconds, &value);
  }
  bool good = code == 0 && value && value->type == PMIX_TYPE_STRING && value->data.string;
  if (good) {
    good = hex_read(value->data.string, (unsigned char *)data, bytes);
    free(value->data.string);
  }
  free(value);
  if (good) return ncclSuccess;
  return log_fail(
      ncclRemoteError,
      "rank 0 has not offered %s through PMIx (%d) in %d s; does it make as many ids as this rank?", key,
      code, seconds);
}

/* -1: PMIx does not know. */
static int number_get(uint32_t rank, const char *key) {
  struct pmix_value *value;
  int number = -1;
  if (value_get(rank, key, 10, &value) == 0 && value) {
    if (value->type == PMIX_TYPE_UINT32 && value->data.word <= INT32_MAX) number = (int)value->data.word;
    if (value->type == PMIX_TYPE_UINT16) number = value->data.half;
  }
  free(value);
  return number;
}

ncclResult_t pmix_counts(int *rank_count, int *local_rank, int *local_count) {
  TRY(pmix_join());
  const int count = number_get(PMIX_RANK_WILDCARD, "pmix.job.size");
  const int local = number_get(pmix.self.rank, "pmix.lrank");
  const int neighbours = number_get(PMIX_RANK_WILDCARD, "pmix.local.size");
  if (count < 1 || local < 0)
    return log_fail(
        ncclSystemError,
        "PMIx says neither how many ranks there are nor which one of its host this is; set TUTTI_RANK, "
        "TUTTI_SIZE and TUTTI_LOCAL_RANK");
  *rank_count = count;
  *local_rank = local;
  *local_count = neighbours > 0 ? neighbours : 0;
  return ncclSuccess;
}
