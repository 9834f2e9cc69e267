/* direct.h: the code of a block whose works are all direct collectives. It binds the steps of
 * schedule/direct.h and the counters, slots and flags of protocol/ to a block whose warps each run all steps,
 * with a link a thread: thread k of a warp holds the receive link k, thread DIRECT_SENDS + k the send link k.
 * A wait is a vote of these threads. Here are the links, the block, and over LL the movers of each kind of
 * step, over all links at once, because on a GPU a small step's arithmetic takes as long as its data:
 *
 *   scatter   to every link its own block of the input      two shots, reduce-scatter, all-to-all
 *   spread    the same block to every link                  one shot, all-gather, a broadcast's root
 *   add up    received blocks of all links and own values   one shot, two shots, reduce-scatter
 *   collect   every link's block to the output              two shots, all-gather, all-to-all, broadcast
 *
 * The last warp moves no data: it announces and compares sizes, frees slots and saves the counters, so the
 * other warps do not wait for this. It needs FIFO_SLOTS_MAX slots. */
#ifndef TUTTI_KERNELS_DIRECT_H
#define TUTTI_KERNELS_DIRECT_H

#define PRIM_THREAD_LINKS

#include "kernels/block.h"

#define DIRECT_LINKS LAUNCH_LINKS
#define DIRECT_SENDS 16u /* the thread of a warp that holds the first send link */
#ifndef DIRECT_REMOTE_LOOKS
#define DIRECT_REMOTE_LOOKS 1024u /* polls within the block per poll of host memory */
#endif
/* Lines per link that a thread has in flight if there are few links; limited by registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define DIRECT_FEW_LINES 2
#else
#define DIRECT_FEW_LINES 1
#endif
#define DIRECT_GONE (UINT32_MAX - 1) /* the warp no longer touches the communicator's memory */
#define DIRECT_READ_BARRIER 1        /* for warps that have read the counters; 0 is for all threads */

/* Of a link in a step: its lines, and the user's memory that they carry. */
struct direct_route {
  uint64_t lines, flag; /* address of the slot's first line; flag of its lines */
  uint8_t *user;
  uint32_t bytes, line_count;
};

/* By side: routes of the step that a warp makes. */
__shared__ struct direct_route direct_received[PRIM_WARPS_MAX][DIRECT_LINKS + 1],
    direct_sent[PRIM_WARPS_MAX][DIRECT_LINKS + 1];
__shared__ uint32_t
    direct_done[PRIM_WARPS_MAX]; /* steps, or phases, that a warp has completed, or DIRECT_GONE */
/* Simple: number of phases issued; and, once no more follow, their total plus one. */
__shared__ uint32_t direct_issued, direct_ended;
__shared__ uint32_t direct_stopped;
__shared__ struct bound_work direct_work;
/* Further links, followed by the shifts that are added to published addresses: four words per entry. */
__shared__ struct bound_further direct_further[2 * DIRECT_LINKS + (2 * DIRECT_LINKS + 3) / 4];

struct direct_run {
  const struct launch_arguments *arguments;
  uint32_t looks, steps;         /* steps: made so far */
  uint32_t thread, thread_count; /* threads that move lines; the last warp has none */
  struct link link;              /* this thread's, if it holds one */
  struct tagged_word *announced; /* the operation's size, and the tag that it has on this link */
  uint32_t tag;
  bool keeps, sends;
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

PRIM_FN const struct bound_link *direct_bound(uint32_t index, bool sends) {
  if (index > 0) return &direct_further[direct_before(sends) + index - 1].link;
  return sends ? &direct_work.send : &direct_work.recv;
}

PRIM_FN uint32_t direct_index(void) { return prim_lane() % DIRECT_SENDS; }

/* The link that this thread of the warp holds. Reads nothing that an earlier kernel wrote. */
PRIM_FN void direct_bind(struct direct_run *it) {
  const struct work *work = direct_of();
  const uint32_t index = direct_index();
  it->sends = prim_lane() >= DIRECT_SENDS;
  it->keeps = index < (it->sends ? work->send_count : work->recv_count);
  it->link.sender = 0;
  it->link.receiver = 0;
  it->link.buffer = 0;
  if (it->keeps)
    link_bind(&it->link, direct_bound(index, it->sends), 0, lane_proto(work), &it->arguments->limits);
  it->link.slots = FIFO_SLOTS_MAX; /* a constant: the host uses these kernels with that many */
}

/* Whether the step uses this thread's link. */
PRIM_FN bool direct_names(const struct direct_run *it, const struct step *step) {
  return it->keeps && ((it->sends ? step->send_links : step->recv_links) >> direct_index() & 1) != 0;
}

/* Address of the saved `step` and `line`. */
PRIM_FN uint8_t *direct_counters(const struct direct_run *it) {
  return (it->sends ? (uint8_t *)it->link.sender : (uint8_t *)it->link.receiver) + LAUNCH_STEP_OFFSET;
}

/* Opens the link with its counters, saved by the previous operation. */
PRIM_FN void direct_open(struct direct_run *it) {
  const ulonglong2 counters = prim_load_pair_if(it->keeps, direct_counters(it));
  const uint64_t head = prim_load_word_if(it->keeps && it->sends, it->link.sender);
  link_open(&it->link, counters.x, 1);
  link_open_ll(&it->link, counters.y);
  it->link.cached = head;
  it->tag = link_tag(&it->link);
  it->announced = it->keeps ? link_announcement(&it->link, lane_proto(direct_of())) : 0;
}

/* Called by a warp that moves, when it has read the counters; after all have, the last warp may write
 * them. */
PRIM_FN void direct_counters_read(void) {
  PRIM_BARRIER_ARRIVE(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x));
}

PRIM_FN void direct_await_readers(void) { PRIM_BARRIER_SYNC(DIRECT_READ_BARRIER, PRIM_VARIABLE(blockDim.x)); }

/* Waits until the slots of `steps` steps are free on the send links for which `asks` is true; false if the
 * block was aborted. */
PRIM_FN bool direct_await_slots(struct direct_run *it, bool asks, uint32_t steps) {
  asks = asks && it->sends && it->keeps;
  while (!__all_sync(PRIM_ALL_LANES, !asks || link_has_slots(&it->link, steps)))
    if (direct_is_stopped(it)) return false;
  return true;
}

/* True if the heads that were read show it already. */
PRIM_FN bool direct_knows_slots(const struct direct_run *it, uint32_t steps) {
  return __all_sync(PRIM_ALL_LANES, !it->sends || !it->keeps || link_knows_slots(&it->link, steps));
}

/* ---- user memory ---- */

PRIM_FN uint32_t direct_bytes(size_t elements) { return (uint32_t)(elements * direct_of()->element_bytes); }

PRIM_FN const uint8_t *direct_in(size_t elements) {
  return (const uint8_t *)direct_work.in + elements * direct_of()->element_bytes;
}

PRIM_FN uint8_t *direct_out(size_t elements) {
  return (uint8_t *)direct_work.out + elements * direct_of()->element_bytes;
}

/* What link `index` carries in the step. */
PRIM_FN uint8_t *direct_user(const struct step *step, uint32_t index, bool sends) {
  return sends ? (uint8_t *)(uintptr_t)direct_in(step_link_in(step, index))
               : direct_out(step_link_out(step, index, false));
}

/* Whether the work has one loop: all works of a kernel of single passes do. */
PRIM_FN bool direct_is_once(void) {
#ifdef DIRECT_ONCE_LINKS
  return true;
#else
  return direct_of()->part_count <= direct_loop_elements(direct_of());
#endif
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

PRIM_FN bool direct_take(const struct direct_route *route, uint32_t line, uint64_t *word) {
  const uint32_t flag = (uint32_t)route->flag;
  const ulonglong2 pair = prim_load_pair((const uint8_t *)(uintptr_t)route->lines + (size_t)line * 16);
  *word = (pair.x & 0xffffffffu) | pair.y << 32;
  return (uint32_t)(pair.x >> 32) == flag && (uint32_t)(pair.y >> 32) == flag;
}

PRIM_FN void direct_put(const struct direct_route *route, uint32_t line, uint64_t word) {
  const uint64_t flag = route->flag << 32;
  uint8_t *at = (uint8_t *)(uintptr_t)route->lines + (size_t)line * 16;
  prim_store_pair(at, (word & 0xffffffffu) | flag, word >> 32 | flag);
}

PRIM_FN void direct_scale(uint64_t *word) {
  const struct work *work = direct_of();
  if (work->op == OP_PRE_MUL_SUM) words_apply(work->dtype, WORDS_SCALE, word, word, work->op_arg);
}

/* Each thread writes the route of its link in the step. */
PRIM_FN void direct_write_route(const struct direct_run *it, const struct step *step) {
  const uint32_t index = direct_index();
  __syncwarp(); /* no thread reads the previous step's any more */
  if (direct_names(it, step)) {
    struct direct_route *route = &(it->sends ? direct_sent : direct_received)[direct_warp()][index];
    route->lines = (uint64_t)(uintptr_t)line_address(&it->link, LINE_LL, 0);
    route->flag = line_flag_at(it->link.line, line_flag_mask(it->arguments->limits.flag_bits));
    route->user = direct_user(step, index, it->sends);
    route->bytes = direct_bytes(step_link_count(step, index));
    route->line_count = direct_line_count(route->bytes);
  }
  __syncwarp();
}

/* ---- movers ---- */

/* Sends every link its own block of the input: the loads of all links first, LINES per thread at a time, then
 * the stores. */
template <uint32_t LINKS, uint32_t LINES>
PRIM_FN void direct_scatter(const struct direct_run *it, const struct step *step) {
  const uint32_t links = direct_of()->send_count, most = direct_line_count(direct_bytes(step->count));
  const struct direct_route *routes = direct_sent[direct_warp()];
#pragma unroll 1
  for (uint32_t first = it->thread; first < most; first += LINES * it->thread_count) {
    uint64_t words[LINKS][LINES];
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++)
        if (link < links)
          words[link][b] = direct_load(first + b * it->thread_count, routes[link].user, routes[link].bytes);
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++) {
        const uint32_t line = first + b * it->thread_count;
        if (link < links && line < routes[link].line_count) direct_put(&routes[link], line, words[link][b]);
      }
  }
}

/* Sends the same block to every link, and copies it to the own output if the step keeps it. */
template <uint32_t LINES>
PRIM_FN void direct_spread(const struct direct_run *it, const struct step *step) {
  const struct direct_route *routes = direct_sent[direct_warp()];
  const uint8_t *from = direct_in(step->in_offset);
  uint8_t *to = direct_out(step->out_offset);
  const uint32_t bytes = direct_bytes(step->count), links = direct_of()->send_count;
  const uint32_t end = direct_line_count(bytes);
  const bool keeps = (step->flags & STEP_KEEP) != 0;
#pragma unroll 1
  for (uint32_t first = it->thread; first < end; first += LINES * it->thread_count) {
    uint64_t words[LINES];
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) words[b] = direct_load(first + b * it->thread_count, from, bytes);
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) {
      const uint32_t line = first + b * it->thread_count;
#pragma unroll 1
      for (uint32_t link = 0; link < links; link++)
        if (line < end) direct_put(&routes[link], line, words[b]);
      if (keeps) direct_keep(line, to, bytes, words[b]);
    }
  }
}

/* Both, for values that are scaled before they are sent. This case is rare, so the code is short instead of
 * fast. */
PRIM_FN void direct_send_scaled(const struct direct_run *it) {
#pragma unroll 1
  for (uint32_t link = 0; link < direct_of()->send_count; link++) {
    const struct direct_route *route = &direct_sent[direct_warp()][link];
#pragma unroll 1
    for (uint32_t line = it->thread; line < route->line_count; line += it->thread_count) {
      uint64_t word = direct_load(line, route->user, route->bytes);
      direct_scale(&word);
      direct_put(route, line, word);
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

/* Adds the received blocks of all links and the own values; keeps the sum, and sends it if the step does. The
 * warp votes, so that its threads iterate together. */
template <uint32_t LINKS, uint32_t LINES, bool PLAIN>
PRIM_FN bool direct_add_up(struct direct_run *it, const struct step *step) {
  const struct work *work = direct_of();
  const struct direct_route *received = direct_received[direct_warp()], *sent = direct_sent[direct_warp()];
  const uint8_t *from = direct_in(step->in_offset);
  uint8_t *to = direct_out(step->out_offset);
  const uint32_t bytes = direct_bytes(step->count), end = direct_line_count(bytes), links = work->recv_count;
  const bool sends = (step->flags & STEP_SEND) != 0;
#pragma unroll 1
  for (uint32_t turn = 0; it->thread - prim_lane() + turn < end; turn += LINES * it->thread_count) {
    const uint32_t first = it->thread + turn;
    uint64_t own[LINES], arrived[LINES][LINKS];
#pragma unroll
    for (uint32_t b = 0; b < LINES; b++) own[b] = direct_load(first + b * it->thread_count, from, bytes);
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
      if (sends)
#pragma unroll
        for (uint32_t link = 0; link < LINKS; link++)
          if (link < links && line < end) direct_put(&sent[link], line, sum);
      direct_keep(line, to, bytes, sum);
    }
  }
  return true;
}

/* Copies every link's block to the output. */
template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_collect(struct direct_run *it, const struct step *step) {
  const struct direct_route *routes = direct_received[direct_warp()];
  const uint32_t most = direct_line_count(direct_bytes(step->count)), links = direct_of()->recv_count;
#pragma unroll 1
  for (uint32_t turn = 0; it->thread - prim_lane() + turn < most; turn += LINES * it->thread_count) {
    const uint32_t first = it->thread + turn;
    uint64_t words[LINKS][LINES];
    DIRECT_AWAIT(it, {
#pragma unroll
      for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
        for (uint32_t b = 0; b < LINES; b++)
          if (link < links && first + b * it->thread_count < routes[link].line_count)
            flagged &= direct_take(&routes[link], first + b * it->thread_count, &words[link][b]);
    })
#pragma unroll
    for (uint32_t link = 0; link < LINKS; link++)
#pragma unroll
      for (uint32_t b = 0; b < LINES; b++)
        if (link < links)
          direct_keep(first + b * it->thread_count, routes[link].user, routes[link].bytes, words[link][b]);
  }
  return true;
}

/* Copies the own block of a step with a block for each link. */
PRIM_FN void direct_copy(const struct direct_run *it, const struct step *step) {
  const size_t own = step_block_offset(step, step->own_index);
  const uint8_t *from = direct_in(step->in_offset + own);
  uint8_t *to = direct_out(step->out_offset + own);
  const uint32_t bytes = direct_bytes(step_block_count(step, step->own_index));
#pragma unroll 1
  for (uint32_t line = it->thread; line < direct_line_count(bytes); line += it->thread_count)
    direct_keep(line, to, bytes, direct_load(line, from, bytes));
}

/* Rewrites the lines of a slot that its step does not use. */
PRIM_FN void direct_clean_slot(const struct direct_run *it, const struct direct_route *route) {
  const uint32_t end = it->arguments->limits.step_bytes[PROTO_LL] / line_wire_bytes(LINE_LL);
  for (uint32_t line = route->line_count + it->thread; line < end; line += it->thread_count)
    direct_put(route, line, 0);
}

PRIM_FN bool direct_cleans(const struct direct_run *it, const struct step *step) {
  return it->sends && direct_names(it, step) &&
         line_cleans_at(it->link.line, it->arguments->limits.flag_bits, FIFO_SLOTS_MAX);
}

PRIM_FN void direct_clean(const struct direct_run *it, const struct step *step) {
  uint32_t links = __ballot_sync(PRIM_ALL_LANES, direct_cleans(it, step)) >> DIRECT_SENDS;
  for (; links != 0; links &= links - 1)
    direct_clean_slot(it, &direct_sent[direct_warp()][(uint32_t)__ffs((int)links) - 1]);
}

/* ---- warps that move lines ---- */

template <uint32_t LINKS, uint32_t LINES>
PRIM_FN bool direct_move(struct direct_run *it, const struct step *step) {
  if (step->flags & STEP_REDUCE)
    return direct_is_plain() ? direct_add_up<LINKS, LINES, true>(it, step)
                             : direct_add_up<LINKS, 1, false>(it, step);
  if (step->flags & STEP_RECV) return direct_collect<LINKS, LINES>(it, step);
  const bool each = step_is_each(step);
  if (each && (step->flags & STEP_KEEP) != 0) direct_copy(it, step);
  if (direct_of()->op == OP_PRE_MUL_SUM) direct_send_scaled(it);
  else if (each) direct_scatter<LINKS, LINES>(it, step);
  else direct_spread<4>(it, step);
  return true;
}

/* Ends a step, which uses this thread's link if `names` is true. */
PRIM_FN void direct_advance(struct direct_run *it, bool names) {
  if (names) ll_advance(&it->link);
  it->steps += 1;
}

PRIM_FN void direct_work_ll(struct direct_run *it, bool awaits) {
  const struct work *work = direct_of();
  const bool few = work->recv_count <= 3 && work->send_count <= 3;
  struct direct_iter steps;
  struct step step;
  direct_begin(&steps, work);
  bool more = direct_next(&steps, work, &step); /* its code is in the instruction cache then, too */
  if (awaits) launch_await_previous();
  direct_open(it);
  direct_counters_read();
  for (; more; more = direct_next(&steps, work, &step)) {
    direct_write_route(it, &step);
    const bool names = direct_names(it, &step);
    if (!direct_await_slots(it, names, 1)) return;
    direct_clean(it, &step);
    const bool moved =
        few ? direct_move<3, DIRECT_FEW_LINES>(it, &step) : direct_move<DIRECT_LINKS, 1>(it, &step);
    if (!moved) return;
    direct_advance(it, names);
    __syncwarp();
    if (prim_lane() == 0) *(volatile uint32_t *)&direct_done[direct_warp()] = it->steps;
  }
}

/* ---- the last warp ---- */

/* Announces the operation's size on every link. */
PRIM_FN bool direct_announce(struct direct_run *it) {
  if (!direct_await_slots(it, true, 1)) return false;
  if (!it->sends || !it->keeps) return true;
  prim_tagged_write(it->announced, it->tag, lane_agreed_bytes(direct_of()));
  return true;
}

PRIM_FN void direct_mismatch(const struct direct_run *it, uint64_t found_bytes) {
  const struct work *work = direct_of();
  const uint32_t index = direct_index();
  struct launch_error *error = &it->arguments->control->errors[work->channel_index];
  error->peer = index > 0   ? (uint32_t)direct_further[direct_before(it->sends) + index - 1].peer
                : it->sends ? direct_work.send_peer
                            : direct_work.recv_peer;
  error->func = work->func;
  error->op_sequence = work->op_sequence;
  error->expected_bytes = lane_agreed_bytes(work);
  error->found_bytes = found_bytes;
  error->error = LANE_SIZE_MISMATCH;
  __threadfence_system();
  *(volatile int *)&it->arguments->control->failed = 1;
  *(volatile int *)it->arguments->failed = 1;
}

/* Each thread whose link's size has arrived compares it; a wrong size stops the block. */
PRIM_FN bool direct_agrees(const struct direct_run *it, bool known, uint64_t bytes) {
  const uint32_t wrong = __ballot_sync(PRIM_ALL_LANES, known && bytes != lane_agreed_bytes(direct_of()));
  if (wrong == 0) return true;
  if (prim_lane() == (uint32_t)__ffs((int)wrong) - 1) direct_mismatch(it, bytes);
  direct_stop();
  return false;
}

/* Compares the announced sizes with what this rank expects. */
PRIM_FN bool direct_poll_sizes(struct direct_run *it) {
  const bool asks = !it->sends && it->keeps;
  uint64_t bytes = 0;
  while (!__all_sync(PRIM_ALL_LANES, !asks || it->link.agreed)) {
    if (asks && !it->link.agreed) it->link.agreed = prim_tagged_read(it->announced, it->tag, &bytes);
    if (direct_is_stopped(it)) return false;
  }
  return direct_agrees(it, asks, bytes);
}

/* Waits until all moving warps have completed one more step. */
PRIM_FN bool direct_await_compute(struct direct_run *it) {
  const uint32_t warps = blockDim.x / PRIM_WARP - 1;
  for (;;) {
    uint32_t done = UINT32_MAX;
    if (prim_lane() < warps) done = *(volatile uint32_t *)&direct_done[prim_lane()];
    if (__reduce_min_sync(PRIM_ALL_LANES, done) > it->steps) return true;
    if (direct_is_stopped(it)) return false;
  }
}

/* Saves where the next operation begins: `steps` after the link's step, and `lines` after its line. */
PRIM_FN void direct_save(const struct direct_run *it, uint32_t steps, uint32_t lines) {
  if (it->keeps) prim_store_pair(direct_counters(it), it->link.step + steps, it->link.line + lines);
}

/* Posts that the link's slots before its step are free. Done at an operation's beginning, because a store to
 * another GPU at the end of a kernel delays the next kernel until it arrives. */
PRIM_FN void direct_signal_head(const struct direct_run *it) {
  if (it->keeps && !it->sends) prim_store_word(&it->link.sender->head, it->link.step);
}

/* For a work of one loop: the beginning of the next operation is known, and the fence before the count
 * (direct_end) completes before the lines arrive. */
PRIM_FN void direct_save_early(const struct direct_run *it) {
  const uint32_t steps = direct_link_steps(direct_of());
  direct_await_readers();
  direct_save(it, steps, steps);
  __syncwarp();
  __threadfence();
}

PRIM_FN void direct_keep_accounts(struct direct_run *it, bool awaits) {
  const struct work *work = direct_of();
  struct direct_iter steps;
  struct step step;
  if (awaits) launch_await_previous();
  direct_open(it);
  direct_signal_head(it);
  if (!direct_announce(it)) return;
  if (direct_is_once()) direct_save_early(it);
  if (!direct_poll_sizes(it) || direct_is_once()) return;
  direct_await_readers();
  direct_begin(&steps, work);
  while (direct_next(&steps, work, &step)) {
    const uint64_t before = it->link.step;
    if (!direct_await_compute(it)) return;
    direct_advance(it, direct_names(it, &step));
    if (fifo_frees_now(before, it->link.step)) direct_signal_head(it);
  }
  direct_save(it, 0, 0);
}

/* ---- the block ---- */

/* Everything that does not depend on earlier kernels. */
PRIM_FN void direct_prepare(struct direct_run *it, const struct launch_arguments *arguments) {
  it->arguments = arguments;
  it->steps = it->looks = 0;
  it->thread = threadIdx.x;
  it->thread_count = blockDim.x - PRIM_WARP;
  direct_bind(it);
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
  if (direct_is_once()) it->link.step += direct_link_steps(direct_of());
  while (!direct_others_gone())
    if (direct_is_stopped(it)) return;
  direct_signal_head(it);
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
