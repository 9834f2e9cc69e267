/* fuzz_frames.c: any bytes as the messages of authenticated connections: to a root, through another root,
 * from a root, between processes, and as calls. Input: pieces of {connection, length, bytes}; the bytes of a
 * connection are frames, which are sealed as its other end would. Nothing may crash, hang or leak. */
/* sources: core/bootstrap/control core/bootstrap/boot core/bootstrap/root
 * core/bootstrap/gather core/bootstrap/allgather.c core/bootstrap/watch.c core/bootstrap/wire base/ */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/os.h"
#include "core/bootstrap/control.h"
#include "core/bootstrap/gather_inner.h"
#include "core/bootstrap/root.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CONNS 5u
#define BODY_MOST 65536u

static const struct secret known = {{0x12, 0x34}};

/* The other end of a connection: its frame so far. */
struct other_end {
  int fd;
  struct seal seal;
  size_t have;
  uint8_t frame[sizeof(struct frame_head) + BODY_MOST + SEAL_BYTES];
};

static struct control_conn *conn_open(const char *(*accept)(struct control_conn *), uint64_t key, void *owner,
                                      const struct control_class *conn_class, struct other_end *other) {
  static const struct session session;
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) abort();
  memset(other, 0, sizeof *other);
  other->fd = fds[1];
  struct control_conn *conn = control_adopt(fds[0], &session, conn_class, owner);
  if (!conn) abort();
  conn->key = key;
  if (accept && accept(conn) != NULL) abort();
  return conn;
}

/* Adds a byte to the frame. A whole frame is sealed and sent; of one that is too long only the head. */
static void feed_byte(struct control_conn *conn, struct other_end *other, uint8_t byte) {
  struct frame_head head;
  other->frame[other->have++] = byte;
  if (other->have < sizeof head) return;
  memcpy(&head, other->frame, sizeof head);
  uint8_t *body = other->frame + sizeof head;
  if (head.bytes <= BODY_MOST && other->have < sizeof head + head.bytes) return;
  if (head.bytes <= BODY_MOST) {
    seal_close(&other->seal, &head, sizeof head, body, head.bytes, body + head.bytes);
    other->have += SEAL_BYTES;
  }
  control_feed(conn, other->frame, other->have);
  other->have = 0;
}

static void feed_all(struct control_conn **conns, struct other_end *others, const uint8_t *data,
                     size_t size) {
  while (size >= 2) {
    const uint32_t index = data[0] % CONNS;
    size_t bytes = data[1];
    data += 2;
    size -= 2;
    if (bytes > size) bytes = size;
    for (size_t i = 0; i < bytes && !conns[index]->dead && !conns[index]->ending; i++)
      feed_byte(conns[index], &others[index], data[i]);
    data += bytes;
    size -= bytes;
  }
}

static void input_run(const uint8_t *data, size_t size) {
  static struct other_end others[CONNS];
  const uint64_t key = secret_name(&known);
  struct control_conn *conns[CONNS];
  struct sock_address address;
  struct gather *gather = NULL;
  bool dropped;
  if (control_use(&address) != ncclSuccess || root_register(&known, false, false, &dropped) != ncclSuccess)
    abort();
  const struct gather_root root = {address, known};
  const struct gather_call call = {"fuzz", known, &root, 1, false, 4, 1, false, false};
  if (gather_open(&call, &gather) != ncclSuccess || gather_check_in(gather, 0, "peer info", 4) != ncclSuccess)
    abort();
  control_lock();
  conns[0] = conn_open(root_accept, key, NULL, &gather_root_class, &others[0]);
  conns[1] = conn_open(root_accept, key, NULL, &gather_root_class, &others[1]);
  conns[2] = conn_open(gather_accept, gather->uid, NULL, &gather_root_class, &others[2]);
  conns[3] = conn_open(call_accept, key, NULL, &gather_root_class, &others[3]);
  conns[4] = gather->root = conn_open(NULL, key, gather, &gather_root_class, &others[4]);
  feed_all(conns, others, data, size); /* closed connections are freed only when the lock is released */
  control_unlock();
  for (uint32_t i = 0; i < CONNS; i++) close(others[i].fd);
  gather_close(gather);
  root_over(key);
  control_leave();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static bool prepared;
  if (!prepared) {
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    setenv("NCCL_SOCKET_RETRY_CNT", "0", 1);
    prepared = true;
  }
  const uint64_t before = os_alloc_live();
  input_run(data, size);
  if (os_alloc_live() != before) abort();
  return 0;
}
