/* events.c: asynchronous events: a fatal device error, a port that went down or came up, a queue pair or
 * completion queue in error. No thread waits for them; connections that make no progress poll for them. */
#include "backends/ibv/ib.h"
#include "base/param.h"

static void port_note(struct ib_context *context, int port, bool down) {
  if (!down) __atomic_store_n(&context->port_up_ns[port & UINT8_MAX], os_time_ns(), __ATOMIC_RELAXED);
  __atomic_store_n(&context->port_down[port & UINT8_MAX], down ? 1 : 0, __ATOMIC_RELAXED);
  if (down)
    log_warn(
        "Network IB: port %d of %s went down: what is under way is repeated until NCCL_IB_RETRY_CNT is "
        "used up; see its cable and its switch",
        port, context->name);
  else log_info(LOG_NET, "Network IB: port %d of %s is up again", port, context->name);
}

/* The queue pair's end is still valid: destroying a queue pair waits until its events are acknowledged. */
static void event_note(struct ib_context *context, const struct ibv_async_event *event) {
  struct ib_end *end = NULL;
  switch (event->event_type) {
    case IBV_EVENT_PORT_ERR: port_note(context, event->element.port_num, true); break;
    case IBV_EVENT_PORT_ACTIVE: port_note(context, event->element.port_num, false); break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_DEVICE_FATAL: __atomic_store_n(&context->dead, true, __ATOMIC_RELAXED); break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      end = (struct ib_end *)__atomic_load_n(&event->element.qp->qp_context, __ATOMIC_RELAXED);
      break;
    default: log_info(LOG_NET, "Network IB: %s: event %d", context->name, event->event_type);
  }
  const bool dead = event->event_type == IBV_EVENT_CQ_ERR || event->event_type == IBV_EVENT_DEVICE_FATAL;
  if ((end != NULL || dead) && param_int(PARAM_IB_RETURN_ASYNC_EVENTS) == 0)
    log_warn("Network IB: %s reports a failure, event %d; NCCL_IB_RETURN_ASYNC_EVENTS=0: nothing ends by it",
             context->name, (int)event->event_type);
  if (end != NULL) __atomic_store_n(&end->event, (int)event->event_type, __ATOMIC_RELAXED);
}

void ib_events_look(struct ib_context *context) {
  struct ibv_async_event event;
  if (!os_mutex_try_lock(&context->events_mutex)) return;
  while (context->verbs->event_get(context->context, &event) == 0) {
    event_note(context, &event);
    context->verbs->event_ack(&event);
  }
  os_mutex_unlock(&context->events_mutex);
}

const char *ib_end_event(const struct ib_end *end) {
  for (uint32_t i = 0; i < end->device->port_count; i++)
    if (__atomic_load_n(&end->device->ports[i].of->dead, __ATOMIC_RELAXED))
      return "the device reports a fatal error of its own: see the kernel's log (dmesg); it must be reset";
  switch (__atomic_load_n(&end->event, __ATOMIC_RELAXED)) {
    case 0: return NULL;
    case IBV_EVENT_QP_ACCESS_ERR:
      return "the device reports an access of the other end that a queue pair refused (QP_ACCESS_ERR)";
    case IBV_EVENT_QP_REQ_ERR:
      return "the device reports a request of the other end that a queue pair refused (QP_REQ_ERR)";
    default:
      return "the device reports that a queue pair has failed (QP_FATAL): see the kernel's log (dmesg)";
  }
}
