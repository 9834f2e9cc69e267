/* proxy_ll.c: slices of LL. LL lines exist only between a kernel and its own proxy: a sender's proxy extracts
 * the data once all lines have their flag, a receiver's proxy makes lines of the received data. The message
 * on the network is that of Simple, half the size of the lines. So a network may deliver bytes in any order
 * and in any pieces, a message is checked before the kernel sees any of it, and each end counts its own
 * flags. The cost is one copy of a short message at each end. */
#include <inttypes.h>

#include "base/log.h"
#include "base/os.h"
#include "core/proxy/proxy_impl.h"

#define PLACE_ALIGN 64u

ncclResult_t proxy_ll_open(struct proxy_conn *conn, const struct device_net_end *end) {
  const size_t bytes = end->step_bytes / 2 + sizeof(struct proxy_trailer);
  struct proxy_ll *ll = (struct proxy_ll *)os_alloc(sizeof *ll);
  if (ll != NULL) {
    ll->place_bytes = (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
    ll->stage = (uint8_t *)os_pages_map(PROXY_SLICES_MAX * ll->place_bytes);
    ll->next = end->first_line;
  }
  if (ll == NULL || ll->stage == NULL) {
    os_free(ll);
    return log_no_memory("comm %s: rank %" PRIu32 ": lines of rank %" PRIu32, conn->comm->name,
                         conn->comm->call.rank, conn->name.peer);
  }
  proxy_lock();
  conn->ll = ll;
  proxy_unlock();
  return ncclSuccess;
}

void proxy_ll_withdraw(const struct net_ops *net, struct proxy_conn *conn) {
  struct proxy_ll *ll = conn->ll;
  if (ll == NULL || ll->registration == NULL) return;
  net->unregister_memory(conn->connection, ll->registration);
  ll->registration = NULL;
}

void proxy_ll_close(struct proxy_conn *conn) {
  struct proxy_ll *ll = conn->ll;
  if (ll == NULL) return;
  os_pages_unmap(ll->stage, PROXY_SLICES_MAX * ll->place_bytes);
  os_free(ll);
  conn->ll = NULL;
}

ncclResult_t proxy_ll_register(struct proxy_conn *conn) {
  struct proxy_ll *ll = conn->ll;
  if (ll->registered) return ncclSuccess;
  ll->registered = true;
  return conn->comm->net->register_memory(conn->connection, ll->stage, PROXY_SLICES_MAX * ll->place_bytes,
                                          NET_MEMORY_HOST, &ll->registration);
}

uint8_t *proxy_ll_place(const struct proxy_conn *conn, const struct proxy_flight *flight) {
  return conn->ll->stage + (size_t)(flight - conn->flights) * conn->ll->place_bytes;
}

static struct device_net_step step_of(const struct proxy_flight *flight) {
  const struct transfer *slice = &flight->slice;
  const struct device_net_step step = {
      slice->begin,        flight->line,     slice->bytes,
      slice->agreed_bytes, slice->announces, (uint8_t)flight->task->posting->ops->limits.flag_bits};
  return step;
}

bool proxy_ll_take(struct proxy_conn *conn, struct proxy_flight *flight) {
  const struct device_net_step step = step_of(flight);
  if (!flight->staged)
    flight->staged =
        conn->comm->call.ops->network->net_take(conn->end.conn, &step, proxy_ll_place(conn, flight));
  return flight->staged;
}

bool proxy_ll_is_filled(const struct proxy_conn *conn, const struct proxy_flight *flight) {
  const struct device_net_step step = step_of(flight);
  return conn->comm->call.ops->network->net_take(conn->end.conn, &step, NULL);
}

void proxy_ll_put(const struct proxy_conn *conn, const struct proxy_flight *flight) {
  const struct device_net_step step = step_of(flight);
  conn->comm->call.ops->network->net_put(conn->end.conn, &step, proxy_ll_place(conn, flight));
}
