/* control_conn.h: internals of the control server: authenticated connections that carry sealed frames. Call
 * every function with the server locked; the functions of a class are called locked, on the server's thread.
 */
#ifndef TUTTI_CORE_CONTROL_CONN_H
#define TUTTI_CORE_CONTROL_CONN_H

#include "base/handshake.h"
#include "base/os.h"
#include "core/bootstrap/wire.h"

struct control_conn;

/* The purpose of a connection. */
struct control_class {
  const char *name;
  /* Maximum body of a frame of this kind in the present state; CONTROL_UNKNOWN: not allowed, the connection
   * is dropped. */
  uint32_t (*limit)(struct control_conn *conn, uint32_t kind);
  void (*frame)(struct control_conn *conn, uint32_t kind, const uint8_t *body, uint32_t bytes);
  /* The other end closed, fell silent or violated the protocol; `why` says which ("closed its connection").
   * The connection is closed right after. */
  void (*gone)(struct control_conn *conn, const char *why);
  bool lingers;          /* its queued output is sent before the server ends */
  size_t queued_most;    /* bytes of unsent output; with more the connection is lost */
  uint32_t idle_seconds; /* closed after this time without a frame; 0: never */
};
#define CONTROL_UNKNOWN UINT32_MAX

struct control_conn {
  int fd; /* -1: closed, waits to be freed */
  const struct control_class *conn_class;
  void *owner;  /* for the class */
  uint64_t key; /* whose secret both ends have proved to know */
  struct session session;
  uint32_t number, round; /* for the class */
  bool beats;             /* sends heartbeats; silence of the other end counts as a loss */
  bool hurried;           /* must send its first frame within HANDSHAKE_SECONDS */
  bool ending; /* closed once all output is sent and the other end has closed, or after a timeout */
  bool broken, writes, dead;
  bool local; /* over the UNIX socket, from the process's own user or root */
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
bool control_wait(os_cond *cond, uint64_t deadline_ns); /* unlocks while it waits; false at the deadline */

/* Turns a connected and authenticated socket into a connection. NULL (logged) if memory is out; fd is closed
 * then. */
struct control_conn *control_adopt(int fd, const struct session *session,
                                   const struct control_class *conn_class, void *owner);
/* Sends, or queues what the socket does not take now. False if the connection is gone or memory is out; the
 * class's gone() is then called on the server's thread. */
bool control_send(struct control_conn *conn, enum frame_kind kind, const void *head, size_t head_bytes,
                  const void *body, size_t bytes);
/* Processes received bytes. May close the connection, which the server's thread frees later. */
void control_feed(struct control_conn *conn, const uint8_t *data, size_t bytes);
/* From a class's frame(): transfers the body to the caller, who calls os_free. */
uint8_t *control_take_body(struct control_conn *conn);
/* Closes at once, without calling gone(). */
void control_drop(struct control_conn *conn);
/* Sends a goodbye and all queued output, and closes when the other end has closed. Does not call gone(). */
void control_end(struct control_conn *conn);
/* control_end() for all connections of this owner. */
void control_end_all(const void *owner);

/* Adds an address to listen on, for NCCL_COMM_ID, until the server ends. */
ncclResult_t control_listen(const struct sock_address *at);
bool control_is_own(const struct sock_address *address);
/* A random number that identifies this process; new after a fork. */
uint64_t control_process(void);
/* At most this many connections of one class that others can open; less than the limit of descriptors. */
uint32_t control_conns_most(void);
uint32_t control_count(const struct control_class *conn_class);
/* Closes the connection of this class that has been idle longest; false if there is none. */
bool control_drop_idle(const struct control_class *conn_class);
/* Counts a connection that violated the protocol, and logs it at most once a second. */
void control_note_nonsense(const char *text);
/* Makes the server's thread run its ticks soon. */
void control_wake(void);

/* The secrets of keys that connections of each kind may have; false: there is no such key. local: over a
 * UNIX socket, by this process's user or root. */
bool root_secret(uint64_t key, bool local, struct secret *secret);
bool gather_secret(uint64_t uid, struct secret *secret);
bool call_secret(uint64_t key, struct secret *secret);
bool status_secret(bool local, uint64_t key, struct secret *secret);
/* Accept a connection, each in its own file: set conn->conn_class, or return a refusal. */
const char *root_accept(struct control_conn *conn);
const char *gather_accept(struct control_conn *conn);
const char *call_accept(struct control_conn *conn);
/* Runs what is due; returns the time of the next tick, UINT64_MAX for none. */
uint64_t root_tick(uint64_t now_ns);
/* Reports lost processes to the watches; unlocks during the reports. */
void watch_tick(void);
/* The server ends: drop all state. call_stop and root_forward_stop run first, unlocked. */
void root_stop(void);
void call_begin(void); /* the server has started */
void call_drop_idle(void);
void call_stop(void);
void root_forward_stop(void);
void call_forget(void); /* in a child after fork */
void root_forward_forget(void);
void root_forget(void);
void gather_forget(void);
void watch_forget(void);

#endif
