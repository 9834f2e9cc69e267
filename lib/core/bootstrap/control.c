/* control.c: see control.h and control_conn.h: the server's life, its thread, its handshakes and its frames.
 * Promises that no input blocks the thread or exceeds the stated limits of memory; the memory of a body grows
 * with the bytes that have arrived, not with the announced length. */
#include "core/bootstrap/control_conn.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/param.h"
#include "base/poller.h"
#include "core/bootstrap/control.h"

#define HANDSHAKES_MOST 2048u
#define CONNS_MOST 65536u
#define LISTENERS_MOST 34u /* two for an address on this host */
#define ACCEPTS_AT_ONCE 128u
#define READ_BYTES 65536u
#define SECOND_NS 1000000000ull
#define LINGER_NS (2 * SECOND_NS)
#define PAUSE_NS (SECOND_NS / 10) /* pause of accepting, when descriptors are out */

enum server_state { SERVER_STOPPED, SERVER_RUNNING, SERVER_STOPPING };

struct conn_list {
  struct control_conn *first, *last;
  uint32_t count;
};

struct listener {
  int fd;
  struct sock_address address;
};

static struct server {
  os_mutex mutex;
  os_cond changed;
  bool prepared; /* fork handlers are installed */
  enum server_state state;
  uint32_t users;
  os_thread thread;
  long thread_id;
  struct poller poller;
  struct listener listeners[LISTENERS_MOST];
  uint32_t listener_count;
  uint64_t paused_ns; /* not 0: the listeners are not watched until this time */
  struct conn_list handshakes, conns, dead;
  uint32_t descriptors_most;
  uint64_t process, nonsense, nonsense_ns;
  uint64_t tick_ns, looped_ns;
  uint8_t read[READ_BYTES];
} server = {.mutex = OS_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void control_lock(void) { os_mutex_lock(&server.mutex); }
void control_unlock(void) { os_mutex_unlock(&server.mutex); }
bool control_wait(os_cond *cond, uint64_t deadline_ns) {
  return os_cond_wait_until(cond, &server.mutex, deadline_ns);
}
static bool control_on_thread(void) { return server.state != SERVER_STOPPED && server.thread_id == os_tid(); }

uint64_t control_process(void) {
  while (server.process == 0) server.process = os_entropy();
  return server.process;
}

void control_note_nonsense(const char *text) {
  const uint64_t now_ns = os_time_ns();
  server.nonsense++;
  if (server.nonsense_ns != 0 && now_ns - server.nonsense_ns < SECOND_NS) return;
  server.nonsense_ns = now_ns;
  log_info(LOG_BOOTSTRAP, "a connection %s and was closed (%llu so far)", text,
           (unsigned long long)server.nonsense);
}

uint64_t control_nonsense(void) {
  control_lock();
  const uint64_t count = server.nonsense;
  control_unlock();
  return count;
}

static uint64_t control_silence_ns(void) {
  return (uint64_t)param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS) * SECOND_NS;
}

static uint64_t beat_period_ns(void) {
  const uint64_t quarter = control_silence_ns() / 4;
  return quarter > 0 && quarter < SECOND_NS ? quarter : SECOND_NS;
}

void control_wake(void) {
  server.tick_ns = 0;
  if (server.state == SERVER_RUNNING && !control_on_thread()) poller_wake(&server.poller);
}

/* Requests a tick at `due_ns`. Wakes the thread only if needed, because each wake examines all connections.
 */
static void tick_by(uint64_t due_ns) {
  if (due_ns >= server.tick_ns) return;
  server.tick_ns = due_ns;
  if (server.state == SERVER_RUNNING && !control_on_thread()) poller_wake(&server.poller);
}

/* ---- lists ---- */

static void list_add(struct conn_list *list, struct control_conn *conn) {
  conn->previous = list->last;
  conn->next = NULL;
  if (list->last) list->last->next = conn;
  else list->first = conn;
  list->last = conn;
  list->count++;
}

static void list_take(struct conn_list *list, struct control_conn *conn) {
  if (conn->previous) conn->previous->next = conn->next;
  else list->first = conn->next;
  if (conn->next) conn->next->previous = conn->previous;
  else list->last = conn->previous;
  conn->previous = conn->next = NULL;
  list->count--;
}

/* ---- connections ---- */

static struct control_conn *conn_create(int fd) {
  struct control_conn *conn = (struct control_conn *)os_alloc(sizeof *conn);
  if (!conn) return NULL;
  conn->fd = fd;
  conn->begin_ns = conn->received_ns = conn->sent_ns = os_time_ns();
  if (poller_add(&server.poller, fd, conn)) return conn;
  os_free(conn);
  return NULL;
}

static void handshake_free(struct handshake *handshake) {
  if (handshake) explicit_bzero(handshake, sizeof *handshake);
  os_free(handshake);
}

static void conn_free(struct control_conn *conn) {
  handshake_free(conn->handshake);
  explicit_bzero(&conn->session, sizeof conn->session);
  os_free(conn->body);
  os_free(conn->out);
  os_free(conn);
}

void control_drop(struct control_conn *conn) {
  if (conn->dead) return;
  poller_remove(&server.poller, conn->fd);
  sock_close(conn->fd);
  conn->fd = -1;
  list_take(conn->handshake ? &server.handshakes : &server.conns, conn);
  conn->dead = true;
  conn->owner = NULL;
  list_add(&server.dead, conn);
}

static void conn_lose(struct control_conn *conn, const char *why) {
  if (conn->dead) return;
  if (!conn->ending && !conn->handshake) conn->conn_class->gone(conn, why);
  control_drop(conn);
}

struct control_conn *control_adopt(int fd, const struct session *session,
                                   const struct control_class *conn_class, void *owner) {
  struct control_conn *conn = conn_create(fd);
  if (!conn) {
    sock_close(fd);
    log_no_memory("keeping a connection between processes");
    return NULL;
  }
  conn->conn_class = conn_class;
  conn->owner = owner;
  conn->session = *session;
  list_add(&server.conns, conn);
  tick_by(conn->begin_ns + beat_period_ns());
  return conn;
}

/* Sends what the socket takes now. */
static void conn_flush(struct control_conn *conn) {
  while (!conn->broken && conn->out_begin < conn->out_end) {
    const ptrdiff_t moved =
        sock_send_some(conn->fd, conn->out + conn->out_begin, conn->out_end - conn->out_begin);
    if (moved < 0) conn->broken = true; /* reading will report it, after the data that arrived before */
    if (moved <= 0) break;
    conn->out_begin += (size_t)moved;
    conn->sent_bytes += (uint64_t)moved;
  }
  if (conn->broken || conn->out_begin == conn->out_end) conn->out_begin = conn->out_end = 0;
  if (conn->out_end == 0 && conn->out_capacity > READ_BYTES) {
    os_free(conn->out);
    conn->out = NULL;
    conn->out_capacity = 0;
  }
  const bool writes = conn->out_end > 0;
  if (writes != conn->writes) poller_set(&server.poller, conn->fd, conn, true, writes);
  conn->writes = writes;
}

static bool conn_reserve(struct control_conn *conn, size_t bytes) {
  if (conn->out_capacity - conn->out_end >= bytes) return true;
  if (conn->out_begin > 0) {
    memmove(conn->out, conn->out + conn->out_begin, conn->out_end - conn->out_begin);
    conn->out_end -= conn->out_begin;
    conn->out_begin = 0;
  }
  if (conn->out_end + bytes > conn->conn_class->queued_most) return false;
  const size_t wanted = conn->out_end + bytes;
  return array_grow_long(&conn->out, &conn->out_capacity, wanted < 256 ? 256 : wanted, 1);
}

static uint8_t *conn_append(struct control_conn *conn, const void *data, size_t bytes) {
  uint8_t *at = conn->out + conn->out_end;
  if (bytes > 0) memcpy(at, data, bytes);
  conn->out_end += bytes;
  return at;
}

bool control_send(struct control_conn *conn, enum frame_kind kind, const void *head, size_t head_bytes,
                  const void *body, size_t bytes) {
  if (!conn || conn->dead || conn->ending || conn->broken) return false;
  const struct frame_head frame = {(uint32_t)(head_bytes + bytes), (uint16_t)kind, 0};
  uint8_t tag[SEAL_BYTES];
  if (!conn_reserve(conn, sizeof frame + head_bytes + bytes + sizeof tag)) {
    conn->broken = true;
    control_wake();
    return false;
  }
  conn_append(conn, &frame, sizeof frame);
  uint8_t *sealed = conn_append(conn, head, head_bytes);
  conn_append(conn, body, bytes);
  seal_close(&conn->session.out, &frame, sizeof frame, sealed, head_bytes + bytes, tag);
  conn_append(conn, tag, sizeof tag);
  conn->sent_ns = os_time_ns();
  conn_flush(conn);
  return !conn->broken;
}

void control_end(struct control_conn *conn) {
  if (!conn || conn->dead || conn->ending) return;
  control_send(conn, FRAME_GOODBYE, NULL, 0, NULL, 0);
  conn->ending = true;
  conn->owner = NULL;
  conn->begin_ns = os_time_ns();
  if (server.state == SERVER_STOPPING) control_wake();
  else tick_by(conn->begin_ns + LINGER_NS / 8);
}

void control_end_all(const void *owner) {
  for (struct control_conn *conn = server.conns.first; conn; conn = conn->next) {
    if (conn->owner == owner) control_end(conn);
  }
}

/* ---- frames ---- */

/* A connection that is ending discards its frames unread. */
static void frame_done(struct control_conn *conn) {
  const uint32_t kind = conn->head.kind, bytes = conn->head.bytes;
  conn->head_bytes = conn->body_bytes = 0;
  if (!conn->ending &&
      !seal_open(&conn->session.in, &conn->head, sizeof conn->head, conn->body, bytes, conn->body + bytes)) {
    control_note_nonsense("sent a frame that was changed on the way, or is not its own");
    conn_lose(conn, "sent a frame that was changed on the way");
    return;
  }
  if (kind == FRAME_GOODBYE) {
    conn_lose(conn, NULL);
    return;
  }
  if (kind == FRAME_BEAT || conn->ending) return;
  conn->hurried = false;
  conn->conn_class->frame(conn, kind, conn->body, bytes);
  if (conn->body_capacity > READ_BYTES && !conn->dead) {
    os_free(conn->body);
    conn->body = NULL;
    conn->body_capacity = 0;
  }
}

uint8_t *control_take_body(struct control_conn *conn) {
  uint8_t *body = conn->body;
  conn->body = NULL;
  conn->body_capacity = 0;
  return body;
}

/* False if the frame is not allowed here. */
static bool frame_begin(struct control_conn *conn) {
  const uint32_t kind = conn->head.kind;
  if (kind == FRAME_BEAT || kind == FRAME_GOODBYE) return conn->head.bytes == 0;
  if (kind >= FRAME_KIND_COUNT || conn->head.zero != 0) return false;
  if (conn->ending) return true; /* its contents are discarded */
  const uint32_t limit = conn->conn_class->limit(conn, kind);
  return limit != CONTROL_UNKNOWN && conn->head.bytes <= limit;
}

static bool body_reserve(struct control_conn *conn, size_t more) {
  const size_t wanted = conn->body_bytes + more;
  return array_grow(&conn->body, &conn->body_capacity, wanted < 256 ? 256 : wanted, 1);
}

static size_t feed_head(struct control_conn *conn, const uint8_t *data, size_t bytes) {
  const size_t missing = sizeof conn->head - conn->head_bytes, taken = bytes < missing ? bytes : missing;
  memcpy((uint8_t *)&conn->head + conn->head_bytes, data, taken);
  conn->head_bytes += (uint32_t)taken;
  if (conn->head_bytes == sizeof conn->head && !frame_begin(conn)) {
    char text[96];
    snprintf(text, sizeof text, "sent a frame that is not allowed here (kind %u, %u bytes)", conn->head.kind,
             conn->head.bytes);
    control_note_nonsense(text);
    conn_lose(conn, text);
  }
  return taken;
}

/* Body and tag. */
static size_t frame_rest(const struct control_conn *conn) { return (size_t)conn->head.bytes + SEAL_BYTES; }

static size_t feed_body(struct control_conn *conn, const uint8_t *data, size_t bytes) {
  const size_t missing = frame_rest(conn) - conn->body_bytes, taken = bytes < missing ? bytes : missing;
  if (!conn->ending && taken > 0) {
    if (!body_reserve(conn, taken)) {
      conn_lose(conn, "sent more than this process has memory for");
      return taken;
    }
    memcpy(conn->body + conn->body_bytes, data, taken);
  }
  conn->body_bytes += (uint32_t)taken;
  return taken;
}

void control_feed(struct control_conn *conn, const uint8_t *data, size_t bytes) {
  while (!conn->dead) {
    if (conn->head_bytes < sizeof conn->head) {
      if (bytes == 0) return;
      const size_t taken = feed_head(conn, data, bytes);
      data += taken;
      bytes -= taken;
      if (conn->dead || conn->head_bytes < sizeof conn->head) continue;
    }
    const size_t taken = feed_body(conn, data, bytes);
    data += taken;
    bytes -= taken;
    if (conn->dead) return;
    if (conn->body_bytes == frame_rest(conn)) frame_done(conn);
    else return;
  }
}

static void conn_read(struct control_conn *conn) {
  const ptrdiff_t moved = sock_receive_some(conn->fd, server.read, sizeof server.read);
  if (moved == 0) return;
  if (moved < 0) {
    conn_lose(conn, "closed its connection without goodbye");
    return;
  }
  conn->received_ns = os_time_ns();
  conn->received_bytes += (uint64_t)moved;
  control_feed(conn, server.read, (size_t)moved);
}

/* ---- handshakes ---- */

/* What a client of this kind must prove to know. */
static bool secret_find(void *argument, enum handshake_kind kind, uint64_t key, struct secret *secret) {
  const struct control_conn *conn = (const struct control_conn *)argument;
  if (kind == HANDSHAKE_CALL && status_secret(conn->local, key, secret)) return true;
  if (kind == HANDSHAKE_CHECK_IN && root_secret(key, conn->local, secret)) return true;
  if (conn->local) return false;
  switch (kind) {
    case HANDSHAKE_CHECK_IN: return call_secret(key, secret);
    case HANDSHAKE_LINK: return gather_secret(key, secret);
    case HANDSHAKE_CALL: return call_secret(key, secret);
    default: return false;
  }
}

static void handshake_welcome(struct control_conn *conn) {
  struct handshake handshake = *conn->handshake;
  const char *refusal = "this address takes no such connections";
  list_take(&server.handshakes, conn);
  handshake_free(conn->handshake);
  conn->handshake = NULL;
  conn->session = handshake.session;
  list_add(&server.conns, conn);
  conn->hurried = true;
  conn->begin_ns = os_time_ns();
  tick_by(conn->begin_ns + SECOND_NS / 2);
  conn->key = handshake.key;
  if (server.state == SERVER_STOPPING) {
    control_drop(conn); /* the server is ending */
    return;
  }
  if (handshake.kind == HANDSHAKE_CHECK_IN) refusal = root_accept(conn);
  else if (handshake.kind == HANDSHAKE_LINK) refusal = gather_accept(conn);
  else if (handshake.kind == HANDSHAKE_CALL) refusal = call_accept(conn);
  if (!handshake_answer(&handshake, refusal) && !refusal)
    conn_lose(conn, "closed its connection without goodbye");
  else if (refusal) control_drop(conn);
  explicit_bzero(&handshake, sizeof handshake);
}

static void handshake_move(struct control_conn *conn) {
  const enum handshake_state state = handshake_step(conn->handshake);
  if (state == HANDSHAKE_DONE) {
    handshake_welcome(conn);
  } else if (state == HANDSHAKE_GONE) {
    control_drop(conn);
  } else { /* if there are too many, the one that was idle longest is dropped first */
    list_take(&server.handshakes, conn);
    list_add(&server.handshakes, conn);
  }
}

static void listeners_watch(bool reads) {
  for (uint32_t i = 0; i < server.listener_count; i++) {
    poller_set(&server.poller, server.listeners[i].fd, &server.listeners[i], reads, false);
  }
}

uint32_t control_conns_most(void) {
  return server.descriptors_most / 4 < CONNS_MOST ? server.descriptors_most / 4 : CONNS_MOST;
}

uint32_t control_count(const struct control_class *conn_class) {
  uint32_t count = 0;
  for (const struct control_conn *conn = server.conns.first; conn; conn = conn->next)
    count += conn->conn_class == conn_class;
  return count;
}

bool control_drop_idle(const struct control_class *conn_class) {
  struct control_conn *idle = NULL;
  for (struct control_conn *conn = server.conns.first; conn; conn = conn->next)
    if (conn->conn_class == conn_class && (!idle || conn->received_ns < idle->received_ns)) idle = conn;
  if (idle) conn_lose(idle, "was idle longest of too many connections");
  return idle != NULL;
}

static bool handshake_accept(int fd, bool local) {
  const uint32_t most = control_conns_most() < HANDSHAKES_MOST ? control_conns_most() : HANDSHAKES_MOST;
  if (server.handshakes.count >= most && server.handshakes.first) control_drop(server.handshakes.first);
  struct control_conn *conn = conn_create(fd);
  struct handshake *handshake = conn ? (struct handshake *)os_alloc(sizeof *handshake) : NULL;
  if (!handshake) {
    if (conn) {
      poller_remove(&server.poller, fd);
      os_free(conn);
    }
    sock_close(fd);
    return false;
  }
  handshake_begin(handshake, fd, secret_find, conn);
  conn->handshake = handshake;
  conn->local = local;
  list_add(&server.handshakes, conn);
  return true;
}

static void listener_move(struct listener *listener) {
  for (uint32_t i = 0; i < ACCEPTS_AT_ONCE; i++) {
    struct sock_address from;
    const int fd = sock_accept(listener->fd, &from);
    if (fd == -1) return;
    const bool local = listener->address.family == SOCK_LOCAL;
    if (fd >= 0 && local && !sock_peer_is_own(fd)) {
      sock_close(fd);
      continue;
    }
    if (fd >= 0 && handshake_accept(fd, local)) continue;
    /* No descriptors: drops unauthenticated connections; new ones wait in the listen queue. */
    for (uint32_t dropped = 0; dropped < ACCEPTS_AT_ONCE && server.handshakes.first; dropped++) {
      control_drop(server.handshakes.first);
    }
    call_drop_idle();
    server.paused_ns = os_time_ns() + PAUSE_NS;
    listeners_watch(false);
    return;
  }
}

/* ---- time ---- */

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t handshakes_tick(uint64_t now_ns) {
  const uint64_t limit = (uint64_t)HANDSHAKE_SECONDS * SECOND_NS;
  struct control_conn *next;
  for (struct control_conn *conn = server.handshakes.first; conn; conn = next) {
    next = conn->next;
    if (now_ns - conn->begin_ns > limit) control_drop(conn);
  }
  return server.handshakes.first ? now_ns + SECOND_NS / 2 : UINT64_MAX;
}

static uint64_t conn_tick(struct control_conn *conn, uint64_t now_ns) {
  const uint64_t silence = control_silence_ns(), period = beat_period_ns();
  if (conn->ending) {
    if (conn->broken || now_ns - conn->begin_ns > LINGER_NS) control_drop(conn);
    return now_ns + LINGER_NS / 8;
  }
  if (conn->broken && now_ns - conn->sent_ns > SECOND_NS) {
    conn_lose(conn, "takes no more messages");
    return now_ns;
  }
  if (conn->hurried && now_ns - conn->begin_ns > (uint64_t)HANDSHAKE_SECONDS * SECOND_NS) {
    conn_lose(conn, "said nothing after its handshake");
    return now_ns;
  }
  const uint64_t idle_ns = conn->conn_class->idle_seconds * SECOND_NS;
  if (idle_ns > 0 && now_ns > conn->received_ns + idle_ns) {
    conn_lose(conn, "was idle for too long");
    return now_ns;
  }
  if (conn->beats && silence > 0 && now_ns > conn->received_ns + silence) {
    char text[96];
    snprintf(text, sizeof text, "was silent for %llu seconds", (unsigned long long)(silence / SECOND_NS));
    conn_lose(conn, text);
    return now_ns;
  }
  if (conn->beats && conn->out_end == 0 && now_ns - conn->sent_ns >= period) {
    control_send(conn, FRAME_BEAT, NULL, 0, NULL, 0);
  }
  if (conn->beats) return now_ns + period;
  if (conn->hurried || conn->broken) return now_ns + SECOND_NS / 2;
  return idle_ns > 0 ? conn->received_ns + idle_ns : UINT64_MAX;
}

/* After this process itself was stopped, the time that it slept does not count as silence of others. */
static void forgive(uint64_t now_ns) {
  const uint64_t silence = control_silence_ns();
  if (silence == 0 || server.looped_ns == 0 || now_ns - server.looped_ns < silence / 2 + beat_period_ns())
    return;
  for (struct control_conn *conn = server.conns.first; conn; conn = conn->next) conn->received_ns = now_ns;
}

static void server_tick(uint64_t now_ns) {
  uint64_t next_ns = handshakes_tick(now_ns);
  forgive(now_ns);
  server.looped_ns = now_ns;
  if (now_ns < server.tick_ns) return;
  server.tick_ns = UINT64_MAX;
  struct control_conn *next;
  for (struct control_conn *conn = server.conns.first; conn; conn = next) {
    next = conn->next;
    next_ns = earlier(next_ns, conn_tick(conn, now_ns));
    if (next && next->dead) next = server.conns.first; /* it was dropped meanwhile; start again */
  }
  next_ns = earlier(next_ns, root_tick(now_ns));
  watch_tick();
  server.tick_ns = earlier(server.tick_ns, next_ns);
}

/* ---- the thread ---- */

static void server_event(const struct poller_event *event) {
  for (uint32_t i = 0; i < server.listener_count; i++) {
    if (event->tag == &server.listeners[i]) {
      listener_move(&server.listeners[i]);
      return;
    }
  }
  struct control_conn *conn = (struct control_conn *)event->tag;
  if (conn->dead) return;
  if (conn->handshake) {
    handshake_move(conn);
    return;
  }
  if (event->writes) conn_flush(conn);
  if (event->reads) conn_read(conn);
}

static int server_timeout_ms(uint64_t now_ns) {
  uint64_t until = server.tick_ns;
  if (server.paused_ns) until = earlier(until, server.paused_ns);
  if (server.handshakes.first) until = earlier(until, now_ns + SECOND_NS / 2);
  if (server.state == SERVER_STOPPING) until = earlier(until, now_ns + SECOND_NS / 20);
  if (until == UINT64_MAX) return -1;
  return until <= now_ns ? 0 : (int)((until - now_ns) / 1000000 + 1);
}

static void free_dead(void) {
  while (server.dead.first) {
    struct control_conn *conn = server.dead.first;
    list_take(&server.dead, conn);
    conn_free(conn);
  }
}

static void end_lingering(void) {
  for (struct control_conn *conn = server.conns.first; conn; conn = conn->next) {
    if (conn->conn_class && conn->conn_class->lingers) control_end(conn);
  }
}

static bool any_ending(void) {
  for (const struct control_conn *conn = server.conns.first; conn; conn = conn->next) {
    if (conn->ending) return true;
  }
  return false;
}

static void turned_away_log(void) {
  const struct handshake_counts counted = handshake_counted();
  if (counted.strangers + counted.wrong_secret + counted.wrong_version + counted.late + counted.refused +
          server.nonsense ==
      0)
    return;
  log_info(
      LOG_BOOTSTRAP,
      "connections refused so far: %llu unauthenticated, %llu without the secret, %llu of another version, "
      "%llu too slow in the handshake, %llu with an unknown key, %llu that violated the protocol",
      (unsigned long long)counted.strangers, (unsigned long long)counted.wrong_secret,
      (unsigned long long)counted.wrong_version, (unsigned long long)counted.late,
      (unsigned long long)counted.refused, (unsigned long long)server.nonsense);
}

static void server_clear(void) {
  turned_away_log();
  root_stop();
  while (server.conns.first) control_drop(server.conns.first);
  while (server.handshakes.first) control_drop(server.handshakes.first);
  free_dead();
  for (uint32_t i = 0; i < server.listener_count; i++) sock_close(server.listeners[i].fd);
  server.listener_count = 0;
  poller_close(&server.poller);
}

static void *server_body(void *argument) {
  struct poller_event events[128];
  uint64_t stop_ns = 0;
  (void)argument;
  control_lock();
  server.thread_id = os_tid();
  for (;;) {
    const uint64_t now_ns = os_time_ns();
    if (server.state == SERVER_STOPPING) {
      if (stop_ns == 0) {
        stop_ns = now_ns + LINGER_NS;
        end_lingering();
      }
      if (now_ns >= stop_ns || !any_ending()) break;
    }
    const int timeout_ms = server_timeout_ms(now_ns);
    control_unlock();
    const uint32_t count = poller_wait(&server.poller, timeout_ms, events, 128);
    control_lock();
    for (uint32_t i = 0; i < count; i++) server_event(&events[i]);
    if (server.paused_ns && os_time_ns() >= server.paused_ns) {
      server.paused_ns = 0;
      listeners_watch(true);
    }
    server_tick(os_time_ns());
    free_dead();
  }
  server_clear();
  control_unlock();
  return NULL;
}

/* ---- its life ---- */

static ncclResult_t listener_add(const struct sock_address *at) {
  struct listener *listener = &server.listeners[server.listener_count];
  if (server.listener_count == LISTENERS_MOST) {
    return log_fail(ncclSystemError, "NCCL_COMM_ID: this process listens at %u addresses already",
                    LISTENERS_MOST);
  }
  TRY(sock_listen(at, &listener->fd, &listener->address));
  if (!poller_add(&server.poller, listener->fd, listener)) {
    sock_close(listener->fd);
    return log_no_memory("watching a listening socket");
  }
  server.listener_count++;
  return ncclSuccess;
}

struct sock_address control_local(const struct os_process *process) {
  struct sock_address address = {SOCK_LOCAL, 0, 0, {0}};
  const uint32_t words[] = {process->realm, (uint32_t)process->number};
  memcpy(address.bytes, words, sizeof words);
  memcpy(address.bytes + sizeof words, &process->born, sizeof process->born);
  return address;
}

/* Without it `tutti status` reads the processes' files, and asks none. */
static void local_listen(void) {
  struct os_process process;
  os_process_self(&process);
  const struct sock_address at = control_local(&process);
  if (listener_add(&at) != ncclSuccess)
    log_info(LOG_BOOTSTRAP, "`tutti status` cannot ask this process: %s", log_own_error());
}

static ncclResult_t server_open(void) {
  struct sock_interface found[SOCK_INTERFACES_MAX];
  struct sock_address near;
  uint32_t count = SOCK_INTERFACES_MAX;
  const char *text = param_text(PARAM_COMM_ID);
  const bool guided = *text && sock_address_parse(text, "NCCL_COMM_ID", &near) == ncclSuccess;
  TRY(handshake_check());
  TRY(sock_interfaces_find(guided ? &near : NULL, found, &count));
  if (count == 0) {
    return log_fail(ncclSystemError,
                    "no network interface is up, not even the loopback: processes cannot "
                    "find each other; bring one up (ip link set lo up)");
  }
  TRY(poller_open(&server.poller));
  const ncclResult_t result = listener_add(&found[0].address);
  if (result != ncclSuccess) {
    poller_close(&server.poller);
    return result;
  }
  local_listen();
  char at[SOCK_TEXT_BYTES];
  log_info(LOG_BOOTSTRAP, "control server at %s (%s)", sock_address_text(&server.listeners[0].address, at),
           found[0].name);
  return ncclSuccess;
}

static void fork_before(void) { control_lock(); }
static void fork_parent(void) { control_unlock(); }

/* The child has none of the parent's threads; it must not keep the parent's connections open. */
static void fork_child(void) {
  os_mutex_init(&server.mutex);
  os_cond_init(&server.changed);
  for (struct control_conn *conn = server.conns.first; conn; conn = conn->next) sock_close(conn->fd);
  for (struct control_conn *conn = server.handshakes.first; conn; conn = conn->next) sock_close(conn->fd);
  for (uint32_t i = 0; i < server.listener_count; i++) sock_close(server.listeners[i].fd);
  if (server.state != SERVER_STOPPED) poller_close(&server.poller);
  call_forget();
  root_forward_forget();
  root_forget();
  gather_forget();
  watch_forget();
  memset(&server.handshakes, 0, sizeof server.handshakes);
  memset(&server.conns, 0, sizeof server.conns);
  memset(&server.dead, 0, sizeof server.dead);
  server.listener_count = server.users = 0;
  server.process = server.paused_ns = 0;
  server.state = SERVER_STOPPED;
}

static ncclResult_t server_start(void) {
  if (!server.prepared) {
    os_at_fork(fork_before, fork_parent, fork_child);
    os_cond_init(&server.changed);
    server.prepared = true;
  }
  TRY(server_open());
  server.tick_ns = UINT64_MAX;
  server.looped_ns = server.paused_ns = 0;
  server.descriptors_most = os_descriptors_most();
  server.state = SERVER_RUNNING;
  call_begin();
  if (os_thread_start(&server.thread, server_body, NULL)) {
    os_thread_note(1);
    return ncclSuccess;
  }
  server.state = SERVER_STOPPED;
  server_clear();
  return log_fail(ncclSystemError,
                  "cannot start the thread that other processes talk to; raise the limit of threads (ulimit "
                  "-u), or of memory");
}

ncclResult_t control_use(struct sock_address *address) {
  control_lock();
  while (server.state == SERVER_STOPPING) os_cond_wait(&server.changed, &server.mutex);
  const ncclResult_t result = server.state == SERVER_STOPPED ? server_start() : ncclSuccess;
  if (result == ncclSuccess) {
    server.users++;
    if (address) *address = server.listeners[0].address;
  }
  control_unlock();
  return result;
}

void control_leave(void) {
  control_lock();
  if (server.users == 0 || --server.users > 0) { /* 0: the users were a parent process's */
    control_unlock();
    return;
  }
  server.state = SERVER_STOPPING;
  poller_wake(&server.poller);
  const os_thread thread = server.thread;
  control_unlock();
  call_stop();
  root_forward_stop();
  os_thread_join(thread);
  os_thread_note(-1);
  control_lock();
  server.state = SERVER_STOPPED;
  os_cond_broadcast(&server.changed);
  control_unlock();
}

ncclResult_t control_listen(const struct sock_address *at) {
  struct sock_address any = *at;
  memset(any.bytes, 0, sizeof any.bytes);
  for (uint32_t i = 0; i < server.listener_count; i++) {
    const struct sock_address *address = &server.listeners[i].address;
    if (sock_address_equal(address, at) || sock_address_equal(address, &any)) return ncclSuccess;
  }
  return listener_add(at);
}

bool control_is_own(const struct sock_address *address) {
  for (uint32_t i = 0; i < server.listener_count; i++) {
    if (sock_address_equal(&server.listeners[i].address, address)) return true;
  }
  return false;
}
