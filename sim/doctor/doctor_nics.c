/* doctor_nics.c: the doctor's check of GPUDirect RDMA: which NICs would read and write the memory of which
 * GPUs, and why others would not. The devices are asked in a process of its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backends/net.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/topology/layout.h"
#include "core/topology/machine.h"
#include "core/topology/rails.h"
#include "core/topology/rails_machine.h"
#include "doctor/doctor.h"
#include "verb.h"

/* ---- in the child */

enum { RDMA = 116, DMABUF = 124, DMABUF_DESCRIPTOR = 1, TRIAL_BYTES = 2 << 20 };
enum { GIVES_NO_DMABUF = -1, NOT_TRIED = -2 }; /* else 0, or an errno */

/* By the names and numbers of the driver's public interface. */
struct driver {
  int (*init)(unsigned), (*get)(int *, int), (*attribute)(int *, int, int), (*retain)(void **, int);
  int (*enter)(void *), (*alloc)(unsigned long long *, size_t), (*free)(unsigned long long);
  int (*range)(int *, unsigned long long, size_t, int, unsigned long long);
};

static bool driver_fill(struct driver *driver) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return false;
  *(void **)&driver->init = dlsym(library, "cuInit");
  *(void **)&driver->get = dlsym(library, "cuDeviceGet");
  *(void **)&driver->attribute = dlsym(library, "cuDeviceGetAttribute");
  *(void **)&driver->retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&driver->enter = dlsym(library, "cuCtxSetCurrent");
  *(void **)&driver->alloc = dlsym(library, "cuMemAlloc_v2");
  *(void **)&driver->free = dlsym(library, "cuMemFree_v2");
  *(void **)&driver->range = dlsym(library, "cuMemGetHandleForAddressRange");
  return driver->init && driver->get && driver->attribute && driver->retain && driver->enter &&
         driver->alloc && driver->free && driver->init(0) == 0;
}

/* Registers memory of a GPU in the ways that core/proxy/proxy_device.c tries, in its order. */
static int memory_try(const struct driver *driver, int device, unsigned long long memory, uint32_t net,
                      const struct net_properties *properties) {
  const struct net_ops *ops = ibv_net_ops();
  void *data = (void *)(uintptr_t)memory;
  int result = GIVES_NO_DMABUF, descriptor = -1, able = 0;
  if (properties->memory_dmabuf && driver->range && driver->attribute(&able, DMABUF, device) == 0 && able &&
      driver->range(&descriptor, memory, TRIAL_BYTES, DMABUF_DESCRIPTOR, 0) == 0) {
    result = ops->device_trial(net, data, TRIAL_BYTES, descriptor, 0);
    os_descriptor_close(descriptor);
  }
  if (result != 0 && properties->memory_cuda && driver->attribute(&able, RDMA, device) == 0 && able)
    result = ops->device_trial(net, data, TRIAL_BYTES, -1, 0);
  return result;
}

static int pair_try(int gpu, uint32_t net, const struct net_properties *properties) {
  static struct driver driver;
  static int loaded; /* 1: yes, -1: no */
  unsigned long long memory = 0;
  void *context = NULL;
  int device = 0;
  if (loaded == 0) loaded = driver_fill(&driver) ? 1 : -1;
  if (loaded < 0 || driver.get(&device, gpu) != 0 || driver.retain(&context, device) != 0 ||
      driver.enter(context) != 0 || driver.alloc(&memory, TRIAL_BYTES) != 0)
    return NOT_TRIED;
  const int result = memory_try(&driver, device, memory, net, properties);
  driver.free(memory);
  return result;
}

static void pair_say(const struct paths *paths, uint32_t gpu, uint32_t net) {
  const struct topology *topology = paths->topology;
  const struct paths_route *route = &paths->net_gpu[gpu * paths->net_count + net];
  struct net_properties properties;
  if (ibv_net_ops()->properties(net, &properties) != ncclSuccess) return;
  if (param_int(PARAM_DMABUF_ENABLE) == 0) properties.memory_dmabuf = false;
  const int number = topology->devices[topology->gpus[gpu]].number;
  const bool near = route->type <= rails_gdr_level();
  const bool tries = near && param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) < 0;
  printf("pair %d %.63s %s %d %d %d %d\n", number, properties.name, paths_type_name(route->type), near,
         properties.memory_dmabuf, properties.memory_cuda,
         tries ? pair_try(number, net, &properties) : NOT_TRIED);
}

static ncclResult_t machine_find(uint32_t net_count, struct topology *topology) {
  struct machine machine;
  const char *file = param_text(PARAM_TOPO_FILE);
  TRY(machine_open(machine_sysfs(), NULL, &machine));
  ncclResult_t result = rails_machine_add(&machine, ibv_net_ops(), net_count);
  if (result == ncclSuccess && *file != '\0') result = machine_describe(&machine, file);
  if (result == ncclSuccess) result = machine_topology(&machine, 1, topology);
  machine_close(&machine);
  return result;
}

int doctor_probe_nics(void) {
  const struct paths_rules rules = layout_rules();
  struct topology topology;
  struct paths paths;
  uint32_t net_count = 0;
  if (ibv_net_ops()->devices(&net_count) != ncclSuccess || net_count == 0) return EXIT_GOOD;
  if (machine_find(net_count, &topology) != ncclSuccess || topology.net_count != net_count ||
      paths_find(&topology, &rules, &paths) != ncclSuccess)
    return EXIT_WRONG;
  for (uint32_t gpu = 0; gpu < paths.gpu_count; gpu++)
    for (uint32_t turn = 0; turn < net_count; turn++)
      pair_say(&paths, gpu, paths_net_near(&paths, gpu, turn));
  paths_free(&paths);
  topology_free(&topology);
  return EXIT_GOOD;
}

/* ---- the report */

/* What the driver says of a GPU: whether there are DMA-BUFs of its memory, and GPUDirect RDMA at all. */
static void gpu_find(const char *gpus, int gpu, int *dmabuf, int *address) {
  char word[32], text[32];
  snprintf(word, sizeof word, "rdma %d", gpu);
  *dmabuf = *address = 0;
  if (doctor_answer_find(gpus, word, text, sizeof text)) sscanf(text, "%d %d", dmabuf, address);
}

static void pair_report(struct doctor *doctor, const char *gpus, const char *line) {
  char nic[64], path[16];
  int gpu = 0, near = 0, dmabuf = 0, address = 0, gpu_dmabuf = 0, gpu_address = 0, trial = NOT_TRIED;
  if (sscanf(line, "pair %d %63s %15s %d %d %d %d", &gpu, nic, path, &near, &dmabuf, &address, &trial) != 7)
    return;
  gpu_find(gpus, gpu, &gpu_dmabuf, &gpu_address);
  const bool by_dmabuf = dmabuf && gpu_dmabuf, possible = by_dmabuf || (address && gpu_address);
  if (param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) == 0)
    doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL,
               "GPU %d and NIC %s, path %s: no GPUDirect RDMA: TUTTI_NET_DEVICE_SLOTS=0", gpu, nic, path);
  else if (!possible)
    doctor_add(doctor, DOCTOR_NOTE, "gpu",
               "use the open kernel modules and Linux 5.12 or later, or load nvidia_peermem",
               "GPU %d and NIC %s, path %s: no GPUDirect RDMA: neither do both offer DMA-BUF, nor has the "
               "kernel nvidia_peermem",
               gpu, nic, path);
  else if (!near)
    doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL,
               "GPU %d and NIC %s, path %s: no GPUDirect RDMA: NCCL_NET_GDR_LEVEL allows paths up to %s", gpu,
               nic, path, paths_type_name(rails_gdr_level()));
  else if (trial != 0 && trial != NOT_TRIED)
    doctor_add(doctor, DOCTOR_NOTE, "gpu", "see what the kernel's log says of it (dmesg)",
               "GPU %d and NIC %s, path %s: no GPUDirect RDMA: %s%s", gpu, nic, path,
               trial > 0 ? "the NIC refuses the GPU's memory: " : "the driver gives no DMA-BUF of its memory",
               trial > 0 ? strerror(trial) : "");
  else
    doctor_add(doctor, DOCTOR_GOOD, "gpu", NULL, "GPU %d and NIC %s, path %s: GPUDirect RDMA by %s", gpu, nic,
               path, by_dmabuf ? "DMA-BUF" : "nvidia_peermem");
}

void doctor_nics(struct doctor *doctor, const char *gpus) {
  char *answer = (char *)os_alloc(DOCTOR_ANSWER);
  if (!answer) {
    doctor->out_of_memory = true;
    return;
  }
  if (doctor_ask_probe("nics", answer) != EXIT_GOOD)
    doctor_add(doctor, DOCTOR_NOTE, "gpu", NULL,
               "the NICs and their places beside GPUs cannot be found: GPUDirect RDMA is not examined");
  for (const char *line = answer; *line;) {
    pair_report(doctor, gpus, line);
    line += strcspn(line, "\n");
    line += *line == '\n';
  }
  os_free(answer);
}
