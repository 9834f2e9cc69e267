/* topology.c: rows of a topology, presets, and bandwidths of links. The bandwidths are those that NCCL plans
 * with, not measured on this machine. */
#include "core/topology/topology.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define UNKNOWN_GBPS 12.0 /* PCI 3.0 with 16 lanes; also for a NIC of unknown speed */

void topology_free(struct topology *topology) {
  os_free(topology->devices);
  os_free(topology->links);
  os_free(topology->cpus);
  memset(topology, 0, sizeof *topology);
}

/* ---- Rows ---- */

struct topology_device *topology_add(struct topology *topology, enum topology_kind kind, uint32_t parent) {
  if (topology->devices == NULL)
    topology->devices = (struct topology_device *)os_alloc(TOPOLOGY_DEVICES_MAX * sizeof *topology->devices);
  if (topology->devices == NULL || topology->device_count == TOPOLOGY_DEVICES_MAX) return NULL;
  struct topology_device *device = &topology->devices[topology->device_count++];
  device->kind = kind;
  device->parent = parent;
  device->rank = -1;
  return device;
}

struct topology_link *topology_add_link(struct topology *topology, uint32_t gpu) {
  if (topology->links == NULL)
    topology->links = (struct topology_link *)os_alloc(TOPOLOGY_LINKS_MAX * sizeof *topology->links);
  if (topology->links == NULL || topology->link_count == TOPOLOGY_LINKS_MAX) return NULL;
  struct topology_link *link = &topology->links[topology->link_count++];
  link->gpu = gpu;
  link->peer = TOPOLOGY_NONE;
  return link;
}

static uint32_t rows_of_kind(const struct topology *topology, enum topology_kind kind, uint32_t *rows) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < topology->device_count; i++) {
    if (topology->devices[i].kind == kind) rows[count++] = i;
  }
  return count;
}

/* Insertion sort, since rows are few. Returns the row of a number that occurs twice, or TOPOLOGY_NONE. */
static uint32_t rows_sort(const struct topology *topology, uint32_t *rows, uint32_t count) {
  const struct topology_device *devices = topology->devices;
  for (uint32_t i = 1; i < count; i++) {
    for (uint32_t j = i; j > 0 && devices[rows[j]].number <= devices[rows[j - 1]].number; j--) {
      if (devices[rows[j]].number == devices[rows[j - 1]].number) return rows[j];
      const uint32_t row = rows[j];
      rows[j] = rows[j - 1];
      rows[j - 1] = row;
    }
  }
  return TOPOLOGY_NONE;
}

static void link_find_peer(const struct topology *topology, struct topology_link *link) {
  for (uint32_t i = 0; i < topology->gpu_count && link->target_class >> 16 == 0x03; i++) {
    const uint32_t gpu = topology->gpus[i];
    const char *bus_id = topology->devices[topology->devices[gpu].parent].name;
    if (gpu != link->gpu && strcmp(bus_id, link->target) == 0) link->peer = gpu;
  }
}

static ncclResult_t check_counts(const char *path, const struct topology *topology) {
  if (topology->gpu_count == 0)
    return log_fail(ncclInvalidUsage, "%s: there is no GPU; expected at least one <gpu> inside a <pci>",
                    path);
  if (topology->gpu_count > TOPOLOGY_GPUS_MAX || topology->net_count > TOPOLOGY_NETS_MAX ||
      topology->cpu_count > TOPOLOGY_CPUS_MAX)
    return log_fail(ncclInvalidUsage, "%s: %u CPUs, %u GPUs, %u nets; expected at most %u, %u and %u", path,
                    topology->cpu_count, topology->gpu_count, topology->net_count, TOPOLOGY_CPUS_MAX,
                    TOPOLOGY_GPUS_MAX, TOPOLOGY_NETS_MAX);
  return ncclSuccess;
}

ncclResult_t topology_finish(const char *path, struct topology *topology) {
  topology->cpus = (uint32_t *)os_alloc(3 * TOPOLOGY_DEVICES_MAX * sizeof *topology->cpus);
  if (topology->cpus == NULL) return log_no_memory("%s: its lists", path);
  topology->gpus = topology->cpus + TOPOLOGY_DEVICES_MAX;
  topology->nets = topology->gpus + TOPOLOGY_DEVICES_MAX;
  topology->cpu_count = rows_of_kind(topology, TOPOLOGY_CPU, topology->cpus);
  topology->gpu_count = rows_of_kind(topology, TOPOLOGY_GPU, topology->gpus);
  topology->net_count = rows_of_kind(topology, TOPOLOGY_NET, topology->nets);
  TRY(check_counts(path, topology));
  uint32_t twice = rows_sort(topology, topology->gpus, topology->gpu_count);
  if (twice == TOPOLOGY_NONE) twice = rows_sort(topology, topology->nets, topology->net_count);
  if (twice != TOPOLOGY_NONE)
    return log_fail(ncclInvalidUsage, "%s: two <%s> have dev=\"%d\"; expected each number once", path,
                    topology->devices[twice].kind == TOPOLOGY_GPU ? "gpu" : "net",
                    topology->devices[twice].number);
  for (uint32_t i = 0; i < topology->link_count; i++) link_find_peer(topology, &topology->links[i]);
  return ncclSuccess;
}

/* ---- Bandwidths of links ---- */

double topology_nvlink_gbps(uint32_t capability) {
  if (capability >= 100) return 40.1;
  if (capability >= 90) return 20.6;
  if (capability == 86) return 12;
  return capability >= 70 ? 20 : 18;
}

/* A lane of PCI 1.0 and 2.0 uses 10 bits per byte; later ones have little overhead besides packet headers. */
double topology_link_gbps(const struct topology *topology, uint32_t device) {
  const struct topology_device *row = &topology->devices[device];
  if (row->kind == TOPOLOGY_CPU || row->kind == TOPOLOGY_GPU) return 0;
  if (row->kind == TOPOLOGY_NET || row->kind == TOPOLOGY_NIC) {
    const bool by_pci = topology->devices[row->parent].kind != TOPOLOGY_CPU;
    return by_pci ? 0 : UNKNOWN_GBPS;
  }
  if (row->link_gts == 0) return UNKNOWN_GBPS;
  const uint32_t width = row->link_width == 0 ? 16 : row->link_width;
  return row->link_gts * (row->link_gts < 8 ? 6.0 : 7.5) * width / 80;
}

static double intel_socket_gbps(const struct topology_device *cpu) {
  switch (cpu->model) {
    case 0x55: /* Skylake, Cascade Lake, Cooper Lake */
    case 0x6a:
    case 0x6c: return 10;
    case 0x8f: /* Sapphire Rapids, Emerald Rapids */
    case 0xcf: return 22;
    case 0xad: /* Granite Rapids */
    case 0xae: return 40;
    default: return 6;
  }
}

double topology_socket_gbps(const struct topology_device *cpu) {
  if (strcmp(cpu->name, "arm64") == 0) return 6;
  if (strcmp(cpu->name, "ppc64") == 0) return 32;
  return strcmp(cpu->maker, "AuthenticAMD") == 0 ? 16 : intel_socket_gbps(cpu);
}

double topology_net_gbps(const struct topology_device *net) {
  return net->speed_mbits == 0 ? UNKNOWN_GBPS : net->speed_mbits / 8000.0;
}

bool topology_link_is_switch(const struct topology_link *link) { return link->target_class >> 8 == 0x0680; }

/* ---- Presets ---- */

static const struct preset {
  const char *name, *maker;
  uint32_t gpus, nics, capability;
  uint32_t nvlinks; /* per GPU, to switches; 0: none */
  int32_t cpu_model;
  double link_gts;
  uint32_t gpus_a_switch, net_mbits;
} presets[] = {
    {"dgx-h100", "GenuineIntel", 8, 8, 90, 18, 0x8f, 32, 1, 400000},
    {"dgx-h200", "GenuineIntel", 8, 8, 90, 18, 0xcf, 32, 1, 400000},
    {"dgx-a100", "AuthenticAMD", 8, 8, 80, 12, 49, 16, 2, 200000},
    {"hgx-b200", "GenuineIntel", 8, 8, 100, 18, 0xcf, 32, 1, 400000},
    {"pcie-box", "GenuineIntel", 8, 1, 89, 0, 0x6a, 16, 4, 100000},
};

#define PRESET_COUNT (sizeof presets / sizeof presets[0])

const char *topology_preset(uint32_t index) { return index < PRESET_COUNT ? presets[index].name : NULL; }

static const struct preset *preset_find(const char *name) {
  for (uint32_t i = 0; i < PRESET_COUNT; i++) {
    if (name == NULL || strcmp(presets[i].name, name) == 0) return &presets[i];
  }
  return NULL;
}

/* A topology being made: rows are added group by group, a group being the devices below one PCI switch. */
struct making {
  const struct preset *preset;
  struct topology *topology;
  uint32_t gpu_count, nic_count, next_bus;
  bool full;                   /* a row could not be added */
  struct topology_device lost; /* is filled instead of that row */
};

static struct topology_device *making_add(struct making *making, enum topology_kind kind, uint32_t parent) {
  struct topology_device *device = topology_add(making->topology, kind, parent);
  making->full = making->full || device == NULL;
  return device == NULL ? &making->lost : device;
}

/* Row of a new PCI function or bridge. */
static uint32_t making_add_pci(struct making *making, uint32_t parent, uint32_t pci_class) {
  struct topology_device *pci = making_add(making, TOPOLOGY_PCI, parent);
  const uint32_t bus = making->next_bus++;
  snprintf(pci->name, sizeof pci->name, "%04x:%02x:00.0", (bus >> 8) & 0xffff, bus & 0xff);
  pci->pci_class = pci_class;
  pci->link_gts = making->preset->link_gts;
  pci->link_width = 16;
  return making->topology->device_count - 1;
}

static void making_add_gpu(struct making *making, uint32_t parent, uint32_t number) {
  const uint32_t function = making_add_pci(making, parent, 0x030200);
  struct topology_device *gpu = making_add(making, TOPOLOGY_GPU, function);
  gpu->number = (int32_t)number;
  gpu->capability = making->preset->capability;
  gpu->direct = true;
  if (making->preset->nvlinks == 0) return;
  struct topology_link *link = topology_add_link(making->topology, making->topology->device_count - 1);
  making->full = making->full || link == NULL;
  if (link == NULL) return;
  snprintf(link->target, sizeof link->target, "ffff:ff:00.0");
  link->target_class = 0x068000;
  link->count = making->preset->nvlinks;
}

static void making_add_nic(struct making *making, uint32_t parent, uint32_t number) {
  const uint32_t function = making_add_pci(making, parent, 0x020700);
  making_add(making, TOPOLOGY_NIC, function);
  struct topology_device *net = making_add(making, TOPOLOGY_NET, making->topology->device_count - 1);
  net->number = (int32_t)number;
  snprintf(net->name, sizeof net->name, "mlx5_%u", number);
  net->speed_mbits = making->preset->net_mbits;
  net->port = 1;
  net->connections_max = 131072;
  net->guid = number + 1;
  net->direct = true;
}

/* End of part `index` if `total` is divided into `count` parts, which differ by at most one. */
static uint32_t share_end(uint32_t total, uint32_t index, uint32_t count) {
  return (uint32_t)((uint64_t)total * (index + 1) / count);
}

/* Two CPUs with half of the switches each; each switch has its share of GPUs and NICs. */
static void making_fill(struct making *making) {
  const uint32_t a_switch = making->preset->gpus_a_switch;
  const uint32_t switch_count = (making->gpu_count + a_switch - 1) / a_switch;
  const uint32_t cpu_count = switch_count > 1 ? 2 : 1;
  uint32_t gpu = 0, nic = 0, index = 0;
  for (uint32_t numa = 0; numa < cpu_count; numa++) {
    struct topology_device *cpu = making_add(making, TOPOLOGY_CPU, TOPOLOGY_NONE);
    const uint32_t cpu_row = making->topology->device_count - 1;
    cpu->number = (int32_t)numa;
    snprintf(cpu->name, sizeof cpu->name, "x86_64");
    snprintf(cpu->maker, sizeof cpu->maker, "%s", making->preset->maker);
    cpu->family = strcmp(making->preset->maker, "AuthenticAMD") == 0 ? 143 : 6;
    cpu->model = making->preset->cpu_model;
    for (const uint32_t end = share_end(switch_count, numa, cpu_count); index < end; index++) {
      const uint32_t bridge = making_add_pci(making, cpu_row, 0x060400);
      for (uint32_t last = share_end(making->gpu_count, index, switch_count); gpu < last; gpu++)
        making_add_gpu(making, bridge, gpu);
      for (uint32_t last = share_end(making->nic_count, index, switch_count); nic < last; nic++)
        making_add_nic(making, bridge, nic);
    }
  }
}

static ncclResult_t spec_check(const struct topology_spec *spec, const struct preset *preset) {
  if (preset == NULL) {
    char names[160] = "";
    for (uint32_t i = 0; i < PRESET_COUNT; i++)
      snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? ", " : "",
               presets[i].name);
    return log_fail(ncclInvalidUsage, "there is no machine '%s'; there are %s", spec->machine, names);
  }
  if (spec->nodes > TOPOLOGY_NODES_MAX || spec->gpus > TOPOLOGY_GPUS_MAX || spec->nics > TOPOLOGY_NETS_MAX)
    return log_fail(ncclInvalidUsage, "%u nodes of %u GPUs and %u NICs; expected at most %u, %u and %u",
                    spec->nodes, spec->gpus, spec->nics, TOPOLOGY_NODES_MAX, TOPOLOGY_GPUS_MAX,
                    TOPOLOGY_NETS_MAX);
  return ncclSuccess;
}

ncclResult_t topology_make(const struct topology_spec *spec, struct topology *topology) {
  const struct preset *preset = preset_find(spec->machine);
  TRY(spec_check(spec, preset));
  struct topology made;
  memset(&made, 0, sizeof made);
  snprintf(made.name, sizeof made.name, "%s", preset->name);
  made.node_count = spec->nodes == 0 ? 1 : spec->nodes;
  const uint32_t gpu_count = spec->gpus == 0 ? preset->gpus : spec->gpus;
  /* A machine with one NIC per GPU keeps that ratio for other numbers of GPUs. */
  const uint32_t nics = preset->nics == preset->gpus ? gpu_count : preset->nics;
  struct making making;
  memset(&making, 0, sizeof making);
  making.preset = preset;
  making.topology = &made;
  making.gpu_count = gpu_count;
  making.nic_count = spec->nics == 0 ? nics : spec->nics;
  making.next_bus = 1;
  making_fill(&making);
  const ncclResult_t result =
      making.full ? log_no_memory("the rows of a node") : topology_finish(preset->name, &made);
  if (result == ncclSuccess) *topology = made;
  else topology_free(&made);
  return result;
}
