/* check_plan.c: schedules from files: every protocol and place that a file allows, and counts around the
 * boundaries of its chunks and of the slots, each proved for all interleavings. */
#include "check/check_plan.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "collective.h"
#include "schedules/schedules.h"
#include "core/plan/names.h"
#include "core/plan/plan.h"
#include "json.h"

enum { COUNTS_MAX = 5, SLOTS_MOST = 8, SMALL_CHUNK_BYTES = 64 };

/* The state of one command. */
struct plan_command {
  const struct check_plan_flags *flags;
  struct custom_schedule *schedule;
  struct check_engine *engine;
  struct check_setup setup;
  struct check_call call;
  struct check_report report, total; /* of the last run; sums over all */
  uint32_t run_count;
  bool proved;
};

void check_print_place(FILE *out, const struct check_report *report) {
  if (report->rank != UINT32_MAX) fprintf(out, "rank %u ", report->rank);
  if (report->channel != UINT32_MAX) fprintf(out, "channel %u ", report->channel);
  if (report->block != UINT32_MAX) fprintf(out, "block %u ", report->block);
  if (report->step != UINT64_MAX) fprintf(out, "step %" PRIu64 " ", report->step);
}

static int64_t number_or_none(uint32_t number, bool proved) {
  return number == UINT32_MAX || proved ? -1 : (int64_t)number;
}

void check_json_finding(struct json *json, const char *collective, const struct check_report *report,
                        bool proved) {
  json_text(json, "collective", collective);
  json_bool(json, "proved", proved);
  json_text(json, "rule", proved ? "" : check_rule_name(report->rule));
  json_number(json, "rank", number_or_none(report->rank, proved));
  json_number(json, "channel", number_or_none(report->channel, proved));
  json_number(json, "block", number_or_none(report->block, proved));
  json_number(json, "step", report->step == UINT64_MAX || proved ? -1 : (int64_t)report->step);
  json_text(json, "text", report->text);
  json_number(json, "steps", (int64_t)report->step_count);
  json_number(json, "slices", (int64_t)report->slice_count);
  json_number(json, "connections", (int64_t)report->connection_count);
  json_number(json, "channels", (int64_t)report->channel_count);
  json_text(json, "order", report->order);
  json_number(json, "orders", (int64_t)report->order_count);
}

void check_print_json(const char *collective, const struct check_report *report, bool proved,
                      int64_t slots_min) {
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = stdout;
  json_open(&json, NULL, '{');
  check_json_finding(&json, collective, report, proved);
  if (slots_min >= 0) json_number(&json, "min_slots", slots_min);
  json_close(&json, '}');
  printf("\n");
}

/* ---- which calls ---- */

static const char *collective_name(const struct custom_schedule *schedule) {
  return schedule->func == FUNC_ALL_TO_ALL ? "alltoall" : names_collective[schedule->func];
}

static bool moves_bytes(const struct custom_schedule *schedule) {
  return schedule->func != FUNC_ALL_REDUCE && schedule->func != FUNC_REDUCE &&
         schedule->func != FUNC_REDUCE_SCATTER;
}

/* NULL if the schedule matches the call with this protocol, else the rule that it breaks. */
static const char *call_forbid(const struct plan_command *command, uint8_t proto, bool in_place,
                               uint64_t count) {
  const uint32_t element_bytes = check_type_bytes(command->flags->dtype);
  const bool bytes = moves_bytes(command->schedule);
  struct work work;
  memset(&work, 0, sizeof work);
  work.func = command->schedule->func;
  work.proto = proto;
  work.op = OP_SUM;
  work.rank_count = command->schedule->rank_count;
  work.root = command->schedule->root;
  work.count = count * (bytes ? element_bytes : 1);
  work.element_bytes = (uint8_t)(bytes ? 1 : element_bytes);
  work.flags = in_place ? WORK_IN_PLACE : 0;
  return custom_forbid(command->schedule, &work);
}

/* Elements that a slot of the protocol holds. */
static uint64_t slot_elements(const struct plan_limits *limits, uint8_t proto, uint32_t element_bytes) {
  const uint64_t step_bytes = limits->step_bytes[proto];
  if (proto == PROTO_LL) return step_bytes / 2 / element_bytes;
  if (proto == PROTO_LL128) return step_bytes / 128 * 120 / element_bytes;
  return step_bytes / element_bytes;
}

/* One element per chunk, whole chunks, a last chunk that is cut short, and more than the slots hold, so that
 * lists run three times; the smallest counts that a file with bounds allows. */
static uint32_t counts_of(const struct plan_command *command, uint8_t proto, uint64_t counts[COUNTS_MAX]) {
  const struct custom_schedule *schedule = command->schedule;
  const struct check_plan_flags *flags = command->flags;
  const uint32_t bytes = check_type_bytes(flags->dtype), chunks = schedule->chunk_count;
  uint32_t count = 0;
  if (flags->count >= 0 || flags->bytes >= 0) {
    const struct collective *collective = collective_find(collective_name(schedule));
    counts[0] = flags->count >= 0
                    ? (uint64_t)flags->count
                    : collective_count(collective, (size_t)flags->bytes, bytes, schedule->rank_count);
    return 1;
  }
  counts[count++] = chunks;
  counts[count++] = UINT64_C(1000) * chunks;
  if (!schedule->even) counts[count++] = UINT64_C(1000) * chunks + chunks / 2 + 1;
  counts[count++] = (2 * slot_elements(&command->call.limits, proto, bytes) + 1) * chunks;
  if (schedule->min_bytes > 0) counts[count++] = (schedule->min_bytes / bytes / chunks + 1) * chunks;
  return count;
}

/* ---- proving ---- */

static ncclResult_t run_once(struct plan_command *command, uint8_t proto, bool in_place, uint64_t count) {
  struct check_call *call = &command->call;
  call->proto_mask = 1u << proto;
  call->in_place = in_place;
  call->count = count;
  TRY(check_setup_make(&command->setup, call));
  command->proved = check_run(command->engine, &command->setup.input, &command->report);
  return ncclSuccess;
}

/* If the same rule breaks at one element per chunk, where steps are those of the file, reports that finding.
 */
static ncclResult_t run_smaller(struct plan_command *command, uint8_t proto, bool in_place) {
  const struct check_report report = command->report;
  const uint64_t count = command->call.count, least = command->schedule->chunk_count;
  if (least >= count || call_forbid(command, proto, in_place, least) != NULL) return ncclSuccess;
  TRY(run_once(command, proto, in_place, least));
  if (!command->proved && command->report.rule == report.rule) return ncclSuccess;
  command->report = report;
  command->proved = false;
  command->call.count = count;
  return ncclSuccess;
}

static ncclResult_t run_counts(struct plan_command *command, uint8_t proto, bool in_place) {
  uint64_t counts[COUNTS_MAX];
  const uint32_t count = counts_of(command, proto, counts);
  for (uint32_t i = 0; i < count; i++) {
    if (call_forbid(command, proto, in_place, counts[i]) != NULL) continue;
    TRY(run_once(command, proto, in_place, counts[i]));
    if (!command->proved) return run_smaller(command, proto, in_place);
    command->run_count += 1;
    command->total.step_count += command->report.step_count;
    command->total.slice_count += command->report.slice_count;
  }
  return ncclSuccess;
}

/* Protocols and places that the file allows and the flags select. */
static bool is_wanted(const struct plan_command *command, uint8_t proto, bool in_place) {
  const uint32_t place = in_place ? CUSTOM_IN_PLACE : CUSTOM_OUT_OF_PLACE;
  return (command->schedule->protos & command->flags->proto_mask) >> proto & 1 &&
         (command->schedule->places & place) != 0 && (in_place || !command->flags->in_place);
}

/* Until one is found wrong. */
static ncclResult_t run_all(struct plan_command *command) {
  command->proved = true;
  for (int in_place = 0; in_place < 2; in_place++) {
    for (int proto = PROTO_COUNT - 1; proto >= 0 && command->proved; proto--)
      if (is_wanted(command, (uint8_t)proto, in_place != 0))
        TRY(run_counts(command, (uint8_t)proto, in_place != 0));
  }
  return ncclSuccess;
}

/* Why nothing was run: the first rule that forbids it. */
static const char *nothing_reason(const struct plan_command *command) {
  uint64_t counts[COUNTS_MAX];
  for (int in_place = 0; in_place < 2; in_place++) {
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
      if (!is_wanted(command, proto, in_place != 0)) continue;
      const uint32_t count = counts_of(command, proto, counts);
      for (uint32_t i = 0; i < count; i++) {
        const char *why = call_forbid(command, proto, in_place != 0, counts[i]);
        if (why != NULL) return why;
      }
    }
  }
  return "the schedule is for another protocol or place";
}

/* ---- the fewest slots ---- */

static bool plans_end(void *argument, const struct plan *plans, uint32_t rank_count) {
  struct plan_command *command = (struct plan_command *)argument;
  (void)rank_count;
  return check_setup_bind(&command->setup, &command->call, plans) == ncclSuccess &&
         check_run(command->engine, &command->setup.input, &command->report);
}

/* Lists run several times, in small chunks, unless a count was given. */
static ncclResult_t slots_find(struct plan_command *command, uint32_t *slots) {
  const struct custom_schedule *schedule = command->schedule;
  struct check_call *call = &command->call;
  uint64_t counts[COUNTS_MAX];
  const bool asked = command->flags->count >= 0 || command->flags->bytes >= 0;
  check_limits(&call->limits, SLOTS_MOST, asked ? command->flags->chunk_bytes : SMALL_CHUNK_BYTES,
               schedule->channel_count, true);
  call->dtype = ncclFloat32; /* as custom_plan() has it */
  call->in_place = (schedule->places & CUSTOM_OUT_OF_PLACE) == 0;
  const uint32_t count = counts_of(command, PROTO_SIMPLE, counts);
  call->count = counts[count - 1];
  return custom_slots_min(schedule, call->count, &call->limits, SLOTS_MOST, plans_end, command, slots);
}

/* ---- what was found ---- */

static void print_smallest(const struct plan_command *command) {
  const struct check_call *call = &command->call;
  printf("smallest: tutti check --plan %s", command->flags->path);
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
    if (call->proto_mask == 1u << proto) printf(" --proto %s", names_proto[proto]);
  printf(" --count %zu --slots %u", call->count, call->limits.slots);
  if (call->limits.chunk_bytes != 0) printf(" --chunk %u", call->limits.chunk_bytes);
  if (call->first_step != 0 || param_int(PARAM_TUTTI_FIRST_STEP) != 0)
    printf(" --first-step %u", call->first_step);
  printf("%s\n", call->in_place ? " --in-place" : "");
}

static enum exit_code print_found(const struct plan_command *command) {
  const struct check_report *report = &command->report;
  const char *name = collective_name(command->schedule);
  if (!command->proved && report->rule == CHECK_RESOURCES) {
    fprintf(stderr, "tutti check: %s\n", report->text);
    return EXIT_ENVIRONMENT;
  }
  if (command->flags->json) {
    check_print_json(name, report, command->proved, -1);
    return command->proved ? EXIT_GOOD : EXIT_WRONG;
  }
  if (!command->proved) {
    printf("wrong: %s: ", check_rule_name(report->rule));
    check_print_place(stdout, report);
    printf("%s\n", report->text);
    print_smallest(command);
    return EXIT_WRONG;
  }
  printf("proved: %s of %u ranks, %u blocks: %u runs of %" PRIu64
         " steps with %u slots, for all "
         "interleavings\n",
         name, command->schedule->rank_count, command->schedule->block_count, command->run_count,
         command->total.step_count, command->call.limits.slots);
  if (report->order[0]) printf("order: %s, one of %" PRIu64 "\n", report->order, report->order_count);
  return EXIT_GOOD;
}

static enum exit_code print_slots(const struct plan_command *command, uint32_t slots) {
  const char *name = collective_name(command->schedule);
  if (command->flags->json) {
    check_print_json(name, &command->report, slots > 0, slots);
  } else if (slots > 0) {
    printf("slots: %u\n", slots);
  } else {
    printf("wrong: with 1 to %u slots: %s: ", SLOTS_MOST, check_rule_name(command->report.rule));
    check_print_place(stdout, &command->report);
    printf("%s\n", command->report.text);
  }
  return slots > 0 ? EXIT_GOOD : EXIT_WRONG;
}

static enum exit_code failed(ncclResult_t result) {
  fprintf(stderr, "tutti check: %s\n", log_last_error());
  return result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_USAGE;
}

static enum exit_code plan_prove(struct plan_command *command) {
  uint32_t slots = 0;
  if (command->flags->min_slots) {
    const ncclResult_t result = slots_find(command, &slots);
    return result == ncclSuccess ? print_slots(command, slots) : failed(result);
  }
  const ncclResult_t result = run_all(command);
  if (result != ncclSuccess) return failed(result);
  if (command->proved && command->run_count == 0) {
    fprintf(stderr, "tutti check: %s: %s\n", command->flags->path, nothing_reason(command));
    return EXIT_USAGE;
  }
  return print_found(command);
}

static void call_begin(struct plan_command *command) {
  const struct check_plan_flags *flags = command->flags;
  struct check_call *call = &command->call;
  call->func = command->schedule->func;
  call->dtype = flags->dtype;
  call->op = OP_SUM;
  call->rank_count = command->schedule->rank_count;
  call->root = command->schedule->root;
  call->algo_mask = 1u << ALGO_CUSTOM;
  call->first_step = flags->first_step;
  call->custom = command->schedule;
  check_limits(&call->limits, flags->slots, flags->chunk_bytes, command->schedule->channel_count, true);
  call->limits.algos |= 1u << ALGO_CUSTOM;
}

static void emit_line(void *argument, const char *line) { fprintf((FILE *)argument, "%s\n", line); }

enum exit_code check_plan_file(const struct check_plan_flags *flags) {
  struct plan_command command;
  memset(&command, 0, sizeof command);
  command.flags = flags;
  if (custom_read(flags->path, &command.schedule) != ncclSuccess) {
    fprintf(stderr, "tutti check: %s\n", log_last_error());
    return EXIT_INPUT;
  }
  if (flags->print) {
    custom_print(command.schedule, emit_line, stdout);
    custom_free(command.schedule);
    return EXIT_GOOD;
  }
  enum exit_code code = EXIT_ENVIRONMENT;
  command.engine = check_engine_new();
  if (command.engine) {
    call_begin(&command);
    code = plan_prove(&command);
  }
  check_setup_free(&command.setup);
  check_engine_free(command.engine);
  custom_free(command.schedule);
  return code;
}

/* ---- printing a plan ---- */

/* Counts that are tried if none was given: channels * 2^k, and that times the ranks. */
enum { SHIFT_LEAST = 6, SHIFT_MOST = 16 };

/* Steps of one chunk each, which is approximate: a step that is cut into several sends them one by one, and
 * may need more slots than before. */
static bool is_even(const struct custom_schedule *schedule) {
  return schedule->chunk_count <= schedule->rank_count * schedule->channel_count;
}

static bool is_better(const struct custom_schedule *schedule, const struct custom_schedule *than) {
  if (is_even(schedule) != is_even(than)) return is_even(schedule);
  if (schedule->channel_count != than->channel_count) return schedule->channel_count > than->channel_count;
  return schedule->chunk_count < than->chunk_count;
}

static ncclResult_t plans_copy(const char *name, struct check_setup *setup, const struct check_call *call,
                               struct custom_schedule **schedule) {
  TRY(check_setup_make(setup, call));
  return custom_of_plans(name, setup->plans, call->rank_count, schedule);
}

/* The best of some counts; *schedule stays NULL if none of them works. */
static ncclResult_t plans_copy_best(const char *name, struct check_setup *setup,
                                    const struct check_call *call, struct custom_schedule **schedule) {
  struct check_call tried = *call;
  ncclResult_t result = ncclSuccess;
  for (uint32_t i = 2 * SHIFT_LEAST; i <= 2 * SHIFT_MOST + 1; i++) {
    struct custom_schedule *next = NULL, *best = *schedule;
    tried.count = ((size_t)call->limits.channel_count << i / 2) * (i % 2 ? call->rank_count : 1);
    result = plans_copy(name, setup, &tried, &next);
    if (result == ncclSystemError) return result;
    if (next != NULL && (best == NULL || is_better(next, best))) {
      *schedule = next;
      next = best;
    }
    custom_free(next);
    best = *schedule;
    if (best != NULL && is_even(best) && best->channel_count == call->limits.channel_count)
      return ncclSuccess;
  }
  return *schedule != NULL ? ncclSuccess : result;
}

enum exit_code check_plan_print(const char *name, struct check_setup *setup, const struct check_call *call,
                                bool any_count) {
  struct custom_schedule *schedule = NULL;
  const ncclResult_t result =
      any_count ? plans_copy_best(name, setup, call, &schedule) : plans_copy(name, setup, call, &schedule);
  enum exit_code code = EXIT_GOOD;
  if (result == ncclSuccess) custom_print(schedule, emit_line, stdout);
  else code = failed(result);
  custom_free(schedule);
  return code;
}
