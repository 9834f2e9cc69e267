/* wire.h: the protocol of authenticated control connections: frames, and how their bodies are written and
 * read. A frame is a head, a body of the length that the head states, which each receiver limits by kind, and
 * a tag: head and body are sealed with the keys of the handshake (base/secret.h). Numbers are in the host's
 * byte order: the handshake has checked that all hosts have the same. */
#ifndef TUTTI_CORE_WIRE_H
#define TUTTI_CORE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/secret.h"
#include "base/sock.h"

struct frame_head {
  uint32_t bytes; /* of the body */
  uint16_t kind, zero;
};

enum frame_kind {
  FRAME_BEAT = 1, /* heartbeat; empty */
  FRAME_GOODBYE,  /* orderly end; empty */
  /* process -> root */
  FRAME_CHECK_IN, /* struct wire_check_in */
  FRAME_RANKS,    /* uint32_t of each rank */
  FRAME_SUSPECT,  /* uint64_t uid of a process that cannot be reached; text */
  FRAME_AGREE,    /* struct wire_agreement; text */
  /* root -> process */
  FRAME_STATUS, /* struct wire_status; text */
  FRAME_ROSTER, /* struct wire_roster; for each round the process to send to */
  FRAME_AGREED, /* struct wire_agreement; text */
  /* both; process -> root: this process ends the gather; root -> process: the gather has ended. Between
     processes: a lost or failed process */
  FRAME_FAIL, /* struct wire_fail; text */
  /* root <-> root: a frame from or for one process */
  FRAME_FORWARD, /* struct wire_forward; body */
  FRAME_GONE,    /* as the body of a forwarded frame: the process's connection broke; text */
  /* process -> process */
  FRAME_HELLO,     /* struct wire_hello */
  FRAME_ALLGATHER, /* struct wire_allgather; blocks */
  /* calls */
  FRAME_CALL,   /* the question */
  FRAME_ANSWER, /* int32_t code; the answer, or text */
  FRAME_KIND_COUNT
};

#define WIRE_TEXT_MOST 512
#define WIRE_HOST_BYTES 64

struct wire_check_in {
  uint64_t uid, process, signature;
  uint64_t key; /* of the root; the connection's key says by whose secret the process was let in */
  uint32_t version, rank_count, pid;
  uint32_t child;   /* of a split, shrink or grow: no process has opened a root before */
  uint32_t first;   /* 1: sent to the first root, whatever its address */
  uint32_t lasting; /* as in bootstrap.h */
  struct sock_address address, first_root;
  struct secret forward; /* lets the process in at the first root, to pass this one on */
  char host[WIRE_HOST_BYTES];
};
struct wire_status {
  uint32_t seconds, present, rank_count, zero;
};
struct wire_roster {
  uint32_t process_index, process_count, round_count, zero;
  uint64_t instance; /* random: distinguishes communicators that are made one after another by one id */
};
struct wire_agreement {
  uint32_t turn;
  int32_t code;
  uint32_t process_index, zero; /* the process that a failure is about */
  uint64_t detail;              /* of the failure, for who asks to agree */
};
struct wire_fail {
  uint32_t process_index;
  int32_t code;
  uint64_t key; /* between processes: of the communicator that failed; 0: the process is lost */
};
struct wire_forward {
  uint64_t uid;
  uint32_t kind, zero;
};
struct wire_hello {
  uint32_t process_index, round;
};
struct wire_allgather {
  uint32_t round, block_count;
};
/* A process: its address, and its host and pid for messages. */
struct wire_process {
  uint64_t uid;
  struct sock_address address;
  uint32_t pid, zero;
  char host[WIRE_HOST_BYTES];
};
/* A block: one process and the peer info of its ranks. */
struct wire_block {
  uint32_t bytes, process_index, rank_count, zero; /* bytes: of the whole block */
  struct sock_address address;
};
/* Followed by the peer info and zeros up to a multiple of WIRE_ALIGN, so that a receiver can read in place.
 */
struct wire_info {
  uint32_t rank, bytes;
};
#define WIRE_ALIGN 8u
static inline uint32_t wire_padding(uint32_t bytes) { return (WIRE_ALIGN - bytes % WIRE_ALIGN) % WIRE_ALIGN; }

/* A body being written; `failed` stays set after the first failure. */
struct wire_writer {
  uint8_t *bytes;
  size_t used, capacity;
  bool failed;
};
void wire_put(struct wire_writer *writer, const void *data, size_t bytes);
void wire_free(struct wire_writer *writer);

/* A body being read; wire_take() returns false if fewer bytes are left. */
struct wire_reader {
  const uint8_t *at;
  size_t left;
};
bool wire_take(struct wire_reader *reader, void *data, size_t bytes);
/* The rest of the body as text: truncated to `out_bytes`, control characters replaced. */
void wire_take_text(struct wire_reader *reader, char *out, size_t out_bytes);

/* Send and receive a whole frame, blocking; for connections that are not the control server's. The body has
 * place for body_most bytes; a longer one is ncclRemoteError, as is one that was changed on the way. */
ncclResult_t wire_send(int fd, struct seal *seal, enum frame_kind kind, const void *body, uint32_t bytes,
                       const struct sock_wait *wait);
ncclResult_t wire_receive(int fd, struct seal *seal, struct frame_head *head, void *body, uint32_t body_most,
                          const struct sock_wait *wait);

/* "2, 5-7 and 12 more": the ranks whose byte in `taken` equals `which`, of rank_count. */
const char *wire_ranks_text(const uint8_t *taken, bool which, uint32_t rank_count, char *text, size_t bytes);

#endif
