/* prim_impl.h (steps): the device primitives (protocol/prim.h) for lanes that move no data: who runs a lane
 * says what it may know of counters and hears what it posts, and a move is the bytes that it carries over
 * each link (executor.h). One thread runs all lanes, each with one slice in flight. */
#ifndef TUTTI_SIM_STEPS_PRIM_IMPL_H
#define TUTTI_SIM_STEPS_PRIM_IMPL_H

#define PRIM_LINKS STEP_LINKS_MAX
#define PRIM_DEPTH 1
#define PRIM_COMPACT 1
#define PRIM_SHIFTS 1                  /* a link's other end has addresses of its own: executor.h */
#define PRIM_NEXT_STEP steps_next_step /* cuts steps of LL into groups of lines */

struct algo_iter;
struct move;
struct prim;
struct step;
struct work;

/* The command has a second binding, the checker's. */
#define prim_load_tail steps_load_tail
#define prim_load_head steps_load_head
#define prim_store_tail steps_store_tail
#define prim_store_head steps_store_head
#define prim_tagged_store steps_tagged_store
#define prim_tagged_load steps_tagged_load
#define prim_move_begin steps_move_begin
#define prim_line_ready steps_line_ready
#define prim_line_load steps_line_load
#define prim_line_store steps_line_store

bool steps_next_step(struct algo_iter *iter, const struct work *work, struct step *step);

#include "steps/seam/one_thread.h"

void prim_move_begin(struct prim *prim, struct move *move);
static inline void prim_move_finish(struct prim *prim, struct move *move) { (void)prim, (void)move; }

/* Lines are counted as they pass a link. What happens to them in registers takes no time of its own. */
struct prim_fragment {
  char nothing;
};
bool prim_line_ready(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                     uint64_t flag);
void prim_line_load(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count, uint64_t flag,
                    struct prim_fragment *fragment);
void prim_line_store(struct prim *prim, uint8_t kind, uint8_t *line, uint32_t line_count, uint64_t flag,
                     const struct prim_fragment *fragment);
static inline void prim_group_begin(struct prim *prim) { (void)prim; }
static inline void prim_fragment_zero(struct prim_fragment *fragment) { fragment->nothing = 0; }
static inline void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user,
                                      size_t bytes, const struct work *work) {
  (void)prim, (void)fragment, (void)user, (void)bytes, (void)work;
}
static inline void prim_fragment_store(struct prim *prim, void *user, const struct prim_fragment *fragment,
                                       size_t bytes, const struct work *work) {
  (void)prim, (void)user, (void)fragment, (void)bytes, (void)work;
}
static inline void prim_fragment_combine(struct prim *prim, struct prim_fragment *data,
                                         const struct prim_fragment *arrived, size_t bytes,
                                         const struct work *work) {
  (void)prim, (void)data, (void)arrived, (void)bytes, (void)work;
}
static inline void prim_fragment_post(struct prim *prim, struct prim_fragment *data, size_t bytes,
                                      const struct work *work) {
  (void)prim, (void)data, (void)bytes, (void)work;
}

#endif
