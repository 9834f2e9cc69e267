/* load.c: finds network plugins: from NCCL_NET_PLUGIN to a file, from a file to a table of the newest
 * supported version of the interface. Each rejected file logs why. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "backends/plugin/plugin.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/plugin_file.h"

#define NAME_BYTES 4096 /* length of an item of NCCL_NET_PLUGIN */
#define ITEMS_MAX 64

static struct plugin current;   /* library NULL: none */
static const char *rest;        /* rest of NCCL_NET_PLUGIN; NULL: not begun */
static uint32_t item_count;     /* items tried so far */
static bool usual_tried, found; /* libnccl-net.so was tried; some name was a library */

/* A plugin that was initialised may have left threads running: its code stays loaded. */
static void current_close(void) {
  if (current.library == NULL) return;
  if (!plugin_release()) dlclose(current.library);
  memset(&current, 0, sizeof current);
}

/* ---- from a library to a table ---- */

static bool table_find(struct plugin *plugin) {
  for (int version = ABI_NEWEST; version >= ABI_OLDEST; version--) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, ABI_SYMBOL, version);
    const struct abi_net *net = (const struct abi_net *)dlsym(plugin->library, symbol);
    if (net == NULL) continue;
    const char *fault = plugin_table_fault(net);
    if (fault == NULL) {
      plugin->version = version;
      plugin->net = net;
      return true;
    }
    log_warn("network plugin %s: %s is left out: it has no '%s'; report it to whoever made the plugin",
             plugin->from, symbol, fault);
  }
  return false;
}

/* The oldest versions of the interface that identify a plugin; only for the error message. */
static bool table_is_old(void *library) {
  for (int version = 2; version < ABI_OLDEST; version++) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, ABI_SYMBOL, version);
    if (dlsym(library, symbol) != NULL) return true;
  }
  return false;
}

static bool library_take(void *library, const char *from) {
  memset(&current, 0, sizeof current);
  current.library = library;
  snprintf(current.from, sizeof current.from, "%s", from);
  if (table_find(&current)) {
    log_info(LOG_INIT | LOG_NET, "Network plugin %s: '%s', version %d of the interface", current.from,
             current.net->name, current.version);
    return true;
  }
  log_warn("network plugin %s is left out: it has no table of version %d to %d%s", current.from, ABI_OLDEST,
           ABI_NEWEST, table_is_old(library) ? ", only older ones; use a newer release of it" : "");
  dlclose(library);
  memset(&current, 0, sizeof current);
  return false;
}

/* ---- from a name to a library ---- */

static bool name_take(const char *name) {
  char file[PLUGIN_FROM_BYTES];
  void *library = plugin_file_named(&plugin_kinds[PLUGIN_NET], name, file);
  if (library == NULL) return false;
  if (strcmp(name, "STATIC_PLUGIN") != 0) found = true;
  return library_take(library, file);
}

static bool usual_take(void) {
  char file[PLUGIN_FROM_BYTES];
  void *library = plugin_file_usual(&plugin_kinds[PLUGIN_NET], file);
  return library != NULL && library_take(library, file);
}

/* Takes the next item of the list; false after the last. */
static bool item_next(char *item) {
  while (*rest == ',' || *rest == ' ') rest += 1;
  const size_t bytes = strcspn(rest, ",");
  if (bytes == 0 || item_count >= ITEMS_MAX) return false;
  snprintf(item, NAME_BYTES, "%.*s", (int)(bytes < NAME_BYTES ? bytes : NAME_BYTES - 1), rest);
  rest += bytes;
  item_count += 1;
  return true;
}

static bool search_on(void) {
  char item[NAME_BYTES];
  if (rest == NULL) {
    rest = param_text(PARAM_NET_PLUGIN);
    item_count = 0;
    usual_tried = found = false;
  }
  while (item_next(item)) {
    if (strcasecmp(item, "none") == 0) {
      log_info(LOG_INIT | LOG_NET, "No network plugin: NCCL_NET_PLUGIN says none");
      usual_tried = true;
    } else if (name_take(item)) {
      return true;
    }
  }
  if (usual_tried || found) return false;
  usual_tried = true;
  return usual_take();
}

const struct net_ops *plugin_net_next(void) {
  current_close();
  if (search_on()) return plugin_adapt(&current);
  rest = NULL; /* the next call starts from the beginning */
  return NULL;
}
