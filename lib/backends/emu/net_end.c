/* net_end.c: a proxy's access to connections whose other end lies behind a network. The proxy reads and
 * writes the counters in place of the lane at that end, and updates the checks' counters of it. */
#include <inttypes.h>

#include "backends/emu/block.h"
#include "backends/first_step.h"
#include "backends/net_ll.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/wake.h"

#define PAGE_BYTES 4096u

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
  end->memory = comm->net_memory[name->sends] == POINTER_DEVICE ? POINTER_DEVICE : POINTER_HOST;
  end->direct = conn->direct;
  end->pooled = conn->pooled;
  end->first_step = first_step_of(&comm->config.limits, conn->pooled);
  end->first_line = comm->config.limits.first_step;
  return ncclSuccess;
}

/* ---- slots as device memory ---- */

/* Emulated devices are reached only where the user demands it. */
uint32_t emu_net_rdma(struct device_comm *comm) {
  (void)comm;
  return param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) > 0 ? DEVICE_RDMA_DMABUF | DEVICE_RDMA_ADDRESS : 0;
}

/* It is host memory in the emulator, but the host must not access it. */
void emu_net_memory(struct device_comm *comm, enum pointer_kind receives, enum pointer_kind sends) {
  comm->net_memory[false] = receives;
  comm->net_memory[true] = sends;
}

/* Any valid descriptor will do, because emulated verbs use addresses. */
ncclResult_t emu_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset) {
  (void)bytes;
  *offset = (uintptr_t)memory % PAGE_BYTES;
  return wake_open(descriptor);
}

/* ---- slots of the rank's messages ---- */

static size_t set_bytes(const struct device_comm *comm) {
  return (size_t)comm->config.limits.slots * plan_pool_step_bytes(&comm->config.limits);
}

ncclResult_t emu_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place, bool sends,
                           uint8_t **buffer) {
  const uint64_t key = backend_slots_key(channel_index, place, sends);
  emu_lock();
  void *slots = map_find(&comm->slots, key);
  if (slots == NULL && map_reserve(&comm->slots)) slots = os_pages_map(set_bytes(comm));
  if (slots != NULL && map_find(&comm->slots, key) == NULL) {
    map_insert(&comm->slots, key, slots);
    comm->memory_bytes += set_bytes(comm);
  }
  emu_unlock();
  if (slots == NULL) return emu_conn_no_memory(comm, set_bytes(comm));
  *buffer = (uint8_t *)slots;
  return ncclSuccess;
}

void emu_net_slots_free(struct device_comm *comm) {
  for (uint32_t i = 0; i < comm->slots.capacity; i++)
    if (comm->slots.entries[i].value != NULL) os_pages_unmap(comm->slots.entries[i].value, set_bytes(comm));
  map_clear(&comm->slots);
}

/* ---- counters ---- */

uint64_t emu_net_load(struct device_net_conn *net, const uint64_t *counter) {
  const struct emu_conn *conn = conn_of(net);
  if (!emu_weak_on || conn->place == EMU_CONN_EXPORTED) return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
  return counter == &conn->fifo->sender.head ? emu_weak_load_head(counter) : emu_weak_load_tail(counter);
}

static void account_broken(const struct emu_conn *conn, uint64_t value, const char *what) {
  log_urgent("connection %" PRIu32 " -> %" PRIu32 " channel %" PRIu32 " step %" PRIu64
             ": invariant broken at event %" PRIu64 ": %s",
             conn->sender_rank, conn->receiver_rank, conn->channel_index, value, emu_event_count(), what);
  emu_comm_fail(conn->comm_id, ncclInternalError);
}

/* A sender's proxy frees the slots that it has sent, a receiver's announces the slots that have arrived.
 * Neither counter may decrease, or run further ahead of the lane than there are slots. */
static void account_move(struct emu_conn *conn, bool head, uint64_t value) {
  struct emu_shadow *shadow = &conn->shadow;
  if (head) {
    if (value < shadow->freed) account_broken(conn, value, "head falls");
    const bool silent = conn->buffer[PROTO_LL] != NULL; /* an empty LL step announces nothing */
    if (value > shadow->announced + conn->slots && !silent)
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
  /* A PXN proxy's lane is in another process, which polls. */
  if (emu_options()->mode == EMU_THREADS || conn->place == EMU_CONN_EXPORTED) {
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

static struct prim plain; /* stores at once, also with weak memory */

/* Wakes no lane: the store of the tail, which follows, does. */
void emu_net_announce(struct device_net_conn *net, uint32_t slot, uint32_t tag, uint64_t bytes) {
  prim_tagged_store(&plain, &conn_of(net)->fifo->receiver.announced[slot], tag, bytes);
}

/* ---- LL ---- */

/* A PXN proxy has slots for Simple only. */
bool emu_net_ll(bool pxn) { return !pxn; }

static uint8_t *line_slot_of(const struct emu_conn *conn, const struct device_net_step *step) {
  return conn->buffer[PROTO_LL] +
         step->line % conn->slots * fifo_slot_bytes(PROTO_LL, conn->step_bytes[PROTO_LL]);
}

/* With weak memory, stores that are not performed yet are not visible here either. */
bool emu_net_take(struct device_net_conn *net, const struct device_net_step *step, void *data) {
  const uint8_t *slot = line_slot_of(conn_of(net), step), *lines = slot + FIFO_LL_TAGGED_BYTES;
  uint64_t bytes;
  if (step->bytes == 0)
    return !step->announces ||
           prim_tagged_load((const struct tagged_word *)(const void *)slot, (uint32_t)step->step + 1, &bytes);
  if (!prim_line_ready(&plain, LINE_LL, lines, net_line_count(step), net_line_flag(step))) return false;
  if (data != NULL) net_ll_read(lines, step->bytes, (uint8_t *)data);
  return true;
}

static void ll_put(const struct emu_conn *conn, const struct device_net_step *step, const void *data) {
  uint8_t *slot = line_slot_of(conn, step), *lines = slot + FIFO_LL_TAGGED_BYTES;
  if (step->announces)
    prim_tagged_store(&plain, (struct tagged_word *)(void *)slot, (uint32_t)step->step + 1,
                      step->agreed_bytes);
  net_ll_write(lines, step, (const uint8_t *)data);
  if (line_cleans_at(step->line, step->flag_bits, conn->slots))
    net_ll_clean(lines, conn->step_bytes[PROTO_LL], step);
}

void emu_net_put(struct device_net_conn *net, const struct device_net_step *step, const void *data) {
  const struct emu_conn *conn = conn_of(net);
  if (emu_options()->mode == EMU_THREADS) {
    ll_put(conn, step, data);
    return;
  }
  emu_lock();
  ll_put(conn, step, data);
  if (conn->recv_lane != NULL) emu_actor_wake(&conn->recv_lane->actor);
  emu_unlock();
}

/* ---- data that does not pass through slots ---- */

static bool is_in_slots(const struct link *link, const void *data) {
  return (uintptr_t)data - (uintptr_t)link->buffer < link->slots * (size_t)link->step_bytes;
}

/* The index of the slot that begins at this address; -1 for other memory. */
static int slot_at(const struct link *link, const void *data) {
  const size_t offset = (uintptr_t)data - (uintptr_t)link->buffer;
  return is_in_slots(link, data) && offset % link->step_bytes == 0 ? (int)(offset / link->step_bytes) : -1;
}

static bool is_copy(const struct move *move) {
  const bool before = move->pre_op_sources != 0 && move->op == OP_PRE_MUL_SUM;
  const bool after = move->post_op && move->op == OP_SUM_POST_DIV;
  return move->source_count == 1 && !before && !after;
}

/* Fills an unused slot with rubbish, to detect a read of it. */
static void slot_spoil(uint8_t *slot, size_t bytes) {
  if (emu_options()->mode == EMU_GUARDED) memset(slot, 0xd1, bytes);
}

/* Data that the proxy received without a copy is read where it was received. */
static void move_from_zero_copy(const struct emu_lane *emu, size_t bytes, struct move *move) {
  const struct device_net_direct *direct = emu->recv_conn[0]->direct;
  for (uint32_t i = 0; i < move->source_count; i++) {
    const int slot = slot_at(&emu->lane.recv[0], move->source[i]);
    if (slot < 0 || direct->zero_copy_receives[slot] == NULL) continue;
    slot_spoil(emu->lane.recv[0].buffer + (size_t)slot * emu->lane.recv[0].step_bytes, bytes);
    move->source[i] = direct->zero_copy_receives[slot];
  }
}

/* Data in user memory, or that this move writes there, is sent from there instead of from the slot. */
static void move_zero_copy_send(const struct emu_lane *emu, size_t bytes, struct move *move) {
  struct device_net_direct *direct = emu->send_conn[0]->direct;
  const uint32_t last = move->destination_count - 1u;
  const int slot = slot_at(&emu->lane.send[0], move->destination[last]);
  const void *data = NULL;
  if (slot < 0 || __atomic_load_n(&direct->zero_copy_send, __ATOMIC_ACQUIRE) == 0) return;
  uint8_t *unused = (uint8_t *)move->destination[last];
  const bool receives = (emu->lane.step.flags & STEP_RECV) != 0; /* from a slot, or what lies in the output */
  if (is_copy(move) && (!receives || !is_in_slots(&emu->lane.recv[0], move->source[0])))
    data = move->source[0];
  else if (last > 0) data = move->destination[0];
  if (data == NULL) return;
  direct->zero_copy_sends[slot].bytes = bytes;
  __atomic_store_n(&direct->zero_copy_sends[slot].data, data, __ATOMIC_RELEASE);
  slot_spoil(unused, bytes);
  move->destination_count -= 1;
  if (data != move->source[0]) move->remote_destinations = 0; /* so the proxy finds it in the caches */
}

void emu_net_move(const struct emu_lane *emu, const struct move *asked) {
  const struct lane *lane = &emu->lane;
  const size_t bytes = asked->count * lane->work->element_bytes;
  if (bytes < DEVICE_NET_DIRECT_BYTES_MIN) {
    kernel_move(asked);
    return;
  }
  struct move move = *asked;
  if (lane->work->recv_count > 0 && emu->recv_conn[0]->direct != NULL && (lane->step.flags & STEP_RECV) != 0)
    move_from_zero_copy(emu, bytes, &move);
  if (lane->work->send_count > 0 && emu->send_conn[0]->direct != NULL && (lane->step.flags & STEP_SEND) != 0)
    move_zero_copy_send(emu, bytes, &move);
  if (move.destination_count == 0) return;
  if (is_copy(&move) && move.destination_count == 1 && move.source[0] == move.destination[0]) return;
  kernel_move(&move);
}

/* Not with weak memory, and not with several slices in flight. */
bool emu_net_may_zero_copy(void) {
  const struct emu_options *options = emu_options();
  return options->mode == EMU_THREADS || (!emu_weak_on && options->depth == 1);
}

bool emu_lane_is_held(const struct emu_lane *emu) {
  if (emu->prim.direct == NULL || emu->lane.work->send_count == 0) return false;
  const struct device_net_direct *direct = emu->send_conn[0]->direct;
  if (direct == NULL || __atomic_load_n(&direct->holds, __ATOMIC_RELAXED) == 0) return false;
  for (uint32_t i = 0; i < DEVICE_NET_SLOTS_MAX; i++)
    if (__atomic_load_n(&direct->zero_copy_sends[i].data, __ATOMIC_ACQUIRE) != NULL) return true;
  return false;
}

/* Only rings and messages: other algorithms may overwrite data before the receiver has it. */
bool emu_lane_is_direct(const struct emu_lane *emu, const struct plan *plan, const struct work *work) {
  const uint8_t family = algo_family(work);
  if (!emu_net_may_zero_copy() || (family != FAMILY_RING && family != FAMILY_P2P)) return false;
  const bool net = (work->recv_count > 0 && emu->recv_conn[0]->direct != NULL) ||
                   (work->send_count > 0 && emu->send_conn[0]->direct != NULL);
  return net && plan_is_loose(plan);
}
