/* fault_injection.h: lanes to which something happens that no rule of theirs allows for. Locked. */
#ifndef TUTTI_BACKENDS_EMU_FAULT_INJECTION_H
#define TUTTI_BACKENDS_EMU_FAULT_INJECTION_H

#include "backends/emu/block.h"

void emu_fault_restart(const struct emu_options *options);
/* Behind each event of a lane. */
void emu_fault_inject(struct emu_lane *emu, uint32_t action);
/* This counter shows what it does because it was asked for. */
bool emu_fault_holds(const uint64_t *counter);

#endif
