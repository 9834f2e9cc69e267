/* plugin.h: one loaded network plugin, shared by the two files of this folder: load.c finds and unloads it,
 * adapt.c makes its calls. Private to this folder. */
#ifndef TUTTI_BACKENDS_PLUGIN_PLUGIN_H
#define TUTTI_BACKENDS_PLUGIN_PLUGIN_H

#include "backends/net.h"
#include "backends/net_abi.h"

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
/* Why a table of this version cannot be used; NULL if it can. */
const char *plugin_table_fault(const struct abi_net *net);

#endif
