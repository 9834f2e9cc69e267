/* plugin_file.c: from a name to a library. A name that is no library leaves one warning, with what the loader
 * said of each file that was tried. */
#include "base/plugin_file.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"

#define NAME_BYTES 4096
#define LINE_BYTES 1024

const struct plugin_kind plugin_kinds[PLUGIN_KINDS] = {
    {"net", "network", "ncclNetPlugin_v", PARAM_NET_PLUGIN, LOG_INIT | LOG_NET, 12, 6},
    {"tuner", "tuner", "ncclTunerPlugin_v", PARAM_TUNER_PLUGIN, LOG_INIT | LOG_TUNING, 6, 2},
    {"env", "environment", "ncclEnvPlugin_v", PARAM_ENV_PLUGIN, LOG_INIT | LOG_ENV, 2, 1},
    {"profiler", "profiler", "ncclProfiler_v", PARAM_PROFILER_PLUGIN, LOG_INIT | LOG_PROFILE, 6, 1},
};

/* Tries one file; if it fails, adds the reason to `reasons`. */
static void *library_open(const char *file, char *reasons) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const size_t used = strlen(reasons);
  if (library == NULL && used < PLUGIN_REASON_BYTES)
    snprintf(reasons + used, PLUGIN_REASON_BYTES - used, "%s%s", used > 0 ? "; " : "", dlerror());
  return library;
}

void *plugin_file_open(const struct plugin_kind *kind, const char *name, char from[PLUGIN_FROM_BYTES],
                       char reasons[PLUGIN_REASON_BYTES]) {
  char file[NAME_BYTES];
  void *library = NULL;
  reasons[0] = '\0';
  snprintf(file, sizeof file, "libnccl-%s%s%.4000s.so", kind->file, name != NULL ? "-" : "",
           name != NULL ? name : "");
  if (name != NULL) {
    snprintf(from, PLUGIN_FROM_BYTES, "%.255s", name);
    library = library_open(strcmp(name, "STATIC_PLUGIN") == 0 ? NULL : name, reasons);
    if (library != NULL || strchr(name, '/') != NULL) return library;
  }
  snprintf(from, PLUGIN_FROM_BYTES, "%.255s", file);
  return library_open(file, reasons);
}

void *plugin_file_named(const struct plugin_kind *kind, const char *name, char from[PLUGIN_FROM_BYTES]) {
  char reasons[PLUGIN_REASON_BYTES];
  void *library = plugin_file_open(kind, name, from, reasons);
  if (library == NULL)
    log_warn("%s: '%s' cannot be loaded: %s; give a file's path, or add its folder to LD_LIBRARY_PATH",
             param_name(kind->param), name, reasons);
  return library;
}

void *plugin_file_usual(const struct plugin_kind *kind, char from[PLUGIN_FROM_BYTES]) {
  char reasons[PLUGIN_REASON_BYTES];
  void *library = plugin_file_open(kind, NULL, from, reasons);
  if (library == NULL) log_info(kind->subsystem, "No %s plugin: %s", kind->text, reasons);
  return library;
}

/* The first item of NCCL_NET_PLUGIN that is a library. */
static void *network_open(char from[PLUGIN_FROM_BYTES]) {
  char item[NAME_BYTES], reasons[PLUGIN_REASON_BYTES];
  void *library = NULL;
  const char *rest = param_text(PARAM_NET_PLUGIN);
  while (*rest != '\0' && library == NULL) {
    const size_t bytes = strcspn(rest, ",");
    snprintf(item, sizeof item, "%.*s", (int)(bytes < NAME_BYTES ? bytes : NAME_BYTES - 1), rest);
    rest += bytes + (rest[bytes] == ',');
    if (item[0] != '\0' && strcasecmp(item, "none") != 0)
      library = plugin_file_open(&plugin_kinds[PLUGIN_NET], item, from, reasons);
  }
  return library;
}

void *plugin_file_find(const struct plugin_kind *kind, char from[PLUGIN_FROM_BYTES]) {
  const char *name = param_text(kind->param);
  void *library = NULL;
  if (strcasecmp(name, "none") == 0) {
    log_info(kind->subsystem, "No %s plugin: %s says none", kind->text, param_name(kind->param));
    return NULL;
  }
  if (*name != '\0') library = plugin_file_named(kind, name, from);
  if (library == NULL) library = plugin_file_usual(kind, from);
  if (library == NULL && *name == '\0') library = network_open(from);
  return library;
}

const void *plugin_file_table(void *library, const struct plugin_kind *kind, int *version) {
  char name[48];
  for (*version = kind->newest; *version >= kind->oldest; *version -= 1) {
    snprintf(name, sizeof name, "%s%d", kind->symbol, *version);
    const void *table = dlsym(library, name);
    if (table != NULL) return table;
  }
  return NULL;
}

void plugin_file_close(void *library) { dlclose(library); }

void plugin_file_refuse(const struct plugin_kind *kind, void *library, const char *from,
                        const char *missing) {
  if (missing != NULL)
    log_warn("%s plugin %s is left out: it has no '%s'; report it to whoever made the plugin", kind->text,
             from, missing);
  else if (*param_text(kind->param) != '\0')
    log_warn("%s plugin %s is left out: it has no table of version %d to %d", kind->text, from, kind->oldest,
             kind->newest);
  plugin_file_close(library);
}

void plugin_file_log(int level, unsigned long subsystems, const char *file, int line, const char *format,
                     ...) {
  char text[LINE_BYTES];
  va_list arguments;
  if (format == NULL) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (level == LOG_WARN) log_warn_at(file != NULL ? file : "plugin", line, "%s", text);
  else if (level == LOG_TRACE) log_trace((unsigned)subsystems, "%s", text);
  else if (level != LOG_NONE) log_info((unsigned)subsystems & LOG_ALL, "%s", text);
}
