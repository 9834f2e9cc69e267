/* control_conn.h: the control server from within: connections that have been authenticated, as frames in and
 * out. Everything here is called with the server locked; classes' functions are called so, on its thread. */
#ifndef TUTTI_CORE_CONTROL_CONN_H
#define TUTTI_CORE_CONTROL_CONN_H

#include "base/handshake.h"
#include "base/os.h"
#include "core/bootstrap/wire.h"

struct control_conn;

/* What a connection is for. */
struct control_class {
  const char *name;
  /* The longest body of this kind that may come now; CONTROL_UNKNOWN: none may, the connection is dropped. */
  uint32_t (*limit)(struct control_conn *conn, uint32_t kind);
  void (*frame)(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes);
  /* The other end is gone, silent or talks nonsense, as `why` says ("closed its connection"); the connection
   * is closed right after. */
  void (*gone)(struct control_conn *conn, const char *why);
  bool lingers; /* what it said last is let out before the server ends */
};
#define CONTROL_UNKNOWN UINT32_MAX

struct control_conn {
  int fd; /* -1: closed, waits to be freed */
  const struct control_class *conn_class;
  void *owner; /* the class's */
  uint64_t key;
  uint32_t number, round; /* the class's */
  bool beats;             /* heartbeats out, and silence is a loss */
  bool hurried;           /* HANDSHAKE_SECONDS to say what it wants */
  bool ending;            /* closed when everything is out and the other end has closed, or in a while */
  bool broken, writes, dead;
  struct handshake *handshake;
  struct frame_head head;
  uint32_t head_bytes, body_bytes, body_capacity;
  uint8_t *body;
  uint8_t *out;
  size_t out_begin, out_end, out_capacity;
  uint64_t begin_ns, received_ns, sent_ns; /* ending: begin_ns is when it began to end */
  uint64_t received_bytes, sent_bytes;
  struct control_conn *previous, *next;
};

void control_lock(void);
void control_unlock(void);
bool control_wait(os_cond *cond, uint64_t deadline_ns); /* unlocked meanwhile; false at the deadline */

/* A dialed and authenticated socket becomes a connection; NULL (logged) when memory is out, and fd is closed.
 */
struct control_conn *control_adopt(int fd, const struct control_class *conn_class, void *owner);
/* Sends, or queues what cannot go now. False when the connection is gone, or memory is: its class will hear
 * of it on the server's thread. */
bool control_send(struct control_conn *conn, enum frame_kind kind, const void *head, size_t head_bytes,
                  const void *body, size_t bytes);
/* Bytes that came over a connection, which may be closed when it returns: freed by the server's thread. */
void control_feed(struct control_conn *conn, const uint8_t *data, size_t bytes);
/* From a class's frame(): the body becomes the caller's, for os_free. */
uint8_t *control_take_body(struct control_conn *conn);
/* Closes at once, and its class hears nothing. */
void control_drop(struct control_conn *conn);
/* Says goodbye, lets everything out, and closes when the other end has; its class hears nothing more. */
void control_end(struct control_conn *conn);
/* All connections of this owner. */
void control_end_all(const void *owner);

/* Another address to listen at, for NCCL_COMM_ID, until the server ends. */
ncclResult_t control_listen(const struct sock_address *at);
bool control_is_own(const struct sock_address *address);
/* A number of this process, new after a fork. */
uint64_t control_process(void);
/* Something wants control's ticks soon. */
void control_wake(void);

/* Who takes connections, in their own files. root_accept and gather_accept set conn->conn_class, or return a
 * refusal. */
const char *root_accept(struct control_conn *conn);
const char *gather_accept(struct control_conn *conn);
const char *call_accept(struct control_conn *conn);
/* Something of theirs is due at the time returned; UINT64_MAX: nothing. */
uint64_t root_tick(uint64_t now_ns);
/* Losses that somebody is to be told of; unlocked while they are told. */
void watch_tick(void);
/* The server ends: forget everything. call_stop and root_forward_stop run unlocked, first. */
void root_stop(void);
void call_begin(void); /* the server has started */
void call_stop(void);
void root_forward_stop(void);
void call_forget(void); /* in a child after fork */
void root_forward_forget(void);
void root_forget(void);
void gather_forget(void);
void watch_forget(void);

#endif
