/* direct.h: the code of a block whose works are all direct collectives. It binds the steps of
 * schedule/direct.h and the counters, slots and flags of protocol/ to a block's warps, with a link a thread:
 * in a warp that holds links, thread k has the receive link k, thread DIRECT_SENDS + k the send link k. A
 * wait is a vote of these threads. Data moves over all links at once, because on a GPU a small step's
 * arithmetic takes as long as its data:
 *
 *   scatter   to every link its own block of the input      two shots, reduce-scatter, all-to-all
 *   spread    the same block to every link                  one shot, all-gather, a broadcast's root, and
 *                                                           its shards in two shots
 *   add       received blocks of all links and own values   one shot, two shots, reduce-scatter
 *   collect   every link's block to the output              two shots, all-gather, all-to-all, broadcast
 *
 * Here is what both protocols need. The kernels need FIFO_SLOTS_MAX slots. */
#ifndef TUTTI_KERNELS_DIRECT_H
#define TUTTI_KERNELS_DIRECT_H

#define PRIM_THREAD_LINKS

#include "kernels/block.h"

#define DIRECT_LINKS LAUNCH_LINKS
#define DIRECT_SENDS 16u /* the thread of a warp that holds the first send link */
#ifndef DIRECT_REMOTE_LOOKS
#define DIRECT_REMOTE_LOOKS 1024u /* polls within the block per poll of host memory */
#endif
#define DIRECT_GONE (UINT32_MAX - 1) /* the warp no longer touches the communicator's memory */
#define DIRECT_READ_BARRIER 1        /* for warps that have read the counters; 0 is for all threads */

__shared__ uint32_t direct_done[PRIM_WARPS_MAX]; /* phases that a warp has completed, or DIRECT_GONE */
/* Number of phases issued; and, once no more follow, their total plus one. */
__shared__ uint32_t direct_issued, direct_ended;
__shared__ uint32_t direct_stopped;
__shared__ struct bound_work direct_work;
/* Further links, followed by the shifts that are added to published addresses: four words per entry. */
__shared__ struct bound_further direct_further[2 * DIRECT_LINKS + (2 * DIRECT_LINKS + 3) / 4];

/* A warp that holds links. */
struct direct_run {
  const struct launch_arguments *arguments;
  uint32_t looks;
  struct link link;              /* this thread's, if it holds one */
  struct tagged_word *announced; /* the operation's size, and the tag that it has on this link */
  uint32_t tag;
  bool keeps, sends;
};

PRIM_FN uint32_t direct_warp(void) { return threadIdx.x / PRIM_WARP; }
PRIM_FN bool direct_commits(void) { return direct_warp() == blockDim.x / PRIM_WARP - 1; }
PRIM_FN const struct work *direct_of(void) { return bound_work_of(&direct_work); }
PRIM_FN bool direct_is_ll(void) { return lane_proto(direct_of()) == PROTO_LL; }

PRIM_FN void direct_stop(void) { *(volatile uint32_t *)&direct_stopped = 1; }

/* Called in every iteration of a wait, by all threads of the warp. */
PRIM_FN bool direct_sees_stop(void) {
  return __any_sync(PRIM_ALL_LANES, *(volatile uint32_t *)&direct_stopped != 0);
}

/* The same for a warp that holds links. The commit warp also looks whether the host aborts. */
PRIM_FN bool direct_is_stopped(struct direct_run *it) {
  it->looks += 1;
  if (direct_commits() && it->looks % DIRECT_REMOTE_LOOKS == 0) {
    const int *abort_flag = &it->arguments->control->abort;
    work_note_wait(&direct_work, abort_flag, 0);
    if ((prim_flag(abort_flag) | prim_flag(it->arguments->failed)) != 0) direct_stop();
  }
  return direct_sees_stop();
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

/* Waits until the slots of `steps` steps are free on the send links for which `asks` is true; false if the
 * block was aborted. */
PRIM_FN bool direct_await_slots(struct direct_run *it, bool asks, uint32_t steps) {
  asks = asks && it->sends && it->keeps;
  while (!__all_sync(PRIM_ALL_LANES, !asks || link_has_slots(&it->link, steps)))
    if (direct_is_stopped(it)) return false;
  return true;
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

/* Sums of the types common in training need few instructions, so a thread has registers for more data. */
PRIM_FN bool direct_is_plain(void) {
  const struct work *work = direct_of();
  return work->op == OP_SUM &&
         (work->dtype == TYPE_FLOAT || work->dtype == TYPE_BFLOAT16 || work->dtype == TYPE_HALF);
}

/* ---- lines: eight bytes of data each ---- */

PRIM_FN void direct_keep(uint32_t line, uint8_t *to, uint32_t bytes, uint64_t word) {
  const uint32_t offset = line * 8;
  if (offset >= bytes) return;
  if (((uintptr_t)to & 7) == 0 && bytes - offset >= 8) element_store(to + offset, 8, word);
  else word_store(to + offset, bytes - offset, word);
}

/* `lines`: address of the slot's first line. */
PRIM_FN bool direct_take(uint64_t lines, uint32_t flag, uint32_t line, uint64_t *word) {
  const ulonglong2 pair = prim_load_pair((const uint8_t *)(uintptr_t)lines + (size_t)line * 16);
  *word = line_word(pair.x, pair.y);
  return line_half_has(pair.x, flag) && line_half_has(pair.y, flag);
}

/* The line is used: see prim_took(). */
PRIM_FN void direct_took(uint64_t lines, uint32_t line) {
  prim_took((const uint8_t *)(uintptr_t)lines + (size_t)line * 16);
}

PRIM_FN void direct_put(uint64_t lines, uint32_t flag, uint32_t line, uint64_t word) {
  prim_store_line((uint8_t *)(uintptr_t)lines + (size_t)line * 16, line_first_half(word, flag),
                  line_second_half(word, flag));
}

/* ---- sizes and counters ---- */

/* Announces the operation's size on every link. */
PRIM_FN bool direct_announce(struct direct_run *it) {
  if (!direct_await_slots(it, true, 1)) return false;
  if (!it->sends || !it->keeps) return true;
  prim_tagged_write(it->announced, it->tag, lane_agreed_bytes(direct_of()));
  return true;
}

/* The rank at the other end of this thread's link. */
PRIM_FN uint32_t direct_peer(const struct direct_run *it) {
  const uint32_t index = direct_index();
  if (index > 0) return (uint32_t)direct_further[direct_before(it->sends) + index - 1].peer;
  return it->sends ? direct_work.send_peer : direct_work.recv_peer;
}

/* Each thread whose link's size has arrived compares it; a wrong size stops the block. */
PRIM_FN bool direct_agrees(const struct direct_run *it, bool known, uint64_t bytes) {
  const uint32_t wrong = __ballot_sync(PRIM_ALL_LANES, known && bytes != lane_agreed_bytes(direct_of()));
  if (wrong == 0) return true;
  if (prim_lane() == (uint32_t)__ffs((int)wrong) - 1)
    launch_mismatch(it->arguments, direct_of(), direct_peer(it), lane_agreed_bytes(direct_of()), bytes);
  direct_stop();
  return false;
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

/* Checks once what the other ranks announced as the operation's size; false if it differs. */
PRIM_FN bool direct_compare(struct direct_run *it) {
  const bool asks = it->keeps && !it->link.agreed;
  uint64_t bytes = 0;
  if (asks)
    it->link.agreed = it->sends ? prim_tagged_glance(&it->link.sender->offer_bytes, it->tag, &bytes)
                                : prim_tagged_read(it->announced, it->tag, &bytes);
  return direct_agrees(it, asks && it->link.agreed, bytes);
}

/* ---- the block ---- */

/* Everything that does not depend on earlier kernels. */
PRIM_FN void direct_prepare(struct direct_run *it, const struct launch_arguments *arguments) {
  it->arguments = arguments;
  it->looks = 0;
  direct_bind(it);
}

/* A warp signals that it is gone when it has moved everything, or was aborted. */
PRIM_FN void direct_leave(void) {
  __syncwarp();
  if (prim_lane() == 0) prim_post(&direct_done[direct_warp()], DIRECT_GONE);
}

/* True if all warps but the last are gone. */
PRIM_FN bool direct_others_gone(void) {
  const uint32_t warps = blockDim.x / PRIM_WARP - 1;
  const uint32_t done = prim_lane() < warps ? prim_peek(&direct_done[prim_lane()]) : DIRECT_GONE;
  return __all_sync(PRIM_ALL_LANES, done == DIRECT_GONE);
}

/* Called by the last warp when all others are gone: the block no longer touches the communicator's memory,
 * and the kernel that waits for the count sees the saved counters and heads, which were saved early, with a
 * fence. The user's data is visible when the kernel has ended, as with any kernel. */
PRIM_FN void direct_end(const struct launch_arguments *arguments) {
  while (!direct_others_gone()) {}
  if (*(volatile uint32_t *)&direct_stopped != 0) __threadfence();
  __syncwarp();
  if (prim_lane() == 0) launch_count_end(arguments);
}

/* Called by all threads: reads the work, and the links after the first of each side. */
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
  if (!direct_is_ll() && work_has_further(work)) count += (work->recv_count + work->send_count + 3u) / 4;
  const struct bound_further *further =
      (const struct bound_further *)(data + arguments->further_offset) + direct_work.further;
  for (uint32_t i = threadIdx.x; i < count * (uint32_t)sizeof(struct bound_further) / 8; i += blockDim.x)
    ((uint64_t *)direct_further)[i] = ((const uint64_t *)further)[i];
  __syncthreads();
}

/* A block with less data is so short that the next kernel may start and wait from the beginning. */
#define DIRECT_SHORT_BYTES (UINT64_C(512) << 10)

PRIM_FN bool direct_is_short(void) {
  return (uint64_t)direct_of()->part_count * direct_of()->element_bytes <= DIRECT_SHORT_BYTES;
}

/* `RUN`: how a block runs a work. The works of a channel are stored consecutively. */
template <void (*RUN)(const struct launch_arguments *, bool)>
PRIM_FN void direct_launch(const struct launch_arguments *arguments, const uint64_t *plan) {
  const uint8_t *data = arguments->data != 0 ? arguments->data : (const uint8_t *)plan;
  const struct bound_batch *batches = (const struct bound_batch *)(data + arguments->batches_offset);
  const uint32_t first = arguments->first_batch[blockIdx.x], end = arguments->first_batch[blockIdx.x + 1];
  if (direct_is_ll()) launch_invite_next();
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
    direct_fetch(arguments, data, index);
    if (!direct_is_ll() && index == first_work && direct_is_short()) launch_invite_next();
    if (index == first_work || prim_peek_together(&direct_stopped) == 0) RUN(arguments, index == first_work);
  }
  if (!direct_is_ll() && !direct_is_short()) launch_invite_next();
  if (direct_commits()) direct_end(arguments);
  else direct_leave();
}

#endif
