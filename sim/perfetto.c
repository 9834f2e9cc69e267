/* perfetto.c: see perfetto.h. */
#include "perfetto.h"

#include <string.h>

void perfetto_begin(struct perfetto *perfetto, FILE *out) {
  memset(perfetto, 0, sizeof *perfetto);
  perfetto->json.out = out;
  json_open(&perfetto->json, NULL, '{');
  json_text(&perfetto->json, "displayTimeUnit", "ns");
  json_open(&perfetto->json, "traceEvents", '[');
}

void perfetto_end(struct perfetto *perfetto) {
  json_close(&perfetto->json, ']');
  json_close(&perfetto->json, '}');
}

static void event_begin(struct perfetto *perfetto, const char *phase, const char *name,
                        struct perfetto_place place) {
  struct json *json = &perfetto->json;
  json_open(json, NULL, '{');
  json_text(json, "ph", phase);
  json_text(json, "name", name);
  json_number(json, "pid", place.process);
  json_number(json, "tid", place.thread);
}

static void timed_begin(struct perfetto *perfetto, const char *phase, const char *name,
                        struct perfetto_place place, int64_t at_ps) {
  event_begin(perfetto, phase, name, place);
  json_millionths(&perfetto->json, "ts", at_ps); /* microseconds */
}

static void event_end(struct perfetto *perfetto) { json_close(&perfetto->json, '}'); }

static void name_put(struct perfetto *perfetto, const char *what, struct perfetto_place place,
                     const char *name) {
  event_begin(perfetto, "M", what, place);
  json_open(&perfetto->json, "args", '{');
  json_text(&perfetto->json, "name", name);
  json_close(&perfetto->json, '}');
  event_end(perfetto);
}

/* Sorts it among its siblings by number, not by name. */
static void order_put(struct perfetto *perfetto, const char *what, struct perfetto_place place,
                      int64_t number) {
  event_begin(perfetto, "M", what, place);
  json_open(&perfetto->json, "args", '{');
  json_number(&perfetto->json, "sort_index", number);
  json_close(&perfetto->json, '}');
  event_end(perfetto);
}

void perfetto_process_name(struct perfetto *perfetto, int64_t process, const char *name) {
  const struct perfetto_place place = {process, 0};
  name_put(perfetto, "process_name", place, name);
  order_put(perfetto, "process_sort_index", place, process);
}

void perfetto_thread_name(struct perfetto *perfetto, struct perfetto_place place, const char *name) {
  name_put(perfetto, "thread_name", place, name);
  order_put(perfetto, "thread_sort_index", place, place.thread);
}

void perfetto_slice(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t from_ps,
                    int64_t to_ps) {
  timed_begin(perfetto, "X", name, place, from_ps);
  json_millionths(&perfetto->json, "dur", to_ps > from_ps ? to_ps - from_ps : 0);
  json_open(&perfetto->json, "args", '{');
}

void perfetto_slice_open(struct perfetto *perfetto, const char *name, struct perfetto_place place,
                         int64_t from_ps) {
  timed_begin(perfetto, "B", name, place, from_ps);
  json_open(&perfetto->json, "args", '{');
}

void perfetto_slice_end(struct perfetto *perfetto) {
  json_close(&perfetto->json, '}');
  event_end(perfetto);
}

void perfetto_point(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t at_ps) {
  timed_begin(perfetto, "i", name, place, at_ps);
  json_text(&perfetto->json, "s", "t");
  event_end(perfetto);
}

void perfetto_counter(struct perfetto *perfetto, const char *name, struct perfetto_place place, int64_t at_ps,
                      const char *series, int64_t value) {
  timed_begin(perfetto, "C", name, place, at_ps);
  json_open(&perfetto->json, "args", '{');
  json_number(&perfetto->json, series, value);
  json_close(&perfetto->json, '}');
  event_end(perfetto);
}

void perfetto_arrow(struct perfetto *perfetto, const char *name, struct perfetto_place from, int64_t from_ps,
                    struct perfetto_place to, int64_t to_ps) {
  timed_begin(perfetto, "s", name, from, from_ps);
  json_text(&perfetto->json, "cat", name);
  json_number(&perfetto->json, "id", ++perfetto->arrows);
  event_end(perfetto);
  timed_begin(perfetto, "f", name, to, to_ps > from_ps ? to_ps : from_ps);
  json_text(&perfetto->json, "cat", name);
  json_text(&perfetto->json, "bp", "e");
  json_number(&perfetto->json, "id", perfetto->arrows);
  event_end(perfetto);
}
