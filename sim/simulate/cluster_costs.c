/* cluster_costs.c: the default costs of the protocols, and how to set them: by name, or by LogGP's parameters
 * (cluster.h). Knows no machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simulate/cluster.h"

/* Fitted to all_reduce of NCCL on four H200 over NVLink (bench/sim_fit.py; README.md, "Accuracy"); what
 * a network costs is that of the tuner's table. */
static const struct cluster_costs costs_default = {
    {6.0, 7.24, 16.7},                                     /* launch */
    6.0,                                                   /* ... of messages: as LL */
    {0.027, 0.911, 0.838},                                 /* slice */
    {0.031, 1.0, 0.428},                                   /* move */
    {{0.5, 0.5, 1.25}, {0.85, 1.9, 2.4}, {1.2, 1.6, 3.0}}, /* post: NVLink, PCIe, network */
    {4.62, 11.3, 29.1},                                    /* lane */
    1.03,
    1.0,
    0.7,
    0,
    0,
    0,
    0,
    0.7, /* tune_proxied_ll_gbps */
};

void cluster_spec_begin(struct cluster_spec *spec) {
  memset(spec, 0, sizeof *spec);
  spec->costs_text = "costs of NCCL on 4 H200";
  spec->nodes = 1;
  spec->gpus = 8;
  spec->fabric = (struct cluster_fabric){32, 0.6, 1};
  spec->costs = costs_default;
}

/* Fitted to this library's all_reduce on four H200 over NVLink (bench/sim_fit.py --kernels), mostly direct
 * collectives: their blocks pass LL lines on from registers, so only links bound LL, their launches set up no
 * rings, and data that arrives in outputs is in its final place. */
void cluster_costs_kernels(struct cluster_costs *costs) {
  static const struct {
    double launch_us, slice_us, move_us, post_us, lane_gbps;
  } ll = {7.58, 0, 0, 0.5, 400}, simple = {4.25, 0.402, 0.195, 1.24, 75.2};
  costs->launch_us[PROTO_LL] = costs->message_launch_us = ll.launch_us;
  costs->slice_us[PROTO_LL] = ll.slice_us;
  costs->move_us[PROTO_LL] = ll.move_us;
  costs->post_us[TUNE_NVLINK][PROTO_LL] = ll.post_us;
  costs->lane_gbps[PROTO_LL] = ll.lane_gbps;
  costs->launch_us[PROTO_SIMPLE] = simple.launch_us;
  costs->slice_us[PROTO_SIMPLE] = simple.slice_us;
  costs->move_us[PROTO_SIMPLE] = simple.move_us;
  costs->post_us[TUNE_NVLINK][PROTO_SIMPLE] = simple.post_us;
  costs->lane_gbps[PROTO_SIMPLE] = simple.lane_gbps;
  costs->link_share = 0.921;
  costs->zero_copy = 1;
}

/* ---- by name ---- */

#define AT(member) offsetof(struct cluster_costs, member) / sizeof(double)

static const struct cost_row {
  const char *name;
  size_t at; /* doubles from the start */
  uint32_t count;
  double lowest;
} cost_rows[] = {
    {"launch_us", AT(launch_us), PROTO_COUNT, 0},
    {"message_launch_us", AT(message_launch_us), 1, 0},
    {"slice_us", AT(slice_us), PROTO_COUNT, 0},
    {"move_us", AT(move_us), PROTO_COUNT, 0},
    {"nvlink_post_us", AT(post_us[TUNE_NVLINK]), PROTO_COUNT, 0},
    {"pci_post_us", AT(post_us[TUNE_PCI]), PROTO_COUNT, 0},
    {"network_post_us", AT(post_us[TUNE_NET]), PROTO_COUNT, 0},
    {"lane_gbps", AT(lane_gbps), PROTO_COUNT, 1e-3},
    {"link_share", AT(link_share), 1, 1e-3},
    {"zero_copy", AT(zero_copy), 1, 0},
    {"proxy_us", AT(proxy_us), 1, 0},
    {"message_us", AT(message_us), 1, 0},
    {"side_us", AT(side_us), 1, 0},
    {"gap_us", AT(gap_us), 1, 0},
    {"proxy_ll_gbps", AT(proxy_ll_gbps), 1, 0},
    {"links_gbps", AT(links_gbps), 1, 0},
};
enum { COST_ROWS = sizeof cost_rows / sizeof cost_rows[0] };

static const char cost_expected[] =
    "NAME=VALUE with a value of 0 to 1e6 (gbps of lanes and shares from 0.001), NAME one of launch_us, "
    "slice_us, move_us, nvlink_post_us, pci_post_us, network_post_us, lane_gbps (with .LL, .LL128 or .Simple "
    "behind it, or for all three), message_launch_us, link_share, proxy_us, message_us, side_us, gap_us, "
    "links_gbps, zero_copy and proxy_ll_gbps";

/* Which of a row's costs the rest of the name selects: all, one, or none (PROTO_COUNT + 1). */
static uint32_t cost_proto(const char *rest, size_t length) {
  static const char *const names[PROTO_COUNT] = {".LL", ".LL128", ".Simple"};
  if (length == 0) return PROTO_COUNT;
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++)
    if (strlen(names[proto]) == length && memcmp(rest, names[proto], length) == 0) return proto;
  return PROTO_COUNT + 1;
}

const char *cluster_cost_set(struct cluster_costs *costs, const char *text) {
  double *figures = (double *)costs;
  const size_t length = strcspn(text, "=");
  char *end;
  for (size_t i = 0; i < COST_ROWS; i++) {
    const struct cost_row *row = &cost_rows[i];
    const size_t name = strlen(row->name);
    if (length < name || memcmp(text, row->name, name) != 0) continue;
    const uint32_t proto = cost_proto(text + name, length - name);
    if (proto > PROTO_COUNT || (row->count == 1 && proto != PROTO_COUNT) || text[length] == 0) continue;
    const double value = strtod(text + length + 1, &end);
    if (end == text + length + 1 || *end != 0 || !(value >= row->lowest && value <= 1e6)) break;
    for (uint32_t k = 0; k < row->count; k++)
      if (proto == PROTO_COUNT || proto == k) figures[row->at + k] = value;
    return NULL;
  }
  return cost_expected;
}

/* ---- by LogGP ---- */

static bool loggp_read(const char *text, double figures[4]) {
  for (int i = 0; i < 4; i++) {
    char *end;
    figures[i] = strtod(text, &end);
    if (end == text || *end != (i < 3 ? ',' : 0) || !(figures[i] >= 0 && figures[i] <= 1e6)) return false;
    text = end + 1;
  }
  return figures[3] >= 1e-6;
}

const char *cluster_loggp_set(struct cluster_spec *spec, const char *text) {
  struct cluster_costs *costs = &spec->costs;
  double figures[4];
  if (!loggp_read(text, figures))
    return "L,o,g,G: latency, overhead and gap in microseconds (0 to 1e6), and nanoseconds a byte (1e-6 to "
           "1e6)";
  memset(costs, 0, sizeof *costs);
  costs->side_us = figures[1];
  costs->gap_us = figures[2];
  costs->links_gbps = 1 / figures[3];
  costs->link_share = 1;
  for (int proto = 0; proto < PROTO_COUNT; proto++) {
    costs->lane_gbps[proto] = 1e6;
    for (int link = 0; link < TUNE_LINK_COUNT; link++) costs->post_us[link][proto] = figures[0];
  }
  spec->fabric.hop_us = 0;
  spec->costs_text = "LogGP's costs";
  return NULL;
}
