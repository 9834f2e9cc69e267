/* p2p.h: point-to-point: the round in which two ranks communicate, the channels that carry a message, how
 * it is cut, and the steps of each half. Both ends compute the same from the same inputs; no memory, no
 * waiting. */
#ifndef TUTTI_SCHEDULE_P2P_H
#define TUTTI_SCHEDULE_P2P_H

#include "schedule/chunk.h"
#include "schedule/work.h"

/* Rounds per batch: this many sends and receives may wait for one another on one channel. */
#define P2P_BATCH_ROUNDS 4
/* Bytes per part from which on a part gets a channel of its own. */
#define P2P_PART_WORTH_BYTES 262144
/* Parts of a message begin at multiples of this, bytes. */
#define P2P_PART_ALIGN_BYTES 4096
/* Bytes of an LL part that a channel carries in little more time than one line; and bytes from which on twice
 * as many channels pay off. */
#define P2P_LL_PART_BYTES 4096
#define P2P_LL_PART_LONG_BYTES 16384
/* Maximum number of parts: the works of a send and a receive then fit in the launch arguments. */
#define P2P_LL_PARTS 16

/* Ranks are in groups of group_size. A round pairs groups at a distance from the quadratic sequence, and
 * members at every offset. In round 0 a rank pairs with itself; there are exactly rank_count rounds, and each
 * peer occurs in exactly one. */
struct p2p_schedule {
  uint32_t rank, rank_count, group_size;
  uint32_t round, group_delta, group_turn, member_delta;
};

/* group_size must divide rank_count; one node: group_size = rank_count. */
PRIM_FN void p2p_schedule_begin(struct p2p_schedule *it, uint32_t rank, uint32_t rank_count,
                                uint32_t group_size) {
  it->rank = rank;
  it->rank_count = rank_count;
  it->group_size = group_size;
  it->round = it->group_delta = it->group_turn = it->member_delta = 0;
}

PRIM_FN uint32_t p2p_power_of_two_up(uint32_t value) {
  uint32_t power = 1;
  while (power < value) power *= 2;
  return power;
}

/* The next group distance: d <- (d + k) mod P, with P the power of two at or above the number of groups;
 * distances that are too large are skipped. */
PRIM_FN void p2p_group_advance(struct p2p_schedule *it) {
  const uint32_t groups = it->rank_count / it->group_size;
  const uint32_t modulus = p2p_power_of_two_up(groups);
  do {
    it->group_turn += 1;
    it->group_delta = (it->group_delta + it->group_turn) % modulus;
  } while (it->group_delta >= groups);
}

/* The peers that this rank sends to and receives from in the next round; false after the last. */
PRIM_FN bool p2p_schedule_next(struct p2p_schedule *it, uint32_t *round, uint32_t *send_peer,
                               uint32_t *recv_peer) {
  if (it->round == it->rank_count) return false;
  const uint32_t size = it->group_size, groups = it->rank_count / size;
  const uint32_t group = it->rank / size, member = it->rank % size;
  *round = it->round;
  *send_peer = (group + it->group_delta) % groups * size + (member + it->member_delta) % size;
  *recv_peer = (group + groups - it->group_delta) % groups * size + (member + size - it->member_delta) % size;
  it->round += 1;
  it->member_delta += 1;
  if (it->member_delta == size) {
    it->member_delta = 0;
    if (it->round < it->rank_count) p2p_group_advance(it);
  }
  return true;
}

PRIM_FN uint32_t p2p_bit_reverse(uint32_t value, uint32_t power) {
  uint32_t reversed = 0;
  for (uint32_t bit = 1; bit < power; bit *= 2) {
    reversed = reversed * 2 + (value & 1);
    value /= 2;
  }
  return reversed;
}

/* Channel of a message's part in a round, on one node: the round's number, bit-reversed to keep consecutive
 * rounds far apart. */
PRIM_FN uint32_t p2p_channel(uint32_t round, uint32_t part_index, uint32_t channel_count) {
  return (p2p_bit_reverse(round % channel_count, channel_count) + part_index) % channel_count;
}

/* The number of channels of a message, and the bytes of each part but the last. */
struct p2p_split {
  uint32_t part_count;
  size_t part_bytes;
};

PRIM_FN struct p2p_split p2p_split_of(size_t bytes, uint32_t part_count) {
  struct p2p_split split;
  split.part_count = part_count;
  split.part_bytes = size_round_up(size_div_up(bytes, part_count), P2P_PART_ALIGN_BYTES);
  return split;
}

/* Channels per message if every rank sends one to every other rank. */
PRIM_FN uint32_t p2p_channels_share(uint32_t rank_count, uint32_t channel_count, uint32_t channels_per_peer) {
  uint32_t share = channels_per_peer;
  while (share > 1 && (size_t)share * rank_count > channel_count) share /= 2;
  return share;
}

PRIM_FN struct p2p_split p2p_message_split(size_t bytes, size_t chunk_bytes, uint32_t rank_count,
                                           uint32_t channel_count, uint32_t channels_per_peer) {
  const size_t part_min = size_max(1, chunk_bytes / 8), part_max = 32 * chunk_bytes;
  const uint32_t share = p2p_channels_share(rank_count, channel_count, channels_per_peer);
  uint32_t parts = (uint32_t)size_min(share, size_max(1, size_div_up(bytes, part_min)));
  while (parts <= channels_per_peer / 2 && size_div_up(bytes, parts) > part_max) parts *= 2;
  /* Long messages fill all channels anyway: each channel carries a part of every message, so the load is
   * even. */
  if (bytes / P2P_PART_WORTH_BYTES >= channels_per_peer) parts = channels_per_peer;
  return p2p_split_of(bytes, parts);
}

/* The split of a message over LL. Its time is that of its busiest channel, so it has more and shorter parts,
 * over more than its share of the channels: most of those are rarely as busy. */
PRIM_FN struct p2p_split p2p_ll_split(size_t bytes, uint32_t rank_count, uint32_t channel_count,
                                      uint32_t channels_per_peer) {
  const uint32_t share = p2p_channels_share(rank_count, channel_count, channels_per_peer);
  const uint32_t most = (uint32_t)size_min(P2P_LL_PARTS, size_min(channels_per_peer, 2 * share));
  const uint32_t parts = (uint32_t)size_min(most, size_max(1, size_div_up(bytes, P2P_LL_PART_BYTES)));
  if (size_div_up(bytes, parts) <= P2P_LL_PART_LONG_BYTES) return p2p_split_of(bytes, parts);
  return p2p_split_of(bytes, (uint32_t)size_min(P2P_LL_PARTS, size_min(channels_per_peer, 4 * share)));
}

PRIM_FN void p2p_part(const struct p2p_split *split, size_t bytes, uint32_t part_index, size_t *offset,
                      size_t *count) {
  *offset = size_min(bytes, part_index * split->part_bytes);
  *count = size_min(bytes - *offset, split->part_bytes);
}

/* The steps of one half of a message, or of a copy within the rank: one chunk after another. An empty message
 * has one step. */
struct p2p_iter {
  size_t done;
  bool ended;
};

PRIM_FN void p2p_begin(struct p2p_iter *it) {
  it->done = 0;
  it->ended = false;
}

PRIM_FN bool p2p_next(struct p2p_iter *it, const struct work *work, struct step *step) {
  if (it->ended) return false;
  step->chunk_index = (uint32_t)(it->done / size_max(1, work->chunk_count));
  step->in_offset = step->out_offset = work->part_offset + it->done;
  step->count = size_min(work->chunk_count, work->part_count - it->done);
  step->recv_links = work->func == FUNC_RECV ? 1 : 0;
  step->send_links = work->func == FUNC_SEND ? 1 : 0;
  step->own_index = 0;
  switch (work->func) {
    case FUNC_SEND: step->flags = STEP_COPY_IN | STEP_SEND | STEP_SEND_FINAL; break;
    case FUNC_RECV: step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL; break;
    default: step->flags = STEP_COPY_IN | STEP_KEEP | STEP_POST_OP; break;
  }
  it->done += step->count;
  it->ended = it->done >= work->part_count;
  return true;
}

#endif
