/* plugin.h: one loaded network plugin, as its two halves know it: how it is found and unloaded (load.c), how
 * its calls are made (adapt.c). Nobody else includes it. */
#ifndef TUTTI_BACKENDS_PLUGIN_PLUGIN_H
#define TUTTI_BACKENDS_PLUGIN_PLUGIN_H

#include "backends/net.h"
#include "backends/net_abi.h"

struct plugin {
  void *library;  /* dlopen's */
  char from[256]; /* file, for sentences */
  int version;    /* of the interface: ABI_OLDEST..ABI_NEWEST */
  const struct abi_net *net;
};

/* The table of `plugin`, which is the one in use from now on. */
const struct net_ops *plugin_adapt(const struct plugin *plugin);
/* Ends what was begun with it; true when it was initialised, so that its code may still be needed. */
bool plugin_release(void);
/* Why a table of this version cannot be used; NULL when it can. */
const char *plugin_table_fault(const struct abi_net *net);

#endif
