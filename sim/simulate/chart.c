/* chart.c: see chart.h. */
#include "simulate/chart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "simulate/svg.h"

enum {
  COLUMNS = 160,  /* at most; at least half of it is used */
  ROWS_MOST = 48, /* of ranks, or of streams */
  KERNELS_MOST = 2000,
  LINKS_KEPT = 65536, /* that carry anything */
  LINKS_SHOWN = 24,
  LEGEND_MOST = SVG_COLOURS
};
/* Of the picture. */
#define WIDTH 1000.0
#define RIGHT 44.0 /* half of the last time label on the axis */
#define ROW_HEIGHT 14.0
#define TOP 46.0
#define WAITING "#f2c9a0"
#define STUCK "#d7301f"

/* Times in a column, ps. */
struct row {
  double moves[COLUMNS], waits[COLUMNS], stuck[COLUMNS]; /* stuck: waits that do not end */
  uint32_t lanes;                                        /* of its ranks */
};

/* A link's bytes by column. */
struct carried {
  uint32_t link;
  double sum;
  float bytes[COLUMNS];
};

struct chart {
  const struct cluster *cluster;
  const struct workload *workload;
  const struct sim_net *net;
  uint64_t column_ps, end_ps;
  uint32_t row_ranks; /* ranks of a row */
  struct row rows[ROWS_MOST];
  struct run_kernel kernels[KERNELS_MOST];
  uint32_t kernel_count; /* all kernels; those beyond KERNELS_MOST are not stored */
  uint32_t *first_link;  /* by connection: in links; one entry more */
  uint32_t *links;
  uint32_t *place; /* by link: index in carried + 1 */
  struct carried *carried;
  uint32_t carried_count, carried_capacity;
  bool failed, some_left_out, some_stuck;
  double left; /* of the picture: where names end and the time axis begins */
};

struct chart *chart_open(const struct cluster *cluster, const struct workload *workload) {
  struct chart *chart = (struct chart *)os_alloc(sizeof *chart);
  if (!chart) return NULL;
  chart->cluster = cluster;
  chart->workload = workload;
  chart->column_ps = 1000;
  for (chart->row_ranks = 1; chart->row_ranks * ROWS_MOST < cluster->ranks;) chart->row_ranks *= 2;
  chart->place = (uint32_t *)os_alloc(cluster->link_count * sizeof *chart->place);
  if (chart->place) return chart;
  chart_close(chart);
  return NULL;
}

void chart_close(struct chart *chart) {
  if (!chart) return;
  os_free(chart->first_link);
  os_free(chart->links);
  os_free(chart->place);
  os_free(chart->carried);
  os_free(chart);
}

/* ---- collecting ---- */

/* Each connection's links, computed once. */
void chart_net(void *context, const struct sim_net *net) {
  struct chart *chart = (struct chart *)context;
  struct cluster_route route;
  size_t count = 0;
  chart->net = net;
  for (uint32_t i = 0; i < net->lane_count && !chart->workload; i++)
    chart->rows[net->lanes[i].rank / chart->row_ranks].lanes += 1;
  for (uint32_t i = 0; i < net->conn_count; i++) {
    cluster_route_find(chart->cluster, &net->conns[i], &route);
    count += route.link_count;
  }
  chart->first_link = (uint32_t *)os_alloc((net->conn_count + (size_t)1) * sizeof *chart->first_link);
  chart->links = (uint32_t *)os_alloc((count + 1) * sizeof *chart->links);
  chart->failed = !chart->first_link || !chart->links || count > UINT32_MAX;
  for (uint32_t i = 0, at = 0; !chart->failed && i < net->conn_count; i++) {
    cluster_route_find(chart->cluster, &net->conns[i], &route);
    chart->first_link[i] = at;
    memcpy(&chart->links[at], route.links, route.link_count * sizeof *route.links);
    at += route.link_count;
    chart->first_link[i + 1] = at;
  }
}

static void columns_join(struct chart *chart) {
  for (uint32_t c = 0; c < COLUMNS; c++) {
    const bool half = 2 * c < COLUMNS;
    for (uint32_t i = 0; i < ROWS_MOST; i++) {
      struct row *row = &chart->rows[i];
      row->moves[c] = half ? row->moves[2 * c] + row->moves[2 * c + 1] : 0;
      row->waits[c] = half ? row->waits[2 * c] + row->waits[2 * c + 1] : 0;
      row->stuck[c] = half ? row->stuck[2 * c] + row->stuck[2 * c + 1] : 0;
    }
    for (uint32_t i = 0; i < chart->carried_count; i++) {
      float *bytes = chart->carried[i].bytes;
      bytes[c] = half ? bytes[2 * c] + bytes[2 * c + 1] : 0;
    }
  }
  chart->column_ps *= 2;
}

static void time_reach(struct chart *chart, uint64_t end_ps) {
  if (end_ps > chart->end_ps) chart->end_ps = end_ps;
  while (chart->end_ps > COLUMNS * chart->column_ps) columns_join(chart);
}

/* The part of [begin, end) that is in the column, ps. */
static double column_part(const struct chart *chart, uint32_t column, uint64_t begin_ps, uint64_t end_ps) {
  const uint64_t first = column * chart->column_ps, last = first + chart->column_ps;
  return (double)(end_ps < last ? end_ps : last) - (double)(begin_ps > first ? begin_ps : first);
}

static uint32_t column_of(const struct chart *chart, uint64_t ps) {
  const uint64_t column = ps / chart->column_ps;
  return column < COLUMNS ? (uint32_t)column : COLUMNS - 1;
}

static void time_add(const struct chart *chart, double *columns, uint64_t begin_ps, uint64_t end_ps) {
  if (end_ps <= begin_ps) return;
  const uint32_t last = column_of(chart, end_ps);
  for (uint32_t c = column_of(chart, begin_ps); c <= last; c++)
    columns[c] += column_part(chart, c, begin_ps, end_ps);
}

static struct carried *carried_of(struct chart *chart, uint32_t link) {
  if (chart->place[link] > 0) return &chart->carried[chart->place[link] - 1];
  if (chart->carried_count == LINKS_KEPT) {
    chart->some_left_out = true;
    return NULL;
  }
  if (!array_grow(&chart->carried, &chart->carried_capacity, (uint64_t)chart->carried_count + 1,
                  sizeof *chart->carried)) {
    chart->failed = true;
    return NULL;
  }
  struct carried *row = &chart->carried[chart->carried_count++];
  memset(row, 0, sizeof *row);
  row->link = link;
  chart->place[link] = chart->carried_count;
  return row;
}

/* Distributes bytes evenly from begin to end, on all links of the connection. */
static void bytes_add(struct chart *chart, uint32_t conn, double bytes, uint64_t begin_ps, uint64_t end_ps) {
  if (end_ps <= begin_ps) end_ps = begin_ps + 1;
  const uint32_t first = column_of(chart, begin_ps), last = column_of(chart, end_ps);
  for (uint32_t i = chart->first_link[conn]; i < chart->first_link[conn + 1]; i++) {
    struct carried *row = carried_of(chart, chart->links[i]);
    if (!row) continue;
    row->sum += bytes;
    for (uint32_t c = first; c <= last; c++)
      row->bytes[c] += (float)(bytes * column_part(chart, c, begin_ps, end_ps) / (double)(end_ps - begin_ps));
  }
}

void chart_span(void *context, const struct engine_span *span) {
  struct chart *chart = (struct chart *)context;
  const struct sim_lane *lane = &chart->net->lanes[span->lane];
  const uint32_t gpus = chart->cluster->gpus;
  if (chart->failed) return;
  time_reach(chart, span->end_ps);
  struct row *row = &chart->rows[lane->rank / chart->row_ranks];
  time_add(chart, row->moves, span->begin_ps, span->end_ps);
  time_add(chart, row->waits, span->ready_ps, span->begin_ps);
  for (uint32_t i = 0; i < (uint32_t)lane->work->recv_count + lane->work->send_count; i++) {
    const bool sends = i >= lane->work->recv_count;
    const link_set over =
        sends ? span->slice->sends >> (i - lane->work->recv_count) : span->slice->reads >> i;
    const uint32_t number = chart->net->links[lane->first_link + i];
    const struct sim_conn *conn = &chart->net->conns[number];
    if ((over & 1) == 0) continue;
    if (conn->sender / gpus != conn->receiver / gpus) continue; /* a proxy sends it: chart_message */
    const double bytes = (double)span->slice->moves[i].moved * cluster_wire(conn->proto);
    bytes_add(chart, number, bytes, span->begin_ps, span->end_ps);
  }
}

void chart_stuck(void *context, const struct engine_stuck *stuck) {
  struct chart *chart = (struct chart *)context;
  const struct sim_lane *lane = &chart->net->lanes[stuck->lane];
  if (chart->failed || stuck->since_ps >= chart->end_ps) return;
  time_add(chart, chart->rows[lane->rank / chart->row_ranks].stuck, stuck->since_ps, chart->end_ps);
  chart->some_stuck = true;
}

void chart_message(void *context, const struct engine_message *message) {
  struct chart *chart = (struct chart *)context;
  if (chart->failed) return;
  time_reach(chart, message->end_ps);
  bytes_add(chart, message->conn,
            (double)message->bytes * cluster_wire(chart->net->conns[message->conn].proto), message->begin_ps,
            message->end_ps);
}

void chart_kernel(void *context, const struct run_kernel *kernel) {
  struct chart *chart = (struct chart *)context;
  time_reach(chart, kernel->end_ps);
  if (chart->kernel_count < KERNELS_MOST) chart->kernels[chart->kernel_count] = *kernel;
  chart->kernel_count += 1;
}

/* ---- drawing ---- */

static double x_of(const struct chart *chart, double ps) {
  return chart->left + (chart->end_ps > 0 ? ps / (double)chart->end_ps : 0) * (WIDTH - chart->left - RIGHT);
}

/* Where a column begins; the last one ends at the end of the run. */
static double column_x(const struct chart *chart, uint32_t column) {
  const uint64_t ps = column * chart->column_ps;
  return x_of(chart, (double)(ps < chart->end_ps ? ps : chart->end_ps));
}

static uint32_t row_count(const struct chart *chart) {
  return (chart->cluster->ranks + chart->row_ranks - 1) / chart->row_ranks;
}

static double column_sum(const struct row *row, uint32_t column) {
  return row->moves[column] + row->waits[column] + row->stuck[column];
}

static bool row_is_used(const struct row *row) {
  for (uint32_t c = 0; c < COLUMNS; c++)
    if (column_sum(row, c) > 0) return true;
  return false;
}

static uint32_t rows_used(const struct chart *chart) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < row_count(chart); i++) count += row_is_used(&chart->rows[i]);
  return count;
}

/* Vertical time lines over the rows, at 1, 2 or 5 times a power of ten. */
static void axis_draw(const struct chart *chart, struct svg *svg, double top, double bottom) {
  const double end_us = (double)chart->end_ps / 1e6;
  double step = 1e-3;
  for (uint32_t i = 0; end_us / step > 10; i++) step *= i % 3 == 1 ? 2.5 : 2;
  for (double us = 0; us <= end_us * 1.0001; us += step) {
    char words[32];
    const double x = x_of(chart, us * 1e6);
    svg_line(svg, x, top, x, bottom, "#dddddd");
    snprintf(words, sizeof words, "%.10g us", us);
    svg_words(svg, x, top - 4, "middle", words);
  }
}

/* The time that the full height of a row represents: that of all its lanes. Kernels take turns on a stream's
 * lanes: for them it is the most in any column. */
static double row_whole(const struct chart *chart, const struct row *row) {
  double most = 0;
  if (row->lanes > 0) return row->lanes * (double)chart->column_ps;
  for (uint32_t c = 0; c < COLUMNS; c++)
    if (column_sum(row, c) > most) most = column_sum(row, c);
  return most;
}

/* What a row has in a column, from the bottom. */
enum part { PART_MOVES, PART_WAITS, PART_STUCK, PARTS };
static const struct {
  const char *colour, *name;
} parts[PARTS] = {{NULL, "lanes move data"}, {WAITING, "lanes wait"}, {STUCK, "lanes wait for ever"}};

static const char *part_colour(enum part part) {
  return part == PART_MOVES ? svg_colour(0) : parts[part].colour;
}

static void row_draw(const struct chart *chart, struct svg *svg, const struct row *row, double y,
                     enum part part) {
  const double *const columns[PARTS] = {row->moves, row->waits, row->stuck};
  const double unit = (ROW_HEIGHT - 2) / row_whole(chart, row);
  for (uint32_t c = 0; c < COLUMNS; c++) {
    double below = 0;
    for (uint32_t i = 0; i < (uint32_t)part; i++) below += columns[i][c] * unit;
    const double x = column_x(chart, c), height = columns[part][c] * unit;
    if (height >= 0.05)
      svg_boxes_add(svg, x, y + ROW_HEIGHT - 2 - below - height, column_x(chart, c + 1) - x, height);
  }
}

static double name_draw(const struct chart *chart, struct svg *svg, double y, const char *name) {
  if (svg) svg_words(svg, chart->left - 6, y + ROW_HEIGHT - 4, "end", name);
  return svg_words_width(name) + 12;
}

static void row_name(const struct chart *chart, uint32_t number, char *words, size_t bytes) {
  const uint32_t first = number * chart->row_ranks, ranks = chart->cluster->ranks;
  const uint32_t last = first + chart->row_ranks < ranks ? first + chart->row_ranks - 1 : ranks - 1;
  if (first == last) snprintf(words, bytes, "rank %u", first);
  else snprintf(words, bytes, "ranks %u-%u", first, last);
}

static void rows_legend(const struct chart *chart, struct svg *svg, double y) {
  double x = chart->left;
  for (uint32_t part = 0; part < (chart->some_stuck ? PARTS : PART_STUCK); part++) {
    svg_box(svg, x, y + 2, 10, 10, part_colour((enum part)part), NULL);
    svg_words(svg, x + 14, y + 11, "start", parts[part].name);
    x += 30 + svg_words_width(parts[part].name);
  }
}

/* Rows of ranks: the parts of their lanes' time that move (below), wait, and wait for ever (above). */
static void rows_draw(const struct chart *chart, struct svg *svg, double *y) {
  double at = *y;
  for (uint32_t part = 0; part < PARTS; part++) {
    svg_boxes_begin(svg);
    at = *y;
    for (uint32_t i = 0; i < row_count(chart); i++) {
      if (!row_is_used(&chart->rows[i])) continue;
      row_draw(chart, svg, &chart->rows[i], at, (enum part)part);
      at += ROW_HEIGHT;
    }
    svg_boxes_end(svg, part_colour((enum part)part));
  }
  at = *y;
  for (uint32_t i = 0; i < row_count(chart); i++) {
    char words[48];
    if (!row_is_used(&chart->rows[i])) continue;
    row_name(chart, i, words, sizeof words);
    name_draw(chart, svg, at, words);
    at += ROW_HEIGHT;
  }
  *y = at;
  rows_legend(chart, svg, *y);
  *y += ROW_HEIGHT + 6;
}

/* As much of the words as fits up to the right edge. */
static void words_cut(struct svg *svg, double x, double y, const char *words) {
  char cut[256];
  const size_t most = (size_t)((WIDTH - x - 4) / svg_words_width("m"));
  if (strlen(words) <= most) snprintf(cut, sizeof cut, "%s", words);
  else snprintf(cut, sizeof cut, "%.*s...", (int)most - 3, words);
  svg_words(svg, x, y, "start", cut);
}

/* ---- kernels as boxes ---- */

struct lineup {
  uint32_t rank, stream;
};

static int lineup_compare(const void *left, const void *right) {
  const struct lineup *a = (const struct lineup *)left, *b = (const struct lineup *)right;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  return a->stream < b->stream ? -1 : a->stream > b->stream;
}

/* The streams that have kernels; more than ROWS_MOST are not drawn this way. */
static uint32_t lineups_find(const struct chart *chart, struct lineup *lineups) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < chart->kernel_count && count <= ROWS_MOST; i++) {
    uint32_t k = 0;
    while (k < count &&
           (lineups[k].rank != chart->kernels[i].rank || lineups[k].stream != chart->kernels[i].stream))
      k++;
    if (k == count) lineups[count++] = (struct lineup){chart->kernels[i].rank, chart->kernels[i].stream};
  }
  qsort(lineups, count, sizeof *lineups, lineup_compare);
  return count;
}

static void kernel_say(const struct chart *chart, const struct run_kernel *kernel, bool times, char *out,
                       size_t out_bytes) {
  const struct workload_call *call = &chart->workload->calls[kernel->call];
  struct workload_op op = chart->workload->ops[call->first_op];
  char words[160], more[64] = "";
  if (!times && (op.func == FUNC_SEND || op.func == FUNC_RECV)) op.peer = WORKLOAD_NONE;
  workload_say_op(chart->workload, call, &op, words, sizeof words);
  if (times)
    snprintf(more, sizeof more, ", %.2f to %.2f us", (double)kernel->begin_ps / 1e6,
             (double)kernel->end_ps / 1e6);
  if (call->op_count > 1) snprintf(out, out_bytes, "group of %u, %s%s", call->op_count, words, more);
  else snprintf(out, out_bytes, "%s%s", words, more);
}

/* The legend. Kernels beyond the last colour share it. */
struct legend {
  char words[LEGEND_MOST][256];
  uint8_t of[KERNELS_MOST]; /* by kernel */
  uint32_t count;
};

static void legend_make(const struct chart *chart, struct legend *legend) {
  char words[256];
  for (uint32_t i = 0; i < chart->kernel_count; i++) {
    uint32_t at = 0;
    kernel_say(chart, &chart->kernels[i], false, words, sizeof words);
    while (at < legend->count && strcmp(legend->words[at], words) != 0) at++;
    if (at == LEGEND_MOST) at = LEGEND_MOST - 1;
    else if (at == legend->count)
      snprintf(legend->words[legend->count++], sizeof legend->words[0], "%s", words);
    legend->of[i] = (uint8_t)at;
  }
}

static void lineup_name(const struct chart *chart, const struct lineup *lineup, char *words, size_t bytes) {
  if (lineup->stream == 0) snprintf(words, bytes, "rank %u", lineup->rank);
  else snprintf(words, bytes, "rank %u %.32s", lineup->rank, chart->workload->streams[lineup->stream]);
}

static void kernels_draw(const struct chart *chart, struct svg *svg, const struct lineup *lineups,
                         uint32_t count, const struct legend *legend, double *y) {
  char words[256];
  for (uint32_t i = 0; i < chart->kernel_count; i++) {
    const struct run_kernel *kernel = &chart->kernels[i];
    uint32_t row = 0;
    while (lineups[row].rank != kernel->rank || lineups[row].stream != kernel->stream) row++;
    kernel_say(chart, kernel, true, words, sizeof words);
    const double x = x_of(chart, (double)kernel->begin_ps), end = x_of(chart, (double)kernel->end_ps);
    svg_box(svg, x, *y + row * ROW_HEIGHT, end - x > 0.5 ? end - x : 0.5, ROW_HEIGHT - 2,
            svg_colour(legend->of[i]), words);
  }
  for (uint32_t row = 0; row < count; row++) {
    lineup_name(chart, &lineups[row], words, sizeof words);
    name_draw(chart, svg, *y + row * ROW_HEIGHT, words);
  }
  *y += count * ROW_HEIGHT + 8;
  for (uint32_t i = 0; i < legend->count; i++) {
    svg_box(svg, chart->left, *y, 10, 10, svg_colour(i), NULL);
    words_cut(svg, chart->left + 16, *y + 9, i == LEGEND_MOST - 1 ? "others" : legend->words[i]);
    *y += ROW_HEIGHT;
  }
}

/* ---- links ---- */

/* The load of a link: its bytes divided by what it could carry in the whole time. */
static double fill_of(const struct chart *chart, const struct carried *row) {
  const double gbps = chart->cluster->link_gbps[row->link];
  return gbps > 0 && chart->end_ps > 0 ? row->sum * 1e3 / (gbps * (double)chart->end_ps) : 0;
}

/* The busiest first, ties by number. */
static bool fuller(const struct chart *chart, const struct carried *a, const struct carried *b) {
  const double one = fill_of(chart, a), two = fill_of(chart, b);
  return one != two ? one > two : a->link < b->link;
}

static uint32_t links_choose(const struct chart *chart, const struct carried **shown) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < chart->carried_count; i++) {
    const struct carried *own = &chart->carried[i];
    uint32_t at = count;
    while (at > 0 && fuller(chart, own, shown[at - 1])) at--;
    if (at == LINKS_SHOWN) continue;
    if (count < LINKS_SHOWN) count++;
    for (uint32_t k = count - 1; k > at; k--) shown[k] = shown[k - 1];
    shown[at] = own;
  }
  return count;
}

/* Shades for the load of a link in a column. */
static const struct {
  double most;
  const char *colour, *name;
} shades[] = {{0.3, "#deebf7", "to 30 %"},
              {0.6, "#9ecae1", "to 60 %"},
              {0.9, "#4292c6", "to 90 %"},
              {0.97, "#08519c", "to 97 %"},
              {1e9, "#d7301f", "full"}};
enum { SHADES = sizeof shades / sizeof shades[0] };

static void links_legend(const struct chart *chart, struct svg *svg, uint32_t count, double y) {
  char words[96];
  snprintf(words, sizeof words, "links: the %u fullest of %u that carry data%s", count, chart->carried_count,
           chart->some_left_out ? " and more" : "");
  svg_words(svg, chart->left, y + 10, "start", words);
  for (uint32_t shade = 0; shade < SHADES; shade++) {
    const double x = WIDTH - RIGHT - (SHADES - shade) * 64;
    svg_box(svg, x, y + 1, 10, 10, shades[shade].colour, NULL);
    svg_words(svg, x + 13, y + 10, "start", shades[shade].name);
  }
}

/* The columns of a link with this shade. */
static void link_draw(const struct chart *chart, struct svg *svg, const struct carried *row, uint32_t shade,
                      double y) {
  const double gbps = chart->cluster->link_gbps[row->link];
  for (uint32_t c = 0; c < COLUMNS && c * chart->column_ps < chart->end_ps; c++) {
    const double fill = row->bytes[c] * 1e3 / (gbps * column_part(chart, c, 0, chart->end_ps));
    const double x = column_x(chart, c);
    if (fill >= 0.005 && fill <= shades[shade].most && (shade == 0 || fill > shades[shade - 1].most))
      svg_boxes_add(svg, x, y, column_x(chart, c + 1) - x, ROW_HEIGHT - 2);
  }
}

static void link_name(const struct chart *chart, const struct carried *row, char *words, size_t bytes) {
  char name[64];
  cluster_link_name(chart->cluster, row->link, name, sizeof name);
  snprintf(words, bytes, "%s  %.0f %%", name, 100 * fill_of(chart, row));
}

static void links_draw(const struct chart *chart, struct svg *svg, double y) {
  const struct carried *shown[LINKS_SHOWN];
  const uint32_t count = links_choose(chart, shown);
  links_legend(chart, svg, count, y);
  y += ROW_HEIGHT + 4;
  for (uint32_t shade = 0; shade < SHADES; shade++) {
    svg_boxes_begin(svg);
    for (uint32_t i = 0; i < count; i++) link_draw(chart, svg, shown[i], shade, y + i * ROW_HEIGHT);
    svg_boxes_end(svg, shades[shade].colour);
  }
  for (uint32_t i = 0; i < count; i++) {
    char words[96];
    link_name(chart, shown[i], words, sizeof words);
    name_draw(chart, svg, y + i * ROW_HEIGHT, words);
  }
}

/* Space for the longest name on the left. */
static void left_find(struct chart *chart, const struct lineup *lineups, uint32_t streams) {
  const struct carried *shown[LINKS_SHOWN];
  const uint32_t links = links_choose(chart, shown);
  char words[96];
  chart->left = 100;
  for (uint32_t i = 0; i < streams + links; i++) {
    if (i < streams) lineup_name(chart, &lineups[i], words, sizeof words);
    else link_name(chart, shown[i - streams], words, sizeof words);
    const double width = name_draw(chart, NULL, 0, words);
    if (width > chart->left) chart->left = width;
  }
}

ncclResult_t chart_write(struct chart *chart, const char *title, const char *path) {
  struct lineup lineups[ROWS_MOST + 1];
  struct svg svg;
  if (chart->failed) return log_no_memory("%s: the picture", path);
  const uint32_t found = chart->kernel_count <= KERNELS_MOST ? lineups_find(chart, lineups) : 0;
  const uint32_t streams = found <= ROWS_MOST ? found : 0, rows = rows_used(chart);
  const uint32_t links = chart->carried_count < LINKS_SHOWN ? chart->carried_count : LINKS_SHOWN;
  struct legend *legend = (struct legend *)os_alloc(sizeof *legend);
  double y = TOP;
  if (!legend) return log_no_memory("%s: the picture", path);
  if (streams > 0) legend_make(chart, legend);
  left_find(chart, lineups, streams);
  const uint32_t kernel_lines = streams > 0 ? streams + legend->count + 3 : 0;
  svg_begin(&svg, WIDTH, TOP + (kernel_lines + rows + links + 5) * ROW_HEIGHT, title);
  words_cut(&svg, 10, 16, title);
  if (streams > 0) {
    axis_draw(chart, &svg, y - 2, y + streams * ROW_HEIGHT);
    kernels_draw(chart, &svg, lineups, streams, legend, &y);
    y += 2 * ROW_HEIGHT;
  }
  axis_draw(chart, &svg, y - 2, y + rows * ROW_HEIGHT);
  rows_draw(chart, &svg, &y);
  links_draw(chart, &svg, y + ROW_HEIGHT);
  os_free(legend);
  return svg_write(&svg, path);
}
