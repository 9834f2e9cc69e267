/* weak.h: the emulator's weak memory (weak=1, guarded mode). A lane's accesses to shared memory take effect
 * late and out of order, unless a release and an acquire of the protocol order them. A lane's data moves,
 * groups of LL lines and stores are queued as notes in program order; the scheduler performs them one by one:
 *
 *   a move, or an LL group   reads its sources when it is performed, in the order of the lane's moves; its
 * writes become stores a store                  reaches memory in any order, and in pieces; stores to one
 * address stay in order a counter's release      once the counter is visible, an acquire of it finds all
 * earlier notes of the lane performed, reads as well as writes
 *
 * Every location has one reader, so a load without acquire sees memory itself. A lane's own loads see its own
 * stores. Reading data that is written and not yet visible, or overwriting data that is not yet read, is
 * reported as a broken invariant. A lane that is linked to another process stores at once, because that
 * process cannot perform notes of this one. Used by prim_impl.h and block.c. */
#ifndef TUTTI_BACKENDS_EMU_WEAK_H
#define TUTTI_BACKENDS_EMU_WEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct emu_lane;
struct emu_weak; /* the notes of one lane */
struct tagged_word;
struct move;
struct prim_fragment;
struct work;

/* Set together with the options: guarded mode and weak=1. */
extern bool emu_weak_on;

/* What weaken= leaves out of the protocol, so that tests can see the error found. In the order of the names
 * in weak.c.
 */
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

/* The primitives between group_begin and group_end are queued as one note and performed together. */
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

/* Makes the notes of a lane that begins; NULL if memory is not weak, or out of memory. */
struct emu_weak *emu_weak_open(struct emu_lane *lane);
/* After an event of the lane: performs the notes that have waited too long. */
void emu_weak_settle(struct emu_weak *weak);
/* The lane ends, before it leaves its connections: performs all notes, or drops them after an abort. */
void emu_weak_close(struct emu_weak *weak, bool aborted);
/* The lane, which may be NULL, has yet to read this memory. */
bool emu_weak_reads(const struct emu_lane *lane, const void *address, size_t bytes);
/* The broken invariant found since the last call, and its lane; NULL if there is none. */
const char *emu_weak_fault(struct emu_lane **lane);

#endif
