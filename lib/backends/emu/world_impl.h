/* world_impl.h: functions shared between world.c and the files of kernels, services and networks. The world
 * is locked in all of them. */
#ifndef TUTTI_BACKENDS_EMU_WORLD_IMPL_H
#define TUTTI_BACKENDS_EMU_WORLD_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"
struct emu_options;

/* Resets the event count and the random numbers; the world must be idle. */
void emu_world_restart(uint64_t seed);
bool emu_world_idle(void);
/* A communicator that joined an order of events (order.h) closes. */
void emu_world_leave_order(void);
void emu_world_release(void); /* the waiters whose conditions hold now */
void emu_world_take_turns(bool in_turns);
void emu_world_callers(uint32_t count); /* tutti_emu_callers(); not locked */
/* guarded mode: runs events until no actor can run (true), or `event_count` were run. Reports no deadlock. */
bool emu_world_settle(uint64_t event_count);
/* service.c: draws the priorities of the services again. */
void emu_services_restart(void);
/* network.c: resets the network's random numbers and its fault. */
void emu_network_restart(const struct emu_options *options);

/* In the child of a fork: the threads of blocks, streams and graphs do not exist there. */
void emu_pool_forked(void);
void emu_streams_forked(void);

/* report.c: an open rank uses the device; its name is written to `text`. */
bool emu_device_has_rank(uint32_t device_index, char *text, size_t text_bytes);

/* block.c: a lane of a started kernel has not ended. */
bool emu_lanes_waiting(void);
/* block.c: one of these lanes is linked to another process, so that no event here does not mean a deadlock.
 */
bool emu_lanes_outside(void);
/* Ranks per core in the largest communicator with kernels under way; at least 1. */
uint32_t emu_lanes_crowd(void);
/* block.c, guarded mode: wakes the lanes that can continue because another process has stored something; true
 * if there was one. */
bool emu_lanes_look(void);
/* report.c: warns that nothing has moved for long and lists what the lanes wait for; the wait continues. */
void emu_report_slow(void);
/* block.c: a deadlock: reports every waiting lane and ends its kernel with an error. */
void emu_lanes_stop_stuck(void);
/* block.c: writes the recorder's rows of the waiting lanes. */
void emu_lanes_record(void);
/* Notes in the records which process keeps all others from running; 0: none. */
void emu_lanes_record_awaited(uint32_t process);
/* The two parts of emu_lanes_stop_stuck(). The first, in report.c, logs what every waiting lane waits for,
 * and the command that repeats the run; in threads mode each lane adds to it when it is stopped. */
void emu_lanes_report_stuck(void);
void emu_lanes_stop(void);
/* Traces the errors with which emu_lanes_stop() will stop kernels of this process. Another process's failure,
 * which arrives at any time, may stop them before. */
void emu_lanes_trace_stop(void);
/* service.c: wakes the services that wait for something outside the world; false if there are none. world.c:
 * something came from outside. */
bool emu_services_look_outside(void);
bool emu_services_are_outside(void); /* there are such services; wakes none */
void emu_world_outside_moved(void);
uint32_t emu_drive_idle(void);         /* see drive_idle of backend.h */
bool emu_keeps_time(void);             /* see device_ops.def */
uint64_t emu_records_progress(void);   /* see device_ops.def */
void emu_world_outside_wait(int more); /* see outside_wait of backend.h */
/* block.c, threads mode: a started kernel has connections to other processes, which it may be waiting for. */
bool emu_lanes_reach_out(void);
/* block.c, threads mode: a number that grows whenever a lane makes progress. */
uint64_t emu_lanes_progress(void);

/* threads mode: executes operations of the streams that the calling thread enqueued to or waits for, without
 * blocking; true if one ended. May release the lock meanwhile. */
bool emu_streams_help(void);
/* Releases the lock while it sleeps. */
void emu_sleep(os_cond *wake, uint64_t timeout_ms);

bool emu_report_complete(void *argument); /* no report is being collected; `argument` is unused */

#endif
