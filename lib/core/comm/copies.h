/* copies.h: which collectives copy engines carry out, without a kernel: those that only move data, under
 * config.CTAPolicy NCCL_CTA_POLICY_ZERO or NCCL_CTA_POLICY=2, between ranks of one node that all reach each
 * other's memory, outside of captures, with their outputs in symmetric windows. */
#ifndef TUTTI_CORE_COPIES_H
#define TUTTI_CORE_COPIES_H

#include "core/comm/collective_call.h"

/* Where the output lies: at one place in the same window of all ranks; of a scatter that is in place at its
 * root, the place of rank 0's block, and each rank's block is behind that of the rank before it. */
struct copies_place {
  uint32_t number; /* of the window; 0: kernels move the data */
  bool by_rank;
  uint64_t offset; /* bytes, from the window's begin */
};

/* The communicator's policy asks for copy engines, and the function is one that they can carry out. */
bool copies_may_take(const struct collective_call *call);
/* All ranks find the same, as match_call() makes sure of. The pointers have been checked. */
ncclResult_t copies_find(const struct collective_call *call, struct copies_place *place);
/* The place as a number, to be compared; 0: kernels move the data. */
uint64_t copies_place_number(const struct collective_call *call);
/* Whether the numbers of two ranks name one place. */
bool copies_places_agree(uint64_t one, uint64_t other);

#endif
