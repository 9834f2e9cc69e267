/* scheduler_gate.h: lets somebody else say which events may run: a replay, which takes kernels and lanes
 * to the recorded state, and no further. As a rule there is nobody, and each question costs a
 * comparison. All of it with the world locked. */
#ifndef TUTTI_BACKENDS_EMU_SCHEDULER_GATE_H
#define TUTTI_BACKENDS_EMU_SCHEDULER_GATE_H

#include "backends/emu/block.h"

struct emu_gate {
  /* Which of these actions (enum lane_action; EMU_LANE_ABORT), perhaps none, the lane may take now. */
  uint32_t (*lane)(struct emu_lane *lane, uint32_t actions);
  /* May this launch of the rank start, now that its turn has come? */
  bool (*kernel)(const struct device_comm *comm, uint64_t turn);
};

#define EMU_LANE_ABORT 128u /* beside enum lane_action: the lane ends where it stands */

/* NULL: nobody. Changes only while nothing moves; who holds less than before calls emu_gate_loosened(). */
extern const struct emu_gate *emu_gate;
void emu_gate_loosened(void);

#endif
