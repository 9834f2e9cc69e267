/* vmm.c: see vmm.h. */
#include "backends/cuda/vmm.h"

static struct vmm_driver driver;

static bool driver_load(void) {
  static const char *const names[] = {"cuMemGetAllocationGranularity",
                                      "cuMemCreate",
                                      "cuMemRetainAllocationHandle",
                                      "cuMemExportToShareableHandle",
                                      "cuMemImportFromShareableHandle",
                                      "cuMemAddressReserve",
                                      "cuMemAddressFree",
                                      "cuMemMap",
                                      "cuMemSetAccess",
                                      "cuMemGetAccess",
                                      "cuMemUnmap",
                                      "cuMemRelease"};
  void **places = (void **)&driver; /* in the same order */
  static_assert(sizeof driver == sizeof names, "a name for each function");
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    places[i] = cuda_driver_function(names[i]);
    if (places[i] == NULL) return false;
  }
  return true;
}

const struct vmm_driver *vmm_driver(void) {
  static os_mutex lock = OS_MUTEX_INITIALIZER;
  static int loaded; /* 1: yes, -1: no */
  os_mutex_lock(&lock);
  if (loaded == 0) loaded = driver_load() ? 1 : -1;
  os_mutex_unlock(&lock);
  return loaded > 0 ? &driver : NULL;
}

CUmemAccessDesc vmm_access(uint32_t device_index) {
  const CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device_index},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return access;
}
