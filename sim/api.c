/* api.c: fills tables of calls. */
#include "api.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* More than any version's struct cudaDeviceProp. */
enum { PROPERTIES_BYTES = 16384 };

static cudaError_t linked_properties(void *properties, int device) {
  return cudaGetDeviceProperties((struct cudaDeviceProp *)properties, device);
}

static void linked_reset(void) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  ncclResetDebugInit();
#pragma GCC diagnostic pop
}

#define API_OWN(name) .name = name,
static const struct api linked = {
    API_NCCL(API_OWN) API_CUDA(API_OWN) API_TUTTI(API_OWN).device_properties = linked_properties,
    .settings_reset = linked_reset};
#undef API_OWN
static struct api loaded;
const struct api *api = &linked;

/* Names of a table's members, and their offsets in it. */
struct call_row {
  const char *name;
  size_t offset;
};

#define API_ROW(name) {#name, offsetof(struct api, name)},
static const struct call_row nccl_rows[] = {API_NCCL(API_ROW)};
static const struct call_row cuda_rows[] = {API_CUDA(API_ROW)};
static const struct call_row tutti_rows[] = {API_TUTTI(API_ROW)};
#undef API_ROW

/* Returns the first name that the library lacks, or NULL. */
static const char *rows_fill(void *library, const struct call_row *rows, size_t count) {
  const char *missing = NULL;
  for (size_t index = 0; index < count; index++) {
    void *found = dlsym(library, rows[index].name);
    memcpy((char *)&loaded + rows[index].offset, &found, sizeof found);
    if (!found && !missing) missing = rows[index].name;
  }
  return missing;
}

static bool file_load(const char *path, void **library, char *reason, size_t reason_bytes) {
  *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*library) snprintf(reason, reason_bytes, "%s", dlerror());
  return *library != NULL;
}

/* ../lib/libnccl.so.2 relative to this command, if it exists. */
static bool beside_path(char *path, size_t path_bytes) {
  char command[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
  if (length <= 0) return false;
  command[length] = '\0';
  char *slash = strrchr(command, '/');
  if (slash) *slash = '\0';
  return (size_t)snprintf(path, path_bytes, "%s/../lib/libnccl.so.2", command) < path_bytes &&
         access(path, R_OK) == 0;
}

static bool nccl_load(const char *path, char *reason, size_t reason_bytes) {
  char beside[PATH_MAX];
  void *library = NULL;
  if (!path) path = beside_path(beside, sizeof beside) ? beside : "libnccl.so.2";
  if (!file_load(path, &library, reason, reason_bytes)) return false;
  const char *missing = rows_fill(library, nccl_rows, sizeof nccl_rows / sizeof *nccl_rows);
  rows_fill(library, tutti_rows, sizeof tutti_rows / sizeof *tutti_rows);
  void *reset = dlsym(library, "ncclResetDebugInit");
  memcpy(&loaded.settings_reset, &reset, sizeof reset);
  if (missing) snprintf(reason, reason_bytes, "%s has no %s; take NCCL 2.28 or newer", path, missing);
  return !missing;
}

static bool cudart_load(const char *path, char *reason, size_t reason_bytes) {
  static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so"};
  void *library = NULL;
  for (size_t index = 0; !path && !library && index < sizeof names / sizeof *names; index++)
    file_load(names[index], &library, reason, reason_bytes);
  if (path && !file_load(path, &library, reason, reason_bytes)) return false;
  if (!library) {
    snprintf(
        reason, reason_bytes,
        "neither libcudart.so.13 nor libcudart.so.12 is found; name the CUDA runtime with --cudart FILE");
    return false;
  }
  const char *missing = rows_fill(library, cuda_rows, sizeof cuda_rows / sizeof *cuda_rows);
  void *properties =
      dlsym(library, "cudaGetDeviceProperties_v2"); /* CUDA 12's unversioned one fills an older struct */
  if (!properties) properties = dlsym(library, "cudaGetDeviceProperties");
  memcpy(&loaded.device_properties, &properties, sizeof properties);
  if (missing)
    snprintf(reason, reason_bytes, "%s has no %s; take the runtime of CUDA 12 or newer",
             path ? path : "libcudart", missing);
  return !missing;
}

bool api_load(const char *nccl_path, const char *cudart_path, char *reason, size_t reason_bytes) {
  const bool is_good =
      nccl_load(nccl_path, reason, reason_bytes) && cudart_load(cudart_path, reason, reason_bytes);
  if (is_good) api = &loaded;
  return is_good;
}

const char *api_library_path(void) {
  Dl_info file;
  const void *call = NULL;
  memcpy(&call, &api->ncclGetVersion, sizeof call);
  return dladdr(call, &file) != 0 && file.dli_fname ? file.dli_fname : "libnccl.so.2";
}

void api_device_name(int device, char *name, size_t name_bytes) {
  static const size_t name_most = sizeof((struct cudaDeviceProp *)0)->name;
  char properties[PROPERTIES_BYTES];
  memset(properties, 0, sizeof properties);
  name[0] = '\0';
  if (!api->device_properties || api->device_properties(properties, device) != cudaSuccess) return;
  snprintf(name, name_bytes, "%.*s", (int)name_most, properties);
}
