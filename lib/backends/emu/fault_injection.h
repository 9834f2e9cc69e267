/* fault_injection.h: injects faults into lanes: a lane that stops, or a wrong step counter. Locked. */
#ifndef TUTTI_BACKENDS_EMU_FAULT_INJECTION_H
#define TUTTI_BACKENDS_EMU_FAULT_INJECTION_H

#include "backends/emu/block.h"

void emu_fault_restart(const struct emu_options *options);
/* To be called after each event of a lane. */
void emu_fault_inject(struct emu_lane *emu, uint32_t action);
/* This counter's value is an injected fault. */
bool emu_fault_holds(const uint64_t *counter);

#endif
