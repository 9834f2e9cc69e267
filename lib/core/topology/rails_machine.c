/* rails_machine.c: see rails_machine.h. */
#include "core/topology/rails_machine.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/nvml.h"
#include "base/os.h"
#include "base/param.h"
#include "core/topology/machine.h"

static ncclResult_t known_read(const struct backend *ops, struct nvml_gpu *gpus, uint32_t *count) {
  uint32_t device_count = 0;
  *count = 0;
  TRY(ops->device->count(&device_count));
  for (uint32_t i = 0; i < device_count && *count < NVML_GPUS_MAX; i++) {
    struct device_info info;
    memset(&info, 0, sizeof info);
    TRY(ops->device->info(i, &info));
    memset(&gpus[*count], 0, sizeof *gpus);
    gpus[*count].capability = info.capability;
    *count += pci_name(info.bus_id, gpus[*count].bus_id);
  }
  return ncclSuccess;
}

ncclResult_t rails_machine_add(struct machine *machine, const struct net_ops *net, uint32_t net_count) {
  for (uint32_t i = 0; i < net_count; i++) {
    struct net_properties properties;
    struct machine_net added;
    memset(&added, 0, sizeof added);
    TRY(net->properties(i, &properties));
    snprintf(added.name, sizeof added.name, "%s", properties.name);
    snprintf(added.path, sizeof added.path, "%s", properties.pci_path);
    added.speed_mbits = properties.speed_mbps;
    added.port = properties.port;
    added.connections_max = properties.max_comms;
    added.latency_us = (double)properties.latency_us;
    added.guid = properties.guid;
    added.direct = properties.memory_cuda || properties.memory_dmabuf;
    TRY(machine_add_net(machine, &added));
  }
  return ncclSuccess;
}

static ncclResult_t machine_open_with(const struct backend *ops, struct nvml_gpu *gpus,
                                      struct machine *machine) {
  struct machine_known known = {.gpus = gpus};
  TRY(known_read(ops, gpus, &known.count));
  return machine_open(machine_sysfs(), &known, machine);
}

static ncclResult_t machine_read_now(const struct backend *ops, const struct net_ops *net, uint32_t net_count,
                                     struct topology *topology) {
  struct machine machine;
  const char *path = param_text(PARAM_TOPO_FILE);
  struct nvml_gpu *gpus = (struct nvml_gpu *)os_alloc(NVML_GPUS_MAX * sizeof *gpus);
  if (gpus == NULL) return log_no_memory("the GPUs of this machine");
  ncclResult_t result = machine_open_with(ops, gpus, &machine);
  os_free(gpus);
  TRY(result);
  result = rails_machine_add(&machine, net, net_count);
  if (result == ncclSuccess && *path != '\0') result = machine_describe(&machine, path);
  if (result == ncclSuccess) result = machine_topology(&machine, 1, topology);
  machine_close(&machine);
  return result;
}

/* ---- kept ---- */

/* What a description depends on. NVML and /sys are slow to read, and each communicator asks. */
struct kept {
  struct rails_machine machine;
  const struct net_ops *net;
  uint32_t net_count;
  uint64_t settings;
  struct kept *next;
};

static os_mutex kept_mutex = OS_MUTEX_INITIALIZER;
static struct kept *kept_first; /* guarded by the mutex; grows only */

static uint64_t settings_hash(void) {
  const uint64_t sysfs = hash_text(HASH_SEED, machine_sysfs());
  return hash_text(hash_mix(sysfs, 0), param_text(PARAM_TOPO_FILE));
}

static ncclResult_t kept_make(const struct backend *ops, struct kept *kept) {
  struct rails_machine *machine = &kept->machine;
  TRY(machine_read_now(ops, kept->net, kept->net_count, &machine->topology));
  machine->shape.words = shape_write(&machine->topology, &machine->shape.count);
  if (machine->shape.words != NULL) return ncclSuccess;
  topology_free(&machine->topology);
  return log_no_memory("the shape of this machine");
}

static ncclResult_t kept_find(const struct backend *ops, const struct net_ops *net, uint32_t net_count,
                              const struct rails_machine **machine) {
  const uint64_t settings = settings_hash();
  struct kept *kept = kept_first;
  while (kept != NULL && (kept->net != net || kept->net_count != net_count || kept->settings != settings))
    kept = kept->next;
  if (kept == NULL) {
    kept = (struct kept *)os_alloc(sizeof *kept);
    if (kept == NULL) return log_no_memory("the description of this machine");
    *kept = (struct kept){.net = net, .net_count = net_count, .settings = settings, .next = kept_first};
    const ncclResult_t result = kept_make(ops, kept);
    if (result != ncclSuccess) os_free(kept);
    TRY(result);
    kept_first = kept;
  }
  *machine = &kept->machine;
  return ncclSuccess;
}

ncclResult_t rails_machine_find(const struct backend *ops, const struct net_ops *net, uint32_t net_count,
                                const struct rails_machine **machine) {
  os_mutex_lock(&kept_mutex);
  const ncclResult_t result = kept_find(ops, net, net_count, machine);
  os_mutex_unlock(&kept_mutex);
  return result;
}

uint32_t rails_machine_gpu(const struct topology *topology, uint64_t pci_id) {
  for (uint32_t gpu = 0; gpu < topology->gpu_count && pci_id != 0; gpu++) {
    const struct topology_device *device = &topology->devices[topology->gpus[gpu]];
    if (hash_text(HASH_SEED, topology->devices[device->parent].name) == pci_id) return gpu;
  }
  return TOPOLOGY_NONE;
}
