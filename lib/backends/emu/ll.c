/* ll.c: lanes of LL in threads mode, compiled for this protocol alone, so that small messages need fewer
 * branches. */
#define PRIM_PROTO PROTO_LL
#define PRIM_STRONG 1
#include "backends/emu/block.h"

__attribute__((flatten)) void emu_ll_open(struct emu_lane *emu, const struct work *work,
                                          const struct plan_buffers *buffers) {
  if (emu->keeps_step && emu->lane.work == work) {
    lane_reopen(&emu->lane, &emu->prim, buffers->in, buffers->out);
    return;
  }
  emu->keeps_step = false;
  lane_open(&emu->lane, &emu->prim, work, buffers->in, buffers->out);
}

/* An LL lane can run as soon as it is open. */
__attribute__((flatten)) bool emu_ll_advance(struct emu_lane *emu) {
  if (!ll_go(&emu->lane, &emu->prim, false)) return emu->lane.error != LANE_OK || prim_aborted(&emu->prim);
  emu->keeps_step = lane_keeps_step(&emu->lane);
  return true;
}
