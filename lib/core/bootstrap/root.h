/* root.h: the root's side of a gather, between its files: root.c collects processes, root_forward.c passes
 * the processes of another root on to the first. Everything is called with the server locked unless it says
 * otherwise. */
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
  bool registered; /* stays for an id, until that is over */
  bool lasting;    /* one communicator after another */
  bool over, detached, called, call_due, calling, doomed;
  enum root_phase phase;
  struct root_process **processes;
  uint32_t process_count, process_capacity, live, left;
  uint32_t rank_count, present;
  uint32_t *ranks; /* 1 + place of the process; 0: free */
  uint64_t signature, bytes;
  uint64_t begin_ns, due_ns, status_ns, status_gap_ns, suspect_ns;
  ncclResult_t code;
  uint32_t agree_turn, agree_count, agree_process, agree_about;
  int32_t agree_code;
  char reason[WIRE_TEXT_MOST], suspicion[WIRE_TEXT_MOST], agree_text[WIRE_TEXT_MOST], scratch[WIRE_TEXT_MOST];
  /* root forwarding */
  bool forwards, dialed;
  struct sock_address first_root;
  struct control_conn *up;
  struct wire_writer pending; /* frames for the first root, until it is reached */
};

struct root *root_find(uint64_t key);
/* An id's root is open, and its communicator has not begun to be. */
bool root_waits(uint64_t key);
void root_fail(struct root *root, ncclResult_t code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* forwarded: by another root; this one is the first. NULL: refused, with a code and a sentence. */
struct root_process *root_check_in(struct control_conn *conn, bool forwarded, struct wire_reader *body,
                                   ncclResult_t *code, const char **why);
void root_process_frame(struct root_process *process, uint32_t kind, struct wire_reader *reader);
void root_process_gone(struct root_process *process, const char *why);

/* Here, for processes whose root is another process: */
void root_forward_open(struct root *root);
void root_forward_up(struct root *root, const struct root_process *process, uint32_t kind,
                     struct wire_reader *reader);
/* There, for what comes from such a process: */
uint32_t root_forward_limit(void);
void root_forwarded(struct control_conn *conn, struct wire_reader *reader);
void root_forward_lost(struct control_conn *conn, const char *why);
struct root *root_first(void);

/* ---- unlocked ---- */
/* An id's root waits from now on; *dropped: another one, the oldest that nobody asked for, no longer does. */
ncclResult_t root_register(uint64_t key, bool lasting, bool *dropped);
/* The key of some id that waits; 0 when none does. */
uint64_t root_waiting(void);
/* True when the id was waiting until now. */
bool root_over(uint64_t key);
void root_set_called(void (*called)(uint64_t key));
/* What the root sent and received; 0 when it is not here. */
uint64_t root_bytes(uint64_t key);

#endif
