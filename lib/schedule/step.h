/* step.h: the vocabulary of schedules. A step says from which links a rank receives, to which it sends, which
 * elements it touches and what happens to them; it says nothing of memory, waiting or time. Every algorithm
 * is an iterator that yields steps, and one executor a protocol (lib/protocol) carries them out. Compiled by
 * gcc and by nvcc. */
#ifndef TUTTI_SCHEDULE_STEP_H
#define TUTTI_SCHEDULE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Functions of the shared headers. A backend's prim_impl.h may have defined it before (nvcc: static
 * __device__). */
#ifndef PRIM_FN
#define PRIM_FN static inline
#endif

/* The algorithms that are compiled; a backend may have said so before. 0: messages, copies and rings, 1:
 * trees and direct collectives too, 2: all. */
#ifndef PRIM_ALGOS
#define PRIM_ALGOS 2
#endif

/* Most peers that one side of a step may name; a step's link sets are bit masks of this many bits. */
#define STEP_LINKS_MAX 16

/* A step's actions, in the order in which an executor performs them. In NCCL's terms: send = COPY_IN|SEND,
 * recvReduceSend = RECV|COPY_IN|REDUCE|SEND, recvReduceCopySend = that + KEEP, recvCopySend = RECV|KEEP|SEND,
 * recv = RECV|KEEP, copySend = COPY_IN|KEEP|SEND. */
enum step_flag {
  STEP_RECV = 1,        /* take a chunk from every link in recv_links, in link order */
  STEP_SEND = 2,        /* hand the result to every link in send_links */
  STEP_COPY_IN = 4,     /* the user's input at in_offset takes part */
  STEP_REDUCE = 8,      /* what arrives is combined with what is there */
  STEP_KEEP = 16,       /* the result is written to the user's output at out_offset */
  STEP_POST_OP = 32,    /* the result is final: apply the operator's last stage (integer average) */
  STEP_SEND_FINAL = 64, /* what is sent belongs at out_offset of the receiver: may be stored there directly */
  STEP_RECV_FINAL = 128,  /* what arrives belongs at out_offset here: may have been stored there directly */
  STEP_FROM_OUTPUT = 256, /* with COPY_IN: what takes part is the user's output at in_offset, not the input */
  STEP_RECV_MORE = 512,  /* the slot of each link in recv_links stays with this rank: the next step that names
                            the link reads the same one */
  STEP_SEND_MORE = 1024, /* the slot of each link in send_links is not announced yet: the next step that names
                            the link writes the same one */
  STEP_SEND_ADD = 2048,  /* with SEND on one link: what lies at send_place of its slot takes part, first in
                           order, and the result replaces it */
  STEP_PART = 4096,      /* with this step begins the part `part` of a work that has several (WORK_FUSED): its
                           size is announced and compared on the links of the step */
  STEP_IN_ORDER = 8192,  /* begins when the moves of all earlier steps of the work have ended: it writes what
                            one of them reads. So does every step with SEND_ADD or FROM_OUTPUT, which read
                            what one of them wrote */
  /* Of lists (list.h) alone: */
  STEP_FROM_SCRATCH = 0x10000, /* with COPY_IN: scratch at in_offset takes part, not the input */
  STEP_TO_SCRATCH = 0x20000,   /* with KEEP: the result is written to scratch at out_offset */
  STEP_TO_INPUT = 0x40000,     /* with KEEP: ... to the user's input, which is part of the output in place */
  STEP_FOLD = 0x80000,         /* with KEEP: what lies there takes part too, behind all others */
  STEP_AWAIT_LIST = 0x100000   /* begins when list wait_lane of the rank has ended wait_count steps */
};

/* Several steps may share one slot of a link (Simple alone). It is open from the first step that names the
 * link up to and with the first that lacks the link's MORE flag; both ends pass it on only behind that one.
 * While it is open
 *   - a step with SEND but without SEND_ADD writes new places: at send_place, where the one before it ended,
 *     from 0 on and without gaps;
 *   - a step with SEND and SEND_ADD lies within what was written, and never opens the slot;
 *   - a step with RECV reads at recv_place, in any order, within what the sender wrote in all; each place
 *     once, and with the count with which it was written first;
 *   - place and count stay within the slot of a slice.
 * A work of such steps has one slice a chunk (chunk_steps = slice_steps). Where final values are stored
 * directly, places say nothing. */

struct step {
  uint32_t flags;      /* enum step_flag */
  uint32_t recv_links; /* set of link indexes, bit i = link i of the work's recv_peer */
  uint32_t send_links;
  uint32_t own_index;   /* what COPY_IN brings comes behind so many of recv_links: direct collectives in which
                           every   rank adds the same values add them in the same order */
  uint32_t chunk_index; /* which chunk of the loop, or which round: for traces and reports only */
#if PRIM_ALGOS > 1      /* a GPU keeps steps in registers */
  uint32_t recv_place;  /* elements from the start of the slot; 0 unless steps share slots */
  uint32_t send_place;
  uint32_t part;       /* which of a fused work's parts: its memory is meant; 0 elsewhere */
  uint32_t wait_lane;  /* with STEP_AWAIT_LIST, as wait_count: the list's number on the rank */
  uint64_t wait_count; /* steps since the operation began */
#endif
  size_t in_offset;  /* elements from the start of the user's input */
  size_t out_offset; /* elements from the start of the user's output */
  size_t count;      /* elements; 0 is a step like any other */
};

PRIM_FN uint32_t step_recv_place(const struct step *step) {
#if PRIM_ALGOS > 1
  return step->recv_place;
#else
  (void)step;
  return 0;
#endif
}

PRIM_FN uint32_t step_send_place(const struct step *step) {
#if PRIM_ALGOS > 1
  return step->send_place;
#else
  (void)step;
  return 0;
#endif
}

PRIM_FN uint32_t step_part(const struct step *step) {
#if PRIM_ALGOS > 1
  return step->part;
#else
  (void)step;
  return 0;
#endif
}

#endif
