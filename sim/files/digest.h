/* digest.h: of a file of records what verdicts need, in memory of its own, so that of a job's files only one
 * is in memory as a whole: all but the records that say where calls have their memory, and rings as long as
 * what is in them. */
#ifndef TUTTI_SIM_DIGEST_H
#define TUTTI_SIM_DIGEST_H

#include "trace/record_read.h"

/* Makes `digest` a file that is judged as `file` is, and shares its name alone. Returns its bytes, which are
 * the caller's to free, as the digest is; NULL when memory is out. They are no more than those of the file
 * twice, whatever it says of itself. */
void *digest_make(const struct record_file *file, struct record_file *digest);

#endif
