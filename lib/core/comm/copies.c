/* copies.c: decides whether copy engines carry out a collective. All ranks must decide alike without asking
 * each other, so it looks at nothing but what they have agreed on and where the output is. */
#include "core/comm/copies.h"

#include "base/param.h"
#include "core/comm/windows.h"
#include "kernels/kernels.h"

bool copies_may_take(const struct collective_call *call) {
  if ((call->comm->config.CTAPolicy & NCCL_CTA_POLICY_ZERO) == 0) return false;
  switch (call->func) {
    case FUNC_BROADCAST:
    case FUNC_ALL_GATHER:
    case FUNC_ALL_TO_ALL:
    case FUNC_GATHER:
    case FUNC_SCATTER: return call->count > 0 && call->comm->rank_count > 1;
    default: return false;
  }
}

/* Ranks that get nothing in a gather name the place too. */
static size_t output_bytes(const struct collective_call *call) {
  const size_t block = call->count * kernel_type_bytes((uint8_t)call->dtype);
  return call->func == FUNC_BROADCAST || call->func == FUNC_SCATTER ? block : block * call->comm->rank_count;
}

/* Ranks other than the root may pass anything as sendbuff: those that pass what the root's rule asks for
 * ("recvbuff == sendbuff + rank * recvcount") say so. */
static bool is_by_rank(const struct collective_call *call, uint64_t offset) {
  const uint64_t before = call->comm->rank * call->count * kernel_type_bytes((uint8_t)call->dtype);
  return call->func == FUNC_SCATTER && call->in && offset >= before &&
         (const char *)call->in + before == (const char *)call->out;
}

ncclResult_t copies_find(const struct collective_call *call, struct copies_place *place) {
  struct ncclComm *comm = call->comm;
  uint64_t graph = 0;
  *place = (struct copies_place){0, false, 0};
  if (!copies_may_take(call) || lsa_team_of(comm).size < comm->rank_count) return ncclSuccess;
  TRY(comm->ops->device->stream_capture(call->stream, &graph));
  if (graph == 0) place->number = windows_hold(comm, call->out, output_bytes(call), &place->offset);
  place->by_rank = place->number != 0 && is_by_rank(call, place->offset);
  if (place->by_rank) place->offset -= comm->rank * output_bytes(call);
  return ncclSuccess;
}

/* Above the number of a window. Rank 0's block of a scatter has the same place either way. */
#define NUMBER_BY_RANK (UINT64_C(1) << 63)
#define NUMBER_EITHER (UINT64_C(1) << 62)

uint64_t copies_place_number(const struct collective_call *call) {
  struct copies_place place;
  if (copies_find(call, &place) != ncclSuccess) return 0;
  const bool either =
      call->func == FUNC_SCATTER && call->comm->rank == 0 && call->peer != 0 && place.number != 0;
  return ((uint64_t)place.number << 48 ^ place.offset) | (place.by_rank ? NUMBER_BY_RANK : 0) |
         (either ? NUMBER_EITHER : 0);
}

bool copies_places_agree(uint64_t one, uint64_t other) {
  const uint64_t ways = NUMBER_BY_RANK | NUMBER_EITHER;
  return ((one ^ other) & (((one | other) & NUMBER_EITHER) != 0 ? ~ways : ~NUMBER_EITHER)) == 0;
}
