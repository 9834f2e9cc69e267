/* region.c: the registered memory of a connection, in whole pages, once for each port. A region is kept until
 * its last user returns it, and memory within an existing region is not registered again. */
#include <errno.h>
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/log.h"
#include "base/param.h"

#define PAGE_BYTES 4096u

static void region_free(struct ib_end *end, struct ib_region *region) {
  for (uint32_t i = 0; i < end->device->port_count; i++)
    if (region->memory[i] != NULL) end->verbs->memory_unregister(region->memory[i]);
  os_free(region);
}

/* A flush reads device memory. */
static struct ibv_mr *port_register(const struct verbs *verbs, struct ibv_pd *pd,
                                    const struct ib_dmabuf *dmabuf, const struct ib_region *region) {
  const int access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | (region->device ? IBV_ACCESS_REMOTE_READ : 0);
  const size_t bytes = region->end - region->begin;
  if (dmabuf != NULL)
    return verbs->dmabuf_register(pd, dmabuf->offset, bytes, region->begin, dmabuf->descriptor, access);
  return verbs->memory_register(pd, (void *)region->begin, bytes, access,
                                param_int(PARAM_IB_PCI_RELAXED_ORDERING) != 0);
}

static ncclResult_t region_register(struct ib_end *end, const struct ib_dmabuf *dmabuf,
                                    struct ib_region *region) {
  const size_t bytes = region->end - region->begin;
  for (uint32_t i = 0; i < end->device->port_count; i++) {
    region->memory[i] = port_register(end->verbs, end->outlets[i].pd, dmabuf, region);
    if (region->memory[i] == NULL)
      return ib_fail(end, ncclSystemError, "%zu bytes of %s memory cannot be registered (%s)%s", bytes,
                     region->device ? "device" : "host", strerror(errno),
                     region->device ? ": TUTTI_NET_DEVICE_SLOTS=0 leaves it to the host's"
                                    : ": `ulimit -l` limits how much may be locked");
  }
  return region->device && end->kind == IB_RECEIVE ? ib_qps_loop(end) : ncclSuccess;
}

/* The region's pages; returns what lies before the data. */
static size_t pages_fill(void *data, size_t bytes, struct ib_region *region) {
  const uintptr_t rest = (uintptr_t)data + (bytes > 0 ? bytes : 1) + PAGE_BYTES - 1;
  region->begin = (uintptr_t)data & ~(uintptr_t)(PAGE_BYTES - 1);
  region->end = rest & ~(uintptr_t)(PAGE_BYTES - 1);
  return (uintptr_t)data - region->begin;
}

ncclResult_t ib_region_take(struct ib_end *end, const struct ib_dmabuf *dmabuf, void *data, size_t bytes,
                            enum net_memory kind, void **registration) {
  struct ib_region pages = {0};
  const size_t before = pages_fill(data, bytes, &pages);
  const bool by_address = dmabuf == NULL && kind == NET_MEMORY_CUDA;
  if (by_address && !end->verbs->peer_memory())
    return log_fail(ncclInvalidArgument,
                    "Network IB: memory of GPUs goes through the host's: the kernel has no nvidia_peermem");
  for (struct ib_region *region = end->regions; region != NULL; region = region->next) {
    if (pages.begin < region->begin || pages.end > region->end) continue;
    region->uses++;
    *registration = region;
    return ncclSuccess;
  }
  struct ib_region *region = (struct ib_region *)os_alloc(sizeof *region);
  if (region == NULL) return ib_fail(end, ncclSystemError, "a registration" LOG_OUT_OF_MEMORY);
  *region = pages;
  region->uses = 1;
  region->device = kind == NET_MEMORY_CUDA;
  struct ib_dmabuf whole = {-1, 0};
  if (dmabuf != NULL) whole = (struct ib_dmabuf){dmabuf->descriptor, dmabuf->offset - before};
  const ncclResult_t result = region_register(end, dmabuf != NULL ? &whole : NULL, region);
  if (result != ncclSuccess) {
    region_free(end, region);
    end->failed = ncclSuccess;
    return result;
  }
  region->next = end->regions;
  end->regions = region;
  *registration = region;
  return ncclSuccess;
}

ncclResult_t ib_region_give(struct ib_end *end, void *registration) {
  struct ib_region *region = (struct ib_region *)registration;
  if (--region->uses > 0) return ncclSuccess;
  struct ib_region **link = &end->regions;
  while (*link != region) link = &(*link)->next;
  *link = region->next;
  region_free(end, region);
  return ncclSuccess;
}

int ib_device_trial(uint32_t index, void *data, size_t bytes, int descriptor, uint64_t offset) {
  const struct ib_device *device = ib_device_of(index);
  struct ib_region region = {.device = true};
  const struct ib_dmabuf dmabuf = {descriptor, offset - pages_fill(data, bytes, &region)};
  int error = device == NULL ? ENODEV : 0;
  for (uint32_t i = 0; error == 0 && i < device->port_count; i++) {
    const struct ib_context *of = device->ports[i].of;
    struct ibv_pd *pd = of->verbs->pd_alloc(of->context);
    errno = EIO; /* of a library that gives no reason */
    struct ibv_mr *memory =
        pd != NULL ? port_register(of->verbs, pd, descriptor >= 0 ? &dmabuf : NULL, &region) : NULL;
    if (memory == NULL) error = errno;
    else of->verbs->memory_unregister(memory);
    if (pd != NULL) of->verbs->pd_free(pd);
  }
  return error;
}

void ib_regions_free(struct ib_end *end) {
  while (end->regions != NULL) {
    struct ib_region *region = end->regions;
    end->regions = region->next;
    region_free(end, region);
  }
}
