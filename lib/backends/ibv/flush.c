/* flush.c: data received into device memory may not have arrived there when its completion is seen. A read of
 * its last byte over the same port is ordered after the writes. For that each port has a queue pair to
 * itself, made with the first registration of device memory. */
#include <string.h>

#include "backends/ibv/ib.h"

static ncclResult_t flush_read(struct ib_end *end, const struct ib_request *request, uint32_t port) {
  struct ib_qp *qp = &end->qps[end->qp_count + port];
  struct ibv_sge place = {(uint64_t)(uintptr_t)&end->memory->flushed, 1, end->outlets[port].memory->lkey};
  struct ibv_send_wr read;
  memset(&read, 0, sizeof read);
  read.wr_id = ib_work_id(IB_WORK_FLUSH, (uint64_t)(request - end->requests), qp) + 1;
  read.opcode = IBV_WR_RDMA_READ;
  read.send_flags = IBV_SEND_SIGNALED;
  read.sg_list = &place;
  read.num_sge = 1;
  read.wr.rdma.remote_addr = (uint64_t)(uintptr_t)request->places[0].data;
  read.wr.rdma.rkey = request->places[0].region->memory[port]->rkey;
  return ib_qp_post(end, qp, &read, 1);
}

static ncclResult_t flush_begin(struct ib_end *end, struct ib_request *request) {
  request->reads = end->loop_count;
  for (uint32_t port = 0; port < end->loop_count; port++) TRY(flush_read(end, request, port));
  return ncclSuccess;
}

bool ib_flush_reconnect(struct ib_end *end) {
  const uint32_t loops = end->loop_count;
  if (!ib_reconnect_may(end, false)) return false;
  end->loop_count = 0;
  ib_qps_retire(end, end->qp_count, loops);
  if (ib_qps_loop(end) != ncclSuccess) return false;
  for (uint32_t i = NET_REQUESTS_MAX; i < 2 * NET_REQUESTS_MAX; i++)
    if (end->requests[i].used && !end->requests[i].done && flush_begin(end, &end->requests[i]) != ncclSuccess)
      return false;
  return true;
}

ncclResult_t ib_flush(struct ib_end *end, uint32_t count, void *const *data, const size_t *bytes,
                      void *const *registrations, void **out) {
  struct ib_region *region = NULL;
  uint32_t last = count;
  *out = NULL;
  while (last-- > 0) {
    region = (struct ib_region *)registrations[last];
    if (bytes[last] > 0 && region != NULL && region->device) break;
  }
  if (last == UINT32_MAX) return ncclSuccess;
  if (end->failed != ncclSuccess) return end->failed;
  struct ib_request *request = ib_request_take(end, true);
  if (request == NULL)
    return ib_fail(end, ncclInternalError, "more than %d flushes at a time", NET_REQUESTS_MAX);
  request->places[0] = (struct ib_place){data[last], 1, region};
  *out = request;
  return flush_begin(end, request);
}

void ib_flush_completed(struct ib_end *end, uint64_t number) {
  struct ib_request *request = &end->requests[number];
  if (--request->reads == 0) request->done = true;
}
