/* plugin.h: one loaded network plugin, shared by the files of this folder: load.c finds and unloads it,
 * adapt.c makes a struct net_ops of it, versions.c makes its calls. Private to this folder. */
#ifndef TUTTI_BACKENDS_PLUGIN_PLUGIN_H
#define TUTTI_BACKENDS_PLUGIN_PLUGIN_H

#include "backends/net.h"
#include "backends/net_abi.h"

#define PLUGIN_RECVS_MAX 8 /* receives per call to irecv */

struct plugin {
  void *library;  /* from dlopen */
  char from[256]; /* file name, for messages */
  int version;    /* of the interface: ABI_OLDEST..ABI_NEWEST */
  const struct abi_net *net;
};

/* Makes `plugin` the current plugin and returns its table. */
const struct net_ops *plugin_adapt(const struct plugin *plugin);
/* Ends everything that was begun with it; true if it was initialised, so that its code may still be
 * needed. */
bool plugin_release(void);
/* Why a table cannot be used; NULL if it can. */
const char *plugin_table_fault(const struct abi_net *net);

/* The calls that differ between versions of the interface. They return what the plugin does. `context`, of a
 * communicator, exists from version 11 on. */
ncclResult_t plugin_call_init(const struct plugin *plugin, const struct net_peer *peer, void **context);
ncclResult_t plugin_call_listen(const struct plugin *plugin, void *context, int device, void *handle,
                                void **listener);
ncclResult_t plugin_call_connect(const struct plugin *plugin, const struct net_peer *peer, void *context,
                                 int device, void *handle, void **sender);
ncclResult_t plugin_call_accept(const struct plugin *plugin, void *listener, void **receiver);
ncclResult_t plugin_call_register(const struct plugin *plugin, void *connection, void *data, size_t bytes,
                                  int memory, void **registration);
ncclResult_t plugin_call_isend(const struct plugin *plugin, void *sender, void *data, size_t bytes, int tag,
                               void *registration, void **request);
ncclResult_t plugin_call_irecv(const struct plugin *plugin, void *receiver, int count, void **data,
                               size_t *bytes, int *tags, void **registrations, void **request);
/* What a version does not tell is 0, or ABI_UNDEFINED. */
ncclResult_t plugin_call_properties(const struct plugin *plugin, int device,
                                    struct abi_properties_v12 *properties);

#endif
