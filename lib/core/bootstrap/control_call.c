/* control_call.c: questions and answers between processes. Handlers run one after another on their own
 * thread, so that a handler that maps memory does not delay heartbeats; callers wait on connections that are
 * kept for the next call. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/control_conn.h"

#define KEPT_MOST 64u
/* Code of the answer if there is no handler; a caller that does not know it takes it for a failure. */
#define NOBODY (-1)
#define WAITING_MOST 65536u

struct served {
  struct served *next;
  uint64_t key;
  control_handler *handler;
  void *argument;
};

/* A question that waits for the worker. */
struct question {
  struct question *next;
  struct control_conn *conn; /* NULL: the caller has closed it */
  uint64_t key;
  uint32_t bytes;
  uint8_t body[];
};

static struct calls {
  struct served *served;
  struct question *first, *last, *running;
  uint32_t waiting;
  uint64_t running_key;
  os_thread thread;
  os_cond changed;
  bool prepared, started, stopping;
} calls;

/* The caller's side: connections that are not in use. */
static struct kept {
  struct sock_address to;
  uint64_t used_ns;
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

ncclResult_t control_serve(uint64_t key, control_handler *handler, void *argument) {
  struct served *served = (struct served *)os_alloc(sizeof *served);
  if (!served) return log_no_memory("answering other processes");
  served->key = key;
  served->handler = handler;
  served->argument = argument;
  control_lock();
  calls_prepare();
  served->next = calls.served;
  calls.served = served;
  control_unlock();
  return ncclSuccess;
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
  if (!served) {
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
    calls.waiting--;
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
  calls.started = reply && os_thread_start(&calls.thread, calls_body, reply);
  if (calls.started) os_thread_note(1);
  else os_free(reply);
  return calls.started;
}

static uint32_t call_limit(struct control_conn *conn, uint32_t kind) {
  (void)conn;
  return kind == FRAME_CALL ? (uint32_t)sizeof(uint64_t) + CONTROL_REQUEST_MOST : CONTROL_UNKNOWN;
}

static void call_gone(struct control_conn *conn, const char *why) {
  (void)why;
  for (struct question *question = calls.first; question; question = question->next) {
    if (question->conn == conn) question->conn = NULL;
  }
  if (calls.running && calls.running->conn == conn) calls.running->conn = NULL;
}

static void call_frame(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes) {
  static const char full[] = "the answer there" LOG_OUT_OF_MEMORY;
  const int32_t code = ncclSystemError;
  uint64_t key;
  (void)kind;
  if (bytes < sizeof key) {
    call_gone(conn, NULL); /* earlier questions of this connection may be queued */
    control_drop(conn);
    return;
  }
  struct question *question = (struct question *)os_alloc(sizeof *question + bytes);
  if (!question || calls.waiting >= WAITING_MOST || !calls_start()) {
    os_free(question);
    control_send(conn, FRAME_ANSWER, &code, sizeof code, full, sizeof full - 1);
    return;
  }
  memcpy(&key, body, sizeof key);
  question->conn = conn;
  question->key = key;
  question->bytes = bytes - (uint32_t)sizeof key;
  memcpy(question->body, body + sizeof key, question->bytes);
  if (calls.last) calls.last->next = question;
  else calls.first = question;
  calls.last = question;
  calls.waiting++;
  os_cond_broadcast(&calls.changed);
}

static const struct control_class call_class = {"call", call_limit, call_frame, call_gone, false};

const char *call_accept(struct control_conn *conn) {
  conn->conn_class = &call_class;
  conn->hurried = false;
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
  calls.waiting = 0;
  control_unlock();
}

void call_forget(void) {
  os_mutex_init(&kept_mutex);
  kept_close();
  memset(&calls, 0, sizeof calls);
}

/* ---- the asker's side ---- */

static int kept_take(const struct sock_address *to) {
  uint8_t byte;
  for (;;) {
    int fd = -1;
    os_mutex_lock(&kept_mutex);
    for (uint32_t i = 0; i < KEPT_MOST && fd < 0; i++) {
      if (kept[i].fd <= 0 || !sock_address_equal(&kept[i].to, to)) continue;
      fd = kept[i].fd;
      kept[i].fd = 0;
    }
    os_mutex_unlock(&kept_mutex);
    /* The other end may have closed it; it never sends first. */
    if (fd < 0 || sock_receive_some(fd, &byte, 1) == 0) return fd;
    sock_close(fd);
  }
}

static void kept_put(const struct sock_address *to, int fd) {
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
  oldest->to = *to;
  oldest->fd = fd;
  oldest->used_ns = os_time_ns();
  os_mutex_unlock(&kept_mutex);
}

static ncclResult_t call_roundtrip(int fd, uint64_t key, const struct sock_wait *wait, const void *request,
                                   uint32_t bytes, void *reply, uint32_t *reply_bytes, int32_t *code,
                                   char *text) {
  struct frame_head head = {(uint32_t)sizeof key + bytes, FRAME_CALL, 0};
  TRY(sock_send(fd, &head, sizeof head, wait));
  TRY(sock_send(fd, &key, sizeof key, wait));
  TRY(sock_send(fd, request, bytes, wait));
  do {
    TRY(sock_receive(fd, &head, sizeof head, wait));
  } while (head.kind == FRAME_BEAT && head.bytes == 0);
  const bool sane = head.kind == FRAME_ANSWER && head.bytes >= sizeof *code;
  if (!sane || head.bytes > sizeof *code + CONTROL_REPLY_MOST)
    return log_fail(ncclRemoteError, "%s: a malformed answer arrived; load the same library everywhere",
                    wait->what);
  const uint32_t capacity = *reply_bytes, answer = head.bytes - (uint32_t)sizeof *code;
  TRY(sock_receive(fd, code, sizeof *code, wait));
  if (*code == ncclSuccess && answer > capacity)
    return log_fail(ncclInternalError, "%s: an answer of %u bytes came, there is space for %u", wait->what,
                    answer, capacity);
  if (*code == ncclSuccess) {
    *reply_bytes = answer;
    return sock_receive(fd, reply, answer, wait);
  }
  char all[CONTROL_REPLY_MOST < 1024 ? CONTROL_REPLY_MOST : 1024];
  if (answer >= sizeof all)
    return log_fail(ncclRemoteError, "%s: a failure arrived without a message", wait->what);
  TRY(sock_receive(fd, all, answer, wait));
  all[answer] = '\0';
  text_clean(all, sizeof all);
  snprintf(text, WIRE_TEXT_MOST, "%.*s", WIRE_TEXT_MOST - 1, all);
  return ncclSuccess;
}

/* Calls over an open connection, and then keeps or closes it. */
static ncclResult_t call_on(int fd, const struct sock_address *to, uint64_t key, const struct sock_wait *wait,
                            const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes,
                            int32_t *code, char *text) {
  const ncclResult_t result = call_roundtrip(fd, key, wait, request, bytes, reply, reply_bytes, code, text);
  if (result == ncclSuccess) kept_put(to, fd);
  else sock_close(fd);
  return result;
}

static ncclResult_t call_handshake(int fd, uint64_t key, const struct sock_wait *wait) {
  const ncclResult_t result = handshake_dial(fd, HANDSHAKE_CALL, key, wait);
  if (result != ncclSuccess) sock_close(fd);
  return result;
}

ncclResult_t control_call(const struct sock_address *to, uint64_t key, const struct sock_wait *wait,
                          const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes) {
  char text[WIRE_TEXT_MOST] = "", at[SOCK_TEXT_BYTES];
  int32_t code = ncclSuccess;
  if (bytes > CONTROL_REQUEST_MOST)
    return log_fail(ncclInternalError, "%s: a question of %u bytes", wait->what, bytes);
  int fd = kept_take(to);
  if (fd < 0) {
    TRY(sock_connect(to, wait, &fd));
    TRY(call_handshake(fd, key, wait));
  }
  TRY(call_on(fd, to, key, wait, request, bytes, reply, reply_bytes, &code, text));
  if (code == ncclSuccess) return ncclSuccess;
  const bool known = code > ncclSuccess && code < ncclNumResults;
  return log_fail(known ? (ncclResult_t)code : ncclRemoteError, "%s (%s): %s", wait->what,
                  sock_address_text(to, at), text);
}

enum control_outcome control_ask(const struct sock_address *to, uint64_t key, const struct sock_wait *wait,
                                 const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes) {
  char text[WIRE_TEXT_MOST] = "";
  int32_t code = ncclSuccess;
  int fd = kept_take(to);
  if (fd < 0) {
    const ncclResult_t result = sock_connect_once(to, wait, &fd);
    if (result == ncclSuccess && fd < 0 && errno == ECONNREFUSED) return CONTROL_GONE;
    if (result != ncclSuccess || fd < 0) return CONTROL_SILENT;
    if (call_handshake(fd, key, wait) != ncclSuccess) return CONTROL_SILENT;
  }
  if (call_on(fd, to, key, wait, request, bytes, reply, reply_bytes, &code, text) != ncclSuccess)
    return CONTROL_SILENT;
  return code == ncclSuccess ? CONTROL_ANSWERED : code == NOBODY ? CONTROL_NOBODY : CONTROL_SILENT;
}
