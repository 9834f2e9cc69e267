/* explain_files.h: verb `explain`, with files. */
#ifndef TUTTI_SIM_EXPLAIN_FILES_H
#define TUTTI_SIM_EXPLAIN_FILES_H

#include "files/records.h"
#include "verb.h"

/* `job`: of which the files are diagnosed; NULL: the one that runs, or ended last. */
enum exit_code explain_files(int path_count, char **paths, const char *job, bool json);

#endif
