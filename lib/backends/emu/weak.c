/* weak.c: late and unordered stores; weak.h has the rules. A lane's notes are a list in program order. A
 * counter remembers how much of the list its last visible release covers, and an acquire performs that much.
 */
#include "backends/emu/weak.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/block.h"
#include "base/log.h"
#include "base/os.h"

#define WEAK_NOTES_MAX 128 /* pending notes of a lane */
#define WEAK_STEPS_MAX 4   /* steps that a note may wait: far fewer than half a period of flags */
#define WEAK_PIECE_BYTES 16
#define WEAK_OPS_MAX (3 * STEP_LINKS_MAX + 8)
#define WEAK_KEY_KIND UINT64_C(3) /* a kind of actors' keys; lanes have 2 */
#define WEAK_TRACE_ACTION 0x80u

enum note_kind { NOTE_MOVE, NOTE_GROUP, NOTE_STORE };

struct note {
  struct note *previous, *next;
  uint64_t sequence; /* in program order; the stores of a move have the move's number */
  uint64_t step;     /* the lane's step when the note was made */
  uint8_t kind;
  bool polled;  /* a store that others poll: it wakes them, and an acquire does not perform it */
  bool release; /* a counter whose release covers the earlier notes */
  uint8_t *address, *data;
  size_t bytes;
  _Alignas(16) uint8_t body[]; /* struct move, struct group, or a store's data */
};

/* One primitive of a group; registers are numbered in the order of first use. */
struct group_op {
  uint8_t action, fragment, other;
  uint32_t line_count;
  uint8_t *memory;
  size_t bytes;
  uint64_t flag;
};

struct group {
  const struct work *work;
  uint8_t kind; /* enum line_kind */
  uint32_t op_count;
  struct group_op ops[WEAK_OPS_MAX];
};

struct cover {
  const uint64_t *counter;
  uint64_t until; /* notes before this one */
};

struct emu_weak {
  struct emu_actor actor;
  struct emu_lane *lane;
  struct note *first, *last;
  uint32_t count, cover_count;
  uint64_t sequence;
  struct cover covers[2 * STEP_LINKS_MAX];
  struct group group; /* the group between group_begin and group_end */
  const struct prim_fragment *fragments[2];
  uint32_t fragment_count;
};

bool emu_weak_on;

const char *const emu_weaken_names[WEAKEN_COUNT + 1] = {"nothing",          "tail_release",
                                                        "tail_acquire",     "head_release",
                                                        "head_acquire",     "ll_first_flag",
                                                        "ll_second_flag",   "ll_word",
                                                        "ll128_flag",       "ll128_line",
                                                        "tagged_first_tag", "tagged_second_tag",
                                                        "tagged_half",      NULL};

static bool weakened(enum weak_point point) { return emu_options()->weaken == point; }

/* ---- broken invariants ---- */

static struct {
  struct emu_lane *lane;
  char text[256];
} fault;

const char *emu_weak_fault(struct emu_lane **lane) {
  if (fault.lane == NULL) return NULL;
  *lane = fault.lane;
  fault.lane = NULL;
  return fault.text;
}

/* Only the first one is reported: later ones may be its consequences. */
static void fault_note(struct emu_lane *lane, const struct emu_conn *conn, const uint8_t *address,
                       const char *what) {
  char place[64] = "the receiver's output";
  if (fault.lane != NULL) return;
  for (uint8_t slots = 0; slots < SLOTS_COUNT; slots++) {
    const uint8_t *buffer = conn->buffer[slots];
    const size_t bytes = conn->step_bytes[slots_proto(slots)];
    if (buffer == NULL || address < buffer || address >= buffer + conn->slots * bytes) continue;
    const size_t offset = (size_t)(address - buffer);
    snprintf(place, sizeof place, "slot %zu%s, byte %zu", offset / bytes,
             slots == SLOTS_AT_SENDER ? " at the sender" : "", offset % bytes);
  }
  fault.lane = lane;
  snprintf(fault.text, sizeof fault.text, "connection %" PRIu32 " -> %" PRIu32 " channel %" PRIu32 ", %s: %s",
           conn->sender_rank, conn->receiver_rank, conn->channel_index, place, what);
}

static void fault_memory(struct emu_lane *lane) {
  if (fault.lane != NULL) return;
  fault.lane = lane;
  snprintf(fault.text, sizeof fault.text, "what weak=1 keeps back" LOG_OUT_OF_MEMORY);
}

/* ---- what a note reads and writes ---- */

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
  return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

static size_t move_bytes(const struct move *move) { return move->count * kernel_type_bytes(move->dtype); }

static bool move_touches(const struct move *move, bool writes, const void *address, size_t bytes) {
  const uint32_t count = writes ? move->destination_count : move->source_count;
  for (uint32_t i = 0; i < count; i++)
    if (overlap(writes ? move->destination[i] : move->source[i], move_bytes(move), address, bytes))
      return true;
  return false;
}

static bool group_touches(const struct group *group, bool writes, const void *address, size_t bytes) {
  for (uint32_t i = 0; i < group->op_count; i++) {
    const struct group_op *op = &group->ops[i];
    const bool stores = op->action == WEAK_USER_STORE || op->action == WEAK_LINE_STORE;
    const bool loads = op->action == WEAK_USER_LOAD || op->action == WEAK_LINE_LOAD;
    const size_t op_bytes =
        op->line_count > 0 ? (size_t)op->line_count * line_wire_bytes(group->kind) : op->bytes;
    if ((writes ? stores : loads) && overlap(op->memory, op_bytes, address, bytes)) return true;
  }
  return false;
}

static bool note_touches(const struct note *note, bool writes, const void *address, size_t bytes) {
  switch (note->kind) {
    case NOTE_MOVE:
      return move_touches((const struct move *)(const void *)note->body, writes, address, bytes);
    case NOTE_GROUP:
      return group_touches((const struct group *)(const void *)note->body, writes, address, bytes);
    default: return writes && overlap(note->address, note->bytes, address, bytes);
  }
}

static bool lane_has_note(const struct emu_lane *lane, bool writes, const void *address, size_t bytes) {
  if (lane == NULL || lane->prim.weak == NULL) return false;
  for (const struct note *note = lane->prim.weak->first; note != NULL; note = note->next)
    if (note_touches(note, writes, address, bytes)) return true;
  return false;
}

bool emu_weak_reads(const struct emu_lane *lane, const void *address, size_t bytes) {
  return lane_has_note(lane, false, address, bytes);
}

static void check_read(struct emu_lane *lane, const void *address, size_t bytes) {
  for (uint32_t i = 0; i < lane->lane.work->recv_count; i++)
    if (lane_has_note(lane->recv_conn[i]->send_lane, true, address, bytes))
      fault_note(lane, lane->recv_conn[i], (const uint8_t *)address,
                 "the receiver reads here while a store of the sender is on its way");
}

static void check_write(struct emu_lane *lane, const void *address, size_t bytes) {
  for (uint32_t i = 0; i < lane->lane.work->send_count; i++)
    if (lane_has_note(lane->send_conn[i]->recv_lane, false, address, bytes))
      fault_note(lane, lane->send_conn[i], (const uint8_t *)address,
                 "the sender's store arrives here before the receiver has read what was there");
}

/* ---- the list ---- */

static struct note *note_new(struct emu_weak *weak, enum note_kind kind, size_t body_bytes) {
  struct note *note = (struct note *)os_alloc(sizeof *note + body_bytes);
  if (note == NULL) {
    fault_memory(weak->lane);
    return NULL;
  }
  note->kind = (uint8_t)kind;
  note->data = note->body;
  return note;
}

/* Inserts the note after `place`, as part of it; if that is NULL, at the end of the list. */
static void note_insert(struct emu_weak *weak, struct note *place, struct note *note) {
  note->previous = place != NULL ? place : weak->last;
  note->next = place != NULL ? place->next : NULL;
  note->sequence = place != NULL ? place->sequence : weak->sequence++;
  note->step = place != NULL ? place->step : weak->lane->lane.steps_done;
  *(note->previous != NULL ? &note->previous->next : &weak->first) = note;
  *(note->next != NULL ? &note->next->previous : &weak->last) = note;
  weak->count += 1;
  if (weak->count == 1) emu_actor_wake(&weak->actor);
}

static void note_drop(struct emu_weak *weak, struct note *note) {
  *(note->previous != NULL ? &note->previous->next : &weak->first) = note->next;
  *(note->next != NULL ? &note->next->previous : &weak->last) = note->previous;
  weak->count -= 1;
  os_free(note);
}

static struct note *store_add(struct emu_weak *weak, struct note *place, void *address, const void *data,
                              size_t bytes) {
  struct note *note = note_new(weak, NOTE_STORE, bytes);
  if (note == NULL) {
    memcpy(address, data, bytes);
    return place;
  }
  note->address = (uint8_t *)address;
  note->bytes = bytes;
  memcpy(note->data, data, bytes);
  note_insert(weak, place, note);
  return note;
}

/* Adds a store that others poll. If `cut` lies inside it, the two parts become visible separately. */
static struct note *polled_add(struct emu_weak *weak, struct note *place, uint8_t *address,
                               const uint8_t *data, size_t bytes, size_t cut) {
  for (size_t at = 0, part; at < bytes; at += part) {
    part = at == 0 && cut < bytes ? cut : bytes - at;
    struct note *note = store_add(weak, place, address + at, data + at, part);
    if (note != NULL && note != place) note->polled = true;
    if (place != NULL) place = note;
  }
  return place;
}

/* ---- performing notes ---- */

static struct prim plain; /* stores at once */

static void cover(struct emu_weak *weak, const struct note *note) {
  const uint64_t *counter = (const uint64_t *)(const void *)note->address;
  uint32_t i = 0;
  while (i < weak->cover_count && weak->covers[i].counter != counter) i += 1;
  weak->cover_count = i == weak->cover_count ? i + 1 : weak->cover_count;
  weak->covers[i] = (struct cover){counter, note->sequence};
}

/* Writes `bytes` of the store from `from` on to memory: one end of it, or all. The rest stays pending. */
static void store_carry(struct emu_weak *weak, struct note *note, size_t from, size_t bytes) {
  check_write(weak->lane, note->address + from, bytes);
  memcpy(note->address + from, note->data + from, bytes);
  if (note->release) cover(weak, note);
  if (from == 0) note->address += bytes, note->data += bytes;
  note->bytes -= bytes;
  if (note->bytes == 0) note_drop(weak, note);
}

/* Performs the lane's own pending stores to memory that it reads. */
static void read_begin(struct emu_weak *weak, const void *address, size_t bytes) {
  for (struct note *note = weak->first, *next; note != NULL; note = next) {
    next = note->next;
    if (note->kind == NOTE_STORE && note_touches(note, true, address, bytes))
      store_carry(weak, note, 0, note->bytes);
  }
  check_read(weak->lane, address, bytes);
}

static void move_carry(struct emu_weak *weak, struct note *place) {
  struct move move = *(const struct move *)(const void *)place->body;
  const size_t bytes = move_bytes(&move);
  for (uint32_t i = 0; i < move.source_count; i++) read_begin(weak, move.source[i], bytes);
  struct note *behind = place;
  for (uint32_t i = 0; i < move.destination_count; i++) {
    struct note *note = note_new(weak, NOTE_STORE, bytes);
    if (note == NULL) continue;
    note->address = (uint8_t *)move.destination[i];
    note->bytes = bytes;
    move.destination[i] = note->data;
    note_insert(weak, behind, note);
    behind = note;
  }
  kernel_move(&move);
  note_drop(weak, place);
}

static struct note *ll_carry_stores(struct emu_weak *weak, struct note *place, const struct group *group,
                                    const struct group_op *op, const struct prim_fragment *fragment) {
  static _Alignas(16) uint8_t wire[PRIM_FRAGMENT_LINES * 128]; /* locked */
  const size_t line_bytes = line_wire_bytes(group->kind), bytes = op->line_count * line_bytes;
  prim_line_store(&plain, group->kind, wire, op->line_count, op->flag, fragment);
  const size_t piece = group->kind == LINE_LL ? 8 : emu_options()->tear ? WEAK_PIECE_BYTES : line_bytes;
  const size_t cut = group->kind == LINE_LL ? (weakened(WEAKEN_LL_WORD) ? 4 : piece)
                                            : (weakened(WEAKEN_LL128_LINE) ? 120 : piece);
  for (size_t at = 0; at < bytes; at += piece)
    place = polled_add(weak, place, op->memory + at, wire + at, piece, cut);
  return place;
}

static void group_carry(struct emu_weak *weak, struct note *place) {
  static struct prim_fragment registers[2]; /* locked */
  const struct group *group = (const struct group *)(const void *)place->body;
  struct note *behind = place;
  memset(registers, 0, sizeof registers);
  for (uint32_t i = 0; i < group->op_count; i++) {
    const struct group_op *op = &group->ops[i];
    struct prim_fragment *fragment = &registers[op->fragment], *other = &registers[op->other];
    switch (op->action) {
      case WEAK_USER_LOAD:
        read_begin(weak, op->memory, op->bytes);
        prim_fragment_load(&plain, fragment, op->memory, op->bytes, group->work);
        break;
      case WEAK_LINE_LOAD:
        read_begin(weak, op->memory, (size_t)op->line_count * line_wire_bytes(group->kind));
        prim_line_load(&plain, group->kind, op->memory, op->line_count, 0, fragment);
        break;
      case WEAK_COMBINE: prim_fragment_combine(&plain, fragment, other, op->bytes, group->work); break;
      case WEAK_POST: prim_fragment_post(&plain, fragment, op->bytes, group->work); break;
      case WEAK_LINE_STORE: behind = ll_carry_stores(weak, behind, group, op, fragment); break;
      default: behind = store_add(weak, behind, op->memory, fragment->data, op->bytes); break;
    }
  }
  note_drop(weak, place);
}

static void note_carry(struct emu_weak *weak, struct note *note) {
  if (note->kind == NOTE_MOVE) move_carry(weak, note);
  else if (note->kind == NOTE_GROUP) group_carry(weak, note);
  else store_carry(weak, note, 0, note->bytes);
}

/* An acquire performs all notes before `until`, except polled stores, which no counter covers. */
static void carry_until(struct emu_weak *weak, uint64_t until) {
  struct note *note = weak->first;
  while (note != NULL && note->sequence < until) {
    if (note->polled) {
      note = note->next;
      continue;
    }
    struct note *previous = note->previous;
    note_carry(weak, note);
    note = previous != NULL ? previous->next : weak->first;
  }
}

/* ---- counters, tagged words, LL lines ---- */

static void acquire(const struct emu_lane *writer, const uint64_t *counter) {
  struct emu_weak *weak = writer != NULL ? writer->prim.weak : NULL;
  for (uint32_t i = 0; weak != NULL && i < weak->cover_count; i++)
    if (weak->covers[i].counter == counter) carry_until(weak, weak->covers[i].until);
}

uint64_t emu_weak_load_tail(const uint64_t *address) {
  const struct emu_fifo *fifo =
      (const struct emu_fifo *)(const void *)((const uint8_t *)address -
                                              offsetof(struct emu_fifo, receiver.tail));
  if (!weakened(WEAKEN_TAIL_ACQUIRE)) acquire(fifo->receiver_conn->send_lane, address);
  return prim_load_acquire(address);
}

uint64_t emu_weak_load_head(const uint64_t *address) {
  const struct emu_fifo *fifo =
      (const struct emu_fifo *)(const void *)((const uint8_t *)address -
                                              offsetof(struct emu_fifo, sender.head));
  if (!weakened(WEAKEN_HEAD_ACQUIRE)) acquire(fifo->sender_conn->recv_lane, address);
  return prim_load_acquire(address);
}

static void counter_store(struct emu_weak *weak, uint64_t *address, uint64_t value, bool release) {
  struct note *note = store_add(weak, NULL, address, &value, sizeof value);
  if (note == NULL) return;
  note->polled = true;
  note->release = release;
}

void emu_weak_store_tail(struct emu_weak *weak, uint64_t *address, uint64_t value) {
  counter_store(weak, address, value, !weakened(WEAKEN_TAIL_RELEASE));
}

void emu_weak_store_head(struct emu_weak *weak, uint64_t *address, uint64_t value) {
  counter_store(weak, address, value, !weakened(WEAKEN_HEAD_RELEASE));
}

void emu_weak_store_tagged(struct emu_weak *weak, uint64_t *halves, uint32_t tag, uint64_t value) {
  const uint64_t fresh[2] = {line_first_half(value, tag), line_second_half(value, tag)};
  for (int i = 0; i < 2; i++)
    polled_add(weak, NULL, (uint8_t *)&halves[i], (const uint8_t *)&fresh[i], 8,
               weakened(WEAKEN_TAGGED_HALF) ? 4 : 8);
}

bool emu_weak_load_tagged(const uint64_t *halves, uint32_t tag, uint64_t *value) {
  const uint64_t low = prim_load_acquire(&halves[0]), high = prim_load_acquire(&halves[1]);
  if (!weakened(WEAKEN_TAGGED_FIRST_TAG) && !line_half_has(low, tag)) return false;
  if (!weakened(WEAKEN_TAGGED_SECOND_TAG) && !line_half_has(high, tag)) return false;
  *value = line_word(low, high);
  return true;
}

static bool line_flagged(uint8_t kind, const uint64_t *words, uint64_t flag) {
  if (kind == LINE_LL128) return weakened(WEAKEN_LL128_FLAG) || prim_load_acquire(&words[15]) == flag;
  return (weakened(WEAKEN_LL_FIRST_FLAG) || line_half_has(prim_load_acquire(&words[0]), flag)) &&
         (weakened(WEAKEN_LL_SECOND_FLAG) || line_half_has(prim_load_acquire(&words[1]), flag));
}

bool emu_weak_ll_ready(uint8_t kind, const uint8_t *line, uint32_t line_count, uint64_t flag) {
  for (uint32_t i = 0; i < line_count; i++, line += line_wire_bytes(kind))
    if (!line_flagged(kind, (const uint64_t *)(const void *)line, flag)) return false;
  return true;
}

/* ---- moves and groups ---- */

void emu_weak_move(struct emu_weak *weak, const struct move *move) {
  if (move->count == 0) return;
  struct note *note = note_new(weak, NOTE_MOVE, sizeof *move);
  if (note == NULL) return;
  memcpy(note->body, move, sizeof *move);
  note_insert(weak, NULL, note);
}

void emu_weak_group_begin(struct emu_weak *weak) {
  weak->group.op_count = 0;
  weak->fragment_count = 0;
}

static uint8_t register_of(struct emu_weak *weak, const struct prim_fragment *fragment) {
  for (uint32_t i = 0; i < weak->fragment_count; i++)
    if (weak->fragments[i] == fragment) return (uint8_t)i;
  weak->fragments[weak->fragment_count] = fragment;
  weak->fragment_count += 1;
  return (uint8_t)(weak->fragment_count - 1);
}

static struct group_op *group_add(struct emu_weak *weak, enum weak_action action, const void *memory,
                                  const struct prim_fragment *fragment) {
  struct group_op *op = &weak->group.ops[weak->group.op_count];
  weak->group.op_count += 1;
  memset(op, 0, sizeof *op);
  op->action = (uint8_t)action;
  op->memory = (uint8_t *)(uintptr_t)memory;
  op->fragment = register_of(weak, fragment);
  return op;
}

void emu_weak_note(struct emu_weak *weak, enum weak_action action, const void *memory, size_t bytes,
                   const struct prim_fragment *fragment, const struct prim_fragment *other) {
  struct group_op *op = group_add(weak, action, memory, fragment);
  op->bytes = bytes;
  if (other != NULL) op->other = register_of(weak, other);
}

void emu_weak_note_ll(struct emu_weak *weak, enum weak_action action, const uint8_t *line,
                      uint32_t line_count, uint64_t flag, const struct prim_fragment *fragment) {
  struct group_op *op = group_add(weak, action, line, fragment);
  op->line_count = line_count;
  op->flag = flag;
}

void emu_weak_group_end(struct emu_weak *weak, uint8_t kind, const struct work *work) {
  const size_t bytes = offsetof(struct group, ops) + weak->group.op_count * sizeof weak->group.ops[0];
  struct note *note = note_new(weak, NOTE_GROUP, bytes);
  if (note == NULL) return;
  weak->group.work = work;
  weak->group.kind = kind;
  memcpy(note->body, &weak->group, bytes);
  note_insert(weak, NULL, note);
}

/* ---- the scheduler's events ---- */

static bool weak_enabled(struct emu_actor *actor) { return ((struct emu_weak *)actor)->count > 0; }

static uint32_t below(uint32_t bound) { return (uint32_t)((emu_random() >> 32) % bound); }

/* Performs a part of a long store, from either end. */
static void store_carry_some(struct emu_weak *weak, struct note *note) {
  const uint32_t pieces = (uint32_t)((note->bytes + WEAK_PIECE_BYTES - 1) / WEAK_PIECE_BYTES);
  if (note->polled || pieces < 2) {
    store_carry(weak, note, 0, note->bytes);
    return;
  }
  const size_t cut = (size_t)WEAK_PIECE_BYTES * (1 + below(pieces - 1));
  if (below(2) == 0) store_carry(weak, note, 0, cut);
  else store_carry(weak, note, cut, note->bytes - cut);
}

/* Performs a random note: the first move, or a store that is the first one to its address. */
static void carry_any(struct emu_weak *weak) {
  struct note *chosen = weak->first, *note = weak->first;
  for (uint32_t skip = below(weak->count); skip > 0; skip--) chosen = chosen->next;
  const bool stores = chosen->kind == NOTE_STORE;
  while (stores ? note->kind != NOTE_STORE || !note_touches(note, true, chosen->address, chosen->bytes)
                : note->kind == NOTE_STORE)
    note = note->next;
  if (stores) store_carry_some(weak, note);
  else note_carry(weak, note);
}

static void weak_actor_run(struct emu_actor *actor) {
  struct emu_weak *weak = (struct emu_weak *)actor;
  struct emu_lane *lane = weak->lane;
  emu_trace_hash(lane->trace_key, WEAK_TRACE_ACTION, weak->count);
  for (uint32_t some = below(2) == 0 ? 1 : 1 + below(weak->count); some > 0 && weak->count > 0; some--)
    carry_any(weak);
  emu_lane_stores_seen(lane);
}

static const struct emu_actor_ops weak_ops = {weak_enabled, weak_actor_run};

void emu_weak_settle(struct emu_weak *weak) {
  bool any = false;
  while (weak->count > WEAK_NOTES_MAX ||
         (weak->count > 0 && weak->lane->lane.steps_done - weak->first->step > WEAK_STEPS_MAX)) {
    note_carry(weak, weak->first);
    any = true;
  }
  if (any) emu_lane_stores_seen(weak->lane);
}

struct emu_weak *emu_weak_open(struct emu_lane *lane) {
  if (!emu_weak_on || lane->remote) return NULL;
  struct emu_weak *weak = (struct emu_weak *)os_alloc(sizeof *weak);
  if (weak == NULL) return NULL;
  weak->lane = lane;
  const uint64_t place = lane->actor.key & ~(UINT64_C(0xff) << 56);
  emu_actor_init(&weak->actor, &weak_ops, WEAK_KEY_KIND << 56 | place);
  return weak;
}

void emu_weak_close(struct emu_weak *weak, bool aborted) {
  struct emu_lane *lane = weak->lane;
  while (weak->count > 0 && !aborted) note_carry(weak, weak->first);
  while (weak->count > 0) note_drop(weak, weak->first);
  emu_actor_remove(&weak->actor);
  lane->prim.weak = NULL;
  os_free(weak);
  if (fault.lane == lane && aborted) fault.lane = NULL;
}
