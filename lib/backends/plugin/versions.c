/* versions.c: makes a plugin's calls in the form of its version of the interface. Callers see the newest
 * form: bytes as size_t, and properties with what an older version does not tell at its default. */
#include <limits.h>
#include <string.h>

#include "backends/plugin/plugin.h"
#include "base/log.h"
#include "base/plugin_file.h"

/* There is no profiler: events are ignored. */
static ncclResult_t ignore_event(void **event, int type, void *parent, int64_t plugin, void *extra) {
  (void)event, (void)type, (void)parent, (void)plugin, (void)extra;
  return ncclSuccess;
}

static struct abi_config config_of(const struct net_peer *peer) {
  const struct abi_config config = {peer->traffic_class == 0 ? ABI_UNDEFINED
                                                             : (int)(peer->traffic_class - 1)};
  return config;
}

ncclResult_t plugin_call_init(const struct plugin *plugin, const struct net_peer *peer, void **context) {
  struct abi_config config = config_of(peer);
  *context = NULL;
  if (plugin->version < 10) return plugin->net->init.v6(plugin_file_log);
  if (plugin->version == 10) return plugin->net->init.v10(plugin_file_log, ignore_event);
  return plugin->net->init.v11(context, peer->comm_key, &config, plugin_file_log, ignore_event);
}

ncclResult_t plugin_call_listen(const struct plugin *plugin, void *context, int device, void *handle,
                                void **listener) {
  if (plugin->version <= 10) return plugin->net->listen.v10(device, handle, listener);
  return plugin->net->listen.v11(context, device, handle, listener);
}

ncclResult_t plugin_call_connect(const struct plugin *plugin, const struct net_peer *peer, void *context,
                                 int device, void *handle, void **sender) {
  struct abi_config config = config_of(peer);
  void *offload = NULL;
  if (plugin->version == 6) return plugin->net->connect.v6(device, handle, sender);
  if (plugin->version < 10) return plugin->net->connect.v7(device, handle, sender, &offload);
  if (plugin->version == 10) return plugin->net->connect.v10(device, &config, handle, sender, &offload);
  return plugin->net->connect.v11(context, device, handle, sender, &offload);
}

ncclResult_t plugin_call_accept(const struct plugin *plugin, void *listener, void **receiver) {
  void *offload = NULL;
  if (plugin->version == 6) return plugin->net->accept.v6(listener, receiver);
  return plugin->net->accept.v7(listener, receiver, &offload);
}

ncclResult_t plugin_call_register(const struct plugin *plugin, void *connection, void *data, size_t bytes,
                                  int memory, void **registration) {
  if (plugin->version >= 8)
    return plugin->net->register_memory.v8(connection, data, bytes, memory, registration);
  if (bytes > INT_MAX)
    return log_fail(
        ncclInvalidArgument,
        "network plugin '%s' (%s): version %d of the interface registers at most %d bytes at once, "
        "not %zu; use a newer release of the plugin",
        plugin->net->name, plugin->from, plugin->version, INT_MAX, bytes);
  return plugin->net->register_memory.v6(connection, data, (int)bytes, memory, registration);
}

ncclResult_t plugin_call_isend(const struct plugin *plugin, void *sender, void *data, size_t bytes, int tag,
                               void *registration, void **request) {
  if (plugin->version < 9) return plugin->net->isend.v6(sender, data, (int)bytes, tag, registration, request);
  if (plugin->version == 9) return plugin->net->isend.v9(sender, data, bytes, tag, registration, request);
  return plugin->net->isend.v10(sender, data, bytes, tag, registration, NULL, request);
}

ncclResult_t plugin_call_irecv(const struct plugin *plugin, void *receiver, int count, void **data,
                               size_t *bytes, int *tags, void **registrations, void **request) {
  void *parents[PLUGIN_RECVS_MAX] = {NULL};
  int sizes[PLUGIN_RECVS_MAX];
  if (plugin->version >= 10)
    return plugin->net->irecv.v10(receiver, count, data, bytes, tags, registrations, parents, request);
  if (plugin->version == 9)
    return plugin->net->irecv.v9(receiver, count, data, bytes, tags, registrations, request);
  for (int i = 0; i < count; i++) sizes[i] = (int)bytes[i];
  return plugin->net->irecv.v6(receiver, count, data, sizes, tags, registrations, request);
}

/* ---- properties ---- */

static struct abi_device device_of_v6(const struct abi_properties_v6 *theirs) {
  const struct abi_device device = {.name = theirs->name,
                                    .pci_path = theirs->pci_path,
                                    .guid = theirs->guid,
                                    .memory = theirs->memory,
                                    .speed_mbps = theirs->speed_mbps,
                                    .port = theirs->port,
                                    .latency_us = theirs->latency_us,
                                    .comms_max = theirs->comms_max,
                                    .recvs_max = theirs->recvs_max,
                                    .device_type = theirs->device_type,
                                    .device_version = theirs->device_version};
  return device;
}

static struct abi_device device_of_v8(const struct abi_properties_v8 *theirs) {
  const struct abi_device device = {.name = theirs->name,
                                    .pci_path = theirs->pci_path,
                                    .guid = theirs->guid,
                                    .memory = theirs->memory,
                                    .registration_is_global = theirs->registration_is_global,
                                    .speed_mbps = theirs->speed_mbps,
                                    .port = theirs->port,
                                    .latency_us = theirs->latency_us,
                                    .comms_max = theirs->comms_max,
                                    .recvs_max = theirs->recvs_max,
                                    .device_type = theirs->device_type,
                                    .device_version = theirs->device_version};
  return device;
}

ncclResult_t plugin_call_properties(const struct plugin *plugin, int device,
                                    struct abi_properties_v12 *properties) {
  union abi_properties theirs;
  memset(&theirs, 0, sizeof theirs);
  if (plugin->version >= 12) theirs.v12.rail = theirs.v12.plane = ABI_UNDEFINED;
  const ncclResult_t result = plugin->net->properties(device, &theirs);
  if (plugin->version >= 12) {
    *properties = theirs.v12;
    return result;
  }
  memset(properties, 0, sizeof *properties);
  properties->rail = properties->plane = ABI_UNDEFINED;
  properties->device = plugin->version >= 9   ? theirs.device
                       : plugin->version == 8 ? device_of_v8(&theirs.v8)
                                              : device_of_v6(&theirs.v6);
  if (plugin->version >= 9) properties->p2p_bytes_max = theirs.v10.p2p_bytes_max;
  return result;
}
