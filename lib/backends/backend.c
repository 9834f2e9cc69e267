/* backend.c: chooses the backend once a process, and fills the gaps of a backend's table with stubs.
 * Promises that every member can be called. Does not know what any backend does. */
#include "backends/backend.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"

static ncclResult_t absent(const char *member) {
  return log_fail(ncclInvalidUsage, "the backend in use cannot do '%s'; choose another with TUTTI_BACKEND",
                  member);
}

/* A stub for each member, whose body is its row's. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define OP(type, name, parameters, ...) \
  static type device_##name parameters { __VA_ARGS__ }
#include "backends/device_ops.def"
#undef OP
#define OP(type, name, parameters, ...) \
  static type memory_##name parameters { __VA_ARGS__ }
#include "backends/memory_ops.def"
#undef OP
#define OP(type, name, parameters, ...) \
  static type process_##name parameters { __VA_ARGS__ }
#include "backends/process_ops.def"
#undef OP
#define OP(type, name, parameters, ...) \
  static type network_##name parameters { __VA_ARGS__ }
#include "backends/network_ops.def"
#undef OP
#pragma GCC diagnostic pop

#define OP(type, name, parameters, ...) .name = device_##name,
static const struct device_ops device_stubs = {
    .size = sizeof(struct device_ops),
#include "backends/device_ops.def"
};
#undef OP
#define OP(type, name, parameters, ...) .name = memory_##name,
static const struct memory_ops memory_stubs = {
    .size = sizeof(struct memory_ops),
#include "backends/memory_ops.def"
};
#undef OP
#define OP(type, name, parameters, ...) .name = process_##name,
static const struct process_ops process_stubs = {
    .size = sizeof(struct process_ops),
#include "backends/process_ops.def"
};
#undef OP
#define OP(type, name, parameters, ...) .name = network_##name,
static const struct network_ops network_stubs = {
    .size = sizeof(struct network_ops),
#include "backends/network_ops.def"
};
#undef OP

/* All members behind a table's size are pointers of one width, so it is copied entry by entry. `table` may be
 * NULL, and smaller or larger than `stubs`, of which both hold `bytes`. */
static void table_fill(void *result, const void *table, const void *stubs, size_t bytes) {
  memcpy(result, stubs, bytes);
  if (!table) return;
  size_t given;
  memcpy(&given, table, sizeof given);
  for (size_t offset = sizeof given; offset + sizeof(void *) <= given && offset < bytes;
       offset += sizeof(void *)) {
    void *word;
    memcpy(&word, (const char *)table + offset, sizeof word);
    if (word) memcpy((char *)result + offset, &word, sizeof word);
  }
}

void backend_fill(struct backend_tables *result, const struct backend *given) {
  table_fill(&result->device, given->device, &device_stubs, sizeof device_stubs);
  table_fill(&result->memory, given->memory, &memory_stubs, sizeof memory_stubs);
  table_fill(&result->process, given->process, &process_stubs, sizeof process_stubs);
  table_fill(&result->network, given->network, &network_stubs, sizeof network_stubs);
  result->backend = (struct backend){sizeof result->backend, given->name,      &result->device,
                                     &result->memory,        &result->process, &result->network};
}

static os_mutex choice_mutex = OS_MUTEX_INITIALIZER;
static struct backend_tables chosen;
static const struct backend *chosen_ops; /* once it is filled; read atomically */

#define REASON_BYTES 512

static const struct backend *backend_take(const struct backend *ops, const char *why) {
  if (ops == emu_backend() && emu_settings_read() != ncclSuccess) return NULL;
  backend_fill(&chosen, ops);
  log_info(LOG_INIT, "Backend %s: %s", ops->name, why);
  return &chosen.backend;
}

static const struct backend *backend_default(void) {
  char reason[REASON_BYTES] = "", why[REASON_BYTES + 64];
  const char *how = NULL;
  if (emu_is_wanted(&how)) return backend_take(emu_backend(), how);
  const struct backend *cuda = backend_load_cuda(reason, sizeof reason);
  if (cuda != NULL) return backend_take(cuda, "the default where a driver and a GPU are found");
  snprintf(why, sizeof why, "the default, because there is no CUDA: %s", reason);
  return backend_take(emu_backend(), why);
}

static const struct backend *backend_choose(void) {
  const char *wanted = param_text(PARAM_TUTTI_BACKEND);
  char reason[REASON_BYTES] = "";
  if (param_check() != ncclSuccess) return NULL;
  if (wanted[0] == '\0') return backend_default();
  if (strcasecmp(wanted, "emu") == 0) return backend_take(emu_backend(), "chosen by TUTTI_BACKEND");
  const struct backend *cuda = backend_load_cuda(reason, sizeof reason);
  if (cuda != NULL) return backend_take(cuda, "chosen by TUTTI_BACKEND");
  log_warn("TUTTI_BACKEND=%s: %s; unset it or use TUTTI_BACKEND=emu", wanted, reason);
  return NULL;
}

const struct backend *backend_ops(void) {
  const struct backend *ops = __atomic_load_n(&chosen_ops, __ATOMIC_ACQUIRE);
  if (ops) return ops;
  os_mutex_lock(&choice_mutex);
  ops = chosen_ops ? chosen_ops : backend_choose();
  __atomic_store_n(&chosen_ops, ops, __ATOMIC_RELEASE);
  os_mutex_unlock(&choice_mutex);
  return ops;
}
