/* socket.c: the socket net beside plain sockets, two processes, in turns within one run: one-way latency of a
 * ping-pong and bandwidth of a stream of messages. Both spin. Prints a line a size: medians over the rounds,
 * in microseconds and GB/s (10^9).
 *
 *   socket latency|bandwidth ROUNDS SMALLEST LARGEST [NETNS]
 *
 * NETNS: a file of /run/netns; the second process runs in that network namespace. Interfaces are chosen as
 * ever, so NCCL_SOCKET_IFNAME=lo measures loopback. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/socket/socket.h"
#include "base/os.h"
#include "base/sock.h"

enum { DEPTH = 8, ROUNDS_MAX = 101 };
static const struct net_ops *ops;
static void *sends, *receives; /* our connections, one each way */
static int plain[2];           /* plain sockets */
static int side;               /* 0: sends the stream */
static char *buffer;

static void die(const char *what) {
  fprintf(stderr, "socket: %s: %s\n", what, strerror(errno));
  exit(3);
}

static void check(ncclResult_t result, const char *what) {
  if (result != ncclSuccess) die(what);
}

static bool plain_move(int fd, bool writes, char *data, size_t bytes, size_t *moved) {
  const ssize_t got = writes ? send(fd, data + *moved, bytes - *moved, MSG_DONTWAIT | MSG_NOSIGNAL)
                             : recv(fd, data + *moved, bytes - *moved, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN)) die("plain socket");
  if (got > 0) *moved += (size_t)got;
  return *moved == bytes;
}

static void plain_one(bool writes, size_t bytes) {
  size_t moved = 0;
  while (!plain_move(plain[0], writes, buffer, bytes, &moved)) continue;
}

/* Half of the message over each of the two sockets. */
static void plain_two(bool writes, size_t bytes) {
  const size_t half = bytes / 2;
  size_t first = 0, second = 0;
  while (first < half || second < bytes - half) {
    if (first < half) plain_move(plain[0], writes, buffer, half, &first);
    if (second < bytes - half) plain_move(plain[1], writes, buffer + half, bytes - half, &second);
  }
}

static void ours_post(bool writes, size_t bytes, void **request) {
  void *data = buffer, *none = NULL;
  int tag = 0;
  *request = NULL;
  while (*request == NULL) {
    if (writes) check(ops->isend(sends, data, bytes, 0, NULL, request), "isend");
    else check(ops->irecv(receives, 1, &data, &bytes, &tag, &none, request), "irecv");
  }
}

static void ours_wait(void *request) {
  for (bool done = false; !done;) check(ops->test(request, &done, NULL), "test");
}

static void ours_one(bool writes, size_t bytes) {
  void *request;
  ours_post(writes, bytes, &request);
  ours_wait(request);
}

/* A ping-pong of `count` turns with receives posted ahead. */
static void ours_pingpong(size_t bytes, int count) {
  void *posted[DEPTH], *request;
  for (int i = 0; i < DEPTH && i < count; i++) ours_post(false, bytes, &posted[i]);
  for (int i = 0; i < count; i++) {
    if (side == 0) ours_one(true, bytes);
    ours_wait(posted[i % DEPTH]);
    if (i + DEPTH < count) ours_post(false, bytes, &posted[i % DEPTH]);
    if (side == 1) {
      ours_post(true, bytes, &request);
      ours_wait(request);
    }
  }
}

static void plain_pingpong(size_t bytes, int count) {
  for (int i = 0; i < count; i++) {
    plain_one(side == 0, bytes);
    plain_one(side != 0, bytes);
  }
}

static void ours_stream(size_t bytes, int count) {
  void *requests[DEPTH];
  for (int i = 0; i < count + DEPTH; i++) {
    if (i >= DEPTH) ours_wait(requests[i % DEPTH]);
    if (i < count) ours_post(side == 0, bytes, &requests[i % DEPTH]);
  }
}

static double now_us(void) { return (double)os_time_ns() / 1e3; }

/* Both sides at once; the time until the second side has everything. */
static double timed(int method, bool latency, size_t bytes, int count) {
  plain_one(side == 0, 1);
  plain_one(side != 0, 1);
  const double begin = now_us();
  if (method == 2 && latency) ours_pingpong(bytes, count);
  else if (method == 2) ours_stream(bytes, count);
  else if (latency) plain_pingpong(bytes, count);
  else
    for (int i = 0; i < count; i++) (method == 1 ? plain_two : plain_one)(side == 0, bytes);
  plain_one(side != 0, 1);
  return now_us() - begin;
}

static int ascending(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

static void measure(bool latency, int rounds, size_t bytes) {
  static double results[3][ROUNDS_MAX];
  const size_t enough = latency ? 8u << 20 : 256u << 20;
  int count = (int)(enough / (bytes + (latency ? 4096 : 16384)));
  if (count < (latency ? 20 : 4)) count = latency ? 20 : 4;
  if (count > 20000) count = 20000;
  for (int round = 0; round < rounds; round++) {
    for (int method = 0; method < 3; method++) {
      const double us = timed(method, latency, bytes, count);
      results[method][round] = latency ? us / count / 2 : (double)bytes * count / us / 1e3;
    }
  }
  for (int method = 0; method < 3; method++)
    qsort(results[method], (size_t)rounds, sizeof(double), ascending);
  if (side != 0) return;
  const int middle = rounds / 2;
  if (latency) {
    printf("%9zu B  plain %9.2f us  ours %9.2f us\n", bytes, results[0][middle], results[2][middle]);
  } else {
    printf("%9zu B  plain %6.3f GB/s  two plain %6.3f GB/s  ours %6.3f GB/s  of the better %5.1f %%\n", bytes,
           results[0][middle], results[1][middle], results[2][middle],
           100 * results[2][middle] /
               (results[0][middle] > results[1][middle] ? results[0][middle] : results[1][middle]));
  }
  fflush(stdout);
}

/* One connection each way: handles are exchanged over a pipe that both processes have from their common
 * parent. */
static void connect_ours(int control) {
  const struct net_peer peer = {4711, (uint32_t)side, (uint32_t)!side, "bench", NULL};
  struct net_handle handle;
  void *listener;
  uint32_t count = 0;
  ops = socket_net_ops();
  check(ops->devices(&count), "devices");
  check(ops->listen(0, &peer, &handle, &listener), "listen");
  if (write(control, &handle, sizeof handle) != sizeof handle) die("pipe");
  if (read(control, &handle, sizeof handle) != sizeof handle) die("pipe");
  check(ops->connect(0, &peer, &handle, &sends), "connect");
  /* The sender connects when it is asked to send; so an empty message is sent each way. */
  void *sent = NULL, *posted = NULL;
  while (sent == NULL || posted == NULL) {
    void *data = NULL, *none = NULL;
    size_t bytes = 0;
    int tag = 0;
    if (receives == NULL) check(ops->accept(listener, &receives), "accept");
    else if (posted == NULL) check(ops->irecv(receives, 1, &data, &bytes, &tag, &none, &posted), "irecv");
    if (sent == NULL) check(ops->isend(sends, NULL, 0, 0, NULL, &sent), "isend");
  }
  ours_wait(sent);
  ours_wait(posted);
  ops->close_listen(listener);
}

static void connect_plain(int control) {
  struct sock_interface found[SOCK_INTERFACES_MAX];
  struct sock_address at;
  uint32_t count;
  int listener;
  check(sock_interfaces_find(NULL, found, &count), "interfaces");
  if (side == 0) {
    check(sock_listen(&found[0].address, &listener, &at), "listen");
    if (write(control, &at, sizeof at) != sizeof at) die("pipe");
    for (int i = 0; i < 2; i++) {
      while ((plain[i] = sock_accept(listener, &at)) < 0) continue;
    }
    sock_close(listener);
  } else {
    if (read(control, &at, sizeof at) != sizeof at) die("pipe");
    for (int i = 0; i < 2; i++) check(sock_connect(&at, NULL, &plain[i]), "connect");
  }
}

int main(int argc, char **argv) {
  int control[2], status = 0;
  const bool latency = argc >= 5 && strcmp(argv[1], "latency") == 0;
  const int rounds = argc >= 5 ? atoi(argv[2]) : 0;
  const size_t smallest = argc >= 5 ? strtoull(argv[3], NULL, 10) : 0;
  const size_t largest = argc >= 5 ? strtoull(argv[4], NULL, 10) : 0;
  if (rounds < 1 || rounds > ROUNDS_MAX || smallest < 1 || largest < smallest) {
    fprintf(stderr, "usage: socket latency|bandwidth ROUNDS SMALLEST LARGEST [NETNS]\n");
    return 2;
  }
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, control) != 0) die("socketpair");
  const pid_t child = fork();
  if (child < 0) die("fork");
  side = child == 0;
  close(control[!side]); /* so that each process notices the other's end */
  if (side == 1 && argc > 5) {
    const int space = open(argv[5], O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) die(argv[5]);
  }
  buffer = (char *)calloc(1, largest);
  if (buffer == NULL) die("memory");
  memset(buffer, 1, largest);
  connect_plain(control[side]);
  connect_ours(control[side]);
  for (size_t bytes = smallest; bytes <= largest; bytes *= 8) measure(latency, rounds, bytes);
  ops->close_send(sends);
  ops->close_recv(receives);
  if (side == 0) waitpid(child, &status, 0);
  return status != 0;
}
