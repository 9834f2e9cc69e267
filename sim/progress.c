/* progress.c: see progress.h. */
#include "progress.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/os.h"

enum { SECOND_NS = 1000000000 };

void progress_open(struct progress *progress, const char *verb, const char *unit, FILE *out, bool always,
                   uint64_t now_ns) {
  progress->rewrites = isatty(fileno(out)) == 1;
  progress->out = always || progress->rewrites ? out : NULL;
  progress->shown = false;
  progress->verb = verb;
  progress->unit = unit;
  progress->work_count = 0;
  progress->begin_ns = progress->shown_ns = now_ns;
}

void progress_begin(struct progress *progress, const char *what, uint64_t work_count, uint64_t now_ns) {
  if (!progress->out) return;
  snprintf(progress->what, sizeof progress->what, "%s", what);
  progress->work_count = work_count;
  progress->begin_ns = now_ns;
  progress_say(progress, 0, now_ns);
}

void progress_say(struct progress *progress, uint64_t work, uint64_t now_ns) {
  if (!progress->out || now_ns < progress->shown_ns + SECOND_NS) return;
  const uint64_t all = progress->work_count > work ? progress->work_count : work;
  const double spent_s = (double)(now_ns - progress->begin_ns) / 1e9;
  fprintf(progress->out, "%stutti %s: %s", progress->rewrites ? "\r\033[K" : "", progress->verb,
          progress->what);
  if (work > 0) fprintf(progress->out, ": %.1f %%", 100 * (double)work / (double)all);
  if (work > 0 && progress->unit) fprintf(progress->out, " of %" PRIu64 " %s", all, progress->unit);
  if (work > 0) fprintf(progress->out, ", %.0f s to go", spent_s * (double)(all - work) / (double)work);
  if (!progress->rewrites) fputc('\n', progress->out);
  fflush(progress->out);
  progress->shown = progress->rewrites;
  progress->shown_ns = now_ns;
}

void progress_report(void *context, uint64_t work) {
  progress_say((struct progress *)context, work, os_time_ns());
}

void progress_clear(struct progress *progress) {
  if (!progress->shown) return;
  fputs("\r\033[K", progress->out);
  fflush(progress->out);
  progress->shown = false;
}
