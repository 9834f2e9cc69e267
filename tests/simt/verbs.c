/* verbs.c (simt): a libibverbs.so.1 whose devices are emulated (../verbs_fake.h), for processes that stand
 * for hosts. SIMT_NICS=FILE:FIRST:COUNT: the processes that name FILE reach each other, and this one's
 * devices are COUNT of them from number FIRST on. Data written to memory of GPUs arrives there with the next
 * read of such memory; with SIMT_FLUSHES=none it never does, and with SIMT_FLUSHES=needless it arrives at
 * once and a read ends the program. SIMT_RDMA_LIMIT=N: this process's devices register memory of GPUs N
 * times; SIMT_RDMA_LIMIT=N:NAME: this device does. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "verbs_fake.h"

#undef ibv_query_port
#undef ibv_reg_mr

#define PAGE_BYTES 4096u
#define EXPORTED __attribute__((visibility("default")))

static void broken(const char *what) {
  fprintf(stderr, "simt: verbs: %s\n", what);
  abort();
}

static const struct verbs *table(void) { return fake_verbs(); }

/* What inline functions of the header call. */
static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *completions) {
  return table()->cq_poll(cq, most, completions);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad) {
  return table()->send_post(qp, request, bad);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad) {
  return table()->receive_post(qp, request, bad);
}

static char nics[160]; /* FILE of SIMT_NICS */

/* Beside FILE is what the kernel says of a device's GIDs. */
static void types_write(struct ibv_device *device) {
  static const char *const folders[] = {"", "/ports", "/ports/1", "/ports/1/gid_attrs",
                                        "/ports/1/gid_attrs/types"};
  char path[512];
  snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s.%s", nics, device->name);
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
    snprintf(path, sizeof path, "%s%s", device->ibdev_path, folders[i]);
    mkdir(path, 0700);
  }
  for (int index = 0; index < 3; index++) {
    snprintf(path, sizeof path, "%s/ports/1/gid_attrs/types/%d", device->ibdev_path, index);
    FILE *type = fopen(path, "we");
    if (type == NULL) broken("the types of GIDs cannot be written");
    fputs(index == 1 ? "IB/RoCE v1\n" : "RoCE v2\n", type);
    fclose(type);
  }
}

static void devices_open(void) {
  const char *text = getenv("SIMT_NICS"), *seed = getenv("SIMT_SEED"), *flushes = getenv("SIMT_FLUSHES");
  struct fake_verbs_options options = {.devices = 4, .ports = 1, .gpus = true};
  unsigned first = 0, count = 0;
  if (nics[0] != '\0' || text == NULL) return;
  if (sscanf(text, "%159[^:]:%u:%u", nics, &first, &count) != 3 || first + count > options.devices)
    broken("SIMT_NICS is FILE:FIRST:COUNT, of 4 devices");
  options.seed = seed != NULL ? strtoull(seed, NULL, 10) : 0;
  options.delay_most = options.seed % 9;
  options.reads_nothing = flushes != NULL && strcmp(flushes, "none") == 0;
  options.no_reads = flushes != NULL && strcmp(flushes, "needless") == 0;
  options.gpus = !options.no_reads;
  fake_verbs_share(nics, &options, first, count);
}

EXPORTED struct ibv_device **ibv_get_device_list(int *count) {
  static struct ibv_device *none[1];
  *count = 0;
  devices_open();
  return nics[0] != '\0' ? table()->device_list(count) : none;
}

EXPORTED void ibv_free_device_list(struct ibv_device **list) { (void)list; }

EXPORTED struct ibv_context *ibv_open_device(struct ibv_device *device) {
  types_write(device);
  struct ibv_context *context = table()->context_open(device);
  context->ops.poll_cq = poll_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->async_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return context;
}

EXPORTED int ibv_close_device(struct ibv_context *context) {
  close(context->async_fd);
  return table()->context_close(context);
}

EXPORTED int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
  return table()->device_query(context, attributes);
}

EXPORTED int ibv_query_port(struct ibv_context *context, uint8_t port,
                            struct _compat_ibv_port_attr *attributes) {
  return table()->port_query(context, port, (struct ibv_port_attr *)attributes);
}

EXPORTED int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  return table()->gid_query(context, port, index, gid);
}

EXPORTED struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) { return table()->pd_alloc(context); }

EXPORTED int ibv_dealloc_pd(struct ibv_pd *pd) { return table()->pd_free(pd); }

/* What the kernel has mapped at an address. */
struct place {
  unsigned long long begin, end, offset, inode;
  char name[32];
};

static bool place_find(uint64_t address, struct place *place) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "re");
  bool found = false;
  if (maps == NULL) broken("/proc/self/maps cannot be read");
  while (!found && fgets(line, sizeof line, maps) != NULL) {
    place->name[0] = '\0';
    found = sscanf(line, "%llx-%llx %*s %llx %*s %llu %31s", &place->begin, &place->end, &place->offset,
                   &place->inode, place->name) >= 4 &&
            address >= place->begin && address < place->end;
  }
  fclose(maps);
  return found;
}

/* False, with errno, if no more memory of GPUs is registered. */
static bool limit_allows(const struct ibv_pd *pd) {
  static int registered;
  const char *limit = getenv("SIMT_RDMA_LIMIT");
  const char *name = limit != NULL ? strchr(limit, ':') : NULL;
  errno = ENOMEM;
  if (limit == NULL || (name != NULL && strcmp(name + 1, pd->context->device->name) != 0)) return true;
  return __atomic_fetch_add(&registered, 1, __ATOMIC_RELAXED) < atoi(limit);
}

/* Memory of GPUs has a DMA-BUF, unless the kernel has nvidia_peermem. */
EXPORTED struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *data, size_t bytes, int access) {
  struct place place;
  const char *rdma = getenv("SIMT_RDMA");
  const bool peermem = rdma != NULL && (strcmp(rdma, "address") == 0 || strcmp(rdma, "closed") == 0);
  const bool of_gpu = place_find((uintptr_t)data, &place) && strncmp(place.name, "/memfd:simt", 11) == 0;
  errno = EFAULT;
  if (of_gpu && (!peermem || !limit_allows(pd))) return NULL;
  return table()->memory_register(pd, data, bytes, access, false);
}

EXPORTED struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *data, size_t bytes, uint64_t address,
                                         unsigned access) {
  if (address != (uintptr_t)data) broken("memory is registered at another address");
  return ibv_reg_mr(pd, data, bytes, (int)access);
}

EXPORTED int ibv_dereg_mr(struct ibv_mr *memory) { return table()->memory_unregister(memory); }

/* True if the descriptor's file is what is mapped at the address. Of a range of memory its descriptor's
 * position is the beginning of the range in the file (driver.cc). */
static bool is_memory_of(int descriptor, uint64_t offset, uint64_t address, size_t bytes) {
  struct stat status;
  struct place place;
  const off_t begin = lseek(descriptor, 0, SEEK_CUR);
  if (begin < 0 || fstat(descriptor, &status) != 0) broken("a DMA-BUF cannot be looked at");
  return place_find(address, &place) && address + bytes <= place.end && place.inode == status.st_ino &&
         (uint64_t)begin + offset == address - place.begin + place.offset;
}

EXPORTED struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address,
                                          int descriptor, int access) {
  errno = EBADF;
  if (fcntl(descriptor, F_GETFD) < 0) return NULL;
  if (offset % PAGE_BYTES != address % PAGE_BYTES) broken("a DMA-BUF's pages are not those of its memory");
  if (!is_memory_of(descriptor, offset, address, bytes)) broken("a DMA-BUF is of other memory");
  if (!limit_allows(pd)) return NULL;
  return table()->dmabuf_register(pd, offset, bytes, address, descriptor, access);
}

EXPORTED struct ibv_cq *ibv_create_cq(struct ibv_context *context, int depth, void *user,
                                      struct ibv_comp_channel *channel, int vector) {
  (void)user, (void)channel, (void)vector;
  return table()->cq_create(context, depth);
}

EXPORTED int ibv_destroy_cq(struct ibv_cq *cq) { return table()->cq_destroy(cq); }

EXPORTED struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
  return table()->qp_create(pd, attributes);
}

EXPORTED int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
  return table()->qp_modify(qp, attributes, mask);
}

EXPORTED int ibv_destroy_qp(struct ibv_qp *qp) { return table()->qp_destroy(qp); }

EXPORTED int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  return table()->event_get(context, event);
}

EXPORTED void ibv_ack_async_event(struct ibv_async_event *event) { table()->event_ack(event); }
