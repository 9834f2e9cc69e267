/* ports.c: assigns the queue pairs of a connection to ports. Queue pair k uses port k modulo the number of
 * ports, at both ends. If one of these two ports is known to be bad, it uses the ports of the next queue pair
 * whose ports are good. The ends exchange what they know, so both choose the same ports. When a port has been
 * up again for a while, its own end reports it, and the connection returns to it. */
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/param.h"

/* Adds the queue pairs that share a first port, at either end, with a bad one. */
static uint64_t bad_spread(const struct ib_end *end, uint64_t bad) {
  const uint32_t own = end->device->port_count, others = end->other.port_count;
  const uint32_t period = own > others ? own : others;
  uint64_t spread = 0;
  for (uint32_t i = 0; i < end->qp_count && i < 64; i++)
    for (uint32_t k = i % period; k < end->qp_count && k < 64; k += period) spread |= (bad >> k & 1) << i;
  return spread;
}

/* Bits of the queue pairs whose first port this is. */
static uint64_t port_bits(const struct ib_end *end, uint32_t outlet) {
  uint64_t bits = 0;
  for (uint32_t i = outlet; i < end->qp_count && i < 64; i += end->device->port_count)
    bits |= UINT64_C(1) << i;
  return bits;
}

static bool port_is_down(const struct ib_port *port) {
  return __atomic_load_n(&port->of->port_down[port->number], __ATOMIC_RELAXED) != 0;
}

/* When the port came up again; 0 if it was never down. */
static uint64_t port_up_ns(const struct ib_port *port) {
  return __atomic_load_n(&port->of->port_up_ns[port->number], __ATOMIC_RELAXED);
}

/* The queue pair whose first ports this one uses now. */
static uint32_t place_of(const struct ib_end *end, uint32_t index) {
  const uint32_t count = end->qp_count;
  uint32_t k = index;
  while (k < index + count && (end->own.bad >> k % count % 64 & 1) != 0) k++;
  return k % count;
}

/* Marks ports of this end that are down, or were down since the connection became ready. A device may report
 * that only after its queue pairs have failed. */
static void left_note(struct ib_end *end) {
  for (uint32_t i = 0; i < end->device->port_count; i++) {
    const struct ib_port *port = &end->device->ports[i];
    if ((end->own.bad & port_bits(end, i)) == 0) continue;
    if (port_is_down(port) || port_up_ns(port) > end->linked_ns) end->left |= 1u << i;
  }
}

void ib_ports_choose(struct ib_end *end) {
  const struct ib_device *device = end->device;
  for (uint32_t i = 0; i < device->port_count; i++) {
    ib_events_look(device->ports[i].of);
    if (port_is_down(&device->ports[i])) end->own.bad |= port_bits(end, i);
  }
  end->own.bad = bad_spread(end, end->own.bad);
  left_note(end);
  for (uint32_t i = 0; i < end->qp_count; i++)
    end->own.outlets[i] = (uint8_t)(place_of(end, i) % device->port_count);
}

bool ib_ports_agree(const struct ib_end *end) {
  if (end->other.port_count == 0) return true; /* invalid info, which ib_conn_info_take() reports */
  for (uint32_t i = 0; i < end->qp_count; i++)
    if (end->other.outlets[i] != place_of(end, i) % end->other.port_count) return false;
  return true;
}

void ib_ports_learn(struct ib_end *end) {
  const struct ib_reconnect *others = &end->others;
  if (others->knew && others->generation == end->reconnect.generation) end->own.bad = others->info.bad;
  else end->own.bad = (end->own.bad | others->info.bad) & ~(end->reconnect.back | others->back);
}

bool ib_ports_left(struct ib_end *end) {
  bool left = false;
  if (end->own.bad == 0) return false;
  left_note(end);
  for (uint32_t i = 0; i < end->qp_count && end->left != 0; i++) left |= place_of(end, i) != i;
  return left;
}

/* The port is active and still has the GID and LID of the info. */
static bool port_is_itself(const struct ib_port *port) {
  const struct verbs *verbs = port->of->verbs;
  struct ibv_port_attr now;
  union ibv_gid gid;
  if (verbs->port_query(port->of->context, port->number, &now) != 0) return false;
  if (verbs->gid_query(port->of->context, port->number, port->gid_index, &gid) != 0) return false;
  return now.state == IBV_PORT_ACTIVE && now.lid == port->attributes.lid &&
         memcmp(&gid, &port->gid, sizeof gid) == 0;
}

uint64_t ib_ports_back(struct ib_end *end) {
  const int64_t wait_ms = param_int(PARAM_TUTTI_IB_RETURN_MS);
  uint64_t back = 0;
  if (wait_ms < 0) return 0;
  for (uint32_t i = 0; i < end->device->port_count && end->left != 0; i++) {
    const struct ib_port *port = &end->device->ports[i];
    if ((end->left >> i & 1) == 0 || port_is_down(port)) continue;
    if (os_time_ns() - port_up_ns(port) < (uint64_t)wait_ms * 1000000 || !port_is_itself(port)) continue;
    end->left &= ~(1u << i);
    back |= port_bits(end, i) & end->own.bad;
  }
  return back;
}
