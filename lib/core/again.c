/* again.c: a small table of calls, by a hash of their arguments; a call that finds its place taken takes it.
 * Promises that nothing is launched that the long way would refuse. */
#include "core/again.h"

#include <assert.h>

#include "base/hash.h"
#include "base/log.h"
#include "core/collective.h"

static struct again_call *again_place(struct again *again, const struct collective_call *call) {
  const uint64_t mixed = (uintptr_t)call->in ^ (uintptr_t)call->out >> 3 ^ (uintptr_t)call->stream ^
                         (uint64_t)call->count << 9 ^ (uint64_t)call->func << 5;
  return &again->calls[mixed * HASH_STEP >> 61];
}
static_assert(AGAIN_CALLS == 8, "three bits of the hash choose");

static bool again_is(const struct again_call *entry, const struct collective_call *call) {
  return entry->serial != 0 && entry->in == call->in && entry->out == call->out &&
         entry->count == call->count && entry->stream == call->stream && entry->peer == call->peer &&
         entry->func == call->func && entry->dtype == (uint32_t)call->dtype &&
         entry->op == (uint32_t)call->op;
}

bool again_launch(const struct collective_call *call, ncclResult_t *result) {
  struct ncclComm *comm = call->comm;
  if (!comm || !comm_is_ready(comm) || log_enabled(LOG_INFO, LOG_COLL | LOG_CALL)) return false;
  const struct again_call *entry = again_place(&comm->again, call);
  if (!again_is(entry, call)) return false;
  comm_own(comm);
  const struct device_again again = {entry->serial, comm->sequence, entry->buffers, call->stream};
  if (!comm->ops->launch_again(comm->device_comm, &again, result)) return false;
  if (*result == ncclSuccess) __atomic_store_n(&comm->sequence, comm->sequence + 1, __ATOMIC_RELAXED);
  return true;
}

/* Proxies must hear of each launch; a plan that is not kept cannot be launched again. */
void again_note_launch(struct ncclComm *comm, const struct plan *plan, uint32_t stream_count) {
  const bool kept = plan->work_count <= AGAIN_WORKS && stream_count == 1 && plan->hook == NULL;
  comm->again.serial = kept ? plan->serial : 0;
  comm->again.sequence = comm->queue.first_sequence;
  comm->again.work_count = plan->work_count;
  comm->again.buffers = plan->buffers;
}

/* Operators of the user may change their meaning. */
void again_note(const struct collective_call *call) {
  struct ncclComm *comm = call->comm;
  struct again *again = &comm->again;
  const uint64_t serial = again->serial;
  again->serial = 0;
  if (serial == 0 || again->sequence + 1 != comm->sequence || comm->settings.check_pointers) return;
  if ((uint32_t)call->op >= ncclNumOps || call->count == 0) return;
  struct again_call *entry = again_place(again, call);
  entry->in = call->in;
  entry->out = call->out;
  entry->count = call->count;
  entry->stream = call->stream;
  entry->serial = serial;
  entry->peer = call->peer;
  entry->func = call->func;
  entry->dtype = (uint8_t)call->dtype;
  entry->op = (uint8_t)call->op;
  for (uint32_t i = 0; i < again->work_count; i++) entry->buffers[i] = again->buffers[i];
}
