/* prim_impl.h (checker): the device primitives (protocol/prim.h) over symbols. Counters and tagged words are
 * plain words of a connection, and a load returns the least that its lane's wait admits (counters.c). Moves
 * combine expressions (moves.c, lines.c); slots have addresses, but no memory. All lanes are run by one
 * thread, with one slice in flight. */
#ifndef TUTTI_SIM_CHECK_PRIM_IMPL_H
#define TUTTI_SIM_CHECK_PRIM_IMPL_H

#define PRIM_LINKS STEP_LINKS_MAX
#define PRIM_DEPTH 1
#define PRIM_SHIFTS \
  1 /* the memory of the rank at a link's other end has addresses of its own: see executor.h */
#define PRIM_NEXT_STEP executor_next_step /* catalogued faults change steps */

struct algo_iter;
struct move;
struct prim;
struct step;
struct value;
struct work;

bool executor_next_step(struct algo_iter *iter, const struct work *work, struct step *step);

#include "steps/seam/one_thread.h"

void prim_move_begin(struct prim *prim, struct move *move);
void prim_move_finish(struct prim *prim, struct move *move);

/* A whole step of LL or LL128 is one group. */
struct prim_fragment {
  struct value *value; /* NULL: zeros */
};
bool prim_line_ready(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                     uint64_t flag);
void prim_group_begin(struct prim *prim);
void prim_fragment_zero(struct prim_fragment *fragment);
void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user, size_t bytes,
                        const struct work *work);
void prim_fragment_store(struct prim *prim, void *user, const struct prim_fragment *fragment, size_t bytes,
                         const struct work *work);
void prim_fragment_combine(struct prim *prim, struct prim_fragment *data, const struct prim_fragment *arrived,
                           size_t bytes, const struct work *work);
void prim_fragment_post(struct prim *prim, struct prim_fragment *data, size_t bytes, const struct work *work);
void prim_line_load(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count, uint64_t flag,
                    struct prim_fragment *fragment);
void prim_line_store(struct prim *prim, uint8_t kind, uint8_t *line, uint32_t line_count, uint64_t flag,
                     const struct prim_fragment *fragment);

#endif
