/* world_impl.h: what the world and the kernels (block.c) know of each other, and nobody else. All calls with
 * the world locked. */
#ifndef TUTTI_BACKENDS_EMU_WORLD_IMPL_H
#define TUTTI_BACKENDS_EMU_WORLD_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"
struct emu_options;

/* Starts the events and draws anew; the world must be idle. */
void emu_world_restart(uint64_t seed);
bool emu_world_idle(void);
/* guarded mode, locked: runs events until nothing can move any more, or so many were made; true when nothing
 * can. No verdict, whoever waits. */
bool emu_world_settle(uint64_t event_count);
/* service.c: those that are there draw anew. */
void emu_services_restart(void);
/* network.c: starts the network's draws and its fault anew. */
void emu_network_restart(const struct emu_options *options);

/* In the child of a fork: streams, graphs and blocks have no threads yet. */
void emu_pool_forked(void);
void emu_streams_forked(void);

/* block.c: some lane of a started kernel has not ended. */
bool emu_lanes_waiting(void);
/* block.c: one of them is linked to another process: that nothing can move here proves nothing. */
bool emu_lanes_outside(void);
/* Ranks that a core has to serve, in the largest communicator whose kernels are under way; at least 1. */
uint32_t emu_lanes_crowd(void);
/* block.c, guarded mode: wakes those that can go on by what came from there; true when there was one. */
bool emu_lanes_look(void);
/* report.c: what they wait for, as a warning: nothing has moved for long, and the wait goes on. */
void emu_report_slow(void);
/* block.c: every such lane is stuck for good: report them and end their kernels with an error. */
void emu_lanes_stop_stuck(void);
/* service.c: asks the services that wait for something outside of the world to look again; false when there
 * is none. And world.c: something came from there. */
bool emu_services_look_outside(void);
void emu_world_outside_moved(void);
uint32_t emu_drive_idle(void);         /* see drive_idle of backend.h */
bool emu_keeps_time(void);             /* see keeps_time of backend.h */
void emu_world_outside_wait(int more); /* see outside_wait of backend.h */
/* block.c, threads mode: a kernel that has started has connections that lead out of the process: what it
 * waits for need not be here. */
bool emu_lanes_reach_out(void);
/* block.c, threads mode: a number that grows whenever any lane gets on. */
uint64_t emu_lanes_progress(void);

/* threads mode, locked: carries out what is on the streams that the calling thread fed or waits for, as far
 * as it goes; true when something ended. May release the lock meanwhile. */
bool emu_streams_help(void);
/* Locked; releases the lock meanwhile. */
void emu_sleep(os_cond *wake, uint64_t timeout_ms);

bool emu_report_complete(void *argument); /* no report is being collected; argument is not used */

#endif
