/* graph_file.h: rings and trees inside a node from a file of NCCL_GRAPH_FILE, instead of a search. */
#ifndef TUTTI_CORE_GRAPH_FILE_H
#define TUTTI_CORE_GRAPH_FILE_H

#include "core/topology/topology_search.h"

struct graph_file;

/* Reads the XML that NCCL_GRAPH_DUMP_FILE is written in. ncclSystemError: it cannot be read, or out of
 * memory; ncclInvalidUsage: wrong contents, with file, line and what was expected. Free with
 * graph_file_free(). */
ncclResult_t graph_file_read(const char *path, struct graph_file **file);
/* The same, from memory; `path` is for messages. */
ncclResult_t graph_file_parse(const char *path, const char *text, size_t bytes, struct graph_file **file);
void graph_file_free(struct graph_file *file); /* NULL is allowed */

/* Fills *result with the file's rings, or trees, for the GPUs of the request, whose pattern says which;
 * others of the topology are left out. *found is false if the file has none. ncclInvalidUsage: they do not
 * fit, with file and line. */
ncclResult_t graph_file_find(const struct graph_file *file, const struct search_request *request,
                             struct search_result *result, bool *found);

#endif
