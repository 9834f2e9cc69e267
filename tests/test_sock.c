/* test_sock.c: lib/base/sock.h over loopback: addresses as text, streams with deadlines, messages about
 * errors of the other end and of this host, and the choice of interfaces. These are created in a network
 * namespace of a child, if that is allowed. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/sock.h"
#include "skip.h"

#define SECOND_NS 1000000000ull
static const struct sock_address loopback4 = {4, 0, 0, {127, 0, 0, 1}};
static const struct sock_address loopback6 = {6, 0, 0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

static struct sock_wait within_ms(uint64_t ms) {
  const struct sock_wait wait = {os_time_ns() + ms * 1000000, NULL, "the test at"};
  return wait;
}

static void setting(const char *name, const char *value) {
  if (value) setenv(name, value, 1);
  else unsetenv(name);
  param_reset();
}

static int settings_clear(void **state) {
  static const char *const names[] = {"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_RETRY_CNT",
                                      "NCCL_SOCKET_RETRY_SLEEP_MSEC", "TUTTI_PEER_TIMEOUT_SECONDS"};
  (void)state;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) setting(names[i], NULL);
  return 0;
}

static void assert_last_error(const char *part) {
  if (!strstr(log_last_error(), part)) fail_msg("\"%s\" has no \"%s\"", log_last_error(), part);
}

/* Both ends of a connection over loopback. */
struct pair {
  int listener, dialed, accepted;
  struct sock_address at;
};

static bool pair_open(struct pair *pair, const struct sock_address *loopback) {
  struct sock_wait wait = within_ms(5000);
  struct sock_address from;
  if (sock_listen(loopback, &pair->listener, &pair->at) != ncclSuccess) return false;
  assert_int_equal(sock_accept(pair->listener, &from), -1);
  assert_int_equal(sock_connect(&pair->at, &wait, &pair->dialed), ncclSuccess);
  assert_true(sock_poll(pair->listener, false, &wait));
  pair->accepted = sock_accept(pair->listener, &from);
  assert_true(pair->accepted >= 0);
  const struct sock_address local = sock_local(pair->dialed), peer = sock_peer(pair->dialed);
  assert_true(sock_address_equal(&local, &from));
  assert_true(sock_address_equal(&peer, &pair->at));
  return true;
}

static void pair_close(struct pair *pair) {
  sock_close(pair->listener);
  sock_close(pair->dialed);
  sock_close(pair->accepted);
}

/* ---- addresses ---- */

static void test_addresses_there_and_back(void **state) {
  static const char *const texts[] = {"127.0.0.1:1", "10.20.30.40:65535", "[::1]:4711", "[fe80::1%lo]:80",
                                      "[2001:db8::ff00:42]:443"};
  char text[SOCK_TEXT_BYTES];
  struct sock_address address, other;
  (void)state;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    assert_int_equal(sock_address_parse(texts[i], "test", &address), ncclSuccess);
    assert_string_equal(sock_address_text(&address, text), texts[i]);
    other = address;
    assert_true(sock_address_equal(&address, &other));
    other.port ^= 1;
    assert_false(sock_address_equal(&address, &other));
    other = address;
    other.bytes[address.family == 4 ? 3 : 15] ^= 1;
    assert_false(sock_address_equal(&address, &other));
  }
  assert_int_equal(sock_address_parse("localhost:99", "test", &address), ncclSuccess);
  assert_int_equal(address.port, 99);
  memset(&address, 0, sizeof address);
  assert_string_equal(sock_address_text(&address, text), "no address");
}

static void test_addresses_refused(void **state) {
  static const char *const texts[] = {"",
                                      "host",
                                      "1.2.3.4",
                                      "1.2.3.4:",
                                      "1.2.3.4:0",
                                      ":80",
                                      "[::1]",
                                      "[::1]80",
                                      "[::1:80",
                                      "::1:80",
                                      "[]:80",
                                      "1.2.3.4:-1",
                                      "1.2.3.4:+80",
                                      "1.2.3.4:65536",
                                      "1.2.3.4:8x",
                                      "1.2.3.4:99999999999",
                                      "256.0.0.1.:80",
                                      "[::g]:80"};
  char longest[600];
  struct sock_address address, untouched;
  (void)state;
  memset(&untouched, 7, sizeof untouched);
  address = untouched;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    assert_int_equal(sock_address_parse(texts[i], "NCCL_COMM_ID", &address), ncclInvalidArgument);
    assert_last_error("NCCL_COMM_ID");
    assert_last_error(texts[i]);
  }
  memset(longest, 'a', sizeof longest);
  memcpy(longest + sizeof longest - 4, ":80", 4);
  assert_int_equal(sock_address_parse(longest, "NCCL_COMM_ID", &address), ncclInvalidArgument);
  assert_memory_equal(&address, &untouched, sizeof address);
}

/* ---- streams ---- */

static void stream_check(const struct sock_address *loopback) {
  static uint8_t sent[300000], got[300000];
  struct pair pair;
  struct sock_wait wait = within_ms(5000);
  if (!pair_open(&pair, loopback)) SKIP("no IPv6 here");
  for (size_t i = 0; i < sizeof sent; i++) sent[i] = (uint8_t)(i * 7 + (i >> 8));
  size_t in = 0, out = 0;
  while (in < sizeof sent) { /* one thread at both ends: as much as fits, alternately */
    ptrdiff_t moved = sock_send_some(pair.dialed, sent + out, sizeof sent - out);
    assert_true(moved >= 0);
    out += (size_t)moved;
    moved = sock_receive_some(pair.accepted, got + in, sizeof got - in);
    assert_true(moved >= 0);
    in += (size_t)moved;
  }
  assert_memory_equal(sent, got, sizeof sent);
  assert_int_equal(sock_send(pair.accepted, sent, 1000, &wait), ncclSuccess);
  assert_int_equal(sock_receive(pair.dialed, got, 1000, &wait), ncclSuccess);
  assert_int_equal(sock_receive_some(pair.dialed, got, 1), 0);
  assert_int_equal(sock_send(pair.dialed, NULL, 0, NULL), ncclSuccess);
  assert_int_equal(sock_receive(pair.dialed, NULL, 0, NULL), ncclSuccess);
  pair_close(&pair);
}

static void test_stream_ipv4(void **state) {
  (void)state;
  stream_check(&loopback4);
}

static void test_stream_ipv6(void **state) {
  (void)state;
  stream_check(&loopback6);
}

static int option_of(int fd, int level, int name) {
  int value = -1;
  socklen_t bytes = sizeof value;
  assert_int_equal(getsockopt(fd, level, name, &value, &bytes), 0);
  return value;
}

static void test_options(void **state) {
  struct pair pair;
  (void)state;
  setting("TUTTI_PEER_TIMEOUT_SECONDS", "8");
  assert_true(pair_open(&pair, &loopback4));
  const int both[] = {pair.dialed, pair.accepted};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(option_of(both[i], IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(option_of(both[i], SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option_of(both[i], IPPROTO_TCP, TCP_USER_TIMEOUT), 8000);
    assert_int_equal(option_of(both[i], IPPROTO_TCP, TCP_KEEPIDLE), 4);
    assert_true(fcntl(both[i], F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(both[i], F_GETFL) & O_NONBLOCK);
  }
  assert_true(fcntl(pair.listener, F_GETFD) & FD_CLOEXEC);
  pair_close(&pair);
  setting("TUTTI_PEER_TIMEOUT_SECONDS", "0");
  assert_true(pair_open(&pair, &loopback4));
  assert_int_equal(option_of(pair.dialed, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
  assert_int_equal(option_of(pair.dialed, SOL_SOCKET, SO_KEEPALIVE), 0);
  pair_close(&pair);
}

/* ---- errors of the other end ---- */

static void test_other_end_closes(void **state) {
  struct pair pair;
  struct sock_wait wait = within_ms(5000);
  static uint8_t bytes[64];
  (void)state;
  assert_true(pair_open(&pair, &loopback4));
  assert_int_equal(sock_send(pair.accepted, bytes, 10, &wait), ncclSuccess);
  sock_close(pair.accepted);
  assert_int_equal(sock_receive(pair.dialed, bytes, sizeof bytes, &wait), ncclRemoteError);
  assert_last_error("the test at 127.0.0.1:");
  assert_last_error("closed the connection, 54 of 64 bytes not yet received");
  assert_int_equal(sock_receive_some(pair.dialed, bytes, 1), -1);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < 1000 && result == ncclSuccess; i++) /* no SIGPIPE may end this program */
    result = sock_send(pair.dialed, bytes, sizeof bytes, &wait);
  assert_int_equal(result, ncclRemoteError);
  assert_last_error("not yet sent");
  pair.accepted = -1;
  pair_close(&pair);
}

static void test_deadlines(void **state) {
  struct pair pair;
  static uint8_t bytes[1 << 20];
  (void)state;
  assert_true(pair_open(&pair, &loopback4));
  struct sock_wait wait = within_ms(30);
  assert_false(sock_poll(pair.dialed, false, &wait));
  assert_int_equal(sock_receive(pair.dialed, bytes, 8, &wait), ncclRemoteError);
  assert_last_error("within the deadline, 8 of 8 bytes not yet received");
  wait = within_ms(30);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < 64 && result == ncclSuccess; i++)
    result = sock_send(pair.dialed, bytes, sizeof bytes, &wait); /* the other end does not read */
  assert_int_equal(result, ncclRemoteError);
  assert_last_error("not yet sent");
  pair_close(&pair);
}

static int drip_to;
static uint32_t drip_stop, drip_was_stopped;

/* Byte by byte, for far longer than the reader's deadline. */
static void *drip(void *argument) {
  const uint64_t end_ns = os_time_ns() + 20 * SECOND_NS;
  (void)argument;
  while (os_time_ns() < end_ns && !drip_was_stopped) {
    sock_send_some(drip_to, "x", 1);
    os_yield();
    drip_was_stopped = __atomic_load_n(&drip_stop, __ATOMIC_ACQUIRE);
  }
  return NULL;
}

/* Bytes that keep arriving do not extend a message's deadline. */
static void test_deadline_of_a_drip(void **state) {
  struct pair pair;
  const size_t bytes = 64 << 20;
  uint8_t *message = (uint8_t *)os_pages_map(bytes);
  os_thread thread;
  (void)state;
  assert_non_null(message);
  assert_true(pair_open(&pair, &loopback4));
  drip_to = pair.accepted;
  assert_true(os_thread_start(&thread, drip, NULL));
  struct sock_wait wait = within_ms(100);
  const ncclResult_t result = sock_receive(pair.dialed, message, bytes, &wait);
  __atomic_store_n(&drip_stop, 1, __ATOMIC_RELEASE);
  os_thread_join(thread);
  assert_int_equal(result, ncclRemoteError);
  assert_last_error("within the deadline");
  assert_int_equal(drip_was_stopped, 1);
  os_pages_unmap(message, bytes);
  pair_close(&pair);
}

static uint32_t cancel;

static void *cancel_soon(void *argument) {
  (void)argument;
  os_sleep_ms(30);
  __atomic_store_n(&cancel, 1, __ATOMIC_RELEASE);
  return NULL;
}

static void test_called_off(void **state) {
  struct pair pair;
  struct sock_wait wait = {0, &cancel, "the test at"};
  struct sock_address nobody;
  os_thread thread;
  uint8_t byte;
  int fd = -5;
  (void)state;
  assert_true(pair_open(&pair, &loopback4));
  cancel = 0;
  assert_true(os_thread_start(&thread, cancel_soon, NULL));
  assert_int_equal(sock_receive(pair.dialed, &byte, 1, &wait), ncclInvalidUsage);
  assert_last_error("called off");
  os_thread_join(thread);
  assert_int_equal(sock_listen(&loopback4, &fd, &nobody), ncclSuccess);
  sock_close(fd);
  fd = -5;
  cancel = 0; /* in the pause between two attempts */
  setting("NCCL_SOCKET_RETRY_SLEEP_MSEC", "60000");
  assert_true(os_thread_start(&thread, cancel_soon, NULL));
  assert_int_equal(sock_connect(&nobody, &wait, &fd), ncclInvalidUsage);
  os_thread_join(thread);
  assert_int_equal(fd, -5);
  pair_close(&pair);
}

/* The lowest free number: it rises when a descriptor leaks. */
static int descriptor_next(void) {
  const int fd = dup(STDOUT_FILENO);
  sock_close(fd);
  return fd;
}

static void test_nobody_listens(void **state) {
  struct sock_address nobody;
  struct sock_wait wait = within_ms(10000);
  int fd;
  (void)state;
  assert_int_equal(sock_listen(&loopback4, &fd, &nobody), ncclSuccess);
  sock_close(fd);
  const int next = descriptor_next();
  fd = -5;
  setting("NCCL_SOCKET_RETRY_CNT", "3");
  setting("NCCL_SOCKET_RETRY_SLEEP_MSEC", "1");
  assert_int_equal(sock_connect(&nobody, &wait, &fd), ncclRemoteError);
  assert_last_error("no process listens there, tried 4 times");
  setting("NCCL_SOCKET_RETRY_CNT", "1000");
  wait = within_ms(50);
  assert_int_equal(sock_connect(&nobody, &wait, &fd), ncclRemoteError);
  assert_last_error("within the deadline while connecting (Connection refused");
  assert_int_equal(fd, -5);
  assert_int_equal(descriptor_next(), next);
}

static struct sock_address late_at;
static int late_listener;

static void *listen_late(void *argument) {
  struct sock_address bound;
  (void)argument;
  os_sleep_ms(60);
  assert_int_equal(sock_listen(&late_at, &late_listener, &bound), ncclSuccess);
  return NULL;
}

static void test_listener_comes_late(void **state) {
  struct sock_wait wait = within_ms(8000);
  os_thread thread;
  int fd;
  (void)state;
  assert_int_equal(sock_listen(&loopback4, &fd, &late_at), ncclSuccess);
  sock_close(fd);
  setting("NCCL_SOCKET_RETRY_SLEEP_MSEC", "5");
  assert_true(os_thread_start(&thread, listen_late, NULL));
  assert_int_equal(sock_connect(&late_at, &wait, &fd), ncclSuccess);
  os_thread_join(thread);
  sock_close(fd);
  sock_close(late_listener);
}

/* ---- errors of this host ---- */

static void test_port_is_taken(void **state) {
  struct sock_address at, bound;
  int first, second = -5;
  (void)state;
  assert_int_equal(sock_listen(&loopback4, &first, &at), ncclSuccess);
  assert_int_equal(sock_listen(&at, &second, &bound), ncclSystemError);
  assert_last_error("somebody listens there");
  assert_int_equal(second, -5);
  sock_close(first);
  const struct sock_address elsewhere = {4, 0, 0, {192, 0, 2, 77}};
  assert_int_equal(sock_listen(&elsewhere, &second, &bound), ncclSystemError);
  assert_last_error("192.0.2.77");
}

static void test_out_of_descriptors(void **state) {
  struct pair pair;
  struct sock_wait wait = within_ms(2000);
  struct rlimit before, tight;
  struct sock_address from;
  int fd = -5, second = -5;
  (void)state;
  assert_true(pair_open(&pair, &loopback4));
  assert_int_equal(sock_connect(&pair.at, &wait, &second), ncclSuccess);
  assert_true(sock_poll(pair.listener, false, &wait));
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  tight = before;
  tight.rlim_cur = 3;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const int accepted = sock_accept(pair.listener, &from);
  const ncclResult_t connected = sock_connect(&pair.at, &wait, &fd);
  char said[512];
  snprintf(said, sizeof said, "%s", log_last_error());
  const ncclResult_t listened = sock_listen(&loopback4, &fd, &from);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(accepted, -2);
  assert_int_equal(connected, ncclSystemError);
  assert_non_null(strstr(said, "ulimit -n"));
  assert_int_equal(listened, ncclSystemError);
  assert_last_error("ulimit -n");
  assert_int_equal(fd, -5);
  const int after = sock_accept(pair.listener, &from); /* it stayed in the queue */
  assert_true(after >= 0);
  sock_close(after);
  sock_close(second);
  pair_close(&pair);
}

/* ---- interfaces ---- */

/* The chosen names in order, "" for a failure. */
static const char *chosen(const char *names, const char *family, const struct sock_address *near) {
  static char text[512];
  struct sock_interface found[SOCK_INTERFACES_MAX];
  uint32_t count = 0;
  setting("NCCL_SOCKET_IFNAME", names);
  setting("NCCL_SOCKET_FAMILY", family);
  text[0] = '\0';
  if (sock_interfaces_find(near, found, &count) != ncclSuccess) return text;
  for (uint32_t i = 0; i < count; i++) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%.15s", i > 0 ? " " : "", found[i].name);
    if (found[i].address.family == 0 || found[i].address.port != 0) return "bad address";
    if (family && found[i].address.family != (strcmp(family, "AF_INET6") == 0 ? 6 : 4)) return "bad family";
  }
  return text;
}

static void test_loopback_by_name(void **state) {
  struct sock_interface found[SOCK_INTERFACES_MAX];
  uint32_t count = 77;
  (void)state;
  assert_string_equal(chosen("=lo", "AF_INET", NULL), "lo");
  setting("NCCL_SOCKET_IFNAME", "=l");
  assert_int_equal(sock_interfaces_find(NULL, found, &count), ncclInvalidUsage);
  assert_last_error("NCCL_SOCKET_IFNAME==l matches no interface that is up");
  assert_last_error("lo");
  setting("NCCL_SOCKET_IFNAME", NULL);
  setting("NCCL_SOCKET_FAMILY", "AF_UNIX");
  assert_int_equal(sock_interfaces_find(NULL, found, &count), ncclInvalidUsage);
  assert_last_error("AF_INET6");
  assert_int_equal(count, 77);
}

static int wrong; /* in the child, whose assertions do not reach CMocka */

static void expect(const char *names, const char *family, const struct sock_address *near,
                   const char *expected) {
  const char *got = chosen(names, family, near);
  if (strcmp(got, expected) == 0) return;
  fprintf(stderr, "NCCL_SOCKET_IFNAME=%s NCCL_SOCKET_FAMILY=%s: \"%s\" instead of \"%s\"\n",
          names ? names : "", family ? family : "", got, expected);
  wrong = 1;
}

static int shell(const char *command) { return system(command) == 0 ? 0 : 1; }

/* Waits until this many interfaces are running: the kernel notices it some time after they are set up. */
#define STATES_UP(count)                                                      \
  "for try in $(seq 500); do [ $(ip -o link | grep -c 'state UP') -eq " count \
  " ] && exit 0;"                                                             \
  "sleep 0.01; done; exit 1"

/* A namespace with two veth pairs, whose ends have the names in the rules. */
static int interfaces_make(void) {
  if (unshare(CLONE_NEWNET) != 0 || shell("command -v ip >/dev/null")) return 1;
  return shell(
      "exec >/dev/null 2>&1; ip link set lo up;"
      "ip link add eth0 type veth peer name docker0; ip link add virbr0 type veth peer name eth1;"
      "n=1; for i in eth0 docker0 virbr0 eth1; do ip addr add 10.7.$n.1/24 dev $i;"
      "ip addr add fd07::$n:1/112 dev $i nodad; ip link set $i up; n=$((n + 1)); done;" STATES_UP("4"));
}

/* IPv6 addresses in the sixth word. */
static void interfaces_expect(void) {
  const struct sock_address near4 = {4, 9, 0, {10, 7, 4, 200}}, far4 = {4, 9, 0, {10, 9, 9, 9}};
  const struct sock_address near6 = {6, 9, 0, {0xfd, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 7, 7}};
  expect(NULL, NULL, NULL, "eth0 eth1");
  expect(NULL, "AF_INET6", NULL, "eth0 eth1");
  expect(NULL, NULL, &near4, "eth1");
  expect(NULL, NULL, &near6, "eth0 eth1"); /* each has an IPv4 address first */
  expect(NULL, "AF_INET6", &near6, "eth1");
  expect(NULL, NULL, &far4, "eth0 eth1");
  expect("eth", NULL, &far4, "eth0 eth1");
  expect("=eth", NULL, NULL, "");
  expect("=eth1", NULL, NULL, "eth1");
  expect("eth1,docker0,eth0", NULL, NULL, "eth1 docker0 eth0");
  expect("nosuch, docker", NULL, NULL, "docker0");
  expect("^eth0", NULL, NULL, "eth1");
  expect("^=eth", NULL, NULL, "eth0 eth1");
  expect("^eth", NULL, NULL, "docker0");
  expect("^eth,docker", NULL, NULL, "lo");
  expect("^eth,docker,lo", NULL, NULL, "virbr0");
  expect("^eth,docker,lo,virbr", NULL, NULL, "");
  expect(",,", NULL, NULL, "");
  shell("ip link set virbr0 down;" STATES_UP("2")); /* eth1 is up, without a carrier */
  expect(NULL, NULL, NULL, "eth0");
  shell("ip link set virbr0 up;" STATES_UP("4"));
  if (shell("ip link set eth0 name ib_none 2>/dev/null || { ip link set eth0 down && ip link set eth0 name "
            "ib_none && ip link set ib_none up; };" STATES_UP("4")) == 0)
    expect(NULL, NULL, &near4, "ib_none");
}

/* A link-local address, and a connection to it. */
static void link_local_expect(void) {
  struct sock_interface found[SOCK_INTERFACES_MAX];
  struct sock_address bound;
  char text[SOCK_TEXT_BYTES];
  uint32_t count = 0;
  int listener = -1, fd = -1;
  /* The kernel adds the address's own route a moment later; until then it would use neighbour discovery. */
  shell(
      "ip addr flush dev eth1 >/dev/null 2>&1; ip addr add fe80::77/64 dev eth1 nodad; for i in $(seq 100); "
      "do ip -6 route show table local | grep -q fe80::77 && break; sleep 0.1; done");
  struct sock_wait wait = within_ms(10000);
  setting("NCCL_SOCKET_IFNAME", "=eth1");
  setting("NCCL_SOCKET_FAMILY", "AF_INET6");
  if (sock_interfaces_find(NULL, found, &count) != ncclSuccess || found[0].address.scope == 0 ||
      !strstr(sock_address_text(&found[0].address, text), "[fe80::77%eth1]") ||
      sock_listen(&found[0].address, &listener, &bound) != ncclSuccess ||
      sock_connect(&bound, &wait, &fd) != ncclSuccess) {
    fprintf(stderr, "link-local: %s\n", log_last_error());
    wrong = 1;
  }
  sock_close(fd);
  fd = -1;
  bound.scope = 4711; /* as from a host with other interface numbers */
  if (sock_connect(&bound, &wait, &fd) != ncclSuccess) {
    fprintf(stderr, "link-local, another scope: %s\n", log_last_error());
    wrong = 1;
  }
  sock_close(fd);
  sock_close(listener);
}

static void test_interfaces_by_rules(void **state) {
  (void)state;
  int status = 0;
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    if (interfaces_make() != 0) _exit(77);
    interfaces_expect();
    link_local_expect();
    _exit(wrong);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) SKIP("not root, or no `ip`");
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, settings_clear, settings_clear)

int main(void) {
  const struct CMUnitTest tests[] = {TEST(test_addresses_there_and_back),
                                     TEST(test_addresses_refused),
                                     TEST(test_stream_ipv4),
                                     TEST(test_stream_ipv6),
                                     TEST(test_options),
                                     TEST(test_other_end_closes),
                                     TEST(test_deadlines),
                                     TEST(test_deadline_of_a_drip),
                                     TEST(test_called_off),
                                     TEST(test_nobody_listens),
                                     TEST(test_listener_comes_late),
                                     TEST(test_port_is_taken),
                                     TEST(test_out_of_descriptors),
                                     TEST(test_loopback_by_name),
                                     TEST(test_interfaces_by_rules)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
