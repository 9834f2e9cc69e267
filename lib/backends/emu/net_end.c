/* net_end.c: connections of which one end lies behind a network: how a proxy sees them. It reads and writes
 * the counters that the lane at the other end would, and the checks' account of that end moves with it. */
#include <inttypes.h>

#include "backends/emu/block.h"
#include "base/log.h"

static struct emu_conn *conn_of(struct device_net_conn *conn) { return (struct emu_conn *)(void *)conn; }

ncclResult_t emu_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                          struct device_net_end *end) {
  struct emu_conn *conn = NULL;
  emu_lock();
  const ncclResult_t result = emu_conn_open_net(comm, name, &conn);
  emu_unlock();
  if (result != ncclSuccess) return result;
  if (!conn->net)
    return log_fail(ncclInternalError,
                    "comm %s: rank %" PRIu32 " and rank %" PRIu32
                    " are connected already, and not over a network",
                    comm->name, comm->config.rank, name->peer);
  end->conn = (struct device_net_conn *)(void *)conn;
  end->head = &conn->fifo->sender.head;
  end->tail = &conn->fifo->receiver.tail;
  end->buffer = conn->buffer[name->proto];
  end->slots = conn->slots;
  end->step_bytes = conn->step_bytes[name->proto];
  end->memory = POINTER_HOST;
  return ncclSuccess;
}

uint64_t emu_net_load(struct device_net_conn *net, const uint64_t *counter) {
  const struct emu_conn *conn = conn_of(net);
  if (!emu_weak_on) return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
  return counter == &conn->fifo->sender.head ? emu_weak_load_head(counter) : emu_weak_load_tail(counter);
}

static void account_broken(const struct emu_conn *conn, uint64_t value, const char *what) {
  log_urgent("connection %" PRIu32 " -> %" PRIu32 " channel %" PRIu32 " step %" PRIu64
             ": invariant broken at move %" PRIu64 ": %s",
             conn->sender_rank, conn->receiver_rank, conn->channel_index, value, emu_move_count(), what);
  emu_comm_fail(conn->comm_id, ncclInternalError);
}

/* The proxy of a sender frees what it has sent, that of a receiver announces what has come: neither falls,
 * nor runs further ahead of the lane than there are slots. */
static void account_move(struct emu_conn *conn, bool head, uint64_t value) {
  struct emu_shadow *shadow = &conn->shadow;
  if (head) {
    if (value < shadow->freed) account_broken(conn, value, "head falls");
    if (value > shadow->announced + conn->slots)
      account_broken(conn, value, "head is beyond what was announced");
    shadow->freed = shadow->read = shadow->reading = value;
  } else {
    if (value < shadow->announced) account_broken(conn, value, "tail falls");
    if (value > shadow->freed + conn->slots) account_broken(conn, value, "tail is beyond the slots");
    shadow->announced = shadow->written = shadow->writing = value;
  }
}

void emu_net_store(struct device_net_conn *net, uint64_t *counter, uint64_t value) {
  struct emu_conn *conn = conn_of(net);
  const bool head = counter == &conn->fifo->sender.head;
  if (emu_options()->mode == EMU_THREADS) {
    __atomic_store_n(counter, value, __ATOMIC_RELEASE);
    return;
  }
  emu_lock();
  account_move(conn, head, value);
  *counter = value;
  struct emu_lane *lane = head ? conn->send_lane : conn->recv_lane;
  if (lane != NULL) emu_actor_wake(&lane->actor);
  emu_unlock();
}

/* The tail that follows wakes who waits for it. */
void emu_net_announce(struct device_net_conn *net, uint32_t slot, uint32_t tag, uint64_t bytes) {
  static struct prim plain; /* whose memory is not weak */
  prim_cell_store(&plain, &conn_of(net)->fifo->receiver.announced[slot], tag, bytes);
}
