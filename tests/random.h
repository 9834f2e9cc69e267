/* random.h: the random numbers that tests draw by seed: Knuth's linear congruential generator of 64 bits, the
 * same on every machine. Any state is a seed. */
#ifndef TUTTI_TESTS_RANDOM_H
#define TUTTI_TESTS_RANDOM_H

#include <stdint.h>

/* Advances the state and returns it; its low bits repeat early. */
static inline uint64_t random_step(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *state;
}

/* A number of 31 bits. */
static inline uint32_t random_bits(uint64_t *state) { return (uint32_t)(random_step(state) >> 33); }

/* A number below `bound`. */
static inline uint32_t random_below(uint64_t *state, uint32_t bound) { return random_bits(state) % bound; }

#endif
