/* ll.h: the protocols LL and LL128. Data and flag travel in one line, so arrival is seen in the data
 * itself and no tail is posted; the receiver frees the slot through head when it has read every line of a
 * step. line.h has the lines and their flags. */
#ifndef TUTTI_PROTOCOL_LL_H
#define TUTTI_PROTOCOL_LL_H

#include "protocol/lane.h"

PRIM_FN uint64_t line_flag(const struct lane *lane, const struct link *link) {
  return line_flag_at(link->line, line_flag_mask(lane->flag_bits));
}

PRIM_FN bool line_cleans(const struct lane *lane, const struct link *link) {
  return line_cleans_at(link->line, lane->flag_bits, link->slots);
}

PRIM_FN uint8_t *line_address(const struct link *link, uint8_t kind, uint32_t line_index) {
  const bool short_lines = kind == LINE_LL;
  return link->buffer +
         link->line_slot * fifo_slot_bytes(short_lines ? PROTO_LL : PROTO_LL128, link->step_bytes) +
         (short_lines ? FIFO_LL_TAGGED_BYTES : 0) + (size_t)line_index * line_wire_bytes(kind);
}

/* Of a link's `lines` lines of the step, those of the current group. */
PRIM_FN uint32_t ll_group_of(const struct lane *lane, uint32_t lines) {
  const uint32_t left = lines > lane->line_index ? lines - lane->line_index : 0;
  return left < lane->group_lines ? left : lane->group_lines;
}

PRIM_FN uint32_t ll_group(const struct lane *lane) { return ll_group_of(lane, lane->line_count); }

/* Offset of the current group's data within the step, and its bytes, of `bytes` of the step on a link; 32
 * bits, as a slot is below 4 GiB. */
PRIM_FN uint32_t ll_offset(const struct lane *lane) {
  return lane->line_index * line_data_bytes(line_kind_of(lane->work));
}

PRIM_FN uint32_t ll_bytes_of(const struct lane *lane, uint32_t bytes) {
  const uint32_t offset = ll_offset(lane), left = bytes > offset ? bytes - offset : 0;
  const uint32_t most = lane->group_lines * line_data_bytes(line_kind_of(lane->work));
  return left < most ? left : most;
}

PRIM_FN uint32_t ll_bytes(const struct lane *lane) { return ll_bytes_of(lane, lane->line_bytes); }

PRIM_FN const uint8_t *ll_input(const struct lane *lane) { return lane_own(lane, 0) + ll_offset(lane); }

/* Lines of that much data. */
PRIM_FN uint32_t ll_lines_of(const struct lane *lane, uint32_t bytes) {
  return line_count_of(line_kind_of(lane->work), bytes);
}

/* Makes the next step current; false when the work has no more. */
PRIM_FN bool ll_next_step(struct lane *lane) {
  if (lane->step_held) return true;
  if (!lane_next_step(lane)) return false;
  lane->step_held = true;
  lane->line_index = 0;
  lane->line_bytes = (uint32_t)lane_bytes(lane, lane->step.count);
  lane->line_count = ll_lines_of(lane, lane->line_bytes);
  return true;
}

/* Lines of the step on link `index`. */
PRIM_FN uint32_t ll_link_lines(const struct lane *lane, uint32_t index) {
  if (!step_is_each(&lane->step)) return lane->line_count;
  return ll_lines_of(lane, (uint32_t)lane_bytes(lane, step_link_count(&lane->step, index)));
}

/* True if the lines of the current group have the step's flag on link `index`. */
PRIM_FN bool ll_arrived(struct lane *lane, uint32_t index, struct prim *prim) {
  const uint8_t kind = line_kind_of(lane->work);
  struct link *link = &lane->recv[index];
  const uint32_t lines = ll_group_of(lane, ll_link_lines(lane, index));
  if (!lane_poll_size(lane, link, prim)) return false;
  return lines == 0 || prim_line_ready(prim, kind, line_address(link, kind, lane->line_index), lines,
                                       line_flag(lane, link));
}

/* A group may move when its lines have arrived on every link and, at the start of a step, slots are free. */
PRIM_FN bool ll_ready(struct lane *lane, struct prim *prim) {
  const struct step *step = &lane->step;
  if (!lane->step_open && !lane_may_follow(lane)) return false;
  FIFO_EACH_LINK(i, lane->step_open ? 0u : lane->work->send_count, step->send_links) {
    if (!link_has_slots(&lane->send[i], 1)) return false;
  }
  FIFO_EACH_LINK(i, lane->work->recv_count, step->recv_links) {
    if (!ll_arrived(lane, i, prim)) return false;
  }
  return true;
}

/* True if all lines of an open step are moved. ll_go() opens a step before it waits for its senders, so a
 * step without lines may be open before some senders have posted. */
PRIM_FN bool ll_carried(struct lane *lane, struct prim *prim) {
  if (!lane->step_open || lane->line_index < lane->line_count) return false;
  return lane->line_count > 0 || ll_ready(lane, prim);
}

PRIM_FN uint32_t ll_enabled(struct lane *lane, struct prim *prim) {
  if (!lane->has_step || !ll_next_step(lane)) return LANE_END;
  if (ll_carried(lane, prim)) return LANE_POST;
  return ll_ready(lane, prim) ? (uint32_t)LANE_LL : 0;
}

/* Rewrites the lines of a slot that the step did not use. */
PRIM_FN void ll_clean(const struct lane *lane, struct prim *prim, uint32_t index) {
  const uint8_t kind = line_kind_of(lane->work);
  const struct link *link = &lane->send[index];
  const uint32_t slot_lines = link->step_bytes / line_wire_bytes(kind);
  struct prim_fragment nothing;
  prim_fragment_zero(&nothing);
  for (uint32_t line = ll_link_lines(lane, index); line < slot_lines; line++) {
    prim_group_begin(prim);
    prim_line_store(prim, kind, line_address(link, kind, line), 1, line_flag(lane, link), &nothing);
    prim_group_end(prim, kind, 1, 0, lane->work);
  }
}

/* Opens the step: the slots now belong to this rank. */
PRIM_FN void ll_open(struct lane *lane, struct prim *prim) {
  FIFO_EACH_LINK(i, lane->work->send_count, lane->step.send_links)
  lane_announce(lane, &lane->send[i], prim);
  lane->step_open = true;
}

#if PRIM_ALGOS > 0
/* The current group of block `block`: from the slot of receive link `from` or, if that is null, the input; to
 * the slot of send link `to` or, if that is null, the output. */
PRIM_FN void ll_move_block(struct lane *lane, struct prim *prim, const struct link *from,
                           const struct link *to, uint32_t block) {
  const struct work *work = lane->work;
  const uint8_t kind = line_kind_of(work);
  const uint32_t all = (uint32_t)lane_bytes(lane, step_block_count(&lane->step, block));
  const uint32_t bytes = ll_bytes_of(lane, all), lines = ll_lines_of(lane, bytes), line = lane->line_index;
  struct prim_fragment data;
  if (bytes == 0) return;
  prim_group_begin(prim);
  if (from != 0)
    prim_line_load(prim, kind, line_address(from, kind, line), lines, line_flag(lane, from), &data);
  else prim_fragment_load(prim, &data, lane_own_block(lane, block, 0) + ll_offset(lane), bytes, work);
  if (to != 0) prim_line_store(prim, kind, line_address(to, kind, line), lines, line_flag(lane, to), &data);
  else prim_fragment_store(prim, lane_kept_block(lane, block, 0) + ll_offset(lane), &data, bytes, work);
  prim_group_end(prim, kind, lines, bytes, work);
}

/* The current group of a step with a block for each link. */
PRIM_FN void ll_carry_each(struct lane *lane, struct prim *prim) {
  const struct step *step = &lane->step;
  const uint32_t lines = ll_group(lane);
  FIFO_EACH_LINK(i, lane->work->send_count, step->send_links)
  ll_move_block(lane, prim, 0, &lane->send[i], step_block(step, i));
  if (lane_copies_block(lane)) ll_move_block(lane, prim, 0, 0, step->own_index);
  FIFO_EACH_LINK(i, lane->work->recv_count, step->recv_links)
  ll_move_block(lane, prim, &lane->recv[i], 0, step_block(step, i));
  lane->line_index += lines;
}
#endif

PRIM_FN void ll_carry(struct lane *lane, struct prim *prim) {
#if PRIM_ALGOS > 0
  if (step_is_each(&lane->step)) {
    ll_carry_each(lane, prim);
    return;
  }
#endif
  const struct work *work = lane->work;
  const struct step *step = &lane->step;
  const uint8_t kind = line_kind_of(work);
  const uint32_t lines = ll_group(lane);
  const uint32_t bytes = ll_bytes(lane);
  struct prim_fragment data, arrived;
  const uint32_t own_index = PRIM_LINKS == 1 ? 0 : step->own_index;
  const bool own = (step->flags & STEP_COPY_IN) != 0;
  uint32_t held = 0;
  prim_group_begin(prim);
  if (own && own_index == 0) {
    prim_fragment_load(prim, &data, ll_input(lane), bytes, work);
    held = 1;
  }
  FIFO_EACH_LINK(i, work->recv_count, step->recv_links) {
    const uint8_t *line = line_address(&lane->recv[i], kind, lane->line_index);
    if (held > 0) {
      prim_line_load(prim, kind, line, lines, line_flag(lane, &lane->recv[i]), &arrived);
      prim_fragment_combine(prim, &data, &arrived, bytes, work);
    } else {
      prim_line_load(prim, kind, line, lines, line_flag(lane, &lane->recv[i]), &data);
    }
    held += 1;
    if (own && own_index != 0 && own_index == held) {
      prim_fragment_load(prim, &arrived, ll_input(lane), bytes, work);
      prim_fragment_combine(prim, &data, &arrived, bytes, work);
    }
  }
  if (PRIM_ALGOS > 1 && (step->flags & STEP_FOLD)) {
    prim_fragment_load(prim, &arrived, lane_kept(lane, 0) + ll_offset(lane), bytes, work);
    prim_fragment_combine(prim, &data, &arrived, bytes, work);
  }
  if (step->flags & STEP_POST_OP) prim_fragment_post(prim, &data, bytes, work);
  FIFO_EACH_LINK(i, work->send_count, step->send_links) {
    prim_line_store(prim, kind, line_address(&lane->send[i], kind, lane->line_index), lines,
                    line_flag(lane, &lane->send[i]), &data);
  }
  if (step->flags & STEP_KEEP)
    prim_fragment_store(prim, lane_kept(lane, 0) + ll_offset(lane), &data, bytes, work);
  prim_group_end(prim, kind, lines, bytes, work);
  lane->line_index += lines;
}

/* Ends a step on this link. */
PRIM_FN void ll_advance(struct link *link) {
  link_advance(link, 1);
  link->posted = link->step;
  link->line += 1;
  link->line_slot = link->line_slot + 1 == link->slots ? 0 : link->line_slot + 1;
}

/* After the last line of a step: every line has been read, so the slot is freed. Sent lines need no post:
 * their flags announce them. */
PRIM_FN void ll_post(struct lane *lane, struct prim *prim) {
  prim_join(prim);
  FIFO_EACH_LINK(i, lane->work->recv_count, lane->step.recv_links) {
    struct link *link = &lane->recv[i];
    ll_advance(link);
    prim_store_head(prim, &link->sender->head, link->posted);
  }
  FIFO_EACH_LINK(i, lane->work->send_count, lane->step.send_links) {
    struct link *link = &lane->send[i];
    if (line_cleans(lane, link)) ll_clean(lane, prim, i);
    ll_advance(link);
  }
  lane->step_open = lane->step_held = false;
  lane->steps_done += 1;
  lane_signal_lists(lane, prim, lane->steps_done);
}

/* Waits for a condition: a lane that may wait polls until it holds or the lane is aborted; another one
 * returns. */
#define LL_AWAIT(condition) \
  while (!(condition))      \
    if (!waits || prim_aborted(prim)) return false

/* Does what ll_enabled() and ll_move() do, in the same order but in one loop, until the lane's lines end, or,
 * if `waits` is false, until it would have to wait. The next call continues there. Also returns false after
 * an abort or a mismatch. */
PRIM_FN bool ll_go(struct lane *lane, struct prim *prim, bool waits) {
  while (ll_next_step(lane)) {
    if (waits || !lane->step_open) {
      LL_AWAIT(lane_may_follow(lane));
      FIFO_EACH_LINK(i, lane->work->send_count, lane->step.send_links) {
        LL_AWAIT(link_has_slots(&lane->send[i], 1));
      }
      ll_open(lane, prim);
    }
    do {
      FIFO_EACH_LINK(i, lane->work->recv_count, lane->step.recv_links) {
        LL_AWAIT(ll_arrived(lane, i, prim));
      }
      if (lane->error != LANE_OK) return false;
      if (lane->line_count > 0) ll_carry(lane, prim);
    } while (lane->line_index < lane->line_count);
    ll_post(lane, prim);
  }
  lane_close(lane, prim);
  return true;
}

PRIM_FN void ll_move(struct lane *lane, struct prim *prim, uint32_t action) {
  if (action == LANE_END) {
    lane_close(lane, prim);
    return;
  }
  if (action == LANE_POST) {
    ll_post(lane, prim);
    return;
  }
  if (!lane->step_open) ll_open(lane, prim);
  if (lane->line_index < lane->line_count) ll_carry(lane, prim);
}

#endif
