/* draw.c: see draw.h. No setting makes a right program fail: not slots=1, with which no ring can run; nor
 * devices, nodes or modes, on which the program may depend. */
#include "run/draw.h"

#include <string.h>

#include "base/hash.h"
#include "base/text.h"

enum { VALUES_MOST = 3, DEFAULT_SEEDS = 8, DEFAULT_EVERY = 4, DRAWN_ONE_IN = 3 };

static const struct key {
  const char *name;
  const char *values[VALUES_MOST]; /* from the nearest to the default to the farthest; then NULL */
} keys[DRAW_KEYS] = {
    {"slots", {"4", "3", "2"}},
    {"chunk", {"64K", "8K", "1K"}},
    {"channels", {"1", "3", "4"}},
    {"lag", {"10", "50", "90"}},
    {"rule", {"round_robin", "priority", NULL}},
    {"depth", {"2", "4", NULL}},
    {"span", {"16", "1", NULL}},
    {"flag_bits", {"16", "8", NULL}},
    {"direct", {"0", NULL, NULL}},
    {"weak", {"1", NULL, NULL}},
};

static uint8_t value_count(const struct key *key) {
  uint8_t count = 0;
  while (count < VALUES_MOST && key->values[count] != NULL) count++;
  return count;
}

/* True if the list has the key. */
static bool list_has(const char *list, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = list; *at != '\0'; at += strcspn(at, ","), at += *at == ',')
    if (strncmp(at, name, length) == 0 && at[length] == '=') return true;
  return false;
}

struct draw draw_settings(uint64_t seed, const char *own) {
  struct draw draw = {.seed = seed};
  uint64_t state = seed;
  if (seed <= DEFAULT_SEEDS || seed % DEFAULT_EVERY == 0) return draw;
  for (uint32_t i = 0; i < DRAW_KEYS; i++) {
    const uint64_t wanted = hash_draw(&state), value = hash_draw(&state);
    if (wanted % DRAWN_ONE_IN == 0 && !list_has(own, keys[i].name))
      draw.values[i] = (uint8_t)(1 + value % value_count(&keys[i]));
  }
  return draw;
}

bool draw_is_default(const struct draw *draw) {
  for (uint32_t i = 0; i < DRAW_KEYS; i++)
    if (draw->values[i] != 0) return false;
  return true;
}

void draw_keys_text(const struct draw *draw, char *out, size_t out_bytes) {
  out[0] = '\0';
  for (uint32_t i = 0; i < DRAW_KEYS; i++)
    if (draw->values[i] != 0)
      text_append(out, out_bytes, "%s%s=%s", out[0] != '\0' ? "," : "", keys[i].name,
                  keys[i].values[draw->values[i] - 1]);
}

void draw_emu_text(const struct draw *draw, const char *own, char *out, size_t out_bytes) {
  char drawn[DRAW_TEXT_BYTES];
  draw_keys_text(draw, drawn, sizeof drawn);
  out[0] = '\0';
  text_append(out, out_bytes, "%s%s%s", own, own[0] != '\0' && drawn[0] != '\0' ? "," : "", drawn);
}

bool draw_simpler(const struct draw *draw, uint32_t step, struct draw *simpler) {
  *simpler = *draw;
  if (step == 0) {
    memset(simpler->values, 0, sizeof simpler->values);
    return true;
  }
  if (step > 2 * DRAW_KEYS) return false;
  const uint32_t key = (step - 1) % DRAW_KEYS;
  if (step <= DRAW_KEYS) simpler->values[key] = 0;
  else if (simpler->values[key] > 0) simpler->values[key] -= 1;
  return true;
}
