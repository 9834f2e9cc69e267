/* fit.c: see fit.h. The search changes one number at a time by steps that halve, so it ends. */
#include "simulate/fit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "collective.h"
#include "core/plan/names.h"
#include "simulate/call.h"
#include "simulate/engine.h"

/* The searched factors, as logarithms. */
enum { FIT_TAKES = 0, FIT_MOVES = PROTO_COUNT, FIT_LINKS = 2 * PROTO_COUNT, FIT_COUNT };
enum { MOVES_MOST = 40 }; /* per step size and number */

struct fit_point {
  struct sim_net net;
  struct check_setup setup;
  uint32_t cluster; /* the index of its cluster */
  uint8_t proto;
  double measured_us, us;
};

struct fitter {
  const struct cluster_spec *spec;
  struct cluster *clusters; /* by number of ranks, made when needed */
  struct fit_point *points;
  uint32_t point_count;
  double found[FIT_COUNT];
};

/* ---- what was measured ---- */

/* The time in a rule's comment, "# 4.1 us"; 0: none. */
static double line_time_us(const char *line) {
  const size_t length = strcspn(line, "\n");
  const char *mark = (const char *)memchr(line, '#', length);
  char *end;
  if (!mark) return 0;
  const double us = strtod(mark + 1, &end);
  return end > mark + 1 && end < line + length && strncmp(end, " us", 3) == 0 && us > 0 && us < 1e12 ? us : 0;
}

static const char *line_at(const char *text, uint32_t line) {
  for (; line > 1 && *text; line--) {
    text += strcspn(text, "\n");
    text += *text == '\n';
  }
  return text;
}

/* One node with this many ranks; NULL if the machine has no such node. */
static struct cluster *cluster_of(struct fitter *fitter, uint32_t ranks) {
  if (ranks < 2 || ranks > TOPOLOGY_GPUS_MAX) return NULL;
  struct cluster *cluster = &fitter->clusters[ranks];
  if (cluster->ranks > 0) return cluster;
  struct cluster_spec spec = *fitter->spec;
  spec.nodes = 1;
  spec.gpus = ranks;
  return cluster_make(&spec, cluster) == ncclSuccess ? cluster : NULL;
}

/* False when memory is out; a call that cannot be planned is skipped. */
static bool point_add(struct fitter *fitter, const struct tune_rule *rule, double us) {
  struct fit_point *point = &fitter->points[fitter->point_count];
  const uint32_t ranks = rule->rank_count > 0 ? rule->rank_count : fitter->spec->gpus;
  struct cluster *cluster = us > 0 && rule->node_count <= 1 ? cluster_of(fitter, ranks) : NULL;
  const struct collective *collective = collective_find(names_collective[rule->func]);
  struct check_call call;
  if (!cluster || !collective) return true;
  const size_t count = collective_count(collective, rule->from_bytes, sizeof(float), ranks);
  if (count == 0) return true;
  call_fill(&cluster->graph, rule->func, ncclFloat32, count, rule->channel_count, &call);
  call.algo_mask = 1u << rule->algo;
  call.proto_mask = 1u << rule->proto;
  ncclResult_t result = check_setup_make(&point->setup, &call);
  if (result == ncclSuccess) result = sim_net_make(point->setup.plans, ranks, &point->net);
  if (result != ncclSuccess) {
    check_setup_free(&point->setup);
    return result != ncclSystemError;
  }
  point->cluster = ranks;
  point->proto = rule->proto;
  point->measured_us = us;
  fitter->point_count += 1;
  return true;
}

/* ---- the search ---- */

static void costs_apply(const struct fitter *fitter, struct cluster_costs *costs) {
  *costs = fitter->spec->costs;
  for (int proto = 0; proto < PROTO_COUNT; proto++) {
    const double takes = exp(fitter->found[FIT_TAKES + proto]);
    costs->launch_us[proto] *= takes;
    costs->slice_us[proto] *= takes;
    costs->move_us[proto] *= takes;
    for (int link = 0; link < TUNE_LINK_COUNT; link++) costs->post_us[link][proto] *= takes;
    costs->lane_gbps[proto] *= exp(fitter->found[FIT_MOVES + proto]);
  }
  costs->link_share *= exp(fitter->found[FIT_LINKS]);
}

/* Links of one node carry as much as the share allows. */
static void cluster_cost(struct cluster *cluster, const struct cluster_costs *costs) {
  for (uint32_t link = 0; link < cluster->paths.link_count; link++)
    cluster->link_gbps[link] =
        costs->links_gbps > 0 ? costs->links_gbps : cluster->paths.link_gbps[link] * costs->link_share;
  cluster->costs = *costs;
}

/* Simulates the points that the number affects; the sum of squares of all. Infinite when memory is out. */
static double points_run(struct fitter *fitter, int number) {
  struct cluster_costs costs;
  double sum = 0;
  costs_apply(fitter, &costs);
  for (uint32_t i = 0; i < fitter->point_count; i++) {
    struct fit_point *point = &fitter->points[i];
    if (number == FIT_LINKS || number % PROTO_COUNT == point->proto) {
      struct cluster *cluster = &fitter->clusters[point->cluster];
      struct fold fold;
      struct engine_report report;
      cluster_cost(cluster, &costs);
      const bool folded = fold_make(cluster, &point->net, NULL, &fold);
      const struct engine_request request = {
          .cluster = cluster, .net = folded ? &fold.net : &point->net, .fold = folded ? &fold : NULL};
      const ncclResult_t result = engine_run(&request, &report);
      if (folded) fold_free(&fold);
      if (result != ncclSuccess) return INFINITY;
      point->us = (double)report.end_ps / 1e6;
    }
    const double apart = log(point->us / point->measured_us);
    sum += apart * apart;
  }
  return sum;
}

/* Changes one number, in either direction, while that helps. */
static double number_search(struct fitter *fitter, int number, double step, double best) {
  for (int direction = 0; direction < 2; direction++, step = -step) {
    int moves = 0;
    for (; moves < MOVES_MOST; moves++) {
      const double was = fitter->found[number];
      fitter->found[number] = was + step;
      const double sum = points_run(fitter, number);
      if (sum < best * (1 - 1e-9)) {
        best = sum;
        continue;
      }
      fitter->found[number] = was;
      points_run(fitter, number);
      break;
    }
    if (moves > 0) break;
  }
  return best;
}

static void search(struct fitter *fitter, struct fit *fit) {
  double best = points_run(fitter, FIT_LINKS);
  for (double step = 1; step > 0.004; step /= 2)
    for (int round = 0; round < 4; round++) {
      const double before = best;
      for (int number = 0; number < FIT_COUNT; number++) {
        uint32_t concerned = 0;
        for (uint32_t i = 0; i < fitter->point_count; i++)
          concerned += number == FIT_LINKS || number % PROTO_COUNT == fitter->points[i].proto;
        if (concerned > 0) best = number_search(fitter, number, step, best);
      }
      if (best >= before * (1 - 1e-3)) break;
    }
  double sum = 0;
  for (uint32_t i = 0; i < fitter->point_count; i++)
    sum += fabs(log(fitter->points[i].us / fitter->points[i].measured_us));
  fit->time_count = fitter->point_count;
  fit->off = fitter->point_count > 0 ? exp(sum / fitter->point_count) : 1;
}

/* ---- making ---- */

static void fitter_free(struct fitter *fitter) {
  for (uint32_t i = 0; fitter->points && i < fitter->point_count; i++) {
    sim_net_free(&fitter->points[i].net);
    check_setup_free(&fitter->points[i].setup);
  }
  for (uint32_t ranks = 0; fitter->clusters && ranks <= TOPOLOGY_GPUS_MAX; ranks++)
    if (fitter->clusters[ranks].ranks > 0) cluster_free(&fitter->clusters[ranks]);
  os_free(fitter->points);
  os_free(fitter->clusters);
}

static ncclResult_t fit_text(const char *text, struct cluster_spec *spec, struct fit *fit) {
  struct fitter fitter;
  memset(&fitter, 0, sizeof fitter);
  fitter.spec = spec;
  fitter.clusters = (struct cluster *)os_alloc((TOPOLOGY_GPUS_MAX + 1) * sizeof *fitter.clusters);
  fitter.points = (struct fit_point *)os_alloc((fit->rules->count + (size_t)1) * sizeof *fitter.points);
  bool whole = fitter.clusters && fitter.points;
  for (uint32_t i = 0; whole && i < fit->rules->count; i++)
    whole = point_add(&fitter, &fit->rules->rules[i], line_time_us(line_at(text, fit->rules->rules[i].line)));
  if (whole && fitter.point_count > 0) {
    struct cluster_costs costs;
    search(&fitter, fit);
    costs_apply(&fitter, &costs);
    spec->costs = costs;
  }
  fitter_free(&fitter);
  return whole ? ncclSuccess : log_no_memory("%u measurements", fit->rules->count);
}

ncclResult_t fit_read(const char *path, struct cluster_spec *spec, struct fit *fit) {
  size_t bytes;
  struct fit made;
  memset(&made, 0, sizeof made);
  made.off = 1;
  char *text = os_file_read(path, &bytes);
  if (!text) return log_fail(ncclSystemError, "%s cannot be read: %s", path, strerror(errno));
  ncclResult_t result = tune_file_parse(path, text, bytes, &made.rules);
  if (result == ncclSuccess) result = fit_text(text, spec, &made);
  os_free(text);
  if (result == ncclSuccess) *fit = made;
  else os_free(made.rules);
  return result;
}
