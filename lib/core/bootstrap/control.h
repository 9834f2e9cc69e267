/* control.h: the process's control server: one thread and one listening socket for all communicators of the
 * process. It authenticates each connection (base/handshake.h) and hands it to its class: a root, where ranks
 * check in (bootstrap.h), a link between processes (gather.h), or a call to a communicator, which is one
 * question and one answer. Unauthenticated connections are bounded in number and time. The server starts at
 * the first use and ends after the last; after a fork the child has no server until it starts its own. */
#ifndef TUTTI_CORE_CONTROL_H
#define TUTTI_CORE_CONTROL_H

#include "base/handshake.h"
#include "base/os.h"
#include "base/text.h"

/* Where a process of this host is asked by its own user, or by root: a socket whose ends know each other's
 * users from the kernel. */
struct sock_address control_local(const struct os_process *process);
/* Adds a user of the server; *address is where other processes reach it. */
ncclResult_t control_use(struct sock_address *address);
void control_leave(void);

/* Authenticated connections that violated the protocol, since the start. */
uint64_t control_nonsense(void);

/* Answers a call, on a thread that answers calls one after another and is not the server's: a handler must
 * not wait for other ranks. It writes the answer to `reply` (CONTROL_REPLY_MOST bytes) and sets *reply_bytes.
 * A failure is returned to the caller as code and message. */
#define CONTROL_REQUEST_MOST 65536
#define CONTROL_REPLY_MOST 65536
typedef ncclResult_t control_handler(void *argument, const void *request, uint32_t bytes, void *reply,
                                     uint32_t *reply_bytes);
/* Callers must know the secret; its name is the key. */
ncclResult_t control_serve(const struct secret *secret, control_handler *handler, void *argument);
/* Callers are the process's own user, or root, on its host (control_local); or know TUTTI_SECRET, if it is
 * set. They call with control_status_secret(). */
ncclResult_t control_serve_status(control_handler *handler, void *argument);
void control_unserve_status(void);
struct secret control_status_secret(void);
/* Until control_unserve(), keeps the server, and lets those who know the secret check in with a root of this
 * process that the first of them opens: ranks by which a communicator grows. */
ncclResult_t control_admit(const struct secret *secret);
/* Returns when the handler runs no more. Does nothing if there is no such key. */
void control_unserve(uint64_t key);

/* Asks the process at `to`. Any thread; blocks until the answer arrives or `wait` expires. Connections are
 * kept for the next call to the same process. A failure in the answer is logged and returned. */
ncclResult_t control_call(const struct sock_address *to, const struct secret *secret,
                          const struct sock_wait *wait, const void *request, uint32_t bytes, void *reply,
                          uint32_t *reply_bytes);
/* As control_call(), in one try, for callers that can do without an answer and need to know why there is
 * none. NOBODY: the process has no handler for this key; GONE: nothing listens at the address; SILENT: no
 * answer in time, or a failure. */
enum control_outcome { CONTROL_ANSWERED, CONTROL_NOBODY, CONTROL_GONE, CONTROL_SILENT };
enum control_outcome control_ask(const struct sock_address *to, const struct secret *secret,
                                 const struct sock_wait *wait, const void *request, uint32_t bytes,
                                 void *reply, uint32_t *reply_bytes);

#endif
