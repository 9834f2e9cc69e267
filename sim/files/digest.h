/* digest.h: the part of a file of records that a diagnosis needs, in memory of its own, so that only one of a
 * job's files is in memory as a whole. It keeps the addresses only of the calls that a diagnosis names, and
 * shortens rings to their contents. */
#ifndef TUTTI_SIM_DIGEST_H
#define TUTTI_SIM_DIGEST_H

#include "trace/record_read.h"

/* Makes `digest` a file with the same diagnosis as `file`, whose name it shares. Returns its bytes, which the
 * caller frees with the digest; NULL when memory is out. The result is at most twice as large as the file,
 * whatever the file claims. */
void *digest_make(const struct record_file *file, struct record_file *digest);

#endif
