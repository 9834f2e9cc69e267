/* first_step.h: connections that do not begin at step 0 (TUTTI_FIRST_STEP), so that tests reach the steps at
 * which flags and tags wrap. Such a connection begins as if it had been in use: its counters have the given
 * value, its tagged words the tags of the last steps, and its lines of LL and LL128 the flags of a whole
 * period before, which match again at the end of this half period. So only the clean-up before that end
 * (ll.h) keeps a receiver from taking them for data. Backends of both devices include this. */
#ifndef TUTTI_BACKENDS_FIRST_STEP_H
#define TUTTI_BACKENDS_FIRST_STEP_H

#include <string.h>

#include "kernels/launch.h"
#include "protocol/line.h"

/* The number of a connection's first step. `pooled`: of one whose operations use the rank's slots
 * (device_net_end); its sender has no free slots yet. */
static inline uint64_t first_step_of(const struct plan_limits *limits, bool pooled) {
  return (uint64_t)limits->first_step + (pooled ? limits->slots : 0);
}

/* The first step from `step` on that uses this slot. */
static inline uint64_t first_step_in_slot(uint64_t step, uint32_t slots, uint32_t slot) {
  return step + (slot + slots - (uint32_t)(step % slots)) % slots;
}

/* The last step before `step` that uses this slot; modulo 2^64 if there is none. */
static inline uint64_t first_step_before(uint64_t step, uint32_t slots, uint32_t slot) {
  return first_step_in_slot(step, slots, slot) - slots;
}

/* The flag that all lines of a slot hold when the connection begins: that of the slot's first step after the
 * end of the half period. If fewer steps are left before that end than the clean-up needs, it has happened
 * already, and the flag is that of the slot's last step. */
static inline uint64_t first_step_flag(const struct plan_limits *limits, uint32_t slot) {
  const uint64_t first = limits->first_step, half = (uint64_t)1 << (limits->flag_bits - 1);
  const uint64_t end = (first / half + 1) * half;
  const uint64_t step = end - first >= 2 * (uint64_t)limits->slots
                            ? first_step_in_slot(end, limits->slots, slot)
                            : first_step_before(first, limits->slots, slot);
  return line_flag_at(step, line_flag_mask(limits->flag_bits));
}

/* Fills the lines of one slot of LL or LL128. */
static inline void first_step_fill(const struct plan_limits *limits, uint8_t proto, uint32_t slot,
                                   uint8_t *lines, size_t bytes) {
  const size_t line_bytes = line_wire_bytes(proto == PROTO_LL ? LINE_LL : LINE_LL128);
  const uint64_t flag = first_step_flag(limits, slot), mark = line_first_half(0xd1d1d1d1u, flag);
  for (uint8_t *line = lines; line + line_bytes <= lines + bytes; line += line_bytes) {
    memset(line, 0xd1, line_bytes);
    memcpy(line + line_bytes - 8, proto == PROTO_LL ? &mark : &flag, 8);
    if (proto == PROTO_LL) memcpy(line, &mark, 8);
  }
}

/* Fills a tagged word with the tag of a step, as protocol/fifo.h computes it. */
static inline void first_step_tag(void *word, uint64_t step) {
  const uint64_t half = line_first_half(0xd1d1d1d1u, step + 1), halves[2] = {half, half};
  memcpy(word, halves, sizeof halves);
}

/* Fills an end of a new connection, which is laid out as struct fifo_sender or struct fifo_receiver. */
static inline void first_step_end(const struct plan_limits *limits, bool sends, void *end) {
  const uint64_t first = limits->first_step, steps[3] = {first, first, first};
  uint8_t *bytes = (uint8_t *)end;
  memcpy(bytes, &first, sizeof first); /* head or tail */
  memcpy(bytes + LAUNCH_STEP_OFFSET, steps, sizeof steps);
  for (uint32_t i = 0; i < 2; i++) /* an address, and the bytes there */
    first_step_tag(bytes + (sends ? LAUNCH_OFFER_OFFSET : LAUNCH_SOURCE_OFFSET) + 16 * (size_t)i, first - 1);
  for (uint32_t slot = 0; slot < limits->slots && !sends; slot++)
    first_step_tag(bytes + LAUNCH_ANNOUNCED_OFFSET + 16 * (size_t)slot,
                   first_step_before(first, limits->slots, slot));
}

#endif
