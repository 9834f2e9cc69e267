/* perfetto.h: writes Chrome's trace events ("Trace Event Format", Google, 2016), which ui.perfetto.dev and
 * chrome://tracing open: processes and threads with their names, slices, instants, arrows and counters. A
 * slice without an end is shown as not ending. Times are picoseconds. Knows nothing of ranks. */
#ifndef TUTTI_SIM_PERFETTO_H
#define TUTTI_SIM_PERFETTO_H

#include "json.h"

struct perfetto {
  struct json json;
  int64_t arrows;
};

struct perfetto_place {
  int64_t process, thread;
};

void perfetto_begin(struct perfetto *perfetto, FILE *out);
void perfetto_end(struct perfetto *perfetto);
/* Processes, and the threads of a process, are sorted by their numbers. */
void perfetto_process_name(struct perfetto *perfetto, int64_t process, const char *name);
void perfetto_thread_name(struct perfetto *perfetto, struct perfetto_place place, const char *name);
/* A slice; its arguments may be written to perfetto->json until perfetto_slice_end(). */
void perfetto_slice(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t from_ps,
                    int64_t to_ps);
/* The same for a slice that does not end. */
void perfetto_slice_open(struct perfetto *perfetto, const char *name, struct perfetto_place place,
                         int64_t from_ps);
void perfetto_slice_end(struct perfetto *perfetto);
void perfetto_point(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t at_ps);
void perfetto_counter(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t at_ps,
                      const char *series, int64_t value);
void perfetto_arrow(struct perfetto *perfetto, const char *name, struct perfetto_place from, int64_t from_ps,
                    struct perfetto_place to, int64_t to_ps);

#endif
