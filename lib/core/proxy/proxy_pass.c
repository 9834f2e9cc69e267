/* proxy_pass.c: the sender's half of a relay (proxy_relay.h): notes what is to be sent, wakes who sends it,
 * and sees what becomes of that. Promises that a relay which has failed, or whose process has ended, ends the
 * communicator, with a sentence that names it. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "core/proxy/proxy_relay.h"

#define LOOK_NS 200000000u /* between looks whether the relay's process lives */

static struct {
  os_mutex lock;
  struct proxy_conn *first; /* those that pass on, by next_pass */
} passes = {.lock = OS_MUTEX_INITIALIZER};

ncclResult_t proxy_pass_make(struct proxy_conn *conn) {
  const struct proxy_comm_call *call = &conn->comm->call;
  struct device_relay relay;
  TRY(call->ops->relay_end(call->device_comm, &conn->name, sizeof(struct relay_block), &relay));
  struct relay_block *block = (struct relay_block *)relay.block;
  conn->end = relay.end;
  conn->pass = block;
  proxy_conn_begin(conn, relay.first_step);
  os_process_self(&block->sender);
  __atomic_store_n(&block->came, 1, __ATOMIC_RELEASE);
  os_mutex_lock(&passes.lock);
  conn->next_pass = passes.first;
  passes.first = conn;
  os_mutex_unlock(&passes.lock);
  return ncclSuccess;
}

/* A ring that is not taken is tried again at the next look. */
static void block_ring(struct relay_block *block) {
  if (__atomic_load_n(&block->asleep, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_store_n(&block->asleep, 0, __ATOMIC_SEQ_CST);
  if (!share_ring(&block->bell)) __atomic_store_n(&block->asleep, 1, __ATOMIC_SEQ_CST);
}

void proxy_pass_note(struct proxy_conn *conn) {
  const struct proxy_slice *slice = &conn->next_slice;
  struct relay_block *block = conn->pass;
  block->notes[conn->n_posted % PROXY_SLICES_MAX] = (struct relay_note){
      slice->begin,      slice->end,    slice->bytes, slice->agreed_bytes, slice->part->op_sequence,
      slice->part->func, slice->skipped};
  __atomic_store_n(&block->posted, conn->n_posted + 1, __ATOMIC_SEQ_CST);
  block_ring(block);
}

static void fail_as_told(struct proxy_conn *conn, ncclResult_t code) {
  char text[PROXY_TEXT_BYTES];
  memcpy(text, conn->pass->text, sizeof text);
  text[sizeof text - 1] = '\0';
  proxy_comm_fail(conn->comm, code, "by way of rank %" PRIu32 ", device %" PRIu32 ": %s", conn->over,
                  conn->net_device, text);
}

bool proxy_pass_look(struct proxy_conn *conn) {
  struct relay_block *block = conn->pass;
  const uint32_t code = __atomic_load_n(&block->failed, __ATOMIC_ACQUIRE);
  if (code != 0) {
    fail_as_told(conn, code < ncclNumResults ? (ncclResult_t)code : ncclRemoteError);
    return false;
  }
  if (conn->n_done == conn->n_posted) return true;
  block_ring(block);
  const uint64_t now_ns = os_time_ns();
  if (now_ns - conn->looked_ns < LOOK_NS) return true;
  conn->looked_ns = now_ns;
  if (!os_process_gone(&block->relay)) return true;
  proxy_comm_fail(conn->comm, ncclRemoteError,
                  "the process of rank %" PRIu32 ", which sends to rank %" PRIu32 " by device %" PRIu32
                  " (PXN), has ended",
                  conn->over, conn->name.peer, conn->net_device);
  return false;
}

static void block_leave(struct relay_block *block) {
  __atomic_store_n(&block->left, 1, __ATOMIC_SEQ_CST);
  block_ring(block);
}

void proxy_pass_close(struct proxy_conn *conn) {
  os_mutex_lock(&passes.lock);
  struct proxy_conn **place = &passes.first;
  while (*place != NULL && *place != conn) place = &(*place)->next_pass;
  if (*place != NULL) *place = conn->next_pass;
  block_leave(conn->pass);
  os_mutex_unlock(&passes.lock);
  conn->pass = NULL;
}

void proxy_pass_leave(void) {
  os_mutex_lock(&passes.lock);
  for (struct proxy_conn *conn = passes.first; conn != NULL; conn = conn->next_pass) block_leave(conn->pass);
  os_mutex_unlock(&passes.lock);
}
