/* order.h: one order of events for the guarded worlds of several processes of a host. The processes of a
 * communicator share a page: whose turn it is, the state of the random numbers, the number of events, and for
 * each process how many of its actors may run and whether its threads wait. Events run only in the process
 * that has the turn, and only while the threads of all processes wait. That process picks the next actor
 * among those of all processes, and passes the turn on, with a futex, when the actor is another process's.
 * world.c is the only caller of most functions; it knows the actors, this file knows the processes.
 *
 * A process is `busy` while a thread that drives a rank is outside waiting calls. It is `excused` when it is
 * busy for long, asleep in the kernel or away for TUTTI_STALL_SECONDS: it may wait for something that another
 * process does only after the world has moved. The others then go on without its threads (its actors take
 * part), and when its thread comes back it waits until nothing else can move, so that the time at which it
 * came does not matter.
 *
 * A process that ends without leaving is lost. Each process says with which others it shares communicators
 * that have not failed: while a lost one is among them, the news of its loss is still on its way (over the
 * connections of core/bootstrap), and nothing is declared stuck before TUTTI_STALL_SECONDS without an event.
 * So the error that names the lost rank comes first. The world is locked in all functions unless they say
 * otherwise. */
#ifndef TUTTI_BACKENDS_EMU_ORDER_H
#define TUTTI_BACKENDS_EMU_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/emu/world.h"
#include "base/share.h"

#define EMU_ORDER_PROCESSES_MOST 64
#define EMU_ORDER_NOBODY UINT32_MAX

/* What a process says of itself before it joins. Plain data; part of a rank's handle. */
struct emu_order_peer {
  struct share_ticket page; /* of the order that it is in, or one that it offers; 0 bytes: none */
  uint64_t member;          /* names the process; random */
  uint32_t joined;          /* the page is that of an order that it is in */
  uint32_t reserved;
};

/* The state that passes from process to process with the turn. */
struct emu_order_state {
  uint64_t random[2], events;
  uint32_t picked; /* events that the process that has the turn now runs without another choice */
};

/* What a process tells the others when its threads wait. */
struct emu_order_report {
  uint32_t ready;       /* actors that may run */
  uint64_t best;        /* the highest of their priorities */
  uint64_t event_limit; /* a poll ends at this event; UINT64_MAX: none */
  bool waiting;         /* kernels have not ended */
  bool alone;           /* no other thread of the process could change anything */
  bool outside;         /* something outside the world is waited for */
};

bool emu_order_on(void); /* this process is in an order; not necessarily locked */

/* ---- joining and leaving; not locked ---- */

/* Makes a page that others may join, unless this process is in an order. Without memory for it there is none.
 */
void emu_order_offer(void);
void emu_order_describe(struct emu_order_peer *peer);
/* Joins the processes that these ranks (NULL: a rank that takes no part) belong to: the first of them lists
 * all in the page, and every process maps it. Nothing moves until each process has called emu_order_join,
 * after all have called this. *joins: there is such an order. */
ncclResult_t emu_order_prepare(const struct emu_order_peer *const *peers, uint32_t rank_count, bool *joins);
/* The number of each rank's process in the order, by rank; UINT32_MAX for those that take no part. */
void emu_order_join(const struct emu_order_peer *const *peers, uint32_t rank_count, uint32_t *slots);
/* A number for a communicator, made of the processes of its ranks and how many communicators of the same ones
 * came before: equal in every run, and at all ranks. */
uint64_t emu_order_comm(const uint32_t *slots, uint32_t rank_count, uint64_t comm_id);
/* After a prepare whose communicator failed. */
void emu_order_cancel(void);
/* The last communicator that joined is closed. Locked. */
void emu_order_leave(void);
/* No communicator is left: nobody will ask for the page that was offered. Locked. */
void emu_order_withdraw(void);
/* In the child of a fork. */
void emu_order_forked(void);

/* ---- turns ---- */

/* A rendezvous of this process has all its ranks and ends soon (+1), or has ended (-1): nothing moves. */
void emu_order_hold(int more);
/* A rank of this process has come to a rendezvous of `rank_count` ranks. Once all have, in any process,
 * nothing moves until each process has called emu_order_met. Not with ranks of processes that are not in the
 * order yet: they may come at any time. Locked. */
void emu_order_arrive(uint64_t name, uint32_t rank_count);
void emu_order_met(uint64_t name);
void emu_order_busy(void); /* a thread is outside waiting calls */
bool emu_order_is_busy(void);
void emu_order_park(const struct emu_order_report *report); /* all threads wait */
bool emu_order_mine(void);                                  /* this process has the turn */
bool emu_order_free(void);                                  /* no other process is busy */
bool emu_order_only(void);                                  /* all others have left */
void emu_order_load(struct emu_order_state *state);
/* After events, while this process keeps the turn. */
void emu_order_settle(const struct emu_order_report *own, const struct emu_order_state *state);
void emu_order_ask(void); /* something that others do not know of can move here */
/* Other threads of the process could not change anything: told once its threads have waited for a while. */
void emu_order_tell_alone(bool alone);
/* The process that has the turn next, for at least one event and at most *picked, as long as actors of it can
 * run; 0: to look. `below` draws. */
uint32_t emu_order_choose(const struct emu_order_report *own, uint64_t events,
                          uint32_t (*below)(uint32_t bound), uint32_t *picked);
uint32_t emu_order_own(void); /* number of this process in the order */
/* Passes the turn for up to `picked` events. */
void emu_order_pass(uint32_t slot, uint32_t picked, const struct emu_order_report *own,
                    const struct emu_order_state *state);
bool emu_order_ended(uint32_t slot); /* that process takes no part any more */
bool emu_order_lost(uint32_t slot);  /* it has ended without leaving */
/* The processes, a bit for each, of this process's communicators that have not failed. */
void emu_order_share(uint64_t slots);
/* An event changed a connection with a rank of that process. */
void emu_order_touch(uint32_t slot);
bool emu_order_touched(void); /* since the last call, others changed connections of this process */

/* ---- nothing can move; this process has the turn ---- */

enum emu_order_quiet {
  EMU_ORDER_CHANGED, /* something has changed, or the turn was passed to a process that polls */
  EMU_ORDER_WAITS,   /* something may come from outside, or from a process that is excused */
  EMU_ORDER_THREADS, /* other threads of some process, or the news of a lost one, might bring something */
  EMU_ORDER_FINAL    /* nothing can come */
};
enum emu_order_quiet emu_order_quiet(const struct emu_order_report *own, const struct emu_order_state *state);
/* Passes the turn to the next process that polls, if there is one. */
void emu_order_pass_to_poll(const struct emu_order_report *own, const struct emu_order_state *state);
bool emu_order_kernels_wait(const struct emu_order_report *own); /* in any process */
/* A deadlock. When they next have the turn all processes report it; when all have, all stop their kernels. So
 * no process learns of the failure of another one before it has reported what its own ranks wait for. */
void emu_order_stop(void);
enum emu_order_task { EMU_ORDER_NOTHING, EMU_ORDER_REPORT, EMU_ORDER_STOP };
enum emu_order_task emu_order_task(void); /* for this process now; each task once */

/* ---- sleeping ---- */

/* A thread that waits for the turn reads the word, and sleeps until it changes; not locked while it sleeps.
 * The word changes when the turn comes, when another process no longer is busy, and by emu_order_wake(). */
uint32_t emu_order_word(void);
void emu_order_asleep(void);                              /* before each sleep, still locked */
bool emu_order_sleep(uint32_t word, uint64_t timeout_ms); /* not locked; false: the time has passed */
void emu_order_wake(void);
/* After each sleep. If nothing ended it, looks after the other processes: who has ended, who is asleep. */
void emu_order_awake(bool woken);
/* The process that keeps all others from running: one of its threads makes no waiting call, or it is stopped.
 * 0: none. */
uint32_t emu_order_awaited(void);
/* This process is excused: its threads must wait before they change anything. */
bool emu_order_excused(void);

#endif
