/* wire.h: what control connections say once they have been greeted: frames, and how their bodies are written
 * and read. A frame is a head, then a body of as many bytes as the head says, which each receiver limits by
 * kind. Numbers are in the host's order: all hosts of a communicator have the same, and the greeting has seen
 * to it. */
#ifndef TUTTI_CORE_WIRE_H
#define TUTTI_CORE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sock.h"

struct frame_head {
  uint32_t bytes; /* of the body */
  uint16_t kind, zero;
};

enum frame_kind {
  FRAME_BEAT = 1, /* still here; nothing */
  FRAME_GOODBYE,  /* will say no more; nothing */
  /* party -> root */
  FRAME_CHECK_IN, /* struct wire_check_in */
  FRAME_SEATS,    /* uint32_t of each */
  FRAME_SUSPECT,  /* uint64_t uid of a party that cannot be reached; text */
  FRAME_AGREE,    /* struct wire_verdict; text */
  /* root -> party */
  FRAME_STATUS,  /* struct wire_status; text */
  FRAME_ROSTER,  /* struct wire_roster; for each round the party that this one sends to */
  FRAME_VERDICT, /* struct wire_verdict; text */
  /* both; party -> root: this party ends the gather; root -> party: it has ended. Between parties: news */
  FRAME_FAIL, /* struct wire_fail; text */
  /* root <-> root: a frame of, or for, one party */
  FRAME_RELAY, /* struct wire_relay; body */
  FRAME_GONE,  /* as the body of a relay: the party's connection broke; text */
  /* party -> party */
  FRAME_HELLO,    /* struct wire_hello */
  FRAME_EXCHANGE, /* struct wire_exchange; blocks */
  /* calls */
  FRAME_CALL,   /* the question */
  FRAME_ANSWER, /* int32_t code; the answer, or text */
  FRAME_KIND_COUNT
};

#define WIRE_TEXT_MOST 512
#define WIRE_HOST_BYTES 64

struct wire_check_in {
  uint64_t uid, process, signature;
  uint32_t version, seat_count, pid;
  uint32_t child;   /* no process holds a root for it before somebody comes */
  uint32_t first;   /* sent to the first root, by whatever address */
  uint32_t lasting; /* of bootstrap.h */
  struct sock_address address, first_root;
  char host[WIRE_HOST_BYTES];
};
struct wire_status {
  uint32_t seconds, present, seat_count, zero;
};
struct wire_roster {
  uint32_t party, party_count, round_count, zero;
};
struct wire_verdict {
  uint32_t turn;
  int32_t code;
  uint32_t party, zero; /* whom a failure is about */
};
struct wire_fail {
  uint32_t party;
  int32_t code;
  uint64_t key; /* between parties: of the communicator that failed; 0: the party is lost */
};
struct wire_relay {
  uint64_t uid;
  uint32_t kind, zero;
};
struct wire_hello {
  uint32_t party, round;
};
struct wire_exchange {
  uint32_t round, block_count;
};
/* A party, as others need it to reach it and to name it. */
struct wire_party {
  uint64_t uid;
  struct sock_address address;
  uint32_t pid, zero;
  char host[WIRE_HOST_BYTES];
};
/* A block: one party and the cards of its seats. */
struct wire_block {
  uint32_t bytes, party, seat_count, zero; /* bytes: of the whole block */
  struct sock_address address;
};
/* Then the card, and zeros up to a multiple of WIRE_ALIGN: whoever gets it may read it where it lies. */
struct wire_card {
  uint32_t seat, bytes;
};
#define WIRE_ALIGN 8u
static inline uint32_t wire_padding(uint32_t bytes) { return (WIRE_ALIGN - bytes % WIRE_ALIGN) % WIRE_ALIGN; }

/* A body being written; a failure sticks. */
struct wire_writer {
  uint8_t *bytes;
  size_t used, room;
  bool failed;
};
void wire_put(struct wire_writer *writer, const void *data, size_t bytes);
void wire_free(struct wire_writer *writer);

/* A body being read: false when so much is not there. */
struct wire_reader {
  const uint8_t *at;
  size_t left;
};
bool wire_take(struct wire_reader *reader, void *data, size_t bytes);
/* The rest as text: cut to the room, never with control characters in it. */
void wire_take_text(struct wire_reader *reader, char *out, size_t out_bytes);

/* "2, 5-7 and 12 more": seats that are taken (or not) of seat_count; `taken` has a byte a seat. */
const char *wire_seats_text(const uint8_t *taken, bool which, uint32_t seat_count, char *text, size_t bytes);

#endif
