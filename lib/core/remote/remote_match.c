/* remote_match.c: compares the calls of a communicator's ranks across processes. The process with the lowest
 * index that still has the communicator holds the entries (match.h), and each rank asks it about each call
 * before the call is queued (REMOTE_CALL_MATCH). A process that leaves hands what it holds to the next one;
 * until it has, those who ask it ask again, so that nothing is compared with a part of the entries.
 * Does not know what is compared. */
#include <assert.h>
#include <string.h>

#include "base/callsite.h"
#include "base/log.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"

#define ATTEMPTS 8
#define ANSWER_NS UINT64_C(10000000000)
#define ENTRIES_MOST 512 /* per message */
#define SITE_BYTES 160

enum match_purpose { MATCH_COMPARE, MATCH_HAND_OVER, MATCH_CALLSITE };

/* A question is this and `count` struct match_entry. Sent as is. */
struct match_head {
  uint32_t kind; /* REMOTE_CALL_MATCH */
  uint32_t purpose, count, reserved;
};
struct match_question {
  struct match_head head;
  struct match_entry entry;
};
struct match_entries {
  struct match_head head;
  struct match_entry entries[ENTRIES_MOST];
};
struct match_answer {
  uint32_t differs;
  uint32_t leaves; /* nothing was compared: this process is leaving */
  struct match_entry other;
};
static_assert(sizeof(struct match_entries) <= CONTROL_REQUEST_MOST, "a call holds it");

/* ---- answering ---- */

static void give_up(struct remote *remote, const char *text) {
  os_mutex_lock(&remote->lock);
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++)
    if (remote->comms[rank]) comm_break_silently(remote->comms[rank], ncclInvalidUsage, text);
  os_mutex_unlock(&remote->lock);
  remote_fail(remote, ncclInvalidUsage, text);
}

/* The holder before this process compared a call that differs from one that was compared here. */
static void report(struct remote *remote, const struct match_entry *one, const struct match_entry *other) {
  char text[COMM_REASON_BYTES];
  match_text(remote->shared->match, one, other, text, sizeof text);
  log_urgent("%s; %s", text, match_cure(one, other));
  give_up(remote, text);
}

static ncclResult_t entries_take(struct remote *remote, const struct match_entry *entries, uint32_t count) {
  struct match_entry other;
  bool differs = false;
  for (uint32_t i = 0; i < count && !differs; i++) {
    TRY(match_compare(remote->shared->match, &entries[i], &other, &differs));
    if (differs) report(remote, &other, &entries[i]);
  }
  return ncclSuccess;
}

static bool question_is_sane(const struct remote *remote, const struct match_entries *question,
                             uint32_t bytes) {
  const struct match_head *head = &question->head;
  if (bytes < sizeof *head || head->count == 0 || head->count > ENTRIES_MOST ||
      bytes != sizeof *head + head->count * sizeof(struct match_entry))
    return false;
  if (head->purpose > MATCH_CALLSITE || (head->purpose != MATCH_HAND_OVER && head->count != 1)) return false;
  for (uint32_t i = 0; i < head->count; i++)
    if (!match_is_sane(remote->shared->match, &question->entries[i])) return false;
  return true;
}

static ncclResult_t answer_put(const struct match_answer *answer, void *reply, uint32_t *reply_bytes) {
  memcpy(reply, answer, sizeof *answer);
  *reply_bytes = sizeof *answer;
  return ncclSuccess;
}

ncclResult_t remote_match_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                 uint32_t *reply_bytes) {
  const struct match_entries *question = (const struct match_entries *)request;
  const struct match_entry *entry = &question->entries[0];
  struct match_answer answer;
  bool differs = false;
  if (!question_is_sane(remote, question, bytes))
    return log_fail(ncclRemoteError,
                    "a call of %u bytes about collectives makes no sense; load the same library everywhere",
                    bytes);
  *reply_bytes = 0;
  memset(&answer, 0, sizeof answer);
  answer.leaves = __atomic_load_n(&remote->match_leaves, __ATOMIC_ACQUIRE);
  if (answer.leaves && question->head.purpose != MATCH_CALLSITE)
    return answer_put(&answer, reply, reply_bytes);
  if (question->head.purpose == MATCH_HAND_OVER) {
    TRY(entries_take(remote, entry, question->head.count));
    return answer_put(&answer, reply, reply_bytes);
  }
  if (question->head.purpose == MATCH_CALLSITE) {
    callsite_text((const void *)(uintptr_t)entry->caller, (char *)reply, SITE_BYTES);
    *reply_bytes = (uint32_t)strlen((const char *)reply);
    return ncclSuccess;
  }
  TRY(match_compare(remote->shared->match, entry, &answer.other, &differs));
  answer.differs = differs;
  return answer_put(&answer, reply, reply_bytes);
}

/* ---- asking ---- */

static enum control_outcome ask_process(const struct remote *remote, uint32_t process_index,
                                        const uint32_t *called_off, const struct match_head *question,
                                        void *reply, uint32_t *reply_bytes) {
  const uint32_t capacity = *reply_bytes;
  const uint32_t bytes = (uint32_t)(sizeof *question + question->count * sizeof(struct match_entry));
  const struct sock_wait wait = {os_time_ns() + ANSWER_NS, called_off,
                                 "comparing calls with other processes"};
  enum control_outcome outcome = CONTROL_SILENT;
  /* A connection may break just when it is used, because the process is leaving: then the next attempt says
   * so. */
  remote->shared->ops->process->order_hold(1);
  log_hush(true);
  for (unsigned attempt = 0; attempt < ATTEMPTS && outcome == CONTROL_SILENT; attempt++) {
    if (__atomic_load_n(called_off, __ATOMIC_ACQUIRE) != 0 || os_time_ns() >= wait.deadline_ns) break;
    if (attempt > 1) os_sleep_ms(1u << attempt);
    *reply_bytes = capacity;
    outcome = control_ask(&remote->addresses[process_index], &remote->secret, &wait, question, bytes, reply,
                          reply_bytes);
  }
  log_hush(false);
  remote->shared->ops->process->order_hold(-1);
  return outcome;
}

/* The process that holds the entries has left: its successor does now. */
static void holder_left(struct remote *remote, uint32_t holder) {
  const uint32_t next = (holder + 1) % remote->process_count;
  __atomic_compare_exchange_n(&remote->match_holder, &holder, next, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
}

/* A call that ends because the communicator broke fails with that reason. */
static ncclResult_t unanswered(struct ncclComm *comm, uint32_t holder) {
  if (__atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE) == 2)
    return log_fail(comm->reason_code, "rank %u of comm '%s': %s", comm->rank, comm->name, comm->reason);
  if (__atomic_load_n(&comm->called_off, __ATOMIC_ACQUIRE) != 0) return ncclSuccess;
  comm->settings.match_calls = false;
  log_info(LOG_COLL,
           "rank %u of comm '%s': process %u does not answer, so calls are no longer compared with those of "
           "other processes",
           comm->rank, comm->name, holder);
  return ncclSuccess;
}

static ncclResult_t remote_compare(void *argument, struct ncclComm *comm, const struct match_entry *entry,
                                   struct match_entry *other, bool *differs) {
  struct remote *remote = (struct remote *)argument;
  const struct match_question question = {{REMOTE_CALL_MATCH, MATCH_COMPARE, 1, 0}, *entry};
  *differs = false;
  for (;;) {
    const uint32_t holder = __atomic_load_n(&remote->match_holder, __ATOMIC_ACQUIRE);
    struct match_answer answer;
    uint32_t bytes = sizeof answer;
    if (holder == remote->own_process) return match_compare(remote->shared->match, entry, other, differs);
    const enum control_outcome outcome =
        ask_process(remote, holder, &comm->called_off, &question.head, &answer, &bytes);
    if (outcome == CONTROL_NOBODY || outcome == CONTROL_GONE) {
      holder_left(remote, holder);
      continue;
    }
    if (outcome != CONTROL_ANSWERED || bytes != sizeof answer ||
        !match_is_sane(remote->shared->match, &answer.other))
      return unanswered(comm, holder);
    if (answer.leaves) {
      os_sleep_ms(1);
      continue;
    }
    *differs = answer.differs != 0;
    *other = answer.other;
    return ncclSuccess;
  }
}

static void remote_callsite(void *argument, const struct match_entry *entry, char *text, size_t bytes) {
  const struct remote *remote = (const struct remote *)argument;
  const struct match_question question = {{REMOTE_CALL_MATCH, MATCH_CALLSITE, 1, 0}, *entry};
  const uint32_t never = 0, process_index = remote->ranks[entry->rank].process_index;
  uint32_t reply_bytes = (uint32_t)bytes - 1;
  text[0] = '\0';
  if (process_index == remote->own_process) {
    callsite_text((const void *)(uintptr_t)entry->caller, text, bytes);
    return;
  }
  const enum control_outcome outcome =
      ask_process(remote, process_index, &never, &question.head, text, &reply_bytes);
  text[outcome == CONTROL_ANSWERED ? reply_bytes : 0] = '\0';
}

static void remote_give_up_calls(struct ncclComm *comm, const char *text) {
  give_up(comm->shared->remote, text);
}

void remote_match_open(struct remote *remote) {
  const struct match_remote calls = {remote, remote_compare, remote_callsite, remote_give_up_calls};
  match_set_remote(remote->shared->match, &calls);
}

void remote_match_leave(struct remote *remote) {
  const uint32_t never = 0;
  uint64_t place = 0;
  uint32_t to = (remote->own_process + 1) % remote->process_count;
  struct match_entries *question = (struct match_entries *)os_alloc(sizeof *question);
  struct match_answer answer;
  if (!question) return; /* the calls of the others are not compared with these */
  __atomic_store_n(&remote->match_leaves, 1, __ATOMIC_RELEASE);
  question->head = (struct match_head){REMOTE_CALL_MATCH, MATCH_HAND_OVER, 0, 0};
  while (to != remote->own_process) {
    if (question->head.count == 0)
      question->head.count = match_export(remote->shared->match, &place, question->entries, ENTRIES_MOST);
    if (question->head.count == 0) break;
    uint32_t reply_bytes = sizeof answer;
    const enum control_outcome outcome =
        ask_process(remote, to, &never, &question->head, &answer, &reply_bytes);
    if (outcome == CONTROL_SILENT) break;
    if (outcome == CONTROL_ANSWERED && !answer.leaves) question->head.count = 0;
    else to = (to + 1) % remote->process_count;
  }
  os_free(question);
}
