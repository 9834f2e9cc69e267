/* rma.h: puts and waits for signals, as the world and the reports see them. All locked. */
#ifndef TUTTI_BACKENDS_EMU_RMA_H
#define TUTTI_BACKENDS_EMU_RMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/backend.h"

ncclResult_t emu_put(struct device_comm *comm, const struct device_put *put, device_stream stream);
ncclResult_t emu_await(struct device_comm *comm, const struct plan_call *call,
                       const struct device_await *awaits, uint32_t await_count, device_stream stream);

/* conn_share.c: with ranks of other processes (process_ops.def). */
bool emu_puts_between(void);
ncclResult_t emu_signals_export(struct device_comm *comm, struct device_conn_handle *handle);
ncclResult_t emu_signals_import(struct device_comm *comm, uint32_t peer,
                                const struct device_conn_handle *handle);
void emu_window_map(struct device_comm *comm, uint32_t peer, uint64_t address, size_t bytes, void **mapped);
/* The rank's own counters are there; false: out of memory. */
bool emu_signals_have(struct device_comm *comm);

/* A call waits for a signal of another process, which is not in one order of events with this one; with
 * `ordered`, also if it is. */
bool emu_rma_outside(bool ordered);
/* Other processes may have made signals: wakes the calls that can go on; true if there was one. */
bool emu_rma_look(void);
/* One at the head of its stream waits for signals. */
bool emu_rma_waiting(void);
/* Grows when one has ended. */
uint64_t emu_rma_progress(void);
/* What the next one that waits, from *place on, waits for; false: there are no more. *place begins as 0. */
bool emu_rma_report(uint32_t *place, char *out, size_t out_bytes);
/* A rank whose calls wait and that is not aborted; NULL: none. */
struct device_comm *emu_rma_stuck(void);
/* Adds what the rank's calls wait for. */
void emu_rma_stall(const struct device_comm *comm, struct device_stall *stall);

#endif
