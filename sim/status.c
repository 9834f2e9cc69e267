/* status.c: the verb `status`: what the communicators of running jobs do now, which ranks are behind, and
 * what they wait for. Takes two samples a moment apart: what progressed between them does not hang, whatever
 * a single sample looks like. Changes nothing in the jobs. */
#include "status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/text.h"
#include "explain/diagnose.h"
#include "explain/rank_state.h"
#include "json.h"
#include "trace/record_text.h"

enum { MEMBERS_SHOWN = 16, SILENTS_SHOWN = 16, TEXT_BYTES = 256 };

struct status_flags {
  int64_t apart_ms;
  bool json;
};

#define AT(member) offsetof(struct status_flags, member)
static const struct option_row rows[] = {
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON"},
    {'a', "apart", "MS", OPTION_INT, AT(apart_ms), 0, 60000,
     "milliseconds between the two samples (default 300; 1500 with GPUs, whose records are updated once a "
     "second)"},
};
static const struct option_set options = {"status", rows, sizeof rows / sizeof rows[0], false, false, false};

/* ---- a job ---- */

/* A rank of a communicator. */
struct member {
  struct rank_state state;
  bool moved; /* between both samples */
};

/* Members of one communicator are adjacent, by rank. */
struct job {
  struct record_file *files; /* the sample's own, borrowed */
  uint32_t file_count;
  struct member *members;
  uint32_t member_count;
  const struct survey_silent *silents;
  uint32_t silent_count;
  struct diagnosis diagnosis;
  bool hangs; /* something is pending, and nothing of it has progressed */
};

struct comm_ranks {
  const struct member *members;
  uint32_t count, rank_count;
  uint64_t called_least, called_most, done_least, done_most;
  bool pends, moved, waits, broken;
};

static int member_compare(const void *left, const void *right) {
  const struct record_comm *a = ((const struct member *)left)->state.view->comm;
  const struct record_comm *b = ((const struct member *)right)->state.view->comm;
  if (a->comm_id != b->comm_id) return a->comm_id < b->comm_id ? -1 : 1;
  if (a->rank_count != b->rank_count) return a->rank_count < b->rank_count ? -1 : 1;
  return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* The same rank of a communicator in another sample. NULL: it is not there. */
static const struct record_view *view_find(const struct sample *sample, const struct record_file *file,
                                           const struct record_comm *comm) {
  for (uint32_t i = 0; i < sample->count; i++) {
    const struct record_file *other = &sample->files[i];
    if (other->header.process != file->header.process) continue;
    if (other->header.process_born != file->header.process_born) continue;
    if (strcmp(other->header.host, file->header.host) != 0) continue;
    for (uint32_t k = 0; k < other->view_count; k++) {
      const struct record_comm *candidate = other->views[k].comm;
      if (candidate->comm_id == comm->comm_id && candidate->rank == comm->rank &&
          candidate->born == comm->born)
        return &other->views[k];
    }
  }
  return NULL;
}

static bool members_find(struct job *job, const struct sample *before) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < job->file_count; i++) count += job->files[i].view_count;
  job->members = (struct member *)os_alloc((count + 1) * sizeof *job->members);
  if (job->members == NULL) return false;
  for (uint32_t i = 0; i < job->file_count; i++)
    for (uint32_t k = 0; k < job->files[i].view_count; k++) {
      const struct record_view *view = &job->files[i].views[k];
      if (view->comm->state != RECORD_OPEN) continue;
      const struct record_view *old = view_find(before, &job->files[i], view->comm);
      struct member *member = &job->members[job->member_count++];
      member->state = (struct rank_state){.file = &job->files[i], .view = view};
      member->moved = old == NULL || sample_moves(old) != sample_moves(view);
      rank_state_read(&member->state);
    }
  qsort(job->members, job->member_count, sizeof *job->members, member_compare);
  return true;
}

/* If the device does not report ended operations, all launched ones count as ended. */
static uint64_t member_done(const struct member *member) {
  return rank_knows_ends(&member->state) ? member->state.done : member->state.launched;
}

static bool member_pends(const struct member *member) {
  const struct rank_state *state = &member->state;
  const bool graph = state->graph || state->graph_queued;
  return (state->called > member_done(member) || graph) && state->view->comm->error == 0;
}

/* The communicator whose members begin at *at; false after the last one. */
static bool comm_ranks_next(const struct job *job, uint32_t *at, struct comm_ranks *comm_ranks) {
  if (*at >= job->member_count) return false;
  const struct record_comm *comm = job->members[*at].state.view->comm;
  *comm_ranks = (struct comm_ranks){.members = &job->members[*at],
                                    .rank_count = comm->rank_count,
                                    .called_least = UINT64_MAX,
                                    .done_least = UINT64_MAX};
  for (; *at < job->member_count; *at += 1, comm_ranks->count += 1) {
    const struct member *member = &job->members[*at];
    const struct record_comm *other = member->state.view->comm;
    const uint64_t called = member->state.called, done = member_done(member);
    if (other->comm_id != comm->comm_id || other->rank_count != comm->rank_count) break;
    if (called < comm_ranks->called_least) comm_ranks->called_least = called;
    if (called > comm_ranks->called_most) comm_ranks->called_most = called;
    if (done < comm_ranks->done_least) comm_ranks->done_least = done;
    if (done > comm_ranks->done_most) comm_ranks->done_most = done;
    comm_ranks->pends = comm_ranks->pends || member_pends(member);
    comm_ranks->moved = comm_ranks->moved || member->moved;
    comm_ranks->waits = comm_ranks->waits || rank_first_wait(&member->state) != NULL;
    comm_ranks->broken = comm_ranks->broken || other->error != 0;
  }
  return true;
}

static bool comm_ranks_hang(const struct comm_ranks *comm_ranks) {
  return comm_ranks->pends && !comm_ranks->moved;
}

static const char *comm_ranks_state(const struct comm_ranks *comm_ranks) {
  if (comm_ranks->broken) return "broken";
  if (!comm_ranks->pends) return "idle";
  if (comm_ranks->moved) return "moving";
  return "hangs";
}

/* Escapes other processes' text, because it goes to a terminal. */
static bool diagnosis_make(struct job *job, bool moves) {
  const bool judged = moves ? diagnose_moving(job->files, job->file_count, &job->diagnosis)
                            : diagnose_files(job->files, job->file_count, &job->diagnosis);
  if (!judged) return false;
  text_clean(job->diagnosis.sentence, DIAGNOSIS_TEXT_BYTES);
  text_clean(job->diagnosis.next, DIAGNOSIS_TEXT_BYTES);
  for (uint32_t i = 0; i < job->diagnosis.evidence_count; i++)
    text_clean(job->diagnosis.evidence[i], DIAGNOSIS_TEXT_BYTES);
  return true;
}

/* A diagnosis needs a state that lasts; for a job that progresses, slow links are reported. */
static bool job_diagnose(struct job *job) {
  struct comm_ranks comm_ranks;
  bool broken = false, moves = false;
  for (uint32_t at = 0; comm_ranks_next(job, &at, &comm_ranks);) {
    moves = moves || (comm_ranks.pends && comm_ranks.moved);
    job->hangs = job->hangs || comm_ranks_hang(&comm_ranks);
    broken = broken || comm_ranks.broken;
  }
  return job->hangs || broken || moves ? diagnosis_make(job, !job->hangs && !broken) : true;
}

static bool job_is_good(const struct job *job) {
  return job->diagnosis.kind <= DIAGNOSIS_RUNNING && job->silent_count == 0;
}

/* ---- text ---- */

static const char *const wait_texts[] = {"nothing", "an output of", "data of", "a free slot at",
                                         "LL lines of"};

/* What a member does that is behind, or waits. False: nothing to report. */
static bool member_text(const struct comm_ranks *comm_ranks, const struct member *member, char *out,
                        size_t out_bytes) {
  const struct rank_state *state = &member->state;
  const struct record_lane *lane = rank_first_wait(state);
  if (state->view->comm->error != 0)
    snprintf(out, out_bytes, "has failed after %" PRIu64 " operations: %.*s", state->called,
             (int)strnlen(state->view->comm->reason, sizeof state->view->comm->reason),
             state->view->comm->reason);
  else if (state->called < comm_ranks->called_most)
    snprintf(out, out_bytes, "is behind: has called %" PRIu64 " of %" PRIu64 " operations%s", state->called,
             comm_ranks->called_most,
             state->view->comm->open_group != 0 ? ", and is in a group that it has not ended" : "");
  else if (lane != NULL)
    snprintf(out, out_bytes, "waits in operation #%u, at step %u of channel %u, for %s rank %u",
             lane->sequence, lane->step, lane->channel, wait_texts[lane->wait], lane->peer);
  else if (state->graph || state->graph_queued)
    snprintf(out, out_bytes, "is in a graph%s", state->graph ? "" : ", whose kernel has not started");
  else if (member_pends(member))
    snprintf(out, out_bytes, "is in operation #%" PRIu64 "%s", member_done(member),
             state->view->comm->started == state->view->comm->ended && rank_knows_ends(state)
                 ? ", whose kernel has not started"
                 : "");
  else return false;
  text_clean(out, out_bytes);
  return true;
}

static const char *comm_name(const struct record_comm *comm, char out[64]) {
  snprintf(out, 64, "'%.*s'", (int)strnlen(comm->name, sizeof comm->name), comm->name);
  text_clean(out, 64);
  return out;
}

static void range_print(const char *what, uint64_t least, uint64_t most) {
  if (least == most) printf(", %s %" PRIu64, what, most);
  else printf(", %s %" PRIu64 "-%" PRIu64, what, least, most);
}

/* A member before this one has failed with the same message. */
static bool reason_is_told(const struct comm_ranks *comm_ranks, uint32_t index) {
  const struct record_comm *comm = comm_ranks->members[index].state.view->comm;
  for (uint32_t i = 0; i < index && comm->error != 0; i++) {
    const struct record_comm *before = comm_ranks->members[i].state.view->comm;
    if (before->error != 0 && memcmp(before->reason, comm->reason, sizeof comm->reason) == 0) return true;
  }
  return false;
}

static void comm_ranks_print(const struct comm_ranks *comm_ranks) {
  char name[64], text[TEXT_BYTES];
  uint32_t shown = 0;
  printf("  comm %s: ", comm_name(comm_ranks->members[0].state.view->comm, name));
  if (comm_ranks->count < comm_ranks->rank_count) printf("%u of ", comm_ranks->count);
  printf("%u rank%s", comm_ranks->rank_count, comm_ranks->rank_count == 1 ? "" : "s");
  range_print("called", comm_ranks->called_least, comm_ranks->called_most);
  range_print("ended", comm_ranks->done_least, comm_ranks->done_most);
  printf(": %s\n", comm_ranks_state(comm_ranks));
  if (!comm_ranks_hang(comm_ranks) && !comm_ranks->broken) return;
  /* ranks that are behind first: there may be many that wait */
  for (int pass = 0; pass < 2; pass++)
    for (uint32_t i = 0; i < comm_ranks->count && shown <= MEMBERS_SHOWN; i++) {
      const struct member *member = &comm_ranks->members[i];
      const bool behind = member->state.called < comm_ranks->called_most;
      if (reason_is_told(comm_ranks, i)) continue;
      if (behind != (pass == 0) || !member_text(comm_ranks, member, text, sizeof text)) continue;
      if (++shown > MEMBERS_SHOWN) puts("    ...");
      else
        printf("    rank %u (process %u on %s) %s\n", rank_number(&member->state),
               member->state.file->header.process, member->state.file->header.host, text);
    }
}

static uint32_t hosts_count(const struct job *job) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < job->file_count; i++) {
    bool again = false;
    for (uint32_t k = 0; k < i && !again; k++)
      again = strcmp(job->files[k].header.host, job->files[i].header.host) == 0;
    count += !again;
  }
  return count;
}

static const char *job_state(const struct job *job) {
  if (job->hangs) return job->diagnosis.kind > DIAGNOSIS_RUNNING ? "hangs" : "nothing has moved";
  if (job->diagnosis.kind == DIAGNOSIS_SLOW) return "is slow";
  return job->diagnosis.kind > DIAGNOSIS_RUNNING ? "is broken" : "is well";
}

/* A process is listed once, even if it has ranks of several communicators. */
static void silents_print(const struct job *job) {
  uint32_t shown = 0;
  for (uint32_t i = 0; i < job->silent_count && shown <= SILENTS_SHOWN; i++) {
    const struct survey_silent *silent = &job->silents[i];
    bool again = false;
    char at[SOCK_TEXT_BYTES];
    for (uint32_t k = 0; k < i && !again; k++)
      again = job->silents[k].process == silent->process && strcmp(job->silents[k].host, silent->host) == 0;
    if (again) continue;
    if (++shown > SILENTS_SHOWN) puts("  ...");
    else
      printf("  rank %u (process %u on %s, %s) %s\n", silent->rank, silent->process, silent->host,
             sock_address_text(&silent->address, at), survey_why_text(silent->why));
  }
}

static void job_print(const struct job *job) {
  struct comm_ranks comm_ranks;
  const struct diagnosis *diagnosis = &job->diagnosis;
  const uint32_t hosts = hosts_count(job);
  uint32_t comms = 0, still = 0;
  for (uint32_t at = 0; comm_ranks_next(job, &at, &comm_ranks); comms++)
    still += comm_ranks_hang(&comm_ranks);
  printf("job %s: %u process%s on %u host%s, %u communicator%s", job_state(job), job->file_count,
         job->file_count == 1 ? "" : "es", hosts, hosts == 1 ? "" : "s", comms, comms == 1 ? "" : "s");
  if (still > 0) printf(", %u of them hung", still);
  printf("\n");
  for (uint32_t at = 0; comm_ranks_next(job, &at, &comm_ranks);) comm_ranks_print(&comm_ranks);
  silents_print(job);
  if (diagnosis->sentence[0] == '\0') return;
  printf("%s\n", diagnosis->sentence);
  if (diagnosis->next[0] != '\0') printf("next: %s\n", diagnosis->next);
}

/* ---- JSON ---- */

static void member_json(struct json *json, const struct comm_ranks *comm_ranks, const struct member *member) {
  const struct rank_state *state = &member->state;
  const struct record_lane *lane = rank_first_wait(state);
  json_open(json, NULL, '{');
  json_number(json, "rank", rank_number(state));
  json_number(json, "process", state->file->header.process);
  json_text(json, "host", state->file->header.host);
  json_number(json, "called", (int64_t)state->called);
  json_number(json, "launched", (int64_t)state->launched);
  json_number(json, "ended", (int64_t)member_done(member));
  json_bool(json, "ends_known", rank_knows_ends(state));
  json_bool(json, "behind", state->called < comm_ranks->called_most);
  json_bool(json, "moved", member->moved);
  json_number(json, "error", state->view->comm->error);
  if (lane != NULL) {
    json_open(json, "waits", '{');
    json_text(json, "for", wait_texts[lane->wait]);
    json_number(json, "rank", lane->peer);
    json_number(json, "operation", lane->sequence);
    json_number(json, "channel", lane->channel);
    json_number(json, "step", lane->step);
    json_number(json, "have", (int64_t)lane->have);
    json_number(json, "need", (int64_t)lane->need);
    json_close(json, '}');
  }
  json_close(json, '}');
}

static void comm_ranks_json(struct json *json, const struct comm_ranks *comm_ranks) {
  const struct record_comm *comm = comm_ranks->members[0].state.view->comm;
  char text[64];
  json_open(json, NULL, '{');
  snprintf(text, sizeof text, "%.*s", (int)strnlen(comm->name, sizeof comm->name), comm->name);
  json_text(json, "name", text);
  snprintf(text, sizeof text, "%016" PRIx64, comm->comm_id);
  json_text(json, "id", text);
  json_number(json, "ranks", comm_ranks->rank_count);
  json_number(json, "ranks_seen", comm_ranks->count);
  json_number(json, "called_least", (int64_t)comm_ranks->called_least);
  json_number(json, "called_most", (int64_t)comm_ranks->called_most);
  json_number(json, "ended_least", (int64_t)comm_ranks->done_least);
  json_number(json, "ended_most", (int64_t)comm_ranks->done_most);
  json_text(json, "state", comm_ranks_state(comm_ranks));
  json_open(json, "members", '[');
  for (uint32_t i = 0; i < comm_ranks->count; i++) member_json(json, comm_ranks, &comm_ranks->members[i]);
  json_close(json, ']');
  json_close(json, '}');
}

static void silents_json(struct json *json, const struct job *job) {
  json_open(json, "silent", '[');
  for (uint32_t i = 0; i < job->silent_count; i++) {
    const struct survey_silent *silent = &job->silents[i];
    char text[SOCK_TEXT_BYTES];
    json_open(json, NULL, '{');
    json_number(json, "rank", silent->rank);
    snprintf(text, sizeof text, "%016" PRIx64, silent->comm_id);
    json_text(json, "comm", text);
    json_number(json, "process", silent->process);
    json_text(json, "host", silent->host);
    json_text(json, "address", sock_address_text(&silent->address, text));
    json_text(json, "why", survey_why_text(silent->why));
    json_close(json, '}');
  }
  json_close(json, ']');
}

static void job_json(struct json *json, const struct job *job) {
  struct comm_ranks comm_ranks;
  json_open(json, NULL, '{');
  json_text(json, "state", job_state(job));
  json_bool(json, "good", job_is_good(job));
  json_number(json, "processes", job->file_count);
  json_open(json, "communicators", '[');
  for (uint32_t at = 0; comm_ranks_next(job, &at, &comm_ranks);) comm_ranks_json(json, &comm_ranks);
  json_close(json, ']');
  silents_json(json, job);
  json_open(json, "verdict", '{');
  json_text(json, "kind", diagnosis_name(job->diagnosis.kind));
  json_text(json, "sentence", job->diagnosis.sentence);
  json_text(json, "next", job->diagnosis.next);
  json_open(json, "evidence", '[');
  for (uint32_t i = 0; i < job->diagnosis.evidence_count; i++)
    json_text(json, NULL, job->diagnosis.evidence[i]);
  json_close(json, ']');
  json_close(json, '}');
  json_close(json, '}');
}

/* ---- all jobs ---- */

static bool silent_is_of(const struct survey_silent *silent, const struct job *job) {
  for (uint32_t i = 0; i < job->member_count; i++)
    if (job->members[i].state.view->comm->comm_id == silent->comm_id) return true;
  return job->member_count == 0;
}

/* Moves those of the job to the front of `silents`; `left` are there. */
static void job_take_silents(struct job *job, struct survey_silent *silents, uint32_t left) {
  job->silents = silents;
  for (uint32_t i = 0; i < left; i++) {
    if (!silent_is_of(&silents[i], job)) continue;
    const struct survey_silent own = silents[i];
    silents[i] = silents[job->silent_count];
    silents[job->silent_count++] = own;
  }
}

/* The job with this number: its files are moved to `files`, which has space for all. False: memory is out. */
static bool job_make(struct sample *sample, uint32_t number, const struct sample *before,
                     struct record_file *files, struct job *job) {
  memset(job, 0, sizeof *job);
  job->files = files;
  for (uint32_t i = 0; i < sample->count; i++) {
    if (sample->jobs[i] != number) continue;
    text_clean(sample->files[i].header.host, sizeof sample->files[i].header.host);
    files[job->file_count++] = sample->files[i];
  }
  return members_find(job, before) && job_diagnose(job);
}

struct report {
  struct json json;
  bool as_json, good;
  uint32_t job_count, silent_count; /* reported */
};

static bool report_job(struct report *report, struct sample *sample, uint32_t number,
                       const struct sample *before, struct record_file *files) {
  struct job job;
  const bool made = job_make(sample, number, before, files, &job);
  if (made) {
    job_take_silents(&job, sample->silents + report->silent_count,
                     sample->silent_count - report->silent_count);
    if (!report->as_json && report->job_count > 0) puts("");
    if (report->as_json) job_json(&report->json, &job);
    else job_print(&job);
    report->job_count += 1;
    report->silent_count += job.silent_count;
    report->good = report->good && job_is_good(&job);
  }
  os_free(job.members);
  return made;
}

/* False when memory is out. */
static bool report_all(struct report *report, struct sample *sample, const struct sample *before) {
  struct record_file *files = (struct record_file *)os_alloc((sample->count + 1) * sizeof *files);
  bool good = files != NULL;
  for (uint32_t i = 0; i < sample->count && good; i++) {
    bool first = true;
    for (uint32_t k = 0; k < i && first; k++) first = sample->jobs[k] != sample->jobs[i];
    if (first) good = report_job(report, sample, sample->jobs[i], before, files);
  }
  os_free(files);
  return good;
}

static enum exit_code status_print(const struct status_flags *flags, struct sample *sample,
                                   const struct sample *before) {
  struct report report = {.as_json = flags->json, .good = true};
  report.json.out = stdout;
  if (flags->json) {
    json_open(&report.json, NULL, '{');
    json_number(&report.json, "version", 1);
    json_open(&report.json, "jobs", '[');
  }
  const bool made = report_all(&report, sample, before);
  if (flags->json) {
    json_close(&report.json, ']');
    json_close(&report.json, '}');
    puts("");
  }
  if (!made) fprintf(stderr, "tutti status: comparing %u processes" LOG_OUT_OF_MEMORY "\n", sample->count);
  return !made ? EXIT_ENVIRONMENT : report.good ? EXIT_GOOD : EXIT_WRONG;
}

/* The time until progress is in the records. */
static unsigned apart_ms(const struct sample *sample) {
  for (uint32_t i = 0; i < sample->count; i++)
    for (uint32_t k = 0; k < sample->files[i].view_count; k++)
      if (sample->files[i].views[k].comm->counts == RECORD_COUNTS_SEEN) return 1500;
  return 300;
}

static enum exit_code status_show(const struct status_flags *flags, const struct status_target *target) {
  struct sample before, now;
  enum exit_code code = sample_take(target, &before);
  if (code == EXIT_GOOD) {
    os_sleep_ms(flags->apart_ms >= 0 ? (unsigned)flags->apart_ms : apart_ms(&before));
    code = sample_take(target, &now);
    if (code == EXIT_GOOD) code = status_print(flags, &now, &before);
    sample_free(&now);
  }
  sample_free(&before);
  return code;
}

/* The operand: none, a process, or an address. */
static bool target_read(const char *text, struct status_target *target) {
  memset(target, 0, sizeof *target);
  if (text == NULL) return true;
  if (text[strspn(text, "0123456789")] == '\0' && strlen(text) < 10) target->pid = strtol(text, NULL, 10);
  if (target->pid > 0) return true;
  target->address = text;
  if (strchr(text, ':') != NULL && sock_address_parse(text, "tutti status", &target->at) == ncclSuccess)
    return true;
  fprintf(
      stderr,
      "tutti status: `%s` is neither a process's number nor HOST:PORT of a process's control server, which "
      "its log names (NCCL_DEBUG=INFO)\n",
      text);
  return false;
}

static enum exit_code status_run(int argc, char **argv) {
  struct status_flags flags = {.apart_ms = -1};
  struct status_target target;
  int operand;
  setenv("NCCL_DEBUG", "NONE", 0); /* a failure is reported once, by this program */
  enum exit_code code;
  if (!verb_parse(&options, argc, argv, &flags, &operand, &code)) return code;
  if (argc - operand > 1) {
    fprintf(stderr, "tutti status: one process, or HOST:PORT, at a time; `%s` is one too many\n",
            argv[operand + 1]);
    return EXIT_USAGE;
  }
  if (!target_read(operand < argc ? argv[operand] : NULL, &target)) return EXIT_USAGE;
  return status_show(&flags, &target);
}

const struct verb verb_status = {
    "status",
    "report what the communicators of a running job do, and who is behind",
    "[PID | HOST:PORT] [FLAGS]",
    NULL,
    "  tutti bench all_reduce --ranks 4 --threads -b 1M -e 1M -n 10000 >bench.log &\n"
    "  until tutti status; do sleep 1; done\n"
    "  tutti status $! --json; wait\n"
    "  # needs a job whose log names this address\n"
    "  tutti status node7:40123\n",
    "Without an operand: all jobs of this user on this host. With a PID: that process's job. With HOST:PORT, "
    "the address of a process's control server: a job on another host; the process's log (NCCL_DEBUG=INFO) "
    "and the header of its records (`tutti trace dump`) have the address. It answers only if TUTTI_SECRET is "
    "set in the job, and the same for this command. Processes of this host are read through their records "
    "(TUTTI_TRACE), so stopped processes are seen as well; for other hosts one process is asked, which "
    "gathers the answers "
    "over the job's control connections.\n"
    "\n"
    "Prints a line for each job; then each communicator, with the least and most operations that its ranks "
    "have called and ended; if it makes no progress, which ranks are behind and which wait for which; ranks "
    "that do not answer; and the diagnosis of `tutti explain`. A communicator that progressed between two "
    "samples does not hang; for such a job a slow network link is named, if there is one.\n"
    "\n"
    "--json prints {version, jobs: [{state, good, processes, communicators: [{name, id, ranks, ranks_seen, "
    "called_least, called_most, ended_least, ended_most, state, members: [{rank, process, host, called, "
    "launched, ended, ends_known, behind, moved, error, waits: {for, rank, operation, channel, step, have, "
    "need}}]}], silent: [{rank, comm, process, host, address, why}], verdict: {kind, sentence, next, "
    "evidence}}]}. Keys are stable; others may be added. `waits` is present if a rank waits.\n"
    "\n"
    "The exit code is 0 if all is well, 1 if a job hangs, is broken or slow or has ranks that do not answer, "
    "3 if no process answers, 4 if there is no job to report.\n",
    &options,
    status_run,
};
