/* record.h: what the emulator notes of its kernels, where the core has given it a place to (struct
 * recorder_live): how many were launched, started and ended, and, once lanes have had to wait for long, where
 * they stand. A kernel that waits for nobody costs a few stores. */
#ifndef TUTTI_BACKENDS_EMU_RECORD_H
#define TUTTI_BACKENDS_EMU_RECORD_H

#include "backends/emu/block.h"
#include "base/ticks.h"

static inline void emu_record_store(uint64_t *counter, uint64_t value) {
  __atomic_store_n(counter, value, __ATOMIC_RELEASE);
}

/* Locked: kernels were enqueued, or taken back. */
static inline void emu_record_counts(const struct device_comm *comm) {
  if (comm->live.comm == NULL) return;
  comm->live.comm->counts = 1;
  emu_record_store(&comm->live.comm->launched, comm->launches);
}

/* What starts when its rank was aborted only ends. */
static inline void emu_record_started(const struct device_comm *comm, uint64_t count) {
  if (comm->live.comm == NULL || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0) return;
  emu_record_store(&comm->live.comm->started, count);
}

/* The kernel that has started is one of a graph's. */
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

/* One that was ended has not ended. */
static inline void emu_record_ended(const struct device_comm *comm, uint64_t count) {
  if (comm->live.comm == NULL || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0) return;
  emu_record_store(&comm->live.comm->moved_ticks, ticks_now());
  emu_record_store(&comm->live.comm->ended, count);
}

/* The last one ran within its launch, whose time the core has. */
static inline void emu_record_whole(const struct device_comm *comm) {
  if (comm->live.comm == NULL) return;
  emu_record_store(&comm->live.comm->launched, comm->launches);
  emu_record_store(&comm->live.comm->started, comm->launches);
  emu_record_store(&comm->live.comm->ended, comm->launches);
}

/* Its kernels have failed, with the process's last sentence. */
void emu_record_error(const struct device_comm *comm, ncclResult_t error);

/* Notes where the lanes of the block stand. By whoever drives them; locked. */
void emu_record_block(struct emu_block *block);
/* They have gone on. */
void emu_record_forget(const struct emu_block *block);

#endif
