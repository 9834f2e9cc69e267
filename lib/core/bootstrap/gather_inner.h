/* gather_inner.h: what the files of a gather share: gather.c (life, messages to and from the root),
 * allgather.c (the rounds that distribute peer info), watch.c (the links afterwards). The server's lock
 * guards everything here. */
#ifndef TUTTI_CORE_GATHER_INNER_H
#define TUTTI_CORE_GATHER_INNER_H

#include "core/bootstrap/control_conn.h"
#include "core/bootstrap/gather.h"

#define ROUNDS_MOST 24u
#define RANKS_MOST_BITS 20u

/* A connection to another process. `to`: this process sends its blocks of a round over it; `from`: it
 * receives blocks. */
struct gather_link {
  struct control_conn *conn; /* NULL: not connected yet, or no longer */
  struct wire_process peer;
  uint32_t process_index;
};

struct gather {
  struct gather *next;
  const char *call;
  uint64_t key, uid, signature, process; /* key: the secret's name */
  struct secret secret;
  struct gather_root *roots;
  uint32_t root_count, rank_count;
  bool child, fixed, lasting;
  bool cancelled, reported;    /* cancelled by this process; the root knows why the gather failed */
  struct sock_address address; /* of this process */
  uint32_t *own_ranks;         /* ranks checked in here; the root has been sent the first sent_count */
  uint32_t own_count, sent_count;
  struct wire_writer own_infos; /* wire_info and bytes of each */
  struct control_conn *root;
  struct sock_address root_address;
  uint32_t root_index;
  os_cond changed;
  uint64_t deadline_ns;
  uint32_t cancel; /* read atomically, by waits on sockets */
  ncclResult_t code;
  char reason[WIRE_TEXT_MOST];
  char missing[256];
  struct wire_status status;
  bool status_new, rostered;
  struct wire_roster roster;
  struct gather_link to[ROUNDS_MOST], from[ROUNDS_MOST];
  uint8_t *raw[ROUNDS_MOST]; /* bytes received in each round */
  uint32_t raw_bytes[ROUNDS_MOST];
  uint8_t *own_block;
  const uint8_t **blocks; /* by process */
  struct gather_rank *ranks;
  struct sock_address *addresses;
  bool complete;
  uint32_t agree_turn; /* of the last agreement */
  int32_t agree_code;
  uint32_t agree_about;
  uint64_t agree_detail;
  char agree_text[WIRE_TEXT_MOST];
  bool news; /* a process was lost or has failed before there was a watch to report it to */
  struct wire_fail news_about;
  char news_text[WIRE_TEXT_MOST];
  struct gather_cost cost;
};

/* Locked. */
void gather_fail(struct gather *gather, ncclResult_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Locked: waits until something changes; false at the deadline. A process that slept past the deadline (it
 * was stopped, or the machine was) first processes what has arrived meanwhile. */
bool gather_await(struct gather *gather);
/* The link to this process broke: reports it to the root, which can tell which process failed. */
void gather_suspect(struct gather *gather, const struct wire_process *peer, const char *why);
struct gather *gather_find(uint64_t uid);
extern const struct control_class gather_root_class; /* connections to roots */
const char *wire_process_text(const struct wire_process *process, char *text, size_t bytes);
/* True if the watch takes over this round's links. */
bool gather_keeps(const struct gather *gather, uint32_t round);

/* Unlocked: connects and does the handshake. A failure is not logged if the gather has ended meanwhile. */
ncclResult_t gather_dial(struct gather *gather, const struct sock_address *to, enum handshake_kind kind,
                         uint64_t key, const struct secret *secret, const char *what, int *fd,
                         struct session *session);
/* Unlocked: runs all rounds. */
ncclResult_t gather_allgather(struct gather *gather);

#endif
