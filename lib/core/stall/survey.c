/* survey.c: this process's answers about its records, and the round in which it asks all others. An answer
 * takes no lock that other threads wait under. A round ends: a process has ASK_NS, all together ROUND_NS, and
 * the bytes are limited per process and in total. */
#include "core/stall/survey.h"

#include <string.h>

#include "backends/backend.h"
#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"
#include "core/stall/watchdog.h"
#include "trace/record_image.h"
#include "trace/recorder.h"

#define ASK_NS UINT64_C(1500000000)
#define ROUND_NS UINT64_C(10000000000)
#define SECTION_BYTES_MOST (1u << 20)
#define PROCESS_BYTES_MOST (8u << 20)
#define SURVEY_BYTES_MOST (256u << 20)
#define TARGETS_MOST 65536u
#define COMMS_MOST 4096u
#define ASKERS_MOST 16u
#define POLL_MS 50

/* ---- communicators that others may ask about ---- */

static struct {
  struct remote *first;
  uint32_t fork_count;
} joined;
static os_mutex joined_lock = OS_MUTEX_INITIALIZER;

/* A forked child has none of its parent's. */
static void joined_renew(void) {
  if (joined.fork_count == os_fork_count()) return;
  joined.fork_count = os_fork_count();
  joined.first = NULL;
}

static control_handler survey_answer;

/* What processes prove that ask about a communicator: its members, and those whom a member has told it. */
static struct secret ticket_of(const struct remote *remote) {
  struct secret ticket;
  secret_derive(&remote->secret, "tutti survey", NULL, 0, &ticket);
  return ticket;
}

ncclResult_t survey_join(struct remote *remote) {
  const struct secret ticket = ticket_of(remote);
  char at[SOCK_TEXT_BYTES];
  recorder_note_address(sock_address_text(&remote->addresses[remote->own_process], at));
  os_mutex_lock(&joined_lock);
  joined_renew();
  ncclResult_t result = joined.first == NULL ? control_serve_status(survey_answer, NULL) : ncclSuccess;
  if (result == ncclSuccess) result = control_serve(&ticket, survey_answer, NULL);
  if (result == ncclSuccess) {
    remote->joined_next = joined.first;
    joined.first = remote;
  }
  os_mutex_unlock(&joined_lock);
  return result;
}

void survey_leave(struct remote *remote) {
  os_mutex_lock(&joined_lock);
  struct remote **link = &joined.first;
  if (joined.fork_count != os_fork_count()) *link = NULL;
  while (*link != NULL && *link != remote) link = &(*link)->joined_next;
  const bool found = *link != NULL;
  if (found) *link = remote->joined_next;
  const bool last = found && joined.first == NULL;
  const struct secret ticket = ticket_of(remote);
  os_mutex_unlock(&joined_lock);
  if (found) control_unserve(secret_name(&ticket));
  if (last) control_unserve_status();
}

bool survey_processes(uint32_t *index, uint64_t comm_id, struct survey_processes *processes) {
  uint32_t at = 0;
  bool found = false;
  os_mutex_lock(&joined_lock);
  joined_renew();
  for (const struct remote *remote = joined.first; remote != NULL && !found; remote = remote->joined_next) {
    if (at++ < *index || (comm_id != 0 && remote->shared->comm_id != comm_id)) continue;
    const struct survey_processes copy = {
        remote->secret, remote->own_process, remote->process_count,
        (struct sock_address *)os_alloc(remote->process_count * sizeof *copy.addresses)};
    if (copy.addresses == NULL) break;
    memcpy(copy.addresses, remote->addresses, remote->process_count * sizeof *copy.addresses);
    *processes = copy;
    found = true;
  }
  *index = at;
  os_mutex_unlock(&joined_lock);
  return found;
}

/* ---- answers ---- */

/* Offset of the section at or after `cursor`; 0: there is none, or it is invalid. */
static uint64_t section_find(uint64_t cursor, uint64_t *bytes) {
  struct record_section section;
  for (uint64_t at = RECORD_PAGE_BYTES; recorder_copy(at, &section, sizeof section) == sizeof section;
       at += section.bytes) {
    *bytes = section.bytes;
    if (section.bytes < RECORD_PAGE_BYTES || section.bytes > SECTION_BYTES_MOST) return 0;
    if (at >= cursor) return at;
  }
  return 0;
}

/* Writes one communicator, reduced; 0: it is invalid, or memory is out. */
static uint32_t section_put(uint64_t at, uint64_t bytes, uint8_t *out, uint32_t capacity) {
  struct record_file file;
  uint32_t put = 0;
  uint8_t *copy = (uint8_t *)os_alloc(RECORD_PAGE_BYTES + bytes);
  if (copy == NULL) return 0;
  recorder_copy(0, copy, RECORD_PAGE_BYTES);
  recorder_copy(at, copy + RECORD_PAGE_BYTES, bytes);
  ((struct record_header *)(void *)copy)->used_bytes = RECORD_PAGE_BYTES + bytes;
  if (record_is_file(copy, RECORD_PAGE_BYTES) &&
      record_file_read("own", copy, RECORD_PAGE_BYTES + bytes, NULL, &file) == ncclSuccess) {
    if (file.view_count > 0) put = record_image_section(&file.views[0], out, capacity);
    record_file_free(&file);
  }
  os_free(copy);
  return put;
}

/* The header precedes the first section. */
static void answer_own(const struct survey_question *question, struct survey_reply *reply, uint8_t *out,
                       uint32_t capacity) {
  uint64_t bytes = 0;
  backend_ops()->device->records_look();
  recorder_note_time();
  const uint64_t at = section_find(question->cursor, &bytes);
  memset(out, 0, capacity);
  if (question->cursor == 0) {
    const bool there = recorder_copy(0, out, RECORD_PAGE_BYTES) > 0;
    reply->bytes = there ? RECORD_PAGE_BYTES : 0;
    if (!there) reply->state = SURVEY_NOTHING;
  }
  if (at == 0) return;
  reply->bytes += section_put(at, bytes, out + reply->bytes, capacity - reply->bytes);
  reply->next = at + bytes;
}

/* Locked. */
static const struct remote *remote_find(uint64_t comm_id) {
  joined_renew();
  const struct remote *remote = joined.first;
  while (remote != NULL && remote->shared->comm_id != comm_id) remote = remote->joined_next;
  return remote;
}

/* Writes ranks of a communicator from `first` on; returns how many fit. Locked. */
static uint32_t ranks_put(const struct remote *remote, uint64_t first, struct survey_rank *out,
                          uint32_t most) {
  uint32_t count = 0;
  for (uint64_t rank = first; rank < remote->shared->rank_count && count < most; rank++, count++) {
    out[count].address = remote->addresses[remote->ranks[rank].process_index];
    out[count].rank = (uint32_t)rank;
    out[count].process = (uint32_t)remote->infos[rank].process;
    memcpy(out[count].host, remote->infos[rank].host_name, sizeof out[count].host);
  }
  return count;
}
static_assert(sizeof(((struct survey_rank *)0)->host) == sizeof(((struct peer_info *)0)->host_name),
              "the same");

static void answer_ranks(const struct survey_question *question, struct survey_reply *reply, uint8_t *out,
                         uint32_t capacity) {
  os_mutex_lock(&joined_lock);
  const struct remote *remote = remote_find(question->which);
  if (remote != NULL) {
    const uint32_t count = ranks_put(remote, question->cursor, (struct survey_rank *)(void *)out,
                                     capacity / (uint32_t)sizeof(struct survey_rank));
    reply->bytes = count * (uint32_t)sizeof(struct survey_rank);
    reply->ticket = ticket_of(remote);
    if (count > 0 && question->cursor + count < remote->shared->rank_count)
      reply->next = question->cursor + count;
  } else reply->state = SURVEY_NOTHING;
  os_mutex_unlock(&joined_lock);
}

static ncclResult_t survey_answer(void *argument, const void *request, uint32_t bytes, void *reply,
                                  uint32_t *reply_bytes) {
  struct survey_question question;
  struct survey_reply head = {.state = SURVEY_READY};
  const uint32_t capacity = CONTROL_REPLY_MOST - (uint32_t)sizeof head;
  uint8_t *out = (uint8_t *)reply + sizeof head;
  (void)argument;
  if (bytes == sizeof question) memcpy(&question, request, sizeof question);
  if (bytes != sizeof question || question.kind < SURVEY_ASK_OWN || question.kind > SURVEY_ASK_JOB)
    return log_fail(ncclRemoteError,
                    "a question of %u bytes about the records of this process makes no sense; use the tutti "
                    "of this library's version",
                    bytes);
  if (question.kind == SURVEY_ASK_JOB) return watchdog_answer(request, bytes, reply, reply_bytes);
  if (question.kind == SURVEY_ASK_OWN) answer_own(&question, &head, out, capacity);
  else answer_ranks(&question, &head, out, capacity);
  memcpy(reply, &head, sizeof head);
  *reply_bytes = (uint32_t)sizeof head + head.bytes;
  return ncclSuccess;
}
static_assert(CONTROL_REPLY_MOST >=
                  sizeof(struct survey_reply) + RECORD_PAGE_BYTES + RECORD_IMAGE_BYTES_LEAST,
              "any communicator fits into an answer");

/* ---- a round ---- */

struct target {
  struct survey_rank rank;
  uint64_t comm_id;
  struct secret ticket;
  bool asked, answered;
  uint8_t why; /* enum survey_why */
};

struct round {
  os_mutex lock; /* guards all but the last two members */
  struct survey_bytes *survey;
  struct target *targets;
  uint32_t target_count, target_capacity;
  uint64_t comms[COMMS_MOST]; /* whose ranks are among the targets, or all in this process */
  uint32_t comm_count;
  struct sock_address own;
  bool no_memory;
  uint64_t deadline_ns;
  const uint32_t *called_off;
};

/* One of the threads that ask. */
struct asker {
  struct round *round;
  os_thread thread;
  bool started;
  struct survey_bytes image; /* of the process that it asks */
  uint64_t reply[CONTROL_REPLY_MOST / 8];
};

static bool bytes_put(struct survey_bytes *survey, const void *data, size_t bytes) {
  const size_t wanted = survey->used + bytes;
  if (wanted > SURVEY_BYTES_MOST) return false;
  if (!array_grow_long(&survey->bytes, &survey->capacity, wanted < 65536 ? 65536 : wanted, 1)) return false;
  if (bytes > 0) memcpy(survey->bytes + survey->used, data, bytes);
  survey->used += bytes;
  return true;
}

static bool entry_put(struct survey_bytes *survey, enum survey_kind kind, const void *data, size_t bytes) {
  const struct survey_entry entry = {kind, (uint32_t)bytes};
  return bytes_put(survey, &entry, sizeof entry) && bytes_put(survey, data, bytes);
}

static bool comm_is_known(struct round *round, uint64_t comm_id) {
  os_mutex_lock(&round->lock);
  bool known = round->comm_count == COMMS_MOST;
  for (uint32_t i = 0; i < round->comm_count && !known; i++) known = round->comms[i] == comm_id;
  if (!known) round->comms[round->comm_count++] = comm_id;
  os_mutex_unlock(&round->lock);
  return known;
}

static bool targets_reserve(struct round *round) {
  if (round->target_count >= TARGETS_MOST) return false;
  return array_grow(&round->targets, &round->target_capacity, (uint64_t)round->target_count + 1,
                    sizeof *round->targets);
}

/* An address is asked once. */
static void target_add(struct round *round, uint64_t comm_id, const struct survey_rank *rank,
                       const struct secret *ticket) {
  struct target target = {*rank, comm_id, *ticket, false, false, SURVEY_UNASKED};
  if (sock_address_equal(&rank->address, &round->own) || !targets_reserve(round)) return;
  for (uint32_t i = 0; i < round->target_count && !target.asked; i++) {
    const struct target *before = &round->targets[i];
    if (!before->asked || !sock_address_equal(&before->rank.address, &rank->address)) continue;
    target.asked = true;
    target.answered = before->answered;
    target.why = before->why;
  }
  round->targets[round->target_count++] = target;
}

static bool round_is_over(const struct round *round) {
  return os_time_ns() >= round->deadline_ns || __atomic_load_n(round->called_off, __ATOMIC_ACQUIRE) != 0;
}

/* Asks one question of the process at `to`, or of this process if it is NULL. The answer's bytes follow the
 * head in asker->reply. */
static enum control_outcome ask(struct asker *asker, const struct target *to,
                                const struct survey_question *question, struct survey_reply *head) {
  const struct sock_wait wait = {os_time_ns() + ASK_NS, asker->round->called_off, "gathering records"};
  uint32_t bytes = sizeof asker->reply;
  enum control_outcome outcome = CONTROL_ANSWERED;
  if (to != NULL)
    outcome =
        control_ask(&to->rank.address, &to->ticket, &wait, question, sizeof *question, asker->reply, &bytes);
  else if (survey_answer(NULL, question, sizeof *question, asker->reply, &bytes) != ncclSuccess)
    outcome = CONTROL_NOBODY;
  if (outcome != CONTROL_ANSWERED) return outcome;
  if (bytes < sizeof *head) return CONTROL_SILENT;
  memcpy(head, asker->reply, sizeof *head);
  return head->bytes == bytes - sizeof *head ? CONTROL_ANSWERED : CONTROL_SILENT;
}

/* Adds all ranks of a communicator that one of the processes has reported. */
static void ranks_add(struct asker *asker, const struct target *to, uint64_t comm_id) {
  struct survey_question question = {SURVEY_ASK_RANKS, 0, 0, comm_id};
  struct survey_reply head;
  while (!round_is_over(asker->round) && ask(asker, to, &question, &head) == CONTROL_ANSWERED) {
    struct survey_rank rank;
    const uint8_t *at = (const uint8_t *)asker->reply + sizeof head;
    os_mutex_lock(&asker->round->lock);
    for (uint32_t i = 0; i < head.bytes / sizeof rank; i++) {
      memcpy(&rank, at + i * sizeof rank, sizeof rank);
      target_add(asker->round, comm_id, &rank, &head.ticket);
    }
    os_mutex_unlock(&asker->round->lock);
    if (head.next <= question.cursor) return;
    question.cursor = head.next;
  }
}

/* The image is complete: its communicators lead to more processes. */
static bool image_finish(struct asker *asker, const struct target *to) {
  struct record_file file;
  const struct survey_bytes *image = &asker->image;
  if (image->used < RECORD_PAGE_BYTES || !record_is_file(image->bytes, image->used)) return false;
  ((struct record_header *)(void *)image->bytes)->used_bytes = image->used;
  if (record_file_read("an answer", image->bytes, image->used, NULL, &file) != ncclSuccess) return false;
  for (uint32_t i = 0; i < file.view_count; i++) {
    const struct record_comm *comm = file.views[i].comm;
    if (comm->state != RECORD_OPEN || comm_is_known(asker->round, comm->comm_id)) continue;
    ranks_add(asker, to, comm->comm_id);
  }
  record_file_free(&file);
  return true;
}

/* Fills asker->image. SURVEY_WHY_COUNT: it is complete. */
static enum survey_why image_pull(struct asker *asker, const struct target *to) {
  static const enum survey_why whys[] = {SURVEY_EMPTY, SURVEY_LEFT, SURVEY_GONE, SURVEY_TIMEOUT};
  struct survey_question question = {SURVEY_ASK_OWN, 0, 0, 0};
  struct survey_reply head = {.state = SURVEY_READY};
  enum control_outcome outcome = CONTROL_ANSWERED;
  bool fits = true;
  asker->image.used = 0;
  do {
    outcome = ask(asker, to, &question, &head);
    if (outcome != CONTROL_ANSWERED) break;
    fits = bytes_put(&asker->image, (const uint8_t *)asker->reply + sizeof head, head.bytes & ~7u);
    if (!fits || head.next <= question.cursor || asker->image.used > PROCESS_BYTES_MOST) break;
    question.cursor = head.next;
  } while (!round_is_over(asker->round));
  if (outcome != CONTROL_ANSWERED || !image_finish(asker, to)) return whys[outcome];
  os_mutex_lock(&asker->round->lock);
  if (!fits || !entry_put(asker->round->survey, SURVEY_IMAGE, asker->image.bytes, asker->image.used))
    asker->round->no_memory = true;
  os_mutex_unlock(&asker->round->lock);
  return SURVEY_WHY_COUNT;
}

/* Locked: updates all ranks of the process at this address. */
static void target_note(struct round *round, const struct sock_address *address, bool answered,
                        enum survey_why why) {
  for (uint32_t i = 0; i < round->target_count; i++) {
    struct target *target = &round->targets[i];
    if (!sock_address_equal(&target->rank.address, address)) continue;
    target->asked = true;
    target->answered = answered;
    target->why = (uint8_t)why;
  }
}

static bool target_take(struct round *round, struct target *taken) {
  bool found = false;
  os_mutex_lock(&round->lock);
  for (uint32_t i = 0; i < round->target_count && !found && !round_is_over(round); i++) {
    if (round->targets[i].asked) continue;
    *taken = round->targets[i];
    found = true;
  }
  if (found) target_note(round, &taken->rank.address, false, SURVEY_TIMEOUT);
  os_mutex_unlock(&round->lock);
  return found;
}

static void *asker_body(void *argument) {
  struct asker *asker = (struct asker *)argument;
  struct target target;
  while (target_take(asker->round, &target)) {
    const enum survey_why why = image_pull(asker, &target);
    os_mutex_lock(&asker->round->lock);
    target_note(asker->round, &target.rank.address, why == SURVEY_WHY_COUNT, why);
    os_mutex_unlock(&asker->round->lock);
  }
  return NULL;
}

/* Asks this process first, because it leads to the others; then several threads ask, because a process that
 * does not answer takes until its timeout. */
static void askers_run(struct round *round, struct asker *askers) {
  askers[0].round = round;
  image_pull(&askers[0], NULL);
  const uint32_t count = round->target_count < ASKERS_MOST ? round->target_count : ASKERS_MOST;
  for (uint32_t i = 1; i < count; i++) {
    askers[i].round = round;
    askers[i].started = os_thread_start_named(&askers[i].thread, "tutti-survey", asker_body, &askers[i]);
    if (askers[i].started) os_thread_note(1);
  }
  asker_body(&askers[0]);
  for (uint32_t i = 0; i < ASKERS_MOST; i++) {
    if (askers[i].started) os_thread_join(askers[i].thread);
    if (askers[i].started) os_thread_note(-1);
    os_free(askers[i].image.bytes);
  }
}

static void round_add_silent(struct round *round, const struct target *target) {
  struct survey_silent silent = {
      target->comm_id, target->rank.rank, target->why, target->rank.address, target->rank.process, 0, ""};
  memcpy(silent.host, target->rank.host, sizeof silent.host);
  if (!entry_put(round->survey, SURVEY_SILENT, &silent, sizeof silent)) round->no_memory = true;
}
static_assert(sizeof(struct survey_silent) % 8 == 0, "entries are");

/* Any of this process's communicators has the address of its own server. */
static void round_find_own(struct round *round) {
  struct survey_processes processes;
  uint32_t index = 0;
  if (!survey_processes(&index, 0, &processes)) return;
  round->own = processes.addresses[processes.own];
  os_free(processes.addresses);
}

static void round_run(struct round *round, struct asker *askers) {
  os_mutex_init(&round->lock);
  round->deadline_ns = os_time_ns() + ROUND_NS;
  round_find_own(round);
  askers_run(round, askers);
  for (uint32_t i = 0; i < round->target_count; i++)
    if (!round->targets[i].answered) round_add_silent(round, &round->targets[i]);
  os_mutex_destroy(&round->lock);
  os_free(round->targets);
}

bool survey_gather(const uint32_t *called_off, struct survey_bytes *survey) {
  struct round *round = (struct round *)os_alloc(sizeof *round);
  struct asker *askers = (struct asker *)os_alloc(ASKERS_MOST * sizeof *askers);
  bool good = round != NULL && askers != NULL;
  memset(survey, 0, sizeof *survey);
  if (good) {
    round->survey = survey;
    round->called_off = called_off;
    round_run(round, askers);
    good = !round->no_memory;
  }
  os_free(round);
  os_free(askers);
  if (good) return true;
  os_free(survey->bytes);
  memset(survey, 0, sizeof *survey);
  return false;
}

/* ---- asking another process to gather ---- */

/* Asks one question, until `deadline_ns`; `reply` gets the answer's head, followed by its bytes. */
static ncclResult_t job_ask(const struct sock_address *to, uint64_t deadline_ns,
                            const struct survey_question *question, void *reply, struct survey_reply *head) {
  const uint64_t now_ns = os_time_ns();
  const struct sock_wait wait = {now_ns + 2 * ASK_NS < deadline_ns ? now_ns + 2 * ASK_NS : deadline_ns, NULL,
                                 "asking for a job's records"};
  uint32_t bytes = CONTROL_REPLY_MOST;
  if (now_ns >= deadline_ns) return log_fail(ncclRemoteError, "the process still gathers; try again");
  const struct secret secret = control_status_secret();
  TRY(control_call(to, &secret, &wait, question, sizeof *question, reply, &bytes));
  *head = (struct survey_reply){.state = SURVEY_NOTHING};
  if (bytes >= sizeof *head) memcpy(head, reply, sizeof *head);
  if (head->state != SURVEY_NOTHING && (size_t)head->bytes + sizeof *head == bytes && head->bytes % 8 == 0)
    return ncclSuccess;
  return log_fail(ncclRemoteError, "the process has nothing to say of its job; try again");
}

/* Asks until the whole survey has arrived. */
static ncclResult_t job_pull(const struct sock_address *to, uint64_t deadline_ns, uint64_t *reply,
                             struct survey_bytes *got) {
  struct survey_question question = {SURVEY_ASK_JOB, 0, 0, 0};
  struct survey_reply head;
  for (;;) {
    TRY(job_ask(to, deadline_ns, &question, reply, &head));
    question.which = head.which;
    if (head.state == SURVEY_WORKING) {
      os_sleep_ms(POLL_MS);
      continue;
    }
    if (!bytes_put(got, (const uint8_t *)reply + sizeof head, head.bytes))
      return log_no_memory("what %zu bytes say of the job", got->used);
    if (head.next <= question.cursor) return ncclSuccess;
    question.cursor = head.next;
  }
}

static ncclResult_t fetch(const struct sock_address *to, uint64_t deadline_ns, struct survey_bytes *survey) {
  struct survey_bytes got = {NULL, 0, 0};
  uint64_t *reply = (uint64_t *)os_alloc(CONTROL_REPLY_MOST);
  if (reply == NULL) return log_no_memory("an answer");
  const ncclResult_t result = job_pull(to, deadline_ns, reply, &got);
  os_free(reply);
  if (result == ncclSuccess) *survey = got;
  else os_free(got.bytes);
  return result;
}

ncclResult_t survey_fetch(const struct sock_address *to, uint64_t deadline_ns, struct survey_bytes *survey) {
  if (handshake_secret()) return fetch(to, deadline_ns, survey);
  return log_fail(ncclInvalidUsage,
                  "over a network a process answers those who know its TUTTI_SECRET: set it here too, or ask "
                  "on its host, as its user");
}

ncclResult_t survey_fetch_here(const struct os_process *process, uint64_t deadline_ns,
                               struct survey_bytes *survey) {
  const struct sock_address at = control_local(process);
  return fetch(&at, deadline_ns, survey);
}
