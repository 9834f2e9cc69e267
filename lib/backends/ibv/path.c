/* path.c: tests each queue pair of a new connection with a write without data. A wrong GID or route is
 * reported here at once, with both GIDs, and not as a timeout in the middle of an operation. The write is
 * repeated: if a packet was lost, the next one makes the receiver request it again. */
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

#define RETRY_NS 100000000ull

ncclResult_t ib_path_write(struct ib_end *end, struct ib_qp *qp, uint32_t index) {
  struct ibv_send_wr request;
  memset(&request, 0, sizeof request);
  request.wr_id = ib_work_id(IB_WORK_PATH, index, qp) + 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = end->other.memory;
  request.wr.rdma.rkey = end->other.ports[end->other.outlets[index]].key;
  return ib_qp_post(end, qp, &request, 1);
}

static uint32_t path_missing(const struct ib_end *end, const struct ib_qp **first) {
  uint32_t missing = 0;
  for (uint32_t i = end->qp_count; i-- > 0;) {
    if (end->qps[i].path_good) continue;
    *first = &end->qps[i];
    missing++;
  }
  return missing;
}

ncclResult_t ib_path_fail(struct ib_end *end, const struct ib_qp *qp) {
  const struct ib_qp *first = qp;
  const unsigned long long waited_ms = (os_time_ns() - end->phase_ns) / 1000000;
  const uint32_t missing = path_missing(end, &first);
  char text[IB_QP_TEXT_BYTES];
  uint64_t bad = 0;
  for (uint32_t i = 0; i < end->qp_count && i < 64; i++) bad |= (uint64_t)!end->qps[i].path_good << i;
  if (ib_reconnect_begin(end, bad, false)) return ncclSuccess;
  return ib_fail(
      end, ncclRemoteError,
      "no answer in %llu ms over %s (%u of %u queue pairs have none): is this GID of the network that "
      "the other one is of (NCCL_IB_GID_INDEX, NCCL_IB_ADDR_RANGE), is there a route between them "
      "(ping -I), do switches let RoCE's UDP port 4791 through?",
      waited_ms, ib_qp_text(end, qp, text), missing, end->qp_count);
}

ncclResult_t ib_path_step(struct ib_end *end) {
  const struct ib_qp *first = NULL;
  const uint64_t now = os_time_ns();
  TRY(ib_poll(end));
  if (end->phase != IB_PATH) return ncclSuccess;
  const uint32_t missing = path_missing(end, &first);
  if (missing == 0) {
    ib_wire_note_send(&end->wire, WIRE_GO, 0);
    end->phase = IB_READY;
    log_info(LOG_NET, "Network IB: %s: rank %u to rank %u over %s, %u queue pairs", end->comm_name, end->rank,
             end->peer, end->device->name, end->qp_count);
    return ib_reconnect_resume(end);
  }
  if (now - end->phase_ns > (uint64_t)param_int(PARAM_TUTTI_IB_PATH_MS) * 1000000)
    return ib_path_fail(end, first);
  if (end->path_ns != 0 && now - end->path_ns < RETRY_NS) return ncclSuccess;
  end->path_ns = now;
  for (uint32_t i = 0; i < end->qp_count; i++)
    if (!end->qps[i].path_good && ib_qp_has_space(&end->qps[i], 1)) TRY(ib_path_write(end, &end->qps[i], i));
  return ncclSuccess;
}
