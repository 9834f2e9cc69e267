/* verbs.c: loads libibverbs with dlopen, so that the library does not depend on it. The header's inline
 * functions (polling, posting) call the driver directly; the others are looked up by name. */
#include "backends/ibv/verbs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "base/param.h"

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

/* Pointers by symbol name; the last ones are optional. */
static struct {
  struct ibv_device **(*get_device_list)(int *);
  void (*free_device_list)(struct ibv_device **);
  struct ibv_context *(*open_device)(struct ibv_device *);
  int (*close_device)(struct ibv_context *);
  int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
  int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
  int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
  struct ibv_pd *(*alloc_pd)(struct ibv_context *);
  int (*dealloc_pd)(struct ibv_pd *);
  struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
  int (*dereg_mr)(struct ibv_mr *);
  struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
  int (*destroy_cq)(struct ibv_cq *);
  struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
  int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
  int (*destroy_qp)(struct ibv_qp *);
  int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
  void (*ack_async_event)(struct ibv_async_event *);
  struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned);
  int (*query_ece)(struct ibv_qp *, struct ibv_ece *);
  int (*set_ece)(struct ibv_qp *, struct ibv_ece *);
  struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
} library;

static const struct {
  const char *name;
  void *place; /* of a pointer to a function */
} functions[] = {
    {"ibv_get_device_list", &library.get_device_list},
    {"ibv_free_device_list", &library.free_device_list},
    {"ibv_open_device", &library.open_device},
    {"ibv_close_device", &library.close_device},
    {"ibv_query_device", &library.query_device},
    {"ibv_query_port", &library.query_port},
    {"ibv_query_gid", &library.query_gid},
    {"ibv_alloc_pd", &library.alloc_pd},
    {"ibv_dealloc_pd", &library.dealloc_pd},
    {"ibv_reg_mr", &library.reg_mr},
    {"ibv_dereg_mr", &library.dereg_mr},
    {"ibv_create_cq", &library.create_cq},
    {"ibv_destroy_cq", &library.destroy_cq},
    {"ibv_create_qp", &library.create_qp},
    {"ibv_modify_qp", &library.modify_qp},
    {"ibv_destroy_qp", &library.destroy_qp},
    {"ibv_get_async_event", &library.get_async_event},
    {"ibv_ack_async_event", &library.ack_async_event},
    {"ibv_reg_mr_iova2", &library.reg_mr_iova2},
    {"ibv_reg_dmabuf_mr", &library.reg_dmabuf_mr},
    {"ibv_query_ece", &library.query_ece},
    {"ibv_set_ece", &library.set_ece},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0], REQUIRED = FUNCTIONS - 4 };

static void path_of(struct ibv_device *device, char *out, size_t out_bytes) {
  char link[IBV_SYSFS_PATH_MAX + 16], path[PATH_MAX];
  snprintf(link, sizeof link, "%s/device", device->ibdev_path);
  const bool found = realpath(link, path) != NULL && strlen(path) < out_bytes;
  if (found) memcpy(out, path, strlen(path) + 1);
  else out[0] = '\0';
}

static struct ibv_context *context_open(struct ibv_device *device) {
  struct ibv_context *context = library.open_device(device);
  if (context == NULL) return NULL;
  const int flags = fcntl(context->async_fd, F_GETFL);
  if (flags >= 0 && fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) == 0) return context;
  library.close_device(context);
  return NULL;
}

/* The exported function fills only the members of its first version, and no others are used here. */
static int port_query(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes) {
  memset(attributes, 0, sizeof *attributes);
  return library.query_port(context, port, attributes);
}

static enum gid_kind gid_kind(struct ibv_context *context, uint8_t port, int index) {
  char path[IBV_SYSFS_PATH_MAX + 64];
  snprintf(path, sizeof path, "%s/ports/%d/gid_attrs/types/%d", context->device->ibdev_path, port, index);
  char *text = os_file_read_most(path, 256, NULL);
  if (text == NULL) return GID_NONE;
  const enum gid_kind kind = strncmp(text, "RoCE v2", 7) == 0 ? GID_ROCE2 : GID_ROCE1;
  os_free(text);
  return kind;
}

static struct ibv_mr *memory_register(struct ibv_pd *pd, void *data, size_t bytes, int access, bool relaxed) {
  if (relaxed && library.reg_mr_iova2 != NULL)
    return library.reg_mr_iova2(pd, data, bytes, (uintptr_t)data,
                                (unsigned)access | IBV_ACCESS_RELAXED_ORDERING);
  return library.reg_mr(pd, data, bytes, access);
}

/* The module of the driver, or those that were installed beside older ones. */
static bool peer_memory(void) {
  static const char *const signs[] = {"module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem/version",
                                      "kernel/mm/memory_peers/nv_mem_nc/version"};
  const char *sysfs = param_text(PARAM_TUTTI_SYSFS);
  char path[PATH_MAX];
  bool found = false;
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", sysfs[0] != '\0' ? sysfs : "/sys", signs[i]);
    found = found || access(path, F_OK) == 0;
  }
  return found;
}

static struct ibv_cq *cq_create(struct ibv_context *context, int depth) {
  return library.create_cq(context, depth, NULL, NULL, 0);
}

static const struct verbs *library_table(void) {
  static struct verbs table;
  table = (struct verbs){
      .device_list = library.get_device_list,
      .device_list_free = library.free_device_list,
      .device_path = path_of,
      .context_open = context_open,
      .context_close = library.close_device,
      .device_query = library.query_device,
      .port_query = port_query,
      .gid_query = library.query_gid,
      .gid_kind = gid_kind,
      .pd_alloc = library.alloc_pd,
      .pd_free = library.dealloc_pd,
      .memory_register = memory_register,
      .memory_unregister = library.dereg_mr,
      .dmabuf_register = library.reg_dmabuf_mr,
      .peer_memory = peer_memory,
      .cq_create = cq_create,
      .cq_destroy = library.destroy_cq,
      .cq_poll = ibv_poll_cq,
      .qp_create = library.create_qp,
      .qp_modify = library.modify_qp,
      .qp_destroy = library.destroy_qp,
      .options_query = library.query_ece,
      .options_set = library.set_ece,
      .send_post = ibv_post_send,
      .receive_post = ibv_post_recv,
      .event_get = library.get_async_event,
      .event_ack = library.ack_async_event,
  };
  return &table;
}

static const struct verbs *replacement;

void verbs_replace(const struct verbs *verbs) { replacement = verbs; }

const struct verbs *verbs_load(char *reason, size_t reason_bytes) {
  if (replacement != NULL) return replacement;
  void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == NULL) {
    snprintf(reason, reason_bytes, "libibverbs.so.1 cannot be loaded (%s)", dlerror());
    return NULL;
  }
  for (int i = 0; i < FUNCTIONS; i++) {
    void *function = dlsym(handle, functions[i].name);
    if (function == NULL && i < REQUIRED) {
      snprintf(reason, reason_bytes, "libibverbs.so.1 is too old: it has no %s", functions[i].name);
      return NULL;
    }
    memcpy(functions[i].place, &function, sizeof function);
  }
  return library_table();
}
