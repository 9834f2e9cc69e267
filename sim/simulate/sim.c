/* sim.c: the verb `sim`: nccl-tests' table for a described machine. Plans come from the library's own
 * planning, steps from its iterators; the engine computes their times. Every time is marked as simulated. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "bench/bench.h"
#include "collective.h"
#include "schedules/schedules.h"
#include "core/plan/names.h"
#include "planning.h"
#include "json.h"
#include "simulate/call.h"
#include "simulate/engine.h"
#include "simulate/fit.h"
#include "simulate/fold.h"
#include "simulate/plot.h"
#include "progress.h"
#include "simulate/workload_verb.h"
#include "verb.h"

enum { COMPARED_MOST = ALGO_COUNT, FAULTS_MOST = 64 };

struct sim_flags {
  int64_t min_bytes, max_bytes, step_bytes, step_factor, nodes, gpus, channels, root, leaf_nodes;
  const char *type, *machine, *file, *sysfs, *cluster, *algo, *proto, *compare, *perfetto, *svg, *plot,
      *workload, *plan, *loggp, *tune, *as;
  struct option_list faults, costs, scales;
  bool kernels, exact, json, rate, progress, records, chakra, gaps, print, no_net;
};
#define AT(member) offsetof(struct sim_flags, member)

static const struct option_row rows[] = {
    {'b', "minbytes", "BYTES", OPTION_BYTES, AT(min_bytes), 1, (int64_t)1 << 40,
     "smallest size (default 8); K, M and G are of 1024"},
    {'e', "maxbytes", "BYTES", OPTION_BYTES, AT(max_bytes), 1, (int64_t)1 << 40,
     "largest size (default 128M, or the smallest one)"},
    {'i', "stepbytes", "BYTES", OPTION_BYTES, AT(step_bytes), 1, (int64_t)1 << 40, "step between sizes"},
    {'f', "stepfactor", "N", OPTION_INT, AT(step_factor), 2, 1 << 20,
     "factor between sizes (default 2, unless -i)"},
    {0, "nodes", "N", OPTION_INT, AT(nodes), 1, TOPOLOGY_NODES_MAX, "nodes (default 1)"},
    {'g', "gpus", "N", OPTION_INT, AT(gpus), 1, TOPOLOGY_GPUS_MAX,
     "GPUs, and so ranks, of a node (default 8)"},
    {'m', "machine", "MACHINE", OPTION_TEXT, AT(machine), 0, 0,
     "kind of node, as `tutti topo --machine` (default dgx-h100)"},
    {0, "file", "FILE", OPTION_INPUT, AT(file), 0, 0, "kind of node from NCCL's XML instead"},
    {0, "sysfs", "DIR", OPTION_TEXT, AT(sysfs), 0, 0,
     "kind of node from /sys (this machine), or from a folder that `tutti topo` recorded"},
    {0, "cluster", "FILE", OPTION_INPUT, AT(cluster), 0, 0,
     "lines of text that describe the cluster (above)"},
    {0, "loggp", "L,o,g,G", OPTION_TEXT, AT(loggp), 0, 0,
     "LogGP's latency, overhead and gap in microseconds, and G in nanoseconds a byte, instead of all costs "
     "and links"},
    {0, "tune", "FILE", OPTION_INPUT, AT(tune), 0, 0,
     "a file of `tutti bench --tune`: its rules choose the algorithm, and costs are fitted to its times"},
    {0, "cost", "NAME=VALUE", OPTION_LIST, AT(costs), 0, 0,
     "set one cost (above), as launch_us.Simple=5; may be repeated"},
    {0, "algo", "ALGO,...", OPTION_TEXT, AT(algo), 0, 0, "sets NCCL_ALGO: ring, tree, direct, ..."},
    {0, "proto", "PROTO,...", OPTION_TEXT, AT(proto), 0, 0, "sets NCCL_PROTO: LL, LL128, Simple"},
    {0, "as", "WHOSE", OPTION_TEXT, AT(as), 0, 0,
     PLANNING_AS_HELP " (default cuda; of one node without --kernels: nccl)"},
    {0, "no-net", NULL, OPTION_FLAG, AT(no_net), 0, 0,
     "with --as emu or threads: nodes share memory, as without net=1 in TUTTI_EMU"},
    {0, "channels", "N", OPTION_INT, AT(channels), 1, PLAN_CHANNELS_MAX,
     "channels at most (default the backend's: 32 on GPUs)"},
    {0, "compare", "ALGO,...", OPTION_TEXT, AT(compare), 0, 0,
     "one column of times for each of these algorithms instead"},
    {'d', "type", "TYPE", OPTION_TEXT, AT(type), 0, 0,
     "data type, as `tutti bench` names it (default float)"},
    {'r', "root", "RANK", OPTION_INT, AT(root), 0, CLUSTER_RANKS_MAX,
     "root of broadcast, reduce, gather and scatter (default 0)"},
    {0, "fault", "WHAT", OPTION_LIST, AT(faults), 0, 0,
     "slow-rank:RANK:FACTOR, slow-link:RANK:FACTOR, nic:NODE:NIC:FACTOR or nic:NODE:NIC:off; may be "
     "repeated"},
    {0, "scale", "WHAT", OPTION_LIST, AT(scales), 0, 0,
     "nics:FACTOR, links:FACTOR (within nodes) or, of workloads, compute:FACTOR: this many times as fast, "
     "0.001 to 1000; plans do not change; may be repeated"},
    {'w', "workload", "FILE", OPTION_INPUT, AT(workload), 0, 0,
     "simulate the calls in this file (format above) instead of one collective"},
    {0, "plan", "FILE", OPTION_INPUT, AT(plan), 0, 0,
     "simulate this schedule, tutti's text, MSCCL's XML or MSCCL++'s JSON, instead of the library's own; "
     "with --compare it is the first column"},
    {0, "records", NULL, OPTION_FLAG, AT(records), 0, 0,
     "simulate the calls that FILE... have recorded instead: this library's records (TUTTI_TRACE), dumps of "
     "PyTorch's "
     "Flight "
     "Recorder, or logs of all ranks"},
    {0, "chakra", NULL, OPTION_FLAG, AT(chakra), 0, 0,
     "simulate the Chakra traces FILE... of all ranks, whose names end in .RANK.et, instead"},
    {0, "gaps", NULL, OPTION_FLAG, AT(gaps), 0, 0,
     "with --records: a rank makes each call as long after the end of the previous call as it was recorded; "
     "without: calls are made at their recorded times"},
    {0, "print", NULL, OPTION_FLAG, AT(print), 0, 0, "print the workload as text, and run nothing"},
    {0, "perfetto", "FILE", OPTION_TEXT, AT(perfetto), 0, 0,
     "also write every slice of the last size to FILE, for ui.perfetto.dev; simulates every rank"},
    {0, "svg", "FILE", OPTION_TEXT, AT(svg), 0, 0,
     "also draw what ranks do and how busy links are at the last size, as SVG in FILE; simulates every rank"},
    {0, "plot", "FILE", OPTION_TEXT, AT(plot), 0, 0,
     "also draw bus bandwidth against size for each algorithm of --compare, as SVG in FILE"},
    {0, "kernels", NULL, OPTION_FLAG, AT(kernels), 0, 0,
     "model this library's own kernels on GPUs of one node instead of NCCL's: their plans, in which small "
     "calls are direct collectives, and their costs"},
    {0, "exact", NULL, OPTION_FLAG, AT(exact), 0, 0, "simulate every rank, even if lanes are alike"},
    {0, "rate", NULL, OPTION_FLAG, AT(rate), 0, 0,
     "say on standard error how many slices were simulated a second"},
    {0, "progress", NULL, OPTION_FLAG, AT(progress), 0, 0,
     "say on standard error once a second how far it has come, also where that is no terminal"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON instead of text"},
};
static const struct option_set sim_options = {"sim", rows, sizeof rows / sizeof rows[0], false, true, true};

struct sim {
  struct sim_flags flags;
  const struct collective *collective;
  uint8_t func, type;
  size_t type_bytes;
  struct cluster_spec spec;
  char *cluster_text;
  struct fit fit;
  struct cluster cluster;
  struct check_call call;
  struct check_setup setup;
  struct planning job;                              /* whose plans */
  struct plan_request request;                      /* its communicator of all ranks */
  uint32_t compared[COMPARED_MOST], compared_count; /* sets of one algorithm each */
  uint64_t slices, events, spent_ns;
  struct progress progress;
  struct workload workload; /* no ranks: one collective */
  double compute;           /* the speed-up of computing by --scale */
  struct plot plot;
  struct custom_schedule *schedule; /* of --plan, NULL: none */
  uint64_t possible;                /* sizes that some option could carry */
  uint32_t algos_shown;             /* set of those in the table */
};

/* The result of one size with one option. */
struct sim_row {
  size_t count, bytes;
  bool possible, is_messages;
  bool flat; /* simulated as if all nodes had the same distance */
  uint8_t algo, proto;
  uint32_t channel_count;
  uint32_t lane_count, run_count; /* lanes of all ranks; those that were simulated */
  struct engine_report report;
};

/* ---- what is asked ---- */

static bool type_find(struct sim *sim) {
  for (int index = 0; index < ncclNumTypes; index++) {
    sim->type = (uint8_t)index;
    if (!strcmp(bench_type_name((ncclDataType_t)index), sim->flags.type)) return true;
  }
  fprintf(stderr, "tutti sim: --type %s: no such type; known:", sim->flags.type);
  for (int index = 0; index < ncclNumTypes; index++)
    fprintf(stderr, " %s", bench_type_name((ncclDataType_t)index));
  fputc('\n', stderr);
  return false;
}

/* The costs of one node are those of NCCL's kernels, unless --kernels is given, and so are the plans. */
static enum exit_code job_get(struct sim *sim) {
  const struct sim_flags *flags = &sim->flags;
  const bool own = flags->kernels || sim->spec.nodes > 1;
  const struct planning_ask ask = {.verb = "sim",
                                   .as = flags->as,
                                   .usual = own ? PLANNING_CUDA : PLANNING_NCCL,
                                   .algo = flags->algo,
                                   .proto = flags->proto,
                                   .channels = (uint32_t)flags->channels,
                                   .no_net = flags->no_net};
  planning_close(&sim->job);
  const enum exit_code code = planning_open(&ask, &sim->job);
  if (code != EXIT_GOOD) return code;
  if (sim->fit.rules) sim->job.settings.plan.tune_file = sim->fit.rules;
  if (sim->job.as == PLANNING_NCCL) sim->spec.costs.proxy_ll_gbps = 0; /* its NICs send lines */
  sim->spec.channels = sim->job.settings.plan.limits.channel_count;
  return EXIT_GOOD;
}

/* "ring,tree": a set of one algorithm for each word. */
static bool compared_read(struct sim *sim) {
  if (sim->schedule && sim->flags.compare) sim->compared[sim->compared_count++] = 1u << ALGO_CUSTOM;
  for (const char *word = sim->flags.compare; word && *word;) {
    const size_t length = strcspn(word, ",");
    const int algo = names_find(names_algo, ALGO_COUNT, word, length);
    if (algo < 0 || sim->compared_count == COMPARED_MOST) {
      char known[128];
      names_list(names_algo, ALGO_COUNT, ~0u, known, sizeof known);
      fprintf(stderr, "tutti sim: --compare: no algorithm `%.*s`, or too many; known: %s\n", (int)length,
              word, known);
      return false;
    }
    sim->compared[sim->compared_count++] = 1u << algo;
    word += length + (word[length] == ',');
  }
  return true;
}

static bool costs_read(struct sim *sim) {
  const char *loggp = sim->flags.loggp, *expected = loggp ? cluster_loggp_set(&sim->spec, loggp) : NULL;
  if (expected) fprintf(stderr, "tutti sim: --loggp %s: expected %s\n", loggp, expected);
  for (size_t i = 0; !expected && i < sim->flags.costs.count; i++) {
    expected = cluster_cost_set(&sim->spec.costs, sim->flags.costs.texts[i]);
    if (expected) fprintf(stderr, "tutti sim: --cost %s: expected %s\n", sim->flags.costs.texts[i], expected);
    sim->spec.costs_changed = true;
  }
  return !expected;
}

/* The cluster from flags and description. */
static enum exit_code spec_get(struct sim *sim) {
  struct sim_flags *flags = &sim->flags;
  ncclResult_t result = ncclSuccess;
  cluster_spec_begin(&sim->spec);
  if (flags->kernels) cluster_costs_kernels(&sim->spec.costs);
  if (flags->kernels) sim->spec.costs_text = "costs of this library's kernels on 4 H200";
  if (flags->cluster) result = cluster_read(flags->cluster, &sim->spec, &sim->cluster_text);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti sim: %s\n", log_last_error());
    return EXIT_INPUT;
  }
  if (flags->nodes) sim->spec.nodes = (uint32_t)flags->nodes;
  if (flags->gpus) sim->spec.gpus = (uint32_t)flags->gpus;
  if (flags->machine) sim->spec.machine = flags->machine;
  if (flags->file) sim->spec.topology = flags->file;
  if (flags->sysfs) sim->spec.sysfs = flags->sysfs;
  if (!flags->gpus) result = cluster_count_gpus(&sim->spec);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti sim: %s\n", log_last_error());
    return EXIT_INPUT;
  }
  if (!costs_read(sim)) return EXIT_USAGE;
  if (flags->kernels && (sim->spec.nodes > 1 || flags->tune)) {
    fprintf(stderr, "tutti sim: --kernels: costs of one node, as they were measured; leave out %s\n",
            flags->tune ? "--tune" : "--nodes");
    return EXIT_USAGE;
  }
  if (flags->tune) result = fit_read(flags->tune, &sim->spec, &sim->fit);
  if (flags->tune) sim->spec.costs_text = "costs by the measurements given";
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti sim: --tune: %s\n", log_last_error());
    return EXIT_INPUT;
  }
  return EXIT_GOOD;
}

/* `ranks`: the least number, if neither a flag nor the description gives the number of nodes. */
static enum exit_code cluster_get(struct sim *sim, uint32_t ranks) {
  const struct sim_flags *flags = &sim->flags;
  if (!flags->gpus && sim->schedule && ranks < sim->spec.gpus * sim->spec.nodes)
    sim->spec.gpus = (ranks + sim->spec.nodes - 1) / sim->spec.nodes;
  if (!flags->nodes && !flags->cluster) sim->spec.nodes = (ranks + sim->spec.gpus - 1) / sim->spec.gpus;
  const enum exit_code code = job_get(sim);
  if (code != EXIT_GOOD) return code;
  const ncclResult_t result = cluster_make(&sim->spec, &sim->cluster);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti sim: %s\n", log_last_error());
    return result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_USAGE;
  }
  planning_request(&sim->job, &sim->cluster.graph, &sim->request);
  return EXIT_GOOD;
}

/* Applies --scale and --fault to the cluster. */
static enum exit_code faults_set(struct sim *sim) {
  const struct option_list *faults = &sim->flags.faults, *scales = &sim->flags.scales;
  sim->compute = 1;
  for (size_t i = 0; i < scales->count; i++) {
    if (cluster_scale(&sim->cluster, scales->texts[i], &sim->compute)) continue;
    fprintf(stderr,
            "tutti sim: --scale %s: expected nics:FACTOR, links:FACTOR or compute:FACTOR, 0.001 to 1000\n",
            scales->texts[i]);
    return EXIT_USAGE;
  }
  for (size_t i = 0; i < faults->count; i++) {
    char why[256];
    if (cluster_fault(&sim->cluster, faults->texts[i], why, sizeof why)) continue;
    fprintf(stderr, "tutti sim: --fault %s: %s\n", faults->texts[i], why);
    return EXIT_USAGE;
  }
  return EXIT_GOOD;
}

static void sizes_complete(struct sim_flags *flags) {
  if (!flags->min_bytes) flags->min_bytes = flags->max_bytes && flags->max_bytes < 8 ? flags->max_bytes : 8;
  if (!flags->max_bytes) flags->max_bytes = flags->min_bytes > 128 << 20 ? flags->min_bytes : 128 << 20;
  if (!flags->step_bytes && !flags->step_factor) flags->step_factor = 2;
}

/* Reads a workload: the job's calls, and a cluster with enough ranks for them. */
static enum exit_code jobs_ask(struct sim *sim, int operand_count, char **operands) {
  const struct sim_flags *flags = &sim->flags;
  const int asked = (flags->workload != NULL) + flags->records + flags->chakra + (flags->plan != NULL);
  if (asked > 1 || (flags->workload != NULL) != (operand_count == 0)) {
    fprintf(stderr,
            "tutti sim: one of --workload FILE, --records FILE..., --chakra FILE..., --plan FILE and "
            "a collective is expected\n");
    return EXIT_USAGE;
  }
  if (flags->plot || flags->compare) {
    fprintf(stderr, "tutti sim: --compare and --plot are of a collective\n");
    return EXIT_USAGE;
  }
  enum exit_code code = spec_get(sim);
  if (code == EXIT_GOOD) code = cluster_get(sim, 1);
  if (code != EXIT_GOOD) return code;
  const ncclResult_t result =
      flags->workload ? workload_read(flags->workload, sim->cluster.ranks, &sim->workload)
      : flags->chakra ? workload_chakra(operand_count, operands, &sim->workload)
                      : workload_records(operand_count, operands, flags->gaps, &sim->workload);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti sim: %s\n", log_last_error());
    return EXIT_INPUT;
  }
  if (sim->workload.rank_count > sim->cluster.ranks) {
    cluster_free(&sim->cluster);
    code = cluster_get(sim, sim->workload.rank_count);
  }
  return code == EXIT_GOOD ? faults_set(sim) : code;
}

/* The file gives the collective and the number of ranks. */
static enum exit_code schedule_get(struct sim *sim, int operand_count) {
  if (custom_read(sim->flags.plan, &sim->schedule) != ncclSuccess) {
    fprintf(stderr, "tutti sim: %s\n", log_last_error());
    return EXIT_INPUT;
  }
  sim->collective = collective_find(
      sim->schedule->func == FUNC_ALL_TO_ALL ? "alltoall" : names_collective[sim->schedule->func]);
  sim->flags.root = sim->schedule->root;
  if (operand_count == 0) return EXIT_GOOD;
  fprintf(stderr, "tutti sim: --plan %s: its header says which collective; leave it out here\n",
          sim->flags.plan);
  return EXIT_USAGE;
}

static enum exit_code collective_get(struct sim *sim, int operand_count, char **operands) {
  if (sim->flags.print || sim->flags.gaps) {
    fprintf(stderr, "tutti sim: --print is of a workload, --gaps of --records\n");
    return EXIT_USAGE;
  }
  if (sim->flags.plan) return schedule_get(sim, operand_count);
  sim->collective = verb_collective("sim", operand_count, operands);
  return sim->collective ? EXIT_GOOD : EXIT_USAGE;
}

/* Checks that the cluster has the schedule's ranks and the root. */
static enum exit_code ranks_check(const struct sim *sim) {
  const uint32_t ranks = sim->cluster.ranks;
  if (sim->schedule && sim->schedule->rank_count != ranks) {
    fprintf(stderr, "tutti sim: --plan %s is for %u ranks, the cluster has %u; give --nodes and --gpus\n",
            sim->flags.plan, sim->schedule->rank_count, ranks);
    return EXIT_USAGE;
  }
  if (sim->flags.root < ranks) return EXIT_GOOD;
  fprintf(stderr, "tutti sim: --root: must be 0 to %u, as there are %u ranks\n", ranks - 1, ranks);
  return EXIT_USAGE;
}

static enum exit_code sim_ask(struct sim *sim, int argc, char **argv) {
  if (sim->flags.workload || sim->flags.records || sim->flags.chakra) return jobs_ask(sim, argc, argv);
  enum exit_code code = collective_get(sim, argc, argv);
  if (code != EXIT_GOOD) return code;
  sizes_complete(&sim->flags);
  sim->func = collective_func(sim->collective);
  if (!type_find(sim) || !compared_read(sim)) return EXIT_USAGE;
  if (sim->flags.max_bytes < sim->flags.min_bytes) {
    fprintf(stderr, "tutti sim: --maxbytes is less than --minbytes\n");
    return EXIT_USAGE;
  }
  sim->type_bytes = oracle_type_bytes((ncclDataType_t)sim->type);
  code = spec_get(sim);
  if (code == EXIT_GOOD) code = cluster_get(sim, sim->schedule ? sim->schedule->rank_count : 1);
  if (code == EXIT_GOOD) code = faults_set(sim);
  return code == EXIT_GOOD ? ranks_check(sim) : code;
}

/* ---- one size ---- */

/* `algo_mask`: the algorithms of a column of --compare or of --plan; 0: those of the job. */
static void row_call(struct sim *sim, size_t count, uint32_t algo_mask, struct plan_request *request) {
  *request = sim->request;
  for (uint32_t func = 0; func < FUNC_COUNT && algo_mask; func++)
    request->settings.algo_mask[func] = algo_mask;
  request->settings.algos_off &= ~algo_mask;
  if (algo_mask) planning_borrow(request, algo_mask);
  call_fill(&sim->cluster.graph, sim->func, sim->type, count, 0, &sim->call);
  sim->call.job = request;
  sim->call.root = (uint32_t)sim->flags.root;
  if (algo_mask == 1u << ALGO_CUSTOM) sim->call.custom = sim->schedule;
  sim->call.in_place = sim->call.custom && (sim->schedule->places & CUSTOM_OUT_OF_PLACE) == 0;
}

/* The option that planning chose, for the first rank that does anything. */
static void row_option(const struct sim *sim, struct sim_row *row) {
  uint64_t channels = 0;
  for (uint32_t rank = 0; rank < sim->cluster.ranks; rank++) {
    const struct plan *plan = &sim->setup.plans[rank];
    channels |= plan->channel_mask;
    if (plan->work_count == 0) continue;
    row->algo = plan->works[0].algo;
    row->proto = plan->works[0].proto;
    row->is_messages = plan->works[0].func == FUNC_SEND || plan->works[0].func == FUNC_RECV ||
                       plan->works[0].func == FUNC_COPY;
  }
  row->channel_count = (uint32_t)__builtin_popcountll(channels);
}

/* Messages have no algorithm. */
static const char *row_algo(const struct sim_row *row) {
  return row->is_messages ? "messages" : names_algo[row->algo];
}

/* Repeats the run for the pictures; each size overwrites the files. */
static ncclResult_t run_drawn(struct sim *sim, struct engine_request *request, struct sim_row *row) {
  const struct drawing_ask ask = {sim->flags.perfetto, sim->flags.svg};
  struct drawing drawing;
  char title[256];
  snprintf(title, sizeof title, "tutti sim %s of %zu bytes: %u nodes of %u, %.60s, %s %s (simulated)",
           sim->collective->name, row->bytes, sim->cluster.nodes, sim->cluster.gpus,
           sim->cluster.topology.name, row_algo(row), names_proto[row->proto]);
  ncclResult_t result = drawing_open(&drawing, &ask, &sim->cluster, NULL);
  if (result == ncclSuccess) {
    drawing_net(&drawing, request->net);
    request->hear = drawing_span;
    request->see_message = drawing_message;
    request->on_stuck = drawing_stuck;
    request->context = &drawing;
    result = engine_run(request, &row->report);
  }
  return drawing_close(&drawing, result, title);
}

/* From this number of lanes on, messages are simulated as if all leaves were one (below). */
enum { LANES_EXACT = 50000 };

/* Folds the row's net; `flat` is the cluster to run it on, or a copy that does not distinguish leaves: with
 * several leaves hardly two nodes are alike in an all-to-all, and so many transfers share links that a run
 * would take minutes. The copy adds at most two switches and cables per message. */
static bool row_fold(const struct sim *sim, const struct sim_row *row, const struct sim_net *net,
                     struct cluster *flat, struct fold *fold) {
  *flat = sim->cluster;
  flat->flat = row->is_messages && sim->cluster.leaf_count > 1 && sim->cluster.fabric.oversubscription <= 1 &&
               net->lane_count / sim->cluster.leaf_count > LANES_EXACT;
  if (fold_make(flat, net, NULL, fold)) return true;
  flat->flat = false;
  return false;
}

/* Lanes of a fold stand for others, so the report of a stall needs a run of all lanes. */
static ncclResult_t run_folded(const struct sim *sim, struct engine_request *request, struct sim_row *row,
                               const struct sim_net *whole) {
  const ncclResult_t result = engine_run(request, &row->report);
  if (result != ncclSuccess || !request->fold || !row->report.stalled) return result;
  request->cluster = &sim->cluster;
  request->net = whole;
  request->fold = NULL;
  return engine_run(request, &row->report);
}

/* If planning finds no option, row->possible stays false. */
static ncclResult_t row_run(struct sim *sim, uint32_t algo_mask, struct sim_row *row) {
  struct sim_net net;
  struct cluster cluster;
  struct fold fold;
  struct plan_request plans;
  char what[64];
  snprintf(what, sizeof what, "%zu bytes", row->bytes);
  progress_begin(&sim->progress, what, 0, os_time_ns());
  row_call(sim, row->count, algo_mask, &plans);
  ncclResult_t result = check_setup_make(&sim->setup, &sim->call);
  if (result == ncclInvalidUsage && (sim->compared_count || sim->schedule)) return ncclSuccess;
  TRY(result);
  sim->possible += 1;
  row_option(sim, row);
  if (!row->is_messages) sim->algos_shown |= 1u << row->algo;
  row->possible = true;
  TRY(sim_net_make(sim->setup.plans, sim->cluster.ranks, &net));
  const bool drawn = sim->flags.perfetto || sim->flags.svg;
  const bool folded = !sim->flags.exact && !drawn && row_fold(sim, row, &net, &cluster, &fold);
  row->flat = folded && cluster.flat;
  struct engine_request request = {.cluster = folded ? &cluster : &sim->cluster,
                                   .net = folded ? &fold.net : &net,
                                   .fold = folded ? &fold : NULL,
                                   .tell = progress_report,
                                   .report_context = &sim->progress};
  const uint64_t begin_ns = os_time_ns();
  progress_begin(&sim->progress, what, sim->progress.out ? slices_count(request.net) : 0, begin_ns);
  result = drawn ? run_drawn(sim, &request, row) : run_folded(sim, &request, row, &net);
  sim->spent_ns += os_time_ns() - begin_ns;
  sim->slices += row->report.slice_count;
  sim->events += row->report.event_count;
  row->lane_count = net.lane_count;
  row->run_count = request.net->lane_count;
  if (folded) fold_free(&fold);
  sim_net_free(&net);
  return result;
}

static double row_us(const struct sim_row *row) { return (double)row->report.end_ps / 1e6; }

/* ---- printing ---- */

/* The machine of the times, its parts separated by `between`. */
static void model_text(const struct sim *sim, const char *between, char *out, size_t out_bytes) {
  snprintf(out, out_bytes, "every slice over slots, links and proxies%s%s%s%sat most %u channels", between,
           sim->spec.costs_text, sim->spec.costs_changed ? " but for those given" : "", between,
           sim->request.settings.limits.channel_count);
}

static void head_print(const struct sim *sim) {
  const struct cluster *cluster = &sim->cluster;
  char model[200];
  model_text(sim, ", ", model, sizeof model);
  printf("# tutti sim %s: %u ranks, %u nodes of %u, %s (simulated)\n", sim->collective->name, cluster->ranks,
         cluster->nodes, cluster->gpus, cluster->topology.name);
  printf("# Model: %s\n", model);
  planning_text(&sim->job, cluster->nodes, model, sizeof model);
  printf("# Plans: %s\n", model);
  if (sim->flags.tune)
    printf("# costs fitted to %u times, %.1f %% off in the geometric mean\n", sim->fit.time_count,
           100 * (sim->fit.off - 1));
  if (sim->compared_count) {
    printf("#\n# %11s  %12s", "size", "count");
    for (uint32_t i = 0; i < sim->compared_count; i++)
      printf("  %14s", names_algo[__builtin_ctz(sim->compared[i])]);
    printf("\n# %11s  %12s", "(B)", "(elements)");
    for (uint32_t i = 0; i < sim->compared_count; i++) printf("  %14s", "(us, sim.)");
    putchar('\n');
    return;
  }
  printf("#\n# %11s  %12s  %7s  %5s  %5s  %10s  %7s  %7s  %-8s  %-6s  %s\n", "size", "count", "type", "redop",
         "root", "time", "algbw", "busbw", "algo", "proto", "ch");
  printf("# %11s  %12s  %7s  %5s  %5s  %10s  %7s  %7s\n", "(B)", "(elements)", "", "", "", "(us, sim.)",
         "(GB/s)", "(GB/s)");
}

static void row_print(const struct sim *sim, const struct sim_row *row) {
  const struct collective *collective = sim->collective;
  const double us = row_us(row), gbps = us > 0 ? (double)row->bytes / us / 1e3 : 0;
  char root[16] = "-1";
  if (!row->possible) {
    printf("  %11zu  %12zu  %7s  %5s  %5s  %10s\n", row->bytes, row->count, "", "", "", "-");
    return;
  }
  if (collective->has_root) snprintf(root, sizeof root, "%" PRId64, sim->flags.root);
  printf("  %11zu  %12zu  %7s  %5s  %5s  %10.2f  %7.2f  %7.2f  %-8s  %-6s  %u\n", row->bytes, row->count,
         bench_type_name((ncclDataType_t)sim->type), collective->has_op ? "sum" : "none", root, us, gbps,
         gbps * collective->factor(sim->cluster.ranks), row_algo(row), names_proto[row->proto],
         row->channel_count);
}

static void row_json(const struct sim *sim, struct json *json, const struct sim_row *row) {
  const double us = row_us(row), gbps = us > 0 ? (double)row->bytes / us / 1e3 : 0;
  json_open(json, NULL, '{');
  json_number(json, "size", (int64_t)row->bytes);
  json_number(json, "count", (int64_t)row->count);
  json_text(json, "algo", row_algo(row));
  json_text(json, "proto", names_proto[row->proto]);
  json_number(json, "channels", row->channel_count);
  json_decimal(json, "time_us", us);
  if (!row->is_messages && planning_time_note(row->algo))
    json_text(json, "time_note", planning_time_note(row->algo));
  json_decimal(json, "algbw", gbps);
  json_decimal(json, "busbw", gbps * sim->collective->factor(sim->cluster.ranks));
  json_number(json, "lanes", row->lane_count);
  json_number(json, "simulated_lanes", row->run_count);
  json_number(json, "slices", (int64_t)row->report.slice_count);
  json_number(json, "messages", (int64_t)row->report.message_count);
  json_bool(json, "leaves_as_one", row->flat);
  json_bool(json, "simulated", true);
  json_close(json, '}');
}

/* ---- all sizes ---- */

static enum exit_code row_do(struct sim *sim, uint32_t algo_mask, struct sim_row *row) {
  const ncclResult_t result = row_run(sim, algo_mask, row);
  progress_clear(&sim->progress);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti sim: %s\n", log_last_error());
    return result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_USAGE;
  }
  if (!row->report.stalled) return EXIT_GOOD;
  fflush(stdout);
  fprintf(stderr, "tutti sim: %zu bytes: stalled: %s\n", row->bytes, row->report.text);
  return EXIT_WRONG;
}

/* A point of the option's line; without --compare there is one line, for planning's choice. */
static bool row_plot(struct sim *sim, uint32_t series, const struct sim_row *row) {
  const double us = row_us(row), factor = sim->collective->factor(sim->cluster.ranks);
  const char *name = sim->compared_count ? names_algo[__builtin_ctz(sim->compared[series])] : "chosen";
  return plot_add(&sim->plot, series, name, (double)row->bytes,
                  us > 0 ? (double)row->bytes / us / 1e3 * factor : 0) == ncclSuccess;
}

static enum exit_code plot_do(struct sim *sim) {
  char title[256];
  snprintf(title, sizeof title, "tutti sim %s: %u nodes of %u, %.60s (simulated)", sim->collective->name,
           sim->cluster.nodes, sim->cluster.gpus, sim->cluster.topology.name);
  if (plot_write(&sim->plot, title, "bus GB/s", sim->flags.plot) == ncclSuccess) return EXIT_GOOD;
  fprintf(stderr, "tutti sim: %s\n", log_last_error());
  return EXIT_ENVIRONMENT;
}

static enum exit_code size_do(struct sim *sim, int64_t size, struct json *json) {
  const uint32_t options = sim->compared_count ? sim->compared_count : 1;
  for (uint32_t i = 0; i < options; i++) {
    struct sim_row row;
    memset(&row, 0, sizeof row);
    row.count = collective_count(sim->collective, (size_t)size, sim->type_bytes, sim->cluster.ranks);
    row.bytes = collective_bytes(sim->collective, row.count, sim->type_bytes, sim->cluster.ranks);
    const uint32_t usual = sim->schedule ? 1u << ALGO_CUSTOM : 0;
    const enum exit_code code = row_do(sim, sim->compared_count ? sim->compared[i] : usual, &row);
    if (code != EXIT_GOOD) return code;
    if (sim->flags.plot && row.possible && !row_plot(sim, i, &row)) return EXIT_ENVIRONMENT;
    if (sim->flags.json && row.possible) row_json(sim, json, &row);
    if (sim->flags.json) continue;
    if (!sim->compared_count) row_print(sim, &row);
    else if (i == 0) printf("  %11zu  %12zu", row.bytes, row.count);
    if (sim->compared_count && row.possible) printf("  %14.2f", row_us(&row));
    else if (sim->compared_count) printf("  %14s", "-");
  }
  if (sim->compared_count && !sim->flags.json) putchar('\n');
  fflush(stdout);
  return EXIT_GOOD;
}

/* What the times of algorithms mean for which there is no GPU kernel. */
static void notes_print(uint32_t algos) {
  const char *last = NULL;
  for (uint8_t algo = 0; algo < ALGO_COUNT; algo++) {
    const char *note = (algos >> algo & 1) != 0 ? planning_time_note(algo) : NULL;
    if (note && note != last) printf("# %s\n", note);
    if (note) last = note;
  }
}

static enum exit_code sizes_do(struct sim *sim) {
  enum exit_code code = EXIT_GOOD;
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = stdout;
  progress_open(&sim->progress, "sim", "slices", stderr, sim->flags.progress, os_time_ns());
  if (sim->flags.json) json_open(&json, NULL, '[');
  else head_print(sim);
  for (int64_t size = sim->flags.min_bytes; size <= sim->flags.max_bytes && code == EXIT_GOOD;) {
    code = size_do(sim, size, &json);
    size = sim->flags.step_bytes ? size + sim->flags.step_bytes : size * sim->flags.step_factor;
  }
  if (sim->flags.json) json_close(&json, ']');
  else notes_print(sim->algos_shown);
  if (sim->flags.json) putchar('\n');
  if (code == EXIT_GOOD && sim->schedule && sim->possible == 0) {
    fprintf(stderr, "tutti sim: %s\n", log_last_error());
    code = EXIT_USAGE;
  }
  if (code == EXIT_GOOD && sim->flags.plot) code = plot_do(sim);
  plot_free(&sim->plot);
  if (sim->flags.rate)
    fprintf(stderr, "tutti sim: %" PRIu64 " slices, %" PRIu64 " events in %.3f s: %.2f million slices/s\n",
            sim->slices, sim->events, (double)sim->spent_ns / 1e9,
            sim->spent_ns ? (double)sim->slices * 1e3 / (double)sim->spent_ns : 0);
  return code;
}

static enum exit_code jobs_do(const struct sim *sim) {
  const struct sim_flags *flags = &sim->flags;
  char model[200], plans[200];
  model_text(sim, ",\n#   ", model, sizeof model);
  planning_text(&sim->job, sim->cluster.nodes, plans, sizeof plans);
  const struct workload_ask ask = {.cluster = &sim->cluster,
                                   .model = model,
                                   .plans = plans,
                                   .workload = &sim->workload,
                                   .job = &sim->job,
                                   .compute = sim->compute,
                                   .exact = flags->exact,
                                   .drawing = {flags->perfetto, flags->svg},
                                   .json = flags->json,
                                   .rate = flags->rate,
                                   .progress = flags->progress};
  if (!sim->flags.print) return workload_do(&ask);
  workload_print(&sim->workload, stdout);
  return EXIT_GOOD;
}

static enum exit_code sim_run(int argc, char **argv) {
  struct sim sim;
  int operand;
  enum exit_code code;
  memset(&sim, 0, sizeof sim);
  sim.flags.type = "float";
  if (!verb_parse(&sim_options, argc, argv, &sim.flags, &operand, &code)) return code;
  code = sim_ask(&sim, argc - operand, argv + operand);
  if (code == EXIT_GOOD) code = sim.workload.rank_count > 0 ? jobs_do(&sim) : sizes_do(&sim);
  workload_free(&sim.workload);
  check_setup_free(&sim.setup);
  custom_free(sim.schedule);
  cluster_free(&sim.cluster);
  os_free(sim.cluster_text);
  planning_close(&sim.job);
  os_free(sim.fit.rules);
  return code;
}

const struct verb verb_sim = {
    "sim",
    "simulate collectives and workloads on a described cluster",
    "COLLECTIVE [-b BYTES] [-e BYTES] [-f N] [FLAGS]\n"
    "--plan FILE [FLAGS]\n"
    "--workload FILE [FLAGS]\n"
    "--records FILE... [FLAGS]\n"
    "--chakra FILE... [FLAGS]",
    "COLLECTIVE|FILE",
    "  tutti sim all_reduce -b 8 -e 8G -f 2 --nodes 128 --gpus 8 --machine dgx-h100\n"
    "  tutti sim all_gather -b 1M -e 64M --nodes 16 --compare ring,pat --plot plot.svg\n"
    "  tutti sim all_reduce -b 1G -e 1G --nodes 4 --fault slow-rank:3:2.0\n"
    "  tutti sim --workload examples/workloads/step.txt --nodes 2 --svg step.svg --perfetto step.json\n"
    "  echo all_reduce 64M | tutti sim --workload - --gpus 4\n"
    "  tutti sim --records traces/fine/*.txt --machine hgx-b200\n",
    "COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast, reduce, sendrecv, alltoall, gather or "
    "scatter. Every rank's plan and steps are the library's own; a simulation of slots, links and proxies "
    "adds up the cost of each slice of each step. Nothing runs, and no time is a measurement.\n"
    "\n"
    "A cluster's description has lines of a name and a value: machine, topology (a file of NCCL's XML), "
    "sysfs (a folder, as the flag), nodes, gpus, leaf_nodes (nodes below one leaf switch), hop_us (of one "
    "switch and its cable), "
    "oversubscription (1: none), loggp and cost (as the flags); # begins a comment. Flags override it.\n"
    "\n"
    "Costs with a suffix .LL, .LL128 or .Simple, or for all three protocols without it: launch_us (per "
    "call), slice_us (per slice, for a lane), move_us (added for a slice with data), nvlink_post_us, "
    "pci_post_us, network_post_us (until the other end sees a post), lane_gbps (the most that a lane moves). "
    "Costs without a suffix: link_share (part of a link's bandwidth that data may use), proxy_us (until a "
    "proxy sees what a lane posted), message_us (of a NIC, per message), side_us (of a lane, for receiving "
    "and for sending), gap_us (of a NIC, the least between messages), links_gbps (of every link; 0: the "
    "machine's), zero_copy (1: data stored directly into outputs costs its receiver no move; 0: it does), "
    "proxy_ll_gbps (the most of a connection between nodes in LL, whose lines proxies convert; 0: NICs send "
    "lines, as with --as nccl). "
    "With LogGP, L is the time of a post on every link, o is side_us, g gap_us, 1/G links_gbps; all others "
    "are 0.\n"
    "\n"
    "A workload is text, one call per line; # begins a comment, LIST is as 0-7,16-31/4:\n"
    "\n"
    "  ranks N                 number of ranks (default: the cluster's)\n"
    "  comm NAME LIST          a communicator of these ranks; `world` has all\n"
    "  COLLECTIVE SIZE [TYPE] [OPERATOR] [root R] [ranks LIST] [WHERE]\n"
    "  message SIZE [TYPE] from R to R [WHERE]    or `send`, `recv`: one half\n"
    "  compute TIME [ranks LIST] [WHERE]\n"
    "  group [WHERE] ... end   one launch for each communicator in it\n"
    "  repeat N ... end\n"
    "\n"
    "SIZE is as for -b, or `count N`; TYPE defaults to float and OPERATOR to sum. LIST and R count ranks of "
    "the call's communicator; without `ranks` all of them make the call. WHERE is any of: comm NAME, stream "
    "NAME (`main`; a rank's streams run side by side), wait NAME [but N] (for everything on that stream so "
    "far, or all but the last N), after TIME (of computing, after the previous call on its stream), at TIME "
    "(not earlier). TIME is as 20us, 1.5ms, 3s or 100ns.\n"
    "\n"
    "A workload is checked before it runs: collectives that differ between ranks or are missing on some, and "
    "messages without a matching send or receive or with different sizes, are reported. From records, the "
    "calls are taken that all their ranks recorded, on the streams and in the groups in which they were "
    "made; hosts' clocks are not corrected.\n"
    "\n"
    "The exit code is 1 if a workload does not match, or if the simulation stalls; standard error then says "
    "which rank waits for which.\n",
    &sim_options,
    sim_run,
};
