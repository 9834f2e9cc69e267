/* direct.h: the code of a block whose works are all direct collectives over LL; block.h includes it. What the
 * iterator (schedule/direct.h) yields step by step is done here phase by phase, over all links at once,
 * because on a GPU a small step's arithmetic takes as long as its data:
 *
 *   scatter   to every link its own block of the input      two shots, reduce-scatter, all-to-all
 *   spread    the same block to every link                  one shot, all-gather, a broadcast's root
 *   add up    received blocks of all links and own values   one shot, two shots, reduce-scatter
 *   collect   every link's block to the output              two shots, all-gather, all-to-all, broadcast
 *
 * The last warp moves no data: it announces and compares sizes, frees slots and saves the counters, so the
 * other warps do not wait for this. The result has the same bits and counters as the iterator's steps over
 * the same connections: schedule/direct.h, this file and direct_once.h must change together. It needs
 * FIFO_SLOTS_MAX slots. */
#ifndef TUTTI_KERNELS_DIRECT_H
#define TUTTI_KERNELS_DIRECT_H

#include "kernels/block.h"
#include "schedule/direct.h"

#define DIRECT_LINKS LAUNCH_LINKS
#define DIRECT_SENDS 16u /* the thread of a warp that holds the first send link */
#ifndef DIRECT_REMOTE_LOOKS
#define DIRECT_REMOTE_LOOKS 1024u /* polls within the block per poll of host memory */
#endif
#define DIRECT_SLOTS FIFO_SLOTS_MAX
/* Lines per link that a thread has in flight if there are few links; limited by registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define DIRECT_FEW_LINES 2
#else
#define DIRECT_FEW_LINES 1
#endif
/* Within an operation freed steps are posted four at a time: a sender can spare a few slots. */
#define DIRECT_STEPS_A_HEAD 4u
#define DIRECT_GONE (UINT32_MAX - 1) /* the warp no longer touches the communicator's memory */
#define DIRECT_READ_BARRIER 1        /* for warps that have read the counters; 0 is for all threads */

/* Address of a step's lines on a link, and their flag. */
struct direct_place {
  uint64_t base, flag;
};

/* The other rank's block, per link: the input that is scattered to it, or its output that is collected. */
struct direct_share {
  uint8_t *user;
  uint32_t bytes, lines;
};

/* All links of one side, in a loop. */
struct direct_side {
  struct direct_place places[2][DIRECT_LINKS + 1]; /* of a loop's first and second step */
  struct direct_share shares[DIRECT_LINKS + 1];
};

__shared__ struct direct_side direct_received[PRIM_WARPS_MAX], direct_sent[PRIM_WARPS_MAX];
__shared__ uint32_t
    direct_done[PRIM_WARPS_MAX]; /* loops, or phases, that a warp has completed, or DIRECT_GONE */
/* Simple: number of phases issued; and, once no more follow, their total plus one. */
__shared__ uint32_t direct_issued, direct_ended;
__shared__ uint32_t direct_stopped;
__shared__ struct bound_work direct_work;
/* Further links, followed by the shifts that are added to published addresses: four words per entry. */
__shared__ struct bound_further direct_further[2 * DIRECT_LINKS + (2 * DIRECT_LINKS + 3) / 4];

struct direct_run {
  const struct launch_arguments *arguments;
  uint32_t looks, loop;
  uint32_t thread, thread_count; /* threads that move lines; the last warp has none */
  /* The work's phases. */
  bool scatters, spreads, adds, sends_sum, collects, copies;
  uint32_t recv_steps, send_steps; /* per loop, on each link */
  /* This thread's link, if it holds one. */
  struct fifo_sender *sender;
  struct fifo_receiver *receiver;
  uint8_t *buffer;
  uint64_t position, line, head;
  bool keeps, sends, agreed;
};

/* A loop: its position in the part, and the elements of a block. */
struct direct_loop {
  size_t done, rest, chunk;
};

PRIM_FN uint32_t direct_warp(void) { return threadIdx.x / PRIM_WARP; }
PRIM_FN bool direct_commits(void) { return direct_warp() == blockDim.x / PRIM_WARP - 1; }
PRIM_FN const struct work *direct_of(void) { return bound_work_of(&direct_work); }

PRIM_FN void direct_stop(void) { *(volatile uint32_t *)&direct_stopped = 1; }

/* Called in every iteration of a wait, by all threads of the warp. */
PRIM_FN bool direct_is_stopped(struct direct_run *it) {
  it->looks += 1;
  if (direct_commits() && it->looks % DIRECT_REMOTE_LOOKS == 0) {
    const int *abort_flag = &it->arguments->control->abort;
    work_note_wait(&direct_work, abort_flag, 0);
    if ((prim_flag(abort_flag) | prim_flag(it->arguments->failed)) != 0) direct_stop();
  }
  return __any_sync(PRIM_ALL_LANES, *(volatile uint32_t *)&direct_stopped != 0);
}

/* ---- links ---- */

static_assert(offsetof(struct fifo_sender, send_line) == LAUNCH_STEP_OFFSET + 8 &&
                  offsetof(struct fifo_receiver, recv_line) == LAUNCH_STEP_OFFSET + 8 && LINE_LL == 0,
              "an end's counters are one pair");

/* Number of the work's further links before those of a side. */
PRIM_FN uint32_t direct_before(bool sends) {
  const uint32_t recv_count = direct_of()->recv_count;
  return sends && recv_count > 1 ? recv_count - 1 : 0;
}

/* The link that this thread of the warp holds: recv links from thread 0 on, send links from DIRECT_SENDS on.
 * Reads nothing that an earlier kernel wrote. */
PRIM_FN void direct_bind(struct direct_run *it) {
  const struct work *work = direct_of();
  const uint32_t lane = prim_lane(), index = lane % DIRECT_SENDS;
  it->sends = lane >= DIRECT_SENDS;
  it->keeps = index < (it->sends ? work->send_count : work->recv_count);
  it->agreed = false;
  it->position = it->line = it->head = 0;
  it->sender = 0;
  it->receiver = 0;
  it->buffer = 0;
  if (!it->keeps) return;
  const struct bound_link *link = index > 0   ? &direct_further[direct_before(it->sends) + index - 1].link
                                  : it->sends ? &direct_work.send
                                              : &direct_work.recv;
  it->sender = link->sender;
  it->receiver = link->receiver;
  it->buffer = link->buffer;
}

/* Address of the saved `position` and `line`. */
PRIM_FN uint8_t *direct_counters(const struct direct_run *it) {
  return (it->sends ? (uint8_t *)it->sender : (uint8_t *)it->receiver) + LAUNCH_STEP_OFFSET;
}

/* Reads the link's counters, saved by the previous operation. */
PRIM_FN void direct_read_counters(struct direct_run *it) {
  const ulonglong2 counters = prim_load_pair_if(it->keeps, direct_counters(it));
  it->head = prim_load_word_if(it->keeps && it->sends, it->sender);
  it->position = counters.x;
  it->line = counters.y;
}

/* Called by a warp that moves, when it has read the counters; after all have, the last warp may write
 * them. */
PRIM_FN void direct_counters_read(void) {
  PRIM_BARRIER_ARRIVE(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x));
}

PRIM_FN void direct_await_readers(void) { PRIM_BARRIER_SYNC(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x)); }

/* True if the last known head shows that the receiver has freed all slots of this thread's link before
 * `position`. */
PRIM_FN bool direct_has_slots(const struct direct_run *it, uint64_t position) {
  return __all_sync(PRIM_ALL_LANES, !it->sends || !it->keeps || it->head + DIRECT_SLOTS >= position);
}

/* Waits for that; false if the block was aborted. */
PRIM_FN bool direct_await_slots(struct direct_run *it, uint64_t position) {
  while (!direct_has_slots(it, position)) {
    if (it->sends && it->keeps) it->head = prim_load_word(&it->sender->head);
    if (direct_is_stopped(it)) return false;
  }
  return true;
}

PRIM_FN uint32_t direct_steps(const struct direct_run *it) {
  return it->sends ? it->send_steps : it->recv_steps;
}

PRIM_FN void direct_pass(struct direct_run *it) {
  it->position += direct_steps(it);
  it->line += direct_steps(it);
}

/* ---- blocks ---- */

/* True if the work has one loop. */
PRIM_FN bool direct_is_once(void) {
  const struct work *work = direct_of();
  return work->part_count <= work->chunk_count * direct_loop_chunks(work);
}

PRIM_FN struct direct_loop direct_loop_at(size_t done) {
  const struct work *work = direct_of();
  struct direct_loop loop;
  loop.done = done;
  loop.rest = work->part_count - done;
  loop.chunk = chunk_of_loop(loop.rest, work->chunk_count, direct_loop_chunks(work), work->last_chunk_count);
  return loop;
}

/* The rank at the other end of link `link`. */
PRIM_FN uint32_t direct_peer_of(uint32_t link) { return link < direct_of()->rank ? link : link + 1; }

/* A rank's block of the loop: its offset in the user's memory, and its bytes. */
struct direct_block {
  size_t offset_bytes;
  uint32_t bytes;
};

/* The block of rank `rank`: its shard in two shots, its part of the operation otherwise. `whole`: the same
 * block for all ranks. */
PRIM_FN struct direct_block direct_block_of(const struct direct_loop *loop, uint32_t rank, bool whole) {
  const struct work *work = direct_of();
  const size_t begin = work->part_offset + loop->done;
  struct direct_block block;
  size_t count = loop->chunk, offset = begin;
  if (work->algo == ALGO_TWO_SHOT) {
    const size_t before = rank * loop->chunk;
    offset += before;
    count = loop->rest > before ? size_min(loop->chunk, loop->rest - before) : 0;
  } else if (!whole) {
    offset += rank * work->count;
  }
  block.offset_bytes = offset * work->element_bytes;
  block.bytes = (uint32_t)(count * work->element_bytes);
  return block;
}

PRIM_FN const uint8_t *direct_in(const struct direct_block *block) {
  return (const uint8_t *)direct_work.in + block->offset_bytes;
}

PRIM_FN uint8_t *direct_out(const struct direct_block *block) {
  return (uint8_t *)direct_work.out + block->offset_bytes;
}

/* ---- lines: eight bytes of data each, one line per thread ---- */

PRIM_FN uint32_t direct_line_count(uint32_t bytes) { return (bytes + 7) / 8; }

PRIM_FN uint64_t direct_load(uint32_t line, const uint8_t *from, uint32_t bytes) {
  const uint32_t offset = line * 8;
  if (offset >= bytes) return 0;
  if (((uintptr_t)from & 7) == 0 && bytes - offset >= 8) return element_load(from + offset, 8);
  return word_load(from + offset, bytes - offset);
}

PRIM_FN void direct_keep(uint32_t line, uint8_t *to, uint32_t bytes, uint64_t word) {
  const uint32_t offset = line * 8;
  if (offset >= bytes) return;
  if (((uintptr_t)to & 7) == 0 && bytes - offset >= 8) element_store(to + offset, 8, word);
  else word_store(to + offset, bytes - offset, word);
}

PRIM_FN bool direct_take(const struct direct_place *place, uint32_t line, uint64_t *word) {
  const uint32_t flag = (uint32_t)place->flag;
  const ulonglong2 pair = prim_load_pair((const uint8_t *)(uintptr_t)place->base + (size_t)line * 16);
  *word = (pair.x & 0xffffffffu) | pair.y << 32;
  return (uint32_t)(pair.x >> 32) == flag && (uint32_t)(pair.y >> 32) == flag;
}

PRIM_FN void direct_put(const struct direct_place *place, uint32_t line, uint64_t word) {
  const uint64_t flag = place->flag << 32;
  uint8_t *at = (uint8_t *)(uintptr_t)place->base + (size_t)line * 16;
  prim_store_pair(at, (word & 0xffffffffu) | flag, word >> 32 | flag);
}

PRIM_FN void direct_scale(uint64_t *word) {
  const struct work *work = direct_of();
  if (work->op == OP_PRE_MUL_SUM) words_apply(work->dtype, WORDS_SCALE, word, word, work->op_arg);
}

/* Computes the addresses and blocks of the loop's lines; each thread writes those of its link. */
PRIM_FN void direct_place_lines(const struct direct_run *it, const struct direct_loop *loop) {
  const uint32_t slot_bytes = it->arguments->limits.step_bytes[PROTO_LL], index = prim_lane() % DIRECT_SENDS;
  const uint32_t flag_bits = it->arguments->limits.flag_bits;
  const uint64_t mask = flag_bits >= 32 ? ~(uint64_t)0 : ((uint64_t)1 << flag_bits) - 1;
  __syncwarp(); /* no thread reads the previous loop's values any more */
  if (it->keeps) {
    struct direct_side *side = it->sends ? &direct_sent[direct_warp()] : &direct_received[direct_warp()];
    const bool whole = it->sends ? it->spreads : direct_of()->func == FUNC_BROADCAST;
    const struct direct_block block = direct_block_of(loop, direct_peer_of(index), whole);
#pragma unroll
    for (uint32_t step = 0; step < 2; step++) {
      const uint32_t slot = (uint32_t)(it->line + step) % DIRECT_SLOTS;
      side->places[step][index].base = (uint64_t)(uintptr_t)it->buffer + (uint64_t)slot * slot_bytes;
      side->places[step][index].flag = (it->line + step + 1) & mask;
    }
    side->shares[index].user = it->sends ? (uint8_t *)(uintptr_t)direct_in(&block) : direct_out(&block);
    side->shares[index].bytes = block.bytes;
    side->shares[index].lines = direct_line_count(block.bytes);
  }
  __syncwarp();
}

/* ---- phases ---- */

/* Sends every link its block of the input: the loads of all links first, LINES per thread at a time, then the
 * stores. */
template <uint32_t LINKS, uint32_t LINES>
PRIM_FN void direct_scatter(const struct direct_run *it, const struct direct_loop *loop) {
  const uint32_t links = direct_of()->send_count;
  const struct direct_side *side = &direct_sent[direct_warp()];
  const uint32_t most = direct_line_count((uint32_t)(loop->chunk * direct_of()->element_bytes));
#pragma unroll 1
  for (uint32_t first = it->thread; first < most; first += LINES * it->thread_count) {
    uint64_t words[LINKS][LINES];
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++) {
        const struct direct_share *share = &side->shares[link];
        if (link < links)
          words[link][b] = direct_load(first + b * it->thread_count, share->user, share->bytes);
      }
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++) {
        const uint32_t line = first + b * it->thread_count;
        if (link < links && line < side->shares[link].lines)
          direct_put(&side->places[0][link], line, words[link][b]);
      }
  }
}

/* Sends the same block to every link, and copies it to the own output if the operation requires it. */
template <uint32_t LINES>
PRIM_FN void direct_spread(const struct direct_run *it, const struct direct_loop *loop) {
  const struct work *work = direct_of();
  const struct direct_place *places = direct_sent[direct_warp()].places[0];
  const struct direct_block from = direct_block_of(loop, 0, true);
  const struct direct_block to = direct_block_of(loop, work->rank, work->func != FUNC_ALL_GATHER);
  const bool keeps = work->func != FUNC_ALL_REDUCE && (work->flags & WORK_IN_PLACE) == 0;
  const uint32_t end = direct_line_count(from.bytes), links = work->send_count;
#pragma unroll 1
  for (uint32_t first = it->thread; first < end; first += LINES * it->thread_count) {
    uint64_t words[LINES];
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++)
      words[b] = direct_load(first + b * it->thread_count, direct_in(&from), from.bytes);
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) {
      const uint32_t line = first + b * it->thread_count;
#pragma unroll 1
      for (uint32_t link = 0; link < links; link++)
        if (line < end) direct_put(&places[link], line, words[b]);
      if (keeps) direct_keep(line, direct_out(&to), from.bytes, words[b]);
    }
  }
}

/* Both, for values that are scaled before they are sent. This case is rare, so the code is short instead of
 * fast. */
PRIM_FN void direct_send_scaled(const struct direct_run *it) {
  const struct direct_side *side = &direct_sent[direct_warp()];
#pragma unroll 1
  for (uint32_t link = 0; link < direct_of()->send_count; link++) {
    const struct direct_share *share = &side->shares[link];
#pragma unroll 1
    for (uint32_t line = it->thread; line < share->lines; line += it->thread_count) {
      uint64_t word = direct_load(line, share->user, share->bytes);
      direct_scale(&word);
      direct_put(&side->places[0][link], line, word);
    }
  }
}

static_assert(PRIM_WORDS == 1, "words_apply() takes a line's word");

/* Sums of the types common in training need few instructions, so a thread has registers for more lines. */
PRIM_FN bool direct_is_plain(void) {
  const struct work *work = direct_of();
  return work->op == OP_SUM &&
         (work->dtype == TYPE_FLOAT || work->dtype == TYPE_BFLOAT16 || work->dtype == TYPE_HALF);
}

template <bool PLAIN>
PRIM_FN uint64_t direct_add(const struct work *work, uint64_t sum, uint64_t word) {
  if constexpr (!PLAIN) {
    words_apply(work->dtype, work->op, &sum, &word, 0);
    return sum;
  } else {
    if (work->dtype == TYPE_FLOAT) return word_combine(TYPE_FLOAT, OP_SUM, sum, word);
    if (work->dtype == TYPE_HALF) return word_combine(TYPE_HALF, OP_SUM, sum, word);
    return word_combine(TYPE_BFLOAT16, OP_SUM, sum, word);
  }
}

/* Adds all sources of a line in rank order. */
template <uint32_t LINKS, bool PLAIN>
PRIM_FN uint64_t direct_sum(const struct work *work, uint64_t own, const uint64_t *arrived) {
  uint64_t sum = 0;
#pragma unroll(PLAIN ? LINKS + 1 : 1)
  for (uint32_t rank = 0; rank < LINKS + 1; rank++) {
    uint64_t word = own;
    if (rank > work->recv_count) continue;
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
      if (rank != work->rank && link == (rank < work->rank ? rank : rank - 1)) word = arrived[link];
    sum = rank > 0 ? direct_add<PLAIN>(work, sum, word) : word;
  }
  return sum;
}

/* Waits until all lines of the warp have arrived: `TAKES` loads them and returns whether they have their
 * flags. */
#define DIRECT_AWAIT(it, TAKES)                           \
  for (;;) {                                              \
    bool flagged = true;                                  \
    TAKES if (__all_sync(PRIM_ALL_LANES, flagged)) break; \
    if (direct_is_stopped(it)) return false;              \
  }

/* Adds the received blocks of all links and the own values; keeps the sum, and in two shots sends it. The
 * warp votes, so that its threads iterate together. */
template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN bool direct_add_up(struct direct_run *it, const struct direct_loop *loop) {
  const struct work *work = direct_of();
  const struct direct_place *received = direct_received[direct_warp()].places[0];
  const struct direct_place *sent = direct_sent[direct_warp()].places[1];
  const struct direct_block from = direct_block_of(loop, work->rank, work->func != FUNC_REDUCE_SCATTER);
  const struct direct_block to = direct_block_of(loop, work->rank, true);
  const uint32_t end = direct_line_count(from.bytes), links = work->recv_count;
#pragma unroll 1
  for (uint32_t turn = 0; it->thread - prim_lane() + turn < end; turn += LINES * it->thread_count) {
    const uint32_t first = it->thread + turn;
    uint64_t own[LINES], arrived[LINES][LINKS];
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++)
      own[b] = direct_load(first + b * it->thread_count, direct_in(&from), from.bytes);
    DIRECT_AWAIT(it, {
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++)
#pragma unroll
        for (uint32_t link = 0; link < LINKS; link++)
          if (link < links && first + b * it->thread_count < end)
            flagged &= direct_take(&received[link], first + b * it->thread_count, &arrived[b][link]);
    })
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) {
      const uint32_t line = first + b * it->thread_count;
      if (!PLAIN) direct_scale(&own[b]);
      uint64_t sum = direct_sum<LINKS, PLAIN>(work, own[b], arrived[b]);
      if (!PLAIN && work->op == OP_SUM_POST_DIV)
        words_apply(work->dtype, WORDS_DIVIDE, &sum, &sum, work->op_arg);
      if (it->sends_sum)
#pragma unroll
        for (uint32_t link = 0; link < LINKS; link++)
          if (link < links && line < end) direct_put(&sent[link], line, sum);
      direct_keep(line, direct_out(&to), from.bytes, sum);
    }
  }
  return true;
}

/* Copies every link's block to the output. `step`: the loop's step in which it arrived. */
template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_collect(struct direct_run *it, const struct direct_loop *loop, uint32_t step) {
  const struct direct_side *side = &direct_received[direct_warp()];
  const uint32_t most = direct_line_count((uint32_t)(loop->chunk * direct_of()->element_bytes));
  const uint32_t links = direct_of()->recv_count;
#pragma unroll 1
  for (uint32_t turn = 0; it->thread - prim_lane() + turn < most; turn += LINES * it->thread_count) {
    const uint32_t first = it->thread + turn;
    uint64_t words[LINKS][LINES];
    DIRECT_AWAIT(it, {
#pragma unroll
      for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
        for (uint32_t b = 0; b < LINES; b++)
          if (link < links && first + b * it->thread_count < side->shares[link].lines)
            flagged &= direct_take(&side->places[step][link], first + b * it->thread_count, &words[link][b]);
    })
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++) {
        const struct direct_share *share = &side->shares[link];
        if (link < links)
          direct_keep(first + b * it->thread_count, share->user, share->bytes, words[link][b]);
      }
  }
  return true;
}

/* Copies the own block of an all-to-all. */
PRIM_FN void direct_copy(const struct direct_run *it, const struct direct_loop *loop) {
  const struct direct_block block = direct_block_of(loop, direct_of()->rank, false);
  const uint32_t end = direct_line_count(block.bytes);
#pragma unroll 1
  for (uint32_t line = it->thread; line < end; line += it->thread_count)
    direct_keep(line, direct_out(&block), block.bytes, direct_load(line, direct_in(&block), block.bytes));
}

/* ---- flags that wrap ---- */

/* Rewrites the lines of a slot that its step does not use. */
PRIM_FN void direct_clean_slot(const struct direct_run *it, const struct direct_place *place,
                               uint32_t bytes) {
  const uint32_t end = it->arguments->limits.step_bytes[PROTO_LL] / 16;
  for (uint32_t line = direct_line_count(bytes) + it->thread; line < end; line += it->thread_count)
    direct_put(place, line, 0);
}

/* True if a step of the loop, which begins with step `line`, is among the last `slots` of a half period of
 * the flag: old flags must not match after a wrap. Of two steps the second may be the first of these. */
PRIM_FN bool direct_is_near(const struct direct_run *it) {
  const uint32_t half = 1u << (it->arguments->limits.flag_bits - 1);
  return it->sends && it->keeps && ((uint32_t)it->line & (half - 1)) >= half - DIRECT_SLOTS - 1;
}

PRIM_FN void direct_clean(const struct direct_run *it, const struct direct_loop *loop) {
  uint32_t links = __ballot_sync(PRIM_ALL_LANES, direct_is_near(it)) >> DIRECT_SENDS;
  const struct direct_side *side = &direct_sent[direct_warp()];
  for (; links != 0; links &= links - 1) {
    const uint32_t link = (uint32_t)__ffs((int)links) - 1;
    const struct direct_block own = direct_block_of(loop, direct_of()->rank, true);
    direct_clean_slot(it, &side->places[0][link], side->shares[link].bytes);
    if (it->send_steps == 2) direct_clean_slot(it, &side->places[1][link], own.bytes);
  }
}

/* ---- warps that move lines ---- */

template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_move(struct direct_run *it, const struct direct_loop *loop) {
  if (it->copies) direct_copy(it, loop);
  if (direct_of()->op == OP_PRE_MUL_SUM) direct_send_scaled(it);
  else if (it->scatters) direct_scatter<LINKS, LINES>(it, loop);
  else if (it->spreads) direct_spread<4>(it, loop);
  if (it->adds) {
    if (direct_is_plain() ? !direct_add_up<LINKS, LINES, true>(it, loop)
                          : !direct_add_up<LINKS, 1, false>(it, loop))
      return false;
  }
  return !it->collects || direct_collect<LINKS, LINES>(it, loop, it->recv_steps - 1);
}

PRIM_FN void direct_work_ll(struct direct_run *it, bool awaits) {
  const struct work *work = direct_of();
  struct direct_loop loop;
  if (awaits) launch_await_previous();
  direct_read_counters(it);
  for (size_t done = 0; done < work->part_count; done += loop.chunk * direct_loop_chunks(work)) {
    loop = direct_loop_at(done);
    direct_place_lines(it, &loop);
    if (done == 0) direct_counters_read();
    if (!direct_await_slots(it, it->position + it->send_steps)) return;
    direct_clean(it, &loop);
    const bool few = work->recv_count <= 3 && work->send_count <= 3;
    const bool moved =
        few ? direct_move<3, DIRECT_FEW_LINES>(it, &loop) : direct_move<DIRECT_LINKS, 1>(it, &loop);
    if (!moved) return;
    direct_pass(it);
    it->loop += 1;
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = it->loop;
  }
}

/* ---- the last warp ---- */

PRIM_FN uint64_t direct_agreed_bytes(void) {
  return (uint64_t)direct_of()->part_count * direct_of()->element_bytes;
}

PRIM_FN struct tagged_word *direct_announcement(const struct direct_run *it) {
  return &it->receiver->announced[it->position % DIRECT_SLOTS];
}

/* Announces the operation's size on every link. */
PRIM_FN bool direct_announce(struct direct_run *it) {
  if (!direct_await_slots(it, it->position + 1)) return false;
  if (!it->sends || !it->keeps) return true;
  prim_tagged_write(direct_announcement(it), (uint32_t)it->position + 1, direct_agreed_bytes());
  return true;
}

PRIM_FN void direct_mismatch(const struct direct_run *it, uint64_t found_bytes) {
  const struct work *work = direct_of();
  const uint32_t index = prim_lane() % DIRECT_SENDS;
  struct launch_error *error = &it->arguments->control->errors[work->channel_index];
  error->peer = index > 0   ? (uint32_t)direct_further[direct_before(it->sends) + index - 1].peer
                : it->sends ? direct_work.send_peer
                            : direct_work.recv_peer;
  error->func = work->func;
  error->op_sequence = work->op_sequence;
  error->expected_bytes = direct_agreed_bytes();
  error->found_bytes = found_bytes;
  error->error = LANE_SIZE_MISMATCH;
  __threadfence_system();
  *(volatile int *)&it->arguments->control->failed = 1;
  *(volatile int *)it->arguments->failed = 1;
}

/* Each thread whose link's size has arrived compares it; a wrong size stops the block. */
PRIM_FN bool direct_agrees(const struct direct_run *it, bool known, uint64_t bytes) {
  const uint32_t wrong = __ballot_sync(PRIM_ALL_LANES, known && bytes != direct_agreed_bytes());
  if (wrong == 0) return true;
  if (prim_lane() == (uint32_t)__ffs((int)wrong) - 1) direct_mismatch(it, bytes);
  direct_stop();
  return false;
}

/* Compares the announced sizes with what this rank expects. */
PRIM_FN bool direct_poll_sizes(struct direct_run *it) {
  const bool asks = !it->sends && it->keeps;
  uint64_t bytes = 0;
  while (!__all_sync(PRIM_ALL_LANES, !asks || it->agreed)) {
    if (asks && !it->agreed)
      it->agreed = prim_tagged_read(direct_announcement(it), (uint32_t)it->position + 1, &bytes);
    if (direct_is_stopped(it)) return false;
  }
  return direct_agrees(it, asks, bytes);
}

/* Waits until all moving warps have completed this loop. */
PRIM_FN bool direct_await_compute(struct direct_run *it) {
  const uint32_t warps = blockDim.x / PRIM_WARP - 1;
  for (;;) {
    uint32_t done = UINT32_MAX;
    if (prim_lane() < warps) done = *(volatile uint32_t *)&direct_done[prim_lane()];
    if (__reduce_min_sync(PRIM_ALL_LANES, done) > it->loop) return true;
    if (direct_is_stopped(it)) return false;
  }
}

/* Saves where the next operation begins: `steps` after this one's last loop on each link. */
PRIM_FN void direct_save(const struct direct_run *it, uint32_t steps) {
  if (it->keeps) prim_store_pair(direct_counters(it), it->position + steps, it->line + steps);
}

/* Posts that all slots before this operation's are free. Done at its beginning, because a store to another
 * GPU at the end of a kernel delays the next kernel until it arrives. */
PRIM_FN void direct_signal_head(const struct direct_run *it) {
  if (it->keeps && !it->sends) prim_store_word(&it->sender->head, it->position);
}

/* For a work of one loop: the beginning of the next operation is known, and the fence before the count
 * (direct_end) completes before the lines arrive. */
PRIM_FN void direct_save_early(const struct direct_run *it) {
  direct_await_readers();
  direct_save(it, direct_steps(it));
  __syncwarp();
  __threadfence();
}

PRIM_FN void direct_keep_accounts(struct direct_run *it, bool awaits) {
  const struct work *work = direct_of();
  struct direct_loop loop;
  if (awaits) launch_await_previous();
  direct_read_counters(it);
  direct_signal_head(it);
  if (!direct_announce(it)) return;
  if (direct_is_once()) direct_save_early(it);
  if (!direct_poll_sizes(it) || direct_is_once()) return;
  direct_await_readers();
  for (size_t done = 0; done < work->part_count; done += loop.chunk * direct_loop_chunks(work)) {
    const uint64_t before = it->position / DIRECT_STEPS_A_HEAD;
    loop = direct_loop_at(done);
    if (!direct_await_compute(it)) return;
    direct_pass(it);
    it->loop += 1;
    if (it->keeps && !it->sends && it->position / DIRECT_STEPS_A_HEAD != before)
      prim_store_word(&it->sender->head, it->position);
  }
  direct_save(it, 0);
}

/* ---- the block ---- */

PRIM_FN void direct_plan(struct direct_run *it) {
  const struct work *work = direct_of();
  const bool two_shot = work->algo == ALGO_TWO_SHOT;
  const bool root = work->func == FUNC_BROADCAST && work->rank == work->root;
  it->copies = work->func == FUNC_ALL_TO_ALL;
  it->scatters = two_shot || work->func == FUNC_REDUCE_SCATTER || it->copies;
  it->spreads = !it->scatters && (work->func != FUNC_BROADCAST || root);
  it->adds = work->func == FUNC_ALL_REDUCE || work->func == FUNC_REDUCE_SCATTER;
  it->sends_sum = two_shot;
  it->collects =
      two_shot || work->func == FUNC_ALL_GATHER || it->copies || (work->func == FUNC_BROADCAST && !root);
  it->recv_steps = it->adds + it->collects;
  it->send_steps = (it->scatters || it->spreads) + it->sends_sum;
}

/* Everything that does not depend on earlier kernels. */
PRIM_FN void direct_prepare(struct direct_run *it, const struct launch_arguments *arguments) {
  it->arguments = arguments;
  it->loop = it->looks = 0;
  it->thread = threadIdx.x;
  it->thread_count = blockDim.x - PRIM_WARP;
  direct_bind(it);
  direct_plan(it);
}

/* A moving warp signals that it is gone when it has its lines, or was aborted. */
PRIM_FN void direct_leave(void) {
  __syncwarp();
  if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = DIRECT_GONE;
}

/* True if all moving warps are gone. */
PRIM_FN bool direct_others_gone(void) {
  const uint32_t warps = blockDim.x / PRIM_WARP - 1;
  const uint32_t done = prim_lane() < warps ? *(volatile uint32_t *)&direct_done[prim_lane()] : DIRECT_GONE;
  return __all_sync(PRIM_ALL_LANES, done == DIRECT_GONE);
}

/* Posts at the end that all slots of this operation are free, because a proxy waits for it. */
PRIM_FN void direct_signal_end(struct direct_run *it) {
  const uint64_t position = it->position + (direct_is_once() ? direct_steps(it) : 0);
  while (!direct_others_gone())
    if (direct_is_stopped(it)) return;
  if (it->keeps && !it->sends) prim_store_word(&it->sender->head, position);
}

/* Called by the last warp when all others are gone: the block no longer touches the communicator's memory,
 * and the kernel that waits for the count sees the saved counters and heads. `fenced`: they were saved early,
 * with a fence. The user's data is visible when the kernel has ended, as with any kernel. */
PRIM_FN void direct_end(const struct launch_arguments *arguments, bool fenced) {
  while (!direct_others_gone()) {}
  if (!fenced || *(volatile uint32_t *)&direct_stopped != 0) __threadfence();
  __syncwarp();
  if (prim_lane() == 0) launch_count_end(arguments);
}

/* Called by all threads: reads the work, and the links after the first of each side. */
template <bool SHIFTS>
PRIM_FN void direct_fetch(const struct launch_arguments *arguments, const uint8_t *data, uint32_t index) {
  const uint64_t *works = (const uint64_t *)data + index * (size_t)BOUND_WORDS;
  for (uint32_t i = threadIdx.x; i < BOUND_WORDS; i += blockDim.x)
    ((uint64_t *)&direct_work)[i] = bound_work_word(works, i);
  if (threadIdx.x < PRIM_WARPS_MAX) direct_done[threadIdx.x] = 0;
  if (threadIdx.x == 0) direct_issued = direct_ended = 0;
  __syncthreads();
  const struct work *work = direct_of();
  uint32_t count =
      (work->recv_count > 1 ? work->recv_count - 1u : 0) + (work->send_count > 1 ? work->send_count - 1u : 0);
  if (SHIFTS && work_has_further(work)) count += (work->recv_count + work->send_count + 3u) / 4;
  const struct bound_further *further =
      (const struct bound_further *)(data + arguments->further_offset) + direct_work.further;
  for (uint32_t i = threadIdx.x; i < count * (uint32_t)sizeof(struct bound_further) / 8; i += blockDim.x)
    ((uint64_t *)direct_further)[i] = ((const uint64_t *)further)[i];
  __syncthreads();
}

/* `awaits`: the launch's first work, before which nothing that an earlier kernel wrote may be read. */
template <void (*MOVE)(struct direct_run *, bool)>
PRIM_FN void direct_run_ll(const struct launch_arguments *arguments, bool awaits) {
  struct direct_run it;
  direct_prepare(&it, arguments);
  if (direct_commits()) direct_keep_accounts(&it, awaits);
  else MOVE(&it, awaits);
  if (arguments->hosted == 0) return;
  if (direct_commits()) direct_signal_end(&it);
  else direct_leave();
}

/* A block with less data is so short that the next kernel may start and wait from the beginning. */
#define DIRECT_SHORT_BYTES (UINT64_C(512) << 10)

PRIM_FN bool direct_is_short(void) {
  return (uint64_t)direct_of()->part_count * direct_of()->element_bytes <= DIRECT_SHORT_BYTES;
}

/* `RUN`: how a block runs a work. The works of a channel are stored consecutively. */
template <void (*RUN)(const struct launch_arguments *, bool), bool LINES>
PRIM_FN void direct_launch(const struct launch_arguments *arguments, const uint64_t *plan) {
  const uint8_t *data = arguments->data != 0 ? arguments->data : (const uint8_t *)plan;
  const struct plan_batch *batches = (const struct plan_batch *)(data + arguments->batches_offset);
  const uint32_t first = arguments->first_batch[blockIdx.x], end = arguments->first_batch[blockIdx.x + 1];
  if (LINES) launch_invite_next();
  if (threadIdx.x == 0) direct_stopped = 0;
  if (arguments->from_graph) launch_count(&arguments->counts->graph_started);
  if (first == end) {
    launch_await_previous();
    launch_end(arguments);
    return;
  }
  const uint32_t first_work = batches[first].first_work,
                 end_work = batches[end - 1].first_work + batches[end - 1].work_count;
  for (uint32_t index = first_work; index < end_work; index++) {
    if (index > first_work) __syncthreads();
    direct_fetch<!LINES>(arguments, data, index);
    if (!LINES && index == first_work && direct_is_short()) launch_invite_next();
    if (index == first_work || prim_peek_together(&direct_stopped) == 0) RUN(arguments, index == first_work);
  }
  if (!LINES && !direct_is_short()) launch_invite_next();
  if (direct_commits()) direct_end(arguments, !LINES || direct_is_once());
  else direct_leave();
}

#endif
