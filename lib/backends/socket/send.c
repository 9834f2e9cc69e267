/* send.c: the sending end. The first message waits until the receiver has announced its receive; later
 * messages may run ahead of the announcements and are compared with them when they arrive. One system call
 * sends the frames and data of as many messages as fit. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "backends/socket/socket.h"
#include "base/log.h"

#define CREDITS_MAX (2 * NET_REQUESTS_MAX) /* announced receives and messages ahead, in one ring */
#define AHEAD_LOOK (AHEAD_MAX / 2)         /* read the credit socket when this many messages ahead */
#define PARTS_MAX 24                       /* in one sendmsg(): eight messages */
#define FLAT_BYTES 4096                    /* up to this size messages are copied into one buffer and sent */
#define CALL_BYTES (4u << 20) /* in one sendmsg(), so that other connections make progress, too */

_Static_assert(AHEAD_MAX <= CREDITS_MAX && ANNOUNCE_LEAST <= NET_REQUESTS_MAX, "the ring holds all credits");

struct sender {
  struct end end;
  bool connected;
  ncclResult_t refused; /* isend's result after a message that was too long; earlier ones still complete */
  struct dials dials;
  uint64_t comm_key;
  size_t current_moved;          /* bytes of message `moved` sent, including its frame */
  uint64_t credits[CREDITS_MAX]; /* sizes of announced receives, and of messages sent ahead of theirs */
  uint32_t credits_read;         /* number of receives announced */
  uint8_t credit_bytes[FRAME_BYTES * NET_REQUESTS_MAX];
  uint32_t credit_reads;
  uint32_t credit_have; /* bytes of an incomplete frame in credit_bytes */
  int writable;         /* an epoll that is readable when the stream is writable; -1 until it is needed */
};

/* A link-local address needs the index of this host's own interface. */
static void scope_own(struct sock_address *address, const struct sock_interface *interface) {
  const bool local = address->family == 6 && address->bytes[0] == 0xfe && (address->bytes[1] & 0xc0) == 0x80;
  if (local) address->scope = interface->address.scope;
}

/* Continues connecting; the connection is ready when all sockets are accepted. */
static ncclResult_t send_dial(struct sender *sender) {
  int fds[SOCKETS_MAX];
  char text[256];
  struct end *end = &sender->end;
  const ncclResult_t result = dials_step(&sender->dials, &end->endpoint, text, sizeof text);
  if (result != ncclSuccess) return end_fail(end, result, "connecting: %s", text);
  if (sender->dials.done < sender->dials.count) return ncclSuccess;
  const uint32_t count = sender->dials.count;
  for (uint32_t i = 0; i < count; i++) fds[i] = dials_take(&sender->dials, i);
  dials_close(&sender->dials);
  end->stream = fds[SOCKET_STREAM];
  end->credit = fds[SOCKET_CREDIT];
  sender->connected = true;
  const ncclResult_t opened = io_threads_open(&end->io, true, &end->endpoint, fds + SOCKET_DATA);
  return opened == ncclSuccess ? ncclSuccess : end_fail(end, opened, "connecting: no helpers");
}

ncclResult_t socket_net_connected(void *connection, bool *connected) {
  struct sender *sender = (struct sender *)connection;
  if (sender->end.failed != ncclSuccess) return sender->end.failed;
  if (!sender->connected) TRY(send_dial(sender));
  *connected = sender->connected;
  return ncclSuccess;
}

ncclResult_t send_connect(uint32_t device, const struct net_peer *peer, const struct net_handle *handle,
                          void **connection) {
  struct sock_interface interface;
  TRY(socket_interface(device, &interface));
  struct sender *sender = (struct sender *)os_alloc(sizeof *sender);
  if (sender == NULL) return log_no_memory("socket net: a connection");
  struct end *end = &sender->end;
  end_open(end, END_SEND, peer, &interface);
  sender->writable = -1;
  ncclResult_t result;
  if (!endpoint_read(handle, &end->endpoint)) {
    result = end_fail(end, ncclInvalidArgument, "these bytes are no handle of this network");
  } else {
    scope_own(&end->endpoint.address, &interface);
    end->address = end->endpoint.address;
    result = dials_open(&sender->dials, &end->endpoint, peer);
    if (result == ncclSuccess) result = send_dial(sender);
  }
  if (result == ncclSuccess) *connection = sender;
  else send_close(end);
  return result;
}

/* The number of messages begun ahead of the announced receives; negative: of announced receives not used yet.
 */
static int32_t messages_ahead(const struct sender *sender) {
  return (int32_t)(sender->end.begun - sender->credits_read);
}

static const char too_long[] =
    "message %u has %llu bytes, but the receive that was posted for it has space for %llu: the ranks' counts "
    "or calls differ";

/* Handles an announced receive: compares it with the message if that was sent ahead, else stores it. */
static ncclResult_t credit_take(struct sender *sender, uint64_t credit_bytes) {
  const uint32_t number = sender->credits_read++;
  uint64_t *place = &sender->credits[number % CREDITS_MAX];
  if (messages_ahead(sender) < 0) *place = credit_bytes;
  else if (*place > credit_bytes)
    return end_fail(&sender->end, ncclInvalidUsage, too_long, number, (unsigned long long)*place,
                    (unsigned long long)credit_bytes);
  return ncclSuccess;
}

/* Reads the announcements. */
static ncclResult_t credits_read(struct sender *sender) {
  struct end *end = &sender->end;
  uint8_t *bytes = sender->credit_bytes;
  const ssize_t got = recv(end->credit, bytes + sender->credit_have,
                           sizeof sender->credit_bytes - sender->credit_have, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return ncclSuccess;
  if (got <= 0) return end_fail_errno(end, got == 0 ? -1 : errno);
  acks_hold(end->credit, sender->credit_reads++);
  const uint32_t have = sender->credit_have + (uint32_t)got, whole = have - have % FRAME_BYTES;
  for (uint32_t at = 0; at < whole; at += FRAME_BYTES) {
    struct frame frame;
    const char *wrong = frame_read(bytes + at, sender->credits_read, &frame);
    if (wrong == NULL && frame.kind != FRAME_CREDIT) wrong = "a frame of a sender";
    if (wrong == NULL && -messages_ahead(sender) >= NET_REQUESTS_MAX) wrong = "too many receives";
    if (wrong != NULL) return end_fail(end, ncclRemoteError, "the receiver announced %s", wrong);
    TRY(credit_take(sender, frame.bytes));
  }
  sender->credit_have = have - whole;
  memmove(bytes, bytes + whole, sender->credit_have);
  return ncclSuccess;
}

/* If the receiver closed the connection because a message was too long, the credit that it announced tells
 * so. */
static ncclResult_t stream_failed(struct sender *sender, int error) {
  if (messages_ahead(sender) > 0) TRY(credits_read(sender));
  return end_fail_errno(&sender->end, error);
}

/* Collects frames and data to send, from the current message on. */
static size_t parts_gather(struct sender *sender, struct iovec *parts, int *count) {
  struct end *end = &sender->end;
  size_t skip = sender->current_moved, total = 0;
  for (uint32_t k = end->moved; k != end->begun && *count + 3 <= PARTS_MAX && total < CALL_BYTES; k++) {
    struct request *request = &end->requests[k % NET_REQUESTS_MAX];
    const size_t frame_skip = skip < FRAME_BYTES ? skip : FRAME_BYTES;
    const size_t data_skip = skip - frame_skip;
    size_t rest = request->stream_bytes - data_skip;
    skip = 0;
    if (frame_skip < FRAME_BYTES) {
      parts[(*count)++] = (struct iovec){request->frame + frame_skip, FRAME_BYTES - frame_skip};
      total += FRAME_BYTES - frame_skip;
    }
    if (rest > CALL_BYTES) rest = CALL_BYTES;
    *count += request_spans(request, data_skip, rest, parts + *count);
    total += rest;
    if (rest < request->stream_bytes - data_skip) break;
  }
  return total;
}

/* Copying a few bytes into one buffer takes less time than the kernel needs for a list of parts. */
static ssize_t parts_write(int fd, struct iovec *parts, int count, size_t bytes) {
  uint8_t flat[FLAT_BYTES];
  size_t at = 0;
  if (bytes > FLAT_BYTES) {
    const struct msghdr message = {NULL, 0, parts, (size_t)count, NULL, 0, 0};
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  for (int i = 0; i < count; i++) {
    memcpy(flat + at, parts[i].iov_base, parts[i].iov_len);
    at += parts[i].iov_len;
  }
  return send(fd, flat, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void stream_advance(struct sender *sender, size_t sent) {
  struct end *end = &sender->end;
  sender->current_moved += sent;
  while (end->moved != end->begun) {
    struct request *request = &end->requests[end->moved % NET_REQUESTS_MAX];
    if (sender->current_moved < FRAME_BYTES + request->stream_bytes) return;
    sender->current_moved -= FRAME_BYTES + request->stream_bytes;
    request->stream_done = true;
    end->moved++;
  }
}

ncclResult_t send_move(struct end *end) {
  struct sender *sender = (struct sender *)end;
  if (end->failed != ncclSuccess) return end->failed;
  while (end->moved != end->begun) {
    struct iovec parts[PARTS_MAX];
    int count = 0;
    const size_t due = parts_gather(sender, parts, &count);
    const ssize_t sent = parts_write(end->stream, parts, count, due);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
    if (sent < 0) return stream_failed(sender, errno);
    stream_advance(sender, (size_t)sent);
    if ((size_t)sent < due) break;
  }
  io_threads_move(&end->io);
  const int failure = atomic_load_explicit(&end->io.failure, memory_order_relaxed);
  return failure == 0 ? ncclSuccess : end_fail_errno(end, failure);
}

static void message_begin(struct end *end, enum frame_kind kind, const struct net_part *first,
                          const void *data, size_t bytes) {
  struct request *request = end_slot(end);
  const struct frame frame = {kind, end->begun, bytes};
  const struct cut cut = message_cut(&end->endpoint, bytes);
  frame_write(&frame, request->frame);
  request->end = end;
  request->data = (uint8_t *)(uintptr_t)data; /* never written through */
  request->first = first != NULL ? (uint8_t *)first->data : NULL;
  request->first_bytes = first != NULL ? first->bytes : 0;
  request->bytes = bytes;
  request->stream_bytes = kind == FRAME_MESSAGE ? cut.stream_bytes : 0;
  request->stream_done = false;
  request->used = true;
  atomic_store_explicit(&request->tasks, 0, memory_order_relaxed);
  if (kind == FRAME_MESSAGE && cut.tasks > 0) io_threads_push(&end->io, request, cut.stream_bytes, &cut);
  end->begun++;
}

/* Sends FRAME_TOO_LONG, so that the receiver reports it, too; earlier messages still complete. */
static ncclResult_t message_refuse(struct sender *sender, const void *data, size_t bytes, uint64_t capacity) {
  struct end *end = &sender->end;
  const uint32_t number = end->begun;
  message_begin(end, FRAME_TOO_LONG, NULL, data, bytes);
  TRY(send_move(end));
  end_fail(end, ncclInvalidUsage, too_long, number, (unsigned long long)bytes, (unsigned long long)capacity);
  end->failed = ncclSuccess;
  sender->refused = ncclInvalidUsage;
  return ncclInvalidUsage;
}

static bool must_wait(const struct sender *sender) {
  return sender->credits_read == 0 || messages_ahead(sender) >= AHEAD_MAX;
}

ncclResult_t send_begin(struct end *end, const struct net_part *first, const void *data, size_t rest_bytes,
                        void **request) {
  struct sender *sender = (struct sender *)end;
  const size_t bytes = rest_bytes + (first != NULL ? first->bytes : 0);
  *request = NULL;
  if (end->failed != ncclSuccess) return end->failed;
  if (sender->refused != ncclSuccess) return sender->refused;
  if (bytes > MESSAGE_BYTES_MAX) {
    return end_fail(end, ncclInvalidArgument, "a message of %zu bytes: at most %llu", bytes,
                    MESSAGE_BYTES_MAX);
  }
  if (!sender->connected) TRY(send_dial(sender));
  if (!sender->connected) return ncclSuccess;
  struct request *slot = end_slot(end);
  if (slot == NULL) return send_move(end);
  if (sender->credits_read == 0 || messages_ahead(sender) >= AHEAD_LOOK) TRY(credits_read(sender));
  if (must_wait(sender)) return send_move(end);
  uint64_t *place = &sender->credits[end->begun % CREDITS_MAX];
  if (messages_ahead(sender) < 0 && bytes > *place) return message_refuse(sender, data, bytes, *place);
  *place = bytes;
  message_begin(end, FRAME_MESSAGE, first, data, bytes);
  if (first == NULL) TRY(send_move(end)); /* large ones are sent together, when the first is tested */
  *request = slot;
  return ncclSuccess;
}

/* Callers poll descriptors for reading, but a full stream must be polled for writing: an epoll descriptor
 * that is readable when the stream is writable does both. */
static int writable_descriptor(struct sender *sender) {
  struct epoll_event event = {EPOLLOUT, {NULL}};
  if (sender->writable >= 0) return sender->writable;
  sender->writable = epoll_create1(EPOLL_CLOEXEC);
  if (sender->writable < 0) return -1;
  if (epoll_ctl(sender->writable, EPOLL_CTL_ADD, sender->end.stream, &event) == 0) return sender->writable;
  sock_close(sender->writable);
  sender->writable = -1;
  return -1;
}

uint32_t send_descriptors(struct end *end, int *descriptors, uint32_t capacity) {
  struct sender *sender = (struct sender *)end;
  const bool unsent = end->moved != end->begun;
  if (!sender->connected || !io_threads_idle(&end->io) || capacity < 2 || end->failed != ncclSuccess)
    return 0;
  uint32_t count = 0;
  if (must_wait(sender)) descriptors[count++] = end->credit;
  if (!unsent) return count;
  descriptors[count] = writable_descriptor(sender);
  return descriptors[count] >= 0 ? count + 1 : 0;
}

void send_close(struct end *end) {
  struct sender *sender = (struct sender *)end;
  if (sender->refused != ncclSuccess && end->moved != end->begun)
    send_move(end); /* reads the receiver's last announcements */
  dials_close(&sender->dials);
  io_threads_close(&end->io);
  sock_close(sender->writable);
  sock_close(end->stream);
  sock_close(end->credit);
  os_free(sender);
}
