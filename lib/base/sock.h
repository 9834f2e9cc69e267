/* sock.h: the one door to sockets: addresses, the choice of interfaces, streams with deadlines. Every wait
 * has a deadline and may be called off. Only this module, handshake.h, share.h and the backends may call the
 * corresponding libc functions. Knows nothing of what is said over a connection. */
#ifndef TUTTI_BASE_SOCK_H
#define TUTTI_BASE_SOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* An address of IPv4 or IPv6 as it travels in unique ids and messages: 24 bytes, no padding, the host's byte
 * order (all hosts of a communicator have the same). */
struct sock_address {
  uint16_t family;   /* 4 or 6; 0: none */
  uint16_t port;     /* 0: none */
  uint32_t scope;    /* IPv6 link-local: index of the interface; on other hosts sock_connect finds theirs */
  uint8_t bytes[16]; /* network order; IPv4: the first four */
};

#define SOCK_TEXT_BYTES 64
/* "10.0.0.1:4711" or "[fe80::1%eth0]:4711". Returns `out`. */
const char *sock_address_text(const struct sock_address *address, char out[SOCK_TEXT_BYTES]);
/* The reverse, host names allowed: ncclInvalidArgument naming `what` (a variable, a call) and the text. */
ncclResult_t sock_address_parse(const char *text, const char *what, struct sock_address *address);
bool sock_address_equal(const struct sock_address *a, const struct sock_address *b);
/* The host of "host:port" is an address, not a name that may mean other addresses elsewhere. */
bool sock_text_is_literal(const char *text);

#define SOCK_INTERFACES_MAX 16
struct sock_interface {
  char name[16];
  struct sock_address address; /* port 0 */
};
/* Interfaces that are up, in the order of preference, at most SOCK_INTERFACES_MAX: NCCL_SOCKET_IFNAME and
 * NCCL_SOCKET_FAMILY, else names beginning with ib, else the subnet of `near` (may be NULL), else all but
 * docker*, lo and virbr*, else docker*, else lo, else virbr*; the first address of each. A user's list that
 * matches nothing is ncclInvalidUsage and names what there is. */
ncclResult_t sock_interfaces_find(const struct sock_address *near, struct sock_interface *found,
                                  uint32_t *count);

/* What calls a wait off, beside its deadline. */
struct sock_wait {
  uint64_t deadline_ns;   /* os_time_ns(); 0: none */
  const uint32_t *cancel; /* read atomically; not 0: give up with ncclInvalidUsage; NULL: nobody can */
  const char *what;       /* "rank 3 joining at", for sentences: what the connection is for */
};

/* A listening socket, non-blocking, close-on-exec, with the largest backlog there is. `at` with port 0 takes
 * a free port; *bound is where it listens. */
ncclResult_t sock_listen(const struct sock_address *at, int *fd, struct sock_address *bound);
/* The next connection, non-blocking, close-on-exec, TCP_NODELAY; -1 when there is none now; -2 when the
 * process or the system is out of descriptors or memory (logged once a minute). */
int sock_accept(int listener, struct sock_address *from);
/* Connects, trying again NCCL_SOCKET_RETRY_CNT times while nobody listens there yet. The socket is
 * non-blocking, close-on-exec, TCP_NODELAY, with TCP_USER_TIMEOUT and keepalive of the peer timeout. Refused
 * to the end: ncclRemoteError; out of descriptors: ncclSystemError; both name the address and the cure. */
ncclResult_t sock_connect(const struct sock_address *to, const struct sock_wait *wait, int *fd);
/* One try, for who has a patience of its own: *fd is -1 where nobody listens yet, or there is no route yet,
 * or the wait was over; nothing is logged then, and errno says which (ECONNREFUSED: nobody listens). */
ncclResult_t sock_connect_once(const struct sock_address *to, const struct sock_wait *wait, int *fd);
/* Whole messages. The other end closed or reset: ncclRemoteError; the deadline: ncclRemoteError; the texts
 * name wait->what, the address and how much was missing. SIGPIPE never. */
ncclResult_t sock_send(int fd, const void *data, size_t bytes, const struct sock_wait *wait);
ncclResult_t sock_receive(int fd, void *data, size_t bytes, const struct sock_wait *wait);
/* Non-blocking halves: bytes moved; 0 when nothing can move now; -1 when the connection is gone (errno). */
ptrdiff_t sock_send_some(int fd, const void *data, size_t bytes);
ptrdiff_t sock_receive_some(int fd, void *data, size_t bytes);
/* Until fd is readable (or writable): true; false at the deadline or when called off. */
bool sock_poll(int fd, bool writes, const struct sock_wait *wait);
void sock_close(int fd); /* -1 is allowed */
/* The address of this process's end, or of the other one; family 0 when there is none. */
struct sock_address sock_local(int fd);
struct sock_address sock_peer(int fd);

#endif
