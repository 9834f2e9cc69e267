/* simple.c: lanes of Simple in threads mode, compiled for this protocol alone, like those of LL (ll.c). */
#define PRIM_PROTO PROTO_SIMPLE
#define PRIM_STRONG 1
#include "backends/emu/block.h"

bool emu_simple_advance(struct emu_lane *emu, uint64_t slices) {
  return lane_make_moves(&emu->lane, &emu->prim, slices);
}
