/* root.h: the root's side of a gather: root.c collects processes; with several ids, root_forward.c forwards
 * the processes of another root to the first root. Every function is called with the server locked unless
 * its comment says otherwise. */
#ifndef TUTTI_CORE_ROOT_H
#define TUTTI_CORE_ROOT_H

#include "core/bootstrap/wire.h"

struct control_conn;

enum root_phase { ROOT_EMPTY, ROOT_FILLING, ROOT_ALLGATHER, ROOT_FAILED };

struct root_process {
  struct root *root;
  struct control_conn *conn; /* NULL: it has left */
  bool forwarded;            /* conn leads to another root */
  struct wire_check_in said;
  struct wire_process about;
  uint32_t place, number, rank_count, first_rank, agree_turn;
};

struct root {
  struct root *next;
  uint64_t key;
  uint64_t let_in, forward_key; /* processes check in here if they have proved one of these keys */
  struct secret secret;         /* of `key`, if it is registered */
  struct secret forward;        /* of `forward_key`: derived from it, for roots that forward to this one */
  bool registered;              /* belongs to an id, and stays until the id is over */
  bool lasting;                 /* serves one communicator after another */
  bool local;                   /* without TUTTI_SECRET, processes check in over a UNIX socket only */
  bool over, detached, called, call_due, calling, doomed;
  enum root_phase phase;
  struct root_process **processes;
  uint32_t process_count, process_capacity, live, left;
  uint32_t rank_count, present;
  uint32_t *ranks; /* 1 + place of the process; 0: free */
  uint64_t signature, bytes, instance;
  uint64_t begin_ns, due_ns, status_ns, status_gap_ns, suspect_ns;
  ncclResult_t code;
  uint32_t agree_turn, agree_count, agree_process, agree_about;
  uint64_t agree_detail;
  int32_t agree_code;
  char reason[WIRE_TEXT_MOST], suspicion[WIRE_TEXT_MOST], agree_text[WIRE_TEXT_MOST], scratch[WIRE_TEXT_MOST];
  /* root forwarding */
  bool forwards, dialed;
  struct sock_address first_root;
  struct secret first_forward; /* that root's `forward` */
  struct control_conn *up;
  struct wire_writer pending; /* frames for the first root, until it is reached */
};

struct root *root_find(uint64_t key);
/* True if an id's root is open and no rank has checked in yet. */
bool root_waits(uint64_t key);
void root_fail(struct root *root, ncclResult_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* forwarded: by another root, so this root is the first. NULL: refused, with a code and a message. */
struct root_process *root_check_in(struct control_conn *conn, bool forwarded, struct wire_reader *body,
                                   ncclResult_t *code, const char **why);
void root_process_frame(struct root_process *process, uint32_t kind, struct wire_reader *reader);
void root_process_gone(struct root_process *process, const char *why);

/* What a root that forwards proves to the first root, whose id has `secret`. */
void root_forward_secret(const struct secret *secret, struct secret *forward);
/* In a process whose ids have their first root in another process: */
void root_forward_open(struct root *root);
void root_forward_up(struct root *root, const struct root_process *process, uint32_t kind,
                     struct wire_reader *reader);
/* At the first root, for frames that another root forwards: */
uint32_t root_forward_limit(void);
void root_forwarded(struct control_conn *conn, struct wire_reader *reader);
void root_forward_lost(struct control_conn *conn, const char *why);
struct root *root_first(void);

/* ---- unlocked ---- */
/* Opens the root of an id, whose key is the secret's name. *dropped: the limit was reached, and the oldest
 * unused root was closed. */
ncclResult_t root_register(const struct secret *secret, bool lasting, bool local, bool *dropped);
/* The key of an id whose root is open; 0 if there is none. */
uint64_t root_waiting(void);
/* Closes the root of an id; true if it was open. */
bool root_over(uint64_t key);
void root_set_called(void (*called)(uint64_t key));
/* Bytes that the root sent and received; 0 if it is not in this process. */
uint64_t root_bytes(uint64_t key);

#endif
