/* handshake.h: how both ends of a connection make sure of each other before anything else is said: magic,
 * version, what the connection is for, and, where TUTTI_SECRET is set, that both know it (a keyed hash over
 * both ends' fresh random numbers, by nettle). Strangers get nothing, hold nothing up, and are counted. A
 * handshake is of fixed size, so nothing that a stranger says is ever taken for a length. */
#ifndef TUTTI_BASE_HANDSHAKE_H
#define TUTTI_BASE_HANDSHAKE_H

#include "base/sock.h"

enum handshake_state { HANDSHAKE_MORE, HANDSHAKE_DONE, HANDSHAKE_GONE };
enum handshake_kind {
  HANDSHAKE_CHECK_IN = 1,
  HANDSHAKE_LINK = 2,
  HANDSHAKE_CALL = 3,
  HANDSHAKE_DATA = 4,
  HANDSHAKE_SHARE = 5
};

/* The client's side, right behind sock_connect(). `key` says which communicator, id or listener is meant; the
 * server sees it. Refused (another secret, another version, no such key): ncclRemoteError, with the
 * server's reason. */
ncclResult_t handshake_dial(int fd, enum handshake_kind kind, uint64_t key, const struct sock_wait *wait);

/* The same for a client that must not wait: call handshake_client_step() whenever the socket may have moved,
 * until HANDSHAKE_DONE: welcome; or HANDSHAKE_GONE: `reason` says why, "" when the other end hung up
 * silently. */
struct handshake_client {
  int fd;
  uint8_t phase, challenged;
  uint32_t moved; /* bytes of the current message */
  uint8_t hello[64], head[64], challenge[64], proof[32], reply[128];
};
void handshake_client_begin(struct handshake_client *client, int fd, enum handshake_kind kind, uint64_t key);
enum handshake_state handshake_client_step(struct handshake_client *client, char *reason,
                                           size_t reason_bytes);

/* The server's side, which never waits: call handshake_step() whenever the socket may have moved. */
struct handshake {
  int fd;
  uint8_t phase;
  uint32_t moved;           /* bytes of the current message */
  uint64_t begin_ns;        /* for the server's own deadline */
  enum handshake_kind kind; /* valid from HANDSHAKE_DONE on */
  uint64_t key;
  uint8_t own[64], other[64];
};
#define HANDSHAKE_SECONDS 10 /* a server drops whoever is not through by then */
void handshake_begin(struct handshake *handshake, int fd);
/* HANDSHAKE_DONE: the client is who it should be and waits for handshake_answer(); HANDSHAKE_GONE: it is not,
 * or closed: counted and, once a minute, logged; the caller closes the socket. */
enum handshake_state handshake_step(struct handshake *handshake);
/* Lets it in, or tells it why not (a short text; NULL: welcome). False when the connection is gone. */
bool handshake_answer(struct handshake *handshake, const char *refusal);

/* Connections of this process that were dropped in handshake, by reason, since the start. */
struct handshake_counts {
  uint64_t strangers, wrong_secret, wrong_version, late, refused;
};
struct handshake_counts handshake_counted(void);
/* True when TUTTI_SECRET is set. A file that cannot be read, or is empty: ncclInvalidUsage at the first
 * handshake and from handshake_check(). */
bool handshake_secret(void);
ncclResult_t handshake_check(void);

#endif
