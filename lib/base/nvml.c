/* nvml.c: queries libnvidia-ml.so.1, opened by name, once per device. If the library is
 * missing, it logs this once. The few types below repeat the library's interface, which is stable. */
#include "base/nvml.h"

#include <dlfcn.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/pci.h"

#define NVML_LIBRARY "libnvidia-ml.so.1"
enum { STATUS_READ = 0, STATUS_WRITE = 1, STATUS_NVLINK = 2 }; /* kinds of peer access */
#define REMOTE_GPU 0                                           /* kinds of devices at a link's other end */
#define REMOTE_SWITCH 2
#define REMOTE_UNKNOWN 255
#define FIELD_LINK_SPEED_MBPS 90 /* MB/s of each active link */
#define FIELD_C2C_COUNT 170
#define FIELD_C2C_MBPS 172 /* of each */

typedef struct nvml_device_handle *handle;

struct pci_info {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
  unsigned reserved[8];
};

struct field_value {
  unsigned field, scope;
  long long timestamp, latency_us;
  unsigned value_type;
  int result;
  unsigned long long value;
};

/* NULL if a library does not have the function. All return 0 for success. */
static struct {
  int (*init)(void);
  int (*handle_by_bus_id)(const char *bus_id, handle *device);
  int (*device_count)(unsigned *count);
  int (*handle_by_index)(unsigned index, handle *device);
  int (*device_pci)(handle device, struct pci_info *info);
  int (*link_state)(handle device, unsigned link, unsigned *active);
  int (*link_remote)(handle device, unsigned link, struct pci_info *remote);
  int (*link_remote_type)(handle device, unsigned link, unsigned *type);
  int (*p2p_status)(handle a, handle b, unsigned kind, unsigned *status);
  int (*field_values)(handle device, int count, struct field_value *values);
  int (*capability)(handle device, int *major, int *minor);
} nvml;

/* A device as the library sees it; devices that were queried come first. */
static struct links_of {
  bool known; /* it answered for at least one link */
  handle device;
  char name[PCI_NAME_BYTES]; /* bus id as pci_name() spells it */
  uint32_t active_count;
  struct nvml_link links[NVML_LINKS_MAX]; /* the active ones */
  double gbps_a_link;
} devices[NVML_GPUS_MAX];

static void *function(void *library, const char *name) { return dlsym(library, name); }

static bool library_bind(void *library) {
  *(void **)&nvml.init = function(library, "nvmlInit_v2");
  *(void **)&nvml.handle_by_bus_id = function(library, "nvmlDeviceGetHandleByPciBusId_v2");
  *(void **)&nvml.device_count = function(library, "nvmlDeviceGetCount_v2");
  *(void **)&nvml.handle_by_index = function(library, "nvmlDeviceGetHandleByIndex_v2");
  *(void **)&nvml.device_pci = function(library, "nvmlDeviceGetPciInfo_v3");
  *(void **)&nvml.link_state = function(library, "nvmlDeviceGetNvLinkState");
  *(void **)&nvml.link_remote = function(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  *(void **)&nvml.link_remote_type = function(library, "nvmlDeviceGetNvLinkRemoteDeviceType");
  *(void **)&nvml.p2p_status = function(library, "nvmlDeviceGetP2PStatus");
  *(void **)&nvml.field_values = function(library, "nvmlDeviceGetFieldValues");
  *(void **)&nvml.capability = function(library, "nvmlDeviceGetCudaComputeCapability");
  return nvml.init != NULL && nvml.handle_by_bus_id != NULL && nvml.link_state != NULL;
}

/* The library stays open, because it is queried again when further devices come into use. */
static bool library_open(void) {
  static int state; /* 0 not tried, 1 open, -1 unusable */
  if (state != 0) return state > 0;
  void *library = dlopen(NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  const bool bound = library != NULL && library_bind(library);
  const int error = bound ? nvml.init() : -1;
  state = bound && error == 0 ? 1 : -1;
  if (state > 0) return true;
  log_info(LOG_INIT | LOG_GRAPH,
           NVML_LIBRARY " %s: NVLinks are detected by CUDA's attributes, without their number",
           library == NULL ? "is not installed"
           : bound         ? "does not start"
                           : "lacks functions");
  if (library != NULL) dlclose(library);
  return false;
}

/* ---- one device ---- */

static void link_note(struct links_of *of, unsigned number) {
  struct pci_info remote;
  unsigned type = REMOTE_UNKNOWN;
  struct nvml_link *link = &of->links[of->active_count++];
  memset(&remote, 0, sizeof remote);
  if (nvml.link_remote != NULL && nvml.link_remote(of->device, number, &remote) == 0)
    pci_name(remote.bus_id, link->remote);
  if (nvml.link_remote_type == NULL || nvml.link_remote_type(of->device, number, &type) != 0)
    type = REMOTE_UNKNOWN;
  link->to_gpu = type == REMOTE_GPU;
  link->to_switch = type == REMOTE_SWITCH;
}

/* 0 if the device has no such value. */
static double field_read(handle device, unsigned field) {
  struct field_value value;
  memset(&value, 0, sizeof value);
  value.field = field;
  if (nvml.field_values == NULL || nvml.field_values(device, 1, &value) != 0 || value.result != 0) return 0;
  return (double)value.value;
}

static double link_speed(handle device) {
  const double gbps = field_read(device, FIELD_LINK_SPEED_MBPS) / 1000;
  return gbps > 1 && gbps < 1000 ? gbps : 0;
}

/* NULL if it is not a bus id, or if there are too many devices. */
static const struct links_of *device_links(const char *bus_id) {
  char name[PCI_NAME_BYTES];
  struct links_of *of = devices;
  if (!pci_name(bus_id, name)) return NULL;
  while (of < devices + NVML_GPUS_MAX && of->name[0] != '\0' && strcmp(of->name, name) != 0) of++;
  if (of == devices + NVML_GPUS_MAX || of->name[0] != '\0') return of < devices + NVML_GPUS_MAX ? of : NULL;
  memcpy(of->name, name, sizeof name);
  if (nvml.handle_by_bus_id(bus_id, &of->device) != 0) return of;
  for (unsigned link = 0; link < NVML_LINKS_MAX; link++) {
    unsigned active = 0;
    if (nvml.link_state(of->device, link, &active) != 0) continue;
    of->known = true;
    if (active != 0) link_note(of, link);
  }
  if (of->active_count > 0) of->gbps_a_link = link_speed(of->device);
  return of;
}

/* ---- two devices ---- */

/* Links of `of` that end at `peer`; *indirect counts those that end at a switch instead of a GPU. */
static uint32_t links_to(const struct links_of *of, const struct links_of *peer, uint32_t *indirect) {
  uint32_t direct = 0;
  *indirect = 0;
  for (uint32_t i = 0; i < of->active_count; i++) {
    if (strcmp(of->links[i].remote, peer->name) == 0) direct += 1;
    else if (!of->links[i].to_gpu) *indirect += 1;
  }
  return direct;
}

static uint32_t links_count(const struct links_of *a, const struct links_of *b) {
  uint32_t from_a = 0, from_b = 0;
  const uint32_t direct = links_to(a, b, &from_a);
  links_to(b, a, &from_b);
  if (direct > 0) return direct;
  return from_a < from_b ? from_a : from_b;
}

/* False if unknown. */
static bool access_is_off(const struct links_of *a, const struct links_of *b, unsigned kind) {
  unsigned status = 0;
  return nvml.p2p_status != NULL && nvml.p2p_status(a->device, b->device, kind, &status) == 0 && status != 0;
}

static bool links_between(const char *bus_a, const char *bus_b, struct nvml_links *links) {
  if (!library_open()) return false;
  const struct links_of *of_a = device_links(bus_a), *of_b = device_links(bus_b);
  if (of_a == NULL || of_b == NULL || !of_a->known || !of_b->known) return false;
  links->count = links_count(of_a, of_b);
  links->gbps_a_link = of_a->gbps_a_link < of_b->gbps_a_link ? of_a->gbps_a_link : of_b->gbps_a_link;
  links->disabled =
      links->count > 0 && (access_is_off(of_a, of_b, STATUS_READ) || access_is_off(of_a, of_b, STATUS_WRITE));
  /* Links may be up while the switches between them are not configured: the P2P status shows it. */
  if (links->disabled || access_is_off(of_a, of_b, STATUS_NVLINK)) links->count = 0;
  return true;
}

/* The bus id of a device by the library's own index; "" if unknown. */
static void bus_id_of(unsigned index, char bus_id[PCI_NAME_BYTES]) {
  handle device = NULL;
  struct pci_info info;
  bus_id[0] = '\0';
  memset(&info, 0, sizeof info);
  if (nvml.handle_by_index == NULL || nvml.device_pci == NULL || nvml.handle_by_index(index, &device) != 0 ||
      nvml.device_pci(device, &info) != 0 || !pci_name(info.bus_id, bus_id))
    bus_id[0] = '\0';
}

static bool all_to_switches(const struct links_of *of, struct nvml_links *links) {
  for (uint32_t i = 0; i < of->active_count; i++)
    if (of->links[i].to_gpu) return false;
  links->count = of->active_count;
  links->gbps_a_link = of->gbps_a_link;
  return of->active_count > 0;
}

static bool links_everywhere(const char *bus_id, struct nvml_links *links) {
  char other[PCI_NAME_BYTES];
  unsigned count = 0, others = 0;
  if (!library_open()) return false;
  const struct links_of *of = device_links(bus_id);
  if (of == NULL || !of->known) return false;
  if (nvml.device_count == NULL || nvml.device_count(&count) != 0) count = 0;
  for (unsigned i = 0; i < count; i++) {
    bus_id_of(i, other);
    if (other[0] == '\0' || strcmp(other, of->name) == 0) continue;
    if (!links_between(bus_id, other, links) || links->count == 0) return false;
    others += 1;
  }
  return others > 0 || all_to_switches(of, links);
}

/* ---- all devices ---- */

static uint32_t field_number(handle device, unsigned field, double most) {
  const double value = field_read(device, field);
  return value > 0 && value <= most ? (uint32_t)value : 0;
}

static bool gpu_read(unsigned index, struct nvml_gpu *gpu) {
  int major = 0, minor = 0;
  memset(gpu, 0, sizeof *gpu);
  bus_id_of(index, gpu->bus_id);
  const struct links_of *of = gpu->bus_id[0] != '\0' ? device_links(gpu->bus_id) : NULL;
  if (of == NULL || of->device == NULL) return false;
  if (nvml.capability != NULL && nvml.capability(of->device, &major, &minor) == 0 && major > 0 &&
      major < 100 && minor >= 0 && minor < 10)
    gpu->capability = (uint32_t)(10 * major + minor);
  gpu->c2c_count = field_number(of->device, FIELD_C2C_COUNT, NVML_LINKS_MAX);
  gpu->c2c_mbps = gpu->c2c_count > 0 ? field_number(of->device, FIELD_C2C_MBPS, 1e6) : 0;
  gpu->link_count = of->active_count;
  memcpy(gpu->links, of->links, sizeof gpu->links);
  return true;
}

static uint32_t gpus_read(struct nvml_gpu *gpus, uint32_t most) {
  unsigned present = 0;
  uint32_t count = 0;
  if (!library_open() || nvml.device_count == NULL || nvml.device_count(&present) != 0) return 0;
  for (unsigned i = 0; i < present && count < most; i++) count += gpu_read(i, &gpus[count]);
  return count;
}

/* ---- for any thread ---- */

static os_mutex nvml_mutex = OS_MUTEX_INITIALIZER;

bool nvml_links_between(const char *bus_a, const char *bus_b, struct nvml_links *links) {
  os_mutex_lock(&nvml_mutex);
  const bool known = links_between(bus_a, bus_b, links);
  os_mutex_unlock(&nvml_mutex);
  return known;
}

bool nvml_links_everywhere(const char *bus_id, struct nvml_links *links) {
  os_mutex_lock(&nvml_mutex);
  const bool all = links_everywhere(bus_id, links);
  os_mutex_unlock(&nvml_mutex);
  return all;
}

uint32_t nvml_gpus(struct nvml_gpu *gpus, uint32_t most) {
  os_mutex_lock(&nvml_mutex);
  const uint32_t count = gpus_read(gpus, most);
  os_mutex_unlock(&nvml_mutex);
  return count;
}
