/* param.h: the settings, in one table (params.def), with the source of each value, and the names that are
 * accepted without effect (params_accepted.def). The table generates the parser, the range check, the text of
 * `tutti help params`, the man page and the log of what is set. A value is looked up in an environment plugin
 * (env_plugin.h), in the environment, then in NCCL_CONF_FILE or ~/.nccl.conf, then in /etc/nccl.conf. An
 * unknown TUTTI_* name, or a value of one that cannot be read, makes the library's calls fail (param_check).
 * For NCCL_* both are ignored, as NCCL does, with one warning. Either sentence has the nearest name, or what
 * is allowed. Values are read once, at the first call; param_reset() makes the next call read them again. */
#ifndef TUTTI_BASE_PARAM_H
#define TUTTI_BASE_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum param_kind { PARAM_INT, PARAM_BYTES, PARAM_TEXT }; /* BYTES accepts K, M, G suffixes of 1024 */

/* params.def has one row per setting: PARAM(id, "NAME", kind, default, lowest, highest, "help"), and for text
 * PARAM_STR(id, "NAME", "default", "help"). */
enum param_id {
#define PARAM(id, name, kind, initial, lowest, highest, help) PARAM_##id,
#define PARAM_STR(id, name, initial, help) PARAM_##id,
#include "base/params.def"
#undef PARAM
#undef PARAM_STR
  PARAM_COUNT
};

int64_t param_int(enum param_id id);        /* value of an INT or BYTES row */
const char *param_text(enum param_id id);   /* value of a TEXT row, "" if unset; valid until param_reset */
bool param_is_set(enum param_id id);        /* true if the environment or a file has a valid value */
const char *param_name(enum param_id id);   /* "NCCL_BUFFSIZE" */
const char *param_source(enum param_id id); /* "environment", a plugin, a file's path, or "default" */

struct param_row {
  const char *name, *help, *text;
  enum param_kind kind;
  int64_t initial, lowest, highest;
};
const struct param_row *param_row(enum param_id id); /* for help and man pages */

/* A name that is accepted and has no effect. If it is set, the log says so once (INFO, ENV). */
struct param_accepted {
  const char *name, *why;
};
const struct param_accepted *param_accepted(size_t index); /* NULL after the last */
const char *param_accepted_source(size_t index);           /* as param_source; NULL: not set */

/* By name; PARAM_COUNT and NULL: there is none. */
enum param_id param_find(const char *name);
const struct param_accepted *param_accepted_find(const char *name);

/* The value must not be logged: TUTTI_SECRET, unless it names a file. */
bool param_is_hidden(enum param_id id);

enum param_fault_kind {
  PARAM_FAULT_UNKNOWN, /* an NCCL_* name that is far from all known ones: logged */
  PARAM_FAULT_IGNORED, /* a value of NCCL_* that cannot be read, or a mistyped name: on stderr in any case */
  PARAM_FAULT_REFUSED  /* of TUTTI_*: calls fail */
};
struct param_fault {
  enum param_fault_kind kind;
  const char *text; /* a sentence; valid until param_reset */
};
const struct param_fault *param_fault(size_t index); /* NULL after the last */

/* ncclSuccess, or ncclInvalidUsage if a TUTTI_* setting is unknown or wrong: for the first call of a program.
 * The faults go to stderr once for each reading; the text of ncclGetLastError is the first of them. */
ncclResult_t param_check(void);

/* For the log only, which cannot print while it reads its settings: param_text without the report, and then
 * the report: what is set and where (INFO, subsystem ENV) and what is wrong (WARN), once for each reading. */
const char *param_text_silent(enum param_id id);
void param_report(void);

/* Makes the next call read the environment and the files again. For tests and the tutti command's flags. */
void param_reset(void);

#endif
