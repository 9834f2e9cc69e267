/* env_plugin.c: loads the plugin once a process and keeps it. It cannot use param_text, whose values it
 * makes.
 */
#include "base/env_plugin.h"

#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/os.h"
#include "base/plugin_file.h"
#include "base/text.h"

typedef ncclResult_t (*init_1)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix);
typedef ncclResult_t (*init_2)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix,
                               plugin_log log);
struct table {
  const char *name;
  void (*init)(void);
  ncclResult_t (*end)(void);
  const char *(*value)(const char *name);
};

#define SAID_BYTES 1024

static const struct table *plugin; /* NULL: there is none */
static bool plugin_sought;
static char fault[PLUGIN_REASON_BYTES + 256], source[128];
static char said[SAID_BYTES]; /* before the log could be used */
static atomic_bool log_is_open;

LOG_FORMAT(5, 6)
static void keep_said(int level, unsigned long subsystems, const char *file, int line, const char *format,
                      ...) {
  char text[SAID_BYTES / 2];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (atomic_load(&log_is_open)) plugin_file_log(level, subsystems, file, line, "%s", text);
  else text_append(said, sizeof said, "%s%s", said[0] != '\0' ? "; " : "", text);
}

static ncclResult_t plugin_init(const struct table *table, int version) {
  if (version == 1) return ((init_1)table->init)(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, NCCL_SUFFIX);
  return ((init_2)table->init)(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, NCCL_SUFFIX, keep_said);
}

static void plugin_end(void) { plugin->end(); }

/* Uses the library, or says in `fault` why not. */
static void library_take(void *library, const char *from, bool named) {
  const struct plugin_kind *kind = &plugin_kinds[PLUGIN_ENV];
  int version;
  const struct table *table = (const struct table *)plugin_file_table(library, kind, &version);
  ncclResult_t result = ncclSuccess;
  if (table == NULL) {
    if (named)
      snprintf(fault, sizeof fault, "environment plugin %s is left out: it has no table of version %d to %d",
               from, kind->oldest, kind->newest);
  } else if (table->name == NULL || table->init == NULL || table->end == NULL || table->value == NULL) {
    snprintf(fault, sizeof fault,
             "environment plugin %s is left out: a function is missing; report it to "
             "whoever made it",
             from);
  } else if ((result = plugin_init(table, version)) != ncclSuccess) {
    snprintf(fault, sizeof fault,
             "environment plugin '%s' (%s) is left out: its init fails with %d; see its "
             "own messages, or set NCCL_ENV_PLUGIN=none",
             table->name, from, (int)result);
  } else {
    plugin = table;
    snprintf(source, sizeof source, "environment plugin %s", table->name);
    atexit(plugin_end);
    return;
  }
  plugin_file_close(library);
}

static void plugin_load(void) {
  const char *name = os_env("NCCL_ENV_PLUGIN");
  char from[PLUGIN_FROM_BYTES], reasons[PLUGIN_REASON_BYTES];
  const bool named = name != NULL && *name != '\0';
  if (named && strcasecmp(name, "none") == 0) return;
  void *library = plugin_file_open(&plugin_kinds[PLUGIN_ENV], named ? name : NULL, from, reasons);
  if (library != NULL) library_take(library, from, named);
  else if (named)
    snprintf(fault, sizeof fault,
             "NCCL_ENV_PLUGIN: '%.128s' cannot be loaded: %s; give a file's path, or add its folder to "
             "LD_LIBRARY_PATH",
             name, reasons);
}

const char *env_plugin_value(const char *name) {
  if (!plugin_sought) plugin_load();
  plugin_sought = true;
  atomic_store(&log_is_open, false); /* its settings are being read */
  return plugin != NULL ? plugin->value(name) : NULL;
}

const char *env_plugin_source(void) { return source; }

const char *env_plugin_fault(void) { return fault[0] != '\0' ? fault : NULL; }

void env_plugin_report(void) {
  if (atomic_exchange(&log_is_open, true)) return;
  if (plugin != NULL) log_info(LOG_INIT | LOG_ENV, "Settings are asked of %s", source);
  if (said[0] != '\0') log_info(LOG_ENV, "%s", said);
  said[0] = '\0';
}
