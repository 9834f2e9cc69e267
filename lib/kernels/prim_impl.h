/* prim_impl.h (cuda): the device primitives, in PTX. A warp group runs a lane. Its issue warp runs the lane's
 * functions: it waits for counters and writes descriptors of what to move into a ring in shared memory. The
 * compute warps each carry out their share of every descriptor, and count completed descriptors in shared
 * memory. The commit warp runs the same functions but writes no descriptors: it waits for the compute warps
 * and posts what they completed, so that neither fences nor the lane's arithmetic delay moves. In a small
 * warp group one warp is both. There is no barrier within a lane. It promises the emulator's results to the
 * bit. It knows nothing of plans, channels or how memory was mapped. */
#ifndef TUTTI_KERNELS_PRIM_IMPL_H
#define TUTTI_KERNELS_PRIM_IMPL_H

#ifdef PRIM_FN
#error "include protocol/prim.h before anything of schedule/: PRIM_FN is already bound to the host"
#endif
#define PRIM_FN static __device__ __forceinline__
#define PRIM_FREES_LATE   /* direct.h: a store to another GPU delays the end of a kernel */
#define PRIM_OFFER_SHIFTS /* another process maps our output at another address */

/* Rings and messages have one link per side, so that a lane's state fits in registers. A kernel for trees and
 * direct collectives defines other values first. */
#ifndef PRIM_LINKS
#define PRIM_LINKS 1
#define PRIM_ALGOS 0 /* only rings and messages */
#endif
#define PRIM_DEPTH 1

/* A compute thread's share of a group of LL lines: eight-byte words. LL: word k is the data of line k *
 * threads + thread. LL128: eight threads carry a line in pieces of sixteen bytes, so words 2k and 2k + 1 are
 * piece thread % 8 of line k * (threads / 8) + thread / 8; the second word of piece 7 is the flag and holds
 * no data. */
#ifndef PRIM_WORDS
#define PRIM_WORDS 4
#endif
#ifndef PRIM_UNROLL
#define PRIM_UNROLL _Pragma("unroll")
#endif
#define PRIM_EACH_WORD(k) _Pragma("unroll") for (uint32_t k = 0; k < PRIM_WORDS; k++)

#include "kernels/ptx.h"

#include "kernels/arithmetic.h"
#include "protocol/line.h"
#include "protocol/move.h"
#include "schedule/chunk.h"

#define PRIM_WARP 32
#define PRIM_ALL_LANES 0xffffffffu
#define PRIM_WARPS_MAX 16 /* with one more, each thread would lose a quarter of its registers */
#define PRIM_THREADS (PRIM_WARPS_MAX * PRIM_WARP)

/* 16-byte vectors that a compute thread has in flight: of each of two sources, the same for plain sums, of
 * one source. */
#ifndef PRIM_VECTORS
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 /* its arithmetic needs more registers */
#define PRIM_VECTORS 2
#define PRIM_SUM_VECTORS 4
#define PRIM_COPY_VECTORS 8
#else
#define PRIM_VECTORS 3
#define PRIM_SUM_VECTORS 6
#define PRIM_COPY_VECTORS 10
#endif
#endif

/* Descriptors by which the issue warp may be ahead of the slowest compute warp; fewer if descriptors are
 * long. */
#define PRIM_DESCRIPTORS (PRIM_LINKS == 1 ? 8 : 4)

enum prim_descriptor_kind { PRIM_LL = LINE_LL, PRIM_LL128 = LINE_LL128, PRIM_SPAN, PRIM_END };
enum prim_descriptor_flag { PRIM_SCALES = 1, PRIM_COMBINES = 2, PRIM_DIVIDES = 4 };

/* A span or a group of LL lines to move; unused addresses are zero. */
struct prim_descriptor {
  const uint8_t *first;              /* the first source; the user's input */
  const uint8_t *second[PRIM_LINKS]; /* further sources; the lines to receive */
  uint8_t *out;                      /* the first destination; the user's output */
  uint8_t *other[PRIM_LINKS];        /* further destinations; the lines to send */
  uint64_t op_arg;
  uint64_t count; /* elements of a span; bytes of a group's data */
  uint64_t recv_flag[PRIM_LINKS], send_flag[PRIM_LINKS];
#if PRIM_LINKS > 1
  uint32_t own_index; /* the user's input is added after this many of the others; in a span it is
                         source number own_index */
  uint32_t second_count, other_count;
#endif
  uint32_t line_count;
  uint8_t kind, dtype, op,
      flags; /* enum prim_descriptor_kind, ncclDataType_t, enum work_op, enum prim_descriptor_flag */
};

/* One per warp group. */
struct prim_queue {
  struct prim_descriptor descriptors[PRIM_DESCRIPTORS];
  uint32_t issued; /* descriptors written so far */
};

struct prim_shared {
  struct prim_queue queues[PRIM_WARPS_MAX / 2];
  uint32_t done[PRIM_WARPS_MAX];              /* by warp of the block: descriptors completed */
  uint32_t stopped;                           /* a lane of the block has failed, or the rank was aborted */
  uint64_t fetched[PRIM_THREADS][PRIM_WORDS]; /* user's input, being copied or complete */
};

__shared__ struct prim_shared prim_shared;

struct prim {
  const int *abort_flag;  /* of the rank, in host memory */
  const int *failed_flag; /* of the communicator, likewise */
  struct prim_queue *queue;
  uint32_t first_compute_warp,
      compute_warps;     /* the warp group's first compute warp in the block, and their number */
  uint32_t issued, done; /* descriptors so far; known to be done by all compute warps */
  uint32_t fenced;       /* those covered by a fence */
  uint32_t finished;     /* the last descriptor of what is posted next */
  uint32_t looks;
  bool issues, commits, aborted;
#if PRIM_LINKS > 1
  uint32_t second_count, other_count; /* of the descriptor being written, in its place in the ring */
#else
  struct prim_descriptor descriptor; /* being written */
#endif
};

struct prim_fragment {
  uint8_t nothing; /* words are in compute warps' registers only */
};

/* ---- warps ---- */

PRIM_FN uint32_t prim_lane(void) { return threadIdx.x % PRIM_WARP; }
PRIM_FN bool prim_leader(const struct prim *prim) { return prim->commits; }

/* Issue and commit warps read the flags in host memory over PCIe, rarely; all warps poll the block's own word
 * in shared memory. */
#define PRIM_CALLS_A_LOOK 16
#ifndef PRIM_CALLS_A_REMOTE_LOOK /* a ptx.h for a machine without that bus defines its own */
#define PRIM_CALLS_A_REMOTE_LOOK 16384
#endif

/* Records that an issue warp has waited for long; defined by the code that knows the work. */
PRIM_FN void prim_note_wait(const struct prim *prim);

PRIM_FN bool prim_aborted(struct prim *prim) {
  prim->looks += 1;
  if (prim->looks % PRIM_CALLS_A_LOOK != 0) return prim->aborted;
  int stopped = *(volatile uint32_t *)&prim_shared.stopped != 0;
  if ((prim->issues || prim->commits) && prim->looks % PRIM_CALLS_A_REMOTE_LOOK == 0) {
    stopped |= prim_flag(prim->abort_flag) | prim_flag(prim->failed_flag);
    prim_note_wait(prim);
  }
  prim->aborted = __any_sync(PRIM_ALL_LANES, stopped != 0);
  return prim->aborted;
}

PRIM_FN void prim_pause(struct prim *prim) { (void)prim; }

/* ---- descriptors ---- */

/* True if every compute warp of the warp group has completed that many descriptors. */
PRIM_FN bool prim_all_done(struct prim *prim, uint32_t descriptors) {
  uint32_t done = UINT32_MAX;
  if (prim_lane() < prim->compute_warps)
    done = prim_peek(&prim_shared.done[prim->first_compute_warp + prim_lane()]);
  prim->done = __reduce_min_sync(PRIM_ALL_LANES, done);
  return prim->done >= descriptors;
}

PRIM_FN void prim_await(struct prim *prim, uint32_t descriptors) {
  if (!prim->commits) return;
  while (!prim_all_done(prim, descriptors) && !prim_aborted(prim)) {}
  prim_converge(); /* lane 0 posts what the others have seen done */
}

/* Waits until the next descriptor's place in the ring is free. */
PRIM_FN void prim_await_place(struct prim *prim) {
  if (!prim->issues || prim->issued < PRIM_DESCRIPTORS) return;
  while (!prim_all_done(prim, prim->issued + 1 - PRIM_DESCRIPTORS))
    if (prim_aborted(prim)) return;
}

/* Issue warp and commit warp both count; the issue warp writes. */
#if PRIM_LINKS > 1

/* A descriptor of many links does not fit in registers: it is written in place, in the ring. */
PRIM_FN struct prim_descriptor *prim_draft(struct prim *prim) {
  return &prim->queue->descriptors[prim->issued % PRIM_DESCRIPTORS];
}

/* The commit warp does not write descriptors. */
PRIM_FN bool prim_writes(const struct prim *prim) { return prim->issues && prim_lane() == 0; }

PRIM_FN void prim_issue(struct prim *prim) {
  if (prim->issues) {
    struct prim_descriptor *descriptor = prim_draft(prim);
    if (prim_writes(prim)) {
      descriptor->second_count = prim->second_count;
      descriptor->other_count = prim->other_count;
    }
    prim_converge_reads(); /* what all lanes have read precedes it */
    if (prim_lane() == 0) prim_post(&prim->queue->issued, prim->issued + 1);
    prim_converge();
  }
  prim->issued += 1;
}

#else

PRIM_FN struct prim_descriptor *prim_draft(struct prim *prim) { return &prim->descriptor; }

PRIM_FN void prim_issue(struct prim *prim) {
  prim_await_place(prim);
  prim->issued += 1;
  if (!prim->issues) return;
  prim_converge(); /* what all lanes have read precedes it */
  if (prim_lane() == 0) {
    union {
      struct prim_descriptor descriptor;
      uint64_t words[sizeof(struct prim_descriptor) / 8];
    } written;
    written.descriptor = prim->descriptor;
    volatile uint64_t *place =
        (volatile uint64_t *)&prim->queue->descriptors[(prim->issued - 1) % PRIM_DESCRIPTORS];
#pragma unroll
    for (uint32_t i = 0; i < sizeof(struct prim_descriptor) / 8; i++) place[i] = written.words[i];
    prim_post(&prim->queue->issued, prim->issued);
  }
  prim_converge();
}

#endif

PRIM_FN void prim_join(struct prim *prim) { prim_await(prim, prim->issued); }

/* The issue warp has opened the lane before it wrote the first descriptor, which is its dismissal of the
 * compute warps if the lane moves nothing (the sender stores into the output). */
PRIM_FN void prim_await_readers(struct prim *prim) {
  if (prim->issues || prim->issued > 0) return;
  while (prim_peek_together(&prim->queue->issued) == 0 && !prim_aborted(prim)) {}
}

/* ---- counters ---- */

/* A head allows stores, which wait for it to be compared. */
#ifdef PRIM_THREAD_LINKS /* each thread of a warp has a link of its own (direct.h) */
PRIM_FN uint64_t prim_load_tail(const uint64_t *address) { return prim_load_posted(address); }
PRIM_FN uint64_t prim_load_head(const uint64_t *address) { return prim_load_word(address); }
#else
PRIM_FN uint64_t prim_load_tail(const uint64_t *address) { return prim_load_posted_together(address); }
PRIM_FN uint64_t prim_load_head(const uint64_t *address) { return prim_load_word_together(address); }
#endif

/* Nothing is posted if compute warps were stopped in the middle. */
PRIM_FN bool prim_stores(const struct prim *prim) {
  return prim->commits && !prim->aborted && prim_lane() == 0;
}

/* The compute warps' writes precede their counts, and the commit warp's fence orders everything whose counts
 * it has read: one fence covers every slice done by then. */
PRIM_FN void prim_store_tail(struct prim *prim, uint64_t *address, uint64_t value) {
  if (prim->fenced < prim->finished) {
    if (prim_stores(prim)) prim_fence();
    prim->fenced = prim->done;
  }
  if (prim_stores(prim)) prim_store_word(address, value);
}

/* What was read, also from the sender's memory, is in registers before the compute warps count it. PTX's
 * model asks for a fence here too, which would take a microsecond of each small operation (lib/README.md,
 * "Memory order of the kernels"). */
PRIM_FN void prim_store_head(struct prim *prim, uint64_t *address, uint64_t value) {
  if (prim_stores(prim)) prim_store_word(address, value);
}

/* For any thread; prim_tagged_store() is for the leader of a lane. */
PRIM_FN void prim_tagged_write(struct tagged_word *word, uint32_t tag, uint64_t value) {
  prim_store_tagged(word, line_first_half(value, tag), line_second_half(value, tag));
}

PRIM_FN void prim_tagged_store(struct prim *prim, struct tagged_word *word, uint32_t tag, uint64_t value) {
  if (prim_stores(prim)) prim_tagged_write(word, tag, value);
}

PRIM_FN bool prim_tagged_holds(ulonglong2 pair, uint32_t tag, uint64_t *value) {
  if (!line_half_has(pair.x, tag) || !line_half_has(pair.y, tag)) return false;
  *value = line_word(pair.x, pair.y);
  return true;
}

/* For any thread; prim_tagged_load() is for a warp. With prim_tagged_glance() accesses after it may be
 * executed before it, and the other end may store another value before this one is seen. */
PRIM_FN bool prim_tagged_glance(const struct tagged_word *word, uint32_t tag, uint64_t *value) {
  return prim_tagged_holds(prim_load_pair(word), tag, value);
}

PRIM_FN bool prim_tagged_read(const struct tagged_word *word, uint32_t tag, uint64_t *value) {
  const bool holds = prim_tagged_holds(prim_load_pair_posted(word), tag, value);
  if (holds) prim_took(word);
  return holds;
}

PRIM_FN bool prim_tagged_load(const struct tagged_word *word, uint32_t tag, uint64_t *value) {
  const bool holds = prim_tagged_holds(prim_load_pair_posted_together(word), tag, value);
  if (holds) prim_took(word);
  return holds;
}

/* ---- writing descriptors ---- */

#if PRIM_LINKS > 1

PRIM_FN uint32_t prim_add_second(struct prim *prim) { return prim->second_count++; }
PRIM_FN uint32_t prim_add_other(struct prim *prim) { return prim->other_count++; }

PRIM_FN void prim_descriptor_begin(struct prim *prim) {
  prim->second_count = prim->other_count = 0;
  if (!prim->issues) return;
  prim_await_place(prim);
  prim_converge(); /* lane 0 writes where all have seen that nobody reads */
  if (!prim_writes(prim)) return;
  struct prim_descriptor *descriptor = prim_draft(prim);
  descriptor->first = 0;
  descriptor->out = 0;
  descriptor->flags = 0;
  descriptor->own_index = 0;
}

#else

PRIM_FN bool prim_writes(const struct prim *prim) { return (void)prim, true; }
PRIM_FN uint32_t prim_add_second(const struct prim *prim) { return (void)prim, 0; }
PRIM_FN uint32_t prim_add_other(const struct prim *prim) { return (void)prim, 0; }

PRIM_FN void prim_descriptor_begin(struct prim *prim) {
  prim->descriptor.first = prim->descriptor.second[0] = 0;
  prim->descriptor.out = prim->descriptor.other[0] = 0;
  prim->descriptor.flags = 0;
}

#endif

/* A span's sources keep their order; only the user's input is scaled. */
PRIM_FN void prim_descriptor_spans(struct prim *prim, const struct move *move) {
  struct prim_descriptor *descriptor = prim_draft(prim);
  descriptor->first = (const uint8_t *)move->source[0];
  descriptor->out = (uint8_t *)move->destination[0];
#if PRIM_LINKS > 1
  for (uint32_t i = 1; i < move->source_count; i++)
    descriptor->second[prim_add_second(prim)] = (const uint8_t *)move->source[i];
  for (uint32_t i = 1; i < move->destination_count; i++)
    descriptor->other[prim_add_other(prim)] = (uint8_t *)move->destination[i];
  descriptor->own_index = move->pre_op_sources != 0 ? __ffs((int)move->pre_op_sources) - 1 : 0;
#else
  if (move->source_count > 1) descriptor->second[0] = (const uint8_t *)move->source[1];
  if (move->destination_count > 1) descriptor->other[0] = (uint8_t *)move->destination[1];
#endif
}

PRIM_FN void prim_descriptor_note(struct prim *prim, const struct move *move) {
  struct prim_descriptor *descriptor = prim_draft(prim);
  prim_descriptor_spans(prim, move);
  descriptor->kind = PRIM_SPAN;
  descriptor->dtype = move->dtype;
  descriptor->op = move->op;
  descriptor->op_arg = move->op_arg;
  descriptor->count = move->count;
  descriptor->flags = (move->op == OP_PRE_MUL_SUM && move->pre_op_sources != 0 ? PRIM_SCALES : 0) |
                      (move->op == OP_SUM_POST_DIV && move->post_op ? PRIM_DIVIDES : 0);
}

PRIM_FN void prim_span_begin(struct prim *prim, const struct move *move) {
  if (move->count == 0 || move->destination_count == 0) return;
  prim_descriptor_begin(prim);
  if (prim_writes(prim)) prim_descriptor_note(prim, move);
  prim_issue(prim);
}

PRIM_FN void prim_move_begin(struct prim *prim, struct move *move) {
#if PRIM_ALGOS > 0
#pragma unroll 1
  for (uint32_t k = 0; move->each && k < move->source_count; k++) {
    struct move copy;
    move_copy(move, k, &copy);
    prim_span_begin(prim, &copy);
  }
#endif
  if (!move_is_each(move)) prim_span_begin(prim, move);
  move->note = prim->issued;
}

PRIM_FN void prim_move_finish(struct prim *prim, const struct move *move) {
  prim_await(prim, move->note);
  prim->finished = move->note;
}

/* Always true: compute warps poll the lines. */
PRIM_FN bool prim_line_ready(const struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                             uint64_t flag) {
  (void)prim, (void)kind, (void)line, (void)line_count, (void)flag;
  return true;
}

PRIM_FN void prim_group_begin(struct prim *prim) { prim_descriptor_begin(prim); }

PRIM_FN void prim_fragment_zero(struct prim_fragment *fragment) { (void)fragment; }

PRIM_FN void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user,
                                uint32_t bytes, const struct work *work) {
  (void)fragment, (void)bytes;
  if (!prim_writes(prim)) return;
  struct prim_descriptor *descriptor = prim_draft(prim);
  descriptor->first = (const uint8_t *)user;
#if PRIM_LINKS > 1
  descriptor->own_index = prim->second_count;
#endif
  if (work->op == OP_PRE_MUL_SUM) descriptor->flags |= PRIM_SCALES;
}

PRIM_FN void prim_line_load(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                            uint64_t flag, struct prim_fragment *fragment) {
  (void)kind, (void)line_count, (void)fragment;
  const uint32_t place = prim_add_second(prim);
  if (!prim_writes(prim)) return;
  prim_draft(prim)->second[place] = line;
  prim_draft(prim)->recv_flag[place] = flag;
}

PRIM_FN void prim_fragment_combine(struct prim *prim, struct prim_fragment *data,
                                   const struct prim_fragment *arrived, uint32_t bytes,
                                   const struct work *work) {
  (void)data, (void)arrived, (void)bytes, (void)work;
  if (PRIM_LINKS == 1) prim_draft(prim)->flags |= PRIM_COMBINES;
}

PRIM_FN void prim_fragment_post(struct prim *prim, struct prim_fragment *data, uint32_t bytes,
                                const struct work *work) {
  (void)data, (void)bytes;
  if (work->op == OP_SUM_POST_DIV && prim_writes(prim)) prim_draft(prim)->flags |= PRIM_DIVIDES;
}

PRIM_FN void prim_line_store(struct prim *prim, uint8_t kind, uint8_t *line, uint32_t line_count,
                             uint64_t flag, const struct prim_fragment *fragment) {
  (void)kind, (void)line_count, (void)fragment;
  const uint32_t place = prim_add_other(prim);
  if (!prim_writes(prim)) return;
  prim_draft(prim)->other[place] = line;
  prim_draft(prim)->send_flag[place] = flag;
}

PRIM_FN void prim_fragment_store(struct prim *prim, void *user, const struct prim_fragment *fragment,
                                 uint32_t bytes, const struct work *work) {
  (void)fragment, (void)bytes, (void)work;
  if (prim_writes(prim)) prim_draft(prim)->out = (uint8_t *)user;
}

PRIM_FN void prim_group_note(struct prim *prim, uint8_t kind, uint32_t line_count, uint32_t bytes,
                             const struct work *work) {
  struct prim_descriptor *descriptor = prim_draft(prim);
  descriptor->kind = kind;
  descriptor->dtype = work->dtype;
  descriptor->op = work->op;
  descriptor->op_arg = work->op_arg;
  descriptor->line_count = line_count;
  descriptor->count = bytes;
}

PRIM_FN void prim_group_end(struct prim *prim, uint8_t kind, uint32_t line_count, uint32_t bytes,
                            const struct work *work) {
  if (prim_writes(prim)) prim_group_note(prim, kind, line_count, bytes, work);
  prim_issue(prim);
}

/* Makes the compute warps return. */
PRIM_FN void prim_dismiss(struct prim *prim) {
  prim_descriptor_begin(prim);
  if (prim_writes(prim)) prim_draft(prim)->kind = PRIM_END;
  prim_issue(prim);
}

PRIM_FN uint32_t prim_group_lines(const struct prim *prim, uint8_t kind) {
  const uint32_t compute_threads = prim->compute_warps * PRIM_WARP;
  return kind == LINE_LL ? compute_threads * PRIM_WORDS : compute_threads / 8 * (PRIM_WORDS / 2);
}

#endif
