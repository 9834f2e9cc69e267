/* dial.c: connects and authenticates all sockets of a sender at once, without blocking. A refused connection
 * is retried NCCL_SOCKET_RETRY_CNT times, at intervals of NCCL_SOCKET_RETRY_SLEEP_MSEC. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/socket/socket.h"
#include "base/handshake.h"
#include "base/log.h"
#include "base/param.h"

struct dial {
  enum dial_phase phase;
  int fd;
  uint32_t tries;
  uint64_t at_ns; /* when the next try is due, or this one began */
  uint64_t key;
  struct secret secret;
  struct handshake_client client;
};

ncclResult_t dials_open(struct dials *dials, const struct endpoint *endpoint, const struct net_peer *peer) {
  const uint32_t count = SOCKET_DATA + endpoint->data_sockets;
  dials->dials = (struct dial *)os_alloc(count * sizeof *dials->dials);
  if (dials->dials == NULL) return log_no_memory("socket net: %u sockets", count);
  dials->count = count;
  for (uint32_t i = 0; i < count; i++) {
    dials->dials[i].fd = -1;
    dials->dials[i].key = endpoint_key(endpoint, peer->comm_key, i);
    net_peer_secret(peer, endpoint_key(endpoint, peer->comm_key, 0), &dials->dials[i].secret);
  }
  return ncclSuccess;
}

static bool worth_another_try(int error) {
  return error == ECONNREFUSED || error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
         error == EAGAIN || error == EINTR || error == ECONNRESET;
}

/* Schedules the next try, or gives up. */
static ncclResult_t dial_failed(struct dial *dial, int error, char *text, size_t text_bytes) {
  const int64_t tries = param_int(PARAM_SOCKET_RETRY_CNT),
                pause_ms = param_int(PARAM_SOCKET_RETRY_SLEEP_MSEC);
  sock_close(dial->fd);
  dial->fd = -1;
  dial->tries++;
  if (worth_another_try(error) && dial->tries <= tries) {
    dial->phase = DIAL_WAITING;
    dial->at_ns = os_time_ns() + (uint64_t)dial->tries * (uint64_t)pause_ms * 1000000;
    return ncclSuccess;
  }
  snprintf(text, text_bytes, "%s (%s, after %u tries)", socket_error_text(error), strerror(error),
           dial->tries);
  return socket_error_code(error);
}

static socklen_t libc_address(const struct sock_address *address, struct sockaddr_storage *out) {
  memset(out, 0, sizeof *out);
  if (address->family == 6) {
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(address->port);
    six->sin6_scope_id = address->scope;
    memcpy(&six->sin6_addr, address->bytes, 16);
    return sizeof *six;
  }
  struct sockaddr_in *four = (struct sockaddr_in *)out;
  four->sin_family = AF_INET;
  four->sin_port = htons(address->port);
  memcpy(&four->sin_addr, address->bytes, 4);
  return sizeof *four;
}

static ncclResult_t dial_begin(struct dial *dial, const struct sock_address *to, char *text,
                               size_t text_bytes) {
  struct sockaddr_storage address;
  const socklen_t address_bytes = libc_address(to, &address);
  const int family = to->family == 6 ? AF_INET6 : AF_INET;
  dial->fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (dial->fd < 0) return dial_failed(dial, errno, text, text_bytes);
  socket_options(dial->fd);
  dial->phase = DIAL_CONNECTING;
  dial->at_ns = os_time_ns();
  if (connect(dial->fd, (struct sockaddr *)&address, address_bytes) == 0 || errno == EINPROGRESS) {
    return ncclSuccess;
  }
  return dial_failed(dial, errno, text, text_bytes);
}

static ncclResult_t dial_connecting(struct dial *dial, char *text, size_t text_bytes) {
  struct pollfd polled = {dial->fd, POLLOUT, 0};
  int error = 0;
  socklen_t error_bytes = sizeof error;
  if (poll(&polled, 1, 0) <= 0) return ncclSuccess;
  if (getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) error = errno;
  if (error != 0) return dial_failed(dial, error, text, text_bytes);
  dial->phase = DIAL_HANDSHAKE;
  dial->at_ns = os_time_ns();
  handshake_client_begin(&dial->client, dial->fd, HANDSHAKE_DATA, dial->key, &dial->secret);
  return ncclSuccess;
}

/* A listener closes the socket without an answer if it has too many clients in handshake: connect again. */
static ncclResult_t dial_handshake(struct dial *dial, char *text, size_t text_bytes) {
  const int64_t seconds = param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  char reason[128] = "";
  switch (handshake_client_step(&dial->client, reason, sizeof reason)) {
    case HANDSHAKE_DONE: dial->phase = DIAL_DONE; return ncclSuccess;
    case HANDSHAKE_GONE:
      if (reason[0] == '\0') return dial_failed(dial, ECONNRESET, text, text_bytes);
      snprintf(text, text_bytes, "refused: %s", reason);
      return ncclRemoteError;
    default: break;
  }
  if (seconds <= 0 || os_time_ns() - dial->at_ns < (uint64_t)seconds * 1000000000) return ncclSuccess;
  snprintf(text, text_bytes, "not let in for %s=%lld seconds: the receiver's process hangs, or is stopped",
           param_name(PARAM_TUTTI_PEER_TIMEOUT_SECONDS), (long long)seconds);
  return ncclRemoteError;
}

static ncclResult_t dial_step(struct dial *dial, const struct sock_address *to, char *text,
                              size_t text_bytes) {
  if (dial->phase == DIAL_WAITING) {
    if (dial->tries > 0 && os_time_ns() < dial->at_ns) return ncclSuccess;
    TRY(dial_begin(dial, to, text, text_bytes));
  }
  if (dial->phase == DIAL_CONNECTING) TRY(dial_connecting(dial, text, text_bytes));
  return dial->phase == DIAL_HANDSHAKE ? dial_handshake(dial, text, text_bytes) : ncclSuccess;
}

ncclResult_t dials_step(struct dials *dials, const struct endpoint *endpoint, char *text, size_t text_bytes) {
  dials->done = 0;
  for (uint32_t i = 0; i < dials->count; i++) {
    struct dial *dial = &dials->dials[i];
    if (dial->phase != DIAL_DONE) TRY(dial_step(dial, &endpoint->address, text, text_bytes));
    dials->done += dial->phase == DIAL_DONE;
  }
  return ncclSuccess;
}

int dials_take(struct dials *dials, uint32_t index) {
  const int fd = dials->dials[index].fd;
  dials->dials[index].fd = -1;
  return fd;
}

void dials_close(struct dials *dials) {
  for (uint32_t i = 0; i < dials->count; i++) sock_close(dials->dials[i].fd);
  if (dials->dials != NULL) explicit_bzero(dials->dials, dials->count * sizeof *dials->dials);
  os_free(dials->dials);
  dials->dials = NULL;
  dials->count = dials->done = 0;
}
