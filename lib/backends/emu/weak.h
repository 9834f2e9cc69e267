/* weak.h: the emulator's weak memory (weak=1, guarded mode): what a lane does to memory that others see
 * happens late and out of order, unless a release and an acquire of the protocol say otherwise. A lane notes
 * its moves, groups of LL lines and stores in the order of its program; the scheduler carries them out one by
 * one:
 *
 *   a move, or an LL group        reads its sources when it is carried out, in the order of the lane's moves;
 *                                 what it writes becomes stores
 *   a store                       reaches memory in any order, in pieces; those to one address in theirs
 *   a counter's release           once the counter is visible, whoever acquires it finds carried out all that
 *                                 the lane noted before; reads as much as writes
 *
 * Every place has one reader, so memory itself is what a load without acquire sees. A lane's own loads find
 * its own stores. Who reads what is written and not yet visible, or writes over what is not yet read, is told
 * as a broken invariant. A lane that is linked to another process stores at once: nobody there would carry
 * out what is noted here. Known to prim_impl.h, which hands over what a lane with weak memory does, and to
 * block.c. */
#ifndef TUTTI_BACKENDS_EMU_WEAK_H
#define TUTTI_BACKENDS_EMU_WEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct emu_lane;
struct emu_weak; /* one lane's notes */
struct tagged_word;
struct move;
struct prim_fragment;
struct work;

/* Set when the options are: guarded mode and weak=1. */
extern bool emu_weak_on;

/* What weaken= leaves out of the protocol, to see it caught. In the order of the names in weak.c. */
enum weak_point {
  WEAKEN_NOTHING,
  WEAKEN_TAIL_RELEASE,      /* prim_store_tail orders nothing */
  WEAKEN_TAIL_ACQUIRE,      /* prim_load_tail orders nothing */
  WEAKEN_HEAD_RELEASE,      /* prim_store_head orders nothing */
  WEAKEN_HEAD_ACQUIRE,      /* prim_load_head orders nothing */
  WEAKEN_LL_FIRST_FLAG,     /* a line of LL counts as arrived by its second flag alone */
  WEAKEN_LL_SECOND_FLAG,    /* and by its first alone */
  WEAKEN_LL_WORD,           /* data and flag of a word of LL become visible apart */
  WEAKEN_LL128_FLAG,        /* a line of LL128 counts as arrived whatever its flag is */
  WEAKEN_LL128_LINE,        /* data and flag of a line of LL128 become visible apart */
  WEAKEN_TAGGED_FIRST_TAG,  /* the tag of a tagged word's first half is not compared */
  WEAKEN_TAGGED_SECOND_TAG, /* nor that of its second */
  WEAKEN_TAGGED_HALF,       /* value and tag of a tagged word's half become visible apart */
  WEAKEN_COUNT
};
extern const char *const emu_weaken_names[WEAKEN_COUNT + 1]; /* ends with NULL */

/* ---- for prim_impl.h ---- */

uint64_t emu_weak_load_tail(const uint64_t *address);
uint64_t emu_weak_load_head(const uint64_t *address);
void emu_weak_store_tail(struct emu_weak *weak, uint64_t *address, uint64_t value);
void emu_weak_store_head(struct emu_weak *weak, uint64_t *address, uint64_t value);
void emu_weak_store_tagged(struct emu_weak *weak, uint64_t *halves, uint32_t tag, uint64_t value);
bool emu_weak_load_tagged(const uint64_t *halves, uint32_t tag, uint64_t *value);
bool emu_weak_ll_ready(uint8_t kind, const uint8_t *line, uint32_t line_count, uint64_t flag);
void emu_weak_move(struct emu_weak *weak, const struct move *move);

/* Between group_begin and group_end the primitives of a group are noted; they are carried out together. */
enum weak_action {
  WEAK_USER_LOAD,
  WEAK_USER_STORE,
  WEAK_LINE_LOAD,
  WEAK_LINE_STORE,
  WEAK_COMBINE,
  WEAK_POST
};
void emu_weak_group_begin(struct emu_weak *weak);
void emu_weak_note(struct emu_weak *weak, enum weak_action action, const void *memory, size_t bytes,
                   const struct prim_fragment *fragment, const struct prim_fragment *other);
void emu_weak_note_ll(struct emu_weak *weak, enum weak_action action, const uint8_t *line,
                      uint32_t line_count, uint64_t flag, const struct prim_fragment *fragment);
void emu_weak_group_end(struct emu_weak *weak, uint8_t kind, const struct work *work);

/* ---- for block.c; locked ---- */

/* The notes of a lane that begins: NULL where memory is not weak, or has run out. */
struct emu_weak *emu_weak_open(struct emu_lane *lane);
/* Behind a move of the lane: what has waited too long becomes visible. */
void emu_weak_settle(struct emu_weak *weak);
/* The lane ends, before it leaves its connections: all becomes visible, or, after an abort, nothing more. */
void emu_weak_close(struct emu_weak *weak, bool aborted);
/* What was found broken since the last question, and the lane that did it; NULL when nothing was. */
const char *emu_weak_fault(struct emu_lane **lane);

#endif
