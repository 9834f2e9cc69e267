/* mishap.h: lanes to which something happens that no rule of theirs allows for. Locked. */
#ifndef TUTTI_BACKENDS_EMU_MISHAP_H
#define TUTTI_BACKENDS_EMU_MISHAP_H

#include "backends/emu/block.h"

void emu_mishap_restart(const struct emu_options *options);
/* Behind each move of a lane. */
void emu_mishap_look(struct emu_lane *emu, uint32_t action);
/* This counter shows what it does because it was asked for. */
bool emu_mishap_holds(const uint64_t *counter);

#endif
