/* prim_impl.h (cuda): the device seam over PTX. A lane has a team of warps. One, the scout, runs the lane: it
 * waits for counters and writes down what is to be moved, in a ring of orders in shared memory. The workers
 * carry out order after order, each its share, and say in a word of shared memory how many they have done.
 * Another one, the poster, runs the lane as well, but writes no orders: it waits for the workers, and stores
 * what they have earned, so that neither fences nor the lane's arithmetic hold up a move. In a small team
 * scout and poster are one warp. No barrier is met between the begin and the end of a lane. It promises the
 * emulator's results to the bit. It knows nothing of plans, channels or how memory was mapped. */
#ifndef TUTTI_BACKENDS_CUDA_PRIM_IMPL_H
#define TUTTI_BACKENDS_CUDA_PRIM_IMPL_H

#ifdef PRIM_FN
#error "include protocol/prim.h before anything of schedule/: PRIM_FN is already bound to the host"
#endif
#define PRIM_FN static __device__ __forceinline__
#define PRIM_OFFER_SHIFTS /* another process maps our output elsewhere */

/* Rings and messages have one link a side: all of a lane's state fits into registers. A kernel for trees and
 * direct exchanges says otherwise before. */
#ifndef PRIM_LINKS
#define PRIM_LINKS 1
#define PRIM_ALGOS 0 /* rings and messages alone */
#endif
#define PRIM_DEPTH 1

/* A worker's share of a group of lines: eight-byte words. LL: word k is the data of line k * workers +
 * worker. LL128: eight workers carry a line in pieces of sixteen bytes, so words 2k and 2k + 1 are piece
 * worker % 8 of line k * (workers / 8) + worker / 8; the second word of piece 7 is the flag and holds no
 * data. */
#ifndef PRIM_WORDS
#define PRIM_WORDS 4
#endif
#ifndef PRIM_UNROLL
#define PRIM_UNROLL _Pragma("unroll")
#endif
#define PRIM_EACH_WORD(k) _Pragma("unroll") for (uint32_t k = 0; k < PRIM_WORDS; k++)

#include "backends/cuda/ptx.h"

#include "backends/cuda/arithmetic.h"
#include "protocol/move.h"
#include "schedule/chunk.h"

#define PRIM_WARP 32
#define PRIM_ALL_LANES 0xffffffffu
#define PRIM_WARPS_MAX 16 /* one more would cost each thread a quarter of its registers */
#define PRIM_THREADS (PRIM_WARPS_MAX * PRIM_WARP)

/* Sixteen-byte vectors that a worker has in flight: of each of two sources, the same of plain sums, of one
 * source.
 */
#ifndef PRIM_VECTORS
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 /* arithmetic that takes more registers */
#define PRIM_VECTORS 2
#define PRIM_SUM_VECTORS 4
#define PRIM_COPY_VECTORS 8
#else
#define PRIM_VECTORS 3
#define PRIM_SUM_VECTORS 6
#define PRIM_COPY_VECTORS 10
#endif
#endif

/* Orders that the scout may be ahead of the slowest worker: fewer where an order is long. */
#define PRIM_ORDERS (PRIM_LINKS == 1 ? 8 : 4)

enum prim_order_kind { PRIM_LINES_LL = LINE_LL, PRIM_LINES_LL128 = LINE_LL128, PRIM_SPAN, PRIM_END };
enum prim_order_flag { PRIM_SCALES = 1, PRIM_COMBINES = 2, PRIM_DIVIDES = 4 };

/* A span to move, or a group of lines to carry; addresses that do not take part are zero. */
struct prim_order {
  const uint8_t *first;              /* the first source; the user's input */
  const uint8_t *second[PRIM_LINKS]; /* further sources; the lines that arrive */
  uint8_t *out;                      /* the first destination; the user's output */
  uint8_t *other[PRIM_LINKS];        /* further destinations; the lines to send */
  uint64_t op_arg;
  uint64_t count; /* elements of a span; bytes of a group's data */
  uint64_t recv_flag[PRIM_LINKS], send_flag[PRIM_LINKS];
#if PRIM_LINKS > 1
  uint32_t own_index; /* the user's input is added behind so many of the others; a span's is
                         source number own_index */
  uint32_t second_count, other_count;
#endif
  uint32_t line_count;
  uint8_t kind, dtype, op,
      flags; /* enum prim_order_kind, ncclDataType_t, enum work_op, enum prim_order_flag */
};

/* One a team. */
struct prim_desk {
  struct prim_order orders[PRIM_ORDERS];
  uint32_t issued; /* orders written so far */
};

struct prim_shared {
  struct prim_desk desks[PRIM_WARPS_MAX / 2];
  uint32_t done[PRIM_WARPS_MAX];              /* by warp of the block: orders carried out */
  uint32_t stopped;                           /* a lane of the block has failed, or the rank was aborted */
  uint64_t fetched[PRIM_THREADS][PRIM_WORDS]; /* of the user's input, on its way or there */
};

__shared__ struct prim_shared prim_shared;

struct prim {
  const int *abort_flag;  /* of the rank, in memory of the host */
  const int *failed_flag; /* of the communicator, likewise */
  struct prim_desk *desk;
  uint32_t worker_warp, worker_warps; /* the team's first worker, in the block, and how many there are */
  uint32_t issued, done, fenced; /* orders so far; that all workers were seen to have done; before a fence */
  uint32_t finished;             /* the order that ends what is posted next */
  uint32_t looks;
  bool scouts, posts, aborted;
#if PRIM_LINKS > 1
  uint32_t second_count, other_count; /* of the order that is being written down, in its place in the ring */
#else
  struct prim_order order; /* being written down */
#endif
};

struct prim_fragment {
  uint8_t nothing; /* words are in workers' registers only */
};

/* ---- warps ---- */

PRIM_FN uint32_t prim_lane(void) { return threadIdx.x % PRIM_WARP; }
PRIM_FN bool prim_leader(const struct prim *prim) { return prim->posts; }

/* Scout and poster look at the flags behind the slow bus, and rarely; all look at the block's own word near
 * by. */
#define PRIM_CALLS_A_LOOK 16
#define PRIM_CALLS_A_FAR_LOOK 16384

/* A scout that has looked for long says so; of whoever knows the work. */
PRIM_FN void prim_note_wait(const struct prim *prim);

PRIM_FN bool prim_aborted(struct prim *prim) {
  prim->looks += 1;
  if (prim->looks % PRIM_CALLS_A_LOOK != 0) return prim->aborted;
  int stopped = *(volatile uint32_t *)&prim_shared.stopped != 0;
  if ((prim->scouts || prim->posts) && prim->looks % PRIM_CALLS_A_FAR_LOOK == 0) {
    stopped |= prim_flag(prim->abort_flag) | prim_flag(prim->failed_flag);
    prim_note_wait(prim);
  }
  prim->aborted = __any_sync(PRIM_ALL_LANES, stopped != 0);
  return prim->aborted;
}

PRIM_FN void prim_pause(struct prim *prim) { (void)prim; }

/* ---- orders ---- */

/* True when every worker of the team has carried out that many. */
PRIM_FN bool prim_all_done(struct prim *prim, uint32_t orders) {
  uint32_t done = UINT32_MAX;
  if (prim_lane() < prim->worker_warps)
    done = *(volatile uint32_t *)&prim_shared.done[prim->worker_warp + prim_lane()];
  prim->done = __reduce_min_sync(PRIM_ALL_LANES, done);
  return prim->done >= orders;
}

PRIM_FN void prim_await(struct prim *prim, uint32_t orders) {
  if (!prim->posts) return;
  while (!prim_all_done(prim, orders) && !prim_aborted(prim)) {}
}

/* Waits for the next order's place, as many as the ring has orders behind. */
PRIM_FN void prim_await_place(struct prim *prim) {
  if (!prim->scouts || prim->issued < PRIM_ORDERS) return;
  while (!prim_all_done(prim, prim->issued + 1 - PRIM_ORDERS))
    if (prim_aborted(prim)) return;
}

/* Both the scout and the poster count; the scout writes. Shared memory takes a thread's stores in their
 * order, and a compiler keeps that of volatile ones. */
#if PRIM_LINKS > 1

/* An order of many links has no place in registers: it is written where it will be read. */
PRIM_FN struct prim_order *prim_draft(struct prim *prim) {
  return &prim->desk->orders[prim->issued % PRIM_ORDERS];
}

PRIM_FN void prim_issue(struct prim *prim) {
  if (prim->scouts) {
    struct prim_order *order = prim_draft(prim);
    order->second_count = prim->second_count;
    order->other_count = prim->other_count;
    __threadfence_block();
    prim_converge();
    if (prim_lane() == 0) *(volatile uint32_t *)&prim->desk->issued = prim->issued + 1;
    prim_converge();
  }
  prim->issued += 1;
}

#else

PRIM_FN struct prim_order *prim_draft(struct prim *prim) { return &prim->order; }

PRIM_FN void prim_issue(struct prim *prim) {
  prim_await_place(prim);
  prim->issued += 1;
  if (!prim->scouts) return;
  if (prim_lane() == 0) {
    union {
      struct prim_order order;
      uint64_t words[sizeof(struct prim_order) / 8];
    } written;
    written.order = prim->order;
    volatile uint64_t *place = (volatile uint64_t *)&prim->desk->orders[(prim->issued - 1) % PRIM_ORDERS];
#pragma unroll
    for (uint32_t i = 0; i < sizeof(struct prim_order) / 8; i++) place[i] = written.words[i];
    *(volatile uint32_t *)&prim->desk->issued = prim->issued;
  }
  prim_converge();
}

#endif

PRIM_FN void prim_join(struct prim *prim) { prim_await(prim, prim->issued); }

/* ---- counters ---- */

/* What is read behind a tail is read past the first-level cache, by instructions that wait for this one's
 * answer; nothing else is needed for their order. */
PRIM_FN uint64_t prim_load_tail(const uint64_t *address) { return prim_load_word_together(address); }
PRIM_FN uint64_t prim_load_head(const uint64_t *address) { return prim_load_word_together(address); }

/* Nothing is posted for workers that stopped in the middle. */
PRIM_FN bool prim_stores(const struct prim *prim) {
  return prim->posts && !prim->aborted && prim_lane() == 0;
}

/* The workers' writes came before what the poster has seen of them, and its fence orders all that it has
 * seen: one does for every slice that was done by then. */
PRIM_FN void prim_store_tail(struct prim *prim, uint64_t *address, uint64_t value) {
  if (prim->fenced < prim->finished) {
    if (prim_stores(prim)) prim_fence();
    prim->fenced = prim->done;
  }
  if (prim_stores(prim)) prim_store_word(address, value);
}

/* What was read has arrived in registers before the workers said so. */
PRIM_FN void prim_store_head(struct prim *prim, uint64_t *address, uint64_t value) {
  if (prim_stores(prim)) prim_store_word(address, value);
}

/* By whichever thread; prim_cell_store() is a lane's. */
PRIM_FN void prim_cell_write(struct fifo_cell *cell, uint32_t tag, uint64_t value) {
  const uint64_t mark = (uint64_t)tag << 32;
  prim_store_pair(cell, (value & 0xffffffffu) | mark, value >> 32 | mark);
}

PRIM_FN void prim_cell_store(struct prim *prim, struct fifo_cell *cell, uint32_t tag, uint64_t value) {
  if (prim_stores(prim)) prim_cell_write(cell, tag, value);
}

PRIM_FN bool prim_cell_holds(ulonglong2 pair, uint32_t tag, uint64_t *value) {
  if ((uint32_t)(pair.x >> 32) != tag || (uint32_t)(pair.y >> 32) != tag) return false;
  *value = (pair.x & 0xffffffffu) | pair.y << 32;
  return true;
}

/* By whichever thread; prim_cell_load() is a warp's. */
PRIM_FN bool prim_cell_read(const struct fifo_cell *cell, uint32_t tag, uint64_t *value) {
  return prim_cell_holds(prim_load_pair(cell), tag, value);
}

PRIM_FN bool prim_cell_load(const struct fifo_cell *cell, uint32_t tag, uint64_t *value) {
  return prim_cell_holds(prim_load_pair_together(cell), tag, value);
}

/* ---- writing orders down ---- */

#if PRIM_LINKS > 1

/* The poster writes nothing down. */
PRIM_FN bool prim_writes(const struct prim *prim) { return prim->scouts; }
PRIM_FN uint32_t prim_add_second(struct prim *prim) { return prim->second_count++; }
PRIM_FN uint32_t prim_add_other(struct prim *prim) { return prim->other_count++; }

PRIM_FN void prim_order_begin(struct prim *prim) {
  prim->second_count = prim->other_count = 0;
  if (!prim->scouts) return;
  prim_await_place(prim);
  struct prim_order *order = prim_draft(prim);
  order->first = 0;
  order->out = 0;
  order->flags = 0;
  order->own_index = 0;
}

#else

PRIM_FN bool prim_writes(const struct prim *prim) { return (void)prim, true; }
PRIM_FN uint32_t prim_add_second(const struct prim *prim) { return (void)prim, 0; }
PRIM_FN uint32_t prim_add_other(const struct prim *prim) { return (void)prim, 0; }

PRIM_FN void prim_order_begin(struct prim *prim) {
  prim->order.first = prim->order.second[0] = 0;
  prim->order.out = prim->order.other[0] = 0;
  prim->order.flags = 0;
}

#endif

/* A span's sources keep their order; the user's input is the one that is scaled. */
PRIM_FN void prim_order_spans(struct prim *prim, const struct move *move) {
  struct prim_order *order = prim_draft(prim);
  order->first = (const uint8_t *)move->source[0];
  order->out = (uint8_t *)move->destination[0];
#if PRIM_LINKS > 1
  for (uint32_t i = 1; i < move->source_count; i++)
    order->second[prim_add_second(prim)] = (const uint8_t *)move->source[i];
  for (uint32_t i = 1; i < move->destination_count; i++)
    order->other[prim_add_other(prim)] = (uint8_t *)move->destination[i];
  order->own_index = move->pre_op_sources != 0 ? __ffs((int)move->pre_op_sources) - 1 : 0;
#else
  if (move->source_count > 1) order->second[0] = (const uint8_t *)move->source[1];
  if (move->destination_count > 1) order->other[0] = (uint8_t *)move->destination[1];
#endif
}

PRIM_FN void prim_order_note(struct prim *prim, const struct move *move) {
  struct prim_order *order = prim_draft(prim);
  prim_order_spans(prim, move);
  order->kind = PRIM_SPAN;
  order->dtype = move->dtype;
  order->op = move->op;
  order->op_arg = move->op_arg;
  order->count = move->count;
  order->flags = (move->op == OP_PRE_MUL_SUM && move->pre_op_sources != 0 ? PRIM_SCALES : 0) |
                 (move->op == OP_SUM_POST_DIV && move->post_op ? PRIM_DIVIDES : 0);
}

PRIM_FN void prim_move_begin(struct prim *prim, struct move *move) {
  if (move->count > 0 && move->destination_count > 0) {
    prim_order_begin(prim);
    if (prim_writes(prim)) prim_order_note(prim, move);
    prim_issue(prim);
  }
  move->note = prim->issued;
}

PRIM_FN void prim_move_finish(struct prim *prim, const struct move *move) {
  prim_await(prim, move->note);
  prim->finished = move->note;
}

/* Workers look at lines. */
PRIM_FN bool prim_line_ready(const struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                             uint64_t flag) {
  (void)prim, (void)kind, (void)line, (void)line_count, (void)flag;
  return true;
}

PRIM_FN void prim_group_begin(struct prim *prim) { prim_order_begin(prim); }

PRIM_FN void prim_fragment_zero(struct prim_fragment *fragment) { (void)fragment; }

PRIM_FN void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user,
                                uint32_t bytes, const struct work *work) {
  (void)fragment, (void)bytes;
  if (!prim_writes(prim)) return;
  struct prim_order *order = prim_draft(prim);
  order->first = (const uint8_t *)user;
#if PRIM_LINKS > 1
  order->own_index = prim->second_count;
#endif
  if (work->op == OP_PRE_MUL_SUM) order->flags |= PRIM_SCALES;
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
  struct prim_order *order = prim_draft(prim);
  order->kind = kind;
  order->dtype = work->dtype;
  order->op = work->op;
  order->op_arg = work->op_arg;
  order->line_count = line_count;
  order->count = bytes;
}

PRIM_FN void prim_group_end(struct prim *prim, uint8_t kind, uint32_t line_count, uint32_t bytes,
                            const struct work *work) {
  if (prim_writes(prim)) prim_group_note(prim, kind, line_count, bytes, work);
  prim_issue(prim);
}

/* Workers go home. */
PRIM_FN void prim_dismiss(struct prim *prim) {
  prim_order_begin(prim);
  if (prim_writes(prim)) prim_draft(prim)->kind = PRIM_END;
  prim_issue(prim);
}

PRIM_FN uint32_t prim_group_lines(const struct prim *prim, uint8_t kind) {
  const uint32_t workers = prim->worker_warps * PRIM_WARP;
  return kind == LINE_LL ? workers * PRIM_WORDS : workers / 8 * (PRIM_WORDS / 2);
}

#endif
