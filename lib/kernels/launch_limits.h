/* launch_limits.h: what the GPU kernels of this library carry, as limits of plans: for the backend that
 * launches them, and for tools that show their plans without a GPU. */
#ifndef TUTTI_KERNELS_LAUNCH_LIMITS_H
#define TUTTI_KERNELS_LAUNCH_LIMITS_H

#include "kernels/link_count.h"
#include "schedule/plan.h"

/* `reach`: each GPU of a node can store into the memory of every other. */
static inline void launch_limits(struct plan_limits *limits, bool reach) {
  const uint32_t protos = 1u << PROTO_LL | 1u << PROTO_SIMPLE;
  const struct plan_limits made = {
      .slots = 8,
      .step_bytes = {[PROTO_SIMPLE] = 524288, [PROTO_LL] = 65536, [PROTO_LL128] = 614400},
      .p2p_chunk_bytes = 524288,
      .channel_count = 32,
      .p2p_channel_count = 32,
      .p2p_channels_per_peer = 32,
      .flag_bits = 32,
      .direct = reach,
      .algos = reach ? PLAN_ALGOS_LAST : 0,
      .algos_last = PLAN_ALGOS_LAST,
      .quick_protos = protos,
      .links = reach ? LAUNCH_LINKS : 1,
      .protos = protos,
  };
  *limits = made;
}

#endif
