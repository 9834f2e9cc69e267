/* plugin_file.h: finds the libraries of plugins for NCCL, of whatever kind: a file; NAME for
 * libnccl-KIND-NAME.so; STATIC_PLUGIN for the program itself. Knows nothing of what a library holds. */
#ifndef TUTTI_BASE_PLUGIN_FILE_H
#define TUTTI_BASE_PLUGIN_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/param.h"

#define PLUGIN_FROM_BYTES 256
#define PLUGIN_REASON_BYTES 512

/* The function by which plugins log, in all of NCCL's interfaces. */
typedef void (*plugin_log)(int level, unsigned long subsystems, const char *file, int line,
                           const char *format, ...);

/* The kinds: what their files, settings and symbols are called, and the versions of their tables. */
enum plugin_which { PLUGIN_NET, PLUGIN_TUNER, PLUGIN_ENV, PLUGIN_PROFILER, PLUGIN_KINDS };
struct plugin_kind {
  const char *file;    /* "net", of libnccl-net.so */
  const char *text;    /* "network" */
  const char *symbol;  /* without the version at its end */
  enum param_id param; /* names plugins */
  unsigned subsystem;  /* of the log */
  int newest, oldest;
};
extern const struct plugin_kind plugin_kinds[PLUGIN_KINDS];

/* Opens what a name says, or, if it is NULL, libnccl-KIND.so; the file's name goes to `from`. NULL: there is
 * none, and `reasons` says what the loader found at each place. Nothing is logged. */
void *plugin_file_open(const struct plugin_kind *kind, const char *name, char from[PLUGIN_FROM_BYTES],
                       char reasons[PLUGIN_REASON_BYTES]);
/* The same for a name, with a warning that says why there is none. */
void *plugin_file_named(const struct plugin_kind *kind, const char *name, char from[PLUGIN_FROM_BYTES]);
/* The same for libnccl-KIND.so: without one, the log (INFO) says why. */
void *plugin_file_usual(const struct plugin_kind *kind, char from[PLUGIN_FROM_BYTES]);
/* Opens the one that the setting names, else the usual one, else the library of the network's plugin. NULL if
 * there is none, or the setting is `none`. */
void *plugin_file_find(const struct plugin_kind *kind, char from[PLUGIN_FROM_BYTES]);

/* The newest table in the library; NULL: none. */
const void *plugin_file_table(void *library, const struct plugin_kind *kind, int *version);
/* Warns why a library that was opened is left out, and closes it. missing: what its table lacks; NULL: there
 * is no table, which is worth a warning only if the program names a plugin. */
void plugin_file_refuse(const struct plugin_kind *kind, void *library, const char *from, const char *missing);
void plugin_file_close(void *library);

/* ncclDebugLogger_t: what plugins log with. */
void plugin_file_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
