/* silence.c: detects queue pairs that complete nothing. A device must complete each request, with success or
 * with an error, when its retries are used up. Soft-RoCE sometimes does not, if several packets in a row are
 * lost. So a queue pair with requests under way and no completions is probed with a write without data: the
 * packet makes the receiver request what is missing. If several probes do not help, the queue pair has
 * failed. */
#include <stdio.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

#define ACK_UNIT_NS 4096ull    /* times two to the power of NCCL_IB_TIMEOUT */
#define ACK_FACTOR 4           /* a device's timeout may be this much longer than configured */
#define LEAST_NS 2000000000ull /* a busy machine may delay completions by less than this */
#define ASKS 8                 /* probes before the queue pair has failed */

/* How long a queue pair may complete nothing; 0: without limit. */
static uint64_t silence_ns(void) {
  const int64_t set_ms = param_int(PARAM_TUTTI_IB_SILENCE_MS), exponent = param_int(PARAM_IB_TIMEOUT);
  if (set_ms > 0) return (uint64_t)set_ms * 1000000;
  if (set_ms < 0 || exponent == 0) return 0;
  const uint64_t times = ACK_FACTOR * (uint64_t)(param_int(PARAM_IB_RETRY_CNT) + 1);
  const uint64_t owed = (ACK_UNIT_NS << exponent) * times, due = owed > LEAST_NS ? owed : LEAST_NS;
  const uint64_t patience = (uint64_t)param_int(PARAM_TUTTI_NET_PATIENCE_SECONDS) * 750000000;
  const bool may = ib_reconnect_most() > 0 && patience > 0;
  return may && patience < due ? patience : due; /* before the communicator's own timeout */
}

static ncclResult_t qp_give_up(struct ib_end *end, const struct ib_qp *qp, uint64_t limit_ns) {
  char text[IB_QP_TEXT_BYTES];
  const unsigned long long ms = limit_ns / 1000000;
  static const char why[] =
      "nothing has come of what is under way for %llu ms on %s: not even an error, which its device owes "
      "when NCCL_IB_RETRY_CNT is used up (TUTTI_IB_SILENCE_MS)";
  ib_qp_text(end, qp, text);
  if (!ib_reconnect_begin(end, 0, false)) return ib_fail(end, ncclRemoteError, why, ms, text);
  char sentence[sizeof why + IB_QP_TEXT_BYTES + 20];
  snprintf(sentence, sizeof sentence, why, ms, text);
  log_warn("Network IB: %s: %s", end->comm_name, sentence);
  return ncclSuccess;
}

static ncclResult_t qp_look(struct ib_end *end, uint32_t index, uint64_t now_ns, uint64_t limit_ns) {
  struct ib_qp *qp = &end->qps[index];
  if (qp->posted == qp->retired || qp->received_ns == 0 || qp->heard != qp->retired) {
    qp->heard = qp->retired;
    qp->received_ns = qp->asked_ns = now_ns;
    qp->probed = false;
    return ncclSuccess;
  }
  if (now_ns - qp->asked_ns < limit_ns / ASKS) return ncclSuccess;
  /* If this process itself was stopped for long, it probes before it takes the queue pair as failed. A probe
   * that was sent before counts: the device had time for it while the process was stopped. */
  if (now_ns - qp->asked_ns > limit_ns && !qp->probed) qp->received_ns = now_ns;
  qp->asked_ns = now_ns;
  if (now_ns - qp->received_ns >= limit_ns) return qp_give_up(end, qp, limit_ns);
  qp->probed = true;
  return ib_qp_has_space(qp, 1) ? ib_path_write(end, qp, index) : ncclSuccess;
}

ncclResult_t ib_silence_look(struct ib_end *end) {
  const uint64_t limit_ns = silence_ns(), now_ns = os_time_ns();
  for (uint32_t i = 0; limit_ns > 0 && i < end->qp_count && end->phase == IB_READY; i++)
    TRY(qp_look(end, i, now_ns, limit_ns));
  return ncclSuccess;
}
