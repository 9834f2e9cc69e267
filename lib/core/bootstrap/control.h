/* control.h: the process's control server: one thread, one listening socket for all communicators of the
 * process. Whoever connects is authenticated (base/handshake.h) and handed to what its connection is for: a
 * root where ranks check in (bootstrap.h), a link between processes (gather.h), or a call, one question and
 * one answer, to a communicator. Strangers cost a bounded number of descriptors for a bounded time. The
 * server starts when first used and ends when nothing uses it; after a fork the child has none until it
 * starts its own. */
#ifndef TUTTI_CORE_CONTROL_H
#define TUTTI_CORE_CONTROL_H

#include "base/handshake.h"
#include "base/text.h"

/* One more user of the server; *address is where other processes reach it. */
ncclResult_t control_use(struct sock_address *address);
void control_leave(void);

/* Connections that passed their handshake and then said what nobody may say, since the start. */
uint64_t control_nonsense(void);

/* Answers a call, on a thread beside the server's that answers one after another: must not wait for other
 * ranks. The answer's bytes go to `reply` (CONTROL_REPLY_MOST of space; set *reply_bytes). A failure travels
 * back as its code and sentence. */
#define CONTROL_REQUEST_MOST 65536
#define CONTROL_REPLY_MOST 65536
typedef ncclResult_t control_handler(void *argument, const void *request, uint32_t bytes, void *reply,
                                     uint32_t *reply_bytes);
ncclResult_t control_serve(uint64_t key, control_handler *handler, void *argument);
/* Comes back when the handler runs no more. */
void control_unserve(uint64_t key);

/* Asks the process at `to`. Any thread; blocks until the answer is there or `wait` is over. Connections to
 * one process are kept for the next call. An answer that is a failure is logged here and returned. */
ncclResult_t control_call(const struct sock_address *to, uint64_t key, const struct sock_wait *wait,
                          const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes);
/* The same in one try, for who can do without an answer, and wants to know why there is none: its process
 * answers nothing under this key, nobody listens where it did, or it has not answered in time (or failed). */
enum control_outcome { CONTROL_ANSWERED, CONTROL_NOBODY, CONTROL_GONE, CONTROL_SILENT };
enum control_outcome control_ask(const struct sock_address *to, uint64_t key, const struct sock_wait *wait,
                                 const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes);

#endif
