/* net_lines.h: lines of LL as the host sees them: the other end of a kernel whose peer lies behind a network.
 * The arithmetic of protocol/lines.h, for whoever is not a lane: 16 bytes carry 8 of data, each word of 8
 * bytes is {data, flag} and whole by itself. A word is read in one load and written in one store, so data and
 * flag are seen together, and nothing else orders them. Knows no connection. */
#ifndef TUTTI_BACKENDS_NET_LINES_H
#define TUTTI_BACKENDS_NET_LINES_H

#include <string.h>

#include "backends/backend.h"

#define NET_LINE_BYTES 16u
#define NET_LINE_DATA_BYTES 8u

static inline uint32_t net_line_flag(const struct device_net_step *step) {
  const uint64_t flag = step->line + 1;
  return (uint32_t)(step->flag_bits >= 32 ? flag : flag & (((uint64_t)1 << step->flag_bits) - 1));
}

static inline uint32_t net_line_count(const struct device_net_step *step) {
  return (uint32_t)((step->bytes + NET_LINE_DATA_BYTES - 1) / NET_LINE_DATA_BYTES);
}

/* As line_cleans(): slots are rewritten before flags come around. */
static inline bool net_line_cleans(const struct device_net_step *step, uint32_t slots) {
  const uint64_t half = (uint64_t)1 << (step->flag_bits - 1);
  return (step->line & (half - 1)) >= half - slots;
}

static inline uint64_t net_line_word(const uint64_t *words, size_t index) {
  return __atomic_load_n(&words[index], __ATOMIC_ACQUIRE);
}

/* All lines of the step carry its flag. The last is the likeliest to be missing. */
static inline bool net_lines_ready(const uint8_t *lines, const struct device_net_step *step) {
  const uint64_t *words = (const uint64_t *)(const void *)lines;
  const uint32_t flag = net_line_flag(step);
  for (size_t i = 2 * (size_t)net_line_count(step); i-- > 0;)
    if ((uint32_t)(net_line_word(words, i) >> 32) != flag) return false;
  return true;
}

/* The data of lines that are ready. */
static inline void net_lines_read(const uint8_t *lines, size_t bytes, uint8_t *data) {
  const uint64_t *words = (const uint64_t *)(const void *)lines;
  size_t at = 0;
  for (size_t i = 0; at < bytes; i++, at += 4) {
    const uint32_t value = (uint32_t)net_line_word(words, i);
    memcpy(data + at, &value, bytes - at < 4 ? bytes - at : 4);
  }
}

/* Both words of a last line are stored, however little of it is data. */
static inline void net_lines_write(uint8_t *lines, const struct device_net_step *step, const uint8_t *data) {
  uint64_t *words = (uint64_t *)(void *)lines;
  const uint64_t mark = (uint64_t)net_line_flag(step) << 32;
  const size_t count = 2 * (size_t)net_line_count(step);
  for (size_t i = 0; i < count; i++) {
    const size_t at = 4 * i, left = at < step->bytes ? step->bytes - at : 0;
    uint32_t value = 0;
    memcpy(&value, data + at, left < 4 ? left : 4);
    __atomic_store_n(&words[i], value | mark, __ATOMIC_RELEASE);
  }
}

/* The lines of a slot that the step does not use take its flag too. */
static inline void net_lines_clean(uint8_t *lines, uint32_t slot_bytes, const struct device_net_step *step) {
  uint64_t *words = (uint64_t *)(void *)lines;
  const uint64_t mark = (uint64_t)net_line_flag(step) << 32;
  for (size_t i = 2 * (size_t)net_line_count(step); i < slot_bytes / 8; i++)
    __atomic_store_n(&words[i], mark, __ATOMIC_RELEASE);
}

#endif
