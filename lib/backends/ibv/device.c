/* device.c: finds the ports, selects those that the settings allow, and merges ports of one NIC into one
 * device. The log says why a port is left out. Devices stay open until ib_finish(). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

static struct {
  os_mutex mutex;
  const struct verbs *verbs;
  uint32_t count, context_count;
  struct ib_device *devices[IB_DEVICES_MAX];
  struct ib_context *contexts[IB_DEVICES_MAX];
} all = {.mutex = OS_MUTEX_INITIALIZER};

bool ib_list_allows(const char *list, const char *name, uint8_t port) {
  const bool inverts = *list == '^';
  list += inverts;
  const bool whole = *list == '=';
  list += whole;
  if (*list == '\0') return true;
  for (const char *entry = list; entry != NULL;) {
    const char *end = strchr(entry, ',');
    const size_t length = end != NULL ? (size_t)(end - entry) : strlen(entry);
    const char *colon = (const char *)memchr(entry, ':', length);
    const size_t name_length = colon != NULL ? (size_t)(colon - entry) : length;
    const bool named = strncmp(entry, name, name_length) == 0 && (!whole || name[name_length] == '\0');
    if (length > 0 && named && (colon == NULL || strtol(colon + 1, NULL, 10) == port)) return !inverts;
    entry = end != NULL ? end + 1 : NULL;
  }
  return inverts;
}

/* The active speed of one lane times the active width. */
static uint32_t port_speed_mbps(const struct ibv_port_attr *attributes) {
  static const struct {
    uint32_t code, mbps;
  } speeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
                {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}},
    widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  uint32_t mbps = 10000, lanes = 1;
  for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++)
    if (speeds[i].code == attributes->active_speed) mbps = speeds[i].mbps;
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
    if (widths[i].code == attributes->active_width) lanes = widths[i].mbps;
  return mbps * lanes;
}

static ncclResult_t port_gid(struct ib_port *port) {
  static struct gid_entry entries[GID_ENTRIES_MAX]; /* under the mutex */
  const struct verbs *verbs = port->of->verbs;
  const union ibv_gid none = {{0}};
  struct gid_wishes wishes;
  TRY(gid_wishes_read(&wishes));
  const int table = port->attributes.gid_tbl_len, count = table < GID_ENTRIES_MAX ? table : GID_ENTRIES_MAX;
  for (int i = 0; i < count; i++) {
    const bool read = verbs->gid_query(port->of->context, port->number, i, &entries[i].gid) == 0;
    const bool filled = read && memcmp(&entries[i].gid, &none, sizeof none) != 0;
    entries[i].kind = !filled          ? GID_NONE
                      : port->ethernet ? verbs->gid_kind(port->of->context, port->number, i)
                                       : GID_INFINIBAND;
  }
  port->gid_index = gid_choose(entries, count, port->ethernet, &wishes, port->why);
  if (port->gid_index >= 0) port->gid = entries[port->gid_index].gid;
  return ncclSuccess;
}

/* False if the port cannot be used; the log says why. */
static bool port_fill(struct ib_context *of, uint8_t number, struct ib_port *port) {
  const char *list = param_text(PARAM_IB_HCA);
  memset(port, 0, sizeof *port);
  port->of = of;
  port->number = number;
  if (!ib_list_allows(list, of->name, number)) {
    log_info(LOG_NET, "Network IB: %s:%u is left out: NCCL_IB_HCA is %s", of->name, number, list);
    return false;
  }
  if (of->verbs->port_query(of->context, number, &port->attributes) != 0) {
    log_info(LOG_NET, "Network IB: %s:%u is left out: it cannot be asked", of->name, number);
    return false;
  }
  if (port->attributes.state != IBV_PORT_ACTIVE) {
    log_info(LOG_NET, "Network IB: %s:%u is left out: it is not active; see its cable, and `ibv_devinfo`",
             of->name, number);
    return false;
  }
  port->ethernet = port->attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port->speed_mbps = port_speed_mbps(&port->attributes);
  if (port_gid(port) != ncclSuccess) return false;
  if (port->gid_index < 0)
    log_info(LOG_NET, "Network IB: %s:%u is left out: %s", of->name, number, port->why);
  return port->gid_index >= 0;
}

/* PCI functions of one NIC have the same path up to its last dot. */
static bool path_is_same_nic(const char *a, const char *b) {
  const char *end = strrchr(a, '.');
  const size_t length = end != NULL ? (size_t)(end - a) : strlen(a);
  return a[0] != '\0' && strncmp(a, b, length) == 0 && strchr(b + length, '/') == NULL;
}

/* NCCL_NET_FORCE_MERGE: lists of devices, separated by semicolons. */
static bool ports_are_forced(const struct ib_port *a, const struct ib_port *b) {
  char list[512] = "=";
  for (const char *at = param_text(PARAM_NET_FORCE_MERGE); *at != '\0';) {
    const size_t length = strcspn(at, ";");
    snprintf(list + 1, sizeof list - 1, "%.*s", (int)length, at);
    if (length > 0 && ib_list_allows(list, a->of->name, a->number) &&
        ib_list_allows(list, b->of->name, b->number))
      return true;
    at += length + (at[length] == ';');
  }
  return false;
}

static bool device_merges(const struct ib_device *device, const char *path, const struct ib_port *port) {
  const struct ib_port *first = &device->ports[0];
  if (device->port_count == IB_PORTS_MAX || first->ethernet != port->ethernet) return false;
  if (ports_are_forced(first, port)) return true;
  return param_int(PARAM_IB_MERGE_NICS) != 0 && first->speed_mbps == port->speed_mbps &&
         path_is_same_nic(device->path, path);
}

static void port_add(const struct ib_port *port, const char *path) {
  struct ib_device *device = NULL;
  for (uint32_t i = 0; i < all.count && device == NULL; i++)
    if (device_merges(all.devices[i], path, port)) device = all.devices[i];
  if (device == NULL && all.count == IB_DEVICES_MAX) return;
  if (device == NULL) {
    device = (struct ib_device *)os_alloc(sizeof *device);
    if (device == NULL) return;
    all.devices[all.count++] = device;
    snprintf(device->path, sizeof device->path, "%s", path);
  }
  const size_t used = strlen(device->name);
  snprintf(device->name + used, sizeof device->name - used, "%s%s:%u", used > 0 ? "+" : "", port->of->name,
           port->number);
  device->ports[device->port_count++] = *port;
}

static void context_add(struct ibv_device *device) {
  struct ib_context *context = (struct ib_context *)os_alloc(sizeof *context);
  char path[sizeof all.devices[0]->path];
  struct ib_port port;
  if (context == NULL) return;
  snprintf(context->name, sizeof context->name, "%s", device->name);
  context->verbs = all.verbs;
  context->context = all.verbs->context_open(device);
  if (context->context == NULL || all.verbs->device_query(context->context, &context->attributes) != 0) {
    log_info(LOG_NET, "Network IB: %s is left out: it cannot be opened; see who may write to /dev/infiniband",
             context->name);
    if (context->context != NULL) all.verbs->context_close(context->context);
    os_free(context);
    return;
  }
  os_mutex_init(&context->events_mutex);
  all.contexts[all.context_count++] = context;
  all.verbs->device_path(device, path, sizeof path);
  for (uint8_t number = 1; number <= context->attributes.phys_port_cnt; number++)
    if (port_fill(context, number, &port)) port_add(&port, path);
}

static void device_log(uint32_t index) {
  const struct ib_device *device = all.devices[index];
  for (uint32_t i = 0; i < device->port_count; i++) {
    const struct ib_port *port = &device->ports[i];
    log_info(LOG_INIT | LOG_NET, "Network IB: device %u is %s, port %u of %s: %s, %u Gbit/s, %s", index,
             device->name, port->number, port->of->name, port->ethernet ? "RoCE" : "InfiniBand",
             port->speed_mbps / 1000, port->why);
  }
}

static ncclResult_t devices_find(void) {
  char reason[256];
  if (param_int(PARAM_IB_DISABLE) != 0) {
    log_info(LOG_NET, "Network IB is left out: NCCL_IB_DISABLE is set");
    return ncclSuccess;
  }
  all.verbs = verbs_load(reason, sizeof reason);
  if (all.verbs == NULL) {
    log_info(LOG_NET, "Network IB is left out: %s", reason);
    return ncclSuccess;
  }
  int count = 0;
  struct ibv_device **list = all.verbs->device_list(&count);
  for (int i = 0; list != NULL && i < count && all.context_count < IB_DEVICES_MAX; i++) context_add(list[i]);
  if (list != NULL) all.verbs->device_list_free(list);
  for (uint32_t i = 0; i < all.count; i++) device_log(i);
  return ncclSuccess;
}

ncclResult_t ib_devices(uint32_t *count) {
  os_mutex_lock(&all.mutex);
  const ncclResult_t result = all.context_count > 0 ? ncclSuccess : devices_find();
  if (result == ncclSuccess) *count = all.count;
  os_mutex_unlock(&all.mutex);
  return result;
}

const struct ib_device *ib_device_of(uint32_t device) {
  if (device < all.count) return all.devices[device];
  log_warn("Network IB: there is no device %u: there are %u", device, all.count);
  return NULL;
}

/* Registers an invalid descriptor: a kernel that supports DMA-BUF says that the descriptor is bad. */
static bool port_takes_dmabuf(const struct ib_port *port) {
  const struct verbs *verbs = port->of->verbs;
  struct ibv_pd *pd = verbs->dmabuf_register != NULL ? verbs->pd_alloc(port->of->context) : NULL;
  if (pd == NULL) return false;
  errno = 0;
  struct ibv_mr *none = verbs->dmabuf_register(pd, 0, 0, 0, -1, 0);
  const int error = errno;
  if (none != NULL) verbs->memory_unregister(none);
  verbs->pd_free(pd);
  return error != EOPNOTSUPP && error != EPROTONOSUPPORT;
}

ncclResult_t ib_properties(uint32_t index, struct net_properties *properties) {
  const struct ib_device *device = ib_device_of(index);
  struct net_properties own;
  if (device == NULL) return ncclInvalidArgument;
  memset(&own, 0, sizeof own);
  snprintf(own.name, sizeof own.name, "%s", device->name);
  snprintf(own.pci_path, sizeof own.pci_path, "%s", device->path);
  own.guid = device->ports[0].of->attributes.sys_image_guid;
  for (uint32_t i = 0; i < device->port_count; i++) own.speed_mbps += device->ports[i].speed_mbps;
  own.port = device->ports[0].number;
  own.latency_us = 1;
  own.max_comms = 131072;
  own.max_recvs = IB_GROUP_MAX;
  own.max_message_bytes = IB_MESSAGE_BYTES_MAX;
  own.rail = own.plane = -1;
  own.memory_cuda = device->ports[0].of->verbs->peer_memory();
  own.memory_dmabuf = port_takes_dmabuf(&device->ports[0]);
  *properties = own;
  return ncclSuccess;
}

ncclResult_t ib_finish(void) {
  os_mutex_lock(&all.mutex);
  for (uint32_t i = 0; i < all.context_count; i++) {
    all.verbs->context_close(all.contexts[i]->context);
    os_mutex_destroy(&all.contexts[i]->events_mutex);
    os_free(all.contexts[i]);
  }
  for (uint32_t i = 0; i < all.count; i++) os_free(all.devices[i]);
  all.count = all.context_count = 0;
  os_mutex_unlock(&all.mutex);
  return ncclSuccess;
}
