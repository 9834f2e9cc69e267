/* test_control.c: calls and answers between processes, and unauthenticated connections of all kinds, which
 * must not delay anybody. */
/* sanitizers: address thread */
/* runner: 4 s, waits */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "core/bootstrap/wire.h"
#include "joiner.h"
#include "random.h"
#include "skip.h"

#define KEY 0x5eed

/* The secret of a key in these tests, which give keys small numbers. */
static struct secret secret_of(uint64_t key) {
  struct secret secret = {{0}};
  memcpy(secret.bytes, &key, sizeof key);
  return secret;
}

static ncclResult_t serve(uint64_t key, control_handler *handler, void *argument) {
  const struct secret secret = secret_of(key);
  return control_serve(&secret, handler, argument);
}

static void unserve(uint64_t key) {
  const struct secret secret = secret_of(key);
  control_unserve(secret_name(&secret));
}

static struct sock_address address;
static uint32_t descriptors_before;
static uint64_t blocks_before;
static struct joiner processes[PROCESSES_MOST];

static int set_up(void **state) {
  (void)state;
  joiner_environment(NULL);
  descriptors_before = joiner_descriptors();
  blocks_before = os_alloc_live();
  return control_use(&address) == ncclSuccess ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  control_leave();
  if (joiner_descriptors() == descriptors_before && os_alloc_live() == blocks_before) return 0;
  print_error("left behind: %d descriptors, %d blocks\n", (int)(joiner_descriptors() - descriptors_before),
              (int)(os_alloc_live() - blocks_before));
  return -1;
}

static struct sock_wait wait_seconds(uint32_t seconds) {
  const struct sock_wait wait = {os_time_ns() + seconds * 1000000000ull, NULL, "asking"};
  return wait;
}

/* ---- calls ---- */

static uint32_t running; /* running handlers, read atomically */
static uint32_t held;    /* "~" is not answered while set; atomic */

static void hold(uint32_t on) { __atomic_store_n(&held, on, __ATOMIC_RELEASE); }

/* Answers with the reversed question; "!" fails; "~" blocks while `held` is set. */
static ncclResult_t answer(void *argument, const void *request, uint32_t bytes, void *reply,
                           uint32_t *reply_bytes) {
  const char *question = (const char *)request;
  char *text = (char *)reply;
  __atomic_add_fetch(&running, 1, __ATOMIC_ACQ_REL);
  while (bytes > 0 && question[0] == '~' && __atomic_load_n(&held, __ATOMIC_ACQUIRE)) os_sleep_ms(1);
  for (uint32_t i = 0; i < bytes; i++) text[i] = question[bytes - 1 - i];
  *reply_bytes = bytes;
  __atomic_sub_fetch(&running, 1, __ATOMIC_ACQ_REL);
  if (bytes > 0 && question[0] == '!')
    return log_fail(ncclInvalidUsage, "no such thing as %s", (char *)argument);
  return ncclSuccess;
}

static ncclResult_t ask(uint64_t key, const char *question, char *reply, uint32_t capacity,
                        uint32_t seconds) {
  const struct sock_wait wait = wait_seconds(seconds);
  const struct secret secret = secret_of(key);
  uint32_t bytes = capacity;
  const ncclResult_t result =
      control_call(&address, &secret, &wait, question, (uint32_t)strlen(question), reply, &bytes);
  if (result == ncclSuccess) reply[bytes] = '\0';
  return result;
}

static void test_call(void **state) {
  char reply[64] = "";
  (void)state;
  assert_int_equal(serve(KEY, answer, (void *)"that"), ncclSuccess);
  assert_int_equal(ask(KEY, "abc", reply, 60, 5), ncclSuccess);
  assert_string_equal(reply, "cba");
  assert_int_equal(ask(KEY, "", reply, 60, 5), ncclSuccess);
  assert_string_equal(reply, "");
  assert_int_equal(ask(KEY, "!", reply, 60, 5), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "no such thing as that"));
  assert_int_equal(ask(KEY + 1, "abc", reply, 60, 5), ncclRemoteError);
  assert_non_null(strstr(log_last_error(), "nobody answers there"));
  assert_int_equal(ask(KEY, "too long for so little space", reply, 5, 5), ncclInternalError);
  assert_int_equal(ask(KEY, "xyz", reply, 60, 5), ncclSuccess);
  assert_string_equal(reply, "zyx");
  unserve(KEY);
  assert_int_equal(ask(KEY, "abc", reply, 60, 5), ncclRemoteError);
}

static void test_call_largest(void **state) {
  static char question[CONTROL_REQUEST_MOST], reply[CONTROL_REPLY_MOST];
  const struct sock_wait wait = wait_seconds(5);
  const struct secret secret = secret_of(KEY);
  uint32_t bytes = sizeof reply;
  (void)state;
  for (size_t i = 0; i < sizeof question; i++) question[i] = (char)('a' + i * 7 % 23);
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  assert_int_equal(control_call(&address, &secret, &wait, question, sizeof question, reply, &bytes),
                   ncclSuccess);
  assert_int_equal(bytes, sizeof reply);
  for (size_t i = 0; i < sizeof reply; i++) assert_int_equal(reply[i], question[sizeof reply - 1 - i]);
  unserve(KEY);
}

static void *ask_many(void *argument) {
  char question[32], reply[64];
  for (int i = 0; i < 50; i++) {
    snprintf(question, sizeof question, "%03d%03d", *(int *)argument, i);
    if (ask(KEY, question, reply, 60, 10) != ncclSuccess) return argument;
    for (size_t k = 0; k < 6; k++) {
      if (reply[k] != question[5 - k]) return argument;
    }
  }
  *(int *)argument = -1;
  return NULL;
}

static void test_call_many(void **state) {
  os_thread threads[8];
  int numbers[8];
  (void)state;
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  for (int i = 0; i < 8; i++) {
    numbers[i] = i;
    assert_true(os_thread_start(&threads[i], ask_many, &numbers[i]));
  }
  for (int i = 0; i < 8; i++) os_thread_join(threads[i]);
  for (int i = 0; i < 8; i++) assert_int_equal(numbers[i], -1);
  unserve(KEY);
}

static uint32_t cancel;

static void *cancel_soon(void *argument) {
  os_sleep_ms(50);
  __atomic_store_n(&cancel, 1, __ATOMIC_RELEASE);
  return argument;
}

static void *release_soon(void *argument) {
  os_sleep_ms(50);
  hold(0);
  return argument;
}

/* A caller's deadline, and a cancelled call; late answers must not reach the next call. */
static void test_call_late(void **state) {
  char reply[64];
  uint32_t bytes = 60;
  os_thread thread;
  const struct secret secret = secret_of(KEY);
  (void)state;
  struct sock_wait wait = {os_time_ns() + 50000000, NULL, "asking"};
  hold(1);
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  assert_int_equal(control_call(&address, &secret, &wait, "~", 1, reply, &bytes), ncclRemoteError);
  cancel = 0;
  wait = wait_seconds(5);
  wait.cancel = &cancel;
  assert_true(os_thread_start(&thread, cancel_soon, NULL));
  assert_int_equal(control_call(&address, &secret, &wait, "~", 1, reply, &bytes), ncclInvalidUsage);
  os_thread_join(thread);
  hold(0);
  assert_int_equal(ask(KEY, "abc", reply, 60, 5), ncclSuccess);
  assert_string_equal(reply, "cba");
  hold(1);
  wait = wait_seconds(0);
  control_call(&address, &secret, &wait, "~", 1, reply, &bytes);
  assert_true(os_thread_start(&thread, release_soon, NULL));
  unserve(KEY); /* waits for a running handler */
  assert_int_equal(__atomic_load_n(&running, __ATOMIC_ACQUIRE), 0);
  os_thread_join(thread);
}

static enum control_outcome try_ask(const struct sock_address *to, uint64_t key, const char *question,
                                    uint64_t patience_ms) {
  const struct sock_wait wait = {os_time_ns() + patience_ms * 1000000, NULL, "asking"};
  const struct secret secret = secret_of(key);
  char reply[64];
  uint32_t bytes = sizeof reply;
  return control_ask(to, &secret, &wait, question, (uint32_t)strlen(question), reply, &bytes);
}

/* The reasons for no answer: no handler of this key, no process, a timeout, a failure. */
static void test_ask(void **state) {
  struct sock_address empty = address;
  int fd;
  (void)state;
  assert_int_equal(serve(KEY, answer, (void *)"that"), ncclSuccess);
  empty.port = 0;
  assert_int_equal(sock_listen(&empty, &fd, &empty), ncclSuccess);
  sock_close(fd);
  assert_int_equal(try_ask(&address, KEY, "abc", 5000), CONTROL_ANSWERED);
  assert_int_equal(try_ask(&address, KEY + 1, "abc", 5000), CONTROL_NOBODY);
  assert_int_equal(try_ask(&address, KEY, "!", 5000), CONTROL_SILENT);
  hold(1);
  assert_int_equal(try_ask(&address, KEY, "~", 50), CONTROL_SILENT);
  hold(0);
  assert_int_equal(try_ask(&empty, KEY, "abc", 5000), CONTROL_GONE);
  assert_int_equal(try_ask(&address, KEY, "abc", 5000), CONTROL_ANSWERED);
  unserve(KEY);
  assert_int_equal(try_ask(&address, KEY, "abc", 5000), CONTROL_NOBODY);
  const struct secret admitted = secret_of(KEY); /* to check in, not to ask */
  assert_int_equal(control_admit(&admitted), ncclSuccess);
  assert_int_equal(try_ask(&address, KEY, "abc", 5000), CONTROL_NOBODY);
  unserve(KEY);
}

/* A call to a process that has ended fails at once, also on a connection kept from before. */
static void test_call_gone(void **state) {
  char reply[64];
  int pipes[2];
  (void)state;
  SKIP_FORK();
  assert_int_equal(pipe(pipes), 0);
  const struct sock_address own = address;
  const pid_t child = fork();
  if (child == 0) {
    struct sock_address there;
    const bool good = control_use(&there) == ncclSuccess && serve(KEY, answer, NULL) == ncclSuccess;
    if (good && write(pipes[1], &there, sizeof there) < 0) _exit(1);
    pause();
    _exit(0);
  }
  assert_int_equal(read(pipes[0], &address, sizeof address), sizeof address);
  assert_false(sock_address_equal(&own, &address)); /* a child has its own server */
  assert_int_equal(ask(KEY, "abc", reply, 60, 5), ncclSuccess);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  assert_int_equal(ask(KEY, "abc", reply, 60, 5), ncclRemoteError);
  close(pipes[0]);
  close(pipes[1]);
}

/* ---- unauthenticated connections ---- */

static int stranger_connect(const struct sock_address *to) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(to->port)};
  memcpy(&at.sin_addr, to->bytes, 4);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) != 0 && errno != EINPROGRESS) {
    close(fd);
    return -1;
  }
  return fd;
}

/* A child that keeps `count` connections open and sends a few bytes on every second one. Killed by the
 * caller. */
static pid_t strangers_start(uint32_t count) {
  const struct rlimit limit = {20000, 20000};
  int pipes[2];
  char byte;
  assert_int_equal(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    setrlimit(RLIMIT_NOFILE, &limit);
    for (uint32_t i = 0; i < count; i++) {
      const int fd = stranger_connect(&address);
      if (fd >= 0 && i % 2 && send(fd, "GET / HT", 8, MSG_NOSIGNAL) < 0) continue;
    }
    if (write(pipes[1], "x", 1) < 0) _exit(1);
    pause();
    _exit(0);
  }
  assert_int_equal(read(pipes[0], &byte, 1), 1);
  close(pipes[0]);
  close(pipes[1]);
  return child;
}

static void meet(uint32_t count) {
  const struct bootstrap_id id = joiner_id();
  joiner_fill(processes, count, 1, &id);
  joiner_threads_start(processes, count);
  joiner_threads_join(processes, count);
  for (uint32_t i = 0; i < count; i++) {
    if (processes[i].result != ncclSuccess) fail_msg("process %u: %s", i, processes[i].reason);
  }
  bootstrap_id_over(id.nonce);
}

static void test_idle_strangers(void **state) {
  (void)state;
  SKIP_FORK();
  const pid_t child = strangers_start(10000);
  meet(6);
  assert_true(joiner_descriptors() < 4096);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

static bool closed_by_server(int fd) {
  char bytes[4096];
  const struct sock_wait wait = wait_seconds(5);
  for (;;) {
    if (!sock_poll(fd, false, &wait)) return false;
    const ptrdiff_t moved = sock_receive_some(fd, bytes, sizeof bytes);
    if (moved < 0) return true;
  }
}

/* Random bytes, seeded. */
/* As many unauthenticated connections as there are descriptors; the oldest are dropped so that others get in.
 */
static void test_shortage(void **state) {
  const uint32_t left = 60;
  struct rlimit usual, few;
  char reply[64];
  (void)state;
  SKIP_FORK();
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
  few = usual;
  few.rlim_cur = joiner_descriptors() + left;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  const pid_t child = strangers_start(4 * left);
  ncclResult_t result = ncclSystemError;
  const uint64_t end_ns = os_time_ns() + HANDSHAKE_SECONDS / 2 * 1000000000ull; /* before their timeout */
  while (os_time_ns() < end_ns && result != ncclSuccess) {
    result = ask(KEY, "abc", reply, 60, 1);
    if (result != ncclSuccess) os_sleep_ms(20);
  }
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  setrlimit(RLIMIT_NOFILE, &usual);
  assert_int_equal(result, ncclSuccess);
  unserve(KEY);
}

static void test_noise(void **state) {
  uint64_t random = 12345;
  uint8_t bytes[512];
  (void)state;
  const uint64_t before = handshake_counted().strangers;
  for (uint32_t i = 0; i < 64; i++) {
    const struct sock_wait wait = wait_seconds(5);
    int fd;
    for (size_t k = 0; k < sizeof bytes; k++) {
      bytes[k] = (uint8_t)(random_step(&random) >> 56);
    }
    assert_int_equal(sock_connect(&address, &wait, &fd), ncclSuccess);
    sock_send_some(fd, bytes, 1 + random % sizeof bytes);
    sock_close(fd);
  }
  meet(3);
  for (int waited = 0; waited < 5000 && handshake_counted().strangers == before; waited += 10)
    os_sleep_ms(10);
  assert_true(handshake_counted().strangers > before);
}

/* A client with a valid handshake sends forbidden frames: it is disconnected at once, and counted. */
static void test_nonsense(void **state) {
  static const struct {
    enum handshake_kind handshake;
    struct frame_head head;
  } cases[] = {
      {HANDSHAKE_CHECK_IN, {1u << 30, FRAME_CHECK_IN, 0}},
      {HANDSHAKE_CHECK_IN, {8, FRAME_RANKS, 0}},
      {HANDSHAKE_CHECK_IN, {8, 999, 0}},
      {HANDSHAKE_CHECK_IN, {0, FRAME_BEAT, 7}},
      {HANDSHAKE_CHECK_IN, {1u << 30, FRAME_FORWARD, 0}},
      {HANDSHAKE_CALL, {1u << 30, FRAME_CALL, 0}},
      {HANDSHAKE_CALL, {4, FRAME_BEAT, 0}},
      {HANDSHAKE_CALL, {16, FRAME_ALLGATHER, 0}},
  };
  (void)state;
  const struct bootstrap_id id = joiner_id();
  const struct secret own = secret_of(KEY);
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct sock_wait wait = wait_seconds(5);
    const uint64_t before = control_nonsense();
    const struct secret *secret = cases[i].handshake == HANDSHAKE_CALL ? &own : &id.secret;
    int fd;
    assert_int_equal(sock_connect(&address, &wait, &fd), ncclSuccess);
    assert_int_equal(handshake_dial(fd, cases[i].handshake, secret_name(secret), secret, &wait, NULL, NULL),
                     ncclSuccess);
    assert_int_equal(sock_send(fd, &cases[i].head, sizeof cases[i].head, &wait), ncclSuccess);
    if (cases[i].head.kind != FRAME_BEAT || cases[i].head.zero == 0) {
      assert_true(closed_by_server(fd));
      assert_int_equal(control_nonsense(), before + 1);
    }
    sock_close(fd);
  }
  unserve(KEY);
  bootstrap_id_over(id.nonce);
  meet(3);
}

/* A client that has proved to know a key, and then sends these bytes. */
static int bytes_connect(struct session *session) {
  const struct sock_wait wait = wait_seconds(5);
  const struct secret secret = secret_of(KEY);
  int fd;
  assert_int_equal(sock_connect(&address, &wait, &fd), ncclSuccess);
  assert_int_equal(handshake_dial(fd, HANDSHAKE_CALL, secret_name(&secret), &secret, &wait, session, NULL),
                   ncclSuccess);
  return fd;
}

/* A frame as `session` sends it. */
static size_t frame_make(struct session *session, const char *question, uint8_t out[64]) {
  const struct frame_head head = {(uint32_t)strlen(question), FRAME_CALL, 0};
  uint8_t *body = out + sizeof head;
  memcpy(out, &head, sizeof head);
  memcpy(body, question, head.bytes);
  seal_close(&session->out, &head, sizeof head, body, head.bytes, body + head.bytes);
  return sizeof head + head.bytes + SEAL_BYTES;
}

/* Somebody in between changes, repeats, swaps or inserts frames: the connection is closed, and no handler
 * sees them. */
static void test_changed_frames(void **state) {
  const struct sock_wait wait = wait_seconds(5);
  struct session session, other;
  uint8_t first[64], second[64];
  (void)state;
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  for (uint32_t way = 0; way < 5; way++) {
    const uint64_t before = control_nonsense();
    const int fd = bytes_connect(&session), other_fd = bytes_connect(&other);
    const size_t bytes = frame_make(&session, "abc", first);
    frame_make(&session, "def", second);
    if (way == 0) first[sizeof(struct frame_head)] ^= 1;
    if (way == 1) first[bytes - 1] ^= 0x80;
    if (way == 2) memcpy(first, second, sizeof first); /* the second comes first */
    if (way == 3) frame_make(&other, "abc", first);    /* of another connection */
    assert_int_equal(sock_send(fd, first, bytes, &wait), ncclSuccess);
    if (way == 4) assert_int_equal(sock_send(fd, first, bytes, &wait), ncclSuccess);
    assert_true(closed_by_server(fd));
    assert_int_equal(control_nonsense(), before + 1);
    sock_close(fd);
    sock_close(other_fd);
  }
  unserve(KEY);
}

/* The user's own questions: over the UNIX socket without a secret, over TCP only with TUTTI_SECRET. */
static void test_status(void **state) {
  const struct sock_wait wait = wait_seconds(5);
  const struct secret nothing = control_status_secret(), own = secret_of(KEY);
  struct os_process self;
  char reply[8];
  uint32_t bytes = sizeof reply;
  (void)state;
  os_process_self(&self);
  const struct sock_address local = control_local(&self);
  assert_int_equal(control_serve_status(answer, NULL), ncclSuccess);
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  assert_int_equal(control_call(&local, &nothing, &wait, "abc", 3, reply, &bytes), ncclSuccess);
  assert_memory_equal(reply, "cba", 3);
  bytes = sizeof reply;
  assert_int_equal(control_ask(&local, &own, &wait, "abc", 3, reply, &bytes), CONTROL_NOBODY);
  assert_int_equal(control_ask(&address, &nothing, &wait, "abc", 3, reply, &bytes), CONTROL_NOBODY);
  unserve(KEY);
  control_unserve_status();
  control_leave(); /* the next server reads the environment again */
  joiner_environment("TUTTI_SECRET", "one", NULL);
  assert_int_equal(control_use(&address), ncclSuccess);
  assert_int_equal(control_serve_status(answer, NULL), ncclSuccess);
  bytes = sizeof reply;
  assert_int_equal(control_call(&address, &nothing, &wait, "abc", 3, reply, &bytes), ncclSuccess);
  control_unserve_status();
}

/* A caller that asks much at once and reads no answers fills no memory, and delays nobody for long. */
static void test_greedy_caller(void **state) {
  static uint8_t frame[sizeof(struct frame_head) + CONTROL_REQUEST_MOST + SEAL_BYTES];
  const struct sock_wait wait = wait_seconds(5);
  const struct frame_head head = {CONTROL_REQUEST_MOST, FRAME_CALL, 0};
  struct session session;
  (void)state;
  assert_int_equal(serve(KEY, answer, NULL), ncclSuccess);
  hold(1);
  const int fd = bytes_connect(&session);
  ncclResult_t sent = ncclSuccess;
  for (uint32_t i = 0; i < 1000 && sent == ncclSuccess; i++) {
    memcpy(frame, &head, sizeof head);
    memset(frame + sizeof head, '~', CONTROL_REQUEST_MOST);
    seal_close(&session.out, &head, sizeof head, frame + sizeof head, CONTROL_REQUEST_MOST,
               frame + sizeof head + CONTROL_REQUEST_MOST);
    sent = sock_send(fd, frame, sizeof frame, &wait);
  }
  assert_true(os_alloc_live() < blocks_before + 200); /* of up to 64 KiB */
  hold(0);
  sock_close(fd);
  char reply[64];
  assert_int_equal(ask(KEY, "abc", reply, 60, 5), ncclSuccess);
  unserve(KEY);
}

/* Half of a check-in and then silence must not stop other ranks from connecting. */
static void test_half(void **state) {
  const struct sock_wait wait = wait_seconds(5);
  const struct frame_head head = {sizeof(struct wire_check_in), FRAME_CHECK_IN, 0};
  int fds[20];
  (void)state;
  const struct bootstrap_id id = joiner_id();
  for (int i = 0; i < 20; i++) {
    assert_int_equal(sock_connect(&address, &wait, &fds[i]), ncclSuccess);
    assert_int_equal(handshake_dial(fds[i], HANDSHAKE_CHECK_IN, id.nonce, &id.secret, &wait, NULL, NULL),
                     ncclSuccess);
    assert_int_equal(sock_send(fds[i], &head, (size_t)(i % 8) + 1, &wait), ncclSuccess);
  }
  joiner_fill(processes, 3, 1, &id);
  joiner_threads_start(processes, 3);
  joiner_threads_join(processes, 3);
  for (int i = 0; i < 3; i++) assert_int_equal(processes[i].result, ncclSuccess);
  bootstrap_id_over(id.nonce);
  for (int i = 0; i < 20; i++) sock_close(fds[i]);
}

/* Two secrets: a client with another secret is refused, and the refusal is counted. */
static void test_secret(void **state) {
  int pipes[2];
  ncclResult_t result = ncclSuccess;
  (void)state;
  SKIP_FORK();
  control_leave(); /* the next server reads the environment again */
  joiner_environment("TUTTI_SECRET", "one", "TUTTI_INIT_TIMEOUT_SECONDS", "2", NULL);
  assert_int_equal(control_use(&address), ncclSuccess);
  const uint64_t before = handshake_counted().wrong_secret;
  meet(3);
  const struct bootstrap_id id = joiner_id();
  assert_int_equal(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    joiner_environment("TUTTI_SECRET", "another", NULL);
    joiner_fill(processes, 2, 1, &id);
    joiner_run(&processes[1]);
    if (write(pipes[1], &processes[1].result, sizeof result) < 0) _exit(1);
    _exit(0);
  }
  joiner_fill(processes, 2, 1, &id);
  joiner_run(&processes[0]);
  assert_int_equal(processes[0].result, ncclRemoteError);
  assert_non_null(strstr(processes[0].reason, "missing: rank 1;"));
  assert_int_equal(read(pipes[0], &result, sizeof result), sizeof result);
  assert_int_not_equal(result, ncclSuccess);
  assert_true(handshake_counted().wrong_secret > before);
  waitpid(child, NULL, 0);
  close(pipes[0]);
  close(pipes[1]);
  bootstrap_id_over(id.nonce);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(test_call),           TEST(test_call_largest), TEST(test_call_many),     TEST(test_call_late),
      TEST(test_call_gone),      TEST(test_noise),        TEST(test_nonsense),      TEST(test_half),
      TEST(test_idle_strangers), TEST(test_shortage),     TEST(test_secret),        TEST(test_ask),
      TEST(test_changed_frames), TEST(test_status),       TEST(test_greedy_caller),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
