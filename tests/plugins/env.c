/* env.c: an environment plugin of version ABI (1 or 2) of NCCL's interface, or without a table (ABI 0). It
 * knows NCCL_ALGO from TUTTI_TEST_ALGO, and refuses to begin if TUTTI_TEST_INIT is set. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef void (*logger)(int level, unsigned long subsystems, const char *file, int line, const char *format,
                       ...);

static int begun;

static int init_1(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix) {
  (void)patch;
  if (begun || major != 2 || minor < 28 || suffix == NULL) return 3;
  if (getenv("TUTTI_TEST_INIT") != NULL) return 2;
  begun = 1;
  return 0;
}

static int init_2(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix, logger log) {
  log(3, 128, __FILE__, __LINE__, "test environment: init for %d.%d", major, minor);
  return init_1(major, minor, patch, suffix);
}

static int end(void) { return begun ? 0 : 3; }

static const char *value(const char *name) {
  if (strncmp(name, "TUTTI_", 6) == 0) abort(); /* it is for NCCL's settings */
  return strcmp(name, "NCCL_ALGO") == 0 ? getenv("TUTTI_TEST_ALGO") : NULL;
}

#if ABI == 0
#define TABLE ncclEnvPlugin_v0
#elif ABI == 1
#define TABLE ncclEnvPlugin_v1
#else
#define TABLE ncclEnvPlugin_v2
#endif

EXPORT const struct {
  const char *name;
  void *init, *end, *value;
} TABLE = {"Test", ABI == 1 ? (void *)(uintptr_t)init_1 : (void *)(uintptr_t)init_2, (void *)(uintptr_t)end,
           (void *)(uintptr_t)value};
