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

#define FILE_USUAL "libnccl-net.so"
#define NAME_BYTES 4096 /* length of an item of NCCL_NET_PLUGIN */
#define ITEMS_MAX 64
#define REASON_BYTES 512

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

/* Tries one file; if it fails, adds the reason to `reasons`. */
static void *library_open(const char *file, char *reasons) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const size_t used = strlen(reasons);
  if (library == NULL && used < REASON_BYTES)
    snprintf(reasons + used, REASON_BYTES - used, "%s%s", used > 0 ? "; " : "", dlerror());
  return library;
}

static bool static_take(void) {
  void *program = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
  return program != NULL && library_take(program, "STATIC_PLUGIN");
}

/* Tries a name as a file, then as NAME in libnccl-net-NAME.so. */
static bool name_take(const char *name) {
  char file[NAME_BYTES + 32], reasons[REASON_BYTES] = "";
  if (strcmp(name, "STATIC_PLUGIN") == 0) return static_take();
  void *library = library_open(name, reasons);
  snprintf(file, sizeof file, "%s", name);
  if (library == NULL && strchr(name, '/') == NULL) {
    snprintf(file, sizeof file, "libnccl-net-%s.so", name);
    library = library_open(file, reasons);
  }
  if (library != NULL) {
    found = true;
    return library_take(library, file);
  }
  log_warn(
      "NCCL_NET_PLUGIN: '%s' cannot be loaded: %s; give a file's path, or add its folder to "
      "LD_LIBRARY_PATH",
      name, reasons);
  return false;
}

static bool usual_take(void) {
  char reasons[REASON_BYTES] = "";
  void *library = library_open(FILE_USUAL, reasons);
  if (library != NULL) return library_take(library, FILE_USUAL);
  log_info(LOG_INIT | LOG_NET, "No network plugin: %s", reasons);
  return false;
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
