/* lines.h: the line protocols LL and LL128. Data and flag travel in one line, so arrival is seen in the data
 * itself and no tail is posted; the receiver frees the slot through head when it has read every line of a
 * step.
 *
 *   LL      16 bytes: | data 4 | flag 4 | data 4 | flag 4 |     valid when both flags match; 8 bytes of data
 *   LL128  128 bytes: | data 120                 | flag 8 |     valid when the flag matches; needs 128-byte
 * stores that do not tear
 *
 * A step's flag is its number among this protocol's steps plus one, cut to flag_bits. Lines that a short step
 * leaves unused keep old flags; so that none of them can match after the flag wraps, a sender rewrites the
 * whole slot in the last `slots` steps of every half period. */
#ifndef TUTTI_PROTOCOL_LINES_H
#define TUTTI_PROTOCOL_LINES_H

#include "protocol/lane.h"

PRIM_FN uint32_t line_wire_bytes(uint8_t kind) { return kind == LINE_LL ? 16 : 128; }
PRIM_FN uint32_t line_data_bytes(uint8_t kind) { return kind == LINE_LL ? 8 : 120; }

PRIM_FN uint64_t line_flag(const struct lane *lane, const struct link *link) {
  return lane->flag_bits >= 32 ? link->line + 1 : (link->line + 1) & (((uint64_t)1 << lane->flag_bits) - 1);
}

/* True in the last `slots` steps before half of the flag's values are used up. */
PRIM_FN bool line_cleans(const struct lane *lane, const struct link *link) {
  const uint64_t half = (uint64_t)1 << (lane->flag_bits - 1);
  return (link->line & (half - 1)) >= half - link->slots;
}

PRIM_FN uint8_t *line_address(const struct link *link, uint8_t kind, uint32_t line_index) {
  return link->buffer + (size_t)link->line_slot * link->step_bytes +
         (size_t)line_index * line_wire_bytes(kind);
}

/* Makes the next step current; false when the work has no more. */
PRIM_FN bool lines_next_step(struct lane *lane) {
  if (lane->step_held) return true;
  if (!lane_next_step(lane)) return false;
  lane->step_held = true;
  lane->line_index = 0;
  lane->line_count =
      (uint32_t)size_div_up(lane_bytes(lane, lane->step.count), line_data_bytes(line_kind_of(lane->work)));
  return true;
}

/* The size that a step of this lane announces: its data, from which both ends derive the lines. */
PRIM_FN uint64_t lines_bytes(const struct lane *lane) { return lane_bytes(lane, lane->step.count); }

PRIM_FN uint32_t lines_group(const struct lane *lane) {
  return (uint32_t)size_min(lane->group_lines, lane->line_count - lane->line_index);
}

/* The lines of the current group carry the step's flag on this link. Where the first line has come but not
 * all, the announced size tells a slow sender from one that will never send as much. */
PRIM_FN bool lines_arrived(struct lane *lane, const struct link *link) {
  const uint8_t kind = line_kind_of(lane->work);
  const uint64_t flag = line_flag(lane, link);
  const uint32_t lines = lines_group(lane);
  if (lines == 0 || prim_line_ready(kind, line_address(link, kind, lane->line_index), lines, flag))
    return true;
  if (!lane->step_open && lines > 1 && prim_line_ready(kind, line_address(link, kind, 0), 1, flag))
    lane_check_size(lane, link, link->slot_index, lines_bytes(lane));
  return false;
}

/* A group may move when its lines have arrived on every link and, at the start of a step, slots are free. */
PRIM_FN bool lines_ready(struct lane *lane) {
  const struct step *step = &lane->step;
  for (uint32_t i = 0; i < lane->work->send_count && !lane->step_open; i++)
    if (((step->send_links >> i) & 1) != 0 && !link_has_slots(&lane->send[i], 1)) return false;
  for (uint32_t i = 0; i < lane->work->recv_count; i++)
    if (((step->recv_links >> i) & 1) != 0 && !lines_arrived(lane, &lane->recv[i])) return false;
  return true;
}

PRIM_FN uint32_t lines_enabled(struct lane *lane) {
  if (!lane->has_step || !lines_next_step(lane)) return LANE_END;
  if (lane->step_open && lane->line_index == lane->line_count) return LANE_POST;
  return lines_ready(lane) ? (uint32_t)LANE_LINES : 0;
}

/* Rewrites the lines of a slot that the step did not use. */
PRIM_FN void lines_clean(const struct lane *lane, const struct link *link) {
  const uint8_t kind = line_kind_of(lane->work);
  const uint32_t slot_lines = link->step_bytes / line_wire_bytes(kind);
  struct prim_fragment nothing;
  prim_fragment_zero(&nothing);
  for (uint32_t line = lane->line_count; line < slot_lines; line++)
    prim_line_store(kind, line_address(link, kind, line), 1, line_flag(lane, link), &nothing);
}

/* Opens the step: the slots are ours, and the receivers hear how much is coming before they can see the first
 * line. */
PRIM_FN void lines_open(struct lane *lane) {
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    struct link *link = &lane->send[i];
    if (((lane->step.send_links >> i) & 1) == 0) continue;
    link->fifo->sizes[link->slot_index] = lines_bytes(lane);
  }
  lane->step_open = true;
}

PRIM_FN void lines_carry(struct lane *lane, struct prim *prim) {
  const struct work *work = lane->work;
  const struct step *step = &lane->step;
  const uint8_t kind = line_kind_of(work);
  const uint32_t lines = lines_group(lane);
  const size_t offset = (size_t)lane->line_index * line_data_bytes(kind);
  const size_t bytes =
      size_min(lane_bytes(lane, step->count) - offset, (size_t)lines * line_data_bytes(kind));
  struct prim_fragment data, arrived;
  bool holds = false;
  if (step->flags & STEP_COPY_IN) {
    prim_fragment_load(prim, &data, lane->in + lane_bytes(lane, step->in_offset) + offset, bytes, work);
    holds = true;
  }
  for (uint32_t i = 0; i < work->recv_count; i++) {
    if (((step->recv_links >> i) & 1) == 0) continue;
    prim_line_load(kind, line_address(&lane->recv[i], kind, lane->line_index), lines,
                   holds ? &arrived : &data);
    if (holds) prim_fragment_combine(prim, &data, &arrived, bytes, work);
    holds = true;
  }
  if (step->flags & STEP_POST_OP) prim_fragment_post(prim, &data, bytes, work);
  if (step->flags & STEP_KEEP)
    prim_fragment_store(prim, lane->out + lane_bytes(lane, step->out_offset) + offset, &data, bytes);
  for (uint32_t i = 0; i < work->send_count; i++) {
    if (((step->send_links >> i) & 1) == 0) continue;
    prim_line_store(kind, line_address(&lane->send[i], kind, lane->line_index), lines,
                    line_flag(lane, &lane->send[i]), &data);
  }
  lane->line_index += lines;
}

/* A step is over on this link. */
PRIM_FN void lines_advance(struct link *link) {
  link_advance(link, 1);
  link->posted = link->step;
  link->line += 1;
  link->line_slot = link->line_slot + 1 == link->slots ? 0 : link->line_slot + 1;
}

/* Behind the last line of a step: every line is read, so the slot goes back. What was sent needs no post: the
 * lines say it. */
PRIM_FN void lines_post(struct lane *lane) {
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    struct link *link = &lane->recv[i];
    if (((lane->step.recv_links >> i) & 1) == 0) continue;
    lines_advance(link);
    prim_store_release(&link->fifo->head, link->posted);
  }
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    struct link *link = &lane->send[i];
    if (((lane->step.send_links >> i) & 1) == 0) continue;
    if (line_cleans(lane, link)) lines_clean(lane, link);
    lines_advance(link);
  }
  lane->step_open = lane->step_held = false;
  lane->steps_done += 1;
}

PRIM_FN void lines_check_sizes(struct lane *lane) {
  for (uint32_t i = 0; i < lane->work->recv_count; i++)
    if (((lane->step.recv_links >> i) & 1) != 0 && lane->line_count > 0)
      lane_check_size(lane, &lane->recv[i], lane->recv[i].slot_index, lines_bytes(lane));
}

PRIM_FN void lines_move(struct lane *lane, struct prim *prim, uint32_t action) {
  if (action == LANE_END) {
    lane_close(lane);
    return;
  }
  if (action == LANE_POST) {
    lines_post(lane);
    return;
  }
  if (!lane->step_open) {
    lines_open(lane);
    lines_check_sizes(lane);
  }
  if (lane->line_index < lane->line_count) lines_carry(lane, prim);
}

#endif
