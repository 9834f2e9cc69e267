/* driver.h: the driver's functions for memory of cuMemCreate. They are looked up when a program runs, so that
 * it builds and says what it needs where there is no driver. */
#ifndef TUTTI_TESTS_GPU_DRIVER_H
#define TUTTI_TESTS_GPU_DRIVER_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>

static struct {
  __typeof__(cuMemCreate) *create;
  __typeof__(cuMemRelease) *release;
  __typeof__(cuMemAddressReserve) *reserve;
  __typeof__(cuMemAddressFree) *unreserve;
  __typeof__(cuMemMap) *map;
  __typeof__(cuMemSetAccess) *set_access;
  __typeof__(cuMemGetAccess) *get_access;
  __typeof__(cuMemRetainAllocationHandle) *retain;
  __typeof__(cuMemExportToShareableHandle) *export_handle;
  __typeof__(cuMemUnmap) *unmap;
} driver;

/* False: there is no driver, or it lacks one of them. */
static inline bool driver_load(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return false;
  *(void **)&driver.create = dlsym(library, "cuMemCreate");
  *(void **)&driver.release = dlsym(library, "cuMemRelease");
  *(void **)&driver.reserve = dlsym(library, "cuMemAddressReserve");
  *(void **)&driver.unreserve = dlsym(library, "cuMemAddressFree");
  *(void **)&driver.map = dlsym(library, "cuMemMap");
  *(void **)&driver.set_access = dlsym(library, "cuMemSetAccess");
  *(void **)&driver.get_access = dlsym(library, "cuMemGetAccess");
  *(void **)&driver.retain = dlsym(library, "cuMemRetainAllocationHandle");
  *(void **)&driver.export_handle = dlsym(library, "cuMemExportToShareableHandle");
  *(void **)&driver.unmap = dlsym(library, "cuMemUnmap");
  return driver.create && driver.release && driver.reserve && driver.unreserve && driver.map &&
         driver.set_access && driver.get_access && driver.retain && driver.export_handle && driver.unmap;
}

#endif
