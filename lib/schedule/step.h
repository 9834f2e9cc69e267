/* step.h: the vocabulary of schedules. A step names the links a rank receives from, the links it sends to,
 * the elements it touches and the operation on them; it knows nothing of memory, waiting or time. Each
 * algorithm is an iterator that yields steps, and each protocol has one executor that runs them
 * (lib/protocol). Compiled by gcc and by nvcc. */
#ifndef TUTTI_SCHEDULE_STEP_H
#define TUTTI_SCHEDULE_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Storage class of functions in the shared headers. A backend's prim_impl.h may define it first (nvcc: static
 * __device__). */
#ifndef PRIM_FN
#define PRIM_FN static inline
#endif

/* Which algorithms are compiled; a backend may define it first. 0: messages, copies and rings; 1: also trees
 * and direct collectives; 2: all. */
#ifndef PRIM_ALGOS
#define PRIM_ALGOS 2
#endif

/* Maximum number of peers on one side of a step: all others of 64 ranks, so that a set of sums' operands, all
 * of them and the own one, has 64 bits. */
#define STEP_LINKS_MAX 63

/* A set of links, or of the operands of a move, as bits. A GPU, which has few links, keeps it in a register.
 */
#if PRIM_ALGOS > 1
typedef uint64_t link_set;
#else
typedef uint32_t link_set;
#endif

PRIM_FN link_set link_bit(uint32_t index) { return (link_set)1 << index; }

/* The first `count` links. */
PRIM_FN link_set link_first(uint32_t count) { return link_bit(count) - 1; }

/* A step's actions, in the order in which an executor performs them. In NCCL's terms: send = COPY_IN|SEND,
 * recvReduceSend = RECV|COPY_IN|REDUCE|SEND, recvReduceCopySend = that + KEEP, recvCopySend = RECV|KEEP|SEND,
 * recv = RECV|KEEP, copySend = COPY_IN|KEEP|SEND. */
enum step_flag {
  STEP_RECV = 1,         /* receive a chunk from every link in recv_links, in link order */
  STEP_SEND = 2,         /* send the result to every link in send_links */
  STEP_COPY_IN = 4,      /* the user's input at in_offset is an operand */
  STEP_REDUCE = 8,       /* received data is combined with the other operands */
  STEP_KEEP = 16,        /* the result is written to the user's output at out_offset */
  STEP_POST_OP = 32,     /* the result is final: apply the operator's last stage (integer average) */
  STEP_SEND_FINAL = 64,  /* the receiver keeps what is sent at its out_offset: may be stored there directly */
  STEP_RECV_FINAL = 128, /* this rank keeps what arrives at out_offset: may have been stored there directly */
  STEP_FROM_OUTPUT = 256, /* with COPY_IN: the operand is the user's output at in_offset, not the input */
  STEP_RECV_MORE = 512,  /* the slot of each link in recv_links is not freed yet: the next step that names the
                            link reads the same slot */
  STEP_SEND_MORE = 1024, /* the slot of each link in send_links is not posted yet: the next step that names
                            the link writes the same slot */
  STEP_SEND_ADD = 2048, /* with SEND on one link: the data at send_place of its slot is the first operand, and
                          the result replaces it */
  STEP_PART = 4096,   /* first step of part `part` of a fused work (WORK_FUSED): the part's size is announced
                        and compared on the links of the step */
  STEP_EACH = 0x4000, /* a block for each link: see below */
  STEP_SEND_SHOWN = 0x8000, /* with COPY_IN and SEND: the receiver may read the input in place: see below */
  STEP_IN_ORDER = 8192,     /* begins when the moves of all earlier steps of the work have ended, because it
                               writes what one of them reads. Steps with SEND_ADD or FROM_OUTPUT also begin
                               then, because they read what one of them wrote */
  /* Only in lists (list.h): */
  STEP_FROM_SCRATCH = 0x10000, /* with COPY_IN: the operand is scratch at in_offset, not the input */
  STEP_TO_SCRATCH = 0x20000,   /* with KEEP: the result is written to scratch at out_offset */
  STEP_TO_INPUT =
      0x40000, /* with KEEP: the result is written to the user's input (in place: part of the output) */
  STEP_FOLD = 0x80000,        /* with KEEP: the data at the destination is the last operand */
  STEP_AWAIT_LIST = 0x100000, /* begins when list wait_lane of the rank has completed wait_count steps */
  /* Not in lists: */
  STEP_RECV_SHOWN = 0x200000 /* with RECV, COPY_IN and REDUCE: what arrives may be read in place: see below */
};

/* Several steps may share one slot of a link (Simple only). The slot is open from the first step that names
 * the link up to and including the first that lacks the link's MORE flag; both ends pass the slot on only
 * after that step. While it is open
 *
 *   - a step with SEND but without SEND_ADD writes new places: at send_place, where the previous one ended,
 *     from 0 on and without gaps;
 *   - a step with SEND and SEND_ADD stays within what was written, and never opens the slot;
 *   - a step with RECV reads at recv_place, in any order, within what the sender writes in total; each place
 *     once, and with the count with which it was first written;
 *   - place and count stay within the slot of a slice.
 * A work with such steps has one slice per chunk (chunk_steps = slice_steps). If final values are stored
 * directly, the places are not used. */

/* A step with EACH moves a block for each link, side by side: block b of a row of blocks, for the b-th rank.
 * Link k belongs to the k-th other rank, so its block is k, or k + 1 from own_index on; own_index is the own
 * block. Block b begins b * stride elements after block 0 and has `count` elements, of which those past `end`
 * are missing (step_block_count). in_offset and out_offset are the place of block 0.
 *
 *   - with SEND and COPY_IN, each of send_links gets its block of the input; with SEND_FINAL the receiver
 *     keeps it as its block of this rank's number;
 *   - with RECV and KEEP, the block of each of recv_links goes to its place in the output;
 *   - with COPY_IN and KEEP but without RECV, the own block is copied from the input to the output.
 *
 * Such a step waits for all of its links before it moves anything, and reduces nothing. */

/* Inputs that are read in place (Simple only; works with WORK_SHOWS_INPUT). Each link decides by itself
 * whether its receiver reads the sender's input, whose address it then knows, or a slot. If it reads the
 * input:
 *
 *   - a step with SEND_SHOWN writes nothing over the link. It waits for slots and posts all the same;
 *   - a step with RECV_SHOWN takes the sender's input, at the offset of its own operand, in place of the
 *     slot. It does not wait for that slot: a sender that has shown its input has begun. It frees the slot
 *     all the same, so a receiver's count of freed slots may be ahead of the sender's count of filled ones;
 *   - the input must not change before it was read. The sender's work ends when its receivers have freed all
 *     slots, of any link, unless a later step of it receives what the receivers computed from the input
 *     (work_returns_sums). Nothing that the work writes may replace what others still read. */

struct step {
  uint32_t flags;      /* enum step_flag */
  link_set recv_links; /* bit i = link i of the work's recv_peer */
  link_set send_links;
  uint32_t own_index;   /* position of COPY_IN's operand among those of recv_links: in direct collectives all
                           ranks add the same values in the same order */
  uint32_t chunk_index; /* chunk of the loop, or round: for traces and reports only */
#if PRIM_ALGOS > 1      /* a GPU keeps steps in registers */
  uint32_t recv_place;  /* elements from the start of the slot; 0 unless steps share slots */
  uint32_t send_place;
  uint32_t part;       /* part of a fused work whose memory the step uses; else 0 */
  uint32_t wait_lane;  /* with STEP_AWAIT_LIST: the list's number on the rank */
  uint64_t wait_count; /* with STEP_AWAIT_LIST: steps since the operation began */
#endif
  size_t in_offset;  /* elements from the start of the user's input */
  size_t out_offset; /* elements from the start of the user's output */
  size_t count;      /* elements, with EACH of a block; an empty step is still a step */
#if PRIM_ALGOS > 0
  size_t stride, end; /* with EACH: elements from one block to the next; elements after block 0's begin at
                         which the row of blocks ends, or SIZE_MAX */
#endif
};

/* Whether the step moves a block for each link; false at compile time where only rings are compiled. */
PRIM_FN bool step_is_each(const struct step *step) {
  return PRIM_ALGOS > 0 && (step->flags & STEP_EACH) != 0;
}

/* The block that link `link` carries in a step with EACH. */
PRIM_FN uint32_t step_block(const struct step *step, uint32_t link) {
  return link < step->own_index ? link : link + 1;
}

/* Elements from block 0's begin to block `block`'s. */
PRIM_FN size_t step_block_offset(const struct step *step, uint32_t block) {
#if PRIM_ALGOS > 0
  return block * step->stride;
#else
  (void)step, (void)block;
  return 0;
#endif
}

/* Elements of block `block`. */
PRIM_FN size_t step_block_count(const struct step *step, uint32_t block) {
#if PRIM_ALGOS > 0
  const size_t begin = block * step->stride, rest = step->end > begin ? step->end - begin : 0;
  return step->count < rest ? step->count : rest;
#else
  (void)block;
  return step->count;
#endif
}

/* Elements that the step moves over link `link`. */
PRIM_FN size_t step_link_count(const struct step *step, uint32_t link) {
  return step_is_each(step) ? step_block_count(step, step_block(step, link)) : step->count;
}

/* Where the own operand that goes to link `link` lies, elements from the input's start. */
PRIM_FN size_t step_link_in(const struct step *step, uint32_t link) {
  return step->in_offset + (step_is_each(step) ? step_block_offset(step, step_block(step, link)) : 0);
}

/* Where the receiver of link `link` keeps what a step with SEND_FINAL sends, elements from its output's
 * start. */
PRIM_FN size_t step_link_out(const struct step *step, uint32_t link, bool sends) {
  if (!step_is_each(step)) return step->out_offset;
  return step->out_offset + step_block_offset(step, sends ? step->own_index : step_block(step, link));
}

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
