/* frame.h: the only bytes of our own on a connection: sixteen before each message, and sixteen for each
 * receive that is announced to the sender. Promises that no byte from outside is taken for more than it may
 * be: magic, kind, number and size are checked here. Knows nothing of sockets. */
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
  FRAME_TOO_LONG = 2, /* sender: message `number` has `bytes`, more than the credit, and does not follow */
  FRAME_CREDIT = 3    /* receiver: receive `number` has space for `bytes` */
};

struct frame {
  enum frame_kind kind;
  uint32_t number; /* counts messages, or receives, from 0, modulo 2^32 */
  uint64_t bytes;
};

void frame_write(const struct frame *frame, uint8_t out[FRAME_BYTES]);
/* What is wrong with it, or NULL: other magic, an unknown kind, another number than `number`, too many bytes.
 */
const char *frame_read(const uint8_t in[FRAME_BYTES], uint32_t number, struct frame *frame);

/* What a handle says: where the listener is, and how the receiver wants messages cut. */
struct endpoint {
  struct sock_address address;
  uint64_t number;       /* random; with the communicator's key it makes the key of the handshake */
  uint32_t data_sockets; /* data sockets */
  uint32_t threads;      /* helper threads a side; at most one a data socket */
  uint32_t whole_bytes;  /* longest message that goes over the stream, when there are data sockets */
  uint32_t inline_bytes; /* of longer ones, what does */
  uint32_t task_bytes;   /* the least that is worth a data socket of its own */
};
void endpoint_write(const struct endpoint *endpoint, struct net_handle *handle);
/* False when these bytes are no endpoint. */
bool endpoint_read(const struct net_handle *handle, struct endpoint *endpoint);
/* The handshake's key of socket `index` of a connection: the low eight bits are the index. */
uint64_t endpoint_key(const struct endpoint *endpoint, uint64_t comm_key, uint32_t index);

/* How a message is cut: `stream_bytes` go over the stream, the rest in `tasks` pieces of `task_bytes` (the
 * last may be shorter) to one data socket each. A pure function, so both ends cut alike. */
struct cut {
  size_t stream_bytes, task_bytes;
  uint32_t tasks;
};
struct cut message_cut(const struct endpoint *endpoint, size_t bytes);

#endif
