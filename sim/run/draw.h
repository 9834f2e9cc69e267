/* draw.h: the settings of the runs of a sweep: a seed, and keys of TUTTI_EMU with values drawn from it. */
#ifndef TUTTI_SIM_RUN_DRAW_H
#define TUTTI_SIM_RUN_DRAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DRAW_KEYS = 10, DRAW_TEXT_BYTES = 1024 };

struct draw {
  uint64_t seed;
  uint8_t values[DRAW_KEYS]; /* of each key: 0 is the default, higher numbers are farther from it */
};

/* The settings of a seed's run. Seeds up to 8 and every fourth one after them keep the defaults. Keys that
 * `own`, the user's TUTTI_EMU, has are left alone. */
struct draw draw_settings(uint64_t seed, const char *own);
bool draw_is_default(const struct draw *draw);

/* The drawn keys, "slots=2,lag=50"; "" if there are none. */
void draw_keys_text(const struct draw *draw, char *out, size_t out_bytes);
/* TUTTI_EMU of the run: the user's keys, then the drawn ones. */
void draw_emu_text(const struct draw *draw, const char *own, char *out, size_t out_bytes);

/* The next simpler settings to try, of which `step` counts up from 0: none but the seed, then without one key
 * each, then each key nearer to its default. False after the last. */
bool draw_simpler(const struct draw *draw, uint32_t step, struct draw *simpler);

#endif
