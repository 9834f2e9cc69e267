/* fuzz_frames.c: any bytes as the messages of authenticated connections: to a root, through another root,
 * from a root, between processes, and as calls. Input: pieces of {connection, length, bytes}. Nothing may
 * crash, hang or leak. */
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
#define KEY 0x1234u

static struct control_conn *conn_open(const char *(*accept)(struct control_conn *), uint64_t key, void *owner,
                                      const struct control_class *conn_class, int *other) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) abort();
  *other = fds[1];
  struct control_conn *conn = control_adopt(fds[0], conn_class, owner);
  if (!conn) abort();
  conn->key = key;
  if (accept && accept(conn) != NULL) abort();
  return conn;
}

static void feed_all(struct control_conn **conns, const uint8_t *data, size_t size) {
  while (size >= 2) {
    struct control_conn *conn = conns[data[0] % CONNS];
    size_t bytes = data[1];
    data += 2;
    size -= 2;
    if (bytes > size) bytes = size;
    if (!conn->dead && !conn->ending) control_feed(conn, data, bytes);
    data += bytes;
    size -= bytes;
  }
}

static void input_run(const uint8_t *data, size_t size) {
  struct control_conn *conns[CONNS];
  int others[CONNS];
  struct sock_address address;
  struct gather *gather = NULL;
  bool dropped;
  if (control_use(&address) != ncclSuccess || root_register(KEY, false, &dropped) != ncclSuccess) abort();
  const struct gather_call call = {"fuzz", KEY, &address, 1, false, 4, 1, false, false};
  if (gather_open(&call, &gather) != ncclSuccess || gather_check_in(gather, 0, "peer info", 4) != ncclSuccess)
    abort();
  control_lock();
  conns[0] = conn_open(root_accept, KEY, NULL, &gather_root_class, &others[0]);
  conns[1] = conn_open(root_accept, KEY, NULL, &gather_root_class, &others[1]);
  conns[2] = conn_open(gather_accept, gather->uid, NULL, &gather_root_class, &others[2]);
  conns[3] = conn_open(call_accept, KEY, NULL, &gather_root_class, &others[3]);
  conns[4] = gather->root = conn_open(NULL, KEY, gather, &gather_root_class, &others[4]);
  feed_all(conns, data, size); /* all at once: closed connections are freed only when the lock is released */
  control_unlock();
  for (uint32_t i = 0; i < CONNS; i++) close(others[i]);
  gather_close(gather);
  root_over(KEY);
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
