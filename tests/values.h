/* values.h: the buffer contents of tests without the API: inputs that are a function of (rank, index, number
 * of the call), small enough for every type to hold the sums of eight, and guard bytes. */
#ifndef TUTTI_TESTS_VALUES_H
#define TUTTI_TESTS_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

#define GUARD_BYTES 64
#define GUARD_BYTE 0xa5
#define STALE_BYTE 0xee /* initial contents of an output */
#define VALUE_RANGE 23  /* eight of them add up to less than 256: exact in every type that is used */

static inline double value_input(uint64_t sequence, uint32_t rank, size_t index) {
  return (double)((rank * 7 + index * 3 + sequence * 5) % VALUE_RANGE);
}

static inline void value_store(uint8_t dtype, uint8_t *at, double value) {
  const uint64_t bits = kernel_from_double(dtype, value);
  memcpy(at, &bits, kernel_type_bytes(dtype));
}

static inline double value_load(uint8_t dtype, const uint8_t *at) {
  uint64_t bits = 0;
  memcpy(&bits, at, kernel_type_bytes(dtype));
  return kernel_to_double(dtype, bits);
}

static inline bool guard_is_intact(const uint8_t *guard) {
  for (size_t i = 0; i < GUARD_BYTES; i++)
    if (guard[i] != GUARD_BYTE) return false;
  return true;
}

#endif
