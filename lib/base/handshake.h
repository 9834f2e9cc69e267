/* handshake.h: how both ends of a connection prove to each other, before any other data, that they know the
 * secret of what the connection is for: of a unique id, of a communicator, of a listener. If TUTTI_SECRET is
 * set, they must know it too. Connections that prove nothing get no data, block nothing, and are counted.
 * Messages have a fixed size, so no input of a client is used as a length. */
#ifndef TUTTI_BASE_HANDSHAKE_H
#define TUTTI_BASE_HANDSHAKE_H

#include "base/secret.h"
#include "base/sock.h"

enum handshake_state { HANDSHAKE_MORE, HANDSHAKE_DONE, HANDSHAKE_GONE };
enum handshake_kind { HANDSHAKE_CHECK_IN = 1, HANDSHAKE_LINK = 2, HANDSHAKE_CALL = 3, HANDSHAKE_DATA = 4 };

/* What a server says to a client that has not proved anything: a number, so that the sentence in the client's
 * log is always this library's own. */
enum handshake_refusal {
  REFUSAL_NONE,
  REFUSAL_VERSION,    /* another version of the protocol */
  REFUSAL_KEY,        /* the server knows no such id, communicator or listener (any more, or not yet) */
  REFUSAL_PROOF,      /* the client does not know the secret */
  REFUSAL_SET_HERE,   /* TUTTI_SECRET is set at the server and not at the client */
  REFUSAL_SET_THERE,  /* ... at the client and not at the server */
  REFUSAL_UNREADABLE, /* the server cannot read its TUTTI_SECRET */
  REFUSAL_SAID,       /* after the proof: the sentence is the server's */
  REFUSAL_COUNT
};

/* The client's side, after sock_connect(). `key` is the public name of what the client wants, `secret` its
 * secret. *session (may be NULL) gets the keys of both directions. Refused: ncclRemoteError, with a sentence,
 * and *refusal (may be NULL) says why. */
ncclResult_t handshake_dial(int fd, enum handshake_kind kind, uint64_t key, const struct secret *secret,
                            const struct sock_wait *wait, struct session *session,
                            enum handshake_refusal *refusal);

/* Connects and does the handshake. A server that has too many connections in a handshake closes the oldest
 * without a word: then it tries again, until the wait ends. *fd is -1 after a failure. */
ncclResult_t handshake_connect(const struct sock_address *to, enum handshake_kind kind, uint64_t key,
                               const struct secret *secret, const struct sock_wait *wait, int *fd,
                               struct session *session, enum handshake_refusal *refusal);

/* One handshake over a connected socket, for callers that try again themselves: NULL if it succeeded; else
 * why it failed, in `why`: "" if the server closed without an answer, or the wait ended. Logs nothing. */
const char *handshake_try(int fd, enum handshake_kind kind, uint64_t key, const struct secret *secret,
                          const struct sock_wait *wait, struct session *session,
                          enum handshake_refusal *refusal, char *why, size_t why_bytes);

/* The same without blocking: call handshake_client_step() whenever the socket may be ready, until it returns
 * HANDSHAKE_DONE (accepted) or HANDSHAKE_GONE; `reason` then says why, "" if the server closed without a
 * word.
 */
struct handshake_client {
  int fd;
  uint8_t phase, challenged;
  uint8_t refusal; /* enum handshake_refusal */
  uint32_t moved;  /* bytes of the current message so far */
  uint8_t hello[64], head[64], challenge[64], proof[32], reply[128];
  struct secret secret;   /* with TUTTI_SECRET mixed in */
  struct session session; /* valid from HANDSHAKE_DONE on */
};
void handshake_client_begin(struct handshake_client *client, int fd, enum handshake_kind kind, uint64_t key,
                            const struct secret *secret);
enum handshake_state handshake_client_step(struct handshake_client *client, char *reason,
                                           size_t reason_bytes);

/* The secret of a key; false: the server does not know the key. */
typedef bool handshake_find(void *argument, enum handshake_kind kind, uint64_t key, struct secret *secret);

/* The server's side, which never blocks: call handshake_step() whenever the socket may be ready. */
struct handshake {
  int fd;
  uint8_t phase;
  uint32_t moved;    /* bytes of the current message so far */
  uint64_t begin_ns; /* for the server's own deadline */
  handshake_find *find;
  void *argument;
  enum handshake_kind kind; /* valid from HANDSHAKE_DONE on */
  uint64_t key;
  struct secret secret;   /* with TUTTI_SECRET mixed in */
  struct session session; /* valid from HANDSHAKE_DONE on */
  uint8_t own[64], other[64];
};
#define HANDSHAKE_SECONDS 10 /* a server drops clients that take longer */
void handshake_begin(struct handshake *handshake, int fd, handshake_find *find, void *argument);
/* HANDSHAKE_DONE: the client has proved that it knows the secret, and waits for handshake_answer().
 * HANDSHAKE_GONE: it failed or closed; this is counted, logged at most once per minute, and the caller closes
 * the socket. */
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
/* Mixes TUTTI_SECRET into a secret; without effect if it is not set. */
ncclResult_t handshake_mix(const struct secret *secret, const char *purpose, struct secret *mixed);

#endif
