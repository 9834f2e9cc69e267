/* test_handshake.c: handshakes between a client and a server, and all other connections: without the secret,
 * with another secret or version, incomplete, replayed or reflected. The messages' layout is known here: a
 * header of 64 bytes (magic 8, version 2, type 1, ..., random number from byte 32 on), a proof of 32 bytes,
 * an answer of a header, 96 bytes of text and a proof. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/handshake.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "skip.h"

enum {
  HEAD = 64,
  PROOF = 32,
  ANSWER = 64 + 96 + 32,
  VERSION_AT = 8,
  TYPE_AT = 10,
  WELCOME_AT = 13,
  REFUSAL_AT = 14
};
#define KEY 0x1122334455667788ull

static const struct secret of_key = {{1, 2, 3}};

/* Two keys are known. */
static bool secret_find(void *argument, enum handshake_kind kind, uint64_t key, struct secret *secret) {
  (void)argument, (void)kind;
  *secret = of_key;
  return key == KEY || key == (KEY ^ 1);
}

static void secret_set(const char *secret) {
  if (secret) setenv("TUTTI_SECRET", secret, 1);
  else unsetenv("TUTTI_SECRET");
  param_reset();
}

static int settings_clear(void **state) {
  (void)state;
  secret_set(NULL);
  return 0;
}

static struct sock_wait within_ms(uint64_t ms) {
  const struct sock_wait wait = {os_time_ns() + ms * 1000000, NULL, "the test at"};
  return wait;
}

static void assert_last_error(const char *part) {
  if (!strstr(log_last_error(), part)) fail_msg("\"%s\" has no \"%s\"", log_last_error(), part);
}

static void pair_make(int pair[2]) {
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
}

/* A client on a thread of its own: it reads the secret before it sends its first byte. */
struct client {
  int fd;
  uint64_t key;
  struct secret secret;
  struct session session;
  enum handshake_refusal refusal;
  ncclResult_t result;
  struct sock_wait wait;
  os_thread thread;
};

static void *client_body(void *argument) {
  struct client *client = (struct client *)argument;
  client->result = handshake_dial(client->fd, HANDSHAKE_LINK, client->key, &client->secret, &client->wait,
                                  &client->session, &client->refusal);
  return NULL;
}

/* Returns when the client has sent its hello with this secret; the caller may then change the setting. */
static void client_start_for(struct client *client, const char *secret, uint64_t key,
                             const struct secret *known, int fd, int other_fd) {
  uint8_t byte;
  secret_set(secret);
  client->fd = fd;
  client->key = key;
  client->secret = *known;
  client->wait = within_ms(5000);
  assert_true(os_thread_start(&client->thread, client_body, client));
  assert_true(sock_poll(other_fd, false, &client->wait));
  assert_true(recv(other_fd, &byte, 1, MSG_PEEK) == 1); /* poll alone does not synchronise for TSan */
}

static void client_start(struct client *client, const char *secret, int fd, int other_fd) {
  client_start_for(client, secret, KEY, &of_key, fd, other_fd);
}

static ncclResult_t client_end(struct client *client) {
  os_thread_join(client->thread);
  return client->result;
}

static enum handshake_state settle(struct handshake *handshake) {
  struct sock_wait wait = within_ms(5000);
  enum handshake_state state;
  while ((state = handshake_step(handshake)) == HANDSHAKE_MORE && sock_poll(handshake->fd, false, &wait)) {}
  return state;
}

/* A whole handshake in which the ends may have different secrets; returns the server's result. */
static enum handshake_state handshake_both(const char *clients, const char *servers, const char *refusal,
                                           ncclResult_t *dialed) {
  int pair[2];
  struct client client;
  struct handshake handshake;
  pair_make(pair);
  client_start(&client, clients, pair[0], pair[1]);
  secret_set(servers);
  handshake_begin(&handshake, pair[1], secret_find, NULL);
  const enum handshake_state state = settle(&handshake);
  if (state == HANDSHAKE_DONE) {
    assert_int_equal(handshake.kind, HANDSHAKE_LINK);
    assert_true(handshake.key == KEY);
    assert_int_equal(handshake_step(&handshake), HANDSHAKE_DONE);
    assert_true(handshake_answer(&handshake, refusal));
  } else {
    assert_int_equal(handshake_step(&handshake), HANDSHAKE_GONE);
  }
  *dialed = client_end(&client);
  if (*dialed == ncclSuccess) {
    assert_memory_equal(&client.session.out, &handshake.session.in, sizeof client.session.out);
    assert_memory_equal(&client.session.in, &handshake.session.out, sizeof client.session.in);
    assert_memory_not_equal(&client.session.in, &client.session.out, sizeof client.session.in);
  }
  close(pair[0]);
  close(pair[1]);
  return state;
}

static void file_write(const char *path, const char *text) {
  assert_true(os_file_write(path, text, strlen(text)));
}

/* ---- accepted clients ---- */

static void test_welcome(void **state) {
  const struct handshake_counts before = handshake_counted();
  ncclResult_t dialed;
  (void)state;
  assert_int_equal(handshake_both(NULL, NULL, NULL, &dialed), HANDSHAKE_DONE);
  assert_int_equal(dialed, ncclSuccess);
  assert_false(handshake_secret());
  assert_int_equal(handshake_both("a secret", "a secret", NULL, &dialed), HANDSHAKE_DONE);
  assert_int_equal(dialed, ncclSuccess);
  assert_true(handshake_secret());
  const struct handshake_counts after = handshake_counted();
  assert_memory_equal(&before, &after, sizeof after);
}

static void test_welcome_by_file(void **state) {
  char path[] = "/tmp/tutti_handshake_XXXXXX", setting[64], empty[80], missing[80];
  ncclResult_t dialed;
  (void)state;
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  file_write(path, "a secret\r\n");
  snprintf(setting, sizeof setting, "@%s", path);
  assert_int_equal(handshake_both(setting, "a secret", NULL, &dialed), HANDSHAKE_DONE);
  assert_int_equal(dialed, ncclSuccess);
  assert_int_equal(handshake_check(), ncclSuccess);
  file_write(path, "\n");
  snprintf(empty, sizeof empty, "@/tmp/./%s", path + 5); /* another spelling: the file is read again */
  secret_set(empty);
  assert_int_equal(handshake_check(), ncclInvalidUsage);
  assert_last_error("is empty");
  assert_int_equal(handshake_dial(-1, HANDSHAKE_LINK, KEY, &of_key, NULL, NULL, NULL), ncclInvalidUsage);
  unlink(path);
  snprintf(missing, sizeof missing, "@/tmp/././%s", path + 5);
  secret_set(missing);
  assert_int_equal(handshake_check(), ncclInvalidUsage);
  assert_last_error(path + 5);
  assert_last_error("TUTTI_SECRET");
}

static void over_tcp(struct sock_address loopback) {
  struct sock_address at, from;
  struct sock_wait wait = within_ms(5000);
  struct client client;
  struct handshake handshake;
  int listener, dialed, accepted;
  if (sock_listen(&loopback, &listener, &at) != ncclSuccess) SKIP("no IPv6 here");
  assert_int_equal(sock_connect(&at, &wait, &dialed), ncclSuccess);
  assert_true(sock_poll(listener, false, &wait));
  accepted = sock_accept(listener, &from);
  client_start(&client, "a secret", dialed, accepted);
  handshake_begin(&handshake, accepted, secret_find, NULL);
  assert_int_equal(settle(&handshake), HANDSHAKE_DONE);
  assert_true(handshake_answer(&handshake, NULL));
  assert_int_equal(client_end(&client), ncclSuccess);
  sock_close(dialed);
  sock_close(accepted);
  sock_close(listener);
}

static void test_welcome_over_ipv4(void **state) {
  (void)state;
  over_tcp((struct sock_address){4, 0, 0, {127, 0, 0, 1}});
}

static void test_welcome_over_ipv6(void **state) {
  (void)state;
  over_tcp((struct sock_address){6, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}});
}

/* ---- clients with another secret, or none ---- */

static void wrong_secret(const char *clients, const char *servers, const char *sentence) {
  const struct handshake_counts before = handshake_counted();
  ncclResult_t dialed;
  assert_int_equal(handshake_both(clients, servers, NULL, &dialed), HANDSHAKE_GONE);
  assert_int_equal(dialed, ncclRemoteError);
  assert_last_error("the test at");
  assert_last_error(sentence);
  assert_true(handshake_counted().wrong_secret == before.wrong_secret + 1);
  assert_true(handshake_counted().strangers == before.strangers);
}

static void test_wrong_secret(void **state) {
  (void)state;
  wrong_secret("a secret", "a secreT", "the secret there is another one");
  wrong_secret(NULL, "a secret", "set at the server and not at the client");
  wrong_secret("a secret", NULL, "set at the client and not at the server");
}

/* A client that guesses: it knows the name of the key and not its secret, or neither. */
static void guess(uint64_t key, enum handshake_refusal refusal, const char *sentence) {
  static const struct secret guessed = {{1, 2, 4}};
  int pair[2];
  struct client client;
  struct handshake handshake;
  pair_make(pair);
  client_start_for(&client, NULL, key, &guessed, pair[0], pair[1]);
  handshake_begin(&handshake, pair[1], secret_find, NULL);
  assert_int_equal(settle(&handshake), HANDSHAKE_GONE);
  assert_int_equal(client_end(&client), ncclRemoteError);
  assert_int_equal(client.refusal, refusal);
  assert_last_error(sentence);
  close(pair[0]);
  close(pair[1]);
}

static void test_guesses(void **state) {
  (void)state;
  guess(KEY, REFUSAL_PROOF, "the secret there is another one");
  guess(KEY + 2, REFUSAL_KEY, "no communicator is being made there");
}

static void test_refused(void **state) {
  const struct handshake_counts before = handshake_counted();
  ncclResult_t dialed;
  (void)state;
  assert_int_equal(handshake_both(NULL, NULL, "no such communicator", &dialed), HANDSHAKE_DONE);
  assert_int_equal(dialed, ncclRemoteError);
  assert_last_error("refused: no such communicator");
  assert_int_equal(handshake_both(NULL, NULL, "no\nsuch\x1b[2J communicator", &dialed), HANDSHAKE_DONE);
  assert_last_error("refused: no?such?[2J communicator"); /* no lines or commands for the reader's terminal */
  char longest[300];
  memset(longest, 'x', sizeof longest - 1);
  longest[sizeof longest - 1] = '\0';
  assert_int_equal(handshake_both("s", "s", longest, &dialed), HANDSHAKE_DONE);
  assert_int_equal(dialed, ncclRemoteError);
  assert_true(handshake_counted().refused == before.refused + 3);
}

/* ---- malformed connections ---- */

/* The server's result for these bytes and, if requested, a hang-up after them. */
static enum handshake_state after_bytes(const void *bytes, size_t count, bool hangs_up, uint64_t age_ns) {
  int pair[2];
  struct handshake handshake;
  pair_make(pair);
  assert_int_equal(write(pair[0], bytes, count), (ssize_t)count);
  if (hangs_up) close(pair[0]);
  handshake_begin(&handshake, pair[1], secret_find, NULL);
  handshake.begin_ns -= age_ns;
  const enum handshake_state state = handshake_step(&handshake);
  if (!hangs_up) close(pair[0]);
  close(pair[1]);
  return state;
}

/* The first message of a client with this secret. */
static void hello_take(const char *secret, uint8_t hello[HEAD]) {
  int pair[2];
  struct client client;
  struct sock_wait wait = within_ms(5000);
  pair_make(pair);
  client_start(&client, secret, pair[0], pair[1]);
  assert_int_equal(sock_receive(pair[1], hello, HEAD, &wait), ncclSuccess);
  close(pair[1]);
  assert_int_equal(client_end(&client), ncclRemoteError);
  close(pair[0]);
}

static void test_strangers(void **state) {
  const struct handshake_counts before = handshake_counted();
  uint8_t hello[HEAD], odd[HEAD];
  (void)state;
  hello_take(NULL, hello);
  assert_int_equal(after_bytes("GET / HTTP/1.1\r\n\r\n", 18, false, 0), HANDSHAKE_GONE);
  assert_int_equal(after_bytes("\377", 1, false, 0), HANDSHAKE_GONE); /* one byte is enough to refuse */
  assert_int_equal(after_bytes(hello, 0, true, 0), HANDSHAKE_GONE);
  assert_int_equal(after_bytes(hello, HEAD - 1, true, 0), HANDSHAKE_GONE);
  for (uint8_t kind = 0; kind < 255; kind = kind == 0 ? 5 : 255) {
    memcpy(odd, hello, HEAD);
    odd[TYPE_AT + 1] = kind;
    assert_int_equal(after_bytes(odd, HEAD, false, 0), HANDSHAKE_GONE);
  }
  memcpy(odd, hello, HEAD);
  odd[TYPE_AT] = 3;
  assert_int_equal(after_bytes(odd, HEAD, false, 0), HANDSHAKE_GONE);
  assert_true(handshake_counted().strangers == before.strangers + 7);
  assert_int_equal(after_bytes(hello, HEAD, false, 0), HANDSHAKE_MORE); /* unchanged, it is challenged */
}

static void test_late(void **state) {
  const struct handshake_counts before = handshake_counted();
  uint8_t hello[HEAD];
  (void)state;
  hello_take(NULL, hello);
  assert_int_equal(after_bytes(hello, 0, false, 0), HANDSHAKE_MORE);
  assert_int_equal(after_bytes(hello, HEAD / 2, false, 0), HANDSHAKE_MORE);
  assert_int_equal(after_bytes(hello, 0, false, HANDSHAKE_SECONDS * 1000000000ull), HANDSHAKE_GONE);
  assert_int_equal(after_bytes(hello, HEAD / 2, false, HANDSHAKE_SECONDS * 1000000000ull), HANDSHAKE_GONE);
  assert_true(handshake_counted().late == before.late + 2);
}

/* Bytes after the handshake stay unread until the connection has an owner. */
static void test_no_byte_past_a_handshake(void **state) {
  uint8_t more[1000], got[1001];
  int pair[2];
  struct client client;
  struct handshake handshake;
  (void)state;
  memset(more, 5, sizeof more);
  pair_make(pair);
  client_start(&client, NULL, pair[0], pair[1]);
  handshake_begin(&handshake, pair[1], secret_find, NULL);
  assert_int_equal(settle(&handshake), HANDSHAKE_DONE);
  assert_int_equal(write(pair[0], more, sizeof more), (ssize_t)sizeof more);
  assert_int_equal(handshake_step(&handshake), HANDSHAKE_DONE);
  assert_int_equal(sock_receive_some(pair[1], got, sizeof got), (ptrdiff_t)sizeof more);
  shutdown(pair[0], SHUT_RDWR);
  assert_false(handshake_answer(&handshake, NULL)); /* the client has disconnected */
  assert_int_equal(client_end(&client), ncclRemoteError);
  close(pair[0]);
  close(pair[1]);
}

static void test_wrong_version(void **state) {
  const struct handshake_counts before = handshake_counted();
  uint8_t hello[HEAD], answer[ANSWER];
  struct sock_wait wait = within_ms(5000);
  struct handshake handshake;
  int pair[2];
  (void)state;
  hello_take(NULL, hello);
  hello[VERSION_AT] ^= 0x40;
  pair_make(pair);
  assert_int_equal(write(pair[0], hello, HEAD), HEAD);
  handshake_begin(&handshake, pair[1], secret_find, NULL);
  assert_int_equal(handshake_step(&handshake), HANDSHAKE_GONE);
  assert_int_equal(sock_receive(pair[0], answer, ANSWER, &wait), ncclSuccess);
  assert_int_equal(answer[REFUSAL_AT], REFUSAL_VERSION);
  assert_true(handshake_counted().wrong_version == before.wrong_version + 1);
  close(pair[0]);
  close(pair[1]);
}

/* ---- replayed and modified messages ---- */

/* Carries bytes from one socket to another, one at a time, and records them. */
static void carry(int from, int to, uint8_t *bytes, size_t count, struct handshake *handshake) {
  struct sock_wait wait = within_ms(5000);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(sock_receive(from, bytes + i, 1, &wait), ncclSuccess);
    assert_int_equal(sock_send(to, bytes + i, 1, &wait), ncclSuccess);
    if (handshake) assert_int_not_equal(handshake_step(handshake), HANDSHAKE_GONE);
  }
}

/* Both ends' messages in a valid handshake with the secret, as recorded by somebody in between. */
struct record {
  uint8_t hello[HEAD], challenge[HEAD], proof[PROOF], answer[ANSWER];
};

static void record_take(struct record *record) {
  struct handshake handshake;
  struct client client;
  int left[2], right[2];
  pair_make(left);
  pair_make(right);
  client_start(&client, "a secret", left[0], left[1]);
  handshake_begin(&handshake, right[1], secret_find, NULL);
  carry(left[1], right[0], record->hello, HEAD, &handshake);
  carry(right[0], left[1], record->challenge, HEAD, NULL);
  carry(left[1], right[0], record->proof, PROOF, &handshake);
  assert_int_equal(handshake_step(&handshake), HANDSHAKE_DONE); /* byte by byte works as well as at once */
  assert_true(handshake_answer(&handshake, NULL));
  carry(right[0], left[1], record->answer, ANSWER, NULL);
  assert_int_equal(client_end(&client), ncclSuccess);
  const int all[] = {left[0], left[1], right[0], right[1]};
  for (int i = 0; i < 4; i++) close(all[i]);
}

static void test_replay(void **state) {
  const struct handshake_counts before = handshake_counted();
  struct record record;
  uint8_t challenge[HEAD];
  struct sock_wait wait = within_ms(5000);
  struct handshake handshake;
  int pair[2];
  (void)state;
  record_take(&record);
  pair_make(pair);
  handshake_begin(&handshake, pair[1], secret_find, NULL);
  assert_int_equal(write(pair[0], record.hello, HEAD), HEAD);
  assert_int_equal(handshake_step(&handshake), HANDSHAKE_MORE);
  assert_int_equal(sock_receive(pair[0], challenge, HEAD, &wait), ncclSuccess);
  assert_int_equal(write(pair[0], record.proof, PROOF), PROOF);
  assert_int_equal(handshake_step(&handshake), HANDSHAKE_GONE);
  assert_true(handshake_counted().wrong_secret == before.wrong_secret + 1);
  close(pair[0]);
  close(pair[1]);
}

/* The possible forgeries of a server without the secret: a welcome without a challenge, the client's proof
 * reflected, the server's part of an old handshake. */
enum impostor_manner { NO_CHALLENGE, REFLECTION, OLD_PART };

static void impostor(enum impostor_manner manner, const struct record *record) {
  uint8_t hello[HEAD], challenge[HEAD], proof[PROOF], answer[ANSWER];
  struct sock_wait wait = within_ms(5000);
  struct client client;
  int pair[2];
  pair_make(pair);
  client_start(&client, "a secret", pair[0], pair[1]);
  assert_int_equal(sock_receive(pair[1], hello, HEAD, &wait), ncclSuccess);
  memcpy(challenge, hello, HEAD); /* with the client's own random number */
  challenge[TYPE_AT] = 2;
  memset(answer, 0, sizeof answer);
  memcpy(answer, hello, HEAD);
  answer[TYPE_AT] = 3;
  answer[WELCOME_AT] = 1;
  if (manner == OLD_PART) memcpy(challenge, record->challenge, HEAD);
  if (manner != NO_CHALLENGE) {
    assert_int_equal(sock_send(pair[1], challenge, HEAD, &wait), ncclSuccess);
    assert_int_equal(sock_receive(pair[1], proof, PROOF, &wait), ncclSuccess);
  }
  if (manner == REFLECTION) memcpy(answer + ANSWER - PROOF, proof, PROOF);
  if (manner == OLD_PART) memcpy(answer, record->answer, ANSWER);
  assert_int_equal(sock_send(pair[1], answer, ANSWER, &wait), ncclSuccess);
  assert_int_equal(client_end(&client), ncclRemoteError);
  assert_last_error("does not know the secret");
  close(pair[0]);
  close(pair[1]);
}

static void test_impostors(void **state) {
  struct record record;
  (void)state;
  record_take(&record);
  impostor(NO_CHALLENGE, &record);
  impostor(REFLECTION, &record);
  impostor(OLD_PART, &record);
}

/* Somebody in between changes one byte of the hello; the proof then does not match. */
static void turned_hello(size_t at) {
  uint8_t bytes[HEAD];
  struct sock_wait wait = within_ms(5000);
  struct handshake handshake;
  struct client client;
  int left[2], right[2];
  pair_make(left);
  pair_make(right);
  client_start(&client, "a secret", left[0], left[1]);
  handshake_begin(&handshake, right[1], secret_find, NULL);
  assert_int_equal(sock_receive(left[1], bytes, HEAD, &wait), ncclSuccess);
  bytes[at] ^= 1;
  assert_int_equal(sock_send(right[0], bytes, HEAD, &wait), ncclSuccess);
  assert_int_equal(handshake_step(&handshake), HANDSHAKE_MORE);
  carry(right[0], left[1], bytes, HEAD, NULL);
  assert_int_equal(sock_receive(left[1], bytes, PROOF, &wait), ncclSuccess);
  assert_int_equal(sock_send(right[0], bytes, PROOF, &wait), ncclSuccess);
  assert_int_equal(handshake_step(&handshake), HANDSHAKE_GONE);
  const int all[] = {left[1], right[0], right[1]};
  for (int i = 0; i < 3; i++) close(all[i]);
  assert_int_equal(client_end(&client), ncclRemoteError);
  close(left[0]);
}

static void test_turned_hello(void **state) {
  (void)state;
  turned_hello(TYPE_AT + 1); /* another purpose */
  turned_hello(16);          /* another key */
  turned_hello(HEAD - 1);    /* another random number */
}

/* A refusal that somebody in between changes into a welcome is rejected. */
static void test_turned_answer(void **state) {
  uint8_t bytes[ANSWER];
  struct sock_wait wait = within_ms(5000);
  struct handshake handshake;
  struct client client;
  int left[2], right[2];
  (void)state;
  pair_make(left);
  pair_make(right);
  client_start(&client, "a secret", left[0], left[1]);
  handshake_begin(&handshake, right[1], secret_find, NULL);
  carry(left[1], right[0], bytes, HEAD, &handshake);
  carry(right[0], left[1], bytes, HEAD, NULL);
  carry(left[1], right[0], bytes, PROOF, &handshake);
  assert_int_equal(settle(&handshake), HANDSHAKE_DONE);
  assert_true(handshake_answer(&handshake, "no"));
  assert_int_equal(sock_receive(right[0], bytes, ANSWER, &wait), ncclSuccess);
  bytes[WELCOME_AT] = 1;
  assert_int_equal(sock_send(left[1], bytes, ANSWER, &wait), ncclSuccess);
  assert_int_equal(client_end(&client), ncclRemoteError);
  const int all[] = {left[0], left[1], right[0], right[1]};
  for (int i = 0; i < 4; i++) close(all[i]);
}

/* ---- wrong servers ---- */

/* The client's result for these bytes and a hang-up. */
static void client_expects(const void *bytes, size_t count, const char *sentence) {
  int pair[2];
  struct client client;
  uint8_t hello[HEAD];
  struct sock_wait wait = within_ms(5000);
  pair_make(pair);
  client_start(&client, NULL, pair[0], pair[1]);
  assert_int_equal(sock_receive(pair[1], hello, HEAD, &wait), ncclSuccess);
  assert_int_equal(sock_send(pair[1], bytes, count, &wait), ncclSuccess);
  close(pair[1]);
  assert_int_equal(client_end(&client), ncclRemoteError);
  assert_last_error(sentence);
  close(pair[0]);
}

static void test_odd_servers(void **state) {
  uint8_t answer[ANSWER], garbage[200];
  (void)state;
  memset(garbage, 'H', sizeof garbage);
  client_expects(garbage, 0, "closed the connection");
  client_expects(garbage, 10, "closed the connection");
  client_expects(garbage, sizeof garbage, "something else than this library");
  memset(answer, 0, sizeof answer);
  hello_take(NULL, answer);
  client_expects(answer, ANSWER, "does not keep to the handshake"); /* another client */
  answer[TYPE_AT] = 3;
  client_expects(answer, ANSWER, "no reason given");
  client_expects(answer, ANSWER - 1, "closed the connection");
  memset(answer + HEAD, 'x', 96); /* a stranger's words */
  for (uint8_t refusal = 0; refusal < 255; refusal = refusal < REFUSAL_COUNT ? refusal + 1 : 255) {
    answer[REFUSAL_AT] = refusal;
    client_expects(answer, ANSWER, "");
    if (strstr(log_last_error(), "xxx")) fail_msg("refusal %u: \"%s\"", refusal, log_last_error());
  }
  answer[TYPE_AT] = 2;
  answer[VERSION_AT] ^= 1;
  client_expects(answer, ANSWER, "it speaks another version of the protocol");
}

static void test_client_gives_up(void **state) {
  int pair[2];
  uint32_t cancel = 1;
  struct sock_wait wait = within_ms(30);
  (void)state;
  pair_make(pair);
  assert_int_equal(handshake_dial(pair[0], HANDSHAKE_CALL, 1, &of_key, &wait, NULL, NULL), ncclRemoteError);
  assert_last_error("within the deadline");
  wait.cancel = &cancel;
  assert_int_equal(handshake_dial(pair[0], HANDSHAKE_CALL, 1, &of_key, &wait, NULL, NULL), ncclInvalidUsage);
  close(pair[0]);
  close(pair[1]);
}

static void test_log_hides_the_secret(void **state) {
  char path[] = "/tmp/tutti_handshake_XXXXXX";
  (void)state;
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_FILE", path, 1);
  log_reset();
  secret_set("hunter2hunter2");
  assert_int_equal(handshake_check(), ncclSuccess);
  char *text = os_file_read(path, NULL);
  assert_non_null(text);
  assert_non_null(strstr(text, "TUTTI_SECRET set by environment"));
  assert_null(strstr(text, "hunter2"));
  os_free(text);
  unlink(path);
  unsetenv("NCCL_DEBUG");
  unsetenv("NCCL_DEBUG_FILE");
  log_reset();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, settings_clear, settings_clear)

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_welcome),
                                     TEST(test_welcome_by_file),
                                     TEST(test_welcome_over_ipv4),
                                     TEST(test_welcome_over_ipv6),
                                     TEST(test_wrong_secret),
                                     TEST(test_guesses),
                                     TEST(test_refused),
                                     TEST(test_strangers),
                                     TEST(test_late),
                                     TEST(test_no_byte_past_a_handshake),
                                     TEST(test_wrong_version),
                                     TEST(test_replay),
                                     TEST(test_impostors),
                                     TEST(test_turned_hello),
                                     TEST(test_turned_answer),
                                     TEST(test_odd_servers),
                                     TEST(test_client_gives_up),
                                     TEST(test_log_hides_the_secret)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
