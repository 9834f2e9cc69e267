/* topology.c: queries NVML, CUDA and sysfs for each pair of devices, and caches the result. There is always a
 * result: without information it is the longest path that cannot be excluded. */
#include "backends/cuda/topology.h"

#include <string.h>

#include "backends/cuda/device.h"
#include "backends/cuda/path.h"
#include "base/log.h"
#include "base/nvml.h"
#include "base/param.h"
#include "base/pci.h"

#define SYS_ROOT "/sys"
#define PCI_GBPS 12 /* of a slot of unknown speed: generation 3, 16 lanes, without headers */

static struct device {
  bool asked;
  char bus_id[PCI_NAME_BYTES];
  struct path_end end;
} devices[DEVICES_MAX];

static const struct device *device_find(uint32_t index) {
  struct device *device = &devices[index];
  if (device->asked) return device;
  device->asked = true;
  if (cudaDeviceGetPCIBusId(device->bus_id, sizeof device->bus_id, (int)index) != cudaSuccess) {
    cudaGetLastError();
    device->bus_id[0] = '\0';
  }
  path_end_read(SYS_ROOT, device->bus_id, &device->end);
  return device;
}

/* ---- NVLink ---- */

/* Raw GB/s of one link by compute capability, if NVML does not report it. */
static double link_gbps(uint32_t index) {
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)index);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)index);
  if (major >= 10) return 53.12;
  if (major == 9) return 26.56;
  return major == 8 && minor == 6 ? 14.06 : 25;
}

/* Over PCIe a device does not support a peer's native atomic operations; over NVLink it does. (CUDA's
 * performance rank only compares the pairs of one machine, all of which may be PCIe.) */
static bool link_by_attributes(uint32_t from, uint32_t to) {
  int native_atomics = 0;
  if (cudaDeviceGetP2PAttribute(&native_atomics, cudaDevP2PAttrNativeAtomicSupported, (int)from, (int)to) !=
      cudaSuccess)
    cudaGetLastError();
  return native_atomics != 0;
}

/* True if NVLinks connect the two; *count and *gbps are 0 if unknown. */
static bool link_find(uint32_t from, uint32_t to, uint32_t *count, double *gbps) {
  struct nvml_links links;
  *count = 0;
  *gbps = 0;
  if (!nvml_links_between(device_find(from)->bus_id, device_find(to)->bus_id, &links))
    return link_by_attributes(from, to);
  *count = links.count;
  *gbps = links.count * (links.gbps_a_link > 0 ? links.gbps_a_link : link_gbps(from));
  return links.count > 0;
}

/* ---- paths ---- */

static double smaller(double a, double b) { return a < b ? a : b; }

static double slot_gbps(const struct path_end *end) { return end->gbps > 0 ? end->gbps : PCI_GBPS; }

static void path_find(uint32_t from, uint32_t to, struct device_path_info *info) {
  if (from == to) {
    info->type = PATH_LOC;
  } else if (link_find(from, to, &info->link_count, &info->gbps)) {
    info->type = PATH_NVL;
  } else {
    const struct path_end *a = &device_find(from)->end, *b = &device_find(to)->end;
    info->type = path_between(a, b);
    if (info->type < PATH_PIX) info->type = PATH_PIX; /* two devices at one place: parts of one GPU */
    info->gbps = smaller(slot_gbps(a), slot_gbps(b));
  }
  info->name = path_name(info->type);
}

void topology_path(uint32_t from, uint32_t to, struct device_path_info *info) {
  static struct device_path_info known[DEVICES_MAX][DEVICES_MAX];
  static const struct device_path_info unknown = {PATH_SYS, "SYS", 0, 0, false, false};
  *info = unknown;
  if (from >= DEVICES_MAX || to >= DEVICES_MAX) return;
  if (known[from][to].name == NULL) path_find(from, to, &known[from][to]);
  *info = known[from][to];
}

/* The path to a GPU that CUDA does not show; NVML and sysfs know it anyway. */
static void path_find_unseen(uint32_t from, const char *bus_id, struct device_path_info *info) {
  const struct device *own = device_find(from);
  struct path_end end;
  struct nvml_links links;
  path_end_read(SYS_ROOT, bus_id, &end);
  info->type = path_between(&own->end, &end);
  info->gbps = smaller(slot_gbps(&own->end), slot_gbps(&end));
  if (nvml_links_between(own->bus_id, bus_id, &links) && links.count > 0) {
    info->type = PATH_NVL;
    info->link_count = links.count;
    info->gbps = links.count * (links.gbps_a_link > 0 ? links.gbps_a_link : link_gbps(from));
  }
  info->name = path_name(info->type);
}

void topology_path_named(uint32_t from, const char *bus_id, struct device_path_info *info) {
  static const struct device_path_info unknown = {PATH_SYS, "SYS", 0, 0, false, false};
  int to = -1;
  *info = unknown;
  if (from >= DEVICES_MAX) return;
  if (cudaDeviceGetByPCIBusId(&to, bus_id) == cudaSuccess && to >= 0) {
    topology_path(from, (uint32_t)to, info);
    return;
  }
  cudaGetLastError();
  path_find_unseen(from, bus_id, info);
}

/* Without NVML: uses CUDA's attributes of the visible devices. */
static bool linked_to_visible(uint32_t from) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
  for (uint32_t to = 0; to < (uint32_t)count; to++)
    if (to != from && !link_by_attributes(from, to)) return false;
  return count > 1;
}

void topology_path_farthest(uint32_t from, struct device_path_info *info) {
  static const struct device_path_info unknown = {PATH_SYS, "SYS", 0, 0, false, false};
  struct nvml_links links = {0, 0, false};
  *info = unknown;
  if (from >= DEVICES_MAX) return;
  if (nvml_links_everywhere(device_find(from)->bus_id, &links) || linked_to_visible(from)) {
    info->type = PATH_NVL;
    info->link_count = links.count;
    info->gbps = links.count * (links.gbps_a_link > 0 ? links.gbps_a_link : link_gbps(from));
  }
  info->name = path_name(info->type);
  info->ll128 = info->type == PATH_NVL;
}

/* The longest path that the settings allow; LOC allows none between two devices. */
static enum device_path_type level_read(void) {
  enum device_path_type level = PATH_SYS;
  const char *text = param_text(PARAM_P2P_LEVEL);
  if (text[0] != '\0' && !path_level_parse(text, &level))
    log_warn("NCCL_P2P_LEVEL=%s is no path; it is ignored; use LOC, NVL, PIX, PXB, PHB or SYS", text);
  return param_int(PARAM_P2P_DISABLE) != 0 ? PATH_LOC : level;
}

enum device_path_type topology_level(void) {
  static enum device_path_type level;
  static bool known;
  if (!known) level = level_read();
  known = true;
  return level;
}

ncclResult_t topology_check(uint32_t from, const char *bus_id) {
  struct nvml_links links;
  if (param_int(PARAM_IGNORE_DISABLED_P2P) != 0 || topology_level() == PATH_LOC || from >= DEVICES_MAX ||
      !nvml_links_between(device_find(from)->bus_id, bus_id, &links) || !links.disabled)
    return ncclSuccess;
  return log_fail(
      ncclSystemError,
      "NVLinks join GPU %s and GPU %s, and NVML says that peer-to-peer access between them is "
      "disabled: see `nvidia-smi topo -p2p r`, `nvidia-smi nvlink -s` and the Fabric Manager; with "
      "NCCL_IGNORE_DISABLED_P2P=1 data goes through memory of the host",
      device_find(from)->bus_id, bus_id);
}

ncclResult_t topology_check_pair(uint32_t from, uint32_t to) {
  return from != to && to < DEVICES_MAX ? topology_check(from, device_find(to)->bus_id) : ncclSuccess;
}

bool topology_allows(uint32_t from, uint32_t to) {
  struct device_path_info info;
  topology_path(from, to, &info);
  return info.type <= topology_level();
}
