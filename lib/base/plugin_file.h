/* plugin_file.h: finds the libraries of plugins for NCCL, of whatever kind: a file; NAME for
 * libnccl-KIND-NAME.so; STATIC_PLUGIN for the program itself. Knows nothing of what a library holds. */
#ifndef TUTTI_BASE_PLUGIN_FILE_H
#define TUTTI_BASE_PLUGIN_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/param.h"

#define PLUGIN_FROM_BYTES 256

/* A kind of plugin: what its files and settings are called. */
struct plugin_kind {
  const char *file;    /* "net", of libnccl-net.so */
  const char *text;    /* "network" */
  enum param_id param; /* names plugins */
  unsigned subsystem;  /* of the log */
};

/* Opens what a name says; the file's name goes to `from`. NULL: there is none, and a warning says why. */
void *plugin_file_named(const struct plugin_kind *kind, const char *name, char from[PLUGIN_FROM_BYTES]);
/* Opens libnccl-KIND.so; without one, the log (INFO) says why. */
void *plugin_file_usual(const struct plugin_kind *kind, char from[PLUGIN_FROM_BYTES]);
/* Opens the one that the setting names, else the usual one, else the library of the network's plugin. NULL if
 * there is none, or the setting is `none`. */
void *plugin_file_find(const struct plugin_kind *kind, char from[PLUGIN_FROM_BYTES]);

/* The newest table of the versions `newest` to `oldest`, whose symbols are `symbol` and the number. NULL:
 * none. */
const void *plugin_file_table(void *library, const char *symbol, int newest, int oldest, int *version);
void plugin_file_close(void *library);

/* ncclDebugLogger_t: what plugins log with. */
void plugin_file_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
