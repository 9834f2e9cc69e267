/* send.c: the sending end. The receiver writes an entry for each posted receive into this end's memory. The
 * sender then writes each message to the entry's address; the last write on each queue pair that carries a
 * part of it notifies the receiver. The messages of one call to irecv are sent together. */
#include <arpa/inet.h>
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

enum { CHAIN_MAX = IB_GROUP_MAX + 2, STRIPE_ALIGNMENT = 128 };
#define LINGER_NS 100000000ull

struct chain {
  struct ibv_send_wr requests[CHAIN_MAX];
  struct ibv_sge places[CHAIN_MAX][IB_PLACES];
  uint32_t count;
};

/* Adds a write whose parts the caller adds next. */
static struct ibv_send_wr *chain_add(struct chain *chain, uint64_t to, uint32_t key) {
  struct ibv_send_wr *request = &chain->requests[chain->count];
  memset(request, 0, sizeof *request);
  request->opcode = IBV_WR_RDMA_WRITE;
  request->sg_list = chain->places[chain->count];
  request->wr.rdma.remote_addr = to;
  request->wr.rdma.rkey = key;
  if (chain->count > 0) chain->requests[chain->count - 1].next = request;
  chain->count++;
  return request;
}

static void write_put(struct ibv_send_wr *request, const void *data, size_t bytes, uint32_t own_key) {
  if (bytes > 0)
    request->sg_list[request->num_sge++] =
        (struct ibv_sge){(uint64_t)(uintptr_t)data, (uint32_t)bytes, own_key};
}

/* The last request notifies the receiver and is the only signalled one. */
static void chain_end(struct chain *chain, uint64_t id, uint32_t immediate) {
  struct ibv_send_wr *last = &chain->requests[chain->count - 1];
  last->wr_id = id + chain->count;
  last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last->imm_data = htonl(immediate);
  last->send_flags = IBV_SEND_SIGNALED;
}

/* Inline data is read by the CPU, which is impossible for GPU memory. */
static void chain_inline(const struct ib_answer *answer, struct chain *chain) {
  struct ibv_send_wr *last = &chain->requests[chain->count - 1];
  const struct ib_region *region = answer->count == 1 ? answer->requests[0]->places[0].region : NULL;
  const bool small = last->num_sge == 1 && last->sg_list[0].length <= IB_INLINE_BYTES;
  if (small && chain->count == 1 && region != NULL && !region->device) last->send_flags |= IBV_SEND_INLINE;
}

static uint32_t qp_index(const struct ib_end *end, uint64_t number, uint32_t stripe) {
  return ib_qp_of_turn(end, number * end->stripes + stripe);
}

/* The part of a message that a stripe carries. */
static size_t stripe_part(const struct ib_end *end, size_t bytes, uint32_t stripe, size_t *offset) {
  *offset = 0;
  if (end->stripes == 1) return bytes;
  const size_t even = (bytes + end->stripes - 1) / end->stripes;
  const size_t part = (even + STRIPE_ALIGNMENT - 1) / STRIPE_ALIGNMENT * STRIPE_ALIGNMENT;
  *offset = part * stripe < bytes ? part * stripe : bytes;
  const size_t rest = bytes - *offset;
  return rest < part ? rest : part;
}

/* The bytes [begin, end) of a message; may be empty. */
struct span {
  size_t begin, end;
};

static struct span span_cut(struct span a, size_t begin, size_t bytes) {
  const struct span cut = {a.begin > begin ? a.begin : begin, a.end < begin + bytes ? a.end : begin + bytes};
  return cut;
}

/* Adds a write of the span of a message to `shift` bytes after the address of `clear`. */
static void chain_span(const struct ib_end *end, const struct ib_request *request, struct span span,
                       const struct ib_clear *clear, size_t clear_begin, uint32_t index,
                       struct chain *chain) {
  size_t begin = 0;
  if (span.begin >= span.end) return;
  struct ibv_send_wr *write = chain_add(chain, clear->address + (span.begin - clear_begin),
                                        clear->keys[IB_CLEAR_KEY(end->other.outlets[index])]);
  for (uint32_t i = 0; i < IB_PLACES; begin += request->places[i].bytes, i++) {
    const struct ib_place *place = &request->places[i];
    const struct span cut = span_cut(span, begin, place->bytes);
    if (cut.begin < cut.end)
      write_put(write, (const uint8_t *)place->data + (cut.begin - begin), cut.end - cut.begin,
                place->region->memory[end->qps[index].outlet]->lkey);
  }
}

/* Where a message is cut for a receive in two places; 0 if its size does not match. */
static size_t split_bytes(const struct ib_answer *answer, const struct ib_clear *clear, size_t bytes) {
  if (answer->split && clear[1].tag == IB_TAIL) return bytes > clear[1].bytes ? bytes - clear[1].bytes : 0;
  return answer->split && bytes == clear[0].bytes + (size_t)clear[1].tag ? clear[0].bytes : 0;
}

static void chain_messages(struct ib_end *end, const struct ib_answer *answer, uint32_t stripe,
                           struct chain *chain) {
  const uint32_t index = qp_index(end, answer->number, stripe);
  const struct ib_clear *clear = end->memory->clear[answer->number % IB_SLOTS];
  for (uint32_t i = 0; i < answer->count; i++) {
    const struct ib_request *request = answer->requests[i];
    const size_t bytes = request->bytes[0], cut = split_bytes(answer, clear, bytes);
    struct span span;
    span.end = stripe_part(end, bytes, stripe, &span.begin);
    span.end += span.begin;
    chain_span(end, request, span_cut(span, 0, cut), &clear[0], 0, index, chain);
    chain_span(end, request, span_cut(span, cut, bytes - cut), &clear[answer->split ? 1 : i], cut, index,
               chain);
  }
}

static void chain_sizes(struct ib_end *end, const struct ib_answer *answer, uint32_t stripe,
                        struct chain *chain) {
  const uint32_t index = qp_index(end, answer->number, stripe), slot = (uint32_t)(answer->number % IB_SLOTS);
  const size_t offset = offsetof(struct ib_memory, sizes) + slot * sizeof end->memory->sizes[0];
  const uint32_t bytes = stripe == 0 && answer->count > 1 ? answer->count * (uint32_t)sizeof(uint32_t) : 0;
  struct ibv_send_wr *write =
      chain_add(chain, end->other.memory + offset, end->other.ports[end->other.outlets[index]].key);
  write_put(write, end->memory->sizes[slot], bytes, end->outlets[end->qps[index].outlet].memory->lkey);
}

/* If the answer is refused, only the notification with IB_TOO_LONG is sent. */
static ncclResult_t answer_post(struct ib_end *end, struct ib_answer *answer) {
  const uint32_t refused = answer->refused;
  const bool inlines = param_int(PARAM_IB_USE_INLINE) != 0;
  answer->outstanding = end->stripes;
  for (uint32_t stripe = 0; stripe < end->stripes; stripe++) {
    struct ib_qp *qp = &end->qps[qp_index(end, answer->number, stripe)];
    struct chain chain;
    chain.count = 0;
    const bool single = answer->count == 1;
    const size_t bytes = refused == 0 && single ? answer->requests[0]->bytes[0] : 0;
    if (refused == 0) chain_messages(end, answer, stripe, &chain);
    if (chain.count == 0 || !single || bytes > end->adaptive_bytes) chain_sizes(end, answer, stripe, &chain);
    const uint32_t immediate = single ? refused | (uint32_t)bytes : refused & IB_TOO_LONG;
    chain_end(&chain, ib_work_id(IB_WORK_DATA, answer->number, qp), immediate);
    if (inlines && refused == 0) chain_inline(answer, &chain);
    TRY(ib_qp_post(end, qp, chain.requests, chain.count));
  }
  return ncclSuccess;
}

void ib_send_completed(struct ib_end *end, uint64_t number) {
  struct ib_answer *answer = &end->answers[number % IB_SLOTS];
  if (answer->outstanding == 0 || --answer->outstanding > 0) return;
  for (uint32_t i = 0; i < answer->count; i++)
    if (answer->requests[i] != NULL) answer->requests[i]->done = true;
}

/* The receiver's next call to irecv, once all of its entries are visible; else NULL. */
static struct ib_answer *answer_next(struct ib_end *end) {
  const uint64_t number = end->begun;
  const uint32_t slot = (uint32_t)(number % IB_SLOTS);
  const struct ib_clear *clear = end->memory->clear[slot];
  const uint32_t said = __atomic_load_n(&clear[0].number, __ATOMIC_ACQUIRE), receives = said >> 28;
  if (receives == 0 || said != IB_CLEAR_NUMBER(number, receives)) return NULL;
  const bool split = receives == IB_SPLIT;
  const uint32_t count = split ? 1 : receives;
  if (count > IB_GROUP_MAX) {
    ib_fail(end, ncclRemoteError, "the receiver posted %u receives in one call: at most %d", count,
            IB_GROUP_MAX);
    return NULL;
  }
  for (uint32_t i = 1; i < count + split; i++)
    if (__atomic_load_n(&clear[i].number, __ATOMIC_ACQUIRE) != said) return NULL;
  struct ib_answer *answer = &end->answers[slot];
  if (answer->number == number && answer->count == count) return answer;
  if (answer->outstanding > 0) return NULL;
  ib_answer_begin(answer, number, count);
  answer->split = split;
  return answer;
}

/* The receive of the call that this message is for, by tag; a single receive takes the next message. */
static bool answer_place(const struct ib_end *end, const struct ib_answer *answer, int tag, uint32_t *index) {
  const struct ib_clear *clear = end->memory->clear[answer->number % IB_SLOTS];
  for (uint32_t i = 0; i < answer->count; i++) {
    *index = i;
    if (answer->count == 1 || (answer->requests[i] == NULL && clear[i].tag == tag)) return true;
  }
  return false;
}

static bool answer_has_space(const struct ib_end *end, const struct ib_answer *answer) {
  for (uint32_t stripe = 0; stripe < end->stripes; stripe++)
    if (!ib_qp_has_space(&end->qps[qp_index(end, answer->number, stripe)], CHAIN_MAX)) return false;
  return true;
}

/* The longest message that the receive can take. */
static uint64_t answer_capacity(const struct ib_end *end, const struct ib_answer *answer, uint32_t index) {
  const struct ib_clear *clear = end->memory->clear[answer->number % IB_SLOTS];
  if (!answer->split) return clear[index].bytes;
  return (uint64_t)clear[1].bytes + (clear[1].tag == IB_TAIL ? clear[0].bytes : 0);
}

/* Notifies the receiver, so that it reports the mismatch, too; earlier messages still complete. */
static ncclResult_t answer_refuse(struct ib_end *end, struct ib_answer *answer, uint32_t index,
                                  size_t bytes) {
  const uint32_t slot = (uint32_t)(answer->number % IB_SLOTS);
  const unsigned long long number = answer->number, capacity = answer_capacity(end, answer, index);
  answer->refused = IB_TOO_LONG | (uint32_t)bytes;
  memset(end->memory->sizes[slot], 0, sizeof end->memory->sizes[slot]);
  end->memory->sizes[slot][index] = answer->refused;
  end->begun++;
  TRY(answer_post(end, answer));
  ib_fail(end, ncclInvalidUsage,
          "message %llu has %zu bytes, but the receive that was posted for it has space for %llu: the ranks' "
          "counts or calls differ",
          number, bytes, capacity);
  end->failed = ncclSuccess;
  end->refused = ncclInvalidUsage;
  return ncclInvalidUsage;
}

ncclResult_t ib_send(struct ib_end *end, const struct ib_place places[IB_PLACES], int tag, void **out) {
  const size_t bytes = places[0].bytes + places[1].bytes;
  uint32_t index;
  *out = NULL;
  if (end->failed != ncclSuccess) return end->failed;
  if (end->refused != ncclSuccess) return end->refused;
  if (bytes > IB_MESSAGE_BYTES_MAX)
    return ib_fail(end, ncclInvalidArgument, "a message of %zu bytes: at most %llu", bytes,
                   IB_MESSAGE_BYTES_MAX);
  if (end->phase != IB_READY) return ib_end_step(end);
  struct ib_answer *answer = answer_next(end);
  if (answer == NULL && end->gone) return ib_gone(end);
  if (answer == NULL || !answer_place(end, answer, tag, &index) || !answer_has_space(end, answer))
    return ib_poll(end);
  const uint32_t slot = (uint32_t)(answer->number % IB_SLOTS);
  if (bytes > answer_capacity(end, answer, index)) return answer_refuse(end, answer, index, bytes);
  struct ib_request *request = ib_request_take(end, false);
  if (request == NULL) return ib_poll(end);
  request->slot = answer->number;
  request->count = 1;
  memcpy(request->places, places, sizeof request->places);
  request->bytes[0] = bytes;
  answer->requests[index] = request;
  answer->claimed++;
  end->memory->sizes[slot][index] = (uint32_t)bytes;
  if (answer->claimed == answer->count) {
    end->begun++;
    TRY(answer_post(end, answer));
  }
  *out = request;
  return ncclSuccess;
}

/* Messages that the receiver has are done; the others are sent again, in order. An acknowledged message that
 * the receiver does not have is an error. */
ncclResult_t ib_send_reconnect(struct ib_end *end) {
  const struct ib_reconnect *others = &end->others;
  if (others->finished + IB_SLOTS < end->begun)
    return ib_fail(end, ncclRemoteError,
                   "the other end's reconnect message is invalid: load the same library everywhere");
  for (uint64_t number = others->finished; number < end->begun; number++) {
    struct ib_answer *answer = &end->answers[number % IB_SLOTS];
    const bool has = (others->done >> number % IB_SLOTS & 1) != 0;
    if (!has && (answer->number != number || answer->outstanding == 0))
      return ib_fail(end, ncclRemoteError,
                     "connected again, but message %llu, which was acknowledged, is not there",
                     (unsigned long long)number);
  }
  for (uint64_t number = end->begun > IB_SLOTS ? end->begun - IB_SLOTS : 0; number < end->begun; number++) {
    struct ib_answer *answer = &end->answers[number % IB_SLOTS];
    if (answer->number != number || answer->outstanding == 0) continue;
    if (number >= others->finished && (others->done >> number % IB_SLOTS & 1) == 0) {
      TRY(answer_post(end, answer));
      continue;
    }
    answer->outstanding = 1;
    ib_send_completed(end, number);
  }
  return ncclSuccess;
}

static bool send_is_quiet(const struct ib_end *end) {
  for (uint32_t i = 0; i < IB_SLOTS; i++)
    if (end->answers[i].outstanding > 0) return false;
  return true;
}

/* Before closing: waits shortly until a notification of a message that was too long has been sent. */
void ib_send_linger(struct ib_end *end) {
  const uint64_t begin_ns = os_time_ns();
  if (end->refused == ncclSuccess) return;
  while (!send_is_quiet(end) && os_time_ns() - begin_ns < LINGER_NS)
    if (ib_poll(end) != ncclSuccess) return;
}
