/* ticks.h: a clock for records: the processor's fastest, monotonic on every system that this library runs on,
 * in its own units. Store two pairs of (ticks, os_time_ns()) with the ticks, from which a reader computes
 * nanoseconds. */
#ifndef TUTTI_BASE_TICKS_H
#define TUTTI_BASE_TICKS_H

#include <stdint.h>

#include "base/os.h"

static inline uint64_t ticks_now(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return os_time_ns();
#endif
}

#endif
