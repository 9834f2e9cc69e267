/* world_impl.h: what the world and the kernels (block.c) know of each other, and nobody else. All calls with
 * the world locked. */
#ifndef TUTTI_BACKENDS_EMU_WORLD_IMPL_H
#define TUTTI_BACKENDS_EMU_WORLD_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"

/* Starts the moves and draws anew; the world must be idle. */
void emu_world_restart(uint64_t seed);
bool emu_world_idle(void);

/* block.c: some lane of a started kernel has not ended. */
bool emu_lanes_waiting(void);
/* block.c: every such lane is stuck for good: report them and end their kernels with an error. */
void emu_lanes_stop_stuck(void);
/* block.c, threads mode: a number that grows whenever any lane gets on. */
uint64_t emu_lanes_progress(void);

/* threads mode, locked: carries out what is on the streams that the calling thread fed or waits for, as far
 * as it goes; true when something ended. May release the lock meanwhile. */
bool emu_streams_help(void);
/* Locked; releases the lock meanwhile. */
void emu_sleep(os_cond *wake, uint64_t timeout_ms);

bool emu_report_complete(void *argument); /* no report is being collected; argument is not used */

#endif
