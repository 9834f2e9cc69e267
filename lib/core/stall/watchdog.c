/* watchdog.c: examines this process's records. When one of its communicators makes no progress, it has one
 * process diagnose: the first of the communicator's that answers, which gathers all records and reports to
 * all others. Holds no lock while it asks, and logs a message once. Time is counted in examinations, so that
 * a process that was stopped itself raises no alarm. */
#include "core/stall/watchdog.h"

#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/explainer.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/text.h"
#include "core/bootstrap/control.h"
#include "core/remote/remote.h"
#include "core/stall/own_diagnosis.h"
#include "core/stall/survey.h"
#include "explain/diagnose.h"
#include "trace/recorder.h"

#define COMMS_MOST 256u /* watched at once */
#define ASKED_MOST 3u   /* processes asked to diagnose before this one does so itself */
#define TICK_MS_MOST 1000u
#define REPORT_NS UINT64_C(1500000000)
#define DIAGNOSIS_NS UINT64_C(15000000000) /* time limit of a diagnosis */
#define JOB_NS UINT64_C(30000000000)       /* time to keep a survey after it was last requested */
#define TEXT_BYTES 1024
#define TEXTS_MOST 4u

struct watched {
  uint64_t place, moves, quiet_ms; /* place: in the file of records */
  bool reported;                   /* since it last made progress */
};

/* A stall that another process was asked to diagnose. */
struct alarm {
  bool on;
  uint64_t comm_id, due_ns;
  uint32_t next, received; /* the process to be asked next; number of diagnoses received at the start */
};

static struct {
  uint32_t users, fork_count;
  bool running, stop;
  uint64_t limit_ms; /* TUTTI_WATCHDOG_SECONDS, read when the first communicator enters; 0: off */
  os_thread thread;
  uint32_t called_off; /* atomic */
  bool diagnose;       /* another process wants a diagnosis */
  uint32_t received;   /* number of diagnoses, including this process's own */
  uint64_t received_ns;
  char texts[TEXTS_MOST][TEXT_BYTES]; /* the last ones logged */
  uint32_t text_count;
  uint64_t reported_moves;
  /* used by the thread only */
  struct watched comms[COMMS_MOST];
  uint32_t comm_count;
  uint64_t looked_ns, progress;
  struct alarm alarm;
} watchdog;
/* The job's survey, for requests from outside the job; guarded by the same lock. */
static struct {
  bool wanted, ready;
  uint64_t number, last; /* number: of the present survey, 0: none; last: the last number assigned */
  struct survey_bytes survey;
  uint64_t asked_ns;
} job;
static os_mutex dog_lock = OS_MUTEX_INITIALIZER;
static os_cond dog_changed;
static os_mutex life_lock = OS_MUTEX_INITIALIZER; /* for starting and ending the thread; taken first */

static uint64_t tick_ms(void) {
  return watchdog.limit_ms / 4 < TICK_MS_MOST ? watchdog.limit_ms / 4 : TICK_MS_MOST;
}

/* ---- diagnoses ---- */

/* Changes whenever something moves in this process. */
static uint64_t all_moves(void) {
  struct recorder_look comm;
  uint64_t moves = HASH_SEED;
  for (uint64_t place = 0; recorder_look_next(&place, &comm);) moves = hash_mix(moves, comm.moves);
  return moves;
}

/* Stores the text; true if it was not logged yet and no other was since anything moved here. Locked. */
static bool text_is_new(const char *text) {
  const uint64_t moves = all_moves();
  if (watchdog.text_count > 0 && watchdog.reported_moves == moves) return false;
  for (uint32_t i = 0; i < TEXTS_MOST; i++)
    if (strcmp(watchdog.texts[i], text) == 0) return false;
  snprintf(watchdog.texts[watchdog.text_count++ % TEXTS_MOST], TEXT_BYTES, "%s", text);
  watchdog.reported_moves = moves;
  return true;
}

/* No hang was found: restarts the time of all communicators. Locked. */
static void comms_excuse(void) {
  for (uint32_t i = 0; i < watchdog.comm_count; i++) {
    watchdog.comms[i].quiet_ms = 0;
    watchdog.comms[i].reported = false;
  }
}

void watchdog_receive(const char *text, uint32_t bytes) {
  char clean[TEXT_BYTES];
  snprintf(clean, sizeof clean, "%.*s", (int)(bytes < sizeof clean ? bytes : sizeof clean - 1), text);
  text_clean(clean, sizeof clean);
  os_mutex_lock(&dog_lock);
  watchdog.received += 1;
  watchdog.received_ns = os_time_ns();
  if (clean[0] == '\0') comms_excuse();
  const bool says = clean[0] != '\0' && text_is_new(clean);
  if (watchdog.running) os_cond_broadcast(&dog_changed);
  os_mutex_unlock(&dog_lock);
  if (says) log_urgent("operations make no progress: %s", clean);
}

/* The diagnosis of `tutti explain`, and the processes that do not answer; "" if there is no hang. */
static void text_make(const struct survey *survey, char *text) {
  struct diagnosis diagnosis;
  if (!diagnose_files(survey->files, survey->file_count, &diagnosis) || diagnosis.kind <= DIAGNOSIS_RUNNING)
    return;
  size_t used = (size_t)snprintf(text, TEXT_BYTES, "%s", diagnosis.sentence);
  for (uint32_t i = 0; i < survey->silent_count && i < 2 && used < TEXT_BYTES; i++) {
    const struct survey_silent *silent = &survey->silents[i];
    used += (size_t)snprintf(text + used, TEXT_BYTES - used, "; rank %u (process %u on %s) %s", silent->rank,
                             silent->process, silent->host, survey_why_text(silent->why));
  }
}

struct reported {
  uint32_t kind; /* REMOTE_CALL_REPORTED */
  char text[TEXT_BYTES];
};

static bool process_is_silent(const struct survey *survey, const struct sock_address *address) {
  for (uint32_t i = 0; i < survey->silent_count; i++)
    if (sock_address_equal(&survey->silents[i].address, address)) return true;
  return false;
}

/* Reports to every process that shares a communicator with this one. */
static void report_all(const struct survey *survey, const char *text) {
  struct survey_processes processes;
  struct reported reported = {REMOTE_CALL_REPORTED, ""};
  snprintf(reported.text, sizeof reported.text, "%s", text);
  const uint32_t bytes = (uint32_t)(offsetof(struct reported, text) + strlen(reported.text));
  for (uint32_t index = 0; survey_processes(&index, 0, &processes);) {
    for (uint32_t process_index = 0; process_index < processes.count; process_index++) {
      const struct sock_wait wait = {os_time_ns() + REPORT_NS, &watchdog.called_off, "reporting a stall"};
      uint32_t unused, unused_bytes = sizeof unused;
      if (process_index == processes.own || process_is_silent(survey, &processes.addresses[process_index]))
        continue;
      control_ask(&processes.addresses[process_index], &processes.secret, &wait, &reported, bytes, &unused,
                  &unused_bytes);
    }
    os_free(processes.addresses);
  }
}

/* Unlocked. */
static void diagnose_all(void) {
  struct survey_bytes bytes;
  struct survey survey;
  uint32_t refused;
  char text[TEXT_BYTES] = "";
  if (!survey_gather(&watchdog.called_off, &bytes)) return;
  if (survey_read(bytes.bytes, bytes.used, &survey, &refused)) {
    text_make(&survey, text);
    if (__atomic_load_n(&watchdog.called_off, __ATOMIC_ACQUIRE) == 0) {
      watchdog_receive(text, (uint32_t)strlen(text));
      report_all(&survey, text);
    }
    survey_free(&survey);
  }
  os_free(bytes.bytes);
}

/* ---- alarms ---- */

/* Asks the next process to diagnose, or does it itself. Unlocked. */
static void alarm_go_on(struct alarm *alarm) {
  const uint32_t kind = REMOTE_CALL_ALARM;
  struct survey_processes processes;
  uint32_t index = 0;
  if (!survey_processes(&index, alarm->comm_id, &processes))
    processes = (struct survey_processes){.count = 0};
  while (alarm->next < processes.own && alarm->next < ASKED_MOST) {
    const struct sock_wait wait = {os_time_ns() + REPORT_NS, &watchdog.called_off, "asking about a stall"};
    const struct sock_address *to = &processes.addresses[alarm->next++];
    uint32_t unused, bytes = sizeof unused;
    if (control_ask(to, &processes.secret, &wait, &kind, sizeof kind, &unused, &bytes) != CONTROL_ANSWERED)
      continue;
    os_free(processes.addresses);
    alarm->due_ns = os_time_ns() + DIAGNOSIS_NS;
    return;
  }
  os_free(processes.addresses);
  alarm->on = false;
  diagnose_all();
}

/* A communicator has made no progress for `quiet_ms`, and no diagnosis was received since then. */
static void alarm_begin(uint64_t comm_id, uint64_t quiet_ms) {
  os_mutex_lock(&dog_lock);
  const bool received = watchdog.received > 0 && os_time_ns() - watchdog.received_ns < quiet_ms * 1000000;
  if (!received && !watchdog.alarm.on)
    watchdog.alarm = (struct alarm){true, comm_id, 0, 0, watchdog.received};
  os_mutex_unlock(&dog_lock);
}

/* ---- examining ---- */

static struct watched *watched_get(uint64_t place) {
  for (uint32_t i = 0; i < watchdog.comm_count; i++)
    if (watchdog.comms[i].place == place) return &watchdog.comms[i];
  if (watchdog.comm_count == COMMS_MOST) return NULL;
  struct watched *watched = &watchdog.comms[watchdog.comm_count++];
  *watched = (struct watched){place, 0, 0, false};
  return watched;
}

static uint64_t passed_ms(void) {
  const uint64_t now_ns = os_time_ns(), passed = (now_ns - watchdog.looked_ns) / 1000000;
  watchdog.looked_ns = now_ns;
  return passed < 2 * tick_ms() ? passed : 2 * tick_ms();
}

/* Unlocked, except for members that other threads change. */
static void look(void) {
  struct recorder_look comm;
  const uint64_t passed = passed_ms(), progress = backend_ops()->device->records_progress();
  const bool progressed = progress != watchdog.progress;
  watchdog.progress = progress;
  backend_ops()->device->records_look();
  recorder_note_time();
  for (uint64_t place = 0; recorder_look_next(&place, &comm);) {
    os_mutex_lock(&dog_lock);
    struct watched *watched = watched_get(place);
    bool due = false;
    if (watched != NULL) {
      const bool moved = progressed || !comm.pends || comm.moves != watched->moves;
      watched->quiet_ms = moved ? 0 : watched->quiet_ms + passed;
      watched->reported = watched->reported && !moved;
      watched->moves = comm.moves;
      due = !watched->reported && watched->quiet_ms >= watchdog.limit_ms;
      watched->reported = watched->reported || due;
    }
    os_mutex_unlock(&dog_lock);
    if (due) alarm_begin(comm.comm_id, watched->quiet_ms);
  }
}

/* ---- the job's survey ---- */

static void job_forget(void) {
  os_free(job.survey.bytes);
  memset(&job.survey, 0, sizeof job.survey);
  job.ready = job.wanted = false;
  job.number = 0;
}

/* Locked; unlocks while it gathers. */
static void job_make(void) {
  struct survey_bytes survey;
  job.wanted = false;
  os_mutex_unlock(&dog_lock);
  const bool made = survey_gather(&watchdog.called_off, &survey);
  os_mutex_lock(&dog_lock);
  if (!made) job_forget();
  else job.survey = survey;
  job.ready = made;
}

static ncclResult_t dog_run(void);

/* Starts a new survey unless one is in progress. Locked. */
static void job_answer(const struct survey_question *question, struct survey_reply *head, uint8_t *out,
                       uint32_t capacity) {
  const bool making = job.number != 0 && !job.ready;
  job.asked_ns = os_time_ns();
  if (question->which == 0 && !making) {
    job_forget();
    job.number = ++job.last;
    job.wanted = true;
    os_cond_broadcast(&dog_changed);
  }
  head->which = job.number;
  if (question->which != 0 && question->which != job.number) head->state = SURVEY_NOTHING;
  else if (!job.ready) head->state = SURVEY_WORKING;
  else if (question->cursor > job.survey.used) head->state = SURVEY_NOTHING;
  if (head->state != SURVEY_READY) return;
  const uint64_t left = job.survey.used - question->cursor;
  head->bytes = left < capacity ? (uint32_t)left : capacity & ~7u;
  memcpy(out, job.survey.bytes + question->cursor, head->bytes);
  if (left > head->bytes) head->next = question->cursor + head->bytes;
}

ncclResult_t watchdog_answer(const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes) {
  struct survey_question question;
  struct survey_reply head = {.state = SURVEY_READY};
  memcpy(&question, request, bytes < sizeof question ? bytes : sizeof question);
  TRY(dog_run());
  os_mutex_lock(&dog_lock);
  job_answer(&question, &head, (uint8_t *)reply + sizeof head, CONTROL_REPLY_MOST - (uint32_t)sizeof head);
  os_mutex_unlock(&dog_lock);
  memcpy(reply, &head, sizeof head);
  *reply_bytes = (uint32_t)sizeof head + head.bytes;
  return ncclSuccess;
}

ncclResult_t watchdog_alarm(void) {
  TRY(dog_run());
  os_mutex_lock(&dog_lock);
  watchdog.diagnose = true;
  os_cond_broadcast(&dog_changed);
  os_mutex_unlock(&dog_lock);
  return ncclSuccess;
}

/* ---- the thread ---- */

/* Waits until the next examination or a request. Locked. */
static void dog_rest(void) {
  const uint64_t now_ns = os_time_ns();
  const uint64_t until_ns = now_ns + (watchdog.limit_ms > 0 ? tick_ms() : JOB_NS / 1000000) * 1000000;
  while (!watchdog.stop && !job.wanted && !watchdog.diagnose &&
         (!watchdog.alarm.on || watchdog.alarm.received == watchdog.received))
    if (!os_cond_wait_until(&dog_changed, &dog_lock, until_ns)) return;
}

/* Locked; unlocks while it works. True if there was something to do. */
static bool dog_serve(void) {
  struct alarm alarm = watchdog.alarm;
  if (job.wanted) {
    job_make();
    return true;
  }
  const bool diagnoses = watchdog.diagnose;
  watchdog.diagnose = false;
  if (alarm.on && alarm.received != watchdog.received) alarm.on = watchdog.alarm.on = false;
  const bool asks = !diagnoses && alarm.on && os_time_ns() >= alarm.due_ns;
  if (!diagnoses && !asks) return false;
  os_mutex_unlock(&dog_lock);
  if (diagnoses) diagnose_all();
  else alarm_go_on(&alarm);
  os_mutex_lock(&dog_lock);
  if (asks) watchdog.alarm = alarm;
  return true;
}

static void *dog_body(void *argument) {
  (void)argument;
  os_mutex_lock(&dog_lock);
  watchdog.looked_ns = os_time_ns();
  while (!watchdog.stop) {
    if (dog_serve()) continue;
    if (job.ready && os_time_ns() - job.asked_ns > JOB_NS) job_forget();
    if (watchdog.limit_ms > 0) {
      os_mutex_unlock(&dog_lock);
      look();
      os_mutex_lock(&dog_lock);
    }
    if (!watchdog.alarm.on || watchdog.alarm.due_ns != 0) dog_rest();
  }
  os_mutex_unlock(&dog_lock);
  return NULL;
}

/* Under life_lock. */
static ncclResult_t dog_start(void) {
  if (watchdog.running) return ncclSuccess;
  watchdog.stop = false;
  __atomic_store_n(&watchdog.called_off, 0, __ATOMIC_RELEASE);
  if (watchdog.users > 0 && os_thread_start_named(&watchdog.thread, "tutti-watchdog", dog_body, NULL)) {
    os_thread_note(1);
    watchdog.running = true;
    return ncclSuccess;
  }
  return log_fail(
      ncclSystemError,
      "no thread that looks after operations which make no progress; raise ulimit -u, or the limit of "
      "memory");
}

static ncclResult_t dog_run(void) {
  os_mutex_lock(&life_lock);
  const ncclResult_t result = dog_start();
  os_mutex_unlock(&life_lock);
  return result;
}

/* Under life_lock. */
static void dog_end(void) {
  if (!watchdog.running) return;
  __atomic_store_n(&watchdog.called_off, 1, __ATOMIC_RELEASE);
  os_mutex_lock(&dog_lock);
  watchdog.stop = true;
  os_cond_broadcast(&dog_changed);
  os_mutex_unlock(&dog_lock);
  os_thread_join(watchdog.thread);
  os_thread_note(-1);
  watchdog.running = false;
  job_forget();
}

/* A forked child has none of its parent's communicators, nor the thread. */
static void dog_renew(void) {
  static bool prepared;
  if (prepared && watchdog.fork_count == os_fork_count()) return;
  prepared = true;
  memset(&watchdog, 0, sizeof watchdog);
  memset(&job, 0, sizeof job);
  watchdog.fork_count = os_fork_count();
  os_mutex_init(&dog_lock);
  os_cond_init(&dog_changed);
}

void watchdog_enter(void) {
  os_mutex_lock(&life_lock);
  dog_renew();
  explainer_set(own_diagnosis);
  if (watchdog.users++ == 0) {
    watchdog.comm_count = watchdog.received = watchdog.text_count = 0;
    memset(watchdog.texts, 0, sizeof watchdog.texts);
    watchdog.alarm.on = watchdog.diagnose = false;
    watchdog.limit_ms = (uint64_t)param_int(PARAM_TUTTI_WATCHDOG_SECONDS) * 1000;
  }
  if (watchdog.limit_ms > 0) dog_start();
  os_mutex_unlock(&life_lock);
}

void watchdog_leave(void) {
  os_mutex_lock(&life_lock);
  if (watchdog.fork_count == os_fork_count() && watchdog.users > 0 && --watchdog.users == 0) dog_end();
  os_mutex_unlock(&life_lock);
}
