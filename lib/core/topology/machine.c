/* machine.c: reads a machine, and makes the rows of its topology: first in the order in which devices are
 * found, then parents before children and children together. */
#include "core/topology/machine.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/folder.h"
#include "base/log.h"
#include "base/nvml.h"
#include "base/os.h"
#include "base/param.h"

#define VALUE_BYTES 320
#define CHAIN_MAX (TOPOLOGY_DEPTH_MAX - 4)

const char *machine_sysfs(void) {
  const char *text = param_text(PARAM_TUTTI_SYSFS);
  return text[0] != '\0' ? text : MACHINE_SYSFS;
}

static bool is_this_machine(const char *sysfs) { return strcmp(sysfs, MACHINE_SYSFS) == 0; }

/* First line of a file, "" if there is none. */
static void value_read(char value[VALUE_BYTES], const char *folder, const char *file) {
  char path[MACHINE_PATH_BYTES + 128];
  value[0] = '\0';
  snprintf(path, sizeof path, "%s/%s", folder, file);
  char *text = os_file_read_most(path, 1 << 16, NULL);
  if (text != NULL) snprintf(value, VALUE_BYTES, "%.*s", (int)strcspn(text, "\n"), text);
  os_free(text);
}

static bool folder_resolve(const char *path, char place[MACHINE_PATH_BYTES]) {
  char whole[PATH_MAX];
  place[0] = '\0';
  if (realpath(path, whole) == NULL || strlen(whole) >= MACHINE_PATH_BYTES) return false;
  memcpy(place, whole, strlen(whole) + 1);
  return true;
}

/* ---- GPUs ---- */

static struct topology_device *row_add(struct topology *topology, enum topology_kind kind, uint32_t parent,
                                       uint32_t *row) {
  struct topology_device *device = topology_add(topology, kind, parent);
  *row = topology->device_count - 1;
  return device;
}

static bool nvlinks_add(struct topology *topology, uint32_t row, const struct nvml_gpu *gpu) {
  for (uint32_t i = 0; i < gpu->link_count; i++) {
    const struct nvml_link *link = &gpu->links[i];
    struct topology_link *same = NULL;
    const uint32_t pci_class = link->to_switch ? 0x068000 : link->to_gpu ? 0x030200 : 0;
    for (uint32_t k = 0; k < topology->link_count; k++) {
      struct topology_link *other = &topology->links[k];
      if (other->gpu == row && other->target_class == pci_class && strcmp(other->target, link->remote) == 0)
        same = other;
    }
    if (same == NULL) same = topology_add_link(topology, row);
    if (same == NULL) return false;
    snprintf(same->target, sizeof same->target, "%s", link->remote);
    same->target_class = pci_class;
    same->count += 1;
  }
  return true;
}

static bool gpu_add(struct topology *topology, uint32_t cpu, uint32_t number, const struct nvml_gpu *gpu) {
  uint32_t function = 0, row = 0;
  struct topology_device *pci = row_add(topology, TOPOLOGY_PCI, cpu, &function);
  if (pci == NULL) return false;
  snprintf(pci->name, sizeof pci->name, "%s", gpu->bus_id);
  pci->pci_class = 0x030200;
  struct topology_device *device = row_add(topology, TOPOLOGY_GPU, function, &row);
  if (device == NULL) return false;
  device->number = (int32_t)number;
  device->capability = gpu->capability;
  device->direct = true;
  device->host_links = gpu->c2c_count;
  device->host_mbps = gpu->c2c_mbps;
  return nvlinks_add(topology, row, gpu);
}

/* The GPUs below one CPU: only the machine's folder says where they are. */
static ncclResult_t gpus_from_driver(const struct machine_known *known, struct topology *topology) {
  struct nvml_gpu *gpus = (struct nvml_gpu *)os_alloc(NVML_GPUS_MAX * sizeof *gpus);
  if (gpus == NULL) return log_no_memory("what NVML says of GPUs");
  uint32_t count = nvml_gpus(gpus, NVML_GPUS_MAX), cpu = 0;
  const bool seen = count > 0 || known == NULL;
  if (!seen) count = known->count;
  bool good = row_add(topology, TOPOLOGY_CPU, TOPOLOGY_NONE, &cpu) != NULL;
  for (uint32_t i = 0; i < count && good; i++)
    good = gpu_add(topology, cpu, i, seen ? &gpus[i] : &known->gpus[i]);
  os_free(gpus);
  if (!good) return log_no_memory("the GPUs of this machine");
  if (count == 0)
    return log_fail(
        ncclSystemError,
        "NVML (libnvidia-ml.so.1) shows no GPU of this machine: the driver is not installed, or the "
        "container has no GPU");
  return topology_finish("NVML", topology);
}

ncclResult_t machine_open(const char *sysfs, const struct machine_known *known, struct machine *machine) {
  char path[MACHINE_PATH_BYTES];
  memset(machine, 0, sizeof *machine);
  machine->sysfs = sysfs;
  machine->nets = (struct machine_net *)os_alloc(TOPOLOGY_NETS_MAX * sizeof *machine->nets);
  if (machine->nets == NULL) return log_no_memory("the NICs of a machine");
  snprintf(path, sizeof path, "%s/nvml.xml", sysfs);
  const ncclResult_t result = is_this_machine(sysfs) ? gpus_from_driver(known, &machine->gpus)
                                                     : topology_read(path, 1, &machine->gpus);
  if (result != ncclSuccess) machine_close(machine);
  return result;
}

ncclResult_t machine_describe(struct machine *machine, const char *path) {
  return topology_read_part(path, &machine->part);
}

void machine_close(struct machine *machine) {
  topology_free(&machine->gpus);
  topology_free(&machine->part);
  os_free(machine->nets);
  machine->nets = NULL;
}

/* ---- NICs ---- */

ncclResult_t machine_add_net(struct machine *machine, const struct machine_net *net) {
  char path[MACHINE_PATH_BYTES];
  if (machine->net_count == TOPOLOGY_NETS_MAX)
    return log_fail(ncclInvalidUsage, "%s: more than %u NICs", machine->sysfs, TOPOLOGY_NETS_MAX);
  struct machine_net *added = &machine->nets[machine->net_count++];
  *added = *net;
  snprintf(path, sizeof path, "%s/class/infiniband/%s/device", machine->sysfs, net->name);
  if (folder_resolve(path, added->path)) return ncclSuccess;
  snprintf(path, sizeof path, "%s/class/net/%s/device", machine->sysfs, net->name);
  if (!folder_resolve(path, added->path) && is_this_machine(machine->sysfs))
    folder_resolve(net->path, added->path);
  return ncclSuccess;
}

static bool has_module(const struct machine *machine, const char *name) {
  char path[MACHINE_PATH_BYTES], place[MACHINE_PATH_BYTES];
  snprintf(path, sizeof path, "%s/module/%s", machine->sysfs, name);
  return folder_resolve(path, place);
}

/* "0c42:a103:0012:3456", as the kernel writes it. */
static uint64_t guid_parse(const char *text) {
  uint64_t guid = 0;
  for (; *text != '\0'; text++) {
    const char digit[2] = {*text, '\0'};
    if (*text != ':') guid = guid << 4 | (strtoul(digit, NULL, 16) & 15);
  }
  return guid;
}

/* Of one device: its active ports. */
static ncclResult_t ports_add(struct machine *machine, const char *name) {
  char folder[MACHINE_PATH_BYTES], ports_folder[MACHINE_PATH_BYTES + 16], value[VALUE_BYTES];
  struct folder ports;
  ncclResult_t result = ncclSuccess;
  snprintf(folder, sizeof folder, "%s/class/infiniband/%s", machine->sysfs, name);
  snprintf(ports_folder, sizeof ports_folder, "%s/ports", folder);
  folder_read(ports_folder, &ports);
  for (uint32_t i = 0; i < ports.count && result == ncclSuccess; i++) {
    struct machine_net net;
    char port[MACHINE_PATH_BYTES + FOLDER_NAME_BYTES + 32];
    snprintf(port, sizeof port, "%s/%s", ports_folder, ports.names[i]);
    value_read(value, port, "state"); /* "4: ACTIVE" */
    if (strtol(value, NULL, 10) != 4) continue;
    memset(&net, 0, sizeof net);
    snprintf(net.name, sizeof net.name, "%s", name);
    net.port = (uint32_t)strtoul(ports.names[i], NULL, 10);
    value_read(value, port, "rate"); /* "400 Gb/sec (4X NDR)" */
    const double gbits = strtod(value, NULL);
    net.speed_mbits = gbits > 0 && gbits < 1e5 ? (uint32_t)(gbits * 1000) : 0;
    value_read(value, folder, "sys_image_guid");
    net.guid = guid_parse(value);
    net.connections_max = 131072;
    net.direct = has_module(machine, "nvidia_peermem");
    result = machine_add_net(machine, &net);
  }
  folder_free(&ports);
  return result;
}

static ncclResult_t interface_add(struct machine *machine, const char *name) {
  char folder[MACHINE_PATH_BYTES], device[MACHINE_PATH_BYTES + 16], place[MACHINE_PATH_BYTES];
  char value[VALUE_BYTES];
  struct machine_net net;
  snprintf(folder, sizeof folder, "%s/class/net/%s", machine->sysfs, name);
  snprintf(device, sizeof device, "%s/device", folder);
  value_read(value, folder, "operstate");
  if (!folder_resolve(device, place) || strcmp(value, "up") != 0) return ncclSuccess;
  memset(&net, 0, sizeof net);
  snprintf(net.name, sizeof net.name, "%s", name);
  value_read(value, folder, "speed");
  const long mbits = strtol(value, NULL, 10);
  net.speed_mbits = mbits > 0 && mbits < 10000000 ? (uint32_t)mbits : 0;
  net.connections_max = 65536;
  net.guid = machine->net_count;
  return machine_add_net(machine, &net);
}

static ncclResult_t class_add(struct machine *machine, const char *class_name,
                              ncclResult_t (*add)(struct machine *machine, const char *name)) {
  char path[MACHINE_PATH_BYTES];
  struct folder names;
  ncclResult_t result = ncclSuccess;
  snprintf(path, sizeof path, "%s/class/%s", machine->sysfs, class_name);
  folder_read(path, &names);
  for (uint32_t i = 0; i < names.count && result == ncclSuccess; i++) result = add(machine, names.names[i]);
  folder_free(&names);
  return result;
}

ncclResult_t machine_find_nets(struct machine *machine) {
  TRY(class_add(machine, "infiniband", ports_add));
  return machine->net_count > 0 ? ncclSuccess : class_add(machine, "net", interface_add);
}

/* ---- places in the PCI tree ---- */

/* The PCI devices on the way to one, from its root port on: each is the folder of the last one's. */
struct chain {
  char place[MACHINE_PATH_BYTES];
  size_t begins[CHAIN_MAX], ends[CHAIN_MAX]; /* of its name in `place` */
  uint32_t count;
};

static void chain_of(const char *place, struct chain *chain) {
  char name[PCI_NAME_BYTES], part[PCI_NAME_BYTES];
  memset(chain, 0, sizeof *chain);
  snprintf(chain->place, sizeof chain->place, "%s", place);
  const char *at = chain->place;
  while (*at != '\0') {
    const size_t length = strcspn(at, "/");
    if (length > 0 && length < sizeof part && chain->count < CHAIN_MAX) {
      snprintf(part, sizeof part, "%.*s", (int)length, at);
      if (pci_name(part, name) && strcmp(part, name) == 0) {
        chain->begins[chain->count] = (size_t)(at - chain->place);
        chain->ends[chain->count++] = (size_t)(at - chain->place) + length;
      }
    }
    at += length + (at[length] == '/');
  }
}

static void chain_name(const struct chain *chain, uint32_t index, char name[PCI_NAME_BYTES]) {
  snprintf(name, PCI_NAME_BYTES, "%.*s", (int)(chain->ends[index] - chain->begins[index]),
           chain->place + chain->begins[index]);
}

static void chain_read(const struct chain *chain, uint32_t index, const char *file, char value[VALUE_BYTES]) {
  char folder[MACHINE_PATH_BYTES];
  snprintf(folder, sizeof folder, "%.*s", (int)chain->ends[index], chain->place);
  value_read(value, folder, file);
}

static uint32_t chain_hex(const struct chain *chain, uint32_t index, const char *file) {
  char value[VALUE_BYTES];
  chain_read(chain, index, file, value);
  return (uint32_t)strtoul(value, NULL, 16);
}

/* "32.0 GT/s PCIe"; 0 for "Unknown". */
static double chain_speed(const struct chain *chain, uint32_t index) {
  char value[VALUE_BYTES];
  chain_read(chain, index, "max_link_speed", value);
  const double speed = strtod(value, NULL);
  return speed > 0 && speed < 1000 ? speed : 0;
}

/* 0 and 255 are what devices without a link of their own say. */
static uint32_t chain_width(const struct chain *chain, uint32_t index) {
  char value[VALUE_BYTES];
  chain_read(chain, index, "max_link_width", value);
  const unsigned long width = strtoul(value, NULL, 10);
  return width > 0 && width <= 32 ? (uint32_t)width : 0;
}

static double known_least(double a, double b) { return a == 0 || (b != 0 && b < a) ? b : a; }

/* A link is as fast as the slower of its two ends. */
static void row_describe(const struct chain *chain, uint32_t index, struct topology_device *row) {
  static const char *const ids[] = {"vendor", "device", "subsystem_vendor", "subsystem_device"};
  chain_name(chain, index, row->name);
  row->pci_class = chain_hex(chain, index, "class");
  for (uint32_t i = 0; i < 4; i++) row->pci_ids[i] = chain_hex(chain, index, ids[i]);
  row->link_gts = chain_speed(chain, index);
  row->link_width = chain_width(chain, index);
  if (index == 0) return;
  row->link_gts = known_least(row->link_gts, chain_speed(chain, index - 1));
  row->link_width = (uint32_t)known_least(row->link_width, chain_width(chain, index - 1));
}

/* Of the nearest device on the way that says it; -1 if none does. */
static int32_t chain_numa(const struct chain *chain) {
  for (uint32_t i = chain->count; i-- > 0;) {
    char value[VALUE_BYTES];
    chain_read(chain, i, "numa_node", value);
    if (value[0] != '\0' && strtol(value, NULL, 10) >= 0) return (int32_t)strtol(value, NULL, 10);
  }
  return -1;
}

/* ---- CPUs ---- */

static void cpuinfo_line(const char *text, const char *key, char value[VALUE_BYTES]) {
  value[0] = '\0';
  for (const char *line = text; line != NULL && *line != '\0' && value[0] == '\0';) {
    const size_t length = strcspn(line, "\n");
    const char *at = strncmp(line, key, strlen(key)) == 0 ? line + strlen(key) : "";
    at += strspn(at, " \t");
    if (*at == ':') {
      at += 1 + strspn(at + 1, " \t");
      snprintf(value, VALUE_BYTES, "%.*s", (int)strcspn(at, "\n"), at);
    }
    line += length + (line[length] == '\n');
  }
}

/* What all CPUs have in common. NCCL's numbers: a family above 15 is kept as the processor encodes it. */
static void processor_read(const struct machine *machine, struct topology_device *cpu) {
  char path[MACHINE_PATH_BYTES], value[VALUE_BYTES];
  snprintf(path, sizeof path, "%s/cpuinfo", is_this_machine(machine->sysfs) ? "/proc" : machine->sysfs);
  char *text = os_file_read_most(path, 16 << 20, NULL);
  cpuinfo_line(text, "vendor_id", value);
  const bool arm = text != NULL && strstr(text, "CPU implementer") != NULL;
  const bool power = text != NULL && strstr(text, "POWER") != NULL;
  snprintf(cpu->name, sizeof cpu->name, "%s", arm ? "arm64" : power ? "ppc64" : "x86_64");
  snprintf(cpu->maker, sizeof cpu->maker, "%.*s", TOPOLOGY_NAME_BYTES - 1, value);
  cpuinfo_line(text, "cpu family", value);
  const long family = strtol(value, NULL, 10);
  cpu->family = (int32_t)(family > 15 && family < 271 ? (family - 15) << 4 | 15 : family);
  cpuinfo_line(text, "model", value);
  cpu->model = (int32_t)strtol(value, NULL, 10);
  os_free(text);
}

/* A machine with one NUMA node, or that knows of none, has one CPU. */
static int32_t numa_only(const struct machine *machine) {
  char path[MACHINE_PATH_BYTES], place[MACHINE_PATH_BYTES];
  snprintf(path, sizeof path, "%s/devices/system/node/node1", machine->sysfs);
  return folder_resolve(path, place) ? -1 : 0;
}

/* ---- rows as they are found ---- */

struct finding {
  const struct machine *machine;
  struct topology found;            /* its lists are not made */
  struct topology_device processor; /* of every CPU: the file is long and slow to read */
  int32_t numa_unknown;             /* the CPU of devices that do not say theirs */
  bool full;
};

static uint32_t finding_add(struct finding *finding, enum topology_kind kind, uint32_t parent,
                            const struct topology_device *row) {
  uint32_t index = 0;
  struct topology_device *added = row_add(&finding->found, kind, parent, &index);
  finding->full = finding->full || added == NULL;
  if (added == NULL) return 0;
  *added = *row;
  added->kind = kind;
  added->parent = parent;
  return index;
}

static uint32_t cpu_row(struct finding *finding, int32_t number) {
  char path[MACHINE_PATH_BYTES];
  struct topology_device row = finding->processor;
  for (uint32_t i = 0; i < finding->found.device_count; i++)
    if (finding->found.devices[i].kind == TOPOLOGY_CPU && finding->found.devices[i].number == number)
      return i;
  row.number = number;
  row.rank = -1;
  snprintf(path, sizeof path, "%s/devices/system/node/node%d", finding->machine->sysfs, number);
  if (number >= 0) value_read(row.affinity, path, "cpumap");
  return finding_add(finding, TOPOLOGY_CPU, TOPOLOGY_NONE, &row);
}

static uint32_t pci_find(const struct topology *topology, const char *name) {
  for (uint32_t i = 0; i < topology->device_count; i++)
    if (topology->devices[i].kind == TOPOLOGY_PCI && strcmp(topology->devices[i].name, name) == 0) return i;
  return TOPOLOGY_NONE;
}

static uint32_t pci_row(struct finding *finding, uint32_t parent, const struct chain *chain, uint32_t index) {
  struct topology_device row;
  char name[PCI_NAME_BYTES];
  chain_name(chain, index, name);
  const uint32_t known = pci_find(&finding->found, name);
  if (known != TOPOLOGY_NONE) return known;
  memset(&row, 0, sizeof row);
  row.rank = -1;
  row_describe(chain, index, &row);
  return finding_add(finding, TOPOLOGY_PCI, parent, &row);
}

/* The row of a CPU or PCI device of machine_describe(), with those above it. What the file does not say of it
 * the folder may. */
static uint32_t described_row(struct finding *finding, uint32_t index, const struct chain *chain) {
  struct topology_device row = finding->machine->part.devices[index];
  if (row.kind == TOPOLOGY_CPU) {
    const uint32_t cpu = cpu_row(finding, row.number);
    if (row.maker[0] != '\0') finding->found.devices[cpu] = row;
    return cpu;
  }
  const uint32_t known = pci_find(&finding->found, row.name);
  if (known != TOPOLOGY_NONE) return known;
  const uint32_t parent = described_row(finding, row.parent, NULL);
  if (chain != NULL && row.link_gts == 0) row_describe(chain, chain->count - 1, &row);
  return finding_add(finding, TOPOLOGY_PCI, parent, &row);
}

/* The row of a device's PCI function, below its switches; of its CPU if its place is unknown. Between the
 * root port and the device each switch has two ports. */
static uint32_t function_row(struct finding *finding, const char *place) {
  struct chain chain;
  chain_of(place, &chain);
  if (chain.count > 0) {
    char name[PCI_NAME_BYTES];
    chain_name(&chain, chain.count - 1, name);
    const uint32_t described = pci_find(&finding->machine->part, name);
    if (described != TOPOLOGY_NONE) return described_row(finding, described, &chain);
  }
  const int32_t numa = chain_numa(&chain);
  uint32_t row = cpu_row(finding, numa >= 0 ? numa : finding->numa_unknown);
  for (uint32_t i = 1; i + 1 < chain.count; i += 2) row = pci_row(finding, row, &chain, i);
  return chain.count > 0 ? pci_row(finding, row, &chain, chain.count - 1) : row;
}

/* A GPU whose function is not in the folder, as in some containers, is below the CPU. */
static void gpu_find(struct finding *finding, uint32_t gpu) {
  const struct topology *gpus = &finding->machine->gpus;
  const struct topology_device *device = &gpus->devices[gpu], *pci = &gpus->devices[device->parent];
  char path[MACHINE_PATH_BYTES], place[MACHINE_PATH_BYTES];
  snprintf(path, sizeof path, "%s/bus/pci/devices/%s", finding->machine->sysfs, pci->name);
  const bool there = folder_resolve(path, place);
  const uint32_t described = there ? TOPOLOGY_NONE : pci_find(&finding->machine->part, pci->name);
  uint32_t row = described != TOPOLOGY_NONE ? described_row(finding, described, NULL)
                                            : function_row(finding, there ? place : "");
  if (!there && described == TOPOLOGY_NONE) row = finding_add(finding, TOPOLOGY_PCI, row, pci);
  const uint32_t added = finding_add(finding, TOPOLOGY_GPU, row, device);
  for (uint32_t i = 0; i < gpus->link_count && !finding->full; i++) {
    if (gpus->links[i].gpu != gpu) continue;
    struct topology_link *link = topology_add_link(&finding->found, added);
    finding->full = link == NULL;
    if (link == NULL) return;
    *link = gpus->links[i];
    link->gpu = added;
    link->peer = TOPOLOGY_NONE;
  }
}

static void net_find(struct finding *finding, uint32_t number) {
  const struct machine_net *net = &finding->machine->nets[number];
  struct topology_device nic, row;
  memset(&nic, 0, sizeof nic);
  memset(&row, 0, sizeof row);
  nic.rank = row.rank = -1;
  const uint32_t function = function_row(finding, net->path);
  uint32_t nic_row = TOPOLOGY_NONE;
  for (uint32_t i = 0; i < finding->found.device_count; i++)
    if (finding->found.devices[i].kind == TOPOLOGY_NIC && finding->found.devices[i].parent == function)
      nic_row = i;
  if (nic_row == TOPOLOGY_NONE) nic_row = finding_add(finding, TOPOLOGY_NIC, function, &nic);
  row.number = (int32_t)number;
  memcpy(row.name, net->name, sizeof row.name);
  row.speed_mbits = net->speed_mbits;
  row.port = net->port;
  row.connections_max = net->connections_max;
  row.latency_us = net->latency_us;
  row.guid = net->guid;
  row.direct = net->direct;
  finding_add(finding, TOPOLOGY_NET, nic_row, &row);
}

/* ---- rows in their order ---- */

/* CPUs and devices by number, functions by bus id; unequal for any two of one parent. */
static bool row_precedes(const struct topology_device *a, const struct topology_device *b) {
  if (a->kind != b->kind) return a->kind < b->kind;
  if (a->kind == TOPOLOGY_PCI) return strcmp(a->name, b->name) < 0;
  return a->number < b->number;
}

/* The first child after `last`; TOPOLOGY_NONE: there is no other. */
static uint32_t child_after(const struct topology *found, uint32_t parent, uint32_t last) {
  uint32_t first = TOPOLOGY_NONE;
  for (uint32_t i = 0; i < found->device_count; i++) {
    const struct topology_device *row = &found->devices[i];
    if (row->parent != parent) continue;
    if (last != TOPOLOGY_NONE && !row_precedes(&found->devices[last], row)) continue;
    if (first == TOPOLOGY_NONE || row_precedes(row, &found->devices[first])) first = i;
  }
  return first;
}

static bool rows_move(const struct topology *found, uint32_t parent, uint32_t new_parent,
                      struct topology *topology) {
  uint32_t child = TOPOLOGY_NONE, row = 0;
  while ((child = child_after(found, parent, child)) != TOPOLOGY_NONE) {
    struct topology_device *added = row_add(topology, found->devices[child].kind, new_parent, &row);
    if (added == NULL) return false;
    *added = found->devices[child];
    added->parent = new_parent;
    for (uint32_t i = 0; i < found->link_count; i++) {
      if (found->links[i].gpu != child) continue;
      struct topology_link *link = topology_add_link(topology, row);
      if (link == NULL) return false;
      *link = found->links[i];
      link->gpu = row;
    }
    if (!rows_move(found, child, row, topology)) return false;
  }
  return true;
}

static ncclResult_t machine_fill(const struct machine *machine, struct topology *topology) {
  struct finding finding;
  memset(&finding, 0, sizeof finding);
  finding.machine = machine;
  finding.numa_unknown = numa_only(machine);
  processor_read(machine, &finding.processor);
  for (uint32_t i = 0; i < machine->gpus.gpu_count && !finding.full; i++)
    gpu_find(&finding, machine->gpus.gpus[i]);
  for (uint32_t i = 0; i < machine->net_count && !finding.full; i++) net_find(&finding, i);
  const bool moved = !finding.full && rows_move(&finding.found, TOPOLOGY_NONE, TOPOLOGY_NONE, topology);
  topology_free(&finding.found);
  if (!moved)
    return log_fail(ncclSystemError, "%s: more than %u devices or %u rows of NVLinks, or memory is out",
                    machine->sysfs, TOPOLOGY_DEVICES_MAX, TOPOLOGY_LINKS_MAX);
  return topology_finish(machine->sysfs, topology);
}

ncclResult_t machine_topology(const struct machine *machine, uint32_t nodes, struct topology *topology) {
  struct topology made;
  char whole[MACHINE_PATH_BYTES];
  memset(&made, 0, sizeof made);
  made.node_count = nodes;
  const bool named = !is_this_machine(machine->sysfs) && folder_resolve(machine->sysfs, whole);
  snprintf(made.name, sizeof made.name, "%.*s", TOPOLOGY_NAME_BYTES - 1,
           named ? os_base_name(whole) : "this machine");
  const ncclResult_t result = machine_fill(machine, &made);
  if (result == ncclSuccess) *topology = made;
  else topology_free(&made);
  return result;
}

ncclResult_t machine_read(const char *sysfs, const char *part, uint32_t nodes, struct topology *topology) {
  struct machine machine;
  TRY(machine_open(sysfs, NULL, &machine));
  ncclResult_t result = machine_find_nets(&machine);
  if (result == ncclSuccess && part != NULL) result = machine_describe(&machine, part);
  if (result == ncclSuccess) result = machine_topology(&machine, nodes, topology);
  machine_close(&machine);
  return result;
}
