/* copies_note.c: collectives without a kernel, as puts and waits. A rank tells those who will put into its
 * output that it may be written; puts its blocks once the others have said so, with a signal behind each,
 * while another copy engine moves its own block; and waits for that and for the signals of those who put
 * into its output. */
#include "core/copies_note.h"

#include "base/log.h"
#include "core/group.h"
#include "core/rma.h"
#include "kernels/kernels.h"

/* Whether data goes from rank to rank; never to itself. */
static bool moves(const struct collective_call *call, uint32_t from, uint32_t to) {
  const uint32_t root = (uint32_t)call->peer;
  if (from == to) return false;
  if (call->func == FUNC_GATHER) return to == root;
  if (call->func == FUNC_BROADCAST || call->func == FUNC_SCATTER) return from == root;
  return true;
}

/* Signals to those that will put here. */
static ncclResult_t readies_queue(const struct collective_call *call) {
  const struct ncclComm *comm = call->comm;
  for (uint32_t peer = 0; peer < comm->rank_count; peer++)
    if (moves(call, peer, comm->rank)) TRY(rma_queue_copy(call, peer, NULL));
  return ncclSuccess;
}

/* `always`: even if it is for nobody. */
static ncclResult_t await_queue(const struct collective_call *call, bool data, bool always) {
  const uint32_t own = call->comm->rank, rank_count = call->comm->rank_count;
  struct device_await *awaits = NULL;
  uint32_t count = 0;
  for (uint32_t peer = 0; peer < rank_count; peer++)
    count += data ? moves(call, peer, own) : moves(call, own, peer);
  if (count == 0 && !always) return ncclSuccess;
  TRY(rma_queue_copy_wait(call, count, &awaits));
  for (uint32_t peer = 0, used = 0; peer < rank_count; peer++)
    if (data ? moves(call, peer, own) : moves(call, own, peer))
      awaits[used++] = (struct device_await){peer, SIGNALS_COLLECTIVE, 1, 0};
  return ncclSuccess;
}

/* A block of the own input, and where it belongs in the output of another rank, or in the own one. */
static struct rma_copy copy_to(const struct collective_call *call, const struct copies_place *place,
                               uint32_t peer) {
  const size_t bytes = call->count * kernel_type_bytes((uint8_t)call->dtype);
  const bool many = call->func == FUNC_ALL_TO_ALL || call->func == FUNC_SCATTER;
  const bool gathers = call->func != FUNC_BROADCAST && call->func != FUNC_SCATTER;
  const size_t at = gathers ? call->comm->rank * bytes : 0;
  const size_t there = place->by_rank ? peer * bytes : at;
  return (struct rma_copy){(const char *)call->in + (many ? peer * bytes : 0), (char *)call->out + at,
                           place->number, place->offset + there, bytes};
}

/* The nearest ranks behind this one first, so that not all put into one at a time. */
static ncclResult_t puts_queue(const struct collective_call *call, const struct copies_place *place) {
  const uint32_t own = call->comm->rank, rank_count = call->comm->rank_count;
  for (uint32_t step = 1; step < rank_count; step++) {
    const uint32_t peer = (own + step) % rank_count;
    const struct rma_copy copy = copy_to(call, place, peer);
    if (moves(call, own, peer)) TRY(rma_queue_copy(call, peer, &copy));
  }
  return ncclSuccess;
}

static ncclResult_t own_queue(const struct collective_call *call, const struct copies_place *place,
                              bool *moves_own) {
  const bool rooted = func_has_root(call->func);
  const struct rma_copy copy = copy_to(call, place, call->comm->rank);
  *moves_own = !(rooted && (uint32_t)call->peer != call->comm->rank) && copy.in != copy.own_out;
  return *moves_own ? rma_queue_copy(call, call->comm->rank, &copy) : ncclSuccess;
}

ncclResult_t copies_note(const struct collective_call *call, const struct copies_place *place) {
  bool moves_own = false;
  log_info(LOG_COLL, "%s: copy engines move the data, into window %u at %llu", call->name + 4, place->number,
           (unsigned long long)place->offset);
  TRY(group_hold(call));
  TRY(readies_queue(call));
  TRY(await_queue(call, false, false));
  TRY(own_queue(call, place, &moves_own));
  TRY(puts_queue(call, place));
  return await_queue(call, true, moves_own);
}
