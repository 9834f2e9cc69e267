/* sock.c: addresses and TCP streams over Linux sockets. Promises: no call waits past its deadline, or longer
 * than SLICE_MOST_MS after a cancellation; no signal is raised; every descriptor is close-on-exec; errors
 * name the other end, the purpose, and a cure. Does not know the data on a connection, nor who should be at
 * its other end. */
#include "base/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/sock_inner.h"

#define NS_PER_MS 1000000ull
#define NS_PER_MINUTE 60000000000ull
#define SLICE_LEAST_MS 20  /* how soon a wait notices a cancellation at first, ... */
#define SLICE_MOST_MS 200  /* ... and later, so that thousands of waits use little CPU time */
#define BACKLOG_MOST 65535 /* the kernel cuts it to net.core.somaxconn */
#define HOST_BYTES 256

/* ---- addresses ---- */

/* Both address families, as the kernel takes them. */
union kernel_address {
  struct sockaddr any;
  struct sockaddr_in four;
  struct sockaddr_in6 six;
  struct sockaddr_un local;
  struct sockaddr_storage capacity;
};

void sock_address_of(const struct sockaddr *from, struct sock_address *address) {
  union kernel_address kernel;
  memset(address, 0, sizeof *address);
  memset(&kernel, 0, sizeof kernel);
  if (from->sa_family == AF_INET) {
    memcpy(&kernel.four, from, sizeof kernel.four);
    address->family = 4;
    address->port = ntohs(kernel.four.sin_port);
    memcpy(address->bytes, &kernel.four.sin_addr, 4);
  } else if (from->sa_family == AF_INET6) {
    memcpy(&kernel.six, from, sizeof kernel.six);
    address->family = 6;
    address->port = ntohs(kernel.six.sin6_port);
    address->scope = kernel.six.sin6_scope_id;
    memcpy(address->bytes, &kernel.six.sin6_addr, 16);
  }
}

/* An abstract name: 0, then "tutti-" and the bytes in hexadecimal. */
static socklen_t local_address_of(const struct sock_address *address, struct sockaddr_un *local) {
  char name[8 + 2 * sizeof address->bytes];
  int used = snprintf(name, sizeof name, "tutti-");
  for (size_t i = 0; i < sizeof address->bytes; i++)
    used += snprintf(name + used, sizeof name - (size_t)used, "%02x", address->bytes[i]);
  local->sun_family = AF_UNIX;
  memcpy(local->sun_path + 1, name, (size_t)used);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

/* The length of the kernel's address; 0 for an invalid address. */
static socklen_t kernel_address_of(const struct sock_address *address, union kernel_address *kernel) {
  memset(kernel, 0, sizeof *kernel);
  if (address->family == SOCK_LOCAL) return local_address_of(address, &kernel->local);
  if (address->family == 4) {
    kernel->four.sin_family = AF_INET;
    kernel->four.sin_port = htons(address->port);
    memcpy(&kernel->four.sin_addr, address->bytes, 4);
    return sizeof kernel->four;
  }
  if (address->family != 6) return 0;
  kernel->six.sin6_family = AF_INET6;
  kernel->six.sin6_port = htons(address->port);
  kernel->six.sin6_scope_id = address->scope;
  memcpy(&kernel->six.sin6_addr, address->bytes, 16);
  return sizeof kernel->six;
}

const char *sock_address_text(const struct sock_address *address, char out[SOCK_TEXT_BYTES]) {
  char host[INET6_ADDRSTRLEN], name[IF_NAMESIZE], scope[IF_NAMESIZE + 1] = "";
  if (address->family != 4 && address->family != 6) {
    if (address->family != SOCK_LOCAL) snprintf(out, SOCK_TEXT_BYTES, "no address");
    else if (address->port == 0) snprintf(out, SOCK_TEXT_BYTES, "on this host");
    else snprintf(out, SOCK_TEXT_BYTES, "localhost:%u", address->port);
    return out;
  }
  inet_ntop(address->family == 4 ? AF_INET : AF_INET6, address->bytes, host, sizeof host);
  if (address->family == 6 && address->scope != 0) {
    if (if_indextoname(address->scope, name)) snprintf(scope, sizeof scope, "%%%s", name);
    else snprintf(scope, sizeof scope, "%%%u", address->scope);
  }
  if (address->family == 4) snprintf(out, SOCK_TEXT_BYTES, "%s:%u", host, address->port);
  else snprintf(out, SOCK_TEXT_BYTES, "[%.39s%s]:%u", host, scope, address->port);
  return out;
}

/* Splits "host:port" or "[host]:port"; false if it is neither. An IPv6 address without brackets is refused,
 * because its port cannot be told apart. */
static bool host_port_cut(const char *text, char host[HOST_BYTES], char port[8]) {
  const bool bracketed = text[0] == '[';
  const char *begin = text + bracketed;
  const char *end = bracketed ? strchr(begin, ']') : strrchr(begin, ':');
  if (end == NULL || end == begin || (size_t)(end - begin) >= HOST_BYTES) return false;
  if (!bracketed && memchr(begin, ':', (size_t)(end - begin))) return false;
  const char *digits = end + 1 + bracketed;
  if (bracketed && end[1] != ':') return false;
  const size_t length = strspn(digits, "0123456789");
  if (length == 0 || length > 5 || digits[length] != '\0') return false;
  memcpy(host, begin, (size_t)(end - begin));
  host[end - begin] = '\0';
  memcpy(port, digits, length + 1);
  const long number = strtol(port, NULL, 10);
  return number >= 1 && number <= 65535;
}

ncclResult_t sock_address_parse(const char *text, const char *what, struct sock_address *address) {
  char host[HOST_BYTES], port[8];
  struct addrinfo hints, *list = NULL;
  memset(&hints, 0, sizeof hints);
  if (!host_port_cut(text, host, port))
    return log_fail(ncclInvalidArgument,
                    "%s: \"%.200s\" is no address; write host:port or [IPv6 address]:port, port 1 to 65535",
                    what, text);
  TRY(sock_family_wanted(&hints.ai_family));
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int failed = getaddrinfo(host, port, &hints, &list);
  if (failed != 0)
    return log_fail(ncclInvalidArgument,
                    "%s: the host of \"%.200s\" is not known: %s; give an address instead", what, text,
                    failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed));
  sock_address_of(list->ai_addr, address);
  freeaddrinfo(list);
  return ncclSuccess;
}

bool sock_text_is_literal(const char *text) {
  char host[HOST_BYTES], port[8];
  struct addrinfo hints, *list = NULL;
  memset(&hints, 0, sizeof hints);
  hints.ai_flags = AI_NUMERICHOST;
  if (!host_port_cut(text, host, port) || getaddrinfo(host, NULL, &hints, &list) != 0) return false;
  freeaddrinfo(list);
  return true;
}

bool sock_is_loopback(const struct sock_address *address) {
  static const uint8_t six[16] = {[15] = 1};
  return (address->family == 4 && address->bytes[0] == 127) ||
         (address->family == 6 && memcmp(address->bytes, six, sizeof six) == 0);
}

bool sock_text_is_loopback(const char *text) {
  char host[HOST_BYTES], port[8];
  struct in_addr four;
  if (!host_port_cut(text, host, port) && snprintf(host, sizeof host, "%s", text) >= (int)sizeof host)
    return false;
  if (strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0) return true;
  return inet_pton(AF_INET, host, &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

bool sock_address_equal(const struct sock_address *a, const struct sock_address *b) {
  const uint32_t bytes = a->family == 4 ? 4 : 16;
  return a->family == b->family && a->port == b->port && a->scope == b->scope &&
         (a->family == 0 || memcmp(a->bytes, b->bytes, bytes) == 0);
}

typedef int name_call(int fd, struct sockaddr *address, socklen_t *bytes);

static struct sock_address address_by(name_call *call, int fd) {
  union kernel_address kernel;
  struct sock_address address;
  socklen_t bytes = sizeof kernel;
  memset(&kernel, 0, sizeof kernel);
  memset(&address, 0, sizeof address);
  if (call(fd, &kernel.any, &bytes) == 0) sock_address_of(&kernel.any, &address);
  return address;
}

struct sock_address sock_local(int fd) {
  return address_by(getsockname, fd);
}

struct sock_address sock_peer(int fd) {
  return address_by(getpeername, fd);
}

/* ---- errors ---- */

const char *sock_cure(int cause) {
  switch (cause) {
    case EMFILE:
      return "; this process has all the descriptors that it may have: raise `ulimit -n`, or make fewer "
             "communicators";
    case ENFILE: return "; the host is out of descriptors: raise /proc/sys/fs/file-max";
    case ENOMEM:
    case ENOBUFS: return "; the host is out of memory for sockets: free some, or raise net.ipv4.tcp_mem";
    case EADDRNOTAVAIL:
      return "; no such address on this host, or no port is left: see `ip addr` and "
             "net.ipv4.ip_local_port_range";
    case EADDRINUSE: return "; somebody listens there: choose another port, or end that process";
    case EACCES:
    case EPERM: return "; a rule of this host forbids it: see its firewall, and ports below 1024";
    case EAFNOSUPPORT: return "; this host does not have that family: set NCCL_SOCKET_FAMILY";
    default: return "";
  }
}

/* The end of a stream has no errno; EPIPE represents it in both directions. */
static const char *gone_text(int cause) {
  return cause == EPIPE ? "the other end closed the connection" : strerror(cause);
}

static const char *what_of(const struct sock_wait *wait) {
  return wait && wait->what ? wait->what : "connection with";
}

/* ---- waiting ---- */

static bool called_off(const struct sock_wait *wait) {
  return wait && wait->cancel && __atomic_load_n(wait->cancel, __ATOMIC_ACQUIRE) != 0;
}

static bool past(const struct sock_wait *wait) {
  return wait && wait->deadline_ns != 0 && os_time_ns() >= wait->deadline_ns;
}

/* Milliseconds until the wait ends or must check for cancellation; -1: neither. */
static int slice_ms(const struct sock_wait *wait, int patience_ms) {
  int slice = wait && wait->cancel ? patience_ms : -1;
  if (wait && wait->deadline_ns != 0) {
    const uint64_t now = os_time_ns();
    const uint64_t left = wait->deadline_ns > now ? (wait->deadline_ns - now) / NS_PER_MS + 1 : 0;
    if (slice < 0 || left < (uint64_t)slice) slice = left < 60000 ? (int)left : 60000;
  }
  return slice;
}

bool sock_poll(int fd, bool writes, const struct sock_wait *wait) {
  struct pollfd waited = {fd, (short)(writes ? POLLOUT : POLLIN), 0};
  int patience_ms = SLICE_LEAST_MS;
  for (;; patience_ms = patience_ms * 2 < SLICE_MOST_MS ? patience_ms * 2 : SLICE_MOST_MS) {
    if (called_off(wait)) return false;
    const int ready = poll(&waited, 1, slice_ms(wait, patience_ms));
    if (ready > 0) return true; /* also on an error, which the next call on fd returns */
    if (ready < 0 && errno != EINTR && errno != EAGAIN) return true;
    if (past(wait)) return false;
  }
}

/* ---- making connections ---- */

static void option_set(int fd, int level, int name, int value) {
  /* Options are improvements: if an old kernel or a Unix socket lacks one, the connection still works. */
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

/* Detects a peer that vanishes within the peer timeout: by unacknowledged data, or by keepalive probes on an
 * idle connection. */
static void options_set(int fd) {
  enum { PROBES = 3 };
  const int64_t seconds = param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  option_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (seconds == 0) return;
  const int idle = (int)(seconds / 2 > 0 ? seconds / 2 : 1);
  const int between = (int)(seconds / 2 / PROBES > 0 ? seconds / 2 / PROBES : 1);
  option_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  option_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle < 32767 ? idle : 32767);
  option_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, between < 32767 ? between : 32767);
  option_set(fd, IPPROTO_TCP, TCP_KEEPCNT, PROBES);
  option_set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(seconds * 1000));
}

static int socket_make(const struct sock_address *address) {
  const int family = address->family == SOCK_LOCAL ? AF_UNIX : address->family == 4 ? AF_INET : AF_INET6;
  return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

ncclResult_t sock_listen(const struct sock_address *at, int *fd, struct sock_address *bound) {
  union kernel_address kernel;
  char text[SOCK_TEXT_BYTES];
  const socklen_t bytes = kernel_address_of(at, &kernel);
  if (bytes == 0) return log_fail(ncclInternalError, "asked to listen at no address");
  const int made = socket_make(at);
  if (made < 0)
    return log_fail(ncclSystemError, "cannot make a socket to listen at %s: %s%s",
                    sock_address_text(at, text), strerror(errno), sock_cure(errno));
  option_set(made, SOL_SOCKET, SO_REUSEADDR, 1); /* a port of the previous job may be in TIME_WAIT */
  if (bind(made, &kernel.any, bytes) != 0 || listen(made, BACKLOG_MOST) != 0) {
    const int cause = errno;
    sock_close(made);
    return log_fail(ncclSystemError, "cannot listen at %s: %s%s", sock_address_text(at, text),
                    strerror(cause), sock_cure(cause));
  }
  *bound = at->family == SOCK_LOCAL ? *at : sock_local(made);
  *fd = made;
  return ncclSuccess;
}

bool sock_peer_is_own(int fd) {
  struct ucred peer;
  struct sockaddr any;
  socklen_t bytes = sizeof peer, any_bytes = sizeof any;
  if (getsockname(fd, &any, &any_bytes) != 0 || any.sa_family != AF_UNIX) return false;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return (uint32_t)peer.uid == os_user() || peer.uid == 0;
}

/* Logs once per minute for the whole process. */
static void shortage_log(int cause) {
  static atomic_uint_fast64_t logged_ns;
  uint64_t before = atomic_load(&logged_ns);
  const uint64_t now = os_time_ns();
  if (before != 0 && now - before < NS_PER_MINUTE) return;
  if (!atomic_compare_exchange_strong(&logged_ns, &before, now)) return;
  log_warn("cannot accept a connection: %s%s", strerror(cause), sock_cure(cause));
}

int sock_accept(int listener, struct sock_address *from) {
  enum { TRIES = 64 }; /* bounds the number of queued connections that have already died */
  union kernel_address kernel;
  for (int tries = 0; tries < TRIES; tries++) {
    socklen_t bytes = sizeof kernel;
    memset(&kernel, 0, sizeof kernel);
    const int fd = accept4(listener, &kernel.any, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      options_set(fd);
      if (from) sock_address_of(&kernel.any, from);
      return fd;
    }
    const int cause = errno;
    if (cause == EAGAIN || cause == EWOULDBLOCK) return -1;
    if (cause == EMFILE || cause == ENFILE || cause == ENOMEM || cause == ENOBUFS) {
      shortage_log(cause);
      return -2;
    }
  }
  return -1;
}

/* The other end may not listen yet, or its route may not exist yet. */
static bool worth_retrying(int cause) {
  switch (cause) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case EAGAIN: return true;
    default: return false;
  }
}

/* Connecting to a local port on which nothing listens may connect the socket to itself. */
static bool talks_to_itself(int fd) {
  const struct sock_address local = sock_local(fd), peer = sock_peer(fd);
  return sock_address_equal(&local, &peer);
}

/* One attempt: returns 0 and *fd, or an errno; ECANCELED if the wait ended first. */
static int connect_once(const struct sock_address *to, const struct sock_wait *wait, int *fd) {
  union kernel_address kernel;
  const socklen_t bytes = kernel_address_of(to, &kernel);
  int cause = 0, made = socket_make(to);
  if (made < 0) return errno;
  options_set(made);
  if (connect(made, &kernel.any, bytes) != 0) cause = errno;
  if (cause == EINPROGRESS || cause == EINTR) {
    socklen_t length = sizeof cause;
    if (!sock_poll(made, true, wait)) cause = ECANCELED;
    else if (getsockopt(made, SOL_SOCKET, SO_ERROR, &cause, &length) != 0) cause = errno;
  }
  const bool any_user = to->family != SOCK_LOCAL || (to->port == 0 && os_user() == 0);
  if (cause == 0 && !any_user && !sock_peer_is_own(made)) cause = EKEYREJECTED;
  if (cause == 0 && to->family != SOCK_LOCAL && talks_to_itself(made)) cause = ECONNREFUSED;
  if (cause == 0) *fd = made;
  else sock_close(made);
  return cause;
}

bool sock_pause(uint64_t ms, const struct sock_wait *wait) {
  const uint64_t until = os_time_ns() + ms * NS_PER_MS;
  for (uint64_t now = os_time_ns(); now < until; now = os_time_ns()) {
    if (called_off(wait) || past(wait)) return false;
    uint64_t left = (until - now) / NS_PER_MS + 1;
    const int slice = slice_ms(wait, SLICE_LEAST_MS);
    if (slice >= 0 && (uint64_t)slice < left) left = (uint64_t)slice;
    os_sleep_ms((unsigned)left);
  }
  return !called_off(wait) && !past(wait);
}

ncclResult_t sock_wait_over(const struct sock_wait *wait, const char *address, const char *missing) {
  if (called_off(wait))
    return log_fail(ncclInvalidUsage, "%s %s: called off%s", what_of(wait), address, missing);
  return log_fail(ncclRemoteError, "%s %s: no answer within the deadline%s", what_of(wait), address, missing);
}

static ncclResult_t connect_failed(const struct sock_wait *wait, const char *address, int cause,
                                   int64_t tries) {
  if (cause == ECONNREFUSED)
    return log_fail(ncclRemoteError,
                    "%s %s: connection refused, no process listens there, tried %lld times: has that process "
                    "ended, or does a "
                    "firewall refuse? NCCL_SOCKET_IFNAME chooses another interface",
                    what_of(wait), address, (long long)tries);
  if (worth_retrying(cause))
    return log_fail(ncclRemoteError,
                    "%s %s: %s, tried %lld times: is that host up and in reach? NCCL_SOCKET_IFNAME chooses "
                    "another interface",
                    what_of(wait), address, strerror(cause), (long long)tries);
  if (cause == EKEYREJECTED)
    return log_fail(ncclRemoteError,
                    "%s %s: a process of another user listens there; run all ranks as one user, or choose "
                    "another port",
                    what_of(wait), address);
  return log_fail(ncclSystemError, "%s %s: cannot connect: %s%s", what_of(wait), address, strerror(cause),
                  sock_cure(cause));
}

ncclResult_t sock_connect(const struct sock_address *to, const struct sock_wait *wait, int *fd) {
  const int64_t retries = param_int(PARAM_SOCKET_RETRY_CNT);
  const int64_t sleep_ms = param_int(PARAM_SOCKET_RETRY_SLEEP_MSEC);
  struct sock_address there = *to;
  char text[SOCK_TEXT_BYTES];
  if (to->family != 4 && to->family != 6 && to->family != SOCK_LOCAL)
    return log_fail(ncclInternalError, "%s: asked to connect to no address", what_of(wait));
  there.scope = sock_scope_here(to);
  sock_address_text(&there, text);
  for (int64_t tries = 1;; tries++) {
    if (called_off(wait) || past(wait)) return sock_wait_over(wait, text, " while connecting");
    const int cause = connect_once(&there, wait, fd);
    if (cause == 0) return ncclSuccess;
    if (cause == ECANCELED) return sock_wait_over(wait, text, " while connecting");
    if (!worth_retrying(cause) || tries > retries) return connect_failed(wait, text, cause, tries);
    log_trace(LOG_BOOTSTRAP, "%s %s: %s; attempt %lld follows", what_of(wait), text, strerror(cause),
              (long long)tries + 1);
    if (!sock_pause((uint64_t)(tries * sleep_ms), wait)) {
      char why[96];
      snprintf(why, sizeof why, " while connecting (%s, tried %lld times)", strerror(cause),
               (long long)tries);
      return sock_wait_over(wait, text, why);
    }
  }
}

ncclResult_t sock_connect_once(const struct sock_address *to, const struct sock_wait *wait, int *fd) {
  struct sock_address there = *to;
  char text[SOCK_TEXT_BYTES];
  if (to->family != 4 && to->family != 6 && to->family != SOCK_LOCAL)
    return log_fail(ncclInternalError, "%s: asked to connect to no address", what_of(wait));
  there.scope = sock_scope_here(to);
  *fd = -1;
  const int cause = connect_once(&there, wait, fd);
  errno = cause;
  if (cause == 0 || cause == ECANCELED || worth_retrying(cause)) return ncclSuccess;
  return connect_failed(wait, sock_address_text(&there, text), cause, 1);
}

void sock_close(int fd) {
  if (fd >= 0) close(fd);
}

/* ---- moving bytes ---- */

ptrdiff_t sock_send_some(int fd, const void *data, size_t bytes) {
  if (bytes == 0) return 0;
  for (;;) {
    const ssize_t moved = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved >= 0) return moved;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

ptrdiff_t sock_receive_some(int fd, void *data, size_t bytes) {
  if (bytes == 0) return 0;
  for (;;) {
    const ssize_t moved = recv(fd, data, bytes, MSG_DONTWAIT);
    if (moved > 0) return moved;
    if (moved == 0) {
      errno = EPIPE;
      return -1;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

/* Reports the failure of a whole message: `missing` of `bytes` were not transferred. */
static ncclResult_t message_failed(int fd, const struct sock_wait *wait, int cause, size_t missing,
                                   size_t bytes, bool sends) {
  const struct sock_address peer = sock_peer(fd);
  char address[SOCK_TEXT_BYTES], amount[96];
  if (peer.family == 0) snprintf(address, sizeof address, "(over a connection that is gone)");
  else sock_address_text(&peer, address);
  snprintf(amount, sizeof amount, ", %zu of %zu bytes not yet %s", missing, bytes,
           sends ? "sent" : "received");
  if (cause == ECANCELED) return sock_wait_over(wait, address, amount);
  return log_fail(ncclRemoteError, "%s %s: %s%s", what_of(wait), address, gone_text(cause), amount);
}

/* Checks the deadline before each part, so that a message that arrives byte by byte cannot exceed it. */
static bool wait_on(int fd, bool writes, ptrdiff_t moved, const struct sock_wait *wait) {
  if (moved > 0) return !called_off(wait) && !past(wait);
  return sock_poll(fd, writes, wait);
}

ncclResult_t sock_send(int fd, const void *data, size_t bytes, const struct sock_wait *wait) {
  size_t done = 0;
  while (done < bytes) {
    const ptrdiff_t moved = sock_send_some(fd, (const char *)data + done, bytes - done);
    if (moved < 0) return message_failed(fd, wait, errno, bytes - done, bytes, true);
    done += (size_t)moved;
    if (done < bytes && !wait_on(fd, true, moved, wait))
      return message_failed(fd, wait, ECANCELED, bytes - done, bytes, true);
  }
  return ncclSuccess;
}

ncclResult_t sock_receive(int fd, void *data, size_t bytes, const struct sock_wait *wait) {
  size_t done = 0;
  while (done < bytes) {
    const ptrdiff_t moved = sock_receive_some(fd, (char *)data + done, bytes - done);
    if (moved < 0) return message_failed(fd, wait, errno, bytes - done, bytes, false);
    done += (size_t)moved;
    if (done < bytes && !wait_on(fd, false, moved, wait))
      return message_failed(fd, wait, ECANCELED, bytes - done, bytes, false);
  }
  return ncclSuccess;
}
