/* receive.c: the receiving end. It announces several receives at a time, and reads ahead: one system call
 * reads the rest of a large message and the frames and small messages after it. A message that arrives before
 * its receive is posted stays in the read-ahead buffer or in the kernel. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "backends/socket/socket.h"
#include "base/log.h"

#define AHEAD_BYTES 16384
#define LARGE_BYTES 32768 /* after a message of this size or more, only the next frame is read ahead */
#define CALLS_MAX 8       /* system calls in one move, so that other connections make progress, too */

struct receiver {
  struct end end;
  bool inside; /* the frame of message `moved` is read, and its data is not complete */
  bool large;  /* the last message has LARGE_BYTES or more */
  size_t current_moved;
  uint32_t arrived;   /* number of messages whose frame is read */
  uint32_t announced; /* number of receives announced, including those in credit_bytes */
  bool deaf;          /* the sender has closed the credit socket: it needs no more credits */
  uint32_t credit_have;
  uint8_t credit_bytes[FRAME_BYTES * NET_REQUESTS_MAX];
  bool drained; /* the last read ended at a message's end and left the socket empty */
  uint32_t ahead_begin, ahead_end;
  uint8_t ahead[AHEAD_BYTES];
};

ncclResult_t receive_open(const struct net_peer *peer, const struct sock_interface *interface,
                          const struct endpoint *endpoint, const int *fds, void **connection) {
  struct receiver *receiver = (struct receiver *)os_alloc(sizeof *receiver);
  if (receiver == NULL) {
    for (uint32_t i = 0; i < SOCKET_DATA + endpoint->data_sockets; i++) sock_close(fds[i]);
    return log_no_memory("socket net: a connection");
  }
  struct end *end = &receiver->end;
  end_open(end, END_RECEIVE, peer, interface);
  end->endpoint = *endpoint;
  end->stream = fds[SOCKET_STREAM];
  end->credit = fds[SOCKET_CREDIT];
  end->address = sock_peer(end->stream);
  const ncclResult_t result = io_threads_open(&end->io, false, endpoint, fds + SOCKET_DATA);
  if (result == ncclSuccess) *connection = receiver;
  else receive_close(end);
  return result;
}

/* Sends the announcements. If the sender has closed the credit socket, it is done, or the stream will fail.
 */
static ncclResult_t credits_write(struct receiver *receiver) {
  while (receiver->credit_have > 0 && !receiver->deaf) {
    const ssize_t sent = send(receiver->end.credit, receiver->credit_bytes, receiver->credit_have,
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return ncclSuccess;
    if (sent < 0 && errno == ETIMEDOUT) return end_fail_errno(&receiver->end, errno);
    if (sent < 0) receiver->deaf = true;
    else receiver->credit_have -= (uint32_t)sent;
    if (sent > 0) memmove(receiver->credit_bytes, receiver->credit_bytes + sent, receiver->credit_have);
  }
  return ncclSuccess;
}

static void credit_write(struct receiver *receiver) {
  const struct end *end = &receiver->end;
  const struct request *request = &end->requests[receiver->announced % NET_REQUESTS_MAX];
  const struct frame frame = {FRAME_CREDIT, receiver->announced, request->bytes};
  frame_write(&frame, receiver->credit_bytes + receiver->credit_have);
  receiver->credit_have += FRAME_BYTES;
  receiver->announced++;
}

/* Announces the first receive at once, because the first message waits for it, and later ones together,
 * because the sender runs ahead. */
static ncclResult_t credits_announce(struct receiver *receiver, uint32_t least) {
  struct end *end = &receiver->end;
  const bool due = receiver->announced == 0 || end->begun - receiver->announced >= least;
  if (!due && receiver->credit_have == 0) return ncclSuccess;
  while (due && receiver->announced != end->begun &&
         receiver->credit_have + FRAME_BYTES <= sizeof receiver->credit_bytes)
    credit_write(receiver);
  return credits_write(receiver);
}

/* Handles a message's frame: sets the receive's size and starts its data sockets. */
static ncclResult_t message_open(struct receiver *receiver, const uint8_t *bytes) {
  struct end *end = &receiver->end;
  struct request *request = &end->requests[end->moved % NET_REQUESTS_MAX];
  struct frame frame;
  const char *wrong = frame_read(bytes, end->moved, &frame);
  if (wrong == NULL && frame.kind == FRAME_CREDIT) wrong = "a frame of a receiver";
  if (wrong != NULL) return end_fail(end, ncclRemoteError, "the sender sent %s", wrong);
  if (frame.kind == FRAME_TOO_LONG || frame.bytes > request->bytes) {
    TRY(credits_announce(receiver, 1)); /* so that the sender finds the mismatch, too */
    return end_fail(
        end, ncclInvalidUsage,
        "message %u has %llu bytes, but the receive that was posted for it has space for %zu: the "
        "ranks' counts or calls differ",
        frame.number, (unsigned long long)frame.bytes, request->bytes);
  }
  const struct cut cut = message_cut(&end->endpoint, frame.bytes);
  if (frame.bytes != request->whole_bytes) request->first_bytes = 0;
  request->bytes = frame.bytes;
  request->stream_bytes = cut.stream_bytes;
  if (cut.tasks > 0) io_threads_push(&end->io, request, cut.stream_bytes, &cut);
  acks_hold(end->stream, receiver->arrived++);
  receiver->inside = true;
  receiver->large = cut.stream_bytes >= LARGE_BYTES;
  receiver->current_moved = 0;
  return ncclSuccess;
}

static size_t message_rest(const struct receiver *receiver) {
  const struct end *end = &receiver->end;
  if (!receiver->inside) return 0;
  return end->requests[end->moved % NET_REQUESTS_MAX].stream_bytes - receiver->current_moved;
}

static void message_end(struct receiver *receiver) {
  struct end *end = &receiver->end;
  end->requests[end->moved % NET_REQUESTS_MAX].stream_done = true;
  end->moved++;
  receiver->inside = false;
}

static void spans_fill(const struct request *request, size_t at, const uint8_t *bytes, size_t count) {
  struct iovec spans[2];
  const int span_count = request_spans(request, at, count, spans);
  for (int i = 0; i < span_count; i++) {
    memcpy(spans[i].iov_base, bytes, spans[i].iov_len);
    bytes += spans[i].iov_len;
  }
}

/* Copies data that was read ahead to its destinations. */
static ncclResult_t ahead_take(struct receiver *receiver) {
  struct end *end = &receiver->end;
  for (;;) {
    const uint8_t *bytes = receiver->ahead + receiver->ahead_begin;
    const size_t have = receiver->ahead_end - receiver->ahead_begin;
    if (!receiver->inside) {
      if (have < FRAME_BYTES || end->moved == end->begun) break;
      TRY(message_open(receiver, bytes));
      receiver->ahead_begin += FRAME_BYTES;
      continue;
    }
    const size_t rest = message_rest(receiver), taken = rest < have ? rest : have;
    struct request *request = &end->requests[end->moved % NET_REQUESTS_MAX];
    spans_fill(request, receiver->current_moved, bytes, taken);
    receiver->current_moved += taken;
    receiver->ahead_begin += (uint32_t)taken;
    if (taken < rest) break;
    message_end(receiver);
  }
  receiver->ahead_end -= receiver->ahead_begin;
  memmove(receiver->ahead, receiver->ahead + receiver->ahead_begin, receiver->ahead_end);
  receiver->ahead_begin = 0;
  return ncclSuccess;
}

/* One system call: reads the rest of the current message to its destination, and what follows into the
 * read-ahead buffer. *more: another call may find more. */
static ncclResult_t stream_read(struct receiver *receiver, bool *more) {
  struct end *end = &receiver->end;
  const size_t rest = message_rest(receiver);
  struct request *request = &end->requests[end->moved % NET_REQUESTS_MAX];
  const size_t free_bytes = (receiver->large ? FRAME_BYTES : AHEAD_BYTES) - receiver->ahead_end;
  ssize_t got;
  *more = false;
  if (rest == 0) {
    got = recv(end->stream, receiver->ahead + receiver->ahead_end, free_bytes, MSG_DONTWAIT);
  } else {
    struct iovec parts[3];
    const int count = request_spans(request, receiver->current_moved, rest, parts);
    parts[count] = (struct iovec){receiver->ahead + receiver->ahead_end, free_bytes};
    struct msghdr message = {NULL, 0, parts, (size_t)count + 1, NULL, 0, 0};
    got = recvmsg(end->stream, &message, MSG_DONTWAIT);
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return ncclSuccess;
  if (got <= 0) return end_fail_errno(end, got == 0 ? -1 : errno);
  const size_t direct = (size_t)got < rest ? (size_t)got : rest;
  receiver->current_moved += direct;
  receiver->ahead_end += (uint32_t)((size_t)got - direct);
  TRY(ahead_take(receiver));
  *more = (size_t)got == rest + free_bytes || message_rest(receiver) > 0;
  receiver->drained = !*more;
  return ncclSuccess;
}

/* Right after a read that emptied the socket, one call is skipped: the caller has just taken that message and
 * asks for the next one at once, which cannot be there yet. */
ncclResult_t receive_move(struct end *end) {
  struct receiver *receiver = (struct receiver *)end;
  if (end->failed != ncclSuccess) return end->failed;
  bool more = !receiver->drained;
  receiver->drained = false;
  if (receiver->ahead_end > 0) TRY(ahead_take(receiver));
  for (int call = 0; call < CALLS_MAX && more && end->moved != end->begun; call++)
    TRY(stream_read(receiver, &more));
  if (receiver->credit_have > 0) TRY(credits_write(receiver));
  io_threads_move(&end->io);
  const int failure = atomic_load_explicit(&end->io.failure, memory_order_relaxed);
  return failure == 0 ? ncclSuccess : end_fail_errno(end, failure);
}

ncclResult_t receive_begin(struct end *end, const struct net_part *first, size_t whole_bytes, void *data,
                           size_t bytes, void **request) {
  struct receiver *receiver = (struct receiver *)end;
  *request = NULL;
  if (end->failed != ncclSuccess) return end->failed;
  struct request *slot = end_slot(end);
  if (slot == NULL) return receive_move(end);
  slot->end = end;
  slot->data = (uint8_t *)data;
  slot->first = first != NULL ? (uint8_t *)first->data : NULL;
  slot->first_bytes = first != NULL ? first->bytes : 0;
  slot->whole_bytes = whole_bytes;
  slot->bytes = slot->stream_bytes = bytes;
  slot->used = true;
  slot->stream_done = false;
  atomic_store_explicit(&slot->tasks, 0, memory_order_relaxed);
  end->begun++;
  TRY(credits_announce(receiver, ANNOUNCE_LEAST));
  *request = slot;
  return ncclSuccess;
}

uint32_t receive_descriptors(struct end *end, int *descriptors, uint32_t capacity) {
  const struct receiver *receiver = (const struct receiver *)end;
  if (!io_threads_idle(&end->io) || receiver->credit_have > 0 || capacity < 1 || end->failed != ncclSuccess)
    return 0;
  descriptors[0] = end->stream;
  return 1;
}

void receive_close(struct end *end) {
  io_threads_close(&end->io);
  sock_close(end->stream);
  sock_close(end->credit);
  os_free(end);
}
