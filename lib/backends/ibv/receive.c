/* receive.c: the receiving end. For each call to irecv it posts one empty receive on every queue pair that
 * will carry a part, and then writes an entry with the buffers' addresses into the sender's memory. A call is
 * done when each of those queue pairs has notified it. */
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

#define SIGNAL_PERIOD 16 /* one of this many writes on a queue pair is signalled, to retire the others */

/* `receives`: the number in this call, or IB_SPLIT. */
static void clear_fill(struct ib_end *end, struct ib_clear *clear, uint64_t number, uint32_t receives,
                       const struct ib_place *place, int tag) {
  clear->address = (uint64_t)(uintptr_t)place->data;
  clear->bytes = place->bytes < UINT32_MAX ? (uint32_t)place->bytes : UINT32_MAX;
  for (uint32_t port = 0; port < end->device->port_count; port++)
    clear->keys[IB_CLEAR_KEY(port)] = place->region != NULL ? place->region->memory[port]->rkey : 0;
  clear->tag = tag;
  clear->number = IB_CLEAR_NUMBER(number, receives);
}

/* The offset of the first byte of an entry that is in use, a multiple of a word. */
static size_t clear_begin(const struct ib_end *end) {
  const size_t keys = IB_PORTS_MAX - end->device->port_count;
  return (offsetof(struct ib_clear, keys) + keys * sizeof(uint32_t)) & ~(size_t)7;
}

/* Each queue pair that will notify the call needs a receive, in the order of the calls. */
static ncclResult_t receives_post(struct ib_end *end, uint64_t number) {
  for (uint32_t stripe = 0; stripe < end->stripes; stripe++) {
    struct ib_qp *qp = &end->qps[ib_qp_of_turn(end, number * end->stripes + stripe)];
    struct ibv_recv_wr request, *bad = NULL;
    char text[IB_QP_TEXT_BYTES];
    memset(&request, 0, sizeof request);
    request.wr_id = ib_work_id(IB_WORK_RECEIVE, number, qp);
    if (end->verbs->receive_post(qp->qp, &request, &bad) == 0) qp->receives++;
    else
      return ib_fail(end, ncclSystemError, "%s takes no receive: the device's driver refuses",
                     ib_qp_text(end, qp, text));
  }
  return ncclSuccess;
}

/* Writes `count` entries. */
static ncclResult_t clear_write(struct ib_end *end, struct ib_qp *qp, uint64_t number, uint32_t count) {
  const uint32_t slot = (uint32_t)(number % IB_SLOTS), index = (uint32_t)(qp - end->qps);
  const size_t begin = clear_begin(end), bytes = count * sizeof(struct ib_clear) - begin;
  struct ibv_sge place = {(uint64_t)(uintptr_t)end->memory->clear[slot] + begin, (uint32_t)bytes,
                          end->outlets[qp->outlet].memory->lkey};
  struct ibv_send_wr request;
  memset(&request, 0, sizeof request);
  request.wr_id = ib_work_id(IB_WORK_CLEAR, number, qp) + 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.sg_list = &place;
  request.num_sge = 1;
  if (qp->posted % SIGNAL_PERIOD == 0) request.send_flags |= IBV_SEND_SIGNALED;
  if (count == 1 && param_int(PARAM_IB_USE_INLINE) != 0) request.send_flags |= IBV_SEND_INLINE;
  request.wr.rdma.remote_addr =
      end->other.memory + offsetof(struct ib_memory, clear) + slot * sizeof end->memory->clear[0] + begin;
  request.wr.rdma.rkey = end->other.ports[end->other.outlets[index]].key;
  return ib_qp_post(end, qp, &request, 1);
}

/* The queue pair over which the next call's entries are written. */
static struct ib_qp *clear_qp(struct ib_end *end) { return &end->qps[ib_qp_of_turn(end, end->begun)]; }

/* *request is NULL if there is no space now. */
static ncclResult_t receive_take(struct ib_end *end, uint32_t count, struct ib_request **request) {
  *request = NULL;
  if (end->failed != ncclSuccess) return end->failed;
  if (end->phase != IB_READY) return ib_end_step(end);
  if (end->gone && end->finished == end->begun) return ib_gone(end);
  if (ib_qp_has_space(clear_qp(end), 1)) *request = ib_request_take(end, false);
  if (*request == NULL) return ib_poll(end);
  struct ib_answer *answer = &end->answers[end->begun % IB_SLOTS];
  ib_answer_begin(answer, end->begun, count);
  (*request)->slot = end->begun;
  (*request)->count = count;
  answer->outstanding = end->stripes;
  answer->requests[0] = *request;
  return ncclSuccess;
}

static ncclResult_t receive_report(struct ib_end *end, uint32_t entries) {
  struct ib_qp *qp = clear_qp(end);
  const uint64_t number = end->begun++;
  TRY(receives_post(end, number));
  return clear_write(end, qp, number, entries);
}

ncclResult_t ib_receive(struct ib_end *end, uint32_t count, void *const *data, const size_t *bytes,
                        const int *tags, void *const *registrations, void **out) {
  struct ib_request *request;
  *out = NULL;
  if (end->failed == ncclSuccess && (count < 1 || count > IB_GROUP_MAX))
    return ib_fail(end, ncclInvalidArgument, "%u receives in one call: it takes 1 to %d", count,
                   IB_GROUP_MAX);
  TRY(receive_take(end, count, &request));
  if (request == NULL) return ncclSuccess;
  for (uint32_t i = 0; i < count; i++) {
    const struct ib_place place = {data[i], bytes[i], (struct ib_region *)registrations[i]};
    request->bytes[i] = bytes[i];
    clear_fill(end, &end->memory->clear[request->slot % IB_SLOTS][i], request->slot, count, &place, tags[i]);
  }
  TRY(receive_report(end, count));
  *out = request;
  return ncclSuccess;
}

ncclResult_t ib_receive_split(struct ib_end *end, const struct ib_place places[IB_PLACES], size_t whole_bytes,
                              void **out) {
  struct ib_request *request;
  *out = NULL;
  TRY(receive_take(end, 1, &request));
  if (request == NULL) return ncclSuccess;
  struct ib_clear *clear = end->memory->clear[request->slot % IB_SLOTS];
  const bool tail = whole_bytes == NET_PARTS_TAIL;
  request->bytes[0] = places[1].bytes + (tail ? places[0].bytes : 0);
  clear_fill(end, &clear[0], request->slot, IB_SPLIT, &places[0], 0);
  clear_fill(end, &clear[1], request->slot, IB_SPLIT, &places[1],
             tail ? IB_TAIL : (int)(whole_bytes - places[0].bytes));
  TRY(receive_report(end, IB_PLACES));
  *out = request;
  return ncclSuccess;
}

/* After a reconnect, posts the receives of calls that are not done on the new queue pairs. */
ncclResult_t ib_receive_reconnect(struct ib_end *end) {
  for (uint64_t number = end->finished; number < end->begun; number++) {
    struct ib_answer *answer = &end->answers[number % IB_SLOTS];
    if (answer->outstanding == 0) continue;
    answer->outstanding = end->stripes;
    TRY(receives_post(end, number));
  }
  return ncclSuccess;
}

/* Then writes their entries again, since the sender may not have them; writing an entry twice is harmless. */
ncclResult_t ib_receive_reannounce(struct ib_end *end) {
  for (uint64_t number = end->finished; number < end->begun; number++) {
    const uint32_t slot = (uint32_t)(number % IB_SLOTS);
    const uint32_t receives = end->memory->clear[slot][0].number >> 28;
    if (end->answers[slot].outstanding > 0)
      TRY(clear_write(end, &end->qps[ib_qp_of_turn(end, number)], number,
                      receives == IB_SPLIT ? IB_PLACES : receives));
  }
  return ncclSuccess;
}

/* Sets the size of each received message, and checks that it fits its buffer. */
static ncclResult_t receive_sizes(struct ib_end *end, struct ib_request *request) {
  const uint32_t *sizes = end->memory->sizes[request->slot % IB_SLOTS];
  for (uint32_t i = 0; i < request->count; i++) {
    const uint32_t size = request->count == 1 ? request->immediate : sizes[i];
    const size_t bytes = size & ~IB_TOO_LONG;
    if ((size & IB_TOO_LONG) != 0 || bytes > request->bytes[i])
      return ib_fail(
          end, ncclInvalidUsage,
          "message %llu has %zu bytes, but the receive that was posted for it has space for %zu: the "
          "ranks' counts or calls differ",
          (unsigned long long)request->slot, bytes, request->bytes[i]);
  }
  for (uint32_t i = 0; i < request->count; i++)
    request->bytes[i] = request->count == 1 ? request->immediate : sizes[i];
  request->done = true;
  return ncclSuccess;
}

ncclResult_t ib_receive_completed(struct ib_end *end, uint64_t number, uint32_t immediate) {
  struct ib_answer *answer = &end->answers[number % IB_SLOTS];
  if (answer->outstanding == 0)
    return ib_fail(end, ncclInternalError, "a message came for which no receive was posted");
  answer->requests[0]->immediate = immediate;
  if (--answer->outstanding > 0) return ncclSuccess;
  while (end->finished != end->begun && end->answers[end->finished % IB_SLOTS].outstanding == 0)
    end->finished++;
  return receive_sizes(end, answer->requests[0]);
}
