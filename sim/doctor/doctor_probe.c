/* doctor_probe.c: `tutti doctor --probe`, in a process of its own: loads a libnccl, or the driver, and prints
 * lines of a word and a value. It may crash or hang with what it loads; the parent reports that as the
 * answer. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "doctor/doctor.h"
#include "verb.h"

static void *symbol(void *library, const char *name) { return dlsym(library, name); }

/* ---- a library */

static void library_say(void *library) {
  struct link_map *map = NULL;
  int (*version)(int *) = NULL;
  const char *(*text)(void) = NULL, *(*backend)(void) = NULL, *(*last)(void *) = NULL;
  int number = 0;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map) printf("path %s\n", map->l_name);
  *(void **)&version = symbol(library, "ncclGetVersion");
  *(void **)&text = symbol(library, "tutti_version");
  *(void **)&backend = symbol(library, "tutti_backend");
  *(void **)&last = symbol(library, "ncclGetLastError");
  if (version && version(&number) == 0) printf("api %d\n", number);
  if (!text || !backend) return;
  printf("tutti %s\n", text());
  fflush(stdout);
  const char *name = backend();
  printf("backend %s\n", name);
  if (!strcmp(name, "none") && last) printf("why %s\n", last(NULL));
}

static int library_probe(const char *name) {
  void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (!library) {
    printf("error %s\n", dlerror());
    return EXIT_WRONG;
  }
  library_say(library);
  return EXIT_GOOD;
}

/* ---- the driver, by the names and numbers of its public interface */

enum { MAJOR = 75, MINOR = 76, COMPUTE_MODE = 20, RDMA = 116, DMABUF = 124, MPS_ENABLED = 133 };
enum { PAIR_ATOMICS = 3, MODE_PROHIBITED = 2, GPUS_MOST = 64 };

struct driver {
  int (*init)(unsigned), (*version)(int *), (*count)(int *), (*get)(int *, int), (*name)(char *, int, int);
  int (*attribute)(int *, int, int), (*access)(int *, int, int), (*pair)(int *, int, int, int);
};

static bool driver_fill(void *library, struct driver *driver) {
  *(void **)&driver->init = symbol(library, "cuInit");
  *(void **)&driver->version = symbol(library, "cuDriverGetVersion");
  *(void **)&driver->count = symbol(library, "cuDeviceGetCount");
  *(void **)&driver->get = symbol(library, "cuDeviceGet");
  *(void **)&driver->name = symbol(library, "cuDeviceGetName");
  *(void **)&driver->attribute = symbol(library, "cuDeviceGetAttribute");
  *(void **)&driver->access = symbol(library, "cuDeviceCanAccessPeer");
  *(void **)&driver->pair = symbol(library, "cuDeviceGetP2PAttribute");
  return driver->init && driver->version && driver->count && driver->get && driver->name &&
         driver->attribute && driver->access && driver->pair;
}

static void gpu_say(const struct driver *driver, int index, int gpu) {
  char name[128] = "";
  int major = 0, minor = 0, mode = 0, mps = 0, dmabuf = 0, rdma = 0;
  driver->name(name, sizeof name, gpu);
  driver->attribute(&major, MAJOR, gpu);
  driver->attribute(&minor, MINOR, gpu);
  driver->attribute(&mode, COMPUTE_MODE, gpu);
  printf("gpu %d %d %d %s %s\n", index, major, minor, mode == MODE_PROHIBITED ? "prohibited" : "open", name);
  if (driver->attribute(&mps, MPS_ENABLED, gpu) == 0 && mps != 0) printf("mps %d\n", index);
  driver->attribute(&dmabuf, DMABUF, gpu);
  driver->attribute(&rdma, RDMA, gpu);
  printf("rdma %d %d %d\n", index, dmabuf, rdma);
}

static void gpus_say(const struct driver *driver, int count) {
  int gpus[GPUS_MOST];
  if (count > GPUS_MOST) count = GPUS_MOST;
  for (int i = 0; i < count; i++) {
    if (driver->get(&gpus[i], i) != 0) return;
    gpu_say(driver, i, gpus[i]);
  }
  for (int a = 0; a < count; a++) {
    for (int b = 0; b < count; b++) {
      int access = 0, atomics = 0;
      if (a == b) continue;
      driver->access(&access, gpus[a], gpus[b]);
      driver->pair(&atomics, PAIR_ATOMICS, gpus[a], gpus[b]);
      printf("pair %d %d %d %d\n", a, b, access, atomics);
    }
  }
}

static int gpus_probe(void) {
  struct driver driver;
  int version = 0, count = 0;
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) {
    printf("absent %s\n", dlerror());
    return EXIT_GOOD;
  }
  if (!driver_fill(library, &driver)) {
    printf("failed libcuda.so.1 lacks calls that every driver has\n");
    return EXIT_WRONG;
  }
  if (driver.version(&version) == 0) printf("driver %d\n", version);
  fflush(stdout);
  const int status = driver.init(0);
  if (status != 0 || driver.count(&count) != 0) {
    printf("failed cuInit answers %d\n", status);
    return EXIT_WRONG;
  }
  printf("count %d\n", count);
  gpus_say(&driver, count);
  return EXIT_GOOD;
}

int doctor_probe(const char *what) {
  const int code = strcmp(what, "gpus") == 0   ? gpus_probe()
                   : strcmp(what, "nics") == 0 ? doctor_probe_nics()
                                               : library_probe(what);
  fflush(stdout);
  return code;
}
