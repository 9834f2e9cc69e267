/* scheduler_gate.h: lets a replay decide which events may run, so that kernels and lanes advance to the
 * recorded state and no further. Without a gate each query costs a comparison. The world is locked in all
 * functions. */
#ifndef TUTTI_BACKENDS_EMU_SCHEDULER_GATE_H
#define TUTTI_BACKENDS_EMU_SCHEDULER_GATE_H

#include "backends/emu/block.h"

struct emu_gate {
  /* The subset of these actions (enum lane_action; EMU_LANE_ABORT) that the lane may take now. */
  uint32_t (*lane)(struct emu_lane *lane, uint32_t actions);
  /* May this launch of the rank start, now that its turn has come? */
  bool (*kernel)(const struct device_comm *comm, uint64_t turn);
};

#define EMU_LANE_ABORT 128u /* in addition to enum lane_action: the lane ends at once */

/* NULL: no gate. May change only while no event runs. A gate that allows more than before calls
 * emu_gate_loosened(). */
extern const struct emu_gate *emu_gate;
void emu_gate_loosened(void);

/* Calls a function with each record of the events' trace, whether or not it is written to a file; NULL: none.
 * It runs within the event, and must not change the world. */
struct trace_record;
void emu_trace_watch(void (*watcher)(const struct trace_record *record));

#endif
