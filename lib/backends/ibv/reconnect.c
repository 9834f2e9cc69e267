/* reconnect.c: makes new queue pairs for a connection whose queue pairs failed, if TUTTI_IB_RECONNECT allows
 * it, and resumes. Both ends stop, drain their completions, make new queue pairs, on good ports if there are
 * any, and exchange their state over the socket. The receiver decides: calls that it reports as done are
 * done; all others are sent again, to the same buffers, which no caller has read. So no message is lost or
 * delivered twice.
 *
 *   either end                                          the other
 *   stops, drains, new queue pairs
 *   reconnect: calls that are done, info                ->  stops, drains, new queue pairs
 *                                                   <-  reconnect: calls that are done, info
 *   receiver: connects, posts receives, linked      ->  sender: connects, tries each path (path.c)
 *                                                   <-  go, and what was under way
 */
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

#define DRAIN_NS 1000000000ull
#define FAILOVERS 8       /* reconnects allowed by NCCL_IB_RESILIENCY_PORT_FAILOVER, which gives no number */
#define DIFFERENCES_MAX 4 /* rounds in which the ends choose different ports, before they try them anyway */

uint64_t ib_reconnect_most(void) {
  const int64_t set = param_int(PARAM_TUTTI_IB_RECONNECT);
  if (set >= 0) return (uint64_t)set;
  return param_int(PARAM_IB_RESILIENCY_PORT_FAILOVER) != 0 ? FAILOVERS : 0;
}

bool ib_reconnect_may(struct ib_end *end, bool asked) {
  if (!end->was_ready || end->gone || end->failed != ncclSuccess) return false;
  if (!asked && end->tries >= ib_reconnect_most()) return false;
  end->tries += !asked;
  return true;
}

static void reconnect_start(struct ib_end *end, uint64_t back) {
  end->reconnect.generation++;
  end->reconnect.back = back;
  end->own.bad &= ~back;
  end->flushed = NULL;
  ib_qps_stop(end);
  end->phase = IB_DRAIN;
  end->phase_ns = os_time_ns();
}

bool ib_reconnect_begin(struct ib_end *end, uint64_t bad, bool asked) {
  if (!ib_reconnect_may(end, asked)) return false;
  for (uint32_t i = 0; i < end->device->port_count; i++) ib_events_look(end->device->ports[i].of);
  end->own.bad |= bad;
  reconnect_start(end, ib_ports_back(end) & ~bad);
  log_warn("Network IB: %s: rank %u and rank %u over %s connect again, for the %lluth time%s", end->comm_name,
           end->rank, end->peer, end->device->name, (unsigned long long)end->reconnect.generation,
           asked ? ", as the other end asks for it" : "");
  return true;
}

/* Only if the limit leaves a reconnect for a failure on the way. */
void ib_reconnect_back(struct ib_end *end) {
  const bool may = end->tries < ib_reconnect_most() && ib_ports_left(end);
  const uint64_t back = may ? ib_ports_back(end) : 0;
  if (back == 0) return;
  reconnect_start(end, back);
  log_info(LOG_NET, "Network IB: %s: rank %u and rank %u over %s connect again, over ports that are up again",
           end->comm_name, end->rank, end->peer, end->device->name);
}

ncclResult_t ib_reconnect_asked(struct ib_end *end) {
  end->asked = true;
  end->wire.received = 0;
  if (ib_reconnect_begin(end, 0, true)) return ncclSuccess;
  return ib_fail(end, ncclRemoteError, "the other end asks to be connected again, out of turn");
}

/* Reads the rest of the other end's struct ib_reconnect. 1: complete, or none is due; 0: not yet; -1: closed.
 */
static int word_read(struct ib_end *end) {
  if (!end->asked || end->heard) return 1;
  const int got = ib_wire_receive(&end->wire, &end->others, sizeof end->others);
  end->heard = got > 0;
  return got;
}

/* Reads a note that announces a struct ib_reconnect, or that the receiver closes. */
static int note_read(struct ib_end *end) {
  const int got = ib_wire_note_receive(&end->wire);
  if (got <= 0) return got;
  const struct ib_note *note = &end->wire.note;
  if (note->kind == WIRE_RECONNECT) end->asked = true, end->wire.received = 0;
  if (note->kind == WIRE_BYE) end->said_bye = true, end->bye = note->number;
  return got;
}

static ncclResult_t step_drain(struct ib_end *end) {
  uint32_t receives = 0;
  TRY(ib_poll(end));
  for (uint32_t i = 0; i < end->qp_count; i++) receives += end->qps[i].receives;
  if (receives > 0 && os_time_ns() - end->phase_ns < DRAIN_NS) return ncclSuccess;
  if (receives > 0)
    return ib_fail(end, ncclSystemError, "%u receives of queue pairs that were stopped do not end", receives);
  const int heard = word_read(end);
  if (heard < 0) return ib_closed(end);
  if (heard == 0) return ncclSuccess;
  ib_qps_retire(end, 0, end->qp_count);
  end->reconnect.knew = end->heard && end->others.generation == end->reconnect.generation;
  if (end->heard) ib_ports_learn(end);
  ib_ports_choose(end);
  TRY(ib_qps_create(end));
  __atomic_store_n(&end->event, 0, __ATOMIC_RELAXED);
  end->reconnect.finished = end->finished;
  end->reconnect.begun = end->begun;
  end->reconnect.done = 0;
  for (uint64_t k = end->finished; k < end->begun && end->kind == IB_RECEIVE; k++)
    end->reconnect.done |= (uint64_t)(end->answers[k % IB_SLOTS].outstanding == 0) << k % IB_SLOTS;
  end->reconnect.info = end->own;
  ib_wire_note_send(&end->wire, WIRE_RECONNECT, end->reconnect.generation);
  end->wire.sent = 0;
  end->phase = IB_RECONNECT_OUT;
  return ncclSuccess;
}

/* A queue pair could not be connected, for example because its port has no route any more: marks it bad, too.
 */
static bool relink(struct ib_end *end) {
  const ncclResult_t failed = end->failed;
  const uint64_t bad = end->unlinked < 64 ? UINT64_C(1) << end->unlinked : 0;
  if (end->unlinked >= end->qp_count) return false;
  end->failed = ncclSuccess;
  if (ib_reconnect_begin(end, bad, false)) return true;
  end->failed = failed;
  return false;
}

static ncclResult_t reconnect_take(struct ib_end *end) {
  end->asked = end->heard = false;
  if (end->others.generation < end->reconnect.generation) return ncclSuccess; /* of an earlier reconnect */
  if (end->others.generation > end->reconnect.generation)
    return ib_fail(end, ncclRemoteError,
                   "the other end's reconnect message is invalid: load the same library everywhere");
  end->other = end->others.info;
  const bool agree = ib_ports_agree(end);
  if (!end->reconnect.knew) ib_ports_learn(end);
  if (!agree && end->differences++ < DIFFERENCES_MAX) {
    reconnect_start(end, 0);
    return ncclSuccess;
  }
  end->unlinked = end->qp_count;
  const ncclResult_t taken = ib_conn_info_take(end);
  if (taken != ncclSuccess) return relink(end) ? ncclSuccess : taken;
  end->phase = IB_LINK;
  if (end->kind == IB_SEND) return ncclSuccess;
  TRY(ib_receive_reconnect(end));
  ib_wire_note_send(&end->wire, WIRE_LINKED, end->reconnect.generation);
  end->phase = IB_GO;
  return ncclSuccess;
}

static ncclResult_t step_in(struct ib_end *end) {
  const int got = end->asked ? word_read(end) : note_read(end);
  if (got < 0) return ib_closed(end);
  return end->heard ? reconnect_take(end) : ncclSuccess;
}

static ncclResult_t step_link(struct ib_end *end) {
  const int got = note_read(end);
  if (got < 0) return ib_closed(end);
  if (got == 0) return ncclSuccess;
  if (end->asked) return ib_reconnect_asked(end);
  if (end->wire.note.kind != WIRE_LINKED || end->wire.note.number != end->reconnect.generation)
    return ncclSuccess;
  end->phase = IB_PATH;
  end->phase_ns = os_time_ns();
  end->path_ns = 0;
  return ncclSuccess;
}

ncclResult_t ib_reconnect_step(struct ib_end *end) {
  const int64_t seconds = param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  if (end->phase == IB_DRAIN) return step_drain(end);
  if (seconds > 0 && os_time_ns() - end->phase_ns > (uint64_t)seconds * 1000000000)
    return ib_fail(
        end, ncclRemoteError,
        "the other end has not answered for %lld seconds to being connected again: its process has "
        "nothing to do there, or is stuck",
        (long long)seconds);
  if (end->phase == IB_RECONNECT_IN) return step_in(end);
  if (end->phase == IB_LINK) return step_link(end);
  const int moved = ib_wire_send(&end->wire, &end->reconnect, sizeof end->reconnect);
  if (moved < 0) return ib_closed(end);
  if (moved > 0) end->phase = IB_RECONNECT_IN;
  return ncclSuccess;
}

ncclResult_t ib_reconnect_resume(struct ib_end *end) {
  const bool reconnect = end->reconnect.generation > 0;
  end->was_ready = true;
  end->linked_ns = os_time_ns();
  end->differences = 0;
  if (!reconnect) return ncclSuccess;
  log_info(LOG_NET, "Network IB: %s: rank %u and rank %u over %s are connected again", end->comm_name,
           end->rank, end->peer, end->device->name);
  return end->kind == IB_SEND ? ib_send_reconnect(end) : ib_receive_reannounce(end);
}
