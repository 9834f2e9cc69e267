/* progress.c: see progress.h. */
#include "simulate/progress.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/os.h"

enum { SECOND_NS = 1000000000 };

void progress_open(struct progress *progress, FILE *out, bool always, uint64_t now_ns) {
  progress->rewrites = isatty(fileno(out)) == 1;
  progress->out = always || progress->rewrites ? out : NULL;
  progress->shown = false;
  progress->slice_count = 0;
  progress->begin_ns = progress->said_ns = now_ns;
}

void progress_begin(struct progress *progress, const char *what, uint64_t slice_count, uint64_t now_ns) {
  if (!progress->out) return;
  snprintf(progress->what, sizeof progress->what, "%s", what);
  progress->slice_count = slice_count;
  progress->begin_ns = now_ns;
  progress_say(progress, 0, now_ns);
}

void progress_say(struct progress *progress, uint64_t slices, uint64_t now_ns) {
  if (!progress->out || now_ns < progress->said_ns + SECOND_NS) return;
  const uint64_t all = progress->slice_count > slices ? progress->slice_count : slices;
  const double spent_s = (double)(now_ns - progress->begin_ns) / 1e9;
  fprintf(progress->out, "%stutti sim: %s", progress->rewrites ? "\r\033[K" : "", progress->what);
  if (slices > 0)
    fprintf(progress->out, ": %.1f %% of %" PRIu64 " slices, %.0f s to go",
            100 * (double)slices / (double)all, all, spent_s * (double)(all - slices) / (double)slices);
  if (!progress->rewrites) fputc('\n', progress->out);
  fflush(progress->out);
  progress->shown = progress->rewrites;
  progress->said_ns = now_ns;
}

void progress_report(void *context, uint64_t slices) {
  progress_say((struct progress *)context, slices, os_time_ns());
}

void progress_clear(struct progress *progress) {
  if (!progress->shown) return;
  fputs("\r\033[K", progress->out);
  fflush(progress->out);
  progress->shown = false;
}
