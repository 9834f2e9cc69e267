/* silence.c: a device ends each request, well or not, when its repetitions are used up. Where it has
 * forgotten that it waits, as Soft-RoCE does at times when packets are lost in a row, nothing comes, for
 * ever. So a queue pair that has something under way and completes nothing is asked now and then, by a write
 * without data: the packet makes its receiver ask for what is missing. One that has long been due has failed.
 */
#include <stdio.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

#define ACK_UNIT_NS 4096ull    /* times two to the power of NCCL_IB_TIMEOUT */
#define ACK_FACTOR 4           /* a device may take so much longer than it was asked to */
#define LEAST_NS 2000000000ull /* a busy machine is not a silent one */
#define ASKS 8                 /* until it has failed */

/* How long nothing may come; 0: for ever. */
static uint64_t silence_ns(void) {
  const int64_t set_ms = param_int(PARAM_TUTTI_IB_SILENCE_MS), exponent = param_int(PARAM_IB_TIMEOUT);
  if (set_ms > 0) return (uint64_t)set_ms * 1000000;
  if (set_ms < 0 || exponent == 0) return 0;
  const uint64_t times = ACK_FACTOR * (uint64_t)(param_int(PARAM_IB_RETRY_CNT) + 1);
  const uint64_t owed = (ACK_UNIT_NS << exponent) * times, due = owed > LEAST_NS ? owed : LEAST_NS;
  const uint64_t patience = (uint64_t)param_int(PARAM_TUTTI_NET_PATIENCE_SECONDS) * 750000000;
  const bool may = ib_reconnect_most() > 0 && patience > 0;
  return may && patience < due ? patience : due; /* before the communicator is given up */
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
    return ncclSuccess;
  }
  if (now_ns - qp->asked_ns < limit_ns / ASKS) return ncclSuccess;
  /* An end that was away for long, as its process was, asks before it judges. */
  if (now_ns - qp->asked_ns > limit_ns) qp->received_ns = now_ns;
  qp->asked_ns = now_ns;
  if (now_ns - qp->received_ns >= limit_ns) return qp_give_up(end, qp, limit_ns);
  return ib_qp_has_space(qp, 1) ? ib_path_write(end, qp, index) : ncclSuccess;
}

ncclResult_t ib_silence_look(struct ib_end *end) {
  const uint64_t limit_ns = silence_ns(), now_ns = os_time_ns();
  for (uint32_t i = 0; limit_ns > 0 && i < end->qp_count && end->phase == IB_READY; i++)
    TRY(qp_look(end, i, now_ns, limit_ns));
  return ncclSuccess;
}
