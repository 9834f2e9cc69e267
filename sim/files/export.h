/* export.h: a job's records in the formats of others. Each writes what the records say, and nothing that they
 * do not: where a time or a state was not recorded it is left out. */
#ifndef TUTTI_SIM_EXPORT_H
#define TUTTI_SIM_EXPORT_H

#include <stdio.h>

#include "files/job.h"
#include "verb.h"

/* Chrome's trace events as JSON, which Perfetto and chrome://tracing open. False when memory is out. */
bool export_perfetto(const struct job *job, FILE *out);
/* Prometheus' text format, as node_exporter's textfile collector takes it. `now_ns`: since 1970. */
void export_prometheus(const struct job *job, int64_t now_ns, FILE *out);
/* Dumps of PyTorch's Flight Recorder, PREFIX and the rank for each rank: pickles, as PyTorch's analyser reads
 * them, or JSON. */
enum exit_code export_flight(const struct job *job, const char *prefix, bool json);

/* `tutti trace export`; `out`: NULL for standard output, or the format's own names. */
enum exit_code export_files(const char *format, const char *out, int path_count, char **paths);

#endif
