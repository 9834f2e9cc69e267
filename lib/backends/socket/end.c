/* end.c: the common part of senders and receivers: error messages, requests, socket options. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/socket/socket.h"
#include "base/log.h"
#include "base/param.h"

#define ACKS_PERIOD 16

void end_open(struct end *end, enum end_kind kind, const struct net_peer *peer,
              const struct sock_interface *interface) {
  end->kind = kind;
  end->rank = peer->rank;
  end->peer = peer->peer;
  end->interface = *interface;
  end->stream = end->credit = -1;
  snprintf(end->comm_name, sizeof end->comm_name, "%s",
           peer->comm_name != NULL ? peer->comm_name : "communicator");
}

int request_spans(const struct request *request, size_t at, size_t most, struct iovec *spans) {
  int count = 0;
  if (at < request->first_bytes && most > 0) {
    const size_t rest = request->first_bytes - at, here = rest < most ? rest : most;
    spans[count++] = (struct iovec){request->first + at, here};
    at += here;
    most -= here;
  }
  if (most > 0) spans[count++] = (struct iovec){request->data + (at - request->first_bytes), most};
  return count;
}

struct request *end_slot(struct end *end) {
  struct request *request = &end->requests[end->begun % NET_REQUESTS_MAX];
  return request->used ? NULL : request;
}

ncclResult_t end_fail(struct end *end, ncclResult_t code, const char *format, ...) {
  char text[512], address[SOCK_TEXT_BYTES];
  va_list arguments;
  if (end->failed != ncclSuccess) return end->failed;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  end->failed = code;
  return log_fail(code, "%s: rank %u %s rank %u at %s over %s: %s", end->comm_name, end->rank,
                  end->kind == END_SEND ? "sending to" : "receiving from", end->peer,
                  sock_address_text(&end->address, address), end->interface.name, text);
}

ncclResult_t end_fail_errno(struct end *end, int error) {
  const bool cut = error == -1 || error == EPIPE || error == ECONNRESET;
  const uint32_t in_flight = end->begun - end->moved;
  char doing[128];
  if (in_flight > 0) {
    const struct request *request = &end->requests[end->moved % NET_REQUESTS_MAX];
    snprintf(doing, sizeof doing, "message %u (%s%zu bytes) was under way, and %u behind it", end->moved,
             end->kind == END_SEND ? "" : "space for ", request->bytes, in_flight - 1);
  } else {
    snprintf(doing, sizeof doing, "%u messages had been moved", end->moved);
  }
  return end_fail(end, socket_error_code(error), "%s while %s%s", socket_error_text(error), doing,
                  cut ? "; the other process's own messages say why" : "");
}

ncclResult_t socket_error_code(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM: return ncclSystemError;
    default: return ncclRemoteError;
  }
}

const char *socket_error_text(int error) {
  switch (error) {
    case -1: return "the other end closed the connection";
    case EPIPE: return "the other end closed the connection (EPIPE)";
    case ECONNRESET: return "the other end reset the connection: its process ended, or dropped it";
    case ETIMEDOUT: return "the other host did not answer for TUTTI_PEER_TIMEOUT_SECONDS";
    case ECONNREFUSED: return "connection refused: no process listens there, the other process has ended";
    case EHOSTUNREACH:
    case ENETUNREACH: return "there is no route to that host: look at the interface and at routes";
    case EMFILE: return "this process is out of descriptors: raise `ulimit -n`";
    case ENFILE: return "the system is out of descriptors: raise fs.file-max";
    case ENOBUFS:
    case ENOMEM: return "the system is out of memory for sockets: raise net.ipv4.tcp_mem";
    default: return strerror(error);
  }
}

static void option(int fd, int level, int name, int value) {
  /* Options only tune the socket: without one the connection still works, so errors are ignored. */
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

void acks_hold(int fd, uint32_t count) {
  if (count % ACKS_PERIOD == 0) option(fd, IPPROTO_TCP, TCP_QUICKACK, 0);
}

void socket_options(int fd) {
  const int64_t seconds = param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  const int64_t send_bytes = param_int(PARAM_SOCKET_SNDBUF), receive_bytes = param_int(PARAM_SOCKET_RCVBUF);
  option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (send_bytes > 0) option(fd, SOL_SOCKET, SO_SNDBUF, send_bytes < INT32_MAX ? (int)send_bytes : INT32_MAX);
  if (receive_bytes > 0) {
    option(fd, SOL_SOCKET, SO_RCVBUF, receive_bytes < INT32_MAX ? (int)receive_bytes : INT32_MAX);
  }
  if (seconds <= 0) return;
  option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)seconds * 1000);
  option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds > 4 ? (int)seconds / 4 : 1);
  option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds > 4 ? (int)seconds / 4 : 1);
  option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}
