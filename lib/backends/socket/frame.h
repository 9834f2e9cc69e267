/* frame.h: the protocol's own bytes on a connection: 16 before each message, and 16 for each receive that is
 * announced to the sender. Validates whatever comes from the network: magic, kind, number and size. Does not
 * use sockets. */
#ifndef TUTTI_SOCKET_FRAME_H
#define TUTTI_SOCKET_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/net.h"
#include "base/sock.h"

#define FRAME_BYTES 16
#define MESSAGE_BYTES_MAX (1ull << 30)
#define DATA_SOCKETS_MAX 64                /* data sockets of a connection */
#define SOCKETS_MAX (2 + DATA_SOCKETS_MAX) /* and the stream and the credit socket */

enum frame_kind {
  FRAME_MESSAGE = 1,  /* sender: `bytes` of message `number` follow */
  FRAME_TOO_LONG = 2, /* sender: message `number` has `bytes`, more than the credit; no data follows */
  FRAME_CREDIT = 3    /* receiver: receive `number` has space for `bytes` */
};

struct frame {
  enum frame_kind kind;
  uint32_t number; /* of the message or receive, from 0, modulo 2^32 */
  uint64_t bytes;
};

void frame_write(const struct frame *frame, uint8_t out[FRAME_BYTES]);
/* Reads a frame that must have this number. Returns a text that says what is wrong with it, or NULL. */
const char *frame_read(const uint8_t in[FRAME_BYTES], uint32_t number, struct frame *frame);

/* The content of a handle: the listener's address, and how the receiver wants messages cut. */
struct endpoint {
  struct sock_address address;
  uint64_t number;       /* random; the handshake's key is made from it and the communicator's key */
  uint32_t data_sockets; /* number of them */
  uint32_t threads;      /* helper threads at each end; at most one for each data socket */
  uint32_t whole_bytes;  /* with data sockets: the longest message that goes over the stream as a whole */
  uint32_t inline_bytes; /* how much of a longer message goes over the stream */
  uint32_t task_bytes;   /* the smallest piece for a data socket */
};
void endpoint_write(const struct endpoint *endpoint, struct net_handle *handle);
/* False if the handle is not an endpoint. */
bool endpoint_read(const struct net_handle *handle, struct endpoint *endpoint);
/* The handshake's key of socket `index` of a connection: the low eight bits are the index. */
uint64_t endpoint_key(const struct endpoint *endpoint, uint64_t comm_key, uint32_t index);

/* How a message is cut: `stream_bytes` go over the stream, the rest over data sockets in `tasks` pieces of
 * `task_bytes` (the last may be shorter). Both ends compute the same cut from the endpoint and the size. */
struct cut {
  size_t stream_bytes, task_bytes;
  uint32_t tasks;
};
struct cut message_cut(const struct endpoint *endpoint, size_t bytes);

#endif
