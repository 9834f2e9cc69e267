/* trace_list.h: `tutti trace list` and `tutti trace clean`: the record files that lie in a folder; and what a
 * launcher adds to them. */
#ifndef TUTTI_SIM_TRACE_LIST_H
#define TUTTI_SIM_TRACE_LIST_H

#include <stdint.h>

#include "verb.h"

struct trace_clean {
  const char *job; /* NULL: of every job */
  int64_t older_s; /* only files whose process gave its last sign of life so many seconds ago */
  bool dry_run;
};

/* PATHs are folders or files; without any, the folder of TUTTI_TRACE. */
enum exit_code trace_list(int path_count, char **paths, bool json);
/* Removes files of this user whose process has ended. */
enum exit_code trace_clean(int path_count, char **paths, const struct trace_clean *clean);
/* Writes into the record file of a process of the job, which a signal has ended, which one it was: the
 * process cannot say it itself. `place`: its TUTTI_TRACE, or NULL. Without such a file nothing happens. */
void trace_note_signal(const char *place, int process, const char *job, uint32_t number);

#endif
