/* handshake.h: how both ends of a connection authenticate each other before any other data: magic number,
 * version, purpose of the connection and, if TUTTI_SECRET is set, proof that both know the secret (an HMAC
 * over random numbers of both ends, by nettle). Unauthenticated clients get no data, block nothing, and are
 * counted. Messages have a fixed size, so no input of a client is used as a length. */
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

/* The client's side, after sock_connect(). `key` names the communicator, id or listener that the client
 * wants; the server gets it. Refused (wrong secret, other version, unknown key): ncclRemoteError, with the
 * server's reason. */
ncclResult_t handshake_dial(int fd, enum handshake_kind kind, uint64_t key, const struct sock_wait *wait);

/* The same without blocking: call handshake_client_step() whenever the socket may be ready, until it returns
 * HANDSHAKE_DONE (accepted) or HANDSHAKE_GONE; `reason` then says why, "" if the server closed without a
 * word.
 */
struct handshake_client {
  int fd;
  uint8_t phase, challenged;
  uint32_t moved; /* bytes of the current message so far */
  uint8_t hello[64], head[64], challenge[64], proof[32], reply[128];
};
void handshake_client_begin(struct handshake_client *client, int fd, enum handshake_kind kind, uint64_t key);
enum handshake_state handshake_client_step(struct handshake_client *client, char *reason,
                                           size_t reason_bytes);

/* The server's side, which never blocks: call handshake_step() whenever the socket may be ready. */
struct handshake {
  int fd;
  uint8_t phase;
  uint32_t moved;           /* bytes of the current message so far */
  uint64_t begin_ns;        /* for the server's own deadline */
  enum handshake_kind kind; /* valid from HANDSHAKE_DONE on */
  uint64_t key;
  uint8_t own[64], other[64];
};
#define HANDSHAKE_SECONDS 10 /* a server drops clients that take longer */
void handshake_begin(struct handshake *handshake, int fd);
/* HANDSHAKE_DONE: the client is authenticated and waits for handshake_answer(). HANDSHAKE_GONE: it failed or
 * closed; this is counted, logged at most once per minute, and the caller closes the socket. */
enum handshake_state handshake_step(struct handshake *handshake);
/* Accepts the client (refusal NULL), or refuses it with a short reason. False if the connection is gone. */
bool handshake_answer(struct handshake *handshake, const char *refusal);

/* Connections that this process dropped during the handshake since its start, by reason. */
struct handshake_counts {
  uint64_t strangers, wrong_secret, wrong_version, late, refused;
};
struct handshake_counts handshake_counted(void);
/* True if TUTTI_SECRET is set. If its file cannot be read or is empty, the first handshake and
 * handshake_check() return ncclInvalidUsage. */
bool handshake_secret(void);
ncclResult_t handshake_check(void);

#endif
