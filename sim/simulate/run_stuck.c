/* run_stuck.c: which ranks wait for which, when the run is stuck. */
#include "simulate/run_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* ---- reports ---- */

void run_stuck_add(void *context, const struct engine_stuck *stuck) {
  struct run *run = (struct run *)context;
  struct track *track = &run->tracks[run->net.blocks[run->net.lanes[stuck->lane].block].track];
  if (track->stuck != 0 || !run->stuck) return;
  struct stuck_lane *kept = &run->stuck[run->stuck_count++];
  kept->peer = stuck->peer;
  kept->wants = stuck->wants;
  snprintf(kept->link, sizeof kept->link, "%s", stuck->link);
  track->stuck = run->stuck_count;
}

#define say(run, ...) text_append((run)->report->text, sizeof(run)->report->text, __VA_ARGS__)

/* The track of a rank whose step for this communicator others wait for: the first step that has not ended. */
static struct track *track_behind(const struct run *run, uint32_t rank, uint32_t comm) {
  struct track *found = NULL;
  uint32_t first = UINT32_MAX;
  for (uint32_t i = run->first_track[rank]; i < run->first_track[rank + 1]; i++) {
    struct track *track = &run->tracks[i];
    for (uint32_t k = track->step; k < run->workload->ranks[rank].step_count && k < first; k++) {
      const struct workload_call *call = &run->workload->calls[run->workload->ranks[rank].steps[k].call];
      if (call->stream != track->stream || call->op_count == 0 || call->comm != comm) continue;
      first = k;
      found = track;
    }
  }
  return found;
}

/* The track that this one waits for; NULL: none that will continue. */
static struct track *track_waits_for(const struct run *run, const struct track *track) {
  const struct workload_call *call = run_step_call(run, track);
  uint64_t free_ps = 0;
  if (track->stuck != 0) return track_behind(run, run->stuck[track->stuck - 1].peer, call->comm);
  struct track *before = track->running ? NULL : run_turn_of(run, track, &free_ps);
  if (before) return before;
  return track->running ? NULL : run_track_find(run, track->rank, call->wait_stream);
}

static void track_say(struct run *run, const struct track *track) {
  const struct workload_call *call = run_step_call(run, track);
  char op[160] = "compute", where[256], more[32] = "";
  if (call->op_count > 0)
    workload_say_op(run->workload, call, &run->workload->ops[call->first_op], op, sizeof op);
  if (call->op_count > 1) snprintf(more, sizeof more, " and %u more", call->op_count - 1);
  workload_say_place(run->workload, call, where, sizeof where);
  say(run, "rank %u (%s%s%s) waits for ", track->rank, where, op, more);
  uint64_t free_ps = 0;
  const struct track *before = run_turn_of(run, track, &free_ps);
  if (track->stuck == 0 && before)
    say(run, "its earlier call on stream %s", run->workload->streams[before->stream]);
  else if (track->stuck == 0)
    say(run, "its stream %s",
        call->wait_stream < run->workload->stream_count ? run->workload->streams[call->wait_stream] : "");
  else {
    const struct stuck_lane *stuck = &run->stuck[track->stuck - 1];
    say(run, "%s %s rank %u", stuck->wants, !strcmp(stuck->wants, "data") ? "from" : "of", stuck->peer);
    if (stuck->link[0]) say(run, " over %s, which carries nothing", stuck->link);
  }
}

/* Follows waits from `track` until one is reached again; NULL if the chain ends: *last is its end. */
static struct track *cycle_find(const struct run *run, struct track *track, struct track **last) {
  for (uint32_t hops = 0; hops <= 2 * run->track_count; hops++) {
    *last = track;
    if (track->stuck != 0 && run->stuck[track->stuck - 1].link[0]) return NULL;
    struct track *next = track_waits_for(run, track);
    if (!next || run_track_ended(run, next)) return NULL;
    track = next;
  }
  return track;
}

void run_stuck_report(struct run *run) {
  enum { SHOWN = 8 };
  struct track *first = NULL, *last;
  uint32_t open = 0, length = 0;
  for (uint32_t i = 0; i < run->track_count; i++) {
    if (run_track_ended(run, &run->tracks[i])) continue;
    open += 1;
    if (!first && (run->tracks[i].stuck != 0 || !run->tracks[i].running)) first = &run->tracks[i];
  }
  say(run, "%u of %u streams of ranks never end: ", open, run->track_count);
  if (!first) return;
  struct track *const cycle = cycle_find(run, first, &last);
  if (!cycle) {
    track_say(run, last);
    return;
  }
  struct track *at = cycle;
  do {
    if (length < SHOWN) say(run, "%s", length > 0 ? "; " : "");
    if (length++ < SHOWN) track_say(run, at);
    at = track_waits_for(run, at);
  } while (at != cycle);
  say(run, "%s: a cycle of %u that wait for each other", length > SHOWN ? "; ..." : "", length);
}
