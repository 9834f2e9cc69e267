/* steps.cc (simt): the comparison of steps.h. */
#include "steps.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/launch.h"
#include "kernels/warps.h"
#include "protocol/line.h"
#include "schedule/algo.h"
#include "schedule/slice.h"

enum {
  DIRECT_SLOTS = 8,   /* of the kernels of direct collectives (FIFO_SLOTS_MAX) */
  DIRECT_AHEAD = 4,   /* steps that they may have moved before they know that sizes agree (DIRECT_PHASES) */
  FREED_TOGETHER = 4, /* steps whose heads they post at once (FIFO_FREES_TOGETHER) */
  TAGGED_BYTES = 16,
  PAGE = 4096,
  LL128_WORDS = 16,
  WARP = 32,
  MISSED_STATUS = 98
};

/* Offsets in the ends of connections: see launch.h. */
enum {
  AT_STEP = LAUNCH_STEP_OFFSET,
  AT_LINES = LAUNCH_STEP_OFFSET + 8,
  AT_LINES_END = LAUNCH_STEP_OFFSET + 24,
  AT_READ = LAUNCH_READ_OFFSET
};

struct side;

/* A work of the block. */
struct part {
  const struct bound_work *bound;
  const struct work *work;
  std::vector<struct side *> recv, send;
  std::vector<uint64_t> recv_direct, send_direct; /* memory that the other end has shown, by link; or 0 */
  std::vector<bool> shows;                        /* by send link: the receiver reads the input */
  uint32_t step_bytes;
};

/* What a slice, or a step of LL, does on a link. */
struct use {
  const struct part *part;
  uint32_t link, step_flags;
  uint64_t step; /* the first one of the connection */
  uint32_t steps, bytes;
  uint32_t lines;             /* LL: that carry data, */
  uint32_t lines_all;         /* and those that are written: all of the slot if it is cleaned */
  uint64_t line;              /* number of the step among those of LL or LL128 */
  std::vector<uint8_t> found; /* by byte, by half of a line of LL, by line of LL128: how often */
};

/* A post that must come next, or may be left out. */
struct post {
  uint64_t value;
  bool may_miss;
};

/* The operation's beginning on a connection. */
struct opening {
  struct part *part;
  uint32_t link;
  uint64_t step;
  bool used;          /* the work has steps on the link */
  uint32_t announced; /* halves of the announcement */
};

/* This block's end of a connection. */
struct side {
  bool sends;
  uint8_t *sender, *receiver;
  uint32_t slots, peer;
  uint64_t step, lines[2]; /* where the next operation begins */
  uint64_t moved;          /* the same after the last step that moves data */
  uint64_t read_step;      /* of the last one with WORK_READS_SLOTS */
  bool reads_slots;
  std::vector<struct use> uses;
  std::vector<uint32_t> by_line[2]; /* of each kind of line: its uses */
  uint64_t first_line[2];
  std::vector<struct post> posts;
  std::vector<struct opening> openings;
  size_t posted, done;       /* posts; uses */
  uint64_t last_post, least; /* the value of the last post, and the least that the last one may have */
  std::unordered_map<uint64_t, uint32_t> words; /* LL128: of lines that have no flag yet, by address */
};

enum place_kind { PLACE_IGNORED, PLACE_SENDER, PLACE_RECEIVER, PLACE_SLOTS };

/* A range of addresses. */
struct place {
  uintptr_t begin;
  size_t bytes;
  enum place_kind kind;
  bool lines; /* slots of LL or LL128; ... */
  uint8_t line_kind;
  uint32_t step_bytes;
  std::vector<struct side *> sides; /* ... several if a rank's connections share them */
};

/* How often each byte of a page is read and written, up to 255 times. */
struct page {
  uint8_t reads[PAGE], writes[PAGE];
};
typedef std::unordered_map<uintptr_t, struct page> memory_map;

struct watched {
  const char *kernel;
  uint32_t block;
  bool direct; /* a kernel of direct collectives */
  const struct launch_arguments *arguments;
  std::vector<struct part *> parts;
  std::vector<struct side *> sides;
  std::vector<struct place> places; /* by address */
  size_t last_place;
  memory_map found;
  uintptr_t last_number;
  struct page *last_page;
};

static uint64_t works_compared, uses_compared;

[[noreturn]] static void __attribute__((format(printf, 3, 4)))
fail(const struct watched *block, const struct side *side, const char *format, ...) {
  char text[512], where[64] = "";
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  const uint32_t rank = block->parts.empty() ? 0 : block->parts[0]->work->rank;
  if (side != NULL) snprintf(where, sizeof where, ", %s rank %u", side->sends ? "to" : "from", side->peer);
  fprintf(stderr, "simt: steps: kernel %s, rank %u, block %u%s: %s\n", block->kernel, rank, block->block,
          where, text);
  fflush(stderr);
  _exit(MISSED_STATUS);
}

static uint64_t word_at(const uint8_t *address) {
  return __atomic_load_n((const uint64_t *)(const void *)address, __ATOMIC_ACQUIRE);
}

static uint8_t kind_of(const struct work *work) { return work->proto == PROTO_LL ? LINE_LL : LINE_LL128; }

/* ---- the schedule: slices ---- */

/* Part of a step that has its own posts. Over LL, and in kernels of direct collectives, the whole step. */
struct slice {
  const struct step *step;
  size_t offset, most;
};

static size_t slice_block_count(const struct slice *slice, uint32_t block) {
  const size_t count = step_block_count(slice->step, block);
  return count > slice->offset ? slice_length(count, slice->offset, slice->most) : 0;
}

static size_t slice_link_count(const struct slice *slice, uint32_t link) {
  if (step_is_each(slice->step)) return slice_block_count(slice, step_block(slice->step, link));
  return slice_length(slice->step->count, slice->offset, slice->most);
}

template <typename DO>
static void slices_each(const struct watched *block, const struct part *part, DO each) {
  const struct work *work = part->work;
  const bool cut = work->proto == PROTO_SIMPLE && !block->direct;
  const size_t capacity = work->recv_count + work->send_count == 0 || !cut
                              ? work->chunk_count
                              : slice_capacity_of(work, part->step_bytes);
  struct algo_iter it;
  struct step step;
  algo_begin(&it, work);
  while (algo_next(&it, work, &step)) {
    const uint32_t count = cut ? slice_count_of(work) : 1;
    const size_t most = cut ? chunk_slice_count(step.count, count, capacity) : SIZE_MAX;
    for (uint32_t i = 0; i < count; i++) {
      const struct slice slice = {&step, cut ? slice_offset(step.count, i, most) : 0, most};
      each(&slice);
    }
  }
}

/* ---- the schedule: what happens on links ---- */

static void use_add(const struct watched *block, struct side *side, const struct part *part,
                    const struct slice *slice, uint32_t link) {
  const struct work *work = part->work;
  struct use use = {};
  use.part = part;
  use.link = link;
  use.step_flags = slice->step->flags;
  use.step = side->step;
  use.steps = work->proto == PROTO_SIMPLE && !block->direct ? work->slice_steps : 1;
  use.bytes = (uint32_t)(slice_link_count(slice, link) * work->element_bytes);
  side->step += use.steps;
  side->openings.back().used = true;
  if (work->proto != PROTO_SIMPLE) {
    const uint8_t kind = kind_of(work);
    use.lines = use.lines_all = line_count_of(kind, use.bytes);
    use.line = side->lines[kind]++;
    if (line_cleans_at(use.line, block->arguments->limits.flag_bits, side->slots))
      use.lines_all = part->step_bytes / line_wire_bytes(kind);
    side->by_line[kind].push_back((uint32_t)side->uses.size());
  }
  if (!side->sends || work->proto == PROTO_SIMPLE) side->posts.push_back({side->step, block->direct});
  side->uses.push_back(std::move(use));
}

static bool part_stores_here(const struct part *part) {
  const uint32_t flags = part->work->flags;
  return (flags & WORK_DIRECT_RECV) != 0 && (flags & WORK_OUTPUT_HIDDEN) == 0 && part->bound->out != NULL;
}

/* Whether the block moves data in the step: not if all receivers read the input, or if the senders store
 * into the output. */
static bool step_moves(const struct part *part, const struct step *step) {
  if (part->work->proto != PROTO_SIMPLE) return true;
  if ((step->flags & STEP_RECV) != 0) return (step->flags & STEP_REDUCE) != 0 || !part_stores_here(part);
  for (const bool shows : part->shows)
    if (!shows) return true;
  return false;
}

/* Kernels of direct collectives choose which of their steps they post together; some of them leave the last
 * heads to the next operation. What a step without data frees is posted with the next one. */
static void posts_end(const struct watched *block, struct side *side, const struct part *part) {
  const struct work *work = part->work;
  const bool lines = work->proto == PROTO_LL, reads = (work->flags & WORK_SHOWS_INPUT) != 0;
  const uint64_t first = side->openings.back().step;
  if (!block->direct || !side->openings.back().used) return;
  if (side->sends || (lines ? block->arguments->hosted != 0 : reads && work->algo != ALGO_TWO_SHOT)) {
    side->posts.push_back({side->step, false});
  } else if (lines && direct_loops(work) == 1) {
    while (side->posts.back().value > first) side->posts.pop_back();
  } else {
    const uint64_t seen = lines ? side->moved : side->moved - std::min(side->moved, (uint64_t)DIRECT_AHEAD);
    side->least = std::max(first, seen / FREED_TOGETHER * FREED_TOGETHER);
  }
}

static void side_open(const struct watched *block, struct side *side, struct part *part, uint32_t link) {
  side->step = slice_first_step(side->step, block->direct ? 1 : part->work->chunk_steps);
  side->openings.push_back({part, link, side->step, false, 0});
  if (!side->sends) side->posts.push_back({side->step, false});
}

static void part_uses(const struct watched *block, struct part *part) {
  const struct work *work = part->work;
  for (uint32_t i = 0; i < work->recv_count; i++) side_open(block, part->recv[i], part, i);
  for (uint32_t i = 0; i < work->send_count; i++) side_open(block, part->send[i], part, i);
  slices_each(block, part, [&](const struct slice *slice) {
    for (uint32_t i = 0; i < work->recv_count; i++)
      if ((slice->step->recv_links >> i & 1) != 0) use_add(block, part->recv[i], part, slice, i);
    for (uint32_t i = 0; i < work->send_count; i++)
      if ((slice->step->send_links >> i & 1) != 0) use_add(block, part->send[i], part, slice, i);
    for (struct side *side : part->recv)
      if (step_moves(part, slice->step)) side->moved = side->step;
  });
  for (struct side *side : part->recv) posts_end(block, side, part);
  for (struct side *side : part->send) {
    if (work->proto == PROTO_SIMPLE) posts_end(block, side, part);
    if ((work->flags & WORK_READS_SLOTS) == 0) continue;
    side->reads_slots = true;
    side->read_step = side->step;
  }
}

/* Bytes of the slot that the use reads or writes. */
static uint32_t use_slot_bytes(const struct side *side, const struct use *use) {
  const struct part *part = use->part;
  if (part->work->proto != PROTO_SIMPLE) return use->bytes;
  if (side->sends && (use->step_flags & STEP_SEND_SHOWN) != 0 && part->shows[use->link]) return 0;
  if (side->sends && (use->step_flags & STEP_SEND_FINAL) != 0 && part->send_direct[use->link] != 0) return 0;
  if (!side->sends && (use->step_flags & STEP_RECV_FINAL) != 0 && part_stores_here(part)) return 0;
  if (!side->sends && (use->step_flags & STEP_RECV_SHOWN) != 0 && part->recv_direct[use->link] != 0) return 0;
  return use->bytes;
}

/* ---- the schedule: what happens in user memory ---- */

static struct page *page_at(memory_map *map, uintptr_t address) { return &(*map)[address / PAGE]; }

static void map_add(memory_map *map, uintptr_t address, size_t bytes, bool writes) {
  for (size_t i = 0; i < bytes; i++) {
    struct page *page = page_at(map, address + i);
    uint8_t *count = &(writes ? page->writes : page->reads)[(address + i) % PAGE];
    *count = (uint8_t)(*count + (*count < UINT8_MAX));
  }
}

/* Memory that a slice reads or writes, by its place in the part's input and output. */
struct spans {
  memory_map *map;
  const struct part *part;
  const struct slice *slice;

  size_t bytes(size_t elements) const { return elements * part->work->element_bytes; }
  uintptr_t in(size_t elements) const {
    const bool from_output = (slice->step->flags & STEP_FROM_OUTPUT) != 0;
    return (uintptr_t)(from_output ? part->bound->out : part->bound->in) + bytes(elements);
  }
  uintptr_t out(size_t elements) const { return (uintptr_t)part->bound->out + bytes(elements); }
  void read(uintptr_t address, size_t elements) const { map_add(map, address, bytes(elements), false); }
  void write(uintptr_t address, size_t elements) const { map_add(map, address, bytes(elements), true); }
};

/* Whether the slice goes to the slot of send link `link`; what the receiver has shown is written here. */
static bool sent_to_slot(const struct spans *spans, uint32_t link) {
  const struct step *step = spans->slice->step;
  const struct part *part = spans->part;
  if (part->work->proto != PROTO_SIMPLE || (step->flags & STEP_SEND_FINAL) == 0 ||
      part->send_direct[link] == 0)
    return true;
  spans->write((uintptr_t)part->send_direct[link] +
                   spans->bytes(step_link_out(step, link, true) + spans->slice->offset),
               slice_link_count(spans->slice, link));
  return false;
}

static bool sent_is_shown(const struct spans *spans, uint32_t link) {
  return (spans->slice->step->flags & STEP_SEND_SHOWN) != 0 && spans->part->shows[link];
}

static bool is_stored_here(const struct spans *spans) {
  return spans->part->work->proto == PROTO_SIMPLE && (spans->slice->step->flags & STEP_RECV_FINAL) != 0 &&
         part_stores_here(spans->part);
}

static void expect_each(const struct spans *spans) {
  const struct slice *slice = spans->slice;
  const struct step *step = slice->step;
  const struct work *work = spans->part->work;
  for (uint32_t i = 0; i < work->send_count; i++) {
    if ((step->send_links >> i & 1) == 0 || sent_is_shown(spans, i)) continue;
    spans->read(spans->in(step_link_in(step, i) + slice->offset), slice_link_count(slice, i));
    sent_to_slot(spans, i);
  }
  const size_t own = step_block_offset(step, step->own_index) + slice->offset;
  const uintptr_t from = spans->in(step->in_offset + own), to = spans->out(step->out_offset + own);
  if ((step->flags & STEP_KEEP) != 0 && (step->flags & STEP_COPY_IN) != 0 && from != to) {
    spans->read(from, slice_block_count(slice, step->own_index));
    spans->write(to, slice_block_count(slice, step->own_index));
  }
  for (uint32_t i = 0; i < work->recv_count; i++)
    if ((step->recv_links >> i & 1) != 0 && !is_stored_here(spans))
      spans->write(spans->out(step_link_out(step, i, false) + slice->offset), slice_link_count(slice, i));
}

/* The operands of the slice that are in user memory. */
static void expect_sources(const struct spans *spans, size_t count) {
  const struct step *step = spans->slice->step;
  const struct part *part = spans->part;
  const size_t offset = spans->slice->offset;
  if ((step->flags & STEP_COPY_IN) != 0) spans->read(spans->in(step->in_offset + offset), count);
  if (is_stored_here(spans)) spans->read(spans->out(step->out_offset + offset), count);
  for (uint32_t i = 0; i < part->work->recv_count; i++)
    if ((step->recv_links >> i & 1) != 0 && (step->flags & STEP_RECV_SHOWN) != 0 && part->recv_direct[i] != 0)
      spans->read((uintptr_t)part->recv_direct[i] + spans->bytes(step->in_offset + offset), count);
}

/* Over Simple a result stays where it lies already. */
static bool is_kept_there(const struct spans *spans) {
  const struct step *step = spans->slice->step;
  if (spans->part->work->proto != PROTO_SIMPLE || (step->flags & STEP_POST_OP) != 0) return false;
  if ((step->flags & STEP_RECV) != 0) return is_stored_here(spans) && (step->flags & STEP_COPY_IN) == 0;
  return (step->flags & STEP_FROM_OUTPUT) != 0 && step->in_offset == step->out_offset;
}

static void expect_slice(const struct spans *spans) {
  const struct step *step = spans->slice->step;
  const size_t offset = spans->slice->offset, count = slice_length(step->count, offset, spans->slice->most);
  bool moves = spans->part->work->proto != PROTO_SIMPLE;
  if (step_is_each(step)) {
    expect_each(spans);
    return;
  }
  if ((step->flags & STEP_KEEP) != 0 && !is_kept_there(spans)) {
    spans->write(spans->out(step->out_offset + offset), count);
    moves = true;
  }
  for (uint32_t i = 0; i < spans->part->work->send_count; i++) {
    if ((step->send_links >> i & 1) == 0 || sent_is_shown(spans, i)) continue;
    sent_to_slot(spans, i);
    moves = true;
  }
  if (moves) expect_sources(spans, count);
}

/* ---- slots ---- */

/* The use that has that step of the connection. */
static struct use *use_of(struct side *side, uint64_t step) {
  for (size_t i = side->done; i < side->uses.size(); i++) {
    struct use *use = &side->uses[i];
    if (use->step <= step && step < use->step + use->steps) return use;
    if (use->step > step) break;
  }
  return NULL;
}

static uint64_t free_until(const struct side *side) { return word_at(side->sender) + side->slots; }

static void slot_count(const struct watched *block, struct side *side, struct use *use, size_t at,
                       const char *what) {
  if (at >= use->found.size()) fail(block, side, "step %zu has no such %s: %zu", (size_t)use->step, what, at);
  if (use->found[at] < UINT8_MAX) use->found[at] += 1;
}

/* The use ends: all that it reads or writes was read, or written once. */
static void use_end(const struct watched *block, struct side *side, struct use *use) {
  const bool lines = use->part->work->proto != PROTO_SIMPLE;
  const uint32_t halves = use->part->work->proto == PROTO_LL ? 2 : 1;
  const size_t count =
      lines ? (side->sends ? use->lines_all : use->lines) * halves : use_slot_bytes(side, use);
  const char *what = lines ? (halves == 2 ? "half of a line" : "line") : "byte";
  use->found.resize(std::max(count, use->found.size()));
  for (size_t i = 0; i < count; i++) {
    if (use->found[i] == 0)
      fail(block, side, "step %zu ends, but %s %zu of %zu was not %s", (size_t)use->step, what, i, count,
           side->sends ? "written" : "read");
    if (side->sends && use->found[i] > 1)
      fail(block, side, "step %zu: %s %zu of %zu was written %u times", (size_t)use->step, what, i, count,
           use->found[i]);
  }
  std::vector<uint8_t>().swap(use->found);
  __atomic_fetch_add(&uses_compared, 1, __ATOMIC_RELAXED);
}

static void uses_end(const struct watched *block, struct side *side, uint64_t before) {
  for (; side->done < side->uses.size(); side->done++) {
    struct use *use = &side->uses[side->done];
    if (use->step + use->steps > before) return;
    use_end(block, side, use);
  }
}

/* Earlier operations over LL have ended when one over Simple writes slots; nothing was posted of them. */
static void lines_end(const struct watched *block, struct side *side) {
  size_t next = side->done;
  while (next < side->uses.size() && side->uses[next].part->work->proto != PROTO_SIMPLE) next += 1;
  if (next > side->done && next < side->uses.size()) uses_end(block, side, side->uses[next].step);
}

static void simple_access(const struct watched *block, const struct place *place, struct side *side,
                          size_t offset, uint32_t bytes, bool writes) {
  const uint32_t step_bytes = place->step_bytes, slot = (uint32_t)(offset / step_bytes);
  if (side->sends) lines_end(block, side);
  const uint64_t base = side->done < side->uses.size() ? side->uses[side->done].step : side->step;
  const uint64_t step = base + (slot + side->slots - base % side->slots) % side->slots;
  struct use *use = use_of(side, step);
  const char *does = writes ? "writes" : "reads";
  if (writes != side->sends) fail(block, side, "%s a slot of the other direction", does);
  if (use == NULL || use->part->work->proto != PROTO_SIMPLE)
    fail(block, side, "%s slot %u, where the schedule has nothing from step %zu on", does, slot,
         (size_t)base);
  if (writes && free_until(side) < use->step + use->steps)
    fail(block, side, "writes step %zu before its slot is free: head is %zu", (size_t)step,
         (size_t)word_at(side->sender));
  if (!writes && word_at(side->receiver) < use->step + use->steps)
    fail(block, side, "reads step %zu before it is posted: tail is %zu", (size_t)step,
         (size_t)word_at(side->receiver));
  if (use->found.empty()) use->found.resize(use_slot_bytes(side, use));
  const size_t first = (step - use->step) * step_bytes + offset % step_bytes;
  for (uint32_t i = 0; i < bytes; i++) slot_count(block, side, use, first + i, "byte");
}

/* The use with lines of that flag, or NULL. */
static struct use *use_of_flag(const struct watched *block, struct side *side, uint8_t kind, uint64_t flag,
                               uint32_t slot) {
  const uint64_t mask = line_flag_mask(block->arguments->limits.flag_bits) & UINT32_MAX;
  const uint64_t number = (flag - 1 - side->first_line[kind]) & mask;
  if (number >= side->by_line[kind].size()) return NULL;
  struct use *use = &side->uses[side->by_line[kind][number]];
  if (line_slot_at((uint32_t)use->line, side->slots) != slot) return NULL;
  if (use->found.empty()) use->found.resize(use->lines_all * (kind == LINE_LL ? 2 : 1));
  return use;
}

/* The most lines that any step has in that slot. */
static uint32_t lines_most(const struct side *side, uint8_t kind, uint32_t slot) {
  uint32_t most = 0;
  for (const uint32_t index : side->by_line[kind])
    if (line_slot_at((uint32_t)side->uses[index].line, side->slots) == slot)
      most = std::max(most, side->uses[index].lines);
  return most;
}

static void line_write(const struct watched *block, struct side *side, uint8_t kind, uint64_t flag,
                       uint32_t slot, size_t at) {
  struct use *use = use_of_flag(block, side, kind, flag, slot);
  if (use == NULL) fail(block, side, "writes flag %zu to slot %u, where no step has it", (size_t)flag, slot);
  if (free_until(side) < use->step + 1)
    fail(block, side, "writes a line of step %zu before its slot is free: head is %zu", (size_t)use->step,
         (size_t)word_at(side->sender));
  slot_count(block, side, use, at, "line");
}

/* An access of eight bytes; `word`: what is read or written. */
static void line_access(const struct watched *block, const struct place *place, struct side *side,
                        size_t offset, bool writes, uint64_t word) {
  const uint8_t kind = place->line_kind;
  const uint32_t step_bytes = place->step_bytes, slot = (uint32_t)(offset / step_bytes);
  const uint32_t within = (uint32_t)(offset % step_bytes), wire = line_wire_bytes(kind);
  const uint32_t line = within / wire, part = within % wire / 8;
  if (writes != side->sends)
    fail(block, side, "%s lines of the other direction", writes ? "writes" : "reads");
  if (!writes) {
    if (line >= lines_most(side, kind, slot))
      fail(block, side, "reads line %u of slot %u, which no step has", line, slot);
    if (kind == LINE_LL128 && part + 1 != LL128_WORDS) return;
    struct use *use = use_of_flag(block, side, kind, kind == LINE_LL ? word >> 32 : word, slot);
    if (use != NULL && line < use->lines)
      slot_count(block, side, use, kind == LINE_LL ? line * 2 + part : line, "line");
    return;
  }
  if (kind == LINE_LL) {
    line_write(block, side, kind, word >> 32, slot, line * 2 + part);
    return;
  }
  uint32_t *words = &side->words[offset / wire];
  if ((*words >> part & 1) != 0) fail(block, side, "writes word %u of line %u twice", part, line);
  *words |= 1u << part;
  if (part + 1 != LL128_WORDS) return;
  if (*words != (1u << LL128_WORDS) - 1)
    fail(block, side, "writes the flag of line %u before its data", line);
  side->words.erase(offset / wire);
  line_write(block, side, kind, word, slot, line);
}

/* ---- posts ---- */

/* Direct kernels post nothing that the other end knows already. */
static bool post_may_miss(const struct watched *block, const struct side *side) {
  const struct post *post = &side->posts[side->posted];
  return post->may_miss || (block->direct && post->value == side->last_post);
}

static void post_compare(const struct watched *block, struct side *side, uint64_t value) {
  const char *name = side->sends ? "tail" : "head";
  while (side->posted < side->posts.size() && side->posts[side->posted].value != value &&
         post_may_miss(block, side))
    side->posted += 1;
  if (side->posted == side->posts.size())
    fail(block, side, "posts %s %zu, after which the schedule has no post", name, (size_t)value);
  if (side->posts[side->posted].value != value)
    fail(block, side, "posts %s %zu, where the schedule has %zu", name, (size_t)value,
         (size_t)side->posts[side->posted].value);
  side->posted += 1;
  side->last_post = value;
  uses_end(block, side, value);
}

/* ---- ends of connections ---- */

static struct opening *opening_of(struct side *side, uint32_t tag) {
  for (struct opening &opening : side->openings)
    if ((uint32_t)opening.step + 1 == tag) return &opening;
  return NULL;
}

/* A half of the size that the sender announces. */
static void announce_compare(const struct watched *block, struct side *side, size_t offset, uint64_t half) {
  struct opening *opening = opening_of(side, (uint32_t)(half >> 32));
  if (opening == NULL) fail(block, side, "announces a size with the tag of no operation");
  const struct work *work = opening->part->work;
  const uint64_t bytes = (uint64_t)work->part_count * work->element_bytes;
  const bool second = offset % TAGGED_BYTES != 0;
  if (offset / TAGGED_BYTES != opening->step % side->slots)
    fail(block, side, "announces the size at slot %zu", offset / TAGGED_BYTES);
  if ((uint32_t)half != (uint32_t)(second ? bytes >> 32 : bytes))
    fail(block, side, "announces another size than %zu", (size_t)bytes);
  opening->announced += 1;
}

/* Addresses that the other end has shown are known by their tags. */
static void shown_note(struct side *side, size_t offset, uint64_t half) {
  struct opening *opening = opening_of(side, (uint32_t)(half >> 32));
  if (opening == NULL || offset >= TAGGED_BYTES) return;
  struct part *part = opening->part;
  uint64_t *address = &(side->sends ? part->send_direct : part->recv_direct)[opening->link];
  if (offset == 0) *address = (*address & ~(uint64_t)UINT32_MAX) | (uint32_t)half;
  else *address = (*address & UINT32_MAX) | half << 32;
}

static bool side_has(const struct side *side, uint32_t flag) {
  for (const struct opening &opening : side->openings)
    if ((opening.part->work->flags & flag) != 0) return true;
  return false;
}

/* Whether the role of this end may write there. `own`: in the end's own struct. */
static bool end_may_write(const struct side *side, bool own, size_t offset) {
  if (own && side->sends && offset == AT_READ) return side->reads_slots;
  if (own) return offset >= AT_STEP && offset < AT_LINES_END;
  if (side->sends)
    return offset < LAUNCH_SOURCE_OFFSET + 2 * TAGGED_BYTES && side_has(side, WORK_SHOWS_INPUT);
  return offset >= LAUNCH_OFFER_OFFSET && offset < LAUNCH_OFFER_OFFSET + 2 * TAGGED_BYTES &&
         side_has(side, WORK_DIRECT_RECV);
}

static void end_access(const struct watched *block, struct side *side, bool own, size_t offset, bool writes,
                       const uint64_t *value) {
  const size_t shown = side->sends ? LAUNCH_OFFER_OFFSET : LAUNCH_SOURCE_OFFSET;
  if (!writes) {
    if (own && value != NULL && offset >= shown) shown_note(side, offset - shown, *value);
    return;
  }
  if (!own && offset == 0 && value != NULL) {
    post_compare(block, side, *value);
    return;
  }
  if (!own && side->sends && value != NULL && offset >= LAUNCH_ANNOUNCED_OFFSET &&
      offset < LAUNCH_STEP_OFFSET) {
    announce_compare(block, side, offset - LAUNCH_ANNOUNCED_OFFSET, *value);
    return;
  }
  if (!end_may_write(side, own, offset))
    fail(block, side, "writes byte %zu of the %s end", offset, own ? "own" : "other");
}

/* ---- accesses ---- */

static const struct place *place_of(struct watched *block, uintptr_t address) {
  const struct place *place = block->places.empty() ? NULL : &block->places[block->last_place];
  if (place != NULL && address - place->begin < place->bytes) return place;
  const auto behind =
      std::upper_bound(block->places.begin(), block->places.end(), address,
                       [](uintptr_t wanted, const struct place &each) { return wanted < each.begin; });
  if (behind == block->places.begin()) return NULL;
  place = &*(behind - 1);
  if (address - place->begin >= place->bytes) return NULL;
  block->last_place = (size_t)(place - block->places.data());
  return place;
}

static void user_access(struct watched *block, uintptr_t address, uint32_t bytes, bool writes) {
  for (uint32_t i = 0; i < bytes; i++) {
    const uintptr_t at = address + i;
    if (block->last_page == NULL || at / PAGE != block->last_number) {
      block->last_number = at / PAGE;
      block->last_page = page_at(&block->found, at);
    }
    uint8_t *count = &(writes ? block->last_page->writes : block->last_page->reads)[at % PAGE];
    *count = (uint8_t)(*count + (*count < UINT8_MAX));
  }
}

/* Of connections that share slots, the first that has not ended. */
static struct side *side_at(const struct place *place) {
  for (struct side *side : place->sides)
    if (side->done < side->uses.size()) return side;
  return place->sides.back();
}

static void block_access(void *state, uintptr_t address, uint32_t bytes, bool writes, const uint64_t *value) {
  struct watched *block = (struct watched *)state;
  const struct place *place = place_of(block, address);
  if (place == NULL) {
    user_access(block, address, bytes, writes);
    return;
  }
  if (place->kind == PLACE_IGNORED) return;
  struct side *side = side_at(place);
  const size_t offset = address - place->begin;
  if (place->kind != PLACE_SLOTS) {
    end_access(block, side, side->sends == (place->kind == PLACE_SENDER), offset, writes, value);
  } else if (!place->lines) {
    simple_access(block, place, side, offset, bytes, writes);
  } else {
    if (value == NULL || bytes != 8) fail(block, side, "a line is accessed by no instruction of ptx.h");
    line_access(block, place, side, offset, writes, *value);
  }
}

/* ---- a block begins ---- */

static struct side *side_find(struct watched *block, const struct bound_link *link, bool sends,
                              uint32_t peer) {
  for (struct side *side : block->sides)
    if (side->sends == sends && side->sender == (uint8_t *)link->sender) return side;
  struct side *side = new struct side();
  side->sends = sends;
  side->sender = (uint8_t *)link->sender;
  side->receiver = (uint8_t *)link->receiver;
  side->peer = peer;
  side->slots = block->direct ? (uint32_t)DIRECT_SLOTS : block->arguments->limits.slots;
  const uint8_t *own = sends ? side->sender : side->receiver;
  side->step = word_at(own + AT_STEP);
  for (uint32_t kind = 0; kind < 2; kind++)
    side->lines[kind] = side->first_line[kind] = word_at(own + AT_LINES + 8 * kind);
  block->sides.push_back(side);
  block->places.push_back({(uintptr_t)link->sender, LAUNCH_END_BYTES, PLACE_SENDER, false, 0, 0, {side}});
  block->places.push_back({(uintptr_t)link->receiver, LAUNCH_END_BYTES, PLACE_RECEIVER, false, 0, 0, {side}});
  return side;
}

static void slots_add(struct watched *block, const struct part *part, const uint8_t *buffer,
                      struct side *side) {
  const bool lines = part->work->proto != PROTO_SIMPLE;
  for (struct place &place : block->places) {
    if (place.kind != PLACE_SLOTS || place.begin != (uintptr_t)buffer) continue;
    if (place.sides.back() != side) place.sides.push_back(side);
    return;
  }
  block->places.push_back({(uintptr_t)buffer,
                           (size_t)side->slots * part->step_bytes,
                           PLACE_SLOTS,
                           lines,
                           kind_of(part->work),
                           part->step_bytes,
                           {side}});
}

static void link_add(struct watched *block, struct part *part, const struct bound_link *link, bool sends,
                     uint64_t peer) {
  struct side *side = side_find(block, link, sends, (uint32_t)peer);
  (sends ? part->send : part->recv).push_back(side);
  slots_add(block, part, link->buffer, side);
}

static void ignore(struct watched *block, const void *memory, size_t bytes) {
  if (memory != NULL) block->places.push_back({(uintptr_t)memory, bytes, PLACE_IGNORED, false, 0, 0, {}});
}

static void part_add(struct watched *block, const struct bound_work *bound,
                     const struct bound_further *further) {
  struct part *part = new struct part();
  const struct work *work = (const struct work *)(const void *)bound->work;
  const struct plan_limits *limits = &block->arguments->limits;
  part->bound = bound;
  part->work = work;
  part->step_bytes = limits->step_bytes[work->proto];
  if (work->proto != PROTO_LL128 && (work->flags & WORK_POOLED) != 0)
    part->step_bytes = plan_message_step_bytes(limits, work->proto);
  const struct bound_further *next = further + bound->further;
  for (uint32_t i = 0; i<work->recv_count; i++, next += i> 1)
    link_add(block, part, i == 0 ? &bound->recv : &next->link, false, i == 0 ? bound->recv_peer : next->peer);
  for (uint32_t i = 0; i<work->send_count; i++, next += i> 1)
    link_add(block, part, i == 0 ? &bound->send : &next->link, true, i == 0 ? bound->send_peer : next->peer);
  const uint64_t *shifts = (const uint64_t *)(const void *)next;
  if ((work->flags & WORK_DIRECT_RECV) != 0) shifts += work->recv_count;
  for (uint32_t i = 0; i < work->send_count; i++)
    part->shows.push_back((work->flags & WORK_SHOWS_INPUT) != 0 && shifts[i] != LAUNCH_HIDDEN);
  part->recv_direct.resize(work->recv_count);
  part->send_direct.resize(work->send_count);
  if (work->ring_ranks != NULL) ignore(block, work->ring_ranks, work->rank_count * sizeof *work->ring_ranks);
  if ((work->flags & WORK_SCALAR) != 0)
    ignore(block, (const void *)(uintptr_t)work->op_arg, work->element_bytes);
  block->parts.push_back(part);
  part_uses(block, part);
}

static void places_sort(struct watched *block) {
  std::sort(block->places.begin(), block->places.end(),
            [](const struct place &left, const struct place &right) { return left.begin < right.begin; });
}

/* The warps of a batch's works, the block's last ones: as these works divide them, also if the launch was
 * kept or captured. */
static void warps_compare(const struct watched *block, const struct bound_batch *batch, uint32_t warp_count) {
  const struct work *members[PLAN_BATCH_WORKS_MAX];
  uint8_t counts[PLAN_BATCH_WORKS_MAX];
  for (uint32_t i = 0; i < batch->work_count; i++)
    members[i] = block->parts[block->parts.size() - batch->work_count + i]->work;
  if (warp_count < warps_needed(members, batch->work_count, WARPS_LEAST))
    fail(block, NULL, "has %u warps for %u works", warp_count, batch->work_count);
  warps_divide(members, batch->work_count, warp_count, counts);
  for (uint32_t i = 0; i < batch->work_count; i++)
    if (batch->warps[i] != counts[i])
      fail(block, NULL, "work %u of %u has %u warps, but must have %u", i, batch->work_count, batch->warps[i],
           counts[i]);
}

static void *block_begin(const char *kernel, void *const *parameters, uint32_t index, uint32_t thread_count) {
  const struct launch_arguments *arguments = (const struct launch_arguments *)parameters[0];
  if (strncmp(kernel, "link_test", strlen("link_test")) == 0) return NULL;
  const uint32_t first = arguments->first_batch[index], end = arguments->first_batch[index + 1];
  if (first == end) return NULL;
  const uint8_t *data = arguments->data != NULL
                            ? arguments->data
                            : (const uint8_t *)parameters[0] + offsetof(struct launch, plan);
  const struct bound_batch *batches =
      (const struct bound_batch *)(const void *)(data + arguments->batches_offset);
  const struct bound_further *further =
      (const struct bound_further *)(const void *)(data + arguments->further_offset);
  struct watched *block = new struct watched();
  block->kernel = kernel;
  block->block = index;
  block->direct = strncmp(kernel, "direct", strlen("direct")) == 0;
  block->arguments = arguments;
  ignore(block, arguments->control, sizeof *arguments->control);
  ignore(block, arguments->counts, sizeof *arguments->counts);
  ignore(block, arguments->failed, sizeof *arguments->failed);
  ignore(block, arguments->data, arguments->further_offset + PLAN_CHANNELS_MAX * sizeof *further);
  for (uint32_t b = first; b < end; b++) {
    for (uint32_t i = 0; i < batches[b].work_count; i++)
      part_add(block, (const struct bound_work *)(const void *)data + batches[b].first_work + i, further);
    if (!block->direct) warps_compare(block, &batches[b], thread_count / WARP);
  }
  places_sort(block);
  return block;
}

/* ---- a block ends ---- */

static void side_end(const struct watched *block, struct side *side) {
  const uint8_t *own = side->sends ? side->sender : side->receiver;
  const uint64_t saved = word_at(own + AT_STEP);
  uses_end(block, side, UINT64_MAX);
  for (; side->posted < side->posts.size(); side->posted++) {
    if (!post_may_miss(block, side))
      fail(block, side, "never posts %s %zu", side->sends ? "tail" : "head",
           (size_t)side->posts[side->posted].value);
  }
  if (side->last_post < side->least)
    fail(block, side, "posts head %zu last, but must post %zu", (size_t)side->last_post, (size_t)side->least);
  for (const struct opening &opening : side->openings)
    if (opening.announced != (side->sends && opening.used ? 2 : 0))
      fail(block, side, "announces a size %u times and a half", opening.announced / 2);
  if (saved != side->step)
    fail(block, side, "saves step %zu, but the next operation begins at %zu", (size_t)saved,
         (size_t)side->step);
  for (uint32_t kind = 0; kind < 2; kind++)
    if (word_at(own + AT_LINES + 8 * kind) != side->lines[kind])
      fail(block, side, "saves line %zu, but the next operation begins at %zu",
           (size_t)word_at(own + AT_LINES + 8 * kind), (size_t)side->lines[kind]);
  if (side->reads_slots && word_at(own + AT_READ) != side->read_step)
    fail(block, side, "saves another step until which its slots are read than %zu", (size_t)side->read_step);
}

static void user_fail(const struct watched *block, uintptr_t at, bool writes, uint32_t found,
                      uint32_t asked) {
  const struct part *part = block->parts[0];
  fail(block, NULL, "the byte at %#zx (first work: input + %td, output + %td) is %s %u times, not %u",
       (size_t)at, (ptrdiff_t)(at - (uintptr_t)part->bound->in),
       (ptrdiff_t)(at - (uintptr_t)part->bound->out), writes ? "written" : "read", found, asked);
}

static void page_compare(const struct watched *block, uintptr_t number, const struct page *found,
                         const struct page *asked) {
  for (size_t i = 0; i < PAGE; i++) {
    if (found->writes[i] != asked->writes[i])
      user_fail(block, number * PAGE + i, true, found->writes[i], asked->writes[i]);
    if ((found->reads[i] > 0) != (asked->reads[i] > 0))
      user_fail(block, number * PAGE + i, false, found->reads[i], asked->reads[i]);
  }
}

static void user_end(struct watched *block) {
  memory_map asked;
  for (const struct part *part : block->parts)
    slices_each(block, part, [&](const struct slice *slice) {
      const struct spans spans = {&asked, part, slice};
      expect_slice(&spans);
    });
  for (const auto &each : asked) page_compare(block, each.first, &block->found[each.first], &each.second);
  for (const auto &each : block->found) page_compare(block, each.first, &each.second, &asked[each.first]);
}

static bool is_aborted(const struct watched *block) {
  const struct launch_arguments *arguments = block->arguments;
  return *(const volatile int *)&arguments->control->abort != 0 ||
         *(const volatile int *)arguments->failed != 0;
}

static void block_end(void *state) {
  struct watched *block = (struct watched *)state;
  if (!is_aborted(block)) {
    for (struct side *side : block->sides) side_end(block, side);
    user_end(block);
    __atomic_fetch_add(&works_compared, block->parts.size(), __ATOMIC_RELAXED);
  }
  for (struct side *side : block->sides) delete side;
  for (struct part *part : block->parts) delete part;
  delete block;
}

const struct watcher steps_watcher = {block_begin, block_access, block_end};

/* The numbers of works, and of slices and steps of LL on their links. */
static struct at_exit {
  ~at_exit() {
    const char *path = getenv("SIMT_STEPS");
    FILE *file = path != NULL && works_compared > 0 ? fopen(path, "a") : NULL;
    if (file == NULL) return;
    fprintf(file, "%zu %zu\n", (size_t)works_compared, (size_t)uses_compared);
    fclose(file);
  }
} at_exit;
