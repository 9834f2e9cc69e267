/* chunk.h: bytes -> channels -> loops -> chunks -> slices. Pure arithmetic on counts, the same on every rank;
 * no memory, no protocol state. Channels are split by NCCL's continuous byte distribution: a task has units,
 * units fill channels in order, so each channel gets a low part, a whole middle part or a high part of a
 * task. */
#ifndef TUTTI_SCHEDULE_CHUNK_H
#define TUTTI_SCHEDULE_CHUNK_H

#include "schedule/step.h"

PRIM_FN size_t size_min(size_t a, size_t b) { return a < b ? a : b; }
PRIM_FN size_t size_max(size_t a, size_t b) { return a > b ? a : b; }
PRIM_FN size_t size_div_up(size_t a, size_t b) { return (a + b - 1) / b; }
PRIM_FN size_t size_round_up(size_t a, size_t unit) { return size_div_up(a, unit) * unit; }
/* `power` is a power of two up to 16. */
PRIM_FN uint32_t size_log2(uint32_t power) {
  return (power >= 2) + (power >= 4) + (power >= 8) + (power >= 16);
}

/* The least traffic, in bytes, for which another channel is used. */
#define CHUNK_UNIT_TRAFFIC_BYTES 32768u

/* The share of each channel of one task, in elements: count_low on the first, count_middle on each between,
 * count_high on the last. A task on one channel has only a low part. */
struct chunk_split {
  uint32_t channel_low, channel_high;
  size_t count_low, count_middle, count_high;
};

/* The position among a plan's channels while tasks are assigned to them. */
struct chunk_cursor {
  uint32_t channel_index, channel_count;
  size_t used_bytes;   /* traffic already on the channel at the cursor */
  size_t budget_bytes; /* target traffic per channel: a multiple of 16 bytes */
};

/* Traffic of a task that counts towards the budget: at least one unit. `weight` is bytes moved per byte of
 * data. */
PRIM_FN size_t chunk_traffic_bytes(size_t bytes, size_t weight) {
  return size_max(bytes * weight, CHUNK_UNIT_TRAFFIC_BYTES);
}

PRIM_FN size_t chunk_budget_bytes(size_t traffic_bytes, uint32_t channel_count) {
  return size_round_up(size_div_up(traffic_bytes, channel_count), 16);
}

/* Units per channel, before conversion to elements. */
struct chunk_units {
  size_t low, middle, high;
  uint32_t middle_count;
};

/* Middle channels hold as much as the budget allows; units beyond the last channel are spread evenly. */
PRIM_FN void chunk_units_spread(struct chunk_units *units, size_t unit_count, size_t units_per_channel,
                                uint32_t channels_left) {
  size_t rest = unit_count - units->low;
  units->middle = units_per_channel;
  units->middle_count = (uint32_t)(rest / units_per_channel);
  units->high = rest % units_per_channel;
  if (units->middle_count + (units->high > 0) > channels_left && channels_left > 0) {
    units->middle = size_div_up(rest, channels_left);
    units->middle_count = (uint32_t)(rest / units->middle);
    units->high = rest % units->middle;
  }
  if (units->high == 0 && units->middle_count > 0) {
    units->high = units->middle;
    units->middle_count -= 1;
  }
}

/* Assigns `count` elements to the channels from the cursor on, and advances the cursor. */
PRIM_FN struct chunk_split chunk_split_next(struct chunk_cursor *cursor, size_t count, uint32_t element_bytes,
                                            size_t weight) {
  struct chunk_split split;
  struct chunk_units units = {0, 0, 0, 0};
  const size_t unit_bytes = size_round_up(size_div_up(CHUNK_UNIT_TRAFFIC_BYTES, weight), 16);
  const size_t unit_elements = unit_bytes / element_bytes;
  const size_t unit_count = size_max(1, size_div_up(count * element_bytes, unit_bytes));
  const size_t unit_traffic = unit_bytes * weight;
  const uint32_t last = cursor->channel_count - 1;
  size_t capacity = cursor->budget_bytes > cursor->used_bytes ? cursor->budget_bytes - cursor->used_bytes : 0;
  if (capacity == 0 && cursor->channel_index < last) {
    cursor->channel_index += 1;
    cursor->used_bytes = 0;
    capacity = cursor->budget_bytes;
  }
  units.low =
      cursor->channel_index == last ? unit_count : size_min(unit_count, size_div_up(capacity, unit_traffic));
  if (units.low < unit_count) {
    const size_t per_channel = size_min(unit_count, size_div_up(cursor->budget_bytes, unit_traffic));
    chunk_units_spread(&units, unit_count, per_channel, last - cursor->channel_index);
  }
  split.channel_low = cursor->channel_index;
  split.channel_high = cursor->channel_index + units.middle_count + (units.high > 0);
  split.count_low = units.low * unit_elements;
  split.count_middle = units.middle_count > 0 ? units.middle * unit_elements : 0;
  split.count_high = units.high * unit_elements;
  /* The last unit is partial: the last channel in use gives up the missing elements. */
  const size_t surplus = unit_count * unit_elements - count;
  if (units.high > 0) split.count_high -= surplus;
  else split.count_low -= surplus;
  if (units.high > 0) cursor->used_bytes = units.high * unit_traffic;
  else cursor->used_bytes += units.low * unit_traffic;
  cursor->channel_index = split.channel_high;
  return split;
}

/* Offset and count of one channel's share, elements. */
PRIM_FN void chunk_split_part(const struct chunk_split *split, uint32_t channel_index, size_t *offset,
                              size_t *count) {
  if (channel_index == split->channel_low) {
    *offset = 0;
    *count = split->count_low;
  } else {
    *offset = split->count_low + (channel_index - split->channel_low - 1) * split->count_middle;
    *count = channel_index == split->channel_high ? split->count_high : split->count_middle;
  }
}

/* Chunk of the loop that starts at `done` of `part_count` elements and moves chunks_per_loop chunks: the full
 * chunk, or in a short last loop an even share rounded up to 16 bytes (never above the full chunk). */
PRIM_FN size_t chunk_loop_count(size_t part_count, size_t done, size_t chunk_count, uint32_t chunks_per_loop,
                                uint32_t element_bytes) {
  const size_t rest = part_count - done;
  const size_t unit = element_bytes >= 16 ? 1 : 16 / element_bytes;
  if (rest >= chunk_count * chunks_per_loop) return chunk_count;
  return size_min(chunk_count, size_round_up(size_div_up(rest, chunks_per_loop), unit));
}

/* Chunk of the last loop of a part. */
PRIM_FN size_t chunk_last_count(size_t part_count, size_t chunk_count, uint32_t chunks_per_loop,
                                uint32_t element_bytes) {
  const size_t loop_count = chunk_count * chunks_per_loop;
  const size_t done = part_count == 0 ? 0 : (part_count - 1) / loop_count * loop_count;
  return chunk_loop_count(part_count, done, chunk_count, chunks_per_loop, element_bytes);
}

/* Chunk of the loop that begins with `rest` elements of the part left. `last_count` is chunk_last_count(),
 * computed ahead so that the loop needs no division. */
PRIM_FN size_t chunk_of_loop(size_t rest, size_t chunk_count, uint32_t chunks_per_loop, size_t last_count) {
  if (chunks_per_loop == 1) return size_min(chunk_count, rest);
  return rest >= chunk_count * chunks_per_loop ? chunk_count : last_count;
}

/* FIFO steps per pipelined chunk: half of the slots so that two chunks fit, at most four. */
PRIM_FN uint32_t chunk_steps_of_slots(uint32_t slots) { return slots >= 8 ? 4 : slots >= 4 ? 2 : 1; }

/* Elements of one slice of a chunk of `count` elements: an even share in units of 16 elements, at least
 * 1/32 of a slice's capacity so that tiny chunks are not cut, at most the capacity. Trailing slices may be
 * empty. */
PRIM_FN size_t chunk_slice_count(size_t count, uint32_t slices, size_t slice_capacity) {
  /* `slices` is a power of two: a shift instead of a division on the hot path. */
  const size_t share = (count + slices - 1) >> size_log2(slices);
  const size_t even = (share + 15) & ~(size_t)15;
  return size_min(size_max(even, slice_capacity / 32), slice_capacity);
}

#endif
