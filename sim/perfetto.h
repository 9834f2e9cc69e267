/* perfetto.h: writes Chrome's trace events ("Trace Event Format", Google, 2016), which ui.perfetto.dev and
 * chrome://tracing open: processes and threads with their names, slices, points, arrows and counters. A slice
 * that is begun and not ended is shown as one that does not end. Times are picoseconds. Knows nothing of
 * ranks. */
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
/* Processes are shown by their numbers, threads of a process too. */
void perfetto_process_name(struct perfetto *perfetto, int64_t process, const char *name);
void perfetto_thread_name(struct perfetto *perfetto, struct perfetto_place place, const char *name);
/* A slice; its arguments may be written to perfetto->json until perfetto_slice_end(). */
void perfetto_slice(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t from_ps,
                    int64_t to_ps);
/* The same of one that does not end. */
void perfetto_slice_open(struct perfetto *perfetto, const char *name, struct perfetto_place place,
                         int64_t from_ps);
void perfetto_slice_end(struct perfetto *perfetto);
void perfetto_point(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t at_ps);
void perfetto_counter(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t at_ps,
                      const char *series, int64_t value);
void perfetto_arrow(struct perfetto *perfetto, const char *name, struct perfetto_place from, int64_t from_ps,
                    struct perfetto_place to, int64_t to_ps);

#endif
