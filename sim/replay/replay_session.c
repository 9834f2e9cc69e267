/* replay_session.c: `tutti replay --interactive`: reads commands, as a debugger does, and moves the run to
 * and fro. The emulator runs the same events each time, so a step back is a run from the begin to the event
 * before.
 */
#include "replay/replay_session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "verb.h"

#define HISTORY (1u << 16) /* records of events that are kept; a power of two */
#define LIST_DEFAULT 10u
#define PROMPT "(replay) "
#define LINE_BYTES 1024

static struct {
  struct replay *replay;
  struct replay_scenario scenario;
  const struct replay_outcome *base;
  struct replay_event injected;
  struct replay_outcome outcome;
  bool running, ended, quits; /* running: there is a world */
  bool watching;              /* breakpoints count */
  bool kernel;                /* a kernel has begun or ended since this was false */
  uint64_t record_count;
  struct trace_record *history; /* record i is at i mod HISTORY */
  char why[REPLAY_TEXT_BYTES];  /* why a command fails */
} session;

static bool fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(session.why, sizeof session.why, format, arguments);
  va_end(arguments);
  return false;
}

/* ---- moving ---- */

static void watch(const struct trace_record *record) {
  session.history[session.record_count++ & (HISTORY - 1)] = *record;
  session.kernel = session.kernel || record->kind == TRACE_KERNEL;
  if (session.watching) break_watch(record);
}

static bool run_begin(void) {
  if (session.running) replay_end();
  session.running = session.ended = session.watching = false;
  session.record_count = 0;
  memset(&session.outcome, 0, sizeof session.outcome);
  if (replay_begin(session.replay, &session.scenario) != ncclSuccess) return fail("%.480s", log_own_error());
  session.running = true;
  return true;
}

static bool advance(uint64_t event) {
  bool more = true;
  if (session.ended) return true;
  if (replay_advance(event, &session.outcome, &more) != ncclSuccess) return fail("%.480s", log_own_error());
  session.ended = !more;
  return true;
}

static bool go_to(uint64_t event) {
  session.watching = false;
  if ((event < emu_event_count() || !session.running) && !run_begin()) return false;
  return advance(event);
}

/* Event by event, to a breakpoint (*number), the next begin or end of a kernel if `kernels`, or `event`. */
static bool run_to(uint64_t event, bool kernels, uint32_t *number) {
  *number = 0;
  session.watching = true;
  session.kernel = false;
  break_take();
  while (!session.ended && emu_event_count() < event && *number == 0 && !(kernels && session.kernel)) {
    const uint64_t before = emu_event_count();
    if (!advance(before + 1)) return false;
    if (emu_event_count() > before) *number = break_take();
  }
  return true;
}

/* The last event before this one that a breakpoint stops at; 0: none. */
static bool last_stop(uint64_t before, uint64_t *event, uint32_t *number) {
  uint32_t found = 0;
  *event = *number = 0;
  if (!run_begin()) return false;
  while (!session.ended && emu_event_count() + 1 < before) {
    if (!run_to(before - 1, false, &found)) return false;
    if (found == 0) break;
    *event = emu_event_count();
    *number = found;
  }
  return true;
}

/* ---- printing ---- */

static void record_print(const struct trace_record *record) {
  char text[256];
  trace_record_text(record, text, sizeof text);
  puts(text);
}

static uint64_t history_first(void) {
  return session.record_count > HISTORY ? session.record_count - HISTORY : 0;
}

/* The records of the event that ran last, and whether the run ends here. */
static void where_print(void) {
  const uint64_t event = emu_event_count();
  uint64_t first = session.record_count;
  while (first > history_first() && session.history[(first - 1) & (HISTORY - 1)].turn == event) first--;
  if (event == 0) puts("before the first event");
  else if (first == session.record_count) printf("%" PRIu64 " an event of the CUDA runtime\n", event);
  for (uint64_t i = first; i < session.record_count; i++) record_print(&session.history[i & (HISTORY - 1)]);
  if (!session.ended) return;
  if (session.scenario.goes_on) printf("the run ends at event %" PRIu64 "\n", event);
  else if (session.outcome.reached)
    printf("the run ends at event %" PRIu64 ", in the recorded state\n", event);
  else
    printf("the run ends at event %" PRIu64 ": not the recorded state: %s\n", event, session.outcome.reason);
}

static bool stopped_print(uint32_t number) {
  if (number != 0) printf("breakpoint %u, at event %" PRIu64 "\n", number, emu_event_count());
  where_print();
  return true;
}

/* ---- commands: each gets the words after its name ---- */

static bool count_read(const char *words, uint64_t usual, uint64_t *count) {
  char *end;
  *count = usual;
  if (*words == '\0') return true;
  errno = 0;
  *count = strtoull(words, &end, 10);
  if (errno == 0 && *end == '\0' && *words >= '0' && *words <= '9' && *count < INT64_MAX) return true;
  return fail("\"%.100s\": a number was expected", words);
}

static bool command_step(const char *words) {
  uint64_t count;
  uint32_t number;
  if (!count_read(words, 1, &count)) return false;
  if (session.ended) return fail("the run has ended; `back` or `goto 0` lead back");
  return run_to(emu_event_count() + count, false, &number) && stopped_print(number);
}

static bool command_next(const char *words) {
  uint64_t count;
  uint32_t number = 0;
  if (!count_read(words, 1, &count)) return false;
  if (session.ended) return fail("the run has ended; `back` or `goto 0` lead back");
  for (uint64_t i = 0; i < count && number == 0 && !session.ended; i++)
    if (!run_to(UINT64_MAX, true, &number)) return false;
  return stopped_print(number);
}

static bool command_continue(const char *words) {
  uint32_t number = 0;
  if (*words != '\0') return fail("`continue` takes no words; `goto N` runs to an event");
  if (session.ended) return fail("the run has ended; `back` or `goto 0` lead back");
  if (break_any() ? !run_to(UINT64_MAX, false, &number) : !advance(UINT64_MAX)) return false;
  return stopped_print(number);
}

static bool command_back(const char *words) {
  uint64_t count;
  if (!count_read(words, 1, &count)) return false;
  if (emu_event_count() == 0) return fail("this is the begin");
  if (!go_to(count < emu_event_count() ? emu_event_count() - count : 0)) return false;
  where_print();
  return true;
}

static bool command_goto(const char *words) {
  uint64_t event;
  if (!count_read(words, UINT64_MAX, &event)) return false;
  if (event == UINT64_MAX) return fail("`goto N`: the number of an event was expected");
  if (!go_to(event)) return false;
  where_print();
  return true;
}

static bool command_restart(const char *words) {
  return *words == '\0' ? command_goto("0") : fail("`restart` takes no words");
}

static bool command_reverse_continue(const char *words) {
  uint64_t event;
  uint32_t number;
  if (*words != '\0') return fail("`reverse-continue` takes no words");
  if (!last_stop(emu_event_count(), &event, &number) || !go_to(event)) return false;
  return stopped_print(number);
}

static bool command_break(const char *words) {
  struct replay_place place;
  uint64_t event = UINT64_MAX;
  if (strncmp(words, "event ", 6) == 0) {
    if (!count_read(words + 6, UINT64_MAX, &event)) return false;
    memset(&place, 0, sizeof place);
    return break_add(&place, event, words, session.why);
  }
  if (*words == '\0') return fail("`break PLACE`: a place was expected, as `rank 2 channel 0 step 5`");
  if (!replay_place_parse(session.replay, words, &place, session.why)) return false;
  if (place.count != UINT64_MAX)
    return fail("\"%" PRIu64 "\": `break event N` stops at an event", place.count);
  return break_add(&place, UINT64_MAX, words, session.why);
}

static bool command_delete(const char *words) {
  uint64_t number;
  if (!count_read(words, 0, &number)) return false;
  return break_delete(number) || fail("there is no breakpoint %" PRIu64, number);
}

static bool record_is_of(const struct trace_record *record, const struct replay_place *place) {
  if (record->kind != TRACE_LANE && record->kind != TRACE_BLOCK && record->kind != TRACE_KERNEL) return false;
  if (record->kind == TRACE_KERNEL && place->channel != REPLAY_NONE) return false;
  return (place->rank == REPLAY_NONE || record->rank == place->rank) &&
         (place->comm == REPLAY_NONE || record->comm == place->comm + 1) &&
         (place->channel == REPLAY_NONE || record->channel == place->channel) &&
         (place->lane == REPLAY_NONE || record->kind != TRACE_LANE || record->lane == place->lane);
}

/* The last events of a place, oldest first. */
static bool events_print(const struct replay_place *place) {
  const uint64_t most = place->count != UINT64_MAX ? place->count : LIST_DEFAULT;
  uint64_t first = session.record_count, found = 0;
  while (first > history_first() && found < most)
    found += record_is_of(&session.history[--first & (HISTORY - 1)], place);
  for (uint64_t i = first; i < session.record_count; i++)
    if (record_is_of(&session.history[i & (HISTORY - 1)], place))
      record_print(&session.history[i & (HISTORY - 1)]);
  if (found == 0) puts("no event yet");
  return true;
}

static bool command_events(const char *words) {
  struct replay_place place;
  return replay_place_parse(session.replay, words, &place, session.why) && events_print(&place);
}

static bool lanes_print_place(const char *words) {
  struct replay_place place;
  if (!replay_place_parse(session.replay, words, &place, session.why)) return false;
  emu_lock();
  const bool any = view_lanes(&place);
  emu_unlock();
  if (!any) puts("  no lane of it is under way");
  return true;
}

static bool plan_print_place(const char *words) {
  struct replay_place place;
  if (!replay_place_parse(session.replay, words, &place, session.why)) return false;
  return view_plan(&place, session.why);
}

static bool view(void (*print)(void), const char *words) {
  if (*words != '\0') return fail("\"%.100s\": no more words were expected", words);
  emu_lock();
  print();
  emu_unlock();
  return true;
}

/* Everything: two runs that print the same here are in the same state. */
static void state_print(void) {
  const struct replay_place all = {REPLAY_NONE, REPLAY_NONE, REPLAY_NONE, REPLAY_NONE,
                                   UINT64_MAX,  UINT64_MAX,  UINT64_MAX,  REPLAY_NONE};
  printf("event %" PRIu64 ", hash of all events %016" PRIx64 "\n", emu_event_count(), emu_meter.trace_hash);
  view_ranks();
  view_lanes(&all);
}

/* The words after the first one, if that is `name`; else NULL. */
static const char *after(const char *words, const char *name) {
  const size_t length = strlen(name);
  if (strncmp(words, name, length) != 0 || (words[length] != ' ' && words[length] != '\0')) return NULL;
  return words + length + strspn(words + length, " ");
}

static bool command_print(const char *words) {
  const char *rest;
  if ((rest = after(words, "breakpoints")) != NULL) return view(break_print, rest);
  if ((rest = after(words, "ranks")) != NULL) return view(view_ranks, rest);
  if ((rest = after(words, "waits")) != NULL) return view(view_waits, rest);
  if ((rest = after(words, "state")) != NULL) return view(state_print, rest);
  if ((rest = after(words, "events")) != NULL) return command_events(rest);
  if ((rest = after(words, "plan")) != NULL) return plan_print_place(rest);
  if ((rest = after(words, "lanes")) != NULL) return lanes_print_place(rest);
  if (*words == '\0')
    return fail("`print`: ranks, waits, lanes, plan, events, state or a place was expected");
  return lanes_print_place(words);
}

static bool command_inject(const char *words) {
  const struct replay_event *event = replay_event_find(session.replay, session.base, words);
  const uint64_t at = emu_event_count();
  char text[REPLAY_TEXT_BYTES];
  if (event == NULL && session.base->event_count == 0) return fail("no single event is missing here");
  if (event == NULL) {
    replay_event_text(session.replay, &session.base->events[0], text);
    return fail("\"%.100s\" is nothing that is missing here; `%.100s` is", words, text);
  }
  session.injected = *event;
  session.scenario.injected = event;
  session.scenario.missing = session.base->events;
  session.scenario.missing_count = session.base->event_count;
  session.scenario.goes_on = true;
  return run_begin() && advance(at);
}

static bool command_quit(const char *words) {
  session.quits = true;
  return *words == '\0' || fail("`quit` takes no words");
}

/* ---- the table ---- */

static bool command_help(const char *words);

static const struct command {
  const char *name, *letters; /* letters: a shorter name, or "" */
  bool (*run)(const char *words);
  const char *usage, *help;
} commands[] = {
    {"step", "s", command_step, "step [N]", "run one event, or N"},
    {"next", "n", command_next, "next [N]", "run until an operation's kernel begins or ends on a rank"},
    {"continue", "c", command_continue, "continue", "run to a breakpoint, or to the end"},
    {"back", "rs", command_back, "back [N]", "go back one event, or N"},
    {"reverse-continue", "rc", command_reverse_continue, "reverse-continue",
     "go back to where a breakpoint stops last before here"},
    {"goto", "g", command_goto, "goto N", "go to the state after event N"},
    {"restart", "r", command_restart, "restart", "go to the begin"},
    {"break", "b", command_break, "break PLACE | event N",
     "stop where a rank begins an operation (`op all_reduce #3`), a channel its part, or a lane a step"},
    {"delete", "d", command_delete, "delete [N]", "delete a breakpoint, or all"},
    {"print", "p", command_print, "print ranks | waits | state | PLACE | plan PLACE | events [PLACE] [N]",
     "print ranks, who waits for whom, lanes with their slots, counters and flags, an operation's plan, or "
     "events"},
    {"info", "i", command_print, "info breakpoints", "the same as print"},
    {"list", "l", command_events, "list [N]", "print the last events"},
    {"backtrace", "bt", command_events, "backtrace PLACE [N]", "print the last events of a rank or lane"},
    {"inject", "", command_inject, "inject EVENT",
     "let a missing event happen when the recorded state is reached, and run on"},
    {"help", "h", command_help, "help", "print this list"},
    {"quit", "q", command_quit, "quit", "end"},
};
#define COMMANDS (sizeof commands / sizeof commands[0])

static bool command_help(const char *words) {
  if (*words != '\0') return fail("`help` takes no words");
  for (size_t i = 0; i < COMMANDS; i++)
    printf("%-3s %s\n        %s\n", commands[i].letters, commands[i].usage, commands[i].help);
  puts("A PLACE is any of: rank R, channel C, lane L, step S, op NAME or op #K, comm NAME.");
  return true;
}

/* By its letters, its name, or the begin of exactly one name. */
static const struct command *command_find(const char *name) {
  const struct command *found = NULL;
  for (size_t i = 0; i < COMMANDS; i++) {
    if (strcmp(name, commands[i].letters) == 0 || strcmp(name, commands[i].name) == 0) return &commands[i];
    if (strncmp(name, commands[i].name, strlen(name)) != 0) continue;
    if (found != NULL) {
      fail("\"%.60s\" may be %s or %s", name, found->name, commands[i].name);
      return NULL;
    }
    found = &commands[i];
  }
  if (found == NULL) fail("there is no command \"%.60s\"; `help` lists them", name);
  return found;
}

static bool command_run(const char *line) {
  char name[64];
  const size_t length = strcspn(line, " ");
  if (length >= sizeof name) return fail("there is no command \"%.60s\"; `help` lists them", line);
  memcpy(name, line, length);
  name[length] = '\0';
  const struct command *command = command_find(name);
  return command != NULL && command->run(line + length + strspn(line + length, " "));
}

/* Strips blanks; false if nothing is left, or a comment. */
static bool line_trim(char **line) {
  *line += strspn(*line, " \t");
  size_t length = strlen(*line);
  while (length > 0 && strchr(" \t\r\n", (*line)[length - 1]) != NULL) (*line)[--length] = '\0';
  return length > 0 && **line != '#';
}

static bool line_run(const char *line) {
  if (command_run(line)) return true;
  fflush(stdout);
  fprintf(stderr, "tutti replay: %s\n", session.why);
  return false;
}

/* Commands of a file, up to the first that fails, unless `keeps_going`. `repeats`: an empty line repeats the
 * last command. False: a command has failed. */
static bool lines_run(FILE *in, bool prompts, bool repeats, bool keeps_going) {
  char line[LINE_BYTES], last[LINE_BYTES] = "";
  bool good = true;
  while (!session.quits && (good || keeps_going)) {
    if (prompts) fputs(PROMPT, stdout);
    fflush(stdout);
    if (fgets(line, sizeof line, in) == NULL) break;
    char *text = line;
    if (line_trim(&text)) memmove(last, text, strlen(text) + 1);
    else if (*text == '#' || !repeats) continue;
    if (last[0] != '\0') good = line_run(last) && good;
  }
  if (prompts && !session.quits) putchar('\n');
  return good;
}

static bool file_run(const struct session_flags *flags) {
  FILE *file = fopen(flags->file, "r");
  if (file == NULL) {
    fprintf(stderr, "tutti replay: %s: %s\n", flags->file, strerror(errno));
    return false;
  }
  const bool good = lines_run(file, false, false, flags->keeps_going);
  fclose(file);
  return good;
}

static bool flags_run(const struct session_flags *flags) {
  bool good = true;
  for (size_t i = 0; i < flags->commands->count && (good || flags->keeps_going) && !session.quits; i++)
    good = line_run(flags->commands->texts[i]) && good;
  if (flags->file != NULL && (good || flags->keeps_going) && !session.quits) good = file_run(flags) && good;
  if (flags->file != NULL || flags->commands->count > 0) return good;
  const bool terminal = isatty(STDIN_FILENO) != 0;
  return lines_run(stdin, terminal && isatty(STDOUT_FILENO) != 0, true, terminal || flags->keeps_going) ||
         terminal;
}

int session_run(struct replay *replay, const struct replay_scenario *scenario,
                const struct replay_outcome *base, const struct session_flags *flags) {
  memset(&session, 0, sizeof session);
  session.replay = replay;
  session.scenario = *scenario;
  session.base = base;
  session.history = (struct trace_record *)os_alloc(HISTORY * sizeof *session.history);
  if (session.history == NULL) {
    fputs("tutti replay: memory is out\n", stderr);
    return EXIT_ENVIRONMENT;
  }
  emu_trace_watch(watch);
  int code = EXIT_ENVIRONMENT;
  if (run_begin()) code = flags_run(flags) ? EXIT_GOOD : EXIT_USAGE;
  else fprintf(stderr, "tutti replay: %s\n", session.why);
  if (session.running) replay_end();
  emu_trace_watch(NULL);
  os_free(session.history);
  return code;
}
