/* control_call.c: questions and answers between processes. Handlers run one after another on their own
 * thread, so that a handler that maps memory does not delay heartbeats; callers wait on connections that are
 * kept for the next call. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/control_conn.h"

#define KEPT_MOST 64u
/* Code of the answer if there is no handler; a caller that does not know it takes it for a failure. */
#define NOBODY (-1)
/* Questions that wait, of one connection and in bytes of all; more are refused. */
#define WAITING_MOST 16u
#define WAITING_BYTES_MOST (16u << 20)
#define UNREAD_BYTES_MOST (4u << 20) /* of answers, per connection */
#define IDLE_SECONDS 60u

struct served {
  struct served *next;
  uint64_t key;
  struct secret secret;
  bool status;              /* of control_serve_status */
  control_handler *handler; /* NULL: of control_admit */
  void *argument;
};

/* A question that waits for the worker; its connection has proved to know its key. */
struct question {
  struct question *next;
  struct control_conn *conn; /* NULL: the caller has closed it */
  uint64_t key;
  uint32_t bytes;
  _Alignas(uint64_t) uint8_t body[]; /* handlers read structs from it */
};

static struct calls {
  struct served *served;
  struct question *first, *last, *running;
  uint32_t waiting_bytes;
  uint64_t running_key;
  os_thread thread;
  os_cond changed;
  bool prepared, started, stopping;
} calls;

/* The caller's side: connections that are not in use. */
static struct kept {
  struct sock_address to;
  uint64_t key, used_ns;
  struct session session;
  int fd; /* 0: free entry; the library never keeps descriptor 0 */
} kept[KEPT_MOST];
static os_mutex kept_mutex = OS_MUTEX_INITIALIZER;

static void calls_prepare(void) {
  if (calls.prepared) return;
  os_cond_init(&calls.changed);
  calls.prepared = true;
}

/* ---- the server's side ---- */

static struct served *served_find(uint64_t key) {
  for (struct served *served = calls.served; served; served = served->next) {
    if (served->key == key) return served;
  }
  return NULL;
}

/* Not a secret at all: the kernel says who calls over the UNIX socket, and elsewhere TUTTI_SECRET, which the
 * handshake mixes in, keeps others out. */
struct secret control_status_secret(void) {
  struct secret nothing;
  memset(&nothing, 0, sizeof nothing);
  return nothing;
}

bool call_secret(uint64_t key, struct secret *secret) {
  const struct served *served = served_find(key);
  if (!served || served->status) return false;
  *secret = served->secret;
  return true;
}

bool status_secret(bool local, uint64_t key, struct secret *secret) {
  const struct served *served = served_find(key);
  if (!served || !served->status || (!local && !handshake_secret())) return false;
  *secret = served->secret;
  return true;
}

static ncclResult_t serve(const struct secret *secret, bool status, control_handler *handler,
                          void *argument) {
  struct served *served = (struct served *)os_alloc(sizeof *served);
  if (!served) return log_no_memory("answering other processes");
  served->key = secret_name(secret);
  served->secret = *secret;
  served->status = status;
  served->handler = handler;
  served->argument = argument;
  control_lock();
  calls_prepare();
  served->next = calls.served;
  calls.served = served;
  control_unlock();
  return ncclSuccess;
}

ncclResult_t control_serve(const struct secret *secret, control_handler *handler, void *argument) {
  return serve(secret, false, handler, argument);
}

ncclResult_t control_admit(const struct secret *secret) {
  TRY(control_use(NULL));
  const ncclResult_t result = serve(secret, false, NULL, NULL);
  if (result != ncclSuccess) control_leave();
  return result;
}

ncclResult_t control_serve_status(control_handler *handler, void *argument) {
  const struct secret secret = control_status_secret();
  return serve(&secret, true, handler, argument);
}

void control_unserve_status(void) {
  const struct secret secret = control_status_secret();
  control_unserve(secret_name(&secret));
}

void control_unserve(uint64_t key) {
  control_lock();
  struct served **link = &calls.served;
  while (*link && (*link)->key != key) link = &(*link)->next;
  struct served *served = *link;
  if (served) *link = served->next;
  while (calls.running && calls.running_key == key)
    control_wait(&calls.changed, os_time_ns() + 1000000000ull);
  control_unlock();
  if (served && !served->handler) control_leave();
  if (served) secret_wipe(&served->secret);
  os_free(served);
}

static void question_answer(const struct question *question, int32_t value, const void *reply,
                            uint32_t bytes) {
  if (question->conn) control_send(question->conn, FRAME_ANSWER, &value, sizeof value, reply, bytes);
}

/* Unlocked while the handler runs. */
static void question_run(struct question *question, uint8_t *reply) {
  static const char nobody[] = "nobody answers there: the communicator has been destroyed, or is not ready";
  const struct served *served = served_find(question->key);
  if (!served || !served->handler) {
    question_answer(question, NOBODY, nobody, sizeof nobody - 1);
    return;
  }
  control_handler *handler = served->handler;
  void *argument = served->argument;
  uint32_t bytes = CONTROL_REPLY_MOST;
  control_unlock();
  const ncclResult_t result = handler(argument, question->body, question->bytes, reply, &bytes);
  const char *text = result == ncclSuccess ? "" : log_own_error();
  if (result != ncclSuccess) snprintf((char *)reply, WIRE_TEXT_MOST, "%s", text);
  control_lock();
  if (result != ncclSuccess) bytes = (uint32_t)strlen((const char *)reply);
  question_answer(question, (int32_t)result, reply, bytes < CONTROL_REPLY_MOST ? bytes : CONTROL_REPLY_MOST);
}

static void *calls_body(void *argument) {
  uint8_t *reply = (uint8_t *)argument;
  control_lock();
  while (!calls.stopping) {
    struct question *question = calls.first;
    if (!question) {
      control_wait(&calls.changed, os_time_ns() + 3600 * 1000000000ull);
      continue;
    }
    calls.first = question->next;
    if (!calls.first) calls.last = NULL;
    calls.waiting_bytes -= (uint32_t)sizeof *question + question->bytes;
    calls.running = question;
    calls.running_key = question->key;
    question_run(question, reply);
    calls.running = NULL;
    os_cond_broadcast(&calls.changed);
    os_free(question);
  }
  control_unlock();
  os_free(reply);
  return NULL;
}

static bool calls_start(void) {
  if (calls.started || calls.stopping) return calls.started;
  uint8_t *reply = (uint8_t *)os_alloc(CONTROL_REPLY_MOST);
  calls_prepare();
  calls.started = reply && os_thread_start_named(&calls.thread, "tutti-calls", calls_body, reply);
  if (calls.started) os_thread_note(1);
  else os_free(reply);
  return calls.started;
}

static uint32_t call_limit(struct control_conn *conn, uint32_t kind) {
  (void)conn;
  return kind == FRAME_CALL ? CONTROL_REQUEST_MOST : CONTROL_UNKNOWN;
}

static void call_gone(struct control_conn *conn, const char *why) {
  (void)why;
  for (struct question *question = calls.first; question; question = question->next) {
    if (question->conn == conn) question->conn = NULL;
  }
  if (calls.running && calls.running->conn == conn) calls.running->conn = NULL;
}

static uint32_t questions_of(const struct control_conn *conn) {
  uint32_t count = 0;
  for (const struct question *question = calls.first; question; question = question->next)
    count += question->conn == conn;
  return count;
}

static void question_refuse(struct control_conn *conn, const char *why) {
  const int32_t code = ncclSystemError;
  control_send(conn, FRAME_ANSWER, &code, sizeof code, why, strlen(why));
}

static void call_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  const uint32_t whole = (uint32_t)sizeof(struct question) + bytes;
  (void)kind;
  const bool fits = calls.waiting_bytes + whole <= WAITING_BYTES_MOST && questions_of(conn) < WAITING_MOST;
  if (!fits) {
    question_refuse(conn, "too many questions wait for an answer there");
    return;
  }
  struct question *question = (struct question *)os_alloc(whole);
  if (!question || !calls_start()) {
    os_free(question);
    question_refuse(conn, calls.stopping ? "that process is ending"
                                         : "that process has no memory for an answer, or cannot start a "
                                           "thread: raise its limit of memory, or of threads (ulimit -u)");
    return;
  }
  question->conn = conn;
  question->key = conn->key;
  question->bytes = bytes;
  memcpy(question->body, body, bytes);
  if (calls.last) calls.last->next = question;
  else calls.first = question;
  calls.last = question;
  calls.waiting_bytes += whole;
  os_cond_broadcast(&calls.changed);
}

static const struct control_class call_class = {"call", call_limit,        call_frame,  call_gone,
                                                false,  UNREAD_BYTES_MOST, IDLE_SECONDS};

void call_drop_idle(void) { control_drop_idle(&call_class); }

const char *call_accept(struct control_conn *conn) {
  conn->conn_class = &call_class;
  conn->hurried = false;
  if (control_count(&call_class) > control_conns_most()) control_drop_idle(&call_class);
  return NULL;
}

static void kept_close(void) {
  os_mutex_lock(&kept_mutex);
  for (uint32_t i = 0; i < KEPT_MOST; i++) {
    if (kept[i].fd > 0) sock_close(kept[i].fd);
    kept[i].fd = 0;
  }
  os_mutex_unlock(&kept_mutex);
}

void call_begin(void) { calls.stopping = false; }

void call_stop(void) {
  kept_close();
  control_lock();
  const bool started = calls.started;
  const os_thread thread = calls.thread;
  calls.stopping = true;
  calls.started = false;
  if (calls.prepared) os_cond_broadcast(&calls.changed);
  control_unlock();
  if (!started) return;
  os_thread_join(thread);
  os_thread_note(-1);
  control_lock();
  while (calls.first) {
    struct question *question = calls.first;
    calls.first = question->next;
    os_free(question);
  }
  calls.last = NULL;
  calls.waiting_bytes = 0;
  control_unlock();
}

void call_forget(void) {
  os_mutex_init(&kept_mutex);
  kept_close();
  memset(&calls, 0, sizeof calls);
}

/* ---- the asker's side ---- */

/* A connection to one process that has proved one key. */
struct call_conn {
  int fd;
  uint64_t key;
  const struct sock_address *to;
  struct session session;
};

static void kept_take(struct call_conn *conn) {
  uint8_t byte;
  for (;;) {
    conn->fd = -1;
    os_mutex_lock(&kept_mutex);
    for (uint32_t i = 0; i < KEPT_MOST && conn->fd < 0; i++) {
      if (kept[i].fd <= 0 || kept[i].key != conn->key || !sock_address_equal(&kept[i].to, conn->to)) continue;
      conn->fd = kept[i].fd;
      conn->session = kept[i].session;
      kept[i].fd = 0;
    }
    os_mutex_unlock(&kept_mutex);
    /* The other end may have closed it; it never sends first. */
    if (conn->fd < 0 || sock_receive_some(conn->fd, &byte, 1) == 0) return;
    sock_close(conn->fd);
  }
}

static void kept_put(const struct call_conn *conn) {
  os_mutex_lock(&kept_mutex);
  struct kept *oldest = &kept[0];
  for (uint32_t i = 0; i < KEPT_MOST; i++) {
    if (kept[i].fd <= 0) {
      oldest = &kept[i];
      break;
    }
    if (kept[i].used_ns < oldest->used_ns) oldest = &kept[i];
  }
  if (oldest->fd > 0) sock_close(oldest->fd);
  *oldest = (struct kept){*conn->to, conn->key, os_time_ns(), conn->session, conn->fd};
  os_mutex_unlock(&kept_mutex);
}

/* What is asked, and where the answer goes. */
struct asked {
  const struct sock_wait *wait;
  const void *request;
  uint32_t bytes;
  void *reply;
  uint32_t *reply_bytes;
  int32_t code;
  char text[WIRE_TEXT_MOST]; /* of a failure at the other end */
};

static ncclResult_t answer_read(struct asked *asked, const uint8_t *body, uint32_t bytes) {
  const uint32_t answer = bytes - (uint32_t)sizeof asked->code;
  struct wire_reader reader = {body, bytes};
  wire_take(&reader, &asked->code, sizeof asked->code);
  if (asked->code != ncclSuccess) {
    wire_take_text(&reader, asked->text, sizeof asked->text);
    return ncclSuccess;
  }
  if (answer > *asked->reply_bytes)
    return log_fail(ncclInternalError, "%s: an answer of %u bytes came, there is space for %u",
                    asked->wait->what, answer, *asked->reply_bytes);
  if (answer > 0) memcpy(asked->reply, reader.at, answer);
  *asked->reply_bytes = answer;
  return ncclSuccess;
}

static ncclResult_t call_roundtrip(struct call_conn *conn, struct asked *asked, uint8_t *body) {
  struct frame_head head;
  TRY(wire_send(conn->fd, &conn->session.out, FRAME_CALL, asked->request, asked->bytes, asked->wait));
  do {
    TRY(wire_receive(conn->fd, &conn->session.in, &head, body, sizeof asked->code + CONTROL_REPLY_MOST,
                     asked->wait));
  } while (head.kind == FRAME_BEAT);
  if (head.kind == FRAME_ANSWER && head.bytes >= sizeof asked->code)
    return answer_read(asked, body, head.bytes);
  return log_fail(ncclRemoteError, "%s: a malformed answer arrived; load the same library everywhere",
                  asked->wait->what);
}

/* Calls over an open connection, and then keeps or closes it. */
static ncclResult_t call_on(struct call_conn *conn, struct asked *asked) {
  uint8_t *body = (uint8_t *)os_alloc(sizeof asked->code + CONTROL_REPLY_MOST);
  const ncclResult_t result =
      body ? call_roundtrip(conn, asked, body) : log_no_memory("%s: an answer", asked->wait->what);
  if (result == ncclSuccess) kept_put(conn);
  else sock_close(conn->fd);
  os_free(body);
  return result;
}

static ncclResult_t call_connect(struct call_conn *conn, const struct secret *secret,
                                 const struct sock_wait *wait) {
  enum handshake_refusal refusal;
  return handshake_connect(conn->to, HANDSHAKE_CALL, conn->key, secret, wait, &conn->fd, &conn->session,
                           &refusal);
}

/* In one try. */
static ncclResult_t call_handshake(struct call_conn *conn, const struct secret *secret,
                                   const struct sock_wait *wait, enum handshake_refusal *refusal) {
  const ncclResult_t result =
      handshake_dial(conn->fd, HANDSHAKE_CALL, conn->key, secret, wait, &conn->session, refusal);
  if (result != ncclSuccess) sock_close(conn->fd);
  return result;
}

ncclResult_t control_call(const struct sock_address *to, const struct secret *secret,
                          const struct sock_wait *wait, const void *request, uint32_t bytes, void *reply,
                          uint32_t *reply_bytes) {
  struct call_conn conn = {-1, secret_name(secret), to, {{{{0}}, 0}, {{{0}}, 0}}};
  struct asked asked = {wait, request, bytes, reply, reply_bytes, ncclSuccess, ""};
  char at[SOCK_TEXT_BYTES];
  if (bytes > CONTROL_REQUEST_MOST)
    return log_fail(ncclInternalError, "%s: a question of %u bytes", wait->what, bytes);
  kept_take(&conn);
  if (conn.fd < 0) TRY(call_connect(&conn, secret, wait));
  TRY(call_on(&conn, &asked));
  if (asked.code == ncclSuccess) return ncclSuccess;
  const bool known = asked.code > ncclSuccess && asked.code < ncclNumResults;
  return log_fail(known ? (ncclResult_t)asked.code : ncclRemoteError, "%s (%s): %s", wait->what,
                  sock_address_text(to, at), asked.text);
}

enum control_outcome control_ask(const struct sock_address *to, const struct secret *secret,
                                 const struct sock_wait *wait, const void *request, uint32_t bytes,
                                 void *reply, uint32_t *reply_bytes) {
  struct call_conn conn = {-1, secret_name(secret), to, {{{{0}}, 0}, {{{0}}, 0}}};
  struct asked asked = {wait, request, bytes, reply, reply_bytes, ncclSuccess, ""};
  kept_take(&conn);
  if (conn.fd < 0) {
    enum handshake_refusal refusal = REFUSAL_NONE;
    const ncclResult_t result = sock_connect_once(to, wait, &conn.fd);
    if (result == ncclSuccess && conn.fd < 0 && errno == ECONNREFUSED) return CONTROL_GONE;
    if (result != ncclSuccess || conn.fd < 0) return CONTROL_SILENT;
    if (call_handshake(&conn, secret, wait, &refusal) != ncclSuccess)
      return refusal == REFUSAL_KEY ? CONTROL_NOBODY : CONTROL_SILENT;
  }
  if (call_on(&conn, &asked) != ncclSuccess) return CONTROL_SILENT;
  return asked.code == ncclSuccess ? CONTROL_ANSWERED
         : asked.code == NOBODY    ? CONTROL_NOBODY
                                   : CONTROL_SILENT;
}
