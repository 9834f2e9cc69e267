/* svg.c: see svg.h. */
#include "simulate/svg.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

/* Okabe and Ito's, which most people can tell apart. */
const char *svg_colour(uint32_t number) {
  static const char *const colours[SVG_COLOURS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                   "#e69f00", "#56b4e9", "#8a7b00", "#555555"};
  return colours[number % SVG_COLOURS];
}

void svg_begin(struct svg *svg, double width, double height, const char *title) {
  memset(svg, 0, sizeof *svg);
  text_add(&svg->text,
           "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
           "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"11\">\n<title>",
           width, height, width, height);
  text_add_xml(&svg->text, title);
  text_add(&svg->text, "</title>\n");
  svg_box(svg, 0, 0, width, height, "#ffffff", NULL);
}

void svg_words(struct svg *svg, double x, double y, const char *anchor, const char *words) {
  text_add(&svg->text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  text_add_xml(&svg->text, words);
  text_add(&svg->text, "</text>\n");
}

double svg_words_width(const char *words) { return 6.6 * (double)strlen(words); }

void svg_box(struct svg *svg, double x, double y, double width, double height, const char *colour,
             const char *title) {
  text_add(&svg->text, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"", x, y, width,
           height, colour);
  if (!title) {
    text_add(&svg->text, "/>\n");
    return;
  }
  text_add(&svg->text, "><title>");
  text_add_xml(&svg->text, title);
  text_add(&svg->text, "</title></rect>\n");
}

void svg_line(struct svg *svg, double x1, double y1, double x2, double y2, const char *colour) {
  text_add(&svg->text, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"%s\" fill=\"none\"/>\n", x1, y1, x2, y2,
           colour);
}

void svg_boxes_begin(struct svg *svg) { text_add(&svg->text, "<path d=\""); }

void svg_boxes_add(struct svg *svg, double x, double y, double width, double height) {
  text_add(&svg->text, "M%.1f %.1fh%.1fv%.1fh%.1fz", x, y, width, height, -width);
}

void svg_boxes_end(struct svg *svg, const char *colour) {
  text_add(&svg->text, "\" fill=\"%s\"/>\n", colour);
}

ncclResult_t svg_write(struct svg *svg, const char *path) {
  text_add(&svg->text, "</svg>\n");
  ncclResult_t result = ncclSuccess;
  if (svg->text.failed) result = log_no_memory("%s: the picture", path);
  else if (!os_file_write(path, svg->text.begin, svg->text.bytes))
    result = log_fail(ncclSystemError, "%s cannot be written: %s", path, strerror(errno));
  text_free(&svg->text);
  return result;
}
