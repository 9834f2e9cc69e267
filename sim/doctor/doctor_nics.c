/* doctor_nics.c: the doctor's check of GPUDirect RDMA: which NICs would read and write the memory of which
 * GPUs, and why others would not. The devices are asked in a process of its own. */
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

static void pair_say(const struct paths *paths, uint32_t gpu, uint32_t net) {
  const struct topology *topology = paths->topology;
  const struct paths_route *route = &paths->net_gpu[gpu * paths->net_count + net];
  struct net_properties properties;
  if (ibv_net_ops()->properties(net, &properties) != ncclSuccess) return;
  printf("pair %d %.63s %s %d %d %d\n", topology->devices[topology->gpus[gpu]].number, properties.name,
         paths_type_name(route->type), route->type <= rails_gdr_level(), properties.memory_dmabuf,
         properties.memory_cuda);
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
  int gpu = 0, near = 0, dmabuf = 0, address = 0, gpu_dmabuf = 0, gpu_address = 0;
  if (sscanf(line, "pair %d %63s %15s %d %d %d", &gpu, nic, path, &near, &dmabuf, &address) != 6) return;
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
