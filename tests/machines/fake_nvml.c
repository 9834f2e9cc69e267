/* fake_nvml.c: a libnvidia-ml.so.1 of two GPUs, which lib/base/nvml.c asks: two NVLinks of each lead to a
 * switch, one to the other GPU, and one is down. Only the first has links to its CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 2, LINKS = 4, NOT_FOUND = 6 };

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

#ifndef BUS_IDS /* of the two GPUs and of the switch */
#define BUS_IDS "00000000:13:00.0", "00000000:77:00.0", "00000000:C1:00.0"
#endif
static const char *const names[] = {BUS_IDS};
static int handles[GPUS];

static unsigned index_of(const int *handle) { return (unsigned)(handle - handles); }

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = GPUS;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **device) {
  if (index >= GPUS) return NOT_FOUND;
  *device = &handles[index];
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, int **device) {
  for (unsigned i = 0; i < GPUS; i++)
    if (strcmp(bus_id, names[i]) == 0 || strcmp(bus_id, names[i] + 4) == 0)
      return nvmlDeviceGetHandleByIndex_v2(i, device);
  return NOT_FOUND;
}

int nvmlDeviceGetPciInfo_v3(const int *device, struct pci_info *info) {
  snprintf(info->bus_id, sizeof info->bus_id, "%s", names[index_of(device)]);
  return 0;
}

int nvmlDeviceGetNvLinkState(const int *device, unsigned link, unsigned *active) {
  (void)device;
  *active = link != 1;
  return link < LINKS ? 0 : NOT_FOUND;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(const int *device, unsigned link, struct pci_info *remote) {
  snprintf(remote->bus_id, sizeof remote->bus_id, "%s", link == 0 ? names[!index_of(device)] : names[GPUS]);
  return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(const int *device, unsigned link, unsigned *type) {
  (void)device;
  *type = link == 0 ? 0 : 2;
  return 0;
}

/* FAKE_NVML_P2P=STATUS: of reading and writing between the two; 0 is good, 4 disabled. */
int nvmlDeviceGetP2PStatus(const int *a, const int *b, unsigned kind, unsigned *status) {
  const char *text = getenv("FAKE_NVML_P2P");
  *status = text != NULL && a != b && kind < 2 ? (unsigned)atoi(text) : 0;
  return 0;
}

int nvmlDeviceGetCudaComputeCapability(const int *device, int *major, int *minor) {
  *major = 8 + (int)index_of(device);
  *minor = 0;
  return 0;
}

int nvmlDeviceGetFieldValues(const int *device, int count, struct field_value *values) {
  for (int i = 0; i < count; i++) {
    const int has = index_of(device) == 0 && (values[i].field == 170 || values[i].field == 172);
    values[i].result = has ? 0 : NOT_FOUND;
    values[i].value = values[i].field == 170 ? 5 : 44712;
  }
  return 0;
}
