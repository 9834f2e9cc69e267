/* picture.c: see picture.h. */
#include "simulate/picture.h"

#include <string.h>

#include "core/plan/names.h"

/* Threads of lanes are numbered below it. */
enum { KERNEL_THREADS = 1000 };

void picture_begin(struct picture *picture, FILE *out, const struct sim_net *net) {
  memset(picture, 0, sizeof *picture);
  picture->json.out = out;
  picture->net = net;
  json_open(&picture->json, NULL, '{');
  json_text(&picture->json, "displayTimeUnit", "ns");
  json_open(&picture->json, "traceEvents", '[');
}

static void span_write(struct picture *picture, const struct engine_span *span, const char *name,
                       uint64_t begin_ps, uint64_t end_ps) {
  struct json *json = &picture->json;
  const struct sim_lane *lane = &picture->net->lanes[span->lane];
  json_open(json, NULL, '{');
  json_text(json, "name", name);
  json_text(json, "ph", "X");
  json_number(json, "pid", lane->rank);
  json_number(json, "tid", lane->work->channel_index * 4 + lane->work->role % 4);
  json_decimal(json, "ts", (double)begin_ps / 1e6);
  json_decimal(json, "dur", (double)(end_ps - begin_ps) / 1e6);
  json_open(json, "args", '{');
  json_number(json, "bytes", (int64_t)span->slice->bytes);
  json_text(json, "protocol", names_proto[lane->work->proto]);
  json_close(json, '}');
  json_close(json, '}');
}

static const char *slice_name(uint32_t flags) {
  static const char *const names[] = {"copy", "receive", "send", "receive, send"};
  static const char *const reducing[] = {"reduce", "receive, reduce", "send", "receive, reduce, send"};
  const uint32_t sides = ((flags & STEP_RECV) ? 1u : 0) | ((flags & STEP_SEND) ? 2u : 0);
  return (flags & STEP_REDUCE) ? reducing[sides] : names[sides];
}

void picture_see(void *context, const struct engine_span *span) {
  struct picture *picture = (struct picture *)context;
  if (picture->spans++ >= PICTURE_SPANS_MAX) return;
  if (span->begin_ps > span->ready_ps) span_write(picture, span, "wait", span->ready_ps, span->begin_ps);
  span_write(picture, span, slice_name(span->slice->flags), span->begin_ps, span->end_ps);
}

void picture_kernel(struct picture *picture, const char *name, const struct run_kernel *kernel) {
  struct json *json = &picture->json;
  if (picture->kernels++ >= PICTURE_SPANS_MAX) return;
  json_open(json, NULL, '{');
  json_text(json, "name", name);
  json_text(json, "ph", "X");
  json_number(json, "pid", kernel->rank);
  json_number(json, "tid", KERNEL_THREADS + kernel->stream);
  json_decimal(json, "ts", (double)kernel->begin_ps / 1e6);
  json_decimal(json, "dur", (double)(kernel->end_ps - kernel->begin_ps) / 1e6);
  json_close(json, '}');
}

bool picture_end(struct picture *picture) {
  json_close(&picture->json, ']');
  json_close(&picture->json, '}');
  fputc('\n', picture->json.out);
  return picture->spans <= PICTURE_SPANS_MAX && picture->kernels <= PICTURE_SPANS_MAX;
}
