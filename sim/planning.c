/* planning.c: see planning.h. */
#include "planning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/emu/world.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/plan/names.h"
#include "core/plan/tune_file.h"
#include "core/settings/config.h"
#include "kernels/launch_limits.h"
#include "machine.h"
#include "tutti.h"

static const char *const as_names[] = {"cuda", "emu", "threads", "nccl"};
enum { AS_COUNT = sizeof as_names / sizeof as_names[0] };

/* ---- what stands for the backend ---- */

static ncclResult_t limits_cuda(struct plan_limits *limits) {
  launch_limits(limits, true);
  return ncclSuccess;
}

static ncclResult_t limits_nccl(struct plan_limits *limits) {
  plan_limits_default(limits);
  return ncclSuccess;
}

/* The emulator of this process, configured as the job's. */
static ncclResult_t emulator_set(const struct planning_ask *ask, bool threads) {
  tutti_emu_config_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.threads = threads;
  config.channel_count = ask->channels;
  return tutti_emu_configure(&config);
}

/* Only limits and the name are used. */
static ncclResult_t settings_of(const struct planning_ask *ask, struct planning *job) {
  const bool emulated = job->as == PLANNING_EMU || job->as == PLANNING_THREADS;
  const struct device_ops device = {.size = sizeof device,
                                    .limits = job->as == PLANNING_CUDA ? limits_cuda : limits_nccl};
  const struct backend plain = {.size = sizeof plain, .name = "cuda", .device = &device};
  ncclConfig_t config;
  TRY(config_read("tutti", NULL, NULL, &config));
  if (ask->channels && !emulated) config.minCTAs = config.maxCTAs = (int)ask->channels;
  if (emulated) TRY(emulator_set(ask, job->as == PLANNING_THREADS));
  return settings_read(emulated ? emu_backend() : &plain, &config, &job->settings);
}

/* ---- opening ---- */

static bool as_find(const struct planning_ask *ask, struct planning *job) {
  job->as = ask->usual;
  if (!ask->as) return true;
  const int found = names_find(as_names, AS_COUNT, ask->as, strlen(ask->as));
  if (found < 0)
    fprintf(stderr, "tutti %s: --as %s: must be cuda, emu, threads or nccl\n", ask->verb, ask->as);
  else job->as = (enum planning_as)found;
  return found >= 0;
}

static void environment_set(const struct planning_ask *ask) {
  if (ask->algo) setenv("NCCL_ALGO", ask->algo, 1);
  if (ask->proto) setenv("NCCL_PROTO", ask->proto, 1);
  param_reset();
}

/* A tuning file may be standard input, so it is read once, and here: it is an input of the verb. */
static bool rules_read(const struct planning_ask *ask, struct tune_file **file) {
  const char *path = ask->tune_file ? ask->tune_file : param_text(PARAM_TUTTI_TUNE_FILE);
  if (*path && tune_file_read(path, file) != ncclSuccess) return false;
  setenv("TUTTI_TUNE_FILE", "", 1);
  param_reset();
  return true;
}

enum exit_code planning_open(const struct planning_ask *ask, struct planning *job) {
  memset(job, 0, sizeof *job);
  if (!as_find(ask, job)) return EXIT_USAGE;
  if (ask->no_net && job->as != PLANNING_EMU && job->as != PLANNING_THREADS) {
    fprintf(stderr, "tutti %s: --no-net: only nodes of the emulator share memory: --as emu or threads\n",
            ask->verb);
    return EXIT_USAGE;
  }
  struct tune_file *file = NULL;
  environment_set(ask);
  const bool read = rules_read(ask, &file);
  if (!read || settings_of(ask, job) != ncclSuccess) {
    fprintf(stderr, "tutti %s: %s\n", ask->verb, log_last_error());
    os_free(file);
    return read ? EXIT_USAGE : EXIT_INPUT;
  }
  job->settings.tune_file = file;
  job->settings.plan.tune_file = file;
  const struct emu_options *emulator = emu_options();
  job->no_net = ask->no_net || (emulator->node_count > 1 && !emulator->net);
  return EXIT_GOOD;
}

void planning_close(struct planning *job) { settings_free(&job->settings); }

/* ---- planning ---- */

bool planning_is_networked(const struct planning *job, uint32_t node_count) {
  if (node_count <= 1 || job->as == PLANNING_NCCL) return false;
  return job->as == PLANNING_CUDA || !job->no_net;
}

ncclResult_t planning_graph(const struct planning *job, const char *machine, const uint32_t *gpus,
                            uint32_t nodes, struct graph *graph) {
  return machine_graph_of(machine, gpus, nodes, job->settings.plan.limits.channel_count, graph);
}

void planning_borrow(struct plan_request *request, uint32_t algos) {
  struct plan_limits *limits = &request->settings.limits;
  if ((algos & (limits->algos | 1u << ALGO_RING)) != 0) return;
  limits->algos |= algos;
  limits->links = STEP_LINKS_MAX;
}

/* Sums in rank order need a link to every other rank. Where GPU kernels lack it, the plan is the emulator's.
 */
static void planning_borrow_order(struct plan_request *request) {
  struct plan_limits *limits = &request->settings.limits;
  if (!request->settings.rank_order) return;
  if (request->rank_count <= limits->links + 1) return;
  limits->algos |= 1u << ALGO_DIRECT | 1u << ALGO_TWO_SHOT;
  limits->links = STEP_LINKS_MAX;
  limits->quick_protos = 0;
}

/* One process has all ranks, or each has one: networks carry LL in both, as no process sends for another. */
void planning_request(const struct planning *job, const struct graph *graph, struct plan_request *request) {
  const bool emulated = job->as == PLANNING_EMU || job->as == PLANNING_THREADS;
  const struct settings_ranks ranks = {
      .rank_count = graph->rank_count,
      .paths = {emulated || param_int(PARAM_P2P_DISABLE) == 0, !emulated || !emu_options()->tear},
      .networked = planning_is_networked(job, graph->node_count),
      .net_ll = true};
  struct settings settled = job->settings;
  settings_settle(&settled, &ranks);
  plan_request_begin(request, graph->rank_count, graph);
  request->settings = settled.plan;
  if (request->settings.limits.channel_count > graph->channel_count)
    request->settings.limits.channel_count = graph->channel_count;
  if (!ranks.networked && job->as != PLANNING_NCCL) request->groups = NULL;
  request->p2p_domains = ranks.networked ? request->groups : NULL;
  for (uint32_t func = 0; func < FUNC_COUNT && job->as == PLANNING_CUDA; func++)
    planning_borrow(request, request->settings.algo_mask[func]);
  if (job->as == PLANNING_CUDA) planning_borrow_order(request);
}

/* ---- words ---- */

void planning_text(const struct planning *job, uint32_t node_count, char *out, size_t out_bytes) {
  static const char *const whose[] = {"this library's on GPUs", "the guarded emulator's",
                                      "the emulator's on threads", "NCCL's"};
  const char *between = planning_is_networked(job, node_count)       ? ", LL and Simple between nodes"
                        : node_count > 1 && job->as == PLANNING_NCCL ? ", every protocol between nodes"
                        : node_count > 1                             ? ", nodes that share memory"
                                                                     : "";
  snprintf(out, out_bytes, "%s%s (--as %s)", whose[job->as], between, as_names[job->as]);
}

const char *planning_time_note(uint8_t algo) {
  if (algo == ALGO_PAT)
    return "PAT runs in the emulator alone: its time is what a GPU kernel with NCCL's costs would take";
  if (algo == ALGO_NVLS || algo == ALGO_NVLS_TREE)
    return "NVLS and NVLSTree run in the emulator alone: their times are for a switch with NCCL's figures";
  if (algo == ALGO_COLLNET_DIRECT || algo == ALGO_COLLNET_CHAIN)
    return "CollNet runs in the emulator alone: its times are for a network that adds, with NCCL's figures";
  return NULL;
}
