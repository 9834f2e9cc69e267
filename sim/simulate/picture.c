/* picture.c: see picture.h. */
#include "simulate/picture.h"

#include <string.h>

#include "base/os.h"
#include "core/plan/names.h"

/* Threads of streams come before those of lanes. */
enum { LANE_THREADS = 1000, ROLES = 4, LANE_WORDS = PLAN_CHANNELS_MAX * ROLES / 64 };

static struct perfetto_place lane_place(const struct sim_lane *lane) {
  const struct perfetto_place place = {
      lane->rank, LANE_THREADS + lane->work->channel_index * ROLES + lane->work->role % ROLES};
  return place;
}

void picture_begin(struct picture *picture, FILE *out, const struct sim_net *net, uint32_t gpus) {
  memset(picture, 0, sizeof *picture);
  picture->net = net;
  picture->named = (uint64_t *)os_alloc((size_t)net->rank_count * LANE_WORDS * sizeof *picture->named);
  perfetto_begin(&picture->perfetto, out);
  for (uint32_t rank = 0; rank < net->rank_count; rank++) {
    char name[64];
    snprintf(name, sizeof name, "rank %u (node %u, GPU %u)", rank, rank / gpus, rank % gpus);
    perfetto_process_name(&picture->perfetto, rank, name);
  }
}

void picture_stream(struct picture *picture, uint32_t rank, uint32_t stream, const char *name) {
  char words[64];
  const struct perfetto_place place = {rank, stream};
  snprintf(words, sizeof words, "stream %.48s", name);
  perfetto_thread_name(&picture->perfetto, place, words);
}

/* Names the lane's thread when something is first written on it. */
static struct perfetto_place lane_named(struct picture *picture, const struct sim_lane *lane) {
  static const char *const roles[ROLES] = {"", " up", " down", " switch"};
  const struct perfetto_place place = lane_place(lane);
  const uint32_t thread = (uint32_t)(place.thread - LANE_THREADS);
  if (!picture->named) return place; /* without memory threads have only numbers */
  uint64_t *named = &picture->named[lane->rank * LANE_WORDS + thread / 64];
  if ((*named >> thread % 64 & 1) != 0) return place;
  *named |= UINT64_C(1) << thread % 64;
  char name[48];
  snprintf(name, sizeof name, "channel %u%s", lane->work->channel_index, roles[lane->work->role % ROLES]);
  perfetto_thread_name(&picture->perfetto, place, name);
  return place;
}

static void lane_say(struct picture *picture, const struct sim_lane *lane) {
  json_text(&picture->perfetto.json, "protocol", names_proto[lane->work->proto]);
}

static void span_write(struct picture *picture, const struct engine_span *span, const char *name,
                       uint64_t begin_ps, uint64_t end_ps) {
  const struct sim_lane *lane = &picture->net->lanes[span->lane];
  const struct perfetto_place place = lane_named(picture, lane);
  perfetto_slice(&picture->perfetto, name, place, (int64_t)begin_ps, (int64_t)end_ps);
  json_number(&picture->perfetto.json, "bytes", (int64_t)span->slice->bytes);
  lane_say(picture, lane);
  perfetto_slice_end(&picture->perfetto);
}

static const char *slice_name(uint32_t flags) {
  static const char *const names[] = {"copy", "receive", "send", "receive, send"};
  static const char *const reducing[] = {"reduce", "receive, reduce", "send", "receive, reduce, send"};
  const uint32_t kind = ((flags & STEP_RECV) ? 1u : 0) | ((flags & STEP_SEND) ? 2u : 0);
  return (flags & STEP_REDUCE) ? reducing[kind] : names[kind];
}

void picture_see(void *context, const struct engine_span *span) {
  struct picture *picture = (struct picture *)context;
  if (picture->spans++ >= PICTURE_SPANS_MAX) return;
  if (span->begin_ps > span->ready_ps) span_write(picture, span, "wait", span->ready_ps, span->begin_ps);
  span_write(picture, span, slice_name(span->slice->flags), span->begin_ps, span->end_ps);
}

void picture_stuck(struct picture *picture, const struct engine_stuck *stuck) {
  const struct sim_lane *lane = &picture->net->lanes[stuck->lane];
  const struct perfetto_place place = lane_named(picture, lane);
  char name[96];
  snprintf(name, sizeof name, "waits for %s %s rank %u", stuck->wants,
           strcmp(stuck->wants, "data") == 0 ? "from" : "of", stuck->peer);
  perfetto_slice_open(&picture->perfetto, name, place, (int64_t)stuck->since_ps);
  if (stuck->link[0]) json_text(&picture->perfetto.json, "link without bandwidth", stuck->link);
  lane_say(picture, lane);
  perfetto_slice_end(&picture->perfetto);
}

void picture_kernel(struct picture *picture, const char *name, const struct run_kernel *kernel) {
  const struct perfetto_place place = {kernel->rank, kernel->stream};
  if (picture->kernels++ >= PICTURE_SPANS_MAX) return;
  perfetto_slice(&picture->perfetto, name, place, (int64_t)kernel->begin_ps, (int64_t)kernel->end_ps);
  perfetto_slice_end(&picture->perfetto);
}

bool picture_end(struct picture *picture) {
  perfetto_end(&picture->perfetto);
  os_free(picture->named);
  return picture->spans <= PICTURE_SPANS_MAX && picture->kernels <= PICTURE_SPANS_MAX;
}
