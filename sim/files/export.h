/* export.h: a job's records in the formats of other tools. Each writer writes only what was recorded: times
 * and states that were not recorded are omitted. */
#ifndef TUTTI_SIM_EXPORT_H
#define TUTTI_SIM_EXPORT_H

#include <stdio.h>

#include "files/job.h"
#include "verb.h"

/* Chrome's trace events as JSON, for Perfetto and chrome://tracing. False when memory is out. */
bool export_perfetto(const struct job *job, FILE *out);
/* Prometheus' text format, for node_exporter's textfile collector. `now_ns`: since 1970. */
void export_prometheus(const struct job *job, int64_t now_ns, FILE *out);
/* Dumps in the format of PyTorch's Flight Recorder, named PREFIX and the rank: pickles, as PyTorch's analyser
 * reads them, or JSON. */
enum exit_code export_flight(const struct job *job, const char *prefix, bool json);

/* `tutti trace export`; `out`: NULL for standard output, or the format's default names. */
enum exit_code export_files(const char *format, const char *out, int path_count, char **paths);

#endif
