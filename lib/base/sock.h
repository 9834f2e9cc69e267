/* sock.h: the only access to sockets: addresses, choice of interfaces, streams with deadlines. Every wait has
 * a deadline and can be cancelled. Only this module, handshake.h, share.h and the backends may call the
 * corresponding libc functions. Knows nothing of the data on a connection. */
#ifndef TUTTI_BASE_SOCK_H
#define TUTTI_BASE_SOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* An IPv4 or IPv6 address as sent in unique ids and messages: 24 bytes, no padding, host byte order (all
 * hosts of a communicator have the same). */
struct sock_address {
  uint16_t family;   /* 4 or 6; SOCK_LOCAL: a UNIX socket of this host; 0: none */
  uint16_t port;     /* 0: none; SOCK_LOCAL: of the address that it stands for */
  uint32_t scope;    /* IPv6 link-local: index of the interface; sock_connect replaces it on other hosts */
  uint8_t bytes[16]; /* network order; IPv4: the first four; SOCK_LOCAL: its abstract name */
};
#define SOCK_LOCAL 1

#define SOCK_TEXT_BYTES 64
/* "10.0.0.1:4711" or "[fe80::1%eth0]:4711". Returns `out`. */
const char *sock_address_text(const struct sock_address *address, char out[SOCK_TEXT_BYTES]);
/* The reverse; accepts host names. ncclInvalidArgument names `what` (a variable, a call) and the text. */
ncclResult_t sock_address_parse(const char *text, const char *what, struct sock_address *address);
bool sock_address_equal(const struct sock_address *a, const struct sock_address *b);
/* True if the host of "host:port" is a literal address, not a name, which may resolve differently elsewhere.
 */
bool sock_text_is_literal(const char *text);
/* True for 127.0.0.0/8 and ::1. */
bool sock_is_loopback(const struct sock_address *address);
/* True if "host:port" or "host" is one of these, or "localhost". Resolves nothing. */
bool sock_text_is_loopback(const char *text);

#define SOCK_INTERFACES_MAX 16
struct sock_interface {
  char name[16];
  struct sock_address address; /* port 0 */
};
/* Interfaces that are up, in order of preference, at most SOCK_INTERFACES_MAX, with the first address of
 * each: those of NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY; else lo, if all ranks are on this host
 * (launch_is_local()); else names that begin with ib; else the subnet of `near` (may be NULL); else all
 * except docker*, lo and virbr*; else docker*; else lo; else virbr*.
 * ncclInvalidUsage, listing the interfaces, if the user's list matches none. */
ncclResult_t sock_interfaces_find(const struct sock_address *near, struct sock_interface *found,
                                  uint32_t *count);

/* What ends a wait. */
struct sock_wait {
  uint64_t deadline_ns;   /* os_time_ns(); 0: none */
  const uint32_t *cancel; /* read atomically; not 0: give up with ncclInvalidUsage; NULL: not cancellable */
  const char *what;       /* purpose of the connection, for messages: "rank 3 joining at" */
};

/* A listening socket, non-blocking, close-on-exec, with the largest possible backlog. Port 0 in `at` selects
 * a free port; *bound is the actual address. */
ncclResult_t sock_listen(const struct sock_address *at, int *fd, struct sock_address *bound);
/* The next connection, non-blocking, close-on-exec, TCP_NODELAY; -1: none now; -2: the process or the system
 * is out of descriptors or memory (logged once per minute). */
int sock_accept(int listener, struct sock_address *from);
/* Connects, with NCCL_SOCKET_RETRY_CNT retries while nothing listens there. The socket is non-blocking,
 * close-on-exec, TCP_NODELAY, with TCP_USER_TIMEOUT and keepalive set to the peer timeout. ncclRemoteError:
 * still refused; ncclSystemError: out of descriptors; both messages have the address and the cure. At a
 * SOCK_LOCAL address this process's user, or root, must listen; root may connect to any user's process that
 * stands for no port. */
ncclResult_t sock_connect(const struct sock_address *to, const struct sock_wait *wait, int *fd);
/* One attempt, for callers that retry themselves. *fd is -1, without a log line, if nothing listens yet,
 * there is no route yet, or the wait ended; errno says which (ECONNREFUSED: nothing listens). */
ncclResult_t sock_connect_once(const struct sock_address *to, const struct sock_wait *wait, int *fd);
/* Send or receive a whole message. ncclRemoteError if the other end closed or reset, or at the deadline; the
 * message has wait->what, the address and how much was missing. Never raises SIGPIPE. */
ncclResult_t sock_send(int fd, const void *data, size_t bytes, const struct sock_wait *wait);
ncclResult_t sock_receive(int fd, void *data, size_t bytes, const struct sock_wait *wait);
/* Non-blocking: return bytes moved; 0: nothing can move now; -1: the connection is gone (errno). */
ptrdiff_t sock_send_some(int fd, const void *data, size_t bytes);
ptrdiff_t sock_receive_some(int fd, void *data, size_t bytes);
/* Waits until fd is readable (or writable); false at the deadline or if cancelled. */
bool sock_poll(int fd, bool writes, const struct sock_wait *wait);
/* Sleeps; false if the wait ended earlier. */
bool sock_pause(uint64_t ms, const struct sock_wait *wait);
/* The error of a wait that has ended: ncclInvalidUsage if it was cancelled, ncclRemoteError at its deadline;
 * `missing` is added to the message. */
ncclResult_t sock_wait_over(const struct sock_wait *wait, const char *address, const char *missing);
void sock_close(int fd); /* -1 is allowed */
/* True if the other end of a SOCK_LOCAL connection is this process's user, or root, as the kernel knows. */
bool sock_peer_is_own(int fd);
/* The address of this end, or of the other end; family 0 if there is none. */
struct sock_address sock_local(int fd);
struct sock_address sock_peer(int fd);

#endif
