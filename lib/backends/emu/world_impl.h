/* world_impl.h: what the world and the kernels (block.c) know of each other, and nobody else. All calls with
 * the world locked. */
#ifndef TUTTI_BACKENDS_EMU_WORLD_IMPL_H
#define TUTTI_BACKENDS_EMU_WORLD_IMPL_H

#include <stdbool.h>
#include <stdint.h>

/* Starts the moves and draws anew; the world must be idle. */
void emu_world_restart(uint64_t seed);
bool emu_world_idle(void);

/* In the child of a fork: streams and graphs have no threads yet. */
void emu_streams_forked(void);

/* block.c: some lane of a started kernel has not ended. */
bool emu_lanes_waiting(void);
/* block.c: one of them is linked to another process: that nothing can move here proves nothing. */
bool emu_lanes_outside(void);
/* block.c, guarded mode: wakes those that can go on by what came from there; true when there was one. */
bool emu_lanes_look(void);
/* report.c: what they wait for, as a warning: nothing has moved for long, and the wait goes on. */
void emu_report_slow(void);
/* block.c: every such lane is stuck for good: report them and end their kernels with an error. */
void emu_lanes_stop_stuck(void);
/* block.c, threads mode: a number that grows whenever any lane gets on. */
uint64_t emu_lanes_progress(void);

#endif
