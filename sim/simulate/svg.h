/* svg.h: writes pictures as SVG: rectangles, lines, words. The same calls give the same bytes. Knows nothing
 * of the contents. */
#ifndef TUTTI_SIM_SIMULATE_SVG_H
#define TUTTI_SIM_SIMULATE_SVG_H

#include <stdint.h>

#include "base/err.h"
#include "base/text.h"

struct svg {
  struct text text;
};

/* Distinct colours for series; `number` is taken modulo SVG_COLOURS. */
#define SVG_COLOURS 8u
const char *svg_colour(uint32_t number);

void svg_begin(struct svg *svg, double width, double height, const char *title);
/* `anchor`: "start", "middle" or "end". */
void svg_words(struct svg *svg, double x, double y, const char *anchor, const char *words);
/* An upper bound for the width of the words, drawn by svg_words(). */
double svg_words_width(const char *words);
/* `title`: the browser's tooltip; NULL: none. */
void svg_box(struct svg *svg, double x, double y, double width, double height, const char *colour,
             const char *title);
void svg_line(struct svg *svg, double x1, double y1, double x2, double y2, const char *colour);
/* Many boxes of one colour: begin, boxes, end. Each takes few bytes. */
void svg_boxes_begin(struct svg *svg);
void svg_boxes_add(struct svg *svg, double x, double y, double width, double height);
void svg_boxes_end(struct svg *svg, const char *colour);
/* Ends the picture and writes the file; frees it in any case. ncclSystemError with a sentence. */
ncclResult_t svg_write(struct svg *svg, const char *path);

#endif
