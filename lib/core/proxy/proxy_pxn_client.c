/* proxy_pxn_client.c: the sender's side of a PXN proxy (proxy_pxn.h): describes what to send, wakes the PXN
 * proxy, and checks its progress. If a PXN proxy has failed or its process has ended, the communicator is
 * broken with a message that names it. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "core/proxy/proxy_pxn.h"

#define LOOK_NS 200000000u /* between looks whether the PXN proxy's process lives */

static struct {
  os_mutex lock;
  struct proxy_conn *first; /* those that pass on, by next_pxn_client */
} pxn_clients = {.lock = OS_MUTEX_INITIALIZER};

ncclResult_t proxy_pxn_client_make(struct proxy_conn *conn) {
  const struct proxy_comm_call *call = &conn->comm->call;
  struct device_pxn pxn;
  TRY(call->ops->network->pxn_end(call->device_comm, &conn->name, sizeof(struct pxn_block), &pxn));
  struct pxn_block *block = (struct pxn_block *)pxn.block;
  conn->end = pxn.end;
  conn->pxn_client = block;
  proxy_conn_begin(conn, conn->end.first_step);
  os_process_self(&block->sender);
  __atomic_store_n(&block->came, 1, __ATOMIC_RELEASE);
  os_mutex_lock(&pxn_clients.lock);
  conn->next_pxn_client = pxn_clients.first;
  pxn_clients.first = conn;
  os_mutex_unlock(&pxn_clients.lock);
  return ncclSuccess;
}

/* A ring that is lost is repeated at the next check. */
static void block_ring(struct pxn_block *block) {
  if (__atomic_load_n(&block->asleep, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_store_n(&block->asleep, 0, __ATOMIC_SEQ_CST);
  if (!share_ring(&block->bell)) __atomic_store_n(&block->asleep, 1, __ATOMIC_SEQ_CST);
}

void proxy_pxn_client_describe(struct proxy_conn *conn) {
  const struct transfer *slice = &conn->next_slice;
  struct pxn_block *block = conn->pxn_client;
  block->slices[conn->n_posted % PROXY_SLICES_MAX] = (struct pxn_slice){
      slice->begin,      slice->end,    slice->bytes, slice->agreed_bytes, slice->part->op_sequence,
      slice->part->func, slice->skipped};
  __atomic_store_n(&block->posted, conn->n_posted + 1, __ATOMIC_SEQ_CST);
  block_ring(block);
}

static void fail_as_reported(struct proxy_conn *conn, ncclResult_t code) {
  char text[PROXY_TEXT_BYTES];
  memcpy(text, conn->pxn_client->text, sizeof text);
  text[sizeof text - 1] = '\0';
  proxy_comm_fail(conn->comm, code, "through rank %" PRIu32 ", device %" PRIu32 ": %s", conn->over,
                  conn->net_device, text);
}

bool proxy_pxn_client_check(struct proxy_conn *conn) {
  struct pxn_block *block = conn->pxn_client;
  const uint32_t code = __atomic_load_n(&block->failed, __ATOMIC_ACQUIRE);
  if (code != 0) {
    fail_as_reported(conn, code < ncclNumResults ? (ncclResult_t)code : ncclRemoteError);
    return false;
  }
  if (conn->n_done == conn->n_posted) return true;
  block_ring(block);
  const uint64_t now_ns = os_time_ns();
  if (now_ns - conn->looked_ns < LOOK_NS) return true;
  conn->looked_ns = now_ns;
  if (!os_process_gone(&block->pxn)) return true;
  proxy_comm_fail(conn->comm, ncclRemoteError,
                  "the process of rank %" PRIu32 ", which sends to rank %" PRIu32 " by device %" PRIu32
                  " (PXN), has ended",
                  conn->over, conn->name.peer, conn->net_device);
  return false;
}

static void block_leave(struct pxn_block *block) {
  __atomic_store_n(&block->left, 1, __ATOMIC_SEQ_CST);
  block_ring(block);
}

void proxy_pxn_client_close(struct proxy_conn *conn) {
  os_mutex_lock(&pxn_clients.lock);
  struct proxy_conn **place = &pxn_clients.first;
  while (*place != NULL && *place != conn) place = &(*place)->next_pxn_client;
  if (*place != NULL) *place = conn->next_pxn_client;
  block_leave(conn->pxn_client);
  os_mutex_unlock(&pxn_clients.lock);
  conn->pxn_client = NULL;
}

void proxy_pxn_client_leave(void) {
  os_mutex_lock(&pxn_clients.lock);
  for (struct proxy_conn *conn = pxn_clients.first; conn != NULL; conn = conn->next_pxn_client)
    block_leave(conn->pxn_client);
  os_mutex_unlock(&pxn_clients.lock);
}
