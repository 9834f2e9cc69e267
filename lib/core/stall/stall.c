/* stall.c: the thread that examines communicators of several processes a few times per TUTTI_STALL_SECONDS,
 * asks peers about those that make no progress, and diagnoses. At most PEERS_MOST questions per rank and
 * TUTTI_STALL_SECONDS, one after another, with no lock held. No diagnosis rests on a clock alone: time is
 * counted in examinations, and only a statement of the other end breaks a communicator. Between examinations
 * the thread makes progress for ranks whose own threads are elsewhere. */
#include "core/stall/stall.h"

#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"
#include "core/plan/names.h"
#include "core/proxy/net.h"

#define PEERS_MOST 8u     /* asked by one rank per round of questions */
#define SUSPECTS_MOST 64u /* that one rank waits for */
#define ASK_NS 2000000000u
#define TICK_MS_MOST 1000u

/* One rank of this process; guarded by the communicator's lock. */
struct stall_rank {
  uint32_t rank;
  uint64_t moves, quiet_ms, asked_ms, reported_ms; /* asked_ms, reported_ms: quiet_ms at that time, or 0 */
  uint32_t round;                                  /* of questions, since it stopped making progress */
  bool waits;
  struct device_wait wait; /* one of its waits */
  uint32_t gone[PEERS_MOST], gone_count;
};

struct stall {
  struct stall *next;
  struct remote *remote;
  uint32_t called_off; /* atomic */
  bool looking;
  uint64_t pass, looked_ns;
  uint32_t rank_count;
  struct stall_rank ranks[];
};

static struct {
  struct stall *first; /* guarded by the lock, as all members below */
  uint64_t pass;
  bool stop;
  uint32_t fork_count;
  os_thread thread;
} watcher;
static os_mutex watcher_lock = OS_MUTEX_INITIALIZER;
static os_cond watcher_changed;
static os_mutex life_lock = OS_MUTEX_INITIALIZER; /* for starting and ending the thread; taken first */

/* ---- questions and answers ---- */

struct stall_question {
  uint32_t kind; /* REMOTE_CALL_STALL */
  uint32_t rank;
  uint32_t peer, channel_index, conn_index; /* a connection, as that rank names it */
  uint8_t proto, sends, has_conn, unused;
};

struct stall_reply {
  uint64_t sequence; /* operations that the rank has called */
  uint64_t wait_operation;
  uint32_t wait_peer;
  uint8_t left, left_known, broken, waits, wait_func, known, busy, has_conn;
  uint32_t unused;
  uint64_t connected, ready, moved, done, quiet_ms; /* of the connection: struct proxy_state */
};

static struct stall_rank *rank_find(struct stall *stall, uint32_t rank) {
  for (uint32_t i = 0; stall && i < stall->rank_count; i++)
    if (stall->ranks[i].rank == rank) return &stall->ranks[i];
  return NULL;
}

static void answer_conn(struct remote *remote, const struct stall_question *question,
                        struct stall_reply *reply) {
  const struct device_conn_name name = {question->peer,  question->channel_index, question->conn_index,
                                        question->proto, question->sends != 0,    false};
  struct proxy_state state;
  if (!question->has_conn || !remote->proxies[question->rank]) return;
  if (!proxy_comm_state(remote->proxies[question->rank], &name, &state)) return;
  reply->has_conn = 1;
  reply->connected = state.connected;
  reply->ready = state.ready;
  reply->moved = state.moved;
  reply->done = state.done;
  reply->quiet_ms = state.quiet_ms;
}

/* The communicator is locked. */
static void answer_fill(struct remote *remote, const struct stall_question *question,
                        struct stall_reply *reply) {
  const struct ncclComm *comm = remote->comms[question->rank];
  const struct stall_rank *rank = rank_find((struct stall *)remote->watcher_state, question->rank);
  struct device_stall device;
  memset(reply, 0, sizeof *reply);
  if (!comm) {
    reply->left = reply->left_known = 1;
    reply->sequence = remote->left[question->rank];
    return;
  }
  comm->ops->device->comm_stall(comm->device_comm, false, &device);
  reply->sequence = __atomic_load_n(&comm->sequence, __ATOMIC_RELAXED);
  reply->broken = comm_async_error(comm) != ncclSuccess;
  reply->known = device.known;
  reply->busy = device.busy;
  reply->waits = rank && rank->waits && device.busy;
  if (reply->waits) {
    reply->wait_peer = rank->wait.peer;
    reply->wait_func = rank->wait.func;
    reply->wait_operation = rank->wait.operation;
  }
  answer_conn(remote, question, reply);
}

static bool question_is_sane(const struct remote *remote, const struct stall_question *question) {
  const uint32_t rank_count = remote->shared->rank_count;
  return question->rank < rank_count && remote->ranks[question->rank].process_index == remote->own_process &&
         question->peer < rank_count && question->channel_index < PLAN_CHANNELS_MAX &&
         question->conn_index < 4 && question->proto < PROTO_COUNT;
}

ncclResult_t stall_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                          uint32_t *reply_bytes) {
  struct stall_question question;
  if (bytes == sizeof question) memcpy(&question, request, sizeof question);
  if (bytes != sizeof question || !question_is_sane(remote, &question))
    return log_fail(
        ncclRemoteError,
        "a question of %u bytes about an operation that makes no progress makes no sense; load the "
        "same library everywhere",
        bytes);
  os_mutex_lock(&remote->lock);
  answer_fill(remote, &question, (struct stall_reply *)reply);
  os_mutex_unlock(&remote->lock);
  *reply_bytes = sizeof(struct stall_reply);
  return ncclSuccess;
}

/* ---- examining ---- */

/* Another rank that this rank waits for, and what it waits for. */
struct suspect {
  uint32_t rank;
  bool by_lane, by_conn;
  uint8_t func;
  uint64_t operation;
  struct proxy_debt debt; /* by_conn */
  enum control_outcome outcome;
  struct stall_reply reply;
};

struct look {
  struct device_stall device;
  struct proxy_debt debts[SUSPECTS_MOST];
  uint32_t debt_count;
  struct suspect suspects[SUSPECTS_MOST];
  uint32_t suspect_count;
  uint64_t moves;
};

static uint64_t stall_ms(void) { return (uint64_t)param_int(PARAM_TUTTI_STALL_SECONDS) * 1000; }
static uint64_t patience_ms(void) { return (uint64_t)param_int(PARAM_TUTTI_NET_PATIENCE_SECONDS) * 1000; }
static uint64_t tick_ms(void) { return stall_ms() / 4 < TICK_MS_MOST ? stall_ms() / 4 : TICK_MS_MOST; }

static void rank_moved(struct stall_rank *rank) {
  rank->quiet_ms = rank->asked_ms = rank->reported_ms = 0;
  rank->round = rank->gone_count = 0;
}

/* The communicator, if it may be examined; locked. */
static struct ncclComm *rank_comm(const struct remote *remote, const struct stall_rank *rank) {
  struct ncclComm *comm = remote->comms[rank->rank];
  if (!comm || __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE) != 0) return NULL;
  return comm_async_error(comm) == ncclSuccess ? comm : NULL;
}

/* Records progress, `passed_ms` after the last examination, 0 for one in between; locked. */
static void rank_look(const struct remote *remote, struct stall_rank *rank, const struct ncclComm *comm,
                      uint64_t passed_ms, struct look *look) {
  const bool asks = passed_ms > 0 && rank->quiet_ms > 0;
  comm->ops->device->comm_stall(comm->device_comm, asks, &look->device);
  look->moves = look->device.moves;
  look->debt_count = 0;
  struct proxy_comm *proxy = remote->proxies[rank->rank];
  if (proxy)
    look->moves =
        look->moves * 31 + proxy_comm_status(proxy, passed_ms, look->debts, SUSPECTS_MOST, &look->debt_count);
  if (look->moves != rank->moves || !(look->device.busy || look->debt_count > 0)) rank_moved(rank);
  else rank->quiet_ms += passed_ms;
  rank->moves = look->moves;
  if (look->device.wait_count > 0) rank->wait = look->device.waits[0];
  rank->waits = look->device.wait_count > 0;
}

static struct suspect *suspect_get(struct look *look, uint32_t rank, uint8_t func, uint64_t operation) {
  for (uint32_t i = 0; i < look->suspect_count; i++)
    if (look->suspects[i].rank == rank) return &look->suspects[i];
  if (look->suspect_count == SUSPECTS_MOST) return NULL;
  struct suspect *suspect = &look->suspects[look->suspect_count++];
  memset(suspect, 0, sizeof *suspect);
  suspect->rank = rank;
  suspect->func = func;
  suspect->operation = operation;
  return suspect;
}

static void suspects_find(const struct remote *remote, struct look *look) {
  look->suspect_count = 0;
  for (uint32_t i = 0; i < look->device.wait_count; i++) {
    const struct device_wait *wait = &look->device.waits[i];
    if (wait->peer >= remote->shared->rank_count) continue;
    struct suspect *suspect = suspect_get(look, wait->peer, wait->func, wait->operation);
    if (suspect) suspect->by_lane = true;
  }
  for (uint32_t i = 0; i < look->debt_count; i++) {
    const struct proxy_debt *debt = &look->debts[i];
    struct suspect *suspect = suspect_get(look, debt->name.peer, debt->func, debt->operation);
    if (!suspect || suspect->by_conn) continue;
    suspect->by_conn = true;
    suspect->debt = *debt;
  }
}

/* If there are many suspects, each round asks others. */
static void suspects_choose(struct look *look, uint32_t round) {
  struct suspect chosen[PEERS_MOST];
  const uint32_t count = look->suspect_count;
  if (count <= PEERS_MOST) return;
  for (uint32_t i = 0; i < PEERS_MOST; i++) chosen[i] = look->suspects[(round * PEERS_MOST + i) % count];
  memcpy(look->suspects, chosen, sizeof chosen);
  look->suspect_count = PEERS_MOST;
}

/* ---- messages ---- */

struct sentence {
  char text[1024];
};

static const char *operation_name(uint8_t func) {
  if (func_is_one_sided(func)) return func == FUNC_WAIT_SIGNAL ? "WaitSignal" : "operation";
  return names_collective[func] ? names_collective[func] : names_func[func];
}

static void peer_text(const struct remote *remote, uint32_t rank, struct sentence *out) {
  snprintf(out->text, sizeof out->text, "rank %u (process %d on %s)", rank, remote->infos[rank].process,
           remote->infos[rank].host_name);
}

static bool is_message(uint8_t func) {
  return func == FUNC_SEND_RECV || func == FUNC_SEND || func == FUNC_RECV;
}

/* What a live rank answered about itself. */
static void alive_text(const struct suspect *suspect, char *out, size_t out_bytes) {
  const struct stall_reply *reply = &suspect->reply;
  const unsigned long long called = (unsigned long long)reply->sequence;
  const char *name = operation_name(suspect->func);
  int used;
  if (is_message(suspect->func) || func_is_one_sided(suspect->func))
    used = snprintf(out, out_bytes, " has called %llu operations", called);
  else if (reply->sequence <= suspect->operation) {
    used = snprintf(out, out_bytes, " has called %llu operations, and not %s #%llu yet", called, name,
                    (unsigned long long)suspect->operation);
  } else used = snprintf(out, out_bytes, " has called it too");
  if (used < 0 || (size_t)used >= out_bytes) return;
  out += used;
  out_bytes -= (size_t)used;
  if (reply->waits)
    snprintf(out, out_bytes, "; it waits itself for rank %u in %s #%llu", reply->wait_peer,
             operation_name(reply->wait_func), (unsigned long long)reply->wait_operation);
  else if (reply->known && !reply->busy) snprintf(out, out_bytes, "; it has finished all that it called");
  else if (reply->known) snprintf(out, out_bytes, "; it is at work");
}

static void suspect_text(const struct remote *remote, const struct suspect *suspect, struct sentence *out) {
  peer_text(remote, suspect->rank, out);
  const size_t used = strlen(out->text);
  if (suspect->outcome == CONTROL_ANSWERED && !suspect->reply.left)
    alive_text(suspect, out->text + used, sizeof out->text - used);
  else
    snprintf(out->text + used, sizeof out->text - used,
             suspect->outcome == CONTROL_SILENT ? " has not answered" : " has left the communicator");
}

static void warn(const struct remote *remote, const struct stall_rank *rank, const struct ncclComm *comm,
                 const struct look *look) {
  char all[4096];
  size_t used = 0;
  for (uint32_t i = 0; i < look->suspect_count && used + 1 < sizeof all; i++) {
    struct sentence one;
    suspect_text(remote, &look->suspects[i], &one);
    const int added = snprintf(all + used, sizeof all - used, "\n  %s", one.text);
    if (added > 0) used += (size_t)added;
  }
  log_warn(
      "rank %u of comm '%s' has made no progress for %llu s in %s #%llu, and waits for:%s\n  the wait goes "
      "on",
      rank->rank, comm->name, (unsigned long long)rank->quiet_ms / 1000,
      operation_name(look->suspects[0].func), (unsigned long long)look->suspects[0].operation, all);
}

/* ---- diagnoses ---- */

static bool gone_before(struct stall_rank *rank, uint32_t peer) {
  for (uint32_t i = 0; i < rank->gone_count; i++)
    if (rank->gone[i] == peer) return true;
  if (rank->gone_count < PEERS_MOST) rank->gone[rank->gone_count++] = peer;
  return false;
}

/* A rank that leaves has completed all that it called, and what it sent has arrived or is with the network.
 * So its peers' kernels need only one more examination; if the host knows of networks only, these get more
 * time.
 */
static bool has_left(struct stall_rank *rank, const struct suspect *suspect) {
  const bool left = suspect->outcome == CONTROL_NOBODY || suspect->outcome == CONTROL_GONE ||
                    (suspect->outcome == CONTROL_ANSWERED && suspect->reply.left);
  if (!left || !gone_before(rank, suspect->rank)) return false;
  return suspect->by_lane || (patience_ms() != 0 && suspect->debt.state.quiet_ms >= patience_ms());
}

static void left_text(const struct remote *remote, const struct stall_rank *rank,
                      const struct suspect *suspect, struct sentence *out) {
  char after[64] = "";
  if (suspect->outcome == CONTROL_ANSWERED)
    snprintf(after, sizeof after, " after %llu operations", (unsigned long long)suspect->reply.sequence);
  peer_text(remote, suspect->rank, out);
  const size_t used = strlen(out->text);
  snprintf(out->text + used, sizeof out->text - used,
           " has left the communicator%s; rank %u waits for it in %s #%llu", after, rank->rank,
           operation_name(suspect->func), (unsigned long long)suspect->operation);
}

/* Both ends have long been quiet, and neither waits for the other. `fault` says what is wrong. */
static bool network_fails(const struct suspect *suspect, uint64_t *message, const char **fault) {
  const struct stall_reply *reply = &suspect->reply;
  const struct proxy_state *own = &suspect->debt.state;
  const struct proxy_state other = {reply->connected != 0, reply->ready, reply->moved, reply->done,
                                    reply->quiet_ms};
  const struct proxy_state *sender = suspect->debt.name.sends ? own : &other;
  const struct proxy_state *receiver = suspect->debt.name.sends ? &other : own;
  if (!suspect->by_conn || suspect->outcome != CONTROL_ANSWERED || !reply->has_conn || patience_ms() == 0)
    return false;
  if (own->quiet_ms < patience_ms() || other.quiet_ms < patience_ms()) return false;
  *message = receiver->moved;
  if (!own->connected || !other.connected) *fault = "cannot go: the connection has not been made";
  else if (sender->ready > *message && receiver->ready > *message)
    *fault = sender->done > *message    ? "has not come, though the network took it"
             : sender->moved > *message ? "has not come, nor gone"
                                        : "is not taken";
  else if (receiver->moved > sender->done) {
    *message = sender->done;
    *fault = "has come, and the sender is not told";
  } else return false;
  return true;
}

static void network_text(const struct remote *remote, const struct stall_rank *rank,
                         const struct suspect *suspect, uint64_t message, const char *fault,
                         struct sentence *out) {
  const struct net_ops *net = NULL;
  uint32_t device_count;
  const struct device_conn_name *name = &suspect->debt.name;
  char at[SOCK_TEXT_BYTES];
  struct sentence peer;
  const char *network = net_choose(&net, &device_count) == ncclSuccess ? net->name : "?";
  peer_text(remote, suspect->rank, &peer);
  snprintf(out->text, sizeof out->text,
           "network %s: message %llu of connection %u -> %u, channel %u, for %s #%llu %s; nothing has moved "
           "on it for %llu s at rank %u, nor at %.500s, whose process is at %s (TUTTI_NET_PATIENCE_SECONDS)",
           network, (unsigned long long)message, name->sends ? rank->rank : name->peer,
           name->sends ? name->peer : rank->rank, name->channel_index, operation_name(suspect->func),
           (unsigned long long)suspect->operation, fault,
           (unsigned long long)suspect->debt.state.quiet_ms / 1000, rank->rank, peer.text,
           sock_address_text(&remote->addresses[remote->ranks[suspect->rank].process_index], at));
}

/* Locked. True if the communicator was broken. */
static bool diagnose(const struct remote *remote, struct stall_rank *rank, struct ncclComm *comm,
                     const struct look *look) {
  struct sentence reason;
  for (uint32_t i = 0; i < look->suspect_count; i++) {
    const struct suspect *suspect = &look->suspects[i];
    const char *fault;
    uint64_t message;
    if (has_left(rank, suspect)) left_text(remote, rank, suspect, &reason);
    else if (network_fails(suspect, &message, &fault))
      network_text(remote, rank, suspect, message, fault, &reason);
    else continue;
    remote_give_up(comm, ncclRemoteError, reason.text);
    return true;
  }
  return false;
}

/* ---- a round of questions ---- */

static void ask(struct stall *stall, const struct stall_rank *rank, struct suspect *suspect) {
  struct remote *remote = stall->remote;
  const struct sock_address *to = &remote->addresses[remote->ranks[suspect->rank].process_index];
  const struct device_conn_name *name = &suspect->debt.name;
  struct stall_question question = {REMOTE_CALL_STALL, suspect->rank, rank->rank, 0, 0, 0, 0, 0, 0};
  char what[160];
  snprintf(what, sizeof what, "rank %u asking rank %u why nothing moves", rank->rank, suspect->rank);
  const struct sock_wait wait = {os_time_ns() + ASK_NS, &stall->called_off, what};
  uint32_t bytes = sizeof suspect->reply;
  suspect->outcome = CONTROL_ANSWERED;
  if (suspect->by_conn) {
    question.channel_index = name->channel_index;
    question.conn_index = name->conn_index;
    question.proto = name->proto;
    question.sends = !name->sends;
    question.has_conn = 1;
  }
  if (remote->ranks[suspect->rank].process_index == remote->own_process) {
    os_mutex_lock(&remote->lock);
    answer_fill(remote, &question, &suspect->reply);
    os_mutex_unlock(&remote->lock);
    return;
  }
  suspect->outcome =
      control_ask(to, &remote->secret, &wait, &question, sizeof question, &suspect->reply, &bytes);
  if (suspect->outcome == CONTROL_ANSWERED && bytes != sizeof suspect->reply)
    suspect->outcome = CONTROL_SILENT;
}

/* The rank's communicator, if it has still made no progress since the questions; locked. */
static struct ncclComm *rank_is_stuck(const struct remote *remote, struct stall_rank *rank, uint64_t moves) {
  struct look now;
  struct ncclComm *comm = rank_comm(remote, rank);
  if (!comm) return NULL;
  rank_look(remote, rank, comm, 0, &now);
  return now.moves == moves && rank->quiet_ms > 0 ? comm : NULL;
}

static bool called_off(const struct stall *stall) {
  return __atomic_load_n(&stall->called_off, __ATOMIC_ACQUIRE) != 0;
}

/* Examines one rank. True if peers must be asked. */
static bool rank_is_due(const struct remote *remote, struct stall_rank *rank, uint64_t passed_ms,
                        struct look *look) {
  const struct ncclComm *comm = rank_comm(remote, rank);
  if (!comm) {
    rank_moved(rank);
    return false;
  }
  rank_look(remote, rank, comm, passed_ms, look);
  if (rank->quiet_ms < rank->asked_ms + stall_ms()) return false;
  suspects_find(remote, look);
  suspects_choose(look, rank->round);
  if (look->suspect_count == 0) return false;
  rank->asked_ms = rank->quiet_ms;
  rank->round += 1;
  return true;
}

static void rank_turn(struct stall *stall, struct stall_rank *rank, uint64_t passed_ms, struct look *look) {
  struct remote *remote = stall->remote;
  os_mutex_lock(&remote->lock);
  if (remote->comms[rank->rank]) remote_report_error(remote->comms[rank->rank]);
  const bool due = rank_is_due(remote, rank, passed_ms, look);
  os_mutex_unlock(&remote->lock);
  if (!due) return;
  for (uint32_t i = 0; i < look->suspect_count && !called_off(stall); i++)
    ask(stall, rank, &look->suspects[i]);
  if (called_off(stall)) return;
  os_mutex_lock(&remote->lock);
  struct ncclComm *comm = rank_is_stuck(remote, rank, look->moves);
  if (comm && !diagnose(remote, rank, comm, look) && rank->quiet_ms >= 2 * rank->reported_ms) {
    rank->reported_ms = rank->quiet_ms;
    warn(remote, rank, comm, look);
  }
  os_mutex_unlock(&remote->lock);
}

/* ---- the thread ---- */

/* Time since the last examination, except time in which none was possible. */
static uint64_t stall_passed_ms(struct stall *stall) {
  const uint64_t now_ns = os_time_ns(), passed_ms = (now_ns - stall->looked_ns) / 1000000;
  stall->looked_ns = now_ns;
  return passed_ms < 2 * tick_ms() ? passed_ms : 2 * tick_ms();
}

static struct stall *stall_next(void) {
  struct stall *stall = watcher.first;
  while (stall && stall->pass == watcher.pass) stall = stall->next;
  return stall;
}

/* Waits for the next examination; moves the emulator meanwhile if no other thread does. */
static void watcher_rest(void) {
  const uint64_t end_ns = os_time_ns() + tick_ms() * 1000000;
  for (uint64_t now_ns = os_time_ns(); !watcher.stop && now_ns < end_ns; now_ns = os_time_ns()) {
    os_mutex_unlock(&watcher_lock);
    const uint64_t retry_ns = now_ns + backend_ops()->device->drive_idle() * UINT64_C(1000000);
    os_mutex_lock(&watcher_lock);
    const uint64_t until_ns = retry_ns < end_ns ? retry_ns : end_ns;
    while (!watcher.stop && os_cond_wait_until(&watcher_changed, &watcher_lock, until_ns)) {}
  }
}

static void *watcher_body(void *argument) {
  struct look *look = (struct look *)argument;
  os_mutex_lock(&watcher_lock);
  while (!watcher.stop) {
    watcher.pass += 1;
    for (struct stall *stall = stall_next(); stall && !watcher.stop; stall = stall_next()) {
      stall->pass = watcher.pass;
      stall->looking = true;
      os_mutex_unlock(&watcher_lock);
      const uint64_t passed_ms = stall_passed_ms(stall);
      for (uint32_t i = 0; i < stall->rank_count; i++) rank_turn(stall, &stall->ranks[i], passed_ms, look);
      os_mutex_lock(&watcher_lock);
      stall->looking = false;
      os_cond_broadcast(&watcher_changed);
    }
    watcher_rest();
  }
  os_mutex_unlock(&watcher_lock);
  os_free(look);
  return NULL;
}

/* A forked child has none of its parent's communicators, nor the thread. */
static void watcher_forget(void) {
  static bool prepared;
  if (prepared && watcher.fork_count == os_fork_count()) return;
  prepared = true;
  watcher.first = NULL;
  watcher.fork_count = os_fork_count();
  os_mutex_init(&watcher_lock);
  os_cond_init(&watcher_changed);
}

static ncclResult_t watcher_start(void) {
  struct look *look = (struct look *)os_alloc(sizeof *look);
  watcher.stop = false;
  if (look && os_thread_start_named(&watcher.thread, "tutti-stall", watcher_body, look)) {
    os_thread_note(1);
    return ncclSuccess;
  }
  os_free(look);
  return log_fail(
      ncclSystemError,
      "no thread that watches over operations that make no progress; raise ulimit -u, or the limit of "
      "memory");
}

static struct stall *stall_create(struct remote *remote) {
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) count += remote->comms[rank] != NULL;
  struct stall *stall = (struct stall *)os_alloc(sizeof *stall + count * sizeof stall->ranks[0]);
  if (!stall) return NULL;
  stall->remote = remote;
  stall->looked_ns = os_time_ns();
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++)
    if (remote->comms[rank]) stall->ranks[stall->rank_count++].rank = rank;
  return stall;
}

ncclResult_t stall_open(struct remote *remote, struct stall **result) {
  struct stall *stall = stall_create(remote);
  if (!stall) return log_no_memory("watching over operations that make no progress");
  os_mutex_lock(&life_lock);
  watcher_forget();
  const ncclResult_t started = watcher.first ? ncclSuccess : watcher_start();
  if (started == ncclSuccess) {
    os_mutex_lock(&watcher_lock);
    stall->next = watcher.first;
    watcher.first = stall;
    os_mutex_unlock(&watcher_lock);
  }
  os_mutex_unlock(&life_lock);
  if (started != ncclSuccess) os_free(stall);
  else *result = stall;
  return started;
}

static void stall_unlist(struct stall *stall) {
  struct stall **link = &watcher.first;
  while (*link && *link != stall) link = &(*link)->next;
  if (*link) *link = stall->next;
}

void stall_close(struct stall *stall) {
  if (!stall) return;
  __atomic_store_n(&stall->called_off, 1, __ATOMIC_RELEASE);
  os_mutex_lock(&life_lock);
  if (watcher.fork_count == os_fork_count()) {
    os_mutex_lock(&watcher_lock);
    while (stall->looking) os_cond_wait(&watcher_changed, &watcher_lock);
    stall_unlist(stall);
    watcher.stop = watcher.first == NULL;
    const bool last = watcher.stop;
    os_cond_broadcast(&watcher_changed);
    os_mutex_unlock(&watcher_lock);
    if (last) {
      os_thread_join(watcher.thread);
      os_thread_note(-1);
    }
  }
  os_mutex_unlock(&life_lock);
  os_free(stall);
}
