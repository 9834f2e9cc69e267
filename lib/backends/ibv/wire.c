/* wire.c: the socket beside a connection. It carries the two infos, then notes. It stays open, so that each
 * end notices when the other closes or its process ends, which a queue pair does not report. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/ibv/ib.h"
#include "base/hash.h"
#include "base/param.h"

#define NOTE_MAGIC 0x6e627475u

uint64_t ib_handle_key(const struct ib_handle *handle, uint64_t comm_key) {
  return hash_scramble(handle->number ^ (comm_key * HASH_STEP));
}

static socklen_t libc_address(const struct sock_address *address, struct sockaddr_storage *out) {
  struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
  struct sockaddr_in *four = (struct sockaddr_in *)out;
  memset(out, 0, sizeof *out);
  if (address->family == 6) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(address->port);
    six->sin6_scope_id = address->scope;
    memcpy(&six->sin6_addr, address->bytes, 16);
    return sizeof *six;
  }
  four->sin_family = AF_INET;
  four->sin_port = htons(address->port);
  memcpy(&four->sin_addr, address->bytes, 4);
  return sizeof *four;
}

/* Options only tune the socket, so errors are ignored. */
static void wire_options(int fd) {
  const int one = 1, seconds = (int)param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS), ms = seconds * 1000;
  const int quarter = seconds > 4 ? seconds / 4 : 1, tries = 3;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (seconds <= 0) return;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &quarter, sizeof quarter);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &quarter, sizeof quarter);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

int ib_wire_dial(const struct sock_address *to) {
  struct sockaddr_storage address;
  const socklen_t address_bytes = libc_address(to, &address);
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  wire_options(fd);
  if (connect(fd, (struct sockaddr *)&address, address_bytes) == 0 || errno == EINPROGRESS) return fd;
  const int error = errno;
  sock_close(fd);
  return -error;
}

int ib_wire_dialed(int fd) {
  struct pollfd polled = {fd, POLLOUT, 0};
  int error = 0;
  socklen_t error_bytes = sizeof error;
  if (poll(&polled, 1, 0) <= 0) return 0;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) error = errno;
  return error == 0 ? 1 : -error;
}

int ib_wire_send(struct ib_wire *wire, const void *data, size_t bytes) {
  const ptrdiff_t sent = sock_send_some(wire->fd, (const uint8_t *)data + wire->sent, bytes - wire->sent);
  if (sent < 0) return -1;
  wire->sent += (size_t)sent;
  return wire->sent == bytes;
}

int ib_wire_receive(struct ib_wire *wire, void *data, size_t bytes) {
  const ptrdiff_t got = sock_receive_some(wire->fd, (uint8_t *)data + wire->received, bytes - wire->received);
  if (got < 0) return -1;
  wire->received += (size_t)got;
  return wire->received == bytes;
}

/* Does not block: a note always fits into the socket's buffer, and if the other end is gone the note is not
 * needed.
 */
void ib_wire_note_send(struct ib_wire *wire, uint32_t kind, uint64_t number) {
  const struct ib_note note = {NOTE_MAGIC, kind, number};
  if (wire->fd >= 0) (void)sock_send_some(wire->fd, &note, sizeof note);
}

int ib_wire_note_receive(struct ib_wire *wire) {
  uint8_t *bytes = (uint8_t *)&wire->note;
  const ptrdiff_t got =
      sock_receive_some(wire->fd, bytes + wire->note_received, sizeof wire->note - wire->note_received);
  if (got < 0) return -1;
  wire->note_received += (size_t)got;
  if (wire->note_received < sizeof wire->note) return 0;
  wire->note_received = 0;
  return wire->note.magic == NOTE_MAGIC ? 1 : -1;
}
