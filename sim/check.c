/* check.c: the verb `check`: proves the plans of one call, or of all kinds of calls. Parses flags, and prints
 * the findings of sim/check. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "check/all.h"
#include "check/check_plan.h"
#include "check/mutants.h"
#include "check/part.h"
#include "check/request.h"
#include "check/shrink.h"
#include "collective.h"
#include "core/plan/names.h"
#include "core/plan/rules.h"
#include "core/settings/settings.h"
#include "explain_messages.h"
#include "json.h"
#include "kernels/kernels.h"
#include "machine.h"
#include "verb.h"

enum { UNSET = -1 };

struct check_flags {
  const char *algo, *proto, *type, *op, *ranks, *machine, *plan;
  int64_t count, bytes, root, channels, slots, chunk_bytes, nodes, gpus, group, first_step;
  bool in_place, indirect, json, all, mutants, print, min_slots;
};

#define AT(member) offsetof(struct check_flags, member)
#define MANY ((int64_t)1 << 44)
static const struct option_row rows[] = {
    {0, "algo", "ALGO", OPTION_TEXT, AT(algo), 0, 0,
     "Ring, Tree, PAT, Direct, TwoShot, NVLS, NVLSTree, CollNetDirect or CollNetChain (default: the library "
     "chooses)"},
    {0, "proto", "PROTO", OPTION_TEXT, AT(proto), 0, 0, "LL, LL128 or Simple (default the library's choice)"},
    {0, "ranks", "N", OPTION_TEXT, AT(ranks), 0, 0,
     "ranks, 1 to 4096 (default 8); with --all also A-B (default 2-9)"},
    {0, "count", "N", OPTION_INT, AT(count), 0, MANY, "elements, as the NCCL call takes them"},
    {'b', "bytes", "BYTES", OPTION_BYTES, AT(bytes), 0, MANY,
     "size in nccl-tests' sense instead of --count (default 1M)"},
    {'d', "type", "TYPE", OPTION_TEXT, AT(type), 0, 0, "element type, as `tutti bench -d` (default float)"},
    {'o', "op", "sum|prod|max|min|avg|mulsum", OPTION_TEXT, AT(op), 0, 0, "operator (default sum)"},
    {'r', "root", "RANK", OPTION_INT, AT(root), 0, 4095, "root of rooted collectives (default 0)"},
    {0, "channels", "N", OPTION_INT, AT(channels), 1, 64, "channels (default 2)"},
    {0, "slots", "N", OPTION_INT, AT(slots), 1, 8, "FIFO slots of a connection (default 8)"},
    {0, "chunk", "BYTES", OPTION_BYTES, AT(chunk_bytes), 1, 1 << 30,
     "largest chunk (default what the slots hold)"},
    {0, "nodes", "N", OPTION_INT, AT(nodes), 1, 4096, "number of nodes (default 1)"},
    {0, "gpus", "N", OPTION_INT, AT(gpus), 1, 4096, "ranks of a node, instead of --ranks"},
    {0, "machine", "MACHINE", OPTION_TEXT, AT(machine), 0, 0,
     "kind of node, as `tutti topo --machine` (default dgx-h100; one node without it: all GPUs alike)"},
    {0, "group", "N", OPTION_INT, AT(group), 1, 256,
     "make the call this many times in one group, each time with the next root (default 1)"},
    {0, "first-step", "N", OPTION_INT, AT(first_step), 0, UINT32_MAX,
     "value at which the connections' step counters start (default TUTTI_FIRST_STEP, or 0)"},
    {0, "in-place", NULL, OPTION_FLAG, AT(in_place), 0, 0, "input and output are one buffer"},
    {0, "indirect", NULL, OPTION_FLAG, AT(indirect), 0, 0,
     "ranks cannot store directly into each other's output"},
    {0, "all", NULL, OPTION_FLAG, AT(all), 0, 0,
     "prove every collective, algorithm, protocol, number of channels, and sizes around every boundary"},
    {0, "mutants", NULL, OPTION_FLAG, AT(mutants), 0, 0,
     "inject every known fault into every algorithm and print which rule catches it"},
    {0, "plan", "FILE", OPTION_INPUT, AT(plan), 0, 0,
     "prove the schedule in FILE, tutti's text, MSCCL's XML or MSCCL++'s JSON, for its collective"},
    {0, "min-slots", NULL, OPTION_FLAG, AT(min_slots), 0, 0,
     "with --plan: print the fewest slots of a connection with which it is proved"},
    {0, "print", NULL, OPTION_FLAG, AT(print), 0, 0,
     "print the plans of the call, or the schedule of --plan, in the text that --plan reads, or the rounds, "
     "parts and channels of its messages; prove nothing"},
    {0, "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print the finding as JSON"},
};
static const struct option_set check_options = {"check", rows, sizeof rows / sizeof rows[0],
                                                false,   true, true};

/* The state of one command. */
struct check_command {
  struct check_flags flags;
  struct check_case c;
  const struct collective *collective;
  struct check_engine *engine;
  struct check_setup setup;
  struct check_report report;
  uint64_t run_count; /* channels that were run; 0: all */
};

static bool misuse(const char *flag, const char *given, const char *known) {
  fprintf(stderr, "tutti check: --%s %s: must be %s\n", flag, given, known);
  return false;
}

static const struct collective *collective_of(uint8_t func) {
  size_t index = 0;
  while (collective_at(index) != NULL && collective_func(collective_at(index)) != func) index++;
  return collective_at(index);
}

/* The kernel's operator (enum work_op) that a user's becomes: avg of floats is a product and a sum. */
static int op_of_name(const char *name, uint8_t dtype) {
  static const char *const words[] = {"sum", "prod", "max", "min", "mulsum", "avg"};
  const int op = names_find(words, 6, name, strlen(name));
  return op == OP_SUM_POST_DIV && dtype >= ncclFloat16 ? OP_PRE_MUL_SUM : op;
}

static int type_of_name(const char *name) {
  for (int dtype = 0; dtype < ncclNumTypes; dtype++)
    if (strcmp(kernel_type_name((uint8_t)dtype), name) == 0) return dtype;
  return -1;
}

static bool take_words(const struct check_flags *flags, struct check_call *call) {
  char known[120];
  if (flags->algo) {
    const int algo = names_find(names_algo, ALGO_COUNT, flags->algo, strlen(flags->algo));
    names_list(names_algo, ALGO_COUNT, ~(1u << ALGO_CUSTOM), known, sizeof known);
    if (algo < 0 || algo == ALGO_CUSTOM) return misuse("algo", flags->algo, known);
    call->algo_mask = 1u << algo;
  }
  if (flags->proto) {
    const int proto = names_find(names_proto, PROTO_COUNT, flags->proto, strlen(flags->proto));
    if (proto < 0) return misuse("proto", flags->proto, "LL, LL128 or Simple");
    call->proto_mask = 1u << proto;
  }
  const int dtype = type_of_name(flags->type);
  if (dtype < 0) return misuse("type", flags->type, "one that `tutti bench -d` knows");
  call->dtype = (uint8_t)dtype;
  const int op = op_of_name(flags->op, call->dtype);
  call->op = (uint8_t)op;
  if (op < 0) return misuse("op", flags->op, "sum, prod, max, min, avg or mulsum");
  return true;
}

/* A number from 1 to 4096; returns what follows it, or NULL. */
static const char *ranks_parse(const char *text, uint32_t *ranks) {
  const size_t digits = strspn(text, "0123456789");
  const unsigned long number = strtoul(text, NULL, 10);
  *ranks = (uint32_t)number;
  return digits > 0 && digits < 9 && number >= 1 && number <= 4096 ? text + digits : NULL;
}

static bool take_ranks(const struct check_flags *flags, struct check_case *c) {
  uint32_t ranks = 8;
  const char *end = flags->ranks ? ranks_parse(flags->ranks, &ranks) : "";
  if (!end || *end) return misuse("ranks", flags->ranks, "a number from 1 to 4096");
  c->nodes = flags->nodes == UNSET ? 1 : (uint32_t)flags->nodes;
  if (flags->gpus != UNSET && flags->ranks && ranks != c->nodes * (uint32_t)flags->gpus) {
    fprintf(stderr, "tutti check: --nodes %u --gpus %u are not %u ranks; leave --ranks out\n", c->nodes,
            (unsigned)flags->gpus, ranks);
    return false;
  }
  c->gpus = flags->gpus == UNSET ? ranks / c->nodes : (uint32_t)flags->gpus;
  if (flags->gpus == UNSET && c->gpus * c->nodes != ranks) {
    fprintf(stderr, "tutti check: %u ranks do not divide evenly over %u nodes; give --gpus\n", ranks,
            c->nodes);
    return false;
  }
  c->call.rank_count = c->nodes * c->gpus;
  c->machine = flags->machine;
  if (c->nodes <= 4096 && c->gpus <= 4096 && c->call.rank_count <= 4096) return true;
  fprintf(stderr, "tutti check: %u ranks are more than 4096\n", c->call.rank_count);
  return false;
}

static bool take_flags(struct check_command *command) {
  const struct check_flags *flags = &command->flags;
  struct check_call *call = &command->c.call;
  call->algo_mask = (1u << ALGO_COUNT) - 1;
  call->proto_mask = (1u << PROTO_COUNT) - 1;
  call->p2p_ll_threshold = 16384;
  if (!take_words(flags, call) || !take_ranks(flags, &command->c)) return false;
  call->root = (uint32_t)flags->root;
  if (call->root >= call->rank_count) {
    fprintf(stderr, "tutti check: --root %u: there are %u ranks\n", call->root, call->rank_count);
    return false;
  }
  if (flags->count != UNSET && flags->bytes != UNSET) {
    fprintf(stderr, "tutti check: --count and --bytes both say how much; give one of them\n");
    return false;
  }
  const size_t bytes = flags->bytes == UNSET ? 1 << 20 : (size_t)flags->bytes;
  call->count = flags->count != UNSET ? (size_t)flags->count
                                      : collective_count(command->collective, bytes,
                                                         check_type_bytes(call->dtype), call->rank_count);
  call->in_place = flags->in_place;
  call->rank_order = settings_rank_order();
  call->reads_slots = settings_reads_slots();
  call->first_step = (uint32_t)flags->first_step;
  call->group_count = (uint32_t)flags->group;
  if (call->in_place && command->collective->in_place == IN_PLACE_NONE) {
    fprintf(stderr, "tutti check: %s has no in-place form\n", command->collective->name);
    return false;
  }
  check_limits(&call->limits, (uint32_t)flags->slots, (uint32_t)flags->chunk_bytes, (uint32_t)flags->channels,
               !flags->indirect);
  return true;
}

/* Which algorithms and protocols can carry the call, as the end of a message. */
static void print_allowed(const struct check_call *call) {
  const char *before = ": ";
  for (uint8_t algo = 0; algo < ALGO_COUNT; algo++) {
    bool any = false;
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
      if (check_call_forbid(call, algo, proto)) continue;
      fprintf(stderr, "%s%s", any ? ", " : before, any ? "" : names_algo[algo]);
      fprintf(stderr, "%s%s", any ? "" : " with ", names_proto[proto]);
      any = true;
      before = "; ";
    }
  }
}

/* False, with the rule, if no selected algorithm can carry the call. */
static bool call_is_possible(const struct check_command *command, const struct graph *graph) {
  struct check_call call = command->c.call, open;
  const char *why = NULL;
  uint8_t why_algo = 0, why_proto = 0;
  call.graph = graph;
  if (call.rank_order && func_reduces(call.func)) call.algo_mask = 1u << rules_order_algo(call.func);
  open = call;
  open.algo_mask = (1u << ALGO_COUNT) - 1;
  open.proto_mask = (1u << PROTO_COUNT) - 1;
  if (call.rank_count == 1) return true;
  for (uint8_t algo = 0; algo < ALGO_COUNT; algo++) {
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
      if ((call.algo_mask >> algo & 1) == 0 || (call.proto_mask >> proto & 1) == 0) continue;
      const char *rule = check_call_forbid(&call, algo, proto);
      if (!rule) return true;
      if (why && call.algo_mask != 1u << algo) continue;
      why = rule;
      why_algo = algo;
      why_proto = proto;
    }
  }
  fprintf(stderr, "tutti check: %s with %s cannot carry %s: %s; allowed", names_algo[why_algo],
          names_proto[why_proto], command->collective->name, why ? why : "nothing is left");
  print_allowed(&open);
  fprintf(stderr, "\n");
  return false;
}

static void print_case(const struct check_case *c, const struct collective *collective) {
  const struct check_call *call = &c->call;
  printf("%s%stutti check %s", call->rank_order ? "TUTTI_SUM_ORDER=rank " : "",
         call->reads_slots ? "NCCL_P2P_READ_ENABLE=1 " : "", collective->name);
  for (uint8_t algo = 0; algo < ALGO_COUNT; algo++)
    if (call->algo_mask == 1u << algo) printf(" --algo %s", names_algo[algo]);
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
    if (call->proto_mask == 1u << proto) printf(" --proto %s", names_proto[proto]);
  if (c->nodes > 1) printf(" --nodes %u --gpus %u", c->nodes, c->gpus);
  else printf(" --ranks %u", c->gpus);
  if (c->machine) printf(" --machine %s", c->machine);
  if (call->group_count > 1) printf(" --group %u", call->group_count);
  printf(" --count %zu --channels %u --slots %u", call->count, call->limits.channel_count,
         call->limits.slots);
  if (call->limits.chunk_bytes) printf(" --chunk %u", call->limits.chunk_bytes);
  if (call->root) printf(" --root %u", call->root);
  if (call->first_step != 0 || param_int(PARAM_TUTTI_FIRST_STEP) != 0)
    printf(" --first-step %u", call->first_step);
  printf("%s%s\n", call->in_place ? " --in-place" : "", call->limits.direct ? "" : " --indirect");
}

static void print_text(const struct check_command *command, bool proved) {
  const struct check_report *report = &command->report;
  if (!proved) {
    printf("wrong: %s: ", check_rule_name(report->rule));
    check_print_place(stdout, report);
    printf("%s\nsmallest: ", report->text);
    print_case(&command->c, command->collective);
    return;
  }
  printf("proved: %" PRIu64 " steps, %" PRIu64 " slices, %" PRIu64 " connections on %" PRIu64
         " channels of %u ranks, for all interleavings\n",
         report->step_count, report->slice_count, report->connection_count, report->channel_count,
         command->setup.input.rank_count);
  if (command->run_count > 0 && command->run_count < report->channel_count)
    printf("channels that are alike were run once: %" PRIu64 " of them, whose steps these are\n",
           command->run_count);
  if (report->order[0]) printf("order: %s, one of %" PRIu64 "\n", report->order, report->order_count);
}

/* From this number of ranks on, channels that are alike are run once. */
enum { RANKS_MANY = 257 };

static ncclResult_t prove_parts(struct check_command *command, bool *proved) {
  struct graph graph;
  struct parts parts;
  struct check_call call = command->c.call;
  memset(&parts, 0, sizeof parts);
  TRY(machine_graph(command->c.machine, command->c.nodes, command->c.gpus, &graph));
  call.graph = &graph;
  ncclResult_t result = check_setup_make(&command->setup, &call);
  if (result == ncclSuccess)
    result = parts_prove(command->engine, &command->setup, &call, &parts, proved, &command->report);
  command->report.channel_count = parts.program_count;
  command->report.step_count = parts.step_count;
  command->report.slice_count = parts.slice_count;
  command->report.connection_count = parts.connection_count;
  command->run_count = parts.run_count;
  parts_free(&parts);
  graph_free(&graph);
  return result;
}

static ncclResult_t prove_call(struct check_command *command, bool *proved) {
  command->engine = check_engine_new();
  if (!command->engine) return log_no_memory("the checker");
  const struct check_call *call = &command->c.call;
  if (call->func <= FUNC_ALL_REDUCE && call->group_count <= 1 && call->rank_count >= RANKS_MANY)
    return prove_parts(command, proved);
  return check_case_run(command->engine, &command->setup, &command->c, proved, &command->report);
}

static enum exit_code prove(struct check_command *command) {
  bool proved = false;
  const ncclResult_t result = prove_call(command, &proved);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti check: %s\n", log_last_error());
    return result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_USAGE;
  }
  if (!proved && command->report.rule == CHECK_RESOURCES) {
    fprintf(stderr, "tutti check: %s\n", command->report.text);
    return EXIT_ENVIRONMENT;
  }
  if (!proved) check_case_shrink(command->engine, &command->setup, &command->c, &command->report);
  if (command->flags.json) check_print_json(command->collective->name, &command->report, proved, -1);
  else print_text(command, proved);
  return proved ? EXIT_GOOD : EXIT_WRONG;
}

/* True for a call that becomes messages, which the text of schedules does not have: they are listed by rank.
 */
static bool print_messages(struct check_command *command, const struct check_call *call) {
  if (call->func <= FUNC_ALL_REDUCE || check_setup_make(&command->setup, call) != ncclSuccess) return false;
  for (uint32_t rank = 0; rank < call->rank_count; rank++)
    if (!messages_only(&command->setup.plans[rank])) return false;
  printf("# %s: messages, in the rounds in which both ends meet\n", command->collective->name);
  for (uint32_t rank = 0; rank < call->rank_count; rank++) {
    printf("rank %u\n", rank);
    messages_list(&command->setup.plans[rank]);
  }
  return true;
}

static enum exit_code print_plans(struct check_command *command) {
  const struct check_flags *flags = &command->flags;
  struct check_call call = command->c.call;
  struct graph graph;
  char name[64];
  if (machine_graph(command->c.machine, command->c.nodes, command->c.gpus, &graph) != ncclSuccess) {
    fprintf(stderr, "tutti check: %s\n", log_last_error());
    return EXIT_ENVIRONMENT;
  }
  call.graph = &graph;
  snprintf(name, sizeof name, "%s%s%s", flags->algo ? flags->algo : "", flags->algo ? " " : "",
           command->collective->name);
  const bool any_count = flags->count == UNSET && flags->bytes == UNSET;
  const enum exit_code code =
      print_messages(command, &call) ? EXIT_GOOD : check_plan_print(name, &command->setup, &call, any_count);
  graph_free(&graph);
  return code;
}

/* A schedule from a file, whose header has the rest of the call. */
static enum exit_code check_plan_flags_run(const struct check_command *command, int argc) {
  const struct check_flags *flags = &command->flags;
  struct check_plan_flags plan;
  struct check_call words;
  memset(&words, 0, sizeof words);
  words.proto_mask = (1u << PROTO_COUNT) - 1;
  if (argc > 0 || flags->algo || flags->ranks || flags->machine || flags->group > 1 ||
      flags->nodes != UNSET || flags->gpus != UNSET || strcmp(flags->op, "sum") != 0) {
    fprintf(stderr,
            "tutti check: --plan %s: its header says which collective, of how many ranks; leave "
            "COLLECTIVE, --algo, --ranks, --nodes, --gpus and --op out\n",
            flags->plan);
    return EXIT_USAGE;
  }
  if (flags->count != UNSET && flags->bytes != UNSET) {
    fprintf(stderr, "tutti check: --count and --bytes both say how much; give one of them\n");
    return EXIT_USAGE;
  }
  if (!take_words(flags, &words)) return EXIT_USAGE;
  memset(&plan, 0, sizeof plan);
  plan.path = flags->plan;
  plan.proto_mask = words.proto_mask;
  plan.dtype = words.dtype;
  plan.count = flags->count;
  plan.bytes = flags->bytes;
  plan.slots = (uint32_t)flags->slots;
  plan.chunk_bytes = (uint32_t)flags->chunk_bytes;
  plan.first_step = (uint32_t)flags->first_step;
  plan.in_place = flags->in_place;
  plan.json = flags->json;
  plan.min_slots = flags->min_slots;
  plan.print = flags->print;
  return check_plan_file(&plan);
}

static enum exit_code check_one(struct check_command *command, int argc, char **argv) {
  struct graph graph;
  command->collective = verb_collective("check", argc, argv);
  if (!command->collective) return EXIT_USAGE;
  command->c.call.func = collective_func(command->collective);
  if (!take_flags(command)) return EXIT_USAGE;
  if (machine_graph(command->c.machine, command->c.nodes, command->c.gpus, &graph) != ncclSuccess) {
    fprintf(stderr, "tutti check: %s\n", log_last_error());
    return EXIT_USAGE;
  }
  const bool possible = call_is_possible(command, &graph);
  graph_free(&graph);
  if (!possible) return EXIT_USAGE;
  return command->flags.print ? print_plans(command) : prove(command);
}

static bool range_parse(const char *text, uint32_t *first, uint32_t *last) {
  const char *end = ranks_parse(text, first);
  *last = *first;
  if (end && *end == '-') end = ranks_parse(end + 1, last);
  return end && *end == '\0' && *last >= *first;
}

static void print_all(const struct check_all_report *report, uint32_t first, uint32_t last, double seconds) {
  printf("%s: %" PRIu64 " plans of %u to %u ranks, %" PRIu64 " channels, %" PRIu64
         " different ones run: %" PRIu64 " steps, %" PRIu64 " slices, %" PRIu64 " connections; %" PRIu64
         " plans run as a whole besides; %.1f s\n",
         report->failed ? "stopped" : "proved", report->plan_count, first, last, report->program_count,
         report->run_count, report->step_count, report->slice_count, report->connection_count,
         report->whole_count, seconds);
}

static void json_all(const struct check_command *command, const struct check_all_report *report,
                     uint32_t first, uint32_t last, double seconds) {
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = stdout;
  json_open(&json, NULL, '{');
  json_bool(&json, "proved", !report->failed);
  json_number(&json, "ranks_least", first);
  json_number(&json, "ranks_most", last);
  json_number(&json, "plans", (int64_t)report->plan_count);
  json_number(&json, "channels", (int64_t)report->program_count);
  json_number(&json, "runs", (int64_t)report->run_count);
  json_number(&json, "whole_plans", (int64_t)report->whole_count);
  json_number(&json, "steps", (int64_t)report->step_count);
  json_number(&json, "slices", (int64_t)report->slice_count);
  json_number(&json, "connections", (int64_t)report->connection_count);
  json_decimal(&json, "seconds", seconds);
  if (report->failed) {
    json_open(&json, "failure", '{');
    check_json_finding(&json, command->collective->name, &report->report, false);
    json_close(&json, '}');
  }
  json_close(&json, '}');
  putchar('\n');
}

static enum exit_code check_everything(struct check_command *command, int argc) {
  struct check_all_report report;
  uint32_t first = 2, last = 9;
  if (argc > 0) {
    fprintf(stderr, "tutti check: --all proves every collective; name none\n");
    return EXIT_USAGE;
  }
  if (command->flags.ranks && !range_parse(command->flags.ranks, &first, &last)) {
    misuse("ranks", command->flags.ranks, "a number from 1 to 4096, or two as in 2-64");
    return EXIT_USAGE;
  }
  const uint64_t began_ns = os_time_ns();
  struct progress progress;
  progress_open(&progress, "check", NULL, stderr, false, began_ns);
  if (check_all(first, last, 2, &progress, &report) != ncclSuccess) {
    fprintf(stderr, "tutti check: %s\n", log_last_error());
    return EXIT_ENVIRONMENT;
  }
  const double seconds = (double)(os_time_ns() - began_ns) * 1e-9;
  command->collective = report.failed ? collective_of(report.failure.call.func) : NULL;
  command->c = report.failure;
  command->report = report.report;
  if (command->flags.json) {
    json_all(command, &report, first, last, seconds);
  } else {
    print_all(&report, first, last, seconds);
    if (report.failed) print_text(command, false);
  }
  return report.failed ? EXIT_WRONG : EXIT_GOOD;
}

/* One line per mutant: the outcome under each algorithm. */
static void print_entry(const struct mutant_entry *entry) {
  static const char *const fates[] = {".", "", "equal", "MISSED"};
  const char *text =
      entry->fate == MUTANT_CAUGHT ? check_rule_name((enum check_rule)entry->rule) : fates[entry->fate];
  printf(" %-10.10s", text);
}

struct mutant_totals {
  uint32_t caught, equivalent, inapplicable, missed;
};

static void mutant_total(const struct mutant_entry *entry, struct mutant_totals *totals) {
  totals->caught += entry->fate == MUTANT_CAUGHT;
  totals->equivalent += entry->fate == MUTANT_EQUIVALENT;
  totals->inapplicable += entry->fate == MUTANT_NOT_APPLICABLE;
  totals->missed += entry->fate == MUTANT_MISSED;
}

/* Reasons and misses of one mutant, below its line. */
static void print_reasons(uint32_t mutant, const struct mutant_entry *entries) {
  const char *said = NULL;
  for (uint32_t column = 0; column < mutant_column_count(); column++) {
    const struct mutant_entry *entry = &entries[column];
    if (entry->fate == MUTANT_MISSED)
      printf("    missed: %s, %s: %s; %u runs\n", mutant_name(mutant), mutant_column_name(column),
             mutant_text(mutant), entry->applied);
    if (entry->fate != MUTANT_EQUIVALENT || entry->reason == said) continue;
    said = entry->reason;
    printf("    equal under %s: %s\n", mutant_column_name(column), said);
  }
}

enum { MUTANT_COLUMNS_MAX = 32 };

static void mutants_begin(struct json *json) {
  if (json->out != NULL) {
    json_open(json, NULL, '{');
    json_open(json, "mutants", '[');
    return;
  }
  for (uint32_t column = 0; column < mutant_column_count(); column++)
    printf("# %2u %s\n", column, mutant_column_name(column));
  printf("%-24s", "# mutant");
  for (uint32_t column = 0; column < mutant_column_count(); column++) printf(" %-10u", column);
  printf("\n");
}

static void mutant_print(struct json *json, uint32_t mutant, const struct mutant_entry *entries) {
  static const char *const fates[] = {"not applicable", "caught", "equal", "missed"};
  if (json->out == NULL) {
    printf("%-24s", mutant_name(mutant));
    for (uint32_t column = 0; column < mutant_column_count(); column++) print_entry(&entries[column]);
    printf("\n");
    print_reasons(mutant, entries);
    return;
  }
  json_open(json, NULL, '{');
  json_text(json, "mutant", mutant_name(mutant));
  json_text(json, "text", mutant_text(mutant));
  json_open(json, "algorithms", '[');
  for (uint32_t column = 0; column < mutant_column_count(); column++) {
    json_open(json, NULL, '{');
    json_text(json, "algorithm", mutant_column_name(column));
    json_text(json, "result", fates[entries[column].fate]);
    if (entries[column].fate == MUTANT_CAUGHT)
      json_text(json, "rule", check_rule_name((enum check_rule)entries[column].rule));
    if (entries[column].fate == MUTANT_EQUIVALENT) json_text(json, "reason", entries[column].reason);
    json_close(json, '}');
  }
  json_close(json, ']');
  json_close(json, '}');
}

static void mutants_end(struct json *json, const struct mutant_totals *totals) {
  if (json->out == NULL) {
    printf("%s: %u mutants under %u algorithms: %u caught, %u equal, %u not applicable, %u missed\n",
           totals->missed ? "wrong" : "proved", mutant_count(), mutant_column_count(), totals->caught,
           totals->equivalent, totals->inapplicable, totals->missed);
    return;
  }
  json_close(json, ']');
  json_number(json, "caught", totals->caught);
  json_number(json, "equal", totals->equivalent);
  json_number(json, "not_applicable", totals->inapplicable);
  json_number(json, "missed", totals->missed);
  json_close(json, '}');
  putchar('\n');
}

static enum exit_code check_mutants(struct check_command *command, int argc) {
  struct mutant_totals totals = {0, 0, 0, 0};
  struct json json;
  struct progress progress;
  const uint32_t columns = mutant_column_count();
  if (argc > 0) {
    fprintf(stderr, "tutti check: --mutants takes every algorithm; name no collective\n");
    return EXIT_USAGE;
  }
  command->engine = check_engine_new();
  if (!command->engine || columns > MUTANT_COLUMNS_MAX) return EXIT_ENVIRONMENT;
  memset(&json, 0, sizeof json);
  if (command->flags.json) json.out = stdout;
  mutants_begin(&json);
  progress_open(&progress, "check", NULL, stderr, false, os_time_ns());
  progress_begin(&progress, "mutants", (uint64_t)mutant_count() * columns, os_time_ns());
  for (uint32_t mutant = 0; mutant < mutant_count(); mutant++) {
    struct mutant_entry entries[MUTANT_COLUMNS_MAX];
    for (uint32_t column = 0; column < columns; column++) {
      if (mutant_run(command->engine, &command->setup, mutant, column, &entries[column]) != ncclSuccess) {
        fprintf(stderr, "tutti check: %s\n", log_last_error());
        return EXIT_ENVIRONMENT;
      }
      mutant_total(&entries[column], &totals);
      progress_say(&progress, (uint64_t)mutant * columns + column + 1, os_time_ns());
    }
    progress_clear(&progress);
    mutant_print(&json, mutant, entries);
  }
  mutants_end(&json, &totals);
  return totals.missed ? EXIT_WRONG : EXIT_GOOD;
}

static void flags_initial(struct check_flags *flags) {
  memset(flags, 0, sizeof *flags);
  flags->type = "float";
  flags->op = "sum";
  flags->count = flags->bytes = flags->nodes = flags->gpus = flags->first_step = UNSET;
  flags->channels = 2;
  flags->slots = 8;
  flags->group = 1;
}

static enum exit_code check_verb_run(int argc, char **argv) {
  struct check_command command;
  int operand;
  memset(&command, 0, sizeof command);
  flags_initial(&command.flags);
  enum exit_code code;
  if (!verb_parse(&check_options, argc, argv, &command.flags, &operand, &code)) return code;
  if (command.flags.min_slots && !command.flags.plan) {
    fprintf(stderr, "tutti check: --min-slots is of a schedule; give --plan FILE\n");
    return EXIT_USAGE;
  }
  if (command.flags.first_step == UNSET) {
    if (param_check() != ncclSuccess) return EXIT_USAGE; /* it says why */
    command.flags.first_step = param_int(PARAM_TUTTI_FIRST_STEP);
  }
  code = command.flags.plan      ? check_plan_flags_run(&command, argc - operand)
         : command.flags.mutants ? check_mutants(&command, argc - operand)
         : command.flags.all     ? check_everything(&command, argc - operand)
                                 : check_one(&command, argc - operand, argv + operand);
  check_setup_free(&command.setup);
  check_engine_free(command.engine);
  return code;
}

const struct verb verb_check = {
    "check",
    "prove a plan, for all ranks and all interleavings, without running data",
    "COLLECTIVE [FLAGS]\n"
    "--plan FILE [FLAGS]\n"
    "--all [--ranks A-B] [--json]\n"
    "--mutants [--json]",
    "COLLECTIVE",
    "  tutti check all_reduce --algo Ring --ranks 8 --bytes 64M\n"
    "  tutti check reduce_scatter --ranks 5 --slots 2 --proto LL --in-place\n"
    "  tutti check --all --ranks 2-9 --json\n"
    "  tutti check --plan examples/schedules/ring4.txt --min-slots\n"
    "  tutti check all_reduce --ranks 4 --algo ring --print | tutti check --plan -\n",
    "COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast, reduce, sendrecv, alltoall, gather or "
    "scatter.\n"
    "\n"
    "Makes the plans that all ranks make for this call and proves them: every send of a connection meets its "
    "receive, step by step; nothing deadlocks; no slot is overwritten before it is read; no element of a "
    "user's buffer is overwritten before it is read; each element of each output is exactly the requested "
    "combination of inputs, each input once; all ranks add in the same order; a proxy counts the steps that "
    "the kernel takes.\n"
    "\n"
    "A failure is reported as the rule that is broken, with rank, channel and step, and as the smallest call "
    "that still breaks it.\n"
    "\n"
    "--plan proves a schedule from a file (examples/schedules/README.md) for the collective that its header "
    "names, with every protocol that it allows, in place and out of place as it allows, and with counts "
    "around its chunk boundaries unless --count or --bytes gives one. Blocks of a rank may wait for each "
    "other; unordered accesses of two blocks to the same memory are an error. --print writes the plans of a "
    "call as such a file.\n"
    "\n"
    "--all proves the plans of every collective, algorithm and protocol: on one node, rings also on nodes of "
    "one rank, trees\n"
    "and switches also on nodes of 1, 2, 4 and 8 ranks; one channel and several; sizes around every chunk "
    "and slice boundary (beyond 32 ranks every second size: the next rank count has the others); groups of "
    "broadcasts. --mutants injects every known fault into every algorithm and prints the rule that catches "
    "it, `.` if the fault does not apply to the algorithm, or `equal` and the reason why it changes "
    "nothing.\n",
    &check_options,
    check_verb_run,
};
