/* explain.c: the verb `explain`: `explain plan` prints how an operation would run on a described machine:
 * each option that the tuner considers, with its predicted time or the rule that forbids it, and then the
 * plan of one rank. Uses the library's own planning, which is a pure function; nothing runs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "bench/bench.h"
#include "core/plan/names.h"
#include "core/plan/plan.h"
#include "core/plan/tune.h"
#include "core/plan/tune_file.h"
#include "core/settings/settings.h"
#include "files/explain_files.h"
#include "json.h"
#include "machine.h"
#include "oracle.h"
#include "schedule/algo.h"
#include "verb.h"

struct explain_flags {
  int64_t bytes, nodes, gpus, rank, root, channels;
  const char *type, *algo, *proto, *tune_file, *machine;
  const char *job;
  bool json;
};
#define AT(member) offsetof(struct explain_flags, member)

static const struct option_row rows[] = {
    {'b', "bytes", "BYTES", OPTION_BYTES, AT(bytes), 1, (int64_t)1 << 40,
     "size as nccl-tests counts it (default 1M); K, M and G are of 1024"},
    {0, "nodes", "N", OPTION_INT, AT(nodes), 1, 4096, "nodes (default 1)"},
    {'g', "gpus", "N", OPTION_INT, AT(gpus), 1, 4096, "GPUs, and so ranks, of a node (default 8)"},
    {0, "ranks", "N", OPTION_INT, AT(gpus), 1, 4096, "the same, for one node"},
    {0, "machine", "MACHINE", OPTION_TEXT, AT(machine), 0, 0,
     "kind of node, as `tutti topo --machine` (default dgx-h100; one node without it: all GPUs alike)"},
    {'R', "rank", "RANK", OPTION_INT, AT(rank), 0, 1 << 20, "whose plan is printed (default 0)"},
    {'r', "root", "RANK", OPTION_INT, AT(root), 0, 1 << 20, "root of broadcast and reduce (default 0)"},
    {'d', "type", "TYPE", OPTION_TEXT, AT(type), 0, 0,
     "data type, as `tutti bench` names it (default float)"},
    {0, "algo", "ALGO,...", OPTION_TEXT, AT(algo), 0, 0, "sets NCCL_ALGO: ring, tree, direct, ..."},
    {0, "proto", "PROTO,...", OPTION_TEXT, AT(proto), 0, 0, "sets NCCL_PROTO: LL, LL128, Simple"},
    {0, "channels", "N", OPTION_INT, AT(channels), 1, PLAN_CHANNELS_MAX, "channels at most (default 32)"},
    {0, "tune-file", "FILE", OPTION_INPUT, AT(tune_file), 0, 0, "sets TUTTI_TUNE_FILE"},
    {0, "job", "JOB", OPTION_TEXT, AT(job), 0, 0,
     "files: those of this job, as `tutti trace list` names it (default: the one that runs, or ended last)"},
    {0, "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON instead of text"},
};
static const struct option_set explain_options = {"explain", rows, sizeof rows / sizeof rows[0], false, true};

/* One operation on one machine, and its result. */
struct explain {
  struct explain_flags flags;
  struct graph graph;
  struct plan_op op;
  struct plan_request request;
  struct tune_file *file;
  size_t bytes; /* as the model counts them */
  struct tune_candidate candidates[TUNE_CANDIDATES];
  struct tune_choice choice;
  struct plan plan;
};

/* ---- what is asked ---- */

static bool type_find(const char *name, uint8_t *type) {
  for (int index = 0; index < ncclNumTypes; index++) {
    *type = (uint8_t)index;
    if (!strcmp(bench_type_name((ncclDataType_t)index), name)) return true;
  }
  fprintf(stderr, "tutti explain: --type %s: no such type; known:", name);
  for (int index = 0; index < ncclNumTypes; index++)
    fprintf(stderr, " %s", bench_type_name((ncclDataType_t)index));
  fputc('\n', stderr);
  return false;
}

static bool func_find(const char *name, uint8_t *func) {
  const char *known[FUNC_COUNT];
  size_t count = 0;
  const int found = names_find(names_collective, FUNC_COUNT, name, strlen(name));
  if (found >= 0) *func = (uint8_t)found;
  if (found >= 0) return true;
  for (uint32_t index = 0; index < FUNC_COUNT; index++)
    if (names_collective[index]) known[count++] = names_collective[index];
  verb_no_such("explain", "collective", name, known, count);
  return false;
}

static bool masks_read(struct explain *explain) {
  struct plan_request *request = &explain->request;
  const char *algo = explain->flags.algo ? explain->flags.algo : param_text(PARAM_ALGO);
  const char *proto = explain->flags.proto ? explain->flags.proto : param_text(PARAM_PROTO);
  settings_parse_named(proto, request->settings.proto_named);
  if (settings_parse_list("NCCL_ALGO", algo, names_algo, ALGO_COUNT, request->settings.algo_mask) !=
          ncclSuccess ||
      settings_parse_list("NCCL_PROTO", proto, names_proto, PROTO_COUNT, request->settings.proto_mask) !=
          ncclSuccess)
    return false;
  request->settings.algos_off = settings_algos_off(algo, false, request->settings.algo_mask);
  return true;
}

static bool operation_describe(struct explain *explain) {
  struct plan_op *op = &explain->op;
  const uint32_t ranks = explain->request.rank_count;
  const bool all = op->func == FUNC_ALL_GATHER || op->func == FUNC_REDUCE_SCATTER;
  if (!type_find(explain->flags.type, &op->dtype)) return false;
  const size_t type_bytes = oracle_type_bytes((ncclDataType_t)op->dtype);
  op->op = OP_SUM;
  op->peer = (uint32_t)explain->flags.root;
  op->count = (size_t)explain->flags.bytes / type_bytes / (all ? ranks : 1);
  op->in = &explain->op;
  op->out = &explain->plan;
  explain->bytes = tune_bytes(op->func, op->count, (uint32_t)type_bytes, ranks);
  if (op->count > 0) return true;
  fprintf(stderr, "tutti explain: --bytes %" PRId64 " is less than one element a rank; take %zu or more\n",
          explain->flags.bytes, type_bytes * (all ? ranks : 1));
  return false;
}

static bool ranks_check(const struct explain *explain) {
  const int64_t ranks = explain->flags.nodes * explain->flags.gpus;
  if (ranks > 4096)
    fprintf(stderr,
            "tutti explain: --nodes %" PRId64 " --gpus %" PRId64 ": %" PRId64 " ranks, more than 4096\n",
            explain->flags.nodes, explain->flags.gpus, ranks);
  else if (explain->flags.rank >= ranks || explain->flags.root >= ranks)
    fprintf(stderr, "tutti explain: --%s: must be 0 to %" PRId64 ", as there are %" PRId64 " ranks\n",
            explain->flags.rank >= ranks ? "rank" : "root", ranks - 1, ranks);
  else return true;
  return false;
}

static enum exit_code request_make(struct explain *explain) {
  struct plan_request *request = &explain->request;
  const char *path = explain->flags.tune_file ? explain->flags.tune_file : param_text(PARAM_TUTTI_TUNE_FILE);
  if (!ranks_check(explain)) return EXIT_USAGE;
  const ncclResult_t result = machine_graph(explain->flags.machine, (uint32_t)explain->flags.nodes,
                                            (uint32_t)explain->flags.gpus, &explain->graph);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti explain: %s\n", log_last_error());
    return result == ncclInvalidUsage ? EXIT_USAGE : EXIT_ENVIRONMENT;
  }
  plan_request_begin(request, (uint32_t)(explain->flags.nodes * explain->flags.gpus), &explain->graph);
  request->rank = (uint32_t)explain->flags.rank;
  request->ops = &explain->op;
  request->op_count = 1;
  request->settings.p2p_ll_threshold = (size_t)param_int(PARAM_P2P_LL_THRESHOLD);
  request->settings.net_peer_channels = (uint32_t)param_int(PARAM_NCHANNELS_PER_NET_PEER);
  if (explain->flags.channels) request->settings.limits.channel_count = (uint32_t)explain->flags.channels;
  if (!operation_describe(explain)) return EXIT_USAGE;
  if (!masks_read(explain)) {
    fprintf(stderr, "tutti explain: %s\n", log_last_error());
    return EXIT_USAGE;
  }
  if (*path && tune_file_read(path, &explain->file) != ncclSuccess) {
    fprintf(stderr, "tutti explain: %s\n", log_last_error());
    return EXIT_INPUT;
  }
  request->settings.tune_file = explain->file;
  return EXIT_GOOD;
}

/* ---- the answer ---- */

static const char *role_name(uint32_t role) {
  static const char *const names[] = {"", " up", " down", " switch"};
  return role < sizeof names / sizeof names[0] ? names[role] : "";
}

/* Steps of a work, and the number of FIFO slots that they take in each direction, over all links. */
struct work_sums {
  uint64_t steps, loops, recv_steps, send_steps;
};

static struct work_sums work_sum(const struct work *work) {
  struct work_sums sums = {0, 0, 0, 0};
  struct algo_iter iter;
  struct step step;
  memset(&iter, 0, sizeof iter);
  size_t loop_count = work->chunk_count;
  if (work->algo == ALGO_RING && work->func != FUNC_BROADCAST && work->func != FUNC_REDUCE)
    loop_count *= work->func == FUNC_ALL_REDUCE ? work->rank_count : 1;
  if (work->algo == ALGO_TWO_SHOT) loop_count *= work->rank_count;
  if (work->func != FUNC_COPY) sums.loops = (work->part_count + loop_count - 1) / loop_count;
  for (algo_begin(&iter, work); algo_next(&iter, work, &step);) {
    sums.steps++;
    const int from =
        (step.flags & STEP_RECV) && !(step.flags & STEP_RECV_MORE) ? __builtin_popcount(step.recv_links) : 0;
    const int to =
        (step.flags & STEP_SEND) && !(step.flags & STEP_SEND_MORE) ? __builtin_popcount(step.send_links) : 0;
    sums.recv_steps += (uint64_t)from * work->chunk_steps;
    sums.send_steps += (uint64_t)to * work->chunk_steps;
  }
  return sums;
}

static void peers_print(const char *word, const uint32_t *peers, uint32_t count) {
  if (count) printf(" %s", word);
  for (uint32_t index = 0; index < count; index++) printf("%c%u", index ? ',' : ' ', peers[index]);
}

static void work_print(const struct work *work) {
  const struct work_sums sums = work_sum(work);
  printf("  channel %2u%s: elements %zu..%zu, %" PRIu64 " loops of chunks of %zu bytes, %" PRIu64 " steps;",
         work->channel_index, role_name(work->role), work->part_offset, work->part_offset + work->part_count,
         sums.loops, work->chunk_count * work->element_bytes, sums.steps);
  peers_print("from", work->recv_peer, work->recv_count);
  peers_print("to", work->send_peer, work->send_count);
  printf("; FIFO steps %" PRIu64 " in, %" PRIu64 " out\n", sums.recv_steps, sums.send_steps);
}

static bool candidate_is_chosen(const struct explain *explain, const struct tune_candidate *row) {
  const struct tune_choice *choice = &explain->choice;
  return !row->forbidden && row->algo == choice->algo && row->proto == choice->proto;
}

/* A tuning file may give the choice a different number of channels, and so a different time. */
static double candidate_time_us(const struct explain *explain, const struct tune_candidate *row) {
  return candidate_is_chosen(explain, row) ? explain->choice.time_us : row->time_us;
}

/* Why an allowed option was not chosen. */
static void candidate_reason(const struct explain *explain, const struct tune_candidate *row, char *out,
                             size_t out_bytes) {
  const struct tune_choice *choice = &explain->choice;
  const bool chosen = candidate_is_chosen(explain, row);
  if (row->forbidden) snprintf(out, out_bytes, "forbidden: %s", row->forbidden);
  else if (chosen && choice->file_line)
    snprintf(out, out_bytes, "chosen by line %u of the tuning file", choice->file_line);
  else if (chosen) snprintf(out, out_bytes, "chosen: the least time");
  else if (row->last) snprintf(out, out_bytes, "taken only where nothing else is left");
  else if (choice->file_line) snprintf(out, out_bytes, "the tuning file says otherwise");
  else snprintf(out, out_bytes, "%.2f times the least", row->time_us / choice->time_us);
}

/* True if no protocol of the row's algorithm is allowed, all by the same rule. */
static bool candidate_is_alike(const struct tune_candidate *row) {
  const struct tune_candidate *first = row - row->proto;
  for (int proto = 0; proto < PROTO_COUNT; proto++)
    if (!first->forbidden || first[proto].forbidden != first->forbidden) return false;
  return true;
}

static void candidates_print(const struct explain *explain) {
  for (uint32_t index = 0; index < TUNE_CANDIDATES; index++) {
    const struct tune_candidate *row = &explain->candidates[index];
    char reason[256], time[32] = "-";
    const bool alike = candidate_is_alike(row);
    if (alike && row->proto != 0) continue;
    candidate_reason(explain, row, reason, sizeof reason);
    if (!row->forbidden) snprintf(time, sizeof time, "%.1f us", candidate_time_us(explain, row));
    printf("  %-14s %-7s %12s  %s\n", names_algo[row->algo], alike ? "all" : names_proto[row->proto], time,
           reason);
  }
}

static void text_print(const struct explain *explain) {
  const struct plan_request *request = &explain->request;
  const struct plan *plan = &explain->plan;
  char model[200];
  tune_model_text(request, model, sizeof model);
  printf("%s of %zu bytes on %u ranks (%" PRId64 " nodes of %" PRId64 "), %u channels at most\n",
         names_collective[explain->op.func], explain->bytes, request->rank_count, explain->flags.nodes,
         explain->flags.gpus, request->settings.limits.channel_count);
  printf("model: latency + bytes / bandwidth; %s\n\n", model);
  candidates_print(explain);
  if (request->rank_count == 1) printf("\none rank alone: a copy, or nothing\n");
  else
    printf("\n%s with %s, %.1f us, on at most %u channels\n", names_algo[explain->choice.algo],
           names_proto[explain->choice.proto], explain->choice.time_us, explain->choice.channel_count);
  printf("plan of rank %u: %u works in %u batches\n", plan->rank, plan->work_count, plan->batch_count);
  for (uint32_t index = 0; index < plan->work_count; index++) work_print(&plan->works[index]);
}

static void json_peers(struct json *json, const char *name, const uint32_t *peers, uint32_t count) {
  json_open(json, name, '[');
  for (uint32_t index = 0; index < count; index++) json_number(json, NULL, peers[index]);
  json_close(json, ']');
}

static void json_work(struct json *json, const struct work *work) {
  const struct work_sums sums = work_sum(work);
  json_open(json, NULL, '{');
  json_number(json, "channel", work->channel_index);
  json_text(json, "role", *role_name(work->role) ? role_name(work->role) + 1 : "whole");
  json_number(json, "part_offset", (int64_t)work->part_offset);
  json_number(json, "part_count", (int64_t)work->part_count);
  json_number(json, "chunk_bytes", (int64_t)(work->chunk_count * work->element_bytes));
  json_number(json, "loops", (int64_t)sums.loops);
  json_number(json, "steps", (int64_t)sums.steps);
  json_number(json, "fifo_steps_in", (int64_t)sums.recv_steps);
  json_number(json, "fifo_steps_out", (int64_t)sums.send_steps);
  json_peers(json, "from", work->recv_peer, work->recv_count);
  json_peers(json, "to", work->send_peer, work->send_count);
  json_close(json, '}');
}

static void json_candidate(struct json *json, const struct explain *explain,
                           const struct tune_candidate *row) {
  json_open(json, NULL, '{');
  json_text(json, "algo", names_algo[row->algo]);
  json_text(json, "proto", names_proto[row->proto]);
  if (row->forbidden) json_text(json, "forbidden", row->forbidden);
  else json_decimal(json, "time_us", candidate_time_us(explain, row));
  json_bool(json, "chosen", candidate_is_chosen(explain, row));
  if (!row->forbidden) json_bool(json, "last", row->last);
  json_close(json, '}');
}

static void json_explain(const struct explain *explain) {
  struct json json;
  char model[200];
  memset(&json, 0, sizeof json);
  json.out = stdout;
  tune_model_text(&explain->request, model, sizeof model);
  json_open(&json, NULL, '{');
  json_text(&json, "collective", names_collective[explain->op.func]);
  json_number(&json, "bytes", (int64_t)explain->bytes);
  json_number(&json, "ranks", explain->request.rank_count);
  json_number(&json, "nodes", explain->graph.node_count);
  json_text(&json, "model", model);
  json_open(&json, "candidates", '[');
  for (uint32_t index = 0; index < TUNE_CANDIDATES; index++)
    json_candidate(&json, explain, &explain->candidates[index]);
  json_close(&json, ']');
  json_open(&json, "choice", '{');
  json_text(&json, "algo", names_algo[explain->choice.algo]);
  json_text(&json, "proto", names_proto[explain->choice.proto]);
  json_decimal(&json, "time_us", explain->choice.time_us);
  json_number(&json, "channels", explain->choice.channel_count);
  json_number(&json, "tune_file_line", explain->choice.file_line);
  json_close(&json, '}');
  json_number(&json, "rank", explain->plan.rank);
  json_open(&json, "works", '[');
  for (uint32_t index = 0; index < explain->plan.work_count; index++)
    json_work(&json, &explain->plan.works[index]);
  json_close(&json, ']');
  json_close(&json, '}');
  fputc('\n', stdout);
}

/* Without a plan, the rules that forbid each option are still printed. */
static enum exit_code explain_answer(struct explain *explain) {
  const struct plan_request *request = &explain->request;
  tune_candidates(request, explain->op.func, explain->bytes, explain->candidates);
  ncclResult_t result = tune_choose(request, explain->op.func, explain->bytes, &explain->choice);
  if (result == ncclSuccess) result = plan_build(request, &explain->plan);
  if (result == ncclSuccess) {
    if (explain->flags.json) json_explain(explain);
    else text_print(explain);
    plan_free(&explain->plan);
    return EXIT_GOOD;
  }
  if (result == ncclInvalidUsage) candidates_print(explain);
  fprintf(stderr, "tutti explain: %s\n", log_last_error());
  return result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_WRONG;
}

static enum exit_code explain_plan(struct explain *explain, int operand_count, char **operands) {
  if (operand_count != 1) {
    fprintf(stderr, "tutti explain: plan needs one collective, got %d: `tutti explain plan all_reduce`\n",
            operand_count);
    return EXIT_USAGE;
  }
  if (!func_find(operands[0], &explain->op.func)) return EXIT_USAGE;
  enum exit_code code = request_make(explain);
  if (code == EXIT_GOOD) code = explain_answer(explain);
  graph_free(&explain->graph);
  os_free(explain->file);
  return code;
}

static enum exit_code explain_run(int argc, char **argv) {
  struct explain explain;
  int operand;
  memset(&explain, 0, sizeof explain);
  explain.flags.bytes = 1 << 20;
  explain.flags.nodes = 1;
  explain.flags.gpus = 8;
  explain.flags.type = "float";
  setenv("NCCL_DEBUG", "NONE", 0); /* a failure is reported once, by this program */
  enum exit_code code;
  if (!verb_parse(&explain_options, argc, argv, &explain.flags, &operand, &code)) return code;
  if (operand < argc && !strcmp(argv[operand], "plan"))
    return explain_plan(&explain, argc - operand - 1, argv + operand + 1);
  if (operand < argc)
    return explain_files(argc - operand, argv + operand, explain.flags.job, explain.flags.json);
  fprintf(stderr,
          "tutti explain: what is asked for? `tutti explain FILE...` or `tutti explain plan COLLECTIVE` "
          "(`tutti help explain` says more)\n");
  return EXIT_USAGE;
}

const struct verb verb_explain = {
    "explain",
    "diagnose a hung job, or show how a collective is planned",
    "[--job JOB] [--json] FILE...\n"
    "plan COLLECTIVE [FLAGS]",
    "plan|FILE COLLECTIVE|FILE",
    "  tutti explain traces/count/*.txt\n"
    "  tutti explain --json traces/absent/*.txt\n"
    "  tutti trace export --to flight -o nccl_trace_rank_ traces/absent/*.txt\n"
    "  tutti explain nccl_trace_rank_*\n"
    "  tutti explain plan all_reduce --bytes 1M --gpus 8\n"
    "  tutti explain plan all_reduce -b 64K -g 4 --algo ^Direct --rank 2\n"
    "  tutti explain plan broadcast -b 1G --nodes 4 --root 3 --json\n",
    "With FILEs, one from each process of the job (TUTTI_TRACE), binary or as text: one sentence that names "
    "the ranks that are stuck, the operation, and the root cause; then the evidence, and what to do next. "
    "Files that are missing, truncated or damaged are reported; what is left of them is used. The exit code "
    "is 0 if nothing is wrong, 1 if a rank is stuck or failed, and 4 if no file can be read. If the files "
    "are "
    "of several jobs, one of them is diagnosed: standard error says which, and how to ask for the others.\n"
    "\n"
    "FILEs may also be dumps of PyTorch's Flight Recorder (pickle or JSON; the rank is the number at the end "
    "of the name), from which nothing is executed, or logs with NCCL_DEBUG=INFO and "
    "NCCL_DEBUG_SUBSYS=INIT,COLL, one or several; one kind at a time. These record less, and the answer says "
    "what is missing. Any file may be compressed with zstd, and hold up to 256 MiB uncompressed.\n"
    "\n"
    "With --json the answer is an object: `kind` (fine, unknown, running, behind, absent, not arrived, "
    "channel, not started, not launched, cycle, alone, refused, died, mismatch), `sentence`, `evidence` "
    "(texts), `next`, `source` (records, flight recorder, log), `lacks` (what such files do not record), "
    "`files` (how many were read), `refused` (names of those that could not be).\n"
    "\n"
    "COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast or reduce. Prints every algorithm and "
    "protocol with its predicted time or the rule that forbids it, and then the plan of one rank: for each "
    "channel its part, its chunks and steps, its peers, and how many steps of their FIFOs it takes.\n"
    "\n"
    "The planning is the library's own, with its default limits; NCCL_ALGO, NCCL_PROTO and TUTTI_TUNE_FILE "
    "apply unless a flag replaces them. The exit code is 1 if no algorithm can carry the collective.\n",
    &explain_options,
    explain_run,
};
