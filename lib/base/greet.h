/* greet.h: how both ends of a connection make sure of each other before anything else is said: magic,
 * version, what the connection is for, and, where TUTTI_SECRET is set, that both know it (a keyed hash over
 * both ends' fresh random numbers, by nettle). Strangers get nothing, hold nothing up, and are counted. A
 * greeting is of fixed size, so nothing that a stranger says is ever taken for a length. */
#ifndef TUTTI_BASE_GREET_H
#define TUTTI_BASE_GREET_H

#include "base/sock.h"

enum greet_state { GREET_MORE, GREET_DONE, GREET_GONE };
enum greet_kind { GREET_CHECK_IN = 1, GREET_LINK = 2, GREET_CALL = 3, GREET_DATA = 4, GREET_SHARE = 5 };

/* The dialer's side, right behind sock_connect(). `key` says which communicator, id or listener is meant; the
 * acceptor sees it. Refused (another secret, another version, no such key): ncclRemoteError, with the
 * acceptor's reason. */
ncclResult_t greet_dial(int fd, enum greet_kind kind, uint64_t key, const struct sock_wait *wait);

/* The same for a dialer that must not wait: call greet_dialer_step() whenever the socket may have moved,
 * until GREET_DONE: welcome; or GREET_GONE: `reason` says why, "" when the other end hung up silently. */
struct greet_dialer {
  int fd;
  uint8_t phase, challenged;
  uint32_t moved; /* bytes of the current message */
  uint8_t hello[64], head[64], challenge[64], proof[32], verdict[128];
};
void greet_dialer_begin(struct greet_dialer *dialer, int fd, enum greet_kind kind, uint64_t key);
enum greet_state greet_dialer_step(struct greet_dialer *dialer, char *reason, size_t reason_bytes);

/* The acceptor's side, which never waits: call greet_step() whenever the socket may have moved. */
struct greeting {
  int fd;
  uint8_t phase;
  uint32_t moved;       /* bytes of the current message */
  uint64_t begin_ns;    /* for the acceptor's own deadline */
  enum greet_kind kind; /* valid from GREET_DONE on */
  uint64_t key;
  uint8_t own[64], other[64];
};
#define GREET_SECONDS 10 /* an acceptor drops whoever is not through by then */
void greet_begin(struct greeting *greeting, int fd);
/* GREET_DONE: the dialer is who it should be and waits for greet_answer(); GREET_GONE: it is not, or closed:
 * counted and, once a minute, logged; the caller closes the socket. */
enum greet_state greet_step(struct greeting *greeting);
/* Lets it in, or tells it why not (a short text; NULL: welcome). False when the connection is gone. */
bool greet_answer(struct greeting *greeting, const char *refusal);

/* Connections of this process that were dropped in greeting, by reason, since the start. */
struct greet_counts {
  uint64_t strangers, wrong_secret, wrong_version, late, refused;
};
struct greet_counts greet_counted(void);
/* True when TUTTI_SECRET is set. A file that cannot be read, or is empty: ncclInvalidUsage at the first
 * greeting and from greet_check(). */
bool greet_secret(void);
ncclResult_t greet_check(void);

#endif
