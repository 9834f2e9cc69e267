/* explain_files.h: verb `explain`, with files. */
#ifndef TUTTI_SIM_EXPLAIN_FILES_H
#define TUTTI_SIM_EXPLAIN_FILES_H

#include "files/records.h"
#include "verb.h"

enum exit_code explain_files(int path_count, char **paths, bool json);

#endif
