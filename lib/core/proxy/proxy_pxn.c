/* proxy_pxn.c: PXN proxies: sends for ranks of other processes of the host (proxy_pxn.h). All PXN proxies of
 * the process run on one thread, separate from the engine: a PXN proxy needs no emulator and no kernel of
 * this process, because a rank may depend on a process that has itself finished everything. The thread spins
 * while something moves, polls while something is pending, because other processes' kernels change counters
 * without a wake, and otherwise sleeps until a sender rings. It ends with the last PXN proxy. Senders' input
 * is checked before use. At exit the process waits for PXN proxies whose senders still exist, since they
 * cannot continue without it. */
#include "core/proxy/proxy_pxn.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/wake.h"
#include "core/proxy/net.h"

#define SPIN_NS 100000u   /* time to spin once nothing moves */
#define YIELD_NS 300000u  /* time to poll and yield after that */
#define NAP_US 100u       /* between polls while slices are pending */
#define NAP_LONG_US 1000u /* the same, if they have made no progress for LONG_NS */
#define LONG_NS 50000000u
#define CONNECT_US 10000u            /* between polls while connections are being made */
#define IDLE_US 1000000u             /* between checks that idle senders are alive */
#define LOOK_NS 1000000000u          /* the same, while busy */
#define ACTIONS_MOST 32              /* of one PXN proxy in a row */
#define WORKS (PROXY_SLICES_MAX + 1) /* slices in flight, and the next one */

struct pxn {
  struct proxy_comm comm; /* for this connection only, named after the sender's; in no list */
  struct proxy_conn conn;
  struct pxn_block *block;
  struct device_conn_handle handle;
  struct work works[WORKS]; /* for messages that name an operation */
  uint64_t taken;           /* slices taken so far */
  uint64_t made_ns, looked_ns;
  uint32_t over;
  struct pxn *next;
};

/* The PXN proxies of this process, and their thread. */
static struct {
  os_mutex lock; /* taken before a network's; never together with the backend's */
  os_cond changed;
  struct pxn *first;
  uint32_t count; /* in the list or being closed */
  uint64_t moves;
  int wake;
  bool running, waits_at_exit;
  uint32_t forks;
} pxn_engine = {.lock = OS_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .wake = -1};

/* ---- slices that the sender describes ---- */

/* Slices are consecutive; rounding to a whole chunk may skip fewer steps than there are slots. */
static bool slice_is_sane(const struct proxy_conn *conn, const struct pxn_slice *slice) {
  const uint64_t slots = conn->end.slots;
  return slice->begin >= conn->steps.posted && slice->begin - conn->steps.posted < slots &&
         slice->end > slice->begin && slice->end - slice->begin <= slots &&
         slice->begin % slots + (slice->end - slice->begin) <= slots && slice->func < FUNC_COUNT &&
         slice->bytes <= (slice->end - slice->begin) * conn->end.step_bytes;
}

bool proxy_pxn_take(struct proxy_conn *conn) {
  struct pxn *pxn = conn->pxn;
  if (pxn->taken >= __atomic_load_n(&pxn->block->posted, __ATOMIC_SEQ_CST)) return false;
  const struct pxn_slice slice = pxn->block->slices[pxn->taken % PROXY_SLICES_MAX];
  if (!slice_is_sane(conn, &slice)) {
    proxy_comm_fail(conn->comm, ncclInternalError,
                    "rank %" PRIu32 " describes a message to rank %" PRIu32 " that cannot be",
                    conn->comm->call.rank, conn->name.peer);
    return false;
  }
  struct work *work = &pxn->works[pxn->taken % WORKS];
  work->func = (uint8_t)slice.func;
  work->op_sequence = slice.operation;
  conn->next_slice = (struct transfer){.begin = slice.begin,
                                       .end = slice.end,
                                       .bytes = slice.bytes,
                                       .part = work,
                                       .agreed_bytes = slice.agreed_bytes,
                                       .skipped = slice.skipped != 0};
  pxn->taken += 1;
  return true;
}

/* ---- turning ---- */

enum pxn_state { PXN_MOVED, PXN_WAITS, PXN_CONNECTS, PXN_LOOKS, PXN_IDLE };

static bool pxn_is_over(struct pxn *pxn, uint64_t now_ns) {
  const struct pxn_block *block = pxn->block;
  if (__atomic_load_n(&block->left, __ATOMIC_SEQ_CST) != 0) return true;
  if (now_ns - pxn->looked_ns < LOOK_NS) return false;
  pxn->looked_ns = now_ns;
  if (__atomic_load_n(&block->came, __ATOMIC_ACQUIRE) != 0) return os_process_gone(&block->sender);
  return now_ns - pxn->made_ns > (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u;
}

static void pxn_report(struct pxn *pxn) {
  struct pxn_block *block = pxn->block;
  const struct proxy_comm *comm = &pxn->comm;
  __atomic_store_n(&block->transmitted, pxn->conn.n_transmitted, __ATOMIC_RELAXED);
  __atomic_store_n(&block->connected, pxn->conn.connection != NULL, __ATOMIC_RELAXED);
  if (!comm->failed || comm->reported) return;
  pxn->comm.reported = true;
  snprintf(block->text, sizeof block->text, "%s", comm->text);
  __atomic_store_n(&block->failed, (uint32_t)comm->code, __ATOMIC_RELEASE);
}

static enum pxn_state pxn_turn(struct pxn *pxn) {
  struct proxy_conn *conn = &pxn->conn;
  bool moved = false;
  if (pxn->comm.failed && pxn->comm.reported) return PXN_IDLE;
  for (uint32_t i = 0; i < ACTIONS_MOST && proxy_conn_advance(conn); i++) moved = true;
  const enum net_look idle_look = proxy_comm_progress_idle(&pxn->comm);
  pxn_report(pxn);
  if (moved) return PXN_MOVED;
  if (pxn->comm.failed) return PXN_IDLE;
  if (conn->connection == NULL) return PXN_CONNECTS;
  if (conn->n_done != pxn->taken || idle_look == NET_LOOK_SOON) return PXN_WAITS;
  return idle_look == NET_LOOK_LATER ? PXN_LOOKS : PXN_IDLE;
}

/* Runs one turn of all PXN proxies, and moves those that have ended to *over. Locked. */
static enum pxn_state pxn_engine_turn(struct pxn **over) {
  enum pxn_state state = PXN_IDLE;
  const uint64_t now_ns = os_time_ns();
  for (struct pxn **place = &pxn_engine.first, *pxn; (pxn = *place) != NULL;) {
    if (pxn_is_over(pxn, now_ns)) {
      *place = pxn->next;
      pxn->next = *over;
      *over = pxn;
      continue;
    }
    const enum pxn_state found = pxn_turn(pxn);
    if (found < state) state = found;
    place = &pxn->next;
  }
  if (state == PXN_MOVED) pxn_engine.moves += 1;
  return state;
}

/* ---- ending ---- */

/* Not locked: the backend may block. */
static void pxn_free_all(struct pxn *pxn) {
  uint32_t count = 0;
  for (struct pxn *next; pxn != NULL; pxn = next, count++) {
    next = pxn->next;
    const struct proxy_conn *conn = &pxn->conn;
    log_info(LOG_NET | LOG_PROXY,
             "comm %s: channel %" PRIu32 ": %" PRIu32 " -> %" PRIu32 " by device %" PRIu32
             " at the side of rank %" PRIu32 " (PXN) ends after %" PRIu64 " slices",
             pxn->comm.name, conn->name.channel_index, pxn->comm.call.rank, conn->name.peer, conn->net_device,
             pxn->over, conn->n_done);
    proxy_conn_close(pxn->comm.net, &pxn->conn);
    pxn->comm.call.ops->network->pxn_drop(conn->end.conn);
    os_free(pxn);
  }
  if (count == 0) return;
  os_mutex_lock(&pxn_engine.lock);
  pxn_engine.count -= count;
  os_cond_broadcast(&pxn_engine.changed);
  os_mutex_unlock(&pxn_engine.lock);
}

/* Locked. */
static void pxn_engine_close(void) {
  share_signal_to(-1);
  wake_close(pxn_engine.wake);
  pxn_engine.wake = -1;
  pxn_engine.running = false;
  os_thread_note(-1);
}

/* ---- the thread ---- */

/* Locked. */
static void pxn_engine_say_asleep(uint32_t asleep) {
  for (struct pxn *pxn = pxn_engine.first; pxn != NULL; pxn = pxn->next)
    __atomic_store_n(&pxn->block->asleep, asleep, __ATOMIC_SEQ_CST);
}

static uint32_t pxn_engine_descriptors(int *descriptors) {
  uint32_t count = 0;
  for (struct pxn *pxn = pxn_engine.first; pxn != NULL; pxn = pxn->next) {
    const struct net_ops *net = pxn->comm.net;
    uint32_t more = 0;
    if (pxn->conn.connection == NULL || pxn->conn.n_done == pxn->taken || pxn->comm.failed ||
        net->wait_descriptors == NULL)
      continue;
    if (net->wait_descriptors(pxn->conn.connection, descriptors + count, WAKE_DESCRIPTORS_MAX - count,
                              &more) == ncclSuccess)
      count += more;
  }
  return count;
}

static uint64_t nap_us(enum pxn_state state, uint64_t still_ns) {
  if (state == PXN_IDLE) return IDLE_US;
  if (state == PXN_LOOKS) return PROXY_PROGRESS_IDLE_US;
  if (state == PXN_CONNECTS) return still_ns < LONG_NS ? NAP_LONG_US : CONNECT_US;
  return still_ns < LONG_NS ? NAP_US : NAP_LONG_US;
}

/* A sender that posts from here on is either seen by the last turn, or sees that it must ring. */
static void pxn_engine_sleep(uint64_t since_ns) {
  int descriptors[WAKE_DESCRIPTORS_MAX];
  struct pxn *over = NULL;
  os_mutex_lock(&pxn_engine.lock);
  pxn_engine_say_asleep(1);
  const enum pxn_state state = pxn_engine_turn(&over);
  const uint32_t count = pxn_engine_descriptors(descriptors);
  if (state == PXN_WAITS) pxn_engine_say_asleep(0); /* it polls again soon */
  const bool rests = state != PXN_MOVED && over == NULL && pxn_engine.first != NULL;
  os_mutex_unlock(&pxn_engine.lock);
  pxn_free_all(over);
  if (rests) wake_wait(pxn_engine.wake, descriptors, count, nap_us(state, os_time_ns() - since_ns));
  os_mutex_lock(&pxn_engine.lock);
  pxn_engine_say_asleep(0);
  os_mutex_unlock(&pxn_engine.lock);
}

static void *pxn_engine_body(void *unused) {
  uint64_t since_ns = os_time_ns();
  (void)unused;
  net_thread_bind();
  while (true) {
    struct pxn *over = NULL;
    os_mutex_lock(&pxn_engine.lock);
    const enum pxn_state state = pxn_engine_turn(&over);
    os_mutex_unlock(&pxn_engine.lock);
    pxn_free_all(over);
    os_mutex_lock(&pxn_engine.lock);
    const bool ends = pxn_engine.first == NULL;
    if (ends) pxn_engine_close();
    os_mutex_unlock(&pxn_engine.lock);
    if (ends) return NULL;
    const uint64_t now_ns = os_time_ns(), still_ns = now_ns - since_ns;
    if (state == PXN_MOVED) since_ns = now_ns;
    else if (still_ns > (state == PXN_WAITS ? SPIN_NS + YIELD_NS : SPIN_NS)) pxn_engine_sleep(since_ns);
    else if (still_ns > SPIN_NS) os_yield();
  }
}

/* ---- the end of the process ---- */

/* Maximum time without progress before the process stops waiting for the senders. */
static uint64_t exit_patience_ns(void) {
  const int64_t seconds = param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  return (uint64_t)(seconds > 0 ? seconds : 60) * UINT64_C(1000000000);
}

/* Senders that have failed no longer count. */
static bool pxn_engine_is_needed(void) {
  for (const struct pxn *pxn = pxn_engine.first; pxn != NULL; pxn = pxn->next)
    if (!pxn->comm.failed) return true;
  return pxn_engine.first == NULL && pxn_engine.count > 0;
}

static void pxn_engine_at_exit(void) {
  if (pxn_engine.forks != os_fork_count()) return;
  proxy_pxn_client_leave();
  os_mutex_lock(&pxn_engine.lock);
  uint64_t moves = pxn_engine.moves, since_ns = os_time_ns();
  while (pxn_engine_is_needed()) {
    const uint64_t now_ns = os_time_ns();
    if (pxn_engine.moves != moves) since_ns = now_ns;
    moves = pxn_engine.moves;
    if (now_ns - since_ns > exit_patience_ns()) break;
    os_cond_wait_until(&pxn_engine.changed, &pxn_engine.lock, now_ns + 100000000u);
  }
  os_mutex_unlock(&pxn_engine.lock);
}

/* ---- opening ---- */

/* A forked child has neither PXN proxies nor the thread. Locked. */
static void pxn_engine_forget(void) {
  if (pxn_engine.forks == os_fork_count()) return;
  pxn_engine.forks = os_fork_count();
  if (pxn_engine.wake >= 0) wake_close(pxn_engine.wake);
  pxn_engine.wake = -1;
  pxn_engine.first = NULL;
  pxn_engine.count = 0;
  pxn_engine.running = false;
}

/* Locked. */
static ncclResult_t pxn_engine_start(void) {
  os_thread thread;
  if (pxn_engine.running) {
    wake_signal(pxn_engine.wake);
    return ncclSuccess;
  }
  TRY(wake_open(&pxn_engine.wake));
  if (os_thread_start_named(&thread, "tutti-pxn", pxn_engine_body, NULL)) {
    os_thread_detach(thread);
    os_thread_note(1);
    pxn_engine.running = true;
    share_signal_to(pxn_engine.wake);
    return ncclSuccess;
  }
  wake_close(pxn_engine.wake);
  pxn_engine.wake = -1;
  return log_fail(ncclSystemError, "no thread to send for ranks of other processes; raise ulimit -u");
}

static bool same_name(const struct device_conn_name *a, const struct device_conn_name *b) {
  return a->peer == b->peer && a->channel_index == b->channel_index && a->conn_index == b->conn_index;
}

/* Locked. */
static struct pxn *pxn_engine_find(const struct proxy_pxn_call *call) {
  for (struct pxn *pxn = pxn_engine.first; pxn != NULL; pxn = pxn->next)
    if (pxn->comm.call.comm_key == call->comm_key && pxn->comm.call.rank == call->rank &&
        same_name(&pxn->conn.name, &call->name) && __atomic_load_n(&pxn->block->left, __ATOMIC_ACQUIRE) == 0)
      return pxn;
  return NULL;
}

/* Locked. */
static ncclResult_t pxn_engine_add(struct pxn *pxn) {
  TRY(pxn_engine_start());
  pxn->next = pxn_engine.first;
  pxn_engine.first = pxn;
  pxn_engine.count += 1;
  return ncclSuccess;
}

static ncclResult_t pxn_choose_net(const struct proxy_pxn_call *call, struct proxy_comm *comm) {
  comm->net = call->net;
  comm->net_device_count = call->net_device + 1;
  if (comm->net == NULL) TRY(net_choose(&comm->net, &comm->net_device_count));
  if (call->net_device < comm->net_device_count) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "network %s has no device %" PRIu32 " here", comm->net->name,
                  call->net_device);
}

static void pxn_fill(const struct proxy_pxn_call *call, const struct device_pxn *made, struct pxn *pxn) {
  struct proxy_comm *comm = &pxn->comm;
  struct proxy_conn *conn = &pxn->conn;
  comm->call.ops = call->ops;
  comm->call.comm_key = call->comm_key;
  comm->call.secret = call->secret;
  comm->call.rank = call->rank;
  comm->call.rank_count = call->rank_count;
  comm->call.traffic_class = call->traffic_class;
  snprintf(comm->name, sizeof comm->name, "%s", call->comm_name);
  comm->connecting = 1;
  conn->comm = comm;
  comm->first = conn;
  conn->name = call->name;
  conn->end = made->end;
  conn->net_device = call->net_device;
  conn->handle = call->handle;
  conn->apart = call->apart;
  conn->pxn = pxn;
  proxy_conn_begin(conn, conn->end.first_step);
  pxn->over = call->over;
  pxn->made_ns = pxn->looked_ns = os_time_ns();
  pxn->block = (struct pxn_block *)made->block;
  pxn->block->device = call->net_device;
  os_process_self(&pxn->block->pxn);
}

static ncclResult_t pxn_make(const struct proxy_pxn_call *call, struct pxn *pxn) {
  struct device_pxn made;
  TRY(pxn_choose_net(call, &pxn->comm));
  TRY(call->ops->network->pxn_make(call->device_comm, call->rank, &call->name, sizeof(struct pxn_block),
                                   &made, &pxn->handle));
  pxn_fill(call, &made, pxn);
  ncclResult_t result = proxy_device_open(&pxn->conn);
  if (made.end.slots > PROXY_SLICES_MAX || !share_bell(&pxn->block->bell))
    result = log_fail(ncclInternalError, "rank %" PRIu32 " cannot be rung up by others", call->over);
  if (result == ncclSuccess) {
    os_mutex_lock(&pxn_engine.lock);
    result = pxn_engine_add(pxn);
    os_mutex_unlock(&pxn_engine.lock);
  }
  if (result == ncclSuccess) return ncclSuccess;
  proxy_device_close(pxn->comm.net, &pxn->conn);
  call->ops->network->pxn_drop(made.end.conn);
  return result;
}

static bool pxn_engine_enter(const struct proxy_pxn_call *call, struct device_conn_handle *handle) {
  os_mutex_lock(&pxn_engine.lock);
  pxn_engine_forget();
  const struct pxn *found = pxn_engine_find(call);
  if (found != NULL) *handle = found->handle;
  if (!pxn_engine.waits_at_exit) os_at_exit(pxn_engine_at_exit);
  pxn_engine.waits_at_exit = true;
  os_mutex_unlock(&pxn_engine.lock);
  return found != NULL;
}

ncclResult_t proxy_pxn_open(const struct proxy_pxn_call *call, struct device_conn_handle *handle) {
  if (pxn_engine_enter(call, handle)) return ncclSuccess;
  struct pxn *pxn = (struct pxn *)os_alloc(sizeof *pxn);
  if (pxn == NULL)
    return log_no_memory("rank %" PRIu32 ": sending for rank %" PRIu32, call->over, call->rank);
  const ncclResult_t result = pxn_make(call, pxn);
  if (result == ncclSuccess) *handle = pxn->handle;
  else os_free(pxn);
  return result;
}

void proxy_pxn_break(uint64_t comm_key, uint32_t over, const char *text) {
  os_mutex_lock(&pxn_engine.lock);
  for (struct pxn *pxn = pxn_engine.first; pxn != NULL; pxn = pxn->next) {
    if (pxn->comm.call.comm_key != comm_key || pxn->over != over) continue;
    proxy_comm_fail(&pxn->comm, ncclRemoteError, "%s", text);
    pxn_report(pxn);
  }
  os_mutex_unlock(&pxn_engine.lock);
}

uint32_t proxy_pxn_count(void) {
  os_mutex_lock(&pxn_engine.lock);
  const uint32_t count = pxn_engine.count;
  os_mutex_unlock(&pxn_engine.lock);
  return count;
}
