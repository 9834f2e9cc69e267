/* replay.c: the verb `replay`: runs a job's records in the guarded emulator, up to the recorded state, and
 * reports whether the schedule can hang there, which single event is missing, and what would happen after it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "files/job_choice.h"
#include "json.h"
#include "progress.h"
#include "replay/replay_session.h"
#include "schedules/schedules.h"
#include "verb.h"

#define TRIES_MOST 16 /* events that are injected, one at a time */
#define LANES_MOST 8  /* lanes that are printed by default */
#define TRIES_NS UINT64_C(60000000000)

struct replay_flags {
  const char *inject, *until, *plan;
  int64_t steps, rank;
  uint64_t seed;
  bool json, interactive, keeps_going;
  struct option_list commands;
  const char *command_file;
};
#define AT(member) offsetof(struct replay_flags, member)

static const struct option_row rows[] = {
    {'i', "inject", "EVENT", OPTION_TEXT, AT(inject), 0, 0,
     "let one missing event happen: `rank 7 channel 2 send 41`, `... recv 8`, `rank 2 call`, `launch` or "
     "`start`"},
    {'u', "until", "PLACE", OPTION_TEXT, AT(until), 0, 0,
     "stop when a lane reaches a step: `rank 7 channel 2 step 40`"},
    {'s', "step", "N", OPTION_INT, AT(steps), 1, 1000000000,
     "run N scheduler events on from the recorded hang, and stop there"},
    {'R', "rank", "RANK", OPTION_INT, AT(rank), 0, 1 << 20,
     "print all lanes of this rank, with their connections"},
    {0, "seed", "SEED", OPTION_SEED, AT(seed), 0, 0, "seed of the order of events (default 1)"},
    {0, "plan", "FILE", OPTION_INPUT, AT(plan), 0, 0,
     "the schedule file with which the job ran (TUTTI_CUSTOM_FILE)"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON instead of text"},
    {'I', "interactive", NULL, OPTION_FLAG, AT(interactive), 0, 0,
     "step to and fro by commands from standard input; `help` lists them"},
    {'e', "execute", "COMMAND", OPTION_LIST, AT(commands), 0, 0,
     "run this command of the interactive mode, and end; may be repeated"},
    {'x', "commands", "FILE", OPTION_INPUT, AT(command_file), 0, 0, "run the commands in a file, and end"},
    {'k', "keep-going", NULL, OPTION_FLAG, AT(keeps_going), 0, 0,
     "run the other commands after one that fails"},
};
static const struct option_set replay_options = {"replay", rows, sizeof rows / sizeof rows[0],
                                                 false,    true, true};

/* The flags and the results. */
struct answer {
  struct replay_flags flags;
  struct replay replay;
  struct replay_mark mark;
  struct replay_outcome base, with; /* up to the recorded state; with the event */
  const struct replay_event *event; /* of base: the one that explains the most, or was injected */
  bool assumes, holds_seen;
  enum replay_transport transport;
};

/* ---- runs ---- */

struct looking {
  const struct answer *answer;
  const struct replay_outcome *shown;
};

static const char *heading(const struct looking *looking) {
  const struct replay_flags *flags = &looking->answer->flags;
  if (flags->until != NULL)
    return looking->shown->until_reached ? "at that step:"
                                         : "no lane reaches that step; last states of the ranks:";
  if (flags->steps > 0) return "after that many more events:";
  return flags->inject != NULL ? "in the end:" : "where the ranks are:";
}

static void lanes_print(void *argument) {
  const struct looking *looking = (const struct looking *)argument;
  const int64_t rank = looking->answer->flags.rank;
  puts(heading(looking));
  replay_print_lanes(rank >= 0 ? (uint32_t)rank : REPLAY_NONE, rank >= 0 ? UINT32_MAX : LANES_MOST);
}

static struct replay_scenario answer_scenario(const struct answer *answer,
                                              const struct replay_event *injected, bool goes_on) {
  const struct replay_scenario scenario = {.seed = answer->flags.seed,
                                           .transport = answer->transport,
                                           .injected = injected,
                                           .missing = answer->base.events,
                                           .missing_count = goes_on ? answer->base.event_count : 0,
                                           .goes_on = goes_on,
                                           .assumes = answer->assumes,
                                           .holds_seen = answer->holds_seen};
  return scenario;
}

static ncclResult_t answer_run(struct answer *answer, const struct replay_event *injected, bool goes_on,
                               void (*look)(void *argument), void *argument, struct replay_outcome *outcome) {
  struct replay_scenario scenario = answer_scenario(answer, injected, goes_on);
  scenario.until = answer->flags.until != NULL && look != NULL ? &answer->mark : NULL;
  scenario.event_limit = look != NULL ? (uint64_t)answer->flags.steps : 0;
  scenario.look = look;
  scenario.argument = argument;
  return replay_run(&answer->replay, &scenario, outcome);
}

static bool event_makes_work(const struct replay_event *event) { return event->kind <= EVENT_LAUNCH; }

/* What has not ended, or still has to be called or launched. */
static uint32_t outcome_lacks(const struct answer *answer, const struct replay_event *injected,
                              const struct replay_outcome *outcome) {
  uint32_t lacks = outcome->unended + outcome->failed;
  for (uint32_t i = 0; i < answer->base.event_count; i++)
    lacks += &answer->base.events[i] != injected && event_makes_work(&answer->base.events[i]);
  return lacks;
}

/* Data that was sent and has not arrived also explains why later slots are not free. */
static bool event_leads(const struct replay_event *event, const struct replay_event *other) {
  return event->kind == EVENT_SEND && other->kind == EVENT_RECV && event->rank == other->waiter;
}

/* Injects each missing event alone: the one that leaves the fewest operations undone explains the others. */
static ncclResult_t answer_choose(struct answer *answer) {
  struct replay_outcome *tried = (struct replay_outcome *)os_alloc(sizeof *tried);
  const uint64_t deadline = os_time_ns() + TRIES_NS;
  uint32_t least = UINT32_MAX;
  ncclResult_t result = ncclSuccess;
  if (tried == NULL) return log_no_memory("a replay");
  const uint32_t tries = answer->base.event_count < TRIES_MOST ? answer->base.event_count : TRIES_MOST;
  struct progress progress;
  progress_open(&progress, "replay", "missing events", stderr, false, os_time_ns());
  progress_begin(&progress, "tries each alone", tries, os_time_ns());
  for (uint32_t i = 0; i < tries; i++) {
    const struct replay_event *event = &answer->base.events[i];
    progress_say(&progress, i, os_time_ns());
    if (os_time_ns() > deadline || (least == 0 && answer->event->kind != EVENT_RECV)) break;
    result = answer_run(answer, event, true, NULL, NULL, tried);
    if (result != ncclSuccess) break;
    const uint32_t lacks = outcome_lacks(answer, event, tried);
    const bool better =
        answer->event == NULL || lacks < least ||
        (lacks == least && (tried->ended > answer->with.ended || event_leads(event, answer->event)));
    if (!better) continue;
    least = lacks;
    answer->event = event;
    answer->with = *tried;
  }
  progress_clear(&progress);
  os_free(tried);
  return result;
}

static bool anybody_absent(const struct replay *replay) {
  for (uint32_t c = 0; c < replay->comm_count; c++)
    for (uint32_t r = 0; r < replay->comms[c].rank_count; r++)
      if (replay->comms[c].ranks[r].state == NULL) return true;
  return false;
}

/* A failed attempt's notes are dropped, except how later messages were planned, which earlier ones may need.
 */
static void attempt_begin(struct replay *replay, uint32_t remark_count, bool again) {
  replay->remark_count = remark_count;
  for (uint32_t c = 0; c < replay->comm_count; c++) {
    replay->comms[c].unlike = replay->comms[c].refitted = false;
    replay->comms[c].fit[0] = 0;
    if (!again) replay->comms[c].fit[1] = 0;
  }
}

static bool anybody_refitted(const struct replay *replay) {
  for (uint32_t c = 0; c < replay->comm_count; c++)
    if (replay->comms[c].refitted) return true;
  return false;
}

static bool anybody_seen(const struct replay *replay) {
  for (uint32_t c = 0; c < replay->comm_count; c++)
    for (uint32_t r = 0; r < replay->comms[c].rank_count; r++) {
      const struct rank_state *state = replay->comms[c].ranks[r].state;
      if (state != NULL && state->view->comm->counts == RECORD_COUNTS_SEEN) return true;
    }
  return false;
}

/* Whether data was stored directly into outputs is recorded, except that GPUs' kernels do it otherwise. */
static bool tries_transports(const struct replay *replay) {
  bool known = true;
  for (uint32_t c = 0; c < replay->comm_count; c++) known = known && replay->comms[c].known;
  return !known || anybody_seen(replay);
}

/* Tries what the files leave open: whether data was stored directly into outputs; whether ranks without files
 * called what has not ended elsewhere; if only counters are known, whether lanes waited for something that
 * had arrived; and if graphs' launches are not counted, whether ranks in no graph had ended it or not begun.
 * If all attempts fail, the first one's reason is reported. */
static ncclResult_t answer_reach(struct answer *answer) {
  const uint32_t assumptions = anybody_absent(&answer->replay) ? 2 : 1;
  const uint32_t tried = tries_transports(&answer->replay) ? TRANSPORT_COUNT : 1;
  const uint32_t one = (anybody_seen(&answer->replay) ? 2 : 1) * assumptions * tried;
  const uint32_t transports = replay_graph_guess(&answer->replay, false) ? 2 * one : one;
  const uint32_t remark_count = answer->replay.remark_count;
  struct replay_outcome *first = (struct replay_outcome *)os_alloc(sizeof *first);
  ncclResult_t result = ncclSuccess;
  if (first == NULL) return log_no_memory("a replay");
  for (uint32_t i = 0; i < transports && result == ncclSuccess && !answer->base.reached; i++) {
    answer->transport = (enum replay_transport)(i % tried);
    answer->assumes = i / tried % assumptions != 0;
    answer->holds_seen = i % one >= assumptions * tried;
    replay_graph_guess(&answer->replay, i >= one);
    attempt_begin(&answer->replay, remark_count, false);
    result = answer_run(answer, NULL, false, NULL, NULL, &answer->base);
    if (result == ncclSuccess && !answer->base.reached && anybody_refitted(&answer->replay)) {
      attempt_begin(&answer->replay, remark_count, true);
      result = answer_run(answer, NULL, false, NULL, NULL, &answer->base);
    }
    if (i == 0) *first = answer->base;
  }
  if (!answer->base.reached) {
    attempt_begin(&answer->replay, remark_count, false);
    answer->base = *first;
    answer->transport = TRANSPORT_SLOTS;
    answer->assumes = answer->holds_seen = false;
    replay_graph_guess(&answer->replay, false);
  }
  os_free(first);
  return result;
}

/* ---- sentences ---- */

static void say_reached(const struct answer *answer, char out[REPLAY_TEXT_BYTES]) {
  uint32_t ranks = 0;
  for (uint32_t c = 0; c < answer->replay.comm_count; c++) ranks += answer->replay.comms[c].rank_count;
  if (!answer->base.reached) replay_say(out, "not reached: %.480s", answer->base.reason);
  else if (answer->replay.comm_count == 1)
    replay_say(out,
               "reached: the %u ranks of comm '%.40s' are in the recorded state, after %" PRIu64 " events%s",
               ranks, answer->replay.comms[0].name, answer->base.events_run,
               answer->assumes ? ", if those without files did what the others did" : "");
  else
    replay_say(
        out, "reached: the %u ranks of %u communicators are in the recorded state, after %" PRIu64 " events",
        ranks, answer->replay.comm_count, answer->base.events_run);
}

static void say_missing(const struct answer *answer, char out[REPLAY_TEXT_BYTES]) {
  char text[REPLAY_TEXT_BYTES];
  if (answer->event != NULL) {
    replay_event_text(&answer->replay, answer->event, text);
    replay_say(out, "\"%.100s\": %.380s", text, answer->event->why);
  } else if (answer->base.failed) replay_say(out, "nothing: %.480s", answer->base.stop);
  else if (answer->base.unended > 0)
    replay_say(out, "nothing that could arrive: the ranks wait for one another: %.400s", answer->base.stop);
  else if (answer->replay.graph)
    replay_say(out, "not known: a graph has a kernel under way, and records of its capture are gone");
  else replay_say(out, "nothing: all %" PRIu64 " kernels have ended", answer->base.ended);
}

static void say_with(const struct answer *answer, char out[REPLAY_TEXT_BYTES]) {
  const struct replay_outcome *with = &answer->with;
  uint32_t more = 0;
  for (uint32_t i = 0; i < answer->base.event_count; i++) more += &answer->base.events[i] != answer->event;
  if (with->moving) replay_say(out, "it still makes progress after %" PRIu64 " events", with->events_run);
  else if (with->failed) replay_say(out, "it fails: %.480s", with->stop);
  else if (with->unended > 0)
    replay_say(out, "%" PRIu64 " more kernels end, and then it stops: %.400s",
               with->ended - answer->base.ended, with->stop[0] != '\0' ? with->stop : "kernels do not start");
  else if (outcome_lacks(answer, answer->event, with) > 0)
    replay_say(out, "%" PRIu64 " more kernels end; %u other events are missing",
               with->ended - answer->base.ended, more);
  else replay_say(out, "all ranks end all that was called, %" PRIu64 " kernels", with->ended);
}

static void remarks_print(const struct answer *answer) {
  char text[REPLAY_TEXT_BYTES];
  for (uint32_t i = 0, told = 0; i < answer->base.event_count && told < LANES_MOST; i++) {
    if (&answer->base.events[i] == answer->event) continue;
    replay_event_text(&answer->replay, &answer->base.events[i], text);
    printf("also missing: \"%s\": %s\n", text, answer->base.events[i].why);
    told += 1;
  }
  for (uint32_t i = 0; i < answer->replay.remark_count; i++) printf("note: %s\n", answer->replay.remarks[i]);
}

static void answer_json(const struct answer *answer) {
  char text[REPLAY_TEXT_BYTES];
  struct json json = {.out = stdout};
  json_open(&json, NULL, '{');
  json_bool(&json, "reached", answer->base.reached);
  if (!answer->base.reached) json_text(&json, "reason", answer->base.reason);
  json_number(&json, "events_run", (int64_t)answer->base.events_run);
  if (answer->event != NULL) {
    replay_event_text(&answer->replay, answer->event, text);
    json_text(&json, "missing", text);
    json_text(&json, "why", answer->event->why);
    say_with(answer, text);
    json_text(&json, "then", text);
    json_bool(&json, "explains_all", outcome_lacks(answer, answer->event, &answer->with) == 0);
  }
  json_open(&json, "events", '[');
  for (uint32_t i = 0; i < answer->base.event_count; i++) {
    replay_event_text(&answer->replay, &answer->base.events[i], text);
    json_text(&json, NULL, text);
  }
  json_close(&json, ']');
  json_open(&json, "notes", '[');
  for (uint32_t i = 0; i < answer->replay.remark_count; i++)
    json_text(&json, NULL, answer->replay.remarks[i]);
  json_close(&json, ']');
  json_close(&json, '}');
  putchar('\n');
}

/* ---- the verb ---- */

static ncclResult_t answer_print(struct answer *answer) {
  char text[REPLAY_TEXT_BYTES];
  struct replay_outcome *shown = (struct replay_outcome *)os_alloc(sizeof *shown);
  struct looking looking = {answer, shown};
  const bool goes_on = answer->flags.inject != NULL || answer->flags.steps > 0;
  if (shown == NULL) return log_no_memory("a replay");
  say_reached(answer, text);
  printf("%s\n", text);
  if (answer->base.reached) {
    say_missing(answer, text);
    printf("missing: %s\n", text);
    if (answer->event != NULL) {
      say_with(answer, text);
      printf("with it: %s\n", text);
    }
  }
  const ncclResult_t result = answer_run(answer, answer->flags.inject != NULL ? answer->event : NULL, goes_on,
                                         lanes_print, &looking, shown);
  if (result == ncclSuccess && shown->unended == 0) puts("  no kernel is under way");
  os_free(shown);
  remarks_print(answer);
  return result;
}

static enum exit_code event_unknown(const struct answer *answer) {
  char text[REPLAY_TEXT_BYTES];
  fprintf(stderr,
          "tutti replay: --inject: \"%s\" is nothing that is missing here; these are:", answer->flags.inject);
  for (uint32_t i = 0; i < answer->base.event_count && i < TRIES_MOST; i++) {
    replay_event_text(&answer->replay, &answer->base.events[i], text);
    fprintf(stderr, "%s \"%s\"", i > 0 ? "," : "", text);
  }
  fputs(answer->base.event_count > 0 ? "\n" : " none\n", stderr);
  return EXIT_USAGE;
}

static enum exit_code answer_fail(ncclResult_t result) {
  fprintf(stderr, "tutti replay: %s\n", log_own_error());
  return result == ncclInvalidArgument ? EXIT_INPUT : EXIT_ENVIRONMENT;
}

/* Ranks in arguments are those of a communicator. */
static bool rank_is_there(const struct replay *replay, const char *flag, uint64_t rank) {
  uint32_t most = 0;
  for (uint32_t c = 0; c < replay->comm_count; c++)
    if (replay->comms[c].rank_count > most) most = replay->comms[c].rank_count;
  if (rank >= most)
    fprintf(stderr, "tutti replay: %s: there is no rank %" PRIu64 ": these files are of ranks 0 to %u\n",
            flag, rank, most - 1);
  return rank < most;
}

static bool flags_want_session(const struct replay_flags *flags) {
  return flags->interactive || flags->command_file != NULL || flags->commands.count > 0;
}

static enum exit_code answer_session(const struct answer *answer, struct replay *replay) {
  const struct session_flags flags = {&answer->flags.commands, answer->flags.command_file,
                                      answer->flags.keeps_going};
  const bool goes_on = answer->flags.inject != NULL;
  const struct replay_scenario scenario = answer_scenario(answer, goes_on ? answer->event : NULL, goes_on);
  return (enum exit_code)session_run(replay, &scenario, &answer->base, &flags);
}

static enum exit_code answer_give(struct answer *answer) {
  const struct replay_flags *flags = &answer->flags;
  if (flags->rank >= 0 && !rank_is_there(&answer->replay, "--rank", (uint64_t)flags->rank)) return EXIT_USAGE;
  if (flags->until != NULL && !rank_is_there(&answer->replay, "--until", answer->mark.rank))
    return EXIT_USAGE;
  ncclResult_t result = answer_reach(answer);
  if (result != ncclSuccess) return answer_fail(result);
  if (answer->flags.inject != NULL) {
    answer->event = replay_event_find(&answer->replay, &answer->base, answer->flags.inject);
    if (answer->event == NULL) return event_unknown(answer);
    if (flags_want_session(flags)) return answer_session(answer, &answer->replay);
    result = answer_run(answer, answer->event, true, NULL, NULL, &answer->with);
  } else if (flags_want_session(flags)) return answer_session(answer, &answer->replay);
  else if (answer->base.reached) result = answer_choose(answer);
  if (result == ncclSuccess && !answer->flags.json) result = answer_print(answer);
  if (result != ncclSuccess) return answer_fail(result);
  if (answer->flags.json) answer_json(answer);
  return answer->base.reached ? EXIT_GOOD : EXIT_WRONG;
}

static enum exit_code replay_files(struct answer *answer, int path_count, char **paths) {
  struct records records;
  enum exit_code code = EXIT_INPUT;
  if (!records_read("replay", RECORDS_WHOLE, path_count, paths, &records)) return EXIT_ENVIRONMENT;
  if (job_choose("replay", NULL, &records) != EXIT_GOOD) {
    records_free(&records);
    return EXIT_ENVIRONMENT;
  }
  if (answer->flags.plan != NULL && custom_read(answer->flags.plan, &answer->replay.custom) != ncclSuccess) {
    records_free(&records);
    return answer_fail(ncclInvalidArgument);
  }
  if (records.count > 0 && records.sources != SOURCE_RECORDS)
    fputs("tutti replay: dumps and logs of other tools have no plans and no steps: nothing to replay\n",
          stderr);
  else if (records.count > 0) {
    const ncclResult_t result = replay_read(&records, &answer->replay);
    if (result != ncclSuccess) code = answer_fail(result);
    else if (answer->replay.comm_count == 0) {
      puts("nothing to replay: every communicator in these files has ended in good order");
      code = EXIT_GOOD;
    } else code = answer_give(answer);
  }
  replay_free(&answer->replay);
  records_free(&records);
  return code;
}

static enum exit_code replay_verb(int argc, char **argv) {
  int first = argc;
  struct answer *answer = (struct answer *)os_alloc(sizeof *answer);
  if (answer == NULL) return EXIT_ENVIRONMENT;
  answer->flags = (struct replay_flags){.rank = -1, .seed = 1};
  enum exit_code code;
  if (!verb_parse(&replay_options, argc, argv, &answer->flags, &first, &code)) {
    os_free(answer);
    return code;
  }
  code = EXIT_USAGE;
  if (first == argc) fputs("tutti replay: which files? `tutti replay /dev/shm/tutti.*.trace`\n", stderr);
  else if (answer->flags.json &&
           (answer->flags.until != NULL || answer->flags.steps > 0 || answer->flags.rank >= 0))
    fputs("tutti replay: --json prints no lanes: leave out --until, --step and --rank\n", stderr);
  else if (flags_want_session(&answer->flags) &&
           (answer->flags.json || answer->flags.until != NULL || answer->flags.steps > 0))
    fputs("tutti replay: a session takes no --json, --until and --step; it has `break` and `step`\n", stderr);
  else if (answer->flags.until != NULL && answer->flags.steps > 0)
    fputs("tutti replay: --until and --step: give one of them\n", stderr);
  else if (answer->flags.until != NULL && !replay_mark_parse(answer->flags.until, &answer->mark))
    fprintf(stderr, "tutti replay: --until: \"%s\" is no place; one is `rank 7 channel 2 step 40`\n",
            answer->flags.until);
  else code = replay_files(answer, argc - first, argv + first);
  os_free(answer);
  return code;
}

const struct verb verb_replay = {
    "replay",
    "replay a hung job from its records, up to the recorded hang and beyond",
    "[--inject EVENT] [--until PLACE] [--step N] [--rank RANK] [--seed SEED] [--plan FILE] FILE...\n"
    "--interactive FILE...\n"
    "--execute COMMAND... FILE...\n"
    "--commands FILE FILE...",
    "FILE",
    "  tutti replay traces/absent/*.txt\n"
    "  tutti replay --inject 'rank 2 call' traces/absent/*.txt\n"
    "  tutti replay --until 'rank 0 channel 0 step 1' --rank 0 traces/absent/*.txt\n"
    "  tutti replay --json traces/absent/*.txt\n"
    "  tutti replay -e 'break rank 1 channel 0 step 1' -e continue -e 'print waits' -e back "
    "traces/absent/*.txt\n",
    "Reads the files that each rank left behind (TUTTI_TRACE; binary, or their text), makes the same "
    "communicators, plans and calls in the guarded emulator, whether the job ran on GPUs or not, and runs "
    "every rank up to the point that its records show. It reports whether the schedule can hang there (a "
    "wrong counter makes it impossible), which single event is missing, and what would happen after it: each "
    "missing event is injected alone, and the one after which the fewest operations are left is the root "
    "cause.\n"
    "\n"
    "An event is something that a rank should have done (`rank 2 call`, `rank 2 launch`, `rank 2 start`), or "
    "a step that it has sent or freed and that has not reached the rank that waits for it (`rank 7 channel 2 "
    "send 41`, `recv`; `channel 0-21` if several channels wait for the same step); `comm NAME` selects a "
    "communicator. Steps are counted as the connection counts them.\n"
    "\n"
    "With --interactive, or commands from --execute or a file, the run is stepped as in a debugger, event by "
    "event: forward, and back, because the emulator runs the same events each time. It stops where a rank "
    "begins an operation (`break op all_reduce #3`), where a lane comes to a step (`break rank 2 channel 0 "
    "step "
    "5`), or at an event, and prints ranks, waits, plans, and lanes with the slots, counters and flags of "
    "their "
    "connections. Without a terminal there is no prompt, and the first command that fails ends the session "
    "with "
    "status 2.\n"
    "\n"
    "The exit status is 0 when the recorded hang is reached, 1 when the schedule cannot hang there.\n",
    &replay_options,
    replay_verb,
};
