/* line.h: the lines of LL and LL128, and tagged words: their sizes, their flags, and how they hold data.
 *
 *   LL      16 bytes: | data 4 | flag 4 | data 4 | flag 4 |     8 bytes of data; valid when both flags match
 *   LL128  128 bytes: | data 120                 | flag 8 |     valid when the flag matches; needs stores of
 *                                                               128 bytes that arrive whole
 *   tagged  16 bytes, as a line of LL, with a tag in place of the flag
 *
 * A half of 8 bytes is stored and loaded whole, so its data and flag are seen together. Knows no lane and no
 * connection. */
#ifndef TUTTI_PROTOCOL_LINE_H
#define TUTTI_PROTOCOL_LINE_H

#include "schedule/step.h"

enum line_kind { LINE_LL = 0, LINE_LL128 = 1 };

PRIM_FN uint32_t line_wire_bytes(uint8_t kind) { return kind == LINE_LL ? 16 : 128; }
PRIM_FN uint32_t line_data_bytes(uint8_t kind) { return kind == LINE_LL ? 8 : 120; }

/* Lines of that much data. */
PRIM_FN uint32_t line_count_of(uint8_t kind, uint32_t bytes) {
  return (bytes + line_data_bytes(kind) - 1) / line_data_bytes(kind);
}

/* ---- a line of LL ---- */

/* Its first half and its second one, for a word of data. */
PRIM_FN uint64_t line_first_half(uint64_t word, uint64_t flag) { return (word & 0xffffffffu) | flag << 32; }
PRIM_FN uint64_t line_second_half(uint64_t word, uint64_t flag) { return word >> 32 | flag << 32; }

PRIM_FN uint64_t line_word(uint64_t first_half, uint64_t second_half) {
  return (first_half & 0xffffffffu) | second_half << 32;
}

PRIM_FN bool line_half_has(uint64_t half, uint64_t flag) { return (uint32_t)(half >> 32) == (uint32_t)flag; }

/* ---- flags: the number of a step among those of its protocol, plus one, truncated to flag_bits ---- */

/* The bits of a line's number that its flag has. */
PRIM_FN uint64_t line_flag_mask(uint32_t flag_bits) {
  return flag_bits >= 32 ? ~(uint64_t)0 : ((uint64_t)1 << flag_bits) - 1;
}

PRIM_FN uint64_t line_flag_at(uint64_t line, uint64_t mask) { return (line + 1) & mask; }

/* The slot of a line's step, by its number; `slots` is a power of two. */
PRIM_FN uint32_t line_slot_at(uint32_t line, uint32_t slots) { return line & (slots - 1); }

/* True in the last `slots` steps of every half period of the flag. Lines that a short step does not use keep
 * old flags; to keep them from matching after the flag wraps, a sender rewrites the whole slot in these
 * steps. */
PRIM_FN bool line_cleans_at(uint64_t line, uint32_t flag_bits, uint32_t slots) {
  const uint64_t half = (uint64_t)1 << (flag_bits - 1);
  return (line & (half - 1)) >= half - slots;
}

#endif
