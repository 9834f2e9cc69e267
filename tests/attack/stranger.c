/* stranger.c: attacks a process's control port as a stranger on its network would: without the secret. Each
 * attack goes on until it is killed.
 *
 *   stranger ATTACK HOST:PORT CONNECTIONS
 *
 *   idle       connects, and sends nothing
 *   half       sends all of a hello but its last byte
 *   slow       sends a hello, one byte a tenth of a second
 *   hello      sends whole hellos, of each kind, for keys that it makes up
 *   proof      guesses a secret, and answers challenges
 *   noise      sends random bytes
 *   http       speaks another protocol
 *   flood      connects and hangs up, as fast as it can
 *   huge       sends heads of frames that announce a gigabyte, in place of a proof
 *
 * A connection that the server closes is opened again. Prints "ready" once each has been opened; then, every
 * second, how many bytes the server has sent, which are refusals. Exit status 2: misuse. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>

#include "base/handshake.h"
#include "base/hash.h"
#include "base/os.h"
#include "core/bootstrap/wire.h"

enum { HELLO_BYTES = 64, SECOND_NS = 1000000000, CONNS_MOST = 20000 };

enum attack { IDLE, HALF, SLOW, HELLO, PROOF, NOISE, HTTP, FLOOD, HUGE_FRAMES, ATTACKS };
static const char *const names[ATTACKS] = {"idle",  "half", "slow",  "hello", "proof",
                                           "noise", "http", "flood", "huge"};

struct conn {
  int fd; /* -1: closed */
  uint32_t sent, opened;
  uint64_t due_ns;
  struct handshake_client client;
};

static struct stranger {
  enum attack attack;
  struct sock_address to;
  uint32_t count, opened;
  struct conn *conns;
  uint64_t received, random;
} stranger;

static uint64_t draw(void) { return stranger.random = hash_scramble(stranger.random + HASH_STEP); }

static void conn_close(struct conn *conn) {
  close(conn->fd);
  conn->fd = -1;
}

/* The secret and the name are both made up; a hello with them is well-formed. */
static void conn_open(struct conn *conn) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(stranger.to.port)};
  struct secret guess;
  memcpy(&at.sin_addr, stranger.to.bytes, 4);
  conn->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (conn->fd < 0) return;
  if (connect(conn->fd, (struct sockaddr *)&at, sizeof at) != 0 && errno != EINPROGRESS) {
    conn_close(conn);
    return;
  }
  if (!secret_draw(&guess)) exit(1);
  const enum handshake_kind kind = (enum handshake_kind)(1 + draw() % HANDSHAKE_DATA);
  handshake_client_begin(&conn->client, conn->fd, kind, draw(), &guess);
  stranger.opened += conn->opened++ == 0;
  conn->sent = 0;
  conn->due_ns = 0;
}

/* True if the bytes were taken. */
static bool bytes_send(struct conn *conn, const void *data, size_t bytes) {
  const ssize_t moved = send(conn->fd, data, bytes, MSG_NOSIGNAL);
  if (moved < 0 && errno != EAGAIN && errno != ENOTCONN && errno != EINPROGRESS) conn_close(conn);
  if (moved > 0) conn->sent += (uint32_t)moved;
  return moved == (ssize_t)bytes;
}

static void send_noise(struct conn *conn) {
  uint64_t words[16];
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) words[i] = draw();
  bytes_send(conn, words, 1 + draw() % sizeof words);
}

static void send_huge(struct conn *conn) {
  const struct frame_head head = {1u << 30, (uint16_t)(draw() % FRAME_KIND_COUNT), 0};
  if (conn->sent < HELLO_BYTES) bytes_send(conn, conn->client.hello, HELLO_BYTES);
  else bytes_send(conn, &head, sizeof head);
}

static void conn_act(struct conn *conn, uint64_t now_ns) {
  const uint8_t *hello = conn->client.hello;
  char why[256];
  switch (stranger.attack) {
    case HALF:
      if (conn->sent == 0) bytes_send(conn, hello, HELLO_BYTES - 1);
      break;
    case SLOW:
      if (now_ns < conn->due_ns || conn->sent >= HELLO_BYTES) break;
      conn->due_ns = now_ns + SECOND_NS / 10;
      bytes_send(conn, hello + conn->sent, 1);
      break;
    case HELLO:
      if (conn->sent == 0) bytes_send(conn, hello, HELLO_BYTES);
      break;
    case PROOF:
      if (handshake_client_step(&conn->client, why, sizeof why) != HANDSHAKE_MORE) conn_close(conn);
      break;
    case NOISE: send_noise(conn); break;
    case HTTP:
      if (conn->sent == 0) bytes_send(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 28);
      break;
    case FLOOD: conn_close(conn); break;
    case HUGE_FRAMES: send_huge(conn); break;
    default: break;
  }
}

static void conn_receive(struct conn *conn) {
  uint8_t bytes[4096];
  const ssize_t got = conn->fd < 0 || stranger.attack == PROOF ? -1 : recv(conn->fd, bytes, sizeof bytes, 0);
  if (got > 0) stranger.received += (uint64_t)got;
  if (got == 0 || (got < 0 && conn->fd >= 0 && errno == ECONNRESET)) conn_close(conn);
}

static _Noreturn void attack(void) {
  uint64_t reported_ns = 0;
  for (;;) {
    const uint64_t now_ns = os_time_ns();
    for (uint32_t i = 0; i < stranger.count; i++) {
      struct conn *conn = &stranger.conns[i];
      if (conn->fd < 0) conn_open(conn);
      else conn_act(conn, now_ns);
      if (conn->fd >= 0) conn_receive(conn);
    }
    if (stranger.opened == stranger.count && reported_ns == 0) puts("ready");
    if (stranger.opened == stranger.count && now_ns - reported_ns > SECOND_NS) {
      printf("received %llu bytes\n", (unsigned long long)stranger.received);
      fflush(stdout);
      reported_ns = now_ns;
    }
    os_sleep_ms(5); /* leaves processor time to the attacked, where there are few */
  }
}

int main(int argc, char **argv) {
  const struct rlimit limit = {CONNS_MOST + 100, CONNS_MOST + 100};
  uint32_t which = 0;
  while (argc == 4 && which < ATTACKS && strcmp(names[which], argv[1]) != 0) which++;
  stranger.count = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
  if (argc != 4 || which == ATTACKS || stranger.count == 0 || stranger.count > CONNS_MOST ||
      sock_address_parse(argv[2], "stranger", &stranger.to) != ncclSuccess || stranger.to.family != 4) {
    fprintf(stderr, "usage: stranger ATTACK HOST:PORT CONNECTIONS\n");
    return 2;
  }
  setrlimit(RLIMIT_NOFILE, &limit);
  stranger.attack = (enum attack)which;
  stranger.random = os_entropy();
  stranger.conns = (struct conn *)calloc(stranger.count, sizeof *stranger.conns);
  for (uint32_t i = 0; i < stranger.count && stranger.conns != NULL; i++) stranger.conns[i].fd = -1;
  if (stranger.conns != NULL) attack();
  return 1;
}
