/* record.h: the emulator's part of the recorder's tables (struct recorder_live): how many kernels were
 * launched, started and ended, and the positions of lanes that have waited for long. A kernel that never
 * waits costs a few stores. */
#ifndef TUTTI_BACKENDS_EMU_RECORD_H
#define TUTTI_BACKENDS_EMU_RECORD_H

#include "backends/emu/block.h"
#include "base/ticks.h"

static inline void emu_record_store(uint64_t *counter, uint64_t value) {
  __atomic_store_n(counter, value, __ATOMIC_RELEASE);
}

/* Kernels were enqueued, or removed before they started. Locked. */
static inline void emu_record_counts(const struct device_comm *comm) {
  if (comm->live.comm == NULL) return;
  comm->live.comm->counts = 1;
  emu_record_store(&comm->live.comm->launched, comm->launches);
}

/* Not counted after an abort: such a kernel does no work. */
static inline void emu_record_started(const struct device_comm *comm, uint64_t count) {
  if (comm->live.comm == NULL || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0) return;
  emu_record_store(&comm->live.comm->started, count);
}

/* The kernel that has started was launched by a graph. */
static inline void emu_record_graph(const struct device_comm *comm, uint64_t sequence) {
  struct record_comm *noted = comm->live.comm;
  if (noted == NULL || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0) return;
  __atomic_store_n(&noted->graph_runs, noted->graph_runs + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&noted->graph_operation, (uint32_t)sequence + 1, __ATOMIC_RELEASE);
}

static inline void emu_record_graph_ended(const struct device_comm *comm) {
  if (comm->live.comm == NULL || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0) return;
  __atomic_store_n(&comm->live.comm->graph_operation, 0, __ATOMIC_RELEASE);
}

/* Not counted after an abort: the kernel was stopped and has not completed. */
static inline void emu_record_ended(const struct device_comm *comm, uint64_t count) {
  if (comm->live.comm == NULL || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0) return;
  emu_record_store(&comm->live.comm->moved_ticks, ticks_now());
  emu_record_store(&comm->live.comm->ended, count);
}

/* The last kernel ran and ended within its launch call, whose time the core records. */
static inline void emu_record_whole(const struct device_comm *comm) {
  if (comm->live.comm == NULL) return;
  emu_record_store(&comm->live.comm->launched, comm->launches);
  emu_record_store(&comm->live.comm->started, comm->launches);
  emu_record_store(&comm->live.comm->ended, comm->launches);
}

/* The rank's kernels have failed; the reason is the process's last error message. */
void emu_record_error(const struct device_comm *comm, ncclResult_t error);

/* Writes the rows of the block's lanes. Called by the thread that drives the lanes; locked. */
void emu_record_block(struct emu_block *block);
/* Clears the rows, because the lanes have made progress. */
void emu_record_forget(const struct emu_block *block);

#endif
