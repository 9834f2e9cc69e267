/* one_thread.h: what the command's bindings of the device seam (protocol/prim.h), the checker's and the
 * simulator's, have in common: one thread runs all lanes, so a lane has one worker that never waits here.
 * Included by their prim_impl.h, after names that these give to functions. */
#ifndef TUTTI_SIM_STEPS_ONE_THREAD_H
#define TUTTI_SIM_STEPS_ONE_THREAD_H

static inline bool prim_leader(const struct prim *prim) {
  (void)prim;
  return true;
}
static inline void prim_join(const struct prim *prim) { (void)prim; }
static inline void prim_await_readers(const struct prim *prim) { (void)prim; }
static inline bool prim_aborted(const struct prim *prim) {
  (void)prim;
  return false;
}
static inline void prim_pause(const struct prim *prim) { (void)prim; }

uint64_t prim_load_tail(const uint64_t *address);
uint64_t prim_load_head(const uint64_t *address);
void prim_store_tail(struct prim *prim, uint64_t *address, uint64_t value);
void prim_store_head(struct prim *prim, uint64_t *address, uint64_t value);
void prim_tagged_store(struct prim *prim, struct tagged_word *word, uint32_t tag, uint64_t value);
bool prim_tagged_load(const struct tagged_word *word, uint32_t tag, uint64_t *value);

static inline void prim_group_end(struct prim *prim, uint8_t kind, uint32_t line_count, uint32_t bytes,
                                  const struct work *work) {
  (void)prim, (void)kind, (void)line_count, (void)bytes, (void)work;
}

#endif
