/* complete.c: handles completions, and notices when the other end closes. A failed completion ends the
 * connection with one message: the queue pair, both ends, the device's status and the likely cause. Messages
 * that were received before are still delivered. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

#define BATCH 16
#define ROUNDS_MAX 8      /* polls in one call, so that other connections make progress, too */
#define WIRE_PERIOD 256   /* calls without a completion between two reads of the socket, a system call each */
#define EVENTS_PERIOD 512 /* the same for the devices' events */
#define GONE_NS 50000000ull

static const struct {
  enum ibv_wc_status status;
  const char *name, *cause;
} statuses[] = {
    {IBV_WC_LOC_LEN_ERR, "LOC_LEN_ERR", "a message was longer than what was posted for it"},
    {IBV_WC_LOC_QP_OP_ERR, "LOC_QP_OP_ERR",
     "the device could not carry it out: the work request is wrong, or its port is about to be down"},
    {IBV_WC_LOC_PROT_ERR, "LOC_PROT_ERR", "memory of this process is not registered (any more)"},
    {IBV_WC_WR_FLUSH_ERR, "WR_FLUSH_ERR",
     "the queue pair had stopped before, and nothing here says why: the other process may know"},
    {IBV_WC_LOC_ACCESS_ERR, "LOC_ACCESS_ERR", "memory of this process may not be written"},
    {IBV_WC_REM_INV_REQ_ERR, "REM_INV_REQ_ERR", "the other end's device found the request wrong"},
    {IBV_WC_REM_ACCESS_ERR, "REM_ACCESS_ERR",
     "memory of the other process is not registered (any more): it may have dropped the operation"},
    {IBV_WC_REM_OP_ERR, "REM_OP_ERR", "the other end's device could not carry it out"},
    {IBV_WC_RETRY_EXC_ERR, "RETRY_EXC_ERR",
     "nobody acknowledged it, however often it was repeated: the other process or host has gone, a link or a "
     "route is broken, or switches drop packets; NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT say for how long"},
    {IBV_WC_RNR_RETRY_EXC_ERR, "RNR_RETRY_EXC_ERR", "the other end had nothing posted to take it"},
    {IBV_WC_FATAL_ERR, "FATAL_ERR", "the device has failed: see the kernel's log (dmesg)"},
    {IBV_WC_GENERAL_ERR, "GENERAL_ERR", "the device has failed: see the kernel's log (dmesg)"},
};

/* The status is a failure of a queue pair or a link, not of memory or of a request: a new queue pair may
 * work. Soft-RoCE reports LOC_QP_OP_ERR if it cannot send because its port is about to go down. */
static bool status_may_pass(enum ibv_wc_status status) {
  return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR || status == IBV_WC_GENERAL_ERR ||
         status == IBV_WC_REM_OP_ERR || status == IBV_WC_LOC_QP_OP_ERR;
}

static uint64_t qp_bit(const struct ib_end *end, const struct ib_qp *qp, enum ibv_wc_status status) {
  const uint32_t index = (uint32_t)(qp - end->qps);
  const bool bad = status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_LOC_QP_OP_ERR;
  return bad && index < 64 ? (uint64_t)1 << index : 0;
}

/* True if the queue pairs are made again. On a port that is down any status counts. */
static bool goes_on(struct ib_end *end, const struct ib_qp *qp, const struct ibv_wc *wc, bool down) {
  if (!status_may_pass(wc->status) && !down) return false;
  if (wc->wr_id >> 60 == IB_WORK_FLUSH) return ib_flush_reconnect(end);
  return ib_reconnect_begin(end, qp_bit(end, qp, wc->status), false);
}

static ncclResult_t completion_fail(struct ib_end *end, const struct ib_qp *qp, const struct ibv_wc *wc) {
  static const char *const works[] = {"a message", "word of a receive", "a receive", "the test of the path",
                                      "a flush of device memory"};
  const struct ib_port *port = &end->device->ports[qp->outlet];
  const uint64_t work = wc->wr_id >> 60;
  if (end->phase == IB_PATH && wc->status == IBV_WC_RETRY_EXC_ERR) return ib_path_fail(end, qp);
  const char *name = "of an unknown kind", *cause = "the device's driver knows more", *event;
  char text[IB_QP_TEXT_BYTES];
  for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
    if (statuses[i].status == wc->status) name = statuses[i].name, cause = statuses[i].cause;
  ib_events_look(port->of);
  event = ib_end_event(end);
  const bool down = __atomic_load_n(&port->of->port_down[port->number], __ATOMIC_RELAXED) != 0;
  if (down) cause = "this port is down: see its cable and its switch";
  const char *what = works[(work - 1) % (sizeof works / sizeof works[0])];
  ib_qp_text(end, qp, text);
  if (goes_on(end, qp, wc, down)) {
    log_info(LOG_NET, "Network IB: %s: %s failed on %s: status %d %s, vendor code 0x%x: %s", end->comm_name,
             what, text, (int)wc->status, name, wc->vendor_err, cause);
    return ncclSuccess;
  }
  return ib_fail(end, ncclRemoteError, "%s failed on %s: status %d %s, vendor code 0x%x: %s", what, text,
                 (int)wc->status, name, wc->vendor_err, event != NULL ? event : cause);
}

/* Queue pairs of two devices may have the same number. */
static struct ib_qp *qp_of(struct ib_end *end, uint32_t outlet, uint32_t number) {
  for (uint32_t i = 0; i < end->qp_count + end->loop_count; i++)
    if (end->qps[i].outlet == outlet && end->qps[i].qp->qp_num == number) return &end->qps[i];
  return NULL;
}

static ncclResult_t completion_take(struct ib_end *end, uint32_t outlet, const struct ibv_wc *wc) {
  const uint64_t number = wc->wr_id >> 32 & 0xfffffff;
  struct ib_qp *qp = qp_of(end, outlet, wc->qp_num);
  if (qp == NULL && end->reconnect.generation + end->tries > 0)
    return ncclSuccess; /* of a queue pair from before a reconnect */
  if (qp == NULL)
    return ib_fail(end, ncclInternalError, "a completion of queue pair %u, which is not there", wc->qp_num);
  qp->receives -= wc->wr_id >> 60 == IB_WORK_RECEIVE;
  if (wc->status != IBV_WC_SUCCESS && wc->wr_id >> 60 == IB_WORK_FLUSH) return completion_fail(end, qp, wc);
  if (wc->status != IBV_WC_SUCCESS && end->phase == IB_DRAIN) return ncclSuccess;
  if (wc->status == IBV_WC_WR_FLUSH_ERR) {
    if (end->flushed == NULL) end->flushed_id = wc->wr_id;
    end->flushed = qp; /* the completion with the cause follows, or came before */
    return ncclSuccess;
  }
  if (wc->status != IBV_WC_SUCCESS) return completion_fail(end, qp, wc);
  if (wc->wr_id >> 60 == IB_WORK_RECEIVE) return ib_receive_completed(end, number, ntohl(wc->imm_data));
  qp->retired = (uint32_t)wc->wr_id;
  if (wc->wr_id >> 60 == IB_WORK_PATH) qp->path_good = true;
  if (wc->wr_id >> 60 == IB_WORK_DATA) ib_send_completed(end, number);
  if (wc->wr_id >> 60 == IB_WORK_FLUSH) ib_flush_completed(end, number);
  return ncclSuccess;
}

/* *count: completions handled. */
static ncclResult_t queues_poll(struct ib_end *end, uint32_t *count) {
  struct ibv_wc completions[BATCH];
  for (uint32_t i = 0; i < end->device->port_count; i++) {
    int got = BATCH;
    for (int round = 0; round < ROUNDS_MAX && got == BATCH; round++) {
      got = end->verbs->cq_poll(end->outlets[i].cq, BATCH, completions);
      if (got < 0)
        return ib_fail(end, ncclSystemError, "a completion queue cannot be read: the device has failed");
      *count += (uint32_t)got;
      const enum ib_phase phase = end->phase;
      for (int k = 0; k < got; k++) TRY(completion_take(end, i, &completions[k]));
      if (end->phase != phase) return ncclSuccess; /* a reconnect began, which drains the queues */
    }
  }
  return ncclSuccess;
}

/* The other end has closed: the messages that it has received are done, acknowledged or not; the others fail.
 */
static ncclResult_t sender_settle(struct ib_end *end) {
  bool lost = false;
  for (uint32_t i = 0; i < IB_SLOTS; i++) {
    struct ib_answer *answer = &end->answers[i];
    if (answer->outstanding == 0) continue;
    if (end->said_bye && answer->number < end->bye)
      answer->outstanding = 1, ib_send_completed(end, answer->number);
    else lost = true;
  }
  return lost ? ib_gone(end) : ncclSuccess;
}

ncclResult_t ib_closed(struct ib_end *end) {
  end->gone = true;
  end->phase = IB_READY;
  if (end->kind == IB_SEND) return sender_settle(end);
  return end->finished == end->begun ? ncclSuccess : ib_gone(end);
}

static void wire_look(struct ib_end *end) {
  if (end->gone || end->wire.fd < 0) return;
  int got = 0;
  while (!end->asked && (got = ib_wire_note_receive(&end->wire)) > 0) {
    end->asked = end->wire.note.kind == WIRE_RECONNECT;
    if (end->wire.note.kind != WIRE_BYE) continue;
    end->said_bye = true;
    end->bye = end->wire.note.number;
  }
  if (got >= 0) return;
  end->gone = true;
  end->phase_ns = os_time_ns();
}

/* The socket may close before the last completions arrive, so a receiver waits GONE_NS for them. */
static ncclResult_t gone_check(struct ib_end *end) {
  if (end->kind == IB_SEND) return sender_settle(end);
  if (end->finished == end->begun || os_time_ns() - end->phase_ns < GONE_NS) return ncclSuccess;
  return ib_gone(end);
}

static ncclResult_t idle_look(struct ib_end *end, bool closely) {
  end->idle++;
  if (!closely && end->idle % WIRE_PERIOD != 0) return end->gone ? gone_check(end) : ncclSuccess;
  wire_look(end);
  if (end->asked) return ib_reconnect_asked(end);
  const bool all = closely || end->idle % EVENTS_PERIOD == 0;
  for (uint32_t i = 0; i < end->device->port_count && all; i++) ib_events_look(end->device->ports[i].of);
  const char *event = ib_end_event(end);
  if (event != NULL && end->event == IBV_EVENT_QP_FATAL && ib_reconnect_begin(end, 0, false))
    return ncclSuccess;
  if (event != NULL && param_int(PARAM_IB_RETURN_ASYNC_EVENTS) != 0)
    return ib_fail(end, ncclSystemError, "%s", event);
  if (end->gone) return gone_check(end);
  return all ? ib_silence_look(end) : ncclSuccess;
}

static ncclResult_t flushed_check(struct ib_end *end) {
  struct ibv_wc wc;
  wire_look(end);
  if (end->asked) return ib_reconnect_asked(end);
  if (end->gone) return end->kind == IB_SEND ? sender_settle(end) : ib_gone(end);
  memset(&wc, 0, sizeof wc);
  wc.status = IBV_WC_WR_FLUSH_ERR;
  wc.wr_id = end->flushed_id;
  return completion_fail(end, end->flushed, &wc);
}

static ncclResult_t poll_end(struct ib_end *end, bool closely) {
  uint32_t count = 0;
  if (end->failed != ncclSuccess) return end->failed;
  TRY(queues_poll(end, &count));
  if (end->flushed != NULL) return flushed_check(end);
  if (count == 0 && end->phase == IB_READY) return idle_look(end, closely);
  return ncclSuccess;
}

ncclResult_t ib_poll(struct ib_end *end) { return poll_end(end, false); }

/* The proxy's check of an idle connection. */
ncclResult_t ib_look(struct ib_end *end, enum net_look *wish) {
  *wish = NET_LOOK_NEVER;
  if (end->gone || end->failed != ncclSuccess || ib_reconnect_most() == 0) return ncclSuccess;
  *wish = NET_LOOK_LATER;
  if (!end->was_ready) return ncclSuccess; /* isend and irecv drive the connecting */
  TRY(end->phase == IB_READY ? poll_end(end, true) : ib_end_step(end));
  if (end->phase == IB_READY && !end->gone) ib_reconnect_back(end);
  if (end->phase != IB_READY) *wish = NET_LOOK_SOON;
  return ncclSuccess;
}
