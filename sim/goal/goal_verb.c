/* goal_verb.c: the verb `goal`: runs schedules of messages under the LogGOPS model, checks them, and converts
 * between the formats of other simulators. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/plan/names.h"
#include "core/topology/topology.h"
#include "goal/loggops.h"
#include "goal/planner.h"
#include "input.h"
#include "json.h"
#include "progress.h"
#include "verb.h"

enum { RANKS_SHOWN = 16 };

struct goal_flags {
  const char *output, *to, *loggops;
  int64_t bytes, reduce_ns, copy_ns;
  struct goal_config config;
  bool ranks, json;
};
#define AT(member) offsetof(struct goal_flags, member)

static const struct option_row rows[] = {
    {0, "loggops", "COSTS", OPTION_TEXT, AT(loggops), 0, 0,
     "sim: costs in ns and bytes, as `L=2500,o=1500,g=1000,O=0,G=6,S=65535`, which is the default; any of "
     "them"},
    {'o', "output", "FILE", OPTION_TEXT, AT(output), 0, 0,
     "export, convert: file to write, - for standard output; for Chakra traces, the prefix of their names"},
    {0, "to", "text|binary|chakra", OPTION_TEXT, AT(to), 0, 0,
     "export, convert: format of the file (default binary where its name ends in .bin, else text)"},
    {'b', "bytes", "BYTES", OPTION_BYTES, AT(bytes), 1, (int64_t)1 << 40,
     "export: size in nccl-tests' sense (default 1M)"},
    {'g', "gpus", "N", OPTION_INT, AT(config.gpus), 1, 65536,
     "export, traces: GPUs, and so ranks, of a node (default 8; for traces, as many as there are traces)"},
    {0, "nodes", "N", OPTION_INT, AT(config.nodes), 1, TOPOLOGY_NODES_MAX,
     "export, traces: nodes (default 1)"},
    {'m', "machine", "MACHINE", OPTION_TEXT, AT(config.machine), 0, 0,
     "export, traces: kind of node, as `tutti topo --machine` (default dgx-h100; one node without it: all "
     "GPUs "
     "alike)"},
    {0, "algo", "ALGO,...", OPTION_TEXT, AT(config.algo), 0, 0,
     "export, traces: sets NCCL_ALGO: ring, tree, direct, ..."},
    {0, "proto", "PROTO,...", OPTION_TEXT, AT(config.proto), 0, 0,
     "export, traces: sets NCCL_PROTO: LL, LL128, Simple"},
    {0, "channels", "N", OPTION_INT, AT(config.channels), 1, PLAN_CHANNELS_MAX,
     "export, traces: channels at most (default 1)"},
    {'d', "type", "TYPE", OPTION_TEXT, AT(config.type), 0, 0,
     "export, traces: data type, as `tutti bench` names it (default float)"},
    {'r', "root", "RANK", OPTION_INT, AT(config.root), 0, (1 << 20) - 1,
     "export, traces: root of rooted collectives (default 0)"},
    {0, "reduce-ns", "NS", OPTION_INT, AT(reduce_ns), 0, 1 << 20,
     "export, traces: add a computation of this length per KiB for each slice that is reduced (default 0: "
     "none)"},
    {0, "copy-ns", "NS", OPTION_INT, AT(copy_ns), 0, 1 << 20,
     "export: the same for each slice that is copied to the output"},
    {0, "ranks", NULL, OPTION_FLAG, AT(ranks), 0, 0,
     "sim: print the end of every rank, whatever their number"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "sim: print JSON"},
};
static const struct option_set goal_options = {"goal", rows, sizeof rows / sizeof rows[0], false, true, true};

static enum exit_code complain(enum exit_code code) {
  fprintf(stderr, "tutti goal: %s\n", log_own_error());
  return code;
}

static enum exit_code complain_of_file(const char *path) {
  fprintf(stderr, "tutti goal: %s: %s\n", path, strerror(errno));
  return EXIT_INPUT;
}

static bool ends_in(const char *text, const char *end) {
  const size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* The traces of all ranks; their collectives are planned according to the flags. */
static ncclResult_t traces_read(int count, char **paths, const struct goal_flags *flags, struct goal *goal) {
  struct planner planner;
  struct goal_config config = flags->config;
  if (config.gpus == 0 && count % config.nodes == 0) config.gpus = count / config.nodes;
  if (config.gpus * config.nodes != count)
    return log_fail(ncclInvalidUsage, "%d traces are not those of %" PRId64 " nodes of %" PRId64 " GPUs",
                    count, config.nodes, config.gpus);
  ncclResult_t result = planner_open(&planner, &config);
  const struct chakra_planner chakra = {
      {(uint64_t)flags->reduce_ns, (uint64_t)flags->copy_ns}, &planner, planner_plan_chakra};
  if (result == ncclSuccess) result = goal_read_chakra((uint32_t)count, paths, &chakra, goal);
  planner_close(&planner);
  return result;
}

/* One GOAL file, or the Chakra traces of all ranks. */
static enum exit_code files_read(int count, char **paths, const struct goal_flags *flags, struct goal *goal) {
  ncclResult_t result;
  if (ends_in(paths[0], ".et")) {
    result = traces_read(count, paths, flags, goal);
  } else {
    if (count > 1) {
      fprintf(stderr, "tutti goal: %d files; only Chakra traces, whose names end in .et, are a file a rank\n",
              count);
      return EXIT_USAGE;
    }
    FILE *file = input_open(paths[0]);
    if (file == NULL) return complain_of_file(paths[0]);
    result = goal_read(paths[0], file, goal);
    fclose(file);
  }
  if (result == ncclSuccess) return EXIT_GOOD;
  if (result == ncclInvalidUsage) return complain(EXIT_USAGE);
  return complain(result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_INPUT);
}

/* ---- sim ---- */

static void ends_print(const struct goal *goal, const struct loggops_costs *costs,
                       const struct loggops_result *result, bool all) {
  printf("# LogGOPS: L %" PRIu64 ", o %" PRIu64 ", g %" PRIu64 ", O %" PRIu64 ", G %" PRIu64 ", S %" PRIu64
         "\n",
         costs->latency_ns, costs->overhead_ns, costs->gap_ns, costs->overhead_byte_ns, costs->gap_byte_ns,
         costs->eager_bytes);
  printf("# %" PRIu32 " ranks, %" PRIu64 " operations, %" PRIu64 " messages, %" PRIu64 " bytes (simulated)\n",
         goal->rank_count, goal->op_count, goal->message_count, goal->byte_count);
  for (uint32_t rank = 0; rank < goal->rank_count && (all || rank < RANKS_SHOWN); rank++)
    printf("rank %" PRIu32 ": %" PRIu64 " ns\n", rank, result->rank_ns[rank]);
  if (!all && goal->rank_count > RANKS_SHOWN)
    printf("and %" PRIu32 " more ranks (--ranks shows them)\n", goal->rank_count - RANKS_SHOWN);
  printf("finished after %" PRIu64 " ns, last rank %" PRIu32 "\n", result->finish_ns, result->last_rank);
}

static void ends_print_json(const struct goal *goal, const struct loggops_result *result) {
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = stdout;
  json_open(&json, NULL, '{');
  json_number(&json, "ranks", goal->rank_count);
  json_number(&json, "operations", (int64_t)goal->op_count);
  json_number(&json, "messages", (int64_t)goal->message_count);
  json_number(&json, "bytes", (int64_t)goal->byte_count);
  json_number(&json, "events", (int64_t)result->event_count);
  json_number(&json, "finish_ns", (int64_t)result->finish_ns);
  json_open(&json, "rank_ns", '[');
  for (uint32_t rank = 0; rank < goal->rank_count; rank++)
    json_number(&json, NULL, (int64_t)result->rank_ns[rank]);
  json_close(&json, ']');
  json_close(&json, '}');
}

static enum exit_code goal_sim(int count, char **paths, const struct goal_flags *flags) {
  struct loggops_costs costs = LOGGOPS_DEFAULT;
  struct loggops_result result;
  struct goal goal;
  struct text why;
  memset(&why, 0, sizeof why);
  if (flags->loggops != NULL && loggops_costs_parse(flags->loggops, &costs) != ncclSuccess)
    return complain(EXIT_USAGE);
  enum exit_code code = files_read(count, paths, flags, &goal);
  if (code != EXIT_GOOD) return code;
  struct progress progress;
  const struct loggops_watch watch = {progress_report, &progress};
  progress_open(&progress, "goal sim", "operations", stderr, false, os_time_ns());
  progress_begin(&progress, paths[0], goal.op_count, os_time_ns());
  const ncclResult_t ran = loggops_run(&goal, &costs, &watch, &result, &why);
  progress_clear(&progress);
  if (ran == ncclSuccess) {
    if (flags->json) ends_print_json(&goal, &result);
    else ends_print(&goal, &costs, &result, flags->ranks);
    loggops_result_free(&result);
  } else {
    fprintf(stderr, "tutti goal: %s: %s\n", paths[0], log_own_error());
    if (why.begin != NULL) fputs(why.begin, stderr);
    code = ran == ncclInvalidUsage ? EXIT_WRONG : ran == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_USAGE;
  }
  text_free(&why);
  goal_free(&goal);
  return code;
}

/* ---- convert ---- */

enum format { FORMAT_TEXT, FORMAT_BINARY, FORMAT_CHAKRA };

static bool is_stdout(const char *path) { return strcmp(path, "-") == 0; }

static enum exit_code goal_save(const struct goal *goal, const char *path, enum format format) {
  if (format == FORMAT_CHAKRA)
    return goal_write_chakra(goal, path) == ncclSuccess ? EXIT_GOOD : complain(EXIT_ENVIRONMENT);
  const bool to_stdout = is_stdout(path);
  FILE *file = to_stdout ? stdout : fopen(path, "wb");
  if (file == NULL) {
    complain_of_file(path);
    return EXIT_ENVIRONMENT;
  }
  const ncclResult_t result =
      format == FORMAT_BINARY ? goal_write_binary(goal, path, file) : goal_write_text(goal, path, file);
  if ((to_stdout ? fflush(file) : fclose(file)) != 0 && result == ncclSuccess) {
    complain_of_file(path);
    return EXIT_ENVIRONMENT;
  }
  return result == ncclSuccess ? EXIT_GOOD : complain(EXIT_ENVIRONMENT);
}

/* False after one sentence if -o or --to are invalid. */
static bool output_is_sound(const struct goal_flags *flags, enum format *format) {
  static const char *const names[] = {"text", "binary", "chakra"};
  if (flags->output == NULL) {
    fprintf(stderr, "tutti goal: -o FILE says what to write\n");
    return false;
  }
  if (flags->to == NULL) *format = ends_in(flags->output, ".bin") ? FORMAT_BINARY : FORMAT_TEXT;
  for (int i = 0; flags->to != NULL && i <= FORMAT_CHAKRA; i++) {
    *format = (enum format)i;
    if (strcmp(flags->to, names[i]) != 0) continue;
    if (*format != FORMAT_CHAKRA || !is_stdout(flags->output)) return true;
    fprintf(stderr, "tutti goal: -o -: Chakra traces are a file a rank: give the prefix of their names\n");
    return false;
  }
  if (flags->to == NULL) return true;
  fprintf(stderr, "tutti goal: --to %s: must be text, binary or chakra\n", flags->to);
  return false;
}

static enum exit_code goal_convert(int count, char **paths, const struct goal_flags *flags) {
  struct goal goal;
  enum format format;
  if (!output_is_sound(flags, &format)) return EXIT_USAGE;
  enum exit_code code = files_read(count, paths, flags, &goal);
  if (code != EXIT_GOOD) return code;
  code = goal_save(&goal, flags->output, format);
  goal_free(&goal);
  return code;
}

/* ---- export ---- */

static enum exit_code goal_export(int count, char **names, const struct goal_flags *flags) {
  const struct goal_export_costs costs = {(uint64_t)flags->reduce_ns, (uint64_t)flags->copy_ns};
  const struct collective *collective = verb_collective("goal export", count, names);
  struct planner planner;
  struct planner_call *call;
  struct goal goal;
  enum format format;
  if (collective == NULL) return EXIT_USAGE;
  if (!output_is_sound(flags, &format)) return EXIT_USAGE;
  struct goal_config config = flags->config;
  if (config.gpus == 0) config.gpus = 8;
  ncclResult_t result = planner_open(&planner, &config);
  if (result == ncclSuccess) result = planner_plan(&planner, collective, (uint64_t)flags->bytes, &call);
  if (result == ncclSuccess)
    result = goal_export_plans(call->setup.plans, planner.graph.rank_count, &costs, &goal);
  planner_close(&planner);
  if (result != ncclSuccess) return complain(result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_USAGE);
  const enum exit_code code = goal_save(&goal, flags->output, format);
  if (code == EXIT_GOOD)
    fprintf(is_stdout(flags->output) ? stderr : stdout,
            "%s: %" PRIu32 " ranks, %" PRIu64 " operations, %" PRIu64 " messages, %" PRIu64 " bytes\n",
            flags->output, goal.rank_count, goal.op_count, goal.message_count, goal.byte_count);
  goal_free(&goal);
  return code;
}

/* ---- the verb ---- */

static enum exit_code goal_do(const struct goal_flags *flags, const char *what, int count, char **words) {
  static const char *const forms[] = {"sim", "convert", "export"};
  if (!strcmp(what, "sim") && count > 0) return goal_sim(count, words, flags);
  if (!strcmp(what, "convert") && count > 0) return goal_convert(count, words, flags);
  if (!strcmp(what, "export")) return goal_export(count, words, flags);
  if (*what && names_find(forms, 3, what, strlen(what)) < 0) {
    verb_no_such("goal", "form", what, forms, 3);
    return EXIT_USAGE;
  }
  fprintf(
      stderr,
      "tutti goal: what is asked for? `tutti goal sim FILE`, `convert FILE -o FILE` or `export COLLECTIVE -o "
      "FILE` (`tutti help goal` says more)\n");
  return EXIT_USAGE;
}

static enum exit_code goal_run(int argc, char **argv) {
  struct goal_flags flags;
  int operand;
  memset(&flags, 0, sizeof flags);
  flags.config.algo = flags.config.proto = "";
  flags.config.type = "float";
  flags.bytes = 1 << 20;
  flags.config.nodes = flags.config.channels = 1;
  setenv("NCCL_DEBUG", "NONE", 0); /* a failure is reported once, by this program */
  enum exit_code code;
  if (!verb_parse(&goal_options, argc, argv, &flags, &operand, &code)) return code;
  const char *what = operand < argc ? argv[operand++] : "";
  return goal_do(&flags, what, argc - operand, argv + operand);
}

const struct verb verb_goal = {
    "goal",
    "run, convert and export schedules of messages: GOAL files, Chakra traces",
    "sim [--loggops COSTS] [--json] FILE...\n"
    "convert -o FILE FILE...\n"
    "export COLLECTIVE -o FILE [FLAGS]",
    "sim|convert|export COLLECTIVE|FILE",
    "  tutti goal export all_reduce --algo ring --proto Simple -b 1M -g 64 -o ring.goal\n"
    "  tutti goal sim ring.goal\n"
    "  tutti goal sim - <ring.goal\n"
    "  tutti goal convert ring.goal -o ring.bin\n"
    "  tutti goal sim --loggops L=1000,G=1 --json ring.bin\n"
    "  tutti goal export all_gather --algo pat -g 64 --to chakra -o pat\n",
    "A GOAL file lists what each rank sends, receives and computes, with the dependences between these "
    "operations, as text or as LogGOPSim's binary. Chakra execution traces, one file a rank, whose names end "
    "in .RANK.et, hold the same for ASTRA-sim; a collective in them becomes the messages of the library's "
    "own plan, chosen by the flags of `export`; other nodes become computations of their duration. Every "
    "form of the command reads both formats.\n"
    "\n"
    "`sim` prints when each rank ends under the LogGOPS model. The exit code is 1 if a schedule does not "
    "end, with a line for each unmatched receive, each unmatched message and each operation of a wait-for "
    "cycle; and if a message is received with a different size than it is sent.\n"
    "\n"
    "`convert` writes what it reads as text, as binary, or as Chakra traces PREFIX.RANK.et, -o being the "
    "PREFIX; Chakra traces leave out waits for an operation's start (irequires), and round computations to "
    "whole microseconds.\n"
    "\n"
    "`export` writes what the library itself would do for a collective, from its own plans and steps: each "
    "slice's data becomes a message with a tag of its own, in the order and with the waits of the library's "
    "lanes. Each channel is a CPU; all channels share NIC 0. Empty slices and FIFO slots are left out.\n",
    &goal_options,
    goal_run,
};
