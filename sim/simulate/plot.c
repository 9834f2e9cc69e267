/* plot.c: see plot.h. Both axes are logarithmic: sizes by powers of two, bandwidths by powers of ten. */
#include "simulate/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

#define WIDTH 760.0
#define HEIGHT 440.0
#define LEFT 70.0
#define RIGHT 130.0
#define TOP 40.0
#define BOTTOM 50.0

/* The range of the axes: whole powers. */
struct frame {
  double x_first, x_last, y_first, y_last;
};

ncclResult_t plot_add(struct plot *plot, uint32_t series, const char *name, double bytes, double gbps) {
  TRY(array_reserve(&plot->points, &plot->point_capacity, (uint64_t)plot->point_count + 1,
                    sizeof *plot->points, "the points of a plot"));
  plot->names[series % PLOT_SERIES_MOST] = name;
  if (bytes > 0 && gbps > 0)
    plot->points[plot->point_count++] = (struct plot_point){series % PLOT_SERIES_MOST, bytes, gbps};
  return ncclSuccess;
}

void plot_free(struct plot *plot) {
  os_free(plot->points);
  memset(plot, 0, sizeof *plot);
}

static struct frame frame_of(const struct plot *plot) {
  struct frame frame = {1e9, -1e9, 1e9, -1e9};
  for (uint32_t i = 0; i < plot->point_count; i++) {
    const double x = log2(plot->points[i].bytes), y = log10(plot->points[i].gbps);
    if (floor(x) < frame.x_first) frame.x_first = floor(x);
    if (ceil(x) > frame.x_last) frame.x_last = ceil(x);
    if (floor(y) < frame.y_first) frame.y_first = floor(y);
    if (ceil(y) > frame.y_last) frame.y_last = ceil(y);
  }
  if (plot->point_count == 0) frame = (struct frame){0, 1, 0, 1};
  if (frame.x_last == frame.x_first) frame.x_last += 1;
  if (frame.y_last == frame.y_first) frame.y_last += 1;
  return frame;
}

static double x_of(const struct frame *frame, double x) {
  return LEFT + (x - frame->x_first) / (frame->x_last - frame->x_first) * (WIDTH - LEFT - RIGHT);
}
static double y_of(const struct frame *frame, double y) {
  return HEIGHT - BOTTOM - (y - frame->y_first) / (frame->y_last - frame->y_first) * (HEIGHT - TOP - BOTTOM);
}

static void axes_draw(const struct frame *frame, const char *axis, struct svg *svg) {
  static const char units[] = " KMGTPE";
  const double left = x_of(frame, frame->x_first), right = x_of(frame, frame->x_last);
  const double bottom = y_of(frame, frame->y_first), top = y_of(frame, frame->y_last);
  const double step = frame->x_last - frame->x_first > 12 ? ceil((frame->x_last - frame->x_first) / 12) : 1;
  char words[32];
  for (double x = frame->x_first; x <= frame->x_last; x += step) {
    const int power = x > 0 ? (int)x : 0, unit = power / 10;
    snprintf(words, sizeof words, "%.0f%.*s", exp2(power - 10 * unit), unit > 0, &units[unit]);
    svg_line(svg, x_of(frame, x), top, x_of(frame, x), bottom, "#dddddd");
    svg_words(svg, x_of(frame, x), bottom + 16, "middle", words);
  }
  for (double y = frame->y_first; y <= frame->y_last; y += 1) {
    snprintf(words, sizeof words, "%.10g", pow(10, y));
    svg_line(svg, left, y_of(frame, y), right, y_of(frame, y), "#dddddd");
    svg_words(svg, left - 6, y_of(frame, y) + 4, "end", words);
  }
  svg_words(svg, (left + right) / 2, bottom + 36, "middle", "size, bytes");
  svg_words(svg, left - 6, top - 8, "end", axis);
}

static void series_draw(const struct plot *plot, const struct frame *frame, uint32_t series,
                        struct svg *svg) {
  const struct plot_point *before = NULL;
  char words[96];
  for (uint32_t i = 0; i < plot->point_count; i++) {
    const struct plot_point *point = &plot->points[i];
    if (point->series != series) continue;
    const double x = x_of(frame, log2(point->bytes)), y = y_of(frame, log10(point->gbps));
    if (before)
      svg_line(svg, x_of(frame, log2(before->bytes)), y_of(frame, log10(before->gbps)), x, y,
               svg_colour(series));
    snprintf(words, sizeof words, "%s: %.0f bytes, %.2f GB/s", plot->names[series], point->bytes,
             point->gbps);
    svg_box(svg, x - 2.5, y - 2.5, 5, 5, svg_colour(series), words);
    before = point;
  }
}

ncclResult_t plot_write(const struct plot *plot, const char *title, const char *axis, const char *path) {
  const struct frame frame = frame_of(plot);
  struct svg svg;
  double y = TOP + 10;
  svg_begin(&svg, WIDTH, HEIGHT, title);
  svg_words(&svg, 10, 16, "start", title);
  axes_draw(&frame, axis, &svg);
  for (uint32_t series = 0; series < PLOT_SERIES_MOST; series++) {
    if (!plot->names[series]) continue;
    series_draw(plot, &frame, series, &svg);
    svg_box(&svg, WIDTH - RIGHT + 14, y, 10, 10, svg_colour(series), NULL);
    svg_words(&svg, WIDTH - RIGHT + 30, y + 9, "start", plot->names[series]);
    y += 16;
  }
  return svg_write(&svg, path);
}
