/* net_ll.h: LL lines on the host: the other end of a kernel whose peer is behind a network. The arithmetic of
 * protocol/ll.h for code that is not a lane: 16 bytes contain 8 of data; each 8-byte word is {data, flag} and
 * valid by itself. A word is read by one load and written by one store, so data and flag are seen together;
 * nothing else orders them. Knows nothing of connections. */
#ifndef TUTTI_BACKENDS_NET_LL_H
#define TUTTI_BACKENDS_NET_LL_H

#include <string.h>

#include "backends/backend.h"

#define NET_LINE_DATA_BYTES 8u

static inline uint32_t net_line_flag(const struct device_net_step *step) {
  const uint64_t flag = step->line + 1;
  return (uint32_t)(step->flag_bits >= 32 ? flag : flag & (((uint64_t)1 << step->flag_bits) - 1));
}

static inline uint32_t net_line_count(const struct device_net_step *step) {
  return (uint32_t)((step->bytes + NET_LINE_DATA_BYTES - 1) / NET_LINE_DATA_BYTES);
}

/* Like line_cleans(): slots are rewritten before flags wrap. */
static inline bool net_line_cleans(const struct device_net_step *step, uint32_t slots) {
  const uint64_t half = (uint64_t)1 << (step->flag_bits - 1);
  return (step->line & (half - 1)) >= half - slots;
}

static inline uint64_t net_line_word(const uint64_t *words, size_t index) {
  return __atomic_load_n(&words[index], __ATOMIC_ACQUIRE);
}

/* True if all lines of the step have its flag. Starts with the last, which is the most likely to be
 * missing. */
static inline bool net_ll_ready(const uint8_t *lines, const struct device_net_step *step) {
  const uint64_t *words = (const uint64_t *)(const void *)lines;
  const uint32_t flag = net_line_flag(step);
  for (size_t i = 2 * (size_t)net_line_count(step); i-- > 0;)
    if ((uint32_t)(net_line_word(words, i) >> 32) != flag) return false;
  return true;
}

/* Reads the data of lines that are ready. */
static inline void net_ll_read(const uint8_t *lines, size_t bytes, uint8_t *data) {
  const uint64_t *words = (const uint64_t *)(const void *)lines;
  const size_t whole = bytes / NET_LINE_DATA_BYTES, rest = bytes % NET_LINE_DATA_BYTES;
  for (size_t line = 0; line < whole + (rest != 0); line++) {
    const uint64_t low = net_line_word(words, 2 * line), high = net_line_word(words, 2 * line + 1);
    const uint64_t value = (low & 0xffffffffu) | high << 32;
    memcpy(data + line * NET_LINE_DATA_BYTES, &value, line < whole ? NET_LINE_DATA_BYTES : rest);
  }
}

/* Both words of the last line are stored, even if only part of it is data. */
static inline void net_ll_write(uint8_t *lines, const struct device_net_step *step, const uint8_t *data) {
  uint64_t *words = (uint64_t *)(void *)lines;
  const uint64_t mark = (uint64_t)net_line_flag(step) << 32;
  const size_t whole = step->bytes / NET_LINE_DATA_BYTES, rest = step->bytes % NET_LINE_DATA_BYTES;
  for (size_t line = 0; line < whole + (rest != 0); line++) {
    uint64_t value = 0;
    memcpy(&value, data + line * NET_LINE_DATA_BYTES, line < whole ? NET_LINE_DATA_BYTES : rest);
    __atomic_store_n(&words[2 * line], (value & 0xffffffffu) | mark, __ATOMIC_RELEASE);
    __atomic_store_n(&words[2 * line + 1], value >> 32 | mark, __ATOMIC_RELEASE);
  }
}

/* The unused lines of a slot get the step's flag too. */
static inline void net_ll_clean(uint8_t *lines, uint32_t slot_bytes, const struct device_net_step *step) {
  uint64_t *words = (uint64_t *)(void *)lines;
  const uint64_t mark = (uint64_t)net_line_flag(step) << 32;
  for (size_t i = 2 * (size_t)net_line_count(step); i < slot_bytes / 8; i++)
    __atomic_store_n(&words[i], mark, __ATOMIC_RELEASE);
}

#endif
