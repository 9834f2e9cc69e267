/* load.c: finds libtutti-cuda.so and asks it for its table. Promises not to touch CUDA where no driver is,
 * and a sentence for each way in which this can fail. Knows nothing of the table. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "base/log.h"
#include "base/param.h"

#define CUDA_LIBRARY "libtutti-cuda.so"
#define PATH_BYTES 4096

typedef const struct backend *(*cuda_entry)(const struct backend_services *services, char *reason,
                                            size_t reason_bytes);

static void service_warn(const char *file, int line, bool urgent, const char *text) {
  if (urgent) log_urgent_at(file, line, "%s", text);
  else log_warn_at(file, line, "%s", text);
}

static void service_info(unsigned subsystem, const char *text) { log_info(subsystem, "%s", text); }

static int64_t service_number(int id) { return param_int((enum param_id)id); }

static const char *service_text(int id) { return param_text((enum param_id)id); }

/* Path of the file beside the one that this code is in. */
static bool beside_path(char *path, size_t path_bytes) {
  Dl_info here;
  if (dladdr((const void *)(uintptr_t)backend_load_cuda, &here) == 0 || here.dli_fname == NULL) return false;
  const char *slash = strrchr(here.dli_fname, '/');
  const int folder_bytes = slash != NULL ? (int)(slash - here.dli_fname) : 1;
  const int length =
      snprintf(path, path_bytes, "%.*s/" CUDA_LIBRARY, folder_bytes, slash != NULL ? here.dli_fname : ".");
  return length > 0 && (size_t)length < path_bytes;
}

static const struct backend *library_ask(void *library, char *reason, size_t reason_bytes) {
  static const struct backend_services services = {sizeof services, service_warn, service_info,
                                                   service_number,  service_text, log_last_error};
  cuda_entry entry = NULL;
  *(void **)&entry = dlsym(library, "tutti_cuda_ops");
  if (entry != NULL) return entry(&services, reason, reason_bytes);
  snprintf(reason, reason_bytes, CUDA_LIBRARY " is of another version than this library");
  return NULL;
}

const struct backend *backend_load_cuda(char *reason, size_t reason_bytes) {
  char path[PATH_BYTES];
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == NULL) {
    snprintf(reason, reason_bytes, "no driver (%s)", dlerror());
    return NULL;
  }
  if (!beside_path(path, sizeof path)) {
    snprintf(reason, reason_bytes,
             "where this library lies cannot be told, so " CUDA_LIBRARY " is not found");
    return NULL;
  }
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(reason, reason_bytes, "a driver is there, but not its half of this library (%s)", dlerror());
    return NULL;
  }
  return library_ask(library, reason, reason_bytes);
}
