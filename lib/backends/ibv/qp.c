/* qp.c: creates queue pairs, connects them, and counts the free entries of their send queues. A work
 * request's id contains its purpose, its message and the number of requests posted before it, because a
 * failed completion has no other reliable field. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/log.h"
#include "base/param.h"

enum { MIN_RNR_TIMER = 12 /* 0.64 ms */, RNR_FOR_EVER = 7, HOP_LIMIT = 255 };

uint64_t ib_work_id(enum ib_work work, uint64_t number, const struct ib_qp *qp) {
  return (uint64_t)work << 60 | (number & 0xfffffff) << 32 | qp->posted;
}

bool ib_qp_has_space(const struct ib_qp *qp, uint32_t requests) {
  return qp->posted - qp->retired + requests <= IB_SEND_DEPTH;
}

ncclResult_t ib_qp_post(struct ib_end *end, struct ib_qp *qp, struct ibv_send_wr *first, uint32_t count) {
  struct ibv_send_wr *bad = NULL;
  char text[IB_QP_TEXT_BYTES];
  const int error = end->verbs->send_post(qp->qp, first, &bad);
  if (error == 0) {
    qp->posted += count;
    return ncclSuccess;
  }
  return ib_fail(end, ncclSystemError, "%s takes no work request (%s): the device's driver refuses",
                 ib_qp_text(end, qp, text), strerror(error > 0 ? error : errno));
}

const char *ib_qp_text(const struct ib_end *end, const struct ib_qp *qp, char out[IB_QP_TEXT_BYTES]) {
  const uint32_t index = (uint32_t)(qp - end->qps);
  const struct ib_port *port = &end->device->ports[qp->outlet];
  if (index >= end->qp_count) {
    snprintf(out, IB_QP_TEXT_BYTES, "the queue pair of %s:%u to itself", port->of->name, port->number);
    return out;
  }
  const struct ib_port_info *other = &end->other.ports[end->other.outlets[index]];
  union ibv_gid gid;
  char own_text[GID_TEXT_BYTES], other_text[GID_TEXT_BYTES];
  memcpy(gid.raw, other->gid, sizeof gid.raw);
  snprintf(out, IB_QP_TEXT_BYTES, "queue pair %u (number %u to %u), %s:%u with GID %d (%s) to %s's GID %s",
           index, qp->qp != NULL ? qp->qp->qp_num : 0, end->other.qps[index], port->of->name, port->number,
           port->gid_index, gid_text(&port->gid, own_text), end->other.name, gid_text(&gid, other_text));
  return out;
}

static ncclResult_t qp_failed(struct ib_end *end, const struct ib_qp *qp, const char *what) {
  char text[IB_QP_TEXT_BYTES];
  const int error = errno;
  return ib_fail(end, ncclSystemError, "%s cannot be %s (%s)", ib_qp_text(end, qp, text), what,
                 strerror(error));
}

static ncclResult_t qp_create(struct ib_end *end, struct ib_qp *qp) {
  const struct ib_outlet *outlet = &end->outlets[qp->outlet];
  const struct ib_port *port = &end->device->ports[qp->outlet];
  struct ibv_qp_init_attr attributes;
  struct ibv_qp_attr init;
  memset(&attributes, 0, sizeof attributes);
  attributes.qp_context = qp - end->qps < end->qp_count ? end : NULL;
  attributes.send_cq = attributes.recv_cq = outlet->cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = IB_SEND_DEPTH;
  attributes.cap.max_recv_wr = IB_RECEIVE_DEPTH;
  attributes.cap.max_send_sge = IB_PLACES;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = param_int(PARAM_IB_USE_INLINE) != 0 ? IB_INLINE_BYTES : 0;
  qp->qp = end->verbs->qp_create(outlet->pd, &attributes);
  if (qp->qp == NULL) return qp_failed(end, qp, "made: the device may have no more of them");
  memset(&init, 0, sizeof init);
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = (uint16_t)param_int(PARAM_IB_PKEY);
  init.port_num = port->number;
  init.qp_access_flags = qp - end->qps < end->qp_count ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (end->verbs->qp_modify(qp->qp, &init, mask) != 0) return qp_failed(end, qp, "set up: see NCCL_IB_PKEY");
  return ncclSuccess;
}

/* The vendor options (ECE) of the device; zero if there are none. */
static void qp_options(struct ib_end *end, const struct ib_qp *qp) {
  struct ibv_ece *options = &end->own.ports[qp->outlet].options;
  const struct verbs *verbs = end->verbs;
  const bool known = verbs->options_query != NULL && verbs->options_set != NULL;
  if (known && param_int(PARAM_IB_ECE_ENABLE) != 0 && verbs->options_query(qp->qp, options) == 0) return;
  memset(options, 0, sizeof *options);
}

ncclResult_t ib_qps_create(struct ib_end *end) {
  if (end->qps == NULL)
    end->qps = (struct ib_qp *)os_alloc((end->qp_count + end->device->port_count) * sizeof *end->qps);
  if (end->qps == NULL)
    return ib_fail(end, ncclSystemError, "%u queue pairs" LOG_OUT_OF_MEMORY, end->qp_count);
  for (uint32_t i = 0; i < end->qp_count; i++) {
    memset(&end->qps[i], 0, sizeof end->qps[i]);
    end->qps[i].outlet = end->own.outlets[i];
    TRY(qp_create(end, &end->qps[i]));
    end->own.qps[i] = end->qps[i].qp->qp_num;
    qp_options(end, &end->qps[i]);
  }
  return ncclSuccess;
}

/* Of queue pairs on RoCE: NCCL_IB_FIFO_TC, of a receiver's; else NCCL_IB_TC; else the communicator's. */
static uint8_t qp_traffic_class(const struct ib_end *end) {
  const int64_t own = end->kind == IB_RECEIVE ? param_int(PARAM_IB_FIFO_TC) : -1;
  if (own >= 0) return (uint8_t)own;
  if (param_is_set(PARAM_IB_TC) || end->traffic_class == 0) return (uint8_t)param_int(PARAM_IB_TC);
  return (uint8_t)(end->traffic_class - 1);
}

/* A global route is needed on Ethernet, to other subnets, and if a port has no LID. */
static void qp_address(const struct ib_end *end, const struct ib_port *port, const struct ib_port_info *other,
                       struct ibv_ah_attr *at) {
  const bool other_subnet = memcmp(port->gid.raw, other->gid, 8) != 0;
  at->is_global = port->ethernet || other->lid == 0 || other_subnet ? 1 : 0;
  memcpy(at->grh.dgid.raw, other->gid, sizeof other->gid);
  at->grh.sgid_index = (uint8_t)port->gid_index;
  at->grh.hop_limit = HOP_LIMIT;
  if (port->ethernet) at->grh.traffic_class = qp_traffic_class(end);
  at->dlid = other->lid;
  at->sl = (uint8_t)param_int(PARAM_IB_SL);
  at->port_num = port->number;
}

static ncclResult_t qp_connect(struct ib_end *end, struct ib_qp *qp, const struct ib_port_info *other,
                               uint32_t number) {
  const struct ib_port *port = &end->device->ports[qp->outlet];
  struct ibv_qp_attr attributes;
  memset(&attributes, 0, sizeof attributes);
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = port->attributes.active_mtu;
  if (other->mtu < (uint8_t)attributes.path_mtu) attributes.path_mtu = (enum ibv_mtu)other->mtu;
  attributes.dest_qp_num = number;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = MIN_RNR_TIMER;
  qp_address(end, port, other, &attributes.ah_attr);
  const int ready_to_receive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (end->verbs->qp_modify(qp->qp, &attributes, ready_to_receive) != 0)
    return qp_failed(end, qp, "connected: no route leads from this GID to that one, see NCCL_IB_GID_INDEX");
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = (uint8_t)param_int(PARAM_IB_TIMEOUT);
  attributes.retry_cnt = (uint8_t)param_int(PARAM_IB_RETRY_CNT);
  attributes.rnr_retry = RNR_FOR_EVER;
  attributes.max_rd_atomic = 1;
  const int ready_to_send = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  if (end->verbs->qp_modify(qp->qp, &attributes, ready_to_send) != 0) return qp_failed(end, qp, "made ready");
  return ncclSuccess;
}

/* Negotiates vendor options (ECE) if both devices have them: the sender offers its options, and the
 * receiver's device returns those that it supports, too. */
static void qp_agree(struct ib_end *end, struct ib_qp *qp, uint32_t index) {
  struct ib_port_info *own = &end->own.ports[qp->outlet];
  const struct ibv_ece *other = &end->other.ports[end->other.outlets[index]].options;
  const struct verbs *verbs = end->verbs;
  if (other->vendor_id == 0 || own->options.vendor_id != other->vendor_id) return;
  struct ibv_ece wanted = *other;
  if (verbs->options_set(qp->qp, &wanted) != 0 || verbs->options_query(qp->qp, &own->options) != 0)
    log_info(LOG_NET, "Network IB: %s: %s refuses the other end's options (NCCL_IB_ECE_ENABLE)",
             end->comm_name, end->device->ports[qp->outlet].of->name);
}

ncclResult_t ib_qps_connect(struct ib_end *end) {
  for (uint32_t i = 0; i < end->qp_count; i++) {
    end->unlinked = i;
    qp_agree(end, &end->qps[i], i);
    TRY(qp_connect(end, &end->qps[i], &end->other.ports[end->other.outlets[i]], end->other.qps[i]));
  }
  end->unlinked = end->qp_count;
  return ncclSuccess;
}

ncclResult_t ib_qps_loop(struct ib_end *end) {
  while (end->loop_count < end->device->port_count) {
    struct ib_qp *qp = &end->qps[end->qp_count + end->loop_count];
    memset(qp, 0, sizeof *qp);
    qp->outlet = end->loop_count;
    TRY(qp_create(end, qp));
    end->loop_count++;
    TRY(qp_connect(end, qp, &end->own.ports[qp->outlet], qp->qp->qp_num));
  }
  return ncclSuccess;
}

void ib_qps_stop(struct ib_end *end) {
  struct ibv_qp_attr attributes;
  memset(&attributes, 0, sizeof attributes);
  attributes.qp_state = IBV_QPS_ERR;
  for (uint32_t i = 0; i < end->qp_count; i++)
    if (end->qps[i].qp != NULL) (void)end->verbs->qp_modify(end->qps[i].qp, &attributes, IBV_QP_STATE);
}

/* Queue pairs that a reconnect replaces, until their destruction has ended. */
struct ib_retired {
  struct ib_retired *next;
  const struct verbs *verbs;
  os_thread thread;
  bool started;
  uint32_t count;
  struct ibv_qp *qps[];
};

static void *retired_body(void *argument) {
  const struct ib_retired *retired = (const struct ib_retired *)argument;
  for (uint32_t i = 0; i < retired->count; i++) retired->verbs->qp_destroy(retired->qps[i]);
  return NULL;
}

void ib_qps_retire(struct ib_end *end, uint32_t begin, uint32_t count) {
  struct ib_retired *retired =
      (struct ib_retired *)os_alloc(sizeof *retired + count * sizeof retired->qps[0]);
  struct ib_qp *qps = end->qps + begin;
  for (uint32_t i = 0; i < count; i++) {
    if (qps[i].qp == NULL) continue;
    __atomic_store_n(&qps[i].qp->qp_context, NULL, __ATOMIC_RELAXED); /* its events no longer matter */
    if (retired != NULL) retired->qps[retired->count++] = qps[i].qp;
    else end->verbs->qp_destroy(qps[i].qp);
    qps[i].qp = NULL;
  }
  if (retired == NULL) return;
  retired->verbs = end->verbs;
  retired->next = end->retired;
  end->retired = retired;
  retired->started = os_thread_start_named(&retired->thread, "tutti-ib-qp", retired_body, retired);
  if (retired->started) os_thread_note(1);
  else retired_body(retired);
}

void ib_qps_destroy(struct ib_end *end) {
  for (uint32_t i = 0; end->qps != NULL && i < end->qp_count + end->loop_count; i++)
    if (end->qps[i].qp != NULL) end->verbs->qp_destroy(end->qps[i].qp);
  os_free(end->qps);
  end->qps = NULL;
  while (end->retired != NULL) {
    struct ib_retired *retired = end->retired;
    end->retired = retired->next;
    if (retired->started) os_thread_join(retired->thread), os_thread_note(-1);
    os_free(retired);
  }
}
