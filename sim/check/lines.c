/* lines.c: LL and LL128 over symbols. A whole step is one group of lines. A line has no contents: the step's
 * message has the flag with which its lines were stored, and they have arrived for a receiver that polls them
 * with the same flag. */
#include <inttypes.h>

#include "check/executor.h"

static struct conn *line_conn(const struct prim *prim, const uint8_t *line) {
  const uint64_t address = (uint64_t)(uintptr_t)line;
  return &prim->engine->conns[(address & ~SEAM_SLOTS) >> SEAM_CONN_SHIFT];
}

static uint64_t link_units(const struct prim *prim, uint32_t link) {
  return (uint64_t)step_link_count(&prim->run->step, link) * prim->lane->scale;
}

bool prim_line_ready(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count,
                     uint64_t flag) {
  struct conn *conn = line_conn(prim, line);
  const struct message *message = &conn->messages[conn->got];
  const uint64_t begin = (uint64_t)(uintptr_t)line,
                 end = begin + (uint64_t)line_count * line_wire_bytes(kind);
  if (seam_fault(prim, FAULT_NO_WAIT)) return true;
  prim->want = WANT_DATA;
  prim->want_conn = (uint32_t)(conn - prim->engine->conns);
  if (conn->held == 0 || message->flag != flag) return false;
  const uint64_t lines = ((message->count << prim->engine->memory.unit_shift) + line_data_bytes(kind) - 1) /
                         line_data_bytes(kind);
  if (begin < message->slot || end > message->slot + lines * line_wire_bytes(kind)) return false;
  if (conn->tail_seen <= message->step) conn->tail_seen = message->step + 1;
  return true;
}

void prim_group_begin(struct prim *prim) { prim->loaded = false; }

void prim_fragment_zero(struct prim_fragment *fragment) {
  fragment->value = NULL;
  prim_now->clears = true;
}

/* The first value of a group, which becomes its sum, or one that the next call combines with it. */
static struct value *fragment_take(struct prim *prim, struct prim_fragment *fragment) {
  fragment->value = prim->loaded ? &prim->engine->arrived : &prim->engine->sum;
  prim->loaded = true;
  return fragment->value;
}

void prim_fragment_load(struct prim *prim, struct prim_fragment *fragment, const void *user, size_t bytes,
                        const struct work *work) {
  const uint64_t units = (uint64_t)bytes >> prim->engine->memory.unit_shift;
  (void)work;
  prim->peer = UINT32_MAX;
  if (seam_failed(prim)) return;
  move_read_own(prim, (uint64_t)(uintptr_t)user, units, true, fragment_take(prim, fragment));
}

void prim_line_load(struct prim *prim, uint8_t kind, const uint8_t *line, uint32_t line_count, uint64_t flag,
                    struct prim_fragment *fragment) {
  const struct conn *conn = line_conn(prim, line);
  (void)kind, (void)line_count, (void)flag;
  prim->peer = conn->sender;
  if (seam_failed(prim)) return;
  slots_read(prim, conn->recv_link, (uint64_t)(uintptr_t)line, link_units(prim, conn->recv_link),
             fragment_take(prim, fragment));
}

void prim_fragment_combine(struct prim *prim, struct prim_fragment *data, const struct prim_fragment *arrived,
                           size_t bytes, const struct work *work) {
  (void)data, (void)bytes, (void)work;
  if (seam_failed(prim)) return;
  if (arrived->value == &prim->engine->sum)
    engine_fail(prim->engine, CHECK_COMBINE, prim->lane, UINT32_MAX,
                "hands on a value that comes from nowhere");
  else if ((prim->run->step.flags & (STEP_REDUCE | STEP_FOLD)) == 0)
    engine_fail(prim->engine, CHECK_COMBINE, prim->lane, prim->peer,
                "has several sources in a step that does not reduce");
  else move_combine(prim, prim->peer, arrived->value);
}

void prim_fragment_post(struct prim *prim, struct prim_fragment *data, size_t bytes,
                        const struct work *work) {
  (void)data, (void)bytes, (void)work;
  if (!seam_failed(prim)) move_finish(prim);
}

static bool has_value(struct prim *prim) {
  return prim->loaded || engine_fail(prim->engine, CHECK_COMBINE, prim->lane, UINT32_MAX,
                                     "hands on a value that comes from nowhere");
}

void prim_fragment_store(struct prim *prim, void *user, const struct prim_fragment *fragment, size_t bytes,
                         const struct work *work) {
  (void)fragment, (void)bytes, (void)work;
  if (seam_failed(prim) || !has_value(prim)) return;
  access_write(prim->engine, prim->lane, prim->lane->rank, (uint64_t)(uintptr_t)user, &prim->engine->sum);
}

/* Zeros clear lines that the step has not used. */
static void line_clear(struct prim *prim, uint8_t kind, const struct conn *conn, const uint8_t *line) {
  const struct link *link = &prim->run->send[conn->send_link];
  const uint64_t bytes = link_units(prim, conn->send_link) << prim->engine->memory.unit_shift;
  const uint64_t lines = (bytes + line_data_bytes(kind) - 1) / line_data_bytes(kind);
  const uint8_t *begin = line_address(link, kind, 0);
  if (line < begin + lines * line_wire_bytes(kind) || line >= begin + link->step_bytes)
    engine_fail(prim->engine, CHECK_SLOT, prim->lane, conn->receiver,
                "clears a line towards rank %u that has data, or is of another slot", conn->receiver);
}

void prim_line_store(struct prim *prim, uint8_t kind, uint8_t *line, uint32_t line_count, uint64_t flag,
                     const struct prim_fragment *fragment) {
  const struct conn *conn = line_conn(prim, line);
  (void)line_count;
  if (seam_failed(prim)) return;
  (void)fragment;
  if (prim->clears) line_clear(prim, kind, conn, line);
  else if (has_value(prim))
    slots_write(prim, conn->send_link, (uint64_t)(uintptr_t)line, flag, link_units(prim, conn->send_link));
}
