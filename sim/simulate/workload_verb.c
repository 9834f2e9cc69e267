/* workload_verb.c: see workload_verb.h. */
#include "simulate/workload_verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "json.h"

enum { KINDS_SHOWN = 20, LINE_BYTES = 80 };

static double us(uint64_t ps) { return (double)ps / 1e6; }
static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* Over all ranks that call anything: the part of the time in which their kernels run, and in which they
 * compute. */
struct shares {
  double busy, least, most, compute;
  double late; /* part of the kernels' time until the last rank has arrived */
  uint32_t least_rank, most_rank;
};

static struct shares shares_of(const struct workload *workload, const struct run_report *report) {
  struct shares shares = {0, 0, 0, 0, 0, 0, 0};
  uint32_t ranks = 0;
  const double end = (double)report->end_ps;
  for (uint32_t rank = 0; rank < workload->rank_count; rank++) {
    if (workload->ranks[rank].step_count == 0) continue;
    const double busy = percent((double)report->busy_ps[rank], end);
    if (ranks == 0 || busy < shares.least) shares.least_rank = rank;
    if (ranks == 0 || busy > shares.most) shares.most_rank = rank;
    if (ranks == 0 || busy < shares.least) shares.least = busy;
    if (ranks == 0 || busy > shares.most) shares.most = busy;
    shares.busy += busy;
    shares.compute += percent((double)report->compute_ps[rank], end);
    ranks += 1;
  }
  shares.late = percent((double)report->late_ps, (double)report->kernel_ps);
  if (ranks > 0) shares.busy /= ranks;
  if (ranks > 0) shares.compute /= ranks;
  return shares;
}

static void kind_say(const struct workload *workload, const struct run_kind *kind, char *out,
                     size_t out_bytes) {
  const struct workload_call *call = &workload->calls[kind->call];
  struct workload_op first = workload->ops[call->first_op];
  char op[160];
  if (first.func == FUNC_SEND || first.func == FUNC_RECV) first.peer = WORKLOAD_NONE;
  workload_say_op(workload, call, &first, op, sizeof op);
  if (call->op_count == 1) snprintf(out, out_bytes, "%s", op);
  else snprintf(out, out_bytes, "group of %u, %s", call->op_count, op);
}

static void kinds_print(const struct workload_ask *ask, const struct run_report *report) {
  uint64_t sum = 0, rest = 0;
  uint32_t shown = 0;
  for (uint32_t i = 0; i < report->kind_count; i++) sum += report->kinds[i].sum_ps;
  printf("#\n# %7s  %10s  %10s  %7s  %s\n", "kernels", "mean us", "least us", "share", "call");
  for (uint32_t i = 0; i < report->kind_count; i++) {
    const struct run_kind *kind = &report->kinds[i];
    char line[256], op[192];
    if (kind->count == 0) continue;
    if (shown++ >= KINDS_SHOWN) {
      rest += kind->sum_ps;
      continue;
    }
    kind_say(ask->workload, kind, op, sizeof op);
    snprintf(line, sizeof line, "  %7" PRIu64 "  %10.2f  %10.2f  %5.1f %%  %s", kind->count,
             us(kind->sum_ps) / (double)kind->count, us(kind->least_ps),
             percent((double)kind->sum_ps, (double)sum), op);
    if (strlen(line) > LINE_BYTES) snprintf(&line[LINE_BYTES - 3], 4, "...");
    puts(line);
  }
  if (shown > KINDS_SHOWN)
    printf("  %7s  %10s  %10s  %5.1f %%  %u more\n", "", "", "", percent((double)rest, (double)sum),
           shown - KINDS_SHOWN);
}

static void report_print(const struct workload_ask *ask, const struct run_report *report) {
  const struct cluster *cluster = ask->cluster;
  const struct shares shares = shares_of(ask->workload, report);
  printf("# tutti sim %s:\n# %u ranks on %u nodes of %u, %s (simulated)\n", ask->workload->name,
         ask->workload->rank_count, cluster->nodes, cluster->gpus, cluster->topology.name);
  printf("# Model: %s\n# Plans: %s\n", ask->model, ask->plans);
  kinds_print(ask, report);
  printf("#\n# end            %.2f us\n", us(report->end_ps));
  printf("# in kernels     %.1f %% of a rank's time (%.1f %% rank %u to %.1f %% rank %u)\n", shares.busy,
         shares.least, shares.least_rank, shares.most, shares.most_rank);
  printf("#   for others   %.1f %% of that, until the last rank came to a collective\n", shares.late);
  printf("# computing      %.1f %%\n", shares.compute);
}

static void report_json(const struct workload_ask *ask, const struct run_report *report) {
  const struct shares shares = shares_of(ask->workload, report);
  struct json json = {.out = stdout};
  json_open(&json, NULL, '{');
  json_text(&json, "workload", ask->workload->name);
  json_number(&json, "ranks", ask->workload->rank_count);
  json_number(&json, "nodes", ask->cluster->nodes);
  json_decimal(&json, "time_us", us(report->end_ps));
  json_decimal(&json, "kernels_percent", shares.busy);
  json_decimal(&json, "late_percent", shares.late);
  json_decimal(&json, "compute_percent", shares.compute);
  json_number(&json, "kernels", (int64_t)report->kernel_count);
  json_number(&json, "plans", report->plan_count);
  json_number(&json, "ranks_simulated", report->run_count);
  json_number(&json, "slices", (int64_t)report->slice_count);
  json_number(&json, "messages", (int64_t)report->message_count);
  json_open(&json, "calls", '[');
  for (uint32_t i = 0; i < report->kind_count; i++) {
    const struct run_kind *kind = &report->kinds[i];
    char op[192];
    if (kind->count == 0) continue;
    kind_say(ask->workload, kind, op, sizeof op);
    json_open(&json, NULL, '{');
    json_text(&json, "call", op);
    json_number(&json, "kernels", (int64_t)kind->count);
    json_decimal(&json, "mean_us", us(kind->sum_ps) / (double)kind->count);
    json_decimal(&json, "least_us", us(kind->least_ps));
    json_decimal(&json, "longest_us", us(kind->most_ps));
    json_close(&json, '}');
  }
  json_close(&json, ']');
  json_open(&json, "ranks_us", '[');
  for (uint32_t rank = 0; rank < ask->workload->rank_count; rank++)
    json_decimal(&json, NULL, us(report->busy_ps[rank]));
  json_close(&json, ']');
  json_bool(&json, "simulated", true);
  json_close(&json, '}');
  putchar('\n');
}

/* ---- pictures ---- */

static ncclResult_t run_drawn(const struct workload_ask *ask, struct run_request *request,
                              struct run_report *report) {
  struct drawing drawing;
  const struct run_watch watch = {&drawing,     drawing_net,     drawing_kernel,
                                  drawing_span, drawing_message, drawing_stuck};
  char title[256];
  snprintf(title, sizeof title, "tutti sim %.100s: %u ranks on %u nodes of %u, %.60s (simulated)",
           ask->workload->name, ask->workload->rank_count, ask->cluster->nodes, ask->cluster->gpus,
           ask->cluster->topology.name);
  request->watch = &watch;
  ncclResult_t result = drawing_open(&drawing, &ask->drawing, ask->cluster, ask->workload);
  if (result == ncclSuccess) result = run_workload(request, report);
  return drawing_close(&drawing, result, title);
}

/* ---- the verb ---- */

static void wrong_print(void *context, const char *text) {
  (void)context;
  fprintf(stderr, "tutti sim: %s\n", text);
}

static enum exit_code failed(ncclResult_t result) {
  fprintf(stderr, "tutti sim: %s\n", log_last_error());
  return result == ncclSystemError ? EXIT_ENVIRONMENT : EXIT_USAGE;
}

static enum exit_code matched(const struct workload *workload) {
  uint64_t wrong;
  const ncclResult_t result = workload_match(workload, wrong_print, NULL, &wrong);
  if (result != ncclSuccess) return failed(result);
  if (wrong > WORKLOAD_TOLD_MOST)
    fprintf(stderr, "tutti sim: %" PRIu64 " more of these\n", wrong - WORKLOAD_TOLD_MOST);
  return wrong > 0 ? EXIT_WRONG : EXIT_GOOD;
}

enum exit_code workload_do(const struct workload_ask *ask) {
  struct progress progress;
  struct run_request request = {.cluster = ask->cluster,
                                .workload = ask->workload,
                                .job = ask->job,
                                .compute = ask->compute,
                                .exact = ask->exact,
                                .progress = &progress};
  struct run_report report;
  memset(&report, 0, sizeof report);
  enum exit_code code = matched(ask->workload);
  if (code != EXIT_GOOD) return code;
  const uint64_t begin_ns = os_time_ns();
  progress_open(&progress, "sim", "slices", stderr, ask->progress, begin_ns);
  const ncclResult_t result =
      drawing_is_asked(&ask->drawing) ? run_drawn(ask, &request, &report) : run_workload(&request, &report);
  const double spent = (double)(os_time_ns() - begin_ns) / 1e9;
  progress_clear(&progress);
  if (result != ncclSuccess) code = failed(result);
  else if (report.stalled) {
    fprintf(stderr, "tutti sim: stalled: %s\n", report.text);
    code = EXIT_WRONG;
  } else if (ask->json) report_json(ask, &report);
  else report_print(ask, &report);
  if (result == ncclSuccess && ask->rate)
    fprintf(stderr,
            "tutti sim: %" PRIu64 " kernels, %u plans; of %u ranks that ran %" PRIu64 " slices, %" PRIu64
            " events in %.3f s\n",
            report.kernel_count, report.plan_count, report.run_count, report.slice_count, report.event_count,
            spent);
  run_report_free(&report);
  return code;
}
