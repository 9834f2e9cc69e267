/* socket.h: shared by the files of the socket net: an end of a connection, its requests, its helper threads.
 *
 * A connection has one stream socket (frames and data, sender to receiver), one credit socket (announced
 * receives, receiver to sender), and any number of data sockets, which carry pieces of large messages. No
 * socket carries data both ways: if a TCP socket is closed with unread bytes, the kernel resets the
 * connection and drops what it has not delivered yet. */
#ifndef TUTTI_SOCKET_SOCKET_H
#define TUTTI_SOCKET_SOCKET_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "backends/net.h"
#include "backends/socket/frame.h"
#include "base/log.h"
#include "base/os.h"
#include "base/sock.h"

enum end_kind { END_SEND = 1, END_RECEIVE, END_LISTENER };
enum { SOCKET_STREAM = 0, SOCKET_CREDIT = 1, SOCKET_DATA = 2 }; /* indices of a connection's sockets */

struct end;

/* One isend or irecv. Complete when its part of the stream and all its pieces are. */
struct request {
  struct end *end;
  uint8_t *first, *data; /* the message's first `first_bytes` lie at `first`, the rest at `data` */
  size_t first_bytes;
  size_t whole_bytes;  /* receives: only a message of this size begins at `first`; others lie at `data` */
  size_t bytes;        /* of the message; of a receive whose message has not arrived: the buffer's size */
  size_t stream_bytes; /* the part that goes over the stream */
  bool used, stream_done;
  atomic_uint tasks; /* pieces that are not done */
  uint8_t frame[FRAME_BYTES];
};

/* A data socket and its queue of pieces, which it moves in order. The end's thread pushes; one consumer (a
 * helper or the same thread) moves. */
struct piece {
  uint8_t *data;
  size_t bytes;
  struct request *request;
};
struct data_socket {
  int fd;
  size_t moved;             /* bytes of the current piece */
  atomic_uint pushed, done; /* pieces; they lie in pieces[number % NET_REQUESTS_MAX] */
  struct piece pieces[NET_REQUESTS_MAX];
};

struct io_thread;
/* The data sockets of an end and the helpers that drive them; without helpers io_threads_move() drives them.
 */
struct io_threads {
  bool writes;
  uint32_t data_socket_count, member_count;
  uint32_t turn;      /* the data socket for the next piece */
  atomic_int failure; /* errno of a data socket that failed; -1: closed by the other end; 0: none */
  struct data_socket *data_sockets;
  struct io_thread *members;
};
/* The number of running helper threads of the process. */
uint32_t io_threads_running(void);
ncclResult_t io_threads_open(struct io_threads *io, bool writes, const struct endpoint *endpoint,
                             const int *fds);
void io_threads_push(struct io_threads *io, struct request *request, size_t offset, const struct cut *cut);
void io_threads_move(struct io_threads *io);
bool io_threads_idle(const struct io_threads *io);
/* Closes the sockets. Once it returns, no helper accesses any memory. */
void io_threads_close(struct io_threads *io);

/* The common part of senders and receivers; their first member, because callers hold a void pointer. */
struct end {
  enum end_kind kind;
  ncclResult_t failed; /* sticky: after a failure every call returns it, without another message */
  uint32_t rank, peer;
  char comm_name[64];
  struct sock_interface interface;
  struct sock_address address; /* of the other process */
  struct endpoint endpoint;
  int stream, credit;
  struct io_threads io;
  struct request requests[NET_REQUESTS_MAX]; /* request k lies at k % NET_REQUESTS_MAX */
  uint32_t begun;                            /* number of requests begun */
  uint32_t moved;                            /* number of requests whose stream part is complete */
};
void end_open(struct end *end, enum end_kind kind, const struct net_peer *peer,
              const struct sock_interface *interface);
/* The memory of the message from byte `at` on, at most `most` bytes in at most two spans; returns their
 * number. */
int request_spans(const struct request *request, size_t at, size_t most, struct iovec *spans);
/* The slot of the next request; NULL if all are in use. */
struct request *end_slot(struct end *end);
/* Logs "<comm>: rank 0 sending to rank 1 at ADDRESS over DEVICE: <text>", and stores the code in `failed`. */
ncclResult_t end_fail(struct end *end, ncclResult_t code, const char *format, ...) LOG_FORMAT(3, 4);
/* The same for an errno of a socket (-1: closed by the other end). */
ncclResult_t end_fail_errno(struct end *end, int error);
/* ncclSystemError if a local limit is the cause (EMFILE, ENFILE, ...), else ncclRemoteError. The text names
 * the cure. */
ncclResult_t socket_error_code(int error);
const char *socket_error_text(int error);

/* Delays TCP acknowledgements. A socket that carries data one way would acknowledge each message in the call
 * that reads it, at a quarter of a small message's cost; delayed, the kernel acknowledges two messages at a
 * time. The kernel drops the option when a connection was idle, so it is set again from time to time;
 * `count`: number of reads of this end so far. */
void acks_hold(int fd, uint32_t count);
/* Sets the options of every socket of a connection; call it before connect or bind. */
void socket_options(int fd);

const struct net_ops *socket_net_ops(void);

/* ---- device.c */
ncclResult_t socket_devices(uint32_t *count);
ncclResult_t socket_properties(uint32_t device, struct net_properties *properties);
ncclResult_t socket_interface(uint32_t device, struct sock_interface *out);
/* Fills the endpoint's settings; the address and number stay unchanged. */
void socket_settings(const char *interface_name, struct endpoint *endpoint);

/* ---- port.c: one listening socket per device, shared by its listeners */
ncclResult_t port_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                         void **listener);
ncclResult_t port_accept(void *listener, void **connection);
ncclResult_t port_close(void *listener);
/* A descriptor that is readable when there is work at the listener's device. */
int port_descriptor(void *listener);

/* ---- dial.c: connecting the sockets of a sender */
enum dial_phase { DIAL_WAITING, DIAL_CONNECTING, DIAL_HANDSHAKE, DIAL_DONE };
struct dial;
struct dials {
  struct dial *dials;
  uint32_t count, done;
  uint64_t begin_ns;
};
ncclResult_t dials_open(struct dials *dials, const struct endpoint *endpoint, const struct net_peer *peer);
/* Makes progress on every socket without blocking. On failure `text` has the message. */
ncclResult_t dials_step(struct dials *dials, const struct endpoint *endpoint, char *text, size_t text_bytes);
/* Returns the connected socket, which the caller then owns. */
int dials_take(struct dials *dials, uint32_t index);
void dials_close(struct dials *dials);

/* ---- send.c, receive.c */
/* After the first announced receive a sender may begin AHEAD_MAX messages before their receives are
 * announced, and a receiver announces ANNOUNCE_LEAST receives at a time. */
enum { AHEAD_MAX = 64, ANNOUNCE_LEAST = AHEAD_MAX / 2 };
ncclResult_t send_connect(uint32_t device, const struct net_peer *peer, const struct net_handle *handle,
                          void **connection);
/* `first` may be NULL. */
ncclResult_t send_begin(struct end *end, const struct net_part *first, const void *data, size_t bytes,
                        void **request);
ncclResult_t send_move(struct end *end);
uint32_t send_descriptors(struct end *end, int *descriptors, uint32_t capacity);
void send_close(struct end *end);

/* Takes ownership of the sockets, also on failure. */
ncclResult_t receive_open(const struct net_peer *peer, const struct sock_interface *interface,
                          const struct endpoint *endpoint, const int *fds, void **connection);
ncclResult_t receive_begin(struct end *end, const struct net_part *first, size_t whole_bytes, void *data,
                           size_t bytes, void **request);
ncclResult_t receive_move(struct end *end);
uint32_t receive_descriptors(struct end *end, int *descriptors, uint32_t capacity);
void receive_close(struct end *end);

#endif
