/* net_ll.h: LL lines on the host: the other end of a kernel whose peer is behind a network. A half of a line
 * (protocol/line.h) is read by one load and written by one store; nothing else orders halves. Knows nothing
 * of connections. */
#ifndef TUTTI_BACKENDS_NET_LL_H
#define TUTTI_BACKENDS_NET_LL_H

#include <string.h>

#include "backends/backend.h"
#include "protocol/line.h"
#include "schedule/chunk.h"

static inline uint64_t net_line_flag(const struct device_net_step *step) {
  return line_flag_at(step->line, line_flag_mask(step->flag_bits));
}

static inline uint32_t net_line_count(const struct device_net_step *step) {
  return line_count_of(LINE_LL, (uint32_t)step->bytes);
}

static inline uint64_t net_line_half(const uint64_t *words, size_t index) {
  return __atomic_load_n(&words[index], __ATOMIC_ACQUIRE);
}

/* True if all lines of the step have its flag. Starts with the last, which is the most likely to be
 * missing. */
static inline bool net_ll_ready(const uint8_t *lines, const struct device_net_step *step) {
  const uint64_t *words = (const uint64_t *)(const void *)lines;
  const uint64_t flag = net_line_flag(step);
  for (size_t i = 2 * (size_t)net_line_count(step); i-- > 0;)
    if (!line_half_has(net_line_half(words, i), flag)) return false;
  return true;
}

/* Reads the data of lines that are ready. */
static inline void net_ll_read(const uint8_t *lines, size_t bytes, uint8_t *data) {
  const uint64_t *words = (const uint64_t *)(const void *)lines;
  for (size_t line = 0; 8 * line < bytes; line++) {
    const uint64_t low = net_line_half(words, 2 * line), high = net_line_half(words, 2 * line + 1);
    const uint64_t value = line_word(low, high);
    memcpy(data + 8 * line, &value, size_min(8, bytes - 8 * line));
  }
}

/* Both words of the last line are stored, even if only part of it is data. */
static inline void net_ll_write(uint8_t *lines, const struct device_net_step *step, const uint8_t *data) {
  uint64_t *words = (uint64_t *)(void *)lines;
  const uint64_t flag = net_line_flag(step);
  for (size_t line = 0; 8 * line < step->bytes; line++) {
    uint64_t value = 0;
    memcpy(&value, data + 8 * line, size_min(8, step->bytes - 8 * line));
    __atomic_store_n(&words[2 * line], line_first_half(value, flag), __ATOMIC_RELEASE);
    __atomic_store_n(&words[2 * line + 1], line_second_half(value, flag), __ATOMIC_RELEASE);
  }
}

/* The unused lines of a slot get the step's flag too. */
static inline void net_ll_clean(uint8_t *lines, uint32_t slot_bytes, const struct device_net_step *step) {
  uint64_t *words = (uint64_t *)(void *)lines;
  const uint64_t half = line_first_half(0, net_line_flag(step));
  for (size_t i = 2 * (size_t)net_line_count(step); i < slot_bytes / 8; i++)
    __atomic_store_n(&words[i], half, __ATOMIC_RELEASE);
}

#endif
