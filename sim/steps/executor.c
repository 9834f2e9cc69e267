/* executor.c: see executor.h. */
#include "steps/executor.h"

#include <string.h>

/* The lane that runs in this thread: loads are not given it. */
static _Thread_local struct prim *prim_now;

/* GROUP_LINES: more than a step of LL has, and its data still counts in 32 bits. */
enum { LINK_SHIFT = 56, GROUP_LINES = 1 << 24 };
#define ADDRESS_SLOT (UINT64_C(1) << 63)
#define ADDRESS_OTHER (UINT64_C(1) << 62)
#define ADDRESS_SENT (ADDRESS_SLOT | ADDRESS_OTHER)
#define ADDRESS_IN (UINT64_C(1) << 52)
#define ADDRESS_OUT (UINT64_C(1) << 53)
#define ADDRESS_SCRATCH (UINT64_C(1) << 54)

static uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }
static uint64_t address_kind(uint64_t address) { return address & ADDRESS_SENT; }
static uint32_t address_link(uint64_t address) { return (uint32_t)(address >> LINK_SHIFT) & 63; }

/* ---- counters ---- */

static uint32_t lane_steps(const struct lane *run) {
  return run->work->proto == PROTO_SIMPLE ? run->work->slice_steps : 1;
}

static struct conn_words *words_of(const struct prim *prim, const void *word) {
  return &prim->words[((uintptr_t)word - (uintptr_t)prim->words) / sizeof *prim->words];
}

/* The lane's link on a connection. */
static uint32_t recv_link_of(const struct prim *prim, const void *word) {
  return prim->lane->run.work->recv_count == 1 ? 0 : words_of(prim, word)->recv_link;
}

static uint32_t send_link_of(const struct prim *prim, const void *word) {
  return prim->lane->run.work->send_count == 1 ? 0 : words_of(prim, word)->send_link;
}

/* The number of the list whose progress is at the address; false: it is a connection's counter. */
static bool list_of(const struct lane *run, const uint64_t *address, uint32_t *number) {
  if (!lane_is_list(run)) return false;
  const uintptr_t offset = (uintptr_t)address - (uintptr_t)run->progress;
  *number = (uint32_t)(offset / sizeof *address);
  return offset < LIST_PROGRESS_BYTES;
}

uint64_t prim_load_tail(const uint64_t *address) {
  struct prim *prim = prim_now;
  const struct lane *run = &prim->lane->run;
  uint32_t number;
  if (list_of(run, address, &number))
    return prim->machine ? prim->machine->list(prim->context, number) : UINT64_MAX;
  const uint32_t link = recv_link_of(prim, address);
  const uint64_t need = run->recv[link].step + lane_steps(run);
  return prim->machine ? prim->machine->load(prim->context, link, false, need) : need;
}

/* A lane begins with the knowledge that costs no time. At its end it needs all slots. */
uint64_t prim_load_head(const uint64_t *address) {
  struct prim *prim = prim_now;
  const struct lane *run = &prim->lane->run;
  if (prim->opens) return 0;
  const uint32_t index = send_link_of(prim, address);
  const struct link *link = &run->send[index];
  const uint64_t need = run->has_step ? link->step + lane_steps(run) - link->slots : link->step;
  return prim->machine ? prim->machine->load(prim->context, index, true, need) : need;
}

void prim_store_tail(struct prim *prim, uint64_t *address, uint64_t value) {
  uint32_t number;
  if (!prim->machine) return;
  if (list_of(&prim->lane->run, address, &number)) prim->machine->report(prim->context, value);
  else prim->machine->store(prim->context, send_link_of(prim, address), true, value);
}

void prim_store_head(struct prim *prim, uint64_t *address, uint64_t value) {
  if (prim->machine) prim->machine->store(prim->context, recv_link_of(prim, address), false, value);
}

/* ---- addresses and sizes ---- */

/* The sizes that ends compare are equal, because the plans are those of one call. An announcement comes with
 * its data, and what offers cost is part of a launch: neither takes time here. */
void prim_tagged_store(struct prim *prim, struct tagged_word *word, uint32_t tag, uint64_t value) {
  struct conn_words *words = words_of(prim, word);
  if (word != &words->receiver.source) return;
  word->halves[0] = tag;
  word->halves[1] = value;
  if (prim->machine) prim->machine->show(prim->context, send_link_of(prim, word));
}

bool prim_tagged_load(const struct tagged_word *word, uint32_t tag, uint64_t *value) {
  struct prim *prim = prim_now;
  const struct conn_words *words = words_of(prim, word);
  *value = lane_agreed_bytes(lane_part(&prim->lane->run));
  if (word == &words->sender.offer) *value = 0; /* senders store in slots: what that costs is the same */
  if (word != &words->receiver.source) return true;
  const bool known = !prim->machine || word->halves[0] == tag;
  *value = prim->machine ? word->halves[1] : 0;
  if (prim->machine) prim->machine->shown(prim->context, recv_link_of(prim, word), known);
  return known;
}

/* ---- moves ---- */

static uint64_t *moved_in(struct executor_lane *lane, uint32_t link) {
  return &lane->slice.moves[link].moved;
}

static struct sim_link *moved_out(struct executor_lane *lane, uint32_t link) {
  return &lane->slice.moves[lane->run.work->recv_count + link];
}

/* The number of the group of lines that is next. */
static uint32_t piece_now(const struct lane *run) {
  return run->line_index == 0 ? 0 : run->line_index / run->group_lines;
}

static void slice_begin(struct executor_lane *lane) {
  const struct lane *run = &lane->run;
  struct sim_slice *slice = &lane->slice;
  for (link_set links = slice->announces; links != 0; links &= links - 1)
    moved_out(lane, (uint32_t)__builtin_ctzll(links))->held = 0;
  FIFO_EACH_LINK(i, run->work->recv_count, slice->recv_links) { *moved_in(lane, i) = 0; }
  FIFO_EACH_LINK(i, run->work->send_count, slice->send_links) { moved_out(lane, i)->moved = 0; }
  slice->recv_links = run->step.recv_links;
  slice->send_links = run->step.send_links;
  slice->reads = slice->sends = slice->frees = slice->announces = 0;
  slice->flags = run->step.flags;
  slice->piece = piece_now(run);
  slice->is_each = step_is_each(&run->step);
}

/* Counts a source; true if it comes from another rank. */
static bool source_add(struct executor_lane *lane, uint64_t address, uint64_t bytes) {
  const uint64_t kind = address_kind(address);
  const uint32_t link = address_link(address);
  if (kind != ADDRESS_SLOT && kind != ADDRESS_OTHER) return false;
  *moved_in(lane, link) += bytes;
  if (kind == ADDRESS_OTHER && bytes > 0) lane->slice.reads |= link_bit(link);
  return true;
}

static bool destination_add(struct executor_lane *lane, uint64_t address, uint64_t bytes) {
  const uint64_t end = step_send_place(&lane->run.step) * lane->run.work->element_bytes + bytes;
  if (address_kind(address) != ADDRESS_SENT) return false;
  struct sim_link *out = moved_out(lane, address_link(address));
  out->moved += bytes;
  if (end > out->held) out->held = end;
  if (bytes > 0) lane->slice.sends |= link_bit(address_link(address));
  return true;
}

/* The lane copies a block for each link one after the other; it stores one value to several links as many
 * times, and adds as many values as it receives. */
void prim_move_begin(struct prim *prim, struct move *move) {
  struct executor_lane *lane = prim->lane;
  const uint64_t element_bytes = lane->run.work->element_bytes;
  uint32_t in = 0, out = 0, own = 0;
  for (uint32_t k = 0; k < move->source_count; k++) {
    const uint64_t bytes = (move->each ? move->counts[k] : move->count) * element_bytes;
    const bool arrives = source_add(lane, address_of(move->source[k]), bytes);
    in += arrives;
    own += move->each && !arrives && address_kind(address_of(move->destination[k])) == 0;
  }
  for (uint32_t k = 0; k < move->destination_count; k++)
    out += destination_add(lane, address_of(move->destination[k]),
                           (move->each ? move->counts[k] : move->count) * element_bytes);
  const uint32_t most = (in > out ? in : out) + own;
  lane->slice.bytes = move->count * element_bytes;
  lane->slice.copies = move->destination_count == 0 ? 0 : most > 0 ? most : 1;
}

/* ---- lines ---- */

/* The share of a group of lines in a step's bytes: groups are as long as each other, up to a line. */
static uint64_t piece_of(const struct sim_slice *slice, uint64_t bytes) {
  const uint64_t each = bytes >> __builtin_ctz(slice->pieces);
  return slice->piece + 1 < slice->pieces ? each : bytes - slice->piece * each;
}

static uint64_t line_bytes(const struct executor_lane *lane, uint32_t link) {
  const struct step *step = &lane->run.step;
  if (!lane->slice.is_each || step->count == 0) return lane->slice.bytes;
  return lane->slice.bytes * step_link_count(step, link) / step->count;
}

bool prim_line_ready(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                     uint64_t flag) {
  struct executor_lane *lane = prim->lane;
  const uint32_t link = address_link(address_of(line));
  (void)kind, (void)line_count, (void)flag;
  if (!prim->machine) return true;
  lane->slice.piece = piece_now(&lane->run);
  return prim->machine->lines(prim->context, link, lane->run.recv[link].step);
}

void prim_line_load(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count, uint64_t flag,
                    struct prim_fragment *fragment) {
  const uint32_t link = address_link(address_of(line));
  (void)kind, (void)line_count, (void)flag, (void)fragment;
  *moved_in(prim->lane, link) += line_bytes(prim->lane, link);
}

void prim_line_store(struct prim *prim, uint8_t kind, uint8_t *line, uint32_t line_count, uint64_t flag,
                     const struct prim_fragment *fragment) {
  const uint32_t link = address_link(address_of(line));
  struct sim_link *out = moved_out(prim->lane, link);
  const uint64_t bytes = line_bytes(prim->lane, link);
  (void)kind, (void)line_count, (void)flag, (void)fragment;
  out->moved += bytes;
  out->held += bytes;
  if (bytes > 0) prim->lane->slice.sends |= link_bit(link);
}

static uint32_t link_count(link_set links) {
  return (links & (links - 1)) == 0 ? links != 0 : (uint32_t)__builtin_popcountll(links);
}

/* What a group of lines costs the lane. */
static void lines_begin(struct executor_lane *lane) {
  struct sim_slice *slice = &lane->slice;
  const struct step *step = &lane->run.step;
  const uint32_t out = link_count(slice->send_links), in = link_count(slice->recv_links);
  const bool own = slice->is_each && lane_copies_block(&lane->run);
  slice->bytes = piece_of(slice, step->count * (uint64_t)lane->run.work->element_bytes);
  slice->copies = (out > in ? out : in) + own;
  if (slice->copies == 0) slice->copies = 1;
}

bool steps_next_step(struct algo_iter *iter, const struct work *work, struct step *step) {
  const struct prim *prim = prim_now;
  struct executor_lane *lane = prim->lane;
  if (!algo_next(iter, work, step)) return false;
  if (work->proto == PROTO_SIMPLE) return true;
  const uint64_t bytes = (uint64_t)step->count * work->element_bytes;
  lane->slice.pieces = prim->machine ? prim->machine->pieces(bytes) : 1;
  lane->run.group_lines = GROUP_LINES;
  if (lane->slice.pieces > 1)
    lane->run.group_lines =
        (uint32_t)size_div_up(ll_lines_of(&lane->run, (uint32_t)bytes), lane->slice.pieces);
  return true;
}

/* ---- a lane ---- */

static void link_bind(struct prim *prim, const struct executor_work *made, uint32_t index) {
  const struct work *work = made->work;
  const bool sends = index >= work->recv_count;
  const uint32_t number = sends ? index - work->recv_count : index;
  struct conn_words *words = &prim->words[made->conns[index]];
  struct link *link = &made->links[index];
  memset(link, 0, sizeof *link);
  *(sends ? &words->send_link : &words->recv_link) = number;
  link->sender = &words->sender;
  link->receiver = &words->receiver;
  link->buffer =
      (uint8_t *)(uintptr_t)((sends ? ADDRESS_SENT : ADDRESS_SLOT) | (uint64_t)number << LINK_SHIFT);
  link->slots = made->limits->slots;
  link->step_bytes = made->limits->step_bytes[work->proto];
  link->direct_shift = ADDRESS_OTHER | (uint64_t)number << LINK_SHIFT;
  link->peer = sends ? work->send_peer[number] : work->recv_peer[number];
  link->shows = sends && (made->shows >> number & 1) != 0;
}

/* Where a lane without a machine believes the counters of lists; never stored to. */
static uint64_t no_progress[LIST_LANES_MAX];

void executor_open(struct prim *prim, struct executor_lane *lane, const struct executor_work *made) {
  static const struct plan_buffers parts[FUSED_PARTS_MAX] = {
      [0 ... FUSED_PARTS_MAX - 1] = {(const void *)(uintptr_t)ADDRESS_IN, (void *)(uintptr_t)ADDRESS_OUT,
                                     NULL}};
  const struct work *work = made->work;
  struct lane *run = &lane->run;
  prim_now = prim;
  prim->lane = lane;
  run->recv = made->links;
  run->send = made->links + work->recv_count;
  run->flights = &prim->flight;
  for (uint32_t i = 0; i < (uint32_t)work->recv_count + work->send_count; i++) {
    link_bind(prim, made, i);
    lane->slice.moves[i] = (struct sim_link){0, 0};
  }
  run->depth = 1;
  run->flag_bits = 32;
  run->group_lines = GROUP_LINES;
  run->parts = parts;
  run->remote = false;
  run->scratch = (uint8_t *)(uintptr_t)ADDRESS_SCRATCH;
  run->progress = prim->progress ? prim->progress : no_progress;
  lane->slice.pieces = 1;
  prim->opens = true;
  lane_open(run, prim, work, parts->in, made->stores_in_outputs ? parts->out : NULL);
  prim->opens = false;
}

uint32_t executor_action(struct prim *prim, struct executor_lane *lane) {
  prim_now = prim;
  prim->lane = lane;
  const uint32_t actions = lane_enabled(&lane->run, prim);
  return actions == 0 ? 0 : lane_first_action(actions);
}

/* The flight is that of the lane that moves: between begin and post a slice keeps only its sets of links. */
void executor_move(struct prim *prim, struct executor_lane *lane, uint32_t action) {
  struct lane *run = &lane->run;
  struct sim_slice *slice = &lane->slice;
  prim_now = prim;
  prim->lane = lane;
  if (action == LANE_BEGIN || action == LANE_LL) slice_begin(lane);
  if (action == LANE_LL) lines_begin(lane);
  prim->flight.recv_links = slice->frees;
  prim->flight.send_links = slice->announces;
  lane_move(run, prim, action);
  if (action == LANE_BEGIN) {
    slice->frees = prim->flight.recv_links;
    slice->announces = prim->flight.send_links;
  } else if (action == LANE_LL && run->line_index >= run->line_count) {
    slice->frees = slice->recv_links;
    slice->announces = slice->send_links;
  }
}
