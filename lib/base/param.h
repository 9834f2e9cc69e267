/* param.h: every setting that acts, in one table (params.def), and where each value came from; and the names
 * that are accepted without an effect (params_accepted.def).
 * The table yields the parser, the range check, the text of `tutti help params`, the man page and the log of
 * what was set. A value is looked up in the environment, then in NCCL_CONF_FILE or ~/.nccl.conf, then in
 * /etc/nccl.conf. A value out of range or unparsable is logged with its bounds and ignored. An unknown NCCL_*
 * name warns once, with the nearest known one. Values are read once, at the first call; param_reset() reads
 * anew. */
#ifndef TUTTI_BASE_PARAM_H
#define TUTTI_BASE_PARAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum param_kind { PARAM_INT, PARAM_BYTES, PARAM_TEXT }; /* BYTES accepts K, M, G suffixes of 1024 */

/* params.def has one row per setting: PARAM(id, "NAME", kind, default, lowest, highest, "help").
 * Text rows give their default as a string in the last-but-one column: PARAM_STR(id, "NAME", "default",
 * "help"). */
enum param_id {
#define PARAM(id, name, kind, initial, lowest, highest, help) PARAM_##id,
#define PARAM_STR(id, name, initial, help) PARAM_##id,
#include "base/params.def"
#undef PARAM
#undef PARAM_STR
  PARAM_COUNT
};

int64_t param_int(enum param_id id);        /* value of an INT or BYTES row */
const char *param_text(enum param_id id);   /* value of a TEXT row, "" when unset; until param_reset */
bool param_is_set(enum param_id id);        /* true when the environment or a file gave a valid value */
const char *param_name(enum param_id id);   /* "NCCL_BUFFSIZE" */
const char *param_source(enum param_id id); /* "environment", a file's path, or "default" */

struct param_row {
  const char *name, *help, *text;
  enum param_kind kind;
  int64_t initial, lowest, highest;
};
const struct param_row *param_row(enum param_id id); /* for help and man pages */

/* A name that is accepted and has no effect. Whoever sets it reads so once in the log (INFO, ENV). */
struct param_accepted {
  const char *name, *why;
};
const struct param_accepted *param_accepted(size_t index); /* NULL past the last */
const char *param_accepted_source(size_t index);           /* as param_source; NULL: not set */

/* For the log alone, which is not ready to speak while it reads its settings: param_text without the report,
 * and then the report: what was set and from where (INFO, subsystem ENV) and what was wrong (WARN), once for
 * each reading. */
const char *param_text_silent(enum param_id id);
void param_report(void);

/* Reads the environment and the files anew at the next call. For tests and for the tutti command's flags. */
void param_reset(void);

#endif
