/* explain.c: the verb `explain`: `explain plan` prints how an operation would run on a described machine:
 * each option that the tuner considers, with its predicted time or the rule that forbids it, and then the
 * plan of one rank. Uses the library's own planning, which is a pure function; nothing runs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "bench/bench.h"
#include "check/request.h"
#include "collective.h"
#include "core/plan/names.h"
#include "core/plan/plan.h"
#include "core/plan/tune.h"
#include "explain_messages.h"
#include "explain_order.h"
#include "files/explain_files.h"
#include "planning.h"
#include "json.h"
#include "oracle.h"
#include "schedule/algo.h"
#include "verb.h"

struct explain_flags {
  int64_t bytes, nodes, rank, root, peer, channels;
  const char *type, *algo, *proto, *tune_file, *machine, *gpus, *as, *job;
  bool json, no_net;
};
#define AT(member) offsetof(struct explain_flags, member)

static const struct option_row rows[] = {
    {'b', "bytes", "BYTES", OPTION_BYTES, AT(bytes), 1, (int64_t)1 << 40,
     "size as nccl-tests counts it (default 1M); K, M and G are of 1024"},
    {0, "nodes", "N", OPTION_INT, AT(nodes), 1, 4096, "nodes (default 1)"},
    {'g', "gpus", "N,...", OPTION_TEXT, AT(gpus), 0, 0,
     "GPUs, and so ranks, of a node (default 8), or of each node"},
    {0, "ranks", "N", OPTION_TEXT, AT(gpus), 0, 0, "the same, for one node"},
    {0, "as", "WHOSE", OPTION_TEXT, AT(as), 0, 0, PLANNING_AS_HELP " (default cuda)"},
    {0, "no-net", NULL, OPTION_FLAG, AT(no_net), 0, 0,
     "with --as emu or threads: nodes share memory, as without net=1 in TUTTI_EMU"},
    {0, "machine", "MACHINE", OPTION_TEXT, AT(machine), 0, 0,
     "kind of node, as `tutti topo --machine` (default dgx-h100; one node without it: all GPUs alike)"},
    {'R', "rank", "RANK", OPTION_INT, AT(rank), 0, 1 << 20, "whose plan is printed (default 0)"},
    {'r', "root", "RANK", OPTION_INT, AT(root), 0, 1 << 20, "root of rooted collectives (default 0)"},
    {0, "peer", "RANK", OPTION_INT, AT(peer), 0, 1 << 20,
     "other rank of send and recv (default the next one)"},
    {'d', "type", "TYPE", OPTION_TEXT, AT(type), 0, 0,
     "data type, as `tutti bench` names it (default float)"},
    {0, "algo", "ALGO,...", OPTION_TEXT, AT(algo), 0, 0, "sets NCCL_ALGO: ring, tree, direct, ..."},
    {0, "proto", "PROTO,...", OPTION_TEXT, AT(proto), 0, 0, "sets NCCL_PROTO: LL, LL128, Simple"},
    {0, "channels", "N", OPTION_INT, AT(channels), 1, PLAN_CHANNELS_MAX,
     "channels at most (default the backend's: 32 on GPUs)"},
    {0, "tune-file", "FILE", OPTION_INPUT, AT(tune_file), 0, 0, "sets TUTTI_TUNE_FILE"},
    {0, "job", "JOB", OPTION_TEXT, AT(job), 0, 0,
     "files: those of this job, as `tutti trace list` names it (default: the one that runs, or ended last)"},
    {0, "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON instead of text"},
};
static const struct option_set explain_options = {"explain", rows, sizeof rows / sizeof rows[0],
                                                  false,     true, false};

/* One operation on one machine, and its result. */
struct explain {
  struct explain_flags flags;
  struct planning job;
  uint32_t *gpus; /* by node */
  struct graph graph;
  const char *name; /* of the collective */
  uint8_t func;
  struct plan_op *ops; /* of the rank */
  uint32_t op_count;
  struct plan_request request;
  size_t bytes;  /* in nccl-tests' sense */
  bool messages; /* the plan has messages alone */
  struct tune_candidate candidates[TUNE_CANDIDATES];
  struct tune_choice choice;
  struct order_cost order;
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

static bool is_message(uint8_t func) { return func == FUNC_SEND || func == FUNC_RECV; }

/* Collectives of nccl-tests, and single messages. */
static bool func_find(struct explain *explain, const char *name) {
  const char *known[32] = {"send", "recv"};
  size_t count = 2;
  const struct collective *collective = collective_find(name);
  const bool sends = strcmp(name, "send") == 0;
  explain->name = collective ? collective->name : name;
  explain->func = collective ? collective_func(collective) : sends ? FUNC_SEND : FUNC_RECV;
  if (collective || sends || !strcmp(name, "recv")) return true;
  for (; collective_at(count - 2); count++) known[count] = collective_at(count - 2)->name;
  verb_no_such("explain", "collective", name, known, count);
  return false;
}

/* The rank's half of one message, in bytes, as the library plans it. */
static void message_describe(struct explain *explain) {
  struct plan_op *op = explain->ops;
  op->func = explain->func;
  op->dtype = ncclInt8;
  op->op = OP_SUM;
  op->peer = (uint32_t)explain->flags.peer;
  op->count = explain->bytes;
  if (op->func == FUNC_SEND) op->in = &explain->flags;
  else op->out = &explain->flags;
  explain->op_count = 1;
}

static void collective_describe(struct explain *explain, uint8_t dtype, size_t count) {
  struct check_call call;
  memset(&call, 0, sizeof call);
  call.func = explain->func;
  call.dtype = dtype;
  call.op = OP_SUM;
  call.rank_count = explain->graph.rank_count;
  call.root = (uint32_t)explain->flags.root;
  call.count = count;
  call.graph = &explain->graph;
  call.job = &explain->request;
  explain->op_count = check_call_ops(&call, (uint32_t)explain->flags.rank, explain->ops);
}

static bool operation_describe(struct explain *explain) {
  const uint32_t ranks = explain->graph.rank_count;
  const size_t given = (size_t)explain->flags.bytes;
  uint8_t dtype;
  if (!type_find(explain->flags.type, &dtype)) return false;
  const size_t type_bytes = oracle_type_bytes((ncclDataType_t)dtype);
  const struct collective *collective = is_message(explain->func) ? NULL : collective_find(explain->name);
  /* Of split collectives a small size is not cut to parts of 16 bytes. */
  const bool split = collective && collective->is_split;
  const size_t cut = split ? collective_count(collective, given, type_bytes, ranks) : 0;
  const size_t count = cut > 0 ? cut : given / type_bytes / (split ? ranks : 1);
  explain->bytes = count * type_bytes * (split ? ranks : 1);
  explain->ops = (struct plan_op *)os_alloc((2 * (size_t)ranks + 2) * sizeof *explain->ops);
  if (!explain->ops || count == 0) {
    fprintf(stderr, "tutti explain: --bytes %zu is less than one element a rank; take %zu or more\n", given,
            type_bytes * (split ? ranks : 1));
    return false;
  }
  if (collective) collective_describe(explain, dtype, count);
  else message_describe(explain);
  return true;
}

static bool gpus_misuse(const struct explain *explain) {
  fprintf(stderr,
          "tutti explain: --gpus %s: must be a number from 1 to 4096, or one for each of %" PRId64 " nodes\n",
          explain->flags.gpus, explain->flags.nodes);
  return false;
}

/* "8", or "4,2" for nodes that differ. */
static bool gpus_read(struct explain *explain) {
  const char *text = explain->flags.gpus;
  const bool all_alike = strchr(text, ',') == NULL;
  const size_t nodes = (size_t)explain->flags.nodes;
  uint64_t ranks = 0;
  explain->gpus = (uint32_t *)os_alloc(nodes * sizeof *explain->gpus);
  for (size_t node = 0; explain->gpus && node < nodes; node++) {
    char *end;
    const unsigned long number = strtoul(text, &end, 10);
    const bool last = all_alike || node + 1 == nodes;
    if (*text < '0' || *text > '9' || number < 1 || number > 4096 || *end != (last ? '\0' : ','))
      return gpus_misuse(explain);
    if (!all_alike) text = end + 1;
    explain->gpus[node] = (uint32_t)number;
    ranks += number;
  }
  if (!explain->gpus || ranks > 4096)
    fprintf(stderr, "tutti explain: --nodes %" PRId64 " --gpus %s: %" PRIu64 " ranks, more than 4096\n",
            explain->flags.nodes, explain->flags.gpus, ranks);
  return explain->gpus && ranks <= 4096;
}

static bool ranks_check(struct explain *explain) {
  struct explain_flags *flags = &explain->flags;
  const int64_t ranks = explain->graph.rank_count;
  if (flags->peer < 0) flags->peer = (flags->rank + 1) % ranks;
  const char *wrong = flags->rank >= ranks   ? "rank"
                      : flags->root >= ranks ? "root"
                      : flags->peer >= ranks ? "peer"
                                             : NULL;
  if (!wrong) return true;
  fprintf(stderr, "tutti explain: --%s: must be 0 to %" PRId64 ", as there are %" PRId64 " ranks\n", wrong,
          ranks - 1, ranks);
  return false;
}

static enum exit_code request_make(struct explain *explain) {
  const struct explain_flags *flags = &explain->flags;
  const struct planning_ask ask = {.verb = "explain",
                                   .as = flags->as,
                                   .usual = PLANNING_CUDA,
                                   .algo = flags->algo,
                                   .proto = flags->proto,
                                   .tune_file = flags->tune_file,
                                   .channels = (uint32_t)flags->channels,
                                   .no_net = flags->no_net};
  if (!gpus_read(explain)) return EXIT_USAGE;
  const enum exit_code code = planning_open(&ask, &explain->job);
  if (code != EXIT_GOOD) return code;
  const ncclResult_t result =
      planning_graph(&explain->job, flags->machine, explain->gpus, (uint32_t)flags->nodes, &explain->graph);
  if (result != ncclSuccess) {
    fprintf(stderr, "tutti explain: %s\n", log_last_error());
    return result == ncclInvalidUsage ? EXIT_USAGE : EXIT_ENVIRONMENT;
  }
  if (!ranks_check(explain)) return EXIT_USAGE;
  planning_request(&explain->job, &explain->graph, &explain->request);
  if (!operation_describe(explain)) return EXIT_USAGE;
  explain->request.rank = (uint32_t)flags->rank;
  explain->request.ops = explain->ops;
  explain->request.op_count = explain->op_count;
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
  if (work->algo == ALGO_TWO_SHOT) loop_count *= algo_loop_chunks(work);
  if (work->func != FUNC_COPY) sums.loops = (work->part_count + loop_count - 1) / loop_count;
  for (algo_begin(&iter, work); algo_next(&iter, work, &step);) {
    sums.steps++;
    const int from = (step.flags & STEP_RECV) && !(step.flags & STEP_RECV_MORE)
                         ? __builtin_popcountll(step.recv_links)
                         : 0;
    const int to = (step.flags & STEP_SEND) && !(step.flags & STEP_SEND_MORE)
                       ? __builtin_popcountll(step.send_links)
                       : 0;
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
  printf("; FIFO steps %" PRIu64 " in, %" PRIu64 " out%s\n", sums.recv_steps, sums.send_steps,
         work->flags & WORK_READS_SLOTS ? "; within a host slots are at the sender" : "");
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

/* What the times of the options mean for which there is no GPU kernel. */
static void notes_print(const struct explain *explain) {
  const char *last = NULL;
  for (uint32_t index = 0; index < TUNE_CANDIDATES; index++) {
    const struct tune_candidate *row = &explain->candidates[index];
    const char *note = row->forbidden ? NULL : planning_time_note(row->algo);
    if (note && note != last) printf("note: %s\n", note);
    if (note) last = note;
  }
}

static void head_print(const struct explain *explain) {
  const struct plan_request *request = &explain->request;
  char text[200];
  printf("%s of %zu bytes on %u ranks (%" PRId64 " nodes of %s), %u channels at most\n", explain->name,
         explain->bytes, request->rank_count, explain->flags.nodes, explain->flags.gpus,
         request->settings.limits.channel_count);
  planning_text(&explain->job, explain->graph.node_count, text, sizeof text);
  printf("plans: %s\n", text);
  tune_model_text(request, text, sizeof text);
  printf("model: latency + bytes / bandwidth; %s\n\n", text);
}

static void text_print(const struct explain *explain) {
  const struct plan_request *request = &explain->request;
  const struct plan *plan = &explain->plan;
  head_print(explain);
  if (explain->messages) {
    messages_print(request, plan);
    return;
  }
  candidates_print(explain);
  notes_print(explain);
  if (request->rank_count == 1) printf("\none rank alone: a copy, or nothing\n");
  else
    printf("\n%s with %s, %.1f us, on at most %u channels\n", names_algo[explain->choice.algo],
           names_proto[explain->choice.proto], explain->choice.time_us, explain->choice.channel_count);
  order_cost_print(&explain->order);
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
  if (!row->forbidden && planning_time_note(row->algo))
    json_text(json, "time_note", planning_time_note(row->algo));
  json_bool(json, "chosen", candidate_is_chosen(explain, row));
  if (!row->forbidden) json_bool(json, "last", row->last);
  json_close(json, '}');
}

static void json_options(struct json *json, const struct explain *explain) {
  json_open(json, "candidates", '[');
  for (uint32_t index = 0; index < TUNE_CANDIDATES; index++)
    json_candidate(json, explain, &explain->candidates[index]);
  json_close(json, ']');
  json_open(json, "choice", '{');
  json_text(json, "algo", names_algo[explain->choice.algo]);
  json_text(json, "proto", names_proto[explain->choice.proto]);
  json_decimal(json, "time_us", explain->choice.time_us);
  json_number(json, "channels", explain->choice.channel_count);
  json_number(json, "tune_file_line", explain->choice.file_line);
  json_close(json, '}');
  order_cost_json(json, &explain->order);
  json_open(json, "works", '[');
  for (uint32_t index = 0; index < explain->plan.work_count; index++)
    json_work(json, &explain->plan.works[index]);
  json_close(json, ']');
}

static void json_explain(const struct explain *explain) {
  struct json json;
  char text[200];
  memset(&json, 0, sizeof json);
  json.out = stdout;
  json_open(&json, NULL, '{');
  json_text(&json, "collective", explain->name);
  json_number(&json, "bytes", (int64_t)explain->bytes);
  json_number(&json, "ranks", explain->request.rank_count);
  json_number(&json, "nodes", explain->graph.node_count);
  planning_text(&explain->job, explain->graph.node_count, text, sizeof text);
  json_text(&json, "plans", text);
  tune_model_text(&explain->request, text, sizeof text);
  json_text(&json, "model", text);
  json_number(&json, "rank", explain->plan.rank);
  if (explain->messages) messages_json(&json, &explain->request, &explain->plan);
  else json_options(&json, explain);
  json_close(&json, '}');
  fputc('\n', stdout);
}

/* Without a plan, the rules that forbid each option are still printed. */
static enum exit_code explain_answer(struct explain *explain) {
  const struct plan_request *request = &explain->request;
  const bool has_options = explain->func <= FUNC_ALL_REDUCE || explain->func == FUNC_ALL_TO_ALL;
  /* The model takes an all-to-all by its blocks. */
  const size_t bytes = explain->bytes / (explain->func == FUNC_ALL_TO_ALL ? request->rank_count : 1);
  ncclResult_t result = plan_build(request, &explain->plan);
  explain->messages = explain->func > FUNC_ALL_REDUCE && messages_only(&explain->plan);
  if (has_options) tune_candidates(request, explain->func, bytes, explain->candidates);
  if (result == ncclSuccess && !explain->messages)
    result = tune_choose(request, explain->func, bytes, &explain->choice);
  if (result == ncclSuccess && !explain->messages)
    result = order_cost_find(&explain->job, request, bytes, &explain->order);
  if (result == ncclSuccess) {
    if (explain->flags.json) json_explain(explain);
    else text_print(explain);
    plan_free(&explain->plan);
    return EXIT_GOOD;
  }
  if (result == ncclInvalidUsage && has_options) candidates_print(explain);
  fprintf(stderr, "tutti explain: %s\n", log_last_error());
  return result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_WRONG;
}

static enum exit_code explain_plan(struct explain *explain, int operand_count, char **operands) {
  if (operand_count != 1) {
    fprintf(stderr, "tutti explain: plan needs one collective, got %d: `tutti explain plan all_reduce`\n",
            operand_count);
    return EXIT_USAGE;
  }
  if (!func_find(explain, operands[0])) return EXIT_USAGE;
  enum exit_code code = request_make(explain);
  if (code == EXIT_GOOD) code = explain_answer(explain);
  graph_free(&explain->graph);
  planning_close(&explain->job);
  os_free(explain->gpus);
  os_free(explain->ops);
  return code;
}

static enum exit_code explain_run(int argc, char **argv) {
  struct explain explain;
  int operand;
  memset(&explain, 0, sizeof explain);
  explain.flags.bytes = 1 << 20;
  explain.flags.nodes = 1;
  explain.flags.gpus = "8";
  explain.flags.peer = -1;
  explain.flags.type = "float";
  setenv("NCCL_DEBUG", "NONE", 0); /* a failure is reported once, by this program */
  enum exit_code code;
  if (!verb_parse(&explain_options, argc, argv, &explain.flags, &operand, &code)) return code;
  if (operand < argc && !strcmp(argv[operand], "plan"))
    return !verb_settings_good("explain") ? EXIT_USAGE
                                          : explain_plan(&explain, argc - operand - 1, argv + operand + 1);
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
    "  tutti explain plan alltoall -b 1M --nodes 2 --rank 3\n"
    "  tutti explain plan all_reduce -b 1M --nodes 4 --as emu\n"
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
    "channel, proxy, counter, not started, away, not launched, cycle, alone, refused, died, mismatch), "
    "`rank` (the root cause; not there if there is none), `sentence`, `evidence` (texts), `next`, `source` "
    "(records, flight recorder, log), `lacks` (what such files do not record), "
    "`files` (how many were read), `refused` (names of those that could not be).\n"
    "\n"
    "COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast or reduce. Prints every algorithm and "
    "protocol with its predicted time or the rule that forbids it, and then the plan of one rank: for each "
    "channel its part, its chunks and steps, its peers, and how many steps of their FIFOs it takes. Or send, "
    "recv, sendrecv, alltoall, gather or scatter, which are messages: for each peer the round in which both "
    "meet, the protocol, parts, chunks and channels.\n"
    "\n"
    "The plans are those of a communicator of the job: the library's own functions, with the limits of the "
    "backend that --as names, with what a network between the nodes carries, and with the environment "
    "(NCCL_ALGO, NCCL_BUFFSIZE, TUTTI_TUNE_FILE, ...) unless a flag replaces it. An algorithm that no GPU "
    "kernel carries is planned for the emulator's executors if it is named, and a note says what its time "
    "means. The exit code is 1 if no algorithm can carry the collective.\n",
    &explain_options,
    explain_run,
};
