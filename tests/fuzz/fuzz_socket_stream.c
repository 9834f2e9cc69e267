/* fuzz_socket_stream.c: any bytes as a sender's stream to a receiver: it ends with data in the posted memory
 * or with an error, and every frame or endpoint that was read is written the same. */
/* sources: backends/socket/ base/ */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/socket/socket.h"

enum { POSTED = 8, BYTES = 4096, DATA_SOCKETS = 2, CALLS = 64 };

static void frame_try(const uint8_t *data) {
  struct frame frame;
  uint8_t second[FRAME_BYTES];
  uint32_t number;
  memcpy(&number, data + 4, sizeof number);
  if (frame_read(data, number, &frame) != NULL) return;
  frame_write(&frame, second);
  if (memcmp(second, data, FRAME_BYTES) != 0) abort();
}

static void endpoint_try(const uint8_t *data, size_t size) {
  struct net_handle handle;
  struct endpoint endpoint;
  memset(&handle, 0, sizeof handle);
  memcpy(&handle, data, size < sizeof handle ? size : sizeof handle);
  if (!endpoint_read(&handle, &endpoint)) return;
  const struct cut cut = message_cut(&endpoint, size);
  if (cut.tasks > endpoint.data_sockets || cut.stream_bytes + cut.tasks * cut.task_bytes < size) abort();
}

static void pair_make(int fds[2]) {
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) abort();
}

/* The input goes over the stream, and over both data sockets too. */
static void receive_try(const uint8_t *data, size_t size) {
  static uint8_t memory[POSTED][BYTES];
  const struct net_peer peer = {1, 0, 1, "fuzz", NULL, 0};
  struct sock_interface interface;
  struct endpoint endpoint;
  int ends[SOCKET_DATA + DATA_SOCKETS], others[SOCKET_DATA + DATA_SOCKETS];
  void *connection = NULL, *requests[POSTED];
  memset(&interface, 0, sizeof interface);
  memset(&endpoint, 0, sizeof endpoint);
  endpoint.data_sockets = size % 2 != 0 ? DATA_SOCKETS : 0;
  endpoint.inline_bytes = 32;
  endpoint.task_bytes = 64;
  for (uint32_t i = 0; i < SOCKET_DATA + endpoint.data_sockets; i++) {
    int fds[2];
    pair_make(fds);
    ends[i] = fds[0];
    others[i] = fds[1];
    if (i != SOCKET_CREDIT && send(fds[1], data, size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) abort();
    shutdown(fds[1], SHUT_WR);
  }
  if (receive_open(&peer, &interface, &endpoint, ends, &connection) != ncclSuccess) abort();
  struct end *end = (struct end *)connection;
  for (int i = 0; i < POSTED; i++) receive_begin(end, NULL, 0, memory[i], (size_t)BYTES >> i, &requests[i]);
  ncclResult_t result = ncclSuccess;
  for (int call = 0; call < CALLS && result == ncclSuccess; call++) result = receive_move(end);
  receive_close(end);
  for (uint32_t i = 0; i < SOCKET_DATA + endpoint.data_sockets; i++) sock_close(others[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < FRAME_BYTES || size > 65536) return 0;
  frame_try(data);
  endpoint_try(data, size);
  receive_try(data, size);
  return 0;
}
