/* hash.h: a hash of bytes, and a stream of pseudo-random numbers from a seed. Results are equal on all
 * machines of one byte order, so processes may compare them. Not for secrets; base/handshake.h has keyed
 * hashes. */
#ifndef TUTTI_BASE_HASH_H
#define TUTTI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HASH_SEED UINT64_C(0xcbf29ce484222325)
#define HASH_STEP UINT64_C(0x9e3779b97f4a7c15) /* 2^64 over the golden ratio */

/* Continues a hash, which starts as HASH_SEED: FNV-1a (Fowler, Noll, Vo; RFC 9923). */
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
  const uint8_t *byte = (const uint8_t *)bytes;
  for (size_t i = 0; i < count; i++) hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static inline uint64_t hash_text(uint64_t hash, const char *text) {
  return hash_bytes(hash, text, strlen(text));
}

/* Adds one number to a hash, at the cost of one multiplication. */
static inline uint64_t hash_mix(uint64_t hash, uint64_t value) {
  const uint64_t mixed = (hash ^ value) * HASH_STEP;
  return mixed ^ (mixed >> 29);
}

/* Every bit of the result depends on every bit of the value: the second half of splitmix64 (Steele, Lea,
 * Flood: Fast Splittable Pseudorandom Number Generators, 2014, with Stafford's constants). */
static inline uint64_t hash_scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
  return value ^ (value >> 31);
}

/* The next number of the stream with this state: splitmix64. */
static inline uint64_t hash_draw(uint64_t *state) { return hash_scramble(*state += HASH_STEP); }

#endif
