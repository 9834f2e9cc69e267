/* socket.h: what the files of the socket net share: an end of a connection, its requests, its helpers.
 *
 * A connection is one stream socket (frames and data, sender to receiver), one credit socket (announced
 * receives, receiver to sender), and any number of data sockets, over which large messages are cut. Data and
 * credits have a socket each because a TCP socket that is closed with unread bytes resets the connection and
 * takes what was not yet delivered with it: so no socket ever carries both ways. */
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

/* One isend or irecv. Done when its part of the stream is, and no data socket has any of it left. */
struct request {
  struct end *end;
  uint8_t *first, *data; /* a message begins at `first`, with so many bytes, and goes on at `data` */
  size_t first_bytes;
  size_t whole_bytes;  /* of a receive: what the message must have to begin at `first`, not at `data` */
  size_t bytes;        /* of the message; of a receive, until its message comes, the space */
  size_t stream_bytes; /* of it, over the stream */
  bool used, stream_done;
  atomic_uint tasks; /* data sockets that still have some of it */
  uint8_t frame[FRAME_BYTES];
};

/* A data socket moves its pieces in order. The end's own thread pushes, one mover (a helper or the same
 * thread) takes. */
struct piece {
  uint8_t *data;
  size_t bytes;
  struct request *request;
};
struct data_socket {
  int fd;
  size_t moved;             /* of the piece in hand */
  atomic_uint pushed, done; /* pieces; they lie in pieces[number % NET_REQUESTS_MAX] */
  struct piece pieces[NET_REQUESTS_MAX];
};

struct io_thread;
/* The data sockets of an end, and the helpers that move them; without helpers io_threads_move() does it. */
struct io_threads {
  bool writes;
  uint32_t data_socket_count, member_count;
  uint32_t turn;      /* the data socket that the next piece goes to */
  atomic_int failure; /* errno of a data socket that failed; -1: closed by the other end; 0: none */
  struct data_socket *data_sockets;
  struct io_thread *members;
};
/* Helper threads of the process that are running. */
uint32_t io_threads_running(void);
ncclResult_t io_threads_open(struct io_threads *io, bool writes, const struct endpoint *endpoint,
                             const int *fds);
void io_threads_push(struct io_threads *io, struct request *request, size_t offset, const struct cut *cut);
void io_threads_move(struct io_threads *io);
bool io_threads_idle(const struct io_threads *io);
/* No helper touches any memory when this returns. The sockets are closed. */
void io_threads_close(struct io_threads *io);

/* What both kinds of end have; the first member of each, as callers hold a void pointer. */
struct end {
  enum end_kind kind;
  ncclResult_t failed; /* sticky: a connection that failed once says so again, without words */
  uint32_t rank, peer;
  char comm_name[64];
  struct sock_interface interface;
  struct sock_address address; /* of the other process */
  struct endpoint endpoint;
  int stream, credit;
  struct io_threads io;
  struct request requests[NET_REQUESTS_MAX]; /* request k lies at k % NET_REQUESTS_MAX */
  uint32_t begun;                            /* requests begun */
  uint32_t moved;                            /* requests that are done with the stream */
};
void end_open(struct end *end, enum end_kind kind, const struct net_peer *peer,
              const struct sock_interface *interface);
/* Where the message lies from byte `at` on, up to `most` bytes of it in at most two spans; their number. */
int request_spans(const struct request *request, size_t at, size_t most, struct iovec *spans);
/* The slot of the next request; NULL when all are in use. */
struct request *end_slot(struct end *end);
/* Logs "<comm>: rank 0 sending to rank 1 at ADDRESS over DEVICE: <text>", and notes the code. */
ncclResult_t end_fail(struct end *end, ncclResult_t code, const char *format, ...) LOG_FORMAT(3, 4);
/* The same for an errno of a socket (-1: closed by the other end). */
ncclResult_t end_fail_errno(struct end *end, int error);
/* ncclSystemError with the cure for EMFILE, ENFILE and their like, ncclRemoteError else. */
ncclResult_t socket_error_code(int error);
const char *socket_error_text(int error);

/* A socket that carries one way alone would acknowledge each message by itself, in the call that reads it, at
 * a quarter of what a small message costs. Held back, an acknowledgement speaks for two: the kernel sends it
 * when the second small message is read. It forgets the wish when a connection was idle for a while, so the
 * wish is repeated; `count`: how often this end has read. */
void acks_hold(int fd, uint32_t count);
/* Options of every socket of a connection, before it is connected or bound where they need that. */
void socket_options(int fd);

const struct net_ops *socket_net_ops(void);

/* ---- device.c */
ncclResult_t socket_devices(uint32_t *count);
ncclResult_t socket_properties(uint32_t device, struct net_properties *properties);
ncclResult_t socket_interface(uint32_t device, struct sock_interface *out);
/* Fills the endpoint's settings; the rest of it stays. */
void socket_settings(const char *interface_name, struct endpoint *endpoint);

/* ---- port.c: one listening socket a device, shared by its listeners */
ncclResult_t port_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                         void **listener);
ncclResult_t port_accept(void *listener, void **connection);
ncclResult_t port_close(void *listener);
/* What is readable when something happened at the listener's device. */
int port_descriptor(void *listener);

/* ---- dial.c: one socket on its way to a listener */
enum dial_phase { DIAL_WAITING, DIAL_CONNECTING, DIAL_HANDSHAKE, DIAL_DONE };
struct dial;
struct dials {
  struct dial *dials;
  uint32_t count, done;
  uint64_t begin_ns;
};
ncclResult_t dials_open(struct dials *dials, const struct endpoint *endpoint, uint64_t comm_key);
/* Takes every socket as far as it goes now. *error_text is filled when the result is not ncclSuccess. */
ncclResult_t dials_step(struct dials *dials, const struct endpoint *endpoint, char *text, size_t text_bytes);
int dials_take(struct dials *dials,
               uint32_t index); /* the connected socket, which is the caller's from now */
void dials_close(struct dials *dials);

/* ---- send.c, receive.c */
/* Messages that may be begun before their receives are announced, once the first has been: a sender need
 * not wait for word of a receive that is posted, and a receiver says so for several at a time. */
enum { AHEAD_MAX = 64, ANNOUNCE_LEAST = AHEAD_MAX / 2 };
ncclResult_t send_connect(uint32_t device, const struct net_peer *peer, const struct net_handle *handle,
                          void **connection);
/* `first` may be NULL. */
ncclResult_t send_begin(struct end *end, const struct net_part *first, const void *data, size_t bytes,
                        void **request);
ncclResult_t send_move(struct end *end);
uint32_t send_descriptors(struct end *end, int *descriptors, uint32_t capacity);
void send_close(struct end *end);

/* Takes the sockets, also when it fails. */
ncclResult_t receive_open(const struct net_peer *peer, const struct sock_interface *interface,
                          const struct endpoint *endpoint, const int *fds, void **connection);
ncclResult_t receive_begin(struct end *end, const struct net_part *first, size_t whole_bytes, void *data,
                           size_t bytes, void **request);
ncclResult_t receive_move(struct end *end);
uint32_t receive_descriptors(struct end *end, int *descriptors, uint32_t capacity);
void receive_close(struct end *end);

#endif
