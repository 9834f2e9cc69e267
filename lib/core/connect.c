/* connect.c: walks a plan's works and asks the backend for what is missing. Both ends of a connection ask;
 * the backend makes it once. Promises that a failure leaves the table true. Does not know what a connection
 * is made of. */
#include "core/connect.h"

#include "base/log.h"
#include "base/os.h"
#include "core/comm.h"

#define CONNECT_CAPACITY_FIRST 16

static uint64_t connect_key(uint32_t peer, bool sending, uint32_t conn_index, uint8_t proto) {
  return ((((uint64_t)peer * 2 + sending) * 4 + conn_index) * 4 + proto) + 1;
}

/* The entry of the key, or the free one where it belongs. The table is never full. */
static struct connect_entry *connect_slot(const struct connect_table *table, uint64_t key) {
  uint32_t index = (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & (table->capacity - 1);
  while (table->entries[index].key != 0 && table->entries[index].key != key) {
    index = (index + 1) & (table->capacity - 1);
  }
  return &table->entries[index];
}

static ncclResult_t connect_grow(struct ncclComm *comm) {
  struct connect_table *table = &comm->connections;
  struct connect_table grown = {NULL, table->capacity ? 2 * table->capacity : CONNECT_CAPACITY_FIRST,
                                table->count};
  if (table->count * 2 < table->capacity) return ncclSuccess;
  grown.entries = (struct connect_entry *)os_alloc(grown.capacity * sizeof *grown.entries);
  if (!grown.entries) {
    return log_fail(ncclSystemError,
                    "rank %u of comm '%s': no memory for %u connections; free some and try again", comm->rank,
                    comm->name, grown.capacity);
  }
  for (uint32_t i = 0; i < table->capacity; i++) {
    if (table->entries[i].key != 0) *connect_slot(&grown, table->entries[i].key) = table->entries[i];
  }
  os_free(table->entries);
  *table = grown;
  return ncclSuccess;
}

static ncclResult_t connect_peer(struct ncclComm *comm, const struct work *work, uint32_t peer,
                                 bool sending) {
  const uint32_t conn_index = work_link_conn(work, peer, sending);
  const uint64_t key = connect_key(peer, sending, conn_index, work->proto), bit = 1ull << work->channel_index;
  if (peer == comm->rank && work->conn_index != CONN_SWITCH) return ncclSuccess;
  TRY(connect_grow(comm));
  struct connect_entry *entry = connect_slot(&comm->connections, key);
  if (entry->key == key && (entry->channel_mask & bit) != 0) return ncclSuccess;
  struct device_comm *self = comm->device_comm, *other = comm->team->device_comms[peer];
  TRY(comm->ops->comm_connect(sending ? self : other, sending ? other : self, work->channel_index, conn_index,
                              work->proto));
  if (entry->key == 0) comm->connections.count += 1;
  entry->key = key;
  entry->channel_mask |= bit;
  log_trace(LOG_P2P, "Channel %02u/%u : %u -> %u via %s, connection %u, protocol %u", work->channel_index,
            conn_index, sending ? comm->rank : peer, sending ? peer : comm->rank, comm->ops->name, conn_index,
            work->proto);
  return ncclSuccess;
}

ncclResult_t connect_plan(struct ncclComm *comm, struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    for (uint32_t k = 0; k < work->recv_count; k++) TRY(connect_peer(comm, work, work->recv_peer[k], false));
    for (uint32_t k = 0; k < work->send_count; k++) TRY(connect_peer(comm, work, work->send_peer[k], true));
  }
  if (plan->scratch_bytes == 0) return ncclSuccess;
  return comm->ops->comm_scratch(comm->device_comm, plan->scratch_bytes, &plan->scratch);
}

void connect_table_free(struct connect_table *table) {
  os_free(table->entries);
  table->entries = NULL;
  table->capacity = table->count = 0;
}
